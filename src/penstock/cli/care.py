"""`penstock store`: copy a data directory; is one whole, and what can be had of one that is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import click

from penstock.cli.command import Argument, Group
from penstock.cli.exits import Exit
from penstock.cli.output import AsJson, counted, print_done, print_json, print_rows, progress
from penstock.cli.store import Data, chosen, require_store

stores = Group(help="Back up a data directory; check it for damage; salvage what is readable of it.")


@stores.command()
def backup(
    source: Annotated[Path, Argument(help="The data directory. A server may have it open.")],
    target: Annotated[Path, Argument(help="A directory that is new, or empty.")],
    as_json: AsJson = False,
) -> None:
    """Copy a data directory while a server serves from it, and check the copy.

    Everything that was acknowledged before the command began is in the copy. Exit status 0: it is whole; 1: it is not.
    """
    import msgspec

    from penstock.backup import back_up

    try:
        with progress(f"backing up {source}", unit="bytes") as show:
            done = back_up(source, target, show)
    except KeyboardInterrupt:
        print(f"penstock: interrupted: {target} is incomplete. Delete it, and start again.", file=sys.stderr)
        raise click.exceptions.Exit(Exit.INTERRUPTED) from None
    rows = msgspec.to_builtins(done.findings)
    if rows and not as_json:
        print_rows(rows, as_json, f"Damage in {target}")
    state = f"damaged as {source} is" if rows else "checked and whole"
    text = f"{target}: {counted(done.stores, 'store')}, {done.bytes:,} bytes in {done.seconds:.1f} s; {state}"
    print_done(text, msgspec.to_builtins(done), as_json)
    if rows:
        raise click.exceptions.Exit(Exit.FAILED)


@stores.command()
def check(data: Data = None, as_json: AsJson = False) -> None:
    """Read everything in a directory, and list what is damaged. Exit status 0: nothing is; 1: something is.

    Nothing is changed, and a server may have the directory open.
    """
    import msgspec

    from penstock import salvage as care

    directory = chosen(data, None)
    if not isinstance(directory, Path):
        raise click.BadParameter("this works on a directory: give --data")
    if not directory.is_dir() or care.stores_in(directory) == [directory]:
        require_store(directory)
    findings = [
        ({"store": store.name} if store != directory else {}) | msgspec.to_builtins(finding)
        for store in care.stores_in(directory)
        for finding in care.check(store)
    ]
    if as_json:
        print_json(findings)
    elif findings:
        print_rows(findings, as_json, f"Damage in {directory}")
        advice = "restore a backup, or stop the server and copy what is readable:"
        print(f"{advice} penstock store salvage {directory} NEW", file=sys.stderr)
    else:
        print(f"{directory} is whole", flush=True)
    if findings:
        raise click.exceptions.Exit(Exit.FAILED)


@stores.command()
def salvage(
    source: Annotated[Path, Argument(help="The damaged directory. No server may have it open.")],
    target: Annotated[Path, Argument(help="A directory that is new, or empty.")],
    as_json: AsJson = False,
) -> None:
    """Copy everything that is readable to a new directory, and list what is not, there and here."""
    import msgspec

    from penstock import salvage as care

    try:
        with progress(f"salvaging {source}", unit="chunks") as show:
            done = care.salvage(source, target, show)
    except KeyboardInterrupt:
        print(f"penstock: interrupted: {target} is incomplete. Delete it, and start again.", file=sys.stderr)
        raise click.exceptions.Exit(Exit.INTERRUPTED) from None
    rows = msgspec.to_builtins(done.findings)
    if as_json:
        print_json(rows)
    elif rows:
        print_rows(rows, as_json, "Not copied as it was")
    counts = {"queues": done.queues, "rebuilt": done.rebuilt, "messages": done.messages, "findings": len(rows)}
    text = (
        f"{target}: {done.queues} queues as they were, {done.rebuilt} made whole, {done.messages} messages; "
        f"{len(rows)} findings, in {target / care.LIST_NAME}"
    )
    print_done(text, counts, as_json)
