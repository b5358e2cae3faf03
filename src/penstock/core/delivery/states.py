"""The life of a message within one channel, as one table.

`docs/delivery.md` draws this table. Whoever changes a state asks it: `after[event][state]` for one message,
`after[event].check(states)` for a run of them. What the table does not have raises `IllegalTransition`: it is a bug,
and the step in which it happens is not committed.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class State(IntEnum):
    """The state of a message in one channel.

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
    HOLD_BACK = 9
    GIVE_BACK = 10
    TAKE_BACK = 11


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
        Event.HOLD_BACK: State.DELAYED,
        Event.RECALL: State.LEASED,
        Event.ACK: State.DONE,
        Event.MOVE: State.DONE,
        Event.DROP: State.DONE,
    },
    State.LEASED: {
        Event.ACK: State.DONE,
        Event.RETRY: State.READY,
        Event.GIVE_BACK: State.READY,
        Event.POSTPONE: State.DELAYED,
        Event.EXTEND: State.LEASED,
        Event.RECALL: State.LEASED,
        Event.MOVE: State.DONE,
        Event.DROP: State.DONE,
    },
    State.DONE: {Event.TAKE_BACK: State.READY},
}
"""Which event takes which state where. An event missing from a state's row cannot happen to it."""

EXPLAINED: dict[Event, str] = {
    Event.LEASE: "a session receives it, and holds it until a deadline; `attempts` goes up by one",
    Event.ACK: "the work is done (possibly late: the lease has run out, but nobody else has received the message)",
    Event.RETRY: "the delivery failed (release, expiry, end of session), and the message is ready at once",
    Event.POSTPONE: "the delivery failed, and the message waits for its backoff",
    Event.EXTEND: "the lease gets a later deadline, up to twelve hours after the receive",
    Event.COME_DUE: "the due time has come",
    Event.MOVE: "it moves to the retry lane, or to the dead-letter queue",
    Event.DROP: "a purge, retention, or the deletion of the channel",
    Event.HOLD_BACK: "it enters a lane before it is due: sent with a delay, or moved there with a backoff",
    Event.GIVE_BACK: "the receiver left before it got the message; the delivery does not count",
    Event.TAKE_BACK: "salvage: it had moved to the retry lane, and is not readable there",
    Event.RECALL: "a crash forgot a receive, and its receiver settles the message now; it is leased on that attempt",
}


def _allowed() -> NDArray[np.bool_]:
    table = np.zeros((len(Event), len(State)), dtype=np.bool_)
    for state, row in TRANSITIONS.items():
        for event in row:
            table[event, state] = True
    return table


allowed: NDArray[np.bool_] = _allowed()
"""`allowed[event][states]` says for a whole array of states whether the event may happen to each."""


class IllegalTransition(AssertionError):
    """A bug: something happened to a message that cannot happen to it."""


class After(dict[int, int]):
    """Where one event takes each state.

    >>> after[Event.LEASE][State.READY] == State.LEASED
    True
    >>> after[Event.LEASE].check(np.array([1, 1, 0], dtype=np.uint8))
    Traceback (most recent call last):
    penstock.core.delivery.states.IllegalTransition: LEASE cannot happen to a message that is DONE
    """

    def __init__(self, event: Event) -> None:
        super().__init__({int(state): int(row[event]) for state, row in TRANSITIONS.items() if event in row})
        self.event = event
        self._only = next(iter(self)) if len(self) == 1 else -1
        self._is_any_but_done = State.DONE not in self and len(self) == len(State) - 1

    def __missing__(self, state: int) -> int:
        raise IllegalTransition(f"{self.event.name} cannot happen to a message that is {State(state).name}")

    def check(self, states: NDArray[np.uint8]) -> None:
        """`IllegalTransition` unless the event can happen to all of these. Most events have one state that they can
        happen to, or all but `DONE`, which is 0: that is quicker asked than looked up for each.
        """
        if self._only >= 0:
            possible = states == self._only
        elif self._is_any_but_done:
            possible = states != State.DONE
        else:
            possible = allowed[self.event][states]
        if not possible.all():
            self[int(states[int(possible.argmin())])]


after: dict[Event, After] = {event: After(event) for event in Event}
"""What each event does."""


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
