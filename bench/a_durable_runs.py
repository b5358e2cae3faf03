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

WARM_UP_RUNS = 100
TEXT = """
Messages of 200 bytes, sent in runs of 1000. Every Penstock figure syncs before it acknowledges, sends and acks alike.
The baseline writes the same bytes, joined beforehand, with one `os.write` and one `os.fdatasync` a run. It *appends*
to a plain file, as a program without a journal would; the second ratio is to a file that was preallocated and
zero-filled before the clock started, which is what Penstock's own journal does in the background. Every contender has
done 100 runs before the clock starts.

*Burst*: {burst} runs, less than the store keeps before it starts to fill its table. *Sustained*: {sustained} runs that
nobody receives, so that all but the last of them are written a second time, into the table, while the clock runs; with
*and close*, the last ones too. *One thread*: send a run, receive it, ack it, then the next; the acks have a sync of
their own. *Two threads*: a producer and a consumer; the clock stops with the last ack.
"""

APPENDED = "plain file, appended"
PREALLOCATED = "plain file, preallocated"
BURST = "send, burst"
SUSTAINED = "send, sustained"
SUSTAINED_AND_CLOSED = "send, sustained, and close"
CYCLE = "send, lease, ack: one thread"
CYCLE_CONCURRENT = "send, lease, ack: two threads"


def plain_file(directory: Path, *, runs: int, preallocate: bool) -> float:
    """The baseline: write and sync."""
    run = b"".join(bodies(RUN))
    file = os.open(directory / "plain", os.O_CREAT | os.O_WRONLY)
    try:
        if preallocate:
            for _ in range(WARM_UP_RUNS + runs):
                os.write(file, bytes(len(run)))
            os.fsync(file)
            os.lseek(file, 0, os.SEEK_SET)
        write_runs(file, run, WARM_UP_RUNS)
        started_at = time.perf_counter()
        write_runs(file, run, runs)
        return per_second(runs * RUN, started_at)
    finally:
        os.close(file)


def write_runs(file: int, run: bytes, count: int) -> None:
    """Write the run so many times, with a sync after each."""
    for _ in range(count):
        written = os.write(file, run)
        assert written == len(run)
        os.fdatasync(file)


def send(directory: Path, *, runs: int, and_close: bool = False) -> float:
    """Penstock: durable sends, nobody receives."""
    messages = bodies(RUN)
    with penstock.open(directory) as ps:
        queue = ps.queue("runs")
        send_and_finish(queue, messages, WARM_UP_RUNS)
        started_at = time.perf_counter()
        for _ in range(runs):
            queue.send_many(messages)
        rate = per_second(runs * RUN, started_at)
    return per_second(runs * RUN, started_at) if and_close else rate


def cycle(directory: Path, *, runs: int) -> float:
    """Penstock: send, lease and ack, one after the other."""
    messages = bodies(RUN)
    with penstock.open(directory) as ps:
        queue = ps.queue("runs")
        send_and_finish(queue, messages, WARM_UP_RUNS)
        started_at = time.perf_counter()
        send_and_finish(queue, messages, runs)
        return per_second(runs * RUN, started_at)


def send_and_finish(queue: penstock.Queue, messages: list[bytes], count: int) -> None:
    """Send a run, receive it, ack it; so many times."""
    for _ in range(count):
        queue.send_many(messages)
        batch = queue.receive_batch(max=len(messages))
        assert len(batch) == len(messages)
        batch.ack()


def cycle_concurrent(directory: Path, *, runs: int) -> float:
    """Penstock: a producer and a consumer at the same time."""
    messages = bodies(RUN)
    with penstock.open(directory) as ps:
        queue = ps.queue("runs")
        send_and_finish(queue, messages, WARM_UP_RUNS)

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
    burst = scale.count(full=100, quick=3)
    sustained = scale.count(full=1000, quick=3)
    measured = take_turns(
        {
            APPENDED: partial(plain_file, runs=runs, preallocate=False),
            BURST: partial(send, runs=burst),
            CYCLE: partial(cycle, runs=runs),
            CYCLE_CONCURRENT: partial(cycle_concurrent, runs=runs),
            SUSTAINED: partial(send, runs=sustained),
            SUSTAINED_AND_CLOSED: partial(send, runs=sustained, and_close=True),
            PREALLOCATED: partial(plain_file, runs=runs, preallocate=True),
        },
        scale.turns(full=9),
        warm_up=not scale.quick,
    )
    targets = {BURST: 0.8, SUSTAINED: 0.8, CYCLE: 0.5, CYCLE_CONCURRENT: 0.5}
    rows = []
    for name in [APPENDED, PREALLOCATED, BURST, SUSTAINED, SUSTAINED_AND_CLOSED, CYCLE, CYCLE_CONCURRENT]:
        ratio = measured.ratio(name, to=APPENDED)
        to_preallocated = measured.ratio(name, to=PREALLOCATED)
        verdict = at_least(targets[name], ratio) if name in targets else ""
        rows.append([name, plain(measured.rate(name)), str(ratio), str(to_preallocated), verdict])
    header = ["", "messages/s", "of the appended file", "of the preallocated file", "target, of the appended file"]
    text = TEXT.format(burst=burst, sustained=sustained)
    report("a. Durable runs against a plain file", text, table(header, rows))


if __name__ == "__main__":
    main()
