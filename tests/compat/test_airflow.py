"""Airflow's own SQS sensor and triggers, from its packages. They weigh 400 MB, so `make interop` runs this.

The calls that its trigger makes are tested in `test_aiobotocore.py`, always.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.server import Server

PACKAGES = (
    "apache-airflow==3.3.2",
    "apache-airflow-providers-amazon[aiobotocore]==9.39.0",
    "apache-airflow-providers-common-messaging==2.1.2",
)
PATIENCE_S = 900


@pytest.mark.skipif(not os.environ.get("INTEROP"), reason="Airflow weighs 400 MB: `make interop` runs this")
def test_airflows_sensor_and_triggers_get_messages_and_delete_them(
    server: Server, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    assert pytestconfig.cache is not None
    where = Path(pytestconfig.cache.mkdir("airflow"))
    python, made = where / "bin" / "python", where / "packages"
    if not made.exists() or made.read_text() != str(PACKAGES):
        subprocess.run([sys.executable, "-m", "venv", "--clear", where], check=True, timeout=PATIENCE_S)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True, timeout=PATIENCE_S)
        made.write_text(str(PACKAGES))
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
