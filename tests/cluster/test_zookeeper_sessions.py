"""What the session of a node with ZooKeeper brings: when it ends, all that the node had is free at once."""

from __future__ import annotations

import time
from pathlib import Path

from kazoo.client import KazooClient

import penstock
from penstock.cluster.membership.zookeeper import ZooKeeperEngine, ZooKeeperMembership, map_path, sessions_path
from penstock.core.commands import Receive, Send
from penstock.store.zookeeper import connect, disconnect
from penstock.store.zookeeper_options import ZooKeeperOptions
from tests.cluster.nodes import SHARDS, ProcessNode, ThreadNode, look, thread_node, until
from tests.server.bare import bodies
from tests.zookeeper import needed_ensemble, unique_cluster, zookeeper  # noqa: F401
from tools.zookeeper import ZooKeeperEnsemble

SESSION_S = 3.0
QUEUES = [f"q{number}" for number in range(8)]
"""Some in every shard."""
LEASE_S = 600
LOOKS = 16


def commits_of(node: ThreadNode, shard: int) -> int:
    claimed = node.node.ownership.owned_shards[shard].claimed
    assert claimed is not None
    return claimed.commits


def membership_of(node: ThreadNode) -> ZooKeeperMembership:
    found = node.node._membership
    assert isinstance(found, ZooKeeperMembership)
    return found


def queues_here(node: ThreadNode) -> set[str]:
    """The queues of the shards that a node serves."""
    return {name for served in node.node.ownership.served.values() for name in served.identity.queues}


def test_when_a_node_dies_the_leases_of_its_connections_are_free_in_one_transaction_everywhere(
    zookeeper: ZooKeeperEnsemble,  # noqa: F811
    tmp_path: Path,
) -> None:
    name = unique_cluster("leases")
    dying = ProcessNode(zookeeper, name, "b", tmp_path, session_s=SESSION_S)
    try:
        with thread_node(zookeeper, name, "a", tmp_path, session_s=SESSION_S) as a:
            dying.start()
            until(lambda: len(a.own_shards) == SHARDS // 2, "an even share")
            for queue in QUEUES:
                for _ in range(3):
                    a.call(Send(queue=queue, bodies=[queue.encode()]))
            url = dying.listening["http"]["url"].replace("http", "penstock", 1)
            with penstock.connect(url) as client:
                for queue in QUEUES:
                    held = [client.queue(queue).receive(wait=10, lease=LEASE_S) for _ in range(3)]
                    assert all(held)
                own, kept = a.own_shards, queues_here(a)
                assert kept and kept != set(QUEUES)
                time.sleep(1.0)  # what was leased is committed lazily
                before = {shard: commits_of(a, shard) for shard in own}
                dying.kill()
                killed_s = time.monotonic()
                until(lambda: a.own_shards == list(range(SHARDS)), "everything")
                served_s = time.monotonic() - killed_s
                until(lambda: "b" not in membership_of(a)._sessions, "the end of b's session")
                time.sleep(0.5)
                after = {shard: commits_of(a, shard) - before[shard] for shard in own}
                for queue in QUEUES:
                    delivery = a.call(Receive(queue=queue, limit=10))
                    assert bodies(delivery) == [queue.encode()] * 3, "free, although leased for long"
            until(lambda: a.node.maps.ledger.nodes["b"].state == "gone", "the end of b")  # else a would wait for it
        assert set(after.values()) == {1}, f"one transaction in each shard that was a's: {after}"
        assert served_s < 2 * SESSION_S
    finally:
        dying.kill()


def test_a_look_does_not_wait_for_a_server_that_stands_still_or_is_gone(tmp_path: Path) -> None:
    name = unique_cluster("silent")
    with needed_ensemble(3) as ensemble, thread_node(ensemble, name, "a", tmp_path, session_s=10.0) as a:
        follower = next(each for each in range(3) if each != ensemble.leader())
        ensemble.pause(follower)
        try:
            _looks_take_less_than_two_seconds(a)
        finally:
            ensemble.resume(follower)
        ensemble.kill(follower)
        _looks_take_less_than_two_seconds(a)


def _looks_take_less_than_two_seconds(node: ThreadNode) -> None:
    took_s = []
    for _ in range(LOOKS):  # a client asks the servers in any order
        began_s = time.monotonic()
        assert len(look(node.node._settings).rows()) == SHARDS
        took_s.append(time.monotonic() - began_s)
    print(f"looks without one server: {min(took_s):.2f} to {max(took_s):.2f} s")
    assert max(took_s) < 2.0


def test_who_serves_a_shard_is_gone_from_the_map_with_the_session_and_nobody_has_to_say_so(
    zookeeper: ZooKeeperEnsemble,  # noqa: F811
    tmp_path: Path,
) -> None:
    name = unique_cluster("alone")
    node = ProcessNode(zookeeper, name, "only", tmp_path, session_s=SESSION_S)
    options = ZooKeeperOptions(zookeeper.hosts, name)
    client = connect(options)
    try:
        node.start()
        serving = f"{map_path(options)}/serving"
        assert sorted(client.get_children(serving)) == [str(shard) for shard in range(SHARDS)]
        node.kill()
        until(lambda: not client.get_children(sessions_path(options)), "the end of the session")
        assert client.get_children(serving) == []
        assert client.get_children(f"{map_path(options)}/node") == ["only"], "where it was is remembered"
    finally:
        node.kill()
        disconnect(client)


def test_a_node_whose_loop_stands_still_loses_its_shards_and_joins_again(
    zookeeper: ZooKeeperEnsemble,  # noqa: F811
    tmp_path: Path,
) -> None:
    name = unique_cluster("still")
    with (
        thread_node(zookeeper, name, "a", tmp_path, session_s=SESSION_S) as a,
        thread_node(zookeeper, name, "b", tmp_path, session_s=SESSION_S) as b,
    ):
        until(lambda: len(a.own_shards) == len(b.own_shards) == SHARDS // 2, "an even share")
        b._loop.call_soon_threadsafe(time.sleep, 3 * SESSION_S)
        until(lambda: a.own_shards == list(range(SHARDS)), "all shards", 3 * SESSION_S)
        for queue in QUEUES:
            a.call(Send(queue=queue, bodies=[b"one"]))
        until(lambda: len(a.own_shards) == len(b.own_shards) == SHARDS // 2, "an even share again")
        assert [bodies(b.call(Receive(queue=queue, limit=10))) for queue in QUEUES] == [[b"one"]] * len(QUEUES)
        assert not a.fatal and not b.fatal


def test_a_node_whose_session_ran_out_while_it_was_alone_begins_again(
    zookeeper: ZooKeeperEnsemble,  # noqa: F811
    tmp_path: Path,
) -> None:
    name = unique_cluster("expired")
    with thread_node(zookeeper, name, "a", tmp_path, session_s=SESSION_S) as a:
        for queue in QUEUES:
            a.call(Send(queue=queue, bodies=[b"one"]))
        engine = a.node._engine
        assert isinstance(engine, ZooKeeperEngine) and engine.client is not None and engine.session is not None
        former = engine.session
        other = KazooClient(zookeeper.hosts, client_id=engine.client.client_id)
        other.start()
        other.stop()  # it ends the session of both
        until(lambda: engine.session not in (None, former), "another session")
        until(lambda: a.own_shards == list(range(SHARDS)), "all shards")
        assert [bodies(a.call(Receive(queue=queue, limit=10, wait_ms=10_000))) for queue in QUEUES] == [[b"one"]] * 8
        assert not a.fatal
