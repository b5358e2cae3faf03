"""Rollups: the numbers agree with what was done; the page shows them."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.core.errors import InvalidRequest, NotFound
from penstock.pipelines.errors import IncompatibleCheckpoint
from penstock.pipelines.ready.report import QueueHistory, Series, _with_silence, lines_svg, page, report
from penstock.pipelines.ready.windows import STORED, windows_of
from penstock.pipelines.where import Where
from tests.compat.server import Server, until
from tests.pipelines.ready.running import EVENTS_QUEUE, rollup
from tests.spark.running import Queues


@pytest.fixture
def ps(server: Server) -> Iterator[Any]:
    with penstock.connect(f"penstock://127.0.0.1:{server.http_port}") as opened:
        yield opened


def windows(spark: Any, table: Path, queue: str) -> list[Any]:
    found: list[Any] = spark.read.parquet(str(table / "windows")).where(f"queue = '{queue}'").collect()
    return found


def told(ps: Any, queue: str, what: str) -> int:
    records = ps.queue(EVENTS_QUEUE).consumer("test").read(max=10_000, offset=0)
    events = [json.loads(record.body) for record in records]
    return sum(each["count"] for each in events if each.get("queue") == queue and each["what"] == what)


def test_what_was_done_is_counted_and_timed_and_drawn(
    spark: Any, ps: Any, queues: Queues, where: Where, tmp_path: Path
) -> None:
    name = queues.create("orders", max_receives=2)
    ps.queue(name).send_many([b"x" * 100] * 20)
    for number, message in enumerate(ps.queue(name).receive(max=20)):
        message.release(error="no") if number < 3 else message.ack()
    for number, message in enumerate(ps.queue(name).receive(max=20, wait=5)):
        message.release(error="never") if number < 1 else message.ack()
    until(lambda: told(ps, name, "acked") == 19 and told(ps, name, "dead") == 1)
    table = tmp_path / "metrics"
    done = rollup(spark, where, table, report=tmp_path / "report.html")
    assert done.events > 0
    rows = windows(spark, table, name)
    total = {each: sum(row[each] for row in rows) for each in ("sent", "received", "acked", "retries", "dead")}
    assert total == {"sent": 20, "received": 23, "acked": 19, "retries": 3, "dead": 1}
    assert sum(row.sent_bytes for row in rows) == 2_000
    first = next(row for row in rows if row.receive_p50_ms is not None)
    assert 0 <= first.receive_p50_ms <= first.receive_p99_ms <= first.receive_max_ms < 60_000
    shown = (tmp_path / "report.html").read_text()
    assert name in shown
    again = rollup(spark, where, table)
    assert sum(row.sent for row in windows(spark, table, name)) == 20
    assert again.dates <= 1


def test_percentiles_are_by_message_and_samples_are_scaled(spark: Any) -> None:
    at = datetime(2026, 1, 31, 12, 0, 30, tzinfo=UTC)
    columns = [each.split()[0] for each in STORED.split(", ")]

    def event(what: str, count: int, **more: Any) -> tuple[Any, ...]:
        given = {"at": at, "what": what, "queue": "q", "count": count, "sample": 0.5, "date": at.date(), **more}
        return tuple(given.get(column) for column in columns)

    events = [
        event("received", 90, attempt=1, latency_ms=10),
        event("received", 9, attempt=1, latency_ms=100),
        event("received", 1, attempt=1, latency_ms=1_000),
        event("received", 50, attempt=2, latency_ms=9_999),
        event("sent", 7, bytes=70),
        event("dropped", 3, queue=None),
    ]
    rows = {row.queue: row for row in windows_of(spark.createDataFrame(events, STORED), "1 minute").collect()}
    row = rows["q"]
    assert (row.receive_p50_ms, row.receive_p95_ms, row.receive_max_ms) == (10, 100, 1_000)
    assert (row.received, row.retries, row.sent, row.sent_bytes) == (300, 100, 14, 140)
    assert row.ack_p50_ms is None
    assert rows[""].lost_events == 6
    assert row.end - row.start == timedelta(minutes=1)


def test_late_events_change_their_window(spark: Any, ps: Any, queues: Queues, where: Where, tmp_path: Path) -> None:
    queue, at_ms = queues.create("events"), 1_700_000_000_000
    sent = {"at": at_ms, "what": "sent", "queue": "q", "first": 0, "last": 4, "count": 5, "bytes": 5}
    ps.queue(queue).send(json.dumps(sent))
    rollup(spark, where, tmp_path, queue=queue)
    ps.queue(queue).send_many([json.dumps(sent | {"count": 2}), "this is no event", json.dumps({"x": 1})])
    assert rollup(spark, where, tmp_path, queue=queue).dates == 1
    assert [row.sent for row in windows(spark, tmp_path, "q")] == [7]
    shutil.move(tmp_path / "_penstock" / "checkpoints" / "events", tmp_path / "events" / "_penstock" / "checkpoint")
    ps.queue(queue).send(json.dumps(sent | {"count": 1}))
    assert rollup(spark, where, tmp_path, queue=queue).events == 1, "a table of an earlier build goes on"
    assert [row.sent for row in windows(spark, tmp_path, "q")] == [8]
    with pytest.raises(IncompatibleCheckpoint, match="has windows of 1 minute"):
        rollup(spark, where, tmp_path, queue=queue, window="5 minutes")


def test_what_is_wrong_is_said(spark: Any, where: Where, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="window is 'soon'"):
        rollup(spark, where, tmp_path, window="soon")
    with pytest.raises(NotFound, match="has no windows"):
        report(tmp_path, tmp_path / "report.html")


# -- the page ----------------------------------------------------------------------------------------------------------


def history(name: str = "orders") -> QueueHistory:
    start = datetime(2026, 1, 31, 12, tzinfo=UTC)
    rows = []
    for number in range(30):
        row: dict[str, Any] = {"start": start + timedelta(minutes=number)}
        row |= {"end": row["start"] + timedelta(minutes=1), "sent": 600.0 + 90 * (number % 7), "received": 600.0}
        row |= {"acked": 580.0, "retries": float(number % 4), "expired": 0.0, "dead": 2.0}
        for what in ("receive", "ack"):
            row |= {f"{what}_p50_ms": 12.0, f"{what}_p95_ms": 40.0 + number, f"{what}_p99_ms": 90.0}
        rows.append(row)
    return QueueHistory(name, rows)


def test_the_page_needs_nothing_from_elsewhere_and_escapes_names() -> None:
    made = page([history("<script>alert(1)</script>")], lost=4)
    assert "<script" not in made
    assert not re.findall(r"(?:src|href)=|url\(|@import|https?://", made)
    assert "4 events are missing" in made


def test_every_plot_is_well_formed_and_within_its_frame() -> None:
    made = page([history()])
    plots = re.findall(r"<svg.*?</svg>", made)
    assert len(plots) == 4
    for plot in plots:
        root = ET.fromstring(plot)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for path in root.iter("path"):
            numbers = [float(each) for each in re.findall(r"[\d.]+", path.attrib["d"])]
            assert all(0 <= x <= width for x in numbers[::2])
            assert all(0 <= y <= height for y in numbers[1::2])


def test_counts_fall_to_nothing_in_windows_without_events() -> None:
    whole = history()
    rows = _with_silence([whole.rows[0], whole.rows[1], whole.rows[9], whole.rows[11]])
    minutes = [(row["start"].minute, row["sent"] > 0) for row in rows]
    assert minutes == [(0, True), (1, True), (2, False), (8, False), (9, True), (10, False), (11, True)]


def test_a_plot_of_nothing_says_so_and_a_lone_point_is_a_dot() -> None:
    assert "nothing here" in lines_svg([Series("a", "red", [(0.0, None)])], "t")
    assert "<circle" in lines_svg([Series("a", "red", [(100.0, 5.0)])], "t")


def test_a_gap_in_time_is_a_gap_in_the_line() -> None:
    points = [(float(at), 1.0) for at in (0, 60, 120, 4_000, 4_060, 4_120)]
    assert lines_svg([Series("a", "red", points)], "t").count("<path") == 2
