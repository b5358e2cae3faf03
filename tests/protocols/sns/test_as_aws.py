"""What AWS was seen to answer, check by check: a request, and the answer that was recorded."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest

from penstock.protocols.sns import wire
from penstock.protocols.sns.service import ACTIONS
from penstock.protocols.sqs.errors import ErrorKind
from tests.compat.server import Server
from tests.protocols.sns.endpoint import Endpoint
from tests.protocols.sns.endpoint import endpoint as serving_endpoint
from tests.protocols.sns.test_sns import ARN, error_of, received

TOPIC = "arn:aws:sns:us-east-1:000000000000:"
INVALID = "InvalidParameter"


@pytest.fixture
def topic(sns: Any, name: str) -> str:
    """A standard topic."""
    return str(sns.create_topic(Name=name)["TopicArn"])


@pytest.fixture
def fifo_topic(sns: Any, name: str) -> str:
    """A FIFO topic."""
    return str(sns.create_topic(Name=f"{name}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"])


@pytest.fixture
def subscribed(sns: Any, topic: str, name: str) -> str:
    """The ARN of a queue's subscription. AWS lets a queue be subscribed that is not there."""
    return str(sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + name)["SubscriptionArn"])


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """An HTTP endpoint."""
    with serving_endpoint() as there:
        yield there


def form(server: Server, action: str, **fields: str) -> tuple[int, str, str]:
    """What a form that boto3 would not send is answered: status, code and message."""
    data = urlencode({"Action": action, "Version": "2010-03-31", **fields}).encode()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{server.url}/", data=data, timeout=20)
    error = ElementTree.fromstring(caught.value.read()).find("{*}Error")
    assert error is not None
    return caught.value.code, error.findtext("{*}Code") or "", error.findtext("{*}Message") or ""


# -- ARNs and names --

WRONG_ARNS = [
    ("randomstring", "TopicArn Reason: An ARN must have at least 6 elements, not 1"),
    ("randomstring:1", "TopicArn Reason: An ARN must have at least 6 elements, not 2"),
    ("a:b:c", "TopicArn Reason: An ARN must have at least 6 elements, not 3"),
    ("arn:aws:sns:us-east-1:random", "TopicArn Reason: An ARN must have at least 6 elements, not 5"),
]
OF_TOPICS: dict[str, dict[str, Any]] = {
    "publish": {"Message": "x"},
    "publish_batch": {"PublishBatchRequestEntries": [{"Id": "1", "Message": "x"}]},
    "subscribe": {"Protocol": "sqs", "Endpoint": f"{ARN}q"},
    "get_topic_attributes": {},
    "set_topic_attributes": {"AttributeName": "DisplayName", "AttributeValue": "x"},
    "list_subscriptions_by_topic": {},
    "add_permission": {"Label": "a", "AWSAccountId": ["111111111111"], "ActionName": ["Publish"]},
    "remove_permission": {"Label": "a"},
    "delete_topic": {},
}


@pytest.mark.parametrize(("arn", "reason"), WRONG_ARNS)
@pytest.mark.parametrize("action", OF_TOPICS)
def test_an_arn_that_is_none_is_counted_out(sns: Any, action: str, arn: str, reason: str) -> None:
    given = {"TopicArn": arn, **OF_TOPICS[action]}
    assert error_of(getattr(sns, action), **given) == (INVALID, f"Invalid parameter: {reason}")


@pytest.mark.parametrize("action", [each for each in OF_TOPICS if each != "delete_topic"])
def test_a_topic_that_is_not_there_is_not_found(sns: Any, name: str, action: str) -> None:
    answer = error_of(getattr(sns, action), TopicArn=TOPIC + name, **OF_TOPICS[action])
    assert answer == ("NotFound", "Topic does not exist")


def test_an_empty_topic_of_a_publish_is_counted_out_too(sns: Any) -> None:
    reason = "Invalid parameter: TopicArn Reason: An ARN must have at least 6 elements, not 1"
    assert error_of(sns.publish, TopicArn="", Message="x") == (INVALID, reason)
    reason = "Invalid parameter: TopicArn or TargetArn Reason: no value for required parameter"
    assert error_of(sns.publish, Message="x") == (INVALID, reason)


@pytest.mark.parametrize(
    ("arn", "reason"),
    [
        ("randomstring", "SubscriptionArn Reason: An ARN must have at least 6 elements, not 1"),
        ("arn:aws:sns:us-east-1:random", "SubscriptionArn Reason: An ARN must have at least 6 elements, not 5"),
        ("arn:aws:sns:us-east-1:111111111111:random", "SubscriptionId"),
        ("PendingConfirmation", "SubscriptionArn Reason: An ARN must have at least 6 elements, not 1"),
        ("", "SubscriptionArn Reason: no value for required parameter"),
    ],
)
def test_a_subscription_that_is_none_is_counted_out(sns: Any, arn: str, reason: str) -> None:
    assert error_of(sns.unsubscribe, SubscriptionArn=arn) == (INVALID, f"Invalid parameter: {reason}")


def test_what_is_gone_may_go_again(sns: Any, topic: str, subscribed: str) -> None:
    for _ in range(2):
        sns.unsubscribe(SubscriptionArn=subscribed)
    gone = ("NotFound", "Subscription does not exist")
    assert error_of(sns.get_subscription_attributes, SubscriptionArn=subscribed) == gone
    given = {"SubscriptionArn": subscribed, "AttributeName": "RawMessageDelivery", "AttributeValue": "true"}
    assert error_of(sns.set_subscription_attributes, **given) == gone
    for _ in range(2):
        sns.delete_topic(TopicArn=topic)


@pytest.mark.parametrize("wrong", ["", "x" * 300, *(f"a{each}b" for each in ":;!@|^% ")])
def test_a_name_that_no_topic_has_is_refused(sns: Any, wrong: str) -> None:
    assert error_of(sns.create_topic, Name=wrong) == (INVALID, "Invalid parameter: Topic Name")


# -- topics --


def test_a_topic_is_created_once_however_often_it_is_asked_for(sns: Any, name: str) -> None:
    tags = [{"Key": "k", "Value": "v"}]
    arn = sns.create_topic(Name=name, Attributes={"DisplayName": "a"}, Tags=tags)["TopicArn"]
    more: list[dict[str, Any]] = [{}, {"Attributes": {"DisplayName": "a"}}, {"Tags": tags}, {"Tags": []}]
    for given in more:
        assert sns.create_topic(Name=name, **given)["TopicArn"] == arn
    assert error_of(sns.create_topic, Name=name, Attributes={"DisplayName": "b"}) == (
        INVALID,
        "Invalid parameter: Attributes Reason: Topic already exists with different attributes",
    )
    assert error_of(sns.create_topic, Name=name, Tags=[*tags, {"Key": "l", "Value": "v"}]) == (
        INVALID,
        "Invalid parameter: Tags Reason: Topic already exists with different tags",
    )


def test_a_topic_shows_what_awss_shows(sns: Any, name: str) -> None:
    arn = sns.create_topic(Name=name, Attributes={"FifoTopic": "false"})["TopicArn"]
    shown = sns.get_topic_attributes(TopicArn=arn)["Attributes"]
    effective = {
        "http": {
            "defaultHealthyRetryPolicy": {
                "minDelayTarget": 20,
                "maxDelayTarget": 20,
                "numRetries": 3,
                "numMaxDelayRetries": 0,
                "numNoDelayRetries": 0,
                "numMinDelayRetries": 0,
                "backoffFunction": "linear",
            },
            "disableSubscriptionOverrides": False,
            "defaultRequestPolicy": {"headerContentType": "text/plain; charset=UTF-8"},
        }
    }
    assert json.loads(shown.pop("EffectiveDeliveryPolicy")) == effective
    policy = json.loads(shown.pop("Policy"))
    assert (policy["Version"], policy["Id"]) == ("2008-10-17", "__default_policy_ID")
    (statement,) = policy["Statement"]
    assert statement["Resource"] == arn
    assert statement["Condition"] == {"StringEquals": {"AWS:SourceOwner": "000000000000"}}
    assert shown == {
        "DisplayName": "",
        "Owner": "000000000000",
        "SubscriptionsConfirmed": "0",
        "SubscriptionsDeleted": "0",
        "SubscriptionsPending": "0",
        "TopicArn": arn,
    }


def test_a_fifo_topic_shows_what_awss_shows(sns: Any, name: str) -> None:
    attributes = {"FifoTopic": "true", "DisplayName": "TestTopic", "SignatureVersion": "2"}
    arn = sns.create_topic(Name=f"{name}.fifo", Attributes=attributes)["TopicArn"]
    shown = sns.get_topic_attributes(TopicArn=arn)["Attributes"]
    del shown["EffectiveDeliveryPolicy"], shown["Policy"]
    assert shown == {
        "ContentBasedDeduplication": "false",
        "DisplayName": "TestTopic",
        "FifoTopic": "true",
        "Owner": "000000000000",
        "SignatureVersion": "2",
        "SubscriptionsConfirmed": "0",
        "SubscriptionsDeleted": "0",
        "SubscriptionsPending": "0",
        "TopicArn": arn,
    }


RETRIES = {"minDelayTarget": 5, "maxDelayTarget": 6, "numRetries": 1}
TOO_MANY = {**RETRIES, "numRetries": 300}


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        (
            "DeliveryPolicy",
            json.dumps({"http": {"defaultHealthyRetryPolicy": TOO_MANY}}),
            "DeliveryPolicy: http.defaultHealthyRetryPolicy.numRetries must be less than or equal to 100",
        ),
        (
            "DeliveryPolicy",
            json.dumps({"http": {"defaultHealthyRetryPolicy": {"numRetries": 5}}}),
            "DeliveryPolicy: http.defaultHealthyRetryPolicy.minDelayTarget must be specified",
        ),
        ("DeliveryPolicy", '{"throttlePolicy": {}}', "DeliveryPolicy: Unexpected JSON member: throttlePolicy"),
        (
            "SQSSuccessFeedbackSampleRate",
            "500",
            "SQSSuccessFeedbackSampleRate: 500 value provided is not an integer between 0-100",
        ),
        (
            "Policy",
            json.dumps({"Statement": [{"Effect": "Allow", "Principal": "*", "Action": ["SNS:Publishx"]}]}),
            "Policy statement action out of service scope!",
        ),
    ],
)
def test_an_attribute_of_a_topic_is_refused_in_awss_words(
    sns: Any, topic: str, name: str, attribute: str, value: str, reason: str
) -> None:
    given = {"TopicArn": topic, "AttributeName": attribute, "AttributeValue": value}
    assert error_of(sns.set_topic_attributes, **given) == (INVALID, f"Invalid parameter: {reason}")
    assert error_of(sns.create_topic, Name=f"{name}-b", Attributes={attribute: value}) == (
        INVALID,
        f"Invalid parameter: Attributes Reason: {reason}",
    )


def test_attributes_that_no_topic_has_are_named_at_its_creation(sns: Any, topic: str, name: str) -> None:
    given = {"TopicArn": topic, "AttributeName": "Colour", "AttributeValue": "blue"}
    assert error_of(sns.set_topic_attributes, **given) == (INVALID, "Invalid parameter: AttributeName")
    given |= {"AttributeName": "FifoTopic", "AttributeValue": "false"}
    assert error_of(sns.set_topic_attributes, **given) == (INVALID, "Invalid parameter: AttributeName")
    assert error_of(sns.create_topic, Name=f"{name}-b", Attributes={"Colour": "blue"}) == (
        INVALID,
        "Invalid parameter: Attributes Reason: Unknown attribute Colour",
    )


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            {"http": {"defaultRequestPolicy": {"headerContentType": "application/json"}}},
            {
                "http": {
                    "disableSubscriptionOverrides": False,
                    "defaultRequestPolicy": {"headerContentType": "application/json"},
                }
            },
        ),
        (
            {"http": {"defaultHealthyRetryPolicy": RETRIES}},
            {"http": {"defaultHealthyRetryPolicy": RETRIES, "disableSubscriptionOverrides": False}},
        ),
        ({"http": {"defaultHealthyRetryPolicy": None}}, {"http": {"disableSubscriptionOverrides": False}}),
    ],
)
def test_a_delivery_policy_is_shown_as_aws_shows_it(sns: Any, topic: str, given: Any, shown: Any) -> None:
    sns.set_topic_attributes(TopicArn=topic, AttributeName="DeliveryPolicy", AttributeValue=json.dumps(given))
    found = sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    assert json.loads(found["DeliveryPolicy"]) == shown
    sns.set_topic_attributes(TopicArn=topic, AttributeName="DeliveryPolicy", AttributeValue="")
    assert "DeliveryPolicy" not in sns.get_topic_attributes(TopicArn=topic)["Attributes"]


def test_a_data_protection_policy_can_come_with_the_topic(sns: Any, name: str) -> None:
    policy = json.dumps({"Name": "basic", "Version": "2021-06-01", "Statement": []})
    topic = sns.create_topic(Name=name, DataProtectionPolicy=policy)["TopicArn"]
    assert sns.get_data_protection_policy(ResourceArn=topic)["DataProtectionPolicy"] == policy


@pytest.mark.parametrize(
    ("tags", "code", "message"),
    [
        ([{"Key": "k", "Value": "1"}] * 2, INVALID, "Invalid parameter: Duplicated keys are not allowed."),
        (
            [{"Key": "k" * 129, "Value": "1"}],
            "ValidationError",
            f"1 validation error detected: Value '{'k' * 129}' at 'tags.1.member.key' failed to satisfy constraint: "
            "Member must have length less than or equal to 128",
        ),
        (
            [{"Key": "k", "Value": "1" * 257}],
            "ValidationError",
            f"1 validation error detected: Value '{'1' * 257}' at 'tags.1.member.value' failed to satisfy constraint: "
            "Member must have length less than or equal to 256",
        ),
        (
            [{"Key": str(each), "Value": "1"} for each in range(51)],
            "TagLimitExceeded",
            "Could not complete request: tag quota of per resource exceeded",
        ),
    ],
)
def test_tags_are_refused_in_awss_words(
    sns: Any, topic: str, name: str, tags: list[dict[str, str]], code: str, message: str
) -> None:
    assert error_of(sns.tag_resource, ResourceArn=topic, Tags=tags) == (code, message)
    assert error_of(sns.create_topic, Name=f"{name}-b", Tags=tags) == (code, message)


def test_a_resource_that_is_not_there_is_not_found(sns: Any, name: str) -> None:
    gone = ("ResourceNotFound", "Resource does not exist")
    assert error_of(sns.list_tags_for_resource, ResourceArn=TOPIC + name) == gone
    assert error_of(sns.untag_resource, ResourceArn=TOPIC + name, TagKeys=["a"]) == gone


# -- publishing --

EMPTY = "The message attribute 'attr1' must contain non-empty message attribute value for message attribute type '{}'."
FIELD = "The message attribute 'attr1' with type '{}' must use field '{}'."
TYPE = (
    "The message attribute 'attr1' has an invalid message attribute type, the set of supported type prefixes is "
    "Binary, Number, and String."
)
VALUE = "ParameterValueInvalid"
NAMED = {"DataType": "String", "StringValue": "v"}


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"attr1": {"DataType": "String", "StringValue": ""}}, EMPTY.format("String")),
        ({"attr1": {"DataType": "String"}}, EMPTY.format("String")),
        ({"attr1": {"DataType": "Number", "StringValue": ""}}, EMPTY.format("Number")),
        ({"attr1": {"DataType": "Binary", "BinaryValue": b""}}, EMPTY.format("Binary")),
        ({"attr1": {"DataType": "String", "BinaryValue": b"b"}}, FIELD.format("String", "String")),
        ({"attr1": {"DataType": "Number", "BinaryValue": b"b"}}, FIELD.format("Number", "String")),
        ({"attr1": {"DataType": "Binary", "StringValue": "s"}}, FIELD.format("Binary", "Binary")),
        ({"attr1": {"DataType": "InvalidType", "StringValue": "s"}}, TYPE),
        ({"attr1": {"DataType": "Stringprefixed", "StringValue": "s"}}, TYPE),
        ({"attr1": {"DataType": "String.", "StringValue": "s"}}, TYPE),
        (
            {"attr1": {"DataType": "Number", "StringValue": "a"}},
            "Could not cast message attribute 'attr1' value to number.",
        ),
        ({"a" * 257: NAMED}, "Length of message attribute name must be less than 256 bytes."),
        (
            {"a^b": NAMED},
            "Invalid non-alphanumeric character '#x5E' was found in the message attribute name. Can only include "
            "alphanumeric characters, hyphens, underscores, or dots.",
        ),
        ({".a": NAMED}, "Invalid message attribute name starting with character '.' was found."),
        ({"a.": NAMED}, "Invalid message attribute name ending with character '.' was found."),
        ({"a..b": NAMED}, "Message attribute name can not have successive '.' character."),
    ],
)
def test_a_message_attribute_is_refused_in_awss_words(
    sns: Any, topic: str, attributes: dict[str, Any], message: str
) -> None:
    assert error_of(sns.publish, TopicArn=topic, Message="x", MessageAttributes=attributes) == (VALUE, message)
    entries = [{"Id": "1", "Message": "x", "MessageAttributes": attributes}]
    assert error_of(sns.publish_batch, TopicArn=topic, PublishBatchRequestEntries=entries) == (VALUE, message)


@pytest.mark.parametrize("kind", ["String.prefixed", "Number.int", "Binary.png"])
def test_a_type_may_have_a_label(sns: Any, topic: str, kind: str) -> None:
    value = {"BinaryValue": b"1"} if kind.startswith("Binary") else {"StringValue": "1"}
    assert sns.publish(TopicArn=topic, Message="x", MessageAttributes={"attr1": {"DataType": kind, **value}})


def test_an_attribute_without_a_type_is_a_validation_error(server: Server, topic: str) -> None:
    where = "1 validation error detected: Value null at '{}messageAttributes.attr1.member.dataType' failed to satisfy "
    where += "constraint: Member must not be null"
    fields = {"Message": "x", "MessageAttributes.entry.1.Name": "attr1"}
    fields |= {"MessageAttributes.entry.1.Value.StringValue": "v"}
    assert form(server, "Publish", TopicArn=topic, **fields) == (400, "ValidationError", where.format(""))
    batch = {f"PublishBatchRequestEntries.member.1.{name}": value for name, value in fields.items()}
    batch["PublishBatchRequestEntries.member.1.Id"] = "1"
    expected = where.format("publishBatchRequestEntries.1.member.")
    assert form(server, "PublishBatch", TopicArn=topic, **batch) == (400, "ValidationError", expected)


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ({"Message": ""}, INVALID, "Invalid parameter: Empty message"),
        ({"Message": "x", "Subject": ""}, INVALID, "Invalid parameter: Subject"),
        ({"Message": "x", "Subject": "x" * 101}, INVALID, "Invalid parameter: Subject"),
        ({"Message": "x", "Subject": "a\nb"}, INVALID, "Invalid parameter: Subject"),
        ({"Message": "x" * (256 * 1024 + 1)}, INVALID, "Invalid parameter: Message too long"),
        (
            {"Message": "x" * 256 * 1024, "MessageAttributes": {"a": NAMED}},
            INVALID,
            "Invalid parameter: Message too long",
        ),
        (
            {"Message": '{"email": "a"}', "MessageStructure": "json"},
            INVALID,
            "Invalid parameter: Message Structure - No default entry in JSON message body",
        ),
        (
            {"Message": '{"default": {"a": 1}}', "MessageStructure": "json"},
            INVALID,
            "Invalid parameter: Message Structure - No default entry in JSON message body",
        ),
        (
            {"Message": "{abc", "MessageStructure": "json"},
            INVALID,
            "Invalid parameter: Message Structure - JSON message body failed to parse",
        ),
        (
            {"Message": "x", "MessageDeduplicationId": "a"},
            INVALID,
            "Invalid parameter: MessageDeduplicationId Reason: The request includes MessageDeduplicationId parameter "
            "that is not valid for this topic type",
        ),
    ],
)
def test_a_publish_is_refused_in_awss_words(sns: Any, topic: str, given: Any, code: str, message: str) -> None:
    assert error_of(sns.publish, TopicArn=topic, **given) == (code, message)


def test_keys_that_come_twice_in_a_json_message_are_fine(sns: Any, topic: str) -> None:
    both = '{"default": "a", "default": "b"}'
    assert sns.publish(TopicArn=topic, Message=both, MessageStructure="json")["MessageId"]


BATCHES: list[tuple[list[dict[str, Any]], str, str]] = [
    (
        [{"Id": "1", "Message": "x", "MessageDeduplicationId": "1"}],
        INVALID,
        "Invalid parameter: The MessageGroupId parameter is required for FIFO topics",
    ),
    (
        [{"Id": "1", "Message": "x", "MessageGroupId": "1"}],
        INVALID,
        "Invalid parameter: The topic should either have ContentBasedDeduplication enabled or MessageDeduplicationId "
        "provided explicitly",
    ),
    (
        [{"Id": str(each), "Message": "x", "MessageGroupId": "1"} for each in range(11)],
        "TooManyEntriesInBatchRequest",
        "The batch request contains more entries than permissible.",
    ),
    (
        [{"Id": "1", "Message": "x", "MessageGroupId": "1"}] * 2,
        "BatchEntryIdsNotDistinct",
        "Two or more batch entries in the request have the same Id.",
    ),
    (
        [{"Id": "a:b", "Message": "x", "MessageGroupId": "1"}],
        "InvalidBatchEntryId",
        "The Id of a batch entry in a batch request doesn't abide by the specification.",
    ),
    ([], "EmptyBatchRequest", "The batch request doesn't contain any entries."),
    (
        [
            {
                "Id": "1",
                "Message": "{}",
                "MessageStructure": "json",
                "MessageGroupId": "1",
                "MessageDeduplicationId": "1",
            }
        ],
        INVALID,
        "Invalid parameter: Message Structure - No default entry in JSON message body",
    ),
    (
        [{"Id": "1", "Message": "x" * (256 * 1024 + 1), "MessageGroupId": "1", "MessageDeduplicationId": "1"}],
        "BatchRequestTooLong",
        "The length of all the messages put together is more than the limit.",
    ),
]


@pytest.mark.parametrize(("entries", "code", "message"), BATCHES)
def test_a_batch_is_refused_as_a_whole(sns: Any, fifo_topic: str, entries: Any, code: str, message: str) -> None:
    answer = error_of(sns.publish_batch, TopicArn=fifo_topic, PublishBatchRequestEntries=entries)
    assert answer == (code, message)


@pytest.mark.parametrize("number", ["+1a234", "NAA+15551234567", "call me"])
def test_a_number_that_is_none_is_refused(sns: Any, topic: str, number: str) -> None:
    answer = error_of(sns.publish, PhoneNumber=number, Message="x")
    assert answer == (INVALID, f"Invalid parameter: PhoneNumber Reason: {number} is not valid to publish to")
    answer = error_of(sns.subscribe, TopicArn=topic, Protocol="sms", Endpoint=number)
    assert answer == (INVALID, f"Invalid SMS endpoint: {number}")


def test_a_text_message_is_counted(server: Server, sns: Any) -> None:
    counter = 'penstock_sns_notifications_total{outcome="not_sent",protocol="sms"}'
    before = server.metric(counter)
    assert sns.publish(PhoneNumber="+15555550100", Message="x")["MessageId"]
    assert server.metric(counter) == before + 1


def test_a_target_is_a_topic_or_an_endpoint_that_is_there(sns: Any, topic: str) -> None:
    assert sns.publish(TargetArn=topic, Message="x")["MessageId"]
    endpoint = "arn:aws:sns:us-east-1:000000000000:endpoint/APNS/abcdef/0f7d5971-aa8b-4bd5-b585-0826e9f93a66"
    assert error_of(sns.publish, TargetArn=endpoint, Message="x") == (
        INVALID,
        "Invalid parameter: TargetArn Reason: No endpoint found for the target arn specified",
    )


# -- subscriptions --


def test_a_subscription_shows_what_awss_shows(sns: Any, topic: str, name: str, subscribed: str) -> None:
    shown = sns.get_subscription_attributes(SubscriptionArn=subscribed)["Attributes"]
    assert shown.pop("SubscriptionPrincipal").startswith("arn:aws:iam::000000000000:user/")
    expected = {
        "ConfirmationWasAuthenticated": "true",
        "Endpoint": ARN + name,
        "Owner": "000000000000",
        "PendingConfirmation": "false",
        "Protocol": "sqs",
        "RawMessageDelivery": "false",
        "SubscriptionArn": subscribed,
        "TopicArn": topic,
    }
    assert shown == expected
    scope = {"AttributeName": "FilterPolicyScope", "AttributeValue": "MessageBody"}
    sns.set_subscription_attributes(SubscriptionArn=subscribed, **scope)
    shown = sns.get_subscription_attributes(SubscriptionArn=subscribed)["Attributes"]
    assert "FilterPolicyScope" not in shown
    policy = '{"attr": ["match-this"]}'
    sns.set_subscription_attributes(SubscriptionArn=subscribed, AttributeName="FilterPolicy", AttributeValue=policy)
    shown = sns.get_subscription_attributes(SubscriptionArn=subscribed)["Attributes"]
    del shown["SubscriptionPrincipal"]
    assert shown == expected | {"FilterPolicy": policy, "FilterPolicyScope": "MessageBody"}


def test_the_same_subscription_once_more_is_the_same(sns: Any, topic: str, name: str) -> None:
    given = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": ARN + name}
    arn = sns.subscribe(**given, Attributes={"RawMessageDelivery": "true"})["SubscriptionArn"]
    for attributes in ({"RawMessageDelivery": "true"}, {"RawMessageDelivery": "True"}, {}):
        assert sns.subscribe(**given, Attributes=attributes)["SubscriptionArn"] == arn
    assert sns.subscribe(**given)["SubscriptionArn"] == arn
    assert error_of(sns.subscribe, **given, Attributes={"RawMessageDelivery": "false"}) == (
        INVALID,
        "Invalid parameter: Attributes Reason: Subscription already exists with different attributes",
    )


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("RawMessageDelivery", "test-ValUe", "RawMessageDelivery: Invalid value [test-ValUe]. Must be true or false."),
        ("RawMessageDelivery", "", "RawMessageDelivery: Invalid value []. Must be true or false."),
        (
            "FilterPolicyScope",
            "RandomValue",
            "FilterPolicyScope: Invalid value [RandomValue]. Please use either MessageBody or MessageAttributes",
        ),
        (
            "RedrivePolicy",
            '{"deadLetterTargetArn": "fake-arn"}',
            "RedrivePolicy: deadLetterTargetArn is an invalid arn",
        ),
        (
            "RedrivePolicy",
            json.dumps({"deadLetterTargetArn": f"{ARN}dead", "maxReceiveCount": 5}),
            "RedrivePolicy: invalid JSON. Attribute maxReceiveCount is unknown.",
        ),
        ("FilterPolicy", '{"key_a": "value_one"}', 'FilterPolicy: "key_a" must be an object or an array'),
        (
            "FilterPolicy",
            '{"object": {"key": [{"prefix": "auto-"}]}}',
            "Filter policy scope MessageAttributes does not support nested filter policy",
        ),
        (
            "FilterPolicy",
            json.dumps({f"k{each}": ["v"] for each in range(6)}),
            "FilterPolicy: Filter policy can not have more than 5 keys",
        ),
        (
            "FilterPolicy",
            json.dumps({"a": [str(each) for each in range(151)]}),
            "FilterPolicy: Filter policy is too complex",
        ),
    ],
)
def test_an_attribute_of_a_subscription_is_refused_in_awss_words(
    sns: Any, topic: str, name: str, subscribed: str, attribute: str, value: str, reason: str
) -> None:
    given = {"SubscriptionArn": subscribed, "AttributeName": attribute, "AttributeValue": value}
    assert error_of(sns.set_subscription_attributes, **given) == (INVALID, f"Invalid parameter: {reason}")
    given = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": f"{ARN}{name}-b", "Attributes": {attribute: value}}
    assert error_of(sns.subscribe, **given) == (INVALID, f"Invalid parameter: Attributes Reason: {reason}")


@pytest.mark.parametrize("attribute", ["RedrivePolicy", "FilterPolicy"])
def test_a_policy_that_is_no_json_is_refused(sns: Any, subscribed: str, attribute: str) -> None:
    given = {"SubscriptionArn": subscribed, "AttributeName": attribute, "AttributeValue": "{invalidjson}"}
    code, message = error_of(sns.set_subscription_attributes, **given)
    assert (code, message.startswith(f"Invalid parameter: {attribute}: failed to parse JSON.")) == (INVALID, True)


def test_attributes_that_no_subscription_has_are_named_when_it_is_made(sns: Any, topic: str, subscribed: str) -> None:
    given = {"SubscriptionArn": subscribed, "AttributeName": "FakeAttribute", "AttributeValue": "x"}
    assert error_of(sns.set_subscription_attributes, **given) == (INVALID, "Invalid parameter: AttributeName")
    given = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": f"{ARN}b", "Attributes": {"FakeAttribute": "x"}}
    assert error_of(sns.subscribe, **given) == (
        INVALID,
        "Invalid parameter: Attributes Reason: Unknown attribute FakeAttribute",
    )


@pytest.mark.parametrize(
    ("protocol", "endpoint", "reason"),
    [
        ("test-protocol", "x", "Amazon SNS does not support this protocol string: test-protocol"),
        ("sqs", "http://localhost:9324/000000000000/q", "SQS endpoint ARN"),
        ("sqs", "arn:aws:sqs:us-east-1:000000000000", "SQS endpoint ARN"),
    ],
)
def test_an_endpoint_is_refused_in_awss_words(sns: Any, topic: str, protocol: str, endpoint: str, reason: str) -> None:
    answer = error_of(sns.subscribe, TopicArn=topic, Protocol=protocol, Endpoint=endpoint)
    assert answer == (INVALID, f"Invalid parameter: {reason}")


def test_fifo_and_standard_meet_as_on_aws(sns: Any, sqs: Any, topic: str, fifo_topic: str, name: str) -> None:
    standard = sqs.create_queue(QueueName=name)["QueueUrl"]
    sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})
    assert error_of(sns.subscribe, TopicArn=topic, Protocol="sqs", Endpoint=f"{ARN}{name}.fifo") == (
        INVALID,
        "Invalid parameter: Invalid parameter: Endpoint Reason: FIFO SQS Queues can not be subscribed to standard SNS "
        "topics",
    )
    fifo = sns.subscribe(TopicArn=fifo_topic, Protocol="sqs", Endpoint=f"{ARN}{name}.fifo")["SubscriptionArn"]
    dead = json.dumps({"deadLetterTargetArn": ARN + name})
    given = {"SubscriptionArn": fifo, "AttributeName": "RedrivePolicy", "AttributeValue": dead}
    assert error_of(sns.set_subscription_attributes, **given) == (
        INVALID,
        "Invalid parameter: RedrivePolicy: must use a FIFO queue as DLQ for a FIFO Subscription to a FIFO Topic.",
    )
    sns.subscribe(TopicArn=fifo_topic, Protocol="sqs", Endpoint=ARN + name)
    sns.publish(TopicArn=fifo_topic, Message="Test", MessageGroupId="g", MessageDeduplicationId="d")
    (message,) = received(sqs, standard, 1)
    assert set(message["Attributes"]) == {
        "ApproximateFirstReceiveTimestamp",
        "ApproximateReceiveCount",
        "SenderId",
        "SentTimestamp",
    }


def test_envelopes_of_fifo_topics_are_numbered_and_not_signed(sns: Any, sqs: Any, fifo_topic: str, name: str) -> None:
    url = sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    sns.subscribe(TopicArn=fifo_topic, Protocol="sqs", Endpoint=f"{ARN}{name}.fifo")
    sent = sns.publish(TopicArn=fifo_topic, Message="Test", MessageGroupId="g", MessageDeduplicationId="d")
    (message,) = received(sqs, url, 1)
    envelope = json.loads(message["Body"])
    assert list(envelope) == [
        "Type",
        "MessageId",
        "SequenceNumber",
        "TopicArn",
        "Message",
        "Timestamp",
        "UnsubscribeURL",
    ]
    assert envelope["SequenceNumber"] == sent["SequenceNumber"]
    assert (message["Attributes"]["MessageGroupId"], message["Attributes"]["MessageDeduplicationId"]) == ("g", "d")


def test_envelopes_of_standard_topics_have_awss_fields_in_awss_order(sns: Any, sqs: Any, topic: str, name: str) -> None:
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + name)
    sns.publish(TopicArn=topic, Message="x", Subject="s", MessageAttributes={"a": NAMED})
    (message,) = received(sqs, url, 1)
    assert list(json.loads(message["Body"])) == [
        "Type",
        "MessageId",
        "TopicArn",
        "Subject",
        "Message",
        "Timestamp",
        "SignatureVersion",
        "Signature",
        "SigningCertURL",
        "UnsubscribeURL",
        "MessageAttributes",
    ]


TRACE = "Root=1-3152b799-8954dae64eda91bc9a23a7e8;Parent=7fa8c0f79203be72;Sampled=1"


@contextmanager
def traced(client: Any, event: str) -> Iterator[None]:
    """Requests carry a trace, as those of X-Ray's SDK do."""

    def add(request: Any, **_: Any) -> None:
        request.headers["X-Amzn-Trace-Id"] = TRACE

    client.meta.events.register(event, add)
    try:
        yield
    finally:
        client.meta.events.unregister(event, add)


@pytest.mark.parametrize("raw", ["true", "false"])
def test_a_trace_goes_from_the_publish_to_the_queue(sns: Any, sqs: Any, topic: str, name: str, raw: str) -> None:
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + name, Attributes={"RawMessageDelivery": raw})
    with traced(sns, "before-send.sns.Publish"):
        sns.publish(TopicArn=topic, Message="X-Ray propagation test msg")
    (message,) = received(sqs, url, 1)
    assert message["Attributes"]["AWSTraceHeader"] == TRACE


def test_a_trace_of_a_send_reaches_the_server_as_it_is_run(sqs: Any, name: str) -> None:
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    with traced(sqs, "before-send.sqs.SendMessage"):
        sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = received(sqs, url, 1)
    assert message["Attributes"]["AWSTraceHeader"] == TRACE


# -- HTTP endpoints --


def test_a_delivery_policy_of_a_subscription_is_shown_as_aws_shows_it(sns: Any, topic: str, endpoint: Endpoint) -> None:
    given = {"requestPolicy": {"headerContentType": "text/csv"}}
    arn = sns.subscribe(
        TopicArn=topic,
        Protocol="http",
        Endpoint=endpoint.url,
        Attributes={"DeliveryPolicy": json.dumps(given)},
        ReturnSubscriptionArn=True,
    )["SubscriptionArn"]
    shown = sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
    assert json.loads(shown["DeliveryPolicy"]) == {
        "healthyRetryPolicy": None,
        "sicklyRetryPolicy": None,
        "throttlePolicy": None,
        "requestPolicy": {"headerContentType": "text/csv"},
        "guaranteed": False,
    }
    assert json.loads(shown["EffectiveDeliveryPolicy"])["requestPolicy"] == {"headerContentType": "text/csv"}
    assert (shown["ConfirmationWasAuthenticated"], shown["PendingConfirmation"]) == ("false", "true")


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"healthyRetryPolicy": {"numRetries": 5}}, "healthyRetryPolicy.minDelayTarget must be specified"),
        (
            {"healthyRetryPolicy": {**RETRIES, "minDelayTarget": 0}},
            "healthyRetryPolicy.minDelayTarget must be greater than or equal to 1",
        ),
        (
            {"healthyRetryPolicy": {**RETRIES, "maxDelayTarget": 3601}},
            "healthyRetryPolicy.maxDelayTarget must be less than or equal to 3600",
        ),
        ({"healthyRetryPolicy": TOO_MANY}, "healthyRetryPolicy.numRetries must be less than or equal to 100"),
        ({"colour": 1}, "Unexpected JSON member: colour"),
    ],
)
def test_a_delivery_policy_is_refused_in_awss_words(
    sns: Any, topic: str, endpoint: Endpoint, policy: Any, reason: str
) -> None:
    given = {"TopicArn": topic, "Protocol": "http", "Endpoint": endpoint.url}
    attributes = {"DeliveryPolicy": json.dumps(policy)}
    assert error_of(sns.subscribe, **given, Attributes=attributes) == (
        INVALID,
        f"Invalid parameter: Attributes Reason: DeliveryPolicy: {reason}",
    )
    arn = sns.subscribe(**given, ReturnSubscriptionArn=True)["SubscriptionArn"]
    given = {"SubscriptionArn": arn, "AttributeName": "DeliveryPolicy", "AttributeValue": attributes["DeliveryPolicy"]}
    answer = error_of(sns.set_subscription_attributes, **given)
    assert answer == (INVALID, f"Invalid parameter: DeliveryPolicy: {reason}")


def test_a_confirmation_is_refused_in_awss_words(sns: Any, topic: str, endpoint: Endpoint) -> None:
    for where in (topic, f"{topic}-gone"):
        assert error_of(sns.confirm_subscription, TopicArn=where, Token="51b2ff3e" * 36) == (
            INVALID,
            "Invalid parameter: Token",
        )
    assert error_of(sns.confirm_subscription, TopicArn=topic, Token="randomtoken") == (INVALID, "Invalid token")
    sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint.url)
    token = json.loads(endpoint.wait(1)[0].body)["Token"]
    for where in (f"{topic}-gone", "gone"):
        answer = error_of(sns.confirm_subscription, TopicArn=where, Token=token)
        assert answer == (INVALID, "Invalid parameter: Topic")


# -- the model --


def test_actions_and_errors_are_those_of_the_model(sns: Any) -> None:
    model = sns.meta.service_model
    assert set(ACTIONS) <= set(model.operation_names)
    known = {shape.metadata["error"]["code"]: shape.metadata["error"]["httpStatusCode"] for shape in _errors(model)}
    # AWS answers with this code, not with the one of its model
    known["ValidationError"] = known["ValidationException"]
    ours = [each for each in vars(wire).values() if isinstance(each, ErrorKind) and each.namespace == wire._SNS]
    assert {each.code: each.status for each in ours} == {each.code: known[each.code] for each in ours}


def _errors(model: Any) -> list[Any]:
    return [shape for shape in model.error_shapes if "error" in shape.metadata]


@pytest.mark.parametrize(
    "action", sorted({"CreatePlatformApplication", "ListPhoneNumbersOptedOut", "GetSMSAttributes"})
)
def test_an_action_that_is_not_there_says_so(server: Server, action: str) -> None:
    status, code, message = form(server, action)
    assert (status, code) == (400, "InvalidAction")
    assert message == f"Could not find operation {action} for version 2010-03-31"


def test_pages_hold_a_hundred(sns: Any, topic: str) -> None:
    for number in range(101):
        sns.subscribe(TopicArn=topic, Protocol="sms", Endpoint=f"+1555{number:07d}")
    first = sns.list_subscriptions_by_topic(TopicArn=topic)
    second = sns.list_subscriptions_by_topic(TopicArn=topic, NextToken=first["NextToken"])
    assert (len(first["Subscriptions"]), len(second["Subscriptions"]), "NextToken" in second) == (100, 1, False)
