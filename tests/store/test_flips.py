"""A flipped byte at rest is harmless or told: never silent, never an exception that means nothing to its reader."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from penstock.core.broker import Broker
from penstock.core.errors import QueueDamaged
from penstock.core.storage import keys
from penstock.core.storage.keys import Kind
from penstock.store.embedded import open_embedded, open_store
from penstock.store.errors import StoreDamaged
from penstock.store.layout import TABLE_NAME
from penstock.store.table import SqliteTable
from tests.core.driver import START_MS
from tests.store import flips
from tests.store.conformance import changes_of
from tests.store.flips import ENTROPY, OPTIONS, SHARDS, Content, Flipper, here, judge

FLIPS = 200


@pytest.fixture(scope="module")
def flipper(tmp_path_factory: pytest.TempPathFactory) -> Flipper:
    return Flipper(tmp_path_factory.mktemp("flips"))


def test_directory_of_the_flips_has_every_kind_of_record(flipper: Flipper) -> None:
    assert {key[0] for key in flipper.before.records} == set(Kind)
    sizes = {path.name: path.stat().st_size for path in flipper.original.rglob("*")}
    assert sizes[f"{TABLE_NAME}-wal"] > 5_000, "a part is in SQLite's own log only"


def test_flipped_byte_is_harmless_or_told(flipper: Flipper) -> None:
    random = Random(7)
    verdicts: Counter[str] = Counter()
    for name, offset in random.sample(flipper.places, FLIPS):
        verdicts[flipper.judge(name, offset, 1 << random.randrange(8))] += 1
    assert verdicts["StoreDamaged"] and verdicts["harmless"], verdicts


def spoil(directory: Path, statement: str, *arguments: object) -> None:
    connection = sqlite3.connect(directory / TABLE_NAME, isolation_level=None)
    assert connection.execute(statement, arguments).rowcount == 1
    connection.close()


@pytest.fixture
def closed(tmp_path: Path) -> tuple[Path, Content]:
    """A directory that was closed in order, and what is in it."""
    flips.build(tmp_path / "data", stages=True)
    store = open_embedded(tmp_path / "data", options=OPTIONS, background=False)
    content = Content.of(store)
    store.close()
    return tmp_path / "data", content


def queue_id(content: Content, name: str) -> int:
    return next(
        keys.number_of(key) for key, value in content.records.items() if key[0] == Kind.QUEUE and name.encode() in value
    )


@pytest.mark.parametrize("kind", [Kind.COUNTERS, Kind.ENTRY, Kind.CHANNEL, Kind.DEDUP, Kind.BUCKET, Kind.QUEUE])
@pytest.mark.parametrize("how", ["changed", "gone", "moved"])
def test_record_of_a_queue_that_is_hit_keeps_that_queue_out_alone(
    closed: tuple[Path, Content], kind: Kind, how: str
) -> None:
    directory, content = closed
    key = next(key for key in content.records if key[0] == kind)
    match how:
        case "changed":
            value = bytes([content.records[key][0] ^ 1]) + content.records[key][1:]
            spoil(directory, "UPDATE records SET value = ? WHERE key = ?", value, key)
        case "gone":
            spoil(directory, "DELETE FROM records WHERE key = ?", key)
        case _:
            spoil(directory, "UPDATE records SET key = ? WHERE key = ?", key[:-1] + bytes([key[-1] ^ 64]), key)
    assert judge(directory, content) == "quarantine"
    store = open_embedded(directory, options=OPTIONS, background=False)
    broker = Broker.open(store, START_MS, ENTROPY, 0, SHARDS)
    assert broker.quarantine.ids == [keys.number_of(key)]
    assert len(broker.queues) == sum(key[0] == Kind.QUEUE for key in content.records) - 1
    store.close()


def test_one_bit_in_the_counters_gives_no_number_twice(closed: tuple[Path, Content]) -> None:
    directory, content = closed
    number = queue_id(content, here("work"))
    key = keys.record(Kind.COUNTERS, number)
    for at in range(len(content.records[key])):
        value = bytearray(content.records[key])
        value[at] ^= 4
        spoil(directory, "UPDATE records SET value = ? WHERE key = ?", bytes(value), key)
        store = open_embedded(directory, options=OPTIONS, background=False)
        broker = Broker.open(store, START_MS, ENTROPY, 0, SHARDS)
        with pytest.raises(QueueDamaged):
            broker.find_queue(here("work"))
        store.close()


@pytest.mark.parametrize("name", ["position", "identity", "schema_version", "groups", "journal"])
def test_damaged_entry_of_meta_is_told(closed: tuple[Path, Content], name: str) -> None:
    directory, _ = closed
    spoil(directory, "UPDATE meta SET value = value ^ 4 WHERE name = ?".replace("value ^ 4", "value + 4"), name)
    for read_only in (False, True):
        with pytest.raises(StoreDamaged, match=f"the entry '{name}' of its meta table is damaged"):
            open_store(directory, read_only=read_only)


def test_damaged_sums_are_made_anew_of_rows_that_are_whole(
    closed: tuple[Path, Content], caplog: pytest.LogCaptureFixture
) -> None:
    directory, content = closed
    number = keys.queue_chunks(queue_id(content, here("work")))
    spoil(directory, "UPDATE groups SET seal = seal + 1 WHERE name = ?", number)
    assert judge(directory, content) == "harmless"
    assert "computed again from its rows" in caplog.text
    caplog.clear()
    assert judge(directory, content) == "harmless"
    assert not caplog.text, "once is enough"


def test_queue_that_lost_a_record_is_kept_out_although_the_sums_of_another_are_damaged_later(
    closed: tuple[Path, Content],
) -> None:
    directory, content = closed
    number = queue_id(content, here("work"))
    entry = next(key for key in content.records if key[0] == Kind.ENTRY and keys.number_of(key) == number)
    spoil(directory, "DELETE FROM records WHERE key = ?", entry)
    other = next(keys.number_of(k) for k in content.records if k[0] == Kind.QUEUE and keys.number_of(k) != number)
    for _ in range(2):
        store = open_embedded(directory, options=OPTIONS, background=False)
        assert Broker.open(store, START_MS, ENTROPY, 0, SHARDS).quarantine.ids == [number]
        store.close()
        spoil(directory, "UPDATE groups SET seal = seal + 1 WHERE name = ?", keys.queue_chunks(other))
    assert judge(directory, content) == "quarantine"


def test_chunk_that_the_index_lost_is_found_again(closed: tuple[Path, Content]) -> None:
    """The index of the chunks can be made anew of the chunks."""
    directory, content = closed
    connection = sqlite3.connect(directory / TABLE_NAME, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("PRAGMA ignore_check_constraints = ON")
    (root,) = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_chunks_1'"
    ).fetchone()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = (directory / TABLE_NAME).read_bytes()
    page_bytes = int.from_bytes(data[16:18], "big")
    key = next(iter(sorted(content.chunks)))
    at = data.index(key, (root - 1) * page_bytes) if data.find(key, (root - 1) * page_bytes) >= 0 else data.index(key)
    flips.flip(directory / TABLE_NAME, at + 30, 1)
    assert judge(directory, content) in ("harmless", "chunk damaged")


def test_missing_chunk_keeps_its_queue_out(closed: tuple[Path, Content]) -> None:
    directory, content = closed
    number = keys.queue_chunks(queue_id(content, here("work")))
    key = next(key for key in content.chunks if key.startswith(number))
    spoil(directory, "DELETE FROM chunks WHERE key = ?", key)
    assert judge(directory, content) == "quarantine"


def test_record_that_the_journal_has_anew_is_not_missed(tmp_path: Path) -> None:
    """What is damaged in the table, and was written again since, does not count."""
    store = open_embedded(tmp_path, background=False)
    store.commit(changes_of({}, {b"\x02" + bytes(8): b"first"}))
    store.apply_now()
    store.commit(changes_of({}, {b"\x02" + bytes(8): b"second"}))
    store.close(apply=False)
    spoil(tmp_path, "UPDATE records SET value = ?", b"damaged")
    store = open_embedded(tmp_path, background=False)
    assert list(store.flaws()) == []
    assert dict(store.scan(b"")) == {b"\x02" + bytes(8): b"second"}
    store.close()
    store = open_embedded(tmp_path, background=False)
    assert list(store.flaws()) == []
    store.close()


def test_sums_follow_every_change(tmp_path: Path) -> None:
    """Whatever is put, replaced, deleted and dropped: a table that is opened again adds up."""
    random = Random(3)
    table = SqliteTable(tmp_path / "t")
    for position in range(1, 60):
        record_keys = [bytes([random.choice((2, 3, 12)), *bytes(7), random.randrange(3), random.randrange(9)])]
        record_keys *= random.randrange(2)
        records = {key: random.choice((None, b"v%d" % position)) for key in record_keys}
        chunks = {
            bytes([*bytes(7), random.randrange(3), random.randrange(9)]): random.choice((None, b"x", bytes(5000)))
            for _ in range(3)
        }
        dropped = [bytes(7) + b"\1"] if random.random() < 0.1 else []
        table.apply(position, dropped, chunks.items(), records.items())
        if position % 7 == 0:
            table.close()
            table = SqliteTable(tmp_path / "t")
            assert list(table.flaws()) == []
    table.close()
