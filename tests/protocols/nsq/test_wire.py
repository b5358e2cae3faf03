"""The parser and the frames, each beside a naive one that does the same message by message."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.commands import Refused, Run, Settled
from penstock.core.errors import StaleReceipt
from penstock.core.storage.chunk import Chunk, PackedBodies
from penstock.protocols.nsq import wire
from penstock.protocols.nsq.connection import failed_ids

TAG = wire.tag_of(3)


def parser() -> wire.Parser:
    return wire.Parser(message_bytes_max=1_000, body_bytes_max=100_000, delay_ms_max=3_600_000)


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def many(bodies: list[bytes]) -> bytes:
    return b"MPUB topic\n" + sized(struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies)))


def ids_of(command: wire.WireCommand) -> list[int]:
    assert isinstance(command, wire.Finish)
    return command.ids.tolist()


def lines(verb: bytes, ids: list[int]) -> bytes:
    return b"".join(b"%s %016x\n" % (verb, each) for each in ids)


@pytest.mark.parametrize("count", [1, 2, 3, 63, 64, 65, 200, 5_000])
@pytest.mark.parametrize(("verb", "kind"), [(b"FIN", wire.Finish), (b"TOUCH", wire.Touch)])
def test_a_run_of_lines_is_one_command(verb: bytes, kind: type[wire.Finish], count: int) -> None:
    ids = [(number * 0x9E3779B97F4A7C15) % (1 << 64) for number in range(count)]
    (command,) = parser().feed(lines(verb, ids))
    assert type(command) is kind
    assert ids_of(command) == ids


@pytest.mark.parametrize("at", [0, 1, 63, 64, 65, 150])
@pytest.mark.parametrize(
    ("stranger", "expected"),
    [
        (b"NOP\n", wire.Nop()),
        (b"FIN 00000000000000zz\n", wire.UnknownId("FIN", "00000000000000zz")),
        (b"FIN 0000000000000007 \n", None),
        (b"FIN 0000000000000007\r\n", None),
    ],
)
def test_a_run_goes_on_behind_what_is_none_of_it(at: int, stranger: bytes, expected: Any) -> None:
    ids = list(range(160))
    found = parser().feed(lines(b"FIN", ids[:at]) + stranger + lines(b"FIN", ids[at:]))
    others = [command for command in found if type(command) is not wire.Finish]
    assert others == ([] if expected is None else [expected])
    finished = [each for command in found if type(command) is wire.Finish for each in ids_of(command)]
    assert finished == (ids if expected is not None else [*ids[:at], 7, *ids[at:]])


def test_different_verbs_are_different_commands_in_their_order() -> None:
    data = lines(b"FIN", [1, 2]) + lines(b"TOUCH", [3, 4]) + b"REQ %016x 5\n" % 6 + b"REQ %016x 5\n" % 7
    data += b"REQ %016x 9\n" % 8 + b"RDY 3\nCLS\nRDY\n"
    found = parser().feed(data)
    assert [type(command) for command in found] == [
        wire.Finish,
        wire.Touch,
        wire.Requeue,
        wire.Requeue,
        wire.Ready,
        wire.Close,
        wire.Ready,
    ]
    assert [ids_of(command) for command in found[:4]] == [[1, 2], [3, 4], [6, 7], [8]]
    assert found[4] == wire.Ready(3) and found[6] == wire.Ready(1)


def test_a_requeue_s_timeout_is_cut_at_the_longest_one() -> None:
    (command,) = parser().feed(b"REQ %016x 999999999\n" % 1)
    assert isinstance(command, wire.Requeue)
    assert command.timeout_ms == 3_600_000


def test_pubs_to_one_topic_in_a_row_are_one_command_and_others_are_not() -> None:
    data = b"".join(b"PUB %s\n" % topic + sized(topic) for topic in (b"a", b"a", b"b", b"a"))
    found = parser().feed(data)
    assert [
        (command.topic, command.bodies, command.replies) for command in found if isinstance(command, wire.Publish)
    ] == [
        ("a", [b"a", b"a"], 2),
        ("b", [b"b"], 1),
        ("a", [b"a"], 1),
    ]


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=40))
def test_the_messages_of_an_mpub_are_those_that_were_sent(bodies: list[bytes]) -> None:
    (command,) = parser().feed(many(bodies))
    assert isinstance(command, wire.Publish)
    assert list(command.bodies) == bodies


@given(st.integers(2, 50), st.integers(1, 40))
def test_messages_of_one_length_stay_in_one_piece(count: int, length: int) -> None:
    bodies = [bytes([number % 256]) * length for number in range(count)]
    (command,) = parser().feed(many(bodies))
    assert isinstance(command, wire.Publish) and isinstance(command.bodies, PackedBodies)
    assert list(command.bodies) == bodies
    assert command.bodies.longest() == length


def test_a_size_that_only_looks_like_that_of_messages_of_one_length_is_looked_at() -> None:
    bodies = [b"aaaa", b"bb", b"cccccc"]
    (command,) = parser().feed(many(bodies))
    assert isinstance(command, wire.Publish)
    assert command.bodies == bodies


@given(st.data())
def test_commands_are_the_same_however_the_bytes_are_cut(data: st.DataObject) -> None:
    pieces = [
        many([b"one", b"three"]),
        b"NOP\n",
        lines(b"FIN", list(range(5))),
        b"PUB a\n" + sized(b"x" * 50),
        b"SUB a b\n",
    ]
    stream = b"".join(data.draw(st.lists(st.sampled_from(pieces), max_size=6)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    whole, cut = parser(), parser()
    expected = _flat(whole.feed(stream))
    found: list[wire.WireCommand] = []
    for low, high in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += cut.feed(stream[low:high])
    assert _flat(found) == expected


def _flat(commands: list[wire.WireCommand]) -> list[Any]:
    """Commands without regard to how they were gathered."""
    flat: list[Any] = []
    for command in commands:
        if isinstance(command, wire.Finish):
            flat += [(type(command), each) for each in ids_of(command)]
        elif isinstance(command, wire.Publish):
            flat += [(command.verb, command.topic, body) for body in command.bodies]
        else:
            flat.append(command)
    return flat


def test_the_verb_of_what_is_not_whole_is_known() -> None:
    reader = parser()
    assert reader.feed(b"IDENTIFY\n\x00") == []
    assert reader.verb == "IDENTIFY"
    reader.feed(b"\x00\x00\x02{}")
    assert (reader.verb, reader.rest) == ("", 0)


def test_nothing_is_read_behind_what_is_invalid() -> None:
    reader = parser()
    found = reader.feed(b"NOP\nPUB bad!topic\n\x00\x00\x00\x01xNOP\n")
    assert found == [wire.Nop(), wire.Invalid("E_BAD_TOPIC", 'PUB topic name "bad!topic" is not valid')]
    assert reader.is_over
    assert reader.feed(b"NOP\n") == []


# -- frames ------------------------------------------------------------------------------------------------------------


def naive_frames(run: Run, keep: Any = None) -> bytes:
    frames = b""
    for index in range(run.start, run.stop):
        at = index - run.start
        if keep is not None and not keep[at]:
            continue
        attempts = min(int(run.attempts[at]), 65_535)
        data = struct.pack(">qH", run.chunk.sent_ms * 1_000_000, attempts)
        data += b"%016x" % (run.chunk.sequence(index) | TAG) + run.chunk.body(index)
        frames += struct.pack(">ii", len(data) + 4, 2) + data
    return frames


@given(
    st.lists(st.binary(max_size=12), min_size=1, max_size=30),
    st.booleans(),
    st.data(),
)
def test_frames_of_a_run_are_those_of_its_messages(bodies: list[bytes], even: bool, data: st.DataObject) -> None:
    if even:
        length = data.draw(st.integers(0, 12))
        bodies = [body.ljust(12, b".")[:length] for body in bodies]
    chunk = Chunk.of((1 << 47) + 5, 1_700_000_000_123, bodies)
    start = data.draw(st.integers(0, len(bodies) - 1))
    stop = data.draw(st.integers(start + 1, len(bodies)))
    attempts = data.draw(st.one_of(st.integers(1, 70_000), st.none()))
    each = np.arange(65_530, 65_530 + stop - start, dtype=np.uint32)
    run = Run(chunk, start, stop, each if attempts is None else attempts, 0)
    assert bytes(wire.message_frames(run, TAG)) == naive_frames(run)
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=stop - start, max_size=stop - start)))
    assert bytes(wire.message_frames(run, TAG, keep)) == naive_frames(run, keep)


def test_frames_can_be_made_of_a_chunk_that_was_read_from_the_store() -> None:
    stored = b"".join(bytes(part) for part in Chunk.of(7, 5, [b"one", b"two", b"three"]).parts())
    run = Run(Chunk.decode(stored), 1, 3, 1, 0)
    assert bytes(wire.message_frames(run, TAG)) == naive_frames(run)


@given(st.lists(st.integers(0, (1 << 48) - 1), min_size=1, max_size=20))
def test_an_id_leads_back_to_its_message(sequences: list[int]) -> None:
    frames = [wire.message_frames(Run(Chunk.of(sequence, 5, [b"one"]), 0, 1, 1, 0), TAG) for sequence in sequences]
    ids = [int(bytes(frame)[18:34], 16) for frame in frames]
    assert wire.sequences_of(np.array(ids, dtype=np.uint64), TAG).tolist() == sequences


def test_an_id_of_another_topic_leads_nowhere() -> None:
    ids = np.array([5 | TAG, 5 | wire.tag_of(4), 5], dtype=np.uint64)
    assert wire.sequences_of(ids, TAG).tolist() == [5, -1, -1]


# -- refused ids -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 12), min_size=1, max_size=20), st.sets(st.integers(0, 12)))
def test_the_ids_that_failed_are_those_refused_and_those_repeated(sequences: list[int], held: set[int]) -> None:
    ids = np.array([sequence | TAG for sequence in sequences], dtype=np.uint64)
    refused = [Refused(each, each, StaleReceipt("gone")) for each in set(sequences) - held]
    expected = [
        sequence | TAG for at, sequence in enumerate(sequences) if sequence not in held or sequence in sequences[:at]
    ]
    settled = Settled(len(set(sequences) & held), refused)
    assert failed_ids(ids, TAG, settled, once=True) == expected
    unheld = [sequence | TAG for sequence in sequences if sequence not in held]
    assert failed_ids(ids, TAG, settled, once=False) == unheld
    assert failed_ids(ids, TAG, None, once=False) == ids.tolist()
