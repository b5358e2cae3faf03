"""A service as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from penstock.process import announce

PROGRAM = """
import contextlib, os, signal, sys
from penstock.process import run

@contextlib.asynccontextmanager
async def service():
    yield None

def greeting(ready):
    os.kill(os.getpid(), signal.SIGTERM)
    return str(sys.getswitchinterval())

run(service(), None, greeting)
print("ended")
"""

SLOW_TO_START = """
import asyncio, contextlib, os, signal
from penstock.process import run

@contextlib.asynccontextmanager
async def service():
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.Event().wait()
    finally:
        print("closed", flush=True)
    yield None

run(service(), None, str)
print("ended")
"""


def test_no_thread_of_a_service_keeps_the_loop_waiting_for_longer_than_a_commit_takes() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    switch_s, ended = done.stdout.split()
    assert float(switch_s) <= 0.001
    assert ended == "ended", "SIGTERM ends it in order"


def test_a_signal_ends_a_service_that_waits_for_others_before_it_can_start() -> None:
    command = [sys.executable, "-c", SLOW_TO_START]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["closed", "ended"]


class Ready(msgspec.Struct):
    where: str


def test_a_ready_file_that_is_no_file_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        announce(Ready(where="here"), pipe, str)
        assert pipe.is_fifo()
        assert b"here" in os.read(reader, 1_000)
    finally:
        os.close(reader)
