"""The audit log: every change, with who made it, what, when, and how much of it, as JSON lines in a bounded file.

    {"v": 1, "at": 1760000000.123, "who": "ann", "from": "10.0.0.7", "what": "purge_queue", "queue": "orders",
     "scope": {"purged": 17}, "outcome": "ok"}

What was refused is there as well, with the error's code as its outcome. Bodies of messages are not. Event records
(`events`) tell what happened to messages, and may lose some; this tells what people and programs did to the server, and
a change is answered after its line is written. When the file has reached half of `[audit] bytes_max`, it becomes
`audit.jsonl.1`, in the place of the one before.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.server.node import Services
from penstock.server.settings import AuditSettings
from penstock.store.layout import AUDIT_NAME, FILE_MODE

_IN_MEMORY = 1_000
"""Lines that are kept of a server without a directory."""
_LISTED_MAX = 20
_REFUSED_MAX = 60
"""Refusals of one caller that are written down in a minute. More are counted: they must not push out the rest."""
_CALLERS_MAX = 1_000
_TEXT_MAX = 200

log = logging.getLogger("penstock.audit")


class AuditEntry(msgspec.Struct, kw_only=True, omit_defaults=False):
    """One change, or one that was refused."""

    v: int = 1
    at: float
    who: str
    peer: str = msgspec.field(name="from", default="")
    what: str
    queue: str | None = None
    scope: dict[str, Any] = {}
    outcome: str = "ok"


_decode = msgspec.json.Decoder(AuditEntry).decode


class Audit:
    """Writes lines, and finds them again, the newest first."""

    def __init__(self, settings: AuditSettings, data: str) -> None:
        self._settings = settings
        self._path = Path(data) / AUDIT_NAME if Path(data).is_dir() else None
        self._lines: deque[bytes] = deque(maxlen=_IN_MEMORY)
        self._refused: dict[str, tuple[int, int]] = {}
        """Caller -> the minute of its last refusal, and how many there were in it."""
        self.clock_s: Callable[[], float] = time.time

    def note(
        self,
        who: str,
        peer: str,
        what: str,
        queue: str | None,
        scope: dict[str, Any] | None = None,
        outcome: str = "ok",
    ) -> None:
        """Somebody changed something, or tried to."""
        if not self._settings.enabled:
            return
        shown = {name: _shown(value) for name, value in (scope or {}).items()}
        at_s = self.clock_s()
        if outcome != "ok":
            left_out = self._count_refusal(who, int(at_s // 60))
            if left_out is None:
                return
            shown |= {"left_out": left_out} if left_out else {}
        entry = AuditEntry(at=at_s, who=who, peer=peer, what=what, queue=queue, scope=shown, outcome=outcome)
        line = msgspec.json.encode(entry) + b"\n"
        if self._path is None:
            self._lines.append(line)
            return
        try:
            self._append(self._path, line)
        except OSError as error:
            log.error("a line of the audit log cannot be written (%s): %s", error, line.decode().strip())

    def _count_refusal(self, who: str, minute: int) -> int | None:
        """How many were left out before this one, which is the first of a minute; None if it is one too many itself."""
        before, count = self._refused.get(who, (minute, 0))
        left_out = max(0, count - _REFUSED_MAX) if before != minute else 0
        count = count + 1 if before == minute else 1
        if len(self._refused) >= _CALLERS_MAX:
            self._refused.clear()
        self._refused[who] = minute, count
        return None if count > _REFUSED_MAX else left_out

    def _append(self, path: Path, line: bytes) -> None:
        """Opened anew for each line: changes are rare, and another process may have begun a new file."""
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            if os.fstat(file).st_size + len(line) > self._settings.bytes_max // 2:
                path.replace(path.with_name(path.name + ".1"))
                os.close(file)
                file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            os.write(file, line)
        finally:
            os.close(file)

    def entries(self, limit: int, before: float | None = None, queue: str | None = None) -> list[AuditEntry]:
        """The newest lines, before a moment, and about one queue, if those are given. A cut line is left out."""
        found: list[AuditEntry] = []
        for line in self._backwards():
            try:
                entry = _decode(line)
            except msgspec.MsgspecError:
                continue
            if (before is None or entry.at < before) and (queue is None or entry.queue == queue):
                found.append(entry)
                if len(found) >= limit:
                    break
        return found

    def _backwards(self) -> list[bytes]:
        if self._path is None:
            return list(reversed(self._lines))
        lines: list[bytes] = []
        for path in (self._path, self._path.with_name(self._path.name + ".1")):
            if path.exists():
                lines += reversed(path.read_bytes().splitlines())
        return lines


def _shown(value: Any) -> Any:
    """What is kept of a part of a request: short texts, and no long lists.

    >>> _shown(list(range(100))), _shown("x" * 300)[-3:]
    ('100 of them', 'xx…')
    """
    if isinstance(value, str):
        return value if len(value) <= _TEXT_MAX else value[: _TEXT_MAX - 1] + "…"
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value] if len(value) <= _LISTED_MAX else f"{len(value)} of them"
    if isinstance(value, dict):
        return {str(name): _shown(each) for name, each in list(value.items())[:_LISTED_MAX]}
    return value if isinstance(value, int | float | bool) or value is None else str(value)[:_TEXT_MAX]


_SHARED = "audit"


def audit_of(services: Services) -> Audit:
    """The audit log of this server: one, whoever writes."""
    found = services.extras.get(_SHARED)
    if found is None:
        found = services.extras[_SHARED] = Audit(services.settings.audit, services.settings.server.data)
    assert isinstance(found, Audit)
    return found
