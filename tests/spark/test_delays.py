"""A stream reads a message that was sent with a delay when it is due, once, and holds up nothing else for it.

What Spark's engine asks of the reader is asked here by hand, so that every batch is one that the test has chosen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from penstock.core.commands import NOT_DUE_MAX
from penstock.core.storage.chunk import Chunk
from penstock.spark import directory
from penstock.spark.options import SourceOptions, Where
from penstock.spark.server import Connection, ServerPlace
from penstock.spark.source import KAFKA_COLUMNS, BatchReader, StreamReader
from penstock.wire.pieces import Target, encode_section
from tests.client.node import ThreadedNode
from tests.clock import ManualClock

ALL = ReadAllAvailable()


class World:
    """A server, and what the engine would log."""

    def __init__(self, home: Path) -> None:
        self.clock = ManualClock()
        self.node = ThreadedNode(home / "data", clock=self.clock)
        self.where = Where(url=f"http://127.0.0.1:{self.node.port}")
        self.directory = home / "data"
        self.log: list[dict[str, Any]] = []

    def send(self, *bodies: bytes, delay_s: float | None = None, queue: str = "q") -> None:
        delay_ms = None if delay_s is None else round(delay_s * 1_000)
        section = encode_section(Target(queue, delay_ms=delay_ms), Chunk.of(0, 0, list(bodies)))
        with contextlib.closing(Connection(self.where)) as connection:
            connection.fetch("POST", "/v1/bulk/send", b"".join(section), {})

    def reader(self, *, path: bool = False, **options: str) -> StreamReader:
        where = {"path": str(self.directory)} if path else {"url": self.where.url or ""}
        given = {**where, "subscribe": "q", "startingOffsets": "earliest", **options}
        return StreamReader(SourceOptions.parse(given, streaming=True), tuple(KAFKA_COLUMNS))

    def batch(self, reader: StreamReader, limit: ReadLimit = ALL) -> list[bytes]:
        """The next batch, in the order of its numbers. It is planned twice, as after a crash, and is the same."""
        if not self.log:
            self.log.append(reader.initialOffset())
        start = self.log[-1]
        end = reader.latestOffset(start, limit)
        if end == start:
            return []
        self.log.append(end)
        assert read(reader, start, end) == read(reader, start, end)
        return read(reader, start, end)

    def ready(self, channel: str) -> int:
        with contextlib.closing(Connection(self.where)) as connection:
            found = connection.ask("GET", "/v1/queues/q/channels")["channels"]
        return sum(each["ready"] + each["delayed"] for each in found if each["name"] == channel)


def read(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    rows = [
        row
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    return [bytes(row["value"]) for row in sorted(rows, key=lambda row: row["offset"])]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(directory, "time", SimpleNamespace(time=lambda: made.clock.now_ms() / 1_000))
    yield made
    made.node.stop()


@pytest.mark.parametrize("path", [False, True])
def test_a_delayed_message_comes_when_it_is_due_and_holds_up_nothing(world: World, path: bool) -> None:
    world.send(b"now")
    world.send(b"soon", b"soon too", delay_s=1.5)
    world.send(b"in an hour", delay_s=3_600)
    world.send(b"after")
    reader = world.reader(path=path)
    assert world.batch(reader) == [b"now", b"after"]
    assert world.batch(reader) == []
    world.send(b"later")
    assert world.batch(reader) == [b"later"]
    world.clock.advance_ms(1_600)
    again = world.reader(path=path)  # the stream was started again, from its checkpoint
    assert world.batch(again) == [b"soon", b"soon too"]
    assert world.batch(again) == []
    assert world.log[-1]["queues"]["q"]["delayed"] == [[3, 4]]


def test_the_channel_keeps_what_is_not_due_and_lets_the_rest_go(world: World) -> None:
    world.send(b"now", b"now too")
    world.send(b"soon", delay_s=0.8)
    world.send(b"after")
    reader = world.reader(channel="spark")
    assert world.batch(reader) == [b"now", b"now too", b"after"]
    reader.commit(world.log[-1])
    assert world.ready("spark") == 2  # the delayed one, and what is behind it
    world.clock.advance_ms(900)
    assert world.batch(reader) == [b"soon"]
    reader.commit(world.log[-1])
    assert world.ready("spark") == 0


def test_what_becomes_due_together_is_shared_out_among_batches(world: World) -> None:
    world.send(*[b"%d" % number for number in range(10)], delay_s=0.5)
    world.send(b"x", b"y")
    reader = world.reader(maxOffsetsPerTrigger="12")
    assert world.batch(reader, ReadMaxRows(12)) == [b"x", b"y"]
    world.clock.advance_ms(600)
    reader = world.reader(maxOffsetsPerTrigger="4")
    world.send(b"z")
    found = [world.batch(reader, ReadMaxRows(4)) for _ in range(4)]
    assert found == [[b"0", b"1", b"2", b"3"], [b"4", b"5", b"6", b"7"], [b"8", b"9", b"z"], []]


def test_available_now_ends_and_leaves_what_is_not_due_to_the_next_run(world: World) -> None:
    world.send(b"now")
    world.send(b"soon", delay_s=0.8)
    reader = world.reader()
    reader.prepareForTriggerAvailableNow()
    assert [world.batch(reader), world.batch(reader)] == [[b"now"], []]
    world.clock.advance_ms(900)
    reader = world.reader()
    reader.prepareForTriggerAvailableNow()
    assert [world.batch(reader), world.batch(reader)] == [[b"soon"], []]


def test_a_stream_knows_of_so_many_delayed_messages_and_goes_no_further(world: World) -> None:
    world.send(b"now")
    with contextlib.closing(Connection(world.where)) as connection:
        for low in range(0, NOT_DUE_MAX + 5, 100):  # each is a run of its own, due at another time
            sections = [
                part
                for number in range(low, min(low + 100, NOT_DUE_MAX + 5))
                for part in encode_section(Target("q", delay_ms=3_600_000 + number), Chunk.of(0, 0, [b"late"]))
            ]
            connection.fetch("POST", "/v1/bulk/send", b"".join(sections), {})
    world.send(b"behind them")
    reader = world.reader()
    assert world.batch(reader) == [b"now"]
    assert world.batch(reader) == []
    with contextlib.closing(ServerPlace(world.where)) as place:
        (at,) = place.find(["q"]).values()
    assert len(at.not_due) == NOT_DUE_MAX


@pytest.mark.parametrize(("starting", "bodies"), [("latest-2", [b"8", b"9"]), ("latest - 99", None), ("latest-0", [])])
def test_a_stream_may_begin_so_many_messages_before_the_end(
    world: World, starting: str, bodies: list[bytes] | None
) -> None:
    everything = [b"%d" % number for number in range(10)]
    world.send(*everything)
    assert world.batch(world.reader(startingOffsets=starting)) == (everything if bodies is None else bodies)
    given = {"url": world.where.url or "", "subscribe": "q", "startingOffsets": starting}
    if bodies:
        reader = BatchReader(SourceOptions.parse(given, streaming=False), ("value",))
        rows = [batch.num_rows for partition in reader.partitions() for batch in reader.read(partition)]
        assert sum(rows) == len(bodies)
