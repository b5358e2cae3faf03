"""`penstock queue`, `channel`, `consumer`, `session` and `redrive`: what holds messages, and who reads them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import click

from penstock.cli.command import Argument, Group, Option, Options, option_of
from penstock.cli.exits import Exit, Yes, confirm
from penstock.cli.messages import Name, existing
from penstock.cli.output import AsJson, counted, described, for_people, print_done, print_json, print_rows, progress
from penstock.cli.stats import IN_QUARANTINE, age, channel_row, counts, queue_row, with_age
from penstock.cli.store import on_store
from penstock.tables import cell

if TYPE_CHECKING:
    from penstock import Penstock, Redrive, RedriveTask, SessionInfo


queues = Group(help="Create, list, describe, change, empty and delete queues.")
channels = Group(help="Create, list, pause, empty and delete the channels of a queue.")

ChannelName = Annotated[str, Argument(help="The channel's name.")]


def _settings(*, for_life: bool) -> dict[str, Any]:
    """An option for every setting of a queue but the kind, which `--fifo` says; `for_life`: a new queue's as well."""
    from penstock.core.queues.config import SETTINGS

    offered = [each for each in SETTINGS.values() if each.name != "kind" and (for_life or not each.setting.for_life)]
    return {each.name: option_of(each, section="Settings of the queue") for each in offered}


Settings = Annotated[Any, Options(lambda: _settings(for_life=True))]
Changes = Annotated[Any, Options(lambda: _settings(for_life=False))]


def settings_of(given: dict[str, str | None]) -> dict[str, Any]:
    """Settings as `create_queue` takes them, of the options that are given.

    >>> settings_of({"lease": "5", "delay": None, "retention": "none", "content_dedup": "true", "dead_letter": "7"})
    {'lease': 5, 'retention': None, 'content_dedup': True, 'dead_letter': '7'}
    """
    from penstock.core.queues.config import SETTINGS

    return {name: SETTINGS[name].from_text(text) for name, text in given.items() if text is not None}


# -- queues ------------------------------------------------------------------------------------------------------------


@queues.command("list")
@on_store(read_only=True)
def list_queues(
    ps: Penstock,
    prefix: Annotated[str, Option(help="Only queues whose names start with this.")] = "",
    as_json: AsJson = False,
) -> None:
    """List queues and what is in them. Works on a directory while another process has it open."""
    damaged: list[str] = []
    rows = [queue_row(each) for each in counts(ps, None, prefix, damaged)]
    if as_json:
        rows += [{"queue": name, "damaged": True} for name in damaged]
    else:
        rows = [row | {"damaged": None, "quarantined": row["quarantined"] or None} for row in rows]
        rows += [{"queue": name, "channels": IN_QUARANTINE} for name in damaged]
    print_rows(rows, as_json, "Queues")


@queues.command()
@on_store(creates=True)
def create(
    ps: Penstock,
    /,
    queue: Name,
    fifo: Annotated[
        bool, Option("--fifo", help="Keep the order within groups. So does a name that ends with .fifo.")
    ] = False,
    no_main: Annotated[
        bool,
        Option(
            "--no-main",
            help="Do not create the channel main, which keeps every message until a worker acknowledges it. For queues "
            "that only Spark or named consumers read.",
        ),
    ] = False,
    as_json: AsJson = False,
    **settings: Settings,
) -> None:
    """Create a queue. If it exists with the same settings, nothing happens; with other settings it is an error.

    penstock queue create orders --lease 60 --max-receives 5
    """
    kind: dict[str, Any] = {"kind": "fifo"} if fifo else {}
    is_new = queue not in ps.queues(queue)
    channels: dict[str, Any] = {"channels": ()} if no_main else {}
    ps.create_queue(queue, **channels, **settings_of(settings), **kind)
    text = f"created {queue}" if is_new else f"{queue} exists already, with these settings"
    print_done(text, {"queue": queue, "created": is_new}, as_json)


@queues.command()
@on_store()
def configure(ps: Penstock, /, queue: Name, as_json: AsJson = False, **settings: Changes) -> None:
    """Change some settings of a queue. The others stay as they are.

    penstock queue configure orders --lease 120
    """
    changes = settings_of(settings)
    if not changes:
        raise click.BadParameter("say what to change, such as --lease 60")
    ps.queue(queue).configure(**changes)
    print_done(f"configured {queue}", {"queue": queue, "configured": sorted(changes)}, as_json)


@queues.command()
@on_store(read_only=True)
def describe(ps: Penstock, queue: Name, as_json: AsJson = False) -> None:
    """Show a queue's settings, and exact counts of its channels.

    Works on a directory while another process has it open.
    """
    import msgspec

    from penstock.core.queues.config import dead_letter_name

    info, stats = ps.queue(queue).info(), ps.queue(queue).stats()
    settings = msgspec.structs.asdict(info.config) | {"backoff": msgspec.structs.asdict(info.config.backoff)}
    if as_json:
        print_json([msgspec.to_builtins(info) | {"config": settings, "stats": msgspec.to_builtins(stats)}])
        return
    if info.config.receives_max:
        settings["dead_letter"] = info.config.dead_letter or dead_letter_name(queue)
    rows = [{"setting": name.removesuffix("_ms"), "value": _shown(name, value)} for name, value in settings.items()]
    print_rows([row for row in rows if row["value"]], False, f"Settings of {queue}")
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.created_ms / 1_000))
    print(f"\n{counted(stats.messages, 'message')}, {counted(stats.bytes, 'byte')}; created {created}\n")
    print_rows([with_age(channel_row(queue, each)) for each in stats.channels.values()], False, "Channels")


def _shown(name: str, value: Any) -> str:
    """A setting as people read it: lengths of time with their unit, as the options take them.

    >>> _shown("lease_ms", 30_000), _shown("retention_ms", 345_600_000), _shown("retention_ms", None)
    ('30 seconds', '345600 seconds (4 days)', 'no limit')
    """
    if value is None:
        return "" if name == "dead_letter" else "no limit"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "backoff":
        return _shown_backoff(**value)
    if not name.endswith("_ms"):
        return cell(value)
    seconds = value / 1_000
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds:.15g} seconds ({seconds / length:.3g} {unit})"
    return f"{seconds:.15g} second{'' if seconds == 1 else 's'}"


def _shown_backoff(shape: str, base_ms: int, ceiling_ms: int, seed: int) -> str:
    """A backoff as people read it.

    >>> _shown_backoff("exponential", 1_000, 300_000, 0), _shown_backoff("none", 0, 0, 0)
    ('exponential, from 1 second to 300 seconds (5 minutes)', 'none')
    """
    if shape == "none":
        return shape
    if shape == "fixed":
        return f"fixed, {_shown('base_ms', base_ms)}"
    return f"{shape}, from {_shown('base_ms', base_ms)} to {_shown('ceiling_ms', ceiling_ms)}"


def _messages_of(ps: Penstock, queue: str) -> str:
    """How many messages a queue has, for a question. Who may delete them may perhaps not count them."""
    from penstock import AccessDenied

    try:
        return counted(ps.queue(queue).stats().messages, "message")
    except AccessDenied:
        return "all its messages"


@queues.command()
@on_store()
def purge(ps: Penstock, queue: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete all messages of a queue, also those in flight. Asks for confirmation on a terminal."""
    confirm(lambda: f"Delete everything in {queue}: {_messages_of(ps, queue)}?", yes)
    count = ps.queue(queue).purge()
    print_done(f"{counted(count, 'message')} of {queue} deleted", {"queue": queue, "purged": count}, as_json)


@queues.command()
@on_store()
def delete(ps: Penstock, queue: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a queue with its messages, channels and consumers. Asks for confirmation on a terminal."""
    confirm(lambda: f"Delete {queue}, with {_messages_of(ps, queue)}?", yes)
    ps.queue(queue).delete()
    print_done(f"deleted {queue}", {"queue": queue, "deleted": True}, as_json)


# -- channels ----------------------------------------------------------------------------------------------------------


@channels.command("list")
@on_store(read_only=True)
def list_channels(ps: Penstock, queue: Name, as_json: AsJson = False) -> None:
    """List a queue's channels and what waits in them. Works on a directory while another process has it open."""
    rows = [channel_row(queue, each) for each in ps.queue(queue).stats().channels.values()]
    print_rows(rows if as_json else map(with_age, rows), as_json, f"Channels of {queue}")


@channels.command("create")
@on_store(creates=True)
def create_channel(
    ps: Penstock,
    queue: Name,
    channel: ChannelName,
    start: Annotated[
        str,
        Option(
            help="Where it starts: `head` (all stored messages), `tail` (only later messages), or a time in seconds "
            "since 1970."
        ),
    ] = "head",
    as_json: AsJson = False,
) -> None:
    """Create a channel: one more reader that gets every message. If it exists, nothing happens."""
    is_new = queue not in ps.queues(queue) or channel not in ps.queue(queue).info().channels
    ps.queue(queue).channel(channel, start=_start(start))
    text = f"created channel {channel} of {queue}" if is_new else f"channel {channel} of {queue} exists already"
    print_done(text, {"queue": queue, "channel": channel, "created": is_new}, as_json)


def _start(text: str) -> str | float:
    if text in ("head", "tail"):
        return text
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither head, tail nor a time", param_hint="--start") from None


@channels.command()
@on_store()
def pause(ps: Penstock, queue: Name, channel: ChannelName, as_json: AsJson = False) -> None:
    """Stop delivering the messages of a channel, until `unpause`."""
    existing(ps, queue, channel).pause()
    print_done(f"paused {channel} of {queue}", {"queue": queue, "channel": channel, "paused": True}, as_json)


@channels.command()
@on_store()
def unpause(ps: Penstock, queue: Name, channel: ChannelName, as_json: AsJson = False) -> None:
    """Deliver the messages of a paused channel again."""
    existing(ps, queue, channel).unpause()
    print_done(f"unpaused {channel} of {queue}", {"queue": queue, "channel": channel, "paused": False}, as_json)


@channels.command("purge")
@on_store()
def purge_channel(ps: Penstock, queue: Name, channel: ChannelName, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete all messages of one channel. The other channels keep theirs. Asks for confirmation on a terminal."""
    handle = existing(ps, queue, channel)
    confirm(f"Delete all messages that wait in channel {channel} of {queue}?", yes)
    count = handle.purge()
    facts = {"queue": queue, "channel": channel, "purged": count}
    print_done(f"{counted(count, 'message')} of {channel} deleted", facts, as_json)


@channels.command("delete")
@on_store()
def delete_channel(ps: Penstock, queue: Name, channel: ChannelName, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a channel, and the messages that only it still needed. Asks for confirmation on a terminal."""
    handle = existing(ps, queue, channel)
    confirm(f"Delete channel {channel} of {queue}, with the messages that only it waits for?", yes)
    handle.delete()
    print_done(f"deleted channel {channel} of {queue}", {"queue": queue, "channel": channel, "deleted": True}, as_json)


# -- dead letters ------------------------------------------------------------------------------------------------------

_LOOK_SECONDS = 0.1


@on_store()
def redrive(
    ps: Penstock,
    queue: Annotated[str, Argument(help="The dead-letter queue.")],
    to: Annotated[str | None, Option(help="Move them to this queue instead of the ones that they came from.")] = None,
    create: Annotated[bool, Option("--create", help="Create the queue of --to if it does not exist.")] = False,
    message_id: Annotated[list[str] | None, Option("--id", help="Only this message. Can be repeated.")] = None,
    contains: Annotated[str | None, Option(help="Only messages whose body contains this text.")] = None,
    error: Annotated[str | None, Option(help="Only messages that failed with this text in an error.")] = None,
    group: Annotated[
        str | None,
        Option(help="Only messages whose last error is this one, with `#` for numbers, ids and quoted text."),
    ] = None,
    discard: Annotated[bool, Option("--discard", help="Delete the messages instead of moving them.")] = False,
    rate: Annotated[int | None, Option(min=1, help="Messages a second at most.")] = None,
    wait: Annotated[
        bool, Option(help="Wait until it is done. With --no-wait, a server does it in the background.")
    ] = True,
    tasks: Annotated[bool, Option("--tasks", help="Only list the redrives of the queue.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move dead letters back to the queues where they failed, and wait until that is done.

    penstock redrive orders.dead --error timeout --rate 100
    """
    if tasks:
        print_rows(map(_row, ps.redrives(queue)), as_json, f"Redrives of {queue}")
        return
    needle = None if contains is None else contains.encode(errors="surrogateescape")
    if to is not None and not create:
        _check_target(ps, to)
    started = ps.redrive(
        queue, to=to, ids=message_id, contains=needle, error=error, rate=rate, group=group, discard=discard
    )
    task = _followed(started, queue) if wait else started.progress()
    text = f"{task.status}: {task.moved:,} {'deleted' if discard else 'moved'}, {task.skipped:,} left where they are"
    is_in_vain = wait and task.status == "done" and not task.moved
    was_asked_for = any((message_id, needle is not None, error is not None, group is not None, task.skipped))
    if is_in_vain:
        text = _nothing_moved(queue, task.skipped, to) if was_asked_for else f"nothing to move: {queue} is empty"
    print_done(text + (f" ({task.error})" if task.error else ""), _row(task), as_json)
    if task.status in ("failed", "cancelled") or (is_in_vain and was_asked_for):
        raise click.exceptions.Exit(Exit.FAILED)


def _check_target(ps: Penstock, name: str) -> None:
    """A redrive would create the queue that it moves messages to: a slip of the pen would be a new queue."""
    import penstock

    try:
        ps.queue(name).info()
    except penstock.QueueNotFound:
        hint = "check --to, or create the queue with --create"
        raise penstock.QueueNotFound(f"there is no queue {name!r}: {hint}") from None
    except penstock.AccessDenied:  # it may administer a queue that it may not read
        pass


def _nothing_moved(queue: str, skipped: int, to: str | None) -> str:
    """Why a redrive may have found nothing to move."""
    hint = "" if to is not None else "; messages without an origin need --to"
    return f"nothing was moved: none of the {skipped:,} messages of {queue} matches{hint}"


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


# -- consumers ---------------------------------------------------------------------------------------------------------

consumers = Group(help="List, move and delete the named consumers of a queue, and read as one.")

ConsumerName = Annotated[str, Argument(help="The consumer's name.")]


@consumers.command("list")
@on_store(read_only=True)
def list_consumers(ps: Penstock, queue: Name, as_json: AsJson = False) -> None:
    """List a queue's consumers, the offset of each, and how far behind it is."""
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
    ack: Annotated[bool, Option(help="Move the consumer behind the printed messages.")] = True,
    as_json: AsJson = False,
) -> None:
    """Print the next messages for a consumer, and move its offset behind them. Exit status 3 if there are none."""
    handle = ps.queue(queue).consumer(consumer)
    is_new = ack and consumer not in ps.queue(queue).stats().consumers
    records = handle.read(max, offset=offset)
    rows = [described(record) | {"offset": record.offset} for record in records]
    print_rows(rows if as_json else map(for_people, rows), as_json, f"{queue}, as {consumer} reads it")
    if ack and rows:
        handle.ack(records.next_offset, allow_rewind=offset is not None)
        if is_new:
            print(f"penstock: there was no consumer {consumer} of {queue}, so it was created", file=sys.stderr)
    if not rows:
        raise click.exceptions.Exit(Exit.NOTHING)


@consumers.command()
@on_store()
def move(
    ps: Penstock,
    queue: Name,
    consumer: ConsumerName,
    offset: Annotated[int, Argument(min=0, help="The offset of the first message that it should read next.")],
    allow_rewind: Annotated[bool, Option("--allow-rewind", help="Let the consumer move backwards.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move a consumer to an offset. Everything before it counts as read. Creates the consumer if needed."""
    remembered = ps.queue(queue).consumer(consumer).ack(offset, allow_rewind=allow_rewind)
    facts = {"queue": queue, "consumer": consumer, "offset": remembered}
    print_done(f"{consumer} is at {remembered} of {queue}", facts, as_json)


@consumers.command("delete")
@on_store()
def delete_consumer(
    ps: Penstock, queue: Name, consumer: ConsumerName, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Delete a consumer and its offset. Asks for confirmation on a terminal."""
    confirm(f"Delete consumer {consumer} of {queue}?", yes)
    ps.queue(queue).consumer(consumer).delete()
    print_done(f"deleted {consumer} of {queue}", {"queue": queue, "consumer": consumer, "deleted": True}, as_json)


# -- sessions ----------------------------------------------------------------------------------------------------------

sessions = Group(help="Show who holds which messages, and since when; end a session.")


@sessions.command("list")
@on_store(read_only=True)
def list_sessions(
    ps: Penstock,
    queue: Annotated[
        str | None,
        Option(
            help="Only sessions that hold messages of this queue, and its receivers without a session.",
            show_default="all",
        ),
    ] = None,
    limit: Annotated[int, Option(min=1, max=10_000, help="How many sessions at most.")] = 1_000,
    as_json: AsJson = False,
) -> None:
    """List sessions and connections, and what they hold. Those that hold most come first.

    penstock session list --queue orders
    """
    told = ps.sessions(queue, limit=limit)
    print_rows([_as_json(each) if as_json else _as_text(each) for each in told], as_json, "Sessions")


def _as_json(info: SessionInfo) -> dict[str, Any]:
    return {
        "session": info.id if info.session else None,
        "name": info.name,
        "is_connection": info.is_bound,
        "node": info.connection,
        "ttl": None if info.ttl_ms is None else info.ttl_ms / 1_000,
        "seen_at": info.seen_ms / 1_000 if info.session else None,
        "held": info.held,
        "leases": [
            {
                "queue": held.queue,
                "channel": held.channel,
                "count": held.count,
                "since": held.since_ms / 1_000,
                "until": held.until_ms / 1_000,
            }
            for held in info.leases
        ],
    }


def _as_text(info: SessionInfo) -> dict[str, Any]:
    now = time.time()
    return {
        "session": info.id if info.session else "none",
        "name": info.name,
        "kind": ("connection" if info.is_bound else "session") if info.session else "by receipt",
        "node": info.connection,
        "seen": f"{age(now - info.seen_ms / 1_000)} ago" if info.session else "",
        "holds": info.held,
        "of": [f"{held.queue}/{held.channel}: {held.count:,}" for held in info.leases],
        "since": age(now - min(held.since_ms for held in info.leases) / 1_000) if info.leases else "",
    }


@sessions.command("end")
@on_store()
def end_session(
    ps: Penstock,
    session: Annotated[str, Argument(help="The session's id, as `session list` prints it.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """End a session. Its messages are ready for others at once. Asks for confirmation on a terminal.

    penstock session end 0-17
    """
    confirm(f"End session {session}, and release its messages?", yes)
    released = ps.end_session(session)
    print_done(f"ended {session}: {counted(released, 'message')} released", {"released": released}, as_json)
