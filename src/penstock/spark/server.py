"""Talking to a server: its bulk endpoints, and its records as Arrow streams. One connection, for one process.

A cluster has several addresses. Each connection begins with the first, and goes on to the next when one does not
answer, or is busy. Only writes exactly once do not: what tasks stage is in the files of one node. So their driver looks
once which node can be reached (`reachable`), and the whole batch stays with that one, however long it is busy.

Every request may be repeated (offsets are read again, a piece is written over, marked work is done once, what takes and
settles has a key), so a server that does not answer is asked again, with growing pauses, until `timeout` is over. Sends
at least once may then happen twice, as their name says.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from penstock.client.remote.address import QUICK_CONNECT_S, Address
from penstock.core.backoff import backoff
from penstock.core.commands import Offsets
from penstock.spark.errors import ServerFailed
from penstock.spark.options import Where
from penstock.spark.place import Part, Range

_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 2.0
_ANSWER_S_MAX = 120.0
_CONNECT_S_MAX = 10.0
AGAIN = (408, 429, 502, 503, 504)
"""Statuses of answers after which a request may be repeated."""
_RECORDS_PER_REQUEST = 100_000
_RECORDS_PER_REQUEST_BYTES = 64 * 1024 * 1024
_COLUMNS = ("offset", "timestamp", "key", "value")
"""What a server of any version gives, with headers or without."""
_JSON = {"content-type": "application/json"}
_UNREACHABLE = (OSError, http.client.HTTPException)

T = TypeVar("T")


class _WholeHead:
    """The lines of a response's head, for who would take an end in the middle of it for the end of the head."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readline(self, limit: int) -> bytes:
        """A line, all of it."""
        line: bytes = self._stream.readline(limit)
        if not line.endswith(b"\n") and len(line) < limit:
            raise http.client.RemoteDisconnected("the answer broke off in its header")
        return line


class _Response(http.client.HTTPResponse):
    """A response whose head is whole: half a head could tell of another length, or of none."""

    def begin(self) -> None:
        """Read the head."""
        stream: Any = self.fp
        self.fp: Any = _WholeHead(stream)
        try:
            super().begin()
        finally:
            self.fp = stream


def reachable(where: Where) -> Where:
    """One of several servers: the first that takes a connection, or the very first if none does."""
    assert where.url is not None
    servers = Address.parse(where.url).servers
    if len(servers) == 1:
        return where
    for server in servers:
        with contextlib.suppress(OSError):
            socket.create_connection((server.host, server.port), QUICK_CONNECT_S).close()
            return replace(where, url=str(server))
    return replace(where, url=str(servers[0]))


class Connection:
    """Requests to one server, or to whichever of several answers."""

    def __init__(self, where: Where) -> None:
        assert where.url is not None
        self._where = where
        self._servers = Address.parse(where.url).servers
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, verb: str, path: str, body: Any = None, headers: Mapping[str, str] = _JSON) -> Any:
        """A request with JSON on both sides."""
        data = None if body is None else json.dumps(body).encode()
        answer = self.fetch(verb, path, data, headers)
        return json.loads(answer) if answer else None

    def fetch(self, verb: str, path: str, body: Any, headers: Mapping[str, str]) -> bytes:
        """The whole answer to a request that was not refused. One that breaks off is asked for again."""
        return self._with_retries(lambda: self._once(verb, path, body, headers).read())

    def request(self, verb: str, path: str, body: Any, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """The response to a request that was not refused, to be read as it comes: it may break off."""
        return self._with_retries(lambda: self._once(verb, path, body, headers))

    def _with_retries(self, once: Callable[[], T]) -> T:
        deadline_s = time.monotonic() + self._where.timeout_s
        failures = 0
        while True:
            try:
                return once()
            except ssl.SSLCertVerificationError as error:  # which no waiting will change
                raise ServerFailed(
                    f"the certificate of {self._where.url} is not trusted: {error.verify_message}. Name its authority "
                    "in the option caFile"
                ) from error
            except _UNREACHABLE as error:
                failed = ServerFailed(f"{self._where.url} cannot be reached: {error!r}")
            except ServerFailed as error:
                if error.status not in AGAIN:
                    raise
                failed = error
            self.close()
            failures += 1
            self._at = (self._at + 1) % len(self._servers)
            if failures % len(self._servers):  # there is one that was not asked yet
                continue
            rounds = failures // len(self._servers)
            pause_s = backoff(rounds, _PAUSE_S_MIN, _PAUSE_S_MAX, jitter=random.random() / 2)
            if time.monotonic() + pause_s > deadline_s:
                raise failed
            time.sleep(pause_s)

    def _once(self, verb: str, path: str, body: Any, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        if self._connection is None:
            self._connection = self._connect()
        own = {} if self._where.token is None else {"authorization": f"Bearer {self._where.token}"}
        try:
            self._connection.request(verb, path, body, {**headers, **own})
        except (BrokenPipeError, ConnectionResetError) as error:
            # It hung up on the body. If it has said why (413), that is the answer; else asking again may help.
            try:
                response = self._connection.getresponse()
            except _UNREACHABLE:
                raise error from None
        else:
            response = self._connection.getresponse()
        if response.status >= 400:
            raise _refusal(response, f"{verb} {path}")
        return response

    def _connect(self) -> http.client.HTTPConnection:
        server = self._servers[self._at]
        connect_s = _CONNECT_S_MAX if len(self._servers) == 1 else QUICK_CONNECT_S
        if server.is_tls:
            trusted = _tls_context(self._where.ca_file)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                server.host, server.port, timeout=connect_s, context=trusted
            )
        else:
            connection = http.client.HTTPConnection(server.host, server.port, timeout=connect_s)
        connection.response_class = _Response
        connection.connect()
        connection.sock.settimeout(_ANSWER_S_MAX)
        return connection

    def close(self) -> None:
        """Hang up; the next request connects again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _check_partitions(found: dict[Part, Offsets]) -> None:
    """Reading some partitions of several would leave messages out, and nobody would notice."""
    for at in found.values():
        if any(Part(at.queue, partition) not in found for partition in range(at.partitions)):
            raise ServerFailed(
                f"queue {at.queue!r} has {at.partitions} partitions, and the server tells of some only: its version is "
                "too old for such queues"
            )


def _by_queue(offsets: Mapping[Part, int]) -> dict[str, int | list[int]]:
    """Offsets as requests have them: a number, or several.

    >>> _by_queue({Part("orders", 0): 7, Part("wide", 0): 1, Part("wide", 1): 281474976710656})
    {'orders': 7, 'wide': [1, 281474976710656]}
    """
    queues: dict[str, list[int]] = {}
    for part, offset in offsets.items():
        queues.setdefault(part.queue, []).append(offset)
    return {queue: _plain(some) for queue, some in queues.items()}


def _plain(offsets: Sequence[int]) -> int | list[int]:
    return offsets[0] if len(offsets) == 1 else list(offsets)


def _asked_columns(columns: tuple[str, ...]) -> dict[str, Any]:
    """Columns as requests have them. Servers of earlier versions know two choices."""
    if columns in (_COLUMNS, (*_COLUMNS, "headers")):
        return {"headers": columns != _COLUMNS}
    return {"columns": columns}


def _once_only() -> dict[str, str]:
    """Headers of a request that says, when it is repeated, that it is the same one. (An old server does not mind.)"""
    return {**_JSON, "idempotency-key": uuid.uuid4().hex}


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # an SSLError is one
        raise ServerFailed(f"caFile {ca_file!r} cannot be read as certificates here: {error}") from error


def _refusal(response: http.client.HTTPResponse, what: str) -> ServerFailed:
    data = response.read()
    try:
        problem = json.loads(data)
        detail, code = str(problem["detail"]), str(problem["code"])
    except (ValueError, KeyError, TypeError):
        detail, code = data[:500].decode("utf-8", "replace") or response.reason, ""
    return ServerFailed(f"{detail} ({what}: {response.status})", code, response.status)


class ServerPlace:
    """Reads by way of a server."""

    def __init__(self, where: Where) -> None:
        self._connection = Connection(where)
        self._timeout_s = where.timeout_s
        self.has_kafka_log = True

    def queues(self) -> list[str]:
        """The names of all queues that the token may read."""
        names: list[str] = []
        after = ""
        while True:
            page = self._connection.ask("POST", "/v1/bulk/queues", {"after": after, "limit": 10_000})
            names += page["queues"]
            after = page["last"]
            if not after:
                return names

    def find(
        self,
        queues: Sequence[str],
        *,
        times_ms: Sequence[int] = (),
        after: Mapping[Part, int] | None = None,
        bytes_max: Mapping[str, int] | None = None,
    ) -> dict[Part, Offsets]:
        """Where the messages of queues stand."""
        body = {
            "queues": list(queues),
            "times_ms": list(times_ms),
            "after": _by_queue(after or {}),
            "bytes_max": dict(bytes_max or {}),
        }
        reply = self._connection.ask("POST", "/v1/bulk/offsets", body)
        self.has_kafka_log = reply.get("has_kafka_log", True)
        replies = [msgspec.convert(each, Offsets) for each in reply["offsets"]]
        found = {Part(at.queue, at.partition): at for at in replies}
        if after is None:
            _check_partitions(found)
        return found

    def batches(self, wanted: Range, columns: tuple[str, ...]) -> Iterator[Any]:
        """The messages of a range that are there. When the connection breaks, it goes on where it was."""
        import pyarrow as pa

        offset = wanted.start
        broken_s: float | None = None
        """Since when nothing has come."""
        while offset < wanted.stop:
            asked = {
                "queue": wanted.queue,
                "offset": offset,
                "end": wanted.stop,
                "limit": _RECORDS_PER_REQUEST,
                "bytes_max": _RECORDS_PER_REQUEST_BYTES,
                **_asked_columns(columns),
            }
            response = self._connection.request("POST", "/v1/bulk/read", json.dumps(asked).encode(), _JSON)
            begun, next_offset = offset, int(response.headers["penstock-next-offset"])
            try:
                with contextlib.closing(pa.ipc.open_stream(response)) as stream:
                    for batch in stream:
                        broken_s = None
                        yield batch
                        if batch.num_rows:
                            offset = batch["offset"][-1].as_py() + 1
                response.read()
                if response.length:  # neither Arrow nor http.client minds an end between two batches
                    raise http.client.IncompleteRead(b"", response.length)
            except (*_UNREACHABLE, pa.ArrowInvalid) as error:
                self._connection.close()
                if broken_s is None:
                    broken_s = time.monotonic()
                elif time.monotonic() > broken_s + self._timeout_s:
                    raise ServerFailed(f"the stream of queue {wanted.queue!r} broke off: {error!r}") from error
                else:
                    time.sleep(_PAUSE_S_MIN)
                continue
            if next_offset <= begun:  # nothing is left before the end
                return
            offset = next_offset

    def create_channel(self, queue: str, channel: str, offsets: Sequence[int]) -> None:
        """Keep what is sent from an offset of each partition on."""
        body = {"queue": queue, "channel": channel, "offset": _plain(offsets)}
        self._connection.ask("POST", "/v1/bulk/channels", body)

    def ack_up_to(self, channel: str, offsets: Mapping[Part, int]) -> None:
        """A channel is done with what was sent before these offsets."""
        if offsets:
            self._connection.ask("POST", "/v1/bulk/ack", {"channel": channel, "offsets": _by_queue(offsets)})

    def take(self, queue: str, channel: str, limit: int, columns: tuple[str, ...]) -> tuple[Any, list[Any]]:
        """Lease messages: a table of them, and the spans to settle."""
        import pyarrow as pa

        body = {"queue": queue, "channel": channel, "limit": limit, **_asked_columns(columns)}
        data = json.dumps(body).encode()
        answer = self._connection.fetch("POST", "/v1/bulk/take", data, _once_only())
        table = pa.ipc.open_stream(answer).read_all()
        return table, json.loads(table.schema.metadata[b"penstock-spans"])

    def settle(self, queue: str, channel: str, spans: list[Any], *, done: bool) -> int:
        """Acknowledge what was taken, or give it back. Returns how many messages that were."""
        body = {"queue": queue, "channel": channel, "spans": spans, "done": done}
        settled: int = self._connection.ask("POST", "/v1/bulk/settle", body, _once_only())["settled"]
        return settled

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
