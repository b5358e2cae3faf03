"""Pipelines: files that say what goes from which queues, through which steps, to where. They run on Spark.

A pipeline in Python is a file in the language of Spark's declarative pipelines (`from pyspark import pipelines as dp`);
what that lacks is here, as functions that work under `penstock pipeline run` and under `spark-pipelines run`. See
docs/pipelines.md. Nothing here loads Spark: a definition can be checked without starting it.
"""

from penstock.pipelines.library import checked, lake_sink, messages, parameter, queue, queue_sink

__all__ = ["checked", "lake_sink", "messages", "parameter", "queue", "queue_sink"]
