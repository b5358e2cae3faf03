"""Many long polls in one server: all are answered, each with a message of its own, at little memory."""

from __future__ import annotations

import time
from typing import NamedTuple

from tests.compat import raw
from tests.compat.server import Server, until

QUEUE = "long-polls"


class Measured(NamedTuple):
    """What waiting cost, and how long it took until the last client had its message."""

    polls: int
    bytes_a_poll: int
    answered_s: float

    def __str__(self) -> str:
        return f"{self.polls:,} long polls: {self.bytes_a_poll:,} bytes each, all answered in {self.answered_s:.2f} s"


def wait_and_answer(server: Server, polls: int) -> Measured:
    """Let so many clients wait, then send a message for each."""
    sqs = server.client()
    url = sqs.create_queue(QueueName=QUEUE)["QueueUrl"]
    raw.poll(server, QUEUE, wait_s=0).close()
    before_bytes = server.memory_bytes()
    waiting = [raw.poll(server, QUEUE) for _ in range(polls)]
    try:
        until(lambda: server.waiting(QUEUE) == polls)
        used_bytes = server.memory_bytes() - before_bytes
        began = time.monotonic()
        for first in range(0, polls, 10):
            numbers = range(first, min(first + 10, polls))
            entries = [{"Id": str(number), "MessageBody": str(number)} for number in numbers]
            assert "Failed" not in sqs.send_message_batch(QueueUrl=url, Entries=entries)
        got = [body for each in waiting for body in raw.bodies(raw.response(each))]
        answered_s = time.monotonic() - began
    finally:
        for each in waiting:
            each.close()
    assert sorted(map(int, got)) == list(range(polls))
    return Measured(polls, used_bytes // polls, answered_s)
