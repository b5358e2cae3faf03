"""A server, and a process with its own directory, whose wall clock was an hour ahead and is right after a restart."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import penstock
from tests.protocols.nsq.clients.servers import Penstock as Server
from tests.protocols.nsq.clients.servers import running
from tests.shards import not_for_clusters

pytestmark = not_for_clusters("a process and its own directory")

SOON_SECONDS = 20
"""Far below the hour, and enough for a machine that is busy with other things."""

AHEAD = """
import time
wall_ns = time.time_ns
time.time_ns = lambda: wall_ns() + 3_600 * 10**9
"""

SERVES = (
    AHEAD
    + """
from penstock.cli import main
main()
"""
)

TAKES = (
    AHEAD
    + """
import sys, penstock
with penstock.open(sys.argv[1]) as ps:
    ps.create_queue("orders", kind="fifo", content_dedup=True)
    ps.queue("orders").send_many([b"first", b"second"], groups=["g", "g"])
    assert ps.queue("orders").receive(lease=2).body == b"first"
    ps.queue("later").send(b"asked for", delay=2)
"""
)


class ServerAhead(Server):
    """`penstock serve` in a process whose wall clock is an hour ahead, until it is set right."""

    is_right = False

    def run(self, command: list[str], is_ready: Callable[[], bool]) -> None:
        assert command[1:3] == ["-m", "penstock"]
        super().run(command if self.is_right else [command[0], "-c", SERVES, *command[3:]], is_ready)


def test_a_lease_of_a_directory_whose_clock_was_ahead_ends_in_its_time(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", TAKES, str(tmp_path)], check=True, timeout=60)
    with penstock.open(tmp_path) as ps:
        (seen,) = ps.queue("orders").browse(states=[penstock.State.LEASED])
        assert seen.sent_at > time.time() + 3_000, "the clock was not ahead"
        messages = [ps.queue("orders").receive(wait=SOON_SECONDS)]
        messages += ps.queue("orders").receive(9)
        assert [message and message.body for message in messages] == [b"first"], "a group has one message in work"
        messages[0].ack()
        assert ps.queue("orders").receive(wait=SOON_SECONDS).body == b"second"
        assert ps.queue("later").receive(wait=3) is None, "a due time is a time, and not a length of time"


def test_a_visibility_timeout_of_a_server_whose_clock_was_ahead_ends_in_its_time(tmp_path: Path) -> None:
    with running(ServerAhead(tmp_path)) as server:
        queue = server.sqs().create_queue(QueueName="orders")["QueueUrl"]
        server.sqs().send_message(QueueUrl=queue, MessageBody="tea")
        received = server.sqs().receive_message(QueueUrl=queue, VisibilityTimeout=3)
        assert [message["Body"] for message in received["Messages"]] == ["tea"]
        time.sleep(0.1)
        server.kill()
        server.is_right = True
        server.start()
        again = server.sqs().receive_message(QueueUrl=queue, WaitTimeSeconds=SOON_SECONDS)
        assert [message["Body"] for message in again["Messages"]] == ["tea"]
