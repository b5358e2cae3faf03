"""Clients that send garbage, half a command, a 4 GB size, or never read: others are served, memory stays bounded."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.protocols.nsq.clients.layers import Layered
from tests.protocols.nsq.clients.mutations import Mutator
from tests.protocols.nsq.clients.servers import AGAINST_NSQD, Broker, Nsqd, Penstock, running, until
from tests.protocols.nsq.clients.wire import PATIENCE_S, Connection, fin, identify, sized, sub

MUTATIONS = int(os.environ.get("NSQ_MUTATIONS", "1000"))
MB = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One for this module alone: what is done to it must not slow down the others."""
    directory = tmp_path_factory.mktemp("hostile")
    with running(Nsqd(directory) if AGAINST_NSQD else Penstock(directory)) as server:
        yield server


def serves(server: Broker, topic: str) -> None:
    """Whether an honest client is served, and before the server has done much else."""
    worked_s = server.worked_s()
    with server.connect() as writer, server.subscriber(topic, "honest", ready=10) as reader:
        writer.publish(topic, b"honest")
        while (message := reader.message()).body != b"honest":
            reader.send(fin(message))
        reader.send(fin(message))
        assert reader.is_open()
    assert server.worked_s() - worked_s < 10


def test_damaged_conversations_end_in_errors_that_clients_know(server: Broker, topic: str) -> None:
    mutator = Mutator(server, [f"{topic}-{number}" for number in range(5)], seed=20)
    mutator.run(MUTATIONS)
    assert {"E_INVALID", "E_BAD_TOPIC", "E_BAD_BODY", "E_BAD_MESSAGE", "no error"} <= set(mutator.ends), mutator.ends
    assert set(mutator.ends) <= {
        "E_INVALID",
        "E_BAD_TOPIC",
        "E_BAD_CHANNEL",
        "E_BAD_BODY",
        "E_BAD_MESSAGE",
        "E_BAD_PROTOCOL",
        "E_AUTH_DISABLED",
        "E_FIN_FAILED",
        "E_REQ_FAILED",
        "E_TOUCH_FAILED",
        "E_IDENTIFY_FAILED",
        "E_SUB_FAILED",
        "no error",
    }
    serves(server, topic)


def test_garbage(server: Broker, topic: str) -> None:
    for number in range(200):
        with socket.create_connection(server.address, PATIENCE_S) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(os.urandom(4000) if number % 2 else b"  V2" + os.urandom(4000))
    serves(server, topic)


def test_a_4_gb_size_takes_no_memory(server: Broker, topic: str) -> None:
    before = server.memory_bytes()
    held = []
    for verb in (b"PUB t\n", b"MPUB t\n", b"DPUB t 1\n", b"IDENTIFY\n", b"AUTH\n"):
        for size in (0xFFFFFFFF, 0x7FFFFFFF, 0x80000000):
            connection = server.connect()
            connection.send(verb + struct.pack(">I", size))
            assert connection.error().startswith("E_BAD_")
            held.append(connection)
    serves(server, topic)
    assert server.memory_bytes() - before < 50 * MB
    for connection in held:
        connection.close()


def test_many_that_begin_a_large_body_and_never_end_it(server: Broker, topic: str) -> None:
    """They cost what they have sent, and no more."""
    before = server.memory_bytes()
    held = []
    for _ in range(200):
        connection = server.connect()
        connection.send(f"PUB {topic}\n".encode() + struct.pack(">i", MB) + b"x" * 1000)
        held.append(connection)
    serves(server, topic)
    assert server.memory_bytes() - before < (250 * MB if server.is_nsqd else 60 * MB)
    for connection in held:
        connection.close()
    serves(server, topic)


def test_a_consumer_that_never_reads_gets_backpressure_and_not_memory(server: Broker, topic: str) -> None:
    bodies = [b"x" * 10_000] * 100
    with server.connect() as writer:
        for _ in range(100):
            writer.publish(topic, *bodies)  # 100 MB
    before = server.memory_bytes()
    lazy = []
    for number in range(20):
        connection = Connection(server.address)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.send(identify(msg_timeout=60_000), sub(topic, f"lazy-{number % 2}"), b"RDY 2500\n")
        lazy.append(connection)
    serves(server, f"{topic}-other")
    with server.subscriber(topic, "lazy-0", ready=100) as reader:
        reader.send(*map(fin, reader.messages(50)))
        reader.messages(50)
    assert server.memory_bytes() - before < 200 * MB
    for connection in lazy:
        connection.close()
    serves(server, topic)


def test_a_consumer_that_never_reads_is_closed_by_its_heartbeats(server: Broker, topic: str) -> None:
    server.publish(topic, *[b"x" * 10_000] * 400)
    with Connection(server.address) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.send(identify(heartbeat_interval=1000), sub(topic, "ch"), b"RDY 2500\n")
        until(lambda: server.channel(topic) and server.channel(topic)["client_count"] == 1)
        until(lambda: server.channel(topic)["client_count"] == 0)


def test_a_producer_that_never_reads_its_oks_is_held_up(server: Broker, topic: str) -> None:
    """It cannot make the server keep answers without end: at some point nothing more is read from it."""
    one = f"PUB {topic}\n".encode() + sized(b"x")
    before = server.memory_bytes()
    with Connection(server.address) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.socket.settimeout(3)
        sent = 0
        with contextlib.suppress(TimeoutError, ConnectionError):
            while sent < 40 * MB:
                sent += connection.socket.send(one * 5000)
        serves(server, f"{topic}-other")
        assert server.memory_bytes() - before < 300 * MB


def test_clients_that_connect_and_say_nothing(server: Broker, topic: str) -> None:
    silent = [socket.create_connection(server.address, PATIENCE_S) for _ in range(500)]
    half = [socket.create_connection(server.address, PATIENCE_S) for _ in range(200)]
    for connection in half:
        connection.sendall(b"  V2PU")
    serves(server, topic)
    for connection in silent + half:
        connection.close()
    serves(server, topic)


def test_thousands_that_connect_and_leave(server: Broker, topic: str) -> None:
    for _ in range(20):
        crowd = [socket.create_connection(server.address, PATIENCE_S) for _ in range(100)]
        for number, connection in enumerate(crowd):
            if number % 2:
                connection.sendall(b"  V2" + sub(f"{topic}-crowd", "ch#ephemeral"))
        for connection in crowd:
            connection.close()
    serves(server, topic)
    until(lambda: server.channel(f"{topic}-crowd", "ch#ephemeral") is None)


@pytest.mark.skipif(AGAINST_NSQD, reason="Go's memory says little")
def test_consumers_that_come_and_go_leave_nothing_behind(server: Broker, topic: str) -> None:
    def come_and_go(times: int) -> None:
        for _ in range(times):
            crowd = [server.subscriber(topic, ready=1) for _ in range(100)]
            for connection in crowd:
                connection.close()
        until(lambda: server.channel(topic)["client_count"] == 0)

    come_and_go(5)
    before = server.memory_bytes()
    come_and_go(12)
    assert server.memory_bytes() - before < 3 * MB


def test_a_body_that_comes_byte_by_byte_keeps_nobody_waiting(server: Broker, topic: str) -> None:
    with server.connect() as slow:
        slow.send(f"PUB {topic}\n".encode() + struct.pack(">i", 2000))
        for _ in range(10):
            for _ in range(200):
                slow.send(b"x")
            serves(server, f"{topic}-other")
        assert slow.response() == b"OK"


@pytest.mark.parametrize("verb", [b"FIN %016x\n", b"TOUCH %016x\n", b"REQ %016x 0\n"])
def test_thousands_of_ids_that_nobody_holds_keep_nobody_waiting(server: Broker, topic: str, verb: bytes) -> None:
    server.publish(topic, b"x")
    with server.subscriber(topic, ready=1) as liar:
        first = int(liar.message().id, 16)
        liar.send(b"".join(verb % (first + 2 + 2 * number) for number in range(20_000)))
        serves(server, f"{topic}-other")
        for _ in range(20_000):
            assert b"FAILED" in liar.error().encode()
        assert liar.is_open()


@pytest.mark.parametrize(
    "what", [b"NOP\n", b"FIN 0123456789abcdef\n", b"PUB bomb\n\0\0\0\1x"], ids=["NOP", "FIN", "PUB"]
)
def test_little_that_unpacks_to_much_keeps_nobody_waiting(server: Broker, topic: str, what: bytes) -> None:
    before = server.memory_bytes()
    with Layered(server.address, deflate=True) as bomb:
        if what.startswith(b"FIN"):
            bomb.subscribe(topic, "ch")
        packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        portion = what * (MB // len(what))
        packed = b"".join(packer.compress(portion) for _ in range(12)) + packer.flush(zlib.Z_SYNC_FLUSH)
        assert len(packed) < MB
        bomb.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        bomb.socket.sendall(packed)
        for _ in range(3):
            serves(server, f"{topic}-other")
        assert server.memory_bytes() - before < 200 * MB
    serves(server, f"{topic}-other")


@pytest.mark.parametrize(
    "what", [b"NOP\n", identify(), b"PUB one\n\0\0\0\1xPUB other\n\0\0\0\1x"], ids=["NOP", "IDENTIFY", "PUB"]
)
def test_who_never_stops_talking_keeps_nobody_waiting(server: Broker, what: bytes) -> None:
    until_s = time.monotonic() + 10

    def talk() -> None:
        with contextlib.suppress(OSError):
            while time.monotonic() < until_s:
                talker.send(what * (MB // len(what)))

    def listen() -> None:
        with contextlib.suppress(OSError):
            while talker.receive():
                pass

    with server.connect() as talker:
        threads = [threading.Thread(target=each) for each in (talk, listen)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        waited_s = []
        for _ in range(5):
            started_s = time.monotonic()
            assert server.http("GET", "/ping")[0] == 200
            waited_s.append(time.monotonic() - started_s)
        talker.socket.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    assert max(waited_s) < 1, waited_s


@pytest.mark.skipif(AGAINST_NSQD, reason="nsqd has no such limit")
def test_connections_above_the_limit_are_refused_and_the_others_served(tmp_path: Path) -> None:
    with running(Penstock(tmp_path, settings="[nsq]\nconnections_max = 10\n")) as server:
        crowd = [server.connect() for _ in range(9)]
        for connection in crowd:
            assert connection.is_open()
        extra = [Connection(server.address) for _ in range(5)]
        assert sum(is_refused(connection) for connection in extra) >= 4
        for connection in [*crowd, *extra]:
            connection.close()
        until(lambda: can_publish(server))


def is_refused(connection: Connection) -> bool:
    try:
        connection.send(b"PUB t\n" + sized(b"x"))
        frame = connection.frame()
    except OSError:
        return True
    return frame is None or frame.kind == 1


def can_publish(server: Broker) -> bool:
    with server.connect() as connection:
        return not is_refused(connection)


def test_consumers_above_the_limit_are_refused(tmp_path: Path) -> None:
    flags, settings = ("--max-channel-consumers=2",), "[nsq]\nchannel_consumers_max = 2\n"
    with running(Nsqd(tmp_path, *flags) if AGAINST_NSQD else Penstock(tmp_path, settings=settings)) as server:
        with server.subscriber("t"), server.subscriber("t"), server.connect() as third:
            third.send(sub("t", "ch"))
            assert third.error() == "E_SUB_FAILED SUB failed consumers for t:ch exceeds limit of 2"
            assert third.is_closed()
        until(lambda: server.channel("t")["client_count"] == 0)
        with server.subscriber("t"):
            pass
