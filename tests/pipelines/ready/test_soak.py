"""A short turn of the soak: an executor, the server and the JVM are killed, one after the other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.pipelines.ready.soak import soak
from tests.spark.running import need_java


@pytest.mark.timeout(600)
def test_every_row_is_where_it_belongs_once_whatever_is_killed(tmp_path: Path) -> None:
    need_java()
    assert soak("file", tmp_path, kills=3, messages=4_000, chance=random.Random(1)) == 3
