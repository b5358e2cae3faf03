"""Times between the API, which speaks seconds, and the core, which counts milliseconds.

A queue's settings as the API takes them: lengths of time in seconds or as `timedelta`.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.core.errors import InvalidRequest
from penstock.core.queues.config import QueueConfig, kind_of, read_changes

if TYPE_CHECKING:
    from penstock.client.queue_settings import QueueSettings

Seconds = float | timedelta
"""A length of time: seconds, or a timedelta."""
Moment = float | datetime
"""A point in time: seconds since 1970, or a datetime."""

_SECONDS_MAX = 1e15
"""Some thirty million years. Larger numbers mean nothing, and in milliseconds no command can carry them."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)


def _shown(length: Any) -> str:
    return f"{length:.15g}" if isinstance(length, float) else repr(length)


def length_ms(length: Seconds | None, what: str) -> int | None:
    """A length of time in milliseconds; None stays None.

    >>> length_ms(1.5, "lease"), length_ms(timedelta(minutes=1), "lease"), length_ms(None, "lease")
    (1500, 60000, None)
    """
    if length is None:
        return None
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if not _is_number(seconds) or not 0 <= seconds <= _SECONDS_MAX:
        bounds = f"at most {_SECONDS_MAX:,.0f}" if _is_number(seconds) and seconds > 0 else "0 or more"
        raise InvalidRequest(f"{what} is {_shown(length)}: give seconds, {bounds}")
    return round(seconds * 1_000)


def lease_length_ms(lease: Seconds) -> int:
    """A lease in milliseconds. None is refused: 0 would give the message back, and nobody means that by it.

    >>> lease_length_ms(0), lease_length_ms(1.5)
    (0, 1500)
    """
    ms = length_ms(lease, "lease")
    if ms is None:
        raise InvalidRequest("lease is None: give seconds, from now on; 0 releases the message")
    return ms


def moment_ms(moment: Moment | None, what: str) -> int | None:
    """A point in time in milliseconds since 1970; None stays None.

    >>> from datetime import timezone
    >>> moment_ms(datetime(1970, 1, 1, 0, 0, 2, tzinfo=timezone.utc), "due"), moment_ms(2.5, "due")
    (2000, 2500)
    """
    if moment is None:
        return None
    seconds = moment.timestamp() if isinstance(moment, datetime) else moment
    if not _is_number(seconds) or not -_SECONDS_MAX <= seconds <= _SECONDS_MAX:
        raise InvalidRequest(f"{what} is {moment!r}: give a datetime, or seconds since 1970")
    return round(seconds * 1_000)


def seconds(ms: int) -> float:
    """Milliseconds as seconds.

    >>> seconds(1500)
    1.5
    """
    return ms / 1_000


def changes_of(settings: QueueSettings) -> dict[str, Any]:
    """The settings as the core names them.

    >>> changes_of({"lease": timedelta(minutes=1), "max_receives": 3})
    {'lease_ms': 60000, 'max_receives': 3}
    >>> changes_of({"leese": 5})
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidConfig: there is no setting 'leese'; the settings are: kind, lease, ...
    """
    return read_changes(
        {name: each.total_seconds() if isinstance(each, timedelta) else each for name, each in settings.items()}
    )


def config_of(name: str, settings: QueueSettings) -> QueueConfig:
    """The configuration of a new queue, checked.

    >>> config_of("orders.fifo", {"lease": 5}).kind
    'fifo'
    """
    changes = changes_of(settings)
    return QueueConfig().changed(changes | {"kind": kind_of(name, changes.get("kind"))})
