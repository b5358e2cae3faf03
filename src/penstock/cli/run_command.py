"""`penstock pipeline run`: a definition's file, or the name of a ready pipeline, which brings its own options."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.command import Command

READY_NAMES = (
    "Ready pipelines, instead of FILE: archive, replay, redrive, rollup, report, dedupe, join. Each has --help."
)


class RunCommand(Command):
    """`run FILE`, or `run NAME` with the options of the ready pipeline of that name."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Hand over to the ready pipeline, if one is named. A file of that name can be run as ./NAME."""
        if args and args[0].isalpha():
            from penstock.cli.ready import commands

            if args[0] in commands.functions:
                ready = commands.functions[args[0]]()
                return ready.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)
