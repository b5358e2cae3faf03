"""Queue attributes, one by one: defaults, ranges, what can be changed, what comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.commands import CreateQueue, Send
from penstock.core.queues.config import QueueConfig
from tests.protocols.sqs.refusals import refused
from tests.protocols.sqs.serving import ACCOUNT, REGION, Server


def attributes_of(sqs: Any, url: str, *names: str) -> dict[str, str]:
    answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names or ["All"]))
    found: dict[str, str] = answer.get("Attributes", {})
    return found


def arn(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


def test_a_standard_queue_has_these_attributes(server: Server, sqs: Any, name: str, url: str) -> None:
    found = attributes_of(sqs, url)
    now = server.clock.now_ms() // 1_000
    assert now - 60 <= int(found.pop("CreatedTimestamp")) <= now
    assert now - 60 <= int(found.pop("LastModifiedTimestamp")) <= now
    assert found == {
        "QueueArn": arn(name),
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "ReceiveMessageWaitTimeSeconds": "0",
        "VisibilityTimeout": "30",
        "SqsManagedSseEnabled": "true",
    }


def test_a_fifo_queue_has_four_more(sqs: Any, fifo_url: str) -> None:
    found = attributes_of(sqs, fifo_url)
    assert found["FifoQueue"] == "true"
    assert found["ContentBasedDeduplication"] == "false"
    assert found["DeduplicationScope"] == "queue"
    assert found["FifoThroughputLimit"] == "perQueue"


def test_only_what_was_asked_for_comes_back(sqs: Any, url: str) -> None:
    assert attributes_of(sqs, url, "DelaySeconds", "Policy") == {"DelaySeconds": "0"}
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url)
    with refused("InvalidAttributeName") as refusal:
        attributes_of(sqs, url, "DelaySeconds", "Nonsense")
    assert refusal.message == "Unknown Attribute Nonsense."


RANGES = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1_024, 1_048_576),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43_200),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
}


@pytest.mark.parametrize("attribute", RANGES)
def test_numbers_are_taken_within_their_range_and_not_beyond(sqs: Any, url: str, attribute: str) -> None:
    low, high = RANGES[attribute]
    for value in (low, high):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={attribute: str(value)})
        assert attributes_of(sqs, url, attribute) == {attribute: str(value)}
    for bad in (str(low - 1), str(high + 1), "abc", "", "1.5", "９９"):
        with refused("InvalidAttributeValue") as refusal:
            sqs.set_queue_attributes(QueueUrl=url, Attributes={attribute: bad})
        assert refusal.message == f"Invalid value for the parameter {attribute}."
    assert attributes_of(sqs, url, attribute) == {attribute: str(high)}


@pytest.mark.parametrize("attribute", RANGES)
def test_creation_checks_the_same_ranges(sqs: Any, name: str, attribute: str) -> None:
    with refused("InvalidAttributeValue"):
        sqs.create_queue(QueueName=name, Attributes={attribute: str(RANGES[attribute][1] + 1)})


@pytest.mark.parametrize(
    "attribute", ["QueueArn", "CreatedTimestamp", "LastModifiedTimestamp", "ApproximateNumberOfMessages", "All", "X"]
)
def test_what_nobody_can_set_is_unknown(sqs: Any, url: str, attribute: str) -> None:
    with refused("InvalidAttributeName") as refusal:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={attribute: "1"})
    assert refusal.message == f"Unknown Attribute {attribute}."


def test_a_queue_keeps_its_kind(sqs: Any, url: str, make: Callable[..., str]) -> None:
    with refused("InvalidAttributeName") as refusal:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"FifoQueue": "true"})
    assert refusal.message == "Unknown Attribute FifoQueue."
    fifo = make("ordered", FifoQueue="true")
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "true"})
    with refused("InvalidAttributeValue") as refusal:
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "false"})
    assert refusal.message == (
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    )


def test_high_throughput_needs_dedup_by_group(sqs: Any, fifo_url: str) -> None:
    with refused("InvalidParameterValue"):
        sqs.set_queue_attributes(QueueUrl=fifo_url, Attributes={"FifoThroughputLimit": "perMessageGroupId"})
    wanted = {"FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "messageGroup"}
    sqs.set_queue_attributes(QueueUrl=fifo_url, Attributes=wanted)
    assert attributes_of(sqs, fifo_url, *wanted) == wanted
    for attribute in wanted:
        with refused("InvalidAttributeValue"):
            sqs.set_queue_attributes(QueueUrl=fifo_url, Attributes={attribute: "nonsense"})


def test_the_policy_is_kept_as_it_was_given(sqs: Any, name: str, url: str) -> None:
    policy = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Resource": arn(name)}]}, indent=1)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    assert attributes_of(sqs, url, "Policy") == {"Policy": policy}
    with refused("InvalidAttributeValue"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": "{"})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    assert attributes_of(sqs, url, "Policy") == {}


def test_encryption_is_remembered_one_kind_at_a_time(sqs: Any, url: str) -> None:
    names = ("KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": "alias/aws/sqs"})
    assert attributes_of(sqs, url, *names) == {
        "KmsMasterKeyId": "alias/aws/sqs",
        "KmsDataKeyReusePeriodSeconds": "300",
        "SqsManagedSseEnabled": "false",
    }
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"SqsManagedSseEnabled": "true"})
    assert attributes_of(sqs, url, *names) == {"SqsManagedSseEnabled": "true"}
    with refused("InvalidAttributeName") as refusal:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": "x", "SqsManagedSseEnabled": "true"})
    assert "one type of server-side encryption" in refusal.message


def test_one_bad_attribute_changes_nothing(sqs: Any, url: str) -> None:
    with refused("InvalidAttributeValue"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "5", "VisibilityTimeout": "-1"})
    assert attributes_of(sqs, url, "DelaySeconds") == {"DelaySeconds": "0"}


def test_a_change_shows_in_the_time_of_the_last_one(server: Server, sqs: Any, url: str) -> None:
    before = attributes_of(sqs, url)
    server.advance(5)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "1"})
    after = attributes_of(sqs, url)
    assert int(after["LastModifiedTimestamp"]) >= int(before["LastModifiedTimestamp"]) + 5
    assert after["CreatedTimestamp"] == before["CreatedTimestamp"]


def test_the_counts_are_exact(sqs: Any, url: str) -> None:
    for delay in (0, 0, 0, 60):
        sqs.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=delay)
    sqs.receive_message(QueueUrl=url)
    found = attributes_of(sqs, url)
    assert found["ApproximateNumberOfMessages"] == "2"
    assert found["ApproximateNumberOfMessagesNotVisible"] == "1"
    assert found["ApproximateNumberOfMessagesDelayed"] == "1"


# -- dead letters ------------------------------------------------------------------------------------------------------


def redrive(target: str, count: object) -> str:
    return json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": count})


@pytest.mark.parametrize("count", [1, 1_000, "7"])
def test_a_redrive_policy_comes_back_in_one_form(
    sqs: Any, name: str, url: str, make: Callable[..., str], count: object
) -> None:
    make("dead")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": redrive(arn(f"{name}-dead"), count)})
    policy = json.loads(attributes_of(sqs, url, "RedrivePolicy")["RedrivePolicy"])
    assert policy == {"deadLetterTargetArn": arn(f"{name}-dead"), "maxReceiveCount": int(str(count))}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert attributes_of(sqs, url, "RedrivePolicy") == {}


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("nonsense", "Redrive policy is not a valid JSON map."),
        ("[]", "Redrive policy is not a valid JSON map."),
        ('{"maxReceiveCount": 3}', "Redrive policy does not contain mandatory attribute: deadLetterTargetArn."),
        (
            json.dumps({"deadLetterTargetArn": arn("x")}),
            "Redrive policy does not contain mandatory attribute: maxReceiveCount.",
        ),
        (redrive("dummy", 3), "Invalid value for deadLetterTargetArn."),
        (redrive(arn("not-there"), 3), "Dead letter target does not exist."),
        (redrive(arn("x"), 0), "Invalid value for maxReceiveCount: 0, valid values are from 1 to 1000 both inclusive."),
        (
            redrive(arn("x"), 1001),
            "Invalid value for maxReceiveCount: 1001, valid values are from 1 to 1000 both inclusive.",
        ),
        (
            redrive(arn("x"), "a"),
            "Invalid value for maxReceiveCount: a, valid values are from 1 to 1000 both inclusive.",
        ),
    ],
)
def test_a_redrive_policy_that_cannot_be_followed_is_refused(sqs: Any, url: str, policy: str, reason: str) -> None:
    with refused("InvalidParameterValue") as refusal:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
    assert refusal.message == f"Value {policy} for parameter RedrivePolicy is invalid. Reason: {reason}"


def test_dead_letters_stay_among_queues_of_one_kind(sqs: Any, name: str, url: str, make: Callable[..., str]) -> None:
    make("dead", FifoQueue="true")
    with refused("InvalidParameterValue") as refusal:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": redrive(arn(f"{name}-dead.fifo"), 3)})
    assert "same type of queue" in refusal.message
    with refused("InvalidParameterValue"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": redrive(arn(name), 3)})


def test_a_dead_letter_queue_chooses_its_sources(sqs: Any, name: str, url: str, make: Callable[..., str]) -> None:
    dead = make("dead")
    policy = redrive(arn(f"{name}-dead"), 3)

    def allow(**policy: object) -> None:
        sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps(policy)})

    allow(redrivePermission="denyAll")
    with refused("InvalidParameterValue") as refusal:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
    assert "not permitted" in refusal.message
    allow(redrivePermission="byQueue", sourceQueueArns=[arn("somebody-else")])
    with refused("InvalidParameterValue"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
    allow(redrivePermission="byQueue", sourceQueueArns=[arn("somebody-else"), arn(name)])
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
    allow(redrivePermission="allowAll")
    assert json.loads(attributes_of(sqs, dead, "RedriveAllowPolicy")["RedriveAllowPolicy"]) == {
        "redrivePermission": "allowAll"
    }
    for bad in (
        {"redrivePermission": "nonsense"},
        {"redrivePermission": "byQueue"},
        {"redrivePermission": "byQueue", "sourceQueueArns": [arn(str(number)) for number in range(11)]},
        {"redrivePermission": "byQueue", "sourceQueueArns": ["x"]},
        {"redrivePermission": "allowAll", "sourceQueueArns": [arn(name)]},
        {},
    ):
        with refused("InvalidParameterValue"):
            allow(**bad)


def test_sources_of_a_dead_letter_queue_are_listed(sqs: Any, name: str, make: Callable[..., str]) -> None:
    dead = make("dead")
    policy = redrive(arn(f"{name}-dead"), 3)
    sources = [make(f"source-{number}", RedrivePolicy=policy) for number in range(3)]
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == sources
    pages = sqs.get_paginator("list_dead_letter_source_queues").paginate(
        QueueUrl=dead, PaginationConfig={"PageSize": 2}
    )
    assert [url for page in pages for url in page["queueUrls"]] == sources
    assert sqs.list_dead_letter_source_queues(QueueUrl=sources[0]).get("queueUrls", []) == []


def test_a_queue_made_elsewhere_tells_sqs_of_its_own_dead_letters(server: Server, sqs: Any, name: str) -> None:
    server.call(CreateQueue(name=name, config=QueueConfig(max_receives=4, retention_ms=None)))
    server.call(Send(queue=name, bodies=[b"x"]))
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found = attributes_of(sqs, url)
    assert json.loads(found["RedrivePolicy"]) == {"deadLetterTargetArn": arn(f"{name}.dead"), "maxReceiveCount": 4}
    assert found["MessageRetentionPeriod"] == "1209600"
    assert found["ApproximateNumberOfMessages"] == "1"
