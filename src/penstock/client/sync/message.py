"""A received message: read it, work on it, settle it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.client.content import Leased, error_text
from penstock.client.sync.caller import Caller
from penstock.client.times import Seconds, lease_length_ms, length_ms
from penstock.core.commands import Ack, Delivery, Extend, Release, Settled
from penstock.core.errors import PenstockError


class Message(Leased):
    """A leased message. As a context manager it acks when the block succeeds, and releases when it raises."""

    __slots__ = ()

    _caller: Caller

    def ack(self) -> None:
        """The work is done: the message is removed."""
        delivery = self._delivery
        command = Ack(queue=delivery.queue, channel=delivery.channel, spans=[self.span])
        Settled.check(self._caller.call(command))
        self._settled = True

    def release(self, *, delay: Seconds | None = None, error: str = "") -> None:
        """The work failed: the message is delivered again, after `delay` (None: by the queue's backoff)."""
        delay_ms = length_ms(delay, "delay")
        command = Release(queue=self.queue, channel=self.channel, spans=[self.span], delay_ms=delay_ms, error=error)
        Settled.check(self._caller.call(command))
        self._settled = self._given_back = True

    def extend(self, lease: Seconds) -> None:
        """The work takes longer: the lease ends `lease` seconds from now. 0 gives the message back."""
        lease_ms = lease_length_ms(lease)
        command = Extend(queue=self.queue, channel=self.channel, spans=[self.span], lease_ms=lease_ms)
        Settled.check(self._caller.call(command))
        self._lease_ends_ms = self._caller.now_ms() + lease_ms
        self._settled = self._given_back = lease_ms == 0

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
            error.add_note(f"message {self.id} could not be released: {refusal}")


def messages_of(caller: Caller, delivery: Delivery | None) -> list[Message]:
    """The messages of a delivery, one by one."""
    if delivery is None:
        return []
    return [Message(caller, delivery, run, index) for run in delivery.runs for index in range(run.start, run.stop)]
