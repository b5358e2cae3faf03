"""Dead letters and message move tasks."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.protocols.sqs.refusals import refused
from tests.protocols.sqs.serving import ACCOUNT, REGION, Server


def arn(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


def arn_of(url: str) -> str:
    return arn(url.rpartition("/")[2])


def receive(sqs: Any, url: str, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"], **options
    ).get("Messages", [])
    return found


Pair = tuple[str, str]


@pytest.fixture
def pair(make: Callable[..., str], name: str) -> Pair:
    """A queue, and where its messages go after two failures."""
    dead = make("dead")
    policy = json.dumps({"deadLetterTargetArn": arn(f"{name}-dead"), "maxReceiveCount": 2})
    return make("work", RedrivePolicy=policy), dead


def kill(server: Server, sqs: Any, url: str) -> None:
    """Let every message fail as often as it may."""
    for _ in range(2):
        assert receive(sqs, url, VisibilityTimeout=1)
        server.advance(2)


def test_a_message_that_failed_often_enough_goes_to_the_dead_letter_queue(server: Server, sqs: Any, pair: Pair) -> None:
    work, dead = pair
    attributes = {"a": {"DataType": "Number.x", "StringValue": "1.0"}}
    sent = sqs.send_message(QueueUrl=work, MessageBody="poison", MessageAttributes=attributes)
    (first,) = receive(sqs, work, VisibilityTimeout=1)
    server.advance(2)
    assert not receive(sqs, dead)
    (second,) = receive(sqs, work, VisibilityTimeout=1)
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    server.advance(2)
    assert not receive(sqs, work)
    (letter,) = receive(sqs, dead)
    assert (letter["MessageId"], letter["Body"]) == (sent["MessageId"], "poison")
    assert letter["MessageAttributes"] == attributes
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(work)
    assert letter["Attributes"]["SentTimestamp"] == first["Attributes"]["SentTimestamp"]
    assert letter["Attributes"]["ApproximateReceiveCount"] == "3"


def finished(sqs: Any, source_arn: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        (task,) = sqs.list_message_move_tasks(SourceArn=source_arn)["Results"]
        if task["Status"] != "RUNNING":
            found: dict[str, Any] = task
            return found
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_messages_are_moved_back_to_where_they_came_from(server: Server, sqs: Any, pair: Pair) -> None:
    work, dead = pair
    for number in range(3):
        sqs.send_message(QueueUrl=work, MessageBody=str(number))
    kill(server, sqs, work)
    handle = sqs.start_message_move_task(SourceArn=arn_of(dead))["TaskHandle"]
    assert handle
    task = finished(sqs, arn_of(dead))
    started_ms = task.pop("StartedTimestamp")
    assert abs(server.clock.now_ms() - started_ms) < 60_000
    assert task == {
        "Status": "COMPLETED",
        "SourceArn": arn_of(dead),
        "ApproximateNumberOfMessagesMoved": 3,
        "ApproximateNumberOfMessagesToMove": 3,
    }
    assert not receive(sqs, dead)
    back = receive(sqs, work)
    assert sorted(message["Body"] for message in back) == ["0", "1", "2"]
    assert {message["Attributes"]["ApproximateReceiveCount"] for message in back} == {"1"}
    assert all("DeadLetterQueueSourceArn" not in message["Attributes"] for message in back)


def test_messages_are_moved_elsewhere(server: Server, sqs: Any, pair: Pair, make: Callable[..., str]) -> None:
    work, dead = pair
    other = make("other")
    sqs.send_message(QueueUrl=work, MessageBody="x")
    kill(server, sqs, work)
    sqs.start_message_move_task(SourceArn=arn_of(dead), DestinationArn=arn_of(other), MaxNumberOfMessagesPerSecond=500)
    task = finished(sqs, arn_of(dead))
    assert (task["Status"], task["DestinationArn"]) == ("COMPLETED", arn_of(other))
    assert task["MaxNumberOfMessagesPerSecond"] == 500
    (message,) = receive(sqs, other)
    assert "DeadLetterQueueSourceArn" not in message["Attributes"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_slow_move_shows_its_progress_and_can_be_cancelled(server: Server, sqs: Any, pair: Pair) -> None:
    work, dead = pair
    sqs.send_message_batch(QueueUrl=work, Entries=[{"Id": str(n), "MessageBody": str(n)} for n in range(10)])
    kill(server, sqs, work)
    handle = sqs.start_message_move_task(SourceArn=arn_of(dead), MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    with refused("InvalidParameterValue") as refusal:
        sqs.start_message_move_task(SourceArn=arn_of(dead))
    assert refusal.message == (
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
    )
    server.advance(3)
    (task,) = sqs.list_message_move_tasks(SourceArn=arn_of(dead))["Results"]
    assert (task["Status"], task["TaskHandle"]) == ("RUNNING", handle)
    assert 1 <= task["ApproximateNumberOfMessagesMoved"] < 10
    moved = sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    assert 1 <= moved < 10
    (task,) = sqs.list_message_move_tasks(SourceArn=arn_of(dead))["Results"]
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("CANCELLED", moved)
    assert "TaskHandle" not in task
    assert len(receive(sqs, work)) == moved
    with refused("InvalidParameterValue"):
        sqs.cancel_message_move_task(TaskHandle=handle)


def test_the_latest_task_is_listed_or_up_to_ten(server: Server, sqs: Any, pair: Pair) -> None:
    _, dead = pair
    for _ in range(3):
        sqs.start_message_move_task(SourceArn=arn_of(dead))
        finished(sqs, arn_of(dead))
    assert len(sqs.list_message_move_tasks(SourceArn=arn_of(dead), MaxResults=10)["Results"]) == 3
    for bad in (0, 11):
        with refused("InvalidParameterValue"):
            sqs.list_message_move_tasks(SourceArn=arn_of(dead), MaxResults=bad)


def test_a_move_needs_a_dead_letter_queue_and_queues_that_exist(sqs: Any, pair: Pair, make: Callable[..., str]) -> None:
    work, dead = pair
    with refused("InvalidParameterValue") as refusal:
        sqs.start_message_move_task(SourceArn=arn_of(work))
    assert refusal.message == "Source queue must be configured as a Dead Letter Queue."
    with refused("ResourceNotFoundException", 404) as refusal:
        sqs.start_message_move_task(SourceArn=arn("not-there"))
    assert refusal.message == "The resource that you specified for the SourceArn parameter doesn't exist."
    with refused("ResourceNotFoundException", 404) as refusal:
        sqs.start_message_move_task(SourceArn=arn_of(dead), DestinationArn=arn("not-there"))
    assert refusal.message == "The resource that you specified for the DestinationArn parameter doesn't exist."
    with refused("ResourceNotFoundException", 404):
        sqs.list_message_move_tasks(SourceArn=arn("not-there"))
    for bad in (0, 501):
        with refused("InvalidParameterValue"):
            sqs.start_message_move_task(SourceArn=arn_of(dead), MaxNumberOfMessagesPerSecond=bad)
    for bad_arn in ("nonsense", "arn:aws:sns:us-east-1:000000000000:x"):
        with refused("InvalidParameterValue"):
            sqs.start_message_move_task(SourceArn=bad_arn)
    with refused("InvalidParameterValue"):
        sqs.start_message_move_task(SourceArn=arn_of(dead), DestinationArn=arn_of(dead))
    with refused("AWS.SimpleQueueService.UnsupportedOperation"):
        ordered = make("ordered", FifoQueue="true")
        sqs.start_message_move_task(SourceArn=arn_of(dead), DestinationArn=arn_of(ordered))


def task_handle(task: str, source: str) -> str:
    return base64.b64encode(json.dumps({"taskId": task, "sourceArn": source}).encode()).decode()


def test_handles_that_were_not_given_out_are_refused(sqs: Any, pair: Pair) -> None:
    _, dead = pair
    deep = b'{"x":' + b"[" * 5_000
    for bad in ("nonsense", "ü", base64.b64encode(b"[]").decode(), base64.b64encode(deep).decode()):
        with refused("InvalidParameterValue") as refusal:
            sqs.cancel_message_move_task(TaskHandle=bad)
        assert refusal.message == "Value for parameter TaskHandle is invalid."
    with refused("ResourceNotFoundException", 404) as refusal:
        sqs.cancel_message_move_task(TaskHandle=task_handle("7", arn("not-there")))
    assert refusal.message == "The resource that you specified for the SourceArn parameter doesn't exist."
    for unknown in ("999999", "not-a-number"):
        with refused("ResourceNotFoundException", 404) as refusal:
            sqs.cancel_message_move_task(TaskHandle=task_handle(unknown, arn_of(dead)))
        assert refusal.message == "Task does not exist."
