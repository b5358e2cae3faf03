"""NSQ's own programs: built once from the Go proxy, with the ordinary Go client, into the user's cache.

`go install` refuses modules that replace a dependency, as nsq's does, so they are built from a module of ours that
replaces the same one. What is fetched is checked against Go's public checksums, as always.

    python -m bench.nsq_tools        builds them, and prints where they are
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "1.3.0"
_MODULE = "github.com/nsqio/nsq"
_PACKAGES = {
    "nsqd": "apps/nsqd",
    "nsqlookupd": "apps/nsqlookupd",
    "nsqadmin": "apps/nsqadmin",
    "nsq_to_file": "apps/nsq_to_file",
    "nsq_tail": "apps/nsq_tail",
    "to_nsq": "apps/to_nsq",
    "bench_writer": "bench/bench_writer",
    "bench_reader": "bench/bench_reader",
}
PROGRAMS = tuple(_PACKAGES)

_GO_MOD = f"""module penstock.invalid/nsq-tools

go 1.17

require {_MODULE} v{VERSION}

replace github.com/judwhite/go-svc => github.com/mreiferson/go-svc v1.2.2-0.20210815184239-7a96e00010f6
"""


class ToolsMissing(Exception):
    """NSQ's programs cannot be had; says why, and what to do."""


def directory() -> Path:
    """Where the programs are kept, whether they are there or not."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "penstock" / f"nsq-{VERSION}"


def are_here() -> bool:
    """Whether they can run without anything being built."""
    return all((directory() / name).is_file() for name in PROGRAMS)


def build() -> Path:
    """Make sure that they are here, and say where. Raises `ToolsMissing` if they cannot be built."""
    if not are_here():
        if shutil.which("go") is None:
            raise ToolsMissing(
                "`go` is not installed: NSQ's programs are built from source (https://go.dev/doc/install)"
            )
        directory().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory().parent) as partial:
            _build_in(Path(partial))
    return directory()


def program(name: str) -> str:
    """The path of one of `PROGRAMS`, built if need be."""
    return str(build() / name)


def _build_in(partial: Path) -> None:
    (partial / "go.mod").write_text(_GO_MOD)
    built = partial / "built"
    built.mkdir()
    packages = [f"{_MODULE}/{path}" for path in _PACKAGES.values()]
    command = ["go", "build", "-mod=mod", "-o", f"{built}{os.sep}", *packages]
    run = subprocess.run(command, cwd=partial, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if run.returncode != 0:
        raise ToolsMissing(f"`{' '.join(command[:2])}` could not build NSQ {VERSION}: {run.stdout[-2_000:].strip()}")
    _put_in_place(built)


def _put_in_place(built: Path) -> None:
    """Under the final name at once; somebody else may have been faster."""
    try:
        built.rename(directory())
    except OSError:
        if not are_here():
            raise


if __name__ == "__main__":
    try:
        print(build())
    except ToolsMissing as missing:
        sys.exit(str(missing))
