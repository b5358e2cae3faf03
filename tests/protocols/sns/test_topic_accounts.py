"""Topics of several accounts and regions in one server: `[sqs] accounts = "many"`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from penstock.core.commands import ChangeQueue, CreateChannel, CreateQueue, DescribeQueue, ListQueues
from penstock.core.queues.config import QueueConfig
from penstock.protocols.sns.delivery import Deliveries
from penstock.server.auth import Credential, Credentials, Grant, Principal, Secret
from penstock.server.settings import SqsSettings
from tests.compat.server import until
from tests.protocols.sns.test_sns import error_of, received
from tests.protocols.sqs.serving import Server

OTHER = "123456789012"
RAW = {"RawMessageDelivery": "true"}


def serving(directory: Path, credentials: Credentials | None = None, **settings: Any) -> Server:
    server = Server(directory, SqsSettings(**settings), credentials)
    server.do(server.front_end.sns.deliveries.start)
    return server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = serving(tmp_path_factory.mktemp("accounts"), accounts="many")
    yield server
    server.stop()


def client(server: Server, access_key: str = "test", region: str = "us-east-1", secret_key: str = "test") -> Any:
    return boto3.client(
        "sns",
        endpoint_url=server.url,
        region_name=region,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
    )


def test_accounts_and_regions_have_topics_of_their_own(server: Server) -> None:
    places = [("test", "us-east-1"), ("test", "eu-west-1"), (OTHER, "us-east-1"), (OTHER, "eu-west-1")]
    clients = [client(server, *place) for place in places]
    topics = [each.create_topic(Name="news")["TopicArn"] for each in clients]
    assert topics == [
        "arn:aws:sns:us-east-1:000000000000:news",
        "arn:aws:sns:eu-west-1:000000000000:news",
        f"arn:aws:sns:us-east-1:{OTHER}:news",
        f"arn:aws:sns:eu-west-1:{OTHER}:news",
    ]
    for (key, region), sns, topic in zip(places, clients, topics, strict=True):
        sqs = server.client(access_key=key, region=region)
        url = sqs.create_queue(QueueName="readers")["QueueUrl"]
        assert sqs.list_queues(QueueNamePrefix="sns").get("QueueUrls", []) == []
        arn = topic.replace("sns", "sqs").replace("news", "readers")
        subscribed = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)["SubscriptionArn"]
        assert subscribed.startswith(f"{topic}:")
        owner = topic.split(":")[4]
        assert sns.list_topics()["Topics"] == [{"TopicArn": topic}]
        (listed,) = sns.list_subscriptions()["Subscriptions"]
        assert (listed["SubscriptionArn"], listed["Owner"]) == (subscribed, owner)
        shown = sns.get_subscription_attributes(SubscriptionArn=subscribed)["Attributes"]
        assert (shown["Owner"], shown["TopicArn"]) == (owner, topic)
        attributes = sns.get_topic_attributes(TopicArn=topic)["Attributes"]
        assert (attributes["Owner"], attributes["SubscriptionsConfirmed"]) == (owner, "1")
        (statement,) = json.loads(attributes["Policy"])["Statement"]
        assert statement["Condition"] == {"StringEquals": {"AWS:SourceOwner": owner}}
        sns.publish(TopicArn=topic, Message=topic)
        (message,) = received(sqs, url, 1)
        envelope = json.loads(message["Body"])
        assert (envelope["TopicArn"], envelope["Message"]) == (topic, topic)
        assert envelope["UnsubscribeURL"].endswith(subscribed)
    names = [name for name in server.call(ListQueues(limit=1_000)) if name.endswith("sns.news")]
    assert names == [
        "000000000000.eu-west-1.sns.news",
        f"{OTHER}.eu-west-1.sns.news",
        f"{OTHER}.us-east-1.sns.news",
        "sns.news",
    ]


def test_a_topic_of_another_region_is_refused_and_one_of_another_account_is_found(server: Server) -> None:
    topic = client(server, OTHER).create_topic(Name="far")["TopicArn"]
    abroad, guest = client(server, OTHER, "eu-west-1"), client(server)
    assert error_of(abroad.publish, TopicArn=topic, Message="x") == ("InvalidParameter", "Invalid parameter: TopicArn")
    assert error_of(guest.publish, TopicArn=topic.replace(OTHER, "me"), Message="x")[0] == "InvalidParameter"
    url = server.client().create_queue(QueueName="guest")["QueueUrl"]
    arn = "arn:aws:sqs:us-east-1:000000000000:guest"
    subscribed = guest.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=RAW)["SubscriptionArn"]
    assert guest.get_subscription_attributes(SubscriptionArn=subscribed)["Attributes"]["Owner"] == "000000000000"
    guest.publish(TopicArn=topic, Message="from a guest")
    assert [each["Body"] for each in received(server.client(), url, 1)] == ["from a guest"]


def test_a_credential_publishes_in_the_account_that_is_given_with_it(tmp_path: Path) -> None:
    principal = Principal("shop", "AK1", [Grant((f"{OTHER}.*",))], account=OTHER)
    server = serving(tmp_path, Credentials([Credential("AK1", Secret("s3cret"), principal)]), accounts="many")
    try:
        shop = client(server, "AK1", "eu-west-1", "s3cret")
        topic = shop.create_topic(Name="news")["TopicArn"]
        assert topic == f"arn:aws:sns:eu-west-1:{OTHER}:news"
        assert shop.publish(TopicArn=topic, Message="x")["MessageId"]
        foreign = topic.replace(OTHER, "000000000000")
        assert error_of(shop.publish, TopicArn=foreign, Message="x")[0] == "AuthorizationError"
    finally:
        server.stop()


def test_with_one_account_every_region_and_account_is_the_same(tmp_path: Path) -> None:
    server = serving(tmp_path)
    try:
        topic = client(server, OTHER, "eu-west-1").create_topic(Name="news")["TopicArn"]
        assert topic == "arn:aws:sns:us-east-1:000000000000:news"
        assert client(server).publish(TopicArn=topic.replace("us-east-1", "eu-west-1"), Message="x")["MessageId"]
    finally:
        server.stop()


def test_two_topics_that_an_earlier_build_subscribed_to_each_other_send_nothing_on(tmp_path: Path) -> None:
    server = serving(tmp_path)
    try:
        sns = client(server)
        topics = [sns.create_topic(Name=each)["TopicArn"] for each in "ab"]
        for topic, name, other in zip(topics, "ab", "ba", strict=True):
            arn = sns.subscribe(TopicArn=topic, Protocol="penstock", Endpoint="q")["SubscriptionArn"]
            label = f"sns.subscription.{arn.rpartition(':')[2]}"
            labels = server.call(DescribeQueue(name=f"sns.{name}")).config.labels
            looped = labels[label].replace('"target":"q"', f'"target":"sns.{other}"')
            assert looped != labels[label]
            server.call(ChangeQueue(name=f"sns.{name}", changes={"labels": {**labels, label: looped}}))
        sns.publish(TopicArn=topics[0], Message="round and round")
        counts = server.front_end.sns.deliveries.counts
        until(lambda: counts["penstock", "failed"] == 1)
        assert counts["penstock", "delivered"] == 0
    finally:
        server.stop()


def test_a_label_that_cannot_be_read_is_left_out_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.protocols.sns.delivery._SCAN_S", 0.05)
    server = serving(tmp_path)
    try:
        sns = client(server)
        for queue in "qr":
            server.call(CreateQueue(name=queue))
        topic = sns.create_topic(Name="news")["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="penstock", Endpoint="q")
        labels = server.call(DescribeQueue(name="sns.news")).config.labels
        bad = {"sns.subscription.bad": "{", "sns.subscription.deep": '{"a":' + "[" * 100_000}
        server.call(ChangeQueue(name="sns.news", changes={"labels": {**labels, **bad}}))
        server.call(CreateChannel(queue="sns.news", channel="sns-bad"))
        server.call(CreateQueue(name="sns.old", config=QueueConfig(labels={"sns.topic": "no JSON"})))
        until(lambda: "sns.subscription.bad" in caplog.text)
        scans = server.front_end.sns.deliveries._scans
        until(lambda: server.front_end.sns.deliveries._scans > scans + 5)
        assert [each["TopicArn"] for each in sns.list_topics()["Topics"]] == [topic]
        for found in (sns.list_subscriptions(), sns.list_subscriptions_by_topic(TopicArn=topic)):
            assert [each["Endpoint"] for each in found["Subscriptions"]] == ["q"]
        later = sns.create_topic(Name="later")["TopicArn"]
        for each in (topic, later):
            sns.subscribe(TopicArn=each, Protocol="penstock", Endpoint="r")
            sns.publish(TopicArn=each, Message="still delivered")
        until(lambda: server.front_end.sns.deliveries.counts["penstock", "delivered"] == 3)
        assert caplog.text.count("sns.subscription.bad") == caplog.text.count("sns.subscription.deep") == 1
        assert "sns-bad" in server.call(DescribeQueue(name="sns.news")).channels
    finally:
        server.stop()


def test_a_scan_that_fails_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.protocols.sns.delivery._SCAN_S", 0.02)
    server = serving(tmp_path)
    try:
        deliveries, scan, failures = server.front_end.sns.deliveries, Deliveries._scan, [1, 2]

        def fail_twice(self: Deliveries, **options: bool) -> set[tuple[str, str]]:
            if failures:
                raise RuntimeError(f"failure {failures.pop()}")
            return scan(self, **options)

        monkeypatch.setattr(Deliveries, "_scan", fail_twice)
        until(lambda: not failures)
        scans = deliveries._scans
        until(lambda: deliveries._scans > scans + 2)
    finally:
        server.stop()
