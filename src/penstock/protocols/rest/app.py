"""What REST's port serves: the API, its document and page, health, version and metrics; and what others mount.

Health, version and the documentation are open to everybody. Metrics name queues: where credentials are configured,
they take them (HTTP basic authentication, which Prometheus speaks, or a bearer token) and show the queues that the
caller may read: all of them added up, and one by one the busiest (`[metrics]`) or those that match `?queue=PATTERN`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.core.commands import QueueStats, Stats
from penstock.core.errors import PenstockError, QueueDamaged, QueueNotFound
from penstock.protocols.rest import problem_pages
from penstock.protocols.rest.dead_letters import DeadLetterQueues, Redrives
from penstock.protocols.rest.endpoint import Desk, Endpoint, not_found
from penstock.protocols.rest.known_hosts import KnownHosts
from penstock.protocols.rest.messages import Messages
from penstock.protocols.rest.mounted import MOUNTED
from penstock.protocols.rest.openapi import document
from penstock.protocols.rest.operations import Operation, operations_of
from penstock.protocols.rest.page import PAGE, POLICY
from penstock.protocols.rest.problems import RestError, invalid
from penstock.protocols.rest.queues import Channels, Queues, Server
from penstock.protocols.rest.records import RecordReading
from penstock.protocols.rest.resource import Resource
from penstock.protocols.rest.virtual import VirtualQueues
from penstock.protocols.rest.work import Sessions, UnitsOfWork
from penstock.server.auth import Principal
from penstock.server.metrics import CONTENT_TYPE, ProcessMetrics, queue_sources, render_in_passing, tally_families
from penstock.server.node import Services
from penstock.server.tally import Tally

_EXPOSED = ["x-request-id", "retry-after", "penstock-next-offset", "penstock-end-offset"]
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
    """The application, and what it is made of."""

    def __init__(self, services: Services, version: str) -> None:
        self._services = services
        self._version = version
        self._process = ProcessMetrics()
        self.desk = Desk(services)
        self.operations: list[Operation] = list(operations_of(resources_of(services, version)))
        described = document(self.operations, version, needs_credentials=services.credentials.are_required)
        self._document = msgspec.json.encode(described)

    def routes(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/healthz", self.healthz),
                Route("/readyz", self.healthz),
                Route("/livez", self.livez),
                Route("/version", self.version),
                Route("/metrics", self.metrics),
                Route("/v1/openapi.json", self.openapi),
                Route("/v1/docs", self.page),
                Route(problem_pages.PATH, self.problems),
                Route(problem_pages.PATH + "/{code}", self.problem),
                *self._endpoints(),
                *(route for routes in MOUNTED for route in routes(self._services)),
            ],
            middleware=list(self._middleware()),
            exception_handlers={404: self._nothing_there},
        )

    def _endpoints(self) -> Iterable[Route]:
        by_path: dict[str, list[Operation]] = {}
        for operation in self.operations:
            by_path.setdefault(operation.path, []).append(operation)
        return [Route(path, Endpoint(self.desk, operations)) for path, operations in by_path.items()]

    def _middleware(self) -> Iterable[Middleware]:
        yield Middleware(KnownHosts, desk=self.desk)
        origins = self._services.settings.rest.cors_origins
        if origins:
            yield Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=["authorization", "content-type", "accept", "idempotency-key", "penstock-route"],
                expose_headers=_EXPOSED,
            )

    async def _nothing_there(self, request: Request, error: Exception) -> Response:
        return _Nothing(self.desk)

    async def healthz(self, request: Request) -> Response:
        """200 if the store takes commands, 503 and the reason if not."""
        if self._services.is_stopping:
            return JSONResponse({"status": "stopping"}, 503)
        try:
            await self._services.shard.tick()
        except PenstockError as error:
            return JSONResponse({"status": "failing", "reason": str(error)}, 503)
        return JSONResponse({"status": "ok"})

    async def livez(self, request: Request) -> Response:
        """200 while the process serves at all: starting it again would not help a store that fails, or a stop."""
        return JSONResponse({"status": "ok"})

    async def version(self, request: Request) -> Response:
        """Which Penstock this is."""
        return JSONResponse({"name": "penstock", "version": self._version})

    async def openapi(self, request: Request) -> Response:
        """What the API can do, for programs."""
        return Response(self._document, media_type="application/json")

    async def page(self, request: Request) -> Response:
        """What the API can do, for people."""
        headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff"}
        return Response(PAGE, media_type="text/html", headers=headers)

    async def problems(self, request: Request) -> Response:
        """Every error of the API."""
        return _explaining(problem_pages.index())

    async def problem(self, request: Request) -> Response:
        """What an error means, and what to do: where its `type` leads."""
        page = problem_pages.page(request.path_params["code"])
        return _Nothing(self.desk) if page is None else _explaining(page)

    async def metrics(self, request: Request) -> Response:
        """Everything that is counted here, for Prometheus: with several nodes, each tells of what it has."""
        try:
            principal = self.desk.guard.principal(request.headers)
            patterns = request.query_params.getlist("queue")
            if len(patterns) > _PATTERNS_MAX:
                raise invalid(f"there are {len(patterns)} patterns: one request takes {_PATTERNS_MAX}")
            tally, stats = await self._count_queues(principal, patterns)
        except RestError as error:
            if error.status != 401:
                return PlainTextResponse(f"{error}\n", error.status)
            challenge = {"www-authenticate": 'Basic realm="penstock", charset="UTF-8"'}
            return PlainTextResponse("metrics need an access key and its secret\n", 401, headers=challenge)
        except PenstockError as error:
            return PlainTextResponse(f"{error}\n", 503)
        if self._services.gather_metrics is not None:
            sources = await self._services.gather_metrics()
        else:
            sources = [*self._services.metric_sources, self._process.families]
        text = await render_in_passing([*sources, lambda: tally_families(tally), *queue_sources(stats)])
        return Response(text, media_type=CONTENT_TYPE)

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


def _explaining(page: str) -> Response:
    headers = {"content-security-policy": problem_pages.POLICY, "x-content-type-options": "nosniff"}
    return Response(page, media_type="text/html", headers=headers)


class _Nothing(Response):
    """Says as a problem that there is nothing at a path."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(status_code=404)
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await not_found(self._desk, scope, receive, send)
