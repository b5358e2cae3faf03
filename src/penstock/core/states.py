"""The life of a message within one channel, as one table.

`docs/delivery.md` draws this table; `Columns` obeys it through `allowed`. There is no other place where a state changes
its meaning.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class State(IntEnum):
    """Where a message stands for one channel.

    >>> State.LEASED.name
    'LEASED'
    """

    DONE = 0
    READY = 1
    LEASED = 2
    DELAYED = 3


class Event(IntEnum):
    """What can happen to a message in a channel."""

    LEASE = 0
    ACK = 1
    RETRY = 2
    POSTPONE = 3
    EXTEND = 4
    COME_DUE = 5
    MOVE = 6
    DROP = 7
    RECALL = 8


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.DELAYED: {
        Event.COME_DUE: State.READY,
        Event.RECALL: State.LEASED,
        Event.ACK: State.DONE,
        Event.MOVE: State.DONE,
        Event.DROP: State.DONE,
    },
    State.READY: {
        Event.LEASE: State.LEASED,
        Event.RECALL: State.LEASED,
        Event.ACK: State.DONE,
        Event.MOVE: State.DONE,
        Event.DROP: State.DONE,
    },
    State.LEASED: {
        Event.ACK: State.DONE,
        Event.RETRY: State.READY,
        Event.POSTPONE: State.DELAYED,
        Event.EXTEND: State.LEASED,
        Event.RECALL: State.LEASED,
        Event.MOVE: State.DONE,
        Event.DROP: State.DONE,
    },
    State.DONE: {},
}
"""Which event takes which state where. An event missing from a state's row cannot happen to it."""

EXPLAINED: dict[Event, str] = {
    Event.LEASE: "handed to a session until a deadline; attempts goes up by one",
    Event.ACK: "the work is done (also late: the lease ran out, but nobody else got the message yet)",
    Event.RETRY: "a failed delivery (release, expiry, end of session), ready again at once",
    Event.POSTPONE: "a failed delivery that waits for its backoff",
    Event.EXTEND: "a heartbeat: a later deadline, up to twelve hours from the receive",
    Event.COME_DUE: "the due time has come",
    Event.MOVE: "goes on elsewhere: in the retry lane, or in the dead-letter queue",
    Event.DROP: "purge, retention, or the end of the channel",
    Event.RECALL: "who got it just before a crash, which forgot that, settles it: leased again, on that attempt",
}


def _allowed() -> NDArray[np.bool_]:
    table = np.zeros((len(Event), len(State)), dtype=np.bool_)
    for state, row in TRANSITIONS.items():
        for event in row:
            table[event, state] = True
    return table


allowed: NDArray[np.bool_] = _allowed()
"""`allowed[event][states]` says for a whole array of states whether the event may happen to each."""


def transition_table() -> str:
    """Draw the transitions as a Markdown table, for the docs.

    >>> print(transition_table().splitlines()[0])
    | state | event | becomes | when |
    """
    lines = ["| state | event | becomes | when |", "|---|---|---|---|"]
    for state, row in TRANSITIONS.items():
        for event, target in row.items():
            lines.append(f"| {state.name} | {event.name.lower()} | {target.name} | {EXPLAINED[event]} |")
    return "\n".join(lines)
