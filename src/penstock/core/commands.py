"""What can be asked of a broker, and what it answers. Times are milliseconds; names of queues are strings.

A command is plain data. `Broker.handle(command, now_ms)` returns its reply, raises a `PenstockError`, or returns None
for a receive that waits: its reply then comes out of `Broker.take_woken`.

What else there is to know of a command stands with it, in its `traits`: see `penstock.core.traits`. Its handler is the
method of the same name in one of the broker's rooms: `_pause_channel` does `PauseChannel`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.delivery.states import State
from penstock.core.errors import PenstockError
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.core.storage.chunk import Chunk, PackedBodies
from penstock.core.traits import Home, Repeat, Right, Split, Traits, Turn

MAIN = "main"
"""The channel of those who know of no channels."""


class Span(NamedTuple):
    """A run of messages as its receiver holds it: sequence numbers `first` to `last` (inclusive), all on one attempt.

    >>> Span(10, 19, attempt=1).messages
    10
    """

    first: int
    last: int
    attempt: int

    @property
    def messages(self) -> int:
        """How many messages the span holds."""
        return self.last - self.first + 1


class Once(NamedTuple):
    """A command's name for who may have to send it again: its client, and the client's own count of commands.

    A command whose name is known is not done again: it gets the reply of the first time. The client says up to which
    number it has got its replies (`answered`: every number below has), so that they can be forgotten.
    """

    client: str
    number: int
    answered: int = 0


class Command(msgspec.Struct, kw_only=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of every command. Encoded, it is an array: the name of its class, then its fields in order.

    Other builds read these arrays. A field that a command gets later comes last, after those of this class: see
    `docs/upgrading.md`.
    """

    traits: ClassVar[Traits] = Traits(home=Home.SHARD)

    once: Once | None = None
    """Do this at most once, however often it comes."""
    of_queue: int = 0
    """Between nodes, for what depends on a queue's partitions: do it only if the queue here has this id, or else say
    `QueueReplaced`. 0: do it for whatever queue has the name."""

    @property
    def about(self) -> str | None:
        """The queue whose owner is the best to ask; None if there is no such queue.

        >>> QueueStats(name="orders").about, ListQueues().about
        ('orders', None)
        """
        name = getattr(self, self.traits.queue) if self.traits.queue else None
        return name if isinstance(name, str) else None

    @property
    def repeat(self) -> Repeat:
        """What a second time does: for most kinds of commands, the same for all of them."""
        return self.traits.repeat

    def needs(self) -> Iterator[tuple[Right, str]]:
        """The rights that it needs from a caller from outside, each with the queue on which."""
        right = self.traits.right
        if self.traits.queue and right is not None and right != "any":
            yield right, getattr(self, self.traits.queue)


Handlers = dict[type[Command], Callable[[Any], Any]]
"""What is called for a command, by its type."""


def handlers_of(kinds: Iterable[type[Command]], rooms: Iterable[object]) -> Handlers:
    """The methods that have the names of the commands: `_pause_channel`; `send`, if others call it as well."""
    rooms = tuple(rooms)
    found: Handlers = {}
    for kind in kinds:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
        methods = [getattr(room, each) for room in rooms for each in ("_" + name, name) if hasattr(room, each)]
        assert len(methods) == 1, f"{kind.__name__}: {len(methods)} methods are called {name}"
        found[kind] = methods[0]
    return found


# -- descriptions ------------------------------------------------------------------------------------------------------


class ChannelStats(msgspec.Struct):
    """Exact counts of one channel."""

    name: str
    ready: int
    leased: int
    delayed: int
    acked: int
    failed: int
    dead: int
    """Messages of this channel that ever went to the dead-letter queue."""
    paused: bool
    oldest_ms: int | None
    """When the oldest message that is not done was sent."""
    waiting_receivers: int
    expired: int = 0
    """Leases that ran out since the store was opened."""


class Stats(msgspec.Struct):
    """Exact counts of one queue."""

    name: str
    messages: int
    """Messages in the store, whatever their state."""
    bytes: int
    delayed: int
    """Messages with a delay that no channel can see yet."""
    sent: int
    quarantined: int
    """Messages in chunks that are damaged."""
    oldest_ms: int | None
    next_sequence: int
    channels: dict[str, ChannelStats]
    consumers: dict[str, int]
    paused: bool = False
    """Whether the queue is paused: its channels do not see new messages."""
    backlog: int = 0
    """Messages that no channel has seen yet: all if there are no channels, or those sent since the queue was paused."""
    sent_bytes: int = 0
    """Bytes of the messages sent since the store was opened."""


class QueueTally(NamedTuple):
    """A queue in numbers, all its channels added up: as much of it as is in one shard."""

    name: str
    partitions: int
    """Over how many shards the queue is spread: each has a tally of its own."""
    busy: int
    """Messages sent and acknowledged lately: what happened ten minutes ago counts half."""
    messages: int
    bytes: int
    quarantined: int
    ready: int
    leased: int
    delayed: int
    """Messages that are not due, in each channel; in a queue without channels, those that it holds."""
    sent: int
    acked: int
    failed: int
    dead: int


class QueueInfo(msgspec.Struct):
    """A queue: its settings, its channels and its size."""

    name: str
    queue_id: int
    config: QueueConfig
    created_ms: int
    changed_ms: int
    channels: list[str]
    channel_ids: list[int] = []
    """The numbers of the channels, in the order of their names."""
    messages: int = 0
    """How many messages it has now; `size`: how many bytes they take."""
    size: int = 0


class CatalogEvent(NamedTuple):
    """A queue or a channel came or went; out of `Broker.take_events`."""

    what: Literal["queue created", "queue deleted", "channel created", "channel deleted"]
    queue: str
    channel: str | None = None


class Damage(msgspec.Struct, frozen=True):
    """A report of damage: of messages `first` to `last` or, if `last` is below `first`, of something else."""

    queue: str
    first: int
    last: int
    reason: str


# -- queues ------------------------------------------------------------------------------------------------------------


class CreateQueue(Command):
    """Create a queue. Once more with the same configuration is fine; with another one it is `QueueExists`."""

    traits = Traits(
        reply=QueueInfo, queue="name", right="admin", public=True, split=Split.CREATE, inside=("part",), is_noted=True
    )

    name: str
    config: QueueConfig = QueueConfig()
    channels: tuple[str, ...] = (MAIN,)
    part: tuple[int, int] | None = None
    """Between nodes: this is a further partition (its number, from 1) of the queue with this id, in another shard. What
    is here of an older queue of this name goes."""

    def needs(self) -> Iterator[tuple[Right, str]]:
        """Also on the queue to which its dead letters go."""
        yield from super().needs()
        if self.config.dead_letter is not None:
            yield "admin", self.config.dead_letter


class ChangeQueue(Command):
    """Change some settings of a queue. Replies with `QueueInfo`."""

    traits = Traits(reply=QueueInfo, queue="name", right="admin", public=True, split=Split.EVERY, is_noted=True)

    name: str
    changes: dict[str, Any]
    expected: dict[str, Any] | None = None
    """Only if these settings are so now, or else `QueueChanged`: for who works the changes out from what there is."""

    def needs(self) -> Iterator[tuple[Right, str]]:
        """Also on the queue to which its dead letters go."""
        yield from super().needs()
        if isinstance(self.changes.get("dead_letter"), str):
            yield "admin", self.changes["dead_letter"]


class DeleteQueue(Command):
    """Delete a queue with its messages, channels and consumers."""

    traits = Traits(queue="name", right="admin", public=True, split=Split.DELETE, is_noted=True)

    name: str
    unless_channels: bool = False
    """Only if it has no channels (any more)."""


class PurgeQueue(Command):
    """Delete a queue's messages, in flight ones included. Replies with the number of messages that went."""

    traits = Traits(reply=int, queue="name", right="admin", public=True, split=Split.EVERY)

    name: str


class DescribeQueue(Command):
    """Replies with `QueueInfo`."""

    traits = Traits(
        reply=QueueInfo,
        queue="name",
        right="read",
        public=True,
        repeat=Repeat.READ,
        inside=("queue_id",),
        is_noted=True,
    )

    name: str = ""
    queue_id: int = 0
    """The queue with this id, instead of a name."""


class ListQueues(Command):
    """Names in order, `limit` at most, after the name `after`. Replies with a list of names."""

    traits = Traits(reply=list[str], right="any", public=True, repeat=Repeat.READ, home=Home.ALL)

    prefix: str = ""
    after: str = ""
    limit: int = 1_000
    dead_letters_to: str | None = None
    """Only queues whose dead letters go to this one."""


class QueueStats(Command):
    """Replies with `Stats`."""

    traits = Traits(reply=Stats, queue="name", right="read", public=True, repeat=Repeat.READ, split=Split.EVERY)

    name: str


class CountQueues(Command):
    """Exact counts of many queues at once: `limit` at most, after the name `after`, by name. A list of `Stats`.

    Queues in quarantine have none, and are left out.
    """

    traits = Traits(reply=list[Stats], right="any", public=True, repeat=Repeat.READ, home=Home.ALL, since=4)

    prefix: str = ""
    after: str = ""
    limit: int = 100


class TallyQueues(Command):
    """What each of some queues has, in numbers that cost no reading: `limit` at most, after the name `after`, by name.

    A further partition of a queue of another shard counts here, too. Replies with a list of `QueueTally`.
    """

    traits = Traits(reply=list[QueueTally], repeat=Repeat.READ, home=Home.SHARD, since=3)

    after: str = ""
    limit: int = 200


# -- sending -----------------------------------------------------------------------------------------------------------


class Sent(msgspec.Struct):
    """Where the messages went: `first` + index; or, when some were duplicates, `sequences` one by one."""

    queue_id: int
    first: int
    count: int
    sequences: list[int] | None = None
    duplicates: list[int] = []
    """Indexes of the messages that were known already; they have the sequence number of the original."""

    @property
    def is_on_its_way(self) -> bool:
        """Whether the messages go to another shard, and have no sequence numbers yet: `queue_id` 0, `first` -1."""
        return self.first < 0

    def sequence(self, index: int) -> int:
        """The sequence number of the message at this index of the command; -1 if it is on its way."""
        if self.sequences is not None:
            return self.sequences[index]
        return self.first + index if self.first >= 0 else -1


class Send(Command):
    """Send a run of messages. Lists run beside `bodies`, or are None when nobody set any. Replies with `Sent`."""

    traits = Traits(reply=Sent, queue="queue", right="write", public=True, split=Split.SEND, turn=Turn.SEND)

    queue: str
    bodies: list[bytes] | PackedBodies
    attributes: list[bytes | None] | None = None
    groups: list[str | None] | None = None
    dedup_ids: list[str | None] | None = None
    origins: list[bytes | None] | None = None
    priority: int = 0
    delay_ms: int | None = None
    """None: the queue's delay."""
    due_ms: int | None = None
    """An absolute time, instead of a delay."""
    create: bool = True
    """Create the queue when it is not there."""
    channels: tuple[str, ...] = (MAIN,)
    """The channels that a queue created by this command gets."""
    config: QueueConfig = QueueConfig()
    """The configuration that a queue created by this command gets."""


# -- receiving ---------------------------------------------------------------------------------------------------------


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """One failed delivery of the messages `first` to `last`: when, by whom, why."""

    first: int
    last: int
    attempt: int
    received_ms: int
    failed_ms: int
    session: str
    error: str


class Run(msgspec.Struct):
    """Consecutive messages of one chunk, handed out together."""

    chunk: Chunk
    start: int
    stop: int
    attempt: int | NDArray[np.uint32]
    """How often each was handed out: one number for all, or one for each."""
    first_ms: int | NDArray[np.int64]
    """When each was handed out first: one time for all, or one for each."""
    failures: list[Failure] = []
    """Failed deliveries of messages in this run so far."""

    @property
    def count(self) -> int:
        """How many messages."""
        return self.stop - self.start

    @property
    def first(self) -> int:
        """The first message's sequence number."""
        return self.chunk.base + self.start

    @property
    def nbytes(self) -> int:
        """The length of the bodies."""
        chunk = self.chunk
        if self.stop - self.start == chunk.count:
            return len(chunk.bodies)
        return int(chunk.offsets[self.stop] - chunk.offsets[self.start])

    @property
    def attempts(self) -> NDArray[np.uint32]:
        """How often each was handed out, this time included."""
        return np.broadcast_to(np.asarray(self.attempt, dtype=np.uint32), (self.count,))

    @property
    def first_received_ms(self) -> NDArray[np.int64]:
        """When each was handed out first."""
        return np.broadcast_to(np.asarray(self.first_ms, dtype=np.int64), (self.count,))

    def part(self, low: int, high: int) -> Run:
        """The messages `low` to `high` (not included) of this run, counted from its start."""
        attempt = self.attempt if isinstance(self.attempt, int) else self.attempt[low:high]
        first_ms = self.first_ms if isinstance(self.first_ms, int) else self.first_ms[low:high]
        return Run(self.chunk, self.start + low, self.start + high, attempt, first_ms, self.failures)

    def spans(self) -> list[Span]:
        """The run cut where the attempt changes: what settling it needs."""
        attempts, first = self.attempt, self.chunk.base + self.start
        if isinstance(attempts, int):
            return [Span(first, first + self.stop - self.start - 1, attempts)]
        cuts = [0, *(np.flatnonzero(np.diff(attempts)) + 1).tolist(), self.count]
        return [Span(first + low, first + high - 1, int(attempts[low])) for low, high in pairwise(cuts)]


class Delivery(msgspec.Struct):
    """Leased messages. Empty when a wait ran out."""

    queue: str
    queue_id: int
    channel: str
    channel_id: int
    received_ms: int
    deadline_ms: int
    runs: list[Run] = []
    error: PenstockError | None = None
    """For one who waited: what went wrong meanwhile (the queue was deleted)."""

    @property
    def count(self) -> int:
        """How many messages."""
        return sum(run.stop - run.start for run in self.runs)

    def spans(self) -> list[Span]:
        """The messages, as commands name them."""
        return [span for run in self.runs for span in run.spans()]


class Receive(Command):
    """Lease up to `limit` messages. Replies with `Delivery`, later (None for now) if there are none and it may wait."""

    traits = Traits(
        reply=Delivery | None,
        queue="queue",
        right="read",
        public=True,
        repeat=Repeat.HARMLESS,
        split=Split.RECEIVE,
        turn=Turn.RECEIVE,
        inside=("ticket",),
        has_messages=True,
    )

    queue: str
    channel: str = MAIN
    limit: int = 1
    wait_ms: int | None = None
    """None: the queue's receive wait."""
    lease_ms: int | None = None
    """None: the queue's lease."""
    session: int = 0
    attempt_id: str | None = None
    """FIFO: the same id again within the lease gets the same messages again."""
    ticket: Any = None
    """Comes back with the reply out of `take_woken`; must be unique among those who wait. Needed for waiting."""


class Subscribed(msgspec.Struct):
    """A subscription's number."""

    subscription: int


class Subscribe(Command):
    """Standing demand: messages are pushed as they become ready while there is credit. Replies with `Subscribed`."""

    traits = Traits(reply=Subscribed, queue="queue", right="read", split=Split.SUBSCRIBE)

    queue: str
    channel: str = MAIN
    credit: int = 0
    lease_ms: int | None = None
    session: int = 0
    ticket: Any = None
    in_flight: bool = False
    """Credit is how many messages the session may hold at a time (NSQ's RDY), not how many more it may be pushed. The
    session has one such subscription to a channel."""
    room_bytes: int | None = None
    """How many bytes more it may be pushed, give or take the last chunk; None: any number."""


class SetCredit(Command):
    """Set how many more messages a subscription may be pushed, or may hold (NSQ's RDY). 0 pauses it.

    None leaves the credit as it is, or the room. Replies with how many messages its session holds, if that is what
    counts; else with 0.
    """

    traits = Traits(reply=int, home=Home.SUBSCRIPTION)

    subscription: int
    credit: int | None = None
    room_bytes: int | None = None
    arrived: int | None = None
    """How many messages have come of all that it was pushed; if given, those on their way count against the credit."""


class AddCredit(Command):
    """Give a subscription more credit."""

    traits = Traits(home=Home.SUBSCRIPTION, turn=Turn.CREDIT)

    subscription: int
    credit: int


class CancelWait(Command):
    """Forget a waiting receive or a subscription, by ticket. Nothing is lost: it held nothing."""

    traits = Traits(home=Home.SUBSCRIPTION)

    ticket: Any


# -- settling ----------------------------------------------------------------------------------------------------------


class Refused(NamedTuple):
    """Messages that could not be settled, and why."""

    first: int
    last: int
    error: PenstockError


class Settled(msgspec.Struct):
    """How many messages were settled, and which were not."""

    count: int
    refused: list[Refused] = []
    sent: list[tuple[int, int]] = []
    """Of `AckSequences`: how many of the messages were sent when, as (time, count)."""

    def check(self) -> int:
        """How many messages were settled; or the first refusal, raised. The others were settled all the same."""
        if not self.refused:
            return self.count
        count, error = sum(each.last - each.first + 1 for each in self.refused), self.refused[0].error
        if count == 1 and self.count == 0:
            raise copy(error)  # the one in the reply must not have a traceback, which leads to the reply
        total = self.count + count
        raise type(error)(
            f"{count} of {total} messages were refused, the others settled; the first: {error}"
        ) from error


class _FirstAck(Command):
    """`Ack` as it was first. What comes later comes last, and builds before pass over it while it says nothing."""

    queue: str
    spans: list[Span] = []
    channel: str = MAIN
    receipts: list[str] = []
    """Messages named by their receipts, besides those in `spans`."""
    patient: bool = False
    """The reply is not urgent: it may be left for some milliseconds, to be committed with something else."""


class Ack(_FirstAck, kw_only=True):
    """The work is done. Replies with `Settled`."""

    traits = Traits(reply=Settled, queue="queue", right="read", public=True, split=Split.SPANS, turn=Turn.SETTLE)

    in_time: bool = False
    """Only while the lease lasts. Without it, an ack that comes late counts if nobody else has got the message."""


class AckSequences(Command):
    """As `Ack`, for messages that this session holds, by sequence number (NSQ's FIN). Replies with `Settled`."""

    traits = Traits(reply=Settled, queue="queue", right="read", split=Split.SEQUENCES)

    queue: str
    channel: str
    sequences: NDArray[np.int64]
    session: int
    durable: bool = True
    """False: the reply need not wait for a commit, because nobody is told of it; the ack goes with the next one."""


class ReleaseSequences(Command):
    """As `Release`, for messages that this session holds (NSQ's REQ). Replies with `Settled`."""

    traits = Traits(reply=Settled, queue="queue", right="read", split=Split.SEQUENCES)

    queue: str
    channel: str
    sequences: NDArray[np.int64]
    session: int
    delay_ms: int | None = None
    error: str = ""


class ExtendSequences(Command):
    """As `Extend`, for messages that this session holds (NSQ's TOUCH). Replies with `Settled`.

    With `held_ms_max` the lease ends that long after the receive at the latest: it is cut short, and not refused.
    """

    traits = Traits(reply=Settled, queue="queue", right="read", repeat=Repeat.HARMLESS, split=Split.SEQUENCES)

    queue: str
    channel: str
    sequences: NDArray[np.int64]
    session: int
    lease_ms: int
    held_ms_max: int | None = None


class Release(Command):
    """A failed delivery. `delay_ms` None: in place the first time, then by the queue's backoff. Replies: `Settled`."""

    traits = Traits(reply=Settled, queue="queue", right="read", public=True, split=Split.SPANS, turn=Turn.SETTLE)

    queue: str
    spans: list[Span] = []
    channel: str = MAIN
    delay_ms: int | None = None
    error: str = ""
    receipts: list[str] = []
    """Messages named by their receipts, besides those in `spans`."""


class GiveBack(Command):
    """The receiver left before it got a delivery: its messages are ready again, and the attempt does not count.

    With an at-most policy it counts all the same: nobody knows how far the delivery came. Replies with `Settled`.
    """

    traits = Traits(reply=Settled, queue="queue", right="read", public=True, split=Split.SPANS)

    queue: str
    spans: list[Span]
    channel: str = MAIN
    received_ms: int = 0
    """When they were handed out; 0: not known. What was handed out later is left alone: it can be on the same attempt,
    if the store crashed before it had written the first lease."""


class _FirstExtend(Command):
    """`Extend` as it was first."""

    queue: str
    spans: list[Span]
    lease_ms: int
    channel: str = MAIN
    receipts: list[str] = []
    """Messages named by their receipts, besides those in `spans`."""


class Extend(_FirstExtend, kw_only=True):
    """A heartbeat: the lease ends `lease_ms` from now. 0 gives the message back. Replies with `Settled`."""

    traits = Traits(
        reply=Settled,
        queue="queue",
        right="read",
        public=True,
        repeat=Repeat.HARMLESS,
        split=Split.SPANS,
        turn=Turn.SETTLE,
    )

    late: bool = False
    """Also of a delivery that is over, on a standard queue: a message that is ready is leased again, and one that
    somebody else has by now stays with him for so long."""

    @property
    def repeat(self) -> Repeat:
        """What was given back cannot be given back again."""
        return Repeat.HARMLESS if self.lease_ms else Repeat.NAMED


class AlreadyDone(msgspec.Struct, tag=True):
    """Work with this mark, or with a higher number of the same name, was done before: nothing was done now."""

    name: str
    number: int
    """The highest number that was done."""


class _FirstCommitWork(Command):
    """`CommitWork` as it was first."""

    acks: list[Ack]
    sends: list[Send]
    mark: tuple[str, int] | None = None
    """A name and a number: the work is done only if the number is higher than that of any work of this name so far.
    Otherwise nothing is done, and the reply is `AlreadyDone`. What was marked is remembered for good."""
    check_only: bool = False
    """Only say what is wrong with it: raise, or reply with an empty list, and do nothing."""
    mark_after: int | None = None
    """With a mark: the work is done only if the last number of its name is this one; otherwise `MarkMoved`."""
    ack_shards: list[int] | None = None
    """The shard of each of the acks; None: by the names of their queues. What is acked in another shard must be held
    there (`HoldForWork`); it is acked when the outbox gets there."""
    send_shards: list[int] | None = None
    """The shard of each of the sends, likewise. What goes to another shard is on its way, says its `Sent`."""

    @property
    def about(self) -> str | None:
        """The queue of its first ack, or of its first send: that shard is its coordinator."""
        parts = self.acks or self.sends
        return parts[0].queue if parts else None

    def needs(self) -> Iterator[tuple[Right, str]]:
        """What its parts need."""
        for part in (*self.acks, *self.sends):
            yield from part.needs()


class CommitWork(_FirstCommitWork, kw_only=True):
    """A unit of work: all of it or, with `WorkRefused`, nothing. Replies with the list of `Sent`."""

    traits = Traits(reply=list[Sent] | AlreadyDone, right="any", public=True, home=Home.WORK, inside=("stage",))

    stage: int = 0
    """With a mark: sends that were written before (`StageWork`) belong to it. `StageNotFound` if they are gone."""


class Staged(msgspec.Struct):
    """Where sends were staged; or why they cannot be, and nothing was done."""

    stage: int
    refused: str = ""


class StageWork(Command):
    """Write sends of a unit of work before its commit, so that it may have any size. Nobody sees them until then.

    Not every send can be staged: one whose messages have to be looked at when they are numbered is refused, with all
    that came with it. The queues are created now. Replies with `Staged`.
    """

    traits = Traits(reply=Staged, home=Home.MARK, since=4)

    name: str
    """The name of the mark of the work."""
    sends: list[Send]
    stage: int = 0
    """The stage that they belong to; 0: a new one."""
    send_shards: list[int] | None = None
    """As in `CommitWork`."""
    drop: bool = False
    """Instead: forget the stage."""


class HoldForWork(Command):
    """Make sure that messages can be acked here by a unit of work that is committed in another shard.

    Their leases last for at least `lease_ms` from now, durably: neither the end of the session that received them nor
    a release ends them. `WorkRefused` if one of them cannot be acked: nothing was done then. Replies with `Settled`.
    """

    traits = Traits(reply=Settled, repeat=Repeat.HARMLESS, home=Home.SHARD)

    acks: list[Ack]
    lease_ms: int = 60_000
    let_go: bool = False
    """Instead: the work was refused, and what was held for it can be released again. What was not is left alone."""
    unit: int = 0
    """Whose it is, the same whenever that unit of work is tried: it may hold messages again, and let them go. For any
    other one they cannot be acked: two clients can have one message on the same attempt, if the store crashed before it
    had written the first one's lease."""


class RecallWork(Command):
    """What was answered when a unit of work was done, by its name or its mark; the reply is None if it was not done.

    For who has to prepare work over several shards, and finds that it cannot: perhaps because it was done before.
    """

    traits = Traits(reply=list[Sent] | AlreadyDone | None, repeat=Repeat.READ, home=Home.SHARD)

    named: Once | None = None
    mark: tuple[str, int] | None = None


class _FirstLastMark(Command):
    """`LastMark` as it was first."""

    name: str


class LastMark(_FirstLastMark, kw_only=True):
    """Replies with the highest number of marked work of a name; -1 if there is none."""

    traits = Traits(reply=int, right="any", public=True, repeat=Repeat.READ, home=Home.MARK)

    arrived: bool = False
    """Reply -1, too, as long as anything of that work is on its way to another shard."""


# -- other shards ------------------------------------------------------------------------------------------------------


class ForwardedMessages(msgspec.Struct, array_like=True, frozen=True, tag="messages"):
    """Messages for a queue in another shard; they themselves are in a chunk beside this."""

    queue: str
    moved: bool
    """From another queue (dead letters, redriven ones): taken as they are, without limits and without dedup."""
    priority: int = 0
    due_ms: int | None = None
    """None: by the queue's delay."""
    create: bool = True
    channels: tuple[str, ...] = (MAIN,)
    config: QueueConfig = QueueConfig()
    """What a queue that is created for them gets."""
    of_queue: int = 0
    """They are for a partition of the queue with this id. If it is not there any more, they are sent on: the first
    partition of the queue that has its name says where they belong. 0: they are for the first partition."""
    sent_on: bool = False
    """Whether that has happened. It happens once; then they are refused."""


class ForwardedAcks(msgspec.Struct, array_like=True, frozen=True, tag="acks"):
    """Acks of a unit of work that was committed elsewhere; they were held for it."""

    acks: list[Ack]


class ForwardedDelete(msgspec.Struct, array_like=True, frozen=True, tag="delete"):
    """The first partition of a queue is deleted: so is a further one."""

    queue: str
    queue_id: int


class OutboxEntry(msgspec.Struct, array_like=True):
    """Something that a commit in one shard wants done in another."""

    number: int
    made_ms: int
    effect: ForwardedMessages | ForwardedAcks | ForwardedDelete
    chunk: bytes = b""
    """The messages, as a chunk's stored form; nothing if they were damaged in the store."""


class ReadOutbox(Command):
    """What waits for another shard, in order, after a number; `limit_bytes` of it, but one at least.

    Replies with a list of `OutboxEntry`.
    """

    traits = Traits(reply=list[OutboxEntry], repeat=Repeat.READ, home=Home.SHARD)

    target: int
    after: int
    limit_bytes: int = 4 * 1024 * 1024


class ForgetOutbox(Command):
    """The target has done all up to a number. Replies with how many entries are left."""

    traits = Traits(reply=int, repeat=Repeat.HARMLESS, home=Home.SHARD)

    target: int
    up_to: int


class Taken(msgspec.Struct):
    """Where the mark of an outbox is now."""

    number: int
    done: bool
    """Whether the command did it; False: nothing was done, because the mark was elsewhere."""
    refused: int = 0
    """Messages that their queue did not take; they are in the queue for such: see `penstock.core.transfer.outbox`."""
    stale: int = 0
    """Messages that could not be acked: their leases are gone, and somebody else has them."""


class TakeOutbox(Command):
    """Do what another shard wants done, if its mark here is at `after`: all of it, and the mark goes to `up_to`.

    What cannot be done is not refused: messages go to another queue, with the reason. Replies with `Taken`.
    """

    traits = Traits(reply=Taken, repeat=Repeat.HARMLESS, home=Home.SHARD)

    source: str
    """The outbox: see `Broker.outbox_name`."""
    after: int
    up_to: int
    entries: list[OutboxEntry]


# -- channels, sessions, consumers -------------------------------------------------------------------------------------


class CreateChannel(Command):
    """Create a channel; once more is fine. Replies with its id.

    `start`: 'head', 'tail', 'first' (the head for a queue's first channel, the tail for others), or a time in
    milliseconds.
    """

    traits = Traits(reply=int, queue="queue", right="read", public=True, split=Split.EVERY, is_noted=True)

    queue: str
    channel: str
    start: str | int = "head"
    offset: int | None = None
    """Start at this sequence number, instead."""
    offsets: tuple[int, ...] = ()
    """Where to start in each partition of a queue with several, instead."""


class DeleteChannel(Command):
    """Delete a channel, and what was kept for it alone.

    A queue without channels keeps all it has for the first one that comes. With `purge_last`, it forgets what the last
    one has left (unless a consumer still reads it), and the next one gets what is sent from now on.
    """

    traits = Traits(queue="queue", right="admin", public=True, split=Split.EVERY, is_noted=True)

    queue: str
    channel: str
    purge_last: bool = False
    unless_subscribed: bool = False
    """Only if nobody waits for its messages (any more)."""


class PauseChannel(Command):
    """Stop handing out a channel's messages, or go on."""

    traits = Traits(queue="queue", right="admin", public=True, split=Split.EVERY)

    queue: str
    channel: str
    paused: bool = True


class PauseQueue(Command):
    """Show the channels nothing that is sent from now on, or go on and show them all of it (NSQ's topic pause).

    What the channels have seen already goes on being handed out.
    """

    traits = Traits(queue="queue", right="admin", split=Split.EVERY)

    queue: str
    paused: bool = True


class PurgeBacklog(Command):
    """Drop what no channel has been shown: all, while there are none; else what came since the queue was paused.

    Replies with the number of messages.
    """

    traits = Traits(reply=int, queue="queue", right="admin", split=Split.EVERY)

    queue: str


class PurgeChannel(Command):
    """Drop all that waits for a channel or is in flight there. Replies with the number of messages."""

    traits = Traits(reply=int, queue="queue", right="admin", public=True, split=Split.EVERY)

    queue: str
    channel: str


class OpenSession(Command):
    """Start a session. With `ttl_ms` it ends by itself when no heartbeat comes. Replies with its number."""

    traits = Traits(reply=int, right="any", public=True, home=Home.SESSION, inside=("bound",))

    name: str
    ttl_ms: int | None = None
    bound: bool = False
    """The session is a connection: it ends when the store is opened again, because the connection is gone then."""
    holder: str = ""
    """Where the connection is, if that can be another process than the store's: who opens the store after an orderly
    release keeps the session for it."""


class Heartbeat(Command):
    """A session is alive."""

    traits = Traits(right="any", public=True, repeat=Repeat.HARMLESS, home=Home.SESSION)

    session: int


class _FirstEndSession(Command):
    """`EndSession` as it was first."""

    session: int
    error: str = "session ended"


class EndSession(_FirstEndSession, kw_only=True):
    """End a session: all its leases are released in one commit. Replies with the number of messages."""

    traits = Traits(reply=int, right="any", public=True, home=Home.SESSION)

    shard: int | None = None
    """Not the caller's own, but anybody's: that with this number in this shard, as `ListSessions` tells them."""


class HeldLeases(msgspec.Struct, frozen=True, array_like=True):
    """Messages that a session holds in one channel."""

    queue: str
    channel: str
    count: int
    since_ms: int
    """When the oldest of them was handed out."""
    until_ms: int
    """When the first lease ends."""


class SessionInfo(msgspec.Struct):
    """A session or connection, and the messages that it holds."""

    session: int
    """0: leases without a session."""
    name: str = ""
    ttl_ms: int | None = None
    seen_ms: int = 0
    """The last sign of life; 0 for session 0."""
    connection: str = ""
    """The node that has its connection, in a cluster."""
    is_bound: bool = False
    """Whether it is a connection, and ends with it."""
    leases: list[HeldLeases] = []
    shard: int = 0
    """The shard in which it has this number."""

    @property
    def id(self) -> str:
        """The id by which it can be ended.

        >>> SessionInfo(17).id, session_named("0-17"), session_named("seventeen")
        ('0-17', (0, 17), None)
        """
        return f"{self.shard}-{self.session}"

    @property
    def held(self) -> int:
        """How many messages it holds."""
        return sum(each.count for each in self.leases)


def session_named(name: str) -> tuple[int, int] | None:
    """The shard of a session, and its number there, by its id; None if that is none."""
    named = re.fullmatch(r"([0-9]{1,9})-([1-9][0-9]{0,17})", name)
    return None if named is None else (int(named[1]), int(named[2]))


class ListSessions(Command):
    """Who holds leases: sessions by number, with what each holds where. Replies with a list of `SessionInfo`.

    What is held by no session comes as session 0, if a queue is named. A client is told of what it may read.
    """

    traits = Traits(reply=list[SessionInfo], right="any", public=True, repeat=Repeat.READ, home=Home.SHARD, since=4)

    queue: str | None = None
    """Only who holds leases in this queue, and those."""
    after: int = -1
    """Only sessions with a higher number."""
    limit: int = 1_000

    def needs(self) -> Iterator[tuple[Right, str]]:
        """Whoever asks about a queue has to be able to read it."""
        if self.queue is not None:
            yield "read", self.queue


class Records(msgspec.Struct):
    """Runs in sequence order, and the offset to go on from."""

    queue: str
    queue_id: int
    runs: list[Run]
    next_offset: int
    end_offset: int
    """The offset of the next message that will be sent."""


class ReadRecords(Command):
    """Messages by offset, leasing nothing. Without `offset`: from where the consumer is. Replies with `Records`."""

    traits = Traits(
        reply=Records,
        queue="queue",
        right="read",
        public=True,
        repeat=Repeat.READ,
        split=Split.RECORDS,
        has_messages=True,
    )

    queue: str
    consumer: str | None = None
    offset: int | None = None
    limit: int = 100
    end: int | None = None
    """Only messages before this offset."""
    bytes_max: int | None = None
    """Stop before there are more bytes of bodies than this; one message comes in any case."""


class AckUpTo(Command):
    """All messages that were sent before an offset are done for a channel, whoever holds them.

    For readers that go by offset. Replies with the number of messages; an offset that was passed before does nothing.
    """

    traits = Traits(reply=int, queue="queue", right="read", repeat=Repeat.HARMLESS, split=Split.OFFSET)

    queue: str
    channel: str
    offset: int


NOT_DUE_MAX = 1_000


class Offsets(msgspec.Struct):
    """Where a queue's messages stand."""

    queue: str
    queue_id: int
    first: int
    """The offset of the oldest message that is there; `end` when there is none."""
    end: int
    """The offset of the next message that will be sent."""
    at_times: list[int]
    cut: int
    """Up to where one may read; `end` when no `bytes_max` was given."""
    partitions: int = 1
    """Over how many shards the queue is spread: the others have messages of their own."""
    after_ms: int | None = None
    """When the first message from `after` on was sent; None when there is none."""
    not_due: list[tuple[int, int, int]] = []
    """Messages that were sent with a delay and are not due, at most `NOT_DUE_MAX` runs, the first ones: first number,
    the one behind the last, and when they are due."""

    @property
    def partition(self) -> int:
        """Which of them this is of: every sequence number says it."""
        return self.end >> PARTITION_SHIFT


class FindOffsets(Command):
    """Where a queue's messages stand. Replies with `Offsets`."""

    traits = Traits(reply=Offsets, queue="queue", right="read", repeat=Repeat.READ, split=Split.OFFSET)

    queue: str
    times_ms: tuple[int, ...] = ()
    """For each of them: the offset of the first message that was sent then or later."""
    after: int = 0
    bytes_max: int | None = None
    """How far may one read from `after` to get about so many bytes?"""


class ChunkList(msgspec.Struct):
    """Keys of chunks, by base."""

    queue: str
    queue_id: int
    keys: list[bytes]
    next_offset: int
    """From where to go on; the offset that was asked for when there are no more."""
    shard: int | None = None
    """Where they are; nodes of earlier versions do not say."""


class ListChunks(Command):
    """Which chunks hold a queue's messages, by key. Replies with `ChunkList`, when all of them are committed.

    For readers that have their own way to the store's log. What is damaged is left out, as `ReadRecords` does.
    """

    traits = Traits(reply=ChunkList, queue="queue", right="read", repeat=Repeat.READ, split=Split.OFFSET)

    queue: str
    offset: int = 0
    end: int | None = None
    """Only chunks with messages before this offset."""
    limit: int = 10_000


class AckConsumer(Command):
    """Remember that a consumer has read everything before `offset`. Creates the consumer. Replies with the offset."""

    traits = Traits(reply=int, queue="queue", right="read", public=True, split=Split.OFFSET)

    queue: str
    consumer: str
    offset: int
    allow_rewind: bool = False


class DeleteConsumer(Command):
    """Forget a consumer."""

    traits = Traits(queue="queue", right="read", public=True, split=Split.EVERY)

    queue: str
    consumer: str


# -- looking, moving ---------------------------------------------------------------------------------------------------


class Seen(msgspec.Struct):
    """One message as browsed."""

    chunk: Chunk
    index: int
    state: State
    attempts: int
    deadline_ms: int
    """When the lease ends, or the message comes due; 0 when it is ready."""
    failures: list[Failure]
    priority: int = 0

    @property
    def sequence(self) -> int:
        """The message's sequence number."""
        return self.chunk.base + self.index


class _FirstBrowse(Command):
    """`Browse` as it was first: other builds read its fields by their position."""

    queue: str
    channel: str = MAIN
    after: int = -1
    limit: int = 100
    states: tuple[State, ...] = (State.READY, State.LEASED, State.DELAYED)
    contains: bytes | None = None
    """Only messages whose body holds these bytes."""


class Browse(_FirstBrowse, kw_only=True):
    """Messages with their state in a channel, in sequence order, without consuming. Replies with `list[Seen]`."""

    traits = Traits(
        reply=list[Seen],
        queue="queue",
        right="read",
        public=True,
        repeat=Repeat.READ,
        split=Split.BROWSE,
        has_messages=True,
    )

    end: int | None = None
    """Only messages before this sequence number."""


class ChannelLife(msgspec.Struct):
    """Where a message stands in one channel, and what happened to it there."""

    channel: str
    state: State
    attempts: int = 0
    deadline_ms: int = 0
    """When the lease ends, or the message comes due; 0 when it is neither leased nor delayed."""
    received_ms: int = 0
    """When it was handed out last; 0: not yet, or that is not known any more."""
    first_ms: int = 0
    """When it was handed out first."""
    session: int = 0
    """Who holds it; 0: nobody in particular."""
    holder: str = ""
    """The name of that session."""
    failures: list[Failure] = []


class Life(msgspec.Struct):
    """A message with all that is known of it."""

    queue: str
    queue_id: int
    sequence: int
    sent_ms: int
    body: bytes
    attributes: bytes | None = None
    group: str | None = None
    dedup_id: str | None = None
    origin: bytes | None = None
    """Where it was before, as `penstock.core.queues.origin.Origin` is stored."""
    priority: int = 0
    due_ms: int = 0
    """When it was to be delivered first, if it was sent with a delay."""
    channels: list[ChannelLife] = []

    @property
    def is_done(self) -> bool:
        """Whether every channel is through with it. Then it may have been moved, and go on elsewhere under its id."""
        return bool(self.channels) and all(each.state is State.DONE for each in self.channels)


class LookUp(Command):
    """Messages by sequence number, with where each stands in every channel. Replies with a list of `Life`.

    What is not there any more (done in every channel, or gone by retention) is left out.
    """

    traits = Traits(
        reply=list[Life], queue="queue", right="read", public=True, repeat=Repeat.READ, split=Split.NUMBERS, since=4
    )

    queue: str
    sequences: list[int]


class NameQueue(Command):
    """The name of the queue with this number, which message ids hold; None if it is gone, or not for the caller."""

    traits = Traits(reply=str | None, right="any", public=True, repeat=Repeat.READ, home=Home.ALL, since=4)

    queue_id: int


class Changed(msgspec.Struct):
    """What became of messages that an operator named: those that are not in `missing` are as he wants them."""

    count: int
    missing: list[int] = []
    """Sequence numbers of messages that are not there, are done, or are held for a unit of work."""


class DeleteMessages(Command):
    """Messages are done, whoever holds them and however far ahead they wait. Replies with `Changed`.

    In one channel, or in all of them. A message is missing if no channel had it.
    """

    traits = Traits(
        reply=Changed, queue="queue", right="admin", public=True, repeat=Repeat.HARMLESS, split=Split.NUMBERS, since=4
    )

    queue: str
    sequences: list[int]
    channel: str | None = None
    """None: every channel."""


class RescheduleMessages(Command):
    """Messages come due at another time. Replies with `Changed`.

    What is leased is released first: its delivery has failed. With `due_ms` 0, or in the past, they are ready now.
    """

    traits = Traits(reply=Changed, queue="queue", right="admin", public=True, split=Split.NUMBERS, since=4)

    queue: str
    sequences: list[int]
    channel: str = MAIN
    due_ms: int = 0
    error: str = "released by an operator"
    """What the failed delivery of a leased message is remembered with."""
    delay_ms: int | None = None
    """How long from now, instead of `due_ms`."""


class RedriveTask(msgspec.Struct):
    """A redrive, and how far it is."""

    task: int
    queue: str
    target: str | None
    status: str
    """`running`, `done`, `cancelled` or `failed`."""
    moved: int
    skipped: int
    to_move: int
    started_ms: int
    error: str = ""
    sequences: list[int] | None = None
    contains: bytes | None = None
    match_error: str | None = None
    per_second: int | None = None
    cursor: int = -1
    end: int = 0
    paced_ms: int = 0
    """Up to when its rate is used up."""
    match_group: str | None = None
    discard: bool = False
    origins: list[str] | None = None
    """Only dead letters of queues whose names match one of these patterns are moved."""


class _FirstStartRedrive(Command):
    """`StartRedrive` as it was first."""

    queue: str
    target: str | None = None
    sequences: list[int] | None = None
    contains: bytes | None = None
    error: str | None = None
    """Only dead letters one of whose reported errors holds this text."""
    per_second: int | None = None


class StartRedrive(_FirstStartRedrive, kw_only=True):
    """Move messages of a (dead-letter) queue to where they came from, or elsewhere. Replies with `RedriveTask`."""

    traits = Traits(reply=RedriveTask, queue="queue", right="admin", public=True, split=Split.EVERY, is_noted=True)

    group: str | None = None
    """Only messages whose last error is of this kind: see `penstock.core.queues.origin.error_group`."""
    discard: bool = False
    """Delete the messages, instead of moving them."""
    origins: list[str] | None = None
    """Only messages that failed in a queue whose name fits one of these patterns: what the caller may administer."""
    check_only: bool = False
    """Start nothing. What it would be refused for is refused; the task in the reply has the number 0."""
    until_ms: int | None = None
    """Only messages that came to the queue up to then."""

    def needs(self) -> Iterator[tuple[Right, str]]:
        """Also on the queue to which the messages go."""
        yield from super().needs()
        if self.target is not None:
            yield "admin", self.target


class CancelRedrive(Command):
    """Stop a redrive; what was moved stays moved. Replies with `RedriveTask`."""

    traits = Traits(reply=RedriveTask, right="admin", public=True, repeat=Repeat.HARMLESS, home=Home.TASK)

    task: int


class ListRedrives(Command):
    """Redrives of a queue, newest first. Replies with `list[RedriveTask]`."""

    traits = Traits(reply=list[RedriveTask], right="any", public=True, repeat=Repeat.READ, home=Home.ALL)

    queue: str | None = None


def _declared(kind: type[Command]) -> Iterator[type[Command]]:
    """The commands that derive from one: of those that have got more fields since, the last form."""
    for each in kind.__subclasses__():
        yield from list(_declared(each)) or [each]


COMMANDS: tuple[type[Command], ...] = tuple(_declared(Command))
"""Every command of the core, in the order in which they stand here."""


What = Literal["sent", "received", "acked", "released", "expired", "returned", "dead", "passed"]


class MessageEvent(NamedTuple):
    """One thing that happened to a run of messages of one queue.

    >>> MessageEvent("acked", "orders", "main", first=10, messages=5, at_ms=1_500, sent_ms=1_000).last
    14
    """

    what: What
    """`passed`: a reader that goes by offset has moved its channel on. `returned`: a delivery that never arrived."""
    queue: str
    channel: str
    """Empty for what is sent: that is for every channel."""
    first: int
    """The first sequence number; -1 where the run is not known (`passed`)."""
    messages: int
    at_ms: int
    sent_ms: int = 0
    """When the messages were sent; 0 where that is not known."""
    attempt: int = 0
    size: int = 0
    """Bytes, of what is sent or received."""
    session: str = ""
    error: str = ""

    @property
    def last(self) -> int:
        """The last sequence number."""
        return self.first + self.messages - 1
