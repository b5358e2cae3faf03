"""The router: all shards of a cluster, as one `Shards` for the front ends of a node.

How it works. `submit` looks up in one table (`placement.py`) what a command is about. If that is a queue with one
partition in a shard of this process, and mostly it is or the load would better be elsewhere, the command goes into the
shard right there: the router's call is the shard's call. For a shard of another node it goes to that node's place. All
else is done by a coroutine that asks several shards and puts the replies together (`spread.py`).

Who knows how many partitions a queue has? Its first partition. Here it is looked up, for a queue elsewhere it is asked
for (once, and then remembered); commands that come meanwhile wait for the answer, in their order.

A shard moves. The command was not done (`ShardMoved`): the router tries again, when the map changes and every now and
then, for `PATIENCE_S`; whatever else comes for that shard waits behind it (`line.py`), so that commands stay in their
order. Receives go on waiting with what is left of their time. When nobody knows whether a command was
done (`LinkBroken`), it is sent again only if that is harmless: it reads, or it is named (`once`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric

from penstock.cluster.base import ClusterMap, ClusterMaps, LinkBroken, Place, ShardMoved, shard_of_id
from penstock.cluster.catalog import Catalog, meta_of
from penstock.cluster.line import Line
from penstock.cluster.placement import PLACEMENTS, Home, Placement, Split, home_of, merge_stats
from penstock.cluster.routed import Routed, ignore
from penstock.cluster.sessions import RoutedSession, RoutedSessions
from penstock.cluster.spread import SEQUENCES, Sequences, Settlement, Spread
from penstock.cluster.subscriptions import Subscriptions
from penstock.core.commands import (
    AckSequences,
    CatalogEvent,
    ChangeQueue,
    Command,
    CreateChannel,
    CreateQueue,
    Damage,
    DeleteChannel,
    DeleteQueue,
    Delivery,
    DescribeQueue,
    ExtendSequences,
    OpenSession,
    QueueInfo,
    QueueStats,
    Receive,
    RedriveTask,
    ReleaseSequences,
    Send,
    StartRedrive,
    Stats,
    Subscribe,
)
from penstock.core.errors import (
    ForgedReceipt,
    InvalidRequest,
    NotFound,
    QueueNotFound,
    SessionNotFound,
    StoreError,
)
from penstock.server.clock import Clock
from penstock.server.shard import Call, ShardClosed, Tick, give_back
from penstock.server.shards import Names
from penstock.server.tasks import AsyncShard, CallbackCall

log = logging.getLogger("penstock.router")

PATIENCE_S = 15.0
"""How long a command is tried again while nobody serves its shard."""
PAUSE_S = 0.02
PAUSE_S_MAX = 0.5
"""How long to wait before the same is tried again, if the map says nothing new: first, and at most."""


class ShardUnserved(StoreError):
    """Nobody serves the shard just now: it was not done. Try again later."""


class Host(Place, Protocol):
    """The shards of this process: `cluster.host.ShardHost`."""

    @property
    def served(self) -> Mapping[int, AsyncShard]:
        """They, by number, as they are now."""
        ...

    async def close(self) -> None:
        """Commit what is left, end every wait, close."""
        ...


_NOTED: frozenset[type[Command]] = frozenset(
    {CreateQueue, ChangeQueue, DeleteQueue, DescribeQueue, CreateChannel, DeleteChannel, StartRedrive}
)
"""Commands whose replies the catalog wants to see, or that say numbers which have to be translated."""
_SLOW = _NOTED | {Subscribe}
"""Commands that have something to be done besides; all others take the short way, if they can."""
_NOBODY = 0xFFFFFFFF
"""A session that no shard has ever opened: it holds nothing."""
_OF_A_SESSION: frozenset[type[Command]] = frozenset(
    {Receive, Subscribe, AckSequences, ReleaseSequences, ExtendSequences}
)
_OF_SESSIONS_THAT_LIVE: frozenset[type[Command]] = frozenset({Receive, Subscribe})
_UNASKED: frozenset[Split] = frozenset({Split.FIRST, Split.CREATE})
"""For these it does not matter how many partitions the queue has."""
_MAKERS: frozenset[type[Command]] = frozenset({Send, CreateQueue})


def _waits(command: Command) -> bool:
    return isinstance(command, Receive) and bool(command.wait_ms)


def _span(owners: tuple[str, ...], first: int) -> int:
    """How many shards, from one on and round, it takes to have one of every owner.

    >>> _span(("a", "b", "a", "c"), 1), _span(("a", "", "a"), 0)
    (3, 1)
    """
    missing = {owner for owner in owners if owner}
    count = 0
    while missing and count < len(owners):
        missing.discard(owners[(first + count) % len(owners)])
        count += 1
    return max(1, count)


class Router:
    """All shards of a cluster, for the front ends of one node."""

    read_only = False

    def __init__(
        self,
        host: Host,
        remote: Callable[[str], Place],
        maps: ClusterMaps,
        shards: int,
        entropy: bytes,
        clock: Clock,
        *,
        patience_s: float = PATIENCE_S,
        sessions: RoutedSessions | None = None,
    ) -> None:
        self.shards = shards
        self._host = host
        self._served = host.served
        self._remote = remote
        self._maps = maps
        self._clock = clock
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._sessions = RoutedSessions(random.getrandbits(32)) if sessions is None else sessions
        self._catalog = Catalog(self._served, shards, meta_of(entropy), self._sessions)
        self.spread = Spread(self)
        self.subscriptions = Subscriptions(self)
        self._catalog.holdings = self.subscriptions
        self._asking: dict[str, list[Routed]] = {}
        """Calls that wait until it is known how many partitions their queue has."""
        self._displaced: dict[Routed, asyncio.TimerHandle] = {}
        """Calls whose shard is served by nobody, as far as is known."""
        self._lines: dict[int, Line] = {}
        """Calls that wait for a shard behind one whose shard is served by nobody, as far as is known."""
        self._away: dict[int, tuple[int, Place]] = {}
        """Shard -> how many calls (no receives) are with another node, and with which: as long as there are any."""
        self._far: set[Routed] = set()
        """Receives that wait elsewhere, and calls that tasks work at."""
        self.forwarded: Counter[type[Command]] = Counter()
        """How many commands of each kind went to other nodes."""
        self._listeners: list[Callable[[CatalogEvent], None]] = []
        self._heard: dict[int, AsyncShard] = {}
        """The shards whose events we hear."""
        self._spans_map: ClusterMap | None = None
        self._spans: dict[int, int] = {}
        """Shard -> how many shards from there on it takes to have one of every node, by that map."""
        self._closing = False
        self._version = -1
        maps.on_change(self._map_changed)
        self._mind_shards()

    # -- for front ends --

    async def call(self, command: Command) -> Any:
        """Take a command to where it belongs. Returns when its effect is as durable as it has to be."""
        settled = self._loop.create_future()
        call = self.submit(command, lambda _: None if settled.done() else settled.set_result(None))
        try:
            await settled
        except asyncio.CancelledError:
            if command.__class__ is Receive:
                self.withdraw(call)
            raise
        return call.result()

    def submit(self, command: Command, on_settled: Callable[[Call], None], caller: object = None) -> CallbackCall:
        """As `call`, without a task: `on_settled` is called in the loop when the call is settled. It must not raise."""
        kind = command.__class__
        call = Routed(command, on_settled, self, caller)
        placement = PLACEMENTS.get(kind)
        if placement is None or placement.home is not Home.QUEUE:
            self._start_other(call, placement)
            return call
        name: str = getattr(command, placement.field)
        shard = home_of(name, self.shards)
        served = self._served.get(shard)
        if served is None or kind in _SLOW:
            self._start(call, placement, name)
            return call
        queue = served.identity.queues.get(name)
        if queue is None:
            if kind is Send and command.config.partitions > 1:  # type: ignore[attr-defined]
                self._start(call, placement, name)
                return call
        elif queue.config.partitions > 1:
            self._start(call, placement, name)
            return call
        call.shard = shard
        call.served = served
        if (self._lines or self._away) and self._has_to_wait(call, None):
            self.dispatch(call, shard)
            return call
        if kind in _OF_A_SESSION and command.session and not self._localise(call, command):  # type: ignore[attr-defined]
            return call
        try:
            served.put(call, caller)
        except ShardClosed as error:
            self.fail_soon(call, error)
        return call

    def submit_to(
        self, shard: int, command: Command, on_settled: Callable[[Call], None], caller: object = None
    ) -> CallbackCall:
        """Take a command to a shard by number, and try again when it has moved: for what the shards do themselves."""
        call = Routed(command, on_settled, self, caller)
        self.dispatch(call, shard)
        return call

    def withdraw(self, call: CallbackCall) -> None:
        """Whoever submitted this receive has left, and hears no more of it. Messages that it got go back."""
        assert isinstance(call, Routed)
        call.on_settled = ignore
        if call.is_over:
            self.give_back(call.reply)
            return
        call.is_over = True
        timer = self._displaced.pop(call, None)
        if timer is not None:
            timer.cancel()
        elif call.task is not None:
            call.task.cancel()
        elif call.inner is not None and call.place is not None:
            call.place.withdraw(call.inner)
        elif call.served is not None:
            call.served.withdraw(call)

    def give_back(self, reply: Any) -> None:
        """Messages of a delivery that nobody takes any more are ready again."""
        if isinstance(reply, Delivery) and reply.runs and not self._closing:
            self.submit(give_back(reply), ignore)

    def unknown(self, name: str, *, now: bool = False) -> bool:
        """Whether a queue has to be asked for before `identity.queues` can tell of it."""
        if home_of(name, self.shards) in self._served:
            return False
        return now or not self._catalog.is_fresh(name)

    def partitions_for(self, name: str) -> int:
        """How many partitions a queue needs for every node that serves shards to have one of them, as things are."""
        known = self._maps.current()
        if known is not self._spans_map:
            self._spans_map, self._spans = known, {}
        first = home_of(name, self.shards)
        count = self._spans.get(first)
        if count is None:
            count = self._spans[first] = _span(known.owners, first)
        return count

    async def local_stats(self, name: str) -> Stats:
        """The counts of a queue's partitions in this node's shards. `QueueNotFound` if there is none."""
        asked = [self.ask(shard, QueueStats(name=name)) for shard in self._catalog.parts(name)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        parts: list[Stats] = []
        for reply in found:
            if isinstance(reply, BaseException):
                if not isinstance(reply, QueueNotFound):
                    raise reply
            else:
                parts.append(reply)
        if not parts:
            raise QueueNotFound(f"queue {name!r} has no partition at this node")
        return merge_stats(parts)

    async def know(self, *names: str, receipts: Iterable[str] = (), now: bool = False) -> None:
        """Ask for what is unknown among these queues, and the queues of these receipts."""
        asked: list[DescribeQueue] = [DescribeQueue(name=name) for name in names if self.unknown(name, now=now)]
        ids: set[int] = set()
        for text in receipts:
            with contextlib.suppress(ForgedReceipt):
                receipt = self._catalog.open_receipt(text)
                if receipt.queue_id not in ids and not self._catalog.knows_id(receipt.queue_id, receipt.channel_id):
                    ids.add(receipt.queue_id)
        asked += [DescribeQueue(queue_id=queue_id) for queue_id in ids]
        for answer in await asyncio.gather(*map(self.call, asked), return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, QueueNotFound):
                raise answer

    async def sleep(self, seconds: float) -> None:
        """Let some time pass."""
        await asyncio.sleep(seconds)

    def now_ms(self) -> int:
        """The time."""
        return self._clock.now_ms()

    @property
    def identity(self) -> Names:
        """Names, ids and receipts."""
        return self._catalog

    @property
    def catalog(self) -> Catalog:
        """What is known of queues."""
        return self._catalog

    @property
    def sessions(self) -> RoutedSessions:
        """The sessions that were opened here."""
        return self._sessions

    @property
    def served(self) -> Mapping[int, AsyncShard]:
        """The shards of this process."""
        return self._served

    @property
    def listeners(self) -> list[Callable[[CatalogEvent], None]]:
        """Who hears of queues and channels of this node's shards that come and go, also because shards do."""
        return self._listeners

    @property
    def reports(self) -> list[Damage]:
        """The last reports of damaged chunks in this node's shards."""
        return [report for served in self._served.values() for report in served.reports]

    async def tick(self) -> None:
        """Make a step in each of this node's shards."""
        if self._closing:
            raise ShardClosed("the node is stopping: ask another one")
        await asyncio.gather(*(served.call(Tick()) for served in list(self._served.values())))

    async def close(self) -> None:
        """Commit what is left, end every wait, close this node's shards. Once more does nothing."""
        if self._closing:
            return
        self._closing = True
        waiting = [*self._displaced, *self._far, *(call for calls in self._asking.values() for call in calls)]
        for line in self._lines.values():
            line.stop()
            waiting += line.calls
        self._lines.clear()
        for call in waiting:
            self._end_wait(call)
        await self._host.close()

    def _end_wait(self, call: Routed) -> None:
        """The node stops: a receive ends with nothing, everything else was not done, or nobody knows."""
        if call.is_over:
            return
        on_settled, command = call.on_settled, call.command
        if isinstance(command, Receive):
            call.reply = call.error = None
        elif call in self._far:
            return  # it is answered yet
        else:
            call.error = ShardClosed("the node is stopping: ask another one")
        self.withdraw(call)
        on_settled(call)

    # -- on the way to one shard --

    def _start_other(self, call: Routed, placement: Placement | None) -> None:
        """A command that is not about one queue."""
        if placement is None or placement.home is Home.SHARD:
            name = type(call.command).__name__
            self.fail_soon(call, InvalidRequest(f"{name} is for a shard, and has no way through a router"))
        elif placement.home is Home.SUBSCRIPTION:
            self.subscriptions.start(call)
        else:
            self.run(call, self.spread.do(call.command))

    def _start(self, call: Routed, placement: Placement, name: str) -> None:
        """A command about one queue."""
        command = call.command
        if isinstance(command, DescribeQueue) and command.queue_id:
            call.is_noted = True
            self.dispatch(call, shard_of_id(command.queue_id) % self.shards)
            return
        if name in self._asking and placement.split not in _UNASKED:
            self._ask_first(call, name)  # behind those who came before
            return
        config = self._catalog.config(name)
        if config is None and command.__class__ in _MAKERS:
            if command.config.partitions > 1 and self.shards > 1:  # type: ignore[attr-defined]
                self._start_split(call)
                return
            if home_of(name, self.shards) in self._served:
                self._start_whole(call, name)
                return
        if config is None and placement.split not in _UNASKED and home_of(name, self.shards) not in self._served:
            self._ask_first(call, name)
        elif config is not None and config.partitions > 1 and placement.split is not Split.FIRST and self.shards > 1:
            self._start_split(call)
        else:
            self._start_whole(call, name)

    def _ask_first(self, call: Routed, name: str) -> None:
        """Wait until it is known how many partitions the queue has; in the order of coming."""
        waiting = self._asking.get(name)
        if waiting is not None:
            waiting.append(call)
            return
        self._asking[name] = [call]
        asked = Routed(DescribeQueue(name=name), lambda answer: self._was_asked(name, answer), self)
        asked.is_noted = True
        self.dispatch(asked, home_of(name, self.shards))

    def _was_asked(self, name: str, answer: Call) -> None:
        waiting = self._asking.pop(name, [])
        error = answer.error
        is_split = error is None and answer.reply.config.partitions > 1 and self.shards > 1
        for call in waiting:
            if call.is_over:
                continue
            if error is not None and not isinstance(error, QueueNotFound):
                call.error = error
                self._finish(call)
            elif is_split:
                self._start_split(call)
            else:
                self._start_whole(call, name)

    def _start_split(self, call: Routed) -> None:
        """The queue has several partitions, or will have."""
        command = call.command
        if isinstance(command, Subscribe):
            self.subscriptions.subscribe(call, is_split=True)
        elif isinstance(command, Send) and (shard := self.spread.shard_for(command)) is not None:
            call.whole = command
            call.command = msgspec.structs.replace(command, create=False) if command.create else command
            self.dispatch(call, shard)
        elif isinstance(command, SEQUENCES) and (parts := self.spread.parts_of(command)):
            self._start_settling(call, parts)
        else:
            self.run(call, self.spread.do_split(command))

    def _start_settling(self, call: Routed, parts: list[tuple[int, Sequences]]) -> None:
        """Take each part to its shard at once: what a connection settles next must not overtake it."""
        if len(parts) == 1:
            self._settle_part(call, *parts[0])
            return
        together = Settlement(call, len(parts), self._finish)
        for shard, part in parts:
            self._settle_part(Routed(part, together.add, self, call.caller), shard, part)

    def _settle_part(self, call: Routed, shard: int, command: Sequences) -> None:
        call.whole = command
        if not isinstance(command, ExtendSequences):
            call.parts = self.subscriptions.settling(command.session, shard)
            call.is_noted = bool(call.parts)
        self.dispatch(call, shard)

    def _start_whole(self, call: Routed, name: str) -> None:
        """The queue has one partition."""
        command = call.command
        if isinstance(command, Subscribe):
            self.subscriptions.subscribe(call, is_split=False)
            return
        call.is_noted = command.__class__ in _NOTED
        self.dispatch(call, home_of(name, self.shards))

    def run(self, call: Routed, work: Coroutine[Any, Any, Any]) -> None:
        """Have a coroutine answer a call."""
        call.task = self._loop.create_task(work)
        self._far.add(call)
        call.task.add_done_callback(lambda task: self._was_run(call, task))

    def _was_run(self, call: Routed, task: asyncio.Task[Any]) -> None:
        self._far.discard(call)
        if task.cancelled():
            if not call.is_over:
                call.error = ShardClosed("the node is stopping: ask another one")
                self._finish(call)
            return
        call.task = None
        call.error = task.exception()
        call.reply = task.result() if call.error is None else None
        if call.is_over:
            self.give_back(call.reply)
        else:
            self._finish(call)

    async def ask(self, shard: int, command: Command) -> Any:
        """The reply of one shard, by number; it is tried again when the shard has moved."""
        settled = self._loop.create_future()
        call = Routed(command, lambda _: None if settled.done() else settled.set_result(None), self)
        self.dispatch(call, shard)
        try:
            await settled
        except asyncio.CancelledError:
            if isinstance(command, Receive):
                self.withdraw(call)
            raise
        return call.result()

    def dispatch(self, call: Routed, shard: int) -> None:
        """Take a call to a shard, wherever it is; now, or when there is somebody who serves it."""
        call.shard = shard
        command = call.command
        if command.__class__ in _OF_A_SESSION and not self._localise(call, command):
            return
        if command.__class__ is Receive:
            call.since_ms = call.since_ms or self._clock.now_ms()
        elif (self._lines or self._away) and self._has_to_wait(call, self._target(shard)):
            self._join_line(call)
            return
        self._go(call, shard)

    def _go(self, call: Routed, shard: int) -> None:
        """Take a call to a shard that nobody else waits for."""
        served = self._served.get(shard)
        if served is not None:
            call.served, call.place, call.inner = served, None, None
            try:
                served.put(call, call.caller)
            except ShardClosed as error:
                self.fail_soon(call, error)
            return
        call.served = None
        if self._closing:
            self.fail_soon(call, ShardClosed("the node is stopping: ask another one"))
        else:
            self._dispatch_far(call, shard)

    def _dispatch_far(self, call: Routed, shard: int) -> None:
        known = self._maps.current()
        owner = known.owners[shard]
        if not owner or owner == known.own:
            self._displace(call)
            return
        call.place = self._remote(owner)
        self.forwarded[call.command.__class__] += 1
        if call.command.__class__ is Receive:
            self._far.add(call)
            call.is_noted = True
        else:
            call.is_away = True
            self._away[shard] = (self._away.get(shard, (0, call.place))[0] + 1, call.place)
        call.inner = call.place.submit(shard, call.command, call.inner_settled, call.caller)

    def families(self) -> Iterator[Metric]:
        """What went to other nodes."""
        family = CounterMetricFamily(
            "penstock_forwarded_commands", "Commands that went to the node that owns their shard.", labels=("command",)
        )
        for kind, count in self.forwarded.items():
            family.add_metric((kind.__name__,), count)
        yield family

    def _target(self, shard: int) -> Place | None:
        """The other node that serves a shard; None: nobody, or this one."""
        known = self._maps.current()
        owner = known.owners[shard]
        return None if shard in self._served or not owner or owner == known.own else self._remote(owner)

    def _has_to_wait(self, call: Routed, target: Place | None) -> bool:
        """Whether calls to the same shard wait, or are with another node than this one would go to."""
        if call.command.__class__ is Receive:
            return False
        shard = call.shard
        if shard in self._lines:
            return True
        away = self._away.get(shard)
        return away is not None and away[1] is not target

    def landed(self, call: Routed) -> None:
        """Another node has answered a call that is counted."""
        call.is_away = False
        count, place = self._away[call.shard]
        if count > 1:
            self._away[call.shard] = (count - 1, place)
        else:
            del self._away[call.shard]
            if call.shard in self._lines:
                self._loop.call_soon(self._look_soon, call.shard)

    def fail_soon(self, call: Routed, error: BaseException) -> None:
        """Answer a call with an error, in the loop's next turn."""
        call.error = error
        self._loop.call_soon(self._failed_soon, call)

    def _failed_soon(self, call: Routed) -> None:
        if not call.is_over:
            self.settled(call)

    # -- on the way back --

    def settled(self, call: Routed) -> None:
        """A call has come back, with an error, or with something to be noted."""
        self._far.discard(call)
        error = call.error
        if self._lines and not (error is not None and self._is_worth_repeating(call, error)):
            self._open_line(call)
        if call.is_over:
            self.give_back(call.reply)
            return
        if error is not None:
            if self.subscriptions.is_moving(call) and isinstance(
                error, ShardMoved | ShardClosed | LinkBroken | NotFound
            ):
                call.error = None
                self._finish(call)
                return
            if self._is_worth_repeating(call, error):
                self._displace(call)
                return
            if isinstance(error, SessionNotFound) and call.session and self._reopen(call):
                return
            if isinstance(error, ShardMoved):
                call.error = ShardUnserved(f"shard {call.shard} has moved, and the node is stopping: ask another one")
            elif isinstance(error, QueueNotFound):
                self._forget(call.command)
                if call.whole is not None:  # the partition is missing, or the queue: that is the long way's matter
                    self._take_the_long_way(call, call.whole)
                    return
        elif call.is_noted:
            self._note(call)
        self._finish(call)

    def _take_the_long_way(self, call: Routed, whole: Command) -> None:
        call.whole = call.error = call.served = call.place = None
        if isinstance(whole, Send):
            self.run(call, self.spread.send_again(whole, call.shard))
            return
        assert isinstance(whole, SEQUENCES)
        whole.session = call.session or whole.session  # it had the shard's number
        self._tell_settled(call)
        self.run(call, self.spread.do_split(whole))

    def _tell_settled(self, call: Routed) -> None:
        """Tell subscriptions what a call has settled, once."""
        parts, call.parts = call.parts, []
        self.subscriptions.settled(parts, 0 if call.error is not None or call.reply is None else call.reply.count)

    def _finish(self, call: Routed) -> None:
        call.is_over = True
        if call.parts:
            self._tell_settled(call)
        call.on_settled(call)

    def _is_worth_repeating(self, call: Routed, error: BaseException) -> bool:
        if self._closing:
            return False
        if isinstance(error, ShardMoved | ShardClosed):
            return True
        if not isinstance(error, LinkBroken):
            return False
        placement = PLACEMENTS.get(call.command.__class__)
        return call.command.once is not None or (placement is not None and placement.is_repeatable)

    def _forget(self, command: Command) -> None:
        placement = PLACEMENTS.get(command.__class__)
        if placement is not None and placement.field:
            self._catalog.forget(getattr(command, placement.field))

    def _note(self, call: Routed) -> None:
        command, reply = call.command, call.reply
        if isinstance(reply, Delivery):
            self._catalog.note_channel(reply)
        elif isinstance(reply, QueueInfo):
            self._catalog.note(reply)
        elif isinstance(reply, RedriveTask):
            self._catalog.note_task(reply)
        elif isinstance(command, DeleteQueue):
            self._catalog.forget(command.name)
        elif isinstance(command, CreateChannel | DeleteChannel):
            self._catalog.forget(command.queue)

    # -- when a shard has moved --

    def _displace(self, call: Routed) -> None:
        """Try again a little later, or when the map changes."""
        now_s = self._loop.time()
        if not call.deadline_s or (_waits(call.command) and now_s > call.tried_s + 2 * PAUSE_S_MAX):
            call.deadline_s, call.tries = now_s + self._patience_s, 0  # it has waited with somebody meanwhile
        if now_s >= call.deadline_s:
            self._open_line(call)
            self._give_up(call)
            return
        if call.command.__class__ is not Receive:
            self._join_line(call)
            return
        call.tried_s = now_s
        pause_s = min(PAUSE_S * 2 ** min(call.tries, 10), PAUSE_S_MAX, call.deadline_s - now_s)
        call.tries += 1
        self._displaced[call] = self._loop.call_later(pause_s, self._again, call)

    def _give_up(self, call: Routed) -> None:
        call.error = ShardUnserved(f"nobody serves shard {call.shard} just now: it was not done; try again later")
        self._finish(call)

    def _join_line(self, call: Routed) -> None:
        """Wait for a shard, behind those that came before."""
        line = self._lines.get(call.shard)
        if line is None:
            line = self._lines[call.shard] = Line()
        call.deadline_s = call.deadline_s or self._loop.time() + self._patience_s
        line.join(call)
        if line.probe is None and line.timer is None:
            pause_s = min(PAUSE_S * 2 ** min(line.tries, 10), PAUSE_S_MAX)
            line.tries += 1
            line.timer = self._loop.call_later(pause_s, self._look, call.shard)

    def _look_soon(self, shard: int) -> None:
        """There is reason to believe that the shard is served."""
        line = self._lines.get(shard)
        if line is not None and line.probe is None:
            line.stop()
            self._look(shard)

    def _look(self, shard: int) -> None:
        """Send the first of a line, if nothing before it is with another node any more."""
        line = self._lines[shard]
        line.timer = None
        now_s = self._loop.time()
        overdue = [call for call in line.calls if now_s >= call.deadline_s]
        line.calls = [call for call in line.calls if now_s < call.deadline_s and not call.is_over]
        if not line.calls:
            del self._lines[shard]
        elif shard in self._away and self._away[shard][1] is not self._target(shard):
            line.timer = self._loop.call_later(PAUSE_S_MAX, self._look, shard)
        else:
            line.probe = probe = line.calls.pop(0)
            probe.is_noted, probe.reply, probe.error = True, None, None
            self._go(probe, shard)
        for call in overdue:
            if not call.is_over:
                self._give_up(call)

    def _open_line(self, probe: Routed) -> None:
        """The first of a line was answered: all others follow."""
        line = self._lines.get(probe.shard)
        if line is None or line.probe is not probe:
            return
        line.stop()
        del self._lines[probe.shard]
        for call in line.calls:
            if not call.is_over:
                call.reply = call.error = None
                self._go(call, call.shard)

    def _again(self, call: Routed) -> None:
        timer = self._displaced.pop(call, None)
        if timer is None or call.is_over:
            return
        timer.cancel()
        call.tried_s = self._loop.time()
        call.reply = call.error = None
        call.since_ms = call.since_ms or call.parked_ms
        call.parked_ms = 0
        command = call.command
        if isinstance(command, Receive):
            call.command = self._shortened(command, call.since_ms)
        self.dispatch(call, call.shard)

    def _shortened(self, command: Receive, since_ms: int) -> Receive:
        """A receive with what is left of its wait."""
        wait_ms = command.wait_ms
        passed_ms = self._clock.now_ms() - since_ms if since_ms else 0
        if wait_ms is None:
            config = self._catalog.config(command.queue)
            if config is None:
                return msgspec.structs.replace(command, ticket=None)
            wait_ms = config.receive_wait_ms
        return msgspec.structs.replace(command, wait_ms=max(0, wait_ms - passed_ms), ticket=None)

    def _map_changed(self, changed: ClusterMap) -> None:
        if self._closing:
            return
        self._mind_shards()
        for call in list(self._displaced):
            owner = changed.owners[call.shard]
            if call.shard in self._served or (owner and owner != changed.own):
                self._again(call)
        for shard in list(self._lines):
            owner = changed.owners[shard]
            if shard in self._served or (owner and owner != changed.own):
                self._look_soon(shard)

    # -- sessions --

    def _localise(self, call: Routed, command: Any) -> bool:
        """Have the command name its session as the shard does. False: it goes on when the session is open there."""
        number = call.session or command.session
        if not number:
            return True
        try:
            session = self._sessions.get(number)
        except SessionNotFound as error:
            if command.__class__ in _OF_SESSIONS_THAT_LIVE:
                self.fail_soon(call, error)
                return False
            command.session = _NOBODY
            return True
        call.session = number
        there = session.at.get(call.shard)
        if there is not None:
            command.session = there
            return True
        if command.__class__ not in _OF_SESSIONS_THAT_LIVE:
            command.session = _NOBODY
            return True
        opening = self._loop.create_task(self.open_session(session, call.shard))
        opening.add_done_callback(lambda task: self._was_opened(call, task))
        return False

    def _was_opened(self, call: Routed, task: asyncio.Task[int]) -> None:
        if call.is_over:
            return
        error = ShardClosed("the node is stopping") if task.cancelled() else task.exception()
        if error is not None:
            call.error = error
            self._finish(call)
        else:
            self.dispatch(call, call.shard)

    async def open_session(self, session: RoutedSession, shard: int) -> int:
        """Open a session in a shard, if it is not; its number there."""
        opening = session.opening.get(shard)
        if opening is not None:
            await asyncio.wait((opening,))
        if shard not in session.at:
            done = session.opening[shard] = self._loop.create_future()
            try:
                session.at[shard] = await self.ask(shard, session.open_command())
            finally:
                del session.opening[shard]
                done.set_result(None)
        return session.at[shard]

    def _reopen(self, call: Routed) -> bool:
        """A shard that was opened anew has forgotten a session that is a connection: it is opened there again."""
        session = None
        with contextlib.suppress(SessionNotFound):
            session = self._sessions.get(call.session)
        if session is None or session.ttl_ms is not None or call.tries > 3:
            return False
        call.tries += 1
        session.at.pop(call.shard, None)
        call.error = None
        self.dispatch(call, call.shard)
        return True

    def new_session(self, command: OpenSession) -> RoutedSession:
        """A session that is open nowhere yet."""
        if command.ttl_ms is not None and command.ttl_ms <= 0:
            raise InvalidRequest(f"ttl_ms is {command.ttl_ms}: it must be more than 0")
        return self._sessions.add(command, self._clock.now_ms())

    # -- this node's shards --

    def _mind_shards(self) -> None:
        """Hear of what happens in the shards that are here now; those that came or went bring or take their queues."""
        for shard, served in list(self._heard.items()):
            if self._served.get(shard) is not served:
                del self._heard[shard]
                self._tell_all(shard, served, came=False)
        for shard, served in self._served.items():
            if shard not in self._heard:
                self._heard[shard] = served
                served.listeners.append(partial(self._hear, shard, served))
                self._tell_all(shard, served, came=True)

    def _hear(self, shard: int, served: AsyncShard, event: CatalogEvent) -> None:
        if self._heard.get(shard) is served and not self._is_also_elsewhere(shard, event):
            self._tell(event)

    def _is_also_elsewhere(self, shard: int, event: CatalogEvent) -> bool:
        """Whether another shard of this node has the same queue or channel: then nothing came or went here."""
        for other, served in self._heard.items():
            queue = None if other == shard else served.identity.queues.get(event.queue)
            if queue is not None and (event.channel is None or event.channel in queue.channels):
                return True
        return False

    def _tell_all(self, shard: int, served: AsyncShard, *, came: bool) -> None:
        end = "created" if came else "deleted"
        for name, queue in list(served.identity.queues.items()):
            channels = [CatalogEvent(f"channel {end}", name, channel) for channel in queue.channels]  # type: ignore[arg-type]
            events = [CatalogEvent(f"queue {end}", name)]  # type: ignore[arg-type]
            for event in [*events, *channels] if came else [*channels, *events]:
                if not self._is_also_elsewhere(shard, event):
                    self._tell(event)

    def _tell(self, event: CatalogEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                log.exception("a listener failed")
