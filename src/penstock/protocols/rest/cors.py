"""What browsers are told about pages of other origins: the CORS protocol, for the origins of `[rest] cors_origins`."""

from __future__ import annotations

from penstock.protocols.http import PLAIN_TEXT, Exchange, Headers

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_HEADERS = (
    "accept",
    "accept-language",
    "authorization",
    "content-language",
    "content-type",
    "idempotency-key",
    "penstock-route",
)
_EXPOSED = "x-request-id, retry-after, penstock-next-offset, penstock-end-offset"
_REMEMBERED_S = 600


class Cors:
    """Answers browsers that ask in advance, and marks what pages of these origins may read."""

    def __init__(self, origins: list[str]) -> None:
        self._origins = frozenset(origins)
        self._is_open = "*" in origins

    def answers(self, exchange: Exchange) -> bool:
        """Whether the request was a question in advance, which is answered now."""
        headers = exchange.request.headers
        origin = headers.get("origin")
        if origin is None:
            return False
        is_known = self._is_open or origin in self._origins
        allowed: Headers = ()
        if is_known:
            allowed = (("access-control-allow-origin", "*" if self._is_open else origin), ("vary", "Origin"))
        method = headers.get("access-control-request-method")
        if exchange.request.method != "OPTIONS" or method is None:
            if is_known:
                exchange.headers = (*allowed, ("access-control-expose-headers", _EXPOSED))
            return False
        asked = headers.get("access-control-request-headers", "").split(",")
        wrong = [] if is_known else ["origin"]
        wrong += [] if method in _METHODS else ["method"]
        wrong += [] if all(name.strip().lower() in ("", *_HEADERS) for name in asked) else ["headers"]
        answer = [
            *allowed,
            *PLAIN_TEXT,
            ("access-control-allow-methods", ", ".join(_METHODS)),
            ("access-control-allow-headers", ", ".join(_HEADERS)),
            ("access-control-max-age", str(_REMEMBERED_S)),
        ]
        text = f"not allowed for pages of this origin: {', '.join(wrong)}\n" if wrong else "OK\n"
        exchange.respond(400 if wrong else 200, answer, text.encode())
        return True
