"""`penstock lookup`: from flags, environment and penstock.toml to a lookup service. It runs `protocols/lookup`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from penstock.cli.command import Options
from penstock.serve import Config, ReadyFile, flag_options, refusals_told, warn

if TYPE_CHECKING:
    from penstock.server.settings import Settings
    from penstock.server.sources import Place


def _places() -> dict[str, Place]:
    from penstock.server.sources import flags_of

    return flags_of("lookup") | {"hosts": flags_of("server")["hosts"]}


Flags = Annotated[Any, Options(lambda: flag_options(_places()))]


def lookup(config: Config = None, ready_file: ReadyFile = None, **flags: Flags) -> None:
    """Tell NSQ clients which nodes have a topic, until SIGTERM or SIGINT."""
    from penstock.server.sources import gathered

    with refusals_told("lookup", flags):
        chosen = gathered(config, os.environ, flags, _places())
        chosen.lookup.check()
        _run(chosen, ready_file)


def _run(chosen: Settings, ready_file: Path | None) -> None:
    """The service's own libraries are loaded here, so that other commands start without them."""
    from penstock import __version__, process
    from penstock.protocols.lookup.service import LookupReady, LookupService
    from penstock.server.log import configure
    from penstock.server.sources import unknown_variables

    configure(chosen.log)
    warn(unknown_variables(os.environ, chosen))
    process.run(LookupService(chosen, __version__), ready_file, LookupReady.line)
