"""Many messages as one object: received, read and settled without touching each."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from penstock.client.content import LeasedBatch, error_text
from penstock.client.sync.caller import Caller
from penstock.client.sync.message import Message, messages_of
from penstock.client.times import Seconds, lease_length_ms, length_ms
from penstock.core.commands import Ack, Extend, GiveBack, Release, Settled
from penstock.core.errors import PenstockError


class Batch(LeasedBatch):
    """A whole delivery. Falsy when it is empty. As a context manager it settles like a message does."""

    __slots__ = ()

    _caller: Caller

    def messages(self) -> list[Message]:
        """Every message by itself, to be read or settled one by one."""
        return messages_of(self._caller, self._delivery)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())

    def __getitem__(self, part: slice) -> Batch:
        """Some of the messages as a batch of their own: `batch[:10].ack()`, `batch[10:].give_back()`."""
        return Batch(self._caller, self._part(part))

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
