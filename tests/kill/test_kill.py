"""`kill -9` of a working process loses nothing that was acknowledged, and brings back nothing that was done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kill.killer import Killer

KILLS = int(os.environ.get("PENSTOCK_KILLS", "50"))
KILLS_A_DIRECTORY = 10


@pytest.mark.parametrize("seed", range(KILLS // KILLS_A_DIRECTORY))
def test_a_killed_process_keeps_its_promises(tmp_path: Path, seed: int) -> None:
    killer = Killer(tmp_path, seed)
    for _ in range(KILLS_A_DIRECTORY):
        killer.kill_once()
    assert killer.counts["sent"] > 0, "the process did nothing"
    assert killer.counts["done"] > 0, "the process did nothing"
