"""One Spark session and one server for all tests here, as tests/spark has them."""

from __future__ import annotations

from tests.spark.conftest import no_streams_left, queues, server, spark

__all__ = ["no_streams_left", "queues", "server", "spark"]
