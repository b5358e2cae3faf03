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
    """All messages of one receive. An empty batch is falsy. As a context manager it settles them as a message does."""

    __slots__ = ()

    _caller: Caller

    def messages(self) -> list[Message]:
        """The messages one by one, to be read or settled separately."""
        return messages_of(self._caller, self._delivery)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())

    def __getitem__(self, part: slice) -> Batch:
        """Some of the messages as a batch of their own: `batch[:10].ack()`, `batch[10:].give_back()`."""
        return Batch(self._caller, self._part(part))

    def ack(self) -> int:
        """The work is done. Returns the number of messages that were acknowledged."""
        if not self._delivery.runs:
            return 0
        delivery = self._delivery
        command = Ack(queue=delivery.queue, channel=delivery.channel, spans=self.spans)
        count = Settled.check(self._caller.call(command))
        self._settled = True
        return count

    def release(self, *, delay: Seconds | None = None, error: str = "") -> int:
        """The work failed: all messages are delivered again. Returns the number of messages."""
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
        """Return messages that nobody has begun to work on: they are ready, as if not received. Returns their number.

        Under the policies `consume_times` and `consume_once`, the delivery still counts.
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
        """The work takes longer: every lease ends `lease` seconds from now. Returns the number of messages."""
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
