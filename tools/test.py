"""Run every test, in several processes side by side.

Tests wait most of the time: those on Spark and on Kafka for a JVM, the others for disks and timers. Side by side they
take a fraction of the time that they take one after the other, on two cores. The groups are such that all take about
as long. The last process runs what the others leave out, so that nothing is missed.

    python -m tools.test [OPTIONS OF PYTEST]

What that one prints is shown as it comes; that of the others when all have ended.

A test that failed is run again alone, after all the others. If it fails again, the run fails. If it passes, it is
flaky: that is said last and loudly, with the logs of both runs, which are also kept in build/flaky/. A flaky test does
not fail the run. Look at it first all the same: most flaky tests have shown real faults.
"""

from __future__ import annotations

import contextlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tools import failed_tests

BESIDE = (
    ("tests/spark", "tests/pipelines"),
    (
        "tests/protocols/nsq/clients",
        "tests/simulation",
        "tests/faults",
        "tests/kill",
        "tests/outbox",
        "tests/store",
        "tests/cluster",
    ),
)
"""What runs beside all the rest: a process for each row."""
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


class Group(NamedTuple):
    """One process: what it exited with, whether it ran to its end, and the log of each test that failed in it."""

    status: int
    ended: bool
    failed: dict[str, str]

    @property
    def is_explained(self) -> bool:
        """Whether the tests that failed are all that is wrong."""
        return self.ended and self.status in ((_FAILED,) if self.failed else (0, _NO_TESTS))


def main(options: Sequence[str], beside: Sequence[Sequence[str]] = BESIDE, others: Sequence[str] = OTHERS) -> int:
    """Run all groups, and again what failed; the status to exit with."""
    pytest = [sys.executable, "-m", "pytest", "-p", "tools.failed_tests", *_SLOWEST, *options]
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        logs = [Path(directory, str(number)) for number in range(len(beside) + 1)]
        processes = [stack.enter_context(_beside(pytest, *group)) for group in zip(logs[1:], beside, strict=True)]
        ignored = [f"--ignore={path}" for paths in beside for path in paths]
        own = [*pytest, f"{failed_tests.OPTION}={logs[0]}", *ignored, *others]
        statuses = [subprocess.run(own, check=False).returncode]
        print("\n== waiting for what runs beside the others", flush=True)
        statuses += [process.wait() for process in processes]
        stack.close()
        groups = [_read(status, log) for status, log in zip(statuses, logs, strict=True)]
        status = _judge(groups, pytest, directory)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took_s, processor_s = time.monotonic() - started_s, used.ru_utime + used.ru_stime
    print(f"\n== all together took {took_s:.0f} s, and {processor_s:.0f} s of processor time", flush=True)
    return status


@contextlib.contextmanager
def _beside(pytest: list[str], log: Path, paths: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process for some of the tests. In the end it is stopped, if it still runs, and what it has said is shown."""
    with tempfile.TemporaryFile() as said:
        command = [*pytest, f"{failed_tests.OPTION}={log}", *paths]
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            print(f"\n== {', '.join(paths)} (beside the others)", flush=True)
            said.seek(0)
            sys.stdout.buffer.write(said.read())
            sys.stdout.buffer.flush()


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
