"""Staging: sends of a unit of work that is too large for one commit, written before it, and seen by nobody.

A *stage* is numbered. Each run of messages for one queue and priority has its chunks in a lane of kind STAGED, under
the stage's number; what is for another shard has them beside this shard's outbox. `CommitWork` names the stage, and
makes all of it visible by a few segments (`core/storage/segments.py`), in the commit that holds the mark.

What is not committed is dropped: when its owner says so, when a queue of it is purged or deleted, after an hour in
which nothing came, and when the store is opened again, by a record that names the stage. The owner begins anew then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.commands import ForwardedMessages, Send, Staged, StageWork
from penstock.core.errors import StageNotFound
from penstock.core.handlers.once import Marks
from penstock.core.queues.config import HOUR_MS, MARKED_BYTES_MAX, QueueConfig, config_for
from penstock.core.queues.draft import CHUNK_MESSAGES_MAX, CHUNK_SIZE_MAX, Draft, Messages, Place
from penstock.core.queues.queue import NORMAL_PLACES, Queue
from penstock.core.storage import keys
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import ChunkKey, Kind
from penstock.core.storage.records import SegmentRecord, StageRecord
from penstock.core.storage.segments import Segment, staged_lane
from penstock.core.transfer.outbox import forwarded

if TYPE_CHECKING:
    from penstock.core.broker import Broker

KEPT_MS: Final = HOUR_MS
STAGES_MAX: Final = 100


class Run:
    """The staged messages of one queue and priority, or for one other shard."""

    def __init__(self) -> None:
        self.chunks: list[ChunkKey] = []
        self.effects: list[tuple[ForwardedMessages, int]] = []
        """For another shard: what is to be done with the messages of each chunk, and how many they are."""
        self.next = 0
        """The number of the next message; for another shard, of the next chunk."""
        self.has_groups = False


class Stage:
    """Messages that wait for the commit of their unit of work."""

    def __init__(self, number: int, now_ms: int) -> None:
        self.number = number
        self.touched_ms = now_ms
        self.runs: dict[tuple[int, int], Run] = {}
        """By queue, and the lane where they are going to be seen."""


class Staging:
    """Takes the sends of large units of work, and makes them visible."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._stages: dict[int, Stage] = {}

    # -- what comes --

    def _stage_work(self, command: StageWork) -> Staged:
        Marks.check(command.name, 0)
        broker = self.broker
        if command.drop:
            self.drop(command.stage)
            return Staged(0)
        here = broker.meta.shard
        shards = broker.work.shards_of(command.send_shards, [send.queue for send in command.sends], "sends")
        local = [send for send, shard in zip(command.sends, shards, strict=True) if shard == here]
        broker.work.check_sends(local, MARKED_BYTES_MAX)
        for send in local:
            config = broker.queues[send.queue].config if send.queue in broker.queues else None
            why = _refusal(send, config_for(send.queue, send.config) if config is None else config)
            if why:
                return Staged(command.stage, why)
        away = [(shard, send) for send, shard in zip(command.sends, shards, strict=True) if shard != here]
        for _, send in away:
            broker.sending.check_elsewhere(send)
        stage = self.find(command.stage) if command.stage else self._begin()
        stage.touched_ms = broker.now_ms
        for send in local:
            self._add_here(stage, send)
        for shard, send in away:
            self._add_away(stage, shard, send)
        self._save(stage)
        broker.must_commit = True
        return Staged(stage.number)

    def _begin(self) -> Stage:
        meta, now_ms = self.broker.meta, self.broker.now_ms
        while len(self._stages) >= STAGES_MAX:
            self.drop(min(self._stages.values(), key=lambda stage: stage.touched_ms).number)
        stage = self._stages[meta.next_stage] = Stage(meta.next_stage, now_ms)
        meta.next_stage += 1
        self.broker.save_meta()
        self.broker.schedule(now_ms + KEPT_MS, "stage", stage.number)
        return stage

    def _add_here(self, stage: Stage, send: Send) -> None:
        queue = self.broker.queues.get(send.queue)
        if queue is None:
            queue = self.broker.catalog.add_queue(send.queue, config_for(send.queue, send.config), send.channels)
        lane = NORMAL_PLACES[send.priority].lane
        run = stage.runs.setdefault((queue.id, lane), Run())
        for chunk in _chunks(forwarded(send, 0)[1], run.next):
            key = ChunkKey(queue.id, staged_lane(lane), stage.number, run.next, chunk.count, chunk.size, 0)
            self.broker.write_buffer.changes.put_chunk(key.packed, chunk)
            run.chunks.append(key)
            run.next += chunk.count
            run.has_groups = run.has_groups or chunk.has_groups

    def _add_away(self, stage: Stage, target: int, send: Send) -> None:
        effect, messages = forwarded(send, self.broker.now_ms)
        number = keys.OUTBOX_QUEUES | target
        run = stage.runs.setdefault((number, 0), Run())
        for chunk in _chunks(messages, 0):
            key = ChunkKey(number, staged_lane(0), stage.number, run.next, 0, 0, 0)
            self.broker.write_buffer.changes.put_chunk(key.packed, chunk)
            run.effects.append((effect, chunk.count))
            run.next += 1

    def _save(self, stage: Stage) -> None:
        record = msgspec.msgpack.encode(StageRecord(list(stage.runs)))
        self.broker.write_buffer.changes.put_record(keys.record(Kind.STAGE, stage.number), record)

    # -- what becomes of it --

    def find(self, number: int) -> Stage:
        """A stage that is there, with all that was written to it."""
        stage = self._stages.get(number)
        if stage is None:
            raise StageNotFound(
                f"there is no stage {number} any more (the server was started again, or a queue of it was purged or "
                "deleted): nothing was sent; publish again"
            )
        return stage

    def commit(self, number: int) -> None:
        """Its messages get their numbers, and are seen from now on."""
        stage = self._stages.pop(number)
        broker, now_ms = self.broker, self.broker.now_ms
        for (queue_id, lane), run in stage.runs.items():
            if run.effects:
                broker.outbox.publish(queue_id & ~keys.OUTBOX_QUEUES, stage.number, run.effects)
                continue
            queue = broker.queues_by_id[queue_id]
            queue.seal()
            record = SegmentRecord(stage.number, run.next, now_ms, run.next)
            queue.publish(Segment(queue_id, lane, queue.next_sequence, record), run.chunks, has_groups=run.has_groups)
        broker.write_buffer.changes.delete_record(keys.record(Kind.STAGE, number))
        broker.must_commit = True

    def drop(self, number: int) -> None:
        """Forget a stage and its messages; one that is not known is fine."""
        stage = self._stages.pop(number, None)
        if stage is not None:
            self._drop_runs(number, list(stage.runs))

    def _drop_runs(self, number: int, runs: list[tuple[int, int]]) -> None:
        changes = self.broker.write_buffer.changes
        for queue_id, lane in runs:
            changes.drop(keys.lane_chunks(queue_id, staged_lane(lane), number))
        changes.delete_record(keys.record(Kind.STAGE, number))

    def drop_of(self, queue: Queue) -> None:
        """A queue loses its messages: work that is on its way to it begins anew."""
        for stage in list(self._stages.values()):
            if any(queue_id == queue.id for queue_id, _ in stage.runs):
                self.drop(stage.number)

    def expire(self, number: int, _detail: object, _time_ms: int) -> None:
        """Nobody has finished a stage for long."""
        stage = self._stages.get(number)
        if stage is None:
            return
        if stage.touched_ms + KEPT_MS <= self.broker.now_ms:
            self.drop(number)
        else:
            self.broker.schedule(stage.touched_ms + KEPT_MS, "stage", number)

    def restore(self, number: int, data: bytes) -> None:
        """The store was opened: whoever had begun this stage begins another one."""
        self._drop_runs(number, msgspec.msgpack.decode(data, type=StageRecord).runs)


def _refusal(send: Send, config: QueueConfig) -> str:
    """Why the messages of a send cannot wait without being looked at one by one when they are numbered."""
    if config.is_fifo:
        return f"queue {send.queue!r} is FIFO"
    if send.dedup_ids is not None:
        return f"messages for queue {send.queue!r} have deduplication ids"
    if send.due_ms is not None or (config.delay_ms if send.delay_ms is None else send.delay_ms):
        return f"messages for queue {send.queue!r} are delayed"
    return ""


def _chunks(messages: Messages, base: int) -> list[Chunk]:
    """Messages as chunks that follow each other. They get their times when they get their numbers."""
    fits = len(messages) <= CHUNK_MESSAGES_MAX and messages.size <= CHUNK_SIZE_MAX
    found: list[Chunk] = []
    for part, size in ((messages, messages.size),) if fits else messages.parts():
        found.append(Draft(Place(0), base, 0, part, size).seal())
        base += found[-1].count
    return found
