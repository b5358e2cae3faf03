"""Running a pipeline: one streaming query for each sink, and for each step with dead letters, until the end.

`once` reads what is there and ends: queries run in stages, so that who reads a table finds it written. Without it, all
run until they are told to stop.

A query that fails is started again from its checkpoint, after a pause that doubles each time, with some randomness in
it; after so many failures without a batch between, the pipeline gives up, and stops the others. What trying again
cannot help (a wrong option, lost messages, a row that no queue takes) is not tried again.

Told to stop, each query finishes the batch that it is in. A batch that is cut off nevertheless is done again by the
next run, as the same batch: nothing is lost or doubled by it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.core.backoff import backoff
from penstock.pipelines.checkpoints import State, last_number
from penstock.pipelines.definition import MATERIALIZED, Pipeline, seconds_of
from penstock.pipelines.errors import PERMANENT_ERRORS, InvalidDefinition, Place, Problem, reason_of
from penstock.pipelines.frames import Frames, check_partition_columns, table_path, writer_of
from penstock.pipelines.locations import RemotePath
from penstock.pipelines.progress import Batch, Display, QueryProgress
from penstock.pipelines.reports import Reports
from penstock.pipelines.where import Where

LOOK_S = 0.1
STATUS_S = 1.0
STOP_S = 60.0
REFRESH_S = 60.0
DONE, STOPPED, FAILED = "done", "stopped", "failed"
WANTS_EMPTY = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"
"""A run that was killed before its first batch began leaves a file that Spark had not finished. With this on, Spark
refuses the directory from then on."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: str
    reason: str = ""


@dataclass
class _Running:
    """A query, while it runs and while it waits to be started again."""

    progress: QueryProgress
    handle: Any = None
    start_at_s: float = 0.0
    failures: int = 0
    """Since the last batch that was done."""


@dataclass
class Runner:
    """Runs one pipeline, once."""

    spark: Any
    pipeline: Pipeline
    where: Where
    state: State
    display: Display
    once: bool = True
    stop: threading.Event = field(default_factory=threading.Event)
    """Set it to have the run end."""
    stop_now: threading.Event = field(default_factory=threading.Event)
    """Set it to have it end without waiting for batches."""
    stop_s: float = STOP_S
    jitter: Callable[[], float] = random.random
    on_batch: Callable[[], None] = lambda: None
    """Called after each batch."""

    def __post_init__(self) -> None:
        self._queries = {name: _Running(QueryProgress(name)) for name in self.pipeline.queries}
        self._started_at = time.time()
        self._status_due_s = 0.0
        self._writers: dict[str, Any] = {}
        self._is_run = False
        self._reports = Reports(self.where, self.display.note)
        self._subscribed: set[str] = set()
        self._reads: dict[str, set[str]] = {}
        """For each query, the tables of the pipeline that it reads."""

    @property
    def progress(self) -> list[QueryProgress]:
        """How far each query is."""
        return [each.progress for each in self._queries.values()]

    def run(self) -> Outcome:
        """Run to the end. `InvalidDefinition` if Spark finds that it cannot be."""
        self._say("starting")
        self._is_run = True
        self.spark.conf.set(WANTS_EMPTY, "false")
        try:
            self._writers = {name: self._writer(name) for name in self._queries}
            self._check_part()
            outcome = Outcome(DONE)
            for stage in self._stages() if self.once else [list(self._queries)]:
                outcome = self._run_stage([self._queries[name] for name in stage])
                if outcome.state != DONE:
                    break
            self._say(outcome.state, outcome.reason)
            return outcome
        except InvalidDefinition as error:
            self._say(FAILED, str(error))
            raise
        except BaseException as error:
            self._say(FAILED, f"{type(error).__name__}: {error}")
            raise
        finally:
            for each in self._queries.values():
                if each.handle is not None:
                    with contextlib.suppress(Exception):
                        each.handle.stop()
            self._reports.close()

    def _check_part(self) -> None:
        """A queue that is misspelt in a backfill would be read as a whole."""
        part = self.pipeline.settings.part
        unread = (
            set() if part is None else part.queues - {name for each in self._subscribed for name in each.split(",")}
        )
        if unread and not any(re.fullmatch(each, name) for each in self._subscribed for name in unread):
            told = f"the backfill names {', '.join(sorted(unread))}, which this pipeline does not read"
            raise InvalidDefinition([Problem(Place(str(self.pipeline.file)), told)])

    def _stages(self) -> list[list[str]]:
        """The queries in an order in which each finds the tables that it reads already written."""
        stages: list[list[str]] = []
        done: set[str] = set()
        while len(done) < len(self._queries):
            stage = [name for name in self._queries if name not in done and self._reads[name] <= done]
            assert stage, "tables that read each other were refused when their frames were made"
            stages.append(stage)
            done |= set(stage)
        return stages

    def tell(self) -> None:
        """Have it end after the batches that it is in; told again, without waiting for them."""
        (self.stop_now if self.stop.is_set() else self.stop).set()

    def check(self) -> None:
        """Make every frame and writer, and start nothing: what Spark can find wrong without reading a message."""
        for name in self._queries:
            self._writer(name)

    def _run_stage(self, running: list[_Running]) -> Outcome:
        for each in running:
            self._start(each)
        while True:
            self.stop.wait(LOOK_S)
            if self.stop.is_set():
                self._finish_batches(running)
                for each in running:
                    if self._writers[each.progress.name] is None:
                        self._materialize(each)
                return Outcome(STOPPED, "it was told to stop")
            if self.state.has_lost_lock():
                return Outcome(FAILED, f"another process has taken over {self.state.directory}: this one ends")
            for each in running:
                failed = self._look_at(each)
                if failed is not None:
                    return failed
            self.display.refresh(self.progress)
            if time.monotonic() >= self._status_due_s:
                self._say("running")
            if all(each.progress.state == DONE for each in running):
                return Outcome(DONE)

    # -- one query --

    def _writer(self, name: str) -> Any:
        frames = Frames(self.spark, self.pipeline, self.where, self.state.directory, name)
        frame = frames.make()
        self._reads[name] = frames.tables
        self._subscribed |= frames.subscribed
        checkpoint = self.state.checkpoint(name)
        output = self.pipeline.outputs[name]
        check_partition_columns(frame, output)
        if output.kind == MATERIALIZED:
            return None
        writer = writer_of(frame, self.pipeline, output, self.where, self.state.directory)
        if self._is_run:
            self.state.accept_queues(name, frames.subscribed)
        writer = writer.queryName(f"{self.pipeline.name}.{name}").option("checkpointLocation", str(checkpoint))
        interval_s = seconds_of(self.pipeline.settings.trigger)
        interval_ms = round(1000 * (1.0 if interval_s is None else interval_s))
        trigger = {"availableNow": True} if self.once else {"processingTime": f"{interval_ms} milliseconds"}
        return writer.trigger(**trigger)

    def _materialize(self, running: _Running) -> None:
        """Compute a materialized view as a whole; when the pipeline goes on and on, again after a while."""
        output = self.pipeline.outputs[running.progress.name]
        begun_s = time.monotonic()
        try:
            frame = Frames(self.spark, self.pipeline, self.where, self.state.directory, output.name).make()
            writer = frame.write.mode("overwrite").partitionBy(*output.partition_by)
            writer.parquet(str(table_path(self.pipeline, output, self.state.directory)))
        except InvalidDefinition:
            raise
        except Exception as error:
            raise InvalidDefinition([Problem(output.at, reason_of(error))]) from error
        running.progress.batches += 1
        running.progress.state = DONE if self.once else "running"
        running.start_at_s = time.monotonic() + max(REFRESH_S, 5 * (time.monotonic() - begun_s))

    def _start(self, running: _Running) -> None:
        running.progress.state = "starting"
        running.progress.last_id = -1
        running.progress.latest = None
        writer = self._writers[running.progress.name]
        if writer is None:
            self._materialize(running)
            return
        output = self.pipeline.outputs[running.progress.name]
        try:
            with _set(self.spark, output.conf):
                running.handle = writer.start()
        except Exception as error:
            raise InvalidDefinition([Problem(output.at, reason_of(error))]) from error

    def _look_at(self, running: _Running) -> Outcome | None:
        """Take up what is new of a query; an outcome if the pipeline has failed with it."""
        progress = running.progress
        if progress.state == DONE:
            return None
        if running.handle is None:
            if time.monotonic() >= running.start_at_s:
                self._start(running)
            return None
        is_active = running.handle.isActive
        self._take_reports(running)
        if is_active:
            return None
        error = running.handle.exception()
        running.handle = None
        if error is not None:
            return self._failed(running, reason_of(error))
        if not self.once or not is_complete(self.state.checkpoint(progress.name)):
            return self._failed(running, "the query ended in the middle of its work, without an error")
        progress.state = DONE
        return None

    def _take_reports(self, running: _Running) -> None:
        last = running.handle.lastProgress
        if last is None or running.progress.latest == Batch.of(_plain_report(last)):
            return
        running.progress.state = "running"
        running.failures = 0
        for report in running.handle.recentProgress:
            batch = Batch.of(_plain_report(report))
            if running.progress.saw(batch):
                self.display.batch(running.progress, batch)
                self._status_due_s = 0.0
                self.on_batch()

    def _failed(self, running: _Running, reason: str) -> Outcome | None:
        progress, settings = running.progress, self.pipeline.settings
        progress.error = reason
        running.failures += 1
        if reason.split(":")[0] in PERMANENT_ERRORS or running.failures > settings.restarts:
            progress.state = FAILED
            times = f" (tried {running.failures} times)" if running.failures > 1 else ""
            return Outcome(FAILED, f"{progress.name}: {reason}{times}")
        pause_s = backoff(
            running.failures, settings.restart_pause_s, settings.restart_pause_s_max, jitter=self.jitter() / 2
        )
        progress.state = "restarting"
        progress.restarts += 1
        running.start_at_s = time.monotonic() + pause_s
        self.display.note(f"{progress.name} failed, and starts again in {pause_s:.1f} s: {reason}")
        return None

    # -- the end --

    def _finish_batches(self, running: list[_Running]) -> None:
        """Let each query come to the end of its batch, and stop it there."""
        deadline_s = time.monotonic() + self.stop_s
        waiting = [each for each in running if each.handle is not None and each.handle.isActive]
        before = {each.progress.name: self._batches_done(each.progress.name) for each in waiting}
        while waiting and time.monotonic() < deadline_s and not self.stop_now.is_set():
            for each in list(waiting):
                name = each.progress.name
                between = not each.handle.status["isTriggerActive"]
                if between or not each.handle.isActive or self._batches_done(name) > before[name]:
                    each.handle.stop()
                    waiting.remove(each)
            self.stop_now.wait(LOOK_S / 5)
        for each in running:
            if each.handle is not None:
                self._take_reports(each)
                each.progress.state = STOPPED

    def _batches_done(self, name: str) -> int:
        return last_number(self.state.checkpoint(name) / "commits")

    # -- telling --

    def _say(self, state: str, reason: str = "") -> None:
        self._status_due_s = time.monotonic() + STATUS_S
        status = {
            "pipeline": self.pipeline.name,
            "file": str(self.pipeline.file),
            "host": socket.gethostname(),
            "state": state,
            "reason": reason,
            "mode": "once" if self.once else "continuous",
            "pid": os.getpid(),
            "started_at": self._started_at,
            "updated_at": time.time(),
            "queries": [each.status() for each in self.progress],
        }
        self.state.write_status(status)
        self._reports.tell(status)
        self.display.refresh(self.progress)


@contextlib.contextmanager
def _set(spark: Any, conf: Mapping[str, str]) -> Iterator[None]:
    """Settings of Spark that a query takes when it starts."""
    before = {name: spark.conf.get(name, None) for name in conf}
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def _plain_report(report: Any) -> dict[str, Any]:
    """Spark's report as plain data, whatever the version gives."""
    found: dict[str, Any] = json.loads(report.json) if hasattr(report, "json") else dict(report)
    return found


def is_complete(checkpoint: Path | RemotePath) -> bool:
    """Whether every batch that was begun is done. (A query whose thread died of an error in Java reports none.)"""
    return last_number(checkpoint / "offsets") <= last_number(checkpoint / "commits")
