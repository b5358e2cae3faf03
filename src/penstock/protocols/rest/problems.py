"""What went wrong, as `application/problem+json` (RFC 9457), and the one table from the core's errors to statuses.

    {"type": "/v1/problems/stale_receipt", "title": "Conflict", "status": 409, "code": "stale_receipt",
     "detail": "the lease of message 7 is over: ..."}

`code` is the name of the error's class in snake case, for programs; `detail` is for people, and `type` is a page that
says what to do.
"""

from __future__ import annotations

import math
import re
from http import HTTPStatus

import msgspec

from penstock.core import errors as core
from penstock.protocols.http import Headers, Rendered
from penstock.protocols.rest.pages import PATH
from penstock.server.budget import BUSY
from penstock.server.partition_map import PartitionMoved

CONTENT_TYPE = "application/problem+json"


class Problem(msgspec.Struct, omit_defaults=True):
    """The body of every error."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    map_version: int | None = None
    """Of `partition_moved`: the version of the partition map that says so."""
    owner: str | None = None
    """Of `partition_moved`: the URL of the node to ask."""


class RestError(core.PenstockError):
    """An error that is none of the core's: the request did not get that far."""

    def __init__(self, status: int, code: str, detail: str, headers: Headers = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = headers


def invalid(detail: str) -> RestError:
    """A request that is not as documented."""
    return RestError(400, "invalid_request", detail)


STATUSES: tuple[tuple[type[core.PenstockError], int], ...] = (
    (core.MessageTooLarge, 413),
    (core.BatchTooLarge, 413),
    (core.InvalidRequest, 400),
    (core.TooManyFailedLogins, 429),
    (core.AccessDenied, 403),
    (core.NotFound, 404),
    (core.QueueExists, 409),
    (core.QueueChanged, 409),
    (core.ForgedReceipt, 400),
    (core.ReceiptRefused, 409),
    (core.OverLimit, 429),
    (core.Throttled, 429),
    (core.RewindRefused, 409),
    (core.WorkRefused, 409),
    (core.MarkMoved, 409),
    (PartitionMoved, 409),
    (core.ChunkDamaged, 500),
    (core.QueueDamaged, 500),
    (core.StoreError, 503),
    (core.PenstockError, 503),
)
"""The first row that fits counts."""

_RETRY_SOON: Headers = (("retry-after", "1"),)


def code_of(error: core.PenstockError) -> str:
    """An error's class in snake case.

    >>> code_of(core.StaleReceipt("over"))
    'stale_receipt'
    """
    if isinstance(error, RestError):
        return error.code
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()


def status_of(error: core.PenstockError) -> int:
    """The status that an error is answered with.

    >>> status_of(core.QueueNotFound("gone")), status_of(core.InvalidName("no name"))
    (404, 400)
    """
    if isinstance(error, RestError):
        return error.status
    return next(status for type_, status in STATUSES if isinstance(error, type_))


def headers_of(error: core.PenstockError) -> Headers:
    """What else the response says."""
    if isinstance(error, RestError):
        return error.headers
    if isinstance(error, core.TooManyFailedLogins):
        return retry_after(error.wait_s)
    return _RETRY_SOON if status_of(error) in (429, 503) else ()


def retry_after(wait_s: float) -> Headers:
    """How long to wait, in whole seconds."""
    return (("retry-after", str(max(1, math.ceil(wait_s)))),)


def stopping() -> RestError:
    """Nothing new is begun."""
    return RestError(503, "stopping", "the server is stopping", _RETRY_SOON)


def no_room() -> RestError:
    """There is no room for an answer."""
    return RestError(503, "no_room", f"{BUSY}, or raise [server] buffer_bytes_max", _RETRY_SOON)


def render_problem(status: int, code: str, reason: str) -> Rendered:
    """What is said to who is refused before there is a request."""
    body = msgspec.json.encode(problem_of(RestError(status, code, reason)))
    return (("content-type", CONTENT_TYPE), *(_RETRY_SOON if status == 503 else ())), body


def problem_of(error: core.PenstockError) -> Problem:
    """The body of an error's response."""
    status, code = status_of(error), code_of(error)
    problem = Problem(f"{PATH}/{code}", HTTPStatus(status).phrase, status, code, str(error))
    if isinstance(error, PartitionMoved):
        problem.map_version = error.map_version
        problem.owner = error.url
    return problem
