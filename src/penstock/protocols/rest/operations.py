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
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.protocols.http import Headers, Request

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


def operation(
    method: str,
    path: str,
    *,
    status: int = 200,
    offers: tuple[str, ...] = (JSON,),
    body_bytes_max: int | None = None,
) -> Callable[[_Method], _Method]:
    """Declare a method as an operation.

    `offers`: what it can answer with, the default first. `body_bytes_max`: if it is not that of `[http]`.
    """

    def mark(function: _Method) -> _Method:
        setattr(function, _MARK, _Mark(method, path, status, offers, body_bytes_max))
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
    parts = typing.get_args(hint) if _is_union(hint) else (hint,)
    wanted = [part for part in parts if (isinstance(part, type) and issubclass(part, Batch)) == is_batch]
    wanted = [part for part in wanted if part is not Reply]
    return None if not wanted else typing.Union[tuple(wanted)]  # noqa: UP007


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, type(int | str))


class Reply:
    """An answer that is neither JSON nor MessagePack: its content type, further headers, and its bytes in parts."""

    __slots__ = ("content_type", "headers", "nbytes", "parts")

    def __init__(
        self,
        content_type: str,
        parts: Iterable[bytes | memoryview],
        headers: Headers = (),
        nbytes: int | None = None,
    ) -> None:
        self.content_type = content_type
        self.parts = parts
        self.headers = headers
        self.nbytes = nbytes
        """Of all parts, if that is known before they are made."""
