"""How a pipeline goes: what Spark reports of a batch, what a run amounts to, and showing it to people and programs."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TextIO

from penstock.pipelines.library import REJECTS_METRICS
from penstock.tables import table, visible

BATCHES_KEPT = 20


@dataclass(frozen=True)
class Batch:
    """One batch that is done."""

    batch: int
    at: str
    rows: int
    seconds: float
    lag: dict[str, int] = field(default_factory=dict)
    """For each queue, how many messages were not read yet after this batch."""
    rejects: dict[str, int] = field(default_factory=dict)
    """How many rows have failed, by step and reason."""

    @property
    def rows_per_s(self) -> float:
        """Rows a second, over the whole batch."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @classmethod
    def of(cls, report: dict[str, Any]) -> Batch:
        """Read Spark's report.

        >>> end, latest = '{"queues": {"orders": {"0": 60}}}', '{"queues": {"orders": {"0": 100}}}'
        >>> Batch.of({"batchId": 3, "timestamp": "2026-01-01T00:00:00.000Z", "numInputRows": 10,
        ...           "durationMs": {"triggerExecution": 500}, "sources": [{"endOffset": end, "latestOffset": latest}]})
        Batch(batch=3, at='2026-01-01T00:00:00.000Z', rows=10, seconds=0.5, lag={'orders': 40}, rejects={})
        """
        lag: dict[str, int] = {}
        for source in report.get("sources", ()):
            end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
            for queue, offset in end.items():
                if queue in latest:  # the first batch of a restart may not say
                    lag[queue] = max(lag.get(queue, 0), latest[queue] - offset)
        seconds = report.get("durationMs", {}).get("triggerExecution", 0) / 1000
        rejects = {
            f"{name.removeprefix(REJECTS_METRICS)}: {reason}": int(rows)
            for name, counts in report.get("observedMetrics", {}).items()
            if name.startswith(REJECTS_METRICS)
            for reason, rows in _counts(counts).items()
            if rows
        }
        rows = report.get("numInputRows")  # which Spark Connect says for each source only
        if rows is None:
            rows = sum(int(source.get("numInputRows") or 0) for source in report.get("sources", ()))
        return cls(report["batchId"], report["timestamp"], rows, seconds, lag, rejects)


def _counts(found: Any) -> dict[str, Any]:
    """Observed counts by name. Spark Connect may give a row as its values and its schema.

    >>> _counts({"schema": {"fields": [{"name": "no JSON"}]}, "values": [2]}), _counts({"no JSON": 2})
    ({'no JSON': 2}, {'no JSON': 2})
    """
    if not isinstance(found.get("values"), list):
        return {name: rows for name, rows in found.items() if isinstance(rows, int)}
    try:
        schema = json.loads(found["schema"]) if isinstance(found["schema"], str) else found["schema"]
        return dict(zip([each["name"] for each in schema["fields"]], found["values"], strict=True))
    except (ValueError, KeyError, TypeError):
        return {}


def _offsets(found: Any) -> dict[str, int]:
    """The offsets of a source of ours, by queue, added up over its partitions; empty for another source's."""
    try:
        plain = json.loads(found) if isinstance(found, str) else found
        return {queue: sum(partition_offsets(each)) for queue, each in plain["queues"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def partition_offsets(position: dict[str, Any]) -> list[int]:
    """The offsets of one queue in a checkpoint, by partition.

    >>> partition_offsets({"0": 120, "1": 281474976710700, "id": 7, "kept": [80, 281474976710656]})
    [120, 281474976710700]
    """
    return [int(position[str(partition)]) for partition in range(sum(key.isdecimal() for key in position))]


@dataclass
class QueryProgress:
    """How far one query is."""

    name: str
    state: str = "waiting"
    """waiting, starting, running, restarting, done, stopped or failed."""
    rows: int = 0
    batches: int = 0
    restarts: int = 0
    error: str = ""
    recent: deque[Batch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    last_id: int = -1
    latest: Batch | None = None
    """The last report, be it of a batch or of none."""
    rejects: Counter[str] = field(default_factory=Counter)
    """Rows that have failed in this run, by step and reason."""

    def saw(self, batch: Batch) -> bool:
        """Take up a report; False if it is of no batch with rows, or of one that is known."""
        self.latest = batch
        if batch.batch <= self.last_id or batch.rows == 0:
            return False
        self.last_id = batch.batch
        self.rows += batch.rows
        self.batches += 1
        self.rejects.update(batch.rejects)
        self.recent.append(batch)
        return True

    @property
    def lag(self) -> int | None:
        """Messages that were not read yet, as of the last report."""
        return sum(self.latest.lag.values()) if self.latest is not None and self.latest.lag else None

    @property
    def rows_per_s(self) -> float:
        """Over the last few batches."""
        seconds = sum(each.seconds for each in self.recent)
        return sum(each.rows for each in self.recent) / seconds if seconds else 0.0

    @property
    def eta_s(self) -> float | None:
        """How long the rest takes at this rate."""
        if self.lag is None or not self.rows_per_s:
            return None
        return self.lag / self.rows_per_s

    def row(self) -> dict[str, Any]:
        """For a table, or as JSON."""
        last = self.recent[-1] if self.recent else None
        return {
            "query": self.name,
            "state": self.state,
            "batches": self.batches,
            "rows": self.rows,
            "rows_per_s": round(self.rows_per_s, 1),
            "lag": self.lag,
            "batch_s": round(last.seconds, 3) if last else None,
            "eta_s": None if self.eta_s is None else round(self.eta_s, 1),
            "restarts": self.restarts,
            "error": self.error,
        }

    def status(self) -> dict[str, Any]:
        """For the status file: also the last batches."""
        return {**self.row(), "rejects": dict(self.rejects), "recent": [asdict(each) for each in self.recent]}


class Display(Protocol):
    """Shows how a pipeline goes."""

    def batch(self, query: QueryProgress, batch: Batch) -> None:
        """A batch is done."""
        ...

    def note(self, text: str) -> None:
        """Something to be told."""
        ...

    def refresh(self, queries: list[QueryProgress]) -> None:
        """Some time has gone by."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


class Lines:
    """A line for each batch; for a log, or for `--json` one object."""

    def __init__(self, stream: TextIO, *, as_json: bool = False) -> None:
        self._stream = stream
        self._as_json = as_json

    def batch(self, query: QueryProgress, batch: Batch) -> None:
        """A batch is done."""
        if self._as_json:
            told = asdict(batch) | {"rows_per_s": round(batch.rows_per_s, 1), "eta_s": query.row()["eta_s"]}
            self._print(json.dumps({"query": query.name, **told}))
            return
        lag = "" if query.lag is None else f", lag {query.lag:,}"
        eta = f", ETA {clock(query.eta_s)}" if query.lag and query.eta_s is not None else ""
        speed = f"{batch.rows:,} rows in {batch.seconds:.2f} s ({batch.rows_per_s:,.0f} rows/s)"
        self._print(f"{query.name}: batch {batch.batch}: {speed}{lag}{eta}")

    def note(self, text: str) -> None:
        """Something to be told; never in the way of JSON."""
        print(text, file=sys.stderr if self._as_json else self._stream, flush=True)

    def refresh(self, queries: list[QueryProgress]) -> None:
        """Lines need none."""

    def close(self) -> None:
        """Nothing to do."""

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class Live:
    """A table on a terminal that is kept up to date."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title = title
        self._stream = stream
        self._started_s = time.monotonic()
        self._drawn = ""

    def batch(self, query: QueryProgress, batch: Batch) -> None:
        """The next refresh shows it."""

    def note(self, text: str) -> None:
        """Above the table."""
        self._draw(self._drawn, above=f"{visible(text)}\n")

    def refresh(self, queries: list[QueryProgress]) -> None:
        """Draw the table anew."""
        title = f"{self._title}  {clock(time.monotonic() - self._started_s)}"
        self._draw(table(list(map(shown, queries)), title, self._stream))

    def close(self) -> None:
        """Leave the last table where it is."""

    def _draw(self, drawn: str, above: str = "") -> None:
        lines = self._drawn.count("\n")
        back = f"\x1b[{lines}F\x1b[J" if lines else ""
        self._stream.write(f"{back}{above}{drawn}")
        self._stream.flush()
        self._drawn = drawn


def shown(query: QueryProgress) -> dict[str, Any]:
    """A query as a row of the table.

    >>> shown(QueryProgress("totals"))["state"]
    'waiting'
    """
    row = query.row()
    return {
        "query": query.name,
        "state": query.state,
        "batches": query.batches,
        "rows": query.rows,
        "rows/s": row["rows_per_s"] if query.recent else None,
        "lag": row["lag"],
        "batch": None if row["batch_s"] is None else f"{row['batch_s']:.2f} s",
        "ETA": clock(row["eta_s"]) if row["eta_s"] is not None and row["lag"] else None,
        "restarts": query.restarts,
    }


def clock(seconds: float | None) -> str:
    """A time span as people read it.

    >>> clock(5.2), clock(125), clock(7300)
    ('0:05', '2:05', '2:01:40')
    """
    whole = int(seconds or 0)
    hours, rest = divmod(whole, 3600)
    text = f"{rest // 60}:{rest % 60:02}"
    return text if not hours else f"{hours}:{rest // 60:02}:{rest % 60:02}"


def display_for(title: str, *, as_json: bool) -> Display:
    """A table on a terminal, lines elsewhere, objects for programs."""
    if as_json:
        return Lines(sys.stdout, as_json=True)
    return Live(title, sys.stderr) if sys.stderr.isatty() else Lines(sys.stderr)
