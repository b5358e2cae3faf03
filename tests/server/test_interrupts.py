"""Ctrl-C and cancellation: whoever leaves takes no message along, and leaves nobody hanging."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import signal
import threading
import time
from typing import Any

import pytest

import penstock
from penstock.client.aio.penstock import AsyncPenstock
from penstock.server.shard import Shard
from penstock.server.tasks import AsyncShard
from tests.client.adapter import ENTROPY, World
from tests.clock import ManualClock
from tests.server.stores import Gate, TroubledStore


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Any:
    """A process that was started in the background ignores Ctrl-C from birth; these tests are about hearing it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def no_collection() -> Any:
    """An interrupt that is raised in a finalizer of other tests' garbage would be swallowed there, and reported."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def threads(store: TroubledStore) -> Any:
    world = World(store.open, tasks=False)
    yield world
    world.close()


def test_an_interrupted_wait_takes_no_message_along(threads: World) -> None:
    orders = threads.ps.create_queue("orders")

    def interrupt() -> None:
        threads.wait_for_receivers("orders")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        orders.receive(wait=20)
    interrupter.join()
    assert orders.stats().channels["main"].waiting_receivers == 0
    orders.send(b"x")
    assert orders.receive().attempts == 1


def test_an_interrupt_during_a_commit_is_raised_and_the_shard_goes_on(threads: World, store: TroubledStore) -> None:
    orders = threads.ps.create_queue("orders")
    store.fail_next(kept=True, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        orders.send(b"kept or not")
    orders.send(b"after")
    assert [message.body for message in orders.receive(9)] == [b"kept or not", b"after"]
    assert store.opened == 2


def test_an_interrupted_leader_leaves_no_follower_hanging(threads: World, store: TroubledStore) -> None:
    orders = threads.ps.create_queue("orders")
    gate = Gate()
    store.on_commit = gate.hold
    store.fail_next(kept=True)
    store.fail_next(kept=False, error=KeyboardInterrupt())
    outcomes: list[str] = []

    def send(body: bytes) -> None:
        try:
            orders.send(body)
            outcomes.append("sent")
        except BaseException as error:
            outcomes.append(type(error).__name__)

    senders = [threading.Thread(target=send, args=(b"%d" % number,)) for number in range(6)]
    senders[0].start()
    assert gate.reached.wait(10)
    for sender in senders[1:]:
        sender.start()
    while len(threads._driver._inbox) < 5:
        threading.Event().wait(0.001)
    gate.open()
    for sender in senders:
        sender.join(10)
        assert not sender.is_alive()
    assert sorted(outcomes) == ["CommitFailed"] * 5 + ["KeyboardInterrupt"]
    orders.send(b"after")


def test_a_call_from_inside_a_step_of_the_same_thread_is_refused_and_does_not_hang(
    threads: World, store: TroubledStore
) -> None:
    orders = threads.ps.create_queue("orders")
    refused: list[str] = []

    def handler(_: Any) -> None:
        try:
            orders.send(b"from a signal handler")
        except RuntimeError as error:
            refused.append(str(error))

    store.on_commit = handler
    orders.send(b"x")
    assert len(refused) == 1 and "signal handler" in refused[0]


def run_with_tasks(store: TroubledStore, scenario: Any, *, commit_in_thread: bool = False) -> None:
    async def run() -> None:
        shard = AsyncShard(Shard(store.open, ManualClock(), lambda: ENTROPY), commit_in_thread=commit_in_thread)
        async with AsyncPenstock(shard) as ps:
            await asyncio.wait_for(scenario(ps), 20)

    asyncio.run(run())


async def until_waiting(orders: penstock.AsyncQueue, count: int) -> None:
    while (await orders.stats()).channels["main"].waiting_receivers != count:
        await asyncio.sleep(0)


@pytest.mark.parametrize("commit_in_thread", [False, True])
def test_a_cancelled_receive_waits_no_longer(store: TroubledStore, commit_in_thread: bool) -> None:
    async def scenario(ps: penstock.AsyncPenstock) -> None:
        orders = await ps.create_queue("orders")
        receiver = asyncio.create_task(orders.receive(wait=20))
        await until_waiting(orders, 1)
        receiver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiver
        await until_waiting(orders, 0)
        await orders.send(b"x")
        message = await orders.receive()
        assert message is not None and message.attempts == 1

    run_with_tasks(store, scenario, commit_in_thread=commit_in_thread)


@pytest.mark.parametrize("commit_in_thread", [False, True])
def test_a_receive_that_is_cancelled_while_its_delivery_is_on_the_way_gives_it_back(
    store: TroubledStore, commit_in_thread: bool
) -> None:
    async def scenario(ps: penstock.AsyncPenstock) -> None:
        orders = await ps.create_queue("orders")
        receiver = asyncio.create_task(orders.receive(wait=20))
        await until_waiting(orders, 1)
        await orders.send(b"x")
        receiver.cancel()  # this task was woken before the receiver, whose future has its delivery already
        with pytest.raises(asyncio.CancelledError):
            await receiver
        message = await orders.receive(wait=20)
        assert message is not None and message.body == b"x"
        assert (message.attempts, message.history) == (1, []), "nobody got the first delivery: it does not count"

    run_with_tasks(store, scenario, commit_in_thread=commit_in_thread)


def test_a_cancelled_receive_that_was_not_handled_yet_takes_nothing(store: TroubledStore) -> None:
    async def scenario(ps: penstock.AsyncPenstock) -> None:
        orders = await ps.create_queue("orders")
        await orders.send(b"x")
        receiver = asyncio.create_task(orders.receive())
        await asyncio.sleep(0)
        receiver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiver
        message = await orders.receive(wait=20)
        assert message is not None and message.body == b"x"

    run_with_tasks(store, scenario)


def test_a_timeout_around_a_receive_loses_nothing(store: TroubledStore) -> None:
    async def scenario(ps: penstock.AsyncPenstock) -> None:
        orders = await ps.create_queue("orders")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(orders.receive(wait=20), 0.005)
        await orders.send(b"x")
        assert (await orders.receive()) is not None

    run_with_tasks(store, scenario)


class Interrupter:
    """Raises in the main thread, at a random moment while a block runs."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._armed = False
        self._before = signal.signal(signal.SIGUSR1, self._raise)
        self.hits = 0

    def _raise(self, *_: Any) -> None:
        if self._armed:
            raise KeyboardInterrupt

    def disturb(self, work: Any) -> None:
        timer = threading.Timer(
            self._random.uniform(0.0002, 0.004),
            lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1),
        )
        timer.start()
        try:
            self._armed = True
            while timer.is_alive():
                work()
            self._armed = False
        except KeyboardInterrupt:
            self.hits += 1
        except penstock.PenstockError:
            pass
        finally:
            self._armed = False
            timer.join()

    def close(self) -> None:
        signal.signal(signal.SIGUSR1, self._before)


@pytest.mark.usefixtures("no_collection")
def test_interrupts_at_any_moment_leave_nobody_hanging_and_the_shard_at_work(threads: World) -> None:
    orders = threads.ps.create_queue("orders", max_receives=0)
    stop = threading.Event()
    rounds = [0] * 2

    def work() -> None:
        orders.send(b"x")
        for message in orders.receive(3):
            message.ack()

    def keep_working(number: int) -> None:
        while not stop.is_set():
            with contextlib.suppress(penstock.PenstockError):
                work()
                rounds[number] += 1

    others = [threading.Thread(target=keep_working, args=(number,)) for number in range(2)]
    for other in others:
        other.start()
    interrupter = Interrupter(seed=1)
    for _ in range(60):
        interrupter.disturb(work)
    interrupter.close()
    before = list(rounds)
    deadline = time.monotonic() + 20
    while any(now == then for now, then in zip(rounds, before, strict=True)) and time.monotonic() < deadline:
        stop.wait(0.01)
    stop.set()
    for other in others:
        other.join(20)
        assert not other.is_alive()
    assert all(now > then for now, then in zip(rounds, before, strict=True))
    assert interrupter.hits > 5
