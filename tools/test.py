"""Run every test, in two processes side by side: those on Spark, and all the others.

Spark's tests wait for a JVM most of the time, the others for disks and timers; together they take half as long as one
after the other, on two cores. The second process leaves out exactly what the first one runs, so that nothing is missed.

    python -m tools.test [OPTIONS OF PYTEST]

What the first process prints is shown when it has ended; the other's as it comes. The status is 1 if either fails.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

ON_SPARK = ("tests/spark", "tests/pipelines", "tests/pipelines_ready")
OTHERS = ("tests", "src/penstock")
_NO_TESTS = 5
"""What pytest exits with when its options have left no test; fine, if the other process has some."""


def main(options: list[str]) -> int:
    """Run both halves; the status to exit with."""
    pytest = [sys.executable, "-m", "pytest", *options]
    started_s = time.monotonic()
    with tempfile.TemporaryFile() as said:
        on_spark = subprocess.Popen([*pytest, *ON_SPARK], stdout=said, stderr=subprocess.STDOUT)
        try:
            ignored = [f"--ignore={path}" for path in ON_SPARK]
            others = subprocess.run([*pytest, *ignored, *OTHERS], check=False).returncode
            print(f"\n== {', '.join(ON_SPARK)} (beside the others)", flush=True)
            statuses = {others, on_spark.wait()}
        finally:
            on_spark.kill()
            on_spark.wait()
            said.seek(0)
            sys.stdout.buffer.write(said.read())
            sys.stdout.buffer.flush()
    print(f"\n== both together took {time.monotonic() - started_s:.0f} s", flush=True)
    if statuses == {_NO_TESTS}:
        return _NO_TESTS
    return 0 if statuses <= {0, _NO_TESTS} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
