"""Reading by offset, which leases nothing: records, as JSON or as an Arrow stream; named consumers; virtual queues."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET

from penstock.core.commands import (
    AckConsumer,
    Command,
    DeleteConsumer,
    DeleteQueue,
    QueueStats,
    ReadRecords,
    Send,
    Stats,
)
from penstock.core.commands import Records as CoreRecords
from penstock.core.errors import ConsumerNotFound
from penstock.protocols.http import Headers
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import record_list
from penstock.protocols.rest.messages import Messages
from penstock.protocols.rest.operations import ARROW, JSON, Reply, Resource, operation
from penstock.protocols.rest.problems import RestError, invalid
from penstock.protocols.rest.shapes import (
    AckedConsumer,
    ConsumerAck,
    ConsumerList,
    ConsumerPosition,
    ConsumerRecordsQuery,
    GetRecords,
    MoveConsumer,
    NoOptions,
    Partitions,
    Publish,
    Published,
    QueueAndConsumer,
    QueueOnly,
    Records,
    RecordsQuery,
    Shape,
)
from penstock.server.node import Services
from penstock.server.partition_map import PartitionMap

_HAS_ARROW = importlib.util.find_spec("pyarrow") is not None


class RecordReading(Resource):
    """Records: messages by their offsets."""

    tag = "records"

    @operation("GET", "/v1/queues/{queue}/records", offers=(JSON, ARROW), reveals=True)
    async def read_records(self, caller: Caller, queue: str, query: RecordsQuery) -> Records | Reply:
        """Read messages by their offsets. Nothing is leased, and nothing changes.

        As an Arrow IPC stream the columns are offset, timestamp, key, value, and headers if asked for. The headers
        `penstock-next-offset` and `penstock-end-offset`, and the schema's metadata, say where to continue.
        """
        caller.need(queue, ReadRecords)
        if caller.wanted == ARROW and not _HAS_ARROW:
            raise RestError(
                406,
                "not_acceptable",
                "this server has no pyarrow, and cannot answer with Arrow: install penstock-mq[arrow]",
            )
        records = await self._read(
            caller, ReadRecords(queue=queue, offset=query.offset, limit=query.max, end=query.end), query.max_bytes
        )
        if caller.wanted == ARROW:
            return _arrow(records, include_headers=query.headers)
        return self._as_json(records)

    @operation("GET", "/v1/queues/{queue}/consumers", live_s=2)
    async def list_consumers(self, caller: Caller, queue: str) -> ConsumerList:
        """List the named consumers of a queue."""
        stats: Stats = await self.shard.call(QueueStats(name=caller.need(queue, QueueStats)))
        return ConsumerList(consumers=[_position(stats, name) for name in stats.consumers])

    @operation("GET", "/v1/queues/{queue}/consumers/{consumer}")
    async def describe_consumer(self, caller: Caller, queue: str, consumer: str) -> ConsumerPosition:
        """Show the offset of a named consumer."""
        stats: Stats = await self.shard.call(QueueStats(name=caller.need(queue, QueueStats)))
        return _position(stats, consumer)

    @operation("GET", "/v1/queues/{queue}/consumers/{consumer}/records", reveals=True)
    async def read_as_consumer(self, caller: Caller, queue: str, consumer: str, query: ConsumerRecordsQuery) -> Records:
        """Read from the offset of a named consumer. An unknown consumer starts at the beginning."""
        caller.need(queue, ReadRecords)
        command = ReadRecords(queue=queue, consumer=consumer, limit=query.max)
        return self._as_json(await self._read(caller, command, query.max_bytes))

    @operation("PUT", "/v1/queues/{queue}/consumers/{consumer}")
    async def move_consumer(self, caller: Caller, queue: str, consumer: str, body: MoveConsumer) -> ConsumerPosition:
        """Remember that a consumer has read everything before an offset. Creates the consumer.

        Moving backwards needs `allow_rewind`; without it the answer is 409 `rewind_refused`.
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

    @operation("DELETE", "/v1/queues/{queue}/consumers/{consumer}", is_change=True)
    async def delete_consumer(self, caller: Caller, queue: str, consumer: str) -> None:
        """Delete a named consumer."""
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

    from penstock.wire.arrow import BASE_COLUMNS, WITH_HEADERS, record_batch, record_schema

    columns = WITH_HEADERS if include_headers else BASE_COLUMNS
    schema = record_schema(columns).with_metadata(dict(metadata))
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
        yield sink.take()
        for run in records.runs:
            batch = record_batch(run.chunk, run.start, run.stop, columns)
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
            yield sink.take()
    yield sink.take()


# -- virtual queues ----------------------------------------------------------------------------------------------------

# Virtual queues: any number of queues, clients that know where each lives, named consumers with offsets.
#
# The paths are those that such clients know. For a queue of another node they answer 409, with its owner and the map's
# version. So are the names of what is given, `Queue` or `MaxRecords`, beside those of the rest of the API; and they may
# be given in the URL's query instead of the body.

SPELLINGS: Final = {
    "queue": "Queue",
    "consumer": "Consumer",
    "offset": "Offset",
    "max_records": "MaxRecords",
    "allow_rewind": "AllowRewind",
}
"""A thing's name as in the rest of the API, and as clients of virtual queues know it."""
_RECORDS = 1_000


class VirtualQueues(Resource):
    """Virtual queues."""

    tag = "virtual queues"

    def __init__(self, services: Services, messages: Messages) -> None:
        super().__init__(services)
        self._messages = messages

    @property
    def _map(self) -> PartitionMap:
        assert self.services.partition_maps is not None
        return self.services.partition_maps.current()

    def _own(self, caller: Caller, kind: type[Command], queue: str) -> str:
        caller.need(queue, kind)
        self._map.check(queue)
        return queue

    @operation("POST", "/get_partitions")
    async def get_partitions(self, caller: Caller, body: NoOptions) -> Partitions:
        """Get the partition map: which node owns which partition."""
        found = self._map
        return Partitions(
            version=found.version, partitions=len(found.owners), owners=list(found.owners), nodes=found.urls
        )

    @operation("POST", "/publish")
    async def publish(self, caller: Caller, query: QueueOnly, body: Publish) -> Published:
        """Send messages. The queue is created if it does not exist."""
        queue = self._own(caller, Send, _needed("queue", query, body))
        sent = await self._messages.send_all(caller, [(queue, message) for message in body.messages], create=True)
        return Published(offsets=[-1 if message.sequence is None else message.sequence for message in sent])

    @operation("POST", "/get_records", reveals=True)
    async def get_records(self, caller: Caller, query: GetRecords, body: GetRecords) -> Records:
        """Read messages from an offset, or from the offset of a consumer."""
        queue = self._own(caller, ReadRecords, _needed("queue", query, body))
        limit = _given("max_records", query, body, _RECORDS)
        await caller.room_for(self.shard, queue, limit, self.services.settings)
        records: CoreRecords = await self.shard.call(
            ReadRecords(
                queue=queue,
                consumer=_given("consumer", query, body, None),
                offset=_given("offset", query, body, None),
                limit=limit,
                bytes_max=self.settings.response_bytes_max,
            )
        )
        return Records(
            records=record_list(self.broker, records),
            next_offset=records.next_offset,
            end_offset=records.end_offset,
        )

    @operation("POST", "/consumer_ack")
    async def consumer_ack(self, caller: Caller, query: ConsumerAck, body: ConsumerAck) -> AckedConsumer:
        """Remember that a consumer has read everything before an offset.

        Moving backwards needs `AllowRewind`; without it the answer is 409 `rewind_refused`.
        """
        command = AckConsumer(
            queue=self._own(caller, AckConsumer, _needed("queue", query, body)),
            consumer=_needed("consumer", query, body),
            offset=_needed("offset", query, body),
            allow_rewind=_given("allow_rewind", query, body, False),
        )
        return AckedConsumer(offset=await self.shard.call(command))

    @operation("POST", "/delete_consumer", is_change=True)
    async def delete_virtual_consumer(self, caller: Caller, query: QueueAndConsumer, body: QueueAndConsumer) -> None:
        """Delete a consumer."""
        queue, consumer = _needed("queue", query, body), _needed("consumer", query, body)
        await self.shard.call(DeleteConsumer(queue=self._own(caller, DeleteConsumer, queue), consumer=consumer))

    @operation("POST", "/delete_queue", is_change=True)
    async def delete_virtual_queue(self, caller: Caller, query: QueueOnly, body: QueueOnly) -> None:
        """Delete a queue with its messages and consumers."""
        await self.shard.call(DeleteQueue(name=self._own(caller, DeleteQueue, _needed("queue", query, body))))


def _given(name: str, query: Shape, body: Shape, otherwise: Any) -> Any:
    """What is given under either name of a thing, in the URL or in the body. Given twice, it must be the same."""
    found: list[tuple[str, Any]] = []
    for place, shape in (("the URL", query), ("the body", body)):
        for spelling in (name, SPELLINGS[name]):
            value = getattr(shape, spelling, UNSET)
            if value is not UNSET:
                found.append((f"{spelling} in {place}", value))
    for what, value in found[1:]:
        if value != found[0][1]:
            first = msgspec.json.encode(found[0][1]).decode()
            other = msgspec.json.encode(value).decode()
            raise invalid(f"{found[0][0]} is {first}, and {what} is {other}: they mean the same, so give one of them")
    return found[0][1] if found else otherwise


def _needed(name: str, query: Shape, body: Shape) -> Any:
    value = _given(name, query, body, UNSET)
    if value is UNSET:
        raise invalid(f"{name} (or {SPELLINGS[name]}) is missing: give it in the body, or in the URL")
    return value
