"""Nodes that refuse what is another node's, and clients that take it there: at once, in order, and once."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.client.connecting import connect_async
from penstock.client.remote import routed as routed_module
from penstock.client.remote.address import Address, Options
from penstock.client.remote.link import Link
from penstock.client.remote.partitions import Partitions, fetch_partitions
from penstock.client.remote.websocket import connect
from penstock.core.commands import QueueStats, Send
from penstock.core.errors import NotSent, PenstockError
from penstock.server.partition_map import PartitionMap
from penstock.wire.answers import Answer, Kind, unpack_moved
from penstock.wire.requests import Route, outgoing
from tests.cluster.linking import in_loop
from tests.cluster.routing import ServedPair, goes_to, routed, served_pair, until

GROUPS = ("x", "y")
IN_FLIGHT = 30


def _refused(pair: ServedPair, node: str) -> int:
    return sum(count for (_, outcome), count in pair.outcomes(node).items() if outcome == "PartitionMoved")


def _goes_to(ps: Any, queue: str, port: int) -> bool:
    return routed(ps).owner(queue).port == port


async def _drained(ps: Any, queue: str) -> list[bytes]:
    found: list[bytes] = []
    while batch := await ps.queue(queue).receive_batch(max=100, wait=0):
        found += batch.bodies
        await batch.ack()
    return found


@in_loop
async def test_a_command_at_a_former_owner_is_refused_and_the_client_takes_it_to_the_new_one(tmp_path: Path) -> None:
    """The map is asked for because of that alone: the next interval is 30 s away."""
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            await goes_to(ps, pair, queue, "b")
            refreshes = routed(ps).counts.refreshes
            await pair.move_queue(queue)
            sent = await ps.queue(queue).send(b"1")
            assert routed(ps).owner(queue).port == pair.proxies["a"].port
            assert _refused(pair, "b") == 1
            counts = routed(ps).counts
            assert (counts.refreshes, counts.refusals, counts.redirects, counts.forwards) == (refreshes + 1, 1, 1, 0)
            assert sent.sequence == 0 and await _drained(ps, queue) == [b"1"]


@in_loop
async def test_commands_that_are_under_way_when_a_queue_moves_are_done_once_and_in_order(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            await goes_to(ps, pair, queue, "b")
            sent: list[asyncio.Task[Any]] = []
            is_over = False

            async def send() -> None:
                while not is_over:
                    for group in (*GROUPS, None):
                        sent.append(asyncio.create_task(ps.queue(queue).send(b"%d" % len(sent), group=group)))
                    await asyncio.wait((sent[max(0, len(sent) - IN_FLIGHT)],))

            sending = asyncio.create_task(send())
            for node in "abab":
                await pair.move_queue(queue)
                await until(partial(_goes_to, ps, queue, pair.proxies[node].port), f"node {node}")
            is_over = True
            await sending
            sequences = [reply.sequence for reply in await asyncio.gather(*sent)]
            assert sequences == sorted(sequences)
            assert routed(ps).counts.redirects >= 4
            assert sorted(await _drained(ps, queue), key=int) == [b"%d" % number for number in range(len(sent))]


@in_loop
async def test_a_receive_that_is_refused_waits_at_the_new_owner(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            await goes_to(ps, pair, queue, "b")
            await pair.move_queue(queue)
            waiting = asyncio.create_task(ps.queue(queue).receive(max=1, wait=50))
            await until(lambda: routed(ps).owner(queue).port == pair.proxies["a"].port, "the new owner")
            await until(lambda: pair.receivers(queue), "a wait")
            await ps.queue(queue).send(b"1")
            (message,) = await waiting
            assert bytes(message.body) == b"1"


@in_loop
async def test_without_a_newer_map_the_former_owner_is_asked_to_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            await goes_to(ps, pair, queue, "b")

            async def nobody_tells(*_: Any) -> Partitions:
                raise NotSent("no map today")

            monkeypatch.setattr(routed_module, "fetch_partitions", nobody_tells)
            await pair.move_queue(queue)
            await asyncio.gather(*(ps.queue(queue).send(b"%d" % number, group="g") for number in range(5)))
            assert routed(ps).owner(queue).port == pair.proxies["b"].port
            assert (routed(ps).counts.forwards, routed(ps).counts.redirects) == (1, 0)
            assert await _drained(ps, queue) == [b"%d" % number for number in range(5)]


class _Liar:
    """A node that always says that queues are the other node's, and always by a newer map."""

    versions = 1_000

    def __init__(self, pair: ServedPair, own: str) -> None:
        self._pair = pair
        self._own = own

    def current(self) -> PartitionMap:
        _Liar.versions += 1
        other = "b" if self._own == "a" else "a"
        urls = {name: f"http://127.0.0.1:{proxy.port}" for name, proxy in self._pair.proxies.items()}
        return PartitionMap(_Liar.versions, self._own, (other,) * 4, urls)


@in_loop
async def test_nodes_that_send_a_client_back_and_forth_are_asked_to_forward_in_the_end(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            await goes_to(ps, pair, queue, "b")
            for name in "ab":
                pair.services[name].partition_maps = _Liar(pair, name)
            await asyncio.gather(*(ps.queue(queue).send(b"%d" % number, group="g") for number in range(5)))
            assert await _drained(ps, queue) == [b"%d" % number for number in range(5)]
            assert _refused(pair, "a") and _refused(pair, "b")


@in_loop
async def test_a_connection_that_is_lost_while_its_commands_are_refused_loses_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            await goes_to(ps, pair, queue, "b")
            told = asyncio.Event()

            async def tells_late(address: Address, options: Options) -> Partitions:
                await told.wait()
                return await fetch_partitions(address, options)

            monkeypatch.setattr(routed_module, "fetch_partitions", tells_late)
            await pair.move_queue(queue)
            sending = [asyncio.create_task(ps.queue(queue).send(b"%d" % each, group="g")) for each in range(5)]
            await until(lambda: _refused(pair, "b"), "a refusal")
            await pair.proxies["b"].stop()
            told.set()
            sequences = [sent.sequence for sent in await asyncio.gather(*sending)]
            assert sequences == sorted(sequences)
            assert await _drained(ps, queue) == [b"%d" % number for number in range(5)]


class _Hearer:
    """Hears the answers of one link."""

    old_session = 0

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}

    def answered(self, now_ms: int, answers: list[Answer]) -> None:
        self.answers.update({answer[0]: answer for answer in answers})

    def refused(self, request: int, error: PenstockError) -> None:
        raise AssertionError(error)

    def writable(self) -> None: ...

    def lost(self, link: Link, error: Exception) -> None: ...

    async def answer(self, number: int) -> Answer:
        await until(lambda: number in self.answers, f"answer {number}")
        return self.answers[number]


def _send(queue: str, body: bytes) -> Any:
    return outgoing(Send(queue=queue, bodies=[body]))


@in_loop
async def test_what_was_sent_before_a_refusal_was_heard_is_refused_also_if_the_queue_is_back(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        queue, hearer = pair.queue_of("b"), _Hearer()
        link = await connect(Address("127.0.0.1", pair.proxies["b"].port, False), Options(), hearer)
        try:
            first = pair.maps["b"].current().version
            link.send([(1, Route(version=first)), (2, _send(queue, b"1"))])
            assert (await hearer.answer(1))[1] == (await hearer.answer(2))[1] == Kind.REPLY
            await pair.move_queue(queue)
            link.send([(3, _send(queue, b"2"))])
            _, kind, value = await hearer.answer(3)
            moved = unpack_moved(value)
            assert kind == Kind.MOVED and moved.owner == "a" and moved.url.endswith(str(pair.proxies["a"].port))
            assert moved.map_version > first
            await pair.move_queue(queue)
            link.send([(4, _send(queue, b"3"))])
            assert (await hearer.answer(4))[1] == Kind.MOVED, "it would overtake the one before"
            link.send([(5, Route(version=moved.map_version)), (6, _send(queue, b"2")), (7, _send(queue, b"3"))])
            assert (await hearer.answer(6))[1] == (await hearer.answer(7))[1] == Kind.REPLY
            link.send([(8, Route()), (9, QueueStats(name=pair.queue_of("a")))])
            assert (await hearer.answer(9))[1] == Kind.ERROR, "forwarded: there is no such queue"
        finally:
            await link.close()
        assert pair.done("b")["Send"] == 5
