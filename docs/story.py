"""The messages of `docs/life-of-a-message.md`, run through a broker, and what each moment of their lives commits."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.broker import Broker
from penstock.core.commands import Ack, Command, CreateQueue, Delivery, Receive, Release, Send, Span, StartRedrive
from penstock.core.queues.config import Backoff, QueueConfig
from penstock.core.settings import SECOND_MS
from penstock.core.storage.changes import Changes
from penstock.core.storage.keys import ChunkKey, Kind, LaneKind, lane_channel, lane_kind, number_of
from penstock.store.memory import MemoryStore

QUEUE = "orders"
CONFIG = QueueConfig(max_receives=4, backoff=Backoff("fixed", base_ms=SECOND_MS))
_HEAD = ["| moment | what happens | commit | chunks | records |", "|---|---|---|---|---|"]


class Story:
    """A broker over a store in memory, told what happens; every moment becomes a row."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now_ms = 1_000_000
        self.broker = Broker.open(self.store, self.now_ms, bytes(64))
        self.held: list[Span] = []
        self.rows = list(_HEAD)
        self._commit()

    def tell(self, moment: str, meaning: str, command: Command | None = None) -> None:
        """Something happens, and is committed by itself."""
        if command is not None:
            reply = self.broker.handle(command, self.now_ms)
            if isinstance(reply, Delivery):
                self.held = [span for run in reply.runs for span in run.spans()]
        durable, changes = self._commit()
        commit = "durable" if durable else "lazy"
        self.rows.append(f"| {moment} | {meaning} | {commit} | {_chunks(changes)} | {_records(changes)} |")

    def wait(self, length_ms: int) -> None:
        """Let time pass."""
        self.now_ms += length_ms

    def _commit(self) -> tuple[bool, Changes]:
        self.broker.finish(self.now_ms)
        durable = self.broker.must_commit
        changes = self.broker.take_changes()
        self.store.commit(changes)
        self.broker.committed(changes)
        return durable, changes


def good_life() -> str:
    """Sent, received, acked."""
    story = _opened()
    story.tell("sent", "a chunk of one message, ahead of the cursor", Send(queue=QUEUE, bodies=[b"one"]))
    story.tell("received", "the cursor brings the chunk in; its entry is whole", Receive(queue=QUEUE))
    story.tell("acked", "the last message of its chunk, which nobody else needs", Ack(queue=QUEUE, spans=story.held))
    return "\n".join(story.rows)


def hard_life() -> str:
    """Sent, failed four times, dead, redriven."""
    story = _opened()
    story.broker.handle(Send(queue=QUEUE, bodies=[b"one"]), story.now_ms)
    story.tell("", "", Receive(queue=QUEUE))
    story.tell("", "", Ack(queue=QUEUE, spans=story.held))
    story.rows = list(_HEAD)

    def released(error: str) -> Release:
        return Release(queue=QUEUE, spans=story.held, error=error)

    story.tell("sent", "one chunk, two messages", Send(queue=QUEUE, bodies=[b"two", b"three"]))
    story.tell("received, attempt 1", "one of two is leased: the entry is spread", Receive(queue=QUEUE))
    story.tell("released: boom", "the first failure: ready again in place", released("boom"))
    story.tell("received, attempt 2", "it comes before messages that were never delivered", Receive(queue=QUEUE))
    story.tell("released: boom", "moved to the retry lane, DELAYED for a second", released("boom"))
    story.tell("the other one is received", "it is the turn of messages never delivered before", Receive(queue=QUEUE))
    story.tell("the other one is acked", "its chunk is done", Ack(queue=QUEUE, spans=story.held))
    story.wait(SECOND_MS)
    story.tell("due", "READY, in the retry lane")
    story.tell("received, attempt 3", "it would take turns with new messages", Receive(queue=QUEUE))
    story.wait(CONFIG.lease_ms)
    story.tell("the lease runs out", "this is a failure, too: it stays in the retry lane, DELAYED")
    story.wait(SECOND_MS)
    story.tell("due", "READY once more")
    story.tell("received, attempt 4", "the last attempt that is allowed", Receive(queue=QUEUE))
    story.tell("released: boom", "moved to the dead-letter queue, which is created", released("boom"))
    story.tell("redriven", "moved back to the queue that it came from", StartRedrive(queue="orders.dead"))
    return "\n".join(story.rows)


def _opened() -> Story:
    story = Story()
    story.tell("", "", CreateQueue(name=QUEUE, config=CONFIG))
    story.rows = list(_HEAD)
    return story


def _chunks(changes: Changes) -> str:
    return ", ".join(
        f"{'put' if chunk is not None else 'delete'} {_place(ChunkKey.unpack(key))}"
        for key, chunk in changes.chunks.items()
    )


def _place(key: ChunkKey) -> str:
    owner = f" of channel {lane_channel(key.lane)}" if lane_channel(key.lane) else ""
    lane = f"`{LaneKind(lane_kind(key.lane)).name}`{owner}"
    last = key.base + key.messages - 1
    return f"{key.queue_id}:{key.base}" + (f"–{last}" if last > key.base else "") + f" in {lane}"


def _records(changes: Changes) -> str:
    written: dict[str, list[int]] = {}
    for key, value in changes.records.items():
        name = f"{'delete ' if value is None else ''}`{Kind(key[0]).name}`"
        written.setdefault(name, []).append(number_of(key))
    return ", ".join(name + _whose(name, numbers) for name, numbers in sorted(written.items(), key=_kept_first))


def _kept_first(item: tuple[str, list[int]]) -> tuple[bool, str]:
    return item[0].startswith("delete"), item[0]


def _whose(name: str, numbers: list[int]) -> str:
    queues = sorted(set(numbers))
    if "ENTRY" in name and len(numbers) > len(queues):
        return f" (of {len(numbers)} chunks)"
    if any(kind in name for kind in ("META", "TASK")) or queues == [1]:
        return ""
    return f" of queue {' and '.join(map(str, queues))}"


TABLES: dict[str, Callable[[], str]] = {"good-life": good_life, "hard-life": hard_life}
