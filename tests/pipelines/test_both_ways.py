"""One file in Spark's language, run by `spark-pipelines` and by `penstock pipeline run`: the same rows come out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from penstock.pipelines.checkpoints import State, state_directory
from penstock.pipelines.definition import load
from penstock.pipelines.runner import Runner
from penstock.pipelines.where import Where
from tests.pipelines.running import BIN, Noted, connect_server
from tests.pipelines.test_run import body_of
from tests.spark.running import Queues

SPEC = """\
name: both
storage: file://{d}/storage
libraries: [{glob: {include: orders.py}}]
configuration: {spark.sql.shuffle.partitions: "2", penstock.trigger: 1 second}
"""
FILE = """\
import os
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr
from penstock.pipelines import checked, lake_sink, messages, queue, queue_sink

spark = SparkSession.active()
OUT = os.environ["PENSTOCK_TEST_OUT"]

CHECKS = {"positive": "amount > 0"}

@checked(parse="json", schema="id bigint, amount double", checks=CHECKS, dead_letters=OUT + "-rejects")
def parsed():
    return queue("{q}-q")

@dp.table
def orders():
    return spark.readStream.table("parsed")

@dp.materialized_view
def total():
    return spark.table("orders").groupBy().agg(expr("sum(amount) as amount"))

dp.create_sink("large", "penstock", queue_sink(OUT + "-large"))

@dp.append_flow(target="large")
def large_orders():
    return messages(spark.readStream.table("parsed").where("amount > 100"), key="id")

dp.create_sink("lake", "penstock_lake", lake_sink("delta", "{d}/" + OUT))

@dp.append_flow(target="lake")
def to_lake():
    return spark.readStream.table("orders").select("id")
"""
BODIES = [f'{{"id": {n}, "amount": {n}.5}}' for n in range(90, 120)] + ['{"id": 1, "amount": -1}', "broken"]


def found(queues: Queues, out: str) -> dict[str, Any]:
    """What a run has left in its queues and its table."""
    import deltalake

    lake = deltalake.DeltaTable(str(queues.directory / out)).to_pyarrow_table()
    letters = queues.records(f"{out}-rejects".removeprefix(f"{queues.prefix}-"))
    large = queues.records(f"{out}-large".removeprefix(f"{queues.prefix}-"))
    return {
        "large": sorted((json.loads(body_of(each))["id"], each["key"]) for each in large),
        "rejects": sorted((body_of(each), each["attributes"]["penstock.reason"]) for each in letters),
        "origins": sorted(each["attributes"]["penstock.offset"] for each in letters),
        "lake": sorted(lake["id"].to_pylist()),
    }


@pytest.mark.timeout(600)
def test_one_file_gives_the_same_rows_under_both_runners(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("grpc") is None:
        reason = "SPARK-PIPELINES DID NOT RUN: it needs grpcio (pip install 'pyspark[pipelines]')"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    directory = queues.directory
    for name, text in (("spark-pipeline.yml", SPEC), ("orders.py", FILE)):
        (directory / name).write_text(text.replace("{q}", queues.prefix).replace("{d}", str(directory)))
    queues.rest("POST", f"/v1/queues/{queues.name()}/messages", [{"body": body} for body in BODIES])

    ours = queues.name("ours")
    monkeypatch.setenv("PENSTOCK_TEST_OUT", ours)
    pipeline = load(directory / "spark-pipeline.yml")
    assert (pipeline.name, pipeline.settings.trigger) == ("both", "1 second")
    state = State(state_directory(pipeline, None))
    with state.locked():
        state.accept(pipeline, reset=False)
        assert Runner(queues.spark, pipeline, Where(queues.url), state, Noted()).run().state == "done"
    totals = queues.spark.read.parquet(str(state.directory / "tables" / "total")).collect()
    expected = found(queues, ours)
    assert expected["large"] == [(n, str(n)) for n in range(100, 120)]
    assert expected["lake"] == list(range(90, 120))
    assert expected["rejects"] == [
        ("broken", "the body is not JSON"),
        ('{"id": 1, "amount": -1}', "check failed: positive"),
    ]

    theirs = queues.name("theirs")
    ran = spark_pipelines(directory, {"PENSTOCK_TEST_OUT": theirs, "PENSTOCK_URL": queues.url})
    assert ran.returncode == 0, ran.stdout[-3_000:] + ran.stderr[-6_000:]
    assert found(queues, theirs) == expected
    (warehouse,) = directory.glob("spark-warehouse/total")
    assert queues.spark.read.parquet(str(warehouse)).collect() == totals


def spark_pipelines(directory: Path, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Spark's own runner, on a Spark Connect server of its own."""
    warehouse = {"spark.sql.warehouse.dir": str(directory / "spark-warehouse")}
    with connect_server("local[2]", directory, **warehouse) as remote:
        environment = {**os.environ, **settings, "SPARK_HOME": str(BIN.parent), "PYSPARK_PYTHON": sys.executable}
        environment |= {"PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [str(BIN / "spark-pipelines"), "run", "--remote", remote, "--spec", "spark-pipeline.yml"]
        return subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=200, check=False, env=environment
        )
