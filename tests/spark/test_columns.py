"""What a query does not ask for is not read: filters, columns. What dead letters have behind them, when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.spark.running import Queues

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.set(PUSHDOWN, "false")


def tasks(frame: Any) -> int:
    """How many ranges a query reads."""
    return int(frame.rdd.getNumPartitions())


@pytest.mark.parametrize("path", [False, True])
def test_a_filter_by_offset_reads_no_other_range(queues: Queues, pushing: None, path: bool) -> None:
    queues.send(10_000)
    frame = queues.reader(path=path, maxRecordsPerPartition="1000")
    assert tasks(frame) == 10
    few = frame.where("offset >= 9990 and offset < 9995")
    assert tasks(few) == 1
    assert queues.numbers(few) == list(range(9_990, 9_995))
    assert queues.numbers(frame.where("offset in (3, 700)")) == [3, 700]
    assert queues.numbers(frame.where("offset > 20000")) == []


def test_filters_by_topic_time_and_key_give_the_same_rows_as_without(queues: Queues, spark: Any) -> None:
    queues.send(1_000, "one", groups=b"a")
    queues.send(1_000, "two", groups=b"b")
    both = f"{queues.name('one')},{queues.name('two')}"
    frame = queues.reader(None, subscribe=both, maxRecordsPerPartition="500")
    middle_us = frame.where("offset = 500").selectExpr("max(unix_micros(timestamp))").collect()[0][0]
    wanted = [
        f"topic = '{queues.name('two')}'",
        "key = cast('a' as binary) and offset < 10",
        f"timestamp >= timestamp_micros({middle_us})",
        "partition = 0 and offset = 5",
        "partition = 1",
        "key is null",
    ]
    plain = [sorted(map(tuple, frame.where(each).select("topic", "offset").collect())) for each in wanted]
    assert tasks(frame.where(wanted[0])) == 4
    spark.conf.set(PUSHDOWN, "true")
    try:
        assert tasks(frame.where(wanted[0])) == 2
        pushed = [sorted(map(tuple, frame.where(each).select("topic", "offset").collect())) for each in wanted]
    finally:
        spark.conf.set(PUSHDOWN, "false")
    assert pushed == plain


@pytest.mark.parametrize("path", [False, True])
def test_a_schema_of_some_columns_reads_these(queues: Queues, spark: Any, path: bool) -> None:
    queues.send(10, groups=b"g")
    where = {"path": queues.data} if path else {"url": queues.url}
    reader = spark.read.format("penstock").options(subscribe=queues.name(), **where)
    rows = reader.schema("offset bigint, key binary, topic string").load().collect()
    assert [(row.offset, bytes(row.key), row.topic) for row in rows] == [(n, b"g", queues.name()) for n in range(10)]
    assert reader.schema("topic string").load().count() == 10
    with pytest.raises(Exception, match="there is no column offset string; there are: key binary"):
        reader.schema("offset string").load().collect()


@pytest.mark.parametrize("path", [False, True])
def test_dead_letters_tell_why_from_where_and_what_happened(queues: Queues, path: bool) -> None:
    name = queues.create(max_receives=2)
    queues.send(3)
    for error in ("no tea", "no cups"):
        taken = queues.rest("POST", f"/v1/queues/{name}/receive", {"max": 10, "wait": 0})["messages"]
        receipts = [message["receipt"] for message in taken if message["body"] == "1" or error == "no tea"]
        queues.rest("POST", f"/v1/queues/{name}/release", {"receipts": receipts, "error": error, "delay": 0})
    queues.send(2, start=3)
    frame = queues.reader(None, path=path, subscribe=f"{name},{name}.dead", includeDeadLetters="true")
    (row,) = frame.where("deadReason is not null").collect()
    assert (row.topic, bytes(row.value), row.deadReason, row.attempts) == (f"{name}.dead", b"1", "no cups", 2)
    assert (row.deadOrigin.queue, row.deadOrigin.channel, row.deadOrigin.offset) == (name, "main", 1)
    assert [(each.attempt, each.error) for each in row.history] == [(1, "no tea"), (2, "no cups")]
    alive = frame.where("history is null and attempts is null and deadOrigin is null")
    assert {3, 4} <= set(queues.numbers(alive))
