"""A real server for the tests of programs that use Penstock, NSQ or SQS.

>>> from penstock import testing
>>> with testing.server() as server:
...     with server.connect() as ps:
...         ps.queue("orders").send(b"tea").sequence
0

With pytest there is nothing to import: the fixture `penstock_server` is there wherever Penstock is installed.
`penstock.testing.containers` has the same server in a container, for testcontainers.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import penstock

START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 20
_FLAGS = {"sqs": "--sqs-port", "http": "--http-port", "nsq": "--nsq-tcp-port", "nsq-http": "--nsq-http-port"}


class ServerFailed(RuntimeError):
    """The server did not start; the message has what it printed."""


@dataclass(frozen=True)
class Endpoints:
    """Where a server listens, and how clients are told."""

    sqs_url: str
    """The endpoint for AWS SDKs."""
    http_url: str
    """REST and health."""
    nsq_address: str
    """HOST:PORT for NSQ's clients."""
    nsq_http_url: str
    access_key: str = "test"
    secret_key: str = "test"

    @property
    def url(self) -> str:
        """What `penstock.connect` takes."""
        return "penstock://" + urlsplit(self.http_url).netloc

    @property
    def boto3(self) -> dict[str, str]:
        """What `boto3.client("sqs", **server.boto3)` needs. A server without credentials takes any keys."""
        keys = {"aws_access_key_id": self.access_key, "aws_secret_access_key": self.secret_key}
        return {"endpoint_url": self.sqs_url, "region_name": "us-east-1", **keys}

    @property
    def celery(self) -> dict[str, Any]:
        """Settings of Celery: `app.conf.update(server.celery)`."""
        return {
            "broker_url": f"sqs://{self.access_key}:{self.secret_key}@{urlsplit(self.sqs_url).netloc}//",
            "broker_transport_options": {"region": "us-east-1"},
        }

    def connect(self, **options: Any) -> penstock.Penstock:
        """A client of this server: `penstock.connect` with its address and its keys."""
        from penstock.api import connect

        return connect(self.url, **{"token": f"{self.access_key}:{self.secret_key}", **options})


@dataclass(frozen=True, kw_only=True)
class Server(Endpoints):
    """A server that runs on this machine."""

    pid: int
    directory: Path


@contextlib.contextmanager
def server(
    directory: str | Path | None = None, *, config: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a server on free ports until the block ends.

    It keeps its messages in a temporary directory, unless one is given: then they are there for the next server.
    `config` is the text of a penstock.toml. The server inherits the environment of this process without its
    `PENSTOCK_*` variables, unless `environment` is given.
    """
    if environment is None:  # a developer's PENSTOCK_ENGINE or PENSTOCK_ACCESS_KEY is not for tests
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    with tempfile.TemporaryDirectory(prefix="penstock-") as temporary:
        place = Path(temporary)
        (place / "penstock.toml").write_text(config)
        data = Path(directory) if directory is not None else place / "data"
        flags = [f"{flag}=0" for flag in _FLAGS.values()]
        files = [f"--config={place / 'penstock.toml'}", f"--data={data}", f"--ready-file={place / 'ready'}"]
        command = [sys.executable, "-m", "penstock.testing", str(place), "serve", *files, *flags]
        with open(place / "log", "wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)
        assert process.stdin is not None
        with process.stdin:  # open as long as this process lives: see `penstock/testing/__main__.py`
            try:
                yield _wait(process, place, data)
            finally:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS_MAX)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _wait(process: subprocess.Popen[bytes], place: Path, data: Path) -> Server:
    """The server, when it is ready."""
    deadline_s = time.monotonic() + START_SECONDS_MAX
    while not (place / "ready").exists():
        if process.poll() is not None or time.monotonic() > deadline_s:
            said = (place / "log").read_text(errors="replace").strip()
            what = f"ended with {process.returncode}" if process.returncode is not None else "is not ready"
            raise ServerFailed(f"the Penstock server {what}; it said: {said or 'nothing'}")
        time.sleep(0.005)
    listening = json.loads((place / "ready").read_text())["listening"]
    at = {name: f"{listening[name]['host']}:{listening[name]['port']}" for name in _FLAGS}
    urls = (f"http://{at['sqs']}", f"http://{at['http']}", at["nsq"], f"http://{at['nsq-http']}")
    return Server(*urls, pid=process.pid, directory=data)
