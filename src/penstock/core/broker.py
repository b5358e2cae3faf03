"""The broker: every queue of one shard, and the one way in.

`handle` takes a command and the time; what it changes is gathered on the shelf, for one commit of many commands. A
step of whoever drives it is: `handle` each command, `finish`, `take_woken`; then, if `must_commit`, `take_changes`,
commit them, `committed`, and only then let the replies go. If not, the replies may go at once, and the changes
(leases, attempts, failures) with a later commit. If a commit fails, this broker is thrown away and another one opened
from the store.

Time never goes back here: a step with an earlier `now` happens at the latest time seen so far.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator, Mapping
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, Final

import msgspec

from penstock.core import inbox, keys, position, redrive
from penstock.core.changes import Changes, Reader
from penstock.core.channel import Channel
from penstock.core.chunk import Chunk, PackedBodies
from penstock.core.commands import (
    MAIN,
    Ack,
    AckConsumer,
    AckSequences,
    AckUpTo,
    AddCredit,
    AlreadyDone,
    Browse,
    CancelRedrive,
    CancelWait,
    CatalogEvent,
    ChangeQueue,
    ChunkList,
    Command,
    CommitWork,
    CreateChannel,
    CreateQueue,
    Damage,
    DeleteChannel,
    DeleteConsumer,
    DeleteQueue,
    Delivery,
    DescribeQueue,
    EndSession,
    Extend,
    ExtendSequences,
    FindOffsets,
    ForgetOutbox,
    ForwardedMessages,
    GiveBack,
    Heartbeat,
    HoldForWork,
    LastMark,
    ListChunks,
    ListQueues,
    ListRedrives,
    Offsets,
    Once,
    OpenSession,
    OutboxEntry,
    PauseChannel,
    PauseQueue,
    PurgeBacklog,
    PurgeChannel,
    PurgeQueue,
    QueueInfo,
    QueueStats,
    ReadOutbox,
    ReadRecords,
    RecallWork,
    Receive,
    Records,
    RedriveTask,
    Refused,
    Release,
    ReleaseSequences,
    Run,
    Seen,
    Send,
    Sent,
    SetCredit,
    Settled,
    Span,
    StartRedrive,
    Stats,
    Subscribe,
    Subscribed,
    Taken,
    TakeOutbox,
)
from penstock.core.config import (
    DAY_MS,
    DEDUP_WINDOW_MS,
    DELAY_MS_MAX,
    LEASE_MS_MAX,
    MESSAGE_BYTES_CEILING,
    PRIORITY_MAX,
    UNCHANGEABLE,
    QueueConfig,
    check_name,
    dead_letter_name,
)
from penstock.core.demand import Waiter
from penstock.core.draft import Messages
from penstock.core.errors import (
    BatchTooLarge,
    ChannelNotFound,
    ChunkDamaged,
    ConsumerNotFound,
    ForeignReceipt,
    InvalidConfig,
    InvalidName,
    InvalidRequest,
    MarkMoved,
    MessageTooLarge,
    OverLimit,
    PenstockError,
    QueueChanged,
    QueueExists,
    QueueNotFound,
    RewindRefused,
    SessionNotFound,
    TaskNotFound,
    Throttled,
    WorkRefused,
)
from penstock.core.happenings import Happening
from penstock.core.identity import message_id, receipt_key
from penstock.core.keys import Kind
from penstock.core.marks import Marks
from penstock.core.once import OnceMemory
from penstock.core.origin import Origin
from penstock.core.outbox import Outbox
from penstock.core.partition import PARTITION_SHIFT, SHARD_SHIFT, SHARDS_MAX, partition_of
from penstock.core.queue import Queue
from penstock.core.receipt import Receipt
from penstock.core.records import Meta, Session
from penstock.core.runs import merged_spans
from penstock.core.shelf import Shelf
from penstock.core.window import Entry

FORMAT_VERSION = 1
BATCH_BYTES_MAX = 256 * 1024 * 1024
RECEIVE_LIMIT_MAX = 1_000_000
_TEXT_LENGTH_MAX = 128
_SECRET_BYTES = 32
_REALM_BYTES = 8
_RECEIPT_KEYS_MAX = 10_000
_fields_of: Final = msgspec.structs.astuple
_BARE_MAX: Final = 16
"""Up to so many bodies are looked at one by one."""
_BARE_FROM: Final = Send.__struct_fields__.index("attributes")
_BARE_TO: Final = Send.__struct_fields__.index("due_ms") + 1
_BARE: Final = _fields_of(Send(queue="", bodies=[]))[_BARE_FROM:_BARE_TO]
"""What a send says besides queue and bodies when it says nothing."""


class Broker:
    """Every queue of one shard. See the top of this file for how it is driven."""

    def __init__(self, reader: Reader, meta: Meta) -> None:
        self.shelf = Shelf(reader)
        self.meta = meta
        self.now_ms = 0
        self.queues: dict[str, Queue] = {}
        self.sessions: dict[int, Session] = {}
        self.tasks: dict[int, RedriveTask] = {}
        self.marks = Marks()
        self.outbox = Outbox(self)
        self.must_commit = False
        self.drafts: dict[Queue, None] = {}
        self.dirty_queues: dict[Queue, None] = {}
        self.dirty_channels: dict[Channel, None] = {}
        self.reports: list[Damage] = []
        self.events: list[CatalogEvent] = []
        """Queues and channels that came or went since the last `take_events`."""
        self.happenings: list[Happening] | None = None
        """What happened to messages since somebody emptied it; None while nobody wants to know."""
        self._by_id: dict[int, Queue] = {}
        self._held: dict[int, dict[Channel, None]] = {}
        """Session -> the channels in which it may hold leases."""
        self._timers: list[tuple[int, int, str, Any, Any]] = []
        self._timer_count = 0
        self._once: dict[tuple[str, int], int] = {}
        self._awake: dict[Channel, None] = {}
        self._woken: list[tuple[Any, Delivery]] = []
        self._waiters: dict[Any, tuple[Channel, Waiter]] = {}
        self._subscriptions: dict[int, tuple[Channel, Waiter]] = {}
        self._next_subscription = 1
        self._receipt_keys: dict[int, bytes] = {}
        self._memory = OnceMemory()

    # -- opening --

    @classmethod
    def open(cls, reader: Reader, now_ms: int, entropy: bytes, shard: int | None = 0, shards: int = 1) -> Broker:
        """The broker as the store has it. `entropy` makes the secret and the realm of a store that is new.

        `shard` of `shards` is what a new store becomes, and what an old one has to be; None: whatever it is.
        """
        found = next(reader.scan(keys.record(Kind.META)), None)
        if found is not None:
            broker = cls(reader, msgspec.msgpack.decode(found[1], type=Meta))
            if broker.meta.version != FORMAT_VERSION:
                raise InvalidConfig(
                    f"the store has format {broker.meta.version}, and this version of Penstock knows {FORMAT_VERSION}: "
                    "use the version that wrote it, or a newer one"
                )
            if shard is not None:
                broker._check_shard(shard, shards)
            broker.now_ms = now_ms
            broker._restore()
            return broker
        if len(entropy) < _SECRET_BYTES + _REALM_BYTES:
            raise InvalidRequest(f"a new store needs at least {_SECRET_BYTES + _REALM_BYTES} bytes of entropy")
        realm = int.from_bytes(entropy[_SECRET_BYTES : _SECRET_BYTES + _REALM_BYTES], "big")
        shard = shard or 0
        if not 0 <= shard < shards <= SHARDS_MAX:
            raise InvalidConfig(f"shard {shard} of {shards}: shards count from 0, and there are at most {SHARDS_MAX}")
        first_queue = (shard << SHARD_SHIFT) + 1
        meta = Meta(FORMAT_VERSION, entropy[:_SECRET_BYTES], realm, first_queue, next_task=first_queue)
        meta.shard, meta.shards, meta.made_ms = shard, shards, now_ms
        broker = cls(reader, meta)
        broker.now_ms = now_ms
        broker._save_meta()
        return broker

    def _check_shard(self, shard: int, shards: int) -> None:
        """Where a queue lives follows from the number of shards: a store cannot become another one."""
        if (self.meta.shard, self.meta.shards) != (shard, shards):
            raise InvalidConfig(
                f"the store is shard {self.meta.shard} of {self.meta.shards}, and was opened as shard {shard} of "
                f"{shards}: open it as what it is, or move its messages to a store that is new"
            )

    def _restore(self) -> None:
        for record_key, data in self._records(Kind.SESSION):
            self._restore_session(keys.number_of(record_key), data)
        for record_key, data in self._records(Kind.QUEUE):
            queue = Queue.restore(self, keys.number_of(record_key), data)
            self.queues[queue.name] = self._by_id[queue.id] = queue
        for record_key, data in self._records(Kind.COUNTERS):
            self._by_id[keys.number_of(record_key)].restore_counters(data)
        channels: dict[tuple[int, int], Channel] = {}
        for record_key, data in self._records(Kind.CHANNEL):
            queue = self._by_id[keys.number_of(record_key)]
            channel = Channel.restore(queue, int.from_bytes(record_key[9:13], "big"), data)
            queue.channels[channel.name] = channels[queue.id, channel.id] = channel
        for record_key, data in self._records(Kind.ENTRY):
            queue_id, channel_id, lane, base = keys.unpack_entry(record_key)
            channels[queue_id, channel_id].restore_entry(lane, base, data)
        for record_key, data in self._records(Kind.BUCKET):
            queue_id, lane, order = keys.unpack_bucket(record_key)
            self._by_id[queue_id].restore_bucket(lane, order, msgspec.msgpack.decode(data, type=int))
        for record_key, data in self._records(Kind.CONSUMER):
            self._by_id[keys.number_of(record_key)].restore_consumer(record_key[9:].decode(), data)
        for record_key, data in self._records(Kind.DEDUP):
            self._by_id[keys.number_of(record_key)].dedup.restore(data)
        for record_key, data in self._records(Kind.ATTEMPT):
            channel = channels[keys.number_of(record_key), int.from_bytes(record_key[9:13], "big")]
            channel.attempts.restore(record_key[13:].decode(), data)
        for record_key, data in self._records(Kind.QUARANTINE):
            self._by_id[keys.number_of(record_key)].restore_quarantine(record_key[9:], data)
        for record_key, data in self._records(Kind.TASK):
            task = msgspec.msgpack.decode(data, type=RedriveTask)
            self.tasks[keys.number_of(record_key)] = task
            if task.status == "running":
                self.schedule(self.now_ms, "redrive", task)
        self.marks.restore(list(self._records(Kind.MARK)))
        for record_key, data in self._records(Kind.OUTBOX_TARGET):
            self.outbox.restore(keys.number_of(record_key), data)
        for record_key, data in self._records(Kind.ONCE):
            name = self._memory.restore(record_key, data)
            self.schedule(self._memory.expires_ms(name) or self.now_ms, "once", name)
        self._restored(channels.values())

    def _restored(self, channels: Any) -> None:
        for channel in channels:
            channel.restored()
            for holder in channel.holders():
                self._held.setdefault(holder, {})[channel] = None
        for queue in self.queues.values():
            queue.restart_retention()
            queue.watch_dedup()
            queue.watch_consumers(self.now_ms)

    def _records(self, kind: Kind) -> Iterator[tuple[bytes, bytes]]:
        return self.shelf.reader.scan(bytes([kind]))

    def _restore_session(self, number: int, data: bytes) -> None:
        session = self.sessions[number] = msgspec.msgpack.decode(data, type=Session)
        if session.ttl_ms is not None:
            self.schedule(session.seen_ms + session.ttl_ms, "session", number)

    def _save_meta(self) -> None:
        self.shelf.changes.put_record(keys.record(Kind.META), msgspec.msgpack.encode(self.meta))

    # -- being driven --

    def handle(self, command: Command, now_ms: int) -> Any:
        """Do what a command says: its reply, None for a receive that waits, `PenstockError` when it cannot be done."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms
        if self._timers and self._timers[0][0] <= self.now_ms:
            self._run_timers()
            self._seal()
        if command.once is not None:
            return self._handle_once(command, command.once)
        return _HANDLERS[type(command)](self, command)

    def _handle_once(self, command: Command, once: Once) -> Any:
        """Do a command that has a name; or, if it was done before, say again what was said then."""
        known = self._memory.recall(once, command)
        if known is not None:
            return known[0]
        self._memory.check(once, command)
        is_new = self._memory.expires_ms(once.client) is None
        reply = _HANDLERS[type(command)](self, command)
        self._memory.remember(once, command, reply, self.now_ms)
        if is_new:
            self.schedule(self.now_ms + DEDUP_WINDOW_MS, "once", once.client)
        return reply

    def was_done(self, command: Command) -> bool:
        """Whether a command has a name, and was done under it before."""
        return command.once is not None and self._memory.knows(command.once)

    def finish(self, now_ms: int) -> None:
        """End a step: do what is due, and serve those who wait."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms
        if self.drafts:
            self._seal()
        if self._timers and self._timers[0][0] <= self.now_ms:
            self._run_timers()
            self._seal()
        if self._awake:
            self._serve()

    def next_deadline(self) -> int | None:
        """When `finish` should be called although no command has come."""
        return self._timers[0][0] if self._timers else None

    def take_woken(self) -> list[tuple[Any, Delivery]]:
        """Deliveries to those who waited, with their tickets."""
        woken, self._woken = self._woken, []
        return woken

    def take_reports(self) -> list[Damage]:
        """Damage that was found since the last time."""
        reports, self.reports = self.reports, []
        return reports

    def take_events(self) -> list[CatalogEvent]:
        """Which queues and channels came or went since the last time."""
        events, self.events = self.events, []
        return events

    def take_outbox_targets(self) -> list[int]:
        """For which other shards something waits that was not told of yet."""
        fresh, self.outbox.fresh = self.outbox.fresh, set()
        return sorted(fresh)

    def outbox_targets(self) -> dict[int, int]:
        """How many entries of the outbox wait for each other shard, where there are any."""
        return self.outbox.waiting()

    @property
    def outbox_name(self) -> str:
        """What other shards call this one's outbox. A store that is made anew has another one, and counts from 0."""
        return f"{self.meta.shard} {self.meta.made_ms}"

    def shard_of(self, name: str) -> int:
        """The shard where a queue of this name is to be found: this one, if it has one."""
        meta = self.meta
        if meta.shards == 1 or name in self.queues:
            return meta.shard
        try:
            return partition_of(name, meta.shards)
        except UnicodeEncodeError:  # no queue can have this name, as whoever is asked for it says
            return meta.shard

    def held(self, subscription: int) -> int:
        """How many messages the session of a subscription holds, if that limits what it is pushed; else 0."""
        found = self._subscriptions.get(subscription)
        return 0 if found is None else found[1].held

    @property
    def has_changes(self) -> bool:
        """Whether anything waits for a commit."""
        return bool(
            self.dirty_queues
            or self.dirty_channels
            or self._memory.is_dirty
            or self.shelf.has_changes
            or self.outbox.has_drafts
        )

    def take_changes(self) -> Changes:
        """Everything that changed since the last time, for one commit."""
        if self.drafts:
            self._seal()
        for queue in self.dirty_queues:
            queue.save()
        for channel in self.dirty_channels:
            channel.save()
        if self._memory.is_dirty:
            self._memory.save(self.shelf.changes)
        if self.outbox.has_drafts:
            self.outbox.seal()
        self.dirty_queues.clear()
        self.dirty_channels.clear()
        self.must_commit = False
        return self.shelf.take_changes()

    def committed(self, changes: Changes) -> None:
        """These changes are in the store."""
        self.shelf.committed(changes)

    def _seal(self) -> None:
        for queue in list(self.drafts):
            queue.seal()

    # -- timers --

    def schedule(self, time_ms: int, kind: str, subject: Any, detail: Any = None) -> None:
        """Call back at a time, through `_run_timers`."""
        self._timer_count += 1
        heappush(self._timers, (time_ms, self._timer_count, kind, subject, detail))

    def schedule_once(self, time_ms: int, kind: str, queue: Queue) -> None:
        """As `schedule`, unless the same is scheduled earlier already."""
        planned = self._once.get((kind, queue.id))
        if planned is None or time_ms < planned:
            self._once[kind, queue.id] = time_ms
            self.schedule(time_ms, kind, queue)

    def _run_timers(self) -> None:
        now_ms = self.now_ms
        due = []
        while self._timers and self._timers[0][0] <= now_ms:
            due.append(heappop(self._timers))
        for time_ms, _, kind, subject, detail in due:
            _TIMERS[kind](self, subject, detail, time_ms)

    def _channel_timer(self, channel: Channel, _detail: Any, time_ms: int) -> None:
        if channel.scheduled_ms == time_ms and self._is_alive(channel):
            channel.scheduled_ms = None
            channel.pass_time(self.now_ms)

    def _is_alive(self, channel: Channel) -> bool:
        queue = self._by_id.get(channel.queue.id)
        return queue is not None and queue.channels.get(channel.name) is channel

    def _waiter_timer(self, channel: Channel, waiter: Waiter, _time_ms: int) -> None:
        if self._waiters.get(waiter.ticket, (None, None))[1] is waiter:
            del self._waiters[waiter.ticket]
            channel.line.leave(waiter)
            self._woken.append((waiter.ticket, self._delivery(channel, [], 0)))

    def _bucket_timer(self, queue: Queue, place: tuple[int, int], _time_ms: int) -> None:
        if queue.id in self._by_id:
            queue.bring_near(*place, self.now_ms)

    def _retention_timer(self, queue: Queue, _detail: Any, _time_ms: int) -> None:
        if queue.id in self._by_id:
            queue.look_at_retention(self.now_ms)

    def _dedup_timer(self, queue: Queue, _detail: Any, _time_ms: int) -> None:
        if queue.id in self._by_id:
            queue.forget_duplicates(self.now_ms)

    def _consumers_timer(self, queue: Queue, _detail: Any, _time_ms: int) -> None:
        self._once.pop(("consumers", queue.id), None)
        if queue.id in self._by_id:
            queue.forget_consumers(self.now_ms)

    def _attempt_timer(self, channel: Channel, attempt_id: str, _time_ms: int) -> None:
        if self._is_alive(channel):
            channel.attempts.expire(attempt_id, self.now_ms)

    def _session_timer(self, number: int, _detail: Any, _time_ms: int) -> None:
        session = self.sessions.get(number)
        if session is None or session.ttl_ms is None:
            return
        expires_ms = session.seen_ms + session.ttl_ms
        if expires_ms <= self.now_ms:
            self._end_session(number, "session expired")
        else:
            self.schedule(expires_ms, "session", number)

    def _once_timer(self, client: str, _detail: Any, _time_ms: int) -> None:
        expires_ms = self._memory.expires_ms(client)
        if expires_ms is None:
            return
        if expires_ms <= self.now_ms:
            self._memory.forget(client, self.shelf.changes)
        else:
            self.schedule(expires_ms, "once", client)

    def _redrive_timer(self, task: RedriveTask, _detail: Any, _time_ms: int) -> None:
        redrive.step(self, task, self.now_ms)

    # -- demand --

    def woke(self, channel: Channel) -> None:
        """A channel may have something for those who wait."""
        if channel.line:
            self._awake[channel] = None

    def _serve(self) -> None:
        awake, self._awake = self._awake, {}
        for channel in awake:
            while channel.line and not channel.paused and (ready := channel.ready):
                room = channel.queue.config.in_flight_max - channel.leased
                if room <= 0 or not self._serve_next(channel, min(ready, room)):
                    break

    def _serve_next(self, channel: Channel, ready: int) -> bool:
        waiter, share = channel.line.next(ready)
        try:
            runs = self._take(
                channel, share, waiter.lease_ms, waiter.session, waiter.attempt_id, room_bytes=waiter.room_bytes
            )
        except ChunkDamaged:  # reported; what comes after it can be served
            channel.line.join_first(waiter)
            return True
        if not runs:
            channel.line.join_first(waiter)
            return False
        delivery = self._delivery(channel, runs, waiter.lease_ms)
        self._woken.append((waiter.ticket, delivery))
        if not waiter.standing:
            self._waiters.pop(waiter.ticket, None)
            if waiter.session:
                channel.received(waiter.session, runs)
            return True
        waiter.take(delivery.count, 0 if waiter.room_bytes is None else sum(run.nbytes for run in runs))
        if waiter.is_open:
            channel.line.join_once(waiter)
        return True

    def _take(
        self,
        channel: Channel,
        limit: int,
        lease_ms: int | None,
        session: int,
        attempt_id: str | None,
        *,
        room_bytes: int | None = None,
    ) -> list[Run]:
        if lease_ms is None:
            lease_ms = channel.queue.config.lease_ms
        runs = channel.handout.take(limit, self.now_ms, lease_ms, session, room_bytes)
        if attempt_id is not None and runs:
            channel.attempts.remember(attempt_id, runs, self.now_ms + lease_ms)
        if self.happenings is not None:
            self._note_received(channel, runs, self.session_name(session))
        return runs

    def _note_received(self, channel: Channel, runs: list[Run], session: str) -> None:
        assert self.happenings is not None
        queue, at_ms = channel.queue.name, self.now_ms
        for run in runs:
            size = run.nbytes
            for first, last, attempt in run.spans():
                count, sent_ms = last - first + 1, run.chunk.sent_ms
                share = size * count // run.count
                self.happenings.append(
                    Happening("received", queue, channel.name, first, count, at_ms, sent_ms, attempt, share, session)
                )

    def leased(self, channel: Channel, session: int) -> None:
        """Messages were leased: remember by whom, and whether that has to be durable first."""
        if session:
            self._held.setdefault(session, {})[channel] = None
        if channel.queue.config.leases_are_durable:
            self.must_commit = True

    def _delivery(self, channel: Channel, runs: list[Run], lease_ms: int | None) -> Delivery:
        queue = channel.queue
        deadline_ms = self.now_ms + (queue.config.lease_ms if lease_ms is None else lease_ms)
        return Delivery(queue.name, queue.id, channel.name, channel.id, self.now_ms, deadline_ms, runs)

    # -- names and identities --

    @property
    def local_queues(self) -> Mapping[str, Queue]:
        """The queues that have messages in this process: all there are."""
        return self.queues

    def queue_name(self, queue_id: int) -> str | None:
        """The name of the queue with this id."""
        queue = self._by_id.get(queue_id)
        return None if queue is None else queue.name

    def channel_name(self, queue_id: int, channel_id: int) -> str | None:
        """The name of a channel by the ids in a receipt."""
        queue = self._by_id.get(queue_id)
        if queue is None:
            return None
        return next((channel.name for channel in queue.channels.values() if channel.id == channel_id), None)

    def message_id(self, queue_id: int, sequence: int) -> str:
        """The identity of a message, in the shape of a UUID: derived, never stored."""
        return message_id(self.meta.realm, queue_id, sequence)

    def receipt_key(self, queue_id: int) -> bytes:
        """What the receipts of a queue are sealed with: for who may read that queue."""
        key = self._receipt_keys.get(queue_id)
        if key is None:
            if len(self._receipt_keys) >= _RECEIPT_KEYS_MAX:
                self._receipt_keys.clear()
            key = self._receipt_keys[queue_id] = receipt_key(self.meta.secret, queue_id)
        return key

    def receipt(self, queue_id: int, channel_id: int, sequence: int, attempt: int) -> str:
        """What a receiver holds to settle a message later."""
        return Receipt(queue_id, channel_id, sequence, attempt).seal(self.receipt_key(queue_id))

    def open_receipt(self, text: str) -> Receipt:
        """Read a receipt; `ForgedReceipt` if this store has not made it."""
        return Receipt.open(text, self.receipt_key)

    def session_name(self, number: int) -> str:
        """A session's name, for the records of what failed."""
        session = self.sessions.get(number)
        return session.name if session is not None else ""

    def _queue(self, name: str) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            raise QueueNotFound(f"there is no queue {name!r}: create it, or send to it, first")
        return queue

    def _channel(self, queue: Queue, name: str) -> Channel:
        channel = queue.channels.get(name)
        if channel is None:
            known = ", ".join(queue.channels) or "none"
            raise ChannelNotFound(f"queue {queue.name!r} has no channel {name!r} (it has: {known}): create it first")
        return channel

    # -- queues --

    def _create_queue(self, command: CreateQueue) -> QueueInfo:
        check_name(command.name, "queue")
        for channel in command.channels:
            check_name(channel, "channel")
        config = command.config
        config.check()
        existing = self.queues.get(command.name)
        if command.part is not None:
            return self._create_part(command, existing, *command.part)
        if existing is not None:
            if existing.config != config:
                different = [
                    name for name in config.__struct_fields__ if getattr(config, name) != getattr(existing.config, name)
                ]
                raise QueueExists(
                    f"queue {command.name!r} exists with another configuration; different: {', '.join(different)}"
                )
            return existing.info()
        self._check_dead_letter(command.name, config)
        return self.add_queue(command.name, config, command.channels).info()

    def _create_part(self, command: CreateQueue, existing: Queue | None, partition: int, queue_id: int) -> QueueInfo:
        """A further partition has the id of the first one, and numbers its messages so that they say where they are."""
        if not 0 < partition < command.config.partitions:
            raise InvalidRequest(
                f"queue {command.name!r} has {command.config.partitions} partitions, and no {partition}"
            )
        if existing is not None and existing.id != queue_id:
            self._delete_queue(DeleteQueue(name=command.name))
            existing = None
        if existing is None:
            existing = self.add_queue(command.name, command.config, command.channels, (partition, queue_id))
        return existing.info()

    def add_queue(
        self, name: str, config: QueueConfig, channels: tuple[str, ...], part: tuple[int, int] | None = None
    ) -> Queue:
        """Create a queue that is not there; with `part`, as this partition of the queue with this id."""
        if part is None:
            queue = Queue(self, self.meta.next_queue, name, config, self.now_ms)
            self.meta.next_queue += 1
            self._save_meta()
        else:
            queue = Queue(self, part[1], name, config, self.now_ms)
            queue.next_sequence = part[0] << PARTITION_SHIFT
            queue.touch()
        self.queues[name] = self._by_id[queue.id] = queue
        queue.save_config()
        self.events.append(CatalogEvent("queue created", name))
        for channel in channels:
            queue.add_channel(channel, "head", self.now_ms)
        self.must_commit = True
        return queue

    def _check_dead_letter(self, name: str, config: QueueConfig) -> None:
        target = config.dead_letter
        if target is None:
            return
        if target == name:
            raise InvalidConfig(f"queue {name!r} cannot be its own dead-letter queue: name another one")
        existing = self.queues.get(target)
        if existing is not None and existing.config.kind != config.kind:
            raise InvalidConfig(
                f"the dead-letter queue {target!r} of the {config.kind} queue {name!r} is a "
                f"{existing.config.kind} queue: "
                "both must be of the same kind"
            )

    def move(self, name: str, like: QueueConfig, messages: Messages, size: int, priority: int = 0) -> None:
        """Messages of a queue go on in another one: here, or by the outbox in the shard where that is.

        A queue that is not there is created, of the same kind, and keeps what it gets.
        """
        shard = self.shard_of(name)
        if shard != self.meta.shard:
            config = self.config_for_moved(like)
            effect = ForwardedMessages(name, moved=True, priority=priority, due_ms=0, config=config)
            self.outbox.add_messages(shard, effect, messages, size)
            return
        queue = self.queues.get(name)
        if queue is None:
            queue = self.add_queue(name, self.config_for_moved(like), (MAIN,))
        self.move_in(queue, messages, size, priority)

    def move_in(self, queue: Queue, messages: Messages, size: int, priority: int) -> None:
        """Messages of another queue arrive in one of this shard."""
        if queue.config.partitions > 1 and self.meta.shards > 1 and messages.groups is not None:
            spread = self._spread(queue, messages, priority)
            if spread is not None:
                messages, size = spread, spread.size
        if len(messages):
            place = queue.place(0 if queue.config.is_fifo else priority, 0, self.now_ms)
            queue.append(messages, place, size, self.now_ms)

    def _spread(self, queue: Queue, messages: Messages, priority: int) -> Messages | None:
        """Send on what belongs to other partitions of a queue: a group has one. Returns the rest; None if that is all.

        Messages without a group stay where they came.
        """
        assert messages.groups is not None
        meta, partitions = self.meta, min(queue.config.partitions, self.meta.shards)
        first = partition_of(queue.name, meta.shards)
        by_shard: dict[int, list[int]] = {}
        for index, group in enumerate(messages.groups):
            partition = None if group is None else partition_of(group.decode(), partitions)
            shard = meta.shard if partition is None else (first + partition) % meta.shards
            by_shard.setdefault(shard, []).append(index)
        stays = by_shard.pop(meta.shard, [])
        if not by_shard:
            return None
        effect = ForwardedMessages(queue.name, moved=True, priority=priority, due_ms=0, create=False)
        for shard, indexes in by_shard.items():
            part = messages.only(indexes)
            self.outbox.add_messages(shard, effect, part, part.size)
        return messages.only(stays)

    @staticmethod
    def config_for_moved(like: QueueConfig) -> QueueConfig:
        """The configuration of a queue that is created for messages of another one."""
        return QueueConfig(
            kind=like.kind, max_receives=0, retention_ms=14 * DAY_MS, message_bytes_max=like.message_bytes_max
        )

    def _change_queue(self, command: ChangeQueue) -> QueueInfo:
        queue = self._queue(command.name)
        for name in UNCHANGEABLE & set(command.changes):
            if command.changes[name] != getattr(queue.config, name):
                raise InvalidConfig(f"{name} of queue {queue.name!r} cannot be changed: create another queue")
        if command.expected is not None and queue.config.changed(command.expected) != queue.config:
            raise QueueChanged(f"queue {queue.name!r} has other settings by now: look at them, and change it again")
        config = queue.config.changed(command.changes)
        self._check_dead_letter(queue.name, config)
        queue.seal()
        queue.config = config
        queue.changed_ms = self.now_ms
        queue.save_config()
        queue.restart_retention()
        queue.watch_consumers(self.now_ms)
        for channel in queue.channels.values():
            self.woke(channel)
        self.must_commit = True
        return queue.info()

    def _delete_queue(self, command: DeleteQueue) -> None:
        queue = self._queue(command.name)
        if command.unless_channels and queue.channels:
            return
        queue.seal()
        for channel in list(queue.channels.values()):
            self._dismiss(channel, QueueNotFound(f"queue {queue.name!r} was deleted"))
            channel.purge(queue.next_sequence)
            self.dirty_channels.pop(channel, None)
        self.shelf.drop_chunks(queue.id)
        for kind in keys.OF_A_QUEUE:
            self.shelf.changes.drop(keys.record(kind, queue.id))
        self.dirty_queues.pop(queue, None)
        self.drafts.pop(queue, None)
        self.events += [CatalogEvent("channel deleted", queue.name, name) for name in queue.channels]
        self.events.append(CatalogEvent("queue deleted", queue.name))
        del self.queues[queue.name], self._by_id[queue.id]
        redrive.queue_deleted(self, queue.name)
        self.must_commit = True

    def _purge_queue(self, command: PurgeQueue) -> int:
        self.must_commit = True
        return self._queue(command.name).purge()

    def _describe_queue(self, command: DescribeQueue) -> QueueInfo:
        if command.queue_id:
            queue = self._by_id.get(command.queue_id)
            if queue is None:
                raise QueueNotFound(f"there is no queue with the id {command.queue_id}")
            return queue.info()
        return self._queue(command.name).info()

    def _list_queues(self, command: ListQueues) -> list[str]:
        shard = self.meta.shard
        names = (
            name
            for name, queue in self.queues.items()
            if name.startswith(command.prefix) and name > command.after and queue.id >> SHARD_SHIFT == shard
        )  # further partitions of a queue of another shard are not named twice
        if command.dead_letters_to is not None:
            names = (name for name in names if self._buries_in(name, command.dead_letters_to))
        return sorted(names)[: command.limit]

    def _buries_in(self, name: str, target: str) -> bool:
        config = self.queues[name].config
        return bool(config.receives_max) and (config.dead_letter or dead_letter_name(name)) == target

    def _queue_stats(self, command: QueueStats) -> Stats:
        return self._queue(command.name).stats()

    # -- sending --

    def _send(self, command: Send, forwarded: bool = False) -> Sent:
        queue = self.queues.get(command.queue)
        if queue is not None:
            sent = self._send_bare(queue, command)
            if sent is not None:
                return sent
        config = command.config if queue is None else queue.config
        size = self._check_send(command, config)
        if queue is None:
            if not command.create:
                raise QueueNotFound(f"there is no queue {command.queue!r}: create it first")
            queue = self.add_queue(command.queue, config, command.channels)
        if config.throughput_per_second is not None and not forwarded:
            self._check_rate(queue, command.groups or [], count_them=True)
        return self._append(queue, command, size)

    def _send_bare(self, queue: Queue, command: Send) -> Sent | None:
        """A send of bodies and nothing else, to a queue that takes them as they are: most are. None if it is not one.

        It does what `_check_send` and `_append` do, without asking a dozen times for what is not there.
        """
        bodies: Any = command.bodies
        if type(bodies) is not list or not 0 < len(bodies) <= _BARE_MAX or not queue.takes_bare():
            return None
        said: tuple[Any, ...] = _fields_of(command)
        if said[_BARE_FROM:_BARE_TO] != _BARE:
            return None
        size = 0
        for body in bodies:
            if type(body) is not bytes:
                return None
            size += len(body)
        if size > queue.bare_bytes_max:
            return None
        now_ms = self.now_ms
        first = queue.append(Messages(bodies), queue.place(0, now_ms, now_ms), size, now_ms)
        return Sent(queue.id, first, len(bodies))

    def send_forwarded(self, command: Send) -> Sent:
        """Do a send that was committed in another shard: the queue's rate cannot keep it out any more."""
        return self._send(command, forwarded=True)

    def _check_send(self, command: Send, config: QueueConfig) -> tuple[int, bytes | None]:
        """Raise what is wrong with a send, before anything has happened. Returns its size, and the bodies joined."""
        if command.queue not in self.queues:
            check_name(command.queue, "queue")
            for channel in command.channels:
                check_name(channel, "channel")
        count = len(command.bodies)
        if not count:
            raise InvalidRequest("nothing to send: give at least one message")
        if command.attributes or command.groups or command.dedup_ids or command.origins:
            for name in ("attributes", "groups", "dedup_ids", "origins"):
                values = getattr(command, name)
                if values is not None and len(values) != count:
                    raise InvalidRequest(f"{len(values)} {name} were given for {count} messages: give one for each")
        if not 0 <= command.priority <= PRIORITY_MAX:
            raise InvalidRequest(f"priority is {command.priority}: it must be from 0 to {PRIORITY_MAX}")
        if command.delay_ms is not None and not 0 <= command.delay_ms <= DELAY_MS_MAX:
            raise InvalidRequest(f"delay_ms is {command.delay_ms}: it must be from 0 to {DELAY_MS_MAX}")
        if command.due_ms is not None and command.due_ms > self.now_ms + DELAY_MS_MAX:
            raise InvalidRequest(f"due_ms is {command.due_ms}: it must be within a hundred years")
        if config.is_fifo:
            self._check_fifo(command, config)
        if command.groups or command.dedup_ids:
            for what, texts in (("group", command.groups), ("dedup id", command.dedup_ids)):
                for text in texts or ():
                    if text is not None:
                        _check_text(text, what)
        return self._check_sizes(command, config)

    @staticmethod
    def _check_fifo(command: Send, config: QueueConfig) -> None:
        if command.priority:
            raise InvalidRequest(f"queue {command.queue!r} is FIFO: its messages have no priority")
        if command.groups is None or not all(command.groups):
            raise InvalidRequest(f"queue {command.queue!r} is FIFO: every message needs a group")
        if not config.content_dedup and (command.dedup_ids is None or not all(command.dedup_ids)):
            raise InvalidRequest(
                f"queue {command.queue!r} is FIFO: every message needs a dedup id (or the queue content_dedup)"
            )

    @staticmethod
    def _check_sizes(command: Send, config: QueueConfig) -> tuple[int, bytes | None]:
        bodies, attributes = command.bodies, command.attributes
        if isinstance(bodies, PackedBodies):
            joined, size = bodies.data, len(bodies.data)
            if attributes is None and size <= BATCH_BYTES_MAX and bodies.longest() <= config.message_bytes_max:
                return size, joined
        elif len(bodies) == 1:
            joined, size = bodies[0], len(bodies[0])
        else:
            joined = b"".join(bodies)
            size = len(joined)
        if attributes is not None:
            size += sum(len(value) for value in attributes if value is not None)
        limit = config.message_bytes_max
        if size > limit:
            if size > BATCH_BYTES_MAX and len(bodies) > 1:
                raise BatchTooLarge(f"{size} bytes are too many for one call: send at most {BATCH_BYTES_MAX} at a time")
            for index, body in enumerate(bodies):
                length = len(body) + len((attributes[index] if attributes else None) or b"")
                if length > limit:
                    raise MessageTooLarge(
                        f"message {index} has {length} bytes with its attributes, and queue {command.queue!r} takes "
                        f"{limit}: send a reference to it instead, or raise message_bytes_max"
                    )
        return size, joined

    def _append(self, queue: Queue, command: Send, checked: tuple[int, bytes | None]) -> Sent:
        size, joined = checked
        config, now_ms = queue.config, self.now_ms
        delay_ms = config.delay_ms if command.delay_ms is None else command.delay_ms
        due_ms = command.due_ms if command.due_ms is not None else now_ms + delay_ms
        place = queue.place(command.priority, due_ms, now_ms)
        if command.groups is None and command.dedup_ids is None and due_ms <= now_ms and not config.is_fifo:
            plain = Messages(command.bodies, attributes=command.attributes, origins=command.origins, joined=joined)
            return Sent(queue.id, queue.append(plain, place, size, now_ms), len(plain.bodies))
        messages = Messages(
            command.bodies,
            attributes=command.attributes,
            groups=None
            if command.groups is None
            else [None if each is None else each.encode() for each in command.groups],
            dedup_ids=None
            if command.dedup_ids is None
            else [None if each is None else each.encode() for each in command.dedup_ids],
            origins=command.origins,
            due_ms=[due_ms] * len(command.bodies) if due_ms > now_ms else None,
            joined=joined,
        )
        if config.is_fifo or command.dedup_ids is not None:
            return self._append_once(queue, command, messages, place)
        first = queue.append(messages, place, size, now_ms)
        return Sent(queue.id, first, len(messages))

    def _check_rate(self, queue: Queue, groups: list[str | None], *, count_them: bool) -> None:
        over = queue.throttled(groups, self.now_ms, count_them=count_them)
        if over is not None:
            limit = queue.config.throughput_per_second
            raise Throttled(f"{over} takes {limit} messages a second: try again later")

    def _append_once(self, queue: Queue, command: Send, messages: Messages, place: Any) -> Sent:
        """Append what is not a duplicate."""
        dedup_keys = self._dedup_keys(queue, command, messages)
        if queue.config.is_fifo:
            messages.dedup_ids = [None if key is None else key[1].encode() for key in dedup_keys]
        sequences: list[int] = []
        duplicates: list[int] = []
        fresh: list[int] = []
        next_sequence = queue.next_sequence
        for index, key in enumerate(dedup_keys):
            known = None if key is None else queue.dedup.find(key, self.now_ms)
            if known is not None:
                sequences.append(known)
                duplicates.append(index)
                continue
            if key is not None:
                queue.dedup.remember(key, next_sequence, self.now_ms)
            sequences.append(next_sequence)
            fresh.append(index)
            next_sequence += 1
        queue.watch_dedup()
        queue.touch()
        self.must_commit = True
        if fresh:
            kept = messages if len(fresh) == len(messages) else messages.only(fresh)
            size = sum(map(len, kept.bodies)) + sum(len(value or b"") for value in kept.attributes or ())
            first = queue.append(kept, place, size, self.now_ms)
            assert first + len(fresh) == next_sequence
        return Sent(queue.id, sequences[0], len(messages), sequences, duplicates)

    @staticmethod
    def _dedup_keys(queue: Queue, command: Send, messages: Messages) -> list[tuple[str | None, str] | None]:
        by_group = queue.config.dedup_scope == "group"
        groups = command.groups or [None] * len(messages)
        found: list[tuple[str | None, str] | None] = []
        for index, group in enumerate(groups):
            name = None if command.dedup_ids is None else command.dedup_ids[index]
            if name is None and queue.config.content_dedup:
                name = hashlib.sha256(messages.bodies[index]).hexdigest()
            found.append(None if name is None else (group if by_group else None, name))
        return found

    def bury(
        self, channel: Channel, chunk: Chunk, first: int, stop: int, attempts: int, entry: Entry, priority: int
    ) -> None:
        """Send messages to the dead-letter queue, with the reasons."""
        queue = channel.queue
        name = queue.config.dead_letter or dead_letter_name(queue.name)
        low, high = first - chunk.base, stop - chunk.base
        origins: list[bytes | None] = []
        for index in range(low, high):
            sequence = chunk.base + index
            origins.append(
                self._origin(channel, chunk, index, attempts, priority, entry.failures_of(sequence, sequence))
            )
        bodies = chunk.body_list(low, high)
        attributes = [chunk.attributes(index) for index in range(low, high)]
        groups = [chunk.group(index) for index in range(low, high)]
        messages = Messages(
            bodies,
            attributes=attributes,
            groups=[None if group is None else group.encode() for group in groups],
            dedup_ids=[(chunk.dedup_id(index) or "").encode() or None for index in range(low, high)],
            origins=origins,
        )
        size = sum(map(len, bodies)) + sum(len(value or b"") for value in attributes)
        self.move(name, queue.config, messages, size)

    def _origin(
        self, channel: Channel, chunk: Chunk, index: int, attempts: int, priority: int, failures: list[Any]
    ) -> bytes:
        queue, sequence = channel.queue, chunk.base + index
        data = chunk.origin(index)
        earlier = None if data is None else Origin.decode(data)
        return Origin(
            id=self.message_id(queue.id, sequence) if earlier is None else earlier.id,
            queue=queue.name,
            channel=channel.name,
            sequence=sequence,
            sent_ms=chunk.sent_ms if earlier is None else earlier.sent_ms,
            attempts=attempts,
            priority=priority,
            failures=failures if earlier is None else earlier.failures + failures,
        ).encode()

    # -- receiving --

    def _receive(self, command: Receive) -> Delivery | None:
        queue = self._queue(command.queue)
        if not 1 <= command.limit <= RECEIVE_LIMIT_MAX:
            raise InvalidRequest(f"limit is {command.limit}: it must be from 1 to {RECEIVE_LIMIT_MAX}")
        if command.lease_ms is not None:
            self._check_lease(command.lease_ms)
        if command.wait_ms is not None and command.wait_ms < 0:
            raise InvalidRequest(f"wait_ms is {command.wait_ms}: it must not be negative")
        if command.session:
            self._check_session(command.session)
        if command.attempt_id is not None and not queue.config.is_fifo:
            raise InvalidRequest(f"queue {queue.name!r} is a standard queue: receive attempt ids are for FIFO")
        channel = self._channel_to_receive(queue, command.channel)
        if command.attempt_id is not None:
            again = self._receive_again(channel, command)
            if again is not None:
                return again
        room = queue.config.in_flight_max - channel.leased
        if room <= 0 and not queue.config.is_fifo:
            raise OverLimit(
                f"channel {channel.name!r} of queue {queue.name!r} has {queue.config.in_flight_max} messages "
                f"in flight, "
                "which is its limit: settle some first"
            )
        runs = self._take(channel, min(command.limit, room), command.lease_ms, command.session, command.attempt_id)
        if runs:
            if command.session:
                channel.received(command.session, runs)
            return self._delivery(channel, runs, command.lease_ms)
        wait_ms = queue.config.receive_wait_ms if command.wait_ms is None else command.wait_ms
        if not wait_ms or command.ticket is None:
            return self._delivery(channel, [], command.lease_ms)
        self._wait(channel, command, wait_ms)
        return None

    def _receive_again(self, channel: Channel, command: Receive) -> Delivery | None:
        assert command.attempt_id is not None
        lease_ms = channel.queue.config.lease_ms if command.lease_ms is None else command.lease_ms
        again = channel.attempts.take_again(command.attempt_id, self.now_ms, lease_ms)
        if again is None:
            return None
        runs, deadline_ms = again
        channel.attempts.remember(command.attempt_id, runs, deadline_ms)
        return self._delivery(channel, runs, deadline_ms - self.now_ms)

    def _channel_to_receive(self, queue: Queue, channel_name: str) -> Channel:
        if queue.draft is not None:
            queue.seal()
        channel = queue.channels.get(channel_name)
        if channel is None:
            if channel_name != MAIN:
                return self._channel(queue, channel_name)
            channel = queue.add_channel(MAIN, "head", self.now_ms)
        return channel

    @staticmethod
    def _check_lease(lease_ms: int | None) -> None:
        if lease_ms is not None and not 0 <= lease_ms <= LEASE_MS_MAX:
            raise InvalidRequest(f"lease_ms is {lease_ms}: it must be from 0 to {LEASE_MS_MAX}")

    def _check_session(self, session: int) -> None:
        if session and session not in self.sessions:
            raise SessionNotFound(f"session {session} has ended, or never was: open another one")

    def _wait(self, channel: Channel, command: Receive, wait_ms: int) -> None:
        deadline_ms = self.now_ms + wait_ms
        waiter = Waiter(
            command.ticket,
            command.limit,
            command.lease_ms,
            command.session,
            deadline_ms=deadline_ms,
            attempt_id=command.attempt_id,
        )
        channel.line.join(waiter)
        self._waiters[command.ticket] = (channel, waiter)
        self.schedule(deadline_ms, "waiter", channel, waiter)

    def _subscribe(self, command: Subscribe) -> Subscribed:
        queue = self._queue(command.queue)
        self._check_lease(command.lease_ms)
        self._check_session(command.session)
        if command.credit < 0:
            raise InvalidRequest(f"credit is {command.credit}: it must not be negative")
        channel = self._channel_to_receive(queue, command.channel)
        number = self._next_subscription
        self._next_subscription += 1
        waiter = Waiter(command.ticket, command.credit, command.lease_ms, command.session, subscription=number)
        waiter.room_bytes = command.room_bytes
        if command.in_flight:
            self._limit_in_flight(channel, waiter)
        self._subscriptions[number] = (channel, waiter)
        self._waiters[command.ticket] = (channel, waiter)
        self._credit(channel, waiter, command.credit)
        return Subscribed(number)

    @staticmethod
    def _limit_in_flight(channel: Channel, waiter: Waiter) -> None:
        if not waiter.session or waiter.session in channel.subscribers:
            raise InvalidRequest("a limit on messages in flight needs a session that has no such subscription here yet")
        waiter.limit = waiter.credit
        waiter.hold(channel.held_by(waiter.session))
        channel.subscribers[waiter.session] = waiter

    def adopt(self, other: Broker, tickets: Container[Any]) -> set[Any]:
        """Take over the subscriptions with these tickets from a broker that is thrown away.

        Returns the tickets of those whose channel and session are still there: the others are over.
        """
        adopted: set[Any] = set()
        self._next_subscription = max(self._next_subscription, other._next_subscription)
        for number, (gone, waiter) in other._subscriptions.items():
            if waiter.ticket not in tickets:
                continue
            queue = self._by_id.get(gone.queue.id)
            channel = None if queue is None else queue.channels.get(gone.name)
            if channel is not None and (not waiter.session or waiter.session in self.sessions):
                self._move_in(channel, waiter, number)
                adopted.add(waiter.ticket)
        return adopted

    def _move_in(self, channel: Channel, waiter: Waiter, number: int) -> None:
        waiter.in_line = False
        self._subscriptions[number] = self._waiters[waiter.ticket] = (channel, waiter)
        if waiter.limit is not None:
            channel.subscribers[waiter.session] = waiter
            waiter.held = 0
            waiter.hold(channel.held_by(waiter.session))
        channel.line_up(waiter)

    def _set_credit(self, command: SetCredit) -> int:
        channel, waiter = self._subscription(command.subscription)
        if command.room_bytes is not None:
            waiter.room_bytes = command.room_bytes
        if command.credit is not None:
            self._credit(channel, waiter, command.credit)
        else:
            channel.line_up(waiter)
        return waiter.held

    def _add_credit(self, command: AddCredit) -> None:
        channel, waiter = self._subscription(command.subscription)
        allowed = waiter.credit if waiter.limit is None else waiter.limit
        self._credit(channel, waiter, allowed + command.credit)

    def _subscription(self, number: int) -> tuple[Channel, Waiter]:
        found = self._subscriptions.get(number)
        if found is None:
            raise SessionNotFound(f"subscription {number} has ended, or never was: subscribe again")
        return found

    def _credit(self, channel: Channel, waiter: Waiter, credit: int) -> None:
        if credit < 0:
            raise InvalidRequest(f"credit is {credit}: it must not be negative")
        waiter.allow(credit)
        channel.line_up(waiter)

    def _cancel_wait(self, command: CancelWait) -> None:
        channel, waiter = self._waiters.pop(command.ticket, (None, None))
        if channel is not None and waiter is not None:
            channel.line.leave(waiter)
            if waiter.subscription is not None:
                del self._subscriptions[waiter.subscription]
                if channel.subscribers.get(waiter.session) is waiter:
                    del channel.subscribers[waiter.session]

    def _dismiss(self, channel: Channel, error: PenstockError) -> None:
        """A channel goes: so do those who wait for it."""
        for other, waiter in list(self._waiters.values()):
            if other is channel:
                self._turn_away(channel, waiter, error)

    def _turn_away(self, channel: Channel, waiter: Waiter, error: PenstockError) -> None:
        self._cancel_wait(CancelWait(ticket=waiter.ticket))
        delivery = self._delivery(channel, [], 0)
        delivery.error = error
        self._woken.append((waiter.ticket, delivery))

    # -- settling --

    def _ack(self, command: Ack) -> Settled:
        channel = self._channel(self._queue(command.queue), command.channel)
        spans = self._spans(command, channel) if command.receipts else command.spans
        self.must_commit = True
        if len(spans) == 1:
            count, refused = channel.settlement.ack(spans[0])
            return Settled(count, refused)
        return self._each(spans, channel.settlement.ack)

    def _spans(self, command: Ack | Release | Extend, channel: Channel) -> list[Span]:
        """The messages that a command names, as spans. `ForeignReceipt` for a receipt of another queue or channel."""
        if not command.receipts:
            return command.spans
        opened = [self.open_receipt(text) for text in command.receipts]
        for receipt in opened:
            if receipt.queue_id != channel.queue.id:
                owner = self.queue_name(receipt.queue_id)
                whose = "a queue that is gone" if owner is None else f"queue {owner!r}"
                raise ForeignReceipt(f"the receipt belongs to {whose}, and not to {channel.queue.name!r}")
            if receipt.channel_id != channel.id:
                holder = self.channel_name(receipt.queue_id, receipt.channel_id)
                whose = "a channel that is gone" if holder is None else f"channel {holder!r}"
                raise ForeignReceipt(
                    f"the receipt belongs to {whose} of {channel.queue.name!r}, and not to {channel.name!r}"
                )
        named = (Span(receipt.sequence, receipt.sequence, receipt.attempt) for receipt in opened)
        return [*command.spans, *merged_spans(named)]

    def _ack_sequences(self, command: AckSequences) -> Settled:
        channel = self._channel(self._queue(command.queue), command.channel)
        self.must_commit = self.must_commit or command.durable
        return channel.settlement.ack_sequences(command.sequences, command.session)

    def _release_sequences(self, command: ReleaseSequences) -> Settled:
        channel = self._channel(self._queue(command.queue), command.channel)
        self._check_delay(command.delay_ms)
        return channel.settlement.release_sequences(
            command.sequences, command.session, self.now_ms, command.delay_ms, _clean(command.error)
        )

    def _extend_sequences(self, command: ExtendSequences) -> Settled:
        channel = self._channel(self._queue(command.queue), command.channel)
        self._check_lease(command.lease_ms)
        held_ms_max = LEASE_MS_MAX if command.held_ms_max is None else min(command.held_ms_max, LEASE_MS_MAX)
        return channel.settlement.extend_sequences(
            command.sequences, command.session, self.now_ms, command.lease_ms, held_ms_max
        )

    @staticmethod
    def _check_delay(delay_ms: int | None) -> None:
        if delay_ms is not None and not 0 <= delay_ms <= DELAY_MS_MAX:
            raise InvalidRequest(f"delay_ms is {delay_ms}: it must be from 0 to {DELAY_MS_MAX}")

    def _release(self, command: Release) -> Settled:
        channel = self._channel(self._queue(command.queue), command.channel)
        self._check_delay(command.delay_ms)
        error = _clean(command.error)
        spans = self._spans(command, channel)
        return self._each(spans, lambda span: channel.settlement.release(span, self.now_ms, command.delay_ms, error))

    def _give_back(self, command: GiveBack) -> Settled:
        channel = self._channel(self._queue(command.queue), command.channel)
        if channel.queue.config.leases_are_durable:
            error = "the receiver went away"
            return self._each(command.spans, lambda span: channel.settlement.release(span, self.now_ms, 0, error))
        return self._each(command.spans, channel.settlement.give_back)

    def _extend(self, command: Extend) -> Settled:
        channel = self._channel(self._queue(command.queue), command.channel)
        self._check_lease(command.lease_ms)
        spans = self._spans(command, channel)
        if command.lease_ms == 0:
            return self._each(spans, lambda span: channel.settlement.release(span, self.now_ms, 0, "released"))
        return self._each(spans, lambda span: channel.settlement.extend(span, self.now_ms, command.lease_ms))

    @staticmethod
    def _each(spans: list[Span], settle: Callable[[Span], tuple[int, list[Refused]]]) -> Settled:
        settled = Settled(0)
        for span in spans:
            count, refused = settle(span)
            settled.count += count
            settled.refused = settled.refused + refused
        return settled

    def _last_mark(self, command: LastMark) -> int:
        self.must_commit = True  # what it tells of may still be on its way to the disk
        return self.marks.last(command.name)

    def _commit_work(self, command: CommitWork) -> list[Sent] | AlreadyDone:
        if command.mark is None:
            return self._do_work(command)
        name, number = command.mark
        self.marks.check(name, number)
        if number <= self.marks.last(name):
            self.must_commit = True  # what it tells of may still be on its way to the disk
            return AlreadyDone(name, self.marks.last(name))
        if command.mark_after is not None and command.mark_after != self.marks.last(name):
            self.must_commit = True
            raise MarkMoved(
                f"the last number of {name!r} is {self.marks.last(name)}, and the work starts after "
                f"{command.mark_after}: nothing was done; go on from where it is"
            )
        replies = self._do_work(command)
        if command.check_only:
            return replies
        self.marks.set(name, number, self.now_ms, self.shelf.changes)
        self.must_commit = True
        return replies

    def _recall_work(self, command: RecallWork) -> list[Sent] | AlreadyDone | None:
        self.must_commit = True  # what it tells of may still be on its way to the disk
        if command.named is not None:
            known = self._memory.recall(command.named, CommitWork(acks=[], sends=[]))
            if known is not None:
                return known[0]  # type: ignore[no-any-return]
        if command.mark is not None and command.mark[1] <= self.marks.last(command.mark[0]):
            return AlreadyDone(command.mark[0], self.marks.last(command.mark[0]))
        return None

    def _do_work(self, command: CommitWork) -> list[Sent]:
        if self.meta.shards == 1:
            self._check_acks(command.acks)
            self._check_sends(command.sends)
            return [] if command.check_only else self._work(command.acks, command.sends)
        return self._do_work_over_shards(command)

    def _work(self, acks: list[Ack], sends: list[Send]) -> list[Sent]:
        for ack in acks:
            settled = self._ack(ack)
            assert not settled.refused
        return [self._send(send) for send in sends]

    def _check_acks(self, acks: list[Ack]) -> None:
        """Raise if something that a unit of work has taken is not its own any more."""
        for channel, spans in self._spans_by_channel(acks):
            for span in spans:
                if not channel.settlement.can_ack(span):
                    raise _not_its_own(channel.queue.name, span)

    def _spans_by_channel(self, acks: list[Ack]) -> list[tuple[Channel, list[Span]]]:
        """What a unit of work has taken; `WorkRefused` if that is anything twice."""
        spans_of: dict[Channel, list[Span]] = {}
        for ack in acks:
            channel = self._channel(self._queue(ack.queue), ack.channel)
            spans_of.setdefault(channel, []).extend(self._spans(ack, channel))
        for channel, spans in spans_of.items():
            if any(one.last >= other.first for one, other in pairwise(sorted(spans))):
                raise WorkRefused(f"a message of queue {channel.queue.name!r} is taken twice in one unit of work")
        return list(spans_of.items())

    def _check_sends(self, sends: list[Send]) -> None:
        """Raise what is wrong with a unit of work's sends, before anything has happened."""
        groups_of: dict[str, list[str | None]] = {}
        size = 0
        for send in sends:
            queue = self.queues.get(send.queue)
            if queue is None and not send.create:
                raise QueueNotFound(f"there is no queue {send.queue!r}: create it first")
            size += self._check_send(send, send.config if queue is None else queue.config)[0]
            groups_of.setdefault(send.queue, []).extend(send.groups or [])
        _check_work_size(size)
        for name, groups in groups_of.items():
            if name in self.queues:
                self._check_rate(self.queues[name], groups, count_them=False)

    # -- other shards --

    def _do_work_over_shards(self, command: CommitWork) -> list[Sent]:
        """A unit of work of which this shard is the coordinator: what is elsewhere goes into the outbox."""
        here = self.meta.shard
        ack_shards = self._shards_of(command.ack_shards, [ack.queue for ack in command.acks], "acks")
        send_shards = self._shards_of(command.send_shards, [send.queue for send in command.sends], "sends")
        acks = [ack for ack, shard in zip(command.acks, ack_shards, strict=True) if shard == here]
        sends = [send for send, shard in zip(command.sends, send_shards, strict=True) if shard == here]
        self._check_acks(acks)
        self._check_sends(sends)
        sizes = [
            0 if shard == here else self._check_send_elsewhere(send)
            for send, shard in zip(command.sends, send_shards, strict=True)
        ]
        _check_work_size(sum(sizes))
        if command.check_only:
            return []
        sent = iter(self._work(acks, sends))
        acks_at: dict[int, list[Ack]] = {}
        for ack, shard in zip(command.acks, ack_shards, strict=True):
            if shard != here:
                acks_at.setdefault(shard, []).append(ack)
        for shard, away in acks_at.items():
            self.outbox.add_acks(shard, away)
        return [
            next(sent) if shard == here else self.outbox.add_send(shard, send, size)
            for send, shard, size in zip(command.sends, send_shards, sizes, strict=True)
        ]

    def _shards_of(self, given: list[int] | None, names: list[str], what: str) -> list[int]:
        if given is None:
            return [self.shard_of(name) for name in names]
        if len(given) != len(names) or not all(0 <= shard < self.meta.shards for shard in given):
            raise InvalidRequest(f"{given} are not the shards of {len(names)} {what}: there are {self.meta.shards}")
        return given

    def _check_send_elsewhere(self, send: Send) -> int:
        """Raise what can be known to be wrong with a send to another shard. Returns its size."""
        return self._check_send(send, QueueConfig(message_bytes_max=MESSAGE_BYTES_CEILING))[0]

    def _hold_for_work(self, command: HoldForWork) -> Settled:
        self._check_lease(command.lease_ms)
        held = self._spans_by_channel(command.acks)
        if command.let_go:
            return Settled(sum(channel.settlement.let_go(span) for channel, spans in held for span in spans))
        for channel, spans in held:
            for span in spans:
                if not channel.settlement.can_hold(span):
                    raise _not_its_own(channel.queue.name, span)
        for channel, spans in held:
            for span in spans:
                channel.settlement.hold(span, self.now_ms + command.lease_ms)
        self.must_commit = True
        return Settled(sum(span.messages for _, spans in held for span in spans))

    def ack_late(self, command: Ack) -> int:
        """Ack what was held for a unit of work. Returns how many messages are not its own any more."""
        try:
            refused = self._ack(command).refused
        except PenstockError:
            return sum(span.messages for span in command.spans) + len(command.receipts)
        return sum(each.last - each.first + 1 for each in refused)

    def _read_outbox(self, command: ReadOutbox) -> list[OutboxEntry]:
        return self.outbox.read(command.target, command.after, command.limit_bytes)

    def _forget_outbox(self, command: ForgetOutbox) -> int:
        return self.outbox.forget(command.target, command.up_to)

    def _take_outbox(self, command: TakeOutbox) -> Taken:
        return inbox.take(self, command)

    # -- channels --

    def _create_channel(self, command: CreateChannel) -> int:
        queue = self._queue(command.queue)
        existing = queue.channels.get(command.channel)
        if existing is not None:
            return existing.id
        check_name(command.channel, "channel")
        if command.start not in ("head", "tail", "first") and not isinstance(command.start, int):
            raise InvalidRequest(
                f"start is {command.start!r}: it must be 'head', 'tail', 'first', or a time in milliseconds"
            )
        if command.offsets:
            raise InvalidRequest(f"there are {len(command.offsets)} offsets: queue {queue.name!r} has one partition")
        self.must_commit = True
        if command.offset is None:
            return queue.add_channel(command.channel, command.start, self.now_ms).id
        self._check_offset(queue, command.offset)
        queue.seal()
        first = position.chunk_start(queue, command.offset)
        channel = queue.add_channel(command.channel, command.start, self.now_ms, first=first)
        position.ack_up_to(channel, command.offset, self.now_ms)
        channel.acked = 0
        return channel.id

    def _ack_up_to(self, command: AckUpTo) -> int:
        queue = self._queue(command.queue)
        channel = self._channel(queue, command.channel)
        self._check_offset(queue, command.offset)
        self.must_commit = True
        return position.ack_up_to(channel, command.offset, self.now_ms)

    @staticmethod
    def _check_offset(queue: Queue, offset: int) -> None:
        if not 0 <= offset <= queue.next_sequence:
            raise InvalidRequest(
                f"offset is {offset}: it must be from 0 to {queue.next_sequence}, the end of queue {queue.name!r}"
            )

    def _delete_channel(self, command: DeleteChannel) -> None:
        queue = self._queue(command.queue)
        channel = self._channel(queue, command.channel)
        if command.unless_subscribed and any(other is channel for other, _ in self._waiters.values()):
            return
        self._dismiss(channel, ChannelNotFound(f"channel {channel.name!r} of queue {queue.name!r} was deleted"))
        queue.seal()
        queue.delete_channel(channel)
        if command.purge_last and not queue.channels and not queue.consumers:
            queue.purge()
        self.must_commit = True

    def _pause_channel(self, command: PauseChannel) -> None:
        channel = self._channel(self._queue(command.queue), command.channel)
        channel.paused = command.paused
        channel.touch()
        self.must_commit = True
        self.woke(channel)

    def _pause_queue(self, command: PauseQueue) -> None:
        self._queue(command.queue).pause(command.paused, self.now_ms)
        self.must_commit = True

    def _purge_backlog(self, command: PurgeBacklog) -> int:
        self.must_commit = True
        return self._queue(command.queue).purge_backlog()

    def _purge_channel(self, command: PurgeChannel) -> int:
        queue = self._queue(command.queue)
        channel = self._channel(queue, command.channel)
        queue.seal()
        count = channel.purge(queue.shown_to)
        queue.sweep()
        self.must_commit = True
        return count

    # -- sessions --

    def _open_session(self, command: OpenSession) -> int:
        if command.ttl_ms is not None and command.ttl_ms <= 0:
            raise InvalidRequest(f"ttl_ms is {command.ttl_ms}: it must be more than 0")
        number = self.meta.next_session
        self.meta.next_session += 1
        self._save_meta()
        self.sessions[number] = Session(_clean(command.name), command.ttl_ms, self.now_ms, command.bound)
        self._save_session(number)
        if command.ttl_ms is not None:
            self.schedule(self.now_ms + command.ttl_ms, "session", number)
        self.must_commit = True
        return number

    def _save_session(self, number: int) -> None:
        data = msgspec.msgpack.encode(self.sessions[number])
        self.shelf.changes.put_record(keys.record(Kind.SESSION, number), data)

    def _heartbeat(self, command: Heartbeat) -> None:
        self._check_session(command.session)
        session = self.sessions.get(command.session)
        if session is not None:
            session.seen_ms = self.now_ms
            self._save_session(command.session)

    def _end_session_now(self, command: EndSession) -> int:
        self._check_session(command.session)
        self.must_commit = True
        return self._end_session(command.session, _clean(command.error))

    def end_bound_sessions(self) -> int:
        """End the sessions that were connections, because the process that had them is gone. Returns how many."""
        bound = [number for number, session in self.sessions.items() if session.bound]
        for number in bound:
            self._end_session(number, "the connection was lost")
        return len(bound)

    def _end_session(self, number: int, error: str) -> int:
        count = 0
        for channel in self._held.pop(number, {}):
            if self._is_alive(channel):
                count += channel.end_session(number, self.now_ms, error)
        for channel, waiter in list(self._waiters.values()):
            if waiter.session == number:
                self._turn_away(channel, waiter, SessionNotFound(f"session {number} has ended: {error}"))
        self.sessions.pop(number, None)
        self.shelf.changes.delete_record(keys.record(Kind.SESSION, number))
        return count

    # -- consumers, looking --

    def _read_records(self, command: ReadRecords) -> Records:
        queue = self._queue(command.queue)
        offset = command.offset
        if command.consumer is not None:
            check_name(command.consumer, "consumer")
            consumer = queue.consumers.get(command.consumer)
            if consumer is not None:
                queue.consumer_seen(command.consumer, self.now_ms)
            if offset is None:
                offset = 0 if consumer is None else consumer.offset
        if offset is not None and offset < 0:
            raise InvalidRequest(f"offset is {offset}: it must not be negative")
        if not 1 <= command.limit <= RECEIVE_LIMIT_MAX:
            raise InvalidRequest(f"limit is {command.limit}: it must be from 1 to {RECEIVE_LIMIT_MAX}")
        if command.bytes_max is not None and command.bytes_max < 1:
            raise InvalidRequest(f"bytes_max is {command.bytes_max}: it must be at least 1")
        runs, next_offset = queue.read(offset or 0, command.limit, command.end, command.bytes_max)
        return Records(queue.name, queue.id, runs, next_offset, queue.next_sequence)

    def _find_offsets(self, command: FindOffsets) -> Offsets:
        queue = self._queue(command.queue)
        queue.seal()
        end = queue.next_sequence
        cut = end if command.bytes_max is None else position.offset_after(queue, command.after, command.bytes_max)
        at_times = [queue.first_from(time_ms) for time_ms in command.times_ms]
        partitions = min(queue.config.partitions, self.meta.shards)
        return Offsets(queue.name, queue.id, position.first_offset(queue), end, at_times, cut, partitions)

    def _list_chunks(self, command: ListChunks) -> ChunkList:
        queue = self._queue(command.queue)
        if not 1 <= command.limit <= RECEIVE_LIMIT_MAX:
            raise InvalidRequest(f"limit is {command.limit}: it must be from 1 to {RECEIVE_LIMIT_MAX}")
        self.must_commit = True  # what it tells of may still be on its way to the disk
        found = position.chunks_between(queue, command.offset, command.end, command.limit)
        next_offset = found[-1].base + found[-1].messages if found else command.offset
        return ChunkList(queue.name, queue.id, [key.packed for key in found], next_offset, self.meta.shard)

    def _ack_consumer(self, command: AckConsumer) -> int:
        queue = self._queue(command.queue)
        check_name(command.consumer, "consumer")
        self._check_offset(queue, command.offset)
        consumer = queue.consumers.get(command.consumer)
        if consumer is not None and command.offset < consumer.offset and not command.allow_rewind:
            raise RewindRefused(
                f"consumer {command.consumer!r} of queue {queue.name!r} is at offset {consumer.offset}, and "
                f"{command.offset} is before it: allow rewinding if that is meant"
            )
        queue.consumer_moved(command.consumer, command.offset, self.now_ms)
        self.must_commit = True
        return command.offset

    def _delete_consumer(self, command: DeleteConsumer) -> None:
        queue = self._queue(command.queue)
        if command.consumer not in queue.consumers:
            raise ConsumerNotFound(f"queue {queue.name!r} has no consumer {command.consumer!r}")
        queue.delete_consumer(command.consumer)
        self.must_commit = True

    def _browse(self, command: Browse) -> list[Seen]:
        queue = self._queue(command.queue)
        channel = queue.channels.get(command.channel)
        if channel is None and command.channel != MAIN:
            self._channel(queue, command.channel)  # raises; looking at the main channel does not create it
        if command.limit < 1:
            raise InvalidRequest(f"limit is {command.limit}: it must be at least 1")
        return queue.browse(channel, command.after, command.limit, command.states, command.contains)

    # -- redrive --

    def _start_redrive(self, command: StartRedrive) -> RedriveTask:
        queue = self._queue(command.queue)
        if command.target is not None:
            check_name(command.target, "queue")
            if command.target == command.queue:
                raise InvalidRequest(f"queue {command.queue!r} cannot be redriven to itself: name another target")
        if command.per_second is not None and command.per_second < 1:
            raise InvalidRequest(f"per_second is {command.per_second}: it must be at least 1")
        if any(task.queue == queue.name and task.status == "running" for task in self.tasks.values()):
            raise InvalidRequest(f"a redrive of queue {queue.name!r} is running: cancel it, or wait for it, first")
        channel = self._channel_to_receive(queue, MAIN)
        task = RedriveTask(
            task=self.meta.next_task,
            queue=queue.name,
            target=command.target,
            status="running",
            moved=0,
            skipped=0,
            to_move=channel.ready,
            started_ms=self.now_ms,
            sequences=command.sequences,
            contains=command.contains,
            match_error=command.error,
            per_second=command.per_second,
            end=queue.next_sequence,
            paced_ms=self.now_ms - redrive.STEP_MS,
        )
        self.meta.next_task += 1
        self._save_meta()
        self.tasks[task.task] = task
        redrive.save(self, task)
        self.schedule(self.now_ms, "redrive", task)
        self.must_commit = True
        return msgspec.structs.replace(task)

    def _cancel_redrive(self, command: CancelRedrive) -> RedriveTask:
        task = self.tasks.get(command.task)
        if task is None:
            raise TaskNotFound(f"there is no redrive {command.task}")
        if task.status == "running":
            task.status = "cancelled"
            redrive.save(self, task)
            self.must_commit = True
        return msgspec.structs.replace(task)

    def _list_redrives(self, command: ListRedrives) -> list[RedriveTask]:
        found = [task for task in self.tasks.values() if command.queue in (None, task.queue)]
        return [msgspec.structs.replace(task) for task in sorted(found, key=lambda task: -task.task)]

    # -- for tests --

    def snapshot(self) -> dict[str, Any]:
        """All that is stored, comparable: the state of a broker opened from the store is the same."""
        self._seal()
        return {
            "meta": msgspec.to_builtins(self.meta),
            "queues": {name: queue.snapshot() for name, queue in sorted(self.queues.items())},
            "sessions": {number: msgspec.to_builtins(session) for number, session in self.sessions.items()},
            "marks": self.marks.snapshot(),
            "outbox": self.outbox.snapshot(),
            "once": self._memory.snapshot(),
            "tasks": {number: msgspec.to_builtins(task) for number, task in self.tasks.items()},
        }


def _not_its_own(queue: str, span: Span) -> WorkRefused:
    return WorkRefused(
        f"messages {span.first} to {span.last} of queue {queue!r} are not this unit of work's any more "
        "(their lease ran out, or they were settled): nothing was done; take them again"
    )


def _check_work_size(size: int) -> None:
    if size > BATCH_BYTES_MAX:
        raise BatchTooLarge(f"{size} bytes are too many for one unit of work: put at most {BATCH_BYTES_MAX}")


def _check_text(name: str, what: str) -> None:
    """A group or a dedup id: short, and text that can be written."""
    if not 1 <= len(name) <= _TEXT_LENGTH_MAX:
        raise InvalidName(f"a {what} has 1 to {_TEXT_LENGTH_MAX} characters; this one has {len(name)}: {name[:50]!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidName(f"a {what} must be valid text; {name[:50]!r} is not") from None


def _clean(text: str) -> str:
    """Text that can be written: what is not valid in it is replaced, because it only explains."""
    return text.encode("utf-8", "replace").decode()


_HANDLERS: dict[type[Command], Callable[[Broker, Any], Any]] = {
    CreateQueue: Broker._create_queue,
    ChangeQueue: Broker._change_queue,
    DeleteQueue: Broker._delete_queue,
    PurgeQueue: Broker._purge_queue,
    DescribeQueue: Broker._describe_queue,
    ListQueues: Broker._list_queues,
    QueueStats: Broker._queue_stats,
    Send: Broker._send,
    Receive: Broker._receive,
    Subscribe: Broker._subscribe,
    SetCredit: Broker._set_credit,
    AddCredit: Broker._add_credit,
    CancelWait: Broker._cancel_wait,
    Ack: Broker._ack,
    AckSequences: Broker._ack_sequences,
    ReleaseSequences: Broker._release_sequences,
    ExtendSequences: Broker._extend_sequences,
    Release: Broker._release,
    GiveBack: Broker._give_back,
    Extend: Broker._extend,
    CommitWork: Broker._commit_work,
    HoldForWork: Broker._hold_for_work,
    RecallWork: Broker._recall_work,
    ReadOutbox: Broker._read_outbox,
    ForgetOutbox: Broker._forget_outbox,
    TakeOutbox: Broker._take_outbox,
    CreateChannel: Broker._create_channel,
    DeleteChannel: Broker._delete_channel,
    PauseChannel: Broker._pause_channel,
    PauseQueue: Broker._pause_queue,
    PurgeBacklog: Broker._purge_backlog,
    PurgeChannel: Broker._purge_channel,
    OpenSession: Broker._open_session,
    Heartbeat: Broker._heartbeat,
    EndSession: Broker._end_session_now,
    ReadRecords: Broker._read_records,
    AckUpTo: Broker._ack_up_to,
    LastMark: Broker._last_mark,
    FindOffsets: Broker._find_offsets,
    ListChunks: Broker._list_chunks,
    AckConsumer: Broker._ack_consumer,
    DeleteConsumer: Broker._delete_consumer,
    Browse: Broker._browse,
    StartRedrive: Broker._start_redrive,
    CancelRedrive: Broker._cancel_redrive,
    ListRedrives: Broker._list_redrives,
}

_TIMERS: dict[str, Callable[[Broker, Any, Any, int], None]] = {
    "channel": Broker._channel_timer,
    "waiter": Broker._waiter_timer,
    "bucket": Broker._bucket_timer,
    "retention": Broker._retention_timer,
    "dedup": Broker._dedup_timer,
    "consumers": Broker._consumers_timer,
    "attempt": Broker._attempt_timer,
    "session": Broker._session_timer,
    "redrive": Broker._redrive_timer,
    "once": Broker._once_timer,
}
