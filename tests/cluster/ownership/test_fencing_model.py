"""The fencing protocol, over every interleaving of a small model: what holds, and what each rule is for.

`tests.cluster.soak` searches a larger one.
"""

from __future__ import annotations

import pytest

from tests.cluster.ownership.fencing import AFTER_ACK, OUT_OF_TURN, SERVED, Rules, search

RULES = ("proof", "look_again", "wait", "from_begin", "claim_in_log", "quiet_release", "fenced")
LATER_RULES = ("release_after_wait",)
"""What these are for is seen only when the shard is given away twice more."""


def test_in_no_interleaving_a_former_owner_hands_out_after_a_later_one_or_after_an_ack() -> None:
    found = search(Rules())
    assert found.violation == "", found.path
    assert found.states > 10_000
    for word in ("hands out", "hands out after a commit", "withholds", "has its commit refused", "commits (ack)"):
        assert word in found.words, f"the model never {word}: it shows nothing"
    for word in ("fences", "reads the log", "has its marker refused"):
        assert word in found.words, f"the model never {word}: it shows nothing"
    for word in ("finds a later claim", "has released", "sees the lease run out", "hears that it is fenced", "dies"):
        assert word in found.words, f"the model never {word}: it shows nothing"
    assert "lets go unserved" in found.words


@pytest.mark.parametrize("rule", RULES)
def test_without_any_one_of_the_rules_a_former_owner_hands_out_after_a_later_one(rule: str) -> None:
    found = search(Rules(**{rule: False}), sought=frozenset({OUT_OF_TURN}))
    assert found.violation == OUT_OF_TURN
    assert "hands out" in found.path[-1]


@pytest.mark.parametrize("rule", LATER_RULES)
def test_without_any_one_of_these_it_happens_when_the_shard_is_given_away_twice(rule: str) -> None:
    rules = Rules(**{rule: False})
    found = search(rules, assignments_max=3, sought=frozenset({OUT_OF_TURN}), first=SERVED)
    assert found.violation == OUT_OF_TURN


@pytest.mark.parametrize("rule", ["proof", "wait"])
def test_without_the_proof_or_the_wait_a_message_is_handed_out_after_its_ack(rule: str) -> None:
    found = search(Rules(**{rule: False}), sought=frozenset({AFTER_ACK}))
    assert found.violation == AFTER_ACK
    assert any("commits (ack)" in step for step in found.path)


def test_every_rule_has_a_test() -> None:
    assert {*RULES, *LATER_RULES} == set(Rules.__dataclass_fields__)
