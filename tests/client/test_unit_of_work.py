from __future__ import annotations

import threading
from typing import Any

import pytest

import penstock
from tests.client.adapter import World


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
    assert message.attempts == 2
    assert message.history[0].error == "rolled back"
    assert work.state == "rolled back"


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
    assert ps.queue("in").receive().attempts == 2


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
    assert ps.queue("in").receive().attempts == 2


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
