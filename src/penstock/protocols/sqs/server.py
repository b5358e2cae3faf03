"""A request's way in: which protocol, who calls, which action. The rest of its way is in `context.py`.

Clients that wait for each response before they ask again, as SDKs do, are named to the shard: those who come together
share their commits (`server/tasks.py`). Receives need no commit, and are not waited for.

SNS is served here as well (`protocols/sns/`): its requests are told by the service that they are signed for, or by the
version and the action of an unsigned form.

The protocol is JSON if the header `X-Amz-Target` is there, and Query if not. The path is `/`, or a queue's URL.
"""

from __future__ import annotations

import os
import time
import uuid

from penstock.protocols.http import Exchange, Handler, Request
from penstock.protocols.sns import wire as sns_wire
from penstock.protocols.sns.http_delivery import HttpTargets
from penstock.protocols.sns.service import ACTIONS as SNS_ACTIONS
from penstock.protocols.sns.service import SnsService
from penstock.protocols.sqs import json_wire, query_wire
from penstock.protocols.sqs.actions import Service, actions_of
from penstock.protocols.sqs.context import RequestContext
from penstock.protocols.sqs.errors import (
    ACCESS_DENIED,
    METHOD_NOT_ALLOWED,
    MISDIRECTED_REQUEST,
    UNKNOWN_OPERATION,
    SqsError,
)
from penstock.protocols.sqs.names import base_url
from penstock.protocols.sqs.sigv4 import is_signed_by_head, verify
from penstock.server.auth import ANYBODY, Credentials, Principal
from penstock.server.budget import Budget
from penstock.server.settings import ServerSettings, SnsSettings, SqsSettings
from penstock.server.shards import Shards

_ADDRESSES_REMEMBERED_MAX = 100
_OF_NO_QUEUE = frozenset({"CreateQueue", "ListQueues"})
"""Actions that a GET of a queue's own URL cannot name."""


class SqsFrontEnd:
    """Answers SQS requests from a shard. `handle` is the HTTP server's handler."""

    def __init__(
        self,
        shard: Shards,
        settings: SqsSettings,
        credentials: Credentials,
        budget: Budget | None = None,
        sns: SnsSettings | None = None,
        http_targets: HttpTargets | None = None,
    ) -> None:
        self.shard = shard
        self.budget = budget or Budget(ServerSettings().buffer_bytes_max)
        self.service = Service(shard, settings)
        self._credentials = credentials
        self._actions = actions_of(self.service)
        self._targets = {json_wire.TARGET_PREFIX + name: action for name, action in self._actions.items()}
        self._base_urls: dict[tuple[str | None, bool, str | None], str] = {}
        entropy = os.urandom(10).hex()
        self._ids = f"{entropy[:8]}-{entropy[8:12]}-4{entropy[12:15]}-8{entropy[15:18]}-"
        """What the ids of all requests start with; they end with a number."""
        self._last_id = 0
        self.sns = SnsService(shard, settings, sns or SnsSettings(), http_targets or HttpTargets([]))

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        self._last_id += 1
        exchange.request_id = f"{self._ids}{self._last_id:012x}"
        request = exchange.request
        target = request.headers.get("x-amz-target")
        is_json = target is not None or _is_json(request)
        is_sns = not is_json and service_of(request) == "sns"
        try:
            if is_json:
                action = self._targets.get(target or "")
                if action is None:
                    raise SqsError(UNKNOWN_OPERATION, f"The operation {target or ''} is not one of SQS's.")
                if request.method != "POST":
                    raise SqsError(METHOD_NOT_ALLOWED, "The JSON protocol needs POST.")
                principal = self._principal(exchange) if self._credentials.are_required else ANYBODY
                try:
                    decoded = action.decode(request.body or b"{}")
                except json_wire.UNREADABLE as error:
                    raise json_wire.malformed(error) from None
                RequestContext(exchange, self, principal, action, decoded, is_json=True).begin()
                return
            if request.method == "GET" and not is_signed(request):
                may_all = not self._credentials.are_required
                if self.sns.handle_link(exchange, _form(request), self.base_url(request), may_all=may_all):
                    return
            principal = self._principal(exchange) if self._credentials.are_required else ANYBODY
            fields = _form(request)
            if request.method == "GET" and not self._credentials.are_required and _may_be_a_page(request):
                raise SqsError(ACCESS_DENIED, "A browser may not call actions with GET here: use POST.")
            is_sns = is_sns or is_for_sns(fields)
            if is_sns:
                scope = self.service.scopes.of_caller(request, principal.account)
                self.sns.handle(exchange, principal, scope, fields, self.base_url(request))
                return
            asked = fields.get("Action")
            if not asked:
                query_wire.respond_unknown(exchange)
                return
            named = self._actions.get(asked)
            if named is None or (request.method == "GET" and request.path != "/" and asked in _OF_NO_QUEUE):
                raise SqsError(UNKNOWN_OPERATION, f"The action {asked} is not valid for this endpoint.")
            decoded = query_wire.decode(fields, named.request)
            RequestContext(exchange, self, principal, named, decoded, is_json=False).begin()
        except SqsError as refusal:
            if is_sns:
                sns_wire.respond_error(exchange, refusal)
            else:
                (json_wire if is_json else query_wire).respond_error(exchange, refusal)

    def _principal(self, exchange: Exchange) -> Principal:
        request = exchange.request
        principal = verify(request, self._credentials, int(time.time() * 1_000), service_of(request))
        exchange.is_known = True
        return principal

    def base_url(self, request: Request) -> str:
        """What URLs start with, for who sent this request."""
        headers = request.headers
        key = (headers.get("host"), request.is_tls, headers.get("x-forwarded-proto"))
        known = self._base_urls.get(key)
        if known is None:
            if len(self._base_urls) >= _ADDRESSES_REMEMBERED_MAX:
                self._base_urls.clear()
            known = self._base_urls[key] = base_url(request)
        return known


def refuse_request(exchange: Exchange, status: int, code: str, reason: str) -> None:
    """Answer a request that is not let in, in the protocol that it came by."""
    _refuse(exchange, SqsError(MISDIRECTED_REQUEST if status == MISDIRECTED_REQUEST.status else ACCESS_DENIED, reason))


def check_header(credentials: Credentials) -> Handler:
    """Answers requests without their bodies, as far as those cannot help: nobody has signed them, or no one we know.

    So a stranger is not read from. Whoever names an access key that is there may still be one: that shows when the body
    is there, unless the header has its checksum.
    """

    def look(exchange: Exchange) -> None:
        if not credentials.are_required:
            return
        try:
            request = exchange.request
            exchange.is_known = is_signed_by_head(request, credentials, int(time.time() * 1_000), service_of(request))
        except SqsError as error:
            _refuse(exchange, error)

    return look


def service_of(request: Request) -> str:
    """The service that a request was signed for: `sns`, or else `sqs`."""
    signed = request.headers.get("authorization", "")
    return "sns" if "/sns/aws4_request" in signed or "%2Fsns%2Faws4_request" in request.query else "sqs"


def is_signed(request: Request) -> bool:
    return "authorization" in request.headers or "X-Amz-Signature" in request.query


def is_for_sns(fields: dict[str, str]) -> bool:
    """Whether a form that nobody signed is for SNS: by its version, or by an action that SQS does not have.

    >>> is_for_sns({"Action": "Publish"}), is_for_sns({"Action": "AddPermission"})
    (True, False)
    """
    action = fields.get("Action", "")
    return fields.get("Version") == "2010-03-31" or (action in SNS_ACTIONS and not action.endswith("Permission"))


def _refuse(exchange: Exchange, error: SqsError) -> None:
    request, exchange.request_id = exchange.request, str(uuid.uuid4())
    if "x-amz-target" in request.headers or _is_json(request):
        json_wire.respond_error(exchange, error)
    else:
        query_wire.respond_error(exchange, error)


def _is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").startswith("application/x-amz-json")


def _may_be_a_page(request: Request) -> bool:
    """Whether a web page may have made a browser ask, as with an image that it shows.

    Browsers say who made them ask (`Sec-Fetch-Site`, see `front_end`), but not to a server on another machine that has
    no TLS. They always say which languages they like, and SDKs never do.
    """
    return "accept-language" in request.headers and "sec-fetch-site" not in request.headers


def _form(request: Request) -> dict[str, str]:
    """The fields of a Query request: of its URL's query, and of its body."""
    if request.method not in ("GET", "POST"):
        raise SqsError(METHOD_NOT_ALLOWED, f"The method is {request.method}; use POST or GET.")
    fields = query_wire.parse_form(request.query) if request.query else {}
    if request.method == "POST" and request.body:
        fields |= query_wire.parse_form(request.body.decode("latin-1"))
    return fields
