"""How the model says no."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Outcome = Any
"""A reply, or the `PenstockError` that was raised."""


class Violation(AssertionError):
    """The broker did something that the rules do not allow."""


def demand(condition: object, message: str | Callable[[], str]) -> None:
    """Raise `Violation` unless the condition holds; a message that is costly to make is made then only."""
    if not condition:
        raise Violation(message if isinstance(message, str) else message())
