"""The report of the rollup pipeline in a real browser: its plots are drawn, and it needs nothing but its own file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.pipelines.ready.report import report
from tests.pages.browser import Browser

pytestmark = pytest.mark.timeout(900)

QUEUES = ("orders", "a.queue.with.a.rather.long.name." + "x" * 40, "<img src=x onerror=alert(1)>")
DRAWN = (
    "[...document.querySelectorAll('svg path.plot')].filter((path) => path.getBoundingClientRect().width > 50).length"
)


def window(queue: str, number: int) -> dict[str, Any]:
    start = datetime(2026, 1, 31, 12, tzinfo=UTC) + timedelta(minutes=number)
    times = {f"{what}_{each}_ms": 10.0 + number for what in ("receive", "ack") for each in ("p50", "p95", "p99")}
    counts = {"sent": 600.0 + number, "received": 600.0, "acked": 580.0, "retries": 2.0, "expired": 0.0, "dead": 1.0}
    return {"queue": queue, "start": start, "end": start + timedelta(minutes=1), "lost_events": 0.0} | times | counts


@pytest.fixture
def drawn(tmp_path: Path) -> str:
    """A report on half an hour, as a file's address."""
    day = tmp_path / "table" / "windows" / "date=2026-01-31"
    day.mkdir(parents=True)
    rows = [window(queue, number) for queue in QUEUES for number in range(30)]
    pq.write_table(pa.Table.from_pylist(rows), day / "part.parquet")
    return report(tmp_path / "table", tmp_path / "report.html").as_uri()


@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (400, True)])
def test_the_report_is_drawn_from_its_file_alone(browser: Browser, drawn: str, width: int, is_dark: bool) -> None:
    with browser.open(drawn, width=width, is_dark=is_dark) as page:
        assert page.value("[...document.querySelectorAll('h2')].map((each) => each.innerText).sort()") == sorted(QUEUES)
        assert page.value("document.querySelectorAll('svg').length") == 4 * len(QUEUES)
        assert page.value(DRAWN) == 3 * 4 * len(QUEUES)
        assert page.value("document.documentElement.scrollWidth") <= width
        assert page.value("getComputedStyle(document.body).color") == (
            "rgb(228, 234, 241)" if is_dark else "rgb(29, 39, 51)"
        )
        assert page.requests == [drawn]
        assert page.complaints == []
        assert len(page.screenshot()) > 10_000
