"""Receipts over a crash, and receipts that are used twice: real clients, a real process, `kill -9`.

The server is killed as soon as the messages were received. Leases are not on the disk by then, or just so: both must
make no difference to who received them.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

import penstock
from tests.compat.server import Server, serving

ROUNDS = 10
SQS_QUEUES = ("deleted", "batched", "line.fifo")
HTTP_QUEUES = ("acked", "spanned")


def post(server: Server, path: str, content: object) -> tuple[int, Any]:
    body = json.dumps(content).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}{path}", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def create(server: Server) -> None:
    sqs = server.client()
    for queue in SQS_QUEUES:
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if queue.endswith(".fifo") else {}
        sqs.create_queue(QueueName=queue, Attributes=attributes)


def send_and_receive(sqs: Any, server: Server, queue: str, *bodies: str) -> list[Any]:
    url, found = server.queue_url(queue), list[Any]()
    for body in bodies:
        group = {"MessageGroupId": body} if queue.endswith(".fifo") else {}
        sqs.send_message(QueueUrl=url, MessageBody=body, **group)
    while len(found) < len(bodies):
        found += sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
    return found


def left(ps: Any, *queues: str) -> dict[str, int]:
    """Messages that are still there, wherever they wait."""
    found = {}
    for queue in queues:
        channel = ps.queue(queue).stats().channels["main"]
        found[queue] = channel.ready + channel.leased + channel.delayed
    return {queue: count for queue, count in found.items() if count}


def test_a_receipt_from_before_a_crash_settles_its_message(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        create(server)
        for number in range(ROUNDS):
            sqs, rest = server.client(), f"{number}"
            with penstock.connect(f"penstock://127.0.0.1:{server.http_port}") as ps:
                for queue in HTTP_QUEUES:
                    ps.queue(queue).send(rest)
                held = {queue: send_and_receive(sqs, server, queue, rest, f"{rest}-again") for queue in SQS_QUEUES}
                (spanned,) = ps.queue("spanned").receive(max=1)
                _, received = post(server, "/v1/queues/acked/receive", {})
                server.kill()
            server.start()
            sqs, receipts = server.client(), {queue: [each["ReceiptHandle"] for each in held[queue]] for queue in held}
            for queue in ("deleted", "line.fifo"):
                for receipt in receipts[queue]:
                    sqs.delete_message(QueueUrl=server.queue_url(queue), ReceiptHandle=receipt)
            entries = [{"Id": str(at), "ReceiptHandle": receipt} for at, receipt in enumerate(receipts["batched"])]
            answer = sqs.delete_message_batch(QueueUrl=server.queue_url("batched"), Entries=entries)
            assert len(answer["Successful"]) == 2, answer
            acked = post(server, "/v1/queues/acked/ack", {"receipt": received["messages"][0]["receipt"]})
            assert acked[0] == 200, acked
            with penstock.connect(f"penstock://127.0.0.1:{server.http_port}") as ps:
                ps.queue("spanned").ack(spanned.receipt)
                assert left(ps, *SQS_QUEUES, *HTTP_QUEUES) == {}, f"confirmed, and still there, in round {number}"
        server.kill()
        server.start()
        for queue in SQS_QUEUES:
            assert "Messages" not in server.client().receive_message(QueueUrl=server.queue_url(queue))


def test_a_visibility_from_before_a_crash_is_changed(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        create(server)
        for number in range(3):
            sqs, url = server.client(), server.queue_url("deleted")
            kept, returned = send_and_receive(sqs, server, "deleted", f"{number} kept", f"{number} returned")
            server.kill()
            server.start()
            sqs = server.client()
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=kept["ReceiptHandle"], VisibilityTimeout=600)
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=returned["ReceiptHandle"], VisibilityTimeout=0)
            (again,) = sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, AttributeNames=["ApproximateReceiveCount"]
            )["Messages"]
            assert again["MessageId"] == returned["MessageId"], "the other one is still in flight"
            assert again["Attributes"]["ApproximateReceiveCount"] == "2"
            for message in (kept, again):
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


# -- used twice --------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        create(server)
        yield server


def test_a_fifo_message_may_be_deleted_twice(own_server: Server) -> None:
    sqs, url = own_server.client(), own_server.queue_url("line.fifo")
    one, other = send_and_receive(sqs, own_server, "line.fifo", "one", "other")
    for _ in range(2):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        entries = [
            {"Id": "1", "ReceiptHandle": other["ReceiptHandle"]},
            {"Id": "2", "ReceiptHandle": one["ReceiptHandle"]},
        ]
        answer = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
        assert not answer.get("Failed"), answer
    own_server.kill()
    own_server.start()
    own_server.client().delete_message(QueueUrl=own_server.queue_url("line.fifo"), ReceiptHandle=one["ReceiptHandle"])


def test_a_fifo_receipt_that_was_superseded_is_refused_before_and_after_the_delete(own_server: Server) -> None:
    sqs, url = own_server.client(), own_server.queue_url("line.fifo")
    (old,) = send_and_receive(sqs, own_server, "line.fifo", "one")
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"], VisibilityTimeout=0)
    (new,) = sqs.receive_message(QueueUrl=url)["Messages"]
    with pytest.raises(ClientError, match="has expired"):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=new["ReceiptHandle"])
    with pytest.raises(ClientError, match="has expired"):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"])


def test_a_fifo_receipt_may_be_acked_twice_by_rest(own_server: Server) -> None:
    path = "/v1/queues/line.fifo"
    messages = [{"body": "one", "group": "a", "dedup_id": "1"}, {"body": "two", "group": "b", "dedup_id": "2"}]
    post(own_server, f"{path}/messages", messages)
    receipts = [each["receipt"] for each in post(own_server, f"{path}/receive", {"max": 10})[1]["messages"]]
    assert len(receipts) == 2
    for _ in range(2):
        status, answer = post(own_server, f"{path}/ack", {"receipts": receipts})
        assert status == 200 and not answer["refused"], answer
        assert post(own_server, f"{path}/ack", {"receipt": receipts[0]})[0] == 200
