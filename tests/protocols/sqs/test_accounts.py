"""Several accounts and regions in one server: `[sqs] accounts = "many"`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.commands import ListQueues
from penstock.server.auth import Credential, Credentials, Grant, Principal, Secret
from penstock.server.settings import SqsSettings
from tests.protocols.sqs.raw import result_of, send_form
from tests.protocols.sqs.refusals import refused
from tests.protocols.sqs.serving import Server

OTHER = "123456789012"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("accounts"), SqsSettings(accounts="many"))
    yield server
    server.stop()


def arn_of(sqs: Any, url: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def bodies(sqs: Any, url: str) -> list[str]:
    return [message["Body"] for message in sqs.receive_message(QueueUrl=url).get("Messages", [])]


def test_accounts_and_regions_have_queues_of_their_own(server: Server) -> None:
    places = [("test", "us-east-1"), ("test", "eu-west-1"), (OTHER, "us-east-1"), (OTHER, "eu-west-1")]
    clients = [server.client(access_key=key, region=region) for key, region in places]
    urls = [client.create_queue(QueueName="apart")["QueueUrl"] for client in clients]
    assert len(set(urls)) == 4
    assert [arn_of(*pair) for pair in zip(clients, urls, strict=True)] == [
        "arn:aws:sqs:us-east-1:000000000000:apart",
        "arn:aws:sqs:eu-west-1:000000000000:apart",
        f"arn:aws:sqs:us-east-1:{OTHER}:apart",
        f"arn:aws:sqs:eu-west-1:{OTHER}:apart",
    ]
    for number, (client, url) in enumerate(zip(clients, urls, strict=True)):
        client.send_message(QueueUrl=url, MessageBody=str(number))
    for number, (client, url) in enumerate(zip(clients, urls, strict=True)):
        assert client.list_queues(QueueNamePrefix="apart")["QueueUrls"] == [url]
        assert client.get_queue_url(QueueName="apart")["QueueUrl"] == url
        assert bodies(client, "apart" if number % 2 else url) == [str(number)]


def test_what_the_default_account_has_keeps_its_name(server: Server) -> None:
    server.client().create_queue(QueueName="plain")
    server.client(access_key=OTHER, region="eu-west-1").create_queue(QueueName="plain")
    names = server.call(ListQueues(limit=1000))
    assert [name for name in names if name.endswith("plain")] == [f"{OTHER}.eu-west-1.plain", "plain"]


def test_a_queue_of_another_account_is_found_by_its_url(server: Server) -> None:
    owner, guest = server.client(access_key=OTHER), server.client()
    url = owner.create_queue(QueueName="shared")["QueueUrl"]
    assert url.endswith(f"/{OTHER}/shared")
    assert guest.get_queue_url(QueueName="shared", QueueOwnerAWSAccountId=OTHER)["QueueUrl"] == url
    guest.send_message(QueueUrl=url, MessageBody="from a guest")
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        guest.send_message(QueueUrl="shared", MessageBody="nowhere")
    assert bodies(owner, url) == ["from a guest"]


@pytest.mark.parametrize(
    "form", ["/queue/eu-west-1/{account}/{name}", "https://sqs.eu-west-1.amazonaws.com/{account}/{name}"]
)
def test_a_region_in_a_url_counts_for_more_than_the_signatures(server: Server, form: str) -> None:
    abroad, at_home = server.client(access_key=OTHER, region="eu-west-1"), server.client(access_key=OTHER)
    url = abroad.create_queue(QueueName="abroad")["QueueUrl"]
    at_home.send_message(QueueUrl=url, MessageBody="x")
    assert bodies(at_home, form.format(account=OTHER, name="abroad")) == ["x"]
    abroad.purge_queue(QueueUrl=url)


def test_a_request_that_nobody_signed_is_of_the_default_account(server: Server) -> None:
    url = result_of(send_form(server, "CreateQueue", QueueName="unsigned"), "CreateQueue")["QueueUrl"][0]
    assert url == f"{server.url}/000000000000/unsigned"
    assert server.client().get_queue_url(QueueName="unsigned")["QueueUrl"] == url


def test_dead_letters_stay_in_their_account_and_region(server: Server) -> None:
    mine, theirs = server.client(access_key=OTHER, region="eu-west-1"), server.client()
    for client in (mine, theirs):
        client.create_queue(QueueName="dead")
    foreign = json.dumps({"deadLetterTargetArn": arn_of(theirs, "dead"), "maxReceiveCount": 1})
    with refused("InvalidParameterValue") as refusal:
        mine.create_queue(QueueName="source", Attributes={"RedrivePolicy": foreign})
    assert refusal.message == (
        f"Value {foreign} for parameter RedrivePolicy is invalid. "
        "Reason: Dead letter target owner should be same as the source."
    )
    own = json.dumps({"deadLetterTargetArn": arn_of(mine, "dead"), "maxReceiveCount": 1}, separators=(",", ":"))
    url = mine.create_queue(QueueName="source", Attributes={"RedrivePolicy": own})["QueueUrl"]
    assert mine.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]["RedrivePolicy"] == own
    assert mine.list_dead_letter_source_queues(QueueUrl="dead")["queueUrls"] == [url]
    mine.send_message(QueueUrl=url, MessageBody="x")
    assert bodies(mine, url) == ["x"]
    server.advance(31)
    (message,) = mine.receive_message(QueueUrl="dead", MessageSystemAttributeNames=["All"])["Messages"]
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(mine, url)
    mine.start_message_move_task(SourceArn=arn_of(mine, "dead"))
    (task,) = mine.list_message_move_tasks(SourceArn=arn_of(mine, "dead"))["Results"]
    assert task["SourceArn"] == arn_of(mine, "dead")


def test_a_name_of_the_default_account_cannot_reach_into_another(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", SqsSettings(accounts="many", limits="relaxed"))
    try:
        with refused("InvalidParameterValue"):
            server.client().create_queue(QueueName=f"{OTHER}.eu-west-1.orders")
    finally:
        server.stop()


def test_a_credential_has_the_account_that_is_given_with_it(tmp_path: Path) -> None:
    principal = Principal("shop", "AK1", [Grant((f"{OTHER}.*",))], account=OTHER)
    credentials = Credentials([Credential("AK1", Secret("s3cret"), principal)])
    server = Server(tmp_path / "data", SqsSettings(accounts="many"), credentials)
    try:
        shop = server.client(access_key="AK1", secret_key="s3cret", region="eu-west-1")
        url = shop.create_queue(QueueName="orders")["QueueUrl"]
        assert arn_of(shop, url) == f"arn:aws:sqs:eu-west-1:{OTHER}:orders"
        with refused("AccessDenied", 403):
            shop.get_queue_url(QueueName="orders", QueueOwnerAWSAccountId="000000000000")
    finally:
        server.stop()


def test_with_one_account_every_region_and_account_is_the_same(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        url = server.client(access_key=OTHER, region="eu-west-1").create_queue(QueueName="one")["QueueUrl"]
        assert server.client().get_queue_url(QueueName="one")["QueueUrl"] == url == f"{server.url}/000000000000/one"
    finally:
        server.stop()
