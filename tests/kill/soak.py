"""Many kills: `python -m tests.kill.soak --kills 500 [--seed N]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.kill.killer import Killer, PromiseBroken

KILLS_A_DIRECTORY = 25


def soak(kills: int, seed: int) -> int:
    """Kill, print progress and a summary, and say how many directories were found wrong."""
    totals: Counter[str] = Counter()
    broken = 0
    began = time.monotonic()
    while totals["kills"] < kills:
        with tempfile.TemporaryDirectory(prefix="penstock-kill-") as directory:
            killer = Killer(Path(directory), seed)
            try:
                for _ in range(min(KILLS_A_DIRECTORY, kills - totals["kills"])):
                    killer.kill_once()
            except PromiseBroken as promise:
                broken += 1
                killer.counts["kills"] = max(1, killer.counts["kills"])
                print(f"seed {seed}, kill {killer.counts['kills']}: {promise}", flush=True)
        totals += killer.counts
        seed += 1
        print(f"{totals['kills']:>6} of {kills} kills, {time.monotonic() - began:.0f} s, broken: {broken}", flush=True)
    print(", ".join(f"{name}: {count:,}" for name, count in sorted(totals.items())))
    return broken


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500, help="how many kills")
    parser.add_argument("--seed", type=int, default=1_000, help="the first seed")
    arguments = parser.parse_args()
    return 1 if soak(arguments.kills, arguments.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
