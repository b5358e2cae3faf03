"""`format("penstock")`: queues as a table and as a stream.

The driver plans by offset: `[start, stop)` of each partition of each queue, cut into ranges that are read in parallel.
The executors read their ranges from the server or from the directory, as Arrow batches whose bodies nobody copies. A
range is a pure function of its offsets as long as its messages are kept, so a batch that is done again reads the same.

A stream is a channel: created where the stream starts (when its first batch is planned), it keeps what the stream has
not committed. Its name is in the stream's offsets, so a restart from the checkpoint finds it. Spark commits a batch one
batch later, and the last one of `availableNow` not at all; so what was planned from is acknowledged as well when the
next batch is planned, by when Spark has done it. (Not on the first call of a run: a batch may have to be done again.)
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.core.commands import MAIN, NOT_DUE_MAX, Offsets
from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.spark.errors import DataLoss, InvalidOption, ServerFailed, plain_errors
from penstock.spark.offsets import (
    LossCheck,
    QueuePosition,
    Spans,
    StreamOffset,
    cut_ranges,
    data_loss,
    first_messages,
    joined_spans,
    share_out,
    without_spans,
)
from penstock.spark.options import DEFAULT_BYTES_PER_TRIGGER, EARLIEST, LATEST, SourceOptions, Start
from penstock.spark.place import Part, Place, Range, open_place

if TYPE_CHECKING:
    from penstock.spark.sink import BatchSink, StreamSink

log = logging.getLogger("penstock.spark")

DUE_PER_TRIGGER = 250_000
"""How many delayed messages that are due come into one batch, if only its bytes are limited."""
ROWS_MIN = 4_096
"""Smaller batches are joined: each one costs Spark some time."""

KAFKA_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
HEADERS_COLUMNS = {"headers": "array<struct<key:string,value:binary>>"}
DEAD_COLUMNS = {
    "deadReason": "string",
    "deadOrigin": "struct<queue:string,channel:string,offset:bigint,id:string>",
    "attempts": "int",
    "history": "array<struct<attempt:int,receivedAt:timestamp,failedAt:timestamp,session:string,error:string>>",
}
ALL_COLUMNS = KAFKA_COLUMNS | HEADERS_COLUMNS | DEAD_COLUMNS
"""Every column that there is, and its type as Spark writes it."""
_MADE_HERE: dict[str, Any] = {"topic": pa.string(), "partition": pa.int32(), "timestampType": pa.int32()}
"""Columns that are the same for all messages of a range: nobody sends them."""
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns that a reader has to give: all of the source's, or those of a schema that the user has given."""
    for each in schema:
        if ALL_COLUMNS.get(each.name) != each.dataType.simpleString():
            there = ", ".join(f"{name} {kind}" for name, kind in ALL_COLUMNS.items())
            raise InvalidOption(f"there is no column {each.name} {each.dataType.simpleString()}; there are: {there}")
    return tuple(schema.names)


@cache
def wire_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """What has to be read to make some columns. Offsets always: they say what is missing."""
    from penstock.wire.arrow import BASE_COLUMNS, COLUMNS

    needed = {"offset", *columns} & set(COLUMNS)
    found = tuple(name for name in COLUMNS if name in needed)
    return BASE_COLUMNS if set(BASE_COLUMNS) - {"timestamp", "key"} <= needed <= set(BASE_COLUMNS) else found


@cache
def arrow_schema(columns: tuple[str, ...]) -> Any:
    """Some columns of a source, in Arrow. Every one may be null, as far as Spark knows."""
    from penstock.wire.arrow import record_schema

    def kind(name: str) -> Any:
        if name == "headers":
            return _HEADERS
        return _MADE_HERE[name] if name in _MADE_HERE else record_schema((name,)).field(name).type

    return pa.schema([(name, kind(name)) for name in columns])


def kafka_columns(queue: str, batch: Any, columns: tuple[str, ...]) -> Any:
    """A batch of `wire/arrow.py` with the columns that Spark is promised. Its messages are of one partition."""
    schema = arrow_schema(columns)
    rows = batch.num_rows
    partition = batch["offset"][0].as_py() >> PARTITION_SHIFT if rows else 0
    same = {"topic": queue, "partition": partition, "timestampType": 0}
    arrays = [
        pa.repeat(pa.scalar(same[name], _MADE_HERE[name]), rows)
        if name in same
        else batch[name].cast(_HEADERS)
        if name == "headers"
        else batch[name]
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def joined(batches: Iterator[Any]) -> Iterator[Any]:
    """The same rows, without small batches in between; large ones pass untouched."""
    small: list[Any] = []
    rows = 0
    for batch in batches:
        if batch.num_rows >= ROWS_MIN // 2 and not small:
            yield batch
            continue
        small.append(batch)
        rows += batch.num_rows
        if rows >= ROWS_MIN:
            yield from _join(small)
            small, rows = [], 0
    yield from _join(small)


def _join(batches: list[Any]) -> Iterator[Any]:
    if len(batches) == 1:
        yield batches[0]
    elif batches:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


_TAKE_MESSAGES = 50_000
_KEPT_NOTHING = 1 << 62
_LOST = ("queue_not_found", "channel_not_found", "invalid_request")
"""What the server says to the offsets of a queue that is gone, or is another one: fewer partitions, fewer messages."""


class PenstockDataSource(DataSource):
    """What Spark asks for readers and writers."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "penstock"

    def schema(self) -> str:
        """The Kafka connector's columns, and what else options ask for."""
        columns = dict(KAFKA_COLUMNS)
        for name, more in (("includeHeaders", HEADERS_COLUMNS), ("includeDeadLetters", DEAD_COLUMNS)):
            if str(self.options.get(name, "false")).lower() == "true":
                columns |= more
        return ", ".join(f"{name} {kind}" for name, kind in columns.items())

    def reader(self, schema: StructType) -> BatchReader | ConsumingReader:
        """For `spark.read`."""
        with plain_errors():
            options = SourceOptions.parse(self.options, streaming=False)
            columns = columns_of(schema)
            return ConsumingReader(options, columns) if options.consume else BatchReader(options, columns)

    def streamReader(self, schema: StructType) -> StreamReader:
        """For `spark.readStream`."""
        try:
            return StreamReader(SourceOptions.parse(self.options, streaming=True), columns_of(schema))
        except InvalidOption as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """For `DataFrame.write`. (Spark plans each query in a new Python: readers do not wait for this import.)"""
        from penstock.spark.sink import BatchSink

        with plain_errors():
            return BatchSink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """For `DataFrame.writeStream`."""
        from penstock.spark.sink import StreamSink

        with plain_errors():
            return StreamSink(self.options, schema, overwrite)


class RangePartition(InputPartition):
    """One range, to be read by one task."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)


def read_range(options: SourceOptions, columns: tuple[str, ...], partition: InputPartition) -> Iterator[Any]:
    """The messages of a range. Runs in the executors."""
    wanted = partition.value
    if wanted is None:  # Spark's word for no partitions at all
        return

    check = LossCheck(wanted) if options.fail_on_data_loss else None
    place = open_place(options.where)
    needed = wire_columns(columns)

    def found() -> Iterator[Any]:
        for batch in place.batches(wanted, needed):
            if batch.num_rows == 0:
                continue
            if check is not None:
                check.saw(batch["offset"][0].as_py(), batch["offset"][-1].as_py(), batch.num_rows)
            yield kafka_columns(wanted.queue, batch, columns)
        if check is not None:
            check.end()

    with plain_errors(), contextlib.closing(place):
        yield from joined(found())


def chosen_queues(options: SourceOptions, place: Place) -> list[str]:
    """The queues that the options name, or that match their pattern now."""
    if options.queues is not None:
        return list(options.queues)
    pattern = re.compile(options.pattern or "")
    return [name for name in place.queues() if pattern.fullmatch(name)]


def find_all(
    options: SourceOptions, place: Place, queues: Sequence[str], times_ms: Sequence[int]
) -> dict[Part, Offsets]:
    """Where the messages of all these queues stand; a queue that was named and is not there is an error."""
    found = place.find(queues, times_ms=times_ms)
    there = {part.queue for part in found}
    missing = [queue for queue in queues if queue not in there]
    if missing and options.queues is not None:
        raise InvalidOption(f"there is no queue {', '.join(map(repr, missing))}: check the name")
    if options.assigned is not None:
        found = _assigned({queue: options.assigned[queue] for queue in queues}, found)
    for name, offsets in (
        ("startingOffsets", options.starting),
        ("endingOffsets", options.ending),
        ("startingOffsetsByTimestamp", options.starting_ms),
        ("endingOffsetsByTimestamp", options.ending_ms),
    ):
        if isinstance(offsets, dict):
            _check_named(name, offsets, found)
    return found


def all_times_ms(*given: int | dict[str, dict[int, int]] | None) -> list[int]:
    """The times that the options name, each once."""
    times: set[int] = set()
    for each in given:
        if isinstance(each, dict):
            times |= {time_ms for partitions in each.values() for time_ms in partitions.values()}
        elif each is not None:
            times.add(each)
    return sorted(times)


def offset_at(
    time_ms: int | dict[str, dict[int, int]], at: Offsets, times_ms: list[int], *, must_be: bool = False
) -> int:
    """The offset of the first message that was sent at a time of the options, or later."""
    wanted = time_ms[at.queue][at.partition] if isinstance(time_ms, dict) else time_ms
    offset = at.at_times[times_ms.index(wanted)]
    if must_be and offset >= at.end:
        raise InvalidOption(
            f"nothing was sent to queue {at.queue!r} at {wanted} (in milliseconds) or later. To start at its end, set "
            "startingOffsetsByTimestampStrategy to latest"
        )
    return offset


def _check_named(option: str, named: Mapping[str, Iterable[int]], found: dict[Part, Offsets]) -> None:
    """Who gives offsets gives one for each partition: the others would be read from anywhere."""
    for queue, partitions in named.items():
        there = [part.partition for part in found if part.queue == queue]
        if there and sorted(partitions) != there:
            raise InvalidOption(
                f"{option} gives offsets in the partitions {sorted(partitions)} of queue {queue!r}, and {there} are "
                "read: name each of them"
            )


def _assigned(assigned: dict[str, list[int]], found: dict[Part, Offsets]) -> dict[Part, Offsets]:
    """The partitions that were asked for."""
    wanted = [Part(queue, partition) for queue, partitions in assigned.items() for partition in partitions]
    for part in wanted:
        if part not in found:
            raise InvalidOption(
                f"assign gives queue {part.queue!r} the partition {part.partition}, which does not exist"
            )
    return {part: found[part] for part in wanted}


def need_all_partitions(found: dict[Part, Offsets]) -> None:
    """A channel is of a whole queue: what is not read of it would stay in it."""
    for part, at in found.items():
        if any(Part(part.queue, partition) not in found for partition in range(at.partitions)):
            raise InvalidOption(
                f"assign gives queue {part.queue!r} some of its {at.partitions} partitions: a stream, and a batch with "
                "consume, read all of them. Name all, or use subscribe"
            )


def resolve(start: Start, at: Offsets, what: str) -> int:
    """An offset of the options as a number."""
    wanted = start.get(at.queue, {}).get(at.partition, EARLIEST) if isinstance(start, dict) else start
    if wanted == EARLIEST:
        return at.first
    if wanted == LATEST:
        return at.end
    if wanted < EARLIEST:
        return max(at.first, at.end + wanted - EARLIEST)
    if wanted > at.end:
        raise InvalidOption(f"{what} is {wanted} for queue {at.queue!r}, which ends at {at.end}")
    return wanted


# -- batch -------------------------------------------------------------------------------------------------------------


def check_start(options: SourceOptions, at: Offsets, start: int) -> None:
    """Raise if messages are asked for that are gone."""
    if start < at.first and options.fail_on_data_loss and at.first > 0:
        raise data_loss(f"startingOffsets is {start} for queue {at.queue!r}, whose first message is now {at.first}")


class BatchReader(DataSourceReader):
    """A table: the messages that are there, between two offsets."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Plan: in the driver."""
        options = self.options
        times_ms = all_times_ms(options.starting_ms, options.ending_ms)
        with plain_errors(), contextlib.closing(open_place(options.where)) as place:
            found = find_all(options, place, chosen_queues(options, place), times_ms)
            ranges = [self._range(at, times_ms, place.has_kafka_log) for at in found.values()]
        ranges = [each for each in ranges if each.stop > each.start]
        return [RangePartition(each) for each in cut_ranges(ranges, options.min_partitions, options.records_max)]

    def _range(self, at: Offsets, times_ms: list[int], has_kafka_log: bool) -> Range:
        options = self.options
        if options.starting_ms is not None:
            start = offset_at(options.starting_ms, at, times_ms, must_be=options.needs_start)
        else:
            start = resolve(EARLIEST if options.starting is None else options.starting, at, "startingOffsets")
            check_start(options, at, start)
        if options.ending_ms is not None:
            stop = offset_at(options.ending_ms, at, times_ms)
        else:
            stop = resolve(options.ending, at, "endingOffsets")
        return Range(at.queue, start, stop, _KEPT_NOTHING, has_kafka_log)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read: in the executors. Messages that are done and gone within the range are left out."""
        return read_range(self.options, self.columns, partition)


class ConsumingReader(DataSourceReader):
    """A table that is taken: messages are leased while they are read, and acknowledged when Spark has them all."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Plan: in the driver. How many messages each task may take, of whichever partition has them."""
        options = self.options
        with plain_errors(), contextlib.closing(open_place(options.where)) as place:
            found = find_all(options, place, chosen_queues(options, place), ())
            need_all_partitions(found)
        ranges = [Range(at.queue, at.first, at.end, 0) for at in found.values() if at.end > at.first]
        return [RangePartition(each) for each in cut_ranges(ranges, options.min_partitions, options.records_max)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Take: in the executors. Everything is acknowledged at the end, or else given back."""
        wanted = partition.value
        if wanted is None:
            return
        from penstock.spark.server import ServerPlace

        channel, needed = self.options.channel or MAIN, wire_columns(self.columns)
        place = ServerPlace(self.options.where)
        spans: list[Any] = []
        is_done = False
        try:
            left = wanted.stop - wanted.start
            while left > 0:
                table, taken = place.take(wanted.queue, channel, min(left, _TAKE_MESSAGES), needed)
                if not table.num_rows:
                    break
                spans += taken
                left -= table.num_rows
                for batch in table.combine_chunks().to_batches():
                    yield kafka_columns(wanted.queue, batch, self.columns)
            self._acknowledge(place, wanted.queue, channel, spans)
            is_done = True
        finally:
            if spans and not is_done:
                place.settle(wanted.queue, channel, spans, done=False)
            place.close()

    @staticmethod
    def _acknowledge(place: Any, queue: str, channel: str, spans: list[Any]) -> None:
        taken = sum(last - first + 1 for first, last, _ in spans)
        settled = place.settle(queue, channel, spans, done=True) if spans else 0
        if settled != taken:
            raise DataLoss(
                f"{taken - settled} of {taken} messages of queue {queue!r} were no longer leased to this read when it "
                "ended: it took longer than an hour, or the queue was purged"
            )


# -- stream ------------------------------------------------------------------------------------------------------------


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: a channel, and an offset in each partition of each queue."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns
        self._place: Place | None = None
        self._is_planned = False
        self._target: dict[Part, int] | None = None
        """`availableNow`: where each partition ended when the run began."""
        self._ends: StreamOffset | None = None
        self._planned: StreamOffset | None = None
        self._batch_s = time.monotonic()
        """When the last batch was planned."""
        self._acked: dict[Part, int] = {}
        self._keeping: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "columns": self.columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        StreamReader.__init__(self, state["options"], state["columns"])

    @property
    def place(self) -> Place:
        """Opened when somebody asks; the reader itself travels to the executors without it."""
        if self._place is None:
            self._place = open_place(self.options.where)
        return self._place

    @property
    def _commits(self) -> bool:
        return self.options.where.url is not None

    # -- where it starts --

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        """Where a stream without a checkpoint starts. Spark may ask several times, and use one answer."""
        options = self.options
        times_ms = all_times_ms(options.starting_ms)
        found = find_all(options, self.place, chosen_queues(options, self.place), times_ms)
        channel = options.channel or f"{options.group_id_prefix}-{uuid.uuid4().hex[:16]}"
        need_all_partitions(found)
        return StreamOffset(channel, self._positions(found, lambda at: self._starting_offset(at, times_ms))).encode()

    def _starting_offset(self, at: Offsets, times_ms: list[int]) -> int:
        if self.options.starting_ms is not None:
            return offset_at(self.options.starting_ms, at, times_ms, must_be=self.options.needs_start)
        start = LATEST if self.options.starting is None else self.options.starting
        return resolve(start, at, "startingOffsets")

    def _positions(self, found: dict[Part, Offsets], begin: Callable[[Offsets], int]) -> dict[str, QueuePosition]:
        """Where a stream begins in queues that it has not read."""
        queues: dict[str, list[Offsets]] = {}
        for at in found.values():
            queues.setdefault(at.queue, []).append(at)
        positions = {}
        for queue, parts in queues.items():
            offsets = tuple(begin(at) for at in parts)
            for at, offset in zip(parts, offsets, strict=True):
                check_start(self.options, at, offset)
            kept = tuple(max(offset, at.end) for at, offset in zip(parts, offsets, strict=True))
            positions[queue] = QueuePosition(offsets, parts[0].queue_id, kept)
        return positions

    # -- how far it goes --

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        """Everything that is there now is read in this run, and nothing that comes later."""
        queues = chosen_queues(self.options, self.place)
        self._target = {part: at.end for part, at in self.place.find(queues).items()}

    @plain_errors()
    def getDefaultReadLimit(self) -> ReadLimit:
        """How much Spark lets a batch have; both limits are kept to in `latestOffset`."""
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadMaxBytes(DEFAULT_BYTES_PER_TRIGGER)

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch goes."""
        at = StreamOffset.decode(start)
        if self.options.channel not in (None, at.channel):
            raise InvalidOption(
                f"channel is {self.options.channel!r}, and the checkpoint is of a stream with the channel "
                f"{at.channel!r}: use that one, or another checkpoint location"
            )
        if self._is_planned:
            self._acknowledge(at)
        self._is_planned = True
        at = self._with_new_queues(at)
        found = self._checked(at, self.place.find(list(at.queues)))
        there = {part.queue for part in found}
        at = StreamOffset(at.channel, {name: each for name, each in at.queues.items() if name in there})
        self._keep(at)
        ends = {part: self._end(part, each) for part, each in found.items()}
        self._ends = at.moved({part: each.end for part, each in found.items()})
        if self._waits(at, ends):
            self._planned = at
            return at.encode()
        self._planned = self._plan(at, found, ends, limit)
        if self._planned != at:
            self._batch_s = time.monotonic()
        return self._planned.encode()

    def _end(self, part: Part, at: Offsets) -> int:
        """How far a partition can be read now."""
        end = at.end if self._target is None else min(at.end, self._target.get(part, 0))
        return min(end, at.not_due[-1][1]) if len(at.not_due) >= NOT_DUE_MAX else end  # it tells of no more

    def _plan(
        self, at: StreamOffset, found: dict[Part, Offsets], ends: dict[Part, int], limit: ReadLimit
    ) -> StreamOffset:
        """The next batch: what was delayed and is due now, and then what is new, without what is not due."""
        room: int | None = None
        if not isinstance(limit, ReadAllAvailable):
            room = min(self.options.max_offsets or DUE_PER_TRIGGER, getattr(limit, "max_rows", DUE_PER_TRIGGER))
        waiting: dict[Part, Spans] = {}
        taken = 0
        for part, now in found.items():
            before = at.queues[part.queue].delayed_in(part.partition)
            due = without_spans(before, tuple((first, stop) for first, stop, _ in now.not_due))
            due = due if room is None else first_messages(due, room - taken)
            taken += sum(stop - first for first, stop in due)
            waiting[part] = without_spans(before, due)
        offsets = self._limited(at.offsets(), ends, limit, taken)
        for part, now in found.items():
            new = [(max(first, at.offsets()[part]), min(stop, offsets[part])) for first, stop, _ in now.not_due]
            waiting[part] = joined_spans(waiting[part], tuple(span for span in new if span[0] < span[1]))
        return at.moved(offsets, waiting)

    def _waits(self, at: StreamOffset, ends: dict[Part, int]) -> bool:
        """Whether a batch is put off until there are enough messages for it."""
        options = self.options
        if options.min_offsets is None or self._target is not None:
            return False
        there = sum(max(0, ends[part] - offset) for part, offset in at.offsets().items())
        return there < options.min_offsets and time.monotonic() < self._batch_s + options.trigger_delay_s

    def _with_new_queues(self, at: StreamOffset) -> StreamOffset:
        """Queues that match the pattern and were not there before are read from their beginning."""
        if self.options.pattern is None:
            return at
        new = [name for name in chosen_queues(self.options, self.place) if name not in at.queues]
        found = self.place.find(new) if new else {}
        return StreamOffset(at.channel, at.queues | self._positions(found, lambda each: each.first))

    def _keep(self, at: StreamOffset) -> None:
        """Make sure that the stream's channel is there, and keeps what was not read yet."""
        if self._commits and not self._keeping and self.options.channel is None:
            log.warning(
                "the channel %s of %s keeps messages for this stream. When you no longer need the stream, delete the "
                "channel: penstock channel delete QUEUE %s (the option channel sets another name)",
                at.channel, ", ".join(at.queues), at.channel,
            )  # fmt: skip
        for name, position in at.queues.items():
            if self._commits and name not in self._keeping:
                self.place.create_channel(name, at.channel, position.offsets)
                self._keeping.add(name)

    def _checked(self, at: StreamOffset, found: dict[Part, Offsets]) -> dict[Part, Offsets]:
        """The queues that are still what the stream knows; the others are lost, which is an error or is passed over."""
        same: dict[Part, Offsets] = {}
        for name, position in at.queues.items():
            now = {part: each for part, each in found.items() if part.queue == name}
            if not now:
                self._lose(f"queue {name!r} is gone")
            elif any(each.queue_id != position.queue_id for each in now.values()):
                self._lose(f"queue {name!r} was deleted and created again")
            elif len(now) != len(position.offsets):
                self._lose(f"queue {name!r} has {len(now)} partitions, and had {len(position.offsets)}")
            else:
                same |= now
        return same

    def _lose(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise data_loss(what)

    def _limited(self, starts: dict[Part, int], ends: dict[Part, int], limit: ReadLimit, taken: int) -> dict[Part, int]:
        """How far a batch goes that has some messages already."""
        ends = {part: max(end, starts[part]) for part, end in ends.items()}
        options = self.options
        max_rows, max_bytes = options.max_offsets, options.max_bytes
        if isinstance(limit, ReadAllAvailable):  # Trigger.Once asks for all there is, whatever the options say
            max_rows = max_bytes = None
        elif isinstance(limit, ReadMaxRows):
            max_rows = min(limit.max_rows, max_rows or limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            max_bytes = min(limit.max_bytes, max_bytes or limit.max_bytes)
        if max_rows is not None and taken >= max_rows:
            return starts
        if max_rows is not None:
            max_rows -= taken
            shares = share_out({part: end - starts[part] for part, end in ends.items()}, max_rows)
            ends = {part: starts[part] + share for part, share in shares.items()}
        if max_bytes is not None:
            waiting = {part: starts[part] for part, end in ends.items() if end > starts[part]}
            each_bytes = max(1, max_bytes // max(1, len(waiting)))
            queues = list(dict.fromkeys(part.queue for part in waiting))
            found = self.place.find(queues, after=waiting, bytes_max=dict.fromkeys(queues, each_bytes))
            ends |= {part: min(ends[part], max(found[part].cut, starts[part])) for part in waiting if part in found}
        return ends

    @plain_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the queues, where they are, and how far this stream is behind after the batch: for its progress.

        Spark 4.3 takes neither a name nor metrics of a source in Python; what is in its offsets is shown.
        """
        if self._ends is None or self._planned is None:
            return None
        where = self.options.where
        return {**self._ends.encode(), "server": where.url or where.path, "lag": self._lag(self._ends, self._planned)}

    def _lag(self, ends: StreamOffset, planned: StreamOffset) -> dict[str, dict[str, float]]:
        """For each queue, how many messages the planned batch leaves, and how long the oldest has waited."""
        at = planned.offsets()
        left = {part: end - at[part] for part, end in ends.offsets().items() if part in at}
        behind = {part: at[part] for part, count in left.items() if count > 0}
        found = self.place.find(list({part.queue: None for part in behind}), after=behind) if behind else {}
        lag: dict[str, dict[str, float]] = {}
        for part, count in left.items():
            told = lag.setdefault(part.queue, {"messages": 0, "seconds": 0.0})
            told["messages"] += max(0, count)
            if part in found and (sent_ms := found[part].after_ms) is not None:
                told["seconds"] = max(told["seconds"], round(time.time() - sent_ms / 1_000, 3))
        return lag

    # -- reading --

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch: in the driver."""
        begin, stop = StreamOffset.decode(start), StreamOffset.decode(end)
        ranges = []
        for name, position in stop.queues.items():
            before = begin.queues.get(name)
            firsts = self._first_of_new(name, position) if before is None else before.offsets
            for partition, (first, end_offset) in enumerate(zip(firsts, position.offsets, strict=True)):
                earlier = () if before is None else before.delayed_in(partition)
                wanted = joined_spans(earlier, ((first, end_offset),))
                kept, has_log = position.kept[partition], self.place.has_kafka_log
                for low, high in without_spans(wanted, position.delayed_in(partition)):
                    ranges.append(Range(name, low, high, kept, has_log))
        options = self.options
        return [RangePartition(each) for each in cut_ranges(ranges, options.min_partitions, options.records_max)]

    def _first_of_new(self, name: str, position: QueuePosition) -> tuple[int, ...]:
        """A queue that came up in this batch is read from its first message."""
        found = self.place.find([name])
        return tuple(
            min(offset, found[part].first) if (part := Part(name, partition)) in found else partition << PARTITION_SHIFT
            for partition, offset in enumerate(position.offsets)
        )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a range: in the executors."""
        return read_range(self.options, self.columns, partition)

    # -- committing --

    @plain_errors()
    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything before these offsets."""
        self._acknowledge(StreamOffset.decode(end))

    def _acknowledge(self, at: StreamOffset) -> None:
        new = {part: offset for part, offset in at.done().items() if self._acked.get(part) != offset}
        if not self._commits or not new:
            return
        try:
            self.place.ack_up_to(at.channel, new)
        except ServerFailed as error:
            if error.code not in _LOST:
                raise
            self._lose(str(error))
        self._acked |= new

    def stop(self) -> None:
        """Let go of files and connections."""
        if self._place is not None:
            self._place.close()
            self._place = None


class RefusedStream(StreamReader):
    """A stream with a wrong option. Spark does not tell what `streamReader` raises, but what a reader raises."""

    def __init__(self, error: InvalidOption) -> None:
        self._error = error
        self._place = None

    def __getattr__(self, name: str) -> Any:
        raise self._error
