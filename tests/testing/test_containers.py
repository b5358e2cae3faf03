"""`penstock.testing.containers`: the image under testcontainers.

There is no container engine where these tests run. A small one stands in for it: it speaks as much of Docker's API as
testcontainers asks for, and its container is a process: `penstock serve` with the environment that the Dockerfile and
testcontainers give it. testcontainers, Docker's client and the server are the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from testcontainers.core.config import testcontainers_config

from penstock.testing.containers import HTTP, NSQ, NSQ_HTTP, SQS, PenstockContainer
from tools.image import DOCKERFILE, instructions, stages
from tools.servers import free_ports

VARIABLES = {
    SQS: "PENSTOCK_SQS_PORT",
    HTTP: "PENSTOCK_HTTP_PORT",
    NSQ: "PENSTOCK_NSQ_TCP_PORT",
    NSQ_HTTP: "PENSTOCK_NSQ_HTTP_PORT",
}


class Engine(ThreadingHTTPServer):
    """What testcontainers takes for Docker."""

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.directory = directory
        self.asked: dict[str, Any] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.ports = dict(zip(VARIABLES, free_ports(len(VARIABLES)), strict=True))

    def start(self) -> None:
        """The container that was asked for, as a process."""
        image = list(stages(DOCKERFILE, self.directory))[-1][0]
        told = dict(each.split("=", 1) for each in self.asked["Env"])
        published = {VARIABLES[port]: str(at) for port, at in self.ports.items()}
        # what is on this machine stays on it: the container's own network would keep it there
        inside = {**image.environment, **told, **published, "PENSTOCK_DATA": str(self.directory / "data")}
        inside |= {"PENSTOCK_HOST": "127.0.0.1", "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
        with open(self.directory / "log", "wb") as log:
            command = [sys.executable, "-m", "penstock", *image.command]
            self.process = subprocess.Popen(command, env=inside, stdout=log, stderr=log)

    def stop(self) -> None:
        """End the container."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)

    def describe(self) -> dict[str, Any]:
        """`docker inspect`."""
        ports = {f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(at)}] for port, at in self.ports.items()}
        is_running = self.process is not None and self.process.poll() is None
        state = {"Status": "running" if is_running else "exited"}
        networks = {"bridge": {"Gateway": "127.0.0.1"}}
        network = {"HostConfig": {"NetworkMode": "bridge"}, "NetworkSettings": {"Ports": ports, "Networks": networks}}
        return {"Id": "c0ffee", "Name": "/tea", "State": state, **network}


class Answering(BaseHTTPRequestHandler):
    """The requests of Docker's API that are needed."""

    server: Engine

    def do_GET(self) -> None:
        if self.path.endswith("/version"):
            self.answer(200, {"ApiVersion": "1.43", "MinAPIVersion": "1.24"})
        elif "/images/" in self.path:
            self.answer(200, {"Id": "sha256:tea", "RepoTags": [self.server.asked.get("Image", "")]})
        elif self.path.endswith("/containers/c0ffee/json"):
            self.answer(200, self.server.describe())
        elif "/containers/json" in self.path:
            self.answer(200, [self.server.describe()])
        else:
            self.answer(404, {"message": self.path})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "/containers/create" in self.path:
            self.server.asked = json.loads(body)
            self.answer(201, {"Id": "c0ffee", "Warnings": []})
        else:
            self.server.start()
            self.answer(204, None)

    def do_DELETE(self) -> None:
        self.server.stop()
        self.answer(204, None)

    def answer(self, status: int, content: Any) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with Engine(tmp_path) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{serving.server_port}")
        monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)
        yield serving
        serving.shutdown()
        serving.stop()


def test_a_container_serves_clients_without_keys_when_none_are_given(engine: Engine) -> None:
    with PenstockContainer("penstock:test") as container:
        server = container.endpoints
        sqs = boto3.client("sqs", **server.boto3)
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="tea")
        with server.connect() as ps:
            assert ps.queue("orders").receive(wait=5).text == "tea"
    assert engine.process is not None and engine.process.poll() is not None
    assert engine.asked["Image"] == "penstock:test"


def test_a_container_with_keys_refuses_other_ones(engine: Engine) -> None:
    with PenstockContainer(access_key="me", secret_key="secret") as container:
        server = container.endpoints
        boto3.client("sqs", **server.boto3).list_queues()
        with pytest.raises(ClientError, match=r"SignatureDoesNotMatch|InvalidClientTokenId"):
            boto3.client("sqs", **{**server.boto3, "aws_secret_access_key": "wrong"}).list_queues()
        with server.connect() as ps:
            ps.queue("orders").send(b"tea")


def test_the_ports_of_the_module_are_those_of_the_image() -> None:
    (exposed,) = [rest.split() for name, rest in instructions(DOCKERFILE) if name == "EXPOSE"]
    assert {int(port) for port in exposed} == {SQS, HTTP, NSQ, NSQ_HTTP}


def test_half_a_credential_is_refused_before_anything_is_started() -> None:
    with pytest.raises(ValueError, match="belong together"):
        PenstockContainer(access_key="me")
