"""uvicorn's websocket, with a short way through it: frames are heard, and written, without a task in between.

An ASGI application is handed every frame through a queue and a task, and the socket is told to stop and to go on
reading for each. That costs more than most commands do. So who serves a connection may ask to hear binary frames
itself (`hear`), in the turn of the loop in which they came, and may write frames at once while the client reads them.
Everything else goes the long way: text, the connection's end, and whatever comes while nobody hears. Frames keep their
order, since none takes the short way while others are still in the queue.

Such frames are read and made without the `websockets` library as well (see `penstock.wire.frames`). It is given the
handshake, and all frames that are not plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State

from penstock.wire.frames import Frames, binary_frame

_OPEN = State.OPEN
_HEAD_END = b"\r\n\r\n"
CONNECTION = "penstock.websocket"
"""Where a scope has its connection."""
LINGER_S = 5.0
"""How long a client that has said its last, or is not there any more, may take to read what was written to it."""


class Connection(WebSocketsSansIOProtocol):
    """One websocket."""

    hear: Callable[[bytes], None] | None = None
    """Takes a binary frame. None: frames go to the application's queue."""
    _frames: Frames | None = None
    """What comes after the handshake; None before it."""
    _is_asked = False
    """The request for the upgrade has come: uvicorn's HTTP side hands it over in one piece."""
    _is_early = False
    """More came before it was answered, and where in that a frame begins is not known: all goes the long way."""

    def handle_connect(self, event: Request) -> None:
        """The upgrade was asked for."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            scope: Any = self.scope
            scope[CONNECTION] = self

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        is_open, frames = self.conn.state is _OPEN, self._frames
        if frames is None and is_open and not self._is_early:
            frames = self._frames = Frames(masked=True, bytes_max=self.config.ws_max_size)
        if frames is None or not is_open:
            self._is_early = self._is_early or self._is_asked or not data.endswith(_HEAD_END)
            self._is_asked = True
            super().data_received(data)
            return
        payloads, rest = frames.split(data)
        for payload in payloads:
            self._heard(payload)
        if rest:
            super().data_received(rest)

    def eof_received(self) -> None:
        """The client has said its last."""
        self._end_soon()

    def keepalive_timeout(self) -> None:
        """The client has not said that it is alive."""
        super().keepalive_timeout()
        self._end_soon()

    def _end_soon(self) -> None:
        """Not over while something waits to be written; and until then the client has what it has received."""
        if self.close_timer is None:
            self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def handle_bytes(self, event: Frame) -> None:
        """A binary frame came the long way; one that is only the beginning of a message goes on so, with the rest."""
        if event.fin:
            self._heard(bytes(event.data))
        else:
            super().handle_bytes(event)

    def _heard(self, payload: bytes) -> None:
        hear = self.hear
        if hear is None or self.close_sent or not self.queue.empty():
            super().handle_bytes(Frame(Opcode.BINARY, payload))
        else:
            hear(payload)

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
        self.transport.write(binary_frame(frame))
