"""Where the websocket and the polled commands are found, and how uvicorn is told to serve websockets."""

from __future__ import annotations

from typing import Any

from starlette.routing import BaseRoute, Route, WebSocketRoute

from penstock import __version__
from penstock.protocols.websocket.connection import Connection
from penstock.protocols.websocket.polling import CommandsEndpoint
from penstock.protocols.websocket.socket import WebsocketEndpoint
from penstock.server.node import Services
from penstock.wire.requests import COMMANDS_PATH, SOCKET_PATH


def routes(services: Services) -> list[BaseRoute]:
    """What REST's port serves of this protocol."""
    return [
        WebSocketRoute(SOCKET_PATH, WebsocketEndpoint(services, __version__)),
        Route(COMMANDS_PATH, CommandsEndpoint(services, __version__)),
    ]


def uvicorn_options(services: Services) -> dict[str, Any]:
    """What uvicorn has to be told. Bodies are the users' own, and mostly do not shrink: nothing is compressed."""
    settings = services.settings.websocket
    limits = {"budget": services.budget, "handshake_timeout_s": settings.read_timeout_s}
    return {
        "ws": type("LimitedWebsocket", (Connection,), limits),
        "ws_max_size": settings.frame_bytes_max,
        "ws_ping_interval": settings.heartbeat_s,
        "ws_ping_timeout": settings.heartbeat_s,
        "ws_per_message_deflate": False,
    }
