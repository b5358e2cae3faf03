"""The websocket at one node, for queues of another."""

from __future__ import annotations

import pytest

from penstock.client.connecting import connect_async
from penstock.client.remote.address import Address, Options
from penstock.client.remote.caller import RemoteCaller
from penstock.cluster.placement import home_of
from penstock.core.commands import CancelRedrive, CreateQueue, Send, StartRedrive
from penstock.core.errors import AccessDenied
from penstock.server.auth import Credential, Credentials, Grant, Principal, Secret
from penstock.server.clock import SystemClock
from penstock.server.settings import Settings, WebsocketSettings
from penstock.store.memory import MemoryStore
from tests.client.serving import Server
from tests.cluster.linking import in_loop
from tests.cluster.test_router import names
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
    there = next(name for name in names() if home_of(name, 3) != 0)
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
