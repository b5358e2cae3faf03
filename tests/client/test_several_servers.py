"""Several servers of one cluster: the first that can be reached will do, and one that falls silent is left."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.remote.address import QUICK_CONNECT_S, QUICK_HEARTBEAT_S, Address, TransportName
from penstock.client.remote.caller import places_of
from penstock.store.memory import MemoryStore
from tests.client.lossy import LossyProxy
from tests.client.serving import serve
from tests.server.test_stood_still import started
from tests.shards import not_for_clusters, open_shards, stepping_clock

pytestmark = not_for_clusters("servers and proxies are the test's own")

SOON_S = 2 * QUICK_HEARTBEAT_S
"""Silence is noticed within three seconds."""
SLACK_S = 3.0
"""On a busy machine."""
TRANSPORTS: tuple[TransportName, ...] = ("websocket", "long_poll", "poll")


def dead_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.asynccontextmanager
async def two_ways() -> AsyncIterator[tuple[LossyProxy, LossyProxy]]:
    """Two ways to one server, as two nodes of a cluster are."""
    server = await serve(open_shards(lambda _: MemoryStore(), stepping_clock()))
    ways = LossyProxy(server.port), LossyProxy(server.port)
    for way in ways:
        await way.start()
    try:
        yield ways
    finally:
        for way in ways:
            await way.stop()
        await server.stop()


def run(main: Callable[[LossyProxy, LossyProxy], Any]) -> None:
    async def run_it() -> None:
        async with two_ways() as (first, second):
            await main(first, second)

    asyncio.run(run_it())


@pytest.mark.parametrize("routing", ["forward", "direct"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_first_server_that_is_dead_is_passed_over(transport: TransportName, routing: Any) -> None:
    async def main(first: LossyProxy, second: LossyProxy) -> None:
        url = f"penstock://127.0.0.1:{dead_port()},127.0.0.1:{second.port}"
        async with penstock.connect_async(url, transport=transport, routing=routing) as ps:
            await ps.create_queue("orders")
            await ps.queue("orders").send("one")
            assert (await ps.queue("orders").receive()).text == "one"

    run(main)


def test_a_first_server_that_stands_still_is_passed_over() -> None:
    async def main(first: LossyProxy, second: LossyProxy) -> None:
        first.answers_lost = True
        began_s = time.monotonic()
        async with penstock.connect_async(f"penstock://127.0.0.1:{first.port},127.0.0.1:{second.port}") as ps:
            await ps.create_queue("orders")
        assert time.monotonic() - began_s < QUICK_CONNECT_S + SLACK_S

    run(main)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_server_that_falls_silent_is_left_and_nothing_is_done_twice(transport: TransportName) -> None:
    async def main(first: LossyProxy, second: LossyProxy) -> None:
        url = f"penstock://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        async with penstock.connect_async(url, transport=transport) as ps:
            await ps.create_queue("orders")
            assert first.connections and not second.connections
            first.answers_lost = True
            began_s = time.monotonic()
            await ps.queue("orders").send("one")
            assert time.monotonic() - began_s < SOON_S + SLACK_S
            assert second.connections
            assert (await ps.queue("orders").stats()).messages == 1

    run(main)


def test_a_receive_that_waits_goes_on_elsewhere() -> None:
    async def main(first: LossyProxy, second: LossyProxy) -> None:
        url = f"penstock://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        async with penstock.connect_async(url) as ps, penstock.connect_async(second.url) as other:
            await ps.create_queue("orders")
            waiting = asyncio.create_task(ps.queue("orders").receive(wait=20))
            await asyncio.sleep(0.2)
            first.answers_lost = True
            await asyncio.sleep(SOON_S + 0.5)
            await other.queue("orders").send("one")
            message = await asyncio.wait_for(waiting, SOON_S + SLACK_S)
            assert message is not None and message.text == "one"

    run(main)


def test_after_a_loss_the_other_server_is_tried_first() -> None:
    async def main(first: LossyProxy, second: LossyProxy) -> None:
        url = f"penstock://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        async with penstock.connect_async(url) as ps:
            await ps.create_queue("orders")
            await first.cut()
            await ps.queue("orders").send("one")
            assert (first.connections, second.connections) == (1, 1)

    run(main)


def test_when_no_server_can_be_reached_the_error_says_so() -> None:
    url = f"penstock://127.0.0.1:{dead_port()},127.0.0.1:{dead_port()}"
    with pytest.raises(penstock.NotSent, match="cannot be reached"):
        penstock.connect(url)


@pytest.mark.parametrize("url", ["penstock://a:9325,", "penstock://a:9325,b:x", "penstock://,b", "penstock://a,b/path"])
def test_a_list_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(penstock.InvalidRequest, match="is not the address of a server"):
        Address.parse(url)


def test_a_name_that_stands_for_several_machines_survives_a_dead_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver is the test's: 127.0.0.2 and 127.0.0.3 are machines of their own for all that matters."""
    known = socket.getaddrinfo

    def resolved(host: Any, port: Any, *more: Any, **named: Any) -> Any:
        if host == "localhost":
            return [found for ip in ("127.0.0.2", "127.0.0.1") for found in known(ip, port, *more, **named)]
        return known(host, port, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)

    async def main(first: LossyProxy, second: LossyProxy) -> None:
        address = Address.parse(f"penstock://localhost:{first.port}")
        assert [place.ip for place in await places_of(address.servers)] == ["127.0.0.2", "127.0.0.1"]
        for routing in ("forward", "direct"):
            async with penstock.connect_async(str(address), routing=routing) as ps:  # type: ignore[arg-type]
                await ps.create_queue("orders")

    run(main)


def test_the_command_line_takes_several_servers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an option, and in the environment."""
    node_ports = [f"--{name}-port=0" for name in ("sqs", "http", "nsq-tcp", "nsq-http")]
    with started(tmp_path, "serve", "--data", str(tmp_path / "data"), *node_ports) as (_, listening):
        both = f"127.0.0.1:{dead_port()},127.0.0.1:{listening['http']['port']}"

        def ran(*arguments: str) -> str:
            command = [sys.executable, "-m", "penstock", *arguments]
            return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60.0).stdout

        ran("send", "orders", "one", "--url", f"http://{both}")
        kept = tmp_path / "orders.jsonl"
        ran("export", f"http://{both}", "--output", str(kept))
        ran("queue", "delete", "orders", "--yes", "--url", both)
        ran("import", both, str(kept))
        monkeypatch.setenv("PENSTOCK_URL", f"penstock://{both}")
        assert "one" in ran("receive", "orders")
