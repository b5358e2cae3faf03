"""A clock that was ahead: after a restart with the right one, nothing lasts longer than it was given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import commands as c
from penstock.core.delivery.columns import Columns
from penstock.core.delivery.states import State
from penstock.core.queues.config import DEDUP_WINDOW_MS, Backoff
from tests.core.driver import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, BrokerDriver, attempts_of, bodies_of

AHEAD_MS = HOUR_MS


def test_lease_that_was_taken_while_the_clock_was_ahead_lasts_as_long_as_it_was_given() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.receive(lease_ms=3 * SECOND_MS)
    driver.reopen(-AHEAD_MS)
    driver.advance(3 * SECOND_MS - 1)
    assert driver.counts() == (0, 1, 0)
    driver.advance(1)
    assert attempts_of(driver.receive()) == [2]


def test_group_behind_a_lease_of_a_clock_that_was_ahead_goes_on() -> None:
    driver = BrokerDriver()
    driver.create(kind="fifo")
    driver.send_fifo("g", b"a", b"b")
    driver.receive(lease_ms=3 * SECOND_MS)
    driver.reopen(-AHEAD_MS)
    assert bodies_of(driver.receive(9)) == []
    driver.advance(3 * SECOND_MS)
    assert bodies_of(driver.receive(9)) == [b"a", b"b"]


def test_lease_does_not_begin_again_with_every_restart() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.receive(lease_ms=3 * SECOND_MS)
    driver.reopen(-AHEAD_MS)
    driver.reopen(2 * SECOND_MS)
    driver.advance(SECOND_MS)
    assert attempts_of(driver.receive()) == [2]


def test_lease_of_a_clock_that_went_back_less_than_it_lasted_is_not_longer_either() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.receive(lease_ms=10 * SECOND_MS)
    driver.advance(4 * SECOND_MS)
    driver.reopen(-2 * SECOND_MS)
    driver.advance(8 * SECOND_MS)
    assert attempts_of(driver.receive()) == [2]


def test_lease_that_was_extended_while_the_clock_was_ahead_lasts_no_longer_than_all_that_it_was_given() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    delivery = driver.receive(lease_ms=10 * SECOND_MS)
    driver.advance(5 * SECOND_MS)
    spans = [span for run in delivery.runs for span in run.spans()]
    driver.do(c.Extend(queue="q", spans=spans, lease_ms=20 * SECOND_MS))
    driver.reopen(-AHEAD_MS)
    driver.advance(25 * SECOND_MS)
    assert attempts_of(driver.receive()) == [2]


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_backoff_that_began_while_the_clock_was_ahead_lasts_as_long_as_it_was_given(kind: str) -> None:
    driver = BrokerDriver()
    driver.create(kind=kind, backoff=Backoff("fixed", base_ms=10 * SECOND_MS), content_dedup=kind == "fifo")
    driver.send(b"a", group="g" if kind == "fifo" else None)
    for _ in range(2):
        driver.receive(lease_ms=MINUTE_MS)
        driver.advance(MINUTE_MS)
    assert driver.counts() == (0, 0, 1)
    driver.reopen(-AHEAD_MS)
    driver.advance(10 * SECOND_MS - 1)
    assert driver.counts() == (0, 0, 1)
    driver.reopen()
    driver.advance(1)
    assert attempts_of(driver.receive()) == [3]


def test_backoff_that_began_after_the_time_that_the_clock_went_back_to_is_not_longer_either() -> None:
    """The message was received before that time, and failed after it."""
    driver = BrokerDriver()
    driver.send(b"a")
    delivery = driver.receive(lease_ms=HOUR_MS)
    driver.advance(10 * MINUTE_MS)
    spans = [span for run in delivery.runs for span in run.spans()]
    driver.do(c.Release(queue="q", spans=spans, delay_ms=10 * SECOND_MS))
    driver.reopen(-5 * MINUTE_MS)
    driver.advance(10 * SECOND_MS)
    assert attempts_of(driver.receive()) == [2]


def test_long_backoff_that_began_while_the_clock_was_ahead_lasts_as_long_as_it_was_given() -> None:
    """It waits in a far bucket, out of sight."""
    driver = BrokerDriver()
    driver.create(retention_ms=None)
    driver.send(b"a", b"b")
    delivery = driver.receive(2)
    spans = [span for run in delivery.runs for span in run.spans()]
    driver.do(c.Release(queue="q", spans=spans, delay_ms=2 * HOUR_MS))
    assert driver.counts() == (0, 0, 2)
    driver.reopen(-DAY_MS)
    driver.advance(2 * HOUR_MS - 1)
    assert driver.counts() == (0, 0, 2)
    driver.advance(1)
    assert bodies_of(driver.receive(9)) == [b"a", b"b"]


def test_long_backoff_from_before_the_clock_was_ahead_stays_out_of_sight() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    (run,) = driver.receive().runs
    driver.do(c.Release(queue="q", spans=list(run.spans()), delay_ms=2 * DAY_MS))
    driver.advance(HOUR_MS)
    driver.send(b"b")
    driver.receive()
    driver.reopen(-MINUTE_MS)
    queue = driver.broker.queues["q"]
    assert sum(queue.far.values()) == 1


def test_delay_that_a_sender_asked_for_keeps_its_due_time() -> None:
    driver = BrokerDriver()
    driver.send(b"near", delay_ms=10 * SECOND_MS)
    driver.send(b"far", delay_ms=HOUR_MS)
    driver.reopen(-AHEAD_MS)
    driver.advance(AHEAD_MS + 10 * SECOND_MS - 1)
    assert bodies_of(driver.receive(9)) == []
    driver.advance(1)
    assert bodies_of(driver.receive(9)) == [b"near"]
    driver.advance(HOUR_MS)
    assert b"far" in bodies_of(driver.receive(9))


def test_session_of_a_clock_that_was_ahead_lives_as_long_as_it_may() -> None:
    driver = BrokerDriver()
    session = driver.do(c.OpenSession(name="worker", ttl_ms=10 * SECOND_MS))
    driver.send(b"a")
    driver.receive(session=session, lease_ms=HOUR_MS)
    driver.reopen(-AHEAD_MS)
    driver.advance(10 * SECOND_MS)
    assert attempts_of(driver.receive()) == [2]


def test_duplicates_are_known_for_five_minutes_although_the_clock_was_ahead() -> None:
    driver = BrokerDriver()
    driver.create(kind="fifo")
    driver.send_fifo("g", b"a", b"b")
    driver.reopen(-AHEAD_MS)
    driver.advance(DEDUP_WINDOW_MS - 1)
    assert driver.send_fifo("g", b"a").duplicates == [0]
    driver.reopen()
    driver.advance(1)
    assert driver.send_fifo("g", b"a", b"b").duplicates == []


def test_messages_that_were_sent_while_the_clock_was_ahead_go_in_time() -> None:
    """At the latest when they would if they had been sent when the store was opened."""
    driver = BrokerDriver()
    driver.create(retention_ms=MINUTE_MS)
    driver.send(b"ahead")
    driver.reopen(-10 * DAY_MS)
    driver.advance(30 * SECOND_MS)
    driver.send(b"behind")
    driver.advance(30 * SECOND_MS)
    assert bodies_of(driver.receive(9, lease_ms=0)) == [b"behind"]
    driver.advance(30 * SECOND_MS)
    assert bodies_of(driver.receive(9)) == []


def test_fifo_messages_that_were_sent_while_the_clock_was_ahead_go_in_time_and_delayed_ones_wait() -> None:
    driver = BrokerDriver()
    driver.create(kind="fifo", retention_ms=MINUTE_MS)
    driver.send_fifo("g", b"ahead")
    driver.send(b"delayed", group="h", dedup_ids=["d"], delay_ms=10 * MINUTE_MS)
    driver.reopen(-DAY_MS)
    driver.advance(MINUTE_MS)
    assert [bytes(seen.chunk.body(seen.index)) for seen in driver.browse()] == [b"delayed"]


def test_failed_messages_of_a_clock_that_was_ahead_go_in_time() -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=MINUTE_MS, max_receives=0)
    driver.send(b"ahead")
    for _ in range(3):
        driver.receive(lease_ms=SECOND_MS)
        driver.advance(SECOND_MS)
    driver.reopen(-DAY_MS)
    driver.advance(MINUTE_MS - 1)
    assert len(driver.browse()) == 1
    driver.advance(1)
    assert driver.browse() == []


def test_silent_consumer_of_a_clock_that_was_ahead_is_forgotten_in_time() -> None:
    driver = BrokerDriver()
    driver.create(consumer_retention_ms=MINUTE_MS)
    driver.do(c.AckConsumer(queue="q", consumer="report", offset=0))
    driver.reopen(-DAY_MS)
    driver.advance(MINUTE_MS)
    assert driver.do(c.QueueStats(name="q")).consumers == {}


def test_redrive_of_a_clock_that_was_ahead_goes_on() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=1)
    driver.send(*(b"%d" % number for number in range(20)))
    driver.receive(20, lease_ms=0)
    driver.advance(0)
    driver.do(c.StartRedrive(queue="q.dead", per_second=10))
    driver.advance(300)
    driver.reopen(-DAY_MS)
    driver.advance(10 * SECOND_MS)
    assert driver.counts("q.dead") == (0, 0, 0)


rows = st.lists(
    st.tuples(
        st.sampled_from([State.READY, State.LEASED, State.DELAYED, State.DONE]),
        st.integers(0, 200),
        st.integers(0, 200),
    ),
    max_size=100,
)


@given(rows=rows, now_ms=st.integers(0, 200))
def test_columns_begin_later_leases_now_as_a_loop_would(rows: list[tuple[State, int, int]], now_ms: int) -> None:
    columns = Columns()
    columns.append(0, len(rows))
    for row, (state, received_ms, given_ms) in enumerate(rows):
        columns.state[row], columns.received_ms[row] = state, received_ms
        columns.deadline_ms[row] = received_ms + given_ms
    changed = columns.begin_later_at(now_ms)
    expected = [row for row, (state, at_ms, _) in enumerate(rows) if state == State.LEASED and at_ms > now_ms]
    assert changed.tolist() == expected
    began = [now_ms if row in expected else at_ms for row, (_, at_ms, _) in enumerate(rows)]
    assert columns.received_ms[: len(rows)].tolist() == began
    assert np.array_equal(
        columns.deadline_ms[: len(rows)] - columns.received_ms[: len(rows)], [given_ms for _, _, given_ms in rows]
    )
