"""One client's connection: what it may say when, what it is answered, and what it is pushed.

How it works. What is read becomes commands (`wire.Parser`), which are handled in order. Those for the store are handed
to the shard with a callback, all that came in one read in one turn of the loop, so they go through one step and one
commit; the client's own replies come out in the order of its commands, because a step answers in order. A command
whose answer does not come from the shard waits until everything before it is answered. Some take a while (SUB, a
switch to TLS): the connection is *busy*, and nothing else is handled meanwhile.

Messages come from a subscription: this object is its ticket. The core hands out no more than RDY messages at a time,
in flight ones included, and no more bytes than there is room for: `ROOM_BYTES` from when it was last told. Everything
that one step hands out is written in one piece for each run.

FIN has no answer in this protocol, so it waits for no commit; it goes with the next one, a few milliseconds later at
the latest. A crash in between has the message delivered once more. OK for PUB and MPUB comes after the commit.

Who does not keep up is slowed down, and costs no memory:

- A client that does not read: the transport asks to pause, and there is no room any more, so nothing is handed out. If
  it does not read for a heartbeat interval, the connection ends.
- A client that publishes faster than the disk: with `PENDING_BYTES_MAX` on their way to a commit, or its answers
  unread, commands wait; while commands wait, nothing is read. So do all others of who does not read, once there are
  `UNREAD_BYTES_MAX` of answers to them (a FIN may be refused, and that is three times as long as the FIN).
- A client that never stops: so many commands, and so many bytes, in a turn of the loop; others have theirs between.
- All clients together: a large body is claimed from the budget (`penstock.server.budget`) before it is read; what is on
  its way to a commit, and messages that a client does not read, count as well. Without room nothing is read.
- A client that has to say who it is: its bodies are small, and nothing of a PUB is read before AUTH.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.commands import (
    AckSequences,
    Command,
    Delivery,
    ExtendSequences,
    ReleaseSequences,
    Run,
    Send,
    SetCredit,
    Settled,
    Subscribe,
)
from penstock.core.errors import AccessDenied, PenstockError, StoreError, TooManyFailedLogins
from penstock.protocols.nsq import wire
from penstock.protocols.nsq.client import Client, Refusal, State, Terms, answer, negotiate
from penstock.protocols.nsq.compression import Codec, Corrupt, Deflate, Snappy
from penstock.protocols.nsq.topics import Timeouts
from penstock.protocols.nsq.wire import NSQ_VERSION
from penstock.server.auth import ANYBODY, Principal, authorize_kinds
from penstock.server.budget import BUSY, SMALL_BYTES, TLS_HANDSHAKE_S, Pace
from penstock.server.shard import Call

if TYPE_CHECKING:
    from penstock.protocols.nsq.server import Endpoint

ROOM_BYTES = 1024 * 1024
"""How much may be handed out to a client before it is looked at whether it reads."""
WRITE_BUFFER_BYTES = 1024 * 1024
SECOND_LOOK_S = 0.1
"""If this process stood still, what a client said meanwhile is read before it is taken for gone."""
PENDING_BYTES_MAX = 8 * 1024 * 1024
UNREAD_BYTES_MAX = 64 * 1024
"""Of answers to a client that does not read, beyond what the transport takes."""
LARGE_BYTES = 4 * 1024
"""Above this length it costs less to write a piece by itself than to copy it: small ones are written as one."""
TURN_BYTES_MAX = 512 * 1024
"""How much is read from one client in a turn of the loop, which would read on for as long as there is something."""
LINGER_S = 5.0
"""How long a client has to read the error with which its connection ends."""

log = logging.getLogger("penstock.nsq")


class _Publishing(msgspec.Struct):
    """A PUB, MPUB or DPUB, and what became of it."""

    command: wire.Publish
    is_through: bool = False
    error: BaseException | None = None


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._settings = endpoint.settings
        self._topics = endpoint.topics
        self._shard = endpoint.topics.shard
        self._loop = endpoint.loop
        self._principal: Principal | None = None if endpoint.credentials.are_required else ANYBODY
        self._parser = wire.Parser(
            self._settings.message_bytes_max,
            self._settings.body_bytes_max,
            round(self._settings.requeue_timeout_max_s * 1_000),
            is_known=self._principal is not None,
        )
        self._magic: bytes | None = b""
        """What has come of it; None when it is whole, and commands may follow."""
        self._codec: Codec | None = None
        self._commands: deque[wire.WireCommand] = deque()
        self._pending = 0
        """Calls on their way through the shard."""
        self._pending_bytes = 0
        self._publishes: deque[_Publishing] = deque()
        """Those without an answer, in the order in which they came."""
        self._task: asyncio.Task[None] | None = None
        """What keeps the connection busy."""
        self._is_reading = True
        self._is_unpacking = False
        """More of what was read is to be decompressed, in the loop's next turns."""
        self._turn_bytes = 0
        """Read in this turn of the loop."""
        self._awaits_turn = False
        """Nothing is read before the loop's next turn."""
        self._is_ending = False
        """Nothing is read or pushed any more; the connection closes when all is written."""
        self._is_lost = False
        self._has_said_all = False
        """The client sends nothing more; it may still read."""
        self._is_slow = False
        """The next command waits for a step of its own, because the last one was long."""
        self._heard_s = self._loop.time()
        self._stuck_s: float | None = None
        """Since when the client has not read."""
        self._unread_bytes = 0
        """Answers since then."""
        self._timer: asyncio.TimerHandle | None = None
        self._next_beat_s = 0.0
        self._is_doubted = False
        """The client seems to be gone, and is looked at once more."""
        self._terms = Terms.initial(self._settings)
        self._timeouts: Timeouts | None = None
        self._is_tls = False
        self._share = endpoint.budget.share()
        """For the command that is being read."""
        self._pace = Pace(endpoint.budget, lambda: self._read_bytes, self._come_too_slowly)
        self._read_bytes = 0
        """Since the connection was made."""
        self._held = endpoint.budget.share()
        """For what is on its way to a commit, and for messages that the client does not read."""
        self._held_unread_bytes = 0
        self._began_s = self._heard_s
        self._topic = self._channel = ""
        self._tag = 0
        self._room_bytes = ROOM_BYTES
        self._deliveries: list[Delivery] = []
        self._transport: asyncio.Transport
        self.client: Client

    # -- the transport --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.client = Client(_address(self._transport), self._endpoint.time_s())
        if not self._endpoint.admit(self, transport):
            self._is_ending = self._is_lost = True
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._restart_beat()

    def connection_lost(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_ending = self._is_lost = True
        self._commands.clear()
        self._deliveries.clear()
        self._parser.end()
        self._pace.stop()
        self._share.close()
        self._held.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is None:
            self._leave()
        self._endpoint.dismiss(self)

    def eof_received(self) -> bool:
        """The client has said its last. What it has said is done and answered (not over TLS, which ends both ways)."""
        self._has_said_all = True
        self._end_if_done()
        return not self._is_tls and not self._is_ending

    def _end_if_done(self) -> None:
        if self._is_free and not (self._pending or self._is_unpacking):
            self._end()

    def _leave(self) -> None:
        self._topics.gone(self.client)
        if self._topic:
            self._topics.leave(self.client, self._topic, self._channel)

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        now_s = self._loop.time()
        self._read_bytes += len(data)
        self._turn_bytes = len(data) + (self._turn_bytes if now_s == self._heard_s else 0)
        self._heard_s = now_s
        if self._turn_bytes >= TURN_BYTES_MAX:
            self._await_turn()
        if self._magic is not None:
            data = self._magic + data
            if not data.startswith(wire.MAGIC):
                self._miss_magic(data)
                return
            data, self._magic = data[4:], None
        if self._codec is not None:
            self._codec.add(data)
            if not self._is_unpacking:
                self._unpack()
        else:
            self._feed(data)

    def _miss_magic(self, data: bytes) -> None:
        """So much has come, and not the magic."""
        if wire.MAGIC.startswith(data):
            self._magic = data
        else:
            self._write(wire.frame(wire.ERROR, b"E_BAD_PROTOCOL"))
            self._end()

    def _feed(self, data: bytes) -> None:
        parser = self._parser
        commands = parser.feed(data)
        if commands:
            self._commands.extend(commands)
            self._run()
        elif parser.verb in _ONLY_AT_FIRST and self.client.state != State.INIT:
            self._fail("E_INVALID", f"cannot {parser.verb} in current state")
        if parser.rest or self._share.held_bytes:
            self._make_room()

    def _await_turn(self) -> None:
        """That was enough for this turn of the loop: others have theirs before this client is read from again."""
        if not self._awaits_turn:
            self._awaits_turn = True
            self._loop.call_soon(self._take_turn)
            self._apply_backpressure()

    def _take_turn(self) -> None:
        """Go on with what was read before, and then read on."""
        self._awaits_turn = False
        self._turn_bytes = 0
        if self._is_ending:
            return
        if self._parser.has_more and not self._commands and self._task is None:
            self._feed(b"")
            self._unpack_on()
        self._apply_backpressure()

    def _make_room(self) -> None:
        """A command has begun that is so long: read on when there is room for it."""
        wanted = 0 if self._is_ending else self._parser.wanted
        held = self._share.held_bytes
        if wanted < SMALL_BYTES:
            if held:
                self._share.let_go()
                self._pace.stop()
        elif wanted > held and not self._share.is_waiting:
            if self._share.claim(wanted - held, self._room_came, self._find_no_room):
                self._pace.start()
            else:
                self._pace.stop()
                self._apply_backpressure()

    def _room_came(self) -> None:
        self._pace.start()
        self._apply_backpressure()

    def _find_no_room(self) -> None:
        self._fail_reading(BUSY)

    def _come_too_slowly(self) -> None:
        self._fail_reading(self._pace.reason)

    def _fail_reading(self, reason: str) -> None:
        """The command that is being read, or that waits to be begun, is given up, and the connection with it."""
        if self._is_ending:
            return
        verb = self._parser.verb or "PUB"
        self._fail(f"E_{verb}_FAILED", f"{verb} failed: {reason}")
        self._share.close()
        self._pace.stop()

    def _unpack(self) -> None:
        """Decompress a portion; the next one in the loop's next turn, so that others have theirs."""
        assert self._codec is not None
        self._is_unpacking = False
        if self._is_ending:
            return
        try:
            if self._is_free:
                self._feed(self._codec.take())
            self._is_unpacking = self._codec.has_more and not self._is_ending
        except Corrupt as error:
            log.info("client %s: %s", self.client.remote_address, error)
            self._end()
        if self._is_unpacking and self._is_free:
            self._loop.call_soon(self._unpack)
        self._apply_backpressure()

    def _unpack_on(self) -> None:
        """What kept more from being decompressed may be done."""
        if self._is_unpacking and self._is_free:
            self._unpack()

    @property
    def _is_free(self) -> bool:
        """Whether everything that was read, and decompressed, is handled."""
        return not (self._commands or self._task is not None or self._parser.has_more)

    def pause_writing(self) -> None:
        """The client does not read: hand out nothing more."""
        self._stuck_s = self._loop.time()
        self._held_unread_bytes = self._transport.get_write_buffer_size()
        self._held.hold(self._held_unread_bytes)
        self._give_room(0)

    def resume_writing(self) -> None:
        self._stuck_s = None
        self._unread_bytes = 0
        self._held.let_go(self._held_unread_bytes)
        self._held_unread_bytes = 0
        self._give_room(ROOM_BYTES)
        self._resume()

    def _give_room(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        if self.client.subscription and not self._is_ending:
            self._submit(SetCredit(subscription=self.client.subscription, room_bytes=room_bytes), _ignore)

    def _write(self, data: bytes | memoryview) -> None:
        if not self._transport.is_closing():
            self._transport.write(data if self._codec is None else self._codec.pack(data))

    def _answer(self, data: bytes) -> None:
        """Write the answer to a command that does not wait for who reads."""
        if self._stuck_s is not None:
            self._unread_bytes += len(data)
        self._write(data)

    def _apply_backpressure(self) -> None:
        """Nothing is read while commands wait."""
        if self._has_said_all:
            return self._end_if_done()
        wanted = not (
            self._commands
            or self._task is not None
            or self._awaits_turn
            or self._is_unpacking
            or self._is_ending
            or self._parser.has_more
            or self._share.is_waiting
        )
        if wanted == self._is_reading or self._is_lost:
            return None
        self._is_reading = wanted
        with contextlib.suppress(RuntimeError):  # it is closing
            if wanted:
                self._heard_s = self._loop.time()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        return None

    # -- the end --

    def _fail(self, code: str, reason: str) -> None:
        """End the connection with an error, behind the answers that are still to come."""
        self._parser.end()
        self._commands.clear()
        if self._pending:
            self._commands.append(wire.Invalid(code, reason))
            return
        self._end_with(code, reason)

    def _end_with(self, code: str, reason: str) -> None:
        """End the connection with an error. Whatever is still to come is not answered: it would be taken for another's
        answer."""
        log.info("client %s: %s %s", self.client.remote_address, code, reason)
        self._write(wire.error_frame(code, reason))
        self._end()

    def _end(self) -> None:
        """Close when everything is written; what the client holds is ready for others at once."""
        if self._is_ending:
            return
        self._is_ending = True
        self._commands.clear()
        self._transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        if not self._is_lost:
            self._transport.abort()

    def stop(self) -> None:
        """The server stops: close as soon as nothing is pending."""
        if self._pending or self._task is not None:
            self._loop.call_later(0.01, self.stop)
        else:
            self._end()

    # -- heartbeats --

    def _restart_beat(self) -> None:
        if self._is_ending:  # the timer is for hanging up
            return
        if self._timer is not None:
            self._timer.cancel()
        self._next_beat_s = self._loop.time() + self._beat_s
        self._timer = self._loop.call_later(self._beat_s, self._beat)

    @property
    def _beat_s(self) -> float:
        return self._terms.heartbeat_ms / 1_000 or self._settings.client_timeout_s / 2

    def _beat(self) -> None:
        """Send a heartbeat when it is time, and end the connection of one who is gone."""
        now_s, beat_s = self._loop.time(), self._beat_s
        silent_s = 0.0 if not self._is_reading else now_s - self._heard_s
        is_silent = bool(self._terms.heartbeat_ms) and silent_s >= 2 * beat_s
        is_stuck = self._stuck_s is not None and now_s - self._stuck_s >= beat_s
        if self._principal is None and now_s - self._began_s >= self._settings.client_timeout_s:
            log.info("client %s did not identify itself", self.client.remote_address)
            return self.abort()
        if (is_silent or is_stuck) and not self._is_doubted:
            self._is_doubted = True
            self._timer = self._loop.call_later(SECOND_LOOK_S, self._beat)
            return None
        if is_silent:
            log.info("client %s was silent for %g s", self.client.remote_address, silent_s)
            return self.abort()
        if self._stuck_s is not None and is_stuck:
            log.info("client %s has not read for %g s", self.client.remote_address, now_s - self._stuck_s)
            return self.abort()
        self._is_doubted = False
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + beat_s
            if self._terms.heartbeat_ms and not self._is_ending and self._magic is None and self._stuck_s is None:
                self._write(wire.HEARTBEAT_FRAME)
        wake_s = self._next_beat_s
        if self._terms.heartbeat_ms and self._is_reading:
            wake_s = min(wake_s, self._heard_s + 2 * beat_s)
        self._timer = self._loop.call_later(max(0.001, wake_s - now_s), self._beat)
        return None

    # -- commands --

    def _run(self) -> None:
        """Handle commands until one has to wait."""
        commands = self._commands
        while commands and self._task is None and not self._is_ending:
            command = commands[0]
            handle, verb, waits, states = _HANDLERS[command.__class__]
            if (self._pending and (waits or self._is_slow)) or self._unread_bytes > UNREAD_BYTES_MAX:
                break
            self._is_slow = False
            if command.__class__ is wire.Publish:
                if self._endpoint.budget.is_full and not self._pending_bytes:
                    if self._held.is_waiting or not self._held.claim(0, self._others_have_read, self._find_no_room):
                        break
                elif self._pending_bytes >= PENDING_BYTES_MAX or self._stuck_s is not None:
                    break
            commands.popleft()
            try:
                if self._settings.tls_required and not self._is_tls and verb not in _WITHOUT_TLS:
                    raise Refusal("E_INVALID", f"cannot {verb} in current state (TLS required)")
                if self.client.state not in states:
                    raise Refusal("E_INVALID", f"cannot {verb} in current state")
                handle(self, command)
            except Refusal as refusal:
                self._fail(refusal.code, refusal.reason)
        if not commands and self._task is None and self._parser.has_more:
            self._await_turn()
        self._apply_backpressure()

    def _resume(self) -> None:
        """A call has been answered."""
        if not self._commands:
            if self._has_said_all:
                self._end_if_done()
            return
        self._run()
        self._unpack_on()

    def _submit(self, command: Command, on_settled: Callable[[Call], None]) -> None:
        try:
            self._shard.submit(command, on_settled)
        except PenstockError as error:
            self._fail("E_INVALID", str(error))

    def _call(self, command: Command, on_settled: Callable[[Call], None], *, caller: Connection | None = None) -> None:
        """Hand a command to the shard whose answer the client waits for."""
        self._pending += 1
        try:
            self._shard.submit(command, on_settled, caller)
        except PenstockError as error:
            self._pending -= 1
            self._fail("E_INVALID", str(error))

    def _check_right(self, verb: str, kind: type[Command], topic: str, channel: str = "") -> None:
        if self._principal is None:
            raise Refusal(wire.AUTH_FIRST, f"AUTH required before {verb}")
        try:
            authorize_kinds(self._principal, topic, kind)
        except AccessDenied:
            raise Refusal("E_UNAUTHORIZED", f'AUTH failed for {verb} on "{topic}" "{channel}"') from None

    def _identify(self, command: wire.Identify) -> None:
        has_tls = self._endpoint.tls is not None and not self._is_tls
        terms = negotiate(command.body, self.client, self._settings, has_tls=has_tls)
        self._terms = terms
        self._restart_beat()
        if not terms.is_negotiated:
            self._answer(wire.OK_FRAME)
            return
        auth_required = self._endpoint.credentials.are_required
        told = answer(terms, self._settings, NSQ_VERSION, auth_required=auth_required)
        if terms.tls or terms.snappy or terms.deflate:
            if self._commands or self._parser.rest or self._codec is not None:
                raise Refusal("E_IDENTIFY_FAILED", "IDENTIFY failed: data came before the connection was upgraded")
            self._write(wire.frame(wire.RESPONSE, told))
            self._busy(self._upgrade(terms))
        else:
            self._answer(wire.frame(wire.RESPONSE, told))

    async def _upgrade(self, terms: Terms) -> None:
        if terms.tls:
            assert self._endpoint.tls is not None
            transport = await self._loop.start_tls(
                self._transport,
                self,
                self._endpoint.tls,
                server_side=True,
                ssl_handshake_timeout=TLS_HANDSHAKE_S,
            )
            assert transport is not None
            self._transport = transport
            transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
            self._is_reading = True
            self._note_tls(transport)
            self._write(wire.OK_FRAME)
        if terms.snappy:
            self._codec = Snappy()
            self.client.snappy = True
            self._write(wire.OK_FRAME)
        if terms.deflate:
            self._codec = Deflate(terms.deflate_level)
            self.client.deflate = True
            self._write(wire.OK_FRAME)

    def _note_tls(self, transport: asyncio.Transport) -> None:
        self._is_tls = True
        tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
        cipher = tls.cipher()
        self.client.tls_version = tls.version() or "TLS"
        self.client.tls_cipher = cipher[0] if cipher else ""

    def _auth(self, command: wire.Auth) -> None:
        if self.client.identity is not None:
            raise Refusal("E_INVALID", "AUTH already set")
        if not self._endpoint.credentials.are_required:
            raise Refusal("E_AUTH_DISABLED", "AUTH disabled")
        try:
            secret, host = command.secret.decode("utf-8", "replace"), self.client.remote_address.rpartition(":")[0]
            principal = self._endpoint.credentials.check_bearer(secret, host.strip("[]"))
        except TooManyFailedLogins as error:
            raise Refusal("E_AUTH_FAILED", f"AUTH failed: {error}") from None
        if principal is None:
            raise Refusal("E_AUTH_FAILED", "AUTH failed")
        self._principal = principal
        self.client.identity = principal.name
        told = {"identity": principal.name, "identity_url": "", "permission_count": 1}
        self._write(wire.frame(wire.RESPONSE, msgspec.json.encode(told)))

    def _subscribe(self, command: wire.Subscribe) -> None:
        if not self._terms.heartbeat_ms:
            raise Refusal("E_INVALID", "cannot SUB with heartbeats disabled")
        self._check_right("SUB", Subscribe, command.topic, command.channel)
        self._busy(self._join(command.topic, command.channel))

    async def _join(self, topic: str, channel: str) -> None:
        timeouts = self._timeouts = self._topics.timeouts(topic, channel, self._terms.message_timeout_ms)
        try:
            await self._topics.subscribe(self.client, topic, channel, timeouts.delivery_ms, ROOM_BYTES, self)
        except PenstockError as error:
            self._fail("E_SUB_FAILED", f"SUB failed {error}")
            return
        self._topic, self._channel = topic, channel
        await self._shard.know(topic)
        queue = self._shard.identity.queues.get(topic)
        self._tag = wire.tag_of(queue.id if queue is not None else 0)
        self.client.state = State.SUBSCRIBED
        if not self._is_lost:
            self._write(wire.OK_FRAME)

    def _busy(self, work: Any) -> None:
        """Do something that takes a while; commands wait meanwhile."""
        self._task = self._loop.create_task(work)
        self._apply_backpressure()
        self._task.add_done_callback(self._not_busy)

    def _not_busy(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._upgrade_failed(error)
        if self._is_lost:
            self._leave()
            return
        self._run()
        self._unpack_on()

    def _upgrade_failed(self, error: BaseException) -> None:
        if not isinstance(error, ssl.SSLError | OSError | asyncio.TimeoutError):
            log.error("client %s: a bug", self.client.remote_address, exc_info=error)
        log.info("client %s: the connection could not be upgraded: %s", self.client.remote_address, error)
        self._is_ending = True
        self.abort()

    def _publish(self, command: wire.Publish) -> None:
        if self._principal is not ANYBODY:
            self._check_right(command.verb, Send, command.topic)
        self._pending_bytes += command.nbytes
        self._held.hold(command.nbytes)
        send = self._topics.send(command.topic, command.bodies, command.delay_ms)
        publishing = _Publishing(command)
        self._publishes.append(publishing)
        self._call(send, partial(self._published, publishing), caller=self)

    def _published(self, publishing: _Publishing, call: Call) -> None:
        """One is through. Clients tell by the order alone which answer is whose, and shards are not equally fast."""
        publishing.is_through, publishing.error = True, call.error
        self._pending -= 1
        self._pending_bytes -= publishing.command.nbytes
        self._held.let_go(publishing.command.nbytes)
        while self._publishes and self._publishes[0].is_through and not self._is_ending:
            done = self._publishes.popleft()
            command = done.command
            if done.error is not None:
                self._end_with(f"E_{command.verb}_FAILED", f"{command.verb} failed {done.error}")
                return
            published = self.client.published
            published[command.topic] = published.get(command.topic, 0) + len(command.bodies)
            self._topics.producers[self.client] = None
            self._write(wire.OK_FRAME if command.replies == 1 else wire.OK_FRAME * command.replies)
        if not self._is_ending:
            self._resume()

    def _ready(self, command: wire.Ready) -> None:
        if self.client.state == State.CLOSING:
            return
        if command.count > self._settings.ready_max:
            raise Refusal("E_INVALID", f"RDY count {command.count} out of range 0-{self._settings.ready_max}")
        self._set_ready(command.count)

    def _set_ready(self, count: int) -> None:
        self.client.ready_count = count
        self._submit(SetCredit(subscription=self.client.subscription, credit=count), _ignore)

    def _close(self, command: wire.Close) -> None:
        self.client.state = State.CLOSING
        self._set_ready(0)
        self._write(wire.CLOSE_WAIT_FRAME)

    def _nop(self, command: wire.Nop) -> None:
        pass

    def _invalid(self, command: wire.Invalid) -> None:
        if command.code == wire.AUTH_FIRST and self._settings.tls_required and not self._is_tls:
            raise Refusal("E_INVALID", f"cannot {self._parser.verb} in current state (TLS required)")
        self._fail(command.code, command.reason)

    # -- settling --

    def _some_ids(self, command: wire.Finish) -> NDArray[np.uint64]:
        """The ids of a run; of a very long one the first, so that a step stays short: nobody holds so many."""
        ids = command.ids
        limit = 2 * self._settings.ready_max
        if len(ids) <= limit:
            return ids
        self._commands.appendleft(msgspec.structs.replace(command, parts=[ids[limit:]]))
        self._is_slow = True
        return ids[:limit]

    def _finish(self, command: wire.Finish) -> None:
        ids = self._some_ids(command)
        ack = AckSequences(
            queue=self._topic,
            channel=self._channel,
            sequences=wire.sequences_of(ids, self._tag),
            session=self.client.session,
            durable=False,
        )
        self._call(ack, partial(self._settled, "FIN", ids))

    def _requeue(self, command: wire.Requeue) -> None:
        ids = self._some_ids(command)
        release = ReleaseSequences(
            queue=self._topic,
            channel=self._channel,
            sequences=wire.sequences_of(ids, self._tag),
            session=self.client.session,
            delay_ms=command.timeout_ms,
            error="requeued",
        )
        self._call(release, partial(self._settled, "REQ", ids))

    def _touch(self, command: wire.Touch) -> None:
        assert self._timeouts is not None
        ids = self._some_ids(command)
        extend = ExtendSequences(
            queue=self._topic,
            channel=self._channel,
            sequences=wire.sequences_of(ids, self._tag),
            session=self.client.session,
            lease_ms=self._timeouts.touch_ms,
            held_ms_max=self._timeouts.held_ms_max,
        )
        self._call(extend, partial(self._settled, "TOUCH", ids))

    def _settled(self, verb: str, ids: NDArray[np.uint64], call: Call) -> None:
        """A run of FIN, REQ or TOUCH is through: those that failed get an error each."""
        self._pending -= 1
        if self._is_ending:
            return
        settled: Settled | None = call.reply if call.error is None else None
        if call.error is not None and isinstance(call.error, StoreError):
            self._fail(f"E_{verb}_FAILED", f"{verb} failed {call.error}")
        elif settled is None or settled.count != len(ids):
            failed = failed_ids(ids, self._tag, settled, once=verb != "TOUCH")
            self._answer(b"".join([wire.error_frame(*_not_in_flight(verb, f"{each:016x}")) for each in failed]))
        if settled is not None and verb == "FIN":
            self.client.finish_count += settled.count
            if settled.sent and self._topics.finish_listeners:
                self._topics.finished(self._topic, self._channel, settled.sent)
        elif settled is not None and verb == "REQ":
            self.client.requeue_count += settled.count
            self._topics.requeued(self._topic, self._channel, settled.count)
        self._resume()

    def _unknown_id(self, command: wire.UnknownId) -> None:
        if self.client.state not in _SUBSCRIBED:
            raise Refusal("E_INVALID", f"cannot {command.verb} in current state")
        self._answer(wire.error_frame(*_not_in_flight(command.verb, command.id)))

    # -- messages --

    def take(self, delivery: Delivery) -> None:
        """The core hands out messages to this subscription; `settle` follows when they may leave."""
        self._deliveries.append(delivery)

    def settle(self) -> None:
        if not self._deliveries:
            return
        deliveries, self._deliveries = self._deliveries, []
        if self._is_ending:
            return
        pieces: list[bytes | memoryview] = []
        for delivery in deliveries:
            if delivery.error is not None:  # the channel was deleted, or the store has failed
                log.info("client %s is disconnected: %s", self.client.remote_address, delivery.error)
                self._end()
                return
            for run in delivery.runs:
                count = run.stop - run.start
                keep = self._sample(run) if self._terms.sample_rate else None
                self.client.message_count += count if keep is None else int(keep.sum())
                self._endpoint.delivered += count
                pieces.append(wire.message_frames(run, self._tag, keep))
        nbytes = sum(map(len, pieces))
        self._room_bytes -= nbytes
        if self._codec is None and nbytes > LARGE_BYTES * len(pieces):
            if not self._transport.is_closing():
                self._transport.writelines(pieces)
        elif pieces:
            self._write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._room_bytes <= ROOM_BYTES // 2 and self._stuck_s is None:
            self._give_more_room()

    def _sample(self, run: Run) -> NDArray[np.bool_]:
        """Which messages of a run the client gets; the others are done."""
        keep = self._endpoint.sample(run.count, self._terms.sample_rate)
        dropped = np.flatnonzero(~keep) + run.first
        if len(dropped):
            ack = AckSequences(
                queue=self._topic,
                channel=self._channel,
                sequences=dropped.astype(np.int64),
                session=self.client.session,
                durable=False,
            )
            self._submit(ack, _ignore)
        return keep

    def _give_more_room(self) -> None:
        """More messages may come; when others have read theirs, if those are too many."""
        if not self._endpoint.budget.is_full:
            self._give_room(ROOM_BYTES)
        elif not self._held.is_waiting:
            self._held.claim(0, self._others_have_read)

    def _others_have_read(self) -> None:
        """There was no room, and now there is."""
        if self._room_bytes <= ROOM_BYTES // 2 and self._stuck_s is None:
            self._give_more_room()
        self._resume()


def failed_ids(ids: NDArray[np.uint64], tag: int, settled: Settled | None, *, once: bool) -> list[int]:
    """Which ids of a run were refused, in their order. If each can be settled `once`, its repetitions are, too."""
    sequences = wire.sequences_of(ids, tag)
    is_failed = np.full(len(ids), once or settled is None)
    if settled is not None:
        is_failed[np.unique(sequences, return_index=True)[1]] = False  # the first of each is not a repetition
    if settled is not None and settled.refused:
        bounds = np.array(sorted((each.first, each.last) for each in settled.refused))
        at = np.searchsorted(bounds[:, 0], sequences, side="right") - 1
        is_failed |= (at >= 0) & (sequences <= bounds[at, 1])
    failed: list[int] = ids[is_failed].tolist()
    return failed


def _not_in_flight(verb: str, text: str) -> tuple[str, str]:
    return f"E_{verb}_FAILED", f"{verb} {text} failed ID not in flight"


def _ignore(_call: Call) -> None:
    """Nobody waits for it."""


def _address(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    if not peer:
        return "unknown"
    host, port = peer[0], peer[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_ONLY_AT_FIRST = ("IDENTIFY", "AUTH")
_WITHOUT_TLS = ("IDENTIFY", "")

_INIT = (State.INIT,)
_SUBSCRIBED = (State.SUBSCRIBED, State.CLOSING)
_ANY = tuple(State)

_HANDLERS: dict[type[wire.WireCommand], tuple[Callable[[Connection, Any], None], str, bool, tuple[State, ...]]] = {
    wire.Identify: (Connection._identify, "IDENTIFY", True, _INIT),
    wire.Auth: (Connection._auth, "AUTH", True, _INIT),
    wire.Subscribe: (Connection._subscribe, "SUB", True, _INIT),
    wire.Publish: (Connection._publish, "PUB", False, _ANY),
    wire.Ready: (Connection._ready, "RDY", False, _SUBSCRIBED),
    wire.Finish: (Connection._finish, "FIN", False, _SUBSCRIBED),
    wire.Touch: (Connection._touch, "TOUCH", False, _SUBSCRIBED),
    wire.Requeue: (Connection._requeue, "REQ", False, _SUBSCRIBED),
    wire.UnknownId: (Connection._unknown_id, "FIN", True, _ANY),
    wire.Close: (Connection._close, "CLS", True, (State.SUBSCRIBED,)),
    wire.Nop: (Connection._nop, "NOP", False, _ANY),
    wire.Invalid: (Connection._invalid, "", True, _ANY),
}
"""What handles a command, its name, whether it waits until everything before it is answered, and when it may come."""
