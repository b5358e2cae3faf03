"""A Python that has loaded everything, and forks for each stream: a stream then starts without its 0.3 s of imports.

Spark plans batches in workers that it keeps. But for each stream that reads a source in Python it starts a new Python,
which loads pyspark, pyarrow, numpy and this connector before it says where the stream starts. `penstock-python` is the
program that Spark starts (`worker_python.py`), and so it can do better:

    Spark --starts--> penstock-python --asks, by a socket file--> warm Python --forks--> the stream's process
                            |                                          |
                            '-- waits until that process ends <--------'

The first stream of a session has nobody to ask: it starts as ever, and leaves a warm Python behind for the next one.
`penstock-python` hands over what it was started with (arguments, variables, directory, standard files), tells Spark how
it ended, passes SIGTERM on, and when it is killed, so is the stream's process. The warm Python ends with Spark itself,
however that ends. It is for one Spark, one user, one Python and one path: the name of its socket file says so, and the
file lies in a directory that only this user can open.

A process that forks must have one thread. The libraries that are loaded here start none, if they are told so when they
are loaded (`ONE_THREAD` in `worker_python.py`). Should one do it all the same, there is no warm Python, and streams
start as they always did. That is also so wherever anything of this fails, and on systems without `pidfd_open`.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import select
import signal
import socket
import struct
import sys
from contextlib import suppress

from penstock.spark.worker_python import IMPOSSIBLE, LENGTH, PROCESS, STATUS, STREAM, decode_request

_LOADED = (STREAM, "pyspark_penstock", "penstock.spark.kafka", "penstock.spark.server", "penstock.spark.directory")
_REQUEST_S_MAX = 10.0


class _Stream:
    """A stream's process, and the connection of the program that waits for it."""

    def __init__(self, process_id: int, connection: socket.socket) -> None:
        self.process_id = process_id
        self.connection = connection
        self.ended = os.pidfd_open(process_id)

    def kill(self) -> None:
        """Nobody waits for it any more."""
        with suppress(ProcessLookupError):
            os.kill(self.process_id, signal.SIGKILL)

    def tell(self) -> None:
        """It has ended: say how, and let go."""
        _, status = os.waitpid(self.process_id, 0)
        with suppress(OSError):
            self.connection.sendall(STATUS.pack(os.waitstatus_to_exitcode(status)))
        self.connection.close()
        os.close(self.ended)


class WarmPython:
    """Forks for whoever asks, until Spark ends."""

    def __init__(self, path: str, spark_process_id: int) -> None:
        self._spark = os.pidfd_open(spark_process_id)
        self._listener = _listen(path)
        self._poll = select.poll()
        self._streams: dict[int, _Stream] = {}
        """By the numbers of their two files: what they are told by, and what tells that they ended."""
        for file in (self._spark, self._listener.fileno()):
            self._poll.register(file, select.POLLIN)

    def serve(self) -> None:
        """Until Spark ends."""
        while True:
            for file, _ in self._poll.poll():
                if file == self._spark:
                    for stream in set(self._streams.values()):
                        stream.kill()
                    return
                if file == self._listener.fileno():
                    self._accept()
                elif file in self._streams:
                    self._look_at(self._streams[file], file)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        try:
            connection.settimeout(_REQUEST_S_MAX)
            data, files = _receive(connection)
        except (OSError, struct.error):
            connection.close()
            return
        process_id = os.fork()
        if process_id == 0:
            self._become(connection, data, files)
        for file in files:
            os.close(file)
        stream = _Stream(process_id, connection)
        for file in (stream.ended, connection.fileno()):
            self._streams[file] = stream
            self._poll.register(file, select.POLLIN)
        with suppress(OSError):
            connection.sendall(PROCESS.pack(process_id))

    def _look_at(self, stream: _Stream, file: int) -> None:
        if file != stream.ended:  # whoever waited for it says nothing: it is gone
            self._poll.unregister(file)
            del self._streams[file]
            stream.kill()
            return
        for each in (stream.ended, stream.connection.fileno()):
            if self._streams.pop(each, None) is not None:
                self._poll.unregister(each)
        stream.tell()

    def _become(self, connection: socket.socket, data: bytes, files: list[int]) -> None:
        """In the new process: be what Spark has started."""
        status = 1
        try:
            connection.close()
            self._listener.close()
            os.close(self._spark)
            for stream in set(self._streams.values()):
                stream.connection.close()
                os.close(stream.ended)
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            status = run(*decode_request(data))
        finally:
            os._exit(status)


def run(directory: str, arguments: list[str], variables: dict[bytes, bytes]) -> int:
    """Do what `python -m` would do with these arguments, and say how it ended."""
    os.chdir(directory)
    os.environb.clear()
    os.environb.update(variables)
    sys.argv = arguments
    status = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    for file in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            file.flush()
    return status & 0xFF


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    head, files, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
    (length,) = LENGTH.unpack(head)
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionResetError("it ended in the middle of its request")
        data += part
    return bytes(data), files


def _listen(path: str) -> socket.socket:
    """Take the name, also from one who died; none is seen before it is listened to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    hidden = f"{path}.{os.getpid()}"
    listener.bind(hidden)
    listener.listen()
    os.rename(hidden, path)
    return listener


def _forget_dead(directory: str) -> None:
    """Remove the files of those who were killed: their names begin with the number of a process that is gone."""
    for name in os.listdir(directory):
        if not os.path.exists(f"/proc/{name.partition('-')[0]}"):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))


def _load() -> None:
    for name in _LOADED:
        importlib.import_module(name)
    del sys.modules[STREAM]  # it is run as a program; what it needs stays
    gc.collect()
    gc.freeze()


def main() -> None:
    """`python -m penstock.spark.warm_python SOCKET_FILE PROCESS_ID_OF_SPARK`."""
    path, spark_process_id = sys.argv[1], int(sys.argv[2])
    _load()
    if len(os.listdir("/proc/self/task")) > 1:
        with open(path + IMPOSSIBLE, "w"):  # so that not every stream tries it
            pass
        sys.exit("a library has started a thread: no process can be forked from here")
    _forget_dead(os.path.dirname(path))
    try:
        WarmPython(path, spark_process_id).serve()
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


if __name__ == "__main__":
    main()
