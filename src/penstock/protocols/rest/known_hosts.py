"""REST's port answers only to names of this server (`penstock.protocols.hosts`): requests and websockets alike."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.protocols.hosts import STATUS, Hosts, hosts_of
from penstock.protocols.rest.endpoint import Desk, Visit
from penstock.protocols.rest.problems import RestError
from penstock.protocols.websocket.socket import refuse_upgrade


class KnownHosts:
    """The application, for who asks for a name of this server's."""

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        self._app = app
        self._desk = desk
        self._hosts = hosts_of(desk.services.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or say why not."""
        allows = self._hosts.allows
        for name, value in scope["headers"]:
            if name == b"host" and value and not allows(value.decode("latin-1")):
                await self._refuse(value.decode("latin-1"), scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _refuse(self, host: str, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await refuse_upgrade(send, STATUS, Hosts.refusal(host))
        else:
            error = RestError(STATUS, "misdirected_request", Hosts.refusal(host))
            await Visit(self._desk, scope, receive, send).fail(error)
