"""`penstock store backup`: copies of directories that others write to, opened and counted."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock.backup import _bring_together, _Fixed, _late, back_up
from penstock.core.broker import Broker
from penstock.core.commands import Browse, ReadOutbox
from penstock.core.errors import NotFound, StoreError
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import Kind
from penstock.core.storage.records import Mark, Meta, OutboxTarget
from penstock.salvage import check, stores_in
from penstock.store.embedded import EmbeddedStore, open_embedded
from penstock.store.layout import BACKUP_INCOMPLETE_NAME, CLUSTER_NAME, JOURNAL_NAME
from penstock.store.view import StoreView
from tests.compat.server import name_in, serving
from tests.test_salvage import penstock_store, spoil

BACKUPS = 12
ROTATING = {"segment_bytes": 32 << 10, "apply_written_bytes": 128 << 10, "apply_after_seconds": 0.05}
"""So that the writer applies, trims and uses files again many times while a copy is made."""


class Traffic:
    """Sends and acknowledges in a thread, and knows what it was told when."""

    def __init__(self, ps: penstock.Penstock, names: list[str]) -> None:
        self.sent: set[bytes] = set()
        """Sends that were acknowledged."""
        self.acking: set[bytes] = set()
        """Messages that were acknowledged, or nearly."""
        self.acked: set[bytes] = set()
        self._queues = [ps.queue(name) for name in names]
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        while not self._ending.is_set():
            for queue in self._queues:
                bodies = [f"{queue.name} {number + index} {'x' * 500}".encode() for index in range(20)]
                number += len(bodies)
                queue.send_many(bodies)
                self.sent |= set(bodies)
                with queue.receive_batch(10) as batch:
                    self.acking |= set(batch.bodies)
                self.acked |= set(batch.bodies)


def bodies_in(copy: Path) -> set[bytes]:
    with penstock.open(copy) as ps:
        return {message.body for name in ps.queues() for message in everything(ps.queue(name))}


def everything(queue: penstock.Queue) -> Iterator[penstock.PeekedMessage]:
    after = -1
    while page := queue.browse(after=after, limit=1_000):
        yield from page
        after = page[-1].sequence


def names_and_times(directory: Path) -> dict[str, tuple[int, int]]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "data") as ps:
        ps.queue("orders").send_many([f"order {number}".encode() for number in range(1_000)])
        for _ in range(10):
            ps.queue("orders").receive().ack()
    return tmp_path / "data"


def test_backups_under_load_have_all_that_was_acknowledged_before_they_began(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data", **ROTATING) as ps, Traffic(ps, ["orders", "mails"]) as traffic:
        while len(traffic.sent) < 2_000:
            time.sleep(0.01)
        for number in range(BACKUPS):
            sent, acked = set(traffic.sent), set(traffic.acked)
            copy = tmp_path / f"copy-{number}"
            assert back_up(tmp_path / "data", copy).findings == []
            acking = set(traffic.acking)
            time.sleep(0.02)
            found = bodies_in(copy)
            assert sent - acking - found == set(), "acknowledged sends are missing"
            assert found & acked == set(), "what was acknowledged came back"
            assert check(copy) == []
    segments = sorted((tmp_path / "data" / JOURNAL_NAME).iterdir())
    assert int(segments[-1].name.partition(".")[0]) > 3 * BACKUPS, "the journal did not turn over: a test of nothing"


def test_backup_of_a_directory_that_is_closed_is_the_same_and_changes_nothing(data: Path, tmp_path: Path) -> None:
    before = names_and_times(data)
    done = penstock_store("backup", data, tmp_path / "copy")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'copy'}: 1 store, ")
    assert done.stdout.endswith("; checked and whole\n")
    assert names_and_times(data) == before
    assert bodies_in(tmp_path / "copy") == bodies_in(data)


def test_backup_is_for_its_user_only(data: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir(0o755)
    back_up(data, tmp_path / "copy")
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o700
    for path in (tmp_path / "copy").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_receipts_and_ids_of_the_original_are_good_in_the_copy(data: Path, tmp_path: Path) -> None:
    with penstock.open(data) as ps:
        message = ps.queue("orders").receive()
        back_up(data, tmp_path / "copy")
        with penstock.open(tmp_path / "copy") as copy:
            assert message.id in {each.id for each in everything(copy.queue("orders"))}
            assert copy.queue("orders").ack(message.receipt) == 1


@pytest.mark.parametrize("what", ["not empty", "a file", "inside"])
def test_targets_that_are_refused(data: Path, tmp_path: Path, what: str) -> None:
    target = data / "copy" if what == "inside" else tmp_path / "copy"
    if what == "not empty":
        target.mkdir()
        (target / "precious").write_text("mine")
    elif what == "a file":
        target.write_text("mine")
    done = penstock_store("backup", data, target)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert str(target) in done.stderr
    if what == "not empty":
        assert [path.name for path in target.iterdir()] == ["precious"]


def test_sources_that_hold_no_store_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source in ("empty", "missing"):
        with pytest.raises((NotFound, StoreError), match=source):
            back_up(tmp_path / source, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()


def test_damage_is_in_the_copy_too_and_is_told(data: Path, tmp_path: Path) -> None:
    spoil(data, "UPDATE records SET value = value || x'00' WHERE substr(key, 1, 1) = x'03'")
    done = penstock_store("backup", data, tmp_path / "copy")
    assert done.returncode == 1
    assert f"damaged as {data} is" in done.stdout
    assert "orders" in done.stdout


def test_copy_that_was_cut_short_does_not_open(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("penstock.backup._copy_table", fail)
    with pytest.raises(StoreError, match=r"No space left.* is incomplete: delete it"):
        back_up(data, tmp_path / "copy")
    assert (tmp_path / "copy" / BACKUP_INCOMPLETE_NAME).exists()
    with pytest.raises(StoreError, match=r"a backup into .* was cut short"):
        penstock.open(tmp_path / "copy")
    assert [finding.where for finding in check(tmp_path / "copy")] == [BACKUP_INCOMPLETE_NAME]


def test_a_directory_that_does_not_open_is_not_backed_up_as_whole(data: Path, tmp_path: Path) -> None:
    for segment in (data / JOURNAL_NAME).iterdir():
        segment.unlink()
    done = penstock_store("backup", data, tmp_path / "copy")
    assert done.returncode == 1
    assert "journal" in done.stderr and "is missing" in done.stderr
    assert penstock_store("check", "--data", data).returncode == 1


def test_a_copy_that_cannot_be_marked_as_incomplete_is_not_begun(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may have room again a moment later. Without the mark, a part of a copy would be taken for all of it."""
    opened = os.open

    def open_file(path: Any, *arguments: Any, **more: Any) -> int:
        if Path(path).name == BACKUP_INCOMPLETE_NAME:
            raise OSError(28, "No space left on device")
        return opened(path, *arguments, **more)

    monkeypatch.setattr(os, "open", open_file)
    with pytest.raises(StoreError, match="No space left on device"):
        back_up(data, tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


# -- several shards ----------------------------------------------------------------------------------------------------

SHARDS = 2


class Circling:
    """Tokens that go from a queue of one shard to one of another and back, each in a unit of work."""

    def __init__(self, url: str, queues: list[str]) -> None:
        self.moves = 0
        self._url = url
        self._queues = queues
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(queues[at], queues[at - 1])) for at in range(2)]

    def __enter__(self) -> Circling:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _run(self, source: str, target: str) -> None:
        with penstock.connect(self._url) as ps:
            while not self._ending.is_set():
                with ps.unit_of_work() as unit:
                    taken = unit.take_many(source, 3, wait=0.05)
                    for message in taken:
                        unit.put(target, message.body)
                    self.moves += len(taken)


def test_backup_of_several_shards_loses_and_doubles_nothing_that_goes_from_shard_to_shard(tmp_path: Path) -> None:
    tokens, plain = {f"token {number}".encode() for number in range(60)}, ["plain-a", "plain-b"]
    queues = [name_in(shard, "circle") for shard in range(SHARDS)]
    copies = [tmp_path / f"copy-{number}" for number in range(BACKUPS)]
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served", shards=SHARDS) as server:
        url = f"penstock://127.0.0.1:{server.http_port}"
        with penstock.connect(url) as ps:
            for name in queues:
                ps.create_queue(name)
            ps.queue(queues[0]).send_many(sorted(tokens))
        with penstock.connect(url) as ps, Traffic(ps, plain) as traffic, Circling(url, queues) as circle:
            sents, ackings = [], []
            for copy in copies:
                moves = circle.moves
                while circle.moves < moves + 20:
                    time.sleep(0.01)
                sents.append(set(traffic.sent))
                done = back_up(server.data, copy)
                ackings.append(set(traffic.acking))
                assert (done.stores, done.findings) == (SHARDS, [])
    for copy, sent, acking in zip(copies, sents, ackings, strict=True):
        assert (copy / CLUSTER_NAME).read_bytes() == (server.data / CLUSTER_NAME).read_bytes()
        found = contents(copy)
        assert sorted(body for body in found if body in tokens) == sorted(tokens), "a token was lost, or doubled"
        assert sent - acking - set(found) == set(), "acknowledged sends are missing"


def commit(store: EmbeddedStore, kind: Kind, number: int, rest: bytes, value: object) -> None:
    changes = Changes()
    changes.put_record(keys.record(kind, number, rest), msgspec.msgpack.encode(value))
    store.commit(changes)


def test_a_shard_that_lacks_what_another_has_forgotten_is_fixed_again(tmp_path: Path) -> None:
    """Shard 0 has forgotten all before entry 3 of its outbox; when shard 1 was fixed, it had done entry 1 at most."""
    with contextlib.ExitStack() as opened:
        places = [tmp_path / f"shard-{index}" for index in range(2)]
        stores = [opened.enter_context(contextlib.closing(open_embedded(place))) for place in places]
        for index, store in enumerate(stores):
            commit(store, Kind.META, 0, b"", Meta(1, bytes(32), 1, shard=index, shards=2, made_ms=5))
        commit(stores[0], Kind.OUTBOX_TARGET, 1, b"", OutboxTarget(first=3, next=4))
        commit(stores[1], Kind.MARK, 1, b"0 5", Mark(1, 0))
        fixed = [opened.enter_context(contextlib.closing(_Fixed(place))) for place in places]
        assert _late(fixed) == [fixed[1]]
        with pytest.raises(StoreError, match="no moment was found"):
            _bring_together(fixed)
        commit(stores[1], Kind.MARK, 1, b"0 5", Mark(2, 0))
        assert _late(fixed) == [fixed[1]], "it is as it was"
        positions = [each.position for each in fixed]
        _bring_together(fixed)
        assert _late(fixed) == []
        assert [each.position for each in fixed] == [positions[0], positions[1] + 1]


def contents(directory: Path) -> list[bytes]:
    """What is in the queues of all stores, and in the outboxes for those that have not got it yet."""
    now_ms = time.time_ns() // 1_000_000
    views = [StoreView(store) for store in stores_in(directory)]
    brokers = [Broker.open(view, now_ms, bytes(64), shard=None) for view in views]
    found: list[bytes] = []
    for broker in brokers:
        for name in broker.queues:
            found += [seen.chunk.body(seen.index) for seen in broker.handle(Browse(queue=name, limit=10**6), now_ms)]
        for other in brokers:
            mark = other.marks.last_of_outbox(broker.outbox_name)
            for entry in broker.handle(ReadOutbox(target=other.meta.shard, after=mark, limit_bytes=1 << 30), now_ms):
                found += Chunk.decode(entry.chunk).body_list()
    for view in views:
        view.close()
    return found
