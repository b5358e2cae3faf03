"""`penstock store check` and `penstock store salvage`, on directories that were damaged in every way."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock.core import keys
from penstock.core.broker import Broker
from penstock.core.chunk import Chunk
from penstock.core.errors import ChunkDamaged, StoreError
from penstock.core.keys import Kind
from penstock.salvage import LIST_NAME, Salvaged, check, salvage
from penstock.store.embedded import open_embedded
from penstock.store.errors import StoreLocked
from penstock.store.layout import TABLE_NAME
from tests.store import flips
from tests.store.flips import DAMAGED, ENTROPY, OPTIONS, START_MS, Content, Flipper, here

FLIPS = 25
PENSTOCK = (sys.executable, "-c", "from penstock.cli import main; main()")


def content_of(directory: Path) -> Content:
    store = open_embedded(directory, options=OPTIONS, background=False)
    content = Content.of(store)
    store.close(apply=False)
    return content


def bodies_in(content: Content) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for key, body in content.chunks.items():
        if body != DAMAGED and key[0] != keys.OUTBOX_QUEUES >> 56:
            found.update(Chunk.decode(body).body_list())
    return found


def spoil(directory: Path, statement: str, *arguments: object) -> None:
    connection = sqlite3.connect(directory / TABLE_NAME, isolation_level=None)
    assert connection.execute(statement, arguments).rowcount >= 1
    connection.close()


def penstock_store(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*PENSTOCK, "store", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with everything in it, closed in order."""
    flips.build(tmp_path / "data")
    open_embedded(tmp_path / "data", options=OPTIONS, background=False).close()
    return tmp_path / "data"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A directory as users have it, with the queues `orders` and `mails`."""
    with penstock.open(tmp_path / "plain") as ps:
        for name in ("orders", "mails"):
            for number in range(20):
                ps.queue(name).send(f"{name} {number}")
    return tmp_path / "plain"


def test_whole_directory_is_said_to_be_whole(plain: Path) -> None:
    assert check(plain) == []
    done = penstock_store("check", "--data", plain)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{plain} is whole\n", "")


def test_check_works_beside_a_process_that_has_the_directory_open(plain: Path) -> None:
    with penstock.open(plain) as ps:
        ps.queue("orders").send("one more")
        assert penstock_store("check", "--data", plain).returncode == 0


def test_check_names_the_queue_that_is_damaged_and_changes_nothing(plain: Path) -> None:
    spoil(plain, "UPDATE records SET value = value || x'00' WHERE substr(key, 1, 1) = x'03'")
    before = (plain / TABLE_NAME).read_bytes()
    done = penstock_store("check", "--data", plain, "--json")
    assert done.returncode == 1
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["queue"] for row in rows} == {"orders", "mails"}
    assert (plain / TABLE_NAME).read_bytes() == before
    assert "orders" in penstock_store("check", "--data", plain).stdout


def test_check_finds_a_damaged_body(plain: Path) -> None:
    spoil(plain, "UPDATE chunks SET body = x'00' WHERE id = 3")
    (finding,) = check(plain)
    assert finding.queue == "orders"
    assert finding.where.startswith("messages ")


def test_check_of_a_directory_that_is_not_there_says_so() -> None:
    done = penstock_store("check", "--data", "/nowhere")
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)


def test_opening_a_store_that_is_damaged_altogether_is_one_line_without_a_traceback(plain: Path) -> None:
    spoil(plain, "UPDATE meta SET value = value + 1 WHERE name = 'position'")
    command = [*PENSTOCK, "send", "--data", str(plain), "orders", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "penstock store salvage" in done.stderr


def test_queue_list_shows_the_others_and_says_which_is_damaged(plain: Path) -> None:
    with penstock.open(plain) as ps:
        number = ps.queue("orders").stats()
    assert number.messages == 20
    spoil(plain, "UPDATE records SET value = value || x'00' WHERE key = ?", keys.record(Kind.COUNTERS, 1))
    command = [*PENSTOCK, "queue", "list", "--data", str(plain), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert row["queue"] == "mails"
    assert "queue 'orders' is in quarantine" in done.stderr
    with penstock.open(plain) as ps:
        assert ps.queues() == ["mails", "orders"]
        with pytest.raises(penstock.QueueDamaged):
            ps.queue("orders").send("x")
        (report,) = ps.damage
        assert report.queue == "orders"


def test_salvage_of_a_whole_directory_is_a_copy(directory: Path, tmp_path: Path) -> None:
    before = content_of(directory)
    done = salvage(directory, tmp_path / "new")
    (finding,) = done.findings
    assert "damaged" in finding.what or "checksum" in finding.what or finding.queue == here("hurt")
    after = content_of(tmp_path / "new")
    assert after.records == before.records
    assert {key: body for key, body in before.chunks.items() if body != DAMAGED} == after.chunks


def test_salvaged_queue_has_its_messages_and_the_others_are_as_they_were(plain: Path, tmp_path: Path) -> None:
    spoil(plain, "UPDATE records SET value = value || x'00' WHERE key = ?", keys.record(Kind.COUNTERS, 1))
    done = penstock_store("salvage", plain, tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "1 queues as they were, 1 made anew, 40 messages" in done.stdout
    listed = (tmp_path / "new" / LIST_NAME).read_text().splitlines()
    assert all(json.loads(line)["queue"] == "orders" for line in listed)
    with penstock.open(tmp_path / "new") as ps:
        for name in ("orders", "mails"):
            received = [message.text for message in ps.queue(name).receive(40)]
            assert received == [f"{name} {number}" for number in range(20)]
    assert check(tmp_path / "new") == []


def test_queue_that_delivers_once_is_paused_when_it_is_made_anew(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "old") as ps:
        ps.create_queue("once", policy="consume_once")
        ps.queue("once").send("a")
    spoil(tmp_path / "old", "UPDATE records SET value = value || x'00' WHERE substr(key, 1, 1) = x'04'")
    done = salvage(tmp_path / "old", tmp_path / "new")
    assert any("paused" in finding.what for finding in done.findings)
    with penstock.open(tmp_path / "new") as ps:
        assert ps.queue("once").receive(1) == []


def test_queue_whose_name_is_lost_is_salvaged_under_another(plain: Path, tmp_path: Path) -> None:
    spoil(plain, "UPDATE records SET value = x'00' WHERE key = ?", keys.record(Kind.QUEUE, 1))
    salvage(plain, tmp_path / "new")
    with penstock.open(tmp_path / "new") as ps:
        assert ps.queues() == ["mails", "salvaged-1"]
        assert len(ps.queue("salvaged-1").receive(40)) == 20


def test_directory_without_its_own_record_is_salvaged(plain: Path, tmp_path: Path) -> None:
    spoil(plain, "DELETE FROM records WHERE key = ?", keys.record(Kind.META))
    done = salvage(plain, tmp_path / "new")
    assert done.queues == 2
    with penstock.open(tmp_path / "new") as ps:
        assert len(ps.queue("orders").receive(40)) == 20
        ps.create_queue("another")


def test_salvage_goes_nowhere_where_something_is(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not empty"):
        salvage(plain, tmp_path)


def test_salvage_needs_the_directory_for_itself(plain: Path, tmp_path: Path) -> None:
    with penstock.open(plain), pytest.raises(StoreLocked):
        salvage(plain, tmp_path / "new")


@pytest.fixture(scope="module")
def flipper(tmp_path_factory: pytest.TempPathFactory) -> Flipper:
    return Flipper(tmp_path_factory.mktemp("salvage"))


def test_whatever_byte_is_flipped_salvage_brings_what_is_readable_and_lists_the_rest(
    flipper: Flipper, tmp_path: Path
) -> None:
    random = Random(11)
    before = bodies_in(flipper.before)
    told = 0
    for number, (name, offset) in enumerate(random.sample(flipper.places, FLIPS)):
        source, target = tmp_path / f"{number}", tmp_path / f"{number}-new"
        shutil.copytree(flipper.original, source)
        flips.flip(source / name, offset, 1 << random.randrange(8))
        findings = check(source)
        done: Salvaged = salvage(source, target)
        after = content_of(target)
        lost = before - bodies_in(after)
        told += bool(lost)
        assert not lost or len(done.findings) > 1, f"{name} {offset}: {lost}"
        assert not lost or len(findings) > 1 or findings[0].where == "store", f"{name} {offset}: {findings}"
        store = open_embedded(target, options=OPTIONS, background=False)
        broker = Broker.open(store, START_MS, ENTROPY, None)
        assert broker.quarantine.ids == []
        for queue in broker.queues.values():
            for lane in {key[8:12] for key in after.chunks if key.startswith(keys.queue_chunks(queue.id))}:
                for key in broker.shelf.keys(queue.id, int.from_bytes(lane, "big")):
                    try:
                        broker.shelf.load(key)
                    except ChunkDamaged:
                        pytest.fail(f"{key} was copied although it is damaged")
        store.close()
        shutil.rmtree(source)
        shutil.rmtree(target)
