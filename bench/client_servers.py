"""The servers that bench/client.py compares, each a process of its own on loopback, its data in a directory of its own.

The rivals come out of Debian's packages, by `tools.debian`, with their own defaults but for what is said here.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.sqs_load import Address, Server
from bench.sqs_servers import HOST, free_port, process, wait_for
from tools.debian import Program, program

_REDIS_FLAGS = ["--save", "", "--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"]


@contextmanager
def penstock_server(directory: Path) -> Iterator[Server]:
    """Penstock, as `penstock serve` starts it: every acknowledgement after its `fdatasync`."""
    ready_file = directory / "ready.json"
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(directory / "data")]
    ports = [each for name in ("sqs", "http", "nsq-tcp", "nsq-http") for each in (f"--{name}-port", "0")]
    with process([*command, *ports, "--ready-file", str(ready_file)], directory, ready_file.exists) as pid:
        yield Server(Address(HOST, json.loads(ready_file.read_text())["listening"]["http"]["port"]), pid)


@contextmanager
def redis_server(directory: Path, appendfsync: str) -> Iterator[Server]:
    """Redis with an append-only file. It does not rewrite that file meanwhile."""
    port = free_port()
    flags = ["--bind", HOST, "--port", str(port), "--dir", str(directory), "--appendfsync", appendfsync]
    with running(program("redis-server"), [*flags, *_REDIS_FLAGS], directory, lambda: listens(port)) as pid:
        yield Server(Address(HOST, port), pid)


@contextmanager
def nats_server(directory: Path) -> Iterator[Server]:
    """NATS with JetStream."""
    port = free_port()
    flags = ["--addr", HOST, "--port", str(port), "--jetstream", "--store_dir", str(directory / "data")]
    with running(program("nats-server"), flags, directory, lambda: listens(port)) as pid:
        yield Server(Address(HOST, port), pid)


@contextmanager
def rabbitmq_server(directory: Path) -> Iterator[Server]:
    """RabbitMQ without plugins, and the name server that Erlang wants, which would otherwise stay when it is gone."""
    port, names_port = free_port(), free_port()
    server = program("rabbitmq-server")
    environment = rabbitmq_environment(server, directory, port, names_port)
    with ExitStack() as stack:
        epmd = Program(erlang_runtime(server) / "epmd", server.root, server.extra)
        names = directory / "epmd"
        names.mkdir()
        flags = ["-port", str(names_port), "-address", HOST]
        stack.enter_context(running(epmd, flags, names, lambda: listens(names_port), environment))
        script = Program(rabbitmq_script(server), server.root, server.extra)
        printed = directory / "printed"
        ready: Callable[[], bool] = lambda: "startup complete" in printed.read_text(errors="replace")  # noqa: E731
        pid = stack.enter_context(running(script, [], directory, ready, environment))
        yield Server(Address(HOST, port), pid)


def rabbitmq_environment(server: Program, directory: Path, port: int, names_port: int) -> dict[str, str]:
    """Everything that RabbitMQ writes goes into the directory, and it listens on loopback alone."""
    settings = directory / "rabbitmq.conf"
    settings.write_text("loopback_users = none\n")
    return {
        "HOME": str(directory),
        "PATH": f"{erlang_starter(server, directory)}:{os.environ['PATH']}",
        "ERL_EPMD_PORT": str(names_port),
        "ERL_EPMD_ADDRESS": HOST,
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": HOST,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(settings),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(directory / "generated"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false",
    }


def rabbitmq_script(server: Program) -> Path:
    """RabbitMQ's own start script; the one beside it wants to be run by a user named rabbitmq."""
    return next(server.root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"))


def erlang_runtime(server: Program) -> Path:
    """Where Erlang's programs are."""
    return next(server.root.glob("usr/lib/erlang/erts-*/bin"))


def erlang_starter(server: Program, directory: Path) -> Path:
    """A directory with an `erl` that knows where it was unpacked. The package's own believes that it is in /usr."""
    runtime = erlang_runtime(server)
    starter = directory / "bin"
    starter.mkdir()
    lines = [
        "#!/bin/sh",
        f"export ROOTDIR={runtime.parent.parent} BINDIR={runtime} EMU=beam PROGNAME=erl",
        'exec "$BINDIR/erlexec" "$@"',
    ]
    (starter / "erl").write_text("\n".join(lines) + "\n")
    (starter / "erl").chmod(0o755)
    return starter


@contextmanager
def running(
    server: Program,
    flags: Sequence[str],
    directory: Path,
    is_ready: Callable[[], bool],
    environment: dict[str, str] | None = None,
) -> Iterator[int]:
    """A server's process id; it runs until the block's end. What it prints goes to a file."""
    printed = directory / "printed"
    with printed.open("wb") as output:
        child = subprocess.Popen(
            [str(server.path), *flags],
            cwd=directory,
            env=server.environment | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_for(is_ready, child, printed)
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
