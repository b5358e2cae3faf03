"""Dedup ids: five minutes, over restarts, and then nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queues.config import DEDUP_WINDOW_MS
from penstock.core.queues.dedup import Dedup
from penstock.core.storage.changes import Changes
from penstock.store.memory import MemoryStore

steps = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 200_000), st.booleans()), max_size=40)


def _commit(dedup: Dedup, store: MemoryStore, changes: Changes) -> None:
    dedup.save(changes)
    store.commit(changes)


def _restored(store: MemoryStore) -> Dedup:
    dedup = Dedup(1)
    for _, data in store.scan(b""):
        dedup.restore(data)
    return dedup


@given(steps)
def test_id_is_known_for_five_minutes_and_no_longer_over_any_restarts(steps: list[tuple[str, int, bool]]) -> None:
    store, dedup, now_ms = MemoryStore(), Dedup(1), 1_700_000_000_000
    known: dict[str, tuple[int, int]] = {}
    for sequence, (name, passes_ms, restart) in enumerate(steps):
        now_ms += passes_ms
        changes = Changes()
        dedup.forget(now_ms, changes)
        original = known.get(name)
        wanted = original[0] if original and now_ms - original[1] < DEDUP_WINDOW_MS else None
        assert dedup.find((None, name), now_ms) == wanted
        if wanted is None:
            dedup.remember((None, name), sequence, now_ms)
            known[name] = (sequence, now_ms)
        _commit(dedup, store, changes)
        assert _restored(store).snapshot() == dedup.snapshot()
        if restart:
            dedup = _restored(store)


@given(steps)
def test_nothing_is_left_once_everything_was_forgotten(steps: list[tuple[str, int, bool]]) -> None:
    store, dedup, now_ms = MemoryStore(), Dedup(1), 1_700_000_000_000
    for sequence, (name, passes_ms, _) in enumerate(steps):
        now_ms += passes_ms
        dedup.remember((None, f"{name} {sequence}"), sequence, now_ms)
        _commit(dedup, store, Changes())
    for _ in range(100):
        deadline_ms = dedup.next_deadline()
        if deadline_ms is None:
            break
        changes = Changes()
        dedup.forget(deadline_ms, changes)
        _commit(dedup, store, changes)
    assert dedup.next_deadline() is None
    assert dedup.snapshot() == {}
    assert list(store.scan(b"")) == []


def test_groups_keep_their_ids_apart() -> None:
    dedup = Dedup(1)
    dedup.remember(("a", "id"), 1, 0)
    assert dedup.find(("a", "id"), 0) == 1
    assert dedup.find(("b", "id"), 0) is None
    assert dedup.find((None, "id"), 0) is None
