"""`penstock pipeline test`: cases of messages in and rows out, as users run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pipelines.cases import read_cases
from penstock.pipelines.errors import InvalidDefinition
from tests.spark.running import PATIENCE_S, need_java

PIPELINE = """\
dead_letters: orders.rejects
source: {queue: orders}
steps:
  - {name: parsed, parse: json, schema: "id bigint, amount double", checks: {positive: amount > 0}}
  - {name: large, sql: "select id, amount from parsed where amount > 100"}
sinks:
  - {name: large, queue: large-orders}
  - {name: lake, from: parsed, delta: lake/orders}
"""
CASES = """\
- name: large orders are sent on, and all are kept
  given:
    orders:
      - {id: 1, amount: 500}
      - {id: 2, amount: 5}
      - {value: {id: 3, amount: -5}, key: ann, headers: {table: "7"}}
      - broken
  expect:
    large: [{id: 1, amount: 500}]
    lake: [{id: 2, amount: 5}, {id: 1, amount: 500}]
  rejects:
    - {reason: "check failed: positive", body: {id: 3, amount: -5}}
    - {reason: not JSON, step: parsed, body: broken}
- name: this one is wrong
  given: {orders: [{id: 1, amount: 500}, broken]}
  expect: {large-orders: [{id: 2, amount: 500}]}
"""


@pytest.mark.timeout(300)
def test_cases_are_run_and_what_differs_is_shown_line_by_line(tmp_path: Path) -> None:
    need_java()
    (tmp_path / "orders.yaml").write_text(PIPELINE)
    (tmp_path / "orders.test.yaml").write_text(CASES)
    command = [sys.executable, "-m", "penstock", "pipeline", "test", "orders.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert len(done.stdout.splitlines()) == 5, done.stdout + done.stderr
    first, second, *rest = done.stdout.splitlines()
    assert first.startswith("passed: large orders are sent on"), done.stdout + done.stderr
    assert second.startswith("FAILED: this one is wrong")
    assert rest == [
        '  large-orders: missing {"id": 2, "amount": 500}',
        '  large-orders: not expected {"id": 1, "amount": 500.0}',
        '  rejects: not expected {"reason": "the body is not JSON", "step": "parsed", "body": "broken"}',
    ]
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "penstock: 1 of 2 cases failed")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["orders.test.yaml", "orders.yaml"], "nothing is left"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("orders: []", "must be a list of cases"),
        ("- {given: {orders: 7}, expect: {}}", "must be lists by name"),
        ("- {given: {orders: []}}", "expects nothing"),
        ("- {rejects: [{cause: x}]}", "must be a list of mappings with body, reason, step"),
        ("- {gives: {}}", "there is no key 'gives' .did you mean given"),
    ],
)
def test_what_is_wrong_with_cases_is_said_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "orders.test.yaml").write_text(text)
    with pytest.raises(InvalidDefinition, match=says):
        read_cases(tmp_path / "orders.test.yaml")
    with pytest.raises(InvalidDefinition, match="there is no such file"):
        read_cases(tmp_path / "nothing.yaml")
