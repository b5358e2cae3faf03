"""Where other nodes' links end: their commands go to this process's shards, and the replies of a turn leave together.

A link that breaks leaves nothing behind: receives that wait are withdrawn, subscriptions end, deliveries that were not
written are given back, wherever their shard is by now. (What was written may have arrived, or not: those leases run
out.) Sessions that are connections of the other node's clients go on for `session_grace_s`, in case it comes back; they
end at once when it comes back as another process. A node that comes back has given its former link up, even if that was
not heard of here yet: it is ended, so that it does not stand in the way. With a shard that was handed over in order
come the sessions that it has: they go on as well, while the nodes that have the connections are heard from.

A node that does not read its replies is not read from, and neither is one that has too much in flight.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from penstock.cluster.base import Place
from penstock.cluster.links.end import Gathered, LinkEnd
from penstock.cluster.links.settings import LinkIdentity, LinkLimits, Process, process_of, require_secret, split_address
from penstock.cluster.links.wire import Numbered, decode_commands, encode_replies, pack_failure
from penstock.core.commands import CancelWait, Command, Delivery, EndSession, OpenSession, Receive, Subscribe
from penstock.core.errors import BatchTooLarge, InvalidRequest, OverLimit, PenstockError, StoreError
from penstock.core.storage.records import Session
from penstock.server.shard import Call
from penstock.server.tasks import CallbackCall
from penstock.wire.answers import Kind
from penstock.wire.links import (
    NONCE_BYTES,
    VERSIONS,
    Admission,
    FrameKind,
    Greeting,
    Introduction,
    LinkRefused,
    client_proof,
    frame,
    introduce,
    is_proven,
    read_introduction,
    refusal,
    server_proof,
)
from penstock.wire.packing import pack_reply
from penstock.wire.requests import BadFrame

log = logging.getLogger("penstock.link")

_BACKLOG = 128
_GONE = "the node of this connection is gone"

Answer = tuple[int, int, Any, int]
"""A command's number, the kind of the reply, the reply as the shard gave it, and the shard."""


class LinkServer:
    """Takes links of other nodes to a place."""

    def __init__(self, place: Place, identity: LinkIdentity, limits: LinkLimits | None = None) -> None:
        self.place = place
        self.identity = identity
        self.limits = limits or LinkLimits()
        self.peer_links: set[_PeerLink] = set()
        self.refused = 0
        """Connections that were not let in, or sent what is no frame."""
        self._listener: asyncio.Server | None = None
        self._sessions: dict[Process, set[tuple[int, int]]] = {}
        """The sessions (shard, number) that are connections of a node's clients."""
        self._present: dict[Process, int] = {}
        """How many links each has."""
        self._awaited: dict[Process, asyncio.TimerHandle] = {}
        """Those that have none, and whose sessions end unless they come back."""

    async def start(self, address: str) -> str:
        """Listen at HOST:PORT (0 picks a free port). Returns the address."""
        require_secret(address, self.identity.secret)
        tls = None if self.identity.tls is None else self.identity.tls.server
        limit_s = None if tls is None else self.limits.handshake_s
        self._listener = await asyncio.get_running_loop().create_server(
            partial(_PeerLink, self), *split_address(address), backlog=_BACKLOG, ssl=tls, ssl_handshake_timeout=limit_s
        )
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def close(self) -> None:
        """Take no more links, and end those that are there: their replies are written first, as far as they came."""
        if self._listener is not None:
            self._listener.close()
        peer_links = list(self.peer_links)
        for peer_link in peer_links:
            peer_link.leave()
        if peer_links:
            _, late = await asyncio.wait(
                [asyncio.create_task(peer_link.gone.wait()) for peer_link in peer_links],
                timeout=self.limits.handshake_s,
            )
            for peer_link in list(self.peer_links) if late else ():
                peer_link.abort()
            for task in late:
                await task

    # -- for the peers' links --

    def admit(self, peer_link: _PeerLink, newcomer: Introduction) -> None:
        """A node is let in. A link that it had before is over, and so is what another process of its name had open."""
        now = newcomer.node, newcomer.incarnation
        for former in self.peer_links - {peer_link}:
            if former.process == now:
                former.abort()
        self._present[now] = self._present.get(now, 0) + 1
        if now in self._awaited:
            self._awaited.pop(now).cancel()
        for other in [each for each in self._sessions if each[0] == now[0] and each != now]:
            self._end_sessions(other)

    def dismiss(self, newcomer: Introduction) -> None:
        """A link of a node is gone."""
        who = newcomer.node, newcomer.incarnation
        self._present[who] -= 1
        if not self._present[who]:
            del self._present[who]
            if who in self._sessions:
                self._expect(who)

    def note_session(self, newcomer: Introduction, shard: int, number: int) -> None:
        """A node has opened a session that is a connection. If it is gone by now, it may come back, and ask again."""
        who = newcomer.node, newcomer.incarnation
        self._sessions.setdefault(who, set()).add((shard, number))
        if who not in self._present:
            self._expect(who)

    def forget_session(self, newcomer: Introduction, shard: int, number: int) -> None:
        """A node has ended a session."""
        known = self._sessions.get((newcomer.node, newcomer.incarnation))
        if known is not None:
            known.discard((shard, number))

    def take_over(self, shard: int, sessions: Mapping[int, Session]) -> None:
        """A shard has come from another node, with sessions that are connections: who has them is to be heard from."""
        for known in self._sessions.values():  # when it was here before, other sessions may have been open
            known.difference_update([each for each in known if each[0] == shard])
        holders = {number: process_of(each.holder) for number, each in sessions.items() if each.bound and each.holder}
        for number, who in holders.items():
            if who != self.identity.process:  # else its end comes from here
                self._sessions.setdefault(who, set()).add((shard, number))
        for who in {*holders.values()} - {*self._present, self.identity.process}:
            self._expect(who)

    def end_sessions_of(self, nodes: set[str]) -> None:
        """These nodes are known to be dead: the leases of their connections are free at once.

        What is for one shard goes to it in one turn of the loop, and so into one commit.
        """
        for who in [each for each in self._sessions if each[0] in nodes and each not in self._present]:
            if who in self._awaited:
                self._awaited.pop(who).cancel()
            self._end_sessions(who)

    def _expect(self, who: Process) -> None:
        if who not in self._awaited:
            loop = asyncio.get_running_loop()
            self._awaited[who] = loop.call_later(self.limits.session_grace_s, self._miss, who)

    def _miss(self, who: Process) -> None:
        del self._awaited[who]
        self._end_sessions(who)

    def _end_sessions(self, who: Process) -> None:
        for shard, number in self._sessions.pop(who, ()):
            self.place.submit(shard, EndSession(session=number, error=_GONE), _ignore)


class _Subscriber:
    """A subscription of a client of the other node: what is pushed to it goes over the link."""

    __slots__ = ("_deliveries", "_peer_link", "number", "shard")

    def __init__(self, peer_link: _PeerLink, number: int, shard: int) -> None:
        self._peer_link = peer_link
        self._deliveries: list[Delivery] = []
        self.number = number
        self.shard = shard

    def take(self, delivery: Delivery) -> None:
        """Keep a delivery until it may leave."""
        self._deliveries.append(delivery)

    def settle(self) -> None:
        """Let everything go."""
        deliveries, self._deliveries = self._deliveries, []
        for delivery in deliveries:
            self._peer_link.push(self, delivery)


class _PeerLink(LinkEnd[Answer]):
    """A link of another node, at this end."""

    items_kind = FrameKind.REPLIES
    together_bytes_max = 2 * 1024 * 1024  # not much: what waits for a slow reader stays here

    def __init__(self, server: LinkServer) -> None:
        super().__init__(server.identity, server.limits)
        self._server = server
        self._place = server.place
        self._loop = asyncio.get_running_loop()
        nonce = os.urandom(NONCE_BYTES)
        self._greeting = Greeting(self._identity.cluster, self._identity.node, nonce, VERSIONS.newest)
        self._newcomer: Introduction | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._answers: Gathered[Answer] = Gathered(self._flush)
        self._receives: dict[int, CallbackCall] = {}
        self._subscribers: dict[int, _Subscriber] = {}
        self._busy = 0
        """Commands in flight that are no receives."""
        self._is_reading = True
        self._is_over = False

    @property
    def process(self) -> Process | None:
        """Which process of which node has this link; None if it was not let in."""
        newcomer = self._newcomer
        return None if newcomer is None or self._heartbeat is None else (newcomer.node, newcomer.incarnation)

    # -- the transport's --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        super().connection_made(transport)
        self._server.peer_links.add(self)
        if len(self._server.peer_links) > self._limits.connections_max:
            self._cut(OverLimit("too many links are open here"))
            return
        self._deadline = self._loop.call_later(self._limits.handshake_s, self._transport.abort)
        self._transport.write(introduce(FrameKind.GREETING, self._greeting, VERSIONS.oldest))

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave nothing behind."""
        self._is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._server.peer_links.discard(self)
        self._clean_up()
        if self._heartbeat is not None:
            assert self._newcomer is not None
            self._server.dismiss(self._newcomer)
        self.gone.set()

    def pause_writing(self) -> None:
        """The other node is slow: replies wait here, where they can be taken back, and it is not read from."""
        self.is_paused = True
        self._apply_backpressure()

    def resume_writing(self) -> None:
        """The other node reads again."""
        self.is_paused = False
        self._apply_backpressure()
        if self._answers.items:
            self._answers.flush_soon()

    def leave(self) -> None:
        """Write what there is, and end."""
        if not self.is_paused:
            self._flush()
        self._transport.close()

    def _apply_backpressure(self) -> None:
        wanted = not self.is_paused and self._busy < self._limits.in_flight_max
        if wanted != self._is_reading and not self._is_over and not self._transport.is_closing():
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _clean_up(self) -> None:
        receives, self._receives = self._receives, {}
        for call in receives.values():
            self._place.withdraw(call)
        subscribers, self._subscribers = self._subscribers, {}
        for subscriber in subscribers.values():
            self._place.submit(subscriber.shard, CancelWait(ticket=subscriber), _ignore)
        answers, self._answers.items = self._answers.items, []
        for _, _, reply, shard in answers:
            self._take_back(reply, shard)

    def _take_back(self, reply: Any, shard: int) -> None:
        if isinstance(reply, Delivery) and reply.runs:
            self._place.give_back(shard, reply)

    # -- the introduction --

    def _take(self, kind: FrameKind, payload: bytes) -> None:
        if kind is FrameKind.COMMANDS and self._heartbeat is not None:
            numbered, withdrawn = decode_commands(payload)
            self._take_commands(numbered)
            for number in withdrawn:
                self._withdraw(number)
        elif kind is FrameKind.BEAT and self._heartbeat is not None:
            pass
        elif kind is FrameKind.INTRODUCTION and self._newcomer is None:
            self._newcomer, version = read_introduction(payload)
            self._let_in(self._newcomer, version)
        elif kind is FrameKind.REFUSAL and self._newcomer is None:
            raise LinkRefused(f"it refuses this node: {payload.decode(errors='replace')}")
        else:
            raise BadFrame(f"{kind.name} does not belong here")

    def _let_in(self, newcomer: Introduction, version: int) -> None:
        identity = self._identity
        if newcomer.cluster != identity.cluster:
            raise LinkRefused(f"this is cluster {identity.cluster!r}, and not {newcomer.cluster!r}")
        if not is_proven(client_proof(identity.secret, version, self._greeting, newcomer), newcomer.proof):
            raise LinkRefused(f"node {newcomer.node!r} does not know the secret of cluster {identity.cluster!r}")
        assert self._deadline is not None
        self._deadline.cancel()
        proof = server_proof(identity.secret, version, self._greeting, newcomer)
        admission = Admission(proof, self._limits.frame_bytes_max, self._limits.in_flight_max)
        self._transport.write(frame(FrameKind.ADMISSION, msgspec.msgpack.encode(admission)))
        self._begin(self._limits.frame_bytes_max)
        self._server.admit(self, newcomer)

    def _fall_silent(self) -> None:
        log.warning(
            "a link of node %s was silent, and was closed", "" if self._newcomer is None else self._newcomer.node
        )
        self._transport.abort()

    def _cut(self, error: PenstockError) -> None:
        self._server.refused += 1
        log.warning(
            "a link of %s was closed: %s", "a stranger" if self._newcomer is None else self._newcomer.node, error
        )
        if self._heartbeat is None:
            self._transport.write(refusal(error))
            self._transport.close()
        else:
            self._transport.abort()

    # -- commands --

    def _take_commands(self, numbered: list[Numbered]) -> None:
        submit = self._place.submit
        for number, shard, command, caller in numbered:
            kind = command.__class__
            if kind is Receive:
                self._take_receive(number, shard, command)
            elif kind in _SPECIAL:
                self._busy += 1
                self._take_special(number, shard, command)
            else:
                self._busy += 1
                submit(shard, command, partial(self._settled, number), caller or None)
        if self._busy >= self._limits.in_flight_max:
            self._apply_backpressure()

    def _take_receive(self, number: int, shard: int, command: Command) -> None:
        if len(self._receives) >= self._limits.receives_max:
            error = OverLimit(f"{len(self._receives)} receives of this node wait here already")
            self._answer(number, Kind.ERROR, error, shard)
        elif number in self._receives:
            raise BadFrame(f"two receives with number {number}")
        else:
            self._receives[number] = self._place.submit(shard, command, partial(self._received, number, shard))

    def _take_special(self, number: int, shard: int, command: Command | InvalidRequest) -> None:
        """Commands with tickets, or whose replies matter here, or which are for no shard."""
        on_settled = partial(self._settled, number)
        if isinstance(command, Subscribe):
            subscriber = _Subscriber(self, number, shard)
            self._subscribers[number] = subscriber
            command.ticket = subscriber
            on_settled = partial(self._subscribed, subscriber)
        elif isinstance(command, CancelWait):
            subscriber_or_none = self._subscribers.pop(command.ticket, None)
            if subscriber_or_none is None:
                self._busy -= 1
                self._answer(number, Kind.REPLY, None, shard)
                return
            command.ticket = subscriber_or_none
        elif isinstance(command, OpenSession):
            on_settled = partial(self._opened, number, shard)
        elif isinstance(command, EndSession):
            assert self._newcomer is not None
            self._server.forget_session(self._newcomer, shard, command.session)
        else:
            self._busy -= 1
            self._answer(number, Kind.ERROR, InvalidRequest(f"the command cannot be read: {command}"), 0)
            return
        self._place.submit(shard, command, on_settled)

    def _withdraw(self, number: int) -> None:
        """If it was answered already, the other node gives back what it got."""
        call = self._receives.pop(number, None)
        if call is not None:
            self._place.withdraw(call)
            self._answer(number, Kind.WITHDRAWN, None, 0)

    # -- replies --

    def _settled(self, number: int, call: Call) -> None:
        """A command that is no receive is done."""
        self._busy -= 1
        if not self._is_reading:
            self._apply_backpressure()
        answers = self._answers
        if call.error is None:
            answers.items.append((number, 0, call.reply, 0))
        else:
            answers.items.append((number, 1, call.error, 0))
        if not answers.is_due:
            answers.flush_soon()

    def _received(self, number: int, shard: int, call: Call) -> None:
        self._receives.pop(number, None)
        if self._is_over:
            self._take_back(call.reply, shard)
        elif call.error is None:
            self._answer(number, Kind.REPLY, call.reply, shard)
        else:
            self._answer(number, Kind.ERROR, call.error, shard)

    def _subscribed(self, subscriber: _Subscriber, call: Call) -> None:
        self._settled(subscriber.number, call)
        if call.error is not None:
            self._subscribers.pop(subscriber.number, None)
        elif self._is_over:
            self._place.submit(subscriber.shard, CancelWait(ticket=subscriber), _ignore)

    def _opened(self, number: int, shard: int, call: Call) -> None:
        command = call.command
        assert isinstance(command, OpenSession) and self._newcomer is not None
        if command.bound and call.error is None:
            self._server.note_session(self._newcomer, shard, call.reply)
        self._settled(number, call)

    def push(self, subscriber: _Subscriber, delivery: Delivery) -> None:
        """A subscription got messages, or came to its end."""
        if delivery.error is not None:
            self._subscribers.pop(subscriber.number, None)
            self._answer(subscriber.number, Kind.PUSH_ENDED, delivery.error, subscriber.shard)
        elif self._is_over:
            self._take_back(delivery, subscriber.shard)
        else:
            self._answer(subscriber.number, Kind.PUSH, delivery, subscriber.shard)

    def _answer(self, number: int, kind: int, value: Any, shard: int) -> None:
        self._answers.items.append((number, kind, value, shard))
        if not self._answers.is_due:
            self._answers.flush_soon()

    def _flush(self) -> None:
        if self.is_paused or self._is_over or not self._answers.items:
            return
        answers, self._answers.items = self._answers.items, []
        left = self._send(answers, until_paused=True)
        if left:
            self._answers.items = left + self._answers.items

    def _encode(self, items: list[Answer]) -> bytes:
        return encode_replies([(number, kind, _pack(kind, value)) for number, kind, value, _ in items])

    def _report_unfit(self, item: Answer, error: Exception) -> None:
        self._send_instead(item, StoreError(f"the reply cannot be sent on: {error}"))

    def _report_too_large(self, item: Answer, size_bytes: int) -> None:
        text = f"the reply has {size_bytes} bytes: a link carries at most {self._frame_bytes_max}; ask for less"
        self._send_instead(item, BatchTooLarge(text))

    def _send_instead(self, answer: Answer, error: PenstockError) -> None:
        number, kind, value, shard = answer
        self._take_back(value, shard)
        if kind != Kind.PUSH:
            self._send([(number, Kind.ERROR, error, shard)])
        else:
            log.error("a push to node %s: %s", "" if self._newcomer is None else self._newcomer.node, error)


_SPECIAL = frozenset({Subscribe, CancelWait, OpenSession, EndSession, InvalidRequest})


def _pack(kind: int, value: Any) -> Any:
    if kind == Kind.ERROR or kind == Kind.PUSH_ENDED:
        return pack_failure(value)
    return pack_reply(value)


def _ignore(_call: Call) -> None:
    """Nobody waits."""
