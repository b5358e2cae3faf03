"""What does group commit gain when 64 senders each send one message at a time?

The measure is the obvious durable queue: a loop that inserts a message into SQLite and commits.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from functools import partial
from pathlib import Path

import penstock
from bench.measure import at_least, bodies, in_threads, parse_scale, per_second, plain, report, table, take_turns

SENDERS = 64
WARM_UP = 200
TEXT = f"""
{SENDERS} senders, each waiting for its message to be durable before it sends the next one; 200 bytes a message. The
baseline is one thread that inserts and commits message by message into SQLite (WAL, `synchronous=FULL`: one fsync a
commit), and has SQLite to itself.
"""

SQLITE = "SQLite, one commit a message"
THREADS = f"Penstock, {SENDERS} threads"
TASKS = f"Penstock, {SENDERS} asyncio tasks"
ALONE = "Penstock, one thread (nothing to gather)"


def sqlite_loop(directory: Path, *, count: int) -> float:
    """The baseline: a durable queue as one writes it in five lines."""
    connection = sqlite3.connect(directory / "queue.sqlite", isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE messages (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL)")
        messages = bodies(count)
        insert_each(connection, bodies(WARM_UP))
        started_at = time.perf_counter()
        insert_each(connection, messages)
        return per_second(count, started_at)
    finally:
        connection.close()


def insert_each(connection: sqlite3.Connection, messages: list[bytes]) -> None:
    """Insert the messages, with a commit for each."""
    for body in messages:
        connection.execute("INSERT INTO messages (body) VALUES (?)", (body,))


def threads(directory: Path, *, senders: int, count_each: int) -> float:
    """Penstock: every thread sends its messages one by one."""
    messages = bodies(count_each)
    with penstock.open(directory) as ps:
        queue = ps.queue("singles")
        for body in bodies(WARM_UP):
            queue.send(body)

        def send_each() -> None:
            for body in messages:
                queue.send(body)

        seconds = in_threads(senders, send_each)
        assert queue.stats().messages == WARM_UP + senders * count_each
        return senders * count_each / seconds


def tasks(directory: Path, *, senders: int, count_each: int) -> float:
    """Penstock: every task sends its messages one by one."""
    return asyncio.run(_tasks(directory, senders, count_each))


async def _tasks(directory: Path, senders: int, count_each: int) -> float:
    messages = bodies(count_each)
    async with penstock.open_async(directory) as ps:
        queue = ps.queue("singles")
        for body in bodies(WARM_UP):
            await queue.send(body)

        async def send_each() -> None:
            for body in messages:
                await queue.send(body)

        started_at = time.perf_counter()
        await asyncio.gather(*(send_each() for _ in range(senders)))
        return per_second(senders * count_each, started_at)


def main() -> None:
    """Measure and print."""
    scale = parse_scale(__doc__)
    each = scale.count(full=300, quick=3)
    measured = take_turns(
        {
            SQLITE: partial(sqlite_loop, count=scale.count(full=2000, quick=20)),
            THREADS: partial(threads, senders=SENDERS, count_each=each),
            TASKS: partial(tasks, senders=SENDERS, count_each=each),
            ALONE: partial(threads, senders=1, count_each=scale.count(full=2000, quick=20)),
        },
        scale.turns(full=9),
        warm_up=not scale.quick,
    )
    rows = []
    for name in [SQLITE, ALONE, THREADS, TASKS]:
        ratio = measured.ratio(name, to=SQLITE)
        verdict = at_least(10, ratio) if name in (THREADS, TASKS) else ""
        rows.append([name, plain(measured.rate(name)), str(ratio), verdict])
    header = ["", "messages/s", "of the SQLite loop", "target (threads or tasks)"]
    report("b. Single sends, with group commit", TEXT, table(header, rows))


if __name__ == "__main__":
    main()
