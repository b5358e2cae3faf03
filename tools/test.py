"""Run every test, several processes side by side.

Tests wait most of the time: for disks, timers and JVMs. One after the other they take about three times as long as
their processor time. So they are cut into groups, each a process of its own, and a few of these run at a time. When one
has ended, the next one starts. The last group is whatever no other names, so that nothing is missed.

    python -m tools.test [--package DIRECTORY] [OPTIONS OF PYTEST]

With `--package`, the tests run on the package in that directory, and not on the sources: on an unpacked wheel, or on
the compiled copy. The doctests are left out then.

What a group prints is shown when it has ended, with the time that it took.

A test that failed is run again alone, after all the others. If it fails again, the run fails. If it passes, it is
flaky: that is said last and loudly, with the logs of both runs, which are also kept in build/flaky/. A flaky test does
not fail the run. Look at it first all the same: most flaky tests have shown real faults.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from tools import failed_tests

GROUPS = (
    ("tests/spark",),
    ("tests/pipelines",),
    ("tests/pipelines/ready",),
    ("tests/cli", "tests/client"),
    ("tests/cluster",),
    ("tests/docs",),
    ("tests/protocols/nsq", "tests/protocols/lookup"),
    ("tests/store", "tests/kill"),
    ("tests/compat",),
    ("tests/simulation",),
    ("tests/attacks", "tests/faults", "tests/outbox"),
    ("tests/protocols/rest", "tests/protocols/sqs", "tests/protocols/sns", "tests/protocols/websocket"),
    ("tests/core",),
    ("tests/server", "tests/upgrade", "tests/transfer"),
    ("tests/pages", "tests/testing", "tests/deploy"),
)
"""What runs in one process, the longest first. Within one, tests on Spark share a session, those on Kafka a broker."""
SIDE_BY_SIDE = 2 + (os.cpu_count() or 2)
"""How many processes run at a time. With more, tests that expect something within seconds begin to fail."""
OTHERS = ("tests", "src/penstock")
FLAKY = Path("build/flaky")
"""Where the logs of flaky tests are kept until the next run."""
RUN_AGAIN_MAX = 20
"""When more tests than this have failed, something is broken: none is run again."""
_SLOWEST = ("--durations=40", "--durations-min=4")
"""Say at the end which tests took longest: the first place to look when all take too long."""
_FAILED = 1
"""What pytest exits with when tests have failed, and nothing else is wrong."""
_NO_TESTS = 5
"""What pytest exits with when its options have left no test; fine, if another process has some."""
_showing = threading.Lock()


class Group(NamedTuple):
    """One process: what it exited with, whether it ran to its end, and the log of each test that failed in it."""

    status: int
    ended: bool
    failed: dict[str, str]

    @property
    def is_explained(self) -> bool:
        """Whether the tests that failed are all that is wrong."""
        return self.ended and self.status in ((_FAILED,) if self.failed else (0, _NO_TESTS))


def main(options: Sequence[str], groups: Sequence[Sequence[str]] = GROUPS, others: Sequence[str] = OTHERS) -> int:
    """Run all groups, and again what failed; the status to exit with."""
    pytest = [sys.executable, "-m", "pytest", "-p", "tools.failed_tests", *_SLOWEST, *options]
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        every = [*groups, others]
        logs = [Path(directory, str(number)) for number in range(len(every))]
        commands = [
            [*pytest, f"{failed_tests.OPTION}={log}", *_left_out(paths, groups), *paths]
            for log, paths in zip(logs, every, strict=True)
        ]
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            ran = list(pool.map(_run, commands, logs, every))
        status = _judge(ran, pytest, directory)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took_s, processor_s = time.monotonic() - started_s, used.ru_utime + used.ru_stime
    print(f"\n== all together took {took_s:.0f} s, and {processor_s:.0f} s of processor time", flush=True)
    return status


def _left_out(paths: Sequence[str], groups: Sequence[Sequence[str]]) -> list[str]:
    """The options that keep a group from what lies below its paths and is another group's."""
    others = [path for group in groups if group != paths for path in group]
    return [f"--ignore={path}" for path in others if any(Path(path).is_relative_to(own) for own in paths)]


def _run(command: list[str], log: Path, paths: Sequence[str]) -> Group:
    """Run one group to its end, and show what it has said."""
    started_s = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        _, ended, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(ended)
        took_s, processor_s = time.monotonic() - started_s, used.ru_utime + used.ru_stime
        said.seek(0)
        with _showing:
            print(f"\n== {', '.join(paths)}: {took_s:.0f} s, {processor_s:.0f} s of processor time", flush=True)
            sys.stdout.buffer.write(said.read())
            sys.stdout.buffer.flush()
    return _read(process.returncode, log)


def _read(status: int, log: Path) -> Group:
    """What became of a process, with what pytest said of each failed test: its set-up, its run and its tear-down."""
    failed: dict[str, str] = {}
    lines = log.read_bytes().splitlines() if log.exists() else []
    failures = [msgspec.json.decode(line, type=failed_tests.Failure | None) for line in lines]
    for failure in failures:
        if failure is not None:
            failed[failure.test] = failed.get(failure.test, "") + failure.text
    return Group(status, None in failures, failed)


def _judge(groups: list[Group], pytest: list[str], directory: str) -> int:
    """The status of the whole run, after what failed was run again."""
    shutil.rmtree(FLAKY, ignore_errors=True)
    if {group.status for group in groups} == {_NO_TESTS}:
        return _NO_TESTS
    failed = {test: text for group in groups for test, text in group.failed.items()}
    if len(failed) > RUN_AGAIN_MAX or not all(group.is_explained for group in groups):
        print(f"\n== {len(failed)} tests failed, and none is run again: more is wrong than single tests", flush=True)
        return 1
    flaky: list[str] = []
    for number, (test, first) in enumerate(failed.items()):
        print(f"\n== {test} failed: again, alone", flush=True)
        command = [*pytest, f"{failed_tests.OPTION}={directory}/again-{number}", test]
        again = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if again.returncode == 0:
            flaky.append(test)
            _keep(test, first.encode(), again.stdout)
        else:
            sys.stdout.buffer.write(again.stdout)
            print(f"== {test} failed TWICE", flush=True)
    for test in flaky:
        _show(test)
    if flaky:
        print(f"\n== FLAKY: {len(flaky)} failed among the others and passed alone. Logs: {FLAKY}/", flush=True)
        print("\n".join(f"FLAKY {test}" for test in flaky), flush=True)
    twice = [test for test in failed if test not in flaky]
    if twice:
        print(f"\n== {len(twice)} failed twice", flush=True)
        print("\n".join(f"FAILED {test}" for test in twice), flush=True)
    return 1 if twice else 0


def _logs_of(test: str) -> tuple[Path, Path]:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", test)[-150:]
    return FLAKY / f"{name}.failed.log", FLAKY / f"{name}.passed.log"


def _keep(test: str, failed: bytes, passed: bytes) -> None:
    """Keep the logs of both runs of a flaky test."""
    FLAKY.mkdir(parents=True, exist_ok=True)
    for path, text in zip(_logs_of(test), (failed, passed), strict=True):
        path.write_bytes(text)


def _show(test: str) -> None:
    """Print the logs of both runs of a flaky test."""
    for path in _logs_of(test):
        print(f"\n== FLAKY {test}: {path}", flush=True)
        sys.stdout.buffer.write(path.read_bytes())
        sys.stdout.buffer.flush()


def on_package(
    directory: Path,
    options: Sequence[str],
    groups: Sequence[Sequence[str]] = GROUPS,
    others: Sequence[str] = OTHERS[:1],
) -> int:
    """Run the tests on the package in a directory: here, and in the processes that tests start."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(directory.resolve()), os.environ.get("PYTHONPATH"))))
    return main(["-o", f"pythonpath={directory.resolve()} .", *options], groups, others)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--package"]:
        sys.exit(on_package(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main(sys.argv[1:]))
