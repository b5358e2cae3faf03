from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import penstock
from penstock.client.aio.acknowledger import AsyncAcknowledger
from penstock.client.aio.penstock import AsyncPenstock
from penstock.client.sync.acknowledger import Acknowledger
from penstock.client.sync.penstock import Penstock
from penstock.core.commands import Ack, CommitWork, Extend, Release, Span
from penstock.server.clock import SystemClock
from penstock.server.shard import Shard
from penstock.server.tasks import AsyncShard
from penstock.server.threads import ThreadedShard
from tests.client.adapter import ENTROPY, Driven, LoopThread, memory_store, serve_shards
from tests.client.serving import Server
from tests.server.stores import Gate, TroubledStore

SECONDS_MAX = 60


class Counted:
    """The caller itself, which remembers what it was asked."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.asked: list[Any] = []

    def call(self, command: Any) -> Any:
        self.asked.append(command)
        return self._inner.call(command)

    def count(self, kind: type) -> int:
        return sum(isinstance(command, kind) for command in self.asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Room:
    """A store in memory, in real time, and the API over it: for threads or for tasks, here or over the network."""

    def __init__(self, flavour: str) -> None:
        self.kind, _, where = flavour.partition(" ")
        self.loop = LoopThread()
        self._server: Server | None = None
        shard = Shard(memory_store(), SystemClock(), lambda: ENTROPY)
        if where:
            self._server = self.loop.run(serve_shards(memory_store()))
        self.caller = Counted(self._remote(self._server.url) if self._server else self._local(shard))
        penstock_of = Penstock if self.kind == "threads" else AsyncPenstock
        self.ps: Any = penstock_of(self.caller)
        if self.kind == "tasks":
            self.ps = Driven(self.ps, self.loop)

    def _local(self, shard: Shard) -> Any:
        if self.kind == "threads":
            return ThreadedShard(shard)

        async def start() -> AsyncShard:
            return AsyncShard(shard)

        return self.loop.run(start())

    def _remote(self, url: str) -> Any:
        if self.kind == "threads":
            return penstock.connect(url)._caller

        async def start() -> Any:
            return (await penstock.connect_async(url))._caller

        return self.loop.run(start())

    def call(self, command: Any) -> Any:
        """Ask the caller itself."""
        return self.caller.call(command) if self.kind == "threads" else self.loop.run(self.caller.call(command))

    def handler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A handler that may block: for tasks it runs in a thread, as a handler there would do it."""
        if self.kind == "threads":
            return function
        if len(inspect.signature(function).parameters) == 1:

            async def handle(message: Any) -> None:
                await asyncio.to_thread(function, message)

            return handle

        async def handle_with_work(message: Any, tx: Any) -> None:
            await asyncio.to_thread(function, message, tx)

        return handle_with_work

    def close(self) -> None:
        self.ps.close()
        if self._server is not None:
            self.loop.run(self._server.stop())
        self.loop.close()


@pytest.fixture(params=["threads", "tasks", "threads websocket", "tasks websocket"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    monkeypatch.setattr("penstock.client.sync.listener.WAIT_SECONDS", 0.05)  # so that stopping takes less
    room = Room(request.param)
    yield room
    room.close()


@pytest.fixture
def ps(room: Room) -> Any:
    return room.ps


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def is_empty(ps: Any, queue: str) -> bool:
    return bool(ps.queue(queue).stats().messages == 0)


def test_every_message_is_handled_once_and_acknowledged(ps: Any) -> None:
    bodies = [str(number).encode() for number in range(500)]
    ps.queue("in").send_many(bodies)
    seen: list[bytes] = []
    with ps.listen("in", lambda message: seen.append(message.body), workers=4) as listener:
        until(lambda: listener.metrics.handled == 500)
        ps.queue("in").send(b"later")
        until(lambda: listener.metrics.handled == 501)
    assert sorted(seen) == sorted([*bodies, b"later"])
    assert is_empty(ps, "in")


def test_many_acknowledgements_are_one_command(room: Room, ps: Any) -> None:
    ps.queue("in").send_many([b"x"] * 2_000)
    with ps.listen("in", lambda message: None, workers=8) as listener:
        until(lambda: listener.metrics.handled == 2_000)
    assert room.caller.count(Ack) < 500


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements that may wait to be batched wait for ever."""
    for kind in ("aio", "sync"):
        monkeypatch.setattr(f"penstock.client.{kind}.acknowledger._GATHER_SECONDS", 10_000.0)
        monkeypatch.setattr(f"penstock.client.{kind}.acknowledger._GATHER_SHARE", 10_000.0)


@pytest.mark.usefixtures("patience")
def test_acknowledgements_of_messages_that_come_one_by_one_go_together_and_a_stop_waits_for_none(
    room: Room, ps: Any
) -> None:
    seen: list[bytes] = []
    with ps.listen("in", lambda message: seen.append(message.body), workers=8):
        for number in range(5):
            ps.queue("in").send(str(number))
            until(lambda number=number: len(seen) > number)
        assert room.caller.count(Ack) == 0
    assert room.caller.count(Ack) == 1
    assert is_empty(ps, "in")


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("flavour", ["threads", "threads websocket"])
def test_a_message_that_ends_while_the_settler_counts_does_not_send_the_others_off(flavour: str) -> None:
    room, seen = Room(flavour), list[bytes]()
    try:
        with room.ps.listen("in", lambda message: seen.append(message.body), workers=8) as listener:
            acknowledger, spare_room = listener._acknowledger, listener._acknowledger.spare_room

            def spare_room_after_a_wake() -> int:
                acknowledger._wake.set()  # its worker cannot know yet how many are enough
                return int(spare_room())

            acknowledger.spare_room = spare_room_after_a_wake
            for number in range(5):
                room.ps.queue("in").send(str(number))
                until(lambda number=number: len(seen) > number)
        assert room.caller.count(Ack) == 1
    finally:
        room.close()


@pytest.mark.usefixtures("patience")
def test_a_failure_and_a_unit_of_work_take_acknowledgements_along_at_once(room: Room, ps: Any) -> None:
    def handle(message: Any) -> None:
        if message.body == b"bad":
            raise ValueError("no")

    ps.create_queue("in", max_receives=1)
    with ps.listen("in", handle, workers=4) as listener:
        ps.queue("in").send(b"good")
        until(lambda: listener.metrics.worked()[0] == 1)
        ps.queue("in").send(b"bad")
        until(lambda: (listener.metrics.handled, listener.metrics.failed) == (1, 1))
    with ps.listen("units", room.handler(lambda message, tx: tx.put("out", message.body))) as listener:
        ps.queue("units").send(b"x")
        until(lambda: listener.metrics.handled == 1)


@pytest.mark.usefixtures("patience")
def test_acknowledgements_wait_for_nothing_where_somebody_waits_for_them(room: Room, ps: Any) -> None:
    ps.create_queue("ordered", kind="fifo")
    with ps.listen("ordered", lambda message: None) as listener:
        for number in range(3):
            ps.queue("ordered").send(str(number), group="a", dedup_id=str(number))
        until(lambda: listener.metrics.handled == 3)
    ps.queue("full").send_many([b"x"] * 40)
    with ps.listen("full", lambda message: None, workers=2, max_in_hand=4) as listener:
        until(lambda: listener.metrics.handled >= 36)


@pytest.mark.parametrize("flavour", ["threads websocket", "tasks websocket"])
def test_messages_that_come_one_by_one_are_pushed_and_cost_no_command_of_their_own(flavour: str) -> None:
    room = Room(flavour)
    assert room._server is not None
    seen: list[bytes] = []
    try:
        with room.ps.listen("in", lambda message: seen.append(message.body), workers=8, prefetch=192):
            for number in range(50):
                room.ps.queue("in").send(str(number))
                until(lambda number=number: len(seen) > number)
        commands = {action: count for (_, action, _), count in room._server.answered().items()}
        assert commands.get("Receive", 0) == 0
        assert commands.get("AddCredit", 0) == 0, "50 of 200 are less than half"
    finally:
        room.close()


def test_what_a_handler_put_is_committed_together_with_its_message(room: Room, ps: Any) -> None:
    ps.queue("in").send_many([str(number).encode() for number in range(300)])

    def move(message: Any, tx: Any) -> None:
        tx.put("out", message.body)
        tx.put("audit", b"moved " + message.body, group="g")

    with ps.listen("in", move) as listener:
        until(lambda: listener.metrics.handled == 300)
    assert room.caller.count(Ack) == 0
    assert room.caller.count(CommitWork) < 300
    assert is_empty(ps, "in")
    assert sorted(int(body) for body in ps.queue("out").receive_batch(1_000).bodies) == list(range(300))
    assert ps.queue("audit").stats().messages == 300


def test_a_handler_that_raises_puts_nothing_and_its_error_is_the_messages_history(ps: Any) -> None:
    ps.create_queue("in", max_receives=3)
    ps.queue("in").send(b"1")
    attempts: list[int] = []

    def fail(message: Any, tx: Any) -> None:
        tx.put("out", b"never")
        attempts.append(message.attempts)
        raise ValueError(f"no luck {message.attempts}")

    with ps.listen("in", fail) as listener:
        until(lambda: listener.metrics.failed == 3)
        until(lambda: "in.dead" in ps.queues())
    assert attempts == [1, 2, 3]
    dead = ps.queue("in.dead").receive()
    assert [failure.error for failure in dead.origin.failures] == [f"ValueError: no luck {n}" for n in (1, 2, 3)]
    assert "out" not in ps.queues()


def test_a_unit_that_cannot_be_committed_fails_alone_and_says_why(ps: Any) -> None:
    ps.create_queue("out", message_bytes_max=3)
    ps.create_queue("in", max_receives=1)
    ps.queue("in").send_many([b"ok"] * 50 + [b"long"] + [b"ok"] * 50)
    with ps.listen("in", lambda message, tx: tx.put("out", message.body)) as listener:
        until(lambda: listener.metrics.handled == 100 and listener.metrics.failed == 1)
    assert ps.queue("out").stats().messages == 100
    dead = ps.queue("in.dead").receive()
    assert dead.body == b"long"
    assert dead.origin.failures[0].error.startswith("MessageTooLarge: ")


def test_a_handler_that_takes_longer_than_the_lease_keeps_it(room: Room, ps: Any) -> None:
    ps.queue("in").send_many([b"1"] * 20)
    handled: list[int] = []

    def work(message: Any) -> None:
        if message.sequence < 10:
            time.sleep(5.0)  # what the handler does: longer than the lease of four seconds; the others wait meanwhile
        handled.append(message.attempts)

    with ps.listen("in", room.handler(work), workers=10, prefetch=10, lease=4.0) as listener:
        until(lambda: listener.metrics.handled == 20)
    assert handled == [1] * 20
    assert listener.metrics.lost == 0
    extends = [command for command in room.caller.asked if isinstance(command, Extend)]
    assert extends and max(span.messages for command in extends for span in command.spans) > 1
    assert len(extends) < 2 * 60, "one command for all messages in hand"


def test_a_lease_that_was_lost_is_counted_and_the_message_comes_again(room: Room, ps: Any) -> None:
    ps.queue("in").send(b"1")
    started, go_on = threading.Event(), threading.Event()
    attempts: list[int] = []

    def work(message: Any) -> None:
        attempts.append(message.attempts)
        started.set()
        assert message.attempts > 1 or go_on.wait(SECONDS_MAX)

    with ps.listen("in", room.handler(work), workers=2) as listener:
        assert started.wait(SECONDS_MAX)
        command = Release(queue="in", spans=[Span(0, 0, 1)], error="taken away")
        room.call(command)
        until(lambda: listener.metrics.handled == 1)
        go_on.set()
        until(lambda: listener.metrics.lost == 1)
    assert attempts == [1, 2]
    assert is_empty(ps, "in")


def test_a_stop_gives_back_what_was_not_begun_and_finishes_what_was(room: Room, ps: Any) -> None:
    ps.queue("in").send_many([b"x"] * 20)
    started, go_on = threading.Semaphore(0), threading.Event()
    attempts: list[int] = []

    def work(message: Any) -> None:
        attempts.append(message.attempts)
        started.release()
        assert go_on.wait(SECONDS_MAX)

    listener = ps.listen("in", room.handler(work), workers=2, prefetch=18)
    for _ in range(2):
        assert started.acquire(timeout=SECONDS_MAX)
    until(lambda: listener.in_hand == 20)

    def go_on_when_the_others_are_back() -> None:
        until(lambda: listener.in_hand == 2)
        go_on.set()

    threading.Thread(target=go_on_when_the_others_are_back).start()
    assert listener.stop()
    assert (len(attempts), listener.metrics.handled, listener.in_hand) == (2, 2, 0)
    left = ps.queue("in").receive(20)
    assert len(left) == 18
    assert {message.attempts for message in left} == {1}, "as if they had never been received"


def test_a_stop_that_cannot_wait_releases_what_is_in_work_with_the_reason(room: Room, ps: Any) -> None:
    ps.queue("in").send(b"x")
    started, go_on = threading.Event(), threading.Event()

    def work(message: Any, tx: Any) -> None:
        started.set()
        tx.put("out", b"late")
        go_on.wait(SECONDS_MAX)

    listener = ps.listen("in", room.handler(work))
    assert started.wait(SECONDS_MAX)
    assert not listener.stop(timeout=0.05)
    go_on.set()
    message = ps.queue("in").receive()
    assert message.attempts == 2
    assert message.history[0].error.startswith("the listener stopped")
    message.ack()
    assert "out" not in ps.queues()


def test_a_stopped_listener_stays_stopped(ps: Any) -> None:
    listener = ps.listen("in", lambda message: None)
    assert listener.stop() and listener.stop()
    assert listener.state == "stopped"
    with pytest.raises(penstock.InvalidRequest, match="stopped: create another"):
        listener.start()


def test_closing_the_store_stops_its_listeners_first(room: Room, ps: Any) -> None:
    ps.queue("in").send(b"x")
    started = threading.Event()

    def work(message: Any) -> None:
        started.set()
        time.sleep(0.1)

    listener = ps.listen("in", room.handler(work))
    assert started.wait(SECONDS_MAX)
    ps.close()
    assert (listener.state, listener.metrics.handled) == ("stopped", 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_group_of_a_fifo_queue_keeps_its_order_although_workers_run_side_by_side(ps: Any, seed: int) -> None:
    chance = random.Random(seed)
    ps.create_queue("line.fifo", kind="fifo", content_dedup=True, max_receives=0)
    groups = [f"g{number % 7}" for number in range(210)]
    ps.queue("line.fifo").send_many([str(number) for number in range(210)], groups=groups)
    done: dict[str, list[int]] = {}

    def work(message: Any) -> None:
        if chance.random() < 0.2:
            raise RuntimeError("once more")
        done.setdefault(message.group, []).append(int(message.text))

    with ps.listen("line.fifo", work, workers=8, prefetch=100) as listener:
        until(lambda: listener.metrics.handled == 210)
    assert listener.metrics.failed > 0
    assert done == {f"g{group}": list(range(group, 210, 7)) for group in range(7)}
    assert is_empty(ps, "line.fifo")


def test_with_an_at_most_policy_nothing_is_fetched_ahead_and_nothing_comes_twice(room: Room, ps: Any) -> None:
    ps.queue("in").send_many([b"x"] * 30)
    go_on, attempts = threading.Event(), []

    def work(message: Any) -> None:
        attempts.append(message.attempts)
        assert go_on.wait(SECONDS_MAX)
        raise RuntimeError("failed for good")

    with ps.listen("in", room.handler(work), workers=3, policy="consume_once") as listener:
        until(lambda: len(attempts) == 3)
        stats = ps.queue("in").stats().channels["main"]
        assert (stats.leased, stats.ready) == (3, 27)
        go_on.set()
        until(lambda: listener.metrics.failed == 30)
    assert attempts == [1] * 30
    assert ps.queue("in.dead").stats().messages == 30


def test_with_an_at_most_policy_what_comes_while_a_listener_stops_is_handled(
    room: Room, ps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.sync.listener.WAIT_SECONDS", 5.0)
    for kind in ("aio", "sync"):
        monkeypatch.setattr(f"penstock.client.{kind}.listener._LAST_WAIT_SECONDS", 5.0)
    bodies: list[bytes] = []
    with ps.listen("in", room.handler(lambda message: bodies.append(message.body)), policy="consume_once") as listener:
        until(lambda: ps.queue("in").stats().channels["main"].waiting_receivers)
        listener.request_stop()
        ps.queue("in").send(b"x")
        until(lambda: ps.queue("in").stats().channels["main"].ready == 0)
    assert "in.dead" not in ps.queues(), "it was consumed, and nobody has seen it"
    assert bodies == [b"x"]


def test_with_an_at_most_policy_a_stop_leaves_nobody_behind_in_a_group(room: Room, ps: Any) -> None:
    ps.create_queue("in.fifo", kind="fifo", content_dedup=True)
    ps.queue("in.fifo").send_many([b"a", b"b", b"c"], groups=["g"] * 3)
    started, go_on, bodies = threading.Event(), threading.Event(), []

    def work(message: Any) -> None:
        bodies.append(message.body)
        started.set()
        assert go_on.wait(SECONDS_MAX)

    with ps.listen("in.fifo", room.handler(work), policy="consume_once") as listener:
        until(started.is_set)
        threading.Timer(0.1, go_on.set).start()
    assert listener.metrics.handled == len(bodies)
    assert ps.queue("in.fifo").stats().channels["main"].ready == 3 - len(bodies)


@pytest.mark.parametrize("policy", [{"policy": "consume_once"}, {"policy": "consume_times", "consume_times": 2}])
def test_with_an_at_most_policy_a_failure_consumes_nobody_behind_it_in_its_group(
    room: Room, ps: Any, policy: dict[str, Any]
) -> None:
    ps.create_queue("in.fifo", kind="fifo", content_dedup=True)
    ps.queue("in.fifo").send_many([b"a", b"b", b"c"], groups=["g"] * 3)
    handled: list[tuple[bytes, int]] = []

    def work(message: Any) -> None:
        handled.append((message.body, message.attempts))
        if message.body == b"a":
            raise RuntimeError("failed for good")

    with ps.listen("in.fifo", room.handler(work), backoff=penstock.Backoff("fixed", base_ms=1), **policy):
        until(lambda: is_empty(ps, "in.fifo"))
    times = policy.get("consume_times", 1)
    assert handled == [*((b"a", 1 + time) for time in range(times)), (b"b", 1), (b"c", 1)]


def test_a_handler_that_raises_is_a_warning_of_one_line_that_says_when_the_message_comes_again(
    ps: Any, room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    ps.create_queue("in", max_receives=3, backoff=penstock.Backoff("fixed", base_ms=10))
    ps.queue("in").send(b"x")

    def work(message: Any) -> None:
        raise RuntimeError("no such\norder")

    with caplog.at_level(logging.WARNING, "penstock.listener"), ps.listen("in", room.handler(work), name="worker"):
        until(lambda: is_empty(ps, "in"))
    said = [record.getMessage() for record in caplog.records if record.name == "penstock.listener"]
    (seen,) = ps.queue("in.dead").browse()
    begin = f"listener 'worker' on 'in': message {seen.id} failed on attempt"
    assert said == [
        f"{begin} 1, and comes again at once: RuntimeError: no such order",
        f"{begin} 2, and comes again in 0.01 s: RuntimeError: no such order",
        f"{begin} 3, and goes to 'in.dead': RuntimeError: no such order",
    ]
    assert not any(record.exc_info for record in caplog.records), "the traceback is for whoever looks closer"


def test_a_queue_that_a_listener_creates_is_told(ps: Any, caplog: pytest.LogCaptureFixture) -> None:
    ps.queue("orders").send(b"tea")
    with caplog.at_level(logging.WARNING, "penstock.listener"):
        ps.listen("orders", lambda message: None, name="work").stop()
        assert not caplog.records
        ps.listen("odrers", lambda message: None, name="work").stop()
    said = [record.getMessage() for record in caplog.records]
    assert said == ["listener 'work': there was no queue 'odrers', so it was created"]


def test_policy_and_backoff_are_set_on_the_queue_and_it_says_so(ps: Any, caplog: pytest.LogCaptureFixture) -> None:
    ps.create_queue("in", lease=77)
    backoff = penstock.Backoff("fixed", base_ms=5)
    with caplog.at_level(logging.INFO, "penstock.listener"):
        ps.listen("in", lambda message: None, policy="consume_times", consume_times=4, backoff=backoff).stop()
    config = ps.queue("in").info().config
    assert (config.policy, config.consume_times, config.backoff, config.lease_ms) == (
        "consume_times",
        4,
        backoff,
        77_000,
    )
    assert "sets policy, consume_times, backoff of queue 'in'" in caplog.text


def test_a_queue_and_a_channel_that_are_not_there_are_made(ps: Any) -> None:
    seen: list[bytes] = []
    with ps.listen("new", lambda message: seen.append(message.body), channel="copy"):
        ps.queue("new").send(b"hello")
        until(lambda: seen)
    assert seen == [b"hello"]
    assert ps.queue("new").receive().body == b"hello"


def test_a_listener_goes_on_when_its_queue_comes_back(ps: Any) -> None:
    seen: list[bytes] = []
    with ps.listen("in", lambda message: seen.append(message.body)) as listener:
        ps.queue("in").delete()
        until(lambda: listener.metrics.receive_errors > 1)
        assert isinstance(listener.last_error, penstock.QueueNotFound)
        ps.queue("in").send(b"back")
        until(lambda: listener.metrics.handled == 1)
        assert listener.last_error is None
    assert seen == [b"back"]


def test_a_handler_may_settle_everything_itself(room: Room, ps: Any) -> None:
    ps.queue("in").send_many([b"commit", b"rollback", b"nothing"])

    if room.kind == "threads":

        def work(message: Any, tx: Any) -> None:
            tx.put("out", message.body)
            if message.body == b"commit":
                tx.commit()
            elif message.body == b"rollback" and message.attempts == 1:
                tx.rollback(error="not now")

        def ack(message: Any) -> None:
            message.ack()
    else:

        async def work(message: Any, tx: Any) -> None:
            tx.put("out", message.body)
            if message.body == b"commit":
                await tx.commit()
            elif message.body == b"rollback" and message.attempts == 1:
                await tx.rollback(error="not now")

        async def ack(message: Any) -> None:
            await message.ack()

    with ps.listen("in", work) as listener:
        until(lambda: listener.metrics.handled == 3)
        assert listener.metrics.failed == 1
    assert ps.queue("out").stats().messages == 3
    with ps.listen("out", ack) as listener:
        until(lambda: listener.metrics.handled == 3)
    assert listener.metrics.lost == 0


def test_a_handler_that_gives_its_message_back_sends_nothing(room: Room, ps: Any) -> None:
    ps.queue("in").send(b"x")
    tried: list[int] = []

    if room.kind == "threads":

        def work(message: Any, tx: Any) -> None:
            tried.append(message.attempts)
            tx.put("out", b"%d" % message.attempts)
            if message.attempts == 1:
                message.release(error="not now")
            elif message.attempts == 2:
                message.extend(0)
            elif message.attempts == 3:
                message.ack()
    else:

        async def work(message: Any, tx: Any) -> None:
            tried.append(message.attempts)
            tx.put("out", b"%d" % message.attempts)
            if message.attempts == 1:
                await message.release(error="not now")
            elif message.attempts == 2:
                await message.extend(0)
            elif message.attempts == 3:
                await message.ack()

    with ps.listen("in", work) as listener:
        until(lambda: listener.metrics.handled == 1)
    assert tried == [1, 2, 3]
    assert listener.metrics.failed == 2
    assert ps.queue("out").receive_batch().bodies == [b"3"]


def test_a_handler_that_gives_its_message_back_is_not_overtaken_by_the_next_of_its_group(room: Room, ps: Any) -> None:
    ps.create_queue("line.fifo", kind="fifo", content_dedup=True)
    ps.queue("line.fifo").send_many([b"1", b"2", b"3"], groups=["g"] * 3)
    done: list[bytes] = []

    if room.kind == "threads":

        def work(message: Any) -> None:
            if message.body == b"1" and message.attempts < 3:
                message.release(error="not now") if message.attempts == 1 else message.extend(0)
            else:
                done.append(message.body)
    else:

        async def work(message: Any) -> None:
            if message.body == b"1" and message.attempts < 3:
                await (message.release(error="not now") if message.attempts == 1 else message.extend(0))
            else:
                done.append(message.body)

    with ps.listen("line.fifo", work) as listener:
        until(lambda: is_empty(ps, "line.fifo"))
    assert done == [b"1", b"2", b"3"]
    assert (listener.metrics.handled, listener.metrics.failed, listener.metrics.lost) == (3, 2, 0)


def test_a_unit_of_a_handler_may_take_more_and_gives_it_back_with_the_rest(room: Room, ps: Any) -> None:
    ps.queue("in").send(b"x")
    ps.queue("parts").send_many([b"1", b"2"])
    failed = threading.Event()

    def use(parts: list[Any], tx: Any) -> None:
        tx.put("out", b"".join(part.body for part in parts))
        if not failed.is_set():
            failed.set()
            raise RuntimeError("first time")

    if room.kind == "threads":

        def work(message: Any, tx: Any) -> None:
            use(tx.take_many("parts", 2), tx)
    else:

        async def work(message: Any, tx: Any) -> None:
            use(await tx.take_many("parts", 2), tx)

    with ps.listen("in", work) as listener:
        until(lambda: listener.metrics.handled == 1)
    until(lambda: is_empty(ps, "parts") and is_empty(ps, "in"))  # in another shard the work is done a moment later
    assert ps.queue("out").receive(wait=10).body == b"12"
    released = [command.queue for command in room.caller.asked if isinstance(command, Release)]
    assert released == ["parts", "in"], "what it has taken is there before its message comes again"


def test_a_handler_may_take_the_next_message_and_acknowledge_its_own(room: Room, ps: Any) -> None:
    ps.queue("in").send_many([b"1", b"2"])

    if room.kind == "threads":

        def work(message: Any, tx: Any) -> None:
            more = tx.take("in")
            message.ack()
            tx.put("out", message.body + more.body)
    else:

        async def work(message: Any, tx: Any) -> None:
            more = await tx.take("in")
            await message.ack()
            tx.put("out", message.body + more.body)

    with ps.listen("in", work, workers=1, prefetch=0) as listener:
        until(lambda: listener.metrics.handled + listener.metrics.failed)
    assert (listener.metrics.handled, listener.metrics.failed) == (1, 0)
    assert ps.queue("out").receive(wait=10).body == b"12"


def test_acks_are_patient_unless_there_is_an_order(room: Room, ps: Any) -> None:
    """A server may leave those that nobody waits for. In a line the next message waits for them."""

    def acks(queue: str) -> list[Ack]:
        return [command for command in room.caller.asked if isinstance(command, Ack) and command.queue == queue]

    ps.create_queue("line.fifo", kind="fifo", content_dedup=True)
    for queue, group in (("in", None), ("line.fifo", "a")):
        ps.queue(queue).send(b"x", group=group)
        with ps.listen(queue, room.handler(lambda message: None)) as listener:
            until(lambda listener=listener: listener.metrics.handled == 1)
    assert [ack.patient for ack in acks("in")] == [True]
    assert [ack.patient for ack in acks("line.fifo")] == [False]


def test_metrics_are_counted_and_can_be_scraped(ps: Any) -> None:
    ps.create_queue("in", max_receives=1)
    ps.queue("in").send_many([b"1", b"2", b"bad"])

    def work(message: Any) -> None:
        assert message.body != b"bad"

    with ps.listen("in", work, name="counter") as listener:
        until(lambda: listener.metrics.handled + listener.metrics.failed == 3)
        registry = CollectorRegistry()
        registry.register(listener.metrics)
        text = generate_latest(registry).decode()
    labels = '{channel="main",listener="counter",queue="in"}'
    assert f"penstock_listener_handled_total{labels} 2.0" in text
    assert f"penstock_listener_failed_total{labels} 1.0" in text
    assert f"penstock_listener_in_hand{labels} 0.0" in text
    assert f"penstock_listener_handler_seconds_count{labels} 3.0" in text
    times = listener.metrics.handler_seconds
    assert (times.count, sum(times.classes)) == (3, 3)


def test_a_decorated_handler_is_a_listener_that_can_still_be_called(room: Room, ps: Any) -> None:
    seen: list[Any] = []

    @ps.listener("in", workers=2)
    def handle(message: Any) -> None:
        seen.append(message)

    handle("by hand")
    assert (seen, handle.name, handle.state) == (["by hand"], "handle", "new")
    listener = handle if room.kind == "threads" else Driven(handle, room.loop)
    ps.queue("in").send(b"x")
    with listener:
        until(lambda: handle.metrics.handled == 1)
    assert seen[1].body == b"x"


def test_listeners_run_together_until_one_is_asked_to_stop(room: Room, ps: Any) -> None:
    seen: list[bytes] = []

    @ps.listener("one")
    def first(message: Any) -> None:
        seen.append(message.body)

    @ps.listener("two")
    def second(message: Any) -> None:
        seen.append(message.body)
        second.request_stop()

    running = threading.Thread(target=ps.run_listeners)
    running.start()
    ps.queue("one").send(b"1")
    until(lambda: seen == [b"1"])
    ps.queue("two").send(b"2")
    running.join(SECONDS_MAX)
    assert not running.is_alive()
    assert seen == [b"1", b"2"]
    assert (first.state, second.state) == ("stopped", "stopped")
    assert is_empty(ps, "one") and is_empty(ps, "two")


def test_a_stop_that_was_asked_for_before_the_run_ends_it(ps: Any) -> None:
    started = ps.listen("one", lambda message: None)
    started.request_stop()
    running = threading.Thread(target=started.run_forever)
    running.start()
    running.join(SECONDS_MAX)
    assert started.state == "stopped"
    declared = ps.listener("two")(lambda message: None)
    declared.request_stop()
    running = threading.Thread(target=ps.run_listeners)
    running.start()
    running.join(SECONDS_MAX)
    assert declared.state == "stopped"


def test_a_listener_that_cannot_start_stops_those_that_did(ps: Any) -> None:
    first = ps.listen("one", lambda message: None)
    others = [ps.listener(queue)(lambda message: None) for queue in ("two", "no such / name")]
    with pytest.raises(penstock.InvalidName):
        ps.run_listeners()
    assert [each.state for each in (first, *others)] == ["stopped", "new", "new"]


def test_a_stop_without_a_time_waits_for_the_handler(room: Room, ps: Any) -> None:
    begun, end = threading.Event(), threading.Event()

    def work(message: Any) -> None:
        begun.set()
        end.wait(SECONDS_MAX)

    ps.queue("in").send(b"x")
    listener = ps.listen("in", room.handler(work))
    assert begun.wait(SECONDS_MAX)
    ended: list[bool] = []
    stopping = threading.Thread(target=lambda: ended.append(listener.stop(timeout=None)))
    stopping.start()
    until(lambda: listener.state == "stopping")
    end.set()
    stopping.join(SECONDS_MAX)
    assert ended == [True]
    assert is_empty(ps, "in")


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("half \ud800"), r"ValueError: half \ud800"),
        (ValueError("x" * 50_000), f"ValueError: {'x' * 10_000}... (50000 letters)"),
        (Speechless(), "Speechless: (its text cannot be had: ValueError)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError("inside"), "CancelledError: inside"),
    ],
    ids=["half a character", "long", "speechless", "interrupt", "cancelled"],
)
def test_a_message_comes_back_whatever_its_error_is_made_of(
    room: Room, ps: Any, error: BaseException, reason: str
) -> None:
    histories: list[list[str]] = []

    def work(message: Any) -> None:
        histories.append([each.error for each in message.history])
        if message.attempts == 1:
            raise error

    async def work_in_a_task(message: Any) -> None:
        work(message)

    ps.queue("in").send(b"x")
    with ps.listen("in", work if room.kind == "threads" else work_in_a_task, lease=3600) as listener:
        until(lambda: listener.metrics.handled == 1)
    assert histories == [[], [reason]]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"max_in_hand": 0}, "max_in_hand is 0"),
        ({"lease": -1}, "lease is -1"),
    ],
)
def test_a_setting_out_of_range_is_refused(ps: Any, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(penstock.InvalidRequest, match=reason):
        ps.listen("in", lambda message: None, **settings)


def test_a_handler_that_cannot_be_called_is_refused(ps: Any) -> None:
    for handler in (lambda: None, lambda message, tx, more: None):
        with pytest.raises(penstock.InvalidRequest, match="one or two arguments"):
            ps.listen("in", handler)


def test_a_handler_that_would_do_nothing_is_refused(ps: Any) -> None:
    def yields(message: Any) -> Any:
        yield message

    async def yields_in_a_task(message: Any) -> Any:
        yield message

    for handler in (yields, yields_in_a_task):
        with pytest.raises(penstock.InvalidRequest, match="generator"):
            ps.listen("in", handler)
    with pytest.raises(penstock.InvalidRequest, match="give a function"):
        ps.listen("in", None)
    with pytest.raises(penstock.InvalidRequest, match="name of a queue"):
        ps.listener(yields)
    assert "in" not in ps.queues()


def test_a_handler_that_turns_out_to_be_a_generator_has_failed(room: Room, ps: Any) -> None:
    def yields(message: Any) -> Any:
        yield message

    ps.create_queue("in", max_receives=1)
    ps.queue("in").send(b"x")
    with ps.listen("in", lambda message: yields(message)) as listener:
        until(lambda: listener.metrics.failed == 1)
    assert "generator" in ps.queue("in.dead").receive().history[0].error


def test_a_listener_of_threads_refuses_a_coroutine_function() -> None:
    async def handle(message: Any) -> None: ...

    with penstock.open(":memory:") as ps, pytest.raises(penstock.InvalidRequest, match="open_async"):
        ps.listen("in", handle)


def test_a_handler_that_turns_out_to_be_a_coroutine_function_has_failed() -> None:
    async def later(message: Any) -> None: ...

    with penstock.open(":memory:") as ps:
        ps.create_queue("in", max_receives=1)
        ps.queue("in").send(b"x")
        with ps.listen("in", lambda message: later(message)) as listener:
            until(lambda: listener.metrics.failed == 1)
        assert "coroutine function" in ps.queue("in.dead").receive().origin.failures[0].error


def test_a_lease_that_is_changed_while_a_listener_runs_is_kept_as_it_is_now(room: Room, ps: Any) -> None:
    attempts: list[int] = []

    def work(message: Any) -> None:
        attempts.append(message.attempts)
        time.sleep(4.0)

    ps.create_queue("in", lease=600)
    with ps.listen("in", room.handler(work)) as listener:
        ps.queue("in").configure(lease=3.0)
        ps.queue("in").send(b"x")
        until(lambda: listener.metrics.handled == 1)
    assert attempts == [1]


def test_max_in_hand_holds(room: Room, ps: Any) -> None:
    ps.queue("in").send_many([b"x"] * 100)
    begun: list[int] = []
    go_on = threading.Event()

    def work(message: Any) -> None:
        begun.append(message.sequence)
        assert go_on.wait(60)

    with ps.listen("in", room.handler(work), workers=4, max_in_hand=6) as listener:
        until(lambda: len(begun) == 4)
        until(lambda: leased(ps) >= 6)
        time.sleep(0.2)  # long enough for more to come, if any did
        assert leased(ps) == 6
        go_on.set()
        until(lambda: listener.metrics.handled == 100)


def leased(ps: Any) -> int:
    return int(ps.queue("in").stats().channels["main"].leased)


@pytest.mark.parametrize("flavour", ["threads websocket", "tasks websocket", "threads", "tasks"])
def test_messages_that_are_being_settled_take_no_room(flavour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that takes long holds up nobody; but not more than so many."""
    monkeypatch.setattr("penstock.client.aio.listener._UNSETTLED_MAX", 10)
    monkeypatch.setattr("penstock.client.sync.listener._UNSETTLED_MAX", 10)
    room, seen = Room(flavour), list[bytes]()
    may_settle = threading.Event()

    async def slow(self: Any, messages: list[Any]) -> None:
        while not may_settle.is_set():
            await asyncio.sleep(0.01)
        await aio_acknowledge(self, messages)

    def slow_sync(self: Any, messages: list[Any]) -> None:
        assert may_settle.wait(60)
        sync_acknowledge(self, messages)

    aio_acknowledge, sync_acknowledge = AsyncAcknowledger._acknowledge, Acknowledger._acknowledge
    monkeypatch.setattr(AsyncAcknowledger, "_acknowledge", slow)
    monkeypatch.setattr(Acknowledger, "_acknowledge", slow_sync)
    try:
        room.ps.queue("in").send_many([b"x"] * 100)
        with room.ps.listen("in", lambda message: seen.append(message.body), workers=4, max_in_hand=6) as listener:
            until(lambda: len(seen) > 6)
            time.sleep(0.2)  # long enough for more to come, if any did
            assert len(seen) <= 16
            assert leased(room.ps) <= 16
            may_settle.set()
            until(lambda: listener.metrics.handled == 100)
    finally:
        may_settle.set()
        room.close()


def test_slow_handlers_fetch_little_ahead(room: Room, ps: Any) -> None:
    ps.queue("in").send_many([b"x"] * 400)

    def work(message: Any) -> None:
        time.sleep(0.2)

    with ps.listen("in", room.handler(work), workers=4) as listener:
        until(lambda: listener.metrics.handled >= 16)
        assert listener.in_hand <= 24, "half a second of work for four workers, and a little"


def test_a_handler_that_is_cancelled_from_inside_has_failed_and_its_worker_goes_on() -> None:
    async def work(message: Any) -> None:
        if message.attempts == 1:
            raise asyncio.CancelledError

    async def run() -> tuple[int, int]:
        async with penstock.open_async(":memory:") as ps:
            await ps.queue("in").send(b"x")
            async with await ps.listen("in", work, workers=1) as listener:
                while listener.metrics.handled < 1:
                    await asyncio.sleep(0.005)
            return listener.metrics.handled, listener.metrics.failed

    assert asyncio.run(asyncio.wait_for(run(), SECONDS_MAX)) == (1, 1)


def test_a_handler_that_calls_off_its_own_task_has_failed_and_its_worker_goes_on() -> None:
    async def work(message: Any) -> None:
        if message.attempts == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async def run() -> None:
        async with penstock.open_async(":memory:") as ps:
            await ps.queue("in").send_many([b"a", b"b", b"c"])
            async with await ps.listen("in", work, workers=1) as listener:
                async with asyncio.timeout(SECONDS_MAX):
                    while listener.metrics.handled < 3:
                        await asyncio.sleep(0.001)
            assert listener.metrics.failed == 3

    asyncio.run(run())


def test_a_loop_that_ends_ends_its_listeners() -> None:
    async def run() -> None:
        ps = await penstock.open_async(":memory:")
        await ps.queue("in").send(b"x")
        await ps.listen("in", lambda message: None)
        await asyncio.sleep(0)

    asyncio.run(run())


def test_a_loop_that_is_closed_too_early_leaves_no_worker_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    async def run() -> None:
        ps = await penstock.open_async(":memory:")
        await ps.queue("in").send(b"x")
        begun = asyncio.Event()

        async def work(message: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        await ps.listen("in", work)
        await begun.wait()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # asyncio tells of each task that was pending
    loop.run_until_complete(run())
    loop.close()
    del loop
    gc.collect()
    assert [str(each.exc_value) for each in unraisable] == []


def test_a_thread_handler_that_exits_has_failed_and_its_worker_goes_on() -> None:
    def work(message: Any) -> None:
        if message.attempts == 1:
            raise SystemExit(3)

    with penstock.open(":memory:") as ps:
        ps.queue("in").send(b"x")
        with ps.listen("in", work, workers=1) as listener:
            until(lambda: listener.metrics.handled == 1)
        assert listener.metrics.failed == 1


def test_a_stop_leaves_nothing_leased_that_was_about_to_follow_in_its_group() -> None:
    with penstock.open(":memory:") as ps:
        ps.create_queue("line.fifo", kind="fifo", content_dedup=True)
        ps.queue("line.fifo").send_many([b"a", b"b"], groups=["g", "g"])
        about_to, go_on = threading.Event(), threading.Event()
        listener = ps.listen("line.fifo", lambda message: go_on.wait(SECONDS_MAX), workers=2, prefetch=10)
        until(lambda: listener.in_hand == 2)
        begin = listener._acknowledger.begin

        def begin_late(messages: list[Any]) -> None:
            about_to.set()
            time.sleep(0.2)  # so long may a thread have to wait for its turn
            begin(messages)

        listener._acknowledger.begin = begin_late
        go_on.set()
        assert about_to.wait(SECONDS_MAX)
        assert listener.stop()
        stats = ps.queue("line.fifo").stats().channels["main"]
        assert (stats.leased, stats.ready + listener.metrics.handled) == (0, 2)


def test_with_an_at_most_policy_what_is_on_its_way_when_a_listener_for_tasks_stops_is_handled() -> None:
    async def main() -> None:
        store, gate = TroubledStore(), Gate()
        shard = AsyncShard(Shard(store.open, SystemClock(), lambda: ENTROPY), commit_in_thread=True)
        bodies: list[bytes] = []
        async with AsyncPenstock(shard) as ps:
            orders = await ps.create_queue("in", policy="consume_once")
            listener = await ps.listen("in", lambda message: bodies.append(message.body))
            while not (await orders.stats()).channels["main"].waiting_receivers:
                await asyncio.sleep(0.001)
            store.on_commit = gate.hold
            sending = asyncio.create_task(orders.send(b"x"))
            assert await asyncio.to_thread(gate.reached.wait, SECONDS_MAX)  # the listener has it, and does not know yet
            stopping = asyncio.create_task(listener.stop())
            await asyncio.sleep(0.05)
            gate.open()
            await asyncio.gather(sending, stopping)
            assert bodies == [b"x"]
            assert await ps.queues() == ["in"], "it was consumed, and nobody has seen it"

    asyncio.run(main())


def test_with_an_at_most_policy_nothing_is_fetched_ahead_while_a_failure_is_settled() -> None:
    class Slow(Counted):
        """Acknowledgements and releases wait until they are let through."""

        def call(self, command: Any) -> Any:
            if type(command) in gates:
                assert gates[type(command)].wait(SECONDS_MAX)
            return super().call(command)

    def work(message: Any) -> None:
        ended.append(message.body)
        if message.body == b"fails":
            raise RuntimeError("failed for good")
        assert message.body != b"takes long" or go_on.wait(SECONDS_MAX)

    gates: dict[Any, threading.Event] = {Ack: threading.Event(), Release: threading.Event()}
    go_on, ended = threading.Event(), list[bytes]()
    caller = Slow(ThreadedShard(Shard(memory_store(), SystemClock(), lambda: ENTROPY)))
    with Penstock(caller) as ps:
        ps.create_queue("in", policy="consume_once").send(b"first")
        with ps.listen("in", work, workers=2) as listener:
            until(lambda: listener._acknowledger._acknowledging)
            ps.queue("in").send_many([b"done", b"fails"])
            until(lambda: len(listener._acknowledger._ended) == 2)  # both are settled together, after the first
            ps.queue("in").send_many([b"takes long"] * 9)
            until(lambda: len(ended) == 5)
            gates[Ack].set()
            until(lambda: listener.metrics.handled == 2)
            time.sleep(0.3)
            leased = ps.queue("in").stats().channels["main"].leased
            gates[Release].set()
            go_on.set()
            assert leased == 3, "two are worked on, and one is being released"


def test_an_outage_of_a_second_makes_no_dead_letters(room: Room, ps: Any) -> None:
    ps.queue("in").send_many([b"%d" % number for number in range(100)])
    over = time.monotonic() + 1
    handled: set[bytes] = set()

    def fail_or_handle(message: Any) -> None:
        if time.monotonic() < over:
            raise ConnectionError("down")
        handled.add(message.body)

    if room.kind == "threads":
        work: Any = fail_or_handle
    else:

        async def work(message: Any) -> None:
            fail_or_handle(message)

    with ps.listen("in", work, workers=8) as listener:
        until(lambda: listener.metrics.handled == 100)
    assert len(handled) == 100
    assert ps.queue("in").stats().channels["main"].dead == 0
    assert ps.queues() == ["in"]
