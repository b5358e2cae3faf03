"""From one database transaction to another through outbox, queue and inbox, with everybody on the way being killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from sqlalchemy import Engine, event, func, select

import penstock
from penstock.outbox import Inbox, Outbox
from penstock.server.clock import SystemClock
from penstock.server.shard import Shard
from tests.client.adapter import ENTROPY, LoopThread, directory_store
from tests.client.serving import serve
from tests.outbox.crashing import EFFECTS, QUEUE

KILLS = int(os.environ.get("PENSTOCK_KILLS", "15"))
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))
SECONDS_MAX = 120


def produce(engine: Engine, outbox: Outbox, chance: random.Random, process: subprocess.Popen[str]) -> list[str]:
    """Transactions, some of which roll back, while the storm lasts. Returns what was committed, in order."""
    committed: list[str] = []
    number = 0
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    while process.stdout.readline() != "calm\n":
        assert process.poll() is None
        with engine.connect() as connection:
            bodies = []
            for _ in range(chance.randrange(1, 6)):
                group = chance.choice("abc")
                bodies.append(f"{group} {number}")
                outbox.send(connection, QUEUE, bodies[-1], group=group)
                number += 1
            if chance.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
                committed += bodies
        time.sleep(chance.uniform(0.0, 0.03))
    return committed


def test_every_committed_message_has_its_effect_once_whoever_is_killed(
    engine: Engine, database_url: str, outbox: Outbox, inbox: Inbox, tmp_path: Path
) -> None:
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode=WAL"))
    EFFECTS.metadata.create_all(engine)
    loop = LoopThread()
    server = loop.run(serve(Shard(directory_store(tmp_path / "data"), SystemClock(), lambda: ENTROPY)))
    command = [sys.executable, "-m", "tests.outbox.crashing", database_url, server.url, str(SEED), str(KILLS)]
    with penstock.connect(server.url) as ps:
        ps.create_queue(QUEUE, max_receives=0)
        audit = ps.queue(QUEUE).channel("audit")
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                committed = produce(engine, outbox, random.Random(SEED), process)
                wait_for(engine, len(committed))
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(30)
        sent = [message.text for message in audit.receive(10_000)]
    with engine.connect() as connection:
        effects = Counter(connection.execute(select(EFFECTS.c.body)).scalars())
        assert outbox.status(connection).pending == 0
    loop.run(server.stop())
    loop.close()
    assert effects == Counter(committed), "every effect, once"
    assert Counter(sent) == Counter(committed), "every message, once"
    for group in "abc":
        assert [body for body in sent if body[0] == group] == [body for body in committed if body[0] == group]


def wait_for(engine: Engine, count: int) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        with engine.connect() as connection:
            done = connection.execute(select(func.count()).select_from(EFFECTS)).scalar_one()
        if done >= count:
            return
        assert time.monotonic() < deadline, f"{done} of {count} effects"
        time.sleep(0.05)
