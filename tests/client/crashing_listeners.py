"""Listeners that move messages in units of work, and are killed (SIGKILL) again and again: a process that forks them.

`python -m tests.client.crashing_listeners PENSTOCK_URL SEED KILLS [LOG]` keeps three at work. From queue `in` each
message goes to `out` and to `copy`, in one unit of work. With a LOG they also handle queue `once`, and write each
message there. They kill themselves in the middle of a handler, and this process kills one every now and then. After so
many deaths it says `calm`, and lets its last children work in peace until its standard input ends.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable

import penstock


def connected(url: str) -> penstock.Penstock:
    """A client, as soon as there is a server."""
    while True:
        try:
            return penstock.connect(url)
        except penstock.ConnectionLost:
            time.sleep(0.05)


class Storm:
    """The children, and how they die."""

    def __init__(self, url: str, seed: int, log: str | None) -> None:
        self._url = url
        self._log = log
        self._chance = random.Random(seed)
        self._danger = 0.02
        self._children = {self._start() for _ in range(3)}
        self.deaths = 0

    def _start(self) -> int:
        seed = self._chance.random()
        child = os.fork()
        if child:
            return child
        try:
            self._work(random.Random(seed))
        finally:
            os._exit(1)

    def _work(self, chance: random.Random) -> None:
        """Move messages, until killed."""

        def die() -> None:
            time.sleep(chance.uniform(0.0, 0.002))
            if chance.random() < self._danger:
                os.kill(os.getpid(), signal.SIGKILL)

        def move(message: penstock.Message, tx: penstock.UnitOfWork) -> None:
            tx.put("out", message.body)
            tx.put("copy", message.body)
            die()

        with connected(self._url) as ps:
            if self._log is not None:
                ps.listen("once", logging_to(self._log, die), workers=2)
            ps.listen("in", move, workers=3, lease=2).run_forever()

    def blow(self) -> None:
        """For a moment; then everybody who died has a successor."""
        time.sleep(self._chance.uniform(0.0, 0.1))
        if self._chance.random() < 0.1:
            os.kill(self._chance.choice(sorted(self._children)), signal.SIGKILL)
        while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
            self.deaths += os.WIFSIGNALED(ended[1])
            self._children.remove(ended[0])
            self._children.add(self._start())

    def calm(self) -> None:
        """Everybody anew, and nobody dies any more."""
        self.end()
        self._danger = 0.0
        self._children = {self._start() for _ in range(3)}

    def end(self) -> None:
        for child in self._children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def logging_to(path: str, die: Callable[[], None]) -> Callable[[penstock.Message], None]:
    """A handler that writes down what it was given before anything can happen to it."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(message: penstock.Message) -> None:
        os.write(log, message.body + b"\n")
        die()

    return note


def main() -> None:
    """Let them work, and die."""
    storm = Storm(sys.argv[1], int(sys.argv[2]), sys.argv[4] if len(sys.argv) > 4 else None)
    while storm.deaths < int(sys.argv[3]):
        storm.blow()
    storm.calm()
    print("calm", flush=True)
    sys.stdin.read()
    storm.end()


if __name__ == "__main__":
    main()
