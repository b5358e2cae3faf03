"""A cluster that things happen to: real brokers of Kafka, or servers of ZooKeeper, three nodes, and a network between
them all.

Every node reaches every broker through a proxy of its own. Each broker of Kafka has a listener for each node, and tells
its clients the proxy's address. Nodes reach each other through a proxy for each node. What is said here of brokers is
true of ZooKeeper's servers.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.cluster.disks import SmallDisk, small_disk
from tests.cluster.load import Ports
from tests.cluster.nodes import SHARDS, ProcessNode
from tests.compat.server import Server
from tests.faults.proxy import Proxy
from tools.kafka import KafkaCluster
from tools.servers import QUICK_TO_START, ServerError, free_ports
from tools.zookeeper import ZooKeeperEnsemble

NAMES = ("a", "b", "c")
SPARE_BYTES = 64 << 10
"""How much a broker may still write to its largest file when its disk is said to be full."""


class World:
    """What can be done to it. Every fault is over when its method returns."""

    def __init__(
        self, backend: KafkaCluster | ZooKeeperEnsemble, paths: dict[str, list[Proxy]], links: dict[str, Proxy]
    ) -> None:
        self.backend, self.paths, self.links = backend, paths, links
        self.brokers = len(paths[NAMES[0]])
        self.nodes: dict[str, ProcessNode] = {}
        self.ports: dict[str, Ports] = {}
        self.disks: list[SmallDisk] = []
        """File systems of the brokers, if they have their own."""
        self.remarks: list[str] = []
        self.session_s = 0.0

    @property
    def _kafka(self) -> KafkaCluster:
        assert isinstance(self.backend, KafkaCluster)
        return self.backend

    # -- nodes --

    def kill_node(self, chance: random.Random) -> None:
        """kill -9, and a start before or after the others have noticed."""
        node = self.nodes[chance.choice(NAMES)]
        node.kill()
        time.sleep(chance.choice([0.0, 0.5, 1.5]) * self.session_s)
        node.start()

    def stop_node(self, chance: random.Random) -> None:
        """It stands still past its session, and goes on."""
        node = self.nodes[chance.choice(NAMES)]
        node.signal(signal.SIGSTOP)
        try:
            time.sleep(chance.choice([0.5, 1.5, 2.5]) * self.session_s)
        finally:
            node.signal(signal.SIGCONT)

    def restart_node(self, chance: random.Random) -> None:
        """SIGTERM, and a start."""
        node = self.nodes[chance.choice(NAMES)]
        node.stop()
        node.start()

    # -- brokers --

    def kill_broker(self, chance: random.Random) -> None:
        """kill -9, and a start."""
        number = chance.randrange(self.brokers)
        self.backend.kill(number)
        time.sleep(chance.choice([0.0, 3.0, 8.0]))
        self.backend.start(number)

    def restart_broker(self, chance: random.Random) -> None:
        """SIGTERM, and a start."""
        number = chance.randrange(self.brokers)
        self.backend.stop(number)
        self.backend.start(number)

    def stop_broker(self, chance: random.Random) -> None:
        """It stands still for some sessions."""
        number = chance.randrange(self.brokers)
        self.backend.pause(number)
        try:
            time.sleep(chance.choice([0.5, 1.5, 3.0]) * self.session_s)
        finally:
            self.backend.resume(number)

    def fill_disk(self, chance: random.Random) -> None:
        """No file of a broker gets longer, until it has ended or a while has passed; then there is space again."""
        number = chance.randrange(self.brokers)
        largest = max(path.stat().st_size for path in self._kafka.data(number).glob("*/*.log"))
        pid, unlimited = self.backend.pid(number), resource.RLIM_INFINITY
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest + SPARE_BYTES, unlimited))
        deadline_s = time.monotonic() + 15.0
        while self.backend.is_running(number) and time.monotonic() < deadline_s:
            time.sleep(0.2)
        if self.backend.is_running(number):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
            self.remarks.append("a broker lived through a full disk")
        else:
            self.remarks.append("a full disk ended a broker")
            self.backend.kill(number)
            self.backend.start(number)

    def fill_file_system(self, chance: random.Random) -> None:
        """No block is free on a broker's file system, for some time after the broker has ended; then there is space."""
        number = chance.randrange(self.brokers)
        disk = self.disks[number]
        try:
            self._await_end(number, disk)
            time.sleep(chance.choice([0.0, 5.0, 15.0]))
            if not self.backend.is_running(number) and chance.random() < 0.5:
                self._start_on_full_disk(number)
        finally:
            disk.free()
        if not self.backend.is_running(number):
            self.backend.kill(number)
            self.backend.start(number)

    def _await_end(self, number: int, disk: SmallDisk) -> None:
        deadline_s = time.monotonic() + 30.0
        while self.backend.is_running(number) and time.monotonic() < deadline_s:
            disk.fill()
            time.sleep(0.1)
        lived = self.backend.is_running(number)
        self.remarks.append(f"broker {number} {'lived through' if lived else 'was ended by'} a full file system")

    def _start_on_full_disk(self, number: int) -> None:
        """As a supervisor would."""
        self.backend.kill(number)
        try:
            self.backend.start(number)
            self.remarks.append(f"broker {number} started on a full file system")
        except ServerError:
            self.remarks.append(f"broker {number} did not start on a full file system")

    # -- networks --

    def cut_node(self, chance: random.Random, lengths_s: tuple[float, ...] = (3.0, 10.0)) -> None:
        """A node and the brokers hear nothing of each other; nobody tells them."""
        self._black_hole(self.paths[chance.choice(NAMES)], chance.choice(lengths_s))

    def cut_node_long(self, chance: random.Random) -> None:
        """The same for 30 seconds."""
        self.cut_node(chance, (30.0,))

    def cut_path(self, chance: random.Random) -> None:
        """One node and one broker hear nothing of each other."""
        self._black_hole([chance.choice(self.paths[chance.choice(NAMES)])], 10.0)

    def cut_all(self, chance: random.Random) -> None:
        """No node reaches any broker."""
        self._black_hole([proxy for paths in self.paths.values() for proxy in paths], chance.choice([3.0, 10.0]))

    def slow_node(self, chance: random.Random) -> None:
        """Everything between a node and the brokers takes its time."""
        proxies = self.paths[chance.choice(NAMES)]
        for proxy in proxies:
            proxy.slow(chance.choice([0.05, 0.3, 1.0]))
        time.sleep(10.0)
        for proxy in proxies:
            proxy.slow(0.0)

    def reset_node(self, chance: random.Random) -> None:
        """A node's connections to the brokers break, some in the middle of a frame, and cannot be made for a moment."""
        proxies = self.paths[chance.choice(NAMES)]
        for _ in range(5):
            for proxy in proxies:
                proxy.truncate(chance.randrange(2_000))
            time.sleep(chance.random())
            for proxy in proxies:
                proxy.shut(True)
                proxy.reset()
            time.sleep(chance.random())
            for proxy in proxies:
                proxy.shut(False)

    def cut_link(self, chance: random.Random) -> None:
        """The other nodes cannot talk to one: in silence, by resets, or slowly."""
        proxy = self.links[chance.choice(NAMES)]
        how = chance.choice(["silence", "reset", "truncate", "slow"])
        if how == "silence":
            self._black_hole([proxy], 10.0)
        elif how == "slow":
            proxy.slow(0.3)
            time.sleep(5.0)
            proxy.slow(0.0)
        else:
            for _ in range(5):
                if how == "truncate":
                    proxy.truncate(chance.randrange(2_000))
                else:
                    proxy.reset()
                time.sleep(chance.random())

    def _black_hole(self, proxies: list[Proxy], length_s: float) -> None:
        for proxy in proxies:
            proxy.black_hole(True)
        time.sleep(length_s)
        for proxy in proxies:
            proxy.black_hole(False)

    # -- keeping it up --

    def start(self) -> None:
        """Start every node, all at once."""
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait()

    def tend(self) -> None:
        """What a supervisor does: a process that has ended is started again."""
        for number in range(self.brokers):
            if not self.backend.is_running(number):
                self.remarks.append(f"broker {number} ended by itself")
                self.backend.kill(number)
                self.backend.start(number)
        for node in self.nodes.values():
            if not node.is_running:
                self.remarks.append(f"node {node.name} ended by itself: {_last_of(node.log)}")
                with suppress(AssertionError):
                    node.start()


class ShardsWorld(World):
    """One process and no broker: a server of a directory with several shards."""

    def __init__(self, directory: Path) -> None:
        super().__init__(None, {NAMES[0]: []}, {})  # type: ignore[arg-type]
        (nsq,) = free_ports(1)
        self._server = Server(directory, "--nsq-tcp-port", str(nsq), shards=SHARDS)

    def start(self) -> None:
        self._server.start()
        listening = json.loads((self._server.directory / "ready.json").read_text())["listening"]
        ports = Ports(*(listening[name]["port"] for name in ("sqs", "http", "nsq")))
        self.ports = dict.fromkeys(NAMES, ports)

    def kill_server(self, chance: random.Random) -> None:
        """kill -9, and a start."""
        time.sleep(chance.random())
        self._server.kill()
        self._server.start()

    def tend(self) -> None:
        """Nothing to do: it does not end by itself."""

    def end(self) -> None:
        """Nothing is left running."""
        self._server.kill()


Fault = Callable[[Any, random.Random], None]


def _last_of(log: str) -> str:
    return " | ".join(line for line in log.splitlines() if "CRITICAL" in line or "Error" in line)[-400:]


@contextmanager
def world(
    brokers: int,
    directory: Path,
    session_s: float,
    *,
    engine: str = "kafka",
    has_small_disks: bool = False,
    properties: Mapping[str, object] | None = None,
) -> Iterator[World]:
    """Brokers that run, proxies, and nodes that were not started yet. Without brokers: one server."""
    if not brokers:
        alone = ShardsWorld(directory)
        try:
            yield alone
        finally:
            alone.end()
        return
    with ExitStack() as stack:
        places = [directory / f"disk-{number}" for number in range(brokers if has_small_disks else 0)]
        disks = [stack.enter_context(small_disk(place)) for place in places]
        paths = {name: [_proxy(stack) for _ in range(brokers)] for name in NAMES}
        links = {name: _proxy(stack) for name in NAMES}
        fronts = {f"NODE_{name.upper()}": [proxy.port for proxy in proxies] for name, proxies in paths.items()}
        backend: KafkaCluster | ZooKeeperEnsemble
        if engine == "kafka":
            backend = KafkaCluster(
                brokers,
                properties=properties,
                fronts=fronts,
                java_options=(QUICK_TO_START,),
                disks=dict(enumerate(places)),
            )
        else:
            backend = ZooKeeperEnsemble(brokers)
        stack.callback(backend.close)
        found = World(backend, paths, links)
        found.session_s, found.disks = session_s, disks
        for name in NAMES:
            for number, proxy in enumerate(paths[name]):
                proxy.target_port = backend.front_port(f"NODE_{name.upper()}", number)
            sqs, http, nsq, links[name].target_port = free_ports(4)
            found.ports[name] = Ports(sqs, http, nsq)
            text = _settings(found, name, directory / name)
            found.nodes[name] = ProcessNode.with_settings(name, directory, text)
            stack.callback(found.nodes[name].kill)
        yield found


def _proxy(stack: ExitStack) -> Proxy:
    proxy = Proxy(0)
    stack.callback(proxy.close)
    return proxy


def _settings(found: World, name: str, data: Path) -> str:
    ports, addresses = found.ports[name], [f"127.0.0.1:{proxy.port}" for proxy in found.paths[name]]
    return f"""
[server]
data = "{data}"
engine = "{found.backend.engine}"
sqs_port = {ports.sqs}
http_port = {ports.http}
nsq_tcp_port = {ports.nsq}
nsq_http_port = 0
stop_grace_s = 20
[cluster]
name = "soak"
shards = {SHARDS}
node = "{name}"
link_port = {found.links[name].target_port}
link_address = "127.0.0.1:{found.links[name].port}"
session_timeout_s = {found.session_s}
move_pause_s = 0.5
{found.backend.settings_text(copies=min(3, found.brokers), addresses=addresses)}"""
