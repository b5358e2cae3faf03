"""`penstock consumer`: named cursors over queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click

from penstock.cli.asking import Yes, confirm
from penstock.cli.command import Argument, Group, Option
from penstock.cli.exits import Exit
from penstock.cli.messages import Name
from penstock.cli.output import AsJson, described, for_people, print_done, print_rows
from penstock.cli.store import on_store

if TYPE_CHECKING:
    from penstock import Penstock

consumers = Group(help="List, read as, move and delete the named consumers of a queue.")

ConsumerName = Annotated[str, Argument(help="The consumer's name.")]


@consumers.command("list")
@on_store(read_only=True)
def list_consumers(ps: Penstock, queue: Name, as_json: AsJson = False) -> None:
    """List a queue's consumers, where each is, and how many offsets it is behind."""
    stats = ps.queue(queue).stats()
    rows = [
        {"queue": queue, "consumer": name, "offset": offset, "behind": max(0, stats.next_sequence - offset)}
        for name, offset in sorted(stats.consumers.items())
    ]
    print_rows(rows, as_json, f"Consumers of {queue}")


@consumers.command()
@on_store()
def read(
    ps: Penstock,
    queue: Name,
    consumer: ConsumerName,
    max: Annotated[int, Option("--max", "-n", min=1, help="How many messages at most.")] = 10,
    offset: Annotated[int | None, Option(help="Read from this offset instead.")] = None,
    ack: Annotated[bool, Option(help="Move the consumer behind what was printed.")] = True,
    as_json: AsJson = False,
) -> None:
    """Print the next messages for a consumer, and move it behind them. Exit status 3 when there is none."""
    handle = ps.queue(queue).consumer(consumer)
    records = handle.read(max, offset=offset)
    rows = [described(record) | {"offset": record.offset} for record in records]
    print_rows(rows if as_json else map(for_people, rows), as_json, f"{queue}, as {consumer} reads it")
    if ack and rows:
        handle.ack(records.next_offset, allow_rewind=offset is not None)
    if not rows:
        raise click.exceptions.Exit(Exit.NOTHING)


@consumers.command()
@on_store()
def move(
    ps: Penstock,
    queue: Name,
    consumer: ConsumerName,
    offset: Annotated[int, Argument(min=0, help="The offset of the first message that it has not read.")],
    allow_rewind: Annotated[bool, Option("--allow-rewind", help="Allow to move backwards.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move a consumer to an offset: it has read everything before that. Creates the consumer if it is not there."""
    remembered = ps.queue(queue).consumer(consumer).ack(offset, allow_rewind=allow_rewind)
    facts = {"queue": queue, "consumer": consumer, "offset": remembered}
    print_done(f"{consumer} is at {remembered} of {queue}", facts, as_json)


@consumers.command()
@on_store()
def delete(ps: Penstock, queue: Name, consumer: ConsumerName, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a consumer: where it was is forgotten. Asks first, on a terminal."""
    confirm(f"Delete consumer {consumer} of {queue}?", yes)
    ps.queue(queue).consumer(consumer).delete()
    print_done(f"deleted {consumer} of {queue}", {"queue": queue, "consumer": consumer, "deleted": True}, as_json)
