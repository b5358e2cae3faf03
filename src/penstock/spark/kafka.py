"""Reading straight from Kafka, where the server's engine is Kafka: the server says which chunks, Kafka has their bytes.

Theory of operation. Planning, offsets, channels and acknowledgements are the server's, as ever. Who reads a range in an
executor asks the server which chunks hold it (`/v1/bulk/chunks`: their keys, and which partition of which topic), and
then looks for them in that partition. It need not be told at which offsets they are: a chunk's key has the time when it
was sent, Kafka finds the place in its log for a time, and from there on the chunks of a queue come nearly in their
order. So neither nodes nor their caches keep anything for readers.

    keys    a b c d            as the server lists them
    log     . a . c b . . d    looked through once; c is held until b has come

What does not come is read from the server: it is the one that knows. That happens to

- messages that were sent with a delay, or written again later, when they are not near the others;
- chunks that went between the question and the reading (the server leaves them out, or the loss is noticed as ever);
- everything that is left, when too much else would have to be read, or Kafka cannot be reached or falls silent.

A chunk's key holds its queue, its first offset, its count, its size and its time, and is never used for anything else;
its bytes carry a checksum. So what is found under a key is what the server would have given.

With `readFrom=auto`, Kafka is read if it can be (the client is installed, and the server needs no password for Kafka,
or options have one), and if there is enough to read: a connection to Kafka takes longer than a small answer.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import ChunkDamaged
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import ChunkKey, LaneKind, lane_kind
from penstock.spark.errors import InvalidOption, ServerFailed
from penstock.spark.options import KAFKA_PREFIX, Where
from penstock.spark.place import Range
from penstock.spark.server import ServerPlace
from penstock.store.errors import StoreDamaged
from penstock.store.journal.kafka_records import MARKER_KEY, Assembly, value_key

WORTH_BYTES = 32 << 20
"""Less than this is read from the server, unless Kafka is asked for by name."""
HELD_BYTES_MAX = 64 << 20
"""What came before its turn is held, up to this; then the one whose turn it is comes from the server."""
SKIPPED_BYTES_MAX = 64 << 20
SKIPPED_TO_FOUND_MAX = 4
"""So much of what others have sent is read for nothing, and so many times what was found; then the server is asked."""
EARLIER_MS = 2_000
"""Clocks of nodes need not agree with their Kafka clients' to the millisecond."""
REACH_S = 10.0
QUIET_S_MAX = 20.0
LATE_S = 0.5
"""How long the end of a transaction may take to be seen by readers."""
UNREACHABLE_S = 60.0
"""How long a process does not try again to reach a Kafka that did not answer."""
_KEYS_PER_REQUEST = 10_000
_TURN_MESSAGES = 100
_FETCH_BYTES = 8 << 20
_BUFFERED_KBYTES = 32 << 10
_TURN_S = 0.05

log = logging.getLogger("penstock.spark")

_unreachable: dict[str, float] = {}
"""Bootstrap addresses that did not answer, and until when they are left alone, by the monotonic clock."""


@dataclass(frozen=True)
class Listing:
    """Which chunks hold a range, and where they are."""

    bootstrap: str
    topic: str
    partition: int
    is_open: bool
    keys: list[ChunkKey]

    @property
    def size(self) -> int:
        """The bytes of their bodies."""
        return sum(key.size for key in self.keys)


class KafkaPlace(ServerPlace):
    """A server whose messages are read from its Kafka, if it has one."""

    def __init__(self, where: Where) -> None:
        super().__init__(where)
        self._where = where

    def batches(self, wanted: Range, columns: tuple[str, ...]) -> Iterator[Any]:
        """The messages of a range that are there."""
        listing = self._worth_reading(wanted)
        if listing is None:
            yield from super().batches(wanted, columns)
            return
        with contextlib.closing(Search(self._where, listing)) as search:
            yield from self._found(search, listing, wanted, columns)

    # -- which chunks --

    def _worth_reading(self, wanted: Range) -> Listing | None:
        """The chunks of a range, if they are to be read from Kafka."""
        is_asked_for = self._where.read_from == "kafka"
        if not _has_client():
            if is_asked_for:
                raise InvalidOption(
                    f"readFrom is kafka, and the Python of this executor ({sys.executable}) has no confluent-kafka: "
                    "install penstock-mq[kafka] there, or set readFrom to server"
                )
            return None
        if not wanted.has_kafka_log and not is_asked_for:
            return None
        listing = self._list(wanted)
        if is_asked_for or listing is None:
            return listing
        may_enter = listing.is_open or bool(self._where.kafka_properties)
        return listing if may_enter and listing.size >= WORTH_BYTES else None

    def _list(self, wanted: Range) -> Listing | None:
        """All chunks of a range; None if the server does not know such a thing, or not the queue."""
        keys: list[ChunkKey] = []
        offset = wanted.start
        while True:
            asked = {"queue": wanted.queue, "offset": offset, "end": wanted.stop, "limit": _KEYS_PER_REQUEST}
            try:
                page = self._connection.ask("POST", "/v1/bulk/chunks", asked)
            except ServerFailed as error:
                if error.status in (404, 405):
                    return None
                raise
            if page["kafka"] is None:
                if self._where.read_from == "kafka":
                    text = f"readFrom is kafka, and the engine of {self._where.url} is not Kafka: leave readFrom out"
                    raise InvalidOption(text)
                return None
            keys += [ChunkKey.unpack(b64decode(key)) for key in page["keys"]]
            offset = page["next_offset"]
            if len(page["keys"]) < _KEYS_PER_REQUEST:
                return Listing(**page["kafka"], keys=keys)

    # -- their bytes --

    def _found(self, search: Search, listing: Listing, wanted: Range, columns: tuple[str, ...]) -> Iterator[Any]:
        """The chunks in their order, from Kafka; those that are not found there, from the server."""
        from penstock.wire.arrow import record_batch

        missing: list[ChunkKey] = []
        count = 0
        for key in listing.keys:
            chunk = search.find(key)
            if chunk is None:
                missing.append(key)
                count += 1
                continue
            yield from self._from_server(missing, wanted, columns)
            missing.clear()
            start, stop = max(wanted.start - key.base, 0), min(wanted.stop - key.base, key.messages)
            yield record_batch(chunk, start, stop, columns)
        if count:
            why = search.why or "they were not found at their place"
            log.warning(
                "%d of %d chunks of queue %r are read from the server and not from Kafka: %s",
                count, len(listing.keys), wanted.queue, why,
            )  # fmt: skip
        yield from self._from_server(missing, wanted, columns)

    def _from_server(self, missing: list[ChunkKey], wanted: Range, columns: tuple[str, ...]) -> Iterator[Any]:
        """The messages of chunks that follow each other."""
        if missing:
            start = max(wanted.start, missing[0].base)
            stop = min(wanted.stop, missing[-1].base + missing[-1].messages)
            rest = Range(wanted.queue, start, stop, wanted.kept)
            yield from super().batches(rest, columns)


def _has_client() -> bool:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return False
    return True


class Search:
    """Goes once through a partition of the data topic, looking for chunks. When it cannot go on it says why."""

    def __init__(self, where: Where, listing: Listing) -> None:
        self._bootstrap = where.kafka_bootstrap or listing.bootstrap
        self._topic, self._partition = listing.topic, listing.partition
        self._wanted = {key.packed for key in listing.keys}
        self._assembly = Assembly(f"{listing.topic}, partition {listing.partition}")
        self._held: dict[bytes, bytes] = {}
        self._held_bytes = 0
        self._found_bytes = 0
        self._skipped_bytes = 0
        self._heard_s = time.monotonic()
        self._ended_s: float | None = None
        """Since when the end of the partition is reached."""
        self._consumer: Any = None
        self._errors: list[Any] = []
        self.is_over = False
        self.why = ""
        if not self._wanted:
            self._give_up("")
        elif _unreachable.get(self._bootstrap, 0.0) > time.monotonic():
            self._give_up(f"Kafka at {self._bootstrap} did not answer a moment ago")
        else:
            self._consumer = self._connect(where)
            self._seek(listing)

    # -- where to look --

    def _connect(self, where: Where) -> Any:
        from confluent_kafka import Consumer, KafkaException

        properties = {
            **dict(where.kafka_properties),
            "bootstrap.servers": self._bootstrap,
            "client.id": "penstock-spark",
            "group.id": "penstock-spark",  # the client wants a name; no group is joined
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "fetch.message.max.bytes": _FETCH_BYTES,
            "fetch.queue.backoff.ms": 5,  # a second would pass, each time that enough is buffered
            "queued.max.messages.kbytes": _BUFFERED_KBYTES,
            "error_cb": self._errors.append,
            "log_level": 0,  # what is wrong is said once, when it is given up
        }
        try:
            return Consumer(properties)
        except KafkaException as error:
            raise InvalidOption(f"the options {KAFKA_PREFIX}* are not valid: {error.args[0].str()}") from None
        except (TypeError, ValueError) as error:
            raise InvalidOption(f"the options {KAFKA_PREFIX}* are not valid: {error}") from None

    def _seek(self, listing: Listing) -> None:
        """Go to where the log was when the first of the chunks was sent."""
        from confluent_kafka import KafkaException, TopicPartition

        sent_ms = [key.aged_ms for key in listing.keys if lane_kind(key.lane) == LaneKind.NORMAL]
        if not sent_ms:
            return self._give_up("their messages were sent with a delay")
        time_ms = max(0, min(sent_ms) - EARLIER_MS)
        try:
            wanted = TopicPartition(self._topic, self._partition, time_ms)
            (at,) = self._consumer.offsets_for_times([wanted], timeout=REACH_S)
            if at.error is not None:
                raise KafkaException(at.error)
            if at.offset < 0:
                return self._give_up("the log does not reach them")
            self._consumer.assign([TopicPartition(self._topic, self._partition, at.offset)])
        except KafkaException as error:
            _unreachable[self._bootstrap] = time.monotonic() + UNREACHABLE_S
            self._give_up(f"Kafka at {self._bootstrap} cannot be read: {self._reason(error.args[0])}")

    def _reason(self, error: Any) -> str:
        """What was heard before may say more than a timeout does."""
        self._consumer.poll(0)
        return "; ".join(dict.fromkeys(each.str() for each in (error, *self._errors[:1])))

    def _give_up(self, why: str) -> None:
        self.is_over = True
        self.why = why

    # -- looking --

    def find(self, key: ChunkKey) -> Chunk | None:
        """A chunk; None if it did not come, or is not what it should be."""
        packed = key.packed
        while packed not in self._held and not self.is_over and self._held_bytes < HELD_BYTES_MAX:
            self._look()
        self._wanted.discard(packed)
        data = self._held.pop(packed, None)
        if data is None:
            return None
        self._held_bytes -= len(data)
        try:
            chunk = Chunk.decode(data)
        except ChunkDamaged as damage:
            log.warning("%r in Kafka is damaged: %s", key, damage)
            return None
        return chunk if (chunk.base, chunk.count) == (key.base, key.messages) else None

    def _look(self) -> None:
        """Take in what comes next."""
        from confluent_kafka import KafkaException

        try:
            messages = self._consumer.consume(_TURN_MESSAGES, _TURN_S)
            for message in messages:
                self._take(message)
        except KafkaException as error:
            self._give_up(f"Kafka at {self._bootstrap} cannot be read on: {self._reason(error.args[0])}")
        except StoreDamaged as error:
            self._give_up(str(error))
        else:
            self._check_silence(bool(messages))

    def _take(self, message: Any) -> None:
        from confluent_kafka import KafkaError, KafkaException

        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._ended_s = self._ended_s or time.monotonic()
            elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT):
                raise KafkaException(error)
            return
        key, value = message.key() or b"", message.value()
        if key != MARKER_KEY and value_key(key) in self._wanted:
            self._assembly.take(key, value)
            self._hold()
        else:
            self._skipped_bytes += len(key) + len(value or b"")

    def _hold(self) -> None:
        """Keep the chunks that have come together; a deletion does not take back what was listed before."""
        for key, value in self._assembly.take_values().items():
            if value is not None and key not in self._held:
                self._held[key] = value
                self._held_bytes += len(value)
                self._found_bytes += len(value)

    def _check_silence(self, has_come: bool) -> None:
        now_s = time.monotonic()
        if has_come:
            self._heard_s = now_s
        if self._ended_s is not None and now_s > self._ended_s + LATE_S:
            self._give_up("")
        elif now_s > self._heard_s + QUIET_S_MAX:
            self._give_up(f"Kafka at {self._bootstrap} is silent")
        elif self._skipped_bytes > SKIPPED_BYTES_MAX + SKIPPED_TO_FOUND_MAX * self._found_bytes:
            self._give_up("other queues have sent too much in between")

    def close(self) -> None:
        """Hang up."""
        if self._consumer is not None:
            self._consumer.close()
