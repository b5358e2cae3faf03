"""Acks of many messages at once: whatever shortcut they take, they do what acks one by one do."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core import commands as c
from penstock.core.delivery import dispatch as dispatch
from penstock.core.delivery.columns import FEW
from penstock.core.errors import InvalidRequest, StaleReceipt
from tests.core.driver import DAY_MS, BrokerDriver, sequences_of

sends = st.lists(st.just(1) | st.integers(1, 30), min_size=1, max_size=12)
receives = st.tuples(st.just("receive"), st.integers(1, 25), st.just(0), st.just(0))
acks = st.tuples(st.just("ack"), st.integers(0, 60), st.integers(1, 25), st.integers(0, 3))
releases = st.tuples(st.just("release"), st.integers(0, 60), st.integers(1, 25), st.integers(1, 3))
steps = st.lists(receives | acks | releases, max_size=25)


def _one_by_one(first: int, count: int, attempt: int) -> list[c.Span]:
    return [c.Span(sequence, sequence, attempt) for sequence in range(first, first + count)]


def _refused(settled: c.Settled) -> set[int]:
    return {sequence for first, last, _ in settled.refused for sequence in range(first, last + 1)}


def _counts(driver: BrokerDriver) -> c.Stats:
    """All that is counted, but for what is still stored: that goes by the chunk, and failing together makes one."""
    return msgspec.structs.replace(driver.stats(), messages=0, bytes=0)


_FAILING_TWICE = [("receive", 2, 0, 0), ("release", 0, 2, 1), ("receive", 2, 0, 0), ("release", 0, 2, 2)]


@given(sends, steps)
@example([2], [*_FAILING_TWICE, ("receive", 2, 0, 0), ("ack", 0, 1, 3)])
def test_acks_of_a_span_are_the_acks_of_its_messages(sends: list[int], steps: list[tuple[str, int, int, int]]) -> None:
    together, alone = BrokerDriver(), BrokerDriver()
    for driver in (together, alone):
        driver.create(lease_ms=1_000, max_receives=0)
        for count in sends:
            driver.send(*[b"body"] * count)
    for what, first, count, attempt in steps:
        if what == "receive":
            for driver in (together, alone):
                driver.receive(first)
            continue
        command = c.Ack if what == "ack" else c.Release
        settled = together.do(command(queue="q", spans=[c.Span(first, first + count - 1, attempt)]))
        each = alone.do(command(queue="q", spans=_one_by_one(first, count, attempt)))
        assert (settled.count, _refused(settled)) == (each.count, _refused(each))
        assert together.counts() == alone.counts()
    assert _counts(together) == _counts(alone)
    assert [(seen.sequence, seen.state, seen.attempts) for seen in together.browse(limit=200)] == [
        (seen.sequence, seen.state, seen.attempts) for seen in alone.browse(limit=200)
    ]


crashes = st.tuples(st.just("crash"), st.integers(0, 25), st.just(0), st.just(0))
extends = st.tuples(st.just("extend"), st.integers(0, 60), st.integers(1, 25), st.integers(1, 3))
steps_with_crashes = st.lists(receives | acks | releases | extends | crashes, max_size=20)


@given(sends, steps_with_crashes, st.sampled_from(["standard", "fair", "fifo"]))
def test_what_a_crash_forgot_is_settled_together_as_it_is_one_by_one(
    sends: list[int], steps: list[tuple[str, int, int, int]], kind: str
) -> None:
    together, alone = BrokerDriver(checks=False), BrokerDriver(checks=False)
    for driver in (together, alone):
        driver.create(
            kind="fifo" if kind == "fifo" else "standard", lease_ms=60_000, max_receives=0, content_dedup=False
        )
        for number, count in enumerate(sends):
            groups = None if kind == "standard" else [f"g{each % 3}" for each in range(count)]
            dedup_ids = [f"{number} {each}" for each in range(count)] if kind == "fifo" else None
            driver.send(*[b"body"] * count, groups=groups, dedup_ids=dedup_ids)
    for what, first, count, attempt in steps:
        if what in ("receive", "crash"):
            for driver in (together, alone):
                if first:
                    driver.do(c.Receive(queue="q", limit=first, wait_ms=0), commit=what == "receive")
                if what == "crash":
                    driver.reopen(after_ms=1)
            continue
        command = {"ack": c.Ack, "release": c.Release, "extend": c.Extend}[what]
        fields = {"lease_ms": 30_000} if what == "extend" else {"delay_ms": 0} if what == "release" else {}
        settled = together.do(command(queue="q", spans=[c.Span(first, first + count - 1, attempt)], **fields))
        each = alone.do(command(queue="q", spans=_one_by_one(first, count, attempt), **fields))
        assert (settled.count, _refused(settled)) == (each.count, _refused(each))
        assert together.counts() == alone.counts()
    assert [(seen.sequence, seen.state, seen.attempts) for seen in together.browse(limit=400)] == [
        (seen.sequence, seen.state, seen.attempts) for seen in alone.browse(limit=400)
    ]
    for driver in (together, alone):  # whatever was said, nothing is lost, and nothing is handed out twice
        driver.advance(60_000)
        ready, leased, delayed = driver.counts()
        assert (leased, delayed) == (0, 0)
        got = driver.receive(1_000)
        assert got.count == ready == len(set(sequences_of(got)))


def test_chunks_that_are_acked_as_one_leave_the_ones_before_and_behind_them_alone() -> None:
    driver = BrokerDriver()
    for count in (1, 3, 1, 2, 1):
        driver.send(*[b"body"] * count)
    driver.receive(8)
    assert driver.do(c.Ack(queue="q", spans=[c.Span(1, 4, 1)])).count == 4
    assert driver.counts() == (0, 4, 0)
    (window,) = [
        window for channel in driver.broker.queues["q"].channels.values() for window in channel.windows.values()
    ]
    assert (window.bases, sorted(window.entries)) == ([0, 5, 7], [0, 5, 7])
    reopened = driver.do(c.Ack(queue="q", spans=[c.Span(0, 7, 1)]))
    assert (reopened.count, _refused(reopened)) == (4, {1, 2, 3, 4})


def test_a_part_of_a_large_chunk_is_acked_as_one() -> None:
    driver = BrokerDriver()
    driver.send(*[b"body"] * (4 * FEW))
    driver.receive(3 * FEW)
    assert driver.do(c.Ack(queue="q", spans=[c.Span(FEW // 2, 2 * FEW, 1)])).count == 2 * FEW + 1 - FEW // 2
    assert driver.counts() == (FEW, 3 * FEW - (2 * FEW + 1 - FEW // 2), 0)
    assert driver.do(c.Ack(queue="q", spans=[c.Span(2 * FEW, 3 * FEW, 1)])).count == FEW - 1


def test_messages_that_were_sent_one_by_one_are_acked_together_without_a_row_for_each() -> None:
    driver = BrokerDriver()
    for _ in range(20):
        driver.send(b"body")
    driver.receive(20)
    assert driver.do(c.Ack(queue="q", spans=[c.Span(2, 11, 1)])).count == 10
    (channel,) = driver.broker.queues["q"].channels.values()
    assert [window.columns.size for window in channel.windows.values()] == [0]
    assert driver.counts() == (0, 10, 0)
    assert driver.do(c.Ack(queue="q", spans=[c.Span(0, 19, 1)])).count == 10


@pytest.mark.parametrize("span", [(4, 1, 1), (4, -2, 1), (4, -(1 << 63), 1), (-1, 4, 1)])
def test_a_span_that_ends_before_it_begins_is_refused_and_changes_nothing(span: tuple[int, int, int]) -> None:
    driver = BrokerDriver()
    driver.send(*[b"body"] * 20)
    driver.receive(10)
    driver.do(c.Ack(queue="q", spans=[c.Span(6, 9, 1)]))
    before = driver.stats()
    spans = [c.Span(*span)]
    for command in (
        c.Ack(queue="q", spans=spans),
        c.Release(queue="q", spans=spans),
        c.Extend(queue="q", spans=spans, lease_ms=1_000),
        c.GiveBack(queue="q", spans=spans),
        c.CommitWork(acks=[c.Ack(queue="q", spans=spans)], sends=[]),
        c.HoldForWork(acks=[c.Ack(queue="q", spans=spans)]),
    ):
        with pytest.raises(InvalidRequest, match="a span goes from"):
            driver.do(command)
    assert driver.stats() == before


def _reopened(chunks: int, count: int, **fields: int) -> BrokerDriver:
    """A backlog that a process finds which was started again."""
    driver = BrokerDriver(checks=False)
    driver.create()
    for _ in range(chunks):
        driver.send(*[b"x"] * count, **fields)
    driver.reopen()
    return driver


def _in_windows(driver: BrokerDriver) -> int:
    windows = driver.broker.queues["q"].channels["main"].windows.values()
    return sum(window.ready + window.leased + window.delayed for window in windows)


MADE_UP: list[c.Command] = [
    c.Ack(queue="q", spans=[c.Span(900, 1 << 60, 1)]),
    c.Ack(queue="q", spans=[c.Span(each, each, 1) for each in range(5, 1_000, 10)]),
    c.Release(queue="q", spans=[c.Span(0, 1 << 60, 3)]),
    c.Extend(queue="q", spans=[c.Span(0, 1 << 60, 1)], lease_ms=1_000),
    c.CommitWork(acks=[c.Ack(queue="q", spans=[c.Span(0, 1 << 60, 1)])], sends=[]),
]


@pytest.mark.parametrize("command", MADE_UP)
@pytest.mark.parametrize("delay_ms", [0, 365 * DAY_MS])
def test_a_span_that_somebody_made_up_brings_in_a_few_messages_only(
    monkeypatch: pytest.MonkeyPatch, command: c.Command, delay_ms: int
) -> None:
    monkeypatch.setattr(dispatch, "RECALLED_MAX", 100)
    driver = _reopened(100, 10, delay_ms=delay_ms)
    before = driver.stats().messages
    driver.step(command)
    assert _in_windows(driver) <= 100
    assert driver.stats().messages >= before - 100


def test_spans_that_somebody_makes_up_one_after_the_other_do_not_bring_in_all_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "RECALLED_MAX", 100)
    monkeypatch.setattr(dispatch, "LOOK_AHEAD", 300)
    driver = _reopened(100, 10)
    for first in range(900, 990):
        (settled,) = driver.step(c.Ack(queue="q", spans=[c.Span(first, first, 1)]))
        assert isinstance(settled.refused[0].error, StaleReceipt)
    assert _in_windows(driver) <= 300


def test_deliveries_that_a_crash_forgot_are_settled_many_at_a_time() -> None:
    driver = _reopened(5, 2_000)
    assert driver.do(c.Ack(queue="q", spans=[c.Span(0, 9_999, 1)])).count == 10_000
