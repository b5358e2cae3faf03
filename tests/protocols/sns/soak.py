"""`kill -9` under load: `python -m tests.protocols.sns.soak [--kills 50] [--where node|shards|kafka] [--seed N]`.

Two publishers never stop. Two queues are subscribed from the start; in each round one more queue is, in the middle of
the load. Then a process is killed: the server, which may have several shards, or one node of a cluster. What must hold:

- Every acknowledged publish arrives in both queues, once.
- A later subscription gets every acknowledged publish that began after it was made, and none that ended before.

A publish that was not acknowledged may arrive or not: nobody repeats it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.cluster.nodes import ProcessNode
from tests.compat.server import Server, until
from tools.kafka import KafkaCluster
from tools.servers import QUICK_TO_START

ARN = "arn:aws:sqs:us-east-1:000000000000:"
RAW = {"RawMessageDelivery": "true"}
UNANSWERED = (BotoCoreError, ClientError)
PATIENCE_S = 120.0
PUBLISHERS = 2
Times = tuple[float, float]


def client(url: str, service: str) -> Any:
    """boto3 without repeats, which would hide what was acknowledged."""
    options = Config(retries={"total_max_attempts": 1}, read_timeout=30, connect_timeout=5)
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    return boto3.client(service, endpoint_url=url, config=options, **keys)


def persistently(call: Any, **arguments: Any) -> Any:
    """Call until it is answered: processes are being killed."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call(**arguments)
        except UNANSWERED:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Reader:
    """Empties a queue; which messages came, and under which ids."""

    def __init__(self, url: str, queue: str) -> None:
        self._sqs = client(url, "sqs")
        self._queue = queue
        self.came: dict[str, set[str]] = {}

    def read(self) -> None:
        """What is there, up to ten."""
        try:
            asked = {"QueueUrl": self._queue, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1}
            messages = self._sqs.receive_message(**asked).get("Messages", [])
            for message in messages:
                self.came.setdefault(message["Body"], set()).add(message["MessageId"])
            entries = [
                {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]} for number, each in enumerate(messages)
            ]
            if entries:
                self._sqs.delete_message_batch(QueueUrl=self._queue, Entries=entries)
        except UNANSWERED:
            time.sleep(0.05)

    def until(self, wanted: Callable[[], set[str]]) -> set[str]:
        """Read until all that is wanted has come. What is missing if it does not."""
        deadline = time.monotonic() + PATIENCE_S
        while missing := wanted() - self.came.keys():
            if time.monotonic() > deadline:
                return missing
            self.read()
        return set()

    @property
    def twice(self) -> list[str]:
        """What was delivered more than once: as messages of their own."""
        return [body for body, ids in self.came.items() if len(ids) > 1]


class Load:
    """The publishers, and the readers of the first two queues."""

    def __init__(self, urls: list[str]) -> None:
        self.acknowledged: dict[str, Times] = {}
        self.unanswered = 0
        self._is_over = threading.Event()
        sns, sqs = client(urls[0], "sns"), client(urls[0], "sqs")
        self.topic = persistently(sns.create_topic, Name="news")["TopicArn"]
        for queue in "ab":
            persistently(sqs.create_queue, QueueName=queue)
            persistently(sns.subscribe, TopicArn=self.topic, Protocol="sqs", Endpoint=ARN + queue, Attributes=RAW)
        self.readers = [Reader(urls[number % len(urls)], queue) for number, queue in enumerate("ab")]
        works = [lambda number=number: self._publish(urls[number % len(urls)], number) for number in range(PUBLISHERS)]
        works += [lambda reader=reader: self._read(reader) for reader in self.readers]
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def _publish(self, url: str, publisher: int) -> None:
        sns, number = client(url, "sns"), 0
        while not self._is_over.is_set():
            number += 1
            body, began = f"{publisher}-{number}", time.monotonic()
            try:
                sns.publish(TopicArn=self.topic, Message=body)
            except UNANSWERED:
                self.unanswered += 1
                time.sleep(0.02)
            else:
                self.acknowledged[body] = (began, time.monotonic())

    def _read(self, reader: Reader) -> None:
        while not self._is_over.is_set():
            reader.read()

    def stop(self) -> None:
        """No more publishes."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def soak(
    urls: list[str], kill: Callable[[], None], kills: int, choose: random.Random
) -> tuple[Counter[str], list[str]]:
    """So many rounds: the counts, and what was wrong."""
    load = Load(urls)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    sns, sqs = client(urls[0], "sns"), client(urls[0], "sqs")
    try:
        for number in range(kills):
            name = f"late-{number}"
            persistently(sqs.create_queue, QueueName=name)
            time.sleep(choose.uniform(0, 0.3))
            asked_s = time.monotonic()
            arn = persistently(sns.subscribe, TopicArn=load.topic, Protocol="sqs", Endpoint=ARN + name, Attributes=RAW)[
                "SubscriptionArn"
            ]
            made_s = time.monotonic()
            time.sleep(choose.uniform(0.05, 0.8))
            kill()
            killed_s = time.monotonic()
            times = dict(load.acknowledged)
            due = {body for body, (began, ended) in times.items() if began > made_s and ended < killed_s}
            early = {body for body, (_, ended) in times.items() if ended < asked_s}
            reader = Reader(urls[0], name)
            missing = reader.until(lambda due=due: due)  # type: ignore[misc]
            counts += Counter({"kills": 1, "came to later subscriptions": len(reader.came)})
            wrong += [f"{name}: {body} did not come" for body in missing]
            wrong += [f"{name}: {body} came from before the subscription" for body in early & reader.came.keys()]
            wrong += [f"{name}: {body} came twice" for body in reader.twice]
            persistently(sns.unsubscribe, SubscriptionArn=arn)
            persistently(sqs.delete_queue, QueueUrl=name)
    finally:
        load.stop()
    for queue, reader in zip("ab", load.readers, strict=True):
        wrong += [f"{queue}: {body} did not come" for body in reader.until(lambda: set(load.acknowledged))]
        wrong += [f"{queue}: {body} came twice" for body in reader.twice]
        counts["delivered"] += len(reader.came)
    counts += Counter({"acknowledged": len(load.acknowledged), "not acknowledged": load.unanswered})
    return counts, wrong


def soak_server(directory: Path, kills: int, seed: int, *, shards: int = 0) -> tuple[Counter[str], list[str]]:
    """One server is killed, and comes back."""
    server = Server(directory, shards=shards)

    def kill() -> None:
        server.kill()
        server.start()

    try:
        server.start()
        return soak([server.url], kill, kills, random.Random(seed))
    finally:
        server.kill()


def soak_kafka(directory: Path, kills: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Two nodes on a Kafka of its own. The one that nobody is connected to is killed, and comes back."""
    choose = random.Random(seed)
    kafka = KafkaCluster(1, java_options=(QUICK_TO_START,))
    nodes = [ProcessNode(kafka, "sns-soak", name, directory, session_s=3.0) for name in "ab"]

    def kill() -> None:
        nodes[1].kill()
        time.sleep(choose.uniform(0, 4))
        nodes[1].start()

    try:
        for node in nodes:
            node.start()
        until(lambda: all(node.served for node in nodes))
        return soak([nodes[0].sqs_url], kill, kills, choose)
    finally:
        for node in nodes:
            node.kill()
        kafka.close()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--where", choices=["node", "shards", "kafka"], default="node")
    parser.add_argument("--seed", type=int, default=1_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-sns-") as name:
        directory = Path(name)
        if asked.where == "kafka":
            counts, wrong = soak_kafka(directory, asked.kills, asked.seed)
        else:
            shards = 2 if asked.where == "shards" else 0
            counts, wrong = soak_server(directory, asked.kills, asked.seed, shards=shards)
    print(", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items())))
    print("\n".join(wrong[:20] or ["nothing wrong"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
