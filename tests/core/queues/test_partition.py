"""The partition function gives what Kafka's gives.

The vectors were computed with `org.apache.kafka.common.utils.Utils.murmur2` of kafka-clients 3.7.0, and again with
kafka-python's: both agree. docs/rest.md publishes them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.core.queues.partition import murmur2, partition_of

VECTORS = [
    ("", 275646681, 25),
    ("a", 2731586172, 60),
    ("ab", 316155434, 42),
    ("abc", 479470107, 27),
    ("abcd", 2971317748, 52),
    ("orders", 3265125020, 28),
    ("orders.fifo", 2859920643, 3),
    ("penstock", 2086449332, 52),
    ("äöü", 2224052740, 4),
    ("naïve-Ω-😀", 874226492, 60),
]


@pytest.mark.parametrize(("name", "hashed", "partition"), VECTORS)
def test_murmur2_is_kafkas(name: str, hashed: int, partition: int) -> None:
    assert murmur2(name.encode()) == hashed
    assert partition_of(name, 64) == partition


def test_every_partition_gets_its_share() -> None:
    counts = [0] * 16
    for number in range(16_000):
        counts[partition_of(f"queue-{number}", 16)] += 1
    assert min(counts) > 800


def test_the_documentation_publishes_the_vectors() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "rest.md").read_text()
    rows = re.findall(r"^\| `(.*)` \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert [(name, int(hashed), int(partition)) for name, hashed, partition in rows] == VECTORS[1:]


OTHERS = re.compile(r"^\| `(.*)` \| (\d+) \| (-?\d+) \| (\d+) \| (\d+) \| (-\d+) \| (\d+) \|$", re.MULTILINE)


def test_the_documentation_shows_where_a_plain_modulo_of_the_hash_goes_wrong() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "rest.md").read_text()
    rows = OTHERS.findall(text)
    assert [row[0] for row in rows] == ["orders", "abcd"]
    for name, *numbers in rows:
        unsigned = murmur2(name.encode())
        signed = unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned
        truncated = -(-signed % 10)  # as C, Go, Java, JavaScript and Rust divide: the sign is the dividend's
        absolute = abs(signed) % 10
        right = partition_of(name, 10)
        assert [int(number) for number in numbers] == [unsigned, signed, right, unsigned % 10, truncated, absolute]
        assert right not in (unsigned % 10, truncated, absolute), "an example of what is wrong"
        assert {signed % 64, unsigned % 64} == {partition_of(name, 64)}, "not with a power of two"
