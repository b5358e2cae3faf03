"""Archives: what is in them, once, whatever happens."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from penstock.core.errors import InvalidRequest, NotFound
from penstock.pipelines.errors import AlreadyRunning, IncompatibleCheckpoint, InvalidDefinition, PipelineFailed
from penstock.pipelines.landing import Landing
from penstock.pipelines.ready.archives import compact_iceberg, read_archive
from penstock.pipelines.where import Where
from tests.pipelines.ready.running import archive
from tests.spark.running import Queues


def numbers(spark: Any, path: Path, queue: str | None = None) -> list[int]:
    frame = read_archive(spark, path)
    frame = frame if queue is None else frame.where(f"queue = '{queue}'")
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_every_message_is_archived_once_however_often_it_runs(
    spark: Any, queues: Queues, where: Where, archive_path: Path, format: str
) -> None:
    names = [queues.send(1_000, "a"), queues.send(500, "b", start=5_000)]
    assert archive(spark, where, archive_path, names, format=format, batch=600).rows == 1_500
    queues.send(200, "a", start=1_000)
    assert archive(spark, where, archive_path, names, format=format).rows == 200
    assert archive(spark, where, archive_path, names, format=format).rows == 0
    assert numbers(spark, archive_path, names[0]) == list(range(1_200))
    assert numbers(spark, archive_path, names[1]) == list(range(5_000, 5_500))


def test_the_files_lie_by_queue_and_date_and_other_readers_see_the_rows(
    spark: Any, queues: Queues, where: Where, archive_path: Path
) -> None:
    name = queues.send(100, groups=b"g")
    archive(spark, where, archive_path, [name])
    assert [each.name for each in archive_path.iterdir() if not each.name.startswith("_")] == [f"queue={name}"]
    date = next((archive_path / f"queue={name}").iterdir()).name
    assert date.startswith("date=20")
    table = ds.dataset(archive_path, partitioning="hive").to_table()
    assert table.num_rows == 100
    assert set(table["key"].to_pylist()) == {b"g"}


def test_small_files_are_joined_and_no_row_is_lost(
    spark: Any, queues: Queues, where: Where, archive_path: Path
) -> None:
    name = queues.send(1_000)
    done = archive(spark, where, archive_path, [name], batch=100, join=False)
    assert (done.batches, done.joined) == (10, 0)
    landing = Landing(archive_path)
    assert len(landing.files()) == 10
    rows = read_archive(spark, archive_path).orderBy("offset").collect()
    assert archive(spark, where, archive_path, [name]).joined == 10
    assert len(landing.files()) == 1
    assert numbers(spark, archive_path) == list(range(1_000))
    assert read_archive(spark, archive_path).orderBy("offset").collect() == rows, "and every column can be read"


def test_small_files_of_an_iceberg_table_are_joined_and_no_row_is_lost(
    spark: Any, queues: Queues, where: Where, archive_path: Path
) -> None:
    names = [queues.send(1_000), queues.send(300, "few", start=5_000)]
    archive(spark, where, archive_path, names, format="iceberg", batch=100, join=False)
    assert compact_iceberg(archive_path, small_bytes=1) == 0, "nothing is that small"
    joined = archive(spark, where, archive_path, names, format="iceberg").joined
    assert joined >= 8
    assert numbers(spark, archive_path, names[0]) == list(range(1_000))
    assert numbers(spark, archive_path, names[1]) == list(range(5_000, 5_300))
    queues.send(50, start=1_000)
    done = archive(spark, where, archive_path, names, format="iceberg")
    assert (done.rows, done.joined) == (50, 0), "batches are remembered over it"
    assert compact_iceberg(archive_path, small_files=2) >= 2
    assert numbers(spark, archive_path, names[0]) == list(range(1_050))


def test_a_batch_that_is_done_again_is_there_once(spark: Any, queues: Queues, where: Where, archive_path: Path) -> None:
    """The driver dies after a batch has landed and before Spark has noted it: the same batch comes again."""
    name = queues.send(300)
    archive(spark, where, archive_path, [name], batch=100, join=False)
    commits = archive_path / "_penstock" / "state" / "checkpoints" / "archive" / "commits"
    for file in commits.glob("*2*"):
        file.unlink()
    archive(spark, where, archive_path, [name], join=False)
    assert numbers(spark, archive_path) == list(range(300))


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_an_archive_of_an_earlier_build_goes_on(
    spark: Any, queues: Queues, where: Where, archive_path: Path, format: str
) -> None:
    """Its checkpoint was in another place."""
    name = queues.send(300)
    archive(spark, where, archive_path, [name], format=format, batch=100, join=False)
    own = archive_path / "_penstock"
    (own / "state" / "checkpoints" / "archive").rename(own / "checkpoint")
    shutil.rmtree(own / "state")
    queues.send(50, start=300)
    assert archive(spark, where, archive_path, [name], format=format).rows == 50
    assert numbers(spark, archive_path) == list(range(350))


def test_a_batch_is_all_there_or_not_at_all_wherever_its_process_was_killed(tmp_path: Path) -> None:
    table = pa.table({"id": range(100), "part": [each % 4 for each in range(100)]})
    for kill_after in range(8):
        path = tmp_path / str(kill_after)
        moved = _land_until(path, table, kill_after)
        with Landing(path).opened() as landing:
            landing.land(table, "query", 0, ("part",))
            assert landing.last_batch("query") == 0
        assert ds.dataset([str(file) for file in landing.files()]).count_rows() == 100
        assert not list((path / "_penstock" / "stage").iterdir())
        assert not list((path / "_penstock" / "plans").iterdir())
        if moved:
            return
    pytest.fail("the landing never came to its end")


def test_a_batch_may_have_more_directories_than_pyarrow_writes_by_default(tmp_path: Path) -> None:
    table = pa.table({"id": range(1_025), "part": [f"p{number}" for number in range(1_025)]})
    with Landing(tmp_path / "table").opened() as landing:
        landing.land(table, "query", 0, ("part",))
        assert len(landing.files()) == 1_025
        landing.replace(table, [tmp_path / "table" / f"part=p{number}" for number in range(1_025)], ("part",))
        assert len(landing.files()) == 1_025
    assert sorted(ds.dataset(tmp_path / "table").to_table()["id"].to_pylist()) == list(range(1_025))


def test_a_batch_waits_for_another_writer_of_its_directory_and_not_for_ever(tmp_path: Path) -> None:
    with Landing(tmp_path).opened():
        with pytest.raises(AlreadyRunning, match="another process writes to"), Landing(tmp_path).opened(0.05):
            pass
        ended: list[bool] = []

        def land() -> None:
            with Landing(tmp_path).opened(30) as landing:
                landing.land(pa.table({"id": [1]}), "query", 0, ())
            ended.append(True)

        thread = threading.Thread(target=land)
        thread.start()
        thread.join(0.1)
        assert not ended
    thread.join(30)
    assert ended and len(Landing(tmp_path).files()) == 1


class _Killed(BaseException):
    pass


def _land_until(path: Path, table: Any, steps: int) -> bool:
    """Land a batch, and be killed at the n-th file that is moved; True if it came to its end."""
    import os
    from unittest.mock import patch

    real, left = os.replace, [steps]

    def replace(*args: Any) -> None:
        if left[0] == 0:
            raise _Killed
        left[0] -= 1
        real(*args)

    with Landing(path).opened() as landing, patch("penstock.pipelines.landing.os.replace", replace):
        try:
            landing.land(table, "query", 0, ("part",))
            return True
        except _Killed:
            return False


def test_another_set_of_queues_needs_another_directory(
    spark: Any, queues: Queues, where: Where, archive_path: Path
) -> None:
    name = queues.send(10)
    archive(spark, where, archive_path, [name])
    with pytest.raises(IncompatibleCheckpoint, match="use another directory"):
        archive(spark, where, archive_path, [name, "other"])
    assert json.loads((archive_path / "_penstock" / "archive.json").read_text())["subscribe"] == name


def test_one_process_at_a_time_archives_to_a_directory(
    spark: Any, queues: Queues, where: Where, archive_path: Path
) -> None:
    with Landing(archive_path).opened(), pytest.raises(AlreadyRunning, match="another process"):
        archive(spark, where, archive_path, [queues.send(10)])


def test_what_is_wrong_is_said(spark: Any, queues: Queues, where: Where, archive_path: Path) -> None:
    with pytest.raises(InvalidDefinition, match=r"archive.py:\d+: .*use one of parquet, delta, iceberg"):
        archive(spark, where, archive_path, ["a"], format="csv")
    with pytest.raises(InvalidDefinition, match="names of queues, or a pattern"):
        archive(spark, where, archive_path)
    with pytest.raises(InvalidRequest, match="s3a://bucket/archive: this table has to be in a directory"):
        archive(spark, where, Path("s3a://bucket/archive"), ["a"])
    with pytest.raises(PipelineFailed, match=r"archive: .*nosuch"):
        archive(spark, where, archive_path, ["nosuch"])
    with pytest.raises(NotFound, match="is not an archive"):
        read_archive(spark, archive_path / "nowhere")
