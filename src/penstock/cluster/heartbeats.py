"""Who has been heard of in the partitions topic: the consumer group cannot always be asked who is alive.

Every node says every second what its shards do. Times are those at which the controller reads it, by its own clock. A
reader that stood still has heard nobody meanwhile, and neither has one whose broker did: after a silence of all,
everybody counts as just heard. So nobody is taken for dead because something is wrong with the topic or the reader.
"""

from __future__ import annotations

SILENCE_S = 3.0
"""When nobody was heard for so long, it is not the nodes that are silent."""


class Heartbeats:
    """When each node was heard last.

    >>> beats = Heartbeats()
    >>> for now_s in range(8):
    ...     beats.heard("a", now_s)
    ...     if now_s < 2: beats.heard("b", now_s)
    >>> sorted(beats.alive(within_s=10)), sorted(beats.alive(within_s=3))
    (['a', 'b'], ['a'])
    """

    def __init__(self) -> None:
        self._heard_s: dict[str, float] = {}
        self._spoke_s: dict[str, float] = {}
        """As that, and no silence is made up for."""
        self._last_s = float("-inf")

    def heard(self, name: str, now_s: float) -> None:
        """A node has said something."""
        if now_s - self._last_s > SILENCE_S:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._heard_s[name] = self._spoke_s[name] = self._last_s = now_s

    def alive(self, within_s: float) -> set[str]:
        """Who was heard not much longer ago than anybody."""
        return {name for name, heard_s in self._heard_s.items() if heard_s >= self._last_s - within_s}

    def spoke_since(self, time_s: float) -> set[str]:
        """Who was really heard since then: nobody, while something is wrong with the topic."""
        return {name for name, spoke_s in self._spoke_s.items() if spoke_s >= time_s}
