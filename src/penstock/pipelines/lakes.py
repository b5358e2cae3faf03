"""Appending to Delta and Iceberg tables, each batch of a query once. Without jars: by deltalake and pyiceberg.

The table itself keeps which batch of which query it has: Delta in its log, as the version of an application; Iceberg
in the summary of a snapshot. So a batch that is done again, after whatever crash, is found to be there, and left out.
A batch goes through the driver's memory: limit a stream's batches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.pipelines.errors import SparkMissing

_QUERY, _BATCH = "penstock.query", "penstock.batch"


def append_delta(path: Path, table: Any, query_id: str, batch: int, partition_by: tuple[str, ...] = ()) -> bool:
    """Append an Arrow table as this batch of this query; False if it was there."""
    try:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
    except ModuleNotFoundError:
        raise SparkMissing("a Delta table needs deltalake: pip install 'penstock[lakes]'") from None
    if DeltaTable.is_deltatable(str(path)):
        done = DeltaTable(str(path)).transaction_version(query_id)
        if done is not None and done >= batch:
            return False
    path.mkdir(parents=True, exist_ok=True)
    mark = CommitProperties(app_transactions=[Transaction(app_id=query_id, version=batch)])
    write_deltalake(str(path), table, mode="append", partition_by=list(partition_by) or None, commit_properties=mark)
    return True


def append_iceberg(warehouse: Path, name: str, table: Any, query_id: str, batch: int) -> bool:
    """Append an Arrow table as this batch of this query to a table of a warehouse directory; False if it was there."""
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ModuleNotFoundError:
        raise SparkMissing("an Iceberg table needs pyiceberg: pip install 'penstock[lakes]'") from None
    warehouse = warehouse.resolve()
    warehouse.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=f"file://{warehouse}")
    try:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        found = catalog.create_table_if_not_exists(name, schema=table.schema)
        if _iceberg_batch(found, query_id) >= batch:
            return False
        found.append(table, snapshot_properties={_QUERY: query_id, _BATCH: str(batch)})
        return True
    finally:
        catalog.close()


def _iceberg_batch(table: Any, query_id: str) -> int:
    """The last batch of a query that the table has; -1 for none."""
    for snapshot in reversed(table.snapshots()):
        summary = snapshot.summary
        if summary is not None and summary.get(_QUERY) == query_id:
            return int(summary.get(_BATCH))
    return -1
