"""Does a backlog slow anything down: receiving, memory, opening?

Every figure comes from a fresh process that opens the store, measures and reports. The large and the small store take
turns. Whatever a turn receives and acks it sends again, so that the backlog keeps its size from turn to turn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

import penstock
from bench.measure import (
    RUN,
    Measured,
    Ratio,
    at_least,
    at_most,
    bodies,
    empty_directory,
    plain,
    quartiles,
    report,
    table,
)

SMALL = 5_000
FIRST_RUNS = 2
"""Runs to receive after opening; and once more as many, in tens."""
TEXT = """
A store with {large:,} messages of 200 bytes waiting, against one with {small:,}. Each turn is a fresh process that
opens the store, and then does what consumers do, {rounds} times over: receive a run, ack it durably, and (not timed)
send as many again, so that the backlog keeps its length. *Receive and ack* is that loop's rate. Messages that are sent
again stay in the large store long enough to be written to its table; in the small store they are consumed before that.
*Receive alone* leaves out the ack and its sync. There the small store has an advantage: its messages are still in
memory from the send, while those of the large store are read from the table and have their checksums verified. The
clock stops when the bodies are there, as the buffer and offsets that a batch gives without copying. Another row has the
time to make a list of them, with an object for each. *After opening* is about the first messages, which both stores
have to read from the disk. Memory is the resident set of the process at the end (`VmRSS`); the sender is the process
that sent the whole backlog, at its end.
"""


class Turn(TypedDict):
    """What a fresh process reports of a store."""

    open_seconds: float
    first_runs: float
    first_tens: float
    steady: float
    steady_list: float
    steady_with_ack: float
    memory_mb: float


def memory_mb() -> float:
    """The resident set of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("/proc/self/status has no VmRSS")


# -- in the fresh process ----------------------------------------------------------------------------------------------


def fill(directory: Path, count: int) -> float:
    """Send `count` messages, in runs; the memory of the process when it is done."""
    messages = bodies(RUN)
    with penstock.open(directory) as ps:
        queue = ps.queue("backlog")
        for _ in range(count // RUN):
            queue.send_many(messages)
        assert queue.stats().messages == count
        return memory_mb()


def visit(directory: Path, rounds: int) -> Turn:
    """Open, receive, and leave the backlog as long as it was."""
    messages = bodies(RUN)
    started_at = time.perf_counter()
    ps = penstock.open(directory)
    open_seconds = time.perf_counter() - started_at
    with ps:
        queue = ps.queue("backlog")
        runs = finish(queue, FIRST_RUNS, size=RUN)
        tens = finish(queue, FIRST_RUNS * RUN // 10, size=10)
        for _ in range(2 * FIRST_RUNS):
            queue.send_many(messages)
        steady = Spent()
        for _ in range(rounds):
            steady.add(finish(queue, 1, size=RUN))
            queue.send_many(messages)
        return Turn(
            open_seconds=open_seconds,
            first_runs=runs.messages / runs.receive_seconds,
            first_tens=tens.messages / tens.receive_seconds,
            steady=steady.messages / steady.receive_seconds,
            steady_list=steady.messages / (steady.receive_seconds + steady.list_seconds),
            steady_with_ack=steady.messages / (steady.receive_seconds + steady.ack_seconds),
            memory_mb=memory_mb(),
        )


@dataclass
class Spent:
    """Messages that were received and acked, and the time it took."""

    messages: int = 0
    receive_seconds: float = 0.0
    list_seconds: float = 0.0
    """Making a list of the bodies, each an object of its own."""
    ack_seconds: float = 0.0

    def add(self, more: Spent) -> None:
        """Count these too."""
        self.messages += more.messages
        self.receive_seconds += more.receive_seconds
        self.list_seconds += more.list_seconds
        self.ack_seconds += more.ack_seconds


def finish(queue: penstock.Queue, times: int, *, size: int) -> Spent:
    """Receive so many messages, look at the last body, ack them; again and again."""
    spent = Spent()
    for _ in range(times):
        started_at = time.perf_counter()
        batch = queue.receive_batch(max=size)
        last_run = batch.runs[-1]
        last_body = last_run.buffer[last_run.offsets[-2] : last_run.offsets[-1]]
        received_at = time.perf_counter()
        as_list = batch.bodies
        listed_at = time.perf_counter()
        assert len(as_list) == size and as_list[-1] == last_body
        acking_at = time.perf_counter()
        batch.ack()
        acked_at = time.perf_counter()
        spent.add(Spent(size, received_at - started_at, listed_at - received_at, acked_at - acking_at))
    return spent


# -- in the process that compares --------------------------------------------------------------------------------------


def child(*arguments: str) -> str:
    """Run this script in a fresh process, and give what it prints."""
    command = [sys.executable, "-m", "bench.e_backlog", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def compare(small: Path, large: Path, turns: int, rounds: int) -> tuple[list[Turn], list[Turn]]:
    """Visit both stores in turns, after one visit that does not count."""
    visits: tuple[list[Turn], list[Turn]] = ([], [])
    for turn in range(-1, turns):
        for store, kept in zip((small, large), visits, strict=True):
            reported: Turn = json.loads(child("--visit", str(store), "--rounds", str(rounds)))
            if turn >= 0:
                kept.append(reported)
    return visits


def rate_row(what: str, small: list[float], large: list[float]) -> list[str]:
    """A row for rates: the large store should keep up."""
    measured = Measured({"small": small, "large": large})
    ratio = measured.ratio("large", to="small")
    return [what, plain(measured.rate("small")), plain(measured.rate("large")), str(ratio), at_least(0.9, ratio)]


def cost_row(what: str, small: list[float], large: list[float], unit: str) -> tuple[list[str], Ratio, float]:
    """A row for costs without its verdict; and ratio and difference to judge by."""
    small_median, large_median = quartiles(small).median, quartiles(large).median
    ratio = quartiles([one / other for one, other in zip(large, small, strict=True)])
    cells = [what, f"{plain(small_median)} {unit}", f"{plain(large_median)} {unit}", str(ratio)]
    return cells, ratio, large_median - small_median


def main() -> None:
    """Measure and print; or, as a child, do one step and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small version, to see that it runs: no figure to quote")
    parser.add_argument("--messages", type=int, default=5_000_000, help="the large backlog")
    parser.add_argument("--rounds", type=int, default=200, help="how many runs to receive in the steady part")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--visit", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        print(fill(options.fill, options.messages))
    elif options.visit:
        print(json.dumps(visit(options.visit, options.rounds)))
    elif options.quick:
        measure_and_report(large=4 * SMALL, turns=1, rounds=2)
    else:
        measure_and_report(large=options.messages, turns=7, rounds=options.rounds)


def measure_and_report(large: int, turns: int, rounds: int) -> None:
    """The benchmark itself."""
    with empty_directory() as small_directory, empty_directory() as large_directory:
        small_sender_mb = float(child("--fill", str(small_directory), "--messages", str(SMALL)))
        large_sender_mb = float(child("--fill", str(large_directory), "--messages", str(large)))
        small_turns, large_turns = compare(small_directory, large_directory, turns, rounds)

    opening, opening_ratio, _ = cost_row(
        "open",
        [1000 * turn["open_seconds"] for turn in small_turns],
        [1000 * turn["open_seconds"] for turn in large_turns],
        "ms",
    )
    memory, _, growth_mb = cost_row(
        "memory", [turn["memory_mb"] for turn in small_turns], [turn["memory_mb"] for turn in large_turns], "MB"
    )
    sender, _, sender_growth_mb = cost_row("memory of the sender", [small_sender_mb], [large_sender_mb], "MB")

    def rates(
        key: Literal["first_runs", "first_tens", "steady", "steady_list", "steady_with_ack"], what: str
    ) -> list[str]:
        return rate_row(what, [turn[key] for turn in small_turns], [turn[key] for turn in large_turns])

    rows = [
        rates("steady_with_ack", "receive and ack, runs of 1000, messages/s"),
        rates("steady", "receive alone, runs of 1000, messages/s"),
        rates("steady_list", "receive alone, as a list of bodies, runs of 1000, messages/s"),
        rates("first_runs", "receive after opening, runs of 1000, messages/s"),
        rates("first_tens", "receive after opening, tens, messages/s"),
        [*opening, at_most(3, opening_ratio.median, " times")],
        [*memory, f"{plain(growth_mb)} MB more; {at_most(100, growth_mb, ' MB')}"],
        [*sender, f"{plain(sender_growth_mb)} MB more; {at_most(100, sender_growth_mb, ' MB')}"],
    ]
    header = ["", f"{SMALL:,} waiting", f"{large:,} waiting", "large to small", "target"]
    text = TEXT.format(small=SMALL, large=large, rounds=rounds)
    report("e. A long backlog against a short one", text, table(header, rows))


if __name__ == "__main__":
    main()
