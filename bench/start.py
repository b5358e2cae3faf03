"""How long does Penstock take to start? Ratios to `python -c pass`, measured in turns in one run.

    python -m bench.start

The best of some runs: what a start takes on a warm machine when nothing is in its way. Wall time, and processor time,
which says more where the machine has other work.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

RUNS = 5
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a warm machine has the bytecode
PAUSE_S = 0.002
PORTS = ("--sqs-port", "--http-port", "--nsq-tcp-port", "--nsq-http-port")


class Took(NamedTuple):
    """What a start took."""

    wall_s: float
    processor_s: float


def main() -> None:
    """Measure everything in turns, and print the table."""
    starts: dict[str, Callable[[], Took]] = {
        "python -c pass": lambda: _ended("-c", "pass"),
        "import penstock": lambda: _ended("-c", "import penstock"),
        "import penstock; penstock.open": lambda: _ended("-c", "import penstock; penstock.open"),
        "penstock --version": lambda: _ended("-m", "penstock", "--version"),
        "penstock --help": lambda: _ended("-m", "penstock", "--help"),
        "penstock queue create --help": lambda: _ended("-m", "penstock", "queue", "create", "--help"),
        "penstock serve, until it is ready": _served,
    }
    took: dict[str, list[Took]] = {name: [] for name in starts}
    for _ in range(RUNS):
        for name, start in starts.items():
            took[name].append(start())
    best = {name: Took(*map(min, zip(*runs, strict=True))) for name, runs in took.items()}
    floor = best["python -c pass"]
    for name, (wall_s, processor_s) in best.items():
        wall = f"{wall_s * 1_000:6.0f} ms {wall_s / floor.wall_s:6.1f} x"
        print(f"{name:36} {wall}   processor {processor_s * 1_000:6.0f} ms {processor_s / floor.processor_s:6.1f} x")


def _ended(*arguments: str) -> Took:
    """What a Python takes, from its start to its end."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return Took(time.perf_counter() - started, used.ru_utime + used.ru_stime)


def _served() -> Took:
    """What a server takes, from its start to its ready file, with a new directory."""
    with tempfile.TemporaryDirectory(prefix="penstock-start-") as directory:
        ready = Path(directory, "ready")
        ports = [each for name in PORTS for each in (name, "0")]
        where = ["--data", str(Path(directory, "data")), "--ready-file", str(ready)]
        command = [sys.executable, "-m", "penstock", "serve", *where, *ports]
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as server:
            while not ready.exists():
                if server.poll() is not None:
                    raise SystemExit(f"the server ended: {server.stderr and server.stderr.read().decode()}")
                time.sleep(PAUSE_S)
            threads = Path(f"/proc/{server.pid}/task").glob("*/schedstat")
            processor_s = sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
            took = Took(time.perf_counter() - started, processor_s)
            server.terminate()
        return took


if __name__ == "__main__":
    main()
