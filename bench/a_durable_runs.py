"""How much of the disk's own speed is left for durable messages in runs of a thousand?

The measure is a program that only writes the same bytes to a file, and calls fdatasync after each run.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path

import penstock
from bench.measure import RUN, at_least, bodies, parse_scale, per_second, plain, report, table, take_turns

TEXT = """
Messages of 200 bytes, sent in runs of 1000. Every Penstock figure syncs before it acknowledges, sends and acks alike.
The baseline writes the same bytes, joined beforehand, with one `os.write` and one `os.fdatasync` a run. It *appends*
to a plain file, as a program without a journal would; the second ratio is to a file that was preallocated and
zero-filled before the clock started, which is what Penstock's own journal does in the background.

*Cycle, one thread*: send a run, receive it, ack it, then the next; the acks have a sync of their own. *Cycle, two
threads*: a producer and a consumer; the clock stops with the last ack.
"""

APPENDED = "plain file, appended"
PREALLOCATED = "plain file, preallocated"
SEND = "send"
SEND_AND_CLOSE = "send, then close (all of it in the table)"
CYCLE = "send, lease, ack: one thread"
CYCLE_CONCURRENT = "send, lease, ack: two threads"


def plain_file(directory: Path, *, runs: int, preallocate: bool) -> float:
    """The baseline: write and sync."""
    run = b"".join(bodies(RUN))
    file = os.open(directory / "plain", os.O_CREAT | os.O_WRONLY)
    try:
        if preallocate:
            for _ in range(runs):
                os.write(file, bytes(len(run)))
            os.fsync(file)
            os.lseek(file, 0, os.SEEK_SET)
        started_at = time.perf_counter()
        for _ in range(runs):
            written = os.write(file, run)
            assert written == len(run)
            os.fdatasync(file)
        return per_second(runs * RUN, started_at)
    finally:
        os.close(file)


def send(directory: Path, *, runs: int) -> float:
    """Penstock: durable sends, nobody receives."""
    messages = bodies(RUN)
    with penstock.open(directory) as ps:
        queue = ps.create_queue("runs")
        started_at = time.perf_counter()
        for _ in range(runs):
            queue.send_many(messages)
        return per_second(runs * RUN, started_at)


def send_and_close(directory: Path, *, runs: int) -> float:
    """Penstock: durable sends, and the clock stops when the backlog has reached the table too."""
    messages = bodies(RUN)
    with penstock.open(directory) as ps:
        queue = ps.create_queue("runs")
        started_at = time.perf_counter()
        for _ in range(runs):
            queue.send_many(messages)
    return per_second(runs * RUN, started_at)


def cycle(directory: Path, *, runs: int) -> float:
    """Penstock: send, lease and ack, one after the other."""
    messages = bodies(RUN)
    with penstock.open(directory) as ps:
        queue = ps.create_queue("runs")
        started_at = time.perf_counter()
        for _ in range(runs):
            queue.send_many(messages)
            batch = queue.receive_batch(max=RUN)
            assert len(batch) == RUN
            batch.ack()
        return per_second(runs * RUN, started_at)


def cycle_concurrent(directory: Path, *, runs: int) -> float:
    """Penstock: a producer and a consumer at the same time."""
    messages = bodies(RUN)
    with penstock.open(directory) as ps:
        queue = ps.create_queue("runs")

        def produce() -> None:
            for _ in range(runs):
                queue.send_many(messages)

        producer = threading.Thread(target=produce)
        started_at = time.perf_counter()
        producer.start()
        waiting = runs * RUN
        while waiting:
            batch = queue.receive_batch(max=RUN, wait=5)
            waiting -= len(batch)
            batch.ack()
        rate = per_second(runs * RUN, started_at)
        producer.join()
        return rate


def main() -> None:
    """Measure and print."""
    scale = parse_scale(__doc__)
    runs = scale.count(full=300, quick=3)
    measured = take_turns(
        {
            APPENDED: partial(plain_file, runs=runs, preallocate=False),
            SEND: partial(send, runs=runs),
            CYCLE: partial(cycle, runs=runs),
            CYCLE_CONCURRENT: partial(cycle_concurrent, runs=runs),
            SEND_AND_CLOSE: partial(send_and_close, runs=runs),
            PREALLOCATED: partial(plain_file, runs=runs, preallocate=True),
        },
        scale.turns(full=9),
    )
    targets = {SEND: 0.8, CYCLE: 0.5, CYCLE_CONCURRENT: 0.5}
    rows = []
    for name in [APPENDED, PREALLOCATED, SEND, SEND_AND_CLOSE, CYCLE, CYCLE_CONCURRENT]:
        ratio = measured.ratio(name, to=APPENDED)
        to_preallocated = measured.ratio(name, to=PREALLOCATED)
        verdict = at_least(targets[name], ratio) if name in targets else ""
        rows.append([name, plain(measured.rate(name)), str(ratio), str(to_preallocated), verdict])
    header = ["", "messages/s", "of the appended file", "of the preallocated file", "target, of the appended file"]
    report("a. Durable runs against a plain file", TEXT, table(header, rows))


if __name__ == "__main__":
    main()
