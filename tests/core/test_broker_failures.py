"""The redelivery policy: again in place, the retry lane, the dead-letter queue; and the way back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.delivery.states import State
from penstock.core.errors import InvalidRequest, TaskNotFound
from penstock.core.queues.config import Backoff, QueueConfig
from penstock.core.queues.origin import Origin
from tests.core.driver import HOUR_MS, MINUTE_MS, START_MS, BrokerDriver, attempts_of, bodies_of


def test_first_failure_is_ready_again_in_place_before_newer_ones() -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b")
    driver.release(driver.receive(1))
    assert bodies_of(driver.receive(2)) == [b"a", b"b"]


def test_second_failure_lets_the_chunk_go() -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b", b"c")
    driver.receive(3)
    driver.do(c.Ack(queue="q", spans=[c.Span(0, 1, 1)]))
    driver.do(c.Release(queue="q", spans=[c.Span(2, 2, 1)]))
    driver.release(driver.receive(1), delay_ms=0)
    assert len(driver.chunk_keys()) == driver.stats().messages == 1
    again = driver.receive(1)
    assert (bodies_of(again), attempts_of(again)) == ([b"c"], [3])
    driver.ack(again)
    assert driver.chunk_keys() == []


@pytest.mark.parametrize(
    ("backoff", "waits_ms"),
    [
        (Backoff("none"), [0, 0, 0]),
        (Backoff("fixed", base_ms=500), [0, 500, 500]),
        (Backoff("linear", base_ms=500), [0, 500, 1_000]),
        (Backoff("linear", base_ms=500, ceiling_ms=700), [0, 500, 700]),
    ],
)
def test_backoff_decides_how_long_a_message_waits_after_each_failure(backoff: Backoff, waits_ms: list[int]) -> None:
    driver = BrokerDriver()
    driver.create(backoff=backoff)
    driver.send(b"a")
    for wait_ms in waits_ms:
        driver.release(driver.receive())
        if wait_ms:
            assert driver.counts() == (0, 0, 1)
            driver.advance(wait_ms - 1)
            assert driver.counts() == (0, 0, 1)
            driver.advance(1)
        assert driver.counts() == (1, 0, 0)


def test_exponential_backoff_spreads_the_messages_of_a_run() -> None:
    driver = BrokerDriver()
    driver.create(backoff=Backoff("exponential", base_ms=10_000, seed=3))
    driver.send(*[b"x"] * 50)
    for _ in range(2):
        driver.release(driver.receive(50))
    due_ms = {seen.deadline_ms for seen in driver.browse()}
    assert len(due_ms) > 25
    assert all(driver.now_ms <= due <= driver.now_ms + 10_000 for due in due_ms if due)


def test_an_outage_of_a_minute_makes_no_dead_letter_on_a_queue_that_was_told_nothing() -> None:
    driver = BrokerDriver(checks=False)
    driver.create()
    driver.send(*[b"x"] * 10_000)
    while driver.now_ms < START_MS + MINUTE_MS:
        while (delivery := driver.receive(10_000)).count:
            driver.release(delivery, error="down")
        driver.step(at_ms=driver.now_ms + 500)
    assert driver.stats().channels["main"].dead == 0
    driver.step(at_ms=driver.now_ms + 128_000)
    assert driver.ack(driver.receive(10_000)).count == 10_000


def test_a_release_without_a_delay_waits_on_a_queue_that_was_told_nothing_but_not_the_first_time() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a")
    driver.release(driver.receive(), error="down")
    assert driver.counts() == (1, 0, 0)
    driver.release(driver.receive(), error="down")
    assert driver.counts() == (0, 0, 1)
    driver.advance(1_000)
    assert driver.counts() == (1, 0, 0)
    driver.release(driver.receive(), delay_ms=0)
    assert driver.counts() == (1, 0, 0)


@pytest.mark.parametrize(("backoff", "waits"), [({}, False), ({"backoff": Backoff("fixed", base_ms=500)}, True)])
def test_a_lease_that_ran_out_waits_only_where_a_backoff_was_set(backoff: dict[str, Backoff], waits: bool) -> None:
    driver = BrokerDriver()
    driver.create(lease_ms=1_000, **backoff)
    driver.send(b"a")
    for _ in range(2):
        driver.receive()
        driver.advance(1_000)
    assert driver.counts() == ((0, 0, 1) if waits else (1, 0, 0))


def test_release_can_say_how_long_to_wait_itself() -> None:
    driver = BrokerDriver()
    driver.create(backoff=Backoff("fixed", base_ms=HOUR_MS))
    driver.send(b"a")
    driver.release(driver.receive(), delay_ms=2_000)
    driver.advance(1_999)
    assert driver.receive().count == 0
    driver.advance(1)
    delivery = driver.receive()
    assert attempts_of(delivery) == [2]
    driver.release(delivery, delay_ms=0)
    assert driver.counts() == (1, 0, 0)


@pytest.mark.parametrize("delay_ms", [20 * MINUTE_MS, 400 * 24 * HOUR_MS])
def test_message_released_for_far_ahead_keeps_attempts_and_history_over_a_restart(delay_ms: int) -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=None)
    driver.send(b"a", b"b")
    driver.release(driver.receive(2), delay_ms=delay_ms, error="not now")
    driver.reopen(delay_ms - 1)
    assert driver.counts() == (0, 0, 2)
    driver.advance(1)
    delivery = driver.receive(2)
    assert (bodies_of(delivery), attempts_of(delivery)) == ([b"a", b"b"], [2, 2])
    assert [failure.error for failure in delivery.runs[0].failures] == ["not now"]


def test_retried_message_keeps_sequence_number_and_time_sent() -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b")
    driver.advance(1_000)
    driver.fail(3)
    delivery = driver.receive(2)
    assert [run.chunk.sent_ms for run in delivery.runs] == [START_MS] * len(delivery.runs)
    assert [run.first + index for run in delivery.runs for index in range(run.count)] == [0, 1]


def test_failures_tell_attempt_times_session_and_error() -> None:
    driver = BrokerDriver()
    session = driver.do(c.OpenSession(name="worker 7"))
    driver.send(b"a")
    delivery = driver.receive(session=session)
    driver.advance(250)
    driver.release(delivery, error="no such customer")
    driver.receive(lease_ms=1_000)
    driver.advance(1_000)
    (seen,) = driver.browse()
    first, second = seen.failures
    assert (first.attempt, first.received_ms, first.failed_ms) == (1, START_MS, START_MS + 250)
    assert (first.session, first.error) == ("worker 7", "no such customer")
    assert (second.attempt, second.error, second.session) == (2, "lease expired", "")


def test_error_text_that_is_no_valid_unicode_does_not_stop_the_shard() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.release(driver.receive(), error="cannot open 'caf\udce9.txt'")
    (seen,) = driver.browse()
    assert "cannot open 'caf" in seen.failures[0].error


def test_message_goes_to_the_dead_letter_queue_after_max_receives() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=3)
    driver.send(b"a", b"b", attributes=[b"kept", None], group="customer", priority=4)
    driver.advance(77)
    for attempt in range(1, 4):
        driver.fail(1, error=f"error {attempt}")
    assert driver.counts() == (0, 0, 0)
    assert driver.stats().channels["main"].dead == 2
    assert driver.counts("q.dead") == (2, 0, 0)
    (run,) = driver.receive(2, queue="q.dead").runs
    assert run.chunk.body_list() == [b"a", b"b"]
    assert run.chunk.attributes(0) == b"kept"
    assert run.chunk.group(0) == "customer"
    data = run.chunk.origin(0)
    assert data is not None
    origin = Origin.decode(data)
    queue_id = driver.do(c.DescribeQueue(name="q")).queue_id
    assert origin.id == driver.broker.message_id(queue_id, 0)
    assert (origin.queue, origin.channel, origin.sequence, origin.sent_ms) == ("q", "main", 0, START_MS)
    assert (origin.attempts, origin.priority) == (3, 4)
    assert [failure.error for failure in origin.failures] == ["error 1", "error 2", "error 3"]
    assert [failure.attempt for failure in origin.failures] == [1, 2, 3]


def test_dead_letter_leaves_its_queue_in_the_commit_in_which_it_arrives() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=1)
    driver.send(b"a")
    delivery = driver.receive()
    driver.step(c.Release(queue="q", spans=delivery.spans()), commit=False)
    changes = driver.broker.take_changes()
    assert sum(chunk is None for chunk in changes.chunks.values()) == 1
    assert sum(chunk is not None for chunk in changes.chunks.values()) == 1
    driver.store.commit(changes)
    driver.broker.committed(changes)
    driver.commit()


def test_named_dead_letter_queue_is_used_and_made_when_absent() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=1, dead_letter="graveyard", message_bytes_max=2_000_000)
    driver.send(b"a")
    driver.fail(1)
    info = driver.do(c.DescribeQueue(name="graveyard"))
    assert (info.config.kind, info.config.max_receives, info.config.retention_ms) == ("standard", 0, 14 * 24 * HOUR_MS)
    assert driver.do(c.ListQueues()) == ["graveyard", "q"]


def test_max_receives_of_zero_never_gives_up() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=0)
    driver.send(b"a")
    driver.fail(40)
    assert driver.counts() == (1, 0, 0)


def test_expiry_and_end_of_session_lead_to_the_dead_letter_queue_as_well() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=2)
    session = driver.do(c.OpenSession(name="worker"))
    driver.send(b"a")
    driver.receive(lease_ms=1_000)
    driver.advance(1_000)
    driver.receive(session=session)
    assert driver.do(c.EndSession(session=session)) == 1
    (seen,) = driver.browse("q.dead")
    data = seen.chunk.origin(seen.index)
    assert data is not None
    assert [failure.error for failure in Origin.decode(data).failures] == ["lease expired", "session ended"]


# -- redrive --


def _dead(*bodies: bytes, errors: tuple[str, ...] = (), **settings: Any) -> BrokerDriver:
    driver = BrokerDriver()
    driver.create(max_receives=1, **settings)
    for index, body in enumerate(bodies):
        driver.send(body)
        driver.fail(1, error=errors[index] if errors else "")
    return driver


def _redriven(driver: BrokerDriver, **fields: Any) -> c.RedriveTask:
    task: c.RedriveTask = driver.do(c.StartRedrive(queue="q.dead", **fields))
    driver.advance(100)
    tasks: list[c.RedriveTask] = driver.do(c.ListRedrives(queue="q.dead"))
    return next(each for each in tasks if each.task == task.task)


def test_redrive_brings_everything_back_to_its_source() -> None:
    driver = _dead(b"a", b"b", b"c")
    task = _redriven(driver)
    assert (task.status, task.moved, task.skipped) == ("done", 3, 0)
    assert driver.counts("q.dead") == (0, 0, 0)
    delivery = driver.receive(10)
    assert bodies_of(delivery) == [b"a", b"b", b"c"]
    assert attempts_of(delivery) == [1, 1, 1]


def test_redriven_message_keeps_its_identity_its_first_time_and_its_history() -> None:
    driver = _dead(b"a", errors=("first life",))
    _redriven(driver)
    driver.advance(HOUR_MS)
    driver.fail(1, error="second life")
    (seen,) = driver.browse("q.dead")
    data = seen.chunk.origin(seen.index)
    assert data is not None
    origin = Origin.decode(data)
    assert origin.id == driver.broker.message_id(driver.do(c.DescribeQueue(name="q")).queue_id, 0)
    assert origin.sent_ms == START_MS
    assert [failure.error for failure in origin.failures] == ["first life", "second life"]


def test_redrive_moves_only_the_selected_ones() -> None:
    driver = _dead(b"a", b"b", b"c")
    task = _redriven(driver, sequences=[0, 2])
    assert (task.moved, task.skipped) == (2, 1)
    assert bodies_of(driver.receive(10)) == [b"a", b"c"]
    assert driver.counts("q.dead") == (1, 0, 0)


def test_redrive_selects_by_reported_error_and_by_content() -> None:
    driver = _dead(b"a1", b"b", b"a2", errors=("timeout after 3 s", "no such customer", "timeout after 5 s"))
    assert _redriven(driver, error="timeout", contains=b"2").moved == 1
    assert _redriven(driver, error="timeout").moved == 1
    assert bodies_of(driver.receive(10)) == [b"a2", b"a1"]
    assert [seen.chunk.body(seen.index) for seen in driver.browse("q.dead")] == [b"b"]


def test_redrive_elsewhere_makes_the_target() -> None:
    driver = _dead(b"a")
    assert _redriven(driver, target="inspection").moved == 1
    assert bodies_of(driver.receive(queue="inspection")) == [b"a"]


def test_redrive_leaves_what_is_leased_and_what_comes_later() -> None:
    driver = _dead(b"a", b"b")
    driver.receive(queue="q.dead")
    task = driver.do(c.StartRedrive(queue="q.dead", per_second=1))
    driver.send(b"c")
    driver.fail(1)
    driver.advance(10_000)
    (task,) = driver.do(c.ListRedrives())
    assert (task.status, task.moved) == ("done", 1)
    assert driver.counts("q.dead") == (1, 1, 0)


def test_redrive_finds_messages_in_the_retry_lane_among_others() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=0)
    driver.send(*(b"%d" % number for number in range(20)))
    driver.fail(1)
    driver.receive(20)
    driver.do(c.Release(queue="q", spans=[c.Span(5, 5, 2)], delay_ms=0))
    driver.do(c.Release(queue="q", spans=[c.Span(0, 4, 2), c.Span(6, 19, 2)], delay_ms=0))
    driver.do(c.StartRedrive(queue="q", target="t"))
    driver.advance(100)
    assert sorted(bodies_of(driver.receive(50, queue="t")), key=int) == [b"%d" % number for number in range(20)]
    assert driver.counts() == (0, 0, 0)


@pytest.mark.parametrize("per_second", [None, 1_000_000])
def test_a_step_of_a_redrive_leaves_others_their_turn(per_second: int | None) -> None:
    """Messages are moved one by one: a thousand of them in a step made everybody wait for a tenth of a second."""
    driver = BrokerDriver()
    driver.create(max_receives=1)
    driver.send(*(b"x" for _ in range(900)))
    driver.release(driver.receive(900))
    driver.do(c.StartRedrive(queue="q.dead", per_second=per_second))
    moved = [driver.do(c.ListRedrives())[0].moved]
    for _ in range(10):
        driver.advance(1)
        moved.append(driver.do(c.ListRedrives())[0].moved)
    steps = [after - before for before, after in pairwise([0, *moved])]
    assert max(steps) <= 200 and moved[-1] == 900, steps


def test_redrive_keeps_to_its_rate() -> None:
    driver = _dead(*(b"%d" % number for number in range(40)))
    driver.do(c.StartRedrive(queue="q.dead", per_second=10))
    for second in range(1, 4):
        driver.advance(1_000)
        assert abs(driver.counts()[0] - 10 * second) <= 1
    driver.advance(2_000)
    assert driver.counts() == (40, 0, 0)


def test_redrive_goes_on_after_a_restart_at_its_rate() -> None:
    driver = _dead(*(b"%d" % number for number in range(60)))
    driver.do(c.StartRedrive(queue="q.dead", per_second=10))
    driver.advance(1_000)
    moved = driver.counts()[0]
    driver.reopen(HOUR_MS)
    assert driver.counts()[0] - moved <= 11, "an hour of standstill is no reason to hurry"
    driver.advance(10_000)
    assert driver.counts() == (60, 0, 0)
    assert [task.status for task in driver.do(c.ListRedrives())] == ["done"]


def test_crash_in_a_redrive_neither_loses_nor_doubles_anything() -> None:
    driver = _dead(*(b"%d" % number for number in range(30)))
    driver.do(c.StartRedrive(queue="q.dead", per_second=10))
    for _ in range(20):
        driver.step(at_ms=driver.now_ms + 200, commit=False)
        if driver.now_ms % 400:
            driver.reopen()
        else:
            driver.commit()
        assert driver.counts()[0] + driver.counts("q.dead")[0] == 30
    driver.advance(10_000)
    assert sorted(bodies_of(driver.receive(100)), key=int) == [b"%d" % number for number in range(30)]


def test_cancelled_redrive_moves_nothing_more() -> None:
    driver = _dead(*(b"%d" % number for number in range(20)))
    task = driver.do(c.StartRedrive(queue="q.dead", per_second=10))
    driver.advance(1_000)
    cancelled = driver.do(c.CancelRedrive(task=task.task))
    assert cancelled.status == "cancelled"
    moved = driver.counts()[0]
    driver.advance(HOUR_MS)
    assert driver.counts()[0] == moved < 20
    with pytest.raises(TaskNotFound):
        driver.do(c.CancelRedrive(task=99))


def test_a_queue_without_dead_letters_is_redriven_to_a_target_only() -> None:
    driver = _dead(b"a")
    with pytest.raises(InvalidRequest, match=r"'q' is not a dead-letter queue.* Those of 'q' are in 'q\.dead'"):
        driver.do(c.StartRedrive(queue="q"))
    driver.do(c.CreateQueue(name="fresh", channels=()))
    with pytest.raises(InvalidRequest, match="'fresh' has none"):
        driver.do(c.StartRedrive(queue="fresh"))
    with pytest.raises(InvalidRequest, match="discard or a target, not both"):
        driver.do(c.StartRedrive(queue="fresh", discard=True, target="elsewhere"))
    assert driver.do(c.DescribeQueue(name="fresh")).channels == [], "what is refused makes no channel"
    assert driver.do(c.StartRedrive(queue="q", target="elsewhere")).status == "running"
    driver.do(c.CreateQueue(name="grave"))
    driver.do(c.CreateQueue(name="other", config=QueueConfig(dead_letter="grave")))
    assert driver.do(c.StartRedrive(queue="grave")).status == "running", "it is empty, and still for dead letters"
    driver.do(c.DeleteQueue(name="q"))
    assert driver.do(c.StartRedrive(queue="q.dead")).status == "running", "where they came from is in the messages"


def test_one_redrive_a_queue_and_never_to_itself() -> None:
    driver = _dead(b"a", b"b")
    driver.do(c.StartRedrive(queue="q.dead", per_second=1))
    with pytest.raises(InvalidRequest, match="running"):
        driver.do(c.StartRedrive(queue="q.dead"))
    with pytest.raises(InvalidRequest, match="itself"):
        driver.do(c.StartRedrive(queue="q", target="q"))


def test_redrive_of_a_queue_that_is_deleted_meanwhile_fails() -> None:
    driver = _dead(b"a", b"b")
    driver.do(c.StartRedrive(queue="q.dead", per_second=1))
    driver.do(c.DeleteQueue(name="q.dead"))
    (task,) = driver.do(c.ListRedrives())
    assert (task.status, task.error) == ("failed", "queue 'q.dead' was deleted")


def test_redrive_of_a_deleted_queue_leaves_a_new_one_of_that_name_alone() -> None:
    driver = _dead(b"a", b"b")
    driver.do(c.StartRedrive(queue="q.dead", target="elsewhere", per_second=1))
    driver.do(c.DeleteQueue(name="q.dead"))
    driver.send(b"new", queue="q.dead")
    driver.advance(5_000)
    assert [seen.state for seen in driver.browse("q.dead")] == [State.READY]
    assert driver.do(c.StartRedrive(queue="q.dead", target="elsewhere")).status == "running"


def test_browsing_shows_dead_letters_as_ready() -> None:
    driver = _dead(b"a")
    assert [seen.state for seen in driver.browse("q.dead")] == [State.READY]
