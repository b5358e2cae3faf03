"""Tables and streams as messages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.running import PATIENCE_S, Queues


def write(queues: Queues, frame: Any, mode: str = "append", **options: Any) -> None:
    frame.write.format("penstock").option("url", queues.url).options(**options).mode(mode).save()


def numbers(queues: Queues, count: int, partitions: int = 2) -> Any:
    return queues.spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as value")


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_rows_become_messages(queues: Queues, delivery: str) -> None:
    write(queues, numbers(queues, 20_000, 3), topic=queues.name(), delivery=delivery)
    assert sorted(int(record["body"]) for record in queues.records()) == list(range(20_000))


def test_columns_say_group_priority_delay_dedup_id_and_headers(queues: Queues) -> None:
    name = queues.name()
    frame = queues.spark.sql(
        f"select 'body' as value, '{name}' as topic, 'g1' as key, 3 as priority, 60.5 as delay, 'd1' as dedupId, "
        "array(named_struct('key', 'kind', 'value', cast('order' as binary))) as headers"
    )
    write(queues, frame)
    write(queues, frame)
    (row,) = queues.reader(includeHeaders="true").collect()
    assert (bytes(row.key), bytes(row.value)) == (b"g1", b"body")
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("kind", b"order")]
    assert queues.channels()["main"]["delayed"] == 1


def test_fifo_queues_take_rows_with_groups_and_dedup_ids(queues: Queues) -> None:
    name = queues.create(kind="fifo")
    frame = queues.spark.range(10).selectExpr(
        "cast(id as string) as value", "'g' as key", "cast(id % 5 as string) as dedupId"
    )
    write(queues, frame.coalesce(1), topic=name)
    assert [record["body"] for record in queues.records()] == ["0", "1", "2", "3", "4"]


def test_a_row_that_cannot_be_sent_is_named_and_nothing_is_sent(queues: Queues) -> None:
    queues.create()
    frame = numbers(queues, 100, 2).selectExpr("case when value = '77' then null else value end as value")
    with pytest.raises(Exception, match="partition 1, row 27, column value: it is null") as told:
        write(queues, frame, topic=queues.name())
    assert "Traceback" not in str(told.value)
    assert queues.records() == []


def test_what_the_queue_refuses_names_the_rows(queues: Queues) -> None:
    name = queues.create(message_bytes_max=1_024)
    frame = queues.spark.sql("select repeat('x', 2000) as value")
    with pytest.raises(Exception, match="partition 0, rows 0 to 0: message 0 has 2000 bytes"):
        write(queues, frame, topic=name)


def test_overwrite_is_refused(queues: Queues) -> None:
    with pytest.raises(Exception, match="mode append"):
        write(queues, numbers(queues, 1), mode="overwrite", topic=queues.name())


def test_unknown_columns_are_refused(queues: Queues) -> None:
    with pytest.raises(Exception, match="a message has no column id"):
        write(queues, queues.spark.range(1).selectExpr("id", "'x' as value"), topic=queues.name())


def test_a_write_of_nothing_is_fine(queues: Queues) -> None:
    queues.create()
    write(queues, numbers(queues, 10).where("value = 'x'"), topic=queues.name())
    assert queues.records() == []


def test_nothing_staged_is_left_behind(queues: Queues) -> None:
    queues.wait_for_tasks()  # those of a write that was given up may stage something yet
    staged = queues.server.data / "staging"
    before = set(staged.iterdir()) if staged.exists() else set()
    write(queues, numbers(queues, 100), topic=queues.name())
    # one task, which has staged pieces when it fails: another one might stage its own after the driver has given up
    rows = queues.spark.range(0, 400, 1, 1)
    bad = rows.selectExpr("case when id = 399 then null else repeat('x', 100000) end as value")
    with pytest.raises(Exception, match="it is null"):
        write(queues, bad, topic=queues.name())
    left = set(staged.iterdir()) - before
    assert [path for path in left if path.name.startswith("write-") and any(path.iterdir())] == []


def test_a_stream_goes_from_queue_to_queue_once(queues: Queues) -> None:
    queues.send(5_000)
    frame = queues.stream(maxOffsetsPerTrigger="1500").selectExpr("value", f"'{queues.name('out')}' as topic")

    def run() -> Any:
        writer = frame.writeStream.format("penstock").option("url", queues.url)
        query = writer.option("checkpointLocation", str(queues.directory / "cp")).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)
        return query

    query = run()
    assert [progress.numInputRows for progress in query.recentProgress] == [1_500, 1_500, 1_500, 500]
    queues.send(10, start=5_000)
    run()
    assert sorted(int(record["body"]) for record in queues.records("out")) == list(range(5_010))


def test_a_batch_that_is_done_again_is_not_sent_again(queues: Queues) -> None:
    """As after a crash between the sink's commit and Spark's own: the commit log's last entry is gone."""
    queues.send(100)
    frame = queues.stream().selectExpr("value", f"'{queues.name('out')}' as topic")
    checkpoint = queues.directory / "cp"

    def run() -> None:
        writer = frame.writeStream.format("penstock").option("url", queues.url)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)

    run()
    for file in (checkpoint / "commits").iterdir():
        if file.name in ("0", ".0.crc"):
            file.unlink()
    queues.rest("POST", "/v1/bulk/channels", {"queue": queues.name(), "channel": "holds", "offset": 0})
    run()
    assert sorted(int(record["body"]) for record in queues.records("out")) == list(range(100))


def test_a_write_with_a_transaction_is_done_once(queues: Queues) -> None:
    queues.create()
    for version in (0, 0, 1, 1, 0):
        write(queues, numbers(queues, 10), topic=queues.name(), txnAppId="job", txnVersion=version)
    assert len(queues.records()) == 20


def test_foreach_batch_with_a_transaction_writes_once_on_repeat(queues: Queues) -> None:
    queues.send(100)

    def twice(batch: Any, number: int) -> None:
        for _ in range(2):
            write(queues, batch.select("value"), topic=queues.name("out"), txnAppId=queues.prefix, txnVersion=number)

    stream = queues.stream(maxOffsetsPerTrigger="50")
    query = stream.writeStream.foreachBatch(twice).option("checkpointLocation", str(queues.directory / "c"))
    assert query.trigger(availableNow=True).start().awaitTermination(PATIENCE_S)
    assert sorted(int(record["body"]) for record in queues.records("out")) == list(range(100))


def test_a_stream_takes_no_transaction(queues: Queues) -> None:
    queues.send(1)
    writer = queues.stream().select("value").writeStream.format("penstock").option("url", queues.url)
    writer = writer.options(topic=queues.name("out"), txnAppId="job", txnVersion="1")
    with pytest.raises(Exception, match="a stream has an id"):
        writer.option("checkpointLocation", str(queues.directory / "c")).start().processAllAvailable()
