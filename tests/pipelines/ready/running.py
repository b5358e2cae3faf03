"""Archives and rollups in the tests' own session, as the command line runs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.pipelines.checkpoints import State
from penstock.pipelines.definition import Pipeline
from penstock.pipelines.errors import PipelineFailed
from penstock.pipelines.progress import QueryProgress
from penstock.pipelines.ready.archives import archive_pipeline, compact
from penstock.pipelines.ready.windows import bring_up_to_date, rollup_pipeline
from penstock.pipelines.runner import DONE, Runner
from penstock.pipelines.where import Where
from tests.pipelines.running import Noted

EVENTS_QUEUE = "penstock.events"


class Archived(NamedTuple):
    rows: int
    batches: int
    joined: int
    """Small files that were joined to larger ones."""


class RolledUp(NamedTuple):
    events: int
    dates: int
    """Computed anew."""


def _run(spark: Any, where: Where, pipeline: Pipeline, state: State) -> QueryProgress:
    with state.locked():
        state.accept(pipeline, reset=False)
        runner = Runner(spark, pipeline, where, state, Noted())
        outcome = runner.run()
    if outcome.state != DONE:
        raise PipelineFailed(outcome.reason)
    return runner.progress[0]


def archive(
    spark: Any,
    where: Where,
    path: Path,
    queues: Sequence[str] = (),
    *,
    format: str = "parquet",
    batch: int = 200_000,
    join: bool = True,
) -> Archived:
    done = _run(spark, where, *archive_pipeline(path, queues, format=format, batch=str(batch)))
    return Archived(done.rows, done.batches, compact(path) if join else 0)


def rollup(spark: Any, where: Where, table: Path, report: Path | None = None, **more: str) -> RolledUp:
    events = _run(spark, where, *rollup_pipeline(table, **more)).rows
    return RolledUp(events, bring_up_to_date(spark, table, more.get("window", "1 minute"), report))
