from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

import penstock
from penstock.cli import main
from penstock.outbox import Outbox
from tests.outbox.postgres import PostgresServer
from tests.outbox.test_relay import send, status, until

PENSTOCK = [sys.executable, "-m", "penstock", "outbox"]


@dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def outbox_command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The command line, in this process."""

    def run(*words: str, **environment: str) -> Ended:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["penstock", "outbox", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(int(ended.value.code or 0), *capfd.readouterr())

    return run


def test_run_once_moves_what_is_there_and_status_shows_it(
    engine: Engine, outbox: Outbox, database_url: str, tmp_path: Path, outbox_command: Callable[..., Ended]
) -> None:
    send(engine, outbox, "orders", b"1", b"2", b"3")
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE penstock_outbox SET queue = 'no such name!' WHERE body = :body"), {"body": b"2"}
        )
    where = ["--database", database_url]
    ended = outbox_command("run", "--once", "--data", str(tmp_path / "data"), *where)
    assert (ended.returncode, ended.stdout) == (0, "2 sent, 1 failed\n"), ended.stderr
    with penstock.open(tmp_path / "data") as ps:
        assert ps.queue("orders").stats().messages == 2
    shown = outbox_command("status", "--json", PENSTOCK_DATABASE=database_url)
    assert json.loads(shown.stdout) == {
        "pending": 0,
        "claimed": 0,
        "failed": 1,
        "sent": 2,
        "oldest_pending_seconds": None,
    }
    assert outbox_command("retry", *where).stdout == "1 will be tried again\n"
    assert status(engine, outbox).pending == 1
    assert outbox_command("clean", "--older-than", "0", *where).stdout == "2 deleted\n"


def test_the_printed_schema_can_be_carried_out(
    engine: Engine, database_url: str, outbox_command: Callable[..., Ended]
) -> None:
    printed = outbox_command("schema", "--table", "out", PENSTOCK_DATABASE=database_url).stdout
    with engine.begin() as connection:
        for statement in filter(str.strip, printed.split(";")):
            connection.execute(text(statement))
    assert outbox_command("status", "--table", "out", "--database", database_url).returncode == 0


def test_a_relay_runs_until_it_is_told_to_end(
    engine: Engine, outbox: Outbox, database_url: str, tmp_path: Path
) -> None:
    command = [*PENSTOCK, "run", "--data", str(tmp_path / "data"), "--poll", "0.05", "--database", database_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        send(engine, outbox, "orders", b"1")
        until(lambda: status(engine, outbox).sent == 1)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, "1 sent, 0 failed\n")


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (["status"], 2, "--database"),
        (["status", "--database", "sqlite:////nowhere/at/all.db"], 2, "there is no file"),
        (["status", "--database", "postgresql://postgres@127.0.0.1:1/x"], 1, "the database"),
        (["status", "--database", "what is this"], 1, "the database"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    words: list[str], status: int, reason: str, outbox_command: Callable[..., Ended]
) -> None:
    ended = outbox_command(*words, PENSTOCK_DATABASE="")
    assert ended.returncode == status
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_database_in_sql_ascii_works(postgres: PostgresServer, outbox_command: Callable[..., Ended]) -> None:
    options = "ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
    url = postgres.create_database(f"ascii_{uuid.uuid4().hex}", options)
    assert outbox_command("schema", "--database", url).returncode == 0
    engine = create_engine(url, connect_args={"client_encoding": "utf8"})
    Outbox().metadata.create_all(engine)
    send(engine, Outbox(), "orders", b"tea")
    engine.dispose()
    ended = outbox_command("status", "--database", url, "--json")
    assert ended.returncode == 0 and json.loads(ended.stdout)["pending"] == 1, ended
