"""How fast are NSQ's own benchmark programs against Penstock, which syncs before OK, compared to nsqd, which does not?

A turn is what nsq's `bench.sh` does: a fresh server, `bench_writer` for a while, then `bench_reader` on what was
written. Both programs are NSQ's, built from its source (`bench/nsq_tools.py`).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from bench import nsq_tools
from bench.measure import Measured, at_least, empty_directory, plain, report, table
from bench.sqs_load import Address, Server
from bench.sqs_servers import HOST, free_port, process

PENSTOCK = "Penstock"
NSQD = "nsqd"
TOPIC, CHANNEL = "sub_bench", "ch"
BODY_BYTES = 200
BATCH = 200
READY = 2500
WRITE_S = 6.0
READ_S = 1.5
"""A quarter, so that a reader does not run out of messages unless it is four times as fast as the writer."""
TURNS = 5
PUBLISHED_TARGET = 1.0
CONSUMED_TARGET = 1.5
HOPED_FOR = 2.0

TITLE = "nsq. NSQ's own benchmark against nsqd"
_RATE = re.compile(r"([\d.]+)ops/s")


@dataclass(frozen=True)
class Pace:
    """How long the programs run, and how often."""

    write_s: float
    read_s: float
    turns: int
    warm_up: bool

    @classmethod
    def of(cls, options: argparse.Namespace) -> Pace:
        """The real thing, a shorter one, or just enough to see that it runs."""
        if options.quick:
            return cls(write_s=0.4, read_s=0.1, turns=1, warm_up=False)
        if options.short:
            return cls(write_s=2.4, read_s=0.6, turns=3, warm_up=False)
        return cls(WRITE_S, READ_S, TURNS, warm_up=True)


class NsqServer(NamedTuple):
    """A process that speaks NSQ."""

    tcp: Address
    http: Address
    pid: int

    def cpu_s(self) -> float:
        """The processor time that all its threads have taken so far."""
        return Server(self.tcp, self.pid).cpu_s()

    def depth(self) -> int:
        """How many messages of the benchmark's channel wait, or wait for a channel."""
        stats = get(self.http, f"/stats?format=json&topic={TOPIC}")
        topics = stats["topics"] or []
        return sum(int(topic["depth"]) + sum(int(each["depth"]) for each in topic["channels"]) for topic in topics)


class Turn(NamedTuple):
    """What one turn of a contender gave: messages a second, and the server's processor time a message."""

    published: float
    consumed: float
    publish_cpu_us: float
    consume_cpu_us: float


# -- servers -----------------------------------------------------------------------------------------------------------


@contextmanager
def penstock_server(directory: Path) -> Iterator[NsqServer]:
    """Penstock, as `penstock serve` starts it."""
    ready_file = directory / "ready.json"
    ports = [each for name in ("sqs", "http", "nsq-tcp", "nsq-http") for each in (f"--{name}-port", "0")]
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(directory / "data"), *ports]
    with process([*command, "--ready-file", str(ready_file)], directory, ready_file.exists) as pid:
        listening = json.loads(ready_file.read_text())["listening"]
        yield NsqServer(Address(HOST, listening["nsq"]["port"]), Address(HOST, listening["nsq-http"]["port"]), pid)


@contextmanager
def nsqd_server(directory: Path) -> Iterator[NsqServer]:
    """nsqd with its defaults: 10,000 messages in memory, the rest in files, synced every 2,500 messages or 2 s."""
    tcp, http = Address(HOST, free_port()), Address(HOST, free_port())
    addresses = [f"--tcp-address={tcp.host}:{tcp.port}", f"--http-address={http.host}:{http.port}"]
    command = [nsq_tools.program("nsqd"), f"--data-path={directory}", *addresses]
    with process(command, directory, lambda: answers(http)) as pid:
        yield NsqServer(tcp, http, pid)


SERVERS: dict[str, Callable[[Path], AbstractContextManager[NsqServer]]] = {
    PENSTOCK: penstock_server,
    NSQD: nsqd_server,
}


def answers(http: Address) -> bool:
    """Whether a server answers."""
    try:
        get(http, "/info")
    except OSError:
        return False
    return True


def get(http: Address, path: str) -> dict[str, Any]:
    """A JSON document."""
    connection = HTTPConnection(*http, timeout=60)
    try:
        connection.request("GET", path)
        return dict(json.loads(connection.getresponse().read()))
    finally:
        connection.close()


# -- measuring ---------------------------------------------------------------------------------------------------------


def one_turn(name: str, pace: Pace) -> Turn:
    """A fresh server, written to and read from."""
    with empty_directory() as directory, SERVERS[name](directory) as server:
        published, publish_cpu_us = run("bench_writer", server, pace.write_s, f"-batch-size={BATCH}")
        consumed, consume_cpu_us = run("bench_reader", server, pace.read_s, f"-channel={CHANNEL}", f"-rdy={READY}")
        if pace.turns > 1 and server.depth() == 0:
            raise RuntimeError(f"{name}: the reader ran out of messages, so its rate says nothing")
    return Turn(published, consumed, publish_cpu_us, consume_cpu_us)


def run(program: str, server: NsqServer, seconds: float, *flags: str) -> tuple[float, float]:
    """What one of the programs prints: messages a second; and the server's processor time a message, in us."""
    address = f"-nsqd-tcp-address={server.tcp.host}:{server.tcp.port}"
    command = [nsq_tools.program(program), address, f"-runfor={seconds}s", f"-size={BODY_BYTES}", f"-topic={TOPIC}"]
    cpu_s = server.cpu_s()
    done = subprocess.run([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    cpu_s = server.cpu_s() - cpu_s
    found = _RATE.search(done.stdout)
    if done.returncode != 0 or found is None:
        raise RuntimeError(f"{program} failed: {done.stdout[-2_000:]}")
    rate = float(found[1])
    return rate, 1e6 * cpu_s / (rate * seconds)


def take_turns(pace: Pace) -> dict[str, list[Turn]]:
    """Let the contenders run in turns, after one turn that does not count."""
    turns: dict[str, list[Turn]] = {name: [] for name in SERVERS}
    for number in range(-1 if pace.warm_up else 0, pace.turns):
        for name, of_contender in turns.items():
            turn = one_turn(name, pace)
            if number >= 0:
                of_contender.append(turn)
    return turns


# -- printing ----------------------------------------------------------------------------------------------------------


def measured(turns: Mapping[str, list[Turn]], measure: Callable[[Turn], float]) -> Measured:
    """One of the measures, by contender."""
    return Measured({name: [measure(turn) for turn in of_name] for name, of_name in turns.items()})


def rates(turns: Mapping[str, list[Turn]]) -> str:
    """Messages a second."""
    rows = []
    for what, measure, target in (
        ("published", lambda turn: turn.published, PUBLISHED_TARGET),
        ("consumed", lambda turn: turn.consumed, CONSUMED_TARGET),
    ):
        found = measured(turns, measure)
        ratio = found.ratio(PENSTOCK, to=NSQD)
        cells = [plain(found.rate(name)) for name in SERVERS]
        rows.append([what, *cells, str(ratio), at_least(target, ratio), plain(HOPED_FOR / ratio.median)])
    return table(["messages/s", *SERVERS, "ratio", "target", f"times more to reach {HOPED_FOR:g}"], rows)


def processor_times(turns: Mapping[str, list[Turn]]) -> str:
    """What a message costs the server, wherever its threads ran."""
    rows = []
    for what, measure in (
        ("published", lambda turn: turn.publish_cpu_us),
        ("consumed", lambda turn: turn.consume_cpu_us),
    ):
        found = measured(turns, measure)
        cells = [plain(found.rate(name)) for name in SERVERS]
        rows.append([what, *cells, str(found.ratio(NSQD, to=PENSTOCK))])
    return table(["the server's processor time a message, us", *SERVERS, f"{NSQD} to {PENSTOCK}"], rows)


def explanation(pace: Pace) -> str:
    """What was done."""
    return f"""
NSQ's own `bench_writer` ({pace.write_s:g} s: {BATCH} messages of {BODY_BYTES} bytes in an MPUB, each connection waiting
for OK before the next) and then `bench_reader` ({pace.read_s:g} s, RDY {READY}, FIN for every message) on what was
written, as nsq's `bench.sh` has them: a connection each for every core, one topic, a channel that the reader
creates. Every turn has a fresh server and an empty directory; {pace.turns} turns. nsqd ({nsq_tools.VERSION}) has its
defaults: 10,000 messages in memory, the others in files, synced every 2,500 messages or 2 s, and OK before that.
Penstock is one Python process, and says OK after the `fdatasync`.

The Go programs run on the same cores as the server, and take about as much of them: on two cores, a server that uses
more than one of them takes from its own load generator. nsqd does; Penstock's main work is one thread. So the
processor time is shown as well.
"""


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small version, to see that it runs: no figure to quote")
    parser.add_argument("--short", action="store_true", help="three short turns, for developers at work")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    pace = Pace.of(parse())
    try:
        nsq_tools.build()
    except nsq_tools.ToolsMissing as missing:
        report(TITLE, f"Left out: {missing}.")
        return
    turns = take_turns(pace)
    report(TITLE, explanation(pace), rates(turns), processor_times(turns))


if __name__ == "__main__":
    main()
