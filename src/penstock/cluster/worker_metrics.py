"""What the workers of a machine count, told by any of them: families that travel, and say whose they are."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

_Samples = list[tuple[str, dict[str, str], float]]


class _Family(msgspec.Struct, array_like=True):
    name: str
    documentation: str
    kind: str
    unit: str
    samples: _Samples


_decode = msgspec.msgpack.Decoder(list[_Family]).decode


def pack_families(families: Iterable[Metric]) -> bytes:
    """Families as they travel.

    >>> from prometheus_client.core import GaugeMetricFamily
    >>> packed = pack_families([GaugeMetricFamily("depth", "How deep.", value=3)])
    >>> [(family.name, family.samples[0].value) for family in unpack_families(packed)]
    [('depth', 3.0)]
    """
    return msgspec.msgpack.encode(
        [
            _Family(
                family.name,
                family.documentation,
                family.type,
                family.unit,
                [(sample.name, sample.labels, float(sample.value)) for sample in family.samples],
            )
            for family in families
        ]
    )


def unpack_families(packed: bytes) -> list[Metric]:
    """Families as another worker has packed them."""
    return [_unpacked(family) for family in _decode(packed)]


def _unpacked(family: _Family) -> Metric:
    made = Metric(family.name, family.documentation, family.kind, family.unit)
    made.samples = [Sample(name, labels, value) for name, labels, value in family.samples]
    return made


def labelled(families: Iterable[Metric], worker: int) -> list[Metric]:
    """The families, each sample with a label that says which worker counted it.

    >>> from prometheus_client.core import GaugeMetricFamily
    >>> labelled([GaugeMetricFamily("depth", "How deep.", value=3)], 2)[0].samples[0].labels
    {'worker': '2'}
    """
    found = list(families)
    for family in found:
        family.samples = [sample._replace(labels={**sample.labels, "worker": str(worker)}) for sample in family.samples]
    return found
