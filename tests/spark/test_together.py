"""Streams of one session share the environment of their Python processes, and Spark writes into it without a lock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.pipelines.sessions import NAMES, environment_of, ready_for_several, start_session
from tests.spark.running import Queues


@pytest.fixture
def environment(spark: Any) -> Iterator[Any]:
    """The shared map, as it is before the first stream of a session."""
    found = environment_of(spark)
    before = dict(found)
    for name in list(before):
        if name != "PYTHONPATH":
            found.remove(name)
    yield found
    for name, value in before.items():
        found.put(name, value)


def test_a_stream_adds_names_to_the_shared_environment(queues: Queues, environment: Any) -> None:
    """The fault in Spark. If this fails, Spark adds others, or does it no more."""
    queues.send(10)
    queues.run(queues.stream())
    assert set(environment) == {"PYTHONPATH", *NAMES}


def test_no_stream_adds_a_name_once_the_session_is_ready(queues: Queues, spark: Any, environment: Any) -> None:
    ready_for_several(spark)
    before = set(environment)
    assert set(NAMES) <= before
    queues.send(10)
    queues.run(queues.stream())
    assert queues.output() == list(range(10))
    assert set(environment) == before
    assert environment["SPARK_PYTHON_RUNTIME"] == "PYTHON_WORKER", "the names are the ones that Spark writes"
    ready_for_several(spark)
    assert environment["SPARK_PYTHON_RUNTIME"] == "PYTHON_WORKER", "what Spark has written stays"


def test_sessions_of_pipelines_are_ready(spark: Any, environment: Any, tmp_path: Path) -> None:
    assert not set(NAMES) & set(environment)
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    assert start_session("test", tmp_path, master="local[2]") is spark, "a process has one"
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    assert set(NAMES) <= set(environment)


def test_a_session_of_spark_connect_is_left_alone() -> None:
    ready_for_several(object())
