"""What HTTP front ends share: who is let in, log lines and counts, TLS. The front end itself is in `http_front_end`.

It answers only to names of this server. A server without credentials trusts everybody on
its machine, but not the pages in their browsers: a page may send a form to any address, or show an image from there,
loopback included. Browsers say so with `Origin` or `Sec-Fetch-Site`; such requests are refused there. (An address that
the user typed has `Sec-Fetch-Site: none`.)

To which names a server answers.

A web page may give its own name the address of this machine after it was loaded (DNS rebinding). For the browser the
server is then the page's own: it may send to it and read from it. What gives the page away is the `Host` header, which
still has the page's name. So every HTTP port answers only to names that nobody else can make lead here:

- addresses, whichever they are: there is no name to be given another address
- `localhost`, and names that end in `.localhost`: browsers and systems keep them for this machine
- the names that the server listens on or advertises, and those that `[server] hosts` lists

A request without a `Host` (HTTP/1.0) is answered: browsers always send one.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.protocols.http import PLAIN_TEXT, Exchange, HttpCounters, Observer, Terms
from penstock.server.budget import TlsContext
from penstock.server.log import RequestLog
from penstock.server.metrics import BOUNDS, RequestMeter, Series
from penstock.server.settings import EVERY_HOST, InvalidSettings, ServerSettings, Settings, check_files

STATUS = 421
CODE = "MisdirectedRequest"
_REMEMBERED_MAX = 256
_SHOWN_MAX = 100
_WILDCARD_ADDRESSES = ("", "0.0.0.0", "::")


class Hosts:
    """The names of a server, and what patterns say of others.

    >>> hosts = Hosts(["penstock.svc", "*.example.org"])
    >>> [hosts.allows(host) for host in ("LOCALHOST:9324", "10.1.2.3", "[::1]:80", "penstock.svc.", "a.example.org:1")]
    [True, True, True, True, True]
    >>> [hosts.allows(host) for host in ("evil.example", "example.org", "127.0.0.1.evil.example", "localhost:x", "::1")]
    [False, False, False, False, False]
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        named = [pattern.lower().rstrip(".") for pattern in patterns]
        self._is_open = EVERY_HOST in named
        self._names = frozenset(name for name in named if not name.startswith("*")) | {"localhost"}
        self._endings = (".localhost", *(name[1:] for name in named if name.startswith("*.")))
        self.remembered: set[str] = set()
        """Headers that were looked at and found good."""

    def allows(self, host: str) -> bool:
        """Whether a request with this `Host` header is answered."""
        if host in self.remembered or self._is_open:
            return True
        if not self.knows(host):
            return False
        if len(self.remembered) < _REMEMBERED_MAX:
            self.remembered.add(host)
        return True

    def knows(self, host: str) -> bool:
        """Whether it is a name, or an address, that nobody else can make lead here: `*` does not count."""
        name = _name_of(host)
        return name in self._names or name.endswith(self._endings) or _is_address(name)

    @staticmethod
    def refusal(host: str) -> str:
        """What to say to who asks for another name.

        >>> Hosts.refusal("evil.example:9324")
        "this server does not answer to the host 'evil.example:9324': add its name to [server] hosts in penstock.toml"
        """
        shown = ascii(host[:_SHOWN_MAX])
        return f"this server does not answer to the host {shown}: add its name to [server] hosts in penstock.toml"


def hosts_of(settings: Settings) -> Hosts:
    """The names of a server with these settings: those it listens on and advertises, and those that are listed."""
    server, cluster, nsq, lookup = settings.server, settings.cluster, settings.nsq, settings.lookup
    own = [server.host, lookup.host, cluster.link_host]
    own += [name for name in (nsq.broadcast_address, lookup.broadcast_address) if name]
    if cluster.link_address is not None:
        own.append(_name_of(cluster.link_address))
    if any(name in _WILDCARD_ADDRESSES for name in own):
        own.append(socket.gethostname())
    return Hosts([*(name for name in own if name not in _WILDCARD_ADDRESSES), *server.hosts])


def host_of_target(target: bytes) -> str:
    """The host of a request's target that is a whole URL, as to a proxy: it counts, and not the header alone.

    >>> host_of_target(b"http://evil.example:9324/x"), host_of_target(b"/x")
    ('evil.example:9324', '')
    """
    if target.startswith(b"/"):
        return ""
    rest = target.decode("latin-1").partition("://")[2]
    for separator in "/?#":
        rest = rest.partition(separator)[0]
    return rest.rpartition("@")[2]


def _name_of(host: str) -> str:
    """A header without its port, in lower case; "" if it is none.

    >>> _name_of("Penstock.Example.:9324"), _name_of("[fe80::1%25eth0]:80"), _name_of("a:b"), _name_of("[::1")
    ('penstock.example', 'fe80::1%25eth0', '', '')
    """
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        is_whole = bool(bracket) and (not rest or rest.startswith(":"))
        name, port = (name if is_whole and ":" in name else ""), rest[1:]
    else:
        name, _, port = host.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        return ""
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


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
    )
)
"""Headers that no front end reads when nobody has to prove who he is."""


Refuse = Callable[[Exchange, int, str, str], None]
"""Answers with a status, a code and a reason, in the form of a protocol's errors."""


def refuse_plainly(exchange: Exchange, status: int, code: str, reason: str) -> None:
    exchange.outcome = code
    exchange.respond(status, PLAIN_TEXT, f"{reason}\n".encode())


def is_own_page(headers: Mapping[str, str]) -> bool:
    """Whether a page of this very server calls: the console, or that of the API's documentation. Browsers say so.

    To another machine without TLS they send no `Sec-Fetch-Site`, and `Origin` only with what is no GET: `Referer` then.

    >>> is_own_page({"sec-fetch-site": "same-origin"}), is_own_page({"user-agent": "curl"})
    (True, False)
    >>> is_own_page({"host": "a:9325", "referer": "http://a:9325/"}), is_own_page({"referer": "http://b/", "host": "a"})
    (True, False)
    """
    if headers.get("sec-fetch-site") == "same-origin":
        return True
    came_from = (headers.get("origin", ""), headers.get("referer", ""))
    return any(each and each.partition("://")[2].partition("/")[0] == headers.get("host", "") for each in came_from)


class RequestObserver:
    """Turns a finished exchange into a count and, if it is wanted, a line of the log."""

    __slots__ = ("_changes", "_log", "_meter", "_notes_all", "_protocol", "_tell_change", "_went_well")

    def __init__(
        self,
        protocol: str,
        meter: RequestMeter,
        request_log: RequestLog,
        changes: frozenset[str] = frozenset(),
        tell_change: Observer | None = None,
    ) -> None:
        self._protocol = protocol
        self._meter = meter
        self._log = request_log
        self._changes = changes
        """Actions of which `tell_change` is told as well."""
        self._tell_change = tell_change
        self._notes_all = request_log.wants(200)
        self._went_well: dict[str, Series] = {}
        """By action: where those are counted that went well."""

    def note(self, exchange: Exchange, status: int) -> None:
        seconds = _now_s() - exchange.started_s
        outcome = exchange.outcome or ("ok" if status < 400 else str(status))
        action = exchange.action or _UNKNOWN_ACTION
        series = self._went_well.get(action) if outcome == "ok" and not exchange.protocol else None
        if series is None:
            series = self._meter.series(exchange.protocol or self._protocol, action, outcome)
            if series is not None and outcome == "ok" and not exchange.protocol:
                self._went_well[action] = series
        if series is not None:
            series.count += 1  # as `RequestMeter.note`, which costs a call
            series.durations.seconds += seconds
            series.durations.buckets[bisect_left(BOUNDS, seconds)] += 1
        if self._notes_all or (status >= 400 and self._log.wants(status)):
            self._write(exchange, status, seconds, outcome)
        if self._tell_change is not None and action in self._changes:
            self._tell_change(exchange, status)

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
        "penstock_http_rejections", "Connections closed because of what the client sent.", labels=("protocol", "status")
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
            host = "" if request.raw_target[:1] == b"/" else host_of_target(request.raw_target)
            if not host or known.allows(host):
                if self._pages or ("origin" not in headers and headers.get("sec-fetch-site", "none") == "none"):
                    return False
                self._refuse(exchange, 403, "AccessDenied", _NO_PAGES)
                return True
        self._refuse(exchange, STATUS, CODE, Hosts.refusal(host))
        return True


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """What TLS needs, or None if it is not configured."""
    if settings.tls_certificate is None:
        return None
    check_files(settings, "[server]", "tls_certificate", "tls_key")
    context = TlsContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        files = f"tls_certificate ({settings.tls_certificate}) and tls_key ({settings.tls_key})"
        raise InvalidSettings(f"[server] {files} cannot be used: {error}") from None
    return context


def url_of(host: str, port: int, is_tls: bool) -> str:
    """The URL of a listener.

    >>> url_of("::1", 9324, False)
    'http://[::1]:9324'
    """
    return f"{'https' if is_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
