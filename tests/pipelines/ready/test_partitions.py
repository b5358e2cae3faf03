"""Ready pipelines on queues with several partitions, on a server with several processes that records events."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.pipelines.ready import replay as replay_module
from penstock.pipelines.ready.redrive import redrive
from penstock.pipelines.ready.replay import replay
from penstock.pipelines.where import Where as PipelinesWhere
from penstock.spark.options import Where as ConnectorWhere
from penstock.spark.place import Range
from penstock.spark.server import ServerPlace
from penstock.wire.arrow import BASE_COLUMNS
from tests.compat.server import Server, serving, until
from tests.pipelines.ready.running import EVENTS_QUEUE, rollup
from tests.spark.test_partitions import GROUPS, PARTITIONS, WideQueues

MESSAGES = 210
DEAD = 20


@pytest.fixture(scope="module")
def wide_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("wide-recording")
    config = directory / "penstock.toml"
    config.write_text("[events]\nenabled = true\nflush_s = 0.1\n")
    with serving(directory, "--config", str(config), shards=PARTITIONS) as running:
        yield running


@pytest.fixture
def wide(wide_server: Server, spark: Any, tmp_path: Path) -> WideQueues:
    return WideQueues(wide_server, spark, tmp_path)


@pytest.fixture
def ps(wide_server: Server) -> Iterator[Any]:
    with penstock.connect(f"penstock://127.0.0.1:{wide_server.http_port}") as opened:
        yield opened


def take(ps: Any, name: str, count: int) -> list[Any]:
    """So many messages, or more if there are: a receive gives those of some partitions only."""
    taken: list[Any] = []

    def is_enough() -> bool:
        taken.extend(ps.queue(name).receive(max=MESSAGES, lease=600))
        return len(taken) >= count

    until(is_enough)
    return taken


def settled(wide: WideQueues, ps: Any, errors: dict[int, str]) -> str:
    """A queue whose messages were received once: those with an error have failed, the others are done."""
    name = wide.create(max_receives=1)
    wide.send(MESSAGES)
    taken = take(ps, name, MESSAGES)
    ps.queue(name).ack([message.receipt for message in taken if int(message.body) not in errors])
    for error in sorted(set(errors.values())):
        ps.queue(name).release([each.receipt for each in taken if errors.get(int(each.body)) == error], error=error)
    return name


def recorded(wide: WideQueues, queue: str) -> list[dict[str, Any]]:
    """The events of a queue, from all partitions of the events queue; each says which one it was in."""
    found: list[dict[str, Any]] = []
    with contextlib.closing(ServerPlace(ConnectorWhere(url=wide.url))) as place:
        for part, at in place.find([EVENTS_QUEUE]).items():
            for batch in place.batches(Range(EVENTS_QUEUE, at.first, at.end, at.first), BASE_COLUMNS):
                events = [json.loads(value) for value in batch["value"].to_pylist()]
                found += [each | {"partition": part.partition} for each in events if each.get("queue") == queue]
    return found


def keep_events(wide: WideQueues) -> None:
    """A channel that reads nothing: without it, events that a rollup has read are gone, and cannot be counted here."""
    with contextlib.closing(ServerPlace(ConnectorWhere(url=wide.url))) as place:
        place.create_channel(EVENTS_QUEUE, "keeps", [at.first for at in place.find([EVENTS_QUEUE]).values()])


def totals(events: list[dict[str, Any]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in events:
        found[each["what"]] += each["count"]
    return dict(found)


def test_a_rollup_counts_what_the_shards_of_a_queue_have_recorded(wide: WideQueues, ps: Any, tmp_path: Path) -> None:
    keep_events(wide)
    name = settled(wide, ps, dict.fromkeys(range(DEAD), "no tea"))
    done = {"sent": MESSAGES, "received": MESSAGES, "acked": MESSAGES - DEAD, "released": DEAD, "dead": DEAD}
    until(lambda: totals(recorded(wide, name)) == done)
    assert {each["partition"] for each in recorded(wide, name)} == set(range(PARTITIONS)), "each has its own events"
    table, where = tmp_path / "metrics", PipelinesWhere(wide.url)

    def counted() -> dict[str, int]:
        rows = wide.spark.read.parquet(str(table / "windows")).where(f"queue = '{name}'").collect()
        return {what: sum(row[what] for row in rows) for what in done}

    rollup(wide.spark, where, table)
    assert counted() == done
    wide.send(MESSAGES, start=MESSAGES)
    done["sent"] += MESSAGES
    until(lambda: totals(recorded(wide, name)) == done)
    rollup(wide.spark, where, table, report=tmp_path / "report.html")
    assert counted() == done
    assert name in (tmp_path / "report.html").read_text()


def test_dead_letters_of_all_partitions_are_looked_at_and_go_back_once(wide: WideQueues, ps: Any) -> None:
    errors = {number: f"timeout after {number} s" if number % 2 else "no tea" for number in range(DEAD)}
    name = settled(wide, ps, errors)
    dead = f"{name}.dead"
    until(lambda: ps.queue(dead).stats().messages == DEAD)
    found = redrive(wide.spark, PipelinesWhere(wide.url), [dead], predicate="error like 'timeout%'", send=True)
    assert (found.dead_letters, found.chosen, found.moved, found.failed) == (DEAD, DEAD // 2, DEAD // 2, [])
    assert [(row["reason"], row["messages"]) for row in found.analysis["reasons"]] == [
        ("no tea", DEAD // 2),
        ("timeout after # s", DEAD // 2),
    ]
    until(lambda: wide.channels()["main"]["ready"] == DEAD // 2)
    back = take(ps, name, DEAD // 2)
    assert sorted(int(each.body) for each in back) == list(range(1, DEAD, 2))
    again = redrive(wide.spark, PipelinesWhere(wide.url), [dead])
    assert again.dead_letters == DEAD // 2, "the others are still there"


def test_the_history_of_all_partitions_is_replayed_once_and_groups_keep_their_order(
    wide: WideQueues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "PIECE_MESSAGES", MESSAGES // 4)
    name = wide.create()
    wide.send(MESSAGES)
    wide.create("again")
    state, where = tmp_path / "state.json", PipelinesWhere(wide.url)
    assert replay(wide.spark, where, wide.name("again"), queue=name, state=state).sent == MESSAGES
    assert replay(wide.spark, where, wide.name("again"), queue=name, state=state).sent == 0
    until(lambda: wide.sent("again") >= MESSAGES)
    groups: dict[tuple[bytes, int], list[int]] = {}
    for row in wide.reader("again").orderBy("offset").collect():
        groups.setdefault((bytes(row.key), row.partition), []).append(int(bytes(row.value)))
    assert sorted(groups.values()) == [list(range(group, MESSAGES, GROUPS)) for group in range(GROUPS)]
    assert {partition for _, partition in groups} == set(range(PARTITIONS))
