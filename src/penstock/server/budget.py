"""What all connections together may hold in memory: requests that are being read, and answers that nobody reads yet.

How it works. A process has one budget, and each connection has a share of it. Before a connection reads a large
request, its share *claims* the whole request. If there is no room, the connection does not read on until there is some,
and TCP holds the client back. Claims are granted in the order in which they came.

A request has all the room that it needs before its body is read. So whoever is reading gets done, and the next ones
after it. A body whose length is not announced claims as it grows. Several such bodies may come to wait for each other,
so one that holds something and waits for more is refused after `GROWTH_TIMEOUT_S`. One that holds nothing may wait as
long as its protocol lets a request take.

What is in memory already, such as an answer, is *held* without asking. Above the limit no further request is begun,
because its answer might not be read either: who wants to begin one claims 0 bytes, and waits. Claims get at most three
quarters of the budget, so that bodies alone keep nobody from beginning.

A client that was refused may still be sending its request. It is read from, so that it hears the reason, and what it
sends is thrown away; but seldom, and many such clients together no faster than one (`linger`).

Memory goes back to the system. The C library keeps freed pieces for later. After much was held and let go of, it is
told to return them (`_trim`).

Only authenticated clients use the budget. Of all others a protocol takes at most `UNKNOWN_BYTES_MAX`, which is enough
to say who they are. One exception: SQS signs bodies, so who knows an access key's id has room for one, signed or not.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections import deque
from collections.abc import Callable
from typing import Protocol

UNKNOWN_BYTES_MAX = 16 * 1024
"""The largest message of a client that has not said who it is: an introduction, and a token."""
GROWTH_BYTES = 256 * 1024
"""How much is claimed at a time for what has no known length."""
GROWTH_TIMEOUT_S = 3.0
AT_ONCE_S = 0.1
"""A receive that waits for longer has found nothing, and needs no room for its answer any more."""
LINGER_PAUSE_S = 0.01
"""Between two reads of what refused clients send."""
MAKING_BYTES_MAX = 8 * 1024 * 1024
TRIM_BYTES = 16 * 1024 * 1024
"""Memory is given back after so much was held, and most of it let go of."""
TRIM_PAUSE_S = 1.0
SMALL_BYTES = 64 * 1024
"""Answers below this need not be claimed: transports take as much before they say that the client does not read."""


NO_MEMORY = (
    "the requests and answers of others take all the memory there is: try again later, or raise [server] "
    "buffer_bytes_max"
)
"""What is said to who waited for room in vain."""

_malloc_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""None where the C library has no such function, as on macOS."""


class Sized(Protocol):
    """A queue, as far as the size of its messages goes."""

    @property
    def messages(self) -> int:
        """How many it holds."""
        ...

    @property
    def size(self) -> int:
        """How many bytes they have together."""
        ...


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
        "_peak_bytes",
        "_waiting",
        "bytes_max",
        "held_bytes",
        "making",
    )

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.making: Budget = self if bytes_max <= MAKING_BYTES_MAX else Budget(MAKING_BYTES_MAX)
        """For answers that are made one by one: so many bytes in a turn of the loop, and others are served between."""
        self._waiting: deque[Share] = deque()
        """Those with a claim, in the order in which they came."""
        self._beginning: deque[Share] = deque()
        """Those that claim nothing."""
        self._lingering = 0
        self._peak_bytes = 0
        """The most that was held since memory was last given back."""
        self._is_trim_planned = False

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

    def _fits(self, nbytes: int) -> bool:
        """One claim is always granted, however large: else a limit that is above the budget could never be reached."""
        return self.held_bytes + nbytes <= self.bytes_max * 3 // 4 or not self.held_bytes

    def _let_in(self) -> None:
        """Grant what fits now. The connections go on in the loop's next turn: whoever lets go is busy itself."""
        while self._beginning and not self.is_full:
            self._beginning.popleft()._grant()
        while self._waiting and self._fits(self._waiting[0].wanted_bytes):
            self._waiting.popleft()._grant()


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

    __slots__ = ("_budget", "_on_room", "held_bytes", "wanted_bytes")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._on_room: Callable[[], None] | None = None
        self.held_bytes = 0
        self.wanted_bytes = 0
        """What it waits for."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for room."""
        return self._on_room is not None

    def claim(self, nbytes: int, on_room: Callable[[], None]) -> bool:
        """Hold so many bytes more. False if there is no room yet: then they are held when `on_room` is called."""
        assert self._on_room is None, "a connection waits for one thing at a time"
        budget = self._budget
        line = budget._waiting if nbytes else budget._beginning
        if budget.is_full if not nbytes else line or not budget._fits(nbytes):
            self.wanted_bytes, self._on_room = nbytes, on_room
            line.append(self)
            return False
        self.hold(nbytes)
        return True

    async def claimed(self, nbytes: int, seconds: float) -> None:
        """Hold so many bytes more, as soon as there is room; `NoRoom` if that takes too long."""
        if not nbytes:
            return
        came = asyncio.Event()
        if self.claim(nbytes, came.set):
            return
        try:
            async with asyncio.timeout(seconds):
                await came.wait()
        except TimeoutError:
            raise NoRoom from None
        finally:
            if not came.is_set():
                self.withdraw()

    def hold(self, nbytes: int) -> None:
        """Hold what is there already."""
        self.held_bytes += nbytes
        budget = self._budget
        budget.held_bytes += nbytes
        if budget.held_bytes > budget._peak_bytes:
            budget._peak_bytes = budget.held_bytes

    def let_go(self, nbytes: int | None = None) -> None:
        """Hold so many bytes less; by default none."""
        freed = self.held_bytes if nbytes is None else min(nbytes, self.held_bytes)
        if freed:
            self.held_bytes -= freed
            self._budget.held_bytes -= freed
            if self._budget._peak_bytes >= TRIM_BYTES and self._budget.held_bytes < TRIM_BYTES // 4:
                self._budget._plan_trim()
            if self._budget._waiting or self._budget._beginning:
                self._budget._let_in()

    def withdraw(self) -> None:
        """Wait for room no longer."""
        if self._on_room is not None:
            self._on_room = None
            line = self._budget._waiting if self.wanted_bytes else self._budget._beginning
            if self in line:
                line.remove(self)
                self._budget._let_in()

    def close(self) -> None:
        """The connection is gone."""
        self.withdraw()
        self.let_go()

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _grant(self) -> None:
        on_room, nbytes = self._on_room, self.wanted_bytes
        assert on_room is not None
        self.hold(nbytes)
        asyncio.get_running_loop().call_soon(self._go_on, on_room, nbytes)

    def _go_on(self, on_room: Callable[[], None], nbytes: int) -> None:
        if self._on_room is on_room:
            self._on_room = None
            on_room()
        else:  # withdrawn meanwhile
            self.let_go(nbytes)
