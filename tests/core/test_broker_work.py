"""Units of work, all or nothing; and the policies that promise at most so many deliveries."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.errors import InvalidRequest, MessageTooLarge, PenstockError, QueueNotFound, Throttled, WorkRefused
from penstock.core.queues.config import QueueConfig
from tests.core.driver import BrokerDriver, attempts_of, bodies_of
from tests.store.in_memory import twin_of


def _taken(driver: BrokerDriver, queue: str, count: int) -> c.Ack:
    delivery = driver.receive(count, queue=queue)
    assert delivery.count == count
    return c.Ack(queue=queue, spans=delivery.spans())


def _in() -> BrokerDriver:
    driver = BrokerDriver()
    driver.send(b"1", b"2", b"3", queue="in")
    driver.create("out")
    return driver


def test_work_takes_and_puts_in_one_commit() -> None:
    driver = _in()
    driver.send(b"x", queue="in2")
    acks = [_taken(driver, "in", 2), _taken(driver, "in2", 1)]
    sends = [c.Send(queue="out", bodies=[b"a", b"b"]), c.Send(queue="new", bodies=[b"c"])]
    sent = driver.do(c.CommitWork(acks=acks, sends=sends), commit=False)
    assert driver.broker.must_commit
    assert [each.count for each in sent] == [2, 1]
    before = twin_of(driver.store)
    assert BrokerDriver(before, now_ms=driver.now_ms).counts("in") == (1, 2, 0)
    driver.commit()
    assert driver.counts("in") == (1, 0, 0)
    assert driver.counts("in2") == (0, 0, 0)
    assert bodies_of(driver.receive(5, queue="out")) == [b"a", b"b"]
    assert bodies_of(driver.receive(5, queue="new")) == [b"c"]


def test_crash_before_the_commit_leaves_nothing_of_the_work() -> None:
    driver = _in()
    ack = _taken(driver, "in", 2)
    driver.do(c.CommitWork(acks=[ack], sends=[c.Send(queue="out", bodies=[b"a"])]), commit=False)
    driver.reopen()
    assert driver.counts("in") == (1, 2, 0)
    assert driver.counts("out") == (0, 0, 0)
    driver.do(c.CommitWork(acks=[ack], sends=[c.Send(queue="out", bodies=[b"a"])]))
    assert driver.counts("out") == (1, 0, 0)


def test_work_without_takes_or_without_puts_is_work() -> None:
    driver = _in()
    assert driver.do(c.CommitWork(acks=[_taken(driver, "in", 1)], sends=[])) == []
    assert len(driver.do(c.CommitWork(acks=[], sends=[c.Send(queue="out", bodies=[b"a"])]))) == 1


def test_rollback_is_a_release_and_always_succeeds() -> None:
    driver = _in()
    delivery = driver.receive(3, queue="in", lease_ms=1_000)
    driver.advance(1_000)
    assert driver.release(delivery).count == 0
    assert driver.counts("in") == (3, 0, 0)


@pytest.mark.parametrize(
    ("sends", "error"),
    [
        ([c.Send(queue="out", bodies=[b"a"]), c.Send(queue="out", bodies=[b"x" * 2_000_000])], MessageTooLarge),
        ([c.Send(queue="out", bodies=[b"a"]), c.Send(queue="nowhere", bodies=[b"a"], create=False)], QueueNotFound),
        (
            [c.Send(queue="out", bodies=[b"a"]), c.Send(queue="limited", bodies=[b"a", b"b"], groups=["g", "g"])],
            Throttled,
        ),
        (
            [
                c.Send(queue="limited", bodies=[b"a"], groups=["g"]),
                c.Send(queue="limited", bodies=[b"b"], groups=["g"]),
            ],
            Throttled,
        ),
        (
            [c.Send(queue="out", bodies=[b"a"]), c.Send(queue="new", bodies=[b"a"], channels=("no name",))],
            PenstockError,
        ),
        ([c.Send(queue="out", bodies=[b"a"], groups=["\udcff"])], PenstockError),
        ([c.Send(queue="out", bodies=[])], PenstockError),
    ],
)
def test_work_with_a_put_that_is_refused_does_nothing(sends: list[c.Send], error: type[PenstockError]) -> None:
    driver = _in()
    driver.create("limited", kind="fifo", content_dedup=True, throughput_per_second=1)
    ack = _taken(driver, "in", 2)
    with pytest.raises(error):
        driver.do(c.CommitWork(acks=[ack], sends=sends))
    assert driver.counts("in") == (1, 2, 0)
    assert driver.counts("out") == driver.counts("limited") == (0, 0, 0)
    assert "new" not in driver.do(c.ListQueues())


def test_refused_work_does_not_use_up_the_rate() -> None:
    driver = _in()
    driver.create("limited", kind="fifo", content_dedup=True, throughput_per_second=1)
    with pytest.raises(PenstockError):
        driver.do(
            c.CommitWork(
                acks=[c.Ack(queue="in", spans=[c.Span(0, 0, 7)])],
                sends=[c.Send(queue="limited", bodies=[b"a"], groups=["g"])],
            )
        )
    driver.send(b"a", queue="limited", group="g")


def test_work_whose_lease_was_lost_to_another_is_refused_as_a_whole() -> None:
    driver = _in()
    kept = _taken(driver, "in", 1)
    lost = driver.receive(1, queue="in", lease_ms=1_000)
    driver.advance(1_000)
    driver.receive(1, queue="in")
    with pytest.raises(WorkRefused, match="nothing was done"):
        driver.do(
            c.CommitWork(acks=[kept, c.Ack(queue="in", spans=lost.spans())], sends=[c.Send(queue="out", bodies=[b"a"])])
        )
    assert driver.counts("in") == (1, 2, 0)
    assert driver.counts("out") == (0, 0, 0)


def test_work_that_takes_a_message_twice_is_refused() -> None:
    driver = _in()
    ack = _taken(driver, "in", 2)
    with pytest.raises(WorkRefused, match="twice"):
        driver.do(c.CommitWork(acks=[ack, c.Ack(queue="in", spans=[c.Span(1, 1, 1)])], sends=[]))
    assert driver.counts("in") == (1, 2, 0)


def test_duplicate_put_of_a_work_is_known_and_the_work_goes_through() -> None:
    driver = _in()
    driver.send(b"a", queue="out", dedup_ids=["id"])
    (sent,) = driver.do(
        c.CommitWork(
            acks=[_taken(driver, "in", 1)], sends=[c.Send(queue="out", bodies=[b"a", b"b"], dedup_ids=["id", "other"])]
        )
    )
    assert (sent.duplicates, sent.sequences) == ([0], [0, 1])
    assert driver.counts("out") == (2, 0, 0)


# -- policies --


def _policy(**settings: Any) -> BrokerDriver:
    driver = BrokerDriver()
    driver.create(**settings)
    return driver


@pytest.mark.parametrize("settings", [{"policy": "consume_once"}, {"policy": "consume_times", "consume_times": 3}])
def test_lease_of_an_at_most_policy_is_committed_before_the_message_leaves(settings: dict[str, Any]) -> None:
    driver = _policy(**settings)
    driver.send(b"a")
    driver.do(c.Receive(queue="q"), commit=False)
    assert driver.broker.must_commit


def test_push_of_an_at_most_policy_is_committed_before_the_message_leaves() -> None:
    driver = _policy(policy="consume_once")
    driver.send(b"a")
    driver.commit()
    driver.do(c.Subscribe(queue="q", credit=1, ticket="push"), commit=False)
    assert driver.woken["push"][0].count == 1
    assert driver.broker.must_commit


def test_lease_at_least_once_does_not_wait_for_a_commit() -> None:
    driver = _policy()
    driver.send(b"a")
    driver.do(c.Receive(queue="q"), commit=False)
    assert not driver.broker.must_commit
    assert driver.broker.has_changes


def test_message_to_be_consumed_once_never_comes_back_after_a_crash() -> None:
    driver = _policy(policy="consume_once")
    driver.send(b"a", b"b")
    driver.receive(1, lease_ms=1_000)
    driver.reopen()
    driver.advance(1_000)
    assert bodies_of(driver.receive(10)) == [b"b"]
    assert driver.counts("q.dead") == (1, 0, 0)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_message_leaves_at_most_k_times_whatever_happens(times: int) -> None:
    driver = _policy(policy="consume_times", consume_times=times, max_receives=0)
    driver.send(b"a")
    left = 0
    for turn in range(4 * times):
        (reply,) = driver.step(c.Receive(queue="q", lease_ms=1_000), commit=False)
        if turn % 2:
            driver.commit()
            left += reply.count  # only now does the shard let it go
        driver.reopen()
        driver.advance(1_000)
    assert left == times
    assert driver.counts("q.dead") == (1, 0, 0)


def test_message_consumed_once_can_still_be_released_into_the_dead_letter_queue() -> None:
    driver = _policy(policy="consume_once")
    driver.send(b"a")
    delivery = driver.receive()
    assert attempts_of(delivery) == [1]
    assert driver.release(delivery, error="no").count == 1
    assert driver.counts("q.dead") == (1, 0, 0)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (QueueConfig(kind="fifo", message_bytes_max=1), MessageTooLarge),
        (QueueConfig(kind="fifo", throughput_per_second=1), Throttled),
    ],
)
def test_sends_that_do_not_fit_into_the_queue_that_the_first_one_makes_are_refused_before_anything_is_done(
    config: QueueConfig, error: type[PenstockError]
) -> None:
    driver = BrokerDriver()
    driver.send(b"x")
    ack = c.Ack(queue="q", spans=driver.receive().spans())
    first = c.Send(queue="new", bodies=[b"1"], groups=["g"], dedup_ids=["1"], config=config)
    second = c.Send(queue="new", bodies=[b"22"], groups=["g"], dedup_ids=["2"])
    with pytest.raises(error):
        driver.do(c.CommitWork(acks=[ack], sends=[first, second]))
    assert driver.counts() == (0, 1, 0)
    assert "new" not in driver.broker.queues


def test_work_that_would_make_a_fifo_queue_is_refused_whole_if_it_breaks_its_rules() -> None:
    driver = _in()
    taken = _taken(driver, "in", 1)
    with pytest.raises(InvalidRequest, match="needs a group"):
        driver.do(c.CommitWork(acks=[taken], sends=[c.Send(queue="new.fifo", bodies=[b"x"])]))
    assert driver.counts("in") == (2, 1, 0)
