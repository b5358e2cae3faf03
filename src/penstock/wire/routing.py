"""Which queue says where a command belongs: clients that route themselves and the nodes that check it agree by this."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core.commands import Command

FIELDS: dict[type[Command], str] = {
    c.CreateQueue: "name",
    c.ChangeQueue: "name",
    c.DeleteQueue: "name",
    c.PurgeQueue: "name",
    c.DescribeQueue: "name",
    c.QueueStats: "name",
    c.Send: "queue",
    c.Receive: "queue",
    c.Ack: "queue",
    c.Release: "queue",
    c.GiveBack: "queue",
    c.Extend: "queue",
    c.CreateChannel: "queue",
    c.DeleteChannel: "queue",
    c.PauseChannel: "queue",
    c.PurgeChannel: "queue",
    c.ReadRecords: "queue",
    c.AckConsumer: "queue",
    c.DeleteConsumer: "queue",
    c.Browse: "queue",
    c.StartRedrive: "queue",
}
"""Commands about one queue -> the field that names it."""


def queue_of(command: Command) -> str | None:
    """The queue whose owner is the best to ask; None if there is no such queue.

    A unit of work goes where its first ack goes, or its first send: that shard is its coordinator.

    >>> queue_of(c.QueueStats(name="orders")), queue_of(c.ListQueues())
    ('orders', None)
    """
    field = FIELDS.get(type(command))
    if field is not None:
        name = getattr(command, field)
        return name if isinstance(name, str) else None
    if isinstance(command, c.CommitWork):
        parts = command.acks or command.sends
        return parts[0].queue if parts else None
    return None
