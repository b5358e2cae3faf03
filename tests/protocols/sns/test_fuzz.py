"""Every action of SNS with everything that is not as it should be: no 5xx, no connection without an answer.

`COMPAT_FUZZ_EXAMPLES` says how hard Hypothesis tries for each action.
"""

from __future__ import annotations

import http.client
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

EXAMPLES = int(os.environ.get("COMPAT_FUZZ_EXAMPLES", "50")) // 2
TOPIC = "arn:aws:sns:us-east-1:000000000000:news"
POLICY = '{"kind": ["a", {"numeric": [">", 3]}], "$or": [{"x": [{"exists": true}]}, {"y": [{"cidr": "10.0.0.0/8"}]}]}'
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
        "AttributeValue": '{"http": {"defaultHealthyRetryPolicy": {"numRetries": 3}}}',
    },
    "Subscribe": {
        "TopicArn": TOPIC,
        "Protocol": "http",
        "Endpoint": "http://127.0.0.1:1/",
        "Attributes.entry.1.key": "DeliveryPolicy",
        "Attributes.entry.1.value": '{"healthyRetryPolicy": {"numRetries": 0}}',
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
