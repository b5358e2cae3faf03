"""Very many queues: pages of names, tallies and totals agree with looking at each queue, and cost what they show."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.errors import InvalidRequest
from penstock.core.queues.config import QueueConfig, dead_letter_name
from tests.core.driver import HOUR_MS, MINUTE_MS, Desk

NAMES = [f"{stem}-{number}{ending}" for stem in ("a", "ab", "b") for number in range(8) for ending in ("", ".dead")]


def all_pages(desk: Desk, command: type[c.ListQueues], limit: int, **asked: Any) -> list[str]:
    found: list[str] = []
    while page := desk.do(command(after=found[-1] if found else "", limit=limit, **asked)):
        assert len(page) <= limit
        found += page
    return found


def all_tallies(desk: Desk, limit: int = 3) -> dict[str, c.QueueTally]:
    found: list[c.QueueTally] = []
    while page := desk.do(c.TallyQueues(after=found[-1].name if found else "", limit=limit)):
        assert len(page) <= limit
        found += page
    assert [each.name for each in found] == sorted({each.name for each in found})
    return {each.name: each for each in found}


def counted(desk: Desk, name: str) -> tuple[int, ...]:
    """What a tally should say, from the exact counts of the queue."""
    stats: c.Stats = desk.do(c.QueueStats(name=name))
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
    dice, desk = random.Random(seed), Desk(checks=False)
    for _ in range(120):
        name = dice.choice(NAMES)
        if name in desk.broker.queues:
            desk.do(c.DeleteQueue(name=name))
        else:
            desk.create(name)
        if dice.random() < 0.1:
            desk.reopen()
        for prefix in ("", "a", "ab-", "b-3.dead", "c"):
            named = [each for each in sorted(desk.broker.queues) if each.startswith(prefix)]
            assert all_pages(desk, c.ListQueues, dice.randint(1, 9), prefix=prefix) == named


@pytest.mark.parametrize("seed", range(5))
def test_sources_of_a_dead_letter_queue_agree_with_looking_at_each_queue(seed: int) -> None:
    dice, desk = random.Random(seed), Desk(checks=False)
    long = "x" * 126
    names = ["a", "b", "a.dead", "a.fifo", long]
    targets = ["a.dead", "graves", "a.dead.fifo", dead_letter_name(long)]
    for _ in range(80):
        name = dice.choice(names)
        kind = "fifo" if name.endswith(".fifo") else "standard"
        target = dice.choice([None, "a.dead", "graves"]) if kind == "standard" and name != "a.dead" else None
        changes = {"max_receives": dice.choice([0, 3]), "dead_letter": target}
        if name not in desk.broker.queues:
            desk.do(c.CreateQueue(name=name, config=QueueConfig(kind=kind).changed(changes)))
        elif dice.random() < 0.5:
            desk.do(c.ChangeQueue(name=name, changes=changes))
        else:
            desk.do(c.DeleteQueue(name=name))
        if dice.random() < 0.1:
            desk.reopen()
        for wanted in targets:
            found = all_pages(desk, c.ListQueues, dice.randint(1, 3), dead_letters_to=wanted)
            assert found == naive_sources(desk.broker, wanted)


@pytest.mark.parametrize("seed", range(5))
def test_tallies_and_totals_agree_with_the_counts_of_each_queue(seed: int) -> None:
    dice, desk = random.Random(seed), Desk(checks=False)
    names = ["fifo.fifo", "plain", "tapped", "untapped", "worked"]
    desk.create("fifo.fifo", kind="fifo")
    desk.create("plain", max_receives=2)
    desk.create("tapped", channels=("main", "other"))
    desk.create("untapped", channels=())
    held: list[c.Delivery] = []
    gone = 0
    for _ in range(150):
        name = dice.choice(names)
        chance = dice.random()
        if chance < 0.45:
            delay_ms = dice.choice([None, None, MINUTE_MS, 3 * HOUR_MS]) if name != "fifo.fifo" else None
            groups = ["g", "h"] if name == "fifo.fifo" else None
            ids = [str(dice.random()), str(dice.random())] if name == "fifo.fifo" else None
            desk.do(c.Send(queue=name, bodies=[b"x", b"yy"], delay_ms=delay_ms, groups=groups, dedup_ids=ids))
        elif chance < 0.65 and name in desk.broker.queues and name != "untapped":
            held.append(desk.do(c.Receive(queue=name, limit=3, wait_ms=0)))
        elif chance < 0.85 and held:
            delivery = held.pop(dice.randrange(len(held)))
            settle = dice.choice([c.Ack, c.Release])
            spans = [span for run in delivery.runs for span in run.spans()]
            if delivery.queue in desk.broker.queues:
                desk.step(settle(queue=delivery.queue, spans=spans))
        elif chance < 0.88 and name == "worked" and name in desk.broker.queues:
            gone += desk.do(c.QueueStats(name=name)).sent
            desk.do(c.DeleteQueue(name=name))
        elif chance < 0.93:
            desk.step(at_ms=desk.now_ms + dice.choice([1_000, MINUTE_MS, HOUR_MS]))
        tallies = all_tallies(desk, limit=dice.randint(1, 4))
        assert list(tallies) == sorted(desk.broker.queues)
        for each in tallies.values():
            assert each[3:] == counted(desk, each.name), each.name
        desk.commit()
        totals = desk.broker.totals
        assert totals.messages == sum(each.messages for each in tallies.values())
        assert totals.bytes == sum(each.bytes for each in tallies.values())
        assert totals.sent == gone + sum(each.sent for each in tallies.values())


def test_totals_of_what_happened_keep_what_deleted_queues_and_channels_have_counted() -> None:
    desk = Desk(checks=False)
    desk.create("q", channels=("main", "other"))
    desk.send(b"a", b"b", b"c", queue="q")
    for channel in ("main", "other"):
        delivery = desk.do(c.Receive(queue="q", channel=channel, limit=2))
        desk.do(c.Ack(queue="q", channel=channel, spans=[span for run in delivery.runs for span in run.spans()]))
    desk.do(c.DeleteChannel(queue="q", channel="other"))
    desk.do(c.DeleteQueue(name="q"))
    totals = desk.broker.totals
    assert (totals.messages, totals.bytes, totals.sent, totals.acked) == (0, 0, 3, 4)
    desk.reopen()
    assert (desk.broker.totals.sent, desk.broker.totals.acked) == (0, 0)


def test_totals_say_what_is_there_after_opening_and_what_happened_since() -> None:
    desk = Desk(checks=False)
    desk.send(b"abc", b"d", queue="q")
    desk.reopen()
    desk.send(b"e", queue="q")
    totals = desk.broker.totals
    assert (totals.messages, totals.bytes, totals.sent) == (3, 5, 1)


def test_a_queue_is_busy_by_what_moved_lately_and_not_long_ago() -> None:
    desk = Desk(checks=False)
    desk.send(*[b"x"] * 100, queue="once")
    desk.send(b"x", queue="now")
    assert [each.busy for each in all_tallies(desk).values()] == [1, 100]
    desk.step(at_ms=desk.now_ms + 10 * MINUTE_MS)
    desk.send(*[b"x"] * 60, queue="now")
    assert [each.busy for each in all_tallies(desk).values()] == [60, 50]
    desk.step(at_ms=desk.now_ms + 24 * HOUR_MS)
    assert [each.busy for each in all_tallies(desk).values()] == [0, 0]


def test_what_happened_before_the_store_was_opened_is_no_sign_of_being_busy() -> None:
    desk = Desk(checks=False)
    desk.send(*[b"x"] * 100, queue="old")
    desk.reopen()
    desk.send(b"x", queue="new")
    assert {each.name: each.busy for each in all_tallies(desk).values()} == {"old": 0, "new": 1}


def test_a_tally_of_no_queues_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="limit is 0"):
        Desk().do(c.TallyQueues(limit=0))
