"""Errors as data, on the wire and in the store: the names of the class and its bases, and the text.

Who reads one raises the first class of the names that it knows: an older client that has never heard of a new kind of
error still gets what that is a kind of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.core.errors import PenstockError

_known: dict[str, type[PenstockError]] = {}


class PackedError(msgspec.Struct, array_like=True):
    """An error as data."""

    names: list[str]
    text: str


def pack_error(error: BaseException) -> PackedError:
    """The error as data. Bugs become a `PenstockError` that says so, and no more.

    >>> from penstock.core.errors import QueueNotFound
    >>> pack_error(QueueNotFound("there is no queue 'x'")).names
    ['QueueNotFound', 'NotFound', 'PenstockError']
    """
    if not isinstance(error, PenstockError):
        return PackedError([PenstockError.__name__], "the server failed in an unexpected way: its log says more")
    names = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, PenstockError)]
    return PackedError(names, str(error))


def unpack_error(packed: PackedError, arguments: Sequence[Any] | None = None) -> PenstockError:
    """The error, to be raised.

    An error that is made of more than its text needs its `arguments`; without them it becomes what it is a kind of.

    >>> unpack_error(PackedError(["BrandNew", "NotFound", "PenstockError"], "gone"))
    NotFound('gone')
    """
    for name in packed.names:
        kind = _class_named(name)
        if kind is not None:
            if not is_made_of_more(kind):
                return kind(packed.text)
            if arguments is not None and name == packed.names[0]:
                return kind(*arguments)
    return PenstockError(packed.text)


def is_made_of_more(kind: type[BaseException]) -> bool:
    """Whether errors of a class are made of more than their text.

    >>> is_made_of_more(PenstockError)
    False
    """
    return any("__init__" in vars(base) for base in kind.__mro__ if issubclass(base, PenstockError))


def _class_named(name: str) -> type[PenstockError] | None:
    if name not in _known:
        _known.update({kind.__name__: kind for kind in _family(PenstockError)})
    return _known.get(name)


def _family(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _family(child)
