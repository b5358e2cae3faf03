"""What commands print: tables for people, one JSON object a line for programs, progress on a terminal."""

from __future__ import annotations

import base64
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from penstock.cli.command import Option
from penstock.tables import Row, table

if TYPE_CHECKING:
    from penstock import Message, PeekedMessage, Record

AsJson = Annotated[bool, Option("--json", help="Print JSON, one object per line.")]


def print_rows(rows: Iterable[Row], as_json: bool, title: str) -> None:
    """Print rows that belong together."""
    if as_json:
        print_json(rows)
    else:
        sys.stdout.write(table(list(rows), title))
        sys.stdout.flush()


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

Told = Callable[[float, float | None], None]
"""Told how much is done, of how much if that is known."""

SLOW_SECONDS = 1.5
SHOWN_AFTER_SECONDS, DRAWN_EVERY_SECONDS, BAR_COLUMNS = 0.2, 0.1, 30


@contextmanager
def progress(what: str, unit: str = "messages", *, typed: bool = False) -> Iterator[Told]:
    """A bar on the error stream while the block runs, if that is a terminal, and nobody is typing there.

    What is quick shows none.
    """
    is_seen = sys.stderr.isatty() and not typed
    draw_at = time.monotonic() + SHOWN_AFTER_SECONDS
    is_drawn = False

    def tell(done: float, total: float | None) -> None:
        nonlocal draw_at, is_drawn
        if not is_seen or time.monotonic() < draw_at:
            return
        part = min(1.0, done / total) if total else 0.0
        bar = f"[{'#' * int(part * BAR_COLUMNS):{BAR_COLUMNS}}] {part:4.0%}  " if total else ""
        print(f"\r{what}  {bar}{done:,.0f} {unit}\x1b[K", end="", file=sys.stderr, flush=True)
        draw_at, is_drawn = time.monotonic() + DRAWN_EVERY_SECONDS, True

    try:
        yield tell
    finally:
        if is_drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def told_if_slow(text: str) -> Iterator[None]:
    """Say on the error stream what the block waits for, if that is a terminal and it takes more than a moment."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(SLOW_SECONDS, print, (f"penstock: {text}",), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def counted(count: int, what: str) -> str:
    """So many of something.

    >>> counted(1, "message"), counted(1_200, "message"), counted(0, "finding")
    ('1 message', '1,200 messages', '0 findings')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"
