"""Does the core loop over messages? Compare it, without a disk, to the smallest loop that does."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import penstock
from bench.a_durable_runs import send_and_finish
from bench.measure import Measured, Scale, at_least, bodies, parse_scale, per_second, plain, report, table, take_turns
from penstock.core.broker import Broker
from penstock.core.commands import Ack, Command, CreateQueue, Delivery, Receive, Send
from penstock.store.memory import MemoryStore

TEXT = """
Send, lease and ack in the memory store, in one thread: the core alone (a broker, a step for each command, a commit to
the memory store for each send and each ack), and through the public API with its thread-safety, checks and copies. The
baseline is a queue without any of Penstock's duties: a deque of what waits and a dict of what is in flight, and for
each message an append, a pop, an entry and its deletion. It loops over messages; a core that does the same cannot beat
it. For small runs the baseline wins: there the price of a call counts, which it does not have.
"""

LOOP = "deque and dict"
CORE = "core"
API = "API"


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


def core(directory: Path, *, run: int, rounds: int) -> float:
    """The core on the memory store, driven as a shard drives it."""
    messages = bodies(run)
    store = MemoryStore()
    broker = Broker.open(store, 0, bytes(64))

    def step(command: Command) -> Any:
        reply = broker.handle(command, 0)
        broker.finish(0)
        if broker.must_commit:
            changes = broker.take_changes()
            store.commit(changes)
            broker.committed(changes)
        return reply

    step(CreateQueue(name="memory"))
    started_at = time.perf_counter()
    for _ in range(rounds):
        step(Send(queue="memory", bodies=messages))
        delivery: Delivery = step(Receive(queue="memory", limit=run))
        spans = [span for leased in delivery.runs for span in leased.spans()]
        assert step(Ack(queue="memory", spans=spans)).count == run
    return per_second(rounds * run, started_at)


def api(directory: Path, *, run: int, rounds: int) -> float:
    """Penstock on the memory store, through the API."""
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
        {
            LOOP: partial(bare_loop, run=run, rounds=rounds),
            CORE: partial(core, run=run, rounds=rounds),
            API: partial(api, run=run, rounds=rounds),
        },
        scale.turns(full=9),
        warm_up=not scale.quick,
    )


def main() -> None:
    """Measure and print."""
    scale = parse_scale(__doc__)
    rows = []
    for run in [1, 10, 100, 1000]:
        measured = measure(run, scale)
        ratio = measured.ratio(CORE, to=LOOP)
        rows.append(
            [
                f"{run}",
                plain(measured.rate(LOOP)),
                plain(measured.rate(CORE)),
                plain(1e6 * run / measured.rate(CORE)),
                str(ratio),
                at_least(3, ratio) if run == 1000 else "",
                str(measured.ratio(API, to=LOOP)),
            ]
        )
    header = ["run", "deque and dict, messages/s", "core, messages/s", "us a cycle", "ratio", "target", "API, ratio"]
    report("d. The core against a bare loop", TEXT, table(header, rows))


if __name__ == "__main__":
    main()
