"""Partitions of a queue: a further one has the first one's id, and numbers that say where a message is."""

from __future__ import annotations

import pytest

from penstock.core.commands import Ack, CreateQueue, DescribeQueue, ListQueues, Receive, Send, Span
from penstock.core.errors import InvalidRequest, QueueNotFound
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.partition import PARTITION_SHIFT
from tests.core.driver import BrokerDriver

SPLIT = QueueConfig(partitions=3)
BASE = 2 << PARTITION_SHIFT


def test_a_further_partition_numbers_its_messages_from_its_own_start_and_keeps_that_over_a_restart() -> None:
    driver = BrokerDriver()
    info = driver.do(CreateQueue(name="q", config=SPLIT, part=(2, 77)))
    assert info.queue_id == 77
    sent = driver.do(Send(queue="q", bodies=[b"a", b"b"]))
    assert (sent.queue_id, sent.first) == (77, BASE)
    driver.reopen()
    assert driver.do(Send(queue="q", bodies=[b"c"])).first == BASE + 2
    delivery = driver.do(Receive(queue="q", limit=10))
    assert (delivery.runs[0].first, delivery.count) == (BASE, 3)
    assert driver.do(Ack(queue="q", spans=[Span(BASE, BASE + 2, 1)])).count == 3


def test_a_partition_that_is_restarted_before_its_first_message_keeps_its_start() -> None:
    driver = BrokerDriver()
    driver.do(CreateQueue(name="q", config=SPLIT, part=(2, 77)))
    driver.reopen()
    assert driver.do(Send(queue="q", bodies=[b"a"])).first == BASE


def test_creating_a_partition_again_changes_nothing_and_one_of_an_older_queue_goes() -> None:
    driver = BrokerDriver()
    driver.do(CreateQueue(name="q", config=SPLIT, part=(1, 77)))
    driver.do(Send(queue="q", bodies=[b"a"]))
    assert driver.do(CreateQueue(name="q", config=SPLIT, part=(1, 77))).queue_id == 77
    assert driver.do(Receive(queue="q")).count == 1
    assert driver.do(CreateQueue(name="q", config=SPLIT, part=(1, 78))).queue_id == 78
    assert driver.do(Receive(queue="q")).count == 0


def test_a_partition_that_the_queue_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        BrokerDriver().do(CreateQueue(name="q", config=SPLIT, part=(3, 77)))


def test_a_queue_is_described_by_its_id_with_the_numbers_of_its_channels() -> None:
    driver = BrokerDriver()
    made = driver.do(CreateQueue(name="q", channels=("a", "b")))
    found = driver.do(DescribeQueue(queue_id=made.queue_id))
    assert (found.name, found.channels, found.channel_ids) == ("q", ["a", "b"], [1, 2])
    with pytest.raises(QueueNotFound):
        driver.do(DescribeQueue(queue_id=made.queue_id + 1))


def test_queues_are_listed_by_where_their_dead_letters_go() -> None:
    driver = BrokerDriver()
    driver.do(CreateQueue(name="one", config=QueueConfig(dead_letter="morgue")))
    driver.do(CreateQueue(name="two", config=QueueConfig(dead_letter="morgue", max_receives=0)))
    driver.do(CreateQueue(name="three"))
    assert driver.do(ListQueues(dead_letters_to="morgue")) == ["one"]
    assert driver.do(ListQueues(dead_letters_to="three.dead")) == ["three"]
