"""How every benchmark measures, and how it prints.

A *contender* does the same work as the others in a fresh directory, times itself, and answers with a rate. Contenders
take turns (A B A B ...), so that whatever else the machine does hits all of them alike. The ratio of two contenders
is taken turn by turn, and the median of these ratios is the figure; the quartiles beside it say how much to trust it.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

Contender = Callable[[Path], float]
"""Does its work in an empty directory, and gives messages a second."""

BODY_BYTES = 200
RUN = 1000
"""Messages in a run."""


def bodies(count: int) -> list[bytes]:
    """Messages of `BODY_BYTES` each, no two alike.

    >>> one, other = bodies(2)
    >>> len(one), one == other
    (200, False)
    """
    filling = b"penstock " * BODY_BYTES
    return [(b"%010d " % number + filling)[:BODY_BYTES] for number in range(count)]


class Ratio(NamedTuple):
    """A median of ratios, with the quartiles around it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """As a table cell."""
        if self.low == self.high:
            return plain(self.median)
        return f"{plain(self.median)} ({plain(self.low)} to {plain(self.high)})"


class Measured(NamedTuple):
    """The rates of every contender, turn by turn."""

    rates: Mapping[str, Sequence[float]]

    def rate(self, name: str) -> float:
        """The median rate of a contender."""
        return statistics.median(self.rates[name])

    def ratio(self, name: str, to: str) -> Ratio:
        """How many times faster `name` was than `to`.

        >>> Measured({"fast": [4.0, 6.0, 80.0], "slow": [2.0, 2.0, 40.0]}).ratio("fast", to="slow").median
        2.0
        """
        ratios = [one / other for one, other in zip(self.rates[name], self.rates[to], strict=True)]
        return quartiles(ratios)

    def fastest(self, names: Sequence[str]) -> str:
        """Which of these had the highest median rate."""
        return max(names, key=self.rate)


def quartiles(values: Sequence[float]) -> Ratio:
    """The median and the quartiles.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    Ratio(median=3.0, low=2.0, high=4.0)
    """
    if len(values) == 1:
        return Ratio(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Ratio(median, low, high)


def take_turns(contenders: Mapping[str, Contender], turns: int, *, warm_up: bool = True) -> Measured:
    """Let the contenders run in turns, after one turn that does not count."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-1 if warm_up else 0, turns):
        for name, contender in contenders.items():
            with empty_directory() as directory:
                rate = contender(directory)
            if turn >= 0:
                rates[name].append(rate)
    return Measured(rates)


@contextmanager
def empty_directory() -> Iterator[Path]:
    """A directory for one contender's turn. What earlier turns left to write is written before this one starts."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    gc.collect()
    os.sync()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def per_second(count: int, started_at: float) -> float:
    """The rate of `count` things since `started_at` (of `time.perf_counter`)."""
    return count / (time.perf_counter() - started_at)


def in_threads(count: int, work: Callable[[], None]) -> float:
    """Run `work` in so many threads at once; how long until the last one was done, in seconds."""
    start = threading.Barrier(count + 1)
    failures: list[BaseException] = []

    def run() -> None:
        start.wait()
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    start.wait()
    started_at = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started_at
    if failures:
        raise failures[0]
    return seconds


# -- printing ----------------------------------------------------------------------------------------------------------


def plain(number: float) -> str:
    """Three digits that count, the way people write numbers.

    >>> plain(0.8251), plain(12.34), plain(314159.0)
    ('0.825', '12.3', '314,000')
    """
    if number == 0:
        return "0"
    digits = 3
    rounded = float(f"{number:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.{digits}g}"


def at_least(target: float, ratio: Ratio) -> str:
    """The verdict on a ratio that should be high.

    >>> at_least(3, Ratio(2.0, 1.9, 2.1))
    'at least 3: **missed**'
    """
    return f"at least {target:g}: {'reached' if ratio.median >= target else '**missed**'}"


def at_most(target: float, value: float, unit: str = "") -> str:
    """The verdict on a value that should be low."""
    return f"at most {target:g}{unit}: {'reached' if value <= target else '**missed**'}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that is readable as it stands.

    >>> print(table(["what", "rate"], [["send", "1,000"]]))
    | what | rate  |
    |------|-------|
    | send | 1,000 |
    """
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def report(title: str, text: str, *tables: str) -> None:
    """Print one benchmark's section of docs/benchmarks.md."""
    print("\n\n".join([f"## {title}", text.strip(), *tables]), flush=True)


@dataclass(frozen=True)
class Scale:
    """How much to do: the real thing, or just enough to see that it runs."""

    quick: bool

    def turns(self, full: int) -> int:
        """How often each contender runs."""
        return 1 if self.quick else full

    def count(self, full: int, quick: int) -> int:
        """How many of something to do in a turn."""
        return quick if self.quick else full


def parse_scale(description: str | None) -> Scale:
    """The command line of a benchmark: `--quick`, or nothing."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a small version, to see that it runs: no figure to quote")
    return Scale(parser.parse_args(sys.argv[1:]).quick)
