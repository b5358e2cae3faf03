"""One seed, one life of a broker: workload, clock, faults, and the judgement of each step.

    commands ── World.step ──► outcomes ──► commit ──► released to the clients
                                   │           │
                                   └── faults ─┴── crash before, after or in the middle; commit failed; disk full

A fault ends the broker's life. What the store holds afterwards must be exactly the state of the last commit, or, where
the outcome of a commit is open, exactly that or the state after it. The model goes back to the same moment, and the
clients go on with what they were told: so whatever was acknowledged and is missing shows at the next receive, at the
latest when everything is drained at the end. Beside the model, `Ledger` holds the promises in their simplest form.

The model is pickled at the commits shortly before a fault only; faults are therefore planned ahead.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.errors import PenstockError
from penstock.store.base import Store
from tests.simulation.engines import DiskEngine, Engine, Fault, Kept, MemoryEngine
from tests.simulation.model import Model, Violation, demand
from tests.simulation.shrink import Did
from tests.simulation.whole_workload import WholeWorkload
from tests.simulation.workload import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Workload
from tests.simulation.world import Step, World, demand_same

START_MS = 1_700_000_000_000
PUSHING_SEEDS = 1_000_000
"""From this seed on, clients also subscribe with limits and settle by session. Lower seeds live as they always did."""
REPEATING_SEEDS = 2_000_000
"""From this seed on, a client names its commands and repeats some."""
WHOLE_SEEDS = 3_000_000
"""From this seed on, clients do all that there is: see `whole_workload`."""
RECALLING_SEEDS = 4_000_000
"""From this seed on, there are more crashes, and clients settle right after them what they held before."""
RESTARTING_SEEDS = 5_000_000
"""From this seed on, they may be in the broker's own process and die with it, not be heard of after a restart, and find
that the clock went back, whatever there is."""
STAGING_SEEDS = 6_000_000
"""From this seed on, clients write large units of work before they commit them."""
OPERATING_SEEDS = 8_000_000
"""From this seed on, operators delete dead letters, move messages of any queue anywhere, and see who holds what."""
DRAIN_ROUNDS_MAX = 400


@dataclass(slots=True)
class Ledger:
    """The promises in their simplest form, from the clients' side, over all crashes."""

    acked: set[tuple[int, int, int]] = field(default_factory=set)
    """Queue id, channel id, sequence number of what was acknowledged as done: never again."""
    sent: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Queue id -> name and the highest sequence number that was acknowledged as sent: still known."""
    deliveries: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    """How often a message of an at-most queue left the process."""
    lazily_acked: set[tuple[int, int, int]] = field(default_factory=set)
    """What was acknowledged since the last commit without waiting for one: done from the next one on."""
    marks: dict[str, int] = field(default_factory=dict)
    """The highest number of marked work that was acknowledged as done: never forgotten."""
    last: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """The attempt of a message's last delivery, where it is known who got that, over all crashes."""
    settled: set[tuple[int, int, int]] = field(default_factory=set)
    """What was acked by whoever got it last, whatever the answer was: SQS answers no differently. Never again."""

    def delivered(self, delivery: c.Delivery, at_most: int) -> int:
        """Check what a client gets, and say how many messages it had got before (after a crash, that is allowed)."""
        again = 0
        for run in delivery.runs:
            for sequence in range(run.first, run.first + run.count):
                key = (delivery.queue_id, delivery.channel_id, sequence)
                demand(key not in self.acked, f"{delivery.queue}: {sequence} was acked, and came back")
                demand(key not in self.settled, f"{delivery.queue}: who got {sequence} last acked it, and it came back")
                self.deliveries[key] += 1
                again += self.deliveries[key] > 1
                if at_most:
                    times = self.deliveries[key]
                    demand(times <= at_most, f"{delivery.queue}: {sequence} left {times} times, not {at_most} at most")
        return again

    def told(self, delivery: c.Delivery) -> None:
        """A client has got these."""
        for run in delivery.runs:
            for span in run.spans():
                for sequence in range(span.first, span.last + 1):
                    self.last[delivery.queue_id, delivery.channel_id, sequence] = span.attempt

    def untold(self, delivery: c.Delivery) -> None:
        """These left, and nobody knows whether anybody got them: whoever had them before may not be the last."""
        for run in delivery.runs:
            for sequence in range(run.first, run.first + run.count):
                self.last.pop((delivery.queue_id, delivery.channel_id, sequence), None)

    def acks(self, place: tuple[int, int], spans: Sequence[c.Span]) -> None:
        """A client was answered that it has acked these."""
        for span in spans:
            keys = ((*place, sequence) for sequence in range(span.first, span.last + 1))
            self.settled.update(key for key in keys if self.last.get(key) == span.attempt)

    def given_back(self, place: tuple[int, int], spans: Sequence[c.Span]) -> None:
        """Nobody has got these, says whoever was to hand them on."""
        for span in spans:
            for sequence in range(span.first, span.last + 1):
                self.last.pop((*place, sequence), None)

    def sent_to(self, queue: str, sent: c.Sent) -> None:
        last = max(sent.sequence(index) for index in range(sent.count))
        before = self.sent.get(sent.queue_id, (queue, -1))[1]
        self.sent[sent.queue_id] = (queue, max(before, last))

    def committed(self) -> None:
        """What was acknowledged lazily is done for good."""
        self.acked |= self.lazily_acked
        self.lazily_acked.clear()

    def marked(self, mark: tuple[str, int]) -> None:
        name, number = mark
        before = self.marks.get(name, -1)
        demand(number > before, f"work {number} of {name} was done, and {before} was done before it")
        self.marks[name] = number

    def check_kept(self, model: Model) -> None:
        """Nothing that was acknowledged as sent, or as done, is unknown after a crash."""
        for mark, number in self.marks.items():
            last = model.marks.get(mark, -1)
            demand(last >= number, f"work {number} of {mark} was acknowledged, and after a crash the mark is {last}")
        for queue_id, (name, last) in self.sent.items():
            queue = model.queues.get(name)
            if queue is not None and queue.queue_id == queue_id:
                known = queue.next_sequence is not None and queue.next_sequence > last
                demand(known, f"{name}: {last} was acknowledged, and is unknown after a crash")


@dataclass(slots=True)
class Saved:
    """A moment to which a crash may go back."""

    model: bytes
    snapshot: dict[str, Any]
    now_ms: int


class Simulator:
    """Everything from one integer."""

    def __init__(self, seed: int, engine: Engine | None = None, steps: int | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.engine = engine or self._draw_engine()
        self.now_ms = START_MS
        self.workload = self._draw_workload()
        self.ledger = Ledger()
        self.counts: Counter[str] = Counter()
        self.steps = steps if steps is not None else self.rng.randint(10, 45)
        self.checks_every = self.rng.choice([1, 4, 12])
        self.restarts = seed >= RESTARTING_SEEDS
        in_process = self.restarts and self.rng.random() < 0.5
        self.world = World(self.engine.open(), self.now_ms, self.rng.randbytes(64), in_process=in_process)
        self.places: dict[tuple[str, str], tuple[int, int]] = {}
        self.saved = self._save()
        self.script: list[Did] = []
        self.fault_in = 0
        self.saving_in = 0
        self.fault = Fault.BEFORE
        self._plan_fault()

    def run(self) -> Counter[str]:
        try:
            self._step(self.workload.first_commands())
            for _ in range(self.steps):
                self._advance(self._draw_time())
                self._step(self.workload.commands(self._draw_count(), self.now_ms, is_last=self.fault_in == 0))
            self._drain()
        except Violation as violation:
            raise Violation(f"seed {self.seed}: {violation}\n{self.world.story()}") from violation
        except Exception as error:
            raise Violation(f"seed {self.seed}: {type(error).__name__}: {error}\n{self.world.story()}") from error
        self.counts["seeds"] += 1
        return self.counts

    def _draw_engine(self) -> Engine:
        return DiskEngine(self.rng) if self.rng.random() < 0.5 else MemoryEngine()

    def _draw_workload(self) -> Workload:
        if self.seed >= OPERATING_SEEDS:
            return WholeWorkload(self.rng, pushes=True, operates=True)
        if self.seed >= STAGING_SEEDS:
            return Workload(self.rng, stages=True)
        if self.seed >= WHOLE_SEEDS:
            recalls = self.seed >= RECALLING_SEEDS
            return WholeWorkload(self.rng, pushes=True, repeats=self.rng.random() < 0.25, recalls=recalls)
        is_pushing = PUSHING_SEEDS <= self.seed < REPEATING_SEEDS
        return Workload(self.rng, pushes=is_pushing, repeats=self.seed >= REPEATING_SEEDS)

    # -- what is drawn -------------------------------------------------------------------------------------------------

    def _draw_count(self) -> int:
        """How many commands gather in one step: many, when the disk is slow."""
        if self.rng.random() < 0.1:
            self.counts["slow commits"] += 1
            later_ms = self.now_ms + self.rng.randint(100, 3_000)
            self.now_ms = self.now_ms if self.world.model.is_ambiguous(later_ms) else later_ms
            return self.rng.randint(10, 30)
        return self.rng.choice([1, 1, 1, 2, 3, 6])

    def _draw_time(self) -> int:
        draw = self.rng.random()
        if draw < 0.02:
            self.counts["clock went back"] += 1
            return self.now_ms - self.rng.choice([1, 5_000, 2 * HOUR_MS])
        if draw > 0.97:
            self.counts["clock jumped"] += 1
        spans = [(0.65, 20), (0.84, 5 * SECOND_MS), (0.93, 2 * MINUTE_MS), (0.97, 10 * MINUTE_MS), (0.99, 5 * HOUR_MS)]
        span = next((span for limit, span in spans if draw < limit), 6 * DAY_MS)
        return self.now_ms + self.rng.randint(0, span)

    def _plan_fault(self) -> None:
        """Steps until the next fault, and until the model is to be saved because of it."""
        often = RECALLING_SEEDS <= self.seed < STAGING_SEEDS
        self.fault_in = self.rng.choice([1, 2, 3, 5, 8] if often else [1, 2, 5, 12, 30])
        self.saving_in = max(0, self.fault_in - self.rng.randint(1, 4))
        self.fault = self.rng.choice(list(Fault))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _advance(self, until_ms: int) -> None:
        """Let time pass: mostly as the shard's timer does, from deadline to deadline, sometimes in one leap."""
        leaps = self.rng.random() < 0.3 and not self.world.model.is_ambiguous(until_ms)
        if not leaps:
            for due_ms in self.world.deadlines(until_ms):
                self.now_ms = max(self.now_ms, due_ms)
                self._step([])
        self.now_ms = until_ms
        if leaps or self.rng.random() < 0.5:
            self._step([])

    def _step(self, commands: Sequence[c.Command]) -> None:
        self.script.append(Did("step", self.now_ms, tuple(commands)))
        step = self.world.step(commands, self.now_ms)
        self.counts["steps"] += 1
        self.counts["commands"] += len(commands)
        self.counts["forgotten deliveries settled"] += self.world.model.recalled
        self.world.model.recalled = 0
        self.counts["dead letters deleted"] += self.world.model.deleted
        self.world.model.deleted = 0
        self.fault_in -= 1
        self.saving_in -= 1
        if self.fault_in < 0:
            self._suffer(step)
            return
        if self.world.broker.must_commit or self.saving_in == 0 or self._draws_lazy_commit():
            self._commit()
        self._release(step)

    def _draws_lazy_commit(self) -> bool:
        return self.world.broker.has_changes and self.rng.random() < 0.5

    def _commit(self) -> None:
        self.counts["commits"] += 1
        self.script.append(Did("commit", self.now_ms))
        self.world.commit(check=self.counts["commits"] % self.checks_every == 0)
        self.ledger.committed()
        self.engine.rest(self.rng)
        if self.saving_in <= 0:
            self.saved = self._save()

    def _save(self) -> Saved:
        snapshot = copy.deepcopy(self.world.broker.snapshot())
        return Saved(pickle.dumps(self.world.model), snapshot, self.world.model.now_ms)

    def _release(self, step: Step) -> None:
        """The replies reach the clients."""
        for command, outcome in step.outcomes:
            self._learn(command, outcome)
            self.workload.observe(command, outcome)
        for ticket, delivery in step.woken:
            self._count_delivery(delivery)
            self.workload.hold(delivery, self.workload.subscribed.get(ticket, 0))

    def _learn(self, command: c.Command, outcome: Any) -> None:
        if isinstance(outcome, PenstockError):
            self.counts["refusals"] += 1
        elif isinstance(outcome, c.Delivery):
            self._count_delivery(outcome)
        elif any(command is each for each in self.world.repeated):
            self.counts["commands repeated"] += 1  # learnt the first time; since then the queue may be another one
        elif isinstance(command, c.StartRedrive):
            self.counts["redrives elsewhere"] += command.target is not None and not command.check_only
        elif isinstance(command, c.Send):
            self.ledger.sent_to(command.queue, outcome)
            self.counts["messages sent"] += outcome.count
        elif isinstance(command, c.CommitWork):
            if command.check_only or isinstance(outcome, c.AlreadyDone):
                self.counts["work done before"] += not command.check_only
                return
            if command.mark is not None:
                self.ledger.marked(command.mark)
                self.counts["marked work"] += 1
                self.counts["stages committed"] += bool(command.stage)
            for send, sent in zip(command.sends, outcome, strict=True):
                self.ledger.sent_to(send.queue, sent)
            self._count_acks(command.acks, set())
        elif isinstance(command, c.Ack):
            self._count_acks([command], _refused(outcome))
            if not (command.in_time and outcome.refused):
                self.ledger.acks(self.places.get((command.queue, command.channel), (0, 0)), command.spans)
        elif isinstance(command, c.GiveBack):
            self.ledger.given_back(self.places.get((command.queue, command.channel), (0, 0)), command.spans)
        elif isinstance(command, c.AckSequences):
            self._count_sequences(command, outcome)

    def _count_acks(self, acks: Sequence[c.Ack], refused: set[int]) -> None:
        for ack in acks:
            place = self.places.get((ack.queue, ack.channel))
            if place is not None:
                for span in ack.spans:
                    for sequence in range(span.first, span.last + 1):
                        if sequence not in refused:
                            self.ledger.acked.add((*place, sequence))
                            self.counts["messages acked"] += 1

    def _count_sequences(self, command: c.AckSequences, outcome: c.Settled) -> None:
        place = self.places.get((command.queue, command.channel))
        if place is not None:
            acked = self.ledger.acked if command.durable else self.ledger.lazily_acked
            acked.update((*place, sequence) for sequence in set(command.sequences.tolist()) - _refused(outcome))
            self.counts["messages acked" if command.durable else "messages acked lazily"] += outcome.count

    def _count_delivery(self, delivery: c.Delivery) -> None:
        queue = self.world.model.queues.get(delivery.queue)
        at_most = 0
        if queue is not None and queue.queue_id == delivery.queue_id and queue.config.leases_are_durable:
            at_most = queue.config.consume_times if queue.config.policy == "consume_times" else 1
        self.counts["messages delivered"] += delivery.count
        self.counts["messages delivered again"] += self.ledger.delivered(delivery, at_most)
        self.places[(delivery.queue, delivery.channel)] = (delivery.queue_id, delivery.channel_id)
        self.ledger.told(delivery)

    # -- faults --------------------------------------------------------------------------------------------------------

    def _suffer(self, step: Step) -> None:
        """The broker's life ends with this step; another one begins on what is kept."""
        broker = self.world.broker
        self.counts[f"fault: {self.fault.value}"] += 1
        self.world.trace.append((self.now_ms, self.fault.value, ""))
        if not broker.must_commit and self.rng.random() < 0.5:
            self._release(step)
        else:
            deliveries = [outcome for _, outcome in step.outcomes if isinstance(outcome, c.Delivery)]
            for delivery in deliveries + [delivery for _, delivery in step.woken]:
                self.ledger.untold(delivery)
        after = broker.snapshot()
        kept = self.engine.suffer(self.fault, broker.take_changes(), self.rng)
        store = self.engine.open()
        is_kept = self._is_kept(kept, store, after)
        if is_kept:
            self.ledger.committed()
        self.ledger.lazily_acked.clear()
        model = self.world.model if is_kept else pickle.loads(self.saved.model)
        self.now_ms = self._draw_restart(model)
        self.script += [Did("commit", self.now_ms)] if is_kept else []
        self.script.append(Did("crash", self.now_ms))
        self.counts["leases of the dead"] += self.world.reopen(store, model, self.now_ms)
        self.ledger.check_kept(model)
        self.workload.crashed()
        self.saved = self._save()
        self._plan_fault()
        living = [number for number, session in model.sessions.items() if session.ttl_ms]
        alive = [number for number in living if not self.restarts or self.rng.random() < 0.5]
        self._step([c.Heartbeat(session=number) for number in alive])

    def _draw_restart(self, model: Model) -> int:
        """The clock after a restart: later, or earlier if that is a case with an answer."""
        if self.rng.random() < 0.3 and (not model.retains() if self.restarts else model.can_go_back()):
            self.counts["clock went back over a restart"] += 1
            self.workload.times_rise = False
            return model.now_ms - self.rng.choice([1, MINUTE_MS, HOUR_MS])
        later_ms = max(model.now_ms, self.now_ms) + self.rng.choice([0, 10, 40 * SECOND_MS, HOUR_MS])
        return model.now_ms if model.is_ambiguous(later_ms) else later_ms

    def _is_kept(self, kept: Kept, store: Store, after: dict[str, Any]) -> bool:
        """Whether the interrupted commit is there; what is there must be it, or the one before, whole."""
        if kept is not Kept.BEFORE:
            opened = self._opened(store, self.world.model.now_ms)
            if kept is Kept.AFTER:
                demand_same(opened, after, "reopened", "committed")
            if opened == after:
                return True
        demand_same(self._opened(store, self.saved.now_ms), self.saved.snapshot, "reopened", "last committed")
        return False

    def _opened(self, store: Store, now_ms: int) -> dict[str, Any]:
        return Broker.open(store, now_ms, self.world.entropy).snapshot()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Receive and acknowledge everything that there is; then nothing may be left anywhere."""
        self.fault_in = self.saving_in = 10**9
        self._step(self._last_wishes())
        for _ in range(DRAIN_ROUNDS_MAX):
            receives = self._receives()
            if receives:
                self._step(receives)
                held, self.workload.held = self.workload.held, []
                self._step([c.Ack(queue=one.queue, channel=one.channel, spans=one.spans) for one in held])
            elif self._is_empty():
                break
            else:
                self._wait_for_more()
        demand(self._is_empty(), f"not drained after {DRAIN_ROUNDS_MAX} rounds")
        self._check_nothing_is_left()

    def _last_wishes(self) -> list[c.Command]:
        """Nothing stands in the way of messages any more."""
        model = self.world.model
        self.workload.held.clear()
        commands: list[c.Command] = [c.CancelWait(ticket=waiter.ticket) for waiter in model.waiters]
        commands += [c.EndSession(session=number) for number in model.sessions]
        for name, queue in model.queues.items():
            commands.append(c.ChangeQueue(name=name, changes={"in_flight_max": 120_000}))
            if queue.held_from is not None:
                commands.append(c.PauseQueue(queue=name, paused=False))
            commands += [c.PauseChannel(queue=name, channel=channel, paused=False) for channel in queue.channels]
            commands += [c.DeleteConsumer(queue=name, consumer=consumer) for consumer in queue.consumers]
            if not queue.channels:
                commands.append(c.CreateChannel(queue=name, channel=c.MAIN, start="head"))
        return commands

    def _receives(self) -> list[c.Command]:
        return [
            c.Receive(queue=name, channel=channel.name, limit=10_000, wait_ms=0, lease_ms=MINUTE_MS)
            for name, queue in self.world.model.queues.items()
            for channel in queue.channels.values()
            if self.world.model.selectable(queue, channel, 10_000)
        ]

    def _is_empty(self) -> bool:
        model = self.world.model
        return not model.redrives and not any(
            channel.copies for queue in model.queues.values() for channel in queue.channels.values()
        )

    def _wait_for_more(self) -> None:
        due_ms = self.world.broker.next_deadline()
        demand(due_ms is not None, "messages are not done, but nothing will ever happen to them")
        self.now_ms = max(self.now_ms, due_ms or 0)
        self._step([])

    def _check_nothing_is_left(self) -> None:
        """What was sent while a queue had no channel waits for one that starts at the head: that may be purged."""
        open_ended = [name for name, queue in self.world.model.queues.items() if queue.was_open_ended]
        self._step([c.PurgeQueue(name=name) for name in open_ended])
        stages = list(self.world.model.stages)
        self._step([c.StageWork(name="bulk", sends=[], stage=stage, drop=True) for stage in stages])
        for name in list(self.world.model.queues):
            step = self.world.step([c.QueueStats(name=name)], self.now_ms)
            stats = step.outcomes[0][1]
            demand(stats.messages == 0 and stats.bytes == 0, f"{name} is drained, and holds {stats}")
        if self.world.broker.has_changes:
            self.world.commit()
        self.world.check_reopened()
        left = self.world.store.list_chunks(b"", b"", 10)
        demand(not left, f"everything is done, but the store holds the chunks {left}")
        segments = self.world.broker.snapshot()["segments"]
        demand(not segments, f"everything is done, but there are the segments {segments}")


def _refused(settled: c.Settled) -> set[int]:
    return {sequence for refusal in settled.refused for sequence in range(refusal.first, refusal.last + 1)}


def run_seed(seed: int) -> Counter[str]:
    """One seed from start to end; raises `Violation` with the story of a failure."""
    return Simulator(seed).run()
