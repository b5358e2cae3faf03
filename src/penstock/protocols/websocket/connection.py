"""uvicorn's websocket, with a short way through it: frames are heard, and written, without a task in between.

An ASGI application is handed every frame through a queue and a task, and the socket is told to stop and to go on
reading for each. That costs more than most commands do. So who serves a connection may ask to hear binary frames
itself (`hear`), in the turn of the loop in which they came, and may write frames at once while the client reads them.
Everything else goes the long way: text, the connection's end, and whatever comes while nobody hears. Frames keep their
order, since none takes the short way while others are still in the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State

CONNECTION = "penstock.websocket"
"""Where a scope has its connection."""


class Connection(WebSocketsSansIOProtocol):
    """One websocket."""

    hear: Callable[[bytes], None] | None = None
    """Takes a binary frame. None: frames go to the application's queue."""

    def handle_connect(self, event: Request) -> None:
        """The upgrade was asked for."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            scope: Any = self.scope
            scope[CONNECTION] = self

    def handle_bytes(self, event: Frame) -> None:
        """A binary frame came; one that is only the beginning of a message goes the long way, as will the rest."""
        hear = self.hear
        if hear is None or not event.fin or self.close_sent or not self.queue.empty():
            super().handle_bytes(event)
        else:
            hear(bytes(event.data))

    @property
    def can_write(self) -> bool:
        """Whether a frame can be written at once."""
        return (
            self.writable.is_set()
            and not self.close_sent
            and self.conn.state is State.OPEN
            and not self.transport.is_closing()
        )

    def write(self, frame: bytes) -> None:
        """Write a binary frame; only while `can_write`."""
        self.conn.send_binary(frame)
        self.transport.write(b"".join(self.conn.data_to_send()))
