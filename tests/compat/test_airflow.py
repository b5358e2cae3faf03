"""Airflow's own SQS sensor and triggers, from its packages. They weigh 400 MB, so `make interop` runs this.

The calls that its trigger makes are tested in `test_aiobotocore.py`, always.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import penstock
from tests.compat.server import ROOT, Server

PACKAGES = (
    "apache-airflow==3.3.2",
    "apache-airflow-providers-amazon[aiobotocore]==9.39.0",
    "apache-airflow-providers-common-messaging==2.1.2",
)
PATIENCE_S = 900


def installed(pytestconfig: pytest.Config) -> Path:
    """The Python that has Airflow."""
    assert pytestconfig.cache is not None
    where = Path(pytestconfig.cache.mkdir("airflow"))
    python, made = where / "bin" / "python", where / "packages"
    if not made.exists() or made.read_text() != str(PACKAGES):
        subprocess.run([sys.executable, "-m", "venv", "--clear", where], check=True, timeout=PATIENCE_S)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True, timeout=PATIENCE_S)
        made.write_text(str(PACKAGES))
    return python


@pytest.mark.skipif(not os.environ.get("INTEROP"), reason="Airflow weighs 400 MB: `make interop` runs this")
def test_airflows_sensor_and_triggers_get_messages_and_delete_them(
    server: Server, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    python = installed(pytestconfig)
    walk = Path(__file__).parent / "airflow" / "walk.py"
    quiet = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, walk, server.url, tmp_path], capture_output=True, text=True, timeout=PATIENCE_S, env=quiet
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.rpartition("seen ")[2]) == {
        "SqsSensorTrigger": ["success", "SqsSensorTrigger"],
        "MessageQueueTrigger by scheme": ["success", "MessageQueueTrigger by scheme"],
        "MessageQueueTrigger by URL": ["success", "MessageQueueTrigger by URL"],
        "poked": True,
        "sensor": ["to the sensor"],
        "left": "00",
    }


@pytest.mark.timeout(1_800)
@pytest.mark.skipif(not os.environ.get("INTEROP"), reason="Airflow weighs 400 MB: `make interop` runs this")
def test_airflow_runs_a_pipeline_by_the_example_and_does_an_interval_again(
    server: Server, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    python = installed(pytestconfig)
    (tmp_path / "orders.yaml").write_text("source: {queue: airflow-in}\nsink: {queue: airflow-out}\n")
    connection = {"conn_type": "generic", "host": "127.0.0.1", "port": server.http_port, "schema": "http"}
    environment = os.environ | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "deploy" / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_PENSTOCK": json.dumps(connection),
        "AIRFLOW_VAR_PENSTOCK_PIPELINES": str(tmp_path),
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }

    def airflow(*words: str) -> None:
        command = [str(python), "-m", "airflow", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False)
        assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-3000:]

    airflow("db", "migrate")
    with penstock.connect(f"penstock://127.0.0.1:{server.http_port}") as ps:
        ps.queue("airflow-in").send_many(["tea", "coffee"])
        airflow("dags", "test", "penstock_orders", "2026-01-01")
        assert sorted(each.text for each in ps.queue("airflow-out").browse()) == ["coffee", "tea"]
        airflow("dags", "test", "penstock_orders", "2026-01-02", "--conf", '{"again": true}')
        assert len(ps.queue("airflow-out").browse()) == 2, "nothing was sent in that interval"
        sent_at = datetime.fromtimestamp(ps.queue("airflow-in").browse()[0].sent_at, UTC)
        after = (sent_at + timedelta(minutes=15)).isoformat()
        airflow("dags", "test", "penstock_orders", after, "--conf", '{"again": true}')
        assert sorted(each.text for each in ps.queue("airflow-out").browse()) == ["coffee", "coffee", "tea", "tea"]
