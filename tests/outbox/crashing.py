"""Relays and consumers that are killed (SIGKILL) at any moment, again and again: a process that forks them.

`python -m tests.outbox.crashing DATABASE_URL PENSTOCK_URL SEED KILLS` keeps two relays and two consumers at work. They
kill themselves at the worst moments (after a batch was sent and before it is marked; after the work was committed and
before the message is acknowledged), and this process kills one of them every now and then; each gets a successor. After
so many deaths it says `calm`, and lets its last children work in peace until its standard input ends. It has no threads
of its own, so a fork is a clean start.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert

import penstock
from penstock.outbox import Inbox, Outbox, Relay
from tests.client.crashing_listeners import connected

EFFECTS = Table("effects", MetaData(), Column("id", Integer, primary_key=True), Column("body", String(100)))
"""What the consumers did: a row for every message."""
QUEUE = "orders"
Role = Callable[[Engine, penstock.Penstock, random.Random, float], None]


class CrashingRelay(Relay):
    """Dies in the middle of a batch, with some probability."""

    danger = 0.0
    chance = random.Random()

    def _send(self, rows: Any, outcome: Any) -> None:
        die(self.chance, self.danger)
        super()._send(rows, outcome)

    def _mark(self, connection: Any, token: str, outcome: Any) -> None:
        die(self.chance, self.danger)
        super()._mark(connection, token, outcome)
        die(self.chance, self.danger)


def die(chance: random.Random, danger: float) -> None:
    if chance.random() < danger:
        os.kill(os.getpid(), signal.SIGKILL)


def relay(engine: Engine, ps: penstock.Penstock, chance: random.Random, danger: float) -> None:
    """Move messages, until killed."""
    crashing = CrashingRelay(engine, ps, Outbox(), batch=5, poll=0.01, claim=0.3)
    crashing.danger, crashing.chance = danger, chance
    crashing.run()


def consume(engine: Engine, ps: penstock.Penstock, chance: random.Random, danger: float) -> None:
    """Do each message's work once, until killed."""
    inbox = Inbox()

    def work(message: penstock.Message) -> None:
        with engine.begin() as connection:
            if inbox.once(connection, message):
                connection.execute(insert(EFFECTS).values(body=message.text))
        die(chance, danger / 4)

    ps.listen(QUEUE, work, workers=2, lease=1).run_forever()


class Storm:
    """The children, and how they die."""

    def __init__(self, database: str, url: str, seed: int) -> None:
        self._where = database, url
        self._chance = random.Random(seed)
        self._danger = 0.2
        self._children = {self._start(role): role for role in (relay, relay, consume, consume)}
        self.deaths = 0

    def _start(self, role: Role) -> int:
        seed = self._chance.random()
        child = os.fork()
        if child:
            return child
        try:
            database, url = self._where
            with connected(url) as ps:
                role(create_engine(database), ps, random.Random(seed), self._danger)
        finally:
            os._exit(1)

    def blow(self) -> None:
        """For a moment; then everybody who died has a successor."""
        time.sleep(self._chance.uniform(0.0, 0.1))
        if self._chance.random() < 0.03:
            os.kill(self._chance.choice(list(self._children)), signal.SIGKILL)
        while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
            self.deaths += os.WIFSIGNALED(ended[1])
            role = self._children.pop(ended[0])
            self._children[self._start(role)] = role

    def calm(self) -> None:
        """Once more everybody anew, and nobody dies by itself any more."""
        self._danger = 0.0
        for child, role in list(self._children.items()):
            self._kill(child)
            self._children[self._start(role)] = role

    def end(self) -> None:
        for child in list(self._children):
            self._kill(child)

    def _kill(self, child: int) -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        del self._children[child]


def main() -> None:
    """Let them work, and die."""
    storm = Storm(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    while storm.deaths < int(sys.argv[4]):
        storm.blow()
    storm.calm()
    print("calm", flush=True)
    sys.stdin.read()
    storm.end()


if __name__ == "__main__":
    main()
