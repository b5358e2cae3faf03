"""Front ends on three shards of two nodes: a part of their own suites, run again with one shard here and two behind a
real link, and again on three nodes over a real Kafka and a real ZooKeeper. All of it: `make cluster-test`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import zookeeper
from tests.kafka import loudly
from tools.kafka import jars
from tools.zookeeper import jars as jars_of_zookeeper

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240
CHOSEN = [
    "tests/protocols/sqs/test_messages.py",
    "tests/protocols/sqs/test_fifo.py",
    "tests/protocols/sqs/test_queues.py",
    "tests/protocols/sqs/test_dead_letters.py",
    "tests/protocols/sqs/test_long_polling.py",
    "tests/protocols/rest/test_messages.py",
    "tests/protocols/rest/test_work.py",
    "tests/client/test_receiving.py",
    "tests/client/test_acknowledging.py",
    "tests/protocols/nsq/test_serving.py::test_a_message_that_is_not_confirmed_in_time_comes_again",
    "tests/protocols/nsq/test_partitions.py",
]


CHOSEN_FOR_NODES = [
    "tests/protocols/sqs/test_messages.py",
    "tests/protocols/rest/test_messages.py",
    "tests/protocols/websocket/test_socket.py::test_messages_are_pushed_while_there_is_credit",
    "tests/client/test_acknowledging.py",
]


def test_front_ends_work_on_shards_of_two_nodes() -> None:
    run_suites(CHOSEN, PENSTOCK_TEST_SHARDS="3", PENSTOCK_TEST_NEAR="0")


def test_front_ends_work_on_three_nodes_over_kafka() -> None:
    with loudly():
        jars()
    run_suites(CHOSEN_FOR_NODES, PENSTOCK_TEST_CLUSTER="3", PENSTOCK_TEST_BROKERS="1")


def test_front_ends_work_on_three_nodes_over_zookeeper() -> None:
    with zookeeper.loudly():
        jars_of_zookeeper()
    on = {"PENSTOCK_TEST_ENGINE": "zookeeper", "PENSTOCK_TEST_CLUSTER": "3", "PENSTOCK_TEST_BROKERS": "1"}
    run_suites(CHOSEN_FOR_NODES, **on)


def run_suites(chosen: list[str], **environment: str) -> None:
    """Run tests in a process of their own; all must pass."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5_000:]
