"""PUB, MPUB and DPUB: what is taken, what arrives, and when."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from tests.protocols.nsq.clients.servers import Broker
from tests.protocols.nsq.clients.wire import dpub, fin, many, mpub, pub, sized, sub
from tests.shards import not_for_clusters

MSG_BYTES_MAX = 1024 * 1024


def test_a_message_arrives_with_its_body_its_time_and_a_first_attempt(server: Broker, topic: str) -> None:
    before_ns = time.time_ns()
    server.publish(topic, b"\0 any bytes \xff\n")
    with server.subscriber(topic, ready=1) as reader:
        message = reader.message()
    assert message.body == b"\0 any bytes \xff\n"
    assert message.attempts == 1
    assert before_ns - 10**9 < message.timestamp_ns < time.time_ns() + 10**9
    assert len(message.id) == 16
    assert int(message.id, 16) >= 0


def test_ids_are_not_repeated(server: Broker, topic: str) -> None:
    for _ in range(5):
        server.publish(topic, *[b"x"] * 20)
    with server.subscriber(topic, ready=100) as reader:
        assert len({message.id for message in reader.messages(100)}) == 100


@pytest.mark.parametrize("bytes_count", [1, 2, 199, 16 * 1024, 65_537, MSG_BYTES_MAX])
def test_bodies_of_any_size_up_to_the_limit(server: Broker, topic: str, bytes_count: int) -> None:
    body = (b"0123456789" * (bytes_count // 10 + 1))[:bytes_count]
    server.publish(topic, body)
    with server.subscriber(topic, ready=1) as reader:
        assert reader.message().body == body


def test_mpub_publishes_all_of_it(server: Broker, topic: str) -> None:
    bodies = [b"%d" % number * (number % 7 + 1) for number in range(500)]
    server.publish(topic, *bodies)
    with server.subscriber(topic, ready=1000) as reader:
        assert sorted(message.body for message in reader.messages(500)) == sorted(bodies)
        assert reader.is_silent()


def test_mpub_of_one(server: Broker, topic: str) -> None:
    with server.connect() as connection:
        assert connection.ask(mpub(topic, [b"alone"])) == b"OK"
    with server.subscriber(topic, ready=2) as reader:
        assert reader.message().body == b"alone"
        assert reader.is_silent()


def test_mpub_whose_messages_do_not_fill_its_body(server: Broker, topic: str) -> None:
    """nsqd never looks at the size of the body again; here what does not add up is refused, and nothing published."""
    content = many([b"a", b"b"])
    with server.connect() as connection:
        connection.send(f"MPUB {topic}\n".encode() + struct.pack(">i", len(content) + 5) + content)
        if server.is_nsqd:
            assert connection.response() == b"OK"
            return
        connection.send(b"NOP\n\n")
        assert connection.error().startswith("E_BAD_")
        assert connection.is_closed()
    with server.subscriber(topic, ready=2) as reader:
        assert reader.is_silent()


def test_mpub_whose_messages_are_longer_than_its_body(server: Broker, topic: str) -> None:
    """nsqd reads on behind the body; here it is refused."""
    content = many([b"a", b"b"])
    with server.connect() as connection:
        connection.send(f"MPUB {topic}\n".encode() + struct.pack(">i", len(content) - 1) + content)
        if server.is_nsqd:
            assert connection.response() == b"OK"
            return
        assert connection.error().startswith("E_BAD_")
        assert connection.is_closed()


def test_a_deferred_message_comes_when_it_is_due(server: Broker, topic: str) -> None:
    with server.subscriber(topic, ready=10) as reader, server.connect() as writer:
        started_s = time.monotonic()
        assert writer.ask(dpub(topic, 600, b"later")) == b"OK"
        later = reader.message()
        assert later.body == b"later"
        assert later.attempts == 1
        assert time.monotonic() - started_s > 0.59


def test_a_deferred_message_keeps_nobody_waiting(server: Broker, topic: str) -> None:
    with server.subscriber(topic, ready=10) as reader, server.connect() as writer:
        assert writer.ask(dpub(topic, 3_600_000, b"later")) == b"OK"
        assert writer.ask(dpub(topic, 0, b"now")) == b"OK"
        assert reader.message().body == b"now"


def test_the_longest_delay_is_accepted(server: Broker, topic: str) -> None:
    with server.subscriber(topic, ready=1) as reader, server.connect() as writer:
        assert writer.ask(dpub(topic, 3_600_000, b"in an hour")) == b"OK"
        assert reader.is_silent()
        assert server.channel(topic)["deferred_count"] == 1


@pytest.mark.parametrize("line", ["PUB {} extra", "PUB {}\r", "PUB {} \r"])
def test_carriage_returns_and_surplus_parameters_do_no_harm(server: Broker, topic: str, line: str) -> None:
    with server.connect() as connection:
        assert connection.ask(line.format(topic).encode() + b"\n" + sized(b"x")) == b"OK"
    with server.subscriber(topic, ready=1) as reader:
        assert reader.message().body == b"x"


def test_many_commands_in_one_write_are_answered_in_order(server: Broker, topic: str) -> None:
    with server.connect() as connection:
        commands = [pub(topic, b"%d" % number) for number in range(300)]
        commands[150] = mpub(topic, [b"a", b"b"])
        connection.send(*commands, b"NOP\n", b"CLS\n")
        assert [connection.response() for _ in commands] == [b"OK"] * 300
        assert connection.error() == "E_INVALID cannot CLS in current state"
    with server.subscriber(topic, ready=1000) as reader:
        assert len(reader.messages(301)) == 301


def test_commands_that_come_byte_by_byte(server: Broker, topic: str) -> None:
    with server.connect() as connection:
        for byte in pub(topic, b"slow") + mpub(topic, [b"er", b"est"]) + b"NOP\n":
            connection.send(bytes([byte]))
        assert [connection.response(), connection.response()] == [b"OK", b"OK"]
        connection.subscribe(topic, "ch", ready=5)
        assert sorted(message.body for message in connection.messages(3)) == [b"er", b"est", b"slow"]


@pytest.mark.parametrize("is_subscriber", [False, True])
def test_what_was_sent_before_the_end_counts(server: Broker, topic: str, is_subscriber: bool) -> None:
    """A client may say that it has nothing more to send, and still read its answers."""
    with server.connect() as connection:
        start = [sub(f"{topic}-other", "ch")] if is_subscriber else []
        commands = [*start, pub(topic, b"one"), mpub(topic, [b"two", b"three"]), pub(topic, b"four")]
        connection.send(*commands)
        connection.socket.shutdown(socket.SHUT_WR)
        assert [connection.response() for _ in commands] == [b"OK"] * len(commands)
        assert connection.is_closed()
    with server.subscriber(topic, ready=10) as reader:
        assert sorted(message.body for message in reader.messages(4)) == [b"four", b"one", b"three", b"two"]


def test_a_subscriber_may_publish(server: Broker, topic: str) -> None:
    with server.subscriber(topic, ready=1) as connection:
        connection.send(pub(topic, b"to myself"))
        frames = [connection.frame(), connection.frame()]
        assert sorted(frame.kind for frame in frames if frame) == [0, 2]


@not_for_clusters("a node counts the clients that are connected to it")
@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64, "0", "...", "t#ephemeral", "y" * 54 + "#ephemeral"])
def test_names_that_are_valid(server: Broker, topic: str, name: str) -> None:
    with server.connect() as connection:
        assert connection.ask(pub(name, b"x")) == b"OK"
    with server.subscriber(topic, channel=name):
        assert server.channel(topic, name)["client_count"] == 1


@pytest.mark.parametrize("name", ["x" * 65, "a#b", "#ephemeral", "a#ephemeralb", "a/b", "ä", "y" * 55 + "#ephemeral"])
def test_names_that_are_not_valid(server: Broker, topic: str, name: str) -> None:
    with server.connect() as connection:
        connection.send(pub(name, b"x"))
        assert connection.error().startswith("E_BAD_TOPIC ")
    with server.connect() as connection:
        connection.send(f"SUB {topic} {name}\n".encode())
        assert connection.error().startswith("E_BAD_CHANNEL ")


def test_a_big_backlog_is_delivered_whole(server: Broker, topic: str) -> None:
    """More than nsqd keeps in memory, so that both go to the disk."""
    with server.connect() as writer:
        for start in range(0, 30_000, 1000):
            writer.publish(topic, *[b"%d" % number for number in range(start, start + 1000)])
    seen: set[bytes] = set()
    with server.subscriber(topic, ready=2500) as reader:
        while len(seen) < 30_000:
            run = [reader.message()]
            seen.update(message.body for message in run)
            reader.send(*map(fin, run))
        assert reader.is_silent()
