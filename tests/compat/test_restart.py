"""Stops, crashes and clients that leave: no acknowledged send is lost, and no deleted message comes back."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.compat import raw
from tests.compat.hang_ups import HangUps
from tests.compat.server import Server, serving, until
from tests.compat.traffic import Traffic
from tests.kill.killer import PromiseBroken

KILLS = int(os.environ.get("COMPAT_KILLS", "6"))
STOPS = 2
HANG_UP_ROUNDS = 100


def test_kill_9_during_traffic_breaks_no_promise(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        rng = random.Random(1)
        traffic = Traffic(server, seed=1)
        traffic.start()
        for _ in range(KILLS):
            traffic.run_for(rng.random() * 0.4)
            server.kill()
            traffic.check()
            server.start()
        traffic.run_for(0.2)
        until(lambda: traffic.promises.done or traffic._failures)
        traffic.stop()
        assert server.stop() == 0
        traffic.check()
        assert traffic.counts["deleted"] > 0
        assert traffic.counts["unanswered"] > 0


def test_sigterm_during_traffic_exits_with_0_and_breaks_no_promise(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        traffic = Traffic(server, seed=2)
        traffic.start()
        for _ in range(STOPS):
            traffic.run_for(0.3)
            assert server.stop() == 0
            traffic.check()
            server.start()
        traffic.run_for(0.1)
        traffic.stop()
        assert server.stop() == 0
        traffic.check()


def test_a_broken_promise_would_be_noticed(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        traffic = Traffic(server, seed=3)
        traffic.start()
        traffic.run_for(0.2)
        traffic.stop()
        assert server.stop() == 0
        traffic.promises.tried.add(0)
        traffic.promises.sent.add(0)
        with pytest.raises(PromiseBroken, match="lost"):
            traffic.check()


def test_a_stop_answers_requests_that_were_begun_and_ends_long_polls_empty(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        sqs = server.client()
        sqs.create_queue(QueueName="orders")
        sqs.create_queue(QueueName="empty")
        polls = [raw.poll(server, "empty") for _ in range(20)]
        requests = [
            raw.json_request("SendMessage", {"QueueUrl": server.queue_url("orders"), "MessageBody": str(number)})
            for number in range(20)
        ]
        begun = [raw.connect(server) for _ in requests]
        for number, connection in enumerate(begun):
            connection.sendall(requests[number][: -1 - number])
        idle = raw.connect(server)
        idle.sendall(raw.json_request("ListQueues", {}))
        assert raw.response(idle)[0] == 200
        until(lambda: server.waiting("empty") == 20)

        server.process.terminate()
        assert idle.recv(1) == b""
        for number, connection in enumerate(begun):
            connection.sendall(requests[number][-1 - number :])
        assert [raw.response(connection)[0] for connection in begun] == [200] * 20
        assert [raw.bodies(raw.response(connection)) for connection in polls] == [[]] * 20
        assert server.process.wait(30) == 0
        for connection in (idle, *begun, *polls):
            connection.close()

        server.start()
        bodies = received(server, "orders")
        assert sorted(map(int, bodies)) == list(range(20))


def received(server: Server, queue: str) -> list[str]:
    sqs = server.client()
    bodies: list[str] = []
    while True:
        answer = sqs.receive_message(QueueUrl=server.queue_url(queue), MaxNumberOfMessages=10)
        if "Messages" not in answer:
            return bodies
        bodies += [message["Body"] for message in answer["Messages"]]


def test_clients_that_hang_up_take_no_message_with_them(server: Server) -> None:
    hang_ups = HangUps(server, seed=4)
    hang_ups.run(HANG_UP_ROUNDS)
    assert hang_ups.counts["hang-ups"] >= 200
    assert hang_ups.counts["given back"] > HANG_UP_ROUNDS // 2
