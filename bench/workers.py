"""What do several workers (`penstock serve --workers N`) give on one machine, against one process?

One thread loads the servers over 64 connections, and takes a core for itself: on a machine with few cores the processor
time of a request says more than the requests a second. Queues are spread over the workers, and connections are too, so
with N workers one command in N stays where it came in; the others cross a link.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.measure import empty_directory, parse_scale, plain, report, table
from bench.sqs import CONNECTIONS, SCENARIOS, SMALL_SINGLES, Contender, Figures, Pace, Scenario, run, take_turns
from bench.sqs_load import Outcome, Script, Server, Tally, send_requests, sending, working
from bench.sqs_servers import ask, penstock_server

WORKERS = (1, 2)
QUEUES = 16
BATCHES = [scenario for scenario in SCENARIOS if scenario.batch > 1 and scenario.body_bytes == 100]

_numbers = itertools.count(1)


class Family(Server):
    """A process and its children."""

    def cpu_s(self) -> float:
        """The processor time that they have taken so far."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return super().cpu_s() + sum(Server(self.address, int(child)).cpu_s() for child in children)


@contextmanager
def penstock(directory: Path, workers: int) -> Iterator[Server]:
    """Penstock with so many processes."""
    flags = [] if workers == 1 else ["--workers", str(workers)]
    with penstock_server(directory, *flags) as server:
        yield Family(server.address, server.pid)


def load(server: Server, scenario: Scenario, settle_s: float, count_s: float) -> Outcome:
    """Load a server over queues of their own for each turn, which go afterwards."""
    address, tally = server.address, Tally()
    names = [f"bench-{next(_numbers)}" for _ in range(QUEUES)]
    urls = [ask(address, "CreateQueue", {"QueueName": name})["QueueUrl"] for name in names]
    requests = [send_requests(address, url, body_bytes=scenario.body_bytes, batch=scenario.batch) for url in urls]

    def script(start: int) -> Script:
        at = start % QUEUES
        if scenario.deletes:
            return working(requests[at], start, scenario.batch, tally, address, urls[at])
        return sending(requests[at], start, scenario.batch, tally)

    outcome = run(server, script, settle_s, count_s, CONNECTIONS)
    for url in urls:
        ask(address, "DeleteQueue", {"QueueUrl": url})
    return outcome


def contender(server: Server) -> Contender:
    """A server and the way to load it."""
    return lambda scenario, settle_s, count_s: load(server, scenario, settle_s, count_s)


def title(workers: int) -> str:
    """As the table calls it."""
    return "one process" if workers == 1 else f"{workers} workers"


def rows(found: dict[Scenario, Figures], workers: Sequence[int]) -> list[list[str]]:
    """Each number of workers beside one process."""
    lines = []
    for scenario, figures in found.items():
        for count in workers[1:]:
            one, many = title(1), title(count)
            lines.append(
                [
                    f"{scenario.title}, {many}",
                    plain(figures.rates.rate(one)),
                    plain(figures.rates.rate(many)),
                    str(figures.rates.ratio(many, to=one)),
                    str(figures.server_cpu_us.ratio(many, to=one)),
                ]
            )
    return lines


def main() -> None:
    """Measure and print."""
    scale = parse_scale(__doc__)
    pace = Pace(settle_s=0, count_s=0.5, turns=1, warm_up_s=0) if scale.quick else Pace.of(scale)
    scenarios = SMALL_SINGLES if scale.quick else [*SMALL_SINGLES, *BATCHES]
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for count in WORKERS:
            directory = stack.enter_context(empty_directory())
            contenders[title(count)] = contender(stack.enter_context(penstock(directory, count)))
        for each in contenders.values() if pace.warm_up_s else ():
            for scenario in scenarios:
                each(scenario, 0, pace.warm_up_s)
        found = take_turns(contenders, scenarios, pace)
    header = ["", "one process, requests/s", "workers, requests/s", "ratio", "ratio of the processor time a request"]
    report("workers. Several processes on one machine", (__doc__ or "").strip(), table(header, rows(found, WORKERS)))


if __name__ == "__main__":
    main()
