"""`penstock explain` and `penstock message`: single messages by id, their lives, and what an operator does to them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import click

from penstock.cli.command import Argument, Group, Option
from penstock.cli.exits import Exit, Yes, confirm
from penstock.cli.messages import Name, receiver
from penstock.cli.output import AsJson, counted, print_done, print_json, print_rows

if TYPE_CHECKING:
    from penstock import MessageLife, Penstock

from penstock.cli.store import on_store

single_messages = Group(help="Delete, release and reschedule messages by id. No lease is needed.")

Messages = Annotated[list[str], Argument(help="Ids or sequence numbers.")]
InChannel = Annotated[str, Option("--channel", "-c", help="The channel.")]


@on_store(read_only=True)
def explain(
    ps: Penstock,
    message: Annotated[str, Argument(help="The message's id. With --queue, its sequence number works, too.")],
    queue: Annotated[str | None, Option(help="The queue that the message is in.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Show the whole life of a message: where it is, every delivery and its error, who holds it, when it is due.

    It may be in its queue, or among its dead letters. Exit status 3 if it is done, or was deleted.

    penstock explain f058b7b8-246f-4424-ac54-c584acaebd01
    """
    if queue is None and isinstance(named(message), int):
        raise click.UsageError(f"{message} is a sequence number: name its queue with --queue.")
    life = ps.find_message(message) if queue is None else ps.queue(queue).look_up(named(message))
    is_done = all(each.state.name == "DONE" for each in life.channels)
    if as_json:
        print_json([_as_row(life)])
    else:
        _print_life(life)
        if is_done:
            print("\nIt is done in every channel: acknowledged, deleted, or moved to another queue.")
    if is_done:
        raise click.exceptions.Exit(Exit.NOTHING)


def _print_life(life: MessageLife) -> None:
    body = life.body[:1_000].decode(errors="replace")
    print(f"{life.id}  {life.queue}, number {life.sequence}, {counted(len(life.body), 'byte')}\n")
    print("\n".join(life.lines()))
    print()
    print_rows([_in_channel(each) for each in life.channels], False, "Channels")
    if life.attributes:
        print("\n" + "\n".join(f"{name}: {value!s}" for name, value in life.attributes.items()))
    print(f"\n{body}")


def _in_channel(each: Any) -> dict[str, Any]:
    until = "" if not each.deadline_ms else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(each.deadline_ms / 1_000))
    return {
        "channel": each.channel,
        "state": each.state.name.lower(),
        "attempts": each.attempts,
        "held_by": each.holder or ("" if each.state.name != "LEASED" else "its receipt (no session)"),
        "until": until,
        "failures": len(each.failures),
    }


def _as_row(life: MessageLife) -> dict[str, Any]:
    return {
        "id": life.id,
        "queue": life.queue,
        "sequence": life.sequence,
        "body": life.body.decode(errors="replace"),
        "sent_at": life.sent_at,
        "channels": [_in_channel(each) for each in life.channels],
        "events": [event._asdict() for event in life.events],
    }


def named(message: str) -> str | int:
    """A message as it is named on the command line: by number, or by id.

    >>> named("17"), named("f058b7b8-246f-4424-ac54-c584acaebd01")
    (17, 'f058b7b8-246f-4424-ac54-c584acaebd01')
    """
    return int(message) if message.isascii() and message.isdigit() else message


def _print_count(count: int, done: str, queue: str, as_json: bool) -> None:
    """Say to how many messages it was done. To none of them: exit status 3, as for a queue that is not there."""
    from penstock import MessageNotFound

    if not count and not as_json:
        raise MessageNotFound(f"queue {queue!r} has none of these messages: they were acknowledged, deleted or expired")
    print_done(f"{count} {done}", {done: count}, as_json)
    if not count:
        raise click.exceptions.Exit(Exit.NOTHING)


@single_messages.command()
@on_store()
def delete(
    ps: Penstock,
    queue: Name,
    messages: Messages,
    channel: Annotated[
        str | None, Option("--channel", "-c", help="Only in this channel.", show_default="all channels")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete messages, even if somebody holds them."""
    confirm(f"Delete {counted(len(messages), 'message')} of {queue}?", yes)
    source = ps.queue(queue) if channel is None else receiver(ps, queue, channel)
    count = source.delete_messages(map(named, messages))
    _print_count(count, "deleted", queue, as_json)


@single_messages.command()
@on_store()
def release(
    ps: Penstock, queue: Name, messages: Messages, channel: InChannel = "main", as_json: AsJson = False
) -> None:
    """Make messages ready now. Delays end, and so do leases, which counts as a failed delivery."""
    count = receiver(ps, queue, channel).release_messages(map(named, messages))
    _print_count(count, "released", queue, as_json)


@single_messages.command()
@on_store()
def reschedule(
    ps: Penstock,
    queue: Name,
    messages: Messages,
    delay: Annotated[float, Option("--delay", min=0, help="Seconds from now.")],
    channel: InChannel = "main",
    as_json: AsJson = False,
) -> None:
    """Make messages due at another time. Leases end, which counts as a failed delivery.

    penstock message reschedule orders 17 18 --delay 3600
    """
    if delay < 0:
        raise click.BadParameter("must not be negative", param_hint="--delay")
    count = receiver(ps, queue, channel).reschedule_messages(map(named, messages), delay=delay)
    _print_count(count, "rescheduled", queue, as_json)
