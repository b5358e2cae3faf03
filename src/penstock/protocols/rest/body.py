"""A request's body, read within its limits: its size, its time, and what all connections may hold together.

Before anybody asks for it, uvicorn keeps 64 KiB of a body, and does not read on. So callers are checked first: the body
of one that is not admitted costs no more than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from penstock.core.errors import PenstockError
from penstock.protocols.rest.problems import RestError
from penstock.server.budget import BUSY, GROWTH_BYTES, GROWTH_TIMEOUT_S, Budget, NoRoom, Pace, Share

_DIGITS_MAX = 20
"""Of a length: more are zeros in front, and nobody's."""
_CLOSE = (b"connection", b"close")


class BodyLeft(Exception):
    """The client has hung up before its body was there."""


def no_room() -> PenstockError:
    """There is no room for a body, or for an answer."""
    return RestError(
        503,
        "no_room",
        f"{BUSY}, or raise [server] buffer_bytes_max",
        ((b"retry-after", b"1"), _CLOSE),
    )


def too_large(bytes_max: int) -> PenstockError:
    """A body is larger than it may be."""
    return RestError(413, "body_too_large", f"a body may have {bytes_max} bytes: send less at a time", (_CLOSE,))


async def read_body(
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    announced: str | None,
    share: Share,
    *,
    bytes_max: int,
    seconds: float,
    too_large: Callable[[int], PenstockError] = too_large,
) -> bytes:
    """The body of a request, which has announced this length. What it holds of the budget stays held."""
    if announced and len(announced) > _DIGITS_MAX:
        raise too_large(bytes_max)
    length = int(announced) if announced and announced.isascii() and announced.isdigit() else 0
    if length > bytes_max:
        raise too_large(bytes_max)
    parts: list[bytes] = []
    size, room_bytes, is_out_of_room = 0, 0, False
    try:
        async with paced(share.budget, lambda: size, seconds) as pace:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise BodyLeft
                part = message.get("body", b"")
                size += len(part)
                if size > bytes_max:
                    raise too_large(bytes_max)
                parts.append(part)
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
                if size > room_bytes or not room_bytes:
                    more_bytes = max(length - room_bytes, size - room_bytes, 0 if length else GROWTH_BYTES)
                    pace.stop()
                    is_out_of_room = True
                    await share.claimed(more_bytes, GROWTH_TIMEOUT_S if room_bytes else None)
                    is_out_of_room = False
                    room_bytes += more_bytes
                    pace.start()
    except NoRoom:
        raise no_room() from None
    except RestError as error:
        raise (no_room() if is_out_of_room and error.status == 408 else error) from None


@asynccontextmanager
async def paced(budget: Budget, received: Callable[[], int], seconds: float | None = None) -> AsyncIterator[Pace]:
    """A body is read here: 408 if it takes longer, or, from when the pace is started, comes too slowly."""
    pace: Pace | None = None
    late = f"the body took longer than {seconds:g} s" if seconds else ""

    def hurry() -> None:
        nonlocal late
        assert pace is not None
        late = pace.reason
        limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(seconds) as limit:
            pace = Pace(budget, received, hurry)
            try:
                yield pace
            finally:
                pace.stop()
    except TimeoutError:
        raise RestError(408, "body_timeout", late, (_CLOSE,)) from None
