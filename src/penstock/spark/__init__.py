"""Spark: queues as tables and streams. `spark.read.format("penstock")` and its three brothers; see docs/spark.md."""
