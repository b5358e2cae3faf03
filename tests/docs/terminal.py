"""A new user's second terminal: the project's directory, with the server that `make run` starts in the first one.

Only the ports are others, so that the tests of several people can run on one machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.compat.server import PATIENCE_S, ROOT, until
from tests.package import PACKAGE

PORTS = {"9324": "sqs", "9325": "http", "4150": "nsq", "4151": "nsq-http"}
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PENSTOCK_"))}
ENVIRONMENT = CLEAN | {
    "PYTHONPATH": f"{PACKAGE}{os.pathsep}{ROOT}",
    "HOME": "/nonexistent",
    "TERM": "dumb",
}


@dataclass(frozen=True)
class Terminal:
    """Where commands are pasted."""

    directory: Path
    ports: dict[str, str]
    greeting: Path

    def pasted(self, text: str) -> str:
        """As on the page, but for the ports."""
        return re.sub(r"\b(9324|9325|4150|4151)\b", lambda found: self.ports[found[0]], text)

    def run(self, *command: str) -> str:
        """What a command prints; it must succeed."""
        ended = subprocess.run(
            command,
            cwd=self.directory,
            env=ENVIRONMENT | {"PATH": f"{os.environ['PATH']}{os.pathsep}{sys.prefix}/bin"},  # the AWS CLI is there
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ended.returncode == 0, ended
        return ended.stdout


def served_by_make() -> list[str]:
    """What `make run` runs."""
    recipe = re.search(r"^run:.*\n\t(.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    return shlex.split(recipe[1].removeprefix("@").replace("$(BIN)", ".venv/bin"))


@contextmanager
def beside_make_run(directory: Path) -> Iterator[Terminal]:
    """A terminal in a directory as a new user has it: `.venv`, and `data` once the server is up."""
    (directory / ".venv").symlink_to(sys.prefix)
    flags = ["--sqs-port", "0", "--http-port", "0", "--nsq-tcp-port", "0", "--nsq-http-port", "0"]
    ready, out = directory / "ready.json", directory / "out"
    with out.open("wb") as stream:
        process = subprocess.Popen(
            [*served_by_make(), *flags, "--ready-file", str(ready)],
            cwd=directory,
            env=ENVIRONMENT,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, out.read_text()
        listening = json.loads(ready.read_text())["listening"]
        ports = {usual: str(listening[name]["port"]) for usual, name in PORTS.items()}
        until(lambda: "Ctrl-C" in out.read_text())
        yield Terminal(directory, ports, out)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
