"""The command line, as people and scripts use it: what it prints, and how it exits."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

import penstock
from penstock.cli import SECTIONS, app, exits, main
from penstock.cli.command import Group
from penstock.cli.exits import Exit
from penstock.cli.messages import writer
from penstock.core.queues.config import SETTINGS
from tests.client.node import ThreadedNode
from tests.faults.proxy import Proxy
from tests.shards import not_for_clusters

pytestmark = not_for_clusters("the command line is given directories, and nodes that serve them")

DEADLINE_SECONDS = 120


@dataclass(frozen=True)
class Ended:
    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


def run(*arguments: str, stdin: bytes = b"") -> Ended:
    """The whole command line, in this process."""
    out, err = io.BytesIO(), io.StringIO()
    stdout = io.TextIOWrapper(out, encoding="utf-8")
    kept = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["penstock", *arguments], io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv, sys.stdin = kept
    stdout.flush()
    return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue())


class Shell:
    """Runs commands on one store, named by these flags."""

    def __init__(self, *where: str) -> None:
        self.where = where

    def ended(self, *arguments: str, stdin: bytes = b"") -> Ended:
        return run(*arguments, *self.where, stdin=stdin)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> str:
        ended = self.ended(*arguments, stdin=stdin)
        assert ended.status == 0, ended
        return ended.text

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        ended = self.ended(*arguments, "--json")
        assert ended.status in (Exit.OK, Exit.NOTHING), ended
        assert bool(ended.rows) == (ended.status == Exit.OK) or arguments[0] in (
            "queue",
            "channel",
            "consumer",
            "session",
        )
        return ended.rows


@dataclass(frozen=True)
class Place:
    """Where a store is, for commands and for Python."""

    shell: Shell
    open: Callable[[], penstock.Penstock]
    look: Callable[[], penstock.Penstock]
    """Beside a process that has it open."""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_DATA", "PENSTOCK_URL", "PENSTOCK_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(params=["directory", "server"])
def place(request: pytest.FixtureRequest, directory: Path) -> Iterator[Place]:
    if request.param == "directory":
        look = partial(penstock.open, directory, read_only=True)
        yield Place(Shell("--data", str(directory)), partial(penstock.open, directory), look)
        return
    node = ThreadedNode(directory)
    connect = partial(penstock.connect, node.url)
    yield Place(Shell("--url", node.url), connect, connect)
    node.stop()


@pytest.fixture
def shell(place: Place) -> Shell:
    """Commands on a directory, and again on a server."""
    return place.shell


@pytest.fixture
def local(directory: Path) -> Shell:
    """Commands on a directory."""
    return Shell("--data", str(directory))


def bodies(rows: list[dict[str, Any]]) -> list[str]:
    return [row["body"] for row in rows]


# -- send --------------------------------------------------------------------------------------------------------------


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
    assert "2 messages sent" in shell("send", "orders", stdin=b"one\ntwo\n")
    assert bodies(shell.json("receive", "orders", "--max", "5")) == ["one", "two"]


def test_a_file_is_one_message_with_its_bytes(shell: Shell, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10
    (tmp_path / "photo").write_bytes(content)
    shell("send", "orders", "--file", str(tmp_path / "photo"))
    assert shell.ended("receive", "orders", "--raw").out == content + b"\n"


def test_lines_of_several_files_are_messages_in_order(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "first").write_text("a\nb")
    (tmp_path / "second").write_text("c\n")
    shell("send", "orders", "--lines", "-f", str(tmp_path / "first"), "-f", str(tmp_path / "second"))
    assert bodies(shell.json("receive", "orders", "--max", "5")) == ["a", "b", "c"]


def test_messages_that_end_with_nul_may_hold_newlines(shell: Shell) -> None:
    shell("send", "orders", "--null", stdin=b"a\nb\0c\0")
    assert shell.ended("receive", "orders", "--max", "5", "--null").out == b"a\nb\0c\0"


def test_a_large_file_goes_in_runs_and_arrives_whole(shell: Shell, tmp_path: Path) -> None:
    lines = [f"{number:06} {'x' * 100}" for number in range(25_000)]
    (tmp_path / "large").write_text("\n".join(lines))
    assert "25,000 messages sent" in shell("send", "orders", "--lines", "--file", str(tmp_path / "large"))
    assert shell("peek", "orders", "--max", "30000", "--raw").splitlines() == lines
    assert shell("receive", "orders", "--max", "30000", "--raw").splitlines() == lines


def test_a_failure_in_the_middle_of_a_file_says_how_much_was_sent(shell: Shell, tmp_path: Path) -> None:
    shell("queue", "create", "orders", "--message-bytes-max", "1024")
    (tmp_path / "input").write_text("fine\n" * 2_500 + "x" * 2_000)
    ended = shell.ended("send", "orders", "--lines", "--file", str(tmp_path / "input"))
    assert ended.status == Exit.FAILED
    assert "sent to orders before this: 2,500 messages." in ended.err
    assert shell.json("stats", "orders")[0]["ready"] == 2_500


def test_a_missing_file_is_one_line_and_wrong_usage(shell: Shell, tmp_path: Path) -> None:
    ended = shell.ended("send", "orders", "--file", str(tmp_path / "nowhere"))
    assert (ended.status, len(ended.err.splitlines())) == (Exit.USAGE, 1)
    assert "nowhere" in ended.err


def test_a_dedup_id_adds_a_message_once_and_is_refused_for_several(shell: Shell) -> None:
    assert shell.json("send", "orders", "tea", "--dedup-id", "7")[0]["duplicate"] is False
    assert shell.json("send", "orders", "tea", "--dedup-id", "7")[0]["duplicate"] is True
    assert shell.ended("send", "orders", "tea", "cake", "--dedup-id", "7").status == Exit.USAGE


def test_priority_delay_and_group_are_kept(shell: Shell) -> None:
    shell("send", "orders", "low")
    shell("send", "orders", "high", "--priority", "9", "--group", "g")
    shell("send", "orders", "later", "--delay", "600")
    received = shell.json("receive", "orders", "--max", "5")
    assert [(row["body"], row.get("group")) for row in received] == [("high", "g"), ("low", None)]
    assert [row["state"] for row in shell.json("peek", "orders")] == ["DELAYED"]


def test_quiet_prints_nothing(shell: Shell) -> None:
    assert shell("send", "orders", "tea", "--quiet") == ""
    assert shell("send", "orders", "--quiet", stdin=b"tea\n") == ""


# -- receive, settle, peek ---------------------------------------------------------------------------------------------


def test_a_message_received_without_ack_is_acknowledged_by_its_receipt(shell: Shell) -> None:
    shell("send", "orders", "tea")
    (message,) = shell.json("receive", "orders", "--no-ack", "--lease", "600")
    assert shell.json("receive", "orders") == []
    assert "1 acknowledged" in shell("ack", "orders", message["receipt"])
    assert shell.ended("ack", "orders", message["receipt"]).status == Exit.FAILED


def test_a_released_message_comes_back_with_the_error(shell: Shell) -> None:
    shell("send", "orders", "tea")
    (message,) = shell.json("receive", "orders", "--no-ack", "--lease", "600")
    assert shell.json("release", "orders", message["receipt"], "--error", "too hot") == [{"released": 1}]
    assert shell.json("peek", "orders")[0]["why"] == ["too hot"]
    assert shell.json("receive", "orders")[0]["attempts"] == 2


def test_bodies_that_are_no_text_are_base64_in_json_and_escaped_in_tables(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\x00")
    shell("send", "orders", "--file", str(tmp_path / "bytes"))
    assert shell.json("peek", "orders")[0]["body_base64"] == "/wA="
    assert "\\xff" in shell("peek", "orders")


def test_what_looks_like_markup_is_shown_as_it_is(shell: Shell) -> None:
    shell("send", "orders", "[bold]tea[/bold]")
    assert "[bold]tea[/bold]" in shell("peek", "orders")


def test_output_appends_bodies_to_a_file_before_the_ack(shell: Shell, tmp_path: Path) -> None:
    target = tmp_path / "bodies"
    target.write_text("before\n")
    shell("send", "orders", "tea", "cake")
    shell("receive", "orders", "--max", "5", "--output", str(target))
    assert target.read_text() == "before\ntea\ncake\n"
    assert shell.json("stats", "orders")[0]["acked"] == 2


def test_messages_that_could_not_be_written_are_not_acknowledged(shell: Shell) -> None:
    shell("send", "orders", "tea")
    ended = shell.ended("receive", "orders", "--output", "/dev/full", "--lease", "0")
    assert ended.status == Exit.FAILED
    assert bodies(shell.json("receive", "orders")) == ["tea"]


def test_follow_ends_when_max_messages_came(shell: Shell) -> None:
    shell("send", "orders", "a", "b", "c")
    assert bodies(shell.json("receive", "orders", "--follow", "--max", "2")) == ["a", "b"]


def test_a_channel_is_received_from_and_must_be_there(shell: Shell) -> None:
    shell("channel", "create", "orders", "audit")
    shell("send", "orders", "tea")
    assert bodies(shell.json("receive", "orders", "--channel", "audit")) == ["tea"]
    assert bodies(shell.json("receive", "orders")) == ["tea"]
    ended = shell.ended("receive", "orders", "--channel", "adit")
    assert (ended.status, "penstock channel list orders" in ended.err) == (Exit.NOTHING, True)


def test_peeking_takes_nothing_and_finds_text(shell: Shell) -> None:
    shell("send", "orders", "tea", "cake")
    assert bodies(shell.json("peek", "orders", "--contains", "ak")) == ["cake"]
    assert "READY" in shell("peek", "orders")
    assert shell("peek", "orders", "--raw", "--after", "0") == "cake\n"
    assert len(shell.json("peek", "orders")) == 2
    assert shell.ended("peek", "orders", "--contains", "beer").status == Exit.NOTHING


# -- queues, channels, consumers ---------------------------------------------------------------------------------------


def test_queues_are_created_listed_described_purged_and_deleted(shell: Shell) -> None:
    shell("queue", "create", "orders", "--lease", "5", "--max-receives", "2")
    shell("send", "orders", "tea")
    (row,) = shell.json("queue", "list")
    assert (row["queue"], row["ready"], row["channels"]) == ("orders", 1, ["main"])
    (described,) = shell.json("queue", "describe", "orders")
    assert described["config"]["lease_ms"] == 5_000
    assert described["stats"]["messages"] == 1
    assert shell("queue", "purge", "orders") == "1 message of orders deleted\n"
    shell("queue", "delete", "orders")
    assert shell.json("queue", "list") == []


def test_a_queue_is_described_for_people_in_the_units_of_the_options(shell: Shell) -> None:
    shell("queue", "create", "orders", "--lease", "5")
    shell("send", "orders", "tea")
    shown = shell("queue", "describe", "orders")
    assert re.search(r"^lease +5 seconds *$", shown, re.MULTILINE)
    assert re.search(r"^retention +345600 seconds \(4 days\) *$", shown, re.MULTILINE)
    assert re.search(r"^orders +main +1 +0 +0 ", shown, re.MULTILINE)
    assert "_ms" not in shown and "{" not in shown


def test_creating_what_exists_says_so(shell: Shell) -> None:
    assert shell("queue", "create", "orders") == "created orders\n"
    assert shell("queue", "create", "orders") == "orders exists already, with these settings\n"
    assert shell.json("queue", "create", "orders")[0]["created"] is False
    assert shell("channel", "create", "orders", "audit") == "created channel audit of orders\n"
    assert shell("channel", "create", "orders", "audit") == "channel audit of orders exists already\n"


REFUSALS = {
    "queue create orders --lease 50000": "--lease is 50000 seconds: it must be from 0 to 43200 seconds",
    "queue create orders --retention 30": "--retention is 30 seconds: it must be from 60 to 1209600 seconds",
    "queue create orders --max-receives 5000": "--max-receives is 5000: it must be from 0 to 1000",
    "queue create orders --policy all": "--policy is 'all': it must be at_least_once, consume_times or consume_once",
    "queue create orders --lease soon": "--lease is 'soon': it must be a number of seconds from 0 to 43200",
    "queue create orders --lease 1e308": "--lease is 1e+308: it must be a number of seconds from 0 to 43200",
    "queue create orders --max-receives many": "--max-receives is 'many': it must be a whole number from 0 to 1000",
    "queue create orders --retention soon": "--retention is 'soon': it must be a number of seconds from 60 to 1209600, "
    "or none",
    "queue create orders --backoff fixed": "--backoff is 'fixed': it must have some of the parts shape, base_ms, "
    'ceiling_ms, seed, as in {"shape": "linear", "base_ms": 1000}; the shapes are none, fixed, linear, exponential',
    'queue create orders --backoff {"shape":"x"}': "--backoff.shape is 'x': it must be none, fixed, linear or "
    "exponential",
    "queue create orders --content-dedup yes": "--content-dedup is 'yes': it must be true or false",
    "queue create orders --content-dedup true": "--content-dedup is a setting of FIFO queues: create a FIFO queue for "
    "it",
    "queue configure there --lease 50000": "--lease is 50000 seconds: it must be from 0 to 43200 seconds",
    "receive there --lease 50000": "--lease is 50000 seconds: it must be from 0 to 43200 seconds",
    "receive there --wait -3": "--wait is -3: give seconds, 0 or more",
    "send there x --delay 5000000000": "--delay is 5000000000 seconds: it must be from 0 to 3162240000 seconds",
}


@pytest.mark.parametrize("command", REFUSALS)
def test_a_refused_value_is_named_as_it_was_given(shell: Shell, command: str) -> None:
    shell("send", "there", "tea")
    ended = shell.ended(*command.split())
    assert (ended.status, ended.err) == (Exit.USAGE, f"penstock: {REFUSALS[command]}\n")


@pytest.mark.parametrize(
    "command",
    [
        "frobnicate",
        "send",
        "receive",
        "receive orders --max 0",
        "queue create orders --leese 5",
        "serve --sqs-port",
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(command: str) -> None:
    ended = run(*command.split())
    assert ended.status == Exit.USAGE
    assert re.fullmatch(r"penstock: .+\. `penstock[a-z ]* --help` says more\.\n", ended.err)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            "serve data3",
            "Unexpected argument: data3. A directory is given with --data. `penstock serve --help` says more.",
        ),
        ("serve --sqs-port", "Option '--sqs-port' requires an argument. `penstock serve --help` says more."),
        ("receive orders --max many", "'many' is not a whole number. `penstock receive --help` says more."),
        ("serve --data {file}", "{file} is a file: name a directory"),
        (
            "send orders tea --data {file}",
            "{file} is a file: name the directory that has the queues. `penstock send --help` says more.",
        ),
        ("serve --config {file}.toml", "{file}.toml cannot be read: No such file or directory"),
        ("serve --data {file}/below", "{file} is a file: name a directory"),
    ],
)
def test_a_mistake_is_told_in_one_line_without_words_of_python(tmp_path: Path, command: str, told: str) -> None:
    file = tmp_path / "file"
    file.touch()
    ended = run(*command.format(file=file).split())
    assert (ended.status, ended.err.count("\n")) != (Exit.OK, 0)
    assert ended.err.endswith(f"{told.format(file=file)}\n")
    assert "Errno" not in ended.err


@pytest.mark.parametrize("command", ["send orders tea", "queue create orders", "serve"])
def test_no_store_is_made_among_the_files_of_somebody_else(tmp_path: Path, command: str) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    ended = run(*command.split(), "--data", str(tmp_path))
    assert (ended.status, ended.err.count("\n")) == (Exit.USAGE, 1)
    assert f"{tmp_path} has other files in it (thesis.tex) and no queues: name a new or empty directory" in ended.err
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_new_volume_counts_as_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert run("send", "orders", "tea", "--data", str(tmp_path)).status == Exit.OK


def test_errors_advise_what_the_command_line_can_do(shell: Shell) -> None:
    shell("send", "orders", "tea", "milk")
    ended = shell.ended("queue", "delete", "nosuch", "--yes")
    assert (ended.status, ended.err.count("\n")) == (Exit.NOTHING, 1)
    assert "there is no queue 'nosuch': check the name" in ended.err
    shell("consumer", "move", "orders", "audit", "2")
    ended = shell.ended("consumer", "move", "orders", "audit", "1")
    assert "to move it back, give --allow-rewind" in ended.err


def test_settings_are_changed_one_by_one(shell: Shell) -> None:
    backoff = '{"shape": "fixed", "base_ms": 50}'
    shell("queue", "create", "orders", "--policy", "consume_times", "--consume-times", "3", "--retention", "none")
    shell("queue", "configure", "orders", "--lease", "7", "--backoff", backoff)
    (described,) = shell.json("queue", "describe", "orders")
    config = described["config"]
    assert (config["lease_ms"], config["policy"], config["consume_times"]) == (7_000, "consume_times", 3)
    assert (config["retention_ms"], config["backoff"]["base_ms"]) == (None, 50)


def test_every_setting_is_an_option_but_what_a_queue_keeps_for_life_is_one_of_create_alone() -> None:
    created, configured = (run("queue", command, "--help").out.decode() for command in ("create", "configure"))
    flags = {name: f"--{name.replace('_', '-')} " for name in SETTINGS if name != "kind"}
    assert not [name for name, flag in flags.items() if flag not in created]
    missing = [name for name, flag in flags.items() if flag not in configured]
    assert missing == [name for name in flags if SETTINGS[name].setting.for_life] == ["partitions"]


def test_a_queue_without_main_keeps_what_is_sent_for_the_first_channel_that_comes(shell: Shell) -> None:
    shell("queue", "create", "clicks", "--no-main")
    shell("send", "clicks", "tea")
    assert shell.json("channel", "list", "clicks") == []
    shell("channel", "create", "clicks", "spark")
    assert [row["body"] for row in shell.json("receive", "clicks", "--channel", "spark")] == ["tea"]
    assert [row["channel"] for row in shell.json("channel", "list", "clicks")] == ["spark"]


def test_a_queue_that_exists_with_other_settings_is_not_changed_by_create(shell: Shell) -> None:
    shell("queue", "create", "orders", "--lease", "5")
    shell("queue", "create", "orders", "--lease", "5")
    assert shell.ended("queue", "create", "orders", "--lease", "6").status == Exit.FAILED


def test_channels_are_listed_paused_purged_and_deleted(shell: Shell) -> None:
    shell("channel", "create", "orders", "audit")
    shell("send", "orders", "tea")
    assert re.search(r"audit .* \ds$", shell("channel", "list", "orders"), re.MULTILINE)
    shell("channel", "pause", "orders", "audit")
    assert shell.json("receive", "orders", "--channel", "audit") == []
    paused = {row["channel"]: row["paused"] for row in shell.json("channel", "list", "orders")}
    assert paused == {"main": False, "audit": True}
    shell("channel", "unpause", "orders", "audit")
    assert shell.json("channel", "purge", "orders", "audit")[0]["purged"] == 1
    assert bodies(shell.json("receive", "orders")) == ["tea"]
    shell("channel", "delete", "orders", "audit")
    assert [row["channel"] for row in shell.json("channel", "list", "orders")] == ["main"]
    assert shell.ended("channel", "delete", "orders", "audit").status == Exit.NOTHING


def test_sessions_are_listed_with_what_they_hold_and_ended(place: Place) -> None:
    shell = place.shell
    shell("send", "orders", "a", "b", "c")
    with place.open() as ps:
        ps.session("worker-1", ttl=600).queue("orders").receive(2, lease=600)
    (row,) = shell.json("session", "list", "--queue", "orders")
    assert (row["name"], row["ttl"], row["held"], row["is_connection"]) == ("worker-1", 600, 2, False)
    (lease,) = row["leases"]
    assert (lease["queue"], lease["channel"], lease["count"]) == ("orders", "main", 2)
    assert lease["until"] == pytest.approx(lease["since"] + 600) == pytest.approx(time.time() + 600, abs=60)
    assert row["session"] in [each["session"] for each in shell.json("session", "list", "--limit", "9")]
    shown = shell("session", "list")
    assert re.search(rf"^{row['session']} +worker-1 +session +[0-9]+s ago +2 +orders/main: 2 +[0-9]+s *$", shown, re.M)
    assert shell("session", "end", row["session"], "--yes") == f"ended {row['session']}: 2 messages released\n"
    assert shell.json("session", "list", "--queue", "orders") == []
    assert shell.json("stats", "orders")[0]["ready"] == 3
    assert shell.ended("session", "end", row["session"]).status == Exit.NOTHING
    assert shell.ended("session", "end", "worker-1").status == Exit.USAGE
    assert shell.ended("session", "list", "--queue", "nowhere").status == Exit.NOTHING


def test_a_consumer_reads_on_from_where_it_was(shell: Shell) -> None:
    shell("send", "orders", "a", "b", "c")
    assert bodies(shell.json("consumer", "read", "orders", "report", "--max", "2")) == ["a", "b"]
    assert shell.json("consumer", "list", "orders")[0] == {
        "queue": "orders",
        "consumer": "report",
        "offset": 2,
        "behind": 1,
    }
    assert bodies(shell.json("consumer", "read", "orders", "report", "--no-ack")) == ["c"]
    assert bodies(shell.json("consumer", "read", "orders", "report")) == ["c"]
    assert shell.ended("consumer", "read", "orders", "report").status == Exit.NOTHING
    assert shell.ended("consumer", "move", "orders", "report", "0").status == Exit.FAILED
    shell("consumer", "move", "orders", "report", "0", "--allow-rewind")
    assert len(shell.json("consumer", "read", "orders", "report")) == 3
    shell("consumer", "delete", "orders", "report")
    assert shell.json("consumer", "list", "orders") == []


# -- dead letters ------------------------------------------------------------------------------------------------------


def kill(place: Place, *texts: str) -> None:
    with place.open() as ps:
        orders = ps.create_queue("orders", max_receives=1)
        orders.send_many(texts)
        for message in orders.receive(max=len(texts)):
            message.release(error="too hot")


def test_dead_letters_are_redriven(shell: Shell, place: Place) -> None:
    kill(place, "tea", "cake")
    rows = shell.json("peek", "orders.dead")
    assert [row["why"] for row in rows] == [["too hot"], ["too hot"]]
    (task,) = shell.json("redrive", "orders.dead", "--id", rows[1]["id"])
    assert (task["status"], task["moved"]) == ("done", 1)
    assert bodies(shell.json("receive", "orders", "--max", "9")) == ["cake"]
    assert "done: 1 moved" in shell("redrive", "orders.dead")
    assert bodies(shell.json("receive", "orders", "--max", "9")) == ["tea"]
    assert len(shell.json("redrive", "orders.dead", "--tasks")) == 2


def test_a_redrive_of_nothing_known_is_status_3(shell: Shell, place: Place) -> None:
    kill(place, "tea")
    assert shell.ended("redrive", "nowhere.dead").status == Exit.NOTHING


def test_a_redrive_of_what_is_no_dead_letter_queue_is_an_error(shell: Shell, place: Place) -> None:
    kill(place, "tea")
    shell("send", "orders", "cake")
    ended = shell.ended("redrive", "orders")
    assert ended.status == Exit.USAGE
    assert "'orders' is not a dead-letter queue" in ended.err and "orders.dead" in ended.err
    ended = shell.ended("redrive", "orders", "--to", "others")
    assert ended.status == Exit.NOTHING
    assert "there is no queue 'others': check --to, or create the queue with --create" in ended.err
    assert "done: 1 moved" in shell("redrive", "orders", "--to", "others", "--create")
    assert "done: 1 moved" in shell("redrive", "orders.dead")
    assert "nothing to move: orders.dead is empty" in shell("redrive", "orders.dead"), "it is still for dead letters"


def test_a_redrive_that_moves_nothing_of_what_was_selected_fails_and_says_so(shell: Shell, place: Place) -> None:
    kill(place, "tea")
    for chosen in (("--error", "too cold"), ("--contains", "cake")):
        ended = shell.ended("redrive", "orders.dead", *chosen)
        assert ended.status == Exit.FAILED
        assert b"nothing was moved" in ended.out
    assert "done: 1 moved" in shell("redrive", "orders.dead", "--error", "too hot")


def test_dead_letters_of_a_queue_that_is_gone_are_redriven_all_the_same(shell: Shell, place: Place) -> None:
    kill(place, "tea")
    shell("queue", "delete", "orders")
    assert "done: 1 moved" in shell("redrive", "orders.dead")
    assert bodies(shell.json("receive", "orders")) == ["tea"]


def test_ctrl_c_stops_a_redrive_and_what_was_moved_stays_moved(place: Place, shell: Shell) -> None:
    kill(place, *map(str, range(50)))
    command = [sys.executable, "-m", "penstock", "redrive", "orders.dead", "--rate", "5", *shell.where]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not moved(place):
        assert time.monotonic() < deadline, "the redrive did not start"
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=DEADLINE_SECONDS)
    assert (child.returncode, b"Traceback" in errors) == (Exit.INTERRUPTED, False), errors
    with place.open() as ps:
        (task,) = ps.redrives("orders.dead")
        assert task.status == "cancelled"
        assert 0 < ps.queue("orders").stats().messages < 50
        assert ps.queue("orders").stats().messages + ps.queue("orders.dead").stats().messages == 50


def moved(place: Place) -> int:
    with place.look() as ps:
        return sum(task.moved for task in ps.redrives("orders.dead"))


# -- stats and top -----------------------------------------------------------------------------------------------------


def test_stats_count_every_channel(shell: Shell) -> None:
    shell("channel", "create", "orders", "audit")
    shell("send", "orders", "tea", "cake")
    shell("receive", "orders")
    rows = {row["channel"]: (row["ready"], row["acked"]) for row in shell.json("stats", "orders")}
    assert rows == {"main": (1, 1), "audit": (2, 0)}
    assert "oldest" in shell("stats")
    assert shell.ended("stats", "nowhere").status == Exit.NOTHING


def test_top_once_shows_depth_and_rates(shell: Shell, place: Place) -> None:
    with place.open() as ps:
        ps.queue("orders").send_many([b"x"] * 10)
        ps.queue("idle").send(b"x")
        assert ps.queue("orders").receive(lease=600)
        (row, idle) = shell.json("top", "--once", "--interval", "0.1")
    assert (row["queue"], row["ready"], row["leased"], row["sent_per_s"]) == ("orders", 9, 1, 0.0)
    assert idle["queue"] == "idle"


def test_top_counts_what_happens_between_two_looks(directory: Path) -> None:
    from penstock.cli.stats import Look, rows_between

    with penstock.open(directory) as ps:
        orders = ps.queue("orders")
        orders.send(b"x")
        before = Look(10.0, {"orders": orders.stats()})
        orders.send_many([b"x"] * 10)
        orders.receive_batch(max=6).ack()
        now = Look(12.0, {"orders": orders.stats(), "new": ps.queue("new").channel("main") and ps.queue("new").stats()})
    row, new = rows_between(before, now)
    assert (row["sent_per_s"], row["acked_per_s"], row["ready"]) == (5.0, 3.0, 5)
    assert (new["queue"], new["sent_per_s"]) == ("new", 0.0)


def test_top_of_an_empty_store_is_status_3(shell: Shell, place: Place) -> None:
    place.open().close()
    assert shell.ended("top", "--once", "--interval", "0.05").status == Exit.NOTHING


# -- where -------------------------------------------------------------------------------------------------------------


def test_the_environment_names_the_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DATA", str(directory))
    assert run("send", "orders", "tea").status == 0
    assert run("peek", "orders", "--raw").text == "tea\n"
    monkeypatch.setenv("PENSTOCK_URL", "penstock://127.0.0.1:1")
    ended = run("peek", "orders")
    assert (ended.status, "PENSTOCK_URL" in ended.err) == (Exit.USAGE, True)
    assert run("peek", "orders", "--data", str(directory)).status == 0


def test_a_directory_and_a_server_at_once_are_refused(directory: Path) -> None:
    assert run("peek", "orders", "--data", str(directory), "--url", "penstock://127.0.0.1:1").status == Exit.USAGE


def test_a_mistyped_directory_is_not_created(tmp_path: Path) -> None:
    for command in (["receive", "orders"], ["queue", "list"], ["queue", "purge", "orders"], ["top", "--once"]):
        assert run(*command, "--data", str(tmp_path / "nowhere")).status == Exit.NOTHING
    assert not (tmp_path / "nowhere").exists()
    ended = run("stats", "--data", str(tmp_path / "nowhere"))
    assert "nowhere: name the data directory with --data, or a server with --url" in ended.err


def test_looking_works_beside_the_process_that_has_the_directory(local: Shell, directory: Path) -> None:
    with penstock.open(directory) as ps:
        ps.queue("orders").send(b"tea")
        for command in (["peek", "orders"], ["queue", "list"], ["stats"], ["queue", "describe", "orders"]):
            local(*command)
        ended = local.ended("receive", "orders")
    assert ended.status == Exit.UNREACHABLE
    assert "--url" in ended.err


def test_a_server_that_is_not_there_is_status_4() -> None:
    ended = run("receive", "orders", "--url", "penstock://127.0.0.1:1")
    assert (ended.status, len(ended.err.splitlines())) == (Exit.UNREACHABLE, 1)


def test_a_url_of_another_kind_is_wrong_usage() -> None:
    ended = run("receive", "orders", "--url", "ftp://127.0.0.1:1")
    assert ended.status == Exit.USAGE
    assert "penstock://" in ended.err


def test_the_url_that_a_server_prints_is_taken(directory: Path) -> None:
    node = ThreadedNode(directory)
    url = f"http://127.0.0.1:{node.port}"
    Shell("--url", url)("send", "orders", "tea")
    with penstock.connect(url) as ps:
        assert [message.body for message in ps.queue("orders").peek()] == [b"tea"]
    node.stop()


CREDENTIALS = """
[[credentials]]
name = "reader"
access_key = "READER"
token = "a-token-that-only-the-reader-has"
[[credentials.allow]]
queues = "orders"
rights = ["read"]
"""


def test_the_token_decides_what_is_allowed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(directory) as ps:
        ps.queue("orders").send(b"tea")
    node = ThreadedNode(directory, CREDENTIALS)
    try:
        ended = run("receive", "orders", "--url", node.url)
        assert ended.status == Exit.REFUSED
        assert ended.err == (
            "penstock: this server needs a token, and none was given: set PENSTOCK_TOKEN, or give --token\n"
        )
        assert run("receive", "orders", "--url", node.url, "--token", "a-wrong-one").status == Exit.REFUSED
        monkeypatch.setenv("PENSTOCK_TOKEN", "a-token-that-only-the-reader-has")
        assert bodies(run("receive", "orders", "--url", node.url, "--json").rows) == ["tea"]
        ended = run("send", "orders", "tea", "--url", node.url)
        assert ended.status == Exit.REFUSED
        assert "only-the-reader" not in ended.err
    finally:
        node.stop()


# -- as a process ------------------------------------------------------------------------------------------------------


def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, timeout=60)


def test_an_error_is_one_line_and_a_status(directory: Path) -> None:
    penstock.open(directory).close()
    ended = run_module("receive", "nowhere", "--data", str(directory))
    assert ended.returncode == Exit.NOTHING
    assert ended.stderr.startswith("penstock: there is no queue 'nowhere'")
    assert len(ended.stderr.splitlines()) == 1


def test_wrong_usage_is_status_2() -> None:
    assert run_module("send").returncode == Exit.USAGE


def test_the_demo_shows_a_message_die_and_come_back() -> None:
    ended = run_module("demo")
    assert ended.returncode == 0, ended.stderr
    for word in ("lease expired", "DELAYED", "DEAD", "orders.dead", "redrive", "What is left"):
        assert word in ended.stdout


def test_help_names_every_command() -> None:
    ended = run_module("--help")
    commands = ("demo", "send", "receive", "ack", "peek", "redrive", "queue", "channel", "consumer", "top", "stats")
    for command in commands:
        assert command in ended.stdout


MISTAKES = {
    "--url http://here:1 stats": "--url goes after the command, as in `penstock COMMAND --url`",
    "queue --data x list": "--data goes after the command, as in `penstock queue COMMAND --data`",
    "sned orders tea": "No such command 'sned'. Did you mean 'send'?",
    "receive orders --max 0": "0 is less than 1",
    "send orders tea --priority 10": "10 is not from 0 to 9",
    "queue create orders --kind fifo": "Did you mean '--fifo'?",
    "queue configure orders --kind fifo": "'--kind' is chosen when the queue is created, and stays",
    "queue create orders --tags foo": """--tags is 'foo': it must be texts by name, as in {"team": "sales"}""",
    "send z.fifo a": "needs a group (--group) and a dedup id (--dedup-id, unless the queue has content_dedup)",
    "send orders a --delay -1": "--delay is -1: give seconds, 0 or more",
    "queue create bad/name": "because of '/': use 1 to 128 letters",
    "queue create orders --backoff linear": "the shapes are none, fixed, linear, exponential",
    "send orders --file missing": "Invalid value for --file: missing: No such file or directory. `penstock send",
    "import new missing": "Invalid value for FILE: missing: No such file or directory",
    "pipeline run arkive": "there is no file 'arkive', and no ready pipeline of that name. Did you mean 'archive'?",
    "message reschedule orders 17": "Missing option '--delay'.",
    "receive orders --url localhost": "'localhost' is not the address of a server: write penstock://host:9325",
    "receive orders --url http://localhost:9325/v1": "write penstock://host:9325 or http://host:9325, and no path",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_answered_with_what_to_do(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(*line.split())
    assert ended.status in (Exit.USAGE, Exit.FAILED)
    assert len(ended.err.splitlines()) == 1
    assert MISTAKES[line] in ended.err


def test_errors_say_which_command_helps(shell: Shell) -> None:
    shell("queue", "create", "orders", "--lease", "5")
    shell("send", "orders", "tea")
    advice = {
        "queue create orders --lease 6": "different: lease. `penstock queue configure` changes them",
        "queue delete nope": "check the name. `penstock queue list` lists the queues",
        "queue purge nope": "`penstock queue list` lists the queues",
        "queue configure nope --lease 5": "`penstock queue list` lists the queues",
        "channel delete orders x": "`penstock channel list orders` lists its channels",
        "redrive orders": "With --to QUEUE, messages of any queue can be moved",
        "session end nope": "session 'nope' is not a session id: ids look like 0-17, see `penstock session list`",
        "receive orders --output no/where": "Invalid value for --output: no/where: No such file or directory. "
        "`penstock receive --help` says more",
    }
    for line, text in advice.items():
        ended = shell.ended(*line.split())
        assert ended.status != Exit.OK and ended.err.removesuffix(".\n").removesuffix("\n").endswith(text), ended.err


def test_a_file_that_cannot_be_written_is_wrong_usage(shell: Shell, directory: Path) -> None:
    shell("send", "orders", "tea")
    ended = run("export", str(directory), "--output", "no/where")
    assert (ended.status, "Invalid value for --output: no/where: No such file" in ended.err) == (Exit.USAGE, True)
    assert shell.ended("receive", "orders", "--output", "no/where").status == Exit.USAGE
    assert bodies(shell.json("receive", "orders")) == ["tea"]


def test_what_is_not_installed_is_a_failure_and_no_wrong_usage(directory: Path, tmp_path: Path) -> None:
    for module in ("sqlalchemy", "pyspark"):
        (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('no {module}')")
    python_path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    for line in ("outbox status --database sqlite:///x", "sql select"):
        ended = subprocess.run(
            [sys.executable, "-m", "penstock", *line.split()],
            env=os.environ | {"PYTHONPATH": python_path, "PENSTOCK_DATA": str(directory)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.returncode, "pip install 'penstock-mq[" in ended.stderr) == (Exit.FAILED, True), ended.stderr


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    for command in ("send orders tea", "stats"):
        ended = run(*command.split(), "-d", str(tmp_path / "notes"))
        assert (ended.status, "notes is a file: name the directory" in ended.err) == (Exit.USAGE, True)


def test_an_address_needs_no_scheme_and_a_server_that_is_away_is_asked_after(directory: Path) -> None:
    node = ThreadedNode(directory)
    try:
        shell = Shell("--url", f"127.0.0.1:{node.port}")
        shell("send", "orders", "tea")  # without a scheme
        ended = run("stats", "--url", f"https://127.0.0.1:{node.port}")
        assert (ended.status, "Does the server speak TLS there?" in ended.err) == (Exit.UNREACHABLE, True)
    finally:
        node.stop()
    ended = shell.ended("stats")
    assert ended.status == Exit.UNREACHABLE
    assert "cannot be reached" in ended.err and "Does a server run there?" in ended.err


def test_a_port_that_speaks_something_else_is_told_from_a_server() -> None:
    """As NSQ's port does: it answers with something that is no HTTP, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"\0\0\0\x11\0\0\0\1E_BAD_PROTOCOL")

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        ended = run("stats", "--url", f"127.0.0.1:{listening.getsockname()[1]}")
        answering.join(DEADLINE_SECONDS)
    assert ended.status == Exit.UNREACHABLE
    assert "is that the HTTP port of a Penstock server? It is 9325 by default." in ended.err


def test_a_queue_is_described_with_where_its_dead_letters_go(local: Shell) -> None:
    local("queue", "create", "orders")
    assert re.search(r"^dead_letter +orders\.dead$", local("queue", "describe", "orders"), re.MULTILINE)
    local("queue", "create", "immortal", "--max-receives", "0")
    assert "dead_letter" not in local("queue", "describe", "immortal")


def test_the_list_of_commands_begins_for_each_as_its_own_help_does() -> None:
    for name, place in (row for section in SECTIONS.values() for row in section.items()):
        command = app.get_command(click.Context(app), name)
        assert command is not None and command.help is not None
        first = re.split(r"[.:]", " ".join(command.help.split()))[0]
        assert re.split(r"[.:]", place.summary)[0].split()[:2] == first.split()[:2], name


def test_ctrl_c_ends_following_with_130_and_what_was_printed_is_acknowledged(directory: Path) -> None:
    with penstock.open(directory) as ps:
        ps.queue("orders").send(b"tea")
    command = [sys.executable, "-m", "penstock", "receive", "orders", "--follow", "--raw", "--data", str(directory)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"tea\n"
    while any(Shell("--data", str(directory)).json("stats")[0][state] for state in ("ready", "leased")):
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=DEADLINE_SECONDS)
    assert child.returncode == Exit.INTERRUPTED, errors
    assert b"Traceback" not in errors
    with penstock.open(directory) as ps:
        assert ps.queue("orders").stats().channels["main"].acked == 1


def test_following_goes_on_when_the_server_was_away(directory: Path) -> None:
    node = ThreadedNode(directory)
    proxy = Proxy(node.port)
    url = f"penstock://127.0.0.1:{proxy.port}"
    assert run("send", "orders", "before", "--url", node.url).status == 0
    command = [sys.executable, "-m", "penstock", "receive", "orders", "--follow", "--max", "2", "--raw", "--url", url]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"before\n"
    node.stop()
    node = ThreadedNode(directory)
    proxy.target_port = node.port
    assert run("send", "orders", "after", "--url", node.url).status == 0
    rest, errors = child.communicate(timeout=DEADLINE_SECONDS)
    assert (child.returncode, rest) == (0, b"after\n"), errors
    proxy.close()
    node.stop()


def piped(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell, with `penstock` at hand, and nothing said about Python's buffers unless given."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | environment
    line = f'penstock() {{ {sys.executable} -m penstock "$@"; }}; {command}'
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=clean)


@pytest.mark.parametrize("shown", ["--raw", "--json", "--channel main"], ids=["raw", "json", "table"])
def test_a_reader_that_goes_ends_a_command_with_the_status_of_sigpipe(
    local: Shell, directory: Path, shown: str
) -> None:
    local("send", "orders", stdin=b"line\n" * 5_000)
    ended = piped(f"penstock peek orders -n 5000 {shown} -d {directory} | true; echo ${{PIPESTATUS[0]}}")
    assert (ended.stdout, ended.stderr) == ("141\n", "")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("shown", ["--raw", "--json", "--null", "--raw --follow"])
def test_what_a_reader_left_unread_is_given_back(place: Place, shown: str, unbuffered: str) -> None:
    place.shell("send", "orders", stdin=b"line\n" * 500)
    head = "head -z -n 2" if shown == "--null" else "head -2"
    line = f"penstock receive orders -n 500 {shown} {' '.join(place.shell.where)} | {head}; echo ${{PIPESTATUS[0]}}"
    ended = piped(line, PYTHONUNBUFFERED=unbuffered)
    assert ended.stdout.count("line") == 2
    assert ended.stdout.endswith("141\n") and ended.stderr == ""
    (counts,) = place.shell.json("stats")
    assert (counts["acked"], counts["ready"], counts["leased"], counts["failed"]) == (2, 498, 0, 0)
    assert place.shell.json("receive", "orders")[0]["attempts"] == 1


def test_a_table_that_was_not_read_to_its_end_is_given_back(place: Place) -> None:
    place.shell("send", "orders", stdin=b"line\n" * 500)
    ended = piped(f"penstock receive orders -n 500 {' '.join(place.shell.where)} | head -5; echo ${{PIPESTATUS[0]}}")
    assert ended.stdout.endswith("141\n") and ended.stderr == ""
    (counts,) = place.shell.json("stats")
    assert (counts["acked"], counts["ready"], counts["leased"]) == (0, 500, 0)


def test_a_message_larger_than_a_pipe_is_acknowledged_when_all_of_it_was_read(local: Shell, directory: Path) -> None:
    local("send", "orders", stdin=b"\n".join([b"a" * 200_000, b"b" * 200_000, b"c"]))
    ended = piped(f"penstock receive orders -n 3 --raw -d {directory} | head -c 300000 | wc -c")
    assert (ended.stdout, ended.stderr) == ("300000\n", "")
    assert bodies(local.json("peek", "orders")) == ["b" * 200_000, "c"]


def test_a_slow_reader_keeps_the_lease_of_what_it_has_not_read(place: Place) -> None:
    place.shell("send", "orders", "a", "b", "c", "d")
    reading = "read -r first; sleep 2.5; read -r second; read -r third"
    command = f"penstock receive orders -n 4 --raw --lease 1 {' '.join(place.shell.where)}"
    ended = piped(f"{command} | {{ {reading}; echo $first $second $third; }}")
    assert (ended.stdout, ended.stderr) == ("a b c\n", "")
    (left,) = place.shell.json("peek", "orders")
    assert (left["body"], left["attempts"]) == ("d", 0)
    assert place.shell.json("stats")[0]["failed"] == 0


def test_what_a_reader_of_kept_messages_left_unread_is_given_back(place: Place) -> None:
    place.shell("send", "orders", stdin=b"line\n" * 50)
    piped(f"penstock receive orders -n 50 --no-ack --json {' '.join(place.shell.where)} | head -2")
    (counts,) = place.shell.json("stats")
    assert (counts["leased"], counts["ready"]) == (2, 48)


def test_what_is_to_be_sent_is_sent_although_nobody_reads_about_it(local: Shell, directory: Path) -> None:
    ended = piped(f"seq 5000 | penstock send orders --json -d {directory} | true; echo ${{PIPESTATUS[1]}}")
    assert (ended.stdout, ended.stderr) == ("0\n", f"penstock: made a new store in {directory}\n")
    assert local.json("stats")[0]["ready"] == 5_000


@pytest.mark.parametrize("command", ["receive orders", "receive orders --raw", "stats --json"])
def test_a_closed_output_is_an_error_for_who_writes(local: Shell, directory: Path, command: str) -> None:
    local("send", "orders", "cake")
    ended = piped(f"penstock {command} -d {directory} >&-")
    assert ended.stderr == "penstock: [Errno 9] standard output: Bad file descriptor\n"
    assert ended.returncode == Exit.FAILED
    assert local.json("stats")[0]["acked"] == 0


def test_a_closed_output_is_no_error_for_who_does_not_write(local: Shell, directory: Path) -> None:
    ended = piped(f"penstock send orders tea --quiet -d {directory} >&-")
    assert (ended.returncode, ended.stderr) == (Exit.OK, "")
    assert local("receive", "orders", "--raw") == "tea\n"


def test_a_server_needs_no_output(directory: Path, tmp_path: Path) -> None:
    ready, ports = tmp_path / "ready", "--sqs-port 0 --http-port 0 --nsq-tcp-port 0 --nsq-http-port 0"
    line = f"exec {sys.executable} -m penstock serve -d {directory} {ports} --ready-file {ready} >&-"
    child = subprocess.Popen(["bash", "-c", line], stderr=subprocess.PIPE)
    while not ready.exists() and child.poll() is None:
        time.sleep(0.02)
    time.sleep(0.2)  # it says that it is ready, and goes on
    child.terminate()
    _, errors = child.communicate(timeout=DEADLINE_SECONDS)
    assert child.returncode == Exit.OK, errors


def test_an_output_that_is_full_is_one_line_and_status_1(directory: Path) -> None:
    ended = piped(f"seq 3 | penstock send orders -d {directory} > /dev/full")
    assert ended.stderr == "penstock: [Errno 28] standard output: No space left on device\n"
    assert ended.returncode == Exit.FAILED


def test_closed_input_and_error_streams_are_no_traceback(directory: Path) -> None:
    ended = piped(f"penstock send orders -d {directory} <&-")
    assert ended.returncode == Exit.USAGE
    assert ended.stderr == "penstock: standard input is closed: give bodies, or --file\n"
    ended = piped(f"penstock peek nowhere --json -d {directory} 2>&-")
    assert (ended.returncode, ended.stdout) == (Exit.NOTHING, "")


def test_a_terminal_of_another_encoding_shows_what_it_can(local: Shell, directory: Path) -> None:
    local("send", "orders", "zwölf 😀")
    table = piped(f"penstock peek orders -d {directory}", PYTHONIOENCODING="ascii")
    assert r"zw\xf6lf \U0001f600" in table.stdout, table
    rows = piped(f"penstock peek orders --json -d {directory}", PYTHONIOENCODING="ascii")
    assert json.loads(rows.stdout)["body"] == "zwölf 😀", rows


def test_a_message_cannot_steer_the_terminal_of_who_looks_at_it(shell: Shell) -> None:
    shell("send", "orders", "tea\x1b]0;title\x07\x9b31m\r", "--attribute", "table=\x1b[2J")
    shown = shell("peek", "orders")
    assert r"tea\x1b]0;title\x07\x9b31m\r" in shown
    assert r"table=\x1b[2J" in shown
    assert shell("peek", "orders", "--raw") == "tea\x1b]0;title\x07\x9b31m\r\n"


def test_arguments_that_are_no_text_are_refused_or_taken_as_bytes(shell: Shell) -> None:
    shell("send", "orders", "\udcff", "tea")
    assert shell("peek", "orders", "--contains", "\udcff", "--json").count("body_base64") == 1
    shell("redrive", "orders", "--to", "others", "--create", "--contains", "\udcff")
    for flag in ("--group", "--dedup-id", "--attribute"):
        ended = shell.ended("send", "orders", "x", flag, "a=\udcff")
        assert ended.status == Exit.USAGE and ended.err.count("\n") == 1, ended
    assert shell.ended("send", "\udcff", "x").status == Exit.USAGE


def test_sending_a_slow_pipe_does_not_wait_for_its_end(local: Shell, directory: Path) -> None:
    command = [sys.executable, "-m", "penstock", "send", "orders", "--json", "--data", str(directory)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(b"first\n")
    child.stdin.flush()
    assert json.loads(child.stdout.readline())["sequence"] == 0
    child.communicate(b"second\n", timeout=DEADLINE_SECONDS)
    assert local("receive", "orders", "--max", "5", "--raw") == "first\nsecond\n"


def on_a_terminal(*arguments: str, columns: int = 100) -> tuple[int, str]:
    """Run a command on a pseudo-terminal: the status, and all that it wrote there."""
    parent, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "30"}
    command = [sys.executable, "-m", "penstock", *arguments]
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    written = b""
    with contextlib.suppress(OSError):
        while piece := os.read(parent, 65_536):
            written += piece
    os.close(parent)
    return process.wait(DEADLINE_SECONDS), written.decode()


def test_long_sends_show_a_bar_on_a_terminal(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "input").write_text("line\n" * 1_000_000)
    status, written = on_a_terminal("send", "orders", "--lines", "-f", str(tmp_path / "input"), "-d", str(directory))
    assert status == 0
    assert "Sending to orders" in written
    assert "1,000,000 messages sent" in written


def test_a_redrive_shows_a_bar_on_a_terminal(directory: Path) -> None:
    kill(Place(Shell(), partial(penstock.open, directory), partial(penstock.open, directory)), *map(str, range(10)))
    status, written = on_a_terminal("redrive", "orders.dead", "--rate", "10", "-d", str(directory))
    assert status == 0
    assert "Redriving orders.dead  [" in written
    assert "done: 10 moved" in written


@pytest.mark.parametrize("command", ["top --once --interval 0.05", "stats", "queue list"])
def test_tables_of_counts_fit_into_80_columns(directory: Path, command: str) -> None:
    with penstock.open(directory) as ps:
        ps.queue("some-orders").send_many([b"x"] * 12_345)
    _, written = on_a_terminal(*command.split(), "-d", str(directory), columns=80)
    titles = written.splitlines()[1]
    assert len(titles.rstrip()) <= 80
    assert titles.split()[0] == "queue"
    assert {"ready", "leased", "delayed"} <= set(titles.split())


def test_a_piped_table_has_every_row_on_one_whole_line(local: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    local("send", "orders", "two\nlines " + "x" * 500)
    _, heading, _, row = local("peek", "orders").splitlines()
    assert heading.split() == ["id", "sequence", "body", "state", "attempts"]
    assert r"two\nlines " + "x" * 500 + "  READY" in row


def test_on_a_terminal_a_wide_table_is_folded_to_fit(local: Shell, directory: Path) -> None:
    local("send", "orders", "x" * 500, "茶" * 200)
    status, written = on_a_terminal("peek", "orders", "-d", str(directory))
    lines = written.splitlines()
    assert (status, written.count("x"), written.count("茶")) == (0, 500, 200)
    assert max(len(line) + line.count("茶") for line in lines) <= 120


def test_one_message_is_called_one_message(local: Shell) -> None:
    assert local("send", "orders", stdin=b"tea\n") == "1 message sent to orders\n"
    assert local("queue", "purge", "orders") == "1 message of orders deleted\n"


def test_nothing_is_drawn_between_the_lines_that_somebody_types(directory: Path) -> None:
    terminal = Terminal("send", "orders", "-d", str(directory))
    terminal.until("Ctrl-D")
    for _ in range(8):
        terminal.type("tea\n")
        time.sleep(0.2)
    terminal.type("\x04")
    terminal.until("8 messages sent")
    assert terminal.ended() == Exit.OK
    assert "\x1b" not in terminal.shown and "Sending" not in terminal.shown


def test_top_draws_its_table_anew_on_a_terminal(local: Shell, directory: Path) -> None:
    local("send", "orders", "tea")
    status, written = on_a_terminal("top", "--looks", "2", "--interval", "0.05", "-d", str(directory))
    assert status == 0
    assert "orders" in written
    assert "q ends" in written


# -- people ------------------------------------------------------------------------------------------------------------


class Terminal:
    """A command on a pseudo-terminal, for who reads what it shows and types an answer."""

    def __init__(self, *arguments: str) -> None:
        self._own, child = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
        command = [sys.executable, "-m", "penstock", *arguments]
        self._process = subprocess.Popen(
            command, stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True
        )
        os.close(child)
        self.shown = ""

    def until(self, words: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while words not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._own], [], [], 0.1)[0]:
                self.shown += os.read(self._own, 65_536).decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def forget(self) -> None:
        self.shown = ""

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        with contextlib.suppress(OSError):
            while piece := os.read(self._own, 65_536):
                self.shown += piece.decode(errors="replace")
        os.close(self._own)
        return self._process.wait(DEADLINE_SECONDS)


DELETIONS = {
    "queue delete orders": "Delete orders, with 1 message? [y/N]",
    "queue purge orders": "Delete everything in orders: 1 message? [y/N]",
    "channel purge orders audit": "Delete all messages that wait in channel audit of orders? [y/N]",
    "channel delete orders audit": "Delete channel audit of orders, with the messages that only it waits for? [y/N]",
    "consumer delete orders report": "Delete consumer report of orders? [y/N]",
}


@pytest.mark.parametrize("command", DELETIONS)
def test_a_person_is_asked_before_something_is_deleted(place: Place, command: str) -> None:
    place.shell("channel", "create", "orders", "audit")
    place.shell("send", "orders", "tea")
    place.shell("consumer", "move", "orders", "report", "0")
    for answer, status in (("n\n", Exit.FAILED), ("\n", Exit.FAILED), ("y\n", Exit.OK)):
        before = place.shell("queue", "describe", "orders", "--json")
        terminal = Terminal(*command.split(), *place.shell.where)
        terminal.until(DELETIONS[command])
        terminal.type(answer)
        assert terminal.ended() == status
        if status == Exit.FAILED:
            assert "nothing was done" in terminal.shown
            assert place.shell("queue", "describe", "orders", "--json") == before
    gone = place.shell.ended("queue", "describe", "orders", "--json")
    assert gone.text != before


KEEPER = """
[[credentials]]
name = "keeper"
access_key = "KEEPER"
token = "a-token-of-who-may-delete-but-not-read"
[[credentials.allow]]
queues = "*"
rights = ["admin"]
"""


def test_who_may_delete_need_not_read(directory: Path) -> None:
    with penstock.open(directory) as ps:
        ps.queue("orders").send(b"tea")
        ps.queue("orders").send(b"cake")
    node = ThreadedNode(directory, KEEPER)
    where = ("--url", node.url, "--token", "a-token-of-who-may-delete-but-not-read")
    try:
        ended = run("queue", "purge", "orders", *where)
        assert (ended.status, ended.out.decode()) == (0, "2 messages of orders deleted\n"), ended.err
        terminal = Terminal("queue", "delete", "orders", *where)
        terminal.until("Delete orders, with all its messages? [y/N]")
        terminal.type("y\n")
        assert (terminal.ended(), "deleted orders" in terminal.shown) == (0, True)
    finally:
        node.stop()


def test_yes_is_an_answer_before_the_question(local: Shell, directory: Path) -> None:
    local("send", "orders", "tea")
    status, written = on_a_terminal("queue", "delete", "orders", "--yes", "-d", str(directory))
    assert (status, "[y/N]" in written) == (0, False)
    assert local.json("queue", "list") == []


def test_ctrl_c_in_a_send_says_how_many_messages_were_sent(local: Shell, directory: Path) -> None:
    command = [sys.executable, "-m", "penstock", "send", "orders", "--json", "--data", str(directory)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(b"first\nsecond\n")
    child.stdin.flush()
    child.stdout.readline()
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=DEADLINE_SECONDS)
    assert child.returncode == Exit.INTERRUPTED
    assert errors.decode() == "penstock: interrupted. Sent to orders: 2 messages.\n"


def test_the_version_is_printed() -> None:
    text, build = run("--version").text, penstock._build()
    assert text.startswith(f"penstock {penstock.__version__} ({build}")
    assert ("make compile" in text) == (build != "compiled")


def test_q_ends_top(place: Place) -> None:
    place.shell("send", "orders", "tea")
    terminal = Terminal("top", "--interval", "0.1", *place.shell.where)
    terminal.until("orders")
    terminal.type("xq")
    assert terminal.ended() == Exit.OK
    assert terminal.shown.endswith("\x1b[?25h\x1b[?1049l"), "the screen is as it was before"


def test_top_says_when_the_server_is_gone_and_when_it_is_back(directory: Path) -> None:
    node = ThreadedNode(directory)
    proxy = Proxy(node.port)
    Shell("--url", node.url)("send", "orders", "tea")
    terminal = Terminal("top", "--interval", "0.1", "--url", f"http://127.0.0.1:{proxy.port}")
    terminal.until("orders")
    assert "gone" not in terminal.shown
    proxy.shut(True)
    proxy.reset()
    terminal.until("The server is gone")
    proxy.shut(False)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        terminal.forget()
        terminal.until("q ends")
        time.sleep(0.5)
        terminal.until("orders")
        if "gone" not in terminal.shown:
            break
        assert time.monotonic() < deadline
    terminal.type("q")
    assert terminal.ended() == Exit.OK
    proxy.close()
    node.stop()


# -- the page ----------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "cli.md").read_text()


def test_the_page_has_every_exit_status_as_the_code_has_it() -> None:
    source = Path(exits.__file__).read_text()
    meanings = re.findall(r'^    \w+ = (\d+)\n    """(.+)"""$', source, re.MULTILINE)
    assert len(meanings) == len(Exit)
    assert re.findall(r"^\| (\d+) \| (.+) \|$", PAGE, re.MULTILINE) == meanings


def test_the_page_names_every_command() -> None:
    context = click.Context(app)
    table = PAGE.split("## Commands")[1].split("## Sending")[0]
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert re.search(rf"`[^`]*\b{name}\b", table) or f"`{name}`" in table, name
        for inner in command.functions if isinstance(command, Group) and f"`{name} ..." not in table else ():
            assert re.search(rf"`{name} [^`]*\b{inner}\b", table), f"{name} {inner}"


def test_the_page_names_the_fields_of_json(shell: Shell) -> None:
    documented = {
        name: set(re.findall(r"`(\w+)`", fields))
        for name, fields in re.findall(r"^\| (`[^|]+`) \| (.+) \|$", PAGE, re.M)
    }
    (sent,) = shell.json("send", "orders", "tea", "--group", "g", "--attribute", "a=b")
    (received,) = shell.json("receive", "orders", "--no-ack", "--lease", "60")
    assert set(sent) == documented["`send`"]
    assert set(received) | {"body_base64"} == documented["`receive`"]
    assert set(shell.json("queue", "list")[0]) == documented["`queue list`"]
    assert set(shell.json("stats")[0]) == documented["`stats`, `channel list`"]
    assert set(shell.json("top", "--once", "--interval", "0.05")[0]) == documented["`top`"]


@pytest.mark.parametrize("as_json", [True, False])
def test_what_a_full_disk_took_of_messages_that_come_again_is_not_left_in_the_file(
    tmp_path: Path, as_json: bool
) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"before\n")
    rows: list[dict[str, Any]] = [{"body": "x" * 100}]
    with writer(target, as_json=as_json, raw=True, end=b"\n", title="") as write:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                list(write(rows, [b"x" * 100]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert target.read_bytes() == b"before\n"


def test_by_default_what_failed_twice_waits_before_it_is_tried_again(shell: Shell) -> None:
    shell("queue", "create", "orders")
    shell("send", "orders", "tea")
    for _ in range(2):
        (message,) = shell.json("receive", "orders", "--no-ack")
        shell("release", "orders", message["receipt"], "--error", "down")
    (row,) = shell.json("queue", "list")
    assert (row["ready"], row["delayed"]) == (0, 1)
    assert len(shell.json("receive", "orders", "--wait", "5")) == 1


# -- a place that was not meant ----------------------------------------------------------------------------------------


def test_a_command_that_makes_a_store_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("send", "orders", "tea").err == "penstock: made a new store in data. A server is named with --url\n"
    assert run("send", "orders", "tea").err == ""
    assert run("queue", "create", "orders", "--data", "other").err == "penstock: made a new store in other\n"
    assert run("send", "orders", "tea", "--data", "third", "-q").err == ""


@pytest.mark.parametrize(
    "command",
    [
        ("send", "orders", "tea", "--url", ""),
        ("send", "orders", "tea", "--data", ""),
        ("send", "orders", "--file", ""),
        ("peek", "orders", "--data="),
        ("store", "backup", "", "copy"),
        ("serve", "--data", ""),
    ],
)
def test_an_empty_place_is_refused(command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(*command)
    assert ended.status == Exit.USAGE and "is empty" in ended.err and "Is a variable unset?" in ended.err
    assert not list(tmp_path.iterdir())


def test_a_misspelled_variable_is_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("PENSTOCK_HTTP_PORT", "1")
    monkeypatch.setenv("PENSTOCK_KEY_OF_A", "1")
    ended = run("send", "orders", "tea", "-q", "--data", str(directory))
    assert ended.status == 0
    assert ended.err == ("penstock: warning: PENSTOCK_URI is no variable of Penstock, perhaps PENSTOCK_URL is meant\n")


# -- errors that name what was given -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-V", "No such option '-V'. Did you mean '--version'?"),
        ("version", "Did you mean '--version'?"),
        ("help", "Did you mean '--help'?"),
        ("list", "Did you mean 'queue list'?"),
        ("publish orders tea", "Did you mean 'send'?"),
        ("start", "Did you mean 'serve'?"),
        ("serve --workers 2", "--workers is gone: docs/server.md says how"),
        ("export data --queue nosuch", "there is no queue 'nosuch': check the name. `penstock queue list` lists"),
        ("export data --output .", "Invalid value for --output: .: Is a directory"),
        ("session end 0-999 --data data", "`penstock session list` lists the sessions"),
        (
            "store backup http://127.0.0.1:1 copy",
            "this works on a directory: give --data. `penstock export` works on both",
        ),
        ("store backup data /proc/copy", "penstock: /proc/copy: No such file or directory."),
        ("send orders tea --attribute =7 --data data", "'=7' is not NAME=VALUE"),
    ],
)
def test_an_error_names_what_was_given(line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("send", "orders", "tea", "--quiet")
    ended = run(*line.split())
    assert ended.status != 0 and len(ended.err.splitlines()) == 1
    assert said in ended.err and "incomplete" not in ended.err


def test_a_message_that_is_refused_is_counted_in_the_input(directory: Path) -> None:
    lines = b"".join(b"%d\n" % number for number in range(2_500)) + 1_100_000 * b"x"
    ended = run("send", "orders", "--data", str(directory), stdin=lines)
    assert ended.status == Exit.FAILED
    assert "penstock: message 2,501 of the input has 1100000 bytes" in ended.err


def test_a_lookup_service_names_the_flag_of_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for flag, other in (("--tcp-port", "--http-port"), ("--http-port", "--tcp-port")):
            ended = run("lookup", flag, port, other, "0")
            assert ended.status == Exit.USAGE
            assert ended.err.endswith(f"the port is taken. Choose another with {flag}; 0 picks one\n")


def test_a_ready_file_that_cannot_be_written_is_wrong_usage(tmp_path: Path) -> None:
    ports = [word for flag in ("sqs", "http", "nsq-tcp", "nsq-http") for word in (f"--{flag}-port", "0")]
    there = ["--data", str(tmp_path / "data"), "--ready-file", "/nosuch/ready"]
    process = subprocess.run(
        [sys.executable, "-m", "penstock", "serve", *there, *ports], capture_output=True, text=True, check=False
    )
    assert process.returncode == Exit.USAGE
    assert process.stderr == ("penstock: --ready-file: /nosuch/ready cannot be written: No such file or directory\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[queues]\nname = 'a'", "[queues] is wrong: write [[queues]]"),
        ("[credentials]\naccess_key = 'a'", "[credentials] is wrong: write [[credentials]]"),
        ("[[server]]\nhost = 'a'", "[[server]] is wrong: write [server]"),
        ("workers = 4", "workers is gone: "),
        ("[[queues]]\nname = 'a'\nlease = '5m'", "the declared queue 'a': lease is '5m'"),
        ("[[credentials]]\naccess_key = 'me'", "the credentials of 'me': give one of secret_key"),
        ("[server]\ntls_certificate = 'no'\ntls_key = 'no'", "[server] tls_certificate: no cannot be read"),
        (
            "[[credentials]]\naccess_key = 'me'\nsecret_key = 's'\nallow = [{rights = ['wirte']}]",
            "Invalid enum value 'wirte' - at `credentials[0].allow[0].rights[0]`. Its values are read, write, admin",
        ),
    ],
)
def test_a_wrong_file_of_settings_is_named_with_what_to_write(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    ended = run("serve", "--config", str(file), "--data", str(tmp_path / "data"))
    assert ended.status == Exit.USAGE
    assert ended.err.startswith(f"penstock: {file}: {said}")


def test_a_text_without_quotes_is_shown_with_them(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[server]\nhost = 0.0.0.0  # all\n")
    assert run("serve", "--config", str(file)).err.endswith('A text needs quotes: host = "0.0.0.0"\n')


def test_what_is_wrong_with_a_variable_is_not_blamed_on_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[sqs]\naccount = '000000000000'\n")
    monkeypatch.setenv("PENSTOCK_SQS_ACCOUNT", "1")
    assert run("serve", "--config", str(file)).err.startswith("penstock: PENSTOCK_SQS_ACCOUNT is '1'")


def test_ctrl_c_while_the_command_line_is_loaded_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "penstock.cli", Interrupted())
    from penstock.__main__ import main as start

    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == Exit.INTERRUPTED


# -- a place as an argument, or with a flag ----------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["argument", "flag", "variable"])
def test_every_command_of_directories_takes_its_place_both_ways(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("send", "orders", "tea", "--data", "shop").status == 0
    where = {"argument": ["shop"], "flag": ["--data", "shop"], "variable": []}[named]
    if named == "variable":
        monkeypatch.setenv("PENSTOCK_DATA", "shop")
    assert run("store", "check", *where).text == "shop is whole\n"
    assert run("export", *where, "-o", "file").text == "file: 1 queue, 1 message\n"
    assert run("export", *where).text.count("\n") == (tmp_path / "file").read_text().count("\n")
    if named == "variable":
        return
    for command in ("backup", "salvage"):
        ended = run("store", command, *where, f"{command}-{named}")
        assert ended.status == 0 and ended.text.startswith(f"{command}-{named}: "), ended
    into = ["new"] if named == "argument" else ["--data", "new"]
    ended = run("import", *into, "file")
    assert ended.text == "new: 1 queue, 1 message imported\n"
    second = run("import", *into[:-1], "second", stdin=(tmp_path / "file").read_bytes())
    assert second.text == "second: 1 queue, 1 message imported\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("store check shop --data shop", "give SOURCE or --data, not both"),
        ("store backup shop copy --data shop", "give SOURCE or --data, not both"),
        ("store backup shop", "Missing argument 'TARGET'"),
        ("store salvage --data shop", "Missing argument 'TARGET'"),
        ("export shop --data shop", "give SOURCE or --data, not both"),
        ("export shop --url http://127.0.0.1:1", "give SOURCE or --url, not both"),
        ("export --data shop --url http://127.0.0.1:1", "give --data or --url, not both"),
        ("import shop file --url http://127.0.0.1:1", "give TARGET or --url, not both"),
        ("import", "Missing argument 'TARGET'"),
    ],
)
def test_a_place_that_is_given_twice_or_not_at_all_is_wrong_usage(line: str, said: str) -> None:
    ended = run(*line.split())
    assert ended.status == Exit.USAGE and said in ended.err, ended


def test_an_export_of_a_server_names_it_with_a_flag_too(tmp_path: Path) -> None:
    node = ThreadedNode(tmp_path / "served")
    try:
        assert run("send", "orders", "tea", "--url", node.url).status == 0
        by_flag, by_place = run("export", "--url", node.url), run("export", node.url)
        assert by_flag.status == by_place.status == 0
        assert by_flag.out.count(b"\n") == by_place.out.count(b"\n") > 2
    finally:
        node.stop()


def test_a_consumer_that_a_read_creates_is_told(local: Shell) -> None:
    local("send", "orders", "tea")
    assert local.ended("consumer", "read", "orders", "audit", "--no-ack").err == ""
    told = "penstock: there was no consumer audit of orders, so it was created\n"
    assert local.ended("consumer", "read", "orders", "audit").err == told
    local("send", "orders", "cake")
    assert local.ended("consumer", "read", "orders", "audit").err == ""


# -- what takes long says so, on a terminal ----------------------------------------------------------------------------


def test_a_wait_for_messages_is_told_on_a_terminal(directory: Path) -> None:
    run("queue", "create", "orders", "--data", str(directory))
    status, written = on_a_terminal("receive", "orders", "--wait", "3", "--data", str(directory))
    assert status == Exit.NOTHING
    assert written.count("penstock: waiting for messages in orders. Ctrl-C ends it") == 1


def test_a_receive_into_a_file_says_how_many_came(directory: Path, tmp_path: Path) -> None:
    run("send", "orders", "tea", "cake", "--data", str(directory))
    out = str(tmp_path / "bodies")
    status, written = on_a_terminal("receive", "orders", "-n", "5", "--output", out, "--data", str(directory))
    assert status == 0 and f"2 messages of orders appended to {out}" in written
    run("send", "orders", "tea", "--data", str(directory))
    ended = run("receive", "orders", "--output", out, "--data", str(directory))
    assert (ended.out, ended.err) == (b"", "")


def test_a_server_that_does_not_answer_is_named_before_the_command_gives_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        status, written = on_a_terminal("receive", "orders", "--url", url)
        assert status == Exit.UNREACHABLE
        assert f"penstock: waiting for an answer from {url}" in written


def test_an_import_shows_that_it_checks_first(directory: Path, tmp_path: Path) -> None:
    run("send", "orders", "--data", str(directory), stdin=b"tea\n" * 60_000)
    run("export", str(directory), "-o", str(tmp_path / "file"))
    status, written = on_a_terminal("import", str(tmp_path / "new"), str(tmp_path / "file"))
    assert status == 0 and f"checking {tmp_path / 'file'}" in written


def test_a_queue_whose_messages_are_leased_is_not_just_empty(directory: Path) -> None:
    run("send", "orders", "tea", "--data", str(directory))
    run("receive", "orders", "--no-ack", "--data", str(directory))
    status, written = on_a_terminal("receive", "orders", "--data", str(directory))
    assert status == Exit.NOTHING and "Received from orders: nothing (1 leased)" in written


def test_an_export_asks_before_it_replaces_a_file(directory: Path, tmp_path: Path) -> None:
    run("send", "orders", "tea", "--data", str(directory))
    file = tmp_path / "file"
    file.write_text("mine")
    terminal = Terminal("export", str(directory), "-o", str(file))
    terminal.until("exists. Replace it? [y/N]")
    terminal.type("n\n")
    assert terminal.ended() == Exit.FAILED and file.read_text() == "mine"
    assert run("export", str(directory), "-o", str(file)).status == 0 and file.read_text() != "mine"
