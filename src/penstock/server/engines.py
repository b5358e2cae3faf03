"""The store engines, by name: how each is opened, and which node serves it.

One more engine is one more entry here. Its store passes `tests/store/conformance.py`, statistics included.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.core.errors import InvalidRequest
from penstock.store.base import Store
from penstock.store.embedded import StoreOpener, StoreOptions
from penstock.store.memory import MEMORY as MEMORY
from penstock.store.memory import MemoryStore

Opener = Callable[[], Store]
"""Opens a store; and again, when it has failed."""


class Engine(NamedTuple):
    """Where messages are kept."""

    name: str
    node: str
    """The class of the node that serves it: module and name."""
    opener: Callable[[str, Mapping[str, Any]], Opener] | None
    """What opens a store at a place, with options, for one process; None: only nodes have such stores."""
    has_kafka_log: bool = False
    """Whether its chunks can be read from Kafka as well."""
    needs: str = ""
    """The library that it needs, and that is not always there."""
    cluster: str = ""
    """The class of what its clusters live in, a `ClusterEngine`; "": it has none."""

    def load_node(self) -> Any:
        """The class of its node; `InvalidRequest` if its library is missing."""
        return self._load(self.node)

    def load_cluster(self) -> Any:
        """The class of what its clusters live in; `InvalidRequest` if its library is missing."""
        return self._load(self.cluster)

    def _load(self, place: str) -> Any:
        module, _, name = place.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name != self.needs:
                raise
            raise InvalidRequest(
                f'the engine "{self.name}" needs another library: pip install "penstock-mq[{self.name}]"'
            ) from None


def _open_embedded(place: str, options: Mapping[str, Any]) -> Opener:
    try:
        store_options = StoreOptions(**options)
    except TypeError as error:
        raise InvalidRequest(f"unknown option: {error}") from None
    return StoreOpener(Path(place), store_options)


def _open_memory(_place: str, options: Mapping[str, Any]) -> Opener:
    if options:
        raise InvalidRequest(f"a store in memory takes no options: {', '.join(options)}")
    store = MemoryStore()
    return lambda: store


_NODE = "penstock.server.node:Node"
_CLUSTER_NODE = "penstock.cluster.node:ClusterNode"
ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("embedded", _NODE, _open_embedded),
        Engine("memory", _NODE, _open_memory),
        Engine("kafka", _CLUSTER_NODE, None, True, "confluent_kafka", "penstock.cluster.membership.kafka:KafkaEngine"),
        Engine(
            "zookeeper", _CLUSTER_NODE, None, False, "kazoo", "penstock.cluster.membership.zookeeper:ZooKeeperEngine"
        ),
    )
}


def opener_for(data: str, options: Mapping[str, Any]) -> Opener:
    """What opens the store of one process: in a directory, or (`:memory:`) in none.

    >>> opener_for(":memory:", {})().stats.commits
    0
    """
    opener = ENGINES["memory" if data == MEMORY else "embedded"].opener
    assert opener is not None
    return opener(data, options)
