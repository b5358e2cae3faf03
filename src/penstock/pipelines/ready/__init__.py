"""Ready pipelines: what most people want of queues and Spark. Each is a command; here is its function, or its file.

`penstock pipeline run archive --help` says how to use one from the command line; docs/ready-pipelines.md describes all.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ReadyPipeline:
    """A pipeline that needs no definition.

    >>> READY["archive"].summary
    'Keep the messages of queues as Parquet files, or in a Delta or Iceberg table.'
    """

    name: str
    summary: str
    is_file: bool = False
    """It is a file in Spark's language, as users write them."""

    @property
    def file(self) -> Path:
        """Its file."""
        return Path(__file__).with_name(f"{self.name}.py")

    @property
    def function(self) -> Callable[..., Any]:
        """The function that runs it; loaded when it is asked for."""
        module = importlib.import_module(f"penstock.pipelines.ready.{self.name}")
        found: Callable[..., Any] = getattr(module, self.name)
        return found


READY: dict[str, ReadyPipeline] = {
    each.name: each
    for each in (
        ReadyPipeline("archive", "Keep the messages of queues as Parquet files, or in a Delta or Iceberg table."),
        ReadyPipeline("replay", "Send messages of an archive, or of a queue's history, to a queue."),
        ReadyPipeline("redrive", "Look at dead letters, choose some by SQL, and send them back."),
        ReadyPipeline("rollup", "Count and time what happened on a server, by queue and window, from its events."),
        ReadyPipeline("report", "Draw what rollup has counted, as one HTML page. Needs no Spark."),
        ReadyPipeline("dedupe", "Copy a queue to another one, without duplicates within a time window.", True),
        ReadyPipeline("join", "Join two queues within a time window into a third one.", True),
    )
}
"""By name, as `penstock pipeline run NAME` takes them."""
