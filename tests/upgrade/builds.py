"""Earlier builds of Penstock, to run beside this one.

Each is the wheel that the commit of its name makes. Python imports from it as it is, so a build is only a path away:
formats are tried against the code that wrote and read them, not against a memory of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"
FIRST = HERE / "penstock-3e7ad4e.whl"
"""The build whose formats count as the first."""


def environment(build: Path) -> dict[str, str]:
    """What a process needs to be this build."""
    return os.environ | {"PYTHONPATH": f"{build}{os.pathsep}{HERE}"}


def run(build: Path, script: str, *arguments: str) -> Any:
    """Run a script of this directory with a build. It prints one line of JSON, and may die after that."""
    command = [sys.executable, str(HERE / script), *arguments]
    ran = subprocess.run(command, env=environment(build), capture_output=True, text=True, timeout=120, check=False)
    lines = ran.stdout.splitlines()
    assert lines, f"{script} with {build.name} ended with {ran.returncode}: {ran.stderr}"
    return json.loads(lines[-1])


@contextlib.contextmanager
def serving(build: Path, directory: Path) -> Iterator[dict[str, Any]]:
    """A server of a build over a directory, on free ports: what its ready file says. It is killed in the end."""
    ready = directory.with_name(f"{directory.name}.{time.monotonic_ns()}.ready")
    ports = [f"--{name}-port=0" for name in ("sqs", "http", "nsq-tcp", "nsq-http")]
    command = [sys.executable, "-m", "penstock", "serve", f"--data={directory}", f"--ready-file={ready}", *ports]
    with open(directory.with_name("server.log"), "ab") as log:
        process = subprocess.Popen(command, env=environment(build), stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None and time.monotonic() < deadline_s, Path(log.name).read_text()
            time.sleep(0.02)
        yield json.loads(ready.read_text())
    finally:
        process.kill()
        process.wait()
