"""Spark programs that run in processes of their own, so that they can have another master, or be killed.

python -m tests.spark.jobs round-trip MASTER URL DIRECTORY     write, read and stream on a cluster
python -m tests.spark.jobs copy MASTER URL DIRECTORY           queue `in` to Parquet and to queue `out`, exactly once
python -m tests.spark.jobs relay MASTER URL DIRECTORY          queue `in` to queue `out`, with keys, exactly once
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from penstock.pipelines.runner import WANTS_EMPTY
from penstock.pipelines.sessions import ship
from tests.spark.running import session

PATIENCE_S = 600


def round_trip(spark: Any, url: str, directory: Path) -> dict[str, Any]:
    """Everything that the connector does, once. What the executors lack goes with the job."""
    if os.environ.get("SHIP") == "1":
        ship(spark)
    numbers = spark.range(0, 20_000, 1, 4).selectExpr("cast(id as string) as value", "'in' as topic")
    numbers.write.format("penstock").option("url", url).mode("append").save()
    read = spark.read.format("penstock").options(url=url, subscribe="in", minPartitions="4").load()
    total = read.selectExpr("sum(cast(cast(value as string) as bigint)) as total", "count(*) as rows").collect()[0]
    stream = spark.readStream.format("penstock").options(url=url, subscribe="in", startingOffsets="earliest").load()
    query = (
        stream.selectExpr("value", "'out' as topic")
        .writeStream.format("penstock")
        .options(url=url, checkpointLocation=str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(PATIENCE_S)
    pids = spark.sparkContext.parallelize(range(8), 8).map(lambda _: executor_of()).distinct().collect()
    out = spark.read.format("penstock").options(url=url, subscribe="out").load()
    return {"total": total.total, "rows": total.rows, "out": out.distinct().count(), "executors": sorted(pids)}


def executor_of() -> str:
    """Which executor a task runs in."""
    return os.environ.get("SPARK_EXECUTOR_DIRS", "") or str(os.getppid())


def copy(spark: Any, url: str, directory: Path) -> None:
    """Two streams over one queue until there is no more: into Parquet, and through a transformation into a queue."""
    source = {"url": url, "subscribe": "in", "startingOffsets": "earliest", "timeout": "300"}
    limit = os.environ.get("BATCH_MESSAGES", "20000")
    stream = spark.readStream.format("penstock").options(**source, maxOffsetsPerTrigger=limit).load()
    files = (
        stream.selectExpr("cast(value as string) as value", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "to-files"))
        .trigger(availableNow=True)
        .start(str(directory / "files"))
    )
    messages = (
        stream.selectExpr("concat('copy of ', cast(value as string)) as value", "'out' as topic")
        .writeStream.format("penstock")
        .options(url=url, checkpointLocation=str(directory / "to-queue"), timeout="300")
        .trigger(availableNow=True)
        .start()
    )
    print("running", flush=True)
    files.awaitTermination(PATIENCE_S)
    messages.awaitTermination(PATIENCE_S)


def relay(spark: Any, url: str, directory: Path) -> None:
    """One stream from a queue into another until there is no more, with the groups that the messages have."""
    source = {"url": url, "subscribe": "in", "startingOffsets": "earliest", "timeout": "300"}
    limit = os.environ.get("BATCH_MESSAGES", "20000")
    stream = spark.readStream.format("penstock").options(**source, maxOffsetsPerTrigger=limit).load()
    messages = (
        stream.select("value", "key")
        .writeStream.format("penstock")
        .options(url=url, topic="out", checkpointLocation=str(directory / "checkpoint"), timeout="300")
        .trigger(availableNow=True)
        .start()
    )
    print("running", flush=True)
    messages.awaitTermination(PATIENCE_S)


def main() -> None:
    """Run one of them."""
    name, master, url, directory = sys.argv[1:5]
    settings = json.loads(os.environ.get("SPARK_SETTINGS", "{}"))
    spark = session(master, Path(directory), **settings)
    spark.conf.set(WANTS_EMPTY, "false")  # as docs/spark.md says: it may be killed before its first batch has begun
    try:
        job = {"round-trip": round_trip, "copy": copy, "relay": relay}[name]
        print(json.dumps(job(spark, url, Path(directory))), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
