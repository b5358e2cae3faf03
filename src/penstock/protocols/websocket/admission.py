"""Who may talk: credentials in a header or in the first frame, and no web pages where there are no credentials."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.errors import AccessDenied
from penstock.server.auth import ANYBODY, Principal
from penstock.server.node import Services

Headers = Mapping[str, str]


def refuse_pages(services: Services, headers: Headers) -> None:
    """A server without credentials trusts its machine, but not the pages in its browsers, which say whence they are.

    A page may call if its origin is among `[rest] cors_origins`; with credentials, the server's own, too.
    """
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


def principal_of(services: Services, headers: Headers, token: str | None) -> Principal:
    """Who calls: by an Authorization header, or by a token of its own; `AccessDenied` if that is nobody."""
    if not services.credentials.are_required:
        return ANYBODY
    scheme, _, given = headers.get("authorization", "").partition(" ")
    offered = given.strip() if scheme.lower() == "bearer" else token
    if offered is None:
        raise AccessDenied("this server needs a token: connect with token=..., or send Authorization: Bearer")
    principal = services.credentials.check_bearer(offered)
    if principal is None:
        raise AccessDenied("the token is not one that this server knows")
    return principal
