"""Does the core loop over messages? Compare it, without a disk, to the smallest loop that does."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from pathlib import Path

import penstock
from bench.a_durable_runs import send_and_finish
from bench.measure import Measured, Scale, at_least, bodies, parse_scale, per_second, plain, report, table, take_turns

TEXT = """
Send, lease and ack in the memory store, through the public API, in one thread. The baseline is a queue without any of
Penstock's duties: a deque of what waits and a dict of what is in flight, and for each message an append, a pop, an
entry and its deletion. It loops over messages; a core that does the same cannot beat it. For small runs the baseline
wins: there the price of a call counts, which it does not have.
"""

LOOP = "deque and dict"
PENSTOCK = "Penstock"


def bare_loop(directory: Path, *, run: int, rounds: int) -> float:
    """The baseline. The messages of a run go in, then out, then are forgotten, one by one."""
    messages = bodies(run)
    waiting: deque[bytes] = deque()
    in_flight: dict[int, bytes] = {}
    sequence = 0
    started_at = time.perf_counter()
    for _ in range(rounds):
        for body in messages:
            waiting.append(body)
        leased = range(sequence, sequence + run)
        for number in leased:
            in_flight[number] = waiting.popleft()
        for number in leased:
            del in_flight[number]
        sequence += run
    return per_second(rounds * run, started_at)


def memory_store(directory: Path, *, run: int, rounds: int) -> float:
    """Penstock on the memory store."""
    messages = bodies(run)
    with penstock.open(":memory:") as ps:
        queue = ps.queue("memory")
        send_and_finish(queue, messages, rounds // 10)
        started_at = time.perf_counter()
        send_and_finish(queue, messages, rounds)
        return per_second(rounds * run, started_at)


def measure(run: int, scale: Scale) -> Measured:
    """The two, in turns, with about as much work whatever the run's length."""
    rounds = scale.count(full=2000, quick=3)
    return take_turns(
        {LOOP: partial(bare_loop, run=run, rounds=rounds), PENSTOCK: partial(memory_store, run=run, rounds=rounds)},
        scale.turns(full=9),
        warm_up=not scale.quick,
    )


def main() -> None:
    """Measure and print."""
    scale = parse_scale(__doc__)
    rows = []
    for run in [1, 10, 100, 1000]:
        measured = measure(run, scale)
        ratio = measured.ratio(PENSTOCK, to=LOOP)
        microseconds = 1e6 * run / measured.rate(PENSTOCK)
        rows.append(
            [
                f"{run}",
                plain(measured.rate(LOOP)),
                plain(measured.rate(PENSTOCK)),
                plain(microseconds),
                str(ratio),
                at_least(3, ratio) if run == 1000 else "",
            ]
        )
    header = ["run", "deque and dict, messages/s", "Penstock, messages/s", "us a cycle", "ratio", "target"]
    report("d. The core against a bare loop", TEXT, table(header, rows))


if __name__ == "__main__":
    main()
