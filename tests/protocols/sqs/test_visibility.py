"""Visibility as AWS was observed to have it: late receipts, groups of FIFO queues, and the counts meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.sqs.refusals import refused
from tests.protocols.sqs.serving import Server


def receive(sqs: Any, url: str, count: int = 10, **options: Any) -> list[dict[str, Any]]:
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count, **options)
    messages: list[dict[str, Any]] = answer.get("Messages", [])
    return messages


def bodies(sqs: Any, url: str, count: int = 10, **options: Any) -> list[str]:
    return [message["Body"] for message in receive(sqs, url, count, **options)]


def send_all(sqs: Any, url: str, *texts: str) -> None:
    """Messages of a FIFO queue: `g1-m2` is one of group `g1`."""
    for text in texts:
        sqs.send_message(
            QueueUrl=url, MessageBody=text, MessageGroupId=text.partition("-")[0], MessageDeduplicationId=text
        )


def counts(sqs: Any, url: str) -> tuple[int, int]:
    """Visible, and in flight."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return int(found[names[0]]), int(found[names[1]])


def change(sqs: Any, url: str, message: dict[str, Any], seconds: int) -> None:
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds)


# -- standard queues --


def test_a_visibility_that_ran_out_can_still_be_changed(server: Server, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = receive(sqs, url, VisibilityTimeout=2)
    for _ in range(3):
        server.advance(3)
        change(sqs, url, message, 2)
        assert receive(sqs, url) == []
        assert counts(sqs, url) == (0, 1)
    server.advance(3)
    (again,) = receive(sqs, url, MessageSystemAttributeNames=["ApproximateReceiveCount"])
    assert again["Attributes"] == {"ApproximateReceiveCount": "2"}


def test_a_late_change_in_a_batch_counts_as_well(server: Server, sqs: Any, url: str) -> None:
    for text in "ab":
        sqs.send_message(QueueUrl=url, MessageBody=text)
    messages = receive(sqs, url, VisibilityTimeout=2)
    server.advance(3)
    entries = [
        {"Id": str(at), "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 10}
        for at, message in enumerate(messages)
    ]
    answer = sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == ["0", "1"]
    assert receive(sqs, url) == []
    server.advance(11)
    assert sorted(bodies(sqs, url)) == ["a", "b"]


def test_an_earlier_receipt_changes_the_visibility_of_whoever_has_the_message(
    server: Server, sqs: Any, url: str
) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (first,) = receive(sqs, url, VisibilityTimeout=0)
    (second,) = receive(sqs, url, VisibilityTimeout=30)
    assert first["ReceiptHandle"] != second["ReceiptHandle"]
    change(sqs, url, first, 0)
    assert bodies(sqs, url) == ["x"]


def test_a_late_delete_deletes(server: Server, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = receive(sqs, url, VisibilityTimeout=2)
    server.advance(3)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert counts(sqs, url) == (0, 0)


def test_a_deleted_messages_visibility_cannot_be_changed(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = receive(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    with refused("InvalidParameterValue") as refusal:
        change(sqs, url, message, 20)
    assert refusal.message == (
        f"Value {message['ReceiptHandle']} for parameter ReceiptHandle is invalid. "
        "Reason: Message does not exist or is not available for visibility timeout change."
    )


def test_a_visibility_of_zero_hides_nothing_and_the_next_receive_decides_anew(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert bodies(sqs, url, VisibilityTimeout=0) == ["x"]
    assert counts(sqs, url) == (1, 0)
    assert bodies(sqs, url, VisibilityTimeout=3) == ["x"]
    assert bodies(sqs, url) == []


def test_a_message_whose_time_ran_out_comes_before_newer_ones(server: Server, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="old")
    assert bodies(sqs, url, VisibilityTimeout=3) == ["old"]
    sqs.send_message(QueueUrl=url, MessageBody="new")
    server.advance(4)
    assert bodies(sqs, url, 1) == ["old"]


# -- groups --


def test_messages_of_a_group_come_next_to_each_other(sqs: Any, fifo_url: str) -> None:
    send_all(sqs, fifo_url, "g1-m1", "g2-m1", "g1-m2", "g1-m3")
    assert bodies(sqs, fifo_url) == ["g1-m1", "g1-m2", "g1-m3", "g2-m1"]


def test_a_group_is_hidden_as_a_whole_and_comes_back_behind_the_others(server: Server, sqs: Any, fifo_url: str) -> None:
    send_all(sqs, fifo_url, "g1-m1", "g1-m2", "g1-m3", "g1-m4", "g2-m1", "g3-m1")
    assert bodies(sqs, fifo_url, 2, VisibilityTimeout=1) == ["g1-m1", "g1-m2"]
    assert bodies(sqs, fifo_url, 1, VisibilityTimeout=1) == ["g2-m1"]
    server.advance(2)
    assert bodies(sqs, fifo_url, VisibilityTimeout=0) == ["g3-m1", "g1-m1", "g1-m2", "g1-m3", "g1-m4", "g2-m1"]


def test_a_visibility_of_zero_does_not_hide_a_group(sqs: Any, fifo_url: str) -> None:
    send_all(sqs, fifo_url, "g1-m1", "g2-m1", "g2-m2", "g3-m1", "g1-m2")
    assert bodies(sqs, fifo_url, 3, VisibilityTimeout=0) == ["g1-m1", "g1-m2", "g2-m1"]
    assert bodies(sqs, fifo_url, VisibilityTimeout=0) == ["g3-m1", "g1-m1", "g1-m2", "g2-m1", "g2-m2"]


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_group_is_visible_as_soon_as_one_of_its_messages_is(
    server: Server, sqs: Any, fifo_url: str, seconds: int
) -> None:
    send_all(sqs, fifo_url, "g1-m1", "g1-m2", "g2-m1")
    first, _ = receive(sqs, fifo_url, 2)
    change(sqs, fifo_url, first, seconds)
    server.advance(seconds + 1)
    assert bodies(sqs, fifo_url, 3) == ["g2-m1", "g1-m1"]


def test_a_group_whose_messages_were_deleted_goes_on(sqs: Any, fifo_url: str) -> None:
    send_all(sqs, fifo_url, "g1-m1", "g2-m1", "g1-m2", "g2-m2", "g1-m3", "g1-m4", "g3-m1")
    for message in receive(sqs, fifo_url, 2):
        sqs.delete_message(QueueUrl=fifo_url, ReceiptHandle=message["ReceiptHandle"])
    assert bodies(sqs, fifo_url) in (
        ["g2-m1", "g2-m2", "g1-m3", "g1-m4", "g3-m1"],
        ["g2-m1", "g2-m2", "g3-m1", "g1-m3", "g1-m4"],
    )


def test_a_group_stays_hidden_while_one_of_its_messages_is_in_flight(sqs: Any, fifo_url: str) -> None:
    send_all(sqs, fifo_url, "g1-m1", "g2-m1", "g1-m2", "g2-m2", "g1-m3", "g1-m4", "g3-m1")
    first, _ = receive(sqs, fifo_url, 2)
    sqs.delete_message(QueueUrl=fifo_url, ReceiptHandle=first["ReceiptHandle"])
    assert bodies(sqs, fifo_url) == ["g2-m1", "g2-m2", "g3-m1"]


def test_a_late_receipt_of_a_fifo_queue_has_expired(server: Server, sqs: Any, fifo_url: str) -> None:
    send_all(sqs, fifo_url, "g1-m1")
    (message,) = receive(sqs, fifo_url, VisibilityTimeout=1)
    server.advance(2)
    handle = message["ReceiptHandle"]
    with refused("InvalidParameterValue") as refusal:
        sqs.delete_message(QueueUrl=fifo_url, ReceiptHandle=handle)
    assert refusal.message == (
        f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    )
    answer = sqs.delete_message_batch(QueueUrl=fifo_url, Entries=[{"Id": "1", "ReceiptHandle": handle}])
    assert [entry["Message"] for entry in answer["Failed"]] == [refusal.message]
    with refused("InvalidParameterValue"):
        change(sqs, fifo_url, message, 20)
    assert bodies(sqs, fifo_url) == ["g1-m1"]


def test_a_delete_in_a_fifo_queue_may_be_repeated(sqs: Any, fifo_url: str) -> None:
    send_all(sqs, fifo_url, "g1-m1")
    (message,) = receive(sqs, fifo_url)
    for _ in range(3):
        sqs.delete_message(QueueUrl=fifo_url, ReceiptHandle=message["ReceiptHandle"])


# -- counts --


def test_messages_that_wait_for_their_group_count_as_visible(sqs: Any, fifo_url: str) -> None:
    send_all(sqs, fifo_url, "g1-m1", "g1-m2", "g1-m3", "g2-m1", "g3-m1")
    assert counts(sqs, fifo_url) == (5, 0)
    messages = receive(sqs, fifo_url, 4)
    assert counts(sqs, fifo_url) == (1, 4)
    for message in messages:
        sqs.delete_message(QueueUrl=fifo_url, ReceiptHandle=message["ReceiptHandle"])
    assert counts(sqs, fifo_url) == (1, 0)
    assert len(receive(sqs, fifo_url)) == 1


def test_a_blocked_groups_other_messages_are_counted_as_visible(sqs: Any, fifo_url: str) -> None:
    send_all(sqs, fifo_url, "g1-m1", "g1-m2", "g1-m3")
    assert len(receive(sqs, fifo_url, 1)) == 1
    assert receive(sqs, fifo_url) == []
    assert counts(sqs, fifo_url) == (2, 1)
