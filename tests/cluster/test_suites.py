"""Front ends on three shards of two nodes: a part of their own suites, run again with one shard here and two behind a
real link. All of it: PENSTOCK_TEST_SHARDS=3 pytest tests/protocols/sqs tests/protocols/rest tests/client …
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    "tests/client/test_settling.py",
    "tests/protocols/nsq/test_serving.py::test_a_message_that_is_not_confirmed_in_time_comes_again",
    "tests/protocols/nsq/test_partitions.py",
]


def test_front_ends_work_on_shards_of_two_nodes() -> None:
    environment = os.environ | {"PENSTOCK_TEST_SHARDS": "3", "PENSTOCK_TEST_NEAR": "0"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHOSEN],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5_000:]
