"""Clients that hang up around the moment when a message comes. None may take the message with it.

A client that closes its socket before the message is sent must not get it. One that closes later may be too late: it
closes for writing only, and reads what the server has sent, so that every message is accounted for.
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import time
from collections import Counter
from typing import Any

from tests.compat import raw
from tests.compat.server import Server

QUEUE = "hang-ups"
POLLS = 4
MOMENT_S = 0.002
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close with a reset, without the polite end."""


class HangUps:
    """One queue, one message at a time."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._rng = random.Random(seed)
        self._sqs = server.client()
        attributes = {"VisibilityTimeout": "43200"}
        self._url = self._sqs.create_queue(QueueName=QUEUE, Attributes=attributes)["QueueUrl"]
        self._sender = raw.connect(server)
        self.counts: Counter[str] = Counter()

    def run(self, rounds: int) -> None:
        for number in range(rounds):
            kind = self._rng.choice([self._close_before, self._reset_before, self._stop_sending_around])
            kind(str(number))
            self.counts["hang-ups"] += POLLS

    def _close_before(self, body: str) -> None:
        for poll in self._polls():
            poll.close()
        self._send(body)
        self._expect(body)

    def _reset_before(self, body: str) -> None:
        for poll in self._polls():
            poll.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            poll.close()
        self._send(body)
        self._expect(body)

    def _stop_sending_around(self, body: str) -> None:
        polls = self._polls()
        late = self._rng.randrange(POLLS + 1)
        for poll in polls[late:]:
            poll.shutdown(socket.SHUT_WR)
        self._begin_send(body)
        self._wait_a_moment()
        for poll in polls[:late]:
            poll.shutdown(socket.SHUT_WR)
        assert raw.response(self._sender)[0] == 200
        taken = [each for poll in polls for each in _taken(poll)]
        if taken:
            assert taken == [body]
            self.counts["answered in time"] += 1
        else:
            self._expect(body)

    def _polls(self) -> list[socket.socket]:
        polls = [raw.poll(self._server, QUEUE) for _ in range(POLLS)]
        self._wait_a_moment()
        return polls

    def _wait_a_moment(self) -> None:
        time.sleep(self._rng.choice([0, 1]) * self._rng.random() * MOMENT_S)

    def _begin_send(self, body: str) -> None:
        self._sender.sendall(raw.json_request("SendMessage", {"QueueUrl": self._url, "MessageBody": body}))

    def _send(self, body: str) -> None:
        self._begin_send(body)
        assert raw.response(self._sender)[0] == 200

    def _expect(self, body: str) -> None:
        """The message is there for the next client."""
        messages: list[Any] = self._sqs.receive_message(QueueUrl=self._url, WaitTimeSeconds=5).get("Messages", [])
        assert [message["Body"] for message in messages] == [body], "a client took the message with it"
        self.counts["given back"] += 1


def _taken(poll: socket.socket) -> list[str]:
    """What a client that sends no more has got."""
    with poll:
        try:
            status, body = raw.response(poll)
        except http.client.RemoteDisconnected:
            return []
    return raw.bodies((status, body)) if status == 200 else []
