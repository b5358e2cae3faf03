"""Queues with several partitions as tables and streams, and as targets: on a server with several processes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.commands import Offsets
from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.core.storage.chunk import Chunk
from penstock.pipelines.checkpoints import status_of
from penstock.pipelines.ready.archives import compact_iceberg, read_archive
from penstock.pipelines.ready.replay import replay
from penstock.pipelines.sql import frame_of, rows_of
from penstock.pipelines.where import Where as PipelinesWhere
from penstock.spark.errors import InvalidOption, ServerFailed
from penstock.spark.offsets import StreamOffset
from penstock.spark.options import Where
from penstock.spark.place import Part
from penstock.spark.server import Connection, ServerPlace, _check_partitions
from penstock.wire.pieces import Target, encode_section
from tests.compat.server import Server, serving, until
from tests.pipelines.ready.running import archive
from tests.pipelines.running import Bench
from tests.spark.running import PATIENCE_S, Queues

PARTITIONS = 3
GROUPS = 7


class WideQueues(Queues):
    """Queues with several partitions, which all get messages."""

    def create(self, short: str = "q", channels: tuple[str, ...] = ("main",), **settings: Any) -> str:
        return super().create(short, channels, **{"partitions": PARTITIONS} | settings)

    def send(self, count: int, short: str = "q", start: int = 0, chunk: int = 1_000, **columns: Any) -> str:
        """As ever, with groups: they say which partition a message is in."""
        name = self.name(short)
        with contextlib.closing(Connection(Where(url=self.url))) as connection:
            for low in range(start, start + count, chunk):
                numbers = range(low, min(low + chunk, start + count))
                groups = [b"g%d" % (number % GROUPS) for number in numbers]
                made = Chunk.of(0, 0, [b"%d" % number for number in numbers], groups=groups, **columns)
                connection.fetch("POST", "/v1/bulk/send", b"".join(encode_section(Target(name), made)), {})
        until(lambda: self.sent(short) == start + count)  # what belongs to other processes gets there a little later
        return name

    def sent(self, short: str = "q") -> int:
        """How many messages the partitions have got since there is the queue."""
        return sum(at.end - (part.partition << PARTITION_SHIFT) for part, at in self.ends(short).items())

    def ends(self, short: str = "q") -> dict[Part, Any]:
        with contextlib.closing(ServerPlace(Where(url=self.url))) as place:
            return dict(place.find([self.name(short)]))

    def named(self, short: str = "q", **changed: int) -> str:
        """An option with an offset for each partition: the beginning, unless told otherwise (`p1=...`)."""
        offsets = {str(number): changed.get(f"p{number}", -2) for number in range(PARTITIONS)}
        return json.dumps({self.name(short): offsets})


@pytest.fixture(scope="module")
def wide_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("wide"), shards=PARTITIONS) as running:
        yield running


@pytest.fixture
def wide(wide_server: Server, spark: Any, tmp_path: Path) -> WideQueues:
    return WideQueues(wide_server, spark, tmp_path)


def rows_read(query: Any) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


# -- tables --


def test_a_table_has_the_messages_of_all_partitions_and_says_where_each_is(wide: WideQueues) -> None:
    wide.create()
    wide.send(3_000)
    for min_partitions in (None, "7"):
        rows = wide.reader(minPartitions=min_partitions).collect()
        assert sorted(int(bytes(row.value)) for row in rows) == list(range(3_000))
        assert {row.partition for row in rows} == set(range(PARTITIONS))
        assert all(row.offset >> PARTITION_SHIFT == row.partition for row in rows)
        assert len({row.offset for row in rows}) == 3_000


def test_offsets_of_each_partition_bound_what_is_read(wide: WideQueues) -> None:
    wide.create()
    wide.send(700)
    rows = wide.reader().collect()
    first = (1 << PARTITION_SHIFT) + 20

    def read(**options: Any) -> set[int]:
        return {row.offset for row in wide.reader(**options).collect()}

    later = {row.offset for row in rows if row.partition != 1 or row.offset >= first}
    assert read(startingOffsets=wide.named(p1=first)) == later
    ends = wide.named(p0=10, p1=first, p2=-1)
    assert read(endingOffsets=ends) == {
        row.offset for row in rows if (row.partition, row.offset) < (0, 10) or row.partition == 2
    } | {row.offset for row in rows if row.partition == 1 and row.offset < first}
    assert read(subscribe=None, assign=json.dumps({wide.name(): [2, 0]})) == {
        row.offset for row in rows if row.partition != 1
    }


def test_times_bound_what_is_read_of_each_partition(wide: WideQueues) -> None:
    wide.create()
    wide.send(100)
    last_ms = max(row.timestamp.timestamp() for row in wide.reader().collect()) * 1_000
    until(lambda: time.time() * 1_000 > last_ms + 1)
    middle_ms = int(time.time() * 1_000)
    wide.send(100, start=100)
    assert wide.numbers(wide.reader(startingTimestamp=middle_ms)) == list(range(100, 200))
    assert wide.numbers(wide.reader(endingTimestamp=middle_ms)) == list(range(100))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffsets": '{"{q}": {"0": 1}}'}, r"and \[0, 1, 2\] are read: name each of them"),
        ({"endingOffsets": '{"{q}": {"0": -1, "1": -1, "2": -1, "3": -1}}'}, "name each of them"),
        ({"subscribe": None, "assign": '{"{q}": [0, 3]}'}, "the partition 3, which does not exist"),
        ({"subscribe": None, "assign": '{"{q}": [0]}', "consume": "true"}, "some of its 3 partitions"),
        ({"startingOffsets": '{"{q}": {"0": 9, "1": -2, "2": -2}}'}, "which ends at 0"),
    ],
)
def test_offsets_of_partitions_that_are_not_there_are_an_error(
    wide: WideQueues, options: dict[str, Any], says: str
) -> None:
    name = wide.create()
    given = {key: value and value.replace("{q}", name) for key, value in options.items()}
    with pytest.raises(Exception, match=says):
        wide.reader(**given).count()


def test_consume_takes_and_acknowledges_in_all_partitions(wide: WideQueues) -> None:
    wide.create()
    wide.send(3_000, chunk=500)
    rows = wide.reader(consume="true", minPartitions="4").collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(3_000))
    assert all(row.offset >> PARTITION_SHIFT == row.partition for row in rows)
    channel = wide.channels()["main"]
    assert (channel["acked"], channel["ready"], channel["leased"]) == (3_000, 0, 0)
    assert wide.numbers(wide.reader(consume="true")) == []


def test_sql_reads_all_partitions(wide: WideQueues) -> None:
    name = wide.create()
    wide.send(100)
    sql = f"select count(*) as n, count(distinct partition) as p from queue('{name}')"
    assert list(rows_of(frame_of(wide.spark, sql, PipelinesWhere(wide.url)))) == [{"n": 100, "p": PARTITIONS}]


def test_the_directory_of_one_partition_is_refused_and_not_read_in_part(wide: WideQueues) -> None:
    from penstock.spark.directory import DirectoryPlace

    name = wide.create()
    place = DirectoryPlace(str(wide.server.data / "shard-0"))
    with contextlib.closing(place), pytest.raises(InvalidOption, match=r"has 3 partitions.*holds one of them"):
        place.find([name])


# -- streams --


def test_a_stream_goes_through_all_partitions_in_limited_batches_and_on_from_its_checkpoint(wide: WideQueues) -> None:
    name = wide.create()
    wide.send(2_500)

    def run() -> Any:
        return wide.run(wide.stream(maxOffsetsPerTrigger="1000", channel="reports"))

    query = run()
    assert max(rows_read(query)) <= 1_000 and len(rows_read(query)) >= 3
    assert wide.output() == list(range(2_500))
    source = json.loads(query.recentProgress[-1].json)["sources"][0]
    position = source["endOffset"]["queues"][name]
    assert [position[str(part.partition)] for part in wide.ends()] == [at.end for at in wide.ends().values()]
    wide.send(500, start=2_500)
    run()
    run()
    assert wide.output() == list(range(3_000))


def test_a_streams_channel_starts_at_its_offsets_and_shows_its_lag(wide: WideQueues) -> None:
    wide.create()
    wide.send(700)
    query = wide.start(wide.stream(startingOffsets="latest", channel="reports"), processingTime="0 seconds")
    until(lambda: "reports" in wide.channels(), PATIENCE_S)
    assert wide.channels()["reports"]["ready"] == 0
    wide.send(70, start=700)
    until(lambda: wide.channels()["reports"]["acked"] == 70, PATIENCE_S)
    query.stop()
    assert wide.output() == list(range(700, 770))
    wide.send(30, start=770)
    assert wide.channels()["reports"]["ready"] == 30
    assert wide.channels()["main"]["ready"] == 800


def test_what_a_stream_has_not_committed_is_kept_in_all_partitions(wide: WideQueues) -> None:
    name = wide.create()
    wide.send(100)
    wide.run(wide.stream())
    wide.send(100, start=100)
    ends = [at.end for at in wide.ends().values()]
    acked = wide.rest("POST", "/v1/bulk/ack", {"channel": "main", "offsets": {name: ends}})
    assert acked == {"acked": {name: 200}}
    assert wide.reader().count() == 100
    wide.run(wide.stream())
    assert wide.output() == list(range(200))
    assert wide.reader().count() == 0


def test_bytes_limit_a_batch_of_all_partitions(wide: WideQueues) -> None:
    wide.create()
    wide.send(2_100, chunk=70)
    query = wide.run(wide.stream(maxBytesPerTrigger="2000"))
    assert len(rows_read(query)) >= 3
    assert max(rows_read(query)) <= 700
    assert wide.output() == list(range(2_100))


def test_a_new_queue_with_partitions_is_read_from_its_beginning(wide: WideQueues) -> None:
    wide.create("a", partitions=1)
    wide.send(10, "a")
    query = wide.start(wide.stream(None, subscribePattern=f"{wide.prefix}-.*"))
    until(lambda: sum(rows_read(query)) == 10, PATIENCE_S)
    wide.create("b")
    wide.send(70, "b")
    until(lambda: sum(rows_read(query)) == 80, PATIENCE_S)
    query.stop()
    assert wide.output() == sorted([*range(10), *range(70)])


@pytest.mark.parametrize("harm", ["purge", "create again"])
def test_messages_that_are_gone_of_any_partition_stop_a_stream_unless_loss_is_fine(wide: WideQueues, harm: str) -> None:
    name = wide.create()
    wide.send(100)
    wide.run(wide.stream())
    wide.send(100, start=100)
    if harm == "purge":
        wide.rest("POST", f"/v1/queues/{name}/purge")
        wide.send(10, start=200)
    else:
        wide.rest("DELETE", f"/v1/queues/{name}")
        wide.create(partitions=2)
        wide.send(10)
    with pytest.raises(Exception, match=r"(gone|created again).*failOnDataLoss"):
        wide.run(wide.stream())
    wide.run(wide.stream(failOnDataLoss="false"))
    assert wide.output() == [*range(100), *(range(200, 210) if harm == "purge" else ())]


def test_a_stream_of_some_partitions_is_refused(wide: WideQueues) -> None:
    name = wide.create()
    with pytest.raises(Exception, match="some of its 3 partitions: a stream"):
        wide.run(wide.stream(None, assign=json.dumps({name: [0, 1]})))


def test_a_checkpoint_of_a_queue_with_one_partition_is_what_it_was_before_there_were_several() -> None:
    old = {"channel": "spark-1", "queues": {"orders": {"0": 120, "id": 7, "kept": 80}}}
    at = StreamOffset.decode(old)
    assert at.offsets() == {Part("orders", 0): 120}
    assert at.encode() == old
    moved = {"channel": "spark-1", "queues": {"orders": {"0": 130, "id": 7, "kept": 80}}}
    assert at.moved({Part("orders", 0): 130}).encode() == moved


# -- targets --


@pytest.mark.parametrize("key", [None, "key"])
def test_a_batch_that_is_done_again_is_not_sent_again_to_any_partition(wide: WideQueues, key: str | None) -> None:
    """As after a crash between the sink's commit and Spark's own: the commit log's last entry is gone."""
    wide.create()
    wide.create("out")
    wide.send(700)
    columns = ["value", f"'{wide.name('out')}' as topic", *([] if key is None else [key])]
    checkpoint = wide.directory / "cp"

    def run() -> None:
        writer = wide.stream().selectExpr(*columns).writeStream.format("penstock").option("url", wide.url)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)

    wide.rest("POST", "/v1/bulk/channels", {"queue": wide.name(), "channel": "holds", "offset": 0})
    run()
    for file in (checkpoint / "commits").iterdir():
        if file.name in ("0", ".0.crc"):
            file.unlink()
    run()
    wide.send(7, start=700)
    run()
    until(lambda: wide.sent("out") >= 707)
    assert wide.numbers(wide.reader("out")) == list(range(707))


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_table_becomes_messages_of_a_queue_with_partitions(wide: WideQueues, delivery: str) -> None:
    name = wide.create()
    frame = wide.spark.range(0, 7_000, 1, 3).selectExpr("cast(id as string) as value", "concat('g', id % 7) as key")
    frame.write.format("penstock").options(url=wide.url, topic=name, delivery=delivery).mode("append").save()
    until(lambda: wide.sent() >= 7_000)
    rows = wide.reader().collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(7_000))
    places: dict[bytes, set[int]] = {}
    for row in rows:
        places.setdefault(bytes(row.key), set()).add(row.partition)
    assert all(len(found) == 1 for found in places.values()), "a group has one partition"


def test_an_archive_of_all_partitions_can_be_replayed(wide: WideQueues) -> None:
    name = wide.create()
    wide.send(700)
    path = wide.directory / "archive"
    where = PipelinesWhere(wide.url)
    assert archive(wide.spark, where, path, [name], batch=300).rows == 700
    assert archive(wide.spark, where, path, [name]).rows == 0
    values = [int(bytes(row.value)) for row in read_archive(wide.spark, path).collect()]
    assert sorted(values) == list(range(700))
    wide.create("again")
    assert replay(wide.spark, where, wide.name("again"), archive=path, state=wide.directory / "replay.json").sent == 700
    until(lambda: wide.sent("again") >= 700)
    assert wide.numbers(wide.reader("again")) == list(range(700))


def test_files_of_an_iceberg_archive_are_joined_unless_larger_ones_lie_among_them(wide: WideQueues) -> None:
    name = wide.create()
    wide.send(900, chunk=100)
    path, where = wide.directory / "archive", PipelinesWhere(wide.url)
    archive(wide.spark, where, path, [name], format="iceberg", batch=100, join=False)
    assert compact_iceberg(path) >= 8
    wide.send(90, start=900)
    done = archive(wide.spark, where, path, [name], format="iceberg", batch=45, join=False)
    assert done.rows == 90 and done.batches > 1
    files = [Path(file.removeprefix("file://")) for file in read_archive(wide.spark, path).inputFiles()]
    large = max(file.stat().st_size for file in files)
    assert compact_iceberg(path, small_bytes=large, small_files=1) == 0
    assert compact_iceberg(path, small_files=2) == done.batches + 1
    values = sorted(int(bytes(row.value)) for row in read_archive(wide.spark, path).collect())
    assert values == list(range(990))


def test_a_pipelines_lag_is_that_of_all_partitions(wide: WideQueues) -> None:
    wide.create()
    wide.send(70)
    text = 'name: copy\nsource: {queue: "{q}-q"}\nsinks:\n  - {name: files, from: source, parquet: out}\n'
    bench = Bench(wide, text)
    assert bench.run().state == "done"
    wide.send(14, start=70)
    found = status_of(bench.pipeline, bench.state, PipelinesWhere(url=wide.url))
    assert [query["lag"] for query in found["queries"]] == [14]


# -- the endpoints --


def test_offsets_are_told_of_all_partitions_or_of_those_that_are_asked_for(wide: WideQueues) -> None:
    name = wide.create()
    wide.send(70)
    ask = {"queues": [name], "after": {name: [2 << PARTITION_SHIFT, 0]}, "bytes_max": {name: 1}}
    found = wide.rest("POST", "/v1/bulk/offsets", {"queues": [name]})["offsets"]
    assert [each["end"] >> PARTITION_SHIFT for each in found] == [0, 1, 2]
    some = wide.rest("POST", "/v1/bulk/offsets", ask)["offsets"]
    assert [each["end"] for each in some] == [found[2]["end"], found[0]["end"]]


def test_a_server_that_tells_of_one_partition_only_is_not_believed() -> None:
    found = {Part("q", 0): Offsets("q", 7, 0, 10, [], 10, partitions=2)}
    with pytest.raises(ServerFailed, match="has 2 partitions, and the server tells of some only"):
        _check_partitions(found)


@pytest.mark.parametrize(
    "offsets", [[0, 1 << PARTITION_SHIFT], [0, 0, 2 << PARTITION_SHIFT], [5 << PARTITION_SHIFT, 0, 1], []]
)
def test_a_channel_needs_an_offset_in_each_partition(wide: WideQueues, offsets: list[int]) -> None:
    name = wide.create()
    with contextlib.closing(Connection(Where(url=wide.url))) as connection:
        with pytest.raises(ServerFailed) as failed:
            connection.ask("POST", "/v1/bulk/channels", {"queue": name, "channel": "c", "offset": offsets})
        assert failed.value.status == 400
    assert list(wide.channels()) == ["main"]
