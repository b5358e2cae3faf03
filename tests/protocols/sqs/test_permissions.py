"""The policy that AddPermission makes; and what access keys may do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.core.traits import Right
from penstock.server.auth import Credential, Credentials, Grant, Principal, Secret
from tests.protocols.sqs.refusals import refused
from tests.protocols.sqs.serving import ACCOUNT, REGION, Server


def policy_of(sqs: Any, url: str) -> Any:
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"]).get("Attributes", {})
    return json.loads(attributes["Policy"]) if attributes else None


def test_permissions_are_statements_of_the_policy(sqs: Any, name: str, url: str) -> None:
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
    sqs.add_permission(QueueUrl=url, Label="one", AWSAccountIds=["111111111111"], Actions=["SendMessage"])
    sqs.add_permission(
        QueueUrl=url, Label="two", AWSAccountIds=["111111111111", "222222222222"], Actions=["SendMessage", "*"]
    )
    one = {
        "Sid": "one",
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
        "Action": "SQS:SendMessage",
        "Resource": arn,
    }
    two = {
        "Sid": "two",
        "Effect": "Allow",
        "Principal": {"AWS": ["arn:aws:iam::111111111111:root", "arn:aws:iam::222222222222:root"]},
        "Action": ["SQS:SendMessage", "SQS:*"],
        "Resource": arn,
    }
    assert policy_of(sqs, url) == {
        "Version": "2008-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [one, two],
    }
    sqs.remove_permission(QueueUrl=url, Label="one")
    assert policy_of(sqs, url)["Statement"] == [two]
    sqs.remove_permission(QueueUrl=url, Label="two")
    assert policy_of(sqs, url) is None


def test_labels_are_distinct_and_known(sqs: Any, url: str) -> None:
    sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["111111111111"], Actions=["SendMessage"])
    with refused("InvalidParameterValue") as refusal:
        sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["222222222222"], Actions=["SendMessage"])
    assert refusal.message == "Value l for parameter Label is invalid. Reason: Already exists."
    with refused("InvalidParameterValue") as refusal:
        sqs.remove_permission(QueueUrl=url, Label="m")
    assert refusal.message == "Value m for parameter Label is invalid. Reason: can't find label."


@pytest.mark.parametrize(
    ("change", "code", "status"),
    [
        ({"Label": ""}, "MissingParameter", 400),
        ({"Label": "with space"}, "InvalidParameterValue", 400),
        ({"AWSAccountIds": []}, "MissingParameter", 400),
        ({"AWSAccountIds": ["1"]}, "InvalidParameterValue", 400),
        ({"Actions": []}, "MissingParameter", 400),
        ({"Actions": ["CreateQueue"]}, "InvalidParameterValue", 400),
        ({"Actions": ["SendMessage"] * 8}, "OverLimit", 403),
    ],
)
def test_a_permission_keeps_to_the_rules(sqs: Any, url: str, change: dict[str, Any], code: str, status: int) -> None:
    good = {"Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]}
    with refused(code, status):
        sqs.add_permission(QueueUrl=url, **(good | change))


# -- access keys -------------------------------------------------------------------------------------------------------


def credential(name: str, *grants: Grant) -> Credential:
    return Credential(f"AK{name}", Secret(f"secret of {name}"), Principal(name, f"AK{name}", grants))


def on(pattern: str, *rights: Right) -> Grant:
    return Grant((pattern,), rights)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    credentials = Credentials(
        [
            credential("owner", Grant()),
            credential("producer", on("orders*", "write")),
            credential("worker", on("orders*", "read")),
            credential("keeper", on("kept*", "admin")),
        ]
    )
    server = Server(tmp_path_factory.mktemp("guarded") / "data", credentials=credentials)
    yield server
    server.stop()


def client_of(server: Server, name: str) -> Any:
    return server.client(access_key=f"AK{name}", secret_key=f"secret of {name}")


@pytest.fixture(scope="module")
def orders(guarded: Server) -> str:
    owner = client_of(guarded, "owner")
    owner.create_queue(QueueName="private")
    return str(owner.create_queue(QueueName="orders")["QueueUrl"])


def test_each_key_may_do_what_it_was_granted(guarded: Server, orders: str) -> None:
    producer, worker = client_of(guarded, "producer"), client_of(guarded, "worker")
    producer.send_message(QueueUrl=orders, MessageBody="x")
    (message,) = worker.receive_message(QueueUrl=orders, AttributeNames=["SenderId"])["Messages"]
    assert message["Attributes"] == {"SenderId": "producer"}
    worker.change_message_visibility(QueueUrl=orders, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=9)
    worker.delete_message(QueueUrl=orders, ReceiptHandle=message["ReceiptHandle"])
    for client in (producer, worker):
        assert client.get_queue_url(QueueName="orders")["QueueUrl"] == orders
        assert client.get_queue_attributes(QueueUrl=orders, AttributeNames=["All"])["Attributes"]
        assert client.list_queues()["QueueUrls"] == [orders]


def test_what_was_not_granted_is_denied(guarded: Server, orders: str) -> None:
    producer, worker = client_of(guarded, "producer"), client_of(guarded, "worker")
    private = orders.replace("orders", "private")
    denied: list[Callable[[], Any]] = [
        lambda: producer.receive_message(QueueUrl=orders),
        lambda: producer.send_message(QueueUrl=private, MessageBody="x"),
        lambda: producer.purge_queue(QueueUrl=orders),
        lambda: producer.create_queue(QueueName="orders-2"),
        lambda: worker.send_message(QueueUrl=orders, MessageBody="x"),
        lambda: worker.send_message_batch(QueueUrl=orders, Entries=[{"Id": "1", "MessageBody": "x"}]),
        lambda: worker.delete_queue(QueueUrl=orders),
        lambda: worker.set_queue_attributes(QueueUrl=orders, Attributes={"DelaySeconds": "1"}),
        lambda: worker.get_queue_url(QueueName="private"),
        lambda: worker.get_queue_url(QueueName="not-even-there"),
        lambda: worker.start_message_move_task(SourceArn=f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders"),
    ]
    for call in denied:
        with refused("AccessDenied", 403) as refusal:
            call()
        assert refusal.message.startswith("Access to the resource http")


def test_dead_letters_go_only_where_the_caller_may_let_them_go(guarded: Server, orders: str) -> None:
    keeper = client_of(guarded, "keeper")
    kept = keeper.create_queue(QueueName="kept")["QueueUrl"]
    keeper.create_queue(QueueName="kept-dead")

    def to(name: str) -> dict[str, str]:
        arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
        return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})}

    keeper.set_queue_attributes(QueueUrl=kept, Attributes=to("kept-dead"))
    for name in ("private", "not-even-there"):
        with refused("AccessDenied", 403):
            keeper.set_queue_attributes(QueueUrl=kept, Attributes=to(name))
        with refused("AccessDenied", 403):
            keeper.create_queue(QueueName="kept-2", Attributes=to(name))


def test_a_wrong_secret_and_an_unknown_key_are_told_apart_as_on_aws(guarded: Server, orders: str) -> None:
    with refused("SignatureDoesNotMatch", 403):
        guarded.client(access_key="AKowner", secret_key="guess").list_queues()
    with refused("InvalidClientTokenId", 403):
        guarded.client(access_key="AKnobody", secret_key="guess").list_queues()


def test_the_sender_is_no_message_attribute(guarded: Server, orders: str) -> None:
    owner = client_of(guarded, "owner")
    owner.send_message(QueueUrl=orders, MessageBody="x")
    (message,) = owner.receive_message(QueueUrl=orders, MessageAttributeNames=["All"])["Messages"]
    assert "MessageAttributes" not in message
    owner.delete_message(QueueUrl=orders, ReceiptHandle=message["ReceiptHandle"])
