"""The bulk endpoints, under `/v1/bulk`: for readers by offset and writers of whole batches (the Spark connector).

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
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive as Receiving
from starlette.types import Scope
from starlette.types import Send as Sending

from penstock.core.chunk import Chunk, PackedBodies
from penstock.core.commands import (
    Ack,
    AckUpTo,
    AlreadyDone,
    ChunkList,
    Command,
    CommitWork,
    CreateChannel,
    Delivery,
    DescribeQueue,
    FindOffsets,
    LastMark,
    ListChunks,
    Offsets,
    Once,
    ReadRecords,
    Receive,
    Records,
    Release,
    Send,
    Settled,
    Span,
)
from penstock.core.config import BATCH_BYTES_MAX
from penstock.core.errors import BatchTooLarge, MessageTooLarge, PenstockError, QueueNotFound
from penstock.core.marks import Marks
from penstock.core.partition import PARTITION_SHIFT, SHARD_SHIFT
from penstock.protocols.bulk.requests import (
    TAKE_MAX,
    AckReply,
    AckRequest,
    ChannelRequest,
    ChunksReply,
    ChunksRequest,
    KafkaLog,
    Offset,
    OffsetsReply,
    OffsetsRequest,
    PublishReply,
    PublishRequest,
    QueuesReply,
    QueuesRequest,
    ReadRequest,
    SettleReply,
    SettleRequest,
    TakeRequest,
)
from penstock.protocols.bulk.staging import PIECE_BYTES_MAX, PieceNotFound, Staging, remove
from penstock.protocols.bulk.takes import Takes, spans_of
from penstock.protocols.rest.body import BodyLeft, no_room, paced, read_body
from penstock.protocols.rest.guard import Guard
from penstock.protocols.rest.naming import KEY, request_name
from penstock.protocols.rest.problems import CONTENT_TYPE, RestError, code_of, headers_of, invalid, problem_of
from penstock.protocols.rest.queues import page_of_names
from penstock.protocols.rest.shapes import QueuesQuery
from penstock.server.auth import Principal, is_owned, owned
from penstock.server.budget import NoRoom, Share, asked_bytes
from penstock.server.engines import ENGINES, MEMORY
from penstock.server.node import Services
from penstock.wire.pieces import decode_piece, send_of

PROTOCOL = "bulk"
STAGING_NAME = "staging"
CLEAN_EVERY_S = 600.0
JSON_BYTES_MAX = 8 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
ARROW = "application/vnd.apache.arrow.stream"
NEXT_OFFSET = "penstock-next-offset"
_CLIENT_LEFT = 499
"""For the log: the client went while it sent its request, and nobody hears an answer."""

_SHARE, _BODY_TIMEOUT_S = "penstock.share", "penstock.body_timeout_s"
"""Where a request's scope has what its body, and its answer, hold of the budget; and the time for the body."""

Body = TypeVar("Body", bound=msgspec.Struct)
Action = Callable[[Request, Principal], Awaitable[msgspec.Struct | Response | None]]


def routes(services: Services) -> list[BaseRoute]:
    """What REST's port serves of this protocol."""
    return Bulk(services).routes()


class Bulk:
    """One method an endpoint."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._shard = services.shard
        self._guard = Guard(services)
        self._staging: Staging | None = None
        self._opening = asyncio.Lock()
        self._cleaned_s = time.monotonic()
        self._removing: set[asyncio.Future[None]] = set()
        self._takes = Takes(services.shard)

    def routes(self) -> list[BaseRoute]:
        """Where each method is found."""
        actions: list[tuple[str, str, Action]] = [
            ("POST", "queues", self.queues),
            ("POST", "offsets", self.offsets),
            ("POST", "channels", self.channels),
            ("POST", "read", self.read),
            ("POST", "chunks", self.chunks),
            ("POST", "ack", self.ack),
            ("POST", "send", self.send),
            ("PUT", "staging/{token}/{piece}", self.stage),
            ("POST", "publish", self.publish),
            ("DELETE", "staging/{token}", self.abort),
            ("POST", "take", self.take),
            ("POST", "settle", self.settle),
        ]
        return [Route(f"/v1/bulk/{path}", self._guarded(action), methods=[verb]) for verb, path, action in actions]

    def _guarded(self, action: Action) -> Callable[[Request], Awaitable[Response]]:
        name = getattr(action, "__name__", "unknown")

        async def handle(request: Request) -> Response:
            started_s = time.perf_counter()
            principal, outcome = None, "ok"
            share = request.scope[_SHARE] = self._services.budget.share()
            request.scope[_BODY_TIMEOUT_S] = self._services.settings.http.body_timeout_s
            response: Response | None = None
            try:
                if self._services.is_stopping:
                    raise RestError(503, "stopping", "the server is stopping", ((b"retry-after", b"1"),))
                principal = self._guard.admit(request.headers, request.client.host if request.client else "")
                response = _answer(await action(request, principal))
            except PenstockError as error:
                response, outcome = _problem(error), code_of(error)
            except (ClientDisconnect, BodyLeft):
                response, outcome = Response(status_code=_CLIENT_LEFT), "client_left"
            finally:
                if not isinstance(response, _Parts):  # which is held until it is sent
                    share.close()
            self._note(request, response.status_code, time.perf_counter() - started_s, name, principal, outcome)
            return response

        return handle

    def _note(
        self, request: Request, status: int, seconds: float, name: str, principal: Principal | None, outcome: str
    ) -> None:
        self._services.meter.note(PROTOCOL, name, outcome, seconds)
        if self._services.request_log.wants(status):
            self._services.request_log.note(
                PROTOCOL,
                status,
                seconds,
                peer=request.client.host if request.client else "",
                principal="" if principal is None else principal.name,
                action=name,
                outcome=outcome,
            )

    # -- reading --

    async def queues(self, request: Request, principal: Principal) -> QueuesReply:
        """Names of the queues that the caller may read, a page at a time."""
        asked = await _body(request, QueuesRequest)
        query = QueuesQuery(after=asked.after, limit=asked.limit)
        names, last = await page_of_names(self._shard, query, lambda name: principal.may(name, DescribeQueue))
        return QueuesReply(names, last or "")

    async def offsets(self, request: Request, principal: Principal) -> OffsetsReply:
        """Where the messages of some queues stand."""
        asked = await _body(request, OffsetsRequest)
        reply = OffsetsReply([], [])
        for name in asked.queues:
            _need(principal, name, FindOffsets)
            try:
                reply.offsets += await self._offsets_of(name, asked)
            except QueueNotFound:
                reply.missing.append(name)
        return reply

    async def _offsets_of(self, name: str, asked: OffsetsRequest) -> list[Offsets]:
        """Where the messages of a queue stand: in the partitions that are asked for, or in all."""

        def find(after: int) -> Awaitable[Offsets]:
            bytes_max = asked.bytes_max.get(name)
            command = FindOffsets(queue=name, times_ms=tuple(asked.times_ms), after=after, bytes_max=bytes_max)
            return self._shard.call(command)

        if name in asked.after:
            return await asyncio.gather(*map(find, _offsets(asked.after[name])))
        first = await find(0)
        rest = [find(partition << PARTITION_SHIFT) for partition in range(1, first.partitions)]
        return [first, *await asyncio.gather(*rest)]

    async def read(self, request: Request, principal: Principal) -> Response:
        """Messages by offset, as an Arrow stream. Nothing is leased, and nothing changes."""
        asked = await _body(request, ReadRequest)
        _need(principal, asked.queue, ReadRecords)
        command = ReadRecords(queue=asked.queue, offset=asked.offset, limit=asked.limit, end=asked.end)
        bytes_max = self._services.settings.rest.response_bytes_max
        command.bytes_max = min(bytes_max, asked.bytes_max or bytes_max)
        await self._room_for(request, asked.queue, asked.limit, command.bytes_max)
        records: Records = await self._shard.call(command)
        runs = [(run.chunk, run.start, run.stop) for run in records.runs]
        parts = await asyncio.to_thread(_arrow_parts, runs, include_headers=asked.headers)
        return _Parts(parts, request.scope[_SHARE], {NEXT_OFFSET: str(records.next_offset)})

    async def chunks(self, request: Request, principal: Principal) -> ChunksReply:
        """Which chunks hold a range of a queue, and where in Kafka they are."""
        asked = await _body(request, ChunksRequest)
        _need(principal, asked.queue, ListChunks)
        settings = self._services.settings
        if not ENGINES[settings.server.engine].has_kafka_log:
            return ChunksReply(None, [], asked.offset)
        command = ListChunks(queue=asked.queue, offset=asked.offset, end=asked.end, limit=asked.limit)
        found: ChunkList = await self._shard.call(command)
        kafka = settings.kafka
        log = KafkaLog(
            bootstrap=kafka.bootstrap,
            topic=f"{settings.cluster.topic_prefix}.data",
            partition=found.queue_id >> SHARD_SHIFT if found.shard is None else found.shard,
            is_open=not (kafka.properties or kafka.properties_env or kafka.properties_file),
        )
        return ChunksReply(log, found.keys, found.next_offset)

    async def channels(self, request: Request, principal: Principal) -> None:
        """Create a channel at an offset."""
        asked = await _body(request, ChannelRequest)
        _need(principal, asked.queue, CreateChannel)
        command = CreateChannel(queue=asked.queue, channel=asked.channel)
        match _offsets(asked.offset):
            case [offset]:
                command.offset = offset
            case offsets:
                command.offsets = tuple(offsets)
        await self._shard.call(command)

    async def ack(self, request: Request, principal: Principal) -> AckReply:
        """Everything before some offsets is done for a channel."""
        asked = await _body(request, AckRequest)
        acked = {}
        for queue, given in asked.offsets.items():
            _need(principal, queue, AckUpTo)
            commands = [AckUpTo(queue=queue, channel=asked.channel, offset=offset) for offset in _offsets(given)]
            acked[queue] = sum(await asyncio.gather(*map(self._shard.call, commands)))
        return AckReply(acked)

    async def take(self, request: Request, principal: Principal) -> Response:
        """Lease messages; they come as an Arrow stream, and their spans as its metadata.

        Fewer than were asked for, if more of average size are more than a response may hold.
        """
        asked = await _body(request, TakeRequest)
        _need(principal, asked.queue, Receive)
        _need_arrow()  # before anything is leased that could not leave
        limit = min(asked.limit, await self._messages_max(asked.queue))
        await self._room_for(request, asked.queue, limit, self._services.settings.rest.response_bytes_max)
        command = Receive(queue=asked.queue, channel=asked.channel, limit=limit, wait_ms=0, lease_ms=asked.lease_ms)
        name = request_name(request.headers.get(KEY), principal, b"take", msgspec.json.encode(asked))
        delivery: Delivery = await (self._shard.call(command) if name is None else self._takes.receive(name, command))
        runs = [(run.chunk, run.start, run.stop) for run in delivery.runs]
        metadata = {"penstock-spans": msgspec.json.encode(spans_of(delivery))}
        return _Parts(_arrow_parts(runs, include_headers=asked.headers, metadata=metadata), request.scope[_SHARE])

    async def _room_for(self, request: Request, queue: str, count: int, bytes_max: int) -> None:
        """Wait until there is room for an answer."""
        share: Share = request.scope[_SHARE]
        nbytes = asked_bytes(self._shard.identity.queues.get(queue), count, bytes_max)
        try:
            await share.claimed(nbytes)
        except NoRoom:
            raise no_room() from None

    async def _messages_max(self, name: str) -> int:
        """How many messages of a queue, of average size, one response may hold."""
        await self._shard.know(name)
        queue = self._shard.identity.queues.get(name)
        if queue is None or not queue.size:
            return TAKE_MAX
        return max(1, self._services.settings.rest.response_bytes_max * queue.messages // queue.size)

    async def settle(self, request: Request, principal: Principal) -> SettleReply:
        """Acknowledge what was taken, or give it back. Under a key, once: who asks again is told the same again."""
        asked = await _body(request, SettleRequest)
        _need(principal, asked.queue, Ack)
        spans = [Span(*span) for span in asked.spans]
        command: Ack | Release = Ack(queue=asked.queue, channel=asked.channel, spans=spans)
        if not asked.done:
            command = Release(queue=asked.queue, channel=asked.channel, spans=spans, error="not read to the end")
        name = request_name(request.headers.get(KEY), principal, b"settle", msgspec.json.encode(asked))
        if name is not None:
            command.once = Once(name, 1, 1)
        settled: Settled = await self._shard.call(command)
        return SettleReply(settled.count)

    # -- writing --

    async def send(self, request: Request, principal: Principal) -> PublishReply:
        """Send a piece at once."""
        sends = _sends(await _read(request, PIECE_BYTES_MAX), principal)
        if sends:
            await self._shard.call(CommitWork(acks=[], sends=sends))
        return PublishReply(sum(len(each.bodies) for each in sends))

    async def stage(self, request: Request, principal: Principal) -> None:
        """Keep a piece for later. What is in it is looked at now, so that its writer learns what is wrong."""
        staging = await self._open_staging()
        token = owned(principal, request.path_params["token"])
        piece = await asyncio.to_thread(staging.begin, token, request.path_params["piece"])
        try:
            async for parts in _read_in_blocks(request, PIECE_BYTES_MAX):
                await asyncio.to_thread(piece.write, parts)
            if sends := await asyncio.to_thread(lambda: _sends(piece.data(), principal, sizes_only=True)):
                await self._shard.call(CommitWork(acks=[], sends=sends, check_only=True))
        except BaseException:
            piece.discard()
            raise
        piece.keep()

    async def publish(self, request: Request, principal: Principal) -> PublishReply:
        """Send staged pieces in one commit, unless that was done before."""
        asked = await _body(request, PublishRequest)
        if not principal.has("write"):  # without pieces, it would still set the mark
            raise RestError(403, "forbidden", f"{principal.name!r} has no write right on any queue")
        Marks.check(asked.name, asked.number)
        staging, token = await self._open_staging(), owned(principal, asked.token)
        if await self._was_published(asked, principal):
            await asyncio.to_thread(staging.drop, token)
            return PublishReply(0, already_done=True)
        try:
            pieces = await asyncio.to_thread(_staged, staging, _kept_names(principal, asked.token), asked.pieces)
        except PieceNotFound:
            if await self._was_published(asked, principal):  # just now: asked before, over a connection that broke
                return PublishReply(0, already_done=True)
            raise
        sends = await asyncio.to_thread(_sends_of_all, pieces, principal)
        work = CommitWork(acks=[], sends=sends, mark=(owned(principal, asked.name), asked.number))
        replies = await self._shard.call(work)
        await self._drop_soon(staging, token)
        if isinstance(replies, AlreadyDone):
            return PublishReply(0, already_done=True)
        return PublishReply(sum(len(each.bodies) for each in sends))

    async def _was_published(self, asked: PublishRequest, principal: Principal) -> bool:
        """By this caller; or before marks had owners."""
        for name in _kept_names(principal, asked.name):
            if await self._shard.call(LastMark(name=name)) >= asked.number:
                return True
        return False

    async def _drop_soon(self, staging: Staging, token: str) -> None:
        """Nobody waits until the files of what was sent are removed."""
        dropped = await asyncio.to_thread(staging.set_aside, token)
        removing = asyncio.get_running_loop().run_in_executor(None, remove, dropped)
        self._removing.add(removing)
        removing.add_done_callback(self._removing.discard)

    async def abort(self, request: Request, principal: Principal) -> None:
        """Forget what was staged."""
        staging = await self._open_staging()
        await asyncio.to_thread(staging.drop, owned(principal, request.path_params["token"]))

    async def _open_staging(self) -> Staging:
        async with self._opening:
            if self._staging is None:
                self._staging = await asyncio.to_thread(self._new_staging)
        if time.monotonic() - self._cleaned_s > CLEAN_EVERY_S:
            self._cleaned_s = time.monotonic()
            await asyncio.to_thread(self._staging.drop_old)
        return self._staging

    def _new_staging(self) -> Staging:
        data = self._services.settings.server.data
        root = Path(tempfile.mkdtemp(prefix="penstock-")) if data == MEMORY else Path(data)
        return Staging(root / STAGING_NAME)


# -- bodies ------------------------------------------------------------------------------------------------------------


def _need(principal: Principal, queue: str, kind: type[Command]) -> None:
    if not principal.may(queue, kind):
        raise RestError(403, "forbidden", f"{principal.name!r} has no {kind.traits.right} right on queue {queue!r}")


def _kept_names(principal: Principal, name: str) -> list[str]:
    """How what a caller names may be kept: as its own; or without an owner, from before names had one.

    Nothing is kept without an owner any more where there are credentials. A name that looks like one with an owner is
    another caller's, if anybody's.
    """
    own = owned(principal, name)
    return [own] if own == name or is_owned(name) else [own, name]


def _staged(staging: Staging, tokens: list[str], pieces: list[str]) -> list[memoryview]:
    """Pieces, mapped into memory: each from the first token that has it."""
    return [_staged_piece(staging, tokens, piece) for piece in pieces]


def _staged_piece(staging: Staging, tokens: list[str], piece: str) -> memoryview:
    *earlier, last = tokens
    for token in earlier:
        with contextlib.suppress(PieceNotFound):
            return staging.open(token, [piece])[0]
    return staging.open(last, [piece])[0]


def _offsets(given: Offset) -> list[int]:
    return [given] if isinstance(given, int) else given


def _sends(piece: bytes | memoryview, principal: Principal, *, sizes_only: bool = False) -> list[Send]:
    sends = []
    for target, chunk in decode_piece(piece):
        _need(principal, target.queue, Send)
        sends.append(send_of(target, chunk, sizes_only=sizes_only))
    return sends


def _sends_of_all(pieces: Sequence[memoryview], principal: Principal) -> list[Send]:
    """What pieces hold; no more of them is read than one commit takes."""
    sends: list[Send] = []
    left = BATCH_BYTES_MAX
    for piece in pieces:
        some = _sends(piece, principal)
        left -= sum(len(each.bodies.data) for each in some if isinstance(each.bodies, PackedBodies))
        if left < 0:
            raise BatchTooLarge(
                f"the pieces hold more than {BATCH_BYTES_MAX} bytes, and one commit takes no more: publish less "
                "at once (in Spark: limit the batches of a stream with maxOffsetsPerTrigger or maxBytesPerTrigger, "
                "write a table in parts, or send with delivery=at-least-once)"
            )
        sends += some
    return sends


async def _read(request: Request, bytes_max: int) -> bytes:
    return await read_body(
        request.receive,
        request.headers.get("content-length"),
        request.scope[_SHARE],
        bytes_max=bytes_max,
        seconds=request.scope[_BODY_TIMEOUT_S],
        too_large=_too_large,
    )


def _too_large(bytes_max: int) -> MessageTooLarge:
    return MessageTooLarge(f"the body has more than {bytes_max} bytes: send it in several")


async def _read_in_blocks(request: Request, bytes_max: int) -> AsyncIterator[list[bytes]]:
    """The body as it comes, some parts at a time. It may take long, but not stand still."""
    share: Share = request.scope[_SHARE]
    try:
        await share.claimed(_BLOCK_BYTES)
    except NoRoom:
        raise no_room() from None
    stream, length, is_over = request.stream(), 0, False

    def received() -> int:
        return length

    while not is_over:
        block: list[bytes] = []
        block_end = length + _BLOCK_BYTES
        async with paced(share.budget, received) as pace:
            pace.start()
            while not is_over and length < block_end:
                part = await anext(stream, None)
                if part is None:
                    is_over = True
                    continue
                length += len(part)
                if length > bytes_max:
                    raise _too_large(bytes_max)
                block.append(part)
        yield block


async def _body(request: Request, shape: type[Body]) -> Body:
    data = await _read(request, JSON_BYTES_MAX)
    try:
        return msgspec.json.decode(data, type=shape)
    except msgspec.DecodeError as error:
        raise invalid(f"the body cannot be read: {error}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body cannot be read: {error}") from None


def _need_arrow() -> None:
    try:
        import penstock.wire.arrow  # noqa: F401
    except ImportError:
        raise RestError(406, "not_acceptable", "the server has no pyarrow: install penstock[arrow] there") from None


def _arrow_parts(
    runs: Iterable[tuple[Chunk, int, int]], *, include_headers: bool, metadata: dict[str, bytes] | None = None
) -> list[bytes | memoryview]:
    _need_arrow()
    from penstock.wire.arrow import record_batch, record_schema, stream_parts

    schema = record_schema(include_headers=include_headers).with_metadata(metadata)
    batches = (record_batch(*run, include_headers=include_headers) for run in runs)
    return stream_parts(schema, batches)


class _Parts(Response):
    """A body in parts, which go out as they are."""

    media_type = ARROW

    def __init__(self, parts: list[bytes | memoryview], share: Share, headers: dict[str, str] | None = None) -> None:
        length = {"content-length": str(sum(map(len, parts)))}
        super().__init__(headers=length | (headers or {}))
        self._parts = parts
        self._share = share

    async def __call__(self, scope: Scope, receive: Receiving, send: Sending) -> None:
        """Send them; a client that does not read them all is waited for after each."""
        with self._share:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for part in self._parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def _answer(result: msgspec.Struct | Response | None) -> Response:
    if isinstance(result, Response):
        return result
    if result is None:
        return Response(status_code=204)
    return Response(msgspec.json.encode(result), media_type="application/json")


def _problem(error: PenstockError) -> Response:
    problem = problem_of(error)
    headers: Iterable[tuple[bytes, bytes]] = headers_of(error)
    return Response(
        msgspec.json.encode(problem),
        problem.status,
        headers={name.decode(): value.decode() for name, value in headers},
        media_type=CONTENT_TYPE.decode(),
    )


__all__: list[Any] = ["Bulk", "routes"]
