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
import os
import resource
import ssl
import time
from typing import Any, Final

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

TLS_HANDSHAKE_S: Final = 10.0
"""How long a client has, on every port, to agree on how to encrypt."""

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
    limit, socket = _limit(), transport.get_extra_info("socket")
    number = -1 if socket is None else socket.fileno()
    if number < limit - kept(limit):
        return FITS
    _warn(number, limit)
    return REFUSED if number < limit - kept(limit) // 2 else CUT_OFF


class TlsContext(ssl.SSLContext):
    """A server's side of TLS, which begins no handshake while descriptors are short.

    A connection is shown to its protocol after the handshake, and many clients never make one. So it is looked at here,
    too. Nothing says which connection it is, and so what is in use is counted; but only if the next number is so high
    that this can matter.
    """

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Begin a handshake."""
        number, limit = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), _limit()
        os.close(number)
        if number >= (limit - kept(limit)) // 2 and (used := _used(number)) >= limit - kept(limit) // 2:
            _warn(used, limit)
            raise ssl.SSLError("no file descriptor is left for this connection")
        return super().wrap_bio(*arguments, **options)


def _used(fewest: int) -> int:
    """How many descriptors are in use; where the system does not say that, so many at least."""
    try:
        return max(fewest, len(os.listdir("/proc/self/fd")) - 1)
    except FileNotFoundError:
        return fewest


def _warn(number: int, limit: int) -> None:
    global _warned_s
    now_s = time.monotonic()
    if now_s - _warned_s >= _WARN_S:
        _warned_s = now_s
        log.warning("%d of %d file descriptors are in use: connections are refused; raise ulimit -n", number, limit)


def _limit() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if limit > 0 else 1 << 30
