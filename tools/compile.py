"""Compile the hot half of the package with mypyc: `python -m tools.compile`, or `make compile`.

The compiled package is a copy in `build/compiled`: whoever puts that first on PYTHONPATH runs it, and a checkout keeps
running its sources, so that nobody edits a file and sees nothing change. The same modules, uncompiled, do the same: the
tests run on both (`make test`, `make compiled`). A C compiler is needed here, and nowhere else.

Modules that only declare things (msgspec structs, errors, settings) stay as they are: compiling gains nothing there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
OUTPUT = ROOT / "build" / "compiled"
STAMP = ".sources"
"""In the compiled copy: what it was made of."""

COMPILED = (
    "cluster/routing/routed.py",
    "core/*.py",
    "core/*/*.py",
    "server/metrics.py",
    "server/shard.py",
    "server/tasks.py",
    "server/threads.py",
    "store/read_ahead.py",
    "store/embedded.py",
    "store/layer.py",
    "store/journal/frames.py",
    "store/journal/file.py",
    "protocols/http/connection.py",
    "protocols/http/exchange.py",
    "protocols/http/server.py",
    "protocols/front_end.py",
    "protocols/websocket/dispatcher.py",
    "wire/frames.py",
    "wire/packing.py",
    "protocols/sqs/actions.py",
    "protocols/sqs/json_wire.py",
    "protocols/sqs/message_attributes.py",
    "protocols/sqs/messages.py",
    "protocols/sqs/names.py",
    "protocols/sqs/queues.py",
    "protocols/sqs/received.py",
    "protocols/sqs/server.py",
    "protocols/sqs/service.py",
    "protocols/sqs/context.py",
)
"""What is worth it: every message, or every call, goes through these."""

LEFT_OUT = ("__init__", "attributes", "errors", "states")
"""Names of modules that declare and do not compute, or declare what cannot be compiled."""


def main(arguments: list[str]) -> None:
    """Compile, unless the last time was with the same sources."""
    parser = argparse.ArgumentParser(description="Compile the hot half of the package with mypyc.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the compiled copy goes")
    parser.add_argument("--force", action="store_true", help="compile even if nothing changed")
    chosen = parser.parse_args(arguments)
    if not chosen.force and is_up_to_date(chosen.output):
        print(f"{chosen.output} is up to date")
        return
    before = fingerprint()
    copy(chosen.output)
    compile_in(chosen.output, modules(chosen.output))
    if fingerprint() != before:
        raise SystemExit("the sources have changed while they were compiled: compile them again")
    (chosen.output / STAMP).write_text(before)
    print(f"compiled to {chosen.output}: put it first on PYTHONPATH to run it")


def modules(root: Path) -> list[str]:
    """The modules to compile, as paths below `root`.

    >>> "penstock/core/broker.py" in modules(SOURCES), "penstock/core/commands.py" in modules(SOURCES)
    (True, False)
    """
    found = [path for pattern in COMPILED for path in sorted((root / "penstock").glob(pattern))]
    named = {root / "penstock" / pattern for pattern in COMPILED if "*" not in pattern}
    if left := [path.name for path in sorted(named) if path not in found or not _can_be_compiled(path)]:
        raise SystemExit(f"{', '.join(left)}: named in COMPILED, and not there, or it declares structs: move these")
    return [str(path.relative_to(root)) for path in found if _can_be_compiled(path)]


def _can_be_compiled(path: Path) -> bool:
    """Structs lose the types of their fields in a compiled module."""
    return path.stem not in LEFT_OUT and "(msgspec.Struct" not in path.read_text()


def is_up_to_date(output: Path = OUTPUT) -> bool:
    """Whether a compiled copy is there, and was made of these sources for this Python."""
    stamp = output / STAMP
    return stamp.exists() and stamp.read_text() == fingerprint()


def fingerprint() -> str:
    """Changes when the sources do, or what compiles them."""
    digest = hashlib.sha256(sys.version.encode())
    for path in [Path(__file__), ROOT / "tools" / "compile_modules.py", *sources()]:
        digest.update(str(path).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def sources() -> Iterable[Path]:
    """Every file of the package."""
    return (path for path in sorted(SOURCES.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)


def copy(output: Path) -> None:
    """A copy of the package, without what a former compilation left."""
    if output.exists():
        shutil.rmtree(output)
    shutil.copytree(SOURCES, output, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))


def compile_in(output: Path, names: list[str]) -> None:
    """Compile modules where they are. The compiler works in a process of its own: it changes directory and sys.path.

    A C file for each module: with one file for all of them, the C compiler takes much longer.
    """
    warnings_off = {"CFLAGS": f"-w {os.environ.get('CFLAGS', '')}"}
    # pip's build environment is on PYTHONPATH, and has the compiler
    path = os.pathsep.join(filter(None, (str(output), os.environ.get("PYTHONPATH"))))
    environment = os.environ | warnings_off | {"PYTHONPATH": path, "MYPYPATH": str(output)}
    command = [sys.executable, str(ROOT / "tools" / "compile_modules.py"), *names]
    done = subprocess.run(
        command, cwd=output, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise SystemExit("the compilation failed: a C compiler and Python's headers are needed, and types that hold")
    shutil.rmtree(output / "build", ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
