"""Every front end's changes of queues are in the audit log, whoever makes them, and also if he does not wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.store.layout import AUDIT_NAME
from tests.server.serving import Served, served, until


def call(server: Served, front_end: str, method: str, path: str, body: str = "", *headers: str) -> tuple[int, str]:
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}", *headers]
    return server.talk(front_end, "\r\n".join(lines) + "\r\n\r\n" + body)


def sqs(server: Served, action: str, **fields: Any) -> dict[str, Any]:
    headers = ("content-type: application/x-amz-json-1.0", f"x-amz-target: AmazonSQS.{action}")
    _, answer = call(server, "sqs", "POST", "/", json.dumps(fields), *headers)
    found: dict[str, Any] = json.loads(answer or "{}")
    return found


def sns(server: Served, action: str, **fields: str) -> str:
    form = "&".join(f"{name}={value}" for name, value in {"Action": action, "Version": "2010-03-31", **fields}.items())
    return call(server, "sqs", "POST", "/", form, "content-type: application/x-www-form-urlencoded")[1]


def lines(server: Served) -> list[tuple[str, str | None, str]]:
    """What, about what, and how it went; the oldest first."""
    path = server.data / AUDIT_NAME
    text = path.read_text() if path.exists() else ""
    return [(each["what"], each["queue"], each["outcome"]) for each in map(json.loads, text.splitlines())]


def test_changes_over_sqs_sns_and_nsq_are_in_the_audit_log(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        url = sqs(server, "CreateQueue", QueueName="orders")["QueueUrl"]
        sqs(server, "SendMessage", QueueUrl=url, MessageBody="secret body")
        sqs(server, "SetQueueAttributes", QueueUrl=url, Attributes={"VisibilityTimeout": "60"})
        sqs(server, "PurgeQueue", QueueUrl=url)
        sqs(server, "DeleteQueue", QueueUrl=url)
        sqs(server, "DeleteQueue", QueueUrl=url)
        arn = "arn:aws:sns:us-east-1:000000000000:news"
        assert arn in (made := sns(server, "CreateTopic", Name="news")), made
        sns(server, "Publish", TopicArn=arn, Message="secret body")
        sns(server, "DeleteTopic", TopicArn=arn)
        assert call(server, "nsq-http", "POST", "/topic/create?topic=clicks")[0] == 200
        assert call(server, "nsq-http", "POST", "/pub?topic=clicks", "secret body")[0] == 200
        assert call(server, "nsq-http", "POST", "/topic/delete?topic=clicks")[0] == 200
        assert lines(server) == [
            ("CreateQueue", "orders", "ok"),
            ("SetQueueAttributes", "orders", "ok"),
            ("PurgeQueue", "orders", "ok"),
            ("DeleteQueue", "orders", "ok"),
            ("DeleteQueue", "orders", "AWS.SimpleQueueService.NonExistentQueue"),
            ("CreateTopic", "news", "ok"),
            ("DeleteTopic", arn, "ok"),
            ("/topic/create", "clicks", "ok"),
            ("/topic/delete", "clicks", "ok"),
        ]
        assert "secret body" not in (server.data / AUDIT_NAME).read_text()


def test_a_change_over_sqs_is_written_down_although_its_caller_hangs_up(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        for number in range(20):
            form = f"Action=CreateQueue&QueueName=q{number}"
            with server.connect("sqs") as connection:
                head = f"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(form)}\r\n"
                connection.sendall(f"{head}content-type: application/x-www-form-urlencoded\r\n\r\n{form}".encode())
        until(lambda: len(sqs(server, "ListQueues")["QueueUrls"]) == 20)
        until(lambda: {queue for _, queue, _ in lines(server)} == {f"q{number}" for number in range(20)})
