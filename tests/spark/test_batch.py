"""Queues as tables: from a server, and from a data directory."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.spark.running import Queues


@pytest.mark.parametrize("path", [False, True], ids=["server", "directory"])
def test_a_queue_is_a_table_with_the_columns_of_the_kafka_connector(queues: Queues, path: bool) -> None:
    before = time.time()
    name = queues.send(3, groups=b"g")
    frame = queues.reader(path=path)
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    rows = frame.orderBy("offset").collect()
    assert [(bytes(row.key), bytes(row.value), row.topic, row.partition, row.offset) for row in rows] == [
        (b"g", b"%d" % number, name, 0, number) for number in range(3)
    ]
    assert before - 5 <= rows[0].timestamp.timestamp() <= time.time() + 5


@pytest.mark.parametrize("path", [False, True], ids=["server", "directory"])
def test_everything_is_read_once_however_it_is_cut(queues: Queues, path: bool) -> None:
    queues.send(2_500, chunk=700)
    for min_partitions in (None, "1", "7"):
        frame = queues.reader(path=path, minPartitions=min_partitions)
        assert frame.rdd.getNumPartitions() == int(min_partitions or 1)
        assert queues.numbers(frame) == list(range(2_500))


@pytest.mark.parametrize("path", [False, True], ids=["server", "directory"])
def test_a_large_queue_is_read_to_its_end(queues: Queues, path: bool) -> None:
    queues.send(230_000, chunk=4_000)
    frame = queues.reader(path=path, minPartitions="1").selectExpr(
        "count(*) as rows", "sum(cast(cast(value as string) as bigint)) as total"
    )
    (row,) = frame.collect()
    assert (row.rows, row.total) == (230_000, sum(range(230_000)))


@pytest.mark.parametrize("path", [False, True], ids=["server", "directory"])
def test_many_small_chunks_come_as_few_batches(queues: Queues, path: bool) -> None:
    queues.send(300, chunk=1)
    assert queues.numbers(queues.reader(path=path)) == list(range(300))


@pytest.mark.parametrize("path", [False, True], ids=["server", "directory"])
def test_headers_come_when_asked_for(queues: Queues, path: bool) -> None:
    from penstock.core.queues.attributes import encode_attributes

    queues.send(1, attributes=encode_attributes({"kind": "order", "size": 3}))
    queues.send(1, start=1)
    frame = queues.reader(path=path, includeHeaders="true")
    assert frame.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    first, second = frame.orderBy("offset").collect()
    assert [(header.key, bytes(header.value)) for header in first.headers] == [("kind", b"order"), ("size", b"3")]
    assert second.headers is None


def test_offsets_and_timestamps_bound_what_is_read(queues: Queues) -> None:
    name = queues.send(100)
    time.sleep(0.05)
    middle_ms = int(time.time() * 1_000)
    time.sleep(0.05)
    queues.send(100, start=100)

    def read(**options: Any) -> list[int]:
        return queues.numbers(queues.reader(**options))

    assert read(startingOffsets=f'{{"{name}": {{"0": 150}}}}') == list(range(150, 200))
    assert read(endingOffsets=f'{{"{name}": {{"0": 50}}}}') == list(range(50))
    assert read(startingOffsets=f'{{"{name}": {{"0": -2}}}}', endingOffsets=f'{{"{name}": {{"0": -1}}}}') == list(
        range(200)
    )
    assert read(startingTimestamp=middle_ms) == list(range(100, 200))
    assert read(endingTimestamp=middle_ms) == list(range(100))
    assert read(startingTimestamp=middle_ms, endingTimestamp=middle_ms) == []


def test_several_queues_by_list_by_pattern_and_by_assignment(queues: Queues) -> None:
    one, two = queues.send(5, "one"), queues.send(5, "two", start=5)
    queues.send(5, "other", start=10)
    for options in (
        {"subscribe": f"{one}, {two}"},
        {"subscribePattern": f"{queues.prefix}-(one|two)"},
        {"assign": f'{{"{one}": [0], "{two}": [0]}}'},
    ):
        frame = queues.reader(None, **options)
        assert queues.numbers(frame) == list(range(10)), options
        assert {row.topic for row in frame.collect()} == {one, two}
    assert queues.numbers(queues.reader(None, subscribePattern="nothing-.*")) == []


def test_an_empty_queue_is_an_empty_table(queues: Queues) -> None:
    queues.create()
    assert queues.reader().count() == 0
    assert queues.reader(path=True).count() == 0


def test_a_queue_that_is_not_there_is_an_error(queues: Queues) -> None:
    with pytest.raises(Exception, match=r"there is no queue 't[0-9]+-q'"):
        queues.reader().count()


def test_a_wrong_option_reaches_the_user(queues: Queues) -> None:
    with pytest.raises(Exception, match="did you mean minPartitions") as told:
        queues.reader(minPartition="2").count()
    assert "Traceback" not in str(told.value)
    directory = queues.spark.read.format("penstock").option("subscribe", "q").load
    for says, frame in (
        ("there is no queue", queues.reader()),
        ("http://127.0.0.1:9 cannot be reached", queues.reader(url="http://127.0.0.1:9", timeout="1")),
        ("/nowhere holds no store", directory("/nowhere")),
        ("'s3a://bucket/data': it must be a data directory", directory("s3a://bucket/data")),
    ):
        with pytest.raises(Exception, match=says) as told:
            frame.count()
        assert "Traceback" not in str(told.value)


def test_a_batch_takes_nothing(queues: Queues) -> None:
    queues.send(10)
    queues.reader().count()
    assert list(queues.channels()) == ["main"]
    assert queues.channels()["main"]["ready"] == 10


def test_what_is_done_and_gone_is_left_out(queues: Queues) -> None:
    name = queues.send(10, chunk=5)
    queues.rest("POST", "/v1/bulk/ack", {"channel": "main", "offsets": {name: 5}})
    assert queues.numbers(queues.reader()) == list(range(5, 10))


def test_an_offset_whose_message_is_gone_is_an_error_unless_loss_is_fine(queues: Queues) -> None:
    name = queues.send(10, chunk=5)
    queues.rest("POST", "/v1/bulk/ack", {"channel": "main", "offsets": {name: 5}})
    wanted = f'{{"{name}": {{"0": 2}}}}'
    with pytest.raises(Exception, match=r"whose first message is now 5.*failOnDataLoss"):
        queues.reader(startingOffsets=wanted).count()
    assert queues.numbers(queues.reader(startingOffsets=wanted, failOnDataLoss="false")) == list(range(5, 10))


def test_consume_acknowledges_exactly_what_was_read(queues: Queues) -> None:
    queues.create()
    queues.send(3_000, chunk=500)
    frame = queues.reader(consume="true", minPartitions="3")
    assert queues.numbers(frame) == list(range(3_000))
    assert queues.channels()["main"]["acked"] == 3_000
    queues.send(10, start=3_000)
    assert queues.numbers(queues.reader(consume="true")) == list(range(3_000, 3_010))
    assert queues.numbers(queues.reader(consume="true")) == []


def test_consume_leaves_what_others_hold_and_gives_back_what_was_not_read_to_the_end(queues: Queues) -> None:
    name = queues.create()
    queues.send(10, chunk=10)
    queues.rest("POST", f"/v1/queues/{name}/receive", {"max": 4})
    assert queues.numbers(queues.reader(consume="true")) == list(range(4, 10))
    queues.send(10, start=10)
    broken = queues.reader(consume="true").selectExpr("assert_true(value is null)")
    with pytest.raises(Exception, match="is not true"):
        broken.collect()
    assert queues.channels()["main"]["leased"] in (4, 14), "given back, or to be when the lease is over"


def test_a_query_in_sql_reads_a_queue(queues: Queues) -> None:
    name = queues.send(10)
    queues.spark.sql(
        f"create temporary view {queues.prefix}_view using penstock options (url '{queues.url}', subscribe '{name}')"
    )
    (row,) = queues.spark.sql(f"select count(*) as n from {queues.prefix}_view where offset >= 5").collect()
    assert row.n == 5
