"""What a listener has to know of its handler: whether it wants a unit of work."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from penstock.core.errors import InvalidRequest

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


_GENERATOR = "the handler {name!r} is a generator: nothing of it would run, so let it return, and not yield"


def check_callable(handler: Callable[..., Any]) -> None:
    """`InvalidRequest` for what cannot be called, and for what does nothing when it is.

    >>> check_callable(print)
    """
    name = getattr(handler, "__name__", handler)
    if not callable(handler):
        raise InvalidRequest(f"the handler is {handler!r}: give a function that takes a message")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidRequest(_GENERATOR.format(name=name))


def check_result(handler: Callable[..., Any], result: Any) -> None:
    """`InvalidRequest` if a handler has only begun: it turned out to be a generator, and its work is not done."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise InvalidRequest(_GENERATOR.format(name=getattr(handler, "__name__", handler)))


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
