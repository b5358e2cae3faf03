"""`penstock-python` for a stream: the second one of a Spark is forked from a Python that has loaded everything.

The test is Spark here: it starts the program as Spark does, and waits for it to connect.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.spark.worker_python import IMPOSSIBLE, ONE_THREAD, STREAM
from tests.compat.server import until

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there are no warm Pythons without pidfd_open")
PROGRAM = [sys.executable, "-m", "penstock.spark.worker_python", "-m", STREAM]
PATIENCE_S = 60.0


class Spark:
    """Starts streams' processes, and hears from them."""

    def __init__(self, directory: Path) -> None:
        self.temporary = directory
        self._path = directory / "spark.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen()
        self._listener.settimeout(PATIENCE_S)
        self.started: list[Stream] = []

    def start(self) -> Stream:
        """One more stream."""
        told = {"PYTHON_WORKER_FACTORY_SOCK_PATH": str(self._path), "TMPDIR": str(self.temporary)}
        process = subprocess.Popen(PROGRAM, env=os.environ | told, stderr=subprocess.PIPE)
        connection, _ = self._listener.accept()
        connection.settimeout(PATIENCE_S)
        (process_id,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        self.started.append(Stream(process, connection, process_id))
        return self.started[-1]

    def warm_pythons(self) -> list[Path]:
        """The socket files of those who listen."""
        return [path for path in self.temporary.glob("penstock-python-*/*") if path.name.count(".") == 0]

    def stop(self) -> None:
        """End what was started, the warm Python included."""
        self._listener.close()
        for stream in self.started:
            stream.connection.close()
            stream.process.kill()
            stream.process.communicate(timeout=PATIENCE_S)
        for path in self.warm_pythons():
            with contextlib.suppress(ProcessLookupError, ConnectionRefusedError):
                os.kill(process_behind(path), signal.SIGKILL)


class Stream:
    """What Spark knows of one: the process that it started, and who connected."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, process_id: int) -> None:
        self.process = process
        self.connection = connection
        self.process_id = process_id

    @property
    def is_forked(self) -> bool:
        return self.process_id != self.process.pid


def process_behind(path: Path) -> int:
    """Who listens there."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        process_id: int = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return process_id


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def directory() -> Iterator[Path]:
    """The names of socket files are short."""
    with tempfile.TemporaryDirectory(prefix="warm-", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


@pytest.fixture
def cold(directory: Path) -> Iterator[Spark]:
    made = Spark(directory)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def warm(cold: Spark) -> Spark:
    """A Spark that has had its first stream."""
    cold.start()
    until(cold.warm_pythons, PATIENCE_S)
    return cold


def test_the_first_stream_starts_alone_and_the_second_is_forked(warm: Spark) -> None:
    first, second = warm.started[0], warm.start()
    assert not first.is_forked
    assert second.is_forked
    parent = int(Path(f"/proc/{second.process_id}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent == process_behind(warm.warm_pythons()[0])


def test_streams_are_forked_side_by_side(warm: Spark) -> None:
    streams = [warm.start() for _ in range(3)]
    assert len({stream.process_id for stream in streams}) == 3
    streams[1].process.kill()
    until(lambda: not is_running(streams[1].process_id), PATIENCE_S)
    assert is_running(streams[0].process_id) and is_running(streams[2].process_id)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_program_ends_the_stream(warm: Spark, number: signal.Signals) -> None:
    stream = warm.start()
    stream.process.send_signal(number)
    until(lambda: not is_running(stream.process_id), PATIENCE_S)
    stream.process.wait(PATIENCE_S)


def test_a_stream_ends_as_it_would_alone(warm: Spark) -> None:
    """Spark hangs up: the status and what is said on the way are the same."""
    ends = []
    for stream in (warm.started[0], warm.start()):
        stream.connection.close()
        _, said = stream.process.communicate(timeout=PATIENCE_S)
        ends.append((stream.process.returncode, said.splitlines()[-1:]))
    assert ends[0] == ends[1]
    assert ends[0][0] != 0


def test_the_warm_python_ends_with_spark(directory: Path) -> None:
    spark = subprocess.Popen(["sleep", "600"])
    path = directory / f"{spark.pid}-1"
    (directory / "999999999-1").touch()  # of a Spark that was killed long ago
    program = [sys.executable, "-m", "penstock.spark.warm_python", str(path), str(spark.pid)]
    warm = subprocess.Popen(program, env=os.environ | ONE_THREAD)
    try:
        until(path.exists, PATIENCE_S)
        assert os.listdir(directory) == [path.name]
        spark.kill()
        assert warm.wait(PATIENCE_S) == 0
        assert not path.exists()
    finally:
        for process in (spark, warm):
            process.kill()
            process.wait(PATIENCE_S)


def test_a_directory_that_others_may_open_is_not_used(warm: Spark) -> None:
    directory = warm.warm_pythons()[0].parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o755)
    assert not warm.start().is_forked


def test_where_a_library_starts_threads_nobody_forks(directory: Path) -> None:
    spark = subprocess.Popen(["sleep", "600"])
    path = directory / f"{spark.pid}-1"
    threads = {"OMP_NUM_THREADS": "2", "JE_ARROW_MALLOC_CONF": "background_thread:true"}
    program = [sys.executable, "-m", "penstock.spark.warm_python", str(path), str(spark.pid)]
    try:
        ran = subprocess.run(program, env=os.environ | threads, capture_output=True, timeout=PATIENCE_S, check=False)
        assert b"has started a thread" in ran.stderr
        assert os.listdir(directory) == [path.name + IMPOSSIBLE]
    finally:
        spark.kill()
        spark.wait(PATIENCE_S)


def test_a_place_whose_name_is_too_long_is_not_used(cold: Spark) -> None:
    cold.temporary /= "x" * 100
    cold.temporary.mkdir()
    assert not cold.start().is_forked
    assert [path.name for path in cold.temporary.glob("*/*")] == []


def test_one_that_was_killed_is_replaced(warm: Spark) -> None:
    path = warm.warm_pythons()[0]
    killed = process_behind(path)
    os.kill(killed, signal.SIGKILL)
    until(lambda: not is_running(killed), PATIENCE_S)
    assert not warm.start().is_forked

    def is_replaced() -> bool:
        with contextlib.suppress(OSError):
            return process_behind(path) != killed
        return False

    until(is_replaced, PATIENCE_S)
    assert warm.start().is_forked
