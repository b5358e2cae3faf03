from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.programs import needed
from tools import debian


def test_a_program_of_this_machine_is_used_as_it_is() -> None:
    assert debian.program("coreutils", "ls").extra == {}


def test_a_program_that_is_not_here_is_unpacked_once_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hello = needed("hello")
    said = subprocess.run([hello.path], env=hello.environment, capture_output=True, text=True, timeout=30).stdout
    assert said == "Hello, world!\n"
    if hello.root != Path("/"):
        unpacked_at = hello.path.stat().st_ctime_ns
        assert hello.path.is_relative_to(tmp_path)
        assert debian.program("hello").path.stat().st_ctime_ns == unpacked_at


def test_a_package_without_the_program_says_where_to_look() -> None:
    with pytest.raises(debian.DebianError, match="no program no-such-companion"):
        debian.program("coreutils", "ls").companion("no-such-companion")


def test_without_debians_tools_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(debian.DebianError, match="install no-such-server by"):
        debian.program("no-such-server")
