"""What may be a message's body, and how it becomes bytes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.core.errors import InvalidRequest

Body = bytes | bytearray | memoryview | str


def encode_body(body: Body) -> bytes:
    """One body as bytes; text as UTF-8.

    >>> encode_body("é"), encode_body(memoryview(b"ab"))
    (b'\\xc3\\xa9', b'ab')
    """
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"a body that is text must be valid text: {error}") from None
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise InvalidRequest(f"a body must be bytes or text, and not {type(body).__name__}")


def encode_bodies(bodies: Iterable[Body]) -> list[bytes]:
    """Many bodies as a new list of bytes. A list that holds nothing else is checked and copied without a loop here.

    >>> encode_bodies([b"a", "b"])
    [b'a', b'b']
    """
    try:
        return msgspec.convert(bodies, list[bytes], builtin_types=(bytes,))
    except msgspec.ValidationError:
        if isinstance(bodies, bytes | bytearray | memoryview | str):
            raise InvalidRequest("send_many takes a list of bodies; to send one, use send") from None
        if not isinstance(bodies, Iterable):
            raise InvalidRequest(f"send_many takes a list of bodies, and not {type(bodies).__name__}") from None
        return [encode_body(body) for body in bodies]
