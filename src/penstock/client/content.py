"""What can be read of a message, however it was come by: received, peeked at, or read by a consumer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.client.times import seconds
from penstock.core.commands import ChannelLife, Delivery, Failure, Life, Records, Refused, Run, Seen, Sent, Span
from penstock.core.delivery.states import State
from penstock.core.errors import InvalidRequest
from penstock.core.queues.attributes import AttributeValue, decode_attributes
from penstock.core.queues.origin import LifeEvent, Origin, events_of, failures_of
from penstock.core.storage.chunk import Chunk

_ERROR_LETTERS_MAX = 10_000
"""How much of an exception's text goes with a failed delivery: the history of a message is kept with it."""


class Identity(Protocol):
    """Ids and receipts. They stay what they are over restarts."""

    @property
    def realm(self) -> int:
        """What message ids are made of, besides queue and number."""

    def message_id(self, queue_id: int, sequence: int) -> str:
        """A message's id, in the form of a UUID."""

    def receipt(self, queue_id: int, channel_id: int, sequence: int, attempt: int) -> str:
        """What settles one delivery of a message."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A delivery that failed: when, in which session, and why."""

    attempt: int
    received_at: float
    failed_at: float
    session: str
    error: str


def failed_attempts(failures: Iterable[Failure], sequence: int) -> list[FailedAttempt]:
    """The failed deliveries of one message among those of its run."""
    return [
        FailedAttempt(
            failure.attempt, seconds(failure.received_ms), seconds(failure.failed_ms), failure.session, failure.error
        )
        for failure in failures
        if failure.first <= sequence <= failure.last
    ]


def error_text(error: BaseException) -> str:
    """How an exception is reported with a failed delivery.

    >>> error_text(ValueError("no such order"))
    'ValueError: no such order'
    """
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as failure:  # a message must come back whatever its error is made of
        text = f"(its text cannot be had: {type(failure).__name__})"
    if len(text) > _ERROR_LETTERS_MAX:
        text = f"{text[:_ERROR_LETTERS_MAX]}... ({len(text)} letters)"
    return f"{name}: {text}".encode(errors="backslashreplace").decode() if text else name


class Content:
    """A message's lasting part. Everything is read from its chunk when somebody asks."""

    __slots__ = ("_chunk", "_identity", "_index", "_queue_id")

    def __init__(self, identity: Identity, queue_id: int, chunk: Chunk, index: int) -> None:
        self._identity = identity
        self._queue_id = queue_id
        self._chunk = chunk
        self._index = index

    @property
    def body(self) -> bytes:
        """What was sent."""
        return self._chunk.body(self._index)

    @property
    def text(self) -> str:
        """The body as text (UTF-8)."""
        return self.body.decode()

    @property
    def sequence(self) -> int:
        """The message's number in its queue."""
        return self._chunk.base + self._index

    @property
    def id(self) -> str:
        """The message's id: the same for life, also in the dead-letter queue and back."""
        origin = self.origin
        return self._identity.message_id(self._queue_id, self.sequence) if origin is None else origin.id

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """The attributes it was sent with."""
        return decode_attributes(self._chunk.attributes(self._index))

    @property
    def group(self) -> str | None:
        """The group it belongs to, if any."""
        return self._chunk.group(self._index)

    @property
    def sent_at(self) -> float:
        """When it was first sent, in seconds since 1970."""
        origin = self.origin
        return seconds(self._chunk.sent_ms if origin is None else origin.sent_ms)

    @property
    def origin(self) -> Origin | None:
        """Where it came from, if it was moved here from another queue: its queue, attempts, and failures there."""
        stored = self._chunk.origin(self._index)
        return None if stored is None else Origin.decode(stored)

    def _history(self, failures: Iterable[Failure]) -> list[FailedAttempt]:
        origin = self.origin
        before = [] if origin is None else failed_attempts(origin.failures, origin.sequence)
        return before + failed_attempts(failures, self.sequence)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sequence}: {_excerpt(self.body)}>"


def _excerpt(body: bytes) -> str:
    return repr(body) if len(body) <= 40 else f"{body[:40]!r}... ({len(body)} bytes)"


class PeekedMessage(Content):
    """A message that was looked at, not received."""

    __slots__ = ("_seen",)

    def __init__(self, identity: Identity, queue_id: int, seen: Seen) -> None:
        super().__init__(identity, queue_id, seen.chunk, seen.index)
        self._seen = seen

    @property
    def state(self) -> State:
        """READY, LEASED or DELAYED; or DONE, if done messages were asked for."""
        return self._seen.state

    @property
    def attempts(self) -> int:
        """How often it was delivered."""
        return self._seen.attempts

    @property
    def until(self) -> float | None:
        """When its lease ends or its delay is over; None when it is ready."""
        return seconds(self._seen.deadline_ms) if self._seen.deadline_ms else None

    @property
    def history(self) -> list[FailedAttempt]:
        """Its failed deliveries, the oldest first."""
        return self._history(self._seen.failures)


class Record(Content):
    """A message as a named consumer reads it, by offset."""

    __slots__ = ()

    @property
    def offset(self) -> int:
        """Its place in the queue: its sequence number."""
        return self.sequence


class RecordList(list[Record]):
    """Records in order of their offsets, and the offset to continue from."""

    def __init__(self, records: Iterable[Record], next_offset: int, end_offset: int) -> None:
        super().__init__(records)
        self.next_offset = next_offset
        """The offset to read from next. Acknowledge it when all of these records are done."""
        self.end_offset = end_offset
        """The offset that the next message sent will have."""


def record_list(identity: Identity, records: Records) -> RecordList:
    """The records in a reply."""
    contents = (
        Record(identity, records.queue_id, run.chunk, index)
        for run in records.runs
        for index in range(run.start, run.stop)
    )
    return RecordList(contents, records.next_offset, records.end_offset)


@dataclass(frozen=True, slots=True)
class SentMessage:
    """What became of a message that was sent.

    In a cluster, a unit of work may send to a queue of another shard. That message is delivered after the commit, so it
    has no id yet ("") and no sequence number (-1).
    """

    id: str
    sequence: int
    duplicate: bool = False
    """A message with this dedup id was sent before. Nothing was added; id and number are those of the first one."""


class SentMessages(Sequence[SentMessage]):
    """What became of many messages, in the order in which they were given. Ids are made when they are read."""

    __slots__ = ("_duplicates", "_identity", "_sent")

    def __init__(self, identity: Identity, sent: Sent) -> None:
        self._identity = identity
        self._sent = sent
        self._duplicates: frozenset[int] | None = None

    def __len__(self) -> int:
        return self._sent.count

    @overload
    def __getitem__(self, index: int) -> SentMessage: ...

    @overload
    def __getitem__(self, index: slice) -> list[SentMessage]: ...

    def __getitem__(self, index: int | slice) -> SentMessage | list[SentMessage]:
        positions = range(self._sent.count)[index]
        if isinstance(positions, range):
            return [self._message(position) for position in positions]
        return self._message(positions)

    def _message(self, position: int) -> SentMessage:
        if self._duplicates is None:
            self._duplicates = frozenset(self._sent.duplicates)
        sequence = self._sent.sequence(position)
        message_id = self._identity.message_id(self._sent.queue_id, sequence) if sequence >= 0 else ""
        return SentMessage(message_id, sequence, position in self._duplicates)

    @property
    def first(self) -> int:
        """The sequence number of the first message that was added."""
        return self._sent.first

    @property
    def sequences(self) -> Sequence[int]:
        """Every message's sequence number."""
        sent = self._sent
        if sent.is_on_its_way and sent.sequences is None:
            return [-1] * sent.count
        return range(sent.first, sent.first + sent.count) if sent.sequences is None else sent.sequences

    @property
    def ids(self) -> list[str]:
        """Every message's id."""
        return [message.id for message in self]

    def __repr__(self) -> str:
        return f"<SentMessages: {len(self)} from {self.first}>"


class Leased(Content):
    """What can be read of a message under lease, and what becomes of the lease."""

    __slots__ = ("_caller", "_delivery", "_given_back", "_lease_ends_ms", "_run", "_settled")

    def __init__(self, caller: Any, delivery: Delivery, run: Run, index: int) -> None:
        self._identity = caller.identity  # a call of `Content` for each message would be much of what it costs
        self._queue_id = delivery.queue_id
        self._chunk = run.chunk
        self._index = index
        self._caller = caller
        self._delivery = delivery
        self._run = run
        self._lease_ends_ms = delivery.deadline_ms
        self._settled = False
        self._given_back = False

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._delivery.queue

    @property
    def channel(self) -> str:
        """The channel it came through."""
        return self._delivery.channel

    @property
    def attempts(self) -> int:
        """How often it was delivered, this time included."""
        attempt = self._run.attempt
        return attempt if isinstance(attempt, int) else int(attempt[self._index - self._run.start])

    @property
    def first_received_at(self) -> float:
        """When it was delivered for the first time, in seconds since 1970."""
        return seconds(int(self._run.first_received_ms[self._index - self._run.start]))

    @property
    def lease_ends_at(self) -> float:
        """When its lease ends, in seconds since 1970."""
        return seconds(self._lease_ends_ms)

    @property
    def lease_ends_ms(self) -> int:
        """When its lease ends, in milliseconds, by the clock of the server."""
        return self._lease_ends_ms

    @property
    def receipt(self) -> str:
        """Text that settles this delivery from any process: `queue.ack(receipt)`, also after a restart."""
        delivery = self._delivery
        return self._identity.receipt(delivery.queue_id, delivery.channel_id, self.sequence, self.attempts)

    @property
    def history(self) -> list[FailedAttempt]:
        """Its failed deliveries so far, the oldest first."""
        return self._history(self._run.failures)

    @property
    def place(self) -> tuple[int, int]:
        """Its sequence number and its attempts. Together they name this delivery and no other."""
        attempt = self._run.attempt
        return self._chunk.base + self._index, attempt if isinstance(attempt, int) else self.attempts

    @property
    def span(self) -> Span:
        """The message as commands name it."""
        sequence, attempt = self._chunk.base + self._index, self._run.attempt
        return Span(sequence, sequence, attempt if isinstance(attempt, int) else self.attempts)

    @property
    def is_settled(self) -> bool:
        """Whether this object was used to ack it, or to give it back."""
        return self._settled

    @property
    def is_given_back(self) -> bool:
        """Whether this object was used to give it back."""
        return self._given_back

    def extended_to(self, lease_ends_ms: int) -> None:
        """Somebody extended the lease, together with others."""
        self._lease_ends_ms = lease_ends_ms


_Message = TypeVar("_Message", bound=Leased)


def spans_of(messages: Iterable[Leased]) -> list[Span]:
    """The messages as commands name them: neighbours with the same attempt become one span."""
    spans: list[list[int]] = []
    for sequence, attempt in sorted([message.place for message in messages]):
        if spans and spans[-1][1] + 1 == sequence and spans[-1][2] == attempt:
            spans[-1][1] = sequence
        else:
            spans.append([sequence, sequence, attempt])
    return [Span(first, last, attempt) for first, last, attempt in spans]


def touched(messages: Iterable[_Message], refused: list[Refused]) -> set[_Message]:
    """Which of these messages were refused."""
    if not refused:
        return set()
    sequences = {sequence for each in refused for sequence in range(each.first, each.last + 1)}
    return {message for message in messages if message.sequence in sequences}


class RunView:
    """Consecutive messages of a batch, as they lie in memory.

    `buffer` and `offsets` are the two buffers of an Arrow binary array: body i is `buffer[offsets[i]:offsets[i + 1]]`.
    """

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def __len__(self) -> int:
        return self._run.count

    @property
    def first(self) -> int:
        """The first message's sequence number."""
        return self._run.first

    @property
    def buffer(self) -> memoryview:
        """The bodies of the whole chunk end to end, not copied. `offsets` says where each one is."""
        return memoryview(self._run.chunk.bodies)

    @property
    def offsets(self) -> NDArray[np.int32]:
        """Where each body starts in `buffer`, and where the last one ends. Not copied."""
        return self._run.chunk.offsets[self._run.start : self._run.stop + 1]

    @property
    def attempts(self) -> list[int]:
        """How often each message was delivered, this time included."""
        attempts: list[int] = self._run.attempts.tolist()
        return attempts

    @property
    def bodies(self) -> list[bytes]:
        """The bodies, one by one."""
        return self._run.chunk.body_list(self._run.start, self._run.stop)


Body = bytes | bytearray | memoryview | str


def most(max: int) -> int:
    """The argument `max` of a receive, if it is one."""
    if not isinstance(max, int) or isinstance(max, bool):
        raise InvalidRequest(f"max is {max!r}: it must be a whole number")
    if max < 1:
        raise InvalidRequest(f"max is {max}: it must be at least 1")
    return max


def encode_body(body: Body) -> bytes:
    """One body as bytes; text as UTF-8.

    >>> encode_body("é"), encode_body(memoryview(b"ab"))
    (b'\\xc3\\xa9', b'ab')
    """
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"a body that is text must be valid text: {error}") from None
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise InvalidRequest(f"a body must be bytes or text, and not {type(body).__name__}")


def encode_bodies(bodies: Iterable[Body]) -> list[bytes]:
    """Many bodies as a new list of bytes. A list that holds nothing else is checked and copied without a loop here.

    >>> encode_bodies([b"a", "b"])
    [b'a', b'b']
    """
    try:
        return msgspec.convert(bodies, list[bytes], builtin_types=(bytes,))
    except msgspec.ValidationError:
        if isinstance(bodies, bytes | bytearray | memoryview | str):
            raise InvalidRequest("send_many takes a list of bodies; to send one, use send") from None
        if not isinstance(bodies, Iterable):
            raise InvalidRequest(f"send_many takes a list of bodies, and not {type(bodies).__name__}") from None
        return [encode_body(body) for body in bodies]


class LeasedBatch:
    """What can be read of a whole delivery."""

    __slots__ = ("_caller", "_delivery", "_settled", "_spans")

    def __init__(self, caller: Any, delivery: Delivery) -> None:
        self._caller = caller
        self._delivery = delivery
        self._spans: list[Span] | None = None
        self._settled = False

    def __len__(self) -> int:
        return self._delivery.count

    @property
    def spans(self) -> list[Span]:
        """The messages as commands name them."""
        if self._spans is None:
            self._spans = self._delivery.spans()
        return self._spans

    @property
    def runs(self) -> list[RunView]:
        """Runs of consecutive messages, as they lie in memory."""
        return [RunView(run) for run in self._delivery.runs]

    @property
    def bodies(self) -> list[bytes]:
        """Every body."""
        return [body for run in self._delivery.runs for body in run.chunk.body_list(run.start, run.stop)]

    def _part(self, part: slice) -> Delivery:
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise InvalidRequest(
                f"{part!r} is not a slice of a batch: write batch[10:20], or batch.messages()[10] for one message"
            )
        start, stop, _ = part.indices(len(self))
        runs, before = [], 0
        for run in self._delivery.runs:
            low, high = max(start - before, 0), min(stop - before, run.count)
            if low < high:
                runs.append(run.part(low, high))
            before += run.count
        whole = self._delivery
        return Delivery(
            whole.queue, whole.queue_id, whole.channel, whole.channel_id, whole.received_ms, whole.deadline_ms, runs
        )

    def __repr__(self) -> str:
        return f"<Batch: {len(self)} messages of {self._delivery.queue!r}>"


class MessageLife:
    """A message as it is now: its state in each channel, who holds it, when it is due, and what happened to it."""

    __slots__ = ("_identity", "_life")

    def __init__(self, identity: Identity, life: Life) -> None:
        self._identity = identity
        self._life = life

    @property
    def id(self) -> str:
        """The message's id: the same for life, also in the dead-letter queue and back."""
        origin = self.origin
        return self._identity.message_id(self._life.queue_id, self.sequence) if origin is None else origin.id

    @property
    def queue(self) -> str:
        """The queue in which it is now."""
        return self._life.queue

    @property
    def sequence(self) -> int:
        """The message's number in that queue."""
        return self._life.sequence

    @property
    def body(self) -> bytes:
        """What was sent."""
        return self._life.body

    @property
    def text(self) -> str:
        """The body as text (UTF-8)."""
        return self.body.decode()

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """The attributes it was sent with."""
        return decode_attributes(self._life.attributes)

    @property
    def group(self) -> str | None:
        """The group it belongs to, if any."""
        return self._life.group

    @property
    def priority(self) -> int:
        """0 to 9. The highest is received first."""
        return self._life.priority

    @property
    def sent_at(self) -> float:
        """When it was first sent, in seconds since 1970."""
        origin = self.origin
        return seconds(self._life.sent_ms if origin is None else origin.sent_ms)

    @property
    def origin(self) -> Origin | None:
        """Where it came from, if it was moved here from another queue."""
        return None if self._life.origin is None else Origin.decode(self._life.origin)

    @property
    def channels(self) -> list[ChannelLife]:
        """Its state in each channel. Times are milliseconds, as in the store."""
        return self._life.channels

    @property
    def history(self) -> list[FailedAttempt]:
        """Its failed deliveries in every channel, and in the queue that it came from. The oldest is first."""
        found = list(failures_of(self.origin, [], self.sequence))
        before = [] if self.origin is None else failed_attempts(found, self.origin.sequence)
        return before + [one for each in self.channels for one in failed_attempts(each.failures, self.sequence)]

    @property
    def events(self) -> list[LifeEvent]:
        """Everything that happened to it and will happen, the oldest first."""
        return events_of(self._life)

    def lines(self, now: float | None = None) -> list[str]:
        """Its life as text for people: a line for each event."""
        return [told(event, time.time() if now is None else now) for event in self.events]

    def __repr__(self) -> str:
        return f"<MessageLife {self.id} in {self.queue!r}>"


def told(event: LifeEvent, now: float) -> str:
    """An event as a line.

    >>> told(LifeEvent(0, "failed", "orders", "main", 2, "timeout"), 10.0)
    '1970-01-01 00:00:00.000Z  orders/main  attempt 2  failed: timeout'
    """
    at = event.at_ms / 1_000
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) + f".{event.at_ms % 1_000:03}Z"
    place = event.queue if event.channel is None else f"{event.queue}/{event.channel}"
    attempt = "" if event.attempt is None else f"attempt {event.attempt}  "
    text = f"failed: {event.text}" if event.what == "failed" else event.text
    return f"{moment}  {place}  {attempt}{text}" + (" (to come)" if at > now else "")


def listed(receipt: str | Iterable[str]) -> list[str]:
    if isinstance(receipt, str):
        return [receipt]
    if not isinstance(receipt, Iterable):
        raise InvalidRequest(f"{receipt!r} is not a receipt: give `message.receipt`, or a list of receipts")
    return list(receipt)
