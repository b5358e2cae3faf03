"""Everything at once: many callers, long polls, and a disk that fails now and then."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import penstock
from tests.client.adapter import World
from tests.server.stores import TroubledStore

PRODUCERS, CONSUMERS, SENDS = 8, 4, 25


class Storm:
    """Who was promised what."""

    def __init__(self, world: World, store: TroubledStore, seed: int) -> None:
        self.orders = world.ps.create_queue("orders", max_receives=0)
        self.sent: set[bytes] = set()
        self.unsure: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.perhaps_acked: set[bytes] = set()
        self.came_back: set[bytes] = set()
        self.over = False
        self._random = random.Random(seed)
        self._store = store
        self._clock = world.clock
        store.on_commit = self._trouble

    def _trouble(self, _: Any) -> None:
        self._clock.advance_ms(50)
        dice = self._random.random()
        if dice < 0.1:
            self._store.fail_next(kept=dice < 0.05)
        self._store.full = dice > 0.9

    def calm(self) -> None:
        self._store.on_commit = lambda changes: None
        self._store.full = False
        self._store.fail_nothing()

    def produce(self, number: int) -> None:
        for index in range(SENDS):
            body = b"%d/%d" % (number, index)
            try:
                self.orders.send(body)
                self.sent.add(body)
            except penstock.DiskFull:
                continue
            except penstock.CommitFailed:
                self.unsure.add(body)

    def consume(self) -> None:
        while not self.over:
            acked_before = set(self.acked)
            try:
                messages = self.orders.receive(5, wait=20)
            except penstock.StoreError:
                continue
            self.came_back |= acked_before & {message.body for message in messages}
            for message in messages:
                self.settle(message)

    def settle(self, message: Any) -> None:
        body = message.body
        try:
            message.ack()
            self.acked.add(body)
        except penstock.CommitFailed:
            self.perhaps_acked.add(body)
        except (penstock.ReceiptRefused, penstock.DiskFull):
            return


@pytest.mark.parametrize("seed", range(8))
def test_a_storm_of_failures_loses_nothing_promised_and_leaves_nobody_hanging(
    world: World, store: TroubledStore, seed: int
) -> None:
    storm = Storm(world, store, seed)
    consumers = [threading.Thread(target=storm.consume) for _ in range(CONSUMERS)]
    producers = [threading.Thread(target=storm.produce, args=(number,)) for number in range(PRODUCERS)]
    for thread in [*consumers, *producers]:
        thread.start()
    for thread in producers:
        thread.join(30)
        assert not thread.is_alive()
    storm.calm()
    storm.over = True
    for thread in consumers:
        for _ in range(1_000):
            world.advance(60)
            thread.join(0.01)
            if not thread.is_alive():
                break
        assert not thread.is_alive()
    world.advance(60)
    left = {message.body for message in storm.orders.browse(limit=10_000)}
    assert storm.sent <= storm.acked | storm.perhaps_acked | left
    assert not storm.acked & left
    assert not storm.came_back
    assert storm.acked | storm.perhaps_acked | left <= storm.sent | storm.unsure
