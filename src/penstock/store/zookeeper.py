"""The ZooKeeper engine: a shard's chunks and records are znodes, and its owner has a copy of them in memory.

    /penstock/<cluster>/<shard>                {"format": 1}
    /penstock/<cluster>/<shard>/owner          who writes the shard; its version is the fence
    /penstock/<cluster>/<shard>/chunks/<key>   a chunk; what is beyond one znode's size is in children 0001, 0002 ...
    /penstock/<cluster>/<shard>/records/<key>  a state record, in the same way
    /penstock/<cluster>/<shard>/redo           a large commit that is under way

A commit is one transaction of ZooKeeper (`multi`). Its first operation replaces the data of `owner`, if the version is
still the one that this store wrote last; so the version changes with every commit, and

- whoever opens the shard writes `owner`, and every commit of its former owner fails from then on (`ShardFenced`);
- a commit whose answer was lost is sent again as it was. If it had been done, the version does not fit any more, and
  `owner` holds this commit's own mark: it was done, once. If it had not, it is done now. A first one that is still on
  its way somewhere comes too late, for the same reason.

ZooKeeper takes no more than about 1 MB in a request. A commit that is larger is written to `redo` first, piece by
piece; then one small transaction creates `redo/commit`. From that moment on it is committed. Then its changes are made,
in several transactions, and `redo` is emptied. Whoever opens a shard and finds `redo/commit` makes the changes (again:
they are absolute, so twice is as good as once); pieces without `redo/commit` are of a commit that never was.

A node has a session: an ephemeral znode that goes when ZooKeeper has not heard of the node for the session timeout
(`cluster/membership/zookeeper.py`). Its commits check that it is still there. So when a session has run out, nothing
was committed for a while, and nothing more will be: whoever takes the shard over knows by `owner` whose session it was,
and need not wait (`fenced_ago_s`). Without a session, safety leans on the version alone.

Reads never ask ZooKeeper. Everything is in the memory of the owner, as it is in that of ZooKeeper itself:
`shard_bytes_max` says how much that may be.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from penstock.core.storage.changes import Changes
from penstock.core.storage.keys import Kind
from penstock.store.base import ReadThrough
from penstock.store.errors import CommitFailed, DiskFull, LogUnavailable, ShardFenced, StoreDamaged, StoreVersion
from penstock.store.journal.frames import StoredChunk, encode_frame, frame_at
from penstock.store.layer import joined
from penstock.store.memory import MemoryStore
from penstock.store.zookeeper_options import ZooKeeperOptions

FORMAT = 1
PART_BYTES = 192 * 1024
"""What one znode holds at most."""
LARGE_STEP_BYTES = 224 * 1024
"""What a step of a large commit has at most. A server keeps its last 500 transactions in memory, and a JVM rounds
objects of half a megabyte up to a whole one: with steps of 900 KB one commit of 50 MB ended servers of 512 MB."""
VERSION_MAX = 2**31 - 2
"""ZooKeeper counts versions in 32 bits, and takes -1 for any. At this one `owner` is made anew, and counts from 0."""
CONNECT_S = 15.0
SAY_AGAIN_S = 30.0
"""How long the client's log does not repeat itself."""
WINDOW = 500
"""Requests that are under way at a time while a shard is read."""
PAUSE_S = 0.05
OPERATION_BYTES = 96
"""About what an operation takes beside its path and its data."""
_CHUNK_FIELDS = (8, 4, 8, 8, 4, 4, 8)
_ALL = 1 << 60

QUIET_S = 2.5
"""How long before its end a session that has run out committed last, at the least. Whoever ends a session has to wait
for as long since it opened a shard."""
QUIET_SHARE = 0.75
"""Of a session timeout: servers tell each other a little later whom they have heard of."""

DOUBTFUL = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    SessionMovedError,
    OperationTimeoutError,
    KazooTimeoutError,
)
"""After one of these nobody knows whether a request was done."""


class _Once(logging.Filter):
    """Drops what was said a moment ago: while no server answers, the client says the same again and again."""

    def __init__(self) -> None:
        super().__init__()
        self._said_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now_s, text = time.monotonic(), record.getMessage()
        self._said_s = {text: said_s for text, said_s in self._said_s.items() if now_s - said_s < SAY_AGAIN_S}
        return self._said_s.setdefault(text, now_s) == now_s


log = logging.getLogger("penstock.zookeeper")
_client_log = logging.getLogger("penstock.zookeeper.client")
_client_log.setLevel(logging.INFO)  # below, kazoo writes every request as it is: passwords, and messages
_client_log.addFilter(_Once())
_client_log.addHandler(logging.NullHandler())  # a command that has no log says what it has to say in one line
_Result = TypeVar("_Result")


# -- the client --------------------------------------------------------------------------------------------------------


def connect(options: ZooKeeperOptions) -> KazooClient:
    """A client with a session; `LogUnavailable` if nobody lets us in."""
    retry = KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=1.0)
    client = KazooClient(
        options.hosts,
        timeout=options.session_timeout_s,
        connection_retry=retry,
        command_retry=KazooRetry(max_tries=5, delay=0.1, max_delay=1.0),
        auth_data=[("digest", f"{options.user}:{options.password}")] if options.user else None,
        default_acl=[*CREATOR_ALL_ACL] if options.user else None,
        use_ssl=options.is_encrypted,
        ca=options.tls_ca,
        certfile=options.tls_certificate,
        keyfile=options.tls_key,
        logger=_client_log,
    )
    try:
        client.start(CONNECT_S)
    except KazooTimeoutError as error:
        disconnect(client)
        names = "are [zookeeper] hosts and the certificates" if options.is_encrypted else "is [zookeeper] hosts"
        raise LogUnavailable(
            f"ZooKeeper at {options.hosts} does not answer: is it running, and {names} right?"
        ) from error
    except KazooException as error:
        disconnect(client)
        raise LogUnavailable(f"ZooKeeper at {options.hosts} refuses the login: {said(error)}") from error
    return client


def disconnect(client: KazooClient) -> None:
    """End the session: what was made for its time is gone at once."""
    try:
        client.stop()
        client.close()
    except KazooException as error:
        log.warning("ZooKeeper: %s", said(error))


def said(error: Exception) -> str:
    """What a client's error means: most of them have no text.

    >>> said(NoAuthError())
    'it takes another user or password ([zookeeper] user, password_env, password_file)'
    """
    if isinstance(error, NoAuthError | AuthFailedError):
        return "it takes another user or password ([zookeeper] user, password_env, password_file)"
    if isinstance(error, KazooTimeoutError):
        return "nobody answers"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# -- names of znodes ---------------------------------------------------------------------------------------------------


def chunk_name(key: bytes) -> str:
    """The name of a chunk's znode: the fields of its key, in hexadecimal. One of another form is `x` and all of it.

    >>> chunk_name(bytes(range(44)))
    '0001020304050607-08090a0b-0c0d0e0f10111213-1415161718191a1b-1c1d1e1f-20212223-2425262728292a2b'
    >>> chunk_name(b"ab"), chunk_key(chunk_name(b"ab"))
    ('x6162', b'ab')
    """
    if len(key) != sum(_CHUNK_FIELDS):
        return "x" + key.hex()
    fields, start = [], 0
    for length in _CHUNK_FIELDS:
        fields.append(key[start : start + length].hex())
        start += length
    return "-".join(fields)


def chunk_key(name: str) -> bytes:
    """The key of a chunk's znode."""
    return bytes.fromhex(name.removeprefix("x").replace("-", ""))


def record_name(key: bytes) -> str:
    """The name of a record's znode: its kind, its queue, and the rest in hexadecimal.

    >>> record_name(bytes((2,)) + (7).to_bytes(8, "big")), record_name(b"color")
    ('queue-0000000000000007-', 'x636f6c6f72')
    >>> record_key("queue-0000000000000007-")[0], record_key("x636f6c6f72")
    (2, b'color')
    """
    kind = _KIND_NAMES.get(key[0]) if key else None
    return f"{kind}-{key[1:9].hex()}-{key[9:].hex()}" if kind else "x" + key.hex()


def record_key(name: str) -> bytes:
    """The key of a record's znode."""
    kind, _, rest = name.partition("-")
    if kind not in _KINDS:
        return bytes.fromhex(name.removeprefix("x"))
    return bytes((_KINDS[kind],)) + bytes.fromhex(rest.replace("-", ""))


_KIND_NAMES = {int(kind): kind.name.lower() for kind in Kind}
_KINDS = {name: number for number, name in _KIND_NAMES.items()}


# -- operations --------------------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """One operation of a transaction: `create`, `set` or `delete`."""

    kind: str
    path: str
    data: bytes = b""

    @property
    def nbytes(self) -> int:
        """About how much of a request it takes."""
        return OPERATION_BYTES + len(self.path) + len(self.data)


def in_steps(operations: Iterable[Operation], bytes_max: int) -> Iterator[list[Operation]]:
    """Operations in runs that fit into a transaction each; one empty run, if there are none.

    >>> small = Operation("create", "/a", bytes(100))
    >>> [len(step) for step in in_steps([small] * 5, 2 * small.nbytes)]
    [2, 2, 1]
    """
    step: list[Operation] = []
    taken = 0
    for operation in operations:
        if step and taken + operation.nbytes > bytes_max:
            yield step
            step, taken = [], 0
        step.append(operation)
        taken += operation.nbytes
    yield step


def parts_of(data: bytes) -> list[bytes]:
    """A value as znodes hold it: one part, at least."""
    return [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)] or [b""]


def part_path(path: str, number: int) -> str:
    """Where a part of a value is."""
    return path if number == 0 else f"{path}/{number:04d}"


# -- the store ---------------------------------------------------------------------------------------------------------


class NodeSession(NamedTuple):
    """The session of the node that a shard is opened for: an ephemeral znode, and how long it outlives silence."""

    path: str
    timeout_ms: int


class _Owner(msgspec.Struct):
    """What `owner` holds."""

    opened: str = ""
    """Which opening: nobody else's has the same."""
    commit: int = 0
    session: str = ""
    timeout_ms: int = 0


class ZooKeeperStore(ReadThrough):
    """A shard's store in ZooKeeper. `open_zookeeper` makes one."""

    _store: MemoryStore

    def __init__(
        self,
        client: KazooClient,
        options: ZooKeeperOptions,
        shard: int,
        session: NodeSession | None = None,
        *,
        closes: bool = False,
    ) -> None:
        self._client = client
        self._session = session
        self._options = options
        self._shard = shard
        self._closes = closes
        self._path = options.shard_path(shard)
        self._owner = f"{self._path}/owner"
        self._opening = uuid.uuid4().hex
        self._version = -1
        self._parts: dict[str, int] = {}
        """The znodes of chunks and records, and how many parts each has."""
        self._bytes = 0
        self._failed: CommitFailed | None = None
        self._store = MemoryStore()
        self._lay_out()
        quiet_s = self._take_over()
        self._fenced_s = time.monotonic() - quiet_s
        self._load()
        self._finish_commit()

    @property
    def fenced_ago_s(self) -> float:
        """How many seconds ago, at least, everybody else has committed last. While the machine sleeps this stands
        still."""
        return time.monotonic() - self._fenced_s

    # -- opening --

    def _lay_out(self) -> None:
        client = self._client
        client.ensure_path(self._path.rpartition("/")[0])
        about = {self._path: msgspec.json.encode({"format": FORMAT}), self._owner: b"{}"}
        for path in (self._path, self._owner, *(f"{self._path}/{name}" for name in ("chunks", "records", "redo"))):
            try:
                client.create(path, about.get(path, b""))
            except NodeExistsError:
                continue
        found = msgspec.json.decode(client.get(self._path)[0])["format"]
        if found != FORMAT:
            raise StoreVersion(
                f"{self._path} in ZooKeeper has format {found}, and this node knows format {FORMAT}: update Penstock"
            )

    def _take_over(self) -> float:
        """Write `owner`: from then on nobody else's commit succeeds. Returns for how long nobody's has, as we know."""
        deadline_s = time.monotonic() + self._options.commit_timeout_s
        quiet_s = 0.0
        while time.monotonic() < deadline_s:
            try:
                self._client.sync(self._owner)
                data, found = self._client.get(self._owner)
                if self._is_own(data):
                    self._version = found.version
                    return quiet_s
                quiet_s = self._quiet_s(data)
                self._client.set(self._owner, self._mark(), found.version)
            except (BadVersionError, *DOUBTFUL):  # somebody was faster, or it is not known: look again
                time.sleep(PAUSE_S)
        raise LogUnavailable(
            f"shard {self._shard} could not be taken over: ZooKeeper at {self._options.hosts} is silent"
        )

    def _quiet_s(self, former: bytes) -> float:
        """For how long the former owner has not committed: not at all for some time, if its session has run out."""
        owner = msgspec.json.decode(former, type=_Owner)
        if not owner.session or self._client.exists(owner.session) is not None:
            return 0.0
        return min(QUIET_S, owner.timeout_ms / 1_000 * QUIET_SHARE)

    def _load(self) -> None:
        changes = Changes()
        for key, value in self._read_all("chunks", chunk_key):
            changes.put_chunk(key, StoredChunk(value))
            self._bytes += len(value)
        for key, value in self._read_all("records", record_key):
            changes.put_record(key, value)
        if changes:
            self._store.commit(changes)
            self._store.stats.commits = 0

    def _read_all(self, kind: str, key_of: Callable[[str], bytes]) -> Iterator[tuple[bytes, bytes]]:
        directory = f"{self._path}/{kind}"
        names = self._client.get_children(directory)
        paths = [f"{directory}/{name}" for name in names]
        for name, path, (data, stat) in zip(names, paths, self._read(paths), strict=True):
            further = [part_path(path, number) for number in range(1, stat.numChildren + 1)]
            self._parts[path] = 1 + len(further)
            yield key_of(name), b"".join((data, *(part for part, _ in self._read(further))))

    def _read(self, paths: list[str]) -> Iterator[tuple[bytes, Any]]:
        """The znodes at some paths, many requests at a time."""
        for start in range(0, len(paths), WINDOW):
            asked = [self._client.get_async(path) for path in paths[start : start + WINDOW]]
            yield from (each.get(timeout=self._options.commit_timeout_s) for each in asked)

    def _finish_commit(self) -> None:
        """Make the changes of a large commit that was under way; clear away what is left of one that never was."""
        redo = f"{self._path}/redo"
        names = sorted(self._client.get_children(redo))
        pieces = [f"{redo}/{name}" for name in names if name != "commit"]
        if "commit" in names:
            log.info("shard %d: a large commit of its former owner is finished", self._shard)
            frame = frame_at(memoryview(b"".join(data for data, _ in self._read(pieces))), 0, 0)
            if frame is None:
                raise StoreDamaged(
                    f"{redo} in ZooKeeper has a commit that cannot be read: restore a backup of ZooKeeper"
                )
            self._make(frame.changes(), pieces)
            self._store.stats.commits = 0
        elif pieces:
            for step in in_steps((Operation("delete", piece) for piece in pieces), self._step_bytes):
                self._transact(step)

    # -- committing --

    def commit(self, changes: Changes) -> None:
        """Make the changes durable, all or nothing."""
        if self._failed is not None:
            raise CommitFailed(f"shard {self._shard} has to be opened again: {self._failed}") from self._failed
        added = sum(chunk.nbytes for chunk in changes.chunks.values() if chunk is not None)
        if added and self._bytes + added > self._options.shard_bytes_max:
            raise DiskFull(
                f"shard {self._shard} would hold more than {self._options.shard_bytes_max} bytes, all in the memory of "
                "ZooKeeper: receive and delete messages, or raise [zookeeper] shard_bytes_max"
            )
        try:
            self._commit(changes)
        except CommitFailed as error:
            self._failed = error
            raise
        except (KazooException, KazooTimeoutError) as error:
            self._failed = CommitFailed(f"ZooKeeper refused a commit of shard {self._shard}: {said(error)}")
            raise self._failed from error

    def _commit(self, changes: Changes) -> None:
        operations = list(self._operations(changes))
        if sum(operation.nbytes for operation in operations) <= self._step_bytes:
            self._transact(operations)
            self._note(changes, operations)
            return
        frame = b"".join(encode_frame(changes, 1, 0)[0])
        pieces = [f"{self._path}/redo/{number:06d}" for number in range(len(parts_of(frame)))]
        staged = (Operation("create", *piece) for piece in zip(pieces, parts_of(frame), strict=True))
        for step in in_steps(staged, self._large_step_bytes):
            self._transact(step)
        self._transact([Operation("create", f"{self._path}/redo/commit")])
        self._make(changes, pieces)

    def _make(self, changes: Changes, pieces: list[str]) -> None:
        """Make the changes of a large commit, which is in `redo` as a whole, and empty that."""
        operations = list(self._operations(changes))
        cleared = [Operation("delete", path) for path in (f"{self._path}/redo/commit", *reversed(pieces))]
        for step in in_steps(operations, self._large_step_bytes):
            self._transact(step)
        for step in in_steps(cleared, self._large_step_bytes):
            self._transact(step)
        self._note(changes, operations)

    @property
    def _step_bytes(self) -> int:
        return self._options.transaction_bytes_max

    @property
    def _large_step_bytes(self) -> int:
        return min(self._options.transaction_bytes_max, LARGE_STEP_BYTES)

    def _operations(self, changes: Changes) -> Iterator[Operation]:
        """What brings the znodes to where the changes want them, wherever they are."""
        for kind, name_of, puts, dropped in (
            ("chunks", chunk_name, changes.chunks, self._dropped_chunks(changes)),
            ("records", record_name, changes.records, self._dropped_records(changes)),
        ):
            for key in dropped:
                if puts.get(key) is None:
                    yield from self._delete(f"{self._path}/{kind}/{name_of(key)}")
            for key, value in puts.items():
                path = f"{self._path}/{kind}/{name_of(key)}"
                if value is not None:
                    yield from self._put(path, value if isinstance(value, bytes) else bytes(joined(value)))
                elif key not in dropped:
                    yield from self._delete(path)

    def _dropped_chunks(self, changes: Changes) -> set[bytes]:
        return {key for prefix in changes.dropped for key in self._store.list_chunks(prefix, prefix, _ALL)}

    def _dropped_records(self, changes: Changes) -> set[bytes]:
        return {key for prefix in changes.dropped for key, _ in self._store.scan(prefix)}

    def _put(self, path: str, value: bytes) -> Iterator[Operation]:
        parts, former = parts_of(value), self._parts.get(path, 0)
        for number, part in enumerate(parts):
            yield Operation("set" if number < former else "create", part_path(path, number), part)
        for number in range(len(parts), former):
            yield Operation("delete", part_path(path, number))

    def _delete(self, path: str) -> Iterator[Operation]:
        for number in reversed(range(self._parts.get(path, 0))):
            yield Operation("delete", part_path(path, number))

    def _note(self, changes: Changes, operations: Iterable[Operation]) -> None:
        """The changes are durable: readers see them now."""
        for operation in operations:
            if operation.kind != "set":
                parent = operation.path.rpartition("/")[0]
                is_part = parent in self._parts
                path = parent if is_part else operation.path
                count = self._parts.get(path, 0) + (1 if operation.kind == "create" else -1)
                if count:
                    self._parts[path] = count
                else:
                    del self._parts[path]
        for key in {*self._dropped_chunks(changes), *changes.chunks}:
            try:
                self._bytes -= len(self._store.read_chunk(key))
            except KeyError:
                continue
        kept = Changes()
        kept.dropped, kept.records = changes.dropped, changes.records
        for key, chunk in changes.chunks.items():
            kept.chunks[key] = None if chunk is None else StoredChunk(joined(chunk))
            self._bytes += 0 if chunk is None else chunk.nbytes
        self._store.commit(kept)

    # -- one transaction --

    def _mark(self) -> bytes:
        """What `owner` holds after the next transaction: nobody else ever writes the same."""
        owner = _Owner(self._opening, self._version + 1)
        if self._session is not None:
            owner.session, owner.timeout_ms = self._session.path, self._session.timeout_ms
        return msgspec.json.encode(owner)

    def _is_own(self, data: bytes) -> bool:
        return data == self._mark()

    def _transact(self, operations: Iterable[Operation]) -> None:
        """Do some operations, all or none, if the shard is still ours."""
        mark, is_doubtful = self._mark(), False
        deadline_s = time.monotonic() + self._options.commit_timeout_s
        operations = list(operations)
        while True:
            try:
                results = self._send(mark, operations, deadline_s)
                errors = [each for each in results if isinstance(each, Exception)]
                if not errors:
                    self._version = 0 if self._version >= VERSION_MAX else self._version + 1
                    return
                if is_doubtful and self._was_done(mark):
                    return
                if self._session is not None and isinstance(results.pop(0), NoNodeError):
                    raise ShardFenced(f"shard {self._shard} is free: this node's session with ZooKeeper is over")
                if not isinstance(results[0], BadVersionError | NoNodeError):
                    telling = (each for each in errors if not isinstance(each, RolledBackError | RuntimeInconsistency))
                    error = next(telling, errors[0])
                    raise CommitFailed(f"ZooKeeper refused a commit of shard {self._shard}: {said(error)}") from error
                raise ShardFenced(f"another node has shard {self._shard} now")
            except DOUBTFUL as error:
                is_doubtful = True
                if time.monotonic() + PAUSE_S >= deadline_s:
                    raise CommitFailed(
                        f"ZooKeeper did not answer to a commit of shard {self._shard} for "
                        f"{self._options.commit_timeout_s:g} s: {said(error)}"
                    ) from error
                time.sleep(PAUSE_S)

    def _send(self, mark: bytes, operations: list[Operation], deadline_s: float) -> list[Any]:
        transaction = self._client.transaction()
        if self._session is not None:
            transaction.check(self._session.path, -1)
        if self._version >= VERSION_MAX:
            transaction.delete(self._owner, self._version)
            transaction.create(self._owner, mark)
        else:
            transaction.set_data(self._owner, mark, self._version)
        for kind, path, data in operations:
            if kind == "create":
                transaction.create(path, data)
            elif kind == "set":
                transaction.set_data(path, data)
            else:
                transaction.delete(path)
        results: list[Any] = transaction.commit_async().get(timeout=max(PAUSE_S, deadline_s - time.monotonic()))
        return results

    def _was_done(self, mark: bytes) -> bool:
        """Whether a transaction whose answer was lost has been done: then `owner` has its mark."""
        self._client.sync(self._owner)
        data, found = self._client.get(self._owner)
        if data != mark:
            return False
        log.info("shard %d: a commit whose answer was lost had been done", self._shard)
        self._version = found.version
        return True

    def close(self) -> None:
        """Let go. What was committed stays; the shard stays ours until somebody else takes it."""
        if self._closes:
            disconnect(self._client)


def open_zookeeper(
    options: ZooKeeperOptions, shard: int, client: KazooClient | None = None, session: NodeSession | None = None
) -> ZooKeeperStore:
    """Take a shard over, from whoever has it, and read it. With a client, that is used, and left open at the end.

    With a session, which is the client's, commits succeed only while that lasts.
    """
    assert 0 <= shard < options.shards, f"there is no shard {shard}"
    connected = client or connect(options)
    try:
        return ZooKeeperStore(connected, options, shard, session, closes=client is None)
    except BaseException as error:
        if client is None:
            disconnect(connected)
        if isinstance(error, KazooException | KazooTimeoutError):
            raise LogUnavailable(f"shard {shard} cannot be read from ZooKeeper: {said(error)}") from error
        raise
