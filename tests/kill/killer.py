"""Kill a working process again and again, and compare what is there with what was promised."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import penstock
from tests.kill import child

START_SECONDS_MAX = 60
EVERYTHING = 10_000_000


class PromiseBroken(AssertionError):
    """Something acknowledged is not so."""


@dataclass(slots=True)
class Promises:
    """What the log says, over all lives of the process."""

    tried: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    maybe_done: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    maybe_moved: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    order: dict[str, int] = field(default_factory=dict)
    """Group -> the last number that was confirmed as done."""
    held: dict[int, str] = field(default_factory=dict)
    """What was received and not acknowledged, with the receipts: nobody else can have got it."""

    def read(self, lines: Iterable[str]) -> None:
        where = {"S": self.tried, "s": self.sent, "A": self.maybe_done, "a": self.done, "F": self.maybe_done}
        where |= {"M": self.maybe_moved, "m": self.moved, "f": self.done}
        for line in lines:
            kind, *words = line.split()
            if kind == "R":
                self.held[int(words[0])] = words[1]
                continue
            if kind == "A":
                for word in words:
                    self.held.pop(int(word), None)
            if kind == "x":
                raise PromiseBroken(f"received before a crash, and refused after it: {words[0]}")
            if kind in ("F", "f"):
                group, *words = words
                if kind == "f":
                    self._in_order(group, int(words[0]))
            where[kind].update(map(int, words))

    def _in_order(self, group: str, number: int) -> None:
        last = self.order.get(group, -1)
        _demand(number > last, f"group {group}: {number} was done after {last}")
        self.order[group] = number

    def check(self, waiting: set[int], moved: list[int]) -> None:
        """`waiting`: numbers that can still be received from the first queues; `moved`: what is in the last one."""
        out = set(moved)
        _demand(len(out) == len(moved), f"moved twice: {[n for n, times in Counter(moved).items() if times > 1]}")
        _demand(not waiting & self.done, f"done, and back: {sorted(waiting & self.done)[:20]}")
        _demand(not waiting & out, f"moved, and still there: {sorted(waiting & out)[:20]}")
        _demand(self.moved <= out, f"moved, and gone: {sorted(self.moved - out)[:20]}")
        _demand(out <= self.maybe_moved, f"moved without being asked: {sorted(out - self.maybe_moved)[:20]}")
        lost = self.sent - waiting - out - self.maybe_done
        _demand(not lost, f"acknowledged, and lost: {sorted(lost)[:20]}")
        invented = waiting - self.tried
        _demand(not invented, f"nobody sent these: {sorted(invented)[:20]}")


def _demand(condition: object, message: str) -> None:
    if not condition:
        raise PromiseBroken(message)


class Killer:
    """One directory, many lives."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory / "data"
        self.log_path = directory / "log"
        self.rng = random.Random(seed)
        self.promises = Promises()
        self.counts: Counter[str] = Counter()
        self._read_bytes = 0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.kill.child"])

    def kill_once(self) -> None:
        """One life, one death, one look."""
        ready, held = self._context.Event(), list(self.promises.held.items())
        arguments = (self.directory, self.log_path, self.rng.randrange(1 << 30), self._first_number(), held, ready)
        process = self._context.Process(target=child.run, args=arguments)
        process.start()
        try:
            _demand(ready.wait(START_SECONDS_MAX), "the process did not open its directory")
            time.sleep(self.rng.choice([0.0, 0.02, 0.06, 0.15]) * self.rng.random() * 2)
            _demand(process.is_alive(), "the process ended by itself")
        finally:
            process.kill()
            process.join()
        self.counts["kills"] += 1
        self.check(held)

    def _first_number(self) -> int:
        return max(self.promises.tried, default=0) + 1

    def check(self, held: Sequence[tuple[int, str]] = ()) -> None:
        """Compare what is there with what was promised. `held` was to be settled in this life."""
        self.promises.read(self._new_lines())
        with penstock.open(self.directory) as ps:
            waiting = {*_numbers(ps, "in"), *_numbers(ps, "line"), *_numbers(ps, "held")}
            self.promises.check(waiting, _numbers(ps, "out"))
        self.counts["sent"] = len(self.promises.sent)
        self.counts["done"] = len(self.promises.done)
        self.counts["moved"] = len(self.promises.moved)
        self.counts["settled in another life"] += sum(number in self.promises.done for number, _ in held)

    def _new_lines(self) -> list[str]:
        if not self.log_path.exists():
            return []
        with self.log_path.open() as log:
            log.seek(self._read_bytes)
            text = log.read()
        whole = text[: text.rfind("\n") + 1]
        self._read_bytes += len(text)
        return whole.splitlines()


def _numbers(ps: Any, queue: str) -> list[int]:
    try:
        return [int(bytes(message.body)) for message in ps.queue(queue).browse(limit=EVERYTHING)]
    except penstock.QueueNotFound:
        return []
