"""How many SQS requests a second does one process complete, against what people run locally instead of SQS?

The measures are ElasticMQ and moto's server, and, for what the way from the socket to the disk costs, Penstock's own
HTTP front end with nothing behind it.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

from bench import elasticmq
from bench.measure import Measured, Scale, at_least, at_most, empty_directory, parse_scale, plain, report, table
from bench.sqs_load import BATCH, Address, Load, Outcome, Script, Server, Tally, send_requests, sending, working
from bench.sqs_servers import (
    ELASTICMQ,
    EMPTY,
    MOTO,
    PENSTOCK,
    ask,
    elasticmq_server,
    empty_server,
    moto_server,
    penstock_server,
)

CONNECTIONS = 64
MOTO_CONNECTIONS = 8
"""More make moto no faster, and its batches slower."""
SETTLE_S = 0.3
COUNT_S = 2.0
TURNS = 5
WARM_UP_S = 1.0
"""Of every kind of load, for everybody."""
JVM_PASS_S = 5.0
JVM_PASSES_MAX = 10
JVM_GAIN = 1.05
JVM_PASSES_WITHOUT_GAIN = 2
"""A JVM is warm when so many passes over all kinds of load in a row were not `JVM_GAIN` times faster than before."""
SATURATED = 0.95
"""From this share of a core on, the load generator is what is measured."""

EMPTY_TARGET = 0.4
MOTO_TARGETS = {1: 20, BATCH: 20}
ELASTICMQ_TARGETS = {1: 2, BATCH: 3}
"""By messages in a request."""


class Scenario(NamedTuple):
    """A kind of load."""

    deletes: bool
    batch: int
    body_bytes: int

    @property
    def title(self) -> str:
        """As the tables call it."""
        what = "send, receive, delete" if self.deletes else "send"
        how = "singles" if self.batch == 1 else f"batches of {self.batch}"
        return f"{what}: {how}, {'1 KiB' if self.body_bytes == 1024 else f'{self.body_bytes} bytes'}"


SCENARIOS = [Scenario(*each) for each in itertools.product((False, True), (1, BATCH), (100, 1024))]
SMALL_SINGLES = [each for each in SCENARIOS if each.batch == 1 and each.body_bytes == 100]
QUICK_SCENARIOS = [*SMALL_SINGLES, SCENARIOS[-1]]


@dataclass(frozen=True)
class Pace:
    """How long to load a server, and how often."""

    settle_s: float
    count_s: float
    turns: int
    warm_up_s: float

    @classmethod
    def of(cls, scale: Scale) -> Pace:
        """The real thing, or just enough to see that it runs."""
        if scale.quick:
            return cls(settle_s=0, count_s=0.05, turns=1, warm_up_s=0)
        return cls(SETTLE_S, COUNT_S, TURNS, WARM_UP_S)


# -- measuring ---------------------------------------------------------------------------------------------------------

_queue_numbers = itertools.count(1)


@contextmanager
def queue(address: Address) -> Iterator[str]:
    """A new queue's URL. The queue goes when the block ends, and takes its messages with it."""
    url = ask(address, "CreateQueue", {"QueueName": f"bench-{next(_queue_numbers)}"})["QueueUrl"]
    yield url
    ask(address, "DeleteQueue", {"QueueUrl": url})


def load_sqs(
    server: Server, scenario: Scenario, settle_s: float, count_s: float, connections: int = CONNECTIONS
) -> Outcome:
    """Load a server that speaks SQS."""
    address = server.address
    with queue(address) as url:
        tally = Tally()
        requests = send_requests(address, url, body_bytes=scenario.body_bytes, batch=scenario.batch)

        def script(start: int) -> Script:
            if scenario.deletes:
                return working(requests, start, scenario.batch, tally, address, url)
            return sending(requests, start, scenario.batch, tally)

        outcome = run(server, script, settle_s, count_s, connections)
    under_way = 2 * connections * scenario.batch
    if scenario.deletes and tally.deleted + under_way < 0.9 * tally.sent:
        raise RuntimeError(f"no steady state: {tally.sent} messages sent, only {tally.deleted} deleted")
    return outcome


def load_empty(server: Server, scenario: Scenario, settle_s: float, count_s: float) -> Outcome:
    """Load the empty handler with what the others get, as far as it is known without looking at the answers."""
    url = "http://nowhere/0/q"
    requests = send_requests(server.address, url, body_bytes=scenario.body_bytes, batch=scenario.batch)
    return run(server, lambda start: sending(requests, start, scenario.batch, Tally()), settle_s, count_s, CONNECTIONS)


def run(server: Server, script: Callable[[int], Script], settle_s: float, count_s: float, connections: int) -> Outcome:
    """Load a server over so many connections."""
    load = Load(server, [script(start) for start in range(connections)])
    gc.collect()
    gc.disable()
    try:
        return load.run(settle_s, count_s)
    finally:
        gc.enable()


LoadServer = Callable[[Server, Scenario, float, float], Outcome]
LOADS: dict[str, LoadServer] = {EMPTY: load_empty, MOTO: partial(load_sqs, connections=MOTO_CONNECTIONS)}
Contender = Callable[[Scenario, float, float], Outcome]


class Figures(NamedTuple):
    """What the turns of one scenario gave, by contender."""

    rates: Measured
    p50_ms: Measured
    p99_ms: Measured
    server_cpu_us: Measured
    client_cpu: Mapping[str, float]


def take_turns(
    contenders: Mapping[str, Contender], scenarios: Sequence[Scenario], pace: Pace
) -> dict[Scenario, Figures]:
    """Let the contenders run in turns, scenario by scenario."""
    outcomes: dict[Scenario, dict[str, list[Outcome]]] = {
        scenario: {name: [] for name in contenders if name != EMPTY or scenario in SMALL_SINGLES}
        for scenario in scenarios
    }
    for _ in range(pace.turns):
        for scenario, of_scenario in outcomes.items():
            for name, of_contender in of_scenario.items():
                of_contender.append(contenders[name](scenario, pace.settle_s, pace.count_s))
    return {scenario: figures(of_scenario) for scenario, of_scenario in outcomes.items()}


def figures(outcomes: Mapping[str, Sequence[Outcome]]) -> Figures:
    """The outcomes, measure by measure."""

    def measured(measure: Callable[[Outcome], float]) -> Measured:
        return Measured({name: [measure(each) for each in of_name] for name, of_name in outcomes.items()})

    return Figures(
        rates=measured(lambda outcome: outcome.rate),
        p50_ms=measured(lambda outcome: outcome.p50_ms),
        p99_ms=measured(lambda outcome: outcome.p99_ms),
        server_cpu_us=measured(lambda outcome: outcome.server_cpu_us),
        client_cpu={name: max(each.client_cpu for each in of_name) for name, of_name in outcomes.items()},
    )


def warm_up(contenders: Mapping[str, Contender], scenarios: Sequence[Scenario], pace: Pace) -> float:
    """Load everybody for a while before it counts. How long the JVM took, in seconds."""
    for contender in contenders.values() if pace.warm_up_s else ():
        load_once(contender, scenarios, pace.warm_up_s)
    return warm_up_jvm(contenders[ELASTICMQ], scenarios) if ELASTICMQ in contenders else 0


def warm_up_jvm(contender: Contender, scenarios: Sequence[Scenario]) -> float:
    """Load a server until it gets no faster: its compiler goes on for minutes. How long it took, in seconds."""
    started_s = time.monotonic()
    best, without_gain = 0.0, 0
    for _ in range(JVM_PASSES_MAX):
        rate = load_once(contender, scenarios, JVM_PASS_S)
        without_gain = 0 if rate > best * JVM_GAIN else without_gain + 1
        best = max(best, rate)
        if without_gain == JVM_PASSES_WITHOUT_GAIN:
            break
    return time.monotonic() - started_s


def load_once(contender: Contender, scenarios: Sequence[Scenario], seconds: float) -> float:
    """One pass over all kinds of load; the sum of the rates."""
    return sum(contender(scenario, 0, seconds).rate for scenario in scenarios)


# -- printing ----------------------------------------------------------------------------------------------------------


def against(rival: str, found: Mapping[Scenario, Figures], targets: Mapping[int, float]) -> str:
    """Penstock beside a rival: requests a second."""
    rows = []
    for scenario, of_scenario in found.items():
        ratio = of_scenario.rates.ratio(PENSTOCK, to=rival)
        rates = [plain(of_scenario.rates.rate(name)) for name in (PENSTOCK, rival)]
        rows.append([scenario.title, *rates, str(ratio), at_least(targets[scenario.batch], ratio)])
    return table(["requests/s", PENSTOCK, rival, "ratio", "target"], rows)


def response_times(rival: str, found: Mapping[Scenario, Figures]) -> str:
    """Penstock beside a rival: how long requests take."""
    rows = []
    for scenario, of_scenario in found.items():
        ratio = of_scenario.p99_ms.ratio(PENSTOCK, to=rival)
        cells = [
            f"{plain(of_scenario.p50_ms.rate(name))} / {plain(of_scenario.p99_ms.rate(name))}"
            for name in (PENSTOCK, rival)
        ]
        rows.append([scenario.title, *cells, str(ratio), at_most(1, ratio.median)])
    return table(["p50 / p99, ms", PENSTOCK, rival, "ratio of the p99", "target"], rows)


def processor_times(rival: str, found: Mapping[Scenario, Figures]) -> str:
    """Penstock beside a rival: what a request costs, wherever the threads of a server ran."""
    rows = []
    for scenario, of_scenario in found.items():
        cells = [plain(of_scenario.server_cpu_us.rate(name)) for name in (PENSTOCK, rival)]
        rows.append([scenario.title, *cells, str(of_scenario.server_cpu_us.ratio(rival, to=PENSTOCK))])
    return table(["processor time a request, us", PENSTOCK, rival, f"{rival} to {PENSTOCK}"], rows)


def of_the_empty_handler(found: Mapping[Scenario, Figures]) -> str:
    """How much of what the HTTP front end could do is left."""
    rows = []
    for scenario in SMALL_SINGLES:
        rates, client_cpu = found[scenario].rates, found[scenario].client_cpu
        ratio = rates.ratio(PENSTOCK, to=EMPTY)
        ceiling = "at least " if client_cpu[EMPTY] > SATURATED else ""
        cells = [plain(rates.rate(PENSTOCK)), ceiling + plain(rates.rate(EMPTY))]
        rows.append([scenario.title, *cells, str(ratio), at_least(EMPTY_TARGET, ratio)])
    return table(["requests/s", PENSTOCK, EMPTY, "ratio", "target"], rows)


def explanation(pace: Pace, about_elasticmq: str) -> str:
    """What was done."""
    return f"""
{CONNECTIONS} connections, each waiting for the response before it sends the next request, in AWS JSON 1.0 with the
headers that boto3 sends; one load generator (`bench/sqs_load.py`) in a process of its own, on the same machine. Every
server is one process. Penstock runs as `penstock serve` does, and syncs every send and every delete before it answers;
ElasticMQ and moto keep everything in memory, as is their default. Turns last {pace.count_s:g} s, {pace.turns} for every
server and line, with a new queue for each. {about_elasticmq}
Moto's server ({version("moto")}) is loaded over {MOTO_CONNECTIONS} connections, since 64 make it no faster, and closes
them after each response; connecting again is part of its time.

*Send, receive, delete*: each connection sends, receives as many, deletes them, and starts over; all three count as
requests. The *empty handler* is Penstock's HTTP front end answering every request with the same bytes; "at least" says
that the load generator could not ask faster. Penstock works in one thread, ElasticMQ in many: on a machine that others
use as well, many threads get more of it than one, which is why the processor time is shown.
"""


def how_warm(seconds: float) -> str:
    """What happened to ElasticMQ before the first turn."""
    return f"""Before the first turn, ElasticMQ ({elasticmq.VERSION}) was
loaded in every way until its JVM got no faster, for {seconds:.0f} s."""


def main() -> None:
    """Measure and print."""
    scale = parse_scale(__doc__)
    pace = Pace.of(scale)
    scenarios = QUICK_SCENARIOS if scale.quick else SCENARIOS
    missing = "the quick form starts no JVM" if scale.quick else elasticmq.fetch()
    servers = {PENSTOCK: penstock_server, MOTO: moto_server, EMPTY: empty_server}
    if missing is None:
        servers[ELASTICMQ] = elasticmq_server
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for name, start in servers.items():
            server = stack.enter_context(start(stack.enter_context(empty_directory())))
            contenders[name] = contender(server, LOADS.get(name, load_sqs))
        jvm_warm_up_s = warm_up(contenders, scenarios, pace)
        found = take_turns(contenders, scenarios, pace)
    tables = [of_the_empty_handler(found)]
    if missing is None:
        tables += [
            against(ELASTICMQ, found, ELASTICMQ_TARGETS),
            response_times(ELASTICMQ, found),
            processor_times(ELASTICMQ, found),
        ]
    tables.append(against(MOTO, found, MOTO_TARGETS))
    about_elasticmq = how_warm(jvm_warm_up_s) if missing is None else f"ElasticMQ was left out: {missing}."
    report("sqs. SQS over sockets", explanation(pace, about_elasticmq), *tables)


def contender(server: Server, load: LoadServer) -> Contender:
    """A server and the way to load it."""
    return lambda scenario, settle_s, count_s: load(server, scenario, settle_s, count_s)


if __name__ == "__main__":
    main()
