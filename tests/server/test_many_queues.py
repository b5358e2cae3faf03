"""A server with thousands of queues: what it tells of itself is right, bounded, and made a little at a time."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.core.commands import Ack, CreateQueue, DeleteQueue, Receive, Send
from penstock.protocols.nsq import stats as nsq_stats
from penstock.server import metrics
from penstock.server.node import Node, Ready
from penstock.server.settings import InvalidSettings, parse
from tests.server.test_node import ask, basic, running, settings_in

QUEUES = 2_500
LINES_PER_TURN_MAX = 250
TOPICS_PER_TURN_MAX = 25


def name_of(number: int) -> str:
    return f"{'odd' if number % 2 else 'even'}-{number:05d}"


@asynccontextmanager
async def crowded(directory: Path, text: str = "", queues: int = QUEUES) -> AsyncIterator[tuple[Node, Ready]]:
    """A node with many queues; every hundredth has as many messages as its number has hundreds."""
    async with running(settings_in(directory, text)) as (node, ready):
        shard = node.services.shard
        await asyncio.gather(*(shard.call(CreateQueue(name=name_of(number))) for number in range(queues)))
        for number in range(100, queues, 100):
            await shard.call(Send(queue=name_of(number), bodies=[b"xx"] * (number // 100)))
        yield node, ready


async def fetch(ready: Ready, path: str, front_end: str = "http", **headers: str) -> bytes:
    status, _, body = await asyncio.to_thread(
        lambda: ask(ready.listening[front_end].url, path, headers={name.title(): headers[name] for name in headers})
    )
    assert status == 200, body
    return body


def values_of(text: bytes, family: str) -> dict[str, float]:
    """The samples of a family, by queue; under "" what belongs to no queue."""
    families = text_string_to_metric_families(text.decode())
    samples = [sample for each in families for sample in each.samples if sample.name == family]
    return {sample.labels.get("queue", ""): sample.value for sample in samples}


class Turns:
    """Counts what is done in each turn of the loop."""

    def __init__(self) -> None:
        self._turn = 0
        self.done: Counter[int] = Counter()

    async def count(self) -> None:
        while True:
            self._turn += 1
            await asyncio.sleep(0)

    def note(self, count: int) -> None:
        self.done[self._turn] += count


@asynccontextmanager
async def turns() -> AsyncIterator[Turns]:
    counted = Turns()
    counting = asyncio.create_task(counted.count())
    yield counted
    counting.cancel()


def test_metrics_show_the_busiest_queues_and_all_of_them_added_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with crowded(tmp_path, "[metrics]\nqueues = 3\nalways = ['odd-0000?']") as (node, ready):
            delivery = await node.services.shard.call(Receive(queue="even-02400", limit=4))
            spans = delivery.spans()
            await node.services.shard.call(Ack(queue="even-02400", spans=spans[:1]))
            text = await fetch(ready, "/metrics")
            shown = values_of(text, "penstock_queue_messages")
            always = {name_of(number) for number in (1, 3, 5, 7, 9)}
            assert shown.keys() == {"even-02200", "even-02300", "even-02400"} | always
            total = sum(number // 100 for number in range(100, QUEUES, 100))
            acked = spans[0].messages
            for family, value in {
                "penstock_queues": QUEUES,
                "penstock_queues_not_shown": QUEUES - 8,
                "penstock_all_queues_messages": total,
                "penstock_all_queues_ready_messages": total - 4,
                "penstock_all_queues_leased_messages": 4 - acked,
                "penstock_all_queues_delayed_messages": 0,
                "penstock_messages_sent_total": total,
                "penstock_messages_acked_total": acked,
            }.items():
                assert values_of(text, family) == {"": value}, family

    asyncio.run(main())


def test_a_queue_that_was_busy_long_ago_gives_way_to_one_that_is_busy_now(tmp_path: Path) -> None:
    async def main() -> None:
        async with crowded(tmp_path, "[metrics]\nqueues = 1", queues=300) as (node, ready):
            assert values_of(await fetch(ready, "/metrics"), "penstock_queue_messages").keys() == {"even-00200"}
            await node.services.shard.call(Send(queue="odd-00007", bodies=[b"x"] * 5))
            assert values_of(await fetch(ready, "/metrics"), "penstock_queue_messages") == {"odd-00007": 5}

    asyncio.run(main())


def test_a_pattern_picks_the_queues_that_metrics_show(tmp_path: Path) -> None:
    async def main() -> None:
        async with crowded(tmp_path, "[metrics]\nqueues = 20", queues=300) as (_, ready):
            text = await fetch(ready, "/metrics?queue=odd-0000*&queue=even-00200")
            assert values_of(text, "penstock_queue_messages").keys() == {
                "even-00200",
                *(name_of(number) for number in (1, 3, 5, 7, 9)),
            }
            assert values_of(text, "penstock_all_queues_messages") == {"": 3}
            assert values_of(text, "penstock_queues_not_shown") == {"": 294}

    asyncio.run(main())


def test_with_few_queues_metrics_show_all_of_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with crowded(tmp_path, queues=100) as (_, ready):
            text = await fetch(ready, "/metrics")
            assert values_of(text, "penstock_queue_messages").keys() == {name_of(number) for number in range(100)}
            assert values_of(text, "penstock_queues_not_shown") == {"": 0}

    asyncio.run(main())


GUARDED = """
[metrics]
queues = 2
[[credentials]]
name = "worker"
access_key = "AKWORKER"
secret_key = "worker secret"
[[credentials.allow]]
queues = "odd-*"
rights = ["read"]
"""


def test_totals_and_the_busiest_are_of_queues_that_the_caller_may_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with crowded(tmp_path, GUARDED, queues=300) as (node, ready):
            await node.services.shard.call(Send(queue="odd-00011", bodies=[b"x"]))
            headers = basic("AKWORKER", "worker secret")
            text = await fetch(ready, "/metrics", **headers)
            assert values_of(text, "penstock_queues") == {"": 150}
            assert values_of(text, "penstock_all_queues_messages") == {"": 1}
            shown = values_of(text, "penstock_queue_messages")
            assert len(shown) == 2 and shown["odd-00011"] == 1 and all(name.startswith("odd-") for name in shown)
            assert json.loads(await fetch(ready, "/v1/stats", **headers))["queues"] == 150

    asyncio.run(main())


def test_a_scrape_makes_a_bounded_number_of_lines_in_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if all queues are shown."""

    async def main() -> None:
        async with crowded(tmp_path, f"[metrics]\nqueues = {QUEUES}") as (_, ready), turns() as counted:
            generate = generate_latest

            def counting(*arguments: Any) -> bytes:
                text: bytes = generate(*arguments)
                counted.note(text.count(b"\n"))
                return text

            monkeypatch.setattr(metrics, "generate_latest", counting)
            text = await fetch(ready, "/metrics")
            assert len(values_of(text, "penstock_queue_messages")) == QUEUES
            assert len(re.findall(rb"^# TYPE penstock_queue_messages ", text, re.MULTILINE)) == 1
            assert sum(counted.done.values()) > 12 * QUEUES
            assert max(counted.done.values()) <= LINES_PER_TURN_MAX

    asyncio.run(main())


def test_statistics_of_all_topics_are_made_a_few_topics_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with crowded(tmp_path) as (_, ready), turns() as counted:
            describe = nsq_stats.StatsReport._topic_document

            def counting(report: Any, stats: Any) -> Any:
                counted.note(1)
                return describe(report, stats)

            monkeypatch.setattr(nsq_stats.StatsReport, "_topic_document", counting)
            told = json.loads(await fetch(ready, "/stats?format=json", "nsq-http"))
            assert [each["topic_name"] for each in told["topics"]] == sorted(map(name_of, range(QUEUES)))
            assert sum(counted.done.values()) == QUEUES
            assert max(counted.done.values()) <= TOPICS_PER_TURN_MAX
            text = (await fetch(ready, "/stats", "nsq-http")).decode()
            assert re.findall(r"^   \[(\S+)", text, re.MULTILINE)[:2] == ["even-00000", "even-00002"]
            assert text.count("depth:") == 2 * 2 * QUEUES  # be-depth, too; for the topic and its channel

    asyncio.run(main())


def test_the_server_adds_up_many_queues_and_counts_them_page_by_page(tmp_path: Path) -> None:
    async def main() -> None:
        async with crowded(tmp_path) as (node, ready):
            total = sum(number // 100 for number in range(100, QUEUES, 100))
            told = json.loads(await fetch(ready, "/v1/stats"))
            assert (told["queues"], told["messages"], told["ready"], told["sent"]) == (QUEUES, total, total, total)
            counted: dict[str, int] = {}
            after: str | None = ""
            while after is not None:
                page = json.loads(await fetch(ready, f"/v1/stats/queues?limit=700&after={after}"))
                assert len(page["queues"]) <= 700
                assert not counted.keys() & {each["name"] for each in page["queues"]}
                counted |= {each["name"]: each["stats"]["messages"] for each in page["queues"]}
                after = page["next"]
                await node.services.shard.call(DeleteQueue(name=name_of(2 * len(counted) // 100)))
            assert set(counted) >= {name_of(number) for number in range(100, QUEUES)}
            assert sum(counted.values()) == total

    asyncio.run(main())


@pytest.mark.parametrize(("text", "words"), [("queues = -1", "0 or more"), ("always = ['']", "empty pattern")])
def test_metrics_that_cannot_be_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        parse(f"[metrics]\n{text}").check()
