"""How many publishes a second does SNS take and deliver, against a fan-out by SendMessage calls, and against moto?

One boto3 client publishes to a topic with 1, 10 and 100 subscribed queues, and the clock stops when every queue has
every message. The measure is the same client that sends each message to each of the queues itself. moto's server, which
keeps everything in memory, does the same work beside it, if it is installed. Envelopes are signed as on AWS; `raw` is
the same with raw delivery.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from tests.compat.server import REGION, serving
from tests.ports import free_port

MESSAGES = {1: 500, 10: 300, 100: 50}
PATIENCE_S = 120.0


def main() -> None:
    """Print a row for each number of queues."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=float, default=1.0, help="which share of the messages: 0.1 for a quick look")
    part: float = parser.parse_args().part
    print("queues  server         published/s  delivered/s  by SendMessage/s  ratio (delivered)")
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as server, moto() as other:
        for queues, most in MESSAGES.items():
            messages = max(5, round(most * part))
            by_hand = 0.0
            for name, url, raw in (
                ("penstock", server.url, False),
                ("penstock, raw", server.url, True),
                ("moto", other, True),
            ):
                if not url:
                    continue
                sns, sqs = (client(url, service) for service in ("sns", "sqs"))
                published, delivered, urls = fan_out(sns, sqs, queues, messages, raw)
                if name == "penstock":
                    by_hand = sent_by_hand(sqs, urls, max(5, messages // queues))
                print(
                    f"{queues:6}  {name:13}  {published:11.0f}  {delivered:11.1f}  {by_hand:16.1f}  "
                    f"{delivered / by_hand:5.1f}",
                    flush=True,
                )


def client(url: str, service: str) -> Any:
    """boto3, as anybody would use it."""
    return boto3.client(
        service, endpoint_url=url, region_name=REGION, aws_access_key_id="any", aws_secret_access_key="any"
    )


@contextmanager
def moto() -> Iterator[str]:
    """moto's server; an empty text if it is not installed."""
    if importlib.util.find_spec("moto") is None:
        yield ""
        return
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{url}/moto-api/", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


def fan_out(sns: Any, sqs: Any, queues: int, messages: int, raw: bool) -> tuple[float, float, list[str]]:
    """Publishes and complete fan-outs a second, and the queues."""
    name = f"bench-{queues}-{'raw' if raw else 'envelope'}"
    topic = sns.create_topic(Name=name)["TopicArn"]
    urls = [sqs.create_queue(QueueName=f"{name}-{each}")["QueueUrl"] for each in range(queues)]
    attributes = {"RawMessageDelivery": "true"} if raw else {}
    for url in urls:
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=attributes)
    sns.publish(TopicArn=topic, Message="x")
    for url in urls:
        wait(sqs, url, 1)
    start = time.perf_counter()
    for _ in range(messages):
        sns.publish(TopicArn=topic, Message="x" * 100)
    published_s = time.perf_counter() - start
    for url in urls:
        wait(sqs, url, messages + 1)
    return messages / published_s, messages / (time.perf_counter() - start), urls


def sent_by_hand(sqs: Any, urls: list[str], messages: int) -> float:
    """Complete fan-outs a second, by a SendMessage for each queue."""
    start = time.perf_counter()
    for _ in range(messages):
        for url in urls:
            sqs.send_message(QueueUrl=url, MessageBody="x" * 100)
    return messages / (time.perf_counter() - start)


def wait(sqs: Any, url: str, messages: int) -> None:
    """Until a queue has so many."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
        if int(found["Attributes"]["ApproximateNumberOfMessages"]) >= messages:
            return
        time.sleep(0.01)
    raise SystemExit(f"{url} has not got its {messages} messages within {PATIENCE_S:.0f} s")


if __name__ == "__main__":
    main()
