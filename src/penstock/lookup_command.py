"""`penstock lookup`: from flags and penstock.toml to a lookup service. What it runs is in `protocols/lookup`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from penstock.cli.command import Option
from penstock.serve import refusals_told

if TYPE_CHECKING:
    from penstock.server.settings import Settings


def lookup(
    config: Annotated[Path | None, Option(help="penstock.toml; flags override it.")] = None,
    host: Annotated[str | None, Option(help="The address to listen on.")] = None,
    hosts: Annotated[
        list[str] | None,
        Option("--hosts", help="A name by which clients reach the service; more than one may be given."),
    ] = None,
    tcp_port: Annotated[int | None, Option(help="For nodes (4160); 0 picks a free one.")] = None,
    http_port: Annotated[int | None, Option(help="For clients (4161); 0 picks a free one.")] = None,
    broadcast_address: Annotated[str | None, Option(help="Where others reach us; by default the host.")] = None,
    inactive_producer_timeout: Annotated[
        float | None, Option(help="Seconds of silence after which a node is not named (300).")
    ] = None,
    tombstone_lifetime: Annotated[
        float | None, Option(help="Seconds for which a tombstone hides a node's topic (45).")
    ] = None,
    insecure: Annotated[bool, Option("--insecure", help="Serve other machines, without credentials.")] = False,
    ready_file: Annotated[Path | None, Option(help="Written, as JSON, when everything listens.")] = None,
) -> None:
    """Tell NSQ clients which nodes have a topic, until SIGTERM or SIGINT."""
    from penstock.server import settings

    flags = {"host": host, "tcp_port": tcp_port, "http_port": http_port}
    with refusals_told("lookup", flags):
        loaded = settings.Settings() if config is None else settings.load(config)
        chosen = loaded.with_lookup(
            host=host,
            tcp_port=tcp_port,
            http_port=http_port,
            broadcast_address=broadcast_address,
            inactive_producer_timeout_s=inactive_producer_timeout,
            tombstone_lifetime_s=tombstone_lifetime,
            insecure=insecure or None,
        )
        chosen = chosen.with_server(hosts=hosts or None)
        chosen.lookup.check()
        _run(chosen, ready_file)


def _run(chosen: Settings, ready_file: Path | None) -> None:
    """The service's own libraries are loaded here, so that other commands start without them."""
    from penstock import __version__, process
    from penstock.protocols.lookup.service import LookupReady, LookupService
    from penstock.server.log import configure

    configure(chosen.log)
    process.run(LookupService(chosen, __version__), ready_file, LookupReady.line)
