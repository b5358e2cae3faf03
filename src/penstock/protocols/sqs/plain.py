"""Plain messages: the common case, without detours. JSON in and out, ASCII text, nothing beside the body.

A request's body is *plain* when it is ASCII and has no backslash. In JSON that says much about every text in it: none
holds a control character (they could only come escaped), so each is text that SQS may carry; and none holds a quote or
a backslash, so each is its own JSON when it goes out again. Nobody has to look at the characters for that.

What was sent so is remembered for a while, with its checksum: who receives it soon, as most do, finds the checksum
made, and the text known to be plain. A sequence number that was acknowledged is never given to another message, so what
is remembered stays true; a message that is not remembered takes the way of all others.

The answers are put together from pieces. They are what the encoder makes of the same shapes, byte for byte: the tests
compare them.
"""

from __future__ import annotations

from typing import Final

REMEMBERED_MAX: Final = 20_000
"""Messages. Each takes some 150 bytes."""
_BACKSLASH: Final = 92


def is_plain(body: bytes) -> bool:
    """Whether every text in a request's JSON is allowed in a message, and its own JSON.

    >>> is_plain(b'{"MessageBody": "text"}'), is_plain(b'{"MessageBody": "a\\\\nb"}'), is_plain("é".encode())
    (True, False, False)
    """
    return _BACKSLASH not in body and body.isascii()


class Remembered:
    """The checksums of plain messages that were sent lately, by queue and sequence number.

    >>> remembered = Remembered()
    >>> remembered.add(1, 7, ["m7", "m8"])
    >>> remembered.take(1, 8, 1), remembered.take(1, 7, 2)
    (['m8'], None)
    """

    __slots__ = ("_count", "_queues")

    def __init__(self) -> None:
        self._queues: dict[int, dict[int, str]] = {}
        self._count = 0
        """Added since everything was forgotten; some of it has been taken."""

    def add(self, queue_id: int, first: int, checksums: list[str]) -> None:
        """These were sent, one after the other. When there is no room, all others are forgotten."""
        self._count += len(checksums)
        if self._count > REMEMBERED_MAX:
            self._make_room(len(checksums))
        queue = self._queues.get(queue_id)
        if queue is None:
            queue = self._queues[queue_id] = {}
        sequence = first
        for checksum in checksums:
            queue[sequence] = checksum
            sequence += 1

    def _make_room(self, count: int) -> None:
        """Much of what was added may have been taken since: count again, and forget only if it must be."""
        self._queues = {queue_id: queue for queue_id, queue in self._queues.items() if queue}
        self._count = count + sum([len(queue) for queue in self._queues.values()])
        if self._count > REMEMBERED_MAX // 2:
            self._queues = {}
            self._count = count

    def take(self, queue_id: int, first: int, count: int) -> list[str] | None:
        """The checksums of messages one after the other, which are forgotten here; None if any is not known."""
        queue = self._queues.get(queue_id)
        if queue is None:
            return None
        found: list[str] = []
        for sequence in range(first, first + count):
            checksum = queue.get(sequence)
            if checksum is None:
                return None
            del queue[sequence]
            found.append(checksum)
        return found


def sent(checksum: str, message_id: str) -> bytes:
    """SendMessage.

    >>> sent("5d41", "0-1")
    b'{"MD5OfMessageBody":"5d41","MessageId":"0-1"}'
    """
    return f'{{"MD5OfMessageBody":"{checksum}","MessageId":"{message_id}"}}'.encode("ascii")


def sent_batch(ids: list[str], message_ids: list[str], checksums: list[str]) -> bytes:
    """SendMessageBatch, when all went well.

    >>> sent_batch(["a"], ["0-1"], ["5d41"])
    b'{"Successful":[{"Id":"a","MessageId":"0-1","MD5OfMessageBody":"5d41"}]}'
    """
    assert len(ids) == len(message_ids) == len(checksums)
    entries: list[str] = []
    for at in range(len(ids)):
        entries.append(f'{{"Id":"{ids[at]}","MessageId":"{message_ids[at]}","MD5OfMessageBody":"{checksums[at]}"}}')
    return f'{{"Successful":[{",".join(entries)}]}}'.encode("ascii")


def received(message_ids: list[str], receipts: list[str], checksums: list[str], bodies: list[bytes]) -> list[bytes]:
    """Pieces of the messages of a ReceiveMessage: each is followed by the next after a comma.

    >>> b"".join(received(["0-1"], ["r"], ["5d41"], [b"text"]))
    b'{"MessageId":"0-1","ReceiptHandle":"r","MD5OfBody":"5d41","Body":"text"}'
    """
    pieces: list[bytes] = []
    start = "{"
    assert len(message_ids) == len(receipts) == len(checksums) == len(bodies)
    for at in range(len(bodies)):
        head = (
            f'{start}"MessageId":"{message_ids[at]}","ReceiptHandle":"{receipts[at]}",'
            f'"MD5OfBody":"{checksums[at]}","Body":"'
        )
        pieces.append(head.encode("ascii"))
        pieces.append(bodies[at])
        start = '"},{'
    pieces.append(b'"}')
    return pieces


def settled_batch(ids: list[str]) -> bytes:
    """DeleteMessageBatch, when all went well.

    >>> settled_batch(["a", "b"])
    b'{"Successful":[{"Id":"a"},{"Id":"b"}]}'
    """
    joined = '"},{"Id":"'.join(ids)
    return f'{{"Successful":[{{"Id":"{joined}"}}]}}'.encode("ascii")
