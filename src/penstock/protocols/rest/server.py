"""REST's port as a front end of a node: the API, websockets, bulk, pages and metrics."""

from __future__ import annotations

import msgspec

from penstock.protocols.hosts import STATUS
from penstock.protocols.http import Exchange, Handler, HttpLimits, Observer, Screen
from penstock.protocols.http_front_end import HttpFrontEnd
from penstock.protocols.rest.app import RestApp
from penstock.protocols.rest.problems import RestError, render_problem
from penstock.server.node import Address, Services
from penstock.server.partition_map import OneNode
from penstock.wire.requests import SOCKET_PATH

_UNREAD = frozenset(("accept-encoding", "accept-language", "user-agent"))
_AT_ONCE_BYTES = 1024 * 1024
"""More than comes in a single read: how large a body may be is said for each operation."""


class RestFrontEnd(HttpFrontEnd):
    """Serves `RestApp` on the host of the settings and this port."""

    render = staticmethod(render_problem)
    websockets = frozenset((SOCKET_PATH,))
    protocol = "rest"

    def __init__(self, port: int, version: str) -> None:
        super().__init__("http", port, self._make, self._refuse_host, self._make_screen_of)
        self._version = version
        self._app: RestApp | None = None

    def _make(self, services: Services) -> Handler:
        self._app = RestApp(services, self._version, self.observer(services))
        return self._app.handle

    def _make_screen_of(self, services: Services) -> Screen:
        assert self._app is not None
        return self._app.screen

    def _refuse_host(self, exchange: Exchange, status: int, code: str, reason: str) -> None:
        assert self._app is not None and status == STATUS
        self._app.desk.fail(exchange, RestError(421, "misdirected_request", reason))

    def listening(self, services: Services, address: Address) -> None:
        """A node that is alone owns everything."""
        if services.partition_maps is None:
            services.partition_maps = OneNode(address.url)

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

    def stop_accepting(self) -> None:
        """Health goes on being told until the store is closed: see `drain`."""
