"""A pipeline's directory: checkpoints of a changed pipeline are refused, and one process runs at a time."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest

from penstock.pipelines.checkpoints import State, last_batch, state_directory, status_of
from penstock.pipelines.definition import Pipeline, load
from penstock.pipelines.errors import AlreadyRunning, IncompatibleCheckpoint
from penstock.pipelines.progress import Batch, Lines, Live, QueryProgress
from penstock.pipelines.where import Where

TEXT = """\
name: orders
source: {queue: orders}
steps:
  - sql: select value, timestamp from source where offset > 3
  - {name: grouped, sql: "select count(*) as n from step_1 group by timestamp"}
sinks:
  - {parquet: out}
  - {queue: copy, from: step_1}
"""


def pipeline(directory: Path, *change: str) -> Pipeline:
    file = directory / "orders.yaml"
    file.write_text(TEXT.replace(*change) if change else TEXT)
    return load(file)


def ran(state: State, made: Pipeline) -> None:
    """As if each query had run: Spark writes this file first."""
    state.accept(made, reset=False)
    for query in made.queries:
        state.checkpoint(query).mkdir(parents=True)
        (state.checkpoint(query) / "metadata").write_text('{"id": "x"}')


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("queue: orders", "queue: others"), 'sources was {"source": {"subscribe": "orders"}}, and is'),
        (("queue: copy", "queue: other"), 'sink was {"queue": "copy"}, and is {"queue": "other"}'),
        (("parquet: out", "delta: out"), 'sink was {"parquet": "out"}, and is {"delta": "out"}'),
        (("group by timestamp", "group by value"), "state was"),
    ],
)
def test_a_change_that_a_checkpoint_cannot_follow_is_refused(
    change: tuple[str, str], said: str, tmp_path: Path
) -> None:
    state = State(tmp_path / "state")
    ran(state, pipeline(tmp_path))
    with pytest.raises(IncompatibleCheckpoint, match="--reset-checkpoint") as caught:
        state.accept(pipeline(tmp_path, *change), reset=False)
    assert said in str(caught.value)


@pytest.mark.parametrize("change", [("offset > 3", "offset > 4"), ("  - {queue: copy, from: step_1}\n", "")])
def test_a_change_that_a_checkpoint_can_follow_is_taken_up(change: tuple[str, str], tmp_path: Path) -> None:
    state = State(tmp_path / "state")
    ran(state, pipeline(tmp_path))
    assert state.accept(pipeline(tmp_path, *change), reset=False) == []


def test_a_directory_that_another_stream_has_written_is_refused_or_moved_aside(tmp_path: Path) -> None:
    made, state = pipeline(tmp_path), State(tmp_path / "state")
    (tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(IncompatibleCheckpoint, match="was written by another stream"):
        state.accept(made, reset=False)
    done = state.accept(made, reset=True)
    assert len(done) == 1
    assert not (tmp_path / "out").exists()
    assert [each.name for each in tmp_path.glob("out.before-*/*")] == ["_spark_metadata"]


def test_one_process_runs_a_pipeline_at_a_time(tmp_path: Path) -> None:
    state = State(tmp_path)
    assert not state.is_locked()
    with state.locked():
        assert State(tmp_path).is_locked()
        with pytest.raises(AlreadyRunning, match="stop it first"), State(tmp_path).locked():
            pass
    assert not state.is_locked()


def test_a_run_that_was_killed_is_shown_as_failed(tmp_path: Path) -> None:
    made = pipeline(tmp_path)
    state = State(state_directory(made, None))
    assert status_of(made, state, Where(data="nowhere"))["state"] == "never run"
    running = {"pipeline": "orders", "state": "running", "pid": 7, "queries": [], "updated_at": time.time()}
    state.write_status(running)
    with state.locked():
        assert status_of(made, state, Where(data="nowhere"))["state"] == "running"
    found = status_of(made, state, Where(data="nowhere"))
    assert (found["state"], found["reason"]) == ("failed", "the process 7 ended without a final status: it was killed")


def test_the_last_batch_is_read_from_what_spark_has_noted(tmp_path: Path) -> None:
    offset = '{"channel": "c", "queues": {"orders": {"0": 7, "id": 1, "kept": 0}}}'
    assert last_batch(tmp_path) is None
    for name, number in (("commits", 9), ("commits", 10), ("offsets", 9), ("offsets", 10), ("offsets", 11)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / str(number)).write_text(f"v1\n{{}}\n{offset}\n-\n")
    found = last_batch(tmp_path)
    assert found is not None
    assert (found[0], found[1][0]["queues"]["orders"]["0"]) == (10, 7)


def test_reports_are_counted_once_and_lag_follows_idle_ones() -> None:
    query = QueryProgress("totals")
    assert query.saw(Batch(0, "t0", 100, 0.5, {"orders": 300}))
    assert not query.saw(Batch(0, "t0", 100, 0.5, {"orders": 300}))
    assert (query.rows, query.lag, query.rows_per_s, query.eta_s) == (100, 300, 200.0, 1.5)
    assert not query.saw(Batch(1, "t1", 0, 0.0, {"orders": 0}))
    assert (query.rows, query.batches, query.lag) == (100, 1, 0)
    assert query.saw(Batch(1, "t2", 5, 0.1, {"orders": 0}))
    assert query.batches == 2


def test_the_lag_of_a_queue_is_that_of_all_its_partitions() -> None:
    end = {"queues": {"q": {"0": 7, "1": (1 << 48) + 5, "id": 3, "kept": [0, 1 << 48]}}}
    latest = {"queues": {"q": {"0": 10, "1": (1 << 48) + 9, "id": 3, "kept": [0, 1 << 48]}}}
    source = {"endOffset": end, "latestOffset": latest}
    report = {"batchId": 1, "timestamp": "t", "numInputRows": 3, "sources": [source]}
    assert Batch.of(report).lag == {"q": 7}


def test_a_batch_that_does_not_say_where_the_queue_ends_has_no_lag() -> None:
    report = {
        "batchId": 1,
        "timestamp": "t",
        "numInputRows": 3,
        "sources": [{"endOffset": {"queues": {"q": {"0": 7}}}}],
    }
    assert Batch.of(report).lag == {}


def test_progress_is_shown_as_a_table_as_lines_and_as_objects() -> None:
    query = QueryProgress("totals", state="running")
    batch = Batch(3, "2026-01-01T00:00:00Z", 1_000, 0.5, {"orders": 4_000})
    query.saw(batch)
    check_header, lines, objects = io.StringIO(), io.StringIO(), io.StringIO()
    live = Live("Pipeline [bold]", check_header)
    live.refresh([query])
    live.close()
    for text in ("Pipeline [bold]", "totals", "running", "1,000", "2,000", "4,000", "0.50 s", "0:02"):
        assert text in check_header.getvalue()
    Lines(lines).batch(query, batch)
    assert lines.getvalue() == "totals: batch 3: 1,000 rows in 0.50 s (2,000 rows/s), lag 4,000, ETA 0:02\n"
    Lines(objects, as_json=True).batch(query, batch)
    found = json.loads(objects.getvalue())
    assert (found["query"], found["rows"], found["lag"], found["eta_s"]) == ("totals", 1_000, {"orders": 4_000}, 2.0)
