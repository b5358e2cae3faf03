"""Subscriptions of every protocol: what can be subscribed, what arrives, what is counted."""

from __future__ import annotations

import re
from typing import Any

import pytest

import penstock
from tests.compat.server import Server, until
from tests.protocols.sns.endpoint import fetched
from tests.protocols.sns.test_sns import ARN, error_of, received

NOT_SENT = {
    "sms": "+15555550100",
    "lambda": "arn:aws:lambda:us-east-1:000000000000:function:f",
    "firehose": "arn:aws:firehose:us-east-1:000000000000:deliverystream/s",
    "application": "arn:aws:sns:us-east-1:000000000000:endpoint/GCM/app/1",
}


def counted(server: Server, protocol: str, outcome: str) -> float:
    return server.metric(f'penstock_sns_notifications_total{{outcome="{outcome}",protocol="{protocol}"}}')


@pytest.mark.parametrize(("protocol", "target"), NOT_SENT.items())
def test_what_is_not_served_can_be_subscribed_and_is_counted(
    server: Server, sns: Any, name: str, protocol: str, target: str
) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    attributes = {"FilterPolicy": '{"kind": ["a"]}'}
    arn = sns.subscribe(TopicArn=topic, Protocol=protocol, Endpoint=target, Attributes=attributes)["SubscriptionArn"]
    shown = sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
    assert (shown["Protocol"], shown["Endpoint"], shown["PendingConfirmation"]) == (protocol, target, "false")
    before = counted(server, protocol, "not_sent")
    for kind in "aba":
        kinds = {"kind": {"DataType": "String", "StringValue": kind}}
        sns.publish(TopicArn=topic, Message="x", MessageAttributes=kinds)
    until(lambda: counted(server, protocol, "not_sent") == before + 2)
    until(lambda: counted(server, protocol, "filtered") >= 1)


@pytest.mark.parametrize("protocol", ["email", "email-json"])
def test_a_mail_subscription_waits_for_the_link_that_the_log_has(
    server: Server, sns: Any, name: str, protocol: str
) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    address = f"{name}@example.org"
    answer = sns.subscribe(TopicArn=topic, Protocol=protocol, Endpoint=address, ReturnSubscriptionArn=True)
    arn = answer["SubscriptionArn"]
    assert sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]["PendingConfirmation"] == "true"
    assert error_of(sns.unsubscribe, SubscriptionArn=arn)[0] == "InvalidParameter"
    link = re.search(rf"{address} .* visit (\S+)", server.log_path.read_text())
    assert link is not None
    assert arn in fetched(link[1]).decode()
    assert sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]["PendingConfirmation"] == "false"
    before = counted(server, protocol, "not_sent")
    sns.publish(TopicArn=topic, Message="x")
    until(lambda: counted(server, protocol, "not_sent") == before + 1)


@pytest.mark.parametrize(
    ("protocol", "target", "reason"),
    [
        ("sqs", "orders", "SQS endpoint ARN"),
        ("sqs", "", "Endpoint"),
        ("email", "nobody", "Email address"),
        ("lambda", "f", "Lambda endpoint ARN"),
        ("firehose", "f", "Firehose endpoint ARN"),
        ("application", "f", "Application endpoint ARN"),
        ("penstock", "a/b c", "Endpoint Reason"),
        ("fax", "1", "Amazon SNS does not support this protocol string: fax"),
    ],
)
def test_an_endpoint_that_does_not_fit_its_protocol_is_refused(
    sns: Any, name: str, protocol: str, target: str, reason: str
) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    code, message = error_of(sns.subscribe, TopicArn=topic, Protocol=protocol, Endpoint=target)
    assert code == "InvalidParameter"
    assert message.startswith(f"Invalid parameter: {reason}")


@pytest.mark.parametrize(
    ("name_of", "value", "reason"),
    [
        ("RawMessageDelivery", "maybe", "RawMessageDelivery"),
        ("FilterPolicyScope", "Head", "FilterPolicyScope"),
        ("FilterPolicy", "[", "FilterPolicy: failed to parse JSON."),
        ("RedrivePolicy", "[]", "RedrivePolicy: failed to parse JSON."),
        ("RedrivePolicy", '{"deadLetterTargetArn": "x"}', "RedrivePolicy: deadLetterTargetArn is an invalid arn"),
        ("DeliveryPolicy", "{}", "DeliveryPolicy: delivery policies are only supported"),
        ("ReplayPolicy", '{"PointType": "Offset"}', "ReplayPolicy: PointType must be Timestamp"),
    ],
)
def test_a_subscription_attribute_that_is_not_valid_is_refused(
    sns: Any, sqs: Any, name: str, name_of: str, value: str, reason: str
) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    sqs.create_queue(QueueName=name)
    arn = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + name)["SubscriptionArn"]
    for call, given, where in (
        (
            sns.subscribe,
            {"TopicArn": topic, "Protocol": "sqs", "Endpoint": ARN + "o", "Attributes": {name_of: value}},
            "Attributes Reason: ",
        ),
        (
            sns.set_subscription_attributes,
            {"SubscriptionArn": arn, "AttributeName": name_of, "AttributeValue": value},
            "",
        ),
    ):
        code, message = error_of(call, **given)
        assert (code, message.startswith(f"Invalid parameter: {where}{reason}")) == ("InvalidParameter", True), message


@pytest.mark.parametrize(
    ("name_of", "value"),
    [
        ("Colour", "blue"),
        ("FifoTopic", "true"),
        ("ArchivePolicy", "{}"),
        ("ContentBasedDeduplication", "true"),
        ("SignatureVersion", "3"),
        ("TracingConfig", "On"),
        ("DisplayName", "x" * 101),
        ("Policy", "{"),
        ("Policy", '{"Statement": 5}'),
        ("DeliveryPolicy", '{"http": 5}'),
        ("SQSSuccessFeedbackSampleRate", "101"),
    ],
)
def test_a_topic_attribute_that_is_not_valid_is_refused(sns: Any, name: str, name_of: str, value: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    given = {"TopicArn": topic, "AttributeName": name_of, "AttributeValue": value}
    assert error_of(sns.set_topic_attributes, **given)[0] == "InvalidParameter"


def test_a_penstock_queue_is_subscribed_by_its_name_and_any_channel_of_the_topic_hears_it(
    server: Server, sns: Any, name: str
) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    with penstock.connect(f"http://127.0.0.1:{server.http_port}") as ps:
        target = ps.create_queue(f"{name}.in")
        mine = ps.queue(f"sns.{name}").channel("mine")
        sns.subscribe(TopicArn=topic, Protocol="penstock", Endpoint=f"{name}.in")
        attributes = {f"a{number}": {"DataType": "String", "StringValue": "v"} for number in range(12)}
        sns.publish(TopicArn=topic, Message="tea", MessageAttributes=attributes)
        for reader in (target, mine):
            message = reader.receive(wait=10)
            assert message is not None
            assert message.text == "tea"
            assert len(message.attributes) >= 12
            message.ack()


def test_a_group_is_passed_on_from_a_standard_topic_for_fair_queues(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + name)
    sns.publish(TopicArn=topic, Message="x", MessageGroupId="tenant-1")
    (message,) = received(sqs, url, 1)
    assert message["Attributes"]["MessageGroupId"] == "tenant-1"


def test_list_queues_of_sqs_does_not_show_topics(sns: Any, sqs: Any, name: str) -> None:
    sns.create_topic(Name=name)
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    listed = sqs.list_queues(MaxResults=1000)["QueueUrls"]
    assert url in listed
    assert not [each for each in listed if "/sns." in each]
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=f"sns.{name}")
