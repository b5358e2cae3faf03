"""A link: the way to another node's shards.

Theory of operation. Commands that are submitted in one turn of the loop leave in one frame in the next, each with a
number; replies come in frames as well, and each settles its call. What the other node has not answered is *in flight*.

    outbox   submitted, not written: the link is not connected, or as much is in flight as the other node takes
    flight   written, not answered

A link connects when it is first used, and again, with a backoff, when it broke and something waits. What becomes of the
commands then depends on where they were: what was never written was not done (`NotReached`, which is a `ShardMoved`: it
may be tried elsewhere); of what was in flight nobody knows (`LinkBroken`).

A receive that is withdrawn before it was written never leaves. Otherwise the other node is told, and gives the messages
back; a reply that had left already is given back from here when it comes. Every number is answered exactly once.

Receives may wait long, and are not counted among what the other node takes: else sends could not come through to the
receives that wait for them.

Silence is death: both ends say something every `beat_s`, and a link on which nothing came for `silent_beats` of these
is broken. Beats are counted, not measured, so that a process that was stopped for a while looks at what came first.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.cluster.base import LinkBroken, ShardMoved
from penstock.cluster.frames import (
    HANDSHAKE_BYTES_MAX,
    NONCE_BYTES,
    BadFrame,
    FrameKind,
    FrameReader,
    Greeting,
    Hello,
    LinkRefused,
    client_proof,
    frame,
    frame_parts,
    introduction,
    is_proven,
    read_greeting,
    read_welcome,
    server_proof,
)
from penstock.cluster.wire import (
    BadPayload,
    Kind,
    Numbered,
    decode_replies,
    encode_commands,
    unpack_delivery,
    unpack_failure,
    unpack_reply,
)
from penstock.core.commands import CancelWait, Command, Delivery, Receive, Subscribe
from penstock.core.errors import BatchTooLarge, InvalidRequest, OverLimit, PenstockError
from penstock.server.settings import InvalidSettings
from penstock.server.shard import Call, Ticket, give_back
from penstock.server.tasks import CallbackCall

if TYPE_CHECKING:
    from penstock.cluster.link_tls import LinkTls

log = logging.getLogger("penstock.link")

_LEFT = -1
"""The number of a call that was withdrawn before it was written."""
_SPLIT_BYTES = 16 * 1024 * 1024
"""Several commands are not put into a frame larger than this."""


class LinkIdentity(msgspec.Struct, frozen=True):
    """How a node introduces itself to others of its cluster."""

    cluster: str
    node: str
    secret: bytes = b""
    """What all nodes of the cluster know; empty: nothing, which is enough on one machine."""
    incarnation: bytes = msgspec.field(default_factory=lambda: os.urandom(16))
    tls: LinkTls | None = None
    """How links over TCP are encrypted; None: they are not."""

    def __repr__(self) -> str:
        return f"LinkIdentity({self.cluster!r}, {self.node!r})"


class LinkLimits(msgspec.Struct, frozen=True):
    """How much a link takes, and how long it waits."""

    frame_bytes_max: int = 320 * 1024 * 1024
    """Of the largest message, and a little more."""
    in_flight_max: int = 16_384
    """Commands without a reply, waiting receives not counted; beyond, the server reads no further."""
    receives_max: int = 200_000
    """Receives without a reply; beyond, they are refused."""
    outbox_max: int = 200_000
    """Commands that are not written; beyond, they are refused."""
    patience_s: float = 10.0
    """How long a command waits for the link to be connected."""
    handshake_s: float = 5.0
    beat_s: float = 2.0
    silent_beats: int = 5
    backoff_s: float = 0.05
    backoff_max_s: float = 1.0
    session_grace_s: float = 10.0
    """Sessions that are connections end so long after their node's last link broke."""
    connections_max: int = 10_000


class NotReached(ShardMoved):
    """The node could not be reached: the command was not done."""

    def __init__(self, shard: int, map_version: int = 0, address: str = "") -> None:
        super().__init__(shard, map_version)
        self.address = address
        self.args = (f"shard {shard}: the node at {address} cannot be reached; the command was not done",)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.shard, self.map_version, self.address)


def split_address(address: str) -> tuple[str, int] | str:
    """HOST:PORT in its parts; or the path of a Unix socket.

    >>> split_address("10.0.0.7:4170"), split_address("[::1]:4170"), split_address("/run/links/0")
    (('10.0.0.7', 4170), ('::1', 4170), '/run/links/0')
    """
    host, colon, port = address.rpartition(":")
    if "/" in address or not colon:
        return address
    if not port.isdecimal() or int(port) > 65_535:
        raise InvalidSettings(f"{address!r} is no address of a link: it is HOST:PORT, or the path of a Unix socket")
    return host.removeprefix("[").removesuffix("]"), int(port)


def require_secret(address: str, secret: bytes) -> None:
    """Links that leave the machine need a secret: `InvalidSettings` without one.

    >>> require_secret("127.0.0.1:4170", b"")
    """
    where = split_address(address)
    if not secret and not isinstance(where, str) and not _is_loopback(where[0]):
        raise InvalidSettings(f"a link at {address} can be reached by others: it needs a secret, the cluster's own")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Pulse:
    """Both ends of a link say something every so often; who says nothing is dead."""

    __slots__ = ("_beat", "_die", "_limits", "_loop", "_silent", "_timer", "_written")

    def __init__(self, limits: LinkLimits, beat: Callable[[], None], die: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._beat = beat
        self._die = die
        self._silent = 0
        self._written = False
        self._timer = self._loop.call_later(limits.beat_s, self._tick)

    def heard(self) -> None:
        """Something came."""
        self._silent = 0

    def spoke(self) -> None:
        """Something was written."""
        self._written = True

    def stop(self) -> None:
        """The link is over."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._silent += 1
        if self._silent > self._limits.silent_beats:
            self._die()
            return
        if not self._written:
            self._beat()
        self._written = False
        self._timer = self._loop.call_later(self._limits.beat_s, self._tick)


class Mistrusted(ConnectionResetError):
    """With TLS 1.3 who shows a certificate that is not trusted hears nothing of it: the other node just goes away."""


_MISTRUST = (ssl.SSLError, Mistrusted)
_KNOCKS = 3
"""A node that stops goes away as well, and cannot be reached the next time."""


def _mistrust(address: str, error: Exception) -> str:
    return f"the node at {address} and this one do not trust each other ([cluster] tls_certificate, tls_ca): {error}"


class Link:
    """Takes commands to the shards of the node at an address. A `Place`."""

    def __init__(self, address: str, identity: LinkIdentity, limits: LinkLimits | None = None) -> None:
        require_secret(address, identity.secret)
        self.address = address
        self.identity = identity
        self.limits = limits or LinkLimits()
        self._loop = asyncio.get_running_loop()
        self._outbox: list[CallbackCall] = []
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._flushing = False
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether commands leave at once."""
        return self._connection is not None

    @property
    def waiting(self) -> int:
        """Commands that are not written."""
        return len(self._outbox)

    @property
    def in_flight(self) -> int:
        """Commands, waiting receives included, that are not answered."""
        return 0 if self._connection is None else len(self._connection.in_flight)

    # -- a place --

    def submit(
        self, shard: int, command: Command, on_settled: Callable[[Call], None], caller: object = None
    ) -> CallbackCall:
        """Take a command to a shard of the other node. The caller is known there by a number."""
        call = CallbackCall(command, on_settled, 0 if caller is None else id(caller))
        call.shard = shard
        if self._closed or len(self._outbox) >= self.limits.outbox_max:
            self._refuse(call)
            return call
        self._outbox.append(call)
        if self._connection is None:
            call.parked_ms = self._now_ms()
            self._connect_soon()
        elif not self._flushing:
            self._flush_soon()
        return call

    def withdraw(self, call: CallbackCall) -> None:
        """Whoever submitted this receive has left, and hears no more of it. Messages that it got go back."""
        call.on_settled = self._take_back
        if call.number == 0:
            call.number = _LEFT
        elif self._connection is not None and self._connection.in_flight.get(call.number) is call:
            self._connection.withdrawn.append(call.number)
            self._flush_soon()
        else:
            self._take_back(call)

    async def close(self) -> None:
        """Give up everything: what is in flight, and what waits."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._connecting
        if self._connection is not None:
            connection = self._connection
            connection.abort()
            await connection.gone.wait()
        waiting, self._outbox = self._outbox, []
        for call in waiting:
            self._fail(call, NotReached(call.shard, address=self.address))

    def _take_back(self, call: Call) -> None:
        """The reply to a receive that nobody waits for any more."""
        assert isinstance(call, CallbackCall)
        reply, call.reply = call.reply, None
        if isinstance(reply, Delivery) and reply.runs:
            self.submit(call.shard, give_back(reply), _ignore)

    def _refuse(self, call: CallbackCall) -> None:
        """Settled later, as everything is: never within `submit`."""
        if self._closed:
            call.error = NotReached(call.shard, address=self.address)
        else:
            call.error = OverLimit(f"{len(self._outbox)} commands wait for the link to {self.address}: try again later")
        self._loop.call_soon(call.settle)

    def _fail(self, call: CallbackCall, error: PenstockError) -> None:
        if call.number != _LEFT:
            call.error = error
            settle(call)

    def _now_ms(self) -> int:
        return round(self._loop.time() * 1_000)

    # -- connecting --

    async def knock(self) -> bool:
        """Connect, if the other node can be reached: whether it could. `LinkRefused` if it does not let this one in."""
        for knocks in range(1, _KNOCKS + 1):
            try:
                async with asyncio.timeout(self.limits.handshake_s):
                    self._connection = await self._dial()
            except LinkRefused as refusal:
                raise LinkRefused(f"the node at {self.address} refuses this one: {refusal}") from refusal
            except _MISTRUST as error:
                if knocks == _KNOCKS:
                    raise LinkRefused(_mistrust(self.address, error)) from error
                await asyncio.sleep(self.limits.backoff_max_s)
            except (OSError, TimeoutError, BadFrame):
                return False
            else:
                break
        return True

    def _connect_soon(self) -> None:
        if self._connecting is None and not self._closed:
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Try, as long as somebody waits."""
        backoff_s = self.limits.backoff_s
        is_mistrusted = False
        try:
            while self._outbox and not self._closed:
                try:
                    async with asyncio.timeout(self.limits.handshake_s):
                        self._connection = await self._dial()
                    break
                except LinkRefused as refusal:
                    self._give_up(refusal)
                except (OSError, TimeoutError, BadFrame) as error:
                    if isinstance(error, _MISTRUST) and not is_mistrusted:
                        is_mistrusted = True
                        log.error("%s", _mistrust(self.address, error))
                    log.debug("the node at %s cannot be reached: %s", self.address, error)
                    self._give_up_late()
                    if self._outbox:
                        await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, self.limits.backoff_max_s)
        finally:
            self._connecting = None
        if self._connection is not None:
            self._flush_soon()

    async def _dial(self) -> _Connection:
        where = split_address(self.address)
        connection: _Connection
        if isinstance(where, str):
            _, connection = await self._loop.create_unix_connection(lambda: _Connection(self), where)
        else:
            tls = None if self.identity.tls is None else self.identity.tls.client
            _, connection = await self._loop.create_connection(lambda: _Connection(self), *where, ssl=tls)
        try:
            await connection.welcomed
        except BaseException:
            connection.abort()
            raise
        if connection.gone.is_set():  # in the same turn
            raise ConnectionResetError("the other node closed the connection")
        return connection

    def _give_up(self, refusal: LinkRefused) -> None:
        log.error("the node at %s refuses this one: %s", self.address, refusal)
        waiting, self._outbox = self._outbox, []
        for call in waiting:
            self._fail(call, LinkRefused(str(refusal)))

    def _give_up_late(self) -> None:
        """Whoever has waited long enough tries elsewhere."""
        until_ms = self._now_ms() - round(self.limits.patience_s * 1_000)
        waiting = self._outbox
        self._outbox = [call for call in waiting if call.parked_ms > until_ms and call.number != _LEFT]
        for call in waiting:
            if call.parked_ms <= until_ms:
                self._fail(call, NotReached(call.shard, address=self.address))

    def lost(self, connection: _Connection) -> None:
        """A connection that was welcomed is gone."""
        if self._connection is not connection:
            return
        self._connection = None
        in_flight, connection.in_flight = connection.in_flight, {}
        if in_flight and not self._closed:
            log.warning("the link to %s broke with %d commands in flight", self.address, len(in_flight))
        now_ms = self._now_ms()
        for call in self._outbox:
            call.parked_ms = call.parked_ms or now_ms
        text = f"the link to {self.address} broke: the command may have been done, or not"
        for call in in_flight.values():
            self._fail(call, LinkBroken(text))
        subscribers, connection.subscribers = connection.subscribers, {}
        for ticket in subscribers.values():
            end_subscription(ticket, LinkBroken(f"the link to {self.address} broke: subscribe again"))
        if self._outbox:
            self._connect_soon()

    # -- writing --

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        connection = self._connection
        if connection is None or connection.is_paused:
            return
        calls = self._outbox
        if calls:
            if len(calls) > connection.in_flight_max - connection.busy:
                calls, self._outbox = connection.choose(calls)
            else:
                self._outbox = []
        if calls or connection.withdrawn:
            connection.write(calls)

    def resume(self) -> None:
        """There is room again."""
        if self._outbox and not self._flushing:
            self._flush_soon()


class _Connection(asyncio.Protocol):
    """One connection of a link, from its greeting to its end."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._identity = link.identity
        self._limits = link.limits
        self._reader = FrameReader(HANDSHAKE_BYTES_MAX)
        self._greeting: Greeting | None = None
        self._hello: Hello | None = None
        self._pulse: Pulse | None = None
        self._next = 1
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self.in_flight: dict[int, CallbackCall] = {}
        self.busy = 0
        """Of these, how many are no receives."""
        self.in_flight_max = 0
        self.frame_bytes_max = 0
        self.subscribers: dict[int, Ticket] = {}
        """By the number of the command that made the subscription."""
        self.withdrawn: list[int] = []
        self.is_paused = False

    # -- the transport's --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the greeting."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance
        set_no_delay(transport)

    def data_received(self, data: bytes) -> None:
        """Read what is complete."""
        if self._pulse is not None:
            self._pulse.heard()
        try:
            for kind, payload in self._reader.feed(data):
                self._take(kind, payload)
        except PenstockError as error:
            self._break(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Everything in flight is uncertain."""
        if self._pulse is not None:
            self._pulse.stop()
        self.gone.set()
        if not self.welcomed.done():
            self.welcomed.set_exception(self._unwelcome(exc))
            self.welcomed.exception()
        self._link.lost(self)

    def _unwelcome(self, exc: Exception | None) -> Exception:
        is_reset = exc is None or isinstance(exc, ConnectionResetError)
        if is_reset and self._identity.tls is not None and self._greeting is None:
            return Mistrusted("it closed the connection before its greeting")
        return exc or ConnectionResetError("the other node closed the connection")

    def pause_writing(self) -> None:
        """The other node is slow: what comes now waits in the outbox."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """The other node reads again."""
        self.is_paused = False
        self._link.resume()

    def abort(self) -> None:
        """End it now."""
        self._transport.abort()

    # -- the introduction --

    def _take(self, kind: FrameKind, payload: bytes) -> None:
        if kind is FrameKind.REPLIES and self._pulse is not None:
            self._take_replies(payload)
        elif kind is FrameKind.BEAT and self._pulse is not None:
            pass
        elif kind is FrameKind.GREETING and self._greeting is None:
            self._introduce(read_greeting(payload))
        elif kind is FrameKind.WELCOME and self._hello is not None and self._pulse is None:
            self._be_welcome(payload)
        elif kind is FrameKind.REFUSAL and self._pulse is None:
            raise LinkRefused(payload.decode(errors="replace"))
        else:
            raise BadFrame(f"{kind.name} does not belong here")

    def _introduce(self, greeting: Greeting) -> None:
        identity = self._identity
        if greeting.cluster != identity.cluster:
            raise LinkRefused(f"this is cluster {identity.cluster!r}, and that node is of {greeting.cluster!r}")
        hello = Hello(identity.cluster, identity.node, identity.incarnation, os.urandom(NONCE_BYTES), b"")
        self._greeting = greeting
        proof = client_proof(identity.secret, greeting, hello)
        self._hello = msgspec.structs.replace(hello, proof=proof)
        self._transport.write(introduction(FrameKind.HELLO, self._hello))

    def _be_welcome(self, payload: bytes) -> None:
        welcome = read_welcome(payload)
        assert self._greeting is not None and self._hello is not None
        if not is_proven(server_proof(self._identity.secret, self._greeting, self._hello), welcome.proof):
            raise LinkRefused("the other node does not know the cluster's secret")
        self._reader.limit_bytes = self._limits.frame_bytes_max
        self.in_flight_max = min(self._limits.in_flight_max, welcome.in_flight_max)
        self.frame_bytes_max = min(self._limits.frame_bytes_max, welcome.frame_bytes_max)
        self._pulse = Pulse(self._limits, self._beat, self._fall_silent)
        if not self.welcomed.done():
            self.welcomed.set_result(None)

    def _beat(self) -> None:
        self._transport.write(frame(FrameKind.BEAT))

    def _fall_silent(self) -> None:
        self._break(BadFrame("the other node is silent"))

    def _break(self, error: PenstockError) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(error)
            self.welcomed.exception()
        else:
            log.error("the link to %s is cut: %s", self._link.address, error)
        self._transport.abort()

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
        number, in_flight = self._next, self.in_flight
        numbered: list[Numbered] = []
        for call in calls:
            if call.number == _LEFT:
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
        withdrawn, self.withdrawn = self.withdrawn, []
        self._send(numbered, withdrawn)

    def _send(self, numbered: list[Numbered], withdrawn: list[int]) -> None:
        """One frame; if it would be too large, or something in it does not travel, several."""
        try:
            payload = encode_commands(numbered, withdrawn)
        except (TypeError, ValueError, NotImplementedError, OverflowError) as error:
            if len(numbered) == 1:
                return self._fail(numbered[0][0], InvalidRequest(f"the command cannot be sent on: {error}"))
        else:
            most = self.frame_bytes_max if len(numbered) < 2 else min(_SPLIT_BYTES, self.frame_bytes_max)
            if len(payload) <= most:
                return self._write(payload)
            if len(numbered) == 1:
                text = f"the command has {len(payload)} bytes: {self.frame_bytes_max} are the most between nodes"
                return self._fail(numbered[0][0], BatchTooLarge(text))
        half = len(numbered) // 2
        self._send(numbered[:half], [])
        self._send(numbered[half:], withdrawn)

    def _write(self, payload: bytes) -> None:
        assert self._pulse is not None
        self._pulse.spoke()
        self._transport.writelines(frame_parts(FrameKind.COMMANDS, payload))

    def _fail(self, number: int, error: PenstockError) -> None:
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
                    raise BadPayload(f"a reply to number {number}, which was answered, or never was")
                command_kind = call.command.__class__
                if command_kind is not Receive:
                    self.busy -= 1
                try:
                    call.reply = unpack_reply(command_kind, raw)
                except BadPayload as error:
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
            raise BadPayload(f"a reply to number {number}, which was answered, or never was")
        if kind == Kind.ERROR:
            call.error = unpack_failure(raw)
            if call.command.__class__ is Subscribe:
                self.subscribers.pop(number, None)
        elif kind != Kind.WITHDRAWN:
            raise BadPayload(f"there is no reply of kind {kind}")
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
        log.exception("who waited for a reply failed")


def end_subscription(ticket: Ticket, error: PenstockError) -> None:
    """A subscription is over, and whoever has it is told."""
    ticket.take(Delivery("", 0, "", 0, 0, 0, error=error))
    settle(ticket)


def set_no_delay(transport: asyncio.BaseTransport) -> None:
    """Frames leave at once."""
    used: socket.socket | None = transport.get_extra_info("socket")
    if used is not None and used.family in (socket.AF_INET, socket.AF_INET6):
        used.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _ignore(_call: Call) -> None:
    """Nobody waits."""
