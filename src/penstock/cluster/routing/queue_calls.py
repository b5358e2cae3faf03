"""Calls about one queue: which way each takes.

    whole      to the queue's shard: the queue has one partition, or only the first one is asked
    straight   a send without groups, and what settles messages by their numbers: to the shards of the partitions
    split      all else about a queue with several partitions: a coroutine asks them (`spread.py`)

Who knows how many partitions a queue has? Its first partition. Here it is looked up, for a queue elsewhere it is asked
for (once, and then remembered); commands that come meanwhile wait for the answer, in their order.

What is remembered may be of a queue that is gone. So a call to which the number of partitions matters says which queue
it is meant for, and keeps its command as it came (`Routed.whole`): when it is refused, it takes the long way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.cluster.base import shard_of_id
from penstock.cluster.links.wire import SETTINGS_SINCE
from penstock.cluster.partitions.messages import SEQUENCES, Sequences, Settlement
from penstock.cluster.routing.placement import home_of
from penstock.cluster.routing.routed import Routed
from penstock.core.commands import (
    ChangeQueue,
    Command,
    CreateQueue,
    DescribeQueue,
    ExtendSequences,
    Receive,
    Send,
    Subscribe,
)
from penstock.core.errors import InvalidConfig, QueueNotFound
from penstock.core.traits import Split
from penstock.server.shard import Call

if TYPE_CHECKING:
    from penstock.cluster.routing.router import Router

_UNASKED: frozenset[Split] = frozenset({Split.FIRST, Split.CREATE})
"""For these it does not matter how many partitions the queue has."""


class QueueCalls:
    """Starts a router's calls about queues, if they do not go into a shard of this process right away."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._shards = router.shards
        self._served = router.served
        self._catalog = router.catalog
        self._asking: dict[str, list[Routed]] = {}
        """Calls that wait until it is known how many partitions their queue has."""

    def asking(self) -> list[Routed]:
        """Those calls."""
        return [call for calls in self._asking.values() for call in calls]

    def start(self, call: Routed, name: str) -> None:
        """A command about one queue."""
        command = call.command
        if SETTINGS_SINCE and isinstance(command, CreateQueue | ChangeQueue):
            refusal = self._too_early(command)
            if refusal is not None:
                self._router.fail_soon(call, refusal)
                return
        traits = command.traits
        if isinstance(command, DescribeQueue) and command.queue_id:
            call.is_noted = True
            self._router.dispatch(call, shard_of_id(command.queue_id) % self._shards)
            return
        if name in self._asking and traits.split not in _UNASKED:
            self._ask_first(call, name)  # behind those who came before
            return
        is_near = home_of(name, self._shards) in self._served
        # For what changes all partitions, how many there are is asked for, and not remembered: it comes seldom.
        is_asked_for = traits.administers and traits.split not in _UNASKED
        config = None if is_asked_for and not is_near else self._catalog.config(name)
        if config is None and isinstance(command, Send | CreateQueue):
            if command.config.partitions > 1 and self._shards > 1:
                self._start_split(call)
                return
            if is_near:
                self._start_whole(call, name)
                return
        if config is None and traits.split not in _UNASKED and not is_near:
            self._ask_first(call, name)
        elif config is not None and config.partitions > 1 and traits.split is not Split.FIRST and self._shards > 1:
            self._start_split(call)
        else:
            self._start_whole(call, name)

    def _too_early(self, command: CreateQueue | ChangeQueue) -> InvalidConfig | None:
        """What is wrong with a setting that some node is too old for."""
        given = command.changes if isinstance(command, ChangeQueue) else msgspec.to_builtins(command.config)
        for setting, version in SETTINGS_SINCE.items():
            if setting in given:
                earlier = self._router.maps.current().earlier_than(version)
                if earlier:
                    return InvalidConfig(f"{setting} cannot be set before node {earlier!r} is upgraded")
        return None

    def _ask_first(self, call: Routed, name: str) -> None:
        """Wait until it is known how many partitions the queue has; in the order of coming."""
        waiting = self._asking.get(name)
        if waiting is not None:
            waiting.append(call)
            return
        self._asking[name] = [call]
        asked = Routed(DescribeQueue(name=name), lambda answer: self._was_asked(name, answer), self._router)
        asked.is_noted = True
        self._router.dispatch(asked, home_of(name, self._shards))

    def _was_asked(self, name: str, answer: Call) -> None:
        waiting = self._asking.pop(name, [])
        error = answer.error
        is_split = error is None and answer.reply.config.partitions > 1 and self._shards > 1
        for call in waiting:
            if call.is_over:
                continue
            if error is not None and not isinstance(error, QueueNotFound):
                call.error = error
                self._router.finish(call)
            elif is_split:
                self._start_split(call)
            else:
                self._start_whole(call, name)

    def _start_whole(self, call: Routed, name: str) -> None:
        """The queue has one partition."""
        command = call.command
        if isinstance(command, Subscribe):
            self._router.subscriptions.subscribe(call, is_split=False)
            return
        call.is_noted = command.traits.is_noted
        if isinstance(command, Receive) or (isinstance(command, Send) and command.groups is not None):
            self._say_which(call, command)
        self._router.dispatch(call, home_of(name, self._shards))

    def _say_which(self, call: Routed, command: Receive | Send) -> None:
        """If the queue has several partitions by now, it is refused, and takes the long way."""
        call.whole = command
        known = self._catalog.known(command.queue)
        if known is not None:
            call.command = msgspec.structs.replace(command, of_queue=known.id)

    def _start_split(self, call: Routed) -> None:
        """The queue has several partitions, or will have."""
        command = call.command
        if isinstance(command, Subscribe):
            self._router.subscriptions.subscribe(call, is_split=True)
        elif isinstance(command, Send) and (straight := self._router.spread.messages.straight(command)) is not None:
            call.whole = command
            shard, call.command = straight
            self._router.dispatch(call, shard)
        elif isinstance(command, SEQUENCES) and (parts := self._router.spread.messages.parts_of(command)):
            self._start_settling(call, parts)
        else:
            self._router.run(call, self._router.spread.do_split(command))

    def _start_settling(self, call: Routed, parts: list[tuple[int, Sequences]]) -> None:
        """Take each part to its shard at once: what a connection settles next must not overtake it."""
        if len(parts) == 1:
            self._settle_part(call, *parts[0])
            return
        together = Settlement(call, len(parts), self._router.finish)
        for shard, part in parts:
            self._settle_part(Routed(part, together.add, self._router, call.caller), shard, part)

    def _settle_part(self, call: Routed, shard: int, command: Sequences) -> None:
        call.whole = command
        if not isinstance(command, ExtendSequences):
            call.parts = self._router.subscriptions.settling(command.session, shard)
            call.is_noted = bool(call.parts)
        self._router.dispatch(call, shard)

    def take_the_long_way(self, call: Routed, whole: Command) -> None:
        """Its partition is not there, or the queue is another one by now: a coroutine looks at it again."""
        call.whole = call.error = call.served = call.place = None
        if isinstance(whole, Send):
            self._router.run(call, self._router.spread.send_again(whole, call.shard))
            return
        if isinstance(whole, Receive):
            self._router.run(call, self._router.spread.do_split(whole))
            return
        assert isinstance(whole, SEQUENCES)
        whole.session = call.session or whole.session  # it had the shard's number
        self._router.tell_settled(call)
        self._router.run(call, self._router.spread.do_split(whole))
