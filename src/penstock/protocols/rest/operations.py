"""Operations: what the API can do, declared once, beside the code that does it.

    @operation("POST", "/v1/queues/{queue}/purge")
    async def purge_queue(self, caller: Caller, queue: str) -> Purged:
        '''Delete a queue's messages.'''

From the declaration come the route, the checking of parameters and bodies, and the OpenAPI document: names in braces
are arguments; `query` and `body`, if the method has them, are decoded into the types that it gives them. A `body` that
is `bytes` is given as it is; one that is `Blocks`, while it comes. What the method returns is sent as JSON, or, for
`None`, as 204; a `Reply` is sent part by part. The docstring is the documentation.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.core.commands import Delivery, Run
from penstock.core.errors import QueueNotFound, SessionNotFound
from penstock.protocols.http import Headers, Request
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.problems import Problem
from penstock.protocols.websocket.admission import session_handle, session_number
from penstock.server.node import Services
from penstock.server.shard import give_back
from penstock.server.shards import Names, QueueView

_Method = TypeVar("_Method", bound=Callable[..., Any])
_MARK = "_penstock_operation"

JSON = "application/json"
BATCH = "application/vnd.penstock.batch+msgpack"
ARROW = "application/vnd.apache.arrow.stream"


class Blocks:
    """A body while it comes: some parts at a time, about a megabyte together."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        if self._request.stream is None:
            yield [self._request.body]
            return
        while parts := await self._request.stream.block():
            yield parts


class _Mark(NamedTuple):
    method: str
    path: str
    status: int
    offers: tuple[str, ...]
    body_bytes_max: int | None
    is_change: bool
    reveals: bool
    live_s: float | None


def operation(
    method: str,
    path: str,
    *,
    status: int = 200,
    offers: tuple[str, ...] = (JSON,),
    body_bytes_max: int | None = None,
    is_change: bool = False,
    reveals: bool = False,
    live_s: float | None = None,
) -> Callable[[_Method], _Method]:
    """Declare a method as an operation.

    `offers`: what it can answer with, the default first. `body_bytes_max`: if it is not that of `[http]`. `is_change`:
    it goes into the audit log, whoever calls it. `reveals`: it gives messages as they are, without masks. `live_s`: a
    stream (`/v1/live`) may watch its answer, and looks again after so many seconds.
    """

    def mark(function: _Method) -> _Method:
        setattr(function, _MARK, _Mark(method, path, status, offers, body_bytes_max, is_change, reveals, live_s))
        return function

    return mark


class Operation(NamedTuple):
    """An operation, ready to be run."""

    name: str
    method: str
    path: str
    tag: str
    summary: str
    description: str
    status: int
    offers: tuple[str, ...]
    protocol: str
    """What it is counted as."""
    body_bytes_max: int | None
    is_change: bool
    reveals: bool
    live_s: float | None
    run: Callable[..., Any]
    query: type[msgspec.Struct] | None
    body: Any
    """What a JSON body must be, or `bytes`, or `Blocks`; None if there is none."""
    batch: Any
    """What a binary body must be; None if it is not taken."""
    result: Any
    batch_result: Any

    @property
    def parameters(self) -> list[str]:
        """The names in the path."""
        return re.findall(r"{(\w+)}", self.path)


def operations_of(resources: Iterable[object]) -> Iterator[Operation]:
    """Every operation that some objects have, in the order in which they are written down."""
    for resource in resources:
        for name, function in vars(type(resource)).items():
            mark = getattr(function, _MARK, None)
            if isinstance(mark, _Mark):
                yield _operation(name, mark, resource, getattr(resource, name))


def _operation(name: str, mark: _Mark, resource: object, run: Callable[..., Any]) -> Operation:
    hints = typing.get_type_hints(run)
    summary, _, description = (inspect.getdoc(run) or "").partition("\n\n")
    body, result = hints.get("body"), hints.get("return")
    return Operation(
        name=name,
        method=mark.method,
        path=mark.path,
        tag=str(getattr(resource, "tag", "")),
        summary=summary.replace("\n", " "),
        description=description.replace("\n", " "),
        status=mark.status if result is not type(None) else 204,
        offers=mark.offers,
        protocol=str(getattr(resource, "protocol", "")),
        body_bytes_max=mark.body_bytes_max,
        is_change=mark.is_change,
        reveals=mark.reveals,
        live_s=mark.live_s,
        run=run,
        query=hints.get("query"),
        body=_of_wire(body, is_batch=False),
        batch=_of_wire(body, is_batch=True),
        result=_of_wire(result, is_batch=False),
        batch_result=_of_wire(result, is_batch=True),
    )


class Batch(msgspec.Struct):
    """Base of what travels as MessagePack. A method that takes it beside JSON takes the union of both."""


def _of_wire(hint: Any, *, is_batch: bool) -> Any:
    """The part of a union that travels as MessagePack, or the part that does not; None if there is no such part."""
    if hint is None or hint is type(None):
        return None
    is_union = typing.get_origin(hint) in (typing.Union, type(int | str))
    parts = typing.get_args(hint) if is_union else (hint,)
    wanted = [part for part in parts if (isinstance(part, type) and issubclass(part, Batch)) == is_batch]
    wanted = [part for part in wanted if part is not Reply]
    return None if not wanted else typing.Union[tuple(wanted)]  # noqa: UP007


class Reply:
    """An answer that is neither JSON nor MessagePack: its content type, further headers, and its bytes in parts."""

    __slots__ = ("content_type", "headers", "nbytes", "parts")

    def __init__(
        self,
        content_type: str,
        parts: Iterable[bytes | memoryview] | AsyncGenerator[bytes, None],
        headers: Headers = (),
        nbytes: int | None = None,
    ) -> None:
        self.content_type = content_type
        self.parts = parts
        self.headers = headers
        self.nbytes = nbytes
        """Of all parts, if that is known before they are made."""


# -- the OpenAPI document ----------------------------------------------------------------------------------------------

_REFERENCE = "#/components/schemas/{name}"
_NAME = {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9._#-]{1,128}$"}
_PARAMETERS: dict[str, dict[str, Any]] = {
    "queue": {"schema": _NAME, "description": "A queue's name."},
    "channel": {"schema": _NAME, "description": "A channel's name."},
    "consumer": {"schema": _NAME, "description": "A consumer's name."},
    "session": {
        "schema": {"type": "string", "pattern": "^[0-9]{1,19}$|^[0-9]{1,9}-[0-9]{1,18}$"},
        "description": "A session.",
    },
    "message": {
        "schema": {"type": "string", "maxLength": 128},
        "description": "A message's id, or its sequence number.",
    },
    "task": {"schema": {"type": "string", "pattern": "^[0-9]{1,18}$"}, "description": "A redrive's number."},
}
_ABOUT = """Durable queues over HTTP. Lengths of time are seconds, points in time are seconds since 1970.
Errors are `application/problem+json`; their `code` is for programs. Sends, acks, releases, extensions and units of work
take an `Idempotency-Key` header: a request with the same key is not done twice. docs/rest.md has examples."""
_PROBLEM = {
    "description": "What went wrong.",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def document(operations: Sequence[Operation], version: str, *, needs_credentials: bool) -> dict[str, Any]:
    """The whole document, as plain data."""
    schemas, components = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described = _described(operation, schemas, components)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    referred = [shape for operation in operations for shape in (operation.body, operation.result)]
    queries = {each.query.__name__ for each in operations if each.query is not None and each.query not in referred}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version, "description": _ABOUT, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "security": [{"bearer": []}, {"basic": []}] if needs_credentials else [],
        "components": {
            "schemas": {name: schema for name, schema in components.items() if name not in queries},
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A credential's token, or access_key:secret_key.",
                },
                "basic": {"type": "http", "scheme": "basic", "description": "Access key and secret key."},
            },
        },
    }


def _schemas(operations: Iterable[Operation]) -> tuple[dict[Any, dict[str, Any]], dict[str, dict[str, Any]]]:
    """A schema for each type, and what the schemas refer to."""
    types: list[Any] = [Problem]
    for operation in operations:
        found = (operation.query, operation.body, operation.result)
        types += [each for each in found if each is not None and each not in types]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    return dict(zip(types, schemas, strict=True)), components


def _described(
    operation: Operation, schemas: dict[Any, dict[str, Any]], components: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, **_PARAMETERS[name]} for name in operation.parameters),
            *_query_parameters(operation.query, components),
        ],
        "responses": {str(operation.status): _success(operation, schemas), "4XX": _PROBLEM, "5XX": _PROBLEM},
    }
    if operation.description:
        described["description"] = operation.description
    if operation.body is not None:
        content = {JSON: {"schema": schemas[operation.body]}}
        if operation.batch is not None:
            content[BATCH] = {"schema": _binary("MessagePack of", operation.batch)}
        described["requestBody"] = {"required": _must_be_given(operation.body), "content": content}
    return described


def _success(operation: Operation, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    if operation.result is None:
        return {"description": "Done."}
    content: dict[str, Any] = {JSON: {"schema": schemas[operation.result]}}
    if operation.batch_result is not None:
        content[BATCH] = {"schema": _binary("MessagePack of", operation.batch_result)}
    if ARROW in operation.offers:
        content[ARROW] = {"schema": {"type": "string", "contentMediaType": ARROW}}
    return {"description": operation.summary, "content": content}


def _binary(what: str, shape: Any) -> dict[str, Any]:
    return {"type": "string", "contentMediaType": BATCH, "description": f"{what} {shape.__name__}"}


def _must_be_given(body: Any) -> bool:
    """Whether an empty body would not do."""
    parts = typing.get_args(body) or (body,)
    return any(
        field.required
        for part in parts
        if isinstance(part, type) and issubclass(part, msgspec.Struct)
        for field in msgspec.structs.fields(part)
    )


def _query_parameters(
    query: type[msgspec.Struct] | None, components: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    if query is None:
        return []
    schema = components[query.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _not_null(field)}
        for name, field in schema["properties"].items()
    ]


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: a parameter that may be null is one that may be left out."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) != 1 or schema.get("default", 0) is not None:
        return schema
    return {**kinds[0], **({"description": schema["description"]} if "description" in schema else {})}


# -- what all resources share ------------------------------------------------------------------------------------------


class Resource:
    """The ground that operations stand on."""

    tag = ""
    """Under which heading the operations are documented."""
    protocol = ""
    """What calls of them are counted as, if not as REST's."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.shard = services.shard
        self.settings = services.settings.rest

    @property
    def broker(self) -> Names:
        """The broker as it is now, to be read from: ids, names, receipts. Changes go through the shard."""
        return self.shard.identity

    def queue(self, name: str) -> QueueView:
        """A queue that is there."""
        queue = self.broker.queues.get(name)
        if queue is None:
            self.broker.refuse_damaged(name)
            raise QueueNotFound.of(name)
        return queue

    # -- sessions --

    def handle(self, caller: Caller, number: int) -> str:
        """How a caller names a session of its own."""
        return str(session_handle(self.broker.meta.secret, caller.principal, number))

    def session(self, caller: Caller, handle: str | None) -> int:
        """The number of a session that the caller has opened; 0 for none."""
        if handle is None:
            return 0
        if not (handle.isascii() and handle.isdigit() and len(handle) < 20):
            raise SessionNotFound(f"session {handle[:50]!r} has ended, or never existed: open another one")
        return session_number(self.broker.meta.secret, caller.principal, int(handle))

    # -- what fits into a response --

    def fit(self, caller: Caller, delivery: Delivery) -> Delivery:
        """The delivery, as far as a response holds it; the rest is given back."""
        kept, rest = split_runs(delivery.runs, self.settings.response_bytes_max)
        if not rest:
            return delivery
        surplus = Delivery(delivery.queue, delivery.queue_id, delivery.channel, delivery.channel_id, 0, 0, rest)
        self.shard.submit(give_back(surplus), lambda _: None)
        delivery.runs = kept
        caller.delivery = delivery
        return delivery


def split_runs(runs: list[Run], bytes_max: int) -> tuple[list[Run], list[Run]]:
    """Runs whose bodies have so many bytes together (one message in any case), and the rest."""
    kept: list[Run] = []
    for number, run in enumerate(runs):
        offsets = run.chunk.offsets
        size = int(offsets[run.stop] - offsets[run.start])
        if size <= bytes_max:
            kept.append(run)
            bytes_max -= size
            continue
        fitting = int((offsets[run.start + 1 : run.stop + 1] - offsets[run.start] <= bytes_max).sum())
        if not kept:
            fitting = max(1, fitting)
        if fitting:
            kept.append(run.part(0, fitting))
        rest = [] if run.start + fitting == run.stop else [run.part(fitting, run.count)]
        return kept, rest + runs[number + 1 :]
    return kept, []
