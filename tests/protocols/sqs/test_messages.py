"""One message at a time: sending, receiving, deleting, visibility."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.commands import ChangeQueue, Send
from penstock.core.queues.attributes import TypedText, encode_attributes
from tests.protocols.sqs.refusals import refused
from tests.protocols.sqs.serving import Server


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def receive(sqs: Any, url: str, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sqs.receive_message(QueueUrl=url, **options).get("Messages", [])
    return found


def test_what_is_sent_is_received(sqs: Any, url: str) -> None:
    body = 'grüße, \U0001f980 & <b>\t\r\n"quotes" ￼'
    sent = sqs.send_message(QueueUrl=url, MessageBody=body)
    (message,) = receive(sqs, url)
    assert message["Body"] == body
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"] == md5(body)
    assert set(message) == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}
    assert "SequenceNumber" not in sent


def test_ids_are_uuids_and_differ(sqs: Any, url: str) -> None:
    ids = {sqs.send_message(QueueUrl=url, MessageBody="x")["MessageId"] for _ in range(5)}
    assert len(ids) == 5
    assert all((uuid.UUID(each).version, str(uuid.UUID(each))) == (4, each) for each in ids)


def test_a_body_is_needed(sqs: Any, url: str) -> None:
    with refused("MissingParameter") as refusal:
        sqs.send_message(QueueUrl=url, MessageBody="")
    assert refusal.shape == "MissingRequiredParameterException"
    assert refusal.message == "The request must contain the parameter MessageBody."


@pytest.mark.parametrize("bad", ["\x00", "\x08", "\x0b", "\x1f", "￾", "￿"])
def test_characters_that_xml_cannot_have_are_refused(sqs: Any, url: str, bad: str) -> None:
    with refused("InvalidMessageContents") as refusal:
        sqs.send_message(QueueUrl=url, MessageBody=f"a{bad}b")
    assert "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF" in refusal.message
    assert f"'#x{ord(bad):X}'" in refusal.message


@pytest.mark.parametrize("good", ["\t", "\n", "\r", " ", "\x7f", "\x85", "\ud7ff", "\ue000", "�", "\U0010ffff"])
def test_all_other_characters_are_fine(sqs: Any, url: str, good: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody=f"a{good}b")
    assert receive(sqs, url)[0]["Body"] == f"a{good}b"


def test_a_message_may_be_as_large_as_its_queue_says(sqs: Any, make: Callable[..., str]) -> None:
    url = make("small", MaximumMessageSize="1024")
    sqs.send_message(QueueUrl=url, MessageBody="x" * 1_024)
    for body in ("x" * 1_025, "ü" * 513):
        with refused("InvalidParameterValue") as refusal:
            sqs.send_message(QueueUrl=url, MessageBody=body)
        assert refusal.message == "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes."


def test_attributes_count_with_names_types_and_values(sqs: Any, make: Callable[..., str]) -> None:
    url = make("small", MaximumMessageSize="1024")
    attributes = {
        "name": {"DataType": "String", "StringValue": "v" * 90},
        "blob": {"DataType": "Binary.gif", "BinaryValue": b"\0" * 100},
    }
    counted = 4 + 6 + 90 + 4 + 10 + 100
    sqs.send_message(QueueUrl=url, MessageBody="x" * (1_024 - counted), MessageAttributes=attributes)
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=url, MessageBody="x" * (1_025 - counted), MessageAttributes=attributes)
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-" + "5" * 90}}
    sqs.send_message(QueueUrl=url, MessageBody="x" * 1_024, MessageSystemAttributes=trace)


def test_a_mebibyte_is_the_most(sqs: Any, url: str) -> None:
    body = "x" * (1_048_576 - 12)
    attribute = {"a": {"DataType": "String", "StringValue": "b" * 5}}
    sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attribute)
    assert receive(sqs, url)[0]["Body"] == body
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=url, MessageBody=body + "y", MessageAttributes=attribute)


@pytest.mark.parametrize("delay", [-1, 901])
def test_a_delay_is_up_to_fifteen_minutes(sqs: Any, url: str, delay: int) -> None:
    with refused("InvalidParameterValue") as refusal:
        sqs.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=delay)
    assert refusal.message == (
        f"Value {delay} for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900."
    )


def test_a_messages_delay_goes_before_its_queues(server: Server, sqs: Any, make: Callable[..., str]) -> None:
    url = make("slow", DelaySeconds="20")
    sqs.send_message(QueueUrl=url, MessageBody="queue's")
    sqs.send_message(QueueUrl=url, MessageBody="none", DelaySeconds=0)
    sqs.send_message(QueueUrl=url, MessageBody="own", DelaySeconds=10)
    seen = []
    for _ in range(3):
        seen.append([message["Body"] for message in receive(sqs, url, MaxNumberOfMessages=10)])
        server.advance(10)
    assert seen == [["none"], ["own"], ["queue's"]]


# -- receiving ---------------------------------------------------------------------------------------------------------


def test_a_received_message_is_not_seen_again_until_its_time_is_up(server: Server, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert receive(sqs, url, VisibilityTimeout=1_000)
    assert not receive(sqs, url)
    server.advance(900)
    assert not receive(sqs, url)
    server.advance(100.1)
    assert receive(sqs, url)


def test_the_queues_visibility_timeout_is_the_default(server: Server, sqs: Any, make: Callable[..., str]) -> None:
    url = make("quick", VisibilityTimeout="3")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert receive(sqs, url)
    server.advance(3.1)
    assert receive(sqs, url, VisibilityTimeout=0)
    assert receive(sqs, url)


def test_as_many_as_asked_for_are_received_in_order(sqs: Any, url: str) -> None:
    for number in range(12):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    assert len(receive(sqs, url)) == 1
    assert [message["Body"] for message in receive(sqs, url, MaxNumberOfMessages=10)] == [str(n) for n in range(1, 11)]
    assert [message["Body"] for message in receive(sqs, url, MaxNumberOfMessages=10)] == ["11"]


@pytest.mark.parametrize(
    ("parameter", "bad", "reason"),
    [
        ("MaxNumberOfMessages", 0, "Must be between 1 and 10, if provided."),
        ("MaxNumberOfMessages", 11, "Must be between 1 and 10, if provided."),
        ("WaitTimeSeconds", -1, "Must be >= 0 and <= 20, if provided."),
        ("WaitTimeSeconds", 21, "Must be >= 0 and <= 20, if provided."),
        ("VisibilityTimeout", -1, "VisibilityTimeout must be an integer between 0 and 43200."),
        ("VisibilityTimeout", 43_201, "VisibilityTimeout must be an integer between 0 and 43200."),
        (
            "ReceiveRequestAttemptId",
            "a",
            "The request include parameter that is not valid for this queue type.",
        ),
    ],
)
def test_a_receive_keeps_to_the_ranges(sqs: Any, url: str, parameter: str, bad: Any, reason: str) -> None:
    with refused("InvalidParameterValue") as refusal:
        sqs.receive_message(QueueUrl=url, **{parameter: bad})
    assert refusal.message == f"Value {bad} for parameter {parameter} is invalid. Reason: {reason}"


def test_system_attributes_come_when_asked_for(server: Server, sqs: Any, url: str) -> None:
    before_ms = server.clock.now_ms()
    sqs.send_message(
        QueueUrl=url,
        MessageBody="x",
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}},
    )
    (message,) = receive(sqs, url, MessageSystemAttributeNames=["All"], VisibilityTimeout=1)
    first_ms = int(message["Attributes"].pop("ApproximateFirstReceiveTimestamp"))
    sent_ms = int(message["Attributes"].pop("SentTimestamp"))
    assert before_ms <= sent_ms <= first_ms <= server.clock.now_ms()
    assert message["Attributes"] == {
        "SenderId": "AIDAPENSTOCK",
        "ApproximateReceiveCount": "1",
        "AWSTraceHeader": "Root=1-2-3",
    }
    server.advance(2)
    (again,) = receive(sqs, url, AttributeNames=["ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"])
    assert again["Attributes"] == {
        "ApproximateReceiveCount": "2",
        "ApproximateFirstReceiveTimestamp": str(first_ms),
    }


def test_an_unknown_system_attribute_is_refused(sqs: Any, url: str) -> None:
    for parameter in ("AttributeNames", "MessageSystemAttributeNames"):
        with refused("InvalidAttributeName") as refusal:
            sqs.receive_message(QueueUrl=url, **{parameter: ["Nonsense"]})
        assert refusal.message == "Unknown Attribute Nonsense."


def test_too_many_messages_in_flight_are_over_the_limit(server: Server, sqs: Any, name: str, url: str) -> None:
    server.call(ChangeQueue(name=name, changes={"in_flight_max": 2}))
    for _ in range(3):
        sqs.send_message(QueueUrl=url, MessageBody="x")
    assert len(receive(sqs, url, MaxNumberOfMessages=10)) == 2
    with refused("OverLimit", 403):
        sqs.receive_message(QueueUrl=url)


# -- what other front ends have sent -----------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a\x00b", b""])
def test_bytes_that_are_no_text_arrive_as_base64_and_say_so(
    server: Server, sqs: Any, name: str, url: str, body: bytes
) -> None:
    server.call(Send(queue=name, bodies=[body]))
    (message,) = receive(sqs, url)
    if not body:
        assert (message["Body"], "MessageAttributes" in message) == ("", False)
        return
    assert base64.b64decode(message["Body"]) == body
    assert message["MessageAttributes"] == {"Penstock.Encoding": {"DataType": "String", "StringValue": "base64"}}
    assert message["MD5OfBody"] == md5(message["Body"])


def test_attributes_of_other_front_ends_arrive_with_types(server: Server, sqs: Any, name: str, url: str) -> None:
    stored = encode_attributes({"t": "text", "b": b"\0", "i": 7, "f": 1.5, "n": TypedText.of("1e3", "Number.big")})
    server.call(Send(queue=name, bodies=[b"x"], attributes=[stored]))
    (message,) = receive(sqs, url, MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == {
        "t": {"DataType": "String", "StringValue": "text"},
        "b": {"DataType": "Binary", "BinaryValue": b"\0"},
        "i": {"DataType": "Number", "StringValue": "7"},
        "f": {"DataType": "Number", "StringValue": "1.5"},
        "n": {"DataType": "Number.big", "StringValue": "1e3"},
    }


# -- settling ----------------------------------------------------------------------------------------------------------


def test_a_deleted_message_does_not_come_back(server: Server, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = receive(sqs, url, VisibilityTimeout=1)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    server.advance(10)
    assert not receive(sqs, url)


def test_a_late_delete_works_if_nobody_else_got_the_message(server: Server, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = receive(sqs, url, VisibilityTimeout=1)
    server.advance(2)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert not receive(sqs, url)


def test_a_delete_with_an_old_receipt_succeeds_and_deletes_nothing(server: Server, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (old,) = receive(sqs, url, VisibilityTimeout=1)
    server.advance(2)
    (new,) = receive(sqs, url, VisibilityTimeout=1)
    assert old["ReceiptHandle"] != new["ReceiptHandle"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"])
    server.advance(2)
    assert receive(sqs, url)


def test_a_receipt_that_was_not_made_here_is_invalid(sqs: Any, url: str, make: Callable[..., str]) -> None:
    other = make("other")
    sqs.send_message(QueueUrl=other, MessageBody="x")
    foreign = receive(sqs, other)[0]["ReceiptHandle"]
    for handle in ("nonsense", "ü", foreign, foreign[:-4] + "AAA="):
        with refused("ReceiptHandleIsInvalid", 404) as refusal:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)
        assert refusal.message == f'The input receipt handle "{handle}" is not a valid receipt handle.'
        with refused("ReceiptHandleIsInvalid", 404):
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=1)


def test_visibility_can_be_made_longer_and_shorter(server: Server, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = receive(sqs, url, VisibilityTimeout=5)
    handle = message["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=60)
    server.advance(30)
    assert not receive(sqs, url)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    assert receive(sqs, url)[0]["MessageId"] == message["MessageId"]


def test_visibility_ends_twelve_hours_after_the_receive(server: Server, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = receive(sqs, url, VisibilityTimeout=60)
    server.advance(30)
    with refused("InvalidParameterValue") as refusal:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=43_200)
    assert "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]" in refusal.message
    for bad in (-1, 43_201):
        with refused("InvalidParameterValue"):
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=bad)


def test_a_deleted_message_has_no_visibility_to_change(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = receive(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    with refused("InvalidParameterValue") as refusal:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=5)
    assert refusal.message == (
        f"Value {message['ReceiptHandle']} for parameter ReceiptHandle is invalid. Reason: Message does not exist or "
        "is not available for visibility timeout change."
    )


def test_a_restart_forgets_neither_messages_nor_receipts(tmp_path: Any) -> None:
    server = Server(tmp_path / "data")
    sqs = server.client()
    url = sqs.create_queue(QueueName="lasting", Attributes={"DelaySeconds": "0"}, tags={"a": "b"})["QueueUrl"]
    ids = [sqs.send_message(QueueUrl=url, MessageBody=str(number))["MessageId"] for number in range(3)]
    (held,) = receive(sqs, url, VisibilityTimeout=600)
    server.stop()
    server = Server(tmp_path / "data")
    try:
        sqs = server.client()
        url = sqs.get_queue_url(QueueName="lasting")["QueueUrl"]
        assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "b"}
        assert [message["MessageId"] for message in receive(sqs, url, MaxNumberOfMessages=10)] == ids[1:]
        sqs.delete_message(QueueUrl=url, ReceiptHandle=held["ReceiptHandle"])
        server.advance(601)
        assert sorted(message["MessageId"] for message in receive(sqs, url, MaxNumberOfMessages=10)) == sorted(ids[1:])
    finally:
        server.stop()


def test_a_message_that_always_fails_leaves_the_others_every_other_receive(sqs: Any, url: str) -> None:
    for body in ("bad", "1", "2", "3"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    got = []
    for _ in range(7):
        (message,) = receive(sqs, url)
        got.append(message["Body"])
        if message["Body"] == "bad":
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
        else:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert got == ["bad", "bad", "1", "bad", "2", "bad", "3"]


def test_a_visibility_timeout_means_what_it_says_on_a_queue_that_was_not_made_here(server: Server, sqs: Any) -> None:
    server.call(Send(queue="made-in-python", bodies=[b"1"]))
    url = sqs.get_queue_url(QueueName="made-in-python")["QueueUrl"]
    for attempt in range(1, 10):
        (message,) = receive(sqs, url, VisibilityTimeout=600, AttributeNames=["ApproximateReceiveCount"])
        assert message["Attributes"]["ApproximateReceiveCount"] == str(attempt)
        handle = message["ReceiptHandle"]
        if attempt % 2:
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
        else:
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=5)
            server.advance(5)
