"""AWS JSON 1.0 on the wire: shapes, headers, addresses, errors; and requests that make no sense."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.protocols.sqs.raw import Answer, send, send_json
from tests.protocols.sqs.serving import ACCOUNT, Server


def test_an_answer_has_the_protocols_headers(server: Server, url: str) -> None:
    answer = send_json(server, "SendMessage", {"QueueUrl": url, "MessageBody": "x"})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/x-amz-json-1.0"
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", answer.headers["x-amzn-requestid"])
    assert set(answer.json) == {"MD5OfMessageBody", "MessageId"}


def test_an_answer_without_content_is_empty(server: Server, url: str) -> None:
    assert send_json(server, "PurgeQueue", {"QueueUrl": url}).body == b""
    assert send_json(server, "ReceiveMessage", {"QueueUrl": url}).body == b"{}"
    assert send_json(server, "ListQueues", {"QueueNamePrefix": "nobody-has-this"}).body == b"{}"


def test_numbers_are_numbers_and_binary_is_base64(server: Server, url: str) -> None:
    attributes = {"b": {"DataType": "Binary", "BinaryValue": "AP8="}}
    send_json(server, "SendMessage", {"QueueUrl": url, "MessageBody": "x", "MessageAttributes": attributes})
    answer = send_json(server, "ReceiveMessage", {"QueueUrl": url, "MessageAttributeNames": ["All"]})
    assert answer.json["Messages"][0]["MessageAttributes"] == attributes


# -- addresses ---------------------------------------------------------------------------------------------------------


def test_queue_urls_follow_the_host_that_the_client_used(server: Server, name: str, url: str) -> None:
    for host in ("sqs.example.com", "penstock:9324", "[::1]:9324"):
        answer = send_json(server, "GetQueueUrl", {"QueueName": name}, Host=host)
        assert answer.json == {"QueueUrl": f"http://{host}/{ACCOUNT}/{name}"}
    answer = send_json(
        server, "GetQueueUrl", {"QueueName": name}, Host="sqs.example.com", **{"X-Forwarded-Proto": "https"}
    )
    assert answer.json == {"QueueUrl": f"https://sqs.example.com/{ACCOUNT}/{name}"}
    answer = send_json(server, "GetQueueUrl", {"QueueName": name}, Host="<script>")
    assert answer.json == {"QueueUrl": f"http://localhost/{ACCOUNT}/{name}"}


def test_nothing_long_that_a_client_sends_is_remembered(server: Server, name: str, url: str) -> None:
    long = "n" * 100_000
    service = server.front_end.service
    for request in ({"QueueUrl": f"{server.url}/{ACCOUNT}/{long}"}, {"QueueUrl": f"http://{long}/{ACCOUNT}/{name}"}):
        send_json(server, "ReceiveMessage", request)
        assert request["QueueUrl"] not in service.scopes.default._known | service.scopes.default.queues
    answer = send_json(server, "GetQueueUrl", {"QueueName": long})
    assert answer.json["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"
    answer = send_json(server, "GetQueueUrl", {"QueueName": name}, Host="h" * 300)
    assert answer.json == {"QueueUrl": f"http://localhost/{ACCOUNT}/{name}"}


def test_a_queue_is_known_by_any_host_and_account(server: Server, name: str, url: str) -> None:
    for address in (
        f"https://sqs.us-east-1.amazonaws.com/123456789012/{name}",
        f"/{ACCOUNT}/{name}",
        f"x://y/queue/{name}",
    ):
        assert send_json(server, "SendMessage", {"QueueUrl": address, "MessageBody": "x"}).status == 200


def test_calls_to_the_queues_own_path_work(server: Server, name: str, url: str) -> None:
    path = f"/{ACCOUNT}/{name}"
    assert send_json(server, "SendMessage", {"QueueUrl": url, "MessageBody": "x"}, path).status == 200
    assert send_json(server, "ReceiveMessage", {}, path).json["Messages"][0]["Body"] == "x"


# -- errors ------------------------------------------------------------------------------------------------------------


def assert_error(answer: Answer, status: int, type_: str, code: str) -> None:
    assert answer.headers["content-type"] == "application/x-amz-json-1.0"
    assert answer.headers["x-amzn-query-error"] == f"{code};Sender"
    assert (answer.status, answer.json["__type"]) == (status, type_)
    assert set(answer.json) == {"__type", "message"}


def test_errors_have_both_names(server: Server, url: str) -> None:
    assert_error(
        send_json(server, "GetQueueUrl", {"QueueName": "not-there"}),
        400,
        "com.amazonaws.sqs#QueueDoesNotExist",
        "AWS.SimpleQueueService.NonExistentQueue",
    )
    assert_error(
        send_json(server, "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 11}),
        400,
        "com.amazon.coral.service#InvalidParameterValueException",
        "InvalidParameterValue",
    )
    assert_error(
        send_json(server, "SendMessage", {"MessageBody": "x"}),
        400,
        "com.amazon.coral.service#MissingRequiredParameterException",
        "MissingParameter",
    )


MISSING = {
    "AddPermission": {"QueueUrl", "Label", "AWSAccountIds", "Actions"},
    "CancelMessageMoveTask": {"TaskHandle"},
    "ChangeMessageVisibility": {"QueueUrl", "ReceiptHandle", "VisibilityTimeout"},
    "CreateQueue": {"QueueName"},
    "DeleteMessage": {"QueueUrl", "ReceiptHandle"},
    "DeleteQueue": {"QueueUrl"},
    "GetQueueAttributes": {"QueueUrl"},
    "GetQueueUrl": {"QueueName"},
    "ListDeadLetterSourceQueues": {"QueueUrl"},
    "ListMessageMoveTasks": {"SourceArn"},
    "ListQueueTags": {"QueueUrl"},
    "PurgeQueue": {"QueueUrl"},
    "ReceiveMessage": {"QueueUrl"},
    "RemovePermission": {"QueueUrl", "Label"},
    "SendMessage": {"QueueUrl", "MessageBody"},
    "StartMessageMoveTask": {"SourceArn"},
    "TagQueue": {"QueueUrl", "Tags"},
    "UntagQueue": {"QueueUrl", "TagKeys"},
}


@pytest.mark.parametrize("action", MISSING)
def test_what_an_action_needs_is_named_when_it_is_missing(server: Server, sqs: Any, url: str, action: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    everything = {
        "QueueUrl": url,
        "Label": "l",
        "AWSAccountIds": ["111111111111"],
        "Actions": ["SendMessage"],
        "ReceiptHandle": message["ReceiptHandle"],
        "VisibilityTimeout": 5,
        "MessageBody": "x",
        "Tags": {"a": "b"},
        "TagKeys": ["a"],
    }
    for missing in MISSING[action]:
        given = {key: value for key, value in everything.items() if key != missing and key in MISSING[action]}
        for request in (given, given | {missing: None}):
            answer = send_json(server, action, request)
            assert_error(
                answer,
                400,
                "com.amazon.coral.service#MissingRequiredParameterException",
                "MissingParameter",
            )
            assert answer.json["message"] == f"The request must contain the parameter {missing}."


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"QueueUrl": 1}',
        b'{"QueueUrl": "\xff"}',
        b'{"QueueUrl": "\\ud800"}',
        b'{"MaxNumberOfMessages": "1"}',
        b'{"MaxNumberOfMessages": 1.5}',
        b'{"AttributeNames": "All"}',
        b'{"AttributeNames": [1]}',
        b'{"AttributeNames": {"a": 1}}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"QueueUrl": NaN}',
    ],
)
def test_a_body_that_makes_no_sense_is_malformed(server: Server, body: bytes) -> None:
    answer = send_json(server, "ReceiveMessage", body)
    assert_error(answer, 400, "com.amazon.coral.service#SerializationException", "MalformedInput")


def test_bad_base64_is_malformed(server: Server, url: str) -> None:
    attributes = {"b": {"DataType": "Binary", "BinaryValue": "***"}}
    answer = send_json(server, "SendMessage", {"QueueUrl": url, "MessageBody": "x", "MessageAttributes": attributes})
    assert_error(answer, 400, "com.amazon.coral.service#SerializationException", "MalformedInput")


def test_parameters_that_nobody_knows_are_passed_over(server: Server, url: str) -> None:
    answer = send_json(server, "SendMessage", {"QueueUrl": url, "MessageBody": "x", "Future": {"a": [1]}})
    assert answer.status == 200


@pytest.mark.parametrize("target", ["", "AmazonSQS.", "AmazonSQS.Nonsense", "AmazonSNS.SendMessage", "SendMessage"])
def test_an_unknown_operation_is_refused(server: Server, target: str) -> None:
    answer = send(server, "POST", "/", b"{}", {"X-Amz-Target": target})
    assert_error(answer, 400, "com.amazon.coral.service#UnknownOperationException", "InvalidAction")


def test_json_without_a_target_is_refused_in_json(server: Server) -> None:
    answer = send(server, "POST", "/", b"{}", {"Content-Type": "application/x-amz-json-1.0"})
    assert_error(answer, 400, "com.amazon.coral.service#UnknownOperationException", "InvalidAction")


def test_json_needs_post(server: Server) -> None:
    answer = send(server, "GET", "/", None, {"X-Amz-Target": "AmazonSQS.ListQueues"})
    assert_error(answer, 405, "com.amazon.coral.service#MethodNotAllowedException", "MethodNotAllowed")


def test_a_bug_is_an_internal_failure_and_the_server_goes_on(server: Server, url: str, caplog: Any) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    action = server.front_end._targets["AmazonSQS.ListQueueTags"]
    original = action.run
    action.run = broken  # type: ignore[assignment]
    try:
        answer = send_json(server, "ListQueueTags", {"QueueUrl": url})
    finally:
        action.run = original
    assert answer.status == 500
    assert answer.json["__type"] == "com.amazon.coral.service#InternalFailure"
    assert answer.headers["x-amzn-query-error"] == "InternalFailure;Receiver"
    assert "a bug" not in answer.body.decode()
    assert "a bug" in caplog.text
    assert json.loads(send_json(server, "ListQueueTags", {"QueueUrl": url}).body) == {}
