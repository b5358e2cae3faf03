"""Very many queues: pages of names, tallies and totals agree with looking at each queue, and cost what they show."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.errors import InvalidRequest
from penstock.core.queues.config import QueueConfig, dead_letter_name
from tests.core.driver import HOUR_MS, MINUTE_MS, BrokerDriver

NAMES = [f"{stem}-{number}{ending}" for stem in ("a", "ab", "b") for number in range(8) for ending in ("", ".dead")]


def all_pages(driver: BrokerDriver, command: type[c.ListQueues], limit: int, **asked: Any) -> list[str]:
    found: list[str] = []
    while page := driver.do(command(after=found[-1] if found else "", limit=limit, **asked)):
        assert len(page) <= limit
        found += page
    return found


def all_tallies(driver: BrokerDriver, limit: int = 3) -> dict[str, c.QueueTally]:
    found: list[c.QueueTally] = []
    while page := driver.do(c.TallyQueues(after=found[-1].name if found else "", limit=limit)):
        assert len(page) <= limit
        found += page
    assert [each.name for each in found] == sorted({each.name for each in found})
    return {each.name: each for each in found}


def counted(driver: BrokerDriver, name: str) -> tuple[int, ...]:
    """What a tally should say, from the exact counts of the queue."""
    stats: c.Stats = driver.do(c.QueueStats(name=name))
    channels = stats.channels.values()
    sums = [sum(getattr(each, field) for each in channels) for field in ("ready", "leased", "delayed")]
    if not channels:
        sums[2] = stats.delayed
    ends = [sum(getattr(each, field) for each in channels) for field in ("acked", "failed", "dead")]
    return (stats.messages, stats.bytes, stats.quarantined, *sums, stats.sent, *ends)


def naive_sources(broker: Broker, target: str) -> list[str]:
    """The queues whose dead letters go to one, found by looking at each."""
    return sorted(
        name
        for name, queue in broker.queues.items()
        if queue.config.receives_max and (queue.config.dead_letter or dead_letter_name(name)) == target
    )


@pytest.mark.parametrize("seed", range(5))
def test_pages_of_names_agree_with_all_queues_while_these_come_and_go(seed: int) -> None:
    dice, driver = random.Random(seed), BrokerDriver(checks=False)
    for _ in range(120):
        name = dice.choice(NAMES)
        if name in driver.broker.queues:
            driver.do(c.DeleteQueue(name=name))
        else:
            driver.create(name)
        if dice.random() < 0.1:
            driver.reopen()
        for prefix in ("", "a", "ab-", "b-3.dead", "c"):
            named = [each for each in sorted(driver.broker.queues) if each.startswith(prefix)]
            assert all_pages(driver, c.ListQueues, dice.randint(1, 9), prefix=prefix) == named


@pytest.mark.parametrize("seed", range(5))
def test_sources_of_a_dead_letter_queue_agree_with_looking_at_each_queue(seed: int) -> None:
    dice, driver = random.Random(seed), BrokerDriver(checks=False)
    long = "x" * 126
    names = ["a", "b", "a.dead", "a.fifo", long]
    targets = ["a.dead", "graves", "a.dead.fifo", dead_letter_name(long)]
    for _ in range(80):
        name = dice.choice(names)
        kind = "fifo" if name.endswith(".fifo") else "standard"
        target = dice.choice([None, "a.dead", "graves"]) if kind == "standard" and name != "a.dead" else None
        changes = {"max_receives": dice.choice([0, 3]), "dead_letter": target}
        if name not in driver.broker.queues:
            driver.do(c.CreateQueue(name=name, config=QueueConfig(kind=kind).changed(changes)))
        elif dice.random() < 0.5:
            driver.do(c.ChangeQueue(name=name, changes=changes))
        else:
            driver.do(c.DeleteQueue(name=name))
        if dice.random() < 0.1:
            driver.reopen()
        for wanted in targets:
            found = all_pages(driver, c.ListQueues, dice.randint(1, 3), dead_letters_to=wanted)
            assert found == naive_sources(driver.broker, wanted)


@pytest.mark.parametrize("seed", range(5))
def test_tallies_and_totals_agree_with_the_counts_of_each_queue(seed: int) -> None:
    dice, driver = random.Random(seed), BrokerDriver(checks=False)
    names = ["fifo.fifo", "plain", "tapped", "untapped", "worked"]
    driver.create("fifo.fifo", kind="fifo")
    driver.create("plain", max_receives=2)
    driver.create("tapped", channels=("main", "other"))
    driver.create("untapped", channels=())
    held: list[c.Delivery] = []
    gone = 0
    for _ in range(150):
        name = dice.choice(names)
        chance = dice.random()
        if chance < 0.45:
            delay_ms = dice.choice([None, None, MINUTE_MS, 3 * HOUR_MS]) if name != "fifo.fifo" else None
            groups = ["g", "h"] if name == "fifo.fifo" else None
            ids = [str(dice.random()), str(dice.random())] if name == "fifo.fifo" else None
            driver.do(c.Send(queue=name, bodies=[b"x", b"yy"], delay_ms=delay_ms, groups=groups, dedup_ids=ids))
        elif chance < 0.65 and name in driver.broker.queues and name != "untapped":
            held.append(driver.do(c.Receive(queue=name, limit=3, wait_ms=0)))
        elif chance < 0.85 and held:
            delivery = held.pop(dice.randrange(len(held)))
            settle = dice.choice([c.Ack, c.Release])
            spans = [span for run in delivery.runs for span in run.spans()]
            if delivery.queue in driver.broker.queues:
                driver.step(settle(queue=delivery.queue, spans=spans))
        elif chance < 0.88 and name == "worked" and name in driver.broker.queues:
            gone += driver.do(c.QueueStats(name=name)).sent
            driver.do(c.DeleteQueue(name=name))
        elif chance < 0.93:
            driver.step(at_ms=driver.now_ms + dice.choice([1_000, MINUTE_MS, HOUR_MS]))
        tallies = all_tallies(driver, limit=dice.randint(1, 4))
        assert list(tallies) == sorted(driver.broker.queues)
        for each in tallies.values():
            assert each[3:] == counted(driver, each.name), each.name
        driver.commit()
        totals = driver.broker.totals
        assert totals.messages == sum(each.messages for each in tallies.values())
        assert totals.bytes == sum(each.bytes for each in tallies.values())
        assert totals.sent == gone + sum(each.sent for each in tallies.values())


def test_totals_of_what_happened_keep_what_deleted_queues_and_channels_have_counted() -> None:
    driver = BrokerDriver(checks=False)
    driver.create("q", channels=("main", "other"))
    driver.send(b"a", b"b", b"c", queue="q")
    for channel in ("main", "other"):
        delivery = driver.do(c.Receive(queue="q", channel=channel, limit=2))
        driver.do(c.Ack(queue="q", channel=channel, spans=[span for run in delivery.runs for span in run.spans()]))
    driver.do(c.DeleteChannel(queue="q", channel="other"))
    driver.do(c.DeleteQueue(name="q"))
    totals = driver.broker.totals
    assert (totals.messages, totals.bytes, totals.sent, totals.acked) == (0, 0, 3, 4)
    driver.reopen()
    assert (driver.broker.totals.sent, driver.broker.totals.acked) == (0, 0)


def test_totals_say_what_is_there_after_opening_and_what_happened_since() -> None:
    driver = BrokerDriver(checks=False)
    driver.send(b"abc", b"d", queue="q")
    driver.reopen()
    driver.send(b"e", queue="q")
    totals = driver.broker.totals
    assert (totals.messages, totals.bytes, totals.sent) == (3, 5, 1)


def test_a_queue_is_busy_by_what_moved_lately_and_not_long_ago() -> None:
    driver = BrokerDriver(checks=False)
    driver.send(*[b"x"] * 100, queue="once")
    driver.send(b"x", queue="now")
    assert [each.busy for each in all_tallies(driver).values()] == [1, 100]
    driver.step(at_ms=driver.now_ms + 10 * MINUTE_MS)
    driver.send(*[b"x"] * 60, queue="now")
    assert [each.busy for each in all_tallies(driver).values()] == [60, 50]
    driver.step(at_ms=driver.now_ms + 24 * HOUR_MS)
    assert [each.busy for each in all_tallies(driver).values()] == [0, 0]


def test_what_happened_before_the_store_was_opened_is_no_sign_of_being_busy() -> None:
    driver = BrokerDriver(checks=False)
    driver.send(*[b"x"] * 100, queue="old")
    driver.reopen()
    driver.send(b"x", queue="new")
    assert {each.name: each.busy for each in all_tallies(driver).values()} == {"old": 0, "new": 1}


def test_a_tally_of_no_queues_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="limit is 0"):
        BrokerDriver().do(c.TallyQueues(limit=0))
