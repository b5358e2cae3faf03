"""The reckoning of the soaks of listeners and outboxes: what is as it should be passes, and nothing else does."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.client import soak as listeners
from tests.outbox import soak as outboxes


@pytest.mark.parametrize(
    ("out", "copy", "handled", "kind"),
    [
        ([1, 2], [1, 2], [1, 3], None),
        ([1, 2, 3], [1, 2, 3], [], None),
        ([1], [1], [], "LOST"),
        ([1, 2, 2], [1, 2, 2], [], "TWICE"),
        ([1, 2, 3], [1, 2], [], "HALF DONE"),
        ([1, 2], [1, 2, 3], [], "HALF DONE"),
        ([1, 2], [1, 2], [3, 3], "AT MOST BROKEN"),
        ([1, 2, 9], [1, 2, 9], [], "INVENTED"),
        ([1, 2], [1, 2], [9], "INVENTED"),
    ],
)
def test_what_listeners_did_wrong_is_noticed(
    out: list[int], copy: list[int], handled: list[int], kind: str | None
) -> None:
    found = +listeners.wrong({1, 2, 3}, {1, 2}, Counter(out), Counter(copy), Counter(handled))
    assert set(found) == ({kind} if kind else set())
    assert all(map(str.isupper, found))


@pytest.mark.parametrize(
    ("sent", "effects", "kinds"),
    [
        (["a 0", "b 1", "a 2"], ["a 0", "a 2", "b 1"], set()),
        (["b 1", "a 0", "a 2"], ["a 0", "a 2", "b 1"], set()),
        (["a 0", "b 1", "a 2"], ["a 0", "b 1"], {"MISSING"}),
        (["a 0", "b 1", "a 2"], ["a 0", "a 2", "a 2", "b 1"], {"TWICE"}),
        (["a 0", "b 1", "a 2", "a 0"], ["a 0", "a 2", "b 1"], {"SENT TWICE"}),
        (["a 2", "b 1", "a 0"], ["a 0", "a 2", "b 1"], {"ORDER"}),
        (["a 0", "b 1", "a 2"], ["a 0", "a 2", "b 1", "c 7"], {"INVENTED"}),
    ],
)
def test_what_outboxes_did_wrong_is_noticed(sent: list[str], effects: list[str], kinds: set[str]) -> None:
    found = +outboxes.wrong(["a 0", "b 1", "a 2"], sent, Counter(effects))
    assert set(found) == kinds
    assert all(map(str.isupper, found))
