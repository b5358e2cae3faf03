"""IDENTIFY: what is negotiated, and heartbeats."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.protocols.nsq.clients.servers import AGAINST_NSQD, Broker
from tests.protocols.nsq.clients.wire import Frame, identify, sized
from tests.shards import not_for_clusters

KEYS = {
    "max_rdy_count",
    "version",
    "max_msg_timeout",
    "msg_timeout",
    "tls_v1",
    "deflate",
    "deflate_level",
    "max_deflate_level",
    "snappy",
    "sample_rate",
    "auth_required",
    "output_buffer_size",
    "output_buffer_timeout",
}
HEARTBEAT = Frame(0, b"_heartbeat_")


def test_without_feature_negotiation_the_answer_is_ok(server: Broker) -> None:
    with server.connect() as connection:
        assert connection.ask(identify(client_id="me", hostname="here")) == b"OK"


ODD_BODIES = [
    b"{}",
    b"null",
    b'{"unknown": [1, {"a": null}]}',
    b' {"heartbeat_interval": 0} ',
    b'{"client_id": "\xff\xfe"}',
    b'{"\x8c": 1}',
    b'{"client_id": "a\\u0000b"}',
    b'{"client_id": "x", "client_id": "y"}',
]


@pytest.mark.parametrize("body", ODD_BODIES)
def test_bodies_that_say_nothing_of_interest_are_fine(server: Broker, body: bytes) -> None:
    with server.connect() as connection:
        assert connection.ask(b"IDENTIFY\n" + sized(body)) == b"OK"


@pytest.mark.parametrize("body", [b'{"client_id": "\\ud800"}', b'{"x": ' + b"[" * 100_000, b'{"x":' * 100_000])
def test_bodies_that_cannot_be_understood_harm_nobody(server: Broker, body: bytes) -> None:
    """nsqd takes half of a surrogate pair for a sign that is missing."""
    with server.connect() as connection:
        connection.send(b"IDENTIFY\n" + sized(body))
        frame = connection.frame()
        assert frame is not None
        assert frame.data.startswith(b"E_BAD_BODY") or (server.is_nsqd and frame.data == b"OK")


def test_the_answer_says_what_was_agreed(server: Broker) -> None:
    with server.connect() as connection:
        answer = connection.identify()
    assert set(answer) == KEYS
    del answer["version"]
    assert answer == {
        "max_rdy_count": 2500,
        "max_msg_timeout": 900_000,
        "msg_timeout": 60_000,
        "tls_v1": False,
        "deflate": False,
        "deflate_level": 6,
        "max_deflate_level": 6,
        "snappy": False,
        "sample_rate": 0,
        "auth_required": False,
        "output_buffer_size": 16 * 1024,
        "output_buffer_timeout": 250,
    }


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [
        ({"msg_timeout": 1000}, {"msg_timeout": 1000}),
        ({"msg_timeout": 900_000}, {"msg_timeout": 900_000}),
        ({"sample_rate": 99}, {"sample_rate": 99}),
        ({"output_buffer_size": 64}, {"output_buffer_size": 64}),
        ({"output_buffer_size": 65536}, {"output_buffer_size": 65536}),
        ({"output_buffer_size": -1}, {"output_buffer_size": 1, "output_buffer_timeout": 0}),
        ({"output_buffer_timeout": -1}, {"output_buffer_timeout": 0}),
        ({"output_buffer_timeout": 25}, {"output_buffer_timeout": 25}),
        ({"tls_v1": True}, {"tls_v1": False}),
        ({"heartbeat_interval": 60_000}, {}),
        ({"heartbeat_interval": -1}, {}),
    ],
)
def test_options_are_taken_over(server: Broker, asked: dict[str, int], agreed: dict[str, int]) -> None:
    with server.connect() as connection:
        answer = connection.identify(**asked)
    assert {name: answer[name] for name in agreed} == agreed


@pytest.mark.parametrize(("level", "agreed"), [(1, 1), (6, 6), (9, 6), (0, 6)])
def test_the_level_of_deflate_is_bounded(server: Broker, level: int, agreed: int) -> None:
    with server.connect() as connection:
        answer = connection.identify(deflate=True, deflate_level=level)
    assert (answer["deflate"], answer["deflate_level"]) == (True, agreed)


def test_identify_may_be_repeated_before_sub(server: Broker, topic: str) -> None:
    with server.connect() as connection:
        connection.identify(msg_timeout=5000)
        assert connection.identify(msg_timeout=7000)["msg_timeout"] == 7000
        connection.subscribe(topic, "ch")


def test_a_client_s_names_are_shown_in_the_statistics(server: Broker, topic: str) -> None:
    with server.subscriber(topic, ready=7, client_id="me", hostname="here", user_agent="test/1", sample_rate=5):
        [client] = server.channel(topic)["clients"]
    shown = {name: client[name] for name in ("client_id", "hostname", "user_agent", "sample_rate", "ready_count")}
    assert shown == {
        "client_id": "me",
        "hostname": "here",
        "user_agent": "test/1",
        "sample_rate": 5,
        "ready_count": 7,
    }


def test_heartbeats_come_and_who_answers_them_stays(server: Broker) -> None:
    with server.connect(heartbeat_interval=1000) as connection:
        for _ in range(3):
            started_s = time.monotonic()
            assert connection.raw_frame() == HEARTBEAT
            assert time.monotonic() - started_s < 30
            connection.send(b"NOP\n")
        assert connection.is_open()


def test_who_does_not_answer_heartbeats_is_closed(server: Broker, topic: str) -> None:
    """After two intervals without a word; what it held is another's then, in nsqd when its time is over."""
    server.publish(topic, b"held")
    msg_timeout = 2000 if server.is_nsqd else 60_000
    started_s = time.monotonic()
    with server.subscriber(topic, ready=1, heartbeat_interval=1000, msg_timeout=msg_timeout) as connection:
        connection.message()
        while connection.raw_frame() is not None:
            pass
        assert 1.5 < time.monotonic() - started_s < 60
        with server.subscriber(topic, ready=1) as other:
            assert other.message().attempts == 2


def test_any_command_counts_as_an_answer(server: Broker, topic: str) -> None:
    with server.connect(heartbeat_interval=3000) as connection:
        ends_s = time.monotonic() + 7
        while time.monotonic() < ends_s:
            connection.publish(topic, b"x")
            time.sleep(0.4)
        assert connection.is_open()


@pytest.mark.skipif(AGAINST_NSQD, reason="nsqd does not promise this")
@not_for_clusters("one process is stopped")
def test_who_answers_while_the_server_stands_still_stays(server: Broker) -> None:
    with server.connect(heartbeat_interval=1000) as connection:
        server.process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(6):
                time.sleep(0.5)
                connection.send(b"NOP\n")
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert connection.is_open()


def test_heartbeats_can_be_switched_off(server: Broker) -> None:
    with server.connect(heartbeat_interval=-1) as connection:
        try:
            assert connection.raw_frame(1.5) is None
        except TimeoutError:
            assert connection.is_open()


def test_the_answer_is_json_with_a_version(server: Broker) -> None:
    with server.connect() as connection:
        answer = json.loads(connection.ask(identify(feature_negotiation=True)))
    assert isinstance(answer["version"], str)
    assert answer["version"]
