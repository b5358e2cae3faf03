"""What websockets and polling have in common: the first request, and the session that it opens."""

from __future__ import annotations

import msgspec

from penstock.core.commands import Heartbeat, OpenSession
from penstock.core.errors import InvalidRequest, NoCommonVersion, SessionNotFound
from penstock.protocols.websocket.admission import Headers, principal_of
from penstock.protocols.websocket.handles import session_handle, session_number
from penstock.server.auth import Principal
from penstock.server.node import Services
from penstock.wire.answers import Limits, Welcome
from penstock.wire.requests import VERSIONS, Hello, decode_requests

_NAME_LENGTH_MAX = 200


class Admitted(msgspec.Struct):
    """Who is in, with what session, and what it is told."""

    request: int
    principal: Principal
    session: int
    welcome: Welcome


def limits_of(services: Services) -> Limits:
    """What a client may ask for."""
    settings = services.settings.websocket
    return Limits(settings.frame_bytes_max, settings.requests_max, settings.receive_max, settings.credit_max)


async def admit(
    services: Services, headers: Headers, frame: bytes, *, version: str, session_ttl_ms: int, peer: str
) -> Admitted:
    """Take the first frame of a conversation: a single `Hello`. Opens the session."""
    request, hello = _hello_in(frame)
    agreed = VERSIONS.agreed(hello.versions)
    if agreed is None:
        raise NoCommonVersion(
            f"this server (Penstock {version}) speaks version {VERSIONS} of the conversation, and the client "
            f"{hello.versions}: upgrade the one with the lower number"
        )
    principal = principal_of(services, headers, hello.token)
    number = await _old_session(services, principal, hello.session) if session_ttl_ms else 0
    if not number:
        name = hello.name[:_NAME_LENGTH_MAX] or f"{principal.name} from {peer}"
        ttl_ms = session_ttl_ms or None
        number = await services.shard.call(OpenSession(name=name, ttl_ms=ttl_ms, bound=ttl_ms is None))
    broker = services.shard.identity
    welcome = Welcome(
        version=agreed,
        server=version,
        realm=broker.meta.realm,
        session=session_handle(broker.meta.secret, principal, number),
        session_ttl_ms=session_ttl_ms,
        limits=limits_of(services),
        damage=services.shard.reports,
    )
    return Admitted(request, principal, number, welcome)


async def _old_session(services: Services, principal: Principal, handle: int) -> int:
    """The session of a client that polls and has come back; 0 if there is none any more."""
    if not handle:
        return 0
    try:
        number = session_number(services.shard.identity.meta.secret, principal, handle)
        await services.shard.call(Heartbeat(session=number))
    except SessionNotFound:
        return 0
    return number


def _hello_in(frame: bytes) -> tuple[int, Hello]:
    requests = decode_requests(frame)
    if len(requests) != 1:
        raise InvalidRequest("the first frame holds one request, a Hello")
    number, hello = requests[0]
    if isinstance(hello, InvalidRequest):
        raise hello
    if not isinstance(hello, Hello):
        raise InvalidRequest(f"the first request is a Hello, and not {type(hello).__name__}")
    return number, hello
