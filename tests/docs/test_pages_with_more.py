"""Guides whose programs need more than a server: PostgreSQL, Kafka, Spark."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.docs.page import DOCS, follow
from tests.docs.terminal import beside_make_run
from tests.kafka import kafka as kafka
from tests.outbox.postgres import PostgresServer
from tests.ports import free_port
from tests.spark.running import need_java
from tools.kafka import KafkaCluster

HOW_TO = DOCS / "how-to"


def test_the_guide_to_postgresql_works_as_pasted(tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        database = server.create_database("shop")
        with beside_make_run(tmp_path) as terminal:
            written = "postgresql+psycopg://postgres@127.0.0.1:5432/shop"
            follow(HOW_TO / "postgresql.md", terminal, {written: database})
    finally:
        server.stop()


@pytest.mark.timeout(600)
def test_the_guide_to_spark_works_as_pasted(tmp_path: Path) -> None:
    need_java()
    with beside_make_run(tmp_path) as terminal:
        follow(HOW_TO / "spark.md", terminal)


@pytest.mark.timeout(600)
def test_the_guide_to_clusters_works_as_pasted(tmp_path: Path, kafka: KafkaCluster) -> None:
    ports = {port: str(free_port()) for port in ("19325", "19326", "19425", "19426")}
    with beside_make_run(tmp_path) as terminal:
        follow(HOW_TO / "cluster.md", terminal, {"127.0.0.1:19092": kafka.bootstrap, **ports})


def test_the_guide_to_upgrades_works_as_pasted(tmp_path: Path) -> None:
    with beside_make_run(tmp_path) as terminal:
        follow(HOW_TO / "upgrade.md", terminal, {"19325": str(free_port())})


def test_the_guide_to_monitoring_names_metrics_that_the_server_has(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("THIS TEST DID NOT RUN: curl is not installed")
    named = set(re.findall(r"penstock_\w+", (HOW_TO / "monitoring.md").read_text()))
    assert len(named) > 6
    with beside_make_run(tmp_path) as terminal:
        terminal.run("bash", "-c", terminal.pasted("curl -sf 'http://127.0.0.1:4151/pub?topic=orders' -d tea"))
        terminal.run("bash", "-c", terminal.pasted("curl -sf -X POST http://127.0.0.1:9325/v1/queues/orders/receive"))
        shown = terminal.run("curl", "-sf", terminal.pasted("http://127.0.0.1:9325/metrics"))
    assert not [name for name in named if name not in shown]
