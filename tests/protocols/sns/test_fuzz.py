"""Every action of SNS with everything that is not as it should be: no 5xx, no connection without an answer.

`COMPAT_FUZZ_EXAMPLES` says how hard Hypothesis tries for each action.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
from collections.abc import Iterator
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.sns.service import ACTIONS
from tests.compat.server import PATIENCE_S, Server, serving
from tests.protocols.sns.conftest import sns_client

_numbers = itertools.count()
EXAMPLES = int(os.environ.get("COMPAT_FUZZ_EXAMPLES", "50")) // 2
TOPIC = "arn:aws:sns:us-east-1:000000000000:news"
POLICY = '{"kind": ["a", {"numeric": [">", 3]}], "$or": [{"x": [{"exists": true}]}, {"y": [{"cidr": "10.0.0.0/8"}]}]}'
RETRIES = '{"minDelayTarget": 1, "maxDelayTarget": 2, "numRetries": 0}'
FORMS: dict[str, dict[str, str]] = {
    "AddPermission": {
        "TopicArn": TOPIC,
        "Label": "l",
        "AWSAccountId.member.1": "111111111111",
        "ActionName.member.1": "Publish",
    },
    "ConfirmSubscription": {"TopicArn": TOPIC, "Token": "00" * 40, "AuthenticateOnUnsubscribe": "true"},
    "CreateTopic": {
        "Name": "other",
        "Attributes.entry.1.key": "DisplayName",
        "Attributes.entry.1.value": "x",
        "Tags.member.1.Key": "k",
        "Tags.member.1.Value": "v",
    },
    "DeleteTopic": {"TopicArn": TOPIC + "2"},
    "GetDataProtectionPolicy": {"ResourceArn": TOPIC},
    "GetSubscriptionAttributes": {"SubscriptionArn": TOPIC + ":1"},
    "GetTopicAttributes": {"TopicArn": TOPIC},
    "ListSubscriptions": {"NextToken": "eA=="},
    "ListSubscriptionsByTopic": {"TopicArn": TOPIC, "NextToken": "eA=="},
    "ListTagsForResource": {"ResourceArn": TOPIC},
    "ListTopics": {"NextToken": "eA=="},
    "Publish": {
        "TopicArn": TOPIC,
        "Message": '{"default": "x"}',
        "Subject": "s",
        "MessageStructure": "json",
        "MessageGroupId": "g",
        "MessageAttributes.entry.1.Name": "kind",
        "MessageAttributes.entry.1.Value.DataType": "Number",
        "MessageAttributes.entry.1.Value.StringValue": "5",
        "MessageAttributes.entry.2.Name": "b",
        "MessageAttributes.entry.2.Value.DataType": "Binary",
        "MessageAttributes.entry.2.Value.BinaryValue": "AAE=",
    },
    "PublishBatch": {
        "TopicArn": TOPIC,
        "PublishBatchRequestEntries.member.1.Id": "1",
        "PublishBatchRequestEntries.member.1.Message": "x",
        "PublishBatchRequestEntries.member.2.Id": "2",
        "PublishBatchRequestEntries.member.2.Message": "y",
    },
    "PutDataProtectionPolicy": {"ResourceArn": TOPIC, "DataProtectionPolicy": "{}"},
    "RemovePermission": {"TopicArn": TOPIC, "Label": "l"},
    "SetSubscriptionAttributes": {
        "SubscriptionArn": TOPIC + ":1",
        "AttributeName": "FilterPolicy",
        "AttributeValue": POLICY,
    },
    "SetTopicAttributes": {
        "TopicArn": TOPIC,
        "AttributeName": "DeliveryPolicy",
        "AttributeValue": f'{{"http": {{"defaultHealthyRetryPolicy": {RETRIES}}}}}',
    },
    "Subscribe": {
        "TopicArn": TOPIC,
        "Protocol": "http",
        "Endpoint": "http://127.0.0.1:1/",
        "Attributes.entry.1.key": "DeliveryPolicy",
        "Attributes.entry.1.value": f'{{"healthyRetryPolicy": {RETRIES}}}',
        "Attributes.entry.2.key": "FilterPolicy",
        "Attributes.entry.2.value": POLICY,
    },
    "TagResource": {"ResourceArn": TOPIC, "Tags.member.1.Key": "k", "Tags.member.1.Value": "v"},
    "Unsubscribe": {"SubscriptionArn": TOPIC + ":1"},
    "UntagResource": {"ResourceArn": TOPIC, "TagKeys.member.1": "k"},
}
ODD = [
    "",
    " ",
    "\0",
    "\ufffe",
    "\U0010ffff",
    "a" * 300,
    "-1",
    "9" * 30,
    "٣",
    "true",
    "null",
    "{}",
    "[]",
    "[" * 2_000,
    '{"a":' * 2_000,
    '{"a":' * 900 + '["x"]' + "}" * 900,
    '{"$or":[{},' * 450 + '{"a":["x"]}' + "]}" * 450,
    '{"http": []}',
    '{"http": {"defaultThrottlePolicy": {"maxReceivesPerSecond": 1e400}}}',
    '{"healthyRetryPolicy": {"minDelayTarget": 1e300, "numRetries": null}}',
    '{"a": [{"numeric": ["<", 1e999]}]}',
    '{"$or": [[], {}]}',
    '{"Statement": [5]}',
    '{"PointType": "Timestamp", "StartingPoint": "9999-99-99"}',
    '{"PointType": "Timestamp", "StartingPoint": "0001-01-01T00:00:00+23:59"}',
    '{"MessageRetentionPeriod": "٣"}',
    '{"deadLetterTargetArn": {}}',
    "arn:aws:sns:::",
    "arn:aws:sns:us-east-1:000000000000:news.fifo",
    TOPIC,
    TOPIC + ":",
    "http://[",
    "http://127.0.0.1:99999/",
    "http://\r\nX: y/",
    "http://localhost:1/\u00e4",
    "sqs",
    "penstock",
    "email",
    "FilterPolicyScope",
    "MessageBody",
    "ArchivePolicy",
    "ReplayPolicy",
    "RedrivePolicy",
    "Policy",
    "Number",
    "String.Array",
    "json",
]
odd_texts = st.one_of(
    st.sampled_from(ODD), st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace").decode())
)


class Asked:
    """One keep-alive connection."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)

    def subscribe(self, fields: dict[str, str]) -> str:
        """The ARN of a new subscription."""
        fields = {"Action": "Subscribe", "Version": "2010-03-31", "ReturnSubscriptionArn": "true", **fields}
        self._connection.request(
            "POST", "/", urlencode(fields).encode(), {"Content-Type": "application/x-www-form-urlencoded"}
        )
        return ElementTree.fromstring(self._connection.getresponse().read()).findtext(".//{*}SubscriptionArn") or ""

    def ask(self, fields: dict[str, str]) -> int:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        self._connection.request("POST", "/", urlencode(fields).encode(), headers)
        response = self._connection.getresponse()
        content = response.read()
        assert response.status < 500, (fields, content)
        root = ElementTree.fromstring(content)
        assert response.status == 200 or root.tag.endswith("}ErrorResponse")
        return response.status


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """A server of its own, which must be well at the end."""
    with serving(tmp_path_factory.mktemp("fuzz")) as server:
        sns = sns_client(server)
        sns.create_topic(Name="news")
        sns.create_topic(Name="news.fifo", Attributes={"FifoTopic": "true"})
        yield Asked(server)
        assert server.is_healthy()
        assert server.failures_logged() == []
        assert sns.list_topics()["Topics"]


@st.composite
def damaged(draw: st.DrawFn, fields: dict[str, str]) -> dict[str, str]:
    """A form with some of its fields changed, renamed, doubled or left out."""
    edited = dict(fields)
    for name in draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=4)):
        value = edited.pop(name, "")
        match draw(st.integers(0, 6)):
            case 0:
                pass
            case 1 | 2 | 3:
                edited[name] = draw(odd_texts)
            case 4:
                edited[name.replace("1", draw(st.sampled_from(["0", "-1", "3", "x", "", "9" * 20, "1.1"])))] = value
            case 5:
                edited[f"{name}.{draw(odd_texts)}"] = value
            case _:
                edited[name.rpartition(".")[0] or draw(odd_texts)] = value
    return edited


def test_every_action_has_a_form() -> None:
    assert set(FORMS) == set(ACTIONS)


@pytest.mark.parametrize("action", ACTIONS)
def test_no_form_is_too_odd(asked: Asked, action: str) -> None:
    common = {"Action": action, "Version": "2010-03-31"}
    asked.ask(common | FORMS[action])

    @settings(max_examples=EXAMPLES)
    @given(damaged(FORMS[action]))
    def run(fields: dict[str, str]) -> None:
        asked.ask(common | fields)

    run()


MEMBERS = [
    "http",
    "defaultHealthyRetryPolicy",
    "healthyRetryPolicy",
    "sicklyRetryPolicy",
    "throttlePolicy",
    "requestPolicy",
    "guaranteed",
    "defaultThrottlePolicy",
    "defaultRequestPolicy",
    "disableSubscriptionOverrides",
    "minDelayTarget",
    "maxDelayTarget",
    "numRetries",
    "numMaxDelayRetries",
    "numNoDelayRetries",
    "numMinDelayRetries",
    "backoffFunction",
    "maxReceivesPerSecond",
    "headerContentType",
    "deadLetterTargetArn",
    "maxReceiveCount",
    "MessageRetentionPeriod",
    "PointType",
    "StartingPoint",
    "EndingPoint",
    "Statement",
    "Action",
    "Sid",
    "Resource",
    "kind",
    "$or",
    "numeric",
    "prefix",
    "suffix",
    "anything-but",
    "exists",
    "cidr",
    "equals-ignore-case",
]
OPERATORS = [">", "<=", "=", "linear", "Timestamp", "SNS:Publish", "10.0.0.0/8", "2026-01-01T00:00:00Z", "text/plain"]
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 3_700),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(OPERATORS),
    st.text(max_size=5),
)
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4),
    max_leaves=12,
)
POLICIES = {
    "SetTopicAttributes": ["DeliveryPolicy", "Policy", "ArchivePolicy"],
    "SetSubscriptionAttributes": ["FilterPolicy", "DeliveryPolicy", "RedrivePolicy", "ReplayPolicy"],
}


@pytest.mark.parametrize(("action", "attribute"), [(key, each) for key, listed in POLICIES.items() for each in listed])
def test_no_policy_is_too_odd(asked: Asked, action: str, attribute: str) -> None:
    """JSON of the right words in wrong places; what is taken must not stop what is published afterwards."""
    topic = f"{TOPIC}.fifo" if attribute in ("ArchivePolicy", "ReplayPolicy") else TOPIC
    target = {"TopicArn": topic}
    if action == "SetSubscriptionAttributes":
        to_http = attribute == "DeliveryPolicy"
        endpoint = "http://127.0.0.1:1/" if to_http else "arn:aws:sqs:us-east-1:000000000000:odd"
        form = {"TopicArn": topic, "Protocol": "http" if to_http else "sqs", "Endpoint": endpoint}
        target = {"SubscriptionArn": asked.subscribe(form)}
    common = {"Action": action, "Version": "2010-03-31", "AttributeName": attribute, **target}
    published = {"Action": "Publish", "TopicArn": topic, "Message": '{"kind": [1, "a"]}', "MessageGroupId": "g"}

    @settings(max_examples=EXAMPLES * 2)
    @given(documents | st.dictionaries(st.sampled_from(MEMBERS), documents, max_size=4))
    def run(document: object) -> None:
        if asked.ask(common | {"AttributeValue": json.dumps(document)}) == 200:
            for get in ("GetTopicAttributes", "GetSubscriptionAttributes"):
                asked.ask({"Action": get, "Version": "2010-03-31", **target})
            number = str(next(_numbers))
            assert asked.ask(published | ({"MessageDeduplicationId": number} if topic != TOPIC else {})) == 200

    run()
