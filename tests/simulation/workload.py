"""What clients do, drawn from one random generator: the same seed, the same clients.

A `Workload` invents a few queues of different kinds, then commands for them. It knows only what clients know: the
replies that were released to it. After a crash it goes on with what it held before, as clients do.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core import commands as c
from penstock.core.delivery.states import State
from penstock.core.errors import PenstockError
from penstock.core.queues.config import DEFAULT_BACKOFF, Backoff, BackoffShape, QueueConfig, dead_letter_name

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
NAMED = (c.Send, c.Ack, c.Release, c.CommitWork, c.PurgeQueue, c.AckConsumer, c.PauseChannel)
"""Commands that a client names, when it does."""

Maker = Callable[[int], c.Command | None]
"""Draws a command at a time."""


@dataclass(slots=True)
class Held:
    """Messages that a client holds."""

    queue: str
    queue_id: int
    channel: str
    channel_id: int
    spans: list[c.Span]
    session: int


@dataclass(slots=True)
class Plan:
    """A queue that the workload plays with."""

    name: str
    config: QueueConfig
    channels: tuple[str, ...]
    groups: int
    dedup: bool


class Workload:
    """Commands for a step at a time."""

    def __init__(
        self,
        rng: random.Random,
        *,
        pushes: bool = False,
        repeats: bool = False,
        recalls: bool = False,
        stages: bool = False,
    ) -> None:
        """With `pushes`, clients also subscribe with a limit on what they hold, and settle by session.

        With `repeats`, a client names its commands, and sends some of them again. With `recalls`, clients settle after
        a crash what they held before it, as soon as they can. With `stages`, clients write large units of work before
        they commit them.
        """
        self.rng = rng
        self.pushes = pushes
        self.stages: list[int] | None = [] if stages else None
        """Stages that may be committed, or be gone."""
        self.marked = 0
        self.repeats = repeats
        self.recalls = recalls
        self.recalling = 0
        """In so many steps more, clients do little else."""
        self.named: list[c.Command] = []
        """What the client may send again: commands that it does not say it got an answer to."""
        self.next_name = 1
        self.plans = [self._plan(index) for index in range(rng.randint(1, 4))]
        self.held: list[Held] = []
        self.sessions: list[int] = []
        self.subscriptions: dict[int, str] = {}
        self.subscribed: dict[int, int] = {}
        """Ticket -> session, of subscriptions that limit what is in flight."""
        self.tickets: list[int] = []
        self.counter = 0
        self.times_rise = True
        """Whether later messages were sent later: not after the clock went back."""
        self.is_large = rng.random() < 0.15
        self.makers = self._weigh()

    # -- what there is -------------------------------------------------------------------------------------------------

    def _plan(self, index: int) -> Plan:
        rng = self.rng
        kind = rng.choice(["plain", "plain", "fair", "fifo", "fifo", "policy", "topic", "empty"])
        settings: dict[str, Any] = {
            "lease_ms": rng.choice([0, 500, 4_900, 29_300, 29_300, 3_500_000]),
            "max_receives": rng.choice([0, 1, 2, 3, 3, 10]),
            "backoff": self._backoff(),
            "retention_ms": rng.choice([None, MINUTE_MS, HOUR_MS, 4 * DAY_MS, 4 * DAY_MS]),
            "delay_ms": rng.choice([0, 0, 0, 0, 700]),
            "receive_wait_ms": rng.choice([0, 0, 0, 2_000]),
            "in_flight_max": rng.choice([120_000, 120_000, 120_000, 7]),
        }
        channels: tuple[str, ...] = (c.MAIN,)
        name = f"q{index}"
        if kind == "fifo":
            name += rng.choice(["", ".fifo"])
            settings |= {"kind": "fifo", "content_dedup": rng.random() < 0.5}
            settings["dedup_scope"] = rng.choice(["queue", "group"])
        if kind == "policy":
            settings |= {"policy": rng.choice(["consume_once", "consume_times"]), "consume_times": rng.randint(1, 3)}
        if kind == "topic":
            channels = ("one", "two", c.MAIN)[: rng.randint(1, 3)]
        if kind == "empty":
            channels = ()
        if rng.random() < 0.15:
            settings["dead_letter"] = "graveyard.fifo" if kind == "fifo" else "graveyard"
        groups = rng.choice([1, 2, 5]) if kind in ("fair", "fifo") else 0
        return Plan(name, QueueConfig(**settings), channels, groups, rng.random() < 0.2)

    def _backoff(self) -> Backoff:
        shapes: list[BackoffShape | None] = ["none", None, "fixed", "linear", "exponential"]
        shape, base_ms, seed = self.rng.choice(shapes), self.rng.choice([100, 2_000]), self.rng.randint(0, 9)
        return DEFAULT_BACKOFF if shape is None else Backoff(shape, base_ms=base_ms, ceiling_ms=10_000, seed=seed)

    def _weights(self) -> dict[Maker, float]:
        weights: dict[Maker, float] = {
            self._send: 26,
            self._receive: 22,
            self._ack: 18,
            self._release: 8,
            self._extend: 4,
            self._ack_sequences: 2,
            self._work: 5,
            self._wait: 5,
            self._cancel: 1,
            self._subscribe: 1.5,
            self._credit: 2,
            self._open_session: 2,
            self._heartbeat: 2,
            self._end_session: 1,
            self._create_channel: 1,
            self._delete_channel: 0.4,
            self._pause: 1.5,
            self._purge_channel: 0.3,
            self._read: 2,
            self._ack_consumer: 1.5,
            self._delete_consumer: 0.4,
            self._browse: 2,
            self._stats: 4,
            self._describe: 0.5,
            self._purge: 0.4,
            self._delete: 0.4,
            self._create: 0.6,
            self._change: 1,
            self._redrive: 1.5,
            self._nonsense: 1,
        }
        if self.pushes:
            weights |= {
                self._subscribe_in_flight: 4,
                self._release_sequences: 4,
                self._extend_sequences: 3,
                self._ack_sequences: 8,
            }
        if self.stages is not None:
            weights |= {self._stage: 15, self._publish: 15}
        return weights

    def _weigh(self) -> tuple[list[Maker], list[float]]:
        tilt = {maker: weight * self.rng.choice([0.3, 1, 1, 2]) for maker, weight in self._weights().items()}
        return list(tilt), list(tilt.values())

    def first_commands(self) -> list[c.Command]:
        """The queues are made."""
        return [c.CreateQueue(name=plan.name, config=plan.config, channels=plan.channels) for plan in self.plans]

    def commands(self, count: int, now_ms: int, *, is_last: bool = False) -> list[c.Command]:
        """What arrives within one step; `is_last` before a crash."""
        makers, weights = self._recalling() if self.recalling else self.makers
        if self.recalls and is_last and self.rng.random() < 0.7:
            makers, weights = [self._receive, self._release], [5.0, 1.0]
        drawn = (maker(now_ms) for maker in self.rng.choices(makers, weights, k=count))
        commands = [command for command in drawn if command is not None]
        return self._with_repeats(commands) if self.repeats else commands

    def _with_repeats(self, commands: list[c.Command]) -> list[c.Command]:
        sent: list[c.Command] = []
        for command in commands:
            if isinstance(command, NAMED) and self.rng.random() < 0.7:
                self._name(command)
            sent.append(command)
            while self.named and self.rng.random() < 0.2:
                sent.append(copy.deepcopy(self.rng.choice(self.named)))
        return sent

    def _name(self, command: c.Command) -> None:
        if self.rng.random() < 0.2:
            self.named = self.named[self.rng.randint(0, len(self.named)) :]
        first = self.named[0].once if self.named else None
        answered = self.next_name if first is None else first.number
        command.once = c.Once("client", self.next_name, answered)
        self.next_name += 1
        self.named.append(copy.deepcopy(command))

    # -- what clients learn --------------------------------------------------------------------------------------------

    def observe(self, command: c.Command, outcome: Any) -> None:
        """A reply was released."""
        if isinstance(outcome, PenstockError):
            return
        if isinstance(outcome, c.Staged) and not outcome.refused and self.stages is not None:
            self.stages = [*self.stages[-3:], outcome.stage]
        if isinstance(outcome, c.Delivery):
            self.hold(outcome, command.session if isinstance(command, c.Receive) else 0)
        elif isinstance(command, c.OpenSession):
            self.sessions.append(outcome)
        elif isinstance(command, c.EndSession):
            self.sessions = [session for session in self.sessions if session != command.session]
        elif isinstance(command, c.Subscribe):
            self.subscriptions[outcome.subscription] = command.ticket
        elif isinstance(command, c.DeleteQueue):
            self.held = [held for held in self.held if held.queue != command.name]
        elif isinstance(command, c.DeleteChannel):
            self.held = [h for h in self.held if (h.queue, h.channel) != (command.queue, command.channel)]

    def hold(self, delivery: c.Delivery, session: int = 0) -> None:
        """Messages came."""
        if delivery.count:
            spans = [span for run in delivery.runs for span in run.spans()]
            self.held.append(
                Held(delivery.queue, delivery.queue_id, delivery.channel, delivery.channel_id, spans, session)
            )

    def crashed(self) -> None:
        """The server is another one: nobody waits there any more."""
        self.tickets.clear()
        self.subscriptions.clear()
        self.recalling = self.rng.randint(1, 5) if self.recalls else 0

    def _recalling(self) -> tuple[list[Maker], list[float]]:
        self.recalling -= 1
        weights: dict[Maker, float] = {
            self._ack: 5,
            self._extend: 2,
            self._release: 2,
            self._work: 1,
            self._receive: 1.5,
        }
        return list(weights), list(weights.values())

    # -- sending -------------------------------------------------------------------------------------------------------

    def _body(self) -> bytes:
        self.counter += 1
        return b"%d:" % self.counter + b"x" * self.rng.choice([0, 0, 10, 300])

    def _size(self) -> int:
        if self.is_large and self.rng.random() < 0.1:
            return self.rng.randint(100, 700)
        return self.rng.choice([1, 1, 1, 2, 3, 10, 30])

    def _send(self, now_ms: int) -> c.Command | None:
        plan = self.rng.choice(self.plans)
        return self._send_to(plan, self._size(), now_ms)

    def _send_to(self, plan: Plan, count: int, now_ms: int) -> c.Send:
        rng = self.rng
        is_fifo = plan.config.is_fifo
        send = c.Send(queue=plan.name, bodies=[self._body() for _ in range(count)], create=not is_fifo)
        send.channels = plan.channels
        if plan.groups and (is_fifo or rng.random() < 0.9):
            send.groups = [f"g{rng.randrange(plan.groups)}" for _ in range(count)]
        if (is_fifo and not plan.config.content_dedup) or plan.dedup:
            pool = rng.choice([6, 10**9])
            send.dedup_ids = [f"d{rng.randrange(pool)}" for _ in range(count)]
        elif is_fifo and rng.random() < 0.3:
            send.bodies = [b"again %d" % rng.randrange(4) for _ in range(count)]
        if rng.random() < 0.2:
            send.attributes = [rng.choice([None, b"\x81\xa1k\xa1v"]) for _ in range(count)]
        if not is_fifo and rng.random() < 0.25:
            send.priority = rng.choice([0, 1, 5, 9])
        if is_fifo and plan.config.retention_ms is not None:
            return send  # a chunk goes as one, and a FIFO chunk may hold messages with different delays
        if rng.random() < 0.15:
            send.delay_ms = rng.choice([0, 1, 800, 20_000, 2 * HOUR_MS])
        elif rng.random() < 0.05:
            send.due_ms = now_ms + rng.choice([-5, 1, 5_000, 400 * DAY_MS])
        return send

    def _nonsense(self, now_ms: int) -> c.Command | None:
        plan = self.rng.choice(self.plans)
        send = self._send_to(plan, 2, now_ms)
        fault = self.rng.randrange(6)
        if fault == 0:
            send.priority = 10
        elif fault == 1:
            send.attributes = [None]
        elif fault == 2:
            send.delay_ms = -1
        elif fault == 3:
            return c.Receive(queue="nowhere")
        elif fault == 4:
            return c.Receive(queue=plan.name, channel="nobody")
        else:
            return c.Receive(queue=plan.name, session=10**6)
        return send

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _place(self) -> tuple[str, str]:
        plan = self.rng.choice(self.plans)
        name = plan.name
        if self.rng.random() < 0.12:
            return plan.config.dead_letter or dead_letter_name(name), c.MAIN
        return name, self.rng.choice(plan.channels or (c.MAIN,))

    def _session(self) -> int:
        return self.rng.choice(self.sessions) if self.sessions and self.rng.random() < 0.4 else 0

    def _receive(self, now_ms: int) -> c.Command | None:
        queue, channel = self._place()
        receive = c.Receive(queue=queue, channel=channel, limit=self._limit(), wait_ms=0, session=self._session())
        if self.rng.random() < 0.25:
            receive.lease_ms = self.rng.choice([0, 50, 3_000, 12 * HOUR_MS])
        if self.rng.random() < 0.15:
            receive.attempt_id = f"a{self.rng.randrange(3)}"
        return receive

    def _limit(self) -> int:
        return self.rng.choice([1, 1, 2, 10, 10, 1_000])

    def _wait(self, now_ms: int) -> c.Command | None:
        queue, channel = self._place()
        wait_ms = self.rng.choice([None, 10, 500, 20_000])
        self.counter += 1
        self.tickets.append(self.counter)
        lease_ms = self.rng.choice([730, 19_700])
        receive = c.Receive(queue=queue, channel=channel, limit=self._limit(), wait_ms=wait_ms, ticket=self.counter)
        receive.lease_ms = lease_ms
        return receive

    def _cancel(self, now_ms: int) -> c.Command | None:
        return c.CancelWait(ticket=self.rng.choice(self.tickets)) if self.tickets else None

    def _subscribe(self, now_ms: int) -> c.Command | None:
        queue, channel = self._place()
        self.counter += 1
        lease_ms = self.rng.choice([1_100, 29_100])
        credit = self.rng.choice([0, 1, 5])
        return c.Subscribe(queue=queue, channel=channel, credit=credit, lease_ms=lease_ms, ticket=self.counter)

    def _subscribe_in_flight(self, now_ms: int) -> c.Command | None:
        if not self.sessions:
            return None
        queue, channel = self._place()
        self.counter += 1
        session = self.rng.choice(self.sessions)
        self.subscribed[self.counter] = session
        return c.Subscribe(
            queue=queue,
            channel=channel,
            credit=self.rng.choice([0, 1, 5, 20]),
            lease_ms=self.rng.choice([1_100, 29_100]),
            session=session,
            ticket=self.counter,
            in_flight=True,
        )

    def _credit(self, now_ms: int) -> c.Command | None:
        if not self.subscriptions:
            return None
        number = self.rng.choice(list(self.subscriptions))
        kinds: list[type[c.SetCredit] | type[c.AddCredit]] = [c.SetCredit, c.AddCredit]
        kind = self.rng.choice(kinds)
        return kind(subscription=number, credit=self.rng.choice([0, 1, 10]))

    # -- settling ------------------------------------------------------------------------------------------------------

    def _take_held(self) -> Held | None:
        """Something to settle: mostly given up by the client, sometimes kept, to be settled once more later."""
        if not self.held:
            return None
        index = self.rng.randrange(len(self.held))
        held = self.held[index]
        if self.rng.random() < 0.85:
            self.held[index] = self.held[-1]
            self.held.pop()
        if self.rng.random() < 0.25:
            held = self._part_of(held)
        return held

    def _part_of(self, held: Held) -> Held:
        """Some of the messages, so that runs fall apart."""
        spans = []
        for span in held.spans:
            first = self.rng.randint(span.first, span.last)
            spans.append(c.Span(first, self.rng.randint(first, span.last), span.attempt))
        return Held(held.queue, held.queue_id, held.channel, held.channel_id, spans, held.session)

    def _ack(self, now_ms: int) -> c.Command | None:
        held = self._take_held()
        if held is None:
            return None
        in_time = held.spans[0].first % 3 == 0
        return c.Ack(queue=held.queue, channel=held.channel, spans=held.spans, in_time=in_time)

    def _ack_sequences(self, now_ms: int) -> c.Command | None:
        held = self._take_held()
        if held is None:
            return None
        sequences = np.array([s for span in held.spans for s in range(span.first, span.last + 1)], dtype=np.int64)
        self.rng.shuffle(sequences)  # type: ignore[arg-type]
        return c.AckSequences(queue=held.queue, channel=held.channel, sequences=sequences, session=held.session)

    def _some_sequences(self) -> tuple[Held, Any] | None:
        held = self._take_held()
        if held is None:
            return None
        sequences = [s for span in held.spans for s in range(span.first, span.last + 1)]
        some = self.rng.sample(sequences, self.rng.randint(1, len(sequences)))
        return held, np.array(some, dtype=np.int64)

    def _release_sequences(self, now_ms: int) -> c.Command | None:
        found = self._some_sequences()
        if found is None:
            return None
        held, sequences = found
        return c.ReleaseSequences(
            queue=held.queue,
            channel=held.channel,
            sequences=sequences,
            session=held.session,
            delay_ms=self.rng.choice([None, 0, 0, 300, 60_000]),
            error=self.rng.choice(["", "boom"]),
        )

    def _extend_sequences(self, now_ms: int) -> c.Command | None:
        found = self._some_sequences()
        if found is None:
            return None
        held, sequences = found
        self.held.append(held)
        return c.ExtendSequences(
            queue=held.queue,
            channel=held.channel,
            sequences=sequences,
            session=held.session,
            lease_ms=self.rng.choice([100, 9_700, 3_400_000]),
            held_ms_max=self.rng.choice([None, 500, 20_000]),
        )

    def _release(self, now_ms: int) -> c.Command | None:
        held = self._take_held()
        if held is None:
            return None
        delay_ms = self.rng.choice([None, None, None, 0, 300, 60_000])
        error = self.rng.choice(["", "boom", "timeout"])
        return c.Release(queue=held.queue, channel=held.channel, spans=held.spans, delay_ms=delay_ms, error=error)

    def _extend(self, now_ms: int) -> c.Command | None:
        held = self._take_held()
        if held is None:
            return None
        self.held.append(held)
        lease_ms = self.rng.choice([0, 100, 9_700, 3_400_000, 12 * HOUR_MS])
        late = held.spans[0].first % 2 == 0
        return c.Extend(queue=held.queue, channel=held.channel, spans=held.spans, lease_ms=lease_ms, late=late)

    def _work(self, now_ms: int) -> c.Command | None:
        held = [one for one in [self._take_held() for _ in range(self.rng.randint(0, 2))] if one]
        if len(held) == 2 and (held[0].queue, held[0].channel) == (held[1].queue, held[1].channel):
            held.pop()
        acks = [c.Ack(queue=one.queue, channel=one.channel, spans=one.spans) for one in held]
        sends = [self._send_to(self.rng.choice(self.plans), self.rng.randint(1, 3), now_ms) for _ in range(2)]
        return c.CommitWork(acks=acks, sends=sends[: self.rng.randint(0 if acks else 1, 2)])

    def _stage(self, now_ms: int) -> c.Command | None:
        plans = self.rng.choices([plan for plan in self.plans if not plan.config.is_fifo] or self.plans, k=2)
        sends = [self._send_to(plan, self._size(), now_ms) for plan in plans]
        if self.rng.random() < 0.8:
            for send in sends:
                send.dedup_ids, send.due_ms, send.delay_ms = None, None, 0
        stage = self.rng.choice([0, *(self.stages or ())])
        return c.StageWork(name="bulk", sends=sends[: self.rng.randint(1, 2)], stage=stage)

    def _publish(self, now_ms: int) -> c.Command | None:
        if not self.stages:
            return None
        self.marked += self.rng.choice([0, 1, 1, 1, 1, 1, 1, 1])
        stage = self.stages.pop(self.rng.randrange(len(self.stages)))
        return c.CommitWork(acks=[], sends=[], mark=("bulk", self.marked), stage=stage)

    # -- channels, sessions, consumers ---------------------------------------------------------------------------------

    def _open_session(self, now_ms: int) -> c.Command | None:
        self.counter += 1
        return c.OpenSession(name=f"s{self.counter}", ttl_ms=self.rng.choice([None, 1_900, 58_700]))

    def _heartbeat(self, now_ms: int) -> c.Command | None:
        return c.Heartbeat(session=self.rng.choice(self.sessions)) if self.sessions else None

    def _end_session(self, now_ms: int) -> c.Command | None:
        return c.EndSession(session=self.rng.choice(self.sessions)) if self.sessions else None

    def _channel_name(self, plan: Plan) -> str:
        return self.rng.choice([*plan.channels, "extra"])

    def _create_channel(self, now_ms: int) -> c.Command | None:
        plan = self.rng.choice(self.plans)
        starts: list[str | int] = ["head", "tail", now_ms - self.rng.choice([0, 100, MINUTE_MS])]
        start = self.rng.choice(starts)
        return c.CreateChannel(queue=plan.name, channel=self._channel_name(plan), start=start)

    def _delete_channel(self, now_ms: int) -> c.Command | None:
        plan = self.rng.choice(self.plans)
        name = "extra" if c.MAIN in plan.channels else self._channel_name(plan)
        return c.DeleteChannel(queue=plan.name, channel=name)

    def _pause(self, now_ms: int) -> c.Command | None:
        plan = self.rng.choice(self.plans)
        return c.PauseChannel(queue=plan.name, channel=self._channel_name(plan), paused=self.rng.random() < 0.4)

    def _purge_channel(self, now_ms: int) -> c.Command | None:
        plan = self.rng.choice(self.plans)
        return c.PurgeChannel(queue=plan.name, channel=self._channel_name(plan))

    def _read(self, now_ms: int) -> c.Command | None:
        queue, _ = self._place()
        offset = self.rng.choice([None, 0, self.rng.randrange(50)])
        consumer = self.rng.choice([None, "c1", "c2"])
        return c.ReadRecords(queue=queue, consumer=consumer, offset=offset, limit=self.rng.choice([1, 10, 10_000]))

    def _ack_consumer(self, now_ms: int) -> c.Command | None:
        plan = self.rng.choice(self.plans)
        return c.AckConsumer(
            queue=plan.name,
            consumer=self.rng.choice(["c1", "c2"]),
            offset=self.rng.choice([0, 1, self.rng.randrange(60)]),
            allow_rewind=self.rng.random() < 0.3,
        )

    def _delete_consumer(self, now_ms: int) -> c.Command | None:
        return c.DeleteConsumer(queue=self.rng.choice(self.plans).name, consumer=self.rng.choice(["c1", "c2"]))

    # -- looking, changing, moving -------------------------------------------------------------------------------------

    def _browse(self, now_ms: int) -> c.Command | None:
        queue, channel = self._place()
        browse = c.Browse(queue=queue, channel=channel, limit=self.rng.choice([1, 5, 1_000]))
        if self.rng.random() < 0.3:
            browse.states = (self.rng.choice([State.READY, State.LEASED, State.DELAYED]),)
        if self.rng.random() < 0.2:
            browse.contains = b"%d" % self.rng.randrange(10)
        if self.rng.random() < 0.2:
            browse.after = self.rng.randrange(30)
        return browse

    def _stats(self, now_ms: int) -> c.Command | None:
        return c.QueueStats(name=self._place()[0])

    def _describe(self, now_ms: int) -> c.Command | None:
        commands: list[c.Command] = [c.DescribeQueue(name=self._place()[0]), c.ListQueues()]
        return self.rng.choice(commands)

    def _purge(self, now_ms: int) -> c.Command | None:
        return c.PurgeQueue(name=self._place()[0])

    def _delete(self, now_ms: int) -> c.Command | None:
        return c.DeleteQueue(name=self._place()[0])

    def _create(self, now_ms: int) -> c.Command | None:
        plan = self.rng.choice(self.plans)
        return c.CreateQueue(name=plan.name, config=plan.config, channels=plan.channels)

    def _change(self, now_ms: int) -> c.Command | None:
        return self._change_plainly(self.rng.choice(self.plans))

    def _change_plainly(self, plan: Plan) -> c.Command:
        changes: dict[str, Any] = self.rng.choice(
            [
                {"lease_ms": self.rng.choice([100, 10_000])},
                {"max_receives": self.rng.choice([0, 1, 4])},
                {"backoff": self._backoff()},
                {"retention_ms": self.rng.choice([2 * MINUTE_MS, DAY_MS])} if plan.config.retention_ms else {},
                {"delay_ms": self.rng.choice([0, 250])},
                {"in_flight_max": self.rng.choice([3, 120_000])},
                {"lease_ms": -1},
                {"kind": "standard"},
            ]
        )
        return c.ChangeQueue(name=plan.name, changes=changes)

    def _redrive(self, now_ms: int) -> c.Command | None:
        plan = self.rng.choice(self.plans)
        redrive = c.StartRedrive(queue=plan.config.dead_letter or dead_letter_name(plan.name))
        if self.rng.random() < 0.2:
            redrive.error = "boom"
        if self.rng.random() < 0.2:
            redrive.contains = b"1"
        if self.rng.random() < 0.2:
            redrive.sequences = [self.rng.randrange(20) for _ in range(5)]
        if self.rng.random() < 0.2:
            redrive.per_second = self.rng.choice([1, 10])
        if self.rng.random() < 0.2:
            redrive.group = self.rng.choice(["boom", "lease expired", "no"])
        if self.rng.random() < 0.2:
            redrive.origins = [self.rng.choice([plan.name, plan.name[:1] + "*", "nowhere"])]
        redrive.check_only = self.rng.random() < 0.1
        return redrive
