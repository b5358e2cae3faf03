from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "hello.py": "b'two teas' {'table': 7} 1",
    "workers.py": "served 9",
    "tasks.py": "read 100",
    "unit_of_work.py": "committed: ['ledger', 'mail', 'payments'] attempts: 2",
    "channels_and_consumers.py": "report [b'cake']",
    "dead_letters.py": "b'a unicorn' attempt 1",
}


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_does_what_it_says(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / name), str(tmp_path / "data")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == EXPECTED[name]
