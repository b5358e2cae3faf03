"""Windows: a whole entry behaves exactly as one that is spread, and nothing is lost when rows move together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import commands as c
from penstock.core.delivery.columns import DELAYED, LEASED, READY
from penstock.core.delivery.window import Window
from penstock.core.storage.keys import ChunkKey
from tests.core.driver import BrokerDriver, attempts_of, sequences_of

Step = tuple[str, int, int]

steps_strategy = st.lists(
    st.tuples(
        st.sampled_from(
            ["send", "receive", "receive", "ack", "ack part", "release", "extend", "end", "pass", "reopen"]
        ),
        st.integers(1, 9),
        st.integers(0, 30),
    ),
    max_size=30,
)


class _Walk:
    """One walk through steps; everything that can be seen on the way."""

    def __init__(self) -> None:
        self.driver = BrokerDriver()
        self.driver.create(lease_ms=2_000, max_receives=4, channels=("main", "tap"))
        self.session = self.driver.do(c.OpenSession(name="worker"))
        self.held: list[c.Delivery] = []
        self.seen: list[Any] = []

    def go(self, step: Step) -> None:
        """Take a step, and note what came of it."""
        verb, count, number = step
        self.seen.append(getattr(self, verb.replace(" ", "_"))(count, number))
        self.seen.append(self.driver.broker.snapshot())
        self.seen.append(self.driver.counts())

    def send(self, count: int, number: int) -> None:
        self.driver.send(*[b"%d" % number] * count, priority=number % 2)

    def receive(self, count: int, number: int) -> Any:
        delivery = self.driver.receive(
            count, channel="tap" if number % 5 == 0 else "main", session=self.session if number % 3 else 0
        )
        self.held.append(delivery)
        return sequences_of(delivery), attempts_of(delivery)

    def _delivery(self, number: int) -> c.Delivery | None:
        return self.held[number % len(self.held)] if self.held else None

    def ack(self, _count: int, number: int) -> Any:
        delivery = self._delivery(number)
        return None if delivery is None else _plain(self.driver.ack(delivery))

    def ack_part(self, count: int, number: int) -> Any:
        delivery = self._delivery(number)
        if delivery is None or not delivery.runs:
            return None
        first, last, attempt = delivery.spans()[0]
        part = c.Span(min(first + count // 3, last), last, attempt)
        return _plain(self.driver.do(c.Ack(queue="q", channel=delivery.channel, spans=[part])))

    def release(self, count: int, number: int) -> Any:
        delivery = self._delivery(number)
        delay_ms = (None, 0, 700)[count % 3]
        return None if delivery is None else _plain(self.driver.release(delivery, delay_ms=delay_ms))

    def extend(self, count: int, number: int) -> Any:
        delivery = self._delivery(number)
        return None if delivery is None else _plain(self.driver.extend(delivery, count * 500))

    def end(self, _count: int, _number: int) -> Any:
        ended = self.driver.do(c.EndSession(session=self.session))
        self.session = self.driver.do(c.OpenSession(name="worker"))
        return ended

    def pass_(self, count: int, number: int) -> None:
        self.driver.advance(count * number * 20)

    def reopen(self, _count: int, _number: int) -> None:
        self.driver.reopen()


setattr(_Walk, "pass", _Walk.pass_)


def _plain(settled: c.Settled) -> Any:
    return settled.count, sorted((each.first, each.last, type(each.error)) for each in settled.refused)


def _walk(steps: list[Step], *, spread: bool) -> list[Any]:
    walk = _Walk()
    for step in steps:
        walk.go(step)
        if spread:
            _spread_everything(walk.driver)
    return walk.seen


def _spread_everything(driver: BrokerDriver) -> None:
    for channel in driver.broker.queues["q"].channels.values():
        for window in channel.windows.values():
            for entry in window.entries.values():
                if entry.is_whole:
                    window.spread(entry)


@settings(max_examples=30)
@given(steps_strategy)
def test_whole_entries_behave_exactly_as_spread_ones(steps: list[Step]) -> None:
    assert _walk(steps, spread=False) == _walk(steps, spread=True)


# -- a window by itself --


def _window(*counts: int, gap: int = 0) -> Window:
    window, base = Window(1, 1, 0), 0
    for count in counts:
        window.add(ChunkKey(1, 0, 0, base, count, 10 * count, 5), sent_ms=5)
        base += count + gap
    return window


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(0, 2), st.integers(0, 70), st.integers(0, 70))
def test_entries_are_found_by_any_of_their_sequence_numbers(counts: list[int], gap: int, first: int, stop: int) -> None:
    window = _window(*counts, gap=gap)
    wanted = []
    for entry in window.entries.values():
        inside = [number for number in range(first, stop) if entry.base <= number < entry.stop]
        if inside:
            wanted.append((entry, inside[0], inside[-1] + 1))
    assert window.overlaps(first, stop) == wanted
    owners = [entry for entry in window.entries.values() if entry.base <= first < entry.stop]
    assert window.find(first) is (owners[0] if owners else None)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=8), st.integers(1, 5), st.booleans())
def test_runs_are_taken_lowest_first_and_each_ready_message_once(
    offers: list[tuple[int, int]], limit: int, spread: bool
) -> None:
    window = _window(5, 1, 7, 3, 9, gap=1)
    if spread:
        for entry in window.entries.values():
            window.spread(entry)
    for first, length in offers:
        window.offer_fresh(first, first + length)
    taken: list[int] = []
    while (found := window.take_run(window.fresh, limit)) is not None:
        entry, first, stop = found
        assert 1 <= stop - first <= limit
        assert entry.base <= first < stop <= entry.stop
        window.columns.lease(window.rows(entry, first, stop), 1, 2, 0)
        taken += range(first, stop)
    offered = {number for first, length in offers for number in range(first, first + length)}
    there = {number for entry in window.entries.values() for number in range(entry.base, entry.stop)}
    assert taken == sorted(offered & there)
    assert window.fresh == []


def test_message_that_is_not_ready_any_more_is_passed_over() -> None:
    window = _window(6)
    (entry,) = window.entries.values()
    window.offer_again(0, 6, attempts=1)
    window.columns.lease(window.rows(entry, 1, 3), 1, 2, 0)
    assert [(run[1], run[2]) for run in iter(lambda: window.take_run(window.again, 10), None)] == [(0, 1), (3, 6)]


@given(st.lists(st.integers(1, 400), min_size=2, max_size=40), st.data())
def test_rows_that_move_together_keep_what_they_say(counts: list[int], data: st.DataObject) -> None:
    window = _window(*counts)
    for entry in window.entries.values():
        window.columns.lease(window.all_rows(entry), entry.base + 1, entry.base + 100, entry.base % 7)
    before = {entry.base: window.encode(entry) for entry in window.entries.values()}
    removed = data.draw(st.sets(st.sampled_from(list(window.entries)), max_size=len(counts)))
    for base in removed:
        entry = window.entries[base]
        entry.left = 0
        window.remove(entry)
    assert {entry.base: window.encode(entry) for entry in window.entries.values()} == {
        base: stored for base, stored in before.items() if base not in removed
    }
    assert window.in_use == sum(entry.count for entry in window.entries.values())
    assert window.columns.size <= max(2 * window.in_use, 4_096)
    held = window.columns.expired(1 << 40)
    sequences = [number for _, first, stop in window.entry_runs(held) for number in range(first, stop)]
    left = [number for entry in window.entries.values() for number in range(entry.base, entry.stop)]
    assert sorted(sequences) == left


def test_window_without_entries_keeps_no_rows() -> None:
    window = _window(5_000, 5_000)
    for entry in list(window.entries.values()):
        window.spread(entry)
        entry.left = 0
        window.remove(entry)
    assert (window.in_use, window.columns.size, window.bases) == (0, 0, [])
    assert len(window.columns.state) < 5_000


@pytest.mark.parametrize("state", [READY, LEASED, DELAYED])
def test_stored_entry_comes_back_as_it_was_whole_or_spread(state: int) -> None:
    window = _window(4)
    (entry,) = window.entries.values()
    entry.state, entry.attempts, entry.deadline_ms, entry.received_ms, entry.first_ms, entry.holder = (
        state,
        3,
        9,
        8,
        7,
        6,
    )
    entry.failures = [c.Failure(0, 3, 1, 2, 3, "worker", "error")]
    stored = window.encode(entry)
    window.spread(entry)
    assert window.encode(entry) == stored
    other = Window(1, 1, 0)
    back = other.add_encoded(entry.base, stored)
    assert other.encode(back) == stored
    assert (back.key, back.sent_ms, back.left, back.failures) == (entry.key, 5, 4, entry.failures)
    assert (other.ready, other.leased, other.delayed) == tuple(4 * (state == each) for each in (READY, LEASED, DELAYED))


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=10), st.integers(0, 60))
def test_next_deadline_sees_whole_and_spread_entries_alike(deadlines: list[tuple[int, bool]], now: int) -> None:
    window = _window(*[2] * len(deadlines))
    for entry, (deadline_ms, spread) in zip(window.entries.values(), deadlines, strict=True):
        if spread:
            window.columns.lease(window.all_rows(entry), 0, deadline_ms, 1)
        else:
            entry.state, entry.deadline_ms, entry.holder = LEASED, deadline_ms, 1
            window.watch_whole(entry)
    assert window.next_deadline() == min(deadline_ms for deadline_ms, _ in deadlines)
    window.spread_past(now)
    expired = window.columns.expired(now)
    assert len(expired) == 2 * sum(deadline_ms <= now for deadline_ms, _ in deadlines)
    later = [deadline_ms for deadline_ms, _ in deadlines if deadline_ms > now]
    window.columns.settle(expired)
    assert window.next_deadline() == min(later, default=None)
    window.spread_held(1)
    assert len(window.columns.held_by(1)) == 2 * len(later)


def test_renewed_leases_of_whole_entries_do_not_pile_up() -> None:
    window = _window(1)
    (entry,) = window.entries.values()
    for deadline_ms in range(10_000):
        entry.state, entry.deadline_ms = LEASED, deadline_ms
        window.watch_whole(entry)
    assert len(window.whole_deadlines) < 2_000
    assert window.next_deadline() == 9_999


def test_history_keeps_the_newest_failures_of_a_message() -> None:
    window = _window(1)
    (entry,) = window.entries.values()
    for attempt in range(1, 41):
        entry.remember(c.Failure(0, 0, attempt, 0, 0, "", ""))
    kept = [failure.attempt for failure in entry.failures]
    assert kept == list(range(41 - len(kept), 41))
    assert len(kept) >= 10


def test_history_of_one_message_is_not_pushed_out_by_another() -> None:
    window = _window(2)
    (entry,) = window.entries.values()
    entry.remember(c.Failure(1, 1, 1, 0, 0, "", "the quiet one"))
    for attempt in range(1, 100):
        entry.remember(c.Failure(0, 0, attempt, 0, 0, "", ""))
    assert [failure.error for failure in entry.failures_of(1, 1)] == ["the quiet one"]


def test_failures_are_found_by_message() -> None:
    window = _window(10)
    (entry,) = window.entries.values()
    entry.remember(c.Failure(2, 5, 1, 0, 0, "", "run"))
    for sequence in range(10):
        assert bool(entry.failures_of(sequence, sequence)) == (2 <= sequence <= 5)
