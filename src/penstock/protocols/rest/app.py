"""What the REST server answers: `/healthz`, `/version`, `/metrics`.

Health and version are open to everybody. Metrics name queues: where credentials are configured, they take an access key
and its secret (HTTP basic authentication, which Prometheus speaks) and show the queues which that key may read.
"""

from __future__ import annotations

import base64

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from penstock.core.commands import ListQueues, QueueStats, Stats
from penstock.core.errors import PenstockError, QueueNotFound
from penstock.protocols.rest.mounted import MOUNTED
from penstock.server.auth import ANYBODY, Principal
from penstock.server.metrics import CONTENT_TYPE, ProcessMetrics, queue_families, render
from penstock.server.node import Services
from penstock.server.tasks import AsyncShard

_QUEUES_PER_CALL = 1_000


class RestApp:
    """One method a path."""

    def __init__(self, services: Services, version: str) -> None:
        self._services = services
        self._version = version
        self._process = ProcessMetrics()

    def routes(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/healthz", self.healthz),
                Route("/version", self.version),
                Route("/metrics", self.metrics),
                *(route for routes in MOUNTED for route in routes(self._services)),
            ]
        )

    async def healthz(self, request: Request) -> Response:
        """200 if the store takes commands, 503 and the reason if not."""
        if self._services.is_stopping:
            return JSONResponse({"status": "stopping"}, 503)
        try:
            await self._services.shard.tick()
        except PenstockError as error:
            return JSONResponse({"status": "failing", "reason": str(error)}, 503)
        return JSONResponse({"status": "ok"})

    async def version(self, request: Request) -> Response:
        """Which Penstock this is."""
        return JSONResponse({"name": "penstock", "version": self._version})

    async def metrics(self, request: Request) -> Response:
        """Everything that is counted, for Prometheus."""
        principal = self._principal(request)
        if principal is None:
            challenge = {"www-authenticate": 'Basic realm="penstock", charset="UTF-8"'}
            return PlainTextResponse("metrics need an access key and its secret\n", 401, headers=challenge)
        try:
            stats = await _stats_of_queues(self._services.shard, principal)
        except PenstockError as error:
            return PlainTextResponse(f"{error}\n", 503)
        sources = [*self._services.metric_sources, self._process.families, lambda: queue_families(stats)]
        return Response(render(sources), media_type=CONTENT_TYPE)

    def _principal(self, request: Request) -> Principal | None:
        credentials = self._services.credentials
        if not credentials.are_required:
            return ANYBODY
        scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            access_key, _, secret_key = base64.b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return None
        return credentials.check_password(access_key, secret_key)


async def _stats_of_queues(shard: AsyncShard, principal: Principal) -> list[Stats]:
    found: list[Stats] = []
    after = ""
    while names := await shard.call(ListQueues(after=after, limit=_QUEUES_PER_CALL)):
        after = names[-1]
        for name in names:
            if principal.allows("read", name):
                try:
                    found.append(await shard.call(QueueStats(name=name)))
                except QueueNotFound:
                    continue
    return found
