"""The Kafka engine by itself, for `bench/cluster.py`: durable runs against a plain producer, and recovery of a shard.

By hand: `python -m bench.kafka_engine`, with a broker of its own, or `--bootstrap` for one that is there.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import tempfile
import time
import uuid
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.measure import RUN, Measured, bodies, per_second, plain, take_turns
from penstock.core.commands import Send
from penstock.server.clock import SystemClock
from penstock.server.shard import Shard
from penstock.server.tasks import AsyncShard
from penstock.store.kafka import KafkaOptions, open_kafka, prepare_topics
from tools.kafka import kafka_cluster

PRODUCER = "plain producer, acks=all"
ENGINE = "Kafka engine"
IN_FLIGHT = 8
ENTROPY = bytes(range(64))


def new_options(bootstrap: str, *, copies: int = 1, compression: str = "lz4") -> KafkaOptions:
    """A log of its own, with one shard."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    in_sync = max(1, copies - 1)
    return KafkaOptions(bootstrap, name, name, 1, copies, in_sync, commit_timeout_s=60.0, compression=compression)


def plain_producer(_directory: Path, *, options: KafkaOptions, runs: int) -> float:
    """The baseline: each message is one of Kafka's, sent as fast as the producer takes them, all acknowledged."""
    topic = f"{options.prefix}-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": options.bootstrap})
    config = {"min.insync.replicas": str(options.min_insync_replicas)}
    admin.create_topics([NewTopic(topic, 1, options.replication_factor, config=config)])[topic].result(60)
    settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 5, "compression.type": options.compression}
    producer = Producer({"bootstrap.servers": options.bootstrap, "queue.buffering.max.messages": 500_000, **settings})
    messages = bodies(RUN)
    produce_runs(producer, topic, messages, 10)
    started_at = time.perf_counter()
    produce_runs(producer, topic, messages, runs)
    return per_second(runs * RUN, started_at)


def produce_runs(producer: Producer, topic: str, messages: list[bytes], runs: int) -> None:
    """Send the messages so many times, and wait until all are acknowledged."""
    for _ in range(runs):
        for body in messages:
            while True:
                try:
                    producer.produce(topic, body)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
    assert producer.flush(120) == 0


def engine_runs(directory: Path, *, options: KafkaOptions, runs: int, in_flight: int = IN_FLIGHT) -> float:
    """Penstock: runs to one shard, several in flight; each is committed before it is answered."""
    options = replace(options, cluster=f"bench-{uuid.uuid4().hex[:8]}", prefix=f"bench-{uuid.uuid4().hex[:8]}")
    return asyncio.run(_send_runs(options, directory, runs, in_flight))


async def _send_runs(options: KafkaOptions, directory: Path, runs: int, in_flight: int) -> float:
    served = AsyncShard(open_shard(options, directory), commit_in_thread=True)
    try:
        await send_runs(served, 10, in_flight)
        started_at = time.perf_counter()
        await send_runs(served, runs, in_flight)
        return per_second(runs * RUN, started_at)
    finally:
        await served.close()


def open_shard(options: KafkaOptions, directory: Path) -> Shard:
    """The log's only shard, served from a directory."""
    topics = prepare_topics(options)
    return Shard(lambda: open_kafka(options, 0, directory, topics=topics), SystemClock(), lambda: ENTROPY)


async def send_runs(served: AsyncShard, runs: int, in_flight: int) -> None:
    """Send so many runs, `in_flight` at a time."""
    messages, left = bodies(RUN), iter(range(runs))

    async def send() -> None:
        for _ in left:
            await served.call(Send("runs", messages))

    await asyncio.gather(*(send() for _ in range(in_flight)))


def measure_runs(bootstrap: str, *, runs: int, turns: int, copies: int = 1, compression: str = "lz4") -> Measured:
    """Both contenders, in turns, on the same broker."""
    options = new_options(bootstrap, copies=copies, compression=compression)
    contenders = {
        PRODUCER: partial(plain_producer, options=options, runs=runs),
        ENGINE: partial(engine_runs, options=options, runs=runs),
    }
    return take_turns(contenders, turns)


@dataclass(frozen=True)
class Recovery:
    """How long a shard takes to be served again."""

    messages: int
    cold_s: float
    """At a node that has never seen it."""
    cached_s: float
    """At the node that had it, with its cache."""
    memory_bytes: int
    """By how much the process grew while it recovered, cold, at most."""


def measure_recovery(bootstrap: str, messages: int) -> Recovery:
    """Fill a shard with messages that nobody takes, and open it elsewhere and again."""
    options = new_options(bootstrap)
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as elsewhere:
        asyncio.run(_send_runs(options, Path(home), messages // RUN, IN_FLIGHT))
        gc.collect()
        before_bytes = _reset_peak_bytes()
        cold_s = _opened_s(options, Path(elsewhere))
        memory_bytes = _peak_bytes() - before_bytes
        cached_s = _opened_s(options, Path(elsewhere))
        return Recovery(messages, cold_s, cached_s, memory_bytes)


def _opened_s(options: KafkaOptions, directory: Path) -> float:
    started_at = time.perf_counter()
    shard = open_shard(options, directory)
    seconds = time.perf_counter() - started_at
    shard.close()
    return seconds


def _reset_peak_bytes() -> int:
    """Forget the largest size that this process ever had; its size now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", help="brokers that are there; without, one is started")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--compression", default="lz4")
    parser.add_argument("--messages", type=int, default=1_000_000, help="live messages of the shard that recovers")
    given = parser.parse_args()
    if given.bootstrap:
        _print(given.bootstrap, given)
    else:
        with kafka_cluster(given.copies, heap_mb=1024) as kafka:
            _print(kafka.bootstrap, given)


def _print(bootstrap: str, given: argparse.Namespace) -> None:
    measured = measure_runs(
        bootstrap, runs=given.runs, turns=given.turns, copies=given.copies, compression=given.compression
    )
    for name in (PRODUCER, ENGINE):
        print(f"{name}: {plain(measured.rate(name))} messages/s")
    print(f"ratio: {measured.ratio(ENGINE, to=PRODUCER)}, load {os.getloadavg()[0]:.1f}")
    if given.messages:
        recovery = measure_recovery(bootstrap, given.messages)
        print(
            f"recovery of {recovery.messages} messages: cold {recovery.cold_s:.2f} s, with its cache "
            f"{recovery.cached_s:.2f} s, {recovery.memory_bytes >> 20} MiB more memory at most"
        )


if __name__ == "__main__":
    main()
