"""How does Penstock compare to the embedded queues that one finds on PyPI, on the same work, with the same syncs?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from bench.measure import (
    RUN,
    Contender,
    Measured,
    Scale,
    at_least,
    bodies,
    in_threads,
    parse_scale,
    plain,
    report,
    table,
    take_turns,
)
from bench.rivals import Lite, Penstock, Persist, Rival

THREADS = 64
TEXT = f"""
litequeue and persist-queue (`SQLiteAckQueue`) keep their messages in SQLite. All three sync every commit: both others
run with WAL and `synchronous=FULL`. They get more than their own interface offers, see `bench/rivals.py`: a run is
one transaction for each step, finished messages are removed outside the measured time, and threads take turns by a
lock instead of SQLite's sleeping busy handler.

*Singles*: {THREADS} threads, each sending, receiving and acking one message at a time. *Runs*: one thread, {RUN}
messages at a time. 200 bytes a message. The ratio is to the better of the two.
"""

RIVALS: Mapping[str, Callable[[Path], Rival]] = {"Penstock": Penstock, "litequeue": Lite, "persist-queue": Persist}
OTHERS = ["litequeue", "persist-queue"]


def warm_up(rival: Rival, messages: list[bytes]) -> None:
    """One cycle that does not count."""
    rival.send_run(messages)
    rival.finish_run(len(messages))
    rival.tidy()


def send_singles(directory: Path, *, start: Callable[[Path], Rival], count_each: int) -> float:
    """Every thread sends one message at a time."""
    rival = start(directory)
    warm_up(rival, bodies(RUN // 10))
    messages = bodies(count_each)

    def work() -> None:
        for body in messages:
            rival.send(body)

    seconds = in_threads(THREADS, work)
    rival.close()
    return THREADS * count_each / seconds


def cycle_singles(directory: Path, *, start: Callable[[Path], Rival], count_each: int) -> float:
    """Every thread sends one message, receives one, acks it, and begins again."""
    rival = start(directory)
    warm_up(rival, bodies(RUN // 10))
    messages = bodies(count_each)

    def work() -> None:
        for body in messages:
            rival.send(body)
            rival.finish()

    seconds = in_threads(THREADS, work)
    rival.close()
    return THREADS * count_each / seconds


def send_runs(directory: Path, *, start: Callable[[Path], Rival], runs: int) -> float:
    """One thread sends a run at a time."""
    rival = start(directory)
    messages = bodies(RUN)
    warm_up(rival, messages)
    started_at = time.perf_counter()
    for _ in range(runs):
        rival.send_run(messages)
    seconds = time.perf_counter() - started_at
    rival.close()
    return runs * RUN / seconds


def cycle_runs(directory: Path, *, start: Callable[[Path], Rival], runs: int) -> float:
    """One thread sends a run, receives it, acks it, and begins again."""
    rival = start(directory)
    messages = bodies(RUN)
    warm_up(rival, messages)
    seconds = 0.0
    for _ in range(runs):
        started_at = time.perf_counter()
        rival.send_run(messages)
        rival.finish_run(RUN)
        seconds += time.perf_counter() - started_at
        rival.tidy()
    rival.close()
    return runs * RUN / seconds


def measure(work: Callable[..., float], scale: Scale, **how_much: int) -> Measured:
    """The three at the same work, in turns."""
    contenders: dict[str, Contender] = {name: partial(work, start=start, **how_much) for name, start in RIVALS.items()}
    return take_turns(contenders, scale.turns(full=7), warm_up=not scale.quick)


def main() -> None:
    """Measure and print."""
    scale = parse_scale(__doc__)
    each = scale.count(full=20, quick=2)
    runs = scale.count(full=30, quick=1)
    measured = {
        "singles, send": (measure(send_singles, scale, count_each=each), 3),
        "singles, send, lease, ack": (measure(cycle_singles, scale, count_each=each), 3),
        "runs, send": (measure(send_runs, scale, runs=runs), 20),
        "runs, send, lease, ack": (measure(cycle_runs, scale, runs=runs), 20),
    }
    rows = []
    for what, (result, target) in measured.items():
        ratio = result.ratio("Penstock", to=result.fastest(OTHERS))
        rates = [plain(result.rate(name)) for name in RIVALS]
        rows.append([what, *rates, str(ratio), at_least(target, ratio)])
    header = ["messages/s", *RIVALS, "Penstock to the better one", "target"]
    report("c. Against litequeue and persist-queue", TEXT, table(header, rows))


if __name__ == "__main__":
    main()
