"""Commands over the network: an `AsyncCaller` whose shard is on the other side of a link.

How it works. `submit` puts a command among the outgoing; once in a turn of the loop everything outgoing leaves as one
frame, so tasks that call at the same time share frames, and single sends to one queue become one command. Answers find
their commands by number.

A link that is lost takes nothing with it: commands without an answer stay here, and are sent again over the next link.
Each that must not be done twice carries a name (`Once`), so that a server which has done it already answers with what
it answered then, and does nothing more. A command that waits too long, whatever the reason, fails: with `NotSent` if it
never left, with `OutcomeUnknown` if it did.

Everything here happens in the loop's thread; there is nothing to lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from penstock.client.listening import PushTarget
from penstock.client.remote import polling, websocket
from penstock.client.remote.address import TRANSPORTS, Address, Options, TransportName
from penstock.client.remote.prefetch import Prefetcher, acknowledging_parts
from penstock.client.remote.request import Calling, Link, Outstanding, Pages, Settle, UpgradeRefused, merged
from penstock.client.remote.stream import Stream
from penstock.core.backoff import backoff
from penstock.core.commands import (
    Ack,
    Browse,
    Command,
    Damage,
    Delivery,
    Extend,
    GiveBack,
    Once,
    Receive,
    Release,
)
from penstock.core.delivery.receipt import Receipt, message_id
from penstock.core.errors import (
    AccessDenied,
    ConnectionLost,
    InvalidRequest,
    NoCommonVersion,
    NotSent,
    OutcomeUnknown,
    PenstockError,
    RateLimited,
)
from penstock.core.queues.config import DEDUP_WINDOW_MS
from penstock.core.traits import Home, Repeat, Split
from penstock.wire.answers import (
    Answer,
    KeyedDelivery,
    Kind,
    Moved,
    unpack_delivery,
    unpack_failure,
    unpack_moved,
    unpack_reply,
)
from penstock.wire.requests import AddPushCredit, Request, StartPush, StopPush, outgoing


class RemoteIdentity:
    """Knows the server's realm, and the receipt keys of the queues that were received from."""

    __slots__ = ("_keys", "realm")

    def __init__(self) -> None:
        self.realm = 0
        self._keys: dict[int, bytes] = {}

    def learn(self, delivery: KeyedDelivery) -> None:
        """Keep the key that came with a delivery."""
        self._keys[delivery.queue_id] = delivery.receipt_key

    def message_id(self, queue_id: int, sequence: int) -> str:
        """A message's id, a UUID.

        >>> RemoteIdentity().message_id(1, 1 << 50) == message_id(0, 1, 1 << 50)
        True
        """
        return message_id(self.realm, queue_id, sequence)

    def receipt(self, queue_id: int, channel_id: int, sequence: int, attempt: int) -> str:
        key = self._keys.get(queue_id)
        if key is None:
            raise InvalidRequest("receipts belong to messages that were received through this connection")
        return Receipt(queue_id, channel_id, sequence, attempt).seal(key)


log = logging.getLogger("penstock.client")

_SWEEP_S = 0.5
_BACKOFF_S = 0.1
"""The longest pause after the first attempt to connect that failed."""
_QUEUE_WAIT_S_MAX = 20.0
"""The longest that a queue's own settings may let a receive wait."""
_REPEATABLE_S = 0.9 * DEDUP_WINDOW_MS / 1_000
"""The server remembers a silent client's commands for five minutes: none is repeated that is nearly as old."""
_GIVE_BACK_S = 1.0
"""How long closing waits for prefetched messages to go back."""
_STILL_S = 0.05
"""The server's time is taken to stand still for so long after an answer."""
_REPLY, _ERROR, _PUSH, _PUSH_ENDED, _MOVED = map(int, Kind)
"""As plain numbers: every answer is compared with them."""
_IN_FLIGHT_SHARE = 0.8
"""Of the requests that the server lets us have in flight, what we use: the rest is for cancelling and the like."""

Connect = Callable[[Address, Options, "RemoteCaller"], Any]

CONNECT: dict[TransportName, Connect] = {
    "websocket": websocket.connect,
    "long_poll": polling.connect_long_poll,
    "poll": polling.connect_poll,
}
"""How to get a link of each transport."""


class RemoteCaller(Calling):
    """Carries commands to a server. `await RemoteCaller.connect(...)` makes one that is connected."""

    read_only = False

    def __init__(self, address: Address, options: Options) -> None:
        self._servers = address.servers
        self._address = self._servers[0]
        """The server that there is a link to, or was last."""
        self._has_lost = False
        """Whether another one had better be tried first."""
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._client = secrets.token_hex(12)
        self._rng = random.Random(self._client)
        self._link: Link | None = None
        self._closed = False
        self._next_number = 1
        self._next_once = 1
        self._unnamed: dict[int, None] = {}
        """Names (`Once.number`) without an answer, in order."""
        self._in_flight: dict[int, Outstanding] = {}
        self._prefetchers: dict[tuple[str, str], Prefetcher] = {}
        self._streams: list[Stream] = []
        self._outgoing: list[Outstanding] = []
        self._is_flush_planned = False
        self._connecting: asyncio.Task[None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._next_repeat_s = 0.0
        self._server_ms = 0
        self._server_heard_s = 0.0
        self._in_flight_max = 1_000
        self.frame_bytes_max: int | None = None
        """How large a call may be; None while no server has said so."""
        self.credit_max = 1_000
        """What a push may be given at a time."""
        self.old_session = 0
        self.identity = RemoteIdentity()
        self.reports: list[Damage] = []

    @classmethod
    async def connect(cls, address: Address, options: Options) -> RemoteCaller:
        """A caller with a link; or the reason why there is none, raised."""
        caller = cls(address, options)
        caller._take_link(await caller._new_link())
        return caller

    # -- for the API --

    def submit(self, command: Command, settle: Settle) -> Outstanding:
        if type(command) is Browse:
            return self.carry(command, Pages(command, self.carry, settle).settle)
        if type(command) is Receive and self._options.prefetch and not self._closed:
            prefetcher = self._prefetcher(command)
            if prefetcher is not None:
                deadline_s = self._loop.time() + self._options.timeout + _wait_s(command)
                outstanding = Outstanding(command, settle, deadline_s)
                self._sweep_later()
                prefetcher.receive(outstanding)
                return outstanding
        return self.carry(command, settle)

    def _prefetcher(self, command: Receive) -> Prefetcher | None:
        """Who answers a receive without asking the server; None: nobody."""
        credit = self._options.credit(command.queue)
        if not credit or command.session or command.attempt_id is not None or command.lease_ms is not None:
            return None
        if self._link is not None and self._link.transport != "websocket":
            return None
        key = (command.queue, command.channel)
        if key not in self._prefetchers:
            self._prefetchers[key] = Prefetcher(self, *key, credit)
        prefetcher = self._prefetchers[key]
        return None if prefetcher.is_off else prefetcher

    # -- streams --

    def open_stream(self, queue: str, channel: str, lease_ms: int | None, push_target: PushTarget) -> Stream | None:
        """Messages as they become ready; None where they have to be asked for, or a prefetcher has them already."""
        if self._closed or not self.can_push or self._options.credit(queue):
            return None
        stream = Stream(self, queue, channel, lease_ms, push_target)
        self._streams.append(stream)
        return stream

    def forget(self, stream: Stream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)

    @property
    def can_push(self) -> bool:
        if self._link is None:
            return self._options.transport in (None, "websocket")
        return self._link.transport == "websocket"

    @property
    def expects(self) -> bool:
        if self._in_flight or any(stream.push for stream in self._streams):
            return True
        return any(prefetcher.push for prefetcher in self._prefetchers.values())

    @property
    def is_linked(self) -> bool:
        return self._link is not None

    # -- carrying --

    def carry(self, command: Command, settle: Settle) -> Outstanding:
        wait_s = _wait_s(command) if type(command) is Receive else 0.0
        outstanding = Outstanding(command, settle, self._loop.time() + self._options.timeout + wait_s)
        if self._closed:
            self._loop.call_soon(settle, None, NotSent("the connection was closed: connect again"))
            return outstanding
        self._outgoing.append(outstanding)
        if not self._is_flush_planned:  # as `_flush_soon`, which costs a call
            self._is_flush_planned = True
            self._loop.call_soon(self.flush)
        if self._sweeper is None:
            self._sweep_later()
        if self._link is None:
            self._reconnect_soon()
        return outstanding

    def send_later(self, outstanding: Outstanding) -> None:
        self._shorten_wait(outstanding)
        self._outgoing.append(outstanding)
        self._flush_soon()

    def withdraw(self, outstanding: Outstanding) -> None:
        outstanding.settle = _ignore
        outstanding.abandoned = True
        for prefetcher in self._prefetchers.values():
            prefetcher.withdraw(outstanding)
        if not outstanding.left and outstanding in self._outgoing:
            self._outgoing.remove(outstanding)
        elif isinstance(outstanding.command, Receive) and outstanding.number in self._in_flight and self._link:
            self._link.cancel(outstanding.number)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def now_ms(self) -> int:
        """The server's time, as far as it is known here."""
        passed_s = time.monotonic() - self._server_heard_s
        return self._server_ms + (0 if passed_s < _STILL_S else round(passed_s * 1_000))

    @property
    def transport(self) -> TransportName | None:
        """The transport in use; None while there is no connection."""
        return None if self._link is None else self._link.transport

    async def close(self) -> None:
        """Say goodbye. Commands without an answer fail."""
        if self._closed:
            return
        await self._give_prefetched_back()
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
        link, self._link = self._link, None
        for prefetcher in self._prefetchers.values():
            prefetcher.close()
        for stream in list(self._streams):
            stream.ended(NotSent("the connection was closed"))
        self._fail_all(NotSent("the connection was closed"), OutcomeUnknown("the connection was closed"))
        if link is not None:
            await link.close()

    async def _give_prefetched_back(self) -> None:
        sent = [each for prefetcher in self._prefetchers.values() for each in prefetcher.give_back()]
        if self._link is None or not sent:
            return
        self.flush()
        deadline_s = self._loop.time() + _GIVE_BACK_S
        while self._loop.time() < deadline_s and any(each.number in self._in_flight for each in sent):
            await asyncio.sleep(0.001)

    # -- sending --

    def _flush_soon(self) -> None:
        """Send what is outgoing in the loop's next turn. Whoever waits for it too long is told so."""
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._loop.call_soon(self.flush)
        if self._sweeper is None:
            self._sweep_later()

    def flush(self) -> None:
        """Send what is outgoing, as far as the link and the server take it."""
        self._is_flush_planned = False
        link = self._link
        if link is None or not link.is_writable or not self._outgoing:
            return
        waiting = self._outgoing if len(self._outgoing) == 1 else merged(self._outgoing, self._send_again)
        room = max(0, self._in_flight_max - len(self._in_flight))
        leaving, self._outgoing = waiting[:room], waiting[room:]
        for outstanding in leaving:
            outstanding.number = self._next_number
            self._next_number += 1
            self._in_flight[outstanding.number] = outstanding
            command = outstanding.command
            if command.repeat is Repeat.NAMED:
                self._unnamed[self._next_once] = None
                command.once = Once(self._client, self._next_once, next(iter(self._unnamed)))
                self._next_once += 1
        self._give(link, leaving)

    def _send_again(self, outstanding: Outstanding) -> None:
        self._outgoing.append(outstanding)
        self._flush_soon()

    def _give(self, link: Link, leaving: list[Outstanding]) -> None:
        now_s = self._loop.time()
        for outstanding in leaving:
            outstanding.repeated = outstanding.left
            outstanding.left = True
            outstanding.left_s = outstanding.left_s or now_s
        if leaving:
            link.send(self._requests(leaving))

    def _requests(self, leaving: list[Outstanding]) -> list[Request]:
        """Commands as they travel."""
        requests: list[Request] = []
        for outstanding in leaving:
            requests.append((outstanding.number, outgoing(outstanding.command)))
        return requests

    def _settle(self, outstanding: Outstanding, reply: Any, error: BaseException | None) -> None:
        self._in_flight.pop(outstanding.number, None)
        once = outstanding.command.once
        if once is not None and once.client == self._client:
            self._unnamed.pop(once.number, None)
        if self._prefetchers and error is None:
            self._note_settled(outstanding.command)
        if outstanding.abandoned and isinstance(reply, Delivery) and reply.runs:
            self.give_back(reply)
        outstanding.settle(reply, error)

    def _note_settled(self, command: Command) -> None:
        """Messages that are settled need no heartbeat."""
        for part in acknowledging_parts(command):
            if isinstance(part, Ack | Release | GiveBack | Extend):
                prefetcher = self._prefetchers.get((part.queue, part.channel))
                if prefetcher is not None:
                    prefetcher.settled(part)

    def give_back(self, delivery: Delivery) -> None:
        self.submit(GiveBack(queue=delivery.queue, channel=delivery.channel, spans=delivery.spans()), _ignore)

    # -- a link is heard --

    def answered(self, now_ms: int, answers: list[Answer]) -> None:
        if now_ms:
            self._server_ms, self._server_heard_s = now_ms, time.monotonic()
        for number, kind, value in answers:
            if kind == _PUSH:
                self._pushed(number, value)
                continue
            if kind == _PUSH_ENDED:
                self._push_ended(number, value)
                continue
            outstanding = self._in_flight.get(number)
            if outstanding is None:
                continue
            if kind == _REPLY:
                reply, unreadable = None, None
                try:
                    reply = unpack_reply(type(outstanding.command), value)
                except (msgspec.MsgspecError, PenstockError) as error:
                    unreadable = OutcomeUnknown(f"{self._address} sent an answer that cannot be read: {error}")
                if isinstance(reply, KeyedDelivery):
                    self.identity.learn(reply)
                self._settle(outstanding, reply, unreadable)
            elif kind == _ERROR:
                self._failed(outstanding, unpack_failure(value))
            elif kind == _MOVED:
                self._moved(outstanding, unpack_moved(value))
        if self._outgoing:
            self.flush()

    def _failed(self, outstanding: Outstanding, error: PenstockError) -> None:
        """The server did not do it. What ends work is sent again, one after the other, if it only came too soon: the
        work would be done again else. What starts something is told `RateLimited`."""
        traits = outstanding.command.traits
        if isinstance(error, RateLimited) and (traits.split is Split.SPANS or traits.home is Home.WORK):
            self._next_repeat_s = max(self._next_repeat_s, self._loop.time()) + error.wait_s
            self._loop.call_at(self._next_repeat_s, self._repeat, self._link, outstanding)
        else:
            self._settle(outstanding, None, error)

    def _repeat(self, link: Link | None, outstanding: Outstanding) -> None:
        """Send a command once more, under its number and name; with a new link that has been done already."""
        if link is not None and link is self._link and self._in_flight.get(outstanding.number) is outstanding:
            self._give(link, [outstanding])

    def _moved(self, outstanding: Outstanding, moved: Moved) -> None:
        """The server did not do it: another node has to. (Who does not route is forwarded, and never hears this.)"""
        self._settle(outstanding, None, NotSent(f"another node has to do it: {moved.owner!r} at {moved.url}"))

    def _pushed(self, number: int, value: msgspec.Raw) -> None:
        receiver = self._receiver_of(number)
        delivery = unpack_delivery(value)
        self.identity.learn(delivery)
        if receiver is None:
            self.give_back(delivery)
        else:
            receiver.pushed(delivery)

    def _push_ended(self, number: int, value: msgspec.Raw) -> None:
        receiver = self._receiver_of(number)
        if receiver is not None:
            receiver.ended(unpack_failure(value))

    def _receiver_of(self, push: int) -> Stream | Prefetcher | None:
        """Who gets what a push brings."""
        for stream in self._streams:
            if stream.push == push:
                return stream
        for prefetcher in self._prefetchers.values():
            if prefetcher.push == push:
                return prefetcher
        return None

    def refused(self, request: int, error: PenstockError) -> None:
        """A request cannot be sent. If it was before, over another link, it may have been done."""
        outstanding = self._in_flight.get(request)
        if outstanding is None:
            return
        if outstanding.repeated:
            error = OutcomeUnknown(f"the command was sent, but not answered, and cannot be sent again: {error}")
        self._settle(outstanding, None, error)

    def writable(self) -> None:
        self.flush()

    def lost(self, link: Link, error: Exception) -> None:
        if link is self._link:
            self._link, self._has_lost = None, True
            log.warning("%s; connecting again", error)
            self._forget_pushes()
            self._reconnect_soon()

    def _forget_pushes(self) -> None:
        """Pushes belong to the link; their commands are not sent again."""
        for outstanding in list(self._in_flight.values()):
            if isinstance(outstanding.command, StartPush | AddPushCredit | StopPush):
                del self._in_flight[outstanding.number]
        self._outgoing = [
            each for each in self._outgoing if not isinstance(each.command, StartPush | AddPushCredit | StopPush)
        ]
        for prefetcher in self._prefetchers.values():
            prefetcher.lost()
        for stream in self._streams:
            stream.lost()

    # -- connecting --

    def _reconnect_soon(self) -> None:
        if not self._closed and (self._connecting is None or self._connecting.done()):
            self._connecting = self._loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        """Try until there is a link, it makes no sense, or the time is up."""
        retry_for, started_s, attempt = self._options.retry_for, self._loop.time(), 0
        while True:
            attempt += 1
            try:
                link = await self._new_link()
            except (AccessDenied, NoCommonVersion) as error:
                self._fail_all(error, OutcomeUnknown(str(error)))  # what left before may have been done
                return
            except (PenstockError, OSError) as error:
                if retry_for is not None and self._loop.time() - started_s >= retry_for:
                    self._fail_all(NotSent(str(error)), OutcomeUnknown(str(error)))
                    return
                await asyncio.sleep(backoff(attempt, _BACKOFF_S, self._options.backoff_max, jitter=self._rng.random()))
            else:
                self._take_link(link)
                return

    async def _new_link(self) -> Link:
        """A link to the first server that can be reached: after a loss, another one if there is any."""
        places = await places_of(self._servers)
        options = self._options.quick() if len(places) > 1 else self._options
        if self._has_lost and len(places) > 1:
            places.sort(key=lambda place: (place, place.ip) == (self._address, self._address.ip))
        failures: list[PenstockError | OSError] = []
        for place in places:
            try:
                link = await self._link_to(place, options)
            except (PenstockError, OSError) as error:
                failures.append(error)
                continue
            self._address = place
            return link
        raise next((each for each in failures if isinstance(each, AccessDenied)), failures[-1])

    async def _link_to(self, place: Address, options: Options) -> Link:
        """A link of the best transport that works."""
        chosen = self._options.transport
        names = TRANSPORTS if chosen is None else (chosen,)
        refusal: PenstockError | None = None
        for name in names:
            try:
                link: Link = await CONNECT[name](place, options, self)
                return link
            except UpgradeRefused as error:
                refusal = error
        assert refusal is not None
        raise refusal

    def _take_link(self, link: Link) -> None:
        self._link = link
        welcome = link.welcome
        self.old_session = welcome.session
        self.identity.realm = welcome.realm
        self.reports = welcome.damage
        self.credit_max = welcome.limits.credit_max
        self.frame_bytes_max = welcome.limits.frame_bytes_max
        self._in_flight_max = max(1, round(welcome.limits.requests_max * _IN_FLIGHT_SHARE))
        log.info("connected to %s by %s", self._address, link.transport)
        self._resend(link)
        for prefetcher in self._prefetchers.values():
            prefetcher.resume()
        for stream in list(self._streams):
            stream.resume()
        self.flush()

    def _resend(self, link: Link) -> None:
        """What has no answer goes over the new link, in the old order."""
        again = [outstanding for outstanding in list(self._in_flight.values()) if self._may_repeat(outstanding)]
        self._give(link, again)

    def _may_repeat(self, outstanding: Outstanding) -> bool:
        """Whether a command that was sent may be sent again; if not, it is settled here."""
        if outstanding.abandoned:
            self._settle(outstanding, None, None)
            return False
        if outstanding.command.once is not None and self._loop.time() - outstanding.left_s > _REPEATABLE_S:
            self._settle(outstanding, None, OutcomeUnknown("the connection was gone for too long to ask again"))
            return False
        self._shorten_wait(outstanding)
        return True

    def _shorten_wait(self, outstanding: Outstanding) -> None:
        """A receive waits at the server for what is left of its wait."""
        if isinstance(outstanding.command, Receive) and outstanding.command.wait_ms:
            left_s = outstanding.deadline_s - self._loop.time() - self._options.timeout
            outstanding.command.wait_ms = max(0, min(outstanding.command.wait_ms, round(left_s * 1_000)))

    # -- patience --

    def _sweep(self) -> None:
        """Whoever has waited too long is told so."""
        self._sweeper = None
        now_s = self._loop.time()
        for outstanding in [each for each in self._outgoing if each.deadline_s <= now_s]:
            self._outgoing.remove(outstanding)
            outstanding.settle(None, NotSent(self._complaint("was not sent")))
        for outstanding in [each for each in self._in_flight.values() if each.deadline_s <= now_s]:
            self._settle(outstanding, None, self._overdue(outstanding))
        for prefetcher in self._prefetchers.values():
            prefetcher.sweep(now_s)
        if self._outgoing or self._in_flight or self._prefetchers:
            self._sweep_later()

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    def _overdue(self, outstanding: Outstanding) -> ConnectionLost:
        return OutcomeUnknown(self._complaint("was sent, but not answered"))

    def _complaint(self, what: str) -> str:
        state = "there is no connection" if self._link is None else "the connection stands"
        return f"the command {what} within {self._options.timeout:g} s ({self._address}: {state})"

    def _fail_all(self, unsent: PenstockError, sent: PenstockError) -> None:
        outgoing, self._outgoing = self._outgoing, []
        for outstanding in outgoing:
            outstanding.settle(None, _copied(unsent))
        for stream in list(self._streams):
            stream.ended(_copied(unsent))
        for prefetcher in list(self._prefetchers.values()):
            prefetcher.gave_up(_copied(unsent))
        for outstanding in list(self._in_flight.values()):
            is_receive = self._closed and isinstance(outstanding.command, Receive)
            self._settle(outstanding, None, None if is_receive else _copied(sent))


async def places_of(servers: Sequence[Address]) -> list[Address]:
    """Where servers are: a name that stands for several machines is as good as their addresses."""
    places: list[Address] = []
    for server in servers:
        ips: list[str] = []
        with contextlib.suppress(OSError, UnicodeError):  # whoever connects says so
            found = await asyncio.get_running_loop().getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
            ips = list(dict.fromkeys(str(each[4][0]) for each in found))
        families = {":" in ip for ip in ips}
        places += [replace(server, ip=ip) for ip in ips] if len(ips) > len(families) else [server]
    return places


def _wait_s(receive: Receive) -> float:
    """How long a receive may wait at the server."""
    return _QUEUE_WAIT_S_MAX if receive.wait_ms is None else receive.wait_ms / 1_000


def _copied(error: PenstockError) -> PenstockError:
    """Each caller raises an exception of its own."""
    return type(error)(str(error))


def _ignore(_reply: Any, _error: BaseException | None) -> None:
    """Nobody waits any more."""
