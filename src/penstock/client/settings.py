"""A queue's settings as the API takes them: lengths of time in seconds, everything else as in `QueueConfig`."""

from __future__ import annotations

from typing import Any, TypedDict

from penstock.client.times import Seconds, length_ms
from penstock.core.config import Backoff, Kind, PolicyName, QueueConfig, Scope, kind_of
from penstock.core.errors import InvalidConfig

_LENGTHS = ("lease", "retention", "delay", "receive_wait", "consumer_retention")
"""Settings that are seconds here and milliseconds, with `_ms` at their end, in the core."""


class QueueSettings(TypedDict, total=False):
    """What `create_queue` and `configure` take. Times are seconds; see `QueueConfig` for ranges and meaning."""

    kind: Kind
    lease: Seconds
    retention: Seconds | None
    retention_bytes: int | None
    delay: Seconds
    message_bytes_max: int
    receive_wait: Seconds
    max_receives: int
    dead_letter: str | None
    backoff: Backoff
    policy: PolicyName
    consume_times: int
    deliver_unsynced: bool
    partitions: int
    content_dedup: bool
    dedup_scope: Scope
    throughput_scope: Scope
    throughput_per_second: int | None
    in_flight_max: int
    consumer_retention: Seconds | None
    tags: dict[str, str]
    labels: dict[str, str]


def changes_of(settings: QueueSettings) -> dict[str, Any]:
    """The settings as the core names them.

    >>> changes_of({"lease": 5, "max_receives": 3})
    {'lease_ms': 5000, 'max_receives': 3}
    >>> changes_of({"leese": 5})
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidConfig: there is no setting 'leese'; the settings are: kind, lease, ...
    """
    changes: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in QueueSettings.__annotations__:
            known = ", ".join(QueueSettings.__annotations__)
            raise InvalidConfig(f"there is no setting {name!r}; the settings are: {known}")
        if name in _LENGTHS:
            changes[f"{name}_ms"] = length_ms(value, name)  # type: ignore[arg-type]
        else:
            changes[name] = value
    return changes


def config_of(name: str, settings: QueueSettings) -> QueueConfig:
    """The configuration of a new queue, checked.

    >>> config_of("orders.fifo", {"lease": 5}).kind
    'fifo'
    """
    return QueueConfig().changed(changes_of(settings) | {"kind": kind_of(name, settings.get("kind"))})
