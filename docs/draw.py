"""Draw what the pages show of the code: `python -m docs.draw`, at the root of the repository, with `.venv`'s python.

A drawn table stands between `<!-- name -->` and `<!-- /name -->`; pictures and
the reference are files (`docs/pictures.py`, `docs/reference.py`). A test fails when one of them and the code differ.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from docs import monitoring, pictures, reference, story
from penstock.core.delivery.states import transition_table
from penstock.core.queues import config
from penstock.core.queues.config import DAY_MS, HOUR_MS, MINUTE_MS, SETTINGS
from penstock.core.settings import SECOND_MS, Declared, SqsAttribute, declared
from penstock.protocols.rest.pages import EXPLAINED
from penstock.server.settings import SECTIONS, HandshakeRule
from penstock.server.sources import VARIABLES

DOCS = Path(__file__).parent

_UNITS = ((DAY_MS, "days"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (SECOND_MS, "s"))
_BYTE_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"))
_EXPLAINED = {
    "kind": "#fifo",
    "backoff": "#backoff",
    "policy": "#policies",
    "partitions": "cluster.md#queues-with-several-partitions",
    "dedup_scope": "#duplicates",
    "throughput_scope": "#fifo",
}
"""Settings that a section explains better than a line."""


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
    """Every setting of a queue: default, range, its name and range in SQS, meaning."""
    lines = ["| setting | default | range | in SQS | meaning |", "|---|---|---|---|---|"]
    for each in SETTINGS.values():
        meaning = each.setting.help.removesuffix(".")
        if each.name in _EXPLAINED:
            meaning += f": [see there]({_EXPLAINED[each.name]})"
        if each.setting.for_life:
            meaning += ". It cannot be changed later"
        cells = (f"`{each.name}`", _value(each.field, each.default), _range(each), _in_sqs(each.setting.sqs), meaning)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def server_settings_table() -> str:
    """Every setting of a server, a table for each section of penstock.toml."""
    variables = {(place.section, place.setting.field): name for name, place in VARIABLES.items()}
    parts = []
    for section, struct in [*SECTIONS.items(), ("[nsq.handshake]", HandshakeRule)]:
        about = (struct.__doc__ or "").splitlines()[0]
        rows = ["| key | also | default | range | meaning |", "|---|---|---|---|---|"]
        for each in declared(struct).values():
            flag = (each.setting.flag or "").split(",")[0]
            also = ", ".join(f"`{name}`" for name in (variables.get((section, each.field)), flag) if name)
            meaning = each.setting.help.removesuffix(".").replace("|", "\\|")
            if each.setting.live:
                meaning += " (live)"
            default = "this machine" if each.field == "node" else _value(each.field, each.default)
            rows.append(f"| `{each.field}` | {also} | {default} | {_range(each)} | {meaning} |")
        parts.append("\n".join([f"**`[{section}]`** {about}", "", *rows]))
    return "\n\n".join(parts)


def _range(each: Declared) -> str:
    optional = " or none" if each.is_optional else ""
    if each.setting.above is not None:
        high = "" if each.setting.high is None else f", up to {_value(each.field, each.setting.high)}"
        return f"above {each.setting.above:g}{high}{optional}"
    if each.setting.low is not None:
        low = _value(each.field, each.setting.low)
        high = "" if each.setting.high is None else _value(each.field, each.setting.high)
        return (f"{low} to {high}" if high else f"{low} or more") + optional
    if each.choices:
        return ", ".join(f"`{choice}`" for choice in each.choices)
    return {bool: "`true`, `false`", config.Backoff: "`Backoff`", str: "text"}.get(each.kind, "any") + optional


def _in_sqs(sqs: SqsAttribute | None) -> str:
    if sqs is None:
        return ""
    words = ", ".join(f"`{word}`" for word in sqs.words)
    return f"`{sqs.name}`" + (f": {words}" if words else "" if sqs.low is None else f": {sqs.low:,} to {sqs.high:,}")


def _value(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, int):
        return _number(name, value)
    if isinstance(value, float):
        return f"{value:,.15g} s" if name.endswith("_s") else f"{value:g}"
    if isinstance(value, config.Backoff):
        span = " to ".join(_number("_ms", each) for each in (value.base_ms, value.ceiling_ms))
        return f"`{value.shape}`, {span}"
    return f"`{value}`" if value else "empty"


def _number(name: str, value: int) -> str:
    if name.endswith("_s"):
        return f"{value:,} s"
    if name.endswith("_ms"):
        return _with_unit(value, _UNITS, "ms")
    if name.endswith("port"):
        return str(value)
    if "bytes" in name:
        return _with_unit(value, _BYTE_UNITS, "bytes")
    return _plain(value)


def _with_unit(value: int, units: tuple[tuple[int, str], ...], smallest: str) -> str:
    if value == 0:
        return "0"
    for size, unit in units:
        if value % size == 0 and value < size << 20:
            return f"{_plain(value // size)} {unit}"
    return f"{_plain(value)} {smallest if value != 1 else smallest.removesuffix('s')}"


def _plain(value: int) -> str:
    is_power_of_two = value.bit_count() == 1
    return f"2^{value.bit_length() - 1}" if is_power_of_two and value > 1 << 30 else f"{value:,}"


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
    "decisions.md": {"decisions": decisions_table},
    "rest.md": {"errors": problems_table},
    "server.md": {"settings": server_settings_table},
}
"""Page -> name of a table -> what draws it."""


if __name__ == "__main__":
    for each in PAGES:
        (DOCS / each).write_text(drawn(each))
    for file, page in reference.PAGES.items():
        (DOCS / file).write_text(page())
    for file, picture in pictures.PICTURES.items():
        (DOCS / file).write_text(picture())
    for path, made in monitoring.FILES.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made())
