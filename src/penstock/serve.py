"""`penstock serve`: from flags and penstock.toml to a process that serves. What it runs is in `penstock.assembly`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.server.settings import Settings

EXIT_REFUSED = 2
"""The settings cannot be followed, or the store cannot be opened: the message says why."""

Limits = Literal["strict", "relaxed"]
Engine = Literal["embedded", "kafka"]
CLUSTER = "Many nodes, on Kafka (docs/cluster.md)"


def serve(
    config: Annotated[Path | None, typer.Option(help="penstock.toml; flags override it.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="The data directory.", envvar="PENSTOCK_DATA")
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--hosts", help="A name by which clients reach the server; more than one may be given."),
    ] = None,
    sqs_port: Annotated[int | None, typer.Option(help="SQS (9324); 0 picks a free one.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Health, metrics, version (9325); 0 picks a free one.")] = None,
    nsq_tcp_port: Annotated[int | None, typer.Option(help="NSQ over TCP (4150); 0 picks a free one.")] = None,
    nsq_http_port: Annotated[int | None, typer.Option(help="NSQ's HTTP API (4151); 0 picks a free one.")] = None,
    lookup: Annotated[
        list[str] | None,
        typer.Option(
            "--lookup", help="HOST:TCPPORT of a lookup service to tell of our topics; more than one may be given."
        ),
    ] = None,
    sqs_limits: Annotated[Limits | None, typer.Option(help="AWS's limits, or wider ones for tests.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="How many processes serve the queues; fixed at the first start.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve other machines without credentials.")] = False,
    ready_file: Annotated[Path | None, typer.Option(help="Written, as JSON, when everything listens.")] = None,
    engine: Annotated[Engine | None, typer.Option(help="Where messages are kept.", rich_help_panel=CLUSTER)] = None,
    bootstrap: Annotated[
        str | None, typer.Option(help="HOST:PORT of some Kafka brokers.", rich_help_panel=CLUSTER)
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="The cluster's name: all its nodes say the same.", rich_help_panel=CLUSTER)
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="This node's name; by default the machine's.", rich_help_panel=CLUSTER)
    ] = None,
    link_port: Annotated[
        int | None, typer.Option(help="For the other nodes (9326); 0 picks a free one.", rich_help_panel=CLUSTER)
    ] = None,
) -> None:
    """Serve queues until SIGTERM or SIGINT."""
    from penstock.server import settings
    from penstock.server.settings import Settings

    try:
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
            flags = {"--bootstrap": bootstrap, "--cluster": cluster, "--node": node, "--link-port": link_port}
            _refuse_flags_of_kafka([name for name, value in flags.items() if value is not None])
        _run(chosen, ready_file)
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        raise SystemExit(EXIT_REFUSED) from None


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
