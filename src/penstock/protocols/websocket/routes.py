"""Where the websocket and the polled commands are found."""

from __future__ import annotations

from starlette.routing import BaseRoute, WebSocketRoute

from penstock import __version__
from penstock.protocols.websocket.socket import WebsocketEndpoint
from penstock.server.node import Services
from penstock.wire.requests import SOCKET_PATH


def routes(services: Services) -> list[BaseRoute]:
    """What REST's port serves of this protocol."""
    return [WebSocketRoute(SOCKET_PATH, WebsocketEndpoint(services, __version__))]
