"""The maps that nodes give to clients, while nodes come and go and shards move under load: at most a second apart."""

from __future__ import annotations

import http.client
import itertools
import threading
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

import penstock
from tests.cluster.backends import backend  # noqa: F401
from tests.cluster.nodes import SHARDS, Backend, ThreadNode, look, thread_node, until
from tests.kafka import unique_prefix

APART_S_MAX = 1.0
MOVES = 4
EVERY_S = 0.02


class Seen(NamedTuple):
    """One answer to `/get_partitions`."""

    node: str
    asked_s: float
    answered_s: float
    version: int
    owners: tuple[str, ...]
    urls: dict[str, str]


class Watching:
    """Asks nodes for their maps, and sends messages through them, until the block ends."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.sent = 0
        self.errors: list[Exception] = []
        self._ending: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []

    def begin(self, node: ThreadNode) -> None:
        """Ask this node, too."""
        url = node.node.services.partition_maps.current().urls[node.name]  # type: ignore[union-attr]
        ending = self._ending[node.name] = threading.Event()
        for what in (self._ask, self._send):
            thread = threading.Thread(target=self._guard, args=(what, node.name, url, ending), daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self, *names: str) -> None:
        """Leave these nodes alone; all, if none is named."""
        for name in names or self._ending:
            self._ending[name].set()
        if not names:
            for thread in self._threads:
                thread.join(60.0)

    def _guard(self, what: object, name: str, url: str, ending: threading.Event) -> None:
        try:
            what(name, url, ending)  # type: ignore[operator]
        except Exception as error:
            self.errors.append(error)

    def _ask(self, name: str, url: str, ending: threading.Event) -> None:
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=30.0)
        while not ending.wait(EVERY_S):
            asked_s = time.monotonic()
            connection.request("POST", "/get_partitions", b"{}", {"Content-Type": "application/json"})
            found = msgspec.json.decode(connection.getresponse().read())
            answered_s = time.monotonic()
            self.seen.append(Seen(name, asked_s, answered_s, found["version"], tuple(found["owners"]), found["nodes"]))
        connection.close()

    def _send(self, name: str, url: str, ending: threading.Event) -> None:
        with penstock.connect(url) as ps:
            queues = [ps.create_queue(f"load-{number}") for number in range(2 * SHARDS)]
            for queue in itertools.cycle(queues):
                if ending.wait(EVERY_S):
                    return
                queue.send(b"x")
                self.sent += 1


@contextmanager
def watching() -> Iterator[Watching]:
    found = Watching()
    try:
        yield found
    finally:
        found.end()
    assert not found.errors, found.errors
    assert found.sent


def test_maps_of_two_nodes_are_at_most_a_second_apart_and_every_owner_has_an_address(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    name = unique_prefix("maps")
    with watching() as watched, thread_node(backend, name, "a", tmp_path) as a:
        watched.begin(a)
        with thread_node(backend, name, "b", tmp_path) as b:
            watched.begin(b)
            until(lambda: len(b.own_shards) == SHARDS // 2, "an even share")
            _shards_move_to_and_fro(a, b)
            watched.end("b")
        until(lambda: a.own_shards == list(range(SHARDS)), "everything")
        watched.end()
    for each in watched.seen:
        assert each.version > 0
        assert {owner for owner in each.owners if not each.urls.get(owner)} == set()
    _versions_say_what_the_map_is(watched.seen, 0.0 if backend.engine == "kafka" else APART_S_MAX)
    _nobody_is_behind_for_long(watched.seen)


def _shards_move_to_and_fro(a: ThreadNode, b: ThreadNode) -> None:
    for number in range(MOVES):
        giver, taker = (a, b) if number % 2 == 0 else (b, a)
        shard = giver.own_shards[0]
        look(a.node._settings).move(shard, taker.name)
        until(lambda shard=shard, taker=taker: shard in taker.own_shards, "a move")


def _versions_say_what_the_map_is(seen: list[Seen], within_s: float) -> None:
    """Whoever has a version has the map of it: at once on Kafka, whose records have one order; soon on ZooKeeper."""
    by_version = defaultdict(list)
    for each in seen:
        by_version[each.version].append(each)
    for version, answers in by_version.items():
        first_s = min(each.answered_s for each in answers)
        settled = {each.owners for each in answers if each.asked_s >= first_s + within_s or not within_s}
        assert len(settled) <= 1, f"version {version} is {settled}"
    assert len({each.owners for each in seen}) > MOVES, "nothing has moved"


def _nobody_is_behind_for_long(seen: list[Seen]) -> None:
    newest, behind_s = 0, 0.0
    known: dict[int, float] = {}
    """When each version was first seen."""
    for each in sorted(seen, key=lambda it: it.answered_s):
        if each.version > newest:
            newest = each.version
            known[newest] = each.answered_s
        later = [since_s for version, since_s in known.items() if version > each.version]
        if later:
            behind_s = max(behind_s, each.asked_s - min(later))
    print(f"{len(seen)} maps, the longest time that one node was behind the other: {behind_s:.2f} s")
    assert behind_s < APART_S_MAX
