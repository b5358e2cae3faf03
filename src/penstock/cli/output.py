"""What commands print: tables for people, one JSON object a line for programs, progress on a terminal."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from penstock.cli.command import Option

if TYPE_CHECKING:
    from rich.console import Console

    from penstock import Message, PeekedMessage, Record

AsJson = Annotated[bool, Option("--json", help="Print JSON, one object a line.")]
Row = Mapping[str, Any]
HEADINGS = {"sent_per_s": "in/s", "acked_per_s": "out/s", "failed_per_s": "fail/s", "receivers": "waiting"}
WORD_MAX = 12
"""A column gets at least so much room, if its cells need it."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters but for those that lay text out: tab and newline."""


def print_rows(rows: Iterable[Row], as_json: bool, title: str) -> None:
    """Print rows that belong together."""
    if as_json:
        print_json(rows)
    else:
        stdout().print(table(list(rows), title))


def print_json(rows: Iterable[Row]) -> None:
    """Print one object a line, in UTF-8 whatever the terminal's encoding is, and have it out of the process."""
    import msgspec

    sys.stdout.flush()
    sys.stdout.buffer.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    sys.stdout.buffer.flush()


def print_done(text: str, row: Row, as_json: bool) -> None:
    """Say what was done: a sentence for people, its facts for programs."""
    if as_json:
        print_json([row])
    else:
        print(text, flush=True)


def table(rows: Sequence[Row], title: str) -> Any:
    """Rows as a table, without columns that are empty.

    What looks like markup in a message is shown as it is, and what would steer the terminal is shown escaped.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return Text(f"{title}: nothing")
    drawn = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    columns = dict.fromkeys(column for row in rows for column in row if cell(row[column]))
    for column in columns:
        numbers = all(isinstance(row.get(column, 0), int | float) for row in rows)
        heading = HEADINGS.get(column, column.replace("_", " "))
        longest = max(len(heading), *(len(visible(cell(row.get(column, "")))) for row in rows))
        width = min(longest, WORD_MAX)
        justify: Literal["left", "right"] = "right" if numbers else "left"
        drawn.add_column(heading, overflow="fold", min_width=width, no_wrap=numbers, justify=justify)
    for row in rows:
        drawn.add_row(*(Text(visible(cell(row.get(column, "")))) for column in columns))
    return drawn


def visible(text: str) -> str:
    r"""Text with its control characters escaped: a message must not recolour or retitle the terminal of its reader.

    >>> visible("tea\x1b[31m\r") == r"tea\x1b[31m\r", visible("two\nlines") == "two\nlines"
    (True, True)
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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


def rendered(drawn: Any) -> bytes:
    """A table as the bytes that `stdout().print` writes."""
    console = stdout()
    with console.capture() as captured:
        console.print(drawn)
    return captured.get().encode(sys.stdout.encoding, "backslashreplace")


def stdout() -> Console:
    """Where results go."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False)


# -- messages ----------------------------------------------------------------------------------------------------------


def described(message: Message | PeekedMessage | Record) -> dict[str, Any]:
    """A message as a row. Its fields stay what they are from version to version."""
    row: dict[str, Any] = {"id": message.id, "sequence": message.sequence} | body_of(message.body)
    row["sent_at"] = round(message.sent_at, 3)
    if message.attributes:
        row["attributes"] = {name: plain_value(value) for name, value in message.attributes.items()}
    if message.group is not None:
        row["group"] = message.group
    return row


def for_people(row: Row) -> dict[str, Any]:
    """A message's row without what only programs want; bytes that are no text are shown escaped."""
    shown = {name: value for name, value in row.items() if name not in ("sent_at", "body_base64")}
    if "body_base64" in row:
        shown["body"] = base64.b64decode(row["body_base64"]).decode(errors="backslashreplace")
    return shown


def body_of(body: bytes) -> dict[str, str]:
    """A body as JSON can hold it.

    >>> body_of(b"tea"), body_of(bytes([255]))
    ({'body': 'tea'}, {'body_base64': '/w=='})
    """
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def plain_value(value: str | bytes | int | float) -> Any:
    """An attribute as JSON can hold it."""
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


# -- progress ----------------------------------------------------------------------------------------------------------


class Progress(Protocol):
    """Told how far something is."""

    def __call__(self, done: float, total: float | None = None) -> None:
        """So much is done, of so much if that is known."""
        ...


@contextmanager
def progress(what: str, *, total: float | None = None, unit: str = "messages") -> Iterator[Progress]:
    """A bar on the error stream while the block runs, if that is a terminal; nothing at all otherwise."""
    if not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn())
    with Bars(*columns, console=Console(file=sys.stderr), transient=True) as bars:
        task = bars.add_task(what, total=total)

        def update(done: float, total: float | None = None) -> None:
            bars.update(task, completed=done, total=total)

        yield update


def _silent(done: float, total: float | None = None) -> None:
    return
