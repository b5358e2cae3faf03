"""Virtual queues: any number of queues, clients that know where each lives, named consumers with offsets.

The paths are those that such clients know. For a queue of another node they answer 409, with its owner and the map's
version.
"""

from __future__ import annotations

from penstock.core.commands import AckConsumer, DeleteConsumer, DeleteQueue, ReadRecords
from penstock.core.commands import Records as CoreRecords
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import record_list
from penstock.protocols.rest.messages import Messages
from penstock.protocols.rest.operations import operation
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
)
from penstock.server.auth import Right
from penstock.server.node import Services
from penstock.server.partition_map import PartitionMap


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

    def _own(self, caller: Caller, right: Right, queue: str) -> str:
        caller.need(right, queue)
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
    async def publish(self, caller: Caller, body: Publish) -> Published:
        """Send messages. The queue is created when it is not there."""
        queue = self._own(caller, "write", body.queue)
        sent = await self._messages.send_all(caller, [(queue, message) for message in body.messages], create=True)
        return Published(offsets=[-1 if message.sequence is None else message.sequence for message in sent])

    @operation("POST", "/get_records")
    async def get_records(self, caller: Caller, body: GetRecords) -> Records:
        """Read messages from an offset, or from where a consumer is."""
        await caller.room_for(self.shard, body.queue, body.max_records, self.services.settings)
        records: CoreRecords = await self.shard.call(
            ReadRecords(
                queue=self._own(caller, "read", body.queue),
                consumer=body.consumer,
                offset=body.offset,
                limit=body.max_records,
                bytes_max=self.settings.response_bytes_max,
            )
        )
        return Records(
            records=record_list(self.broker, records),
            next_offset=records.next_offset,
            end_offset=records.end_offset,
        )

    @operation("POST", "/consumer_ack")
    async def consumer_ack(self, caller: Caller, body: ConsumerAck) -> AckedConsumer:
        """Remember that a consumer has read everything before an offset.

        409 `rewind_refused` if it would go back without `AllowRewind`.
        """
        command = AckConsumer(
            queue=self._own(caller, "read", body.queue),
            consumer=body.consumer,
            offset=body.offset,
            allow_rewind=body.allow_rewind or body.AllowRewind,
        )
        return AckedConsumer(offset=await self.shard.call(command))

    @operation("POST", "/delete_consumer")
    async def delete_virtual_consumer(self, caller: Caller, body: QueueAndConsumer) -> None:
        """Forget a consumer."""
        queue = self._own(caller, "read", body.queue)
        await self.shard.call(DeleteConsumer(queue=queue, consumer=body.consumer))

    @operation("POST", "/delete_queue")
    async def delete_virtual_queue(self, caller: Caller, body: QueueOnly) -> None:
        """Delete a queue with its messages and consumers."""
        await self.shard.call(DeleteQueue(name=self._own(caller, "admin", body.queue)))
