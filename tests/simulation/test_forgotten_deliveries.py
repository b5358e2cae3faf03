"""Who got a message just before a crash settles it afterwards, although the crash has forgotten the delivery.

Each case is judged by the model, and every commit by a broker that is opened from the store.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.delivery import dispatch as dispatch
from penstock.core.delivery.acknowledgement import Acknowledgement
from penstock.core.delivery.states import State
from penstock.core.errors import ChunkDamaged, StaleReceipt, WorkRefused
from penstock.core.storage.keys import ChunkKey
from penstock.core.storage.write_buffer import WriteBuffer
from tests.simulation.model import Violation
from tests.simulation.model.state import Queue
from tests.simulation.simulator import RECALLING_SEEDS, run_seed
from tests.simulation.test_found_faults import START_MS, Case, create, receive, send


class CrashingCase(Case):
    """A world whose process can die with what it has not committed."""

    def __init__(self) -> None:
        super().__init__()
        self._committed = pickle.dumps(self.world.model)

    def do(self, *commands: c.Command, at_ms: int = 0) -> list[Any]:
        replies = super().do(*commands, at_ms=at_ms)
        self._committed = pickle.dumps(self.world.model)
        return replies

    def lose(self, *commands: c.Command, at_ms: int = 0) -> list[Any]:
        """One step that is answered, and then forgotten with all others since the last commit: `crash` comes next."""
        self.now_ms = START_MS + at_ms
        step = self.world.step(commands, self.now_ms)
        assert not self.world.broker.must_commit
        return [outcome for _, outcome in step.outcomes]

    def crash(self, at_ms: int = 0) -> None:
        self.now_ms = START_MS + at_ms
        self.world.reopen(self.world.store, pickle.loads(self._committed), self.now_ms)


@pytest.fixture
def case() -> CrashingCase:
    return CrashingCase()


def spans(delivery: c.Delivery) -> list[c.Span]:
    return [span for run in delivery.runs for span in run.spans()]


def sequences(delivery: c.Delivery) -> list[int]:
    return [sequence for span in spans(delivery) for sequence in range(span.first, span.last + 1)]


def ack(*named: c.Span) -> c.Ack:
    return c.Ack(queue="q", channel=c.MAIN, spans=list(named))


def extend(lease_ms: int, *named: c.Span) -> c.Extend:
    return c.Extend(queue="q", channel=c.MAIN, spans=list(named), lease_ms=lease_ms)


def release(*named: c.Span, **options: Any) -> c.Release:
    return c.Release(queue="q", channel=c.MAIN, spans=list(named), **options)


def refusals(settled: c.Settled) -> list[type[Exception]]:
    return [type(each.error) for each in settled.refused]


def state(case: CrashingCase, sequence: int) -> tuple[State, int]:
    (found,) = [seen for seen in case.do(c.Browse(queue="q"))[0] if seen.sequence == sequence]
    return found.state, found.attempts


# -- acks --------------------------------------------------------------------------------------------------------------


def test_an_acked_message_does_not_come_back(case: CrashingCase) -> None:
    case.do(create(), send(b"1"))
    (got,) = case.lose(receive())
    case.crash()
    assert case.do(ack(*spans(got)))[0].count == 1
    assert not case.do(receive())[0].count
    case.reopen()
    assert not case.do(receive())[0].count
    assert case.do(c.QueueStats(name="q"))[0].messages == 0


def test_one_of_a_chunk_is_acked_and_the_others_come_in_their_order(case: CrashingCase) -> None:
    case.do(create(), send(*(b"%d" % n for n in range(10))))
    (got,) = case.lose(receive(limit=5))
    case.crash()
    assert sequences(got) == [0, 1, 2, 3, 4]
    assert case.do(ack(c.Span(3, 3, 1)))[0].count == 1
    assert sequences(case.do(receive())[0]) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_what_is_released_takes_turns_as_if_nothing_had_been_forgotten(case: CrashingCase) -> None:
    case.do(create(), send(*(b"%d" % n for n in range(30)), delay_ms=1))
    (got,) = case.lose(receive(limit=7), at_ms=10)
    case.crash(at_ms=20)
    assert case.do(release(*spans(got), delay_ms=0), at_ms=20)[0].count == 7
    assert sorted(sequences(case.do(receive(limit=7), at_ms=20)[0])) == [0, 1, 2, 3, 7, 8, 9]


def test_what_lies_before_it_comes_first_as_ever(case: CrashingCase) -> None:
    case.do(create())
    for number in range(6):
        case.do(send(b"%d" % number))
    (got,) = case.lose(receive(limit=4))
    case.crash()
    assert case.do(ack(c.Span(3, 3, 1)))[0].count == 1
    assert sequences(case.do(receive(limit=1))[0]) == [0]
    assert sequences(case.do(receive())[0]) == [1, 2, 4, 5]
    assert case.do(ack(*spans(got)))[0].count == 3, "the others are still theirs, who got them first"


def test_every_priority_is_looked_through(case: CrashingCase) -> None:
    case.do(create(), send(b"low"), send(b"high", priority=9), send(b"low"), send(b"high", priority=9))
    (got,) = case.lose(receive())
    case.crash()
    assert case.do(ack(*spans(got)))[0].count == 4
    assert not case.do(receive())[0].count


def test_a_message_that_has_come_due_meanwhile_is_acked(case: CrashingCase) -> None:
    case.do(create(), send(b"late", delay_ms=1_000))
    (got,) = case.lose(receive(), at_ms=1_500)
    case.crash(at_ms=1_600)
    assert case.do(ack(*spans(got)), at_ms=1_600)[0].count == 1
    assert not case.do(receive(), at_ms=5_000)[0].count


@pytest.mark.parametrize("settle", [ack, release])
def test_a_clock_that_went_back_is_no_obstacle(case: CrashingCase, settle: Any) -> None:
    """The message came from a far bucket, and waits there again."""
    day_ms = 86_400_000
    case.do(create(retention_ms=None), send(b"far", delay_ms=day_ms))
    (got,) = case.lose(receive(), at_ms=day_ms + 1)
    case.crash()
    assert case.do(settle(*spans(got)))[0].count == 1
    assert case.do(receive())[0].count == (settle is release)


def test_a_clock_that_went_back_is_no_obstacle_to_a_retry_either(case: CrashingCase) -> None:
    day_ms = 86_400_000
    case.do(create(retention_ms=None), send(b"1", b"2"))
    (got,) = case.do(receive())
    case.do(release(*spans(got), delay_ms=day_ms))
    (again,) = case.lose(receive(), at_ms=day_ms + 1)
    case.crash()
    assert case.do(ack(c.Span(0, 0, 2)))[0].count == 1
    assert case.do(extend(5_000, c.Span(1, 1, 2)))[0].count == 1
    assert sequences(again) == [0, 1]
    assert sequences(case.do(receive(), at_ms=4_999)[0]) == []
    assert spans(case.do(receive(), at_ms=5_001)[0]) == [c.Span(1, 1, 3)]


def test_a_unit_of_work_takes_what_it_took_before_the_crash(case: CrashingCase) -> None:
    case.do(create(), create("out"), send(b"1"))
    (got,) = case.lose(receive())
    case.crash()
    work = c.CommitWork(acks=[ack(*spans(got))], sends=[send(b"done", queue="out")])
    assert case.do(work)[0][0].count == 1
    assert isinstance(case.do(work)[0], WorkRefused), "once, and not twice"


def test_a_paused_channel_takes_acks(case: CrashingCase) -> None:
    case.do(create(), send(b"1"))
    (got,) = case.lose(receive())
    case.crash()
    case.do(c.PauseChannel(queue="q", channel=c.MAIN, paused=True))
    assert case.do(ack(*spans(got)))[0].count == 1


def test_a_message_of_a_fair_queue_is_not_handed_out_again(case: CrashingCase) -> None:
    case.do(create(), send(b"1", b"2", b"3", groups=["a", "b", "a"]))
    (got,) = case.lose(receive(limit=2))
    case.crash()
    assert sequences(case.do(receive(limit=1))[0]) == [0], "the index of groups is built"
    assert case.do(ack(*spans(got)))[0].count == 2
    assert sequences(case.do(receive())[0]) == [2]


# -- who was last ------------------------------------------------------------------------------------------------------


def test_either_of_two_receivers_on_the_same_attempt_may_ack(case: CrashingCase) -> None:
    case.do(create(), send(b"1"))
    (before,) = case.lose(receive())
    case.crash()
    (after,) = case.do(receive())
    assert spans(before) == spans(after)
    assert case.do(ack(*spans(before)))[0].count == 1
    assert refusals(case.do(ack(*spans(after)))[0]) == [StaleReceipt]


def test_a_later_attempt_supersedes_a_forgotten_one(case: CrashingCase) -> None:
    case.do(create(), send(b"1"))
    (before,) = case.lose(receive())
    case.crash()
    (after,) = case.do(receive())
    case.do(release(*spans(after)))
    (last,) = case.do(receive())
    for settle in (ack(*spans(before)), release(*spans(before)), extend(1_000, *spans(before))):
        assert refusals(case.do(settle)[0]) == [StaleReceipt]
    assert case.do(ack(*spans(last)))[0].count == 1


def test_the_second_of_two_forgotten_deliveries_acks_but_cannot_take_the_lease_of_the_next(case: CrashingCase) -> None:
    case.do(create(), send(b"1"))
    (first,) = case.lose(receive())
    case.lose(release(*spans(first)))
    (second,) = case.lose(receive())
    case.crash()
    (after,) = case.do(receive())
    assert (spans(second)[0].attempt, spans(after)[0].attempt) == (2, 1)
    assert refusals(case.do(extend(1_000, *spans(second)))[0]) == [StaleReceipt]
    assert refusals(case.do(release(*spans(second)))[0]) == [StaleReceipt]
    assert case.do(ack(*spans(second)))[0].count == 1


def test_a_lease_from_before_the_crash_gives_way_to_the_one_after_it(case: CrashingCase) -> None:
    """The first lease was committed; that it was returned, and the next lease, were not."""
    case.do(create(), send(b"1"))
    (first,) = case.do(receive())
    case.lose(release(*spans(first)), at_ms=5)
    (second,) = case.lose(receive(), at_ms=6)
    case.crash(at_ms=10)
    assert state(case, 0) == (State.LEASED, 1)
    assert case.do(extend(60_000, *spans(second)), at_ms=11)[0].count == 1
    assert state(case, 0) == (State.LEASED, 2)
    assert refusals(case.do(ack(*spans(first)), at_ms=12)[0]) == [StaleReceipt]
    assert case.do(ack(*spans(second)), at_ms=12)[0].count == 1


def test_what_this_process_hands_out_it_does_not_forget(case: CrashingCase) -> None:
    """An attempt that never was is refused, for messages that were sent since the store was opened."""
    case.do(create(), send(b"1"))
    case.crash()
    case.do(send(b"2"))
    assert refusals(case.do(ack(c.Span(1, 1, 1)))[0]) == [StaleReceipt]
    assert refusals(case.do(release(c.Span(1, 1, 1)))[0]) == [StaleReceipt]


def test_a_durable_lease_is_not_forgotten(case: CrashingCase) -> None:
    case.do(create(policy="consume_once"), send(b"1"))
    case.crash()
    assert refusals(case.do(ack(c.Span(0, 0, 1)))[0]) == [StaleReceipt]


def test_a_message_that_was_purged_is_gone(case: CrashingCase) -> None:
    case.do(create(), send(b"1"))
    (got,) = case.lose(receive())
    case.crash()
    case.do(c.PurgeQueue(name="q"))
    assert refusals(case.do(ack(*spans(got)))[0]) == [StaleReceipt]


# -- extensions and releases -------------------------------------------------------------------------------------------


def test_a_heartbeat_keeps_the_message(case: CrashingCase) -> None:
    case.do(create(lease_ms=30_000), send(b"1", b"2"))
    (got,) = case.lose(receive())
    case.crash()
    assert case.do(extend(5_000, c.Span(1, 1, 1)))[0].count == 1
    assert sequences(case.do(receive())[0]) == [0]
    case.reopen()
    assert not case.do(receive(), at_ms=4_999)[0].count
    assert case.do(ack(*spans(got)), at_ms=4_999)[0].count == 2
    assert not case.do(receive(), at_ms=60_000)[0].count


def test_a_failure_is_reported_and_counted(case: CrashingCase) -> None:
    case.do(create(), send(b"1"))
    (got,) = case.lose(receive())
    case.crash()
    assert case.do(release(*spans(got), error="boom"))[0].count == 1
    (again,) = case.do(receive())
    assert [span.attempt for span in spans(again)] == [2]
    assert [(failure.attempt, failure.error) for failure in again.runs[0].failures] == [(1, "boom")]


def test_the_last_allowed_delivery_fails_into_the_dead_letter_queue(case: CrashingCase) -> None:
    case.do(create(max_receives=1), send(b"1"))
    (got,) = case.lose(receive())
    case.crash()
    assert case.do(release(*spans(got), error="boom"))[0].count == 1
    assert not case.do(receive())[0].count
    assert case.do(receive(queue="q.dead"))[0].count == 1


def test_a_group_stays_blocked_for_who_had_it_before_the_crash(case: CrashingCase) -> None:
    case.do(create("q", kind="fifo", content_dedup=True), send(b"1", b"2", b"3", groups=["a", "a", "b"]))
    (got,) = case.lose(receive(limit=1))
    case.crash()
    case.do(receive(limit=1, lease_ms=0))  # the index of groups is built; the lease is over
    (again,) = case.lose(receive(limit=1))
    case.crash()
    assert case.do(extend(5_000, *spans(again)))[0].count == 1
    assert sequences(case.do(receive())[0]) == [2]
    assert case.do(ack(*spans(again)))[0].count == 1
    assert sequences(case.do(receive())[0]) == [1]
    assert sequences(got) == [0]


def test_a_message_of_a_group_is_held_again_while_the_index_is_in_use(case: CrashingCase) -> None:
    case.do(create("q", kind="fifo", content_dedup=True), send(b"1", b"2", b"3", groups=["a", "b", "a"]))
    (got,) = case.lose(receive())
    case.crash()
    assert sequences(got) == [0, 2, 1]
    assert case.do(receive(limit=1))[0].count == 1
    assert case.do(extend(5_000, c.Span(1, 1, 1)))[0].count == 1
    assert not case.do(receive())[0].count, "group b is blocked, and so is group a"
    assert case.do(release(c.Span(1, 1, 1)))[0].count == 1
    assert sequences(case.do(receive())[0]) == [1]


def test_room_in_flight_is_counted_right(case: CrashingCase) -> None:
    case.do(create(in_flight_max=2), send(b"1", b"2", b"3"))
    (got,) = case.lose(receive(limit=2))
    case.crash()
    assert case.do(extend(5_000, *spans(got)))[0].count == 2
    assert case.do(c.QueueStats(name="q"))[0].channels[c.MAIN].leased == 2
    assert case.do(ack(*spans(got)))[0].count == 2
    assert sequences(case.do(receive())[0]) == [2]


# -- what stands in the way --------------------------------------------------------------------------------------------


def test_a_damaged_chunk_before_it_is_put_aside(case: CrashingCase, breaking: pytest.MonkeyPatch) -> None:
    case.do(create())
    for number in range(3):
        case.do(send(b"%d" % number))
    case.lose(receive())
    case.crash()
    honest = WriteBuffer.load

    def load(write_buffer: WriteBuffer, key: ChunkKey) -> Any:
        if key.base == 1:
            raise ChunkDamaged("a bit fell over")
        return honest(write_buffer, key)

    breaking.setattr(WriteBuffer, "load", load)
    broker = case.world.broker
    assert broker.handle(ack(c.Span(2, 2, 1)), START_MS).count == 1
    assert refusals(broker.handle(ack(c.Span(1, 1, 1)), START_MS)) == [StaleReceipt]
    assert [report.first for report in broker.take_reports()] == [1]


def test_who_names_what_lies_far_ahead_does_not_bring_all_of_it_in(
    case: CrashingCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "LOOK_AHEAD", 10)
    case.do(create())
    for number in range(40):
        case.do(send(b"%d" % number))
    case.crash()
    broker = case.world.broker
    assert refusals(broker.handle(ack(c.Span(39, 39, 1)), START_MS)) == [StaleReceipt]
    assert len(broker.queues["q"].channels[c.MAIN].windows[0].entries) == 10


# -- the simulator finds it --------------------------------------------------------------------------------------------


def _forget(acknowledgement: Acknowledgement, wanted: list[Any], *rest: object) -> tuple[int, list[Any]]:
    return 0, wanted


def test_a_broker_that_refuses_who_was_forgotten_is_found_out(breaking: pytest.MonkeyPatch) -> None:
    breaking.setattr(Acknowledgement, "_walk_forgotten", _forget)
    with pytest.raises(Violation, match=r"settled 0, not|StaleReceipt|WorkRefused"):
        for seed in range(RECALLING_SEEDS, RECALLING_SEEDS + 25):
            run_seed(seed)


def test_a_message_that_comes_back_after_its_last_receiver_acked_it_is_found_out(
    breaking: pytest.MonkeyPatch,
) -> None:
    """Without the model's help: the ledger counts what clients got and were told, by message."""
    breaking.setattr(Acknowledgement, "_walk_forgotten", _forget)
    breaking.setattr(Queue, "was_forgotten", lambda *_: False)
    with pytest.raises(Violation, match="acked it, and it came back"):
        for seed in range(RECALLING_SEEDS, RECALLING_SEEDS + 25):
            run_seed(seed)


def test_a_receipt_on_an_attempt_that_nobody_reaches_is_no_forgotten_one(case: CrashingCase) -> None:
    case.do(create(max_receives=0), send(b"1"))
    case.crash()
    assert refusals(case.do(extend(1_000, c.Span(0, 0, 2**32 - 1)))[0]) == [StaleReceipt]
