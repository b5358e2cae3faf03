"""Compressed connections: what goes in comes out, in portions, and damage is told."""

from __future__ import annotations

import os
import zlib

import pytest

from penstock.protocols.nsq.compression import PORTION_BYTES, Codec, Corrupt, Deflate, Snappy, has_snappy

if not has_snappy() and os.environ.get("CI") != "true":
    pytest.skip("python-snappy is not installed: pip install penstock-mq[nsq]", allow_module_level=True)


def deflate() -> Codec:
    return Deflate(6)


@pytest.mark.parametrize("make", [deflate, Snappy])
def test_what_is_packed_comes_out_whole_however_it_is_cut(make: type[Codec]) -> None:
    ours, theirs = make(), make()
    sent = [b"hello", bytes(200_000), os.urandom(100_000), b"x"]
    stream = b"".join(ours.pack(data) for data in sent)
    got = b""
    for at in range(0, len(stream), 7_001):
        theirs.add(stream[at : at + 7_001])
        while data := theirs.take():
            got += data
    assert got == b"".join(sent)


@pytest.mark.parametrize("make", [deflate, Snappy])
def test_a_memoryview_is_packed_as_bytes_are(make: type[Codec]) -> None:
    ours, theirs = make(), make()
    theirs.add(ours.pack(memoryview(b"abc")))
    assert theirs.take() == b"abc"


def test_little_that_unpacks_to_much_comes_in_portions() -> None:
    bomb = zlib.compress(bytes(50 * PORTION_BYTES), 9, -zlib.MAX_WBITS)
    codec = Deflate(6)
    codec.add(bomb)
    sizes = []
    while data := codec.take():
        sizes.append(len(data))
    assert max(sizes) == PORTION_BYTES
    assert sum(sizes) == 50 * PORTION_BYTES


def test_what_comes_behind_the_end_of_deflated_data_is_told_and_not_kept() -> None:
    codec = Deflate(6)
    codec.add(zlib.compress(b"NOP\n", 6, -zlib.MAX_WBITS))
    assert codec.take() == b"NOP\n"
    assert not codec.has_more and codec.take() == b""
    codec.add(bytes(100_000))
    with pytest.raises(Corrupt, match="continues after its end"):
        codec.take()


@pytest.mark.parametrize("make", [deflate, Snappy])
def test_garbage_is_told_at_once(make: type[Codec]) -> None:
    codec = make()
    codec.add(b"\xff\xfe this is not compressed " * 100)
    with pytest.raises(Corrupt, match="the client's data is not"):
        while codec.take():
            pass


@pytest.mark.parametrize(
    "block",
    [
        b"\x00\x04\x00\x00abcd",  # no identifier before it
        b"\xff\x06\x00\x00sNaPpY\x02\x00\x00\x00",  # a type that nobody may skip
        b"\xff\x06\x00\x00sNaPpY\x00\xff\xff\xff",  # 16 MB are announced
        b"\xff\x07\x00\x00",
    ],
)
def test_a_snappy_block_that_cannot_be_is_not_waited_for(block: bytes) -> None:
    codec = Snappy()
    codec.add(block)
    with pytest.raises(Corrupt):
        codec.take()
