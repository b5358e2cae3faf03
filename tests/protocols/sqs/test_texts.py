"""Texts arrive as they were sent, whatever they hold; batches are settled whatever their receipts say."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.protocols.sqs.serving import Server

BODIES = ["plain", "with \x7f", 'a "quote"', "back\\slash", "tab\tand\nline", "é", "\U0001f600", "x" * 1_000, "{}", " "]


def test_texts_arrive_as_they_were_sent_whatever_they_hold(server: Server, sqs: Any, url: str) -> None:
    for number, body in enumerate(BODIES):
        sent = sqs.send_message(QueueUrl=url, MessageBody=body)
        entries = [{"Id": str(index), "MessageBody": f"{body}{index}"} for index in range(number + 1)]
        batch = sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]
        expected = [(body, sent["MessageId"])]
        expected += [(f"{body}{index}", entry["MessageId"]) for index, entry in enumerate(batch)]
        for _ in range(2):
            seen: list[dict[str, Any]] = []
            while len(seen) < len(expected):
                seen += sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
            assert sorted((message["Body"], message["MessageId"]) for message in seen) == sorted(expected)
            for message in seen:
                assert message["MD5OfBody"] == hashlib.md5(message["Body"].encode()).hexdigest()
            server.advance(31)
        sqs.purge_queue(QueueUrl=url)
        server.advance(61)


def test_plain_and_other_messages_of_one_receive_come_together(sqs: Any, url: str) -> None:
    entries = [{"Id": str(index), "MessageBody": body} for index, body in enumerate(BODIES)]
    for entry in entries:
        sqs.send_message(QueueUrl=url, MessageBody=entry["MessageBody"])
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in received] == BODIES
    handles = [{"Id": str(index), "ReceiptHandle": each["ReceiptHandle"]} for index, each in enumerate(received)]
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=handles)
    assert [entry["Id"] for entry in deleted["Successful"]] == [str(index) for index in range(10)]


def test_a_batch_with_one_bad_receipt_deletes_the_others(server: Server, sqs: Any, url: str) -> None:
    for number in range(4):
        sqs.send_message(QueueUrl=url, MessageBody=f"message {number}")
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    handles = [each["ReceiptHandle"] for each in received]
    entries = [
        {"Id": str(index), "ReceiptHandle": each} for index, each in enumerate([*handles[:2], "bad", *handles[2:]])
    ]
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in deleted["Successful"]] == ["0", "1", "3", "4"]
    assert [(entry["Id"], entry["Code"]) for entry in deleted["Failed"]] == [("2", "ReceiptHandleIsInvalid")]
    server.advance(31)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_messages_of_one_batch_may_be_deleted_twice_and_in_any_order(server: Server, sqs: Any, url: str) -> None:
    for number in range(6):
        sqs.send_message(QueueUrl=url, MessageBody=f"message {number}")
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    order = [4, 1, 1, 0, 5, 3]
    entries = [{"Id": f"e{n}", "ReceiptHandle": received[which]["ReceiptHandle"]} for n, which in enumerate(order)]
    for _ in range(2):
        deleted = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
        assert sorted(entry["Id"] for entry in deleted["Successful"]) == sorted(f"e{n}" for n in range(len(order)))
    server.advance(31)
    left = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in left] == ["message 2"]
