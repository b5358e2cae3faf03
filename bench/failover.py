"""How soon do others serve the shards of a node that was killed, or stands still? Does a short pause move any?

Three brokers with Kafka's own default settings, N nodes with Penstock's, all processes. A node is killed with SIGKILL
(the controller first, then each in turn), started again, and so on. At another node somebody sends to a queue in each
of its shards: the time until the first send to each was confirmed is told, and of these the longest. With `--how stop`
the node stands still instead (SIGSTOP), until its shards were taken over. `--pauses` stops every node and every broker
for two seconds each, and counts shards that move: none should. `--against DIR` does the same with the sources of
another build first.
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
from contextlib import ExitStack
from pathlib import Path

import penstock
from bench.measure import report, table
from penstock.cluster.membership.inspection import Inspection
from penstock.cluster.routing.placement import shards_of
from penstock.server.settings import parse
from tests.cluster.nodes import ProcessNode, until
from tools.kafka import DEFAULT_SETTINGS, KafkaCluster

SHARDS = 12
PAUSE_S = 2.0
PATIENCE_S = 90.0
ATTEMPT_S = 3.0


def settings(kafka: KafkaCluster, cluster: str, node: str, data: Path, more: str) -> str:
    """A penstock.toml that says nothing about time, unless `more` does."""
    return f"""
[server]
data = "{data}"
engine = "kafka"
sqs_port = 0
http_port = 0
nsq_tcp_port = 0
nsq_http_port = 0
[kafka]
bootstrap = "{kafka.bootstrap}"
[cluster]
name = "{cluster}"
shards = {SHARDS}
node = "{node}"
link_port = 0
{more}
"""


class Nodes:
    """The nodes of one build."""

    def __init__(self, kafka: KafkaCluster, cluster: str, count: int, directory: Path, more: str, source: str) -> None:
        self._texts = {f"n{at}": settings(kafka, cluster, f"n{at}", directory / f"n{at}", more) for at in range(count)}
        self.nodes = {name: ProcessNode.with_settings(name, directory, text) for name, text in self._texts.items()}
        for node in self.nodes.values():
            node.environment = dict(os.environ, PYTHONPATH=source)
        options = parse(self._texts["n0"]).kafka_options()
        self._options = options
        self.queues = self._queue_of_each_shard()

    @staticmethod
    def _queue_of_each_shard() -> dict[int, str]:
        found: dict[int, str] = {}
        for number in range(100 * SHARDS):
            found.setdefault(shards_of(f"failover-{number}", 1, SHARDS)[0], f"failover-{number}")
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

    def owners(self) -> dict[int, tuple[str, int]]:
        """Who serves each shard, and in which epoch."""
        return {row["shard"]: (row["served_by"], row["epoch"]) for row in self.look().rows()}

    def until_even(self) -> None:
        """Wait until each node has its share, and nothing has moved for a moment."""

        def is_even() -> bool:
            names = [name for name, _ in self.owners().values()]
            counts = [names.count(name) for name in self.nodes]
            return all(names) and min(counts) >= SHARDS // len(counts) - 1

        until(is_even, "an even share", 180.0)
        time.sleep(2.0)
        until(is_even, "an even share", 180.0)

    def failover_s(self, victim: str, how: str) -> tuple[float, float]:
        """The shortest and the longest time until a send to one of its shards was confirmed elsewhere."""
        shards = [shard for shard, (name, _) in self.owners().items() if name == victim]
        witness = next(node for name, node in self.nodes.items() if name != victim)
        address = urllib.parse.urlsplit(witness.listening["http"]["url"]).netloc
        self.nodes[victim].signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        began_s, took_s = time.monotonic(), dict[int, float]()
        threads = [
            threading.Thread(target=self._send, args=(address, shard, began_s, took_s), daemon=True) for shard in shards
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S + ATTEMPT_S)
        if how != "kill":
            self.nodes[victim].signal(signal.SIGCONT)
        missing = set(shards) - set(took_s)
        assert shards and not missing, f"shards {missing} of {victim} were not served in {PATIENCE_S:g} s"
        return min(took_s.values()), max(took_s.values())

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

    def kills(self, count: int, how: str) -> list[tuple[str, bool, float, float]]:
        """So many failovers: the node, whether it was the controller, the first shard's time and the last's."""
        found = []
        for number in range(count):
            controller = self.controller()
            others = [name for name in self.nodes if name != controller]
            victim = controller if number % 2 == 0 else others[number // 2 % len(others)]
            first_s, last_s = self.failover_s(victim, how)
            found.append((victim, victim == controller, first_s, last_s))
            print(
                f"  {victim}{' (controller)' if victim == controller else ''}: {first_s:.1f} to {last_s:.1f} s",
                flush=True,
            )
            if how == "kill":
                self.nodes[victim].start()
            self.until_even()
        return found

    def moves_of_pauses(self, kafka: KafkaCluster, brokers: int) -> dict[str, int]:
        """Every node and every broker stands still for a moment, one after the other: how many shards that moved."""
        found = {}
        for name in (*self.nodes, *(f"broker {number}" for number in range(brokers))):
            before = self.owners()
            if name in self.nodes:
                self.nodes[name].signal(signal.SIGSTOP)
                time.sleep(PAUSE_S)
                self.nodes[name].signal(signal.SIGCONT)
            else:
                kafka.pause(int(name.split()[1]))
                time.sleep(PAUSE_S)
                kafka.resume(int(name.split()[1]))
            time.sleep(6.0)
            after = self.owners()
            found[name] = sum(before[shard] != after[shard] for shard in before)
            print(f"  {name} stood still for {PAUSE_S:g} s: {found[name]} shards moved", flush=True)
        return found

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()


def main() -> None:
    """Run it; the exit status says whether the targets were met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--how", choices=("kill", "stop"), default="kill")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--kills", type=int, default=5)
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
    rows, is_met = [], True
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
                found = nodes.kills(given.kills, given.how)
                moved = nodes.moves_of_pauses(kafka, 3) if given.pauses and build == "now" else {}
            finally:
                nodes.close()
            lasts = [last_s for *_, last_s in found]
            if build == "now":
                is_met = statistics.median(lasts) <= given.target and not any(moved.values())
            each = ", ".join(f"{last_s:.1f}{' (controller)' if was else ''}" for _, was, _, last_s in found)
            told = f"{sum(moved.values())} in {len(moved)} pauses" if moved else ""
            rows.append([build, f"{statistics.median(lasts):.1f} s", f"{max(lasts):.1f} s", each, told])
    header = (
        "build",
        "median",
        "longest",
        "each: the last shard of the node",
        f"shards moved by pauses of {PAUSE_S:g} s",
    )
    report(f"Failover: {given.how}, {given.nodes} nodes, {given.kills} times", "", table(header, rows))
    raise SystemExit(0 if is_met else 1)


if __name__ == "__main__":
    main()
