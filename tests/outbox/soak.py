"""Outboxes under fire: `python -m tests.outbox.soak --kills 200 [--seed N] [--database sqlite]`.

For each seed a database (SQLite and PostgreSQL in turn), a server, a proxy, two relays and two consumers
(`crashing.py`), and faults: relays and consumers die by SIGKILL at the worst moments and at any other, so does the
server, and connections break. Transactions go on meanwhile, some of which are rolled back. In the end everything is
let through, and counted:

    missing     a committed message without its effect in the consumers' database
    twice       an effect that happened twice
    sent twice  a message that is in the queue twice
    invented    an effect of a transaction that was rolled back
    order       a group whose messages are not in the order of their transactions
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import create_engine, event, func, select

import penstock
from penstock.outbox import Inbox, Outbox
from tests.faults.fire import Fire
from tests.outbox.crashing import EFFECTS, QUEUE
from tests.outbox.postgres import PostgresServer

KILLS_A_SEED = 25
DRAIN_SECONDS_MAX = 600.0
BURN_EVERY_S = 0.7
GROUPS = "abc"
ROOT = Path(__file__).resolve().parents[2]


class User:
    """Commits transactions that send messages, and rolls some back."""

    def __init__(self, database: str, seed: int) -> None:
        self.engine = create_engine(database)
        self._chance = random.Random(seed)
        self._number = 0
        self.outbox = Outbox()
        self.committed: list[str] = []
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode=WAL"))
        for metadata in (EFFECTS.metadata, self.outbox.metadata, Inbox().metadata):
            metadata.create_all(self.engine)

    def work(self) -> None:
        """One transaction."""
        with self.engine.connect() as connection:
            bodies = []
            for _ in range(self._chance.randrange(1, 6)):
                group = self._chance.choice(GROUPS)
                bodies.append(f"{group} {self._number}")
                self.outbox.send(connection, QUEUE, bodies[-1], group=group)
                self._number += 1
            if self._chance.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
                self.committed += bodies

    @property
    def is_done(self) -> bool:
        """Whether everything committed has had its effect."""
        with self.engine.connect() as connection:
            done = connection.execute(select(func.count(EFFECTS.c.body.distinct()))).scalar_one()
            return bool(done >= len(self.committed)) and not self.outbox.status(connection).pending


def run(seed: int, kills: int, directory: Path, database: str) -> Counter[str]:
    """One seed: what happened, and what was found wrong."""
    user = User(database, seed)
    with Fire(directory, seed) as fire, penstock.connect(fire.direct_url, timeout=60) as ps:
        ps.create_queue(QUEUE, max_receives=0)
        audit = ps.queue(QUEUE).channel("audit")
        storm(fire, user, [database, fire.url, str(seed), str(kills)])
        sent = [message.text for message in audit.receive(1_000_000)]
    with user.engine.connect() as connection:
        effects = Counter(connection.execute(select(EFFECTS.c.body)).scalars())
    user.engine.dispose()
    done = {f"kills on {user.engine.dialect.name}": kills, "kills": kills, "messages": len(user.committed)}
    return fire.counts + Counter(done) + wrong(user.committed, sent, effects)


def wrong(committed: list[str], sent: list[str], effects: Counter[str]) -> Counter[str]:
    """What must not be: counted by kinds, whose names are in capitals."""
    return Counter(
        {
            "MISSING": len(set(committed) - effects.keys()),
            "TWICE": sum(count > 1 for count in effects.values()),
            "SENT TWICE": sum(count > 1 for count in Counter(sent).values()),
            "INVENTED": len((effects.keys() | set(sent)) - set(committed)),
            "ORDER": sum(in_group(sent, group) != in_group(committed, group) for group in GROUPS),
        }
    )


def in_group(bodies: list[str], group: str) -> list[str]:
    """The messages of a group; each where it was first."""
    return [body for body in dict.fromkeys(bodies) if body.startswith(group)]


def storm(fire: Fire, user: User, arguments: list[str]) -> None:
    """Work and burn until enough have died; then let everything through."""
    command = [sys.executable, "-m", "tests.outbox.crashing", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        try:
            next_s = time.monotonic() + BURN_EVERY_S
            while process.stdout.readline() != "calm\n":
                assert process.poll() is None, "relays and consumers ended by themselves"
                user.work()
                time.sleep(0.02)
                if time.monotonic() >= next_s:
                    fire.burn()
                    next_s = time.monotonic() + BURN_EVERY_S
            deadline = time.monotonic() + DRAIN_SECONDS_MAX
            while not user.is_done and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            process.stdin.close()
            process.wait(60)


def soak(kills: int, seed: int, databases: list[str]) -> int:
    """Run seeds until so many have died; how many things were found wrong."""
    totals: Counter[str] = Counter()
    began = time.monotonic()
    with ExitStack() as stack:
        postgres = PostgresServer() if "postgresql" in databases else None
        if postgres is not None:
            stack.callback(postgres.stop)
        for kind in itertools.cycle(databases):
            with tempfile.TemporaryDirectory(prefix="penstock-outbox-") as name:
                directory = Path(name)
                own = f"sqlite:///{directory / 'user.db'}"
                database = postgres.create_database(f"seed_{seed}") if postgres and kind == "postgresql" else own
                totals += run(seed, min(KILLS_A_SEED, kills - totals["kills"]), directory, database)
            broken = sum(count for name, count in totals.items() if name.isupper())
            told = f"{totals['kills']:>6} of {kills} kills, {time.monotonic() - began:.0f} s"
            print(f"{told}, seed {seed} on {kind}, broken: {broken}", flush=True)
            seed += 1
            if totals["kills"] >= kills:
                break
    print(", ".join(f"{name}: {count:,}" for name, count in sorted(totals.items())))
    return sum(count for name, count in totals.items() if name.isupper())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="how many relays and consumers are killed")
    parser.add_argument("--seed", type=int, default=1_000, help="the first seed")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], help="one of them; by default both in turn")
    arguments = parser.parse_args()
    databases = [arguments.database] if arguments.database else ["sqlite", "postgresql"]
    return 1 if soak(arguments.kills, arguments.seed, databases) else 0


if __name__ == "__main__":
    sys.exit(main())
