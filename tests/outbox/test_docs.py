"""The examples of docs/outbox.md and docs/listener.md, run from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["listener.md", "outbox.md"])
def test_the_examples_of_a_page_do_what_they_say(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert len(examples) >= 3
    names: dict[str, Any] = {"__name__": page}
    for example in examples:
        exec(compile(example, page, "exec"), names)
