"""A cluster in ZooKeeper: nodes are ephemeral znodes, and what the cluster says of itself is a tree of small ones.

    /penstock/<cluster>/sessions/<node>-<number>   a node that may be alive
    /penstock/<cluster>/map/<key>                  the records of `ledger.py`, as `map/shard/3` or `map/node/a`
    /penstock/<cluster>/<shard>/                   a shard (`store/zookeeper.py`)

A thread (`Membership`) watches the tree, reads what has changed, and writes what the node has to say.

`sessions`, `map/serving` and `map/load` are ephemeral: when ZooKeeper has not heard of a node for the session timeout,
they are gone, all at once. So its shards are free: nobody serves them by the map, the node's commits fail, the
controller gives them to others, and the other nodes end the sessions of the connections that it had. Most often a dead
node is found earlier, as in Kafka (`Liveness`). A node that gets a new session gives up what it had, and begins
again.

A record's number is the transaction that wrote it (zxid), so maps of all nodes have the same versions. That of a record
that is gone is that of the last change among its neighbours.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from penstock.cluster.membership.base import Batch, Listeners, Membership, NotWritten
from penstock.cluster.membership.ledger import Ledger, Record, encode
from penstock.cluster.membership.view import ClusterView, NoCluster
from penstock.cluster.placement.controller import Controller
from penstock.server.settings import Settings
from penstock.store.base import Store
from penstock.store.errors import LogUnavailable
from penstock.store.zookeeper import CONNECT_S, QUIET_S, NodeSession, connect, disconnect, open_zookeeper, said
from penstock.store.zookeeper_options import ZooKeeperOptions

KINDS = ("drain", "load", "node", "released", "serving", "shard", "wish")
DIRECTORIES = ("", *KINDS)
"""Of records, below `map`."""
EPHEMERAL = ("load", "serving")
ANSWER_S = 15.0
POLL_S = 0.05
PAUSE_S = 0.2
"""After something failed."""
SERVER_S = 0.5
"""How long a look waits for a server before it asks another one."""

log = logging.getLogger("penstock.cluster")

_FAILURES = (KazooException, KazooTimeoutError)


class ZooKeeperEngine:
    """A cluster in ZooKeeper. A `ClusterEngine`."""

    name = "ZooKeeper"
    records = "the cluster's records"

    def __init__(self, settings: Settings) -> None:
        self._options = settings.zookeeper_options()
        self.place, self.answer_s = f"ZooKeeper at {self._options.hosts}", CONNECT_S
        self.cluster, self.shards = self._options.cluster, self._options.shards
        self.client: KazooClient | None = None
        self.session: NodeSession | None = None
        """The node's: without it no shard is opened."""
        self.opened_s = float("-inf")
        """When a shard was opened last."""

    def prepare(self) -> None:
        self.client = connect(self._options)
        with _told(self._options, "cannot be created"):
            for path in (sessions_path(self._options), *(f"{map_path(self._options)}/{kind}" for kind in KINDS)):
                self.client.ensure_path(path)

    def open_store(self, shard: int) -> Store:
        session = self.session
        if session is None:
            raise LogUnavailable(f"shard {shard} cannot be opened: the node has no session with ZooKeeper")
        self.opened_s = time.monotonic()
        return open_zookeeper(self._options, shard, self.client, session)

    def join(
        self, node: str, session_timeout_s: float, cool_down_s: float, listeners: Listeners
    ) -> ZooKeeperMembership:
        return ZooKeeperMembership(self, self._options, node, session_timeout_s, cool_down_s, listeners)

    def look(self, *, is_quick: bool = False) -> ZooKeeperInspection:
        return ZooKeeperInspection(self._options)

    def close(self) -> None:
        """End the session. Who takes a shard over then does not wait: so whoever has opened it just now does."""
        if self.client is not None:
            time.sleep(max(0.0, self.opened_s + QUIET_S - time.monotonic()))
            disconnect(self.client)


def sessions_path(options: ZooKeeperOptions) -> str:
    """Where nodes that are alive are."""
    return f"{options.path}/sessions"


def map_path(options: ZooKeeperOptions) -> str:
    """Where the records are."""
    return f"{options.path}/map"


class SessionName(NamedTuple):
    """The name of a session's znode.

    >>> SessionName.of("node-1-0000000012")
    SessionName(number=12, node='node-1')
    """

    number: int
    node: str

    @classmethod
    def of(cls, name: str) -> SessionName:
        """Take it apart."""
        node, _, number = name.rpartition("-")
        return cls(int(number), node)


@contextlib.contextmanager
def _told(options: ZooKeeperOptions, what: str) -> Iterator[None]:
    """A client's errors as ours."""
    try:
        yield
    except _FAILURES as error:
        raise LogUnavailable(f"{options.path} at ZooKeeper {options.hosts} {what}: {said(error)}") from error


# -- reading -----------------------------------------------------------------------------------------------------------


class Records:
    """The tree of records: read as a whole, then what has changed."""

    def __init__(self, client: KazooClient, path: str, on_change: Callable[[str], None] | None) -> None:
        self._client = client
        self._path = path
        self._on_change = on_change
        self._seen: dict[str, int] = {}
        """The transaction that has written each key."""

    def __contains__(self, key: str) -> bool:
        return key in self._seen

    def read_all(self) -> Batch:
        """What is another one than when it was read last, as new as it is now."""
        self._client.sync(self._path)
        return self.read({*DIRECTORIES, *self._seen})

    def read(self, keys: Iterable[str]) -> Batch:
        """Read some directories and keys again, and watch them."""
        watch = None if self._on_change is None else self._heard
        directories = [key for key in keys if key in DIRECTORIES]
        leaves = {key for key in keys if key not in DIRECTORIES}
        batch: Batch = []
        listings = [
            (directory, self._client.get_children_async(self._at(directory), watch=watch, include_data=True))
            for directory in directories
        ]
        for directory, asked in listings:
            names, stat = asked.get(timeout=ANSWER_S)
            there = {f"{directory}/{name}" if directory else name for name in names} - {*DIRECTORIES}
            gone = {key for key in self._seen if key.rpartition("/")[0] == directory} - there
            leaves |= there - self._seen.keys()
            for key in gone:
                del self._seen[key]
                batch.append((stat.pzxid, key, None))
        values = [(key, self._client.get_async(self._at(key), watch=watch)) for key in sorted(leaves)]
        for key, asked in values:
            try:
                data, stat = asked.get(timeout=ANSWER_S)
            except NoNodeError:
                continue  # its directory says so
            if self._seen.get(key) != stat.mzxid:
                self._seen[key] = stat.mzxid
                batch.append((stat.mzxid, key, data))
        return sorted(batch, key=lambda record: record[:2])

    def _at(self, key: str) -> str:
        return f"{self._path}/{key}" if key else self._path

    def _heard(self, event: Any) -> None:
        if event.path and self._on_change is not None:
            self._on_change(event.path[len(self._path) + 1 :])


# -- writing -----------------------------------------------------------------------------------------------------------


class Writer:
    """Writes what a node says of itself, and of its shards."""

    def __init__(self, client: KazooClient, path: str) -> None:
        self._client = client
        self._path = path

    def write(self, key: str, record: Record | None) -> None:
        """Put a record, or delete it."""
        path, kind = f"{self._path}/{key}", key.partition("/")[0]
        if record is None:
            with contextlib.suppress(NoNodeError):
                self._client.delete(path)
            return
        while not self._put(path, encode(record), kind, getattr(record, "epoch", 0)):
            pass

    def _put(self, path: str, value: bytes, kind: str, epoch: int) -> bool:
        """False if somebody else has written meanwhile."""
        is_ephemeral = kind in EPHEMERAL
        try:
            data, stat = self._client.get(path)
        except NoNodeError:
            try:
                self._client.create(path, value, ephemeral=is_ephemeral)
            except NodeExistsError:
                return False
            return True
        if _epoch_of(data) > epoch:
            return True  # the shard has had others since: what we say is over
        owner = self._client.client_id[0] if is_ephemeral else 0
        if stat.ephemeralOwner == owner:
            try:
                self._client.set(path, value, stat.version)
            except (BadVersionError, NoNodeError):
                return False
            return True
        transaction = self._client.transaction()
        transaction.delete(path, stat.version)
        transaction.create(path, value, ephemeral=is_ephemeral)
        results = transaction.commit()
        return not any(isinstance(each, Exception) for each in results)


class _Epoch(msgspec.Struct):
    """As much of a record as says whether it is over."""

    epoch: int = 0


def _epoch_of(data: bytes) -> int:
    try:
        return msgspec.json.decode(data, type=_Epoch).epoch
    except msgspec.MsgspecError:
        return 0


class ZooKeeperAuthority:
    """The controllers' own record is the fence: each decision checks its version. An `Authority`."""

    def __init__(self, client: KazooClient, records: Records, path: str) -> None:
        self._client = client
        self._records = records
        self._path = path
        self._version: int | None = None
        """Of `controller`; None while it is not there."""
        self.nodes: set[str] = set()
        """Those that have a session."""

    def take_over(self) -> None:
        with self._in_words("the controller could not take over"):
            found = self._client.exists(f"{self._path}/controller")
        self._version = None if found is None else found.version

    def write(self, records: Mapping[str, Record]) -> None:
        fence = f"{self._path}/controller"
        transaction = self._client.transaction()
        version = self._version
        for key, record in sorted(records.items()):
            path, value = f"{self._path}/{key}", encode(record)
            if path == fence and version is not None:
                transaction.set_data(path, value, version)
                version += 1
            elif path == fence:
                transaction.create(path, value)
                version = 0
            elif key in self._records:
                transaction.set_data(path, value)
            else:
                transaction.create(path, value)
        if "controller" not in records:
            assert version is not None
            transaction.check(fence, version)
        with self._in_words("a decision could not be written"):
            results = transaction.commit()
        if failed := [each for each in results if isinstance(each, Exception)]:
            raise NotWritten(f"another controller decides, or the map has changed: {said(failed[0])}")
        self._version = version

    def members(self) -> set[str] | None:
        return self.nodes

    @contextlib.contextmanager
    def _in_words(self, what: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            raise NotWritten(f"{what}: {said(error)}") from error


# -- the thread --------------------------------------------------------------------------------------------------------


class ZooKeeperMembership(Membership):
    """A node's place in a cluster in ZooKeeper."""

    def __init__(
        self,
        engine: ZooKeeperEngine,
        options: ZooKeeperOptions,
        node: str,
        session_timeout_s: float,
        cool_down_s: float,
        listeners: Listeners,
    ) -> None:
        super().__init__(listeners)
        assert engine.client is not None
        self._engine, self._options, self._node = engine, options, node
        self._client = engine.client
        self._session_timeout_s = session_timeout_s
        self._news: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """Keys that have changed; None: there is something to write."""
        self._records = Records(self._client, map_path(options), self._news.put)
        self._writer = Writer(self._client, map_path(options))
        self._waiting: dict[str, Record | None] = {}
        self._written = threading.Condition()
        self._members_changed = threading.Event()
        self._sessions: set[str] = set()
        self._owner = 0
        """The session of ZooKeeper in which this node's znode is."""
        self._must_read_all = True
        self._has_read = False
        self._authority = ZooKeeperAuthority(self._client, self._records, map_path(options))
        self.controller = Controller(
            self._authority, options.cluster, options.shards, node, self._ledger, session_timeout_s, cool_down_s
        )

    def publish(self, key: str, record: Record | None) -> None:
        with self._written:
            self._waiting.pop(key, None)  # it goes to the end
            self._waiting[key] = record
        self._news.put(None)

    async def flush(self, timeout_s: float) -> bool:
        return await asyncio.to_thread(self._flush, timeout_s)

    def _flush(self, timeout_s: float) -> bool:
        with self._written:
            return self._written.wait_for(lambda: not self._waiting, timeout_s)

    async def stop(self) -> None:
        """End the thread. The session ends with the engine: until then shards may be served."""
        self._news.put(None)
        await super().stop()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        self._client.add_listener(self._state_changed)
        try:
            yield
        finally:
            self._client.remove_listener(self._state_changed)

    def _state_changed(self, state: str) -> None:
        """In the client's thread. What was watched is not watched any more."""
        self._must_read_all = True
        self._news.put(None)

    def _turn(self) -> None:
        changed = self._await_news()
        if not self._client.connected:
            self._stopping.wait(POLL_S)
            return
        try:
            self._keep_session()
            self._read(changed)
            self._write()
        except _FAILURES as error:
            log.warning("ZooKeeper: %s", said(error))
            self._must_read_all = True
            self._stopping.wait(PAUSE_S)
            return
        if self._has_read and self._engine.session is not None:
            self.controller.turn()

    def _await_news(self) -> set[str]:
        """What has changed, if anything does soon."""
        changed: set[str] = set()
        with contextlib.suppress(queue.Empty):
            first = self._news.get(timeout=POLL_S)
            for key in (first, *(self._news.get_nowait() for _ in range(self._news.qsize()))):
                if key is not None:
                    changed.add(key)
        return changed

    # -- this node's session --

    def _keep_session(self) -> None:
        owner = self._client.client_id[0]
        session = self._engine.session
        if session is not None and owner != self._owner:
            log.warning("node %s has lost its session: it gives up its shards", self._node)
            self._lose_session()
        if self._engine.session is None:
            self._begin_session(owner)

    def _lose_session(self) -> None:
        self._engine.session = None
        self.controller.step_down()
        self._tell(self._listeners.on_session_over)

    def _begin_session(self, owner: int) -> None:
        directory = sessions_path(self._options)
        path = self._found_session(directory, owner)
        if path is None:
            path = self._client.create(f"{directory}/{self._node}-", b"", ephemeral=True, sequence=True)
        if self._client.client_id[0] != owner:
            return  # another one by now: look again
        self._owner = owner
        self._must_read_all = True
        self._engine.session = NodeSession(path, round(self._session_timeout_s * 1_000))

    def _found_session(self, directory: str, owner: int) -> str | None:
        """One that is there already: its making, or its end, was not answered."""
        for name in sorted(self._client.get_children(directory), key=SessionName.of):
            if SessionName.of(name).node == self._node:
                found = self._client.exists(f"{directory}/{name}")
                if found is not None and found.ephemeralOwner == owner:
                    return f"{directory}/{name}"
        return None

    # -- reading and writing --

    def _read(self, changed: set[str]) -> None:
        # Whoever reads a controller's name must have read all that was decided before: so everything is.
        reads_all = self._must_read_all or "controller" in changed
        self._must_read_all = False
        if reads_all or self._members_changed.is_set():
            self._read_sessions()
        batch = self._records.read_all() if reads_all else self._records.read(changed)
        self._take(batch, is_news=self._has_read)
        if reads_all and not self._has_read:
            self._has_read = True
            self._read_everything()

    def _read_sessions(self) -> None:
        self._members_changed.clear()
        names = {SessionName.of(name) for name in self._client.get_children(sessions_path(self._options), self._heard)}
        nodes = {name.node for name in names}
        if gone := self._sessions - nodes:
            self._tell(self._listeners.on_gone, gone)
        self._sessions = self._authority.nodes = nodes
        session = self._engine.session
        own = None if session is None else SessionName.of(session.path.rpartition("/")[2])
        if own is not None and own not in names:
            log.warning("node %s has no session any more: it gives up its shards", self._node)
            self._lose_session()

    def _heard(self, event: Any) -> None:
        self._members_changed.set()
        self._news.put(None)

    def _write(self) -> None:
        while self._engine.session is not None:
            with self._written:
                if not self._waiting:
                    return
                key, record = next(iter(self._waiting.items()))
            self._writer.write(key, record)
            with self._written:
                if key in self._waiting and self._waiting[key] is record:
                    del self._waiting[key]
                self._written.notify_all()


# -- from outside ------------------------------------------------------------------------------------------------------


class ZooKeeperInspection(ClusterView):
    """What a cluster's tree says now, and who is alive."""

    def __init__(self, options: ZooKeeperOptions) -> None:
        self._options = options
        super().__init__(Ledger(), options.cluster)
        with self._client() as client:
            if client.exists(map_path(options)) is not None:
                for record in Records(client, map_path(options), None).read_all():
                    self.ledger.apply(*record)
                self.alive = {SessionName.of(name).node for name in client.get_children(sessions_path(options))}
        if self.ledger.cluster is None:
            raise NoCluster(
                f"there is no cluster {options.cluster!r} at {options.hosts}: no node of it was ever started there"
            )
        self.shards = self.ledger.cluster.shards

    @contextlib.contextmanager
    def _client(self) -> Iterator[KazooClient]:
        # A client waits for a server as long as a session may be silent, divided by the number of servers.
        servers = self._options.hosts.count(",") + 1
        client = connect(dataclasses.replace(self._options, session_timeout_s=SERVER_S * servers))
        try:
            with _told(self._options, "cannot be inspected"):
                yield client
        finally:
            disconnect(client)

    def _write(self, key: str, record: Record | None) -> None:
        with self._client() as client:
            Writer(client, map_path(self._options)).write(key, record)
