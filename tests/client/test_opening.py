from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock
from tests.shards import not_for_clusters

pytestmark = not_for_clusters("a directory is opened")

HOLD = """
import sys, penstock
with penstock.open(sys.argv[1]) as ps:
    ps.queue("orders").send_many([b"apple", b"pear"])
    print("ready", flush=True)
    for line in sys.stdin:
        ps.queue("orders").send(line.strip())
        print("sent", flush=True)
"""


class OtherProcess:
    """Another process that has the directory open, and sends what it is told."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._expect("ready")

    def send(self, body: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{body}\n")
        self._process.stdin.flush()
        self._expect("sent")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{word}\n"

    def end(self) -> None:
        self._process.communicate(timeout=20)


def test_a_directory_that_another_process_has_open_is_refused_clearly(tmp_path: Path) -> None:
    other = OtherProcess(tmp_path / "data")
    with pytest.raises(penstock.StoreLocked, match=str(tmp_path)):
        penstock.open(tmp_path / "data")
    other.end()
    with penstock.open(tmp_path / "data") as ps:
        assert len(ps.queue("orders").receive(9)) == 2


def test_reading_beside_a_writer_sees_what_it_commits_and_changes_nothing(tmp_path: Path) -> None:
    other = OtherProcess(tmp_path / "data")
    with penstock.open(tmp_path / "data", read_only=True) as ps:
        orders = ps.queue("orders")
        assert ps.queues() == ["orders"]
        assert [message.body for message in orders.peek()] == [b"apple", b"pear"]
        other.send("plum")
        assert [message.body for message in orders.search(b"pl")] == [b"apple", b"plum"]
        assert orders.stats().channels["main"].ready == 3
        assert [record.body for record in orders.consumer("report").read()] == [b"apple", b"pear", b"plum"]
        assert orders.info().config.lease_ms == 30_000
        for change in (orders.receive, orders.purge, orders.delete, lambda: orders.send(b"x")):
            with pytest.raises(penstock.StoreReadOnly, match="read-only"):
                change()
        with pytest.raises(penstock.StoreReadOnly):
            orders.consumer("report").ack(1)
    other.end()


def test_tasks_read_beside_a_writer_too(tmp_path: Path) -> None:
    async def read() -> list[bytes]:
        async with penstock.open_async(tmp_path / "data", read_only=True) as ps:
            with pytest.raises(penstock.StoreReadOnly):
                await ps.queue("orders").send(b"x")
            return [message.body for message in await ps.queue("orders").peek()]

    other = OtherProcess(tmp_path / "data")
    assert asyncio.run(read()) == [b"apple", b"pear"]
    other.end()


def test_threads_may_share_a_reader(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as ps:
        ps.queue("orders").send(b"x")
    counts: list[int] = []
    with penstock.open(tmp_path / "data", read_only=True) as ps:
        threads = [threading.Thread(target=lambda: counts.append(len(ps.queue("orders").peek()))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts == [1] * 4


def test_reading_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(penstock.StoreError):
        penstock.open(tmp_path / "nothing", read_only=True)
    assert not (tmp_path / "nothing").exists()


def test_a_store_in_memory_cannot_be_opened_to_read() -> None:
    with pytest.raises(penstock.InvalidRequest):
        penstock.open(":memory:", read_only=True)


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(penstock.InvalidRequest, match="sise"):
        penstock.open(tmp_path / "data", sise=1)
    with pytest.raises(penstock.InvalidRequest, match="memory"):
        penstock.open(":memory:", segment_bytes=1 << 20)
    with penstock.open(tmp_path / "data", segment_bytes=1 << 20) as ps:
        ps.queue("orders").send(b"x")


def test_stores_in_memory_are_apart() -> None:
    with penstock.open(":memory:") as one, penstock.open(":memory:") as other:
        one.queue("orders").send(b"x")
        assert other.queues() == []


def test_opening_for_tasks_works_with_await_and_with_a_block(tmp_path: Path) -> None:
    async def both() -> list[str]:
        ps = await penstock.open_async(tmp_path / "data")
        await ps.queue("orders").send(b"x")
        await ps.close()
        async with penstock.open_async(tmp_path / "data", commit_in_thread=True) as again:
            return await again.queues()

    assert asyncio.run(both()) == ["orders"]


def test_a_child_after_a_fork_does_not_use_its_parents_store(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as ps:
        ps.queue("orders").send(b"before")
        child = os.fork()
        if child == 0:
            refused = False
            try:
                ps.queue("orders").send(b"of the child")
            except penstock.InvalidRequest as error:
                refused = "before a fork" in str(error)
            finally:
                ps.close()
                os._exit(0 if refused else 1)
        assert os.waitpid(child, 0)[1] == 0
        ps.queue("orders").send(b"after")
    with penstock.open(tmp_path) as ps:
        assert ps.queue("orders").receive_batch().bodies == [b"before", b"after"]
