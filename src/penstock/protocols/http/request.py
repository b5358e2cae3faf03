"""A request, and how its target is taken apart."""

from __future__ import annotations

from urllib.parse import unquote

from penstock.protocols.http.body import BodyStream


class Request:
    """A request, complete unless it has a `stream`."""

    __slots__ = (
        "body",
        "headers",
        "is_old",
        "is_tls",
        "is_upgrade",
        "method",
        "path",
        "peer",
        "query",
        "raw_target",
        "stream",
    )

    def __init__(
        self,
        method: str,
        raw_target: bytes,
        headers: dict[str, str],
        body: bytes,
        peer: str = "",
        is_tls: bool = False,
    ) -> None:
        self.method = method
        self.raw_target = raw_target
        """As the client sent it."""
        self.headers = headers
        """Names in lower case; values of repeated ones joined by ", "."""
        self.body = body
        self.peer = peer
        """The client's address."""
        self.is_tls = is_tls
        self.is_old = False
        """HTTP/1.0, which does not know bodies in chunks. Not told where it makes no difference."""
        self.is_upgrade = False
        """Whether it asks for a websocket, at a path that has one."""
        self.stream: BodyStream | None = None
        """The body, if the screen wanted it as it comes and it did not come at once; `body` is empty then."""
        self.path, self.query = ("/", "") if raw_target == b"/" else split_target(raw_target)
        """`path` is decoded, `query` is not."""

    def __repr__(self) -> str:
        return f"Request({self.method} {self.path}, {len(self.body)} bytes)"


def split_target(target: bytes) -> tuple[str, str]:
    """The decoded path and the raw query of a request's target, which may be a whole URL (to a proxy).

    >>> split_target(b"/orders%20new?x=%20"), split_target(b"http://host:9324?a")
    (('/orders new', 'x=%20'), ('/', 'a'))
    """
    path, query = split_raw_target(target)
    return unquote(path, "utf-8", "replace") if "%" in path else path, query


def split_raw_target(target: bytes) -> tuple[str, str]:
    """As `split_target`, with the path as it was sent.

    >>> split_raw_target(b"/orders%20new?x")
    ('/orders%20new', 'x')
    """
    path, _, query = target.decode("latin-1").partition("?")
    if not path.startswith("/"):
        _, separator, rest = path.partition("://")
        if separator:
            path = "/" + rest.partition("/")[2]
    return path.partition("#")[0], query.partition("#")[0]
