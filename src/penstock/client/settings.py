"""A queue's settings as the API takes them: lengths of time in seconds or as `timedelta`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock.client.queue_settings import QueueSettings
from penstock.core.queues.config import QueueConfig, kind_of, read_changes


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
