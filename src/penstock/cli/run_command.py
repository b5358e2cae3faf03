"""`penstock pipeline run`: a definition's file, or the name of a ready pipeline, which brings its own options."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

READY_NAMES = (
    "Ready pipelines, instead of FILE: archive, replay, redrive, rollup, report, dedupe, join. Each has --help."
)


class RunCommand(TyperCommand):
    """`run FILE`, or `run NAME` with the options of the ready pipeline of that name."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Hand over to the ready pipeline, if one is named. A file of that name can be run as ./NAME."""
        command = _ready(args[0]) if args and args[0].isalpha() else None
        if command is None:
            return super().make_context(info_name, args, parent, **extra)
        return command.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)


def _ready(name: str) -> Any:
    import typer

    from penstock.cli.ready import commands

    group: Any = typer.main.get_command(commands)
    return group.commands.get(name)
