"""What every store has to do. An engine joins by a subclass that says how to open it.

class TestMyStore(StoreConformance):
    @pytest.fixture
    def engine(self, tmp_path): ...
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest

from penstock.core.storage.changes import Buffer, Changes
from penstock.store.base import Store


class Chunk:
    """A chunk in several parts, one of them empty."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def parts(self) -> Sequence[Buffer]:
        half = len(self._body) // 2
        return (self._body[:half], b"", memoryview(self._body)[half:])

    @property
    def nbytes(self) -> int:
        return len(self._body)


class Engine(NamedTuple):
    """How to open a store, and how to open it again."""

    open: Callable[[], Store]
    reopen: Callable[[Store], Store]


@dataclass
class Model:
    """A store in its simplest form."""

    chunks: dict[bytes, bytes] = field(default_factory=dict)
    records: dict[bytes, bytes] = field(default_factory=dict)

    def after(self, changes: Changes) -> Model:
        after = Model(dict(self.chunks), dict(self.records))
        for prefix in changes.dropped:
            after.chunks = {key: body for key, body in after.chunks.items() if not key.startswith(prefix)}
            after.records = {key: value for key, value in after.records.items() if not key.startswith(prefix)}
        for key, chunk in changes.chunks.items():
            after.chunks.pop(key, None)
            if chunk is not None:
                after.chunks[key] = b"".join(chunk.parts())
        for key, value in changes.records.items():
            after.records.pop(key, None)
            if value is not None:
                after.records[key] = value
        return after


def content(store: Store) -> Model:
    """Everything that a store holds."""
    keys = store.list_chunks(b"", b"", 1 << 30)
    return Model({key: bytes(store.read_chunk(key)) for key in keys}, dict(store.scan(b"")))


def changes_of(
    chunks: dict[bytes, bytes | None] | None = None,
    records: dict[bytes, bytes | None] | None = None,
    dropped: Sequence[bytes] = (),
) -> Changes:
    """A commit, written short."""
    changes = Changes()
    for prefix in dropped:
        changes.drop(prefix)
    for key, body in (chunks or {}).items():
        changes.chunks[key] = Chunk(body) if body is not None else None
    changes.records.update(records or {})
    return changes


def random_changes(random: Random, chunk_bytes_max: int = 3000) -> Changes:
    """A commit as a core might make it, over few keys so that they meet."""

    def key() -> bytes:
        return b"%c/%02d" % (random.choice(b"abc"), random.randrange(30))

    changes = Changes()
    if random.random() < 0.08:
        changes.drop(random.choice((b"a/", b"b/", b"c/1", b"b/2", b"")))
    for _ in range(random.randrange(4)):
        dies = random.random() < 0.4
        changes.chunks[key()] = None if dies else Chunk(random.randbytes(random.randrange(chunk_bytes_max)))
    for _ in range(random.randrange(4)):
        changes.records[key()] = None if random.random() < 0.3 else random.randbytes(random.randrange(60))
    return changes


class StoreConformance:
    """The suite."""

    seeds = range(5)
    steps = 60

    @pytest.fixture
    def store(self, engine: Engine) -> Iterator[Store]:
        store = engine.open()
        yield store
        store.close()

    def test_new_store_is_empty(self, store: Store) -> None:
        assert content(store) == Model()

    def test_commit_is_read_back_at_once(self, store: Store) -> None:
        store.commit(changes_of({b"c/1": b"body"}, {b"r/1": b"value"}))
        assert store.read_chunk(b"c/1") == b"body"
        assert list(store.scan(b"r/")) == [(b"r/1", b"value")]

    def test_commits_are_counted(self, store: Store) -> None:
        before = store.stats.commits
        changes = Changes()
        changes.put_record(b"a", b"1")
        store.commit(changes)
        assert store.stats.commits == before + 1

    def test_missing_chunk_is_a_key_error(self, store: Store) -> None:
        with pytest.raises(KeyError):
            store.read_chunk(b"none")

    def test_deleted_chunk_is_a_key_error(self, store: Store) -> None:
        store.commit(changes_of({b"c": b"body"}))
        store.commit(changes_of({b"c": None}))
        with pytest.raises(KeyError):
            store.read_chunk(b"c")

    def test_deleting_what_is_not_there_is_no_error(self, store: Store) -> None:
        store.commit(changes_of({b"c": None}, {b"r": None}))
        assert content(store) == Model()

    def test_chunks_and_records_of_one_key_do_not_meet(self, store: Store) -> None:
        store.commit(changes_of({b"k": b"chunk"}, {b"k": b"record"}))
        store.commit(changes_of({b"k": None}))
        assert content(store) == Model({}, {b"k": b"record"})

    def test_record_is_replaced(self, store: Store) -> None:
        store.commit(changes_of(records={b"r": b"old"}))
        store.commit(changes_of(records={b"r": b"new"}))
        assert list(store.scan(b"")) == [(b"r", b"new")]

    def test_empty_bodies_and_values_are_kept(self, store: Store) -> None:
        store.commit(changes_of({b"c": b""}, {b"r": b""}))
        assert content(store) == Model({b"c": b""}, {b"r": b""})

    def test_empty_commit_changes_nothing(self, store: Store) -> None:
        store.commit(Changes())
        assert content(store) == Model()

    def test_drop_takes_chunks_and_records_of_the_prefix_alone(self, store: Store) -> None:
        store.commit(changes_of({b"a/1": b"x", b"b/1": b"y"}, {b"a/r": b"1", b"b/r": b"2"}))
        store.commit(changes_of(dropped=[b"a/"]))
        assert content(store) == Model({b"b/1": b"y"}, {b"b/r": b"2"})
        with pytest.raises(KeyError):
            store.read_chunk(b"a/1")

    def test_drop_comes_before_the_puts_of_its_commit(self, store: Store) -> None:
        store.commit(changes_of({b"a/1": b"old", b"a/2": b"old"}, {b"a/r": b"old"}))
        store.commit(changes_of({b"a/1": b"new"}, {b"a/s": b"new"}, dropped=[b"a/"]))
        assert content(store) == Model({b"a/1": b"new"}, {b"a/s": b"new"})

    def test_put_after_drop_lives(self, store: Store) -> None:
        store.commit(changes_of({b"a/1": b"old"}))
        store.commit(changes_of(dropped=[b"a/"]))
        store.commit(changes_of({b"a/1": b"new"}))
        assert content(store) == Model({b"a/1": b"new"})

    def test_drop_of_a_prefix_of_high_bytes_takes_its_keys_alone(self, store: Store) -> None:
        store.commit(changes_of({b"\xff\xff1": b"x", b"\xfe": b"y"}, {b"\xff\xff": b"z"}))
        store.commit(changes_of(dropped=[b"\xff\xff"]))
        assert content(store) == Model({b"\xfe": b"y"})

    def test_scan_is_in_key_order_and_of_the_prefix_alone(self, store: Store) -> None:
        keys = [b"p/%03d" % number for number in range(200)]
        shuffled = Random(1).sample(keys, len(keys))
        for start in range(0, 200, 20):
            store.commit(changes_of(records=dict.fromkeys(shuffled[start : start + 20], b"v")))
        store.commit(changes_of(records={b"o": b"v", b"p0": b"v", b"q": b"v"}))
        assert [key for key, _ in store.scan(b"p/")] == keys

    def test_scan_shows_the_state_at_the_call(self, store: Store) -> None:
        store.commit(changes_of(records={b"r/%04d" % number: b"old" for number in range(2500)}))
        found = store.scan(b"r/")
        store.commit(changes_of(records={b"r/%04d" % number: b"new" for number in range(2500)}))
        assert {value for _, value in found} == {b"old"}

    def test_chunks_are_listed_in_pages(self, store: Store) -> None:
        keys = [b"q/%04d" % number for number in range(100)]
        for start in range(0, 100, 10):
            store.commit(changes_of(dict.fromkeys(keys[start : start + 10], b"body")))
        store.commit(changes_of({b"q/0042": None, b"p": b"", b"r": b""}))
        keys.remove(b"q/0042")
        found: list[bytes] = []
        start_key = b"q/"
        while page := store.list_chunks(b"q/", start_key, 7):
            assert len(page) <= 7
            found += page
            start_key = page[-1] + b"\0"
        assert found == keys

    def test_listing_starts_at_the_given_key(self, store: Store) -> None:
        store.commit(changes_of({b"q/1": b"", b"q/3": b"", b"q/5": b""}))
        assert store.list_chunks(b"q/", b"q/3", 9) == [b"q/3", b"q/5"]
        assert store.list_chunks(b"q/", b"q/4", 9) == [b"q/5"]
        assert store.list_chunks(b"q/", b"a", 9) == [b"q/1", b"q/3", b"q/5"]
        assert store.list_chunks(b"q/", b"r", 9) == []
        assert store.list_chunks(b"q/", b"", 0) == []

    def test_reopened_store_holds_the_same(self, engine: Engine) -> None:
        store = engine.open()
        store.commit(changes_of({b"c/1": b"x" * 5000, b"c/2": b"y"}, {b"r": b"1"}))
        store.commit(changes_of({b"c/2": None}, {b"s": b"2"}))
        store = engine.reopen(store)
        assert content(store) == Model({b"c/1": b"x" * 5000}, {b"r": b"1", b"s": b"2"})
        store.close()

    def test_commit_far_larger_than_usual_is_kept(self, engine: Engine) -> None:
        store = engine.open()
        body = Random(2).randbytes(3_000_000)
        store.commit(changes_of({b"small/1": b"before"}))
        store.commit(changes_of({b"big/%d" % number: body[number:] for number in range(8)}))
        store.commit(changes_of({b"small/2": b"after"}))
        store = engine.reopen(store)
        assert store.read_chunk(b"big/7") == body[7:]
        assert len(store.list_chunks(b"", b"", 100)) == 10
        store.close()

    def test_commit_of_thousands_of_parts_is_kept(self, engine: Engine) -> None:
        store = engine.open()
        store.commit(changes_of({b"c/%04d" % number: b"%d" % number for number in range(3000)}))
        store = engine.reopen(store)
        assert store.read_chunk(b"c/2999") == b"2999"
        assert len(store.list_chunks(b"c/", b"", 5000)) == 3000
        store.close()

    def test_many_small_commits_are_all_kept(self, engine: Engine) -> None:
        store = engine.open()
        for number in range(400):
            store.commit(changes_of({b"c/%04d" % number: b"body"}, {b"last": b"%d" % number}))
        store = engine.reopen(store)
        assert len(store.list_chunks(b"c/", b"", 1000)) == 400
        assert list(store.scan(b"last")) == [(b"last", b"399")]
        store.close()

    def test_any_history_matches_the_model_and_survives_reopening(self, engine: Engine) -> None:
        for seed in self.seeds:
            random = Random(seed)
            store, model = engine.open(), Model()
            for key in list(content(store).chunks) + list(content(store).records):
                store.commit(changes_of({key: None}, {key: None}))
            for _ in range(self.steps):
                changes = random_changes(random)
                store.commit(changes)
                model = model.after(changes)
                if random.random() < 0.1:
                    store = engine.reopen(store)
                assert_same(store, model, random)
            assert content(store) == model, f"seed {seed}"
            store.close()

    def test_readers_see_every_commit_whole(self, store: Store) -> None:
        """Each commit moves all records to the next number and replaces one chunk: a reader must never see two
        numbers.
        """
        switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        stop = threading.Event()
        failures: list[object] = []

        def read() -> None:
            while not stop.is_set():
                numbers = {value for _, value in store.scan(b"n/")}
                listed = store.list_chunks(b"c/", b"c/", 10)
                if len(numbers) > 1 or len(listed) > 1:
                    failures.append((numbers, listed))

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number in range(300):
            records: dict[bytes, bytes | None] = {b"n/%d" % index: b"%d" % number for index in range(5)}
            store.commit(changes_of({b"c/%d" % (number - 1): None, b"c/%d" % number: b"x" * 300}, records))
        stop.set()
        for reader in readers:
            reader.join()
        sys.setswitchinterval(switch_seconds)
        assert not failures, failures[:3]


def assert_same(store: Store, model: Model, random: Random) -> None:
    """One question of each kind, and the answers compared."""
    prefix = random.choice((b"", b"a/", b"b/", b"b/1", b"c/"))
    start = prefix + random.choice((b"", b"1", b"15"))
    limit = random.choice((1, 3, 100))
    listed = [key for key in sorted(model.chunks) if key.startswith(prefix) and key >= start][:limit]
    assert store.list_chunks(prefix, start, limit) == listed
    assert list(store.scan(prefix)) == sorted(item for item in model.records.items() if item[0].startswith(prefix))
    for number in range(30):
        key = b"%c/%02d" % (random.choice(b"abc"), number)
        if key in model.chunks:
            assert store.read_chunk(key) == model.chunks[key]
        else:
            with pytest.raises(KeyError):
                store.read_chunk(key)
