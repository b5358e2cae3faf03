"""The audit log: every change, with who made it, what, when, and how much of it, as JSON lines in a bounded file.

    {"v": 1, "at": 1760000000.123, "who": "ann", "from": "10.0.0.7", "what": "purge_queue", "queue": "orders",
     "scope": {"purged": 17}, "outcome": "ok"}

What was refused is there as well, with the error's code as its outcome. Bodies of messages are not. Event records
(`events`) tell what happened to messages, and may lose some; this tells what people and programs did to the server, and
a change is answered after its line is written. When the file has reached half of `[audit] bytes_max`, its lines go to
`audit.jsonl.1`, which then has the newest of both files, half of `bytes_max` again. Callers choose names, may be
refused as often as they like, and may repeat what they may change: so that this does not push out the rest, a line has
at most 2 KiB, an hour a limited number of refusals, and of the older lines each caller keeps a fair share.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.server.auth import STRANGER
from penstock.server.log import shortened
from penstock.server.node import Services
from penstock.server.settings import AuditSettings
from penstock.store.layout import AUDIT_NAME, FILE_MODE

_IN_MEMORY = 1_000
"""Lines that are kept of a server without a directory."""
_LISTED_MAX = 20
_REFUSED_MAX, _ALL_REFUSED_MAX = 60, 600
"""Refusals of one caller, and of all, that are written down in an hour. More are counted."""
_HOUR_S = 3_600
_CALLERS_MAX = 1_000
"""Callers whose refusals are counted one by one. Further ones are counted as one."""
_TEXT_MAX, _PART_MAX, _SCOPE_MAX = 160, 600, 1_000
"""Bytes of a text, of a part of a scope, and of all parts: as JSON."""
_PIECES = frozenset({"contains", "error", "group"})
"""Parts that may be pieces of messages. On a server with masks they are not written down."""

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


class _Caller(msgspec.Struct):
    who: str = ""


_decode = msgspec.json.Decoder(AuditEntry).decode
_decode_who = msgspec.json.Decoder(_Caller).decode


class Audit:
    """Writes lines, and finds them again, the newest first."""

    def __init__(self, settings: AuditSettings, data: str, *, is_masked: bool = False) -> None:
        self._settings = settings
        self._is_masked = is_masked
        self._path = Path(data) / AUDIT_NAME if Path(data).is_dir() else None
        self._lines: deque[bytes] = deque(maxlen=_IN_MEMORY)
        self._refused: dict[str, tuple[int, int]] = {}
        """Caller -> its refusals of this hour that are written down, and how many were left out since the last one."""
        self._hour = self._written = 0
        self.clock_s: Callable[[], float] = time.time

    def note(
        self,
        who: str,
        peer: str,
        what: str,
        queue: str | None,
        scope: dict[str, Any] | None = None,
        outcome: str = "ok",
        *,
        is_daily: bool = False,
    ) -> None:
        """Somebody changed something, or tried to. `is_daily`: it needs no right to change, and counts as a refusal."""
        is_strange, is_done = who == STRANGER.name, outcome == "ok"
        if not self._settings.enabled or (is_strange and not is_done):
            return
        who, peer, what, outcome = (shortened(text, _TEXT_MAX) for text in (who, peer, what, outcome))
        shown: dict[str, Any] = {}
        at_s = self.clock_s()
        if is_strange or is_daily or not is_done:
            left_out = self._count_refusal(who, int(at_s // _HOUR_S))
            if left_out is None:
                return
            shown |= {"left_out": left_out} if left_out else {}
        shown |= self._scope(scope or {})
        queue = None if queue is None else shortened(queue, _TEXT_MAX)
        entry = AuditEntry(at=at_s, who=who, peer=peer, what=what, queue=queue, scope=shown, outcome=outcome)
        line = msgspec.json.encode(entry) + b"\n"
        if self._path is None:
            self._lines.append(line)
            return
        try:
            self._append(self._path, line)
        except OSError as error:
            log.error("a line of the audit log cannot be written (%s): %s", error, line.decode().strip())

    def _scope(self, scope: dict[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        room = _SCOPE_MAX
        for name, value in scope.items():
            kept = "•••" if self._is_masked and name in _PIECES else _shown(value)
            size = len(msgspec.json.encode({name: kept}))
            if size <= room:
                shown[name] = kept
                room -= size
        return shown

    def _count_refusal(self, who: str, hour: int) -> int | None:
        """How many were left out before this one, of this caller and of those that are counted as one.

        None if it is one too many itself.
        """
        if hour != self._hour:
            self._hour, self._written = hour, 0
            self._refused = {each: (0, left_out) for each, (_, left_out) in self._refused.items() if left_out}
        if who not in self._refused and len(self._refused) >= _CALLERS_MAX:
            who = ""
        count, left_out = self._refused.get(who, (0, 0))
        if count >= _REFUSED_MAX or self._written >= _ALL_REFUSED_MAX:
            self._refused[who] = count, left_out + 1
            return None
        self._refused[who] = count + 1, 0
        self._written += 1
        count, others = self._refused.get("", (0, 0))
        if others:
            self._refused[""] = count, 0
        return left_out + others

    def _append(self, path: Path, line: bytes) -> None:
        """Opened anew for each line: changes are rare, and another process may have begun a new file."""
        if path.exists() and path.stat().st_size + len(line) >= self._settings.bytes_max // 2:
            self._put_aside(path)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            size = os.fstat(file).st_size
            is_cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"  # by a full disk, or a power failure
            os.write(file, b"\n" + line if is_cut else line)
        finally:
            os.close(file)

    def _put_aside(self, path: Path) -> None:
        """Move all lines to the older file, and drop the oldest ones of the callers that have the most."""
        older, new = path.with_name(path.name + ".1"), path.with_name(path.name + ".new")
        there, lines = (each.read_bytes().splitlines() if each.exists() else [] for each in (older, path))
        if there and there[-1] == lines[-1]:  # an end came between the last two steps below
            path.unlink()
            return
        kept = fair_share([line + b"\n" for line in (*there, *lines)], self._settings.bytes_max // 2)
        try:
            new.touch(FILE_MODE)
            new.write_bytes(b"".join(kept))
        except OSError:  # no space for a third file
            new.unlink(missing_ok=True)
            path.replace(older)
        else:
            new.replace(older)
            path.unlink()

    def entries(self, limit: int, before: float | None = None, queue: str | None = None) -> list[AuditEntry]:
        """The newest lines, before a moment, and about one queue, if those are given. A cut line is left out."""
        found: list[AuditEntry] = []
        queue = None if queue is None else shortened(queue, _TEXT_MAX)
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


def fair_share(lines: Sequence[bytes], room: int) -> list[bytes]:
    """The newest lines that fit, in their order: who has few keeps all of them, and the others keep equally much.

    >>> ann, ben = b'{"who":"ann","at":%d}', b'{"who":"ben","at":%d}'
    >>> lines = [ann % 0, *(ben % number for number in range(1, 10))]
    >>> b" ".join(fair_share(lines, 3 * len(lines[0])))
    b'{"who":"ann","at":0} {"who":"ben","at":8} {"who":"ben","at":9}'
    """
    callers = [_who_of(line) for line in lines]
    sizes: dict[str, int] = {}
    for who, line in zip(callers, lines, strict=True):
        sizes[who] = sizes.get(who, 0) + len(line)
    left = dict.fromkeys(sizes, 0)
    for others, who in enumerate(sorted(sizes, key=sizes.__getitem__), 1 - len(sizes)):
        left[who] = min(sizes[who], room // (1 - others))
        room -= left[who]
    kept: list[bytes] = []
    for who, line in zip(reversed(callers), reversed(lines), strict=True):
        left[who] -= len(line)
        if left[who] >= 0:
            kept.append(line)
    return kept[::-1]


def _who_of(line: bytes) -> str:
    try:
        return _decode_who(line).who
    except msgspec.MsgspecError:
        return ""


def _shown(value: Any) -> Any:
    """What is kept of a part of a request: short texts, and no long lists. What is long all the same is a text.

    >>> _shown(list(range(100))), _shown("x" * 300)[-3:], _shown({"a": [1, "b"]})
    ('100 of them', 'xx…', {'a': [1, 'b']})
    """
    kept = _parts(value)
    encoded = msgspec.json.encode(kept)
    return kept if len(encoded) <= _PART_MAX else shortened(encoded.decode(), _PART_MAX)


def _parts(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_parts(each) for each in value] if len(value) <= _LISTED_MAX else f"{len(value)} of them"
    if isinstance(value, dict):
        return {str(name): _parts(each) for name, each in list(value.items())[:_LISTED_MAX]}
    return value if isinstance(value, int | float | bool) or value is None else shortened(str(value), _TEXT_MAX)


_SHARED = "audit"


def audit_of(services: Services) -> Audit:
    """The audit log of this server: one, whoever writes."""
    found = services.extras.get(_SHARED)
    if found is None:
        settings = services.settings
        is_masked = bool(settings.console.mask)
        found = services.extras[_SHARED] = Audit(settings.audit, settings.server.data, is_masked=is_masked)
    assert isinstance(found, Audit)
    return found
