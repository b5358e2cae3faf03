"""Reading by offset, which leases nothing: records, as JSON or as an Arrow stream, and named consumers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from penstock.core.commands import AckConsumer, DeleteConsumer, QueueStats, ReadRecords, Stats
from penstock.core.commands import Records as CoreRecords
from penstock.core.errors import ConsumerNotFound
from penstock.protocols.http import Headers
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import record_list
from penstock.protocols.rest.operations import ARROW, JSON, Reply, operation
from penstock.protocols.rest.problems import RestError
from penstock.protocols.rest.resource import Resource
from penstock.protocols.rest.shapes import (
    ConsumerList,
    ConsumerPosition,
    ConsumerRecordsQuery,
    MoveConsumer,
    Records,
    RecordsQuery,
)

_HAS_ARROW = importlib.util.find_spec("pyarrow") is not None


class RecordReading(Resource):
    """Records: messages by their offsets."""

    tag = "records"

    @operation("GET", "/v1/queues/{queue}/records", offers=(JSON, ARROW))
    async def read_records(self, caller: Caller, queue: str, query: RecordsQuery) -> Records | Reply:
        """Read messages by their offsets. Nothing is leased, and nothing changes.

        As an Arrow IPC stream the columns are offset, timestamp, key, value, and headers if asked for. The headers
        `penstock-next-offset` and `penstock-end-offset`, and the schema's metadata, say where to go on.
        """
        caller.need(queue, ReadRecords)
        if caller.wanted == ARROW and not _HAS_ARROW:
            raise RestError(
                406,
                "not_acceptable",
                "this server has no pyarrow, and cannot answer with Arrow: install penstock[arrow]",
            )
        records = await self._read(
            caller, ReadRecords(queue=queue, offset=query.offset, limit=query.max, end=query.end), query.max_bytes
        )
        if caller.wanted == ARROW:
            return _arrow(records, include_headers=query.headers)
        return self._as_json(records)

    @operation("GET", "/v1/queues/{queue}/consumers")
    async def list_consumers(self, caller: Caller, queue: str) -> ConsumerList:
        """List the named consumers of a queue."""
        stats: Stats = await self.shard.call(QueueStats(name=caller.need(queue, QueueStats)))
        return ConsumerList(consumers=[_position(stats, name) for name in stats.consumers])

    @operation("GET", "/v1/queues/{queue}/consumers/{consumer}")
    async def describe_consumer(self, caller: Caller, queue: str, consumer: str) -> ConsumerPosition:
        """Say where a named consumer is."""
        stats: Stats = await self.shard.call(QueueStats(name=caller.need(queue, QueueStats)))
        return _position(stats, consumer)

    @operation("GET", "/v1/queues/{queue}/consumers/{consumer}/records")
    async def read_as_consumer(self, caller: Caller, queue: str, consumer: str, query: ConsumerRecordsQuery) -> Records:
        """Read from where a named consumer is; one that is not known starts at the beginning."""
        caller.need(queue, ReadRecords)
        command = ReadRecords(queue=queue, consumer=consumer, limit=query.max)
        return self._as_json(await self._read(caller, command, query.max_bytes))

    @operation("PUT", "/v1/queues/{queue}/consumers/{consumer}")
    async def move_consumer(self, caller: Caller, queue: str, consumer: str, body: MoveConsumer) -> ConsumerPosition:
        """Remember that a consumer has read everything before an offset. Creates the consumer.

        409 `rewind_refused` if it would go back without `allow_rewind`.
        """
        await self.shard.call(
            AckConsumer(
                queue=caller.need(queue, AckConsumer),
                consumer=consumer,
                offset=body.offset,
                allow_rewind=body.allow_rewind,
            )
        )
        return _position(await self.shard.call(QueueStats(name=queue)), consumer)

    @operation("DELETE", "/v1/queues/{queue}/consumers/{consumer}")
    async def delete_consumer(self, caller: Caller, queue: str, consumer: str) -> None:
        """Forget a named consumer."""
        await self.shard.call(DeleteConsumer(queue=caller.need(queue, DeleteConsumer), consumer=consumer))

    async def _read(self, caller: Caller, command: ReadRecords, max_bytes: int | None) -> CoreRecords:
        await caller.room_for(self.shard, command.queue, command.limit, self.services.settings)
        limit = self.settings.response_bytes_max
        command.bytes_max = limit if max_bytes is None else min(limit, max_bytes)
        records: CoreRecords = await self.shard.call(command)
        return records

    def _as_json(self, records: CoreRecords) -> Records:
        return Records(
            records=record_list(self.broker, records),
            next_offset=records.next_offset,
            end_offset=records.end_offset,
        )


def _position(stats: Stats, consumer: str) -> ConsumerPosition:
    offset = stats.consumers.get(consumer)
    if offset is None:
        raise ConsumerNotFound(f"queue {stats.name!r} has no consumer {consumer!r}")
    end = stats.next_sequence
    return ConsumerPosition(consumer=consumer, offset=offset, end_offset=end, lag=end - offset)


def _arrow(records: CoreRecords, *, include_headers: bool) -> Reply:
    offsets = (
        ("penstock-next-offset", str(records.next_offset)),
        ("penstock-end-offset", str(records.end_offset)),
    )
    return Reply(ARROW, _arrow_parts(records, offsets, include_headers=include_headers), offsets)


class _Sink:
    """A file that hands on what was written to it."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: object) -> int:
        part = bytes(data)  # type: ignore[call-overload]
        self._parts.append(part)
        return len(part)

    def flush(self) -> None:
        """Nothing is held back."""

    def take(self) -> bytes:
        """What was written since the last time."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _arrow_parts(records: CoreRecords, metadata: Headers, *, include_headers: bool) -> Iterator[bytes]:
    """The stream's bytes, run by run: never more than one run is copied at a time."""
    import pyarrow as pa

    from penstock.wire.arrow import record_batch, record_schema

    schema = record_schema(include_headers=include_headers).with_metadata(dict(metadata))
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
        yield sink.take()
        for run in records.runs:
            batch = record_batch(run.chunk, run.start, run.stop, include_headers=include_headers)
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
            yield sink.take()
    yield sink.take()
