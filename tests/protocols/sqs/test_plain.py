"""Plain messages take a shorter way, and nobody can tell: answers are the encoder's, texts are those that were sent."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.commands import CreateQueue, QueueInfo, Sent
from penstock.protocols.sqs import json_wire, plain
from penstock.protocols.sqs.actions import Service
from penstock.protocols.sqs.message_attributes import not_allowed_in
from penstock.protocols.sqs.service import Caller
from penstock.protocols.sqs.shapes import (
    Message,
    ReceiveMessageResult,
    SendMessageBatchRequest,
    SendMessageBatchRequestEntry,
    SendMessageBatchResult,
    SendMessageBatchResultEntry,
    SendMessageResult,
    SettledEntry,
    SettledResult,
)
from penstock.server.auth import ANYBODY
from penstock.server.clock import SystemClock
from penstock.server.settings import SqsSettings
from penstock.server.shard import Call
from tests.protocols.sqs.serving import Server
from tests.shards import open_shards, run_in_loop, stores_in

_decode = msgspec.json.Decoder(dict[str, str]).decode
names = st.text("abcXYZ019_-", min_size=1, max_size=12)
hexadecimal = st.text("0123456789abcdef-", min_size=1, max_size=36)
plain_texts = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7F, exclude_characters='"\\'), max_size=60)


# -- what plain means --------------------------------------------------------------------------------------------------


@given(st.binary(max_size=12), st.text(max_size=12), st.booleans())
def test_whatever_is_plain_is_allowed_and_its_own_json(raw: bytes, text: str, is_escaped: bool) -> None:
    for body in (b'{"a":"' + raw + b'"}', json.dumps({"a": text}, ensure_ascii=is_escaped).encode("utf-8", "replace")):
        if not plain.is_plain(body):
            continue
        try:
            values = _decode(body).values()
        except msgspec.DecodeError:
            continue
        for value in values:
            assert not_allowed_in(value) is None
            assert msgspec.json.encode(value) == b'"' + value.encode() + b'"'


@pytest.mark.parametrize("byte", range(256))
def test_every_byte_that_a_text_may_not_hold_raw_is_refused_or_not_plain(byte: int) -> None:
    body = b'{"a":"x' + bytes([byte]) + b'y"}'
    if not plain.is_plain(body):
        assert byte >= 0x80 or byte == ord("\\")
    elif byte >= 0x20 and byte != ord('"'):
        assert _decode(body) == {"a": f"x{chr(byte)}y"}
    else:
        with pytest.raises(msgspec.DecodeError):
            _decode(body)


# -- answers -----------------------------------------------------------------------------------------------------------


@given(hexadecimal, hexadecimal)
def test_a_sent_message_is_answered_as_the_encoder_does(checksum: str, message_id: str) -> None:
    result = SendMessageResult(md5_of_message_body=checksum, message_id=message_id)
    assert plain.sent(checksum, message_id) == json_wire.encode(result)


@given(st.lists(st.tuples(names, hexadecimal, hexadecimal), min_size=1, max_size=10))
def test_a_sent_batch_is_answered_as_the_encoder_does(entries: list[tuple[str, str, str]]) -> None:
    result = SendMessageBatchResult([SendMessageBatchResultEntry(*entry) for entry in entries], [])
    ids, message_ids, checksums = (list(column) for column in zip(*entries, strict=True))
    assert plain.sent_batch(ids, message_ids, checksums) == json_wire.encode(result)


@given(st.lists(st.tuples(hexadecimal, names, hexadecimal, plain_texts), min_size=1, max_size=10))
def test_received_messages_are_answered_as_the_encoder_does(messages: list[tuple[str, str, str, str]]) -> None:
    result = ReceiveMessageResult([Message(*message) for message in messages])
    ids, receipts, checksums, texts = (list(column) for column in zip(*messages, strict=True))
    pieces = plain.received(ids, receipts, checksums, [text.encode() for text in texts])
    assert b'{"Messages":[' + b"".join(pieces) + b"]}" == json_wire.encode(result)


@given(st.lists(names, min_size=1, max_size=10))
def test_a_settled_batch_is_answered_as_the_encoder_does(ids: list[str]) -> None:
    assert plain.settled_batch(ids) == json_wire.encode(SettledResult([SettledEntry(each) for each in ids], []))


# -- what is remembered ------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 3), st.integers(0, 30), st.integers(1, 10)), min_size=1, max_size=40
    )
)
def test_what_is_remembered_is_what_was_added_last(steps: list[tuple[bool, int, int, int]]) -> None:
    remembered, model = plain.Remembered(), dict[tuple[int, int], str]()
    for number, (adds, queue_id, first, count) in enumerate(steps):
        places = [(queue_id, first + index) for index in range(count)]
        if adds:
            remembered.add(queue_id, first, [f"{number}-{index}" for index in range(count)])
            model.update({place: f"{number}-{index}" for index, place in enumerate(places)})
        else:
            expected = [model.get(place) for place in places]
            assert remembered.take(queue_id, first, count) == (None if None in expected else expected)
            for place in places:
                if model.pop(place, None) is None:
                    break


def test_what_is_remembered_is_bounded_and_what_is_taken_makes_room() -> None:
    many = plain.REMEMBERED_MAX
    kept = plain.Remembered()
    for first in range(0, 3 * many, 10):
        kept.add(first % 7, first, ["checksum"] * 10)
    assert sum(kept.take(first % 7, first, 10) is not None for first in range(0, 3 * many, 10)) <= many // 10
    flowing = plain.Remembered()
    flowing.add(1, 0, ["first"])
    for first in range(1, 3 * many, 10):
        flowing.add(1, first, ["checksum"] * 10)
        assert flowing.take(1, first, 10) is not None
    assert flowing.take(1, 0, 1) == ["first"]


# -- over the wire -----------------------------------------------------------------------------------------------------

BODIES = ["plain", "with \x7f", 'a "quote"', "back\\slash", "tab\tand\nline", "é", "\U0001f600", "x" * 1_000, "{}", " "]


def test_texts_arrive_as_they_were_sent_whatever_they_hold(server: Server, sqs: Any, url: str) -> None:
    for number, body in enumerate(BODIES):
        sent = sqs.send_message(QueueUrl=url, MessageBody=body)
        entries = [{"Id": str(index), "MessageBody": f"{body}{index}"} for index in range(number + 1)]
        batch = sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]
        expected = [(body, sent["MessageId"])]
        expected += [(f"{body}{index}", entry["MessageId"]) for index, entry in enumerate(batch)]
        for _ in range(2):  # the second time, nothing is remembered any more
            seen: list[dict[str, Any]] = []
            while len(seen) < len(expected):
                seen += sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
            assert sorted((message["Body"], message["MessageId"]) for message in seen) == sorted(expected)
            for message in seen:
                assert message["MD5OfBody"] == hashlib.md5(message["Body"].encode()).hexdigest()
            server.advance(31)
        sqs.purge_queue(QueueUrl=url)
        server.advance(61)


def test_plain_and_other_messages_of_one_receive_come_together(sqs: Any, url: str) -> None:
    entries = [{"Id": str(index), "MessageBody": body} for index, body in enumerate(BODIES)]
    for entry in entries:
        sqs.send_message(QueueUrl=url, MessageBody=entry["MessageBody"])
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in received] == BODIES
    handles = [{"Id": str(index), "ReceiptHandle": each["ReceiptHandle"]} for index, each in enumerate(received)]
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=handles)
    assert [entry["Id"] for entry in deleted["Successful"]] == [str(index) for index in range(10)]


def test_a_batch_with_one_bad_receipt_deletes_the_others(server: Server, sqs: Any, url: str) -> None:
    for number in range(4):
        sqs.send_message(QueueUrl=url, MessageBody=f"message {number}")
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    handles = [each["ReceiptHandle"] for each in received]
    entries = [
        {"Id": str(index), "ReceiptHandle": each} for index, each in enumerate([*handles[:2], "bad", *handles[2:]])
    ]
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in deleted["Successful"]] == ["0", "1", "3", "4"]
    assert [(entry["Id"], entry["Code"]) for entry in deleted["Failed"]] == [("2", "ReceiptHandleIsInvalid")]
    server.advance(31)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_messages_of_one_batch_may_be_deleted_twice_and_in_any_order(server: Server, sqs: Any, url: str) -> None:
    for number in range(6):
        sqs.send_message(QueueUrl=url, MessageBody=f"message {number}")
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    order = [4, 1, 1, 0, 5, 3]
    entries = [{"Id": f"e{n}", "ReceiptHandle": received[which]["ReceiptHandle"]} for n, which in enumerate(order)]
    for _ in range(2):
        deleted = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
        assert sorted(entry["Id"] for entry in deleted["Successful"]) == sorted(f"e{n}" for n in range(len(order)))
    server.advance(31)
    left = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in left] == ["message 2"]


def test_a_batch_that_was_spread_over_partitions_is_answered_with_the_numbers_it_got(tmp_path: Path) -> None:
    run_in_loop(_spread(tmp_path / "data"))


async def _spread(directory: Path) -> None:
    shards = open_shards(stores_in(directory), SystemClock())
    queue: QueueInfo = await shards.call(CreateQueue(name="q"))
    service = Service(shards, SqsSettings())
    entries = [SendMessageBatchRequestEntry(id=str(index), message_body="text") for index in range(2)]
    request = SendMessageBatchRequest("http://x/1/q", entries)
    coroutine = service.SendMessageBatch(Caller("http://x/1/", ANYBODY, None, is_plain=True), request)
    call = Call(coroutine.send(None))
    sequences = [5, (1 << 50) + 9]
    call.reply = Sent(queue.queue_id, sequences[0], 2, sequences)
    with pytest.raises(StopIteration) as done:
        coroutine.send(call)
    answer = json.loads(done.value.value)
    assert [entry["MessageId"] for entry in answer["Successful"]] == [
        shards.identity.message_id(queue.queue_id, sequence) for sequence in sequences
    ]
    assert service.remembered.take(queue.queue_id, 5, 1) is None
    await shards.close()
