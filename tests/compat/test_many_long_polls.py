"""A thousand clients wait at once; `python -m tests.compat.soak` lets five thousand wait."""

from __future__ import annotations

from pathlib import Path

from tests.compat.long_polls import wait_and_answer
from tests.compat.server import allow_many_sockets, serving

BYTES_A_POLL_MAX = 16 * 1024


def test_a_thousand_long_polls_are_all_answered_and_take_little_memory(tmp_path: Path) -> None:
    allow_many_sockets()
    with serving(tmp_path) as server:
        measured = wait_and_answer(server, 1_000)
    print(measured)
    assert measured.bytes_a_poll < BYTES_A_POLL_MAX
