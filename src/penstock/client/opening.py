"""Opening a store: from a path to a handle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from penstock.client.aio.penstock import AsyncPenstock
from penstock.client.checking import check
from penstock.client.content import Identity
from penstock.client.remote.address import SCHEMES, shown
from penstock.client.sync.penstock import Penstock
from penstock.core.commands import Command, Damage
from penstock.core.errors import InvalidRequest
from penstock.server.clock import Clock, SystemClock
from penstock.server.engines import opener_for
from penstock.server.read_only import AsyncReadingShard, ReadingShard
from penstock.server.shard import Shard
from penstock.server.tasks import AsyncShard
from penstock.server.threads import ThreadedShard
from penstock.store.base import Store
from penstock.store.memory import MEMORY
from penstock.store.view import StoreView

# A shard in this process, for handles: what they were given is looked at before it gets there.
#
# A process that was forked has a copy of the shard, and the same open files: what both write there would overwrite each
# other. So only the process that opened a store uses it, and closes it.


_S = TypeVar("_S", bound=ThreadedShard | AsyncShard)


class _Own(Generic[_S]):
    """What threads and tasks have of it alike."""

    read_only = False

    def __init__(self, shard: _S) -> None:
        self._shard = shard
        self._pid = os.getpid()

    def now_ms(self) -> int:
        """The shard's time."""
        return self._shard.now_ms()

    @property
    def identity(self) -> Identity:
        return self._shard.identity

    @property
    def reports(self) -> list[Damage]:
        return self._shard.reports

    def _refuse_child(self) -> None:
        raise InvalidRequest(
            "this store was opened before a fork, by the parent, and one process at a time can have it: open "
            "another one in the child, or have a server (penstock serve) and use penstock.connect in both"
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
    """Open a directory of queues (created if it is not there), or `":memory:"`. Close it, or use it in a `with` block.

    `read_only` looks at a directory that another process may have open, and changes nothing. `options` are those
    of `penstock.store.embedded.StoreOptions`.

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

    `commit_in_thread` keeps the loop free while a commit is on its way to the disk, and costs some throughput.
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
        raise InvalidRequest(f"{path!r} is no path: give a directory, or {MEMORY!r}")
    if not os.fspath(path) or "\0" in os.fspath(path):
        raise InvalidRequest(f"{path!r} names no directory: give one ('.' is the one you are in), or {MEMORY!r}")
    if os.fspath(path).startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
        raise InvalidRequest(
            f"{shown(os.fspath(path))} is the address of a server: use penstock.connect, or penstock.connect_async"
        )
