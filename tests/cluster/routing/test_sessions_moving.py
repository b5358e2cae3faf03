"""A shard that is handed over in order: clients keep what they hold, wherever their connection is."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.cluster.base import ShardUnserved
from penstock.cluster.links.settings import LinkLimits
from penstock.cluster.routing.placement import home_of
from penstock.cluster.routing.router import Router
from penstock.core.commands import (
    Ack,
    AckSequences,
    Command,
    CreateQueue,
    Delivery,
    EndSession,
    Heartbeat,
    OpenSession,
    QueueStats,
    Receive,
    Send,
    SetCredit,
    Subscribe,
)
from penstock.core.errors import StoreError
from penstock.core.queues.config import QueueConfig
from penstock.server.tasks import CallbackCall
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.test_router import bodies, spans, until
from tests.cluster.routing.test_router_moves import Ticket
from tests.cluster.routing.test_router_pair import NAMES, SHARDS, Pair, other_than, pair


def queue_of(made: Pair, owner: str) -> tuple[str, int]:
    """A queue whose shard is a node's, and the shard."""
    names = (f"q{number}" for number in range(1_000))
    return next((name, home_of(name, SHARDS)) for name in names if made.owners[home_of(name, SHARDS)] == owner)


def sequences(delivery: Delivery) -> NDArray[np.int64]:
    """The messages of a delivery."""
    return np.concatenate([np.arange(run.first, run.first + run.count) for run in delivery.runs])


async def holding(router: Router, name: str) -> int:
    """The session of a connection that has a message in its hands."""
    session: int = await router.call(OpenSession(name="a connection", bound=True))
    await router.call(Send(queue=name, bodies=[b"x"]))
    assert (await router.call(Receive(queue=name, session=session))).count == 1
    return session


def keep_openings_back(place: Any, *, only_first: bool = False) -> list[tuple[Any, ...]]:
    """What a place is asked to open sessions with from now on, and does not do."""
    held: list[tuple[Any, ...]] = []
    submit = place.submit

    def hold(number: int, command: Command, *others: Any) -> Any:
        if isinstance(command, OpenSession) and not (only_first and held):
            held.append((number, command, *others))
            return None
        return submit(number, command, *others)

    place.submit = hold
    return held


@pytest.mark.parametrize("client", NAMES)
@pytest.mark.parametrize("owner", NAMES)
@in_loop
async def test_a_connection_keeps_what_it_has_in_hand(tmp_path: Path, client: str, owner: str) -> None:
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, owner)
        router, other = made.routers[client], made.routers[other_than(client)]
        session = await router.call(OpenSession(name="a connection", bound=True))
        await router.call(Send(queue=name, bodies=[b"x", b"y"]))
        held = await router.call(Receive(queue=name, session=session, limit=2))
        for _ in range(2):  # there and back
            await made.move(shard)
            assert (await other.call(Receive(queue=name))).count == 0, "a second client has it, too"
        first, second = sequences(held)
        acked = AckSequences(queue=name, channel="main", sequences=np.array([first]), session=session)
        assert not (await router.call(acked)).refused
        await made.move(shard)
        assert await router.call(EndSession(session=session)) == 1
        again = await other.call(Receive(queue=name))
        assert bodies(again) == [b"y"]
        assert sequences(again).tolist() == [second]


@in_loop
async def test_what_was_not_handed_over_in_order_is_taken_away(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, "a")
        router = made.routers["a"]
        session = await router.call(OpenSession(name="a connection", bound=True))
        await router.call(Send(queue=name, bodies=[b"x"]))
        held = await router.call(Receive(queue=name, session=session))
        await made.move(shard, in_order=False)
        assert bodies(await made.routers["b"].call(Receive(queue=name))) == [b"x"]
        assert (await router.call(Ack(queue=name, spans=spans(held)))).refused


@pytest.mark.parametrize("owner", NAMES)
@in_loop
async def test_connections_of_a_node_that_is_gone_end_although_the_shard_was_handed_over(
    tmp_path: Path, owner: str
) -> None:
    async with pair(tmp_path, LinkLimits(session_grace_s=0.2)) as made:
        name, shard = queue_of(made, owner)
        await holding(made.routers["a"], name)
        if owner == "b":
            await made.move(shard)
        await made.move(shard)
        assert made.owners[shard] == "b"
        await until(lambda: made.links["b"].is_connected)  # node a lets the new owner hear of it
        await made.links["b"].close()
        assert bodies(await made.routers["b"].call(Receive(queue=name, wait_ms=30_000))) == [b"x"]


@pytest.mark.parametrize("owner", NAMES)
@in_loop
async def test_a_connection_that_ends_while_nobody_serves_the_shard_has_ended_at_its_next_owner(
    tmp_path: Path, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, owner)
        router = made.routers["a"]
        session = await holding(router, name)
        await made.release(shard)
        monkeypatch.setattr(router.remote_calls, "_retry_timeout_s", 0.1)
        with pytest.raises(ShardUnserved):
            await router.call(EndSession(session=session))
        made.owners[shard] = other_than(owner)
        made.open(shard)
        made.tell()
        assert bodies(await made.routers["b"].call(Receive(queue=name, wait_ms=10_000))) == [b"x"]


@in_loop
async def test_a_connection_that_ends_while_a_link_breaks_has_ended(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        name, _ = queue_of(made, "b")
        router = made.routers["a"]
        session = await holding(router, name)
        (guest,) = made.servers["b"].peer_links
        guest._transport.pause_reading()
        ending = asyncio.create_task(router.call(EndSession(session=session)))
        await until(lambda: made.links["b"].in_flight == 1)
        guest.abort()
        await ending
        assert bodies(await made.routers["b"].call(Receive(queue=name))) == [b"x"]


@in_loop
async def test_connections_of_a_node_that_is_never_heard_of_end(tmp_path: Path) -> None:
    async with pair(tmp_path, LinkLimits(session_grace_s=0.2)) as made:
        name, shard = queue_of(made, "a")
        await holding(made.routers["a"], name)
        await made.links["b"].close()  # so that nothing comes from node a any more
        await made.move(shard)
        assert bodies(await made.routers["b"].call(Receive(queue=name, wait_ms=30_000))) == [b"x"]


@in_loop
async def test_nodes_do_not_remember_the_connections_of_each_time_that_they_had_a_shard(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, "b")
        router = made.routers["a"]
        await router.call(Send(queue=name, bodies=[b"x"]))
        for _ in range(8):
            session = await router.call(OpenSession(name="a connection", bound=True))
            await router.call(Receive(queue=name, session=session))
            await made.move(shard)
            await router.call(EndSession(session=session))
        await made.move(shard)
        assert sum(len(each) for server in made.servers.values() for each in server._sessions.values()) <= len(NAMES)


@pytest.mark.parametrize("in_order", [True, False])
@in_loop
async def test_a_client_that_holds_all_that_it_may_gets_no_more_when_partitions_move(
    tmp_path: Path, in_order: bool
) -> None:
    async with pair(tmp_path) as made:
        router = made.routers["a"]
        await router.call(CreateQueue(name="split", config=QueueConfig(partitions=3)))
        session = await router.call(OpenSession(name="a connection", bound=True))
        ticket = Ticket()
        subscribed = await router.call(
            Subscribe(queue="split", credit=4, session=session, ticket=ticket, in_flight=True)
        )
        for number in range(12):
            await router.call(Send(queue="split", bodies=[b"%d" % number]))
        await until(lambda: len(ticket.bodies) == 4)
        for shard in range(SHARDS):
            await made.move(shard, in_order=in_order)
        if in_order:
            stats = await router.call(QueueStats(name="split"))
            assert stats.channels["main"].leased == 4
            assert stats.channels["main"].failed == 0
            assert len(ticket.bodies) == 4
            held = sequences(ticket.taken[0])
            acked = AckSequences(queue="split", channel="main", sequences=held, session=session)
            assert not (await router.call(acked)).refused
        await until(lambda: len(ticket.bodies) > 4)
        await router.call(SetCredit(subscription=subscribed.subscription, credit=0))


@in_loop
async def test_a_client_that_holds_all_that_it_may_gets_no_more_when_a_partition_comes_to_its_node(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as made:
        router = made.routers["a"]
        await router.call(CreateQueue(name="split", config=QueueConfig(partitions=3)))
        session = await router.call(OpenSession(name="a connection", bound=True))
        ticket = Ticket()
        await router.call(Subscribe(queue="split", credit=4, session=session, ticket=ticket, in_flight=True))
        for sender, count in ("b", 8), ("a", 4):  # a partition of the sender's own node has them
            for number in range(count):
                await made.routers[sender].call(Send(queue="split", bodies=[b"%d" % number]))
            await until(lambda: len(ticket.bodies) == 4)
        for shard in (shard for shard in range(SHARDS) if made.owners[shard] == "b"):
            await made.release(shard)
            await asyncio.sleep(0.6)  # so that whoever waits for it does not look too often
            made.owners[shard] = "a"
            made.open(shard)
            await asyncio.sleep(0.3)  # it is served, and the map does not say so yet
            made.tell()
        assert len(ticket.bodies) == 4


@in_loop
async def test_a_node_that_was_there_again_is_waited_for_anew(tmp_path: Path) -> None:
    async with pair(tmp_path, LinkLimits(session_grace_s=4.5)) as made:
        name, _ = queue_of(made, "b")
        router = made.routers["a"]
        session = await holding(router, name)
        (guest,) = made.servers["b"].peer_links
        guest.abort()
        await until(lambda: guest not in made.servers["b"].peer_links)
        await router.call(Heartbeat(session=session))
        await asyncio.sleep(3.3)
        closed_s = time.monotonic()
        await made.links["b"].close()
        assert bodies(await made.routers["b"].call(Receive(queue=name, wait_ms=30_000))) == [b"x"]
        assert time.monotonic() - closed_s > 4.4, "too early"


@in_loop
async def test_a_node_whose_link_breaks_is_heard_of_again_although_it_has_nothing_to_say(tmp_path: Path) -> None:
    async with pair(tmp_path, LinkLimits(session_grace_s=2.0)) as made:
        name, _ = queue_of(made, "b")
        router = made.routers["a"]
        await holding(router, name)
        (guest,) = made.servers["b"].peer_links
        guest.abort()
        assert (await made.routers["b"].call(Receive(queue=name, wait_ms=3_000))).count == 0


@in_loop
async def test_a_subscription_goes_on_over_the_next_link_although_the_owner_has_not_heard_of_the_end_of_the_last(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as made:
        name, _ = queue_of(made, "b")
        router, ticket = made.routers["a"], Ticket()
        await router.call(CreateQueue(name=name))
        session = await router.call(OpenSession(name="a connection", bound=True))
        await router.call(Subscribe(queue=name, credit=1, session=session, ticket=ticket, in_flight=True))
        (guest,) = made.servers["b"].peer_links
        guest._transport.pause_reading()
        connection = made.links["b"]._connection
        assert connection is not None
        connection.abort()
        await connection.gone.wait()
        await router.call(Send(queue=name, bodies=[b"1"]))
        await until(lambda: ticket.bodies == [b"1"])


@in_loop
async def test_a_subscription_goes_on_although_the_next_link_breaks_before_it_is_there_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        name, _ = queue_of(made, "b")
        router, ticket = made.routers["a"], Ticket()
        await router.call(CreateQueue(name=name))
        session = await router.call(OpenSession(name="a connection", bound=True))
        await router.call(Subscribe(queue=name, credit=1, session=session, ticket=ticket, in_flight=True))
        place: Any = made.places["b"]
        submit, held = place.submit, list[Command]()

        def hold_first(number: int, command: Command, *others: Any) -> Any:
            if isinstance(command, Subscribe) and not held:
                return held.append(command)
            return submit(number, command, *others)

        place.submit = hold_first
        for _ in range(2):
            (guest,) = made.servers["b"].peer_links
            guest.abort()
            await until(lambda guest=guest: bool(held) and guest not in made.servers["b"].peer_links)  # type: ignore[misc]
        for body in (b"1", b"2"):
            await router.call(Send(queue=name, bodies=[body]))
        await until(lambda: bool(ticket.bodies or ticket.errors))
        await asyncio.sleep(0.05)
        assert (ticket.bodies, ticket.errors) == ([b"1"], [])


@in_loop
async def test_a_move_is_no_sign_of_life_of_a_client_that_has_to_give_them(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, "a")
        router = made.routers["a"]
        session = await router.call(OpenSession(name="a client", ttl_ms=60_000))
        await router.call(Send(queue=name, bodies=[b"x"]))
        assert (await router.call(Receive(queue=name, session=session))).count == 1
        (number,) = (each.at[shard] for each in router.sessions)
        seen_ms = made.hosts["a"].served[shard].identity.sessions[number].seen_ms
        await asyncio.sleep(0.01)
        await made.move(shard)
        await asyncio.sleep(0.1)
        assert made.hosts["b"].served[shard].identity.sessions[number].seen_ms == seen_ms


def records(made: Pair, shard: int) -> tuple[int, int]:
    """How many sessions a shard has on its books, and how many of them its node expects to hear of."""
    owner = made.owners[shard]
    open_there = len(made.hosts[owner].served[shard].identity.sessions)
    noted = sum(each[0] == shard for known in made.servers[owner]._sessions.values() for each in known)
    return open_there, noted


@in_loop
async def test_a_session_whose_opening_was_answered_over_a_link_that_broke_is_open_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, "b")
        router = made.routers["a"]
        await router.call(CreateQueue(name=name))
        for count in range(1, 6):
            session = await router.call(OpenSession(name="a connection", bound=True))
            connection = made.links["b"]._connection
            assert connection is not None
            connection._transport.pause_reading()
            receiving = asyncio.create_task(router.call(Receive(queue=name, session=session)))
            await until(lambda count=count: records(made, shard) == (count, count))  # type: ignore[misc]
            connection.abort()
            assert (await receiving).count == 0
            assert records(made, shard) == (count, count)
        for each in list(router.sessions):
            await router.call(EndSession(session=each.number))
        assert records(made, shard) == (0, 0)


@in_loop
async def test_a_session_that_is_opened_after_its_link_broke_is_open_once(tmp_path: Path) -> None:
    """The command was taken, and is done when the node has long come back and asked again."""
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, "b")
        router, place = made.routers["a"], made.places["b"]
        await router.call(Send(queue=name, bodies=[b"x"]))
        session = await router.call(OpenSession(name="a connection", bound=True))
        submit = place.submit
        held = keep_openings_back(place, only_first=True)
        receiving = asyncio.create_task(router.call(Receive(queue=name, session=session)))
        await until(lambda: held)
        (guest,) = made.servers["b"].peer_links
        guest.abort()
        delivery = await receiving
        submit(*held[0])
        await router.call(Heartbeat(session=session))
        assert records(made, shard) == (1, 1)
        acked = AckSequences(queue=name, channel="main", sequences=sequences(delivery), session=session)
        assert not (await router.call(acked)).refused


@pytest.mark.parametrize("is_ending", [False, True])
@in_loop
async def test_an_opening_that_failed_leaves_no_session_behind_although_several_waited_for_it(
    tmp_path: Path, is_ending: bool
) -> None:
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, "b")
        router = made.routers["a"]
        await router.call(Send(queue=name, bodies=[b"x"]))
        session = await router.call(OpenSession(name="a connection", bound=True))
        held = keep_openings_back(made.places["b"], only_first=True)
        receive = Receive(queue=name, session=session)
        receiving = [asyncio.create_task(router.call(msgspec.structs.replace(receive))) for _ in range(4)]
        await until(lambda: bool(held))
        ending = asyncio.create_task(router.call(EndSession(session=session))) if is_ending else None
        await asyncio.sleep(0.01)
        _, command, on_settled = held[0][:3]
        failed = CallbackCall(command, on_settled)
        failed.error = StoreError("the store does not answer")
        failed.settle()
        errors = await asyncio.gather(*receiving, return_exceptions=True)
        assert [type(each) for each in errors] == [StoreError] * 4
        if ending is not None:
            assert await ending == 0
        else:
            assert bodies(await router.call(receive)) == [b"x"]
            assert records(made, shard) == (1, 1)
            assert await router.call(EndSession(session=session)) == 1
        assert records(made, shard) == (0, 0)


@in_loop
async def test_a_session_that_is_opened_for_a_node_that_is_gone_ends(tmp_path: Path) -> None:
    async with pair(tmp_path, LinkLimits(session_grace_s=0.2)) as made:
        name, shard = queue_of(made, "b")
        router, place = made.routers["a"], made.places["b"]
        await router.call(CreateQueue(name=name))
        session = await router.call(OpenSession(name="a connection", bound=True))
        submit = place.submit
        held = keep_openings_back(place)
        receiving = asyncio.create_task(router.call(Receive(queue=name, session=session)))
        await until(lambda: held)
        await made.links["b"].close()
        place.submit = submit  # type: ignore[method-assign]
        await until(lambda: not made.servers["b"].peer_links)
        submit(*held[0])
        await until(lambda: records(made, shard) == (1, 1))
        await until(lambda: records(made, shard) == (0, 0))
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
