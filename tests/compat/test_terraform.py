"""What Terraform's AWS provider asks of SQS and SNS, call by call, for queues, topics, subscriptions and policies.

The provider itself is a download of hundreds of megabytes from a registry of its own. What it calls, in which order,
and what it waits for is in its source: a resource is created, read until what was asked for is shown, planned again
without a difference, changed, and destroyed until it is not found.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.compat.server import Server
from tests.protocols.sns.conftest import sns_client

ACCOUNT = "000000000000"


@pytest.fixture
def sns(server: Server) -> Any:
    return sns_client(server)


def code_of(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return str(caught.value.response["Error"]["Code"])


def test_a_queue_is_created_as_planned_changed_and_destroyed(sqs: Any, name: str) -> None:
    dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    dead_arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}-dead"
    planned = {
        "DelaySeconds": "0",
        "MaximumMessageSize": "262144",
        "MessageRetentionPeriod": "345600",
        "ReceiveMessageWaitTimeSeconds": "0",
        "VisibilityTimeout": "30",
        "SqsManagedSseEnabled": "true",
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 4}),
    }
    url = sqs.create_queue(QueueName=name, Attributes=planned, tags={"team": "a"})["QueueUrl"]
    assert len(url.split("/")) == 5, "the provider reads the name from the third part of the path"

    def shown() -> dict[str, str]:
        found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        return found

    for attribute, value in planned.items():
        found = shown()[attribute]
        assert (json.loads(found) == json.loads(value)) if attribute == "RedrivePolicy" else (found == value)
    assert shown()["QueueArn"] == f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}"
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "a"}
    # aws_sqs_queue_policy, aws_sqs_queue_redrive_policy and aws_sqs_queue_redrive_allow_policy
    policy = json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "sns.amazonaws.com"},
                    "Action": "sqs:SendMessage",
                    "Resource": shown()["QueueArn"],
                }
            ],
        }
    )
    allow = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [shown()["QueueArn"]]})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy, "VisibilityTimeout": "60"})
    sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": allow})
    assert (json.loads(shown()["Policy"]), shown()["VisibilityTimeout"]) == (json.loads(policy), "60")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": "", "RedrivePolicy": ""})
    assert not shown().get("Policy") and not shown().get("RedrivePolicy")
    sqs.tag_queue(QueueUrl=url, Tags={"team": "b"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["team"])
    sqs.delete_queue(QueueUrl=url)
    missing = code_of(sqs.get_queue_attributes, QueueUrl=url, AttributeNames=["All"])
    assert missing == "AWS.SimpleQueueService.NonExistentQueue"


def test_a_topic_is_created_as_planned_changed_and_destroyed(sns: Any, name: str) -> None:
    topic = sns.create_topic(Name=name, Tags=[{"Key": "team", "Value": "a"}])["TopicArn"]
    role = f"arn:aws:iam::{ACCOUNT}:role/feedback"
    retries = {"minDelayTarget": 1, "maxDelayTarget": 2, "numRetries": 5}
    delivery = {"http": {"defaultHealthyRetryPolicy": retries, "disableSubscriptionOverrides": False}}
    planned = {
        "DisplayName": "News",
        "DeliveryPolicy": json.dumps(delivery, separators=(",", ":")),
        "SignatureVersion": "2",
        "TracingConfig": "Active",
        "KmsMasterKeyId": "alias/aws/sns",
        "HTTPSuccessFeedbackRoleArn": role,
        "HTTPSuccessFeedbackSampleRate": "50",
        "SQSFailureFeedbackRoleArn": role,
        "LambdaSuccessFeedbackRoleArn": role,
        "FirehoseFailureFeedbackRoleArn": role,
        "ApplicationSuccessFeedbackSampleRate": "100",
    }
    for attribute, value in planned.items():
        sns.set_topic_attributes(TopicArn=topic, AttributeName=attribute, AttributeValue=value)
    shown = sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    assert planned.items() <= shown.items()
    assert (shown["Owner"], shown["TopicArn"]) == (ACCOUNT, topic)
    assert json.loads(shown["Policy"])["Statement"][0]["Sid"] == "__default_statement_ID"
    # aws_sns_topic_policy and aws_sns_topic_data_protection_policy
    policy = json.dumps({"Version": "2012-10-17", "Statement": [{"Sid": "s", "Effect": "Allow", "Principal": "*"}]})
    sns.set_topic_attributes(TopicArn=topic, AttributeName="Policy", AttributeValue=policy)
    assert sns.get_topic_attributes(TopicArn=topic)["Attributes"]["Policy"] == policy
    sns.put_data_protection_policy(ResourceArn=topic, DataProtectionPolicy='{"Name": "n"}')
    assert sns.get_data_protection_policy(ResourceArn=topic)["DataProtectionPolicy"] == '{"Name": "n"}'
    sns.put_data_protection_policy(ResourceArn=topic, DataProtectionPolicy="")
    assert sns.list_tags_for_resource(ResourceArn=topic)["Tags"] == [{"Key": "team", "Value": "a"}]
    for attribute in ("DeliveryPolicy", "KmsMasterKeyId", "HTTPSuccessFeedbackRoleArn"):
        sns.set_topic_attributes(TopicArn=topic, AttributeName=attribute, AttributeValue="")
        assert attribute not in sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    sns.delete_topic(TopicArn=topic)
    assert code_of(sns.get_topic_attributes, TopicArn=topic) == "NotFound"


def test_a_fifo_topic_gets_and_loses_its_archive(sns: Any, name: str) -> None:
    topic = sns.create_topic(Name=f"{name}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
    archive = {"TopicArn": topic, "AttributeName": "ArchivePolicy"}
    sns.set_topic_attributes(**archive, AttributeValue='{"MessageRetentionPeriod": "45"}')
    assert sns.get_topic_attributes(TopicArn=topic)["Attributes"]["BeginningArchiveTime"]
    sns.set_topic_attributes(**archive, AttributeValue="{}")
    shown = sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    assert "ArchivePolicy" not in shown
    assert (shown["FifoTopic"], shown["ContentBasedDeduplication"]) == ("true", "false")
    sns.delete_topic(TopicArn=topic)


def test_a_subscription_is_created_as_planned_changed_and_destroyed(sns: Any, sqs: Any, name: str) -> None:
    topic = sns.create_topic(Name=name)["TopicArn"]
    sqs.create_queue(QueueName=name)
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}"
    planned = {
        "FilterPolicy": json.dumps({"kind": ["a"]}),
        "FilterPolicyScope": "MessageAttributes",
        "RawMessageDelivery": "true",
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": arn}),
    }
    given = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": arn, "ReturnSubscriptionArn": True}
    made = sns.subscribe(**given, Attributes=planned)["SubscriptionArn"]

    def shown() -> dict[str, str]:
        found: dict[str, str] = sns.get_subscription_attributes(SubscriptionArn=made)["Attributes"]
        return found

    expected = planned | {
        "PendingConfirmation": "false",
        "ConfirmationWasAuthenticated": "true",
        "Endpoint": arn,
        "Protocol": "sqs",
        "TopicArn": topic,
        "Owner": ACCOUNT,
        "SubscriptionArn": made,
    }
    assert expected.items() <= shown().items()

    def change(attribute: str, **value: str) -> None:
        sns.set_subscription_attributes(SubscriptionArn=made, AttributeName=attribute, **value)

    change("FilterPolicyScope", AttributeValue="MessageBody")
    change("FilterPolicy", AttributeValue=json.dumps({"order": {"kind": ["a"]}}))
    change("RawMessageDelivery", AttributeValue="false")
    change("RedrivePolicy")
    assert "RedrivePolicy" not in shown()
    assert shown()["FilterPolicyScope"] == "MessageBody"
    change("FilterPolicy", AttributeValue="{}")
    assert "FilterPolicy" not in shown() and "FilterPolicyScope" not in shown()
    sns.unsubscribe(SubscriptionArn=made)
    assert code_of(sns.get_subscription_attributes, SubscriptionArn=made) == "NotFound"
    waiting = sns.subscribe(
        TopicArn=topic, Protocol="email", Endpoint=f"{name}@example.org", ReturnSubscriptionArn=True
    )["SubscriptionArn"]
    with pytest.raises(ClientError, match="Cannot unsubscribe a subscription that is pending confirmation"):
        sns.unsubscribe(SubscriptionArn=waiting)
