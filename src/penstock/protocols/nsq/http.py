"""nsqd's HTTP API: publishing, topics and channels, statistics, options; and the front end that serves it.

The front end starts after the TCP side, and is the first to know both ports: so it is the one who tells the lookup
services (`registration.py`).

Publishing makes no task: its command goes to the shard, and the answer leaves when the message is on the disk. The rest
is rare, and runs as tasks.

Who may: `/ping` is for everybody. Where credentials are configured, the rest takes an access key and its secret
(basic authentication) or a bearer token. Publishing and creating a topic take the right `write` on it; creating a
channel and seeing statistics take `read`; everything else takes `admin`, and options take it on every topic.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import numpy as np

from penstock.core.commands import ChangeQueue, CreateChannel, QueueStats, Send
from penstock.core.errors import (
    AccessDenied,
    ChannelNotFound,
    InvalidRequest,
    MessageTooLarge,
    PenstockError,
    QueueNotFound,
    TooManyFailedLogins,
)
from penstock.core.storage.chunk import PackedBodies
from penstock.protocols.http import Exchange, Handler, HttpLimits, Request
from penstock.protocols.http_front_end import HttpFrontEnd
from penstock.protocols.lookup.registry import Identity
from penstock.protocols.lookup.service import reachable_host
from penstock.protocols.nsq import stats, wire
from penstock.protocols.nsq.http_api import (
    Answer,
    ApiCall,
    ApiError,
    Arguments,
    Json,
    Route,
    Routes,
    Work,
    find_route,
    refuse,
    refuse_request,
    respond,
)
from penstock.protocols.nsq.registration import LookupRegistration
from penstock.protocols.nsq.server import TCP_ADDRESS
from penstock.protocols.nsq.topics import Topics
from penstock.protocols.nsq.wire import NSQ_VERSION, is_name
from penstock.server.auth import ANYBODY, Principal, authorize_kinds
from penstock.server.node import Address, Services
from penstock.server.settings import InvalidSettings, parse_address
from penstock.server.shard import Call, ShardClosed
from penstock.server.tasks import HEALTH_S

log = logging.getLogger("penstock.nsq.http")

_SECOND_NS = 1_000_000_000
_NEWLINE = 10
_CONFIG = "/config/"
_EVERY_TOPIC = "*"
_CHALLENGE = (("www-authenticate", 'Basic realm="penstock", charset="UTF-8"'),)
_LOG_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_LOG_LEVELS |= {"fatal": logging.CRITICAL}
_ADDRESSES = msgspec.json.Decoder(list[str] | None)


class NsqHttp:
    """One method a path; `handle` answers an exchange."""

    def __init__(self, services: Services, topics: Topics, registration: LookupRegistration) -> None:
        self._services = services
        self._topics = topics
        self._registration = registration
        self._settings = services.settings.nsq
        self._latencies = stats.Latencies(topics)
        self._start_s = time.time()
        self._tasks: set[asyncio.Task[None]] = set()
        self.tcp_port = 0
        self.http_port = 0
        """Where we listen; known a moment after."""
        self._routes: Routes = {
            "/ping": {"GET": self.ping},
            "/info": {"GET": self.info},
            "/stats": {"GET": self.stats},
            "/topic/create": {"POST": self.create_topic},
            "/topic/delete": {"POST": self.delete_topic},
            "/topic/empty": {"POST": self.empty_topic},
            "/topic/pause": {"POST": self.pause_topic},
            "/topic/unpause": {"POST": self.unpause_topic},
            "/channel/create": {"POST": self.create_channel},
            "/channel/delete": {"POST": self.delete_channel},
            "/channel/empty": {"POST": self.empty_channel},
            "/channel/pause": {"POST": self.pause_channel},
            "/channel/unpause": {"POST": self.unpause_channel},
            "/pub": {"POST": self.publish},
            "/mpub": {"POST": self.publish_many},
        }
        self._config_routes: Routes = {_CONFIG: {"GET": self.show_option, "PUT": self.set_option}}

    # -- the way in and out --

    def check_header(self, exchange: Exchange) -> None:
        """Answer a request without its body, if that is a stranger's."""
        try:
            self._principal(exchange.request)
        except ApiError as error:
            refuse(exchange, error)
        except PenstockError as error:
            refuse(exchange, _translated(error))

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        request = exchange.request
        try:
            route = self._route(exchange)
            call = ApiCall(request, Arguments(request.query), self._principal(request))
            exchange.principal = call.principal.name
            exchange.queue = call.arguments.text("topic") or ""
            if exchange.action.startswith("/channel/"):
                exchange.scope = {"channel": call.arguments.text("channel") or ""}
            answer = route(call)
        except ApiError as error:
            refuse(exchange, error)
        except PenstockError as error:
            refuse(exchange, _translated(error))
        else:
            if isinstance(answer, _Publication):
                answer.begin(exchange, self._topics)
            elif asyncio.iscoroutine(answer):
                self._begin(exchange, answer)
            else:
                respond(exchange, answer)

    def _route(self, exchange: Exchange) -> Route:
        request = exchange.request
        if request.path.startswith(_CONFIG) and "/" not in request.path[len(_CONFIG) :]:
            route = find_route(self._config_routes, Request(request.method, _CONFIG.encode(), {}, b""))
            exchange.action = f"PUT {_CONFIG}" if request.method == "PUT" else _CONFIG
            exchange.scope = {"option": request.path[len(_CONFIG) :]}
        else:
            route = find_route(self._routes, request)
            exchange.action = request.path
        return route

    def _begin(self, exchange: Exchange, work: Work) -> None:
        task = asyncio.create_task(_finish(exchange, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _principal(self, request: Request) -> Principal:
        credentials = self._services.credentials
        if not credentials.are_required or request.path == "/ping":
            return ANYBODY
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        found = None
        if scheme.lower() == "bearer":
            found = credentials.check_bearer(value.strip(), request.peer)
        elif scheme.lower() == "basic":
            try:
                access_key, _, secret_key = base64.b64decode(value, validate=True).decode().partition(":")
            except ValueError:
                raise ApiError(401, "UNAUTHORIZED", _CHALLENGE) from None
            found = credentials.check_password(access_key, secret_key, request.peer)
        if found is None:
            raise ApiError(401, "UNAUTHORIZED", _CHALLENGE)
        return found

    # -- what it is --

    async def ping(self, call: ApiCall) -> Answer:
        """Whether the store takes commands."""
        health = await self._health()
        if health != "OK":
            raise ApiError(500, health)
        return health

    async def _health(self) -> str:
        try:
            reason = (await self._services.shard.unready(HEALTH_S)).reason
        except PenstockError as error:
            reason = str(error)
        return f"NOK - {reason}" if reason else "OK"

    def info(self, call: ApiCall) -> Answer:
        """Where and what we are."""
        settings = self._settings
        return {
            "version": NSQ_VERSION,
            "broadcast_address": self._registration.identity.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": self.http_port,
            "tcp_port": self.tcp_port,
            "start_time": int(self._start_s),
            "max_heartbeat_interval": _ns(settings.heartbeat_interval_max_s),
            "max_output_buffer_size": settings.output_buffer_bytes_max,
            "max_output_buffer_timeout": _ns(settings.output_buffer_timeout_max_s),
            "max_deflate_level": settings.deflate_level_max,
        }

    async def stats(self, call: ApiCall) -> Answer:
        """Counts of everything, or of a topic, or of a channel."""
        arguments = call.arguments
        report = stats.StatsReport(
            self._topics,
            self._latencies,
            with_clients=arguments.flag("include_clients", True),
            topic=arguments.text("topic") or "",
            channel=arguments.text("channel") or "",
        )

        def may_read(topic: str) -> bool:
            return call.principal.may(topic, QueueStats)

        producers = report.producers() if call.principal.may(_EVERY_TOPIC, QueueStats) else None
        document = stats.StatsDocument(NSQ_VERSION, await self._health(), int(self._start_s), None, producers)
        if arguments.flag("include_mem", True):
            document.memory = stats.memory()
        topics = report.topics(may_read) if report.has_topic(may_read) else None
        as_json = arguments.text("format") == "json"
        text = await stats.written(document, topics, as_json=as_json, now_s=time.time())
        return Json(text) if as_json else text

    # -- publishing --

    def publish(self, call: ApiCall) -> Answer:
        """One message: the body."""
        body = call.request.body
        if len(body) > self._settings.message_bytes_max:
            raise ApiError(413, "MSG_TOO_BIG")
        if not body:
            raise ApiError(400, "MSG_EMPTY")
        topic = self._topic_to_write(call)
        return _Publication(topic, [body], self._delay_ms(call.arguments))

    def publish_many(self, call: ApiCall) -> Answer:
        """Many messages: the body's lines, or as in MPUB."""
        body = call.request.body
        if len(body) > self._settings.body_bytes_max:
            raise ApiError(413, "BODY_TOO_BIG")
        topic = self._topic_to_write(call)
        is_binary = call.arguments.text("binary") is not None and call.arguments.flag("binary", True)
        bodies = self._packed(body) if is_binary else self._lines(body)
        return _Publication(topic, bodies, None) if len(bodies) else self._made(topic)

    def _topic_to_write(self, call: ApiCall) -> str:
        topic = call.arguments.name("topic", "INVALID_TOPIC")
        authorize_kinds(call.principal, topic, Send)
        return topic

    def _delay_ms(self, arguments: Arguments) -> int | None:
        text = arguments.text("defer")
        if text is None:
            return None
        digits = text.removeprefix("+")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
            raise ApiError(400, "INVALID_DEFER")
        if int(digits) > self._settings.requeue_timeout_max_s * 1_000:
            raise ApiError(400, "INVALID_DEFER")
        return int(digits)

    def _lines(self, body: bytes) -> PackedBodies:
        lines = packed_lines(body)
        if len(lines) and int(np.diff(lines.offsets).max()) > self._settings.message_bytes_max:
            raise ApiError(413, "MSG_TOO_BIG")
        return lines

    def _packed(self, body: bytes) -> list[bytes] | PackedBodies:
        try:
            return wire.parse_bodies(body, 0, len(body), self._settings.message_bytes_max)
        except wire.Refused as refusal:
            raise ApiError(413, refusal.code.removeprefix("E_")) from None

    async def _made(self, topic: str) -> Answer:
        """Nothing was published; the topic is there all the same."""
        await self._topics.create_topic(topic)
        return "OK"

    # -- topics --

    async def create_topic(self, call: ApiCall) -> Answer:
        """Make a topic; once more is fine."""
        topic = call.arguments.name("topic", "INVALID_TOPIC")
        authorize_kinds(call.principal, topic, Send)
        await self._topics.create_topic(topic)

    async def delete_topic(self, call: ApiCall) -> Answer:
        """Delete a topic with everything in it."""
        await self._topics.delete_topic(self._owned_topic(call))

    async def empty_topic(self, call: ApiCall) -> Answer:
        """Drop what no channel has got yet."""
        call.arguments.name("topic", "INVALID_TOPIC")
        await self._topics.empty_topic(self._owned_topic(call))

    async def pause_topic(self, call: ApiCall) -> Answer:
        """Move nothing from a topic to its channels."""
        await self._topics.pause_topic(self._owned_topic(call), True)

    async def unpause_topic(self, call: ApiCall) -> Answer:
        """Go on moving."""
        await self._topics.pause_topic(self._owned_topic(call), False)

    def _owned_topic(self, call: ApiCall) -> str:
        """The topic that a request names, if it may administer it."""
        topic = call.arguments.needed("topic")
        authorize_kinds(call.principal, topic, ChangeQueue)
        return topic

    # -- channels --

    async def create_channel(self, call: ApiCall) -> Answer:
        """Make a channel of a topic that is there; once more is fine."""
        topic, channel = call.arguments.topic_and_channel()
        authorize_kinds(call.principal, topic, CreateChannel)
        await self._topics.create_channel(topic, channel)

    async def delete_channel(self, call: ApiCall) -> Answer:
        await self._topics.delete_channel(*self._owned_channel(call))

    async def empty_channel(self, call: ApiCall) -> Answer:
        """Drop what waits in a channel, and what is in flight."""
        await self._topics.empty_channel(*self._owned_channel(call))

    async def pause_channel(self, call: ApiCall) -> Answer:
        """Hand out nothing."""
        await self._topics.pause_channel(*self._owned_channel(call), True)

    async def unpause_channel(self, call: ApiCall) -> Answer:
        """Go on handing out."""
        await self._topics.pause_channel(*self._owned_channel(call), False)

    def _owned_channel(self, call: ApiCall) -> tuple[str, str]:
        topic, channel = call.arguments.topic_and_channel()
        authorize_kinds(call.principal, topic, ChangeQueue)
        return topic, channel

    # -- options --

    def show_option(self, call: ApiCall) -> Answer:
        authorize_kinds(call.principal, _EVERY_TOPIC, ChangeQueue)
        option = _OPTIONS.get(_option(call))
        if option is None:
            raise ApiError(400, "INVALID_OPTION")
        return option(self)

    def set_option(self, call: ApiCall) -> Answer:
        """Change an option while the server runs; not for longer."""
        authorize_kinds(call.principal, _EVERY_TOPIC, ChangeQueue)
        if not call.request.body or len(call.request.body) > self._settings.message_bytes_max:
            raise ApiError(413, "INVALID_VALUE")
        setter = _SETTERS.get(_option(call))
        if setter is None:
            raise ApiError(400, "INVALID_OPTION")
        setter(self, call.request.body)
        return self.show_option(call)

    def _set_lookup_addresses(self, body: bytes) -> None:
        try:
            addresses = _ADDRESSES.decode(body) or []
            for address in addresses:
                parse_address(address, "a lookup address")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidSettings):
            raise ApiError(400, "INVALID_VALUE") from None
        log.info("the lookup addresses are now %s", addresses)
        self._registration.set_addresses(addresses)

    def _set_log_level(self, body: bytes) -> None:
        level = _LOG_LEVELS.get(body.decode("latin-1").lower())
        if level is None:
            raise ApiError(400, "INVALID_VALUE")
        logging.getLogger().setLevel(level)

    def lookup_addresses(self) -> list[str]:
        """The lookup services that hear of us."""
        return self._registration.addresses

    @property
    def services(self) -> Services:
        """What the front end got of its node."""
        return self._services


def packed_lines(text: bytes) -> PackedBodies:
    r"""The lines of a text that are not empty, without looking at each.

    >>> list(packed_lines(b"one\n\ntwo"))
    [b'one', b'two']
    """
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
    edges = np.concatenate(([-1], ends, [len(text)]))
    lengths = np.diff(edges) - 1
    offsets = np.concatenate(([0], np.cumsum(lengths[lengths > 0])))
    return PackedBodies(text.replace(b"\n", b""), offsets.astype(np.int32))


class _Publication:
    """Messages on their way to the disk, and the exchange that waits for them."""

    __slots__ = ("_bodies", "_delay_ms", "_exchange", "_topic")

    def __init__(self, topic: str, bodies: list[bytes] | PackedBodies, delay_ms: int | None) -> None:
        self._topic = topic
        self._bodies = bodies
        self._delay_ms = delay_ms
        self._exchange: Exchange

    def begin(self, exchange: Exchange, topics: Topics) -> None:
        """Send the messages; the answer comes when they are durable."""
        self._exchange = exchange
        try:
            topics.shard.submit(topics.send(self._topic, self._bodies, self._delay_ms), self._settled)
        except PenstockError as error:
            refuse(exchange, _translated(error))

    def _settled(self, call: Call) -> None:
        try:
            call.result()
        except PenstockError as error:
            refuse(self._exchange, _translated(error))
        except Exception:
            log.exception("publishing to %s failed", self._topic)
            refuse(self._exchange, ApiError(500, "INTERNAL_ERROR"))
        else:
            respond(self._exchange, "OK")


async def _finish(exchange: Exchange, work: Coroutine[Any, Any, Answer]) -> None:
    try:
        respond(exchange, await work)
    except ApiError as error:
        refuse(exchange, error)
    except PenstockError as error:
        refuse(exchange, _translated(error))
    except Exception:
        log.exception("%s failed", exchange.request)
        refuse(exchange, ApiError(500, "INTERNAL_ERROR"))


def _translated(error: PenstockError) -> ApiError:
    """What the core says, in nsqd's words; and in its own where nsqd has none."""
    match error:
        case QueueNotFound():
            return ApiError(404, "TOPIC_NOT_FOUND")
        case ChannelNotFound():
            return ApiError(404, "CHANNEL_NOT_FOUND")
        case MessageTooLarge():
            return ApiError(413, "MSG_TOO_BIG")
        case ShardClosed():
            return ApiError(503, "EXITING")
        case InvalidRequest():
            return ApiError(400, str(error))
        case TooManyFailedLogins():
            return ApiError(429, str(error), (("retry-after", str(math.ceil(error.wait_s))),))
        case AccessDenied():
            return ApiError(403, "FORBIDDEN")
    log.warning("a request failed: %s", error)
    return ApiError(503, str(error))


def _option(call: ApiCall) -> str:
    return call.request.path.removeprefix(_CONFIG)


def _ns(seconds: float) -> int:
    return round(seconds * _SECOND_NS)


def _log_level(api: NsqHttp) -> int:
    """nsqd's numbers: debug is 1, fatal is 5."""
    level = logging.getLogger().getEffectiveLevel()
    return max(1, min(5, level // 10))


_OPTIONS: dict[str, Callable[[NsqHttp], Any]] = {
    "nsqlookupd_tcp_addresses": NsqHttp.lookup_addresses,
    "log_level": _log_level,
    "data_path": lambda api: api.services.settings.server.data,
    "broadcast_address": lambda api: api._registration.identity.broadcast_address,
    "max_msg_size": lambda api: api._settings.message_bytes_max,
    "max_body_size": lambda api: api._settings.body_bytes_max,
    "msg_timeout": lambda api: _ns(api._settings.message_timeout_s),
    "max_msg_timeout": lambda api: _ns(api._settings.message_timeout_max_s),
    "max_req_timeout": lambda api: _ns(api._settings.requeue_timeout_max_s),
    "max_rdy_count": lambda api: api._settings.ready_max,
    "max_heartbeat_interval": lambda api: _ns(api._settings.heartbeat_interval_max_s),
    "max_output_buffer_size": lambda api: api._settings.output_buffer_bytes_max,
    "max_output_buffer_timeout": lambda api: _ns(api._settings.output_buffer_timeout_max_s),
    "max_channel_consumers": lambda api: api._settings.channel_consumers_max,
    "e2e_processing_latency_percentiles": lambda api: api._settings.latency_percentiles,
    "e2e_processing_latency_window_time": lambda api: _ns(api._settings.latency_window_s),
    "max_deflate_level": lambda api: api._settings.deflate_level_max,
}
"""By nsqd's names."""

_SETTERS: dict[str, Callable[[NsqHttp, bytes], None]] = {
    "nsqlookupd_tcp_addresses": NsqHttp._set_lookup_addresses,
    "log_level": NsqHttp._set_log_level,
}


class NsqHttpFrontEnd(HttpFrontEnd):
    """Serves nsqd's HTTP API, and keeps the lookup services informed."""

    changes = frozenset(
        f"/{noun}/{verb}" for noun in ("topic", "channel") for verb in ("create", "delete", "empty", "pause", "unpause")
    ) | {f"PUT {_CONFIG}"}

    def __init__(self, port: int) -> None:
        super().__init__("nsq-http", port, self._make, refuse_request, lambda _: self._check_header)
        self._api: NsqHttp | None = None
        self._registration: LookupRegistration | None = None

    def _make(self, services: Services) -> Handler:
        topics = Topics.of(services)
        settings = services.settings.nsq
        self._registration = LookupRegistration(
            Identity(), lambda: stats.read_loads(topics), settings.lookup_heartbeat_s
        )
        services.extras["lookup"] = self._registration
        topics.listeners.append(self._heard)
        self._api = NsqHttp(services, topics, self._registration)
        return self._api.handle

    def _check_header(self, exchange: Exchange) -> None:
        assert self._api is not None
        self._api.check_header(exchange)

    async def start(self, services: Services) -> Address:
        """Listen, then tell the lookup services."""
        address = await super().start(services)
        assert self._api is not None
        assert self._registration is not None
        tcp: Address | None = services.extras.get(TCP_ADDRESS)
        self._api.http_port = address.port
        self._api.tcp_port = services.settings.server.nsq_tcp_port if tcp is None else tcp.port
        self._registration.identity = identity_of(services, self._api.tcp_port, address.port)
        self._registration.start(services.settings.nsq.lookup)
        return address

    def pages_are_refused(self, services: Services) -> bool:
        """Always: a browser that was given a password once sends it along with any page's requests."""
        return True

    def limits(self, services: Services) -> HttpLimits:
        """Bodies may be as large as NSQ's, and a little larger: so that who sends too much hears nsqd's words."""
        limits = services.settings.http
        body_bytes_max = max(limits.body_bytes_max, services.settings.nsq.body_bytes_max + 1024 * 1024)
        return msgspec.structs.replace(limits, body_bytes_max=body_bytes_max)

    def stop_accepting(self) -> None:
        """Leave the lookup services first, so that they send nobody here any more."""
        if self._registration is not None:
            self._registration.stop()
        super().stop_accepting()

    def _heard(self, event: str, topic: str, channel: str | None) -> None:
        if self._registration is not None and is_name(topic) and (channel is None or is_name(channel)):
            self._registration.note(topic, channel, is_there=event.endswith("created"))


def identity_of(services: Services, tcp_port: int, http_port: int) -> Identity:
    """How this node introduces itself: where its clients reach it."""
    settings = services.settings.nsq
    return Identity(
        broadcast_address=settings.broadcast_address or reachable_host(services.settings.server.host),
        tcp_port=settings.broadcast_tcp_port or tcp_port,
        http_port=settings.broadcast_http_port or http_port,
        version=NSQ_VERSION,
        hostname=socket.gethostname(),
    )
