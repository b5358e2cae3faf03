"""Processes that are killed: what they held is free when the store is opened again, unless its holder may come back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.remote.address import TRANSPORTS
from tests.protocols.nsq.clients.servers import HOST, running
from tests.protocols.nsq.clients.servers import Penstock as Server
from tests.shards import not_for_clusters

pytestmark = not_for_clusters("a process opens its own directory")

SOON_SECONDS = 5.0
"""Far below the lease of 60 s, and enough for a machine that is busy with other things."""

TAKES = """
import sys, time, penstock
ps = penstock.open(sys.argv[1])
work = ps.unit_of_work()
assert work.take("orders", lease=60) and work.take("orders", lease=60)
assert ps.queue("orders").receive(lease=60)
time.sleep(0.1)
print("holding", flush=True)
time.sleep(100)
"""

TAKES_BY_POLL = """
import sys, time, penstock
ps = penstock.connect(sys.argv[1], transport="long_poll")
assert ps.queue("orders").receive(lease=60)
time.sleep(0.1)
print("holding", flush=True)
time.sleep(100)
"""

TAKES_ASYNC = """
import asyncio, sys, penstock
async def main():
    ps = await penstock.open_async(sys.argv[1])
    async def hang(message):
        await asyncio.sleep(100)
    assert await ps.unit_of_work().take("orders", lease=60)
    await ps.listen("orders", hang, lease=60)
    while (await ps.queue("orders").stats()).channels["main"].ready:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    print("holding", flush=True)
    await asyncio.sleep(100)
asyncio.run(main())
"""


def kill_while_holding(program: str, where: Path | str) -> None:
    """Run a program until it holds messages, and kill it."""
    command = [sys.executable, "-c", program, str(where)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "holding\n"
        finally:
            process.send_signal(signal.SIGKILL)


def url_of(server: Server) -> str:
    return f"penstock://{HOST}:{server._ports['http']}"


@pytest.mark.parametrize("program", [TAKES, TAKES_ASYNC], ids=["open", "open_async"])
def test_messages_of_a_killed_process_come_at_once(tmp_path: Path, program: str) -> None:
    with penstock.open(tmp_path) as ps:
        ps.queue("orders").send_many([b"1", b"2", b"3"])
    kill_while_holding(program, tmp_path)
    with penstock.open(tmp_path) as ps:
        began = time.monotonic()
        messages = [ps.queue("orders").receive(wait=SOON_SECONDS) for _ in range(3)]
        assert [message and (message.body, message.attempts) for message in messages] == [
            (b"1", 2),
            (b"2", 2),
            (b"3", 2),
        ]
        assert time.monotonic() - began < SOON_SECONDS


def test_messages_of_a_killed_process_come_at_once_to_tasks(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as ps:
        ps.queue("orders").send_many([b"1", b"2", b"3"])
    kill_while_holding(TAKES, tmp_path)

    async def receive() -> list[bytes]:
        async with penstock.open_async(tmp_path) as ps:
            return [message.body for message in await ps.queue("orders").receive(3, wait=SOON_SECONDS)]

    assert asyncio.run(receive()) == [b"1", b"2", b"3"]


def test_a_message_of_a_killed_process_that_may_be_consumed_once_stays_consumed(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as ps:
        ps.create_queue("orders", policy="consume_once")
        ps.queue("orders").send_many([b"1", b"2", b"3"])
    kill_while_holding(TAKES, tmp_path)
    with penstock.open(tmp_path) as ps:
        assert ps.queue("orders").receive() is None
        assert {message.body for message in ps.queue("orders.dead").receive(9)} == {b"1", b"2", b"3"}


def test_a_look_at_the_directory_of_a_killed_process_changes_nothing(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as ps:
        ps.queue("orders").send_many([b"1", b"2", b"3"])
    kill_while_holding(TAKES, tmp_path)
    with penstock.open(tmp_path, read_only=True) as ps:  # only a writer knows that nobody else has it open
        assert ps.queue("orders").stats().channels["main"].leased == 3
    with penstock.open(tmp_path) as ps:
        assert ps.queue("orders").stats().channels["main"].leased == 0


def test_a_killed_server_keeps_what_clients_hold_that_poll_and_come_back(tmp_path: Path) -> None:
    """One that does not come back loses it when its time to live is over."""
    ttl_seconds = 4
    with running(Server(tmp_path, settings=f"[websocket]\nsession_ttl_s = {ttl_seconds}\n")) as server:
        url = url_of(server)
        with penstock.connect(url, transport="long_poll") as ps:
            ps.queue("orders").send_many([b"1", b"2"])
            mine = ps.queue("orders").receive(lease=60)
            kill_while_holding(TAKES_BY_POLL, url)
            time.sleep(0.1)
            server.kill()
            server.start()
            other = ps.queue("orders").receive(wait=4 * ttl_seconds)
            assert (other.body, other.attempts, other.history[0].error) == (b"2", 2, "session expired")
            assert ps.queue("orders").receive() is None
            mine.extend(60)
            mine.ack()


def test_a_killed_server_frees_what_clients_with_a_websocket_held(tmp_path: Path) -> None:
    """Its session is the connection, and ends with it."""
    with ExitStack() as stack:
        server = stack.enter_context(running(Server(tmp_path)))
        ps = stack.enter_context(penstock.connect(url_of(server), transport="websocket"))
        ps.queue("orders").send(b"1")
        ps.queue("orders").receive(lease=60)
        time.sleep(0.1)
        server.kill()
        server.start()
        message = ps.queue("orders").receive(wait=SOON_SECONDS)
        assert (message.body, message.attempts) == (b"1", 2)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])
def test_a_rollback_does_not_wait_for_a_server_that_is_gone(
    tmp_path: Path, transport: Any, end: signal.Signals
) -> None:
    """A silent one is found out by nobody: the connection stands. Either way nothing has to be sent."""
    with ExitStack() as stack:
        server = stack.enter_context(running(Server(tmp_path)))
        ps = penstock.connect(url_of(server), transport=transport, timeout=20)
        stack.callback(ps.close)
        queues = [f"q{number}" for number in range(4)]
        for queue in queues:
            ps.queue(queue).send(b"1")
        with pytest.raises(RuntimeError, match="for a reason"), ps.unit_of_work() as work:
            assert all(work.take(queue) for queue in queues)
            os.kill(server.process.pid, end)
            stack.callback(os.kill, server.process.pid, signal.SIGCONT)
            began = time.monotonic()
            raise RuntimeError("for a reason")
        assert time.monotonic() - began < 4
        assert work.state == "rolled back"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_task_that_rolls_back_does_not_wait_for_a_server_that_is_gone(tmp_path: Path, transport: Any) -> None:
    async def take_and_roll_back(server: Server) -> float:
        ps = await penstock.connect_async(url_of(server), transport=transport, timeout=20)
        try:
            await ps.queue("orders").send(b"1")
            work = ps.unit_of_work()
            assert await work.take("orders")
            server.kill()
            began = time.monotonic()
            await work.rollback()
            return time.monotonic() - began
        finally:
            await ps.close()

    with running(Server(tmp_path)) as server:
        assert asyncio.run(take_and_roll_back(server)) < 4


def test_a_rollback_that_waits_no_longer_still_reaches_a_server_that_comes_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(running(Server(tmp_path)))
        ps = stack.enter_context(penstock.connect(url_of(server), transport="long_poll"))
        ps.queue("orders").send(b"1")
        work = ps.unit_of_work()
        assert work.take("orders", lease=600)
        time.sleep(0.1)
        server.kill()
        work.rollback(error="no server")
        server.start()
        message = ps.queue("orders").receive(wait=30)
        assert (message.attempts, message.history[0].error) == (2, "no server")
