"""A small world of three shards whose outboxes are forwarded over a bad network, replayed from a seed.

Every shard is a real broker over a memory store. Steps may crash before their commit or right after it. Forwarders are
as stupid as they may be: they believe every answer, however late. Packets are lost, repeated and reordered; a shard may
be taken over while its former owner goes on forwarding from what it knew.

After every commit the naive model beside it counts every message that was ever sent, wherever it is: in a queue, or on
its way in an outbox. Each is there once, unless it was acknowledged: then it is nowhere.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.errors import PenstockError
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.partition import partition_of
from penstock.core.storage.chunk import Chunk
from penstock.store.memory import MemoryStore
from tests.store.in_memory import twin_of

SHARDS = 3
ENTROPY = bytes(range(64))
LEASE_MS = 3_600_000


def _names(shard: int, stem: str, fits: Callable[[str], bool] = lambda _: True) -> Iterator[str]:
    names = (f"{stem}{number}" for number in count())
    return (name for name in names if partition_of(name, SHARDS) == shard and fits(name))


def _source(shard: int) -> str:
    """A queue whose own dead-letter queue is in another shard, and is redriven now and then."""
    return next(_names(shard, "source", lambda name: partition_of(f"{name}.dead", SHARDS) != shard))


SOURCES = [_source(shard) for shard in range(SHARDS)]
GRAVES = [next(_names(shard, "grave")) for shard in range(SHARDS)]
"""Dead-letter queues that nobody touches: there the order can be seen."""
ORDERED = [next(_names(shard, "ordered")) for shard in range(SHARDS)]
"""Queues whose dead letters go to the grave of the next shard."""
RESULTS = [next(_names(shard, "result")) for shard in range(SHARDS)]
GONE = [next(_names(shard, "gone")) for shard in range(SHARDS)]
"""Queues that do not exist: what units of work send there is put aside."""


class Crashed(Exception):
    """The shard was opened again; the answer is lost."""


class Node:
    """A shard: its store, and the broker that owns it now."""

    def __init__(self, world: World, shard: int) -> None:
        self.world = world
        self.shard = shard
        self.store = MemoryStore()
        self.open()
        self.step()

    def open(self) -> None:
        self.broker = Broker.open(self.store, self.world.now_ms, ENTROPY, self.shard, SHARDS)

    def step(self, *commands: c.Command, crash: str = "") -> list[Any]:
        """One step. `crash` says when it goes wrong, if it does."""
        replies: list[Any] = []
        for command in commands:
            try:
                replies.append(self.broker.handle(command, self.world.now_ms))
            except PenstockError as error:
                replies.append(error)
        self.broker.finish(self.world.now_ms)
        if self.broker.must_commit or self.world.random.random() < 0.5:
            if crash == "before":
                self.open()
                raise Crashed
            changes = self.broker.take_changes()
            self.store.commit(changes)
            self.broker.committed(changes)
        if crash:
            self.open()
            raise Crashed
        return replies

    def do(self, command: c.Command, crash: str = "") -> Any:
        (reply,) = self.step(command, crash=crash)
        if isinstance(reply, PenstockError):
            raise reply
        return reply


class Forwarder:
    """Forwards from one shard to another; a zombie does so from what its broker knew, and can commit nothing."""

    def __init__(self, world: World, broker: Broker, source: int, target: int) -> None:
        self.world = world
        self.broker = broker
        self.source = source
        self.target = target
        self.mark = broker.outbox.first(target) - 1

    @property
    def is_zombie(self) -> bool:
        return self.broker is not self.world.nodes[self.source].broker

    def poll(self) -> None:
        """Send the next batch, whatever became of those before it."""
        limit_bytes = self.world.random.choice((1, 300, 1 << 20))
        read = c.ReadOutbox(target=self.target, after=self.mark, limit_bytes=limit_bytes)
        if self.is_zombie:
            entries = self.broker.handle(read, self.world.now_ms)
        else:
            entries = self.world.nodes[self.source].do(read)
        if entries:
            take = c.TakeOutbox(
                source=self.broker.outbox_name, after=self.mark, up_to=entries[-1].number, entries=entries
            )
            self.world.packets.append((self, take))

    def told(self, taken: c.Taken) -> None:
        """The target has answered, some time ago."""
        self.mark = taken.number
        if not self.is_zombie:
            self.world.nodes[self.source].step(c.ForgetOutbox(target=self.target, up_to=taken.number))


class World:
    """The shards, the network between them, and what ought to be true of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000_000
        self.packets: list[tuple[Forwarder, c.TakeOutbox | c.Taken]] = []
        self.forwarders: list[Forwarder] = []
        self.zombies: list[Broker] = []
        self.trace: list[str] = []
        self.sent: list[bytes] = []
        """Every message that was sent, by its body."""
        self.acked: set[bytes] = set()
        """Those that were acknowledged where they were."""
        self.acked_away: set[bytes] = set()
        """Those that a unit of work has acknowledged in another shard."""
        self.buried: dict[bytes, int] = {}
        """When messages of the ordered queues died: a number that counts up."""
        self.stale = 0
        self._numbers = count()
        self.nodes: list[Node] = []
        for shard in range(SHARDS):
            self.nodes.append(Node(self, shard))
        for shard, node in enumerate(self.nodes):
            grave = GRAVES[(shard + 1) % SHARDS]
            dying: dict[str, Any] = {"lease_ms": LEASE_MS, "max_receives": 1}
            node.do(c.CreateQueue(name=SOURCES[shard], config=QueueConfig(**dying)))
            node.do(c.CreateQueue(name=ORDERED[shard], config=QueueConfig(dead_letter=grave, **dying)))
            node.step(c.CreateQueue(name=RESULTS[shard], config=QueueConfig(lease_ms=LEASE_MS)))
            self._start_forwarders(node)

    # -- what happens --

    def run(self, steps: int) -> None:
        """Let things happen, then let the network be good until all is done."""
        actions = {
            self._send: 4,
            self._die: 5,
            self._ack: 2,
            self._work: 4,
            self._redrive: 1,
            self._poll: 6,
            self._deliver: 8,
            self._restart: 1,
            self._take_over: 1,
            self._pass_time: 2,
        }
        for _ in range(steps):
            (action,) = self.random.choices(list(actions), list(actions.values()))
            self.trace.append(action.__name__)
            try:
                action()
            except Crashed:
                self.trace.append("crashed")
                self._start_missing()
            self.check()
        self._settle()
        self.check_end()

    def _crash(self) -> str:
        return self.random.choices(("", "before", "after"), (12, 1, 1))[0]

    def _bodies(self) -> list[bytes]:
        return [b"m%d" % next(self._numbers) for _ in range(self.random.randint(1, 4))]

    def _any(self) -> Node:
        return self.random.choice(self.nodes)

    def _committing(self, node: Node, command: c.Command, done: Callable[[], None]) -> None:
        """Do something durable, and note what it did if it was committed, whether or not anybody was told."""
        crash = self._crash()
        try:
            node.do(command, crash)
        except Crashed:
            if crash == "after":
                done()
            raise
        done()

    def _send(self) -> None:
        node, bodies = self._any(), self._bodies()
        queue = self.random.choice((SOURCES, ORDERED))[node.shard]
        self._committing(node, c.Send(queue=queue, bodies=bodies), lambda: self.sent.extend(bodies))

    def _receive(self, node: Node, queue: str, session: int = 0) -> tuple[list[bytes], list[c.Span]]:
        limit = self.random.randint(1, 3)
        delivery: c.Delivery = node.do(c.Receive(queue=queue, limit=limit, wait_ms=0, session=session))
        bodies = [body for run in delivery.runs for body in run.chunk.body_list(run.start, run.stop)]
        return bodies, [span for run in delivery.runs for span in run.spans()]

    def _die(self) -> None:
        node = self._any()
        queue = self.random.choice((SOURCES, ORDERED))[node.shard]
        bodies, spans = self._receive(node, queue)
        if spans:

            def note() -> None:
                if queue == ORDERED[node.shard]:
                    self.buried.update({body: next(self._numbers) for body in bodies})

            self._committing(node, c.Release(queue=queue, spans=spans), note)

    def _ack(self) -> None:
        node = self._any()
        queue = self.random.choice((SOURCES, RESULTS))[node.shard]
        bodies, spans = self._receive(node, queue)
        if spans:
            self._committing(node, c.Ack(queue=queue, spans=spans), lambda: self.acked.update(bodies))

    def _work(self) -> None:
        """Take here and elsewhere, send here and elsewhere, and to a queue that is not there; then leave at once."""
        coordinator, other = self.random.sample(self.nodes, 2)
        taken, spans = self._receive(coordinator, SOURCES[coordinator.shard])
        session = other.do(c.OpenSession(name="worker"))
        away, spans_away = self._receive(other, SOURCES[other.shard], session)
        acks = [c.Ack(queue=SOURCES[coordinator.shard], spans=spans)] if spans else []
        if spans_away:
            ack = c.Ack(queue=SOURCES[other.shard], spans=spans_away)
            other.do(c.HoldForWork(acks=[ack]), self._crash())
            acks.append(ack)
        queues = [*RESULTS, self.random.choice(GONE)]
        sends = [c.Send(queue=queue, bodies=self._bodies(), create=queue not in GONE) for queue in queues]
        sends = [send for send in sends if send.create or partition_of(send.queue, SHARDS) != coordinator.shard]

        def note() -> None:
            self.acked.update(taken)
            self.acked_away.update(away)
            self.sent.extend(body for send in sends for body in send.bodies)

        try:
            self._committing(coordinator, c.CommitWork(acks=acks, sends=sends), note)
        except Crashed:  # nobody knows: the client rolls back
            other.step(c.Release(queue=SOURCES[other.shard], spans=spans_away))
            raise
        other.step(c.EndSession(session=session))

    def _redrive(self) -> None:
        node = self._any()
        dead = [name for name in node.broker.queues if name.endswith((".dead", ".refused"))]
        if dead:
            queue = self.random.choice(sorted(dead))
            target = self.random.choice((None, self.random.choice(RESULTS)))
            if target is None and queue.endswith(".refused"):
                target = self.random.choice(RESULTS)
            node.step(c.StartRedrive(queue=queue, target=target), crash=self._crash())

    def _pass_time(self) -> None:
        self.now_ms += 60
        for node in self.nodes:
            node.step(crash=self._crash())

    # -- the network --

    def _start_forwarders(self, node: Node) -> None:
        targets = [target for target in range(SHARDS) if target != node.shard]
        self.forwarders += [Forwarder(self, node.broker, node.shard, target) for target in targets]

    def _start_missing(self) -> None:
        """A broker that was opened again gets forwarders; those of the one that crashed are gone with it."""
        living = [*self.zombies, *(node.broker for node in self.nodes)]
        self.forwarders = [each for each in self.forwarders if any(each.broker is broker for broker in living)]
        for node in self.nodes:
            if not any(each.broker is node.broker for each in self.forwarders):
                self._start_forwarders(node)

    def _poll(self) -> None:
        self.random.choice(self.forwarders).poll()

    def _deliver(self) -> None:
        if not self.packets:
            return
        index = self.random.randrange(len(self.packets))
        forwarder, packet = self.packets[index]
        fate = self.random.choices(("arrives", "arrives again later", "is lost"), (6, 2, 1))[0]
        if fate != "arrives again later":
            del self.packets[index]
        if fate == "is lost":
            return
        if isinstance(packet, c.Taken):
            forwarder.told(packet)
        else:
            taken: c.Taken = self.nodes[forwarder.target].do(packet, self._crash())
            self._note(taken)
            self.packets.append((forwarder, taken))

    def _note(self, taken: c.Taken) -> None:
        self.stale += taken.stale
        self.trace.append(f"{taken.number} {taken.done} {taken.refused}")

    def _restart(self) -> None:
        self._any().open()
        self._start_missing()

    def _take_over(self) -> None:
        """Another owner: the former one goes on forwarding, over what it knows, and can commit nothing."""
        node = self._any()
        self.zombies = [*self.zombies[-SHARDS:], node.broker]
        node.store = twin_of(node.store)
        node.open()
        self._start_missing()

    def _settle(self) -> None:
        """The network is good, and so are the owners."""
        self.forwarders, self.packets = [], []
        for node in self.nodes:
            node.open()
            node.step()
            self._start_forwarders(node)
        for _ in range(10_000):
            self.now_ms += 1_000
            for node in self.nodes:
                node.step()
            for forwarder in self.forwarders:
                forwarder.poll()
            packets, self.packets = self.packets, []
            for forwarder, packet in packets:
                assert isinstance(packet, c.TakeOutbox)
                taken = self.nodes[forwarder.target].do(packet)
                self._note(taken)
                forwarder.told(taken)
            self.check()
            running = any(task.status == "running" for node in self.nodes for task in node.broker.tasks.values())
            if not running and not any(node.broker.outbox_targets() for node in self.nodes):
                return
        raise AssertionError("the outboxes are never empty")

    # -- what is true --

    def stored(self) -> list[Broker]:
        """Brokers as the stores have them."""
        return [Broker.open(node.store, self.now_ms, ENTROPY, node.shard, SHARDS) for node in self.nodes]

    @staticmethod
    def _in_queue(broker: Broker, name: str) -> list[bytes]:
        seen = broker.queues[name].browse(
            broker.queues[name].channels.get(c.MAIN), -1, 1_000_000, c.Browse(queue=name).states, None
        )
        return [each.chunk.body(each.index) for each in seen]

    @staticmethod
    def _on_their_way(source: Broker, target: Broker) -> list[bytes]:
        entries = source.outbox.read(target.meta.shard, target.marks.last_of_outbox(source.outbox_name), 1 << 40)
        return [body for entry in entries if entry.chunk for body in Chunk.decode(entry.chunk).body_list()]

    def check(self) -> None:
        """Every message is in one place, or done."""
        brokers = self.stored()
        found = Counter[bytes]()
        for broker in brokers:
            for name in broker.queues:
                found.update(self._in_queue(broker, name))
            for other in brokers:
                if other is not broker:
                    found.update(self._on_their_way(broker, other))
        for body in self.sent:
            if body in self.acked_away:
                assert found[body] <= 1, f"{body!r} is there {found[body]} times"
            else:
                expected = 0 if body in self.acked else 1
                assert found[body] == expected, f"{body!r} is there {found[body]} times, and not {expected}"
        assert not found.keys() - set(self.sent), "something is there that nobody has committed"

    def check_end(self) -> None:
        """What units of work have acknowledged is gone; what died is in order."""
        brokers = self.stored()
        left = {body for broker in brokers for name in broker.queues for body in self._in_queue(broker, name)}
        assert not self.stale, "acks of units of work came too late, although nothing took long"
        assert not left & self.acked_away, "an ack of a unit of work was lost"
        for shard, grave in enumerate(GRAVES):
            if grave in brokers[shard].queues:
                order = [self.buried[body] for body in self._in_queue(brokers[shard], grave)]
                assert order == sorted(order), "dead letters have overtaken each other"
