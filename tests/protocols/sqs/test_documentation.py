"""docs/sqs.md has a row for everything there is, with the values that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.protocols.sqs import attributes, errors
from penstock.protocols.sqs.actions import REQUESTS
from penstock.protocols.sqs.received import SYSTEM_ATTRIBUTES

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "sqs.md").read_text()
ROWS: list[tuple[str, str]] = re.findall(r"^\| (`[^|]+`) \| (.+) \|$", TEXT, re.MULTILINE)
JUDGED = ("same", "different", "not there")


@pytest.mark.parametrize("name", sorted(REQUESTS) + sorted(attributes.NAMES - {"All"}))
def test_every_action_and_attribute_is_judged(name: str) -> None:
    assert any(names == f"`{name}`" and rest.startswith(JUDGED) for names, rest in ROWS)


@pytest.mark.parametrize("name", sorted(SYSTEM_ATTRIBUTES - {"All"}))
def test_every_system_attribute_is_judged(name: str) -> None:
    assert any(f"`{name}`" in names and rest.startswith(JUDGED) for names, rest in ROWS)


def test_the_table_of_errors_is_the_codes() -> None:
    documented = {(names.strip("`"), int(rest[:3])) for names, rest in ROWS if re.match(r"[45]\d\d \|", rest)}
    assert documented == {(kind.code, kind.status) for kind in errors.KINDS}
