"""A real file system that is full: sends are refused, acknowledgements go on, space that returns is used at once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.store.embedded import EmbeddedStore, StoreOptions, open_embedded
from penstock.store.errors import DiskFull
from tests.store.conformance import changes_of

DISK_BYTES = 48 << 20
OPTIONS = StoreOptions(
    segment_bytes=2 << 20,
    apply_live_bytes=2 << 20,
    apply_written_bytes=4 << 20,
    unapplied_bytes_max=6 << 20,
    apply_after_seconds=0.05,
    disk_reserve_bytes=4 << 20,
)
BODY = bytes(range(256)) * 400


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 48 MiB."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(tmp_path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        reason = (
            f"NOT TESTED: a full disk. Mounting a small file system is not permitted here: {mounted.stderr.strip()}"
        )
        assert os.environ.get("CI") != "true", reason
        pytest.skip(reason)
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.fixture
def store(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedStore]:
    monkeypatch.setattr("penstock.store.embedded.RETRY_SECONDS", 0.02)
    store = open_embedded(small_disk / "data", options=OPTIONS)
    yield store
    store.close()


def fill(path: Path, leave_bytes: int = 0) -> None:
    """Somebody else takes all the space."""
    status = os.statvfs(path.parent)
    with contextlib.suppress(OSError), path.open("wb") as file:
        left = status.f_bavail * status.f_frsize - leave_bytes
        while left > 0:
            file.write(bytes(min(left, 1 << 16)))
            file.flush()
            left -= 1 << 16


def send_until_full(store: EmbeddedStore, first: int = 0) -> int:
    """How many chunks there are when one more is refused."""
    number = first
    with pytest.raises(DiskFull):
        while True:
            store.commit(changes_of({b"c/%06d" % number: BODY}))
            number += 1
    return number


def send_when_possible(store: EmbeddedStore, key: bytes) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            return store.commit(changes_of({key: BODY}))
        except DiskFull:
            assert time.monotonic() < deadline, "space came back, and sends are still refused"
            time.sleep(0.01)


def test_sends_stop_before_the_disk_is_full_and_acknowledgements_go_on(store: EmbeddedStore, small_disk: Path) -> None:
    sent = send_until_full(store)
    assert sent * len(BODY) > DISK_BYTES / 4
    assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize > 1 << 20, "the reserve is there"
    for number in range(sent):
        store.commit(changes_of({b"c/%06d" % number: None}, {b"done": b"%d" % number}))
    send_when_possible(store, b"c/again")
    assert store.list_chunks(b"c/", b"", 10_000) == [b"c/again"]
    assert send_until_full(store, sent) > sent * 1.5, "freed space is used again"


def test_nothing_that_was_accepted_is_lost_on_a_full_disk(store: EmbeddedStore, small_disk: Path) -> None:
    sent = send_until_full(store)
    fill(small_disk / "filler")
    store.close()
    os.unlink(small_disk / "filler")
    store = open_embedded(small_disk / "data", options=OPTIONS)
    keys = store.list_chunks(b"c/", b"", 10_000)
    assert keys == [b"c/%06d" % number for number in range(sent)]
    assert all(store.read_chunk(key) == BODY for key in keys)
    store.close()


def test_disk_filled_by_somebody_else_refuses_sends_and_recovers(store: EmbeddedStore, small_disk: Path) -> None:
    for number in range(60):
        store.commit(changes_of({b"c/%06d" % number: BODY}))
    fill(small_disk / "filler")
    sent = send_until_full(store, 60)
    for number in range(sent):
        store.commit(changes_of({b"c/%06d" % number: None}, {b"done": b"%d" % number}))
    os.unlink(small_disk / "filler")
    send_when_possible(store, b"c/again")
    assert store.list_chunks(b"c/", b"", 10_000) == [b"c/again"]


def test_thousands_of_acknowledgements_pass_through_a_full_disk(small_disk: Path, store: EmbeddedStore) -> None:
    """Far more than the journal has kept room for: so deletions reach the table, on a disk without a free block."""
    for number in range(100):
        store.commit(changes_of({b"c/%06d" % number: BODY}))
    store.apply_now()
    fill(small_disk / "filler")
    for number in range(5000):
        store.commit(changes_of({b"c/%06d" % (number // 50): None}, {b"done": b"%d" % number}))
    store.apply_now()
    assert store.list_chunks(b"c/", b"", 10) == []
    assert dict(store.scan(b"")) == {b"done": b"4999"}


def test_store_opens_on_a_full_disk(small_disk: Path, store: EmbeddedStore) -> None:
    store.commit(changes_of({b"c": BODY}))
    store.close()
    fill(small_disk / "filler")
    store = open_embedded(small_disk / "data", options=OPTIONS)
    assert store.read_chunk(b"c") == BODY
    store.commit(changes_of({b"c": None}))
    store.close()


def test_new_store_on_a_full_disk_is_refused_clearly(small_disk: Path) -> None:
    fill(small_disk / "filler")
    with pytest.raises(DiskFull):
        open_embedded(small_disk / "data", options=OPTIONS)
