"""Pipelines: files that say what goes from which queues, through which steps, to where. They run on Spark.

A pipeline in YAML needs nothing from here. One in Python takes its decorators from here; see docs/pipelines.md. Nothing
here loads Spark: a definition can be checked without it.
"""

from penstock.pipelines.decorators import (
    append_flow,
    create_sink,
    expect,
    materialized_view,
    parse,
    pipeline,
    queue,
    sink,
    spark,
    table,
    temporary_view,
    view,
)

__all__ = [
    "append_flow",
    "create_sink",
    "expect",
    "materialized_view",
    "parse",
    "pipeline",
    "queue",
    "sink",
    "spark",
    "table",
    "temporary_view",
    "view",
]
