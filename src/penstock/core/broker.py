"""The broker: every queue of one shard, and the one way in.

`handle` takes a command and the time; what it changes is gathered in the write buffer, for one commit of many commands.
A step of whoever drives it is: `handle` each command, `finish`, `take_woken`; then, if `must_commit`, `take_changes`,
commit them, `committed`, and only then let the replies go. If not, the replies may go at once, and the changes (leases,
attempts, failures) with a later commit. If a commit fails, this broker is thrown away and another one opened from the
store.

Time never goes back here: a step with an earlier `now` happens at the latest time seen so far.

The commands are done in rooms of their own, each by a method with its name: `Catalog` has queues and channels,
 `Sending`, `Receiving` and `Acknowledging` what happens to messages, `UnitsOfWork` what happens together,
`SessionRegister` who holds leases, `Reading` what is read without a lease, `Redrives` what is moved back, `Intervening`
what an operator does to messages by number. `Moves` does no commands: it puts messages into other queues. Here is what
they share: state, time, names, and the stored form.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any

import msgspec

from penstock.core.commands import (
    COMMANDS,
    CatalogEvent,
    Command,
    Damage,
    Delivery,
    ForgetOutbox,
    Handlers,
    MessageEvent,
    OutboxEntry,
    ReadOutbox,
    RedriveTask,
    Taken,
    TakeOutbox,
    handlers_of,
)
from penstock.core.delivery.channel import Channel
from penstock.core.delivery.receipt import Receipt, message_id, receipt_key
from penstock.core.errors import (
    ChannelNotFound,
    InvalidConfig,
    InvalidRequest,
    QueueNotFound,
    SessionNotFound,
    StoreDamaged,
    StoreError,
)
from penstock.core.handlers.acknowledging import Acknowledging
from penstock.core.handlers.catalog import Catalog
from penstock.core.handlers.checks import check_queue_id
from penstock.core.handlers.intervening import Intervening
from penstock.core.handlers.once import Marks, OnceMemory
from penstock.core.handlers.reading import Reading
from penstock.core.handlers.receiving import Receiving
from penstock.core.handlers.sending import Sending
from penstock.core.handlers.sessions import SessionRegister
from penstock.core.handlers.staging import Staging
from penstock.core.handlers.work import UnitsOfWork
from penstock.core.queues.config import DEDUP_WINDOW_MS
from penstock.core.queues.partition import SHARD_SHIFT, SHARDS_MAX, partition_of
from penstock.core.queues.queue import Queue
from penstock.core.queues.reserve import Reserve
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes, Reader
from penstock.core.storage.keys import Kind
from penstock.core.storage.quarantine import Quarantine
from penstock.core.storage.records import Meta, Session
from penstock.core.storage.write_buffer import WriteBuffer
from penstock.core.transfer import inbox
from penstock.core.transfer.moves import Moves, Redrives
from penstock.core.transfer.outbox import Outbox


class Totals:
    """Messages that are there as of the last commit, and what happened to messages since the store was opened.

    Queues and channels that changed since the last commit count themselves when they are saved.
    """

    __slots__ = ("acked", "bytes", "dead", "failed", "messages", "sent")

    def __init__(self) -> None:
        self.messages = 0
        """Messages in the store, whatever their state."""
        self.bytes = 0
        self.sent = 0
        """Since the store was opened; so are those below. What a queue that was deleted has counted stays counted."""
        self.acked = 0
        self.failed = 0
        self.dead = 0


FORMAT_VERSION = 1
_SECRET_BYTES = 32
_REALM_BYTES = 8
_RECEIPT_KEYS_MAX = 10_000
_GO_WITHOUT = frozenset({Kind.SESSION, Kind.TASK, Kind.ONCE, Kind.STAGE})
"""Records of no queue that a store can be opened without, if they are damaged: leases run out, redrives end, what was
staged stays on the disk unseen, and a client's command that was repeated is done again. That is told. Without the
others, work would be done twice, or lost.
"""


_NUMBER_BYTES = 8
_ADVICE = (
    "Nothing was changed: restore a backup, or copy what is readable to a new directory with `penstock store salvage`."
)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def _named(group: bytes) -> str:
    """What a group of records is, for people."""
    if len(group) == 1 and group[0] in set(Kind):
        return f"records of kind {Kind(group[0]).name.lower()}"
    return f"records of group {group.hex() or 'none'}"


class Broker:
    """Every queue of one shard. See the top of this file for how it is driven."""

    def __init__(self, reader: Reader, meta: Meta) -> None:
        self.write_buffer = WriteBuffer(reader)
        self.meta = meta
        self.now_ms = 0
        self.must_commit = False
        self.stands_still = False
        """Nothing is done because its time has come; for a while, if it cannot be written."""
        self.queues: dict[str, Queue] = {}
        self.queues_by_id: dict[int, Queue] = {}
        self.quarantine = Quarantine()
        """Queues that are stored, and not served: something of them is damaged."""
        self.totals = Totals()
        self.sessions: dict[int, Session] = {}
        self.tasks: dict[int, RedriveTask] = {}
        self.marks = Marks()
        self.memory = OnceMemory()
        self.in_process = False
        """Whether nobody but the process that opened this broker receives from it: see `sessions`."""
        self.delivers_unsynced = False
        """Whether whoever drives this lets messages leave early, where a queue says so: see `reserve`."""
        self.reserving: list[Reserve] = []
        """Where numbers are set aside with the next commit."""
        self.drafts: dict[Queue, None] = {}
        self.dirty_queues: dict[Queue, None] = {}
        self.dirty_channels: dict[Channel, None] = {}
        self.reports: list[Damage] = []
        self.events: list[CatalogEvent] = []
        """Queues and channels that came or went since the last `take_events`."""
        self.message_events: list[MessageEvent] | None = None
        """What happened to messages since somebody emptied it; None while nobody wants to know."""
        self.timers: list[tuple[int, int, str, Any, Any]] = []
        """A heap: the first is what is due first."""
        self._timer_count = 0
        self._once: dict[tuple[str, int], int] = {}
        self._awake: dict[Channel, None] = {}
        self._receipt_keys: dict[int, bytes] = {}
        self.outbox = Outbox(self)
        self.catalog = Catalog(self)
        self.sending = Sending(self)
        self.receiving = Receiving(self)
        self.acknowledging = Acknowledging(self)
        self.work = UnitsOfWork(self)
        self.staging = Staging(self)
        self.session_register = SessionRegister(self)
        self.reading = Reading(self)
        self.redrives = Redrives(self)
        self.intervening = Intervening(self)
        self.moves = Moves(self)
        rooms = (
            self,
            self.catalog,
            self.sending,
            self.receiving,
            self.acknowledging,
            self.work,
            self.staging,
            self.session_register,
            self.reading,
            self.redrives,
            self.intervening,
        )
        self.handlers: Handlers = handlers_of(COMMANDS, rooms)
        """What is called for a command: a method of a room, bound, so that nothing stands between."""
        self._timer_handlers = self._handlers_of_timers()

    # -- opening --

    @classmethod
    def open(cls, reader: Reader, now_ms: int, entropy: bytes, shard: int | None = 0, shards: int = 1) -> Broker:
        """The broker as the store has it. `entropy` makes the secret and the realm of a store that is new.

        `shard` of `shards` is what a new store becomes, and what an old one has to be; None: whatever it is.
        """
        found = next(reader.scan(keys.record(Kind.META)), None)
        if found is not None:
            try:
                broker = cls(reader, msgspec.msgpack.decode(found[1], type=Meta))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise StoreDamaged(f"the record of the store itself cannot be read ({error}). {_ADVICE}") from None
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
        if reader.flaws() or any(next(reader.scan(bytes([kind])), None) is not None for kind in Kind):
            raise StoreDamaged(f"the record of the store itself is damaged or missing. {_ADVICE}")
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
        broker.save_meta()
        return broker

    def _check_shard(self, shard: int, shards: int) -> None:
        """Where a queue lives follows from the number of shards: a store cannot become another one."""
        if (self.meta.shard, self.meta.shards) != (shard, shards):
            raise InvalidConfig(
                f"the store is shard {self.meta.shard} of {self.meta.shards}, and was opened as shard {shard} of "
                f"{shards}: open it as what it is, or move its messages to a store that is new"
            )

    def _restore(self) -> None:
        self._note_flaws()
        channels: dict[tuple[int, int], Channel] = {}
        for kind, restore in self._restorers(channels):
            for record_key, data in self._records(kind):
                try:
                    restore(keys.number_of(record_key), record_key, data)
                except StoreError:
                    raise
                except Exception as error:  # a record that makes no sense keeps its queue out, and nobody else's
                    self._note_unreadable(kind, record_key, error)
        try:
            self.marks.restore(list(self._records(Kind.MARK)))
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
            self._note_unreadable(Kind.MARK, keys.record(Kind.MARK), error)
        self._restored(channels.values())
        self._set_damaged_apart()
        self.catalog.restored()

    def _restorers(
        self, channels: dict[tuple[int, int], Channel]
    ) -> tuple[tuple[Kind, Callable[[int, bytes, bytes], None]], ...]:
        """What reads each kind of record, in the order in which they are read; `channels` is filled on the way."""

        def restore_queue(number: int, _key: bytes, data: bytes) -> None:
            queue = Queue.restore(self, number, data)
            if queue.name in self.queues:
                raise ValueError(f"queue {queue.name!r} is there twice")
            self.queues[queue.name] = self.queues_by_id[queue.id] = queue

        def restore_channel(number: int, key: bytes, data: bytes) -> None:
            queue = self.queues_by_id[number]
            channel = Channel.restore(queue, int.from_bytes(key[9:13], "big"), data)
            queue.channels[channel.name] = channels[queue.id, channel.id] = channel

        def restore_entry(_number: int, key: bytes, data: bytes) -> None:
            queue_id, channel_id, lane, base = keys.unpack_entry(key)
            channels[queue_id, channel_id].restore_entry(lane, base, data)

        def restore_bucket(_number: int, key: bytes, data: bytes) -> None:
            queue_id, lane, order = keys.unpack_bucket(key)
            self.queues_by_id[queue_id].restore_bucket(lane, order, msgspec.msgpack.decode(data, type=int))

        def restore_attempt(number: int, key: bytes, data: bytes) -> None:
            channels[number, int.from_bytes(key[9:13], "big")].attempts.restore(key[13:].decode(), data)

        def restore_reserve(number: int, _key: bytes, data: bytes) -> None:
            self.queues_by_id[number].reserve = Reserve.restore(number, data)

        def restore_segment(number: int, key: bytes, data: bytes) -> None:
            segment = self.write_buffer.segments.restore(key, data)
            if number < keys.OUTBOX_QUEUES and segment.first + segment.count > queues[number].next_sequence:
                raise ValueError("it has numbers that were never given")

        def restore_once(_number: int, key: bytes, data: bytes) -> None:
            name = self.memory.restore(key, data, self.now_ms)
            self.schedule(self.memory.expires_ms(name) or self.now_ms, "once", name)

        queues = self.queues_by_id
        return (
            (Kind.SESSION, lambda number, _key, data: self.session_register.restore(number, data)),
            (Kind.QUEUE, restore_queue),
            (Kind.COUNTERS, lambda number, _key, data: queues[number].restore_counters(data)),
            (Kind.CHANNEL, restore_channel),
            (Kind.ENTRY, restore_entry),
            (Kind.BUCKET, restore_bucket),
            (Kind.CONSUMER, lambda number, key, data: queues[number].restore_consumer(key[9:].decode(), data)),
            (Kind.DEDUP, lambda number, _key, data: queues[number].dedup.restore(data)),
            (Kind.ATTEMPT, restore_attempt),
            (Kind.QUARANTINE, lambda number, key, data: queues[number].restore_quarantine(key[9:], data)),
            (Kind.RESERVE, restore_reserve),
            (Kind.TASK, lambda number, _key, data: self.redrives.restore(number, data)),
            (Kind.OUTBOX_TARGET, lambda number, _key, data: self.outbox.restore(number, data)),
            (Kind.ONCE, restore_once),
            (Kind.SEGMENT, restore_segment),
            (Kind.STAGE, lambda number, _key, data: self.staging.restore(number, data)),
        )

    def _restored(self, channels: Iterable[Channel]) -> None:
        for channel in channels:
            queue = channel.queue
            if queue.id in self.quarantine:
                continue
            try:
                channel.restored(self.now_ms)
                for holder in channel.holders():
                    self.session_register.note_lease(holder, channel)
            except StoreError:
                raise
            except Exception as error:
                self.quarantine.add(queue.id, f"channel {channel.name!r} does not fit its records ({_line(error)})")
        for queue in self.queues.values():
            if queue.id in self.quarantine:
                continue
            try:
                queue.restored()
                queue.restart_retention(opened=True)
                queue.dedup.set_clock_back(self.now_ms, self.write_buffer.changes)
                if queue.dedup.unsaved:
                    queue.touch()
                queue.watch_dedup()
                queue.watch_consumers(self.now_ms)
            except StoreError:
                raise
            except Exception as error:
                self.quarantine.add(queue.id, f"its records do not fit together ({_line(error)})")

    # -- damage --

    def _note_flaws(self) -> None:
        """What the store found: damage of a queue keeps that queue out, most of the rest keeps the store closed."""
        for flaw in self.write_buffer.reader.flaws():
            if len(flaw.group) == _NUMBER_BYTES and flaw.group[0] != keys.OUTBOX_QUEUES >> 56:
                self.quarantine.add(int.from_bytes(flaw.group, "big"), flaw.what)
            elif flaw.group and flaw.group[0] in _GO_WITHOUT:
                self._report("", f"{Kind(flaw.group[0]).name.lower()}: {flaw.what}; they are left out")
            else:
                raise StoreDamaged(f"{_named(flaw.group)}: {flaw.what}. {_ADVICE}")

    def _note_unreadable(self, kind: Kind, record_key: bytes, error: Exception) -> None:
        number = keys.number_of(record_key)
        if kind in keys.OF_A_QUEUE and number < keys.OUTBOX_QUEUES:
            missing = kind != Kind.QUEUE and isinstance(error, KeyError)
            why = "belongs to nothing" if missing else f"cannot be read ({_line(error)})"
            self.quarantine.add(number, f"a record of kind {kind.name.lower()} {why}")
        elif kind in _GO_WITHOUT:
            self._report("", f"{kind.name.lower()} {number} cannot be read ({_line(error)}), and is left out")
        else:
            raise StoreDamaged(f"a record of kind {kind.name.lower()} cannot be read ({_line(error)}). {_ADVICE}")

    def _report(self, queue: str, what: str) -> None:
        self.reports.append(Damage(queue, 0, -1, what))

    def _set_damaged_apart(self) -> None:
        """Nothing of a damaged queue is served, and nothing of it is written."""
        changes = self.write_buffer.changes
        for queue_id in self.quarantine.ids:
            queue = self.queues_by_id.pop(queue_id, None)
            if queue is not None:
                self.quarantine.call(queue_id, queue.name)
                queue.count_out()
                del self.queues[queue.name]
                self.dirty_queues.pop(queue, None)
                self.drafts.pop(queue, None)
                for channel in queue.channels.values():
                    self.dirty_channels.pop(channel, None)
                    self._awake.pop(channel, None)
            number = keys.queue_chunks(queue_id)
            for key in [key for key in changes.records if keys.group_of(key) == number]:
                del changes.records[key]
            for key in [key for key in changes.chunks if key.startswith(number)]:
                del changes.chunks[key]
            changes.dropped = [prefix for prefix in changes.dropped if keys.group_of(prefix) != number]
            self.write_buffer.forget_queue(number)
            self._report(self.quarantine.label(queue_id), f"{self.quarantine.reason(queue_id)}; it is not served")

    def _records(self, kind: Kind) -> Iterator[tuple[bytes, bytes]]:
        return self.write_buffer.reader.scan(bytes([kind]))

    def save_meta(self) -> None:
        """Write what the store says of itself."""
        self.write_buffer.changes.put_record(keys.record(Kind.META), msgspec.msgpack.encode(self.meta))

    # -- being driven --

    def handle(self, command: Command, now_ms: int) -> Any:
        """Do what a command says: its reply, None for a receive that waits, `PenstockError` when it cannot be done."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms
        if self.timers and self.timers[0][0] <= self.now_ms:
            self._run_timers()
            self._seal()
        once = command.once
        if once is None:
            return self.handlers[type(command)](command)
        known = self.memory.recall(once, command)
        if known is not None:  # it has a name, and was done before: say again what was said then
            return known[0]
        self.memory.check(once, command)
        reply = self.handlers[type(command)](command)
        if self.memory.remember(once, command, reply, self.now_ms):
            self.schedule(self.now_ms + DEDUP_WINDOW_MS, "once", once.client)
        return reply

    def was_done(self, command: Command) -> bool:
        """Whether a command has a name, and was done under it before."""
        return command.once is not None and self.memory.knows(command.once)

    def finish(self, now_ms: int) -> None:
        """End a step: do what is due, and serve those who wait."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms
        for queue in list(self.drafts):
            queue.seal()
        if self.timers and self.timers[0][0] <= self.now_ms:
            self._run_timers()
            self._seal()
        if self._awake:
            awake, self._awake = self._awake, {}
            self.receiving.serve(awake)

    def next_deadline(self) -> int | None:
        """When `finish` should be called although no command has come. (A shard looks at `timers` itself.)"""
        return self.timers[0][0] if self.timers else None

    def take_woken(self) -> list[tuple[Any, Delivery]]:
        """Deliveries to those who waited, with their tickets."""
        receiving = self.receiving
        woken, receiving.woken = receiving.woken, []
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

    def end_bound_sessions(self, *, keeping: bool = False, before: int | None = None) -> int:
        """End the bound sessions, because the process that had them is gone. Returns how many.

        `keeping` those that say where the connection is: the store was only handed over. `before`: only those with
        lower numbers; the others are sessions of this process.
        """
        return self.session_register.end_bound(keeping, self.meta.next_session if before is None else before)

    def leave_sessions(self) -> None:
        """The process closes the store in order, and what it still holds stays leased: its receipts may be used later.

        What it holds without a session is nobody's from now on, and sessions that have a time to live outlive it.
        """
        self.session_register.leave()

    def stood_still(self, now_ms: int) -> None:
        """The process that has the broker stood still until now, and has heard nobody meanwhile."""
        self.session_register.stood_still(now_ms)

    def held(self, subscription: int) -> int:
        """How many messages the session of a subscription holds, if that limits what it is pushed; else 0."""
        return self.receiving.held(subscription)

    def may_leave_early(self, delivery: Delivery) -> bool:
        """Whether a delivery to a subscription may leave before its step is committed."""
        queue = self.queues_by_id.get(delivery.queue_id)
        if queue is None or queue.reserve is None or not queue.config.deliver_unsynced or not delivery.runs:
            return False
        synced = queue.reserve.synced
        return all(run.chunk.base + run.stop <= synced for run in delivery.runs)

    def left_early(self, ticket: Any, delivery: Delivery) -> None:
        """A delivery has left, whatever becomes of its step."""
        self.receiving.left_early(ticket, delivery)

    def skip_reserves(self) -> None:
        """This broker writes, after another one that may have crashed: no number is given twice."""
        for queue in self.queues.values():
            queue.skip_reserve()

    def release_reserves(self) -> None:
        """The last commit of this broker comes: with it all that has left is on the disk."""
        self.delivers_unsynced = False
        for queue in self.queues.values():
            queue.release()

    def set_aside(self) -> None:
        """The step that was finished is being written, while the next one begins."""
        self.receiving.set_aside()

    def adopt(self, other: Broker, tickets: Container[Any]) -> set[Any]:
        """Take over the subscriptions with these tickets from a broker that is thrown away, and its step with it.

        Returns the tickets of those whose channel and session are still there: the others are over.
        """
        self.session_register.adopt(other.session_register)
        return self.receiving.adopt(other.receiving, tickets)

    @property
    def has_changes(self) -> bool:
        """Whether anything waits for a commit."""
        return bool(
            self.dirty_queues
            or self.dirty_channels
            or self.memory.unsaved
            or self.write_buffer.has_changes
            or self.outbox.drafts
        )

    def take_changes(self) -> Changes:
        """Everything that changed since the last time, for one commit."""
        if self.drafts:
            self._seal()
        for queue in self.dirty_queues:
            queue.save()
        for channel in self.dirty_channels:
            channel.save()
        if self.memory.unsaved:
            self.memory.save(self.write_buffer.changes)
        if self.outbox.drafts:
            self.outbox.seal()
        self.dirty_queues.clear()
        self.dirty_channels.clear()
        self.must_commit = False
        return self.write_buffer.take_changes()

    def committed(self, changes: Changes) -> None:
        """These changes are in the store."""
        self.write_buffer.committing.remove(changes)
        for reserve in self.reserving:
            reserve.committed()
        self.reserving.clear()

    def _seal(self) -> None:
        for queue in list(self.drafts):
            queue.seal()

    # -- timers --

    def schedule(self, time_ms: int, kind: str, subject: Any, detail: Any = None) -> None:
        """Call back at a time, through `_run_timers`."""
        self._timer_count += 1
        heappush(self.timers, (time_ms, self._timer_count, kind, subject, detail))

    def schedule_once(self, time_ms: int, kind: str, queue: Queue) -> None:
        """As `schedule`, unless the same is scheduled earlier already."""
        planned = self._once.get((kind, queue.id))
        if planned is None or time_ms < planned:
            self._once[kind, queue.id] = time_ms
            self.schedule(time_ms, kind, queue)

    def _run_timers(self) -> None:
        if self.stands_still:
            return
        now_ms = self.now_ms
        due = []
        while self.timers and self.timers[0][0] <= now_ms:
            due.append(heappop(self.timers))
        for time_ms, _, kind, subject, detail in due:
            self._timer_handlers[kind](subject, detail, time_ms)

    def _handlers_of_timers(self) -> dict[str, Callable[[Any, Any, int], None]]:
        return {
            "channel": self._channel_timer,
            "waiter": self.receiving.end_wait,
            "bucket": self._bucket_timer,
            "retention": self._retention_timer,
            "dedup": self._dedup_timer,
            "consumers": self._consumers_timer,
            "attempt": self._attempt_timer,
            "session": self.session_register.expire,
            "redrive": self.redrives.step,
            "once": self._once_timer,
            "stage": self.staging.expire,
        }

    def _channel_timer(self, channel: Channel, _detail: Any, time_ms: int) -> None:
        if channel.scheduled_ms == time_ms and self.is_alive(channel):
            channel.scheduled_ms = None
            channel.pass_time(self.now_ms)

    def _bucket_timer(self, queue: Queue, place: tuple[int, int], _time_ms: int) -> None:
        if queue.id in self.queues_by_id:
            queue.bring_near(*place, self.now_ms)

    def _retention_timer(self, queue: Queue, _detail: Any, _time_ms: int) -> None:
        if queue.id in self.queues_by_id:
            queue.look_at_retention(self.now_ms)

    def _dedup_timer(self, queue: Queue, _detail: Any, _time_ms: int) -> None:
        if queue.id in self.queues_by_id:
            queue.forget_duplicates(self.now_ms)

    def _consumers_timer(self, queue: Queue, _detail: Any, _time_ms: int) -> None:
        self._once.pop(("consumers", queue.id), None)
        if queue.id in self.queues_by_id:
            queue.forget_consumers(self.now_ms)

    def _attempt_timer(self, channel: Channel, attempt_id: str, _time_ms: int) -> None:
        if self.is_alive(channel):
            channel.attempts.expire(attempt_id, self.now_ms)

    def _once_timer(self, client: str, _detail: Any, _time_ms: int) -> None:
        expires_ms = self.memory.expires_ms(client)
        if expires_ms is None:
            return
        if expires_ms <= self.now_ms:
            self.memory.forget(client, self.write_buffer.changes)
        else:
            self.schedule(expires_ms, "once", client)

    # -- what queues and channels tell --

    def woke(self, channel: Channel) -> None:
        """A channel may have something for those who wait."""
        if channel.wait_queue.waiters:
            self._awake[channel] = None

    def leased(self, channel: Channel, session: int) -> None:
        """Messages were leased: remember by whom, and whether that has to be durable first."""
        if session:
            self.session_register.note_lease(session, channel)
        if channel.queue.leases_are_durable:
            self.must_commit = True

    # -- names and identities --

    @property
    def local_queues(self) -> Mapping[str, Queue]:
        """The queues that have messages in this process: all there are."""
        return self.queues

    def queue_name(self, queue_id: int) -> str | None:
        queue = self.queues_by_id.get(queue_id)
        return self.quarantine.name_of(queue_id) if queue is None else queue.name

    def refuse_damaged(self, name: str) -> None:
        """`QueueDamaged` if a queue that is not in `queues` is in quarantine."""
        self.quarantine.refuse(name)

    def channel_name(self, queue_id: int, channel_id: int) -> str | None:
        queue = self.queues_by_id.get(queue_id)
        if queue is None:
            return None
        return next((channel.name for channel in queue.channels.values() if channel.id == channel_id), None)

    def part_names(self) -> Iterator[str]:
        """The queues of which a partition is in this shard, in order, as they are now."""
        return iter(self.catalog.names.copy())

    @property
    def realm(self) -> int:
        """What message ids are made of, besides queue and number."""
        return self.meta.realm

    def message_id(self, queue_id: int, sequence: int) -> str:
        """The identity of a message, a UUID: derived, never stored."""
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
        return Receipt(queue_id, channel_id, sequence, attempt).seal(self.receipt_key(queue_id))

    def open_receipt(self, text: str) -> Receipt:
        """Read a receipt; `ForgedReceipt` if this store has not made it."""
        return Receipt.open(text, self.receipt_key)

    def session_name(self, number: int) -> str:
        """A session's name, for the records of what failed."""
        session = self.sessions.get(number)
        return session.name if session is not None else ""

    def check_session(self, session: int) -> None:
        """`SessionNotFound` unless there is this session, or none is named."""
        if session and session not in self.sessions:
            raise SessionNotFound(f"session {session} has ended, or never existed: open another one")

    def find_queue(self, name: str, of_queue: int = 0) -> Queue:
        """The queue with this name; and with this id, unless that is 0."""
        queue = self.queues.get(name)
        if queue is None:
            self.quarantine.refuse(name)
        if of_queue:
            check_queue_id(queue, name, of_queue)
        if queue is None:
            raise QueueNotFound.of(name)
        return queue

    def find_channel(self, queue: Queue, name: str) -> Channel:
        channel = queue.channels.get(name)
        if channel is None:
            known = ", ".join(queue.channels) or "none"
            raise ChannelNotFound(f"queue {queue.name!r} has no channel {name!r} (it has: {known}): create it first")
        return channel

    def is_alive(self, channel: Channel) -> bool:
        """Whether a channel is still there, and its queue."""
        queue = self.queues_by_id.get(channel.queue.id)
        return queue is not None and queue.channels.get(channel.name) is channel

    # -- other shards --

    @property
    def outbox_name(self) -> str:
        """What other shards call this one's outbox. A store that is made anew has another one, and counts from 0."""
        return f"{self.meta.shard} {self.meta.made_ms}"

    def shard_of(self, name: str) -> int:
        """The shard where a queue of this name is to be found: this one, if it has one."""
        meta = self.meta
        return meta.shard if meta.shards == 1 or name in self.queues else self.home_of(name)

    def home_of(self, name: str) -> int:
        """The shard of the first partition of a queue of this name."""
        try:
            return partition_of(name, self.meta.shards)
        except UnicodeEncodeError:  # no queue can have this name, as whoever is asked for it says
            return self.meta.shard

    def _read_outbox(self, command: ReadOutbox) -> list[OutboxEntry]:
        return self.outbox.read(command.target, command.after, command.limit_bytes)

    def _forget_outbox(self, command: ForgetOutbox) -> int:
        return self.outbox.forget(command.target, command.up_to)

    def _take_outbox(self, command: TakeOutbox) -> Taken:
        return inbox.take(self, command)

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
            "segments": self.write_buffer.segments.snapshot(),
            "once": self.memory.snapshot(),
            "tasks": {number: msgspec.to_builtins(task) for number, task in self.tasks.items()},
        }
