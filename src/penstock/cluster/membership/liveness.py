"""Who is alive, as one node sees it: by what the others write to the partitions topic, and by the links to them.

Every node says every second in the topic what its shards do. The controller watches the links to all nodes, and all
nodes watch the one to the controller. A node is dead

- when nobody listens where it was, or its link was silent for `[cluster] silence_s`, and it has missed its turn in the
  topic as well: a process that was killed is known to be dead within two seconds, one that stands still within four;
- when it has not written for `[cluster] session_timeout_s`, whatever its link says: without Kafka it is of no use.

So a node whose link is cut, and which writes, is alive, and so is one that cannot write for a while because a broker
was lost. A node that stands still for a shorter time than `silence_s` stays alive.

Times are those at which this node reads the topic, by its own clock. A reader that stood still has heard nobody
meanwhile, and neither has one whose broker did: after a silence of all, everybody counts as just heard. So nobody is
taken for dead because something is wrong with the topic or the reader.
"""

from __future__ import annotations

from collections.abc import Iterable

SILENCE_S = 3.0
"""When nobody was heard for so long, it is not the nodes that are silent."""
TURN_S = 1.5
"""Who has not written for so long has missed its turn."""


class Liveness:
    """When each node was heard last, and whose links are dead. Times are arguments.

    >>> liveness = Liveness(session_timeout_s=10.0)
    >>> for now_s in range(12):
    ...     liveness.heard("a", now_s)
    ...     if now_s < 2: liveness.heard("b", now_s)
    >>> sorted(liveness.alive(11.0)), sorted(liveness.alive(10.5))
    (['a', 'b'], ['a', 'b'])
    >>> liveness.dead_links = frozenset({"a", "b"})
    >>> sorted(liveness.alive(11.0))
    ['a']
    """

    def __init__(self, session_timeout_s: float) -> None:
        self._session_timeout_s = session_timeout_s
        self._heard_s: dict[str, float] = {}
        self._last_s = float("-inf")
        self.dead_links: frozenset[str] = frozenset()
        """The nodes that the event loop knows by their links to be dead. It puts another set here when that changes."""

    def presume(self, names: Iterable[str], now_s: float) -> None:
        """These nodes were there before this one came: they have as much time as anybody to be heard."""
        for name in names:
            self._heard_s.setdefault(name, now_s)
        self._last_s = max(self._last_s, now_s)

    def heard(self, name: str, now_s: float) -> None:
        """A node has said something."""
        if now_s - self._last_s > SILENCE_S:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._heard_s[name] = self._last_s = now_s

    def alive(self, now_s: float) -> set[str]:
        """Who seems to live."""
        dead_links = self.dead_links
        until_s = now_s if now_s - self._last_s <= TURN_S else self._last_s  # while the topic stands still, so do we
        return {
            name
            for name, heard_s in self._heard_s.items()
            if until_s - heard_s <= (TURN_S if name in dead_links else self._session_timeout_s)
        }
