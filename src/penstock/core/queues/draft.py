"""The chunk that is being written: what arrives for one place within one step becomes one chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from penstock.core.storage.chunk import Chunk, PackedBodies

CHUNK_MESSAGES_MAX: Final = 4_096
CHUNK_SIZE_MAX: Final = 4 * 1024 * 1024


class Place(NamedTuple):
    """Where a chunk goes: a lane, a due bucket in the far ones, and when its messages are due (0: at once)."""

    lane: int
    order: int = 0
    due_ms: int = 0


class Messages:
    """Messages on their way in: parallel lists, None where nobody set anything.

    >>> Messages([b"a", b"b"], groups=[None, b"g"]).only([1]).groups
    [b'g']
    """

    __slots__ = ("attributes", "bodies", "dedup_ids", "due_ms", "groups", "joined", "origins")

    def __init__(
        self,
        bodies: list[bytes] | PackedBodies,
        *,
        attributes: list[bytes | None] | None = None,
        groups: list[bytes | None] | None = None,
        dedup_ids: list[bytes | None] | None = None,
        origins: list[bytes | None] | None = None,
        due_ms: list[int] | None = None,
        joined: bytes | None = None,
    ) -> None:
        self.bodies = bodies
        self.attributes = attributes
        self.groups = groups
        self.dedup_ids = dedup_ids
        self.origins = origins
        self.due_ms = due_ms
        self.joined = joined

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def are_bare(self) -> bool:
        """Whether they are bodies and nothing else."""
        return (
            self.attributes is None
            and self.groups is None
            and self.dedup_ids is None
            and self.origins is None
            and self.due_ms is None
        )

    @property
    def size(self) -> int:
        """Bytes of bodies and attributes."""
        bodies = self.bodies
        size = len(bodies.data) if isinstance(bodies, PackedBodies) else sum(map(len, bodies))
        return size + sum(len(value or b"") for value in self.attributes or ())

    def only(self, indexes: list[int]) -> Messages:
        def pick(values: list[Any] | None) -> list[Any] | None:
            return None if values is None else [values[index] for index in indexes]

        return Messages(
            [self.bodies[index] for index in indexes],
            attributes=pick(self.attributes),
            groups=pick(self.groups),
            dedup_ids=pick(self.dedup_ids),
            origins=pick(self.origins),
            due_ms=pick(self.due_ms),
        )

    def parts(self) -> Iterator[tuple[Messages, int]]:
        """The same in pieces that a chunk takes, each with its size; a message that is larger comes alone.

        >>> [(len(part), size) for part, size in Messages([b"x"] * 5_000).parts()]
        [(4096, 4096), (904, 904)]
        """
        if isinstance(self.bodies, PackedBodies) and self.are_bare:
            for packed in self.bodies.parts(CHUNK_MESSAGES_MAX, CHUNK_SIZE_MAX):
                yield Messages(packed), len(packed.data)
            return
        attributes = self.attributes or [None] * len(self)
        start, size = 0, 0
        for at, body in enumerate(self.bodies):
            length = len(body) + len(attributes[at] or b"")
            if at > start and (at - start == CHUNK_MESSAGES_MAX or size + length > CHUNK_SIZE_MAX):
                yield self.only(list(range(start, at))), size
                start, size = at, 0
            size += length
        yield self.only(list(range(start, len(self)))), size


class Draft:
    """A chunk in the making."""

    __slots__ = ("_parts", "base", "count", "place", "sent_ms", "size")

    def __init__(self, place: Place, base: int, sent_ms: int, messages: Messages, size: int) -> None:
        self.place = place
        self.base = base
        self.sent_ms = sent_ms
        self.count = len(messages.bodies)
        self.size = size
        self._parts = [messages]

    def takes(self, place: Place, now_ms: int, count: int, size: int) -> bool:
        """Whether these messages can go into the same chunk."""
        return (
            (self.place is place or self.place == place)
            and self.sent_ms == now_ms
            and self.count + count <= CHUNK_MESSAGES_MAX
            and self.size + size <= CHUNK_SIZE_MAX
        )

    def add(self, messages: Messages, size: int) -> int:
        """Add more messages; returns the first one's sequence number."""
        first = self.base + self.count
        self._parts.append(messages)
        self.count += len(messages.bodies)
        self.size += size
        return first

    def seal(self) -> Chunk:
        messages = self._parts[0] if len(self._parts) == 1 else self._merged()
        return Chunk.of(
            self.base,
            self.sent_ms,
            messages.bodies,
            attributes=messages.attributes,
            groups=messages.groups,
            dedup_ids=messages.dedup_ids,
            origins=messages.origins,
            due_ms=messages.due_ms,
            joined=messages.joined,
        )

    def _merged(self) -> Messages:
        parts = self._parts
        if all(part.are_bare for part in parts):
            return Messages(_joined(parts))

        def column(name: str) -> list[bytes | None] | None:
            if all(getattr(part, name) is None for part in parts):
                return None
            return [value for part in parts for value in getattr(part, name) or [None] * len(part)]

        due_ms = None
        if any(part.due_ms is not None for part in parts):
            due_ms = [due for part in parts for due in part.due_ms or [0] * len(part)]
        return Messages(
            _joined(parts),
            attributes=column("attributes"),
            groups=column("groups"),
            dedup_ids=column("dedup_ids"),
            origins=column("origins"),
            due_ms=due_ms,
        )


def _joined(parts: list[Messages]) -> list[bytes] | PackedBodies:
    """The bodies of several batches, still in one piece if all of them were."""
    packed = [part.bodies for part in parts if isinstance(part.bodies, PackedBodies)]
    if len(packed) == len(parts):
        return PackedBodies.join(packed)
    return [body for part in parts for body in part.bodies]
