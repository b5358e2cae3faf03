"""Answers as they are read, by clients and by nodes."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.commands import Delivery, Receive, Run
from penstock.core.storage.chunk import Chunk
from penstock.wire.answers import BadAnswer, KeyedDelivery, encode, unpack_delivery, unpack_failure, unpack_reply
from penstock.wire.packing import pack_reply

DELIVERY = Delivery("q", 1, "main", 2, 3, 4, [Run(Chunk.of(5, 6, [b"one", b"two"]), 0, 2, 1, 7)])


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(encode(value))


def test_a_delivery_has_the_key_of_its_receipts_if_it_came_with_one() -> None:
    for_a_client, for_a_node = (unpack_reply(Receive, raw(pack_reply(DELIVERY, key))) for key in (b"key", b""))
    assert type(for_a_client) is KeyedDelivery and for_a_client.receipt_key == b"key"
    assert type(for_a_node) is Delivery
    assert for_a_node.runs[0].chunk.body_list() == for_a_client.runs[0].chunk.body_list() == [b"one", b"two"]


@pytest.mark.parametrize("attempt", [b"abc", -1, "one"])
def test_a_run_that_is_none_is_no_answer(attempt: object) -> None:
    """Three bytes are no array of numbers."""
    packed = list(pack_reply(DELIVERY, b"key"))
    packed[6] = [[packed[6][0][0][: 20 if attempt == -1 else None], attempt, 7, []]]
    for unpack in (unpack_delivery, lambda value: unpack_reply(Receive, value)):
        with pytest.raises(BadAnswer):
            unpack(raw(packed))


def test_an_error_that_is_none_is_no_answer() -> None:
    with pytest.raises(BadAnswer):
        unpack_failure(raw([1, 2]))
