"""Rows to pieces, without Spark: which rows are refused, and what the others become."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.core.queues.attributes import decode_attributes
from penstock.core.queues.draft import CHUNK_MESSAGES_MAX
from penstock.spark.errors import InvalidOption, InvalidRow
from penstock.spark.rows import Rows, check_columns
from penstock.wire.pieces import Target


def sections(batch: Any, topic: str | None = "q", rows: Rows | None = None) -> list[tuple[Target, list[bytes]]]:
    made = (rows or Rows(topic, 3)).sections(batch)
    return [(target, chunk.body_list()) for target, chunk, _, _ in made]


def batch(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})


def test_plain_rows_become_one_chunk() -> None:
    assert sections(batch(value=["a", "", "c"])) == [(Target("q"), [b"a", b"", b"c"])]
    assert sections(batch(value=[b"\xff", b"x"])) == [(Target("q"), [b"\xff", b"x"])]


def test_rows_go_where_their_columns_say() -> None:
    given = batch(
        value=["0", "1", "2", "3"],
        topic=["a", "b", "a", "a"],
        priority=[1, 1, 1, 2],
        delay=[0.5, 0.5, 0.5, 0.5],
    )
    assert sections(given, None) == [
        (Target("a", 1, 500), [b"0", b"2"]),
        (Target("b", 1, 500), [b"1"]),
        (Target("a", 2, 500), [b"3"]),
    ]


def test_the_option_topic_names_the_queue_of_all_rows() -> None:
    given = batch(value=["0", "1"], topic=["a", None])
    assert sections(given, "q") == [(Target("q"), [b"0", b"1"])]


def test_many_rows_and_large_rows_are_cut_into_chunks() -> None:
    many = sections(batch(value=["x"] * (CHUNK_MESSAGES_MAX + 1)))
    assert [len(bodies) for _, bodies in many] == [CHUNK_MESSAGES_MAX, 1]
    large = sections(batch(value=[b"x" * 3_000_000] * 3))
    assert [len(bodies) for _, bodies in large] == [1, 1, 1]


def test_a_slice_of_a_batch_is_its_own_rows() -> None:
    given = batch(value=["a", "b", "c"], key=["k", None, "l"]).slice(1, 2)
    ((_, chunk, _, _),) = Rows("q", 0).sections(given)
    assert chunk.body_list() == [b"b", b"c"]
    assert chunk.group_list() == [None, "l"]


def test_headers_become_attributes() -> None:
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "kind", "value": b"order"}, {"key": "raw", "value": b"\xff"}], None], header)
    given = pa.RecordBatch.from_arrays([pa.array(["a", "b"]), headers], ["value", "headers"])
    ((_, chunk, _, _),) = Rows("q", 0).sections(given)
    assert decode_attributes(chunk.attributes(0)) == {"kind": "order", "raw": b"\xff"}
    assert chunk.attributes(1) is None


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"value": ["a", None]}, "row 11, column value: it is null"),
        ({"value": ["a", "b"], "topic": ["a", None]}, "row 11, column topic: it is null"),
        ({"value": ["a", "b"], "topic": ["a", "no/slash"]}, "row 11, column topic: .*no/slash"),
        ({"value": ["a", "b"], "priority": [0, 10]}, "row 11, column priority '10': it must be from 0 to 9"),
        ({"value": ["a", "b"], "priority": [-1, 1]}, "row 10, column priority '-1'"),
        ({"value": ["a", "b"], "delay": [0.0, -1.0]}, "row 11, column delay '-1.0'"),
        ({"value": ["a", "b"], "key": ["k", "k" * 129]}, "row 11, column key .*: it has more than 128"),
        ({"value": ["a", "b"], "key": [b"k", b"\xff"]}, "row 11, column key .*: it is not UTF-8"),
        ({"value": ["a", "b"], "dedupId": ["d", "d" * 129]}, "row 11, column dedupId"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(columns: dict[str, Any], says: str) -> None:
    rows = Rows(None if "topic" in columns else "q", 3)
    list(
        rows.sections(
            batch(
                **(
                    {name: [values[0]] * 10 for name, values in columns.items()}
                    | {"value": ["a"] * 10}
                    | ({"priority": [0] * 10} if "priority" in columns else {})
                )
            )
        )
    )
    with pytest.raises(InvalidRow, match=f"^partition 3, {says}"):
        list(rows.sections(batch(**columns)))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([("body", "string")], "a message has no column body; there are: value, topic"),
        ([("key", "string")], "there is no column value"),
        ([("value", "string")], "there is no column topic and no option topic"),
        ([("value", "bigint"), ("topic", "string")], "value is bigint: it must be binary or string"),
        ([("value", "string"), ("topic", "string"), ("priority", "string")], "priority is string"),
    ],
)
def test_wrong_columns_are_an_error(columns: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        check_columns(columns, None)


def test_the_columns_of_a_source_can_be_sent_on() -> None:
    given = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    check_columns([(each.split()[0], each.split()[1]) for each in given.split(", ")], None)
