"""A message's attributes: names with small values, kept beside the body as one MessagePack map.

A front end whose attributes have types of their own (SQS: `Number.price`) keeps a type with a value: `TypedText` and
`TypedBytes` are text and bytes to everybody else. They are stored as MessagePack extensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.core.errors import InvalidRequest
from penstock.core.handlers.checks import plain

_TYPED = 1


class TypedText(str):
    """Text that somebody gave a type.

    >>> value = TypedText.of("12.50", "Number.price")
    >>> value == "12.50", value.type
    (True, 'Number.price')
    """

    __slots__ = ("type",)
    type: str

    @classmethod
    def of(cls, value: str, type_: str) -> TypedText:
        typed = cls(value)
        typed.type = type_
        return typed


class TypedBytes(bytes):
    """Bytes that somebody gave a type.

    >>> TypedBytes.of(b"GIF89a", "Binary.gif").type
    'Binary.gif'
    """

    type: str

    @classmethod
    def of(cls, value: bytes, type_: str) -> TypedBytes:
        typed = cls(value)
        typed.type = type_
        return typed


AttributeValue = str | bytes | int | float
Attributes = Mapping[str, AttributeValue]


def _read_extension(code: int, data: memoryview) -> AttributeValue:
    type_, value = msgspec.msgpack.decode(data)
    return TypedText.of(value, type_) if isinstance(value, str) else TypedBytes.of(value, type_)


_encoder = msgspec.msgpack.Encoder(enc_hook=plain)
_decoder = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_read_extension)
_plain_decoder = msgspec.msgpack.Decoder(dict[str, Any])
_typed_decoder = msgspec.msgpack.Decoder(tuple[str, Any])
_PLAIN = frozenset({str, bytes, int, float})
"""What values are, unless AWS has a type of its own for them."""


def encode_attributes(attributes: Attributes | None) -> bytes | None:
    """The stored form; None when there are no attributes.

    >>> decode_attributes(encode_attributes({"kind": "order", "size": 3}))
    {'kind': 'order', 'size': 3}
    >>> decode_attributes(encode_attributes({"price": TypedText.of("12.50", "Number")}))["price"].type
    'Number'
    >>> encode_attributes({}) is None
    True
    """
    if not attributes:
        return None
    if not isinstance(attributes, Mapping):
        raise InvalidRequest(f"attributes are {attributes!r}: give names with their values, as a dict")
    for name, value in attributes.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, AttributeValue):
            raise InvalidRequest(
                f"attribute {name!r} is {value!r}: names are text, and values text, bytes, whole numbers or floats"
            )
    try:
        return _encoder.encode({name: _storable(value) for name, value in attributes.items()})
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"attributes cannot be stored: {error}") from None


def _storable(value: AttributeValue) -> Any:
    if isinstance(value, TypedText):
        return msgspec.msgpack.Ext(_TYPED, _encoder.encode((value.type, str(value))))
    if isinstance(value, TypedBytes):
        return msgspec.msgpack.Ext(_TYPED, _encoder.encode((value.type, bytes(value))))
    return value


def decode_attributes(stored: bytes | None) -> dict[str, AttributeValue]:
    """The attributes of a stored form; an empty dict when there are none."""
    return {} if stored is None else _decoder.decode(stored)


def check_stored(stored: bytes) -> None:
    """Refuse bytes that are no stored form: once they are in a queue, nobody could read the message they belong to.

    >>> check_stored(encode_attributes({"kind": "order", "price": TypedText.of("12.50", "Number")}) or b"")
    >>> check_stored(msgspec.msgpack.encode(["kind"]))
    Traceback (most recent call last):
    penstock.core.errors.InvalidRequest: attributes cannot be read: Expected `object`, got `array`
    """
    try:
        attributes = _plain_decoder.decode(stored)
        if _PLAIN.issuperset(map(type, attributes.values())):
            return
        for name, value in attributes.items():
            if isinstance(value, msgspec.msgpack.Ext) and value.code == _TYPED:
                is_known = isinstance(_typed_decoder.decode(value.data)[1], str | bytes)
            else:
                is_known = type(value) in _PLAIN
            if not is_known:
                raise InvalidRequest(f"attributes cannot be read: {name!r} is neither text, bytes nor a number")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"attributes cannot be read: {error}") from None
