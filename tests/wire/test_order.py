"""Calls keep their order while what they are for moves: the machine against a model that looks at every call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.wire.order import CallLine

PLACES = ("a", "b", "c")
places = st.sampled_from(PLACES)


@dataclass(eq=False)
class Call:
    """A call, and where it is as the model knows it."""

    order: int
    state: Literal["waiting", "out", "done"] = "waiting"
    place: str = ""


class Lines(RuleBasedStateMachine):
    """Calls come, are answered, and come back, in any order; lines move on, in both ways that there are."""

    @initialize(place=places)
    def begin(self, place: str) -> None:
        self.line: CallLine[Call, str] = CallLine(place)
        self.calls: list[Call] = []
        self.probe: Call | None = None

    def those(self, state: str) -> list[Call]:
        return [call for call in self.calls if call.state == state]

    def is_clear(self, place: str) -> bool:
        return all(call.place == place for call in self.those("out"))

    def send(self, call: Call, place: str) -> None:
        """What nobody may do: go while an earlier one waits, or is on its way anywhere else."""
        for earlier in self.calls[: call.order]:
            assert earlier.state == "done" or (earlier.state, earlier.place) == ("out", place), (earlier, call)
        call.state, call.place = "out", place
        self.line.left(place)

    @rule(place=places)
    def a_call_comes(self, place: str) -> None:
        may_go = not self.those("waiting") and self.probe is None and self.is_clear(place)
        assert self.line.admits(place) == may_go
        call = Call(len(self.calls))
        self.calls.append(call)
        if may_go:
            self.send(call, place)
        else:
            self.line.join(call)

    @precondition(lambda self: self.those("out"))
    @rule(data=st.data(), place=places)
    def a_call_is_answered(self, data: st.DataObject, place: str) -> None:
        call = data.draw(st.sampled_from(self.those("out")))
        call.state = "done"
        self.line.answered()
        if call is self.probe:
            self.probe = None
            self.all_follow(place)

    @precondition(lambda self: self.those("out"))
    @rule(data=st.data())
    def a_call_comes_back_undone(self, data: st.DataObject) -> None:
        """Those behind it at the same place come back as well, sooner or later: here, the last one is the first."""
        out = self.those("out")
        call = data.draw(st.sampled_from(out))
        assume(call is out[-1] or call is self.probe)
        call.state = "waiting"
        self.line.answered()
        self.line.join(call)
        if call is self.probe:
            self.probe = None

    @rule(place=places)
    def the_first_goes_alone(self, place: str) -> None:
        waiting = self.those("waiting")
        may_go = self.probe is None and waiting and self.is_clear(place)
        first = self.line.first(place)
        assert first is (waiting[0] if may_go else None)
        if first is not None:
            self.probe = first
            self.send(first, place)

    @precondition(lambda self: self.probe is None)
    @rule(place=places)
    def all_follow(self, place: str) -> None:
        expected = self.those("waiting") if self.is_clear(place) else []
        assert self.line.rest(place) == expected
        for call in expected:
            self.send(call, place)

    @precondition(lambda self: self.those("out"))
    @rule(place=places)
    def the_connection_is_lost_and_all_that_it_had_goes_along(self, place: str) -> None:
        for call in self.those("out"):
            call.place = place
        self.line.place = place

    @invariant()
    def it_knows_who_waits_and_how_many_are_out(self) -> None:
        assert self.line.waiting == self.those("waiting")
        assert self.line.unanswered == len(self.those("out"))
        assert self.line.probe is self.probe
        assert self.line.is_idle == all(call.state == "done" for call in self.calls)


TestLines = Lines.TestCase


def test_the_first_is_the_first_again_when_it_comes_back() -> None:
    line: CallLine[Call, str] = CallLine("a")
    one, two, three = map(Call, range(3))
    for _ in (one, two):
        assert line.admits("a")
        line.left("a")
    assert not line.admits("b")
    for call in (two, one):  # whichever is heard of first
        line.answered()
        line.join(call)
    line.join(three)
    assert line.first("b") is one and line.first("b") is None
    line.left("b")
    line.answered()
    line.join(one)
    assert line.waiting == [one, two, three]


def test_who_waits_does_not_follow_while_others_are_unanswered_elsewhere() -> None:
    line: CallLine[Call, str] = CallLine("a")
    one, two, three = map(Call, range(3))
    line.left("a")
    line.left("a")
    line.answered()
    line.join(one)
    line.join(three)
    assert line.first("a") is one  # two is still there, and was behind it
    line.left("a")
    line.answered()
    assert line.rest("b") == [] and line.waiting == [three]
    line.answered()
    assert line.first("b") is three and two.state == "waiting"
