"""Where messages are read from: a server, a server and its Kafka, or a data directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from penstock.core.commands import Offsets
from penstock.spark.options import Where


class Part(NamedTuple):
    """A partition of a queue. Its offsets are a range of their own: each of them says which partition it is in."""

    queue: str
    partition: int


@dataclass(frozen=True)
class Range:
    """Messages of one partition of a queue, from offset `start` up to, not including, `stop`."""

    queue: str
    start: int
    stop: int
    kept: int
    """From here on every offset must be there: whatever is not was lost."""
    has_kafka_log: bool = True
    """Whether the server may have it in Kafka, too: whoever plans asks once, and not whoever reads each range."""


class Place(Protocol):
    """What readers ask. Made anew in every process."""

    has_kafka_log: bool
    """Whether the messages may be in Kafka, too; known after the first `find`."""

    def queues(self) -> list[str]:
        """The names of all queues that can be read."""
        ...

    def find(
        self,
        queues: Sequence[str],
        *,
        times_ms: Sequence[int] = (),
        after: Mapping[Part, int] | None = None,
        bytes_max: Mapping[str, int] | None = None,
    ) -> dict[Part, Offsets]:
        """Where the messages of queues stand; those that are not there are left out.

        All partitions of a queue come, in their order; with `after`, those that it names. Each of them may have
        `bytes_max`.
        """
        ...

    def batches(self, wanted: Range, columns: tuple[str, ...]) -> Iterator[Any]:
        """The messages of a range that are there, as record batches of `wire/arrow.py` with these columns."""
        ...

    def create_channel(self, queue: str, channel: str, offsets: Sequence[int]) -> None:
        """Keep what is sent from an offset of each partition on for a channel; one that is there stays as it is."""
        ...

    def ack_up_to(self, channel: str, offsets: Mapping[Part, int]) -> None:
        """A channel is done with what was sent before these offsets."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def open_place(where: Where) -> Place:
    """The place that options name."""
    if where.path is not None:
        from penstock.spark.directory import DirectoryPlace

        return DirectoryPlace(where.path)
    if where.read_from != "server":
        from penstock.spark.kafka import KafkaPlace

        return KafkaPlace(where)
    from penstock.spark.server import ServerPlace

    return ServerPlace(where)
