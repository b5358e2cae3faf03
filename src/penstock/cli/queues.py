"""`penstock queue` and `penstock channel`: what holds the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.messages import Name, existing
from penstock.cli.output import AsJson, print_done, print_json, print_rows, progress
from penstock.cli.stats import channel_row, counts, queue_row
from penstock.cli.store import on_store

if TYPE_CHECKING:
    from penstock import Penstock

queues = typer.Typer(help="Create, list, describe, change, empty and delete queues.", no_args_is_help=True)
channels = typer.Typer(help="Create, list, pause, empty and delete the channels of a queue.", no_args_is_help=True)

ChannelName = Annotated[str, typer.Argument(help="The channel's name.", show_default=False)]
Lease = Annotated[float | None, typer.Option(help="Seconds that a receiver has.", show_default=False)]
Retention = Annotated[str | None, typer.Option(help="Seconds that messages are kept, or `none`: for ever.")]
Delay = Annotated[float | None, typer.Option(help="Seconds that every message waits before it can be received.")]
MaxReceives = Annotated[int | None, typer.Option(help="Failed deliveries before a message is dead; 0: never.")]
DeadLetter = Annotated[str | None, typer.Option(help="Where dead messages go (NAME.dead).")]
Policy = Annotated[str | None, typer.Option(help="at_least_once, consume_times or consume_once.")]
ConsumeTimes = Annotated[int | None, typer.Option(help="With consume_times: how often at most.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="SETTING=VALUE for any other setting, the value as JSON; may be given several times."),
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
            raise typer.BadParameter(f"{each!r} is not SETTING=VALUE", param_hint="--set")
        settings[name] = _value(name, value)
    return settings


def _retention(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither seconds nor `none`", param_hint="--retention") from None


def _value(name: str, text: str) -> Any:
    """A setting's value: JSON, or else the text itself."""
    import msgspec

    from penstock.core.config import Backoff

    try:
        if name == "backoff":
            return msgspec.json.decode(text, type=Backoff)
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        if name == "backoff":
            raise typer.BadParameter(f"{text!r}: {error}", param_hint="--set") from None
        return text


# -- queues ------------------------------------------------------------------------------------------------------------


@queues.command("list")
@on_store(read_only=True)
def list_queues(
    ps: Penstock,
    prefix: Annotated[str, typer.Option(help="Only queues whose names start so.")] = "",
    as_json: AsJson = False,
) -> None:
    """List queues and what is in them. Works on a directory while another process has it open."""
    print_rows((queue_row(each) for each in counts(ps, None, prefix)), as_json, "Queues")


@queues.command()
@on_store(creates=True)
def create(
    ps: Penstock,
    queue: Name,
    fifo: Annotated[bool, typer.Option("--fifo", help="Keep the order within groups.")] = False,
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
    """Create a queue. Once more with the same settings is fine; with others it is an error."""
    given = {"kind": "fifo" if fifo else None, "lease": lease, "retention": retention, "delay": delay}
    given |= {"max_receives": max_receives, "dead_letter": dead_letter, "policy": policy}
    given |= {"consume_times": consume_times}
    ps.create_queue(queue, **settings_of(given, settings))
    print_done(f"created {queue}", {"queue": queue, "created": True}, as_json)


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
    """Change some settings of a queue; the others stay."""
    given = {"lease": lease, "retention": retention, "delay": delay}
    given |= {"max_receives": max_receives, "dead_letter": dead_letter}
    changes = settings_of(given, settings)
    if not changes:
        raise typer.BadParameter("say what to change")
    ps.queue(queue).configure(**changes)
    print_done(f"configured {queue}", {"queue": queue, "configured": sorted(changes)}, as_json)


@queues.command()
@on_store(read_only=True)
def describe(ps: Penstock, queue: Name, as_json: AsJson = False) -> None:
    """Print a queue's settings and exact counts as JSON; with --json on one line.

    Works on a directory while another process has it open.
    """
    import msgspec

    info, stats = ps.queue(queue).info(), ps.queue(queue).stats()
    settings = msgspec.structs.asdict(info.config) | {"backoff": msgspec.structs.asdict(info.config.backoff)}
    described = msgspec.to_builtins(info) | {"config": settings, "stats": msgspec.to_builtins(stats)}
    if as_json:
        print_json([described])
    else:
        print(msgspec.json.format(msgspec.json.encode(described), indent=2).decode())


@queues.command()
@on_store()
def purge(ps: Penstock, queue: Name, as_json: AsJson = False) -> None:
    """Delete every message of a queue, in flight ones included."""
    with progress(f"Purging {queue}"):
        count = ps.queue(queue).purge()
    print_done(f"{count} messages purged", {"queue": queue, "purged": count}, as_json)


@queues.command()
@on_store()
def delete(ps: Penstock, queue: Name, as_json: AsJson = False) -> None:
    """Delete a queue with its messages, channels and consumers."""
    with progress(f"Deleting {queue}"):
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
        str, typer.Option(help="head: all that is stored; tail: what comes; or seconds since 1970.")
    ] = "head",
    as_json: AsJson = False,
) -> None:
    """Create a channel: one more reader that gets every message. Once more is fine."""
    ps.queue(queue).channel(channel, start=_start(start))
    print_done(f"created channel {channel} of {queue}", {"queue": queue, "channel": channel, "created": True}, as_json)


def _start(text: str) -> str | float:
    if text in ("head", "tail"):
        return text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither head, tail nor a time", param_hint="--start") from None


@channels.command()
@on_store()
def pause(ps: Penstock, queue: Name, channel: ChannelName, as_json: AsJson = False) -> None:
    """Hand out nothing of a channel until it goes on."""
    existing(ps, queue, channel).pause()
    print_done(f"paused {channel} of {queue}", {"queue": queue, "channel": channel, "paused": True}, as_json)


@channels.command()
@on_store()
def unpause(ps: Penstock, queue: Name, channel: ChannelName, as_json: AsJson = False) -> None:
    """Hand out again."""
    existing(ps, queue, channel).unpause()
    print_done(f"unpaused {channel} of {queue}", {"queue": queue, "channel": channel, "paused": False}, as_json)


@channels.command("purge")
@on_store()
def purge_channel(ps: Penstock, queue: Name, channel: ChannelName, as_json: AsJson = False) -> None:
    """Drop all that waits in one channel; the others keep theirs."""
    count = existing(ps, queue, channel).purge()
    print_done(f"{count} messages purged", {"queue": queue, "channel": channel, "purged": count}, as_json)


@channels.command("delete")
@on_store()
def delete_channel(ps: Penstock, queue: Name, channel: ChannelName, as_json: AsJson = False) -> None:
    """Delete a channel, and what was kept for it alone."""
    existing(ps, queue, channel).delete()
    print_done(f"deleted channel {channel} of {queue}", {"queue": queue, "channel": channel, "deleted": True}, as_json)
