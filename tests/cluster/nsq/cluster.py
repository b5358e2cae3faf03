"""Two nodes on directories of their own, two lookup services: four processes, which tests kill and start again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.protocols.nsq.clients.servers import Penstock, PenstockLookup, looking_up, running, until

SETTINGS = "[nsq]\nlookup_heartbeat_s = 0.5\n"


class Cluster:
    """Every node tells every lookup service."""

    def __init__(self, nodes: list[Penstock], lookups: list[PenstockLookup]) -> None:
        self.nodes = nodes
        self.lookups = lookups

    @property
    def ports(self) -> set[int]:
        return {node.tcp_port for node in self.nodes}

    @property
    def lookup_urls(self) -> list[str]:
        return [f"http://{lookup.http_address}" for lookup in self.lookups]

    def create(self, topic: str, channel: str) -> None:
        """Make a channel on every node, and wait until every lookup service knows all of them."""
        for node in self.nodes:
            node.post("/topic/create", topic=topic)
            node.post("/channel/create", topic=topic, channel=channel)
        for lookup in self.lookups:
            until(lambda lookup=lookup: lookup.producers(topic) == self.ports)  # type: ignore[misc]


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        lookups = [stack.enter_context(looking_up(PenstockLookup(directory / name))) for name in ("lookup1", "lookup2")]
        flags = [flag for lookup in lookups for flag in ("--lookup", lookup.tcp_address)]
        nodes = [
            stack.enter_context(running(Penstock(directory / name, *flags, settings=SETTINGS)))
            for name in ("node1", "node2")
        ]
        yield Cluster(nodes, lookups)


def numbered(prefix: str, count: int) -> list[bytes]:
    """Bodies that can be told apart."""
    return [f"{prefix} {number}".encode() for number in range(count)]
