"""A session that was opened at one node is used at another."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from penstock.cluster.base import ShardUnserved
from penstock.cluster.routing.session_router import SLOTS, numbers_of, slot_of
from penstock.core.commands import EndSession, Heartbeat, OpenSession, QueueStats, Receive, Send
from penstock.core.errors import SessionNotFound
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.routing import ServedPair, served_pair, until
from tests.cluster.routing.test_router import bodies
from tests.cluster.routing.test_router_pair import pair

TTL_MS = 300_000


@in_loop
async def test_a_session_is_used_and_ended_at_any_node(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        here, there = made.routers["a"], made.routers["b"]
        session = await here.call(OpenSession(name="me", ttl_ms=TTL_MS))
        for number in range(8):
            await here.call(Send(queue=f"q{number}", bodies=[b"%d" % number]))
        for number in range(8):
            router = made.routers["ab"[number % 2]]
            await router.call(Heartbeat(session=session))
            assert bodies(await router.call(Receive(queue=f"q{number}", session=session))) == [b"%d" % number]
        assert await there.call(EndSession(session=session)) == 8, "all that it held, wherever it was received"
        for router in (here, there):
            with pytest.raises(SessionNotFound):
                await router.call(Heartbeat(session=session))


@in_loop
async def test_a_receive_at_another_node_waits_and_can_be_given_up(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        session = await made.routers["a"].call(OpenSession(name="me", ttl_ms=TTL_MS))
        await made.routers["a"].call(Send(queue="q", bodies=[b"first"]))
        assert bodies(await made.routers["b"].call(Receive(queue="q", session=session))) == [b"first"]
        given_up = asyncio.create_task(made.routers["b"].call(Receive(queue="q", session=session, wait_ms=50_000)))
        waits = asyncio.create_task(made.routers["b"].call(Receive(queue="q", session=session, wait_ms=50_000)))
        await _until_waiting(made.routers["a"], 2)
        given_up.cancel()
        await _until_waiting(made.routers["a"], 1)
        await made.routers["b"].call(Send(queue="q", bodies=[b"second"]))
        assert bodies(await waits) == [b"second"]


async def _until_waiting(router: Any, count: int) -> None:
    deadline_s = asyncio.get_running_loop().time() + 60
    while (await router.call(QueueStats(name="q"))).channels["main"].waiting_receivers != count:
        assert asyncio.get_running_loop().time() < deadline_s
        await asyncio.sleep(0.005)


@in_loop
async def test_while_the_node_of_a_session_cannot_be_reached_nothing_is_done(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        session = await made.routers["a"].call(OpenSession(name="me", ttl_ms=TTL_MS))
        await made.routers["b"].call(Heartbeat(session=session))
        await made.links["a"].close()
        with pytest.raises(ShardUnserved, match="node 'a'"):
            await made.routers["b"].call(Heartbeat(session=session))
        await made.routers["a"].call(Heartbeat(session=session))


@in_loop
async def test_a_number_that_is_nobodys_is_nobodys_everywhere(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        for router in made.routers.values():
            for number in (slot_of("a"), slot_of("b"), SLOTS * 7 + slot_of("nobody"), 5):
                with pytest.raises(SessionNotFound):
                    await router.call(Heartbeat(session=number))


def test_numbers_of_nodes_are_never_the_same() -> None:
    numbers = {name: numbers_of(name) for name in ("a", "b")}
    for name, sessions in numbers.items():
        for _ in range(100):
            number = sessions.add(OpenSession(name=name), now_ms=0).number
            assert number % SLOTS == slot_of(name) and 0 < number < 1 << 32


@in_loop
async def test_rest_takes_a_session_at_any_node(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as made:
        opened = await asyncio.to_thread(_post, made, "a", "/sessions", {"name": "me", "ttl": 300})
        session = opened["session"]
        assert await asyncio.to_thread(_post, made, "b", f"/sessions/{session}/heartbeat", None) is None
        await asyncio.to_thread(_post, made, "b", "/queues/q0/messages", {"body": "1"})
        got = await asyncio.to_thread(_post, made, "b", "/queues/q0/receive", {"session": session, "wait": 20})
        assert len(got["messages"]) == 1
        await until(lambda: len(made.routers["a"].sessions) == 1, "it to be a's")
        assert await asyncio.to_thread(_post, made, "b", f"/sessions/{session}", None, "DELETE")
        with pytest.raises(HTTPError) as refused:
            await asyncio.to_thread(_post, made, "a", f"/sessions/{session}/heartbeat", None)
        assert refused.value.code == 404


def _post(made: ServedPair, node: str, path: str, content: Any, method: str = "POST") -> Any:
    data = b"" if content is None else json.dumps(content).encode()
    url = f"http://127.0.0.1:{made.proxies[node].port}/v1{path}"
    request = Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urlopen(request, timeout=60) as answer:
        body = answer.read()
    return json.loads(body) if body else None
