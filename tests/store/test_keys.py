"""Sorted keys against a plain sort."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.store.layer import SortedKeys, prefix_end


@given(st.binary(max_size=4), st.lists(st.binary(max_size=6)))
def test_range_of_a_prefix_holds_its_keys_and_no_others(prefix: bytes, keys: list[bytes]) -> None:
    end = prefix_end(prefix)
    for key in [*keys, *(prefix + key for key in keys)]:
        assert key.startswith(prefix) == (key >= prefix and (end is None or key < end))


def test_any_history_of_adds_and_removals_gives_the_sorted_keys() -> None:
    for seed in range(20):
        random = Random(seed)
        table: dict[bytes, int] = {}
        keys = SortedKeys(table)
        for _ in range(300):
            for _ in range(random.choice((1, 3, 100))):
                key = b"%04d" % random.randrange(random.choice((50, 5000)))
                if random.random() < 0.5:
                    table.pop(key, None)
                elif key not in table:
                    keys.add(key)
                    table[key] = 1
            if random.random() < 0.3:
                start, end = sorted((b"%04d" % random.randrange(5000), b"%04d" % random.randrange(5000)))
                assert list(keys.between(start, end)) == sorted(key for key in table if start <= key < end)
                assert list(keys.between(b"", None)) == sorted(table)


def test_keys_that_come_and_go_unseen_take_no_memory() -> None:
    table: dict[bytes, int] = {}
    keys = SortedKeys(table)
    for number in range(100_000):
        key = b"%d" % number
        keys.add(key)
        table[key] = 1
        del table[key]
    assert len(keys._added) + len(keys._sorted) < 2000
