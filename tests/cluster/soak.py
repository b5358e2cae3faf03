"""`make cluster-soak`: everything that can happen to a cluster happens to it under load, and every message is counted.

    python -m tests.cluster.soak                                   # 25 configurations of 180 s each
    python -m tests.cluster.soak --list
    python -m tests.cluster.soak --config "nodes killed" --seconds 30 --seeds 5

Three nodes, as processes, on one real broker of Kafka or on three, or on one or three of ZooKeeper's servers; or one
server of several shards, without any. Clients
of every kind send, receive and move messages through all of them without a rest (`load.py`). Each configuration has
its own kinds of faults, picked by a seed, with quiet moments between (`world.py`). When they are over, what is in the
queues is taken out, and the books are closed (`books.py` says what is counted, and what must be so). The seed decides
which faults come in which order, not how threads and processes are interleaved: the same seed makes similar trouble,
not the same.

The model of the fencing protocol is searched first, with one more assignment than in `make test`.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import penstock
from bench.measure import table
from tests.cluster.books import VIOLATIONS, Books, Report
from tests.cluster.load import LEASE_S, Load, create_queues, left_in_queues
from tests.cluster.ownership.fencing import Rules, search
from tests.cluster.witness import KINDS, Witness
from tests.cluster.world import NAMES, Fault, ShardsWorld, World, world
from tools.kafka import DEFAULT_SETTINGS

SESSION_S = 10.0
SERVICE_S_MAX = 90.0
DRAIN_S_MAX = 120.0
REST_S_MAX = 45.0
"""How long faults wait for each other, where they do."""
PACE_S = 0.15
"""How long each of the senders waits between two messages, on average."""


@dataclass(frozen=True)
class Configuration:
    """How many brokers there are, and what happens."""

    name: str
    brokers: int
    faults: tuple[Fault, ...]
    engine: str = "kafka"
    has_small_disks: bool = False
    """Each broker's data is on a file system of its own, which can be full. To mount these takes root."""


_NODES = (World.kill_node, World.stop_node, World.restart_node)
_BROKERS = (World.kill_broker, World.restart_broker, World.stop_broker)
_NETWORKS = (World.cut_node, World.cut_path, World.slow_node, World.reset_node, World.cut_link)

CONFIGURATIONS = (
    Configuration("several shards, killed", 0, (ShardsWorld.kill_server,)),
    Configuration("nodes killed", 1, (World.kill_node,)),
    Configuration("nodes stopped", 1, (World.stop_node,)),
    Configuration("nodes restarted", 1, (World.restart_node,)),
    Configuration("one broker killed", 1, (World.kill_broker, World.restart_broker)),
    Configuration("one broker stopped", 1, (World.stop_broker,)),
    Configuration("networks cut", 1, (World.cut_node, World.cut_all)),
    Configuration("networks cut for long", 1, (World.cut_node_long,)),
    Configuration("networks slow", 1, (World.slow_node, World.reset_node)),
    Configuration("links cut", 1, (World.cut_link,)),
    Configuration("brokers killed", 3, (World.kill_broker, World.stop_broker)),
    Configuration("brokers restarted", 3, (World.restart_broker,)),
    Configuration("paths cut", 3, (World.cut_path, World.cut_node, World.slow_node)),
    Configuration("files too large", 3, (World.fill_disk,)),
    Configuration("disks full", 3, (World.fill_file_system,), has_small_disks=True),
    Configuration("one disk full", 1, (World.fill_file_system,), has_small_disks=True),
    Configuration("everything", 3, (*_NODES, *_BROKERS, *_NETWORKS)),
    Configuration("zookeeper: nodes killed", 1, (World.kill_node,), "zookeeper"),
    Configuration("zookeeper: nodes stopped", 1, (World.stop_node, World.restart_node), "zookeeper"),
    Configuration("zookeeper: the server killed", 1, _BROKERS, "zookeeper"),
    Configuration("zookeeper: servers killed", 3, _BROKERS, "zookeeper"),
    Configuration("zookeeper: networks cut", 1, (World.cut_node, World.cut_all), "zookeeper"),
    Configuration("zookeeper: paths cut", 3, (World.cut_path, World.cut_node, World.reset_node), "zookeeper"),
    Configuration("zookeeper: slow networks, cut links", 1, (World.slow_node, World.cut_link), "zookeeper"),
    Configuration("zookeeper: everything", 3, (*_NODES, *_BROKERS, *_NETWORKS), "zookeeper"),
)


def run(
    chosen: Configuration,
    seed: int,
    seconds: float,
    *,
    session_s: float,
    directory: Path,
    properties: Mapping[str, object] | None = None,
) -> Report:
    """One configuration, from nothing to the report. `properties` are the brokers'."""
    chance, books = random.Random(f"{chosen.name} {seed}"), Books()
    with world(
        chosen.brokers,
        directory,
        session_s,
        engine=chosen.engine,
        has_small_disks=chosen.has_small_disks,
        properties=properties,
    ) as found:
        found.start()
        create_queues(found.ports["a"].http)
        loads = [Load(name, found.ports[name], books, seed, PACE_S) for name in NAMES]
        witness = Witness([{"sqs": it.sqs, "http": it.http, "nsq": it.nsq} for it in found.ports.values()])
        try:
            books.begin()
            witness.start()
            _make_faults(found, books, chosen, chance, seconds)
            unserved = _await_service(found, books)
            for load in loads:
                load.stop_sending()
            books.end()
            witness.stop()
            left = _drain(found, books)
        finally:
            for load in loads:
                load.stop()
            for load in loads:
                found.remarks += load.join()
        remarks = [*found.remarks, *witness.lines()]
        report = books.report(chosen.name, seed, left, unserved, remarks, tuple(witness.cells()))
        report.violations["witness"] = witness.problems
        return report


def _make_faults(found: World, books: Books, chosen: Configuration, chance: random.Random, seconds: float) -> None:
    """At least one of each kind, if there is time; then as they come. Some come while the last one is still felt."""
    end_s, kinds = time.monotonic() + seconds, list(chosen.faults)
    chance.shuffle(kinds)
    time.sleep(2.0)
    while time.monotonic() < end_s:
        fault = kinds.pop() if kinds else chance.choice(chosen.faults)
        began_s = time.monotonic()
        fault(found, chance)
        found.tend()
        print(f"    {fault.__name__}: {time.monotonic() - began_s:.1f} s", file=sys.stderr, flush=True)
        if chance.random() < 0.5:
            _await_service(found, books, REST_S_MAX)
        time.sleep(chance.choice([0.5, 2.0, 5.0]))


def _await_service(found: World, books: Books, seconds_max: float = SERVICE_S_MAX) -> list[str]:
    """Go on sending until every queue takes messages again; the queues that do not."""
    since_s = time.monotonic()
    while (unserved := books.unserved_since(since_s)) and time.monotonic() < since_s + seconds_max:
        found.tend()
        time.sleep(0.1)
    return unserved


def _drain(found: World, books: Books) -> list[str]:
    """Wait until everything was received and nothing is left: whatever is leased comes when its lease runs out."""
    deadline_s, left = time.monotonic() + DRAIN_S_MAX, ["unknown"]
    while time.monotonic() < deadline_s:
        found.tend()
        with suppress(penstock.PenstockError):
            left = left_in_queues(found.ports[NAMES[0]].http)
            if not left and not books.missing():
                time.sleep(LEASE_S / 4)
                return []
        time.sleep(0.5)
    return left


def model() -> bool:
    """Search the larger model."""
    found = search(Rules(), nodes=2, assignments_max=3)
    print(f"model: {found.states} states, violation: {found.violation or 'none'}", flush=True)
    return not found.violation


def main() -> None:
    """Run it all; the exit status says whether everything is as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long faults happen in each configuration")
    parser.add_argument("--seeds", type=int, default=1, help="how many runs of each configuration")
    parser.add_argument("--first-seed", type=int, default=None, help="the first of them; at random if not given")
    parser.add_argument("--config", action="append", help="only this configuration; may be given several times")
    parser.add_argument("--session", type=float, default=SESSION_S, help="the nodes' session timeout in seconds")
    parser.add_argument("--quick", action="store_true", help="brokers that notice losses sooner than Kafka's do")
    parser.add_argument("--keep", type=Path, help="where to keep the nodes' logs")
    parser.add_argument("--no-model", action="store_true")
    parser.add_argument("--list", action="store_true", help="print the configurations")
    given = parser.parse_args()
    names = [configuration.name for configuration in CONFIGURATIONS]
    if given.list:
        print("\n".join(f"{it.name}: {it.brokers} server(s)" for it in CONFIGURATIONS))
        return
    if unknown := set(given.config or ()) - set(names):
        parser.error(f"no configuration is called {sorted(unknown)[0]!r}: see --list")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # brokers end, and file systems are unmounted
    good = given.no_model or model()
    first_seed = random.randrange(1_000_000) if given.first_seed is None else given.first_seed
    reports = [
        _run_and_tell(configuration, seed, given)
        for seed in range(first_seed, first_seed + given.seeds)
        for configuration in CONFIGURATIONS
        if configuration.name in (given.config or names)
    ]
    print(_tables([report for report in reports if report is not None]))
    sys.exit(0 if good and all(report is not None and report.is_good for report in reports) else 1)


def _tables(reports: list[Report]) -> str:
    """As docs/cluster.md has them."""
    header = ("configuration", "sent", "acknowledged", "received", *VIOLATIONS, "duplicates", "longest silence")
    counts = table(header, [report.cells for report in reports])
    clients = table(("errors, longest gap of", *KINDS), [[report.name, *report.witness] for report in reports])
    return f"\n{counts}\n\n{clients}"


def _run_and_tell(configuration: Configuration, seed: int, given: argparse.Namespace) -> Report | None:
    """None if it could not be run."""
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as name:
        directory = Path(name)
        report: Report | None = None
        try:
            properties = None if given.quick else DEFAULT_SETTINGS
            report = run(
                configuration,
                seed,
                given.seconds,
                session_s=given.session,
                directory=directory,
                properties=properties,
            )
            print(report, flush=True)
        except Exception as error:
            print(f"{configuration.name} (seed {seed}): could not be run: {type(error).__name__}: {error}", flush=True)
        if given.keep is not None:
            kept = given.keep / f"{re.sub('[^a-z]+', '-', configuration.name)}-{seed}"
            kept.mkdir(parents=True, exist_ok=True)
            for log in directory.glob("*.log"):
                shutil.copy(log, kept)
    return report


if __name__ == "__main__":
    main()
