"""A command needs the same right through every front end: the one that it declares. Each refuses in its own words."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import penstock
from penstock import testing
from penstock.core import commands
from penstock.core.commands import COMMANDS, Command
from penstock.core.traits import RIGHTS
from penstock.protocols.sqs.actions import REQUESTS

Q = "orders"
CREDENTIALS = "".join(
    f"""
[[credentials]]
access_key = "AK{name}"
secret_key = "secret"
[[credentials.allow]]
queues = ["*"]
rights = {json.dumps(rights)}
"""
    for right in RIGHTS
    for name, rights in ((right, [right]), (f"not{right}", [each for each in RIGHTS if each != right]))
)

ARN = f"arn:aws:sqs:us-east-1:000000000000:{Q}"
TOPIC = "arn:aws:sns:us-east-1:000000000000:news"
URL = f"http://localhost/000000000000/{Q}"
HELD = {"QueueUrl": URL, "ReceiptHandle": "x"}
HELD_BATCH = {"QueueUrl": URL, "Entries": [{"Id": "1", "ReceiptHandle": "x", "VisibilityTimeout": 1}]}
DELETED_BATCH = {"QueueUrl": URL, "Entries": [{"Id": "1", "ReceiptHandle": "x"}]}
SQS: dict[str, tuple[type[Command], dict[str, Any]]] = {
    "SendMessage": (commands.Send, {"QueueUrl": URL, "MessageBody": "x"}),
    "SendMessageBatch": (commands.Send, {"QueueUrl": URL, "Entries": [{"Id": "1", "MessageBody": "x"}]}),
    "ReceiveMessage": (commands.Receive, {"QueueUrl": URL}),
    "DeleteMessage": (commands.Ack, HELD),
    "DeleteMessageBatch": (commands.Ack, DELETED_BATCH),
    "ChangeMessageVisibility": (commands.Extend, {**HELD, "VisibilityTimeout": 1}),
    "ChangeMessageVisibilityBatch": (commands.Extend, HELD_BATCH),
    "CreateQueue": (commands.CreateQueue, {"QueueName": Q}),
    "DeleteQueue": (commands.DeleteQueue, {"QueueUrl": f"{URL}-2"}),
    "PurgeQueue": (commands.PurgeQueue, {"QueueUrl": URL}),
    "SetQueueAttributes": (commands.ChangeQueue, {"QueueUrl": URL, "Attributes": {"DelaySeconds": "0"}}),
    "TagQueue": (commands.ChangeQueue, {"QueueUrl": URL, "Tags": {"a": "b"}}),
    "UntagQueue": (commands.ChangeQueue, {"QueueUrl": URL, "TagKeys": ["a"]}),
    "AddPermission": (
        commands.ChangeQueue,
        {"QueueUrl": URL, "Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]},
    ),
    "RemovePermission": (commands.ChangeQueue, {"QueueUrl": URL, "Label": "l"}),
    "StartMessageMoveTask": (commands.StartRedrive, {"SourceArn": ARN, "DestinationArn": f"{ARN}-2"}),
}
SQS_OTHERWISE = {
    "CancelMessageMoveTask",  # by the handle of a task, which says the queue
    "ListMessageMoveTasks",
    "GetQueueAttributes",  # any right will do: they show a queue
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "ListQueueTags",
    "ListQueues",
}
SNS: dict[str, tuple[type[Command], dict[str, Any]]] = {
    "CreateTopic": (commands.CreateQueue, {"Name": "news"}),
    "Publish": (commands.Send, {"TopicArn": TOPIC, "Message": "x"}),
    "PublishBatch": (
        commands.Send,
        {"TopicArn": TOPIC, "PublishBatchRequestEntries": [{"Id": "1", "Message": "x"}]},
    ),
    "SetTopicAttributes": (
        commands.ChangeQueue,
        {"TopicArn": TOPIC, "AttributeName": "DisplayName", "AttributeValue": "x"},
    ),
    "TagResource": (commands.ChangeQueue, {"ResourceArn": TOPIC, "Tags": [{"Key": "a", "Value": "b"}]}),
    "UntagResource": (commands.ChangeQueue, {"ResourceArn": TOPIC, "TagKeys": ["a"]}),
    "DeleteTopic": (commands.DeleteQueue, {"TopicArn": f"{TOPIC}-2"}),
}
REST: list[tuple[type[Command], str, str, Any]] = [
    (commands.Send, "POST", f"/v1/queues/{Q}/messages", {"body": "x"}),
    (commands.Receive, "POST", f"/v1/queues/{Q}/receive", {}),
    (commands.Ack, "POST", f"/v1/queues/{Q}/ack", {"receipt": "x"}),
    (commands.Release, "POST", f"/v1/queues/{Q}/release", {"receipt": "x"}),
    (commands.Extend, "POST", f"/v1/queues/{Q}/extend", {"receipt": "x", "lease": 1}),
    (commands.Browse, "GET", f"/v1/queues/{Q}/messages", None),
    (commands.Browse, "GET", f"/v1/queues/{Q}/search?text=x", None),
    (commands.LookUp, "GET", f"/v1/queues/{Q}/messages/0", None),
    (commands.DeleteMessages, "DELETE", f"/v1/queues/{Q}/messages/0", None),
    (commands.DeleteMessages, "POST", f"/v1/queues/{Q}/messages/delete", {"sequences": [0], "channel": "c"}),
    (commands.RescheduleMessages, "POST", f"/v1/queues/{Q}/messages/release", {"sequences": [0], "channel": "c"}),
    (commands.ReadRecords, "GET", f"/v1/queues/{Q}/records", None),
    (commands.ReadRecords, "GET", f"/v1/queues/{Q}/consumers/c/records", None),
    (commands.AckConsumer, "PUT", f"/v1/queues/{Q}/consumers/c", {"offset": 0}),
    (commands.DeleteConsumer, "DELETE", f"/v1/queues/{Q}/consumers/c", None),
    (commands.QueueStats, "GET", f"/v1/queues/{Q}/consumers", None),
    (commands.CreateQueue, "POST", "/v1/queues", {"name": Q}),
    (commands.ChangeQueue, "PATCH", f"/v1/queues/{Q}", {"delay": 0}),
    (commands.DeleteQueue, "DELETE", f"/v1/queues/{Q}-2", None),
    (commands.PurgeQueue, "POST", f"/v1/queues/{Q}/purge", None),
    (commands.CreateChannel, "POST", f"/v1/queues/{Q}/channels", {"name": "c"}),
    (commands.PauseChannel, "POST", f"/v1/queues/{Q}/channels/c/pause", None),
    (commands.PauseChannel, "POST", f"/v1/queues/{Q}/channels/c/unpause", None),
    (commands.PurgeChannel, "POST", f"/v1/queues/{Q}/channels/c/purge", None),
    (commands.DeleteChannel, "DELETE", f"/v1/queues/{Q}/channels/c", None),
    (commands.StartRedrive, "POST", "/v1/redrives", {"queue": Q, "target": f"{Q}-2", "create": True}),
]
NSQ: list[tuple[type[Command], bytes]] = [
    (commands.Send, f"PUB {Q}\n".encode() + struct.pack(">I", 1) + b"x"),
    (commands.Send, f"DPUB {Q} 5\n".encode() + struct.pack(">I", 1) + b"x"),
    (commands.Send, f"MPUB {Q}\n".encode() + struct.pack(">III", 9, 1, 1) + b"x"),
    (commands.Subscribe, f"SUB {Q} c\n".encode()),
]
NSQ_HTTP: list[tuple[type[Command], str]] = [
    (commands.Send, f"/pub?topic={Q}"),
    (commands.Send, f"/mpub?topic={Q}"),
    (commands.Send, f"/topic/create?topic={Q}"),  # as PUB creates one
    (commands.PauseChannel, f"/topic/pause?topic={Q}"),
    (commands.PauseChannel, f"/topic/unpause?topic={Q}"),
    (commands.PurgeQueue, f"/topic/empty?topic={Q}"),
    (commands.DeleteQueue, f"/topic/delete?topic={Q}-2"),
    (commands.CreateChannel, f"/channel/create?topic={Q}&channel=c"),
    (commands.PauseChannel, f"/channel/pause?topic={Q}&channel=c"),
    (commands.PauseChannel, f"/channel/unpause?topic={Q}&channel=c"),
    (commands.PurgeChannel, f"/channel/empty?topic={Q}&channel=c"),
    (commands.DeleteChannel, f"/channel/delete?topic={Q}&channel=c"),
]
VALUES: dict[str, Any] = {
    "queue": Q,
    "name": Q,
    "channel": "c",
    "consumer": "c",
    "sequences": [0],
    "spans": [],
    "bodies": [b"x"],
    "lease_ms": 1_000,
    "changes": {"delay_ms": 0},
    "start": "earliest",
    "offset": 0,
    "target": f"{Q}-2",
}
"""What the commands of a websocket are filled with."""


class Asked(NamedTuple):
    """One thing that a front end is asked for."""

    front: str
    what: str
    kind: type[Command]
    is_refused: Callable[[testing.Server, str], bool]
    """Whether the caller with these keys is refused for his rights."""


def by_aws(service: str, action: str, parameters: dict[str, Any], code: str) -> Callable[[testing.Server, str], bool]:
    def is_refused(server: testing.Server, access_key: str) -> bool:
        client = boto3.client(
            service,
            endpoint_url=server.sqs_url,
            region_name="us-east-1",
            aws_access_key_id=access_key,
            aws_secret_access_key="secret",
            config=Config(retries={"max_attempts": 0}),
        )
        try:
            client._make_api_call(action, parameters)
        except ClientError as error:
            return bool(error.response["Error"]["Code"] == code)
        return False

    return is_refused


def by_http(url: str, method: str, path: str, content: Any) -> Callable[[testing.Server, str], bool]:
    def is_refused(server: testing.Server, access_key: str) -> bool:
        connection = http.client.HTTPConnection(urlsplit(getattr(server, url)).netloc, timeout=30)
        body = content if isinstance(content, bytes) or content is None else json.dumps(content).encode()
        token = base64.b64encode(f"{access_key}:secret".encode()).decode()
        connection.request(method, path, body, {"Authorization": f"Basic {token}", "Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        assert answer.status != 401 and answer.status < 500, said
        return answer.status == 403

    return is_refused


def by_nsq(line: bytes) -> Callable[[testing.Server, str], bool]:
    def is_refused(server: testing.Server, access_key: str) -> bool:
        host, port = server.nsq_address.split(":")
        secret = f"{access_key}:secret".encode()
        with socket.create_connection((host, int(port)), timeout=30) as connected:
            stream = connected.makefile("rb")
            connected.sendall(b"  V2AUTH\n" + struct.pack(">I", len(secret)) + secret)
            assert b"identity" in stream.read(int.from_bytes(stream.read(4), "big"))
            connected.sendall(line)
            frame = stream.read(int.from_bytes(stream.read(4), "big"))
        assert frame == b"\0\0\0\0OK" or frame[4:].startswith(b"E_UNAUTHORIZED"), frame
        return frame != b"\0\0\0\0OK"

    return is_refused


def by_websocket(kind: type[Command]) -> Callable[[testing.Server, str], bool]:
    def is_refused(server: testing.Server, access_key: str) -> bool:
        command = kind(**{name: value for name, value in VALUES.items() if name in kind.__struct_fields__})
        with penstock.connect(server.url, token=f"{access_key}:secret", transport="websocket") as ps:
            try:
                ps._caller.call(command)
            except penstock.AccessDenied:
                return True
            except penstock.PenstockError:
                return False
        return False

    return is_refused


ASKED = [
    *(Asked("sqs", name, kind, by_aws("sqs", name, asks, "AccessDenied")) for name, (kind, asks) in SQS.items()),
    *(Asked("sns", name, kind, by_aws("sns", name, asks, "AuthorizationError")) for name, (kind, asks) in SNS.items()),
    *(
        Asked("rest", f"{method} {path}", kind, by_http("http_url", method, path, body))
        for kind, method, path, body in REST
    ),
    *(Asked("nsq", line.split()[0].decode(), kind, by_nsq(line)) for kind, line in NSQ),
    *(Asked("nsq-http", path, kind, by_http("nsq_http_url", "POST", path, b"x")) for kind, path in NSQ_HTTP),
    *(
        Asked("websocket", kind.__name__, kind, by_websocket(kind))
        for kind in COMMANDS
        if kind.traits.public and kind.traits.right in RIGHTS and kind.traits.queue
    ),
]


@pytest.fixture(scope="module")
def guarded() -> Iterator[testing.Server]:
    with testing.server(config=CREDENTIALS) as server:
        yield server


@pytest.mark.parametrize("asked", ASKED, ids=[f"{each.front} {each.what}" for each in ASKED])
def test_a_command_needs_its_right_whichever_front_end_it_comes_through(guarded: testing.Server, asked: Asked) -> None:
    right = asked.kind.traits.right
    assert asked.is_refused(guarded, f"AKnot{right}"), f"done without the right to {right}"
    assert not asked.is_refused(guarded, f"AK{right}"), f"refused with the right to {right}"


def test_every_action_of_sqs_is_in_the_table() -> None:
    assert SQS.keys() | SQS_OTHERWISE == REQUESTS.keys()
