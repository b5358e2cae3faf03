"""Who may talk, by a websocket or by polling: credentials, the first request, and the session that it opens.

Credentials come in a header or in the first frame; where there are none, no web pages are let in.

Clients name sessions by handles. The core's numbers are easy to guess, and whoever guessed another client's could end
its session. So a handle is the number in the lower 32 bits, and above it 31 bits of a keyed hash of the number and the
caller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from penstock.core.commands import Heartbeat, OpenSession
from penstock.core.errors import AccessDenied, InvalidRequest, NoCommonVersion, SessionNotFound
from penstock.protocols.front_end import is_own_page
from penstock.server.auth import ANYBODY, Principal
from penstock.server.node import Services
from penstock.wire.answers import Limits, Welcome
from penstock.wire.requests import VERSIONS, Hello, decode_requests

Headers = Mapping[str, str]
_NAME_LENGTH_MAX = 200
_NUMBER_BITS = 32
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1
_SEAL_MASK = (1 << 31) - 1


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
    principal = principal_of(services, headers, hello.token, peer)
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


def refuse_pages(services: Services, headers: Headers) -> None:
    """A server without credentials trusts its machine, but not the pages in its browsers, which say whence they are.

    A page may call if its origin is among `[rest] cors_origins`; with credentials, the server's own, too. Over REST the
    server's own pages are held to be read-only, or to see masks: not here, so they may not call at all then.
    """
    console = services.settings.console
    if (console.read_only or console.mask) and is_own_page(headers):
        raise AccessDenied("pages of this server may not change messages, or see them without masks: see [console]")
    origin, named = headers.get("origin"), services.settings.rest.cors_origins
    if origin is None or origin in named or "*" in named:
        return
    if not services.credentials.are_required:
        raise AccessDenied(
            "web pages may not call a server that has no credentials configured: add [[credentials]], or the page's "
            "origin to [rest] cors_origins"
        )
    own = {f"{scheme}://{headers.get('host')}" for scheme in ("http", "https")}
    if origin not in own:
        raise AccessDenied(f"pages of {origin} may not call: add it to [rest] cors_origins")


def principal_of(services: Services, headers: Headers, token: str | None, peer: str) -> Principal:
    """Who calls: by an Authorization header, or by a token of its own; `AccessDenied` if that is nobody."""
    if not services.credentials.are_required:
        return ANYBODY
    scheme, _, given = headers.get("authorization", "").partition(" ")
    offered = given.strip() if scheme.lower() == "bearer" else token
    if offered is None:
        raise AccessDenied("this server needs a token, and none was given")
    principal = services.credentials.check_bearer(offered, peer)
    if principal is None:
        raise AccessDenied("the token is not one that this server knows")
    return principal


def session_handle(secret: bytes, principal: Principal, number: int) -> int:
    """The handle of a session.

    >>> from penstock.server.auth import ANYBODY
    >>> session_number(b"secret", ANYBODY, session_handle(b"secret", ANYBODY, 7))
    7
    """
    return _seal(secret, principal, number) << _NUMBER_BITS | number


def session_number(secret: bytes, principal: Principal, handle: int) -> int:
    """The session that a handle stands for; `SessionNotFound` if it is not one of this caller's."""
    number = handle & _NUMBER_MASK
    if handle < 0 or handle >> _NUMBER_BITS != _seal(secret, principal, number):
        raise SessionNotFound(f"session {handle} has ended, or never existed: open another one")
    return number


def _seal(secret: bytes, principal: Principal, number: int) -> int:
    text = f"{number} {principal.access_key}".encode()
    return int.from_bytes(hashlib.blake2b(text, key=secret, digest_size=4, person=b"sessions").digest()) & _SEAL_MASK
