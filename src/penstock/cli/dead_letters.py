"""`penstock redrive`: dead letters go back to where they failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import click

from penstock.cli.command import Argument, Option
from penstock.cli.exits import Exit
from penstock.cli.output import AsJson, print_done, print_rows, progress
from penstock.cli.store import on_store

if TYPE_CHECKING:
    from penstock import Penstock, Redrive, RedriveTask

_LOOK_SECONDS = 0.1


@on_store()
def redrive(
    ps: Penstock,
    queue: Annotated[str, Argument(help="The dead-letter queue.")],
    to: Annotated[str | None, Option(help="Move them to this queue, and not to where they came from.")] = None,
    message_id: Annotated[list[str] | None, Option("--id", help="Only this message. Can be repeated.")] = None,
    contains: Annotated[str | None, Option(help="Only messages whose body contains this text.")] = None,
    error: Annotated[str | None, Option(help="Only messages that failed with this text in an error.")] = None,
    rate: Annotated[int | None, Option(min=1, help="Messages a second at most.")] = None,
    wait: Annotated[bool, Option(help="Wait until it is done. A server goes on without waiting.")] = True,
    tasks: Annotated[bool, Option("--tasks", help="List the redrives of the queue, and start none.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move dead letters back to the queues where they failed, and wait until that is done.

    penstock redrive orders.dead --error timeout --rate 100
    """
    if tasks:
        print_rows(map(_row, ps.redrives(queue)), as_json, f"Redrives of {queue}")
        return
    needle = None if contains is None else contains.encode(errors="surrogateescape")
    started = ps.redrive(queue, to=to, ids=message_id, contains=needle, error=error, rate=rate)
    task = _followed(started, queue) if wait else started.progress()
    text = f"{task.status}: {task.moved:,} moved, {task.skipped:,} left where they are"
    print_done(text + (f" ({task.error})" if task.error else ""), _row(task), as_json)
    if task.status in ("failed", "cancelled"):
        raise click.exceptions.Exit(Exit.FAILED)


def _followed(started: Redrive, queue: str) -> RedriveTask:
    """Wait for the end, with a bar. Ctrl-C stops the redrive: what was moved stays moved."""
    with progress(f"Redriving {queue}") as told:
        try:
            while (task := started.wait(timeout=_LOOK_SECONDS)).status == "running":
                told(task.moved + task.skipped, task.to_move)
        except KeyboardInterrupt:
            started.cancel()
            raise
    return task


def _row(task: RedriveTask) -> dict[str, Any]:
    return {
        "task": task.task,
        "queue": task.queue,
        "target": task.target,
        "status": task.status,
        "moved": task.moved,
        "skipped": task.skipped,
        "to_move": task.to_move,
        "error": task.error,
    }
