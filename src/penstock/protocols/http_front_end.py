"""An HTTP front end of a node: a handler and its listener. Not compiled: front ends derive from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import Metric

from penstock.protocols.front_end import (
    UNREAD,
    Admission,
    Refuse,
    RequestObserver,
    hosts_of,
    http_families,
    let_in,
    refuse_plainly,
    tls_context,
    url_of,
)
from penstock.protocols.http import (
    Exchange,
    Handler,
    HeaderCheck,
    HttpLimits,
    HttpServer,
    Observer,
    Render,
    render_plainly,
)
from penstock.server.audit import audit_of
from penstock.server.node import Address, Services


class HttpFrontEnd:
    """Serves what `make_handler` makes, on the host of the settings and this port."""

    render: Render = staticmethod(render_plainly)
    """What is said to who is refused before there is a request."""
    websockets: frozenset[str] = frozenset()
    """Paths that speak websocket."""
    protocol = ""
    """What is counted here is counted as this; by default, as the front end's name."""

    changes: frozenset[str] = frozenset()
    """Actions that the audit log tells of."""

    def __init__(
        self,
        name: str,
        port: int,
        make_handler: Callable[[Services], Handler],
        refuse: Refuse = refuse_plainly,
        make_header_check: Callable[[Services], HeaderCheck] | None = None,
    ) -> None:
        self.name = name
        self._port = port
        self._make_handler = make_handler
        self._refuse = refuse
        self._make_header_check = make_header_check
        self._server: HttpServer | None = None

    async def start(self, services: Services) -> Address:
        settings = services.settings.server
        handler = self._make_handler(services)
        check_header: HeaderCheck = let_in
        if self._make_header_check is not None:
            check_header = self._make_header_check(services)
        pages = not self.pages_are_refused(services)
        self._server = HttpServer(
            handler,
            self.limits(services),
            self.observer(services),
            self.unread(services),
            services.budget,
            check_header,
            self.render,
            self.websockets,
            Admission(hosts_of(services.settings), self._refuse, pages=pages).refuses,
            self._tell_change(services) if self.changes else None,
        )
        tls = tls_context(settings)
        port = await self._server.listen(settings.host, self._port, tls)
        address = Address(settings.host, port, url_of(settings.host, port, tls is not None))
        self.listening(services, address)
        await self._server.serve()
        services.metric_sources.append(self._families)
        return address

    def listening(self, services: Services, address: Address) -> None:
        """The address is known, and nobody is served yet."""

    def observer(self, services: Services) -> Observer:
        """What is told of every answer."""
        tell = self._tell_change(services)
        protocol = self.protocol or self.name
        return RequestObserver(protocol, services.meter, services.request_log, self.changes, tell).note

    def _tell_change(self, services: Services) -> Observer:
        """Writes a change into the audit log: also that of who has not waited for the answer."""
        audit = audit_of(services)

        def tell(exchange: Exchange, status: int) -> None:
            if exchange.action in self.changes and exchange.principal:
                outcome = exchange.outcome or ("ok" if status < 400 else str(status))
                queue = exchange.queue or None
                audit.note(exchange.principal, exchange.request.peer, exchange.action, queue, exchange.scope, outcome)

        return tell

    def unread(self, services: Services) -> frozenset[str]:
        """Headers that need not be kept."""
        return frozenset() if services.credentials.are_required else UNREAD

    def pages_are_refused(self, services: Services) -> bool:
        """Whether no web page may call. Who has to sign a request cannot be made to by a page."""
        return not services.credentials.are_required

    def limits(self, services: Services) -> HttpLimits:
        """What a client may ask of this front end."""
        return services.settings.http

    def take_limits(self, services: Services) -> None:
        """Connections look at the server's limits."""
        assert self._server is not None
        self._server.limits = self.limits(services)

    def stop_accepting(self) -> None:
        assert self._server is not None
        self._server.stop_accepting()

    async def settled(self, grace_s: float) -> bool:
        """Wait until only long polls are in flight; False if that takes too long."""
        assert self._server is not None
        return await self._server.settled(grace_s)

    async def drain(self, grace_s: float) -> None:
        assert self._server is not None
        await self._server.drain(grace_s)

    def _families(self) -> Iterable[Metric]:
        if self._server is None:
            return ()
        return http_families(self.protocol or self.name, self._server.connections_open, self._server.counters)
