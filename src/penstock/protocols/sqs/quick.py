"""The common case of the five actions that are called most, without detours: plain JSON in and out, a standard queue
that is there, nobody in particular calling.

How it works. `Quick` gets a request that is decoded, and either takes it, whole, or says False and has done nothing:
then the action's coroutine begins, as it would have without all this. So whatever is unusual, and whatever is wrong, is
dealt with in one place, and that is not here. What is taken goes straight to the shard as a *call* that knows how to
answer: when its step is over, the shard settles the call, and the answer leaves. No coroutine is made, no exception
ends one, and what does not change from call to call (a queue's limits, the start of its message ids) is remembered.

What the calls do is what `messages.py` and `batches.py` do with the same requests. The tests hold them together: each
way gives the same answers, byte by byte.

Only one shard in this process is served so. Several (a cluster, several workers) have a router in between, which calls
have to pass as commands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from penstock.core.broker import Broker
from penstock.core.channel import Channel
from penstock.core.commands import Ack, Command, Delivery, Receive, Send, Sent, Span
from penstock.core.config import QueueConfig
from penstock.core.errors import PenstockError
from penstock.core.queue import Queue
from penstock.core.receipt import Seal
from penstock.protocols.http import Exchange
from penstock.protocols.sqs import json_wire, plain
from penstock.protocols.sqs.attributes import message_bytes_max
from penstock.protocols.sqs.batches import is_id, joined_spans
from penstock.protocols.sqs.errors import INTERNAL_FAILURE, SqsError, from_core
from penstock.protocols.sqs.limits import NAME_LENGTH_MAX, VISIBILITY_SECONDS_MAX
from penstock.protocols.sqs.received import NOTHING, Unpacking, md5
from penstock.protocols.sqs.service import SEQUENCES_MAX, Numbered
from penstock.protocols.sqs.shapes import (
    DeleteMessageBatchRequest,
    DeleteMessageRequest,
    ReceiveMessageRequest,
    ReceiveMessageResult,
    SendMessageBatchRequest,
    SendMessageRequest,
)
from penstock.server.auth import ANYBODY
from penstock.server.budget import asked_bytes
from penstock.server.shard import Call
from penstock.server.tasks import AsyncShard, CallbackCall

log = logging.getLogger("penstock.sqs")

_fields_of: Final = msgspec.structs.astuple
_tuple_of: Final[Any] = tuple.__new__
_Span: Final[Any] = Span
"""A named tuple is made by a function in Python; one of its base's is a fifth of the price."""
_ANY_SIZE: Final = 1 << 62
_SECOND_MS: Final = 1_000
_QUEUES_MAX: Final = 1_000
_NOTHING_ELSE: Final[tuple[Any, ...]] = (None,) * 5
"""What a message is sent with that has nothing beside its body."""
_NO_NAMES: Final[tuple[Any, ...]] = (None,) * 3
_NO_MESSAGES: Final = json_wire.encode(ReceiveMessageResult())
_NOBODY: Final = ANYBODY.name

assert SendMessageRequest.__struct_fields__[:2] == ("queue_url", "message_body")
assert ReceiveMessageRequest.__struct_fields__[4:] == (
    "max_number_of_messages",
    "visibility_timeout",
    "wait_time_seconds",
    "receive_request_attempt_id",
)


class KnownQueue:
    """What is remembered of a queue, as long as it is the same, with the same configuration. Not the queue itself: one
    that is deleted must not stay because somebody knew it."""

    __slots__ = ("bytes_max", "config", "id", "ids", "is_quick", "name", "seal", "wait_ms")

    def __init__(self, queue: Queue, seal: Seal, ids: Numbered) -> None:
        config = queue.config
        self.id = queue.id
        self.config: QueueConfig = config
        self.name = queue.name
        self.seal = seal
        self.ids = ids
        self.is_quick = not config.is_fifo
        self.bytes_max = message_bytes_max(config)
        self.wait_ms: int = config.receive_wait_ms


class Quick:
    """Takes requests of the common kind."""

    __slots__ = ("_known", "_shard", "actions", "service")

    def __init__(self, service: Unpacking, shard: AsyncShard) -> None:
        self.service = service
        self._shard = shard
        self._known: dict[str, KnownQueue] = {}
        """By URL."""
        self.actions: dict[str, Callable[[Exchange, Any], bool]] = {
            "SendMessage": self.send_message,
            "SendMessageBatch": self.send_message_batch,
            "ReceiveMessage": self.receive_message,
            "DeleteMessage": self.delete_message,
            "DeleteMessageBatch": self.delete_message_batch,
        }
        """Each takes an exchange and its request, of a body that is plain, and says whether it took them."""

    # -- the actions --

    def send_message(self, exchange: Exchange, request: SendMessageRequest) -> bool:
        """SendMessage."""
        said: tuple[Any, ...] = _fields_of(request)
        text, known = said[1], self._queue(said[0])
        if known is None or not text or said[2:] != _NOTHING_ELSE:
            return False
        body: bytes = text.encode("ascii")
        if len(body) > known.bytes_max:
            return False
        command = Send(queue=known.name, bodies=[body], create=False)
        exchange.action = "SendMessage"
        self._shard.put(SendCall(command, self, exchange, known, body), exchange.client)
        return True

    def send_message_batch(self, exchange: Exchange, request: SendMessageBatchRequest) -> bool:
        """SendMessageBatch."""
        known = self._queue(request.queue_url)
        entries: list[Any] | None = request.entries
        if known is None or not entries or len(entries) > self.service.limits.batch_entries_max:
            return False
        ids: list[str] = []
        bodies: list[bytes] = []
        size, bytes_max = 0, known.bytes_max
        for entry in entries:
            said: tuple[Any, ...] = _fields_of(entry)
            text = said[1]
            if not text or said[2:] != _NOTHING_ELSE or not is_id(said[0]):
                return False
            body: bytes = text.encode("ascii")
            if len(body) > bytes_max:
                return False
            size += len(body)
            ids.append(said[0])
            bodies.append(body)
        if size > self.service.limits.batch_bytes_max or len(set(ids)) != len(ids):
            return False
        command = Send(queue=known.name, bodies=bodies, create=False)
        exchange.action = "SendMessageBatch"
        self._shard.put(SendBatchCall(command, self, exchange, known, ids, bodies), exchange.client)
        return True

    def receive_message(self, exchange: Exchange, request: ReceiveMessageRequest) -> bool:
        """ReceiveMessage, when nobody has to wait."""
        said: tuple[Any, ...] = _fields_of(request)
        known = self._queue(said[0])
        if known is None or said[1:4] != _NO_NAMES or said[7] is not None:
            return False
        limit, visibility_s, wait_s = said[4], said[5], said[6]
        if (known.wait_ms if wait_s is None else wait_s) != 0:
            return False
        count: int = 1 if limit is None else limit
        if not 1 <= count <= self.service.limits.receive_max:
            return False
        lease_ms: int | None = None
        if visibility_s is not None:
            if not 0 <= visibility_s <= VISIBILITY_SECONDS_MAX:
                return False
            lease_ms = visibility_s * _SECOND_MS
        if asked_bytes(self._shard.identity.queues.get(known.name), count, _ANY_SIZE):
            return False
        command = Receive(queue=known.name, limit=count, wait_ms=0, lease_ms=lease_ms)
        exchange.action = "ReceiveMessage"
        self._shard.put(ReceiveCall(command, self, exchange, known))
        return True

    def delete_message(self, exchange: Exchange, request: DeleteMessageRequest) -> bool:
        """DeleteMessage."""
        known = self._queue(request.queue_url)
        handle = request.receipt_handle
        if known is None or not handle:
            return False
        found = known.seal.read_one(handle)
        if found is None:
            return False
        channel_id, sequence, attempt = found
        channel = self._channel(known, channel_id)
        if channel is None:
            return False
        span = _tuple_of(_Span, (sequence, sequence, attempt))
        command = Ack(queue=known.name, channel=channel.name, spans=[span])
        exchange.action = "DeleteMessage"
        self._shard.put(DeleteCall(command, self, exchange, known), exchange.client)
        return True

    def delete_message_batch(self, exchange: Exchange, request: DeleteMessageBatchRequest) -> bool:
        """DeleteMessageBatch."""
        known = self._queue(request.queue_url)
        entries: list[Any] | None = request.entries
        if known is None or not entries or len(entries) > self.service.limits.batch_entries_max:
            return False
        ids: list[str] = []
        handles: list[str] = []
        for entry in entries:
            said: tuple[Any, ...] = _fields_of(entry)
            if not said[1] or not is_id(said[0]):
                return False
            ids.append(said[0])
            handles.append(said[1])
        if len(set(ids)) != len(ids):
            return False
        channel_id, spans = self._spans(known, handles)
        channel = None if spans is None else self._channel(known, channel_id)
        if spans is None or channel is None:
            return False
        command = Ack(queue=known.name, channel=channel.name, spans=spans)
        exchange.action = "DeleteMessageBatch"
        self._shard.put(DeleteBatchCall(command, self, exchange, known, ids), exchange.client)
        return True

    def _spans(self, known: KnownQueue, handles: list[str]) -> tuple[int, list[Span] | None]:
        """The channel of receipts, and their messages; no messages if any is unusual."""
        seal = known.seal
        run = seal.read_run(handles)
        if run is not None:
            return run[0], [_tuple_of(_Span, (run[1], run[2], run[3]))]
        found = seal.read(handles)
        return (0, None) if found is None else (found[0][0], joined_spans(found))

    # -- queues --

    def _queue(self, url: str | None) -> KnownQueue | None:
        """The queue that a URL names, if it is there and of the common kind."""
        if url is None:
            return None
        broker = self._shard.shard.broker
        known = self._known.get(url)
        if known is not None:
            queue = broker.queues.get(known.name)
            if queue is None or queue.id != known.id or queue.config is not known.config:
                known = None
        if known is None:
            known = self._look_up(url, broker)
        return known if known is not None and known.is_quick else None

    def _channel(self, known: KnownQueue, channel_id: int) -> Channel | None:
        """The channel of a queue that was just looked up."""
        for channel in self._shard.shard.broker.queues[known.name].channels.values():
            if channel.id == channel_id:
                return channel
        return None

    def _look_up(self, url: str, broker: Broker) -> KnownQueue | None:
        self._known.pop(url, None)
        try:
            name = self.service.urls.name(url)
        except SqsError:
            return None
        queue = broker.queues.get(name)
        if queue is None or len(name) > NAME_LENGTH_MAX:
            return None
        if len(self._known) >= _QUEUES_MAX:
            self._known.clear()
        service = self.service
        known = self._known[url] = KnownQueue(queue, service.seal(queue.id), service.numbered(queue.id))
        return known

    def take_back(self, call: CallbackCall) -> None:
        """The receiver is gone: so are its leases."""
        self._shard.withdraw(call)


def _ignore(_call: Call) -> None:
    """A call that answers by itself has nobody to tell."""


# -- calls -------------------------------------------------------------------------------------------------------------


class QuickCall(CallbackCall):
    """A call that answers its exchange when it is settled."""

    __slots__ = ("exchange", "known", "quick")

    def __init__(self, command: Command, quick: Quick, exchange: Exchange, known: KnownQueue) -> None:
        super().__init__(command, _ignore)
        self.quick = quick
        self.exchange = exchange
        self.known = known

    def settle(self) -> None:
        """Answer. Never raises: others are waiting, too."""
        exchange = self.exchange
        exchange.queue = self.known.name
        exchange.principal = _NOBODY
        try:
            if self.error is None:
                body = self.answer()
                exchange.outcome = "ok"
                if not json_wire.respond(exchange, body):
                    self.left()
                return
            self._refuse(self.error)
        except Exception as error:
            self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        if isinstance(error, PenstockError):
            refusal = from_core(error)
        else:
            log.error("%s failed", self.exchange.action, exc_info=error)
            refusal = SqsError(INTERNAL_FAILURE, "The request failed on the server's side: its log says more.")
        json_wire.respond_error(self.exchange, refusal)

    def answer(self) -> bytes:
        """The body of the answer."""
        raise NotImplementedError

    def left(self) -> None:
        """The client was gone before it got the answer."""


class SendCall(QuickCall):
    """SendMessage."""

    __slots__ = ("_body",)

    def __init__(self, command: Command, quick: Quick, exchange: Exchange, known: KnownQueue, body: bytes) -> None:
        super().__init__(command, quick, exchange, known)
        self._body = body

    def answer(self) -> bytes:
        """Checksum and message id."""
        reply: Sent = self.reply
        queue_id, sequence, service = reply.queue_id, reply.first, self.quick.service
        checksum = md5(self._body)
        service.remembered.add(queue_id, sequence, [checksum])
        if sequence >= SEQUENCES_MAX:
            return plain.sent(checksum, service.message_id(queue_id, sequence))
        return plain.sent(checksum, self.known.ids.text(sequence))


class SendBatchCall(QuickCall):
    """SendMessageBatch."""

    __slots__ = ("_bodies", "_ids")

    def __init__(
        self,
        command: Command,
        quick: Quick,
        exchange: Exchange,
        known: KnownQueue,
        ids: list[str],
        bodies: list[bytes],
    ) -> None:
        super().__init__(command, quick, exchange, known)
        self._ids = ids
        self._bodies = bodies

    def answer(self) -> bytes:
        """Checksums and message ids."""
        reply: Sent = self.reply
        queue_id, first, count, service = reply.queue_id, reply.first, len(self._bodies), self.quick.service
        checksums = [md5(body) for body in self._bodies]
        service.remembered.add(queue_id, first, checksums)
        if first + count > SEQUENCES_MAX:
            return plain.sent_batch(self._ids, service.message_ids(queue_id, first, count), checksums)
        return plain.sent_batch(self._ids, self.known.ids.texts(first, count), checksums)


class ReceiveCall(QuickCall):
    """ReceiveMessage."""

    __slots__ = ()

    def answer(self) -> bytes:
        """The messages."""
        delivery: Delivery | None = self.reply
        if delivery is None or not delivery.runs:
            return _NO_MESSAGES
        service = self.quick.service
        body = service.unpack_plain(delivery)
        if body is None:
            return json_wire.encode(ReceiveMessageResult(service.unpack(delivery, False, NOTHING)))
        return body

    def left(self) -> None:
        """The messages go back."""
        self.quick.take_back(self)


class DeleteCall(QuickCall):
    """DeleteMessage."""

    __slots__ = ()

    def answer(self) -> bytes:
        """Nothing: a message that is gone already, or that somebody else has, is fine."""
        return json_wire.EMPTY


class DeleteBatchCall(QuickCall):
    """DeleteMessageBatch."""

    __slots__ = ("_ids",)

    def __init__(self, command: Command, quick: Quick, exchange: Exchange, known: KnownQueue, ids: list[str]) -> None:
        super().__init__(command, quick, exchange, known)
        self._ids = ids

    def answer(self) -> bytes:
        """Which entries went well: all."""
        return plain.settled_batch(self._ids)
