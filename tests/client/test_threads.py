from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.shards import not_for_clusters

pytestmark = not_for_clusters("a directory is opened by threads")


@pytest.fixture(params=["memory", "directory"])
def ps(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with penstock.open(":memory:" if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


def run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_what_64_producers_send_8_consumers_get_once(ps: penstock.Penstock) -> None:
    orders = ps.create_queue("orders")
    received: list[bytes] = []
    todo = threading.Semaphore(0)

    def produce(number: int) -> None:
        for index in range(10):
            orders.send(b"%d/%d" % (number, index))

    def consume() -> None:
        while message := orders.receive(wait=10):
            if message.body == b"stop":
                message.ack()
                return
            received.append(message.body)
            message.ack()
            todo.release()

    consumers = [threading.Thread(target=consume) for _ in range(8)]
    for consumer in consumers:
        consumer.start()
    run_all([threading.Thread(target=produce, args=(number,)) for number in range(64)])
    for _ in range(640):
        assert todo.acquire(timeout=30)
    orders.send_many([b"stop"] * 8)
    for consumer in consumers:
        consumer.join(30)
    assert Counter(received) == Counter(b"%d/%d" % (number, index) for number in range(64) for index in range(10))
    stats = orders.stats()
    assert (stats.sent, stats.messages) == (648, 0)


def test_a_threads_messages_keep_their_order(ps: penstock.Penstock) -> None:
    orders = ps.create_queue("orders", kind="fifo")

    def produce(number: int) -> None:
        for index in range(10):
            orders.send(b"%d" % index, group=str(number), dedup_id=f"{number}/{index}")

    run_all([threading.Thread(target=produce, args=(number,)) for number in range(16)])
    seen: dict[str | None, list[int]] = {}
    while messages := orders.receive(50):
        for message in messages:
            seen.setdefault(message.group, []).append(int(message.body))
            message.ack()
    assert seen == {str(number): list(range(10)) for number in range(16)}


def test_every_waiting_thread_gets_one_of_as_many_messages(ps: penstock.Penstock) -> None:
    orders = ps.create_queue("orders")
    received: list[Any] = []
    threads = [threading.Thread(target=lambda: received.append(orders.receive(wait=20))) for _ in range(32)]
    for thread in threads:
        thread.start()
    while orders.stats().channels["main"].waiting_receivers < 32:
        threading.Event().wait(0.001)
    orders.send_many([b"%d" % number for number in range(32)])
    for thread in threads:
        thread.join(20)
    assert sorted(int(message.body) for message in received) == list(range(32))


def test_waits_and_leases_end_by_the_real_clock(ps: penstock.Penstock) -> None:
    orders = ps.create_queue("orders")
    assert orders.receive(wait=0.02) is None
    orders.send(b"x")
    first = orders.receive(lease=0.03)
    again = orders.receive(wait=10)
    assert first is not None and again is not None
    assert (again.sequence, again.attempts) == (first.sequence, 2)


def test_closing_while_threads_are_busy_leaves_nobody_hanging(ps: penstock.Penstock) -> None:
    orders = ps.create_queue("orders")
    started = threading.Barrier(17)
    ends: list[type] = []

    def busy() -> None:
        started.wait()
        try:
            while True:
                orders.send(b"x")
                message = orders.receive()
                if message is not None:
                    message.ack()
        except penstock.PenstockError as error:
            ends.append(type(error))

    threads = [threading.Thread(target=busy) for _ in range(16)]
    for thread in threads:
        thread.start()
    started.wait()
    threading.Event().wait(0.05)
    ps.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert ends == [penstock.ShardClosed] * 16
