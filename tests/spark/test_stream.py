"""Queues as streams: triggers, limits, restarts, growing queues, lost messages."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

from penstock.spark.options import DEFAULT_BYTES_PER_TRIGGER, SourceOptions
from penstock.spark.source import StreamReader
from tests.compat.server import until
from tests.spark.running import PATIENCE_S, Queues


def rows_of(query: Any) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def until_rows(query: Any, count: int) -> None:
    """Wait until a stream has read so many rows; one that ends before says why."""

    def are_there() -> bool:
        assert query.isActive, query.exception()
        return sum(rows_of(query)) == count

    until(are_there, PATIENCE_S)


@pytest.mark.parametrize("path", [False, True], ids=["server", "directory"])
def test_available_now_reads_to_the_end_in_limited_batches(queues: Queues, path: bool) -> None:
    queues.send(2_500)
    query = queues.run(queues.stream(path=path, maxOffsetsPerTrigger="1000"))
    assert rows_of(query) == [1_000, 1_000, 500]
    assert queues.output() == list(range(2_500))


def test_available_now_goes_on_from_the_checkpoint(queues: Queues) -> None:
    queues.send(100)
    queues.run(queues.stream())
    queues.run(queues.stream())
    assert queues.output() == list(range(100))
    queues.send(50, start=100)
    queues.run(queues.stream())
    assert queues.output() == list(range(150))


def test_a_stream_starts_at_the_end_unless_told_otherwise(queues: Queues) -> None:
    queues.send(10)
    query = queues.start(queues.stream(startingOffsets=None), processingTime="0 seconds")
    until(lambda: len(queues.channels()) == 2, PATIENCE_S)
    queues.send(5, start=10)
    until_rows(query, 5)
    query.stop()
    assert queues.output() == list(range(10, 15))


def test_the_default_trigger_follows_a_growing_queue(queues: Queues) -> None:
    queues.create()
    query = queues.start(queues.stream())
    for round_ in range(3):
        queues.send(10, start=10 * round_)
        until_rows(query, 10 * (round_ + 1))
    query.stop()
    assert queues.output() == list(range(30))


def test_trigger_once_reads_all_there_is_in_one_batch(queues: Queues) -> None:
    queues.send(2_500)
    query = queues.run(queues.stream(maxOffsetsPerTrigger="1000"), once=True)
    assert rows_of(query) == [2_500]


@pytest.mark.parametrize(
    ("trigger", "says"),
    [
        ({"continuous": "1 second"}, "Continuous processing does not support|continuous"),
        ({"realTime": "5 seconds"}, r"INPUT_STREAM_NOT_SUPPORTED\].*\.PythonMicroBatchStream\w* is not supported"),
    ],
)
def test_triggers_that_python_sources_cannot_have_are_refused_by_spark(
    queues: Queues, trigger: dict[str, str], says: str
) -> None:
    """With a sink that takes both. When this fails, Spark can do more: see docs/spark.md."""
    queues.create()
    writer = queues.stream().writeStream.format("console").outputMode("update")
    with pytest.raises(Exception, match=says):
        writer.option("checkpointLocation", str(queues.directory / "t")).trigger(**trigger).start().awaitTermination(
            PATIENCE_S
        )


def test_bytes_limit_a_batch(queues: Queues) -> None:
    queues.send(2_000, chunk=100)
    query = queues.run(queues.stream(maxBytesPerTrigger="2000"))
    assert len(rows_of(query)) >= 3
    assert max(rows_of(query)) <= 700
    assert queues.output() == list(range(2_000))


def test_limits_are_shared_out_among_queues(queues: Queues) -> None:
    queues.send(900, "a")
    queues.send(100, "b", start=900)
    options = {"subscribe": f"{queues.name('a')},{queues.name('b')}", "maxOffsetsPerTrigger": "500"}
    query = queues.run(queues.stream(None, **options))
    assert rows_of(query)[0] == 500
    ends = json.loads(query.recentProgress[0].json)["sources"][0]["endOffset"]["queues"]
    assert [ends[queues.name("a")]["0"], ends[queues.name("b")]["0"]] == [450, 50]
    assert queues.output() == list(range(1_000))


def test_a_stream_is_a_channel_whose_lag_shows(queues: Queues) -> None:
    queues.send(100)
    queues.run(queues.stream(channel="reports"))
    assert queues.channels()["reports"]["ready"] == 0
    assert queues.channels()["reports"]["acked"] == 100
    queues.send(30, start=100)
    assert queues.channels()["reports"]["ready"] == 30
    assert queues.channels()["main"]["ready"] == 130


def test_a_stream_leaves_one_channel_named_after_its_prefix(queues: Queues) -> None:
    queues.send(10)
    queues.run(queues.stream(groupIdPrefix="etl"))
    queues.run(queues.stream(groupIdPrefix="etl"))
    assert [name[:4] for name in queues.channels() if name != "main"] == ["etl-"]


def test_what_a_stream_has_not_committed_is_kept(queues: Queues) -> None:
    name = queues.send(100)
    queues.run(queues.stream())
    queues.send(100, start=100)
    queues.rest("POST", "/v1/bulk/ack", {"channel": "main", "offsets": {name: 200}})
    assert len(queues.records()) == 100
    queues.run(queues.stream())
    assert queues.output() == list(range(200))
    assert queues.records() == []


def test_a_checkpoint_belongs_to_its_channel(queues: Queues) -> None:
    queues.send(10)
    queues.run(queues.stream(channel="one"))
    with pytest.raises(Exception, match="the checkpoint is of a stream with the channel 'one'"):
        queues.run(queues.stream(channel="two"))


def test_new_queues_that_match_the_pattern_are_read_from_their_beginning(queues: Queues) -> None:
    queues.send(10, "a")
    frame = queues.stream(None, subscribePattern=f"{queues.prefix}-.*")
    query = queues.start(frame)
    until_rows(query, 10)
    queues.send(10, "b", start=10)
    until_rows(query, 20)
    query.stop()
    assert queues.output() == list(range(20))


@pytest.mark.parametrize("harm", ["purge", "delete", "create again"])
def test_messages_that_are_gone_stop_a_stream_unless_loss_is_fine(queues: Queues, harm: str) -> None:
    name = queues.send(100)
    queues.run(queues.stream())
    queues.send(100, start=100)
    if harm == "purge":
        queues.rest("POST", f"/v1/queues/{name}/purge")
        queues.send(10, start=200)
    else:
        queues.rest("DELETE", f"/v1/queues/{name}")
        if harm == "create again":
            queues.send(300, start=1_000)
    with pytest.raises(Exception, match=r"(gone|created again).*failOnDataLoss"):
        queues.run(queues.stream())
    queues.run(queues.stream(failOnDataLoss="false"))
    expected = list(range(100)) + (list(range(200, 210)) if harm == "purge" else [])
    assert queues.output() == expected


def test_retention_that_takes_messages_stops_a_stream(queues: Queues) -> None:
    name = queues.create(retention_bytes=1_024)
    queues.send(10)
    queues.run(queues.stream())
    queues.send(1_000, start=10, chunk=100)
    first = queues.records()[0]["offset"]
    assert first > 10
    with pytest.raises(Exception, match=f"messages 10 to {first - 1} of queue '{name}' are gone"):
        queues.run(queues.stream())


def test_messages_that_were_gone_before_the_stream_began_are_no_loss(queues: Queues) -> None:
    name = queues.create(channels=("main", "other"))
    queues.send(30, chunk=10)
    queues.rest("POST", "/v1/bulk/ack", {"channel": "main", "offsets": {name: 10}})
    queues.rest("POST", "/v1/bulk/ack", {"channel": "other", "offsets": {name: 10}})
    queues.run(queues.stream(maxOffsetsPerTrigger="7"))
    assert queues.output() == list(range(10, 30))


def test_timestamps_say_where_a_stream_starts(queues: Queues) -> None:
    queues.send(10)
    time.sleep(0.05)
    middle_ms = int(time.time() * 1_000)
    queues.send(10, start=10)
    queues.run(queues.stream(startingOffsets=None, startingTimestamp=middle_ms))
    assert queues.output() == list(range(10, 20))


def test_progress_tells_how_far_behind_the_stream_is(queues: Queues) -> None:
    queues.send(100)
    query = queues.run(queues.stream(maxOffsetsPerTrigger="40"))
    source = json.loads(query.recentProgress[0].json)["sources"][0]
    assert source["endOffset"]["queues"][queues.name()]["0"] == 40
    assert source["latestOffset"]["queues"][queues.name()]["0"] == 100


def test_a_server_that_is_away_for_a_while_does_not_end_a_stream(queues: Queues) -> None:
    queues.send(100)
    query = queues.start(queues.stream())
    until_rows(query, 100)
    queues.server.kill()
    time.sleep(0.5)
    queues.server.start()
    queues.send(50, start=100)
    until_rows(query, 150)
    assert query.isActive
    query.stop()
    assert queues.output() == list(range(150))


def test_progress_tells_server_and_lag_in_messages_and_seconds(queues: Queues) -> None:
    queues.send(30)
    query = queues.run(queues.stream(maxOffsetsPerTrigger=20))
    sources = [json.loads(each.json)["sources"][0] for each in query.recentProgress if each.numInputRows]
    first, last = [each["latestOffset"] for each in sources]
    assert first["server"] == queues.url
    assert first["lag"][queues.name()]["messages"] == 10
    assert 0 < first["lag"][queues.name()]["seconds"] < 300
    assert last["lag"] == {queues.name(): {"messages": 0, "seconds": 0.0}}


def test_a_batch_waits_for_enough_messages_but_not_for_ever(queues: Queues) -> None:
    queues.send(5)
    frame = queues.stream(minOffsetsPerTrigger=10, maxTriggerDelay="2s")
    begun = time.monotonic()
    query = queues.start(frame)
    until(lambda: queues.output() == list(range(5)) if query.recentProgress else False, PATIENCE_S)
    assert time.monotonic() - begun > 2
    queues.send(10, start=5)
    until(lambda: queues.output() == list(range(15)), PATIENCE_S)


def test_a_stream_without_limits_reads_in_batches_of_bounded_bytes(queues: Queues) -> None:
    reader = StreamReader(SourceOptions.parse({"url": queues.url, "subscribe": "q"}, streaming=True), ("value",))
    assert reader.getDefaultReadLimit() == ReadMaxBytes(DEFAULT_BYTES_PER_TRIGGER)


def test_times_by_partition_say_where_a_stream_starts_or_that_nothing_is_there(queues: Queues) -> None:
    queues.send(5)
    time.sleep(0.05)
    now_ms = int(time.time() * 1_000)
    queues.send(5, start=5)
    given = json.dumps({queues.name(): {"0": now_ms}})
    queues.run(queues.stream(startingOffsets=None, startingOffsetsByTimestamp=given))
    assert queues.output() == list(range(5, 10))
    late = json.dumps({queues.name(): {"0": now_ms + 3_600_000}})
    with pytest.raises(Exception, match="nothing was sent to queue"):
        queues.reader(startingOffsetsByTimestamp=late).count()
    assert queues.reader(startingOffsetsByTimestamp=late, startingOffsetsByTimestampStrategy="latest").count() == 0


def test_a_queue_without_main_is_empty_when_the_stream_has_read_it(queues: Queues) -> None:
    queues.create(channels=())
    queues.send(100)
    queues.run(queues.stream())
    queues.run(queues.stream())  # which acknowledges what the first run has done
    assert queues.output() == list(range(100))
    assert queues.records() == []


def test_a_wrong_option_of_a_stream_reaches_the_user(queues: Queues) -> None:
    queues.create()
    for says, options in (
        ("did you mean maxOffsetsPerTrigger", {"maxOffsetPerTrigger": "2"}),
        ("endingOffsets is for a batch", {"endingOffsets": "latest"}),
        ("there is no queue 'nosuch'", {"subscribe": "nosuch"}),
        ("which ends at 0", {"startingOffsets": f'{{"{queues.name()}": {{"0": 7}}}}'}),
    ):
        with pytest.raises(Exception, match=says) as told:
            queues.run(queues.stream(**options))
        assert "Traceback" not in str(told.value)
