"""The command line. Commands work on a data directory; those that only look may run beside the process that has it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

import penstock
from penstock.serve import serve

app = typer.Typer(help="A durable message queue in one directory.", no_args_is_help=True, add_completion=False)
queues = typer.Typer(help="Create, describe, empty and delete queues.", no_args_is_help=True)
app.add_typer(queues, name="queue")
app.command()(serve)

Data = Annotated[Path, typer.Option("--data", "-d", help="The data directory.", envvar="PENSTOCK_DATA")]
Name = Annotated[str, typer.Argument(help="The queue's name.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


def main() -> None:
    """Run the command line; what goes wrong is one line on the error stream, and exit status 1."""
    try:
        app()
    except penstock.PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        raise SystemExit(1) from None


@app.command()
def demo() -> None:
    """Send, receive, fail, retry, dead-letter and redrive on a temporary directory, and show what happened."""
    from penstock import demo as demonstration

    demonstration.run(Console())


# -- messages --


@app.command()
def send(
    queue: Name,
    bodies: Annotated[
        list[str] | None, typer.Argument(help="Bodies. None: each line of standard input is one.")
    ] = None,
    data: Data = Path("data"),
    attribute: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; may be given several times.")] = None,
    group: Annotated[str | None, typer.Option(help="The group the messages belong to.")] = None,
    dedup_id: Annotated[str | None, typer.Option(help="Known for five minutes: the same again is not added.")] = None,
    priority: Annotated[int, typer.Option(min=0, max=9, help="The highest goes first.")] = 0,
    delay: Annotated[float | None, typer.Option(help="Seconds to keep the messages back.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send messages, all of them or none."""
    texts = bodies or [line.rstrip("\n") for line in sys.stdin]
    attributes = _attributes(attribute or [])
    with _opened(data) as ps:
        sent = ps.queue(queue).send_many(
            texts,
            attributes=[attributes] * len(texts) if attributes else None,
            groups=[group] * len(texts) if group else None,
            dedup_ids=[dedup_id] * len(texts) if dedup_id else None,
            priority=priority,
            delay=delay,
        )
    rows = [{"id": one.id, "sequence": one.sequence, "duplicate": one.duplicate} for one in sent]
    _print(rows, as_json, f"Sent to {queue}")


@app.command()
def receive(
    queue: Name,
    data: Data = Path("data"),
    max: Annotated[int, typer.Option("--max", "-n", min=1, help="How many messages at most.")] = 1,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the first one.")] = 0.0,
    lease: Annotated[float | None, typer.Option(help="Seconds for which the messages are yours.")] = None,
    channel: Annotated[str, typer.Option(help="The channel to read.")] = "main",
    ack: Annotated[bool, typer.Option(help="Acknowledge what is printed. Otherwise it stays leased.")] = True,
    as_json: AsJson = False,
) -> None:
    """Receive messages and print them."""
    with _opened(data) as ps:
        source = ps.queue(queue) if channel == "main" else ps.queue(queue).channel(channel)
        messages = source.receive(max, wait=wait, lease=lease)
        rows = [
            _described(message) | {"attempts": message.attempts} | ({} if ack else {"receipt": message.receipt})
            for message in messages
        ]
        _print(rows, as_json, f"Received from {queue}")
        sys.stdout.flush()
        for message in messages if ack else ():
            message.ack()


@app.command()
def ack(
    queue: Name,
    receipts: Annotated[list[str], typer.Argument(help="Receipts, as `receive --no-ack` prints them.")],
    data: Data = Path("data"),
    channel: Annotated[str, typer.Option(help="The channel that the messages came through.")] = "main",
) -> None:
    """Acknowledge messages that were received with --no-ack."""
    with _opened(data) as ps:
        source = ps.queue(queue) if channel == "main" else ps.queue(queue).channel(channel)
        count = source.ack(receipts)
    print(f"{count} acknowledged")


@app.command()
def peek(
    queue: Name,
    data: Data = Path("data"),
    max: Annotated[int, typer.Option("--max", "-n", min=1, help="How many messages at most.")] = 10,
    contains: Annotated[str | None, typer.Option(help="Only messages whose body holds this text.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show messages without taking them. Works while another process has the directory open."""
    with _opened(data, read_only=True) as ps:
        needle = None if contains is None else contains.encode()
        seen = ps.queue(queue).browse(limit=max, contains=needle)
        rows = [
            _described(message)
            | {"state": message.state.name, "attempts": message.attempts}
            | {"why": "; ".join(failure.error for failure in message.history)}
            for message in seen
        ]
    _print(rows, as_json, f"Waiting in {queue}")


@app.command()
def redrive(
    queue: Annotated[str, typer.Argument(help="The dead-letter queue.", show_default=False)],
    data: Data = Path("data"),
    to: Annotated[str | None, typer.Option(help="Another target than where the messages came from.")] = None,
    contains: Annotated[str | None, typer.Option(help="Only messages whose body holds this text.")] = None,
    error: Annotated[str | None, typer.Option(help="Only messages one of whose errors holds this text.")] = None,
    rate: Annotated[int | None, typer.Option(min=1, help="Messages a second at most.")] = None,
) -> None:
    """Bring dead letters back, and wait until that is done."""
    with _opened(data) as ps:
        task = ps.redrive(queue, to=to, contains=contains, error=error, rate=rate).wait()
    print(f"{task.status}: {task.moved} moved, {task.skipped} left where they are")
    if task.status == "failed":
        raise typer.Exit(1)


# -- queues --


@queues.command("list")
def list_queues(
    data: Data = Path("data"),
    prefix: Annotated[str, typer.Option(help="Only queues whose names start so.")] = "",
    as_json: AsJson = False,
) -> None:
    """List queues and what is in them. Works while another process has the directory open."""
    with _opened(data, read_only=True) as ps:
        rows = [_counted(ps.queue(name).stats()) for name in ps.queues(prefix)]
    _print(rows, as_json, "Queues")


@queues.command()
def create(
    queue: Name,
    data: Data = Path("data"),
    fifo: Annotated[bool, typer.Option("--fifo", help="Keep the order within groups.")] = False,
    lease: Annotated[float | None, typer.Option(help="Seconds that a receiver has.")] = None,
    retention: Annotated[float | None, typer.Option(help="Seconds that messages are kept.")] = None,
    max_receives: Annotated[int | None, typer.Option(help="Failed deliveries before a message is dead.")] = None,
    dead_letter: Annotated[str | None, typer.Option(help="Where dead messages go.")] = None,
) -> None:
    """Create a queue."""
    settings: dict[str, Any] = {"lease": lease, "retention": retention, "max_receives": max_receives}
    settings |= {"dead_letter": dead_letter, "kind": "fifo" if fifo else "standard"}
    with _opened(data) as ps:
        ps.create_queue(queue, **{name: value for name, value in settings.items() if value is not None})
    print(f"created {queue}")


@queues.command()
def describe(queue: Name, data: Data = Path("data")) -> None:
    """Print a queue's settings and exact counts as JSON. Works while another process has the directory open."""
    with _opened(data, read_only=True) as ps:
        info, stats = ps.queue(queue).info(), ps.queue(queue).stats()
    settings = msgspec.structs.asdict(info.config) | {"backoff": msgspec.structs.asdict(info.config.backoff)}
    described = msgspec.to_builtins(info) | {"config": settings, "stats": msgspec.to_builtins(stats)}
    print(msgspec.json.format(msgspec.json.encode(described), indent=2).decode())


@queues.command()
def purge(queue: Name, data: Data = Path("data")) -> None:
    """Delete every message of a queue, in flight ones included."""
    with _opened(data) as ps:
        print(f"{ps.queue(queue).purge()} messages purged")


@queues.command()
def delete(queue: Name, data: Data = Path("data")) -> None:
    """Delete a queue with its messages, channels and consumers."""
    with _opened(data) as ps:
        ps.queue(queue).delete()
    print(f"deleted {queue}")


# -- shared --


@contextmanager
def _opened(data: Path, *, read_only: bool = False) -> Iterator[penstock.Penstock]:
    with penstock.open(data, read_only=read_only) as ps:
        yield ps


def _attributes(given: Iterable[str]) -> dict[str, str]:
    attributes = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--attribute")
        attributes[name] = value
    return attributes


def _described(message: penstock.Message | penstock.PeekedMessage) -> dict[str, Any]:
    described: dict[str, Any] = {"id": message.id, "sequence": message.sequence, "body": _text(message.body)}
    if message.attributes:
        described["attributes"] = message.attributes
    if message.group is not None:
        described["group"] = message.group
    return described


def _text(body: bytes) -> str:
    return body.decode(errors="backslashreplace")


def _counted(stats: penstock.Stats) -> dict[str, Any]:
    channels = stats.channels.values()
    return {
        "queue": stats.name,
        "ready": sum(channel.ready for channel in channels),
        "leased": sum(channel.leased for channel in channels),
        "delayed": sum(channel.delayed for channel in channels),
        "bytes": stats.bytes,
        "channels": ", ".join(stats.channels),
    }


def _print(rows: list[dict[str, Any]], as_json: bool, title: str) -> None:
    if as_json:
        for row in rows:
            print(msgspec.json.encode(row).decode())
        return
    table = Table(title=title, title_justify="left")
    columns = dict.fromkeys(column for row in rows for column in row)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in columns))
    Console().print(table if rows else f"{title}: nothing")


if __name__ == "__main__":
    main()
