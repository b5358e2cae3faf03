"""The examples of docs/websocket.md run as printed, and its tables name what the code has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from penstock.core import commands
from penstock.wire.requests import FIELDS
from tests.client.serving import Server

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "websocket.md").read_text()


EXAMPLES = re.findall(r"```python\n(.*?)```\n\nprints\n\n```\n(.*?)```", PAGE, re.DOTALL)


def test_every_example_of_the_page_is_one_that_prints_something() -> None:
    assert len(EXAMPLES) == PAGE.count("```python\n") == 3


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=["websocket", "push", "poll"])
def test_an_example_prints_what_the_page_says(server: Server, code: str, printed: str) -> None:
    code = code.replace("//127.0.0.1:9325", server.url.removeprefix("penstock:"))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == (printed, "")


@pytest.mark.parametrize(
    "command", ["Send", "Receive", "Ack", "Release", "Extend", "GiveBack", "CommitWork", "StartPush"]
)
def test_the_fields_of_a_command_are_in_the_order_of_the_page(command: str) -> None:
    row = re.search(rf"^\| `{command}` \| (.*?) \|", PAGE, re.MULTILINE)
    assert row
    printed = ["ticket" if field == "(null)" else field for field in row[1].split(", ") if field != "(0)"]
    if "(0)" in row[1]:  # of_queue, which only servers send, has its place between `once` and later fields
        fields_sent = [field.name for field in msgspec.structs.fields(getattr(commands, command))]
        assert fields_sent.index("of_queue") == row[1].split(", ").index("(0)")
    fields = list(FIELDS[command])
    assert printed == (fields if "once" in printed else [field for field in fields if field != "once"])
