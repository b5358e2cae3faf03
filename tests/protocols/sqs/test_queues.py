"""Creating, finding, purging and deleting queues, and their tags."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.commands import CreateQueue, DeleteQueue
from penstock.core.queues.config import Kind
from penstock.protocols.http import Exchange, Request
from penstock.protocols.sqs.service import default_config
from penstock.server.settings import SqsSettings
from tests.core.driver import BrokerDriver
from tests.protocols.sqs.refusals import refused
from tests.protocols.sqs.serving import ACCOUNT, Server


def test_a_queues_url_has_the_account_and_the_name(server: Server, sqs: Any, name: str) -> None:
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    assert url == f"{server.url}/{ACCOUNT}/{name}"
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url


def test_creating_a_queue_again_with_the_same_attributes_gives_the_same_url(sqs: Any, name: str) -> None:
    attributes = {"VisibilityTimeout": "11", "DelaySeconds": "2"}
    first = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    assert sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"] == first
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == first
    assert sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "2"})["QueueUrl"] == first


def test_creating_a_queue_again_with_another_attribute_names_the_attribute(sqs: Any, name: str) -> None:
    sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "11"})
    with refused("QueueAlreadyExists") as refusal:
        sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "12"})
    assert refusal.shape == "QueueNameExists"
    assert refusal.message == (
        "A queue already exists with the same name and a different value for attribute VisibilityTimeout"
    )


def test_a_fifo_queue_created_again_with_other_dedup_is_refused(sqs: Any, name: str) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    sqs.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)
    sqs.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)
    with refused("QueueAlreadyExists") as refusal:
        sqs.create_queue(
            QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "false"}
        )
    assert refusal.message.endswith("ContentBasedDeduplication")


@pytest.mark.parametrize("bad", ["", "a" * 81, "with space", "umläut", "a.b", "a/b", "queue.fifo"])
def test_names_that_aws_refuses_are_refused(sqs: Any, bad: str) -> None:
    with refused("MissingParameter" if not bad else "InvalidParameterValue"):
        sqs.create_queue(QueueName=bad)


def test_a_name_may_have_eighty_characters(sqs: Any) -> None:
    assert sqs.create_queue(QueueName="n" * 80)["QueueUrl"].endswith("n" * 80)
    assert sqs.create_queue(QueueName="n" * 75 + ".fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]


def test_a_fifo_queue_needs_the_suffix(sqs: Any, name: str) -> None:
    with refused("InvalidParameterValue") as refusal:
        sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})
    assert "must end with .fifo suffix" in refusal.message


def test_a_standard_queue_knows_no_fifo_attribute(sqs: Any, name: str) -> None:
    for attribute in ("FifoQueue", "ContentBasedDeduplication"):
        with refused("InvalidAttributeName") as refusal:
            sqs.create_queue(QueueName=name, Attributes={attribute: "false"})
        assert refusal.message == f"Unknown Attribute {attribute}."


def test_a_queue_that_is_not_there_is_not_found_by_any_action(sqs: Any, server: Server, name: str) -> None:
    url = f"{server.url}/{ACCOUNT}/{name}"
    entry = {"Id": "1", "ReceiptHandle": "x"}
    calls: list[Callable[[], Any]] = [
        lambda: sqs.get_queue_url(QueueName=name),
        lambda: sqs.send_message(QueueUrl=url, MessageBody="x"),
        lambda: sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "1", "MessageBody": "x"}]),
        lambda: sqs.receive_message(QueueUrl=url),
        lambda: sqs.delete_message(QueueUrl=url, ReceiptHandle="x"),
        lambda: sqs.delete_message_batch(QueueUrl=url, Entries=[entry]),
        lambda: sqs.change_message_visibility(QueueUrl=url, ReceiptHandle="x", VisibilityTimeout=1),
        lambda: sqs.change_message_visibility_batch(QueueUrl=url, Entries=[entry | {"VisibilityTimeout": 1}]),
        lambda: sqs.get_queue_attributes(QueueUrl=url),
        lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "1"}),
        lambda: sqs.purge_queue(QueueUrl=url),
        lambda: sqs.delete_queue(QueueUrl=url),
        lambda: sqs.list_dead_letter_source_queues(QueueUrl=url),
        lambda: sqs.tag_queue(QueueUrl=url, Tags={"a": "b"}),
        lambda: sqs.untag_queue(QueueUrl=url, TagKeys=["a"]),
        lambda: sqs.list_queue_tags(QueueUrl=url),
        lambda: sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=[ACCOUNT], Actions=["SendMessage"]),
        lambda: sqs.remove_permission(QueueUrl=url, Label="l"),
    ]
    for call in calls:
        with refused("AWS.SimpleQueueService.NonExistentQueue") as refusal:
            call()
        assert (refusal.shape, refusal.message) == ("QueueDoesNotExist", "The specified queue does not exist.")


def test_an_address_that_is_no_queues_is_invalid(sqs: Any) -> None:
    with refused("InvalidAddress", 404):
        sqs.get_queue_attributes(QueueUrl="http://localhost/")
    with refused("InvalidAddress", 404):
        sqs.delete_queue(QueueUrl="not a url/")


def test_lists_are_complete_and_in_order_and_come_in_pages(sqs: Any, name: str) -> None:
    urls = [sqs.create_queue(QueueName=f"{name}-page-{number}")["QueueUrl"] for number in range(5)]
    assert sqs.list_queues(QueueNamePrefix=f"{name}-page-")["QueueUrls"] == urls
    first = sqs.list_queues(QueueNamePrefix=f"{name}-page-", MaxResults=2)
    second = sqs.list_queues(QueueNamePrefix=f"{name}-page-", MaxResults=3, NextToken=first["NextToken"])
    assert first["QueueUrls"] + second["QueueUrls"] == urls
    assert "NextToken" not in second
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix=f"{name}-page-", PaginationConfig={"PageSize": 2})
    assert [url for page in pages for url in page["QueueUrls"]] == urls


def test_a_list_of_no_queues_has_no_urls(sqs: Any) -> None:
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix="nobody-has-this-prefix")


@pytest.mark.parametrize("count", [0, 1001, -1])
def test_a_page_has_one_to_a_thousand_names(sqs: Any, count: int) -> None:
    with refused("InvalidParameterValue"):
        sqs.list_queues(MaxResults=count)


def test_a_token_that_was_not_given_out_is_refused(sqs: Any) -> None:
    with refused("InvalidParameterValue"):
        sqs.list_queues(MaxResults=1, NextToken="!!!")


def test_a_deleted_queue_can_be_created_again_at_once(sqs: Any, name: str, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    sqs.delete_queue(QueueUrl=url)
    sqs.create_queue(QueueName=name)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    sqs.purge_queue(QueueUrl=url)
    sqs.purge_queue(QueueUrl=url)


def test_strict_limits_keep_a_deleted_queues_name_for_a_minute(strict: Server, name: str) -> None:
    server, sqs = strict, strict.client()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    sqs.delete_queue(QueueUrl=url)
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        sqs.receive_message(QueueUrl=url)
    with refused("AWS.SimpleQueueService.QueueDeletedRecently") as refusal:
        sqs.create_queue(QueueName=name)
    assert refusal.message.startswith("You must wait 60 seconds after deleting a queue")
    server.advance(61)
    sqs.create_queue(QueueName=name)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_relaxed_limits_let_a_queue_be_recreated_at_once(relaxed: Server, name: str) -> None:
    sqs = relaxed.client()
    for _ in range(3):
        url = sqs.create_queue(QueueName=f"{name}.any#name")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x")
        sqs.delete_queue(QueueUrl=url)


def test_a_purge_takes_everything_also_what_is_in_flight_or_delayed(server: Server, sqs: Any, url: str) -> None:
    for delay in (0, 0, 30):
        sqs.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=delay)
    sqs.receive_message(QueueUrl=url)
    sqs.purge_queue(QueueUrl=url)
    server.advance(60)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_strict_limits_are_remembered_over_a_restart(tmp_path: Path) -> None:
    settings = SqsSettings(limits="strict")
    server = Server(tmp_path / "data", settings)
    sqs = server.client()
    for queue in ("gone", "purged"):
        sqs.create_queue(QueueName=queue)
    sqs.delete_queue(QueueUrl="gone")
    sqs.purge_queue(QueueUrl="purged")
    server.stop()
    server = Server(tmp_path / "data", settings)
    try:
        sqs = server.client()
        with refused("AWS.SimpleQueueService.QueueDeletedRecently"):
            sqs.create_queue(QueueName="gone")
        with refused("AWS.SimpleQueueService.PurgeQueueInProgress", 403):
            sqs.purge_queue(QueueUrl="purged")
        server.advance(61)
        sqs.create_queue(QueueName="gone")
        sqs.purge_queue(QueueUrl="purged")
    finally:
        server.stop()


def test_strict_limits_let_a_queue_be_purged_once_a_minute(strict: Server, name: str) -> None:
    server, sqs = strict, strict.client()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sqs.purge_queue(QueueUrl=url)
    with refused("AWS.SimpleQueueService.PurgeQueueInProgress", 403) as refusal:
        sqs.purge_queue(QueueUrl=url)
    assert refusal.message == f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."
    server.advance(61)
    sqs.purge_queue(QueueUrl=url)


def test_tags_are_set_at_creation_added_changed_and_taken_away(sqs: Any, name: str) -> None:
    url = sqs.create_queue(QueueName=name, tags={"team": "a", "empty": ""})["QueueUrl"]
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "a", "empty": ""}
    sqs.tag_queue(QueueUrl=url, Tags={"team": "b", "cost": "low"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["empty", "never-there"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "b", "cost": "low"}
    sqs.untag_queue(QueueUrl=url, TagKeys=["team", "cost"])
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)


def test_a_queue_has_fifty_tags_at_most(sqs: Any, url: str) -> None:
    sqs.tag_queue(QueueUrl=url, Tags={f"tag-{number}": "" for number in range(50)})
    with refused("InvalidParameterValue"):
        sqs.tag_queue(QueueUrl=url, Tags={"one-more": ""})
    with refused("InvalidParameterValue"):
        sqs.tag_queue(QueueUrl=url, Tags={"k" * 129: ""})


def test_with_auto_create_the_first_use_makes_the_queue(tmp_path: Any) -> None:
    server = Server(tmp_path / "data", SqsSettings(auto_create=True))
    try:
        sqs = server.client()
        base = f"{server.url}/{ACCOUNT}"
        sqs.send_message(QueueUrl=f"{base}/new", MessageBody="x")
        assert sqs.receive_message(QueueUrl=f"{base}/new")["Messages"][0]["Body"] == "x"
        assert "Messages" not in sqs.receive_message(QueueUrl=f"{base}/other")
        url = sqs.get_queue_url(QueueName="third.fifo")["QueueUrl"]
        assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["FifoQueue"])["Attributes"] == {
            "FifoQueue": "true"
        }
    finally:
        server.stop()


def test_changes_made_at_the_same_time_are_all_kept(server: Server, sqs: Any, url: str) -> None:
    def send_all_at_once() -> None:
        """In one turn of the server's loop, so that they go through one step."""
        loop = asyncio.get_running_loop()
        for number in range(20):
            body = json.dumps({"QueueUrl": url, "Tags": {f"tag-{number}": "x"}}).encode()
            headers = {"host": "x", "x-amz-target": "AmazonSQS.TagQueue"}
            exchange = Exchange(answered, Request("POST", b"/", headers, body), False)  # type: ignore[arg-type]
            loop.call_soon(server.front_end.handle, exchange)

    answered = Answered()
    server.do(send_all_at_once)
    answered.wait_for(20)
    assert answered.statuses == [200] * 20
    assert len(sqs.list_queue_tags(QueueUrl=url)["Tags"]) == 20


class Answered:
    """Stands where a connection would: counts what comes back."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self._changed = threading.Condition()

    def answer(self, exchange: Exchange, status: int, _headers: Any, _body: bytes) -> None:
        with self._changed:
            self.statuses.append(status)
            self._changed.notify()

    def answer_well(self, exchange: Exchange, _lines: str, body: bytes) -> None:
        self.answer(exchange, 200, (), body)

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.statuses) == count, 60)


def test_a_queue_that_is_there_all_the_time_is_on_one_page_while_others_come_and_go(
    server: Server, sqs: Any, name: str
) -> None:
    dice = random.Random(name)
    kept = {f"{name}-{number:03d}" for number in range(0, 120, 2)}
    for each in kept:
        server.call(CreateQueue(name=each))
    others: set[str] = set()
    found: list[str] = []
    asked: dict[str, Any] = {"QueueNamePrefix": f"{name}-"}
    while True:
        page = sqs.list_queues(**asked, MaxResults=dice.randint(1, 9))
        found += [url.rpartition("/")[2] for url in page.get("QueueUrls", [])]
        if "NextToken" not in page:
            break
        asked["NextToken"] = page["NextToken"]
        for _ in range(6):
            other = f"{name}-{dice.randrange(1, 120, 2):03d}"
            server.call((DeleteQueue if other in others else CreateQueue)(name=other))
            others ^= {other}
    assert found == sorted(set(found))
    assert kept <= set(found)


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_a_queue_made_by_sqs_backs_off_for_who_releases_with_an_error_and_for_nobody_else(kind: Kind) -> None:
    driver = BrokerDriver()
    driver.do(CreateQueue(name="q", config=default_config(kind)))
    driver.send(b"x", groups=["g"], dedup_ids=["d"] if kind == "fifo" else None)
    for _ in range(3):  # as SQS does it: what it says is how long it is hidden
        driver.extend(driver.receive(1), 0)
        driver.receive(1, lease_ms=50)
        driver.advance(50)
    driver.release(driver.receive(1), error="ValueError: no such order")
    assert driver.receive(1).count == 0
    driver.advance(5 * 60_000)
    assert driver.receive(1).count == 1
