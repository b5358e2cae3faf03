"""An ordinary request that came in one piece, read in one go.

httptools calls back for the target, for every header and for the body, and those calls cost more than all the reading.
Nearly every request of an SDK is an ordinary one: a POST whose header and body lie in the bytes at hand, and nothing
else. It is read here: by whole lines, with no call for each header but two look-ups.

Whatever is not plainly ordinary is left to httptools, which takes or refuses it: `read_whole` says None, and has done
nothing. So only one side has an opinion about odd requests, and the other one never sees them. Not ordinary are:

- another method, another version of HTTP, a target with anything but plain characters
- a header that is there twice, that has no value, or is folded; space before or behind a value, a name that is none;
  any control character (a bare CR or LF is one)
- a header that changes how the body is read or how the connection goes on: Transfer-Encoding, Expect, Upgrade and
  others; a Connection that says anything but keep-alive
- no Content-Length, or not a plain number; fewer or more bytes than it says; no Host
- whatever is larger than the limits: the other side says how large it may be

The tests hold the two against each other.
"""

from __future__ import annotations

import re
from typing import Final

_END: Final = b"\r\n\r\n"
_ROOT_LINE: Final = "POST / HTTP/1.1"
_ROOT: Final = b"/"
_LINE: Final = re.compile(r"POST (/[A-Za-z0-9_.~/?=&%+:,@!$*;-]*) HTTP/1\.1\Z")
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_LENGTH_DIGITS_MAX: Final = 12
_NAMES_KEPT: Final = 512

_ODD: Final = frozenset(
    {
        "expect",
        "http2-settings",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers with which a request is not ordinary."""

_CONTROLS: Final = bytes(10 if (byte < 32 and byte != 9) or byte == 127 else byte for byte in range(256))
"""Makes a line feed of every control character but the tab."""

_names: Final[dict[str, str]] = {}
"""Names of headers as clients spell them, in lower case; the common ones."""

Whole = tuple[bytes, dict[str, str], bytes]
"""The target, the headers and the body."""


def read_whole(data: bytes, header_bytes_max: int, body_bytes_max: int) -> Whole | None:
    """The request that these bytes are; None if they are anything but one ordinary request.

    >>> read_whole(b"POST /a HTTP/1.1\\r\\nHost: h\\r\\nContent-Length: 2\\r\\n\\r\\nhi", 100, 100)
    (b'/a', {'host': 'h', 'content-length': '2'}, b'hi')
    >>> read_whole(b"POST /a HTTP/1.1\\r\\nHost: h\\r\\nContent-Length: 2\\r\\n\\r\\nhi, and more", 100, 100)
    """
    end = data.find(_END, 0, header_bytes_max)
    if end < 0:
        return None
    head = data[:end]
    lines = head.decode("latin-1").split("\r\n")
    count = len(lines) - 1
    if head.translate(_CONTROLS).count(b"\n") != 2 * count:
        return None
    line = lines[0]
    target: bytes | None = _ROOT
    if line != _ROOT_LINE:
        target = _target(line)
    headers = _headers(lines)
    if target is None or headers is None:
        return None
    length = headers.get("content-length")
    if length is None or "host" not in headers or not length.isdecimal() or len(length) > _LENGTH_DIGITS_MAX:
        return None
    connection = headers.get("connection")
    if connection is not None and connection.lower() != "keep-alive":
        return None
    body_bytes, body_at = int(length), end + 4
    if body_bytes > body_bytes_max or len(data) != body_at + body_bytes:
        return None
    return target, headers, data[body_at:]


def _target(line: str) -> bytes | None:
    found = _LINE.match(line)
    return None if found is None else str(found[1]).encode("ascii")


def _headers(lines: list[str]) -> dict[str, str] | None:
    """The headers in all lines but the first; None if any is not ordinary."""
    headers: dict[str, str] = {}
    names = _names
    for at in range(1, len(lines)):
        spelled, _, value = lines[at].partition(": ")
        name = names.get(spelled)
        if name is None:
            name = _ordinary_name(spelled)
            if name is None:
                return None
        if not value or value.strip() is not value:
            return None
        headers[name] = value
    return headers if len(headers) == len(lines) - 1 else None


def _ordinary_name(spelled: str) -> str | None:
    """A header's name in lower case, remembered; None if the header is not ordinary."""
    if not _NAME.match(spelled):
        return None
    name = spelled.lower()
    if name in _ODD:
        return None
    if len(_names) < _NAMES_KEPT:
        _names[spelled] = name
    return name
