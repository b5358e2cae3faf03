"""Connections leave file descriptors for the others: the store, its applier, the log, and the next connection.

A process has so many descriptors (`ulimit -n`; a server raises its limit as far as it may). A part of them is kept:
connections that would take from it are refused, whichever front end they come to. Nothing is counted for that: the
system always gives the lowest number that is free, so a connection's own number says how many are in use.

Of the part that is kept, one half is for those who are refused and have not left yet; above it, they are cut off at
once. New connections come in bursts, all in one turn of the loop before anybody can refuse them, so bursts are bounded,
too: by the length of the line before each listener.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import Final

log = logging.getLogger("penstock.server")

FEWEST: Final = 128
"""With fewer, hardly anybody could connect."""
KEPT_MIN: Final = 64
_KEPT_SHARE: Final = 8
_BURST_SHARE: Final = 8
_BURST_MIN: Final = 4
_WARN_S: Final = 30.0

FITS: Final = 0
REFUSED: Final = 1
CUT_OFF: Final = 2

NO_ROOM: Final = (
    "the server has no file descriptor left for a connection: try again later, or raise its limit of open files "
    "(ulimit -n)"
)

_warned_s = -_WARN_S


def kept(limit: int) -> int:
    """How many of a limit are not for connections.

    >>> kept(150), kept(4096)
    (64, 512)
    """
    return max(KEPT_MIN, limit // _KEPT_SHARE)


def backlog(wanted: int) -> int:
    """How many connections may wait before a listener, and so come at once."""
    return min(wanted, max(_BURST_MIN, kept(_limit()) // _BURST_SHARE))


def room_for(transport: asyncio.BaseTransport) -> int:
    """Whether a new connection fits, is to be refused, or is to be cut off at once."""
    global _warned_s
    limit, socket = _limit(), transport.get_extra_info("socket")
    number = -1 if socket is None else socket.fileno()
    if number < limit - kept(limit):
        return FITS
    now_s = time.monotonic()
    if now_s - _warned_s >= _WARN_S:
        _warned_s = now_s
        log.warning("%d of %d file descriptors are in use: connections are refused; raise ulimit -n", number, limit)
    return REFUSED if number < limit - kept(limit) // 2 else CUT_OFF


def _limit() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if limit > 0 else 1 << 30
