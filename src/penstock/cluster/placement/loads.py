"""What the shards of this node have to do: for the controller, for people, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.cluster.membership.ledger import LoadOfShard
from penstock.cluster.ownership.forwarder import forwarder_families
from penstock.cluster.ownership.ownership import Tenure
from penstock.server.metrics import traffic_families

SMOOTH_S = 20.0
"""Over what time rates are smoothed: a burst is no reason to move a shard."""


class LoadMeter:
    """Counts, now and then, what the shards do."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[float, int]] = {}
        self._loads: dict[int, LoadOfShard] = {}

    def measure(self, tenures: Mapping[int, Tenure], now_s: float) -> dict[int, LoadOfShard]:
        """The loads of the shards that are served here."""
        served = {shard: tenure for shard, tenure in tenures.items() if tenure.served is not None}
        self._loads = {shard: self._measure(shard, tenure, now_s) for shard, tenure in served.items()}
        self._counted = {shard: counted for shard, counted in self._counted.items() if shard in served}
        return self._loads

    def _measure(self, shard: int, tenure: Tenure, now_s: float) -> LoadOfShard:
        assert tenure.served is not None
        broker = tenure.served.identity
        totals = broker.totals
        total = totals.sent + totals.acked
        before_s, before = self._counted.get(shard, (now_s, total))
        self._counted[shard] = now_s, total
        old = self._loads.get(shard, LoadOfShard())
        passed_s = now_s - before_s
        rate = old.rate
        if passed_s > 0:
            weight = min(1.0, passed_s / SMOOTH_S)
            rate += weight * (max(0, total - before) / passed_s - rate)
        waiting = 0 if tenure.forwarder is None else sum(tenure.forwarder.stats().waiting.values())
        return LoadOfShard(round(rate, 1), totals.messages, totals.bytes, len(broker.queues), waiting)


def shard_families(tenures: Mapping[int, Tenure], loads: Mapping[int, LoadOfShard], node: str) -> Iterator[Metric]:
    """Metrics of each shard that is served here."""
    labels = ("shard", "node")
    epoch = GaugeMetricFamily("penstock_shard_epoch", "Served here, in this epoch.", labels=labels)
    commits = CounterMetricFamily("penstock_shard_commits", "Commits made durable.", labels=labels)
    seconds = CounterMetricFamily("penstock_shard_commit_seconds", "How long the commits took.", labels=labels)
    withheld = CounterMetricFamily(
        "penstock_shard_withheld_steps", "Steps whose messages stayed, for want of a proof.", labels=labels
    )
    for shard, tenure in sorted(tenures.items()):
        if tenure.served is not None and tenure.claimed is not None and tenure.proof is not None:
            of = (str(shard), node)
            epoch.add_metric(of, tenure.epoch)
            commits.add_metric(of, tenure.claimed.commits)
            seconds.add_metric(of, tenure.claimed.commit_s)
            withheld.add_metric(of, tenure.proof.withheld)
    yield from (epoch, commits, seconds, withheld)
    for name, text in _GAUGES.items():
        gauge = GaugeMetricFamily(f"penstock_shard_{name}", text, labels=labels)
        for shard, load in sorted(loads.items()):
            gauge.add_metric((str(shard), node), getattr(load, name))
        yield gauge
    served = {shard: tenure.served for shard, tenure in sorted(tenures.items())}
    totals = [((str(shard), node), each.identity.totals) for shard, each in served.items() if each is not None]
    yield from traffic_families(totals, labels)
    forwarders = {shard: tenure.forwarder for shard, tenure in sorted(tenures.items())}
    yield from forwarder_families({shard: each.stats() for shard, each in forwarders.items() if each is not None})


_GAUGES = {
    "rate": "Messages a second, in and out, smoothed.",
    "backlog": "Messages in the shard, whatever their state.",
    "bytes": "Bytes of those messages.",
    "queues": "Queues in the shard.",
    "outbox": "Entries that wait to be forwarded to other shards.",
}
