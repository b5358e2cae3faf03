"""The Kafka engine on a real broker: fencing, caches, large values, refusals, compaction, failures."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from penstock.core.storage.changes import Changes
from penstock.core.storage.chunk import Chunk
from penstock.store.embedded import StoreOptions
from penstock.store.errors import (
    CommitAborted,
    CommitFailed,
    DiskFull,
    LogUnavailable,
    LogUnsafe,
    ShardFenced,
    StoreDamaged,
    StoreLocked,
    StoreVersion,
)
from penstock.store.journal import kafka as kafka_journal
from penstock.store.journal import kafka_topics
from penstock.store.journal.kafka import KafkaJournal
from penstock.store.journal.kafka_options import KafkaOptions
from penstock.store.journal.kafka_records import FORMAT_VERSION, MARKER_KEY, Assembly
from penstock.store.journal.kafka_topics import check_topic, made_client, prepare_topics, topic_config
from penstock.store.kafka import POSITION_NAME, CachePosition, KafkaStore, open_kafka, read_position, write_position
from penstock.store.layout import TABLE_NAME
from penstock.store.table import SqliteTable
from tests.kafka import kafka, needed_cluster, unique_prefix  # noqa: F401
from tests.store.conformance import Model, changes_of, content
from tests.store.kafka_engine import options_for
from tools.kafka import KafkaCluster

ROOT = Path(__file__).resolve().parents[2]

# ruff: noqa: F811


@pytest.fixture
def options(kafka: KafkaCluster) -> KafkaOptions:
    return options_for(kafka)


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def set_config(options: KafkaOptions, topic: str, name: str, value: object) -> None:
    """Change a topic's setting, as an operator does."""
    entry = ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": options.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)


# -- fencing --


def test_a_second_opener_fences_the_first(options: KafkaOptions, tmp_path: Path) -> None:
    with closing(open_kafka(options, 0, tmp_path / "first")) as first:
        first.commit(changes_of({b"c/1": b"one"}, {b"r": b"1"}))
        with closing(open_kafka(options, 0, tmp_path / "second")) as second:
            assert content(second) == Model({b"c/1": b"one"}, {b"r": b"1"})
            with pytest.raises(ShardFenced, match="shard 0 belongs to another node now"):
                first.commit(changes_of({b"c/2": b"two"}, {b"r": b"2"}))
            with pytest.raises(ShardFenced):
                first.commit(changes_of({b"c/2": b"two"}))
            with pytest.raises(ShardFenced):
                first.touch()
            second.commit(changes_of({b"c/3": b"three"}))
    with closing(open_kafka(options, 0, tmp_path / "third")) as third:
        assert content(third) == Model({b"c/1": b"one", b"c/3": b"three"}, {b"r": b"1"})


def test_an_opener_that_is_overtaken_hears_it_and_does_not_read_for_ever(
    options: KafkaOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still after its marker was committed. When it goes on, the next owner's marker is there as well."""
    until = kafka_journal._Reading.until

    def late(reading: kafka_journal._Reading, nonce: bytes) -> Iterator[Changes]:
        monkeypatch.setattr(kafka_journal._Reading, "until", until)
        with closing(open_kafka(options, 0, tmp_path / "second")) as second:
            second.commit(changes_of({b"c": b"the second's"}))
        monkeypatch.setattr(kafka_journal, "QUIET_S_MAX", 5.0)
        return until(reading, nonce)

    monkeypatch.setattr(kafka_journal._Reading, "until", late)
    with closing(open_kafka(options, 0, tmp_path / "first")) as first, pytest.raises(ShardFenced):
        first.commit(changes_of({b"c": b"the first's"}))


def test_a_store_knows_how_long_ago_it_has_fenced_the_former_owner(options: KafkaOptions, tmp_path: Path) -> None:
    before_s = time.monotonic()
    with closing(open_kafka(options, 0, tmp_path)) as store:
        first_s = store.fenced_ago_s
        assert 0 < first_s <= store.fenced_ago_s <= time.monotonic() - before_s


def test_a_fenced_owner_that_only_proves_itself_hears_it(options: KafkaOptions, tmp_path: Path) -> None:
    with closing(open_kafka(options, 0, tmp_path / "first")) as first:
        before_s = first.last_proof_s
        with closing(open_kafka(options, 0, tmp_path / "second")), pytest.raises(ShardFenced):
            first.touch()
        assert first.last_proof_s == before_s


def test_what_a_process_left_in_the_middle_of_a_transaction_is_gone(options: KafkaOptions, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.store.kafka_process", options.bootstrap, options.prefix, str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
    finally:
        process.kill()
        process.communicate()
    with closing(open_kafka(options, 0, tmp_path)) as store:
        assert content(store) == Model({b"c/kept": b"kept"}, {b"r/kept": b"kept"})
        store.commit(changes_of({b"c/after": b"after"}))
    with closing(open_kafka(options, 0, tmp_path / "elsewhere")) as store:
        assert content(store) == Model({b"c/kept": b"kept", b"c/after": b"after"}, {b"r/kept": b"kept"})


def test_shards_do_not_meet(kafka: KafkaCluster, tmp_path: Path) -> None:
    options = options_for(kafka, shards=3)
    for shard in range(3):
        with closing(open_kafka(options, shard, tmp_path)) as store:
            store.commit(changes_of({b"c": b"%d" % shard}))
    for shard in range(3):
        with closing(open_kafka(options, shard, tmp_path / "elsewhere")) as store:
            assert content(store) == Model({b"c": b"%d" % shard})


def test_one_process_at_a_time_has_a_cache(options: KafkaOptions, tmp_path: Path) -> None:
    with closing(open_kafka(options, 0, tmp_path)) as store:
        with pytest.raises(StoreLocked):
            open_kafka(options, 0, tmp_path)
        store.commit(changes_of({b"c": b"not fenced: the lock comes first"}))


# -- proofs --


def test_the_last_proof_is_when_the_last_commit_began(options: KafkaOptions, tmp_path: Path) -> None:
    opened_s = time.monotonic()
    with closing(open_kafka(options, 0, tmp_path)) as store:
        for commit in (store.touch, lambda: store.commit(changes_of({b"c": b"x"}))):
            assert store.last_proof_s is not None
            assert opened_s <= store.last_proof_s <= time.monotonic()
            before_s = time.monotonic()
            commit()
            assert before_s <= store.last_proof_s <= time.monotonic()
        store.commit(Changes())
        assert content(store) == Model({b"c": b"x"})


def test_a_journal_that_was_not_opened_has_no_proof_and_takes_nothing(options: KafkaOptions) -> None:
    journal = KafkaJournal(options, prepare_topics(options), 0)
    assert journal.last_proof_s is None
    with pytest.raises(CommitFailed):
        journal.append(changes_of({b"c": b"x"}))
    journal.close()


# -- the cache --


MODEL = Model({b"c/1": b"one", b"c/2": b"two"}, {b"r": b"2"})


@pytest.fixture
def home(options: KafkaOptions, tmp_path: Path) -> Path:
    """A cache that is up to date, closed."""
    with closing(open_kafka(options, 0, tmp_path)) as store:
        store.commit(changes_of({b"c/1": b"one"}, {b"r": b"1", b"gone": b""}))
        store._store.apply_now()
        store.commit(changes_of({b"c/2": b"two"}, {b"r": b"2", b"gone": None}))
    return tmp_path / "shard-0"


def position_of(home: Path) -> CachePosition:
    found = read_position(home)
    assert found is not None
    return found


def reopened(options: KafkaOptions, home: Path) -> Model:
    with closing(open_kafka(options, 0, home.parent)) as store:
        return content(store)


def test_a_cache_is_used_again_and_nothing_is_read_twice(
    options: KafkaOptions, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = position_of(home)
    taken: list[bytes] = []
    take = Assembly.take
    monkeypatch.setattr(Assembly, "take", lambda *it: (taken.append(it[1]), take(*it)))
    assert reopened(options, home) == MODEL
    assert position_of(home).table == before.table
    assert taken == []


def changed(home: Path, **changes: Any) -> None:
    found = position_of(home)
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    write_position(home, CachePosition(**{**fields, **changes}))


SPOILERS: dict[str, Callable[[Path], None]] = {
    "no position": lambda home: (home / POSITION_NAME).unlink(),
    "a torn position": lambda home: (home / POSITION_NAME).write_bytes(b"\x9b\x01"),
    "a later format": lambda home: changed(home, version=99),
    "no table": lambda home: (home / TABLE_NAME).unlink(),
    "a damaged table": lambda home: (home / TABLE_NAME).write_bytes(b"not SQLite at all" * 1000),
    "another table": lambda home: changed(home, table=1),
    "another Kafka": lambda home: changed(home, kafka_id="other"),
    "another topic of the same name": lambda home: changed(home, data_id="other"),
    "another shard": lambda home: changed(home, shard=7),
    "an old cache": lambda home: changed(home, time_s=time.time() - 12.5 * 3600),
    "a cache of the future": lambda home: changed(home, time_s=time.time() + 3600),
    "behind the log's end": lambda home: changed(home, data=10**9),
}


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_a_cache_that_is_of_no_use_is_made_anew(spoiler: str, options: KafkaOptions, home: Path) -> None:
    table = position_of(home).table
    SPOILERS[spoiler](home)
    assert reopened(options, home) == MODEL
    assert position_of(home).table != table
    assert reopened(options, home) == MODEL


MANY = Model({}, {b"r/%04d" % number: b"x" * 100 for number in range(5000)})


def damage(table: Path) -> None:
    with open(table, "r+b") as file:
        file.seek(file.seek(0, 2) // 2)
        file.write(b"\xff" * 32 * 1024)


def test_a_cache_that_was_damaged_is_made_anew_when_it_is_opened(options: KafkaOptions, tmp_path: Path) -> None:
    with closing(open_kafka(options, 0, tmp_path)) as store:
        store.commit(changes_of({}, dict(MANY.records)))
    damage(tmp_path / "shard-0" / TABLE_NAME)
    assert reopened(options, tmp_path / "shard-0") == MANY


def test_a_cache_that_turns_out_to_be_damaged_is_made_anew_when_it_is_opened_again(
    options: KafkaOptions, tmp_path: Path
) -> None:
    with closing(open_kafka(options, 0, tmp_path)) as store:
        store.commit(changes_of({}, dict(MANY.records)))
    with closing(open_kafka(options, 0, tmp_path)) as store:
        damage(tmp_path / "shard-0" / TABLE_NAME)
        with pytest.raises(StoreDamaged):
            content(store)
    assert reopened(options, tmp_path / "shard-0") == MANY


def test_a_chunk_that_has_rotted_in_the_cache_is_read_again_from_kafka(options: KafkaOptions, tmp_path: Path) -> None:
    """Of SQLite's own nothing is damaged: only who knows the chunk's checksum can tell."""
    whole = b"".join(Chunk.of(7, 0, [b"tea " * 5_000]).parts())

    def opened() -> KafkaStore:
        return open_kafka(options, 0, tmp_path, check_chunk=Chunk.decode)

    with closing(opened()) as store:
        store.commit(changes_of({b"c/1": whole}))
    table = tmp_path / "shard-0" / TABLE_NAME
    data = bytearray(table.read_bytes())
    data[data.index(b"tea tea tea") + 4] ^= 1
    table.write_bytes(data)
    with closing(opened()) as store, pytest.raises(StoreDamaged, match="damaged"):
        store.read_chunk(b"c/1")
    with closing(opened()) as store:
        assert store.read_chunk(b"c/1") == whole


def test_a_cache_before_the_logs_start_is_made_anew(options: KafkaOptions, home: Path) -> None:
    table = position_of(home).table
    with closing(open_kafka(options, 0, home.parent / "elsewhere")) as store:
        for key, value in (("c/1", b"one"), ("c/2", b"two")):
            store.commit(changes_of({key.encode(): value}))
    end = position_of(home.parent / "elsewhere" / "shard-0")
    changed(home, data=0)
    admin = AdminClient({"bootstrap.servers": options.bootstrap})
    cut = TopicPartition(options.data_topic, 0, end.data - 6)  # before the two: a chunk, its marker and Kafka's mark
    set_config(options, options.data_topic, "cleanup.policy", "compact,delete")
    admin.delete_records([cut])[cut].result(60)
    set_config(options, options.data_topic, "cleanup.policy", "compact")
    assert reopened(options, home) == MODEL
    assert position_of(home).table != table


def test_topics_that_were_deleted_and_made_again_are_empty_whatever_the_cache_says(
    options: KafkaOptions, home: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": options.bootstrap})
    for deleted in admin.delete_topics([options.data_topic, options.offset_topic]).values():
        deleted.result(60)
    until(lambda: options.data_topic not in admin.list_topics(timeout=60).topics)
    assert reopened(options, home) == Model()


def test_reading_again_what_the_table_has_does_no_harm(options: KafkaOptions, tmp_path: Path) -> None:
    """The table is ahead of the position, as after a crash between the two; every stretch is read again."""
    home = tmp_path / "shard-0"
    positions: list[bytes] = []
    model = Model()
    store = open_kafka(options, 0, tmp_path)
    for number in range(8):
        changes = changes_of(
            {b"c/%d" % (number % 5): b"%d" % number, b"c/%d" % ((number + 2) % 5): None},
            {b"r/%d" % (number % 3): b"%d" % number},
            [b"c/1"] if number == 5 else [],
        )
        store.commit(changes)
        model = model.after(changes)
        store._store.apply_now()
        positions.append((home / POSITION_NAME).read_bytes())
    store.close()
    assert len(set(positions)) == len(positions)
    for position in positions:
        (home / POSITION_NAME).write_bytes(position)
        assert reopened(options, home) == model


def test_a_cache_that_was_behind_catches_up(options: KafkaOptions, home: Path) -> None:
    table = position_of(home).table
    with closing(open_kafka(options, 0, home.parent / "elsewhere")) as store:
        store.commit(changes_of({b"c/1": None, b"c/3": b"three"}, {b"r": b"3"}))
        store.commit(changes_of(dropped=[b"c/2"]))
    assert reopened(options, home) == Model({b"c/3": b"three"}, {b"r": b"3"})
    assert position_of(home).table == table


def test_a_full_disk_keeps_nobody_from_committing_only_the_position_stays_behind(
    options: KafkaOptions, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_home: Path, _position: CachePosition) -> None:
        raise OSError(28, "No space left on device")

    before = position_of(home)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.store.kafka.write_position", full)
        with closing(open_kafka(options, 0, home.parent)) as store:
            store.commit(changes_of({b"c/3": b"three"}))
            store._store.apply_now()
    assert position_of(home) == before
    assert reopened(options, home) == Model({**MODEL.chunks, b"c/3": b"three"}, MODEL.records)


def test_proofs_alone_keep_the_cache_young(options: KafkaOptions, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(home, time_s=time.time() - 3600)
    with closing(open_kafka(options, 0, home.parent)) as store:
        monkeypatch.setattr(kafka_journal, "SAVE_EVERY_S", -1.0)
        store.touch()
        assert time.time() - position_of(home).time_s < 600
        store.commit(changes_of({b"c/3": b"three"}))
        behind = position_of(home)
        store.touch()
        assert position_of(home) == behind, "what is not in the table must not count as read"


def test_a_log_is_read_in_pieces(options: KafkaOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = bytes(range(250)) * 40
    with closing(open_kafka(options, 0, tmp_path)) as store:
        for start in range(0, 300, 30):
            store.commit(changes_of({b"c/%03d" % number: body for number in range(start, start + 30)}))
    monkeypatch.setattr(kafka_journal, "READ_BYTES", 100_000)
    journal = KafkaJournal(options, prepare_topics(options), 0)
    sizes = [sum(it.nbytes for it in changes.chunks.values() if it is not None) for _, changes in journal.replay(0)]
    journal.close()
    assert sum(sizes) == 300 * len(body)
    assert max(sizes[10:]) <= 2 * 100_000


def test_a_log_that_does_not_fit_on_the_disk_is_not_read_into_memory_instead(
    options: KafkaOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise DiskFull("no room in the table")

    model = Model({b"c/%02d" % number: Random(number).randbytes(100_000) for number in range(40)})
    with closing(open_kafka(options, 0, tmp_path / "first")) as store:
        for key, body in model.chunks.items():
            store.commit(changes_of({key: body}))
    few_bytes = StoreOptions(unapplied_bytes_max=500_000)
    with monkeypatch.context() as patch:
        patch.setattr(kafka_journal, "READ_BYTES", 100_000)
        patch.setattr(SqliteTable, "apply", full)
        with pytest.raises(DiskFull):
            open_kafka(options, 0, tmp_path, store_options=few_bytes)
    assert reopened(options, tmp_path / "shard-0") == model


# -- large values --


def live_messages(options: KafkaOptions, topic: str) -> dict[bytes, bytes]:
    """What is left of a topic's first partition when it is compacted completely, but for markers."""
    found: dict[bytes, bytes] = {}
    for key, value in all_messages(options, topic):
        found.pop(key, None)
        if value is not None and key != MARKER_KEY:
            found[key] = value
    return found


def all_messages(options: KafkaOptions, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": unique_prefix(),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), 60)
        consumer.assign([TopicPartition(topic, 0, low)])
        while True:
            message = consumer.poll(60)
            assert message is not None
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return
            assert error is None, error
            yield message.key(), message.value()
    finally:
        consumer.close()


def test_values_larger_than_a_message_are_split_and_leave_nothing_behind(kafka: KafkaCluster, tmp_path: Path) -> None:
    options = options_for(kafka, message_bytes_max=16 * 1024, compression="none")
    large, larger, small = b"a" * 50_000, bytes(range(256)) * 1000, b"small"
    steps = [
        changes_of({b"c/1": large, b"c/2": small}, {b"r/1": larger}),
        changes_of({b"c/1": larger, b"c/2": large}, {b"r/1": large}),
        changes_of({b"c/1": small, b"c/3": larger}, {b"r/1": small, b"r/2": large}),
        changes_of({b"c/2": large[:20_000]}, {b"r/1": larger}),
    ]
    model = Model()
    for number, changes in enumerate(steps):
        with closing(open_kafka(options, 0, tmp_path)) as store:
            store.commit(changes)
        model = model.after(changes)
        assert reopened(options, tmp_path / "shard-0") == model
        with closing(open_kafka(options, 0, tmp_path / f"elsewhere-{number}")) as store:
            assert content(store) == model
    with closing(open_kafka(options, 0, tmp_path)) as store:
        store.commit(changes_of({b"c/1": None}, {b"r/1": None}, dropped=[b"c/", b"r/2"]))
        assert content(store) == Model()
    assert live_messages(options, options.data_topic) == {}
    assert live_messages(options, options.offset_topic) == {}


def test_a_cache_that_ends_in_the_middle_of_a_commit_with_large_values_catches_up(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads a long log applies what was read so far, wherever that ends; then the process dies."""
    options = options_for(kafka, message_bytes_max=16 * 1024, compression="none")
    model = Model({b"c/1": b"a" * 50_000, b"c/2": b"small"}, {b"r/1": b"1"})
    with closing(open_kafka(options, 0, tmp_path / "first")) as store:
        store.commit(changes_of({b"c/1": model.chunks[b"c/1"]}))
        store.commit(changes_of({b"c/2": b"small"}, model.records))
    with monkeypatch.context() as patch:
        patch.setattr(kafka_journal, "READ_BYTES", 1)
        patch.setattr(kafka_journal._Reading, "_consume", lambda self: self._consumer.consume(1, 0.01))
        killed = open_kafka(options, 0, tmp_path, store_options=StoreOptions(unapplied_bytes_max=40_000))
        assert content(killed) == model
        killed.close(apply=False)
    assert reopened(options, tmp_path / "shard-0") == model


def test_a_dropped_prefix_leaves_nothing_in_the_log(options: KafkaOptions, tmp_path: Path) -> None:
    with closing(open_kafka(options, 0, tmp_path)) as store:
        store.commit(changes_of({b"a/%d" % number: b"x" for number in range(50)}, {b"a/r": b"x", b"b/r": b"kept"}))
        store._store.apply_now()
        store.commit(changes_of({b"a/50": b"x", b"b/1": b"kept"}, {b"a/s": b"x"}))
        store.commit(changes_of({b"a/51": b"kept"}, dropped=[b"a/"]))
    assert sorted(live_messages(options, options.data_topic).values()) == [b"kept", b"kept"]
    assert list(live_messages(options, options.offset_topic).values()) == [b"kept"]


# -- compaction --


def test_the_log_does_not_grow_with_what_was_acknowledged(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Messages come and go; Kafka's cleaner leaves about what is alive."""
    quick = {"segment.ms": 200, "min.cleanable.dirty.ratio": 0.01, "delete.retention.ms": 0, "segment.bytes": 1 << 20}
    options = options_for(kafka, topic_properties=quick)
    with closing(open_kafka_anyhow(options, tmp_path)) as store:
        store.commit(changes_of({b"stays": b"stays"}, {b"stays": b"stays"}))
        for number in range(150):
            chunks = {b"c/%d" % number: b"x" * 2000, b"c/%d" % (number - 1): None}
            store.commit(
                changes_of(chunks, {b"state": b"%d" % number, b"r/%d" % number: b"", b"r/%d" % (number - 1): None})
            )
        assert sum(1 for _ in all_messages(options, options.data_topic)) > 5

        def is_small() -> bool:
            store.touch()  # a segment is closed when something comes after it
            store.commit(changes_of({b"roll": b"over"}))
            counts = [
                sum(1 for _ in all_messages(options, topic)) for topic in (options.data_topic, options.offset_topic)
            ]
            return max(counts) < 40

        until(is_small, 120)
        expected = Model({b"stays": b"stays", b"c/149": b"x" * 2000, b"roll": b"over"}, {b"stays": b"stays"})
        expected.records.update({b"state": b"149", b"r/149": b""})
        assert content(store) == expected
    set_config(options, options.data_topic, "delete.retention.ms", 86_400_000)
    set_config(options, options.offset_topic, "delete.retention.ms", 86_400_000)
    with closing(open_kafka(options, 0, tmp_path / "elsewhere")) as store:
        assert content(store) == expected


def open_kafka_anyhow(options: KafkaOptions, directory: Path) -> KafkaStore:
    """Open a new log in which Kafka forgets deletions at once: as if it did not."""
    topics = prepare_topics(options)
    patient = type(topics)(topics.kafka_id, topics.data_id, topics.offset_id, topics.message_bytes_max, 86_400_000)
    return open_kafka(options, 0, directory, topics=patient)


def test_a_reading_longer_than_kafka_remembers_deletions_is_refused(options: KafkaOptions, tmp_path: Path) -> None:
    topics = prepare_topics(options)
    forgetful = type(topics)(topics.kafka_id, topics.data_id, topics.offset_id, topics.message_bytes_max, 0)
    with pytest.raises(LogUnavailable, match=r"took longer than its delete\.retention\.ms"):
        open_kafka(options, 0, tmp_path, topics=forgetful)


# -- refusals --


SAFE = {"cleanup.policy": "compact", "unclean.leader.election.enable": "false", "min.insync.replicas": "2"}


@pytest.mark.parametrize(
    ("copies", "config", "complaint"),
    [
        (2, {}, "has 2 copies of each message, but .* replication_factor is 3"),
        (3, {"cleanup.policy": "delete"}, "cleanup.policy=delete, so Kafka would delete messages"),
        (3, {"cleanup.policy": "compact,delete"}, "cleanup.policy=compact,delete"),
        (3, {"unclean.leader.election.enable": "true"}, "could vanish with a broker"),
        (3, {"min.insync.replicas": "1"}, "fewer copies than asked for"),
        (3, {"min.insync.replicas": "3"}, "could not be written while one broker is away"),
    ],
)
def test_a_topic_that_would_lose_messages_is_refused(copies: int, config: dict[str, str], complaint: str) -> None:
    options = KafkaOptions("127.0.0.1:9092", "demo", "demo")
    check_topic("demo.data", 3, SAFE, options)
    with pytest.raises(LogUnsafe, match=complaint):
        check_topic("demo.data", copies, {**SAFE, **config}, options)


@pytest.mark.parametrize(
    ("name", "value"),
    [("cleanup.policy", "delete"), ("unclean.leader.election.enable", "true"), ("min.insync.replicas", 2)],
)
def test_a_real_topic_that_was_made_unsafe_is_refused(name: str, value: object, options: KafkaOptions) -> None:
    prepare_topics(options)
    set_config(options, options.offset_topic, name, value)
    with pytest.raises(LogUnsafe, match=rf"topic {options.offset_topic} has {name}={value}"):
        prepare_topics(options)


def test_a_topic_of_another_count_is_not_joined_by_one_that_does_not_fit(options: KafkaOptions) -> None:
    admin = AdminClient({"bootstrap.servers": options.bootstrap})
    topic = NewTopic(options.data_topic, options.shards + 1, 1)
    admin.create_topics([topic])[options.data_topic].result(60)
    until(lambda: options.data_topic in admin.list_topics(timeout=60).topics)
    with pytest.raises(LogUnsafe, match=rf"have {options.shards + 1} partitions, .* say shards = {options.shards + 1}"):
        prepare_topics(options)
    assert options.offset_topic not in admin.list_topics(timeout=60).topics


def test_topics_with_different_partition_counts_are_refused(options: KafkaOptions) -> None:
    prepare_topics(options)
    admin = AdminClient({"bootstrap.servers": options.bootstrap})
    admin.create_partitions([NewPartitions(options.data_topic, 2)])[options.data_topic].result(60)
    until(lambda: len(admin.list_topics(options.data_topic, timeout=60).topics[options.data_topic].partitions) == 2)
    with pytest.raises(LogUnsafe, match=r"the same number of partitions, but .*data has 2 and .*offset has 1"):
        prepare_topics(options)


def test_another_number_of_shards_than_the_topics_have_is_refused(kafka: KafkaCluster) -> None:
    options = options_for(kafka, shards=2)
    prepare_topics(options)
    other = KafkaOptions(
        kafka.bootstrap, options.cluster, options.prefix, 16, replication_factor=1, min_insync_replicas=1
    )
    with pytest.raises(LogUnsafe, match=r"have 2 partitions, but \[cluster\] shards is 16.* say shards = 2"):
        prepare_topics(other)


def test_more_copies_than_brokers_are_refused(kafka: KafkaCluster) -> None:
    with pytest.raises(LogUnsafe, match=r"cannot have 3 copies.* replication_factor and min_insync_replicas"):
        prepare_topics(options_for(kafka, replication_factor=3, min_insync_replicas=2))


def test_a_topic_property_that_kafka_does_not_know_is_refused(kafka: KafkaCluster) -> None:
    with pytest.raises(LogUnsafe, match=r"Look at \[kafka\] topic_properties"):
        prepare_topics(options_for(kafka, topic_properties={"no.such.property": True}))


def test_topics_are_made_as_the_settings_say(kafka: KafkaCluster) -> None:
    options = options_for(kafka, shards=5, topic_properties={"segment.bytes": 2 << 20})
    topics = prepare_topics(options)
    assert (topics.message_bytes_max, topics.delete_retention_ms) == (4 << 20, 86_400_000)
    config = topic_config(options)
    assert (config["segment.bytes"], config["cleanup.policy"], config["min.insync.replicas"]) == (
        "2097152",
        "compact",
        "1",
    )
    assert prepare_topics(options) == topics


def test_a_log_of_a_later_format_is_refused_and_stays_as_it_is(options: KafkaOptions, tmp_path: Path) -> None:
    with closing(open_kafka(options, 0, tmp_path)) as store:
        store.commit(changes_of({b"c": b"x"}))
    producer = Producer({"bootstrap.servers": options.bootstrap, "transactional.id": options.transactional_id(0)})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(options.offset_topic, bytes([FORMAT_VERSION + 1]) + b"future", MARKER_KEY, 0)
    producer.commit_transaction(60)
    for directory in (tmp_path, tmp_path / "elsewhere"):
        with pytest.raises(StoreVersion, match="written in format 2"):
            open_kafka(options, 0, directory)
    assert list(all_messages(options, options.offset_topic))[-1][1] == b"\x02future"


def test_properties_of_kafka_reach_every_client() -> None:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    options = KafkaOptions("127.0.0.1:1", "demo", "demo", properties={**given, "ssl.ca.location": "/ca.pem"})
    seen: list[dict[str, Any]] = []
    made_client(seen.append, options, transactional_id="t")
    assert seen[0].items() >= {**given, "ssl.ca.location": "/ca.pem", "transactional.id": "t"}.items()
    assert seen[0]["bootstrap.servers"] == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [({"no.such.property": 1}, "no.such.property"), ({"security.protocol": "CARRIER_PIGEON"}, "security.protocol")],
)
def test_properties_that_librdkafka_does_not_take_are_named(
    properties: dict[str, Any], complaint: str, kafka: KafkaCluster
) -> None:
    with pytest.raises(LogUnsafe, match=rf"\[kafka\] properties are not valid: .*{complaint}"):
        prepare_topics(options_for(kafka, properties=properties))


def test_a_secret_is_not_in_the_error(kafka: KafkaCluster) -> None:
    options = options_for(kafka, properties={"security.protocol": "SASL_PLAINTEXT", "sasl.password": "hidden"})
    with pytest.raises(LogUnsafe) as refused:
        prepare_topics(options)
    assert "hidden" not in str(refused.value) + repr(options)


def test_a_kafka_that_is_not_there_is_said_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_topics, "ADMIN_TIMEOUT_S", 1.0)
    with pytest.raises(LogUnavailable, match=r"prepared: Kafka at 127\.0\.0\.1:1 does not answer"):
        prepare_topics(KafkaOptions("127.0.0.1:1", "demo", "demo"))


# -- failures --


def test_a_commit_that_kafka_refuses_was_not_written_and_the_store_goes_on(
    options: KafkaOptions, tmp_path: Path
) -> None:
    with closing(open_kafka(options, 0, tmp_path)) as store:
        store.commit(changes_of({b"c/1": b"one"}))
        set_config(options, options.data_topic, "max.message.bytes", 1000)
        until(lambda: is_refused(store), 60)
        store.commit(changes_of({b"c/2": b"two"}, {b"r": b"2"}))
        assert content(store) == Model({b"c/1": b"one", b"c/2": b"two"}, {b"r": b"2"})
    with closing(open_kafka(options, 0, tmp_path / "elsewhere")) as store:
        assert content(store) == Model({b"c/1": b"one", b"c/2": b"two"}, {b"r": b"2"})


def is_refused(store: KafkaStore) -> bool:
    """Whether the broker has heard of its new limit."""
    try:
        store.commit(changes_of({b"c/large": Random(1).randbytes(5000)}, {b"r": b"lost"}))
    except CommitAborted as error:
        assert "Nothing was written" in str(error)
        return True
    store.commit(changes_of({b"c/large": None}, {b"r": None}))
    return False


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """For 127.0.0.1; and the same with its key."""
    directory = tmp_path_factory.mktemp("certificate")
    certificate, key, both = directory / "certificate.pem", directory / "key.pem", directory / "both.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    made = [*command.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    both.write_text(key.read_text() + certificate.read_text())
    return certificate, both


@pytest.fixture(scope="module")
def guarded(certificate: tuple[Path, Path]) -> Iterator[KafkaCluster]:
    """A broker of this module's own, which talks by TLS, and wants a password."""
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b" user_a="b";'
    properties = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": login,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificate[1],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificate[0],
    }
    with needed_cluster(properties=properties) as cluster:
        yield cluster


def login(certificate: tuple[Path, Path], password: str) -> dict[str, Any]:
    sasl = {"sasl.mechanisms": "PLAIN", "sasl.username": "a", "sasl.password": password}
    return {"security.protocol": "SASL_SSL", "ssl.ca.location": str(certificate[0]), **sasl}


def test_a_wrong_password_is_said_and_not_shown(
    guarded: KafkaCluster, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_topics, "ADMIN_TIMEOUT_S", 3.0)
    with pytest.raises(LogUnavailable, match=r"uthentication.*look at \[kafka\] properties") as refused:
        prepare_topics(options_for(guarded, properties=login(certificate, "hidden")))
    assert "hidden" not in str(refused.value)


def test_a_commit_in_doubt_is_asked_for_again_until_kafka_has_ended_it(
    guarded: KafkaCluster, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    options = options_for(guarded, properties=login(certificate, "b"))
    with closing(open_kafka(options, 0, tmp_path)) as store:
        store._journal._options = replace(options, commit_timeout_s=2.0)
        guarded.pause(0)
        resuming = threading.Timer(3.0, guarded.resume, (0,))
        resuming.start()
        try:
            store.commit(changes_of({b"c/1": b"one"}))
        finally:
            resuming.join()
        assert content(store) == Model({b"c/1": b"one"})
    assert reopened(options, tmp_path / "shard-0") == Model({b"c/1": b"one"})


def test_a_broker_that_stands_still_or_dies_costs_a_commit_and_no_more(
    guarded: KafkaCluster, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    options = options_for(guarded, properties=login(certificate, "b"))
    store = open_kafka(options, 0, tmp_path)
    store.commit(changes_of({b"c/1": b"one"}))
    store._journal._options = replace(options, commit_timeout_s=2.0)
    guarded.pause(0)
    try:
        with pytest.raises(CommitFailed, match="not known"):
            store.commit(changes_of({b"c/2": b"two"}))
        with pytest.raises(CommitFailed):
            store.commit(changes_of({b"c/3": b"three"}))
        store.close()
    finally:
        guarded.resume(0)
    with closing(open_kafka(options, 0, tmp_path)) as store:
        found = content(store)
        assert found in (Model({b"c/1": b"one"}), Model({b"c/1": b"one", b"c/2": b"two"}))
        store.commit(changes_of({b"c/3": b"three"}))
    guarded.kill(0)
    guarded.start(0)
    expected = found.after(changes_of({b"c/3": b"three"}))
    assert reopened(options, tmp_path / "shard-0") == expected
    shutil.rmtree(tmp_path / "shard-0")
    assert reopened(options, tmp_path / "shard-0") == expected
