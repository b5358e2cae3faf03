"""The proofs of SQS, longer: `python -m tests.compat.soak [--kills N] [--hang-ups N] [--mutations N] [--polls N]`."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.compat.examples import examples, make_queues
from tests.compat.hang_ups import POLLS, HangUps
from tests.compat.long_polls import wait_and_answer
from tests.compat.mutations import Mutator
from tests.compat.server import allow_many_sockets, serving
from tests.compat.traffic import Traffic

KILLS_A_DIRECTORY = 20
"""Directories grow, and looking through them takes its time."""


def kill(kills: int, seed: int) -> str:
    """kill -9 under the traffic of boto3 clients."""
    done = 0
    totals: dict[str, int] = {}
    while done < kills:
        some = min(KILLS_A_DIRECTORY, kills - done)
        with tempfile.TemporaryDirectory() as directory:
            counts = _kill_in(Path(directory), some, seed)
        totals = {name: totals.get(name, 0) + count for name, count in counts.items()}
        done += some
        seed += 1
        print(f"  {done} of {kills} kills", flush=True)
    return f"{kills} kills; " + ", ".join(f"{name}: {count:,}" for name, count in sorted(totals.items()))


def _kill_in(directory: Path, kills: int, seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    with serving(directory) as server:
        traffic = Traffic(server, seed)
        traffic.start()
        for _ in range(kills):
            traffic.run_for(rng.random() ** 2)
            server.kill()
            traffic.check()
            server.start()
        traffic.stop()
        assert server.stop() == 0
        traffic.check()
    return dict(traffic.counts)


def hang_up(times: int, seed: int) -> str:
    """Long polls whose clients leave around the moment when a message comes."""
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as server:
        hang_ups = HangUps(server, seed)
        hang_ups.run(times // POLLS)
    return ", ".join(f"{name}: {count:,}" for name, count in sorted(hang_ups.counts.items()))


def mutate(times: int, seed: int) -> str:
    """Damaged requests."""
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as server:
        mutator = Mutator(server, examples(server, make_queues(server)), seed)
        mutator.run(times)
        assert server.is_healthy()
    return f"{times:,} damaged requests; answers by status: {dict(sorted(mutator.statuses.items()))}"


def wait(polls: int, _seed: int) -> str:
    """Many long polls at once."""
    allow_many_sockets()
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as server:
        return str(wait_and_answer(server, polls))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many kill -9 under traffic")
    parser.add_argument("--hang-ups", type=int, default=10_000, help="how many clients hang up")
    parser.add_argument("--mutations", type=int, default=200_000, help="how many damaged requests")
    parser.add_argument("--polls", type=int, default=5_000, help="how many long polls at once")
    parser.add_argument("--seed", type=int, default=1_000, help="the first seed")
    arguments = parser.parse_args()
    proofs: list[tuple[Callable[[int, int], str], int]] = [
        (wait, arguments.polls),
        (hang_up, arguments.hang_ups),
        (mutate, arguments.mutations),
        (kill, arguments.kills),
    ]
    for proof, times in proofs:
        if times:
            began = time.monotonic()
            print(f"{proof(times, arguments.seed)} ({time.monotonic() - began:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
