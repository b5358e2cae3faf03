"""Many seeds: `python -m tests.faults.soak --seeds 100 [--seed N] [--faults 8] [--database postgresql]`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.faults.promises import PromiseBroken
from tests.faults.world import World


def soak(seeds: int, first: int, faults: int, database: str) -> int:
    """Run seeds, print progress and a summary; how many broke a promise. What they left is kept, to be looked at."""
    totals: Counter[str] = Counter()
    broken = 0
    began = time.monotonic()
    with ExitStack() as stack:
        postgres = None
        if database == "postgresql":
            from tests.outbox.postgres import PostgresServer

            postgres = PostgresServer()
            stack.callback(postgres.stop)
        for seed in range(first, first + seeds):
            directory = Path(tempfile.mkdtemp(prefix="penstock-faults-"))
            world = World(directory, seed, None if postgres is None else postgres.create_database(f"seed_{seed}"))
            try:
                world.run(faults)
                shutil.rmtree(directory)
            except PromiseBroken as promise:
                broken += 1
                print(f"seed {seed} ({world.transport}), see {directory}: {promise}", flush=True)
            totals += world.counts
            done = seed - first + 1
            print(f"{done:>5} of {seeds} seeds, {time.monotonic() - began:.0f} s, broken: {broken}", flush=True)
    print(", ".join(f"{name}: {count:,}" for name, count in sorted(totals.items())))
    return broken


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds")
    parser.add_argument("--seed", type=int, default=1_000, help="the first seed")
    parser.add_argument("--faults", type=int, default=8, help="faults in each")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite", help="where the outbox is")
    arguments = parser.parse_args()
    return 1 if soak(arguments.seeds, arguments.seed, arguments.faults, arguments.database) else 0


if __name__ == "__main__":
    sys.exit(main())
