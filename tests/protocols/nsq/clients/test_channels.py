"""Topics and channels as things: created, paused, emptied, deleted, ephemeral."""

from __future__ import annotations

import pytest

from tests import clustered
from tests.protocols.nsq.clients.servers import Broker, until
from tests.protocols.nsq.clients.wire import fin
from tests.shards import not_for_clusters


@not_for_clusters("a node counts the clients that are connected to it")
def test_publishing_creates_a_topic_and_subscribing_both(server: Broker, topic: str) -> None:
    assert server.topic(topic) is None
    server.publish(topic, b"x", b"yz")
    found = server.topic(topic)
    assert (found["depth"], found["message_count"], found["message_bytes"], found["channels"]) == (2, 2, 3, [])
    with server.subscriber(f"{topic}-b", "ch"):
        assert server.channel(f"{topic}-b", "ch")["client_count"] == 1
    until(lambda: server.channel(f"{topic}-b", "ch")["client_count"] == 0)


def test_a_channel_s_depth_is_its_own(server: Broker, topic: str) -> None:
    server.post("/topic/create", topic=topic)
    for name in ("one", "two"):
        server.post("/channel/create", topic=topic, channel=name)
    server.publish(topic, b"a", b"b", b"c")
    until(lambda: server.channel(topic, "one")["depth"] == server.channel(topic, "two")["depth"] == 3)
    with server.subscriber(topic, "one", ready=2) as reader:
        held = reader.messages(2)
        assert server.channel(topic, "one")["in_flight_count"] == 2
        assert server.channel(topic, "one")["depth"] == 1
        reader.send(*map(fin, held), b"RDY 0\n")
        until(lambda: server.channel(topic, "one")["in_flight_count"] <= 1)
    assert server.channel(topic, "two")["depth"] == 3


def test_a_paused_channel_delivers_nothing_until_it_goes_on(server: Broker, topic: str) -> None:
    with server.subscriber(topic, "ch", ready=10) as reader, server.subscriber(topic, "other", ready=10) as other:
        server.post("/channel/pause", topic=topic, channel="ch")
        assert server.channel(topic, "ch")["paused"] is True
        server.publish(topic, b"x")
        assert other.message().body == b"x"
        assert reader.is_silent()
        server.post("/channel/unpause", topic=topic, channel="ch")
        assert server.channel(topic, "ch")["paused"] is False
        assert reader.message().body == b"x"


def test_what_a_client_of_a_paused_channel_holds_can_be_finished(server: Broker, topic: str) -> None:
    server.publish(topic, b"a", b"b")
    with server.subscriber(topic, ready=1) as reader:
        message = reader.message()
        server.post("/channel/pause", topic=topic, channel="ch")
        reader.send(fin(message))
        assert reader.is_silent()
        assert server.channel(topic)["depth"] == 1


def test_a_paused_topic_keeps_its_messages_from_the_channels(server: Broker, topic: str) -> None:
    with server.subscriber(topic, "ch", ready=10) as reader:
        server.publish(topic, b"before")
        reader.message()
        server.post("/topic/pause", topic=topic)
        assert server.topic(topic)["paused"] is True
        server.publish(topic, b"after")
        assert reader.is_silent()
        server.post("/topic/unpause", topic=topic)
        assert reader.message().body == b"after"


def test_an_emptied_channel_forgets_what_waits_and_what_is_in_flight(server: Broker, topic: str) -> None:
    server.publish(topic, b"a", b"b", b"c")
    with server.subscriber(topic, ready=1) as reader:
        message = reader.message()
        server.post("/channel/empty", topic=topic, channel="ch")
        assert (server.channel(topic)["depth"], server.channel(topic)["in_flight_count"]) == (0, 0)
        reader.send(fin(message))
        assert reader.error().startswith("E_FIN_FAILED ")
        server.publish(topic, b"d")
        assert reader.message().body == b"d"


def test_an_emptied_topic_forgets_what_waits_for_its_first_channel(server: Broker, topic: str) -> None:
    server.publish(topic, b"a", b"b")
    server.post("/topic/empty", topic=topic)
    assert server.topic(topic)["depth"] == 0
    server.publish(topic, b"c")
    with server.subscriber(topic, ready=10) as reader:
        assert reader.message().body == b"c"
        assert reader.is_silent()


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_deleting_closes_the_clients(server: Broker, topic: str, what: str) -> None:
    reader = server.subscriber(topic, "ch", ready=10)
    query = {"topic": topic} if what == "topic" else {"topic": topic, "channel": "ch"}
    server.post(f"/{what}/delete", **query)
    assert reader.is_closed()
    reader.close()
    assert server.channel(topic, "ch") is None
    assert (server.topic(topic) is None) == (what == "topic")


def test_a_deleted_topic_can_be_had_again_without_its_past(server: Broker, topic: str) -> None:
    server.publish(topic, b"old")
    server.post("/topic/delete", topic=topic)
    server.publish(topic, b"new")
    with server.subscriber(topic, ready=10) as reader:
        assert reader.message().body == b"new"
        assert reader.is_silent()


def test_an_ephemeral_channel_goes_with_its_last_client(server: Broker, topic: str) -> None:
    channel = "ch#ephemeral"
    one, other = server.subscriber(topic, channel), server.subscriber(topic, channel, ready=1)
    one.close()
    if not clustered.NODES:  # a node counts the clients that are connected to it
        until(lambda: server.channel(topic, channel)["client_count"] == 1)
    server.publish(topic, b"still there")
    assert other.message().body == b"still there"
    other.close()
    until(lambda: server.channel(topic, channel) is None)
    assert server.topic(topic) is not None


def test_an_ephemeral_topic_goes_with_its_last_channel(server: Broker, topic: str) -> None:
    name = f"{topic}#ephemeral"
    with server.subscriber(name, "ch#ephemeral"), server.subscriber(name, "kept") as kept:
        kept.close()
        until(lambda: server.channel(name, "kept")["client_count"] == 0)
    until(lambda: server.channel(name, "ch#ephemeral") is None)
    assert server.topic(name) is not None
    server.post("/channel/delete", topic=name, channel="kept")
    until(lambda: server.topic(name) is None)


def test_messages_of_ephemeral_channels_are_messages(server: Broker, topic: str) -> None:
    name = f"{topic}#ephemeral"
    with server.subscriber(name, "ch#ephemeral", ready=5) as reader:
        server.publish(name, b"a", b"b")
        assert sorted(message.body for message in reader.messages(2)) == [b"a", b"b"]
