"""Opening a store: from a path to a handle.

What a handle was given is looked at before the store takes it. A server reads commands from bytes, and refuses text or
numbers where they do not belong. A store in this process gets the very objects. One of the wrong kind would be met deep
inside a step and be taken for a bug, which has the store opened again; or it would be kept, and the store could never
be opened again. So both answer alike. Text or numbers of a class of their own (an enum's, numpy's) are taken for what
they are, and go on as plain ones.

A process that was forked has a copy of the shard, and the same open files: what both write there would overwrite each
other. So only the process that opened a store uses it, and closes it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from penstock.client.aio.penstock import AsyncPenstock
from penstock.client.content import Identity
from penstock.client.remote.address import SCHEMES, shown
from penstock.client.sync.penstock import Penstock
from penstock.core.commands import Command, Damage
from penstock.core.errors import InvalidRequest
from penstock.core.handlers.checks import plain
from penstock.server.clock import Clock, SystemClock
from penstock.server.engines import opener_for
from penstock.server.read_only import AsyncReadingShard, ReadingShard
from penstock.server.shard import Shard
from penstock.server.tasks import AsyncShard
from penstock.server.threads import ThreadedShard
from penstock.store.base import Store
from penstock.store.memory import MEMORY
from penstock.store.view import StoreView

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
        for field, value in zip(kind.fields, values, strict=True):
            if not _is_one(value, field.kinds):
                raise InvalidRequest(f"{field.name} is {value!r}: it must be {_words(field.kinds)}")
        closer = tuple(at for at, one in enumerate(found) if issubclass(one, int | list))
        if all(one in _WORDS or one is list for one in found):
            kind.known[found] = closer
        else:
            for field, value in zip(kind.fields, values, strict=True):
                if type(value) not in _WORDS and not isinstance(value, list):
                    setattr(command, field.name, plain(value))
    for at in closer:
        _look_closer(kind.fields[at], values[at])


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


_S = TypeVar("_S", bound=ThreadedShard | AsyncShard)


class _Own(Generic[_S]):
    """What threads and tasks have of it alike."""

    read_only = False

    def __init__(self, shard: _S) -> None:
        self._shard = shard
        self._pid = os.getpid()

    def now_ms(self) -> int:
        return self._shard.now_ms()

    @property
    def identity(self) -> Identity:
        return self._shard.identity

    @property
    def reports(self) -> list[Damage]:
        return self._shard.reports

    def _refuse_child(self) -> None:
        raise InvalidRequest(
            "this store was opened by the parent, before a fork, and only one process at a time can use it: open "
            "another one in the child, or run a server (penstock serve) and use penstock.connect in both"
        )


class OwnShard(_Own[ThreadedShard]):
    """A `ThreadedShard` that takes nothing but commands."""

    def call(self, command: Command) -> Any:
        if self._pid != os.getpid():
            self._refuse_child()
        check(command)
        return self._shard.call(command)

    def sleep(self, seconds: float) -> None:
        self._shard.sleep(seconds)

    def close(self) -> None:
        """Close the store. In a child after a fork it is the parent's, and stays open."""
        if self._pid == os.getpid():
            self._shard.close()


class AsyncOwnShard(_Own[AsyncShard]):
    """An `AsyncShard` that takes nothing but commands, from tasks of its own loop."""

    def __init__(self, shard: AsyncShard) -> None:
        super().__init__(shard)
        self._loop = asyncio.get_running_loop()

    def call(self, command: Command) -> Coroutine[Any, Any, Any]:
        if self._pid != os.getpid():
            self._refuse_child()
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidRequest("this store was opened in another event loop: open it in this one. Nothing was done")
        check(command)
        return self._shard.call(command)

    async def sleep(self, seconds: float) -> None:
        await self._shard.sleep(seconds)

    async def close(self) -> None:
        """Close the store. In a child after a fork it is the parent's, and stays open."""
        if self._pid == os.getpid():
            await self._shard.close()


_ENTROPY_BYTES = 64


def open(
    path: str | os.PathLike[str], *, read_only: bool = False, clock: Clock | None = None, **options: Any
) -> Penstock:
    """Open a directory of queues (created if it does not exist), or `":memory:"`. Close it, or use a `with` block.

    With `read_only`, nothing is changed, and another process may have the directory open. `options` are those of
    `penstock.store.embedded.StoreOptions`.

    >>> with open(":memory:") as ps:
    ...     orders = ps.queue("orders")
    ...     sent = orders.send(b"hello", attributes={"kind": "greeting"})
    ...     while message := orders.receive():
    ...         with message:
    ...             print(message.body, message.attempts)
    b'hello' 1
    """
    if read_only:
        return Penstock(ReadingShard(_view(path, options), clock or SystemClock()))
    return Penstock(OwnShard(ThreadedShard(_shard(path, clock, options))))


def open_async(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    clock: Clock | None = None,
    commit_in_thread: bool = False,
    **options: Any,
) -> AsyncOpening:
    """As `open`, for the tasks of one event loop: `async with penstock.open_async(path) as ps`.

    `commit_in_thread` keeps the loop free while a commit is written to the disk. It costs some throughput.
    """

    def opened() -> Callable[[], AsyncPenstock]:
        if read_only:
            store = _view(path, options)
            return lambda: AsyncPenstock(AsyncReadingShard(store, clock or SystemClock()))
        shard = _shard(path, clock, options)
        return lambda: AsyncPenstock(AsyncOwnShard(AsyncShard(shard, commit_in_thread=commit_in_thread)))

    return AsyncOpening(opened)


class AsyncOpening:
    """A store about to be opened: `async with` it, or `await` it."""

    def __init__(self, opened: Callable[[], Callable[[], AsyncPenstock]]) -> None:
        self._opened = opened
        self._penstock: AsyncPenstock | None = None

    async def _open(self) -> AsyncPenstock:
        attach = await asyncio.to_thread(self._opened)
        return attach()

    def __await__(self) -> Generator[Any, None, AsyncPenstock]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncPenstock:
        self._penstock = await self._open()
        return self._penstock

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._penstock is not None
        await self._penstock.close()


def _shard(path: str | os.PathLike[str], clock: Clock | None, options: dict[str, Any]) -> Shard:
    return Shard(_opener(path, options), clock or SystemClock(), lambda: os.urandom(_ENTROPY_BYTES), in_process=True)


def _opener(path: str | os.PathLike[str], options: dict[str, Any]) -> Callable[[], Store]:
    _check_path(path)
    return opener_for(os.fspath(path), options)


def _view(path: str | os.PathLike[str], options: dict[str, Any]) -> StoreView:
    _check_path(path)
    if os.fspath(path) == MEMORY:
        raise InvalidRequest("a store in memory cannot be opened read-only: nobody else could have written it")
    if options:
        raise InvalidRequest(f"a store that is opened read-only takes no options: {', '.join(options)}")
    return StoreView(Path(path))


def _check_path(path: str | os.PathLike[str]) -> None:
    """`InvalidRequest` for what is no path, or means something else: a store would come to be in an odd place."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InvalidRequest(f"{path!r} is not a path: give a directory, or {MEMORY!r}")
    if not os.fspath(path) or "\0" in os.fspath(path):
        raise InvalidRequest(f"{path!r} names no directory: give one ('.' is the one you are in), or {MEMORY!r}")
    if os.fspath(path).startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
        raise InvalidRequest(
            f"{shown(os.fspath(path))} is the address of a server: use penstock.connect, or penstock.connect_async"
        )
