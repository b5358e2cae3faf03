"""Run every test, in several processes side by side.

Tests wait most of the time: those on Spark and on Kafka for a JVM, the others for disks and timers. Side by side they
take a fraction of the time that they take one after the other, on two cores. The groups are such that all take about
as long. The last process runs what the others leave out, so that nothing is missed.

    python -m tools.test [OPTIONS OF PYTEST]

What that one prints is shown as it comes; that of the others when all have ended. The status is 1 if any fails.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

BESIDE = (
    ("tests/spark", "tests/pipelines", "tests/pipelines_ready"),
    (
        "tests/nsq",
        "tests/simulation",
        "tests/faults",
        "tests/kill",
        "tests/outbox",
        "tests/store",
        "tests/cluster",
        "tests/cluster_nsq",
    ),
)
"""What runs beside all the rest: a process for each row."""
OTHERS = ("tests", "src/penstock")
_SLOWEST = ("--durations=40", "--durations-min=4")
"""Say at the end which tests took longest: the first place to look when all take too long."""
_NO_TESTS = 5
"""What pytest exits with when its options have left no test; fine, if another process has some."""


def main(options: list[str]) -> int:
    """Run all groups; the status to exit with."""
    pytest = [sys.executable, "-m", "pytest", *_SLOWEST, *options]
    started_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        beside = [stack.enter_context(_beside(pytest, paths)) for paths in BESIDE]
        ignored = [f"--ignore={path}" for paths in BESIDE for path in paths]
        statuses = {subprocess.run([*pytest, *ignored, *OTHERS], check=False).returncode}
        print("\n== waiting for what runs beside the others", flush=True)
        statuses |= {process.wait() for process in beside}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took_s, processor_s = time.monotonic() - started_s, used.ru_utime + used.ru_stime
    print(f"\n== all together took {took_s:.0f} s, and {processor_s:.0f} s of processor time", flush=True)
    if statuses == {_NO_TESTS}:
        return _NO_TESTS
    return 0 if statuses <= {0, _NO_TESTS} else 1


@contextlib.contextmanager
def _beside(pytest: list[str], paths: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """A process for some of the tests. In the end it is stopped, if it still runs, and what it has said is shown."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([*pytest, *paths], stdout=said, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            print(f"\n== {', '.join(paths)} (beside the others)", flush=True)
            said.seek(0)
            sys.stdout.buffer.write(said.read())
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
