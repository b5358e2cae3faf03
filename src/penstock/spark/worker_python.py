"""The program `penstock-python`: this Python, for Spark's workers, started in a third of the time.

Spark puts an archive of its own, `pyspark.zip`, first on its workers' path. Modules in an archive are never kept
compiled, so every Python that Spark starts (one for each stream, one for each kind of work) compiles pyspark anew.
Where the archive is part of the very pyspark that is installed, the installed modules are the same ones, and compiled.
So this takes the archive from the path, and becomes the Python that Spark asked for. Its planners get one thread for
numerical libraries, as Spark gives its workers: starting more of them takes longer than all that they do. (What is
imported here is little, for the same reason.)

    PYSPARK_PYTHON=penstock-python spark-submit job.py

For a stream it does not even load what is installed: it asks a Python that has done so to fork (`warm_python.py`). If
there is none, it starts one for the next stream.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

PROGRAM = "penstock-python"
STREAM = "pyspark.sql.streaming.python_streaming_source_runner"
"""What Spark starts for each stream."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""With these the libraries that a stream needs start no thread when they are loaded."""
LENGTH = struct.Struct("<I")
PROCESS = struct.Struct("<I")
STATUS = struct.Struct("<i")
IMPOSSIBLE = ".impossible"
"""The end of the name of a file that says: there can be no warm Python here."""
_KILLED = 128
_PATH_LENGTH_MAX = 90
"""Of a socket file; the system's limit is 107, and a warm Python puts something behind it."""


def worker_python() -> str:
    """What to name in `PYSPARK_PYTHON`: the program beside this Python; this Python where it is not installed."""
    import sysconfig

    program = os.path.join(sysconfig.get_path("scripts"), PROGRAM)
    return program if os.path.exists(program) else sys.executable


def without_archives(entries: Sequence[str], installed: Sequence[str]) -> list[str]:
    """The entries of a path without Spark's archives of modules that are also installed, beside them.

    >>> without_archives(["/opt/spark/python/lib/pyspark.zip", "/home/me"], ["/usr/lib/python3/dist-packages"])
    ['/opt/spark/python/lib/pyspark.zip', '/home/me']
    """
    return [entry for entry in entries if not any(_is_installed(entry, each) for each in installed)]


def _is_installed(entry: str, installed: str) -> bool:
    directory, name = os.path.split(entry)
    module = name.partition(".")[0].partition("-")[0]  # pyspark.zip, py4j-0.10.9.9-src.zip
    is_archive = name.endswith(".zip") and directory == os.path.join(installed, "pyspark", "python", "lib")
    return is_archive and os.path.exists(os.path.join(installed, module, "__init__.py"))


def main() -> None:
    """Become this Python, with a better path; or have a warm one fork, and wait for what it has forked."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(without_archives(entries, sys.path))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1:2] == ["-m"] and sys.argv[2:] == [STREAM] and hasattr(os, "pidfd_open"):
        with suppress(OSError):
            _start_stream(sys.argv[2:])
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


# -- a warm Python -----------------------------------------------------------------------------------------------------


def _start_stream(arguments: list[str]) -> None:
    """Ends this process when that of the stream has ended. Returns if nobody is there to fork it."""
    import socket

    spark_process_id = os.getppid()
    path = _socket_path(spark_process_id)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return _leave_warm_python(path, spark_process_id)
        _wait_for(connection, arguments)


def _wait_for(connection: Any, arguments: list[str]) -> None:
    import signal
    import socket

    request = encode_request(os.getcwd(), arguments, dict(os.environb))
    socket.send_fds(connection, [LENGTH.pack(len(request))], [0, 1, 2])
    connection.sendall(request)
    answer = connection.recv(PROCESS.size, socket.MSG_WAITALL)
    if len(answer) < PROCESS.size:  # it ended before it forked
        return
    (process_id,) = PROCESS.unpack(answer)

    def pass_on(number: int, _: Any) -> None:
        with suppress(ProcessLookupError):
            os.kill(process_id, number)

    signal.signal(signal.SIGTERM, pass_on)
    with suppress(OSError):  # from here on the process is there: nobody starts a second one
        answer = connection.recv(STATUS.size, socket.MSG_WAITALL)
    status = STATUS.unpack(answer)[0] if len(answer) == STATUS.size else 1
    os._exit(status if status >= 0 else _KILLED - status)


def encode_request(directory: str, arguments: list[str], variables: dict[bytes, bytes]) -> bytes:
    """What a stream's process is to be, in bytes.

    >>> decode_request(encode_request("/tmp", ["module", "two words"], {b"A": b"1=2"}))
    ('/tmp', ['module', 'two words'], {b'A': b'1=2'})
    """
    pairs = [name + b"=" + value for name, value in variables.items()]
    return b"\0".join([os.fsencode(directory), b"%d" % len(arguments), *map(os.fsencode, arguments), *pairs])


def decode_request(data: bytes) -> tuple[str, list[str], dict[bytes, bytes]]:
    """Read what `encode_request` has made."""
    directory, count, *rest = data.split(b"\0")
    arguments, pairs = rest[: int(count)], rest[int(count) :]
    variables = dict(pair.split(b"=", 1) for pair in pairs)
    return os.fsdecode(directory), list(map(os.fsdecode, arguments)), variables


def _leave_warm_python(path: str, spark_process_id: int) -> None:
    if os.path.exists(path + IMPOSSIBLE):
        return
    program = [sys.executable, "-m", "penstock.spark.warm_python", path, str(spark_process_id)]
    nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    os.posix_spawn(sys.executable, program, os.environ | ONE_THREAD, file_actions=nothing)


def _socket_path(spark_process_id: int) -> str:
    """Where the warm Python for this Spark, this Python and this path listens. `OSError` if the place is not ours."""
    import stat
    import zlib

    directory = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"penstock-python-{os.getuid()}")
    with suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{directory} is not this user's alone")
    with open(f"/proc/{spark_process_id}/stat", "rb") as file:
        started = file.read().rpartition(b")")[2].split()[19]
    told = b"\0".join(
        [started, os.fsencode(sys.executable), os.environb.get(b"PYTHONPATH", b""), os.fsencode(__file__)]
    )
    path = os.path.join(directory, f"{spark_process_id}-{zlib.crc32(told)}")
    if len(os.fsencode(path)) > _PATH_LENGTH_MAX:
        raise OSError(f"{path} is too long for a socket file")
    return path


if __name__ == "__main__":
    main()
