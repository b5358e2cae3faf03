"""A broker's file system is full: clients get errors, and with the space everything comes back.

`make cluster-soak` does it to one broker of three, and to the only one, under load."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.core.commands import Receive, Send
from penstock.core.errors import PenstockError, StoreError
from penstock.server.settings import parse
from tests.cluster.disks import MountRefused, SmallDisk, small_disk
from tests.cluster.nodes import ThreadNode, settings_text, until
from tests.kafka import loudly, unique_prefix
from tests.server.bare import bodies
from tools.kafka import KafkaCluster
from tools.servers import QUICK_TO_START

COMMIT_TIMEOUT_S = 4
BODY_BYTES = 20_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with ExitStack() as stack:
        try:
            mounted = stack.enter_context(small_disk(tmp_path / "disk"))
        except MountRefused as error:
            reason = f"NOT TESTED: a full disk of a broker: {error}"
            assert os.environ.get("CI") != "true", reason
            pytest.skip(reason)
        yield mounted


@pytest.fixture
def kafka(disk: SmallDisk) -> Iterator[KafkaCluster]:
    with loudly():
        cluster = KafkaCluster(1, java_options=(QUICK_TO_START,), disks={0: disk.path})
    yield cluster
    cluster.close()


@pytest.fixture
def node(kafka: KafkaCluster, tmp_path: Path) -> Iterator[ThreadNode]:
    text = settings_text(kafka, unique_prefix("full"), "a", tmp_path / "a", session_s=3.0)
    node = ThreadNode(parse(f"{text}commit_timeout_s = {COMMIT_TIMEOUT_S}\n"))
    yield node
    node.stop()


class Sender:
    """Sends messages, each with a body of its own, and knows which were confirmed."""

    def __init__(self, node: ThreadNode) -> None:
        self._node = node
        self._sent = 0
        self.confirmed: list[bytes] = []

    def send(self) -> PenstockError | None:
        """Send one; the error, if there is one."""
        body = str(self._sent).encode().ljust(BODY_BYTES)
        self._sent += 1
        try:
            self._node.call(Send(queue="orders", bodies=[body]))
        except PenstockError as error:
            return error
        self.confirmed.append(body)
        return None


def receive_all(node: ThreadNode) -> list[bytes]:
    found: list[bytes] = []
    while more := bodies(node.call(Receive(queue="orders", limit=1_000, lease_ms=600_000))):
        found += more
    return found


def test_what_was_confirmed_is_there_when_a_full_disk_of_a_broker_has_space_again(
    disk: SmallDisk, kafka: KafkaCluster, node: ThreadNode
) -> None:
    sender = Sender(node)
    for _ in range(20):
        assert sender.send() is None

    def is_refused() -> PenstockError | None:
        disk.fill()
        return sender.send()

    def has_ended() -> bool:
        disk.fill()
        return not kafka.is_running(0)

    error = until(is_refused, "an error on a full disk")
    assert isinstance(error, StoreError), error
    until(has_ended, "the broker's end")
    disk.free()
    kafka.kill(0)
    kafka.start(0)
    until(lambda: sender.send() is None, "a send that is confirmed")
    found = receive_all(node)
    assert set(sender.confirmed) <= set(found)
    assert len(found) == len(set(found)), "nothing is there twice"
