"""A range of the queues goes through a pipeline again, while the pipeline itself runs on."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from penstock.pipelines.backfill import Range, backfill_of, delete_channels, range_of
from penstock.pipelines.checkpoints import State, state_directory
from penstock.pipelines.errors import InvalidDefinition
from penstock.pipelines.runner import Runner
from penstock.pipelines.where import Where
from tests.pipelines.running import Bench, Noted
from tests.pipelines.test_run import body_of
from tests.spark.running import Queues

DEFINITION = """\
name: numbers
trigger: 100 ms
source: {queue: "{q}-q"}
steps:
  - {name: texts, sql: "select cast(value as string) as n from source"}
sinks:
  - {name: to_queue, from: source, queue: "{q}-out"}
  - {name: to_files, parquet: out}
"""


def backfill(bench: Bench, part: Range) -> tuple[State, Noted]:
    pipeline = backfill_of(bench.pipeline, part)
    state, display = State(state_directory(pipeline, None)), Noted()
    with state.locked():
        state.accept(pipeline, reset=False)
        runner = Runner(bench.queues.spark, pipeline, Where(url=bench.queues.url), state, display)
        outcome = runner.run()
        assert (outcome.state, outcome.reason) == ("done", "")
        assert delete_channels(pipeline, state, runner.where) == []
    return state, display


def test_a_range_is_done_again_once_beside_the_stream_that_runs(queues: Queues) -> None:
    bench = Bench(queues, DEFINITION)
    name = queues.send(20, chunk=5)
    stop = threading.Event()
    backfills: list[tuple[State, Noted]] = []

    def look() -> None:  # between two looks of the runner at its streams, which run on
        rows = bench.rows()
        if not backfills and rows == {"to_queue": 20, "to_files": 20}:
            backfills.append(backfill(bench, Range(starting={name: {"0": 5}}, ending={name: {"0": 12}})))
            queues.send(3, start=100)
        elif rows == {"to_queue": 23, "to_files": 23}:
            stop.set()

    bench.display.on_batch = look
    assert bench.run(once=False, stop=stop).state == "stopped"
    expected = sorted([*range(20), *range(5, 12), 100, 101, 102])
    assert sorted(int(body_of(each)) for each in queues.records("out")) == expected
    assert len(bench.files("out", "n")) == 23
    ((state, _),) = backfills
    beside = f"out.{state.directory.name.removeprefix('numbers-')}"
    assert sorted(int(n) for (n,) in bench.files(beside, "n")) == list(range(5, 12))
    assert not [each for each in queues.channels() if "backfill" in each], "nobody reads on from there"


def test_a_range_of_times_is_cut_at_both_ends(queues: Queues) -> None:
    bench = Bench(queues, DEFINITION)
    for start in (0, 10, 20):
        queues.send(10, start=start)
        threading.Event().wait(0.05)  # so that each ten have a time of their own
    rows = queues.reader().selectExpr("cast(value as string) as n", "unix_millis(timestamp) as at").collect()
    at = {int(row.n): row.at for row in rows}
    backfill(bench, Range(since_ms=at[10], until_ms=at[20]))
    assert sorted(int(body_of(each)) for each in queues.records("out")) == list(range(10, 20))


def test_a_queue_that_nothing_reads_is_refused(queues: Queues) -> None:
    queues.send(1)
    with pytest.raises(InvalidDefinition, match="the backfill names ordres, which this pipeline does not read"):
        backfill(Bench(queues, DEFINITION), Range(starting={"ordres": {"0": 5}}))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), None, None), "has to be before"),
        ((datetime(2026, 1, 2, tzinfo=UTC), None, '{"orders": {"0": 1}}', None), "times or offsets"),
        ((None, None, '{"orders": 1}', None), "are not offsets"),
        ((None, None, None, "soon"), "are not offsets"),
    ],
)
def test_what_is_no_range_is_said(
    flags: tuple[datetime | None, datetime | None, str | None, str | None], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        range_of(*flags)
    assert range_of(None, None, None, None) is None
