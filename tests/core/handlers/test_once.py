"""Commands with a name are done once: also when they come again after a restart, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.broker import Broker
from penstock.core.commands import (
    Ack,
    CommitWork,
    DeleteQueue,
    Once,
    OpenSession,
    PurgeQueue,
    QueueStats,
    Receive,
    Release,
    Send,
)
from penstock.core.errors import InvalidRequest, QueueNotFound, StaleReceipt
from penstock.core.storage.changes import Changes
from penstock.store.memory import MemoryStore

ENTROPY = bytes(range(64))
MINUTE_MS = 60_000


class Shop:
    """A broker over a store, committed after every command, and opened again at will."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now_ms = 1_000
        self.broker = Broker.open(self.store, self.now_ms, ENTROPY)

    def do(self, command: Any) -> Any:
        reply = self.broker.handle(command, self.now_ms)
        self.broker.finish(self.now_ms)
        changes: Changes = self.broker.take_changes()
        self.store.commit(changes)
        self.broker.committed(changes)
        return reply

    def reopen(self) -> None:
        before = self.broker.snapshot()
        self.broker = Broker.open(self.store, self.now_ms, ENTROPY)
        assert self.broker.snapshot() == before

    def messages(self) -> int:
        count: int = self.do(QueueStats(name="orders")).messages
        return count

    def take(self) -> Any:
        return self.do(Receive(queue="orders", limit=10)).runs[0].spans()


def send(number: int, answered: int = 0, client: str = "c") -> Send:
    return Send(queue="orders", bodies=[b"a", b"b"], once=Once(client, number, answered))


def test_a_send_that_comes_twice_is_done_once_and_answered_twice_the_same() -> None:
    shop = Shop()
    assert shop.do(send(1)) == shop.do(send(1))
    assert shop.messages() == 2


def test_it_is_remembered_over_a_restart() -> None:
    shop = Shop()
    first = shop.do(send(1))
    shop.reopen()
    assert shop.do(send(1)) == first
    assert shop.messages() == 2


def test_other_numbers_and_other_clients_are_other_commands() -> None:
    shop = Shop()
    for each in (send(1), send(2), send(1, client="d")):
        shop.do(each)
    assert shop.messages() == 6


def test_an_ack_repeated_after_its_answer_was_lost_counts_as_done() -> None:
    shop = Shop()
    shop.do(Send(queue="orders", bodies=[b"a", b"b"]))
    ack = Ack(queue="orders", spans=shop.take(), once=Once("c", 1))
    assert shop.do(ack).count == 2
    shop.reopen()
    assert shop.do(ack).count == 2
    without_a_name = Ack(queue="orders", spans=ack.spans)
    assert isinstance(shop.do(without_a_name).refused[0].error, StaleReceipt)


def test_refusals_are_remembered_as_they_were() -> None:
    shop = Shop()
    shop.do(Send(queue="orders", bodies=[b"a"]))
    spans = shop.take()
    shop.do(Ack(queue="orders", spans=spans))
    ack = Ack(queue="orders", spans=spans, once=Once("c", 1))
    first = shop.do(ack)
    shop.reopen()
    again = shop.do(ack)
    assert (again.count, str(again.refused[0].error)) == (0, str(first.refused[0].error))
    assert type(again.refused[0].error) is StaleReceipt


def test_a_release_repeated_fails_the_message_once() -> None:
    shop = Shop()
    shop.do(Send(queue="orders", bodies=[b"a"]))
    release = Release(queue="orders", spans=shop.take(), once=Once("c", 1))
    assert shop.do(release).count == shop.do(release).count == 1
    assert shop.do(QueueStats(name="orders")).channels["main"].failed == 1


@pytest.mark.parametrize(
    "command",
    [
        lambda: CommitWork(acks=[], sends=[Send(queue="orders", bodies=[b"x"])], once=Once("c", 9)),
        lambda: PurgeQueue(name="orders", once=Once("c", 9)),
        lambda: DeleteQueue(name="orders", once=Once("c", 9)),
        lambda: OpenSession(name="worker", once=Once("c", 9)),
    ],
)
def test_other_commands_are_done_once_as_well(command: Callable[[], Any]) -> None:
    shop = Shop()
    shop.do(send(1))
    first = shop.do(command())
    before = shop.broker.snapshot()
    shop.reopen()
    assert shop.do(command()) == first
    assert shop.broker.snapshot() == before


def test_a_purge_repeated_leaves_what_was_sent_since() -> None:
    shop = Shop()
    shop.do(send(1))
    purge = PurgeQueue(name="orders", once=Once("c", 2))
    assert shop.do(purge) == 2
    shop.do(send(3))
    assert shop.do(purge) == 2
    assert shop.messages() == 2


def test_a_command_that_failed_was_not_done_and_may_come_again() -> None:
    shop = Shop()
    refused = Send(queue="orders", bodies=[b"x"], create=False, once=Once("c", 1))
    with pytest.raises(QueueNotFound):
        shop.do(refused)
    shop.do(send(2))
    assert shop.do(refused).count == 1


def test_what_the_client_has_got_its_answer_for_is_forgotten() -> None:
    shop = Shop()
    for number in range(1, 101):
        shop.do(send(number, answered=number))
    (client,) = shop.broker.snapshot()["once"].values()
    assert len(client[2]) == 1
    shop.reopen()
    with pytest.raises(InvalidRequest, match="answered before"):
        shop.do(send(50))
    assert shop.messages() == 200


def test_a_client_is_remembered_for_five_minutes_after_its_last_command() -> None:
    shop = Shop()
    shop.do(send(1))
    shop.now_ms += 4 * MINUTE_MS
    shop.do(send(2))
    shop.now_ms += 5 * MINUTE_MS - 1
    shop.reopen()
    shop.do(send(1))
    assert shop.messages() == 4
    shop.now_ms += 5 * MINUTE_MS
    shop.do(QueueStats(name="orders"))
    assert shop.broker.snapshot()["once"] == {}
    shop.reopen()


def test_a_name_belongs_to_one_command() -> None:
    shop = Shop()
    shop.do(send(1))
    with pytest.raises(InvalidRequest, match="was a Send"):
        shop.do(PurgeQueue(name="orders", once=Once("c", 1)))


@pytest.mark.parametrize("once", [Once("", 1), Once("é", 1), Once("c" * 65, 1), Once("c", -1), Once("c", 1, 2)])
def test_names_that_cannot_be_are_refused(once: Once) -> None:
    with pytest.raises(InvalidRequest):
        Shop().do(Send(queue="orders", bodies=[b"x"], once=once))


def test_commands_that_may_come_any_number_of_times_take_no_name() -> None:
    with pytest.raises(InvalidRequest, match="takes no name"):
        Shop().do(QueueStats(name="orders", once=Once("c", 1)))
