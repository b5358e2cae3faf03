"""Registers `format("penstock")` with Spark: it looks for modules that are named `pyspark_...`."""

from penstock.spark.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
