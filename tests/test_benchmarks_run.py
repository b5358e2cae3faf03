"""Benchmarks that nobody runs rot: each runs here in its quick form. What it measures is not looked at."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from bench import nsq_tools
from bench.report import QUESTIONS
from bench.run import ROOT, SCRIPTS, label
from tests.kafka import loudly
from tests.programs import needed
from tools.kafka import jars

TIMEOUT_S = 280


@pytest.mark.parametrize("script", SCRIPTS)
def test_benchmark_runs_and_prints_its_table(script: str) -> None:
    if script == "nsq":
        need_nsq_tools()
    if script == "client":
        for package in ("redis-server", "rabbitmq-server", "nats-server"):
            needed(package)
    if script == "cluster":
        with loudly():
            jars()
    command = [sys.executable, "-m", "bench.run", "--quick", script]
    printed = subprocess.run(command, cwd=ROOT, check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE, text=True).stdout
    assert printed.startswith(f"## {label(script)}. ")
    assert re.search(r"^\| .*target.* \|$", printed, re.MULTILINE)
    assert re.search(r"at (least|most) [\d.]+.*: (reached|\*\*missed\*\*)", printed)


def need_nsq_tools() -> None:
    """They are built with Go, once."""
    try:
        nsq_tools.build()
    except nsq_tools.ToolsMissing as missing:
        reason = f"THIS TEST DID NOT RUN: {missing}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def test_every_question_has_its_section_on_the_page() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == [question.asks for question in QUESTIONS.values()]
    assert set(QUESTIONS) == {label(script) for script in SCRIPTS}
