"""The AWS CLI, as a user types it. Every call costs a second: few calls, each with much in it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compat.server import ACCOUNT, REGION, Server, until

REFUSED = 255
"""Exit status of the CLI's version 1 when the service answers with an error."""


class Cli:
    """`aws sqs ...` against one server, with nothing of the user's own settings."""

    def __init__(self, server: Server, home: Path, service: str = "sqs") -> None:
        self._command = [sys.executable, "-m", "awscli", "--endpoint-url", server.url, service]
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_MAX_ATTEMPTS": "1",
            "LC_ALL": "C.UTF-8",
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *words], env=self._environment, capture_output=True, text=True, timeout=60
        )

    def __call__(self, *words: str) -> Any:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else None


@pytest.fixture
def aws(server: Server, tmp_path: Path) -> Cli:
    return Cli(server, tmp_path)


def test_a_queue_is_made_used_and_purged(aws: Cli, sqs: Any, name: str) -> None:
    attributes = json.dumps({"VisibilityTimeout": "600", "DelaySeconds": "0"})
    made = aws("create-queue", "--queue-name", name, "--attributes", attributes, "--tags", "team=sales,place=Köln")
    url = made["QueueUrl"]
    described = {
        "colour": {"DataType": "String", "StringValue": "blau"},
        "raw": {"DataType": "Binary", "BinaryValue": "bytes"},
    }
    message = ("--message-body", "grüße", "--message-attributes", json.dumps(described))
    sent = aws("send-message", "--queue-url", url, *message)
    batch = aws("send-message-batch", "--queue-url", url, "--entries", "Id=a,MessageBody=1", "Id=b,MessageBody=2")
    assert [each["Id"] for each in batch["Successful"]] == ["a", "b"]

    every = ("--max-number-of-messages", "10", "--attribute-names", "All", "--message-attribute-names", "All")
    messages = aws("receive-message", "--queue-url", url, *every)["Messages"]
    assert [message["Body"] for message in messages] == ["grüße", "1", "2"]
    assert messages[0]["MessageId"] == sent["MessageId"]
    assert messages[0]["MessageAttributes"]["colour"]["StringValue"] == "blau"
    assert messages[0]["MessageAttributes"]["raw"]["BinaryValue"] == base64.b64encode(b"bytes").decode()
    assert messages[0]["Attributes"]["ApproximateReceiveCount"] == "1"

    entries = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages[:2])]
    request = json.dumps({"QueueUrl": url, "Entries": [*entries, {"Id": "wrong", "ReceiptHandle": "nonsense"}]})
    deleted = aws("delete-message-batch", "--cli-input-json", request)
    assert [each["Id"] for each in deleted["Successful"]] == ["0", "1"]
    assert [each["Code"] for each in deleted["Failed"]] == ["ReceiptHandleIsInvalid"]

    told = aws("get-queue-attributes", "--queue-url", url, "--attribute-names", "All")["Attributes"]
    assert (told["VisibilityTimeout"], told["QueueArn"]) == ("600", f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}")
    assert (told["ApproximateNumberOfMessages"], told["ApproximateNumberOfMessagesNotVisible"]) == ("0", "1")
    assert aws("list-queue-tags", "--queue-url", url)["Tags"] == {"team": "sales", "place": "Köln"}
    assert aws("purge-queue", "--queue-url", url) is None
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert told["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_dead_letters_are_moved_back(aws: Cli, sqs: Any, name: str) -> None:
    dead_arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}-dead"
    sqs.create_queue(QueueName=f"{name}-dead")
    redrive = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 1})
    url = sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": redrive})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="poison")
    assert sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)

    assert aws("start-message-move-task", "--source-arn", dead_arn)["TaskHandle"]
    until(lambda: sqs.list_message_move_tasks(SourceArn=dead_arn)["Results"][0]["Status"] == "COMPLETED")
    (task,) = aws("list-message-move-tasks", "--source-arn", dead_arn)["Results"]
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 1)
    (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == "poison"


def test_queues_are_listed_page_by_page(aws: Cli, sqs: Any, name: str) -> None:
    for number in range(5):
        sqs.create_queue(QueueName=f"{name}-{number}")
    urls = aws("list-queues", "--queue-name-prefix", f"{name}-", "--page-size", "2")["QueueUrls"]
    assert [url.rpartition("/")[2] for url in urls] == [f"{name}-{number}" for number in range(5)]


def test_an_error_is_told_by_exit_status_and_code(aws: Cli, name: str) -> None:
    refused = aws.run("get-queue-url", "--queue-name", name)
    assert (refused.returncode, refused.stdout) == (REFUSED, "")
    assert "(AWS.SimpleQueueService.NonExistentQueue)" in refused.stderr
    assert "The specified queue does not exist" in refused.stderr
