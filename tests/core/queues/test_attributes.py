"""Attributes of messages: what is stored comes back, and what nobody could read is refused before it is stored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.queues.attributes import (
    TypedBytes,
    TypedText,
    check_stored,
    decode_attributes,
    encode_attributes,
)


def test_types_of_their_own_come_back_with_the_values() -> None:
    given = {"price": TypedText.of("12.50", "Number.price"), "picture": TypedBytes.of(b"GIF", "Binary.gif"), "n": 3}
    stored = encode_attributes(given)
    assert stored is not None
    check_stored(stored)
    found: dict[str, Any] = dict(decode_attributes(stored))
    assert found == given
    assert (found["price"].type, found["picture"].type) == ("Number.price", "Binary.gif")
    assert decode_attributes(None) == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["kind"], "as a dict"),
        ({1: "x"}, "names are text"),
        ({"x": True}, "names are text"),
        ({"x": None}, "names are text"),
        ({"x": 1 << 70}, "cannot be stored"),
        ({"x": "half \ud800"}, "cannot be stored"),
    ],
)
def test_what_cannot_be_stored_is_refused(given: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        encode_attributes(given)


@pytest.mark.parametrize(
    "stored",
    [
        b"\xc1",
        msgspec.msgpack.encode(["kind"]),
        msgspec.msgpack.encode({"x": [1]}),
        msgspec.msgpack.encode({"x": msgspec.msgpack.Ext(7, b"")}),
        msgspec.msgpack.encode({"x": msgspec.msgpack.Ext(1, msgspec.msgpack.encode(("Number", 5)))}),
    ],
    ids=["no MessagePack", "no map", "a list", "an unknown extension", "a typed number"],
)
def test_bytes_that_nobody_could_read_are_refused(stored: bytes) -> None:
    with pytest.raises(InvalidRequest, match="attributes cannot be read"):
        check_stored(stored)
