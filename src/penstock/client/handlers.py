"""What a listener has to know of its handler: whether it wants a unit of work."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from penstock.core.errors import InvalidRequest

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def wants_unit_of_work(handler: Callable[..., Any]) -> bool:
    """Whether a handler is called with `(message, tx)` and not with `(message)` alone.

    It is when it needs two arguments: a second one with a default is the handler's own.

    >>> def store(message, tx): ...
    >>> def show(message, width=80): ...
    >>> wants_unit_of_work(store), wants_unit_of_work(show), wants_unit_of_work([].append)
    (True, False, False)
    """
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # something built in, which does not say
        return False
    needed = [each for each in parameters if each.default is each.empty and each.kind in _POSITIONAL]
    keywords = [each.name for each in parameters if each.default is each.empty and each.kind is each.KEYWORD_ONLY]
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    takes_one = bool([each for each in parameters if each.kind in _POSITIONAL]) or takes_any
    if keywords or len(needed) > 2 or not takes_one:
        raise InvalidRequest(
            f"the handler {getattr(handler, '__name__', handler)!r} cannot be called with (message) or (message, tx): "
            "let it take one or two arguments"
        )
    return len(needed) == 2
