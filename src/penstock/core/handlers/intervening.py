"""What an operator does to messages that he names by number: looks at their lives, deletes them, puts them off.

No lease is needed, and none is respected, but for messages that a unit of work in another shard is about to ack. What
becomes of the messages of one channel is said in `core/delivery/intervention.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.commands import Changed, DeleteMessages, Life, LookUp, NameQueue, RescheduleMessages
from penstock.core.delivery import intervention
from penstock.core.delivery.channel import Channel
from penstock.core.errors import InvalidRequest
from penstock.core.handlers.checks import clean
from penstock.core.queues.config import DELAY_MS_MAX

if TYPE_CHECKING:
    from penstock.core.broker import Broker

LOOKED_UP_MAX = 100
"""Messages that one command may look up: each comes with its body."""
NAMED_MAX = 10_000
"""Messages that one command may change."""


class Intervening:
    """Does what an operator wants of messages, whoever has them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def _name_queue(self, command: NameQueue) -> str | None:
        return self.broker.queue_name(command.queue_id)

    def _look_up(self, command: LookUp) -> list[Life]:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        _check(command.sequences, LOOKED_UP_MAX)
        queue.seal()
        found = (queue.life(sequence) for sequence in command.sequences)
        return [life for life in found if life is not None]

    def _delete_messages(self, command: DeleteMessages) -> Changed:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        if command.channel is None:
            channels = list(queue.channels.values())
        else:
            channels = [self.broker.find_channel(queue, command.channel)]
        if not channels:
            raise InvalidRequest(f"queue {queue.name!r} has no channels: its messages go by retention, or all at once")
        return self._change(command.sequences, channels, intervention.delete)

    def _reschedule_messages(self, command: RescheduleMessages) -> Changed:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        channel = self.broker.find_channel(queue, command.channel)
        now_ms = self.broker.now_ms
        due_ms = command.due_ms if command.delay_ms is None else now_ms + command.delay_ms
        if due_ms - now_ms > DELAY_MS_MAX:
            raise InvalidRequest(f"the new time is {due_ms}: it may be {DELAY_MS_MAX // 86_400_000} days ahead")
        error = clean(command.error)

        def put_off(each: Channel, first: int, stop: int, now: int) -> list[tuple[int, int]]:
            return intervention.reschedule(each, first, stop, max(due_ms, now), now, error)

        return self._change(command.sequences, [channel], put_off)

    def _change(
        self,
        sequences: list[int],
        channels: list[Channel],
        change: Callable[[Channel, int, int, int], list[tuple[int, int]]],
    ) -> Changed:
        _check(sequences, NAMED_MAX)
        wanted = sorted(set(sequences))
        runs, now_ms = _runs(wanted), self.broker.now_ms
        for channel in channels:
            channel.queue.seal()
            for first, stop in runs:
                intervention.bring_in(channel, first, stop, now_ms)  # it may be refused: before anything is changed
        done: set[int] = set()
        for channel in channels:
            for first, stop in runs:
                for low, high in change(channel, first, stop, now_ms):
                    done.update(range(low, high))
        self.broker.must_commit = True
        return Changed(len(done), [each for each in wanted if each not in done])


def _check(sequences: list[int], count_max: int) -> None:
    if not 1 <= len(sequences) <= count_max:
        raise InvalidRequest(f"{len(sequences)} messages are named: give from 1 to {count_max}")
    if min(sequences) < 0:
        raise InvalidRequest(f"{min(sequences)} is no sequence number")


def _runs(ordered: list[int]) -> list[tuple[int, int]]:
    """Runs of neighbours.

    >>> _runs([1, 2, 3, 7])
    [(1, 4), (7, 8)]
    """
    found: list[tuple[int, int]] = []
    for each in ordered:
        if found and found[-1][1] == each:
            found[-1] = (found[-1][0], each + 1)
        else:
            found.append((each, each + 1))
    return found
