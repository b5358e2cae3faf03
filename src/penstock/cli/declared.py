"""Options that are declared elsewhere: the settings of queues, and those of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from penstock.cli.command import Option

if TYPE_CHECKING:
    from penstock.core.settings import Declared

_METAVARS = {int: "NUMBER", float: "NUMBER", str: "TEXT", bool: "true|false"}


def option_of(setting: Declared, *flags: str, section: str = "Options") -> Any:
    """What a setting is on the command line: a text, which is read and checked where the setting is declared."""
    words = f" One of {', '.join(setting.choices)}." if setting.choices else ""
    default = f" Default: {setting.default_text}." if setting.default_text else ""
    metavar = "SECONDS" if setting.unit else "WORD" if setting.choices else _METAVARS.get(setting.kind, "JSON")
    about = setting.setting.help + words + default
    return Annotated[str | None, Option(*flags, help=about, metavar=metavar, section=section)]
