"""Nodes that refuse what is another node's, and clients that take it there: at once, in order, and once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.client.connecting import connect_async
from penstock.client.remote import routed as routed_module
from penstock.client.remote.address import Address, Options, TransportName
from penstock.client.remote.polling import connect_poll
from penstock.client.remote.request import Link
from penstock.client.remote.routed import Partitions, fetch_partitions
from penstock.client.remote.websocket import connect
from penstock.cluster.routing.placement import home_of
from penstock.core.commands import QueueStats, Receive, Send
from penstock.core.errors import NotSent, OutcomeUnknown, PenstockError, StaleReceipt
from penstock.server.partition_map import PartitionMap
from penstock.wire.answers import Answer, Kind, unpack_moved
from penstock.wire.requests import Route, outgoing
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.routing import ServedPair, goes_to, routed, served_pair, until
from tests.cluster.routing.test_router_pair import SHARDS

GROUPS = ("x", "y")
IN_FLIGHT = 30
TRANSPORTS = ("websocket", "long_poll", "poll")
MESSAGES = 20
"""At least so many go through each owner of a queue."""


@pytest.fixture
def rare_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map is asked for at the beginning, and after refusals: whenever there is one."""
    monkeypatch.setattr(routed_module, "REFRESH_S", 3_600.0)
    monkeypatch.setattr(routed_module, "_CATCH_UP_S", 0.0)


Direct = Callable[..., AbstractAsyncContextManager[tuple[ServedPair, Any, str]]]


@pytest.fixture
def direct(tmp_path: Path) -> Direct:
    """Two nodes, a client that came in at a, and a queue of b's whose commands it takes there: `direct(transport)`."""

    @asynccontextmanager
    async def connected(
        transport: TransportName | None = None, **settings: Any
    ) -> AsyncIterator[tuple[ServedPair, Any, str]]:
        async with served_pair(tmp_path) as pair:
            queue = pair.queue_of("b")
            async with connect_async(pair.url("a"), routing="direct", transport=transport) as ps:
                await ps.create_queue(queue, **settings)
                await goes_to(ps, pair, queue, "b")
                yield pair, ps, queue

    return connected


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


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_loop
async def test_a_command_at_a_former_owner_is_refused_and_the_client_takes_it_to_the_new_one(
    direct: Direct, transport: TransportName
) -> None:
    """The map is asked for because of that alone: the next interval is 30 s away."""
    async with direct(transport) as (pair, ps, queue):
        refreshes = routed(ps).counts.refreshes
        await pair.move_queue(queue)
        sent = await ps.queue(queue).send(b"1")
        assert routed(ps).owner(queue).port == pair.proxies["a"].port
        assert _refused(pair, "b") == 1
        counts = routed(ps).counts
        assert (counts.refreshes, counts.refusals, counts.redirects, counts.forwards) == (refreshes + 1, 1, 1, 0)
        assert sent.sequence == 0 and await _drained(ps, queue) == [b"1"]
        assert "Send" not in pair.forwarded("b")


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_loop
async def test_commands_that_are_under_way_when_a_queue_moves_are_done_once_and_in_order(
    direct: Direct, monkeypatch: pytest.MonkeyPatch, transport: TransportName
) -> None:
    """Who polls has no order between requests, but between commands of one turn of the loop."""
    monkeypatch.setattr(routed_module, "REFRESH_S", 3_600.0)
    async with direct(transport) as (pair, ps, queue):
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
        turn = len(sequences) if transport == "websocket" else len(GROUPS) + 1
        for begin in range(0, len(sequences), turn):
            assert sequences[begin : begin + turn] == sorted(sequences[begin : begin + turn])
        counts = routed(ps).counts
        assert counts.redirects + counts.forwards >= 4
        assert sorted(await _drained(ps, queue), key=int) == [b"%d" % number for number in range(len(sent))]


@in_loop
async def test_a_receive_that_is_refused_waits_at_the_new_owner(direct: Direct) -> None:
    async with direct() as (pair, ps, queue):
        await pair.move_queue(queue)
        waiting = asyncio.create_task(ps.queue(queue).receive(max=1, wait=50))
        await until(lambda: routed(ps).owner(queue).port == pair.proxies["a"].port, "the new owner")
        await until(lambda: pair.receivers(queue), "a wait")
        await ps.queue(queue).send(b"1")
        (message,) = await waiting
        assert bytes(message.body) == b"1"


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_loop
async def test_who_sends_and_receives_goes_along_with_a_queue_and_is_hardly_ever_forwarded(
    direct: Direct, rare_maps: None, transport: TransportName
) -> None:
    """All that may be forwarded is what a node had taken when the shard left it: of each caller one command."""
    async with direct(transport) as (pair, ps, queue):
        before = pair.forwarded("a") + pair.forwarded("b")
        sequences: list[int] = []
        done: list[bytes] = []
        is_over = False

        async def send() -> None:
            while not is_over:
                sequences.append((await ps.queue(queue).send(b"%d" % len(sequences))).sequence)

        async def work() -> None:
            while not is_over or len(done) < len(sequences):
                for message in await ps.queue(queue).receive(max=1, wait=50):
                    try:
                        await message.ack()
                        done.append(bytes(message.body))
                    except StaleReceipt:  # its lease ended when the shard moved: it comes again
                        continue

        callers = [asyncio.create_task(each()) for each in (send, work)]
        for node in "abab":
            await pair.move_queue(queue)
            await until(partial(_goes_to, ps, queue, pair.proxies[node].port), f"node {node}")
            sent_min, done_min = len(sequences) + MESSAGES, len(done) + MESSAGES
            await until(partial(_have, (sequences, sent_min), (done, done_min)), f"messages at {node}")
        is_over = True
        await asyncio.gather(*callers)
        assert sequences == sorted(sequences)
        assert sorted(done, key=int) == [b"%d" % number for number in range(len(sequences))]
        forwarded = pair.forwarded("a") + pair.forwarded("b") - before
        assert forwarded["Send"] <= 4 and forwarded["Receive"] + forwarded["Ack"] <= 4, forwarded
        assert _refused(pair, "a") >= 2 and _refused(pair, "b") >= 2
        assert routed(ps).counts.forwards == 0


def _have(*wanted: tuple[list[Any], int]) -> bool:
    return all(len(found) >= count for found, count in wanted)


@in_loop
async def test_a_receive_that_asks_again_and_again_goes_on_at_the_new_owner(direct: Direct, rare_maps: None) -> None:
    """By plain poll. Nothing else need be refused for it."""
    async with direct("poll") as (pair, ps, queue):
        waiting = asyncio.create_task(ps.queue(queue).receive(max=1, wait=50))
        await until(lambda: pair.done("b")["Receive"], "a question")
        await pair.move_queue(queue)
        await until(lambda: pair.done("a")["Receive"], "a question at the new owner")
        async with connect_async(pair.url("a")) as other:
            await other.queue(queue).send(b"1")
        assert [bytes(message.body) for message in await waiting] == [b"1"]
        assert "Receive" not in pair.forwarded("b")


@in_loop
async def test_a_receive_that_was_refused_waits_no_longer_than_its_queue_says(direct: Direct, rare_maps: None) -> None:
    async with direct("poll", receive_wait=15) as (pair, ps, queue):
        waiting = asyncio.create_task(ps.queue(queue).receive(max=1))
        await until(lambda: pair.done("b")["Receive"], "a question")
        await pair.move_queue(queue)
        await until(lambda: pair.done("a")["Receive"] or waiting.done(), "a question at the new owner")
        owner = routed(ps)._members[routed(ps).owner(queue)]
        left_ms = [each.command.wait_ms for each in owner._in_flight.values() if isinstance(each.command, Receive)]
        assert all(each is not None and each <= 15_000 for each in left_ms), left_ms
        assert left_ms or waiting.done()
        waiting.cancel()


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_loop
async def test_units_of_work_and_sends_with_a_dedup_id_that_were_refused_are_done_once(
    tmp_path: Path, rare_maps: None, transport: TransportName
) -> None:
    async with served_pair(tmp_path) as pair:
        source, target = pair.queue_of("b"), pair.queue_of("a")
        async with connect_async(pair.url("a"), routing="direct", transport=transport) as ps:
            await ps.create_queue(source, kind="fifo")
            await ps.create_queue(target)
            await goes_to(ps, pair, source, "b")
            await pair.move_queue(source)
            sent = await ps.queue(source).send(b"1", group="g", dedup_id="first")
            assert _refused(pair, "b") == 1 and not sent.duplicate
            await goes_to(ps, pair, source, "a")
            await pair.move_queue(source)
            assert (await ps.queue(source).send(b"1", group="g", dedup_id="first")).duplicate
            await goes_to(ps, pair, source, "b")
            async with ps.unit_of_work() as work:
                work.put(source, b"2", group="g", dedup_id="second")
                work.put(target, b"two")
                await pair.move_queue(source)
                refused = _refused(pair, "b")
                await work.commit()
                assert _refused(pair, "b") == refused + 1
            async with ps.unit_of_work() as work:
                await pair.move_queue(source)
                taken = await work.take(source)
                assert taken is not None and bytes(taken.body) == b"1"
                work.put(target, b"one")
                await work.commit()
            found: list[Any] = []
            while len(found) < 2:
                batch = await ps.queue(target).receive_batch(max=10, wait=50)
                found += batch.bodies
                await batch.ack()
            assert sorted(found) == [b"one", b"two"]
            assert await _drained(ps, source) == [b"2"] and await _drained(ps, target) == []


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_loop
async def test_a_listener_whose_acknowledgement_is_refused_follows_its_queue(
    direct: Direct, rare_maps: None, transport: TransportName
) -> None:
    async with direct(transport) as (pair, ps, queue), connect_async(pair.url("a")) as other:
        heard: list[bytes] = []

        async def handle(message: Any) -> None:
            heard.append(bytes(message.body))

        async with await ps.listen(queue, handle, workers=4):
            sent = 0
            for node in "bab":
                if pair.owner_of(queue) != node:
                    await pair.move_queue(queue)
                for _ in range(MESSAGES):
                    await other.queue(queue).send(b"%d" % sent)
                    sent += 1
                await until(partial(_have, (heard, sent)), f"all messages at {node}")
                await until(partial(pair.is_empty, queue), "all acks")
                await until(partial(_goes_to, ps, queue, pair.proxies[node].port), f"node {node}")
        assert sorted(heard, key=int) == [b"%d" % number for number in range(sent)]


@pytest.mark.parametrize("transport", TRANSPORTS)
@in_loop
async def test_a_node_forwards_while_the_map_must_not_be_asked_for_again(
    direct: Direct, monkeypatch: pytest.MonkeyPatch, transport: TransportName
) -> None:
    monkeypatch.setattr(routed_module, "REFRESH_S", 3_600.0)
    monkeypatch.setattr(routed_module, "_CATCH_UP_S", 3_600.0)
    async with direct(transport) as (pair, ps, queue):
        refreshes = routed(ps).counts.refreshes
        for number in range(2):
            await pair.move_queue(queue)
            await asyncio.gather(*(ps.queue(queue).send(b"%d" % (5 * number + each)) for each in range(5)))
        counts = routed(ps).counts
        assert (counts.refreshes, counts.redirects, counts.forwards) == (refreshes + 1, 1, 1)
        assert _goes_to(ps, queue, pair.proxies["a"].port) and pair.owner_of(queue) == "b"
        assert await _drained(ps, queue) == [b"%d" % number for number in range(10)]


@in_loop
async def test_the_map_is_asked_for_as_soon_as_it_may_be_again(direct: Direct, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not anything else is refused until then."""
    monkeypatch.setattr(routed_module, "REFRESH_S", 3_600.0)
    async with direct() as (pair, ps, queue):
        refreshes = routed(ps).counts.refreshes
        for number in range(2):
            await pair.move_queue(queue)
            await ps.queue(queue).send(b"%d" % number)
        await until(lambda: routed(ps).counts.refreshes == refreshes + 2, "the map")
        await ps.queue(queue).send(b"2")
        assert _goes_to(ps, queue, pair.proxies["b"].port)
        assert await _drained(ps, queue) == [b"0", b"1", b"2"]


@in_loop
async def test_a_node_may_refuse_again_when_something_was_forwarded_after_too_many_refusals(
    direct: Direct, rare_maps: None
) -> None:
    """Else a queue that moves a few times in a moment is forwarded from then on, until the next map."""
    async with direct() as (pair, ps, queue):
        routed(ps)._lanes[queue].tries = routed_module._TRIES_MAX
        await pair.move_queue(queue)
        await ps.queue(queue).send(b"1")
        assert routed(ps)._lanes[queue].strict_version == 0
        await ps.queue(queue).send(b"2")
        await pair.move_queue(queue)
        await ps.queue(queue).send(b"3")
        assert _refused(pair, "a") == 1 and "Send" not in pair.forwarded("a")
        assert await _drained(ps, queue) == [b"1", b"2", b"3"]


@in_loop
async def test_a_map_that_is_older_than_a_refusal_when_it_comes_is_asked_for_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rare_maps: None
) -> None:
    async with served_pair(tmp_path) as pair:
        one, two = pair.queue_of("b"), next(pair.queue_of("b", each) for each in range(9) if not _is_beside(pair, each))
        async with connect_async(pair.url("a"), routing="direct") as ps:
            for queue in (one, two):
                await ps.create_queue(queue)
                await goes_to(ps, pair, queue, "b")
            fetched, told = asyncio.Event(), asyncio.Event()

            async def tells_late(address: Address, options: Options) -> Partitions:
                found = await fetch_partitions(address, options)
                fetched.set()
                await told.wait()
                return found

            monkeypatch.setattr(routed_module, "fetch_partitions", tells_late)
            await pair.move_queue(one)
            sending = [asyncio.create_task(ps.queue(one).send(b"1"))]
            await fetched.wait()
            await pair.move_queue(two)
            sending.append(asyncio.create_task(ps.queue(two).send(b"2")))
            await until(lambda: _refused(pair, "b") == 2, "the second refusal")
            await until(lambda: routed(ps)._lanes[two].refused, "its arrival")
            told.set()
            await asyncio.gather(*sending)
            assert _goes_to(ps, one, pair.proxies["a"].port) and _goes_to(ps, two, pair.proxies["a"].port)
            assert routed(ps).counts.forwards == 0 and "Send" not in pair.forwarded("b")


def _is_beside(pair: ServedPair, number: int) -> bool:
    """Whether a queue of node b is in the shard of that node's first one."""
    return home_of(pair.queue_of("b", number), SHARDS) == home_of(pair.queue_of("b"), SHARDS)


@in_loop
async def test_without_a_newer_map_the_former_owner_is_asked_to_forward(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct() as (pair, ps, queue):

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
async def test_nodes_that_send_a_client_back_and_forth_are_asked_to_forward_in_the_end(direct: Direct) -> None:
    async with direct() as (pair, ps, queue):
        for name in "ab":
            pair.services[name].partition_maps = _Liar(pair, name)
        await asyncio.gather(*(ps.queue(queue).send(b"%d" % number, group="g") for number in range(5)))
        assert await _drained(ps, queue) == [b"%d" % number for number in range(5)]
        assert _refused(pair, "a") and _refused(pair, "b")


@in_loop
async def test_a_connection_that_is_lost_while_its_commands_are_refused_loses_none_of_them(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct() as (pair, ps, queue):
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


@pytest.mark.parametrize(("has_left_before", "error"), [(False, NotSent), (True, OutcomeUnknown)])
@in_loop
async def test_what_was_refused_and_had_left_before_may_have_been_done_when_the_client_closes(
    direct: Direct, monkeypatch: pytest.MonkeyPatch, has_left_before: bool, error: type[PenstockError]
) -> None:
    async with direct() as (pair, ps, queue):

        async def never_tells(address: Address, options: Options) -> Partitions:
            await asyncio.Event().wait()
            raise AssertionError("nobody waits any more")

        monkeypatch.setattr(routed_module, "fetch_partitions", never_tells)
        await pair.move_queue(queue)
        sending = asyncio.create_task(ps.queue(queue).send(b"1"))
        lane = routed(ps)._lanes[queue]
        await until(lambda: lane.refused, "a refusal")
        lane.refused[0].outstanding.repeated = has_left_before  # through a connection that was lost
        await ps.close()
        with pytest.raises(error):
            await sending


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
        queue, push_target = pair.queue_of("b"), _Hearer()
        link = await connect(Address("127.0.0.1", pair.proxies["b"].port, False), Options(), push_target)
        try:
            first = pair.maps["b"].current().version
            link.send([(1, Route(version=first)), (2, _send(queue, b"1"))])
            assert (await push_target.answer(1))[1] == (await push_target.answer(2))[1] == Kind.REPLY
            await pair.move_queue(queue)
            link.send([(3, _send(queue, b"2"))])
            _, kind, value = await push_target.answer(3)
            moved = unpack_moved(value)
            assert kind == Kind.MOVED and moved.owner == "a" and moved.url.endswith(str(pair.proxies["a"].port))
            assert moved.map_version > first
            await pair.move_queue(queue)
            link.send([(4, _send(queue, b"3"))])
            assert (await push_target.answer(4))[1] == Kind.MOVED, "it would overtake the one before"
            link.send([(5, Route(version=moved.map_version)), (6, _send(queue, b"2")), (7, _send(queue, b"3"))])
            assert (await push_target.answer(6))[1] == (await push_target.answer(7))[1] == Kind.REPLY
            link.send([(8, Route()), (9, QueueStats(name=pair.queue_of("a")))])
            assert (await push_target.answer(9))[1] == Kind.ERROR, "forwarded: there is no such queue"
        finally:
            await link.close()
        assert pair.done("b")["Send"] == 5


@in_loop
async def test_who_polls_says_in_every_request_by_which_map_it_comes(tmp_path: Path) -> None:
    """Also where a frame is too large for one request; and receives that wait have requests of their own."""
    async with served_pair(tmp_path) as pair:
        queue, push_target = pair.queue_of("b"), _Hearer()
        link = await connect_poll(Address("127.0.0.1", pair.proxies["b"].port, False), Options(), push_target)
        try:
            version = pair.maps["b"].current().version
            await pair.move_queue(queue)
            link.welcome.limits.frame_bytes_max = 400
            strict = [(number, _send(queue, b"x" * 100)) for number in range(2, 12)]
            waiting = (12, Receive(queue=queue, wait_ms=50_000))
            freely = [(14, _send(queue, b"1")), (15, Receive(queue=queue, wait_ms=50_000))]
            link.send([(1, Route(version=version)), *strict, waiting, (13, Route()), *freely])
            for number, _ in [*strict, waiting]:
                assert (await push_target.answer(number))[1] == Kind.MOVED
            for number, _ in freely:
                assert (await push_target.answer(number))[1] == Kind.REPLY
        finally:
            await link.close()
        assert pair.forwarded("b")["Send"] == 1
