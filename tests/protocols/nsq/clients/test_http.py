"""nsqd's HTTP API: every endpoint, its errors, and the fields of its documents."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.protocols.nsq.clients.servers import Broker, until
from tests.protocols.nsq.clients.wire import fin, many
from tests.shards import not_for_clusters

MSG_BYTES_MAX = 1024 * 1024
BODY_BYTES_MAX = 5 * 1024 * 1024

ERRORS: dict[str, tuple[str, str, bytes, int, str]] = {
    "no such page": ("GET", "/nowhere", b"", 404, "NOT_FOUND"),
    "wrong method": ("GET", "/pub?topic=t", b"", 405, "METHOD_NOT_ALLOWED"),
    "wrong method of stats": ("POST", "/stats", b"", 405, "METHOD_NOT_ALLOWED"),
    "pub without topic": ("POST", "/pub", b"x", 400, "MISSING_ARG_TOPIC"),
    "pub to a bad topic": ("POST", "/pub?topic=a!b", b"x", 400, "INVALID_TOPIC"),
    "pub of nothing": ("POST", "/pub?topic=t", b"", 400, "MSG_EMPTY"),
    "pub of too much": ("POST", "/pub?topic=t", b"x" * (MSG_BYTES_MAX + 1), 413, "MSG_TOO_BIG"),
    "pub with an odd defer": ("POST", "/pub?topic=t&defer=soon", b"x", 400, "INVALID_DEFER"),
    "pub with a negative defer": ("POST", "/pub?topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
    "pub with a long defer": ("POST", "/pub?topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
    "mpub without topic": ("POST", "/mpub", b"x", 400, "MISSING_ARG_TOPIC"),
    "mpub to a bad topic": ("POST", "/mpub?topic=", b"x", 400, "INVALID_TOPIC"),
    "mpub of too much": ("POST", "/mpub?topic=t", b"x\n" * (BODY_BYTES_MAX // 2 + 1), 413, "BODY_TOO_BIG"),
    "mpub with a long line": ("POST", "/mpub?topic=t", b"x" * (MSG_BYTES_MAX + 1), 413, "MSG_TOO_BIG"),
    "binary mpub of nothing": ("POST", "/mpub?topic=t&binary=true", b"", 413, "BAD_BODY"),
    "binary mpub with an empty message": ("POST", "/mpub?topic=t&binary=true", many([b"a", b""]), 413, "BAD_MESSAGE"),
    "binary mpub cut short": ("POST", "/mpub?topic=t&binary=true", many([b"abc"])[:-1], 413, "BAD_MESSAGE"),
    "topic create without topic": ("POST", "/topic/create", b"", 400, "MISSING_ARG_TOPIC"),
    "topic create of a bad name": ("POST", "/topic/create?topic=a!b", b"", 400, "INVALID_TOPIC"),
    "topic delete without topic": ("POST", "/topic/delete", b"", 400, "MISSING_ARG_TOPIC"),
    "topic delete of none": ("POST", "/topic/delete?topic=absent", b"", 404, "TOPIC_NOT_FOUND"),
    "topic empty of none": ("POST", "/topic/empty?topic=absent", b"", 404, "TOPIC_NOT_FOUND"),
    "topic empty of a bad name": ("POST", "/topic/empty?topic=a!b", b"", 400, "INVALID_TOPIC"),
    "topic pause of none": ("POST", "/topic/pause?topic=absent", b"", 404, "TOPIC_NOT_FOUND"),
    "topic unpause of none": ("POST", "/topic/unpause?topic=absent", b"", 404, "TOPIC_NOT_FOUND"),
    "channel create without topic": ("POST", "/channel/create?channel=c", b"", 400, "MISSING_ARG_TOPIC"),
    "channel create without channel": ("POST", "/channel/create?topic=t", b"", 400, "MISSING_ARG_CHANNEL"),
    "channel create of a bad topic": ("POST", "/channel/create?topic=a!b&channel=c", b"", 400, "INVALID_ARG_TOPIC"),
    "channel create of a bad name": ("POST", "/channel/create?topic=t&channel=a!b", b"", 400, "INVALID_ARG_CHANNEL"),
    "channel create of no topic": ("POST", "/channel/create?topic=absent&channel=c", b"", 404, "TOPIC_NOT_FOUND"),
    "channel delete of none": ("POST", "/channel/delete?topic=there&channel=absent", b"", 404, "CHANNEL_NOT_FOUND"),
    "channel empty of none": ("POST", "/channel/empty?topic=there&channel=absent", b"", 404, "CHANNEL_NOT_FOUND"),
    "channel pause of none": ("POST", "/channel/pause?topic=there&channel=absent", b"", 404, "CHANNEL_NOT_FOUND"),
    "channel unpause of none": ("POST", "/channel/unpause?topic=there&channel=absent", b"", 404, "CHANNEL_NOT_FOUND"),
    "config of none": ("GET", "/config/nothing", b"", 400, "INVALID_OPTION"),
    "config with an odd value": ("PUT", "/config/log_level", b"loud", 400, "INVALID_VALUE"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error(server: Broker, name: str) -> None:
    method, path, body, status, message = ERRORS[name]
    server.post("/topic/create", topic="there")
    try:
        answered, content = server.http(method, path, body)
    except (BrokenPipeError, ConnectionResetError):
        assert status == 413, "only what is too big may be cut off"
        return
    assert (answered, json.loads(content)) == (status, {"message": message})


def test_ping(server: Broker) -> None:
    assert server.http("GET", "/ping") == (200, b"OK")


@not_for_clusters("the ports of one node are asked for")
def test_info_has_nsqd_s_fields(server: Broker) -> None:
    status, body = server.http("GET", "/info")
    info = json.loads(body)
    assert status == 200
    assert {name: type(value).__name__ for name, value in info.items()} == {
        "version": "str",
        "broadcast_address": "str",
        "hostname": "str",
        "http_port": "int",
        "tcp_port": "int",
        "start_time": "int",
        "max_heartbeat_interval": "int",
        "max_output_buffer_size": "int",
        "max_output_buffer_timeout": "int",
        "max_deflate_level": "int",
    }
    assert (info["tcp_port"], info["http_port"]) == (server.tcp_port, server.http_port)
    assert info["max_heartbeat_interval"] == 60 * 10**9
    assert info["max_output_buffer_timeout"] == 30 * 10**9


# -- publishing --------------------------------------------------------------------------------------------------------


def test_pub(server: Broker, topic: str) -> None:
    assert server.post("/pub", b"\0any\xff\n", topic=topic) == b"OK"
    assert received(server, topic, 1) == [b"\0any\xff\n"]


def test_pub_of_the_largest_message(server: Broker, topic: str) -> None:
    assert server.post("/pub", b"x" * MSG_BYTES_MAX, topic=topic) == b"OK"
    assert received(server, topic, 1) == [b"x" * MSG_BYTES_MAX]


def test_pub_with_defer(server: Broker, topic: str) -> None:
    with server.subscriber(topic, ready=5) as reader:
        started_s = time.monotonic()
        server.post("/pub", b"later", topic=topic, defer="500")
        assert reader.message().body == b"later"
        assert time.monotonic() - started_s > 0.48


@pytest.mark.parametrize(
    ("body", "bodies"),
    [
        (b"a\nb\nc", [b"a", b"b", b"c"]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"\n\na\n\n", [b"a"]),
        (b"a\r\nb", [b"a\r", b"b"]),
        (b"", []),
    ],
)
def test_mpub_of_lines(server: Broker, topic: str, body: bytes, bodies: list[bytes]) -> None:
    assert server.post("/mpub", body, topic=topic) == b"OK"
    assert received(server, topic, len(bodies)) == bodies


@pytest.mark.parametrize("value", ["true", "1", "yes"])
def test_mpub_in_binary(server: Broker, topic: str, value: str) -> None:
    bodies = [b"line\nfeed", b"\0", b"x" * 1000]
    assert server.post("/mpub", many(bodies), topic=topic, binary=value) == b"OK"
    assert received(server, topic, len(bodies)) == sorted(bodies)


def test_mpub_with_binary_false_is_text(server: Broker, topic: str) -> None:
    server.post("/mpub", b"a\nb", topic=topic, binary="false")
    assert received(server, topic, 2) == [b"a", b"b"]


def received(server: Broker, topic: str, count: int) -> list[bytes]:
    """The messages of a topic: so many, and no more."""
    with server.subscriber(topic, ready=100) as reader:
        found = sorted(message.body for message in reader.messages(count))
        assert reader.is_silent()
        return found


# -- statistics --------------------------------------------------------------------------------------------------------

TOPIC_FIELDS = {
    "topic_name": "str",
    "channels": "list",
    "depth": "int",
    "backend_depth": "int",
    "message_count": "int",
    "message_bytes": "int",
    "paused": "bool",
    "e2e_processing_latency": "dict",
}
CHANNEL_FIELDS = {
    "channel_name": "str",
    "depth": "int",
    "backend_depth": "int",
    "in_flight_count": "int",
    "deferred_count": "int",
    "message_count": "int",
    "requeue_count": "int",
    "timeout_count": "int",
    "client_count": "int",
    "clients": "list",
    "paused": "bool",
    "e2e_processing_latency": "dict",
}
CONSUMER_FIELDS = {
    "client_id": "str",
    "hostname": "str",
    "version": "str",
    "remote_address": "str",
    "state": "int",
    "ready_count": "int",
    "in_flight_count": "int",
    "message_count": "int",
    "finish_count": "int",
    "requeue_count": "int",
    "connect_ts": "int",
    "sample_rate": "int",
    "deflate": "bool",
    "snappy": "bool",
    "user_agent": "str",
    "tls": "bool",
    "tls_cipher_suite": "str",
    "tls_version": "str",
    "tls_negotiated_protocol": "str",
    "tls_negotiated_protocol_is_mutual": "bool",
}
MEMORY_FIELDS = {
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
    "gc_total_runs",
}


def types(document: Mapping[str, Any]) -> dict[str, str]:
    return {name: type(value).__name__ for name, value in document.items()}


@not_for_clusters("a node shows the producers that are connected to it")
def test_the_statistics_have_nsqd_s_fields(server: Broker, topic: str) -> None:
    with server.connect() as writer, server.subscriber(topic, ready=5):
        writer.publish(topic, b"x")
        stats = server.stats()
    assert types(stats) == {
        "version": "str",
        "health": "str",
        "start_time": "int",
        "topics": "list",
        "memory": "dict",
        "producers": "list",
    }
    assert stats["health"] == "OK"
    found = next(each for each in stats["topics"] if each["topic_name"] == topic)
    assert types(found) == TOPIC_FIELDS
    [channel] = found["channels"]
    assert types(channel) == CHANNEL_FIELDS
    [client] = channel["clients"]
    optional = {"auth_identity", "auth_identity_url", "authed", "pub_counts"}
    assert {name: kind for name, kind in types(client).items() if name not in optional} == CONSUMER_FIELDS
    assert set(stats["memory"]) == MEMORY_FIELDS


@not_for_clusters("a node shows the clients that are connected to it")
def test_the_statistics_count(server: Broker, topic: str) -> None:
    with server.subscriber(topic, ready=5, client_id="me") as reader:
        server.publish(topic, *[b"12345"] * 8)
        held = reader.messages(5)
        reader.send(b"RDY 0\n", fin(held[0]), b"REQ %s 0\n" % held[1].id, b"REQ %s 60000\n" % held[2].id)
        until(lambda: server.channel(topic)["deferred_count"] == 1)
        found = server.topic(topic)
        [channel] = found["channels"]
        [client] = channel["clients"]
    assert (found["message_count"], found["message_bytes"], found["depth"]) == (8, 40, 0)
    shown = ("depth", "in_flight_count", "deferred_count", "message_count", "requeue_count", "timeout_count")
    assert [channel[name] for name in shown] == [4, 2, 1, 8, 2, 0]
    assert channel["client_count"] == 1
    shown = ("state", "ready_count", "in_flight_count", "message_count", "finish_count", "requeue_count")
    assert [client[name] for name in shown] == [3, 0, 2, 5, 1, 2]
    assert client["client_id"] == "me"
    assert abs(client["connect_ts"] - time.time()) < 60


@not_for_clusters("a node shows the producers that are connected to it")
def test_producers_are_shown_with_what_they_published(server: Broker, topic: str) -> None:
    with server.connect(client_id="writer") as writer:
        writer.publish(topic, b"a", b"b")
        producers = server.stats(topic=topic)["producers"]
    [mine] = [each for each in producers if each["client_id"] == "writer" and each.get("pub_counts")]
    assert mine["pub_counts"] == [{"topic": topic, "count": 2}]


@not_for_clusters("a node's statistics are of the topics that it has")
def test_the_statistics_can_be_narrowed(server: Broker, topic: str) -> None:
    with server.subscriber(topic, "one"), server.subscriber(topic, "two"):
        stats = server.stats(topic=topic, channel="two", include_clients="false", include_mem="false")
        assert "memory" not in stats
        [found] = stats["topics"]
        [channel] = found["channels"]
        assert (found["topic_name"], channel["channel_name"]) == (topic, "two")
        assert not channel["clients"]
        assert channel["client_count"] == 1
        assert not server.stats(topic="absent")["topics"]


@not_for_clusters("a node's statistics are of the topics that it has")
def test_the_statistics_as_text(server: Broker, topic: str) -> None:
    with server.subscriber(topic, "ch"):
        status, body = server.http("GET", "/stats")
    text = body.decode()
    assert status == 200
    assert "Health: OK" in text
    assert f"[{topic}" in text
    assert "[ch" in text


# -- topics, channels, options -----------------------------------------------------------------------------------------


def test_creating_twice_is_no_error(server: Broker, topic: str) -> None:
    for _ in range(2):
        assert server.post("/topic/create", topic=topic) == b""
        assert server.post("/channel/create", topic=topic, channel="ch") == b""


def test_pausing_twice_is_no_error(server: Broker, topic: str) -> None:
    server.post("/topic/create", topic=topic)
    for path in ("/topic/pause", "/topic/pause", "/topic/unpause", "/topic/unpause"):
        assert server.post(path, topic=topic) == b""


@not_for_clusters("the log level is one process's")
def test_the_log_level_can_be_asked_and_set(server: Broker) -> None:
    """It is set by its name, and answered by its number."""
    for level, number in ((b"debug", 1), (b"warn", 3), (b"info", 2)):
        assert server.http("PUT", "/config/log_level", level)[0] == 200
        assert server.http("GET", "/config/log_level") == (200, b"%d" % number)


@not_for_clusters("each node has its own lookup addresses")
def test_the_lookup_addresses_can_be_asked_and_set(server: Broker) -> None:
    path = "/config/nsqlookupd_tcp_addresses"
    assert server.http("GET", path) == (200, b"[]")
    status, answer = server.http("PUT", path, b'["127.0.0.1:1"]')
    assert (status, json.loads(answer)) == (200, ["127.0.0.1:1"])
    assert json.loads(server.http("GET", path)[1]) == ["127.0.0.1:1"]
    assert server.http("PUT", path, b"[]")[0] == 200
