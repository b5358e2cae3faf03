"""What Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.server.metrics import render


def connections_of(protocol: str) -> Iterable[Metric]:
    family = GaugeMetricFamily("connections", "Connections now.", labels=("protocol",))
    family.add_metric((protocol,), 1)
    yield family


def test_a_family_that_several_front_ends_have_is_shown_once() -> None:
    text = render([lambda: connections_of("sqs"), lambda: connections_of("rest")]).decode()
    assert text.count("# TYPE connections gauge") == 1
    (family,) = text_string_to_metric_families(text)
    assert [sample.labels["protocol"] for sample in family.samples] == ["sqs", "rest"]
