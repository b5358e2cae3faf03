"""Dedupe and join: streams between queues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import InvalidRequest
from penstock.pipelines.ready.dedupe import dedupe
from penstock.pipelines.ready.join import join
from penstock.pipelines.where import Where
from tests.spark.running import Queues


def test_the_same_body_is_copied_once_also_over_several_runs(
    spark: Any, queues: Queues, where: Where, tmp_path: Path
) -> None:
    name = queues.send(100, "in")
    queues.send(100, "in")
    for _ in range(2):
        dedupe(spark, where, name, queues.name("out"), checkpoint=tmp_path / "checkpoint")
        queues.send(110, "in", start=90)
    dedupe(spark, where, name, queues.name("out"), checkpoint=tmp_path / "checkpoint")
    assert queues.numbers(queues.reader("out")) == list(range(200))


def test_alike_by_key_leaves_messages_without_one_alone(
    spark: Any, queues: Queues, where: Where, tmp_path: Path
) -> None:
    name = queues.send(5, "in", groups=b"a")
    queues.send(5, "in", start=10, groups=b"b")
    queues.send(5, "in", start=20)
    dedupe(spark, where, name, queues.name("out"), by="key", checkpoint=tmp_path / "checkpoint")
    found = queues.numbers(queues.reader("out"))
    assert found[2:] == [20, 21, 22, 23, 24]
    assert found[0] < 5 <= 10 <= found[1] < 15


def test_two_queues_are_joined_by_key(spark: Any, queues: Queues, where: Where, tmp_path: Path) -> None:
    for key in (b"1", b"2", b"3"):
        queues.send(1, "orders", start=int(key) * 10, groups=key)
    for key in (b"2", b"3", b"4"):
        queues.send(1, "payments", start=int(key) * 100, groups=key)
    join(
        spark,
        where,
        queues.name("orders"),
        queues.name("payments"),
        queues.name("paid"),
        checkpoint=tmp_path / "checkpoint",
    )
    rows = queues.reader("paid").collect()
    bodies = sorted((json.loads(bytes(row.value)) for row in rows), key=lambda each: str(each["on"]))
    assert [(each["on"], each["left"], each["right"]) for each in bodies] == [("2", "20", "200"), ("3", "30", "300")]
    assert {bytes(row.key) for row in rows} == {b"2", b"3"}


def test_what_is_wrong_is_said(spark: Any, queues: Queues, where: Where, tmp_path: Path) -> None:
    name = queues.send(1, "in")
    with pytest.raises(InvalidRequest, match="within is 'soon'"):
        dedupe(spark, where, name, "out", within="soon", checkpoint=tmp_path)
    with pytest.raises(InvalidRequest, match="into itself"):
        dedupe(spark, where, name, name, checkpoint=tmp_path)
    with pytest.raises(InvalidRequest, match="by is 'colour'"):
        dedupe(spark, where, name, "out", by="colour", checkpoint=tmp_path)
    with pytest.raises(InvalidRequest, match="cannot get the result"):
        join(spark, where, "a", "b", "a", checkpoint=tmp_path)
