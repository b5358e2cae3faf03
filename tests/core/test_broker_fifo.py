"""FIFO queues: order within groups, duplicates, attempt ids, rates, and what a receive costs."""

from __future__ import annotations

import time
from functools import partial
from statistics import median
from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.delivery.acknowledgement import ACKED_KEPT
from penstock.core.delivery.states import State
from penstock.core.errors import InvalidRequest, QueueNotFound, Throttled
from penstock.core.queues.config import Backoff
from penstock.core.storage.changes import Changes
from penstock.core.storage.keys import Kind
from tests.core.driver import HOUR_MS, MINUTE_MS, BrokerDriver, attempts_of, bodies_of, calls_of, sequences_of


def _fifo(**settings: Any) -> BrokerDriver:
    driver = BrokerDriver()
    driver.create(kind="fifo", **settings)
    return driver


def test_group_with_a_leased_message_is_blocked_and_others_flow() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"a1", b"a2")
    driver.send_fifo("b", b"b1")
    assert bodies_of(driver.receive(1)) == [b"a1"]
    assert bodies_of(driver.receive(10)) == [b"b1"]
    assert bodies_of(driver.receive(10)) == []


def test_receive_takes_the_oldest_free_group_as_far_as_it_goes_then_the_next() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"a1")
    driver.send_fifo("b", b"b1")
    driver.send_fifo("a", b"a2")
    driver.send_fifo("b", b"b2")
    assert bodies_of(driver.receive(3)) == [b"a1", b"a2", b"b1"]


def test_ack_unblocks_the_group() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1", b"2")
    driver.ack(driver.receive(1))
    assert bodies_of(driver.receive(1)) == [b"2"]


def test_expired_lease_unblocks_the_group_and_the_failed_message_comes_first() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1", b"2", b"3")
    driver.receive(2, lease_ms=1_000)
    driver.advance(1_000)
    delivery = driver.receive(10)
    assert (bodies_of(delivery), attempts_of(delivery)) == ([b"1", b"2", b"3"], [2, 2, 1])


def test_released_message_stays_in_front_of_its_group_however_often_it_fails() -> None:
    driver = _fifo(max_receives=0)
    driver.send_fifo("a", b"1", b"2")
    for _ in range(5):
        delivery = driver.receive(1)
        assert bodies_of(delivery) == [b"1"]
        driver.release(delivery, delay_ms=0)


def test_backoff_blocks_the_group_and_no_other() -> None:
    driver = _fifo(backoff=Backoff("fixed", base_ms=5_000))
    driver.send_fifo("a", b"a1", b"a2")
    driver.send_fifo("b", b"b1")
    for _ in range(2):
        driver.release(driver.receive(1))
    assert bodies_of(driver.receive(10)) == [b"b1"]
    driver.advance(5_000)
    assert bodies_of(driver.receive(10)) == [b"a1", b"a2"]


def test_head_that_was_given_back_is_free_while_a_later_message_of_its_group_waits() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1", b"2", b"3")
    driver.receive(2)
    driver.do(c.Release(queue="q", spans=[c.Span(0, 0, 1)]))
    driver.do(c.Release(queue="q", spans=[c.Span(1, 1, 1)], delay_ms=5_000))
    assert bodies_of(driver.receive(10)) == [b"1"]


def test_later_message_acked_before_an_earlier_one_keeps_the_group_blocked() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1", b"2", b"3")
    driver.receive(2)
    driver.do(c.Ack(queue="q", spans=[c.Span(1, 1, 1)]))
    assert driver.receive(10).count == 0
    driver.do(c.Release(queue="q", spans=[c.Span(0, 0, 1)]))
    assert bodies_of(driver.receive(10)) == [b"1", b"3"]


def test_late_ack_of_an_expired_message_lets_the_next_one_go() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1", b"2")
    delivery = driver.receive(1, lease_ms=1_000)
    driver.advance(1_000)
    assert driver.ack(delivery).count == 1
    assert bodies_of(driver.receive(10)) == [b"2"]


def test_dead_letter_unblocks_the_group_and_keeps_it() -> None:
    driver = _fifo(max_receives=2)
    driver.send_fifo("a", b"1", b"2")
    driver.release(driver.receive(1))
    driver.release(driver.receive(1))
    assert bodies_of(driver.receive(1)) == [b"2"]
    assert driver.do(c.DescribeQueue(name="q.dead")).config.kind == "fifo"
    (run,) = driver.receive(1, queue="q.dead").runs
    assert run.chunk.group(run.start) == "a"


def test_delayed_message_holds_back_the_newer_ones_of_its_group() -> None:
    driver = _fifo(content_dedup=True)
    driver.send(b"1", group="a", delay_ms=5_000)
    driver.send(b"2", group="a")
    driver.send(b"3", group="b")
    assert bodies_of(driver.receive(10)) == [b"3"]
    driver.advance(5_000)
    assert bodies_of(driver.receive(10)) == [b"1", b"2"]


def test_delayed_message_counts_as_delayed_before_anybody_has_received() -> None:
    driver = _fifo(content_dedup=True, delay_ms=5_000)
    driver.send(b"1", group="a")
    assert driver.counts() == (0, 0, 1)
    assert [seen.state for seen in driver.browse()] == [State.DELAYED]
    driver.advance(5_000)
    assert driver.counts() == (1, 0, 0)


def test_order_holds_over_a_restart() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1", b"2", b"3")
    driver.send_fifo("b", b"4")
    delivery = driver.receive(1)
    driver.reopen()
    assert bodies_of(driver.receive(10)) == [b"4"]
    driver.release(delivery)
    driver.reopen()
    assert bodies_of(driver.receive(10)) == [b"1", b"2", b"3"]


def test_groups_of_a_purged_queue_are_free() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1", b"2")
    driver.receive(1)
    driver.do(c.PurgeQueue(name="q"))
    driver.send_fifo("a", b"3")
    assert bodies_of(driver.receive(10)) == [b"3"]


def test_thousands_of_messages_of_one_group_come_in_order() -> None:
    driver = _fifo(content_dedup=True)
    driver.checks = False
    bodies = [b"%d" % number for number in range(5_000)]
    driver.send(*bodies, group="a")
    found: list[bytes] = []
    while len(found) < 5_000:
        delivery = driver.receive(700)
        found += bodies_of(delivery)
        driver.ack(delivery)
    assert found == bodies


def test_limit_in_flight_gives_nothing_instead_of_an_error() -> None:
    driver = _fifo(in_flight_max=1)
    driver.send_fifo("a", b"1")
    driver.send_fifo("b", b"2")
    driver.receive(10)
    assert driver.receive(10).count == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"bodies": [b"x"], "dedup_ids": ["1"]},
        {"bodies": [b"x"], "groups": ["a"]},
        {"bodies": [b"x", b"y"], "groups": ["a", None], "dedup_ids": ["1", "2"]},
        {"bodies": [b"x", b"y"], "groups": ["a", "a"], "dedup_ids": ["1", None]},
        {"bodies": [b"x"], "groups": ["a"], "dedup_ids": ["1"], "priority": 1},
        {"bodies": [b"x"], "groups": [], "dedup_ids": ["1"]},
        {"bodies": [b"x"], "groups": ["a"], "dedup_ids": []},
    ],
)
def test_fifo_send_without_group_or_dedup_id_or_with_a_priority_is_refused(fields: dict[str, Any]) -> None:
    driver = _fifo()
    with pytest.raises(InvalidRequest):
        driver.do(c.Send(queue="q", **fields))


# -- duplicates --


def test_duplicate_within_five_minutes_gets_the_originals_number() -> None:
    driver = _fifo()
    first = driver.send_fifo("a", b"1", b"2")
    again = driver.send(b"2 again", b"3", group="a", dedup_ids=["2", "3"])
    assert again.sequences == [first.sequence(1), 2]
    assert again.duplicates == [0]
    assert bodies_of(driver.receive(10)) == [b"1", b"2", b"3"]


def test_duplicate_within_one_send_is_seen() -> None:
    driver = _fifo()
    sent = driver.send(b"1", b"2", b"3", group="a", dedup_ids=["x", "x", "y"])
    assert (sent.sequences, sent.duplicates) == ([0, 0, 1], [1])
    assert bodies_of(driver.receive(10)) == [b"1", b"3"]


def test_duplicate_is_recognised_after_the_original_was_deleted_and_after_a_restart() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1")
    driver.ack(driver.receive(1))
    driver.reopen(MINUTE_MS)
    assert driver.send_fifo("a", b"1").duplicates == [0]
    assert driver.counts() == (0, 0, 0)


def test_duplicate_is_a_new_message_after_five_minutes() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1")
    driver.reopen(5 * MINUTE_MS - 1)
    assert driver.send_fifo("a", b"1").duplicates == [0]
    driver.advance(1)
    assert driver.send_fifo("a", b"1").duplicates == []
    driver.advance(MINUTE_MS)
    assert driver.send_fifo("a", b"1").duplicates == [0]


def test_forgotten_dedup_ids_leave_nothing_in_the_store() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1")
    assert list(driver.store.scan(bytes([Kind.DEDUP])))
    driver.advance(7 * MINUTE_MS)
    assert list(driver.store.scan(bytes([Kind.DEDUP]))) == []


def test_content_is_the_dedup_id_when_the_queue_says_so() -> None:
    driver = _fifo(content_dedup=True)
    driver.send(b"same", group="a")
    assert driver.send(b"same", group="b").duplicates == [0]
    assert driver.send(b"other", group="a").duplicates == []
    assert driver.send(b"same", group="a", dedup_ids=["explicit"]).duplicates == []


def test_dedup_per_group_lets_the_same_id_pass_in_another_group() -> None:
    driver = _fifo(dedup_scope="group")
    driver.send_fifo("a", b"1")
    assert driver.send_fifo("b", b"1").duplicates == []
    assert driver.send_fifo("a", b"1").duplicates == [0]


def test_standard_queue_deduplicates_when_ids_are_given() -> None:
    driver = BrokerDriver()
    driver.send(b"1", b"2", dedup_ids=["x", None])
    assert driver.send(b"3", b"4", dedup_ids=["x", None]).duplicates == [0]
    assert bodies_of(driver.receive(10)) == [b"1", b"2", b"4"]


# -- attempt ids --


def test_same_attempt_id_gets_the_same_messages_again_with_the_lease_renewed() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1", b"2")
    driver.send_fifo("b", b"3")
    first = driver.receive(2, attempt_id="try", lease_ms=10_000)
    driver.advance(9_000)
    again = driver.receive(2, attempt_id="try", lease_ms=10_000)
    assert sequences_of(again) == sequences_of(first)
    assert attempts_of(again) == [1, 1]
    assert again.deadline_ms == driver.now_ms + 10_000
    driver.advance(9_000)
    assert driver.counts() == (1, 2, 0)


def test_attempt_id_survives_a_restart() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1")
    driver.receive(1, attempt_id="try")
    driver.reopen()
    assert bodies_of(driver.receive(1, attempt_id="try")) == [b"1"]


def test_attempt_id_is_over_once_anything_of_it_was_settled() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1", b"2", b"3")
    driver.receive(2, attempt_id="try")
    driver.do(c.Ack(queue="q", spans=[c.Span(0, 0, 1)]))
    assert driver.receive(2, attempt_id="try").count == 0


def test_attempt_id_is_over_with_the_lease() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1")
    driver.receive(1, attempt_id="try", lease_ms=1_000)
    driver.advance(1_000)
    assert attempts_of(driver.receive(1, attempt_id="try")) == [2]


def test_attempt_id_cannot_hold_messages_longer_than_twelve_hours() -> None:
    driver = _fifo()
    driver.send_fifo("a", b"1")
    received_ms = driver.receive(1, attempt_id="try", lease_ms=8 * HOUR_MS).received_ms
    driver.advance(7 * HOUR_MS)
    assert driver.receive(1, attempt_id="try", lease_ms=8 * HOUR_MS).deadline_ms <= received_ms + 12 * HOUR_MS


def test_attempt_ids_are_for_fifo_queues() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    with pytest.raises(InvalidRequest, match="FIFO"):
        driver.receive(attempt_id="try")


# -- rates --


def test_queue_takes_its_rate_and_refuses_more_until_the_next_second() -> None:
    driver = _fifo(throughput_per_second=3)
    driver.send_fifo("a", b"1", b"2")
    with pytest.raises(Throttled, match="3 messages a second"):
        driver.send_fifo("b", b"3", b"4")
    driver.send_fifo("b", b"3")
    driver.advance(1_000)
    driver.send_fifo("b", b"4", b"5")
    assert driver.counts() == (5, 0, 0)


def test_rate_can_be_per_group() -> None:
    driver = _fifo(throughput_per_second=1, throughput_scope="group", dedup_scope="group")
    driver.send_fifo("a", b"1")
    driver.send_fifo("b", b"1")
    with pytest.raises(Throttled, match="group 'a'"):
        driver.send_fifo("a", b"2")


# -- cost --


def _with_blocked_group(blocked: int) -> BrokerDriver:
    driver = BrokerDriver(checks=False)
    driver.create(kind="fifo", content_dedup=True, message_bytes_max=1_000)
    driver.send(b"head", group="blocked")
    for base in range(0, blocked, 4_000):
        driver.send(*(b"%d" % (base + index) for index in range(min(4_000, blocked - base))), group="blocked")
    driver.receive(1, lease_ms=12 * HOUR_MS)
    driver.send(*(b"free %d" % index for index in range(200)), group="free")
    return driver


def _receive_and_ack(driver: BrokerDriver) -> None:
    delivery = driver.receive(1)
    assert bodies_of(delivery)[0].startswith(b"free")
    driver.ack(delivery)


def test_free_group_behind_120_000_messages_of_a_blocked_one_is_received_at_the_same_cost() -> None:
    small, large = _with_blocked_group(10), _with_blocked_group(120_000)
    for driver in (small, large):
        _receive_and_ack(driver)
    calls = [calls_of(partial(_receive_and_ack, driver)) for driver in (small, large)]
    assert calls[0] == calls[1]
    times: list[list[float]] = [[], []]
    for _ in range(50):
        for driver, taken in zip((small, large), times, strict=True):
            start = time.thread_time()
            _receive_and_ack(driver)
            taken.append(time.thread_time() - start)
    ratio = median(times[1]) / median(times[0])
    print(f"receive and ack behind 120,000 blocked messages costs {ratio:.2f} of that behind 10")
    assert ratio < 3


def test_giving_back_a_run_costs_the_same_whatever_waits_in_its_group() -> None:
    times = []
    for waiting in (500, 20_000):
        driver = BrokerDriver(checks=False)
        driver.create(kind="fifo", content_dedup=True, max_receives=0)
        driver.send(*(b"%d" % index for index in range(waiting)), group="a")
        taken = []
        for _ in range(9):
            delivery = driver.receive(200)
            start = time.thread_time()
            driver.release(delivery)
            taken.append(time.thread_time() - start)
        times.append(median(taken))
    assert times[1] / times[0] < 5


def test_what_was_acked_may_be_acked_again_on_the_same_attempt_only() -> None:
    driver = _fifo(max_receives=0)
    driver.send_fifo("a", b"1")
    driver.send_fifo("b", b"2")
    old = driver.receive(2)
    driver.release(old)
    driver.receive(2)
    for _ in range(2):
        assert driver.do(c.Ack(queue="q", spans=[c.Span(0, 0, 2)])).count == 1
        driver.reopen()
    settled = driver.do(c.Ack(queue="q", spans=[c.Span(0, 1, 1), c.Span(0, 1, 2)]))
    assert settled.count == 2
    assert [(each.first, each.last) for each in settled.refused] == [(0, 0), (1, 1)], "the first one was superseded"
    assert driver.counts() == (0, 0, 0)
    assert driver.stats().channels["main"].acked == 2, "each counts once"


def test_the_last_of_what_was_acked_is_known_over_a_crash() -> None:
    driver = _fifo(max_receives=0)
    for number in range(100):
        driver.send_fifo(f"{number}", b"%d" % number)
    driver.receive(100)
    assert driver.do(c.Ack(queue="q", spans=[c.Span(0, 99, 1)])).count == 100
    assert driver.do(c.Ack(queue="q", spans=[c.Span(0, 99, 1)])).count == 100
    driver.reopen()
    settled = driver.do(c.Ack(queue="q", spans=[c.Span(0, 99, 1)]))
    assert (settled.count, settled.refused[0].last) == (ACKED_KEPT, 99 - ACKED_KEPT)


def test_a_channel_that_was_stored_before_anybody_remembered_acks_is_opened() -> None:
    driver = _fifo(max_receives=0)
    driver.send_fifo("a", b"1")
    driver.receive()
    driver.do(c.Ack(queue="q", spans=[c.Span(0, 0, 1)]))
    channel = driver.broker.queues["q"].channels["main"]
    key = channel._record_key
    (stored,) = [value for found, value in driver.store.scan(key) if found == key]
    tail = channel.acknowledgement.lately.encode()
    assert tail and stored.endswith(tail)
    before = Changes()
    before.put_record(key, stored[: -len(tail)])
    driver.store.commit(before)
    driver.reopen()
    assert driver.do(c.Ack(queue="q", spans=[c.Span(0, 0, 1)])).count == 0
    assert driver.stats().channels["main"].acked == 1


def test_a_fifo_queue_that_is_not_there_is_missed_before_its_rules_are() -> None:
    driver = BrokerDriver()
    with pytest.raises(QueueNotFound):
        driver.do(c.Send(queue="gone.fifo", bodies=[b"x"], create=False))
