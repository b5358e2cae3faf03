"""`queue('orders')` in SQL."""

from __future__ import annotations

import json

import pytest

from penstock.core.errors import InvalidRequest
from penstock.pipelines.sql import frame_of, replace_queues, rows_of, tables_of
from penstock.pipelines.where import Where
from tests.spark.running import Queues


@pytest.mark.parametrize("place", ["server", "directory"])
def test_queues_are_tables_of_a_query(queues: Queues, place: str) -> None:
    queues.send(5, "a")
    queues.send(3, "b")
    where = Where(url=queues.url) if place == "server" else Where(data=queues.data)
    a, b = queues.name("a"), queues.name("b")
    sql = f"select count(*) as n, 'queue(1)' as text from queue('{a}') x join queue('{b}') y using (value)"
    assert list(rows_of(frame_of(queues.spark, sql, where))) == [{"n": 3, "text": "queue(1)"}]
    from_third = json.dumps({a: {"0": 3}})
    sql = f"select value, offset from queue('{a}', startingOffsets => '{from_third}') order by offset"
    assert list(rows_of(frame_of(queues.spark, sql, where))) == [{"value": str(n), "offset": n} for n in (3, 4)]
    assert sum(channel["ready"] for channel in queues.channels("a").values()) == 5, "nothing was taken"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select * from queue('{q}-nothing')", "there is no queue"),
        ("select * from queue(orders)", "takes a queue's name in quotes"),
        ("select * from queue('a', 3)", "takes options like startingOffsets"),
        ("select * from queue('a'", "is not closed"),
        ("select nope from queue('a')", "cannot be resolved"),
        ("selec 1", "PARSE_SYNTAX_ERROR"),
    ],
)
def test_what_is_wrong_with_a_query_is_one_error(queues: Queues, sql: str, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        list(rows_of(frame_of(queues.spark, sql.replace("{q}", queues.prefix), Where(url=queues.url))))


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("select * from a", ("a",)),
        ("select * from a, b c, d as e where x in (select y from f)", ("a", "b", "d", "f")),
        ("select * from (select * from a) left join b on true", ("a", "b")),
        ("select trim(both ' ' from x), extract(day from y), x is not distinct from z from a", ("a",)),
        ("with a as (select 1), b as (select * from c) select * from a join b", ("c",)),
        ("select 'from x', `from` from `a` -- from y\n/* from z */", ("a",)),
        ("select * from range(10) union all select * from parquet.`/x`", ("parquet./x",)),
        ("select * from a lateral view explode(x) t as y", ("a",)),
        ("from a select b", ("a",)),
        ("", ()),
    ],
)
def test_tables_are_found_in_sql(sql: str, tables: tuple[str, ...]) -> None:
    assert tables_of(sql) == tables


def test_the_same_queue_twice_is_one_view_and_strings_are_left_alone() -> None:
    sql, calls = replace_queues("select 'from queue(''a'')' from queue('a') x, queue('a') y join Queue('it''s') z")
    assert sql == "select 'from queue(''a'')' from penstock_queue_1 x, penstock_queue_1 y join penstock_queue_2 z"
    assert [call.queue for call in calls.values()] == ["a", "it's"]
