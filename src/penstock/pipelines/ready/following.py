"""Watching over one stream until it ends, or is told to end."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.pipelines.errors import PipelineFailed
from penstock.pipelines.progress import Batch, Display, QueryProgress
from penstock.pipelines.runner import reason_of

LOOK_S = 0.05
STOP_S = 20.0


@dataclass(frozen=True)
class Followed:
    """What a stream has done."""

    rows: int
    batches: int
    stopped: bool = False
    """It was told to stop before its end."""


def trigger_of(*, once: bool, every: str) -> dict[str, Any]:
    """For `DataStreamWriter.trigger`: to the end, or again and again."""
    return {"availableNow": True} if once else {"processingTime": every}


def start(writer: Any, name: str, *, once: bool, every: str) -> Any:
    """Start a stream; what is wrong with it is one line."""
    try:
        return writer.trigger(**trigger_of(once=once, every=every)).start()
    except Exception as error:
        raise PipelineFailed(f"{name}: {reason_of(error)}") from error


def follow(
    query: Any, name: str, checkpoint: Path, display: Display | None = None, stop: threading.Event | None = None
) -> Followed:
    """Wait for a stream's end; `PipelineFailed` if it fails. When `stop` is set, it ends after its current batch.

    A stream whose thread died of an error of Java's own (memory, files) reports none: the checkpoint shows it.
    """
    progress = QueryProgress(name, state="running")
    told_s: float | None = None
    is_stopped = False
    while query.isActive:
        _take(query, progress, display)
        if stop is not None and stop.is_set():
            told_s = told_s or time.monotonic()
            if not query.status["isTriggerActive"] or time.monotonic() > told_s + STOP_S:
                query.stop()
                is_stopped = True
                break
        with contextlib.suppress(Exception):  # it is looked at below
            query.awaitTermination(LOOK_S)
    _take(query, progress, display)
    error = None if is_stopped else query.exception()
    if error is not None:
        raise PipelineFailed(f"{name}: {reason_of(error)}") from error
    if not is_stopped and _last_number(checkpoint / "offsets") > _last_number(checkpoint / "commits"):
        raise PipelineFailed(f"{name}: it ended in the middle of a batch; Spark's log says why. Run it again to go on")
    return Followed(progress.rows, progress.batches, is_stopped)


def _last_number(directory: Path) -> int:
    return max((int(each.name) for each in directory.glob("*") if each.name.isdigit()), default=-1)


def _take(query: Any, progress: QueryProgress, display: Display | None) -> None:
    for report in query.recentProgress:
        batch = Batch.of(json.loads(report.json) if hasattr(report, "json") else dict(report))
        if progress.saw(batch) and display is not None:
            display.batch(progress, batch)
    if display is not None:
        display.refresh([progress])


def tell(display: Display | None) -> Callable[[str], None]:
    """Somewhere to say things."""
    return (lambda text: None) if display is None else display.note
