"""A setting is declared in one place: a copy of the package gets one more, and every front end has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DECLARED = """    patience_ms: Annotated[int | None, Setting("How long we are patient.", 1_000, 60_000)] = 5_000
    kind: Annotated["""

OF_THE_SERVER = """    naps_s: Annotated[float, Setting("How long we nap.", 1, 60, flag="--naps")] = 5.0
    data: Annotated["""


class Copy:
    """A copy of the sources, the tools and the docs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("src", "tools", "docs"):
            shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": f"{self.directory / 'src'}:{self.directory}", "COLUMNS": "200"}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.directory, env=environment, capture_output=True, text=True, check=False)

    def printed(self, code: str) -> str:
        ended = self.run("-c", code)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    copy = Copy(tmp_path_factory.mktemp("copy"))
    config = copy.directory / "src" / "penstock" / "core" / "queues" / "config.py"
    text = config.read_text()
    assert text.count("    kind: Annotated[") == 1
    config.write_text(text.replace("    kind: Annotated[", DECLARED))
    settings = copy.directory / "src" / "penstock" / "server" / "settings.py"
    text = settings.read_text()
    assert text.count("    data: Annotated[") == 1
    settings.write_text(text.replace("    data: Annotated[", OF_THE_SERVER))
    for tool in ("tools.generate_settings", "docs.draw"):
        ended = copy.run("-m", tool)
        assert ended.returncode == 0, ended.stderr
    return copy


def test_python_has_it(copy: Copy) -> None:
    code = """
import penstock
with penstock.open(":memory:") as ps:
    print(ps.create_queue("orders", patience=7).info().config.patience_ms)
    try:
        ps.create_queue("orders", patience=0.5)
    except penstock.InvalidConfig as error:
        print(error)
"""
    assert copy.printed(code).splitlines() == ["7000", "patience is 0.5 seconds: it must be from 1 to 60 seconds"]
    assert "    patience: Seconds | None\n" in (copy.directory / "src/penstock/client/queue_settings.py").read_text()


def test_rest_has_it_in_its_schema(copy: Copy) -> None:
    code = """
import json, msgspec
from penstock.protocols.rest.shapes import QueueSettings
print(json.dumps(msgspec.json.schema(QueueSettings)["$defs"]["QueueSettings"]["properties"]["patience"]))
"""
    number = {"type": "number", "minimum": 1, "maximum": 60}
    described = {"anyOf": [number, {"type": "null"}], "description": "How long we are patient."}
    described |= {"x-default": "5", "x-unit": "seconds"}
    assert json.loads(copy.printed(code)) == described


def test_penstock_toml_has_it(copy: Copy) -> None:
    code = """
from penstock.server.settings import parse
for value in ("9", "'none'"):
    print(parse(f"[[queues]]\\nname = 'orders'\\npatience = {value}").queues[0].config().patience_ms)
"""
    assert copy.printed(code).splitlines() == ["9000", "None"]


def test_the_command_line_has_it(copy: Copy) -> None:
    ended = copy.run("-m", "penstock", "queue", "create", "--help")
    assert "--patience" in ended.stdout and "How long we are patient. Default: 5." in ended.stdout
    assert (
        copy.run("-m", "penstock", "queue", "create", "orders", "--patience", "9", "--data", "./data").returncode == 0
    )
    ended = copy.run("-m", "penstock", "queue", "configure", "orders", "--patience", "90", "--data", "./data")
    assert ended.stderr == "penstock: --patience is 90 seconds: it must be from 1 to 60 seconds\n"


def test_the_docs_have_it(copy: Copy) -> None:
    text = (copy.directory / "docs" / "delivery.md").read_text()
    assert "| `patience` | 5 s | 1 s to 1 min or none |  | How long we are patient |" in text


def test_a_setting_of_the_server_is_in_its_file_its_environment_and_its_flags(copy: Copy) -> None:
    code = """
from penstock.server.sources import flags_of, gathered
open("penstock.toml", "w").write("[server]\\nnaps_s = 7")
variable, flag = {"PENSTOCK_NAPS_S": "8"}, {"naps": "9"}
for sources in [(None, {}), ("penstock.toml", {}), ("penstock.toml", variable), ("penstock.toml", variable, flag)]:
    print(gathered(*sources, places=flags_of("server")).server.naps_s)
"""
    assert copy.printed(code).splitlines() == ["5.0", "7.0", "8.0", "9.0"]
    ended = copy.run("-m", "penstock", "serve", "--data", ":memory:", "--naps", "0")
    assert ended.stderr == "penstock: --naps is 0 seconds: it must be from 1 to 60 seconds\n"
    row = "| `naps_s` | `PENSTOCK_NAPS_S`, `--naps` | 5 s | 1 s to 60 s | How long we nap |"
    assert row in (copy.directory / "docs" / "server.md").read_text()
