"""SIGHUP: credentials and the level of the log are read again, all or nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.serving import Served, served, until

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
        ("", "takes a restart"),
    ],
)
def test_settings_that_cannot_be_followed_change_nothing(server: Served, config: Path, text: str, said: str) -> None:
    config.write_text(text)
    hang_up(server, "everything stays as it was")
    assert said in server.log
    assert status(server, "A:first secret") == 200
