"""A pipeline's own directory: what it must remember from run to run.

    <state>/<name>/
        pipeline.json           of what the checkpoints are, by query
        checkpoints/<query>/    Spark's own
        tables/<table>/         the files of @table
        status.json             how it goes, or went
        lock                    held while it runs
        spark.log

A checkpoint belongs to what a query reads, to the state that it keeps between batches, and to where it writes. If one
of these changes, going on would lose rows, repeat them, or fail in some obscure way; so it is refused, and said. What
else changes in a pipeline (a filter, a check, a trigger) is taken up at the next start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.pipelines.definition import FILES, Output, Pipeline
from penstock.pipelines.errors import IncompatibleCheckpoint
from penstock.pipelines.frames import table_path
from penstock.pipelines.locations import RemoteLock, RemotePath, is_locked, local_lock, location, remove_all
from penstock.pipelines.progress import partition_offsets
from penstock.pipelines.sql import is_stateful
from penstock.pipelines.where import Where

DEFAULT_DIRECTORY = ".penstock"
_SPARK_FILES = "_spark_metadata"


def state_directory(
    pipeline: Pipeline, given: str | Path | None, conf: Mapping[str, str] | None = None
) -> Path | RemotePath:
    """Where a pipeline keeps what it remembers: `.penstock/<name>` beside its file, unless told otherwise."""
    beside = pipeline.file.parent if given is None else Path()
    wanted = str(given) if given is not None else pipeline.settings.state or DEFAULT_DIRECTORY
    return location(wanted, beside, {**pipeline.settings.conf, **(conf or {})}) / pipeline.name


class State:
    """The directory of one pipeline."""

    def __init__(self, directory: Path | RemotePath) -> None:
        self.directory = directory
        self._remote_lock: RemoteLock | None = None
        self._status = directory / "status.json"
        self._signatures = directory / "pipeline.json"
        self._lock = directory / "lock"

    def checkpoint(self, query: str) -> Path | RemotePath:
        """Where Spark keeps a query's progress."""
        return self.directory / "checkpoints" / query

    # -- one at a time --

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else runs this pipeline from here while the block runs."""
        if isinstance(self._lock, RemotePath):
            with self._lock.locked() as self._remote_lock:
                yield
            return
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        status = self.read_status() or {}
        busy = (
            f"another process ({status.get('pid', 'unknown')}) runs this pipeline from {self.directory}: stop it first"
        )
        with local_lock(self._lock, f"{busy}, or give --state another directory"):
            yield

    def has_lost_lock(self) -> bool:
        """Whether another process has taken the lock, because nothing was heard of this one for too long."""
        return self._remote_lock is not None and self._remote_lock.is_lost

    def is_locked(self) -> bool:
        """Whether some process runs this pipeline now."""
        return is_locked(self._lock)

    # -- status --

    def write_status(self, status: dict[str, Any]) -> None:
        """Say how it goes; readers see the old or the new, never half of it."""
        _write(self._status, status)

    def read_status(self) -> dict[str, Any] | None:
        """What was said last; None if nothing was."""
        return _read(self._status)

    # -- what the checkpoints are of --

    def accept(self, pipeline: Pipeline, *, reset: bool) -> list[str]:
        """Check that the checkpoints fit the pipeline, and note of what they are. Returns what was moved or deleted."""
        done = self._reset(pipeline) if reset else []
        known = _read(self._signatures) or {}
        now = {query: signature(pipeline, query) for query in pipeline.queries}
        for query, wanted in now.items():
            if (self.checkpoint(query) / "metadata").exists():
                self._compare(query, known.get(query), wanted)
            else:
                _check_fresh(pipeline, pipeline.outputs[query], self.directory)
        kept = {query: {**known.get(query, {}), **each} for query, each in now.items()}
        _write(self._signatures, known | kept)
        return done

    def accept_queues(self, query: str, queues: set[str]) -> None:
        """The same for the queues that a query was seen to read, which a function may decide."""
        known = _read(self._signatures) or {}
        before, now = known.get(query) or {}, sorted(queues)
        if "queues" in before and (self.checkpoint(query) / "metadata").exists():
            self._compare(query, {"queues": before["queues"]}, {"queues": now})
        if before.get("queues") != now:
            _write(self._signatures, known | {query: {**before, "queues": now}})

    def _compare(self, query: str, before: dict[str, Any] | None, now: dict[str, Any]) -> None:
        if before is None:
            return
        changed = [
            f"{key} was {json.dumps(before.get(key))}, and is {json.dumps(now[key])}"
            for key in now
            if before.get(key) != now[key]
        ]
        if not changed:
            return
        raise IncompatibleCheckpoint(
            f"the checkpoint of {query!r} in {self.directory} does not fit this pipeline any more: "
            f"{'; '.join(changed)}. Change it back, or give the pipeline (or the sink) another name, or start anew "
            "with --reset-checkpoint, which reads everything again"
        )

    def _reset(self, pipeline: Pipeline) -> list[str]:
        done = []
        checkpoints = self.directory / "checkpoints"
        if checkpoints.exists():
            remove_all(checkpoints)
            done.append(f"deleted {checkpoints}")
        self._signatures.unlink(missing_ok=True)
        for output in pipeline.outputs.values():
            path = table_path(pipeline, output, self.directory)
            if output.kind == "parquet" and (path / _SPARK_FILES).exists():
                aside = path.with_name(f"{path.name}.before-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
                path.rename(aside)  # type: ignore[arg-type]  # of the same kind as it is
                done.append(f"moved {path} to {aside}")
        return done


def logs_of(pipeline: Pipeline, state: State) -> Path:
    """Where Spark's own log goes: with the state, if that is on this machine."""
    if isinstance(state.directory, RemotePath):
        return pipeline.file.parent.resolve() / DEFAULT_DIRECTORY / pipeline.name
    return state.directory


def signature(pipeline: Pipeline, query: str) -> dict[str, Any]:
    """What a query's checkpoint belongs to, as JSON can hold it."""
    nodes = pipeline.of_query(query)
    sources: dict[str, Any] = {}
    stateful = []
    for name in sorted(nodes):
        if name in pipeline.sources:
            source = pipeline.sources[name]
            keys = ("subscribe", "subscribePattern", "assign")
            read = {key: source.options[key] for key in keys if key in source.options}
            sources[name] = {"files": source.path} if source.kind == FILES else read
        elif name in pipeline.views:
            view = pipeline.views[name]
            if view.sql and is_stateful(view.sql):
                stateful.append(re.sub(r"\s+", " ", view.sql.strip().lower()))
        else:
            sources[name] = {"table": name}
    output = pipeline.outputs[query]
    return {"sources": sources, "state": sorted(stateful), "sink": {output.kind: output.target}}


def _check_fresh(pipeline: Pipeline, output: Output, directory: Path | RemotePath) -> None:
    """Spark skips, without a word, the batches of a new stream that an old one has already written to a directory."""
    path = table_path(pipeline, output, directory)
    if output.kind == "parquet" and (path / _SPARK_FILES).exists():
        raise IncompatibleCheckpoint(
            f"{path} was written by another stream, whose checkpoint is not here: Spark would take the first batches "
            "of this one for written already, and they would be lost. Name another directory, or use "
            "--reset-checkpoint, which moves the files aside"
        )


# -- what Spark has noted ----------------------------------------------------------------------------------------------


def last_number(directory: Path | RemotePath) -> int:
    """The number of the last batch that Spark has noted in a directory of a checkpoint; -1 for none."""
    with contextlib.suppress(FileNotFoundError):
        return max((int(each.name) for each in directory.iterdir() if each.name.isdigit()), default=-1)
    return -1


def last_batch(checkpoint: Path | RemotePath) -> tuple[int, list[dict[str, Any]]] | None:
    """The last batch that a query has done, and the offsets that it reached in each source; read without Spark."""
    number = last_number(checkpoint / "commits")
    if number < 0:
        return None
    lines = (checkpoint / "offsets" / str(number)).read_text().splitlines()[2:]
    offsets = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and "queues" in found:
                offsets.append(found)
    return number, offsets


def _write(path: Path | RemotePath, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1)
    if isinstance(path, RemotePath):
        path.write_text(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def _read(path: Path | RemotePath) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        raise IncompatibleCheckpoint(f"{path} is damaged: delete it to start anew") from None
    return found if isinstance(found, dict) else None


# -- how a pipeline stands ---------------------------------------------------------------------------------------------

_ASK_S = 1.0
_OVER = ("done", "stopped", "failed")


def status_of(pipeline: Pipeline, state: State, where: Where) -> dict[str, Any]:
    """Everything there is to say, as JSON can hold it."""
    found = dict(state.read_status() or {"pipeline": pipeline.name, "state": "never run", "queries": []})
    is_running = state.is_locked()
    if found["state"] not in (*_OVER, "never run") and not is_running:
        found |= {
            "state": "failed",
            "reason": f"the process {found.get('pid')} ended without a final status: it was killed",
        }
    known = {query["query"]: query for query in found["queries"]}
    ends = _ends(pipeline, state, where)
    found["queries"] = [_query(known.get(name), name, state, ends, is_running) for name in pipeline.queries]
    if "updated_at" in found:
        found["age_s"] = round(time.time() - found["updated_at"], 1)
    return found


def _query(
    known: dict[str, Any] | None, name: str, state: State, ends: dict[str, list[int]], is_running: bool
) -> dict[str, Any]:
    """One query: what its last run said, and where its checkpoint is now."""
    row = dict(known or {"query": name, "state": "never run", "rows": 0, "batches": 0, "recent": []})
    if not is_running and row["state"] not in (*_OVER, "never run"):
        row["state"] = "failed"
    done = last_batch(state.checkpoint(name))
    if done is None:
        return row
    row["last_batch"], offsets = done
    row["sources"] = [
        _source(queue, offset["channel"], partition_offsets(each), ends.get(queue))
        for offset in offsets
        for queue, each in offset["queues"].items()
    ]
    lags = [source["lag"] for source in row["sources"] if source["lag"] is not None]
    if lags:
        row["lag"] = sum(lags)
    return row


def _source(queue: str, channel: str, offsets: list[int], ends: list[int] | None) -> dict[str, Any]:
    """Where a query is in one queue: in all, and by partition. What is not known is None.

    >>> _source("orders", "c", [120], [150])
    {'queue': 'orders', 'channel': 'c', 'offset': 120, 'lag': 30, 'offsets': {'0': 120}, 'lags': {'0': 30}}
    """
    lags = None
    if ends is not None and len(ends) == len(offsets):
        lags = [max(0, end - offset) for offset, end in zip(offsets, ends, strict=True)]
    return {
        "queue": queue,
        "channel": channel,
        "offset": offsets[0] if len(offsets) == 1 else None,
        "lag": None if lags is None else sum(lags),
        "offsets": _by_partition(offsets),
        "lags": None if lags is None else _by_partition(lags),
    }


def _by_partition(numbers: list[int]) -> dict[str, int]:
    """With the keys that `startingOffsets` has, so that offsets can be copied to there."""
    return {str(partition): number for partition, number in enumerate(numbers)}


def _ends(pipeline: Pipeline, state: State, where: Where) -> dict[str, list[int]]:
    """Where the queues end now, by partition; empty if nobody can be asked."""
    queues: set[str] = set()
    for name in pipeline.queries:
        done = last_batch(state.checkpoint(name))
        queues |= {queue for offset in (done[1] if done else []) for queue in offset["queues"]}
    if not queues:
        return {}
    with contextlib.suppress(Exception):
        from penstock.spark.options import SourceOptions
        from penstock.spark.place import open_place

        parsed = SourceOptions.parse({**where.options(), "subscribe": ",".join(queues)}, streaming=True)
        place = open_place(dataclasses.replace(parsed.where, timeout_s=_ASK_S))
        with contextlib.closing(place):
            ends: dict[str, list[int]] = {}
            for part, at in place.find(sorted(queues)).items():
                ends.setdefault(part.queue, []).append(at.end)
            return ends
    return {}
