"""Messages of a cluster are read straight from Kafka, by real Spark, with a real broker and a real node.

That they came from there is seen at the node, which counts what it was asked: no `read`.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.core.storage.chunk import Chunk
from penstock.spark import kafka as reading
from penstock.spark.errors import DataLoss, InvalidOption, ServerFailed
from penstock.spark.kafka import KafkaPlace, Listing
from penstock.spark.options import SourceOptions, Where
from penstock.spark.place import Part, Range
from penstock.spark.server import Connection
from penstock.spark.source import RangePartition, read_range
from penstock.store.journal.kafka_records import value_key
from penstock.wire.arrow import BASE_COLUMNS, WITH_HEADERS
from penstock.wire.pieces import Target, encode_section, piece_bytes
from tests.cluster.nodes import settings_text
from tests.compat.server import Server, until
from tests.kafka import kafka, unique_prefix  # noqa: F401
from tests.ports import free_port
from tests.spark.running import Queues
from tools.kafka import KafkaCluster

START_S_MAX = 120.0
MESSAGE_BYTES_MAX = 100_000
"""So that larger chunks are in parts."""
SOON_CLEANED = """
[kafka.topic_properties]
"segment.ms" = 500
"min.cleanable.dirty.ratio" = 0.01
"""
PARTITION_MASK = (1 << PARTITION_SHIFT) - 1
_READS = re.compile(r'^penstock_requests_total\{(?=.*action="read")(?=.*protocol="bulk").*\} (\S+)$', re.MULTILINE)


@pytest.fixture(scope="module")
def cluster_name() -> str:
    return unique_prefix("spark")


@pytest.fixture(scope="module")
def node(
    kafka: KafkaCluster,  # noqa: F811
    cluster_name: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    with serving_node(kafka, cluster_name, "n1", tmp_path_factory.mktemp("node")) as running:
        yield running
    assert running.failures_logged() == []


@contextlib.contextmanager
def serving_node(backend: KafkaCluster, cluster: str, name: str, directory: Path) -> Iterator[Server]:
    """A node that has ended when the block has."""
    config = directory / "penstock.toml"
    text = settings_text(backend, cluster, name, directory / "data", session_s=6.0)
    config.write_text(f"{text}message_bytes_max = {MESSAGE_BYTES_MAX}\n{SOON_CLEANED}")
    running = Server(directory, "--config", str(config))
    try:
        start(running)
        yield running
    finally:
        running.kill()


def start(node: Server) -> None:
    """Start, and wait until every shard is served: that takes longer than one server alone, after a kill above all."""
    node.begin()
    until(lambda: (node.directory / "ready.json").exists() or node.process.poll() is not None, START_S_MAX)
    node.wait_until_ready()


@pytest.fixture
def queues(node: Server, request: pytest.FixtureRequest, tmp_path: Path) -> Queues:
    """Queues on the node; with a Spark session for who asks for one."""
    spark = request.getfixturevalue("spark") if "spark" in request.fixturenames else None
    return Queues(node, spark, tmp_path)


def reads(server: Server) -> int:
    """How often the node was asked for messages by offset."""
    return sum(int(float(found)) for found in _READS.findall(server._http("/metrics")[1].decode()))


def place(queues: Queues, read_from: str = "kafka", **fields: Any) -> KafkaPlace:
    return KafkaPlace(Where(url=queues.url, read_from=read_from, **fields))


def values(queues: Queues, at: KafkaPlace, start: int = 0, stop: int | None = None) -> list[tuple[int, bytes]]:
    """Offset and body of the messages of a range, as they come."""
    name = queues.name()
    with contextlib.closing(at):
        wanted = Range(name, start, at.find([name])[Part(name, 0)].end if stop is None else stop, 0)
        batches = list(at.batches(wanted, WITH_HEADERS))
    return [(row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()]


def end(queues: Queues, short: str = "q") -> int:
    with contextlib.closing(place(queues)) as at:
        return at.find([queues.name(short)])[Part(queues.name(short), 0)].end


def numbered(start: int, stop: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in range(start, stop)]


# -- with Spark --


def test_a_batch_is_the_same_from_kafka_and_the_node_is_not_asked_for_it(queues: Queues, spark: Any) -> None:
    queues.create()
    queues.send(5_000, groups=b"tea")
    queues.send(5_000, start=5_000, chunk=500)
    before = reads(queues.server)
    straight = queues.reader(readFrom="kafka", minPartitions=2, includeHeaders="true").collect()
    assert reads(queues.server) == before
    by_server = queues.reader(readFrom="server", includeHeaders="true").collect()
    assert reads(queues.server) > before
    assert [row.offset for row in straight] == list(range(10_000))
    assert straight == by_server


def test_a_stream_reads_from_kafka_and_commits_to_its_channel_across_a_killed_node(queues: Queues, spark: Any) -> None:
    queues.create()
    queues.send(2_000)
    before = reads(queues.server)

    def stream() -> Any:
        return queues.stream(readFrom="kafka", channel="spark", maxOffsetsPerTrigger=1_000)

    queues.run(stream())
    assert queues.output() == list(range(2_000))
    assert reads(queues.server) == before
    assert queues.channels()["spark"]["ready"] <= 1_000, "the first batch is committed"
    queues.server.kill()
    start(queues.server)
    queues.send(1_000, start=2_000)
    queues.run(stream())
    assert queues.output() == list(range(3_000))
    assert reads(queues.server) == 0, "it counts from its start"


def test_a_stream_goes_on_when_the_first_node_of_its_url_dies(
    queues: Queues,
    spark: Any,
    kafka: KafkaCluster,  # noqa: F811
    cluster_name: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    queues.create()
    queues.create("copies")
    queues.send(1_000)
    first = queues.server
    with serving_node(kafka, cluster_name, "n2", tmp_path_factory.mktemp("second")) as second:
        both = f"http://127.0.0.1:{first.http_port},127.0.0.1:{second.http_port}"
        place_of_both = {"url": both, "timeout": "120"}
        stream = queues.stream(channel="spark", readFrom="server", maxOffsetsPerTrigger=500, **place_of_both)
        writer = stream.select("value").writeStream.format("penstock").options(url=both, timeout="10")
        writer = writer.options(topic=queues.name("copies"), checkpointLocation=str(queues.directory / "both"))
        query = writer.start()
        try:
            until(lambda: query.lastProgress is not None and query.lastProgress.batchId >= 1, START_S_MAX)
            first.kill()
            queues.server = second
            queues.send(1_000, start=1_000)
            until(lambda: not query.isActive or end(queues, "copies") >= end(queues), START_S_MAX)
            if not query.isActive:  # the node had the files of a batch
                assert "cannot be reached" in str(query.exception())
                query = writer.start()
                until(lambda: not query.isActive or end(queues, "copies") >= end(queues), START_S_MAX)
            assert query.exception() is None
        finally:
            query.stop()
            if first.process.poll() is not None:
                start(first)
            queues.server = first
    until(lambda: first._http("/healthz")[0] == 200, START_S_MAX)
    copies, sent = [queues.numbers(queues.reader(each, readFrom="server", timeout=120)) for each in ("copies", "q")]
    assert set(sent) == set(range(2_000))
    assert copies == sent, "once, but for what the test itself has sent again"


def test_a_large_publish_is_whole_or_nothing_on_a_cluster_whose_node_is_killed(queues: Queues) -> None:
    """It is staged in commits of 32 MiB, for queues of whichever shard, and seen after one small commit."""
    queues.create()
    name, bodies = queues.name(), [b"%06d" % number + bytes(4_994) for number in range(6_000)]
    chunks = [Chunk.of(0, 0, bodies[at : at + 600]) for at in range(0, 6_000, 600)]
    piece = piece_bytes((Target(name), chunk) for chunk in chunks)
    body = {"token": "large", "pieces": ["a"] * 4, "name": f"job {name}", "number": 1}
    connection = Connection(Where(url=queues.url, timeout_s=1))
    connection.fetch("PUT", "/v1/bulk/staging/large/a", piece, {})
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(connection.ask, "POST", "/v1/bulk/publish", body)
        time.sleep(1.0)
        was_done = asked.done()
        queues.server.kill()
        with contextlib.suppress(ServerFailed):
            asked.result()
    start(queues.server)
    assert end(queues) in ((24_000,) if was_done else (0, 24_000))
    connection.ask("POST", "/v1/bulk/publish", body)
    until(lambda: end(queues) == 24_000, START_S_MAX)  # it may be on its way from another shard
    assert connection.ask("POST", "/v1/bulk/publish", body)["already_done"]
    found = values(queues, place(queues, read_from="auto"))
    assert [offset for offset, _ in found] == list(range(24_000))
    assert [value for _, value in found] == bodies * 4


# -- the reader alone --


def test_a_range_begins_and_ends_within_chunks(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.kafka.SKIPPED_BYTES_MAX", 1 << 40)  # other tests have sent much just before
    queues.create()
    queues.send(1_000, chunk=100)
    before = reads(queues.server)
    assert values(queues, place(queues), 150, 555) == numbered(150, 555)
    assert values(queues, place(queues), 150, 160) == numbered(150, 160)
    assert reads(queues.server) == before


def test_chunks_in_parts_are_put_together(queues: Queues) -> None:
    queues.create()
    queues.send(100_000, chunk=50_000)
    before = reads(queues.server)
    assert values(queues, place(queues)) == numbered(0, 100_000)
    assert reads(queues.server) == before


def test_messages_that_are_done_are_left_out(queues: Queues) -> None:
    queues.create(channels=("main", "other"))
    queues.send(300, chunk=100)
    with contextlib.closing(place(queues)) as at:
        for channel in ("main", "other"):
            at.ack_up_to(channel, {Part(queues.name(), 0): 200})
    assert values(queues, place(queues)) == numbered(200, 300)


def test_what_goes_between_the_question_and_the_reading_is_still_read(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a server's answer that is on its way: a range is what it was when it was asked for."""
    queues.create()
    queues.send(300, chunk=100)
    listed = KafkaPlace._list

    def list_then_finish(at: KafkaPlace, wanted: Range) -> Any:
        found = listed(at, wanted)
        at.ack_up_to("main", {Part(wanted.queue, 0): 300})
        return found

    monkeypatch.setattr(KafkaPlace, "_list", list_then_finish)
    assert values(queues, place(queues), 0, 300) == numbered(0, 300)


def stored_keys(listing: Listing) -> Iterator[bytes]:
    """The chunks that a partition holds now, with their bytes."""
    partition = TopicPartition(listing.topic, listing.partition)
    settings = {"bootstrap.servers": listing.bootstrap, "group.id": unique_prefix(), "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "fetch.wait.max.ms": 10})
    try:
        partition.offset = consumer.get_watermark_offsets(partition, 60)[0]
        consumer.assign([partition])
        while (message := consumer.poll(60)) is not None and message.error() is None:
            if message.value() is not None:
                yield value_key(message.key())
        assert message is not None and message.error().code() == KafkaError._PARTITION_EOF
    finally:
        consumer.close()


def test_chunks_that_kafka_has_cleaned_away_are_looked_for_at_the_server_which_knows_whether_they_are_lost(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.create()
    queues.send(300, chunk=100)
    asked = Range(queues.name(), 0, 300, 0)
    with contextlib.closing(place(queues)) as at:
        listing = at._list(asked)
        assert listing is not None
        gone = {key.packed for key in listing.keys}
        assert len(gone & set(stored_keys(listing))) == 3
        at.ack_up_to("main", {Part(asked.queue, 0): 300})

    def is_cleaned() -> bool:
        queues.send(1, start=300)  # a segment is closed when something comes after it
        return not gone & set(stored_keys(listing))

    until(is_cleaned, 60)
    monkeypatch.setattr(KafkaPlace, "_list", lambda *_: listing)
    before = reads(queues.server)
    assert values(queues, place(queues), 0, 300) == []
    assert reads(queues.server) == before + 1
    options = SourceOptions.parse({"url": queues.url, "subscribe": asked.queue, "readFrom": "kafka"}, streaming=True)
    with pytest.raises(DataLoss, match="messages 0 to 299"):
        list(read_range(options, ("value",), RangePartition(asked)))


def test_a_chunk_that_is_not_found_in_kafka_comes_from_the_server_in_its_place(
    queues: Queues, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A delayed message is in the log before the time in its key, and before everything else here."""
    monkeypatch.setattr(reading, "EARLIER_MS", 0)
    queues.create()
    with contextlib.closing(Connection(Where(url=queues.url))) as connection:
        delayed = encode_section(Target(queues.name(), delay_ms=600_000), Chunk.of(0, 0, [b"0"]))
        connection.fetch("POST", "/v1/bulk/send", b"".join(delayed), {})
    queues.send(300, start=1, chunk=100)
    before = reads(queues.server)
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        assert values(queues, place(queues)) == numbered(0, 301)
    assert reads(queues.server) == before + 1
    assert "1 of 4 chunks" in caplog.text


@pytest.mark.parametrize(
    ("limit", "most"), [("HELD_BYTES_MAX", 1), ("SKIPPED_BYTES_MAX", -(1 << 40)), ("_TURN_MESSAGES", 1)]
)
def test_however_little_is_looked_through_all_messages_come_in_order(
    queues: Queues, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    queues.create()
    for start in range(0, 300, 100):
        queues.send(100, start=start)
        queues.send(100, "other", start=start)
    monkeypatch.setattr(reading, limit, most)
    assert values(queues, place(queues)) == numbered(0, 300)


def test_without_a_way_to_kafka_the_server_is_read_and_kafka_left_alone_for_a_while(
    queues: Queues, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "REACH_S", 0.5)
    monkeypatch.setattr(reading, "_unreachable", {})
    queues.create()
    queues.send(300, chunk=100)
    nowhere = f"127.0.0.1:{free_port()}"
    before = reads(queues.server)
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        assert values(queues, place(queues, kafka_bootstrap=nowhere)) == numbered(0, 300)
        assert f"Kafka at {nowhere} cannot be read" in caplog.text
        assert values(queues, place(queues, kafka_bootstrap=nowhere)) == numbered(0, 300)
        assert f"Kafka at {nowhere} did not answer a moment ago" in caplog.text
    assert reads(queues.server) == before + 2


def test_by_itself_it_reads_much_from_kafka_and_little_from_the_server(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.create()
    queues.send(300, chunk=100)
    before = reads(queues.server)
    assert values(queues, place(queues, "auto")) == numbered(0, 300)
    assert reads(queues.server) == before + 1
    monkeypatch.setattr(reading, "WORTH_BYTES", 500)
    assert values(queues, place(queues, "auto")) == numbered(0, 300)
    assert reads(queues.server) == before + 1


def test_an_executor_without_the_client_says_so_and_by_itself_reads_from_the_server(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.create()
    queues.send(10)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(InvalidOption, match=r"has no confluent-kafka: install penstock-mq\[kafka\] there"):
        values(queues, place(queues))
    assert values(queues, place(queues, "auto")) == numbered(0, 10)


def test_a_property_that_the_client_does_not_know_is_an_error(queues: Queues) -> None:
    queues.create()
    queues.send(10)
    with pytest.raises(InvalidOption, match=r"kafka\.\*.*sasl\.passwort"):
        values(queues, place(queues, kafka_properties=(("sasl.passwort", "x"),)))


def test_a_queue_without_messages_gives_none_and_one_that_is_not_there_is_an_error(queues: Queues) -> None:
    with pytest.raises(ServerFailed, match=r"t[0-9]+-q"):
        values(queues, place(queues), 0, 100)
    queues.create()
    assert values(queues, place(queues), 0, 100) == []


def spread_out(queues: Queues, count: int, start: int = 0) -> None:
    """Send messages with the numbers from `start` on to all partitions of a queue: groups say to which."""
    for number, group in enumerate((b"tea", b"milk", b"sugar", b"lemon", b"honey", b"mint")):
        queues.send(count // 6, start=start + number * (count // 6), groups=group)


def test_each_partition_of_a_queue_is_read_from_its_own_partition_in_kafka(queues: Queues) -> None:
    name = queues.create(partitions=3)
    spread_out(queues, 600)
    before = reads(queues.server)
    found: list[bytes] = []
    partitions = set()
    with contextlib.closing(place(queues)) as at:
        until(lambda: sum(each.end & PARTITION_MASK for each in at.find([name]).values()) == 600)
        for part, each in at.find([name]).items():
            wanted = Range(name, part.partition << PARTITION_SHIFT, each.end, 0)
            listing = at._list(wanted)
            assert listing is not None
            partitions.add(listing.partition)
            batches = list(at.batches(wanted, BASE_COLUMNS))
            assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == list(
                range(wanted.start, wanted.stop)
            )
            found += [value for batch in batches for value in batch["value"].to_pylist()]
    assert sorted(map(int, found)) == list(range(600))
    assert len(partitions) == 3
    assert reads(queues.server) == before, "all of it was found in Kafka"


def test_a_stream_reads_all_partitions_from_kafka_and_commits_across_a_killed_node(queues: Queues, spark: Any) -> None:
    queues.create(partitions=3)
    spread_out(queues, 600)
    before = reads(queues.server)

    def stream() -> Any:
        return queues.stream(readFrom="kafka", channel="spark", maxOffsetsPerTrigger=400)

    queues.run(stream())
    assert queues.output() == list(range(600))
    assert reads(queues.server) == before
    queues.server.kill()
    start(queues.server)
    spread_out(queues, 60, start=600)
    queues.run(stream())
    queues.run(stream())
    assert queues.output() == list(range(660))
    assert reads(queues.server) == 0, "it counts from its start"
    assert queues.channels()["spark"]["acked"] >= 600


def test_a_server_with_another_engine_has_no_kafka_to_read_from(server: Server, tmp_path: Path) -> None:
    embedded = Queues(server, None, tmp_path)
    embedded.create()
    embedded.send(10)
    with pytest.raises(InvalidOption, match="is not Kafka: leave readFrom out"):
        values(embedded, place(embedded))
    assert values(embedded, place(embedded, "auto")) == numbered(0, 10)
