"""What a node needs of the system that its cluster lives in, and the map that comes of it. Kafka's is `kafka.py`,
ZooKeeper's is `zookeeper.py`; `server/engines.py` has them by name.

All of them keep the same records (`ledger.py`). Of each key the last record counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.cluster.base import ClusterMap
from penstock.cluster.membership.ledger import Ledger, Record
from penstock.cluster.membership.view import ClusterView
from penstock.core.errors import PenstockError
from penstock.store.base import Store

if TYPE_CHECKING:
    from penstock.cluster.placement.controller import Controller

log = logging.getLogger("penstock.cluster")

MOMENT_S = 0.7
"""Who waits for longer is told what for."""

Batch = list[tuple[int, str, bytes | None]]
"""Records: a number that grows, the key, and the value; None when the key was deleted."""


class Listeners(NamedTuple):
    """What a membership tells a node, in the node's loop."""

    on_records: Callable[[Batch], None]
    on_failed: Callable[[Exception], None]
    """It cannot go on."""
    on_session_over: Callable[[], None]
    """Others may have this node's shards by now."""
    on_gone: Callable[[set[str]], None]
    """The sessions of these nodes are over: nobody waits for them to come back."""


class Membership(ABC):
    """A node's place in the cluster: it is seen to be alive, and it knows what the records say.

    A thread reads the records. It has a ledger of its own, and tells the event loop what it reads, in batches: nothing
    is shared, and nothing locked. The same thread is the controller, if this node is it.
    """

    controller: Controller

    def __init__(self, listeners: Listeners) -> None:
        self.has_caught_up = False
        """Whether the loop has heard of everything that was there at the start."""
        self._listeners = listeners
        self._loop = asyncio.get_running_loop()
        self._ledger = Ledger()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-membership", daemon=True)

    def start(self) -> None:
        """Join."""
        self._thread.start()

    @abstractmethod
    def publish(self, key: str, record: Record | None) -> None:
        """Write a record, soon; None deletes the key. May be called from the loop: it waits for nothing."""

    @abstractmethod
    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything published is written."""

    async def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    # -- the thread --

    def _run(self) -> None:
        try:
            with self._opened():
                while not self._stopping.is_set():
                    self._turn()
        except Exception as error:
            if isinstance(error, PenstockError):  # it says what is wrong
                log.error("the node cannot join the cluster: %s", error)
            else:
                log.exception("the node has lost its place in the cluster")
            self._tell(self._listeners.on_failed, error)
        finally:
            self.controller.step_down()

    @abstractmethod
    def _opened(self) -> contextlib.AbstractContextManager[None]:
        """What the thread needs as long as it runs."""

    @abstractmethod
    def _turn(self) -> None:
        """Read what there is, and have the controller do what is due."""

    def _take(self, batch: Batch, *, is_news: bool) -> None:
        """Records were read. Before everything was that had been there, who speaks may have spoken long ago."""
        for record in batch:
            self._ledger.apply(*record)
            kind, _, name = record[1].partition("/")
            if kind == "load" and record[2] is not None and is_news:
                self.controller.heard(name)
        if batch:
            self._tell(self._listeners.on_records, batch)

    def _read_everything(self) -> None:
        """Everything was read that was there at the start."""
        self.controller.caught_up()
        self._tell(self._caught_up)

    def _caught_up(self) -> None:
        self.has_caught_up = True
        self._listeners.on_records([])

    def _tell(self, listener: Callable[..., None], *what: object) -> None:
        """Have the loop hear of it; one that is closed needs not."""
        try:
            self._loop.call_soon_threadsafe(listener, *what)
        except RuntimeError:
            self._stopping.set()


class ClusterEngine(Protocol):
    """The system that a cluster lives in. Made from a node's settings; whoever made it closes it."""

    name: str
    """As people call it."""
    place: str
    """Its name, and the addresses where it is looked for."""
    answer_s: float
    """How long it is waited for at most."""
    cluster: str
    shards: int
    records: str
    """Where the records are, in words."""

    def prepare(self) -> None:
        """Make what is not there, and refuse what will not do. Waits: for a thread."""

    def open_store(self, shard: int) -> Store:
        """Fence whoever has a shard, and open it. For a thread."""

    def join(self, node: str, session_timeout_s: float, cool_down_s: float, listeners: Listeners) -> Membership:
        """A membership that is not started yet."""

    def look(self, *, is_quick: bool = False) -> ClusterView:
        """What can be seen from outside, by somebody who is no node."""

    def close(self) -> None:
        """Let go of everything. For a thread."""


@contextlib.contextmanager
def wait_told(engine: ClusterEngine, tell: Callable[[str], None]) -> Iterator[None]:
    """Inside, the engine is asked something: say once where it is looked for, if it does not answer in a moment."""
    text = f"waiting for {engine.place}, which does not answer yet (giving up after {engine.answer_s:g} seconds)"
    timer = threading.Timer(MOMENT_S, tell, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# -- the controller's -------------------------------------------------------------------------------------------------


class NotWritten(Exception):
    """A decision was not written, or nobody knows whether it was: whoever decides takes over again."""


class Authority(Protocol):
    """By which a controller decides: nobody before it can write any more."""

    def take_over(self) -> None:
        """Fence former controllers. `NotWritten` if that could not be done."""

    def write(self, records: Mapping[str, Record]) -> None:
        """Write decisions, all or none. `NotWritten` if another one has taken over."""

    def members(self) -> set[str] | None:
        """The nodes of which the engine knows that they may be alive; None if it knows nothing of it."""


# -- the map -----------------------------------------------------------------------------------------------------------


class LedgerMaps:
    """The map, from the records that a `Membership` has read. Lives in the loop. A `ClusterMaps`."""

    def __init__(self, own: str) -> None:
        self.ledger = Ledger()
        self._own = own
        self._shards = 0
        self._current = ClusterMap(0, own, (), {})
        self._listeners: list[Callable[[ClusterMap], None]] = []

    def take(self, records: Batch) -> None:
        """Read some records, and tell who listens if the map is another one now."""
        for record in records:
            self.ledger.apply(*record)
        if self.ledger.cluster is not None:
            self._shards = self.ledger.cluster.shards
        former, newest = self._current, self.ledger.map_for(self._own, self._shards)
        self._current = newest  # with its version, which is the same at all nodes that have read as far
        if (newest.owners, newest.nodes) == (former.owners, former.nodes):
            return
        for listener in list(self._listeners):
            try:
                listener(newest)
            except Exception:
                log.exception("a listener failed")

    def current(self) -> ClusterMap:
        return self._current

    def on_change(self, listener: Callable[[ClusterMap], None]) -> None:
        self._listeners.append(listener)
