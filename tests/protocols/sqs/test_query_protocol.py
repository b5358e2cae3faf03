"""The Query protocol: every action as a form made by hand, its answer as XML read by hand."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.protocols.sqs.raw import Answer, error_of, result_of, send, send_form
from tests.protocols.sqs.serving import ACCOUNT, REGION, Server


def ask(server: Server, action: str, path: str = "/", **fields: Any) -> Any:
    return result_of(send_form(server, action, path, **fields), action)


def arn(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


@pytest.fixture
def url(server: Server, name: str) -> str:
    return str(ask(server, "CreateQueue", QueueName=name)["QueueUrl"][0])


def pairs(items: list[dict[str, list[str]]], key: str = "Name") -> dict[str, str]:
    return {item[key][0]: item["Value"][0] for item in items}


def test_create_get_and_list_queues(server: Server, name: str) -> None:
    created = ask(
        server,
        "CreateQueue",
        QueueName=name,
        Attribute__1__Name="DelaySeconds",
        Attribute__1__Value="3",
        Attribute__2__Name="VisibilityTimeout",
        Attribute__2__Value="7",
        Tag__1__Key="team",
        Tag__1__Value="<a&b>",
    )
    url = f"{server.url}/{ACCOUNT}/{name}"
    assert created == {"QueueUrl": [url]}
    assert ask(server, "GetQueueUrl", QueueName=name) == {"QueueUrl": [url]}
    assert ask(server, "ListQueues", QueueNamePrefix=name) == {"QueueUrl": [url]}
    assert ask(server, "ListQueues", QueueNamePrefix="nobody-has-this") == ""
    assert ask(server, "ListQueueTags", QueueUrl=url) == {"Tag": [{"Key": ["team"], "Value": ["<a&b>"]}]}
    found = ask(
        server,
        "GetQueueAttributes",
        QueueUrl=url,
        AttributeName__1="DelaySeconds",
        AttributeName__2="VisibilityTimeout",
    )
    assert pairs(found["Attribute"]) == {"DelaySeconds": "3", "VisibilityTimeout": "7"}


def test_pages_have_a_token(server: Server, name: str) -> None:
    for number in range(3):
        ask(server, "CreateQueue", QueueName=f"{name}-{number}")
    first = ask(server, "ListQueues", QueueNamePrefix=f"{name}-", MaxResults=2)
    second = ask(server, "ListQueues", QueueNamePrefix=f"{name}-", MaxResults=2, NextToken=first["NextToken"][0])
    assert (len(first["QueueUrl"]), len(second["QueueUrl"]), "NextToken" in second) == (2, 1, False)


def test_set_attributes_numbered_or_not(server: Server, url: str) -> None:
    assert ask(server, "SetQueueAttributes", QueueUrl=url, Attribute__Name="DelaySeconds", Attribute__Value="5") is None
    found = ask(server, "GetQueueAttributes", QueueUrl=url, AttributeName="DelaySeconds")
    assert pairs(found["Attribute"]) == {"DelaySeconds": "5"}


def test_tags(server: Server, url: str) -> None:
    assert ask(server, "TagQueue", QueueUrl=url, Tag__1__Key="a", Tag__1__Value="1", Tag__2__Key="b") is None
    assert pairs(ask(server, "ListQueueTags", QueueUrl=url)["Tag"], "Key") == {"a": "1", "b": ""}
    assert ask(server, "UntagQueue", QueueUrl=url, TagKey__1="a", TagKey__2="c") is None
    assert pairs(ask(server, "ListQueueTags", QueueUrl=url)["Tag"], "Key") == {"b": ""}


def test_permissions(server: Server, url: str) -> None:
    fields = {"Label": "l", "AWSAccountId__1": "111111111111", "ActionName__1": "SendMessage"}
    assert ask(server, "AddPermission", QueueUrl=url, **fields) is None
    found = ask(server, "GetQueueAttributes", QueueUrl=url, AttributeName__1="Policy")
    assert json.loads(pairs(found["Attribute"])["Policy"])["Statement"][0]["Sid"] == "l"
    assert ask(server, "RemovePermission", QueueUrl=url, Label="l") is None


def md5(body: str) -> str:
    return hashlib.md5(body.encode()).hexdigest()


def test_a_message_with_everything(server: Server, url: str) -> None:
    body = "a & <b> \"c\" 'd' \r\n\t ü \U0001f980 +%20"
    sent = ask(
        server,
        "SendMessage",
        QueueUrl=url,
        MessageBody=body,
        DelaySeconds="0",
        MessageAttribute__1__Name="n",
        MessageAttribute__1__Value__DataType="Number.x",
        MessageAttribute__1__Value__StringValue="1.50",
        MessageAttribute__2__Name="b",
        MessageAttribute__2__Value__DataType="Binary",
        MessageAttribute__2__Value__BinaryValue=base64.b64encode(b"\0\xff").decode(),
        MessageSystemAttribute__1__Name="AWSTraceHeader",
        MessageSystemAttribute__1__Value__DataType="String",
        MessageSystemAttribute__1__Value__StringValue="Root=1",
    )
    assert set(sent) == {
        "MessageId",
        "MD5OfMessageBody",
        "MD5OfMessageAttributes",
        "MD5OfMessageSystemAttributes",
    }
    assert sent["MD5OfMessageBody"] == [md5(body)]
    received = ask(
        server,
        "ReceiveMessage",
        QueueUrl=url,
        MaxNumberOfMessages="10",
        VisibilityTimeout="30",
        WaitTimeSeconds="0",
        AttributeName__1="All",
        MessageAttributeName__1="All",
    )
    (message,) = received["Message"]
    assert (message["Body"], message["MD5OfBody"]) == ([body], [md5(body)])
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["MessageAttribute"] == [
        {"Name": ["n"], "Value": [{"DataType": ["Number.x"], "StringValue": ["1.50"]}]},
        {"Name": ["b"], "Value": [{"DataType": ["Binary"], "BinaryValue": ["AP8="]}]},
    ]
    system = pairs(message["Attribute"])
    assert (system["AWSTraceHeader"], system["ApproximateReceiveCount"]) == ("Root=1", "1")
    handle = message["ReceiptHandle"][0]
    change = {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": "60"}
    assert ask(server, "ChangeMessageVisibility", **change) is None
    assert ask(server, "DeleteMessage", QueueUrl=url, ReceiptHandle=handle) is None
    assert ask(server, "ReceiveMessage", QueueUrl=url) == ""


def test_the_newer_name_for_system_attributes(server: Server, url: str) -> None:
    ask(server, "SendMessage", QueueUrl=url, MessageBody="x")
    received = ask(server, "ReceiveMessage", QueueUrl=url, MessageSystemAttributeName__1="ApproximateReceiveCount")
    assert pairs(received["Message"][0]["Attribute"]) == {"ApproximateReceiveCount": "1"}


def test_batches(server: Server, url: str) -> None:
    entry = "SendMessageBatchRequestEntry__{}__{}"
    fields: dict[str, str] = {}
    for number, body in ((1, "a"), (2, "\x00"), (10, "b")):
        fields[entry.format(number, "Id")] = f"id-{number}"
        fields[entry.format(number, "MessageBody")] = body
    fields[entry.format(10, "MessageAttribute__1__Name")] = "k"
    fields[entry.format(10, "MessageAttribute__1__Value__DataType")] = "String"
    fields[entry.format(10, "MessageAttribute__1__Value__StringValue")] = "v"
    sent = ask(server, "SendMessageBatch", QueueUrl=url, **fields)
    assert [each["Id"] for each in sent["SendMessageBatchResultEntry"]] == [["id-1"], ["id-10"]]
    assert [each["MD5OfMessageBody"] for each in sent["SendMessageBatchResultEntry"]] == [[md5("a")], [md5("b")]]
    (failed,) = sent["BatchResultErrorEntry"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == (["id-2"], ["InvalidMessageContents"], ["true"])
    received = ask(server, "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages="10")
    handles = [message["ReceiptHandle"][0] for message in received["Message"]]
    entry = "ChangeMessageVisibilityBatchRequestEntry__{}__{}"
    fields = {}
    for number, handle in enumerate([*handles, "nonsense"], 1):
        fields[entry.format(number, "Id")] = str(number)
        fields[entry.format(number, "ReceiptHandle")] = handle
        fields[entry.format(number, "VisibilityTimeout")] = "60"
    changed = ask(server, "ChangeMessageVisibilityBatch", QueueUrl=url, **fields)
    assert [each["Id"] for each in changed["ChangeMessageVisibilityBatchResultEntry"]] == [["1"], ["2"]]
    assert changed["BatchResultErrorEntry"][0]["Code"] == ["ReceiptHandleIsInvalid"]
    entry = "DeleteMessageBatchRequestEntry__{}__{}"
    fields = {}
    for number, handle in enumerate(handles, 1):
        fields[entry.format(number, "Id")] = str(number)
        fields[entry.format(number, "ReceiptHandle")] = handle
    deleted = ask(server, "DeleteMessageBatch", QueueUrl=url, **fields)
    assert deleted == {"DeleteMessageBatchResultEntry": [{"Id": ["1"]}, {"Id": ["2"]}]}


def test_fifo_messages(server: Server, name: str) -> None:
    url = ask(
        server,
        "CreateQueue",
        QueueName=f"{name}.fifo",
        Attribute__1__Name="FifoQueue",
        Attribute__1__Value="true",
    )["QueueUrl"][0]
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    sent = ask(server, "SendMessage", QueueUrl=url, MessageBody="x", **ids)
    received = ask(server, "ReceiveMessage", QueueUrl=url, ReceiveRequestAttemptId="r", AttributeName="All")
    attributes = pairs(received["Message"][0]["Attribute"])
    assert attributes["SequenceNumber"] == sent["SequenceNumber"][0]
    assert (attributes["MessageGroupId"], attributes["MessageDeduplicationId"]) == ("g", "d")


def test_dead_letters_and_moves(server: Server, name: str) -> None:
    dead = ask(server, "CreateQueue", QueueName=f"{name}-dead")["QueueUrl"][0]
    policy = json.dumps({"deadLetterTargetArn": arn(f"{name}-dead"), "maxReceiveCount": 1})
    work = ask(server, "CreateQueue", QueueName=name, Attribute__1__Name="RedrivePolicy", Attribute__1__Value=policy)[
        "QueueUrl"
    ][0]
    assert ask(server, "ListDeadLetterSourceQueues", QueueUrl=dead) == {"QueueUrl": [work]}
    for number in range(10):
        ask(server, "SendMessage", QueueUrl=work, MessageBody=str(number))
    ask(server, "ReceiveMessage", QueueUrl=work, MaxNumberOfMessages="10", VisibilityTimeout="1")
    server.advance(2)
    started = ask(server, "StartMessageMoveTask", SourceArn=arn(f"{name}-dead"), MaxNumberOfMessagesPerSecond="1")
    listed = ask(server, "ListMessageMoveTasks", SourceArn=arn(f"{name}-dead"), MaxResults="10")
    (task,) = listed["ListMessageMoveTasksResultEntry"]
    assert (task["Status"], task["TaskHandle"]) == (["RUNNING"], started["TaskHandle"])
    cancelled = ask(server, "CancelMessageMoveTask", TaskHandle=started["TaskHandle"][0])
    assert int(cancelled["ApproximateNumberOfMessagesMoved"][0]) < 10


def test_purge_and_delete(server: Server, url: str) -> None:
    assert ask(server, "PurgeQueue", QueueUrl=url) is None
    assert ask(server, "DeleteQueue", QueueUrl=url) is None


# -- addresses ---------------------------------------------------------------------------------------------------------


def test_the_path_may_name_the_queue(server: Server, name: str, url: str) -> None:
    path = f"/{ACCOUNT}/{name}"
    ask(server, "SendMessage", path, MessageBody="x")
    (message,) = ask(server, "ReceiveMessage", path)["Message"]
    assert ask(server, "DeleteMessage", path, ReceiptHandle=message["ReceiptHandle"][0]) is None


def test_a_get_may_ask(server: Server, name: str, url: str) -> None:
    form = urlencode({"Action": "SendMessage", "MessageBody": "a b+c", "Version": "2012-11-05"})
    result_of(send(server, "GET", f"/{ACCOUNT}/{name}?{form}"), "SendMessage")
    assert ask(server, "ReceiveMessage", QueueUrl=url)["Message"][0]["Body"] == ["a b+c"]


# -- errors ------------------------------------------------------------------------------------------------------------


def assert_error(answer: Answer, status: int, code: str, message: str | None = None) -> None:
    error = error_of(answer)
    assert (answer.status, error["Code"], error["Type"]) == (status, code, "Sender")
    if message is not None:
        assert error["Message"] == message


def test_errors_are_xml_with_the_old_codes(server: Server, url: str) -> None:
    assert_error(
        send_form(server, "GetQueueUrl", QueueName="not-there"),
        400,
        "AWS.SimpleQueueService.NonExistentQueue",
        "The specified queue does not exist for this wsdl version.",
    )
    assert_error(send_form(server, "DeleteMessage", QueueUrl=url, ReceiptHandle="x"), 404, "ReceiptHandleIsInvalid")
    assert_error(send_form(server, "SendMessage", QueueUrl=url), 400, "MissingParameter")
    assert_error(send_form(server, "SendMessage", QueueUrl=url, MessageBody="\x01"), 400, "InvalidMessageContents")
    assert_error(send_form(server, "SendMessageBatch", QueueUrl=url), 400, "AWS.SimpleQueueService.EmptyBatchRequest")


@pytest.mark.parametrize("action", ["Nonsense", "sendmessage", "__init__", "config"])
def test_an_unknown_action_is_refused(server: Server, action: str) -> None:
    assert_error(send_form(server, action), 400, "InvalidAction")


@pytest.mark.parametrize(
    "body",
    [
        "Action=ReceiveMessage&QueueUrl={url}&MaxNumberOfMessages=abc",
        "Action=ReceiveMessage&QueueUrl={url}&MaxNumberOfMessages=" + "9" * 5_000,
        "Action=SendMessage&QueueUrl={url}&MessageBody=%ff%fe",
        "Action=SendMessage&QueueUrl={url}&MessageBody.1=x&MessageBody=x",
        "Action=SendMessage&QueueUrl={url}&MessageBody=x&MessageBody.1.2=x",
        "Action=SendMessage&QueueUrl={url}&MessageBody=x&MessageAttribute.1.Value.DataType=String",
        "Action=SendMessage&QueueUrl={url}&MessageBody=x&MessageAttribute.1=x",
        "Action=SendMessage&QueueUrl={url}&MessageBody=x&MessageAttribute.1.Name=a&MessageAttribute.1.Value=x",
        "Action=SendMessage&QueueUrl={url}&MessageBody=x&MessageAttribute.1.Name=a"
        "&MessageAttribute.1.Value.BinaryValue=***",
        "Action=SendMessage&QueueUrl={url}&" + ".".join("abcdefghij") + "=x",
        "Action=TagQueue&QueueUrl={url}&Tag.1.Key=a&Tag.1.Value.2=x",
        "Action=TagQueue&QueueUrl={url}&Tag=x&Tag.1.Key=a",
        "Action=SendMessageBatch&QueueUrl={url}&SendMessageBatchRequestEntry.1=x",
        "&".join(f"a{number}=b" for number in range(20_001)) + "&Action=ListQueues",
    ],
)
def test_a_form_that_makes_no_sense_is_malformed(server: Server, url: str, body: str) -> None:
    answer = send(server, "POST", "/", body.replace("{url}", url))
    assert_error(answer, 400, "MalformedInput")


def test_other_methods_are_not_allowed(server: Server) -> None:
    for method in ("PUT", "DELETE"):
        answer = send(server, method, "/", "Action=ListQueues")
        assert (answer.status, error_of(answer)["Code"]) == (405, "MethodNotAllowed")


def test_an_error_quotes_nothing_that_breaks_xml(server: Server) -> None:
    answer = send_form(server, "CreateQueue", QueueName="<a>\x00&\ud7ff\ufffe")
    assert_error(answer, 400, "InvalidParameterValue")
    answer = send_form(server, "GetQueueAttributes", QueueUrl="http://\x01<&>/")
    assert_error(answer, 404, "InvalidAddress")
