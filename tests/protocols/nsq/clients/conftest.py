from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import clustered
from tests.protocols.nsq.clients.servers import AGAINST_NSQD, Broker, Nsqd, Penstock, PenstockCluster, running

_names = itertools.count(1)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Shared by all tests that do not kill it, each with topics of its own."""
    directory = tmp_path_factory.mktemp("nsq")
    ours = PenstockCluster if clustered.NODES else Penstock
    with running(Nsqd(directory) if AGAINST_NSQD else ours(directory)) as server:
        yield server


@pytest.fixture
def topic() -> str:
    """A topic's name that nobody else uses."""
    return f"topic-{next(_names)}"


@pytest.fixture(scope="package")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """For 127.0.0.1, and its key."""
    directory = tmp_path_factory.mktemp("certificate")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    made = [*command.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    return certificate, key
