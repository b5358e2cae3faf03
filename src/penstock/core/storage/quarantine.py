"""Queues of which something stored is damaged: they are kept as they are, and not served; all others are.

A broker cannot tell what a damaged or missing record would have said, and must not guess: messages that are to be
delivered once would be delivered again, and numbers given twice. So nothing of such a queue is read, handed out,
changed or deleted. Every command that names it is refused with `QueueDamaged`.

If the record with a queue's name is damaged, nobody knows which name that is. Queues that are known are served, and no
other one is created meanwhile: it could be that one. Dead letters that no other queue can take get one all the same,
whose name no damaged queue can have (`mark`).
"""

from __future__ import annotations

from penstock.core.errors import QueueDamaged


class Quarantine:
    """The queues that are not served, and why."""

    def __init__(self) -> None:
        self._what: dict[int, list[str]] = {}
        self._names: dict[str, int] = {}
        self._name_of: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._what)

    def __contains__(self, queue_id: int) -> bool:
        return queue_id in self._what

    def add(self, queue_id: int, what: str) -> None:
        reasons = self._what.setdefault(queue_id, [])
        if what not in reasons:
            reasons.append(what)

    def call(self, queue_id: int, name: str) -> None:
        """The queue has a name."""
        self._names[name] = queue_id
        self._name_of[queue_id] = name

    @property
    def ids(self) -> list[int]:
        """The queues that are not served."""
        return list(self._what)

    @property
    def named(self) -> list[tuple[str, int]]:
        """Their names and ids, as far as names are known."""
        return list(self._names.items())

    def name_of(self, queue_id: int) -> str | None:
        return self._name_of.get(queue_id)

    def label(self, queue_id: int) -> str:
        """What to call a queue that is not served."""
        return self._name_of.get(queue_id) or f"#{queue_id} (its name is not readable)"

    def reason(self, queue_id: int) -> str:
        reasons = self._what[queue_id]
        return reasons[0] if len(reasons) == 1 else f"{reasons[0]}, and {len(reasons) - 1} more"

    @property
    def mark(self) -> str:
        """No queue in quarantine has this in its name: it tells of the newest of them, and none of them is newer."""
        return f".beside-{max(self._what):x}"

    def might_be(self, name: str) -> bool:
        """Whether the queue with this name, which is not among the served ones, is in quarantine, or could be."""
        return name in self._names or (len(self._names) < len(self._what) and self.mark not in name)

    def refuse(self, name: str) -> None:
        """Raise if a queue that is not among the served ones is in quarantine, or could be."""
        if not self.might_be(name):
            return
        queue_id = self._names.get(name)
        if queue_id is not None:
            raise QueueDamaged.of(name, self.reason(queue_id))
        for nameless in self._what:
            if nameless not in self._name_of:
                raise QueueDamaged.of(name, f"it may be the queue whose name is not readable ({self.reason(nameless)})")

    def refuse_id(self, queue_id: int) -> None:
        """Raise if the queue with this id is in quarantine."""
        if queue_id in self._what:
            raise QueueDamaged.of(self.label(queue_id), self.reason(queue_id))
