"""How long does Penstock take to start? Ratios to `python -c pass`, measured in turns in one run.

    python -m bench.start

Wall time, the best of some runs: what a start takes on a warm machine when nothing is in its way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

RUNS = 5
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a warm machine has the bytecode
PAUSE_S = 0.002
PORTS = ("--sqs-port", "--http-port", "--nsq-tcp-port", "--nsq-http-port")


def main() -> None:
    """Measure everything in turns, and print the table."""
    starts: dict[str, Callable[[], float]] = {
        "python -c pass": lambda: _ended("-c", "pass"),
        "import penstock": lambda: _ended("-c", "import penstock"),
        "import penstock; penstock.open": lambda: _ended("-c", "import penstock; penstock.open"),
        "penstock --version": lambda: _ended("-m", "penstock", "--version"),
        "penstock --help": lambda: _ended("-m", "penstock", "--help"),
        "penstock queue create --help": lambda: _ended("-m", "penstock", "queue", "create", "--help"),
        "penstock serve, until it is ready": _served,
    }
    best = dict.fromkeys(starts, float("inf"))
    for _ in range(RUNS):
        for name, start in starts.items():
            best[name] = min(best[name], start())
    floor_s = best["python -c pass"]
    for name, seconds in best.items():
        print(f"{name:36} {seconds * 1_000:6.0f} ms {seconds / floor_s:6.1f} x")


def _ended(*arguments: str) -> float:
    """The seconds that a Python takes, from its start to its end."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _served() -> float:
    """The seconds that a server takes, from its start to its ready file, with a new directory."""
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
            seconds = time.perf_counter() - started
            server.terminate()
        return seconds


if __name__ == "__main__":
    main()
