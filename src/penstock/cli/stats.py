"""`penstock stats` and `penstock top`: how much there is, and how fast it moves."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import click

from penstock.cli.command import Argument, Option
from penstock.cli.exits import Exit
from penstock.cli.output import AsJson, print_json, print_rows
from penstock.cli.store import on_store
from penstock.tables import table

if TYPE_CHECKING:
    from penstock import ChannelStats, ConnectionLost, Penstock, Stats

ANSWER_SECONDS = 2.0
"""A server that has not answered a look for so long is shown as gone."""
GONE_SECONDS = 60.0
"""Without a terminal, `top` ends when the server was gone for so long."""

IN_QUARANTINE = "(quarantine)"
"""What tables say of a damaged queue, instead of counts that nobody knows."""

Names = Annotated[list[str] | None, Argument(help="Queues. Default: all of them.")]
Prefix = Annotated[str, Option(help="Only queues whose names start with this.")]


def queue_row(stats: Stats) -> dict[str, Any]:
    """A queue's counts over all its channels."""
    channels = stats.channels.values()
    return {
        "queue": stats.name,
        "ready": sum(channel.ready for channel in channels),
        "leased": sum(channel.leased for channel in channels),
        "delayed": sum(channel.delayed for channel in channels),
        "messages": stats.messages,
        "bytes": stats.bytes,
        "quarantined": stats.quarantined,
        "channels": list(stats.channels),
        "damaged": False,
    }


def channel_row(queue: str, stats: ChannelStats) -> dict[str, Any]:
    """A channel's counts."""
    return {
        "queue": queue,
        "channel": stats.name,
        "ready": stats.ready,
        "leased": stats.leased,
        "delayed": stats.delayed,
        "acked": stats.acked,
        "failed": stats.failed,
        "dead": stats.dead,
        "receivers": stats.waiting_receivers,
        "paused": stats.paused,
        "oldest_at": None if stats.oldest_ms is None else stats.oldest_ms / 1_000,
    }


@on_store(read_only=True)
def stats(ps: Penstock, queues: Names = None, prefix: Prefix = "", as_json: AsJson = False) -> None:
    """Show exact counts of queues: a line for each channel. Works on a directory while another process has it open.

    ready, leased and delayed are the numbers of messages now. acked, failed and dead count since the queue was created.
    """
    damaged: list[str] = []
    rows = [
        channel_row(each.name, channel)
        for each in counts(ps, queues, prefix, damaged)
        for channel in each.channels.values()
    ]
    rows += [{"queue": name, "damaged": True} for name in damaged]
    print_rows(rows if as_json else map(with_age, rows), as_json, "Channels")


def with_age(row: dict[str, Any]) -> dict[str, Any]:
    """A row for people: how old the oldest message is, instead of when it was sent."""
    if row.get("damaged"):
        return {"queue": row["queue"], "channel": IN_QUARANTINE}
    shown = {name: value for name, value in row.items() if name != "oldest_at"}
    at = row["oldest_at"]
    return shown | {"oldest": "" if at is None else age(time.time() - at)}


def age(seconds: float) -> str:
    """A length of time, roughly.

    >>> age(3.2), age(130), age(7_300), age(200_000)
    ('3s', '2m', '2h', '2d')
    """
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def counts(ps: Penstock, queues: list[str] | None, prefix: str, damaged: list[str] | None = None) -> Iterator[Stats]:
    """The counts of these queues, or of all. One that goes meanwhile is left out; one that was named must be there.

    Queues in quarantine have none: they are told, and noted in `damaged`.
    """
    import penstock

    if not queues:
        told = ps.stats(prefix)
        yield from told
        if damaged is None:
            return
        known = {each.name for each in told}
        queues, all_named = [name for name in ps.queues(prefix) if name not in known], False
    else:
        all_named = True
    for name in queues:
        try:
            yield ps.queue(name).stats()
        except penstock.QueueNotFound:
            if all_named:
                raise
        except penstock.QueueDamaged as error:
            if all_named:
                raise
            if damaged is not None:
                damaged.append(name)
            print(f"penstock: {error}", file=sys.stderr)


# -- top ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What was there at one moment; or why nobody knows."""

    at: float
    queues: dict[str, Stats]
    lost: ConnectionLost | None = None


Pause = Callable[[float], bool]
"""Waits so many seconds. False ends it all."""


@on_store(read_only=True, timeout=ANSWER_SECONDS)
def top(
    ps: Penstock,
    queues: Names = None,
    prefix: Prefix = "",
    interval: Annotated[float, Option("--interval", "-i", min=0.05, help="Seconds between two measurements.")] = 1.0,
    once: Annotated[bool, Option("--once", help="Measure one interval, print one table, and end.")] = False,
    looks: Annotated[int | None, Option(min=1, help="End after this many tables.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Watch queues: how many messages wait, how many are in flight, and how many come and go a second.

    The busiest channels come first. On a terminal the table is redrawn, and `q` or Ctrl-C ends it. Elsewhere one
    table follows the other.
    """
    count = 1 if once else looks
    if not as_json and sys.stdout.isatty() and not once:
        with pauses_until_q() as pause:
            _live(rated(looks_at(ps, queues, prefix, interval, pause), count))
        return
    trends: Trends = {}
    for rows, lost in rated(looks_at(ps, queues, prefix, interval, _sleep), count):
        if lost is not None:
            if time.monotonic() - lost.at > GONE_SECONDS:
                raise lost.error
            continue
        if as_json:
            print_json(rows)
        else:
            print_rows([*with_trends(rows, trends)], False, "Queues")
        if once and not rows:
            raise click.exceptions.Exit(Exit.NOTHING)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


@contextmanager
def pauses_until_q() -> Iterator[Pause]:
    """Pauses that end when `q` is typed. What is typed is not shown."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _sleep
        return
    import select
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pause(seconds: float) -> bool:
        ends_at = time.monotonic() + seconds
        while select.select([terminal], [], [], max(0.0, ends_at - time.monotonic()))[0]:
            if os.read(terminal, 1) in (b"q", b"Q", b""):
                return False
        return True

    tty.setcbreak(terminal)
    try:
        yield pause
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def looks_at(ps: Penstock, queues: list[str] | None, prefix: str, interval: float, pause: Pause) -> Iterator[Look]:
    """One look after the other, until a pause says that it is enough. A server that is away may come back."""
    from penstock import ConnectionLost

    next_at = time.monotonic()
    while True:
        try:
            look = Look(time.monotonic(), {each.name: each for each in counts(ps, queues, prefix)})
        except ConnectionLost as error:
            look = Look(time.monotonic(), {}, error)
        yield look
        next_at = max(next_at + interval, time.monotonic())
        if not pause(max(0.0, next_at - time.monotonic())):
            return


@dataclass(frozen=True)
class Lost:
    """Since when a server does not answer, and what the last try met."""

    at: float
    error: ConnectionLost


def rated(looks: Iterator[Look], count: int | None) -> Iterator[tuple[list[dict[str, Any]], Lost | None]]:
    """Between each two looks: the table. While a server is away: the last table, and since when it is away."""
    before: Look | None = None
    rows: list[dict[str, Any]] = []
    lost: Lost | None = None
    for now in looks:
        if now.lost is not None:
            lost = Lost(now.at if lost is None else lost.at, now.lost)
            yield rows, lost
            continue
        lost = None
        if before is not None:
            rows = rows_between(before, now)
            yield rows, None
            if count is not None and (count := count - 1) == 0:
                return
        before = now


def rows_between(before: Look, now: Look) -> list[dict[str, Any]]:
    """A row for each channel, the busiest first. A queue that was not there before has no rates yet."""
    seconds = max(now.at - before.at, 1e-6)
    rows = [row for name, each in now.queues.items() for row in _rows(before.queues.get(name), each, seconds)]
    return sorted(rows, key=lambda row: (-(row["sent_per_s"] + row["acked_per_s"]), -row["ready"], row["queue"]))


def _rows(before: Stats | None, now: Stats, seconds: float) -> Iterable[dict[str, Any]]:
    sent = _rate(None if before is None else before.sent, now.sent, seconds)
    for name, channel in now.channels.items():
        earlier = None if before is None else before.channels.get(name)
        yield {
            "queue": now.name,
            "channel": name,
            "ready": channel.ready,
            "leased": channel.leased,
            "delayed": channel.delayed,
            "sent_per_s": sent,
            "acked_per_s": _rate(None if earlier is None else earlier.acked, channel.acked, seconds),
            "failed_per_s": _rate(None if earlier is None else earlier.failed, channel.failed, seconds),
            "dead": channel.dead,
            "receivers": channel.waiting_receivers,
        }


def _rate(before: int | None, now: int, seconds: float) -> float:
    """How many a second; 0 where a counter began anew."""
    return 0.0 if before is None or now < before else round((now - before) / seconds, 1)


Trends = dict[tuple[str, str], deque[float]]
"""Messages sent and acknowledged a second in a channel, look by look."""
_BARS = "▁▂▃▄▅▆▇█"
_TREND_LOOKS = 20


def sparkline(values: Iterable[float]) -> str:
    """A small chart, the last value last; nothing if all are zero.

    >>> sparkline([0, 1, 2, 4]), sparkline([0, 0])
    ('▁▂▄█', '')
    """
    given = list(values)
    highest = max(given, default=0.0)
    if highest <= 0:
        return ""
    return "".join(_BARS[min(len(_BARS) - 1, int(each / highest * (len(_BARS) - 1)))] for each in given)


def with_trends(rows: list[dict[str, Any]], trends: Trends) -> Iterator[dict[str, Any]]:
    """Rows for people: with how the rate has been at the last looks."""
    for row in rows:
        trend = trends.setdefault((row["queue"], row["channel"]), deque(maxlen=_TREND_LOOKS))
        trend.append(row["sent_per_s"] + row["acked_per_s"])
        yield row | {"trend": sparkline(trend)}
    there = {(row["queue"], row["channel"]) for row in rows}
    for gone in [key for key in trends if key not in there]:
        del trends[gone]


def _live(tables: Iterable[tuple[list[dict[str, Any]], Lost | None]]) -> None:
    """Each table in the place of the last, on a screen of its own; the screen before it comes back at the end."""
    print("\x1b[?1049h\x1b[?25l", end="")
    try:
        trends: Trends = {}
        for plain, lost in tables:
            size = shutil.get_terminal_size()
            rows = [*with_trends(plain, trends)] if lost is None else plain
            shown = rows[: max(1, size.lines - 6)]
            more = f" ({len(rows) - len(shown):,} more)" if len(shown) < len(rows) else ""
            title = f"{time.strftime('%H:%M:%S')}  q ends{more}"
            if lost is not None:
                seconds = age(time.monotonic() - lost.at)
                title = f"{title}  The server is gone for {seconds}, trying again: {lost.error}"
            lines = table(shown, title[: size.columns]).splitlines()[: size.lines - 1]
            print("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines), end="\x1b[J", flush=True)
    finally:
        print("\x1b[?25h\x1b[?1049l", end="", flush=True)
