"""`penstock serve` and `penstock lookup`: from flags, environment and penstock.toml to a process that serves.

What they run is in `penstock.assembly` and `protocols/lookup`; flags are declared with the settings, in
`server/settings.py`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from penstock.cli.command import Option, Options, option_of
from penstock.core.errors import PenstockError
from penstock.signals import keep
from penstock.store.errors import StoreLocked
from penstock.store.layout import foreign_file

if TYPE_CHECKING:
    from penstock.server.settings import Settings
    from penstock.server.sources import Place


CLUSTER = "Several nodes, on Kafka (docs/cluster.md) or ZooKeeper (docs/zookeeper.md)"
_CLUSTERS = ("kafka", "zookeeper")
OF_CLUSTERS = {
    "bootstrap": ("kafka",),
    "zookeeper": ("zookeeper",),
    "cluster": _CLUSTERS,
    "node": _CLUSTERS,
    "link_port": _CLUSTERS,
}
"""Flags that say something to some engines alone."""

Config = Annotated[
    Path | None,
    Option(help="A penstock.toml. Environment variables and flags override it.", envvar="PENSTOCK_CONFIG"),
]
ReadyFile = Annotated[Path | None, Option(help="A JSON file to write when the server accepts connections.")]


def flag_options(places: Mapping[str, Place]) -> dict[str, Any]:
    """What flags are on the command line. Those of a list may be repeated; one that is yes or no takes no value."""
    found: dict[str, Any] = {}
    for name, (_, setting) in places.items():
        flags = (setting.setting.flag or "").split(",")
        section = CLUSTER if name in (*OF_CLUSTERS, "engine") else "Options"
        about = setting.setting.help
        if setting.kind is bool:
            flags = [f"{flag}/--no{flag[1:]}" if setting.default_text == "true" else flag for flag in flags]
            found[name] = Annotated[bool | None, Option(*flags, help=about, section=section)]
        elif setting.kind == list[str]:
            found[name] = Annotated[list[str] | None, Option(*flags, help=f"{about} Can be repeated.", section=section)]
        else:
            found[name] = option_of(setting, *flags, section=section)
    return found


def _serve_flags() -> dict[str, Place]:
    from penstock.server.sources import flags_of

    return flags_of("server", "rest", "nsq", "sqs", "kafka", "zookeeper", "cluster")


def _lookup_flags() -> dict[str, Place]:
    from penstock.server.sources import flags_of

    return flags_of("lookup") | {"hosts": flags_of("server")["hosts"]}


ServeFlags = Annotated[Any, Options(lambda: flag_options(_serve_flags()))]
LookupFlags = Annotated[Any, Options(lambda: flag_options(_lookup_flags()))]


# The libraries of a service are loaded when its settings are good, so that other commands start without them.


def serve(config: Config = None, ready_file: ReadyFile = None, **flags: ServeFlags) -> None:
    """Serve queues over SQS, REST, websocket and NSQ, until Ctrl-C or SIGTERM."""
    from penstock.server.settings import InvalidSettings
    from penstock.server.sources import gathered

    # Who asks to read the settings again while they are read, or the store opens, must not end the server by that.
    keep(signal.SIGHUP)
    with refusals_told(flags, _serve_flags, config):
        read_again = partial(gathered, config, os.environ, flags, _serve_flags())
        chosen = read_again()
        chosen.check()
        engine = chosen.server.engine
        alien = [flag for flag, of in OF_CLUSTERS.items() if flags.get(flag) is not None and engine not in of]
        if alien:
            # Whoever forgets the engine would have a server of its own, and take it for one of many.
            told = ", ".join(f"--{flag.replace('_', '-')}" for flag in alien)
            wanted = [each for each in _CLUSTERS if all(each in OF_CLUSTERS[flag] for flag in alien)]
            say = f"add --engine {' or '.join(wanted)}" if wanted else "they belong to different engines"
            raise InvalidSettings(f"{told}: only for nodes of a cluster; {say}")
        if engine not in _CLUSTERS and (name := foreign_file(Path(chosen.server.data))):
            raise InvalidSettings(
                f"--data: {chosen.server.data} has other files in it ({name}) and no queues: "
                "name a new or empty directory"
            )
        from penstock import assembly

        _begin_log(chosen)
        assembly.run(chosen, ready_file, read_again)


def lookup(config: Config = None, ready_file: ReadyFile = None, **flags: LookupFlags) -> None:
    """Run the lookup service, which tells NSQ clients which nodes have a topic, until SIGTERM or SIGINT."""
    from penstock.server.sources import gathered

    with refusals_told(flags, _lookup_flags, config):
        chosen = gathered(config, os.environ, flags, _lookup_flags())
        chosen.lookup.check()
        from penstock import __version__, process
        from penstock.protocols.lookup.service import LookupReady, LookupService

        _begin_log(chosen)
        process.run(LookupService(chosen, __version__), ready_file, LookupReady.line)


@contextmanager
def refusals_told(
    flags: Mapping[str, Any], places: Callable[[], Mapping[str, Place]], config: Path | None = None
) -> Iterator[None]:
    """What keeps a server from starting is one line, and the status of wrong usage, unless waiting may help.

    What is wrong with a flag or a variable is said of it, and not of the line of penstock.toml that it stands for.
    """
    from penstock.cli.exits import Exit, exit_of
    from penstock.server.settings import InvalidSettings
    from penstock.server.sources import as_given

    try:
        yield
    except PenstockError as error:
        text = str(error)
        if isinstance(error, StoreLocked):
            from penstock.store.lock import ADVICE

            text = text.replace(ADVICE, "Stop that process, or serve another directory: --data.")
        if isinstance(error, InvalidSettings):
            named = as_given(text, os.environ, flags, places())
            text = f"{config}: {text}" if named == text and config and _is_of_file(text, config) else named
        print(f"penstock: {text}", file=sys.stderr)
        status = exit_of(error)
        raise SystemExit(status if status == Exit.UNREACHABLE else Exit.USAGE) from None


def _is_of_file(text: str, config: Path) -> bool:
    """Whether what is said, without the file's name, is about something in the file."""
    section = re.match(r"\[\w+\]|the (declared queue|credentials of) '(.*?)'", text)
    try:
        return section is not None and (section[2] or section[0]) in config.read_text()
    except (OSError, ValueError):
        return False


def _begin_log(chosen: Settings) -> None:
    """Write the log as the settings say; and into it, what a start has to say, and goes on after."""
    import logging

    from penstock.server.log import configure
    from penstock.server.sources import unknown_variables

    configure(chosen.log)
    for message in unknown_variables(os.environ, chosen):
        logging.getLogger("penstock").warning("%s", message)
