"""What a handle was given, looked at before a store in this process takes it.

A server reads commands from bytes, and refuses text or numbers where they do not belong. A store in this process gets
the very objects. One of the wrong kind would be met deep inside a step and be taken for a bug, which has the store
opened again; or it would be kept, and the store could never be opened again. So both answer alike. Text or numbers of a
class of their own (an enum's, numpy's) are taken for what they are, and go on as plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

import msgspec

from penstock.core.commands import Command
from penstock.core.errors import InvalidRequest
from penstock.core.handlers.checks import plain

_INT_MAX = 2**63 - 1
_WORDS: dict[type, str] = {str: "text", int: "a whole number", bytes: "bytes", NoneType: "None"}
"""The kinds that are looked at, as people call them."""


class _Field(NamedTuple):
    """A field of a command that holds text or numbers, or a list of them."""

    name: str
    kinds: tuple[type, ...]
    items: tuple[type, ...]
    """What may be in its list; empty if it is none."""


class _Kind(NamedTuple):
    """A kind of command."""

    fields: list[_Field]
    values: Callable[[Command], tuple[Any, ...]]
    """What is in these fields."""
    known: dict[tuple[type, ...], tuple[int, ...]]
    """Kinds of values that were good before, and which of them are to be looked at more closely all the same."""


def check(command: Command) -> None:
    """`InvalidRequest` if something in a command is not of the kind that it has to be.

    >>> from penstock.core.commands import Receive
    >>> check(Receive(queue="orders", limit="5"))
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidRequest: limit is '5': it must be a whole number
    """
    kind = _kinds.get(type(command)) or _learn(type(command))
    values = kind.values(command)
    found = tuple(map(type, values))
    closer = kind.known.get(found)
    if closer is None:
        _check_kinds(kind.fields, values)
        closer = tuple(at for at, one in enumerate(found) if issubclass(one, int | list))
        if all(one in _WORDS or one is list for one in found):
            kind.known[found] = closer
        else:
            _make_plain(command, kind.fields, values)
    for at in closer:
        _look_closer(kind.fields[at], values[at])


def _check_kinds(fields: list[_Field], values: tuple[Any, ...]) -> None:
    for field, value in zip(fields, values, strict=True):
        if not _is_one(value, field.kinds):
            raise InvalidRequest(f"{field.name} is {value!r}: it must be {_words(field.kinds)}")


def _make_plain(command: Command, fields: list[_Field], values: tuple[Any, ...]) -> None:
    for field, value in zip(fields, values, strict=True):
        if type(value) not in _WORDS and not isinstance(value, list):
            setattr(command, field.name, plain(value))


def _look_closer(field: _Field, value: Any) -> None:
    """At how large a number is, and what is in a list."""
    if not isinstance(value, list):
        _check_size(field, value)
        return
    if not set(map(type, value)) <= _plain(field.items):
        for at, item in enumerate(value):
            if isinstance(item, Command):
                check(item)
            elif not _is_one(item, field.items):
                raise InvalidRequest(f"{item!r} is one of {field.name}: each must be {_words(field.items)}")
            elif type(item) not in _WORDS:
                value[at] = plain(item)
    if field.items == (int,) and value:
        _check_size(field, min(value))
        _check_size(field, max(value))


def _check_size(field: _Field, number: int) -> None:
    if not -_INT_MAX <= number <= _INT_MAX:
        raise InvalidRequest(f"{field.name} is {number!r}: that is too large")


def _is_one(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of these kinds. True is no number here: as one it would be kept, and not be read."""
    return isinstance(value, kinds) and not isinstance(value, bool)


@cache
def _plain(kinds: tuple[type, ...]) -> frozenset[type]:
    """Of these, what need not be looked at one by one."""
    return frozenset(kind for kind in kinds if kind in _WORDS)


def _words(kinds: tuple[type, ...]) -> str:
    return " or ".join(_WORDS.get(kind, f"a {kind.__name__}") for kind in kinds)


_kinds: dict[type[Command], _Kind] = {}


def _learn(command: type[Command]) -> _Kind:
    """Which fields of a command are looked at."""
    found = [_field(each.name, each.type) for each in msgspec.structs.fields(command)]
    fields = [field for field in found if field is not None]
    get = attrgetter(*(field.name for field in fields)) if fields else lambda _: ()
    kind = _kinds[command] = _Kind(fields, get if len(fields) != 1 else lambda one: (get(one),), {})
    return kind


def _field(name: str, annotation: Any) -> _Field | None:
    """A field, if it is one to look at: text, numbers, bytes; lists of them, or of commands.

    >>> _field("groups", list[str | None] | None)
    _Field(name='groups', kinds=(<class 'list'>, <class 'NoneType'>), items=(<class 'str'>, <class 'NoneType'>))
    >>> _field("ticket", Any) is None
    True
    """
    kinds: list[type] = []
    items: tuple[type, ...] = ()
    for kind in _alternatives(annotation):
        if get_origin(kind) is list:
            items = tuple(_alternatives(get_args(kind)[0]))
            if not all(item in _WORDS or issubclass(item, Command) for item in items):
                return None
            kinds.append(list)
        elif kind in _WORDS:
            kinds.append(kind)
        else:
            return None
    return _Field(name, tuple(kinds), items)


def _alternatives(annotation: Any) -> list[Any]:
    return list(get_args(annotation)) if get_origin(annotation) not in (None, list, dict, tuple) else [annotation]
