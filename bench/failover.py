"""How soon do others serve the shards of a node that was killed, or stands still? Does a short pause move any?

Three brokers with Kafka's own default settings, N nodes with Penstock's, all processes. A node is killed with SIGKILL
(the controller first, then each in turn), started again, and so on. At another node somebody sends to a queue in each
of its shards: the time until the first send to each was confirmed is told, and of these the longest. A Python client
that goes to the owners itself sends to the same queues all the time: its longest gap is told, too. With `--how stop`
the node stands still instead (SIGSTOP), until its shards were taken over. `--pauses` has a node that owns shards, the
controller, the broker that leads the partitions topic and another broker stand still (SIGSTOP), for 0.5 to 8 s each,
while clients send to every shard, and counts shards that are taken from their owner: none should because of two
seconds, and none because of a broker. `--against DIR` does the same with the sources of another build first.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import statistics
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

import penstock
from bench.broker_loss import Sender
from bench.measure import report, table
from penstock.cluster.membership.inspection import Inspection
from penstock.cluster.routing.placement import shards_of
from penstock.server.settings import parse
from tests.cluster.nodes import ProcessNode, bare_settings, until
from tools.kafka import DEFAULT_SETTINGS, KafkaCluster

SHARDS_EACH = 4
"""So many shards has each node, on average."""
PAUSE_S = 2.0
"""A node that stands still for so long keeps its shards."""
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
SETTLE_S = 6.0
"""After a pause: what comes of it, comes within this time."""
OWNER, CONTROLLER, LEADER, OTHER = "node with shards", "controller", "broker: the topic's leader", "broker: another"
BROKERS = (LEADER, OTHER)
PATIENCE_S = 90.0
ATTEMPT_S = 3.0


class Pause(NamedTuple):
    """Somebody stood still for a while: what came of it."""

    role: str
    seconds: float
    moved: int
    """Shards that were taken from their owner. One that is handed over, for the sake of balance, does not count."""
    gap_s: float
    """The longest time in which sends to one of the shards, at a node that went on, were not confirmed."""
    errors: int

    @property
    def is_false(self) -> bool:
        """Whether shards moved that had better stayed: of a node that was soon back, or that never stood still."""
        return bool(self.moved) and (self.role in BROKERS or self.seconds <= PAUSE_S)


class Failover(NamedTuple):
    """A node's shards were taken over by others."""

    victim: str
    was_controller: bool
    first_s: float
    """Until a send to the first of its shards was confirmed, at another node..."""
    last_s: float
    """... and to the last."""
    direct_s: float
    """The longest time in which a client that goes to the owners itself had nothing confirmed..."""
    direct_errors: int
    """... and how many of its sends failed."""

    @property
    def text(self) -> str:
        who = f"{self.victim}{' (controller)' if self.was_controller else ''}"
        direct = f"{self.direct_s:.1f} s, {self.direct_errors} errors"
        return f"{who}: {self.first_s:.1f} to {self.last_s:.1f} s; direct clients {direct}"


def _address(node: ProcessNode) -> str:
    return str(urllib.parse.urlsplit(node.listening["http"]["url"]).netloc)


class Nodes:
    """The nodes of one build."""

    def __init__(self, kafka: KafkaCluster, cluster: str, count: int, directory: Path, more: str, source: str) -> None:
        names = [f"n{at}" for at in range(count)]
        self.shards = SHARDS_EACH * count
        self._texts = {
            name: bare_settings(kafka, cluster, name, directory / name, self.shards, cluster_more=more)
            for name in names
        }
        self.nodes = {name: ProcessNode.with_settings(name, directory, text) for name, text in self._texts.items()}
        for node in self.nodes.values():
            node.environment = dict(os.environ, PYTHONPATH=source)
        options = parse(self._texts["n0"]).kafka_options()
        self._options = options
        self.queues = self._queue_of_each_shard()
        self.back_s: list[float] = []
        """For each node that was started again, how long it took after that until it had its share."""

    def _queue_of_each_shard(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for number in range(100 * self.shards):
            found.setdefault(shards_of(f"failover-{number}", 1, self.shards)[0], f"failover-{number}")
        return found

    def start(self) -> None:
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait()
        with penstock.connect(self.nodes["n0"].listening["http"]["url"]) as ps:
            for name in self.queues.values():
                ps.create_queue(name)
        self.until_even()

    def look(self) -> Inspection:
        return Inspection(self._options)

    def owners(self) -> dict[int, str]:
        """Who serves each shard."""
        return {row["shard"]: row["served_by"] for row in self.look().rows()}

    def until_even(self) -> None:
        """Wait until each node has its share, and nothing has moved for a moment."""

        def is_even() -> bool:
            names = list(self.owners().values())
            counts = [names.count(name) for name in self.nodes]
            return all(names) and min(counts) >= SHARDS_EACH - 1

        until(is_even, "an even share", 180.0)
        time.sleep(2.0)
        until(is_even, "an even share", 180.0)

    def failover(self, victim: str, how: str) -> Failover:
        """A node is killed, or stands still until its shards were taken over."""
        shards = [shard for shard, name in self.owners().items() if name == victim]
        was_controller = victim == self.controller()
        others = [node for name, node in self.nodes.items() if name != victim]
        address, *_ = addresses = [_address(node) for node in others]
        url = f"penstock://{','.join([_address(self.nodes[victim]), *addresses])}"
        with penstock.connect(url, routing="direct") as ps:
            senders = [Sender("direct", ps.queue(self.queues[shard]).send, f"direct {shard}") for shard in shards]
            for sender in senders:
                sender.start()
            until(lambda: all(sender.confirmed for sender in senders), "a first send", PATIENCE_S)
            self.nodes[victim].signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            began_s, took_s = time.monotonic(), dict[int, float]()
            threads = [
                threading.Thread(target=self._send, args=(address, shard, began_s, took_s), daemon=True)
                for shard in shards
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S + ATTEMPT_S)
            served_s = time.monotonic()
            until(lambda: all(it.confirmed[-1][0] > served_s for it in senders), "sends of direct clients", PATIENCE_S)
            direct_s = max(sender.pause_s(began_s) for sender in senders)
            if how != "kill":
                self.nodes[victim].signal(signal.SIGCONT)
            for sender in senders:
                sender.stopping.set()
            for sender in senders:
                sender.join(PATIENCE_S)
        missing = set(shards) - set(took_s)
        assert shards and not missing, f"shards {missing} of {victim} were not served in {PATIENCE_S:g} s"
        errors = sum(len(sender.errors) for sender in senders)
        return Failover(victim, was_controller, min(took_s.values()), max(took_s.values()), direct_s, errors)

    def _back_s(self, node: ProcessNode) -> float:
        """How long after it was ready a node that was started again served about its share, by its own metrics."""
        began_s, share = time.monotonic(), SHARDS_EACH - 1

        def serves_its_share() -> bool:
            with urllib.request.urlopen(f"{node.listening['http']['url']}/metrics", timeout=ATTEMPT_S) as answer:
                return bool(answer.read().count(b"\npenstock_shard_epoch{") >= share)

        until(serves_its_share, "its share", PATIENCE_S)
        return time.monotonic() - began_s

    def _send(self, address: str, shard: int, began_s: float, took_s: dict[int, float]) -> None:
        while time.monotonic() - began_s < PATIENCE_S:
            connection = http.client.HTTPConnection(address, timeout=ATTEMPT_S)
            try:
                body = b'{"body": "still there"}'
                path = f"/v1/queues/{self.queues[shard]}/messages"
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                if answer.status < 300:
                    took_s[shard] = time.monotonic() - began_s
                    return
                assert answer.status >= 409, answer.read()
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.05)

    def controller(self) -> str:
        """Who decides."""
        return next((row["node"] for row in self.look().nodes() if row["controller"]), "n0")

    def kills(self, count: int, how: str) -> list[Failover]:
        """So many failovers: of the controller and of another node in turns."""
        found = []
        for number in range(count):
            controller = self.controller()
            others = [name for name in self.nodes if name != controller]
            victim = controller if number % 2 == 0 else others[number // 2 % len(others)]
            found.append(self.failover(victim, how))
            print(f"  {found[-1].text}", flush=True)
            if how == "kill":
                self.nodes[victim].start()
                self.back_s.append(self._back_s(self.nodes[victim]))
            self.until_even()
        return found

    def moves(self, count: int) -> list[float]:
        """How long it takes, each time, until another node serves a shard that somebody moves by hand."""
        found = []
        for shard in range(count):
            server = self.owners()[shard]
            target = next(name for name in self.nodes if name != server)
            began_s = time.monotonic()
            self.look().move(shard, target)
            while self.owners()[shard] != target:
                assert time.monotonic() - began_s < PATIENCE_S, f"shard {shard} did not move to {target}"
                time.sleep(0.05)
            found.append(time.monotonic() - began_s)
            self.look().move(shard, None)
        self.until_even()
        return found

    def memory_mb(self) -> list[float]:
        """Of each node's process."""
        return [node.memory_mb for node in self.nodes.values() if node.is_running]

    def pauses(self, kafka: KafkaCluster) -> list[Pause]:
        """Everybody who matters stands still, for longer and longer."""
        found = []
        for seconds in PAUSES_S:
            for role in (OWNER, CONTROLLER, LEADER, OTHER):
                found.append(self._pause(kafka, role, seconds))
                print(f"  {found[-1]}", flush=True)
                if found[-1].moved:
                    self.until_even()
        return found

    def _pause(self, kafka: KafkaCluster, role: str, seconds: float) -> Pause:
        controller, leader = self.controller(), self._leader(kafka)
        owner, witness = [name for name in self.nodes if name != controller][:2]
        before = self.look().ledger.shards
        with penstock.connect(self.nodes[witness].listening["http"]["url"]) as ps:
            senders = [Sender(name, ps.queue(name).send, name) for name in self.queues.values()]
            for sender in senders:
                sender.start()
            time.sleep(1.0)
            began_s = time.monotonic()
            if role in BROKERS:
                broker = leader if role == LEADER else (leader + 1) % 3
                kafka.pause(broker)
                time.sleep(seconds)
                kafka.resume(broker)
            else:
                node = self.nodes[controller if role == CONTROLLER else owner]
                node.signal(signal.SIGSTOP)
                time.sleep(seconds)
                node.signal(signal.SIGCONT)
            time.sleep(SETTLE_S)
            gap_s = max(sender.pause_s(began_s) for sender in senders)
            for sender in senders:
                sender.stopping.set()
            for sender in senders:
                sender.join(PATIENCE_S)
        after = self.look().ledger.shards
        moved = sum(
            it.epoch - before[shard].epoch > 1 or (it.epoch != before[shard].epoch and not it.after)
            for shard, it in after.items()
        )
        return Pause(role, seconds, moved, gap_s, sum(len(sender.errors) for sender in senders))

    def _leader(self, kafka: KafkaCluster) -> int:
        topic = self._options.partitions_topic
        found = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(topic, timeout=30.0).topics[topic]
        return int(found.partitions[0].leader)

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()


def _matrix(paused: list[Pause]) -> list[list[str]]:
    """A row for each role: shards that moved, the gap, the errors."""
    return [
        [
            role,
            *(
                f"{it.moved} moved{' FALSELY' if it.is_false else ''}, gap {it.gap_s:.1f} s, {it.errors} errors"
                for it in paused
                if it.role == role
            ),
        ]
        for role in (OWNER, CONTROLLER, LEADER, OTHER)
    ]


def main() -> None:
    """Run it; the exit status says whether the targets were met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--how", choices=("kill", "stop"), default="kill")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--moves", type=int, default=0, help="time so many moves by hand first")
    parser.add_argument("--pauses", action="store_true")
    parser.add_argument("--more", default="", help="more lines of the nodes' [cluster] section")
    parser.add_argument("--against", type=Path, help="the src directory of another build, to compare with")
    parser.add_argument("--only", action="store_true", help="only that one")
    parser.add_argument("--target", type=float, default=6.0, help="seconds, for the median of the last shards")
    parser.add_argument("--keep", type=Path, help="a directory for the nodes' logs")
    given = parser.parse_args()
    own = str(Path(penstock.__file__).parent.parent)
    builds = {"before": str(given.against)} if given.against else {}
    if not given.only:
        builds["now"] = own
    rows, is_met, paused = [], True, list[Pause]()
    with ExitStack() as stack:
        directory = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-failover-")))
        kafka = KafkaCluster(3, properties=DEFAULT_SETTINGS)
        stack.callback(kafka.close)
        for build, source in builds.items():
            (directory / build).mkdir(parents=True, exist_ok=True)
            more = given.more if build == "now" else ""
            nodes = Nodes(kafka, build, given.nodes, directory / build, more, source)
            try:
                nodes.start()
                print(f"{build}:", flush=True)
                moves_s = nodes.moves(given.moves)
                found = nodes.kills(given.kills, given.how)
                memory_mb = nodes.memory_mb()
                paused = nodes.pauses(kafka) if given.pauses and build == "now" else []
            finally:
                nodes.close()
            lasts = [each.last_s for each in found]
            if build == "now":
                is_met = statistics.median(lasts) <= given.target and not any(each.is_false for each in paused)
            each = ", ".join(f"{it.last_s:.1f}{' (controller)' if it.was_controller else ''}" for it in found)
            errors = sum(it.direct_errors for it in found)
            direct = f"{max(it.direct_s for it in found):.1f} s, {errors} errors"
            moved = f"{statistics.median(moves_s):.1f} to {max(moves_s):.1f} s" if moves_s else ""
            back = f"{max(nodes.back_s):.1f} s" if nodes.back_s else ""
            memory = f"{min(memory_mb):.0f} to {max(memory_mb):.0f} MB"
            median, longest = f"{statistics.median(lasts):.1f} s", f"{max(lasts):.1f} s"
            rows.append([build, median, longest, each, direct, back, memory, moved])
    header = (
        "build",
        "median",
        "longest",
        "each: the last shard of the node",
        "direct clients: longest gap, errors",
        "a node started again has its share, at most",
        "memory of a node",
        "a move by hand",
    )
    more = f", {given.more}" if given.more else ""
    report(f"Failover: {given.how}, {given.nodes} nodes, {given.kills} times{more}", "", table(header, rows))
    if paused:
        text = f"{sum(each.is_false for each in paused)} false failovers in {len(paused)} pauses."
        report(f"Pauses{more}", text, table(("who stands still", *(f"{it:g} s" for it in PAUSES_S)), _matrix(paused)))
    raise SystemExit(0 if is_met else 1)


if __name__ == "__main__":
    main()
