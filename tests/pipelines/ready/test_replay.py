"""Replays: what is chosen arrives, each message once, also after a break."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import InvalidRequest
from penstock.pipelines.ready import replay as module
from penstock.pipelines.ready.replay import replay
from penstock.pipelines.where import Where
from tests.compat.server import until
from tests.pipelines.ready.running import archive
from tests.spark.running import Queues


def bodies(queues: Queues, short: str) -> list[int]:
    return [int(bytes(row.value)) for row in records(queues, short)]


def records(queues: Queues, short: str) -> list[Any]:
    found: list[Any] = queues.reader(short, includeHeaders=True).orderBy("offset").collect()
    return found


@pytest.fixture
def archived(spark: Any, queues: Queues, where: Where, tmp_path: Path) -> Path:
    path = tmp_path / "archive"
    queues.send(1_000, "a", groups=b"tea")
    queues.send(500, "b", start=5_000)
    archive(spark, where, path, [queues.name("a"), queues.name("b")])
    return path


def test_an_archive_comes_back_in_order_with_keys(
    spark: Any, queues: Queues, where: Where, archived: Path, tmp_path: Path
) -> None:
    done = replay(spark, where, queues.name("out"), archive=archived, state=tmp_path / "state.json")
    assert (done.messages, done.sent) == (1_500, 1_500)
    assert bodies(queues, "out") == [*range(1_000), *range(5_000, 5_500)]
    assert {bytes(row.key or b"") for row in records(queues, "out")[:1_000]} == {b"tea"}


def test_messages_are_chosen_by_queue_key_time_and_sql(
    spark: Any, queues: Queues, where: Where, archived: Path, tmp_path: Path
) -> None:
    def chosen(**how: Any) -> int:
        state = tmp_path / f"{time.monotonic_ns()}.json"
        return replay(spark, where, queues.name("out"), archive=archived, state=state, **how).sent

    now = datetime.now(UTC)
    assert chosen(queues=[queues.name("b")]) == 500
    assert chosen(keys=["tea", "coffee"]) == 1_000
    assert chosen(since=now - timedelta(hours=1), until=now + timedelta(hours=1), predicate="value = '7'") == 1
    assert chosen(until=now - timedelta(hours=1)) == 0
    assert chosen(predicate="key is null and int(value) < 5010") == 10


def test_a_queues_history_is_replayed_too(spark: Any, queues: Queues, where: Where, tmp_path: Path) -> None:
    name = queues.send(100, "old")
    done = replay(spark, where, queues.name("new"), queue=name, predicate="offset >= 90", state=tmp_path / "state.json")
    assert done.sent == 10
    assert bodies(queues, "new") == list(range(90, 100))


def test_a_replay_that_broke_off_goes_on_and_sends_nothing_twice(
    spark: Any, queues: Queues, where: Where, archived: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state.json"
    monkeypatch.setattr(module, "PIECE_MESSAGES", 100)
    real, left = module.write_json, [4]  # type: ignore[attr-defined]

    def write(file: Path, content: Any) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt  # killed after a piece was sent, before that was noted
        left[0] -= 1
        real(file, content)

    monkeypatch.setattr(module, "write_json", write)
    with pytest.raises(KeyboardInterrupt):
        replay(spark, where, queues.name("out"), archive=archived, state=state)
    monkeypatch.setattr(module, "write_json", real)
    assert len(bodies(queues, "out")) == 400
    assert json.loads(state.read_text())["done"] == 3
    queues.send(50, "a", start=9_000)
    archive(spark, where, archived, [queues.name("a"), queues.name("b")])
    replay(spark, where, queues.name("out"), archive=archived, state=state)
    assert bodies(queues, "out") == [*range(1_000), *range(5_000, 5_500)]
    assert replay(spark, where, queues.name("out"), archive=archived, state=state).sent == 0
    assert replay(spark, where, queues.name("out"), archive=archived, state=state, again=True).sent == 1_550


def test_a_replay_keeps_to_its_rate_and_can_be_stopped(
    spark: Any, queues: Queues, where: Where, archived: Path, tmp_path: Path
) -> None:
    stop = threading.Event()
    state = tmp_path / "state.json"

    def stop_after_three_pieces() -> None:
        until(lambda: state.exists() and json.loads(state.read_text())["done"] >= 3)
        stop.set()

    threading.Thread(target=stop_after_three_pieces).start()
    began_s = time.monotonic()
    done = replay(spark, where, queues.name("out"), archive=archived, rate=100, state=state, stop=stop)
    assert done.stopped
    assert 300 <= done.sent <= 100 * (time.monotonic() - began_s) + 100
    assert len(bodies(queues, "out")) == done.sent


def test_what_is_wrong_is_said(spark: Any, queues: Queues, where: Where, archived: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="an archive, or a queue"):
        replay(spark, where, "out")
    with pytest.raises(InvalidRequest, match="into itself"):
        replay(spark, where, "out", queue="out")
    with pytest.raises(InvalidRequest, match=r"condition \(where\) is not valid: .*colour"):
        replay(spark, where, "out", archive=archived, predicate="colour = 1", state=tmp_path / "state.json")
    replay(spark, where, queues.name("x"), archive=archived, predicate="false", state=tmp_path / "state.json")
    with pytest.raises(InvalidRequest, match="to another replay"):
        replay(spark, where, queues.name("y"), archive=archived, state=tmp_path / "state.json")
