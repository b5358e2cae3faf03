"""The parser alone, with whatever bytes: it raises nothing, and how they were cut into pieces makes no difference."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.nsq import wire

MESSAGE_BYTES_MAX = 300
BODY_BYTES_MAX = 1000
DELAY_MS_MAX = 60_000

NAMES = st.text("abcXYZ019._-", min_size=1, max_size=12)
BODIES = st.binary(min_size=1, max_size=40)
IDS = st.binary(min_size=8, max_size=8).map(bytes.hex)


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def many(bodies: list[bytes]) -> bytes:
    return sized(struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies)))


# Each command as bytes, and as what the parser should make of it.
COMMANDS = st.one_of(
    st.just((b"NOP\n", ("NOP",))),
    st.just((b"CLS\n", ("CLS",))),
    st.tuples(NAMES, BODIES).map(lambda it: (b"PUB %s\n" % it[0].encode() + sized(it[1]), ("PUB", it[0], it[1], None))),
    st.tuples(NAMES, st.integers(0, DELAY_MS_MAX), BODIES).map(
        lambda it: (b"DPUB %s %d\n" % (it[0].encode(), it[1]) + sized(it[2]), ("DPUB", it[0], it[2], it[1]))
    ),
    st.tuples(NAMES, st.lists(BODIES, min_size=1, max_size=8)).map(
        lambda it: (b"MPUB %s\n" % it[0].encode() + many(it[1]), ("MPUB", it[0], tuple(it[1])))
    ),
    st.tuples(NAMES, st.integers(2, 8), BODIES).map(
        lambda it: (b"MPUB %s\n" % it[0].encode() + many([it[2]] * it[1]), ("MPUB", it[0], (it[2],) * it[1]))
    ),
    st.tuples(NAMES, NAMES).map(lambda it: (f"SUB {it[0]} {it[1]}\n".encode(), ("SUB", *it))),
    st.integers(0, 10_000).map(lambda count: (b"RDY %d\n" % count, ("RDY", count))),
    IDS.map(lambda id_: (f"FIN {id_}\n".encode(), ("FIN", int(id_, 16)))),
    IDS.map(lambda id_: (f"TOUCH {id_}\n".encode(), ("TOUCH", int(id_, 16)))),
    st.tuples(IDS, st.integers(0, DELAY_MS_MAX)).map(
        lambda it: (f"REQ {it[0]} {it[1]}\n".encode(), ("REQ", int(it[0], 16), it[1]))
    ),
    BODIES.map(lambda body: (b"IDENTIFY\n" + sized(body), ("IDENTIFY", body))),
    BODIES.map(lambda body: (b"AUTH\n" + sized(body), ("AUTH", body))),
)
RUNS = st.lists(st.one_of(COMMANDS, st.lists(IDS, max_size=80)), max_size=12).map(
    lambda items: [command for item in items for command in (fins(item) if isinstance(item, list) else [item])]
)


def fins(ids: list[str]) -> list[tuple[bytes, tuple[Any, ...]]]:
    return [(f"FIN {each}\n".encode(), ("FIN", int(each, 16))) for each in ids]


def new_parser() -> wire.Parser:
    return wire.Parser(MESSAGE_BYTES_MAX, BODY_BYTES_MAX, DELAY_MS_MAX)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


def parsed(pieces: list[bytes]) -> list[tuple[Any, ...]]:
    parser = new_parser()
    return [plain for piece in pieces for command in parser.feed(piece) for plain in plainly(command)]


def plainly(command: wire.WireCommand) -> list[tuple[Any, ...]]:
    """A command, or a run of them, one by one."""
    match command:
        case wire.Publish(verb="MPUB"):
            return [("MPUB", command.topic, tuple(bodies_of(command)))]
        case wire.Publish():
            assert command.replies == len(bodies_of(command))
            return [(command.verb, command.topic, body, command.delay_ms) for body in bodies_of(command)]
        case wire.Requeue():
            return [("REQ", int(each), command.timeout_ms) for each in command.ids]
        case wire.Touch():
            return [("TOUCH", int(each)) for each in command.ids]
        case wire.Finish():
            return [("FIN", int(each)) for each in command.ids]
        case wire.Identify():
            return [("IDENTIFY", command.body)]
        case wire.Auth():
            return [("AUTH", command.secret)]
        case wire.Subscribe():
            return [("SUB", command.topic, command.channel)]
        case wire.Ready():
            return [("RDY", command.count)]
        case wire.Close():
            return [("CLS",)]
        case wire.Nop():
            return [("NOP",)]
        case wire.UnknownId():
            return [("unknown", command.verb, command.id)]
        case wire.Invalid():
            return [("invalid", command.code, command.reason)]
    raise AssertionError(f"not expected: {command!r}")


def bodies_of(command: wire.Publish) -> list[bytes]:
    return list(command.bodies)


@given(RUNS, st.lists(st.integers(0, 10_000), max_size=6))
def test_commands_are_understood_however_they_are_cut(
    commands: list[tuple[bytes, tuple[Any, ...]]], places: list[int]
) -> None:
    data = b"".join(sent for sent, _ in commands)
    assert parsed(cut(data, places)) == [meant for _, meant in commands]


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_any_bytes_are_taken_alike_however_they_are_cut(data: bytes, places: list[int]) -> None:
    whole = parsed([data])
    assert parsed(cut(data, places)) == whole
    assert [each[0] for each in whole].count("invalid") <= 1


VERBS = st.sampled_from(
    [b"IDENTIFY", b"AUTH", b"SUB", b"PUB", b"DPUB", b"MPUB", b"RDY", b"FIN", b"TOUCH", b"REQ", b"CLS"]
)
PARAMETERS = st.one_of(
    st.binary(max_size=20), IDS.map(str.encode), NAMES.map(str.encode), st.integers().map(b"%d".__mod__)
)
SIZES = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(0, 50)).map(lambda size: struct.pack(">i", size))
ENDS = st.sampled_from([b"\n", b"\r\n", b" \n"])
ALMOST = st.lists(
    st.tuples(VERBS, st.lists(PARAMETERS, max_size=3), ENDS, st.lists(SIZES, max_size=3)).map(
        lambda it: b" ".join([it[0], *it[1]]) + it[2] + b"".join(it[3])
    ),
    max_size=5,
).map(b"".join)


@given(ALMOST, st.lists(st.integers(0, 400), max_size=5))
def test_what_is_almost_a_command_raises_nothing(data: bytes, places: list[int]) -> None:
    assert parsed(cut(data, places)) == parsed([data])


@given(st.binary(max_size=4000))
def test_little_is_kept_of_a_command_that_does_not_end(tail: bytes) -> None:
    for head in (
        b"PUB t\n" + struct.pack(">i", MESSAGE_BYTES_MAX),
        b"MPUB t\n" + struct.pack(">i", BODY_BYTES_MAX),
        b"",
    ):
        parser = new_parser()
        for byte in head + tail:
            parser.feed(bytes([byte]))
            assert parser.rest <= max(BODY_BYTES_MAX, wire.LINE_BYTES_MAX) + 100


def test_a_4_gb_size_is_refused_before_anything_is_kept() -> None:
    for verb in (b"PUB t", b"MPUB t", b"DPUB t 1", b"IDENTIFY", b"AUTH"):
        for size in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00"):
            parser = new_parser()
            [command] = parser.feed(verb + b"\n" + size)
            assert isinstance(command, wire.Invalid)
            assert parser.feed(b"x" * 1000) == []
            assert parser.rest == 0
