"""`penstock serve`: from flags and penstock.toml to a process that serves. What it runs is in `penstock.assembly`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from penstock.cli.command import Option
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.server.settings import Settings

Limits = Literal["strict", "relaxed"]
Engine = Literal["embedded", "kafka"]
CLUSTER = "Many nodes, on Kafka (docs/cluster.md)"


def serve(
    config: Annotated[Path | None, Option(help="A penstock.toml. Flags override it.")] = None,
    data: Annotated[
        str | None, Option("--data", "-d", help="The data directory (./data).", envvar="PENSTOCK_DATA")
    ] = None,
    host: Annotated[str | None, Option(help="The address to listen on (127.0.0.1).")] = None,
    hosts: Annotated[
        list[str] | None,
        Option("--hosts", help="A name by which clients reach the server; more than one may be given."),
    ] = None,
    sqs_port: Annotated[int | None, Option(help="SQS (9324); 0 picks a free one.")] = None,
    http_port: Annotated[int | None, Option(help="REST, websocket, metrics (9325); 0 picks a free one.")] = None,
    nsq_tcp_port: Annotated[int | None, Option(help="NSQ over TCP (4150); 0 picks a free one.")] = None,
    nsq_http_port: Annotated[int | None, Option(help="NSQ's HTTP API (4151); 0 picks a free one.")] = None,
    lookup: Annotated[
        list[str] | None,
        Option("--lookup", help="HOST:TCPPORT of a lookup service that is told of our topics. Can be repeated."),
    ] = None,
    sqs_limits: Annotated[Limits | None, Option(help="AWS's limits (strict), or wider ones for tests.")] = None,
    workers: Annotated[
        int | None, Option(help="How many processes serve the queues; fixed at the first start.")
    ] = None,
    insecure: Annotated[bool, Option("--insecure", help="Serve other machines without credentials.")] = False,
    ready_file: Annotated[Path | None, Option(help="Written, as JSON, when everything listens.")] = None,
    engine: Annotated[Engine | None, Option(help="Where messages are kept.", section=CLUSTER)] = None,
    bootstrap: Annotated[str | None, Option(help="HOST:PORT of some Kafka brokers.", section=CLUSTER)] = None,
    cluster: Annotated[
        str | None, Option(help="The cluster's name: all its nodes say the same.", section=CLUSTER)
    ] = None,
    node: Annotated[str | None, Option(help="This node's name; by default the machine's.", section=CLUSTER)] = None,
    link_port: Annotated[
        int | None, Option(help="For the other nodes (9326); 0 picks a free one.", section=CLUSTER)
    ] = None,
) -> None:
    """Serve queues over SQS, REST, websocket and NSQ, until Ctrl-C or SIGTERM."""
    from penstock.server import settings
    from penstock.server.settings import Settings

    flags: dict[str, Any] = {
        "sqs_port": sqs_port,
        "http_port": http_port,
        "nsq_tcp_port": nsq_tcp_port,
        "nsq_http_port": nsq_http_port,
    }
    flags |= {"host": host, "workers": workers, "data": data}
    with refusals_told("server", flags):
        loaded = Settings() if config is None else settings.load(config)
        chosen = (
            loaded.with_server(
                data=data,
                host=host,
                hosts=hosts or None,
                sqs_port=sqs_port,
                http_port=http_port,
                nsq_tcp_port=nsq_tcp_port,
                nsq_http_port=nsq_http_port,
                insecure=insecure or None,
                engine=engine,
                workers=workers,
            )
            .with_sqs(limits=sqs_limits)
            .with_nsq(lookup=lookup or None)
            .with_cluster(name=cluster, node=node, link_port=link_port)
            .with_kafka(bootstrap=bootstrap)
        )
        chosen.check()
        if chosen.server.engine != "kafka":
            of_kafka = {"--bootstrap": bootstrap, "--cluster": cluster, "--node": node, "--link-port": link_port}
            _refuse_flags_of_kafka([name for name, value in of_kafka.items() if value is not None])
        _run(chosen, ready_file)


@contextmanager
def refusals_told(section: str, given: dict[str, Any]) -> Iterator[None]:
    """What keeps a server from starting is one line, and the status of wrong usage, unless waiting may help.

    What is wrong with a flag is said of the flag, and not of the line of penstock.toml that it stands for.
    """
    from penstock.cli.exits import Exit, exit_of
    from penstock.server.settings import InvalidSettings

    try:
        yield
    except PenstockError as error:
        text = str(error)
        for name, value in given.items() if isinstance(error, InvalidSettings) else ():
            if value is not None:
                text = re.sub(rf"(?:\[{section}\] )?\b{name}(?= is )", f"--{name.replace('_', '-')}", text)
        print(f"penstock: {text}", file=sys.stderr)
        status = exit_of(error)
        raise SystemExit(status if status == Exit.UNREACHABLE else Exit.USAGE) from None


def _refuse_flags_of_kafka(given: list[str]) -> None:
    """Whoever forgets the engine would have a server of its own, and take it for one of many."""
    from penstock.server.settings import InvalidSettings

    if given:
        raise InvalidSettings(f"{', '.join(given)}: for one of many nodes; say --engine kafka as well")


def _run(chosen: Settings, ready_file: Path | None) -> None:
    """The server's own libraries are loaded here, so that other commands start without them."""
    from penstock import assembly
    from penstock.server.log import configure

    configure(chosen.log)
    assembly.run(chosen, ready_file)
