"""`penstock queue` and `penstock channel`: what holds the messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import click

from penstock.cli.asking import Yes, confirm
from penstock.cli.command import Argument, Group, Option
from penstock.cli.messages import Name, existing
from penstock.cli.output import AsJson, counted, print_done, print_json, print_rows
from penstock.cli.stats import IN_QUARANTINE, channel_row, counts, queue_row, with_age
from penstock.cli.store import on_store
from penstock.tables import cell

if TYPE_CHECKING:
    from penstock import Penstock

queues = Group(help="Create, list, describe, change, empty and delete queues.")
channels = Group(help="Create, list, pause, empty and delete the channels of a queue.")

ChannelName = Annotated[str, Argument(help="The channel's name.")]
Lease = Annotated[float | None, Option(help="Seconds that a receiver has for a message (30).")]
Retention = Annotated[str | None, Option(help="Seconds that messages are kept (345600: 4 days), or `none`.")]
Delay = Annotated[float | None, Option(help="Seconds that every message waits before it can be received (0).")]
MaxReceives = Annotated[
    int | None, Option(help="After so many failed deliveries a message is a dead letter (10). 0: never.")
]
DeadLetter = Annotated[str | None, Option(help="The queue that dead letters go to (NAME.dead).")]
Policy = Annotated[str | None, Option(help="at_least_once (the default), consume_times or consume_once.")]
ConsumeTimes = Annotated[
    int | None, Option(help="With --policy consume_times: a message is delivered so often at most.")
]
Set = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="SETTING=VALUE for any other setting, the value as JSON. Can be repeated. docs/delivery.md lists them.",
    ),
]


def settings_of(given: dict[str, Any], others: list[str] | None) -> dict[str, Any]:
    """Settings as `create_queue` takes them: what was given on the command line, and nothing else.

    >>> settings_of({"lease": 5.0, "delay": None, "retention": "none"}, ["content_dedup=true"])
    {'lease': 5.0, 'retention': None, 'content_dedup': True}
    """
    settings = {name: value for name, value in given.items() if value is not None}
    if "retention" in settings:
        settings["retention"] = _retention(settings["retention"])
    for each in others or ():
        name, equals, value = each.partition("=")
        if not equals:
            raise click.BadParameter(f"{each!r} is not SETTING=VALUE", param_hint="--set")
        settings[name] = _value(value)
    return settings


def _retention(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither seconds nor `none`", param_hint="--retention") from None


def _value(text: str) -> Any:
    """A setting's value: JSON, or else the text itself."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


# -- queues ------------------------------------------------------------------------------------------------------------


@queues.command("list")
@on_store(read_only=True)
def list_queues(
    ps: Penstock,
    prefix: Annotated[str, Option(help="Only queues whose names start so.")] = "",
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
    queue: Name,
    fifo: Annotated[
        bool, Option("--fifo", help="Keep the order within groups. A name that ends with .fifo says so, too.")
    ] = False,
    lease: Lease = None,
    retention: Retention = None,
    delay: Delay = None,
    max_receives: MaxReceives = None,
    dead_letter: DeadLetter = None,
    policy: Policy = None,
    consume_times: ConsumeTimes = None,
    settings: Set = None,
    as_json: AsJson = False,
) -> None:
    """Create a queue. If it exists with the same settings, nothing happens; with other settings it is an error.

    penstock queue create orders --lease 60 --max-receives 5
    """
    given = {"kind": "fifo" if fifo else None, "lease": lease, "retention": retention, "delay": delay}
    given |= {"max_receives": max_receives, "dead_letter": dead_letter, "policy": policy}
    given |= {"consume_times": consume_times}
    is_new = queue not in ps.queues(queue)
    ps.create_queue(queue, **settings_of(given, settings))
    text = f"created {queue}" if is_new else f"{queue} exists already, with these settings"
    print_done(text, {"queue": queue, "created": is_new}, as_json)


@queues.command()
@on_store()
def configure(
    ps: Penstock,
    queue: Name,
    lease: Lease = None,
    retention: Retention = None,
    delay: Delay = None,
    max_receives: MaxReceives = None,
    dead_letter: DeadLetter = None,
    settings: Set = None,
    as_json: AsJson = False,
) -> None:
    """Change some settings of a queue. The others stay as they are.

    penstock queue configure orders --lease 120
    """
    given = {"lease": lease, "retention": retention, "delay": delay}
    given |= {"max_receives": max_receives, "dead_letter": dead_letter}
    changes = settings_of(given, settings)
    if not changes:
        raise click.BadParameter("say what to change, such as --lease 60; `--set` has any setting")
    ps.queue(queue).configure(**changes)
    print_done(f"configured {queue}", {"queue": queue, "configured": sorted(changes)}, as_json)


@queues.command()
@on_store(read_only=True)
def describe(ps: Penstock, queue: Name, as_json: AsJson = False) -> None:
    """Show a queue's settings, and exact counts of its channels.

    Works on a directory while another process has it open.
    """
    import msgspec

    from penstock.core.config import dead_letter_name

    info, stats = ps.queue(queue).info(), ps.queue(queue).stats()
    settings = msgspec.structs.asdict(info.config) | {"backoff": msgspec.structs.asdict(info.config.backoff)}
    if as_json:
        print_json([msgspec.to_builtins(info) | {"config": settings, "stats": msgspec.to_builtins(stats)}])
        return
    if info.config.receives_max:
        settings["dead_letter"] = info.config.dead_letter or dead_letter_name(queue)
    rows = [{"setting": name.removesuffix("_ms"), "value": _shown(name, value)} for name, value in settings.items()]
    print_rows([row for row in rows if row["value"]], False, f"Settings of {queue}")
    print(f"\n{counted(stats.messages, 'message')}, {counted(stats.bytes, 'byte')}; created {_when(info.created_ms)}\n")
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
    return f"{seconds:.15g} seconds"


def _shown_backoff(shape: str, base_ms: int, ceiling_ms: int, seed: int) -> str:
    """A backoff as people read it.

    >>> _shown_backoff("exponential", 1_000, 300_000, 0), _shown_backoff("none", 0, 0, 0)
    ('exponential, from 1 seconds to 300 seconds (5 minutes)', 'none')
    """
    if shape == "none":
        return shape
    if shape == "fixed":
        return f"fixed, {_shown('base_ms', base_ms)}"
    return f"{shape}, from {_shown('base_ms', base_ms)} to {_shown('ceiling_ms', ceiling_ms)}"


def _when(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ms / 1_000))


@queues.command()
@on_store()
def purge(ps: Penstock, queue: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete every message of a queue, also those that somebody is working on. Asks first, on a terminal."""
    confirm(f"Delete everything in {queue}: {counted(ps.queue(queue).stats().messages, 'message')}?", yes)
    count = ps.queue(queue).purge()
    print_done(f"{counted(count, 'message')} of {queue} deleted", {"queue": queue, "purged": count}, as_json)


@queues.command()
@on_store()
def delete(ps: Penstock, queue: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a queue with its messages, channels and consumers. Asks first, on a terminal."""
    confirm(f"Delete {queue}, with {counted(ps.queue(queue).stats().messages, 'message')}?", yes)
    ps.queue(queue).delete()
    print_done(f"deleted {queue}", {"queue": queue, "deleted": True}, as_json)


# -- channels ----------------------------------------------------------------------------------------------------------


@channels.command("list")
@on_store(read_only=True)
def list_channels(ps: Penstock, queue: Name, as_json: AsJson = False) -> None:
    """List a queue's channels and what waits in them. Works on a directory while another process has it open."""
    rows = [channel_row(queue, each) for each in ps.queue(queue).stats().channels.values()]
    print_rows(rows, as_json, f"Channels of {queue}")


@channels.command("create")
@on_store(creates=True)
def create_channel(
    ps: Penstock,
    queue: Name,
    channel: ChannelName,
    start: Annotated[
        str,
        Option(
            help="Where it starts: `head` (with all that is stored), `tail` (with what comes later), or a time in "
            "seconds since 1970."
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
    """Delete all messages that wait in one channel. The other channels keep theirs. Asks first, on a terminal."""
    handle = existing(ps, queue, channel)
    confirm(f"Delete all messages that wait in channel {channel} of {queue}?", yes)
    count = handle.purge()
    facts = {"queue": queue, "channel": channel, "purged": count}
    print_done(f"{counted(count, 'message')} of {channel} deleted", facts, as_json)


@channels.command("delete")
@on_store()
def delete_channel(ps: Penstock, queue: Name, channel: ChannelName, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a channel, with the messages that no other channel waits for. Asks first, on a terminal."""
    handle = existing(ps, queue, channel)
    confirm(f"Delete channel {channel} of {queue}, with the messages that only it waits for?", yes)
    handle.delete()
    print_done(f"deleted channel {channel} of {queue}", {"queue": queue, "channel": channel, "deleted": True}, as_json)
