"""A publish: staged pieces are sent once, whole or not at all, however many bytes they have.

A small one is one commit. A large one is written to the store in commits of some 32 MiB, where nobody sees it
(`StageWork`), and made visible by one small commit that holds the mark. If the server or its store goes down in
between, the store forgets what was written, and the publish begins anew, from the files of the pieces.

Messages that the store has to look at one by one when they get their numbers (in FIFO queues, with deduplication ids,
with a delay) cannot be written beforehand. They are part of the last commit, and `publish_bytes_max` limits them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from penstock.core.commands import AlreadyDone, CommitWork, Send, Staged, StageWork
from penstock.core.errors import BatchTooLarge, PenstockError, StageNotFound
from penstock.core.queues.origin import Origin
from penstock.core.storage.chunk import PackedBodies
from penstock.server.shards import Shards
from penstock.wire.pieces import stand_in_id

COMMIT_BYTES = 32 * 1024 * 1024
"""What is written in one commit. A publish with no more than that needs no other."""
_TRIES_MAX = 5
_Key = tuple[str, bool]

Decode = Callable[[str], list[Send]]
"""What a piece sends, by its name. It is opened for that, and closed when that is done."""
FindId = Callable[[str, int], Awaitable[str | None]]
"""The id of the message of a queue with a number; None if there is no such queue, or the caller may not know it."""


class Publish:
    """One publish, from its pieces on."""

    def __init__(
        self,
        shard: Shards,
        mark: tuple[str, int],
        pieces: Sequence[str],
        nbytes: int,
        decode: Decode,
        find_id: FindId,
        bytes_max: int,
    ) -> None:
        self._shard = shard
        self._mark = mark
        self._pieces = pieces
        self._decode = decode
        self._find_id = find_id
        self._bytes_max = bytes_max
        self._is_small = nbytes <= COMMIT_BYTES
        self._begin()

    def _begin(self) -> None:
        self._stage = 0
        self._messages = 0
        self._gathered: dict[_Key, list[Send]] = {}
        """Sends that are to be staged, by queue, and whether they have something that may not be."""
        self._sizes: dict[_Key, int] = {}
        self._refused: dict[_Key, str] = {}
        """Why these cannot be staged."""
        self._rest: list[Send] = []
        """What the last commit itself sends."""
        self._rest_bytes = 0

    async def run(self) -> int | None:
        """Returns how many messages were sent; None if that work was done before."""
        tries = 0
        while True:
            try:
                return await self._try()
            except StageNotFound:  # the store was opened again, or a queue was purged
                tries += 1
                if tries == _TRIES_MAX:
                    raise
                self._begin()

    async def _try(self) -> int | None:
        try:
            for piece in self._pieces:
                for send in await asyncio.to_thread(self._decode, piece):
                    await put_ids(send, self._find_id)
                    await self._take(send)
            for key in list(self._gathered):
                await self._flush(key)
            work = CommitWork(acks=[], sends=self._rest, mark=self._mark, stage=self._stage)
            replies = await self._shard.call(work)
        except BaseException:
            await self._drop()
            raise
        if isinstance(replies, AlreadyDone):
            await self._drop()
            return None
        return self._messages

    async def _take(self, send: Send) -> None:
        self._messages += len(send.bodies)
        key = (send.queue, bool(send.dedup_ids or send.delay_ms or send.due_ms))
        if self._is_small or key in self._refused:
            self._add_to_rest(key, [send])
            return
        self._gathered.setdefault(key, []).append(send)
        self._sizes[key] = self._sizes.get(key, 0) + _nbytes(send)
        if sum(self._sizes.values()) > COMMIT_BYTES:
            await self._flush(max(self._sizes, key=self._sizes.__getitem__))

    async def _flush(self, key: _Key) -> None:
        """Stage what has come for a queue; or find out that it cannot be."""
        sends = self._gathered.pop(key, [])
        self._sizes.pop(key, None)
        if not sends:
            return
        staged: Staged = await self._shard.call(StageWork(name=self._mark[0], sends=sends, stage=self._stage))
        self._stage = staged.stage
        if staged.refused:
            self._refused[key] = staged.refused
            self._add_to_rest(key, sends)

    def _add_to_rest(self, key: _Key, sends: list[Send]) -> None:
        self._rest += sends
        self._rest_bytes += sum(map(_nbytes, sends))
        if self._rest_bytes > self._bytes_max:
            why = f": {self._refused[key]}, which takes one commit for all of them" if key in self._refused else ""
            raise BatchTooLarge(
                f"more than {self._bytes_max} bytes are to be sent in one commit{why}. Raise publish_bytes_max in "
                "[rest] of the server, and publish again (in Spark: start the stream again, with the same checkpoint); "
                "or publish less at once (limit the batches of a stream with maxOffsetsPerTrigger or "
                "maxBytesPerTrigger from its first one on, write a table in parts, or send with "
                "delivery=at-least-once)"
            )

    async def _drop(self) -> None:
        """What was staged is not wanted. If the store cannot be told, it forgets it by itself."""
        stage, self._stage = self._stage, 0
        if stage:
            with contextlib.suppress(PenstockError, asyncio.CancelledError):
                await self._shard.call(StageWork(name=self._mark[0], sends=[], stage=stage, drop=True))


async def put_ids(send: Send, find_id: FindId) -> None:
    """Dead letters that were written with a stand-in for the id of their message get the real one."""
    for index, value in enumerate(send.origins or ()):
        if value is None:
            continue
        origin = Origin.decode(value)
        if origin.id == stand_in_id(origin.queue, origin.sequence):
            found = await find_id(origin.queue, origin.sequence)
            if found is not None:
                assert send.origins is not None
                send.origins[index] = msgspec.structs.replace(origin, id=found).encode()


def _nbytes(send: Send) -> int:
    """How much memory it takes, about: bodies may be empty, and all else large."""
    assert isinstance(send.bodies, PackedBodies)
    columns = (send.attributes, send.groups, send.dedup_ids, send.origins)
    values = sum(len(each) for column in columns for each in column or () if each is not None)
    return len(send.bodies.data) + send.bodies.offsets.nbytes + values
