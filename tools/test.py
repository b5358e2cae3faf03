"""Run every test, in two processes side by side: those on Spark with some more, and all the others.

Spark's tests wait for a JVM most of the time, the others for disks and timers; together they take half as long as one
after the other, on two cores. What else runs beside Spark is there so that both take about as long; it comes first,
before there is a JVM. The second process leaves out exactly what the first one runs, so that nothing is missed.

    python -m tools.test [OPTIONS OF PYTEST]

What the first process prints is shown when it has ended; the other's as it comes. The status is 1 if either fails.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time

BESIDE = (
    "tests/nsq",
    "tests/simulation",
    "tests/faults",
    "tests/kill",
    "tests/outbox",
    "tests/spark",
    "tests/pipelines",
    "tests/pipelines_ready",
)
OTHERS = ("tests", "src/penstock")
_SLOWEST = ("--durations=40", "--durations-min=4")
"""Say at the end which tests took longest: the first place to look when all take too long."""
_NO_TESTS = 5
"""What pytest exits with when its options have left no test; fine, if the other process has some."""


def main(options: list[str]) -> int:
    """Run both halves; the status to exit with."""
    pytest = [sys.executable, "-m", "pytest", *_SLOWEST, *options]
    started_s = time.monotonic()
    with tempfile.TemporaryFile() as said:
        beside = subprocess.Popen([*pytest, *BESIDE], stdout=said, stderr=subprocess.STDOUT)
        try:
            ignored = [f"--ignore={path}" for path in BESIDE]
            others = subprocess.run([*pytest, *ignored, *OTHERS], check=False).returncode
            print(f"\n== {', '.join(BESIDE)} (beside the others)", flush=True)
            statuses = {others, beside.wait()}
        finally:
            beside.kill()
            beside.wait()
            said.seek(0)
            sys.stdout.buffer.write(said.read())
            sys.stdout.buffer.flush()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took_s, processor_s = time.monotonic() - started_s, used.ru_utime + used.ru_stime
    print(f"\n== both together took {took_s:.0f} s, and {processor_s:.0f} s of processor time", flush=True)
    if statuses == {_NO_TESTS}:
        return _NO_TESTS
    return 0 if statuses <= {0, _NO_TESTS} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
