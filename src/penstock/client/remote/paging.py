"""Browsing over a network: the server bounds what one answer holds, so a long look is several commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.client.remote.request import Settle
from penstock.core.commands import Browse, Command, Seen


class Pages:
    """Gathers pages until the limit is reached or a page is empty; then settles with all of them.

    >>> asked = []
    >>> pages = Pages(Browse(queue="q", limit=5), lambda command, settle: asked.append(command.limit), print)
    >>> pages.settle([], None)
    [] None
    """

    def __init__(self, command: Browse, carry: Callable[[Command, Settle], Any], settle: Settle) -> None:
        self._command = command
        self._carry = carry
        self._settle = settle
        self._found: list[Seen] = []

    def settle(self, page: Any, error: BaseException | None) -> None:
        """A page came, or the reason why there is none."""
        if error is not None:
            self._settle(None, error)
            return
        self._found += page
        left = self._command.limit - len(self._found)
        if not page or left <= 0:
            self._settle(self._found, None)
        else:
            after = page[-1].sequence
            self._carry(msgspec.structs.replace(self._command, after=after, limit=left), self.settle)
