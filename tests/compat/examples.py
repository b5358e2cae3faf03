"""A full, valid request for every action, as JSON parameters and as the fields of a form: what fuzzing starts from."""

from __future__ import annotations

import base64
from typing import Any

import botocore.session
from botocore.model import ServiceModel
from botocore.serialize import create_serializer

from tests.compat.query_client import as_query
from tests.compat.server import ACCOUNT, REGION, Server

QUEUE = "fuzz"
LINE = "fuzz.fifo"
DOOMED = "doomed"
"""The one queue that valid requests delete; no small damage makes it another's name."""
_ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": "x"},
    "number": {"DataType": "Number.int", "StringValue": "-1.5e3"},
    "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}
_SYSTEM = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}
Parameters = dict[str, Any]


def make_queues(server: Server) -> str:
    """The queues of the examples; returns a receipt handle that is valid."""
    sqs = server.client()
    url = sqs.create_queue(QueueName=QUEUE)["QueueUrl"]
    sqs.create_queue(QueueName=LINE, Attributes={"FifoQueue": "true"})
    sqs.create_queue(QueueName=DOOMED)
    sqs.send_message(QueueUrl=url, MessageBody="held")
    (message,) = sqs.receive_message(QueueUrl=url, VisibilityTimeout=600)["Messages"]
    return str(message["ReceiptHandle"])


def examples(server: Server, receipt_handle: str) -> dict[str, list[Parameters]]:
    """Action to requests, as boto3 would be given them."""
    url, line_url, doomed_url = (server.queue_url(name) for name in (QUEUE, LINE, DOOMED))
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{QUEUE}"
    message = {"MessageBody": "körper", "MessageAttributes": _ATTRIBUTES, "MessageSystemAttributes": _SYSTEM}
    in_line = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    held = {"QueueUrl": url, "ReceiptHandle": receipt_handle}
    entry = {"Id": "e-1", "ReceiptHandle": receipt_handle}
    attributes = {
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "Policy": '{"Version": "2012-10-17", "Statement": []}',
        "RedrivePolicy": f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 3}}',
        "RedriveAllowPolicy": '{"redrivePermission": "allowAll"}',
        "VisibilityTimeout": "30",
        "KmsMasterKeyId": "alias/aws/sqs",
        "KmsDataKeyReusePeriodSeconds": "300",
        "SqsManagedSseEnabled": "false",
    }
    in_line_attributes = {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "true",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
    }
    receive = {
        "AttributeNames": ["All"],
        "MessageSystemAttributeNames": ["SentTimestamp"],
        "MessageAttributeNames": ["te.*", "number"],
        "MaxNumberOfMessages": 10,
        "VisibilityTimeout": 0,
        "WaitTimeSeconds": 0,
    }
    return {
        "AddPermission": [{"QueueUrl": url, "Label": "l", "AWSAccountIds": [ACCOUNT], "Actions": ["SendMessage", "*"]}],
        "CancelMessageMoveTask": [{"TaskHandle": receipt_handle}],
        "ChangeMessageVisibility": [{**held, "VisibilityTimeout": 60}],
        "ChangeMessageVisibilityBatch": [{"QueueUrl": url, "Entries": [{**entry, "VisibilityTimeout": 60}]}],
        "CreateQueue": [
            {"QueueName": "fuzz-made", "Attributes": attributes, "tags": {"a": "b"}},
            {"QueueName": LINE, "Attributes": in_line_attributes},
        ],
        "DeleteMessage": [held],
        "DeleteMessageBatch": [{"QueueUrl": url, "Entries": [entry, {**entry, "Id": "e_2"}]}],
        "DeleteQueue": [{"QueueUrl": doomed_url}],
        "GetQueueAttributes": [{"QueueUrl": url, "AttributeNames": ["All", "QueueArn"]}],
        "GetQueueUrl": [{"QueueName": QUEUE, "QueueOwnerAWSAccountId": ACCOUNT}],
        "ListDeadLetterSourceQueues": [{"QueueUrl": url, "MaxResults": 1, "NextToken": "eA=="}],
        "ListMessageMoveTasks": [{"SourceArn": arn, "MaxResults": 1}],
        "ListQueueTags": [{"QueueUrl": url}],
        "ListQueues": [{"QueueNamePrefix": "f", "MaxResults": 1, "NextToken": "eA=="}],
        "PurgeQueue": [{"QueueUrl": url}],
        "ReceiveMessage": [
            {"QueueUrl": url, **receive},
            {"QueueUrl": line_url, "ReceiveRequestAttemptId": "a", **receive},
        ],
        "RemovePermission": [{"QueueUrl": url, "Label": "l"}],
        "SendMessage": [{"QueueUrl": url, "DelaySeconds": 1, **message}, {"QueueUrl": line_url, **message, **in_line}],
        "SendMessageBatch": [
            {"QueueUrl": url, "Entries": [{"Id": "a", **message}, {"Id": "b", "DelaySeconds": 0, **message}]},
            {"QueueUrl": line_url, "Entries": [{"Id": "a", **message, **in_line}]},
        ],
        "SetQueueAttributes": [{"QueueUrl": url, "Attributes": attributes}],
        "StartMessageMoveTask": [{"SourceArn": arn, "DestinationArn": arn, "MaxNumberOfMessagesPerSecond": 1}],
        "TagQueue": [{"QueueUrl": url, "Tags": {"k": "v", "l": ""}}],
        "UntagQueue": [{"QueueUrl": url, "TagKeys": ["k"]}],
    }


def as_json(parameters: Any) -> Any:
    """With bytes as JSON requests have them."""
    if isinstance(parameters, dict):
        return {name: as_json(value) for name, value in parameters.items()}
    if isinstance(parameters, list):
        return [as_json(value) for value in parameters]
    return base64.b64encode(parameters).decode() if isinstance(parameters, bytes) else parameters


_loader = botocore.session.get_session().get_component("data_loader")
_query = ServiceModel(as_query(_loader.load_service_model("sqs", "service-2")))
_serializer = create_serializer("query")


def as_form(action: str, parameters: Parameters) -> dict[str, str]:
    """The fields of a Query request."""
    fields = _serializer.serialize_to_request(parameters, _query.operation_model(action))["body"]
    return {name: str(value) for name, value in fields.items()}
