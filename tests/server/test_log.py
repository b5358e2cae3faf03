"""What the log leaves out: what Kafka's client says again and again."""

from __future__ import annotations

import io
import logging

import pytest

from penstock.server.log import SeldomRepeated

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
