"""The bulk operations, under `/v1/bulk`: for readers by offset and writers of whole batches (the Spark connector).

    POST   queues                    names of the queues that the caller may read
    POST   offsets                   where their messages stand
    POST   channels                  create a channel at an offset
    POST   read                      messages by offset, as an Arrow stream
    POST   chunks                    which chunks hold them, for who reads these from Kafka
    POST   ack                       everything before an offset is done for a channel
    POST   send                      send a piece at once
    PUT    staging/{token}/{piece}   keep a piece for later
    POST   publish                   send staged pieces in one commit, once
    DELETE staging/{token}           forget what was staged
    POST   take, settle              lease messages as an Arrow stream; acknowledge them or give them back. Who has to
                                     ask again, for want of an answer, sends the same `idempotency-key` both times

`read` gives what `GET /v1/queues/{queue}/records` gives as Arrow, and is made for volume: its length is known, and the
messages go from the store's memory to the socket without another copy.

Rights: read for all that reads (its own channel included), write for all that sends. What is staged, and the marks of
what was published, belong to the caller: another one may use the same names, and has nothing to do with it.

They are operations as REST's are, and not in its document: the connector's wire is no promise to others.

What bulk requests say, and what they are answered: JSON bodies, as msgspec structs.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.core.commands import (
    Ack,
    AckUpTo,
    ChunkList,
    CommitWork,
    CreateChannel,
    Delivery,
    DescribeQueue,
    FindOffsets,
    GiveBack,
    LastMark,
    ListChunks,
    Offsets,
    Once,
    QueueInfo,
    ReadRecords,
    Receive,
    Records,
    Release,
    Send,
    Settled,
    Span,
)
from penstock.core.errors import AccessDenied, BatchTooLarge, InvalidName, InvalidRequest, QueueNotFound
from penstock.core.handlers.once import Marks
from penstock.core.queues.origin import Origin
from penstock.core.queues.partition import PARTITION_SHIFT, SHARD_SHIFT
from penstock.core.storage.chunk import Chunk
from penstock.protocols.bulk.publishing import FindId, Publish, put_ids
from penstock.protocols.bulk.staging import (
    DIRECTORY_MODE,
    PIECE_BYTES_MAX,
    STAGED_BYTES_MAX,
    PieceNotFound,
    Staging,
    remove,
)
from penstock.protocols.http import Headers
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.operations import ARROW, JSON, Blocks, Reply, Resource, operation
from penstock.protocols.rest.problems import RestError
from penstock.protocols.rest.queues import page_of_names
from penstock.protocols.rest.shapes import QueuesQuery
from penstock.server.auth import Principal, is_owned, owned
from penstock.server.engines import ENGINES, MEMORY
from penstock.server.node import Services
from penstock.server.shards import Shards
from penstock.wire.pieces import decode_piece, send_of

QUEUES_MAX = 10_000
PIECES_MAX = 20_000
READ_MAX = 100_000
CHUNKS_MAX = 10_000
TAKE_MAX = 100_000
PARTITIONS_MAX = 1_024

Offset = int | Annotated[list[int], msgspec.Meta(min_length=1, max_length=PARTITIONS_MAX)]
"""One offset; or several of a queue with several partitions, of which each says which it is in."""
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
QueueNames = Annotated[list[str], msgspec.Meta(max_length=QUEUES_MAX)]


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    """A body with nothing in it that is not known."""


class QueuesRequest(_Request):
    """Which queues may the caller read?"""

    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX)] = 1_000


class QueuesReply(msgspec.Struct):
    """Names in order."""

    queues: list[str]
    last: str
    """Where to go on; empty when that was all."""


class OffsetsRequest(_Request):
    """Where do the messages of these queues stand? In all their partitions, or in those of the offsets in `after`."""

    queues: QueueNames
    times_ms: Annotated[list[int], msgspec.Meta(max_length=100)] = []
    after: dict[str, Offset] = {}
    bytes_max: dict[str, int] = {}
    """For each partition of a queue."""


class OffsetsReply(msgspec.Struct):
    """The queues that are there, in the order of the request and of their partitions, and those that are not."""

    offsets: list[Offsets]
    missing: list[str]
    has_kafka_log: bool = True
    """Whether `chunks` may tell where they are in Kafka."""


class ReadRequest(_Request):
    """Messages of a queue from an offset up to, not including, an end."""

    queue: str
    offset: int
    end: int
    limit: Annotated[int, msgspec.Meta(ge=1, le=READ_MAX)] = READ_MAX
    bytes_max: Annotated[int, msgspec.Meta(ge=1)] | None = None
    headers: bool = False
    columns: tuple[str, ...] | None = None
    """Which columns of `wire/arrow.py`; None: those that every message has, and the headers if `headers` says so."""


class ChunksRequest(_Request):
    """Which chunks hold the messages of a queue from an offset up to, not including, an end?"""

    queue: str
    offset: int
    end: int
    limit: Annotated[int, msgspec.Meta(ge=1, le=CHUNKS_MAX)] = CHUNKS_MAX


class KafkaLog(msgspec.Struct):
    """Where the chunks of a queue are in Kafka."""

    bootstrap: str
    topic: str
    partition: int
    is_open: bool
    """Whether the server itself needs no password and no certificate there."""


class ChunksReply(msgspec.Struct):
    """The chunks' keys (base64), by base, and where they are; nothing when the server's engine is not Kafka."""

    kafka: KafkaLog | None
    keys: list[bytes]
    next_offset: int
    """From where to go on, after as many as were asked for; fewer are all."""


class ChannelRequest(_Request):
    """Create a channel at an offset; one that is there stays as it is."""

    queue: str
    channel: str
    offset: Offset


class AckRequest(_Request):
    """Everything before these offsets is done for a channel."""

    channel: str
    offsets: dict[str, Offset]


class AckReply(msgspec.Struct):
    """How many messages that were, for each queue."""

    acked: dict[str, int]


class PublishRequest(_Request):
    """Send staged pieces in one commit, once."""

    token: str
    pieces: Annotated[list[str], msgspec.Meta(max_length=PIECES_MAX)]
    name: str
    number: Annotated[int, msgspec.Meta(ge=0)]


class PublishReply(msgspec.Struct):
    """How many messages were sent; none if that work was done before."""

    messages: int
    already_done: bool = False


class TakeRequest(_Request):
    """Lease messages of a channel, to be settled by span."""

    queue: str
    channel: str = "main"
    limit: Annotated[int, msgspec.Meta(ge=1, le=TAKE_MAX)] = 10_000
    lease_ms: Annotated[int, msgspec.Meta(ge=1)] = 3_600_000
    headers: bool = False
    columns: tuple[str, ...] | None = None


class SettleRequest(_Request):
    """Acknowledge what was taken, or give it back."""

    queue: str
    spans: list[tuple[Number, Number, Number]]
    """First sequence number, last, attempt."""
    channel: str = "main"
    done: bool = True


class SettleReply(msgspec.Struct):
    """How many messages were settled; the others were not the caller's any more."""

    settled: int


# Takes that may come twice. Who got no answer asks again, and has no names for the messages that were in it.
#
# So a take has a name. When the same name comes again, the messages of the first time go back before any are taken:
# they would be leased to nobody, for as long as leases last. Only the server that was asked knows the name, until it
# stops.


NAMES_MAX = 1_000


class _Take:
    """One take, and how to undo it when it is over."""

    __slots__ = ("is_over", "undo")

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.undo: GiveBack | None = None


class Takes:
    """The last takes of a server, by name."""

    def __init__(self, shard: Shards) -> None:
        self._shard = shard
        self._takes: dict[str, _Take] = {}

    async def receive(self, name: str, command: Receive) -> Delivery:
        """Lease messages; those that were leased under this name before go back first."""
        before = self._takes.pop(name, None)
        self._takes[name] = take = _Take()
        if len(self._takes) > NAMES_MAX:
            del self._takes[next(iter(self._takes))]
        try:
            if before is not None:
                await before.is_over.wait()
                take.undo = before.undo  # until it is done: if it fails, the next who asks again has it done
            if take.undo is not None and take.undo.spans:
                await self._shard.call(take.undo)
            take.undo = None
            delivery: Delivery = await self._shard.call(command)
            take.undo = GiveBack(queue=delivery.queue, channel=delivery.channel, spans=delivery.spans())
            return delivery
        finally:
            take.is_over.set()


STAGING_NAME = "staging"
CLEAN_EVERY_S = 600.0
JSON_BYTES_MAX = 8 * 1024 * 1024
_NEXT_OFFSET = "penstock-next-offset"
_OFFERS = (ARROW, JSON)
"""Of what is answered with Arrow. JSON is there for clients that accept what most answers are."""


class Bulk(Resource):
    """One method an operation."""

    tag = "bulk"
    protocol = "bulk"

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._staging: Staging | None = None
        self._opening = asyncio.Lock()
        self._cleaned_s = time.monotonic()
        self._removing: set[asyncio.Future[None]] = set()
        self._publishing: dict[tuple[str, int], asyncio.Task[int | None]] = {}
        """By mark: publishes may take long, and a caller may have given up waiting for the answer."""
        self._takes = Takes(services.shard)

    # -- reading --

    @operation("POST", "/v1/bulk/queues", body_bytes_max=JSON_BYTES_MAX)
    async def queues(self, caller: Caller, body: QueuesRequest) -> QueuesReply:
        """Names of the queues that the caller may read, a page at a time."""
        query = QueuesQuery(after=body.after, limit=body.limit)
        names, last = await page_of_names(self.shard, query, lambda name: caller.principal.may(name, DescribeQueue))
        return QueuesReply(names, last or "")

    @operation("POST", "/v1/bulk/offsets", body_bytes_max=JSON_BYTES_MAX)
    async def offsets(self, caller: Caller, body: OffsetsRequest) -> OffsetsReply:
        """Where the messages of some queues stand."""
        reply = OffsetsReply([], [], ENGINES[self.services.settings.server.engine].has_kafka_log)
        for name in dict.fromkeys(body.queues):
            caller.need(name, FindOffsets)
            try:
                reply.offsets += await self._offsets_of(name, body)
            except QueueNotFound:
                reply.missing.append(name)
        return reply

    async def _offsets_of(self, name: str, body: OffsetsRequest) -> list[Offsets]:
        """Where the messages of a queue stand: in the partitions that are asked for, or in all."""

        def find(after: int) -> Awaitable[Offsets]:
            bytes_max = body.bytes_max.get(name)
            command = FindOffsets(queue=name, times_ms=tuple(body.times_ms), after=after, bytes_max=bytes_max)
            return self.shard.call(command)

        after = _offsets(body.after.get(name, 0))
        first = await find(after[0])
        if len(after) > first.partitions:
            raise InvalidRequest(
                f"queue {name!r} has {first.partitions} partitions, and 'after' has {len(after)} offsets of it"
            )
        if name in body.after:
            return [first, *await asyncio.gather(*map(find, after[1:]))]
        rest = [find(partition << PARTITION_SHIFT) for partition in range(1, first.partitions)]
        return [first, *await asyncio.gather(*rest)]

    @operation("POST", "/v1/bulk/read", offers=_OFFERS, body_bytes_max=JSON_BYTES_MAX, reveals=True)
    async def read(self, caller: Caller, body: ReadRequest) -> Reply:
        """Messages by offset, as an Arrow stream. Nothing is leased, and nothing changes."""
        caller.need(body.queue, ReadRecords)
        command = ReadRecords(queue=body.queue, offset=body.offset, limit=body.limit, end=body.end)
        bytes_max = self.settings.response_bytes_max
        command.bytes_max = min(bytes_max, body.bytes_max or bytes_max)
        await caller.room_for(self.shard, body.queue, body.limit, self.services.settings, command.bytes_max)
        records: Records = await self.shard.call(command)
        runs = [(run.chunk, run.start, run.stop) for run in records.runs]
        parts = await asyncio.to_thread(_arrow_parts, runs, _columns(body))
        return _arrow(parts, ((_NEXT_OFFSET, str(records.next_offset)),))

    @operation("POST", "/v1/bulk/chunks", body_bytes_max=JSON_BYTES_MAX)
    async def chunks(self, caller: Caller, body: ChunksRequest) -> ChunksReply:
        """Which chunks hold a range of a queue, and where in Kafka they are."""
        caller.need(body.queue, ListChunks)
        settings = self.services.settings
        if not ENGINES[settings.server.engine].has_kafka_log:
            return ChunksReply(None, [], body.offset)
        command = ListChunks(queue=body.queue, offset=body.offset, end=body.end, limit=body.limit)
        found: ChunkList = await self.shard.call(command)
        kafka = settings.kafka
        log = KafkaLog(
            bootstrap=kafka.bootstrap,
            topic=f"{settings.cluster.topic_prefix}.data",
            partition=found.queue_id >> SHARD_SHIFT if found.shard is None else found.shard,
            is_open=not (kafka.properties or kafka.properties_env or kafka.properties_file),
        )
        return ChunksReply(log, found.keys, found.next_offset)

    @operation("POST", "/v1/bulk/channels", body_bytes_max=JSON_BYTES_MAX, is_change=True)
    async def channels(self, caller: Caller, body: ChannelRequest) -> None:
        """Create a channel at an offset."""
        caller.need(body.queue, CreateChannel)
        command = CreateChannel(queue=body.queue, channel=body.channel)
        match _offsets(body.offset):
            case [offset]:
                command.offset = offset
            case offsets:
                command.offsets = tuple(offsets)
        await self.shard.call(command)

    @operation("POST", "/v1/bulk/ack", body_bytes_max=JSON_BYTES_MAX)
    async def ack(self, caller: Caller, body: AckRequest) -> AckReply:
        """Everything before some offsets is done for a channel."""
        acked = {}
        for queue, given in body.offsets.items():
            caller.need(queue, AckUpTo)
            commands = [AckUpTo(queue=queue, channel=body.channel, offset=offset) for offset in _offsets(given)]
            acked[queue] = sum(await asyncio.gather(*map(self.shard.call, commands)))
        return AckReply(acked)

    @operation("POST", "/v1/bulk/take", offers=_OFFERS, body_bytes_max=JSON_BYTES_MAX, reveals=True)
    async def take(self, caller: Caller, body: TakeRequest) -> Reply:
        """Lease messages; they come as an Arrow stream, and their spans as its metadata.

        Fewer than were asked for, if more of average size are more than a response may hold.
        """
        caller.need(body.queue, Receive)
        _need_arrow()  # before anything is leased that could not leave
        limit = min(body.limit, await self._messages_max(body.queue))
        await caller.room_for(self.shard, body.queue, limit, self.services.settings, self.settings.response_bytes_max)
        command = Receive(queue=body.queue, channel=body.channel, limit=limit, wait_ms=0, lease_ms=body.lease_ms)
        name = caller.request_name
        delivery: Delivery = await (self.shard.call(command) if name is None else self._takes.receive(name, command))
        runs = [(run.chunk, run.start, run.stop) for run in delivery.runs]
        metadata = {"penstock-spans": msgspec.json.encode(delivery.spans())}
        return _arrow(_arrow_parts(runs, _columns(body), metadata))

    async def _messages_max(self, name: str) -> int:
        """How many messages of a queue, of average size, one response may hold."""
        await self.shard.know(name)
        queue = self.shard.identity.queues.get(name)
        if queue is None or not queue.size:
            return TAKE_MAX
        return max(1, self.settings.response_bytes_max * queue.messages // queue.size)

    @operation("POST", "/v1/bulk/settle", body_bytes_max=JSON_BYTES_MAX)
    async def settle(self, caller: Caller, body: SettleRequest) -> SettleReply:
        """Acknowledge what was taken, or give it back. Under a key, once: who asks again is told the same again."""
        caller.need(body.queue, Ack)
        spans = [Span(*span) for span in body.spans]
        command: Ack | Release = Ack(queue=body.queue, channel=body.channel, spans=spans)
        if not body.done:
            command = Release(queue=body.queue, channel=body.channel, spans=spans, error="not read to the end")
        if caller.request_name is not None:
            command.once = Once(caller.request_name, 1, 1)
        settled: Settled = await self.shard.call(command)
        return SettleReply(settled.count)

    # -- writing --

    @operation("POST", "/v1/bulk/send", body_bytes_max=PIECE_BYTES_MAX)
    async def send(self, caller: Caller, body: bytes) -> PublishReply:
        """Send a piece at once."""
        sends = _sends(body, caller)
        find_id = self._find_id(caller.principal)
        for each in sends:
            await put_ids(each, find_id)
        if sends:
            await self.shard.call(CommitWork(acks=[], sends=sends))
        return PublishReply(sum(len(each.bodies) for each in sends))

    @operation("PUT", "/v1/bulk/staging/{token}/{piece}", body_bytes_max=PIECE_BYTES_MAX)
    async def stage(self, caller: Caller, token: str, piece: str, body: Blocks) -> None:
        """Keep a piece for later. What is in it is looked at now, so that its writer learns what is wrong."""
        _need_some_write(caller.principal)
        staging = await self._open_staging()
        begun = await asyncio.to_thread(staging.begin, owned(caller.principal, token), piece)
        try:
            async for parts in body:
                await asyncio.to_thread(begun.write, parts)
            sends = await asyncio.to_thread(lambda: _sends(begun.data(), caller, sizes_only=True))
            if not sends:
                raise InvalidRequest(f"piece {piece!r} is empty: a piece has one section at least")
            await self.shard.call(CommitWork(acks=[], sends=sends, check_only=True))
        except BaseException:
            begun.discard()
            raise
        begun.keep()

    @operation("POST", "/v1/bulk/publish", body_bytes_max=JSON_BYTES_MAX)
    async def publish(self, caller: Caller, body: PublishRequest) -> PublishReply:
        """Send staged pieces, all of them or none, unless that was done before."""
        principal = caller.principal
        _need_some_write(principal)  # without pieces, it would still set the mark
        Marks.check(body.name, body.number)
        staging, token = await self._open_staging(), owned(principal, body.token)
        if await self._was_published(body, caller.principal):
            await asyncio.to_thread(staging.drop, token)
            return PublishReply(0, already_done=True)
        try:
            found = await asyncio.to_thread(_staged, staging, _kept_names(principal, body.token), body.pieces)
            messages = await self._published(body, caller, staging, found)
        except PieceNotFound:
            if await self._was_published(
                body, caller.principal
            ):  # just now: asked before, over a connection that broke
                return PublishReply(0, already_done=True)
            raise
        await self._drop_soon(staging, token)
        return PublishReply(0, already_done=True) if messages is None else PublishReply(messages)

    async def _published(
        self, body: PublishRequest, caller: Caller, staging: Staging, found: dict[str, tuple[str, int]]
    ) -> int | None:
        """How many messages were sent; None if they were before. Who asks again meanwhile waits for the same answer."""
        nbytes = sum(found[piece][1] for piece in body.pieces)
        if nbytes > STAGED_BYTES_MAX:  # some of them more than once
            raise BatchTooLarge(f"the pieces have {nbytes} bytes together: publish at most {STAGED_BYTES_MAX} at once")
        mark = (owned(caller.principal, body.name), body.number)
        running = self._publishing.get(mark)
        if running is None:
            publish = Publish(
                self.shard,
                mark,
                body.pieces,
                nbytes,
                lambda piece: _sends(staging.open(found[piece][0], [piece])[0], caller),
                self._find_id(caller.principal),
                self.settings.publish_bytes_max,
            )
            running = self._publishing[mark] = asyncio.create_task(publish.run())
            running.add_done_callback(lambda _: self._publishing.pop(mark, None))
        return await asyncio.shield(running)

    def _find_id(self, principal: Principal) -> FindId:
        known: dict[str, int | None] = {}

        async def find(queue: str, sequence: int) -> str | None:
            if queue not in known:
                known[queue] = None
                if principal.may(queue, DescribeQueue):
                    with contextlib.suppress(QueueNotFound, InvalidName):
                        info: QueueInfo = await self.shard.call(DescribeQueue(name=queue))
                        known[queue] = info.queue_id
            queue_id = known[queue]
            return None if queue_id is None else self.shard.identity.message_id(queue_id, sequence)

        return find

    async def _was_published(self, body: PublishRequest, principal: Principal) -> bool:
        """By this caller; or before marks had owners."""
        for name in _kept_names(principal, body.name):
            if await self.shard.call(LastMark(name=name)) >= body.number:
                return True
        return False

    async def _drop_soon(self, staging: Staging, token: str) -> None:
        """Nobody waits until the files of what was sent are removed."""
        dropped = await asyncio.to_thread(staging.set_aside, token)
        removing = asyncio.get_running_loop().run_in_executor(None, remove, dropped)
        self._removing.add(removing)
        removing.add_done_callback(self._removing.discard)

    @operation("DELETE", "/v1/bulk/staging/{token}")
    async def abort(self, caller: Caller, token: str) -> None:
        """Forget what was staged."""
        staging = await self._open_staging()
        await asyncio.to_thread(staging.drop, owned(caller.principal, token))

    async def _open_staging(self) -> Staging:
        async with self._opening:
            if self._staging is None:
                self._staging = await asyncio.to_thread(self._new_staging)
        if time.monotonic() - self._cleaned_s > CLEAN_EVERY_S:
            self._cleaned_s = time.monotonic()
            await asyncio.to_thread(self._staging.drop_old)
        return self._staging

    def _new_staging(self) -> Staging:
        server = self.services.settings.server
        data = server.data
        if server.engine == "zookeeper":  # nothing else makes it
            Path(data).mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix="penstock-")) if data == MEMORY else Path(data)
        return Staging(root / STAGING_NAME)


# -- messages ----------------------------------------------------------------------------------------------------------


def _kept_names(principal: Principal, name: str) -> list[str]:
    """How what a caller names may be kept: as its own; or without an owner, from before names had one.

    Nothing is kept without an owner any more where there are credentials. A name that looks like one with an owner is
    another caller's, if anybody's.
    """
    own = owned(principal, name)
    return [own] if own == name or is_owned(name) else [own, name]


def _need_some_write(principal: Principal) -> None:
    if not principal.has("write"):
        raise AccessDenied(f"{principal.name} needs the right to write at least one queue")


def _staged(staging: Staging, tokens: list[str], pieces: list[str]) -> dict[str, tuple[str, int]]:
    """For each piece, the first token that has it, and its bytes."""
    return {piece: _staged_piece(staging, tokens, piece) for piece in dict.fromkeys(pieces)}


def _staged_piece(staging: Staging, tokens: list[str], piece: str) -> tuple[str, int]:
    *earlier, last = tokens
    for token in earlier:
        with contextlib.suppress(PieceNotFound):
            return token, staging.size(token, piece)
    return last, staging.size(last, piece)


def _offsets(given: Offset) -> list[int]:
    return [given] if isinstance(given, int) else given


def _sends(piece: bytes | memoryview, caller: Caller, *, sizes_only: bool = False) -> list[Send]:
    sends = []
    for target, chunk in decode_piece(piece):
        caller.need(target.queue, Send)
        send = send_of(target, chunk, sizes_only=sizes_only)
        for queue in {Origin.decode(each).queue for each in send.origins or () if each is not None}:
            if not caller.principal.may(queue, Send, Receive):  # a redrive would send it there
                raise AccessDenied(
                    f"a message for queue {target.queue!r} says it comes from queue {queue[:100]!r}: "
                    f"{caller.principal.name!r} may neither write nor read that one"
                )
        sends.append(send)
    return sends


def _need_arrow() -> None:
    try:
        import penstock.wire.arrow  # noqa: F401
    except ImportError:
        raise RestError(406, "not_acceptable", "the server has no pyarrow: install penstock-mq[arrow] there") from None


def _columns(body: ReadRequest | TakeRequest) -> tuple[str, ...]:
    """The columns that are asked for: by name, or all, with headers or without."""
    _need_arrow()
    from penstock.wire.arrow import BASE_COLUMNS, COLUMNS, WITH_HEADERS

    if body.columns is None:
        return WITH_HEADERS if body.headers else BASE_COLUMNS
    unknown = [name for name in body.columns if name not in COLUMNS]
    if unknown or not body.columns:
        raise InvalidRequest(f"columns are {', '.join(COLUMNS)}, at least one of them: {', '.join(unknown)!r} is none")
    return tuple(dict.fromkeys(body.columns))


def _arrow_parts(
    runs: Iterable[tuple[Chunk, int, int]], columns: tuple[str, ...], metadata: dict[str, bytes] | None = None
) -> list[bytes | memoryview]:
    from penstock.wire.arrow import record_batch, record_schema, stream_parts

    schema = record_schema(columns).with_metadata(metadata)
    batches = (record_batch(*run, columns) for run in runs)
    return stream_parts(schema, batches)


def _arrow(parts: list[bytes | memoryview], headers: Headers = ()) -> Reply:
    """The messages go out as they are in the store's memory."""
    return Reply(ARROW, parts, headers, nbytes=sum(map(len, parts)))
