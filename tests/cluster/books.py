"""What clients of a cluster were told, message by message, and what must be so at the end.

lost            confirmed, and never received where it belongs          0
after ack       received by a request that began after its ack was      0
                confirmed, by a lease that was still good; by message
                id, also if it was received before a node was killed
disorder        received before an earlier one of its group that was    0
                confirmed before it was sent
at most         received twice from a queue of consume_once             0
moved twice     there as two messages after a unit of work moved it     0
left            still in a queue when all was received                  0
duplicates      received more than once                                 any number: leases run out
errors          requests that failed                                    any number
silence         the longest time in which no send to some queue was     reported
                confirmed, at any node
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

DEAD = "orders.dead"
ARRIVES_IN = {
    "orders": ("orders", DEAD),
    "line.fifo": ("line.fifo",),
    "work": ("letters",),
    "notes": ("notes",),
    "news": ("news",),
    "held": ("held",),
}
"""Where a message that was sent to a queue has to be received. `once` may lose."""
ONCE = "once"
VIOLATIONS = ("lost", "after ack", "disorder", "at most", "moved twice", "left", "unserved")
SENT_TO = (*ARRIVES_IN, ONCE)


def is_bad(body: str) -> bool:
    """Whether this message is one that cannot be worked on, and dies."""
    return body.endswith("!")


@dataclass(frozen=True)
class Report:
    """The end of one configuration."""

    name: str
    seed: int
    sent: int
    acknowledged: int
    received: int
    duplicates: int
    errors: Counter[str]
    silence_s: float
    silent_queue: str
    by_queue: str
    """Sent / received / acknowledged, and the silence."""
    violations: dict[str, list[str]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    witness: tuple[str, ...] = ()
    """What the second opinion says in short."""

    @property
    def is_good(self) -> bool:
        """Whether everything is as it must be."""
        return not any(self.violations.values())

    @property
    def cells(self) -> list[str]:
        """A row of docs/cluster.md."""
        counts = (self.sent, self.acknowledged, self.received, *(len(self.violations[it]) for it in VIOLATIONS))
        return [self.name, *(f"{count:,}" for count in counts), str(self.duplicates), f"{self.silence_s:.0f} s"]

    def __str__(self) -> str:
        broken = ", ".join(f"{name} {len(found)}" for name, found in self.violations.items())
        lines = [
            f"{self.name} (seed {self.seed}): sent {self.sent}, acknowledged {self.acknowledged}, "
            f"received {self.received}, {broken}, duplicates {self.duplicates}, errors {self.errors.total()}, "
            f"longest silence {self.silence_s:.1f} s ({self.silent_queue})"
        ]
        lines.append(f"    sent/received/acknowledged, silence: {self.by_queue}")
        lines += [f"    {name}: {', '.join(found[:10])}" for name, found in self.violations.items() if found]
        lines += [f"    {count} times: {error}" for error, count in self.errors.most_common(8)]
        return "\n".join([*lines, *(f"    {remark}" for remark in self.remarks)])


class Books:
    """What happened to each message. Threads may write at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._confirmed: dict[str, set[str]] = {queue: set() for queue in SENT_TO}
        self._received: dict[str, Counter[str]] = {}
        self._identities: dict[str, set[str]] = {}
        self._acked_s: dict[tuple[str, str], float] = {}
        self._after_ack: list[str] = []
        self._groups: dict[str, list[int]] = {}
        self._served_s: dict[str, float] = {}
        self._silence_s: dict[str, float] = {}
        self.errors: Counter[str] = Counter()

    # -- while it happens --

    def begin(self) -> None:
        """From now on silence counts."""
        self._served_s = dict.fromkeys(SENT_TO, time.monotonic())

    def end(self) -> None:
        """No more is sent: silence that lasted until now counts, and what comes later does not."""
        with self._lock:
            for queue in SENT_TO:
                self._note_service(queue)
            self._served_s = {}

    def unserved_since(self, since_s: float) -> list[str]:
        """The queues to which no send was confirmed since then."""
        with self._lock:
            return [queue for queue, served_s in self._served_s.items() if served_s < since_s]

    def sent(self, queue: str, body: str) -> None:
        """A send was confirmed."""
        with self._lock:
            self._confirmed[queue].add(body)
            self._note_service(queue)

    def received(self, queue: str, body: str, asked_s: float, identity: str = "") -> None:
        """A message came, to a request that was made at that time."""
        with self._lock:
            found = self._received.setdefault(queue, Counter())
            found[body] += 1
            self._identities.setdefault(f"{queue}: {body}", set()).add(identity)
            if self._acked_s.get((queue, identity or body), asked_s) < asked_s:
                self._after_ack.append(f"{queue}: {body}")
            if queue == "line.fifo" and found[body] == 1:
                group, _, number = body.rpartition("-")
                self._groups.setdefault(group, []).append(int(number))

    def backlog(self, queue: str) -> int:
        """About how many messages were sent and have not come yet."""
        with self._lock:
            return len(self._confirmed[queue]) - len(self._received.get(queue, ()))

    def acked(self, queue: str, body: str, identity: str = "") -> None:
        """An ack was confirmed."""
        with self._lock:
            self._acked_s.setdefault((queue, identity or body), time.monotonic())

    def failed(self, what: str, error: BaseException) -> None:
        """A request failed."""
        text = " ".join(str(error).split())[:90]
        with self._lock:
            self.errors[f"{what}: {type(error).__name__}: {text}"] += 1

    def _note_service(self, queue: str) -> None:
        if queue in self._served_s:
            now_s = time.monotonic()
            self._silence_s[queue] = max(self._silence_s.get(queue, 0.0), now_s - self._served_s[queue])
            self._served_s[queue] = now_s

    # -- at the end --

    def missing(self) -> list[str]:
        """Confirmed, and not received where it belongs."""
        with self._lock:
            return [f"{queue}: {body}" for queue in ARRIVES_IN for body in sorted(self._missing_of(queue))]

    def _missing_of(self, queue: str) -> set[str]:
        places = [self._received.get(place, Counter()) for place in ARRIVES_IN[queue]]
        confirmed, found = self._confirmed[queue], set().union(*places)
        buried = self._received.get(DEAD, Counter())
        return {body for body in confirmed if body not in (buried if is_bad(body) else found)}

    def _disorder(self) -> list[str]:
        found, confirmed = [], self._confirmed["line.fifo"]
        for group, numbers in self._groups.items():
            highest = -1
            for number in numbers:
                if number < highest and f"{group}-{number}" in confirmed:
                    found.append(f"{group}: {number} after {highest}")
                highest = max(highest, number)
        return found

    def _by_queue(self) -> str:
        acked = Counter(queue for queue, _ in self._acked_s)
        names = sorted({*self._confirmed, *self._received})
        return ", ".join(
            f"{name} {len(self._confirmed.get(name, ()))}/{len(self._received.get(name, ()))}/{acked[name]}"
            f" {self._silence_s.get(name, 0.0):.1f} s"
            for name in names
        )

    def report(
        self,
        name: str,
        seed: int,
        left: list[str],
        unserved: list[str],
        remarks: list[str],
        witness: tuple[str, ...] = (),
    ) -> Report:
        """Count."""
        lost = self.missing()
        with self._lock:
            letters = [key for key, found in self._identities.items() if key.startswith("letters: ") and len(found) > 1]
            silent = max(self._silence_s, key=lambda queue: self._silence_s[queue])
            return Report(
                name,
                seed,
                sent=sum(map(len, self._confirmed.values())),
                acknowledged=len(self._acked_s),
                received=sum(map(len, self._received.values())),
                duplicates=sum(count - 1 for found in self._received.values() for count in found.values()),
                errors=Counter(self.errors),
                silence_s=self._silence_s[silent],
                silent_queue=silent,
                by_queue=self._by_queue(),
                violations={
                    "lost": lost,
                    "after ack": self._after_ack,
                    "disorder": self._disorder(),
                    "at most": [body for body, count in self._received.get(ONCE, Counter()).items() if count > 1],
                    "moved twice": letters,
                    "left": left,
                    "unserved": unserved,
                },
                remarks=tuple(remarks),
                witness=witness,
            )
