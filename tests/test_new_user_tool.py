"""`make new-user` in short: an empty clone serves what its README says, and a page that is wrong is noticed."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import penstock
from tests.compat.server import ROOT
from tests.docs.terminal import Terminal
from tools import new_user

WITH_THIS_PYTHON = {**new_user.ENVIRONMENT, "PATH": f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty clone, with the tests' own environment in place of the one that `make run` installs."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("THIS TEST DID NOT RUN: there is nothing to clone")
    directory = tmp_path_factory.mktemp("new-user") / "penstock"
    new_user.clone(directory)
    (directory / ".venv").symlink_to(sys.prefix)
    return directory


def serving_as_made(directory: Path) -> AbstractContextManager[Terminal]:
    command = ["make", "--assume-old=.venv/.serving", "--assume-old=pyproject.toml", "run", f"PYTHON={sys.executable}"]
    return new_user.serving(command, directory, {**WITH_THIS_PYTHON, "PYTHONPATH": str(directory / "src")})


def test_an_empty_clone_serves_every_command_of_the_readme(cloned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {**WITH_THIS_PYTHON, "PYTHONPATH": str(cloned / "src"), "HOME": str(cloned), "TERM": "dumb"}
    with serving_as_made(cloned) as terminal:
        new_user.paste(terminal, new_user.Stopwatch("test"), environment, ["README.md"])
    assert "every command of README.md" in capsys.readouterr().out
    with penstock.open(cloned / "data", read_only=True) as ps:
        acked = ps.queue("orders").stats().channels["main"].acked
    assert acked > 2, "two by the command line, the others by the program"


def test_a_command_that_fails_is_told_with_what_it_printed(cloned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = cloned / "page.md"
    page.write_text("```\necho so far so good\n.venv/bin/python -c 'raise SystemExit(\"oh no\")'\n```\n")
    monkeypatch.setattr(new_user, "ROOT", cloned)
    terminal = Terminal(cloned, dict.fromkeys(new_user.VARIABLES, "1"), cloned / "out")
    with pytest.raises(new_user.Disappointed, match=r"page\.md: (?s:.*)so far so good(?s:.*)oh no"):
        new_user.paste(terminal, new_user.Stopwatch("test"), WITH_THIS_PYTHON, ["page.md"])


def test_a_server_that_does_not_start_is_told_with_what_it_printed(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo no room; exit 3"]
    with (
        pytest.raises(new_user.Disappointed, match=r"ended with 3:\nno room"),
        new_user.serving(command, tmp_path, WITH_THIS_PYTHON),
    ):
        raise AssertionError("it does not serve")
