"""Run many seeds: `python -m tests.simulation.soak --seeds 10000 [--start N] [--jobs 2]`.

Without `--start`, half of them are of the kind whose clients do all that there is, and the rest of the older kinds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from multiprocessing import get_context

from tests.simulation.model import Violation
from tests.simulation.shrink import reason
from tests.simulation.simulator import (
    OPERATING_SEEDS,
    PUSHING_SEEDS,
    RECALLING_SEEDS,
    REPEATING_SEEDS,
    RESTARTING_SEEDS,
    STAGING_SEEDS,
    WHOLE_SEEDS,
    run_seed,
)

FAILURES_SHOWN_MAX = 3


def _attempt(seed: int) -> tuple[int, Counter[str], str]:
    try:
        return seed, run_seed(seed), ""
    except Violation as violation:
        return seed, Counter(), str(violation)


def spread(count: int) -> list[int]:
    """So many seeds, of every kind.

    >>> [seed // 1_000_000 for seed in spread(10)]
    [0, 1, 3, 3, 3, 4, 4, 5, 6, 8]
    """
    pushing = staging = restarting = operating = count // 10
    repeating = count // 20
    whole = 3 * count // 10
    recalling = count // 5
    counts = {
        0: count - pushing - repeating - whole - recalling - restarting - staging - operating,
        PUSHING_SEEDS: pushing,
        REPEATING_SEEDS: repeating,
        WHOLE_SEEDS: whole,
        RECALLING_SEEDS: recalling,
        RESTARTING_SEEDS: restarting,
        STAGING_SEEDS: staging,
        OPERATING_SEEDS: operating,
    }
    return [seed for first, some in counts.items() for seed in range(first, first + some)]


def _results(seeds: Sequence[int], jobs: int) -> Iterator[tuple[int, Counter[str], str]]:
    if jobs == 1:
        yield from map(_attempt, seeds)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_attempt, seeds, chunksize=16)


def soak(seeds: Sequence[int], jobs: int) -> int:
    """Run the seeds, print progress and a summary, and say how many failed."""
    totals: Counter[str] = Counter()
    failed: list[int] = []
    reasons: defaultdict[str, list[int]] = defaultdict(list)
    began = time.monotonic()
    for done, (seed, counts, failure) in enumerate(_results(seeds, jobs), start=1):
        totals += counts
        if failure:
            failed.append(seed)
            reasons[reason(failure)].append(seed)
            if len(failed) <= FAILURES_SHOWN_MAX:
                print(f"\n{failure}\n", flush=True)
        if done % max(1, len(seeds) // 20) == 0:
            print(
                f"{done:>7} of {len(seeds)} seeds, {time.monotonic() - began:.0f} s, failed: {len(failed)}", flush=True
            )
    print(f"\n{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}, in {time.monotonic() - began:.0f} s:")
    for name, count in sorted(totals.items()):
        print(f"  {count:>10,}  {name}")
    print(f"  {len(failed):>10,}  seeds failed" + (f": {sorted(failed)[:50]}" if failed else ""))
    for why, those in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"{len(those):>6} × {why}: {sorted(those)[:8]}")
    return len(failed)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run")
    parser.add_argument("--start", type=int, help="the first seed, of seeds in a row")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes")
    arguments = parser.parse_args()
    start = arguments.start
    seeds = spread(arguments.seeds) if start is None else range(start, start + arguments.seeds)
    return 1 if soak(seeds, arguments.jobs) else 0


if __name__ == "__main__":
    sys.exit(main())
