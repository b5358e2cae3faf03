"""The server's log: events through `logging`, and a line for each request past it.

Requests are too many for `logging`, which takes longer for a record than the core for a message. `RequestLog` makes
their lines itself, gathers them, and writes them together a few times a second. Both go to the same stream in the same
format: JSON, an object a line, for machines; or text for people. What clients say cannot end a line, nor steer a
terminal: text shows control characters escaped, and a traceback's lines are indented.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from penstock.server.settings import LogSettings

_FLUSH_S = 0.2
_GATHERED_MAX = 1_000
"""Lines after which the log is written at once."""
_LIBRDKAFKA = "%s [%s] %s"
"""The form in which confluent-kafka passes on what librdkafka logs."""
_NUMBERS = re.compile(r"\d+")
_REPEAT_S = 30.0
_LINES_MAX = 1_000
"""Different lines that are remembered."""


class RequestLine(msgspec.Struct):
    """One request, as the log shows it."""

    time: str
    level: str
    protocol: str
    request_id: str
    peer: str
    principal: str
    action: str
    queue: str
    outcome: str
    status: int
    duration_ms: float
    event: str = "request"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "event": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return msgspec.json.encode(entry).decode()


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = printable(record.getMessage())
        text = f"{_timestamp(record.created)} {record.levelname.lower():7} {record.name}: {said}"
        if record.exc_info:
            lines = "".join(traceback.format_exception(*record.exc_info)).rstrip().split("\n")
            text += "".join(f"\n  {printable(line)}" for line in lines)
        return text


class SeldomRepeated(logging.Filter):
    """Lets what librdkafka says again and again through once in a while, and says how often it was said.

    While a broker is away each of its clients logs every attempt to connect, some twenty a second, and nobody would see
    what else there is. Lines that differ in numbers only are the same. What comes in another form is left alone.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._said: dict[str, tuple[float, int]] = {}
        """To each line when it was let through, and how often it has come since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        if record.msg != _LIBRDKAFKA:
            return True
        now_s, said = self._clock_s(), _NUMBERS.sub("", record.getMessage())
        last_s, count = self._said.get(said, (-_REPEAT_S, 0))
        if now_s < last_s + _REPEAT_S:
            self._said[said] = last_s, count + 1
            return False
        if len(self._said) >= _LINES_MAX:
            self._said.clear()
        self._said[said] = now_s, 0
        if count:
            record.msg, record.args = f"{record.getMessage()} (and {count} times before)", ()
        return True


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send everything that is logged to `stream` (by default standard error), as the settings say."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if settings.format == "json" else _TextFormatter())
    handler.addFilter(SeldomRepeated())
    logging.basicConfig(handlers=[handler], level=settings.level.upper(), force=True)
    for library in ("websockets", "asyncio"):
        logging.getLogger(library).setLevel("WARNING")


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RequestLog:
    """A line for each request, or for those that failed."""

    def __init__(self, settings: LogSettings, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_json = settings.format == "json"
        self._notes_all = settings.requests == "all"
        self._notes_errors = settings.requests != "none"
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def wants(self, status: int) -> bool:
        """Whether a request that ended with this status gets a line."""
        return self._notes_all or (status >= 400 and self._notes_errors)

    def note(
        self,
        protocol: str,
        status: int,
        seconds: float,
        *,
        request_id: str = "",
        peer: str = "",
        principal: str = "",
        action: str = "",
        queue: str = "",
        outcome: str = "",
    ) -> None:
        """Add a line; it is written a moment later."""
        principal, action, queue, outcome = (shortened(text) for text in (principal, action, queue, outcome))
        now, duration_ms = _timestamp(time.time()), round(seconds * 1_000, 3)
        level = "error" if status >= 500 else "warning" if status >= 400 else "info"
        line = RequestLine(
            now, level, protocol, request_id, peer, principal, action, queue, outcome, status, duration_ms
        )
        self._lines.append(msgspec.json.encode(line).decode() if self._is_json else _as_text(line))
        if len(self._lines) >= _GATHERED_MAX:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write what was gathered. A log that cannot be written is given up, not waited for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        if lines:
            try:
                self._stream.write("\n".join(lines) + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                self._notes_all = self._notes_errors = False


def _as_text(line: RequestLine) -> str:
    who = line.principal or line.peer or "-"
    what = f"{line.protocol} {line.action or '-'} {line.queue or '-'}"
    how = f"{line.status} {line.outcome} {line.duration_ms} ms"
    return printable(f"{line.time} {line.level:7} {what}: {how} (request {line.request_id or '-'}, {who})")


def shortened(text: str, bytes_max: int = 300) -> str:
    r"""A text that has at most so many bytes as JSON, which writes one control character as six.

    >>> shortened("orders"), shortened("x" * 400)[-2:], len(shortened("\x01" * 400))
    ('orders', 'x…', 50)
    """
    if len(text) * 6 <= bytes_max or len(encoded := msgspec.json.encode(text[: bytes_max + 1])) <= bytes_max + 2:
        return text
    text = text[:bytes_max]
    while len(encoded) > bytes_max - 1:  # with its quotes, and the ellipsis
        text = text[: len(text) * (bytes_max - 1) // len(encoded)]
        encoded = msgspec.json.encode(text)
    return text + "…"


def printable(text: str) -> str:
    r"""A text that is one line and steers no terminal: whatever cannot be printed is escaped.

    >>> printable("caf\u00e9\n\x1b[2J") == "caf\u00e9" + r"\n\x1b[2J"
    True
    """
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else ascii(each)[1:-1] for each in text])
