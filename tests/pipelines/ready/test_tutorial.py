"""The tutorial of docs/spark.md, pasted, with fewer messages and on free ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.spark.running import need_java

DOCS = Path(__file__).resolve().parents[3] / "docs"
MESSAGES = 7_000
DEFAULT_PORT = "9325"


def blocks() -> list[str]:
    _, _, tutorial = (DOCS / "spark.md").read_text().partition("\n## A tutorial")
    found = re.findall(r"```sh\n(.*?)```", tutorial, re.DOTALL)
    assert len(found) >= 7
    return found


def script(port: int) -> str:
    text = "\n".join(["set -e -o pipefail", *blocks()])
    assert text.count("penstock serve ") == 1
    assert DEFAULT_PORT in text
    ports = f"--http-port {port} --sqs-port 0 --nsq-tcp-port 0 --nsq-http-port 0"
    return text.replace("penstock serve ", f"penstock serve {ports} ").replace(DEFAULT_PORT, str(port))


@pytest.mark.timeout(900)
def test_its_commands_do_what_it_says(tmp_path: Path) -> None:
    need_java()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    variables |= {"PATH": path, "MESSAGES": str(MESSAGES), "PYSPARK_PYTHON": sys.executable}
    (tmp_path / "tutorial.sh").write_text(script(free_port()) + "\ntouch finished\n")
    with (tmp_path / "output").open("w+") as output:
        shell = subprocess.Popen(
            ["bash", "-c", "trap 'kill %1 2>/dev/null; wait' EXIT; . ./tutorial.sh"],
            cwd=tmp_path,
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        status = shell.wait(840)
    told = (tmp_path / "output").read_text()
    assert (status in (0, 143), (tmp_path / "finished").exists()) == (True, True), told
    assert f"archived {MESSAGES} messages" in told
    assert re.search(r"\|\s+3\|\s*1000\|", told)
    dead = sum(1 for order in range(1, MESSAGES + 1) if order % 7 == 6)
    slow = sum(1 for order in range(1, MESSAGES + 1) if order % 7 == 6 and order % 100 == 6)
    assert f"{dead} dead letters, {dead} chosen" in told
    assert f"{dead} dead letters, {slow} sent back" in told
    assert "orders.dead" in (tmp_path / "report.html").read_text()
