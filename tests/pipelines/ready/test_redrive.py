"""Redrives: what is said about dead letters, and which go back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.core.errors import InvalidRequest
from penstock.pipelines.ready.redrive import redrive
from penstock.pipelines.where import Where
from tests.compat.server import Server
from tests.spark.running import Queues


@pytest.fixture
def ps(server: Server) -> Iterator[Any]:
    with penstock.connect(f"penstock://127.0.0.1:{server.http_port}") as opened:
        yield opened


@pytest.fixture
def dead(ps: Any, queues: Queues) -> str:
    """Ten messages: three timed out, with different numbers in the error, and seven met a bad row."""
    name = queues.create("orders", max_receives=1)
    ps.queue(name).send_many([b"order %d" % number for number in range(10)])
    for number, message in enumerate(ps.queue(name).receive(max=10)):
        message.release(error=f"timeout after {number} s" if number < 3 else "bad row")
    return f"{name}.dead"


def test_dead_letters_are_counted_by_reason_queue_hour_and_error(
    spark: Any, where: Where, ps: Any, queues: Queues, dead: str
) -> None:
    found = redrive(spark, where, [dead])
    assert (found.dead_letters, found.chosen, found.moved) == (10, 10, 0)
    reasons = [(row["reason"], row["messages"]) for row in found.analysis["reasons"]]
    assert reasons == [("bad row", 7), ("timeout after # s", 3)]
    assert [(row["origin"], row["channel"], row["messages"]) for row in found.analysis["queues"]] == [
        (queues.name("orders"), "main", 10)
    ]
    assert sum(row["messages"] for row in found.analysis["hours"]) == 10
    assert len(found.analysis["errors"]) == 4
    assert ps.queue(dead).stats().messages == 10


def test_those_that_sql_chooses_go_back_where_they_came_from(
    spark: Any, where: Where, ps: Any, queues: Queues, dead: str
) -> None:
    found = redrive(spark, where, [dead], predicate="error like 'timeout%' and value <> 'order 1'", send=True)
    assert (found.chosen, found.moved, found.failed) == (2, 2, [])
    back = ps.queue(queues.name("orders")).receive(max=10)
    assert sorted(message.text for message in back) == ["order 0", "order 2"]
    assert ps.queue(dead).stats().channels["main"].ready == 8


def test_what_went_back_is_not_counted_or_chosen_again(spark: Any, where: Where, ps: Any, queues: Queues) -> None:
    """They died in one commit: what lies between others that stay can still be read by its offset."""
    name = queues.create("orders", max_receives=1)
    dead = f"{name}.dead"
    ps.queue(name).send_many([b"order %d" % number for number in range(10)])
    taken = queues.rest("POST", f"/v1/queues/{name}/receive", {"max": 10})["messages"]
    queues.rest("POST", f"/v1/queues/{name}/release", {"receipts": [each["receipt"] for each in taken], "error": "no"})
    for moved in (5, 0):
        found = redrive(spark, where, [dead], predicate="value < 'order 5'", send=True)
        assert (found.dead_letters, found.chosen, found.moved) == (5 + moved, moved, moved)
        assert [(row["reason"], row["messages"]) for row in found.analysis["reasons"]] == [("no", 5 + moved)]
        assert found.failed == []


def test_dead_letters_that_somebody_holds_stay_and_that_is_said(spark: Any, where: Where, ps: Any, dead: str) -> None:
    assert len(ps.queue(dead).receive(max=10)) == 10
    found = redrive(spark, where, [dead], send=True)
    assert (found.dead_letters, found.chosen, found.moved) == (10, 10, 0)
    assert found.failed == [
        f"{dead}: 10 were chosen, but none was moved: leased and delayed messages stay, and so do messages without an "
        "origin if there is no target (to)"
    ]


def test_they_can_go_elsewhere(spark: Any, where: Where, ps: Any, queues: Queues, dead: str) -> None:
    other = queues.create("other")
    assert redrive(spark, where, [dead], send=True, to=other).moved == 10
    assert ps.queue(other).stats().messages == 10


def test_a_redrive_that_is_told_to_stop_is_cancelled(
    spark: Any, where: Where, ps: Any, queues: Queues, dead: str
) -> None:
    stop = threading.Event()
    stop.set()
    found = redrive(spark, where, [dead], send=True, rate=1, stop=stop)
    assert found.failed == [f"{dead}: cancelled"]
    assert found.moved < 10


def test_what_is_wrong_is_said(spark: Any, where: Where, ps: Any, dead: str) -> None:
    with pytest.raises(InvalidRequest, match="which dead-letter queues"):
        redrive(spark, where, [])
    with pytest.raises(InvalidRequest, match=r"condition \(where\) is not valid"):
        redrive(spark, where, [dead], predicate="colour = 'red'", send=True)
    with pytest.raises(penstock.NotFound):
        redrive(spark, where, ["nosuch.dead"])
