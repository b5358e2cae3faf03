"""What the server counts, in Prometheus' format.

Requests are counted on the hot path, so `RequestMeter` keeps plain lists and makes Prometheus' families of them only
when somebody asks. Queues are not counted at all: their counts are exact in the core, and fetched when somebody asks.
However many queues there are, the text has all of them added up, and a bounded number of them one by one: see `tally`.
"""

from __future__ import annotations

import asyncio
import gc
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from penstock.core.broker import Totals
from penstock.core.commands import ChannelStats, Stats
from penstock.server.tally import Tally
from penstock.store.base import StoreStats

CONTENT_TYPE = CONTENT_TYPE_LATEST
BOUNDS_S: tuple[float, ...] = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
"""The upper bounds of the duration histogram. The last is SQS's longest poll."""
BOUNDS: Final[list[float]] = list(BOUNDS_S)
_bisect: Final = bisect_left
_SERIES_MAX: Final = 10_000
"""No client can fill the memory with labels of its own making."""
_SAMPLES_PER_PIECE: Final = 200
_QUEUES_PER_SOURCE: Final = 50

Source = Callable[[], Iterable[Metric]]


class Durations:
    """How long the requests for one action took: a bucket for each bound, and one for what is above."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets: list[int] = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def cumulated(self) -> list[tuple[str, float]]:
        """How many took at most so long, by bound."""
        total, found = 0, []
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self.buckets, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class Series:
    """Requests of one protocol for one action that ended in one way: for who counts many of them."""

    __slots__ = ("count", "durations")

    def __init__(self, durations: Durations) -> None:
        self.count = 0
        self.durations = durations


class RequestMeter:
    """Counts requests and their durations, by protocol, action and outcome.

    >>> meter = RequestMeter()
    >>> meter.note("sqs", "SendMessage", "ok", 0.0015)
    >>> [family.name for family in meter.families()]
    ['penstock_requests', 'penstock_request_duration_seconds']
    """

    __slots__ = ("_durations", "_series")

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str], Series] = {}
        self._durations: dict[tuple[str, str], Durations] = {}

    def note(self, protocol: str, action: str, outcome: str, seconds: float) -> None:
        series = self._series.get((protocol, action, outcome)) or self.series(protocol, action, outcome)
        if series is not None:
            series.count += 1
            series.durations.seconds += seconds
            series.durations.buckets[_bisect(BOUNDS, seconds)] += 1

    def series(self, protocol: str, action: str, outcome: str) -> Series | None:
        """Where requests with these labels are counted; None if there are too many labels already."""
        series = self._series.get((protocol, action, outcome))
        if series is None and len(self._series) < _SERIES_MAX:
            durations = self._durations.setdefault((protocol, action), Durations())
            series = self._series[protocol, action, outcome] = Series(durations)
        return series

    def families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "penstock_requests", "Requests answered.", labels=("protocol", "action", "outcome")
        )
        for labels, series in self._series.items():
            if series.count:
                requests.add_metric(labels, series.count)
        yield requests
        durations = HistogramMetricFamily(
            "penstock_request_duration_seconds", "From request to response.", labels=("protocol", "action")
        )
        for pair, of_action in self._durations.items():
            durations.add_metric(pair, of_action.cumulated(), of_action.seconds)
        yield durations


def tally_families(tally: Tally) -> Iterator[Metric]:
    """All queues added up, and how many of them have no series of their own."""
    yield GaugeMetricFamily("penstock_queues", "Queues.", value=tally.queues)
    yield GaugeMetricFamily(
        "penstock_queues_not_shown",
        "Queues without series of their own: see [metrics] in the settings.",
        value=tally.not_shown,
    )
    for name, text, count in _TALLY_GAUGES:
        yield GaugeMetricFamily(f"penstock_all_queues_{name}", text, value=tally.counts[count])


_TALLY_GAUGES: tuple[tuple[str, str, str], ...] = (
    ("messages", "Messages in the store, whatever their state.", "messages"),
    ("bytes", "Bytes of the messages in the store.", "bytes"),
    ("quarantined_messages", "Messages in damaged chunks.", "quarantined"),
    ("ready_messages", "Messages that can be received now, in all channels.", "ready"),
    ("leased_messages", "Messages in flight, in all channels.", "leased"),
    ("delayed_messages", "Delayed messages, which are not yet due, in all channels.", "delayed"),
)


def traffic_families(
    totals: Iterable[tuple[tuple[str, ...], Totals]], labels: tuple[str, ...] = ()
) -> Iterator[Metric]:
    """What happened to messages in all queues since a shard was opened here, those that are gone included, by shard."""
    shards = list(totals)
    for name, text, count in _TRAFFIC:
        family = CounterMetricFamily(f"penstock_{name}", text, labels=labels)
        for of_shard, each in shards:
            family.add_metric(of_shard, count(each))
        yield family


_TRAFFIC: tuple[tuple[str, str, Callable[[Totals], float]], ...] = (
    ("messages_sent", "Messages sent, to any queue.", lambda totals: totals.sent),
    ("messages_acked", "Messages acknowledged, in any channel.", lambda totals: totals.acked),
    ("deliveries_failed", "Deliveries released, or whose lease ran out.", lambda totals: totals.failed),
    ("messages_dead", "Messages sent to a dead-letter queue.", lambda totals: totals.dead),
)


def queue_sources(queues: Sequence[Stats]) -> list[Source]:
    """The counts of queues and their channels, exact; some queues in each source."""
    runs = [queues[at : at + _QUEUES_PER_SOURCE] for at in range(0, len(queues), _QUEUES_PER_SOURCE)]
    return [partial(queue_families, run) for run in runs or [queues]]


def queue_families(all_queues: Sequence[Stats]) -> Iterator[Metric]:
    """The counts of queues and their channels, exact."""
    for name, text, of_queue in _QUEUE_GAUGES:
        gauge = GaugeMetricFamily(f"penstock_queue_{name}", text, labels=("queue",))
        for stats in all_queues:
            gauge.add_metric((stats.name,), of_queue(stats))
        yield gauge
    sent = CounterMetricFamily("penstock_queue_messages_sent", "Messages ever sent to the queue.", labels=("queue",))
    for stats in all_queues:
        sent.add_metric((stats.name,), stats.sent)
    yield sent
    for name, text, is_counter, of_channel in _CHANNEL_SERIES:
        family_of = CounterMetricFamily if is_counter else GaugeMetricFamily
        family = family_of(f"penstock_channel_{name}", text, labels=("queue", "channel"))
        for stats in all_queues:
            for channel in stats.channels.values():
                family.add_metric((stats.name, channel.name), of_channel(channel))
        yield family


_QUEUE_GAUGES: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("messages", "Messages in the store, whatever their state.", lambda stats: stats.messages),
    ("bytes", "Bytes of the messages in the store.", lambda stats: stats.bytes),
    ("quarantined_messages", "Messages in damaged chunks.", lambda stats: stats.quarantined),
)

_CHANNEL_SERIES: tuple[tuple[str, str, bool, Callable[[ChannelStats], float]], ...] = (
    ("ready_messages", "Messages that can be received now.", False, lambda channel: channel.ready),
    ("leased_messages", "Messages in flight.", False, lambda channel: channel.leased),
    ("delayed_messages", "Delayed messages, which are not yet due.", False, lambda channel: channel.delayed),
    ("waiting_receivers", "Receives that wait for messages.", False, lambda channel: channel.waiting_receivers),
    (
        "oldest_message_timestamp_seconds",
        "When the oldest message that is not done was sent; 0 if there is none.",
        False,
        lambda channel: (channel.oldest_ms or 0) / 1_000,
    ),
    ("acked_messages", "Messages acknowledged.", True, lambda channel: channel.acked),
    ("failed_deliveries", "Deliveries released, or whose lease ran out.", True, lambda channel: channel.failed),
    ("dead_messages", "Messages sent to the dead-letter queue.", True, lambda channel: channel.dead),
)


def store_families(stats: StoreStats) -> Iterator[Metric]:
    for name, text, value in (
        ("commits", "Commits made durable.", stats.commits),
        ("commits_waited", "Commits that had to wait for the table.", stats.commits_waited),
        ("chunks_died_young", "Chunks consumed before they were written to the table.", stats.chunks_died_young),
        ("chunks_applied", "Chunks written to the table.", stats.chunks_applied),
        ("apply_failures", "Times that the table could not be written.", stats.apply_failures),
    ):
        yield CounterMetricFamily(f"penstock_store_{name}", text, value=value)
    yield GaugeMetricFamily(
        "penstock_store_unapplied_bytes", "Bytes in memory that are not yet in the table.", value=stats.unapplied_bytes
    )


class ProcessMetrics:
    """Memory, processor time, open files and garbage collection of this process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        if hasattr(gc, "callbacks"):
            GCCollector(registry=self._registry)

    def families(self) -> Iterable[Metric]:
        return self._registry.collect()


class _Family(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def pieces(sources: Iterable[Source]) -> Iterator[bytes]:
    """The text that Prometheus reads, a piece at a time: between two pieces, others can have their turn.

    Every family comes once: several front ends may have samples of the same. Pieces are empty until all are gathered.
    """
    families: dict[str, Metric] = {}
    for source in sources:
        for family in source():
            known = families.setdefault(family.name, family)
            if known is not family:
                known.samples.extend(family.samples)
        yield b""
    for family in families.values():
        yield from _pieces_of(family)


def _pieces_of(family: Metric) -> Iterator[bytes]:
    samples = family.samples
    for at in range(0, len(samples) or 1, _SAMPLES_PER_PIECE):
        family.samples = samples[at : at + _SAMPLES_PER_PIECE]
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Family(family))
        text = generate_latest(registry)
        yield text.split(b"\n", 2)[2] if at else text  # HELP and TYPE come once


def render(sources: Iterable[Source]) -> bytes:
    """The text that Prometheus reads."""
    return b"".join(pieces(sources))


async def render_in_passing(sources: Iterable[Source]) -> bytes:
    """As `render`, letting others have their turn in between."""
    found: list[bytes] = []
    for piece in pieces(sources):
        found.append(piece)
        await asyncio.sleep(0)
    return b"".join(found)
