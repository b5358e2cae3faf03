"""The balancers' configurations that we advise, run for real: nodes that stop or die cost their clients no error."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import boto3
import pytest

from tests.server.test_stood_still import started
from tools.debian import DebianError, program
from tools.envoy import EnvoyError, envoy
from tools.servers import free_ports

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NODES = 3
PATIENCE_S = 60.0
NOTICED_S = 6.0
"""Two checks, two seconds apart, and some slack."""


def _with_ports(text: str, nodes: list[dict[str, Any]], listen: tuple[int, int], place: str) -> str:
    """The configuration with this machine's ports in the place of `n1:9324` and the like."""
    for number, node in enumerate(nodes, 1):
        sqs, http = node["sqs"]["port"], node["http"]["port"]
        if place == "haproxy":
            text = text.replace(f"n{number}:9324 port 9325", f"127.0.0.1:{sqs} port {http}")
            text = text.replace(f"n{number}:9325", f"127.0.0.1:{http}")
        else:
            for port, own in ((9324, sqs), (9325, http)):
                text = text.replace(f"address: n{number}, port_value: {port}", f"address: 127.0.0.1, port_value: {own}")
            at = f"port_value: {sqs}}}}}\n"
            text = text.replace(
                f"{at}                  health_check_config: {{port_value: 9325}}",
                f"{at}                  health_check_config: {{port_value: {http}}}",
            )
    for port, own in zip((9324, 9325), listen, strict=True):
        text = text.replace(f"bind :{port}", f"bind 127.0.0.1:{own}")
        text = text.replace(f"address: 0.0.0.0, port_value: {port}", f"address: 127.0.0.1, port_value: {own}")
    assert not re.search(r"\bn[123]\b[:,]", text) and "9325" not in text.split("static_resources")[-1].split("#")[0]
    return text


@contextmanager
def balancer(name: str, nodes: list[dict[str, Any]], directory: Path) -> Iterator[tuple[str, str]]:
    """One that runs: where it takes SQS, and REST."""
    sqs, rest = free_ports(2)
    source = DEPLOY / name / ("haproxy.cfg" if name == "haproxy" else "envoy.yaml")
    config = directory / source.name
    config.write_text(_with_ports(source.read_text(), nodes, (sqs, rest), name))
    try:
        if name == "haproxy":
            found = program("haproxy")
            command, environment = [str(found.path), "-db", "-f", str(config)], dict(found.environment)
        else:
            command = [str(envoy()), "-c", str(config), "--use-dynamic-base-id", "--concurrency", "1", "-l", "error"]
            environment = dict(os.environ)
    except (DebianError, EnvoyError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"THIS TEST DID NOT RUN: {error}")
    with open(directory / "balancer.log", "wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while not _answers(f"http://127.0.0.1:{rest}/livez"):
            assert process.poll() is None and time.monotonic() < deadline_s, (directory / "balancer.log").read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{sqs}", f"http://127.0.0.1:{rest}"
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


class Sender(threading.Thread):
    """boto3 as users make it: sends all the time."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        self._client = boto3.client("sqs", endpoint_url=url, region_name="us-east-1", **keys)
        self._url = f"{url}/000000000000/orders"
        self.sent = 0
        self.errors: list[str] = []
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.wait(0.02):
            try:
                self._client.send_message(QueueUrl=self._url, MessageBody="x")
                self.sent += 1
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("name", ["haproxy", "envoy"])
def test_nodes_that_stop_or_die_behind_a_balancer_cost_no_error(name: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes, processes = [], []
        for number in range(NODES):
            directory = tmp_path / f"n{number}"
            directory.mkdir()
            ports = [f"--{each}-port=0" for each in ("sqs", "http", "nsq-tcp", "nsq-http")]
            process, listening = stack.enter_context(
                started(directory, "serve", "--data", str(directory / "data"), *ports)
            )
            keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
            boto3.client("sqs", endpoint_url=listening["sqs"]["url"], **keys).create_queue(QueueName="orders")
            nodes.append(listening)
            processes.append(process)
        sqs, rest = stack.enter_context(balancer(name, nodes, tmp_path))
        senders = [Sender(sqs) for _ in range(3)]
        for sender in senders:
            sender.start()
        time.sleep(NOTICED_S)
        processes[0].terminate()
        time.sleep(NOTICED_S)
        processes[1].kill()
        time.sleep(NOTICED_S)
        before = [sender.sent for sender in senders]
        time.sleep(1.0)
        assert all(sender.sent > was for sender, was in zip(senders, before, strict=True)), "the last node serves"
        assert _answers(f"{rest}/readyz")
        for sender in senders:
            sender.ending.set()
        for sender in senders:
            sender.join(PATIENCE_S)
        assert [error for sender in senders for error in sender.errors] == []
