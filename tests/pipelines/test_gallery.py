"""The pipelines of examples/pipelines, each on the data that its generator makes: every number comes out."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pytest

import penstock
from tests.pipelines.running import Bench
from tests.pipelines.test_run import body_of
from tests.spark.running import Queues

GALLERY = Path(__file__).resolve().parents[2] / "examples" / "pipelines"


def generators() -> Any:
    spec = importlib.util.spec_from_file_location("gallery_data", GALLERY / "data.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GENERATORS


class Shown:
    """One pipeline of the gallery, beside a server."""

    def __init__(self, queues: Queues, name: str) -> None:
        self.queues = queues
        shutil.copy(GALLERY / f"{name}.py", queues.directory)
        with penstock.connect(queues.url) as ps:
            self.expected = generators()[name](ps)
        self.bench = Bench(queues, (GALLERY / f"{name}.py").read_text(), f"{name}.py")

    def run(self) -> None:
        outcome = self.bench.run()
        assert (outcome.state, outcome.reason) == ("done", "")

    def records(self, queue: str) -> list[Any]:
        page = self.queues.rest("GET", f"/v1/queues/{queue}/records?offset=0&max=10000")
        assert page["next_offset"] == page["end_offset"]
        return list(page["records"])

    def bodies(self, queue: str) -> list[Any]:
        return [json.loads(body_of(each)) for each in self.records(queue)]

    def dead(self, *queues: str) -> dict[str, int]:
        """Dead letters by what their history says; each knows where it comes from."""
        with penstock.connect(self.queues.url) as ps:
            letters = [letter for queue in queues for letter in ps.queue(queue).browse(limit=1_000)]
        assert all(letter.origin.queue in [queue.removesuffix(".dead") for queue in queues] for letter in letters)
        return dict(Counter(letter.history[-1].error for letter in letters))

    def table(self, name: str) -> list[Any]:
        """The rows of a table, or of a materialized view."""
        path = self.bench.state.directory / "tables" / name
        return list(self.queues.spark.read.parquet(str(path)).collect())

    def lake(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = deltalake.DeltaTable(str(self.bench.path(name))).to_pyarrow_table().to_pylist()
        return found


def test_clicks_are_counted_by_minute_into_a_delta_table_and_failing_pages_raise_alerts(queues: Queues) -> None:
    shown = Shown(queues, "clickstream")
    shown.run()
    rows = shown.lake("lake/clicks")
    assert (len(rows), sum(row["views"] for row in rows)) == (shown.expected["windows"], shown.expected["views"])
    alerts = [[each["minute"][11:16], each["page"], each["errors"]] for each in shown.bodies("clicks.alerts")]
    assert sorted(alerts) == shown.expected["alerts"] and len(alerts) == 2
    assert shown.dead("clicks.dead") == shown.expected["dead"]
    shown.run()
    assert len(shown.lake("lake/clicks")) == len(rows), "nothing is counted twice"


def test_orders_meet_their_payments_within_ten_minutes_and_late_rows_are_dead_letters(queues: Queues) -> None:
    shown = Shown(queues, "paid_orders")
    shown.run()
    assert sorted(each["order_id"] for each in shown.bodies("shop.paid")) == shown.expected["paid"]
    assert shown.dead("shop.orders.dead", "shop.payments.dead") == shown.expected["dead"]
    late = sorted(each["order_id"] for each in shown.bodies("shop.orders.dead"))
    assert late == shown.expected["late orders"]
    status = {each["query"]: each["rejects"] for each in (shown.bench.state.read_status() or {})["queries"]}
    assert Counter(status["orders_rejects"]) + Counter(status["payments_rejects"]) == shown.expected["dead"]


def test_what_was_committed_with_the_outbox_is_in_the_lake_once_and_its_newest_state_in_a_view(queues: Queues) -> None:
    shown = Shown(queues, "outbox_to_lake")
    shown.run()
    assert len(shown.lake("lake/changes")) == shown.expected["changes"] == 270
    newest = {str(row.order_id): [row.version, row.status] for row in shown.table("newest")}
    assert newest == shown.expected["newest"]


def test_clicks_become_visits_whatever_order_they_come_in(queues: Queues) -> None:
    shown = Shown(queues, "sessions")
    shown.run()
    found = [
        [each["visitor"], each["began"][11:16], each["seconds"], each["clicks"]] for each in shown.bodies("visits")
    ]
    assert sorted(found) == shown.expected["visits"] and len(found) == 85
    assert shown.dead("visits.clicks.dead") == shown.expected["dead"]


def test_dead_letters_are_counted_by_reason_and_those_of_the_top_one_go_back(queues: Queues) -> None:
    shown = Shown(queues, "dead_letters")
    shown.run()
    rows = shown.table("by_reason")
    assert {row.reason: row.letters for row in rows} == shown.expected["by_reason"]
    assert {(row.origin, row.attempts_max) for row in rows} == {("work.jobs", 1)}
    top = max(rows, key=lambda row: row.letters).reason
    assert top.startswith(shown.expected["top"])
    with penstock.connect(queues.url) as ps:
        moved = ps.redrive("work.jobs.dead", error=shown.expected["top"]).wait(timeout=30)
        assert (moved.moved, moved.skipped) == (50, 50)
        assert len(ps.queue("work.jobs.dead").browse(limit=1_000)) == 50
        assert ps.queue("work.jobs").stats().channels["main"].ready == 50
    shown.run()
    assert sum(row.letters for row in shown.table("by_reason")) == 100, "what was seen once is not counted again"


@pytest.mark.parametrize("path", sorted(GALLERY.glob("*.py")), ids=lambda path: path.stem)
def test_every_file_of_the_gallery_is_tried_here(path: Path) -> None:
    assert path.stem == "data" or f'"{path.stem}"' in Path(__file__).read_text()
