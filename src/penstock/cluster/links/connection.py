"""One connection of a link, at the end that asks: from the greeting to its end.

Theory of operation. Both ends prove that they know the cluster's secret, and then commands leave, numbered, and each
number is answered once. A ticket is an object of this process: on the way it is the number of the command that
subscribed with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

import msgspec

from penstock.cluster.links.end import LinkEnd
from penstock.cluster.links.wire import (
    SINCE,
    Numbered,
    decode_replies,
    encode_commands,
    unpack_failure,
)
from penstock.core.commands import CancelWait, Command, Delivery, Receive, Subscribe
from penstock.core.errors import BatchTooLarge, InvalidRequest, PenstockError
from penstock.server.shard import Ticket
from penstock.server.tasks import CallbackCall
from penstock.wire.answers import BadAnswer, Kind, unpack_delivery, unpack_reply
from penstock.wire.links import (
    NONCE_BYTES,
    FrameKind,
    Greeting,
    Introduction,
    LinkRefused,
    client_proof,
    introduce,
    is_proven,
    read_admission,
    read_greeting,
    refusal,
    server_proof,
)
from penstock.wire.requests import BadFrame

if TYPE_CHECKING:
    from penstock.cluster.links.link import Link

log = logging.getLogger("penstock.link")

LEFT = -1
"""The number of a call that was withdrawn before it was written."""


class PeerNotTrusted(ConnectionResetError):
    """With TLS 1.3 who shows a certificate that is not trusted hears nothing of it: the other node just goes away."""


class LinkConnection(LinkEnd[Numbered]):
    """One connection of a link, from its greeting to its end."""

    items_kind = FrameKind.COMMANDS
    together_bytes_max = 16 * 1024 * 1024

    def __init__(self, link: Link) -> None:
        super().__init__(link.identity, link.limits)
        self._link = link
        self._greeting: Greeting | None = None
        self._introduction: Introduction | None = None
        self.version = 0
        """Of what is spoken on this link."""
        self._lacking: frozenset[type[Command]] = frozenset()
        """Commands that this version does not have."""
        self._next = 1
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.in_flight: dict[int, CallbackCall] = {}
        self.busy = 0
        """Of these, how many are no receives."""
        self.in_flight_max = 0
        self.subscribers: dict[int, Ticket] = {}
        """By the number of the command that made the subscription."""
        self.withdrawn: list[int] = []
        """Receives that the other node is to be told of, with the next commands."""
        self._leaving: list[int] = []
        """Of these, those that leave with the commands that are being written."""

    # -- the transport's --

    def connection_lost(self, exc: Exception | None) -> None:
        """Everything in flight is uncertain."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self.gone.set()
        if not self.welcomed.done():
            self.welcomed.set_exception(self._unwelcome(exc))
            self.welcomed.exception()
        self._link.lost(self)

    def _unwelcome(self, exc: Exception | None) -> Exception:
        is_reset = exc is None or isinstance(exc, ConnectionResetError)
        if is_reset and self._identity.tls is not None and self._greeting is None:
            return PeerNotTrusted("it closed the connection before its greeting")
        return exc or ConnectionResetError("the other node closed the connection")

    def pause_writing(self) -> None:
        """The other node is slow: what comes now waits in the outbox."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """The other node reads again."""
        self.is_paused = False
        self._link.resume()

    # -- the introduction --

    def _take(self, kind: FrameKind, payload: bytes) -> None:
        if kind is FrameKind.REPLIES and self._heartbeat is not None:
            self._take_replies(payload)
        elif kind is FrameKind.BEAT and self._heartbeat is not None:
            pass
        elif kind is FrameKind.GREETING and self._greeting is None:
            self._introduce(payload)
        elif kind is FrameKind.ADMISSION and self._introduction is not None and self._heartbeat is None:
            self._be_welcome(payload)
        elif kind is FrameKind.REFUSAL and self._heartbeat is None:
            raise LinkRefused(payload.decode(errors="replace"))
        else:
            raise BadFrame(f"{kind.name} does not belong here")

    def _introduce(self, payload: bytes) -> None:
        identity = self._identity
        try:
            greeting, self.version = read_greeting(payload)
        except LinkRefused as refused:
            self._transport.write(refusal(refused))  # its log says it, too
            raise
        if greeting.cluster != identity.cluster:
            raise LinkRefused(
                f"this is cluster {identity.cluster!r}, and the other node belongs to {greeting.cluster!r}"
            )
        self._lacking = frozenset(kind for kind, version in SINCE.items() if version > self.version)
        introduction = Introduction(identity.cluster, identity.node, identity.incarnation, os.urandom(NONCE_BYTES), b"")
        self._greeting = greeting
        proof = client_proof(identity.secret, self.version, greeting, introduction)
        self._introduction = msgspec.structs.replace(introduction, proof=proof)
        self._transport.write(introduce(FrameKind.INTRODUCTION, self._introduction, self.version))

    def _be_welcome(self, payload: bytes) -> None:
        admission = read_admission(payload)
        assert self._greeting is not None and self._introduction is not None
        expected = server_proof(self._identity.secret, self.version, self._greeting, self._introduction)
        if not is_proven(expected, admission.proof):
            raise LinkRefused("the other node does not know the cluster's secret")
        self.in_flight_max = min(self._limits.in_flight_max, admission.in_flight_max)
        self._begin(min(self._limits.frame_bytes_max, admission.frame_bytes_max))
        if not self.welcomed.done():
            self.welcomed.set_result(None)

    def _fall_silent(self) -> None:
        self._link.is_dead = True
        self._cut(BadFrame("the other node is silent"))

    def _cut(self, error: PenstockError) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(error)
            self.welcomed.exception()
        else:
            log.error("the link to %s was closed: %s", self._link.address, error)
        self._transport.close() if self._heartbeat is None else self._transport.abort()

    # -- commands --

    def choose(self, calls: list[CallbackCall]) -> tuple[list[CallbackCall], list[CallbackCall]]:
        """Which of the commands may leave now: all receives, and as many others as the other node takes."""
        room = self.in_flight_max - self.busy
        now: list[CallbackCall] = []
        later: list[CallbackCall] = []
        for call in calls:
            if call.command.__class__ is Receive:
                now.append(call)
            elif room > 0:
                now.append(call)
                room -= 1
            else:
                later.append(call)
        return now, later

    def write(self, calls: list[CallbackCall]) -> None:
        """Number the commands, and let them go."""
        if self._lacking:
            calls = self._without_lacking(calls)
        number, in_flight = self._next, self.in_flight
        numbered: list[Numbered] = []
        for call in calls:
            if call.number == LEFT:
                continue
            command = call.command
            kind = command.__class__
            if kind is Receive:
                if command.ticket is not None:  # type: ignore[attr-defined]
                    command = msgspec.structs.replace(command, ticket=None)
            else:
                self.busy += 1
                if kind is Subscribe or kind is CancelWait:
                    command = self._without_ticket(command, number)
            call.number = number
            in_flight[number] = call
            numbered.append((number, call.shard, command, call.home))
            number += 1
        self._next = number
        self._leaving, self.withdrawn = self.withdrawn, []
        self._send(numbered)

    def _without_lacking(self, calls: list[CallbackCall]) -> list[CallbackCall]:
        """What the other node's build does not know is not sent."""
        unknown = [call for call in calls if call.command.__class__ in self._lacking]
        for call in unknown:
            name = type(call.command).__name__
            call.error = InvalidRequest(
                f"the node at {self._link.address} has an earlier version of Penstock, without {name}"
            )
            asyncio.get_running_loop().call_soon(settle, call)
        return [call for call in calls if call.error is None] if unknown else calls

    def _encode(self, items: list[Numbered]) -> bytes:
        """What was withdrawn goes along with the last command."""
        is_last = not items or items[-1][0] == self._next - 1
        return encode_commands(items, self._leaving if is_last else [])

    def _report_unfit(self, item: Numbered, error: Exception) -> None:
        self._fail(item[0], InvalidRequest(f"the command cannot be sent on: {error}"))

    def _report_too_large(self, item: Numbered, size_bytes: int) -> None:
        text = f"the command has {size_bytes} bytes: a link carries at most {self._frame_bytes_max}"
        self._fail(item[0], BatchTooLarge(text))

    def _fail(self, number: int, error: PenstockError) -> None:
        if self._leaving and number == self._next - 1:
            self._send([])  # what was to go along with the command goes alone
        call = self._answered(number)
        if call is not None:
            call.error = error
            asyncio.get_running_loop().call_soon(settle, call)

    def _without_ticket(self, command: Command, number: int) -> Command:
        """A ticket is an object of this process: on the way it is the number of the command that subscribed."""
        assert isinstance(command, Subscribe | CancelWait)
        if isinstance(command, Subscribe):
            self.subscribers[number] = command.ticket
            return msgspec.structs.replace(command, ticket=number)
        found = next((each for each, ticket in self.subscribers.items() if ticket is command.ticket), 0)
        return msgspec.structs.replace(command, ticket=found)

    # -- replies --

    def _answered(self, number: int) -> CallbackCall | None:
        call = self.in_flight.pop(number, None)
        if call is not None and call.command.__class__ is not Receive:
            self.busy -= 1
        return call

    def _take_replies(self, payload: bytes) -> None:
        in_flight = self.in_flight
        for number, kind, raw in decode_replies(payload):
            if kind == Kind.REPLY:
                call = in_flight.pop(number, None)
                if call is None:
                    raise BadAnswer(f"a reply to number {number}, which was answered, or never existed")
                command_kind = call.command.__class__
                if command_kind is not Receive:
                    self.busy -= 1
                try:
                    call.reply = unpack_reply(command_kind, raw)
                except BadAnswer as error:
                    call.error = error
                if command_kind is CancelWait:
                    self._forget(call.command)
                settle(call)
            else:
                self._take_other(number, kind, raw)
        self._link.resume()

    def _take_other(self, number: int, kind: int, raw: msgspec.Raw) -> None:
        """Errors, pushes, and receives that were withdrawn."""
        if kind == Kind.PUSH or kind == Kind.PUSH_ENDED:
            self._take_push(number, kind, raw)
            return
        call = self._answered(number)
        if call is None:
            raise BadAnswer(f"a reply to number {number}, which was answered, or never existed")
        if kind == Kind.ERROR:
            call.error = unpack_failure(raw)
            if call.command.__class__ is Subscribe:
                self.subscribers.pop(number, None)
        elif kind != Kind.WITHDRAWN:
            raise BadAnswer(f"there is no reply of kind {kind}")
        settle(call)

    def _take_push(self, number: int, kind: int, raw: msgspec.Raw) -> None:
        ticket = self.subscribers.get(number)
        if kind == Kind.PUSH_ENDED:
            self.subscribers.pop(number, None)
            if ticket is not None:
                end_subscription(ticket, unpack_failure(raw))
        elif ticket is not None:
            ticket.take(unpack_delivery(raw))
            settle(ticket)

    def _forget(self, command: Command) -> None:
        assert isinstance(command, CancelWait)
        self.subscribers = {each: ticket for each, ticket in self.subscribers.items() if ticket is not command.ticket}


def settle(ticket: Ticket) -> None:
    """Tell who waits. What they do wrong is not the link's fault."""
    try:
        ticket.settle()
    except Exception:
        log.exception("the caller that waited for a reply failed")


def end_subscription(ticket: Ticket, error: PenstockError) -> None:
    """A subscription is over, and whoever has it is told."""
    ticket.take(Delivery("", 0, "", 0, 0, 0, error=error))
    settle(ticket)
