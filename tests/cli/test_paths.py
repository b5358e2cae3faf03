"""Directories that are not there to be used: an empty name, and another user's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import penstock
from tests.package import PACKAGE

NOBODY = 65_534
NO_PORTS = ("--sqs-port", "0", "--http-port", "0", "--nsq-tcp-port", "0", "--nsq-http-port", "0")
ON_A_DIRECTORY = [
    ("serve", *NO_PORTS, "--data"),
    ("peek", "q", "--data"),
    ("send", "q", "x", "--data"),
    ("queue", "list", "--data"),
    ("store", "check", "--data"),
    ("store", "backup"),
    ("store", "salvage"),
    ("export",),
]
AS_NOBODY = f"""
import encodings.idna, os, sys
import penstock.serve, penstock.assembly, penstock.cli, penstock.backup, penstock.salvage, penstock.server.node
import penstock.cli.store, penstock.cli.messages, penstock.cli.queues, penstock.cli.transfer
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
penstock.cli.main()
"""


def run(place: Path, *command: str, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)} | (variables or {})
    return subprocess.run(
        [sys.executable, *command], cwd=place, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("command", [*ON_A_DIRECTORY, ("import",)])
def test_an_empty_directory_name_is_not_the_current_directory(tmp_path: Path, command: Sequence[str]) -> None:
    more = ["new"] if command in (("store", "backup"), ("store", "salvage")) else []
    done = run(tmp_path, "-m", "penstock", *command, "", *more)
    assert (done.returncode, "empty: " in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_settings_may_not_name_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[server]\ndata = ""\n')
    done = run(tmp_path, "-m", "penstock", "serve", "--config", "a.toml", *NO_PORTS)
    assert done.returncode == 2
    assert done.stderr.startswith("penstock: a.toml: [server] data is empty: ")
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_every_command_says_whose_a_directory_is(public: Path, mode: int) -> None:
    with penstock.open(public / "data") as ps:
        ps.queue("q").send(b"x")
    (public / "data").chmod(mode)
    for command in ON_A_DIRECTORY:
        done = run(public, "-c", AS_NOBODY, *command, "data", *(["new"] if len(command) == 2 else []))
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("penstock: this user may not read data"), command
        assert "for the user who writes to it (number 0)" in done.stderr
    assert [path.name for path in public.iterdir()] == ["data"]
