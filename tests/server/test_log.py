"""What the log leaves out (what Kafka's client says again and again), and what it does not let clients write."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import struct
from pathlib import Path
from urllib.parse import unquote

import pytest

from penstock.server.log import SeldomRepeated, configure
from penstock.server.settings import LogSettings
from tests.server.serving import served

REFUSED = "[thrd:a:1/bootstrap]: a:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after %dms)"


class Logged:
    """A logger with the filter, and a clock that is set."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._stream = io.StringIO()
        handler = logging.StreamHandler(self._stream)
        handler.addFilter(SeldomRepeated(lambda: self.now_s))
        self.logger = logging.Logger("penstock.kafka")
        self.logger.addHandler(handler)

    def refused(self, client: str, after_ms: int) -> None:
        """As confluent-kafka does it."""
        self.logger.error("%s [%s] %s", "FAIL", client, REFUSED % after_ms)

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()


@pytest.fixture
def logged() -> Logged:
    return Logged()


def test_attempts_to_connect_are_one_line_and_later_one_that_counts_them(logged: Logged) -> None:
    for attempt in range(500):
        logged.refused(f"n1#consumer-{attempt % 3}", attempt)
    assert logged.lines == ["FAIL [n1#consumer-0] " + REFUSED % 0]
    logged.now_s += 30
    logged.refused("n1#consumer-0", 7)
    assert logged.lines[1:] == ["FAIL [n1#consumer-0] " + REFUSED % 7 + " (and 499 times before)"]


def test_everything_else_is_written_each_time(logged: Logged) -> None:
    logged.refused("n1#consumer-0", 0)
    logged.refused("orders-shard-1#producer-0", 0)
    for shard in (1, 1, 2):
        logged.logger.info("shard %d is served here", shard)
    assert len(logged.lines) == 5


def test_lines_without_end_are_not_remembered_without_end(logged: Logged) -> None:
    for number in range(3_000):
        logged.refused("n" * (number + 1), 0)
    assert len(logged.lines) == 3_000


FORGED = "%0a2026-01-01T00:00:00.000Z%20info%20forged%0d%1b[2J%c2%9b31m%e2%80%a8end"
"""A line of its own, an order to the terminal in both its forms, and what Unicode takes for the end of a line."""


def test_no_request_writes_a_line_of_its_own_into_the_log(tmp_path: Path) -> None:
    config = '[log]\nrequests = "all"\nlevel = "debug"\n'
    with served(tmp_path, config) as server:
        for front_end, target in (
            ("sqs", f"/000000000000/{FORGED}?Action=SendMessage&MessageBody=x"),
            ("sqs", f"/?Action={FORGED}"),
            ("sqs", f"/?Action=GetQueueUrl&QueueName={FORGED}"),
            ("http", f"/v1/queues/{FORGED}"),
            ("http", f"/v1/queues/{FORGED}/messages"),
            ("http", f"/{FORGED}"),
            ("nsq-http", f"/pub?topic={FORGED}"),
            ("nsq-http", f"/{FORGED}"),
            ("nsq-http", f"/channel/create?topic=t&channel={FORGED}"),
        ):
            for method in ("GET", "POST"):
                server.talk(front_end, f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        plain = unquote(FORGED).encode()
        with server.connect("nsq") as connection:
            identity = json.dumps({"client_id": unquote(FORGED), "user_agent": unquote(FORGED)}).encode()
            connection.sendall(b"  V2IDENTIFY\n" + struct.pack(">l", len(identity)) + identity)
            connection.sendall(b"SUB " + plain.replace(b"\n", b"\r") + b" c\n")
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass
    lines = server.log.split("\n")
    assert sum("forged" in line for line in lines) >= 3
    assert all(line.isprintable() for line in lines)
    greeting = r"penstock .* ready: |In a browser: |To try it, |Ctrl-C stops the server\.$"
    stamped = re.compile(rf"\d{{4}}-\d\d-\d\dT[\d:.]+Z (debug|info|warning|error) |{greeting}|  |$")
    assert [line for line in lines if not stamped.match(line)] == []
    assert any(r"\n2026-01-01T00:00:00.000Z info forged\r\x1b[2J\x9b31m\u2028end" in line for line in lines)


def test_a_traceback_cannot_be_taken_for_lines_of_the_log() -> None:
    stream = io.StringIO()
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        configure(LogSettings(), stream)
        try:
            raise ValueError("bad\n2026-01-01T00:00:00.000Z info forged\x1b[2J")
        except ValueError:
            logging.getLogger("penstock").exception("it failed: %s", "a\nb")
    finally:
        logging.getLogger().handlers[:], level = before
        logging.getLogger().setLevel(level)
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith(r"error   penstock: it failed: a\nb")
    assert rest[0] == "  Traceback (most recent call last):"
    assert rest[-1] == r"  2026-01-01T00:00:00.000Z info forged\x1b[2J"
