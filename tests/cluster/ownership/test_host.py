"""A process's shards: commands for those that are not here, and shards that are given up."""

from __future__ import annotations

import asyncio

import pytest

from penstock.cluster.base import ShardHost, ShardMoved
from penstock.core.commands import CreateQueue, QueueStats, Receive, Send, Subscribe
from tests.cluster.links.linking import Asked, Subscriber, ask, bodies, in_loop, make_host, make_shard, until


@in_loop
async def test_a_command_for_a_shard_that_is_not_here_is_told_so_later_and_once() -> None:
    host = ShardHost()
    with pytest.raises(ShardMoved, match="shard 7") as moved:
        await ask(host, Send(queue="q", bodies=[b"x"]), 7)
    assert moved.value.shard == 7


@in_loop
async def test_a_receive_for_a_shard_that_is_not_here_can_be_withdrawn() -> None:
    host = ShardHost()
    asked = Asked(host, 7, Receive(queue="q"))
    asked.withdraw()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asked.times == 0


@in_loop
async def test_each_shard_has_queues_of_its_own() -> None:
    host = make_host()
    await ask(host, Send(queue="q", bodies=[b"x"]), 1)
    assert list(host.served[1].identity.queues) == ["q"]
    assert not host.served[0].identity.queues
    await host.close()


@in_loop
async def test_a_shard_that_is_released_answers_what_is_in_flight_and_moves_who_waits() -> None:
    host = make_host()
    served = host.served[1]
    await ask(host, CreateQueue(name="q"), 1)
    subscriber = Subscriber()
    await ask(host, Subscribe(queue="q", ticket=subscriber), 1)
    receive = Receive(queue="q", wait_ms=60_000)
    waiting = Asked(host, 1, receive)
    await until(lambda: served.shard.is_waiting(waiting.call))
    in_flight = Asked(host, 1, CreateQueue(name="late"))
    await host.release(1)
    assert (await in_flight.result()).name == "late"
    with pytest.raises(ShardMoved, match="shard 1 is not served here"):
        await waiting.result()
    assert isinstance(subscriber.error, ShardMoved)
    assert receive.ticket is None  # it can be submitted elsewhere
    with pytest.raises(ShardMoved):
        await ask(host, QueueStats(name="q"), 1)
    host.add(1, make_shard(1))
    await ask(host, Send(queue="q", bodies=[b"again"]), 1)
    assert bodies(await ask(host, receive, 1)) == [b"again"]
    await host.release(2)
    await host.release(2)
    await host.close()


@in_loop
async def test_a_receive_that_was_withdrawn_leaves_its_message_to_the_next() -> None:
    host = make_host()
    await ask(host, Send(queue="q", bodies=[b"x"]), 0)
    asked = Asked(host, 0, Receive(queue="q"))
    asked.withdraw()
    assert bodies(await ask(host, Receive(queue="q", wait_ms=60_000), 0)) == [b"x"]
    await host.close()


@in_loop
async def test_who_waits_when_the_process_ends_gets_no_messages_and_no_error() -> None:
    host = make_host()
    await ask(host, CreateQueue(name="q"), 0)
    waiting = Asked(host, 0, Receive(queue="q", wait_ms=60_000))
    await until(lambda: host.served[0].shard.is_waiting(waiting.call))
    await host.close()
    assert await waiting.result() is None
