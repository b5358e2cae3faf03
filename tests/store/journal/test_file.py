"""The file journal: what it keeps, what it cuts, what it refuses."""

from __future__ import annotations

import errno
import os
import struct
import threading
from pathlib import Path
from random import Random

import msgspec
import pytest
import xxhash

from penstock.core.storage.changes import Changes
from penstock.store.disk import BUFFERS_PER_WRITE_MAX, RealDisk
from penstock.store.errors import CommitFailed, DiskFailed, DiskFull, StoreDamaged, StoreVersion
from penstock.store.journal.file import SEGMENT_BYTES as SEGMENT_BYTES_OF_FILES
from penstock.store.journal.file import FileJournal
from penstock.store.journal.frames import (
    ALIGNMENT,
    FRAMES_START,
    HEADER_BYTES,
    aligned,
    encode_frame,
    frame_at,
    segment_header,
)
from penstock.store.journal.walk import segment_name
from tests.store.conformance import changes_of
from tests.store.faulty_disk import FaultyDisk

DIRECTORY = Path("/journal")
IDENTITY = 77
SEGMENT_BYTES = 8192


def journal_on(disk: FaultyDisk, segment_bytes: int = SEGMENT_BYTES, **settings: int) -> FileJournal:
    return FileJournal(
        disk,
        DIRECTORY,
        IDENTITY,
        segment_bytes=segment_bytes,
        first_segment_bytes=segment_bytes,
        background=False,
        **settings,
    )


def opened(disk: FaultyDisk, after: int = 0, segment_bytes: int = SEGMENT_BYTES) -> tuple[FileJournal, list[bytes]]:
    """A journal, and the value that each replayed commit has under the key `n`."""
    journal = journal_on(disk, segment_bytes)
    values = [changes.records[b"n"] or b"" for _, changes in journal.replay(after)]
    return journal, values


def commit_of(number: int, nbytes: int = 100) -> Changes:
    return changes_of({b"c": Random(number).randbytes(nbytes)}, {b"n": b"%d" % number})


def values(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def journal_with(count: int, disk: FaultyDisk, nbytes: int = 100) -> FileJournal:
    journal, _ = opened(disk)
    for number in range(1, count + 1):
        assert journal.append(commit_of(number, nbytes)) == number
    return journal


def frame_size(number: int, nbytes: int = 100) -> int:
    return encode_frame(commit_of(number, nbytes), number, IDENTITY)[1]


def test_commits_come_back_in_order_with_their_numbers() -> None:
    disk = FaultyDisk()
    journal_with(50, disk).close()
    found = list(journal_on(disk).replay(0))
    assert [number for number, _ in found] == list(range(1, 51))
    assert [changes.records[b"n"] for _, changes in found] == values(1, 50)
    assert found[7][1].chunks[b"c"].parts()[0] == Random(8).randbytes(100)  # type: ignore[union-attr]


@pytest.mark.parametrize("nbytes", [0, 1, 100, 4_000, 4_096, 5_000])
def test_small_frames_and_large_ones_are_laid_out_alike(nbytes: int) -> None:
    """In one piece or in several: as the top of `store/journal/frames.py` describes it."""
    changes = changes_of({b"c": bytes(nbytes), b"d": b"another", b"gone": None}, {b"r": b"v", b"s": None}, [b"dropped"])
    parts, size = encode_frame(changes, 7, IDENTITY)
    lengths = {b"c": nbytes, b"d": 7, b"gone": None}
    contents = msgspec.msgpack.encode(([b"dropped"], lengths, {b"r": b"v", b"s": None}))
    payload = contents + bytes(nbytes) + b"another"
    unsummed = struct.pack("<4sIQQ", b"PJf1", len(contents), len(payload), 7)
    checksum = xxhash.xxh3_64_intdigest(unsummed + payload, seed=IDENTITY)
    assert b"".join(parts) == unsummed + struct.pack("<Q", checksum) + payload
    assert size == len(b"".join(parts))


def test_replay_starts_after_the_given_position() -> None:
    disk = FaultyDisk()
    journal_with(20, disk).close()
    assert opened(disk, after=15)[1] == values(16, 20)


def test_numbers_go_on_after_everything_was_applied() -> None:
    disk = FaultyDisk()
    journal_with(20, disk).close()
    journal, found = opened(disk, after=20)
    assert found == []
    assert journal.append(commit_of(21)) == 21
    assert opened(disk, after=20)[1] == values(21, 21)


def test_commit_is_one_write_one_sync_and_a_mark_that_is_not_synced() -> None:
    disk = FaultyDisk()
    journal = journal_with(1, disk)
    operations: list[str] = []
    disk.on_operation = lambda operation, path: operations.append(operation)
    journal.append(commit_of(2))
    assert operations == ["write", "sync", "write"]


def test_partial_writes_are_finished() -> None:
    disk = FaultyDisk()
    journal, _ = opened(disk)
    disk.write_bytes_max = 333
    journal.append(commit_of(1, 3000))
    assert opened(disk)[1] == values(1, 1)


def test_more_parts_than_one_write_takes_are_joined() -> None:
    disk = FaultyDisk()
    journal, _ = opened(disk)
    journal.append(changes_of({b"%d" % part: b"x" for part in range(BUFFERS_PER_WRITE_MAX)}, {b"n": b"1"}))
    assert opened(disk)[1] == values(1, 1)


def test_commit_larger_than_a_segment_is_kept_and_the_next_ones_too() -> None:
    disk = FaultyDisk()
    journal, _ = opened(disk)
    for number, nbytes in enumerate((100, 50_000, 100, 8000, 20_000, 20_000, 100), 1):
        journal.append(commit_of(number, nbytes))
    assert opened(disk)[1] == values(1, 7)


def test_trimmed_segments_are_used_again_and_the_disk_does_not_grow() -> None:
    disk = FaultyDisk()
    journal, _ = opened(disk)
    sizes = set()
    for number in range(1, 400):
        journal.append(commit_of(number))
        journal.trim(number - 5)
        if number > 100:
            sizes.add(disk.used_bytes)
    assert max(sizes) <= 8 * SEGMENT_BYTES
    assert opened(disk, after=394)[1] == values(395, 399)


def test_stale_frames_of_a_recycled_segment_are_never_replayed() -> None:
    """Frames of one size, so that every stale frame stands exactly where the next new one would."""
    disk = FaultyDisk()
    journal, _ = opened(disk)
    for last in range(1, 101):
        journal.append(commit_of(last))
        journal.trim(last - 1)
        assert opened(disk, after=last - 1)[1] == values(last, last)


def test_first_commit_of_a_recycled_segment_is_cut_if_it_is_torn_while_the_segment_before_is_recycled() -> None:
    """Whatever sectors are kept: the frames behind it are of the file's earlier life, and the table has them."""
    disk = FaultyDisk()
    journal = journal_with(40, disk)
    journal.trim(40)
    journal._prepare_segment()
    number = 40
    assert journal._current is not None
    while journal._current.free > ALIGNMENT:  # the last sector is for the mark
        number = journal.append(commit_of(number + 1))
    full = journal._current.path

    def apply_and_lose_power(operation: str, path: Path) -> None:
        if operation == "write" and path != full:
            disk.on_operation = lambda operation, path: None
            journal.trim(number)
            while journal._spares:
                journal._prepare_segment()
            disk.power_fails_at = disk.operations + 1

    disk.on_operation = apply_and_lose_power
    with pytest.raises(CommitFailed):
        journal.append(commit_of(number + 1, nbytes=2000))
    for seed in range(50):
        assert opened(disk.crash(seed), after=number)[1] in ([], values(number + 1, number + 1))


def test_torn_tail_is_cut_wherever_it_is_torn() -> None:
    disk = FaultyDisk()
    journal_with(6, disk).close()
    path = DIRECTORY / segment_name(1)
    start = FRAMES_START + sum(aligned(frame_size(number)) for number in range(1, 6))
    length = frame_size(6)
    for torn_at in range(length):
        torn = disk.crash(0)
        file = torn.open(path, writable=True)
        file.write([bytes(length - torn_at)], start + torn_at)
        if torn.open(path, writable=False).read(length, start) == disk.open(path, writable=False).read(length, start):
            continue  # the byte that was cut was zero
        journal, found = opened(torn)
        assert found == values(1, 5), torn_at
        assert journal.append(commit_of(6)) == 6
        assert opened(torn)[1] == values(1, 6)


def at_rest(disk: FaultyDisk) -> FaultyDisk:
    """The disk as it is when the kernel has written everything, and nobody crashed."""
    for name in disk.names(DIRECTORY):
        disk.open(DIRECTORY / name, writable=True).sync()
    disk.sync_directory(DIRECTORY)
    return disk.crash(0)


def test_damaged_last_frame_is_an_error_whatever_the_byte() -> None:
    """It was acknowledged: the mark behind it says so, and nothing is cut off silently."""
    disk = FaultyDisk()
    journal_with(6, disk).close()
    path = DIRECTORY / segment_name(1)
    start = FRAMES_START + sum(aligned(frame_size(number)) for number in range(1, 6))
    for offset in range(frame_size(6)):
        damaged = at_rest(disk)
        damaged.damage(path, start + offset)
        with pytest.raises(StoreDamaged, match=f"damaged at byte {start}: commit 6 is not readable"):
            opened(damaged)


def test_damaged_mark_costs_nothing() -> None:
    disk = FaultyDisk()
    journal_with(6, disk).close()
    path = DIRECTORY / segment_name(1)
    start = FRAMES_START + sum(aligned(frame_size(number)) for number in range(1, 7))
    for offset in range(HEADER_BYTES):
        damaged = at_rest(disk)
        damaged.damage(path, start + offset)
        assert opened(damaged)[1] == values(1, 6), offset


def test_missing_segment_is_an_error_whichever_it_is() -> None:
    disk = FaultyDisk()
    journal = journal_with(60, disk)
    names = sorted(disk.names(DIRECTORY))
    assert journal._current is not None
    in_use = [name for name in names if name <= journal._current.path.name]
    assert len(in_use) >= 4
    for name in in_use:
        lost = at_rest(disk)
        lost.remove(DIRECTORY / name)
        with pytest.raises(StoreDamaged, match=r"missing|is damaged at byte"):
            opened(lost)


def test_segment_that_cannot_be_read_is_no_damage() -> None:
    disk = FaultyDisk()
    journal_with(6, disk).close()

    def fail(operation: str, path: Path) -> None:
        if operation == "read":
            raise OSError(errno.EIO, "Input/output error")

    disk.on_operation = fail
    with pytest.raises(DiskFailed, match=r"1.segment cannot be read \(Input/output error\): look at the disk"):
        opened(disk)


def test_damaged_last_frame_without_its_mark_is_cut_whatever_the_byte() -> None:
    """After a power failure the mark may be missing: nobody can tell, and the commit is taken for unfinished."""
    disk = FaultyDisk()
    journal_with(6, disk).close()
    path = DIRECTORY / segment_name(1)
    start = FRAMES_START + sum(aligned(frame_size(number)) for number in range(1, 6))
    for offset in range(frame_size(6)):
        damaged = disk.crash(0)
        damaged.open(path, writable=True).write([bytes(HEADER_BYTES)], start + aligned(frame_size(6)))
        damaged.damage(path, start + offset)
        assert opened(damaged)[1] == values(1, 5), offset


@pytest.mark.parametrize("count", [6, 40])
def test_damage_before_a_whole_frame_is_an_error_that_names_file_and_byte(count: int) -> None:
    """With 40 commits the frame that follows may be in the next segment."""
    disk = FaultyDisk()
    journal_with(count, disk, 700).close()
    sequence, start = 1, FRAMES_START
    for number in range(1, count):
        size = aligned(frame_size(number, 700))
        if start + size > SEGMENT_BYTES:
            sequence, start = sequence + 1, FRAMES_START
        path = DIRECTORY / segment_name(sequence)
        for offset in Random(number).sample(range(frame_size(number, 700)), 12):
            damaged = disk.crash(0)
            damaged.damage(path, start + offset)
            with pytest.raises(StoreDamaged) as caught:
                opened(damaged)
            assert f"{path} is damaged at byte {start}:" in str(caught.value)
            assert f"commit {number} " in str(caught.value)
        start += size


def test_missing_commit_between_two_whole_frames_is_an_error() -> None:
    disk = FaultyDisk()
    journal_with(2, disk).close()
    start = FRAMES_START + aligned(frame_size(1)) + aligned(frame_size(2))
    file = disk.open(DIRECTORY / segment_name(1), writable=True)
    file.write(encode_frame(commit_of(4), 4, IDENTITY)[0], start)
    with pytest.raises(StoreDamaged, match=f"at byte {start}: commit 3 is not readable"):
        opened(disk)


def test_journal_that_is_behind_the_table_starts_over() -> None:
    """As after a last frame that was applied, and damaged since: nothing is lost, and numbers are not used twice."""
    disk = FaultyDisk()
    journal_with(20, disk).close()
    journal, found = opened(disk, after=100)
    assert found == []
    for number in range(101, 130):
        assert journal.append(commit_of(number)) == number
    assert opened(disk, after=100)[1] == values(101, 129)


def test_refused_opening_changes_nothing() -> None:
    disk = FaultyDisk()
    journal_with(6, disk).close()
    path = DIRECTORY / segment_name(1)
    disk.damage(path, FRAMES_START + 40)
    operations: list[str] = []
    disk.on_operation = lambda operation, path: operations.append(operation)
    for _ in range(2):
        with pytest.raises(StoreDamaged):
            opened(disk)
    assert set(operations) == {"read"}


def test_missing_segment_is_an_error() -> None:
    disk = FaultyDisk()
    journal_with(40, disk, 700).close()
    disk.remove(DIRECTORY / segment_name(2))
    with pytest.raises(StoreDamaged, match=r"000000000001\.segment is damaged at byte"):
        opened(disk)


def test_missing_first_segment_is_an_error_only_if_the_table_needs_it() -> None:
    disk = FaultyDisk()
    journal_with(40, disk, 700).close()
    disk.remove(DIRECTORY / segment_name(1))
    with pytest.raises(StoreDamaged, match="commit 1 is not readable"):
        opened(disk)
    assert opened(disk, after=30)[1] == values(31, 40)


def test_missing_journal_is_an_error() -> None:
    with pytest.raises(StoreDamaged, match="missing"):
        opened(FaultyDisk(), after=3)


def test_journal_of_another_store_is_refused() -> None:
    disk = FaultyDisk()
    journal_with(3, disk).close()
    with pytest.raises(StoreDamaged, match="belongs to store"):
        list(FileJournal(disk, DIRECTORY, IDENTITY + 1, background=False).replay(0))


def test_segment_of_a_later_format_is_refused_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    monkeypatch.setattr("penstock.store.journal.frames.SEGMENT_VERSION", 2)
    journal_with(3, disk).close()
    monkeypatch.undo()
    with pytest.raises(StoreVersion, match="format 2"):
        opened(disk)


def test_damaged_segment_header_is_an_error() -> None:
    disk = FaultyDisk()
    journal_with(3, disk).close()
    disk.damage(DIRECTORY / segment_name(1), 17)
    with pytest.raises(StoreDamaged, match="byte 0"):
        opened(disk)


@pytest.mark.parametrize(
    ("number", "identity", "mistaken"),
    [(9, IDENTITY + 1, False), (1, IDENTITY, False), (9, IDENTITY, True)],
    ids=["a frame of another store", "a copy of an earlier frame", "what only this store could write, and did not yet"],
)
def test_message_that_holds_a_frame_is_not_taken_for_one(number: int, identity: int, mistaken: bool) -> None:
    """Copies of a frame at every alignment within a body, and the frame around the body torn."""
    frame = b"".join(encode_frame(commit_of(number), number, identity)[0])
    body = frame.ljust(513, b"\0") * 513
    disk = FaultyDisk()
    journal, _ = opened(disk, segment_bytes=1 << 20)
    journal.append(commit_of(1))
    journal.append(changes_of({b"c": body}, {b"n": b"2"}))
    disk.damage(DIRECTORY / segment_name(1), FRAMES_START + aligned(frame_size(1)) + 33)
    assert journal._current is not None
    journal._current.file.write([bytes(HEADER_BYTES)], journal._current.offset)  # torn by a power failure: no mark yet
    if mistaken:
        with pytest.raises(StoreDamaged):
            opened(disk, segment_bytes=1 << 20)
    else:
        assert opened(disk, segment_bytes=1 << 20)[1] == values(1, 1)


def test_frame_with_a_changed_number_is_not_accepted() -> None:
    frame = bytearray(b"".join(encode_frame(commit_of(1), 1, IDENTITY)[0]))
    assert frame_at(memoryview(frame), 0, IDENTITY) is not None
    frame[16] = 2
    assert frame_at(memoryview(frame), 0, IDENTITY) is None


def test_failed_sync_refuses_every_later_commit_and_never_syncs_again() -> None:
    disk = FaultyDisk()
    journal = journal_with(2, disk)
    syncs = 0

    def fail(operation: str, path: Path) -> None:
        nonlocal syncs
        if operation == "sync":
            syncs += 1
            raise OSError(errno.EIO, "Input/output error")

    disk.on_operation = fail
    for _ in range(3):
        with pytest.raises(CommitFailed, match="not known"):
            journal.append(commit_of(3))
    assert syncs == 1


def test_failed_write_is_a_failed_commit() -> None:
    disk = FaultyDisk()
    journal = journal_with(2, disk)

    def fail(operation: str, path: Path) -> None:
        if operation == "write":
            raise OSError(errno.EIO, "Input/output error")

    disk.on_operation = fail
    with pytest.raises(CommitFailed):
        journal.append(commit_of(3))
    disk.on_operation = lambda operation, path: None
    with pytest.raises(CommitFailed):
        journal.append(commit_of(3))
    assert opened(disk)[1] == values(1, 2)


def test_opening_syncs_a_last_frame_that_its_writer_did_not() -> None:
    """The process ended between write and sync. The frame is read back: it counts, so it has to be durable first."""
    disk = FaultyDisk()
    journal = journal_with(2, disk)

    def fail(operation: str, path: Path) -> None:
        if operation == "sync":
            raise OSError(errno.EIO, "Input/output error")

    disk.on_operation = fail
    with pytest.raises(CommitFailed):
        journal.append(commit_of(3))
    disk.on_operation = lambda operation, path: None
    assert opened(disk)[1] == values(1, 3)
    for seed in range(10):
        assert opened(disk.crash(seed))[1] == values(1, 3)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_write_that_finds_no_space_leaves_the_journal_usable(code: int) -> None:
    disk = FaultyDisk()
    journal = journal_with(2, disk)

    def fail(operation: str, path: Path) -> None:
        if operation == "write":
            raise OSError(code, "no space")

    disk.on_operation = fail
    with pytest.raises(DiskFull):
        journal.append(commit_of(3))
    disk.on_operation = lambda operation, path: None
    assert journal.append(commit_of(3)) == 3
    assert opened(disk)[1] == values(1, 3)


def test_full_disk_refuses_chunks_before_records_and_recovers() -> None:
    disk = FaultyDisk(capacity_bytes=3 * SEGMENT_BYTES)
    journal, _ = opened(disk)
    number = 0
    with pytest.raises(DiskFull):
        for number in range(1, 1000):
            journal.append(commit_of(number, 700))
    acknowledgements = 0
    with pytest.raises(DiskFull):
        while True:
            journal.append(changes_of({b"c": None}, {b"n": b"%d" % (number + acknowledgements)}))
            acknowledgements += 1
    assert acknowledgements >= 3
    disk.capacity_bytes *= 4
    journal.append(commit_of(number + acknowledgements, 700))
    assert opened(disk)[1] == values(1, number + acknowledgements)


def test_commit_too_large_for_the_disk_is_refused_and_smaller_ones_go_on() -> None:
    disk = FaultyDisk(capacity_bytes=4 * SEGMENT_BYTES)
    journal = journal_with(2, disk)
    with pytest.raises(DiskFull):
        journal.append(commit_of(3, 10 * SEGMENT_BYTES))
    journal.append(commit_of(3))
    assert opened(disk)[1] == values(1, 3)


def test_thread_makes_segments_ready_ahead(tmp_path: Path) -> None:
    """The journal in its real form: a commit makes no file but the very first."""
    operations: list[str] = []

    class Recording(RealDisk):
        def rename(self, source: Path, target: Path) -> None:
            operations.append(threading.current_thread().name)
            super().rename(source, target)

    journal = FileJournal(Recording(), tmp_path, IDENTITY, segment_bytes=1 << 20, first_segment_bytes=64 << 10)
    list(journal.replay(0))
    for number in range(1, 200):
        journal.append(commit_of(number, 20_000))
        journal.trim(number - 20)
    journal.close()
    assert operations[0] == "MainThread"
    assert len(operations) > 3
    assert set(operations[1:]) == {"penstock-journal"}
    assert min(tmp_path.iterdir()).read_bytes()[:512] == segment_header(IDENTITY)


def test_journal_starts_small_and_grows_with_use(tmp_path: Path) -> None:
    journal = FileJournal(RealDisk(), tmp_path, IDENTITY, segment_bytes=8 << 20, first_segment_bytes=1 << 20)
    list(journal.replay(0))
    assert journal.nbytes == 1 << 20
    for number in range(1, 120):
        journal.append(commit_of(number, 100_000))
    journal.close()
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert sizes[:3] == [1 << 20, 4 << 20, 8 << 20]


def test_a_commit_larger_than_a_segment_is_written_once_and_no_zeros_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FileJournal(RealDisk(), tmp_path, IDENTITY, background=False)
    list(journal.replay(0))
    journal.append(commit_of(1))
    zeros: list[int] = []
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *given: zeros.append(len(given[1])) or write(*given))
    journal.append(commit_of(2, 32 << 20))
    journal.append(commit_of(3))
    journal.close()
    assert sum(zeros) <= 3 * SEGMENT_BYTES_OF_FILES, "the next segments, and nothing under the frame"
    again = FileJournal(RealDisk(), tmp_path, IDENTITY, background=False)
    assert [changes.records[b"n"] for _, changes in again.replay(0)] == values(1, 3)
    again.close()
