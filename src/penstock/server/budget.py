"""What all connections together may hold in memory: requests that are being read, and answers that nobody reads yet.

How it works. A process has one budget, and each connection has a share of it. Before a connection reads a large
request, its share *claims* the whole request. If there is no room, the connection does not read on until there is some,
and TCP holds the client back.

A request has all the room that it needs before its body is read. So whoever is reading gets done, and the next ones
after it. A body whose length is not announced claims as it grows. Several such bodies may come to wait for each other,
so one that holds something and waits for more is refused after `GROWTH_TIMEOUT_S`. One that holds nothing is refused
after `room_timeout_s`: it is told to try again.

Whose turn it is. There are two lines, for short claims and for long ones, and each is served in order:

    short   1/8 of the budget is theirs; 3/4 while no long claim waits
    long    3/4 of the budget; one that needs more than that gets it when no more than 1/4 is held

So long claims do not keep short ones waiting, and any number of short ones does not keep a long one from its turn.

What is in memory already, such as an answer, is *held* without asking. Above the limit no further request is begun,
because its answer might not be read either: who wants to begin one claims 0 bytes, and waits. Claims leave some of the
budget free, so that bodies alone keep nobody from beginning.

A body for which room is held has to come, with `body_bytes_per_s_min` in every `PACE_S` (`Pace`). Else a byte a second
would be enough to keep the room from others.

A client that was refused may still be sending its request. It is read from, so that it hears the reason, and what it
sends is thrown away; but seldom, and many such clients together no faster than one (`linger`).

Memory goes back to the system. The C library keeps freed pieces for later. After much was held and let go of, it is
told to return them (`_trim`).

Only authenticated clients use the budget. Of all others a protocol takes at most `UNKNOWN_BYTES_MAX`, which is enough
to say who they are. One exception: SQS signs bodies, so a body has to be read to see whose it is. Such bodies share a
small budget of their own (`unauthenticated`), until something that came over the same connection was signed well.

Connections leave file descriptors for the others: the store, its applier, the log, and the next connection.

A process has so many descriptors (`ulimit -n`; a server raises its limit as far as it may). A part of them is kept:
connections that would take from it are refused, whichever front end they come to. Nothing is counted for that: the
system always gives the lowest number that is free, so a connection's own number says how many are in use.

Of the part that is kept, one half is for those who are refused and have not left yet; above it, they are cut off at
once. New connections come in bursts, all in one turn of the loop before anybody can refuse them, so bursts are bounded,
too: by the length of the line before each listener.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from penstock.server.settings import ServerSettings

UNKNOWN_BYTES_MAX = 16 * 1024
"""The largest message of a client that has not said who it is: an introduction, and a token."""
GROWTH_BYTES = 256 * 1024
"""How much is claimed at a time for what has no known length; and the longest claim that is called short."""
GROWTH_TIMEOUT_S = 3.0
PACE_S = 10.0
"""How often it is looked how much of a body has come."""
AT_ONCE_S = 0.1
"""A receive that waits for longer has found nothing, and needs no room for its answer any more."""
LINGER_PAUSE_S = 0.01
"""Between two reads of what refused clients send."""
MAKING_BYTES_MAX = 4 * 1024 * 1024
"""Some 25 ms of work: checksums, encoding."""
TRIM_BYTES = 16 * 1024 * 1024
"""Memory is given back after so much was held, and most of it let go of."""
TRIM_PAUSE_S = 1.0
SMALL_BYTES = 64 * 1024
"""Answers below this need not be claimed: transports take as much before they say that the client does not read."""
BUSY = "other requests and answers use all the memory for connections: try again later"

_DEFAULTS = ServerSettings()
_malloc_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""None where the C library has no such function, as on macOS."""


class Sized(Protocol):
    """A queue, as far as the size of its messages goes."""

    @property
    def messages(self) -> int:
        """How many it holds."""

    @property
    def size(self) -> int:
        """How many bytes they have together."""


def asked_bytes(queue: Sized | None, count: int, bytes_max: int) -> int:
    """About how large an answer will be with so many messages of a queue, if it has as many; 0 if it is small."""
    if queue is None or not queue.messages or count <= 0:
        return 0
    found = min(bytes_max, queue.size, count * queue.size // queue.messages)
    return found if found >= SMALL_BYTES else 0


class NoRoom(Exception):
    """No room came within the time that a request has."""


class Budget:
    """What the connections of a process hold together.

    >>> budget = Budget(100)
    >>> one, two = budget.share(), budget.share()
    >>> one.claim(60, print), two.claim(30, print), budget.held_bytes
    (True, False, 60)
    """

    __slots__ = (
        "_beginning",
        "_is_trim_planned",
        "_lingering",
        "_long",
        "_peak_bytes",
        "_short",
        "_short_held_bytes",
        "body_bytes_per_s_min",
        "bytes_max",
        "held_bytes",
        "making",
        "room_timeout_s",
        "short_bytes_max",
        "unauthenticated",
    )

    def __init__(
        self,
        bytes_max: int,
        room_timeout_s: float = _DEFAULTS.room_timeout_s,
        body_bytes_per_s_min: int = _DEFAULTS.body_bytes_per_s_min,
    ) -> None:
        self.bytes_max = bytes_max
        self.room_timeout_s = room_timeout_s
        self.body_bytes_per_s_min = body_bytes_per_s_min
        self.short_bytes_max = min(GROWTH_BYTES, bytes_max // 64)
        self.held_bytes = 0
        self._short_held_bytes = 0
        """By shares that hold no more than a short claim."""
        is_small = bytes_max <= MAKING_BYTES_MAX
        self.making: Budget = self if is_small else Budget(MAKING_BYTES_MAX, room_timeout_s, body_bytes_per_s_min)
        """For answers that are made one by one: so many bytes in a turn of the loop, and others are served between."""
        self.unauthenticated: Budget = (
            self if is_small else Budget(bytes_max // 8, room_timeout_s, body_bytes_per_s_min)
        )
        """For bodies that have to be read to see whose they are."""
        self._short: deque[Share] = deque()
        self._long: deque[Share] = deque()
        """Those with a claim, in the order in which they came."""
        self._beginning: deque[Share] = deque()
        """Those that claim nothing."""
        self._lingering = 0
        self._peak_bytes = 0
        """The most that was held since memory was last given back."""
        self._is_trim_planned = False

    def follow(self, room_timeout_s: float, body_bytes_per_s_min: int) -> None:
        """Other settings, for claims and bodies that begin now."""
        for budget in (self, self.making, self.unauthenticated):
            budget.room_timeout_s, budget.body_bytes_per_s_min = room_timeout_s, body_bytes_per_s_min

    def share(self) -> Share:
        """For one more connection."""
        return Share(self)

    @property
    def is_full(self) -> bool:
        """Whether no request should be begun."""
        return self.held_bytes >= self.bytes_max

    def linger(self, read_on: Callable[[], None]) -> None:
        """A client that was refused goes on sending: call this when it may be read from again."""
        self._lingering += 1
        asyncio.get_running_loop().call_later(LINGER_PAUSE_S * self._lingering, self._lingered, read_on)

    def _lingered(self, read_on: Callable[[], None]) -> None:
        self._lingering -= 1
        read_on()

    def _plan_trim(self) -> None:
        if not self._is_trim_planned:
            self._is_trim_planned = True
            asyncio.get_running_loop().call_later(TRIM_PAUSE_S, self._trim)

    def _trim(self) -> None:
        """Give memory back to the system, if it is still not needed."""
        self._is_trim_planned = False
        if self._peak_bytes >= TRIM_BYTES and self.held_bytes < TRIM_BYTES // 4:
            self._peak_bytes = self.held_bytes
            if _malloc_trim is not None:
                _malloc_trim(0)

    def _fits(self, nbytes: int, line: deque[Share]) -> bool:
        """One claim is always granted, however large: else a limit that is above the budget could never be reached."""
        held, most = self.held_bytes, self.bytes_max * 3 // 4
        if line is self._short:
            return self._short_held_bytes + nbytes <= self.bytes_max // 8 or (not self._long and held + nbytes <= most)
        if nbytes > most:
            return held <= self.bytes_max // 4
        return held - self._short_held_bytes + nbytes <= most and held + nbytes <= self.bytes_max * 7 // 8

    def _let_in(self) -> None:
        """Grant what fits now. The connections go on in the loop's next turn: whoever lets go is busy itself."""
        while self._beginning and not self.is_full:
            self._beginning.popleft()._grant()
        for line in (self._long, self._short):
            while line and self._fits(line[0].wanted_bytes, line):
                line.popleft()._grant()


class Share:
    """What one connection holds.

    >>> share = Budget(100).share()
    >>> share.claim(80, print)
    True
    >>> share.held_bytes
    80
    >>> share.let_go()
    >>> share.held_bytes
    0
    """

    __slots__ = ("_line", "_on_late", "_on_room", "_timer", "budget", "held_bytes", "is_waiting", "wanted_bytes")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._line: deque[Share] = budget._beginning
        """In which it waits, or did."""
        self._on_room: Callable[[], None] | None = None
        self._on_late: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """While it waits: how long it may."""
        self.is_waiting = False
        """Whether it waits for room."""
        self.held_bytes = 0
        self.wanted_bytes = 0
        """What it waits for."""

    def claim(
        self,
        nbytes: int,
        on_room: Callable[[], None],
        on_late: Callable[[], None] | None = None,
        seconds: float | None = None,
    ) -> bool:
        """Hold so many bytes more. False if there is no room yet: then they are held when `on_room` is called.

        `on_late` is called instead when there was none for so long, by default for `room_timeout_s`. Without it the
        share waits until somebody withdraws it.
        """
        assert self._on_room is None, "a connection waits for one thing at a time"
        budget = self.budget
        is_short = self.held_bytes + nbytes <= budget.short_bytes_max
        line = budget._beginning if not nbytes else budget._short if is_short else budget._long
        if budget.is_full if not nbytes else line or not budget._fits(nbytes, line):
            self._line = line
            self.is_waiting, self.wanted_bytes, self._on_room = True, nbytes, on_room
            if on_late is not None:
                self._on_late = on_late
                limit_s = budget.room_timeout_s if seconds is None else seconds
                self._timer = asyncio.get_running_loop().call_later(limit_s, self._give_up)
            line.append(self)
            return False
        self.hold(nbytes)
        return True

    async def claimed(self, nbytes: int, seconds: float | None = None) -> None:
        """Hold so many bytes more, as soon as there is room; `NoRoom` if that takes too long."""
        if not nbytes:
            return
        came = asyncio.get_running_loop().create_future()

        def tell(has_come: bool) -> None:
            if not came.done():  # who waits for it may have been cancelled in this turn of the loop
                came.set_result(has_come)

        if self.claim(nbytes, lambda: tell(True), lambda: tell(False), seconds):
            return
        try:
            if not await came:
                raise NoRoom
        finally:
            if not came.done() or came.cancelled():
                self.withdraw()

    def hold(self, nbytes: int) -> None:
        """Hold what is there already."""
        budget, before = self.budget, self.held_bytes
        now, short_max = before + nbytes, budget.short_bytes_max
        self.held_bytes = now
        budget.held_bytes += nbytes
        budget._short_held_bytes += (now if now <= short_max else 0) - (before if before <= short_max else 0)
        if budget.held_bytes > budget._peak_bytes:
            budget._peak_bytes = budget.held_bytes

    def let_go(self, nbytes: int | None = None) -> None:
        """Hold so many bytes less; by default none."""
        freed = self.held_bytes if nbytes is None else min(nbytes, self.held_bytes)
        if freed:
            budget = self.budget
            self.hold(-freed)
            if budget._peak_bytes >= TRIM_BYTES and budget.held_bytes < TRIM_BYTES // 4:
                budget._plan_trim()
            if budget._long or budget._short or budget._beginning:
                budget._let_in()

    def withdraw(self) -> None:
        """Wait for room no longer."""
        if self._on_room is not None:
            self._stop_waiting()
            if self in self._line:
                self._line.remove(self)
                self.budget._let_in()

    def close(self) -> None:
        self.withdraw()
        self.let_go()

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _stop_waiting(self) -> None:
        self.is_waiting = False
        self._on_room = self._on_late = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        on_late = self._on_late
        assert on_late is not None
        self.withdraw()
        on_late()

    def _grant(self) -> None:
        on_room, nbytes = self._on_room, self.wanted_bytes
        assert on_room is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.hold(nbytes)
        asyncio.get_running_loop().call_soon(self._go_on, on_room, nbytes)

    def _go_on(self, on_room: Callable[[], None], nbytes: int) -> None:
        if self._on_room is on_room:
            self._stop_waiting()
            on_room()
        else:  # withdrawn meanwhile
            self.let_go(nbytes)


class Pace:
    """Watches a body for which room is held, and says so when too little of it comes."""

    __slots__ = ("_budget", "_had_bytes", "_on_late", "_received", "_timer")

    def __init__(self, budget: Budget, received: Callable[[], int], on_late: Callable[[], None]) -> None:
        """`received` tells how much has come so far."""
        self._budget = budget
        self._received = received
        self._on_late = on_late
        self._timer: asyncio.TimerHandle | None = None
        self._had_bytes = 0

    def start(self) -> None:
        """There is room, and the body is read: if it is watched already, that goes on."""
        if self._timer is None:
            self._had_bytes = self._received()
            self._timer = asyncio.get_running_loop().call_later(PACE_S, self._look)

    def stop(self) -> None:
        """The body is there, or nothing is read for now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def reason(self) -> str:
        """What to tell who is late."""
        return f"the body came too slowly: fewer than {self._budget.body_bytes_per_s_min} bytes a second"

    def _look(self) -> None:
        self._timer = None
        if self._received() - self._had_bytes < PACE_S * self._budget.body_bytes_per_s_min:
            self._on_late()
        else:
            self.start()


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
