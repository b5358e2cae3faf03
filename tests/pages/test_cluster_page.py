"""The console's page of a cluster: three nodes on a real Kafka, seen, moved and drained in a browser."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.core.commands import CreateQueue, Send
from penstock.core.queues.config import QueueConfig
from tests.cluster.nodes import SHARDS, ThreadNode, thread_node, until
from tests.kafka import kafka, unique_prefix  # noqa: F401
from tests.pages.browser import Browser
from tests.pages.console import no_dialogue, pasted, press, reads, shown_command, shows, write
from tools.kafka import KafkaCluster

pytestmark = pytest.mark.timeout(900)
NAMES = ("a", "b", "c")


def _url(node: ThreadNode) -> str:
    return node.node.services.listening["http"].url


def _state(node: ThreadNode) -> Any:
    return httpx.get(f"{_url(node)}/v1/cluster", timeout=60).json()


def test_shards_are_moved_and_a_node_is_drained_from_the_page(
    browser: Browser,
    kafka: KafkaCluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        cluster = unique_prefix()
        first, *_ = nodes = [stack.enter_context(thread_node(kafka, cluster, name, tmp_path)) for name in NAMES]
        until(lambda: sorted(shard for node in nodes for shard in node.own_shards) == list(range(SHARDS)), "a balance")
        until(lambda: all(node.own_shards for node in nodes), "shards for every node")
        for number in range(12):
            first.call(CreateQueue(name=f"q{number}", config=QueueConfig()))
            first.call(Send(queue=f"q{number}", bodies=[b"x"] * 5))
        page = stack.enter_context(browser.open(f"{_url(first)}/#/cluster"))
        shows(page, "3 nodes, 4 shards")
        page.until(
            "[...document.querySelectorAll('.shards tbody tr')].every((each) => each.innerText.includes('served'))"
        )
        assert len(reads(page, ".nodes tbody tr")) == 3
        queues = "[...document.querySelectorAll('.shards td:nth-child(4)')].map((each) => Number(each.innerText))"
        page.until(f"{queues}.reduce((sum, each) => sum + each, 0) >= 12")

        # a move, from the page; and back by the command that the page shows
        owner = _state(first)["shards"][0]["served_by"]
        other = next(name for name in NAMES if name != owner)
        row = "document.querySelectorAll('.shards tbody tr')[0].innerText"
        press(page, "Move…", ".shards tbody tr:first-child")
        write(page, "dialog select", other)
        page.until(f"document.querySelector('dialog .cli code').textContent.includes('move 0 {other}')")
        shows(page, f"Shard 0 moves from {owner} to {other}")
        press(page, "Move", "dialog")
        no_dialogue(page)
        page.until(f"{row}.split('\\t')[1].startsWith('{other}') && {row}.includes('moved by hand')")
        until(lambda: _state(first)["shards"][0]["served_by"] == other, "the move")
        press(page, "Move…", ".shards tbody tr:first-child")
        write(page, "dialog select", owner)
        page.until(f"document.querySelector('dialog .cli code').textContent.includes('move 0 {owner}')")
        pasted(shown_command(page))
        press(page, "Cancel", "dialog")
        until(lambda: _state(first)["shards"][0]["served_by"] == owner, "the move back")

        # a node is drained, and takes shards again
        at = "[...document.querySelectorAll('.nodes tbody tr')].find((each) => each.innerText.startsWith('b'))"
        page.value(f"{at}.querySelector('.actions button').click()")
        shows(page, "Drain b")
        assert shown_command(page).startswith(
            f"penstock cluster drain b --bootstrap {kafka.bootstrap} --cluster {cluster}"
        )
        press(page, "Drain", "dialog")
        no_dialogue(page)
        page.until(f"{at}.innerText.includes('draining')")
        until(lambda: all(each["served_by"] not in ("b", "") for each in _state(first)["shards"]), "the drain")
        page.until(f"{at}.children[3].innerText === '0'")
        page.value(f"{at}.querySelector('.actions button').click()")
        shows(page, "Undrain b")
        pasted(shown_command(page))
        press(page, "Cancel", "dialog")
        page.until(f"{at}.innerText.includes('serving')")
        pasted(str(page.value("document.querySelector('main > .cli code').textContent")))
        assert page.complaints == []
