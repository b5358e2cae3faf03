"""Reading by offset in pieces: up to an offset, up to so many bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import commands as c
from penstock.core.errors import InvalidRequest
from tests.core.driver import BrokerDriver, bodies_of_runs


def desk_of(*runs: list[int]) -> BrokerDriver:
    """A queue with a chunk for each run of body sizes."""
    driver = BrokerDriver()
    driver.create()
    for sizes in runs:
        driver.send(*(b"x" * size for size in sizes))
    return driver


def read(driver: BrokerDriver, **fields: int | None) -> tuple[list[int], int]:
    records: c.Records = driver.do(c.ReadRecords(queue="q", **fields))  # type: ignore[arg-type]
    return [len(body) for body in bodies_of_runs(records.runs)], records.next_offset


def test_nothing_from_the_end_on_is_read() -> None:
    driver = desk_of([1, 2, 3], [4, 5])
    assert read(driver, offset=1, end=4) == ([2, 3, 4], 4)
    assert read(driver, offset=0, end=3) == ([1, 2, 3], 3)
    assert read(driver, offset=2, end=2) == ([], 2)
    assert read(driver, offset=4, end=2) == ([], 4)


def test_an_end_is_reached_also_where_messages_are_gone() -> None:
    driver = desk_of([1, 2, 3], [4, 5])
    driver.do(c.PurgeQueue(name="q"))
    assert read(driver, offset=1, end=4) == ([], 4)
    assert read(driver, offset=1, end=400) == ([], 5)


def test_one_message_comes_however_large_it_is() -> None:
    driver = desk_of([100, 1], [100])
    assert read(driver, offset=0, bytes_max=1) == ([100], 1)
    assert read(driver, offset=1, bytes_max=50) == ([1], 2)
    assert read(driver, offset=1, bytes_max=101) == ([1, 100], 3)


def test_a_limit_of_no_bytes_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="bytes_max is 0"):
        read(desk_of([1]), bytes_max=0)


@given(
    runs=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=5),
    limit=st.integers(1, 8),
    end=st.integers(0, 40),
    bytes_max=st.integers(1, 30),
)
def test_pieces_put_together_are_the_whole(runs: list[list[int]], limit: int, end: int, bytes_max: int) -> None:
    driver = desk_of(*runs)
    sizes = [size for run in runs for size in run]
    found: list[int] = []
    offset = 0
    while offset < min(end, len(sizes)):
        piece, following = read(driver, offset=offset, limit=limit, end=end, bytes_max=bytes_max)
        assert piece
        assert len(piece) <= limit
        assert len(piece) == 1 or sum(piece) <= bytes_max
        found += piece
        assert following == offset + len(piece)
        offset = following
    assert found == sizes[:end]
