"""Starting the second process of a test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.package import PACKAGE

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def other_process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`other_process.py` with these arguments; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.store.other_process", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": f"{PACKAGE}:{ROOT}"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next thing that the other process says."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "the other process ended"
    return line
