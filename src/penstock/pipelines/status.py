"""How a pipeline stands: read from its directory, and from its queues if they can be reached. Needs no Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

from penstock.pipelines.checkpoints import State, last_batch
from penstock.pipelines.definition import Pipeline
from penstock.pipelines.progress import partition_offsets
from penstock.pipelines.where import Where

_ASK_S = 1.0
_OVER = ("done", "stopped", "failed")


def status_of(pipeline: Pipeline, state: State, where: Where) -> dict[str, Any]:
    """Everything there is to say, as JSON can hold it."""
    found = dict(state.read_status() or {"pipeline": pipeline.name, "state": "never run", "queries": []})
    is_running = state.is_locked()
    if found["state"] not in (*_OVER, "never run") and not is_running:
        found |= {"state": "failed", "reason": f"the process {found.get('pid')} ended without a word: it was killed"}
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
