"""What a command does when it comes a second time, because the reply to the first was lost.

In between, others do things and are told that they are done. What the traits of a command say is true: a harmless one
leaves all of that as it is, and answers; one that is not harmless takes something back, or answers with an error. Under
a name it does neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.commands import COMMANDS, Command, Once, Span
from penstock.core.errors import PenstockError
from penstock.core.traits import Repeat
from penstock.store.memory import MemoryStore

NOW_MS = 1_000
SEND = c.Send(queue="orders", bodies=[b"x"])


class Case(NamedTuple):
    command: Command
    before: Sequence[Command] = ()
    between: Sequence[Command] = ()


HELD = (SEND, c.OpenSession(name="me", ttl_ms=60_000), c.Receive(queue="orders", session=1))
DEAD = (c.CreateQueue(name="orders"), c.Send(queue="letters", bodies=[b"x"] * 9))
REDRIVE = c.StartRedrive(queue="letters", target="orders", per_second=1)
CASES = (
    Case(c.CreateQueue(name="orders"), between=[c.DeleteQueue(name="orders")]),
    Case(
        c.ChangeQueue(name="orders", changes={"lease_ms": 5_000}),
        [SEND],
        [c.ChangeQueue(name="orders", changes={"lease_ms": 9_000})],
    ),
    Case(c.PurgeQueue(name="orders"), [SEND], [SEND]),
    Case(c.PurgeChannel(queue="orders", channel="main"), [SEND], [SEND]),
    Case(c.PurgeBacklog(queue="orders"), [SEND, c.PauseQueue(queue="orders"), SEND], [SEND]),
    Case(
        c.CreateChannel(queue="orders", channel="audit"),
        [SEND],
        [c.DeleteChannel(queue="orders", channel="audit")],
    ),
    Case(
        c.PauseChannel(queue="orders", channel="main"),
        [SEND],
        [c.PauseChannel(queue="orders", channel="main", paused=False)],
    ),
    Case(c.PauseQueue(queue="orders"), [SEND], [c.PauseQueue(queue="orders", paused=False)]),
    Case(c.EndSession(session=1), [c.OpenSession(name="me")], [c.OpenSession(name="you")]),
    Case(
        c.AckConsumer(queue="orders", consumer="audit", offset=1),
        [SEND, SEND],
        [c.AckConsumer(queue="orders", consumer="audit", offset=2)],
    ),
    Case(c.TallyQueues(), [SEND], [SEND]),
    Case(c.ListSessions(queue="orders"), [*HELD], [SEND]),
    Case(c.CountQueues(), [SEND], [SEND]),
    Case(c.NameQueue(queue_id=1), [SEND], [SEND]),
    Case(c.LookUp(queue="orders", sequences=[0]), [SEND], [SEND]),
    Case(c.DeleteMessages(queue="orders", sequences=[0]), [SEND], [SEND]),
    Case(
        c.RescheduleMessages(queue="orders", sequences=[0], due_ms=90_000),
        [SEND],
        [c.RescheduleMessages(queue="orders", sequences=[0])],
    ),
    Case(c.FindOffsets(queue="orders"), [SEND], [SEND]),
    Case(c.ListChunks(queue="orders"), [SEND], [SEND]),
    Case(c.RecallWork(named=Once("c", 1)), [SEND], [SEND]),
    Case(c.ReadOutbox(target=0, after=-1), [SEND], [SEND]),
    Case(c.ForgetOutbox(target=0, up_to=3), [SEND], [SEND]),
    Case(c.TakeOutbox(source="there", after=-1, up_to=0, entries=[]), [SEND], [SEND]),
    Case(c.AckUpTo(queue="orders", channel="main", offset=1), [SEND], [SEND]),
    Case(c.Extend(queue="orders", spans=[Span(0, 0, 1)], lease_ms=50_000), HELD, [SEND]),
    Case(c.Extend(queue="orders", spans=[Span(0, 0, 1)], lease_ms=0), HELD, [SEND]),
    Case(
        c.ExtendSequences(queue="orders", channel="main", sequences=np.array([0]), session=1, lease_ms=50_000),
        HELD,
        [SEND],
    ),
    Case(c.HoldForWork(acks=[c.Ack(queue="orders", spans=[Span(0, 0, 1)])], unit=7), HELD, [SEND]),
    Case(c.CancelRedrive(task=1), [*DEAD, REDRIVE], [REDRIVE]),
    # and some of those on which everybody agreed
    Case(c.Heartbeat(session=1), [c.OpenSession(name="me", ttl_ms=60_000)], [SEND]),
    Case(c.DeleteQueue(name="orders"), [SEND], [SEND]),
    Case(SEND),
    Case(c.Ack(queue="orders", spans=[Span(0, 0, 1)]), HELD, [SEND]),
    Case(
        c.DeleteConsumer(queue="orders", consumer="audit"),
        [SEND, c.AckConsumer(queue="orders", consumer="audit", offset=0)],
    ),
    Case(REDRIVE, DEAD),
    Case(c.OpenSession(name="me")),
)


def name(case: Case) -> str:
    return type(case.command).__name__


class World:
    """A broker, in which every command is committed."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.broker = Broker.open(self.store, NOW_MS, bytes(range(64)), shard=None)

    def do(self, command: Command) -> Any:
        reply = self.broker.handle(command, NOW_MS)
        self.broker.finish(NOW_MS)
        changes = self.broker.take_changes()
        self.store.commit(changes)
        self.broker.committed(changes)
        return reply

    def snapshot(self) -> dict[str, Any]:
        found = self.broker.snapshot()
        del found["once"]
        return found


def after_a_lost_reply(case: Case) -> tuple[World, Any]:
    """The command was done, and others have gone on."""
    world = World()
    for each in case.before:
        world.do(each)
    reply = world.do(case.command)
    for each in case.between:
        world.do(each)
    return world, reply


@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_second_time_does_what_the_traits_say(case: Case) -> None:
    world, _ = after_a_lost_reply(case)
    before = world.snapshot()
    try:
        reply = world.do(case.command)
        harmless = world.snapshot() == before and not getattr(reply, "refused", None)
    except PenstockError:
        harmless = False
    assert harmless == (case.command.repeat is not Repeat.NAMED)


@pytest.mark.parametrize("case", [each for each in CASES if each.command.traits.may_be_named], ids=name)
def test_under_a_name_the_second_time_does_nothing_and_answers_as_the_first(case: Case) -> None:
    named = case._replace(command=msgspec.structs.replace(case.command, once=Once("c", 1)))
    world, reply = after_a_lost_reply(named)
    before = world.snapshot()
    assert world.do(named.command) == reply
    assert world.snapshot() == before


def test_every_command_that_says_it_reads_changes_nothing() -> None:
    reads = {kind for kind in COMMANDS if kind.traits.repeat is Repeat.READ}
    world = World()
    for each in (*HELD, *DEAD, REDRIVE, c.AckConsumer(queue="orders", consumer="audit", offset=0)):
        world.do(each)
    asked = [
        c.DescribeQueue(name="orders"),
        c.ListQueues(),
        c.QueueStats(name="orders"),
        c.TallyQueues(),
        c.ListSessions(),
        c.LookUp(queue="orders", sequences=[0]),
        c.NameQueue(queue_id=1),
        c.CountQueues(),
        c.RecallWork(named=Once("c", 1)),
        c.LastMark(name="stream"),
        c.ReadOutbox(target=0, after=-1),
        c.ReadRecords(queue="orders", offset=0),
        c.FindOffsets(queue="orders"),
        c.ListChunks(queue="orders"),
        c.Browse(queue="orders"),
        c.ListRedrives(),
    ]
    assert {type(command) for command in asked} == reads
    before = world.snapshot()
    for command in asked:
        world.do(command)
    assert world.snapshot() == before
