"""Forwarders: what is in a shard's outbox gets to the others, in order, once, whatever is in the way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest

from penstock.cluster.base import LinkBroken, ShardHost, ShardMoved
from penstock.cluster.ownership import forwarder as forwarder_module
from penstock.cluster.ownership.forwarder import Forwarder, Submit
from penstock.core.commands import Ack, Browse, Command, CommitWork, Receive, Send, TakeOutbox
from penstock.core.errors import StoreError
from penstock.core.queues.partition import partition_of
from penstock.server.clock import SystemClock
from penstock.server.shard import Call, Shard, ShardClosed
from penstock.server.tasks import AsyncShard, CallbackCall
from penstock.store.errors import CommitFailed
from penstock.store.memory import MemoryStore
from tests.cluster.links.linking import ENTROPY, SHARDS, ask, in_loop, linked, make_shard, until
from tests.server.stores import TroubledStore


def name_at(shard: int, stem: str = "q") -> str:
    names = (f"{stem}{number}" for number in count())
    return next(name for name in names if partition_of(name, SHARDS) == shard)


async def send_away(shard: AsyncShard, queue: str, *bodies: bytes, create: bool = True) -> None:
    """A unit of work of one shard sends to a queue of another."""
    await shard.call(CommitWork(acks=[], sends=[Send(queue=queue, bodies=list(bodies), create=create)]))


async def bodies_in(shard: AsyncShard, queue: str) -> list[bytes]:
    seen = await shard.call(Browse(queue=queue, limit=10_000))
    return [each.chunk.body(each.index) for each in seen]


def is_empty(shard: AsyncShard) -> Callable[[], bool]:
    return lambda: not shard.identity.outbox_targets()


@asynccontextmanager
async def running(shard: AsyncShard, submit: Submit) -> AsyncIterator[Forwarder]:
    forwarder = Forwarder(shard, submit, pause_s=0.001)
    forwarder.start()
    try:
        yield forwarder
    finally:
        await forwarder.stop()


@asynccontextmanager
async def hosted() -> AsyncIterator[ShardHost]:
    host = ShardHost()
    for shard in range(SHARDS):
        host.add(shard, make_shard(shard))
    try:
        yield host
    finally:
        await host.close()


class Network:
    """Between a forwarder and the shards: loses commands, or their answers, as long as it is told to."""

    def __init__(self, host: ShardHost) -> None:
        self.host = host
        self.fates: list[str] = []
        """What becomes of the next commands; all is well when there is nothing left."""
        self.commands: list[tuple[int, Command]] = []

    def submit(self, shard: int, command: Command, on_settled: Callable[[Call], None]) -> object:
        self.commands.append((shard, command))
        fate = self.fates.pop(0) if self.fates else "arrives"
        if fate == "arrives":
            return self.host.submit(shard, command, on_settled)
        if fate == "answer is lost":
            return self.host.submit(shard, command, lambda _: self._fail(command, on_settled, LinkBroken("cut")))
        if fate == "no answer":
            return self.host.submit(shard, command, lambda _: None)
        errors = {
            "moved": ShardMoved(shard),
            "closed": ShardClosed("closed"),
            "fire": StoreError("the disk is on fire"),
        }
        self._fail(command, on_settled, errors[fate])
        return None

    @staticmethod
    def _fail(command: Command, on_settled: Callable[[Call], None], error: Exception) -> None:
        call = CallbackCall(command, on_settled)
        call.error = error
        asyncio.get_running_loop().call_soon(call.settle)


@in_loop
async def test_what_comes_into_the_outbox_is_forwarded_in_order() -> None:
    async with hosted() as host, running(host.served[0], host.submit) as forwarder:
        queues = {shard: name_at(shard) for shard in (1, 2)}
        for number in range(20):
            for queue in queues.values():
                await send_away(host.served[0], queue, b"%d" % number)
        await until(is_empty(host.served[0]))
        for shard, queue in queues.items():
            assert await bodies_in(host.served[shard], queue) == [b"%d" % number for number in range(20)]
        assert forwarder.stats().forwarded == 40


@in_loop
async def test_what_is_there_already_is_forwarded_when_the_forwarder_starts() -> None:
    async with hosted() as host:
        await send_away(host.served[0], name_at(1), b"x")
        async with running(host.served[0], host.submit):
            await until(is_empty(host.served[0]))
        assert await bodies_in(host.served[1], name_at(1)) == [b"x"]


@in_loop
async def test_each_arrives_once_when_commands_and_answers_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder_module, "ANSWER_S", 0.3)
    async with hosted() as host:
        network = Network(host)
        async with running(host.served[0], network.submit) as forwarder:
            bodies = []
            for number, fate in enumerate(("answer is lost", "moved", "fire", "no answer", "arrives") * 3):
                network.fates.append(fate)
                await send_away(host.served[0], name_at(1), body := b"%d" % number)
                bodies.append(body)
                await until(is_empty(host.served[0]))
            assert await bodies_in(host.served[1], name_at(1)) == bodies
            assert forwarder.stats().failures >= 12, "more, if an answer was late"
            assert forwarder.stats().forwarded < 15, "those whose answers were lost are known to be done, and no more"


@in_loop
async def test_a_target_that_is_away_does_not_hold_up_the_others() -> None:
    async with hosted() as host:
        await host.release(1)
        async with running(host.served[0], host.submit) as forwarder:
            await send_away(host.served[0], name_at(1), b"later")
            await send_away(host.served[0], name_at(2), b"now")
            await until(lambda: list(host.served[0].identity.outbox_targets()) == [1])
            assert await bodies_in(host.served[2], name_at(2)) == [b"now"]
            await until(lambda: forwarder.stats().failures > 2)
            assert forwarder.stats().waiting == {1: 1}
            assert forwarder.stats().oldest_s >= 0
            host.add(1, make_shard(1))
            await until(is_empty(host.served[0]))
            assert await bodies_in(host.served[1], name_at(1)) == [b"later"]


@in_loop
async def test_two_forwarders_of_one_shard_do_no_harm() -> None:
    async with hosted() as host:
        network = Network(host)
        async with running(host.served[0], network.submit), running(host.served[0], network.submit):
            for number in range(30):
                await send_away(host.served[0], name_at(1), b"%d" % number)
            await until(is_empty(host.served[0]))
        assert await bodies_in(host.served[1], name_at(1)) == [b"%d" % number for number in range(30)]


@in_loop
async def test_many_entries_go_together() -> None:
    async with hosted() as host:
        for number in range(50):
            await send_away(host.served[0], name_at(1), b"%d" % number)
        network = Network(host)
        async with running(host.served[0], network.submit):
            await until(is_empty(host.served[0]))
        assert len(network.commands) == 1
        (command,) = (command for _, command in network.commands)
        assert isinstance(command, TakeOutbox)
        assert len(command.entries) == 50


@in_loop
async def test_a_forwarder_that_was_stopped_forwards_nothing_and_the_next_one_goes_on() -> None:
    async with hosted() as host:
        network = Network(host)
        async with running(host.served[0], network.submit):
            await send_away(host.served[0], name_at(1), b"a")
            await until(is_empty(host.served[0]))
        await send_away(host.served[0], name_at(1), b"b")
        assert len(network.commands) == 1
        async with running(host.served[0], network.submit):
            await until(is_empty(host.served[0]))
        assert await bodies_in(host.served[1], name_at(1)) == [b"a", b"b"]


@in_loop
async def test_a_forwarder_ends_when_its_shard_is_released() -> None:
    async with hosted() as host:
        shard = host.served[0]
        network = Network(host)
        network.fates = ["moved"] * 3
        async with running(shard, network.submit) as forwarder:
            await send_away(shard, name_at(1), b"a")
            await host.release(0)
            await until(lambda: not forwarder._tasks)


@in_loop
async def test_a_target_that_closes_does_not_end_the_forwarder() -> None:
    async with hosted() as host:
        network = Network(host)
        network.fates = ["closed"]
        async with running(host.served[0], network.submit):
            await send_away(host.served[0], name_at(1), b"a")
            await until(is_empty(host.served[0]))


@in_loop
async def test_a_shard_that_is_opened_again_goes_on_with_its_outbox() -> None:
    async with hosted() as host:
        store = MemoryStore()
        first = AsyncShard(Shard(lambda: store, SystemClock(), lambda: ENTROPY, 0, SHARDS))
        await send_away(first, name_at(1), b"a")
        await first.close()
        again = AsyncShard(Shard(lambda: store, SystemClock(), lambda: ENTROPY, 0, SHARDS))
        async with running(again, host.submit):
            await until(is_empty(again))
        await again.close()
        assert await bodies_in(host.served[1], name_at(1)) == [b"a"]


@in_loop
async def test_a_target_whose_store_was_lost_gets_what_is_left_and_the_log_says_so() -> None:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    forwarder_module.log.addHandler(handler)
    try:
        async with hosted() as host, running(host.served[0], host.submit):
            await send_away(host.served[0], name_at(1), b"lost")
            await until(is_empty(host.served[0]))
            await host.release(1)
            host.add(1, make_shard(1))
            await send_away(host.served[0], name_at(1), b"left")
            await until(is_empty(host.served[0]))
            assert await bodies_in(host.served[1], name_at(1)) == [b"left"]
    finally:
        forwarder_module.log.removeHandler(handler)
    assert any("its store was lost" in each for each in told)


@in_loop
async def test_what_a_queue_does_not_take_is_counted() -> None:
    async with hosted() as host, running(host.served[0], host.submit) as forwarder:
        others = [running(host.served[shard], host.submit) for shard in (1, 2)]
        async with others[0], others[1]:
            await send_away(host.served[0], name_at(1), b"x", create=False)
            await until(is_empty(host.served[0]))
            assert forwarder.stats().refused == 1
            refused = f"{name_at(1)}.refused"
            home = host.served[partition_of(refused, SHARDS)]
            await until(lambda: refused in home.identity.queues)
            assert await bodies_in(home, refused) == [b"x"]


@in_loop
async def test_an_outbox_is_forwarded_over_a_link() -> None:
    async with linked() as there:
        shard = make_shard(0)
        async with running(shard, there.link.submit):
            await send_away(shard, name_at(1), *(b"%d" % number for number in range(1_000)))
            await until(is_empty(shard))
        found = await ask(there.link, Browse(queue=name_at(1), limit=2_000), 1)
        assert [each.chunk.body(each.index) for each in found] == [b"%d" % number for number in range(1_000)]
        await shard.close()


def shard_over(store: TroubledStore, number: int) -> AsyncShard:
    return AsyncShard(Shard(store.open, SystemClock(), lambda: ENTROPY, number, SHARDS))


@pytest.mark.parametrize("kept", [True, False])
@in_loop
async def test_a_commit_of_the_target_that_fails_is_tried_again_and_done_once(kept: bool) -> None:
    host, store = ShardHost(), TroubledStore()
    host.add(0, make_shard(0))
    host.add(1, shard_over(store, 1))
    async with running(host.served[0], host.submit) as forwarder:
        store.fail_next(kept=kept)
        await send_away(host.served[0], name_at(1), b"x")
        await until(is_empty(host.served[0]))
        assert forwarder.stats().failures == 1
        assert await bodies_in(host.served[1], name_at(1)) == [b"x"]
    await host.close()


@pytest.mark.parametrize("kept", [True, False])
@in_loop
async def test_what_a_failed_commit_has_written_after_all_is_forwarded(kept: bool) -> None:
    host, store = ShardHost(), TroubledStore()
    host.add(0, shard_over(store, 0))
    host.add(1, make_shard(1))
    async with running(host.served[0], host.submit):
        store.fail_next(kept=kept)
        with pytest.raises(CommitFailed):
            await send_away(host.served[0], name_at(1), b"perhaps")
        await send_away(host.served[0], name_at(1), b"surely")
        await until(is_empty(host.served[0]))
        expected = [b"perhaps", b"surely"] if kept else [b"surely"]
        assert await bodies_in(host.served[1], name_at(1)) == expected
    await host.close()


@in_loop
async def test_a_target_whose_disk_is_full_takes_the_outbox_when_there_is_space() -> None:
    host, store = ShardHost(), TroubledStore()
    host.add(0, make_shard(0))
    host.add(1, shard_over(store, 1))
    own = name_at(1, "own")
    await ask(host, Send(queue=own, bodies=[b"own"]), 1)
    async with running(host.served[0], host.submit) as forwarder:
        store.full = True
        await send_away(host.served[0], name_at(1), b"x")
        await until(lambda: forwarder.stats().failures > 0)
        delivery = await ask(host, Receive(queue=own), 1)
        spans = [span for run in delivery.runs for span in run.spans()]
        assert (await ask(host, Ack(queue=own, spans=spans), 1)).count == 1, "acknowledgements flow"
        store.full = False
        await until(is_empty(host.served[0]))
        assert await bodies_in(host.served[1], name_at(1)) == [b"x"]
    await host.close()
