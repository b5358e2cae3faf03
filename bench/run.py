"""Run every benchmark, each in a process of its own, and write docs/benchmarks.md from what they print."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
SCRIPTS = [*sorted(path.stem for path in Path(__file__).parent.glob("[a-z]_*.py")), "many_queues"]
SCRIPTS += ["sqs", "nsq", "client", "spark", "cluster"]
"""Those that the library is measured by, then the front ends', then the client's, then those of many nodes."""

PACKAGES = ["numpy", "xxhash", "uvloop", "httptools", "msgspec", "litequeue", "persist-queue", "moto"]
PACKAGES += ["redis", "hiredis", "pika", "nats-py", "pyspark", "pyarrow", "confluent-kafka"]

BUSY = " (**a busy machine: trust the ratios little, the rates not at all**)"

HEADING = """# Benchmarks

One script a question, in `bench/`. `make bench` runs them all and writes this page; nobody edits it by hand.

Contenders take turns (A B A B ...) within one run, after a turn that does not count, and a ratio is the median of the
ratios turn by turn, with the quartiles in brackets. So a ratio means more than the rates beside it, which move with
the machine. Every Penstock figure has its `fdatasync` before the acknowledgement, except where the memory store is
named. The hot half of the package is compiled for this (`make compile`; docs/server.md says how to serve with it); from
its sources it does the same, slower.
"""


def machine(load_before: float, load_after: float) -> str:
    """What the figures were measured on, and how busy it was."""
    facts = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": f"{cpu_model()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "filesystem": filesystem(Path(tempfile.gettempdir())),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        "Penstock": f"{version('penstock')}, {commit()}, {build()}",
        "packages": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "load": f"{load_before:.1f} before, {load_after:.1f} at the end{BUSY if load_before > 1 else ''}",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {fact} |" for name, fact in facts.items())])


def commit() -> str:
    """Which state of the source was measured."""
    command = ["git", "describe", "--always", "--dirty=, changed since", "--exclude=*"]
    described = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return f"commit {described.stdout.strip()}" if described.returncode == 0 else "of no known commit"


def build() -> str:
    """Whether the compiled package was measured, or the sources."""
    from penstock.core import broker

    return "run from its sources" if str(broker.__file__).endswith(".py") else "compiled (make compile)"


def cpu_model() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def filesystem(directory: Path) -> str:
    """The type of the filesystem that holds a directory; a sync on some of them costs nothing, and says nothing."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(Path(place), kind) for _, place, kind, *_ in mounts if directory.is_relative_to(place)]
    kind = max(holding, key=lambda mount: len(mount[0].parts))[1]
    return f"{kind} (in memory: a sync costs nothing here)" if kind in ("tmpfs", "ramfs") else kind


def label(script: str) -> str:
    """What the section of a script begins with.

    >>> label("b_single_sends"), label("sqs")
    ('b', 'sqs')
    """
    return script.partition("_")[0]


def section(script: str, *, quick: bool) -> str:
    """What one benchmark prints."""
    command = [sys.executable, "-m", f"bench.{script}", *(["--quick"] if quick else [])]
    return subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()


def main() -> None:
    """Run the benchmarks, print their tables, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small versions, to see that they run; writes no page")
    parser.add_argument("scripts", nargs="*", metavar="script", help=f"some of {', '.join(SCRIPTS)}; writes no page")
    options = parser.parse_args()
    unknown = set(options.scripts) - set(SCRIPTS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(SCRIPTS)}")

    load_before = os.getloadavg()[0]
    sections = []
    for script in options.scripts or SCRIPTS:
        sections.append(section(script, quick=options.quick))
        print(sections[-1] + "\n", flush=True)
    if not options.quick and not options.scripts:
        facts = machine(load_before, os.getloadavg()[0])
        DOCUMENT.write_text("\n\n".join([HEADING.strip(), facts, *sections]) + "\n")


if __name__ == "__main__":
    main()
