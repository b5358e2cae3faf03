"""`penstock cluster`: who serves what, and wishes for it. Asks Kafka or ZooKeeper: nodes may come and go."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from penstock.cli.command import Argument, Group, Option
from penstock.cli.output import AsJson, print_done, print_json, print_rows

if TYPE_CHECKING:
    from penstock.cluster.membership.view import ClusterView

clusters = Group(help="Show nodes and shards of a cluster, move shards, drain nodes.")

POLL_S = 0.5
ANY = "any"

Config = Annotated[Path | None, Option("--config", help="A penstock.toml with [cluster], and [kafka] or [zookeeper].")]
Bootstrap = Annotated[str | None, Option("--bootstrap", help="HOST:PORT of some Kafka brokers.")]
ZooKeeper = Annotated[str | None, Option("--zookeeper", help="HOST:PORT of some ZooKeeper servers.")]
Cluster = Annotated[str | None, Option("--cluster", help="The cluster's name.")]
Wait = Annotated[float, Option("--wait", help="Seconds to wait until it is done.")]


def _look(
    config: Path | None, bootstrap: str | None, zookeeper: str | None, cluster: str | None, *, is_quick: bool = False
) -> ClusterView:
    from penstock.cluster.membership.base import wait_told
    from penstock.server import settings
    from penstock.server.engines import ENGINES

    found = settings.Settings() if config is None else settings.load(config)
    if bootstrap is not None and zookeeper is not None:
        raise settings.InvalidSettings("give --bootstrap (for Kafka) or --zookeeper, not both")
    engine = "zookeeper" if zookeeper is not None else found.server.engine
    if engine not in settings.CLUSTER_CLIENTS or bootstrap is not None:
        engine = "kafka"
    found = found.overridden("cluster", name=cluster).overridden("kafka", bootstrap=bootstrap)
    cluster_engine = ENGINES[engine].load_cluster()(found.overridden("zookeeper", hosts=zookeeper))
    with wait_told(cluster_engine, lambda text: print(f"penstock: {text}", file=sys.stderr, flush=True)):
        view: ClusterView = cluster_engine.look(is_quick=is_quick)
    return view


@clusters.command()
def show(
    config: Config = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Show the nodes and the shards: who owns and serves each shard, and what is planned."""
    found = _look(config, bootstrap, zookeeper, cluster, is_quick=True)
    for gap in _gaps(found):
        print(f"penstock: {gap}", file=sys.stderr)
    if as_json:
        print_json([*found.nodes(), *found.rows()])
    else:
        print_rows(found.nodes(), False, "nodes")
        print_rows(found.rows(), False, "shards")


def _gaps(found: ClusterView) -> Iterator[str]:
    """What a look could not learn, and why."""
    if found.unread is not None:
        yield f"the partitions topic cannot be read ({found.unread}): who serves which shard is not known"
    if found.silence is not None:
        yield f"the partitions topic does not say which nodes are alive: {found.silence}"


@clusters.command()
def move(
    shard: Annotated[int, Argument(help="The shard's number.")],
    node: Annotated[str, Argument(help=f"The node to move it to, or {ANY!r}: the controller decides.")],
    config: Config = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    cluster: Cluster = None,
    wait: Wait = 0.0,
    as_json: AsJson = False,
) -> None:
    """Move a shard to a node. It stays there until the node dies or is drained."""
    found = _look(config, bootstrap, zookeeper, cluster)
    found.move(shard, None if node == ANY else node)
    if node != ANY:
        _wait(wait, lambda look: look.rows()[shard]["served_by"] == node, config, bootstrap, zookeeper, cluster)
    print_done(f"asked for shard {shard} to move to {node}", {"shard": shard, "wish": node}, as_json)


@clusters.command()
def drain(
    node: Annotated[str, Argument(help="The node.")],
    config: Config = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    cluster: Cluster = None,
    wait: Wait = 0.0,
    as_json: AsJson = False,
) -> None:
    """Move a node's shards away, one by one. The node continues to serve clients."""
    _look(config, bootstrap, zookeeper, cluster).drain(node)
    _wait(
        wait, lambda look: all(row["served_by"] != node for row in look.rows()), config, bootstrap, zookeeper, cluster
    )
    print_done(f"node {node} is draining", {"node": node, "state": "draining"}, as_json)


@clusters.command()
def undrain(
    node: Annotated[str, Argument(help="The node.")],
    config: Config = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Let a drained node own shards again."""
    _look(config, bootstrap, zookeeper, cluster).undrain(node)
    print_done(f"node {node} takes shards again", {"node": node, "state": "serving"}, as_json)


def _wait(
    seconds: float,
    is_done: Any,
    config: Path | None,
    bootstrap: str | None,
    zookeeper: str | None,
    cluster: str | None,
) -> None:
    """Look again and again, if the caller wants to wait."""
    if not seconds:
        return
    deadline_s = time.monotonic() + seconds
    while not is_done(_look(config, bootstrap, zookeeper, cluster)):
        if time.monotonic() > deadline_s:
            from penstock.store.errors import LogUnavailable

            raise LogUnavailable(f"the request is written, but was not carried out within {seconds:g} s")
        time.sleep(POLL_S)
