"""Event records: an internal queue that holds who did what when. `penstock pipeline run rollup` reads it.

How it works. The core notes what happens to messages, run by run, while `Broker.message_events` is a list. When a step
is over, and with it as durable as it has to be, the `Recorder` takes the notes, joins neighbours, leaves out what is
not to be recorded (the events of the events queue itself; all but a sample) and keeps the rest. A later step sends
them, as one run of small JSON messages, in its own commit: a step that commits anyway, once some have gathered, or the
first one after `flush_ms`. So events cost no commits of their own while there is work.

The work comes first. Leases that are not committed yet are saved before events are written, so that a disk that turns
out to be full for the events costs nobody else anything. What waits to be written is bounded: beyond that, events are
dropped, and an event says how many. While the disk is full nothing is written. If sending them fails, the work of the
step is not touched. What a failed step has done never happened, and its events are thrown away with the broker that
noted them; those that it was about to write are dropped, because they may have been kept: no event is there twice.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from penstock.core.broker import Broker
from penstock.core.commands import ChangeQueue, CreateQueue, DescribeQueue, MessageEvent, QueueInfo, Send
from penstock.core.errors import PenstockError, QueueNotFound, StoreError
from penstock.core.queues.config import QueueConfig

PENDING_MAX = 20_000
"""Events that may wait to be written."""
BATCH_MAX = 4_096
"""Events that are written by one step."""
BATCH_MIN = 256
"""With fewer of them, and young ones, a step that commits anyway is left alone."""
ERROR_LENGTH_MAX = 200
NOT_WRITTEN = "dropped"

log = logging.getLogger("penstock.events")


class EventRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event, as it stands in the queue: JSON, without the fields that have nothing to say."""

    at: int
    """When, in milliseconds since 1970."""
    what: str
    """sent, received, acked, released, expired, returned, dead, passed; `dropped` counts events that are missing."""
    queue: str = ""
    channel: str = ""
    first: int = -1
    last: int = -1
    """The sequence numbers of the run; -1 where they are not known."""
    count: int = 0
    attempt: int = 0
    latency_ms: int = -1
    """From send to this; -1 where it is not known."""
    bytes: int = 0
    session: str = ""
    error: str = ""
    sample: float = 1.0
    """Which share of such events is recorded: this one stands for 1 / sample of them."""


class Recorder:
    """Gathers what happens on a shard, and sends it to the events queue. Used by one shard, in its steps."""

    def __init__(
        self,
        queue: str,
        config: QueueConfig,
        *,
        sample: float = 1.0,
        flush_ms: int = 1_000,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.queue = queue
        self._config = config
        self._sample = sample
        self._flush_ms = flush_ms
        self._chance = chance
        self._pending: list[EventRecord] = []
        self._since_ms = 0
        self._dropped = 0
        self._in_step = 0
        """How many of the pending ones the running step sends."""
        self._is_ready = False

    # -- at the end of a step --

    def settle(self, broker: Broker, now_ms: int) -> None:
        """A step went well: what it has written is written, and what it has done is taken up."""
        if self._in_step:
            del self._pending[: self._in_step]
            self._in_step = 0
            self._since_ms = now_ms
        happened = broker.message_events
        if happened:
            self._take(happened, now_ms)
            happened.clear()

    def _take(self, happened: list[MessageEvent], now_ms: int) -> None:
        if not self._pending:
            self._since_ms = now_ms
        room = PENDING_MAX - len(self._pending)
        for each in _joined(happened):
            if each.queue == self.queue or (self._sample < 1.0 and self._chance() >= self._sample):
                continue
            if room > 0:
                self._pending.append(_record(each, self._sample))
                room -= 1
            else:
                self._dropped += 1

    # -- in a step --

    def is_about_to_write(self, now_ms: int) -> bool:
        """Whether the next `write` may send something."""
        return bool(self._pending) and self._is_due(True, now_ms)

    def write(self, broker: Broker, now_ms: int, *, may_add: bool = True) -> None:
        """Send what waits, if it is time to and there is space, as part of the step that is running."""
        if self._in_step:  # the step that was to write them has failed
            self._dropped += self._in_step
            del self._pending[: self._in_step]
            self._in_step = 0
        if not self._pending or not may_add or not self._is_due(broker.must_commit, now_ms):
            return
        if self._dropped:
            told = EventRecord(at=now_ms, what=NOT_WRITTEN, count=self._dropped)
            log.warning("%d events were dropped: more came than could be written", self._dropped)
            self._dropped = 0
            self._pending.append(told)
        events = self._pending[:BATCH_MAX]
        try:
            self._make_ready(broker, now_ms)
            bodies = [_encode(event) for event in events]
            broker.handle(Send(queue=self.queue, bodies=bodies, create=False), now_ms)
        except StoreError:  # a read failed: the broker has to be opened again
            raise
        except PenstockError as error:
            log.warning("%d events could not be written, and were dropped: %s", len(events), error)
        self._in_step = len(events)

    def _is_due(self, commits_anyway: bool, now_ms: int) -> bool:
        waited_ms = now_ms - self._since_ms
        if commits_anyway:
            return len(self._pending) >= BATCH_MIN or waited_ms >= self._flush_ms // 4
        return len(self._pending) >= BATCH_MAX or waited_ms >= self._flush_ms

    def wake_at_ms(self) -> int | None:
        """When a step has to run for the sake of events."""
        return self._since_ms + self._flush_ms if self._pending else None

    def _make_ready(self, broker: Broker, now_ms: int) -> None:
        """The events queue exists, and keeps what the settings say."""
        if self._is_ready and self.queue in broker.queues:
            return
        try:
            info: QueueInfo = broker.handle(DescribeQueue(name=self.queue), now_ms)
            wanted = {name: getattr(self._config, name) for name in ("retention_ms", "retention_bytes")}
            if info.config.changed(wanted) != info.config:
                broker.handle(ChangeQueue(name=self.queue, changes=wanted), now_ms)
        except QueueNotFound:
            broker.handle(CreateQueue(name=self.queue, config=self._config, channels=()), now_ms)
        self._is_ready = True


_encode: Callable[[EventRecord], bytes] = msgspec.json.Encoder().encode


def _joined(happened: list[MessageEvent]) -> Iterator[MessageEvent]:
    """Neighbours to which the same happened, as one: a step of a thousand single acks is one event.

    >>> one = MessageEvent("acked", "orders", "main", first=1, messages=2, at_ms=5, sent_ms=1)
    >>> [(each.first, each.last) for each in _joined([one, one._replace(first=3), one._replace(first=9)])]
    [(1, 4), (9, 10)]
    """
    last: MessageEvent | None = None
    messages = size = 0
    for each in happened:
        if last is not None and each.first == last.first + messages and _is_alike(each, last):
            messages += each.messages
            size += each.size
            continue
        if last is not None:
            yield last if messages == last.messages else last._replace(messages=messages, size=size)
        last, messages, size = each, each.messages, each.size
    if last is not None:
        yield last if messages == last.messages else last._replace(messages=messages, size=size)


def _is_alike(one: MessageEvent, other: MessageEvent) -> bool:
    """Whether all is the same but the run and its size."""
    return one[5:8] == other[5:8] and one[:3] == other[:3] and one[9:] == other[9:] and one.first >= 0


def _record(each: MessageEvent, sample: float) -> EventRecord:
    is_known = each.first >= 0
    return EventRecord(
        at=each.at_ms,
        what=each.what,
        queue=each.queue,
        channel=each.channel,
        first=each.first,
        last=each.last if is_known else -1,
        count=each.messages,
        attempt=each.attempt,
        latency_ms=max(0, each.at_ms - each.sent_ms) if each.sent_ms and each.what != "sent" else -1,
        bytes=each.size,
        session=each.session,
        error=each.error[:ERROR_LENGTH_MAX],
        sample=sample,
    )


# How long messages take from send to receive, and to ack: sampled, for the history. Now and then a shard lets the core
# note what happens in one step: four times a second on average. All other steps cost nothing but the question. Looks
# that were not needed are saved, so that every message is measured where there are few. When looks are scarce, chance
# decides at which step the next one is: a client that sends, receives and acks in turn would else be looked at in the
# same of these steps for ever.

_SAMPLE_MS = 250
_SAVED_MAX = 40
"""Looks that are saved up: those of a point of the history."""
_NOTED_MAX = 2_000
"""Runs of messages whose latencies are kept, of one queue."""
_QUANTILES = (0.50, 0.95, 0.99)

Latencies = list[tuple[int, int]]
"""(milliseconds, how many messages took that long)."""


class LatencySampler:
    """Looks at one step of a shard now and then: how long messages took to be received, and to be acked."""

    __slots__ = ("_chance", "_spent_ms", "acked", "received")

    def __init__(self) -> None:
        self._spent_ms = 0
        """Looks are paid for up to this time."""
        self._chance = 1
        self.received: dict[str, Latencies] = {}
        self.acked: dict[str, Latencies] = {}

    def wants(self, now_ms: int) -> bool:
        """Whether the step that begins now shall be looked at."""
        saved_ms = now_ms - self._spent_ms
        if saved_ms < _SAMPLE_MS:
            self._spent_ms = min(self._spent_ms, now_ms)  # the clock may have been set back
            return False
        if saved_ms < _SAVED_MAX * _SAMPLE_MS // 2:
            self._chance = (self._chance * 1_103_515_245 + 12_345) & 0x7FFFFFFF
            if self._chance & 0x30000:
                return False
        self._spent_ms = max(self._spent_ms, now_ms - _SAVED_MAX * _SAMPLE_MS) + _SAMPLE_MS
        return True

    def take(self, happened: Sequence[MessageEvent]) -> None:
        """What happened in that step. Where that is nothing, the look was free."""
        if not happened:
            self._spent_ms -= _SAMPLE_MS
        for event in happened:
            found = self.received if event.what == "received" else self.acked if event.what == "acked" else None
            if found is not None and event.sent_ms:
                noted = found.setdefault(event.queue, [])
                if len(noted) < _NOTED_MAX:
                    noted.append((max(0, event.at_ms - event.sent_ms), event.messages))

    def drain(self) -> tuple[dict[str, Latencies], dict[str, Latencies]]:
        """Everything since the last time, of receives and of acks."""
        found = self.received, self.acked
        self.received, self.acked = {}, {}
        return found


def percentiles(latencies: Latencies) -> list[float]:
    """Seconds within which half, 95 and 99 in a hundred of the messages came; NaN without any.

    >>> percentiles([(10, 98), (5_000, 2)])
    [0.01, 0.01, 5.0]
    """
    if not latencies:
        return [float("nan")] * len(_QUANTILES)
    ordered = np.array(sorted(latencies), np.int64)
    reached = np.cumsum(ordered[:, 1])
    ranks = [max(1, int(np.ceil(each * reached[-1]))) for each in _QUANTILES]
    return [float(ordered[int(np.searchsorted(reached, rank)), 0]) / 1_000 for rank in ranks]
