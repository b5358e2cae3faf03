"""`penstock.testing`: a real server for other people's tests."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from celery import Celery

from penstock import testing
from tests.package import PACKAGE
from tests.server.serving import until

ROOT = Path(__file__).parents[2]


def test_a_server_serves_every_kind_of_client() -> None:
    with testing.server() as server:
        sqs = boto3.client("sqs", **server.boto3)
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="tea")
        with server.connect() as ps:
            assert ps.queue("orders").receive(wait=5).text == "tea"
        app = Celery("shop")
        app.conf.update(server.celery)
        app.send_task("shop.brew", args=["tea"])
        assert any(name.endswith("/celery") for name in sqs.list_queues()["QueueUrls"])
        host, port = server.nsq_address.split(":")
        with socket.create_connection((host, int(port))) as nsq:
            nsq.sendall(b"  V2PUB orders\n\x00\x00\x00\x06coffee")
            assert nsq.recv(100).endswith(b"OK")


def test_a_server_and_its_directory_end_with_the_block() -> None:
    with testing.server() as server:
        assert server.directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    assert not server.directory.exists()


PROGRAM = """
import os, signal
from penstock import testing

with testing.server() as server:
    print(server.pid, server.directory, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_and_its_directory_end_with_a_process_that_is_killed() -> None:
    """So do those of tests that a timeout ends, and of workers that crash."""
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
    said = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True).stdout
    pid, directory = said.split()
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert not Path(directory).parent.exists()


def test_what_is_set_for_another_server_is_not_set_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ACCESS_KEY", "of another server")
    monkeypatch.setenv("PENSTOCK_SECRET_KEY", "secret")
    monkeypatch.setenv("PENSTOCK_ENGINE", "kafka")
    with testing.server() as server, server.connect() as ps:
        assert ps.queues() == []


def test_a_directory_that_was_given_has_its_messages_for_the_next_server(tmp_path: Path) -> None:
    with testing.server(tmp_path / "data") as server, server.connect() as ps:
        ps.queue("orders").send(b"tea")
    with testing.server(tmp_path / "data") as server, server.connect() as ps:
        assert ps.queue("orders").receive().text == "tea"


def test_a_server_takes_no_settings_from_the_environment_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ENGINE", "kafka")
    monkeypatch.setenv("PENSTOCK_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("PENSTOCK_ACCESS_KEY", "mine")
    monkeypatch.setenv("PENSTOCK_SECRET_KEY", "my secret")
    with testing.server() as server, server.connect() as ps:
        ps.queue("orders").send(b"tea")
        assert ps.queue("orders").receive(wait=5).text == "tea"


def test_an_environment_that_was_given_reaches_the_server() -> None:
    given = os.environ | {"PENSTOCK_SQS_PORT": "many"}
    with (
        pytest.raises(testing.ServerFailed, match="PENSTOCK_SQS_PORT is 'many'"),
        testing.server(environment=given),
    ):
        pass


def test_a_server_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(testing.ServerFailed, match="has no key 'porst'"),
        testing.server(config="[server]\nporst = 1\n"),
    ):
        pass


def pytest_in(directory: Path) -> str:
    """What pytest says of a directory, to which nobody has told where the fixtures are."""
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(directory), str(directory)]
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False).stdout


def test_each_test_has_a_server_of_its_own_and_a_run_may_have_one_for_all(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(
        "def test_orders(penstock_server):\n"
        "    with penstock_server.connect() as ps:\n"
        "        ps.queue('orders').send(b'tea')\n\n"
        "def test_is_alone(penstock_server, penstock_session_server):\n"
        "    assert penstock_server.pid != penstock_session_server.pid\n"
        "    with penstock_server.connect() as ps:\n"
        "        assert not ps.queues()\n"
    )
    said = pytest_in(tmp_path)
    assert "2 passed" in said, said


def test_the_examples_of_the_docs_run_as_printed(tmp_path: Path) -> None:
    printed = re.findall(
        r"(<!-- not run.*?\n)?```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL
    )
    programs = [program for note, program in printed if not note]
    tests = [program for program in programs if "\ndef test_" in program]
    for number, test in enumerate(tests):
        (tmp_path / f"test_printed_{number}.py").write_text(test)
    said = pytest_in(tmp_path)
    assert len(tests) == 3 and "3 passed" in said, said
    for program in programs:
        if program not in tests:
            subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
