"""What Kafka's brokers and ZooKeeper's servers have in common here: jars, ports, processes, and what is done to these.

Each server is a process of its own; data and logs are in a temporary directory that goes with all of them. A small
process beside each kills the server when whoever started it dies without stopping it.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

QUICK_TO_START = "-XX:TieredStopAtLevel=1"
"""A JVM with this is sooner there, and slower then: for tests."""

_FETCH_SECONDS_MAX = 600
_STOP_SECONDS_MAX = 30
_PORTS = range(20_000, 32_000)
"""Below the ports that connections are given for their own end: a stopped server finds its ports free."""
_PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.tools</groupId>
  <artifactId>fetched</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = """    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>"""


class ServerError(RuntimeError):
    """A server can be neither found nor got nor started; the text says why, and what to do."""


# -- jars --


def fetched(home: Path, what: str, dependencies: Sequence[str]) -> Path:
    """The directory with the jars of `group:artifact:version`s and of all that they need: fetched once, then kept."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise ServerError(f"`{program}` is not installed: {what} needs Java 17 or later, and Maven to be fetched")
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        if not (home / "jars").is_dir():
            _fetch(home, what, dependencies)
    return home / "jars"


@contextmanager
def locked(home: Path, name: str = "lock") -> Iterator[None]:
    """One process at a time: the others find the work done."""
    with open(home / name, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(home: Path, what: str, dependencies: Sequence[str]) -> None:
    wanted = "\n".join(_DEPENDENCY.format(*dependency.split(":")) for dependency in dependencies)
    (home / "pom.xml").write_text(_PROJECT.format(dependencies=wanted))
    partial = home / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    try:
        ended = subprocess.run(copy, cwd=home, capture_output=True, text=True, timeout=_FETCH_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise ServerError(f"Maven did not fetch {what} within {_FETCH_SECONDS_MAX} seconds") from None
    if ended.returncode:
        raise ServerError(f"Maven could not fetch {what}: {last_lines(ended.stdout + ended.stderr)}")
    partial.rename(home / "jars")


def last_lines(text: str, count: int = 15) -> str:
    """What a program said last."""
    return "\n".join(text.strip().splitlines()[-count:])


# -- ports and processes --


def free_ports(count: int) -> list[int]:
    """Ports of the loopback on which nobody listens."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise ServerError(f"no {count} free ports between {_PORTS.start} and {_PORTS.stop}")


def guard(pid: int) -> subprocess.Popen[bytes]:
    """A process that kills another one when the end of this pipe goes, that is, when this process dies."""
    script = 'cat >/dev/null; kill -KILL "$0" 2>/dev/null'
    return subprocess.Popen(
        ["sh", "-c", script, str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@dataclass(kw_only=True)
class Server:
    """One server: where it lives, and its process while it runs."""

    number: int
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    guard: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"


S = TypeVar("S", bound=Server)


class Servers(Generic[S]):
    """Servers 0, 1, ... that run."""

    def __init__(self, directory: Path, *, guarded: bool) -> None:
        self.directory = directory
        self._guarded = guarded
        self._servers: list[S] = []

    # What each kind does in its own way.

    def _command(self, server: S) -> list[str]:
        """What starts it."""
        raise NotImplementedError

    def _wait_until_started(self, server: S) -> None:
        raise NotImplementedError

    # What can be asked, and done.

    def is_running(self, number: int) -> bool:
        """Whether a server's process is there; one whose disk is full ends by itself."""
        process = self._servers[number].process
        return process is not None and process.poll() is None

    def pid(self, number: int) -> int:
        """The process of a server that runs."""
        return self._running(number).pid

    def log(self, number: int) -> Path:
        """What a server says."""
        return self._servers[number].log_path

    def start(self, number: int, *, wait: bool = True) -> None:
        """Start a server that was stopped or killed, with the data that it has."""
        server = self._servers[number]
        assert server.process is None, f"server {number} runs already"
        self._spawn(server)
        if wait:
            self._wait_until_started(server)

    def stop(self, number: int) -> None:
        """SIGTERM, and wait until it has ended: of several, the others take over what it had."""
        self._end(self._servers[number], signal.SIGTERM)

    def kill(self, number: int) -> None:
        """kill -9."""
        self._end(self._servers[number])

    def pause(self, number: int) -> None:
        """SIGSTOP: it says nothing more, and its connections stay."""
        self._running(number).send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """SIGCONT after `pause`."""
        self._running(number).send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End every server, and remove what they kept."""
        for server in self._servers:
            self._end(server)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _running(self, number: int) -> subprocess.Popen[bytes]:
        process = self._servers[number].process
        assert process is not None, f"server {number} does not run"
        return process

    def _spawn(self, server: S) -> None:
        with open(server.log_path, "ab") as log:
            server.process = subprocess.Popen(
                self._command(server), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if self._guarded:
            server.guard = guard(server.process.pid)

    def _end(self, server: S, how: signal.Signals = signal.SIGKILL) -> None:
        process, server.process = server.process, None
        if process is None:
            return
        process.send_signal(how)
        if how != signal.SIGKILL:
            process.send_signal(signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS_MAX)
        process.kill()
        process.wait()
        if server.guard is not None:
            server.guard.kill()
            server.guard.communicate()
            server.guard = None


# -- by hand --


def remember(servers: Servers[S], address: str, state: Path) -> str:
    """Write down servers that outlive this process. Gives their addresses."""
    state.parent.mkdir(parents=True, exist_ok=True)
    pids = [server.process.pid for server in servers._servers if server.process is not None]
    state.write_text(json.dumps({"address": address, "directory": str(servers.directory), "pids": pids}) + "\n")
    return address


def down(state: Path) -> bool:
    """Stop what `up` started; False if there is nothing."""
    if not state.exists():
        return False
    known = json.loads(state.read_text())
    directory = Path(known["directory"])
    ours = [pid for pid in known["pids"] if _is_ours(pid, directory)]
    for pid in ours:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS_MAX
    while any(_is_ours(pid, directory) for pid in ours) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in ours:
        if _is_ours(pid, directory):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)
    state.unlink()
    return True


def where(state: Path) -> str | None:
    """The addresses of what is up."""
    return str(json.loads(state.read_text())["address"]) if state.exists() else None


def _is_ours(pid: int, directory: Path) -> bool:
    """Whether a process is one of that directory's servers, and not one that got the number later."""
    try:
        return str(directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
