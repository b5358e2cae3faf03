"""What else is served on REST's port: protocols that bring routes of their own.

Each is a function `routes(services)`; add it to `MOUNTED`. Who brings routes checks credentials, rights and limits
itself.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import BaseRoute

from penstock.protocols import websocket
from penstock.protocols.bulk import routes as bulk
from penstock.server.node import Services

MOUNTED: tuple[Callable[[Services], list[BaseRoute]], ...] = (websocket.routes, bulk.routes)
