"""The websocket at one node, for queues of another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect

from penstock.client.connecting import connect_async
from penstock.client.remote.address import Address, Options
from penstock.client.remote.caller import RemoteCaller
from penstock.cluster.routing.placement import home_of
from penstock.core.commands import CancelRedrive, Command, CreateQueue, DescribeQueue, Send, StartRedrive
from penstock.core.errors import AccessDenied
from penstock.server.auth import Credential, Credentials, Grant, Principal, Secret
from penstock.server.clock import SystemClock
from penstock.server.settings import Settings, WebsocketSettings
from penstock.store.memory import MemoryStore
from tests.client.serving import Server
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.test_router import names
from tests.shards import WatchedRouter, open_router


def router() -> WatchedRouter:
    stores = [MemoryStore() for _ in range(3)]
    return open_router(lambda number: stores[number], SystemClock(), 3, near=[0], links=True)


@in_loop
async def test_an_answer_holds_no_more_of_large_messages_than_it_may() -> None:
    settings = Settings(websocket=WebsocketSettings(answer_bytes_max=1_000_000))
    for name in names():  # of the node itself, and of the other one
        server = Server(router(), settings=settings)
        await server.start()
        try:
            await server.shard.call(CreateQueue(name=name))
            await server.shard.call(Send(queue=name, bodies=[bytes(200_000)] * 20))
            async with connect_async(server.url, transport="websocket") as ps:
                batch = await ps.queue(name).receive(max=20)
                assert 1 <= len(batch) <= 6, name
        finally:
            await server.stop()


def far_queue() -> str:
    return next(name for name in names() if home_of(name, 3) != 0)


async def ask(client: ClientConnection, *requests: list[Any]) -> list[list[Any]]:
    """Send requests in one frame; as many answers, in the order in which they come."""
    await client.send(msgspec.msgpack.encode(requests))
    came: list[list[Any]] = []
    while len(came) < len(requests):
        came += msgspec.msgpack.decode(await client.recv(decode=False))[1]
    return came


@in_loop
async def test_reads_of_a_queue_that_is_not_known_keep_their_order_and_ask_for_it_once() -> None:
    there, kinds = far_queue(), list[type[Command]]()
    server = Server(router())
    await server.start()
    try:
        await server.shard.call(Send(queue=there, bodies=[b"a"]))
        submit = server.shard.submit

        def watched(command: Command, *others: Any, **named: Any) -> Any:
            kinds.append(type(command))
            return submit(command, *others, **named)

        server.shard.submit = watched  # type: ignore[method-assign]
        async with connect(f"ws://127.0.0.1:{server.port}/v1/ws") as client:
            await ask(client, [0, ["Hello", 1]])
            server.shard.identity.forget(there)  # type: ignore[attr-defined]
            numbers = list(range(1, 31))
            answers = await ask(client, *([number, ["Browse", there]] for number in numbers))
            assert [answer[0] for answer in answers] == numbers
        assert kinds.count(DescribeQueue) == 1
    finally:
        await server.stop()


@in_loop
async def test_a_receive_is_cancelled_while_its_queue_is_asked_for() -> None:
    there = far_queue()
    server = Server(router())
    await server.start()
    try:
        await server.shard.call(CreateQueue(name=there))
        async with connect(f"ws://127.0.0.1:{server.port}/v1/ws") as client:
            await ask(client, [0, ["Hello", 1]])
            server.shard.identity.forget(there)  # type: ignore[attr-defined]
            receive = ["Receive", there, "main", 1, 20_000]
            answers = await ask(client, [1, receive], [2, receive], [3, ["Cancel", 1]], [4, ["Cancel", 2]])
            assert sorted(answer[0] for answer in answers) == [1, 2, 3, 4]
            await server.shard.call(Send(queue=there, bodies=[b"a"]))
            ((_, _, delivery),) = await ask(client, [5, receive])
            assert delivery, "nobody else has the message"
    finally:
        await server.stop()


@in_loop
async def test_a_redrive_of_another_node_is_cancelled_only_by_who_may_administer_its_queue() -> None:
    everything = [Grant()]
    little = [Grant(("*",), ("read", "write")), Grant(("mine*",), ("admin",))]
    credentials = Credentials(
        [
            Credential("ALL", Secret("s"), Principal("all", "ALL", everything), Secret("token-all")),
            Credential("FEW", Secret("s"), Principal("few", "FEW", little), Secret("token-few")),
        ]
    )
    there = far_queue()
    server = Server(router(), credentials=credentials)
    await server.start()
    try:
        shards = server.shard
        assert isinstance(shards, WatchedRouter)
        await shards.call(Send(queue=there, bodies=[b"a", b"b"]))
        owner = shards.everywhere()[home_of(there, 3)]
        task = await owner.call(StartRedrive(queue=there, target="elsewhere", per_second=1))  # at another node
        for token, is_allowed in (("token-few", False), ("token-all", True)):
            caller = await RemoteCaller.connect(Address.parse(server.url), Options(token=token, transport="websocket"))
            try:
                if is_allowed:
                    assert (await caller.call(CancelRedrive(task=task.task))).status == "cancelled"
                else:
                    with pytest.raises(AccessDenied):
                        await caller.call(CancelRedrive(task=task.task))
            finally:
                await caller.close()
    finally:
        await server.stop()
