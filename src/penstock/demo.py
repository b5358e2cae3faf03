"""A demonstration on a temporary directory: messages are sent, received, fail, are retried, die, and come back."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import penstock
from penstock.tables import table

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
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
        started = time.perf_counter()
        with penstock.open(directory) as ps:
            print(table([_row(each) for each in happenings(ps)], "What happened"))
            print(table([_counts(ps, name) for name in ps.queues()], "What is left"))
        seconds = time.perf_counter() - started
        print(f"Every send and every ack above was on disk before it was answered. {seconds:.1f} s in all.")


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
    yield _happening("ack", message, "DONE", "the with block ended without an error")


def _forget(orders: penstock.Queue) -> Iterator[Happening]:
    forgotten = _next(orders, lease=_SHORT_LEASE_SECONDS)
    yield _happening("receive", forgotten, "LEASED", "never acknowledged, so the lease ends")
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
        yield _happening("redrive", message, "READY", "same id, attempts count from 0 again")
        yield _happening("receive", message, "LEASED", f"{len(message.history)} failures remembered")
    yield _happening("ack", message, "DONE", "somebody has glued it")


def _next(orders: penstock.Queue, lease: float | None = None) -> penstock.Message:
    message = orders.receive(wait=_WAIT_SECONDS, lease=lease)
    assert message is not None
    return message


def _happening(what: str, message: penstock.Message, state: str, reason: str = "") -> Happening:
    return Happening(what, message.text, message.id, message.queue, message.attempts, state, reason)


def _row(line: Happening) -> dict[str, object]:
    return {
        "what": line.what,
        "message": line.body,
        "id": f"{line.id[:4]}…{line.id[-4:]}",
        "queue": line.queue,
        "try": line.attempts,
        "state": line.state,
        "why": line.reason,
    }


def _counts(ps: penstock.Penstock, queue: str) -> dict[str, object]:
    main = ps.queue(queue).stats().channels["main"]
    names = ("ready", "leased", "delayed", "acked", "failed", "dead")
    return {"queue": queue} | {name: getattr(main, name) for name in names}
