"""What `/stats` shows: topics, channels and clients in nsqd's words, as documents for JSON or as text.

Counts come out of the store when somebody asks. What a field means where nsqd and Penstock differ:

    backend_depth    all of the depth: everything is on the disk
    message_count    all that a topic or a channel was ever given, over restarts as well

How long messages take from being sent to being finished: percentiles over a sliding window.

How it works. Times go into a histogram whose buckets grow with the time: sixteen to each doubling, so that a bucket's
middle is at most 2.2 % off. There are two histograms, each for half of the window. The older one is thrown away when a
half has passed; so an answer covers between a half and the whole of the window, as nsqd's does. To note a run of
messages is one addition to one bucket: its size does not matter, and neither does the number of
messages for the memory, which is 2 x 3 KB.
"""

from __future__ import annotations

import asyncio
import gc
import platform
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from heapq import merge
from itertools import islice

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.commands import ChannelStats, Stats
from penstock.core.errors import QueueDamaged, QueueNotFound
from penstock.protocols.lookup.registry import Load
from penstock.protocols.nsq.client import Client
from penstock.protocols.nsq.topics import Topics
from penstock.protocols.nsq.wire import is_name
from penstock.server.shards import QueueView

_PER_DOUBLING = 16
_DOUBLINGS = 45
"""2**45 ms is a thousand years."""
_BUCKETS = _PER_DOUBLING * _DOUBLINGS + 1
"""The first bucket holds what took less than half a millisecond: the store's times are whole milliseconds."""
_MS_NS = 1_000_000
_FLOOR_MS = 0.5


class Percentile(msgspec.Struct, frozen=True):
    """One of the percentiles of a result; `value` in nanoseconds, as nsqd gives it."""

    quantile: float
    value: float


class LatencyResult(msgspec.Struct, frozen=True):
    """What `/stats` shows; `percentiles` is None when none are configured."""

    count: int = 0
    percentiles: list[Percentile] | None = None


class LatencyWindow:
    """The latencies of one channel.

    >>> window = LatencyWindow([0.5, 0.99], window_s=600)
    >>> window.note(10.0, count=98, now_s=0.0)
    >>> window.note(5_000.0, count=2, now_s=1.0)
    >>> result = window.result(now_s=1.0)
    >>> result.count, [round(each.value / 1e6) for each in result.percentiles]
    (100, [10, 4978])
    """

    __slots__ = ("_half_s", "_newer", "_older", "_turns_s", "percentiles")

    def __init__(self, percentiles: Sequence[float], window_s: float = 600.0) -> None:
        self.percentiles = tuple(percentiles)
        self._half_s = window_s / 2
        self._newer: NDArray[np.uint32] | None = None
        self._older: NDArray[np.uint32] | None = None
        self._turns_s = 0.0
        """When the newer half becomes the older one. The halves are made when there is something to note."""

    def note(self, latency_ms: float, count: int, now_s: float) -> None:
        """This many messages took this long."""
        if self.percentiles:
            self._current(now_s)[_bucket(latency_ms)] += count

    def result(self, now_s: float) -> LatencyResult:
        return result_of([self], self.percentiles, now_s)

    def counts(self, now_s: float) -> NDArray[np.uint64]:
        """Messages in each bucket, over the window."""
        self._turn(now_s)
        total = np.zeros(_BUCKETS, np.uint64)
        for half in (self._newer, self._older):
            if half is not None:
                total += half
        return total

    def _current(self, now_s: float) -> NDArray[np.uint32]:
        self._turn(now_s)
        if self._newer is None:
            self._newer = np.zeros(_BUCKETS, np.uint32)
            self._turns_s = now_s + self._half_s
        return self._newer

    def _turn(self, now_s: float) -> None:
        """Throw away what is out of the window."""
        if now_s < self._turns_s:
            return
        is_recent = now_s < self._turns_s + self._half_s
        self._older = self._newer if is_recent else None
        self._newer = None
        if self._older is not None:
            self._turns_s += self._half_s
            self._newer = np.zeros(_BUCKETS, np.uint32)


def result_of(windows: Iterable[LatencyWindow], percentiles: Sequence[float], now_s: float) -> LatencyResult:
    """The percentiles of several windows together: those of a topic, out of its channels'.

    >>> result_of([], [0.5], now_s=0.0)
    LatencyResult(count=0, percentiles=[Percentile(quantile=0.5, value=0.0)])
    >>> result_of([], [], now_s=0.0)
    LatencyResult(count=0, percentiles=None)
    """
    if not percentiles:
        return LatencyResult()
    total = sum((window.counts(now_s) for window in windows), np.zeros(_BUCKETS, np.uint64))
    reached = np.cumsum(total)
    count = int(reached[-1])
    return LatencyResult(count, [Percentile(each, _value_ns(reached, each)) for each in percentiles])


def _value_ns(reached: NDArray[np.uint64], quantile: float) -> float:
    count = int(reached[-1])
    if not count:
        return 0.0
    rank = max(1, int(np.ceil(quantile * count)))
    return _middle_ms(int(np.searchsorted(reached, rank))) * _MS_NS


def _bucket(latency_ms: float) -> int:
    if latency_ms < _FLOOR_MS:
        return 0
    return min(int(np.log2(latency_ms / _FLOOR_MS) * _PER_DOUBLING) + 1, _BUCKETS - 1)


def _middle_ms(bucket: int) -> float:
    return 0.0 if bucket == 0 else float(_FLOOR_MS * 2 ** ((bucket - 0.5) / _PER_DOUBLING))


_TOPICS_AT_ONCE = 25
"""Counted in one step of the shard, and described in one turn, so that others get their turn in between."""
_JOINED_IN_LOOP_MAX = 1024 * 1024
"""Bytes; more are put together in a thread, which leaves the interpreter to others meanwhile."""


class PublishedCount(msgspec.Struct):
    """What a client has published to a topic."""

    topic: str
    count: int


class ClientDocument(msgspec.Struct):
    client_id: str
    hostname: str
    version: str
    remote_address: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    deflate: bool
    snappy: bool
    user_agent: str
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    authed: bool | msgspec.UnsetType = msgspec.UNSET
    auth_identity: str | msgspec.UnsetType = msgspec.UNSET
    pub_counts: list[PublishedCount] | msgspec.UnsetType = msgspec.UNSET
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False


class ChannelDocument(msgspec.Struct):
    """One channel. `clients` is None when they are not asked for."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: list[ClientDocument] | None
    paused: bool
    e2e_processing_latency: LatencyResult


class TopicDocument(msgspec.Struct):
    """One topic with its channels."""

    topic_name: str
    channels: list[ChannelDocument]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: LatencyResult


class MemoryDocument(msgspec.Struct):
    """The process's memory, as far as Python has what Go has; zeros elsewhere."""

    heap_objects: int
    heap_idle_bytes: int
    heap_in_use_bytes: int
    heap_released_bytes: int
    gc_pause_usec_100: int
    gc_pause_usec_99: int
    gc_pause_usec_95: int
    next_gc_bytes: int
    gc_total_runs: int


class StatsDocument(msgspec.Struct):
    """All of `/stats?format=json`."""

    version: str
    health: str
    start_time: int
    topics: None
    """They are put in as they are counted: see `written`."""
    producers: list[ClientDocument] | None
    memory: MemoryDocument | msgspec.UnsetType = msgspec.UNSET


class Latencies:
    """How long messages take from send to FIN, by channel: hears of every FIN."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.percentiles: Sequence[float] = tuple(topics.settings.latency_percentiles)
        self._windows: dict[str, dict[str, LatencyWindow]] = {}
        if self.percentiles:
            topics.finish_listeners.append(self._finished)
            topics.listeners.append(self._changed)

    def of_channel(self, topic: str, channel: str, now_s: float) -> LatencyResult:
        window = self._windows.get(topic, {}).get(channel)
        return result_of(() if window is None else (window,), self.percentiles, now_s)

    def of_topic(self, topic: str, now_s: float) -> LatencyResult:
        """The percentiles of all channels of a topic together."""
        return result_of(self._windows.get(topic, {}).values(), self.percentiles, now_s)

    def _finished(self, topic: str, channel: str, sent: list[tuple[int, int]]) -> None:
        windows = self._windows.setdefault(topic, {})
        window = windows.get(channel)
        if window is None:
            window = windows[channel] = LatencyWindow(self.percentiles, self._topics.settings.latency_window_s)
        now_ms, now_s = self._topics.shard.now_ms(), time.monotonic()
        for sent_ms, count in sent:
            window.note(now_ms - sent_ms, count, now_s)

    def _changed(self, event: str, topic: str, channel: str | None) -> None:
        """What is gone needs no memory."""
        if event == "queue deleted":
            self._windows.pop(topic, None)
        elif event == "channel deleted" and channel is not None:
            self._windows.get(topic, {}).pop(channel, None)


async def count(topics: Topics, names: Iterable[str]) -> dict[str, Stats]:
    """The exact counts of some topics, by name; without those that are gone meanwhile."""
    found: dict[str, Stats] = {}
    for reply in await asyncio.gather(*map(topics.stats, names), return_exceptions=True):
        if isinstance(reply, BaseException):
            if not isinstance(reply, QueueNotFound | QueueDamaged):
                raise reply
        else:
            found[reply.name] = reply
    return found


def read_loads(topics: Topics) -> Iterator[tuple[str, Load]]:
    """Every topic that NSQ can name, with what waits there and who reads: what lookup services are told.

    Counts that the core keeps anyway: microseconds for each channel. Topics may come and go between two of them.
    """
    queues = topics.shard.identity.local_queues
    for name in topics.shard.identity.part_names():
        queue = queues.get(name)
        if queue is not None and is_name(name):
            yield name, _load(topics, queue)


def _load(topics: Topics, queue: QueueView) -> Load:
    channels = {
        name: (channel.ready, len(topics.clients(queue.name, name)))
        for name, channel in queue.channels.items()
        if is_name(name)
    }
    depth = queue.backlog + sum(ready for ready, _ in channels.values())
    return Load(depth, sum(readers for _, readers in channels.values()), channels)


def _nothing_of(topic: str, channels: Iterable[str]) -> Stats:
    """A topic whose messages are at other nodes: there is nothing here, but the clients are."""
    empty = {name: ChannelStats(name, 0, 0, 0, 0, 0, 0, False, None, 0) for name in channels}
    return Stats(
        name=topic,
        messages=0,
        bytes=0,
        delayed=0,
        sent=0,
        quarantined=0,
        oldest_ms=None,
        next_sequence=0,
        channels=empty,
        consumers={},
    )


class StatsReport:
    """Makes the documents: which topics and channels, and whether with clients."""

    def __init__(self, topics: Topics, latencies: Latencies, *, with_clients: bool, topic: str, channel: str) -> None:
        self._topics = topics
        self._latencies = latencies
        self._with_clients = with_clients
        self._topic = topic
        self._channel = channel
        """Empty: all."""
        self._now_s = time.monotonic()

    def has_topic(self, may_read: Callable[[str], bool]) -> bool:
        """Whether the topic that was asked for is there; yes, if none was named."""
        topic = self._topic
        if not topic:
            return True
        return may_read(topic) and (topic in self._queues or topic in self._topics.subscribed())

    async def topics(self, may_read: Callable[[str], bool]) -> AsyncIterator[list[TopicDocument]]:
        """The topics that were asked for, in order, some at a time."""
        read_here = self._topics.subscribed()
        of_other_nodes = {name: channels for name, channels in read_here.items() if name not in self._queues}
        names = iter([self._topic]) if self._topic else merge(self._part_names(), sorted(of_other_nodes))
        while run := list(islice(names, _TOPICS_AT_ONCE)):
            wanted = [name for name in run if may_read(name) and self._has_channel(name, of_other_nodes)]
            counted = await count(self._topics, [name for name in wanted if name not in of_other_nodes])
            counted |= {name: _nothing_of(name, of_other_nodes[name]) for name in wanted if name in of_other_nodes}
            yield [self._topic_document(counted[name]) for name in wanted if name in counted]
            await asyncio.sleep(0)

    @property
    def _queues(self) -> Mapping[str, QueueView]:
        return self._topics.shard.identity.local_queues

    def _part_names(self) -> Iterator[str]:
        return self._topics.shard.identity.part_names()

    def _has_channel(self, topic: str, of_other_nodes: Mapping[str, list[str]]) -> bool:
        if not self._channel:
            return True
        queue = self._queues.get(topic)
        return self._channel in (of_other_nodes.get(topic, ()) if queue is None else queue.channels)

    def producers(self) -> list[ClientDocument] | None:
        """The clients that have published."""
        if not self._with_clients:
            return None
        return [self._client_document(client) for client in self._topics.producers] or None

    def _topic_document(self, stats: Stats) -> TopicDocument:
        channels = [stats.channels[name] for name in sorted(stats.channels) if self._channel in ("", name)]
        return TopicDocument(
            topic_name=stats.name,
            channels=[self._channel_document(stats, channel) for channel in channels],
            depth=stats.backlog,
            backend_depth=stats.backlog,
            message_count=stats.sent,
            message_bytes=stats.sent_bytes,
            paused=stats.paused,
            e2e_processing_latency=self._latencies.of_topic(stats.name, self._now_s),
        )

    def _channel_document(self, stats: Stats, channel: ChannelStats) -> ChannelDocument:
        clients = self._topics.clients(stats.name, channel.name)
        return ChannelDocument(
            channel_name=channel.name,
            depth=channel.ready,
            backend_depth=channel.ready,
            in_flight_count=channel.leased,
            deferred_count=channel.delayed,
            message_count=channel.ready + channel.leased + channel.delayed + channel.acked + channel.dead,
            requeue_count=self._topics.requeues.get((stats.name, channel.name), 0),
            timeout_count=channel.expired,
            client_count=len(clients),
            clients=[self._client_document(client) for client in clients] if self._with_clients else None,
            paused=channel.paused,
            e2e_processing_latency=self._latencies.of_channel(stats.name, channel.name, self._now_s),
        )

    def _client_document(self, client: Client) -> ClientDocument:
        published = [
            PublishedCount(topic, count) for topic, count in client.published.items() if self._topic in ("", topic)
        ]
        return ClientDocument(
            client_id=client.client_id,
            hostname=client.hostname,
            version="V2",
            remote_address=client.remote_address,
            state=int(client.state),
            ready_count=client.ready_count,
            in_flight_count=self._topics.in_flight(client),
            message_count=client.message_count,
            finish_count=client.finish_count,
            requeue_count=client.requeue_count,
            connect_ts=int(client.connected_s),
            sample_rate=client.sample_rate,
            deflate=client.deflate,
            snappy=client.snappy,
            user_agent=client.user_agent,
            tls=bool(client.tls_version),
            tls_cipher_suite=client.tls_cipher,
            tls_version=client.tls_version,
            authed=True if client.identity is not None else msgspec.UNSET,
            auth_identity=client.identity or msgspec.UNSET,
            pub_counts=published or msgspec.UNSET,
        )


def memory() -> MemoryDocument:
    runs = sum(generation["collections"] for generation in gc.get_stats())
    return MemoryDocument(sys.getallocatedblocks(), 0, _resident_bytes(), 0, 0, 0, 0, 0, runs)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1_024)


# -- in writing --------------------------------------------------------------------------------------------------------


async def written(
    document: StatsDocument, topics: AsyncIterator[list[TopicDocument]] | None, *, as_json: bool, now_s: float
) -> bytes:
    """The whole answer, with the topics as they come: as JSON, or for people, laid out as nsqd does it."""
    if as_json:
        write, separator = msgspec.json.encode, b","
    else:
        write, separator = partial(_topic_text, now_s=now_s), b"\n"
    parts: list[bytes] = []
    if topics is not None:
        async for run in topics:
            if run:
                parts += [separator] * bool(parts) + [separator.join(map(write, run))]
    if as_json:
        before, placeholder, after = msgspec.json.encode(document).partition(b'"topics":null')
        parts = [before, placeholder, after] if topics is None else [before, b'"topics":[', *parts, b"]", after]
    else:
        heading = "Topics:" if parts else "Topics: None"
        parts = [_text([*_head_lines(document, now_s), "", heading]), *parts, _text(_tail_lines(document, now_s))]
    if sum(map(len, parts)) <= _JOINED_IN_LOOP_MAX:
        return b"".join(parts)
    return await asyncio.to_thread(_joined, parts)


def _joined(parts: list[bytes]) -> bytes:
    """All parts as one. They go one by one: to let go of many megabytes at once takes the interpreter milliseconds."""
    text = b"".join(parts)
    while parts:
        parts.pop()
    return text


def _head_lines(document: StatsDocument, now_s: float) -> list[str]:
    started = datetime.fromtimestamp(document.start_time, UTC).isoformat().replace("+00:00", "Z")
    lines = [
        f"nsqd v{document.version} (penstock, python {platform.python_version()})",
        f"start_time {started}",
        f"uptime {duration(now_s - document.start_time)}",
        "",
        f"Health: {document.health}",
    ]
    if isinstance(document.memory, MemoryDocument):
        lines += ["", "Memory:"]
        lines += [f"   {name:<25}\t{value}" for name, value in msgspec.structs.asdict(document.memory).items()]
    return lines


def _tail_lines(document: StatsDocument, now_s: float) -> list[str]:
    lines = ["", "Producers:" if document.producers else "Producers: None"]
    return lines + [f"   {_client_line(client, now_s)}" for client in document.producers or ()]


def _topic_text(topic: TopicDocument, now_s: float) -> bytes:
    return _text(_topic_lines(topic, now_s))


def _text(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _topic_lines(topic: TopicDocument, now_s: float) -> list[str]:
    lines = [
        f"{'*P ' if topic.paused else '   '}[{topic.topic_name:<15}] depth: {topic.depth:<5} "
        f"be-depth: {topic.backend_depth:<5} msgs: {topic.message_count:<8} "
        f"e2e%: {_latency_text(topic.e2e_processing_latency)}",
    ]
    for channel in topic.channels:
        lines.append(
            f"   {'*P ' if channel.paused else '   '}[{channel.channel_name:<25}] depth: {channel.depth:<5} "
            f"be-depth: {channel.backend_depth:<5} inflt: {channel.in_flight_count:<4} "
            f"def: {channel.deferred_count:<4} re-q: {channel.requeue_count:<5} "
            f"timeout: {channel.timeout_count:<5} msgs: {channel.message_count:<8} "
            f"e2e%: {_latency_text(channel.e2e_processing_latency)}"
        )
        lines += [f"        {_client_line(client, now_s)}" for client in channel.clients or ()]
    return lines


def _client_line(client: ClientDocument, now_s: float) -> str:
    port = client.remote_address.rpartition(":")[2]
    who = f"{client.hostname}:{port} {client.user_agent}"
    connected = duration(int(now_s) - client.connect_ts)
    if isinstance(client.pub_counts, list):
        total = sum(each.count for each in client.pub_counts)
        topics = ",".join(f"{each.topic}={each.count}" for each in client.pub_counts)
        return _one_line(f"[{client.version} {who:<21}] msgs: {total:<8} topics: {topics} connected: {connected}")
    return _one_line(
        f"[{client.version} {who:<21}] state: {client.state} inflt: {client.in_flight_count:<4} "
        f"rdy: {client.ready_count:<4} fin: {client.finish_count:<8} re-q: {client.requeue_count:<8} "
        f"msgs: {client.message_count:<8} connected: {connected}"
    )


def _one_line(text: str) -> str:
    """What clients say of themselves adds no lines."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)


def _latency_text(result: LatencyResult) -> str:
    return ", ".join(_human(each.value) for each in result.percentiles or ())


def _human(nanoseconds: float) -> str:
    """A time as nsqd writes it.

    >>> _human(1_500_000.0), _human(12.0)
    ('1.5ms', '12.0ns')
    """
    for divisor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds > divisor:
            return f"{nanoseconds / divisor:.1f}{unit}"
    return f"{nanoseconds:.1f}ns"


def duration(seconds: float) -> str:
    """A length of time as Go writes it.

    >>> duration(3_725.5), duration(59), duration(0)
    ('1h2m5.5s', '59s', '0s')
    """
    minutes, rest_s = divmod(max(0.0, seconds), 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{round(rest_s, 6):g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
