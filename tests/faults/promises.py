"""What the log of a client's lives promises, compared with what is there in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.faults.client import AT_MOST, GROUPS


class PromiseBroken(AssertionError):
    """Something is not as it was said to be."""


@dataclass(slots=True)
class Promises:
    """What the log says, over all lives of the client."""

    tried: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    not_sent: set[int] = field(default_factory=set)
    handled: dict[str, Counter[int]] = field(default_factory=dict)
    at_most_tried: dict[str, set[int]] = field(default_factory=dict)
    reports: list[str] = field(default_factory=list)

    def read(self, lines: Iterable[str]) -> None:
        """Take in the log."""
        where = {"S": self.tried, "s": self.sent, "n": self.not_sent}
        for line in lines:
            kind, _, rest = line.partition(" ")
            words = rest.split()
            if kind == "X":
                self.reports.append(rest)
            elif kind == "H":
                self.handled.setdefault(words[0], Counter())[int(words[1])] += 1
            elif kind == "T":
                self.at_most_tried.setdefault(words[0], set()).update(map(int, words[1:]))
            else:
                where[kind].update(map(int, words))

    def check(
        self,
        out: Sequence[int],
        in_line: Sequence[int],
        waiting: Sequence[int],
        orders: Sequence[int],
        effects: Sequence[int],
    ) -> None:
        """What came through, what came through in groups, what did not; the user's own database."""
        demand(not self.reports, f"the client reports: {self.reports[:3]}")
        demand(not waiting, f"not drained: {sorted(waiting)[:20]}")
        self._check_through([*out, *in_line])
        for group in range(GROUPS):
            numbers = [number for number in in_line if number % GROUPS == group]
            demand(numbers == sorted(numbers), f"group {group} is out of order: {numbers}")
        for queue, times in AT_MOST.items():
            self._check_at_most(queue, times)
        demand(not _repeated(effects), f"effects that happened twice: {_repeated(effects)[:20]}")
        missing = sorted(set(orders) - set(effects))
        demand(not missing, f"orders without effect: {missing[:20]}")
        invented = sorted(set(effects) - set(orders))
        demand(not invented, f"effects without order: {invented[:20]}")

    def _check_through(self, out: Sequence[int]) -> None:
        demand(not _repeated(out), f"came through twice: {_repeated(out)[:20]}")
        demand(self.sent <= set(out), f"acknowledged, and lost: {sorted(self.sent - set(out))[:20]}")
        demand(set(out) <= self.tried, f"nobody sent these: {sorted(set(out) - self.tried)[:20]}")
        wrong = self.not_sent & set(out)
        demand(not wrong, f"said to be certainly not sent, and there: {sorted(wrong)[:20]}")

    def _check_at_most(self, queue: str, times: int) -> None:
        handled = self.handled.get(queue, Counter())
        often = sorted(number for number, count in handled.items() if count > times)
        demand(not often, f"handled more than {times} times from {queue}: {often[:20]}")
        invented = sorted(handled.keys() - self.at_most_tried.get(queue, set()))
        demand(not invented, f"nobody sent these to {queue}: {invented[:20]}")


def _repeated(numbers: Sequence[int]) -> list[int]:
    return sorted(number for number, count in Counter(numbers).items() if count > 1)


def demand(condition: object, message: str) -> None:
    """Raise `PromiseBroken` unless it holds."""
    if not condition:
        raise PromiseBroken(message)
