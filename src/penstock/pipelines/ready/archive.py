"""Archive: queues to Parquet files, or to a Delta or Iceberg table, by queue and date; every message once.

`archives.py` reads an archive, and joins its small files. What is not archived is kept: the stream is a channel of the
queues.
"""

from __future__ import annotations

from typing import Any

from pyspark import pipelines as dp

from penstock.pipelines import lake_sink, parameter, queue
from penstock.pipelines.ready.archives import FORMATS, ICEBERG_TABLE

QUEUES, PATTERN = parameter("queues", ""), parameter("pattern", "")
PATH, FORMAT, BATCH = parameter("path", "archive"), parameter("format", "parquet"), parameter("batch", "200000")
COLUMNS = ("topic as queue", "to_date(timestamp) as date", "offset", "timestamp", "key", "value", "headers")

if FORMAT not in FORMATS:
    raise ValueError(f"format is {FORMAT!r}: use one of {', '.join(FORMATS)}")
if bool(QUEUES) == bool(PATTERN):
    raise ValueError("say what to archive: the names of queues, or a pattern for them")

table = {"table": ICEBERG_TABLE} if FORMAT == "iceberg" else {}
dp.create_sink("archive", "penstock_lake", lake_sink(FORMAT, PATH, partition_by="queue,date", **table))


@dp.append_flow(target="archive", name="archive")
def archived() -> Any:
    """The messages, as rows."""
    chosen = {"subscribePattern": PATTERN} if PATTERN else {"subscribe": QUEUES}
    return queue(**chosen, maxOffsetsPerTrigger=BATCH, groupIdPrefix="archive").selectExpr(*COLUMNS)
