"""Links between nodes, over real sockets: cancelled receives, broken links, backpressure, strangers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.base import LinkBroken, ShardMoved
from penstock.cluster.links.link import Link, NotReached
from penstock.cluster.links.server import LinkServer
from penstock.cluster.links.settings import LinkIdentity, LinkLimits
from penstock.core.commands import (
    Ack,
    AddCredit,
    CancelWait,
    CreateQueue,
    DeleteQueue,
    ExtendSequences,
    ListQueues,
    OpenSession,
    QueueStats,
    ReadRecords,
    Receive,
    Send,
    SetCredit,
    Subscribe,
    TallyQueues,
)
from penstock.core.errors import BatchTooLarge, InvalidRequest, OverLimit, QueueNotFound
from penstock.core.storage.chunk import PackedBodies
from penstock.server.settings import InvalidSettings
from penstock.wire.links import (
    MAGIC,
    VERSIONS,
    FrameKind,
    FrameReader,
    Greeting,
    Introduction,
    LinkRefused,
    client_proof,
    frame,
    frame_parts,
    introduce,
    read_greeting,
    read_introduction,
)
from penstock.wire.requests import BadFrame, Versions
from tests.cluster.links.linking import (
    SECRET,
    Asked,
    Subscriber,
    ask,
    bodies,
    identity,
    in_loop,
    linked,
    make_host,
    until,
)
from tests.ports import free_port

LONG_MS = 600_000
QUICK = LinkLimits(retry_timeout_s=1.0, backoff_s=0.01, handshake_s=30)


def send(*texts: bytes) -> Send:
    return Send(queue="q", bodies=list(texts))


# -- commands and replies ----------------------------------------------------------------------------------------------


@in_loop
async def test_messages_go_there_and_come_back() -> None:
    async with linked() as node:
        sent = await node.ask(send(b"one", b"two"), shard=1)
        delivery = await node.ask(Receive(queue="q", limit=10), shard=1)
        assert bodies(delivery) == [b"one", b"two"]
        assert delivery.queue_id == sent.queue_id
        spans = [span for run in delivery.runs for span in run.spans()]
        assert (await node.ask(Ack(queue="q", spans=spans), shard=1)).count == 2
        assert (await node.ask(QueueStats(name="q"), shard=1)).messages == 0
        with pytest.raises(QueueNotFound):
            await node.ask(QueueStats(name="q"), shard=2)


@in_loop
async def test_the_commands_of_a_turn_leave_in_one_frame_and_share_a_commit() -> None:
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        frames: list[int] = []
        (peer_link,) = node.server.peer_links
        take = peer_link._take_commands
        peer_link._take_commands = lambda numbered: (frames.append(len(numbered)), take(numbered))  # type: ignore[assignment]
        asked = [node.asked(send(b"x")) for _ in range(64)]
        await asyncio.gather(*(each.result() for each in asked))
        assert frames == [64]


@in_loop
async def test_a_large_batch_in_one_piece_comes_through() -> None:
    async with linked() as node:
        packed = PackedBodies.even(b"x" * 20_000_000, 200_000)
        assert (await node.ask(Send(queue="q", bodies=packed))).count == 100
        records = await node.ask(ReadRecords(queue="q", offset=0, limit=100))
        assert sum(run.count for run in records.runs) == 100
        assert bodies(await node.ask(Receive(queue="q"))) == [b"x" * 200_000]


@in_loop
async def test_many_large_commands_of_one_turn_are_cut_into_frames() -> None:
    async with linked() as node:
        asked = [node.asked(Send(queue="q", bodies=[b"x" * 1_000_000])) for _ in range(40)]
        assert len({(await each.result()).first for each in asked}) == 40


@in_loop
async def test_ten_thousand_commands_in_flight_are_each_answered_once() -> None:
    async with linked(limits=LinkLimits(in_flight_max=1_000)) as node:
        await node.ask(CreateQueue(name="q"))
        asked = [node.asked(send(b"%d" % number)) for number in range(10_000)]
        sequences = [(await each.result()).first for each in asked]
        assert sorted(sequences) == list(range(sequences[0], sequences[0] + 10_000))
        assert node.link.waiting == node.link.in_flight == 0


@in_loop
async def test_receives_that_wait_do_not_keep_sends_from_coming_through() -> None:
    async with linked(limits=LinkLimits(in_flight_max=4)) as node:
        await node.ask(CreateQueue(name="q"))
        waiting = [node.asked(Receive(queue="q", wait_ms=LONG_MS)) for _ in range(100)]
        await until(lambda: node.waiting("q") == 100)
        for _ in range(10):
            await asyncio.gather(*(node.asked(send(b"x")).result() for _ in range(10)))
        assert [bodies(await each.result()) for each in waiting] == [[b"x"]] * 100


@in_loop
async def test_a_server_does_not_read_on_from_who_has_too_much_in_flight() -> None:
    """The client is told of a larger number than the server keeps to: it is the server that holds."""
    async with linked(server_limits=LinkLimits(in_flight_max=5)) as node:
        await node.ask(CreateQueue(name="q"))
        connection = node.link._connection
        assert connection is not None
        connection.in_flight_max = 1_000
        asked = [node.asked(send(b"x")) for _ in range(500)]
        for each in asked:
            await each.result()
        assert (await node.ask(QueueStats(name="q"))).messages == 500


@in_loop
async def test_receives_beyond_the_limit_are_refused() -> None:
    async with linked(limits=LinkLimits(receives_max=2)) as node:
        await node.ask(CreateQueue(name="q"))
        for _ in range(2):
            node.asked(Receive(queue="q", wait_ms=LONG_MS))
        await until(lambda: node.waiting("q") == 2)
        with pytest.raises(OverLimit):
            await node.ask(Receive(queue="q", wait_ms=LONG_MS))


@in_loop
async def test_a_command_too_large_for_a_frame_is_refused_alone() -> None:
    async with linked(limits=LinkLimits(frame_bytes_max=5_000)) as node:
        small, large = node.asked(send(b"x")), node.asked(send(b"y" * 10_000))
        with pytest.raises(BatchTooLarge):
            await large.result()
        assert (await small.result()).count == 1


@in_loop
async def test_a_reply_too_large_for_a_frame_is_an_error_and_its_messages_go_back() -> None:
    async with linked(server_limits=LinkLimits(frame_bytes_max=5_000)) as node:
        await ask(node.host, send(b"y" * 10_000))
        with pytest.raises(BatchTooLarge):
            await node.ask(Receive(queue="q"))
        assert bodies(await ask(node.host, Receive(queue="q", wait_ms=LONG_MS))) == [b"y" * 10_000]


@in_loop
async def test_a_shard_that_is_released_moves_who_waits_at_other_nodes() -> None:
    async with linked() as node:
        await node.ask(CreateQueue(name="q"), shard=1)
        subscriber = Subscriber()
        await node.ask(Subscribe(queue="q", ticket=subscriber), shard=1)
        waiting = node.asked(Receive(queue="q", wait_ms=LONG_MS), shard=1)
        await until(lambda: node.link.in_flight == 1)
        await node.ask(ListQueues(), shard=1)
        await node.host.release(1)
        with pytest.raises(ShardMoved) as moved:
            await waiting.result()
        assert moved.value.shard == 1
        await until(lambda: subscriber.error)
        assert isinstance(subscriber.error, ShardMoved)
        with pytest.raises(ShardMoved):
            await node.ask(ListQueues(), shard=1)


# -- cancelled receives ------------------------------------------------------------------------------------------------


@in_loop
async def test_a_receive_that_is_withdrawn_waits_no_longer_at_the_other_node() -> None:
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        waiting = node.asked(Receive(queue="q", wait_ms=LONG_MS))
        await until(lambda: node.waiting("q") == 1)
        waiting.withdraw()
        await until(lambda: node.waiting("q") == 0)
        await until(lambda: node.link.in_flight == 0)
        assert waiting.times == 0


@in_loop
async def test_a_receive_that_is_withdrawn_before_it_is_written_never_leaves() -> None:
    async with linked() as node:
        await node.ask(send(b"x"))
        early = node.asked(Receive(queue="q"))
        early.withdraw()
        delivery = await node.ask(Receive(queue="q"))
        assert bodies(delivery) == [b"x"]
        assert delivery.runs[0].attempt == 1
        assert early.times == 0


@pytest.mark.parametrize("turns", range(12))
@in_loop
async def test_whenever_a_receive_is_withdrawn_its_message_is_there_for_the_next(turns: int) -> None:
    async with linked() as node:
        await node.ask(send(b"x"))
        asked = node.asked(Receive(queue="q"))
        for _ in range(turns):
            await asyncio.sleep(0)
        asked.withdraw()
        delivery = await node.ask(Receive(queue="q", wait_ms=LONG_MS))
        assert bodies(delivery) == [b"x"]
        assert delivery.runs[0].attempt == 1, "the attempt was counted although nobody saw it"


@pytest.mark.parametrize("turns", range(12))
@in_loop
async def test_whenever_a_waiting_receive_is_withdrawn_a_message_that_comes_is_not_lost(turns: int) -> None:
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        asked = node.asked(Receive(queue="q", wait_ms=LONG_MS))
        await until(lambda: node.waiting("q") == 1)
        sending = Asked(node.host, 0, send(b"x"))
        for _ in range(turns):
            await asyncio.sleep(0)
        asked.withdraw()
        await sending.result()
        assert bodies(await node.ask(Receive(queue="q", wait_ms=LONG_MS))) == [b"x"]


@in_loop
async def test_a_receive_that_is_withdrawn_after_its_reply_came_gives_back_what_it_got() -> None:
    async with linked() as node:
        await node.ask(send(b"x"))
        asked = node.asked(Receive(queue="q"))
        await asked.result()
        asked.withdraw()
        assert bodies(await node.ask(Receive(queue="q", wait_ms=LONG_MS))) == [b"x"]


@in_loop
async def test_a_receive_that_is_withdrawn_while_the_other_node_is_slow_to_read_waits_no_longer_afterwards() -> None:
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        waiting = node.asked(Receive(queue="q", wait_ms=LONG_MS))
        await until(lambda: node.waiting("q") == 1)
        assert node.link._connection is not None
        node.link._connection.pause_writing()
        waiting.withdraw()
        await asyncio.sleep(0.01)
        node.link._connection.resume_writing()
        await until(lambda: node.waiting("q") == 0)


@in_loop
async def test_a_receive_that_is_withdrawn_beside_a_command_too_large_for_a_frame_waits_no_longer() -> None:
    async with linked(limits=LinkLimits(frame_bytes_max=5_000)) as node:
        await node.ask(CreateQueue(name="q"))
        waiting = node.asked(Receive(queue="q", wait_ms=LONG_MS))
        await until(lambda: node.waiting("q") == 1)
        waiting.withdraw()
        with pytest.raises(BatchTooLarge):
            await node.ask(send(b"y" * 10_000))
        await until(lambda: node.waiting("q") == 0)


# -- subscriptions -----------------------------------------------------------------------------------------------------


@in_loop
async def test_a_subscription_is_pushed_what_its_credit_allows() -> None:
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        session = await node.ask(OpenSession(name="s", bound=True))
        subscriber = Subscriber()
        subscribe = Subscribe(queue="q", ticket=subscriber, credit=2, session=session, in_flight=True)
        number = (await node.ask(subscribe)).subscription
        await node.ask(send(b"a", b"b", b"c", b"d"))
        await until(lambda: len(subscriber.bodies) == 2)
        await node.ask(SetCredit(subscription=number, credit=3))
        await until(lambda: len(subscriber.bodies) == 3)
        await node.ask(AddCredit(subscription=number, credit=1))
        await until(lambda: len(subscriber.bodies) == 4)
        assert subscriber.bodies == [b"a", b"b", b"c", b"d"]
        spans = [span for delivery in subscriber.deliveries for run in delivery.runs for span in run.spans()]
        sequences = [number for span in spans for number in range(span.first, span.last + 1)]
        extend = ExtendSequences(
            queue="q", channel="main", sequences=np.array(sequences, dtype=np.int64), session=session, lease_ms=60_000
        )
        assert (await node.ask(extend)).count == 4


@in_loop
async def test_a_subscription_that_is_cancelled_is_pushed_no_more() -> None:
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        first, second = Subscriber(), Subscriber()
        await node.ask(Subscribe(queue="q", ticket=first, credit=10))
        await node.ask(Subscribe(queue="q", ticket=second))
        await node.ask(CancelWait(ticket=first))
        await node.ask(CancelWait(ticket=first))
        await node.ask(send(b"x"))
        assert bodies(await node.ask(Receive(queue="q", wait_ms=LONG_MS))) == [b"x"]
        assert first.deliveries == []
        await node.ask(DeleteQueue(name="q"))
        await until(lambda: second.error)
        assert isinstance(second.error, QueueNotFound)
        assert first.error is None


@in_loop
async def test_a_subscription_that_is_refused_is_forgotten() -> None:
    async with linked() as node:
        with pytest.raises(QueueNotFound):
            await node.ask(Subscribe(queue="nowhere", ticket=Subscriber()))
        connection = node.link._connection
        assert connection is not None
        assert not connection.subscribers


# -- links that break --------------------------------------------------------------------------------------------------


@in_loop
async def test_a_link_that_breaks_tells_who_is_in_flight_and_connects_again() -> None:
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        subscriber = Subscriber()
        await node.ask(Subscribe(queue="q", ticket=subscriber, credit=1))
        waiting = node.asked(Receive(queue="q", wait_ms=LONG_MS))
        await until(lambda: node.waiting("q") >= 1 and node.link.in_flight == 1)
        (peer_link,) = node.server.peer_links
        peer_link.abort()
        with pytest.raises(LinkBroken):
            await waiting.result()
        assert isinstance(subscriber.error, LinkBroken)
        await node.ask(send(b"x"))
        assert bodies(await node.ask(Receive(queue="q", wait_ms=LONG_MS))) == [b"x"]
        assert len(node.server.peer_links) == 1


@in_loop
async def test_what_breaks_off_leaves_no_receive_and_no_subscription_behind() -> None:
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        subscriber = Subscriber()
        await node.ask(Subscribe(queue="q", ticket=subscriber, credit=1))
        node.asked(Receive(queue="q", wait_ms=LONG_MS))
        await until(lambda: node.waiting("q") == 2)
        await node.link.close()
        await until(lambda: node.waiting("q") == 0)
        await ask(node.host, send(b"x", b"y"))
        assert bodies(await ask(node.host, Receive(queue="q", limit=2, wait_ms=LONG_MS))) == [b"x", b"y"]


@in_loop
async def test_deliveries_that_were_not_written_go_back_when_the_link_breaks() -> None:
    """The client reads nothing: what the sockets do not take stays with the server."""
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        connection, (peer_link,) = node.link._connection, node.server.peer_links
        assert connection is not None
        connection._transport.pause_reading()
        count, size = 60, 500_000
        for _ in range(count):
            await ask(node.host, Send(queue="q", bodies=[b"x" * size]))
        for _ in range(count):
            node.asked(Receive(queue="q"))
        await until(
            lambda: peer_link.is_paused and node.host.served[0].identity.queues["q"].channels["main"].ready == 0
        )
        unwritten = len(peer_link._answers.items)
        assert unwritten
        peer_link.abort()
        await until(lambda: node.host.served[0].identity.queues["q"].channels["main"].ready == unwritten)


@in_loop
async def test_a_node_that_reads_nothing_is_not_read_from_and_goes_on_when_it_reads() -> None:
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        await ask(node.host, Send(queue="q", bodies=[b"x" * 1_000_000]))
        connection, (peer_link,) = node.link._connection, node.server.peer_links
        assert connection is not None
        connection._transport.pause_reading()
        asked = [node.asked(ReadRecords(queue="q", offset=0)) for _ in range(40)]
        await until(lambda: peer_link.is_paused)
        assert not peer_link._is_reading
        late = [node.asked(send(b"y")) for _ in range(100)]
        connection._transport.resume_reading()
        for each in asked:
            assert sum(run.count for run in (await each.result()).runs) >= 1
        for each in late:
            await each.result()


@in_loop
async def test_a_command_for_a_node_that_is_not_there_was_not_done() -> None:
    link = Link(f"127.0.0.1:{free_port()}", identity("a"), QUICK)
    withdrawn = Asked(link, 0, Receive(queue="q"))
    withdrawn.withdraw()
    with pytest.raises(NotReached, match="cannot be reached; the command was not done") as failed:
        await ask(link, send(b"x"), shard=2)
    assert isinstance(failed.value, ShardMoved)
    assert failed.value.shard == 2
    assert withdrawn.times == 0
    await link.close()
    with pytest.raises(NotReached):
        await ask(link, send(b"x"))


@in_loop
async def test_commands_wait_for_a_node_that_starts_a_little_later() -> None:
    port, host = free_port(), make_host()
    link = Link(f"127.0.0.1:{port}", identity("a"), LinkLimits(retry_timeout_s=60, backoff_s=0.01))
    asked = [Asked(link, 0, send(b"x")) for _ in range(10)]
    await asyncio.sleep(0.03)
    server = LinkServer(host, identity("b"))
    await server.start(f"127.0.0.1:{port}")
    for each in asked:
        await each.result()
    await link.close()
    await server.close()
    await host.close()


@in_loop
async def test_commands_do_not_wait_for_a_node_that_stands_still_and_takes_connections_all_the_same() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # nobody accepts, the system does
        limits = LinkLimits(retry_timeout_s=0.2, handshake_s=30.0)
        link = Link(f"127.0.0.1:{silent.getsockname()[1]}", identity("a"), limits)
        began_s, first = time.monotonic(), Asked(link, 0, send(b"x"))
        await asyncio.sleep(0.15)
        second = Asked(link, 0, send(b"y"))
        for each in (first, second):
            with pytest.raises(NotReached):
                await asyncio.wait_for(each.result(), 5.0)
        assert time.monotonic() - began_s >= 0.35
        await link.close()


@in_loop
async def test_who_knocks_on_a_link_that_is_connected_leaves_it_as_it_is() -> None:
    """The other node ends a connection when the same process opens another one: its commands would hang for ever."""
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        waiting = node.asked(Receive(queue="q", wait_ms=LONG_MS))
        await until(lambda: node.waiting("q") == 1)
        assert await node.link.probe()
        await node.ask(send(b"x"))
        assert bodies(await asyncio.wait_for(waiting.result(), 5.0)) == [b"x"]


@pytest.mark.parametrize("turns", range(12))
@in_loop
async def test_who_knocks_while_a_link_connects_makes_one_connection_and_loses_no_command(turns: int) -> None:
    async with linked() as node:
        asked = node.asked(send(b"x"))
        for _ in range(turns):
            await asyncio.sleep(0)
        knocking = asyncio.create_task(node.link.probe())
        node.link.watch(3.0)
        assert await knocking
        assert (await asyncio.wait_for(asked.result(), 5.0)).count == 1
        await node.ask(send(b"y"))
        await asyncio.sleep(0.02)
        assert len(node.server.peer_links) == 1 and node.link.is_connected


@in_loop
async def test_commands_beyond_what_may_wait_are_refused() -> None:
    link = Link(f"127.0.0.1:{free_port()}", identity("a"), LinkLimits(outbox_max=3))
    for _ in range(3):
        Asked(link, 0, send(b"x"))
    with pytest.raises(OverLimit):
        await ask(link, send(b"x"))
    await link.close()


@in_loop
async def test_a_silent_link_is_dead_for_both() -> None:
    limits = LinkLimits(beat_s=0.02, silent_beats=3, retry_timeout_s=0.1, backoff_s=0.01)
    async with linked(limits=limits) as node:
        await node.ask(CreateQueue(name="q"))
        waiting = node.asked(Receive(queue="q", wait_ms=LONG_MS))
        connection, (peer_link,) = node.link._connection, node.server.peer_links
        assert connection is not None
        await asyncio.sleep(0.3)
        assert node.link._connection is connection, "beats keep it alive"
        for end in (connection, peer_link):
            end._transport.pause_reading()
        with pytest.raises(LinkBroken):
            await waiting.result()
        await until(lambda: peer_link not in node.server.peer_links)


@in_loop
async def test_sessions_that_are_connections_end_when_their_node_stays_away() -> None:
    async with linked(limits=LinkLimits(session_grace_s=0.05)) as node:
        await node.ask(send(b"x"))
        bound = await node.ask(OpenSession(name="connection", bound=True))
        other = await node.ask(OpenSession(name="lasting"))
        assert bodies(await node.ask(Receive(queue="q", session=bound))) == [b"x"]
        await node.link.close()
        sessions = node.host.served[0].identity.sessions
        await until(lambda: len(sessions) == 1)
        assert other in sessions
        assert bodies(await ask(node.host, Receive(queue="q", wait_ms=LONG_MS))) == [b"x"]


@in_loop
async def test_sessions_go_on_when_their_node_comes_back_but_not_when_it_is_another_process() -> None:
    async with linked(limits=LinkLimits(session_grace_s=60)) as node:
        await node.ask(OpenSession(name="connection", bound=True))
        (peer_link,) = node.server.peer_links
        peer_link.abort()
        await until(lambda: peer_link not in node.server.peer_links and node.server.peer_links)
        assert len(node.host.served[0].identity.sessions) == 1
        restarted = Link(node.link.address, identity("a"))
        await ask(restarted, ListQueues())
        await until(lambda: not node.host.served[0].identity.sessions)
        await restarted.close()


@in_loop
async def test_a_server_that_closes_writes_the_replies_that_are_there() -> None:
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        asked = [node.asked(send(b"x")) for _ in range(5)]
        await until(lambda: node.host.served[0].identity.queues["q"].messages == 5)
        await node.server.close()
        for each in asked:
            assert (await each.result()).count == 1


# -- strangers ---------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_node_with_another_secret_is_refused() -> None:
    async with linked() as node:
        for secret in (b"another", b""):
            stranger = Link(node.link.address, LinkIdentity("test", "x", secret), QUICK)
            with pytest.raises(LinkRefused, match="does not know the secret"):
                await ask(stranger, ListQueues())
            await stranger.close()
        assert node.server.refused == 2
        assert await node.ask(ListQueues()) == []


@in_loop
async def test_a_server_that_does_not_know_the_secret_is_not_trusted() -> None:
    """It lets everybody in, to hear their commands."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(introduce(FrameKind.GREETING, Greeting("test", "b", bytes(32)), VERSIONS.newest))
        await reader.readexactly(10)
        welcome = msgspec.msgpack.encode([bytes(32), 1_000, 1_000])
        writer.write(frame(FrameKind.ADMISSION, welcome))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    link = Link(f"127.0.0.1:{port}", identity("a"), QUICK)
    with pytest.raises(LinkRefused, match="does not know the cluster's secret"):
        await ask(link, send(b"secret words"))
    await link.close()
    server.close()


@in_loop
async def test_a_proof_cannot_be_used_again() -> None:
    async with linked() as node:
        host, port = node.link.address.split(":")
        proven = Introduction("test", "a", b"i", bytes(32), b"")
        old = Greeting("test", "b", bytes(32))
        heard = msgspec.structs.replace(proven, proof=client_proof(SECRET, VERSIONS.newest, old, proven))
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(introduce(FrameKind.INTRODUCTION, heard, VERSIONS.newest))
        assert b"does not know the secret" in await reader.read()
        writer.close()


@in_loop
async def test_a_node_of_another_cluster_is_refused() -> None:
    async with linked() as node:
        stranger = Link(node.link.address, LinkIdentity("other", "x", SECRET), QUICK)
        with pytest.raises(LinkRefused, match="'other'"):
            await ask(stranger, ListQueues())
        await stranger.close()


@in_loop
async def test_a_node_of_another_version_is_refused_by_the_server() -> None:
    async with linked() as node:
        host, port = node.link.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(frame(FrameKind.INTRODUCTION, MAGIC + bytes([VERSIONS.newest + 1]) + b"whatever comes then"))
        assert f"version {VERSIONS.newest + 1}".encode() in await reader.read()
        writer.close()


@in_loop
async def test_a_server_of_another_version_is_refused_by_the_node() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(FrameKind.GREETING, MAGIC + bytes([VERSIONS.newest + 1])))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    link = Link(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", identity("a"), QUICK)
    with pytest.raises(LinkRefused, match=f"version {VERSIONS.newest + 1}"):
        await ask(link, ListQueues())
    await link.close()
    server.close()


def speak(monkeypatch: pytest.MonkeyPatch, side: str, oldest: int, newest: int) -> None:
    """Have one end of every link speak other versions than this build."""
    versions = Versions(oldest, newest)
    if side == "listens":
        monkeypatch.setattr("penstock.cluster.links.server.VERSIONS", versions)
        monkeypatch.setattr(
            "penstock.cluster.links.server.read_introduction", partial(read_introduction, versions=versions)
        )
    else:
        monkeypatch.setattr(
            "penstock.cluster.links.connection.read_greeting", partial(read_greeting, versions=versions)
        )


@pytest.mark.parametrize("earlier", ["listens", "connects"])
@in_loop
async def test_nodes_speak_the_newest_version_that_both_know(monkeypatch: pytest.MonkeyPatch, earlier: str) -> None:
    speak(monkeypatch, earlier, 2, 2)
    async with linked() as node:
        await ask(node.link, send(b"one"))
        assert bodies(await ask(node.link, Receive(queue="q"))) == [b"one"]
        assert node.link._connection is not None and node.link._connection.version == 2
        with pytest.raises(InvalidRequest, match="has an earlier version of Penstock, without TallyQueues"):
            await ask(node.link, TallyQueues())


@in_loop
async def test_nodes_of_the_same_build_speak_its_version() -> None:
    async with linked() as node:
        assert await ask(node.link, TallyQueues()) == []
        assert node.link._connection is not None and node.link._connection.version == VERSIONS.newest


@pytest.mark.parametrize("newer", ["listens", "connects"])
@in_loop
async def test_without_a_common_version_both_nodes_say_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, newer: str
) -> None:
    speak(monkeypatch, newer, 7, 8)
    async with linked() as node:
        with pytest.raises(LinkRefused, match=r"speaks version .* and this one version .*: upgrade"):
            await node.link.probe()
        await asyncio.sleep(0.05)
    refused = [record.getMessage() for record in caplog.records if "was closed" in record.getMessage()]
    assert len(refused) == 1 and "upgrade the one with the lower number" in refused[0]


GARBAGE = {
    "words": b"GET / HTTP/1.1\r\n\r\n",
    "too long": struct.pack("<IB", 1_000_000, FrameKind.INTRODUCTION),
    "no length": bytes(64),
    "out of turn": frame(FrameKind.COMMANDS, b"\x92\x90\x90"),
    "a hello of nothing": frame(FrameKind.INTRODUCTION),
    "a hello of something else": frame(FrameKind.INTRODUCTION, MAGIC + bytes([VERSIONS.newest]) + b"\xff"),
}


@pytest.mark.parametrize("name", GARBAGE)
@in_loop
async def test_garbage_ends_the_connection_and_nothing_else(name: str) -> None:
    async with linked() as node:
        await node.ask(CreateQueue(name="q"))
        host, port = node.link.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(GARBAGE[name])
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await until(lambda: len(node.server.peer_links) == 1)
        assert await node.ask(ListQueues()) == ["q"]


@pytest.mark.parametrize("payload", [b"", b"\x93\x01\x02\x03", b"\x92\x91\xc0\x90"])
@in_loop
async def test_garbage_from_a_node_cuts_its_link(payload: bytes) -> None:
    async with linked(limits=LinkLimits(backoff_s=0.01)) as node:
        await node.ask(CreateQueue(name="q"))
        connection = node.link._connection
        assert connection is not None
        connection._transport.write(frame(FrameKind.COMMANDS, payload))
        await connection.gone.wait()
        assert await node.ask(ListQueues()) == ["q"]


@in_loop
async def test_who_says_nothing_is_sent_away() -> None:
    async with linked(limits=LinkLimits(handshake_s=0.05)) as node:
        host, port = node.link.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await until(lambda: not node.server.peer_links)


@in_loop
async def test_a_server_that_never_greets_is_given_up() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    limits = LinkLimits(handshake_s=0.05, retry_timeout_s=0.1, backoff_s=0.01)
    link = Link(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", identity("a"), limits)
    with pytest.raises(NotReached):
        await ask(link, ListQueues())
    await link.close()
    server.close()


@in_loop
async def test_links_beyond_the_limit_are_refused() -> None:
    async with linked(server_limits=LinkLimits(connections_max=1)) as node:
        await node.ask(ListQueues())
        other = Link(node.link.address, identity("c"), QUICK)
        with pytest.raises(LinkRefused, match="too many"):
            await ask(other, ListQueues())
        await other.close()


@in_loop
async def test_links_that_leave_the_machine_need_a_secret() -> None:
    open_identity = LinkIdentity("test", "a")
    far = Link("192.0.2.1:4170", open_identity, QUICK)
    with pytest.raises(LinkRefused, match="needs the cluster's secret"):
        await far.probe()
    with pytest.raises(NotReached):
        await ask(far, ListQueues())
    await far.close()
    host = make_host()
    with pytest.raises(InvalidSettings, match="secret"):
        await LinkServer(host, open_identity).start("0.0.0.0:0")
    server = LinkServer(host, open_identity)
    link = Link(await server.start("127.0.0.1:0"), LinkIdentity("test", "b"))
    assert await ask(link, ListQueues()) == []
    await link.close()
    await server.close()
    await host.close()


def test_the_secret_is_not_shown() -> None:
    assert "hush" not in repr(LinkIdentity("test", "a", b"hush"))


# -- the parser --------------------------------------------------------------------------------------------------------

FRAMES = st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(max_size=40)), max_size=8)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted({min(each, len(data)) for each in cuts}), len(data)]
    return [data[low:high] for low, high in pairwise(places)]


@given(FRAMES, st.lists(st.integers(0, 400), max_size=12))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    frames: list[tuple[FrameKind, bytes]], cuts: list[int]
) -> None:
    data = b"".join(part for kind, payload in frames for part in frame_parts(kind, payload))
    reader = FrameReader(40)
    found = [each for piece in cut(data, cuts) for each in reader.feed(piece)]
    assert found == frames
    assert reader._size == 0


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_are_frames_or_refused_and_little_is_kept(pieces: list[bytes]) -> None:
    reader = FrameReader(20)
    try:
        for piece in pieces:
            for kind, payload in reader.feed(piece):
                assert isinstance(kind, FrameKind)
                assert len(payload) <= 20
            assert reader._size <= 20 + 5
    except BadFrame:
        pass
