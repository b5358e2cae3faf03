"""Pipelines on a standalone cluster, by `spark-submit` and over Spark Connect; and by the example for cron."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import testing
from tests.compat.server import ROOT, serving
from tests.pipelines.running import BIN, connect_server
from tests.spark.running import need_java
from tests.spark.test_clusters import standalone

PATIENCE_S = 240
DEFINITION = """\
name: orders
dead_letters: orders.rejects
source: {queue: orders}
steps:
  - {name: read, parse: json, schema: "id bigint"}
  - {name: counted, from: read, python: "functions:doubled"}
sinks:
  - {name: to_queue, queue: doubled}
  - {name: to_files, from: read, parquet: out}
"""
FUNCTIONS = """\
from pyspark.sql.functions import udf

def doubled(frame):
    return frame.select(udf(twice, "bigint")("id").alias("id"))

def twice(number):
    return 2 * number
"""


def prepared(directory: Path) -> None:
    (directory / "orders.yaml").write_text(DEFINITION)
    (directory / "functions.py").write_text(FUNCTIONS)


def succeeded(*command: str, cwd: Path, **environment: str) -> None:
    settings = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable} | environment
    done = subprocess.run(
        command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-6_000:]


def sizes(url: str, *queues: str) -> list[int]:
    with penstock.connect(url.replace("http", "penstock", 1)) as ps:
        return [len(ps.queue(queue).browse(limit=1_000)) for queue in queues]


@pytest.mark.timeout(600)
def test_a_pipeline_runs_on_a_cluster_by_spark_submit_and_goes_on_over_spark_connect(tmp_path: Path) -> None:
    need_java()
    (tmp_path / "server").mkdir()
    prepared(tmp_path)
    with serving(tmp_path / "server") as server, standalone(tmp_path) as master:
        url = f"http://127.0.0.1:{server.http_port}"
        with penstock.connect(url.replace("http", "penstock", 1)) as ps:
            ps.queue("orders").send_many([*[f'{{"id": {n}}}' for n in range(50)], "broken"])
        sizing = ["--driver-memory", "700m", "--executor-memory", "512m", "--conf", "spark.driver.host=127.0.0.1"]
        submit = [str(BIN / "spark-submit"), "--master", master, *sizing, str(ROOT / "deploy" / "spark" / "submit.py")]
        succeeded(*submit, "orders.yaml", "--state", str(tmp_path / "state"), cwd=tmp_path, PENSTOCK_URL=url)
        assert sizes(url, "doubled", "orders.rejects") == [50, 1]
        with penstock.connect(url.replace("http", "penstock", 1)) as ps:
            ps.queue("orders").send_many([f'{{"id": {n}}}' for n in range(50, 60)])
        ours = [sys.executable, "-m", "penstock", "pipeline", "run", "orders.yaml", "--state", str(tmp_path / "state")]
        with connect_server(master, tmp_path) as remote:
            succeeded(*ours, "--master", remote, cwd=tmp_path, PENSTOCK_URL=url)
        assert sizes(url, "doubled", "orders.rejects") == [60, 1], "it went on from the same checkpoints"


@pytest.mark.timeout(300)
def test_the_line_for_cron_runs_a_pipeline_with_secrets_from_the_environment(tmp_path: Path) -> None:
    need_java()
    prepared(tmp_path)
    lines = (ROOT / "deploy" / "cron" / "penstock-orders").read_text().splitlines()
    (line,) = [each for each in lines if each.startswith("*")]
    *when, user, command = line.split(maxsplit=6)
    assert (len(when), user) == (5, "penstock")
    for written, meant in (
        ("/etc/penstock/environment", "./environment"),
        ("/etc/penstock/pipelines", "."),
        ("/var/lib/penstock-pipelines", "state"),
        ("logger -t penstock-orders", "cat >&2"),
    ):
        assert written in command
        command = command.replace(written, meant)
    keys = {"PENSTOCK_ACCESS_KEY": "me", "PENSTOCK_SECRET_KEY": "s3cret"}
    token = ":".join(keys.values())
    with testing.server(environment=os.environ | keys) as server:
        (tmp_path / "environment").write_text(f"PENSTOCK_URL={server.http_url}\nPENSTOCK_TOKEN={token}\n")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with server.connect(token=token) as ps:
            ps.queue("orders").send_many(['{"id": 1}', "broken"])
            succeeded("/bin/sh", "-c", command, cwd=tmp_path, PATH=path)
            assert [each.body for each in ps.queue("doubled").browse()] == [b'{"id":2}']
            assert len(ps.queue("orders.rejects").browse()) == 1
