from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shards import not_for_clusters
from tests.spark.running import need_java

pytestmark = not_for_clusters("the examples open directories")

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "hello.py": "b'two teas' {'table': 7} 1",
    "workers.py": "served 9",
    "tasks.py": "read 100",
    "unit_of_work.py": "committed: ['ledger', 'mail', 'payments'] attempts: 2",
    "channels_and_consumers.py": "report [b'cake']",
    "dead_letters.py": "b'a unicorn' attempt 1",
    "join.py": "[('ann', 'tea', '3.20'), ('cleo', 'cocoa', '4.10')]",
}
ON_SPARK = {"join.py"}
PATIENCE_S, SPARK_PATIENCE_S = 60, 280


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_does_what_it_says(name: str, tmp_path: Path) -> None:
    if name in ON_SPARK:
        need_java()
    retry_timeout_s = SPARK_PATIENCE_S if name in ON_SPARK else PATIENCE_S
    command = [sys.executable, str(EXAMPLES / name), str(tmp_path / "data")]
    example = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        told, errors = example.communicate(timeout=retry_timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all of them, also those that it has started
            os.killpg(example.pid, signal.SIGKILL)
    assert example.returncode == 0, errors
    assert told.splitlines()[-1] == EXPECTED[name]
