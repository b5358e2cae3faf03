"""Batches: rules of the whole, failures of the parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.protocols.sqs.refusals import refused
from tests.protocols.sqs.serving import Server


def entries(*bodies: str, **more: Any) -> list[dict[str, Any]]:
    return [{"Id": f"id-{index}", "MessageBody": body, **more} for index, body in enumerate(bodies)]


def receive(sqs: Any, url: str, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **options).get(
        "Messages", []
    )
    return found


def handles(messages: list[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    return [
        {"Id": str(index), "ReceiptHandle": message["ReceiptHandle"], **more} for index, message in enumerate(messages)
    ]


def test_a_batch_is_sent_received_and_deleted(server: Server, sqs: Any, url: str) -> None:
    bodies = [f"body {number}" for number in range(10)]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=entries(*bodies))
    assert "Failed" not in sent
    assert [entry["Id"] for entry in sent["Successful"]] == [f"id-{number}" for number in range(10)]
    assert [entry["MD5OfMessageBody"] for entry in sent["Successful"]] == [
        hashlib.md5(body.encode()).hexdigest() for body in bodies
    ]
    received = receive(sqs, url)
    assert [message["Body"] for message in received] == bodies
    assert [message["MessageId"] for message in received] == [entry["MessageId"] for entry in sent["Successful"]]
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=handles(received))
    assert [entry["Id"] for entry in deleted["Successful"]] == [str(number) for number in range(10)]
    server.advance(60)
    assert not receive(sqs, url)


def test_a_batch_without_a_delay_does_not_wait_for_the_delay_of_its_queue(sqs: Any, url: str) -> None:
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "30"})
    sqs.send_message_batch(QueueUrl=url, Entries=entries("late"))
    sqs.send_message_batch(QueueUrl=url, Entries=entries("now", "as well", DelaySeconds=0))
    assert [message["Body"] for message in receive(sqs, url)] == ["now", "as well"]


def test_ids_that_were_good_do_not_vouch_for_others_with_the_same_text(sqs: Any, url: str) -> None:
    assert "Failed" not in sqs.send_message_batch(QueueUrl=url, Entries=batch_of("send_message_batch", ["a", "b"]))
    with refused("AWS.SimpleQueueService.InvalidBatchEntryId"):
        sqs.send_message_batch(QueueUrl=url, Entries=batch_of("send_message_batch", ["a,b"]))


BATCHES = ["send_message_batch", "delete_message_batch", "change_message_visibility_batch"]


def batch_of(operation: str, ids: list[str]) -> list[dict[str, Any]]:
    fillings: dict[str, dict[str, Any]] = {
        "send_message_batch": {"MessageBody": "x"},
        "delete_message_batch": {"ReceiptHandle": "x"},
        "change_message_visibility_batch": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
    }
    return [{"Id": each, **fillings[operation]} for each in ids]


@pytest.mark.parametrize("operation", BATCHES)
def test_a_batch_has_one_to_ten_entries(sqs: Any, url: str, operation: str) -> None:
    with refused("AWS.SimpleQueueService.EmptyBatchRequest") as refusal:
        getattr(sqs, operation)(QueueUrl=url, Entries=[])
    assert refusal.shape == "EmptyBatchRequest"
    with refused("AWS.SimpleQueueService.TooManyEntriesInBatchRequest") as refusal:
        getattr(sqs, operation)(QueueUrl=url, Entries=batch_of(operation, [str(n) for n in range(11)]))
    assert refusal.message == "Maximum number of entries per request are 10. You have sent 11."


@pytest.mark.parametrize("operation", BATCHES)
def test_entries_have_distinct_ids(sqs: Any, url: str, operation: str) -> None:
    with refused("AWS.SimpleQueueService.BatchEntryIdsNotDistinct") as refusal:
        getattr(sqs, operation)(QueueUrl=url, Entries=batch_of(operation, ["a", "b", "a"]))
    assert refusal.message == "Id a repeated."


@pytest.mark.parametrize("operation", BATCHES)
@pytest.mark.parametrize("bad", ["", "x" * 81, "invalid:id", "with space", "ü"])
def test_ids_keep_to_the_rules(sqs: Any, url: str, operation: str, bad: str) -> None:
    with refused("AWS.SimpleQueueService.InvalidBatchEntryId") as refusal:
        getattr(sqs, operation)(QueueUrl=url, Entries=batch_of(operation, [bad]))
    assert refusal.message == (
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 "
        "letters long."
    )


def test_a_batch_holds_a_mebibyte_at_most(sqs: Any, url: str) -> None:
    half = "x" * (512 * 1024)
    sqs.send_message_batch(QueueUrl=url, Entries=entries(half, half))
    with refused("AWS.SimpleQueueService.BatchRequestTooLong") as refusal:
        sqs.send_message_batch(QueueUrl=url, Entries=entries(half, half, "y"))
    assert refusal.message == "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."
    with refused("AWS.SimpleQueueService.BatchRequestTooLong"):
        sqs.send_message_batch(QueueUrl=url, Entries=entries("x" * (1024 * 1024 + 1)))


def test_a_bad_message_fails_alone(sqs: Any, make: Callable[..., str]) -> None:
    url = make("small", MaximumMessageSize="1024")
    batch = [
        {"Id": "good", "MessageBody": "fine"},
        {"Id": "empty", "MessageBody": ""},
        {"Id": "character", "MessageBody": "\x00"},
        {"Id": "large", "MessageBody": "x" * 1_025},
        {"Id": "late", "MessageBody": "x", "DelaySeconds": 901},
        {"Id": "attribute", "MessageBody": "x", "MessageAttributes": {"a": {"DataType": "X", "StringValue": "x"}}},
        {"Id": "good-too", "MessageBody": "fine too"},
    ]
    answer = sqs.send_message_batch(QueueUrl=url, Entries=batch)
    assert [entry["Id"] for entry in answer["Successful"]] == ["good", "good-too"]
    failed = {entry["Id"]: entry for entry in answer["Failed"]}
    assert {id_: entry["Code"] for id_, entry in failed.items()} == {
        "empty": "MissingParameter",
        "character": "InvalidMessageContents",
        "large": "InvalidParameterValue",
        "late": "InvalidParameterValue",
        "attribute": "InvalidParameterValue",
    }
    assert all(entry["SenderFault"] is True and entry["Message"] for entry in failed.values())
    assert [message["Body"] for message in receive(sqs, url)] == ["fine", "fine too"]


def test_messages_of_a_batch_may_have_delays_and_attributes_of_their_own(server: Server, sqs: Any, url: str) -> None:
    batch = entries("now", "later", "now too", "later too")
    batch[1]["DelaySeconds"] = batch[3]["DelaySeconds"] = 30
    batch[2]["MessageAttributes"] = {"a": {"DataType": "String", "StringValue": "b"}}
    answer = sqs.send_message_batch(QueueUrl=url, Entries=batch)
    assert [entry["Id"] for entry in answer["Successful"]] == ["id-0", "id-1", "id-2", "id-3"]
    assert "MD5OfMessageAttributes" in answer["Successful"][2]
    ids = {entry["Id"]: entry["MessageId"] for entry in answer["Successful"]}
    first = receive(sqs, url, MessageAttributeNames=["All"])
    assert [message["Body"] for message in first] == ["now", "now too"]
    assert [message["MessageId"] for message in first] == [ids["id-0"], ids["id-2"]]
    assert ["MessageAttributes" in message for message in first] == [False, True]
    server.advance(31)
    later = [message for message in receive(sqs, url) if message["Body"].startswith("later")]
    assert [message["MessageId"] for message in later] == [ids["id-1"], ids["id-3"]]


def test_a_bad_receipt_fails_alone(server: Server, sqs: Any, url: str) -> None:
    sqs.send_message_batch(QueueUrl=url, Entries=entries("a", "b"))
    batch = handles(receive(sqs, url))
    batch.insert(1, {"Id": "bad", "ReceiptHandle": "nonsense"})
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=batch)
    assert [entry["Id"] for entry in answer["Successful"]] == ["0", "1"]
    (failed,) = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", "ReceiptHandleIsInvalid", True)
    server.advance(60)
    assert not receive(sqs, url)


def test_messages_that_are_deleted_twice_are_deleted(sqs: Any, url: str) -> None:
    sqs.send_message_batch(QueueUrl=url, Entries=entries("a", "b", "c"))
    batch = handles(receive(sqs, url))
    sqs.delete_message(QueueUrl=url, ReceiptHandle=batch[1]["ReceiptHandle"])
    batch.append({"Id": "again", "ReceiptHandle": batch[0]["ReceiptHandle"]})
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=batch)
    assert [entry["Id"] for entry in answer["Successful"]] == ["0", "1", "2", "again"]


def test_visibility_changes_entry_by_entry(server: Server, sqs: Any, url: str) -> None:
    sqs.send_message_batch(QueueUrl=url, Entries=entries("back", "long", "gone", "too long", "no time"))
    received = receive(sqs, url, VisibilityTimeout=10)
    batch = handles(received)
    for entry, seconds in zip(batch, [0, 100, 100, 43_201, None], strict=True):
        if seconds is not None:
            entry["VisibilityTimeout"] = seconds
    sqs.delete_message(QueueUrl=url, ReceiptHandle=received[2]["ReceiptHandle"])
    answer = sqs.change_message_visibility_batch(QueueUrl=url, Entries=batch)
    assert [entry["Id"] for entry in answer["Successful"]] == ["0", "1"]
    assert {entry["Id"]: entry["Code"] for entry in answer["Failed"]} == {
        "2": "InvalidParameterValue",
        "3": "InvalidParameterValue",
        "4": "MissingParameter",
    }
    assert [message["Body"] for message in receive(sqs, url, VisibilityTimeout=1_000)] == ["back"]
    server.advance(11)
    assert [message["Body"] for message in receive(sqs, url)] == ["too long", "no time"]


def test_relaxed_limits_allow_larger_batches(relaxed: Server) -> None:
    sqs = relaxed.client()
    url = sqs.create_queue(QueueName="large-batches")["QueueUrl"]
    sqs.send_message_batch(QueueUrl=url, Entries=entries(*["x"] * 50))
    assert len(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=50)["Messages"]) == 50
