"""Programs that end while they are connected: as they meant to, with what they wanted to say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.node import ThreadedNode

PATIENCE_S = 60
ENDING = """
import ctypes, sys, penstock

# When Python is gone, the process lives on for a second (as many as its status says), with the threads that it has.
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)
ps = penstock.connect({url!r}, heartbeat=0.6)
ps.queue("orders").send(b"a")
sys.exit(1)
"""
LATE = """
import atexit

def late():
    print(orders.stats().messages)
    ps.close()

atexit.register(late)  # before there is a connection: it is called when the connection rests already
import penstock
from penstock.client.remote import background

background._REST_S = 3600
ps = penstock.connect({url!r})
orders = ps.queue("orders")
orders.send(b"a")
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ThreadedNode]:
    node = ThreadedNode(tmp_path)
    yield node
    node.stop()


def ran(script: str, node: ThreadedNode) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script.format(url=node.url)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_program_that_never_closes_its_connection_ends_with_its_own_status(node: ThreadedNode) -> None:
    done = ran(ENDING, node)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_what_a_program_calls_at_its_very_end_is_still_answered(node: ThreadedNode) -> None:
    done = ran(LATE, node)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
