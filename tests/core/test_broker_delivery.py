"""Sending, leasing, settling: the road of a message that goes well, or late."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core import commands as c
from penstock.core.errors import (
    ChannelNotFound,
    ForgedReceipt,
    InvalidRequest,
    LeaseTooLong,
    OverLimit,
    QueueNotFound,
    StaleReceipt,
)
from tests.core.driver import DAY_MS, HOUR_MS, MINUTE_MS, BrokerDriver, attempts_of, bodies_of, sequences_of


def test_messages_come_in_the_order_they_were_sent() -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b")
    driver.send(b"c")
    assert bodies_of(driver.receive(2)) == [b"a", b"b"]
    assert bodies_of(driver.receive(2)) == [b"c"]
    assert bodies_of(driver.receive(2)) == []


def test_sends_of_one_step_become_one_chunk() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.step(*(c.Send(queue="q", bodies=[b"%d" % number]) for number in range(50)))
    assert len(driver.chunk_keys()) == 1
    assert bodies_of(driver.receive(50)) == [b"%d" % number for number in range(50)]


def test_message_is_received_in_the_step_in_which_it_was_sent() -> None:
    driver = BrokerDriver()
    _, delivery = driver.step(c.Send(queue="q", bodies=[b"a"]), c.Receive(queue="q"))
    assert bodies_of(delivery) == [b"a"]


def test_run_larger_than_a_chunk_is_cut_and_comes_whole() -> None:
    driver = BrokerDriver()
    bodies = [b"%d" % number for number in range(10_000)]
    sent = driver.send(*bodies)
    assert len(driver.chunk_keys()) == 3
    delivery = driver.receive(20_000)
    assert bodies_of(delivery) == bodies
    assert sequences_of(delivery) == [sent.sequence(index) for index in range(10_000)]


def test_attributes_and_empty_bodies_come_along() -> None:
    driver = BrokerDriver()
    driver.send(b"", b"b", attributes=[b"attributes", None])
    (run,) = driver.receive(2).runs
    assert [run.chunk.attributes(0), run.chunk.attributes(1)] == [b"attributes", None]
    assert run.chunk.body_list() == [b"", b"b"]


def test_acked_message_is_gone_and_its_chunk_with_the_last_one() -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b")
    driver.ack(driver.receive(1))
    assert len(driver.chunk_keys()) == 1
    assert driver.ack(driver.receive(1)).count == 1
    assert driver.chunk_keys() == []
    assert driver.counts() == (0, 0, 0)


def test_same_ack_twice_is_refused_the_second_time() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    delivery = driver.receive()
    assert driver.ack(delivery).count == 1
    (refused,) = driver.ack(delivery).refused
    assert isinstance(refused.error, StaleReceipt)


def test_settling_is_per_message() -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b", b"c", b"d")
    driver.receive(4)
    driver.do(c.Ack(queue="q", spans=[c.Span(1, 1, 1)]))
    settled = driver.do(c.Ack(queue="q", spans=[c.Span(0, 3, 1)]))
    assert settled.count == 3
    assert [(refused.first, refused.last) for refused in settled.refused] == [(1, 1)]


def test_ack_with_a_wrong_attempt_is_stale_for_every_command() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.receive()
    for attempt in (0, 2):
        spans = [c.Span(0, 0, attempt)]
        for command in (
            c.Ack(queue="q", spans=spans),
            c.Release(queue="q", spans=spans),
            c.Extend(queue="q", spans=spans, lease_ms=1),
        ):
            settled = driver.do(command)
            assert settled.count == 0
            assert isinstance(settled.refused[0].error, StaleReceipt)
    assert driver.counts() == (0, 1, 0)


def test_message_that_was_never_received_cannot_be_acked() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    assert driver.do(c.Ack(queue="q", spans=[c.Span(0, 0, 0)])).count == 0
    assert driver.do(c.Ack(queue="q", spans=[c.Span(0, 0, 1)])).count == 0


def test_expired_lease_makes_the_message_ready_in_place_with_one_attempt_more() -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b", b"c")
    driver.receive(1, lease_ms=1_000)
    driver.advance(999)
    assert driver.counts() == (2, 1, 0)
    driver.advance(1)
    delivery = driver.receive(3)
    assert bodies_of(delivery) == [b"a", b"b", b"c"]
    assert attempts_of(delivery) == [2, 1, 1]


def test_leases_of_different_lanes_expire_each_in_its_time() -> None:
    driver = BrokerDriver()
    driver.send(b"low")
    driver.send(b"high", priority=5)
    driver.receive(1, lease_ms=20_000)
    driver.receive(1, lease_ms=10_000)
    driver.advance(10_000)
    assert driver.counts() == (1, 1, 0)
    driver.advance(10_000)
    assert driver.counts() == (2, 0, 0)


def test_late_ack_counts_while_nobody_else_has_the_message() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    delivery = driver.receive(lease_ms=1_000)
    driver.advance(1_000)
    assert driver.ack(delivery).count == 1
    assert driver.counts() == (0, 0, 0)


def test_late_ack_is_refused_once_somebody_else_has_the_message() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    delivery = driver.receive(lease_ms=1_000)
    driver.advance(1_000)
    driver.receive()
    assert driver.ack(delivery).count == 0


@pytest.mark.parametrize("delay_ms", [MINUTE_MS, HOUR_MS, 90 * DAY_MS])
def test_late_ack_reaches_a_message_that_waits_for_its_backoff_however_long(delay_ms: int) -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b")
    delivery = driver.receive(2)
    driver.release(delivery, delay_ms=delay_ms)
    assert driver.ack(delivery).count == 2
    assert driver.counts() == (0, 0, 0)


def test_lease_of_nothing_expires_at_once() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    assert driver.receive(lease_ms=0).count == 1
    assert driver.counts() == (1, 0, 0)


def test_heartbeat_keeps_the_lease() -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b")
    delivery = driver.receive(2, lease_ms=1_000)
    driver.advance(900)
    driver.extend(delivery, 1_000)
    driver.advance(900)
    assert driver.counts() == (0, 2, 0)
    driver.advance(100)
    assert driver.counts() == (2, 0, 0)


def test_heartbeat_can_shorten_a_lease() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.extend(driver.receive(lease_ms=HOUR_MS), 1_000)
    driver.advance(1_000)
    assert driver.counts() == (1, 0, 0)


def test_heartbeat_reaches_twelve_hours_from_the_receive_and_no_further() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    delivery = driver.receive(lease_ms=12 * HOUR_MS)
    driver.advance(HOUR_MS)
    assert driver.extend(delivery, 11 * HOUR_MS).count == 1
    (refused,) = driver.extend(delivery, 11 * HOUR_MS + 1).refused
    assert isinstance(refused.error, LeaseTooLong)
    assert driver.counts() == (0, 1, 0)


def test_heartbeat_of_a_run_refuses_only_the_messages_that_were_received_too_long_ago() -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b")
    driver.receive(1, lease_ms=12 * HOUR_MS)
    driver.advance(6 * HOUR_MS)
    driver.receive(1)
    settled = driver.do(c.Extend(queue="q", spans=[c.Span(0, 1, 1)], lease_ms=7 * HOUR_MS))
    assert settled.count == 1
    assert [(refused.first, refused.last) for refused in settled.refused] == [(0, 0)]


def test_heartbeat_of_nothing_gives_the_message_back() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    assert driver.extend(driver.receive(), 0).count == 1
    (seen,) = driver.browse()
    assert [failure.error for failure in seen.failures] == ["released"]
    assert driver.counts() == (1, 0, 0)


@pytest.mark.parametrize("lease_ms", [-1, 12 * HOUR_MS + 1])
def test_lease_out_of_range_is_refused(lease_ms: int) -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    with pytest.raises(InvalidRequest):
        driver.receive(lease_ms=lease_ms)
    with pytest.raises(InvalidRequest):
        driver.do(c.Extend(queue="q", spans=[], lease_ms=lease_ms))


def test_highest_priority_comes_first_whatever_was_sent_before() -> None:
    driver = BrokerDriver()
    for priority in (0, 3, 9, 3):
        driver.send(b"%d" % priority, priority=priority)
    assert bodies_of(driver.receive(10)) == [b"9", b"3", b"3", b"0"]


def test_within_a_priority_failed_in_place_then_retried_then_come_due_then_new() -> None:
    driver = BrokerDriver()
    driver.send(b"retried")
    driver.fail(2)
    driver.send(b"came due", delay_ms=1_000)
    driver.send(b"new", b"newer")
    driver.receive(2)
    driver.do(c.Release(queue="q", spans=[c.Span(0, 0, 3), c.Span(2, 2, 1)], delay_ms=0))
    driver.send(b"newest")
    driver.advance(1_000)
    assert bodies_of(driver.receive(10)) == [b"new", b"retried", b"came due", b"newer", b"newest"]


def test_delayed_message_is_ready_at_its_time() -> None:
    driver = BrokerDriver()
    driver.send(b"a", delay_ms=5_000)
    assert driver.counts() == (0, 0, 1)
    driver.advance(4_999)
    assert driver.receive().count == 0
    driver.advance(1)
    assert bodies_of(driver.receive()) == [b"a"]


def test_queues_delay_holds_unless_the_send_says_otherwise() -> None:
    driver = BrokerDriver()
    driver.create(delay_ms=5_000)
    driver.send(b"waits")
    driver.send(b"at once", delay_ms=0)
    assert bodies_of(driver.receive(2)) == [b"at once"]


@pytest.mark.parametrize("delay_ms", [16 * MINUTE_MS, 3 * HOUR_MS, 20 * DAY_MS, 5 * 366 * DAY_MS])
def test_message_due_far_ahead_survives_restarts_and_comes_at_its_time(delay_ms: int) -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=None)
    driver.send(b"a", due_ms=driver.now_ms + delay_ms)
    driver.send(b"b", delay_ms=delay_ms - 1)
    driver.reopen(delay_ms // 2)
    assert driver.counts() == (0, 0, 2)
    driver.reopen(delay_ms - delay_ms // 2 - 2)
    assert driver.receive().count == 0
    driver.advance(1)
    assert bodies_of(driver.receive(2)) == [b"b"]
    driver.advance(1)
    assert bodies_of(driver.receive(2)) == [b"a"]


def test_messages_due_far_ahead_are_in_no_window() -> None:
    driver = BrokerDriver(checks=False)
    driver.create()
    for day in range(30, 60):
        driver.send(*[b"x"] * 1_000, delay_ms=day * DAY_MS)
    channel = driver.broker.queues["q"].channels["main"]
    assert sum(len(window.entries) for window in channel.windows.values()) == 0
    assert driver.counts() == (0, 0, 30_000)


def test_channel_at_its_limit_in_flight_says_so_and_goes_on_after_an_ack() -> None:
    driver = BrokerDriver()
    driver.create(in_flight_max=3)
    driver.send(b"a", b"b", b"c", b"d")
    delivery = driver.receive(10)
    assert delivery.count == 3
    with pytest.raises(OverLimit, match="3 messages in flight"):
        driver.receive()
    driver.ack(delivery)
    assert bodies_of(driver.receive(10)) == [b"d"]


def test_main_channel_is_made_by_the_first_receive_and_no_other_is() -> None:
    driver = BrokerDriver()
    driver.create(channels=())
    driver.send(b"a")
    assert bodies_of(driver.receive()) == [b"a"]
    with pytest.raises(ChannelNotFound, match="other"):
        driver.receive(channel="other")
    with pytest.raises(QueueNotFound):
        driver.receive(queue="nowhere")


@pytest.mark.parametrize("limit", [0, -1, 1_000_001])
def test_receive_with_a_limit_out_of_range_is_refused(limit: int) -> None:
    driver = BrokerDriver()
    driver.create()
    with pytest.raises(InvalidRequest):
        driver.receive(limit)


def test_leases_attempts_and_receipts_survive_a_restart() -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b")
    delivery = driver.receive(1)
    text = driver.broker.receipt(delivery.queue_id, delivery.channel_id, 0, 1)
    identity = driver.broker.message_id(delivery.queue_id, 0)
    driver.reopen()
    assert driver.counts() == (1, 1, 0)
    receipt = driver.broker.open_receipt(text)
    assert driver.broker.queue_name(receipt.queue_id) == "q"
    assert driver.broker.message_id(receipt.queue_id, receipt.sequence) == identity
    assert driver.do(c.Ack(queue="q", spans=[c.Span(receipt.sequence, receipt.sequence, receipt.attempt)])).count == 1


def test_receipt_of_another_store_is_forged() -> None:
    driver = BrokerDriver()
    other = BrokerDriver()
    other.broker.meta.secret = b"another secret"
    with pytest.raises(ForgedReceipt):
        driver.broker.open_receipt(other.broker.receipt(1, 1, 0, 1))


def test_message_ids_look_like_uuids_and_differ() -> None:
    broker = BrokerDriver().broker
    ids = {broker.message_id(queue_id, sequence) for queue_id in range(1, 20) for sequence in range(50)}
    assert len(ids) == 19 * 50
    assert {tuple(map(len, each.split("-"))) for each in ids} == {(8, 4, 4, 4, 12)}


def test_crash_before_the_commit_forgets_the_lease_and_nothing_else() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.do(c.Receive(queue="q"), commit=False)
    driver.reopen()
    delivery = driver.receive()
    assert bodies_of(delivery) == [b"a"]
    assert attempts_of(delivery) == [1]


def test_broker_runs_ahead_of_its_commits() -> None:
    driver = BrokerDriver(checks=False)
    taken = []
    for number in range(5):
        driver.step(c.Send(queue="q", bodies=[b"%d" % number] * 3), commit=False)
        taken.append(driver.broker.take_changes())
    assert bodies_of(driver.receive(2)) == [b"0", b"0"]
    reply = driver.step(c.Receive(queue="q", limit=20), commit=False)[0]
    assert reply.count == 13
    driver.step(c.Ack(queue="q", spans=reply.spans()), commit=False)
    for changes in taken:
        driver.store.commit(changes)
        driver.broker.committed(changes)
    driver.checks = True
    driver.commit()
    assert driver.counts() == (0, 2, 0)


def test_time_never_goes_back_within_a_broker() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    delivery = driver.receive(lease_ms=1_000)
    driver.step(at_ms=driver.now_ms - HOUR_MS)
    late = driver.receive()
    assert late.received_ms == delivery.received_ms


def test_fin_by_sequence_settles_only_what_the_session_holds() -> None:
    driver = BrokerDriver()
    mine = driver.do(c.OpenSession(name="mine"))
    driver.send(*(b"%d" % number for number in range(6)))
    driver.receive(4, session=mine)
    driver.receive(1)
    settled = driver.do(c.AckSequences(queue="q", channel="main", sequences=np.array([5, 4, 3, 1, 0, 0]), session=mine))
    assert settled.count == 3
    assert {number for each in settled.refused for number in range(each.first, each.last + 1)} == {4, 5}
    assert driver.counts() == (1, 2, 0)


# -- giving back what nobody got --


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_delivery_that_nobody_got_does_not_count(kind: str) -> None:
    driver = BrokerDriver()
    driver.create(kind=kind, max_receives=1)
    driver.send_fifo("a", b"1", b"2", b"3")
    delivery = driver.receive(2)
    given_back = driver.do(c.GiveBack(queue="q", spans=delivery.spans()))
    assert given_back.count == 2
    assert driver.counts() == (3, 0, 0)
    again = driver.receive(3)
    assert bodies_of(again) == [b"1", b"2", b"3"]
    assert attempts_of(again) == [1, 1, 1]
    assert [seen.failures for seen in driver.browse()] == [[], [], []]
    assert driver.ack(again).count == 3


def test_delivery_that_nobody_got_counts_where_at_most_is_promised() -> None:
    driver = BrokerDriver()
    driver.create(policy="consume_once")
    driver.send(b"1")
    driver.do(c.GiveBack(queue="q", spans=driver.receive().spans()))
    assert driver.receive().count == 0
    assert driver.counts("q.dead") == (1, 0, 0)


def test_nothing_can_be_given_back_twice() -> None:
    driver = BrokerDriver()
    driver.send(b"1")
    delivery = driver.receive()
    driver.do(c.GiveBack(queue="q", spans=delivery.spans()))
    assert driver.do(c.GiveBack(queue="q", spans=delivery.spans())).count == 0
    assert driver.counts() == (1, 0, 0)
