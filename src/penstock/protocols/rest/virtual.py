"""Virtual queues: any number of queues, clients that know where each lives, named consumers with offsets.

The paths are those that such clients know. For a queue of another node they answer 409, with its owner and the map's
version. So are the names of what is given, `Queue` or `MaxRecords`, beside those of the rest of the API; and they may
be given in the URL's query instead of the body.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from penstock.core.commands import AckConsumer, Command, DeleteConsumer, DeleteQueue, ReadRecords, Send
from penstock.core.commands import Records as CoreRecords
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import record_list
from penstock.protocols.rest.messages import Messages
from penstock.protocols.rest.operations import operation
from penstock.protocols.rest.problems import invalid
from penstock.protocols.rest.resource import Resource
from penstock.protocols.rest.shapes import (
    AckedConsumer,
    ConsumerAck,
    GetRecords,
    NoOptions,
    Partitions,
    Publish,
    Published,
    QueueAndConsumer,
    QueueOnly,
    Records,
    Shape,
)
from penstock.server.node import Services
from penstock.server.partition_map import PartitionMap

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
        """Send messages. The queue is created when it is not there."""
        queue = self._own(caller, Send, _needed("queue", query, body))
        sent = await self._messages.send_all(caller, [(queue, message) for message in body.messages], create=True)
        return Published(offsets=[-1 if message.sequence is None else message.sequence for message in sent])

    @operation("POST", "/get_records")
    async def get_records(self, caller: Caller, query: GetRecords, body: GetRecords) -> Records:
        """Read messages from an offset, or from where a consumer is."""
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

        409 `rewind_refused` if it would go back without `AllowRewind`.
        """
        command = AckConsumer(
            queue=self._own(caller, AckConsumer, _needed("queue", query, body)),
            consumer=_needed("consumer", query, body),
            offset=_needed("offset", query, body),
            allow_rewind=_given("allow_rewind", query, body, False),
        )
        return AckedConsumer(offset=await self.shard.call(command))

    @operation("POST", "/delete_consumer")
    async def delete_virtual_consumer(self, caller: Caller, query: QueueAndConsumer, body: QueueAndConsumer) -> None:
        """Forget a consumer."""
        queue, consumer = _needed("queue", query, body), _needed("consumer", query, body)
        await self.shard.call(DeleteConsumer(queue=self._own(caller, DeleteConsumer, queue), consumer=consumer))

    @operation("POST", "/delete_queue")
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
            raise invalid(f"{found[0][0]} is {first}, and {what} is {other}: they are one thing, give it once")
    return found[0][1] if found else otherwise


def _needed(name: str, query: Shape, body: Shape) -> Any:
    value = _given(name, query, body, UNSET)
    if value is UNSET:
        raise invalid(f"{name} (or {SPELLINGS[name]}) is missing: give it in the body, or in the URL")
    return value
