"""The one table of transitions: the arrays and the docs follow it."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.delivery import states
from penstock.core.delivery.states import (
    EXPLAINED,
    TRANSITIONS,
    Event,
    IllegalTransition,
    State,
    after,
    allowed,
    transition_table,
)

DOCS = Path(__file__).parents[3] / "docs" / "delivery.md"
BEGIN, END = "<!-- transitions -->", "<!-- /transitions -->"


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_array_of_what_is_allowed_follows_the_table(state: State, event: Event) -> None:
    assert bool(allowed[event, state]) == (event in TRANSITIONS[state])
    assert allowed[event][np.array([state, state])].tolist() == [event in TRANSITIONS[state]] * 2


def test_what_is_done_stays_done_unless_salvage_takes_it_back() -> None:
    assert TRANSITIONS[State.DONE].keys() == {Event.TAKE_BACK}


def test_every_state_can_end_and_be_reached() -> None:
    for state in set(State) - {State.DONE}:
        assert State.DONE in TRANSITIONS[state].values()
    reached = {target for row in TRANSITIONS.values() for target in row.values()} | {State.READY, State.DELAYED}
    assert reached == set(State)


def test_every_event_happens_somewhere_and_is_explained() -> None:
    assert {event for row in TRANSITIONS.values() for event in row} == set(Event) == set(EXPLAINED)


def test_docs_draw_exactly_this_table() -> None:
    _, _, rest = DOCS.read_text().partition(BEGIN)
    drawn, _, _ = rest.partition(END)
    assert drawn.strip() == transition_table()


def test_states_are_changed_by_the_table_alone() -> None:
    """Columns ask it; whoever else writes a state, that of a whole entry, writes what it has looked up."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted(Path(states.__file__).parents[1].rglob("*.py"))
        if path.name not in ("columns.py", "window.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign | ast.AugAssign) and not isinstance(node.value, ast.Subscript)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for each in (target.elts if isinstance(target, ast.Tuple) else [target])
        for written in [each.value if isinstance(each, ast.Subscript) else each]
        if isinstance(written, ast.Attribute) and written.attr == "state"
    ]
    assert not found


@given(st.sampled_from(list(Event)), st.sampled_from(list(State)))
def test_what_the_table_does_not_have_raises(event: Event, state: State) -> None:
    if event in TRANSITIONS[state]:
        assert after[event][state] == TRANSITIONS[state][event]
    else:
        with pytest.raises(IllegalTransition, match=f"{event.name} cannot happen to a message that is {state.name}"):
            after[event][state]
