"""How many publishes a second does SNS take and deliver, against the same fan-out by SendMessage calls?

One boto3 client publishes to a topic with 1, 10 and 100 subscribed queues, and the clock stops when every queue has
every message. The measure is the same client that sends each message to each of the queues itself.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import boto3

from tests.compat.server import REGION, serving

ARN = "arn:aws:sqs:us-east-1:000000000000:"
MESSAGES = {1: 500, 10: 300, 100: 50}
PATIENCE_S = 120.0


def main() -> None:
    """Print a row for each number of queues."""
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as server:
        options: dict[str, Any] = {
            "endpoint_url": server.url,
            "region_name": REGION,
            "aws_access_key_id": "any",
            "aws_secret_access_key": "any",
        }
        sns, sqs = boto3.client("sns", **options), boto3.client("sqs", **options)
        print("queues  published/s  delivered/s  by SendMessage/s  ratio (delivered)")
        for queues, messages in MESSAGES.items():
            topic = sns.create_topic(Name=f"topic-{queues}")["TopicArn"]
            urls = [sqs.create_queue(QueueName=f"q-{queues}-{each}")["QueueUrl"] for each in range(queues)]
            for each in range(queues):
                sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=f"{ARN}q-{queues}-{each}")
            start = time.perf_counter()
            for _ in range(messages):
                sns.publish(TopicArn=topic, Message="x" * 100)
            published_s = time.perf_counter() - start
            for url in urls:
                _wait(sqs, url, messages)
            delivered_s = time.perf_counter() - start
            start = time.perf_counter()
            by_hand = max(5, messages // queues)
            for _ in range(by_hand):
                for url in urls:
                    sqs.send_message(QueueUrl=url, MessageBody="x" * 100)
            sent = by_hand / (time.perf_counter() - start)
            delivered = messages / delivered_s
            print(
                f"{queues:6}  {messages / published_s:11.0f}  {delivered:11.0f}  {sent:16.1f}  {delivered / sent:5.1f}"
            )


def _wait(sqs: Any, url: str, messages: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
        if int(found["Attributes"]["ApproximateNumberOfMessages"]) >= messages:
            return
        time.sleep(0.01)
    raise SystemExit(f"{url} has not got its {messages} messages within {PATIENCE_S:.0f} s")


if __name__ == "__main__":
    main()
