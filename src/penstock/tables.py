"""Tables of text: rows for people, on a terminal folded to its width, elsewhere a line a row at full width."""

from __future__ import annotations

import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

Row = Mapping[str, Any]

HEADINGS = {"sent_per_s": "in/s", "acked_per_s": "out/s", "failed_per_s": "fail/s", "receivers": "waiting"}
NARROWEST = 12
"""A column is folded to no less than this."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters but for those that lay text out: tab and newline."""


def table(rows: Sequence[Row], title: str, stream: TextIO | None = None) -> str:
    """Rows as lines, without columns that are empty, for a stream: standard output, if no other is given.

    What would steer the terminal is shown escaped. Where no person reads, a row is one line, however long.
    """
    if not rows:
        return f"{title}: nothing\n"
    stream = stream or sys.stdout
    is_read = stream.isatty()
    columns = list(dict.fromkeys(column for row in rows for column in row if cell(row[column])))
    numbers = [all(isinstance(row.get(column) or 0, int | float) for row in rows) for column in columns]
    cells = [[HEADINGS.get(column, column.replace("_", " ")) for column in columns]]
    cells += [[visible(cell(row.get(column, "")), one_line=not is_read) for column in columns] for row in rows]
    widths = [max(map(_longest, column)) for column in zip(*cells, strict=True)]
    gap = "  "
    if is_read:
        room = shutil.get_terminal_size().columns
        gap = "  " if sum(widths) + 2 * len(widths) - 2 <= room else " "
        widths = _fitting(widths, numbers, room - len(gap) * (len(widths) - 1))
    lines = [line for row in cells for line in _lines(row, widths, numbers, gap)]
    rule = "─" if (stream.encoding or "utf-8").lower().startswith("utf") else "-"
    lines.insert(1, rule * (sum(widths) + len(gap) * (len(widths) - 1)))
    return "\n".join([visible(title, one_line=True), *lines, ""])


def _fitting(widths: list[int], numbers: list[bool], room: int) -> list[int]:
    """Columns of text made narrower, the widest first, until all fit, or none can give more."""
    widths = list(widths)
    while (over := sum(widths) - room) > 0:
        wide = [at for at, width in enumerate(widths) if width > NARROWEST and not numbers[at]]
        if not wide:
            break
        widest = max(wide, key=widths.__getitem__)
        second = max((widths[at] for at in wide if at != widest), default=NARROWEST)
        widths[widest] -= max(1, min(over, widths[widest] - max(second, NARROWEST)))
    return widths


def _lines(row: list[str], widths: list[int], numbers: list[bool], gap: str) -> Iterator[str]:
    """A row of the table: more than one line, if a cell was folded."""
    folded = [list(_folded(text, width)) for text, width in zip(row, widths, strict=True)]
    for at in range(max(map(len, folded))):
        parts = []
        for lines, width, number in zip(folded, widths, numbers, strict=True):
            text = lines[at] if at < len(lines) else ""
            space = " " * (width - _width(text))
            parts.append(space + text if number else text + space)
        yield gap.join(parts).rstrip()


def _folded(text: str, width: int) -> Iterator[str]:
    for line in text.split("\n"):
        while _width(line) > width:
            end = width
            while _width(line[:end]) > width:
                end -= 1
            yield line[: end or 1]
            line = line[end or 1 :]
        yield line


def _longest(text: str) -> int:
    return max(map(_width, text.split("\n")))


def _width(text: str) -> int:
    """How many columns of a terminal a text takes.

    >>> _width("tea"), _width("茶"), _width("e" + chr(0x301))
    (3, 2, 1)
    """
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)


def visible(text: str, *, one_line: bool = False) -> str:
    r"""Text with its control characters escaped: a message must not recolour or retitle the terminal of its reader.

    >>> visible("tea\x1b[31m\r") == r"tea\x1b[31m\r", visible("two\nlines") == "two\nlines"
    (True, True)
    >>> visible("two\nlines", one_line=True) == r"two\nlines"
    True
    """
    text = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text).replace("\t", "    ")
    return text.replace("\n", r"\n") if one_line else text


def cell(value: Any) -> str:
    """A value as people read it.

    >>> cell(1234567), cell(["main", "audit"]), cell(None), cell(True), cell(12.345)
    ('1,234,567', 'main, audit', '', 'yes', '12.3')
    """
    if value is None or value is False:
        return ""
    if value is True:
        return "yes"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return str(value)
