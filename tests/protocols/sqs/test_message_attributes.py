"""Message attributes: rules, checksums, choice."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import pytest

from tests.protocols.sqs.refusals import refused


def text(value: str, type_: str = "String") -> dict[str, str]:
    return {"DataType": type_, "StringValue": value}


def reference_md5(attributes: Mapping[str, Mapping[str, Any]]) -> str:
    """The algorithm of the developer guide, once more and naively."""
    buffer = b""
    for name, value in sorted(attributes.items()):
        data = value["BinaryValue"] if value["DataType"].startswith("Binary") else value["StringValue"].encode()
        for part in (name.encode(), value["DataType"].encode()):
            buffer += struct.pack("!I", len(part)) + part
        buffer += b"\x02" if value["DataType"].startswith("Binary") else b"\x01"
        buffer += struct.pack("!I", len(data)) + data
    return hashlib.md5(buffer).hexdigest()


def receive_one(sqs: Any, url: str, *names: str) -> dict[str, Any]:
    (message,) = sqs.receive_message(QueueUrl=url, MessageAttributeNames=list(names), VisibilityTimeout=0)["Messages"]
    found: dict[str, Any] = message
    return found


ALL_TYPES: dict[str, dict[str, Any]] = {
    "text": text("grüße\n\U0001f980"),
    "Text.custom_1-x": text("a", "String.json"),
    "number": text("-12.50e+3", "Number"),
    "price": text("0.10", "Number.EUR"),
    "blob": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
    "gif": {"DataType": "Binary.gif", "BinaryValue": b"GIF89a"},
}


def test_every_type_comes_back_as_it_was_sent(sqs: Any, url: str) -> None:
    sent = sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=ALL_TYPES)
    message = receive_one(sqs, url, "All")
    assert message["MessageAttributes"] == ALL_TYPES
    assert sent["MD5OfMessageAttributes"] == message["MD5OfMessageAttributes"] == reference_md5(ALL_TYPES)


def test_system_attributes_have_a_checksum_of_their_own(sqs: Any, url: str) -> None:
    trace = {"AWSTraceHeader": text("Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1")}
    sent = sqs.send_message(QueueUrl=url, MessageBody="x", MessageSystemAttributes=trace)
    assert sent["MD5OfMessageSystemAttributes"] == reference_md5(trace)
    assert "MD5OfMessageAttributes" not in sent
    assert "MessageAttributes" not in receive_one(sqs, url, "All")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], set()),
        (["All"], {"General", "Hello", "Help.Me"}),
        ([".*"], {"General", "Hello", "Help.Me"}),
        (["*"], {"General", "Hello", "Help.Me"}),
        (["Hello", "General"], {"General", "Hello"}),
        (["Hello", "nobody"], {"Hello"}),
        (["nobody"], set()),
        (["Hel.*"], {"Hello", "Help.Me"}),
        (["Help.*", "General"], {"Help.Me", "General"}),
    ],
)
def test_a_receiver_gets_the_attributes_it_names(sqs: Any, url: str, names: list[str], expected: set[str]) -> None:
    attributes = {"General": text("Kenobi"), "Hello": text("There"), "Help.Me": text("Me")}
    sqs.send_message(QueueUrl=url, MessageBody="msg", MessageAttributes=attributes)
    message = receive_one(sqs, url, *names)
    found = message.get("MessageAttributes", {})
    assert found == {name: attributes[name] for name in expected}
    assert message.get("MD5OfMessageAttributes") == (reference_md5(found) if found else None)


def test_ten_attributes_are_the_most(sqs: Any, url: str) -> None:
    many = {f"a{number}": text("x") for number in range(11)}
    with refused("InvalidParameterValue") as refusal:
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=many)
    assert refusal.message == "Number of message attributes [11] exceeds the allowed maximum [10]."
    many.pop("a0")
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=many)


@pytest.mark.parametrize(
    "bad", ["", "AWS.x", "aws.x", "Amazon.x", "AMAZON.x", ".a", "a.", "a..b", "a b", "a/b", "a€", "n" * 257]
)
def test_names_keep_to_the_rules(sqs: Any, url: str, bad: str) -> None:
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={bad: text("x")})


@pytest.mark.parametrize("good", ["a", "A.b-c_d.1", "n" * 256, "AWSTraceHeader", "aws"])
def test_other_names_are_fine(sqs: Any, url: str, good: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={good: text("x")})
    assert receive_one(sqs, url, "All")["MessageAttributes"] == {good: text("x")}


@pytest.mark.parametrize("bad", ["", "string", "Text", "Strings", "String.", "Float", "Number" + ".x" * 130])
def test_types_keep_to_the_rules(sqs: Any, url: str, bad: str) -> None:
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={"a": text("1", bad)})


@pytest.mark.parametrize(
    "bad",
    [
        {"DataType": "String", "StringValue": ""},
        {"DataType": "String"},
        {"DataType": "String", "BinaryValue": b"x"},
        {"DataType": "Binary", "BinaryValue": b""},
        {"DataType": "Binary", "StringValue": "x"},
        {"DataType": "Number"},
    ],
)
def test_a_value_is_needed_and_must_be_of_its_type(sqs: Any, url: str, bad: dict[str, Any]) -> None:
    with refused("InvalidParameterValue") as refusal:
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={"ErrorDetails": bad})
    assert refusal.message == (
        f"Message (user) attribute 'ErrorDetails' must contain a non-empty value of type '{bad['DataType']}'."
    )


@pytest.mark.parametrize(
    "bad", ["abc", "1,5", "NaN", "Infinity", "1_000", " 1", "0x10", "1" * 39, "1e127", "1e-129", "٣x"]
)
def test_a_number_is_a_number(sqs: Any, url: str, bad: str) -> None:
    with refused("InvalidParameterValue") as refusal:
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={"n": text(bad, "Number")})
    assert refusal.message == "Can't cast the value of message (user) attribute 'n' to a number."


@pytest.mark.parametrize("good", ["0", "-0.0", "+1", "1e126", "1e-128", "1" * 38, ".5", "5."])
def test_numbers_keep_their_text(sqs: Any, url: str, good: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={"n": text(good, "Number")})
    assert receive_one(sqs, url, "n")["MessageAttributes"]["n"]["StringValue"] == good


def test_lists_are_not_supported_as_on_aws(sqs: Any, url: str) -> None:
    with refused("AWS.SimpleQueueService.UnsupportedOperation"):
        sqs.send_message(
            QueueUrl=url,
            MessageBody="x",
            MessageAttributes={"l": {"DataType": "String", "StringListValues": ["a"], "StringValue": "a"}},
        )


def test_values_have_the_characters_that_bodies_have(sqs: Any, url: str) -> None:
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={"a": text("\x01")})


@pytest.mark.parametrize(
    "bad",
    [
        {"Other": text("x")},
        {"AWSTraceHeader": text("x", "Number")},
        {"AWSTraceHeader": text("")},
    ],
)
def test_the_trace_header_is_the_only_system_attribute(sqs: Any, url: str, bad: dict[str, Any]) -> None:
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageSystemAttributes=bad)
