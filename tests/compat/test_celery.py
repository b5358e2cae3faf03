"""Celery with its SQS transport: worker processes as users start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.common import Broadcast
from kombu.entity import Exchange

from tests.compat import celery_app
from tests.compat.server import ROOT, Server, until
from tests.package import PACKAGE

COUNTDOWN_S = 2
VISIBILITY_S = 3


class Workers:
    """Celery's settings, the workers that follow them, and what their tasks recorded."""

    def __init__(self, server: Server, directory: Path, options: dict[str, Any], **settings: Any) -> None:
        self.broadcasts = ""
        """Names of queues that every worker has one of its own of."""
        self._server = server
        self._directory = directory
        self._record = directory / "record"
        self._record.touch()
        self._settings = {
            "broker_url": f"sqs://test:test@127.0.0.1:{server.port}//",
            "broker_transport_options": {"region": "us-east-1", "polling_interval": 0.1, **options},
            **settings,
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *flags: str) -> subprocess.Popen[bytes]:
        without = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        name = f"worker-{len(self.started)}"
        command = [sys.executable, "-m", "celery", "-A", "tests.compat.celery_app", "worker", "-n", name, *without]
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT}:{PACKAGE}",
            celery_app.SETTINGS: json.dumps(self._settings),
            celery_app.RECORD: str(self._record),
            celery_app.BROADCASTS: self.broadcasts,
        }
        with (self._directory / name).open("wb") as log:
            worker = subprocess.Popen(
                [*command, *flags], cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.started.append(worker)
        return worker

    def logs(self) -> list[str]:
        """What each worker has said."""
        return [(self._directory / f"worker-{number}").read_text() for number in range(len(self.started))]

    def sender(self) -> Celery:
        """An application that knows the tasks by name only, as the web server of a user might."""
        app = Celery("sender")
        app.conf.update(self._settings)
        return app

    def lines(self, kind: str) -> list[list[str]]:
        lines = (line.split() for line in self._record.read_text().splitlines())
        return [words[1:] for words in lines if words[0] == kind]

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """With its children."""
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


@pytest.fixture
def workers(server: Server, tmp_path: Path) -> Iterator[Callable[..., Workers]]:
    made: list[Workers] = []

    def make(options: dict[str, Any], **settings: Any) -> Workers:
        made.append(Workers(server, tmp_path, options, **settings))
        return made[-1]

    yield make
    for each in made:
        for worker in each.started:
            each.kill(worker)


def task(name: str) -> str:
    return f"tests.compat.celery_app.{name}"


def is_empty(sqs: Any, url: str) -> bool:
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return all(value == "0" for name, value in attributes.items() if name.startswith("ApproximateNumberOf"))


def test_two_workers_share_queues_that_they_create(
    server: Server, sqs: Any, name: str, workers: Callable[..., Workers]
) -> None:
    prefix = f"{name}-"
    crew = workers({"queue_name_prefix": prefix, "visibility_timeout": 600})
    first = crew.start("--pool", "solo", "-Q", "work,line.fifo")
    second = crew.start("--pool", "solo", "-Q", "work")
    until(lambda: server.waiting(f"{prefix}work") == 2 and server.waiting(f"{prefix}line.fifo") == 1)

    app = crew.sender()
    for number in range(100):
        app.send_task(task("note"), (number,), queue="work")
    for number in range(100, 110):
        app.send_task(task("note"), (number,), queue="line.fifo", MessageGroupId="g")
    for number in range(5):
        app.send_task(task("flaky"), (number,), queue="work")
    sent = time.time()
    for number in range(200, 205):
        app.send_task(task("note"), (number,), queue="work", countdown=COUNTDOWN_S)
    app.send_task(task("note"), (300,), queue="work", eta=datetime.now(UTC) + timedelta(seconds=COUNTDOWN_S))

    until(lambda: len(crew.lines("note")) >= 116 and len(crew.lines("flaky")) >= 15)
    notes = crew.lines("note")
    numbers = [int(words[0]) for words in notes]
    assert Counter(numbers) == Counter([*range(110), *range(200, 205), 300])
    assert {int(words[1]) for words in notes} == {first.pid, second.pid}
    assert [number for number in numbers if 100 <= number < 110] == list(range(100, 110))
    assert all(float(words[2]) >= sent + COUNTDOWN_S - 0.1 for words in notes if int(words[0]) >= 200)
    assert Counter((words[0], words[1]) for words in crew.lines("flaky")) == Counter(
        (str(number), str(tries)) for number in range(5) for tries in range(3)
    )
    until(lambda: is_empty(sqs, server.queue_url(f"{prefix}work")))

    for worker in (first, second):
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait(120) for worker in (first, second)] == [0, 0]
    app.send_task(task("note"), (400,), queue="work")
    (message,) = sqs.receive_message(QueueUrl=server.queue_url(f"{prefix}work"))["Messages"]
    assert message["Body"]


def test_a_task_whose_worker_is_killed_comes_to_another(
    server: Server, sqs: Any, name: str, workers: Callable[..., Workers]
) -> None:
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": str(VISIBILITY_S)})["QueueUrl"]
    crew = workers({"predefined_queues": {"jobs": {"url": url}}})
    crew.sender().send_task(task("stubborn"), queue="jobs")
    victim = crew.start("--pool", "solo", "-Q", "jobs")
    until(lambda: crew.lines("begun"))
    assert not is_empty(sqs, url)
    crew.kill(victim)

    crew.start("--pool", "prefork", "--concurrency", "2", "-Q", "jobs")
    for number in range(20):
        crew.sender().send_task(task("note"), (number,), queue="jobs")
    until(lambda: crew.lines("ended"))
    (first_pid, *later_pids), ended_pid = [int(words[0]) for words in crew.lines("begun")], crew.lines("ended")[0][0]
    assert first_pid == victim.pid
    assert int(ended_pid) in later_pids
    until(lambda: is_empty(sqs, url))
    assert {int(words[0]) for words in crew.lines("note")} == set(range(20))


def test_remote_control_and_broadcasts_reach_every_worker_through_sns(
    server: Server, name: str, workers: Callable[..., Workers]
) -> None:
    options = {"queue_name_prefix": f"{name}-", "visibility_timeout": 600}
    crew = workers(options, worker_enable_remote_control=True, broker_transport="penstock.celery:Transport")
    crew.broadcasts = "news"
    pids = [crew.start("--pool", "solo", "--loglevel", "info").pid for _ in range(2)]
    until(lambda: all("ready." in log for log in crew.logs()), 90)
    sender = crew.sender()  # which declares nothing: it has the workers' settings, and names the queue
    sender.conf.task_queues = [Broadcast("news")]
    sender.send_task(task("note"), (8,), queue="news")
    until(lambda: len(crew.lines("note")) >= 2)
    assert {int(words[1]) for words in crew.lines("note") if words[0] == "8"} == set(pids)
    app = crew.sender()
    news = Exchange("news", type="fanout")
    app.send_task(task("note"), (7,), exchange=news, exchange_type="fanout", routing_key="", declare=[news])
    until(lambda: len(crew.lines("note")) >= 4)
    assert {int(words[1]) for words in crew.lines("note") if words[0] == "7"} == set(pids)
    names = {"celery@worker-0", "celery@worker-1"}
    assert app.control.inspect(timeout=3).ping() == {each: {"ok": "pong"} for each in names}
    assert app.control.rate_limit(task("note"), "5/s", reply=True, timeout=3, limit=2)
    app.control.broadcast("shutdown")
    assert [worker.wait(60) for worker in crew.started] == [0, 0]
