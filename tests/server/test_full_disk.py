from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.core.commands import Ack, CreateQueue, Extend, OpenSession, QueueStats, Receive, Release, Send
from penstock.core.queues.config import QueueConfig
from penstock.core.storage.changes import Changes
from penstock.server.shard import FULL_PAUSE_MS, Call, Step
from penstock.store.errors import DiskFull
from tests.client.adapter import World
from tests.server.bare import BareShard, bodies, spans
from tests.server.stores import TroubledStore


def test_sends_are_refused_while_acknowledgements_flow(store: TroubledStore, ps: Any) -> None:
    ps.queue("orders").send_many([b"a", b"b"])
    first = ps.queue("orders").receive()
    store.full = True
    with pytest.raises(penstock.DiskFull):
        ps.queue("orders").send(b"c")
    first_again = ps.queue("orders").receive()
    first_again.ack()
    second = ps.queue("orders").receive()
    second.ack()
    assert {first_again.body, second.body} == {b"a", b"b"}
    assert first.body == b"a"
    assert ps.queue("orders").stats().messages == 0


def test_sends_are_tried_again_after_a_short_while(world: World, store: TroubledStore, ps: Any) -> None:
    ps.create_queue("orders")
    store.full = True
    with pytest.raises(penstock.DiskFull):
        ps.queue("orders").send(b"a")
    store.full = False
    with pytest.raises(penstock.DiskFull, match="until there is space"):
        ps.queue("orders").send(b"b")
    world.advance(FULL_PAUSE_MS / 1_000)
    ps.queue("orders").send(b"c")
    assert [message.body for message in ps.queue("orders").receive(9)] == [b"c"]


def test_leases_are_not_forgotten_while_sends_probe_the_full_disk(world: World, store: TroubledStore, ps: Any) -> None:
    ps.queue("orders").send(b"a")
    store.full = True
    with pytest.raises(penstock.DiskFull):
        ps.queue("orders").send(b"b")
    message = ps.queue("orders").receive(lease=60)
    world.clock.advance_ms(FULL_PAUSE_MS)
    with pytest.raises(penstock.DiskFull):
        ps.queue("orders").send(b"c")
    message.ack()
    assert ps.queue("orders").stats().messages == 0


def test_an_ack_in_the_same_step_as_a_send_that_does_not_fit_is_kept(store: TroubledStore, bare: BareShard) -> None:
    bare.do(Send(queue="orders", bodies=[b"a", b"b"]))
    delivery = bare.do(Receive(queue="orders"))
    bare.advance(0.02)
    store.full = True
    send, ack, receive = bare.run(
        Send(queue="orders", bodies=[b"c"]), Ack(queue="orders", spans=spans(delivery)), Receive(queue="orders")
    )
    assert isinstance(send.error, penstock.DiskFull)
    assert ack.result().count == 1
    assert bodies(receive.result()) == [b"b"]
    store.full = False
    bare.advance(60)
    assert bodies(bare.do(Receive(queue="orders", limit=9))) == [b"b"]


def test_what_falls_due_and_does_not_fit_does_not_keep_acks_from_the_disk(
    world: World, store: TroubledStore, ps: Any
) -> None:
    ps.create_queue("orders", max_receives=1)
    ps.queue("orders").send_many([b"dies", b"done"])
    ps.queue("orders").receive(lease=10)
    other = ps.queue("orders").receive(lease=1_000)
    world.advance(0.02)
    store.full = True
    world.advance(20)
    other.ack()
    assert ps.queues() == ["orders"]
    store.full = False
    world.advance(FULL_PAUSE_MS / 1_000)
    assert ps.queue("orders.dead").receive().body == b"dies"
    assert ps.queue("orders").stats().messages == 0


def test_a_release_that_does_not_fit_is_refused_and_others_in_its_step_are_not(
    store: TroubledStore, bare: BareShard
) -> None:
    bare.do(CreateQueue(name="orders", config=QueueConfig(max_receives=1)))
    bare.do(Send(queue="orders", bodies=[b"dies", b"done"]))
    dies = bare.do(Receive(queue="orders", lease_ms=1_000_000))
    done = bare.do(Receive(queue="orders", lease_ms=1_000_000))
    bare.advance(0.02)
    store.full = True
    give_up = Release(queue="orders", spans=spans(dies), error="no")
    release, ack = bare.run(give_up, Ack(queue="orders", spans=spans(done)))
    assert isinstance(release.error, penstock.DiskFull)
    assert ack.result().count == 1
    store.full = False
    bare.advance(FULL_PAUSE_MS / 1_000)
    assert bare.do(give_up).count == 1
    assert bodies(bare.do(Receive(queue="orders.dead"))) == [b"dies"]


def test_connections_of_a_process_that_crashed_end_when_there_is_space(store: TroubledStore) -> None:
    """Until then they must not keep acknowledgements from the disk: the end of these is a dead letter."""
    crashed = BareShard(store)
    session = crashed.do(OpenSession(name="client", bound=True))
    crashed.do(CreateQueue(name="orders", config=QueueConfig(max_receives=1)))
    crashed.do(Send(queue="orders", bodies=[b"a"]))
    crashed.do(Send(queue="orders", bodies=[b"b"]))
    crashed.do(Receive(queue="orders", limit=1, session=session))
    delivery = crashed.do(Receive(queue="orders", limit=1))
    crashed.advance(1)
    store.full = True
    bare = BareShard(store)
    bare.do(Ack(queue="orders", spans=spans(delivery)))
    assert bare.do(QueueStats(name="orders")).messages == 1
    store.full = False
    bare.advance(FULL_PAUSE_MS / 1_000)
    assert bodies(bare.do(Receive(queue="orders.dead"))) == [b"a"]


def test_a_retry_that_did_not_fit_in_a_step_without_calls_is_not_lost(store: TroubledStore, bare: BareShard) -> None:
    """A step that only the clock has asked for: what it could not write must not stay in the broker's mind."""
    bare.do(Send(queue="orders", bodies=[b"fails", b"done"]))
    bare.do(Release(queue="orders", spans=spans(bare.do(Receive(queue="orders", limit=1)))))
    bare.do(Receive(queue="orders", limit=1, lease_ms=1_000))
    done = bare.do(Receive(queue="orders", limit=1, lease_ms=1_000_000))
    bare.advance(0.02)
    bare.advance(1)
    store.full = True
    bare.advance(0.02)
    assert bare.do(Ack(queue="orders", spans=spans(done))).count == 1
    store.full = False
    bare.advance(FULL_PAUSE_MS / 1_000)
    crashed, after = bare, BareShard(store)
    after.clock.advance_ms(crashed.clock.now_ms() - after.clock.now_ms() + 60_000)
    assert bodies(after.do(Receive(queue="orders", limit=9))) == [b"fails"]


def test_a_lease_that_begins_while_what_is_due_does_not_fit_lasts_as_long_as_any(
    store: TroubledStore, bare: BareShard
) -> None:
    bare.do(CreateQueue(name="orders", config=QueueConfig(max_receives=1)))
    bare.do(CreateQueue(name="other"))
    bare.do(Send(queue="orders", bodies=[b"dies"]))
    bare.do(Send(queue="other", bodies=[b"long work"]))
    bare.do(Receive(queue="orders", lease_ms=1_000))
    bare.advance(0.02)
    store.full = True
    bare.advance(60)
    delivery = bare.do(Receive(queue="other", lease_ms=30_000))
    assert delivery.deadline_ms == bare.clock.now_ms() + 30_000
    store.full = False
    bare.advance(FULL_PAUSE_MS / 1_000)
    assert bodies(bare.do(Receive(queue="orders.dead"))) == [b"dies"]
    assert bodies(bare.do(Receive(queue="other"))) == []
    assert bare.do(Ack(queue="other", spans=spans(delivery))).count == 1


def test_leases_that_ran_out_while_the_process_was_away_do_not_keep_acks_from_a_full_disk(store: TroubledStore) -> None:
    stopped = BareShard(store)
    stopped.do(CreateQueue(name="orders", config=QueueConfig(max_receives=1)))
    stopped.do(Send(queue="orders", bodies=[b"dies", b"done"]))
    stopped.do(Receive(queue="orders", limit=1, lease_ms=1_000))
    done = stopped.do(Receive(queue="orders", limit=1, lease_ms=1_000_000))
    stopped.advance(0.02)
    store.full = True
    bare = BareShard(store, starts_after_ms=60_000)
    assert bare.do(Ack(queue="orders", spans=spans(done))).count == 1
    store.full = False
    bare.advance(FULL_PAUSE_MS / 1_000)
    assert bodies(bare.do(Receive(queue="orders.dead"))) == [b"dies"]


def test_every_queue_that_is_made_while_the_disk_is_full_is_told_of(store: TroubledStore, bare: BareShard) -> None:
    left = 3

    def refuse_some(changes: Changes) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise DiskFull("no space left")

    bare.run()
    store.on_commit = refuse_some
    step = Step([Call(CreateQueue(name=name)) for name in ("a", "b")])
    bare.shard.run(step)
    assert [call.error for call in step.answered if isinstance(call, Call)] == [None, None]
    assert {event.queue for event in step.events} == {"a", "b"}


def test_everybody_is_answered_when_a_full_disk_fails_altogether_in_the_middle_of_a_step(
    store: TroubledStore, bare: BareShard
) -> None:
    bare.do(CreateQueue(name="orders", config=QueueConfig(max_receives=1)))
    bare.do(Send(queue="orders", bodies=[b"dies", b"done"]))
    dies = bare.do(Receive(queue="orders", lease_ms=1_000_000))
    done = bare.do(Receive(queue="orders", lease_ms=1_000_000))
    bare.advance(0.02)
    store.full = True
    store.fail_next(kept=False)
    release, ack, extend = bare.run(
        Release(queue="orders", spans=spans(dies), error="no"),
        Ack(queue="orders", spans=spans(done)),
        Extend(queue="orders", spans=spans(done), lease_ms=1_000),
    )
    assert isinstance(release.error, penstock.DiskFull)
    assert isinstance(ack.error, penstock.CommitFailed)
    assert isinstance(extend.error, penstock.CommitFailed)
