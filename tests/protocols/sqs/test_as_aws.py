"""What was recorded on AWS, and is not in its reference, or is otherwise there: texts, late receipts, odd forms."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.commands import Receive, Release, Span
from tests.protocols.sqs.raw import error_of, result_of, send, send_form, send_json
from tests.protocols.sqs.refusals import refused
from tests.protocols.sqs.serving import Server


def receive(sqs: Any, url: str, **options: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **options).get(
        "Messages", []
    )
    return messages


# -- requests --


@pytest.mark.parametrize("text", ["true", "True", "TRUE"])
def test_booleans_are_read_in_any_case(sqs: Any, name: str, text: str) -> None:
    attributes = {"FifoQueue": text, "ContentBasedDeduplication": text, "SqsManagedSseEnabled": text}
    url = sqs.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(attributes))["Attributes"]
    assert found == dict.fromkeys(attributes, "true")


def test_an_empty_list_comes_as_an_empty_field_in_query(server: Server, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    fields = {"AttributeName": "", "MessageAttributeName": "", "MessageSystemAttributeName": ""}
    (message,) = result_of(send_form(server, "ReceiveMessage", QueueUrl=url, **fields), "ReceiveMessage")["Message"]
    assert "Attribute" not in message
    assert (
        result_of(send_form(server, "GetQueueAttributes", QueueUrl=url, AttributeName=""), "GetQueueAttributes") == ""
    )


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_without_an_action_is_an_unknown_operation(server: Server, name: str, url: str, method: str) -> None:
    for path in ("/", f"/000000000000/{name}"):
        answer = send(server, method, path)
        assert (answer.status, answer.body) == (404, b"<UnknownOperationException/>\n")


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues"])
def test_a_get_of_a_queue_cannot_create_or_list(server: Server, name: str, url: str, action: str) -> None:
    answer = send(server, "GET", f"/000000000000/{name}?Action={action}&QueueName=other")
    assert answer.status == 400
    said = error_of(answer)
    assert (said["Code"], said["Message"]) == ("InvalidAction", f"The action {action} is not valid for this endpoint.")


@pytest.mark.parametrize("form", ["{name}", "/{name}", "/000000000000/{name}", "http://any/queue/us-east-1/1/{name}"])
def test_a_queue_is_found_by_every_form_of_its_url(sqs: Any, name: str, url: str, form: str) -> None:
    sqs.send_message(QueueUrl=form.format(name=name), MessageBody="x")
    assert [message["Body"] for message in receive(sqs, url)] == ["x"]


@pytest.mark.parametrize("attribute", ["größe", "señal.ñ", "数量"])
def test_attribute_names_may_have_any_letters(sqs: Any, url: str, attribute: str) -> None:
    own = {attribute: {"DataType": "String", "StringValue": "v"}}
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=own)
    (message,) = receive(sqs, url, MessageAttributeNames=[attribute])
    assert message["MessageAttributes"] == own


# -- texts --


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("FifoQueue", "true", "Unknown Attribute FifoQueue."),
        ("ContentBasedDeduplication", "true", "Unknown Attribute ContentBasedDeduplication."),
        ("DeduplicationScope", "queue", "You can specify the DeduplicationScope only when FifoQueue is set to true."),
        (
            "FifoThroughputLimit",
            "perQueue",
            "You can specify the FifoThroughputLimit only when FifoQueue is set to true.",
        ),
    ],
)
def test_what_only_fifo_queues_have_is_refused_in_awss_words(
    sqs: Any, url: str, attribute: str, value: str, message: str
) -> None:
    with refused("InvalidAttributeName") as refusal:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={attribute: value})
    assert refusal.message == message


def test_too_many_tags_and_strange_permissions_are_refused_in_awss_words(sqs: Any, name: str, url: str) -> None:
    with refused("InvalidParameterValue") as refusal:
        sqs.tag_queue(QueueUrl=url, Tags={str(number): "" for number in range(51)})
    assert refusal.message == f"Too many tags added for queue {name}."
    with refused("InvalidParameterValue") as refusal:
        sqs.add_permission(QueueUrl=url, Label="a", AWSAccountIds=["111111111111"], Actions=["CreateQueue"])
    assert refusal.message == (
        "Value SQS:CreateQueue for parameter ActionName is invalid. "
        "Reason: Only the queue owner is allowed to invoke this action."
    )


# -- defaults --


def test_encryption_by_sqs_is_shown_as_on_unless_it_is_not(sqs: Any, url: str) -> None:
    names = ["SqsManagedSseEnabled", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds"]

    def shown() -> dict[str, str]:
        found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return found

    assert shown() == {"SqsManagedSseEnabled": "true"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": "alias/key"})
    assert shown() == {
        "SqsManagedSseEnabled": "false",
        "KmsMasterKeyId": "alias/key",
        "KmsDataKeyReusePeriodSeconds": "300",
    }


def test_a_purge_forgets_what_was_sent_for_deduplication_too(sqs: Any, fifo_url: str) -> None:
    message = {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    for _ in range(2):
        sqs.send_message(QueueUrl=fifo_url, **message)
        sqs.send_message(QueueUrl=fifo_url, **message)
        assert len(receive(sqs, fifo_url)) == 1
        sqs.purge_queue(QueueUrl=fifo_url)


def test_forgotten_deduplication_ids_stay_forgotten_over_a_restart(tmp_path: Any) -> None:
    message = {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    server = Server(tmp_path / "data")
    sqs = server.client()
    url = sqs.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, **message)
    sqs.purge_queue(QueueUrl=url)
    server.stop()
    server = Server(tmp_path / "data")
    try:
        sqs = server.client()
        sqs.send_message(QueueUrl="q.fifo", **message)
        assert len(receive(sqs, "q.fifo")) == 1
    finally:
        server.stop()


# -- visibility --


def test_a_late_change_in_a_fifo_queue_is_refused(server: Server, sqs: Any, fifo_url: str) -> None:
    sqs.send_message(QueueUrl=fifo_url, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
    (message,) = receive(sqs, fifo_url, VisibilityTimeout=5)
    server.advance(6)
    with refused("InvalidParameterValue"):
        sqs.change_message_visibility(QueueUrl=fifo_url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=20)
    assert len(receive(sqs, fifo_url)) == 1


# -- dead letters --


def test_a_dead_letter_tells_why_to_who_asks_by_name(
    server: Server, sqs: Any, name: str, make: Callable[..., str]
) -> None:
    dead = make("dead")
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    source = make("source", RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}))
    sqs.send_message(
        QueueUrl=source,
        MessageBody="x",
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988"}},
    )
    delivery = server.call(Receive(queue=f"{name}-source"))
    (run,) = delivery.runs
    span = Span(run.chunk.base + run.start, run.chunk.base + run.stop - 1, run.attempt)
    server.call(Release(queue=f"{name}-source", spans=[span], error="the printer is on fire"))
    server.advance(1)
    names = ["PenstockDeadLetterReason", "PenstockDeadLetterReceiveCount", "AWSTraceHeader"]
    (message,) = receive(sqs, dead, MessageSystemAttributeNames=names, VisibilityTimeout=0)
    assert message["Attributes"] == {
        "PenstockDeadLetterReason": "the printer is on fire",
        "PenstockDeadLetterReceiveCount": "1",
        "AWSTraceHeader": "Root=1-5759e988",
    }
    (message,) = receive(sqs, dead, MessageSystemAttributeNames=["All"])
    assert not [key for key in message["Attributes"] if key.startswith("Penstock")]


def test_a_trace_header_goes_with_a_message_through_every_hop(
    server: Server, sqs: Any, name: str, make: Callable[..., str]
) -> None:
    dead = make("dead")
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    source = make("source", RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}))
    own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988"}}
    entry = {"Id": "1", "MessageBody": "x", "MessageSystemAttributes": own}
    (sent,) = sqs.send_message_batch(QueueUrl=source, Entries=[entry])["Successful"]
    assert "MD5OfMessageSystemAttributes" in sent
    asked = {"MessageSystemAttributeNames": ["AWSTraceHeader"]}
    for url in (source, dead):
        (message,) = receive(sqs, url, **asked, VisibilityTimeout=1)
        assert message["Attributes"] == {"AWSTraceHeader": "Root=1-5759e988"}
        assert message["MessageId"] == sent["MessageId"]
        server.advance(2)
    sqs.start_message_move_task(SourceArn=arn)
    server.advance(1)
    (message,) = receive(sqs, source, **asked)
    assert message["Attributes"] == {"AWSTraceHeader": "Root=1-5759e988"}


def test_the_trace_header_of_a_request_is_that_of_its_messages(server: Server, sqs: Any, url: str) -> None:
    header = {"X-Amzn-Trace-Id": "Root=1-5759e988"}
    send_json(server, "SendMessage", {"QueueUrl": url, "MessageBody": "x"}, **header)
    entries = [{"Id": "1", "MessageBody": "y"}]
    send_json(server, "SendMessageBatch", {"QueueUrl": url, "Entries": entries}, **header)
    messages = receive(sqs, url, MessageSystemAttributeNames=["AWSTraceHeader"])
    assert [message["Attributes"] for message in messages] == [{"AWSTraceHeader": "Root=1-5759e988"}] * 2


# -- moves --


def test_a_move_tasks_handle_holds_a_uuid_and_the_source(sqs: Any, make: Callable[..., str]) -> None:
    dead = make("dead")
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    make("source", RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}))
    handle = json.loads(base64.b64decode(sqs.start_message_move_task(SourceArn=arn)["TaskHandle"]))
    assert set(handle) == {"taskId", "sourceArn"}
    assert handle["sourceArn"] == arn
    assert uuid.UUID(handle["taskId"]).version == 4
    other = handle | {"taskId": str(uuid.uuid4())}
    with refused("ResourceNotFoundException", 404) as refusal:
        sqs.cancel_message_move_task(TaskHandle=base64.b64encode(json.dumps(other).encode()).decode())
    assert refusal.message == "Task does not exist."


# -- xml --


def test_an_empty_result_is_an_empty_element(server: Server, url: str) -> None:
    for action in ("ReceiveMessage", "ListQueueTags"):
        assert f"<{action}Result/>".encode() in send_form(server, action, QueueUrl=url).body
