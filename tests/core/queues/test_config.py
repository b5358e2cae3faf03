"""Configuration: every range at both ends, every backoff shape, every name."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidConfig, InvalidName
from penstock.core.queues.config import DEFAULT_BACKOFF, SETTINGS, Backoff, QueueConfig, check_name, dead_letter_name

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

RANGES: dict[str, tuple[int, int]] = {
    "lease_ms": (0, 12 * HOUR_MS),
    "retention_ms": (60_000, 14 * DAY_MS),
    "retention_bytes": (1, 1 << 62),
    "delay_ms": (0, 100 * 366 * DAY_MS),
    "message_bytes_max": (1, 256 * 1024 * 1024),
    "receive_wait_ms": (0, 20_000),
    "max_receives": (0, 1_000),
    "consume_times": (1, 1_000),
    "partitions": (1, 1_024),
    "in_flight_max": (1, 10_000_000),
    "consumer_retention_ms": (60_000, 100 * 366 * DAY_MS),
}


@pytest.mark.parametrize(("name", "ends"), RANGES.items())
def test_setting_is_taken_at_both_ends_of_its_range_and_refused_beyond(name: str, ends: tuple[int, int]) -> None:
    low, high = ends
    for value in (low, high):
        assert getattr(QueueConfig().changed({name: value}), name) == value
    for value in (low - 1, high + 1):
        said = f"{name} is {value}: it must be from {low} to {high}"
        if name.endswith("_ms"):  # as callers give it
            shown, least, most = (f"{time_ms / 1_000:.15g}" for time_ms in (value, low, high))
            said = f"{name[:-3]} is {shown} seconds: it must be from {least} to {most} seconds"
        with pytest.raises(InvalidConfig, match=re.escape(said)):
            QueueConfig().changed({name: value})
        with pytest.raises(InvalidConfig):
            msgspec.structs.replace(QueueConfig(), **{name: value}).check()


def test_every_number_has_a_range_that_is_tested() -> None:
    numbers = {each.field for each in SETTINGS.values() if each.kind is int}
    assert numbers == {*RANGES, "throughput_per_second"}


def test_defaults_are_those_of_the_issue() -> None:
    config = QueueConfig()
    config.check()
    assert (config.lease_ms, config.retention_ms, config.message_bytes_max) == (30_000, 4 * DAY_MS, 1024 * 1024)
    assert (config.kind, config.policy, config.receive_wait_ms, config.delay_ms) == ("standard", "at_least_once", 0, 0)


@pytest.mark.parametrize("name", ["retention_ms", "retention_bytes", "consumer_retention_ms", "throughput_per_second"])
def test_setting_that_may_be_off_can_be_none(name: str) -> None:
    assert getattr(QueueConfig().changed({name: None}), name) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"lease": 5},
        {"lease_ms": "5"},
        {"lease_ms": 5.5},
        {"lease_ms": None},
        {"lease_ms": True},
        {"kind": "lifo"},
        {"policy": "maybe"},
        {"dedup_scope": "world"},
        {"backoff": {"shape": "quadratic"}},
        {"backoff": {"shape": "fixed", "base": 5}},
        {"backoff": {"shape": "fixed", "base_ms": -1}},
        {"backoff": {"shape": "fixed", "ceiling_ms": -1}},
        {"backoff": {"shape": "fixed", "base_ms": 1 << 64, "ceiling_ms": 1 << 64}},
        {"backoff": {"shape": "fixed", "base_ms": 1 << 62, "ceiling_ms": 1 << 62}},
        {"tags": {"a": 1}},
        {"tags": ["a"]},
        {"dead_letter": "not a name"},
    ],
)
def test_unknown_or_wrong_setting_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((InvalidConfig, InvalidName)):
        QueueConfig().changed(changes)


def test_refusal_of_an_unknown_setting_names_the_known_ones() -> None:
    with pytest.raises(InvalidConfig, match=r"no setting 'lease'.*lease_ms"):
        QueueConfig().changed({"lease": 5})


def test_change_leaves_the_rest_and_the_original_alone() -> None:
    config = QueueConfig(lease_ms=5, tags={"a": "b"}, backoff=Backoff("linear", base_ms=7))
    changed = config.changed({"max_receives": 2})
    assert changed.max_receives == 2
    assert (changed.lease_ms, changed.tags, changed.backoff) == (5, {"a": "b"}, Backoff("linear", base_ms=7))
    assert config.max_receives == 10


@pytest.mark.parametrize("setting", [{"content_dedup": True}, {"throughput_per_second": 5}])
def test_settings_of_fifo_queues_are_refused_elsewhere(setting: dict[str, Any]) -> None:
    QueueConfig(kind="fifo").changed(setting)
    with pytest.raises(InvalidConfig, match="FIFO"):
        QueueConfig().changed(setting)


def test_throughput_per_group_needs_dedup_per_group() -> None:
    QueueConfig(kind="fifo").changed({"throughput_scope": "group", "dedup_scope": "group"})
    with pytest.raises(InvalidConfig, match="dedup_scope"):
        QueueConfig(kind="fifo").changed({"throughput_scope": "group"})


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({}, 10),
        ({"max_receives": 0}, 0),
        ({"policy": "consume_once"}, 1),
        ({"policy": "consume_once", "max_receives": 0}, 1),
        ({"policy": "consume_times", "consume_times": 3}, 3),
        ({"policy": "consume_times", "consume_times": 30}, 10),
        ({"policy": "consume_times", "consume_times": 30, "max_receives": 0}, 30),
    ],
)
def test_last_allowed_delivery_is_the_smaller_of_policy_and_max_receives(settings: dict[str, Any], limit: int) -> None:
    config = QueueConfig().changed(settings)
    assert config.receives_max == limit
    assert config.leases_are_durable == ("policy" in settings)


def test_configuration_survives_its_stored_form() -> None:
    config = QueueConfig(kind="fifo", backoff=Backoff("exponential", seed=5), retention_ms=None, tags={"a": "b"})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=QueueConfig) == config


# -- backoff --

failures = st.integers(1, 1_000)
sequences = st.integers(0, 1 << 62)


@given(failures, sequences, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 1 << 62))
def test_no_backoff_is_below_zero_or_above_its_ceiling_and_each_is_the_same_again(
    failures: int, sequence: int, base_ms: int, ceiling_ms: int, seed: int
) -> None:
    for shape in ("none", "fixed", "linear", "exponential"):
        backoff = Backoff(shape, base_ms, ceiling_ms, seed)
        delay_ms = backoff.delay_ms(failures, sequence)
        assert 0 <= delay_ms <= ceiling_ms
        assert delay_ms == backoff.delay_ms(failures, sequence)


@given(failures, sequences)
def test_shapes_are_what_their_names_say(failures: int, sequence: int) -> None:
    assert Backoff("none").delay_ms(failures, sequence) == 0
    assert Backoff("fixed", base_ms=70).delay_ms(failures, sequence) == 70
    assert Backoff("linear", base_ms=70, ceiling_ms=1 << 40).delay_ms(failures, sequence) == 70 * failures


@given(st.integers(1, 30), sequences, st.integers(0, 1 << 30))
def test_exponential_backoff_stays_within_its_doubling_span(failures: int, sequence: int, seed: int) -> None:
    backoff = Backoff("exponential", base_ms=100, ceiling_ms=1 << 50, seed=seed)
    assert backoff.delay_ms(failures, sequence) <= 100 << (failures - 1)


def test_a_stored_queue_that_says_no_backoff_has_the_default_and_one_that_does_keeps_it() -> None:
    told = {"shape": "exponential", "base_ms": 200, "ceiling_ms": 3_600_000, "seed": 0}
    for stored, backoff in (({}, DEFAULT_BACKOFF), ({"backoff": told}, Backoff("exponential", base_ms=200))):
        config = msgspec.msgpack.decode(msgspec.msgpack.encode(stored), type=QueueConfig)
        assert config == QueueConfig(backoff=backoff)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(config)) == stored
    none = QueueConfig(backoff=Backoff("none"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(none), type=QueueConfig) == none


@given(sequences, st.integers(0, 1 << 62))
def test_by_default_the_last_of_ten_deliveries_is_more_than_a_minute_after_the_first(sequence: int, seed: int) -> None:
    backoff = msgspec.structs.replace(QueueConfig().backoff, seed=seed)
    assert QueueConfig().max_receives == 10
    waits_ms = [backoff.delay_ms(failures, sequence) for failures in range(1, 9)]  # the first failure waits for nothing
    assert sum(waits_ms) >= 85_000 - 8, "in pairs, of which each lasts as long as the shorter span at least"
    assert max(backoff.delay_ms(failures, sequence) for failures in range(1, 40)) <= 300_000


@pytest.mark.parametrize("failures", [1, 2, 3, 8])
def test_every_wait_is_spread_evenly_over_its_span(failures: int) -> None:
    backoff, span_ms = Backoff("exponential", base_ms=1_000), 1_000 << (failures - 1)
    waits_ms = [backoff.delay_ms(failures, sequence) for sequence in range(10_000)]
    tenths = Counter(min(9, wait_ms * 10 // span_ms) for wait_ms in waits_ms)
    assert all(800 < tenths[tenth] < 1_200 for tenth in range(10)), tenths


def test_jitter_uses_the_whole_span_and_differs_by_seed_and_message() -> None:
    backoff, other = Backoff("exponential", base_ms=1_000, seed=1), Backoff("exponential", base_ms=1_000, seed=2)
    delays = [backoff.delay_ms(1, sequence) for sequence in range(1_000)]
    assert 400 < sum(delays) / 1_000 < 600
    assert min(delays) < 50 and max(delays) > 950
    assert len(set(delays)) > 500
    assert delays != [other.delay_ms(1, sequence) for sequence in range(1_000)]


# -- names --

names = st.text("abcXYZ019._#-", min_size=1, max_size=128)


@given(names)
def test_usable_name_is_returned_as_it_is(name: str) -> None:
    assert check_name(name, "queue") == name


@pytest.mark.parametrize("name", ["", "x" * 129, "a b", "a\n", "ü", "a/b", "a:b", 5, None, b"a"])
def test_unusable_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidName, match="queue"):
        check_name(name, "queue")


@given(names | names.map(lambda name: f"{name[:123]}.dead") | names.map(lambda name: f"{name[:118]}.dead.fifo"))
def test_own_dead_letter_queue_has_a_usable_name_that_is_another(name: str) -> None:
    found = dead_letter_name(name)
    assert check_name(found, "queue") != name
    assert found.endswith(".fifo") == name.endswith(".fifo")


def test_longest_names_have_dead_letter_queues_of_their_own() -> None:
    assert dead_letter_name("x" * 123 + ".dead") != "x" * 123 + ".dead"
    assert dead_letter_name("x" * 127 + "a") != dead_letter_name("x" * 127 + "b")
