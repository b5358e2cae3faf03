"""Registers `format("penstock_lake")` with Spark: it looks for modules that are named `pyspark_...`."""

from penstock.pipelines.lakes import LakeDataSource as DefaultSource

__all__ = ["DefaultSource"]
