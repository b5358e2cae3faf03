"""Questions before something is deleted for good. They are for people: a script is taken at its word."""

from __future__ import annotations

import sys
from typing import Annotated

import click

from penstock.cli.command import Option
from penstock.cli.exits import Exit

Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask. Without a terminal nobody is asked.")]


def confirm(question: str, yes: bool) -> None:
    """Ask, if a person can answer. Anything but yes ends the command, and nothing was done."""
    if yes or sys.stdin is None or not sys.stdin.isatty():
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        print("penstock: nothing was done", file=sys.stderr)
        raise click.exceptions.Exit(Exit.FAILED)
