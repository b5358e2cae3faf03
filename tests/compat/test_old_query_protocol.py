"""Old clients: every action by the Query protocol with botocore's own parts, beside the JSON protocol."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.compat.query_client import query_client
from tests.compat.server import ACCOUNT, REGION, Server, until

ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": "a & <b> ü \U0001f980"},
    "number": {"DataType": "Number.price", "StringValue": "1.50"},
    "raw": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
}
SYSTEM_ATTRIBUTES = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}


class Answers:
    """A client whose answers are without metadata."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(**parameters: Any) -> Any:
            answer = getattr(self._client, method)(**parameters)
            assert answer.pop("ResponseMetadata")["RequestId"]
            return answer

        return call


@pytest.fixture(scope="module")
def old(server: Server) -> Any:
    return Answers(query_client(server))


@pytest.fixture(scope="module")
def new(server: Server) -> Any:
    return Answers(server.client())


def arn(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


def test_queues_attributes_tags_and_permissions_are_the_same_in_both(old: Any, new: Any, name: str) -> None:
    attributes = {"VisibilityTimeout": "7", "DelaySeconds": "0"}
    url = old.create_queue(QueueName=name, Attributes=attributes, tags={"a": "1", "b": "<&>"})["QueueUrl"]
    assert new.create_queue(QueueName=name, Attributes=attributes) == {"QueueUrl": url}
    assert old.get_queue_url(QueueName=name) == new.get_queue_url(QueueName=name)
    old.create_queue(QueueName=f"{name}-2")
    pages = [client.list_queues(QueueNamePrefix=name, MaxResults=1) for client in (old, new)]
    assert pages[0]["QueueUrls"] == pages[1]["QueueUrls"] == [url]
    assert old.list_queues(QueueNamePrefix=name, MaxResults=1, NextToken=pages[1]["NextToken"])["QueueUrls"]
    old.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "2048", "VisibilityTimeout": "600"})
    old.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["111111111111"], Actions=["SendMessage"])
    told = old.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    assert told == new.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    assert (told["Attributes"]["MaximumMessageSize"], told["Attributes"]["VisibilityTimeout"]) == ("2048", "600")
    assert json.loads(told["Attributes"]["Policy"])["Statement"][0]["Sid"] == "l"
    old.remove_permission(QueueUrl=url, Label="l")
    old.tag_queue(QueueUrl=url, Tags={"c": "ü", "a": "2"})
    old.untag_queue(QueueUrl=url, TagKeys=["b"])
    assert old.list_queue_tags(QueueUrl=url) == new.list_queue_tags(QueueUrl=url) == {"Tags": {"a": "2", "c": "ü"}}
    old.delete_queue(QueueUrl=url)
    with pytest.raises(ClientError, match="NonExistentQueue"):
        new.get_queue_url(QueueName=name)


def send_both(old: Any, new: Any, **parameters: Any) -> list[Any]:
    answers = [client.send_message(**parameters) for client in (old, new)]
    digests = [{key: value for key, value in each.items() if key.startswith("MD5")} for each in answers]
    assert digests[0] == digests[1]
    return answers


def test_a_message_is_sent_received_and_settled_the_same_by_both(old: Any, new: Any, url: str) -> None:
    parameters = {"MessageAttributes": ATTRIBUTES, "MessageSystemAttributes": SYSTEM_ATTRIBUTES}
    sent = send_both(old, new, QueueUrl=url, MessageBody="b & <o> \t\r\n ü", DelaySeconds=0, **parameters)
    wanted = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"], "VisibilityTimeout": 600}
    got = [client.receive_message(QueueUrl=url, **wanted)["Messages"][0] for client in (old, new)]
    assert [message["MessageId"] for message in got] == [each["MessageId"] for each in sent]
    for message in got:
        assert message["Body"] == "b & <o> \t\r\n ü"
        assert message["MessageAttributes"] == ATTRIBUTES
        assert message["Attributes"]["AWSTraceHeader"] == "Root=1"
        assert message["MD5OfMessageAttributes"] == sent[0]["MD5OfMessageAttributes"]
    assert set(got[0]["Attributes"]) == set(got[1]["Attributes"])
    old.change_message_visibility(QueueUrl=url, ReceiptHandle=got[0]["ReceiptHandle"], VisibilityTimeout=0)
    (again,) = new.receive_message(QueueUrl=url, MessageSystemAttributeNames=["ApproximateReceiveCount"])["Messages"]
    assert (again["MessageId"], again["Attributes"]) == (got[0]["MessageId"], {"ApproximateReceiveCount": "2"})
    old.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    old.delete_message(QueueUrl=url, ReceiptHandle=got[1]["ReceiptHandle"])
    assert old.receive_message(QueueUrl=url) == {}


def test_batches_succeed_and_fail_entry_by_entry(old: Any, new: Any, url: str) -> None:
    entries: list[dict[str, Any]] = [
        {"Id": "good", "MessageBody": "1", "MessageAttributes": ATTRIBUTES},
        {"Id": "bad", "MessageBody": "2", "DelaySeconds": 901},
        {"Id": "fine", "MessageBody": "3", "MessageSystemAttributes": SYSTEM_ATTRIBUTES},
    ]
    answers = [client.send_message_batch(QueueUrl=url, Entries=entries) for client in (old, new)]
    assert answers[0]["Failed"] == answers[1]["Failed"]
    assert [each["Id"] for each in answers[0]["Successful"]] == ["good", "fine"]
    for answer in answers:
        assert [set(each) for each in answer["Successful"]] == [
            {"Id", "MessageId", "MD5OfMessageBody", "MD5OfMessageAttributes"},
            {"Id", "MessageId", "MD5OfMessageBody", "MD5OfMessageSystemAttributes"},
        ]
    messages = old.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in messages] == ["1", "3", "1", "3"]
    handles = [message["ReceiptHandle"] for message in messages] + ["nonsense"]
    settled = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
    changes = [{**each, "VisibilityTimeout": 60} for each in settled]
    for answer in (
        old.change_message_visibility_batch(QueueUrl=url, Entries=changes),
        old.delete_message_batch(QueueUrl=url, Entries=settled),
    ):
        assert [each["Id"] for each in answer["Successful"]] == ["0", "1", "2", "3"]
        (failed,) = answer["Failed"]
        assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("4", "ReceiptHandleIsInvalid", True)


def test_fifo_has_its_sequence_numbers(old: Any, name: str) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = old.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)["QueueUrl"]
    sent = [old.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g") for body in ("1", "1", "2")]
    numbers = [each["SequenceNumber"] for each in sent]
    assert numbers[0] == numbers[1] < numbers[2]
    got = old.receive_message(QueueUrl=url, MaxNumberOfMessages=10, ReceiveRequestAttemptId="a", AttributeNames=["All"])
    assert [message["Body"] for message in got["Messages"]] == ["1", "2"]
    assert [message["Attributes"]["SequenceNumber"] for message in got["Messages"]] == [numbers[0], numbers[2]]


def test_dead_letters_move(old: Any, new: Any, name: str) -> None:
    dead_url = old.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    policy = json.dumps({"deadLetterTargetArn": arn(f"{name}-dead"), "maxReceiveCount": "1"})
    url = old.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})["QueueUrl"]
    sources = old.list_dead_letter_source_queues(QueueUrl=dead_url)
    assert sources == new.list_dead_letter_source_queues(QueueUrl=dead_url) == {"queueUrls": [url]}
    old.send_message_batch(QueueUrl=url, Entries=[{"Id": str(n), "MessageBody": str(n)} for n in range(10)])
    old.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    until(lambda: "Messages" not in new.receive_message(QueueUrl=url, VisibilityTimeout=0))
    started = old.start_message_move_task(SourceArn=arn(f"{name}-dead"), MaxNumberOfMessagesPerSecond=1)
    source = {"SourceArn": arn(f"{name}-dead")}
    for listed in (old.list_message_move_tasks(**source), new.list_message_move_tasks(**source)):
        (task,) = listed["Results"]
        assert (task["Status"], task["TaskHandle"]) == ("RUNNING", started["TaskHandle"])
        assert (task["MaxNumberOfMessagesPerSecond"], task["ApproximateNumberOfMessagesToMove"]) == (1, 10)
    cancelled = old.cancel_message_move_task(TaskHandle=started["TaskHandle"])
    assert 0 <= cancelled["ApproximateNumberOfMessagesMoved"] < 10
    old.purge_queue(QueueUrl=dead_url)


REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("get_queue_url", {"QueueName": "never-made"}),
    ("create_queue", {"QueueName": "a b"}),
    ("create_queue", {"QueueName": "a", "Attributes": {"Nonsense": "1"}}),
    ("create_queue", {"QueueName": "a", "Attributes": {"DelaySeconds": "901"}}),
    ("send_message", {"MessageBody": ""}),
    ("send_message", {"MessageBody": "\x00"}),
    ("send_message", {"MessageBody": "x", "DelaySeconds": -1}),
    ("send_message", {"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "Other", "StringValue": "x"}}}),
    ("send_message_batch", {"Entries": [{"Id": "a", "MessageBody": "x"}] * 2}),
    ("send_message_batch", {"Entries": [{"Id": str(n), "MessageBody": "x"} for n in range(11)]}),
    ("send_message_batch", {"Entries": [{"Id": "a b", "MessageBody": "x"}]}),
    ("receive_message", {"MaxNumberOfMessages": 11}),
    ("receive_message", {"WaitTimeSeconds": 21}),
    ("delete_message", {"ReceiptHandle": "nonsense"}),
    ("change_message_visibility", {"ReceiptHandle": "nonsense", "VisibilityTimeout": 1}),
    ("change_message_visibility", {"ReceiptHandle": "x", "VisibilityTimeout": 43_201}),
    ("get_queue_attributes", {"AttributeNames": ["Nonsense"]}),
    ("add_permission", {"Label": "l", "AWSAccountIds": ["1"], "Actions": ["Nonsense"]}),
    ("remove_permission", {"Label": "never-made"}),
    ("tag_queue", {"Tags": {"k" * 129: "v"}}),
    ("start_message_move_task", {"SourceArn": arn("never-made")}),
    ("cancel_message_move_task", {"TaskHandle": "nonsense"}),
    ("list_message_move_tasks", {"SourceArn": "nonsense"}),
]


@pytest.mark.parametrize(("method", "parameters"), REFUSALS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_refusal_has_the_same_code_message_and_status_in_both(
    old: Any, new: Any, url: str, method: str, parameters: dict[str, Any]
) -> None:
    needs_url = method not in ("get_queue_url", "create_queue") and "move_task" not in method
    refusals = []
    for client in (old, new):
        with pytest.raises(ClientError) as refused:
            getattr(client, method)(**({"QueueUrl": url} if needs_url else {}), **parameters)
        error = refused.value.response["Error"]
        message = error["Message"].replace(" for this wsdl version", "")  # which AWS says in Query only
        refusals.append((error["Code"], message, refused.value.response["ResponseMetadata"]["HTTPStatusCode"]))
    assert refusals[0] == refusals[1]
    assert 400 <= refusals[0][2] < 500


def test_every_action_is_used_here(sqs: Any) -> None:
    source = Path(__file__).read_text()
    assert len(sqs.meta.method_to_api_mapping) == 23
    assert [method for method in sqs.meta.method_to_api_mapping if f"old.{method}(" not in source] == []
