"""SNS on two nodes over a real Kafka: topics and queues are in shards of both, and one node is killed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.cluster.nodes import RETRY_TIMEOUT_S, ProcessNode, until
from tests.kafka import kafka, unique_prefix  # noqa: F401
from tests.protocols.sns.endpoint import check_signature, endpoint, subscribed
from tools.kafka import KafkaCluster

TOPICS = [f"t{number}" for number in range(4)]
QUEUES = [f"q{number}" for number in range(4)]


def client(node: ProcessNode, service: str) -> Any:
    options = Config(retries={"total_max_attempts": 1}, read_timeout=RETRY_TIMEOUT_S, connect_timeout=RETRY_TIMEOUT_S)
    credentials = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    return boto3.client(service, endpoint_url=node.sqs_url, config=options, **credentials)


def persistently(call: Any, **arguments: Any) -> Any:
    """Call until it is answered: shards move meanwhile."""
    answers: list[Any] = []

    def is_answered() -> bool:
        try:
            answers.append(call(**arguments))
        except (BotoCoreError, ClientError):
            return False
        return True

    until(is_answered)
    return answers[0]


def test_every_publish_reaches_every_queue_across_shards_and_a_killed_node(
    kafka: KafkaCluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    name = unique_prefix("sns")
    a, b = (ProcessNode(kafka, name, each, tmp_path, session_s=3.0) for each in "ab")
    try:
        a.start()
        b.start()
        until(lambda: a.served and b.served, "shards on both nodes")
        sns, sqs = client(a, "sns"), client(a, "sqs")
        urls = [persistently(sqs.create_queue, QueueName=each)["QueueUrl"] for each in QUEUES]
        topics = [persistently(sns.create_topic, Name=each)["TopicArn"] for each in TOPICS]
        for topic in topics:
            for each in QUEUES:
                target = f"arn:aws:sqs:us-east-1:000000000000:{each}"
                persistently(sns.subscribe, TopicArn=topic, Protocol="sqs", Endpoint=target)
        wanted = set()
        for number in range(10):
            for topic in topics:
                persistently(sns.publish, TopicArn=topic, Message=str(number))
                wanted.add((topic, str(number)))
        b.kill()
        for topic in topics:
            persistently(sns.publish, TopicArn=topic, Message="after")
            wanted.add((topic, "after"))
        certificates = set()
        for url in urls:
            found: set[tuple[str, str]] = set()
            deadline = time.monotonic() + RETRY_TIMEOUT_S
            while found != wanted and time.monotonic() < deadline:
                answer = persistently(sqs.receive_message, QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
                for message in answer.get("Messages", []):
                    envelope = json.loads(message["Body"])
                    certificates.add(envelope["SigningCertURL"])
                    found.add((envelope["TopicArn"], envelope["Message"]))
            assert found == wanted
        check_signature(envelope)
        assert len(certificates) == 1  # all nodes sign with the same key
        with endpoint() as there:
            subscribed(sns, topics[0], there)
            persistently(sns.publish, TopicArn=topics[0], Message="hook")
            assert there.wait(1)[0].message["Message"] == "hook"
    finally:
        a.kill()
        b.kill()
