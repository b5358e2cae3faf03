"""Many messages as one object: received, read and settled without touching each."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from penstock.client.content import RunView
from penstock.client.sync.caller import Caller
from penstock.client.sync.message import Message, error_text, messages_of
from penstock.client.times import Seconds, lease_length_ms, length_ms
from penstock.core.commands import (
    Ack,
    Delivery,
    Extend,
    GiveBack,
    Release,
    Settled,
    Span,
)
from penstock.core.errors import InvalidRequest, PenstockError


class Batch:
    """A whole delivery. Falsy when it is empty. As a context manager it settles like a message does."""

    __slots__ = ("_caller", "_delivery", "_settled", "_spans")

    def __init__(self, caller: Caller, delivery: Delivery) -> None:
        self._caller = caller
        self._delivery = delivery
        self._spans: list[Span] | None = None
        self._settled = False

    def __len__(self) -> int:
        return self._delivery.count

    @property
    def spans(self) -> list[Span]:
        """The messages as commands name them."""
        if self._spans is None:
            self._spans = self._delivery.spans()
        return self._spans

    @property
    def runs(self) -> list[RunView]:
        """Runs of consecutive messages, as they lie in memory."""
        return [RunView(run) for run in self._delivery.runs]

    @property
    def bodies(self) -> list[bytes]:
        """Every body."""
        return [body for run in self._delivery.runs for body in run.chunk.body_list(run.start, run.stop)]

    def messages(self) -> list[Message]:
        """Every message by itself, to be read or settled one by one."""
        return messages_of(self._caller, self._delivery)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())

    def __getitem__(self, part: slice) -> Batch:
        """Some of the messages as a batch of their own: `batch[:10].ack()`, `batch[10:].give_back()`."""
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise InvalidRequest(f"{part!r} cuts no batch: write batch[10:20], or batch.messages()[10] for one message")
        start, stop, _ = part.indices(len(self))
        runs, before = [], 0
        for run in self._delivery.runs:
            low, high = max(start - before, 0), min(stop - before, run.count)
            if low < high:
                runs.append(run.part(low, high))
            before += run.count
        whole = self._delivery
        part_of_it = Delivery(
            whole.queue, whole.queue_id, whole.channel, whole.channel_id, whole.received_ms, whole.deadline_ms, runs
        )
        return Batch(self._caller, part_of_it)

    def ack(self) -> int:
        """The work is done. Returns how many messages went."""
        if not self._delivery.runs:
            return 0
        delivery = self._delivery
        command = Ack(queue=delivery.queue, channel=delivery.channel, spans=self.spans)
        count = Settled.check(self._caller.call(command))
        self._settled = True
        return count

    def release(self, *, delay: Seconds | None = None, error: str = "") -> int:
        """The work failed: all messages go back. Returns how many."""
        if not self._delivery.runs:
            return 0
        delivery, delay_ms = self._delivery, length_ms(delay, "delay")
        command = Release(
            queue=delivery.queue, channel=delivery.channel, spans=self.spans, delay_ms=delay_ms, error=error
        )
        count = Settled.check(self._caller.call(command))
        self._settled = True
        return count

    def give_back(self) -> int:
        """Nobody has begun to work on these: they are ready again, as if they had not been received. Returns how many.

        The policies `consume_times` and `consume_once` count the delivery all the same.
        """
        if not self._delivery.runs:
            return 0
        delivery = self._delivery
        command = GiveBack(
            queue=delivery.queue, channel=delivery.channel, spans=self.spans, received_ms=delivery.received_ms
        )
        count = Settled.check(self._caller.call(command))
        self._settled = True
        return count

    def extend(self, lease: Seconds) -> int:
        """The work goes on: every lease ends so many seconds from now. Returns how many."""
        if not self._delivery.runs:
            return 0
        delivery, lease_ms = self._delivery, lease_length_ms(lease)
        command = Extend(queue=delivery.queue, channel=delivery.channel, spans=self.spans, lease_ms=lease_ms)
        count = Settled.check(self._caller.call(command))
        self._settled = lease_ms == 0
        return count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._settled:
            return
        if error is None:
            self.ack()
            return
        try:
            self.release(error=error_text(error))
        except PenstockError as refusal:
            error.add_note(f"the batch could not be released: {refusal}")

    def __repr__(self) -> str:
        return f"<Batch: {len(self)} messages of {self._delivery.queue!r}>"
