"""kill -9 in the middle of NSQ traffic: nothing that was answered OK is lost, and what was finished stays gone."""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.protocols.nsq.clients.servers import AGAINST_NSQD, START_S_MAX, Penstock, running, until
from tests.protocols.nsq.clients.wire import MESSAGE, RESPONSE, Connection, Frame, Message, fin, mpub, pub

pytestmark = pytest.mark.skipif(AGAINST_NSQD, reason="nsqd does not promise this")
KILLS = int(os.environ.get("NSQ_KILLS", "4"))
TOPIC, CHANNEL = "traffic", "ch"


class Books:
    """What was promised. Tries are noted before, promises after the answer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.number = 0
        self.tried: set[int] = set()
        self.published: set[int] = set()
        self.maybe_finished: set[int] = set()
        self.finished: set[int] = set()
        self.unanswered = 0

    def next_numbers(self, count: int) -> list[int]:
        with self.lock:
            numbers = list(range(self.number, self.number + count))
            self.number += count
            self.tried.update(numbers)
            return numbers


class Traffic:
    """Writers and readers that go on whatever happens to the server."""

    def __init__(self, server: Penstock, seed: int) -> None:
        self._server = server
        self._rng = random.Random(seed)
        self._is_over = threading.Event()
        self._failures: list[BaseException] = []
        self.books = Books()
        work = [self._write, self._write, self._read, self._read]
        self._threads = [
            threading.Thread(target=self._repeat, args=(each, random.Random(self._rng.random())), daemon=True)
            for each in work
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def run_for(self, seconds: float) -> None:
        """Until something was promised, then for so long."""
        before = len(self.books.published), len(self.books.finished)
        until(lambda: self._failures or self._has_moved(*before))
        time.sleep(seconds)

    def _has_moved(self, published: int, finished: int) -> bool:
        return len(self.books.published) > published and len(self.books.finished) > finished

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
        if self._failures:
            raise self._failures[0]

    def _repeat(self, work: Callable[[Connection, random.Random], None], rng: random.Random) -> None:
        try:
            while not self._is_over.is_set():
                try:
                    with Connection(self._server.address) as connection:
                        work(connection, rng)
                except (OSError, Disconnected):
                    self.books.unanswered += 1
                    self._is_over.wait(0.02)
        except BaseException as failure:
            self._failures.append(failure)

    def _write(self, connection: Connection, rng: random.Random) -> None:
        while not self._is_over.is_set():
            numbers = self.books.next_numbers(rng.choice([1, 3, 50]))
            bodies = [b"%d" % number for number in numbers]
            connection.send(pub(TOPIC, bodies[0]) if len(bodies) == 1 else mpub(TOPIC, bodies))
            assert answer(connection) == Frame(RESPONSE, b"OK")
            with self.books.lock:
                self.books.published.update(numbers)

    def _read(self, connection: Connection, rng: random.Random) -> None:
        """Finishes most of what it gets. A PUB behind the FINs is answered when they are on the disk as well."""
        connection.send(f"SUB {TOPIC} {CHANNEL}\n".encode(), b"RDY 100\n")
        assert answer(connection) == Frame(RESPONSE, b"OK")
        while not self._is_over.is_set():
            run = [message_of(answer(connection)) for _ in range(rng.choice([1, 20]))]
            chosen = [message for message in run if rng.random() < 0.9]
            numbers = {int(message.body) for message in chosen}
            with self.books.lock:
                back = numbers & self.books.finished
                assert not back, f"finished, and here again: {sorted(back)[:5]}"
                self.books.maybe_finished.update(numbers)
            connection.send(*map(fin, chosen), pub("fence", b"x"))
            self._until_fence(connection, numbers)

    def _until_fence(self, connection: Connection, numbers: set[int]) -> None:
        """What comes before the answer is left to the next connection, or to a timeout."""
        while (frame := answer(connection)).kind == MESSAGE:
            connection.send(b"REQ %s 0\n" % message_of(frame).id)
        assert frame == Frame(RESPONSE, b"OK")
        with self.books.lock:
            self.books.finished.update(numbers)


class Disconnected(Exception):
    """The server is gone."""


def answer(connection: Connection) -> Frame:
    try:
        frame = connection.frame(10)
    except AssertionError as cut:
        raise Disconnected from cut
    if frame is None:
        raise Disconnected
    return frame


def message_of(frame: Frame) -> Message:
    assert frame.kind == MESSAGE, frame
    timestamp_ns, attempts = struct.unpack_from(">qH", frame.data)
    return Message(timestamp_ns, attempts, frame.data[10:26], frame.data[26:])


def left(server: Penstock) -> list[int]:
    """Everything that the channel still has to give."""
    found: list[int] = []
    with server.subscriber(TOPIC, CHANNEL, ready=2500) as reader:

        def is_empty() -> bool:
            messages = reader.arriving()
            found.extend(int(message.body) for message in messages)
            reader.send(*map(fin, messages))
            channel = server.channel(TOPIC, CHANNEL)
            return not any(channel[name] for name in ("depth", "in_flight_count", "deferred_count"))

        until(is_empty)
        assert reader.is_silent()
    return found


def test_kill_9_during_traffic_breaks_no_promise(tmp_path: Path) -> None:
    with running(Penstock(tmp_path)) as server:
        server.post("/topic/create", topic=TOPIC)
        server.post("/channel/create", topic=TOPIC, channel=CHANNEL)
        rng = random.Random(5)
        traffic = Traffic(server, seed=5)
        traffic.start()
        for _ in range(KILLS):
            traffic.run_for(rng.random() * 0.4)
            server.kill()
            server.start()
        traffic.run_for(0.2)
        traffic.stop()
        books = traffic.books
        waiting = left(server)
        assert len(waiting) == len(set(waiting)), "a message is there twice"
        lost = books.published - books.maybe_finished - set(waiting)
        assert not lost, f"{len(lost)} messages were acknowledged and lost"
        back = books.finished & set(waiting)
        assert not back, f"{len(back)} messages were finished and came back"
        assert set(waiting) <= books.tried
        assert books.unanswered > 0
        assert len(books.finished) > 0


def test_leases_of_connections_that_died_with_the_server_end_with_it(tmp_path: Path) -> None:
    with running(Penstock(tmp_path)) as server:
        server.publish(TOPIC, b"held")
        with server.subscriber(TOPIC, ready=1, msg_timeout=900_000) as reader:
            reader.message()
            server.kill()
        server.start()
        with server.subscriber(TOPIC, ready=1) as reader:
            assert reader.message().attempts in (1, 2)


def test_a_pause_survives_and_what_is_ephemeral_does_not(tmp_path: Path) -> None:
    with running(Penstock(tmp_path)) as server:
        server.publish("paused", b"x")
        server.post("/channel/create", topic="paused", channel="ch")
        server.post("/channel/pause", topic="paused", channel="ch")
        server.post("/topic/create", topic="held")
        server.post("/topic/pause", topic="held")
        with server.subscriber("paused", "gone#ephemeral"), server.subscriber("gone#ephemeral", "ch"):
            server.kill()
        server.start()
        assert server.channel("paused", "ch")["paused"] is True
        assert server.topic("held")["paused"] is True
        assert server.channel("paused", "gone#ephemeral") is None
        assert server.topic("gone#ephemeral") is None
        with server.subscriber("paused", "ch", ready=1) as reader:
            assert reader.is_silent()
            server.post("/channel/unpause", topic="paused", channel="ch")
            assert reader.message().body == b"x"


def test_a_stop_closes_consumers_and_exits_with_0(tmp_path: Path) -> None:
    with running(Penstock(tmp_path)) as server:
        server.publish(TOPIC, b"held", b"waiting")
        with server.subscriber(TOPIC, ready=1) as reader, server.connect() as idle:
            reader.message()
            server.process.terminate()
            assert server.process.wait(START_S_MAX) == 0
            assert reader.is_closed()
            assert idle.is_closed()
        server.start()
        with server.subscriber(TOPIC, ready=2) as reader:
            assert sorted(message.body for message in reader.messages(2)) == [b"held", b"waiting"]


def test_deferred_messages_survive(tmp_path: Path) -> None:
    with running(Penstock(tmp_path)) as server:
        with server.connect() as writer:
            assert writer.ask(b"DPUB later 1500\n\0\0\0\1x") == b"OK"
        server.post("/channel/create", topic="later", channel="ch")
        server.kill()
        server.start()
        with server.subscriber("later", ready=1) as reader:
            assert reader.message().body == b"x"
