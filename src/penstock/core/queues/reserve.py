"""Sequence numbers that are set aside for messages which may leave before their send is on the disk.

A crash takes back what was not written. A message that had left already must not lend its number to another one: a late
acknowledgement would be for the wrong message, and ids would not be unique. So a queue with `deliver_unsynced` keeps a
record of a number that is ahead of its messages. Only messages below it, once it is on the disk, leave early; and
whoever opens the store after a crash goes on from there.
"""

from __future__ import annotations

from penstock.core.storage import keys
from penstock.core.storage.changes import Changes
from penstock.core.storage.keys import Kind

AHEAD = 1 << 16
"""How many numbers are set aside at a time; the next ones when half of them are used. What a crash wastes at most."""
_NUMBER_BYTES = 8


class Reserve:
    """The numbers that one queue has set aside.

    >>> reserve, changes = Reserve(7), Changes()
    >>> reserve.extend(100, changes), reserve.synced
    (True, 0)
    >>> reserve.committed(); reserve.synced
    65636
    >>> reserve.extend(101, changes)
    False
    """

    def __init__(self, queue_id: int, end: int = 0) -> None:
        self._key = keys.record(Kind.RESERVE, queue_id)
        self.end = end
        """The number before which all are set aside."""
        self.synced = 0
        """As `end`, as far as it is on the disk, and nobody before a crash can have had the numbers."""

    @classmethod
    def restore(cls, queue_id: int, data: bytes) -> Reserve:
        """As its record has it."""
        return cls(queue_id, int.from_bytes(data, "big"))

    def extend(self, next_sequence: int, changes: Changes) -> bool:
        """Set more numbers aside with the next commit, if it is time for that. Whether it is."""
        if next_sequence + AHEAD // 2 < self.end:
            return False
        self.end = next_sequence + AHEAD
        changes.put_record(self._key, self.end.to_bytes(_NUMBER_BYTES, "big"))
        return True

    def committed(self) -> None:
        """What was set aside last is on the disk."""
        self.synced = self.end

    def release(self, changes: Changes) -> None:
        """Set nothing aside any more: with the next commit all messages that have left are on the disk."""
        self.end = self.synced = 0
        changes.delete_record(self._key)
