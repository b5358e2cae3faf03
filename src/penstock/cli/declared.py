"""Commands whose options are declared elsewhere: the settings of queues, and those of a server.

The declarations are loaded when such a command is used: `penstock --help` does not wait for them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from penstock.core.settings import Declared

_METAVARS = {int: "NUMBER", float: "NUMBER", str: "TEXT", bool: "true|false"}


class DeclaredOptions(TyperCommand):
    """A command with options of its own and declared ones. Its function gets the latter as texts."""

    _is_complete = False

    def declared_options(self) -> dict[str, Any]:
        """Options by the names of the function's arguments: what Typer is told of each."""
        raise NotImplementedError

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters of the command."""
        if not self._is_complete:
            function = self.callback.__wrapped__  # type: ignore[union-attr]
            add_parameters(function, self.declared_options())
            whole = typer.Typer(add_completion=False)
            whole.command()(function)
            made = typer.main.get_command(whole)
            self.params, self.callback, self._is_complete = made.params, made.callback, True
        return super().get_params(ctx)


def add_parameters(command: Callable[..., Any], options: dict[str, Any]) -> None:
    """Give a command options that stand in no signature; `**options` in its own stands for them."""
    found = dict(inspect.signature(command, eval_str=True).parameters)
    keyword = inspect.Parameter.KEYWORD_ONLY
    found |= {name: inspect.Parameter(name, keyword, default=None, annotation=hint) for name, hint in options.items()}
    parameters = [each for each in found.values() if each.kind != inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}


def option_of(setting: Declared, *names: str, panel: str | None = None) -> Any:
    """What Typer is told of a setting's option."""
    words = f" One of {', '.join(setting.choices)}." if setting.choices else ""
    default = f" Default: {setting.default_text}." if setting.default_text else ""
    metavar = "SECONDS" if setting.unit else "WORD" if setting.choices else _METAVARS.get(setting.kind, "JSON")
    about = setting.setting.help + words + default
    return Annotated[str | None, typer.Option(*names, help=about, metavar=metavar, rich_help_panel=panel)]
