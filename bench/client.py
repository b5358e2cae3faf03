"""How fast is Penstock over the network, through its Python client, against Redis Streams, RabbitMQ and NATS JetStream?

One client process (this one) and one server process on loopback. Messages have 200 bytes.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import uvloop

from bench.client_floor import FloorPeer, floor_server
from bench.client_peers import WORKERS, Handler, NatsPeer, Peer, PenstockPeer, RabbitPeer, RedisPeer, send_singles
from bench.client_servers import nats_server, penstock_server, rabbitmq_server, redis_server
from bench.measure import RUN, Measured, Scale, at_least, at_most, bodies, empty_directory, parse_scale, plain, report
from bench.measure import table as markdown
from bench.pace import beats
from bench.sqs_load import Server

C = TypeVar("C")
T = TypeVar("T")

PENSTOCK = "Penstock"
UNSYNCED = "Penstock, unsynced"
POLLING = "Penstock, unsynced and busy polling"
REDIS_ALWAYS = "Redis, fsync always"
REDIS_EVERYSEC = "Redis, fsync every second"
RABBITMQ = "RabbitMQ"
NATS = "NATS"
FLOOR = "only sync and echo"
OURS = (PENSTOCK, UNSYNCED, POLLING)

IN_FLIGHT = 64
TURNS = 5
MESSAGES = 50_000
"""In runs, a turn."""
SINGLES = 5_000
UNITS = 1_000
LATENCY_S = 3.0
LOAD_SHARE = 0.1
STAMP_BYTES = 20
BUSY_POLL_S = 0.0003
"""Somewhat longer than a message takes from its sender to its handler."""

SEND_RUNS = f"send in runs of {RUN}"
RECEIVE_RUNS = f"receive and ack in runs of {RUN}"
SEND_SINGLES = f"send singles, {IN_FLIGHT} in flight"
LISTEN = f"listener, {WORKERS} workers, singles"
MOVE = "unit of work: take 1, put 1, commit"
TARGETS: dict[str, float | None] = {SEND_RUNS: 3, RECEIVE_RUNS: 3, SEND_SINGLES: 1, LISTEN: 1, MOVE: None}


class Amounts(NamedTuple):
    """How much to do in a turn."""

    messages: int
    singles: int
    units: int
    latency_s: float

    @classmethod
    def of(cls, scale: Scale) -> Amounts:
        """The real thing, or just enough to see that it runs."""
        return cls(2_000, 300, 50, 0.3) if scale.quick else cls(MESSAGES, SINGLES, UNITS, LATENCY_S)


class Late(Protocol):
    """As much of a `Peer` as a latency needs."""

    async def create(self, queue: str) -> None: ...

    async def send(self, queue: str, body: bytes) -> None: ...

    async def listen(self, queue: str, count: int, handler: Handler) -> float: ...


class Contender(NamedTuple):
    """A server, and its client, connected."""

    server: Server
    peer: Peer


# -- one turn ----------------------------------------------------------------------------------------------------------

_queue_numbers = itertools.count(1)


class Outcome(NamedTuple):
    """What one line of one turn gave."""

    rate: float
    """Messages a second."""
    cpu_us: float
    """Processor time that a message took, of client and server together."""


async def turn(contender: Contender, amounts: Amounts) -> dict[str, Outcome]:
    """Everything that is measured, on queues of their own."""
    peer = contender.peer
    queue, singles, source, target = [f"bench-{next(_queue_numbers)}" for _ in range(4)]
    for each in (queue, singles, source, target):
        await peer.create(each)
    many = bodies(amounts.messages)
    runs = [many[start : start + RUN] for start in range(0, len(many), RUN)]
    few = many[: amounts.singles]
    await peer.send_runs(source, [many[: amounts.units]])
    measure = partial(measured, contender.server)
    return {
        SEND_RUNS: await measure(len(many), peer.send_runs(queue, runs)),
        RECEIVE_RUNS: await measure(len(many), peer.receive_runs(queue, len(many), RUN)),
        SEND_SINGLES: await measure(len(few), send_singles(peer, singles, few, IN_FLIGHT)),
        LISTEN: await measure(len(few), peer.listen(singles, len(few), lambda body: None)),
        MOVE: await measure(amounts.units, peer.move(source, target, amounts.units)),
    }


async def measured(server: Server, count: int, work: Awaitable[float | None]) -> Outcome:
    """Do some work, until the time that it gives back, or until it ends."""
    gc.collect()
    os.sync()
    started_s, cpu_s = time.perf_counter(), time.process_time() + server.cpu_s()
    over_s = await work or time.perf_counter()
    cpu_s = time.process_time() + server.cpu_s() - cpu_s
    return Outcome(count / (over_s - started_s), cpu_s / count * 1e6)


# -- latency -----------------------------------------------------------------------------------------------------------


async def latencies_ms(peer: Late, per_second: float, seconds: float) -> list[float]:
    """How long messages took from before the send to the handler, sent at an even pace whatever becomes of them."""
    queue = f"bench-{next(_queue_numbers)}"
    await peer.create(queue)
    count = max(20, round(per_second * seconds))
    filling = bodies(1)[0]
    found: list[float] = []

    def handler(body: bytes) -> None:
        found.append((time.perf_counter_ns() - int(body[:STAMP_BYTES])) / 1e6)

    async def send_evenly() -> None:
        sends = set()
        async for _ in beats(per_second, count):
            body = b"%0*d" % (STAMP_BYTES, time.perf_counter_ns()) + filling[STAMP_BYTES:]
            sends.add(asyncio.ensure_future(peer.send(queue, body)))
        await asyncio.gather(*sends)

    gc.collect()
    gc.freeze()  # or one look for garbage among all that five clients have imported is a hundredth of the messages
    await asyncio.gather(peer.listen(queue, count, handler), send_evenly())
    return sorted(found)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so many are not above.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5), percentile([1.0, 2.0, 3.0, 4.0], 0.99)
    (2.0, 4.0)
    """
    return values[max(0, math.ceil(len(values) * share) - 1)]


# -- all of it ---------------------------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """What was measured."""

    rates: Mapping[str, Measured]
    """By line, then by contender."""
    cpu_us: Mapping[str, Measured]
    per_second: float
    p50_ms: Measured
    p99_ms: Measured


async def compare(
    servers: Mapping[str, Server], floor: Server, amounts: Amounts, turns: int, *, warm_up: bool
) -> Figures:
    """Let everybody take turns."""
    async with AsyncExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for name, server in servers.items():
            contenders[name] = Contender(server, await CONNECT[name](server.address.port))
            stack.push_async_callback(contenders[name].peer.close)
        found = await take_turns(contenders, partial(turn, amounts=amounts), turns, warm_up=warm_up)
        rates = by_line(found, lambda outcome: outcome.rate)
        per_second = LOAD_SHARE * min(rates[SEND_SINGLES].rate(name) for name in contenders)
        late: dict[str, Late] = {PENSTOCK: contenders[PENSTOCK].peer}
        for name, busy_poll in ((UNSYNCED, 0.0), (POLLING, BUSY_POLL_S)):
            port = servers[PENSTOCK].address.port
            late[name] = peer = await PenstockPeer.connect(port, deliver_unsynced=True, busy_poll=busy_poll)
            stack.push_async_callback(peer.close)
        late |= {name: contender.peer for name, contender in contenders.items() if name != PENSTOCK}
        late[FLOOR] = await FloorPeer.connect(floor.address.port)
        times = await take_turns(late, lambda each: latencies_ms(each, per_second, amounts.latency_s), turns)
        p50, p99 = (
            Measured({name: [percentile(each, share) for each in of_name] for name, of_name in times.items()})
            for share in (0.5, 0.99)
        )
        return Figures(rates, by_line(found, lambda outcome: outcome.cpu_us), per_second, p50, p99)


def by_line(
    found: Mapping[str, Sequence[Mapping[str, Outcome]]], measure: Callable[[Outcome], float]
) -> dict[str, Measured]:
    """One measure of all turns, line by line."""
    return {
        line: Measured({name: [measure(each[line]) for each in of_name] for name, of_name in found.items()})
        for line in TARGETS
    }


async def take_turns(
    contenders: Mapping[str, C], do: Callable[[C], Awaitable[T]], turns: int, *, warm_up: bool = False
) -> dict[str, list[T]]:
    """A B A B ..., after a turn that does not count, if so wanted."""
    found: dict[str, list[T]] = {name: [] for name in contenders}
    for number in range(-1 if warm_up else 0, turns):
        for name, contender in contenders.items():
            outcome = await do(contender)
            if number >= 0:
                found[name].append(outcome)
    return found


async def _redis(port: int) -> Peer:
    return RedisPeer(port)


CONNECT: dict[str, Callable[[int], Awaitable[Peer]]] = {
    PENSTOCK: PenstockPeer.connect,
    REDIS_ALWAYS: _redis,
    REDIS_EVERYSEC: _redis,
    RABBITMQ: RabbitPeer.connect,
    NATS: NatsPeer.connect,
}

SERVERS: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
    PENSTOCK: penstock_server,
    REDIS_ALWAYS: partial(redis_server, appendfsync="always"),
    REDIS_EVERYSEC: partial(redis_server, appendfsync="everysec"),
    RABBITMQ: rabbitmq_server,
    NATS: nats_server,
}


# -- printing ----------------------------------------------------------------------------------------------------------


def throughput(figures: Figures) -> str:
    """Every line: messages a second of everybody, and the ratio to the best of the others."""
    rows = []
    for line, rates in figures.rates.items():
        rivals = [name for name in rates.rates if name != PENSTOCK]
        best = rates.fastest(rivals)
        ratio = rates.ratio(PENSTOCK, to=best)
        cells = [plain(rates.rate(name)) for name in rates.rates]
        target = TARGETS[line]
        rows.append([line, *cells, f"{ratio} to {best}", "none" if target is None else at_least(target, ratio)])
    names = list(next(iter(figures.rates.values())).rates)
    return markdown(["messages/s", *names, "ratio to the best", "target"], rows)


def processor_times(figures: Figures) -> str:
    """What a message costs, of client and server together: what a busy machine distorts least."""
    rows = []
    for line, times in figures.cpu_us.items():
        rivals = [name for name in times.rates if name != PENSTOCK]
        best = min(rivals, key=times.rate)
        cells = [plain(times.rate(name)) for name in times.rates]
        rows.append([line, *cells, f"{times.ratio(best, to=PENSTOCK)} times, {best}"])
    names = list(next(iter(figures.cpu_us.values())).rates)
    return markdown(["processor time a message, us", *names, "the best of the others"], rows)


def latency(figures: Figures) -> str:
    """From the send to the handler, of everybody."""
    names = list(figures.p50_ms.rates)
    rows = [[label, *(plain(times.rate(name)) for name in names)] for label, times in percentiles(figures)]
    return markdown([f"ms, at {plain(figures.per_second)} messages/s", *names], rows)


def latency_ratios(figures: Figures) -> str:
    """The ratios to the best of the others, and to the one that syncs before."""
    rows = []
    for label, times in percentiles(figures):
        best = min((name for name in times.rates if name not in (*OURS, FLOOR)), key=times.rate)
        for ours, rival in ((POLLING, best), (UNSYNCED, best), (PENSTOCK, best), (PENSTOCK, REDIS_ALWAYS)):
            ratio = times.ratio(ours, to=rival)
            rows.append([label, ours, f"{ratio} to {rival}", at_most(1, ratio.median)])
    return markdown(["latency", "of", "ratio", "target"], rows)


def percentiles(figures: Figures) -> list[tuple[str, Measured]]:
    """What is told of the latencies, with its name."""
    return [("p50", figures.p50_ms), ("p99", figures.p99_ms)]


TEXT = f"""
One client process and one server process on loopback, 200-byte messages. Penstock answers after its `fdatasync`. Redis
Streams run with `appendfsync always` and with `everysec`, which may lose a second; RabbitMQ with durable queues,
persistent messages and publisher confirms; NATS JetStream with file storage: the packaged version has no setting to
sync before it answers, and syncs every two minutes. A unit of work is MULTI/EXEC on Redis and a channel's
transaction on RabbitMQ; NATS has none, so that it publishes, then acknowledges, which is not atomic. {WORKERS} workers
share the units of work. All clients run on one event loop (uvloop's), redis-py with hiredis; `bench/client_peers.py`
says how each is driven.

The latency is that from the send to the listener's handler, at an even pace of a tenth of the rate at which the slowest
contender sends singles: the same for everybody. Redis with `appendfsync always` is the only other one that syncs before
it hands a message on: RabbitMQ syncs before it confirms, and hands on before that. "{UNSYNCED}" is a queue with
`deliver_unsynced`, which promises what RabbitMQ does: handed on at once, confirmed after the sync. "{POLLING}" also has
a client that polls for {BUSY_POLL_S * 1e3:g} ms before it sleeps (`busy_poll`). None of the other clients can do that.
Penstock's server sleeps like all others. "{FLOOR}" is not a contender (`bench/client_floor.py`): a Python server that
appends what it reads to a file, syncs it and echoes it, with a client that does nothing but look at the clock. With a
sync before the handler is called, nothing in Python is faster here.
"""


def main() -> None:
    """Measure, and print the section."""
    scale = parse_scale(__doc__)
    amounts = Amounts.of(scale)
    with ExitStack() as stack:
        directories = {name: stack.enter_context(empty_directory()) for name in SERVERS}
        servers = {name: stack.enter_context(serve(directories[name])) for name, serve in SERVERS.items()}
        floor = stack.enter_context(floor_server(stack.enter_context(empty_directory())))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = runner.run(compare(servers, floor, amounts, scale.turns(TURNS), warm_up=not scale.quick))
    tables = [throughput(figures), processor_times(figures), latency(figures), latency_ratios(figures)]
    report("client. The client over the network, against other brokers' clients", TEXT, *tables)


if __name__ == "__main__":
    main()
