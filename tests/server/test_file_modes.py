"""What is kept on the disk is for the eyes of the user who keeps it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.core.errors import StoreError
from penstock.core.storage.chunk import Chunk
from penstock.wire.pieces import Target, piece_bytes
from tests.package import PACKAGE
from tests.server.serving import Served, served

NOBODY = 65_534


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> list[str]:
    """What somebody else may do anything with."""
    found = [directory, *directory.rglob("*")]
    return [str(path.relative_to(directory.parent)) for path in found if path.lstat().st_mode & 0o077]


def use(server: Served) -> None:
    assert (
        server.talk("nsq-http", "POST /pub?topic=q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")[0] == 200
    )
    data = piece_bytes([(Target("q"), Chunk.of(0, 0, [b"x"]))])
    staging = f"PUT /v1/bulk/staging/t/p HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    assert server.talk("http", staging + data.decode("latin-1"))[0] in (200, 204)


def test_a_server_makes_everything_for_its_user_alone(tmp_path: Path) -> None:
    with served(tmp_path, "[events]\nenabled = true\n") as server:
        use(server)
        made = {path.name for path in server.data.rglob("*")}
        assert {"lock", "journal", "table.sqlite", "table.sqlite-wal", "table.sqlite-shm", "p.piece"} <= made
        assert open_to_others(server.data) == []
    assert open_to_others(server.data) == []


def test_an_embedded_store_does_so_too_and_leaves_the_umask_and_what_is_above_it_alone(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "above" / "data") as ps:
        ps.queue("q").send(b"x")
        assert open_to_others(tmp_path / "above" / "data") == []
    assert stat.S_IMODE((tmp_path / "above").stat().st_mode) == 0o755
    assert os.umask(0o022) == 0o022


def test_files_that_an_earlier_build_left_open_are_mended_and_nothing_else_is_touched(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with penstock.open(data) as ps:
        ps.queue("q").send(b"x")
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (data / "notes.txt").touch(0o644)
    with penstock.open(data) as ps:
        assert [message.body for message in ps.queue("q").peek()] == [b"x"]
        assert open_to_others(data) == ["data", "data/notes.txt"]


def test_who_lets_everybody_write_to_a_directory_is_warned(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    with served(tmp_path) as server:
        assert f"everybody can write to {server.data}" in server.log
        assert stat.S_IMODE(server.data.stat().st_mode) == 0o777


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_another_user_hears_whose_the_directory_is(public: Path, mode: int) -> None:
    data = public / "data"
    with penstock.open(data) as ps:
        ps.queue("q").send(b"x")
    data.chmod(mode)
    program = f"""
import os, sys
import penstock, penstock.api, penstock.store.view
from penstock.core.errors import StoreError
penstock.open
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
try:
    penstock.open({str(data)!r}, read_only=True)
except StoreError as error:
    print(error)
"""
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert run.stderr == ""
    assert run.stdout.startswith(f"this user may not read {data}")
    assert run.stdout.endswith("for the user who writes to it (number 0). Run this as that user, or ask its server.\n")
    assert run.stdout.count("\n") == 1


def test_a_store_that_is_ones_own_can_be_looked_at(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as ps:
        ps.queue("q").send(b"x")
    with penstock.open(tmp_path / "data", read_only=True) as ps:
        assert ps.queues() == ["q"]
    with pytest.raises(StoreError, match="holds no store"):
        penstock.open(tmp_path, read_only=True)
