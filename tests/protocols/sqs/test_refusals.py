"""What AWS refuses, and how: a request, and the answer that was recorded or is in its reference. In both protocols."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.compat.query_client import query_client
from tests.protocols.sqs.serving import Server

ARN = "arn:aws:sqs:us-east-1:000000000000:"
VALUE = "InvalidParameterValue"
BATCH = "AWS.SimpleQueueService."
ENTRY = {"Id": "1", "MessageBody": "x"}
GROUPED = {**ENTRY, "MessageGroupId": "g"}
IDS = (
    "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters "
    "long."
)
TOKENS = "can only include alphanumeric and punctuation characters. 1 to 128 in length."
DEDUP = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
NOT_OF_THIS_TYPE = "The request include parameter that is not valid for this queue type."
Row = tuple[str, dict[str, Any], str, str]


def value(given: Any, parameter: str, reason: str) -> str:
    return f"Value {given} for parameter {parameter} is invalid. Reason: {reason}"


def empty(name: str, kind: str) -> str:
    return f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'."


def attributes(**given: Any) -> dict[str, Any]:
    return {"MessageBody": "x", "MessageAttributes": given}


OF_STANDARD: list[Row] = [
    ("send_message", {"MessageBody": ""}, "MissingParameter", "The request must contain the parameter MessageBody."),
    (
        "send_message",
        {"MessageBody": "x", "DelaySeconds": 901},
        VALUE,
        value(901, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900."),
    ),
    (
        "send_message",
        {"MessageBody": "x", "MessageDeduplicationId": "d"},
        VALUE,
        value("d", "MessageDeduplicationId", NOT_OF_THIS_TYPE),
    ),
    (
        "send_message",
        attributes(ErrorDetails={"DataType": "String", "StringValue": ""}),
        VALUE,
        empty("ErrorDetails", "String"),
    ),
    ("send_message", attributes(a={"DataType": "Number", "StringValue": ""}), VALUE, empty("a", "Number")),
    ("send_message", attributes(a={"DataType": "Binary", "BinaryValue": b""}), VALUE, empty("a", "Binary")),
    (
        "send_message",
        attributes(a={"DataType": "Invalid", "StringValue": "x"}),
        VALUE,
        "The type of message (user) attribute 'a' is invalid. You must use only the following supported type prefixes: "
        "Binary, Number, String.",
    ),
    (
        "send_message",
        attributes(a={"DataType": "Number", "StringValue": "many"}),
        VALUE,
        "Can't cast the value of message (user) attribute 'a' to a number.",
    ),
    (
        "send_message",
        attributes(**{"a" * 257: {"DataType": "String", "StringValue": "x"}}),
        VALUE,
        f"Message (user) attribute name '{'a' * 257}' must be shorter than 256 bytes.",
    ),
    *(
        (
            "send_message",
            attributes(**{name: {"DataType": "String", "StringValue": "x"}}),
            VALUE,
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. "
            "These strings are reserved for internal use.",
        )
        for name in ("aWs.a", "AMAZON.a")
    ),
    (
        "send_message",
        attributes(**{f"a{number}": {"DataType": "String", "StringValue": "x"} for number in range(11)}),
        VALUE,
        "Number of message attributes [11] exceeds the allowed maximum [10].",
    ),
    (
        "send_message",
        {"MessageBody": "x", "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "Number", "StringValue": "1"}}},
        VALUE,
        "The type of message system attribute 'AWSTraceHeader' is invalid. You must use only: String.",
    ),
    (
        "send_message_batch",
        {"Entries": [{"Id": str(number), "MessageBody": "x"} for number in range(20)]},
        BATCH + "TooManyEntriesInBatchRequest",
        "Maximum number of entries per request are 10. You have sent 20.",
    ),
    (
        "send_message_batch",
        {"Entries": []},
        BATCH + "EmptyBatchRequest",
        "There should be at least one SendMessageBatchRequestEntry in the request.",
    ),
    (
        "delete_message_batch",
        {"Entries": []},
        BATCH + "EmptyBatchRequest",
        "There should be at least one DeleteMessageBatchRequestEntry in the request.",
    ),
    (
        "change_message_visibility_batch",
        {"Entries": []},
        BATCH + "EmptyBatchRequest",
        "There should be at least one ChangeMessageVisibilityBatchRequestEntry in the request.",
    ),
    ("send_message_batch", {"Entries": [ENTRY, ENTRY]}, BATCH + "BatchEntryIdsNotDistinct", "Id 1 repeated."),
    *(
        ("send_message_batch", {"Entries": [{**ENTRY, "Id": wrong}]}, BATCH + "InvalidBatchEntryId", IDS)
        for wrong in ("message:1", "testLongId" * 10)
    ),
    *(
        (
            "delete_message_batch",
            {"Entries": [{"Id": wrong, "ReceiptHandle": "testHandle1"}]},
            BATCH + "InvalidBatchEntryId",
            IDS,
        )
        for wrong in ("", "invalid:id", "testLongId" * 10)
    ),
    (
        "receive_message",
        {"MaxNumberOfMessages": 11},
        VALUE,
        value(11, "MaxNumberOfMessages", "Must be between 1 and 10, if provided."),
    ),
    (
        "receive_message",
        {"MaxNumberOfMessages": 0},
        VALUE,
        value(0, "MaxNumberOfMessages", "Must be between 1 and 10, if provided."),
    ),
    (
        "receive_message",
        {"WaitTimeSeconds": 21},
        VALUE,
        value(21, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided."),
    ),
    (
        "receive_message",
        {"VisibilityTimeout": 43201},
        VALUE,
        value(43201, "VisibilityTimeout", "VisibilityTimeout must be an integer between 0 and 43200."),
    ),
    (
        "receive_message",
        {"ReceiveRequestAttemptId": "a"},
        VALUE,
        value("a", "ReceiveRequestAttemptId", NOT_OF_THIS_TYPE),
    ),
    ("receive_message", {"AttributeNames": ["Foobar"]}, "InvalidAttributeName", "Unknown Attribute Foobar."),
    ("get_queue_attributes", {"AttributeNames": ["Foobar"]}, "InvalidAttributeName", "Unknown Attribute Foobar."),
    ("set_queue_attributes", {"Attributes": {"Foobar": "1"}}, "InvalidAttributeName", "Unknown Attribute Foobar."),
    (
        "set_queue_attributes",
        {"Attributes": {"FifoQueue": "true"}},
        "InvalidAttributeName",
        "Unknown Attribute FifoQueue.",
    ),
    *(
        (
            "set_queue_attributes",
            {"Attributes": {name: wrong}},
            "InvalidAttributeValue",
            f"Invalid value for the parameter {name}.",
        )
        for name, wrong in {
            "VisibilityTimeout": "43201",
            "DelaySeconds": "901",
            "MessageRetentionPeriod": "59",
            "ReceiveMessageWaitTimeSeconds": "21",
            "MaximumMessageSize": "1023",
            "KmsDataKeyReusePeriodSeconds": "59",
            "Policy": "no policy",
        }.items()
    ),
    (
        "set_queue_attributes",
        {"Attributes": {"KmsMasterKeyId": "testKeyId", "SqsManagedSseEnabled": "true"}},
        "InvalidAttributeName",
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
    ),
    (
        "set_queue_attributes",
        {"Attributes": {"RedrivePolicy": '{"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}'}},
        VALUE,
        value(
            '{"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}',
            "RedrivePolicy",
            "Invalid value for deadLetterTargetArn.",
        ),
    ),
    (
        "set_queue_attributes",
        {"Attributes": {"RedrivePolicy": '{"maxReceiveCount": 42}'}},
        VALUE,
        value(
            '{"maxReceiveCount": 42}',
            "RedrivePolicy",
            "Redrive policy does not contain mandatory attribute: deadLetterTargetArn.",
        ),
    ),
    (
        "delete_message",
        {"ReceiptHandle": "garbage"},
        "ReceiptHandleIsInvalid",
        'The input receipt handle "garbage" is not a valid receipt handle.',
    ),
    (
        "change_message_visibility",
        {"ReceiptHandle": "garbage", "VisibilityTimeout": 60},
        "ReceiptHandleIsInvalid",
        'The input receipt handle "garbage" is not a valid receipt handle.',
    ),
    ("remove_permission", {"Label": "gone"}, VALUE, value("gone", "Label", "can't find label.")),
    (
        "add_permission",
        {"Label": "a b", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]},
        VALUE,
        value("a b", "Label", "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length."),
    ),
]
OF_FIFO: list[Row] = [
    (
        "send_message",
        {"MessageBody": "x", "MessageDeduplicationId": "d"},
        "MissingParameter",
        "The request must contain the parameter MessageGroupId.",
    ),
    ("send_message", {"MessageBody": "x", "MessageGroupId": "g"}, VALUE, DEDUP),
    (
        "send_message",
        {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 2},
        VALUE,
        value(2, "DelaySeconds", NOT_OF_THIS_TYPE),
    ),
    (
        "send_message",
        {"MessageBody": "x", "MessageGroupId": "g" * 129, "MessageDeduplicationId": "d"},
        VALUE,
        value("g" * 129, "MessageGroupId", f"MessageGroupId {TOKENS}"),
    ),
    (
        "send_message",
        {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "ü"},
        VALUE,
        value("ü", "MessageDeduplicationId", f"MessageDeduplicationId {TOKENS}"),
    ),
    (
        "send_message_batch",
        {"Entries": [{**GROUPED, "MessageDeduplicationId": "d"}, {**GROUPED, "Id": "2"}]},
        VALUE,
        DEDUP,
    ),
    (
        "send_message_batch",
        {"Entries": [{**ENTRY, "MessageDeduplicationId": "d"}]},
        VALUE,
        "The request must contain the parameter MessageGroupId.",
    ),
    (
        "set_queue_attributes",
        {"Attributes": {"FifoQueue": "false"}},
        "InvalidAttributeValue",
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
    ),
    (
        "set_queue_attributes",
        {"Attributes": {"DeduplicationScope": "topic"}},
        "InvalidAttributeValue",
        "Invalid value for the parameter DeduplicationScope.",
    ),
]
OF_NO_QUEUE: list[Row] = [
    ("create_queue", {"QueueName": "queue/with/slashes"}, VALUE, ""),
    ("create_queue", {"QueueName": "q" * 81}, VALUE, ""),
    ("create_queue", {"QueueName": "standard.fifo"}, VALUE, ""),
    ("create_queue", {"QueueName": "no-ending", "Attributes": {"FifoQueue": "true"}}, VALUE, ""),
    ("create_queue", {"QueueName": "x", "Attributes": {"FifoQueue": "false"}}, "InvalidAttributeName", ""),
    ("list_queues", {"MaxResults": 1001}, VALUE, ""),
    ("list_queues", {"NextToken": "no token", "MaxResults": 5}, VALUE, ""),
    (
        "cancel_message_move_task",
        {"TaskHandle": "foobared"},
        VALUE,
        "Value for parameter TaskHandle is invalid.",
    ),
    (
        "start_message_move_task",
        {"SourceArn": f"{ARN}gone"},
        "ResourceNotFoundException",
        "The resource that you specified for the SourceArn parameter doesn't exist.",
    ),
]
_STATUS = {"ReceiptHandleIsInvalid": 404, "ResourceNotFoundException": 404}


@pytest.fixture(params=["json", "query"])
def client(request: pytest.FixtureRequest, server: Server, sqs: Any) -> Any:
    """boto3, as it is and as it was."""
    return sqs if request.param == "json" else query_client(server)  # type: ignore[arg-type]


def refusal(client: Any, action: str, given: dict[str, Any]) -> tuple[int, str, str]:
    with pytest.raises(ClientError) as caught:
        getattr(client, action)(**given)
    response = caught.value.response
    assert response["Error"]["Type"] == "Sender"
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"], response["Error"]["Message"]


@pytest.mark.parametrize(("action", "given", "code", "message"), OF_STANDARD)
def test_a_standard_queue_refuses(
    client: Any, url: str, action: str, given: dict[str, Any], code: str, message: str
) -> None:
    assert refusal(client, action, {"QueueUrl": url, **given}) == (_STATUS.get(code, 400), code, message)


@pytest.mark.parametrize(("action", "given", "code", "message"), OF_FIFO)
def test_a_fifo_queue_refuses(
    client: Any, fifo_url: str, action: str, given: dict[str, Any], code: str, message: str
) -> None:
    assert refusal(client, action, {"QueueUrl": fifo_url, **given}) == (_STATUS.get(code, 400), code, message)


@pytest.mark.parametrize(("action", "given", "code", "message"), OF_NO_QUEUE)
def test_a_server_refuses(client: Any, action: str, given: dict[str, Any], code: str, message: str) -> None:
    status, found, text = refusal(client, action, given)
    assert (status, found) == (_STATUS.get(code, 400), code)
    assert text == message or not message


NEEDS: dict[str, dict[str, Any]] = {
    "send_message": {"MessageBody": "x"},
    "send_message_batch": {"Entries": [ENTRY]},
    "receive_message": {},
    "delete_message": {"ReceiptHandle": "x"},
    "delete_message_batch": {"Entries": [{"Id": "1", "ReceiptHandle": "x"}]},
    "change_message_visibility": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
    "change_message_visibility_batch": {"Entries": [{"Id": "1", "ReceiptHandle": "x", "VisibilityTimeout": 1}]},
    "get_queue_attributes": {"AttributeNames": ["All"]},
    "set_queue_attributes": {"Attributes": {"DelaySeconds": "1"}},
    "purge_queue": {},
    "delete_queue": {},
    "tag_queue": {"Tags": {"a": "b"}},
    "untag_queue": {"TagKeys": ["a"]},
    "list_queue_tags": {},
    "add_permission": {"Label": "a", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]},
    "remove_permission": {"Label": "a"},
    "list_dead_letter_source_queues": {},
}


@pytest.mark.parametrize("action", NEEDS)
def test_a_queue_that_is_not_there_is_said_to_be_so(client: Any, server: Server, action: str) -> None:
    is_query = client.meta.service_model.metadata["protocol"] == "query"
    message = "The specified queue does not exist" + (" for this wsdl version." if is_query else ".")
    given = {"QueueUrl": f"{server.url}/000000000000/not-there", **NEEDS[action]}
    assert refusal(client, action, given) == (400, BATCH + "NonExistentQueue", message)


def test_the_first_name_of_an_error_is_in_the_shape(sqs: Any, url: str) -> None:
    """Old clients know errors by their codes, new ones by their shapes: both are there."""
    with pytest.raises(sqs.exceptions.QueueDoesNotExist) as caught:
        sqs.purge_queue(QueueUrl=f"{url}-gone")
    error = caught.value.response["Error"]
    assert (error["Code"], error["QueryErrorCode"]) == (BATCH + "NonExistentQueue", "QueueDoesNotExist")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], None),
        (["All"], {"General", "Hello", "Help.Me"}),
        (["*"], {"General", "Hello", "Help.Me"}),
        ([".*"], {"General", "Hello", "Help.Me"}),
        (["Foo", "Help"], set()),
        (["Hello", "General"], {"Hello", "General"}),
        (["Foo", "Hello"], {"Hello"}),
        (["Hel.*"], {"Hello", "Help.Me"}),
        (["AWS."], None),
        (["..foo"], None),
    ],
)
def test_filters_of_attributes_choose_as_on_aws(sqs: Any, url: str, names: list[str], found: set[str] | None) -> None:
    own = {name: {"DataType": "String", "StringValue": "v"} for name in ("General", "Hello", "Help.Me")}
    sqs.send_message(QueueUrl=url, MessageBody="msg", MessageAttributes=own)
    (message,) = sqs.receive_message(QueueUrl=url, MessageAttributeNames=names)["Messages"]
    assert ("MD5OfMessageAttributes" in message) == bool(found)
    if found is None:
        assert "MessageAttributes" not in message
    else:
        assert set(message["MessageAttributes"]) == found


def test_a_message_without_attributes_has_none_however_they_are_asked_for(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="msg")
    (message,) = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All", "a"])["Messages"]
    assert "MessageAttributes" not in message


def test_empty_lists_and_maps_are_nothing_in_both_protocols(client: Any, url: str) -> None:
    client.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={}, MessageSystemAttributes={})
    (message,) = client.receive_message(QueueUrl=url, AttributeNames=[], MessageAttributeNames=[])["Messages"]
    assert set(message) == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}
    assert "Attributes" not in client.get_queue_attributes(QueueUrl=url, AttributeNames=[])


def test_the_id_of_a_made_policy_names_the_queue(sqs: Any, url: str, name: str) -> None:
    sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["111111111111"], Actions=["ReceiveMessage"])
    policy = json.loads(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"])
    assert policy == {
        "Version": "2008-10-17",
        "Id": f"{ARN}{name}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "l",
                "Effect": "Allow",
                "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
                "Action": "SQS:ReceiveMessage",
                "Resource": ARN + name,
            }
        ],
    }
