"""Where a message was before it was moved between queues, and what happened to it there."""

from __future__ import annotations

import re

import msgspec

from penstock.core.commands import Failure


class Origin(msgspec.Struct, frozen=True):
    """A dead letter's history; a redriven message keeps it.

    >>> origin = Origin("id", "orders", "main", 7, 1000, 3, 0, [])
    >>> Origin.decode(origin.encode()) == origin
    True
    """

    id: str
    """The identity that the message keeps for life."""
    queue: str
    """The queue it was moved from last."""
    channel: str
    sequence: int
    sent_ms: int
    """When it was first sent."""
    attempts: int
    priority: int
    failures: list[Failure]

    def encode(self) -> bytes:
        """The form in which a chunk carries it."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Origin:
        """Read what `encode` has written."""
        return msgspec.msgpack.decode(data, type=cls)


_GROUP_LENGTH_MAX = 200
_VARYING = re.compile(
    r"""'[^'\n]{0,500}'|"[^"\n]{0,500}"|\b0x[0-9A-Fa-f]+\b|"""
    r"""\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b|\b(?=[A-Fa-f]*\d)[0-9A-Fa-f]{12,}\b|\d+(?:\.\d+)*"""
)


def error_group(error: str) -> str:
    """What an error has in common with others of its kind: its first line, without numbers, ids and quoted text.

    >>> error_group("Timeout: no answer from 10.0.0.7 after 3.5 s for order 'A-17'")
    'Timeout: no answer from # after # s for order #'
    """
    line = error.strip().partition("\n")[0][: 5 * _GROUP_LENGTH_MAX]
    return _VARYING.sub("#", line)[:_GROUP_LENGTH_MAX].rstrip() or "no error was given"


def failures_of(origin: Origin | None, failures: list[Failure], sequence: int) -> list[Failure]:
    """Every failed delivery of a message, the first one first: where it was before, and where it is."""
    before = [] if origin is None else [each for each in origin.failures if each.first <= origin.sequence <= each.last]
    return before + [each for each in failures if each.first <= sequence <= each.last]
