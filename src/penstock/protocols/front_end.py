"""What HTTP front ends share: who is let in, log lines and counts, TLS. The front end itself is in `http_front_end`.

It answers only to names of this server (`penstock.protocols.hosts`). A server without credentials trusts everybody on
its machine, but not the pages in their browsers: a page may send a form to any address, or show an image from there,
loopback included. Browsers say so with `Origin` or `Sec-Fetch-Site`; such requests are refused there. (An address that
the user typed has `Sec-Fetch-Site: none`.)
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.protocols import hosts
from penstock.protocols.hosts import Hosts
from penstock.protocols.http import PLAIN_TEXT, Exchange, HttpCounters, Terms
from penstock.server.descriptors import TlsContext
from penstock.server.log import RequestLog
from penstock.server.metrics import RequestMeter, Series
from penstock.server.settings import InvalidSettings, ServerSettings

_now_s: Final = time.perf_counter
_UNKNOWN_ACTION: Final = "unknown"
_NO_PAGES: Final = "web pages may not call this port: they may call REST's, if [rest] cors_origins lists their origin"

UNREAD: Final = frozenset(
    (
        "accept",
        "accept-encoding",
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "authorization",
        "user-agent",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
        "x-amzn-trace-id",
    )
)
"""Headers that no front end reads when nobody has to prove who he is."""


Refuse = Callable[[Exchange, int, str, str], None]
"""Answers with a status, a code and a reason, in the form of a protocol's errors."""


def refuse_plainly(exchange: Exchange, status: int, code: str, reason: str) -> None:
    """Answer with a line of text."""
    exchange.outcome = code
    exchange.respond(status, PLAIN_TEXT, f"{reason}\n".encode())


class RequestObserver:
    """Turns a finished exchange into a count and, if it is wanted, a line of the log."""

    __slots__ = ("_log", "_meter", "_notes_all", "_protocol", "_went_well")

    def __init__(self, protocol: str, meter: RequestMeter, request_log: RequestLog) -> None:
        self._protocol = protocol
        self._meter = meter
        self._log = request_log
        self._notes_all = request_log.wants(200)
        self._went_well: dict[str, Series] = {}
        """By action: where those are counted that went well."""

    def note(self, exchange: Exchange, status: int) -> None:
        """An exchange was answered."""
        seconds = _now_s() - exchange.started_s
        outcome = exchange.outcome or ("ok" if status < 400 else str(status))
        action = exchange.action or _UNKNOWN_ACTION
        series = self._went_well.get(action) if outcome == "ok" and not exchange.protocol else None
        if series is None:
            series = self._meter.series(exchange.protocol or self._protocol, action, outcome)
            if series is not None and outcome == "ok" and not exchange.protocol:
                self._went_well[action] = series
        if series is not None:
            series.note(seconds)
        if self._notes_all or (status >= 400 and self._log.wants(status)):
            self._write(exchange, status, seconds, outcome)

    def _write(self, exchange: Exchange, status: int, seconds: float, outcome: str) -> None:
        self._log.note(
            exchange.protocol or self._protocol,
            status,
            seconds,
            request_id=exchange.request_id,
            peer=exchange.request.peer,
            principal=exchange.principal,
            action=exchange.action,
            queue=exchange.queue,
            outcome=outcome,
        )


def http_families(protocol: str, connections_open: int, counters: HttpCounters) -> Iterator[Metric]:
    """What an HTTP front end has counted."""
    labels = ("protocol",)
    is_open = GaugeMetricFamily("penstock_http_connections_open", "Connections now.", labels=labels)
    is_open.add_metric((protocol,), connections_open)
    yield is_open
    accepted = CounterMetricFamily("penstock_http_connections", "Connections accepted.", labels=labels)
    accepted.add_metric((protocol,), counters.connections)
    yield accepted
    abandoned = CounterMetricFamily("penstock_http_abandoned", "Requests whose clients hung up early.", labels=labels)
    abandoned.add_metric((protocol,), counters.abandoned)
    yield abandoned
    rejected = CounterMetricFamily(
        "penstock_http_rejections", "Connections ended for what came over them.", labels=("protocol", "status")
    )
    for status, count in counters.rejections.items():
        rejected.add_metric((protocol, str(status)), count)
    yield rejected


def let_in(exchange: Exchange) -> Terms | None:
    """A header check that refuses nobody."""
    return None


class Admission:
    """Who is let in: who asks for a name of this server, and is no web page, unless `pages` may call as well."""

    __slots__ = ("_hosts", "_pages", "_refuse")

    def __init__(self, known: Hosts, refuse: Refuse, *, pages: bool = False) -> None:
        self._hosts = known
        self._refuse = refuse
        self._pages = pages

    def refuses(self, exchange: Exchange) -> bool:
        """Answer a request that is not to be let in; False if it is."""
        request, known = exchange.request, self._hosts
        headers = request.headers
        host = headers.get("host", "")
        if not host or host in known.remembered or known.allows(host):
            host = "" if request.raw_target[:1] == b"/" else hosts.host_of_target(request.raw_target)
            if not host or known.allows(host):
                if self._pages or ("origin" not in headers and headers.get("sec-fetch-site", "none") == "none"):
                    return False
                self._refuse(exchange, 403, "AccessDenied", _NO_PAGES)
                return True
        self._refuse(exchange, hosts.STATUS, hosts.CODE, Hosts.refusal(host))
        return True


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """What TLS needs, or None if it is not configured."""
    if settings.tls_certificate is None:
        return None
    context = TlsContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidSettings(f"[server] tls_certificate and tls_key cannot be used: {error}") from None
    return context


def url_of(host: str, port: int, is_tls: bool) -> str:
    """The URL of a listener.

    >>> url_of("::1", 9324, False)
    'http://[::1]:9324'
    """
    return f"{'https' if is_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
