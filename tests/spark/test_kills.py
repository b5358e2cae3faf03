"""A short form of `tests.spark.soak`."""

from __future__ import annotations

import random
from pathlib import Path

from tests.spark.running import need_java
from tests.spark.soak import soak


def test_killed_drivers_and_servers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    need_java()
    victims = iter(["server", "driver", "server"])
    hits = soak(tmp_path, messages=30_000, kills=victims, batch_messages=1_500, chance=random.Random(7))
    assert hits >= 2
