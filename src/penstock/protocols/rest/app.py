"""What REST's port serves: the API, its document and page, health, version and metrics; and what others mount.

Health, version and the documentation are open to everybody. Metrics name queues: where credentials are configured,
they take them (HTTP basic authentication, which Prometheus speaks, or a bearer token) and show the queues that the
caller may read: all of them added up, and one by one the busiest (`[metrics]`) or those that match `?queue=PATTERN`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote, unquote

import msgspec

from penstock.console import CONSOLE_POLICY, ConsoleFile, console_files
from penstock.core.commands import Ack, CommitWork, Send, Sent, Stats
from penstock.core.errors import PenstockError, QueueDamaged, QueueNotFound, TooManyFailedLogins
from penstock.protocols.bulk.operations import Bulk
from penstock.protocols.front_end import STATUS
from penstock.protocols.http import PLAIN_TEXT, Exchange, Handler, HeaderCheck, Headers, HttpLimits, Observer, Terms
from penstock.protocols.http_front_end import HttpFrontEnd
from penstock.protocols.rest import pages as problem_pages
from penstock.protocols.rest.caller import Caller, rates_of
from penstock.protocols.rest.cluster import Clusters
from penstock.protocols.rest.endpoint import (
    Endpoint,
    EndpointContext,
    Parameters,
    Route,
    decode_query,
    not_allowed,
    not_found,
)
from penstock.protocols.rest.intervening import SingleMessages
from penstock.protocols.rest.lookup import Lookups
from penstock.protocols.rest.masks import Masks, masks_of
from penstock.protocols.rest.messages import Messages, sends_of, sort_receipts
from penstock.protocols.rest.operations import JSON, Operation, Resource, document, operation, operations_of
from penstock.protocols.rest.overview import Live, Overviews, history_of
from penstock.protocols.rest.pages import DOCS_POLICY, docs_page
from penstock.protocols.rest.problems import RestError, headers_of, invalid, render_problem
from penstock.protocols.rest.queues import Channels, DeadLetterQueues, Queues, Redrives, Server
from penstock.protocols.rest.records import RecordReading, VirtualQueues
from penstock.protocols.rest.search import Searching
from penstock.protocols.rest.sessions import Sessions
from penstock.protocols.rest.shapes import SentMessages, Work
from penstock.protocols.rest.topics import TopicsOfSns
from penstock.protocols.websocket.polling import CommandsEndpoint
from penstock.protocols.websocket.socket import WebsocketEndpoint
from penstock.server.auth import Principal
from penstock.server.history import History
from penstock.server.metrics import CONTENT_TYPE, ProcessMetrics, queue_sources, render_in_passing, tally_families
from penstock.server.node import Address, Services
from penstock.server.partition_map import OneNode
from penstock.server.tally import Tally
from penstock.server.tasks import HEALTH_S
from penstock.wire.requests import COMMANDS_PATH, SOCKET_PATH

_NUMBER = re.compile("[0-9]{1,19}")
"""How a message is named by its sequence number."""


class UnitsOfWork(Resource):
    """Units of work."""

    tag = "work"

    def __init__(self, services: Services, messages: Messages) -> None:
        super().__init__(services)
        self._messages = messages

    @operation("POST", "/v1/work")
    async def commit_work(self, caller: Caller, body: Work) -> SentMessages:
        """Commit a unit of work: acknowledge messages and send others. All of it happens, or nothing.

        If a message can no longer be acknowledged, nothing is done, and the answer is 409 `work_refused`.
        """
        await self.shard.know(receipts=body.receipts)
        holdings, refused = sort_receipts(self.broker, body.receipts, None, None)
        if refused:
            raise refused[0][1]
        for holding in holdings:
            caller.need(holding.queue, Ack)
        for message in body.sends:
            caller.need(message.queue, Send)
        sends, places = sends_of([(message.queue, message) for message in body.sends], create=True)
        acks = [Ack(queue=each.queue, channel=each.channel, spans=each.spans) for each in holdings]
        replies: list[Sent] = []
        if acks or sends:
            replies = await self.shard.call(caller.named(CommitWork(acks=acks, sends=sends)))
        return SentMessages(messages=self._messages.sent_messages(replies, places))


class _Node:
    __slots__ = ("children", "names", "route", "wild")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.wild: _Node | None = None
        self.route: Route | None = None
        self.names: list[str] = []


class Routes:
    """Routes by their paths.

    >>> routes = Routes()
    >>> routes.add("/v1/queues/{queue}/messages", print)
    >>> routes.find("/v1/queues/orders/messages")[1], routes.find("/v1/queues//messages")
    ({'queue': 'orders'}, None)
    """

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, path: str, route: Route) -> None:
        """There is this route at the path."""
        node, names = self._root, []
        for segment in path.split("/"):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.wild = node.wild or _Node()
                node = node.wild
            else:
                node = node.children.setdefault(segment, _Node())
        assert node.route is None, f"{path} is there twice"
        node.route, node.names = route, names

    def find(self, path: str) -> tuple[Route, Parameters] | None:
        """The route at a path, and what stands for its names."""
        values: list[str] = []
        node = _find(self._root, path.split("/"), 0, values)
        if node is None or node.route is None:
            return None
        return node.route, dict(zip(node.names, values, strict=True))


def _find(node: _Node, segments: list[str], at: int, values: list[str]) -> _Node | None:
    """Segments that a path names come before those that stand for anything."""
    if at == len(segments):
        return node if node.route is not None else None
    segment = segments[at]
    child = node.children.get(segment)
    if child is not None:
        found = _find(child, segments, at + 1, values)
        if found is not None:
            return found
    if node.wild is None or not segment:
        return None
    values.append(segment)
    found = _find(node.wild, segments, at + 1, values)
    if found is None:
        values.pop()
    return found


_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_HEADERS = (
    "accept",
    "accept-language",
    "authorization",
    "content-language",
    "content-type",
    "idempotency-key",
    "penstock-route",
)
_EXPOSED = "x-request-id, retry-after, penstock-next-offset, penstock-end-offset, penstock-next"
_REMEMBERED_S = 600


class Cors:
    """Answers browsers that ask in advance, and marks what pages of these origins may read."""

    def __init__(self, origins: list[str]) -> None:
        self._origins = frozenset(origins)
        self._is_open = "*" in origins

    def answers(self, exchange: Exchange) -> bool:
        """Whether the request was a question in advance, which is answered now."""
        headers = exchange.request.headers
        origin = headers.get("origin")
        if origin is None:
            return False
        is_known = self._is_open or origin in self._origins
        allowed: Headers = ()
        if is_known:
            allowed = (("access-control-allow-origin", "*" if self._is_open else origin), ("vary", "Origin"))
        method = headers.get("access-control-request-method")
        if exchange.request.method != "OPTIONS" or method is None:
            if is_known:
                exchange.headers = (*allowed, ("access-control-expose-headers", _EXPOSED))
            return False
        asked = headers.get("access-control-request-headers", "").split(",")
        wrong = [] if is_known else ["origin"]
        wrong += [] if method in _METHODS else ["method"]
        wrong += [] if all(name.strip().lower() in ("", *_HEADERS) for name in asked) else ["headers"]
        answer = [
            *allowed,
            *PLAIN_TEXT,
            ("access-control-allow-methods", ", ".join(_METHODS)),
            ("access-control-allow-headers", ", ".join(_HEADERS)),
            ("access-control-max-age", str(_REMEMBERED_S)),
        ]
        text = f"not allowed for pages of this origin: {', '.join(wrong)}\n" if wrong else "OK\n"
        exchange.respond(400 if wrong else 200, answer, text.encode())
        return True


_HTML = "text/html; charset=utf-8"
Answer = tuple[int, Headers, bytes]
_PATTERNS_MAX = 20
"""Of names of queues, in one request for metrics: each is compared with each name."""


def resources_of(services: Services, version: str) -> list[Resource]:
    """Everything that has operations, in the order of the documentation."""
    messages = Messages(services)
    return [
        Queues(services),
        messages,
        SingleMessages(services),
        Searching(services),
        Channels(services),
        DeadLetterQueues(services, messages),
        Redrives(services),
        UnitsOfWork(services, messages),
        Sessions(services),
        RecordReading(services),
        VirtualQueues(services, messages),
        Server(services, version),
        Overviews(services, version),
        Lookups(services),
        Clusters(services),
        TopicsOfSns(services),
    ]


class RestApp:
    """Everything that is at a path, and the way to it."""

    def __init__(self, services: Services, version: str, observer: Observer) -> None:
        self._services = services
        self._version = version
        self._process = ProcessMetrics()
        self.context = EndpointContext(services, observer)
        resources = resources_of(services, version)
        operations = list(operations_of(resources))
        overviews = next(each for each in resources if isinstance(each, Overviews))
        self._operations = operations
        self._document = b""
        """Made for who asks first: it takes as long as a tenth of a start."""
        origins = services.settings.rest.cors_origins
        self._cors = Cors(origins) if origins else None
        self._routes = Routes()
        for path, route in self._found(
            [*operations, *operations_of([Bulk(services), Live(services, overviews, self._watchable)])]
        ):
            self._routes.add(path, route)

    def _found(self, operations: list[Operation]) -> Iterable[tuple[str, Route]]:
        pages = {
            "/healthz": self.healthz,
            "/readyz": self.healthz,
            "/livez": self.livez,
            "/version": self.version,
            "/metrics": self.metrics,
            "/v1/openapi.json": self.openapi,
            "/v1/docs": self.page,
            problem_pages.PATH: self.problems,
            problem_pages.PATH + "/{code}": self.problem,
        }
        for path, page in pages.items():
            yield path, Page(self.context, page)
        for path, file in console_files().items() if self._services.settings.rest.console else ():
            yield path, Page(self.context, partial(self.console, file))
        by_path: dict[str, list[Operation]] = {}
        for each in operations:
            by_path.setdefault(each.path, []).append(each)
        for path, some in by_path.items():
            yield path, Endpoint(self.context, some)
        yield SOCKET_PATH, WebsocketEndpoint(self.context, self._version)
        yield COMMANDS_PATH, CommandsEndpoint(self.context, self._version)

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        if self._cors is not None and self._cors.answers(exchange):
            return
        found = self._find(exchange)
        if found is not None:
            found[0].handle(exchange, found[1])

    def check_header(self, exchange: Exchange) -> Terms | None:
        """Look at a request whose body is still to come."""
        if self._cors is not None and self._cors.answers(exchange):
            return None
        found = self._find(exchange)
        return None if found is None else found[0].check_header(exchange, found[1])

    def _find(self, exchange: Exchange) -> tuple[Route, Parameters] | None:
        request = exchange.request
        if request.path == "/" and request.method == "POST":
            self._refuse_aws(exchange)
            return None
        found = self._routes.find(request.path)
        if found is None:
            shorter = request.path.rstrip("/")
            if shorter != request.path and self._routes.find(shorter) is not None:
                location = quote(shorter) + (f"?{request.query}" if request.query else "")
                exchange.respond(307, (("location", location),), b"")
            else:
                self.context.fail(exchange, not_found(exchange))
        return found

    def _watchable(self, address: str) -> tuple[Operation, dict[str, Any]]:
        """The operation at a path that a stream may watch, and its arguments."""
        path, _, query = address.partition("?")
        found = self._routes.find(unquote(path))
        operation = found[0].operations.get("GET") if found is not None and isinstance(found[0], Endpoint) else None
        if found is None or operation is None or operation.live_s is None:
            raise invalid(f"watch is {address[:100]!r}: there is nothing to watch at this path")
        arguments: dict[str, Any] = dict(found[1])
        if not _NUMBER.fullmatch(arguments.get("message", "0")):  # each look would go through the whole queue
            raise invalid(f"watch is {address[:100]!r}: a message is watched by its sequence number, not by its id")
        if operation.query is not None:
            arguments["query"] = decode_query(query, operation.query)
        return operation, arguments

    async def healthz(self, exchange: Exchange) -> Answer:
        """200 if the store takes commands, 503 and the reason if not. It never waits for the store.

        When some shards do not answer, the answer is 200 all the same, and says which: every node would say so at once
        when Kafka loses a broker, and a load balancer must not take all of them out.
        """
        if self._services.is_stopping:
            return _json({"status": "stopping"}, 503)
        try:
            unready = await self._services.shard.unready(HEALTH_S)
        except PenstockError as error:
            return _json({"status": "failing", "reason": str(error)}, 503)
        shards = {name: getattr(unready, name) for name in ("unserved", "waiting") if getattr(unready, name)}
        if unready.reason:
            return _json({"status": "failing", "reason": unready.reason, **shards}, 503)
        return _json({"status": "degraded" if shards else "ok", **shards})

    async def livez(self, exchange: Exchange) -> Answer:
        """200 while the process serves at all: starting it again would not help a store that fails, or a stop."""
        return _json({"status": "ok"})

    async def version(self, exchange: Exchange) -> Answer:
        """Which Penstock this is."""
        return _json({"name": "penstock", "version": self._version})

    def _refuse_aws(self, exchange: Exchange) -> None:
        """Clients of SQS and SNS post everything to `/`. They show `message`, and nothing else."""
        sqs = self._services.listening.get("sqs")
        text = f"this is the port of REST. SQS and SNS are at {sqs.url if sqs else 'port 9324 by default'}"
        exchange.action, exchange.outcome = "unknown", "wrong_port"
        exchange.respond(404, (("content-type", JSON),), msgspec.json.encode({"__type": "WrongPort", "message": text}))

    async def openapi(self, exchange: Exchange) -> Answer:
        """What the API can do, for programs."""
        if not self._document:
            needs_credentials = self._services.credentials.are_required
            described = document(self._operations, self._version, needs_credentials=needs_credentials)
            self._document = msgspec.json.encode(described)
        return 200, (("content-type", JSON),), self._document

    async def page(self, exchange: Exchange) -> Answer:
        """What the API can do, for people."""
        return _html(docs_page(has_console=self._services.settings.rest.console), DOCS_POLICY)

    async def console(self, file: ConsoleFile, exchange: Exchange) -> Answer:
        """A file of the console. One that has its content's hash in its name may be kept for ever."""
        headers = (
            ("content-type", file.content_type),
            ("cache-control", "public, max-age=31536000, immutable" if file.is_hashed else "no-cache"),
            ("content-security-policy", CONSOLE_POLICY),
            ("referrer-policy", "same-origin"),
            ("x-content-type-options", "nosniff"),
        )
        return 200, headers, file.content

    async def problems(self, exchange: Exchange) -> Answer:
        """Every error of the API."""
        return _html(problem_pages.index().encode(), problem_pages.PROBLEM_POLICY)

    async def problem(self, exchange: Exchange) -> Answer:
        """What an error means, and what to do: where its `type` leads."""
        page = problem_pages.page(exchange.request.path.rpartition("/")[2])
        if page is None:
            raise not_found(exchange)
        return _html(page.encode(), problem_pages.PROBLEM_POLICY)

    async def metrics(self, exchange: Exchange) -> Answer:
        """Everything that is counted here, for Prometheus: with several nodes, each tells of what it has."""
        try:
            principal = self.context.guard.principal(exchange.request.headers, exchange.request.peer)
            patterns = parse_qs(exchange.request.query).get("queue", [])
            if len(patterns) > _PATTERNS_MAX:
                raise invalid(f"there are {len(patterns)} patterns: one request takes {_PATTERNS_MAX}")
            tally, stats = await self._count_queues(principal, patterns)
        except RestError as error:
            if error.status != 401:
                return _plain(error.status, str(error))
            challenge = ("www-authenticate", 'Basic realm="penstock", charset="UTF-8"')
            return _plain(401, "metrics need an access key and its secret", challenge)
        except TooManyFailedLogins as error:
            return _plain(429, str(error), *headers_of(error))
        except PenstockError as error:
            return _plain(503, str(error))
        sources = [*self._services.metric_sources, self._process.families]
        text = await render_in_passing([*sources, lambda: tally_families(tally), *queue_sources(stats)])
        return 200, (("content-type", CONTENT_TYPE),), text

    async def _count_queues(self, principal: Principal, only: list[str]) -> tuple[Tally, list[Stats]]:
        """All queues that the caller may read, added up; and the exact counts of those that are shown one by one."""
        shard, settings = self._services.shard, self._services.settings.metrics
        tally = Tally(settings.queues, settings.always, only)
        await tally.take(shard, principal, local=True)
        found: list[Stats] = []
        for name in tally.shown():
            with contextlib.suppress(QueueNotFound, QueueDamaged):
                found.append(await shard.local_stats(name))
        return tally, found


class Page:
    """What is shown at a path to anybody who asks; pages are not counted as calls of the API."""

    methods = ("GET", "HEAD")

    def __init__(self, context: EndpointContext, make: Callable[[Exchange], Awaitable[Answer]]) -> None:
        self._context = context
        self._make = make

    def check_header(self, exchange: Exchange, parameters: Parameters) -> Terms | None:
        """A body is not asked for, and may come all the same."""
        return None

    def handle(self, exchange: Exchange, parameters: Parameters) -> None:
        """Show it."""
        if exchange.request.method in self.methods:
            self._context.run(self._answer(exchange))
        else:
            self._context.fail(exchange, not_allowed(self.methods))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            exchange.respond(*await self._make(exchange))
        except PenstockError as error:
            self._context.fail(exchange, error)
        except Exception:
            self._context.fail_unexpectedly(exchange)


def _json(value: dict[str, str], status: int = 200) -> Answer:
    return status, (("content-type", JSON),), msgspec.json.encode(value)


def _plain(status: int, text: str, *headers: tuple[str, str]) -> Answer:
    return status, (*PLAIN_TEXT, *headers), f"{text}\n".encode()


def _html(page: bytes, policy: str) -> Answer:
    headers = (
        ("content-type", _HTML),
        ("content-security-policy", policy),
        ("referrer-policy", "same-origin"),
        ("x-content-type-options", "nosniff"),
    )
    return 200, headers, page


# -- the front end -----------------------------------------------------------------------------------------------------

_UNREAD = frozenset(("accept-encoding", "accept-language", "user-agent"))
_AT_ONCE_BYTES = 1024 * 1024
"""More than comes in a single read: how large a body may be is said for each operation."""


class RestFrontEnd(HttpFrontEnd):
    """Serves `RestApp` on the host of the settings and this port."""

    render = staticmethod(render_problem)
    websockets = frozenset((SOCKET_PATH,))
    protocol = "rest"

    def __init__(self, port: int, version: str) -> None:
        super().__init__("http", port, self._make, self._refuse_host, self._make_header_check_of)
        self._version = version
        self._app: RestApp | None = None
        self._history: History | None = None
        self._masks: Masks | None = None

    def _make(self, services: Services) -> Handler:
        self._app = RestApp(services, self._version, self.observer(services))
        return self._app.handle

    def _make_header_check_of(self, services: Services) -> HeaderCheck:
        assert self._app is not None
        return self._app.check_header

    def _refuse_host(self, exchange: Exchange, status: int, code: str, reason: str) -> None:
        assert self._app is not None and status == STATUS
        self._app.context.fail(exchange, RestError(421, "misdirected_request", reason))

    def listening(self, services: Services, address: Address) -> None:
        """A node that is alone owns everything."""
        if services.partition_maps is None:
            services.partition_maps = OneNode(address.url)
        self._masks = masks_of(services)
        self._history = history_of(services)
        self._history.start()

    def observer(self, services: Services) -> Observer:
        """Pages are not counted: calls of the API have actions."""
        note = super().observer(services)
        return lambda exchange, status: note(exchange, status) if exchange.action else None

    def unread(self, services: Services) -> frozenset[str]:
        """Headers that need not be kept."""
        return _UNREAD

    def pages_are_refused(self, services: Services) -> bool:
        """Some may call, and some of what is here is a page: see `Guard`."""
        return False

    def limits(self, services: Services) -> HttpLimits:
        """Those of `[http]`; bodies have theirs by operation."""
        limits = services.settings.http
        return msgspec.structs.replace(limits, body_bytes_max=max(limits.body_bytes_max, _AT_ONCE_BYTES))

    def take_limits(self, services: Services) -> None:
        """Besides: what callers are counted with."""
        super().take_limits(services)
        rates, settings = rates_of(services), services.settings.rest
        if rates is not None and settings.requests_per_second is not None:
            rates.follow(settings.requests_per_second, settings.requests_burst)

    async def settled(self, grace_s: float) -> bool:
        """Besides: no more points of the history are taken, which would ask the store."""
        if self._history is not None:
            await self._history.stop()
        is_settled = await super().settled(grace_s)
        if self._masks is not None:
            await self._masks.close()
        return is_settled

    def stop_accepting(self) -> None:
        """Health goes on being told until the store is closed: see `drain`."""
