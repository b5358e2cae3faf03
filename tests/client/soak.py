"""Listeners under fire: `python -m tests.client.soak --kills 200 [--seed N]`.

For each seed a server, a proxy, three processes of listeners (`crashing_listeners.py`) and faults: the processes die by
SIGKILL, in the middle of handlers and otherwise; so does the server; connections are cut, reset, truncated, half-closed
and stalled. With every other seed, messages may leave before they are on the disk. In the end everything is let
through, and counted:

    lost        an acknowledged send that did not come through
    twice       a message that came through twice
    half done   a unit of work of which one put is there and the other is not
    at most     a message of a consume_once queue that was handled more than once
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import penstock
from tests.faults.fire import Fire

KILLS_A_SEED = 25
DRAIN_SECONDS_MAX = 600.0
BURN_EVERY_S = 0.7
ROOT = Path(__file__).resolve().parents[2]


class Sender:
    """Sends numbers, straight to the server, and knows which were acknowledged."""

    def __init__(self, ps: penstock.Penstock) -> None:
        self._ps = ps
        self._next = 0
        self.tried: set[int] = set()
        self.acknowledged: set[int] = set()

    def send(self) -> None:
        """A few, to both queues."""
        numbers = range(self._next, self._next + 5)
        self._next += 5
        self.tried.update(numbers)
        bodies = [str(number) for number in numbers]
        try:
            self._ps.queue("in").send_many(bodies)
            self.acknowledged.update(numbers)
            self._ps.queue("once").send_many(bodies)
        except penstock.ConnectionLost:
            time.sleep(0.05)


def run(seed: int, kills: int, directory: Path) -> Counter[str]:
    """One seed: what happened, and what was found wrong."""
    log = directory / "handled"
    log.touch()
    with Fire(directory, seed) as fire, penstock.connect(fire.direct_url, timeout=60) as ps:
        ps.create_queue("in", max_receives=0, deliver_unsynced=seed % 2 == 1)
        ps.create_queue("once", policy="consume_once")
        sender = Sender(ps)
        storm(fire, sender, [fire.url, str(seed), str(kills), str(log)], ps)
        out, copy = (Counter(numbers(ps, queue)) for queue in ("out", "copy"))
    found = fire.counts + Counter({"listener kills": kills, "messages": len(sender.acknowledged)})
    handled = Counter(map(int, log.read_text().split()))
    found["handled at most once"] = len(handled)
    return found + wrong(sender.tried, sender.acknowledged, out, copy, handled)


def wrong(
    tried: set[int], acknowledged: set[int], out: Counter[int], copy: Counter[int], handled: Counter[int]
) -> Counter[str]:
    """What must not be: counted by kinds, whose names are in capitals."""
    return Counter(
        {
            "LOST": len(acknowledged - out.keys()),
            "INVENTED": len((out | handled).keys() - tried),
            "TWICE": sum(count > 1 for count in out.values()),
            "HALF DONE": len((out - copy) + (copy - out)),
            "AT MOST BROKEN": sum(count > 1 for count in handled.values()),
        }
    )


def storm(fire: Fire, sender: Sender, arguments: list[str], ps: penstock.Penstock) -> None:
    """Send and burn until enough have died; then let everything through."""
    command = [sys.executable, "-m", "tests.client.crashing_listeners", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        try:
            next_s = time.monotonic() + BURN_EVERY_S
            while process.stdout.readline() != "calm\n":
                assert process.poll() is None, "the listeners ended by themselves"
                sender.send()
                time.sleep(0.02)
                if time.monotonic() >= next_s:
                    fire.burn()
                    next_s = time.monotonic() + BURN_EVERY_S
            deadline = time.monotonic() + DRAIN_SECONDS_MAX
            while any(ps.queue(queue).stats().messages for queue in ("in", "once")):
                assert time.monotonic() < deadline, "not drained"
                time.sleep(0.05)
        finally:
            process.stdin.close()
            process.wait(60)


def numbers(ps: penstock.Penstock, queue: str) -> list[int]:
    """Everything that ever came to a queue."""
    found: list[int] = []
    consumer = ps.queue(queue).consumer("check")
    while records := consumer.read(10_000, offset=len(found)):
        found += [int(record.body) for record in records]
    return found


def soak(kills: int, seed: int) -> int:
    """Run seeds until so many have died; how many things were found wrong."""
    totals: Counter[str] = Counter()
    began = time.monotonic()
    while totals["listener kills"] < kills:
        with tempfile.TemporaryDirectory(prefix="penstock-listeners-") as directory:
            found = run(seed, min(KILLS_A_SEED, kills - totals["listener kills"]), Path(directory))
        totals += found
        broken = sum(count for name, count in totals.items() if name.isupper())
        told = f"{totals['listener kills']:>6} of {kills} kills, {time.monotonic() - began:.0f} s, broken: {broken}"
        print(f"{told} (seed {seed})" if any(map(str.isupper, found)) else told, flush=True)
        seed += 1
    print(", ".join(f"{name}: {count:,}" for name, count in sorted(totals.items())))
    return sum(count for name, count in totals.items() if name.isupper())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="how many processes of listeners are killed")
    parser.add_argument("--seed", type=int, default=1_000, help="the first seed")
    arguments = parser.parse_args()
    return 1 if soak(arguments.kills, arguments.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
