"""SIGHUP: credentials, limits and the level of the log are read again, all or nothing."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.package import PACKAGE
from tests.server.serving import NO_PORTS, Served, served, until

FIRST = "[[credentials]]\naccess_key = 'A'\nsecret_key = 'first secret'\n"
SECOND = "[log]\nlevel = 'debug'\n[[credentials]]\naccess_key = 'B'\nsecret_key = 'second secret'\n"


def status(server: Served, token: str) -> int:
    head = f"GET /v1/queues HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
    return server.talk("http", head)[0]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, FIRST) as found:
        yield found


@pytest.fixture
def config(server: Served) -> Path:
    return server.directory / "penstock.toml"


def hang_up(server: Served, said: str) -> None:
    server.process.send_signal(signal.SIGHUP)
    until(lambda: said in server.log)


def test_credentials_are_read_again_and_the_old_ones_are_worth_nothing(server: Served, config: Path) -> None:
    assert (status(server, "A:first secret"), status(server, "B:second secret")) == (200, 401)
    config.write_text(SECOND)
    hang_up(server, "were read again")
    assert (status(server, "A:first secret"), status(server, "B:second secret")) == (401, 200)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nsqs_port = 'x'", "sqs_port is 'x'"),
        (f"{FIRST}[[credentials]]\naccess_key = 'C'", "give one of secret_key"),
        ("", "needs a restart"),
    ],
)
def test_settings_that_cannot_be_followed_change_nothing(server: Served, config: Path, text: str, said: str) -> None:
    config.write_text(text)
    hang_up(server, "nothing was changed")
    assert said in server.log
    assert status(server, "A:first secret") == 200


def statuses_of_many(server: Served, count: int) -> list[int]:
    head = "GET /v1/queues HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer A:first secret\r\n\r\n"
    return [server.talk("http", head)[0] for _ in range(count)]


def post_status(server: Served, port: str, path: str, nbytes: int) -> int:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer A:first secret\r\n"
    body = '{"body": "' + "x" * nbytes + '"}'
    return server.talk(port, f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}")[0]


def test_limits_are_read_again_and_what_takes_a_restart_is_named(server: Served, config: Path) -> None:
    send = "/v1/queues/orders/messages"
    assert post_status(server, "http", send, 2_000) in (200, 201)
    config.write_text(f"{FIRST}[http]\nbody_bytes_max = 1000\n[sqs]\nregion = 'eu-west-1'\n")
    hang_up(server, "changed: [http] body_bytes_max; these need a restart: [sqs] region")
    assert post_status(server, "http", send, 2_000) == 413
    config.write_text(FIRST)
    server.process.send_signal(signal.SIGHUP)
    until(lambda: post_status(server, "http", send, 2_000) in (200, 201))


def test_the_rate_of_callers_is_read_again(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    with served(tmp_path, f"{FIRST}[rest]\nrequests_per_second = 0.001\nrequests_burst = 3\n") as server:
        assert statuses_of_many(server, 5) == [200, 200, 200, 429, 429]
        config.write_text(f"{FIRST}[rest]\nrequests_per_second = 1000.0\nrequests_burst = 50\n")
        hang_up(server, "changed: [rest] requests_per_second, [rest] requests_burst")
        until(lambda: statuses_of_many(server, 5) == [200] * 5)
        config.write_text(FIRST)
        hang_up(server, "these need a restart: [rest] requests_per_second")


def test_who_asks_while_the_server_starts_does_not_end_it_and_is_heard_when_it_has_started(tmp_path: Path) -> None:
    """The settings are a pipe: the server waits there, while it starts and when it reads them again."""
    config = tmp_path / "penstock.toml"
    os.mkfifo(config)
    flags = ["--config", str(config), "--data", str(tmp_path / "data"), "--ready-file", str(tmp_path / "ready.json")]
    with (tmp_path / "log").open("ab") as log:
        command = [sys.executable, "-m", "penstock", "serve", *flags, *NO_PORTS]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": str(PACKAGE)})
    server = Served(tmp_path, process)
    try:
        with config.open("w") as settings:  # when the server reads
            process.send_signal(signal.SIGHUP)
            settings.write(FIRST)
        server.wait_until_ready()
        config.write_text(f"{FIRST}[log]\nlevel = 'debug'\n")
        until(lambda: "changed: [log] level" in server.log)
        assert status(server, "A:first secret") == 200
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("first", [(), ("nohup",)])
def test_a_server_ends_with_its_terminal_unless_it_was_started_to_stay(tmp_path: Path, first: tuple[str, ...]) -> None:
    """Whoever closes the window of `make run` would else find the ports taken."""
    command = [*first, sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path / "data"), *NO_PORTS]
    command += ["--ready-file", str(tmp_path / "ready.json")]
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the tests were started by
        os.chdir(tmp_path)  # nohup writes a file
        os.execvpe(command[0], command, os.environ | {"PYTHONPATH": str(PACKAGE)})
    try:
        until((tmp_path / "ready.json").exists)
        os.close(terminal)
        if first:
            time.sleep(1)
            assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        else:
            ended: list[int] = []
            until(
                lambda: bool(ended) or ((found := os.waitpid(pid, os.WNOHANG))[0] == pid and not ended.append(found[1]))
            )
            assert ended == [0]
            pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
