"""Settling by receipts: each names its queue, its channel, its message and the attempt."""

from __future__ import annotations

import pytest

from penstock.core import commands as c
from penstock.core.errors import ForeignReceipt, ForgedReceipt
from tests.core.driver import BrokerDriver, bodies_of


def receipts_of(driver: BrokerDriver, delivery: c.Delivery) -> list[str]:
    ids = delivery.queue_id, delivery.channel_id
    return [
        driver.broker.receipt(*ids, sequence, span.attempt)
        for span in delivery.spans()
        for sequence in range(span.first, span.last + 1)
    ]


def test_receipts_settle_their_messages_and_no_others() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a", b"b", b"c")
    first, _, last = receipts_of(driver, driver.receive(3))
    assert driver.do(c.Ack(queue="q", spans=[], receipts=[first, last])).count == 2
    assert driver.do(c.Ack(queue="q", spans=[], receipts=[first])).count == 0, "it was used"
    assert driver.counts() == (0, 1, 0)


def test_receipts_outlive_the_broker_that_made_them() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a")
    (receipt,) = receipts_of(driver, driver.receive())
    driver.reopen()
    assert driver.do(c.Release(queue="q", spans=[], receipts=[receipt], delay_ms=0)).count == 1
    assert bodies_of(driver.receive()) == [b"a"]


def test_a_receipt_that_this_store_has_not_made_is_forged() -> None:
    driver = BrokerDriver()
    driver.create()
    with pytest.raises(ForgedReceipt):
        driver.do(c.Ack(queue="q", spans=[], receipts=["x" * 52]))


@pytest.mark.parametrize(("is_gone", "whose"), [(False, "queue 'other'"), (True, "a queue that is gone")])
def test_a_receipt_of_another_queue_is_refused_by_its_name(is_gone: bool, whose: str) -> None:
    driver = BrokerDriver()
    driver.create()
    driver.create("other")
    driver.send(b"a", queue="other")
    (receipt,) = receipts_of(driver, driver.receive(queue="other"))
    if is_gone:
        driver.do(c.DeleteQueue(name="other"))
    with pytest.raises(ForeignReceipt, match=f"the receipt belongs to {whose}, and not to 'q'"):
        driver.do(c.Ack(queue="q", spans=[], receipts=[receipt]))


@pytest.mark.parametrize(("is_gone", "whose"), [(False, "channel 'tap'"), (True, "a channel that is gone")])
def test_a_receipt_of_another_channel_is_refused_by_its_name(is_gone: bool, whose: str) -> None:
    driver = BrokerDriver()
    driver.create(channels=("main", "tap"))
    driver.send(b"a")
    (receipt,) = receipts_of(driver, driver.receive(channel="tap"))
    if is_gone:
        driver.do(c.DeleteChannel(queue="q", channel="tap"))
    with pytest.raises(ForeignReceipt, match=f"the receipt belongs to {whose} of 'q', and not to 'main'"):
        driver.do(c.Ack(queue="q", spans=[], receipts=[receipt]))
