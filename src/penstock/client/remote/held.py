"""Which messages a client holds, as spans: what a heartbeat has to name."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator

from penstock.core.commands import Span


class HeldSpans:
    """Spans of one channel. Parts can be taken out.

    >>> held = HeldSpans()
    >>> held.add([Span(10, 19, 1)])
    >>> held.remove([Span(12, 12, 1), Span(18, 30, 1)])
    >>> list(held)
    [Span(first=10, last=11, attempt=1), Span(first=13, last=17, attempt=1)]
    """

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._spans: dict[int, Span] = {}

    def __iter__(self) -> Iterator[Span]:
        return (self._spans[first] for first in self._firsts)

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, spans: Iterable[Span]) -> None:
        """Messages came. A message that is here on an older attempt is on the new one."""
        for span in spans:
            self._remove(span.first, span.last)
            insort(self._firsts, span.first)
            self._spans[span.first] = span

    def remove(self, spans: Iterable[Span]) -> None:
        """Messages are held no longer. Nothing happens to those that were not, or are held on another attempt."""
        for span in spans:
            self._remove(span.first, span.last, span.attempt)

    def _remove(self, first: int, last: int, attempt: int | None = None) -> None:
        at = max(0, bisect_right(self._firsts, first) - 1)
        while at < len(self._firsts) and self._firsts[at] <= last:
            span = self._spans[self._firsts[at]]
            if span.last < first or attempt not in (None, span.attempt):
                at += 1
                continue
            kept = [Span(span.first, first - 1, span.attempt), Span(last + 1, span.last, span.attempt)]
            kept = [part for part in kept if part.first <= part.last]
            self._firsts[at : at + 1] = [part.first for part in kept]
            del self._spans[span.first]
            self._spans.update((part.first, part) for part in kept)
            at += len(kept)

    def clear(self) -> None:
        """Nothing is held."""
        self._firsts.clear()
        self._spans.clear()
