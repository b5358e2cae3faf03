"""How fast is a cluster on Kafka against Kafka itself, and how soon does it serve again?

One broker, messages of 200 bytes, acks=all: a plain producer and a consumer group, share groups, and Penstock's Python
client through one node and through three.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import uvloop
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import penstock
from bench.kafka_engine import Recovery, measure_recovery, produce_runs
from bench.measure import (
    BODY_BYTES,
    RUN,
    Measured,
    Scale,
    at_least,
    at_most,
    bodies,
    empty_directory,
    parse_scale,
    plain,
    report,
)
from bench.measure import table as markdown
from bench.share_group import Committed, ShareGroup, share_group
from bench.sqs_load import Address, Server
from bench.sqs_servers import HOST, wait_for
from penstock.cluster.membership.inspection import Inspection
from penstock.cluster.routing.placement import shards_of
from penstock.core.errors import PenstockError
from penstock.server.settings import parse
from tools.kafka import KafkaCluster, kafka_cluster
from tools.servers import ServerError

IN_FLIGHT = 64

KAFKA = "Kafka"
ONE = "Penstock, 1 node"
THREE = "Penstock, 3 nodes"
DEFAULTS = "defaults"
FEW = f"{IN_FLIGHT} at most"
HOLDING = {DEFAULTS: 0, FEW: IN_FLIGHT}
"""How many messages a consumer holds: as it does when it is not told, and a few."""
SHARE_GROUPS: dict[str, tuple[str, Committed]] = {
    f"{DEFAULTS}; acks go with the next poll": (DEFAULTS, "later"),
    f"{DEFAULTS}; acks are confirmed, poll by poll": (DEFAULTS, "poll"),
    f"{FEW}; acks go with the next poll": (FEW, "later"),
    f"{FEW}; acks are confirmed, poll by poll": (FEW, "poll"),
    f"{FEW}; acks are confirmed one by one": (FEW, "each"),
}

SEND_RUNS = f"send in runs of {RUN}"
RECEIVE_RUNS = f"receive and ack in runs of {RUN}"
SINGLES = "receive, and ack one by one"
LISTENED = {holding: f"{SINGLES}, by a listener, {holding}" for holding in HOLDING}

RUNS_TARGET = 0.5
SINGLES_TARGET = 1.5
FAILOVER_TARGET = 2
"""Session timeouts."""

SHARDS = 3
SESSION_S = 10.0
"""The default."""
RUNS_IN_FLIGHT = 8
TURNS = 5
WAIT_S = 30.0
PATIENCE_S = 120.0
HEAP_MB = 768
COMPRESSION = "lz4"

_numbers = itertools.count(1)


class Amounts(NamedTuple):
    """How much to do in a turn, and after all turns."""

    runs: int
    singles: int
    confirmed: int
    """Messages of a share group that commits each one."""
    live: int
    """Messages of the shard that recovers."""
    kills: int

    @classmethod
    def of(cls, scale: Scale) -> Amounts:
        """The real thing, or just enough to see that it runs."""
        return cls(5, 500, 20, 10_000, 0) if scale.quick else cls(80, 50_000, 150, 1_000_000, 1)


class Outcome(NamedTuple):
    """What one line of one turn gave."""

    rate: float
    """Messages a second."""
    cpu_us: float
    """Processor time that a message took, of everybody: client, nodes and broker."""


Turn = Mapping[str, Outcome]
"""By line."""


class Contender(Protocol):
    """Who takes turns."""

    async def turn(self, amounts: Amounts) -> Turn:
        """Do everything that is measured, on a queue that nobody has used."""
        ...


class Meter:
    """Measures work of which several processes do their part."""

    def __init__(self, *pids: int) -> None:
        self._servers = [Server(Address(HOST, 0), pid) for pid in pids]

    def cpu_s(self) -> float:
        """The processor time that they and this process have taken so far."""
        return time.process_time() + sum(server.cpu_s() for server in self._servers)

    async def measure(self, count: int, work: Awaitable[float | None]) -> Outcome:
        """Do some work, which may say how many seconds of it count."""
        gc.collect()
        os.sync()
        started_s, cpu_s = time.perf_counter(), self.cpu_s()
        seconds = await work or time.perf_counter() - started_s
        return Outcome(count / seconds, (self.cpu_s() - cpu_s) / count * 1e6)


# -- Kafka itself ------------------------------------------------------------------------------------------------------


class PlainKafka:
    """A producer and a consumer group of confluent-kafka, on topics with one partition."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self._bootstrap = kafka.bootstrap
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        self._meter = Meter(kafka.pid(0))
        settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 5, "compression.type": COMPRESSION}
        self._producer = Producer(
            {"bootstrap.servers": kafka.bootstrap, "queue.buffering.max.messages": 500_000, **settings}
        )

    async def turn(self, amounts: Amounts) -> Turn:
        topic, count = await asyncio.to_thread(self.new_topic), amounts.runs * RUN
        return {
            SEND_RUNS: await self._meter.measure(count, asyncio.to_thread(self.send_runs, topic, amounts.runs)),
            RECEIVE_RUNS: await self._meter.measure(count, asyncio.to_thread(self._receive_runs, topic, count)),
        }

    def new_topic(self) -> str:
        """A topic that nobody has used."""
        topic = f"bench-plain-{next(_numbers)}"
        self._admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
        return topic

    def send_runs(self, topic: str, runs: int) -> None:
        """As fast as the producer takes them; all are acknowledged in the end."""
        produce_runs(self._producer, topic, bodies(RUN), runs)

    def _receive_runs(self, topic: str, count: int) -> float:
        """In runs, each of which is committed before the next. Joining the group does not count."""
        started_s = 0.0

        def start(_consumer: Consumer, _partitions: list[TopicPartition]) -> None:
            nonlocal started_s
            started_s = time.perf_counter()

        settings = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": self._bootstrap, **settings})
        try:
            consumer.subscribe([topic], on_assign=start)
            while count > 0:
                run = consumer.consume(RUN, WAIT_S)
                count -= sum(len(message.value() or b"") for message in run) // BODY_BYTES
                consumer.commit(asynchronous=False)
            return time.perf_counter() - started_s
        finally:
            consumer.close()


class Shared:
    """A share group, on a topic that a plain producer fills. It measures nothing but messages one by one."""

    def __init__(
        self, plain_kafka: PlainKafka, group: ShareGroup, meter: Meter, held_max: int, committed: Committed
    ) -> None:
        self._plain = plain_kafka
        self._group = group
        self._meter = meter
        self._held_max = held_max
        self._committed = committed

    async def turn(self, amounts: Amounts) -> Turn:
        count = amounts.confirmed if self._committed == "each" else amounts.singles
        topic = await asyncio.to_thread(self._filled_topic, count)
        return {SINGLES: await self._meter.measure(count, asyncio.to_thread(self._consume_s, topic, count))}

    def _filled_topic(self, count: int) -> str:
        topic = self._plain.new_topic()
        self._plain.send_runs(topic, count // RUN + 1)
        return topic

    def _consume_s(self, topic: str, count: int) -> float:
        return self._group.consume_s(topic, count, self._held_max, self._committed)


# -- Penstock ----------------------------------------------------------------------------------------------------------


class Node(NamedTuple):
    """`penstock serve --engine kafka`, a process."""

    name: str
    process: subprocess.Popen[bytes]
    url: str

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)


def settings_text(bootstrap: str, cluster: str, node: str, data: Path) -> str:
    """A node's penstock.toml: the defaults, but for places and a broker that is alone."""
    ports = "".join(f"{name}_port = 0\n" for name in ("sqs", "http", "nsq_tcp", "nsq_http"))
    return f"""
[server]
data = "{data}"
engine = "kafka"
{ports}
[cluster]
name = "{cluster}"
node = "{node}"
shards = {SHARDS}
link_port = 0
session_timeout_s = {SESSION_S}
[kafka]
bootstrap = "{bootstrap}"
replication_factor = 1
min_insync_replicas = 1
compression = "{COMPRESSION}"
"""


@contextmanager
def started_nodes(bootstrap: str, clusters: Mapping[str, int], directory: Path) -> Iterator[dict[str, list[Node]]]:
    """So many nodes of each cluster, each a process, all started at once; they end with the block, however they are."""
    with ExitStack() as stack:
        names = [(cluster, f"{cluster}-{number}") for cluster, count in clusters.items() for number in range(count)]
        children = []
        for cluster, name in names:
            config, ready = directory / f"{name}.toml", directory / f"{name}.ready"
            config.write_text(settings_text(bootstrap, cluster, name, directory / name))
            command = [sys.executable, "-m", "penstock", "serve", "--config", str(config), "--ready-file", str(ready)]
            with (directory / f"{name}.log").open("wb") as printed:
                child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed)
            stack.callback(_end, child)
            children.append(child)
        nodes: dict[str, list[Node]] = {cluster: [] for cluster in clusters}
        for (cluster, name), child in zip(names, children, strict=True):
            ready = directory / f"{name}.ready"
            wait_for(ready.exists, child, directory / f"{name}.log")
            port = json.loads(ready.read_text())["listening"]["http"]["port"]
            nodes[cluster].append(Node(name, child, f"penstock://{HOST}:{port}"))
        yield nodes


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


class PenstockCluster:
    """The Python client, connected to every node; queues have a partition for each."""

    def __init__(
        self, clients: Sequence[penstock.AsyncPenstock], meter: Meter, singles: penstock.AsyncPenstock | None
    ) -> None:
        self._clients = clients
        self._meter = meter
        self._singles = singles
        """A client that prefetches, for messages one by one; None: they are not measured."""

    async def turn(self, amounts: Amounts) -> Turn:
        queue, count = await self._new_queue(), amounts.runs * RUN
        found = {
            SEND_RUNS: await self._meter.measure(count, self._send_runs(queue, amounts.runs)),
            RECEIVE_RUNS: await self._meter.measure(count, self._receive_runs(queue, count)),
        }
        if self._singles is not None:
            queue, count = await self._new_queue(), amounts.singles
            await self._send_runs(queue, count // RUN + 1)
            found[SINGLES] = await self._meter.measure(count, receive_singles(self._singles, queue, count))
            for holding, line in LISTENED.items():
                queue = await self._new_queue()
                await self._send_runs(queue, count // RUN + 1)
                listened = listen_singles(self._clients[0], queue, count, HOLDING[holding])
                found[line] = await self._meter.measure(count, listened)
        return found

    async def _new_queue(self) -> str:
        queue = f"bench-{next(_numbers)}"
        await self._clients[0].create_queue(queue, partitions=len(self._clients))
        return queue

    async def _send_runs(self, queue: str, runs: int) -> None:
        messages, left = bodies(RUN), iter(range(runs))

        async def send(client: penstock.AsyncPenstock) -> None:
            for _ in left:
                await client.queue(queue).send_many(messages)

        await asyncio.gather(*(send(client) for client in self._candidates()))

    async def _receive_runs(self, queue: str, count: int) -> float:
        """In runs, each of which is acknowledged before its task takes the next. How long until the last ack.

        Tasks that wait for more when all is taken do not count.
        """
        left, started_s, over_s = count, time.perf_counter(), 0.0

        async def work(client: penstock.AsyncPenstock) -> None:
            nonlocal left, over_s
            while left > 0:
                batch = await client.queue(queue).receive_batch(max=RUN, wait=0.2)
                left -= sum(map(len, batch.bodies)) // BODY_BYTES
                if len(batch):
                    await batch.ack()
                    over_s = time.perf_counter()

        await asyncio.gather(*(work(client) for client in self._candidates()))
        return over_s - started_s

    def _candidates(self) -> list[penstock.AsyncPenstock]:
        return [*self._clients] * RUNS_IN_FLIGHT


async def receive_singles(client: penstock.AsyncPenstock, queue: str, count: int) -> None:
    """`IN_FLIGHT` tasks; each takes a message, acknowledges it, and goes on when that is confirmed."""
    handle, left = client.queue(queue), iter(range(count))

    async def work() -> None:
        for _ in left:
            message = await handle.receive(wait=WAIT_S)
            assert message is not None
            await message.ack()

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


async def listen_singles(client: penstock.AsyncPenstock, queue: str, count: int, held_max: int) -> float:
    """A listener, and how long until so many acks are confirmed. `held_max` 0: with its defaults."""
    started_s, seen = time.perf_counter(), 0

    async def handle(message: penstock.AsyncMessage) -> None:
        nonlocal seen
        seen += len(message.body) // BODY_BYTES

    settings: Any = {"workers": held_max, "max_in_hand": held_max} if held_max else {}
    async with await client.listen(queue, handle, **settings) as listener:
        while listener.metrics.handled < count:
            await asyncio.sleep(0.001)
        taken_s = time.perf_counter() - started_s
    assert seen >= count
    return taken_s * count / listener.metrics.handled


# -- all of it ---------------------------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """What was measured."""

    rates: Mapping[str, Measured]
    """By line, then by contender."""
    cpu_us: Mapping[str, Measured]
    no_share_group: str
    """Why there is no share group; empty if there is."""
    failovers_s: Sequence[float]
    recovery: Recovery


async def take_turns(
    contenders: Mapping[str, Contender], amounts: Amounts, turns: int, *, warm_up: bool
) -> dict[str, list[Turn]]:
    """A B A B ..., after a turn that does not count."""
    found: dict[str, list[Turn]] = {name: [] for name in contenders}
    for number in range(-1 if warm_up else 0, turns):
        for name, contender in contenders.items():
            outcome = await contender.turn(amounts)
            if number >= 0:
                found[name].append(outcome)
    return found


def by_line(found: Mapping[str, Sequence[Turn]], field: str) -> dict[str, Measured]:
    """One measure of all turns, line by line, of those who have that line."""
    return {
        line: Measured(
            {
                name: [getattr(turn[line], field) for turn in turns]
                for name, turns in found.items()
                if all(line in turn for turn in turns)
            }
        )
        for line in (SEND_RUNS, RECEIVE_RUNS, SINGLES, *LISTENED.values())
    }


async def compare(contenders: Mapping[str, Contender], amounts: Amounts, scale: Scale) -> dict[str, list[Turn]]:
    """Everybody's turns."""
    return await take_turns(contenders, amounts, scale.turns(TURNS), warm_up=not scale.quick)


async def penstock_clusters(
    kafka: KafkaCluster, nodes: Mapping[str, Sequence[Node]], connected: AsyncExitStack
) -> dict[str, Contender]:
    """A contender for each cluster, with a client for each of its nodes."""

    async def connect(node: Node, prefetch: int) -> penstock.AsyncPenstock:
        return await connected.enter_async_context(penstock.connect_async(node.url, prefetch=prefetch))

    found: dict[str, Contender] = {}
    for name, of_cluster in nodes.items():
        clients = [await connect(node, 0) for node in of_cluster]
        singles = await connect(of_cluster[0], IN_FLIGHT) if name == ONE else None
        meter = Meter(kafka.pid(0), *(node.process.pid for node in of_cluster))
        found[name] = PenstockCluster(clients, meter, singles)
    return found


def share_groups(kafka: KafkaCluster, plain_kafka: PlainKafka, stack: ExitStack) -> dict[str, Contender]:
    """Every way to acknowledge in a share group."""
    group = stack.enter_context(share_group(kafka.bootstrap, stack.enter_context(empty_directory())))
    meter = Meter(kafka.pid(0), group.pid)
    return {
        name: Shared(plain_kafka, group, meter, HOLDING[holding], committed)
        for name, (holding, committed) in SHARE_GROUPS.items()
    }


async def failover_s(nodes: list[Node], directory: Path) -> float:
    """Kill a node; how long until another one delivers what only the dead one could. `nodes` has one less then."""
    victim, witness = nodes[-1], nodes[0]
    queue = await asyncio.to_thread(queue_of, victim, directory)
    async with penstock.connect_async(witness.url) as client:
        await client.queue(queue).send(b"still there")
        victim.kill()
        killed_s = time.perf_counter()
        nodes.remove(victim)
        while time.perf_counter() < killed_s + PATIENCE_S:
            try:
                if await client.queue(queue).receive(wait=1) is not None:
                    return time.perf_counter() - killed_s
            except PenstockError:
                await asyncio.sleep(0.05)
    raise RuntimeError(f"nobody delivers in {PATIENCE_S:g} s what the node that was killed had")


def queue_of(node: Node, directory: Path) -> str:
    """The name of a queue that the node serves."""
    options = parse((directory / f"{node.name}.toml").read_text()).kafka_options()
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        served = {row["shard"] for row in Inspection(options).rows() if row["served_by"] == node.name}
        for number in range(100):
            if served.issuperset(shards_of(f"failover-{number}", 1, SHARDS)):
                return f"failover-{number}"
        time.sleep(0.5)
    raise RuntimeError(f"{node.name} serves nothing")


async def measure(kafka: KafkaCluster, stack: ExitStack, scale: Scale) -> Figures:
    """All of it. What was started has ended before a shard recovers."""
    amounts, directory = Amounts.of(scale), stack.enter_context(empty_directory())
    clusters = {"one": 1, "three": 3}
    one, three = stack.enter_context(started_nodes(kafka.bootstrap, clusters, directory)).values()
    nodes = {ONE: one, THREE: three}
    plain_kafka, no_share_group = PlainKafka(kafka), ""
    contenders: dict[str, Contender] = {KAFKA: plain_kafka}
    try:
        contenders |= share_groups(kafka, plain_kafka, stack)
    except ServerError as error:
        no_share_group = str(error)
    async with AsyncExitStack() as connected:
        contenders |= await penstock_clusters(kafka, nodes, connected)
        found = await compare(contenders, amounts, scale)
    failovers_s = [await failover_s(three, directory) for _ in range(amounts.kills)]
    stack.close()
    recovery = await asyncio.to_thread(measure_recovery, kafka.bootstrap, amounts.live)
    return Figures(by_line(found, "rate"), by_line(found, "cpu_us"), no_share_group, failovers_s, recovery)


# -- printing ----------------------------------------------------------------------------------------------------------


def runs_table(figures: Figures) -> str:
    """Sending and receiving in runs, against Kafka itself."""
    rows = []
    for line in (SEND_RUNS, RECEIVE_RUNS):
        rates, cpu_us = figures.rates[line], figures.cpu_us[line]
        for name in (ONE, THREE):
            ratio = rates.ratio(name, to=KAFKA)
            cells = [plain(rates.rate(KAFKA)), plain(rates.rate(name)), str(ratio), str(cpu_us.ratio(name, to=KAFKA))]
            rows.append([f"{line}; {name}", *cells, at_least(RUNS_TARGET, ratio)])
    header = ["messages/s", "Kafka", "Penstock", "ratio", "ratio of the processor time a message", "target"]
    return markdown(header, rows)


def singles_table(figures: Figures) -> str:
    """Messages one by one, both of our ways against share groups."""
    rows = []
    for name, (holding, _) in SHARE_GROUPS.items():
        ways = {"listener": LISTENED[holding]} | ({"tasks": SINGLES} if holding == FEW else {})
        for way, line in ways.items():
            rates, cpu_us = (_beside(found, line, name) for found in (figures.rates, figures.cpu_us))
            ratio = rates.ratio(ONE, to=name)
            cells = [plain(rates.rate(name)), plain(rates.rate(ONE)), str(ratio), str(cpu_us.ratio(ONE, to=name))]
            rows.append([f"{name}; {way}", *cells, at_least(SINGLES_TARGET, ratio)])
    header = [f"{SINGLES}, messages/s", "share group", "Penstock", "ratio", "ratio of the processor time", "target"]
    return markdown(header, rows)


def _beside(found: Mapping[str, Measured], line: str, share_group: str) -> Measured:
    """A line of ours beside the only one of a share group."""
    return Measured({ONE: found[line].rates[ONE], share_group: found[SINGLES].rates[share_group]})


def times_table(figures: Figures) -> str:
    """How soon it serves again."""
    rows = []
    for seconds in figures.failovers_s:
        timeouts = seconds / SESSION_S
        cells = [f"{seconds:.1f} s, {timeouts:.2f} session timeouts", at_most(FAILOVER_TARGET, timeouts, " timeouts")]
        rows.append(["kill -9 of a node to the first delivery elsewhere", *cells])
    found = figures.recovery
    live = f"a shard with {found.messages:,} live messages"
    rows.append([f"{live}, at a node that never had it", f"{found.cold_s:.2f} s", "none"])
    rows.append([f"{live}, with its cache", f"{found.cached_s:.2f} s", "none"])
    return markdown(["until it is served", "time", "target"], rows)


TEXT = f"""
One broker of Kafka, so one copy, with acks=all; 200-byte messages, {COMPRESSION} for everybody, one client process, all
on one machine. Kafka's producer sends as fast as it takes messages, to one partition; its consumer group commits the
offset after every {RUN}. Penstock has {RUNS_IN_FLIGHT} runs in flight at each node, and each is a durable send, or a
receive and an ack, of {RUN} messages. Through three nodes the queue has three partitions. Both sides read every body.
The processor time is that of client, nodes and broker together.

One by one: the share group's consumer (Java) calls `acknowledge` for each message. The acknowledgement goes to the
broker with the next poll, and nobody waits for it; or it is confirmed (`commitSync`) before the next poll; or it is
confirmed at once, so that one message is in flight. A Penstock *listener* calls a function with each message, and
acknowledges the message when the function returns. It gets more messages meanwhile. The clock stops when the last ack
is durable. With *defaults*, nobody sets how many messages to hold: share groups lock 2,000 of a partition, and a poll
gives 500 of them or a batch; a listener holds up to 2,000 that are not handled, and up to 2,000 whose ack is not
durable. With *{FEW}*, a poll gives {IN_FLIGHT} messages (`max.poll.records`, `record_limit`), and a listener holds at
most {IN_FLIGHT} that are not handled (`max_in_hand`). *Tasks* are {IN_FLIGHT} tasks on a connection with a prefetch of
{IN_FLIGHT}. Each takes a message, acknowledges it, and continues when the ack is durable. A share group does that only
if it confirms each message. Joining a group does not count; starting a listener does.

Failovers are measured with the default session timeout of {SESSION_S:g} s.
"""


def main() -> None:
    """Measure, and print the section."""
    scale = parse_scale(__doc__)
    with (
        kafka_cluster(1, heap_mb=HEAP_MB) as kafka,
        ExitStack() as stack,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        figures = runner.run(measure(kafka, stack, scale))
    tables = [runs_table(figures)]
    if figures.no_share_group:
        tables.append(f"Share groups did not run: {figures.no_share_group}")
    else:
        tables.append(singles_table(figures))
    report("cluster. Nodes on Kafka, against Kafka itself", TEXT, *tables, times_table(figures))


if __name__ == "__main__":
    main()
