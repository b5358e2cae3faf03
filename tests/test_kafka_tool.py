"""tools/kafka.py: real brokers that start, stop, die and come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka import kafka, unique_prefix  # noqa: F401
from tools.kafka import KafkaCluster, new_cluster_id, up
from tools.servers import ServerError, down, free_ports, where

ROOT = Path(__file__).resolve().parent.parent


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that waits to be asked how has ended, too."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_no_cluster_has_an_id_that_looks_like_an_option() -> None:
    """One in 64 would: then no broker could be formatted."""
    drawn = iter([b"\xf8" + bytes(15), b"\xfb" * 16, bytes(16)])
    assert new_cluster_id(drawn.__next__) == "A" * 22


def test_the_broker_takes_transactions(kafka: KafkaCluster) -> None:  # noqa: F811
    topic = unique_prefix()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, config={"cleanup.policy": "compact"})])[topic].result(60)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"value", b"key")
    producer.commit_transaction(60)


def test_what_is_up_outlives_who_started_it_until_it_is_taken_down(kafka: KafkaCluster, tmp_path: Path) -> None:  # noqa: F811
    state = tmp_path / "up.json"
    script = f"import pathlib, tools.kafka as k; print(k.up(1, 256, pathlib.Path({str(state)!r})))"
    try:
        said = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, check=True, timeout=200, capture_output=True, text=True
        ).stdout
        known = json.loads(state.read_text())
        assert said.strip() == where(state) == known["address"]
        assert AdminClient({"bootstrap.servers": known["address"]}).list_topics(timeout=60).brokers
    finally:
        assert down(state)
    until(lambda: is_gone(known["pids"][0]))
    assert not Path(known["directory"]).exists()
    assert where(state) is None
    assert not down(state)


def test_a_broker_dies_with_who_started_it(kafka: KafkaCluster) -> None:  # noqa: F811
    script = (
        "import signal, tools.kafka as k; c = k.KafkaCluster(1, heap_mb=256);"
        "print(c.pid(0), c.directory, flush=True); signal.pause()"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert starter.stdout is not None
        pid, directory = starter.stdout.readline().split()
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.communicate()
    until(lambda: is_gone(int(pid)))
    subprocess.run(["rm", "-rf", directory], check=True)


def test_a_pid_that_somebody_else_has_by_now_is_left_alone(tmp_path: Path) -> None:
    state = tmp_path / "up.json"
    state.write_text(json.dumps({"address": "", "directory": str(tmp_path / "gone"), "pids": [os.getpid()]}))
    assert down(state)


def test_without_java_the_error_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match="`java` is not installed"):
        up(1, state=tmp_path / "up.json")


def test_free_ports_are_different_ones() -> None:
    assert len(set(free_ports(20))) == 20


def test_the_compose_file_asks_for_what_the_engine_needs() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert len(services) == 3
    for service in services.values():
        assert service["environment"]["KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR"] == 3
        assert service["environment"]["KAFKA_MIN_INSYNC_REPLICAS"] == 2
