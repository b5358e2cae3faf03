"""Queues with `deliver_unsynced`, from send to handler, over a websocket."""

from __future__ import annotations

import threading

import penstock
from penstock.server.clock import SystemClock
from penstock.server.shard import Shard
from tests.client.adapter import ENTROPY, LoopThread
from tests.client.serving import serve
from tests.server.stores import Gate, TroubledStore
from tests.shards import not_for_clusters

pytestmark = not_for_clusters("the store is held up by the test")


def test_a_handler_is_called_while_the_disk_holds_up_the_send() -> None:
    loop, store, gate = LoopThread(), TroubledStore(), Gate()
    server = loop.run(serve(Shard(store.open, SystemClock(), lambda: ENTROPY)))
    handled = threading.Semaphore(0)
    bodies: list[bytes] = []

    def handle(message: penstock.Message) -> None:
        bodies.append(message.body)
        handled.release()

    with penstock.connect(server.url) as ps:
        ps.create_queue("orders", deliver_unsynced=True)
        with ps.listen("orders", handle):
            ps.queue("orders").send(b"first")
            assert handled.acquire(timeout=10)
            store.on_commit = gate.hold
            senders = [threading.Thread(target=ps.queue("orders").send, args=(body,)) for body in (b"second", b"third")]
            for sender in senders:
                sender.start()
                assert handled.acquire(timeout=10), "the handler waits for the disk"
            assert gate.reached.wait(10)
            assert all(sender.is_alive() for sender in senders), "nobody was told that it is safe"
            gate.open()
            for sender in senders:
                sender.join(10)
        assert bodies == [b"first", b"second", b"third"]
        stats = ps.queue("orders").stats()
        assert (stats.messages, stats.channels["main"].acked) == (0, 3)
    loop.run(server.stop())
    loop.close()
