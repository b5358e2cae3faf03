"""`busy_poll`: a client's loop that does not fall asleep while something may come, and does when nothing can."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any

import pytest

import penstock
from penstock.client.remote.websocket import BusyPoll
from penstock.server.clock import SystemClock
from penstock.server.shard import Shard
from penstock.store.memory import MemoryStore
from tests.client.adapter import ENTROPY, LoopThread
from tests.client.serving import Server, serve
from tests.shards import not_for_clusters

pytestmark = not_for_clusters("it is about the client's own loop")

OFTEN = 25
"""A loop that is kept awake looks thousands of times while these tests wait, and else a few times."""


class CountingSelector(selectors.EpollSelector):
    """Counts how often a loop looks for what has come, without waiting for it."""

    looks = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.looks += timeout == 0
        return super().select(timeout)


class Counted:
    """Runs coroutines in a loop whose looks are counted."""

    def __init__(self) -> None:
        self.selector = CountingSelector()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(self.selector)) as runner:
            runner.run(work)

    async def looks(self, seconds: float) -> int:
        """How often the loop looks while nothing happens for so long."""
        before = self.selector.looks
        await asyncio.sleep(seconds)
        return self.selector.looks - before


@pytest.fixture
def server() -> Iterator[Server]:
    loop = LoopThread()
    server = loop.run(serve(Shard(MemoryStore, SystemClock(), lambda: ENTROPY)))
    yield server
    loop.run(server.stop())
    loop.close()


def test_a_loop_is_kept_awake_for_so_long_and_not_longer() -> None:
    counted = Counted()

    async def work() -> None:
        poll = BusyPoll(asyncio.get_running_loop(), 0.05)
        assert await counted.looks(0.05) < OFTEN
        poll.expect()
        assert poll.is_awake
        assert await counted.looks(0.2) > OFTEN
        assert not poll.is_awake
        assert await counted.looks(0.05) < OFTEN
        poll.expect()
        assert await counted.looks(0.2) > OFTEN, "and once more"

    counted.run(work())


def test_a_loop_falls_asleep_when_what_was_expected_has_come() -> None:
    counted = Counted()

    async def work() -> None:
        poll = BusyPoll(asyncio.get_running_loop(), 10.0)
        poll.expect()
        poll.expect()
        assert await counted.looks(0.02) > OFTEN
        poll.rest()
        await asyncio.sleep(0)
        assert await counted.looks(0.05) < OFTEN
        assert not poll.is_awake

    counted.run(work())


def test_a_client_looks_for_answers_and_sleeps_when_it_has_them(server: Server) -> None:
    counted = Counted()

    async def work() -> None:
        async with penstock.connect_async(server.url, busy_poll=0.1) as ps:
            orders = await ps.create_queue("orders")
            assert await counted.looks(0.05) < OFTEN, "everything is answered, and nobody listens"
            receiving = asyncio.create_task(orders.receive(wait=20))
            assert await counted.looks(0.05) > OFTEN
            await orders.send(b"a")
            message = await receiving
            assert message is not None and message.body == b"a"
            await message.ack()
            assert await counted.looks(0.05) < OFTEN

    counted.run(work())


def test_a_client_that_listens_looks_for_more_after_each_message(server: Server) -> None:
    counted = Counted()

    async def work() -> None:
        handled = asyncio.Event()

        async def handle(message: penstock.AsyncMessage) -> None:
            handled.set()

        async with penstock.connect_async(server.url, busy_poll=0.1) as ps:
            await ps.create_queue("orders", deliver_unsynced=True)
            async with await ps.listen("orders", handle):
                await asyncio.sleep(0.3)
                assert await counted.looks(0.05) < OFTEN, "nothing has come for a while"
                await ps.queue("orders").send(b"a")
                await handled.wait()
                assert await counted.looks(0.05) > OFTEN

    counted.run(work())


@pytest.mark.parametrize("options", [{}, {"busy_poll": 0.1, "transport": "long_poll"}])
def test_by_default_a_client_sleeps_and_so_do_those_that_poll(server: Server, options: dict[str, Any]) -> None:
    counted = Counted()

    async def work() -> None:
        async with penstock.connect_async(server.url, **options) as ps:
            orders = await ps.create_queue("orders")
            receiving = asyncio.create_task(orders.receive(wait=20))
            assert await counted.looks(0.05) < OFTEN
            await orders.send(b"a")
            assert await receiving is not None

    counted.run(work())


def test_a_client_sleeps_when_its_queue_cannot_be_prefetched(server: Server) -> None:
    counted = Counted()

    async def work() -> None:
        async with penstock.connect_async(server.url, busy_poll=0.1, prefetch=10) as ps:
            orders = await ps.create_queue("orders", policy="consume_once")
            await orders.send(b"a")
            assert await orders.receive(wait=10) is not None
            assert await counted.looks(0.05) < OFTEN

    counted.run(work())


@pytest.mark.parametrize("busy_poll", [-0.001, 1.0, float("nan"), True, "soon", None, timedelta(seconds=2)])
def test_what_is_no_moment_is_refused(busy_poll: Any) -> None:
    with pytest.raises(penstock.InvalidRequest, match=r"busy_poll is .*: it must be from 0 to 0\.1 seconds"):
        penstock.connect_async("penstock://localhost", busy_poll=busy_poll)
