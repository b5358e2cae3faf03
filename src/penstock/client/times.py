"""Times between the API, which speaks seconds, and the core, which counts milliseconds."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from penstock.core.errors import InvalidRequest

Seconds = float | timedelta
"""A length of time: seconds, or a timedelta."""
Moment = float | datetime
"""A point in time: seconds since 1970, or a datetime."""


def length_ms(length: Seconds | None, what: str) -> int | None:
    """A length of time in milliseconds; None stays None.

    >>> length_ms(1.5, "lease"), length_ms(timedelta(minutes=1), "lease"), length_ms(None, "lease")
    (1500, 60000, None)
    """
    if length is None:
        return None
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds < 0:
        raise InvalidRequest(f"{what} is {length!r}: give seconds, from 0 up")
    return round(seconds * 1_000)


def moment_ms(moment: Moment | None, what: str) -> int | None:
    """A point in time in milliseconds since 1970; None stays None.

    >>> from datetime import timezone
    >>> moment_ms(datetime(1970, 1, 1, 0, 0, 2, tzinfo=timezone.utc), "due"), moment_ms(2.5, "due")
    (2000, 2500)
    """
    if moment is None:
        return None
    seconds = moment.timestamp() if isinstance(moment, datetime) else moment
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise InvalidRequest(f"{what} is {moment!r}: give a datetime, or seconds since 1970")
    return round(seconds * 1_000)


def seconds(ms: int) -> float:
    """Milliseconds as seconds.

    >>> seconds(1500)
    1.5
    """
    return ms / 1_000
