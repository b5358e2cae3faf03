"""A name that ends with `.fifo` means FIFO through every door, or is refused with the reason."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

import penstock
from penstock.core.handlers import catalog, sending
from penstock.core.queues.config import QueueConfig
from tests.compat.server import PATIENCE_S, Server, serving

NAME = "line.fifo"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("fifo"), "--sqs-limits", "relaxed") as server:
        yield server


@pytest.fixture
def ps(server: Server) -> Iterator[penstock.Penstock]:
    with penstock.connect(f"penstock://127.0.0.1:{server.http_port}") as ps:
        yield ps
        for name in ps.queues():
            ps.queue(name).delete()


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.http_port}", timeout=PATIENCE_S) as client:
        yield client


def cli(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    url = f"penstock://127.0.0.1:{server.http_port}"
    command = [sys.executable, "-m", "penstock", *arguments, "--url", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def nsq_port(server: Server) -> int:
    listening = json.loads((server.directory / "ready.json").read_text())["listening"]
    return int(listening["nsq"]["port"])


def nsq(server: Server, command: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", nsq_port(server)), timeout=PATIENCE_S) as connection:
        connection.sendall(b"  V2" + command)
        size, _kind = struct.unpack(">ii", connection.recv(8, socket.MSG_WAITALL))
        return connection.recv(size - 4, socket.MSG_WAITALL)


def kind(ps: penstock.Penstock, name: str = NAME) -> str:
    return str(ps.queue(name).info().config.kind)


# -- created -----------------------------------------------------------------------------------------------------------


def test_python_creates_a_fifo_queue_by_its_name(ps: penstock.Penstock) -> None:
    ps.create_queue(NAME, content_dedup=True)
    assert kind(ps) == "fifo"
    ps.create_queue(NAME, content_dedup=True)
    ps.create_queue(NAME, kind="fifo", content_dedup=True)


def test_python_refuses_a_standard_queue_of_such_a_name(ps: penstock.Penstock) -> None:
    with pytest.raises(penstock.InvalidConfig, match=r"ends with \.fifo"):
        ps.create_queue(NAME, kind="standard")
    assert ps.queues() == []


def test_the_command_line_creates_a_fifo_queue_by_its_name(server: Server, ps: penstock.Penstock) -> None:
    assert cli(server, "queue", "create", NAME).returncode == 0
    assert kind(ps) == "fifo"


def test_rest_refuses_a_standard_queue_of_such_a_name(http: httpx.Client, ps: penstock.Penstock) -> None:
    answer = http.post("/v1/queues", json={"name": NAME, "settings": {"kind": "standard"}})
    assert answer.status_code == 400 and "ends with .fifo" in answer.text
    assert ps.queues() == []


def test_sqs_creates_a_fifo_queue_by_its_name(server: Server, ps: penstock.Penstock) -> None:
    sqs = server.client()
    for _ in range(2):
        sqs.create_queue(QueueName=NAME, Attributes={"ContentBasedDeduplication": "true"})
    assert kind(ps) == "fifo"
    with pytest.raises(ClientError, match=r"ends with \.fifo"):
        sqs.create_queue(QueueName="other.fifo", Attributes={"FifoQueue": "false"})


def test_nsq_creates_a_fifo_topic_by_its_name(server: Server, ps: penstock.Penstock) -> None:
    nsq(server, b"SUB line.fifo billing\n")
    assert kind(ps) == "fifo"


def test_a_channel_makes_a_fifo_queue_by_its_name(ps: penstock.Penstock) -> None:
    ps.queue(NAME).channel("audit")
    assert kind(ps) == "fifo"


def test_a_listener_makes_a_fifo_queue_by_its_name(ps: penstock.Penstock) -> None:
    with ps.listen(NAME, lambda message: None):
        assert kind(ps) == "fifo"


# -- sent to -----------------------------------------------------------------------------------------------------------


def test_the_first_message_makes_a_fifo_queue_by_its_name(ps: penstock.Penstock) -> None:
    ps.queue(NAME).send(b"a", group="g", dedup_id="1")
    assert kind(ps) == "fifo"


@pytest.mark.parametrize("door", ["python", "cli", "rest", "nsq", "unit of work"])
def test_a_message_without_a_group_is_refused_and_makes_no_queue(
    door: str, server: Server, ps: penstock.Penstock, http: httpx.Client
) -> None:
    if door == "python":
        with pytest.raises(penstock.InvalidRequest, match="group"):
            ps.queue(NAME).send(b"a")
    elif door == "unit of work":
        with pytest.raises(penstock.InvalidRequest, match="group"), ps.unit_of_work() as work:
            work.put(NAME, b"a")
            work.commit()
    elif door == "cli":
        ended = cli(server, "send", NAME, "a")
        assert ended.returncode == 2 and "group" in ended.stderr
    elif door == "rest":
        answer = http.post(f"/v1/queues/{NAME}/messages", json={"body": "a"})
        assert answer.status_code == 400 and "group" in answer.text
    else:
        answered = nsq(server, b"PUB line.fifo\n\0\0\0\1a")
        assert answered.startswith(b"E_PUB_FAILED") and b"group" in answered
    assert ps.queues() == []


# -- dead letters ------------------------------------------------------------------------------------------------------


def test_dead_letters_of_a_fifo_queue_are_in_a_fifo_queue(ps: penstock.Penstock) -> None:
    line = ps.create_queue(NAME, max_receives=1, content_dedup=True)
    line.send(b"a", group="g")
    message = line.receive()
    assert message is not None
    message.release(error="no")
    assert kind(ps, "line.dead.fifo") == "fifo"
    assert ps.queue("line.dead.fifo").peek()[0].group == "g"


def test_a_standard_queue_cannot_have_its_dead_letters_in_a_fifo_one(ps: penstock.Penstock) -> None:
    with pytest.raises(penstock.InvalidConfig, match="same kind"):
        ps.create_queue("orders", dead_letter="dead.fifo")
    ps.create_queue("orders")
    with pytest.raises(penstock.InvalidConfig, match="same kind"):
        ps.queue("orders").configure(dead_letter="dead.fifo")


def test_a_fifo_queue_may_have_its_dead_letters_under_any_name(ps: penstock.Penstock) -> None:
    ps.create_queue(NAME, dead_letter="dead")
    ps.create_queue("other.fifo", dead_letter="dead.fifo")


def test_messages_of_a_standard_queue_are_not_redriven_to_a_fifo_name(ps: penstock.Penstock) -> None:
    ps.queue("orders").send(b"a")
    with pytest.raises(penstock.InvalidRequest, match=r"FIFO by its name"):
        ps.redrive("orders", to=NAME)
    assert ps.queues() == ["orders"]


# -- the other way round, and from before ------------------------------------------------------------------------------


def test_a_fifo_queue_without_the_ending_is_a_fifo_queue_for_sqs_too(server: Server, ps: penstock.Penstock) -> None:
    ps.create_queue("line", kind="fifo")
    sqs, url = server.client(), server.queue_url("line")
    assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["FifoQueue"])["Attributes"] == {"FifoQueue": "true"}
    sqs.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g", MessageDeduplicationId="1")
    (message,) = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert message["Attributes"]["MessageGroupId"] == "g"


def test_a_standard_queue_of_such_a_name_from_before_stays_usable(tmp_path: Path, breaking: pytest.MonkeyPatch) -> None:
    def as_before(name: str, config: QueueConfig) -> Any:
        return config

    with penstock.open(tmp_path / "data") as ps, breaking.context() as before:
        before.setattr(catalog, "config_for", as_before)
        before.setattr(sending, "config_for", as_before)
        ps.queue(NAME).send(b"from before")
    with serving(tmp_path, "--sqs-limits", "relaxed") as server:
        with penstock.connect(f"penstock://127.0.0.1:{server.http_port}") as ps:
            ps.queue(NAME).send(b"without a group")
            ps.queue(NAME).channel("audit")
            ps.queue(NAME).configure(max_receives=1)
            assert kind(ps) == "standard"
            message = ps.queue(NAME).receive()
            assert message is not None and message.body == b"from before"
            message.release(error="no")
            assert [dead.body for dead in ps.queue("line.dead.fifo").peek()] == [b"from before"]
            assert ps.redrive("line.dead.fifo").wait(timeout=PATIENCE_S).moved == 1
        url = server.client().create_queue(QueueName=NAME)["QueueUrl"]
        server.client().send_message(QueueUrl=url, MessageBody="by SQS")
        assert nsq(server, b"PUB line.fifo\n\0\0\0\1a") == b"OK"
