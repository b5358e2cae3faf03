"""What the API takes and gives, as typed structs: they decode, they check, and the OpenAPI document is made of them.

Lengths of time are seconds, moments are seconds since 1970, as in the Python API. An unknown field is an error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.core.queues.config import DELAY_MS_MAX, LEASE_MS_MAX, PRIORITY_MAX, SETTINGS
from penstock.core.settings import Declared, with_settings
from penstock.protocols.rest.operations import Batch

SEQUENCE_MAX = (1 << 62) - 1
LISTED_MAX = 1_000
RECEIPTS_MAX = 10_000
SECONDS_MAX = DELAY_MS_MAX // 1_000
LEASE_SECONDS_MAX = LEASE_MS_MAX // 1_000
SESSION_SECONDS_MAX = 24 * 3_600
RECORDS_MAX = 100_000

Name = Annotated[str, Meta(pattern="^[A-Za-z0-9._#-]{1,128}$", description="Letters, digits, dots, dashes, _ or #")]
Token = Annotated[str, Meta(min_length=1, max_length=128)]
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
Lease = Annotated[float, Meta(ge=0, le=LEASE_SECONDS_MAX, description="Seconds, up to twelve hours")]
Moment = Annotated[float, Meta(ge=0, le=1e12, description="Seconds since 1970")]
Sequence = Annotated[int, Meta(ge=0, le=SEQUENCE_MAX)]
Count = Annotated[int, Meta(ge=0)]
Limit = Annotated[int, Meta(ge=1, le=LISTED_MAX)]
ReceiptText = Annotated[str, Meta(max_length=200)]
Encoding = Literal["text", "base64"]
StateName = Literal["ready", "leased", "delayed", "done"]


class Shape(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What comes in."""


class Result(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What goes out. What has its default value is left out."""


# -- queues ------------------------------------------------------------------------------------------------------------


def _described(setting: Declared) -> Any:
    """With what a new queue has: not as `default`, since what a change leaves out stays as it is."""
    initial = {"x-default": setting.default_text} if setting.default_text else {}
    unit = {"x-unit": "seconds"} if setting.field == f"{setting.name}_ms" else {}
    return Annotated[Any, Meta(extra_json_schema=setting.schema() | initial | unit)]


@with_settings(SETTINGS.values(), _described)
class QueueSettings(Shape):
    """A queue's settings. Lengths of time are seconds. null means no limit."""


class NewQueue(Shape):
    """A queue to be created."""

    name: Name
    settings: QueueSettings = msgspec.field(default_factory=QueueSettings)
    channels: Annotated[tuple[Name, ...], Meta(max_length=LISTED_MAX)] = ("main",)


class ChannelCounts(Result, omit_defaults=False):
    """A channel, and how much is in it. The counts are exact."""

    name: str
    ready: int
    leased: int
    delayed: int
    acked: int
    failed: int
    dead: int
    paused: bool
    oldest_sent_at: float | None
    waiting_receivers: int


class QueueCounts(Result, omit_defaults=False):
    """How much is in a queue. The counts are exact."""

    messages: int
    bytes: int
    delayed: int
    sent: int
    quarantined: int
    oldest_sent_at: float | None
    end_offset: int
    channels: list[ChannelCounts]
    consumers: dict[str, int]
    """The offset of each named consumer."""


class QueueDescription(Result):
    """A queue: its settings, and how much is in it."""

    name: str
    settings: QueueSettings
    created_at: float
    changed_at: float
    stats: QueueCounts


class QueueList(Result, omit_defaults=False):
    """Names of queues, in order."""

    queues: list[str]
    next: str | None
    """The `after` of the next page. null on the last page."""


class QueuesQuery(Shape):
    """Which queues."""

    prefix: Annotated[str, Meta(max_length=128)] = ""
    """Only names that start with this."""
    after: Annotated[str, Meta(max_length=128)] = ""
    """The `next` of the previous page."""
    limit: Limit = 100


class Purged(Result, omit_defaults=False):
    """How many messages were deleted."""

    purged: int


# -- messages ----------------------------------------------------------------------------------------------------------


class TypedValue(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The value of an attribute, if it is bytes (in base64) or has its own type (SQS: `Number.price`)."""

    value: str
    encoding: Encoding = "text"
    type: Token | None = None


Number = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
AttributeJson = str | Number | float | TypedValue


class NewMessage(Shape):
    """A message to be sent."""

    body: str
    """Text, or bytes in base64."""
    encoding: Encoding = "text"
    """The encoding of `body`."""
    attributes: dict[str, AttributeJson] = {}
    """Names and values: text, numbers, or a `TypedValue`."""
    group: Token | None = None
    """FIFO queues need one, and keep the order within it."""
    dedup_id: Token | None = None
    """Another message with the same id within five minutes is not added."""
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = 0
    """The highest is received first."""
    delay: Seconds | None = None
    """Seconds before it can be received. null: the queue's `delay`."""
    due: Moment | None = None
    """When it can be received, in seconds since 1970, instead of `delay`."""


class PutMessage(NewMessage, kw_only=True):
    """A message to be sent by a unit of work."""

    queue: Name
    """The queue to send it to."""


class SendQuery(Shape):
    """How to send."""

    create: bool = True
    """Create the queue if it does not exist."""


class SentMessage(Result):
    """What became of a message."""

    id: str | None
    """null if a unit of work in a cluster sends the message to a queue of another shard."""
    sequence: int | None
    duplicate: bool = False
    """A message with the same dedup id was sent before: nothing was added."""


class SentMessages(Result):
    """What became of messages, in the order in which they were given."""

    messages: list[SentMessage]


class FailedDelivery(Result, omit_defaults=False):
    """A delivery that failed."""

    attempt: int
    received_at: float
    failed_at: float
    session: str
    error: str


class MessageOrigin(Result, omit_defaults=False):
    """Where a message was before it was moved here."""

    queue: str
    channel: str
    sequence: int
    attempts: int


class Content(Result):
    """What every message has."""

    id: str
    sequence: int
    body: str
    sent_at: float
    encoding: Encoding = "text"
    attributes: dict[str, AttributeJson] = {}
    group: str | None = None
    origin: MessageOrigin | None = None
    masked: bool = False
    """Parts of it are hidden by `[console] mask`."""


class ReceivedMessage(Content, kw_only=True):
    """A message that is leased to the caller."""

    receipt: str
    attempt: int
    first_received_at: float
    failures: list[FailedDelivery] = []


class Receipt(Result):
    """Messages that were received. All their leases end at the same time."""

    messages: list[ReceivedMessage]
    deadline: float
    """When the leases end."""


class SeenMessage(Content, kw_only=True):
    """A message that was looked at, not received."""

    state: StateName
    attempts: int
    until: float | None = None
    """When its lease ends or its delay is over."""
    failures: list[FailedDelivery] = []


class SeenMessages(Result, omit_defaults=False):
    """Messages in order. They were not received."""

    messages: list[SeenMessage]
    next: int | None
    """The `after` of the next page. null on the last page."""


class DeadLetters(SeenMessages, omit_defaults=False):
    """Dead letters, with the reasons of their failures."""

    queue: str
    """The dead-letter queue in which they are."""


class Holder(Result, omit_defaults=False):
    """Who holds a message."""

    session: int
    """0: a receiver without a session, such as over SQS."""
    name: str


class MessageInChannel(Result, omit_defaults=False):
    """The state of a message in one channel."""

    channel: str
    state: StateName
    attempts: int
    due_at: float | None
    """When a delayed message comes due. null: it is not delayed, or it waits because the queue is paused."""
    lease_ends_at: float | None
    received_at: float | None
    """When it was last delivered, if that is known."""
    first_received_at: float | None
    holder: Holder | None
    failures: list[FailedDelivery]


class LifeEvent(Result, omit_defaults=False):
    """Something that happened to a message, or will happen."""

    at: float
    what: Literal["sent", "received", "failed", "dead", "due", "lease ends"]
    queue: str
    channel: str | None
    attempt: int | None
    text: str


class MessageLife(Content, omit_defaults=False, kw_only=True):
    """A message with its body, attributes, state, holder, due time, and everything that happened to it."""

    queue: str
    dedup_id: str | None
    priority: int
    channels: list[MessageInChannel]
    events: list[LifeEvent]
    """Its whole life as far as it is known, the oldest first."""


class NamedMessages(Shape):
    """Messages, by their ids or by their sequence numbers."""

    ids: Annotated[list[Token], Meta(min_length=1, max_length=LISTED_MAX)] | None = None
    """Their ids."""
    sequences: Annotated[list[Sequence], Meta(min_length=1, max_length=RECEIPTS_MAX)] | None = None
    """Their sequence numbers, instead of `ids`."""
    channel: Name | None = None
    """null: in every channel."""


class NamedMessagesIn(Shape):
    """Messages of a channel, by their ids or by their sequence numbers."""

    ids: Annotated[list[Token], Meta(min_length=1, max_length=LISTED_MAX)] | None = None
    """Their ids."""
    sequences: Annotated[list[Sequence], Meta(min_length=1, max_length=RECEIPTS_MAX)] | None = None
    """Their sequence numbers, instead of `ids`."""
    channel: Name = "main"


class NewSchedule(NamedMessagesIn):
    """Messages, and when they come due."""

    due: Moment | None = None
    """When they come due, in seconds since 1970."""
    delay: Seconds | None = None
    """Seconds from now, instead of `due`."""


class ChangedMessages(Result, omit_defaults=False):
    """What became of the messages."""

    changed: int
    """How many messages were changed."""
    missing: list[str | int]
    """Those that do not exist, are done, or are held for a unit of work."""


class BrowseQuery(Shape):
    """Which messages."""

    channel: Name = "main"
    """The channel whose states are shown."""
    after: Annotated[int, Meta(ge=-1, le=SEQUENCE_MAX)] = -1
    """The `next` of the previous page."""
    limit: Limit = 100
    states: list[StateName] = msgspec.field(default_factory=lambda: ["ready", "leased", "delayed"])
    """Only messages in these states. By default all but `done`."""
    contains: Annotated[str, Meta(max_length=4096)] | None = None
    """Only messages whose body contains this."""
    encoding: Encoding = "text"
    """The encoding of `contains`."""


class SearchQuery(Shape):
    """Which messages. A message must match everything that is given."""

    text: Annotated[str, Meta(max_length=4096)] | None = None
    """The body contains this, as it is or with the escapes of JSON: `é` also finds `\\u00e9`."""
    encoding: Encoding = "text"
    """The encoding of `text`."""
    path: Annotated[str, Meta(max_length=1024)] | None = None
    """The body is JSON, and has something at this path: `$.customer.orders[0].id`; `[*]` is any element."""
    value: Annotated[str, Meta(max_length=4096)] | None = None
    """The value at the path: text as it is, anything else as JSON."""
    attribute: Annotated[str, Meta(max_length=256)] | None = None
    """The message has this attribute."""
    attribute_value: Annotated[str, Meta(max_length=4096)] | None = None
    id: Token | None = None
    """The message has this id or sequence number."""
    since: Moment | None = None
    """The message was sent at this time or later."""
    until: Moment | None = None
    channel: Name = "main"
    states: list[StateName] = msgspec.field(default_factory=lambda: ["ready", "leased", "delayed"])
    after: Annotated[int, Meta(ge=-1, le=SEQUENCE_MAX)] = -1
    limit: Limit = 100


class FoundMessages(Result, omit_defaults=False):
    """Messages that match, in order. They were not received."""

    messages: list[SeenMessage]
    looked_at: int
    """About how many messages this request has looked at."""
    next: int | None
    """The `after` of the next page, even if this page is empty. null on the last page."""


class DeadLettersQuery(Shape):
    """Which dead letters."""

    after: Annotated[int, Meta(ge=-1, le=SEQUENCE_MAX)] = -1
    limit: Limit = 100
    contains: Annotated[str, Meta(max_length=4096)] | None = None
    error: Annotated[str, Meta(max_length=4096)] | None = None
    """Only messages with this text in one of their errors."""


class ReceiveOptions(Shape):
    """How to receive through a channel."""

    max: Annotated[int, Meta(ge=1)] = 1
    """How many messages at most."""
    wait: Seconds | None = None
    """How many seconds to wait for the first message. null: the queue's `receive_wait`."""
    lease: Lease | None = None
    """How many seconds the messages belong to the caller. null: the queue's `lease`."""
    session: Token | None = None
    """The session that holds the leases, from `POST /v1/sessions`."""
    attempt_id: Token | None = None
    """FIFO: another receive with the same id gets the same messages, while they are leased."""


class ReceiveRequest(ReceiveOptions):
    """How to receive."""

    channel: Name = "main"


class Held(Shape):
    """Messages that the caller holds: one `receipt`, or `receipts`, each with its own result."""

    receipt: ReceiptText | UnsetType = UNSET
    receipts: Annotated[list[ReceiptText], Meta(max_length=RECEIPTS_MAX)] | UnsetType = UNSET


class ReleaseRequest(Held):
    """Messages to be released."""

    error: Annotated[str, Meta(max_length=4096)] = ""
    """Why the work failed. It is stored with the message."""
    delay: Seconds | None = None
    """null: the queue's backoff."""
    failed: bool = True
    """false: the messages are given back as they were. That is no failed delivery, and takes neither `error` nor
    `delay`."""


class ExtendRequest(Held, kw_only=True):
    """Messages whose leases are to be extended."""

    lease: Lease
    """The leases end so many seconds from now. 0 gives the messages back."""


class RefusedReceipt(Result):
    """A message that was not settled, and why."""

    receipt: str
    code: str
    detail: str


class SettledReceipts(Result, omit_defaults=False):
    """What became of each message."""

    settled: int
    refused: list[RefusedReceipt]


# -- channels, dead letters, work, sessions ----------------------------------------------------------------------------


class NewChannel(Shape):
    """A channel to be created."""

    name: Name
    start: Literal["head", "tail"] | Moment = "head"
    """`head`: all stored messages. `tail`: only later messages. A number: messages sent since this time."""


class ChannelList(Result):
    """The channels of a queue."""

    channels: list[ChannelCounts]


class ErrorGroup(Result, omit_defaults=False):
    """Dead letters that failed for the same reason: their last errors differ only in numbers, ids and quoted text."""

    group: str
    count: int
    first_at: float
    """When the first message of the group became a dead letter."""
    last_at: float
    """When the last message of the group became a dead letter."""
    sample: SeenMessage


class ErrorGroups(Result, omit_defaults=False):
    """Dead letters by reason, the most frequent first."""

    queue: str
    """The dead-letter queue in which they are."""
    groups: list[ErrorGroup]
    looked_at: int
    next: int | None
    """The `after` of the next page. null on the last page."""


class ErrorGroupsQuery(Shape):
    """From where to look."""

    after: Annotated[int, Meta(ge=-1, le=SEQUENCE_MAX)] = -1


class NewRedrive(Shape):
    """Which messages of a dead-letter queue are moved, and to which queue."""

    queue: Name
    """The dead-letter queue that the messages are in."""
    target: Name | None = None
    """null: each goes back to the queue that it came from."""
    create: bool = False
    """Create the target if it does not exist. Otherwise this is an error."""
    ids: Annotated[list[Token], Meta(max_length=LISTED_MAX)] | None = None
    """Only these, by their ids."""
    sequences: Annotated[list[Sequence], Meta(max_length=RECEIPTS_MAX)] | None = None
    """Only these, by their sequence numbers."""
    contains: Annotated[str, Meta(max_length=4096)] | None = None
    """Only messages whose body contains this."""
    error: Annotated[str, Meta(max_length=4096)] | None = None
    """Only messages with this text in one of their errors."""
    rate: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """How many messages a second at most."""
    group: Annotated[str, Meta(max_length=256)] | None = None
    """Only those whose last error is of this group, as `dead-letters/groups` names it."""
    discard: bool = False
    """Delete the messages instead of moving them."""
    dry_run: bool = False
    """Only count the messages: `to_move` says how many there are, and `counted_all` whether that is all."""
    until: float | None = None
    """Only messages that came to the queue up to this time: the `started_at` of a dry run, to move what it counted."""


class Redrive(Result, omit_defaults=False):
    """A redrive, and how far it is."""

    task: int
    queue: str
    target: str | None
    status: Literal["running", "done", "cancelled", "failed", "dry_run"]
    moved: int
    skipped: int
    to_move: int
    started_at: float
    error: str
    rate: int | None = None
    group: str | None = None
    discard: bool = False
    counted_all: bool = True
    """false if a dry run did not look at all messages."""
    selected: int | None = None
    """How many messages were named by `ids` or `sequences`. null: all of the queue are looked at."""


class RedriveList(Result):
    """Redrives, newest first."""

    redrives: list[Redrive]


class RedrivesQuery(Shape):
    """Which redrives."""

    queue: Name | None = None


class Work(Shape):
    """A unit of work: all of it happens, or nothing."""

    receipts: Annotated[list[ReceiptText], Meta(max_length=RECEIPTS_MAX)] = []
    """Messages to acknowledge, of any queues."""
    sends: Annotated[list[PutMessage], Meta(max_length=RECEIPTS_MAX)] = []


class NewSession(Shape):
    """A session to be opened."""

    name: Annotated[str, Meta(max_length=128)] = ""
    """Shown in the failures of messages that the session held."""
    ttl: Annotated[float, Meta(ge=0.1, le=SESSION_SECONDS_MAX)] = 60.0
    """The session ends so many seconds after the last heartbeat."""


class Session(Result, omit_defaults=False):
    """An open session."""

    session: str
    ttl: float


class SessionsQuery(Shape):
    """How many sessions."""

    limit: Limit = 200


class HeldMessages(Result, omit_defaults=False):
    """Messages of a channel that somebody holds."""

    queue: str
    channel: str
    count: int
    since: float
    """When the oldest of them was delivered."""
    until: float
    """When the first of the leases ends."""


class SessionRow(Result, omit_defaults=False):
    """A session or a connection, and what it holds."""

    session: str
    """The id with which `DELETE /v1/sessions/{session}` ends it."""
    name: str
    is_connection: bool
    """Whether it ends with its connection."""
    node: str
    """In a cluster: the node that has its connection."""
    ttl: float | None
    seen_at: float
    """The last sign of life; of a connection: when it was made."""
    held: int
    leases: list[HeldMessages]


class OpenSessions(Result, omit_defaults=False):
    """Who holds messages. Those that hold most come first."""

    sessions: list[SessionRow]
    without_session: list[HeldMessages]
    """Leases of receivers that have no session (SQS, plain HTTP)."""


class EndedSession(Result, omit_defaults=False):
    """How many messages were given back."""

    released: int


# -- records and consumers ---------------------------------------------------------------------------------------------


class Record(Result):
    """A message, read by its offset."""

    offset: int
    id: str
    timestamp: float
    """When the message was first sent."""
    body: str
    encoding: Encoding = "text"
    key: str | None = None
    """The group of the message."""
    attributes: dict[str, AttributeJson] = {}


class Records(Result, omit_defaults=False):
    """Messages in order of their offsets."""

    records: list[Record]
    next_offset: int
    """The offset to continue from."""
    end_offset: int
    """The offset of the next message that will be sent."""


class RecordsQuery(Shape):
    """Which records."""

    offset: Sequence = 0
    max: Annotated[int, Meta(ge=1, le=RECORDS_MAX)] = 1_000
    end: Sequence | None = None
    """Only records before this offset."""
    max_bytes: Annotated[int, Meta(ge=1, le=SEQUENCE_MAX)] | None = None
    """How many bytes of bodies at most. At least one record is returned."""
    headers: bool = False
    """Arrow: add a column with the attributes."""


class ConsumerRecordsQuery(Shape):
    """How many records."""

    max: Annotated[int, Meta(ge=1, le=RECORDS_MAX)] = 1_000
    max_bytes: Annotated[int, Meta(ge=1, le=SEQUENCE_MAX)] | None = None


class ConsumerPosition(Result, omit_defaults=False):
    """The offset of a named consumer."""

    consumer: str
    offset: int
    end_offset: int
    lag: int


class ConsumerList(Result):
    """The named consumers of a queue."""

    consumers: list[ConsumerPosition]


class MoveConsumer(Shape):
    """The new offset of a consumer. Everything before it counts as read."""

    offset: Sequence
    allow_rewind: bool = False


class NamedCounts(Result, omit_defaults=False):
    """A queue's exact counts, with its name."""

    name: str
    stats: QueueCounts


class QueueCountsList(Result, omit_defaults=False):
    """Counts of queues, in the order of their names."""

    queues: list[NamedCounts]
    next: str | None
    """The `after` of the next page. null on the last page."""


class ServerStats(Result, omit_defaults=False):
    """The whole server: totals over all queues that the caller may read."""

    version: str
    queues: int
    messages: int
    bytes: int
    ready: int
    leased: int
    delayed: int
    sent: int
    acked: int
    failed: int
    dead: int
    sessions: int


# -- what people watch -------------------------------------------------------------------------------------------------


class RatesPerSecond(Result, omit_defaults=False):
    """Messages a second since the previous request."""

    sent: float
    delivered: float
    acked: float
    failed: float
    dead: float


class Totals(Result, omit_defaults=False):
    """Totals over all queues that the caller may read."""

    queues: int
    messages: int
    bytes: int
    ready: int
    leased: int
    delayed: int
    sent: int
    acked: int
    failed: int
    dead: int
    """Messages that ever failed for good."""
    quarantined: int
    dead_letters: int
    """Messages that are in dead-letter queues now."""


class Alarm(Result, omit_defaults=False):
    """Something that a person should look at."""

    kind: Literal["damaged", "dead letters", "disk", "lag", "paused"]
    queue: str | None
    text: str


class Disk(Result, omit_defaults=False):
    """The disk that has the data directory."""

    free_bytes: int
    size_bytes: int


class ServerOverview(Result, omit_defaults=False):
    """The server at one moment."""

    version: str
    uptime: float
    totals: Totals
    rates: RatesPerSecond | None
    """null: there was no request for a while. Ask again in a second."""
    alarms: list[Alarm]
    disk: Disk | None
    """Only if the caller may administer a queue, and there is a data directory."""
    memory_bytes: int | None
    """The memory of this process. Only if the caller may administer a queue."""


class OverviewQueuesQuery(Shape):
    """Which queues, and in which order."""

    prefix: Annotated[str, Meta(max_length=128)] = ""
    contains: Annotated[str, Meta(max_length=128)] = ""
    sort: Literal[
        "name", "messages", "bytes", "ready", "leased", "delayed", "dead", "dead_letters", "sent", "acked", "failed"
    ] = "name"
    """`sent`, `acked` and `failed` sort by rate."""
    descending: bool = False
    after: Annotated[int, Meta(ge=0)] = 0
    """How many queues to skip."""
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class QueueRow(Result, omit_defaults=False):
    """A queue in the list."""

    name: str
    fifo: bool
    messages: int
    bytes: int
    ready: int
    leased: int
    delayed: int
    dead: int
    """Messages that ever failed for good."""
    quarantined: int
    oldest_sent_at: float | None
    dead_letters: int
    """Messages that are in its dead-letter queue now, also those of other queues that share it."""
    paused: list[str]
    """Channels that are paused."""
    rates: RatesPerSecond | None
    spark: list[float]
    """Messages sent a second, at the last requests. Empty if there were none."""


class QueueRows(Result, omit_defaults=False):
    """A page of queues."""

    queues: list[QueueRow]
    total: int
    """How many queues match."""
    next: int | None
    """The `after` of the next page. null on the last page."""


class HistoryQuery(Shape):
    """Which history, and how long."""

    queue: Name | None = None
    """null: all queues together."""
    range: Literal["hour", "day", "week", "fortnight"] = "hour"


class QueueHistory(Result, omit_defaults=False):
    """Columns with a value for each time in `at`, the oldest first. null: there is no value for that time."""

    queue: str | None
    range: str
    step: int
    """Seconds from one point to the next."""
    at: list[int]
    sent: list[float | None]
    """Messages a second, as all columns up to `dead`."""
    delivered: list[float | None]
    acked: list[float | None]
    failed: list[float | None]
    dead: list[float | None]
    ready: list[float | None]
    """Numbers of messages, as all columns up to `messages`."""
    leased: list[float | None]
    delayed: list[float | None]
    messages: list[float | None]
    oldest: list[float | None]
    """How old the oldest message is, in seconds."""
    receive_p50: list[float | None]
    """The median of the seconds from send to receive. The next columns have other percentiles, and those to ack."""
    receive_p95: list[float | None]
    receive_p99: list[float | None]
    ack_p50: list[float | None]
    ack_p95: list[float | None]
    ack_p99: list[float | None]


class LiveQuery(Shape):
    """What to watch."""

    queue: Name | None = None
    """Also this queue by itself."""
    watch: list[Annotated[str, Meta(max_length=2_000)]] = []
    """Also the answers of these operations, as they change: paths with their queries, such as `/v1/cluster`."""


class RightsOn(Result, omit_defaults=False):
    """Rights on the queues whose names match one of the patterns."""

    queues: list[str]
    rights: list[Literal["read", "write", "admin"]]


class Me(Result, omit_defaults=False):
    """Who the caller is, and what it may do."""

    name: str
    grants: list[RightsOn]
    needs_credentials: bool
    """false: this server has no credentials."""
    roles: list[Role]
    """The same, as roles."""
    read_only: bool
    """The console cannot change anything."""
    masked: bool
    """Parts of messages may be hidden."""
    history: bool
    """This server keeps rates and depths over time."""
    audit: bool
    """There is an audit log, and the caller may read it, or its lines about some queues."""


class Role(Result, omit_defaults=False):
    """The role of the caller for the queues whose names match one of the patterns."""

    role: Literal["admin", "writer", "reader"]
    """An admin changes queues and messages, a writer sends, a reader looks and receives. An admin may do all three."""
    queues: list[str]


class AuditQuery(Shape):
    """Which lines of the audit log."""

    queue: Name | None = None
    before: Moment | None = None
    """Only lines before this time: the `at` of the last line of the previous page."""
    limit: Limit = 100


class AuditLine(Result, omit_defaults=False):
    """A change, or one that was refused."""

    at: float
    who: str
    peer: str
    """The address that it came from."""
    what: str
    """The operation, as the OpenAPI document names it. Over the websocket: the command."""
    queue: str | None
    scope: dict[str, Any]
    outcome: str
    """`ok`, or the code of the error."""


class AuditLog(Result, omit_defaults=False):
    """Lines of the audit log, the newest first."""

    entries: list[AuditLine]
    next: float | None
    """The `before` of the next page. null on the last page."""


# -- virtual queues ----------------------------------------------------------------------------------------------------


class NoOptions(Shape):
    """No options."""


class Partitions(Result, omit_defaults=False):
    """The partition map. A queue belongs to the partition `(murmur2(name) & 0x7fffffff) % partitions`."""

    version: int
    partitions: int
    owners: list[str]
    """The node of each partition."""
    nodes: dict[str, str]
    """The URL of each node."""


class QueueOnly(Shape):
    """A virtual queue. Each field has two names that mean the same: give one of them, in the body or in the URL."""

    queue: Name | UnsetType = UNSET
    Queue: Name | UnsetType = UNSET
    """As `queue`."""


class QueueAndConsumer(QueueOnly):
    """A consumer of a virtual queue."""

    consumer: Name | UnsetType = UNSET
    Consumer: Name | UnsetType = UNSET
    """As `consumer`."""


class GetRecords(QueueOnly):
    """Records of a virtual queue."""

    consumer: Name | UnsetType | None = UNSET
    Consumer: Name | UnsetType | None = UNSET
    """As `consumer`."""
    offset: Sequence | UnsetType | None = UNSET
    """Without it: the offset of the consumer, or the beginning."""
    Offset: Sequence | UnsetType | None = UNSET
    """As `offset`."""
    max_records: Annotated[int, Meta(ge=1, le=RECORDS_MAX)] | UnsetType = UNSET
    """Default: 1000."""
    MaxRecords: Annotated[int, Meta(ge=1, le=RECORDS_MAX)] | UnsetType = UNSET
    """As `max_records`."""


class ConsumerAck(QueueAndConsumer):
    """A consumer has read everything before an offset."""

    offset: Sequence | UnsetType = UNSET
    Offset: Sequence | UnsetType = UNSET
    """As `offset`."""
    allow_rewind: bool | UnsetType = UNSET
    """Whether the consumer may move backwards. Default: false."""
    AllowRewind: bool | UnsetType = UNSET
    """As `allow_rewind`."""


class AckedConsumer(Result, omit_defaults=False):
    """The consumer's offset now."""

    offset: int


class Publish(QueueOnly, kw_only=True):
    """Messages for a virtual queue, which is created if it does not exist."""

    messages: Annotated[list[NewMessage], Meta(min_length=1)]


class Published(Result, omit_defaults=False):
    """The offsets of the messages, in the order in which they were given."""

    offsets: list[int]


# -- batches, as MessagePack -------------------------------------------------------------------------------------------


class SendBatch(Batch, forbid_unknown_fields=True, kw_only=True):
    """Messages that are sent together. Lists are as long as `bodies`, with nil for a message without a value."""

    bodies: list[bytes]
    attributes: list[dict[str, Any] | None] | None = None
    groups: list[str | None] | None = None
    dedup_ids: list[str | None] | None = None
    priority: int = 0
    delay: float | None = None
    due: float | None = None


class SentBatch(Batch):
    """Sequence numbers: `first` and on, or, if some messages were duplicates, one by one."""

    queue_id: int
    first: int
    count: int
    sequences: list[int] | None = None
    duplicates: list[int] = msgspec.field(default_factory=list)
    """Indexes of the messages that were duplicates."""


class ReceiveBatch(Batch, forbid_unknown_fields=True, kw_only=True):
    """How to receive."""

    max: int = 1_000
    wait: float | None = None
    lease: float | None = None
    channel: str = "main"
    session: str | None = None
    attempt_id: str | None = None


class ReceivedRun(Batch):
    """Messages with consecutive sequence numbers, `first` and on."""

    first: int
    sent_ms: int
    bodies: list[bytes]
    attempts: int | list[int]
    """How often they were delivered: one number for all, or one for each."""
    attributes: list[dict[str, Any] | None] | None = None
    groups: list[str | None] | None = None


class ReceivedBatch(Batch):
    """Leased messages, and what is needed to settle them."""

    queue_id: int
    channel: str
    deadline_ms: int
    runs: list[ReceivedRun]
    spans: list[tuple[int, int, int]]
    """What settles all of them: (first, last, attempt)."""


class SettleBatch(Batch, forbid_unknown_fields=True, kw_only=True):
    """Messages that the caller holds, as spans (first, last, attempt)."""

    queue_id: int
    spans: list[tuple[int, int, int]]
    channel: str = "main"


class ReleaseBatch(SettleBatch, forbid_unknown_fields=True, kw_only=True):
    """Messages to be released."""

    error: str = ""
    delay: float | None = None
    failed: bool = True


class ExtendBatch(SettleBatch, forbid_unknown_fields=True, kw_only=True):
    """Messages whose leases are to be extended."""

    lease: float


class SettledBatch(Batch):
    """How many were settled, and which were not: (first, last, code, detail)."""

    settled: int
    refused: list[tuple[int, int, str, str]]
