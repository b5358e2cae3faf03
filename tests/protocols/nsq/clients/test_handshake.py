"""The two-step handshake of NSQ's first design: confirm the receipt soon (TOUCH), then the work (FIN or REQ)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.protocols.nsq.clients.servers import AGAINST_NSQD, Penstock, running, until
from tests.protocols.nsq.clients.wire import fin, req, touch

pytestmark = pytest.mark.skipif(AGAINST_NSQD, reason="nsqd has no such option any more")

SETTINGS = """
[nsq]
latency_percentiles = [0.5, 0.99]

[[nsq.handshake]]
topic = "topic-*"
channel = "silent"
receipt_timeout_s = 1.5
processing_timeout_s = 600

[[nsq.handshake]]
topic = "topic-*"
channel = "confirmed"
receipt_timeout_s = 4
processing_timeout_s = 7

[[nsq.handshake]]
topic = "topic-*"
channel = "confirmed-for-long"
receipt_timeout_s = 4
processing_timeout_s = 600
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with running(Penstock(tmp_path_factory.mktemp("handshake"), settings=SETTINGS)) as server:
        yield server


def test_silence_after_the_delivery_requeues_soon(server: Penstock, topic: str) -> None:
    server.publish(topic, b"x")
    started_s = time.monotonic()
    with server.subscriber(topic, "silent", ready=1) as reader:
        reader.message()
        assert reader.message().attempts == 2
        assert time.monotonic() - started_s > 1.4


def test_a_confirmed_message_has_the_processing_time(server: Penstock, topic: str) -> None:
    server.publish(topic, b"x")
    with server.subscriber(topic, "confirmed", ready=1) as reader:
        message = reader.message()
        started_s = time.monotonic()
        reader.send(touch(message))
        assert reader.message().attempts == 2
        assert time.monotonic() - started_s > 6


def test_a_run_of_confirmations_in_one_write(server: Penstock, topic: str) -> None:
    server.publish(topic, *[b"%d" % number for number in range(200)])
    with server.subscriber(topic, "confirmed-for-long", ready=200) as reader:
        held = reader.messages(200)
        reader.send(*map(touch, held))
        assert reader.is_silent(4.5)
        reader.send(*map(fin, held))
        until(lambda: server.channel(topic, "confirmed-for-long")["in_flight_count"] == 0)
        assert server.channel(topic, "confirmed-for-long")["timeout_count"] == 0


def test_success_and_failure_may_come_without_a_confirmation(server: Penstock, topic: str) -> None:
    server.publish(topic, b"a", b"b")
    with server.subscriber(topic, "confirmed", ready=2) as reader:
        one, other = reader.messages(2)
        reader.send(b"RDY 0\n", fin(one), req(other))
        until(lambda: server.channel(topic, "confirmed")["depth"] == 1)
        assert server.channel(topic, "confirmed")["requeue_count"] == 1


def test_other_channels_are_as_ever(server: Penstock, topic: str) -> None:
    server.publish(topic, b"x")
    with server.subscriber(topic, "plain", ready=1) as reader:
        reader.message()
        assert reader.is_silent(4.5)


def test_latencies_are_shown_where_they_are_asked_for(server: Penstock, topic: str) -> None:
    started_s = time.monotonic()
    with server.subscriber(topic, "plain", ready=10) as reader:
        server.publish(topic, b"a", b"b")
        held = reader.messages(2)
        time.sleep(0.2)
        reader.send(*map(fin, held))
        until(lambda: server.channel(topic, "plain")["e2e_processing_latency"]["count"] == 2)
        latency = server.channel(topic, "plain")["e2e_processing_latency"]
    assert [each["quantile"] for each in latency["percentiles"]] == [0.5, 0.99]
    longest_ns = (time.monotonic() - started_s) * 1e9 * 1.1 + 0.1e9  # they are counted in classes
    assert all(0.15e9 < each["value"] < longest_ns for each in latency["percentiles"])
