from __future__ import annotations

import contextlib
import http.client
import json
import logging
import ssl
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.commands import AckSequences, CreateQueue, OpenSession, QueueStats, Receive, Send
from penstock.core.queues.config import QueueConfig
from penstock.protocols.nsq.http import packed_lines
from tests.protocols.lookup.serving import HOST, PATIENCE_S, RunningLookup, lookup_service, until
from tests.protocols.nsq.clients.wire import fin
from tests.protocols.nsq.http.serving import RunningNode, basic, bearer, node


def bodies(server: RunningNode, topic: str, channel: str = "ch") -> list[bytes]:
    server.post("/channel/create", topic=topic, channel=channel)
    delivery = server.call(Receive(queue=topic, channel=channel, limit=1_000, wait_ms=0))
    return [bytes(run.chunk.body(index)) for run in delivery.runs for index in range(run.start, run.stop)]


def packed(*messages: bytes) -> bytes:
    return struct.pack(">i", len(messages)) + b"".join(struct.pack(">i", len(each)) + each for each in messages)


# -- publishing --------------------------------------------------------------------------------------------------------


def test_pub_creates_the_topic_without_a_channel_and_keeps_the_message(server: RunningNode, topic: str) -> None:
    assert server.post("/pub", b"\0hello\n", topic=topic) == "OK"
    assert (server.topic(topic)["channels"], server.topic(topic)["depth"]) == ([], 1)
    assert bodies(server, topic) == [b"\0hello\n"]


def test_pub_with_defer_waits(server: RunningNode, topic: str) -> None:
    server.post("/topic/create", topic=topic)
    server.post("/channel/create", topic=topic, channel="ch")
    server.post("/pub", b"later", topic=topic, defer="60000")
    assert bodies(server, topic) == []
    (channel,) = server.topic(topic)["channels"]
    assert (channel["deferred_count"], channel["depth"], channel["message_count"]) == (1, 0, 1)


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b"a\nb\nc", [b"a", b"b", b"c"]), (b"\n\na\n\n", [b"a"]), (b"a\r\nb", [b"a\r", b"b"]), (b"", [])],
)
def test_mpub_takes_lines(server: RunningNode, topic: str, body: bytes, expected: list[bytes]) -> None:
    assert server.post("/mpub", body, topic=topic) == "OK"
    assert bodies(server, topic) == expected


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\0"]), max_size=30).map(b"".join))
def test_lines_are_what_splitting_gives(text: bytes) -> None:
    assert list(packed_lines(text)) == [line for line in text.split(b"\n") if line]


@pytest.mark.parametrize("messages", [[b"line\nfeed", b"\0", b"x" * 1_000], [b"same", b"size"], [b"one"]])
def test_mpub_takes_packed_messages(server: RunningNode, topic: str, messages: list[bytes]) -> None:
    assert server.post("/mpub", packed(*messages), topic=topic, binary="true") == "OK"
    assert bodies(server, topic) == messages


def test_publishing_to_a_queue_of_another_front_end_keeps_its_rules(server: RunningNode, topic: str) -> None:
    server.call(CreateQueue(name=topic, config=QueueConfig(message_bytes_max=10)))
    assert server.ask("POST", f"/pub?topic={topic}", b"x" * 11) == (413, {"message": "MSG_TOO_BIG"})
    server.call(CreateQueue(name=f"{topic}.fifo", config=QueueConfig(kind="fifo")))
    status, answer = server.ask("POST", f"/pub?topic={topic}.fifo", b"x")
    assert status == 400
    assert "group" in answer["message"]


def test_one_connection_publishes_many_times(server: RunningNode, topic: str) -> None:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=PATIENCE_S)
    for number in range(100):
        connection.request("POST", f"/pub?topic={topic}", b"%d" % number)
        assert connection.getresponse().read() == b"OK"
    connection.close()
    assert len(bodies(server, topic)) == 100


ERRORS: list[tuple[str, str, bytes, int, str]] = [
    ("GET", "/nowhere", b"", 404, "NOT_FOUND"),
    ("GET", "/debug/pprof/", b"", 404, "NOT_FOUND"),
    ("GET", "/pub?topic=t", b"", 405, "METHOD_NOT_ALLOWED"),
    ("POST", "/pub", b"x", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/pub?topic=a!b", b"x", 400, "INVALID_TOPIC"),
    ("POST", "/pub?topic=%zz", b"x", 400, "INVALID_REQUEST"),
    ("POST", "/pub?topic=t", b"", 400, "MSG_EMPTY"),
    ("POST", "/pub?topic=t", b"x" * (1024 * 1024 + 1), 413, "MSG_TOO_BIG"),
    ("POST", "/pub?topic=t&defer=soon", b"x", 400, "INVALID_DEFER"),
    ("POST", "/pub?topic=t&defer=", b"x", 400, "INVALID_DEFER"),
    ("POST", "/pub?topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
    ("POST", "/pub?topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
    ("POST", "/mpub?topic=t", b"x\n" * (5 * 1024 * 1024 // 2 + 1), 413, "BODY_TOO_BIG"),
    ("POST", "/mpub?topic=t", b"x" * (1024 * 1024 + 1), 413, "MSG_TOO_BIG"),
    ("POST", "/mpub?topic=t&binary=1", b"\0", 413, "BAD_BODY"),
    ("POST", "/mpub?topic=t&binary=1", packed(b"abc")[:-1], 413, "BAD_MESSAGE"),
    ("POST", "/topic/create", b"", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/create?topic=a!b", b"", 400, "INVALID_TOPIC"),
    ("POST", "/topic/delete?topic=absent", b"", 404, "TOPIC_NOT_FOUND"),
    ("POST", "/topic/empty?topic=a!b", b"", 400, "INVALID_TOPIC"),
    ("POST", "/topic/pause?topic=absent", b"", 404, "TOPIC_NOT_FOUND"),
    ("POST", "/channel/create?topic=absent&channel=c", b"", 404, "TOPIC_NOT_FOUND"),
    ("POST", "/channel/create?topic=a!b&channel=c", b"", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/channel/delete?topic=there&channel=absent", b"", 404, "CHANNEL_NOT_FOUND"),
    ("POST", "/channel/pause?topic=there", b"", 400, "MISSING_ARG_CHANNEL"),
    ("GET", "/config/nothing", b"", 400, "INVALID_OPTION"),
    ("PUT", "/config/max_msg_size", b"1", 400, "INVALID_OPTION"),
    ("PUT", "/config/log_level", b"", 413, "INVALID_VALUE"),
    ("PUT", "/config/log_level", b"loud", 400, "INVALID_VALUE"),
    ("PUT", "/config/nsqlookupd_tcp_addresses", b'["nowhere"]', 400, "INVALID_VALUE"),
    ("PUT", "/config/nsqlookupd_tcp_addresses", b"{", 400, "INVALID_VALUE"),
    ("POST", "/config/log_level", b"info", 405, "METHOD_NOT_ALLOWED"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "message"), ERRORS)
def test_errors_are_nsqds(server: RunningNode, method: str, path: str, body: bytes, status: int, message: str) -> None:
    server.post("/topic/create", topic="there")
    assert server.ask(method, path, body) == (status, {"message": message})


# -- topics and channels -----------------------------------------------------------------------------------------------


def test_topics_and_channels_come_pause_empty_and_go(server: RunningNode, topic: str) -> None:
    for _ in range(2):
        assert server.post("/topic/create", topic=topic) == ""
        assert server.post("/channel/create", topic=topic, channel="ch") == ""
    server.post("/mpub", b"1\n2\n3", topic=topic)
    server.post("/channel/pause", topic=topic, channel="ch")
    (channel,) = server.topic(topic)["channels"]
    assert (channel["paused"], channel["depth"]) == (True, 3)
    server.post("/channel/empty", topic=topic, channel="ch")
    server.post("/channel/unpause", topic=topic, channel="ch")
    (channel,) = server.topic(topic)["channels"]
    assert (channel["paused"], channel["depth"]) == (False, 0)
    server.post("/channel/delete", topic=topic, channel="ch")
    assert server.topic(topic)["channels"] == []
    server.post("/pub", b"x", topic=topic)
    server.post("/topic/empty", topic=topic)
    assert server.topic(topic)["depth"] == 0
    server.post("/topic/delete", topic=topic)
    assert server.stats(topic=topic)["topics"] is None


def test_a_paused_topic_keeps_messages_from_its_channels(server: RunningNode, topic: str) -> None:
    server.post("/topic/create", topic=topic)
    server.post("/channel/create", topic=topic, channel="ch")
    server.post("/topic/pause", topic=topic)
    server.post("/pub", b"x", topic=topic)
    found = server.topic(topic)
    assert (found["paused"], found["depth"], found["channels"][0]["depth"]) == (True, 1, 0)
    server.post("/topic/unpause", topic=topic)
    found = server.topic(topic)
    assert (found["paused"], found["depth"], found["channels"][0]["depth"]) == (False, 0, 1)


def test_a_pause_outlives_a_restart(tmp_path: Path) -> None:
    with node(tmp_path) as server:
        server.post("/topic/create", topic="orders")
        server.post("/channel/create", topic="orders", channel="ch")
        server.post("/channel/pause", topic="orders", channel="ch")
        server.post("/pub", b"kept", topic="orders")
    with node(tmp_path) as server:
        (channel,) = server.topic("orders")["channels"]
        assert (channel["paused"], channel["depth"]) == (True, 1)


# -- statistics --------------------------------------------------------------------------------------------------------


def test_statistics_can_be_narrowed(server: RunningNode, topic: str) -> None:
    server.post("/topic/create", topic=topic)
    for channel in ("one", "two"):
        server.post("/channel/create", topic=topic, channel=channel)
    found = server.stats(topic=topic, channel="two", include_clients="false", include_mem="0")
    assert "memory" not in found
    assert found["producers"] is None
    ((channel,),) = [each["channels"] for each in found["topics"]]
    assert (channel["channel_name"], channel["clients"]) == ("two", None)
    assert server.stats(topic=topic, channel="three")["topics"] == []
    assert server.stats(topic="absent")["topics"] is None


def test_statistics_name_every_topic_in_order(server: RunningNode, topic: str) -> None:
    for suffix in ("b", "a"):
        server.post("/topic/create", topic=f"{topic}-{suffix}")
    names = [each["topic_name"] for each in server.stats()["topics"]]
    assert names == sorted(names)
    assert {f"{topic}-a", f"{topic}-b"} <= set(names)


def test_latencies_count_from_send_to_fin(server: RunningNode, topic: str) -> None:
    server.post("/topic/create", topic=topic)
    server.post("/channel/create", topic=topic, channel="ch")
    began_s = time.monotonic()
    server.post("/mpub", b"x\n" * 30, topic=topic)
    time.sleep(0.2)
    with server.connect() as client:
        held = client.subscribe(topic, "ch", ready=30).messages(30)
        client.send(*map(fin, held))
        until(lambda: server.topic(topic)["e2e_processing_latency"]["count"] == 30)
    longest_s = time.monotonic() - began_s
    found = server.topic(topic)
    for document in (found, *found["channels"]):
        latency = document["e2e_processing_latency"]
        assert [each["quantile"] for each in latency["percentiles"]] == [0.5, 0.99]
        assert all(0.2 * 0.95 <= each["value"] / 1e9 <= longest_s * 1.05 + 0.02 for each in latency["percentiles"])
    server.post("/channel/delete", topic=topic, channel="ch")
    assert server.topic(topic)["e2e_processing_latency"]["count"] == 0


def test_latencies_of_slow_messages_show_in_the_high_percentiles(server: RunningNode, topic: str) -> None:
    server.post("/topic/create", topic=topic)
    topics = server.topics

    def finish() -> None:
        now_ms = topics.shard.now_ms()
        topics.finished(topic, "ch", [(now_ms - 2_000, 90), (now_ms - 9_000, 10)])

    server.do(finish)
    found = [each["value"] / 1e9 for each in server.topic(topic)["e2e_processing_latency"]["percentiles"]]
    assert found == [pytest.approx(2.0, rel=0.05), pytest.approx(9.0, rel=0.05)]


def test_clients_are_shown_where_they_belong(server: RunningNode, topic: str) -> None:
    with (
        server.connect(client_id="writer", user_agent="test/1") as writer,
        server.connect(client_id="reader") as reader,
    ):
        reader.subscribe(topic, "ch", ready=3)
        writer.publish(topic, b"1", b"2")
        held = reader.messages(2)
        reader.send(fin(held[0]), b"REQ %s 60000\n" % held[1].id)
        until(lambda: server.topic(topic)["channels"][0]["deferred_count"] == 1)
        document = server.stats(topic=topic)
        ((channel,),) = [each["channels"] for each in document["topics"]]
        (consumer,) = channel["clients"]
        shown = ("client_id", "state", "ready_count", "message_count", "finish_count", "requeue_count", "tls")
        assert [consumer[name] for name in shown] == ["reader", 3, 3, 2, 1, 1, False]
        assert (channel["requeue_count"], channel["client_count"]) == (1, 1)
        producer = next(each for each in document["producers"] if each["client_id"] == "writer")
        assert producer["pub_counts"] == [{"topic": topic, "count": 2}]
        text = server.ask("GET", "/stats")[1]
        assert "test/1" in text
        assert f"topics: {topic}=2" in text


def test_a_client_cannot_write_lines_of_its_own_into_the_text(server: RunningNode, topic: str) -> None:
    with server.connect(client_id="x", hostname="a\nb", user_agent="\x1b[31mred") as reader:
        reader.subscribe(topic, "ch")
        text = server.ask("GET", f"/stats?topic={topic}")[1]
    assert "a?b" in text
    assert "\x1b" not in text


def test_latencies_are_not_kept_unless_they_are_wanted(tmp_path: Path) -> None:
    with node(tmp_path) as server:
        server.post("/topic/create", topic="orders")
        assert server.topic("orders")["e2e_processing_latency"] == {"count": 0, "percentiles": None}


def test_statistics_as_text_for_people(server: RunningNode, topic: str) -> None:
    server.post("/topic/create", topic=topic)
    server.post("/channel/create", topic=topic, channel="reader")
    server.post("/channel/pause", topic=topic, channel="reader")
    status, text = server.ask("GET", f"/stats?topic={topic}")
    assert status == 200
    assert "\nHealth: OK\n" in text
    assert f"   [{topic:<15}] depth: 0     be-depth: 0     msgs: 0        e2e%: " in text
    assert "   *P [reader                   ] depth: 0 " in text
    assert "\nProducers: None\n" in text


def test_what_a_consumer_settled_counts(server: RunningNode, topic: str) -> None:
    server.post("/topic/create", topic=topic)
    server.post("/channel/create", topic=topic, channel="ch")
    server.post("/mpub", b"1\n2\n3", topic=topic)
    session = server.call(OpenSession(name="test"))
    delivery = server.call(Receive(queue=topic, channel="ch", limit=2, session=session))
    first = delivery.runs[0].first
    server.call(AckSequences(queue=topic, channel="ch", sequences=np.array([first]), session=session))
    (channel,) = server.topic(topic)["channels"]
    shown = ("depth", "in_flight_count", "message_count", "client_count")
    assert [channel[name] for name in shown] == [1, 1, 3, 0]


# -- what it is, options -----------------------------------------------------------------------------------------------


def test_ping_and_info(server: RunningNode) -> None:
    assert server.ask("GET", "/ping") == (200, "OK")
    _, info = server.ask("GET", "/info")
    assert (info["version"], info["broadcast_address"], info["http_port"]) == ("1.3.0", HOST, server.port)


def test_options_can_be_asked(server: RunningNode) -> None:
    assert server.ask("GET", "/config/max_msg_size") == (200, 1024 * 1024)
    assert server.ask("GET", "/config/msg_timeout") == (200, 60 * 10**9)


def test_the_log_level_can_be_set_while_it_runs(server: RunningNode) -> None:
    before = logging.getLogger().level
    try:
        for word, number in (("debug", 1), ("WARN", 3), ("info", 2)):
            assert server.ask("PUT", "/config/log_level", word.encode()) == (200, number)
    finally:
        logging.getLogger().setLevel(before)


def test_the_lookup_addresses_can_be_set_while_it_runs(server: RunningNode, topic: str) -> None:
    path = "/config/nsqlookupd_tcp_addresses"
    server.post("/topic/create", topic=topic)
    with lookup_service() as lookup:
        assert server.ask("PUT", path, json.dumps([lookup.address]).encode()) == (200, [lookup.address])
        until(lambda: topic in lookup.get("/topics")["topics"])
        assert server.ask("PUT", path, b"[]") == (200, [])
        until(lambda: lookup.get("/nodes") == {"producers": []})


# -- lookup ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lookup() -> Any:
    with lookup_service() as service:
        yield service


def test_a_node_registers_what_it_has_and_what_comes_and_goes(tmp_path: Path, lookup: RunningLookup) -> None:
    with node(tmp_path) as server:
        server.post("/pub", b"x", topic="before")
        server.call(CreateQueue(name="no#topic"))
    with node(tmp_path, lookup=[lookup.address], broadcast_address="node1", broadcast_tcp_port=7) as server:
        until(lambda: lookup.get("/topics") == {"topics": ["before"]})
        (producer,) = lookup.get("/lookup?topic=before")["producers"]
        assert (producer["broadcast_address"], producer["tcp_port"], producer["http_port"]) == ("node1", 7, server.port)
        server.post("/pub", b"x", topic="after")
        server.post("/channel/create", topic="after", channel="ch")
        until(lambda: lookup.get("/channels?topic=after") == {"channels": ["ch"]})
        server.call(Send(queue="by-python", bodies=[b"x"]))
        until(lambda: lookup.get("/channels?topic=by-python") == {"channels": ["main"]})
        server.post("/topic/delete", topic="after")
        until(lambda: lookup.producers("after") == [])
        assert lookup.producers("before") == ["node1"]
    until(lambda: lookup.get("/nodes") == {"producers": []})


def test_depth_orders_the_answers_of_a_lookup(tmp_path: Path, lookup: RunningLookup) -> None:
    settings: dict[str, Any] = {"lookup": [lookup.address], "lookup_heartbeat_s": 0.05}
    with (
        node(tmp_path / "a", broadcast_address="few", **settings) as few,
        node(tmp_path / "b", broadcast_address="many", **settings) as many,
    ):
        few.post("/pub", b"x", topic="orders")
        many.post("/mpub", b"x\n" * 50, topic="orders")
        until(lambda: lookup.producers("orders", "&order=depth") == ["many", "few"])
        few.post("/mpub", b"x\n" * 90, topic="orders")
        until(lambda: lookup.producers("orders", "&order=depth") == ["few", "many"])


# -- who may -----------------------------------------------------------------------------------------------------------

CREDENTIALS = """
[[credentials]]
access_key = "ADMIN"
secret_key = "s1"

[[credentials]]
access_key = "SHOP"
secret_key = "s2"
[[credentials.allow]]
queues = "orders*"
rights = ["write"]
[[credentials.allow]]
queues = "replies"
rights = ["read"]
"""
SHOP = basic("SHOP", "s2")
ADMIN = bearer("ADMIN:s1")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with node(tmp_path_factory.mktemp("guarded"), CREDENTIALS) as running:
        yield running


@pytest.mark.parametrize(
    "headers", [{}, basic("SHOP", "s1"), bearer("SHOP:s1"), {"Authorization": "Basic %"}, {"Authorization": "Digest x"}]
)
def test_strangers_are_refused(guarded: RunningNode, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/pub?topic=orders"), ("GET", "/stats"), ("GET", "/info")):
        assert guarded.ask(method, path, b"x", headers) == (401, {"message": "UNAUTHORIZED"})
    assert guarded.ask("GET", "/ping", headers=headers) == (200, "OK")


def test_who_guesses_is_told_to_wait(tmp_path: Path) -> None:
    with node(tmp_path, CREDENTIALS) as running:
        for number in range(20):
            assert running.ask("GET", "/stats", headers=basic("SHOP", str(number)))[0] == 401
        for method, path in (("GET", "/stats"), ("POST", "/pub?topic=orders")):
            status, told = running.ask(method, path, b"x", SHOP)
            assert status == 429
            assert told["message"].startswith("too many failed logins from 127.0.0.1: wait ")
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)) as connection:
            connection.request("GET", "/stats", headers=SHOP)
            assert 1 <= int(connection.getresponse().headers["retry-after"]) <= 6


def test_rights_hold_by_topic(guarded: RunningNode) -> None:
    def status(method: str, path: str, headers: dict[str, str], body: bytes = b"x") -> int:
        return guarded.ask(method, path, body, headers)[0]

    assert status("POST", "/pub?topic=orders1", SHOP) == 200
    assert status("POST", "/mpub?topic=orders1", SHOP) == 200
    assert status("POST", "/topic/create?topic=orders2", SHOP) == 200
    assert status("POST", "/pub?topic=replies", SHOP) == 403
    assert status("POST", "/topic/create?topic=replies", SHOP) == 403
    assert status("POST", "/topic/create?topic=replies", ADMIN) == 200
    assert status("POST", "/channel/create?topic=replies&channel=c", SHOP) == 200
    assert status("POST", "/channel/create?topic=orders1&channel=c", SHOP) == 403
    for path in ("delete", "empty", "pause", "unpause"):
        assert status("POST", f"/channel/{path}?topic=replies&channel=c", SHOP) == 403
        assert status("POST", f"/topic/{path}?topic=orders1", SHOP) == 403
    assert status("GET", "/config/log_level", SHOP) == 403
    assert status("PUT", "/config/nsqlookupd_tcp_addresses", SHOP, b"[]") == 403
    assert status("GET", "/config/log_level", ADMIN) == 200


def test_statistics_show_only_what_one_may_read(guarded: RunningNode) -> None:
    for topic in ("replies", "orders9"):
        assert guarded.ask("POST", f"/topic/create?topic={topic}", b"", ADMIN)[0] == 200
    _, mine = guarded.ask("GET", "/stats?format=json", headers=SHOP)
    assert [each["topic_name"] for each in mine["topics"]] == ["replies"]
    assert guarded.ask("GET", "/stats?format=json&topic=orders9", headers=SHOP)[1]["topics"] is None
    _, everything = guarded.ask("GET", "/stats?format=json", headers=ADMIN)
    assert {"replies", "orders9"} <= {each["topic_name"] for each in everything["topics"]}


def test_with_a_certificate_it_speaks_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    made = [*command.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, stderr=subprocess.DEVNULL)
    toml = f'[server]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n'
    with node(tmp_path, toml) as server:
        context = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection(HOST, server.port, timeout=PATIENCE_S, context=context)
        connection.request("POST", "/pub?topic=orders", b"sealed")
        assert connection.getresponse().read() == b"OK"
        connection.close()


def test_web_pages_may_not_call_an_open_server(server: RunningNode) -> None:
    assert server.ask("POST", "/pub?topic=t", b"x", {"Origin": "https://example.com"})[0] == 403


def test_a_server_that_stops_says_so(tmp_path: Path) -> None:
    with node(tmp_path) as server:
        server.run(server._node.services.shard.close())
        assert server.ask("POST", "/pub?topic=t", b"x") == (503, {"message": "EXITING"})
        status, answer = server.ask("GET", "/ping")
        assert status == 500
        assert answer["message"].startswith("NOK - ")


def test_published_is_on_the_disk_when_it_is_answered(tmp_path: Path) -> None:
    with node(tmp_path) as server:
        server.post("/mpub", b"1\n2\n3", topic="orders")
    with node(tmp_path) as server:
        assert server.call(QueueStats(name="orders")).sent == 3
