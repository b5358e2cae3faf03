"""Single sends that leave at the same time, to the same queue and in the same way, become one command.

A merged command is all or nothing, and its parts were not: if it is refused for what is in it, nothing of it was done;
its parts are sent again one by one, and each gets its own answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.remote.request import Outstanding
from penstock.core.commands import Send, Sent
from penstock.core.errors import InvalidRequest, PenstockError

MERGED_MAX = 1_000
MERGED_BYTES_MAX = 1024 * 1024

Resend = Callable[[Outstanding], None]


def merged(outgoing: list[Outstanding], resend: Resend) -> list[Outstanding]:
    """The outgoing commands, fewer of them where single sends go together. Order within a queue stays."""
    if len(outgoing) < 2:
        return outgoing
    kept: list[Outstanding | _Group] = []
    groups: dict[str, _Group] = {}
    for outstanding in outgoing:
        command = outstanding.command
        if type(command) is not Send:
            kept.append(outstanding)
        elif not _is_single(outstanding, command):
            groups.pop(command.queue, None)
            kept.append(outstanding)
        elif (group := groups.get(command.queue)) is None or not group.add(outstanding, command):
            group = groups[command.queue] = _Group(outstanding, command, resend)
            kept.append(group)
    return [each.merged() if isinstance(each, _Group) else each for each in kept]


def _is_single(outstanding: Outstanding, send: Send) -> bool:
    return (
        len(send.bodies) == 1
        and not outstanding.alone
        and send.groups is None
        and send.dedup_ids is None
        and send.origins is None
        and send.once is None
    )


class _Group:
    """Sends that go together."""

    __slots__ = ("_parts", "_resend", "_sends", "_size")

    def __init__(self, outstanding: Outstanding, send: Send, resend: Resend) -> None:
        self._parts = [outstanding]
        self._sends = [send]
        self._size = len(send.bodies[0])
        self._resend = resend

    def add(self, outstanding: Outstanding, send: Send) -> bool:
        """Take one more along; False if it goes another way, or there is no room."""
        first = self._sends[0]
        same = (
            send.priority == first.priority
            and send.delay_ms == first.delay_ms
            and send.due_ms == first.due_ms
            and send.create == first.create
        )
        size = self._size + len(send.bodies[0])
        if not same or len(self._parts) >= MERGED_MAX or size > MERGED_BYTES_MAX:
            return False
        self._parts.append(outstanding)
        self._sends.append(send)
        self._size = size
        return True

    def merged(self) -> Outstanding:
        """All of them as one."""
        if len(self._parts) == 1:
            return self._parts[0]
        first = self._sends[0]
        attributes = [None if send.attributes is None else send.attributes[0] for send in self._sends]
        command = Send(
            queue=first.queue,
            bodies=[send.bodies[0] for send in self._sends],
            attributes=attributes if any(attributes) else None,
            priority=first.priority,
            delay_ms=first.delay_ms,
            due_ms=first.due_ms,
            create=first.create,
        )
        return Outstanding(command, self._split, min(part.deadline_s for part in self._parts))

    def _split(self, reply: Any, error: BaseException | None) -> None:
        if isinstance(error, InvalidRequest):
            for part in self._parts:
                part.alone = True
                self._resend(part)
        elif isinstance(error, PenstockError):
            for part in self._parts:
                part.settle(None, type(error)(str(error)))
        else:
            for index, part in enumerate(self._parts):
                part.settle(Sent(reply.queue_id, reply.sequence(index), 1), None)
