"""`penstock serve`: from flags, environment and penstock.toml to a process that serves.

What it runs is in `penstock.assembly`; its flags are declared with the settings, in `server/settings.py`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from penstock.cli.command import Option, Options
from penstock.cli.declared import option_of
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.server.settings import Settings
    from penstock.server.sources import Place

CLUSTER = "Many nodes, on Kafka (docs/cluster.md)"
OF_KAFKA = ("bootstrap", "cluster", "node", "link_port")

Config = Annotated[
    Path | None,
    Option(help="A penstock.toml. Environment variables and flags override it.", envvar="PENSTOCK_CONFIG"),
]
ReadyFile = Annotated[Path | None, Option(help="Written, as JSON, when everything listens.")]


def _places() -> dict[str, Place]:
    from penstock.server.sources import flags_of

    return flags_of("server", "nsq", "sqs", "kafka", "cluster")


def flag_options(places: Mapping[str, Place]) -> dict[str, Any]:
    """What flags are on the command line. Those of a list may be repeated; one that is yes or no takes no value."""
    found: dict[str, Any] = {}
    for name, (_, setting) in places.items():
        flags = (setting.setting.flag or "").split(",")
        section = CLUSTER if name in (*OF_KAFKA, "engine") else "Options"
        about = setting.setting.help
        if setting.kind is bool:
            found[name] = Annotated[bool | None, Option(*flags, help=about, section=section)]
        elif setting.kind == list[str]:
            found[name] = Annotated[list[str] | None, Option(*flags, help=f"{about} Can be repeated.", section=section)]
        else:
            found[name] = option_of(setting, *flags, section=section)
    return found


Flags = Annotated[Any, Options(lambda: flag_options(_places()))]


def serve(config: Config = None, ready_file: ReadyFile = None, **flags: Flags) -> None:
    """Serve queues over SQS, REST, websocket and NSQ, until Ctrl-C or SIGTERM."""
    from penstock.server.sources import gathered

    with refusals_told("server", flags):
        read_again = partial(gathered, config, os.environ, flags, _places())
        chosen = read_again()
        chosen.check()
        if chosen.server.engine != "kafka":
            _refuse_flags_of_kafka([f"--{name.replace('_', '-')}" for name in OF_KAFKA if flags.get(name) is not None])
        _run(chosen, ready_file, read_again)


@contextmanager
def refusals_told(section: str, given: Mapping[str, Any]) -> Iterator[None]:
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
                text = re.sub(rf"(?:\[{section}\] )?(?<!-)\b{name}(?= is )", f"--{name.replace('_', '-')}", text)
        print(f"penstock: {text}", file=sys.stderr)
        status = exit_of(error)
        raise SystemExit(status if status == Exit.UNREACHABLE else Exit.USAGE) from None


def _refuse_flags_of_kafka(given: list[str]) -> None:
    """Whoever forgets the engine would have a server of its own, and take it for one of many."""
    from penstock.server.settings import InvalidSettings

    if given:
        raise InvalidSettings(f"{', '.join(given)}: for one of many nodes; say --engine kafka as well")


def warn(messages: Iterable[str]) -> None:
    """Write what a start has to say, and goes on after, to the log."""
    import logging

    for message in messages:
        logging.getLogger("penstock").warning("%s", message)


def _run(chosen: Settings, ready_file: Path | None, read_again: Callable[[], Settings]) -> None:
    """The server's own libraries are loaded here, so that other commands start without them."""
    from penstock import assembly
    from penstock.server.log import configure
    from penstock.server.sources import unknown_variables

    configure(chosen.log)
    warn(unknown_variables(os.environ, chosen))
    assembly.run(chosen, ready_file, read_again)
