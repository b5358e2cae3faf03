"""Who is connected: what a client says of itself and asks for (IDENTIFY), what it gets, and what it has done so far."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from penstock.protocols.nsq.compression import has_snappy
from penstock.server.settings import NsqSettings

OUTPUT_BUFFER_BYTES = 16 * 1024
_HEARTBEAT_MS_MIN = 1_000
_MESSAGE_TIMEOUT_MS_MIN = 1_000
_OUTPUT_BUFFER_BYTES_MIN = 64
_DEFLATE_LEVEL = 6


class State(IntEnum):
    """Where a client is in the protocol; the numbers are nsqd's."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


class Client:
    """One connection's client. `/stats` shows all of it."""

    __slots__ = (
        "client_id",
        "connected_s",
        "deflate",
        "finish_count",
        "hostname",
        "identity",
        "message_count",
        "published",
        "ready_count",
        "remote_address",
        "requeue_count",
        "sample_rate",
        "session",
        "snappy",
        "state",
        "subscription",
        "tls_cipher",
        "tls_version",
        "user_agent",
    )

    def __init__(self, remote_address: str, connected_s: float) -> None:
        self.remote_address = remote_address
        """`host:port`."""
        self.connected_s = connected_s
        """When, in seconds since 1970."""
        self.client_id = self.hostname = remote_address.rpartition(":")[0].strip("[]")
        """Until IDENTIFY says otherwise."""
        self.user_agent = ""
        self.state = State.INIT
        self.sample_rate = 0
        self.deflate = False
        self.snappy = False
        self.tls_version = ""
        """Empty without TLS."""
        self.tls_cipher = ""
        self.identity: str | None = None
        """Whom AUTH found, if it was asked."""
        self.session = 0
        """The session that holds what is in flight; 0 before SUB."""
        self.subscription = 0
        self.ready_count = 0
        self.message_count = 0
        """Messages sent to it."""
        self.finish_count = 0
        self.requeue_count = 0
        self.published: dict[str, int] = {}
        """Topic -> messages that it published."""


# -- IDENTIFY --


class Refusal(Exception):
    """The connection ends with this error."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class _Asked(msgspec.Struct):
    """The body of IDENTIFY. Null is as good as nothing; keys that nobody knows are ignored."""

    client_id: str | None = None
    hostname: str | None = None
    user_agent: str | None = None
    feature_negotiation: bool | None = None
    heartbeat_interval: int | None = None
    output_buffer_size: int | None = None
    output_buffer_timeout: int | None = None
    tls_v1: bool | None = None
    deflate: bool | None = None
    deflate_level: int | None = None
    snappy: bool | None = None
    sample_rate: int | None = None
    msg_timeout: int | None = None


class Terms(msgspec.Struct):
    """What a connection runs under. Times are milliseconds."""

    heartbeat_ms: int
    """0: no heartbeats, and no SUB."""
    message_timeout_ms: int
    output_buffer_bytes: int = OUTPUT_BUFFER_BYTES
    output_buffer_ms: int = 250
    sample_rate: int = 0
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = _DEFLATE_LEVEL
    is_negotiated: bool = False
    """Whether the client wants to be told the outcome."""

    @classmethod
    def initial(cls, settings: NsqSettings) -> Terms:
        """What holds before, or without, IDENTIFY."""
        return cls(
            heartbeat_ms=round(settings.client_timeout_s * 500),
            message_timeout_ms=round(settings.message_timeout_s * 1_000),
            output_buffer_ms=round(settings.output_buffer_timeout_s * 1_000),
        )


def negotiate(body: bytes, client: Client, settings: NsqSettings, *, has_tls: bool) -> Terms:
    """What the client gets of what it asks for; notes what it says of itself. Raises `Refusal`."""
    try:
        text = body.decode("utf-8", "replace")  # as nsqd does
        asked = msgspec.json.decode(text, type=_Asked | None) or _Asked()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Refusal("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
    client.client_id = asked.client_id or ""
    client.hostname = asked.hostname or ""
    client.user_agent = asked.user_agent or ""
    terms = Terms.initial(settings)
    terms.heartbeat_ms = _heartbeat_ms(asked.heartbeat_interval or 0, terms.heartbeat_ms, settings)
    _set_output_buffer(terms, asked.output_buffer_size or 0, asked.output_buffer_timeout or 0, settings)
    terms.sample_rate = asked.sample_rate or 0
    if not 0 <= terms.sample_rate <= 99:
        raise Refusal("E_BAD_BODY", f"IDENTIFY sample rate ({terms.sample_rate}) is invalid")
    terms.message_timeout_ms = _message_timeout_ms(asked.msg_timeout or 0, terms.message_timeout_ms, settings)
    if asked.feature_negotiation:
        _set_features(terms, asked, settings, has_tls)
    client.sample_rate = terms.sample_rate
    return terms


def _heartbeat_ms(asked_ms: int, default_ms: int, settings: NsqSettings) -> int:
    if asked_ms == -1:
        return 0
    if asked_ms == 0:
        return default_ms
    if not _HEARTBEAT_MS_MIN <= asked_ms <= round(settings.heartbeat_interval_max_s * 1_000):
        raise Refusal("E_BAD_BODY", f"IDENTIFY heartbeat interval ({asked_ms}) is invalid")
    return asked_ms


def _message_timeout_ms(asked_ms: int, default_ms: int, settings: NsqSettings) -> int:
    if asked_ms == 0:
        return default_ms
    if not _MESSAGE_TIMEOUT_MS_MIN <= asked_ms <= round(settings.message_timeout_max_s * 1_000):
        raise Refusal("E_BAD_BODY", f"IDENTIFY msg timeout ({asked_ms}) is invalid")
    return asked_ms


def _set_output_buffer(terms: Terms, size: int, timeout_ms: int, settings: NsqSettings) -> None:
    low_ms, high_ms = settings.output_buffer_timeout_min_s * 1_000, settings.output_buffer_timeout_max_s * 1_000
    if timeout_ms == -1:
        terms.output_buffer_ms = 0
    elif timeout_ms != 0:
        if not low_ms <= timeout_ms <= high_ms:
            raise Refusal("E_BAD_BODY", f"IDENTIFY output buffer timeout ({timeout_ms}) is invalid")
        terms.output_buffer_ms = timeout_ms
    if size == -1:
        terms.output_buffer_bytes, terms.output_buffer_ms = 1, 0
    elif size != 0:
        if not _OUTPUT_BUFFER_BYTES_MIN <= size <= settings.output_buffer_bytes_max:
            raise Refusal("E_BAD_BODY", f"IDENTIFY output buffer size ({size}) is invalid")
        terms.output_buffer_bytes = size


def _set_features(terms: Terms, asked: _Asked, settings: NsqSettings, has_tls: bool) -> None:
    terms.is_negotiated = True
    terms.tls = bool(asked.tls_v1) and has_tls
    terms.deflate = bool(asked.deflate) and settings.deflate
    terms.snappy = bool(asked.snappy) and settings.snappy and has_snappy()
    if terms.deflate and asked.deflate_level is not None and asked.deflate_level > 0:
        terms.deflate_level = asked.deflate_level
    terms.deflate_level = min(terms.deflate_level, settings.deflate_level_max)
    if terms.deflate and terms.snappy:
        raise Refusal("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")


def answer(terms: Terms, settings: NsqSettings, version: str, *, auth_required: bool) -> bytes:
    told: dict[str, Any] = {
        "max_rdy_count": settings.ready_max,
        "version": version,
        "max_msg_timeout": round(settings.message_timeout_max_s * 1_000),
        "msg_timeout": terms.message_timeout_ms,
        "tls_v1": terms.tls,
        "deflate": terms.deflate,
        "deflate_level": terms.deflate_level,
        "max_deflate_level": settings.deflate_level_max,
        "snappy": terms.snappy,
        "sample_rate": terms.sample_rate,
        "auth_required": auth_required,
        "output_buffer_size": terms.output_buffer_bytes,
        "output_buffer_timeout": terms.output_buffer_ms,
    }
    return msgspec.json.encode(told)
