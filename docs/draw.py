"""Draw what the pages show of the code: `python -m docs.draw`, at the root of the repository, with `.venv`'s python.

A drawn table stands between `<!-- name -->` and `<!-- /name -->`. A test fails when a page and the code differ.
"""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

from docs import story
from penstock.core import config
from penstock.core.config import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, UNCHANGEABLE, QueueConfig
from penstock.core.states import transition_table
from penstock.protocols.rest.problem_pages import EXPLAINED

DOCS = Path(__file__).parent

_UNITS = ((DAY_MS, "days"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (SECOND_MS, "s"))
_BYTE_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"))
_ELSEWHERE = {
    "kind": "see [FIFO](#fifo)",
    "backoff": "see [Backoff](#backoff)",
    "policy": "see [Policies](#policies)",
    "partitions": "how many shards hold it, where there are several: "
    "see [Queues with several partitions](cluster.md#queues-with-several-partitions)",
    "dedup_scope": "whether a dedup id counts for the queue or for its group: see [Duplicates](#duplicates)",
    "throughput_scope": "whether the rate below is the queue's or each group's: see [FIFO](#fifo)",
    "tags": "see `labels`",
}
"""Settings that a section of the page explains better than a line."""


def drawn(page: str) -> str:
    """The text of a page, with its tables as the code has them now."""
    text = (DOCS / page).read_text()
    for name, table in PAGES[page].items():
        before, opened, rest = text.partition(f"<!-- {name} -->")
        _, closed, after = rest.partition(f"<!-- /{name} -->")
        assert opened and closed, f"{page} has no place for {name!r}"
        text = f"{before}{opened}\n{table()}\n{closed}{after}"
    return text


def settings_table() -> str:
    """Every setting of a queue: default, range, meaning."""
    ranges = {name: (low, high) for name, low, high in config._RANGES}
    types = typing.get_type_hints(QueueConfig)
    meanings = _field_docstrings(QueueConfig)
    lines = ["| setting | default | range | meaning |", "|---|---|---|---|"]
    for name in QueueConfig.__struct_fields__:
        default = _value(name, getattr(QueueConfig(), name))
        meaning = meanings.get(name) or _ELSEWHERE[name]
        if name in UNCHANGEABLE:
            meaning += " (for life)"
        lines.append(f"| `{name}` | {default} | {_range(name, types[name], ranges)} | {meaning} |")
    return "\n".join(lines)


def _range(name: str, kind: Any, ranges: dict[str, tuple[int, int]]) -> str:
    optional = " or none" if NoneType in typing.get_args(kind) else ""
    if name in ranges:
        low, high = (_value(name, limit) for limit in ranges[name])
        return f"{low} to {high}{optional}"
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(kind))
    return {bool: "yes, no", config.Backoff: "`Backoff`"}.get(kind, f"a name{optional}" if optional else "any")


def _value(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return _number(name, value)
    if isinstance(value, config.Backoff):
        span = " to ".join(_number("_ms", each) for each in (value.base_ms, value.ceiling_ms))
        return f"`{value.shape}`, {span}"
    return f"`{value}`" if value else "empty"


def _number(name: str, value: int) -> str:
    if name.endswith("_ms"):
        return _with_unit(value, _UNITS, "ms")
    if "bytes" in name:
        return _with_unit(value, _BYTE_UNITS, "bytes")
    return _plain(value)


def _with_unit(value: int, units: tuple[tuple[int, str], ...], smallest: str) -> str:
    if value == 0:
        return "0"
    for size, unit in units:
        if value % size == 0 and value < size << 20:
            return f"{_plain(value // size)} {unit}"
    return f"{_plain(value)} {smallest}"


def _plain(value: int) -> str:
    is_power_of_two = value.bit_count() == 1
    return f"2^{value.bit_length() - 1}" if is_power_of_two and value > 1 << 30 else f"{value:,}"


def _field_docstrings(struct: type) -> dict[str, str]:
    """The strings that stand below the fields of a class."""
    body = ast.parse(inspect.getsource(struct)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(below.value.value).split()).rstrip(".")
    return found


def decisions_table() -> str:
    """Every decision, by the number and title on its top."""
    lines = ["| | |", "|---|---|"]
    for path in sorted((DOCS / "adr").glob("*.md")):
        title = path.read_text().splitlines()[0].lstrip("# 0123456789.:")
        lines.append(f"| [{path.name[:4]}](adr/{path.name}) | {title} |")
    return "\n".join(lines)


def problems_table() -> str:
    """Every error of the REST API."""
    rows = (f"| `{code}` | {status} | {meaning} {remedy} |" for code, status, meaning, remedy in EXPLAINED)
    return "\n".join(["| code | status | what it means, and what to do |", "|---|---|---|", *rows])


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "delivery.md": {"transitions": transition_table, "settings": settings_table},
    "life-of-a-message.md": story.TABLES,
    "README.md": {"decisions": decisions_table},
    "rest.md": {"errors": problems_table},
}
"""Page -> name of a table -> what draws it."""


if __name__ == "__main__":
    for each in PAGES:
        (DOCS / each).write_text(drawn(each))
