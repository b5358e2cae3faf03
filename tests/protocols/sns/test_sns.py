"""SNS through boto3, against a server as users run it."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.compat.server import Server, serving
from tests.protocols.sns.conftest import sns_client
from tests.protocols.sns.endpoint import check_signature
from tests.protocols.sns.soak import client, soak_server

ARN = "arn:aws:sqs:us-east-1:000000000000:"


def received(sqs: Any, url: str, count: int, patience_s: float = 20.0) -> list[dict[str, Any]]:
    """So many messages of a queue, deleted; fewer if they do not come."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + patience_s
    while len(found) < count and time.monotonic() < deadline:
        answer = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=1,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        for message in answer.get("Messages", []):
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            found.append(message)
    return found


def error_of(call: Any, **arguments: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def test_a_publish_reaches_every_subscribed_queue_in_an_envelope(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    assert topic == f"arn:aws:sns:us-east-1:000000000000:{name}"
    urls = [sqs.create_queue(QueueName=f"{name}-{each}")["QueueUrl"] for each in "ab"]
    arns = [sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=f"{ARN}{name}-{each}") for each in "ab"]
    published = sns.publish(
        TopicArn=topic,
        Message="héllo",
        Subject="greeting",
        MessageAttributes={
            "n": {"DataType": "Number", "StringValue": "5"},
            "b": {"DataType": "Binary", "BinaryValue": b"\x00\x01"},
        },
    )
    for url, subscribed in zip(urls, arns, strict=True):
        (message,) = received(sqs, url, 1)
        envelope = json.loads(message["Body"])
        check_signature(envelope)
        timestamp = envelope.pop("Timestamp")
        assert time.strptime(timestamp, "%Y-%m-%dT%H:%M:%S.%fZ")
        for field in ("Signature", "SignatureVersion", "SigningCertURL"):
            del envelope[field]
        assert envelope.pop("UnsubscribeURL").endswith(f"SubscriptionArn={subscribed['SubscriptionArn']}")
        assert envelope == {
            "Type": "Notification",
            "MessageId": published["MessageId"],
            "TopicArn": topic,
            "Subject": "greeting",
            "Message": "héllo",
            "MessageAttributes": {"n": {"Type": "Number", "Value": "5"}, "b": {"Type": "Binary", "Value": "AAE="}},
        }


def test_raw_delivery_maps_attributes_and_json_structure_chooses_the_text(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + name, Attributes={"RawMessageDelivery": "true"})
    kind = {"kind": {"DataType": "String", "StringValue": "order"}}
    sns.publish(TopicArn=topic, Message="one", MessageAttributes=kind)
    both = json.dumps({"default": "no", "sqs": "two"})
    sns.publish(TopicArn=topic, Message=both, MessageStructure="json")
    sns.publish(TopicArn=topic, Message=json.dumps({"default": "three"}), MessageStructure="json")
    found = received(sqs, url, 3)
    assert {each["Body"] for each in found} == {"one", "two", "three"}
    (first,) = (each for each in found if each["Body"] == "one")
    assert first["MessageAttributes"] == kind
    assert all("MessageAttributes" not in each for each in found if each is not first)


def test_a_batch_arrives_or_is_refused_as_a_whole(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + name, Attributes={"RawMessageDelivery": "true"})
    entries = [{"Id": "1", "Message": "a"}, {"Id": "2", "Message": "b", "Subject": "\n"}, {"Id": "3", "Message": "c"}]
    assert error_of(sns.publish_batch, TopicArn=topic, PublishBatchRequestEntries=entries) == (
        "InvalidParameter",
        "Invalid parameter: Subject",
    )
    del entries[1]["Subject"]
    answer = sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)
    assert [each["Id"] for each in answer["Successful"]] == ["1", "2", "3"]
    assert answer["Failed"] == []
    assert sorted(each["Body"] for each in received(sqs, url, 3)) == ["a", "b", "c"]
    same = [{"Id": "1", "Message": "a"}] * 2
    assert error_of(sns.publish_batch, TopicArn=topic, PublishBatchRequestEntries=same)[0] == "BatchEntryIdsNotDistinct"
    many = [{"Id": str(each), "Message": "a"} for each in range(11)]
    code, _ = error_of(sns.publish_batch, TopicArn=topic, PublishBatchRequestEntries=many)
    assert code == "TooManyEntriesInBatchRequest"


def test_a_subscription_gets_nothing_from_before_it_and_nothing_after_it(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    raw = {"RawMessageDelivery": "true"}
    sns.publish(TopicArn=topic, Message="before")
    arn = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + name, Attributes=raw)["SubscriptionArn"]
    sns.publish(TopicArn=topic, Message="during")
    assert [each["Body"] for each in received(sqs, url, 1)] == ["during"]
    sns.unsubscribe(SubscriptionArn=arn)
    sns.unsubscribe(SubscriptionArn=arn)
    sns.publish(TopicArn=topic, Message="after")
    assert received(sqs, url, 1, patience_s=1.5) == []
    assert error_of(sns.get_subscription_attributes, SubscriptionArn=arn) == (
        "NotFound",
        "Subscription does not exist",
    )


def test_the_unsubscribe_url_ends_a_subscription(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + name)
    sns.publish(TopicArn=topic, Message="x")
    (message,) = received(sqs, url, 1)
    with urllib.request.urlopen(json.loads(message["Body"])["UnsubscribeURL"], timeout=10) as answer:
        assert answer.status == 200
    assert sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == []


def test_topics_and_subscriptions_are_listed_and_described(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=name, Tags=[{"Key": "team", "Value": "a"}])["TopicArn"]
    assert sns.create_topic(Name=name)["TopicArn"] == topic
    sqs.create_queue(QueueName=name)
    arn = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + name)["SubscriptionArn"]
    assert sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + name)["SubscriptionArn"] == arn
    assert {"TopicArn": topic} in sns.list_topics()["Topics"]
    listed = {
        "SubscriptionArn": arn,
        "Owner": "000000000000",
        "Protocol": "sqs",
        "Endpoint": ARN + name,
        "TopicArn": topic,
    }
    assert sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == [listed]
    pages = sns.get_paginator("list_subscriptions").paginate()
    assert listed in [each for page in pages for each in page["Subscriptions"]]
    sns.set_topic_attributes(TopicArn=topic, AttributeName="DisplayName", AttributeValue="News")
    attributes = sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    assert (attributes["DisplayName"], attributes["SubscriptionsConfirmed"]) == ("News", "1")
    assert json.loads(attributes["EffectiveDeliveryPolicy"])["http"]["defaultHealthyRetryPolicy"]["numRetries"] == 3
    sns.set_subscription_attributes(
        SubscriptionArn=arn, AttributeName="FilterPolicy", AttributeValue='{"kind": ["order"]}'
    )
    described = sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
    assert described["FilterPolicy"] == '{"kind": ["order"]}'
    assert (described["FilterPolicyScope"], described["RawMessageDelivery"]) == ("MessageAttributes", "false")
    sns.tag_resource(ResourceArn=topic, Tags=[{"Key": "cost", "Value": "7"}])
    sns.untag_resource(ResourceArn=topic, TagKeys=["team"])
    assert sns.list_tags_for_resource(ResourceArn=topic)["Tags"] == [{"Key": "cost", "Value": "7"}]
    sns.add_permission(TopicArn=topic, Label="l", AWSAccountId=["111111111111"], ActionName=["Publish"])
    policy = json.loads(sns.get_topic_attributes(TopicArn=topic)["Attributes"]["Policy"])
    assert [each["Sid"] for each in policy["Statement"]] == ["__default_statement_ID", "l"]
    sns.remove_permission(TopicArn=topic, Label="l")
    sns.put_data_protection_policy(ResourceArn=topic, DataProtectionPolicy='{"Name": "x"}')
    assert sns.get_data_protection_policy(ResourceArn=topic)["DataProtectionPolicy"] == '{"Name": "x"}'
    sns.delete_topic(TopicArn=topic)
    sns.delete_topic(TopicArn=topic)
    assert error_of(sns.get_topic_attributes, TopicArn=topic) == ("NotFound", "Topic does not exist")
    assert error_of(sns.tag_resource, ResourceArn=topic, Tags=[])[0] in ("NotFound", "ResourceNotFound")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"Message": ""}, "Empty message"),
        ({"Message": "x" * (256 * 1024 + 1)}, "Message too long"),
        ({"Message": "x", "Subject": "a\nb"}, "Subject"),
        ({"Message": "x", "MessageStructure": "json"}, "Message Structure - JSON message body failed to parse"),
        ({"Message": "{}", "MessageStructure": "json"}, "Message Structure - No default entry in JSON message body"),
    ],
)
def test_a_message_that_is_not_valid_is_refused(sns: Any, name: str, arguments: dict[str, Any], message: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    assert error_of(sns.publish, TopicArn=topic, **arguments) == ("InvalidParameter", f"Invalid parameter: {message}")


def test_what_is_not_there_or_not_served_is_refused(sns: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    assert error_of(sns.publish, TopicArn=topic + "x", Message="x") == ("NotFound", "Topic does not exist")
    assert error_of(sns.subscribe, TopicArn=topic, Protocol="pigeon", Endpoint="coo") == (
        "InvalidParameter",
        "Invalid parameter: Amazon SNS does not support this protocol string: pigeon",
    )
    assert error_of(sns.create_topic, Name="a b") == ("InvalidParameter", "Invalid parameter: Topic Name")
    for token, reason in (("t", "Invalid token"), ("00" * 40, "Invalid parameter: Token")):
        assert error_of(sns.confirm_subscription, TopicArn=topic, Token=token) == (
            "InvalidParameter",
            reason,
        )


def test_filter_policies_choose_by_attributes_and_by_body(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    urls = [sqs.create_queue(QueueName=f"{name}-{each}")["QueueUrl"] for each in "ab"]
    raw = {"RawMessageDelivery": "true"}
    by_attributes = {**raw, "FilterPolicy": '{"n": [{"numeric": [">", 3]}]}'}
    by_body = {**raw, "FilterPolicy": '{"order": {"kind": [{"prefix": "b"}]}}', "FilterPolicyScope": "MessageBody"}
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=f"{ARN}{name}-a", Attributes=by_attributes)
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=f"{ARN}{name}-b", Attributes=by_body)
    for number in range(6):
        sns.publish(
            TopicArn=topic,
            Message=json.dumps({"order": {"kind": "ab"[number % 2] + str(number)}}),
            MessageAttributes={"n": {"DataType": "Number", "StringValue": str(number)}},
        )
    kinds = [
        sorted(json.loads(each["Body"])["order"]["kind"] for each in received(sqs, url, count))
        for url, count in zip(urls, (2, 3), strict=True)
    ]
    assert kinds == [["a4", "b5"], ["b1", "b3", "b5"]]
    wrong = {"FilterPolicy": '{"a": [{"prefix": 3}]}'}
    code, message = error_of(sns.subscribe, TopicArn=topic, Protocol="sqs", Endpoint=f"{ARN}{name}-c", Attributes=wrong)
    assert (code, message) == (
        "InvalidParameter",
        "Invalid parameter: Attributes Reason: FilterPolicy: prefix match pattern must be a string",
    )


def test_a_fifo_topic_keeps_order_and_drops_duplicates(sns: Any, sqs: Any, name: str) -> None:
    fifo = {"FifoTopic": "true", "ContentBasedDeduplication": "true"}
    topic = sns.create_topic(Name=f"{name}.fifo", Attributes=fifo)["TopicArn"]
    url = sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    raw = {"RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=f"{ARN}{name}.fifo", Attributes=raw)
    numbers = []
    for number in [*range(20), 0, 1]:
        group = f"g{number % 3}"
        numbers.append(sns.publish(TopicArn=topic, Message=str(number), MessageGroupId=group)["SequenceNumber"])
    assert numbers[:20] == sorted(numbers[:20])
    assert numbers[20:] == numbers[:2]
    found = received(sqs, url, 20)
    assert received(sqs, url, 1, patience_s=1.5) == []
    for lane in range(3):
        bodies = [int(each["Body"]) for each in found if each["Attributes"]["MessageGroupId"] == f"g{lane}"]
        assert bodies == list(range(lane, 20, 3))
    code, message = error_of(sns.publish, TopicArn=topic, Message="x")
    assert (code, message) == (
        "InvalidParameter",
        "Invalid parameter: The MessageGroupId parameter is required for FIFO topics",
    )
    standard = sns.create_topic(Name=name)["TopicArn"]
    assert error_of(sns.subscribe, TopicArn=standard, Protocol="sqs", Endpoint=f"{ARN}{name}.fifo")[1].endswith(
        "FIFO SQS Queues can not be subscribed to standard SNS topics"
    )


def test_what_a_missing_queue_would_get_goes_to_the_dead_letter_queue(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    policy = json.dumps({"deadLetterTargetArn": f"{ARN}{name}-dead"})
    attributes = {"RawMessageDelivery": "true", "RedrivePolicy": policy}
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=f"{ARN}{name}-gone", Attributes=attributes)
    sns.publish(TopicArn=topic, Message="x")
    (message,) = received(sqs, dead, 1)
    assert message["Body"] == "x"
    assert message["MessageAttributes"]["ErrorMessage"]["StringValue"] == "the queue does not exist"


def test_who_is_refused_before_the_request_is_read_is_answered_as_by_aws(tmp_path: Path) -> None:
    """A load balancer's probe, a full server, one that stops: SDKs must see an error that they can repeat."""
    config = tmp_path / "penstock.toml"
    config.write_text("[http]\nconnections_max = 1\n")
    config.chmod(0o600)
    with serving(tmp_path, "--config", str(config)) as server, socket.create_connection(("127.0.0.1", server.port)):
        for service, call in (("sns", "list_topics"), ("sqs", "list_queues")):
            with pytest.raises(ClientError) as caught:
                getattr(client(server.url, service), call)()
            response = caught.value.response
            assert response["ResponseMetadata"]["HTTPStatusCode"] == 503
            assert "too many connections" in response["Error"]["Message"]
            assert response["Error"]["Code"] in ("ServiceUnavailable", "503")


@pytest.mark.parametrize("shards", [0, 2])
def test_no_acknowledged_publish_is_missing_after_kills(tmp_path: Path, shards: int) -> None:
    counts, wrong = soak_server(tmp_path, 2, 7, shards=shards)
    assert wrong == []
    assert counts["acknowledged"] > 20
    assert counts["came to later subscriptions"] > 0


def test_it_works_with_several_shards(tmp_path: Path) -> None:
    with serving(tmp_path, shards=2) as server:
        sns, sqs = sns_client(server), server.client()
        names = [f"q{each}" for each in range(4)]
        topics = [sns.create_topic(Name=f"t{each}")["TopicArn"] for each in range(4)]
        urls = [sqs.create_queue(QueueName=each)["QueueUrl"] for each in names]
        for topic in topics:
            for each in names:
                sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + each)
        for topic in topics:
            for number in range(5):
                sns.publish(TopicArn=topic, Message=str(number))
        wanted = sorted((topic, str(number)) for topic in topics for number in range(5))
        for url in urls:
            envelopes = [json.loads(each["Body"]) for each in received(sqs, url, len(wanted))]
            assert sorted((each["TopicArn"], each["Message"]) for each in envelopes) == wanted


def test_rights_are_those_of_the_topics_queue(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(
        """
[[credentials]]
name = "admin"
access_key = "ADMIN"
secret_key = "admin-secret-1234567890"
allow = [{ queues = ["*"], rights = ["admin", "read", "write"] }]

[[credentials]]
name = "publisher"
access_key = "PUB"
secret_key = "pub-secret-1234567890"
allow = [{ queues = ["sns.news"], rights = ["write"] }]
"""
    )
    config.chmod(0o600)
    with serving(tmp_path, "--config", str(config)) as server:
        admin = sns_client(server, "ADMIN", "admin-secret-1234567890")
        publisher = sns_client(server, "PUB", "pub-secret-1234567890")
        topic = admin.create_topic(Name="news")["TopicArn"]
        other = admin.create_topic(Name="other")["TopicArn"]
        assert publisher.publish(TopicArn=topic, Message="x")["MessageId"]
        assert error_of(publisher.publish, TopicArn=other, Message="x")[0] == "AuthorizationError"
        assert error_of(publisher.delete_topic, TopicArn=topic)[0] == "AuthorizationError"
        assert publisher.list_topics()["Topics"] == [{"TopicArn": topic}]
        stranger = sns_client(server, "PUB", "wrong-secret-1234567890")
        assert error_of(stranger.publish, TopicArn=topic, Message="x")[0] == "SignatureDoesNotMatch"


def test_an_unsigned_form_without_a_version_reaches_sns(server: Server, sns: Any, name: str) -> None:
    request = urllib.request.Request(f"{server.url}/", data=f"Action=CreateTopic&Name={name}".encode(), method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert f":{name}</TopicArn>" in answer.read().decode()


def test_the_program_of_the_documentation_works(server: Server) -> None:
    page = (Path(__file__).parents[3] / "docs" / "sns.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    assert "http://127.0.0.1:9324" in program
    exec(program.replace("http://127.0.0.1:9324", server.url), {})


def test_a_topic_is_not_subscribed_to_a_topic(sns: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    for target in (name, f"{name}-other"):
        for protocol, endpoint in (("penstock", f"sns.{target}"), ("sqs", f"{ARN}sns.{target}")):
            code, message = error_of(sns.subscribe, TopicArn=topic, Protocol=protocol, Endpoint=endpoint)
            assert (code, "a topic cannot be subscribed to a topic" in message) == ("InvalidParameter", True)
    dead = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": f"{ARN}sns.{name}"})}
    code, _ = error_of(sns.subscribe, TopicArn=topic, Protocol="sqs", Endpoint=f"{ARN}q", Attributes=dead)
    assert code == "InvalidParameter"
