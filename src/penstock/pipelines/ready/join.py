"""Join: two queues joined within a time window into a third one: a message for each pair that agrees on something.

`on` is SQL over a message: `key`, or `get_json_object(cast(value as string), '$.order')`. The new message is JSON:
`{"on", "left", "right", "left_at", "right_at"}`, with the bodies as text; its key is what they agree on.
"""

from __future__ import annotations

from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import functions as sql

from penstock.pipelines import parameter, queue, queue_sink
from penstock.pipelines.definition import seconds_of

LEFT, RIGHT, TO = parameter("left"), parameter("right"), parameter("to")
ON, WITHIN = parameter("on", "key"), parameter("within", "10 minutes")


if seconds_of(WITHIN) is None:
    raise ValueError(f"within is {WITHIN!r}: write it like '10 minutes'")
if TO in (LEFT, RIGHT):
    raise ValueError(f"queue {TO!r} is one of the joined queues, and cannot get the result too: name another one")
NEAR = f"interval {seconds_of(WITHIN)} seconds"


def _side(name: str, side: str) -> Any:
    expression = "cast(key as string)" if ON == "key" else ON
    columns = (f"{expression} as {side}_on", f"cast(value as string) as {side}", f"timestamp as {side}_at")
    return queue(name).selectExpr(*columns).where(f"{side}_on is not null").withWatermark(f"{side}_at", WITHIN)


dp.create_sink("pairs", "penstock", queue_sink(TO))


@dp.append_flow(target="pairs")
def joined() -> Any:
    """The pairs, as messages."""
    near = sql.expr(f"left_on = right_on and right_at between left_at - {NEAR} and left_at + {NEAR}")
    met = _side(LEFT, "left").join(_side(RIGHT, "right"), near)
    body = "to_json(struct(left_on as on, left, right, left_at, right_at)) as value"
    return met.selectExpr(body, "left_on as key")
