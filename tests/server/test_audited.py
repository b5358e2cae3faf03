"""Every front end's changes of queues are in the audit log, whoever makes them, and also if he does not wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.store.layout import AUDIT_NAME
from tests.server.serving import Served, served, until

_CREDENTIALS = """
[[credentials]]
access_key = "root"
token = "token-of-root-0123"
secret_key = "secret-of-root-0123"
[[credentials]]
access_key = "reader"
token = "token-of-reader-0123"
secret_key = "secret-of-reader-0123"
allow = [{queues = ["*"], rights = ["read"]}]
"""
_ROOT = "authorization: Bearer token-of-root-0123"
_READER = "authorization: Bearer token-of-reader-0123"


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
            ("CreateTopic", "sns.news", "ok"),
            ("DeleteTopic", "sns.news", "ok"),
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


def rest(server: Served, method: str, path: str, body: Any = None, *headers: str) -> tuple[int, Any]:
    sent = "" if body is None else json.dumps(body)
    status, answer = call(server, "http", method, path, sent, "content-type: application/json", *headers)
    return status, json.loads(answer or "null")


def scopes(server: Served) -> list[tuple[str, str | None, dict[str, Any]]]:
    text = (server.data / AUDIT_NAME).read_text()
    return [(each["what"], each["queue"], each["scope"]) for each in map(json.loads, text.splitlines())]


def test_a_change_of_a_topic_is_found_by_its_queue_whatever_else_the_request_names(tmp_path: Path) -> None:
    """A field that the action does not have would put the change on somebody else's account."""
    with served(tmp_path) as server:
        arn = "arn:aws:sns:us-east-1:000000000000:news"
        sns(server, "CreateTopic", Name="news", TopicArn="payroll")
        sns(server, "TagResource", ResourceArn=arn, TopicArn="payroll", **{"Tags.member.1.Key": "k"})
        sns(server, "Unsubscribe", SubscriptionArn=f"{arn}:1234", TopicArn="payroll")
        sns(server, "SetSubscriptionAttributes", SubscriptionArn=f"{arn}:1234", Name="payroll")
        sns(server, "PutDataProtectionPolicy", ResourceArn=arn, Name="payroll")
        sns(server, "DeleteTopic", TopicArn=arn, SubscriptionArn="payroll")
        sns(server, "DeleteTopic", TopicArn="no arn")
        assert [queue for _, queue, _ in lines(server)] == ["sns.news"] * 6 + ["no arn"]
        entries = rest(server, "GET", "/v1/audit?queue=sns.news")[1]["entries"]
        assert [each["what"] for each in entries][::5] == ["DeleteTopic", "CreateTopic"]


def test_a_redrive_is_written_down_for_its_source(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        dead = "arn:aws:sqs:us-east-1:000000000000:dead"
        sqs(server, "CreateQueue", QueueName="dead")
        policy = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": "2"})
        sqs(server, "CreateQueue", QueueName="orders", Attributes={"RedrivePolicy": policy})
        sqs(server, "CreateQueue", QueueName="other")
        other = "arn:aws:sqs:us-east-1:000000000000:other"
        assert "TaskHandle" in sqs(server, "StartMessageMoveTask", SourceArn=dead, DestinationArn=other)
        sqs(server, "StartMessageMoveTask", SourceArn=dead, DestinationArn=f"{other}2")
        assert rest(server, "POST", "/v1/redrives", {"queue": "orders", "target": "other"})[0] == 201
        assert scopes(server)[-3:-1] == [
            ("StartMessageMoveTask", "dead", {"target": "other"}),
            ("StartMessageMoveTask", "dead", {"target": "other2"}),
        ]
        what, queue, scope = scopes(server)[-1]
        assert (what, queue, scope["target"]) == ("start_redrive", "orders", "other")


def test_a_channel_that_an_nsq_client_creates_by_its_use_is_in_the_audit_log(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        for channel in ("work", "work", "tap#ephemeral"):
            with server.connect("nsq") as connection:
                connection.sendall(b"  V2SUB clicks " + channel.encode() + b"\n")
                assert connection.recv(100).endswith(b"OK")
        assert scopes(server) == [("SUB", "clicks", {"channel": each}) for each in ("work", "tap#ephemeral")]
        (first, *_) = map(json.loads, (server.data / AUDIT_NAME).read_text().splitlines())
        assert (first["who"], first["from"]) == ("anybody", "127.0.0.1")


def test_changes_of_nsqs_settings_and_new_bulk_channels_are_in_the_audit_log(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert call(server, "nsq-http", "PUT", "/config/log_level", "warn")[0] == 200
        assert call(server, "nsq-http", "GET", "/config/log_level")[0] == 200
        assert call(server, "nsq-http", "POST", "/topic/create?topic=clicks")[0] == 200
        assert call(server, "nsq-http", "POST", "/channel/create?topic=clicks&channel=tap")[0] == 200
        assert scopes(server)[2] == ("/channel/create", "clicks", {"channel": "tap"})
        rest(server, "POST", "/v1/queues", {"name": "orders"})
        assert rest(server, "POST", "/v1/bulk/channels", {"queue": "orders", "channel": "tap", "offset": 0})[0] == 204
        what, queue, scope = scopes(server)[-1]
        assert (what, queue, scope["channel"]) == ("channels", "orders", "tap")
        assert scopes(server)[0] == ("PUT /config/", None, {"option": "log_level"})
        assert len(scopes(server)) == 5


def test_strangers_and_readers_at_work_write_no_lines(tmp_path: Path) -> None:
    """Unsigned links, and a consumer that is moved to and fro, could push out everything else."""
    with served(tmp_path, _CREDENTIALS) as server:
        rest(server, "POST", "/v1/queues", {"name": "orders"}, _ROOT)
        for action in ("Unsubscribe&SubscriptionArn", "ConfirmSubscription&TopicArn"):
            assert call(server, "sqs", "GET", f"/?Action={action}=" + "%01" * 1_000)[0] in (400, 403)
        path = "/v1/queues/orders/consumers/mine"
        assert rest(server, "PUT", path, {"offset": 0, "allow_rewind": True}, _READER)[0] == 200
        assert rest(server, "DELETE", path, None, _READER)[0] == 204
        assert [what for what, _, _ in lines(server)] == ["create_queue", "delete_consumer"]
        for _ in range(100):
            rest(server, "PUT", path, {"offset": 0}, _READER, "sec-fetch-site: same-origin")
        assert 10 <= len(lines(server)) <= 80, "anybody may say that he is the console"


def test_a_line_is_short_in_both_logs_however_long_the_names_are(tmp_path: Path) -> None:
    with served(tmp_path, _CREDENTIALS) as server:
        long = "%01" * 4_000
        assert rest(server, "POST", f"/v1/queues/{long}/purge", None, _READER)[0] == 403
        assert rest(server, "POST", f"/v1/queues/orders/channels/{long}/pause", None, _READER)[0] == 403
        audited = (server.data / AUDIT_NAME).read_bytes().splitlines()
        assert len(audited) == 2 and max(map(len, audited)) < 2_048
        until(lambda: server.log.count("access_denied") == 2)
        assert max(len(line) for line in server.log.splitlines()) < 2_048


def test_pieces_of_messages_are_not_written_down_on_a_server_with_masks(tmp_path: Path) -> None:
    with served(tmp_path, "[console]\nmask = ['secret[0-9]+']\n") as server:
        rest(server, "POST", "/v1/queues", {"name": "orders"})
        asked = {"queue": "orders", "target": "other", "contains": "secret1", "error": "secret2", "group": "secret3"}
        rest(server, "POST", "/v1/redrives", asked)
        assert "secret" not in (text := (server.data / AUDIT_NAME).read_text()), text
        _, _, scope = scopes(server)[-1]
        assert (scope["contains"], scope["error"], scope["group"]) == ("•••", "•••", "•••")
