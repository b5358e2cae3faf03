from __future__ import annotations

import pytest

from tests.protocols.lookup.serving import FakeNode, RunningLookup, lookup_service, until

PRODUCER_KEYS = {"remote_address", "hostname", "broadcast_address", "tcp_port", "http_port", "version"}


def test_ping_and_info(lookup: RunningLookup) -> None:
    assert lookup.get("/ping") == "OK"
    assert lookup.get("/info") == {"version": "1.3.0"}


def test_a_lookup_names_producers_and_channels(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as node:
        node.identify("node1", 1234, 1235)
        node.command("REGISTER orders billing")
        found = lookup.get("/lookup?topic=orders")
        assert set(found) == {"channels", "producers"}
        assert found["channels"] == ["billing"]
        (producer,) = found["producers"]
        assert set(producer) == PRODUCER_KEYS
        assert producer["remote_address"] == "{}:{}".format(*node.socket.getsockname())
        assert (producer["broadcast_address"], producer["tcp_port"], producer["http_port"]) == ("node1", 1234, 1235)


def test_nodes_show_their_topics_and_tombstones(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as node:
        node.identify("node1")
        node.command("REGISTER orders billing")
        node.command("REGISTER alerts")
        lookup.post("/topic/tombstone?topic=orders&node=node1:4151")
        (shown,) = lookup.get("/nodes")["producers"]
        assert set(shown) == PRODUCER_KEYS | {"tombstones", "topics"}
        assert (shown["topics"], shown["tombstones"]) == (["alerts", "orders"], [False, True])
        assert lookup.producers("orders") == []
        assert lookup.producers("alerts") == ["node1"]


def test_a_tombstone_ends_with_its_lifetime() -> None:
    with lookup_service(tombstone_lifetime_s=0.3) as lookup, FakeNode(lookup.tcp_port) as node:
        node.identify("node1")
        node.command("REGISTER orders")
        lookup.post("/topic/tombstone?topic=orders&node=node1:4151")
        until(lambda: lookup.producers("orders") == ["node1"])


def test_topics_and_channels_are_created_and_deleted(lookup: RunningLookup) -> None:
    lookup.post("/topic/create?topic=orders")
    lookup.post("/channel/create?topic=alerts&channel=mail%23ephemeral")
    assert lookup.get("/topics") == {"topics": ["alerts", "orders"]}
    assert lookup.get("/lookup?topic=alerts") == {"channels": ["mail#ephemeral"], "producers": []}
    lookup.post("/channel/delete?topic=alerts&channel=mail%23ephemeral")
    assert lookup.get("/channels?topic=alerts") == {"channels": []}
    lookup.post("/topic/delete?topic=alerts")
    lookup.post("/topic/delete?topic=alerts")
    assert lookup.get("/topics") == {"topics": ["orders"]}


def test_debug_shows_every_registration(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as node:
        node.identify("node1")
        node.command("REGISTER orders billing")
        shown = lookup.get("/debug")
        assert set(shown) == {"client::", "topic:orders:", "channel:orders:billing"}
        keys = PRODUCER_KEYS - {"remote_address"} | {"id", "last_update", "tombstoned", "tombstoned_at"}
        assert {key for holders in shown.values() for holder in holders for key in holder} == keys


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=nothing", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=nothing&order=size", 400, "INVALID_ARG_ORDER"),
        ("GET", "/lookup?topic=%zz", 400, "INVALID_REQUEST"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=bad$name", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?node=a:1", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=a", 400, "MISSING_ARG_NODE"),
        ("POST", "/channel/create?topic=a", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=a&channel=b%20c", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=a&channel=b", 404, "CHANNEL_NOT_FOUND"),
        ("GET", "/topic/create?topic=a", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/lookup?topic=a", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/nowhere", 404, "NOT_FOUND"),
    ],
)
def test_errors_are_nsqlookupds(lookup: RunningLookup, method: str, path: str, status: int, message: str) -> None:
    assert lookup.ask(method, path) == (status, {"message": message})


def test_web_pages_may_not_ask(lookup: RunningLookup) -> None:
    status, _ = lookup.ask("POST", "/topic/delete?topic=a", {"Origin": "https://example.com"})
    assert status == 403


def test_metrics_count_nodes_and_names(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as node:
        node.identify("node1")
        node.command("REGISTER orders billing")
        shown = str(lookup.get("/metrics"))
    assert "penstock_lookup_nodes 1.0" in shown
    assert "penstock_lookup_names 2.0" in shown
