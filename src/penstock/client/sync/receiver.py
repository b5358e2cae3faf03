"""Receiving and settling through one channel of one queue: what a queue and a channel have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload

from penstock.client.bodies import Body, encode_body
from penstock.client.content import PeekedMessage
from penstock.client.settling import check_settled
from penstock.client.sync.batch import Batch
from penstock.client.sync.caller import Caller
from penstock.client.sync.message import Message, messages_of
from penstock.client.times import Seconds, lease_length_ms, length_ms
from penstock.core.commands import (
    Ack,
    Browse,
    Delivery,
    DescribeQueue,
    Extend,
    QueueInfo,
    Receive,
    Release,
    Seen,
)
from penstock.core.delivery.states import State
from penstock.core.errors import InvalidRequest

WAITING = (State.READY, State.LEASED, State.DELAYED)
"""Every state but DONE."""


class Receiver:
    """Messages come out here."""

    __slots__ = ("_caller", "_channel", "_queue", "_session")

    def __init__(self, caller: Caller, queue: str, channel: str, session: int = 0) -> None:
        self._caller = caller
        self._queue = queue
        self._channel = channel
        self._session = session

    # -- receiving --

    @overload
    def receive(
        self, *, wait: Seconds | None = None, lease: Seconds | None = None, attempt_id: str | None = None
    ) -> Message | None: ...

    @overload
    def receive(
        self, max: int, *, wait: Seconds | None = None, lease: Seconds | None = None, attempt_id: str | None = None
    ) -> list[Message]: ...

    def receive(
        self,
        max: int | None = None,
        *,
        wait: Seconds | None = None,
        lease: Seconds | None = None,
        attempt_id: str | None = None,
    ) -> Message | list[Message] | None:
        """Lease one message (None if there is none), or with `max` a list of up to so many.

        `while message := queue.receive(wait=5):` goes on until nothing comes for five seconds; `with
        message:` inside it settles each.

        `wait`: how long to wait for the first one (None: as the queue is configured). `lease`: how long the messages
        are this receiver's. `attempt_id`: FIFO queues give the same messages again for the same id, while they are
        leased.
        """
        delivery = self._receive(1 if max is None else max, wait, lease, attempt_id)
        messages = messages_of(self._caller, delivery)
        if max is not None:
            return messages
        return messages[0] if messages else None

    def receive_batch(
        self,
        max: int = 1_000,
        *,
        wait: Seconds | None = None,
        lease: Seconds | None = None,
        attempt_id: str | None = None,
    ) -> Batch:
        """Lease up to `max` messages as one object, which is empty if there are none."""
        return Batch(self._caller, self._receive(max, wait, lease, attempt_id))

    def _receive(self, limit: int, wait: Seconds | None, lease: Seconds | None, attempt_id: str | None) -> Delivery:
        command = Receive(
            queue=self._queue,
            channel=self._channel,
            limit=limit,
            wait_ms=length_ms(wait, "wait"),
            lease_ms=length_ms(lease, "lease"),
            session=self._session,
            attempt_id=attempt_id,
        )
        delivery: Delivery | None = self._caller.call(command)
        return delivery or Delivery(self._queue, 0, self._channel, 0, 0, 0)

    # -- settling by receipt --

    def ack(self, receipt: str | Iterable[str]) -> int:
        """The work is done. Returns how many messages went; raises the first refusal after settling the others."""
        command = Ack(queue=self._queue, channel=self._channel, receipts=_listed(receipt))
        return check_settled(self._caller.call(command))

    def release(self, receipt: str | Iterable[str], *, delay: Seconds | None = None, error: str = "") -> int:
        """The work failed: messages go back, at once or after a delay (None: as the queue's backoff says)."""
        delay_ms, receipts = length_ms(delay, "delay"), _listed(receipt)
        command = Release(queue=self._queue, channel=self._channel, receipts=receipts, delay_ms=delay_ms, error=error)
        return check_settled(self._caller.call(command))

    def extend(self, receipt: str | Iterable[str], lease: Seconds) -> int:
        """The work goes on: leases end so many seconds from now. 0 gives messages back."""
        lease_ms, receipts = lease_length_ms(lease), _listed(receipt)
        command = Extend(queue=self._queue, channel=self._channel, spans=[], lease_ms=lease_ms, receipts=receipts)
        return check_settled(self._caller.call(command))

    # -- looking --

    def peek(self, max: int = 10) -> list[PeekedMessage]:
        """The first messages that are not done, whatever their state, without taking them."""
        return self.browse(limit=max)

    def browse(
        self, *, after: int = -1, limit: int = 100, states: Iterable[State] = WAITING, contains: Body | None = None
    ) -> list[PeekedMessage]:
        """Messages in order, from the one after sequence number `after`, without taking them."""
        seen: list[Seen] = self._caller.call(
            Browse(
                queue=self._queue,
                channel=self._channel,
                after=after,
                limit=limit,
                states=tuple(states),
                contains=None if contains is None else encode_body(contains),
            )
        )
        if not seen:
            return []
        info: QueueInfo = self._caller.call(DescribeQueue(name=self._queue))
        return [PeekedMessage(self._caller.identity, info.queue_id, one) for one in seen]

    def search(self, contains: Body, *, after: int = -1, limit: int = 100) -> list[PeekedMessage]:
        """Messages whose body holds these bytes, without taking them."""
        return self.browse(after=after, limit=limit, contains=encode_body(contains))


def _listed(receipt: str | Iterable[str]) -> list[str]:
    if isinstance(receipt, str):
        return [receipt]
    if not isinstance(receipt, Iterable):
        raise InvalidRequest(f"{receipt!r} is no receipt: give `message.receipt`, or a list of such")
    return list(receipt)
