"""Delta and Iceberg tables: a batch that is done again is there once."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from penstock.pipelines.lakes import append_delta, append_iceberg


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64()), "day": [f"d{each % 2}" for each in numbers]})


def test_a_delta_table_takes_each_batch_of_a_query_once(tmp_path: Path) -> None:
    assert append_delta(tmp_path / "t", rows(1, 2), "q1", 0, ("day",))
    assert not append_delta(tmp_path / "t", rows(1, 2), "q1", 0, ("day",))
    assert append_delta(tmp_path / "t", rows(3), "q1", 1, ("day",))
    assert append_delta(tmp_path / "t", rows(4), "q2", 0, ("day",))
    assert not append_delta(tmp_path / "t", rows(1, 2), "q1", 0, ("day",))
    assert sorted(deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3, 4]


def test_an_iceberg_table_takes_each_batch_of_a_query_once(tmp_path: Path) -> None:
    assert append_iceberg(tmp_path, "default.t", rows(1, 2), "q1", 0)
    assert not append_iceberg(tmp_path, "default.t", rows(1, 2), "q1", 0)
    assert append_iceberg(tmp_path, "default.t", rows(4), "q2", 0)
    assert append_iceberg(tmp_path, "default.t", rows(3), "q1", 1)
    assert not append_iceberg(tmp_path, "default.t", rows(4), "q2", 0)
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    assert sorted(catalog.load_table("default.t").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
    catalog.close()


def wider(*numbers: int) -> pa.Table:
    return rows(*numbers).append_column("cups", pa.array(numbers, pa.int32()))


def test_a_new_column_is_added_to_a_delta_table(tmp_path: Path) -> None:
    append_delta(tmp_path / "t", rows(1), "q1", 0)
    assert append_delta(tmp_path / "t", wider(2), "q1", 1)
    assert append_delta(tmp_path / "t", rows(3), "q1", 2)
    found = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["cups"]) for row in found) == [(1, None), (2, 2), (3, None)]


def test_a_new_column_is_added_to_an_iceberg_table(tmp_path: Path) -> None:
    append_iceberg(tmp_path, "default.t", rows(1), "q1", 0)
    assert append_iceberg(tmp_path, "default.t", wider(2), "q1", 1)
    assert append_iceberg(tmp_path, "default.t", rows(3), "q1", 2)
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    found = catalog.load_table("default.t").scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["cups"]) for row in found) == [(1, None), (2, 2), (3, None)]
    catalog.close()
