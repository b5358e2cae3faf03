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
ROUNDS = {1: 10, 10: 10, 100: 2}
"""Of each number of queues: to ask a hundred queues how much they have takes its time, too."""


def main() -> None:
    """Print a row for each number of queues and each server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=float, default=1.0, help="which share of the messages: 0.1 for a quick look")
    parser.add_argument("--queues", type=int, nargs="*", default=list(MESSAGES), help="how many are subscribed")
    asked = parser.parse_args()
    print("queues  server         published/s  delivered/s  by SendMessage/s  ratio (delivered)")
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as server, moto() as other:
        for queues in asked.queues:
            rounds = ROUNDS[queues]
            messages = max(rounds, round(MESSAGES[queues] * asked.part))
            compared = [
                Run("penstock", server.url, queues, raw=False),
                Run("penstock, raw", server.url, queues, raw=True),
            ]
            compared += [Run("moto", other, queues, raw=True)] if other else []
            by_hand_s = 0.0
            by_hand = max(1, messages // queues // rounds)
            for _ in range(rounds):  # in turns: what else the machine does meets all of them
                for run in compared:
                    run.publish(messages // rounds)
                by_hand_s += compared[0].send_by_hand(by_hand)
            sent = rounds * by_hand / by_hand_s
            for run in compared:
                published, delivered = run.messages / run.published_s, run.messages / run.delivered_s
                row = f"{published:11.0f}  {delivered:11.1f}  {sent:16.1f}  {delivered / sent:5.1f}"
                print(f"{queues:6}  {run.name:13}  {row}", flush=True)


class Run:
    """A topic of a server, with so many queues."""

    def __init__(self, name: str, url: str, queues: int, *, raw: bool) -> None:
        self.name = name
        self.messages, self.published_s, self.delivered_s = 0, 0.0, 0.0
        self._sns, self._sqs = client(url, "sns"), client(url, "sqs")
        title = f"bench-{queues}-{'raw' if raw else 'envelope'}"
        self._topic = self._sns.create_topic(Name=title)["TopicArn"]
        attributes = {"RawMessageDelivery": "true"} if raw else {}
        self._urls = [self._sqs.create_queue(QueueName=f"{title}-{each}")["QueueUrl"] for each in range(queues)]
        for each in self._urls:
            told = self._sqs.get_queue_attributes(QueueUrl=each, AttributeNames=["QueueArn"])["Attributes"]
            self._sns.subscribe(TopicArn=self._topic, Protocol="sqs", Endpoint=told["QueueArn"], Attributes=attributes)
        self._sns.publish(TopicArn=self._topic, Message="x")
        self._there = 1
        self._wait()

    def publish(self, messages: int) -> None:
        """Publish so many, and wait until every queue has them."""
        start = time.perf_counter()
        for _ in range(messages):
            self._sns.publish(TopicArn=self._topic, Message="x" * 100)
        self.published_s += time.perf_counter() - start
        self._there += messages
        self._wait()
        self.delivered_s += time.perf_counter() - start
        self.messages += messages

    def send_by_hand(self, messages: int) -> float:
        """How long it takes to send so many to each queue."""
        start = time.perf_counter()
        for _ in range(messages):
            for url in self._urls:
                self._sqs.send_message(QueueUrl=url, MessageBody="x" * 100)
        self._there += messages
        return time.perf_counter() - start

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        for url in self._urls:
            while True:
                told = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
                if int(told["Attributes"]["ApproximateNumberOfMessages"]) >= self._there:
                    break
                if time.monotonic() > deadline:
                    raise SystemExit(f"{url} has not got its {self._there} messages within {PATIENCE_S:.0f} s")
                time.sleep(0.01)


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


if __name__ == "__main__":
    main()
