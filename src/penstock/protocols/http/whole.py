"""A request that came whole, in one read, and in the common form: taken apart here, without the parser's callbacks.

`whole_request` either gives the request, or None and has done nothing: then the parser gets the bytes. So whatever is
unusual, and whatever is wrong, is dealt with in one place, and that is not here. A test holds the two together: what is
taken here is what the parser makes of the same bytes.

The common form: a method that is known, a path, HTTP/1.1; one Host; no header twice; values of printable ASCII; a body
as long as `Content-Length` says, with nothing after it; no other framing, no expectations, no offers.

Lines of headers that clients repeat in every request (never those that differ: dates, signatures, ids, lengths) are
remembered with what they mean.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.protocols.http.request import Request
from penstock.server.settings import HttpLimits

METHODS: Final[dict[bytes, str]] = {name.encode(): name for name in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS")}

_PLAIN: Final = bytes([9, *range(32, 127)])
"""What a head consists of, besides the ends of lines."""
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_STEADY: Final = frozenset(
    (
        "accept",
        "accept-encoding",
        "amz-sdk-request",
        "connection",
        "content-type",
        "host",
        "user-agent",
        "x-amz-target",
        "x-amzn-query-mode",
    )
)
_UNCOMMON: Final = frozenset(("expect", "transfer-encoding", "upgrade", "te", "trailer", "proxy-connection"))
_LENGTH_DIGITS_MAX: Final = 12
_REMEMBERED_MAX: Final = 2_048
_LINE_BYTES_MAX: Final = 512

_lines: Final[dict[bytes, tuple[str, str]]] = {}
_names: Final[dict[bytes, str]] = {}


def whole_request(data: bytes, limits: HttpLimits, peer: str, is_tls: bool) -> Request | None:
    """The request that these bytes are; None if they are not exactly one, or not a common one.

    >>> whole_request(b"GET /orders HTTP/1.1\\r\\nHost: here\\r\\n\\r\\n", HttpLimits(), "127.0.0.1", False)
    Request(GET /orders, 0 bytes)
    >>> whole_request(b"GET /orders HTTP/1.1\\r\\nHost: here", HttpLimits(), "127.0.0.1", False) is None
    True
    """
    end = data.find(b"\r\n\r\n")
    if end < 0 or end > limits.header_bytes_max:
        return None
    head = data[:end]
    lines = head.split(b"\r\n")
    if len(head.translate(None, _PLAIN)) != 2 * (len(lines) - 1):  # a line's end elsewhere, or something unprintable
        return None
    first = lines[0].split(b" ")
    if len(first) != 3 or first[2] != b"HTTP/1.1" or first[1][:1] != b"/":
        return None
    method = METHODS.get(first[0])
    if method is None:
        return None
    headers: dict[str, str] = {}
    for index in range(1, len(lines)):
        line = lines[index]
        pair = _lines.get(line)
        if pair is None:
            pair = _taken_apart(line)
            if pair is None:
                return None
        headers[pair[0]] = pair[1]
    if len(headers) != len(lines) - 1 or "host" not in headers:
        return None
    if headers.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    said = headers.get("content-length")
    length = 0
    if said is not None:
        if not said.isdigit() or len(said) > _LENGTH_DIGITS_MAX:
            return None
        length = int(said)
    start = end + 4
    if len(data) != start + length or length > limits.body_bytes_max:
        return None
    return Request(method, first[1], headers, data[start:], peer, is_tls)


def _taken_apart(line: bytes) -> tuple[str, str] | None:
    """A header's name, in lower case, and its value; None if they are not in the common form."""
    colon = line.find(b":")
    if colon <= 0:
        return None
    raw = line[:colon]
    name = _names.get(raw)
    if name is None:
        if _TOKEN.fullmatch(raw) is None:
            return None
        name = raw.lower().decode("ascii")
        if name in _UNCOMMON:
            return None
        if len(_names) < _REMEMBERED_MAX:
            _names[raw] = name
    pair = (name, line[colon + 1 :].strip(b" \t").decode("ascii"))
    if name in _STEADY and len(line) <= _LINE_BYTES_MAX and len(_lines) < _REMEMBERED_MAX:
        _lines[line] = pair
    return pair
