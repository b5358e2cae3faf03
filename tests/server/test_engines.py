"""Engines are known by name, and by nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
import typing
from pathlib import Path

import pytest

import penstock
from penstock.cli.exits import Exit, exit_of
from penstock.core.errors import InvalidRequest
from penstock.server.engines import ENGINES, Engine, opener_for
from penstock.server.settings import ServerSettings
from penstock.store.errors import LogUnavailable

TOLD_S_MAX = 8
"""It takes about one second; a machine that does a lot besides may take some."""

STORES = {"EmbeddedStore", "MemoryStore", "KafkaStore", "ClaimedStore", "StoreView"}


def test_the_settings_offer_engines_that_are_there() -> None:
    offered = typing.get_args(typing.get_type_hints(ServerSettings)["engine"])
    assert set(offered) <= set(ENGINES)


def test_a_store_in_memory_stays_when_it_is_opened_again() -> None:
    opener = opener_for(":memory:", {})
    assert opener() is opener()


@pytest.mark.parametrize("place", [":memory:", "directory"])
def test_options_that_an_engine_does_not_know_are_refused(place: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="option"):
        opener_for(place if place == ":memory:" else str(tmp_path), {"colour": "blue"})


def test_an_engine_whose_library_is_missing_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_snow.py").write_text("import snow")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidRequest, match=r'pip install "penstock-mq\[winter\]"'):
        Engine("winter", "needs_snow:Node", None, needs="snow").load_node()


def test_nobody_asks_what_class_a_store_is() -> None:
    root = Path(penstock.__file__).parent
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and STORES & {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
    ]
    assert not found


@pytest.mark.parametrize(
    "command", ["serve --sqs-port 0 --http-port 0 --nsq-tcp-port 0 --nsq-http-port 0", "cluster show"]
)
@pytest.mark.parametrize(
    ("flags", "place"),
    [
        ("--bootstrap 127.0.0.1:1", "Kafka at 127.0.0.1:1"),
        ("--zookeeper 127.0.0.1:1", "ZooKeeper at 127.0.0.1:1"),
    ],
    ids=["kafka", "zookeeper"],
)
def test_who_waits_for_what_is_not_there_is_told_at_once_where_it_is_looked_for(
    tmp_path: Path, command: str, flags: str, place: str
) -> None:
    engine = f"--engine {place.split()[0].lower()} --data {tmp_path}" if command.startswith("serve") else ""
    words = [sys.executable, "-m", "penstock", *command.split(), *flags.split(), *engine.split()]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            started_s = time.monotonic()
            told = next(line for line in process.stderr if f"waiting for {place}" in line)
            assert time.monotonic() - started_s < TOLD_S_MAX
            assert "giving up after" in told
        finally:
            process.kill()


def test_what_does_not_answer_is_worth_another_try_later() -> None:
    assert exit_of(LogUnavailable("Kafka does not answer")) == Exit.UNREACHABLE
