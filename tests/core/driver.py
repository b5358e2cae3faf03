"""A driver in front of a broker and a memory store: does what the shard does, and distrusts it.

Every step ends with a commit, and with the demand that a broker opened from the store equals the live one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.errors import PenstockError
from penstock.core.queues.config import QueueConfig
from penstock.store.memory import MemoryStore

START_MS = 1_700_000_000_000
SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
_ENTROPY = bytes(range(64))
_STEPS_MAX = 100_000


class BrokerDriver:
    """A broker, its store and a clock that only moves when told to."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        *,
        now_ms: int = START_MS,
        checks: bool = True,
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        self.store = MemoryStore() if store is None else store
        self.now_ms = now_ms
        self.checks = checks
        self.woken: dict[Any, list[c.Delivery]] = {}
        self.place = (shard, shards)
        self.broker = Broker.open(self.store, now_ms, _ENTROPY, *self.place)
        self.commit()

    # -- steps --

    def step(self, *commands: c.Command, at_ms: int | None = None, commit: bool = True) -> list[Any]:
        """One step of the shard; the replies, errors among them."""
        self.now_ms = self.now_ms if at_ms is None else at_ms
        replies: list[Any] = []
        for command in commands:
            try:
                replies.append(self.broker.handle(command, self.now_ms))
            except PenstockError as error:
                replies.append(error)
        self.broker.finish(self.now_ms)
        self._take_woken()
        if commit:
            self.commit()
        return replies

    def do(self, command: c.Command, *, commit: bool = True) -> Any:
        """A step with one command; its reply, or its error raised."""
        (reply,) = self.step(command, commit=commit)
        if isinstance(reply, PenstockError):
            raise reply
        return reply

    def commit(self) -> None:
        """Commit what has changed, and compare with a broker opened from the store."""
        changes = self.broker.take_changes()
        self.store.commit(changes)
        self.broker.committed(changes)
        if self.checks:
            assert self.opened_anew(self.broker.now_ms).snapshot() == self.broker.snapshot()

    def opened_anew(self, now_ms: int | None = None) -> Broker:
        """Another broker on the same store, which is not written to."""
        return Broker.open(self.store, self.now_ms if now_ms is None else now_ms, b"", *self.place)

    def reopen(self, after_ms: int = 0) -> None:
        """Stop and start again; what was not committed is lost, as in a crash."""
        self.now_ms += after_ms
        self.broker = self.opened_anew()
        self.step()

    def advance(self, duration_ms: int) -> None:
        """Let time pass, waking the broker whenever it asks for it."""
        end_ms = self.now_ms + duration_ms
        for _ in range(_STEPS_MAX):
            deadline_ms = self.broker.next_deadline()
            if deadline_ms is None or deadline_ms > end_ms:
                break
            self.step(at_ms=max(deadline_ms, self.now_ms))
        else:
            raise AssertionError("the broker asks to be woken for ever")
        self.step(at_ms=end_ms)

    def _take_woken(self) -> None:
        for ticket, delivery in self.broker.take_woken():
            self.woken.setdefault(ticket, []).append(delivery)

    # -- shorthands --

    def create(self, name: str = "q", channels: tuple[str, ...] = (c.MAIN,), **settings: Any) -> c.QueueInfo:
        info: c.QueueInfo = self.do(c.CreateQueue(name=name, config=QueueConfig(**settings), channels=channels))
        return info

    def change(self, name: str = "q", **settings: Any) -> None:
        """Change a queue."""
        self.do(c.ChangeQueue(name=name, changes=settings))

    def send(self, *bodies: bytes, queue: str = "q", group: str | None = None, **fields: Any) -> c.Sent:
        """Send messages, all of one group if one is given."""
        if group is not None:
            fields["groups"] = [group] * len(bodies)
        sent: c.Sent = self.do(c.Send(queue=queue, bodies=list(bodies), **fields))
        return sent

    def send_fifo(self, group: str, *bodies: bytes, queue: str = "q") -> c.Sent:
        """Send messages of a group, each with its body as its dedup id."""
        return self.send(*bodies, queue=queue, group=group, dedup_ids=[body.decode() for body in bodies])

    def receive(self, limit: int = 1, *, queue: str = "q", **fields: Any) -> c.Delivery:
        """Receive without waiting."""
        delivery: c.Delivery = self.do(c.Receive(queue=queue, limit=limit, wait_ms=0, **fields))
        return delivery

    def wait(self, ticket: Any, limit: int = 1, *, queue: str = "q", wait_ms: int = 20_000, **fields: Any) -> None:
        """Receive, with nothing there."""
        reply = self.do(c.Receive(queue=queue, limit=limit, wait_ms=wait_ms, ticket=ticket, **fields))
        assert reply is None, "there was something to receive"

    def take_woken(self, ticket: Any) -> list[bytes]:
        """The bodies that one who waited was given since the last time."""
        return [body for delivery in self.woken.pop(ticket, []) for body in bodies_of(delivery)]

    def ack(self, delivery: c.Delivery) -> c.Settled:
        """Acknowledge everything of a delivery."""
        settled: c.Settled = self.do(c.Ack(queue=delivery.queue, channel=delivery.channel, spans=delivery.spans()))
        return settled

    def release(self, delivery: c.Delivery, *, delay_ms: int | None = None, error: str = "") -> c.Settled:
        """Release everything of a delivery."""
        settled: c.Settled = self.do(
            c.Release(
                queue=delivery.queue,
                channel=delivery.channel,
                spans=delivery.spans(),
                delay_ms=delay_ms,
                error=error,
            )
        )
        return settled

    def extend(self, delivery: c.Delivery, lease_ms: int) -> c.Settled:
        settled: c.Settled = self.do(
            c.Extend(queue=delivery.queue, channel=delivery.channel, spans=delivery.spans(), lease_ms=lease_ms)
        )
        return settled

    def fail(self, times: int, *, queue: str = "q", error: str = "", channel: str = c.MAIN) -> None:
        """Receive and release everything that is ready, to come again at once, some times."""
        for _ in range(times):
            delivery = self.receive(1_000, queue=queue, channel=channel)
            assert delivery.count, "nothing to fail"
            self.release(delivery, delay_ms=0, error=error)

    def browse(self, queue: str = "q", **fields: Any) -> list[c.Seen]:
        """Look at messages."""
        seen: list[c.Seen] = self.do(c.Browse(queue=queue, **fields))
        return seen

    def stats(self, queue: str = "q") -> c.Stats:
        """A queue's counters."""
        stats: c.Stats = self.do(c.QueueStats(name=queue))
        return stats

    def counts(self, queue: str = "q", channel: str = c.MAIN) -> tuple[int, int, int]:
        """(ready, leased, delayed) of a channel."""
        found = self.stats(queue).channels[channel]
        return found.ready, found.leased, found.delayed

    # -- below the core --

    def chunk_keys(self) -> list[bytes]:
        """Every chunk in the store."""
        return self.store.list_chunks(b"", b"", 1_000_000)

    def damage(self, key: bytes) -> None:
        """Flip a bit of a stored chunk, behind the broker's back, and open anew so that no cache hides it."""
        data = bytearray(self.store.read_chunk(key))
        data[-1] ^= 1
        self.store._chunks[key] = Raw(bytes(data))
        self.reopen()


class Raw:
    """Stored bytes, as they are."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def parts(self) -> list[bytes]:
        return [self.data]

    @property
    def nbytes(self) -> int:
        return len(self.data)


def bodies_of(delivery: c.Delivery) -> list[bytes]:
    """The bodies of a delivery, in order."""
    return bodies_of_runs(delivery.runs)


def bodies_of_runs(runs: Iterable[c.Run]) -> list[bytes]:
    """The bodies of some runs, in order."""
    return [body for run in runs for body in run.chunk.body_list(run.start, run.stop)]


def attempts_of(delivery: c.Delivery) -> list[int]:
    """How often each message of a delivery was handed out."""
    return [attempt for run in delivery.runs for attempt in run.attempts.tolist()]


def sequences_of(delivery: c.Delivery) -> list[int]:
    """The sequence numbers of a delivery, in order."""
    return [run.first + index for run in delivery.runs for index in range(run.count)]


def calls_of(action: Callable[[], object]) -> int:
    """How many calls an action makes, Python's and C's: a cost that does not depend on the machine."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # what it finds to end makes calls as well
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls
