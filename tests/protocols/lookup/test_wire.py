from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.lookup import wire
from penstock.protocols.lookup.registry import Identity
from penstock.protocols.lookup.wire import CommandReader, LookupCommand, Refusal, ResponseReader

SESSION = (
    wire.MAGIC
    + wire.identify(Identity("node1", 4150, 4151, "1.3.0"))
    + wire.register("orders", "billing")
    + wire.loads(b'{"orders":[1,2,{}]}')
    + wire.unregister("orders")
    + wire.ping()
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[low:high] for low, high in pairwise(edges)]


@given(st.lists(st.integers(0, 10_000), max_size=20))
def test_commands_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    reader = CommandReader()
    found = [command for piece in pieces(SESSION, cuts) for command in reader.feed(piece)]
    assert found == list(CommandReader().feed(SESSION))
    assert [command.name for command in found] == ["IDENTIFY", "REGISTER", "LOADS", "UNREGISTER", "PING"]
    assert found[1].arguments == ["orders", "billing"]


@given(st.lists(st.binary(max_size=50), max_size=10), st.lists(st.integers(0, 10_000), max_size=20))
def test_responses_are_the_same_however_the_bytes_are_cut(texts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(wire.response, texts))
    reader = ResponseReader()
    assert [text for piece in pieces(data, cuts) for text in reader.feed(piece)] == texts


@given(st.binary(max_size=300), st.booleans())
def test_garbage_gives_commands_or_a_refusal_and_nothing_else(data: bytes, is_greeted: bool) -> None:
    try:
        for command in CommandReader().feed(wire.MAGIC + data if is_greeted else data):
            assert isinstance(command, LookupCommand)
    except Refusal as refusal:
        assert str(refusal).startswith("E_")


def test_the_commands_before_garbage_are_followed() -> None:
    reader = CommandReader().feed(wire.MAGIC + wire.ping() + b"IDENTIFY\n" + struct.pack(">i", 2_000_000_000))
    assert next(reader).name == "PING"
    with pytest.raises(Refusal, match="E_BAD_BODY"):
        next(reader)


def test_a_line_without_an_end_is_not_gathered_for_ever() -> None:
    reader = CommandReader()
    with pytest.raises(Refusal, match="at most 1024 bytes"):
        for _ in range(100):
            list(reader.feed(wire.MAGIC + b"x" * 1_000))


@pytest.mark.parametrize("size", [-1, wire.BODY_BYTES_MAX + 1, 2**31 - 1])
def test_a_body_of_an_impossible_size_is_refused_before_it_comes(size: int) -> None:
    with pytest.raises(Refusal, match="E_BAD_BODY"):
        list(CommandReader().feed(wire.MAGIC + b"IDENTIFY\n" + struct.pack(">i", size)))
    with pytest.raises(Refusal):
        list(ResponseReader().feed(struct.pack(">i", size)))
