"""What a query says about the rows it wants, as far as a reader of queues can make use of it.

    offset, topic, partition    narrow what is planned: other ranges are not read at all
    timestamp from a time on    likewise, by the time at which chunks were sent
    key                         leaves rows out where they are read, before they go to Spark

Spark applies all filters once more: a range may hold more than was asked for, never less. (A time that ends a range
cannot narrow it. A dead letter has the time at which it was first sent, and stands where it was moved to.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_OFFSET_MAX = 1 << 63


@dataclass(frozen=True)
class Pushed:
    """What is known of the rows that are wanted. Without anything, all are."""

    first: int = 0
    stop: int = _OFFSET_MAX
    """Offsets from `first` up to, not including, this one."""
    since_ms: int | None = None
    queues: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    keys: frozenset[bytes] | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Pushed:
        """What some filters say, all of which hold.

        >>> Pushed.of([GreaterThan(("offset",), 99), LessThanOrEqual(("offset",), 200), EqualTo(("topic",), "orders")])
        Pushed(first=100, stop=201, since_ms=None, queues=frozenset({'orders'}), partitions=None, keys=None)
        """
        found = cls()
        for each in filters:
            found = found._and(each)
        return found

    def _and(self, told: Filter) -> Pushed:
        column: tuple[str, ...] = getattr(told, "attribute", ())
        value: Any = getattr(told, "value", None)
        if len(column) != 1 or value is None:
            return self
        name, *_ = column
        match name, told:
            case "offset", EqualTo() | EqualNullSafe():
                return self._between(value, value + 1)
            case "offset", In() if value:
                return self._between(min(value), max(value) + 1)
            case "offset", GreaterThan():
                return self._between(value + 1, _OFFSET_MAX)
            case "offset", GreaterThanOrEqual():
                return self._between(value, _OFFSET_MAX)
            case "offset", LessThan():
                return self._between(0, value)
            case "offset", LessThanOrEqual():
                return self._between(0, value + 1)
            case "timestamp", GreaterThan() | GreaterThanOrEqual() | EqualTo() | EqualNullSafe():
                return replace(self, since_ms=max(self.since_ms or 0, _ms(value)))
            case "topic", EqualTo() | EqualNullSafe() | In():
                return replace(self, queues=_both(self.queues, _several(told)))
            case "partition", EqualTo() | EqualNullSafe() | In():
                return replace(self, partitions=_both(self.partitions, _several(told)))
            case "key", EqualTo() | EqualNullSafe() | In():
                return replace(self, keys=_both(self.keys, map(bytes, _several(told))))
        return self

    def _between(self, first: int, stop: int) -> Pushed:
        return replace(self, first=max(self.first, first), stop=min(self.stop, stop))

    @property
    def columns(self) -> tuple[str, ...]:
        """What has to be read to leave rows out."""
        return () if self.keys is None else ("key",)

    def wants_queue(self, name: str) -> bool:
        """Whether any row of a queue may be wanted."""
        return self.queues is None or name in self.queues

    def cut(self, start: int, stop: int, partition: int) -> tuple[int, int]:
        """The part of a range in which rows may be wanted."""
        if self.partitions is not None and partition not in self.partitions:
            return start, start
        return max(start, self.first), min(stop, self.stop)

    def rows(self, batch: Any) -> Any:
        """The rows of a batch that may be wanted."""
        if self.keys is None:
            return batch
        import pyarrow as pa
        import pyarrow.compute as pc

        return batch.filter(pc.is_in(batch["key"], value_set=pa.array(sorted(self.keys), pa.binary())))


def _several(told: Any) -> Iterable[Any]:
    """The values of a filter that names some."""
    return [each for each in told.value if each is not None] if isinstance(told, In) else [told.value]


def _both(known: frozenset[Any] | None, more: Iterable[Any]) -> frozenset[Any]:
    found = frozenset(more)
    return found if known is None else known & found


def _ms(moment: datetime) -> int:
    """Milliseconds since 1970, rounded down."""
    told = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(told.timestamp() * 1_000 // 1)
