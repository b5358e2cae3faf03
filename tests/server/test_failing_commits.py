from __future__ import annotations

import threading
from typing import Any

import pytest

import penstock
from penstock.core.commands import CancelWait, CreateQueue, ListRedrives, Receive, Send, StartRedrive
from penstock.server.shard import REOPEN_PAUSE_MS, Call, Step, give_back
from tests.client.adapter import World
from tests.server.bare import BareShard, bodies
from tests.server.stores import TroubledStore


class Receiver:
    """A receive that waits in a thread of its own."""

    def __init__(self, world: World, queue: str, wait: float = 20) -> None:
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._run, args=(world.ps.queue(queue), wait))
        self._thread.start()
        world.wait_for_receivers(queue)

    def _run(self, queue: Any, wait: float) -> None:
        try:
            self.outcome = queue.receive(wait=wait)
        except BaseException as error:
            self.outcome = error

    def join(self) -> Any:
        self._thread.join(10)
        assert not self._thread.is_alive(), "still waiting"
        return self.outcome


def test_a_send_whose_commit_failed_is_an_error_and_the_shard_goes_on(store: TroubledStore, ps: Any) -> None:
    ps.queue("orders").send(b"before")
    store.fail_next(kept=False)
    with pytest.raises(penstock.CommitFailed):
        ps.queue("orders").send(b"lost")
    ps.queue("orders").send(b"after")
    assert [message.body for message in ps.queue("orders").receive(9)] == [b"before", b"after"]
    assert store.opened == 2


def test_a_commit_that_failed_but_was_kept_is_seen_after_opening_again(store: TroubledStore, ps: Any) -> None:
    ps.create_queue("orders")
    store.fail_next(kept=True)
    with pytest.raises(penstock.CommitFailed):
        ps.queue("orders").send(b"kept")
    assert ps.queue("orders").receive().body == b"kept"


def test_an_ack_whose_commit_failed_is_an_error_and_the_message_stays_leased(store: TroubledStore, ps: Any) -> None:
    ps.queue("orders").send(b"x")
    message = ps.queue("orders").receive()
    ps.queue("other").send(b"a durable step, which takes the lease along")
    store.fail_next(kept=False)
    with pytest.raises(penstock.CommitFailed):
        message.ack()
    assert ps.queue("orders").receive() is None
    message.ack()
    assert ps.queue("orders").stats().messages == 0


def test_who_waits_goes_on_waiting_over_a_failed_commit(world: World, store: TroubledStore, ps: Any) -> None:
    ps.create_queue("orders")
    receiver = Receiver(world, "orders")
    store.fail_next(kept=False)
    with pytest.raises(penstock.CommitFailed):
        ps.queue("orders").send(b"lost")
    world.wait_for_receivers("orders")
    ps.queue("orders").send(b"found")
    assert receiver.join().body == b"found"


def test_who_waits_gets_what_a_failed_commit_kept_after_all(world: World, store: TroubledStore, ps: Any) -> None:
    ps.create_queue("orders")
    receiver = Receiver(world, "orders")
    store.fail_next(kept=True)
    with pytest.raises(penstock.CommitFailed):
        ps.queue("orders").send(b"kept")
    assert receiver.join().body == b"kept"


def test_a_wait_is_not_longer_for_a_failed_commit(world: World, store: TroubledStore, ps: Any) -> None:
    ps.create_queue("orders")
    receiver = Receiver(world, "orders", wait=20)
    world.advance(15)
    store.fail_next(kept=False)
    with pytest.raises(penstock.CommitFailed):
        ps.queue("orders").send(b"lost")
    world.wait_for_receivers("orders")
    world.advance(4.9)
    assert ps.queue("orders").stats().channels["main"].waiting_receivers == 1
    world.advance(0.1)
    assert receiver.join() is None


def test_the_queues_own_wait_is_not_longer_for_a_failed_commit(world: World, store: TroubledStore, ps: Any) -> None:
    ps.create_queue("orders", receive_wait=20)
    receiver = Receiver(world, "orders", wait=None)  # type: ignore[arg-type]
    world.advance(15)
    store.fail_next(kept=False)
    with pytest.raises(penstock.CommitFailed):
        ps.queue("orders").send(b"lost")
    world.wait_for_receivers("orders")
    world.advance(5)
    assert receiver.join() is None


def test_a_store_that_cannot_be_opened_again_answers_errors_until_it_can(
    world: World, store: TroubledStore, ps: Any
) -> None:
    ps.queue("orders").send(b"before")
    store.fail_next(kept=False)
    store.refuses_to_open = True
    for _ in range(3):
        with pytest.raises(penstock.CommitFailed):
            ps.queue("orders").send(b"lost")
    store.refuses_to_open = False
    world.clock.advance_ms(REOPEN_PAUSE_MS)
    assert ps.queue("orders").receive().body == b"before"


def test_a_wait_ends_with_the_error_when_the_store_cannot_be_opened_again(
    world: World, store: TroubledStore, ps: Any
) -> None:
    ps.create_queue("orders")
    receiver = Receiver(world, "orders")
    store.fail_next(kept=False)
    store.refuses_to_open = True
    with pytest.raises(penstock.CommitFailed):
        ps.queue("orders").send(b"lost")
    assert isinstance(receiver.join(), penstock.CommitFailed)


def test_leases_committed_before_survive_a_failed_commit(world: World, store: TroubledStore, ps: Any) -> None:
    ps.queue("orders").send_many([b"a", b"b"])
    message = ps.queue("orders").receive()
    world.advance(0.02)
    store.fail_next(kept=False)
    with pytest.raises(penstock.CommitFailed):
        ps.queue("orders").send(b"lost")
    assert [other.body for other in ps.queue("orders").receive(9)] == [b"b"]
    message.ack()


def test_a_unit_of_work_whose_commit_failed_rolls_back(store: TroubledStore, ps: Any) -> None:
    ps.queue("in").send(b"1")
    with pytest.raises(penstock.CommitFailed), ps.unit_of_work() as work:
        work.take("in")
        work.put("out", b"a")
        store.fail_next(kept=False)
        work.commit()
    assert ps.queues() == ["in"]
    assert ps.queue("in").receive().body == b"1"


def test_what_a_receive_that_was_put_back_got_in_another_failed_step_is_not_leased_to_nobody(
    store: TroubledStore, bare: BareShard
) -> None:
    bare.do(CreateQueue(name="orders"))
    waiting = Call(Receive(queue="orders", wait_ms=20_000, lease_ms=60_000))
    bare.shard.run(Step([waiting]))
    for body in (b"first", b"second"):
        store.fail_next(kept=True)
        bare.shard.run(Step([Call(Send(queue="orders", bodies=[body]))]))
    bare.shard.run(Step([]))
    rest = bodies(bare.do(Receive(queue="orders", limit=9, wait_ms=0)))
    assert sorted(bodies(waiting.result()) + rest) == [b"first", b"second"]


def test_a_receive_that_was_withdrawn_in_a_failed_step_takes_nothing(store: TroubledStore, bare: BareShard) -> None:
    bare.do(CreateQueue(name="orders"))
    waiting = Call(Receive(queue="orders", wait_ms=20_000))
    bare.shard.run(Step([waiting]))
    store.fail_next(kept=False)
    bare.run(CancelWait(ticket=waiting), Send(queue="orders", bodies=[b"lost"]))
    bare.shard.run(Step([Call(Send(queue="orders", bodies=[b"found"]))]))
    assert bodies(bare.do(Receive(queue="orders"))) == [b"found"]


def test_messages_that_could_not_be_read_are_there_when_they_can(store: TroubledStore, bare: BareShard) -> None:
    for body in (b"1", b"2", b"3"):
        bare.do(Send(queue="orders", bodies=[body]))
    bare = BareShard(store)
    store.unreadable = penstock.StoreError("disk I/O error")
    with pytest.raises(penstock.StoreError, match="disk I/O error"):
        bare.do(Receive(queue="orders", wait_ms=0))
    store.unreadable = None
    assert bodies(bare.do(Receive(queue="orders", limit=9, wait_ms=0))) == [b"1", b"2", b"3"]


def test_who_sends_while_another_call_cannot_read_is_not_disturbed(store: TroubledStore, bare: BareShard) -> None:
    bare.do(Send(queue="orders", bodies=[b"1"]))
    bare = BareShard(store)
    store.unreadable = penstock.StoreError("disk I/O error")
    sent, received = bare.run(Send(queue="orders", bodies=[b"2"]), Receive(queue="orders", wait_ms=0))
    assert sent.result().first == 1
    with pytest.raises(penstock.StoreError):
        received.result()
    store.unreadable = None
    assert bodies(bare.do(Receive(queue="orders", limit=9, wait_ms=0))) == [b"1", b"2"]


def test_a_redrive_goes_on_after_messages_could_not_be_read(store: TroubledStore, bare: BareShard) -> None:
    for body in (b"1", b"2"):
        bare.do(Send(queue="orders", bodies=[body]))
    bare.do(StartRedrive(queue="orders", target="others", per_second=1))
    bare = BareShard(store, starts_after_ms=1_000)
    store.unreadable = penstock.StoreError("disk I/O error")
    bare.advance(1)
    store.unreadable = None
    for _ in range(9):
        bare.advance(1)
    assert [task.status for task in bare.do(ListRedrives())] == ["done"]
    assert bodies(bare.do(Receive(queue="others", limit=9, wait_ms=0))) == [b"1", b"2"]


def test_what_a_receive_got_that_was_withdrawn_in_a_failed_step_goes_back_once(
    store: TroubledStore, bare: BareShard
) -> None:
    """Whoever withdraws a receive gives back what it has then: by now another one may have that."""
    bare.do(CreateQueue(name="orders"))
    leaving = Call(Receive(queue="orders", wait_ms=20_000))
    bare.shard.run(Step([leaving]))
    store.fail_next(kept=True)
    bare.run(Send(queue="orders", bodies=[b"a"]))
    store.fail_next(kept=False)
    bare.run(CancelWait(ticket=leaving), CreateQueue(name="fails"))
    assert bodies(bare.do(Receive(queue="orders"))) == [b"a"]
    if leaving.reply is not None:
        bare.do(give_back(leaving.reply))
    assert bodies(bare.do(Receive(queue="orders"))) == [], "two have it"
