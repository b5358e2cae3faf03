"""A server in this process: the handshake in two steps, what topics hear of, and clients whose store fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.commands import CreateQueue, DeleteQueue, QueueStats, Receive, Release, Stats
from penstock.server.node import Node
from tests.protocols.nsq.clients.wire import Message, fin, mpub, pub, req, touch
from tests.protocols.nsq.http.serving import RunningNode, node
from tests.server.stores import TroubledStore
from tests.shards import one_shard_only

PATIENCE_S = 60.0
HANDSHAKE = """
[[nsq.handshake]]
topic = "careful*"
channel = "two-*"
receipt_timeout_s = 0.4
processing_timeout_s = 60

[[nsq.handshake]]
topic = "unhurried"
channel = "two-*"
receipt_timeout_s = 4
processing_timeout_s = 60
"""


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


@pytest.fixture(params=["false", "true"], ids=["commits inline", "commits in a thread"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RunningNode]:
    with node(tmp_path, f"[server]\ncommit_in_thread = {request.param}\n{HANDSHAKE}") as running:
        yield running


def stats_of(server: RunningNode, topic: str) -> Stats:
    found: Stats = server.call(QueueStats(name=topic))
    return found


# -- the handshake in two steps ----------------------------------------------------------------------------------------


def test_a_message_that_is_not_confirmed_in_time_comes_again(server: RunningNode) -> None:
    with server.connect() as client:
        client.publish("careful", b"x")
        client.subscribe("careful", "two-steps", ready=1)
        assert client.message().attempts == 1
        assert client.message(seconds=5).attempts == 2


def test_a_confirmed_message_has_the_time_for_processing_also_when_a_run_is_confirmed(server: RunningNode) -> None:
    with server.connect() as client:
        client.publish("unhurried", *[b"%d" % number for number in range(5)])
        client.subscribe("unhurried", "two-steps", ready=5)
        messages = client.messages(5)
        client.send(*map(touch, messages))
        assert client.is_silent(4.4)
        client.send(*map(fin, messages[:4]), req(messages[4]))
        again = client.message()
        assert again.attempts == 2
        client.send(fin(again))
        until(lambda: stats_of(server, "unhurried").channels["two-steps"].acked == 5)


def test_success_or_failure_without_a_confirmation_before_is_taken_as_well(server: RunningNode) -> None:
    with server.connect() as client:
        client.publish("careful", b"x")
        client.subscribe("careful", "two-steps", ready=1)
        client.send(req(client.message()))
        client.send(fin(client.message()))
        until(lambda: stats_of(server, "careful").channels["two-steps"].acked == 1)


@pytest.mark.parametrize(("topic", "channel"), [("careful", "one-step"), ("other", "two-steps")])
def test_other_channels_confirm_nothing(server: RunningNode, topic: str, channel: str) -> None:
    with server.connect() as client:
        client.publish(topic, b"x")
        client.subscribe(topic, channel, ready=1)
        client.message()
        assert client.is_silent(1.0)


# -- topics ------------------------------------------------------------------------------------------------------------


def test_listeners_hear_of_topics_and_channels_whoever_makes_them(server: RunningNode) -> None:
    heard: list[tuple[str, str, str | None]] = []
    threads: set[int] = {server.do(threading.get_ident)}

    def listen(*event: str | None) -> None:
        heard.append(event)  # type: ignore[arg-type]
        threads.add(threading.get_ident())

    server.do(lambda: server.topics.listeners.append(listen))
    with server.connect() as client:
        client.publish("a", b"x")
        client.subscribe("b#ephemeral", "c#ephemeral")
    server.call(CreateQueue(name="from-sqs"))
    server.call(DeleteQueue(name="from-sqs"))
    until(lambda: ("queue deleted", "b#ephemeral", None) in heard)
    assert sorted(heard, key=lambda event: event[1]) == [
        ("queue created", "a", None),
        ("queue created", "b#ephemeral", None),
        ("channel created", "b#ephemeral", "c#ephemeral"),
        ("channel deleted", "b#ephemeral", "c#ephemeral"),
        ("queue deleted", "b#ephemeral", None),
        ("queue created", "from-sqs", None),
        ("channel created", "from-sqs", "main"),
        ("channel deleted", "from-sqs", "main"),
        ("queue deleted", "from-sqs", None),
    ]
    assert len(threads) == 1, "listeners are called where the loop runs"


def test_a_listener_that_fails_harms_nobody(server: RunningNode) -> None:
    def fail(*event: object) -> None:
        raise ValueError(event)

    server.do(lambda: server.topics.listeners.insert(0, fail))
    with server.connect() as client:
        client.publish("a", b"x")
        client.publish("b", b"x")


def test_a_topic_made_here_is_told_what_nsqd_would_do(server: RunningNode) -> None:
    with server.connect() as client:
        client.publish("a", b"x")
    config = server.do(lambda: server.topics.shard.identity.queues["a"].config)
    assert (config.max_receives, config.retention_ms, config.lease_ms) == (0, None, 60_000)
    assert stats_of(server, "a").channels == {}


def test_who_listens_hears_how_old_finished_messages_were(server: RunningNode) -> None:
    heard: list[tuple[str, str, list[tuple[int, int]]]] = []
    server.do(lambda: server.topics.finish_listeners.append(lambda *each: heard.append(each)))
    with server.connect() as client:
        client.publish("a", b"x", b"y")
        client.subscribe("a", "c", ready=5)
        messages = client.messages(2)
        client.send(*map(fin, messages))
        until(lambda: bool(heard))
    assert heard == [("a", "c", [(messages[0].timestamp_ns // 1_000_000, 2)])]


# -- room --------------------------------------------------------------------------------------------------------------


def test_large_messages_all_come_through_however_little_room_there_is(server: RunningNode) -> None:
    bodies = [bytes([number]) * 400_000 for number in range(30)]
    with server.connect() as publisher:
        for body in bodies:
            publisher.publish("large", body)
    with server.connect() as client:
        client.subscribe("large", "c", ready=100)
        got: list[Message] = []
        while len(got) < 30:
            got.append(client.message())
        client.send(*map(fin, got))
        assert [message.body for message in got] == bodies
        until(lambda: stats_of(server, "large").channels["c"].acked == 30)


def can_publish(server: RunningNode, topic: str, body: bytes) -> bool:
    with server.connect() as client:
        client.send(pub(topic, body))
        frame = client.frame()
        return frame is not None and frame.data == b"OK"


# -- a store that fails ------------------------------------------------------------------------------------------------


@pytest.fixture
def troubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RunningNode, TroubledStore]]:
    store = TroubledStore()
    monkeypatch.setattr(Node, "_open_store", lambda _: store.open())
    with node(tmp_path) as running:
        yield running, store


@one_shard_only
def test_a_publisher_is_told_that_a_commit_failed_and_can_come_again(
    troubled: tuple[RunningNode, TroubledStore],
) -> None:
    server, store = troubled
    with server.connect() as client:
        client.publish("a", b"kept")
        store.fail_next(kept=False)
        client.send(pub("a", b"lost"))
        assert client.error().startswith("E_PUB_FAILED PUB failed ")
        assert client.is_closed()
    with server.connect() as client:
        client.publish("a", b"later")
        client.subscribe("a", "c", ready=5)
        assert [message.body for message in client.messages(2)] == [b"kept", b"later"]


@one_shard_only
def test_a_full_disk_refuses_messages_and_takes_fins(troubled: tuple[RunningNode, TroubledStore]) -> None:
    server, store = troubled
    with server.connect() as consumer, server.connect() as publisher:
        publisher.publish("a", b"one")
        consumer.subscribe("a", "c", ready=5)
        message = consumer.message()
        store.full = True
        publisher.send(mpub("a", [b"two"]))
        assert publisher.error().startswith("E_MPUB_FAILED")
        consumer.send(fin(message))
        until(lambda: stats_of(server, "a").channels["c"].acked == 1)
        store.full = False
        until(lambda: can_publish(server, "a", b"three"))
        until(lambda: consumer.message().body == b"three")  # the first may come twice: its lease was not committed


@one_shard_only
def test_consumers_are_closed_when_the_store_has_to_be_opened_again_and_hold_nothing_then(
    troubled: tuple[RunningNode, TroubledStore],
) -> None:
    server, store = troubled
    with server.connect() as consumer, server.connect() as publisher:
        publisher.publish("a", b"one")
        consumer.subscribe("a", "c", ready=5)
        consumer.message()
        store.fail_next(kept=False)
        publisher.send(pub("a", b"two"))
        assert publisher.is_closed()
        assert consumer.is_closed()
    with server.connect() as consumer:
        consumer.subscribe("a", "c", ready=5)
        assert consumer.message().body == b"one"


# -- queues with settings of their own ---------------------------------------------------------------------------------

LADDER = """
[[queues]]
name = "limited"
max_receives = 2

[[queues]]
name = "patient"
backoff = {shape = "fixed", base_ms = 400}
"""


def test_the_failure_ladder_applies_to_a_topic_that_has_one(tmp_path: Path) -> None:
    with node(tmp_path, LADDER) as server, server.connect() as client, server.connect() as undertaker:
        client.publish("limited", b"poison")
        client.subscribe("limited", "main", ready=1)
        for attempt in (1, 2):
            message = client.message()
            assert message.attempts == attempt
            client.send(req(message))
        undertaker.subscribe("limited.dead", "main", ready=1)
        dead = undertaker.message()
        assert dead.body == b"poison"
        undertaker.send(fin(dead))
        until(lambda: stats_of(server, "limited.dead").channels["main"].acked == 1)
        assert stats_of(server, "limited").channels["main"].dead == 1


def test_a_timeout_is_followed_by_the_backoff_that_the_queue_has(tmp_path: Path) -> None:
    with node(tmp_path, LADDER) as server, server.connect(msg_timeout=1_000) as client:
        start = time.monotonic()  # whoever reads late has no part in what is measured
        client.publish("patient", b"x")
        client.subscribe("patient", "main", ready=1)
        assert client.message().attempts == 1
        assert client.message().attempts == 2  # the first failure is tried again at once
        assert client.message().attempts == 3
        assert time.monotonic() - start > 2.3


def test_a_message_that_is_always_requeued_leaves_the_others_every_other_delivery(server: RunningNode) -> None:
    with server.connect() as client:
        for body in (b"bad", b"1", b"2", b"3"):
            client.publish("poisoned", body)
        client.subscribe("poisoned", "main", ready=1)
        got = []
        for _ in range(7):
            message = client.message()
            got.append(message.body)
            client.send(req(message) if message.body == b"bad" else fin(message))
        assert got == [b"bad", b"bad", b"1", b"bad", b"2", b"bad", b"3"]


def test_a_topic_made_by_nsq_backs_off_for_who_releases_with_an_error(server: RunningNode) -> None:
    with server.connect() as client:
        client.publish("shared", b"x")
    for _ in range(2):
        delivery = server.call(Receive(queue="shared", limit=1, wait_ms=0))
        spans = [span for run in delivery.runs for span in run.spans()]
        server.call(Release(queue="shared", spans=spans, error="ValueError: no such order"))
    assert stats_of(server, "shared").channels["main"].delayed == 1


def test_a_requeue_is_as_long_as_it_says_on_a_queue_that_was_not_made_here(server: RunningNode) -> None:
    server.call(CreateQueue(name="python"))
    with server.connect() as client:
        client.publish("python", b"x")
        client.subscribe("python", "main", ready=1)
        start = time.monotonic()
        for attempt in range(1, 10):
            message = client.message()
            assert message.attempts == attempt
            client.send(req(message))
        assert client.message().attempts == 10
        assert time.monotonic() - start < 30, "a backoff would be 85 s at least"
