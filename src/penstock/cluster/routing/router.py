"""The router: all shards of a cluster, as one `Shards` for the front ends of a node.

How it works. A command says what it is about (`core/traits.py`). If that is a queue with one
partition in a shard of this process, and mostly it is or the load would better be elsewhere, the command goes into the
shard right there: the router's call is the shard's call. The other ways begin here, too:

    scatter_gather.py  a command about one queue: to its shard, straight to one of its partitions, or to several;
                       what concerns several shards: coroutines ask them, and put the replies together
    remote_calls.py    a shard of another node, or one that has moved
    sessions.py        what is about sessions, and commands that name one
    subscriptions.py   subscriptions, and their credit

And they end here. If the command was not done, because the shard has moved (`ShardMoved`), it is tried again for
`RETRY_TIMEOUT_S`. When nobody knows whether it was done (`LinkBroken`), it is sent again only if that is harmless, or
if it is named (`once`). What administers queues and sessions, and has no name when it leaves for another node, gets one
here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric

from penstock.cluster.base import ClusterMap, ClusterMaps, LinkBroken, Place, ShardMoved, ShardUnserved, shard_of_id
from penstock.cluster.catalog import Catalog, meta_of
from penstock.cluster.routing.placement import home_of, merge_stats, shards_of, tally_of
from penstock.cluster.routing.remote_calls import RemoteCalls
from penstock.cluster.routing.routed import Routed, ignore
from penstock.cluster.routing.scatter_gather import QueueCalls, ScatterGather
from penstock.cluster.routing.sessions import OF_A_SESSION, RoutedSessions, SessionCalls
from penstock.cluster.routing.subscriptions import Subscriptions
from penstock.core.commands import (
    CatalogEvent,
    Command,
    CreateChannel,
    Damage,
    DeleteChannel,
    DeleteQueue,
    Delivery,
    DescribeQueue,
    ListQueues,
    Once,
    QueueInfo,
    QueueStats,
    QueueTally,
    Receive,
    RedriveTask,
    Send,
    Stats,
    Subscribe,
    TallyQueues,
)
from penstock.core.errors import (
    ForgedReceipt,
    InvalidRequest,
    NotFound,
    QueueDamaged,
    QueueNotFound,
    QueueReplaced,
    SessionNotFound,
)
from penstock.core.traits import Home, Repeat
from penstock.server.clock import Clock
from penstock.server.shard import Call, Shard, ShardClosed, Tick, give_back
from penstock.server.shards import Names
from penstock.server.tally import pages_of_tallies
from penstock.server.tasks import AsyncShard, CallbackCall, Unready

# Queues and channels that come and go in a node's shards, for its front ends; also because shards come and go.
#
# A queue with several partitions may be in several shards of a node. It comes with the first of them, and goes with the
# last.


log = logging.getLogger("penstock.router")


class ShardEvents:
    """Hears the shards of this process, and tells who listens."""

    def __init__(self, served: Mapping[int, AsyncShard]) -> None:
        self._served = served
        self.listeners: list[Callable[[CatalogEvent], None]] = []
        self._heard: dict[int, AsyncShard] = {}
        """The shards whose events we hear."""

    def follow_shards(self) -> None:
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
        for listener in list(self.listeners):
            try:
                listener(event)
            except Exception:
                log.exception("a listener failed")


RETRY_TIMEOUT_S = 15.0
"""How long a command is tried again while nobody serves its shard."""


class Host(Place, Protocol):
    """The shards of this process: `cluster.host.ShardHost`."""

    @property
    def served(self) -> Mapping[int, AsyncShard]:
        """They, by number, as they are now."""

    async def close(self) -> None:
        """Commit what is left, end every wait, close."""


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
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        sessions: RoutedSessions | None = None,
    ) -> None:
        self.shards = shards
        self._host = host
        self._served = host.served
        self.maps = maps
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._sessions = RoutedSessions(random.getrandbits(32)) if sessions is None else sessions
        self._catalog = Catalog(self._served, shards, meta_of(entropy), self._sessions)
        self.remote_calls = RemoteCalls(self, remote, maps, retry_timeout_s)
        self.session_calls = SessionCalls(self)
        self.scatter_gather = ScatterGather(self)
        self.subscriptions = Subscriptions(self)
        self._catalog.holdings = self.subscriptions
        self.queue_calls = QueueCalls(self)
        self.pending: set[Routed] = set()
        """Receives that wait elsewhere, and calls that tasks work at."""
        self.forwarded: Counter[type[Command]] = Counter()
        """How many commands of each kind went to other nodes."""
        self._events = ShardEvents(self._served)
        self._spans_map: ClusterMap | None = None
        self._spans: dict[int, int] = {}
        """Shard -> how many shards from there on it takes to have one of every node, by that map."""
        self._client = f"router {os.urandom(16).hex()}"
        self._last_named = 0
        self._unanswered: dict[int, None] = {}
        """The numbers of named commands that have not been answered, in order."""
        self._closing = False
        self._owners = maps.current().owners
        maps.on_change(self._map_changed)
        self._events.follow_shards()

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
        kind = command.__class__
        call = Routed(command, on_settled, self, caller)
        traits = kind.traits
        if traits.home is not Home.QUEUE:
            self._start_other(call)
            return call
        name: str = getattr(command, traits.queue)
        shard = home_of(name, self.shards)
        served = self._served.get(shard)
        if served is None or traits.is_noted or kind is Subscribe:
            self.queue_calls.start(call, name)
            return call
        queue = served.identity.queues.get(name)
        if queue is None:
            if kind is Send and command.config.partitions > 1:  # type: ignore[attr-defined]
                self.queue_calls.start(call, name)
                return call
        elif queue.config.partitions > 1:
            self.queue_calls.start(call, name)
            return call
        if kind is Send and command.groups is not None:  # type: ignore[attr-defined]
            call.whole = command  # if it has several partitions when the send gets there, it is refused
        call.shard = shard
        call.served = served
        remote_calls = self.remote_calls
        if remote_calls.lines and remote_calls.has_to_wait(call, None):
            self.dispatch(call, shard)
            return call
        if kind in OF_A_SESSION and command.session and not self.session_calls.localise(call, command):  # type: ignore[attr-defined]
            return call
        try:
            served.put(call, caller)
        except ShardClosed as error:
            self.fail_soon(call, error)
        return call

    def step_now(self) -> bool:
        """Nothing does here: which shard a message has come to is known later."""
        return False

    def submit_to(
        self, shard: int, command: Command, on_settled: Callable[[Call], None], caller: object = None
    ) -> CallbackCall:
        """Take a command to a shard by number, and try again when it has moved: for what the shards do themselves."""
        call = Routed(command, on_settled, self, caller)
        self.dispatch(call, shard)
        return call

    def withdraw(self, call: CallbackCall) -> None:
        assert isinstance(call, Routed)
        call.on_settled = ignore
        if call.is_over:
            self.give_back(call.reply)
            return
        call.is_over = True
        call.is_noted = False  # whoever has it gives back what it got: a second time would take it from the next
        self.pending.discard(call)
        timer = self.remote_calls.displaced.pop(call, None)
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
        known = self.maps.current()
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

    async def tallies(self, *, local: bool) -> AsyncIterator[list[QueueTally]]:
        """Every queue in numbers, some at a time: one shard after the other, so that no turn is long."""
        for shard in list(self._served) if local else range(self.shards):
            if local and shard not in self._served:
                continue  # it has moved meanwhile: whoever has it counts it
            async for page in pages_of_tallies(partial(self._tally, shard)):
                yield page

    async def _tally(self, shard: int, command: TallyQueues) -> list[QueueTally]:
        try:
            tallies: list[QueueTally] = await self.ask(shard, command)
            return tallies
        except InvalidRequest:  # a node of an earlier version has the shard
            names: list[str] = await self.ask(shard, ListQueues(after=command.after, limit=command.limit))
        found: list[QueueTally] = []
        for name in names:
            with contextlib.suppress(QueueNotFound, QueueDamaged):
                found.append(tally_of(await self.ask(shard, QueueStats(name=name))))
        return found

    def local_shards(self) -> Iterable[Shard]:
        """The shards that are in this process now."""
        return [served.shard for served in self._served.values()]

    async def ask_each(self, command: Command) -> list[tuple[int, Any]]:
        """Ask every shard the same, one after the other."""
        return [(shard, await self.ask(shard, msgspec.structs.replace(command))) for shard in range(self.shards)]

    async def ask_each_of(self, queue: str, command: Command) -> list[tuple[int, Any]]:
        """Ask the shards that have a part of a queue."""
        info: QueueInfo = await self.call(DescribeQueue(name=queue))
        places = shards_of(queue, info.config.partitions, self.shards)
        return [(shard, await self.ask(shard, msgspec.structs.replace(command))) for shard in places]

    async def name_of(self, queue_id: int) -> str | None:
        """The name of a queue by its id: its shard knows."""
        if not 0 <= shard_of_id(queue_id) < self.shards:
            return None
        try:
            info: QueueInfo = await self.call(DescribeQueue(queue_id=queue_id))
        except QueueNotFound:
            return None
        return info.name

    async def ask_shard(self, shard: int, command: Command) -> Any:
        """Ask one shard, by its number."""
        if not 0 <= shard < self.shards:
            raise InvalidRequest(f"there is no shard {shard}: they count from 0, and there are {self.shards}")
        return await self.ask(shard, command)

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
        await asyncio.sleep(seconds)

    def now_ms(self) -> int:
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
        return self._events.listeners

    @property
    def reports(self) -> list[Damage]:
        """The last reports of damaged chunks in this node's shards."""
        return [report for served in self._served.values() for report in served.reports]

    def families(self) -> Iterator[Metric]:
        """What went to other nodes."""
        family = CounterMetricFamily(
            "penstock_forwarded_commands", "Commands that went to the node that owns their shard.", labels=("command",)
        )
        for kind, count in self.forwarded.items():
            family.add_metric((kind.__name__,), count)
        yield family

    async def tick(self) -> None:
        """Make a step in each of this node's shards."""
        if self._closing:
            raise ShardClosed("the node is stopping: ask another one")
        await asyncio.gather(*(served.call(Tick()) for served in list(self._served.values())))

    async def unready(self, within_s: float) -> Unready:
        """Nobody is asked but this node's own shards; of the others the map says whether they are served.

        A node whose shards are all gone, and that has not heard who has them, is cut off: others serve them by now.
        """
        if self._closing:
            raise ShardClosed("the node is stopping: ask another one")
        here, current = dict(self._served), self.maps.current()
        answers = await asyncio.gather(*(it.answers(within_s) for it in here.values()), return_exceptions=True)
        found = dict(zip(here, answers, strict=True))
        lost = [shard for shard in current.own_shards if not isinstance(found.get(shard), bool)]
        unserved = sorted({*lost, *(shard for shard, owner in enumerate(current.owners) if not owner)})
        reason = ""
        if len(unserved) == self.shards:
            reason = "no shard is served: look at the other nodes' logs, and at Kafka"
        elif lost and len(lost) == len(current.own_shards):
            reason = "this node has lost its shards, and does not know which nodes have them: can it reach Kafka?"
        return Unready(unserved, [shard for shard, answer in found.items() if answer is False], reason)

    async def close(self) -> None:
        """Commit what is left, end every wait, close this node's shards. Once more does nothing."""
        if self._closing:
            return
        self._closing = True
        lines = self.remote_calls.end_waiting()
        for call in [*self.remote_calls.displaced, *self.pending, *self.queue_calls.asking(), *lines]:
            self._end_wait(call)
        await self._host.close()

    def _end_wait(self, call: Routed) -> None:
        """The node stops: a receive ends with nothing, everything else was not done, or nobody knows."""
        if call.is_over:
            return
        on_settled, command = call.on_settled, call.command
        if isinstance(command, Receive):
            call.reply = call.error = None
        elif call in self.pending:
            return  # it is answered yet
        else:
            call.error = ShardClosed("the node is stopping: ask another one")
        self.withdraw(call)
        on_settled(call)

    def _map_changed(self, changed: ClusterMap) -> None:
        if not self._closing:
            self._events.follow_shards()
            self.remote_calls.map_changed(changed)
            owners, self._owners = self._owners, changed.owners
            moved = [shard for shard, owner in enumerate(changed.owners) if owner and owner != owners[shard]]
            self.session_calls.shards_moved([shard for shard in moved if shard not in self._served])

    # -- on the way to one shard --

    def _start_other(self, call: Routed) -> None:
        """A command that is not about one queue."""
        home = call.command.traits.home
        if home is Home.SHARD:
            name = type(call.command).__name__
            self.fail_soon(call, InvalidRequest(f"{name} is for a shard, and has no way through a router"))
        elif home is Home.SUBSCRIPTION:
            self.subscriptions.start(call)
        else:
            self.run(call, self.scatter_gather.do(call.command))

    def run(self, call: Routed, work: Coroutine[Any, Any, Any]) -> None:
        """Have a coroutine answer a call."""
        call.task = self._loop.create_task(work)
        self.pending.add(call)
        call.task.add_done_callback(lambda task: self._was_run(call, task))

    def _was_run(self, call: Routed, task: asyncio.Task[Any]) -> None:
        self.pending.discard(call)
        if task.cancelled():
            if not call.is_over:
                call.error = ShardClosed("the node is stopping: ask another one")
                self.finish(call)
            return
        call.task = None
        call.error = task.exception()
        call.reply = task.result() if call.error is None else None
        if call.is_over:
            self.give_back(call.reply)
        else:
            self.finish(call)

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
        if command.__class__ in OF_A_SESSION and not self.session_calls.localise(call, command):
            return
        remote_calls = self.remote_calls
        if command.__class__ is Receive:
            call.since_ms = call.since_ms or self._clock.now_ms()
        elif remote_calls.lines and remote_calls.has_to_wait(call, remote_calls.target(shard)):
            remote_calls.wait_for_shard(call)
            return
        self.go(call, shard)

    def go(self, call: Routed, shard: int) -> None:
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
            return
        if call.command.once is None and call.command.traits.is_named_by_nodes:
            self._name(call)
        self.remote_calls.go(call, shard)

    def _name(self, call: Routed) -> None:
        """Have a call done once, so that it can be sent again when nobody knows whether it was done."""
        number = self._last_named = self._last_named + 1
        self._unanswered[number] = None
        once = Once(self._client, number, answered=next(iter(self._unanswered)))
        call.command = msgspec.structs.replace(call.command, once=once)
        on_settled = call.on_settled

        def answered(call: Call) -> None:
            del self._unanswered[number]
            on_settled(call)

        call.on_settled = answered

    def fail_soon(self, call: Routed, error: BaseException) -> None:
        """Answer a call with an error, in the loop's next turn."""
        call.error = error
        self._loop.call_soon(self._failed_soon, call)

    def _failed_soon(self, call: Routed) -> None:
        if not call.is_over:
            self.settled(call)

    # -- on the way back --

    def settled(self, call: Routed) -> None:
        self.pending.discard(call)
        error = call.error
        if self.remote_calls.lines and not (error is not None and self._is_worth_repeating(call, error)):
            self.remote_calls.release_waiting(call)
        if call.is_over:
            self.give_back(call.reply)
            return
        if error is not None:
            if self.subscriptions.is_moving(call) and isinstance(
                error, ShardMoved | ShardClosed | LinkBroken | NotFound
            ):
                call.error = None
                self.finish(call)
                return
            if self._is_worth_repeating(call, error):
                self.remote_calls.displace(call)
                return
            if isinstance(error, SessionNotFound) and call.session and self.session_calls.reopen(call):
                return
            if isinstance(error, ShardMoved):
                call.error = ShardUnserved(f"shard {call.shard} has moved, and the node is stopping: ask another one")
            elif isinstance(error, QueueNotFound):
                if call.command.traits.queue:
                    self._catalog.forget(getattr(call.command, call.command.traits.queue))
                # the partition is missing, or the queue: that is the long way's matter
                if call.whole is not None and (isinstance(error, QueueReplaced) or not isinstance(call.whole, Receive)):
                    self.queue_calls.take_the_long_way(call, call.whole)
                    return
        elif call.is_noted:
            self._note(call)
        self.finish(call)

    def tell_settled(self, call: Routed) -> None:
        """Tell subscriptions what a call has settled, once."""
        parts, call.parts = call.parts, []
        self.subscriptions.settled(parts, 0 if call.error is not None or call.reply is None else call.reply.count)

    def finish(self, call: Routed) -> None:
        """Tell who waits for a call."""
        call.is_over = True
        if call.parts:
            self.tell_settled(call)
        call.on_settled(call)

    def _is_worth_repeating(self, call: Routed, error: BaseException) -> bool:
        if self._closing:
            return False
        if isinstance(error, ShardMoved | ShardClosed):
            return True
        if not isinstance(error, LinkBroken):
            return False
        return call.command.once is not None or call.command.repeat is not Repeat.NAMED

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
