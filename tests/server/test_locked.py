"""`penstock serve` on a directory that another process has says so, and names it as it was given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import penstock


def test_a_directory_called_data_is_named_as_it_is(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data"):
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path / "data"), "--sqs-port", "0"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 4
    assert ended.stderr.startswith(f"penstock: {tmp_path / 'data'} is in use by process ")
