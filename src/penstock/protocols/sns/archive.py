"""Archive and replay policies of FIFO topics. Pure: JSON in, times out.

A topic with an archive has a consumer (`sns-archive`) that stands where the archive begins: so its queue keeps what all
subscriptions have got. The queue has no retention of its own then; the consumer moves on with time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock.protocols.sns.wire import invalid, json_object

_DAY_MS = 24 * 3_600 * 1_000
_DAYS_MAX = 365


def archived_ms(text: str) -> int:
    """How long an `ArchivePolicy` keeps messages; 0: not at all.

    >>> archived_ms('{"MessageRetentionPeriod": "2"}'), archived_ms("{}"), archived_ms("")
    (172800000, 0, 0)
    """
    policy = json_object("ArchivePolicy", text) if text else {}
    if not policy:
        return 0
    days = str(policy.get("MessageRetentionPeriod"))
    if set(policy) != {"MessageRetentionPeriod"} or not days.isdecimal():
        raise invalid("ArchivePolicy: MessageRetentionPeriod must be a number of days")
    if not 1 <= int(days) <= _DAYS_MAX:
        raise invalid(f"ArchivePolicy: MessageRetentionPeriod must be between 1 and {_DAYS_MAX}")
    return int(days) * _DAY_MS


def replayed_between(text: str) -> tuple[int, int | None] | None:
    """The first and the last time of a `ReplayPolicy`; None if there is none.

    >>> replayed_between('{"PointType": "Timestamp", "StartingPoint": "2026-01-01T00:00:00.5Z"}')
    (1767225600500, None)
    """
    policy = json_object("ReplayPolicy", text) if text else {}
    if not policy:
        return None
    if policy.get("PointType") != "Timestamp" or not set(policy) <= {"PointType", "StartingPoint", "EndingPoint"}:
        raise invalid("ReplayPolicy: PointType must be Timestamp")
    start = _time_ms("StartingPoint", policy.get("StartingPoint"))
    end = _time_ms("EndingPoint", policy["EndingPoint"]) if "EndingPoint" in policy else None
    if end is not None and end < start:
        raise invalid("ReplayPolicy: EndingPoint must be after StartingPoint")
    return start, end


def _time_ms(name: str, value: Any) -> int:
    try:
        if not isinstance(value, str):
            raise ValueError
        found = datetime.fromisoformat(value)
        return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError):
        raise invalid(f"ReplayPolicy: {name} must be a time, as in 2026-01-31T12:00:00.000Z") from None
