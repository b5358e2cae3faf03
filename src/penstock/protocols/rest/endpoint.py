"""A request's way in and out: who calls, what is asked, the operation, the answer; the log and the counts.

Every path of the API is one ASGI application, an `Endpoint`, that has an operation for each method. A visit to it reads
the body within its limits, decodes it by its content type (JSON, or MessagePack for the operations that take batches),
runs the operation, and encodes the result in what the caller accepts. Everything that goes wrong leaves as a problem
(`problems.py`).
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping, MutableMapping
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.core.errors import PenstockError
from penstock.protocols.http import HttpCounters
from penstock.protocols.rest.body import BodyLeft, read_body
from penstock.protocols.rest.caller import Caller, CallerGone, Waits
from penstock.protocols.rest.guard import Guard
from penstock.protocols.rest.naming import KEY, request_name
from penstock.protocols.rest.operations import BATCH, JSON, Batch, Operation, Reply
from penstock.protocols.rest.problems import (
    CONTENT_TYPE,
    RestError,
    code_of,
    headers_of,
    invalid,
    problem_of,
    status_of,
)
from penstock.server.auth import Principal
from penstock.server.budget import Share
from penstock.server.node import Services

log = logging.getLogger("penstock.rest")

PROTOCOL = "rest"
ROUTE = "penstock-route"
"""The header by which a client that routes itself asks for 409 instead of being forwarded."""
_QUERY_FIELDS_MAX = 100
Header = tuple[bytes, bytes]


class Desk:
    """What all endpoints share."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.guard = Guard(services)
        self.waits = Waits()
        self.counters = HttpCounters()
        self._id_prefix = os.urandom(6).hex()
        self._ids = itertools.count(1)

    def next_id(self) -> str:
        """A name for a request, in the log and in its response."""
        return f"{self._id_prefix}-{next(self._ids):x}"


class _Coding:
    """How an operation's bodies are decoded."""

    __slots__ = ("batch", "json")

    def __init__(self, operation: Operation) -> None:
        self.json = None if operation.body is None else msgspec.json.Decoder(operation.body)
        self.batch = None if operation.batch is None else msgspec.msgpack.Decoder(operation.batch)


class Endpoint:
    """One path: an operation for each of its methods."""

    def __init__(self, desk: Desk, operations: Iterable[Operation]) -> None:
        self._desk = desk
        self.operations = {operation.method: operation for operation in operations}
        self._codings = {method: _Coding(operation) for method, operation in self.operations.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        visit = Visit(self._desk, scope, receive, send)
        self._desk.waits.enter()
        try:
            operation = self.operations.get(scope["method"])
            if operation is None:
                allowed = ", ".join(sorted(self.operations)).encode()
                await visit.fail(
                    RestError(405, "method_not_allowed", f"use {allowed.decode()} here", ((b"allow", allowed),))
                )
            else:
                await visit.run(operation, self._codings[operation.method])
        finally:
            self._desk.waits.leave()


async def not_found(desk: Desk, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request for a path that is not there."""
    await Visit(desk, scope, receive, send).fail(
        RestError(404, "path_not_found", f"there is nothing at {scope['path']}: see /v1/docs")
    )


class Visit:
    """One request."""

    __slots__ = ("_action", "_caller", "_desk", "_headers", "_id", "_receive", "_scope", "_send", "_started_s")

    def __init__(self, desk: Desk, scope: Scope, receive: Receive, send: Send) -> None:
        self._desk = desk
        self._scope = scope
        self._receive = receive
        self._send = send
        self._started_s = time.perf_counter()
        self._id = desk.next_id()
        self._headers = _headers_of(scope)
        self._caller: Caller | None = None
        self._action = "unknown"

    async def run(self, operation: Operation, coding: _Coding) -> None:
        """Run the operation, and answer."""
        self._action = operation.name
        with self._desk.services.budget.share() as share:
            await self._run(operation, coding, share)

    async def _run(self, operation: Operation, coding: _Coding, share: Share) -> None:
        try:
            if self._desk.services.is_stopping:
                raise RestError(503, "stopping", "the server is stopping", ((b"retry-after", b"1"),))
            principal = self._desk.guard.admit(self._headers, self._peer)
            caller = self._caller = Caller(self._scope, self._receive, self._desk.waits, principal, share)
            caller.wanted = self._choose(operation)
            limits = self._desk.services.settings.http
            body = await read_body(
                self._receive,
                self._headers.get("content-length"),
                share,
                bytes_max=limits.body_bytes_max,
                seconds=limits.body_timeout_s,
            )
            caller.request_name = self._name_of(principal, body)
            arguments = self._arguments(operation, coding, body)
            if (queue := arguments.get("queue")) is not None:
                await self._find(queue, operation)
            result = await operation.run(caller, **arguments)
            await self._succeed(operation, caller, result)
        except (CallerGone, BodyLeft):
            self._abandon()
        except PenstockError as error:
            await self._fail(error)
        except Exception:
            log.exception("%s failed (request %s)", operation.name, self._id)
            await self._fail(RestError(500, "internal_error", f"the server's log says more: request {self._id}"))

    async def _find(self, queue: str, operation: Operation) -> None:
        """Ask for a queue of another node, so that it can be read of; or say where it is, if that is what is wanted."""
        route = self._headers.get(ROUTE)
        if route is not None:
            if route not in ("strict", "forward"):
                raise invalid(f"{ROUTE} is {route[:50]!r}: it must be strict or forward")
            maps = self._desk.services.partition_maps
            if route == "strict" and maps is not None:
                maps.current().check(queue)
        shard = self._desk.services.shard
        if shard.unknown(queue, now=operation.method != "POST"):
            await shard.know(queue, now=True)

    async def fail(self, error: PenstockError) -> None:
        """Answer with an error."""
        await self._fail(error)

    @property
    def _peer(self) -> str:
        client = self._scope.get("client")
        return str(client[0]) if client else ""

    # -- what is asked --

    def _choose(self, operation: Operation) -> str:
        """The content type of the answer."""
        accept = self._headers.get("accept", "*/*")
        if operation.offers == (JSON,) and "json" in accept:
            return JSON
        sent = _media_type(self._headers.get("content-type", ""))
        offers = sorted(operation.offers, key=lambda offer: offer != sent)
        accepted = [_media_type(part) for part in accept.split(",") if not _is_refused(part)]
        for wish in accepted:
            for offer in offers:
                if wish in ("*/*", offer, f"{offer.partition('/')[0]}/*"):
                    return offer
        raise RestError(406, "not_acceptable", f"this can be answered with {', '.join(operation.offers)}")

    def _name_of(self, principal: Principal, body: bytes) -> str | None:
        """A name that only the same request of the same caller with the same `Idempotency-Key` has."""
        path = f"{self._scope['method']} {self._scope['path']}?".encode() + self._scope["query_string"]
        return request_name(self._headers.get(KEY), principal, path, body)

    def _arguments(self, operation: Operation, coding: _Coding, body: bytes) -> dict[str, Any]:
        arguments: dict[str, Any] = dict(self._scope["path_params"])
        if operation.query is not None:
            arguments["query"] = decode_query(self._scope["query_string"], operation.query)
        if coding.json is not None:
            arguments["body"] = self._decode(body, coding)
        return arguments

    def _decode(self, body: bytes, coding: _Coding) -> Any:
        sent = _media_type(self._headers.get("content-type", ""))
        if sent == BATCH and coding.batch is not None:
            return decode_body(coding.batch, body)
        if sent and sent != JSON and not sent.endswith("+json"):
            taken = JSON if coding.batch is None else f"{JSON} or {BATCH}"
            raise RestError(
                415, "unsupported_media_type", f"the body is {sent}, and must be {taken} (curl: use --json)"
            )
        return decode_body(coding.json, body or b"{}")

    # -- what is answered --

    async def _succeed(self, operation: Operation, caller: Caller, result: Any) -> None:
        shard = self._desk.services.shard
        if caller.is_gone:
            caller.give_back(shard)
            self._abandon()
            return
        try:
            status, content_type, body, headers = _encoded(operation, result)
        except BaseException:
            caller.give_back(shard)
            raise
        if isinstance(result, Reply):
            await self._stream(status, content_type, result.parts, headers)
        else:
            await self._respond(status, content_type, body, headers)
        self._note(status, "ok")

    async def _fail(self, error: PenstockError) -> None:
        if self._caller is not None:
            self._caller.give_back(self._desk.services.shard)
        status = status_of(error)
        if status >= 500 and not isinstance(error, RestError):
            log.warning("%s: %s (request %s)", self._action, error, self._id)
        await self._respond(status, CONTENT_TYPE, msgspec.json.encode(problem_of(error)), headers_of(error))
        self._note(status, code_of(error))

    async def _respond(self, status: int, content_type: bytes, body: bytes, headers: Iterable[Header] = ()) -> None:
        await self._start(status, content_type, [(b"content-length", str(len(body)).encode()), *headers])
        await self._send({"type": "http.response.body", "body": body})

    async def _stream(
        self, status: int, content_type: bytes, parts: Iterable[bytes], headers: Iterable[Header]
    ) -> None:
        await self._start(status, content_type, headers)
        for part in parts:
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, content_type: bytes, headers: Iterable[Header]) -> None:
        fixed = [(b"x-request-id", self._id.encode()), (b"cache-control", b"no-store")]
        if status != 204:
            fixed.append((b"content-type", content_type))
        kept = [header for header in headers if status != 204 or header[0] != b"content-length"]
        await self._send({"type": "http.response.start", "status": status, "headers": fixed + kept})

    def _abandon(self) -> None:
        self._desk.counters.abandoned += 1
        self._note(499, "abandoned")

    def _note(self, status: int, outcome: str) -> None:
        services, caller = self._desk.services, self._caller
        seconds = time.perf_counter() - self._started_s
        services.meter.note(PROTOCOL, self._action, outcome, seconds)
        if services.request_log.wants(status):
            services.request_log.note(
                PROTOCOL,
                status,
                seconds,
                request_id=self._id,
                peer=self._peer,
                principal="" if caller is None else caller.principal.name,
                action=self._action,
                queue="" if caller is None else caller.queue,
                outcome=outcome,
            )


def _encoded(operation: Operation, result: Any) -> tuple[int, bytes, bytes, tuple[Header, ...]]:
    if result is None:
        return 204, b"", b"", ()
    if isinstance(result, Reply):
        return operation.status, result.content_type.encode(), b"", result.headers
    if isinstance(result, Batch):
        return operation.status, BATCH.encode(), msgspec.msgpack.encode(result), ()
    return operation.status, JSON.encode(), msgspec.json.encode(result), ()


def _headers_of(scope: MutableMapping[str, Any]) -> Mapping[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def _is_refused(accepted: str) -> bool:
    return re.search(r";\s*q=0(\.0*)?\s*(;|$)", accepted) is not None


# -- decoding ----------------------------------------------------------------------------------------------------------


def decode_query(query: bytes, shape: type[msgspec.Struct]) -> msgspec.Struct:
    """The query of a URL as a struct. What it does not have is an error that names what it has.

    >>> class Page(msgspec.Struct, forbid_unknown_fields=True):
    ...     limit: int = 10
    >>> decode_query(b"limit=5", Page)
    Page(limit=5)
    >>> decode_query(b"limit=five", Page)
    Traceback (most recent call last):
        ...
    penstock.protocols.rest.problems.RestError: limit: Expected `int`, got `str`
    """
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError as error:
        raise invalid(f"the query cannot be read: {error}") from None
    found: dict[str, Any] = {}
    lists = _list_fields(shape)
    for name, value in pairs:
        if name in lists:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise invalid(f"{name} is there twice")
        elif name not in shape.__struct_encode_fields__:
            raise invalid(f"there is no parameter {name!r}; there are: {', '.join(shape.__struct_encode_fields__)}")
        else:
            found[name] = value
    try:
        return msgspec.convert(found, shape, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(_said(error)) from None


@cache
def _list_fields(shape: type[msgspec.Struct]) -> frozenset[str]:
    kinds = {field.encode_name: field.type for field in msgspec.structs.fields(shape)}
    return frozenset(name for name, kind in kinds.items() if getattr(kind, "__origin__", None) is list)


def decode_body(decoder: Any, body: bytes) -> Any:
    """A body as what an operation takes, or what is wrong with it and where."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(_said(error)) from None
    except msgspec.DecodeError as error:
        raise RestError(400, "malformed_body", f"the body cannot be read: {error}") from None
    except RecursionError:
        raise RestError(400, "malformed_body", "the body cannot be read: it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise RestError(400, "malformed_body", f"the body cannot be read: its text is not UTF-8: {error}") from None


def _said(error: msgspec.ValidationError) -> str:
    """msgspec's words, with the field first.

    >>> _said(msgspec.ValidationError("Expected `int`, got `str` - at `$.messages[3].delay`"))
    'messages[3].delay: Expected `int`, got `str`'
    """
    text = str(error)
    found = re.search(r" - at `\$\.?(.*?)`$", text)
    return text if found is None else f"{found[1]}: {text[: found.start()]}".removeprefix(": ")
