"""One websocket: frames are heard, and written, without a task in between.

Who serves a connection may ask to hear binary frames itself (`hear`), in the turn of the loop in which they came, and
may write frames at once while the client reads them. Everything else goes the long way, through `receive`: text, the
connection's end, and whatever comes while nobody hears. Frames keep their order, since none takes the short way while
others still wait to be received.

Plain frames are read and made in a few lines (see `penstock.wire.frames`). All others, pings and the closing are left
to the `websockets` library's protocol without I/O.

What a client may cost:

- In one turn of the loop, `FRAMES_AT_ONCE` frames: an empty one costs as much time as any other, and a single read may
  hold forty thousand. The rest is kept, nothing is read meanwhile, and it is the others' turn.
- A message that does not come at once has to be claimed from the budget (see `penstock.server.budget`) before it is
  read; the connection is not read from until there is room. Without any for `room_timeout_s` it is closed; so it is
  if the message then comes too slowly.
- A stranger, who has not been admitted yet, may send one message of `UNKNOWN_BYTES_MAX` in `UNKNOWN_FRAMES_MAX` frames.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from penstock.server.budget import BUSY, GROWTH_BYTES, GROWTH_TIMEOUT_S, UNKNOWN_BYTES_MAX, Budget, Pace, Share
from penstock.server.settings import WebsocketSettings
from penstock.server.tasks import READ_FIRST_S, STOOD_STILL_S
from penstock.wire.frames import SHORT_HEADS, Frames, frame_head

log = logging.getLogger("penstock.websocket")

_OPEN = State.OPEN
LINGER_S = 5.0
"""How long a client that has said its last, or is not there any more, may take to read what was written to it."""
_CLOSE_TIMEOUT_S = 10.0
"""How long a client may take to answer the end of the conversation with its own."""
FRAMES_AT_ONCE = 64
UNKNOWN_FRAMES_MAX = 64
FRAGMENTS_MAX = 4_096
"""Of one message."""
PONGS_UNREAD_MAX = 100
"""Answers to the pings of a client that does not read."""
_LARGE_BYTES = 64 * 1024
"""A frame from which on it costs less to write its head by itself than to copy it."""
_REFUSED, _DEAD, _RESTART, _BUSY = 1008, 1011, 1012, 1013
_REASON_BYTES_MAX = 120


class Connection:
    """One websocket, from its handshake's answer on: an asyncio protocol."""

    __slots__ = (
        "_alive_bytes",
        "_bytes_max",
        "_close_timer",
        "_conn",
        "_fragments",
        "_frames",
        "_handshake",
        "_is_over",
        "_is_reading",
        "_is_text",
        "_later",
        "_loop",
        "_messages",
        "_on_lost",
        "_pace",
        "_ping",
        "_ping_timer",
        "_pongs_unread",
        "_read_bytes",
        "_serve",
        "_settings",
        "_task",
        "_transport",
        "_unread_bytes",
        "_waiter",
        "answers",
        "close_sent",
        "hear",
        "is_admitted",
        "share",
        "writable",
    )

    def __init__(
        self,
        settings: WebsocketSettings,
        budget: Budget,
        handshake: bytes,
        serve: Callable[[Connection], Coroutine[Any, Any, None]],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self._settings = settings
        self._handshake = handshake
        self._serve = serve
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._task: asyncio.Task[None] | None = None
        self._bytes_max = settings.frame_bytes_max
        self._conn = ServerProtocol(state=_OPEN, max_size=min(self._bytes_max, UNKNOWN_BYTES_MAX))
        self._frames = Frames(masked=True, bytes_max=UNKNOWN_BYTES_MAX)
        self.hear: Callable[[bytes], None] | None = None
        """Takes a binary frame. None: it has to be received."""
        self.is_admitted = False
        """The client has said who it is: `admit`."""
        self.share: Share = budget.share()
        """For the message that is being read."""
        self.answers: Share = budget.share()
        """For answers, from the asking to the reading."""
        self._pace = Pace(budget, lambda: self._read_bytes, self._come_too_slowly)
        self._read_bytes = 0
        """Since the handshake."""
        self._alive_bytes = -1
        """As many were read when the client was last asked whether it is alive; -1: nothing was read from it since."""
        self.writable = asyncio.Event()
        self.writable.set()
        self.close_sent = False
        self._is_over = False
        """Nothing is to be received any more but what has come."""
        self._messages: deque[bytes | str] = deque()
        """What has come the long way."""
        self._waiter: asyncio.Future[None] | None = None
        self._fragments: list[bytes] = []
        self._is_text = False
        self._later = b""
        """What was read, and is not heard yet."""
        self._is_reading = True
        self._pongs_unread = 0
        self._unread_bytes = 0
        """Held for answers that the client does not read."""
        self._ping = b""
        """What was asked, and is to come back."""
        self._ping_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None

    def take_over(self, transport: asyncio.Transport, data: bytes) -> None:
        """The connection speaks websocket from now on; so much has come already."""
        self._transport = transport
        transport.write(self._handshake)
        self._handshake = b""
        self._ping_later()
        self._task = self._loop.create_task(self._run())
        if data:
            self.data_received(data)

    async def _run(self) -> None:
        try:
            await self._serve(self)
        except Exception:
            log.exception("a websocket failed")
        self._messages.clear()
        if self._close_timer is None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It was made before: `take_over`."""

    @property
    def is_over(self) -> bool:
        """Whether the client is gone, or as good as gone."""
        return self._is_over

    def admit(self) -> None:
        """The client has said who it is, and may send what others may not."""
        self.is_admitted = True
        self._conn.max_message_size = self._bytes_max
        self._frames.allow(self._bytes_max)

    # -- what comes --

    def data_received(self, data: bytes) -> None:
        self._read_bytes += len(data)
        if self._later or self._messages or self.share.is_waiting:
            self._later += data
            self._apply_backpressure()
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        frames = self._frames
        payloads, others, self._later = frames.split(data, FRAMES_AT_ONCE)
        for payload in payloads:
            if self.hear is None or self.close_sent or self._messages:
                self._put(payload)
            else:
                self.hear(payload)
        if others:
            self._parse(others)
        if self.close_sent or self._transport.is_closing():
            self._later = b""
        elif not self.is_admitted and frames.count > UNKNOWN_FRAMES_MAX:
            self.refuse(_REFUSED, "a Hello has to come first, in one frame")
        elif frames.fragments > FRAGMENTS_MAX:
            self.refuse(_REFUSED, f"a message may have {FRAGMENTS_MAX} fragments: send it in larger ones, or whole")
        elif frames.message_bytes or self.share.held_bytes:
            self._make_room(frames.message_bytes)
        if self._later:
            self._loop.call_soon(self._go_on)
        if self._later or self._messages:
            self._apply_backpressure()

    def _parse(self, data: bytes) -> None:
        """Whatever is no plain frame."""
        self._conn.receive_data(data)
        if self._conn.parser_exc is not None:
            self._end_with_its_words()
            return
        for event in self._conn.events_received():
            assert isinstance(event, Frame)
            if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._message_came(event)
            elif event.opcode is Opcode.PING:
                self._ping_came()
            elif event.opcode is Opcode.PONG:
                if self._ping and bytes(event.data) == self._ping:
                    self._ping_later()
            else:
                self._close_came()

    def _message_came(self, frame: Frame) -> None:
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            message, self._fragments = b"".join(self._fragments), []
            if self._is_text:
                self._put(message.decode("utf-8", "replace"))
            elif self.hear is None or self.close_sent or self._messages:
                self._put(message)
            else:
                self.hear(message)

    def _put(self, message: bytes | str) -> None:
        if not self.close_sent:
            self._messages.append(message)
            self._wake()

    async def receive(self) -> bytes | str | None:
        """The next message that nobody hears; None when the client is gone."""
        while not self._messages:
            if self._is_over:
                return None
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._messages.popleft()
        if not self._messages:
            self._go_on()
        return message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _go_on(self) -> None:
        """Hear some more of what was read."""
        if self._later and not self._messages and not self.share.is_waiting:
            data, self._later = self._later, b""
            self._take(data)
        self._apply_backpressure()

    def _make_room(self, message_bytes: int) -> None:
        """A message has begun that is so long: read on when there is room for it."""
        claimed = self.share.held_bytes
        if not message_bytes:
            if claimed:
                self.share.let_go(claimed)
                self._pace.stop()
        elif message_bytes > claimed and self.is_admitted and not self.share.is_waiting:
            wanted = max(message_bytes - claimed, min(GROWTH_BYTES, self._bytes_max))
            if self.share.claim(wanted, self._room_came, self._find_no_room, GROWTH_TIMEOUT_S if claimed else None):
                self._pace.start()
            else:
                self._pace.stop()
                self._apply_backpressure()

    def _room_came(self) -> None:
        self._pace.start()
        self._go_on()

    def _find_no_room(self) -> None:
        self.refuse(_BUSY, BUSY)

    def _come_too_slowly(self) -> None:
        self.refuse(_REFUSED, self._pace.reason)

    def _apply_backpressure(self) -> None:
        """Nothing is read while something is still to be heard: it waits for who receives, or for room."""
        wanted = not (self._later or self._messages or self.share.is_waiting)
        if wanted != self._is_reading and not self._transport.is_closing():
            self._is_reading = wanted
            self._alive_bytes = -1
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    # -- whether the client is alive --

    def _ping_later(self) -> None:
        self._ping = b""
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._ping_timer = self._loop.call_later(self._settings.heartbeat_s, self._ask)

    def _ask(self) -> None:
        """Ask for a sign of life. The client has as long to answer."""
        if self.close_sent or self._transport.is_closing():
            return
        self._ping = os.urandom(4)
        self._conn.send_ping(self._ping)
        self._write_its_words()
        self._alive_bytes = self._read_bytes if self._is_reading else -1
        due_s = self._loop.time() + self._settings.heartbeat_s
        self._ping_timer = self._loop.call_at(due_s, self._no_sign, due_s)

    def _no_sign(self, due_s: float) -> None:
        """The client has not said that it is alive. It is, if it sends: its answer comes behind that, or was not read,
        because there was no room for what is before it."""
        if self._read_bytes != self._alive_bytes or not self._is_reading:
            self._ping_later()
        elif self._loop.time() - due_s > STOOD_STILL_S:  # this process stood still: what has come is read first
            due_s = self._loop.time() + READ_FIRST_S
            self._ping_timer = self._loop.call_at(due_s, self._no_sign, due_s)
        else:
            self.refuse(_DEAD, "keepalive ping timeout")

    def _ping_came(self) -> None:
        """Who does not read may ask only so often."""
        self._write_its_words()
        if not self.writable.is_set():
            self._pongs_unread += 1
            if self._pongs_unread > PONGS_UNREAD_MAX:
                self.refuse(_REFUSED, "the client sends pings and does not read the answers")

    # -- what leaves --

    @property
    def can_write(self) -> bool:
        return (
            self.writable.is_set()
            and not self.close_sent
            and self._conn.state is _OPEN
            and not self._transport.is_closing()
        )

    def write(self, frame: bytes) -> None:
        length = len(frame)
        head = SHORT_HEADS[length] if length < len(SHORT_HEADS) else frame_head(length)
        if len(frame) < _LARGE_BYTES:
            self._transport.write(head + frame)
        else:
            self._transport.writelines((head, frame))

    async def send(self, frame: bytes) -> None:
        """Write a binary frame when the client has read enough; `OSError` if it is gone."""
        await self.writable.wait()
        if not self.can_write:
            raise ConnectionResetError("the client is gone")
        self.write(frame)

    def _write_its_words(self) -> None:
        """What the library wants to say."""
        data = b"".join(self._conn.data_to_send())
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        """The client does not read: what lies there counts."""
        self.writable.clear()
        self._unread_bytes = self._transport.get_write_buffer_size()
        self.answers.hold(self._unread_bytes)

    def resume_writing(self) -> None:
        self._pongs_unread = 0
        self.answers.let_go(self._unread_bytes)
        self._unread_bytes = 0
        self.writable.set()

    # -- the end --

    def close(self, code: int, reason: str) -> None:
        """End the conversation in order: the client has a moment to answer."""
        if self.close_sent or self._transport.is_closing() or self._conn.state is not _OPEN:
            return
        self._conn.send_close(code, reason.encode()[:_REASON_BYTES_MAX].decode("utf-8", "ignore"))
        self._write_its_words()
        self._later = b""
        self._messages.clear()
        self._end()
        self._close_timer = self._loop.call_later(_CLOSE_TIMEOUT_S, self._transport.abort)
        self._apply_backpressure()

    def _close_came(self) -> None:
        """The client ends it, or answers our end."""
        self._write_its_words()
        self._end()
        self._transport.close()
        self._abort_later()

    def refuse(self, code: int, reason: str) -> None:
        """End the connection, and say why."""
        self._later = b""
        self._pace.stop()
        self.share.close()
        if not self.close_sent and not self._transport.is_closing():
            self._conn.fail(code, reason)
            self._end_with_its_words()

    def _end_with_its_words(self) -> None:
        self._write_its_words()
        self._end()
        self._transport.close()
        self._abort_later()

    def shut_down(self) -> None:
        """The server stops."""
        if not self.close_sent and self._conn.state is _OPEN:
            self._conn.send_close(_RESTART)
            self._write_its_words()
        self._end()
        self._transport.close()
        self._abort_later()

    def leave(self) -> None:
        self._transport.abort()

    def _end(self) -> None:
        self.close_sent = self._is_over = True
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._wake()

    def _abort_later(self) -> None:
        """Not over while something waits to be written; and until then the client has what it has received."""
        if self._close_timer is None:
            self._close_timer = self._loop.call_later(LINGER_S, self._transport.abort)

    def eof_received(self) -> None:
        """The client has said its last."""
        self._abort_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over. What was read is let go of here: these objects know each other, and may live on for a while."""
        self._end()
        self.writable.set()
        self._pace.stop()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._later = b""
        self._fragments = []
        self._conn.reader.buffer.clear()
        self.share.close()
        self.answers.close()
        self._on_lost(self)
