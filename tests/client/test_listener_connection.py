"""A listener whose connection is cut, and whose server goes and comes back: nothing is lost, no unit is half done."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.remote.request import Outstanding
from penstock.client.remote.stream import Stream
from tests.client.adapter import Driven, LoopThread, directory_store, memory_store, serve_shards
from tests.client.cutting import Proxy

SECONDS_MAX = 60


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def connected(kind: str, port: int, loop: LoopThread) -> Any:
    url = f"penstock://127.0.0.1:{port}"
    if kind == "threads":
        return penstock.connect(url)

    async def connect() -> Any:
        return await penstock.connect_async(url)

    return Driven(loop.run(connect()), loop)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_units_of_a_listener_are_done_once_although_its_connection_is_cut(
    kind: str, seed: int, loop: LoopThread
) -> None:
    chance = random.Random(seed)
    count = 300
    server = loop.run(serve_shards(memory_store()))
    proxy = Proxy(server.port)
    loop.run(proxy.start())
    with penstock.connect(server.url) as direct:
        direct.create_queue("in", max_receives=0)
        direct.queue("in").send_many([str(number) for number in range(count)])
        ps = connected(kind, proxy.port, loop)

        def move(message: Any, tx: Any) -> None:
            time.sleep(0.001)
            tx.put("out", message.body)

        with ps.listen("in", move, workers=4, prefetch=20):
            cuts = 0
            while direct.queue("in").stats().messages:
                time.sleep(chance.uniform(0.0, 0.1))
                if cuts < 15:
                    loop.run(proxy.cut())
                    cuts += 1
            until(lambda: direct.queue("out").stats().messages >= count)
        ps.close()
        moved = sorted(int(record.body) for record in direct.queue("out").consumer("check").read(10_000))
        assert moved == list(range(count))
        assert cuts
    loop.run(proxy.stop())
    loop.run(server.stop())


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_listener_goes_on_when_its_server_comes_back(kind: str, loop: LoopThread, tmp_path: Path) -> None:
    def start(port: int = 0) -> Any:
        return loop.run(serve_shards(directory_store(tmp_path), port=port))

    server = start()
    seen: list[str] = []
    ps = connected(kind, server.port, loop)
    ps.queue("in").send(b"before")
    with ps.listen("in", lambda message: seen.append(message.text)) as listener:
        until(lambda: listener.metrics.handled == 1)
        loop.run(server.stop())
        server = start(server.port)
        with penstock.connect(server.url) as direct:
            direct.queue("in").send(b"after")
            until(lambda: "after" in seen)
            until(lambda: direct.queue("in").stats().messages == 0)
    ps.close()
    loop.run(server.stop())
    assert seen == ["before", "after"]


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_server_that_is_about_to_end_does_not_end_its_listeners(
    kind: str, loop: LoopThread, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def start(port: int = 0) -> Any:
        return loop.run(serve_shards(directory_store(tmp_path), port=port))

    server = start()
    ps = connected(kind, server.port, loop)
    ps.queue("in").send(b"before")
    begun, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def work(message: Any) -> None:
        seen.append(message.text)
        begun.set()
        assert go_on.wait(SECONDS_MAX)

    async def work_later(message: Any) -> None:
        await asyncio.to_thread(work, message)

    with ps.listen("in", work if kind == "threads" else work_later):
        assert begun.wait(SECONDS_MAX)
        loop.run(server.shard.close())  # the store is closed, and connections still stand
        go_on.set()
        until(lambda: "could not be acknowledged, trying again" in caplog.text)
        loop.run(server.stop())
        server = start(server.port)
        with penstock.connect(server.url) as direct:
            direct.queue("in").send(b"after")
            until(lambda: "after" in seen)
            until(lambda: direct.queue("in").stats().messages == 0)
    ps.close()
    loop.run(server.stop())


def test_a_consume_once_message_comes_once_although_the_connection_is_cut(loop: LoopThread) -> None:
    server = loop.run(serve_shards(memory_store()))
    proxy = Proxy(server.port)
    loop.run(proxy.start())
    counts: dict[str, int] = {}
    lock = threading.Lock()

    def work(message: Any) -> None:
        with lock:
            counts[message.text] = counts.get(message.text, 0) + 1
        time.sleep(0.002)

    with penstock.connect(server.url) as direct, connected("threads", proxy.port, loop) as ps:
        direct.create_queue("in", policy="consume_once")
        direct.queue("in").send_many([str(number) for number in range(200)])
        with ps.listen("in", work, workers=4):
            for _ in range(10):
                time.sleep(0.03)
                loop.run(proxy.cut())
            until(lambda: direct.queue("in").stats().messages == 0)
    assert counts and max(counts.values()) == 1
    loop.run(proxy.stop())
    loop.run(server.stop())


class _Hearer:
    """Has room for ten messages, and takes none."""

    def take(self, delivery: Any) -> bool:
        return False

    def room(self) -> int:
        return 10

    def ask(self) -> None:
        pass


def test_a_listener_that_stops_while_there_is_no_connection_is_pushed_nothing_later(loop: LoopThread) -> None:
    async def main() -> None:
        server = await serve_shards(memory_store())
        async with penstock.connect_async(server.url) as ps, penstock.connect_async(server.url) as other:
            orders = await other.create_queue("in")
            caller: Any = ps._caller
            stream = caller.open_stream("in", "main", None, _Hearer())
            caller._link._socket.abort()
            while caller.is_linked:
                await asyncio.sleep(0)
            stream.top_up()
            await stream.close()
            await ps.queue("in").stats()  # there is a connection again
            assert (await orders.stats()).channels["main"].waiting_receivers == 0
        await server.stop()

    loop.run(main())


def test_a_stream_whose_end_is_called_off_is_forgotten_and_pushes_nothing_more(loop: LoopThread) -> None:
    async def main() -> None:
        server = await serve_shards(memory_store())
        async with penstock.connect_async(server.url) as ps:
            orders = await ps.create_queue("in")
            caller: Any = ps._caller
            stream = caller.open_stream("in", "main", None, _Hearer())
            stream.top_up()
            closing = asyncio.create_task(stream.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            assert stream.is_over
            assert caller._streams == []
            while (await orders.stats()).channels["main"].waiting_receivers:
                await asyncio.sleep(0.005)
        await server.stop()

    loop.run(main())


def test_credit_that_never_left_is_given_again(loop: LoopThread) -> None:
    """The server had as many requests as it takes, for too long."""

    class Carrier:
        can_push, is_linked, credit_max = True, True, 1_000

        def __init__(self) -> None:
            self.carried: list[Outstanding] = []

        def carry(self, command: Any, settle: Any) -> Outstanding:
            self.carried.append(Outstanding(command, settle, 0.0))
            return self.carried[-1]

    async def main() -> None:
        carrier, push_target = Carrier(), _Hearer()
        asked: list[None] = []
        push_target.ask = lambda: asked.append(None)  # type: ignore[method-assign]
        stream = Stream(carrier, "in", "main", None, push_target)  # type: ignore[arg-type]
        stream.top_up()
        carrier.carried[0].settle(None, None)
        stream._credit = 0  # all of it has come
        for _ in range(2):
            stream.top_up()
            carrier.carried[-1].settle(None, penstock.NotSent("the connection stands"))
        assert [each.command.credit for each in carrier.carried] == [10, 10, 10]  # type: ignore[attr-defined]
        assert len(asked) == 2

    loop.run(main())
