"""The embedded store: when the applier works, what it leaves out, how commits wait, and what failure does."""

from __future__ import annotations

import errno
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from penstock.core.errors import StoreError
from penstock.store.disk import RealDisk, RealFile
from penstock.store.embedded import EmbeddedStore, StoreOptions, open_embedded
from penstock.store.errors import CommitFailed, DiskFull, StoreDamaged
from penstock.store.journal.file import FIRST_SEGMENT_BYTES, FileJournal
from penstock.store.layout import JOURNAL_NAME, TABLE_NAME
from tests.store.conformance import Model, changes_of, content, random_changes
from tests.store.in_memory import MemoryJournal, MemoryTable

QUIET = StoreOptions(apply_after_seconds=1000.0)
BODY = Random(0).randbytes(100_000)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for the background; give up loudly."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


class GatedTable(MemoryTable):
    """A table whose transactions start when they are told to, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.entered = threading.Event()
        self.error: StoreError | None = None

    def apply(self, *arguments: object) -> None:
        self.entered.set()
        assert self.open.wait(20)
        if self.error is not None:
            raise self.error
        super().apply(*arguments)  # type: ignore[arg-type]


def table_keys(directory: Path) -> list[bytes]:
    connection = sqlite3.connect(directory / TABLE_NAME)
    try:
        return [row[0] for row in connection.execute("SELECT key FROM chunks ORDER BY key")]
    finally:
        connection.close()


def test_promptly_consumed_chunks_never_reach_the_table(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=QUIET)
    for number in range(50):
        store.commit(changes_of({b"c/%d" % number: BODY}))
        store.commit(changes_of({b"c/%d" % number: None}))
    store.apply_now()
    assert store.stats.chunks_died_young == 50
    assert store.stats.chunks_applied == 0
    assert store.stats.transactions == 1
    store.close()
    assert table_keys(tmp_path) == []


def test_journal_of_a_promptly_consumed_queue_is_used_again_early(tmp_path: Path) -> None:
    options = StoreOptions(apply_after_seconds=1000, apply_dead_bytes=1 << 20, segment_bytes=512 << 10)
    store = open_embedded(tmp_path, options=options)
    for number in range(200):
        store.commit(changes_of({b"c/%d" % number: BODY}))
        store.commit(changes_of({b"c/%d" % number: None}))
    until(lambda: store.stats.transactions > 0)
    store.close()
    assert store.stats.chunks_applied <= store.stats.transactions < 50, "at most the one that is between its commits"


def test_journal_of_a_backlog_is_not_applied_early(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=StoreOptions(apply_after_seconds=1000, apply_dead_bytes=1 << 20))
    for number in range(30):
        store.commit(changes_of({b"c/%d" % number: BODY}))
    assert store.stats.transactions == 0
    store.close()


def test_idle_store_is_applied_after_its_time(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=StoreOptions(apply_after_seconds=0.02))
    store.commit(changes_of({b"c": BODY}))
    until(lambda: store.stats.chunks_applied == 1)
    until(lambda: store.stats.unapplied_bytes == 0)
    assert store.read_chunk(b"c") == BODY
    store.close()


def test_applier_starts_when_enough_is_gathered(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=StoreOptions(apply_after_seconds=1000, apply_live_bytes=500_000))
    for number in range(4):
        store.commit(changes_of({b"c/%d" % number: BODY}))
    assert store.stats.transactions == 0
    store.commit(changes_of({b"c/5": BODY}))
    until(lambda: store.stats.transactions == 1)
    assert store.stats.chunks_applied == 5
    store.close()


def test_journal_is_trimmed_after_applying(tmp_path: Path) -> None:
    options = StoreOptions(apply_after_seconds=1000, apply_written_bytes=2 << 20, segment_bytes=1 << 20)
    store = open_embedded(tmp_path, options=options)
    for number in range(200):
        store.commit(changes_of({b"c/%d" % number: BODY, b"c/%d" % (number - 3): None}))
    store.close()
    journal_bytes = sum(path.stat().st_size for path in (tmp_path / JOURNAL_NAME).iterdir())
    assert journal_bytes <= 4 << 20, "20 MB were written"


def test_reads_and_commits_go_on_while_a_layer_is_being_applied() -> None:
    table = GatedTable()
    store = EmbeddedStore(MemoryJournal(), table, StoreOptions(apply_live_bytes=1))
    store.commit(changes_of({b"a": b"1", b"b": b"1"}, {b"r": b"1"}))
    assert table.entered.wait(20)
    store.commit(changes_of({b"a": None, b"c": b"2"}, {b"r": b"2"}))
    assert content(store) == Model({b"b": b"1", b"c": b"2"}, {b"r": b"2"})
    table.open.set()
    until(lambda: store.stats.unapplied_bytes == 0)
    assert content(store) == Model({b"b": b"1", b"c": b"2"}, {b"r": b"2"})
    store.close()


def test_chunk_deleted_while_its_layer_is_being_applied_is_left_out() -> None:
    table = GatedTable()
    store = EmbeddedStore(MemoryJournal(), table, StoreOptions(apply_live_bytes=1))
    store.commit(changes_of({b"a": b"1", b"b": b"1"}))
    assert table.entered.wait(20)
    store.commit(changes_of({b"a": None}))
    table.open.set()
    until(lambda: store.stats.transactions == 2)
    assert (store.stats.chunks_applied, store.stats.chunks_died_young) == (1, 1)
    store.close()


def test_commits_wait_for_the_applier_when_too_much_is_unapplied() -> None:
    table = GatedTable()
    options = StoreOptions(apply_live_bytes=10_000, unapplied_bytes_max=300_000)
    store = EmbeddedStore(MemoryJournal(), table, options)
    done = threading.Event()

    def commit_a_lot() -> None:
        for number in range(20):
            store.commit(changes_of({b"c/%d" % number: BODY}))
        done.set()

    writer = threading.Thread(target=commit_a_lot)
    writer.start()
    until(lambda: store.stats.commits_waited == 1)
    assert not done.is_set()
    assert store.stats.unapplied_bytes < 300_000 + 2 * len(BODY)
    table.open.set()
    assert done.wait(20)
    writer.join()
    assert len(store.list_chunks(b"c/", b"", 100)) == 20
    store.close()


def test_replaying_a_long_journal_keeps_memory_bounded(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=QUIET)
    for number in range(40):
        store.commit(changes_of({b"c/%02d" % number: BODY}))
    store.close(apply=False)
    store = open_embedded(tmp_path, options=StoreOptions(apply_after_seconds=1000, unapplied_bytes_max=500_000))
    assert store.stats.transactions >= 7
    assert store.stats.unapplied_bytes < 600_000
    assert len(store.list_chunks(b"c/", b"", 100)) == 40
    assert store.read_chunk(b"c/39") == BODY
    store.close()


def test_closed_store_was_applied_and_opens_without_replay(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=QUIET)
    store.commit(changes_of({b"c": BODY}))
    store.close()
    assert table_keys(tmp_path) == [b"c"]
    store = open_embedded(tmp_path, options=QUIET)
    assert store.stats.unapplied_bytes == 0
    store.close()


def test_closed_store_takes_little_room_and_goes_on_from_there(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=QUIET)
    for number in range(200):
        store.commit(changes_of({b"c": BODY}, {b"n": b"%d" % number}))
    store.close()
    (segment,) = (tmp_path / JOURNAL_NAME).iterdir()
    assert segment.stat().st_size == FIRST_SEGMENT_BYTES
    store = open_embedded(tmp_path, options=QUIET)
    store.commit(changes_of({b"c": None}))
    store.close(apply=False)
    store = open_embedded(tmp_path)
    assert content(store) == Model({}, {b"n": b"199"})
    store.close()


def test_commit_after_close_is_refused(tmp_path: Path) -> None:
    store = open_embedded(tmp_path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.commit(changes_of({b"c": BODY}))


@pytest.mark.parametrize("applied", [True, False])
def test_store_whose_only_journal_file_was_deleted_is_not_opened_empty(tmp_path: Path, applied: bool) -> None:
    store = open_embedded(tmp_path)
    store.commit(changes_of({b"c": BODY}))
    store.close(apply=applied)
    for path in (tmp_path / "journal").iterdir():
        path.unlink()
    with pytest.raises(StoreDamaged, match=r"the journal in .* is missing"):
        open_embedded(tmp_path)


def test_table_and_journal_that_are_both_gone_are_missed(tmp_path: Path) -> None:
    store = open_embedded(tmp_path)
    store.commit(changes_of({b"c": BODY}))
    store.close()
    shutil.rmtree(tmp_path / "journal")
    for path in tmp_path.glob(TABLE_NAME + "*"):
        path.unlink()
    with pytest.raises(StoreDamaged, match=r"table .* is missing"):
        open_embedded(tmp_path)


def test_table_that_lost_its_file_is_not_silently_replaced(tmp_path: Path) -> None:
    store = open_embedded(tmp_path)
    store.commit(changes_of({b"c": BODY}))
    store.close()
    for path in tmp_path.glob(TABLE_NAME + "*"):
        path.unlink()
    with pytest.raises(StoreDamaged, match=r"table .* is missing"):
        open_embedded(tmp_path)


def test_journal_that_was_lost_is_not_silently_replaced(tmp_path: Path) -> None:
    store = open_embedded(tmp_path)
    store.commit(changes_of({b"c": BODY}))
    store.close()
    for path in (tmp_path / JOURNAL_NAME).iterdir():
        path.unlink()
    with pytest.raises(StoreDamaged, match="missing"):
        open_embedded(tmp_path)


def test_refused_opening_lets_go_of_the_lock(tmp_path: Path) -> None:
    store = open_embedded(tmp_path)
    store.commit(changes_of({b"c": BODY}))
    store.close()
    moved = tmp_path / "elsewhere"
    (tmp_path / JOURNAL_NAME).rename(moved)
    with pytest.raises(StoreDamaged):
        open_embedded(tmp_path)
    (tmp_path / JOURNAL_NAME).rmdir()
    moved.rename(tmp_path / JOURNAL_NAME)
    store = open_embedded(tmp_path)
    assert store.read_chunk(b"c") == BODY
    store.close()


def test_failed_sync_refuses_commits_until_the_store_is_opened_again(tmp_path: Path) -> None:
    class FailingFile(RealFile):
        failing = False

        def sync(self) -> None:
            if self.failing:
                raise OSError(errno.EIO, "Input/output error")
            super().sync()

    class FailingDisk(RealDisk):
        def open(self, path: Path, *, writable: bool, create: bool = False) -> RealFile:
            return FailingFile(super().open(path, writable=writable, create=create)._descriptor)

    store = open_embedded(tmp_path, disk=FailingDisk(), options=QUIET)
    store.commit(changes_of(records={b"r": b"1"}))
    FailingFile.failing = True
    with pytest.raises(CommitFailed):
        store.commit(changes_of(records={b"r": b"2"}))
    FailingFile.failing = False
    with pytest.raises(CommitFailed):
        store.commit(changes_of(records={b"r": b"3"}))
    assert dict(store.scan(b"")) == {b"r": b"1"}
    store.close()
    store = open_embedded(tmp_path)
    assert dict(store.scan(b"")) in ({b"r": b"1"}, {b"r": b"2"})
    store.commit(changes_of(records={b"r": b"4"}))
    assert dict(store.scan(b"")) == {b"r": b"4"}
    store.close()


def test_damaged_table_found_by_the_applier_refuses_commits() -> None:
    table = GatedTable()
    table.open.set()
    table.error = StoreDamaged("the table is damaged")
    store = EmbeddedStore(MemoryJournal(), table, StoreOptions(apply_live_bytes=1))
    store.commit(changes_of({b"c": b"x"}))
    until(lambda: store.stats.apply_failures == 1)
    with pytest.raises(StoreDamaged):
        store.commit(changes_of({b"c": b"y"}))
    assert store.read_chunk(b"c") == b"x"
    store.close()


def test_applier_that_meets_a_bug_refuses_commits_and_loses_nothing(tmp_path: Path) -> None:
    class BrokenChunk:
        """Its second encoding, for the table, fails."""

        nbytes = 3
        encoded = 0

        def parts(self) -> list[bytes]:
            self.encoded += 1
            if self.encoded > 1:
                raise RuntimeError("a bug")
            return [b"abc"]

    store = open_embedded(tmp_path, options=StoreOptions(apply_live_bytes=1))
    changes = changes_of(records={b"r": b"1"})
    changes.put_chunk(b"c", BrokenChunk())
    store.commit(changes)
    until(lambda: store.stats.apply_failures == 1)
    with pytest.raises(CommitFailed, match="RuntimeError: a bug"):
        store.commit(changes_of({b"d": b"y"}))
    store.close()
    store = open_embedded(tmp_path)
    assert content(store) == Model({b"c": b"abc"}, {b"r": b"1"})
    store.close()


def test_chunk_that_lies_about_its_length_is_refused(tmp_path: Path) -> None:
    class LyingChunk:
        def __init__(self, nbytes: int) -> None:
            self.nbytes = nbytes

        def parts(self) -> list[bytes]:
            return [b"abc"]

    store = open_embedded(tmp_path)
    for nbytes in (2, 4):
        changes = changes_of(records={b"r": b"1"})
        changes.put_chunk(b"c", LyingChunk(nbytes))
        with pytest.raises(AssertionError, match="nbytes"):
            store.commit(changes)
    store.commit(changes_of({b"d": b"fine"}))
    store.close(apply=False)
    store = open_embedded(tmp_path)
    assert content(store) == Model({b"d": b"fine"})
    store.close()


def test_bound_below_the_threshold_of_the_applier_does_not_block_for_ever() -> None:
    options = StoreOptions(apply_after_seconds=1000, apply_live_bytes=1 << 30, unapplied_bytes_max=100_000)
    store = EmbeddedStore(MemoryJournal(), MemoryTable(), options)
    for number in range(20):
        store.commit(changes_of({b"c/%d" % number: BODY}))
    assert len(store.list_chunks(b"", b"", 100)) == 20
    store.close()


def test_applier_that_finds_no_room_refuses_chunks_and_goes_on_when_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.embedded.RETRY_SECONDS", 0.01)
    table = GatedTable()
    table.open.set()
    table.error = DiskFull("no room in the table")
    store = EmbeddedStore(MemoryJournal(), table, StoreOptions(apply_live_bytes=1, unapplied_bytes_max=2000))
    store.commit(changes_of({b"c": b"x" * 5000}))
    until(lambda: store.stats.apply_failures >= 2)
    with pytest.raises(DiskFull):
        store.commit(changes_of({b"d": b"y"}))
    store.commit(changes_of({b"c": None}, {b"r": b"1"}))
    assert content(store) == Model({}, {b"r": b"1"})
    table.error = None
    until(lambda: store.stats.unapplied_bytes == 0)
    store.commit(changes_of({b"d": b"y"}))
    assert content(store) == Model({b"d": b"y"}, {b"r": b"1"})
    store.close()


def test_content_limit_refuses_chunks_and_lets_acknowledgements_pass(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=StoreOptions(content_bytes_max=1_000_000))
    sent = 0
    with pytest.raises(DiskFull, match="limit of 1000000"):
        for sent in range(100):
            store.commit(changes_of({b"c/%02d" % sent: BODY}))
    assert 7 <= sent <= 9
    for number in range(sent):
        store.commit(changes_of({b"c/%02d" % number: None}, {b"done": b"%d" % number}))
    store.apply_now()
    store.commit(changes_of({b"c/99": BODY}))
    assert store.list_chunks(b"c/", b"", 100) == [b"c/99"]
    store.close()


def test_disk_reserve_is_left_free(tmp_path: Path) -> None:
    class SmallDisk(RealDisk):
        free = 650_000

        def free_bytes(self, directory: Path) -> int:
            return self.free

    disk = SmallDisk()
    store = open_embedded(
        tmp_path, disk=disk, options=StoreOptions(disk_reserve_bytes=500_000, apply_after_seconds=1000)
    )
    with pytest.raises(DiskFull, match="the reserve of 500000"):
        for number in range(100):
            store.commit(changes_of({b"c/%02d" % number: BODY}))
    store.commit(changes_of({b"c/00": None}, {b"r": b"1"}))
    disk.free = 10_000_000
    store.commit(changes_of({b"c/99": BODY}))
    store.close()


def test_deleting_a_big_queue_shrinks_the_table_in_the_background(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=StoreOptions(apply_after_seconds=0.01))
    for number in range(30):
        store.commit(changes_of({b"q/%02d/%d" % (number, part): BODY for part in range(20)}))
    until(lambda: store.stats.unapplied_bytes == 0)
    path = tmp_path / TABLE_NAME
    until(lambda: path.stat().st_size > 50_000_000)
    store.commit(changes_of(dropped=[b"q/"]))
    until(lambda: path.stat().st_size < 25_000_000)
    store.close()


def test_simulated_store_runs_the_same_way_twice(tmp_path: Path) -> None:
    def run(directory: Path) -> list[tuple[str, str]]:
        operations: list[tuple[str, str]] = []

        class Recording(RealDisk):
            def rename(self, source: Path, target: Path) -> None:
                operations.append(("rename", target.name))
                super().rename(source, target)

            def remove(self, path: Path) -> None:
                operations.append(("remove", path.name))
                super().remove(path)

        random = Random(3)
        journal = FileJournal(Recording(), directory, 1, segment_bytes=8192, background=False)
        store = EmbeddedStore(journal, MemoryTable(), StoreOptions(apply_written_bytes=9000), background=False)
        for _ in range(200):
            store.commit(random_changes(random))
        store.close()
        return operations

    first, second = run(tmp_path / "a"), run(tmp_path / "b")
    assert len(first) > 10
    assert first == second
