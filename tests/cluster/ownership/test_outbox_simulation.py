"""Outboxes over a bad network, with crashes and zombies: each effect arrives once, and none is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.delivery.acknowledgement import Acknowledgement
from penstock.core.handlers.once import Marks
from penstock.core.storage.changes import Changes
from penstock.core.storage.records import Mark
from penstock.core.transfer import inbox
from penstock.core.transfer.outbox import Outbox
from tests.cluster.ownership.outbox_world import World

STEPS = 100
SEEDS = range(12)
FOUND: tuple[int, ...] = ()
"""Seeds that have found faults."""


@pytest.mark.parametrize("seed", [*FOUND, *SEEDS])
def test_every_effect_in_another_shard_arrives_once_whatever_happens(seed: int) -> None:
    World(seed).run(STEPS)


def test_a_seed_replays() -> None:
    one, other = World(7), World(7)
    one.run(40)
    other.run(40)
    assert one.trace == other.trace
    assert [node.broker.snapshot() for node in one.nodes] == [node.broker.snapshot() for node in other.nodes]


def test_much_happens_in_a_run() -> None:
    """The worlds above are no quiet places."""
    told: set[str] = set()
    for seed in range(4):
        world = World(seed)
        world.run(STEPS)
        told.update(world.trace)
        assert world.acked_away or seed
    batches = {each for each in told if each[:1].isdigit() or each.startswith("-")}
    assert any("True" in each for each in batches)
    assert any("False" in each for each in batches), "some batches came twice or out of turn"
    assert any(int(each.split()[2]) for each in batches), "some messages were put aside"
    assert "crashed" in told


def faults_found() -> Iterator[str]:
    """What the checker says of some worlds."""
    for seed in range(6):
        try:
            World(seed).run(STEPS)
        except AssertionError as error:
            yield str(error)


def test_the_checker_finds_a_target_that_does_not_look_at_its_mark(breaking: pytest.MonkeyPatch) -> None:
    take = inbox.take

    def careless(broker: Broker, command: c.TakeOutbox) -> c.Taken:
        command.after = broker.marks.last_of_outbox(command.source)
        command.up_to = max(command.up_to, command.after + 1)
        return take(broker, command)

    breaking.setattr(inbox, "take", careless)
    assert any("times" in found for found in faults_found())


def test_the_checker_finds_a_mark_that_is_not_committed_with_its_work(breaking: pytest.MonkeyPatch) -> None:
    def forgetful(marks: Marks, name: str, number: int, now_ms: int, changes: Changes) -> None:
        marks._outboxes[name] = Mark(number, now_ms)

    breaking.setattr(Marks, "set_outbox", forgetful)
    assert any("times" in found for found in faults_found())


def test_the_checker_finds_entries_that_are_forgotten_too_early(breaking: pytest.MonkeyPatch) -> None:
    forget = Outbox.forget
    breaking.setattr(Outbox, "forget", lambda outbox, target, up_to: forget(outbox, target, up_to + 1))
    assert any("0 times" in found for found in faults_found())


def test_the_checker_finds_dead_letters_out_of_order(breaking: pytest.MonkeyPatch) -> None:
    take = inbox.take

    def backwards(broker: Broker, command: c.TakeOutbox) -> c.Taken:
        command.entries.reverse()
        return take(broker, command)

    breaking.setattr(inbox, "take", backwards)
    assert any("overtaken" in found for found in faults_found())


def test_the_checker_finds_holds_that_end_with_their_session(breaking: pytest.MonkeyPatch) -> None:
    def extend(acknowledgement: Acknowledgement, span: c.Span, until_ms: int, _holder: int) -> None:
        now_ms = acknowledgement.queue.broker.now_ms
        acknowledgement.extend(span, now_ms, until_ms - now_ms)

    breaking.setattr(Acknowledgement, "hold", extend)
    assert any(faults_found())
