"""A demonstration on a temporary directory: messages are sent, received, fail, are retried, die, and come back."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

import penstock

_SHORT_LEASE_SECONDS = 0.15
_BACKOFF_MS = 50
_WAIT_SECONDS = 5.0


@dataclass(frozen=True)
class Happening:
    """One line of the demonstration."""

    what: str
    body: str
    id: str
    queue: str
    attempts: int
    state: str
    reason: str = ""


def demo() -> None:
    """Send, receive, fail, retry, dead-letter and redrive on a temporary directory, and show what happened."""
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
        started = time.perf_counter()
        with penstock.open(directory) as ps:
            table = _table(list(happenings(ps)))
            counts = _counts(ps)
        console.print(table)
        console.print(counts)
        seconds = time.perf_counter() - started
        console.print(f"Every send and every ack above was on disk before it was answered. {seconds:.1f} s in all.")


def happenings(ps: penstock.Penstock) -> Iterator[Happening]:
    """Everything that is shown, as it happens."""
    orders = ps.create_queue("orders", max_receives=3, backoff=penstock.Backoff("fixed", base_ms=_BACKOFF_MS))
    for body in ("tea", "coffee", "cake", "a broken cup"):
        sent = orders.send(body, attributes={"table": 7})
        yield Happening("send", body, sent.id, "orders", 0, "READY")
    yield from _succeed(orders)
    yield from _forget(orders)
    yield from _fail_once(orders)
    yield from _fail_until_dead(ps, orders)
    yield from _bring_back(ps, orders)


def _succeed(orders: penstock.Queue) -> Iterator[Happening]:
    with _next(orders) as message:
        yield _happening("receive", message, "LEASED")
    yield _happening("ack", message, "DONE", "the block ended well")


def _forget(orders: penstock.Queue) -> Iterator[Happening]:
    forgotten = _next(orders, lease=_SHORT_LEASE_SECONDS)
    yield _happening("receive", forgotten, "LEASED", "and nobody settles it")
    held = orders.receive(max=2)
    again = _next(orders)
    yield _happening("again", again, "LEASED", again.history[-1].error)
    again.ack()
    yield _happening("ack", again, "DONE")
    for message in held:
        message.release(error="not my table")
        yield _happening("release", message, "READY", "not my table")


def _fail_once(orders: penstock.Queue) -> Iterator[Happening]:
    with _next(orders) as message:
        yield _happening("receive", message, "LEASED", f"before: {message.history[-1].error}")
    yield _happening("ack", message, "DONE")


def _fail_until_dead(ps: penstock.Penstock, orders: penstock.Queue) -> Iterator[Happening]:
    for state, outcome in (("DELAYED", "backoff"), ("DEAD", "third time")):
        try:
            with _next(orders) as message:
                yield _happening("receive", message, "LEASED", f"before: {message.history[-1].error}")
                raise ValueError("it has no handle")
        except ValueError as error:
            yield _happening("fail", message, state, f"{error}; {outcome}")
    for dead in ps.queue("orders.dead").peek():
        reasons = "; ".join(f"{failure.attempt}: {failure.error}" for failure in dead.history)
        yield Happening("dead", dead.text, dead.id, "orders.dead", dead.attempts, dead.state.name, reasons)


def _bring_back(ps: penstock.Penstock, orders: penstock.Queue) -> Iterator[Happening]:
    ps.redrive("orders.dead", error="handle").wait(_WAIT_SECONDS)
    with _next(orders) as message:
        yield _happening("redrive", message, "READY", "same id, tries from the start")
        yield _happening("receive", message, "LEASED", f"{len(message.history)} failures remembered")
    yield _happening("ack", message, "DONE", "somebody has glued it")


def _next(orders: penstock.Queue, lease: float | None = None) -> penstock.Message:
    message = orders.receive(wait=_WAIT_SECONDS, lease=lease)
    assert message is not None
    return message


def _happening(what: str, message: penstock.Message, state: str, reason: str = "") -> Happening:
    return Happening(what, message.text, message.id, message.queue, message.attempts, state, reason)


def _table(lines: list[Happening]) -> Table:
    table = Table(title="What happened", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("", "message", "id", "queue", "try", "state"):
        table.add_column(column, justify="right" if column == "try" else "left", no_wrap=True)
    table.add_column("why", overflow="fold")
    for line in lines:
        style = {"DEAD": "red", "DELAYED": "yellow", "DONE": "green"}.get(line.state)
        table.add_row(
            line.what, line.body, _short(line.id), line.queue, str(line.attempts), line.state, line.reason, style=style
        )
    return table


def _short(identity: str) -> str:
    return f"{identity[:4]}…{identity[-4:]}"


def _counts(ps: penstock.Penstock) -> Table:
    table = Table(title="What is left", title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("queue", "ready", "leased", "delayed", "acked", "failed", "dead"):
        table.add_column(column, justify="left" if column == "queue" else "right")
    for name in ps.queues():
        main = ps.queue(name).stats().channels["main"]
        numbers = (main.ready, main.leased, main.delayed, main.acked, main.failed, main.dead)
        table.add_row(name, *map(str, numbers))
    return table
