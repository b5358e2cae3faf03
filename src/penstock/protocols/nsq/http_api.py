"""What the HTTP APIs of nsqd and nsqlookupd have in common: routes, arguments, and the shape of answers and errors.

An answer is JSON, plain text, or nothing; an error is `{"message": "MISSING_ARG_TOPIC"}` with its status.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from penstock.protocols.http import PLAIN_TEXT, Exchange, Headers, Request
from penstock.protocols.nsq.wire import is_name
from penstock.server.auth import ANYBODY, Principal

_VERSION = ("x-nsq-content-type", "nsq; version=1.0")
_JSON: Headers = (("content-type", "application/json; charset=utf-8"), _VERSION)
_TEXT: Headers = (*PLAIN_TEXT, _VERSION)
_ARGUMENTS_MAX = 100
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})|;")

Answer = Any
"""None, text as str or bytes, something that becomes JSON, or `Json`."""
Work = Coroutine[Any, Any, Answer]
"""An answer that takes a while."""


class ApiError(Exception):
    """An error as the API tells it: a status, and a word in capitals."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


class Json(msgspec.Struct):
    """An answer that is JSON already."""

    text: bytes


class Arguments:
    """What a request's URL carries.

    >>> Arguments("topic=orders&topic=other").text("topic")
    'orders'
    """

    __slots__ = ("_values",)

    def __init__(self, query: str) -> None:
        self._values: dict[str, str] = {}
        if not query:
            return
        if _BAD_ESCAPE.search(query) is not None:
            raise ApiError(400, "INVALID_REQUEST")
        try:
            pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_ARGUMENTS_MAX)
        except ValueError:
            raise ApiError(400, "INVALID_REQUEST") from None
        for name, value in pairs:
            self._values.setdefault(name, value)

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def needed(self, name: str) -> str:
        value = self._values.get(name)
        if value is None:
            raise ApiError(400, f"MISSING_ARG_{name.upper()}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """An argument that is true, 1, false or 0; the default for anything else."""
        return _FLAGS.get(self._values.get(name, ""), default)

    def name(self, argument: str, refusal: str) -> str:
        """The name of a topic or a channel; `refusal` says that it is not one."""
        value = self.needed(argument)
        if not is_name(value):
            raise ApiError(400, refusal)
        return value

    def topic_and_channel(self) -> tuple[str, str]:
        """Both names, where an operation needs both."""
        return self.name("topic", "INVALID_ARG_TOPIC"), self.name("channel", "INVALID_ARG_CHANNEL")


_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class ApiCall:
    """A request being answered: its arguments, its body, and who sent it."""

    __slots__ = ("arguments", "principal", "request")

    def __init__(self, request: Request, arguments: Arguments, principal: Principal = ANYBODY) -> None:
        self.request = request
        self.arguments = arguments
        self.principal = principal


Route = Callable[[ApiCall], Answer | Work]
Routes = Mapping[str, Mapping[str, Route]]
"""Path → method → what answers it."""


def find_route(routes: Routes, request: Request) -> Route:
    methods = routes.get(request.path)
    if methods is None:
        raise ApiError(404, "NOT_FOUND")
    route = methods.get(request.method)
    if route is None:
        raise ApiError(405, "METHOD_NOT_ALLOWED", (("allow", ", ".join(methods)),))
    return route


def respond(exchange: Exchange, answer: Answer) -> None:
    exchange.outcome = "ok"
    if answer is None:
        exchange.respond(200, _TEXT, b"")
    elif isinstance(answer, str | bytes):
        exchange.respond(200, _TEXT, answer.encode() if isinstance(answer, str) else answer)
    else:
        exchange.respond(200, _JSON, answer.text if isinstance(answer, Json) else msgspec.json.encode(answer))


def refuse(exchange: Exchange, error: ApiError) -> None:
    exchange.outcome = error.message
    exchange.respond(error.status, (*_JSON, *error.headers), msgspec.json.encode({"message": error.message}))


def refuse_request(exchange: Exchange, status: int, code: str, reason: str) -> None:
    exchange.outcome = code
    exchange.respond(status, _JSON, msgspec.json.encode({"message": reason}))
