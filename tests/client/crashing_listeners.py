"""Listeners that move messages in units of work, and are killed (SIGKILL) again and again: a process that forks them.

`python -m tests.client.crashing_listeners PENSTOCK_URL SEED KILLS` keeps three at work, from queue `in` to `out`. They
kill themselves in the middle of a handler, and this process kills one every now and then. After so many deaths it says
`calm`, and lets its last children work in peace until its standard input ends.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import penstock


def work(url: str, seed: float, danger: float) -> None:
    """Move messages, until killed."""
    chance = random.Random(seed)

    def move(message: penstock.Message, tx: penstock.UnitOfWork) -> None:
        tx.put("out", message.body)
        time.sleep(chance.uniform(0.0, 0.002))
        if chance.random() < danger:
            os.kill(os.getpid(), signal.SIGKILL)

    with penstock.connect(url) as ps:
        ps.listen("in", move, workers=3, lease=2).run_forever()


def start(url: str, chance: random.Random, danger: float) -> int:
    """A child at work."""
    seed = chance.random()
    child = os.fork()
    if child:
        return child
    try:
        work(url, seed, danger)
    finally:
        os._exit(1)


def main() -> None:
    """Let them work, and die."""
    url, chance, kills = sys.argv[1], random.Random(int(sys.argv[2])), int(sys.argv[3])
    children = {start(url, chance, 0.02) for _ in range(3)}
    deaths = 0
    while deaths < kills:
        time.sleep(chance.uniform(0.0, 0.1))
        if chance.random() < 0.1:
            os.kill(chance.choice(sorted(children)), signal.SIGKILL)
        while (child := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            deaths += 1
            children.remove(child)
            children.add(start(url, chance, 0.02))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    children = {start(url, chance, 0.0) for _ in range(3)}
    print("calm", flush=True)
    sys.stdin.read()
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
