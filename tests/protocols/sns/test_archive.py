"""FIFO topics that keep their messages, and subscriptions that get them once more."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.compat.server import serving, until
from tests.protocols.sns.conftest import sns_client
from tests.protocols.sns.test_sns import ARN, error_of, received

FIFO = {"FifoTopic": "true", "ContentBasedDeduplication": "true"}
ARCHIVE = {"ArchivePolicy": '{"MessageRetentionPeriod": "30"}'}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def queue(sqs: Any, name: str) -> str:
    url: str = sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
    return url


def publish(sns: Any, topic: str, *texts: str) -> None:
    for text in texts:
        sns.publish(TopicArn=topic, Message=text, MessageGroupId="g")


def messages(sqs: Any, url: str, count: int) -> list[tuple[str, str | None]]:
    found = [json.loads(each["Body"]) for each in received(sqs, url, count)]
    return [(each["Message"], each.get("Replayed")) for each in found]


def test_a_replay_gives_archived_messages_once_more_in_order_and_then_goes_on(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=f"{name}.fifo", Attributes=FIFO | ARCHIVE)["TopicArn"]
    shown = sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    assert shown["ArchivePolicy"] == ARCHIVE["ArchivePolicy"]
    assert abs(datetime.fromisoformat(shown["BeginningArchiveTime"]).timestamp() - time.time()) < 60
    url = queue(sqs, f"{name}.fifo")
    arn = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=f"{ARN}{name}.fifo")["SubscriptionArn"]
    publish(sns, topic, "a")
    time.sleep(0.02)
    start = now()
    publish(sns, topic, "b", "c")
    end = now()
    time.sleep(0.02)
    publish(sns, topic, "d")
    assert messages(sqs, url, 4) == [("a", None), ("b", None), ("c", None), ("d", None)]
    for policy, wanted in (
        ({"StartingPoint": start, "EndingPoint": end}, ["b", "c"]),
        ({"StartingPoint": start}, ["b", "c", "d"]),
    ):
        sns.set_subscription_attributes(
            SubscriptionArn=arn,
            AttributeName="ReplayPolicy",
            AttributeValue=json.dumps({"PointType": "Timestamp", **policy}),
        )
        assert messages(sqs, url, len(wanted)) == [(each, "true") for each in wanted]
        until(lambda: sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]["ReplayStatus"] == "Completed")
    publish(sns, topic, "e")
    assert messages(sqs, url, 1) == [("e", None)]
    # one that comes later may begin with the archive
    late = queue(sqs, f"{name}-late.fifo")
    sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=f"{ARN}{name}-late.fifo",
        Attributes={
            "ReplayPolicy": json.dumps({"PointType": "Timestamp", "StartingPoint": "2020-01-01T00:00:00Z"}),
            "RawMessageDelivery": "true",
        },
    )
    assert [each["Body"] for each in received(sqs, late, 5)] == ["a", "b", "c", "d", "e"]


def test_a_topic_with_an_archive_is_not_deleted_until_the_archive_is(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=f"{name}.fifo", Attributes=FIFO)["TopicArn"]
    policy = {"TopicArn": topic, "AttributeName": "ArchivePolicy"}
    publish(sns, topic, "before")
    sns.set_topic_attributes(**policy, AttributeValue='{"MessageRetentionPeriod": 365}')
    assert error_of(sns.delete_topic, TopicArn=topic) == (
        "InvalidState",
        "Invalid state: Cannot delete a topic with an ArchivePolicy",
    )
    sns.set_topic_attributes(**policy, AttributeValue="{}")
    shown = sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    assert "ArchivePolicy" not in shown and "BeginningArchiveTime" not in shown
    queue(sqs, f"{name}.fifo")
    arn = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=f"{ARN}{name}.fifo")["SubscriptionArn"]
    replay = json.dumps({"PointType": "Timestamp", "StartingPoint": now()})
    given = {"SubscriptionArn": arn, "AttributeName": "ReplayPolicy", "AttributeValue": replay}
    assert error_of(sns.set_subscription_attributes, **given)[1].endswith("the topic has no archive")
    sns.delete_topic(TopicArn=topic)


@pytest.mark.parametrize("days", ["0", "366", "many", "1.5", ""])
def test_an_archive_keeps_messages_for_1_to_365_days(sns: Any, name: str, days: str) -> None:
    policy = json.dumps({"MessageRetentionPeriod": days})
    code, message = error_of(sns.create_topic, Name=f"{name}.fifo", Attributes=FIFO | {"ArchivePolicy": policy})
    assert (code, "MessageRetentionPeriod" in message) == ("InvalidParameter", True)


def test_a_killed_server_goes_on_with_a_replay(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        sns, sqs = sns_client(server), server.client()
        topic = sns.create_topic(Name="t.fifo", Attributes=FIFO | ARCHIVE)["TopicArn"]
        url = queue(sqs, "q.fifo")
        raw = {"RawMessageDelivery": "true"}
        arn = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=f"{ARN}q.fifo", Attributes=raw)["SubscriptionArn"]
        texts = [str(number) for number in range(30)]
        publish(sns, topic, *texts)
        assert [each["Body"] for each in received(sqs, url, 30)] == texts
        policy = json.dumps({"PointType": "Timestamp", "StartingPoint": "2020-01-01T00:00:00Z"})
        sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName="ReplayPolicy", AttributeValue=policy)
        server.kill()
        server.start()
        assert [each["Body"] for each in received(sqs, url, 30)] == texts
