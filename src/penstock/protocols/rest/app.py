"""What REST's port serves: the API, its document and page, health, version and metrics; and what others mount.

Health, version and the documentation are open to everybody. Metrics name queues: where credentials are configured,
they take them (HTTP basic authentication, which Prometheus speaks, or a bearer token) and show the queues that the
caller may read: all of them added up, and one by one the busiest (`[metrics]`) or those that match `?queue=PATTERN`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import parse_qs, quote

import msgspec

from penstock.core.commands import QueueStats, Stats
from penstock.core.errors import PenstockError, QueueDamaged, QueueNotFound
from penstock.protocols.bulk.operations import Bulk
from penstock.protocols.http import PLAIN_TEXT, Exchange, Headers, Observer, Terms
from penstock.protocols.rest import problem_pages
from penstock.protocols.rest.cors import Cors
from penstock.protocols.rest.dead_letters import DeadLetterQueues, Redrives
from penstock.protocols.rest.endpoint import Desk, Endpoint, Parameters, Route, not_allowed, not_found
from penstock.protocols.rest.messages import Messages
from penstock.protocols.rest.openapi import document
from penstock.protocols.rest.operations import JSON, Operation, operations_of
from penstock.protocols.rest.page import PAGE, POLICY
from penstock.protocols.rest.problems import RestError, invalid
from penstock.protocols.rest.queues import Channels, Queues, Server
from penstock.protocols.rest.records import RecordReading
from penstock.protocols.rest.resource import Resource
from penstock.protocols.rest.routing import Routes
from penstock.protocols.rest.virtual import VirtualQueues
from penstock.protocols.rest.work import Sessions, UnitsOfWork
from penstock.protocols.websocket.polling import CommandsEndpoint
from penstock.protocols.websocket.socket import WebsocketEndpoint
from penstock.server.auth import Principal
from penstock.server.metrics import CONTENT_TYPE, ProcessMetrics, queue_sources, render_in_passing, tally_families
from penstock.server.node import Services
from penstock.server.tally import Tally
from penstock.wire.requests import COMMANDS_PATH, SOCKET_PATH

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
        Channels(services),
        DeadLetterQueues(services, messages),
        Redrives(services),
        UnitsOfWork(services, messages),
        Sessions(services),
        RecordReading(services),
        VirtualQueues(services, messages),
        Server(services, version),
    ]


class RestApp:
    """Everything that is at a path, and the way to it."""

    def __init__(self, services: Services, version: str, observer: Observer) -> None:
        self._services = services
        self._version = version
        self._process = ProcessMetrics()
        self.desk = Desk(services, observer)
        operations = list(operations_of(resources_of(services, version)))
        described = document(operations, version, needs_credentials=services.credentials.are_required)
        self._document = msgspec.json.encode(described)
        origins = services.settings.rest.cors_origins
        self._cors = Cors(origins) if origins else None
        self._routes = Routes()
        for path, route in self._found([*operations, *operations_of([Bulk(services)])]):
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
            yield path, Page(self.desk, page)
        by_path: dict[str, list[Operation]] = {}
        for operation in operations:
            by_path.setdefault(operation.path, []).append(operation)
        for path, some in by_path.items():
            yield path, Endpoint(self.desk, some)
        yield SOCKET_PATH, WebsocketEndpoint(self.desk, self._version)
        yield COMMANDS_PATH, CommandsEndpoint(self.desk, self._version)

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        if self._cors is not None and self._cors.answers(exchange):
            return
        found = self._find(exchange)
        if found is not None:
            found[0].handle(exchange, found[1])

    def screen(self, exchange: Exchange) -> Terms | None:
        """Look at a request whose body is still to come."""
        if self._cors is not None and self._cors.answers(exchange):
            return None
        found = self._find(exchange)
        return None if found is None else found[0].screen(exchange, found[1])

    def _find(self, exchange: Exchange) -> tuple[Route, Parameters] | None:
        request = exchange.request
        found = self._routes.find(request.path)
        if found is None:
            shorter = request.path.rstrip("/")
            if shorter != request.path and self._routes.find(shorter) is not None:
                location = quote(shorter) + (f"?{request.query}" if request.query else "")
                exchange.respond(307, (("location", location),), b"")
            else:
                self.desk.fail(exchange, not_found(exchange))
        return found

    async def healthz(self, exchange: Exchange) -> Answer:
        """200 if the store takes commands, 503 and the reason if not."""
        if self._services.is_stopping:
            return _json({"status": "stopping"}, 503)
        try:
            await self._services.shard.tick()
        except PenstockError as error:
            return _json({"status": "failing", "reason": str(error)}, 503)
        return _json({"status": "ok"})

    async def livez(self, exchange: Exchange) -> Answer:
        """200 while the process serves at all: starting it again would not help a store that fails, or a stop."""
        return _json({"status": "ok"})

    async def version(self, exchange: Exchange) -> Answer:
        """Which Penstock this is."""
        return _json({"name": "penstock", "version": self._version})

    async def openapi(self, exchange: Exchange) -> Answer:
        """What the API can do, for programs."""
        return 200, (("content-type", JSON),), self._document

    async def page(self, exchange: Exchange) -> Answer:
        """What the API can do, for people."""
        return _html(PAGE, POLICY)

    async def problems(self, exchange: Exchange) -> Answer:
        """Every error of the API."""
        return _html(problem_pages.index().encode(), problem_pages.POLICY)

    async def problem(self, exchange: Exchange) -> Answer:
        """What an error means, and what to do: where its `type` leads."""
        page = problem_pages.page(exchange.request.path.rpartition("/")[2])
        if page is None:
            raise not_found(exchange)
        return _html(page.encode(), problem_pages.POLICY)

    async def metrics(self, exchange: Exchange) -> Answer:
        """Everything that is counted here, for Prometheus: with several nodes, each tells of what it has."""
        try:
            principal = self.desk.guard.principal(exchange.request.headers)
            patterns = parse_qs(exchange.request.query).get("queue", [])
            if len(patterns) > _PATTERNS_MAX:
                raise invalid(f"there are {len(patterns)} patterns: one request takes {_PATTERNS_MAX}")
            tally, stats = await self._count_queues(principal, patterns)
        except RestError as error:
            if error.status != 401:
                return _plain(error.status, str(error))
            challenge = ("www-authenticate", 'Basic realm="penstock", charset="UTF-8"')
            return _plain(401, "metrics need an access key and its secret", challenge)
        except PenstockError as error:
            return _plain(503, str(error))
        if self._services.gather_metrics is not None:
            sources = await self._services.gather_metrics()
        else:
            sources = [*self._services.metric_sources, self._process.families]
        text = await render_in_passing([*sources, lambda: tally_families(tally), *queue_sources(stats)])
        return 200, (("content-type", CONTENT_TYPE),), text

    async def _count_queues(self, principal: Principal, only: list[str]) -> tuple[Tally, list[Stats]]:
        """All queues that the caller may read, added up; and the exact counts of those that are shown one by one."""
        shard, settings = self._services.shard, self._services.settings.metrics
        is_local = self._services.gather_metrics is None
        tally = Tally(settings.queues, settings.always, only)
        await tally.take(shard, principal, local=is_local)
        found: list[Stats] = []
        for name in tally.shown():
            with contextlib.suppress(QueueNotFound, QueueDamaged):
                found.append(await (shard.local_stats(name) if is_local else shard.call(QueueStats(name=name))))
        return tally, found


class Page:
    """What is shown at a path to anybody who asks; pages are not counted as calls of the API."""

    methods = ("GET", "HEAD")

    def __init__(self, desk: Desk, make: Callable[[Exchange], Awaitable[Answer]]) -> None:
        self._desk = desk
        self._make = make

    def screen(self, exchange: Exchange, parameters: Parameters) -> Terms | None:
        """A body is not asked for, and may come all the same."""
        return None

    def handle(self, exchange: Exchange, parameters: Parameters) -> None:
        """Show it."""
        if exchange.request.method in self.methods:
            self._desk.run(self._answer(exchange))
        else:
            self._desk.fail(exchange, not_allowed(self.methods))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            exchange.respond(*await self._make(exchange))
        except PenstockError as error:
            self._desk.fail(exchange, error)
        except Exception:
            self._desk.fail_unexpectedly(exchange)


def _json(value: dict[str, str], status: int = 200) -> Answer:
    return status, (("content-type", JSON),), msgspec.json.encode(value)


def _plain(status: int, text: str, *headers: tuple[str, str]) -> Answer:
    return status, (*PLAIN_TEXT, *headers), f"{text}\n".encode()


def _html(page: bytes, policy: str) -> Answer:
    headers = (("content-type", _HTML), ("content-security-policy", policy), ("x-content-type-options", "nosniff"))
    return 200, headers, page
