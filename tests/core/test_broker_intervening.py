"""What an operator does to messages by number: looks at their lives, deletes them, releases them, puts them off."""

from __future__ import annotations

import random

import pytest

from penstock.core import commands as c
from penstock.core.delivery.states import State
from penstock.core.errors import InvalidRequest
from penstock.core.handlers import intervening
from tests.core.driver import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, BrokerDriver, bodies_of


def life(driver: BrokerDriver, sequence: int, channel: str = "main") -> c.ChannelLife:
    (found,) = driver.do(c.LookUp(queue="q", sequences=[sequence]))
    return next(each for each in found.channels if each.channel == channel)


def delete(driver: BrokerDriver, *sequences: int, channel: str | None = None) -> c.Changed:
    changed: c.Changed = driver.do(c.DeleteMessages(queue="q", sequences=list(sequences), channel=channel))
    return changed


def put_off(driver: BrokerDriver, *sequences: int, by_ms: int = 0) -> c.Changed:
    due_ms = driver.now_ms + by_ms if by_ms else 0
    changed: c.Changed = driver.do(c.RescheduleMessages(queue="q", sequences=list(sequences), due_ms=due_ms))
    return changed


def stats(driver: BrokerDriver, channel: str = "main") -> tuple[int, int, int]:
    found: c.Stats = driver.do(c.QueueStats(name="q"))
    each = found.channels[channel]
    return each.ready, each.leased, each.delayed


# -- looking --


def test_a_message_tells_its_whole_life() -> None:
    driver = BrokerDriver()
    driver.create(channels=("main", "audit"))
    driver.send(b"a", b"b", priority=0)
    session = driver.do(c.OpenSession(name="worker-1", ttl_ms=HOUR_MS))
    delivery = driver.receive(1, session=session)
    driver.release(delivery, error="it broke")
    driver.advance(SECOND_MS)
    driver.receive(2, session=session)
    (found,) = driver.do(c.LookUp(queue="q", sequences=[0]))
    assert (found.body, found.sequence, found.sent_ms) == (b"a", 0, driver.now_ms - SECOND_MS)
    main, audit = found.channels
    assert (main.channel, main.state, main.attempts, main.holder) == ("main", State.LEASED, 2, "worker-1")
    assert main.received_ms == driver.now_ms and main.first_ms == driver.now_ms - SECOND_MS
    assert main.deadline_ms > driver.now_ms
    assert [failure.error for failure in main.failures] == ["it broke"]
    assert (audit.channel, audit.state, audit.attempts) == ("audit", State.READY, 0)


def test_what_is_done_everywhere_is_left_out() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a")
    driver.send(b"b")
    driver.ack(driver.receive(1))
    found = driver.do(c.LookUp(queue="q", sequences=[0, 1, 99]))
    assert [each.sequence for each in found] == [1]


def test_a_message_far_ahead_and_one_in_the_retry_lane_are_found() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"far", delay_ms=3 * DAY_MS)
    assert life(driver, 0).state is State.DELAYED
    assert life(driver, 0).deadline_ms == driver.now_ms + 3 * DAY_MS
    driver.send(b"retried")
    for _ in range(2):
        driver.release(driver.receive(1), delay_ms=HOUR_MS, error="later")
        driver.advance(HOUR_MS)
    driver.release(driver.receive(1), delay_ms=2 * DAY_MS, error="much later")
    assert (life(driver, 1).state, life(driver, 1).attempts) == (State.DELAYED, 3)
    assert len(life(driver, 1).failures) == 3


# -- deleting --


def test_a_deleted_message_is_handed_out_to_nobody_and_its_receipt_is_stale() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a", b"b", b"c")
    held = driver.receive(1)
    assert delete(driver, 0, 1, 7) == c.Changed(2, [7])
    assert driver.ack(held).count == 0
    assert bodies_of(driver.receive(10)) == [b"c"]
    assert stats(driver) == (0, 1, 0)


def test_one_channel_alone_can_be_spared_a_message() -> None:
    driver = BrokerDriver()
    driver.create(channels=("main", "audit"))
    driver.send(b"a")
    assert delete(driver, 0, channel="audit").count == 1
    assert bodies_of(driver.receive(1)) == [b"a"]
    assert bodies_of(driver.receive(1, channel="audit")) == []


def test_a_message_that_lies_ahead_or_far_ahead_is_deleted() -> None:
    driver = BrokerDriver()
    driver.create()
    for body in (b"0", b"1", b"2"):
        driver.send(body)
    driver.send(b"3", delay_ms=5 * DAY_MS)
    assert delete(driver, 1, 3) == c.Changed(2, [])
    assert stats(driver) == (2, 0, 0)
    assert bodies_of(driver.receive(10)) == [b"0", b"2"]


def test_a_deleted_message_unblocks_its_group() -> None:
    driver = BrokerDriver()
    driver.create(kind="fifo")
    driver.send_fifo("g", b"a", b"b")
    driver.receive(1)
    assert bodies_of(driver.receive(1)) == []
    delete(driver, 0)
    assert bodies_of(driver.receive(1)) == [b"b"]


# -- releasing and putting off --


def test_a_released_lease_is_ready_at_once_and_the_old_receipt_is_stale() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a")
    held = driver.receive(1)
    assert put_off(driver, 0).count == 1
    assert driver.ack(held).count == 1, "a late ack counts while nobody else has the message"
    driver.send(b"b")
    held = driver.receive(1)
    put_off(driver, 1)
    again = driver.receive(1)
    assert bodies_of(again) == [b"b"]
    assert driver.ack(held).count == 0
    assert driver.ack(again).count == 1


def test_a_delayed_message_is_made_ready() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"near", delay_ms=MINUTE_MS)
    driver.send(b"far", delay_ms=9 * DAY_MS)
    assert put_off(driver, 0, 1).count == 2
    assert stats(driver) == (2, 0, 0)
    assert sorted(bodies_of(driver.receive(10))) == [b"far", b"near"]


@pytest.mark.parametrize("kind", ["standard", "fifo", "fair"])
def test_a_message_that_is_put_off_comes_when_it_is_due(kind: str) -> None:
    driver = BrokerDriver()
    driver.create(kind="fifo" if kind == "fifo" else "standard")
    for body in (b"a", b"b"):
        driver.send(body, group=None if kind == "standard" else body.decode(), dedup_ids=[body.decode()])
    put_off(driver, 0, by_ms=2 * HOUR_MS)
    assert bodies_of(driver.receive(10)) == [b"b"]
    assert stats(driver) == (0, 1, 1)
    driver.reopen()
    driver.advance(2 * HOUR_MS - 1)
    assert life(driver, 0).state is State.DELAYED
    driver.advance(1)
    assert b"a" in bodies_of(driver.receive(10))


def test_what_waits_can_be_put_off_once_more_and_sooner() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a", delay_ms=MINUTE_MS)
    put_off(driver, 0, by_ms=HOUR_MS)
    driver.advance(MINUTE_MS)
    assert bodies_of(driver.receive(1)) == []
    put_off(driver, 0, by_ms=SECOND_MS)
    driver.advance(SECOND_MS)
    assert bodies_of(driver.receive(1)) == [b"a"]


def test_a_release_on_the_last_attempt_is_its_last() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=1)
    driver.send(b"a")
    driver.receive(1)
    put_off(driver, 0)
    assert stats(driver) == (0, 0, 0)
    assert bodies_of(driver.receive(1, queue="q.dead")) == [b"a"]


def test_nothing_or_too_much_is_refused() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a")
    for sequences in ([], [-1], list(range(10_001))):
        with pytest.raises(InvalidRequest):
            driver.do(c.DeleteMessages(queue="q", sequences=sequences))


def test_a_command_that_is_refused_has_changed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervening, "LOOK_AHEAD", 5)
    driver = BrokerDriver()
    driver.create(channels=("main", "audit"))
    for number in range(20):
        driver.send(b"%d" % number)
    driver.receive(2)
    before = stats(driver), stats(driver, "audit")
    for command in (
        c.DeleteMessages(queue="q", sequences=[0, 1, 19]),
        c.RescheduleMessages(queue="q", sequences=[0, 19], due_ms=driver.now_ms + HOUR_MS),
    ):
        with pytest.raises(InvalidRequest, match="wait before message"):
            driver.do(command)
        assert (stats(driver), stats(driver, "audit")) == before
    assert [each.state for each in (life(driver, 0), life(driver, 1))] == [State.LEASED, State.LEASED]


# -- against a naive model --


@pytest.mark.parametrize("seed", range(6))
def test_whatever_an_operator_does_every_message_is_handed_out_as_often_as_it_should(seed: int) -> None:
    """A naive model: what was deleted never comes, and what was not comes, when it is due, and not before."""
    chance = random.Random(seed)
    driver = BrokerDriver()
    kind = ("standard", "fifo", "fair")[seed % 3]
    driver.create(lease_ms=HOUR_MS, kind="fifo" if kind == "fifo" else "standard", retention_ms=None)
    due: dict[int, int] = {}
    held: set[int] = set()
    for _ in range(80):
        action = chance.choice(["send", "receive", "ack", "delete", "put off", "release", "time", "reopen"])
        if action == "send":
            count = chance.randint(1, 5)
            groups = None if kind == "standard" else [chance.choice("abc") for _ in range(count)]
            delay = 0 if kind == "fifo" else chance.choice([0, 0, MINUTE_MS, DAY_MS])
            ids = [str(chance.random()) for _ in range(count)]
            sent = driver.do(c.Send(queue="q", bodies=[b"x"] * count, groups=groups, dedup_ids=ids, delay_ms=delay))
            due |= {sent.sequence(at): driver.now_ms + delay for at in range(count)}
        elif action == "receive":
            delivery = driver.receive(chance.randint(1, 4))
            for run in delivery.runs:
                for sequence in range(run.first, run.first + run.count):
                    assert sequence in due and due[sequence] <= driver.now_ms and sequence not in held
                    held.add(sequence)
        elif action == "ack" and held:
            sequence = chance.choice(sorted(held))
            attempt = life(driver, sequence).attempts
            assert driver.do(c.Ack(queue="q", spans=[c.Span(sequence, sequence, attempt)])).count == 1
            held.discard(sequence)
            del due[sequence]
        elif action in ("delete", "put off", "release") and due:
            named = chance.sample(sorted(due), min(len(due), chance.randint(1, 3)))
            if action == "delete":
                assert delete(driver, *named) == c.Changed(len(named), [])
                for sequence in named:
                    del due[sequence]
            else:
                by_ms = 0 if action == "release" else chance.choice([SECOND_MS, HOUR_MS, 3 * DAY_MS])
                assert put_off(driver, *named, by_ms=by_ms) == c.Changed(len(named), [])
                for sequence in named:
                    due[sequence] = driver.now_ms + by_ms
            held -= set(named)
        elif action == "time":
            driver.advance(chance.choice([SECOND_MS, MINUTE_MS]))
        elif action == "reopen":
            driver.reopen()
        assert sum(stats(driver)) == len(due)
    driver.advance(4 * DAY_MS)
    found = set()
    while runs := driver.receive(100).runs:
        found |= {sequence for run in runs for sequence in range(run.first, run.first + run.count)}
        driver.do(c.DeleteMessages(queue="q", sequences=sorted(found)))
    assert found == set(due)
