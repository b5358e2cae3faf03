"""`penstock store check` and `penstock store salvage`, on directories that were damaged in every way."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import click
import pytest

import penstock
from penstock.cli import store as store_commands
from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.errors import ChunkDamaged, StoreError
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.core.storage import keys
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import ChunkKey, Kind
from penstock.salvage import LIST_NAME, Salvaged, check, salvage
from penstock.store.embedded import EmbeddedStore, open_embedded
from penstock.store.errors import StoreLocked
from penstock.store.journal.frames import FRAMES_START
from penstock.store.layout import CLUSTER_NAME, JOURNAL_NAME, TABLE_NAME
from penstock.store.sharded import read_cluster_file, shard_directory
from tests.compat.server import divide
from tests.core.driver import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, BrokerDriver, attempts_of, bodies_of
from tests.store import flips
from tests.store.flips import DAMAGED, ENTROPY, OPTIONS, Content, Flipper, here
from tests.store.salvages import Salvages

FLIPS = 10
SEEDS = 10
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
    """Change the table of a store that is closed, and empty the journal: it may still have what is damaged."""
    for segment in (directory / JOURNAL_NAME).iterdir():
        size = segment.stat().st_size
        os.truncate(segment, FRAMES_START)
        os.truncate(segment, size)
    connection = sqlite3.connect(directory / TABLE_NAME, isolation_level=None)
    assert connection.execute(statement, arguments).rowcount >= 1
    connection.close()


def penstock_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*PENSTOCK, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def penstock_store(*arguments: object) -> subprocess.CompletedProcess[str]:
    return penstock_command("store", *arguments)


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
    done = penstock_command("send", "--data", plain, "orders", "x")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "penstock store salvage" in done.stderr


def test_queue_list_shows_the_others_and_says_which_is_damaged(plain: Path) -> None:
    with penstock.open(plain) as ps:
        number = ps.queue("orders").stats()
    assert number.messages == 20
    spoil(plain, "UPDATE records SET value = value || x'00' WHERE key = ?", keys.record(Kind.COUNTERS, 1))
    done = penstock_command("queue", "list", "--data", plain, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["queue"], row["damaged"], row.get("messages")) for row in rows] == [
        ("mails", False, 20),
        ("orders", True, None),
    ]
    assert "queue 'orders' is in quarantine" in done.stderr
    for arguments in (["queue", "list"], ["stats"]):
        done = penstock_command(*arguments, "--data", plain)
        assert any("orders" in line and "quarantine" in line for line in done.stdout.splitlines()), done.stdout
    with penstock.open(plain) as ps:
        assert ps.queues() == ["mails", "orders"]
        with pytest.raises(penstock.QueueDamaged):
            ps.queue("orders").send("x")
        (report,) = ps.damage
        assert report.queue == "orders"


def test_damage_that_was_found_is_told_by_who_opens_the_directory_later(plain: Path) -> None:
    spoil(plain, "UPDATE chunks SET body = x'00' WHERE id = 3")
    with penstock.open(plain) as ps:
        assert len(ps.queue("orders").receive(40)) + len(ps.queue("orders").receive(40)) == 19
        (found,) = ps.damage
    for read_only in (False, True):
        with penstock.open(plain, read_only=read_only) as ps:
            assert ps.damage == [found]
    done = penstock_command("queue", "list", "--data", plain, "--json")
    assert [json.loads(line)["quarantined"] for line in done.stdout.splitlines()] == [0, 1]


@pytest.mark.parametrize("command", [("receive", "q"), ("redrive", "q"), ("queue", "purge", "q", "--yes"), ("stats",)])
def test_only_commands_that_send_or_create_make_a_store(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    for directory in (tmp_path / "foreign", tmp_path / "missing"):
        done = penstock_command(*command, "--data", directory)
        assert (done.returncode, len(done.stderr.splitlines())) == (3, 1), done.stderr
        assert str(directory) in done.stderr and "--data" in done.stderr
    assert not (tmp_path / "missing").exists()
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["notes.txt"]


def test_advice_about_a_directory_that_is_in_use_fits_who_asks(plain: Path, tmp_path: Path) -> None:
    with penstock.open(plain):
        done = penstock_command("receive", "orders", "--data", plain)
        assert "--url" in done.stderr and "read_only" not in done.stderr and "connect()" not in done.stderr
        with pytest.raises(StoreLocked, match=r"penstock\.connect\(\).*read_only=True"):
            penstock.open(plain)
        done = penstock_store("salvage", plain, tmp_path / "new")
        assert "stop that process first" in done.stderr and "read_only" not in done.stderr
    assert not (tmp_path / "new").exists()


def test_salvage_of_a_whole_directory_is_a_copy(directory: Path, tmp_path: Path) -> None:
    before = content_of(directory)
    done = salvage(directory, tmp_path / "new")
    (finding,) = done.findings
    assert "damaged" in finding.what or "checksum" in finding.what or finding.queue == here("hurt")
    after = content_of(tmp_path / "new")
    hurt = {keys.group_of(key) for key in before.records if key[0] == Kind.QUARANTINE}
    assert len(hurt) == 1
    assert {key: value for key, value in after.records.items() if keys.group_of(key) not in hurt} == {
        key: value for key, value in before.records.items() if keys.group_of(key) not in hurt
    }
    assert {key: body for key, body in before.chunks.items() if body != DAMAGED} == after.chunks
    assert check(tmp_path / "new") == []


def test_what_the_journal_still_has_makes_good_what_is_damaged_in_the_table(plain: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(plain / TABLE_NAME, isolation_level=None)
    connection.execute("UPDATE records SET value = value || x'00' WHERE key = ?", (keys.record(Kind.COUNTERS, 1),))
    connection.execute("UPDATE chunks SET body = x'00' WHERE id = 3")
    connection.close()
    done = salvage(plain, tmp_path / "new")
    assert (done.queues, done.rebuilt, done.messages, done.findings) == (2, 0, 40, [])


def test_salvaged_queue_has_its_messages_and_the_others_are_as_they_were(plain: Path, tmp_path: Path) -> None:
    spoil(plain, "UPDATE records SET value = value || x'00' WHERE key = ?", keys.record(Kind.COUNTERS, 1))
    done = penstock_store("salvage", plain, tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "1 queues as they were, 1 made whole, 40 messages" in done.stdout
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


def damage_record(directory: Path, kind: Kind) -> None:
    """A byte more in every record of a kind."""
    spoil(directory, "UPDATE records SET value = value || x'00' WHERE substr(key, 1, 1) = ?", bytes([kind]))


def shard_of(directory: Path, shard: int = 0, shards: int = 1) -> tuple[EmbeddedStore, BrokerDriver]:
    """A store as a shard has it, and who works with it."""
    store = open_embedded(directory, background=False)
    return store, BrokerDriver(store, checks=False, shard=shard, shards=shards, now_ms=time.time_ns() // 1_000_000)  # type: ignore[arg-type]


def received(directory: Path, name: str, shard: int = 0, shards: int = 1) -> list[bytes]:
    """All that can be received from a queue, once leases have run out."""
    store, driver = shard_of(directory, shard, shards)
    driver.advance(MINUTE_MS)
    found = bodies_of(driver.receive(10_000, queue=name))
    store.close(apply=False)
    return found


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("kind", [Kind.COUNTERS, Kind.CHANNEL, Kind.ENTRY])
def test_partition_of_a_queue_keeps_its_id_and_its_numbers(tmp_path: Path, shard: int, kind: Kind) -> None:
    store, driver = shard_of(tmp_path / "old", shard, 2)
    name, config = here("parts"), QueueConfig(partitions=2)
    part = (1, 1) if shard else None
    driver.do(c.CreateQueue(name=name, config=config, channels=(c.MAIN,), part=part))
    for number in range(30):
        driver.send(b"%d" % number, queue=name)
    driver.receive(1, queue=name)
    before = driver.do(c.DescribeQueue(name=name))
    first = driver.browse(name)[0].sequence
    assert first >> PARTITION_SHIFT == shard
    store.close()
    damage_record(tmp_path / "old", kind)
    done = salvage(tmp_path / "old", tmp_path / "new")
    assert (done.rebuilt, done.messages) == (1, 30)
    store, driver = shard_of(tmp_path / "new", shard, 2)
    after = driver.do(c.DescribeQueue(name=name))
    assert (after.queue_id, after.config) == (before.queue_id, before.config)
    assert [seen.sequence - first for seen in driver.browse(name, limit=100)] == list(range(30))
    assert driver.send(b"next", queue=name).first >= first + 30
    driver.advance(HOUR_MS)
    assert len(bodies_of(driver.receive(100, queue=name))) == 31
    store.close()


def test_messages_that_are_larger_than_today_s_limit_are_salvaged(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "old") as ps:
        queue = ps.create_queue("large")
        for number in range(5):
            queue.send(f"{number}" * 2000)
        queue.configure(message_bytes_max=1024)
        queue.send("small")
    damage_record(tmp_path / "old", Kind.COUNTERS)
    assert salvage(tmp_path / "old", tmp_path / "new").messages == 6
    assert len(received(tmp_path / "new", "large")) == 6


def test_standard_queue_with_the_name_of_a_fifo_queue_stays_one(tmp_path: Path) -> None:
    store, driver = shard_of(tmp_path / "old")
    driver.broker.catalog.add_queue("x.fifo", QueueConfig(), (c.MAIN,))
    driver.commit()
    driver.send(b"a", b"b", queue="x.fifo")
    store.close()
    damage_record(tmp_path / "old", Kind.COUNTERS)
    salvage(tmp_path / "old", tmp_path / "new")
    with penstock.open(tmp_path / "new") as ps:
        assert ps.queue("x.fifo").info().config.kind == "standard"
        assert [message.body for message in ps.queue("x.fifo").receive(5)] == [b"a", b"b"]


def make_shards(directory: Path) -> dict[int, str]:
    """A directory with two shards, a queue in each, and one in both."""
    directory.mkdir()
    entropy = divide(directory, 2).entropy
    names = {shard: here("own", shard) for shard in range(2)}
    for shard in range(2):
        store = open_embedded(shard_directory(directory, shard), background=False)
        store.commit(Broker.open(store, START_MS, entropy, shard, 2).take_changes())
        store.close()
        store, driver = shard_of(shard_directory(directory, shard), shard, 2)
        driver.create(names[shard])
        part = (1, 2) if shard else None
        driver.do(c.CreateQueue(name=here("both"), config=QueueConfig(partitions=2), channels=(c.MAIN,), part=part))
        for number in range(10):
            driver.send(b"%d own" % number, queue=names[shard])
            driver.send(b"%d both" % number, queue=here("both"))
        store.close()
    return names


@pytest.mark.parametrize("gone", ["", CLUSTER_NAME, "shard-1/table.sqlite", "shard-0"])
def test_directory_with_shards_is_salvaged_with_all_its_stores(tmp_path: Path, gone: str) -> None:
    names = make_shards(tmp_path / "old")
    for shard in range(2):
        damage_record(tmp_path / "old" / f"shard-{shard}", Kind.COUNTERS)
        spoil(tmp_path / "old" / f"shard-{shard}", "DELETE FROM records WHERE key = ?", keys.record(Kind.META))
    if gone.startswith("shard-0"):
        shutil.rmtree(tmp_path / "old" / gone)
    elif gone:
        (tmp_path / "old" / gone).unlink()
    assert penstock_store("check", "--data", tmp_path / "old").returncode == 1
    done = penstock_store("salvage", tmp_path / "old", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    entropy = read_cluster_file(tmp_path / "new" / CLUSTER_NAME).entropy
    if gone != CLUSTER_NAME:
        assert entropy == read_cluster_file(tmp_path / "old" / CLUSTER_NAME).entropy
    for shard in range(2):
        if gone.startswith(f"shard-{shard}"):
            continue
        found = received(tmp_path / "new" / f"shard-{shard}", names[shard], shard, 2)
        assert found == [b"%d own" % number for number in range(10)]
        assert len(received(tmp_path / "new" / f"shard-{shard}", here("both"), shard, 2)) == 10


def test_partition_whose_record_is_lost_gets_its_name_from_another_shard(tmp_path: Path) -> None:
    make_shards(tmp_path / "old")
    spoil(tmp_path / "old" / "shard-1", "DELETE FROM records WHERE key = ?", keys.record(Kind.QUEUE, 2))
    assert "shard-1" in penstock_store("check", "--data", tmp_path / "old").stdout
    salvage(tmp_path / "old", tmp_path / "new")
    assert len(received(tmp_path / "new" / "shard-1", here("both"), 1, 2)) == 10


def make_retries(driver: BrokerDriver) -> None:
    """Ten messages are leased; three of them have failed twice, and are in the retry lane."""
    driver.create("q")
    driver.send(*[b"%d" % number for number in range(10)])
    (span,) = driver.receive(10).spans()
    driver.do(c.Release(queue="q", channel=c.MAIN, spans=[c.Span(span.first, span.first + 2, 1)], delay_ms=0))
    driver.release(driver.receive(3), delay_ms=0)
    assert any(keys.lane_channel(ChunkKey.unpack(key).lane) for key in driver.chunk_keys())


@pytest.mark.parametrize("kind", [Kind.COUNTERS, Kind.CHANNEL, Kind.QUEUE])
def test_message_that_is_retried_comes_once_with_its_attempts(tmp_path: Path, kind: Kind) -> None:
    store, driver = shard_of(tmp_path / "old")
    make_retries(driver)
    store.close()
    damage_record(tmp_path / "old", kind)
    salvage(tmp_path / "old", tmp_path / "new")
    store, driver = shard_of(tmp_path / "new")
    (name,) = driver.broker.queues
    driver.advance(MINUTE_MS)
    delivery = driver.receive(100, queue=name)
    assert sorted(bodies_of(delivery)) == [b"%d" % number for number in range(10)]
    assert sorted(attempts_of(delivery)) == [2] * 7 + [3] * 3
    store.close()


def test_retry_whose_entries_are_all_lost_comes_once(tmp_path: Path) -> None:
    store, driver = shard_of(tmp_path / "old")
    make_retries(driver)
    store.close()
    damage_record(tmp_path / "old", Kind.ENTRY)
    done = salvage(tmp_path / "old", tmp_path / "new")
    assert done.messages == 10
    assert sorted(received(tmp_path / "new", "q")) == [b"%d" % number for number in range(10)]


def test_retry_whose_chunk_is_damaged_is_taken_from_where_it_was_sent(tmp_path: Path) -> None:
    store, driver = shard_of(tmp_path / "old")
    make_retries(driver)
    (packed,) = [key for key in driver.chunk_keys() if keys.lane_channel(ChunkKey.unpack(key).lane)]
    store.close()
    spoil(tmp_path / "old", "UPDATE chunks SET body = x'00' WHERE key = ?", packed)
    assert salvage(tmp_path / "old", tmp_path / "new").messages == 10
    assert sorted(received(tmp_path / "new", "q")) == [b"%d" % number for number in range(10)]


def test_state_of_a_damaged_queue_is_kept_as_far_as_it_is_readable(tmp_path: Path) -> None:
    store, driver = shard_of(tmp_path / "old")
    settings = {"lease_ms": 5000, "tags": {"team": "blue"}, "labels": {"sns": "x"}, "dead_letter": "grave"}
    driver.create("q", channels=(c.MAIN, "audit"), **settings)
    driver.do(c.PauseChannel(queue="q", channel="audit"))
    driver.send(*[b"%d" % number for number in range(10)])
    driver.send(b"soon", delay_ms=MINUTE_MS)
    driver.send(b"later", delay_ms=100 * DAY_MS)
    driver.ack(driver.receive(4))
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=2))
    before = driver.broker.queues["q"]
    counts = {name: channel.stats() for name, channel in before.channels.items()}
    driver.do(c.PauseQueue(queue="q"))
    driver.send(b"held")
    store.close()
    spoil(tmp_path / "old", "UPDATE records SET value = value || x'00' WHERE key = ?", keys.record(Kind.COUNTERS, 1))
    salvage(tmp_path / "old", tmp_path / "new")
    store, driver = shard_of(tmp_path / "new")
    after = driver.broker.queues["q"]
    assert (after.id, after.config, after.created_ms) == (before.id, before.config, before.created_ms)
    assert after.held_from == before.held_from and after.held_from is not None
    for name, was in counts.items():
        now = after.channels[name].stats()
        assert (now.paused, now.ready, now.delayed, now.acked) == (was.paused, was.ready, was.delayed, was.acked)
    assert after.consumers.keys() == {"reader"}
    shown = driver.receive(100)
    assert bodies_of(shown) == [b"%d" % number for number in range(4, 10)]
    driver.ack(shown)
    driver.do(c.PauseQueue(queue="q", paused=False))
    driver.advance(MINUTE_MS)
    shown = driver.receive(100)
    assert sorted(bodies_of(shown)) == [b"held", b"soon"]
    driver.ack(shown)
    driver.advance(100 * DAY_MS)
    assert bodies_of(driver.receive(100)) == [b"later"]
    store.close()


def test_fifo_queue_keeps_its_order_and_its_deduplication(tmp_path: Path) -> None:
    store, driver = shard_of(tmp_path / "old")
    driver.create("f.fifo", kind="fifo")
    for number in range(6):
        driver.send_fifo(f"g{number % 2}", b"%d" % number, queue="f.fifo")
    driver.receive(1, queue="f.fifo")
    store.close()
    damage_record(tmp_path / "old", Kind.COUNTERS)
    salvage(tmp_path / "old", tmp_path / "new")
    store, driver = shard_of(tmp_path / "new")
    driver.send_fifo("g0", b"4", queue="f.fifo")
    free = driver.receive(10, queue="f.fifo")
    assert bodies_of(free) == [b"1", b"3", b"5"]
    driver.ack(free)
    driver.advance(MINUTE_MS)
    assert bodies_of(driver.receive(10, queue="f.fifo")) == [b"0", b"2", b"4"]
    store.close()


def test_damaged_chunks_are_not_counted_as_rescued(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "old") as ps:
        ps.queue("q").send_many([f"{number}" for number in range(10)])
        ps.queue("q").send("whole")
    spoil(tmp_path / "old", "UPDATE chunks SET body = x'00' WHERE id = (SELECT min(id) FROM chunks)")
    done = salvage(tmp_path / "old", tmp_path / "new")
    assert done.messages == 1
    with penstock.open(tmp_path / "new") as ps:
        stats = ps.queue("q").stats()
        assert (stats.messages, stats.channels["main"].ready, stats.quarantined) == (1, 1, 0)
        assert [message.text for message in ps.queue("q").receive(20)] == ["whole"]
        assert ps.damage == []


def test_what_salvage_writes_is_for_nobody_else(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir(mode=0o755)
    salvage(plain, tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "new").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_findings_are_listed_once(plain: Path, tmp_path: Path) -> None:
    damage_record(plain, Kind.COUNTERS)
    spoil(plain, "UPDATE chunks SET body = x'00' WHERE id = 3")
    with penstock.open(plain, read_only=True) as ps:
        ps.queues()
    assert sorted(finding.queue for finding in check(plain)) == ["mails", "orders", "orders"]
    done = salvage(plain, tmp_path / "new")
    assert len(set(done.findings)) == len(done.findings)


def test_check_says_what_is_wrong_and_not_to_check(plain: Path) -> None:
    shutil.rmtree(plain / JOURNAL_NAME)
    done = penstock_store("check", "--data", plain)
    assert done.returncode == 1
    assert "journal" in done.stdout and "missing" in done.stdout
    assert "attempts" not in done.stdout and "store check" not in done.stdout
    assert "penstock store salvage" in done.stderr


def test_check_of_a_broken_header_names_the_file(plain: Path) -> None:
    (segment, *_) = sorted((plain / JOURNAL_NAME).iterdir())
    flips.flip(segment, 3, 1)
    done = penstock_store("check", "--data", plain)
    assert segment.name in done.stdout
    assert "store check" not in done.stdout


def test_check_and_salvage_of_what_is_no_store_say_so(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for arguments in (("check", "--data", tmp_path), ("salvage", tmp_path, tmp_path.with_name("elsewhere"))):
        done = penstock_store(*arguments)
        assert (done.returncode != 0, len(done.stderr.splitlines())) == (True, 1), done
        assert "holds no store" in done.stderr
    assert not tmp_path.with_name("elsewhere").exists()


def test_salvage_that_was_cut_short_says_so_and_its_directory_is_not_opened(plain: Path, tmp_path: Path) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        salvage(plain, tmp_path / "new", interrupt)
    with pytest.raises(StoreError, match="cut short: delete"):
        penstock.open(tmp_path / "new")
    with pytest.raises(StoreError, match="cut short: delete"):
        salvage(plain, tmp_path / "new")
    (finding,) = check(tmp_path / "new")
    assert "cut short" in finding.what


def test_interrupted_command_says_that_its_directory_is_incomplete(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.salvage._Salvage.run", interrupt)
    with pytest.raises(click.exceptions.Exit) as ended:
        store_commands.salvage(str(plain), tmp_path / "new")
    assert ended.value.exit_code == 130
    assert f"{tmp_path / 'new'} is incomplete. Delete it" in capsys.readouterr().err


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
def salvages(tmp_path_factory: pytest.TempPathFactory) -> Salvages:
    return Salvages(tmp_path_factory.mktemp("salvages"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_readable_message_comes_once_and_none_is_missing_without_a_word(salvages: Salvages, seed: int) -> None:
    salvages.run(seed)


@pytest.fixture(scope="module")
def flipper(tmp_path_factory: pytest.TempPathFactory) -> Flipper:
    return Flipper(tmp_path_factory.mktemp("salvage"), stages=False)


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
                for key in broker.write_buffer.keys(queue.id, int.from_bytes(lane, "big")):
                    try:
                        broker.write_buffer.load(key)
                    except ChunkDamaged:
                        pytest.fail(f"{key} was copied although it is damaged")
        store.close()
        shutil.rmtree(source)
        shutil.rmtree(target)
