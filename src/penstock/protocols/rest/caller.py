"""Who calls, what it may do, and whether it is still there."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

from penstock.core.commands import Command, Delivery, Once, Receive
from penstock.core.errors import RateLimited
from penstock.protocols.http import Exchange
from penstock.protocols.rest.problems import no_room
from penstock.server.auth import Principal, authorize_kinds
from penstock.server.budget import Budget, NoRoom, Share, asked_bytes
from penstock.server.node import Services
from penstock.server.settings import Settings
from penstock.server.shard import give_back
from penstock.server.shards import Shards

_Command = TypeVar("_Command", bound=Command)


class CallerGone(Exception):
    """The client has hung up; nobody is left to answer."""


class Caller:
    """One request's caller."""

    __slots__ = ("_budget", "_exchange", "_share", "delivery", "principal", "request_name", "wanted")

    def __init__(self, exchange: Exchange, principal: Principal, budget: Budget) -> None:
        self._exchange = exchange
        self._budget = budget
        self._share: Share | None = None
        """For an answer that may be large."""
        self.principal = principal
        self.wanted = ""
        """The content type of the answer, among those that the operation offers."""
        self.request_name: str | None = None
        """What the same request has in common with itself, if it comes again: from `Idempotency-Key`."""
        self.delivery: Delivery | None = None
        """What was leased for this caller, to be given back if it does not get it."""

    @property
    def counted_as(self) -> str:
        """Whose limits count what it does."""
        return caller_of(self.principal, self._exchange.request.peer)

    @property
    def is_gone(self) -> bool:
        """Whether the client has hung up, as far as is known."""
        return self._exchange.is_gone

    def need(self, queue: str, *kinds: type[Command]) -> str:
        """The queue's name, if the caller may do one of these commands with it. The first is what the logs name."""
        self._exchange.queue = self._exchange.queue or queue
        authorize_kinds(self.principal, queue, *kinds)
        return queue

    def named(self, command: _Command, number: int = 0) -> _Command:
        """The command, done once however often the request comes, if the caller wants that."""
        if self.request_name is not None:
            command.once = Once(self.request_name, number)
        return command

    async def room_for(self, shard: Shards, queue: str, count: int, limits: Settings, bytes_max: int = 0) -> None:
        """Wait until there is room for an answer with so many messages of a queue: as they are, and encoded.

        What goes out as it is takes `bytes_max` at most, and no more.
        """
        nbytes = asked_bytes(shard.identity.queues.get(queue), count, bytes_max or limits.rest.response_bytes_max)
        if not nbytes:
            return
        self._share = self._share or self._budget.share()
        try:
            await self._share.claimed(nbytes if bytes_max else 2 * nbytes)
        except NoRoom:
            raise no_room() from None

    def close(self) -> None:
        """It is answered, or gone."""
        if self._share is not None:
            self._share.close()

    async def receive(self, shard: Shards, command: Receive) -> Delivery:
        """Lease messages, now or when there are any. If the caller hangs up meanwhile, it takes none with it."""
        delivery: Delivery | None
        if command.wait_ms == 0:
            delivery = await shard.call(command)
        else:
            delivery = await self._wait(shard, command)
        if delivery is None:  # the server stops
            return Delivery(command.queue, 0, command.channel, 0, 0, 0)
        if delivery.error is not None:
            raise delivery.error
        self.delivery = delivery
        return delivery

    async def _wait(self, shard: Shards, command: Receive) -> Delivery | None:
        if self._exchange.has_hung_up():
            raise CallerGone
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def end(is_settled: bool) -> None:
            if not answered.done():
                answered.set_result(is_settled)

        def leave() -> None:
            if not answered.done():
                shard.withdraw(call)
                end(False)

        call = shard.submit(command, lambda _: end(True))
        self._exchange.on_abandoned = leave
        try:
            is_settled = await answered
        except asyncio.CancelledError:
            shard.withdraw(call)
            raise
        if not is_settled:
            raise CallerGone
        delivery: Delivery | None = call.result()
        return delivery

    def give_back(self, shard: Shards) -> None:
        """What was leased for this caller is ready again, as if never handed out: it did not get it."""
        delivery, self.delivery = self.delivery, None
        if delivery is not None and delivery.runs:
            shard.submit(give_back(delivery), lambda _: None)


# -- how often each caller may call ------------------------------------------------------------------------------------

_CALLERS_MAX = 10_000
_SHARED = "rates"


class RateLimit:
    """So many calls a second for each caller, and so many at once after a pause.

    >>> limit = RateLimit(per_second=2.0, burst=1)
    >>> limit.wait_s("ann", 10.0), limit.wait_s("ann", 10.0), limit.wait_s("bob", 10.0), limit.wait_s("ann", 10.5)
    (0.0, 0.5, 0.0, 0.0)
    """

    __slots__ = ("_buckets", "_burst", "_per_second")

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: dict[str, tuple[float, float]] = {}
        """Caller -> calls left, and when that was."""

    def follow(self, per_second: float, burst: int) -> None:
        """Count in another way from now on."""
        self._per_second, self._burst = per_second, burst

    def wait_s(self, caller: str, now_s: float) -> float:
        """0 if the caller may call now, which is counted; else how long it should wait, which is not."""
        left, seen_s = self._buckets.get(caller, (float(self._burst), now_s))
        left = min(self._burst, left + (now_s - seen_s) * self._per_second)
        if left < 1:
            return (1 - left) / self._per_second
        if len(self._buckets) >= _CALLERS_MAX and caller not in self._buckets:
            self._buckets.clear()
        self._buckets[caller] = (left - 1, now_s)
        return 0.0

    def count(self, caller: str) -> None:
        """Count a call of now; `RateLimited` if it is one too many."""
        wait_s = self.wait_s(caller, time.monotonic())
        if wait_s:
            raise RateLimited(f"too many requests: wait {wait_s:.3f} s")


def rates_of(services: Services) -> RateLimit | None:
    """What everything on REST's port counts with: `[rest] requests_per_second`. None: callers are not limited."""
    settings = services.settings.rest
    if settings.requests_per_second is None:
        return None
    limit = services.extras.setdefault(_SHARED, RateLimit(settings.requests_per_second, settings.requests_burst))
    assert isinstance(limit, RateLimit)
    return limit


def caller_of(principal: Principal, peer: str) -> str:
    """Who is counted: a principal, wherever it calls from; without credentials, an address."""
    return principal.name if principal.access_key else peer
