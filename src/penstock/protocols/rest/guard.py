"""Who calls, and whether it may: credentials, web pages, rates. For everything that is served on REST's port.

A server without credentials trusts everybody on its machine, but not the pages in their browsers. A page of this very
server may call (the page of the documentation does); browsers say that with `Sec-Fetch-Site` or `Origin`. They believe
it of any name that leads here, which an attacker's name can be made to do, so the host must be one that the server
knows as its own, even where `[server] hosts` is `*`. Origins in `[rest] cors_origins` may call in any case.

Passwords (basic authentication) do not prove that it is no page that calls: a browser that was given one sends it along
with the requests of any page.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping

from penstock.core.errors import RateLimited
from penstock.protocols.hosts import hosts_of
from penstock.protocols.rest.problems import RestError
from penstock.protocols.rest.rates import caller_of, rates_of
from penstock.server.auth import ANYBODY, Principal
from penstock.server.node import Services

_CHALLENGE = (("www-authenticate", 'Bearer realm="penstock"'),)


class Guard:
    """Lets callers in."""

    def __init__(self, services: Services) -> None:
        self._credentials = services.credentials
        self._origins = frozenset(services.settings.rest.cors_origins)
        self._hosts = hosts_of(services.settings)
        self._rates = rates_of(services)

    def admit(self, headers: Mapping[str, str], peer: str) -> Principal:
        """Who calls. Raises `RestError` if it must not: 401, 403 or 429."""
        principal = self.principal(headers)
        self.count(principal, peer)
        return principal

    def principal(self, headers: Mapping[str, str]) -> Principal:
        """Who calls, by its credentials; anybody, where there are none and it is no foreign web page."""
        if not self._credentials.are_required:
            self.refuse_foreign_pages(headers)
            return ANYBODY
        authorization = headers.get("authorization")
        if authorization is None:
            raise RestError(401, "unauthorized", "this server needs credentials: Authorization: Bearer ...", _CHALLENGE)
        principal = self._check(authorization, headers)
        if principal is None:
            raise RestError(401, "unauthorized", "the token or the secret is not right", _CHALLENGE)
        return principal

    def _check(self, authorization: str, headers: Mapping[str, str]) -> Principal | None:
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return self._credentials.check_bearer(rest.strip())
        if scheme.lower() != "basic":
            return None
        self.refuse_foreign_pages(headers)
        try:
            access_key, _, secret_key = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
        except ValueError:
            return None
        return self._credentials.check_password(access_key, secret_key)

    def refuse_foreign_pages(self, headers: Mapping[str, str]) -> None:
        """Raise if a browser sends this for a page of somebody else."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if origin is None and site == "none":
            return
        if origin is not None and (origin in self._origins or "*" in self._origins):
            return
        host = headers.get("host", "")
        is_own = origin is None or origin.partition("://")[2] == host
        if not (is_own and site in ("none", "same-origin") and self._hosts.knows(host)):
            raise RestError(
                403,
                "foreign_page",
                "web pages may not call without a token: add [[credentials]] with a token for them, or the page's "
                "origin to [rest] cors_origins",
            )

    def count(self, principal: Principal, peer: str) -> None:
        """Count a request of a caller; raise if it calls too often."""
        if self._rates is None:
            return
        try:
            self._rates.count(caller_of(principal, peer))
        except RateLimited as error:
            retry_after = ("retry-after", str(max(1, math.ceil(error.wait_s))))
            raise RestError(429, "rate_limited", str(error), (retry_after,)) from None
