"""Run every benchmark, each in a process of its own.

What they print is added to docs/benchmarks-history.md, and docs/benchmarks.md is made of that (`bench/report.py`).
"""

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

from bench import report

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [*sorted(path.stem for path in Path(__file__).parent.glob("[a-z]_*.py")), "many_queues"]
SCRIPTS += ["builds", "sqs", "nsq", "client", "spark", "cluster"]
"""Those that the library is measured by, then the front ends', then the client's, then those of many nodes."""

PACKAGES = ["numpy", "xxhash", "uvloop", "httptools", "msgspec", "litequeue", "persist-queue", "moto"]
PACKAGES += ["redis", "hiredis", "pika", "nats-py", "pyspark", "pyarrow", "confluent-kafka"]

BUSY = " (**a busy machine: trust the ratios little, the rates not at all**)"


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


def remember(facts: str, sections: list[str]) -> None:
    """Add this run to the history, before those that were."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    heading, marker, before = report.HISTORY.read_text().partition("\n## ")
    run = "\n\n".join([f"{today}, {commit()}", facts, *(dated(each, today, build()) for each in sections)])
    report.HISTORY.write_text(f"{heading}{marker}{run}\n{marker}{before}")


def dated(section: str, day: str, how: str) -> str:
    """A section as the history has it: one level below its run, and with the day and the build.

    >>> dated("## sqs. SQS over sockets\\n\\n64 connections", "2026-11-16", "compiled")
    '### sqs. SQS over sockets\\n\\n*Measured 2026-11-16, compiled.*\\n\\n64 connections'
    """
    title, _, rest = section.partition("\n")
    return f"#{title}\n\n*Measured {day}, {how}.*\n\n{rest.strip()}"


def main() -> None:
    """Run the benchmarks, print their tables, and write the pages."""
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
        remember(machine(load_before, os.getloadavg()[0]), sections)
        report.write()


if __name__ == "__main__":
    main()
