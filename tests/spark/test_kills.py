"""Short forms of `tests.spark.soak` and `tests.spark.soak_partitions`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.spark import soak_partitions
from tests.spark.running import need_java
from tests.spark.soak import soak


@pytest.mark.timeout(600)
def test_killed_servers_drivers_jvms_and_executors_lose_and_repeat_nothing(tmp_path: Path) -> None:
    need_java()
    victims = iter(["server", "executor", "jvm", "driver"])
    hits = soak(tmp_path, messages=30_000, kills=victims, batch_messages=1_000, chance=random.Random(7))
    assert hits.keys() >= {"server", "executor", "jvm"}


@pytest.mark.timeout(600)
def test_drivers_killed_in_the_middle_of_batches_send_each_message_once_to_a_queue_with_partitions(
    tmp_path: Path,
) -> None:
    need_java()
    moments = iter(["begun", "published"])
    hits = soak_partitions.soak(tmp_path, messages=7_200, kills=moments, batch_messages=900, chance=random.Random(7))
    assert hits["begun batch"] + hits["published batch"] == 2
    assert hits["published batch"] >= 1
