"""A request's way in and out: who calls, what is asked, the operation, the answer.

Every path of the API is an `Endpoint`, which has an operation for each method. A call of it decodes the body by its
content type (JSON, or MessagePack for the operations that take batches), runs the operation in a task, and encodes the
result in what the caller accepts. Everything that goes wrong leaves as a problem (`problems.py`).

Callers are checked before anything else. If a body does not come with its header, that is before it is read
(`check_header`).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import logging
import os
import re
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, Protocol, Union, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec

from penstock.core.errors import PenstockError, RateLimited
from penstock.protocols.front_end import hosts_of, is_own_page
from penstock.protocols.http import BodyLeft, BodyRefused, Exchange, Headers, Observer, Terms
from penstock.protocols.rest.caller import Caller, CallerGone, caller_of, rates_of
from penstock.protocols.rest.operations import BATCH, JSON, Batch, Blocks, Operation, Reply
from penstock.protocols.rest.problems import (
    CONTENT_TYPE,
    RestError,
    code_of,
    headers_of,
    invalid,
    problem_of,
    retry_after,
    status_of,
    stopping,
)
from penstock.server.audit import audit_of
from penstock.server.auth import ANYBODY, Principal
from penstock.server.node import Services
from penstock.server.settings import ConsoleSettings

# Who calls, and whether it may: credentials, web pages, rates. For everything that is served on REST's port.
#
# A server without credentials trusts everybody on its machine, but not the pages in their browsers. A page of this very
# server may call (the page of the documentation does); browsers say that with `Sec-Fetch-Site` or `Origin`. They
# believe it of any name that leads here, which an attacker's name can be made to do, so the host must be one that the
# server knows as its own, even where `[server] hosts` is `*`. Origins in `[rest] cors_origins` may call in any case.
#
# Passwords (basic authentication) do not prove that it is no page that calls: a browser that was given one sends it
# along with the requests of any page.


_CHALLENGE = (("www-authenticate", 'Bearer realm="penstock"'),)


class Guard:
    """Lets callers in."""

    def __init__(self, services: Services) -> None:
        self._credentials = services.credentials
        self._origins = frozenset(services.settings.rest.cors_origins)
        self._hosts = hosts_of(services.settings)
        self._rates = rates_of(services)

    def admit(self, headers: Mapping[str, str], peer: str) -> Principal:
        """Who calls. Raises `RestError` if it must not: 401, 403 or 429."""
        principal = self.principal(headers, peer)
        self.count(principal, peer)
        return principal

    def principal(self, headers: Mapping[str, str], peer: str) -> Principal:
        """Who calls, by its credentials; anybody, where there are none and it is no foreign web page."""
        if not self._credentials.are_required:
            self.refuse_foreign_pages(headers)
            return ANYBODY
        authorization = headers.get("authorization")
        if authorization is None:
            raise RestError(401, "unauthorized", "this server needs credentials: Authorization: Bearer ...", _CHALLENGE)
        principal = self._check(authorization, headers, peer)
        if principal is None:
            raise RestError(401, "unauthorized", "the token or the secret is wrong", _CHALLENGE)
        return principal

    def _check(self, authorization: str, headers: Mapping[str, str], peer: str) -> Principal | None:
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return self._credentials.check_bearer(rest.strip(), peer)
        if scheme.lower() != "basic":
            return None
        self.refuse_foreign_pages(headers)
        try:
            access_key, _, secret_key = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
        except ValueError:
            return None
        return self._credentials.check_password(access_key, secret_key, peer)

    def refuse_foreign_pages(self, headers: Mapping[str, str]) -> None:
        """Raise if a browser sends this for a page of somebody else."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin is None and site == "none":
            return
        if origin is not None and (origin in self._origins or "*" in self._origins):
            return
        host = headers.get("host", "")
        is_own = origin is None or origin.partition("://")[2] == host
        if not (is_own and site in ("none", "same-origin") and self._hosts.knows(host)):
            raise RestError(
                403,
                "foreign_page",
                "web pages may not call without a token: add [[credentials]] with a token for them, or the page's "
                "origin to [rest] cors_origins",
            )

    def count(self, principal: Principal, peer: str) -> None:
        """Count a request of a caller; raise if it calls too often."""
        if self._rates is None:
            return
        try:
            self._rates.count(caller_of(principal, peer))
        except RateLimited as error:
            raise RestError(429, "rate_limited", str(error), retry_after(error.wait_s)) from None


KEY = "idempotency-key"
_KEY_LENGTH_MAX = 256


def request_name(key: str | None, principal: Principal, what: bytes, body: bytes) -> str | None:
    """A name that only the same request of the same caller with the same key has; None without a key."""
    if key is None:
        return None
    if not 1 <= len(key) <= _KEY_LENGTH_MAX:
        raise invalid(f"Idempotency-Key has {len(key)} characters: give 1 to {_KEY_LENGTH_MAX}")
    hashed = hashlib.blake2b(digest_size=24)
    for part in (principal.access_key.encode(), key.encode(), what, body):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()


log = logging.getLogger("penstock.rest")

ROUTE = "penstock-route"
"""The header by which a client that routes itself asks for 409 instead of being forwarded."""
_QUERY_FIELDS_MAX = 100
_LOOKED_AT_BYTES_MAX = 64 * 1024
_ABANDONED = 499
"""For the log: nobody hears the answer."""
_UNKNOWN = "unknown"
_REFUSED = re.compile(r";\s*q=0(\.0*)?\s*(;|$)")
Parameters = Mapping[str, str]


class Route(Protocol):
    """What is at a path."""

    def check_header(self, exchange: Exchange, parameters: Parameters) -> Terms | None:
        """Look at a request whose body is still to come."""
        ...

    def handle(self, exchange: Exchange, parameters: Parameters) -> None:
        """Answer a request, now or later."""
        ...


class EndpointContext:
    """What all routes share."""

    def __init__(self, services: Services, observer: Observer) -> None:
        self.services = services
        self.guard = Guard(services)
        self.observer = observer
        self._id_prefix = os.urandom(6).hex()
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    def name(self, exchange: Exchange) -> None:
        """Give a request a name, in the log and in its response."""
        exchange.request_id = f"{self._id_prefix}-{next(self._ids):x}"

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Let it run, and do not forget it."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def fail(self, exchange: Exchange, error: PenstockError) -> None:
        """Answer with an error."""
        if not exchange.request_id:
            self.name(exchange)
        exchange.action = exchange.action or _UNKNOWN
        exchange.outcome = code_of(error)
        status = status_of(error)
        if status >= 500 and not isinstance(error, RestError):
            log.warning("%s: %s (request %s)", exchange.action, error, exchange.request_id)
        headers = [*_fixed(exchange), ("content-type", CONTENT_TYPE), *headers_of(error)]
        exchange.respond(status, headers, msgspec.json.encode(problem_of(error)))

    def fail_unexpectedly(self, exchange: Exchange) -> None:
        """Answer with an error that is a bug; to be called while it is handled."""
        log.exception("%s failed (request %s)", exchange.action, exchange.request_id)
        self.fail(
            exchange, RestError(500, "internal_error", f"the server's log says more: request {exchange.request_id}")
        )

    def abandon(self, exchange: Exchange) -> None:
        """The client is gone."""
        exchange.outcome = "abandoned"
        self.observer(exchange, _ABANDONED)


def _fixed(exchange: Exchange) -> Headers:
    return ("x-request-id", exchange.request_id), ("cache-control", "no-store")


def not_found(exchange: Exchange) -> RestError:
    """There is nothing at a path."""
    return RestError(404, "path_not_found", f"there is nothing at {exchange.request.path}: see /v1/docs")


def not_allowed(methods: Iterable[str]) -> RestError:
    """There is something, for other methods."""
    allowed = ", ".join(sorted(methods))
    return RestError(405, "method_not_allowed", f"use {allowed} here", (("allow", allowed),))


class _Coding:
    """How an operation's bodies are decoded."""

    __slots__ = ("batch", "json")

    def __init__(self, operation: Operation) -> None:
        is_raw = operation.body in (None, bytes, Blocks)
        self.json = None if is_raw else msgspec.json.Decoder(operation.body)
        self.batch = None if operation.batch is None else msgspec.msgpack.Decoder(operation.batch)


class Endpoint:
    """One path: an operation for each of its methods."""

    def __init__(self, context: EndpointContext, operations: Iterable[Operation]) -> None:
        self._context = context
        self.operations = {operation.method: operation for operation in operations}
        self._codings = {method: _Coding(operation) for method, operation in self.operations.items()}

    def check_header(self, exchange: Exchange, parameters: Parameters) -> Terms | None:
        """Let a caller in before its body is read, or refuse it."""
        operation_call = self._enter(exchange)
        if operation_call is None:
            return None
        exchange.context = operation_call
        return Terms(operation_call.body_bytes_max, is_streamed=operation_call.operation.body is Blocks)

    def handle(self, exchange: Exchange, parameters: Parameters) -> None:
        """Answer a request."""
        operation_call = exchange.context or self._enter(exchange)
        exchange.context = None  # they know each other
        if isinstance(operation_call, OperationCall):
            operation_call.begin(self._codings[operation_call.operation.method], parameters)

    def _enter(self, exchange: Exchange) -> OperationCall | None:
        context = self._context
        context.name(exchange)
        try:
            operation = self.operations.get(exchange.request.method)
            if operation is None:
                raise not_allowed(self.operations)
            exchange.action, exchange.protocol = operation.name, operation.protocol
            return OperationCall(context, exchange, operation)
        except PenstockError as error:
            context.fail(exchange, error)
            return None


class OperationCall:
    """One request to an operation, by a caller that may call."""

    __slots__ = ("_caller", "_context", "_exchange", "_is_page", "body_bytes_max", "operation")

    def __init__(self, context: EndpointContext, exchange: Exchange, operation: Operation) -> None:
        services, request = context.services, exchange.request
        if services.is_stopping:
            raise stopping()
        principal = context.guard.admit(request.headers, request.peer)
        exchange.principal = principal.name
        self._is_page = is_own_page(request.headers)
        if self._is_page:
            _check_page(services.settings.console, operation)
        self._context = context
        self._exchange = exchange
        self._caller = Caller(exchange, principal, services.budget)
        self._caller.wanted = _choose(operation, request.headers)
        self.operation = operation
        self.body_bytes_max = operation.body_bytes_max or services.settings.http.body_bytes_max

    def begin(self, coding: _Coding, parameters: Parameters) -> None:
        """The body is there, or the operation takes it while it comes."""
        exchange, request = self._exchange, self._exchange.request
        try:
            if len(request.body) > self.body_bytes_max:
                exchange.keeps_alive = False
                raise RestError(
                    413, "body_too_large", f"a body may have {self.body_bytes_max} bytes: send less at a time"
                )
            if KEY in request.headers:
                what = f"{request.method} {request.path}?{request.query}".encode("latin-1")
                self._caller.request_name = request_name(
                    request.headers[KEY], self._caller.principal, what, request.body
                )
            arguments = self._arguments(coding, parameters)
        except PenstockError as error:
            self._context.fail(exchange, error)
        except Exception:
            self._context.fail_unexpectedly(exchange)
        else:
            self._context.run(self._run(arguments))

    async def _run(self, arguments: dict[str, Any]) -> None:
        exchange, caller, context = self._exchange, self._caller, self._context
        try:
            if (queue := arguments.get("queue")) is not None:
                await self._find(queue)
            try:
                result = await self.operation.run(caller, **arguments)
            except (CallerGone, BodyLeft, BodyRefused):
                raise
            except Exception as error:
                self._audit(arguments, None, code_of(error) if isinstance(error, PenstockError) else "internal_error")
                raise
            self._audit(arguments, result, "ok")
            if exchange.is_gone or not await self._answer(result):
                raise CallerGone
        except (CallerGone, BodyLeft):
            caller.give_back(context.services.shard)
            context.abandon(exchange)
        except BodyRefused as error:
            context.fail(exchange, RestError(error.status, error.code, str(error)))
        except PenstockError as error:
            caller.give_back(context.services.shard)
            context.fail(exchange, error)
        except Exception:
            caller.give_back(context.services.shard)
            context.fail_unexpectedly(exchange)
        finally:
            caller.close()

    def _audit(self, arguments: dict[str, Any], result: Any, outcome: str) -> None:
        """Every change is written down; what the console does, whatever it is. A dry run changes nothing."""
        operation = self.operation
        if getattr(arguments.get("body"), "dry_run", False):
            return
        if operation.is_change or (self._is_page and operation.method != "GET"):
            services, request = self._context.services, self._exchange.request
            queue = self._exchange.queue or arguments.get("queue")
            scope = scope_of(arguments, result)
            audit_of(services).note(
                self._caller.principal.name,
                request.peer,
                operation.name,
                queue,
                scope,
                outcome,
                is_daily=not operation.is_change,
            )

    async def _find(self, queue: str) -> None:
        """Ask for a queue of another node, so that it can be read of; or say where it is, if that is what is wanted."""
        route = self._exchange.request.headers.get(ROUTE)
        if route is not None:
            if route not in ("strict", "forward"):
                raise invalid(f"{ROUTE} is {route[:50]!r}: it must be strict or forward")
            maps = self._context.services.partition_maps
            if route == "strict" and maps is not None:
                maps.current().check(queue)
        shard = self._context.services.shard
        if shard.unknown(queue, now=self.operation.method != "POST"):
            await shard.know(queue, now=True)

    def _arguments(self, coding: _Coding, parameters: Parameters) -> dict[str, Any]:
        operation, request = self.operation, self._exchange.request
        arguments: dict[str, Any] = dict(parameters)
        if operation.query is not None:
            arguments["query"] = decode_query(request.query, operation.query)
        if coding.json is not None:
            arguments["body"] = _decode(coding, request.body, request.headers)
        elif operation.body is not None:
            arguments["body"] = request.body if operation.body is bytes else Blocks(request)
        return arguments

    async def _answer(self, result: Any) -> bool:
        """False if the client is gone."""
        exchange, operation, fixed = self._exchange, self.operation, _fixed(self._exchange)
        if result is None:
            return exchange.respond(204, fixed, b"")
        if isinstance(result, Reply):
            headers = [*fixed, ("content-type", result.content_type), *result.headers]
            is_heard = await exchange.respond_in_parts(operation.status, headers, result.parts, result.nbytes)
            if not is_heard and isinstance(result.parts, AsyncGenerator):  # a stream has no other end
                self._context.observer(exchange, operation.status)
                return True
            return is_heard
        if isinstance(result, Batch):
            body, content_type = msgspec.msgpack.encode(result), BATCH
        else:
            body, content_type = msgspec.json.encode(result), JSON
        return exchange.respond(operation.status, (*fixed, ("content-type", content_type)), body)


_KEPT_APART = frozenset({"queue", "query"})
_CONTENTS = frozenset({"body", "attributes", "messages", "encoding"})
"""Of messages: no line of the audit log has them."""


def scope_of(arguments: dict[str, Any], result: Any) -> dict[str, Any]:
    """What a change was about, and how much it changed: what was asked for, and the numbers of the answer."""
    scope: dict[str, Any] = {}
    scope |= {name: value for name, value in arguments.items() if name not in _KEPT_APART and isinstance(value, str)}
    body = arguments.get("body")
    if isinstance(body, list):
        scope["count"] = len(body)
    elif isinstance(body, msgspec.Struct):
        given = msgspec.to_builtins(body, enc_hook=str)
        defaults = {field.encode_name: field.default for field in msgspec.structs.fields(body)}
        for name, value in given.items() if isinstance(given, dict) else ():
            if name not in _CONTENTS and value is not None and value != defaults.get(name) and value != {}:
                scope[name] = value
    if isinstance(result, msgspec.Struct):
        found = {name: getattr(result, name) for name in result.__struct_fields__}
        scope |= {name: value for name, value in found.items() if type(value) is int and name not in scope}
    return scope


def _check_page(settings: ConsoleSettings, operation: Operation) -> None:
    if settings.read_only and operation.method != "GET":
        raise RestError(403, "read_only", "the console of this server is read-only: [console] read_only says so")
    if settings.mask and operation.reveals:
        raise RestError(
            403, "masked", "this server masks messages: its pages may browse messages, but not receive or read them"
        )


def _choose(operation: Operation, headers: Mapping[str, str]) -> str:
    """The content type of the answer."""
    accept = headers.get("accept", "*/*")
    if operation.offers == (JSON,) and ("json" in accept or accept == "*/*"):
        return JSON
    sent = _media_type(headers.get("content-type", ""))
    offers = sorted(operation.offers, key=lambda offer: offer != sent)
    accepted = [_media_type(part) for part in accept.split(",") if not _REFUSED.search(part)]
    for wish in accepted:
        for offer in offers:
            if wish in ("*/*", offer, f"{offer.partition('/')[0]}/*"):
                return offer
    raise RestError(406, "not_acceptable", f"the answer can be {', '.join(operation.offers)}: accept one of them")


def _decode(coding: _Coding, body: bytes, headers: Mapping[str, str]) -> Any:
    sent = _media_type(headers.get("content-type", ""))
    if sent == BATCH and coding.batch is not None:
        return decode_body(coding.batch, body)
    if sent and sent != JSON and not sent.endswith("+json"):
        taken = JSON if coding.batch is None else f"{JSON} or {BATCH}"
        raise RestError(415, "unsupported_media_type", f"the body is {sent}, and must be {taken} (curl: use --json)")
    return decode_body(coding.json, body or b"{}")


def _media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


# -- decoding ----------------------------------------------------------------------------------------------------------


def decode_query(query: str, shape: type[msgspec.Struct]) -> msgspec.Struct:
    """The query of a URL as a struct. What it does not have is an error that names what it has.

    >>> class Page(msgspec.Struct, forbid_unknown_fields=True):
    ...     limit: int = 10
    >>> decode_query("limit=5", Page)
    Page(limit=5)
    >>> decode_query("limit=five", Page)
    Traceback (most recent call last):
        ...
    penstock.protocols.rest.problems.RestError: limit: Expected `int`, got `str`
    """
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError as error:
        raise invalid(f"the query cannot be read: {error}") from None
    found: dict[str, Any] = {}
    lists = _list_fields(shape)
    for name, value in pairs:
        if name in lists:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise invalid(f"{name} is given twice")
        elif name not in shape.__struct_encode_fields__:
            raise invalid(f"there is no parameter {name!r}; there are: {', '.join(shape.__struct_encode_fields__)}")
        else:
            found[name] = value
    try:
        return msgspec.convert(found, shape, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(_said(error, shape, found)) from None


@cache
def _list_fields(shape: type[msgspec.Struct]) -> frozenset[str]:
    kinds = {field.encode_name: field.type for field in msgspec.structs.fields(shape)}
    return frozenset(name for name, kind in kinds.items() if getattr(kind, "__origin__", None) is list)


def decode_body(decoder: Any, body: bytes) -> Any:
    """A body as what an operation takes, or what is wrong with it and where."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(_said(error, decoder.type, _plain(decoder, body))) from None
    except msgspec.DecodeError as error:
        raise RestError(400, "malformed_body", f"the body cannot be read: {error}") from None
    except RecursionError:
        raise RestError(400, "malformed_body", "the body cannot be read: it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise RestError(400, "malformed_body", f"the body cannot be read: its text is not UTF-8: {error}") from None


def _plain(decoder: Any, body: bytes) -> Any:
    """What is in a refused body, if it is so small that looking at all of it costs nothing."""
    if len(body) > _LOOKED_AT_BYTES_MAX:
        return None
    try:
        return (msgspec.json if isinstance(decoder, msgspec.json.Decoder) else msgspec.msgpack).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _said(error: msgspec.ValidationError, shape: Any = Any, given: Any = None) -> str:
    """What is wrong, with the field first: in msgspec's words where those are plain, and the words that it may be.

    >>> _said(msgspec.ValidationError("Expected `int`, got `str` - at `$.messages[3].delay`"))
    'messages[3].delay: Expected `int`, got `str`'
    >>> _said(msgspec.ValidationError("Object contains unknown field `bdy`"))
    'unknown field `bdy`: /v1/docs has the fields of every request'
    >>> _said(msgspec.ValidationError("Invalid enum value 'c' - at `$[0]`"), list[Literal["a", "b"] | int], ["c"])
    "[0]: Invalid enum value 'c': it must be a, b or a number"
    >>> _said(msgspec.ValidationError("Expected `int`, got `null` - at `$[...]`"), dict[str, int], {"a": 1, "b": None})
    "['b']: Expected `int`, got `null`"
    >>> _said(msgspec.ValidationError("Expected `int | float | str | object`, got `array` - at `$.attributes[...]`"))
    'attributes[...]: a list, and it must be a number, a text or an object'
    """
    text = re.sub(
        r"^Object (?:contains )?((?:unknown|missing required) field `.*?`)",
        r"\1: /v1/docs has the fields of every request",
        str(error),
    )
    found = re.search(r" - at `\$(.*?)`$", text)
    if found is None:
        return text
    place, text = "", text[: found.start()]
    kinds = [shape]
    for part in re.findall(r"\.\w+|\[\d+\]|\[\.\.\.\]", found[1]):
        kinds = [inner for kind in kinds for inner in _within(kind, part)]
        if part == "[...]" and isinstance(given, dict):
            wrong = (name for name, value in given.items() if not any(_is_one(value, kind) for kind in kinds))
            name = next(wrong, None)
            part, given = (part, None) if name is None else (f"[{name!r}]", given[name])
        elif isinstance(given, dict | list):
            given = given.get(part[1:]) if isinstance(given, dict) else given[int(part[1:-1])]
        place += part
    words = [word for kind in kinds for word in _choices(kind)]
    if words and text.startswith("Invalid enum value"):
        text += f": it must be {', '.join(words[:-1])} or {words[-1]}"
    return f"{place.removeprefix('.')}: {_plainly(text)}".removeprefix(": ")


_KINDS: Final = {"int": "a number", "float": "a number", "str": "a text", "object": "an object", "array": "a list"}
_KINDS_MORE: Final = {"bool": "true or false", "null": "null"}


def _plainly(text: str) -> str:
    """What msgspec says with a pattern, or with many types, in plain words.

    >>> _plainly("Expected `str` matching regex '^[A-Za-z0-9._#-]{1,128}$'")
    'a name has 1 to 128 letters, digits, dots, dashes, underscores or #'
    """
    if text.startswith("Expected `str` matching regex"):  # only names have one
        return "a name has 1 to 128 letters, digits, dots, dashes, underscores or #"
    found = re.fullmatch(r"Expected `(\w+(?: \| \w+)+)`, got `(\w+)`", text)
    if found is None:
        return text
    named = _KINDS | _KINDS_MORE
    words = list(dict.fromkeys(named.get(each, each) for each in found[1].split(" | ")))
    return f"{named.get(found[2], found[2])}, and it must be {', '.join(words[:-1])} or {words[-1]}"


def _parts(kind: Any) -> list[Any]:
    """The kinds that a kind is one of."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _parts(get_args(kind)[0])
    return [part for each in get_args(kind) for part in _parts(each)] if origin in (Union, UnionType) else [kind]


def _within(kind: Any, part: str) -> Iterator[Any]:
    """The kinds of what is at a place in a kind: in a field, in a list, by a name."""
    for each in _parts(kind):
        if part.startswith("["):
            yield from get_args(each)[-1 if part == "[...]" else 0 :][:1]
        elif isinstance(each, type) and issubclass(each, msgspec.Struct):
            yield from (field.type for field in msgspec.structs.fields(each) if field.encode_name == part[1:])


def _choices(kind: Any) -> Iterator[str]:
    parts = _parts(kind)
    for each in parts:
        yield from get_args(each) if get_origin(each) is Literal else ()
    if any(each in (int, float) for each in parts):
        yield "a number"


def _is_one(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True
