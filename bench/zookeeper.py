"""Queues in ZooKeeper: Penstock against kazoo's `LockingQueue`, and how long a failover takes.

Three servers of ZooKeeper on this machine, on one disk. The same number of workers, each with a connection of its own,
puts messages, then takes and finishes all of them. The recipe does that one by one, as it is made; Penstock's workers
send one by one, or in batches, and receive several at a time. Every message is in ZooKeeper before it is confirmed.

    python -m bench.zookeeper [--quick]
"""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.recipe.queue import LockingQueue

import penstock
from bench.measure import (
    Measured,
    at_least,
    bodies,
    empty_directory,
    in_threads,
    parse_scale,
    plain,
    report,
    table,
    take_turns,
)
from tests.cluster.nodes import SHARDS, ProcessNode, until
from tools.zookeeper import ZooKeeperEnsemble, zookeeper_ensemble

RECIPE = "kazoo's LockingQueue"
SINGLES = "Penstock, sent one by one"
BATCHES = "Penstock, sent in batches"
WORKERS = 16
BATCH = 100
TIMES = 20
SESSIONS_S = (10.0, 4.0)


def recipe(_directory: Path, *, hosts: str, each: int) -> float:
    """Each worker puts its messages; then they take and finish what is there."""
    path, todo = f"/bench/{uuid.uuid4().hex}", bodies(each)
    with ExitStack() as opened:
        queues = []
        for _ in range(WORKERS):
            client = KazooClient(hosts)
            client.start()
            opened.callback(client.close)
            opened.callback(client.stop)
            queues.append(LockingQueue(client, path))
        putting, taking = iter(queues), iter(queues)

        def put() -> None:
            queue = next(putting)
            for body in todo:
                queue.put(body)

        def take() -> None:
            queue, taken = next(taking), 0
            while taken < each:
                if queue.get(timeout=5) is not None and queue.consume():
                    taken += 1

        seconds = in_threads(WORKERS, put) + in_threads(WORKERS, take)
        assert len(queues[0]) == 0
    return WORKERS * each / seconds


def served(_directory: Path, *, url: str, each: int, batch: int) -> float:
    """The same, with leases and acknowledgements."""
    name, todo = f"bench-{uuid.uuid4().hex[:8]}", bodies(each)
    with ExitStack() as opened:
        clients = [opened.enter_context(penstock.connect(url)) for _ in range(WORKERS)]
        clients[0].create_queue(name)
        putting, taking = iter(clients), iter(clients)

        def put() -> None:
            queue = next(putting).queue(name)
            for start in range(0, each, batch):
                if batch == 1:
                    queue.send(todo[start])
                else:
                    queue.send_many(todo[start : start + batch])

        def take() -> None:
            queue, taken = next(taking).queue(name), 0
            while taken < each:
                messages = queue.receive_batch(max=min(BATCH, each - taken), wait=5)
                messages.ack()
                taken += len(messages)

        seconds = in_threads(WORKERS, put) + in_threads(WORKERS, take)
        assert queue_is_empty(clients[0], name)
    return WORKERS * each / seconds


def queue_is_empty(client: penstock.Penstock, name: str) -> bool:
    """Whether everything was acknowledged."""
    counts = client.queue(name).stats().channels["main"]
    return not (counts.ready or counts.leased)


def measure_rates(zookeeper: ZooKeeperEnsemble, turns: int, each: int, served_each: int) -> Measured:
    """The contenders in turns, on the same servers."""
    with empty_directory() as directory, ExitStack() as opened:
        node = ProcessNode(zookeeper, f"bench-{uuid.uuid4().hex[:8]}", "a", directory, session_s=10.0)
        opened.callback(node.kill)
        node.start()
        url = node.listening["http"]["url"].replace("http", "penstock", 1)
        contenders = {
            RECIPE: partial(recipe, hosts=zookeeper.hosts, each=each),
            SINGLES: partial(served, url=url, each=served_each, batch=1),
            BATCHES: partial(served, url=url, each=5 * served_each, batch=BATCH),
        }
        return take_turns(contenders, turns)


def failover_s(zookeeper: ZooKeeperEnsemble, session_s: float) -> float:
    """From kill -9 of one of two nodes until the other serves every shard."""
    with empty_directory() as directory, ExitStack() as opened:
        name, nodes = f"bench-{uuid.uuid4().hex[:8]}", []
        for each in "ab":
            node = ProcessNode(zookeeper, name, each, directory, session_s=session_s)
            opened.callback(node.kill)
            node.start()
            nodes.append(node)
        a, b = nodes
        until(lambda: a.served and b.served, "shards at both nodes")
        with penstock.connect(a.listening["http"]["url"].replace("http", "penstock", 1)) as client:
            queues = [f"q{number}" for number in range(4 * SHARDS)]  # in every shard some
            for queue in queues:
                client.create_queue(queue)
            b.kill()
            began_s = time.monotonic()
            for queue in queues:
                until(partial(_answers, client, queue), "an answer")
            return time.monotonic() - began_s


def _answers(client: penstock.Penstock, queue: str) -> bool:
    try:
        client.queue(queue).send(b"x")
    except penstock.PenstockError:
        return False
    return True


def main() -> None:
    """Print the section of the report."""
    scale = parse_scale(__doc__)
    turns, each, served_each = scale.turns(3), scale.count(25, 5), scale.count(400, 20)
    with zookeeper_ensemble(servers=3) as zookeeper:
        measured = measure_rates(zookeeper, turns, each, served_each)
        failovers = [(session_s, failover_s(zookeeper, session_s)) for session_s in SESSIONS_S]
    rows = []
    for name in measured.rates:
        ratio = measured.ratio(name, RECIPE)
        verdict = "" if name == RECIPE else at_least(TIMES, ratio)
        rows.append([name, plain(measured.rate(name)), str(ratio), verdict])
    report(
        f"Queues in ZooKeeper: {WORKERS} workers put, take and finish messages of 200 bytes",
        "Three servers of ZooKeeper on this machine. Messages a second through both halves.",
        table(["", "messages/s", f"times {RECIPE}", f"target {TIMES}"], rows),
        table(
            ["session timeout", "kill -9 until every shard answers"],
            [[f"{session_s:g} s", f"{seconds:.1f} s"] for session_s, seconds in failovers],
        ),
    )


if __name__ == "__main__":
    main()
