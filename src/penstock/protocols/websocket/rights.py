"""What right, on which queue, a command from outside needs: one table.

    read     receive, settle, give back, extend; look at queues; read by offset; make a channel to read through
    write    send (a queue comes to be with the first message)
    admin    create, change, purge and delete queues; pause, purge and delete channels; move messages

Sessions and redrives have no queue in their names: sessions are known by sealed handles, redrives by their queue.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core import commands
from penstock.core.commands import Command
from penstock.core.errors import AccessDenied
from penstock.core.marks import Marks
from penstock.server.auth import ANYBODY, Principal, Right, owned
from penstock.server.shards import Names
from penstock.wire import requests

_RIGHTS: dict[type[Command], tuple[Right, str]] = {
    commands.CreateQueue: ("admin", "name"),
    commands.ChangeQueue: ("admin", "name"),
    commands.DeleteQueue: ("admin", "name"),
    commands.PurgeQueue: ("admin", "name"),
    commands.DescribeQueue: ("read", "name"),
    commands.QueueStats: ("read", "name"),
    commands.Send: ("write", "queue"),
    commands.Receive: ("read", "queue"),
    commands.Ack: ("read", "queue"),
    commands.Release: ("read", "queue"),
    commands.GiveBack: ("read", "queue"),
    commands.Extend: ("read", "queue"),
    commands.CreateChannel: ("read", "queue"),
    commands.DeleteChannel: ("admin", "queue"),
    commands.PauseChannel: ("admin", "queue"),
    commands.PurgeChannel: ("admin", "queue"),
    commands.ReadRecords: ("read", "queue"),
    commands.AckConsumer: ("read", "queue"),
    commands.DeleteConsumer: ("read", "queue"),
    commands.Browse: ("read", "queue"),
    commands.StartRedrive: ("admin", "queue"),
    requests.StartPush: ("read", "queue"),
}
_OPEN_TO_ALL: frozenset[type[Command]] = frozenset(
    {
        commands.ListQueues,  # what the caller may not read is left out
        commands.ListRedrives,
        commands.LastMark,  # a number
        commands.OpenSession,
        commands.Heartbeat,  # by handle
        commands.EndSession,
        requests.Cancel,  # of this conversation
        requests.AddPushCredit,
        requests.StopPush,
        requests.Route,
    }
)


def check_rights(principal: Principal, command: Command, broker: Names) -> None:
    """`AccessDenied` if the principal may not do that."""
    if principal is ANYBODY:
        return
    if isinstance(command, commands.CommitWork) and command.mark is not None and not principal.has("write"):
        raise AccessDenied(f"{principal.name} needs the right to write some queue to mark work as done")
    for right, queue in _needed(command, broker):
        if not principal.allows(right, queue):
            raise AccessDenied(f"{principal.name} needs the right to {right} queue {queue!r} for {_name(command)}")


def own_marks(principal: Principal, command: Command) -> None:
    """The marks that a command names are the caller's own: nobody marks somebody else's work as done."""
    if isinstance(command, commands.CommitWork) and command.mark is not None:
        Marks.check(*command.mark)
        command.mark = owned(principal, command.mark[0]), command.mark[1]
    elif isinstance(command, commands.LastMark):
        command.name = owned(principal, command.name)


def _name(command: Command) -> str:
    return type(command).__name__


def _needed(command: Command, broker: Names) -> Iterator[tuple[Right, str]]:
    kind = type(command)
    found = _RIGHTS.get(kind)
    if found is not None:
        yield found[0], getattr(command, found[1])
        yield from _also_needed(command)
    elif isinstance(command, commands.CommitWork):
        for part in (*command.acks, *command.sends):
            yield from _needed(part, broker)
    elif isinstance(command, commands.CancelRedrive):
        task = broker.tasks.get(command.task)
        if task is not None:
            yield "admin", task.queue
    elif kind not in _OPEN_TO_ALL:
        raise AccessDenied(f"{_name(command)} is not for callers from outside")


def _also_needed(command: Command) -> Iterator[tuple[Right, str]]:
    """Rights on the other queues that a command names: where it lets messages go."""
    if isinstance(command, commands.StartRedrive) and command.target is not None:
        yield "admin", command.target
    elif isinstance(command, commands.CreateQueue) and command.config.dead_letter is not None:
        yield "admin", command.config.dead_letter
    elif isinstance(command, commands.ChangeQueue) and isinstance(command.changes.get("dead_letter"), str):
        yield "admin", command.changes["dead_letter"]
