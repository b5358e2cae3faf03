from __future__ import annotations

import threading
from typing import Any

import pytest

import penstock
from tests.client.adapter import World
from tests.shards import one_shard_only


@one_shard_only
def test_a_commit_acknowledges_the_takes_and_sends_the_puts(ps: Any) -> None:
    ps.queue("in").send_many([b"1", b"2"])
    with ps.unit_of_work() as work:
        assert [message.body for message in work.take_many("in", 5)] == [b"1", b"2"]
        work.put("out", b"a", attributes={"n": 1}, group="g")
        work.put("other", b"b")
        assert ps.queues() == ["in"]
        sent = work.commit()
    assert ps.queue("in").stats().messages == 0
    message = ps.queue("out").receive()
    assert (message.body, message.attributes, message.group, message.id) == (b"a", {"n": 1}, "g", sent[0].id)
    assert ps.queue("other").receive().id == sent[1].id
    assert work.state == "committed"


def test_leaving_without_a_commit_rolls_back(ps: Any) -> None:
    ps.queue("in").send(b"1")
    with ps.unit_of_work() as work:
        work.take("in")
        work.put("out", b"a")
    assert ps.queues() == ["in"]
    message = ps.queue("in").receive()
    assert (message.attempts, message.history) == (1, []), "as if it had not been taken"
    assert work.state == "rolled back"


def test_rolling_back_without_an_error_is_no_failed_delivery_however_often(ps: Any) -> None:
    ps.create_queue("in", max_receives=10)
    ps.queue("in").send_many([b"1", b"2"])
    for _ in range(25):
        work = ps.unit_of_work()
        assert [message.body for message in work.take_many("in", 5)] == [b"1", b"2"]
        work.rollback()
    assert ps.queue("in").stats().channels["main"].failed == 0
    assert [message.attempts for message in ps.queue("in").receive(5)] == [1, 1]
    assert ps.queues() == ["in"]


def test_rolling_back_gives_a_message_back_with_the_failures_that_it_had(ps: Any) -> None:
    ps.queue("in").send(b"1")
    ps.queue("in").receive().release(error="once")
    work = ps.unit_of_work()
    assert work.take("in").attempts == 2
    work.rollback()
    message = ps.queue("in").receive()
    assert (message.attempts, [failure.error for failure in message.history]) == (2, ["once"])


def test_rolling_back_with_an_error_is_a_failed_delivery(ps: Any) -> None:
    ps.queue("in").send(b"1")
    work = ps.unit_of_work()
    work.take("in")
    work.rollback(error="not now")
    message = ps.queue("in").receive()
    assert (message.attempts, message.history[0].error) == (2, "not now")


def test_an_error_rolls_back_and_is_the_reason(ps: Any) -> None:
    ps.queue("in").send(b"1")
    with pytest.raises(ValueError), ps.unit_of_work() as work:
        work.take("in")
        raise ValueError("bad input")
    assert ps.queue("in").receive().history[0].error == "ValueError: bad input"


def test_a_take_whose_lease_is_over_and_taken_refuses_the_commit_and_nothing_is_done(world: World, ps: Any) -> None:
    ps.queue("in").send_many([b"1", b"2"])
    with ps.unit_of_work() as work:
        work.take("in", lease=1)
        work.take("in", lease=600)
        work.put("out", b"a")
        world.advance(2)
        thief = ps.queue("in").receive()
        with pytest.raises(penstock.WorkRefused):
            work.commit()
    assert ps.queues() == ["in"]
    thief.ack()
    assert ps.queue("in").receive().attempts == 1


def test_a_put_that_is_refused_leaves_everything_as_it_was(ps: Any) -> None:
    ps.create_queue("out", message_bytes_max=1)
    ps.queue("in").send(b"1")
    with ps.unit_of_work() as work:
        work.take("in")
        work.put("out", b"a")
        work.put("out", b"too long")
        with pytest.raises(penstock.MessageTooLarge):
            work.commit()
    assert ps.queue("out").stats().messages == 0
    assert ps.queue("in").receive().attempts == 1


def test_a_unit_that_is_over_takes_and_puts_no_more(ps: Any) -> None:
    ps.queue("in").send(b"1")
    with ps.unit_of_work() as work:
        work.commit()
    for attempt in (lambda: work.put("out", b"a"), lambda: work.take("in"), work.commit):
        with pytest.raises(penstock.InvalidRequest, match="committed"):
            attempt()
    work.rollback()
    assert work.state == "committed"


def test_a_crash_before_the_commit_leaves_nothing_of_the_unit(world: World, ps: Any) -> None:
    ps.queue("in").send(b"1")
    work = ps.unit_of_work()
    work.take("in", lease=5)
    work.put("out", b"a")
    world.crash()
    assert world.ps.queues() == ["in"]
    world.advance(5)
    assert world.ps.queue("in").receive().body == b"1"


def test_a_crash_after_the_commit_leaves_all_of_the_unit(world: World, ps: Any) -> None:
    ps.queue("in").send(b"1")
    work = ps.unit_of_work()
    work.take("in")
    work.put("out", b"a")
    work.commit()
    world.crash()
    assert world.ps.queue("in").stats().messages == 0
    assert world.ps.queue("out").receive().body == b"a"


def test_rolling_back_succeeds_after_everything_it_took_from_is_gone(world: World, ps: Any) -> None:
    ps.queue("in").send(b"1")
    work = ps.unit_of_work()
    work.take("in")
    ps.queue("in").delete()
    work.rollback()
    assert work.state == "rolled back"


def test_threads_share_a_unit(ps: Any) -> None:
    ps.queue("in").send_many([b"x"] * 40)
    work = ps.unit_of_work()

    def move() -> None:
        while message := work.take("in"):
            work.put("out", message.body)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(work.commit()) == 40
    assert ps.queue("in").stats().messages == 0
    assert ps.queue("out").stats().messages == 40


def test_the_end_of_a_session_ends_its_units_takes(ps: Any) -> None:
    ps.queue("in").send(b"1")
    session = ps.session("worker")
    work = session.unit_of_work()
    work.take("in")
    session.end()
    ps.queue("in").receive()
    with pytest.raises(penstock.WorkRefused):
        work.commit()


@one_shard_only
def test_puts_keep_their_order_in_each_queue_whatever_their_options(ps: Any) -> None:
    ps.create_queue("line.fifo", kind="fifo", content_dedup=True)
    work = ps.unit_of_work()
    for number in range(9):
        delay = 0 if number % 3 else None
        work.put("line.fifo", str(number), group="g", delay=delay, attributes={"n": number} if number % 2 else None)
        work.put("other", f"other {number}")
    sent = work.commit()
    received = ps.queue("line.fifo").receive(9)
    assert [message.text for message in received] == [str(number) for number in range(9)]
    assert [message.attributes.get("n") for message in received] == [None, 1, None, 3, None, 5, None, 7, None]
    assert [one.id for one in sent[::2]] == [message.id for message in received]
    assert [one.id for one in sent[1::2]] == [message.id for message in ps.queue("other").receive(9)]


def test_a_unit_that_gets_too_large_says_so_at_the_put_and_can_still_be_committed(
    ps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.puts.BATCH_BYTES_MAX", 10)
    work = ps.unit_of_work()
    work.put("out", b"12345")
    with pytest.raises(penstock.BatchTooLarge, match="would have 11 bytes, and a commit carries at most 10"):
        work.put("out", b"123456")
    work.put("out", b"12345")
    assert len(work.commit()) == 2


def test_a_put_asks_nobody(ps: Any) -> None:
    work = ps.unit_of_work()
    ps.close()
    work.put("out", b"a", delay=1, attributes={"n": 1})
    work.rollback()
    assert work.state == "rolled back"


def test_rolling_back_succeeds_when_the_store_is_closed(ps: Any) -> None:
    ps.queue("in").send(b"1")
    work = ps.unit_of_work()
    work.take("in")
    ps.close()
    work.rollback()
    assert work.state == "rolled back"


def test_the_end_of_a_session_rolls_back_all_its_units_in_one_step(ps: Any) -> None:
    for queue in ("in", "also"):
        ps.queue(queue).send_many([b"1", b"2"])
    session = ps.session("worker")
    units = [session.unit_of_work() for _ in range(2)]
    for work in units:
        work.take("in")
        work.take("also")
        work.put("out", b"a")
    assert session.end() == 4
    assert ps.queues() == ["also", "in"]
    assert [len(ps.queue(queue).receive(9)) for queue in ("in", "also")] == [2, 2]


@one_shard_only
def test_a_commit_that_was_refused_can_be_repeated_when_the_reason_is_gone(ps: Any) -> None:
    ps.create_queue("out", message_bytes_max=1)
    ps.queue("in").send(b"1")
    work = ps.unit_of_work()
    work.take("in")
    work.put("out", b"too long")
    with pytest.raises(penstock.MessageTooLarge):
        work.commit()
    ps.queue("out").configure(message_bytes_max=100)
    assert [one.sequence for one in work.commit()] == [0]
    assert ps.queue("in").stats().messages == 0


def test_a_commit_while_others_put_takes_each_put_or_refuses_it(ps: Any) -> None:
    work = ps.unit_of_work()
    accepted: list[int] = []

    def put(first: int) -> None:
        for number in range(first, first + 500):
            try:
                work.put("out", str(number))
            except penstock.InvalidRequest:
                return
            accepted.append(number)

    threads = [threading.Thread(target=put, args=(first,)) for first in (0, 1_000)]
    for thread in threads:
        thread.start()
    sent = work.commit()
    for thread in threads:
        thread.join()
    assert len(sent) == len(accepted)
    stored = [int(message.text) for message in ps.queue("out").receive(1_000)] if sent else []
    assert sorted(stored) == sorted(accepted)
