"""The commands that settle messages: acks, releases, extensions, and messages given back.

They name messages by receipts, by spans, or by sequence numbers and the session that holds them. Here is found out
which messages are meant, and of which channel; what becomes of them is said in `core/delivery/acknowledgement.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.commands import (
    Ack,
    AckSequences,
    Extend,
    ExtendSequences,
    GiveBack,
    Refused,
    Release,
    ReleaseSequences,
    Settled,
    Span,
)
from penstock.core.delivery.channel import Channel
from penstock.core.delivery.runs import merged_spans
from penstock.core.errors import ForeignReceipt, InvalidRequest
from penstock.core.handlers.checks import check_lease, clean
from penstock.core.queues.config import DELAY_MS_MAX, LEASE_MS_MAX, out_of_range

if TYPE_CHECKING:
    from penstock.core.broker import Broker


class Acknowledging:
    """Settles messages for those who hold them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def ack(self, command: Ack) -> Settled:
        broker = self.broker
        channel = broker.find_channel(broker.find_queue(command.queue), command.channel)
        spans = self.spans_of(command, channel)
        broker.must_commit = True
        if len(spans) == 1:
            count, refused = channel.acknowledgement.ack(spans[0], in_time=command.in_time)
            return Settled(count, refused)
        return self._each(spans, lambda span: channel.acknowledgement.ack(span, in_time=command.in_time))

    def _release(self, command: Release) -> Settled:
        broker = self.broker
        channel = broker.find_channel(broker.find_queue(command.queue), command.channel)
        self._check_delay(command.delay_ms)
        error = clean(command.error)
        spans = self.spans_of(command, channel)
        return self._each(
            spans, lambda span: channel.acknowledgement.release(span, broker.now_ms, command.delay_ms, error)
        )

    def _extend(self, command: Extend) -> Settled:
        broker = self.broker
        channel = broker.find_channel(broker.find_queue(command.queue), command.channel)
        check_lease(command.lease_ms)
        spans, now_ms, late = self.spans_of(command, channel), broker.now_ms, command.late and not channel.queue.is_fifo
        if command.lease_ms == 0:
            return self._each(
                spans, lambda span: channel.acknowledgement.release(span, now_ms, 0, "released", late=late)
            )
        return self._each(spans, lambda span: channel.acknowledgement.extend(span, now_ms, command.lease_ms, late=late))

    def _give_back(self, command: GiveBack) -> Settled:
        broker = self.broker
        channel = broker.find_channel(broker.find_queue(command.queue), command.channel)
        for first, last, _ in command.spans:
            if not 0 <= first <= last:
                raise _backwards(first, last)
        if channel.queue.leases_are_durable:
            error = "the receiver went away"
            return self._each(
                command.spans, lambda span: channel.acknowledgement.release(span, broker.now_ms, 0, error)
            )
        return self._each(command.spans, lambda span: channel.acknowledgement.give_back(span, command.received_ms))

    def _ack_sequences(self, command: AckSequences) -> Settled:
        broker = self.broker
        channel = broker.find_channel(broker.find_queue(command.queue), command.channel)
        broker.must_commit = broker.must_commit or command.durable
        return channel.acknowledgement.ack_sequences(
            command.sequences, command.session or broker.session_register.own()
        )

    def _release_sequences(self, command: ReleaseSequences) -> Settled:
        broker = self.broker
        channel = broker.find_channel(broker.find_queue(command.queue), command.channel)
        self._check_delay(command.delay_ms)
        holder = command.session or broker.session_register.own()
        return channel.acknowledgement.release_sequences(
            command.sequences, holder, broker.now_ms, command.delay_ms, clean(command.error)
        )

    def _extend_sequences(self, command: ExtendSequences) -> Settled:
        broker = self.broker
        channel = broker.find_channel(broker.find_queue(command.queue), command.channel)
        check_lease(command.lease_ms)
        held_ms_max = LEASE_MS_MAX if command.held_ms_max is None else min(command.held_ms_max, LEASE_MS_MAX)
        holder = command.session or broker.session_register.own()
        return channel.acknowledgement.extend_sequences(
            command.sequences, holder, broker.now_ms, command.lease_ms, held_ms_max
        )

    def spans_of(self, command: Ack | Release | Extend, channel: Channel) -> list[Span]:
        """The messages that a command names, as spans. `ForeignReceipt` for a receipt of another queue or channel."""
        for first, last, _ in command.spans:
            if not 0 <= first <= last:
                raise _backwards(first, last)
        dispatch = channel.dispatch
        dispatch.recall_left = dispatch.recallable
        if not command.receipts:
            return command.spans
        opened = [self.broker.open_receipt(text) for text in command.receipts]
        for receipt in opened:
            if receipt.queue_id != channel.queue.id:
                owner = self.broker.queue_name(receipt.queue_id)
                whose = "a queue that is gone" if owner is None else f"queue {owner!r}"
                raise ForeignReceipt(f"the receipt belongs to {whose}, and not to {channel.queue.name!r}")
            if receipt.channel_id != channel.id:
                holder = self.broker.channel_name(receipt.queue_id, receipt.channel_id)
                whose = "a channel that is gone" if holder is None else f"channel {holder!r}"
                raise ForeignReceipt(
                    f"the receipt belongs to {whose} of {channel.queue.name!r}, and not to {channel.name!r}"
                )
        named = (Span(receipt.sequence, receipt.sequence, receipt.attempt) for receipt in opened)
        return [*command.spans, *merged_spans(named)]

    @staticmethod
    def _each(spans: list[Span], settle: Callable[[Span], tuple[int, list[Refused]]]) -> Settled:
        settled = Settled(0)
        for span in spans:
            count, refused = settle(span)
            settled.count += count
            if refused:
                settled.refused = settled.refused + refused
        return settled

    @staticmethod
    def _check_delay(delay_ms: int | None) -> None:
        if delay_ms is not None and not 0 <= delay_ms <= DELAY_MS_MAX:
            raise InvalidRequest(out_of_range("delay_ms", delay_ms, 0, DELAY_MS_MAX))


def _backwards(first: int, last: int) -> InvalidRequest:
    """A span that ends before it begins would be counted as fewer messages than none."""
    return InvalidRequest(f"a span goes from {first} to {last}: it must not end before it begins")
