"""The failure ladder: again in place, the retry lane, the dead-letter queue; and the way back."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.delivery.states import State
from penstock.core.errors import InvalidRequest, TaskNotFound
from penstock.core.queues.config import Backoff, QueueConfig
from penstock.core.queues.origin import Origin
from tests.core.driver import HOUR_MS, MINUTE_MS, START_MS, Desk, attempts_of, bodies_of, spans_of


def test_first_failure_is_ready_again_in_place_before_newer_ones() -> None:
    desk = Desk()
    desk.send(b"a", b"b")
    desk.release(desk.receive(1))
    assert bodies_of(desk.receive(2)) == [b"a", b"b"]


def test_second_failure_lets_the_chunk_go() -> None:
    desk = Desk()
    desk.send(b"a", b"b", b"c")
    desk.receive(3)
    desk.do(c.Ack(queue="q", spans=[c.Span(0, 1, 1)]))
    desk.do(c.Release(queue="q", spans=[c.Span(2, 2, 1)]))
    desk.release(desk.receive(1), delay_ms=0)
    assert len(desk.chunk_keys()) == desk.stats().messages == 1
    again = desk.receive(1)
    assert (bodies_of(again), attempts_of(again)) == ([b"c"], [3])
    desk.ack(again)
    assert desk.chunk_keys() == []


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
    desk = Desk()
    desk.create(backoff=backoff)
    desk.send(b"a")
    for wait_ms in waits_ms:
        desk.release(desk.receive())
        if wait_ms:
            assert desk.counts() == (0, 0, 1)
            desk.advance(wait_ms - 1)
            assert desk.counts() == (0, 0, 1)
            desk.advance(1)
        assert desk.counts() == (1, 0, 0)


def test_exponential_backoff_spreads_the_messages_of_a_run() -> None:
    desk = Desk()
    desk.create(backoff=Backoff("exponential", base_ms=10_000, seed=3))
    desk.send(*[b"x"] * 50)
    for _ in range(2):
        desk.release(desk.receive(50))
    due_ms = {seen.deadline_ms for seen in desk.browse()}
    assert len(due_ms) > 25
    assert all(desk.now_ms <= due <= desk.now_ms + 10_000 for due in due_ms if due)


def test_an_outage_of_a_minute_makes_no_dead_letter_on_a_queue_that_was_told_nothing() -> None:
    desk = Desk(checks=False)
    desk.create()
    desk.send(*[b"x"] * 10_000)
    while desk.now_ms < START_MS + MINUTE_MS:
        while (delivery := desk.receive(10_000)).count:
            desk.release(delivery, error="down")
        desk.step(at_ms=desk.now_ms + 500)
    assert desk.stats().channels["main"].dead == 0
    desk.step(at_ms=desk.now_ms + 128_000)
    assert desk.ack(desk.receive(10_000)).count == 10_000


def test_a_release_without_a_delay_waits_on_a_queue_that_was_told_nothing_but_not_the_first_time() -> None:
    desk = Desk()
    desk.create()
    desk.send(b"a")
    desk.release(desk.receive(), error="down")
    assert desk.counts() == (1, 0, 0)
    desk.release(desk.receive(), error="down")
    assert desk.counts() == (0, 0, 1)
    desk.advance(1_000)
    assert desk.counts() == (1, 0, 0)
    desk.release(desk.receive(), delay_ms=0)
    assert desk.counts() == (1, 0, 0)


@pytest.mark.parametrize(("backoff", "waits"), [({}, False), ({"backoff": Backoff("fixed", base_ms=500)}, True)])
def test_a_lease_that_ran_out_waits_only_where_a_backoff_was_set(backoff: dict[str, Backoff], waits: bool) -> None:
    desk = Desk()
    desk.create(lease_ms=1_000, **backoff)
    desk.send(b"a")
    for _ in range(2):
        desk.receive()
        desk.advance(1_000)
    assert desk.counts() == ((0, 0, 1) if waits else (1, 0, 0))


def test_release_can_say_how_long_to_wait_itself() -> None:
    desk = Desk()
    desk.create(backoff=Backoff("fixed", base_ms=HOUR_MS))
    desk.send(b"a")
    desk.release(desk.receive(), delay_ms=2_000)
    desk.advance(1_999)
    assert desk.receive().count == 0
    desk.advance(1)
    delivery = desk.receive()
    assert attempts_of(delivery) == [2]
    desk.release(delivery, delay_ms=0)
    assert desk.counts() == (1, 0, 0)


@pytest.mark.parametrize("delay_ms", [20 * MINUTE_MS, 400 * 24 * HOUR_MS])
def test_message_released_for_far_ahead_keeps_attempts_and_history_over_a_restart(delay_ms: int) -> None:
    desk = Desk()
    desk.create(retention_ms=None)
    desk.send(b"a", b"b")
    desk.release(desk.receive(2), delay_ms=delay_ms, error="not now")
    desk.reopen(delay_ms - 1)
    assert desk.counts() == (0, 0, 2)
    desk.advance(1)
    delivery = desk.receive(2)
    assert (bodies_of(delivery), attempts_of(delivery)) == ([b"a", b"b"], [2, 2])
    assert [failure.error for failure in delivery.runs[0].failures] == ["not now"]


def test_retried_message_keeps_sequence_number_and_time_sent() -> None:
    desk = Desk()
    desk.send(b"a", b"b")
    desk.advance(1_000)
    desk.fail(3)
    delivery = desk.receive(2)
    assert [run.chunk.sent_ms for run in delivery.runs] == [START_MS] * len(delivery.runs)
    assert [run.first + index for run in delivery.runs for index in range(run.count)] == [0, 1]


def test_failures_tell_attempt_times_session_and_error() -> None:
    desk = Desk()
    session = desk.do(c.OpenSession(name="worker 7"))
    desk.send(b"a")
    delivery = desk.receive(session=session)
    desk.advance(250)
    desk.release(delivery, error="no such customer")
    desk.receive(lease_ms=1_000)
    desk.advance(1_000)
    (seen,) = desk.browse()
    first, second = seen.failures
    assert (first.attempt, first.received_ms, first.failed_ms) == (1, START_MS, START_MS + 250)
    assert (first.session, first.error) == ("worker 7", "no such customer")
    assert (second.attempt, second.error, second.session) == (2, "lease expired", "")


def test_error_text_that_is_no_valid_unicode_does_not_stop_the_shard() -> None:
    desk = Desk()
    desk.send(b"a")
    desk.release(desk.receive(), error="cannot open 'caf\udce9.txt'")
    (seen,) = desk.browse()
    assert "cannot open 'caf" in seen.failures[0].error


def test_message_goes_to_the_dead_letter_queue_after_max_receives() -> None:
    desk = Desk()
    desk.create(max_receives=3)
    desk.send(b"a", b"b", attributes=[b"kept", None], group="customer", priority=4)
    desk.advance(77)
    for attempt in range(1, 4):
        desk.fail(1, error=f"error {attempt}")
    assert desk.counts() == (0, 0, 0)
    assert desk.stats().channels["main"].dead == 2
    assert desk.counts("q.dead") == (2, 0, 0)
    (run,) = desk.receive(2, queue="q.dead").runs
    assert run.chunk.body_list() == [b"a", b"b"]
    assert run.chunk.attributes(0) == b"kept"
    assert run.chunk.group(0) == "customer"
    data = run.chunk.origin(0)
    assert data is not None
    origin = Origin.decode(data)
    queue_id = desk.do(c.DescribeQueue(name="q")).queue_id
    assert origin.id == desk.broker.message_id(queue_id, 0)
    assert (origin.queue, origin.channel, origin.sequence, origin.sent_ms) == ("q", "main", 0, START_MS)
    assert (origin.attempts, origin.priority) == (3, 4)
    assert [failure.error for failure in origin.failures] == ["error 1", "error 2", "error 3"]
    assert [failure.attempt for failure in origin.failures] == [1, 2, 3]


def test_dead_letter_leaves_its_queue_in_the_commit_in_which_it_arrives() -> None:
    desk = Desk()
    desk.create(max_receives=1)
    desk.send(b"a")
    delivery = desk.receive()
    desk.step(c.Release(queue="q", spans=spans_of(delivery)), commit=False)
    changes = desk.broker.take_changes()
    assert sum(chunk is None for chunk in changes.chunks.values()) == 1
    assert sum(chunk is not None for chunk in changes.chunks.values()) == 1
    desk.store.commit(changes)
    desk.broker.committed(changes)
    desk.commit()


def test_named_dead_letter_queue_is_used_and_made_when_absent() -> None:
    desk = Desk()
    desk.create(max_receives=1, dead_letter="graveyard", message_bytes_max=2_000_000)
    desk.send(b"a")
    desk.fail(1)
    info = desk.do(c.DescribeQueue(name="graveyard"))
    assert (info.config.kind, info.config.max_receives, info.config.retention_ms) == ("standard", 0, 14 * 24 * HOUR_MS)
    assert desk.do(c.ListQueues()) == ["graveyard", "q"]


def test_max_receives_of_zero_never_gives_up() -> None:
    desk = Desk()
    desk.create(max_receives=0)
    desk.send(b"a")
    desk.fail(40)
    assert desk.counts() == (1, 0, 0)


def test_expiry_and_end_of_session_lead_to_the_dead_letter_queue_as_well() -> None:
    desk = Desk()
    desk.create(max_receives=2)
    session = desk.do(c.OpenSession(name="worker"))
    desk.send(b"a")
    desk.receive(lease_ms=1_000)
    desk.advance(1_000)
    desk.receive(session=session)
    assert desk.do(c.EndSession(session=session)) == 1
    (seen,) = desk.browse("q.dead")
    data = seen.chunk.origin(seen.index)
    assert data is not None
    assert [failure.error for failure in Origin.decode(data).failures] == ["lease expired", "session ended"]


# -- redrive --


def _dead(*bodies: bytes, errors: tuple[str, ...] = (), **settings: Any) -> Desk:
    desk = Desk()
    desk.create(max_receives=1, **settings)
    for index, body in enumerate(bodies):
        desk.send(body)
        desk.fail(1, error=errors[index] if errors else "")
    return desk


def _redriven(desk: Desk, **fields: Any) -> c.RedriveTask:
    task: c.RedriveTask = desk.do(c.StartRedrive(queue="q.dead", **fields))
    desk.advance(100)
    tasks: list[c.RedriveTask] = desk.do(c.ListRedrives(queue="q.dead"))
    return next(each for each in tasks if each.task == task.task)


def test_redrive_brings_everything_back_to_its_source() -> None:
    desk = _dead(b"a", b"b", b"c")
    task = _redriven(desk)
    assert (task.status, task.moved, task.skipped) == ("done", 3, 0)
    assert desk.counts("q.dead") == (0, 0, 0)
    delivery = desk.receive(10)
    assert bodies_of(delivery) == [b"a", b"b", b"c"]
    assert attempts_of(delivery) == [1, 1, 1]


def test_redriven_message_keeps_its_identity_its_first_time_and_its_history() -> None:
    desk = _dead(b"a", errors=("first life",))
    _redriven(desk)
    desk.advance(HOUR_MS)
    desk.fail(1, error="second life")
    (seen,) = desk.browse("q.dead")
    data = seen.chunk.origin(seen.index)
    assert data is not None
    origin = Origin.decode(data)
    assert origin.id == desk.broker.message_id(desk.do(c.DescribeQueue(name="q")).queue_id, 0)
    assert origin.sent_ms == START_MS
    assert [failure.error for failure in origin.failures] == ["first life", "second life"]


def test_redrive_moves_only_the_selected_ones() -> None:
    desk = _dead(b"a", b"b", b"c")
    task = _redriven(desk, sequences=[0, 2])
    assert (task.moved, task.skipped) == (2, 1)
    assert bodies_of(desk.receive(10)) == [b"a", b"c"]
    assert desk.counts("q.dead") == (1, 0, 0)


def test_redrive_selects_by_reported_error_and_by_content() -> None:
    desk = _dead(b"a1", b"b", b"a2", errors=("timeout after 3 s", "no such customer", "timeout after 5 s"))
    assert _redriven(desk, error="timeout", contains=b"2").moved == 1
    assert _redriven(desk, error="timeout").moved == 1
    assert bodies_of(desk.receive(10)) == [b"a2", b"a1"]
    assert [seen.chunk.body(seen.index) for seen in desk.browse("q.dead")] == [b"b"]


def test_redrive_elsewhere_makes_the_target() -> None:
    desk = _dead(b"a")
    assert _redriven(desk, target="inspection").moved == 1
    assert bodies_of(desk.receive(queue="inspection")) == [b"a"]


def test_redrive_leaves_what_is_leased_and_what_comes_later() -> None:
    desk = _dead(b"a", b"b")
    desk.receive(queue="q.dead")
    task = desk.do(c.StartRedrive(queue="q.dead", per_second=1))
    desk.send(b"c")
    desk.fail(1)
    desk.advance(10_000)
    (task,) = desk.do(c.ListRedrives())
    assert (task.status, task.moved) == ("done", 1)
    assert desk.counts("q.dead") == (1, 1, 0)


def test_redrive_finds_messages_in_the_retry_lane_among_others() -> None:
    desk = Desk()
    desk.create(max_receives=0)
    desk.send(*(b"%d" % number for number in range(20)))
    desk.fail(1)
    desk.receive(20)
    desk.do(c.Release(queue="q", spans=[c.Span(5, 5, 2)], delay_ms=0))
    desk.do(c.Release(queue="q", spans=[c.Span(0, 4, 2), c.Span(6, 19, 2)], delay_ms=0))
    desk.do(c.StartRedrive(queue="q", target="t"))
    desk.advance(100)
    assert sorted(bodies_of(desk.receive(50, queue="t")), key=int) == [b"%d" % number for number in range(20)]
    assert desk.counts() == (0, 0, 0)


def test_redrive_keeps_to_its_rate() -> None:
    desk = _dead(*(b"%d" % number for number in range(40)))
    desk.do(c.StartRedrive(queue="q.dead", per_second=10))
    for second in range(1, 4):
        desk.advance(1_000)
        assert abs(desk.counts()[0] - 10 * second) <= 1
    desk.advance(2_000)
    assert desk.counts() == (40, 0, 0)


def test_redrive_goes_on_after_a_restart_at_its_rate() -> None:
    desk = _dead(*(b"%d" % number for number in range(60)))
    desk.do(c.StartRedrive(queue="q.dead", per_second=10))
    desk.advance(1_000)
    moved = desk.counts()[0]
    desk.reopen(HOUR_MS)
    assert desk.counts()[0] - moved <= 11, "an hour of standstill is no reason to hurry"
    desk.advance(10_000)
    assert desk.counts() == (60, 0, 0)
    assert [task.status for task in desk.do(c.ListRedrives())] == ["done"]


def test_crash_in_a_redrive_neither_loses_nor_doubles_anything() -> None:
    desk = _dead(*(b"%d" % number for number in range(30)))
    desk.do(c.StartRedrive(queue="q.dead", per_second=10))
    for _ in range(20):
        desk.step(at_ms=desk.now_ms + 200, commit=False)
        if desk.now_ms % 400:
            desk.reopen()
        else:
            desk.commit()
        assert desk.counts()[0] + desk.counts("q.dead")[0] == 30
    desk.advance(10_000)
    assert sorted(bodies_of(desk.receive(100)), key=int) == [b"%d" % number for number in range(30)]


def test_cancelled_redrive_moves_nothing_more() -> None:
    desk = _dead(*(b"%d" % number for number in range(20)))
    task = desk.do(c.StartRedrive(queue="q.dead", per_second=10))
    desk.advance(1_000)
    cancelled = desk.do(c.CancelRedrive(task=task.task))
    assert cancelled.status == "cancelled"
    moved = desk.counts()[0]
    desk.advance(HOUR_MS)
    assert desk.counts()[0] == moved < 20
    with pytest.raises(TaskNotFound):
        desk.do(c.CancelRedrive(task=99))


def test_a_queue_without_dead_letters_is_redriven_to_a_target_only() -> None:
    desk = _dead(b"a")
    with pytest.raises(InvalidRequest, match=r"'q' is not a dead-letter queue.* Those of 'q' are in 'q\.dead'"):
        desk.do(c.StartRedrive(queue="q"))
    desk.do(c.CreateQueue(name="fresh"))
    with pytest.raises(InvalidRequest, match="'fresh' has none"):
        desk.do(c.StartRedrive(queue="fresh"))
    assert desk.do(c.StartRedrive(queue="q", target="elsewhere")).status == "running"
    desk.do(c.CreateQueue(name="grave"))
    desk.do(c.CreateQueue(name="other", config=QueueConfig(dead_letter="grave")))
    assert desk.do(c.StartRedrive(queue="grave")).status == "running", "it is empty, and still for dead letters"
    desk.do(c.DeleteQueue(name="q"))
    assert desk.do(c.StartRedrive(queue="q.dead")).status == "running", "where they came from is in the messages"


def test_one_redrive_a_queue_and_never_to_itself() -> None:
    desk = _dead(b"a", b"b")
    desk.do(c.StartRedrive(queue="q.dead", per_second=1))
    with pytest.raises(InvalidRequest, match="running"):
        desk.do(c.StartRedrive(queue="q.dead"))
    with pytest.raises(InvalidRequest, match="itself"):
        desk.do(c.StartRedrive(queue="q", target="q"))


def test_redrive_of_a_queue_that_is_deleted_meanwhile_fails() -> None:
    desk = _dead(b"a", b"b")
    desk.do(c.StartRedrive(queue="q.dead", per_second=1))
    desk.do(c.DeleteQueue(name="q.dead"))
    (task,) = desk.do(c.ListRedrives())
    assert (task.status, task.error) == ("failed", "queue 'q.dead' was deleted")


def test_redrive_of_a_deleted_queue_leaves_a_new_one_of_that_name_alone() -> None:
    desk = _dead(b"a", b"b")
    desk.do(c.StartRedrive(queue="q.dead", target="elsewhere", per_second=1))
    desk.do(c.DeleteQueue(name="q.dead"))
    desk.send(b"new", queue="q.dead")
    desk.advance(5_000)
    assert [seen.state for seen in desk.browse("q.dead")] == [State.READY]
    assert desk.do(c.StartRedrive(queue="q.dead", target="elsewhere")).status == "running"


def test_browsing_shows_dead_letters_as_ready() -> None:
    desk = _dead(b"a")
    assert [seen.state for seen in desk.browse("q.dead")] == [State.READY]
