from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app


class Shell:
    """Runs commands on one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        result = CliRunner().invoke(app, [*arguments, "--data", str(self.directory)], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*arguments, "--json").splitlines()]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "data")


def test_what_is_sent_is_received_once(shell: Shell) -> None:
    sent = shell.json("send", "orders", "tea", "cake", "--attribute", "table=7")
    received = shell.json("receive", "orders", "--max", "5")
    assert [message["id"] for message in received] == [message["id"] for message in sent]
    assert [(message["body"], message["attributes"], message["attempts"]) for message in received] == [
        ("tea", {"table": "7"}, 1),
        ("cake", {"table": "7"}, 1),
    ]
    assert shell.json("receive", "orders") == []


def test_lines_of_standard_input_are_messages(shell: Shell) -> None:
    shell("send", "orders", stdin="one\ntwo\n")
    assert [message["body"] for message in shell.json("receive", "orders", "--max", "5")] == ["one", "two"]


def test_a_message_received_without_ack_is_acknowledged_by_its_receipt(shell: Shell) -> None:
    shell("send", "orders", "tea")
    (message,) = shell.json("receive", "orders", "--no-ack", "--lease", "600")
    assert shell.json("receive", "orders") == []
    assert "1 acknowledged" in shell("ack", "orders", message["receipt"])
    with pytest.raises(penstock.StaleReceipt):
        shell("ack", "orders", message["receipt"])


def test_peeking_takes_nothing_and_finds_text(shell: Shell) -> None:
    shell("send", "orders", "tea", "cake")
    assert [message["body"] for message in shell.json("peek", "orders", "--contains", "ak")] == ["cake"]
    assert "READY" in shell("peek", "orders")
    assert len(shell.json("peek", "orders")) == 2


def test_queues_are_created_listed_described_purged_and_deleted(shell: Shell) -> None:
    shell("queue", "create", "orders", "--lease", "5", "--max-receives", "2")
    shell("send", "orders", "tea")
    (row,) = shell.json("queue", "list")
    assert (row["queue"], row["ready"], row["channels"]) == ("orders", 1, "main")
    described = json.loads(shell("queue", "describe", "orders"))
    assert described["config"]["lease_ms"] == 5_000
    assert described["stats"]["messages"] == 1
    assert "1 messages purged" in shell("queue", "purge", "orders")
    shell("queue", "delete", "orders")
    assert shell.json("queue", "list") == []


def test_dead_letters_are_redriven(shell: Shell) -> None:
    with penstock.open(shell.directory) as ps:
        orders = ps.create_queue("orders", max_receives=1)
        orders.send(b"tea")
        message = orders.receive()
        assert message is not None
        message.release(error="too hot")
    (dead,) = shell.json("peek", "orders.dead")
    assert dead["why"] == "too hot"
    assert "done: 1 moved" in shell("redrive", "orders.dead")
    assert [message["body"] for message in shell.json("receive", "orders")] == ["tea"]


def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, timeout=60)


def test_an_error_is_one_line_and_status_1(tmp_path: Path) -> None:
    penstock.open(tmp_path / "data").close()
    ended = run_module("receive", "nowhere", "--data", str(tmp_path / "data"))
    assert ended.returncode == 1
    assert ended.stderr.startswith("penstock: there is no queue 'nowhere'")
    assert len(ended.stderr.splitlines()) == 1


def test_the_demo_shows_a_message_die_and_come_back() -> None:
    ended = run_module("demo")
    assert ended.returncode == 0, ended.stderr
    for word in ("lease expired", "DELAYED", "DEAD", "orders.dead", "redrive", "What is left"):
        assert word in ended.stdout


def test_help_names_every_command() -> None:
    ended = run_module("--help")
    for command in ("demo", "send", "receive", "ack", "peek", "redrive", "queue"):
        assert command in ended.stdout
