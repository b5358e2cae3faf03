"""Frames by the short way are those that the library reads, in the same order, wherever the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from penstock.wire.frames import Frames, frame_head, masked_frame

BYTES_MAX = 1_000

payloads = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([125, 126, 127, BYTES_MAX, BYTES_MAX + 1, 70_000]).map(lambda size: b"x" * size),
)
plain = payloads.map(lambda payload: [Frame(Opcode.BINARY, payload)])
text = st.text(max_size=20).map(lambda said: [Frame(Opcode.TEXT, said.encode())])
control = st.sampled_from([Opcode.PING, Opcode.PONG]).flatmap(
    lambda opcode: st.binary(max_size=125).map(lambda payload: [Frame(opcode, payload)])
)


@st.composite
def fragmented(draw: st.DrawFn) -> list[Frame]:
    """A message in fragments, with control frames between them."""
    parts = draw(st.lists(payloads, min_size=2, max_size=4))
    frames = []
    for number, part in enumerate(parts):
        opcode = Opcode.CONT if number else Opcode.BINARY
        frames.append(Frame(opcode, part, fin=number == len(parts) - 1))
        if number < len(parts) - 1:
            frames += draw(st.one_of(st.just([]), control))
    return frames


streams = st.lists(st.one_of(plain, plain, text, control, fragmented()), max_size=12).map(
    lambda messages: [frame for message in messages for frame in message]
)


class Reader:
    """Reads as a connection does: the short way first, the rest by the library."""

    def __init__(self, side: Side, at_once: int = 1_000_000) -> None:
        self.at_once = at_once
        self.library = Protocol(side, max_size=None)
        self.frames = Frames(masked=side is Side.SERVER, bytes_max=BYTES_MAX)
        self.found: list[tuple[Opcode, bytes, bool]] = []
        self.short = 0

    def take(self, data: bytes) -> None:
        later = b""
        if self.library.state is not State.OPEN:
            rest = data
        else:
            before = self.frames.count
            short, rest, later = self.frames.split(data, self.at_once)
            assert self.frames.count - before <= self.at_once
            self.short += len(short)
            self.found += [(Opcode.BINARY, payload, True) for payload in short]
        if rest:
            self.library.receive_data(rest)
            self.found += [told(event) for event in self.library.events_received()]
        if later:
            self.take(later)


def told(event: object) -> tuple[Opcode, bytes, bool]:
    assert isinstance(event, Frame)
    return event.opcode, bytes(event.data), event.fin


def wire_of(frames: list[Frame], side: Side) -> bytes:
    """The frames as they come to this side."""
    return b"".join(frame.serialize(mask=side is Side.SERVER) for frame in frames)


@pytest.mark.parametrize("side", [Side.SERVER, Side.CLIENT])
@given(frames=streams, cuts=st.lists(st.integers(0, 100_000), max_size=8), at_once=st.integers(1, 10))
def test_both_ways_together_read_what_was_sent(side: Side, frames: list[Frame], cuts: list[int], at_once: int) -> None:
    wire = wire_of(frames, side)
    reader = Reader(side, at_once)
    for low, high in pairwise(sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})):
        reader.take(wire[low:high])
    assert reader.found == [told(frame) for frame in frames]


@pytest.mark.parametrize("side", [Side.SERVER, Side.CLIENT])
@given(frames=streams, cut=st.integers(1, 7))
def test_small_pieces_are_read_as_well(side: Side, frames: list[Frame], cut: int) -> None:
    frames = [frame for frame in frames if len(frame.data) <= BYTES_MAX]
    while frames and frames[0].opcode is Opcode.CONT:
        del frames[0]
    wire = wire_of(frames, side)
    library = Protocol(side, max_size=None)
    library.receive_data(wire)
    reader = Reader(side)
    for start in range(0, len(wire), cut):
        reader.take(wire[start : start + cut])
    assert reader.found == [told(event) for event in library.events_received()]
    assert reader.library.state is library.state


@pytest.mark.parametrize("side", [Side.SERVER, Side.CLIENT])
def test_whole_binary_frames_go_the_short_way_also_after_others(side: Side) -> None:
    one, ping, two = Frame(Opcode.BINARY, b"one"), Frame(Opcode.PING, b"?"), Frame(Opcode.BINARY, b"two")
    reader = Reader(side)
    for wire in (wire_of([one, two], side), wire_of([ping], side), wire_of([two], side)):
        reader.take(wire)
    assert reader.short == 3
    assert [payload for _, payload, _ in reader.found] == [b"one", b"two", b"?", b"two"]


@pytest.mark.parametrize(
    ("side", "wire"),
    [
        pytest.param(Side.SERVER, frame_head(4) + b"bare", id="a client that does not mask"),
        pytest.param(Side.CLIENT, masked_frame(b"veiled"), id="a server that masks"),
        pytest.param(Side.CLIENT, b"\xc2\x01x", id="a reserved bit"),
        pytest.param(Side.CLIENT, b"\x83\x01x", id="an opcode that there is not"),
        pytest.param(Side.CLIENT, b"\x80\x01x", id="a fragment of nothing"),
        pytest.param(Side.CLIENT, b"\x02\x01x\x82\x01y", id="a message within another one"),
        pytest.param(Side.CLIENT, b"\x89\x7e\x00\x80" + bytes(128), id="a ping that is too long"),
    ],
)
def test_what_breaks_the_rules_is_left_to_the_library_which_ends_the_connection(side: Side, wire: bytes) -> None:
    reader = Reader(side)
    reader.take(wire)
    assert reader.short == 0
    assert reader.library.state is State.CLOSING
    reader.take(frame_head(8) + b"too late" if side is Side.CLIENT else masked_frame(b"too late"))
    assert reader.short == 0


@given(payload=payloads)
def test_frames_made_here_are_those_of_the_library(payload: bytes) -> None:
    assert frame_head(len(payload)) + payload == Frame(Opcode.BINARY, payload).serialize(mask=False)
    server = Protocol(Side.SERVER, max_size=None)
    server.receive_data(masked_frame(payload))
    assert [told(event) for event in server.events_received()] == [(Opcode.BINARY, payload, True)]


def test_two_frames_with_the_same_content_look_different_under_their_masks() -> None:
    assert len({masked_frame(b"the same") for _ in range(20)}) > 1


@given(frames=fragmented(), cut=st.integers(1, 1_000))
def test_the_length_of_a_message_that_has_begun_is_known_until_it_ends(frames: list[Frame], cut: int) -> None:
    wire = wire_of(frames, Side.SERVER)
    reader = Frames(masked=True, bytes_max=BYTES_MAX)
    longest = 0
    for start in range(0, len(wire), cut):
        reader.split(wire[start : start + cut])
        longest = max(longest, reader.message_bytes)
        assert start + cut >= len(wire) or reader.fragments <= len(frames)
    assert reader.message_bytes == reader.fragments == 0
    assert longest <= len(wire)
