"""Every attack against a server of its own: how long `/healthz` takes meanwhile, how much memory there is, and after.

python -m tests.attacks.soak [--seconds 10] [ATTACK ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from tests.attacks.attacks import ATTACKS
from tests.attacks.target import BUDGET_BYTES, MIB, SETTINGS, Watch, attack, target

RETURN_SECONDS = 10.0
MEMORY_BYTES_MORE = 192 * MIB
"""What a server may have beyond its memory at rest and its budget: requests at work, what the store holds before it is
applied to the table (64 MiB, twice while that is going on), and what malloc keeps of it."""
HEALTH_SECONDS_MAX = 0.1
"""The 99th percentile, beyond what it is without an attack."""


class Figures(msgspec.Struct):
    """What an attack did."""

    rest_bytes: int
    """Resident before it."""
    peak_bytes: int
    after_bytes: int
    """When the attacker had been gone for a while."""
    p50_s: float
    p99_s: float
    worst_s: float
    asked: int

    @property
    def has_kept_to_its_memory(self) -> bool:
        """Whether the peak was within the budget."""
        return self.peak_bytes - self.rest_bytes < BUDGET_BYTES + MEMORY_BYTES_MORE

    @property
    def line(self) -> str:
        """For people."""
        memory = (self.rest_bytes, self.peak_bytes, self.after_bytes)
        times = (self.p50_s, self.p99_s, self.worst_s)
        return "  ".join([*(f"{each / MIB:6.0f}" for each in memory), *(f"{each * 1_000:8.1f}" for each in times)])


def run(name: str, directory: Path, seconds: float, settings: str = SETTINGS) -> Figures:
    """One attack, from a server's start to its end."""
    with target(directory, settings) as server:
        server.fill()
        server.health_seconds()
        rest_bytes = server.memory_bytes()
        server.forget_peak()
        with attack(name, server, seconds) as attacker:
            watch = Watch(server)
            attacker.wait()
            watch.stop()
        peak_bytes = server.peak_bytes()
        deadline_s = time.monotonic() + RETURN_SECONDS
        while time.monotonic() < deadline_s and server.memory_bytes() > rest_bytes + MEMORY_BYTES_MORE // 2:
            server.health_seconds()
            time.sleep(0.2)
        return Figures(
            rest_bytes,
            peak_bytes,
            server.memory_bytes(),
            watch.percentile(0.5),
            watch.percentile(0.99),
            max(watch.seconds),
            len(watch.seconds),
        )


def main() -> int:
    """Run the attacks; 1 if one of them was too much for the server."""
    parser = argparse.ArgumentParser(description="Attack servers, and measure what that does to them.")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each attack takes")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"of {', '.join(ATTACKS)}; by default all")
    chosen = parser.parse_args()
    print(f"{'':28}memory: rest, peak, after (MiB)   /healthz: p50, p99, worst (ms)")
    failed: list[str] = []
    quiet_s = 0.0
    for name in chosen.attacks or ATTACKS:
        with tempfile.TemporaryDirectory() as directory:
            figures = run(name, Path(directory), chosen.seconds)
        print(f"{name:28}{figures.line}", flush=True)
        if name == "nobody":
            quiet_s = figures.p99_s
        elif not figures.has_kept_to_its_memory or figures.p99_s > HEALTH_SECONDS_MAX + quiet_s:
            failed.append(name)
    print(f"too much: {', '.join(failed)}" if failed else "every attack was withstood")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
