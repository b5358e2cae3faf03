"""A broker, its store and the model beside it: one step at a time, everything checked.

`World.step` does what the shard does (handle each command, finish, take the woken) and tells the model everything.
`World.commit` hands the changes to the store, and demands that a broker opened from the store equals the live one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.errors import PenstockError
from penstock.store.base import Store
from tests.simulation.model import Model, Outcome, Violation, demand

ALL = 1_000_000
"""A limit that nothing in a test reaches."""

DURABLE = (
    c.CreateQueue,
    c.ChangeQueue,
    c.DeleteQueue,
    c.PurgeQueue,
    c.Send,
    c.Ack,
    c.AckSequences,
    c.CommitWork,
    c.CreateChannel,
    c.DeleteChannel,
    c.PauseChannel,
    c.PauseQueue,
    c.PurgeBacklog,
    c.PurgeChannel,
    c.AckUpTo,
    c.LastMark,
    c.RecallWork,
    c.AckConsumer,
    c.DeleteConsumer,
    c.StartRedrive,
)
"""Commands whose effect must be committed before the reply leaves, if they had one."""

ALWAYS = (
    c.ChangeQueue,
    c.PauseChannel,
    c.PauseQueue,
    c.AckConsumer,
    c.DeleteConsumer,
    c.StartRedrive,
    c.LastMark,
    c.RecallWork,
)
"""Those that always have one, or tell of one that may not be committed yet."""

Making = c.CreateChannel | c.Receive | c.Subscribe | c.StartRedrive
"""Commands that may make a channel."""


@dataclass(slots=True)
class Step:
    """What came of one step: replies that leave when the step is released."""

    now_ms: int
    outcomes: list[tuple[c.Command, Outcome]]
    woken: list[tuple[Any, c.Delivery]]


def describe_command(command: c.Command) -> str:
    """A command with what differs from the defaults, for the trace of a failing seed."""
    plain = {field.name: field.default for field in msgspec.structs.fields(command)}
    shown = []
    for name, default in plain.items():
        value = getattr(command, name)
        if name == "bodies":
            shown.append(f"bodies={[bytes(body[:12]) for body in value]}")
        elif isinstance(value, list) and value and isinstance(value[0], c.Command):
            shown.append(f"{name}=[{', '.join(map(describe_command, value))}]")
        elif isinstance(value, msgspec.Struct):
            shown.append(f"{name}={_describe_config(value)}")
        elif isinstance(value, np.ndarray) or value != default:
            shown.append(f"{name}={value!r:.300}")
    return f"{type(command).__name__}({', '.join(shown)})"


def _describe_config(config: msgspec.Struct) -> str:
    fields = {field.name: field.default for field in msgspec.structs.fields(config)}
    return str({name: getattr(config, name) for name, default in fields.items() if getattr(config, name) != default})


def describe(outcome: Outcome) -> str:
    """One line about a reply, for the trace of a failing seed."""
    if isinstance(outcome, c.Delivery):
        held = [(run.first, run.first + run.count - 1, run.attempts.tolist()[:3]) for run in outcome.runs]
        return f"Delivery({outcome.queue}/{outcome.channel} {held} until {outcome.deadline_ms} {outcome.error or ''})"
    text = repr(outcome)
    return text if len(text) < 300 else f"{text[:300]}…"


class World:
    """One broker over one store, judged by one model."""

    def __init__(self, store: Store, now_ms: int, entropy: bytes, *, in_process: bool = False) -> None:
        self.store = store
        self.entropy = entropy
        self.in_process = in_process
        """Whether the clients die with the broker."""
        self.model = Model(now_ms)
        self.trace: deque[tuple[int, Any, Any]] = deque(maxlen=60)
        self.repeated: list[c.Command] = []
        """Commands of the step that were done before."""
        """What happened last: when, what (a command, a ticket or a remark), and what came of it."""
        self.broker = Broker.open(store, now_ms, entropy)
        self.broker.in_process = in_process
        self.model.identify = self.broker.message_id
        if self.broker.has_changes:
            self.commit()

    def story(self) -> str:
        """The last things that happened, for whoever reads a failure."""
        lines = []
        for now_ms, what, outcome in self.trace:
            did = describe_command(what) if isinstance(what, c.Command) else what
            lines.append(f"  {now_ms} {did} -> {describe(outcome)}")
        return "\n".join(["the last steps:", *lines])

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(self, commands: Sequence[c.Command], now_ms: int) -> Step:
        self.repeated.clear()
        outcomes = [(command, self._handle(command, now_ms)) for command in commands]
        self.broker.finish(now_ms)
        self.model.finish(now_ms)
        self._read_arrivals(now_ms)
        woken = self.broker.take_woken()
        for ticket, delivery in woken:
            self.trace.append((now_ms, f"woken {ticket!r}", delivery))
            self.model.woken(ticket, delivery)
        self.model.check_demand()
        self._look_at_redrives(now_ms)
        self._check_deadline()
        self._check_durability(outcomes, woken)
        return Step(now_ms, outcomes, woken)

    def _handle(self, command: c.Command, now_ms: int) -> Outcome:
        self._let_due_happen(now_ms)
        if isinstance(command, c.Receive) and self._makes_main_without_lease(command):
            self._handle(c.CreateChannel(queue=command.queue, channel=c.MAIN), now_ms)
        if isinstance(command, c.StartRedrive) and self._is_new_channel(command) and self._would_start(command, now_ms):
            self._handle(c.CreateChannel(queue=command.queue, channel=c.MAIN), now_ms)
        may_create = isinstance(command, Making) and self._is_new_channel(command)
        if self.model.done_before(command, now_ms) is not None:
            self.repeated.append(command)
        had_to_commit = self.broker.must_commit
        outcome = self._ask(command, now_ms)
        self.trace.append((now_ms, command, outcome))
        if isinstance(command, c.AckSequences) and not command.durable:
            demand(self.broker.must_commit == had_to_commit, "an ack that nobody is told of asked for a commit")
        if may_create and isinstance(command, Making):
            self._look_at_new_channel(command, outcome, now_ms)
        self.model.accept(command, outcome, now_ms)
        self._read_arrivals(now_ms)
        self._read_sized(now_ms)
        return outcome

    def _makes_main_without_lease(self, command: c.Receive) -> bool:
        """A look at the new channel after the command would come too late: the leases are over by then."""
        if command.channel != c.MAIN or not self._is_new_channel(command):
            return False
        config = self.model.queues[command.queue].config
        return (config.lease_ms if command.lease_ms is None else command.lease_ms) == 0

    def _would_start(self, command: c.StartRedrive, now_ms: int) -> bool:
        """A look at the channel that it makes would come too late as well: some messages are gone by then."""
        dry_run = msgspec.structs.replace(command, check_only=True)
        return not command.check_only and not isinstance(self._ask(dry_run, now_ms), PenstockError)

    def _is_new_channel(self, command: Making) -> bool:
        queue = self.model.queues.get(command.queue)
        return queue is not None and getattr(command, "channel", c.MAIN) not in queue.channels

    def _look_at_new_channel(self, command: Making, outcome: Outcome, now_ms: int) -> None:
        """If the command made a channel, tell the model what it starts with. A refused one must not have made any."""
        channel = getattr(command, "channel", c.MAIN)
        info = self._ask(c.DescribeQueue(name=command.queue), now_ms)
        if isinstance(info, PenstockError) or channel not in info.channels:
            return
        demand(not isinstance(outcome, PenstockError), f"refused with {outcome!r}, and yet a channel was made")
        seen = self.broker.handle(c.Browse(queue=command.queue, channel=channel, limit=ALL), now_ms)
        start = command.start if isinstance(command, c.CreateChannel) else "head"
        offset = command.offset if isinstance(command, c.CreateChannel) else None
        self.model.channel_made(command.queue, channel, start, seen, now_ms, offset)

    def _let_due_happen(self, now_ms: int) -> None:
        """The broker does what is due before a command; a command without effect shows it to the model by itself."""
        due = self.model.next_due()
        if self.model.redrives or (due is not None and due[0] <= max(now_ms, self.model.now_ms)):
            self.broker.handle(c.ListQueues(limit=1), now_ms)
            self.model.due(now_ms)
            self._read_arrivals(now_ms)

    def _ask(self, command: c.Command, now_ms: int) -> Outcome:
        try:
            return self.broker.handle(command, now_ms)
        except PenstockError as error:
            return error

    def _read_arrivals(self, now_ms: int) -> None:
        """Read the log of queues where messages may have arrived that no reply named: dead letters, redriven ones."""
        for name in self.model.missing_targets():
            info = self._ask(c.DescribeQueue(name=name), now_ms)
            if not isinstance(info, PenstockError):
                self.model.appeared(info)
        for name in self.model.expecting():
            offset = self.model.queues[name].next_sequence or 0
            records = self.broker.handle(c.ReadRecords(queue=name, offset=offset, limit=ALL), now_ms)
            self.model.arrived(name, records)
        for name in self.model.discarding():
            self.model.kept(name, self.broker.handle(c.Browse(queue=name, limit=ALL), now_ms))

    def _read_sized(self, now_ms: int) -> None:
        """Read the log of queues that may have become too large."""
        if self.model.sized_queues():
            self._let_due_happen(now_ms)
        for name in self.model.sized_queues():
            records = self.broker.handle(c.ReadRecords(queue=name, offset=0, limit=ALL), now_ms)
            self.model.seen_in_log(name, records, self.broker.handle(c.QueueStats(name=name), now_ms))

    def _look_at_redrives(self, now_ms: int) -> None:
        if self.model.redrives:
            command = c.ListRedrives()
            self.model.accept(command, self.broker.handle(command, now_ms), now_ms)

    def _check_deadline(self) -> None:
        due, told_ms = self.model.next_due(), self.broker.next_deadline()
        oversleeps = due is not None and (told_ms is None or told_ms > due[0])
        demand(not oversleeps, f"something is due, but next_deadline() is {told_ms}: {due}")

    def _check_durability(self, outcomes: list[tuple[c.Command, Outcome]], woken: list[tuple[Any, c.Delivery]]) -> None:
        if self.broker.must_commit:
            return
        for command, outcome in outcomes:
            is_check = getattr(command, "check_only", False)
            if isinstance(outcome, PenstockError) or is_check or not isinstance(command, DURABLE):
                continue
            if any(command is each for each in self.repeated):
                continue  # what it did is committed since the first time
            demand(not self._had_effect(command, outcome), f"{command!r:.300} was answered without a commit")
        deliveries = [outcome for _, outcome in outcomes if isinstance(outcome, c.Delivery)]
        for delivery in deliveries + [delivery for _, delivery in woken]:
            queue = self.model.queues.get(delivery.queue)
            at_most = queue is not None and queue.config.leases_are_durable and delivery.count > 0
            demand(not at_most, f"an at-most delivery left without a commit: {describe(delivery)}")

    def _had_effect(self, command: c.Command, outcome: Outcome) -> bool:
        if isinstance(command, c.AckSequences) and not command.durable:
            return False
        if isinstance(command, c.Ack | c.AckSequences):
            return bool(outcome.count)
        if isinstance(command, c.PurgeQueue | c.PurgeBacklog | c.PurgeChannel | c.AckUpTo):
            return bool(outcome)
        if isinstance(command, c.Send):
            return bool(len(outcome.duplicates) < outcome.count)
        if isinstance(command, c.StageWork):
            return not outcome.refused
        if isinstance(command, c.CommitWork):
            if isinstance(outcome, c.AlreadyDone) or (command.mark is not None and not command.check_only):
                return True
            acks = any(ack.spans for ack in command.acks) and not command.check_only
            return acks or any(len(sent.duplicates) < sent.count for sent in outcome)
        if isinstance(command, c.DeleteQueue | c.DeleteChannel):
            return not (getattr(command, "unless_channels", False) or getattr(command, "unless_subscribed", False))
        return isinstance(command, ALWAYS)

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(self, check: bool = True) -> None:
        changes = self.broker.take_changes()
        self.store.commit(changes)
        self.broker.committed(changes)
        if check:
            self.check_reopened()

    def check_reopened(self) -> None:
        opened = Broker.open(self.store, self.model.now_ms, self.entropy)
        demand_same(opened.snapshot(), self.broker.snapshot(), "reopened", "live")

    def reopen(self, store: Store, model: Model, now_ms: int) -> int:
        """The process starts again, on what the store holds. Returns how many messages the dead had held."""
        self.trace.append((now_ms, "reopened", ""))
        self.store = store
        self.broker = Broker.open(store, now_ms, self.entropy)
        self.broker.in_process = self.in_process
        self.broker.end_bound_sessions()
        self.model = model
        self.model.identify = self.broker.message_id
        self.model.reopened(now_ms)
        taken_back = self.model.everybody_is_gone() if self.in_process else 0
        if taken_back:  # as dead letters, perhaps: the next crash must find the model knowing their numbers
            self.broker.handle(c.ListQueues(limit=1), now_ms)
            self.model.due(now_ms)
            self._read_arrivals(now_ms)
        if self.broker.has_changes:
            self.commit()
        return taken_back

    # -- time ----------------------------------------------------------------------------------------------------------

    def deadlines(self, until_ms: int, most: int = 2_000) -> Iterator[int]:
        """The times at which the shard's timer would call, up to a time: it does not leap over what is due."""
        for _ in range(most):
            due_ms = self.broker.next_deadline()
            if due_ms is None or due_ms > until_ms:
                return
            yield max(due_ms, self.model.now_ms)
        raise Violation(f"next_deadline() asks for {most} steps until {until_ms}, and now for {due_ms}")


def demand_same(left: Any, right: Any, left_name: str, right_name: str) -> None:
    """Two snapshots are equal; if not, say where."""
    if left != right:
        differences = list(_differences(left, right, ""))[:12]
        lines = [f"  {path}: {left_name} {a!r:.200}, {right_name} {b!r:.200}" for path, a, b in differences]
        raise Violation(f"the {left_name} state is not the {right_name} one:\n" + "\n".join(lines))


def _differences(left: Any, right: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(left.keys() | right.keys(), key=repr):
            yield from _differences(left.get(key, "<absent>"), right.get(key, "<absent>"), f"{path}/{key}")
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            yield from _differences(a, b, f"{path}[{index}]")
    elif left != right:
        yield path, left, right
