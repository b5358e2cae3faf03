"""Where a pipeline keeps things: a directory of this machine, or a folder of an object store.

A path with a scheme (`s3a://bucket/lake`) is nobody's local directory. What Spark reads and writes goes to Spark as it
is. What is read and written without Spark (status, checkpoints that are looked into, the lock) goes by `obstore`, to
the same place: `RemotePath` has those methods of `pathlib.Path` that are needed, so that nobody has to ask which it is.

The lock of a folder is an object that one writer at a time can create, because the store refuses to write over one
(`If-None-Match`). Whoever holds it writes it anew every few seconds. One that was not written for `LOCK_S` was left by
a process that died, and is taken over by writing it on the condition that it is still the same (`If-Match`). Whoever
finds that it is not its own any more stops: `still_held` says so.

Credentials and the store's address come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...), as Spark's
own connectors read it, or from Spark's settings (`spark.hadoop.fs.s3a.endpoint`, ...).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.core.errors import InvalidRequest
from penstock.pipelines.errors import AlreadyRunning, PipelineFailed, SparkMissing, first_line

STORES = ("s3", "s3a", "gs", "abfs", "abfss", "az")
"""Schemes of stores that can be read and locked without Spark."""
LOCK_S = 30.0
BEAT_S = 8.0
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_S3A = {
    "endpoint": "endpoint",
    "access.key": "access_key_id",
    "secret.key": "secret_access_key",
    "session.token": "session_token",
    "endpoint.region": "region",
}
"""Settings of Hadoop's connector, after `spark.hadoop.fs.s3a.`, and what obstore calls them."""


def scheme_of(path: str | Path) -> str | None:
    """The scheme of a path, if it has one; `pathlib` may have taken one of its slashes.

    >>> scheme_of("s3a://bucket/lake"), scheme_of("s3a:/bucket/lake"), scheme_of("./lake"), scheme_of("/data/a:b")
    ('s3a', 's3a', None, None)
    """
    match = _SCHEME.match(str(path))
    return None if match is None else match[1].lower()


def location(path: str, beside: Path, conf: Mapping[str, str]) -> Path | RemotePath:
    """A path of a definition: relative to its file, unless it has a scheme."""
    match scheme_of(path):
        case None:
            return (beside / path).resolve()
        case "file":
            return Path(re.sub(r"^file:/+", "/", path))
        case _:
            return RemotePath(path, conf)


def local(path: str | Path, what: str) -> Path:
    """A path that has to be of this machine, because files are renamed there.

    >>> local("s3a://bucket/lake", "an archive")
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidRequest: s3a://bucket/lake: an archive has to be in a directory of this machine. A ...
    """
    if scheme_of(path) not in (None, "file"):
        shown = re.sub(r":/+", "://", str(path), count=1)
        raise InvalidRequest(
            f"{shown}: {what} has to be in a directory of this machine. A pipeline of your own (penstock pipeline run "
            "FILE) writes to object stores"
        )
    return Path(re.sub(r"^file:/+", "/", str(path)))


def spark_settings() -> dict[str, str]:
    """What Spark has to be told of an S3 that is not Amazon's, if the environment names one."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not endpoint:
        return {}
    start = "spark.hadoop.fs.s3a."
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return {f"{start}endpoint": endpoint, f"{start}path.style.access": "true", f"{start}endpoint.region": region}


def lake_options(conf: Mapping[str, str]) -> dict[str, str]:
    """The same for deltalake, whose store is obstore's own."""
    return {f"AWS_{name.upper()}": value for name, value in _store_config(conf).items()} | _allow_http(conf)


def iceberg_options(conf: Mapping[str, str]) -> dict[str, str]:
    """The same for pyiceberg."""
    return {f"s3.{name.replace('_', '-')}": value for name, value in _store_config(conf).items()}


def path_problem(path: str, *, without_spark: bool) -> str | None:
    """What is wrong with a path of a definition; None if nothing is.

    >>> path_problem("s3a:/bucket/lake", without_spark=False)
    "'s3a:/bucket/lake' needs two slashes and a bucket: s3a://bucket/..."
    >>> path_problem("hdfs://host/state", without_spark=True)
    'Penstock itself cannot read and lock hdfs:// paths: use s3a, gs, abfss or a directory'
    """
    scheme = scheme_of(path)
    if scheme in (None, "file"):
        return None
    if re.match(r"[^:]+://[^/]", path) is None:
        return f"{path!r} needs two slashes and a bucket: {scheme}://bucket/..."
    if without_spark and scheme not in STORES:
        return f"Penstock itself cannot read and lock {scheme}:// paths: use s3a, gs, abfss or a directory"
    if without_spark and find_spec("obstore") is None:
        return f"{scheme}:// needs obstore here: pip install 'penstock-mq[lakes]'"
    return None


def _store_config(conf: Mapping[str, str]) -> dict[str, str]:
    given = {**spark_settings(), **conf}
    found = {name: given.get(f"spark.hadoop.fs.s3a.{key}") for key, name in _S3A.items()}
    return {name: value for name, value in found.items() if value}


def _allow_http(conf: Mapping[str, str]) -> dict[str, str]:
    return {"AWS_ALLOW_HTTP": "true"} if _store_config(conf).get("endpoint", "").startswith("http:") else {}


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """What an object store refuses is one line. (Its library says a page more, and is loaded only if it is used.)"""
    try:
        yield
    except Exception as error:
        if type(error).__module__ != "obstore.exceptions":
            raise
        raise PipelineFailed(f"the object store: {first_line(error)}") from error


class RemotePath:
    """A folder or an object of an object store, with the methods of `pathlib.Path` that a pipeline needs."""

    def __init__(self, url: str, conf: Mapping[str, str] | None = None) -> None:
        self._url = url.rstrip("/")
        self._conf = dict(conf or {})

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"RemotePath({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash(self._url)

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self._url}/{name}", self._conf)

    @property
    def name(self) -> str:
        """The last part."""
        return self._url.rpartition("/")[2]

    def with_name(self, name: str) -> RemotePath:
        """Another one beside it."""
        return RemotePath(f"{self._url.rpartition('/')[0]}/{name}", self._conf)

    def resolve(self) -> RemotePath:
        """It is what it is."""
        return self

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """An object store has no directories to make."""

    def exists(self) -> bool:
        """Whether there is such an object, or any under this name."""
        store, path = self._at()
        with contextlib.suppress(FileNotFoundError):
            store.head(path)
            return True
        return any(True for _ in self._listed())

    def iterdir(self) -> Iterator[RemotePath]:
        """What is right under it."""
        store, path = self._at()
        found = store.list_with_delimiter(f"{path}/")
        for each in (*(each["path"] for each in found["objects"]), *found["common_prefixes"]):
            yield self / each.rstrip("/").rpartition("/")[2]

    def read_text(self) -> str:
        """The content; `FileNotFoundError` if there is none."""
        store, path = self._at()
        return bytes(store.get(path).bytes()).decode()

    def write_text(self, text: str) -> int:
        """Write it as a whole: readers see the old or the new."""
        store, path = self._at()
        store.put(path, text.encode())
        return len(text)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object."""
        store, path = self._at()
        with contextlib.suppress(FileNotFoundError):
            store.delete(path)

    def rename(self, target: RemotePath) -> None:
        """Move all that is under it, object by object."""
        store, path = self._at()
        _, new = target._at()
        for each in list(self._listed()):
            store.rename(each, new + each.removeprefix(path))

    def remove_all(self) -> None:
        """Delete all that is under it."""
        store, _ = self._at()
        if found := list(self._listed()):
            store.delete(found)

    def _listed(self) -> Iterator[str]:
        store, path = self._at()
        for page in store.list(f"{path}/"):
            for each in page:
                yield each["path"]

    # -- the lock --

    @contextlib.contextmanager
    def locked(self) -> Iterator[RemoteLock]:
        """Nobody else holds this object while the block runs; `AlreadyRunning` if somebody does."""
        lock = RemoteLock(self)
        lock.take()
        stop = threading.Event()
        beating = threading.Thread(target=lock.keep, args=(stop,), name="penstock-lock", daemon=True)
        beating.start()
        try:
            yield lock
        finally:
            stop.set()
            beating.join()
            lock.let_go()

    def _at(self) -> tuple[Any, str]:
        """The store, and the path in it."""
        scheme, _, rest = self._url.partition("://")
        bucket, _, path = rest.partition("/")
        is_s3 = scheme.lower() in ("s3", "s3a")
        config = _store_config(self._conf) if is_s3 else {}
        return _store(f"{'s3' if is_s3 else scheme}://{bucket}", tuple(sorted(config.items()))), path


@cache
def _store(url: str, config: tuple[tuple[str, str], ...]) -> Any:
    """A bucket, with the connections to it."""
    try:
        from obstore.store import from_url
    except ModuleNotFoundError:
        raise SparkMissing(f"{url} needs obstore: pip install 'penstock-mq[lakes]'") from None
    given: Any = dict(config)
    options: Any = {"allow_http": given.get("endpoint", "").startswith("http:")}
    return from_url(url, config=given, client_options=options)


class RemoteLock:
    """An object that says who holds it, and since when it was last said."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"
        self._etag: Any = None
        self._written_s = 0.0
        self.is_lost = False

    def take(self) -> None:
        """Hold it from now on."""
        from obstore.exceptions import AlreadyExistsError

        with contextlib.suppress(AlreadyExistsError):
            self._write("create")
            return
        store, path = self._path._at()
        found = store.get(path)
        held, age_s = json.loads(bytes(found.bytes())), time.time() - found.meta["last_modified"].timestamp()
        if age_s < LOCK_S and held.get("owner"):
            raise AlreadyRunning(
                f"another process ({held['owner'].rpartition(':')[0]}) runs this pipeline: {self._path} was written "
                f"{age_s:.0f} s ago. Stop it first; if it was killed, wait {LOCK_S:.0f} s; or give another --state"
            )
        self._seen(found.meta)
        self._conditionally()

    def keep(self, stop: threading.Event) -> None:
        """Say again and again that it is held, until told to stop, or until it is another's."""
        while not stop.wait(BEAT_S):
            try:
                self._conditionally()
            except AlreadyRunning:
                self.is_lost = True
                return
            except Exception:  # the store is away: nobody else can take it either, until it is too old
                self.is_lost = time.monotonic() > self._written_s + LOCK_S

    def let_go(self) -> None:
        """It is free."""
        if not self.is_lost:
            with contextlib.suppress(Exception):
                self._path.unlink()

    def _conditionally(self) -> None:
        """Write it if it is what it was."""
        from obstore.exceptions import PreconditionError

        try:
            self._write(self._etag)
        except (PreconditionError, FileNotFoundError):
            raise AlreadyRunning(f"another process has taken {self._path}") from None

    def _write(self, mode: Any) -> None:
        store, path = self._path._at()
        begun_s = time.monotonic()
        written = store.put(path, json.dumps({"owner": self._owner}).encode(), mode=mode)
        self._seen(written)
        self._written_s = begun_s

    def _seen(self, written: Any) -> None:
        self._etag = {key: written[key] for key in ("e_tag", "version") if written.get(key) is not None}


@contextlib.contextmanager
def local_lock(path: Path, busy: str, patience_s: float = 0.0) -> Iterator[None]:
    """Nobody else on this machine holds this file while the block runs."""
    give_up_s = time.monotonic() + patience_s
    with path.open("a+") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= give_up_s:
                    raise AlreadyRunning(busy) from None
            time.sleep(0.02)
        yield


def is_locked(path: Path | RemotePath) -> bool:
    """Whether somebody holds a lock now."""
    if isinstance(path, RemotePath):
        store, at = path._at()
        try:
            return bool(time.time() - store.head(at)["last_modified"].timestamp() < LOCK_S)
        except FileNotFoundError:
            return False
    try:
        with path.open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def remove_all(path: Path | RemotePath) -> None:
    """Delete a directory, or all that is under a name."""
    if isinstance(path, RemotePath):
        path.remove_all()
    else:
        shutil.rmtree(path)
