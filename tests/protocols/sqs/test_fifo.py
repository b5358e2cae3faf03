"""FIFO queues: groups, deduplication, order, blocking; and groups on standard queues."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.protocols.sqs.refusals import refused
from tests.protocols.sqs.serving import ACCOUNT, REGION, Server


def send(sqs: Any, url: str, body: str, group: str = "g", dedup: str | None = None, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = sqs.send_message(
        QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=dedup or body, **more
    )
    return answer


def receive(sqs: Any, url: str, **options: Any) -> list[dict[str, Any]]:
    options = {"MaxNumberOfMessages": 10, **options}
    found: list[dict[str, Any]] = sqs.receive_message(QueueUrl=url, **options).get("Messages", [])
    return found


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def delete(sqs: Any, url: str, messages: list[dict[str, Any]]) -> None:
    for message in messages:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


# -- what a message needs ----------------------------------------------------------------------------------------------


def test_a_group_and_a_dedup_id_are_needed(sqs: Any, fifo_url: str) -> None:
    with refused("MissingParameter") as refusal:
        sqs.send_message(QueueUrl=fifo_url, MessageBody="x", MessageDeduplicationId="d")
    assert refusal.message == "The request must contain the parameter MessageGroupId."
    with refused("InvalidParameterValue") as refusal:
        sqs.send_message(QueueUrl=fifo_url, MessageBody="x", MessageGroupId="g")
    assert refusal.message == (
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
    )


def test_a_batch_in_which_one_lacks_its_group_is_refused_as_a_whole(sqs: Any, fifo_url: str) -> None:
    good = {"Id": "1", "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    with refused("InvalidParameterValue") as refusal:
        sqs.send_message_batch(
            QueueUrl=fifo_url, Entries=[good, {"Id": "2", "MessageBody": "x", "MessageDeduplicationId": "e"}]
        )
    assert refusal.message == "The request must contain the parameter MessageGroupId."
    with refused("InvalidParameterValue"):
        sqs.send_message_batch(
            QueueUrl=fifo_url, Entries=[good, {"Id": "2", "MessageBody": "x", "MessageGroupId": "g"}]
        )
    assert not receive(sqs, fifo_url)


@pytest.mark.parametrize("parameter", ["MessageGroupId", "MessageDeduplicationId"])
@pytest.mark.parametrize("bad", ["", "x" * 129, "with space", "ü", "line\n"])
def test_groups_and_dedup_ids_keep_to_the_rules(sqs: Any, fifo_url: str, parameter: str, bad: str) -> None:
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d", parameter: bad}
    with refused("InvalidParameterValue") as refusal:
        sqs.send_message(QueueUrl=fifo_url, MessageBody="x", **ids)
    assert f"for parameter {parameter} is invalid" in refusal.message


def test_a_group_may_have_every_punctuation_mark(sqs: Any, fifo_url: str) -> None:
    group = "a1!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    send(sqs, fifo_url, "x", group)
    (message,) = receive(sqs, fifo_url, AttributeNames=["MessageGroupId"])
    assert message["Attributes"] == {"MessageGroupId": group}


def test_a_message_has_no_delay_of_its_own(server: Server, sqs: Any, make: Callable[..., str]) -> None:
    url = make("slow", FifoQueue="true", DelaySeconds="5")
    with refused("InvalidParameterValue") as refusal:
        send(sqs, url, "x", DelaySeconds=2)
    assert refusal.message == (
        "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for "
        "this queue type."
    )
    send(sqs, url, "x", DelaySeconds=0)
    assert not receive(sqs, url)
    server.advance(5.1)
    assert bodies(receive(sqs, url)) == ["x"]


def test_a_standard_queue_takes_no_dedup_id(sqs: Any, url: str) -> None:
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageDeduplicationId="d")


def test_system_attributes_tell_of_order(sqs: Any, fifo_url: str) -> None:
    first, second = send(sqs, fifo_url, "a", "g", "d-1"), send(sqs, fifo_url, "b", "g", "d-2")
    assert len(first["SequenceNumber"]) == 20
    assert first["SequenceNumber"] < second["SequenceNumber"]
    messages = receive(sqs, fifo_url, AttributeNames=["All"])
    assert [message["Attributes"]["SequenceNumber"] for message in messages] == [
        first["SequenceNumber"],
        second["SequenceNumber"],
    ]
    assert messages[0]["Attributes"]["MessageDeduplicationId"] == "d-1"
    assert messages[0]["Attributes"]["MessageGroupId"] == "g"


# -- deduplication -----------------------------------------------------------------------------------------------------


def test_the_same_dedup_id_within_five_minutes_is_the_same_message(server: Server, sqs: Any, fifo_url: str) -> None:
    original = send(sqs, fifo_url, "a", dedup="d")
    again = send(sqs, fifo_url, "b", "other-group", dedup="d")
    assert (again["MessageId"], again["SequenceNumber"]) == (original["MessageId"], original["SequenceNumber"])
    delete(sqs, fifo_url, receive(sqs, fifo_url))
    send(sqs, fifo_url, "a", dedup="d")
    assert not receive(sqs, fifo_url)
    server.advance(300)
    assert send(sqs, fifo_url, "c", dedup="d")["MessageId"] != original["MessageId"]
    assert bodies(receive(sqs, fifo_url)) == ["c"]


def test_content_is_a_dedup_id_if_the_queue_says_so(sqs: Any, make: Callable[..., str]) -> None:
    url = make("content", FifoQueue="true", ContentBasedDeduplication="true")
    for _ in range(2):
        sqs.send_message(QueueUrl=url, MessageBody="same", MessageGroupId="g")
    sqs.send_message(QueueUrl=url, MessageBody="same", MessageGroupId="g", MessageDeduplicationId="explicit")
    messages = receive(sqs, url, AttributeNames=["MessageDeduplicationId"])
    assert [message["Attributes"]["MessageDeduplicationId"] for message in messages] == [
        hashlib.sha256(b"same").hexdigest(),
        "explicit",
    ]


def test_dedup_by_group_lets_other_groups_have_the_same_id(sqs: Any, make: Callable[..., str]) -> None:
    url = make("scoped", FifoQueue="true", DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    for group in ("g1", "g2", "g1"):
        send(sqs, url, f"in {group}", group, dedup="d")
    assert sorted(bodies(receive(sqs, url))) == ["in g1", "in g2"]


def test_duplicates_within_a_batch_have_the_originals_number(sqs: Any, fifo_url: str) -> None:
    answer = sqs.send_message_batch(
        QueueUrl=fifo_url,
        Entries=[
            {"Id": str(index), "MessageBody": body, "MessageGroupId": "g", "MessageDeduplicationId": dedup}
            for index, (body, dedup) in enumerate([("a", "1"), ("b", "2"), ("c", "1")])
        ],
    )
    numbers = [entry["SequenceNumber"] for entry in answer["Successful"]]
    assert numbers[0] == numbers[2] != numbers[1]
    assert bodies(receive(sqs, fifo_url)) == ["a", "b"]


# -- order and blocking ------------------------------------------------------------------------------------------------


def test_a_group_in_flight_is_blocked_and_others_flow(server: Server, sqs: Any, fifo_url: str) -> None:
    for body, group in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a"), ("b2", "b")]:
        send(sqs, fifo_url, body, group)
    (a1,) = receive(sqs, fifo_url, MaxNumberOfMessages=1)
    assert a1["Body"] == "a1"
    rest = receive(sqs, fifo_url)
    assert bodies(rest) == ["b1", "b2"]
    assert not receive(sqs, fifo_url)
    delete(sqs, fifo_url, [a1])
    assert bodies(receive(sqs, fifo_url)) == ["a2", "a3"]


def test_a_message_that_comes_back_comes_first(server: Server, sqs: Any, fifo_url: str) -> None:
    for number in range(5):
        send(sqs, fifo_url, str(number))
    first = receive(sqs, fifo_url, MaxNumberOfMessages=2, VisibilityTimeout=5)
    assert bodies(first) == ["0", "1"]
    delete(sqs, fifo_url, first[:1])
    server.advance(6)
    assert bodies(receive(sqs, fifo_url)) == ["1", "2", "3", "4"]


def test_order_holds_across_batches(sqs: Any, fifo_url: str) -> None:
    for batch in range(3):
        sqs.send_message_batch(
            QueueUrl=fifo_url,
            Entries=[
                {
                    "Id": str(index),
                    "MessageBody": str(batch * 10 + index),
                    "MessageGroupId": "g",
                    "MessageDeduplicationId": str(batch * 10 + index),
                }
                for index in range(10)
            ],
        )
    seen: list[str] = []
    while messages := receive(sqs, fifo_url, MaxNumberOfMessages=7):
        seen += bodies(messages)
        delete(sqs, fifo_url, messages)
    assert seen == [str(number) for number in range(30)]


def test_a_delete_with_an_expired_receipt_is_refused(server: Server, sqs: Any, fifo_url: str) -> None:
    send(sqs, fifo_url, "a")
    (old,) = receive(sqs, fifo_url, VisibilityTimeout=1)
    server.advance(2)
    (new,) = receive(sqs, fifo_url)
    with refused("InvalidParameterValue") as refusal:
        delete(sqs, fifo_url, [old])
    assert refusal.message == (
        f"Value {old['ReceiptHandle']} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    )
    answer = sqs.delete_message_batch(
        QueueUrl=fifo_url,
        Entries=[{"Id": each, "ReceiptHandle": handle["ReceiptHandle"]} for each, handle in (("o", old), ("n", new))],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["n"]
    assert [(entry["Id"], entry["Code"]) for entry in answer["Failed"]] == [("o", "InvalidParameterValue")]


def test_the_same_receive_attempt_gets_the_same_messages(server: Server, sqs: Any, fifo_url: str) -> None:
    for number in range(3):
        send(sqs, fifo_url, str(number))
    first = receive(sqs, fifo_url, MaxNumberOfMessages=2, ReceiveRequestAttemptId="try-1", AttributeNames=["All"])
    again = receive(sqs, fifo_url, MaxNumberOfMessages=2, ReceiveRequestAttemptId="try-1", AttributeNames=["All"])
    assert bodies(first) == bodies(again) == ["0", "1"]
    assert not receive(sqs, fifo_url, ReceiveRequestAttemptId="try-2")
    delete(sqs, fifo_url, again)
    assert bodies(receive(sqs, fifo_url)) == ["2"]


def test_a_full_flight_is_an_empty_answer(server: Server, sqs: Any, name: str, fifo_url: str) -> None:
    from penstock.core.commands import ChangeQueue

    server.call(ChangeQueue(name=f"{name}.fifo", changes={"in_flight_max": 1}))
    send(sqs, fifo_url, "a", "g1")
    send(sqs, fifo_url, "b", "g2")
    assert len(receive(sqs, fifo_url)) == 1
    assert not receive(sqs, fifo_url)


def test_dead_lettering_unblocks_the_group(server: Server, sqs: Any, name: str, make: Callable[..., str]) -> None:
    dead = make("dead", FifoQueue="true")
    policy = {"deadLetterTargetArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}-dead.fifo", "maxReceiveCount": 1}
    url = make("work", FifoQueue="true", RedrivePolicy=json.dumps(policy))
    send(sqs, url, "poison")
    send(sqs, url, "fine")
    assert bodies(receive(sqs, url, MaxNumberOfMessages=1, VisibilityTimeout=100)) == ["poison"]
    assert not receive(sqs, url)
    server.advance(101)
    assert bodies(receive(sqs, url)) == ["fine"]
    (letter,) = receive(sqs, dead, AttributeNames=["All"])
    assert (letter["Body"], letter["Attributes"]["MessageGroupId"]) == ("poison", "g")
    assert letter["Attributes"]["MessageDeduplicationId"] == "poison"


# -- fair queues -------------------------------------------------------------------------------------------------------


def test_a_noisy_group_does_not_starve_the_others(sqs: Any, url: str) -> None:
    for number in range(20):
        sqs.send_message(QueueUrl=url, MessageBody=f"noisy {number}", MessageGroupId="noisy")
    sqs.send_message(QueueUrl=url, MessageBody="quiet", MessageGroupId="quiet")
    messages = receive(sqs, url, MaxNumberOfMessages=4, AttributeNames=["MessageGroupId"])
    assert "quiet" in [message["Attributes"]["MessageGroupId"] for message in messages]
    assert len(receive(sqs, url)) == 10
