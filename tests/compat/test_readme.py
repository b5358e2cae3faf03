"""The README's commands work as they are pasted, beside the server that `make run` starts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.server import ROOT, serving, until
from tests.docs.terminal import PORTS, Terminal, beside_make_run

README = (ROOT / "README.md").read_text()
TRY_IT = README.split("## Try it")[1].split("## Why it is different")[0]
BLOCKS = re.findall(r"^```(python|)\n(.*?)^```$", TRY_IT, re.MULTILINE | re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if not kind for line in text.splitlines()]
PROGRAMS = [text for kind, text in BLOCKS if kind]


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with beside_make_run(tmp_path_factory.mktemp("project")) as terminal:
        yield terminal


def test_there_is_a_command_for_every_protocol_and_a_program() -> None:
    together = "\n".join(COMMANDS)
    for word in (".venv/bin/penstock send", "aws ", "/v1/queues", "/pub?topic"):
        assert word in together
    assert len(PROGRAMS) == 1 and "penstock.connect" in PROGRAMS[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_works_as_pasted(terminal: Terminal, command: str) -> None:
    if "--queue-url" in command or "/receive" in command or " receive " in command:  # as a reader has it by then
        terminal.run("bash", "-c", terminal.pasted(".venv/bin/penstock send orders x --url http://127.0.0.1:9325"))
    assert terminal.run("bash", "-c", terminal.pasted(command)).strip()


@pytest.mark.parametrize("as_a_file", [True, False], ids=["file", "interactive"])
def test_the_program_of_the_readme_works_as_pasted(terminal: Terminal, as_a_file: bool) -> None:
    program = terminal.pasted(PROGRAMS[0])
    if as_a_file:
        told = terminal.run(".venv/bin/python", "-c", program)
    else:
        typed = shlex.quote(program + "\n")
        told = terminal.run("bash", "-c", f"printf %s {typed} | .venv/bin/python -i 2>&1")
        assert "Error" not in told, told
    assert "one coffee {'table': '7'}" in told


def test_the_first_idiom_ends_on_an_empty_queue(terminal: Terminal) -> None:
    program = terminal.pasted(PROGRAMS[0])
    without_sending = re.sub(r"^.*\.send\(.*\n", "", program, flags=re.MULTILINE)
    assert without_sending != program
    terminal.run(".venv/bin/python", "-c", program)
    assert terminal.run(".venv/bin/python", "-c", without_sending) == ""


def test_the_server_says_what_to_try_next_and_that_works(terminal: Terminal) -> None:
    greeting = terminal.greeting.read_text()
    for usual in PORTS:
        assert f":{terminal.ports[usual]}" in greeting
    (page,) = re.findall(r"http://\S+/v1/docs", greeting)
    assert "Penstock REST API" in terminal.run("curl", "-sf", page)
    (command,) = re.findall(r"in another terminal: (.+)$", greeting, re.MULTILINE)
    assert command.startswith(".venv/bin/penstock send ")
    assert terminal.run("bash", "-c", command).strip()


def test_the_readme_is_short_and_its_picture_is_there() -> None:
    assert len(README.split()) <= 900, "it should fit on two screens"
    (picture,) = re.findall(r'<img src="([^"]+)"', README)
    assert (ROOT / picture).exists()


def test_the_readme_says_how_long_messages_are_kept() -> None:
    from penstock import QueueConfig
    from penstock.core.queues.config import DAY_MS

    assert QueueConfig().retention_ms == 4 * DAY_MS
    assert "4 days" in README.split("## ")[0]


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.py"))],
    ids=lambda path: path.name,
)
def test_no_page_teaches_an_idiom_that_fails_on_an_empty_queue(path: Path) -> None:
    """`with queue.receive()` is a `TypeError` when there is no message; the loop around `with message` is not."""
    assert not re.findall(r"\bwith (?:await )?[\w.()\"']*\breceive\((?!.*\bmax\b)", path.read_text())


def test_a_server_whose_logs_programs_read_prints_one_line(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('[log]\nformat = "json"\n')
    with serving(tmp_path, "--config", str(tmp_path / "penstock.toml")) as server:
        until(lambda: "ready:" in server.log_path.read_text())
        assert len(server.log_path.read_text().splitlines()) == 1
