"""The Kafka journal: a commit is a transaction over one partition of two topics.

Theory of operation. Shard n is partition n of the data topic and of the offset topic (`kafka_records` says what is in
them). A commit is one transaction of the shard's producer, whose transactional id nobody else uses:

    begin ── chunks and a marker to data, records and a marker to offset ── commit

(Without chunks there is nothing to data.)

Both topics are compacted: Kafka keeps the newest message of every key, and drops deleted keys after a while. So the log
is not a list of all commits but the state that they add up to, and *reading it to its end* gives that state, from
wherever one starts, provided that everything before was read by somebody and is in the table. To read a stretch twice
does no harm either: each key ends with its newest value. In between the state makes no sense; nobody sees it then.

Opening.

    1  init_transactions: fences whoever had the shard, and ends the transaction that it may have left open
    2  read both partitions to their ends, and refuse a format that is not known; abort what hangs behind them
       (`kafka_hanging`), if it has to be
    3  commit a marker of our own to both partitions, and read on until it comes

When 3 is done, everything is read that anybody has committed, whatever the brokers knew of each other in 2: it stands
before our marker, and nobody but us can write behind it.

Failures. A commit that takes its time is asked for again, as long as Kafka keeps its transaction open: a broker that is
lost costs what Kafka takes to replace it. A commit whose outcome stays unknown (`CommitFailed`) is the journal's last:
the producer is not used again, and opening a new journal finds out, after it has fenced this one. A fenced producer
means that somebody else has the shard (`ShardFenced`), or that this process stood still in the middle of a transaction
for so long that Kafka has ended it; either way it has to ask who owns the shard. A transaction that Kafka refused, and
that could be ended cleanly, wrote nothing (`CommitAborted`), and the journal goes on; if it hangs, that is as with an
outcome which is not known.

Time. Kafka forgets that a key was deleted `delete.retention.ms` after the deletion. A table that is older might hold
keys whose deletion nobody tells it of any more. `LogPosition` therefore carries a time, and whoever keeps one has to
look at it; a reading that takes longer than that is refused as well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from penstock.core.errors import StoreError
from penstock.core.storage.changes import Changes, Encodable
from penstock.store.errors import CommitAborted, CommitFailed, LogUnavailable, ShardFenced
from penstock.store.journal.frames import StoredChunk
from penstock.store.journal.kafka_hanging import Ends, must_abort
from penstock.store.journal.kafka_options import KafkaOptions
from penstock.store.journal.kafka_records import MARKER_KEY, NOBODYS_KEY, NONCE_BYTES, Assembly, Marker, Splits
from penstock.store.journal.kafka_topics import LogTopics, made_client, said, when_known

INIT_TIMEOUT_S = 60.0
"""How long the former owner's last transaction may take to end."""
QUIET_S_MAX = 60.0
"""A reading that gets nothing for so long is given up."""
READ_TURN_S = 0.01
FETCH_WAIT_MS = 10
"""How long a broker may wait for more before it says that there is nothing more."""
READ_MESSAGES_MAX = 500
READ_BYTES = 8 << 20
LISTED_KEYS = 10_000
BUFFERED_KBYTES = 256 << 10
DOUBT_FACTOR = 2
"""A commit that Kafka has everything of, and of which it has not said whether it is kept, is asked for so many times as
long as a commit may take. So long Kafka keeps the transaction."""
SAVE_EVERY_S = 60.0
"""How often it is written down how far the table is, while nothing but proofs is committed."""

log = logging.getLogger("penstock.kafka")

_DATA: Final = 0
_OFFSET: Final = 1

_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)
_OUT_OF_STEP = frozenset({KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.UNKNOWN_PRODUCER_ID})
"""After a message was refused, librdkafka and the broker may count differently until one more transaction failed."""
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_PASSING = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})


class LogPosition(NamedTuple):
    """How far a log was read: the next offsets, and when there was nothing behind them, in seconds since 1970."""

    data: int
    offset: int
    time_s: float


class PositionLost(StoreError):
    """The log does not go on where the table ends: the table is of no use any more."""


class _OutOfStep(CommitAborted):
    """Nothing was written, and the same once more may well succeed."""


class Keys(Protocol):
    """Who knows which keys there are."""

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
        """Up to `limit` chunk keys with this prefix, from `start` (inclusive) on, in key order."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every state record with this prefix, in key order."""


class KafkaJournal:
    """One shard's log. `replay` takes the shard over, from whoever has it.

    `start` says from where to read, and `splits` which values are in parts there; everything before is in the table.
    """

    def __init__(
        self,
        options: KafkaOptions,
        topics: LogTopics,
        shard: int,
        *,
        start: LogPosition | None = None,
        splits: tuple[dict[bytes, int], dict[bytes, int]] = ({}, {}),
    ) -> None:
        self._options = options
        self._topics = topics
        self._shard = shard
        self._start = start
        self._names = (options.data_topic, options.offset_topic)
        self._splits = (Splits(splits[_DATA]), Splits(splits[_OFFSET]))
        self._save: Callable[[LogPosition], None] | None = None
        self._keys: Keys | None = None
        self._nonce = os.urandom(NONCE_BYTES)
        self._message_bytes_max = min(options.message_bytes_max, topics.message_bytes_max)
        self._producer: Producer | None = None
        self._failure: StoreError | None = CommitFailed("the journal was not replayed")
        self._number = 0
        self._ends = [start.data, start.offset] if start is not None else [0, 0]
        self._trimmed = 0
        self._changed = 0
        """The last commit that changed anything."""
        self._saved_s = time.monotonic()
        self._steps: deque[tuple[int, LogPosition]] = deque()
        """Which offsets belong to commits that were not trimmed yet."""
        self._lock = threading.Lock()
        self.last_proof_s: float | None = None
        """When the last successful transaction began, by the monotonic clock: nobody else had the shard then."""
        self.fenced_s: float | None = None
        """When nobody else could commit any more, by the monotonic clock."""

    def knows(self, keys: Keys) -> None:
        """Who is asked for the keys below a prefix that is dropped."""
        self._keys = keys

    def saves(self, save: Callable[[LogPosition], None]) -> None:
        """Who is told how far the table has got, in the thread that trims."""
        self._save = save

    @property
    def splits(self) -> tuple[dict[bytes, int], dict[bytes, int]]:
        """The values that are in parts now, in each topic."""
        return self._splits[_DATA].counts, self._splits[_OFFSET].counts

    # Opening.

    def replay(self, after: int) -> Iterator[tuple[int, Changes]]:
        """Take the shard over; then what the log holds, from where the table ends, in pieces."""
        assert self._producer is None, "a journal is replayed once"
        self._number = self._trimmed = after
        self._fence()
        self._failure = None
        yield from self._read()

    def _fence(self) -> None:
        self._producer = self._made_producer()
        try:
            self._live.list_topics(self._options.data_topic, INIT_TIMEOUT_S)  # librdkafka connects late
            self._live.init_transactions(INIT_TIMEOUT_S)
        except KafkaException as error:
            raise said(error, self._options, f"shard {self._shard} cannot be taken over") from error
        self.fenced_s = time.monotonic()

    def _made_producer(self) -> Producer:
        options = self._options
        delivery_ms = int(options.commit_timeout_s * 1000)
        return made_client(
            Producer,
            options,
            client_id=options.transactional_id(self._shard),
            transactional_id=options.transactional_id(self._shard),
            transaction_timeout_ms=DOUBT_FACTOR * delivery_ms,
            delivery_timeout_ms=delivery_ms,
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            compression_type=options.compression,
            message_max_bytes=self._message_bytes_max,
            queue_buffering_max_kbytes=BUFFERED_KBYTES,
            **options.answer_timeouts(),
        )

    def _read(self) -> Iterator[tuple[int, Changes]]:
        began_s = time.time()
        reading = _Reading(self._options, self._shard, self._start, self.splits)
        try:
            yield from self._steps_of(reading, reading.to_the_ends())
            self._number = max(self._number, reading.number)
            self._end_hanging()
            self._append(Changes(), both=True)
            yield from self._steps_of(reading, reading.until(self._nonce))
            reading.check_end()
        finally:
            reading.close()
        for splits, counts in zip(self._splits, reading.counts, strict=True):
            splits.note(counts)
        self._check_duration(began_s)

    def _end_hanging(self) -> None:
        """Abort what former owners have left without an end, unless it may be committed with our first transaction."""
        with contextlib.closing(Ends(self._options, self._shard, QUIET_S_MAX)) as ends:
            hanging = ends.hanging()
            if not any(hanging):
                return
            is_to_abort = must_abort(hanging, ends.last_markers())
            how = "aborted, since it is not complete" if is_to_abort else "committed, since it is complete"
            log.error("shard %d: a transaction hangs in the log (KAFKA-20734): it is %s", self._shard, how)
            if is_to_abort:
                self._abort_with([name for name, each in zip(self._names, hanging, strict=True) if each is not None])
                ends.wait_until_nothing_hangs()

    def _abort_with(self, names: list[str]) -> None:
        """Abort a transaction in these topics, and with it whatever hangs there.

        It has no marker: if it hangs as well, what was cut must not look like a whole.
        """
        try:
            self._live.begin_transaction()
            for name in names:
                self._live.produce(name, None, NOBODYS_KEY, self._shard)
            if self._live.flush(self._options.commit_timeout_s):
                raise LogUnavailable(f"shard {self._shard}: Kafka refuses to end a transaction that hangs")
            self._live.abort_transaction(self._options.commit_timeout_s)
        except KafkaException as error:
            raise said(error, self._options, f"shard {self._shard} cannot be taken over") from error

    def _steps_of(self, reading: _Reading, pieces: Iterator[Changes]) -> Iterator[tuple[int, Changes]]:
        """What was read, numbered; how far that is, is noted."""
        for changes in pieces:
            self._number += 1
            position = reading.position()
            if position is not None:
                self._note(self._number, position, is_change=bool(changes))
            elif changes:
                self._changed = self._number  # the next position may come with nothing, and this is not in the table
            if changes:
                yield self._number, changes

    def _check_duration(self, began_s: float) -> None:
        """Kafka may have forgotten deletions while we read."""
        since_s = began_s if self._start is None else self._start.time_s
        if not 0 <= time.time() - since_s <= self._topics.delete_retention_ms / 1000:
            raise PositionLost(
                f"shard {self._shard}: reading the log took longer than its delete.retention.ms "
                f"({self._topics.delete_retention_ms}): deletions may have been missed. Raise it."
            )

    # Committing.

    def append(self, changes: Changes) -> int:
        """Commit a transaction. Without changes it holds a marker alone, and proves that the shard is still ours."""
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args) from self._failure
        return self._append(changes, both=False)

    def _append(self, changes: Changes, *, both: bool) -> int:
        began_s, began_time_s = time.monotonic(), time.time()
        number = self._number + 1
        committed = False
        try:
            self._transact(changes, number, both)
            committed = True
        finally:
            for splits in self._splits:
                splits.settle(committed)
            if not committed and self._failure is None:
                self._number = number  # aborted: the number is not used again
        self._number = number
        self.last_proof_s = began_s
        if not both:  # who opens a shard notes how far it is as it reads: there may be more before this marker
            position = LogPosition(self._ends[_DATA], self._ends[_OFFSET], began_time_s)
            self._note(number, position, is_change=bool(changes))
        return number

    def _transact(self, changes: Changes, number: int, both: bool) -> None:
        try:
            self._attempt(changes, number, both)
        except _OutOfStep:
            self._attempt(changes, number, both)

    def _attempt(self, changes: Changes, number: int, both: bool) -> None:
        is_committing = False
        try:
            self._live.poll(0)
            self._live.begin_transaction()
            self._send(changes, number, both)
            is_committing = True
            self._end_transaction()
        except KafkaException as error:
            raise self._failed(error.args[0], is_committing) from error
        except BaseException as error:
            self._give_up(CommitFailed(f"{self._what} was interrupted ({type(error).__name__}): outcome not known"))
            raise

    def _end_transaction(self) -> None:
        """Commit. While nobody knows whether Kafka has it, ask again, for as long as Kafka keeps a transaction open."""
        deadline_s = time.monotonic() + DOUBT_FACTOR * self._options.commit_timeout_s
        while True:
            try:
                return self._live.commit_transaction(self._options.commit_timeout_s)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= deadline_s:
                    raise

    @property
    def _live(self) -> Producer:
        """The producer. No frame keeps it: an error that is kept keeps frames, and a producer has threads."""
        assert self._producer is not None
        return self._producer

    def _send(self, changes: Changes, number: int, both: bool) -> None:
        chunks: dict[bytes, bytes | None] = {}
        records: dict[bytes, bytes | None] = {}
        for prefix in changes.dropped:
            chunks.update(dict.fromkeys(self._chunk_keys(prefix)))
            records.update(dict.fromkeys(self._record_keys(prefix)))
        for key, chunk in changes.chunks.items():
            chunks[key] = None if chunk is None else _joined(chunk)
        if changes.records:
            records.update(changes.records)
        has_data = both or bool(chunks)
        marker = Marker(number, self._nonce, has_data).encode()
        self._send_topic(_DATA, chunks, number, marker if has_data else None)
        self._send_topic(_OFFSET, records, number, marker)

    def _send_topic(self, topic: int, values: dict[bytes, bytes | None], number: int, marker: bytes | None) -> None:
        """Hand a topic's messages to the producer; the last one's offset tells how far the log is."""
        last: tuple[bytes, bytes | None] | None = None
        for message in self._splits[topic].messages(values, number, self._message_bytes_max):
            if last is not None:
                self._produce(topic, *last)
            last = message
        if marker is not None:
            if last is not None:
                self._produce(topic, *last)
            last = (MARKER_KEY, marker)
        if last is not None:
            self._produce(topic, *last, on_delivery=partial(self._delivered, topic))

    def _produce(
        self, topic: int, key: bytes, value: bytes | None, on_delivery: Callable[..., None] | None = None
    ) -> None:
        deadline_s = 0.0
        while True:
            try:
                return self._live.produce(self._names[topic], value, key, self._shard, on_delivery=on_delivery)
            except BufferError:
                deadline_s = deadline_s or time.monotonic() + self._options.commit_timeout_s
                if time.monotonic() > deadline_s:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the brokers take too little")) from None
                self._live.poll(0.05)

    def _delivered(self, topic: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._ends[topic] = _offset(message) + 1

    def _chunk_keys(self, prefix: bytes) -> Iterator[bytes]:
        assert self._keys is not None, "a prefix is dropped, and nobody knows the keys below"
        page = self._keys.list_chunks(prefix, prefix, LISTED_KEYS)
        while page:
            yield from page
            page = self._keys.list_chunks(prefix, page[-1] + b"\0", LISTED_KEYS) if len(page) == LISTED_KEYS else []

    def _record_keys(self, prefix: bytes) -> Iterator[bytes]:
        assert self._keys is not None, "a prefix is dropped, and nobody knows the keys below"
        return (key for key, _ in self._keys.scan(prefix))

    # When a transaction fails.

    @property
    def _what(self) -> str:
        return f"a transaction of shard {self._shard} ({self._options.offset_topic})"

    def _failed(self, error: KafkaError, is_committing: bool) -> StoreError:
        if error.code() in _FENCED:
            return self._give_up(
                ShardFenced(f"shard {self._shard} belongs to another node now: {error.str()} ({error.name()})")
            )
        if not error.fatal() and (error.txn_requires_abort() or not is_committing):
            try:
                self._live.abort_transaction(self._options.commit_timeout_s)
                self._check_that_nothing_hangs()
                refused = _OutOfStep if error.code() in _OUT_OF_STEP else CommitAborted
                return refused(f"Kafka refused {self._what}: {error.str()} ({error.name()}). Nothing was written.")
            except KafkaException as abort_error:
                reason: KafkaError = abort_error.args[0]
                if reason.code() in _FENCED:
                    return self._failed(reason, is_committing)
            except StoreError:
                log.error("shard %d: a transaction was aborted, and may hang in the log: opening it again", self._shard)
        return self._give_up(
            CommitFailed(
                f"{self._what} failed: {error.str()} ({error.name()}): whether it was kept is not known. The shard has "
                "to be opened again."
            )
        )

    def _check_that_nothing_hangs(self) -> None:
        """An error if the next commit might not be alone, or if that cannot be found out."""
        with contextlib.closing(Ends(self._options, self._shard, self._options.commit_timeout_s)) as ends:
            ends.wait_until_nothing_hangs()

    def _give_up(self, failure: StoreError) -> StoreError:
        self._failure = failure
        return failure

    # How far the table is.

    def _note(self, number: int, position: LogPosition, *, is_change: bool) -> None:
        with self._lock:
            if is_change:
                self._changed = number
            elif self._trimmed >= self._changed:
                self._steps.clear()  # a commit without changes is in the table as soon as the one before is
            self._steps.append((number, position))
        if not is_change and time.monotonic() - self._saved_s > SAVE_EVERY_S:
            self._tell()

    def trim(self, position: int) -> None:
        """The table holds every commit up to this one."""
        with self._lock:
            self._trimmed = max(self._trimmed, position)
        self._tell()

    def _tell(self) -> None:
        """Tell how far the table is, if it got further."""
        reached: LogPosition | None = None
        with self._lock:
            is_level = self._trimmed >= self._changed
            while self._steps and (is_level or self._steps[0][0] <= self._trimmed):
                reached = self._steps.popleft()[1]
        if reached is not None and self._save is not None:
            self._save(reached)
            self._saved_s = time.monotonic()

    def close(self) -> None:
        """Let go of the producer. The log stays as it is, and ours until somebody else takes it."""
        self._tell()
        self._failure = self._failure or CommitFailed(f"shard {self._shard} is closed here")
        if self._producer is not None:
            with contextlib.suppress(KafkaException):
                self._producer.purge()
            self._producer = None  # whatever it had begun is ended by Kafka, or by the shard's next owner


def _joined(chunk: Encodable) -> bytes:
    return b"".join(chunk.parts())


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


class _Reading:
    """A consumer that reads a shard's two partitions, committed transactions alone, and without a group."""

    def __init__(
        self,
        options: KafkaOptions,
        shard: int,
        start: LogPosition | None,
        splits: tuple[dict[bytes, int], dict[bytes, int]],
    ) -> None:
        self._options = options
        self._shard = shard
        self._names = (options.data_topic, options.offset_topic)
        self._indices = {name: index for index, name in enumerate(self._names)}
        self._assemblies = tuple(
            Assembly(f"{name}, partition {shard}", counts) for name, counts in zip(self._names, splits, strict=True)
        )
        self._at_end = [False, False]
        self._time_s = time.time()
        self.number = 0
        """The highest commit that a marker told of."""
        self._nonces: tuple[set[bytes], set[bytes]] = (set(), set())
        """Whose markers have come. Not only the last: who opens the shard after us may have written one by now."""
        self._batch_messages = 100
        self._consumer = made_client(
            Consumer,
            options,
            client_id=f"{options.transactional_id(shard)}-reader",
            group_id=f"{options.transactional_id(shard)}-reader",
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="error",
            enable_partition_eof=True,
            fetch_wait_max_ms=FETCH_WAIT_MS,
        )
        try:
            self._next = [self._first(index, start) for index in (_DATA, _OFFSET)]
            self._consumer.assign(
                [TopicPartition(name, shard, offset) for name, offset in zip(self._names, self._next, strict=True)]
            )
        except BaseException:
            self._consumer.close()
            raise

    def _first(self, index: int, start: LogPosition | None) -> int:
        """Where to begin. A plain number: for "the beginning" librdkafka would ask later, and wait before that."""
        partition = TopicPartition(self._names[index], self._shard)
        try:
            found = when_known(lambda: self._consumer.get_watermark_offsets(partition, QUIET_S_MAX))
        except KafkaException as error:
            raise said(error, self._options, f"shard {self._shard} cannot be read") from error
        if found is None:
            raise LogUnavailable(f"shard {self._shard} cannot be read: Kafka is silent at {self._options.bootstrap}")
        low, high = found
        if start is None:
            return low
        if not low <= start[index] <= high:
            raise PositionLost(
                f"shard {self._shard}: the table ends at offset {start[index]} of {self._names[index]}, which has "
                f"messages from {low} to {high}"
            )
        return start.data if index == _DATA else start.offset

    @property
    def counts(self) -> tuple[dict[bytes, int], ...]:
        """Which values are in parts, as far as they were read."""
        return tuple(assembly.counts for assembly in self._assemblies)

    def position(self) -> LogPosition | None:
        """From where to read on; None if that would be in the middle of a value."""
        if not all(assembly.is_whole for assembly in self._assemblies):
            return None
        return LogPosition(self._next[_DATA], self._next[_OFFSET], self._time_s)

    def to_the_ends(self) -> Iterator[Changes]:
        """Everything up to the ends of both partitions, as they are now."""
        self._at_end = [False, False]
        return self._read_while(lambda: not all(self._at_end))

    def until(self, nonce: bytes) -> Iterator[Changes]:
        """Everything up to the markers with this nonce."""
        return self._read_while(lambda: any(nonce not in found for found in self._nonces))

    def _read_while(self, is_wanted: Callable[[], bool]) -> Iterator[Changes]:
        quiet_since_s = time.monotonic()
        nbytes = 0
        while is_wanted():
            messages = self._consume()
            got = sum(self._take(message) for message in messages)
            if messages:
                quiet_since_s = time.monotonic()
                self._adapt(got, len(messages))
            elif time.monotonic() - quiet_since_s > QUIET_S_MAX:
                raise LogUnavailable(
                    f"shard {self._shard} cannot be read: Kafka is silent at {self._options.bootstrap}"
                )
            nbytes += got
            if nbytes >= READ_BYTES:
                nbytes = 0
                yield self._taken()
        yield self._taken()

    def _consume(self) -> list[Message]:
        try:
            return self._consumer.consume(self._batch_messages, READ_TURN_S)
        except KafkaException as error:
            raise said(error, self._options, f"shard {self._shard} cannot be read") from error

    def _adapt(self, nbytes: int, count: int) -> None:
        """Take as many messages at a time as fit into memory, if they are like the last ones."""
        self._batch_messages = max(1, min(READ_MESSAGES_MAX, READ_BYTES * count // (nbytes + 1)))

    def _take(self, message: Message) -> int:
        """Take a message in; how many bytes it holds."""
        error = message.error()
        if error is not None:
            self._handle_error(error, message)
            return 0
        key, value, index = message.key(), message.value(), self._indices[str(message.topic())]
        assert key is None or isinstance(key, bytes)
        assert value is None or isinstance(value, bytes)
        self._next[index] = _offset(message) + 1
        if key == MARKER_KEY:
            marker = Marker.decode(value, f"{message.topic()}, partition {self._shard}")
            self.number = max(self.number, marker.number)
            self._nonces[index].add(marker.nonce)
            return 0
        self._assemblies[index].take(key or b"", value)
        return len(key or b"") + len(value or b"")

    def _handle_error(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            index = self._indices[str(message.topic())]
            self._at_end[index] = True
            self._next[index] = max(self._next[index], _offset(message))
        elif code in _OUT_OF_RANGE:
            raise PositionLost(f"shard {self._shard}: the log does not continue where the table ends: {error.str()}")
        elif code not in _PASSING:
            raise said(KafkaException(error), self._options, f"shard {self._shard} cannot be read")

    def _taken(self) -> Changes:
        changes = Changes()
        chunks = self._assemblies[_DATA].take_values()
        changes.chunks = {key: None if value is None else StoredChunk(value) for key, value in chunks.items()}
        changes.records = self._assemblies[_OFFSET].take_values()
        return changes

    def check_end(self) -> None:
        """Everything is read: nothing may be missing."""
        for assembly in self._assemblies:
            assembly.check_end()

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()
