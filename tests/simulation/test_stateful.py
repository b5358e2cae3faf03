"""Hypothesis looks for a sequence of commands that the broker answers against the rules, and shrinks it."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from penstock.core import commands as c
from penstock.core.errors import PenstockError
from penstock.core.queues.config import Backoff, QueueConfig, dead_letter_name
from penstock.store.memory import MemoryStore
from tests.simulation.world import World

EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "400"))
STEPS = 40
START_MS = 1_700_000_000_000

CONFIGS = {
    "plain": QueueConfig(max_receives=2, lease_ms=1_000),
    "slow": QueueConfig(max_receives=0, lease_ms=1_000, backoff=Backoff("fixed", base_ms=500)),
    "fair": QueueConfig(max_receives=3, in_flight_max=3),
    "once": QueueConfig(policy="consume_once", lease_ms=2_000),
    "line": QueueConfig(kind="fifo", max_receives=2, lease_ms=1_000, content_dedup=True),
    "short": QueueConfig(retention_ms=60_000, lease_ms=70_000, delay_ms=300),
}
NAMES = st.sampled_from(sorted(CONFIGS))
CHANNELS = st.sampled_from([c.MAIN, c.MAIN, c.MAIN, "tap"])
LIMITS = st.sampled_from([1, 2, 10])
MILLISECONDS = st.sampled_from([0, 1, 10, 300, 500, 1_000, 5_000, 60_000, 300_000, 3_600_000])


class BrokerAgainstModel(RuleBasedStateMachine):
    """Commands in any order, steps of one or several of them, time that passes; committed after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS
        self.world = World(MemoryStore(), self.now_ms, bytes(64))
        self.gathered: list[c.Command] = []
        self.deliveries: list[c.Delivery] = []
        self.sessions: list[int] = []
        self.counter = 0
        self._do(*(c.CreateQueue(name=name, config=config) for name, config in sorted(CONFIGS.items())))

    def _do(self, *commands: c.Command) -> None:
        """One step, committed, its replies released."""
        step = self.world.step(commands, self.now_ms)
        if self.world.broker.has_changes:
            self.world.commit()
        for command, outcome in step.outcomes:
            if isinstance(outcome, c.Delivery) and outcome.count:
                self.deliveries.append(outcome)
            if isinstance(command, c.OpenSession) and not isinstance(outcome, PenstockError):
                self.sessions.append(outcome)
        self.deliveries += [delivery for _, delivery in step.woken if delivery.count]

    def _gather(self, command: c.Command, alone: bool) -> None:
        self.gathered.append(command)
        if alone:
            gathered, self.gathered = self.gathered, []
            self._do(*gathered)

    def _body(self) -> bytes:
        self.counter += 1
        return b"%d" % self.counter

    @rule(ms=MILLISECONDS)
    def time_passes(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        for due_ms in self.world.deadlines(until_ms):
            self.now_ms = max(self.now_ms, due_ms)
            self._do()
        self.now_ms = until_ms
        self._do()

    @rule(
        queue=NAMES,
        count=st.integers(1, 4),
        group=st.sampled_from(["a", "b", "c"]),
        priority=st.sampled_from([0, 0, 0, 3]),
        delay_ms=st.sampled_from([None, None, 0, 400, 10_000]),
        dedup=st.sampled_from([None, None, "d1", "d2"]),
        alone=st.booleans(),
    )
    def send(
        self, queue: str, count: int, group: str, priority: int, delay_ms: int | None, dedup: str | None, alone: bool
    ) -> None:
        send = c.Send(queue=queue, bodies=[self._body() for _ in range(count)], delay_ms=delay_ms)
        if queue in ("fair", "line"):
            send.groups = [group] * count
        if queue != "line":
            send.priority = priority
        if dedup is not None:
            send.dedup_ids = [dedup] + [None] * (count - 1)
        self._gather(send, alone)

    @rule(
        queue=NAMES,
        channel=CHANNELS,
        limit=LIMITS,
        lease_ms=st.sampled_from([None, None, 0, 100, 43_200_000]),
        session=st.integers(0, 3),
        dead=st.sampled_from([False, False, False, True]),
        alone=st.booleans(),
    )
    def receive(
        self, queue: str, channel: str, limit: int, lease_ms: int | None, session: int, dead: bool, alone: bool
    ) -> None:
        receive = c.Receive(queue=queue, channel=channel, limit=limit, wait_ms=0, lease_ms=lease_ms)
        receive.session = self.sessions[session] if session < len(self.sessions) else 0
        if dead:
            receive.queue, receive.channel = dead_letter_name(queue), c.MAIN
        self._gather(receive, alone)

    @rule(queue=NAMES, channel=CHANNELS, limit=LIMITS, wait_ms=st.sampled_from([10, 1_000]), alone=st.booleans())
    def wait(self, queue: str, channel: str, limit: int, wait_ms: int, alone: bool) -> None:
        self.counter += 1
        command = c.Receive(queue=queue, channel=channel, limit=limit, wait_ms=wait_ms, ticket=self.counter)
        self._gather(command, alone)

    @rule(queue=NAMES, channel=CHANNELS, credit=st.integers(0, 3))
    def subscribe(self, queue: str, channel: str, credit: int) -> None:
        self.counter += 1
        self._do(c.Subscribe(queue=queue, channel=channel, credit=credit, lease_ms=2_000, ticket=self.counter))

    def _spans(self, data: Any) -> tuple[c.Delivery, list[c.Span]]:
        delivery = data.draw(st.sampled_from(self.deliveries), label="delivery")
        spans = [span for run in delivery.runs for span in run.spans()]
        return delivery, data.draw(st.one_of(st.just(spans), st.just(spans[:1]), st.just(spans[-1:])), label="spans")

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), alone=st.booleans())
    def ack(self, data: Any, alone: bool) -> None:
        delivery, spans = self._spans(data)
        self._gather(c.Ack(queue=delivery.queue, channel=delivery.channel, spans=spans), alone)

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), delay_ms=st.sampled_from([None, None, 0, 700]), alone=st.booleans())
    def release(self, data: Any, delay_ms: int | None, alone: bool) -> None:
        delivery, spans = self._spans(data)
        command = c.Release(queue=delivery.queue, channel=delivery.channel, spans=spans, delay_ms=delay_ms, error="no")
        self._gather(command, alone)

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), lease_ms=st.sampled_from([0, 50, 5_000, 43_200_000]))
    def extend(self, data: Any, lease_ms: int) -> None:
        delivery, spans = self._spans(data)
        self._do(c.Extend(queue=delivery.queue, channel=delivery.channel, spans=spans, lease_ms=lease_ms))

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), to=st.sampled_from(["plain", "short", "nowhere"]))
    def unit_of_work(self, data: Any, to: str) -> None:
        delivery, spans = self._spans(data)
        acks = [c.Ack(queue=delivery.queue, channel=delivery.channel, spans=spans)]
        send = c.Send(queue=to, bodies=[self._body()], create=False)
        self._do(c.CommitWork(acks=acks, sends=[send]))

    @rule(ttl_ms=st.sampled_from([None, 1_500]))
    def open_session(self, ttl_ms: int | None) -> None:
        self.counter += 1
        self._do(c.OpenSession(name=f"s{self.counter}", ttl_ms=ttl_ms))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), ends=st.booleans())
    def touch_session(self, data: Any, ends: bool) -> None:
        session = data.draw(st.sampled_from(self.sessions), label="session")
        self._do(c.EndSession(session=session) if ends else c.Heartbeat(session=session))

    @rule(queue=NAMES, start=st.sampled_from(["head", "tail", START_MS + 1_000]))
    def create_channel(self, queue: str, start: str | int) -> None:
        self._do(c.CreateChannel(queue=queue, channel="tap", start=start))

    @rule(queue=NAMES, what=st.sampled_from(["delete", "pause", "unpause", "purge"]))
    def change_channel(self, queue: str, what: str) -> None:
        if what == "delete":
            self.deliveries = [d for d in self.deliveries if (d.queue, d.channel) != (queue, "tap")]
            self._do(c.DeleteChannel(queue=queue, channel="tap"))
        elif what == "purge":
            self._do(c.PurgeChannel(queue=queue, channel=c.MAIN))
        else:
            self._do(c.PauseChannel(queue=queue, channel=c.MAIN, paused=what == "pause"))

    @rule(queue=NAMES, offset=st.integers(0, 20), allow_rewind=st.booleans())
    def ack_consumer(self, queue: str, offset: int, allow_rewind: bool) -> None:
        self._do(c.AckConsumer(queue=queue, consumer="reader", offset=offset, allow_rewind=allow_rewind))

    @rule(queue=NAMES, offset=st.sampled_from([None, 0, 3]), limit=LIMITS)
    def read(self, queue: str, offset: int | None, limit: int) -> None:
        self._do(c.ReadRecords(queue=queue, consumer="reader", offset=offset, limit=limit))

    @rule(queue=NAMES)
    def delete_consumer(self, queue: str) -> None:
        self._do(c.DeleteConsumer(queue=queue, consumer="reader"))

    @rule(queue=NAMES, channel=CHANNELS, limit=LIMITS)
    def look(self, queue: str, channel: str, limit: int) -> None:
        self._do(c.QueueStats(name=queue), c.Browse(queue=queue, channel=channel, limit=limit))

    @rule(queue=NAMES, per_second=st.sampled_from([None, 1]))
    def redrive(self, queue: str, per_second: int | None) -> None:
        self._do(c.StartRedrive(queue=dead_letter_name(queue), per_second=per_second))

    @rule(queue=NAMES)
    def purge(self, queue: str) -> None:
        self._do(c.PurgeQueue(name=queue))

    @rule(queue=NAMES)
    def delete_and_create(self, queue: str) -> None:
        self.deliveries = [delivery for delivery in self.deliveries if delivery.queue != queue]
        self._do(c.DeleteQueue(name=queue), c.CreateQueue(name=queue, config=CONFIGS[queue]))

    @rule()
    def restart(self) -> None:
        """A clean restart: everything was committed."""
        self._do(*self.gathered)
        self.gathered = []
        model = self.world.model
        self.world.reopen(self.world.store, model, self.now_ms)
        self._do(*(c.Heartbeat(session=number) for number, session in model.sessions.items() if session.ttl_ms))

    def teardown(self) -> None:
        """Every count is right at the end."""
        gathered, self.gathered = self.gathered, []
        names = list(self.world.model.queues)
        self._do(*gathered, *(c.QueueStats(name=name) for name in names))


TestBrokerAgainstModel = BrokerAgainstModel.TestCase
TestBrokerAgainstModel.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize="PENSTOCK_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
