"""A message's attributes: names with small values, kept beside the body as one MessagePack map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.core.errors import InvalidRequest

AttributeValue = str | bytes | int | float
Attributes = Mapping[str, AttributeValue]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, Any])


def encode_attributes(attributes: Attributes | None) -> bytes | None:
    """The stored form; None when there are no attributes.

    >>> decode_attributes(encode_attributes({"kind": "order", "size": 3}))
    {'kind': 'order', 'size': 3}
    >>> encode_attributes({}) is None
    True
    """
    if not attributes:
        return None
    for name, value in attributes.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, AttributeValue):
            raise InvalidRequest(
                f"attribute {name!r} is {value!r}: names are text, and values text, bytes, whole numbers or floats"
            )
    try:
        return _encoder.encode(dict(attributes))
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"attributes cannot be stored: {error}") from None


def decode_attributes(stored: bytes | None) -> dict[str, AttributeValue]:
    """The attributes of a stored form; an empty dict when there are none."""
    return {} if stored is None else _decoder.decode(stored)
