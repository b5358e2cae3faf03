"""The end of a connection's session: nobody waits for it, and it has to be written all the same.

While it is not, the messages that the client held are leased to somebody who is gone, and the session stays. So when
the store fails, it is tried again: until it is done, or the store is closed. Whoever opens that again ends the sessions
that were connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.core.commands import EndSession
from penstock.core.errors import StoreError
from penstock.server.shard import Call, ShardClosed
from penstock.server.shards import Shards

AGAIN_S = 0.5
"""How long to wait before it is tried again."""


def _ignore(_call: Call) -> None:
    """Nobody waits."""


def end_session(shard: Shards, number: int, error: str, on_ended: Callable[[Call], None] = _ignore) -> None:
    """End a session. `on_ended` is called when it is over, or never was; not if the store is closed before."""

    def settled(call: Call) -> None:
        if is_worth_repeating(call.error):
            asyncio.get_running_loop().call_later(AGAIN_S, submit)
        else:
            on_ended(call)

    def submit() -> None:
        try:
            shard.submit(EndSession(session=number, error=error), settled)
        except ShardClosed:
            return

    submit()


def is_worth_repeating(error: BaseException | None) -> bool:
    """Whether a session may not have ended, because of what may be over in a moment."""
    return isinstance(error, StoreError) and not isinstance(error, ShardClosed)
