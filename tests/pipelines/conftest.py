"""One Spark session and one server for all tests here, as tests/spark has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import no_streams_left, queues, server, spark

__all__ = ["no_streams_left", "queues", "server", "spark"]


@pytest.fixture(autouse=True)
def no_tables_left(no_streams_left: None) -> Iterator[None]:
    """The session is everybody's: a table that a pipeline made would be in the way of the next one's views."""
    yield
    active = SparkSession.getActiveSession()
    if active is None:
        return
    for table in active.catalog.listTables("default"):
        if not table.isTemporary:
            active.sql(f"drop table if exists default.`{table.name}`")
