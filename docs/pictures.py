"""The pictures of docs/concepts: `python -m docs.draw` writes them. What the code knows is asked of the code."""

from __future__ import annotations

from collections.abc import Callable

from docs.svg import AMBER, BLUE, FAINT, GREEN, GREY, RED, Picture
from penstock.core.broker import Broker
from penstock.core.commands import CreateQueue, Delivery, Receive, Send
from penstock.core.delivery.states import TRANSITIONS, Event, State
from penstock.core.queues.config import QueueConfig
from penstock.store.memory import MemoryStore

DEFAULTS = QueueConfig()
_RARE = {Event.RECALL, Event.TAKE_BACK, Event.DROP}
"""Crashes, salvage and purges: delivery.md has them, the picture does without."""


def queue() -> str:
    """Senders, a queue, receivers, and where failures end."""
    picture = Picture(720, 210, "A queue: senders, messages, receivers, and the dead-letter queue")
    for number, name in enumerate(("boto3", "REST", "Python")):
        picture.box(20, 20 + 45 * number, 90, 34, name, colour=FAINT)
        picture.arrow(110, 37 + 45 * number, 190, 82)
    picture.words(150, 15, "send", colour=FAINT)
    picture.box(190, 55, 260, 55)
    picture.words(320, 40, "queue: orders", bold=True)
    for number in range(6):
        picture.box(200 + 41 * number, 66, 34, 33, str(6 - number), full=True)
    for number in range(2):
        picture.box(590, 30 + 70 * number, 110, 34, f"worker {number + 1}", colour=FAINT)
        picture.arrow(450, 82, 590, 47 + 70 * number)
    picture.words(520, 30, "receive", colour=FAINT)
    picture.words(645, 85, "ack: gone", colour=GREEN)
    picture.arrow(320, 110, 320, 160, dashed=True)
    picture.words(330, 134, f"failed {DEFAULTS.max_receives} times", colour=RED, anchor="start")
    picture.box(240, 162, 160, 34, "orders.dead", colour=RED)
    return picture.svg()


def channel() -> str:
    """One queue, two channels, each with its own progress."""
    picture = Picture(720, 230, "Channels: every channel gets every message, one receiver each")
    picture.box(20, 95, 90, 34, "sender", colour=FAINT)
    picture.arrow(110, 112, 170, 112)
    picture.words(240, 72, "queue: signups", bold=True)
    picture.box(170, 88, 140, 48)
    for number in range(3):
        picture.box(180 + 42 * number, 96, 34, 32, "cba"[number], full=True)
    for row, (name, done) in enumerate((("mail", 2), ("billing", 1))):
        y = 30 + 110 * row
        picture.arrow(310, 112, 380, y + 30)
        picture.words(455, y - 8, f"channel: {name}", bold=True)
        for number in range(3):
            colour = GREY if number >= 3 - done else BLUE
            picture.box(390 + 42 * number, y + 13, 34, 32, "cba"[number], colour=colour, full=True)
        for worker in range(2):
            picture.box(600, y - 4 + 40 * worker, 100, 30, f"{name} {worker + 1}", colour=FAINT)
            picture.arrow(520, y + 30, 600, y + 11 + 40 * worker)
    picture.words(455, 218, "grey: acknowledged in this channel", size=12, colour=FAINT)
    return picture.svg()


def lease() -> str:
    """What can end a lease."""
    seconds = DEFAULTS.lease_ms // 1000
    picture = Picture(720, 230, "A lease: acknowledged in time, extended, or run out")
    scale = 260 / seconds
    rows = (
        ("acknowledged", 12, GREEN, "ack: done"),
        ("extended", 50, GREEN, "extend … ack: done"),
        ("released", 8, AMBER, "release: ready again"),
        ("run out", seconds, RED, "lease over: ready again"),
    )
    for number, (name, length, colour, end) in enumerate(rows):
        y = 45 + 42 * number
        picture.words(118, y, name, anchor="end")
        picture.bar(130, y - 10, length * scale, 20, colour=colour)
        if length > seconds:
            picture.line(130 + seconds * scale, y - 10, 130 + seconds * scale, y + 10, colour="#ffffff")
        picture.words(138 + length * scale, y, end, anchor="start", size=13)
    for at in (0, seconds):
        picture.line(130 + at * scale, 25, 130 + at * scale, 205)
        picture.words(130 + at * scale, 217, f"{at} s" if at else "receive", size=12, colour=FAINT)
    picture.words(130 + seconds * scale, 14, "lease (the queue's default)", size=12, colour=FAINT)
    return picture.svg()


def group() -> str:
    """A FIFO queue after one receive: asked of a broker."""
    names = ["ann", "ann", "bob", "ann", "cleo", "bob"]
    broker = Broker.open(MemoryStore(), 0, bytes(64))
    broker.handle(CreateQueue(name="orders.fifo", config=QueueConfig(kind="fifo", content_dedup=True)), 0)
    bodies = [str(number).encode() for number in range(len(names))]
    broker.handle(Send(queue="orders.fifo", bodies=bodies, groups=list(names)), 0)
    leased = _sequences(broker.handle(Receive(queue="orders.fifo", limit=1), 0))
    following = _sequences(broker.handle(Receive(queue="orders.fifo", limit=len(names)), 0))
    picture = Picture(720, 190, "A FIFO queue: a group with a leased message is blocked, others flow")
    picture.words(20, 22, "queue: orders.fifo, the oldest message first", anchor="start", bold=True)
    for number, name in enumerate(names):
        if number in leased:
            colour, state = AMBER, "leased"
        elif number in following:
            colour, state = GREEN, "free"
        else:
            colour, state = GREY, "blocked"
        picture.box(20 + 115 * number, 50, 100, 46, name, colour=colour, full=True)
        picture.words(70 + 115 * number, 114, state, colour=colour if colour != GREY else FAINT)
    blocked = {name for number, name in enumerate(names) if number in leased}
    others = sorted(set(names) - blocked)
    picture.words(
        20, 152, f"{' and '.join(sorted(blocked))} waits until the leased message is settled.", anchor="start", size=13
    )
    picture.words(20, 172, f"{' and '.join(others)} can be received meanwhile, each in order.", anchor="start", size=13)
    return picture.svg()


def _sequences(reply: object) -> set[int]:
    assert isinstance(reply, Delivery)
    return {number for run in reply.runs for span in run.spans() for number in range(span.first, span.last + 1)}


def redelivery() -> str:
    """When a message that always fails is delivered, with the default backoff: asked of the configuration."""
    backoff, tries = DEFAULTS.backoff, DEFAULTS.max_receives
    waits = [0, *(backoff.delay_ms(failure, sequence=1) for failure in range(1, tries - 1))]
    spans = [0, *(min(backoff.base_ms << (failure - 1), backoff.ceiling_ms) for failure in range(1, tries - 1))]
    picture = Picture(720, 60 + 26 * (tries + 1), "The retry ladder: the waits between deliveries grow")
    picture.words(
        20, 20, f"{tries} deliveries; each wait is anything up to its span (full jitter)", anchor="start", bold=True
    )
    picture.words(700, 40, "wait before, of at most", size=12, colour=FAINT, anchor="end")
    at, longest = 0, sum(waits)
    for number in range(tries):
        y = 58 + 26 * number
        at += waits[number - 1] if number else 0
        x = 130 + 330 * at / longest
        picture.words(20, y, f"delivery {number + 1}", anchor="start", size=13)
        picture.line(130, y, x, y, colour=GREY)
        picture.bar(x, y - 8, 10, 16, colour=AMBER)
        picture.words(x + 18, y, f"{at / 1000:.1f} s", anchor="start", size=12)
        if number:
            wait, span = waits[number - 1], spans[number - 1]
            text = "at once" if not span else f"{wait / 1000:.1f} s of {span / 1000:g} s"
            picture.words(700, y, text, size=12, colour=FAINT, anchor="end")
    picture.words(20, 58 + 26 * tries, "then", anchor="start", size=13)
    picture.box(130, 48 + 26 * tries, 170, 22, "dead-letter queue", colour=RED)
    return picture.svg()


def unit_of_work() -> str:
    """Take and put in one commit."""
    picture = Picture(720, 190, "A unit of work: takes are acknowledged and puts are sent in one commit")
    for number in range(2):
        picture.box(20, 40 + 60 * number, 130, 40, ("orders", "stock")[number])
        picture.arrow(150, 60 + 60 * number, 275, 85)
    picture.words(205, 40, "take", colour=FAINT)
    picture.box(275, 60, 150, 50, "your work", colour=FAINT)
    for number in range(2):
        picture.box(560, 40 + 60 * number, 140, 40, ("bills", "kitchen")[number])
        picture.arrow(425, 85, 560, 60 + 60 * number)
    picture.words(500, 40, "put", colour=FAINT)
    picture.words(350, 148, "commit: takes are acknowledged and puts are sent, all at once", colour=GREEN)
    picture.words(350, 170, "rollback, or a crash: takes go back, puts never were", colour=RED)
    return picture.svg()


def states() -> str:
    """The transitions of every day, from the table in the code."""
    places = {State.DELAYED: (90, 95), State.READY: (330, 95), State.LEASED: (600, 95), State.DONE: (330, 245)}
    together: dict[tuple[State, State], list[str]] = {}
    for state, row in TRANSITIONS.items():
        for event, target in row.items():
            if event not in _RARE:
                together.setdefault((state, target), []).append(event.name.lower().replace("_", " "))
    picture = Picture(720, 285, "The states of a message in a channel")
    colours = {State.DELAYED: AMBER, State.READY: BLUE, State.LEASED: GREEN, State.DONE: FAINT}
    for (state, target), events in together.items():
        (x1, y1), (x2, y2) = places[state], places[target]
        text = ", ".join(events)
        if state == target:
            picture.words(x1 + 60, y1, text, size=12, anchor="start")
        elif {state, target} == {State.DELAYED, State.LEASED}:
            picture.arrow(x1, y1 - 19, x2, y2 - 19, bend=-90)
            picture.words((x1 + x2) / 2, y1 - 76, text, size=12)
        elif y1 == y2:
            side = 1 if x2 > x1 else -1
            y = y1 - 9 * side
            picture.arrow(x1 + 52 * side, y, x2 - 52 * side, y)
            picture.words((x1 + x2) / 2, y - 11 * side, text, size=12)
        else:
            shift = (x1 > x2) - (x1 < x2)
            picture.arrow(x1, y1 + 19, x2 + 40 * shift, y2 - 19)
            anchor = "end" if x1 < x2 else "start"
            picture.words((x1 + x2) / 2 + (20 * shift or 8), (y1 + y2) / 2 + 8, text, size=12, anchor=anchor)
    for state, (x, y) in places.items():
        picture.box(x - 52, y - 19, 104, 38, state.name, colour=colours[state], full=True)
    return picture.svg()


PICTURES: dict[str, Callable[[], str]] = {
    "concepts/queue.svg": queue,
    "concepts/channel.svg": channel,
    "concepts/lease.svg": lease,
    "concepts/group.svg": group,
    "concepts/ladder.svg": redelivery,
    "concepts/unit-of-work.svg": unit_of_work,
    "concepts/states.svg": states,
}
"""File -> what draws it."""
