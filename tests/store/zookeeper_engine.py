"""What tests of the ZooKeeper engine share: clusters of their own on the session's server."""

from __future__ import annotations

from typing import Any

from penstock.store.zookeeper_options import ZooKeeperOptions
from tests.zookeeper import unique_cluster
from tools.zookeeper import ZooKeeperEnsemble


def options_for(zookeeper: ZooKeeperEnsemble, **changes: Any) -> ZooKeeperOptions:
    """Options of a cluster that nobody else has."""
    return ZooKeeperOptions(zookeeper.hosts, unique_cluster(), **{"shards": 1, "commit_timeout_s": 30.0, **changes})
