"""uvicorn's websocket, with a short way through it: frames are heard, and written, without a task in between.

An ASGI application is handed every frame through a queue and a task, and the socket is told to stop and to go on
reading for each. That costs more than most commands do. So who serves a connection may ask to hear binary frames
itself (`hear`), in the turn of the loop in which they came, and may write frames at once while the client reads them.
Everything else goes the long way: text, the connection's end, and whatever comes while nobody hears. Frames keep their
order, since none takes the short way while others are still in the queue.

Such frames are read and made without the `websockets` library as well (see `penstock.wire.frames`). It is given the
handshake, and all frames that are not plain.

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
from collections.abc import Callable
from typing import Any, ClassVar

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State

from penstock.server.budget import BUSY, GROWTH_BYTES, GROWTH_TIMEOUT_S, UNKNOWN_BYTES_MAX, Budget, Pace, Share
from penstock.wire.frames import Frames, binary_frame, binary_head

_OPEN = State.OPEN
CONNECTION = "penstock.websocket"
"""Where a scope has its connection."""
LINGER_S = 5.0
"""How long a client that has said its last, or is not there any more, may take to read what was written to it."""
FRAMES_AT_ONCE = 64
UNKNOWN_FRAMES_MAX = 64
FRAGMENTS_MAX = 4_096
"""Of one message."""
PONGS_UNREAD_MAX = 100
"""Answers to the pings of a client that does not read."""
_LARGE_BYTES = 64 * 1024
"""A frame from which on it costs less to write its head by itself than to copy it."""
_REFUSED, _BUSY = 1008, 1013
_NO_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(WebSocketsSansIOProtocol):
    """One websocket."""

    budget: ClassVar[Budget]
    handshake_timeout_s: ClassVar[float]
    hear: Callable[[bytes], None] | None = None
    """Takes a binary frame. None: frames go to the application's queue."""
    is_admitted = False
    """The client has said who it is: `admit`."""
    _frames: Frames | None = None
    """What comes after the handshake; None before it."""
    _is_asked = False
    """The request for the upgrade has come: uvicorn's HTTP side hands it over in one piece."""
    _later = b""
    """What was read, and is not heard yet."""
    _is_reading = True
    _pongs_unread = 0
    _unread_bytes = 0
    """Held for answers that the client does not read."""
    _read_bytes = 0
    """Since the handshake."""
    _alive_bytes = -1
    """As many were read when the client was last asked whether it is alive; -1: nothing was read from it since."""
    _handshake_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.share: Share = self.budget.share()
        """For the message that is being read."""
        self.answers: Share = self.budget.share()
        """For answers, from the asking to the reading."""
        self._pace = Pace(self.budget, lambda: self._read_bytes, self._come_too_slowly)
        self._bytes_max = self.conn.max_message_size or 0
        self.conn.max_message_size = min(self._bytes_max, UNKNOWN_BYTES_MAX)

    def handle_connect(self, event: Request) -> None:
        """The upgrade was asked for."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            scope: Any = self.scope
            scope[CONNECTION] = self

    def start_keepalive(self) -> None:
        """The handshake is done: now there are frames."""
        super().start_keepalive()
        self._stop_handshake_timer()
        self._frames = Frames(masked=True, bytes_max=UNKNOWN_BYTES_MAX)
        self._go_on()

    def admit(self) -> None:
        """The client has said who it is, and may send what others may not."""
        self.is_admitted = True
        self.conn.max_message_size = self._bytes_max
        if self._frames is not None:
            self._frames.allow(self._bytes_max)

    # -- what comes --

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if not self._is_asked:
            self._is_asked = True
            self._handshake_timer = self.loop.call_later(self.handshake_timeout_s, self.transport.abort)
            super().data_received(data)
            if self.conn.handshake_exc is not None and not self.close_sent:
                self._refuse_handshake()
            return
        if self._frames is None and self.transport.is_closing():
            return
        self._read_bytes += len(data)
        if self._later or self._frames is None or self._is_blocked:
            self._later += data
        else:
            self._take(data)
        self._mind_reading()

    def _refuse_handshake(self) -> None:
        """The library does not take the request: most often it has made an answer, which nobody else writes."""
        self.handshake_complete = self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()) or _NO_HANDSHAKE)
        self.transport.close()

    def _stop_handshake_timer(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None

    def _take(self, data: bytes) -> None:
        frames = self._frames
        assert frames is not None
        payloads, now, self._later = frames.split(data, FRAMES_AT_ONCE)
        for payload in payloads:
            self._heard(payload)
        if now:
            super().data_received(now)
        if self.close_sent or self.transport.is_closing():
            self._later = b""
        elif not self.is_admitted and frames.count > UNKNOWN_FRAMES_MAX:
            self.refuse(_REFUSED, "a Hello has to come first, in one frame")
        elif frames.fragments > FRAGMENTS_MAX:
            self.refuse(_REFUSED, f"a message may have {FRAGMENTS_MAX} fragments: send it in larger ones, or whole")
        else:
            self._make_room(frames.message_bytes)
        if self._later:
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Hear some more of what was read."""
        if self._later and self._frames is not None and not self._is_blocked:
            data, self._later = self._later, b""
            self._take(data)
        self._mind_reading()

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

    def _room_came(self) -> None:
        self._pace.start()
        self._go_on()

    def _find_no_room(self) -> None:
        self.refuse(_BUSY, BUSY)

    def _come_too_slowly(self) -> None:
        self.refuse(_REFUSED, self._pace.reason)

    @property
    def _is_blocked(self) -> bool:
        """Whether what comes next has to wait: for the application, or for room."""
        return self.read_paused or self.share.is_waiting

    def _mind_reading(self) -> None:
        """Nothing is read while something is still to be heard."""
        wanted = not self._later and not self._is_blocked
        if wanted != self._is_reading and not self.transport.is_closing():
            self._is_reading = wanted
            self._alive_bytes = -1
            (self.transport.resume_reading if wanted else self.transport.pause_reading)()

    async def receive(self) -> Any:
        """For the application: the next message."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._is_reading = False
            self._go_on()
        return message

    def _heard(self, payload: bytes) -> None:
        hear = self.hear
        if hear is None or self.close_sent or not self.queue.empty():
            super().handle_bytes(Frame(Opcode.BINARY, payload))
        else:
            hear(payload)

    def handle_bytes(self, event: Frame) -> None:
        """A binary frame came the long way; one that is only the beginning of a message goes on so, with the rest."""
        if event.fin:
            self._heard(bytes(event.data))
        else:
            super().handle_bytes(event)

    def handle_ping(self) -> None:
        """A ping came. Who does not read may ask only so often."""
        super().handle_ping()
        if not self.writable.is_set():
            self._pongs_unread += 1
            if self._pongs_unread > PONGS_UNREAD_MAX:
                self.refuse(_REFUSED, "pings are not answered to who does not read the answers")

    # -- what leaves --

    @property
    def can_write(self) -> bool:
        """Whether a frame can be written at once."""
        return (
            self.writable.is_set()
            and not self.close_sent
            and self.conn.state is _OPEN
            and not self.transport.is_closing()
        )

    def write(self, frame: bytes) -> None:
        """Write a binary frame; only while `can_write`."""
        if len(frame) < _LARGE_BYTES:
            self.transport.write(binary_frame(frame))
        else:
            self.transport.writelines((binary_head(len(frame)), frame))

    def pause_writing(self) -> None:
        """The client does not read: what lies there counts."""
        super().pause_writing()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self.answers.hold(self._unread_bytes)

    def resume_writing(self) -> None:
        """The client has read."""
        self._pongs_unread = 0
        self._let_go_of_unread()
        super().resume_writing()

    def _let_go_of_unread(self) -> None:
        self.answers.let_go(self._unread_bytes)
        self._unread_bytes = 0

    # -- the end --

    def refuse(self, code: int, reason: str) -> None:
        """End the connection, and say why."""
        self._later = b""
        self._pace.stop()
        self.share.close()
        if not self.close_sent and not self.transport.is_closing():
            self.conn.fail(code, reason)
            self.handle_parser_exception()
            self._end_soon()

    def eof_received(self) -> None:
        """The client has said its last."""
        self._end_soon()

    def send_keepalive_ping(self) -> None:
        """Ask the client whether it is alive."""
        super().send_keepalive_ping()
        self._alive_bytes = self._read_bytes if self._is_reading else -1

    def keepalive_timeout(self) -> None:
        """The client has not said that it is alive. It is, if it sends: its answer comes behind that, or was not read,
        because there was no room for what is before it."""
        if self._read_bytes != self._alive_bytes or not self._is_reading:
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self._end_soon()

    def _end_soon(self) -> None:
        """Not over while something waits to be written; and until then the client has what it has received."""
        if self.close_timer is None:
            self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over. What was read is let go of here: these objects know each other, and may live on for a while."""
        super().connection_lost(exc)
        self._stop_handshake_timer()
        self._pace.stop()
        self._later = b""
        self.frames = []
        self.conn.reader.buffer.clear()
        self.share.close()
        self.answers.close()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The application is done: nobody takes what is left in the queue."""
        super().on_task_complete(task)
        while not self.queue.empty():
            self.queue.get_nowait()
