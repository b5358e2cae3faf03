"""A backfill: a part of the queues goes through the pipeline again, beside the stream that runs on.

It is a pipeline of its own, named after the other and its range. So it has its own checkpoints, channels and lock, goes
on where it was interrupted, and writes nothing twice. Queues, Delta and Iceberg tables get its rows beside those that
are there. A Parquet directory has one writer: its rows go to a directory beside it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any
from urllib.parse import quote

from penstock.pipelines.checkpoints import State, last_batch
from penstock.pipelines.definition import Pipeline
from penstock.pipelines.where import Where

_STARTS = (
    "startingoffsets",
    "startingtimestamp",
    "startingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy",
)
Offsets = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Range:
    """From where to where, by the time of sending, or by offset for each partition of a queue. The end is not in it."""

    since_ms: int | None = None
    until_ms: int | None = None
    starting: Offsets | None = None
    ending: Offsets | None = None

    @property
    def queues(self) -> set[str]:
        """The queues that it names."""
        return {*(self.starting or ()), *(self.ending or ())}

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        """A source's options, but from this start."""
        kept = {name: value for name, value in given.items() if name.lower() not in _STARTS}
        read = {each.strip() for each in given.get("subscribe", "").split(",")} - {""}
        starting = {queue: at for queue, at in (self.starting or {}).items() if not read or queue in read}
        if starting:
            return {**kept, "startingOffsets": json.dumps(starting)}
        if self.since_ms is None:
            return {**kept, "startingOffsets": "earliest"}
        # A queue to which nothing was sent since then has nothing to do again.
        return {**kept, "startingTimestamp": str(self.since_ms), "startingOffsetsByTimestampStrategy": "latest"}

    def cut(self, frame: Any) -> Any:
        """A source's rows up to this end."""
        from pyspark.sql import functions as sql

        if self.until_ms is not None:
            frame = frame.where(sql.col("timestamp") < sql.timestamp_millis(sql.lit(self.until_ms)))
        ends = [(queue, int(part), end) for queue, at in (self.ending or {}).items() for part, end in at.items()]
        past = [
            (sql.col("topic") == queue) & (sql.col("partition") == part) & (sql.col("offset") >= end)
            for queue, part, end in ends
        ]
        return frame.where(~reduce(lambda one, other: one | other, past)) if past else frame


def range_of(since: datetime | None, until: datetime | None, starting: str | None, ending: str | None) -> Range | None:
    """What the flags say; None if nothing. `ValueError` says what is wrong."""
    if (since, until, starting, ending) == (None, None, None, None):
        return None
    if since is not None and until is not None and since >= until:
        raise ValueError("--since has to be before --until")
    if (since is not None or until is not None) and (starting is not None or ending is not None):
        raise ValueError("give times or offsets, not both")
    since_ms, until_ms = (None if at is None else round(at.timestamp() * 1000) for at in (since, until))
    return Range(since_ms, until_ms, *(None if text is None else _offsets(text) for text in (starting, ending)))


def _offsets(text: str) -> Offsets:
    """
    >>> _offsets('{"orders": {"0": 120}}')
    {'orders': {'0': 120}}
    """
    try:
        found = json.loads(text)
        return {queue: {str(int(part)): int(at) for part, at in parts.items()} for queue, parts in found.items()}
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f'{text!r} are not offsets: write them like {{"orders": {{"0": 120}}}}') from None


def backfill_of(pipeline: Pipeline, part: Range) -> Pipeline:
    """The pipeline that does this part again."""
    mark = f"backfill-{hashlib.sha256(json.dumps(dataclasses.astuple(part)).encode()).hexdigest()[:8]}"
    outputs = {
        name: dataclasses.replace(each, target=f"{each.target.rstrip('/')}.{mark}")
        if each.kind == "parquet" and not each.is_table
        else each
        for name, each in pipeline.outputs.items()
    }
    settings = dataclasses.replace(pipeline.settings, part=part)
    return dataclasses.replace(pipeline, name=f"{pipeline.name[:46]}-{mark}", outputs=outputs, settings=settings)


def delete_channels(pipeline: Pipeline, state: State, where: Where) -> list[str]:
    """Once it is done, nobody reads on from its channels; what could not be deleted, and why."""
    from penstock.spark import options
    from penstock.spark.errors import ServerFailed
    from penstock.spark.server import Connection

    if where.url is None:
        return []
    failed = []
    given = options.Where(where.url, token=where.token, ca_file=where.ca_file, timeout_s=10.0)
    with contextlib.closing(Connection(given)) as connection:
        for query in pipeline.queries:
            done = last_batch(state.checkpoint(query))
            for offset in done[1] if done is not None else []:
                for queue in offset["queues"]:
                    path = f"/v1/queues/{quote(queue, safe='')}/channels/{quote(offset['channel'], safe='')}"
                    try:
                        connection.ask("DELETE", path)
                    except ServerFailed as error:
                        if error.status != 404:
                            failed.append(f"the channel {offset['channel']} of {queue} was not deleted: {error}")
    return failed
