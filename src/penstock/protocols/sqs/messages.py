"""Sending, receiving and settling one message at a time.

Batches: up to ten messages at once. Each entry succeeds or fails for itself; the batch has rules of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.core.commands import Ack, Delivery, Extend, Receive, Send, Sent, Settled, Span
from penstock.core.errors import LeaseTooLong, PenstockError, StaleReceipt
from penstock.core.queues.attributes import encode_attributes
from penstock.core.queues.config import QueueConfig
from penstock.protocols.sqs import message_attributes
from penstock.protocols.sqs.context import Answer, RequestContext
from penstock.protocols.sqs.errors import (
    BATCH_ENTRY_IDS_NOT_DISTINCT,
    BATCH_REQUEST_TOO_LONG,
    EMPTY_BATCH_REQUEST,
    INVALID_BATCH_ENTRY_ID,
    INVALID_MESSAGE_CONTENTS,
    INVALID_PARAMETER_VALUE,
    MISSING_PARAMETER,
    RECEIPT_HANDLE_IS_INVALID,
    TOO_MANY_ENTRIES,
    SqsError,
    from_core,
    invalid_value,
    missing,
)
from penstock.protocols.sqs.limits import VISIBILITY_SECONDS_MAX
from penstock.protocols.sqs.received import NOTHING, Unpacking, Wanted
from penstock.protocols.sqs.service import SqsQueue, md5, md5_list, sequence_number
from penstock.protocols.sqs.shapes import (
    BatchResultErrorEntry,
    ChangeMessageVisibilityBatchRequest,
    ChangeMessageVisibilityBatchRequestEntry,
    ChangeMessageVisibilityRequest,
    DeleteMessageBatchRequest,
    DeleteMessageBatchRequestEntry,
    DeleteMessageRequest,
    ReceiveMessageRequest,
    ReceiveMessageResult,
    SendMessageBatchRequest,
    SendMessageBatchRequestEntry,
    SendMessageBatchResult,
    SendMessageBatchResultEntry,
    SendMessageRequest,
    SendMessageResult,
    SettledEntry,
    SettledResult,
)
from penstock.server.settings import SqsSettings
from penstock.server.shards import Shards

_TOKEN = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}\Z")
_SECOND_MS = 1_000
NO_MESSAGES = ReceiveMessageResult()


class Draft(NamedTuple):
    """A message on its way in, checked."""

    body: bytes
    attributes: bytes | None
    size: int
    delay_ms: int | None
    group: str | None
    dedup_id: str | None
    md5_of_attributes: str | None
    md5_of_system_attributes: str | None


tuple_of: Final[Any] = tuple.__new__
"""A named tuple is made by a function in Python; one of its base's is a fifth of the price."""
_Draft: Final[Any] = Draft
_Span: Final[Any] = Span


class MessageActions(Unpacking):
    """The actions on messages, one or a batch."""

    def __init__(self, shard: Shards, settings: SqsSettings) -> None:
        super().__init__(shard, settings)
        self._good_ids: dict[str, int] = {}
        """Ids of batches that may be, each ended by a comma, and how many: none has a comma in itself."""

    def SendMessage(self, context: RequestContext, request: SendMessageRequest) -> Answer:
        queue = self.queue(context, request.queue_url, Send, may_create=True)
        draft = self.draft(context, request, queue)

        def answer(sent: Sent) -> SendMessageResult:
            sequence = sent.first
            return SendMessageResult(
                md5(draft.body),
                draft.md5_of_attributes,
                draft.md5_of_system_attributes,
                (queue.ids if sent.queue_id == queue.id else self.message_ids(sent.queue_id)).text(sequence),
                sequence_number(sequence) if queue.is_fifo else None,
            )

        return context.ask(
            Send(
                queue=queue.name,
                bodies=[draft.body],
                attributes=None if draft.attributes is None else [draft.attributes],
                groups=None if draft.group is None else [draft.group],
                dedup_ids=None if draft.dedup_id is None else [draft.dedup_id],
                delay_ms=draft.delay_ms,
                create=False,
            ),
            answer,
        )

    def ReceiveMessage(self, context: RequestContext, request: ReceiveMessageRequest) -> Answer:
        """Receive messages, now or as soon as there are any."""
        queue = self.queue(context, request.queue_url, Receive, may_create=True)
        count, limit = request.max_number_of_messages, self.limits.receive_max
        if count is not None and not 1 <= count <= limit:
            raise invalid_value(count, "MaxNumberOfMessages", f"Must be between 1 and {limit}, if provided.")
        wait_s, limit = request.wait_time_seconds, self.limits.wait_seconds_max
        if wait_s is not None and not 0 <= wait_s <= limit:
            raise invalid_value(wait_s, "WaitTimeSeconds", f"Must be >= 0 and <= {limit}, if provided.")
        visibility_s = request.visibility_timeout
        if visibility_s is not None:
            check_visibility(visibility_s)
        attempt_id = request.receive_request_attempt_id
        if attempt_id is not None:
            if not queue.is_fifo:
                raise invalid_value(
                    attempt_id,
                    "ReceiveRequestAttemptId",
                    "The request include parameter that is not valid for this queue type.",
                )
            check_token(attempt_id, "ReceiveRequestAttemptId")
        wants_more = (
            request.message_system_attribute_names or request.attribute_names or request.message_attribute_names
        )
        wanted = Wanted.of(request) if wants_more else NOTHING

        def answer(delivery: Delivery | None) -> ReceiveMessageResult:
            if delivery is None or not delivery.runs:
                return NO_MESSAGES
            return ReceiveMessageResult(self.unpack(delivery, queue, wanted))

        return context.receive(
            Receive(
                queue=queue.name,
                limit=count or 1,
                wait_ms=queue.config.receive_wait_ms if wait_s is None else wait_s * _SECOND_MS,
                lease_ms=None if visibility_s is None else visibility_s * _SECOND_MS,
                attempt_id=attempt_id,
            ),
            answer,
        )

    def DeleteMessage(self, context: RequestContext, request: DeleteMessageRequest) -> Answer:
        """Delete a message that was received. One that is gone already, or that somebody else has, is fine."""
        queue = self.queue(context, request.queue_url, Ack, may_create=False)
        channel, span = self.held(queue, request.receipt_handle)

        def answer(settled: Settled) -> None:
            if settled.refused and queue.is_fifo:
                raise expired(request.receipt_handle)

        return context.ask(Ack(queue=queue.name, channel=channel, spans=[span], in_time=queue.is_fifo), answer)

    def ChangeMessageVisibility(self, context: RequestContext, request: ChangeMessageVisibilityRequest) -> Answer:
        """Keep a message longer, or give it back."""
        queue = self.queue(context, request.queue_url, Extend, may_create=False)
        channel, span = self.held(queue, request.receipt_handle)
        visibility_s = check_visibility(request.visibility_timeout)

        def answer(settled: Settled) -> None:
            if settled.refused:
                raise not_changed(settled.refused[0].error, request.receipt_handle, visibility_s)

        lease_ms = visibility_s * _SECOND_MS
        return context.ask(
            Extend(queue=queue.name, channel=channel, spans=[span], lease_ms=lease_ms, late=not queue.is_fifo), answer
        )

    # -- sending --

    def draft(
        self, context: RequestContext, entry: SendMessageRequest | SendMessageBatchRequestEntry, queue: SqsQueue
    ) -> Draft:
        """A message as the core takes it, or what is wrong with it."""
        text = entry.message_body
        if not text:
            raise missing("MessageBody")
        if not text.isprintable():  # most are, and it is quickly seen
            check_characters(text)
        body = text.encode()
        size = len(body)
        own, system, delay_s = entry.message_attributes, entry.message_system_attributes, entry.delay_seconds
        group, dedup_id = entry.message_group_id, entry.message_deduplication_id
        md5_of_own = md5_of_system = None
        if own or system or context.trace_header:
            attributes, added, md5_of_own, md5_of_system = self._attributes(context, entry)
            size += added
        else:
            attributes = self.sender_attributes(context.principal) if context.principal.access_key else None
        if size > queue.bytes_max:
            raise SqsError(
                INVALID_PARAMETER_VALUE,
                f"One or more parameters are invalid. Reason: Message must be shorter than {queue.bytes_max} bytes.",
            )
        if queue.is_fifo or group is not None or dedup_id is not None:
            check_grouping(group, dedup_id, queue.config)
        if delay_s is not None:
            self._check_delay(delay_s, queue.config)
        delay_ms = None if delay_s is None or queue.is_fifo else delay_s * _SECOND_MS
        draft: Draft = tuple_of(_Draft, (body, attributes, size, delay_ms, group, dedup_id, md5_of_own, md5_of_system))
        return draft

    def _attributes(
        self, context: RequestContext, entry: SendMessageRequest | SendMessageBatchRequestEntry
    ) -> tuple[bytes | None, int, str | None, str | None]:
        """The stored form of a message's attributes, what they count, and their checksums."""
        own, system = entry.message_attributes, entry.message_system_attributes
        size = 0
        md5_of_own = md5_of_system = None
        if own:
            message_attributes.check(own, self.limits.message_attributes_max)
            size = message_attributes.size(own)
            md5_of_own = message_attributes.checksum(own)
        if system:
            message_attributes.check_system(system)
            md5_of_system = message_attributes.checksum(system)
        stored = message_attributes.to_stored(own, system)
        if context.trace_header and not system and not message_attributes.not_allowed_in(context.trace_header):
            stored[message_attributes.STORED_TRACE_HEADER] = context.trace_header
        if context.principal.access_key:
            stored[message_attributes.STORED_SENDER] = context.principal.name
        return encode_attributes(stored), size, md5_of_own, md5_of_system

    def _check_delay(self, delay_s: int, config: QueueConfig) -> None:
        if config.is_fifo and delay_s:
            raise invalid_value(
                delay_s, "DelaySeconds", "The request include parameter that is not valid for this queue type."
            )
        limit = self.limits.delay_seconds_max
        if not 0 <= delay_s <= limit:
            raise invalid_value(delay_s, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {limit}.")

    # -- settling --

    def held(self, queue: SqsQueue, handle: str | None) -> tuple[str, Span]:
        """What a receipt handle says, for a message of this queue: the channel, and which message on which attempt."""
        if not handle:
            raise missing("ReceiptHandle")
        found = queue.seal.read_one(handle)
        if found is not None:
            channel_id, sequence, attempt = found
            for name, channel in self.shard.identity.queues[queue.name].channels.items():
                if channel.id == channel_id:
                    return name, tuple_of(_Span, (sequence, sequence, attempt))
        raise SqsError(RECEIPT_HANDLE_IS_INVALID, f'The input receipt handle "{handle}" is not a valid receipt handle.')

    def channel_name(self, queue: SqsQueue, channel_id: int) -> str | None:
        for name, channel in self.shard.identity.queues[queue.name].channels.items():
            if channel.id == channel_id:
                return name
        return None

    def SendMessageBatch(self, context: RequestContext, request: SendMessageBatchRequest) -> Answer:
        """Send messages: one command for each delay in use; in nearly every batch, one."""
        queue = self.queue(context, request.queue_url, Send, may_create=True)
        entries = request.entries or []
        entry_ids = self._check("SendMessageBatchRequestEntry", entries)
        bodies = None if context.trace_header else self._bare_bodies(entries, queue)
        if bodies is not None:
            sender = self.sender_attributes(context.principal) if context.principal.access_key else None
            attributes: list[bytes | None] | None = None if sender is None else [sender] * len(bodies)

            def answer_bare(sent: Sent) -> SendMessageBatchResult:
                message_ids = self._message_ids(queue, sent, len(bodies))
                return SendMessageBatchResult(
                    list(map(SendMessageBatchResultEntry, entry_ids, message_ids, md5_list(bodies))), []
                )

            return context.ask(Send(queue=queue.name, bodies=bodies, attributes=attributes, create=False), answer_bare)
        if queue.is_fifo:
            _check_all_grouped(entries, queue.config)
        failed: list[BatchResultErrorEntry] = []
        ids: list[str] = []
        drafts: list[Draft] = []
        size = 0
        for entry in entries:
            try:
                draft = self.draft(context, entry, queue)
            except SqsError as error:
                failed.append(_failed(entry.id, error))
                size += _size(entry)
            else:
                ids.append(entry.id or "")
                drafts.append(draft)
                size += draft.size
        self._check_length(size)
        if not drafts:
            return SendMessageBatchResult([], failed)
        delays = dict.fromkeys(draft.delay_ms for draft in drafts)
        if len(delays) == 1:

            def answer(sent: Sent) -> SendMessageBatchResult:
                return SendMessageBatchResult(self._sent(queue, ids, drafts, sent), failed)

            return context.ask(_send(queue.name, drafts), answer)
        runs = [[at for at, draft in enumerate(drafts) if draft.delay_ms == delay_ms] for delay_ms in delays]

        def answer_all(replies: list[Any]) -> SendMessageBatchResult:
            successful: dict[int, SendMessageBatchResultEntry] = {}
            for run, reply in zip(runs, replies, strict=True):
                if isinstance(reply, PenstockError):
                    error = from_core(reply)
                    failed.extend(_failed(ids[at], error) for at in run)
                else:
                    sent = self._sent(queue, [ids[at] for at in run], [drafts[at] for at in run], reply)
                    successful.update(zip(run, sent, strict=True))
            return SendMessageBatchResult([successful[at] for at in sorted(successful)], failed)

        return context.ask_all([_send(queue.name, [drafts[at] for at in run]) for run in runs], answer_all)

    def _sent(
        self, queue: SqsQueue, ids: list[str], drafts: list[Draft], sent: Sent
    ) -> list[SendMessageBatchResultEntry]:
        """The entries of messages that were sent."""
        first, count, is_fifo = sent.first, len(drafts), queue.is_fifo
        sequences = range(first, first + count) if sent.sequences is None else sent.sequences
        message_ids = self._message_ids(queue, sent, count)
        checksums = md5_list([draft.body for draft in drafts])
        return [
            SendMessageBatchResultEntry(
                id_,
                message_id,
                checksum,
                draft.md5_of_attributes,
                draft.md5_of_system_attributes,
                sequence_number(sequence) if is_fifo else None,
            )
            for id_, message_id, checksum, draft, sequence in zip(
                ids, message_ids, checksums, drafts, sequences, strict=True
            )
        ]

    def _message_ids(self, queue: SqsQueue, sent: Sent, count: int) -> list[str]:
        ids = queue.ids if sent.queue_id == queue.id else self.message_ids(sent.queue_id)
        if sent.sequences is None:
            return ids.texts(sent.first, count)
        return [ids.text(sequence) for sequence in sent.sequences]

    def _bare_bodies(self, entries: list[SendMessageBatchRequestEntry], queue: SqsQueue) -> list[bytes] | None:
        """The bodies of a batch of which every message is good and has nothing beside its body; None of another."""
        if queue.is_fifo:
            return None
        texts: list[str] = []
        for fields in map(fields_of, entries):
            if not fields[1] or fields[2:] != _NOTHING_MORE:  # a delay of 0 is one: the queue may have another
                return None
            texts.append(fields[1])
        if not "".join(texts).isprintable():
            return None
        bodies = [text.encode() for text in texts]
        size = sum(map(len, bodies))
        if size > queue.bytes_max and max(map(len, bodies)) > queue.bytes_max:
            return None
        self._check_length(size)
        return bodies

    def DeleteMessageBatch(self, context: RequestContext, request: DeleteMessageBatchRequest) -> Answer:
        queue = self.queue(context, request.queue_url, Ack, may_create=False)
        entries = request.entries or []
        self._check("DeleteMessageBatchRequestEntry", entries)

        def command(one: Round) -> Ack:
            return Ack(queue=queue.name, channel=one.channel, spans=one.spans, in_time=queue.is_fifo)

        def refusal(entry: SettleEntry, _error: PenstockError) -> SqsError | None:
            return expired(entry.receipt_handle) if queue.is_fifo else None

        return self._settle(context, queue, entries, command, refusal)

    def ChangeMessageVisibilityBatch(
        self, context: RequestContext, request: ChangeMessageVisibilityBatchRequest
    ) -> Answer:
        """Keep messages longer, or give them back."""
        queue = self.queue(context, request.queue_url, Extend, may_create=False)
        entries = request.entries or []
        self._check("ChangeMessageVisibilityBatchRequestEntry", entries)

        def command(one: Round) -> Extend:
            lease_ms = one.visibility_s * 1_000
            return Extend(
                queue=queue.name,
                channel=one.channel,
                spans=one.spans,
                lease_ms=lease_ms,
                late=not queue.is_fifo,
            )

        def refusal(entry: SettleEntry, error: PenstockError) -> SqsError:
            return not_changed(error, entry.receipt_handle, _visibility_s(entry))

        return self._settle(context, queue, entries, command, refusal)

    # -- rules for batches as a whole --

    def _check(self, parameter: str, entries: Sequence[Entry] | None) -> list[str]:
        """The entries' ids. Raises unless there are entries, not too many, that can be told apart."""
        if not entries:
            raise SqsError(EMPTY_BATCH_REQUEST, f"There should be at least one {parameter} in the request.")
        limit = self.limits.batch_entries_max
        if len(entries) > limit:
            raise SqsError(
                TOO_MANY_ENTRIES, f"Maximum number of entries per request are {limit}. You have sent {len(entries)}."
            )
        ids = [entry.id or "" for entry in entries]
        ended = ",".join(ids) + ","
        if self._good_ids.get(ended) == len(ids):  # programs use the same ones again and again
            return ids
        if not _IDS.match(ended) or ended.count(",") != len(ids):
            raise SqsError(
                INVALID_BATCH_ENTRY_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if len(set(ids)) != len(ids):
            repeated = next(each for at, each in enumerate(ids) if each in ids[:at])
            raise SqsError(BATCH_ENTRY_IDS_NOT_DISTINCT, f"Id {repeated} repeated.")
        if len(ended) <= _IDS_LENGTH_REMEMBERED_MAX:
            if len(self._good_ids) >= _IDS_REMEMBERED:
                self._good_ids.clear()
            self._good_ids[ended] = len(ids)
        return ids

    def _check_length(self, size: int) -> None:
        limit = self.limits.batch_bytes_max
        if size > limit:
            raise SqsError(
                BATCH_REQUEST_TOO_LONG,
                f"Batch requests cannot be longer than {limit} bytes. You have sent {size} bytes.",
            )

    # -- settling --

    def _settle(
        self,
        context: RequestContext,
        queue: SqsQueue,
        entries: Sequence[SettleEntry],
        command: Callable[[Round], Ack | Extend],
        refusal: Callable[[SettleEntry, PenstockError], SqsError | None],
    ) -> Answer:
        """Settle messages with as few commands as can be: in nearly every batch, one."""
        failed: list[BatchResultErrorEntry] = []
        rounds = self._rounds(queue, entries, failed)

        def answer(replies: list[Any]) -> SettledResult:
            successful: list[SettledEntry] = []
            for one, reply in zip(rounds, replies, strict=True):
                if isinstance(reply, PenstockError):
                    raise reply
                settled: Settled = reply
                if not settled.refused:
                    successful += map(SettledEntry, [entry.id or "" for entry in one.entries])
                    continue
                errors: dict[int, PenstockError] = {}
                for first, last, error in settled.refused:
                    errors.update(dict.fromkeys(range(first, last + 1), error))
                for entry, sequence in zip(one.entries, one.sequences, strict=True):
                    refused = refusal(entry, errors[sequence]) if sequence in errors else None
                    if refused is None:
                        successful.append(SettledEntry(entry.id or ""))
                    else:
                        failed.append(_failed(entry.id, refused))
            return SettledResult(successful, failed)

        return context.ask_all([command(one) for one in rounds], answer) if rounds else SettledResult([], failed)

    def _rounds(
        self, queue: SqsQueue, entries: Sequence[SettleEntry], failed: list[BatchResultErrorEntry]
    ) -> list[Round]:
        """What the entries' receipts say; entries whose receipts say nothing go to the failed ones."""
        run = queue.seal.read_run([entry.receipt_handle or "" for entry in entries])
        if run is not None and isinstance(entries[0], DeleteMessageBatchRequestEntry):  # so are most: one delivery
            channel = self.channel_name(queue, run[0])
            if channel is not None:
                spans = [tuple_of(_Span, run[1:])]
                return [Round(channel, 0, entries, range(run[1], run[2] + 1), spans)]
        rounds: dict[tuple[str, int, int], Round] = {}
        seen: dict[tuple[str, int], list[int]] = {}
        for entry in entries:
            try:
                channel, span = self.held(queue, entry.receipt_handle)
                visibility_s = _visibility_s(entry)
            except SqsError as error:
                failed.append(_failed(entry.id, error))
                continue
            sequence, _, attempt = span
            attempts = seen.setdefault((channel, sequence), [])
            if attempt not in attempts:
                attempts.append(attempt)
            key = (channel, visibility_s, attempts.index(attempt))
            if key not in rounds:
                rounds[key] = Round(channel, visibility_s, [], [], [])
            rounds[key].add(entry, span)
        return list(rounds.values())


def check_characters(text: str) -> None:
    """Raise unless a message may have every character of this text."""
    found = message_attributes.not_allowed_in(text)
    if found is not None:
        raise SqsError(
            INVALID_MESSAGE_CONTENTS,
            f"Invalid binary character '#x{ord(found):X}' was found in the message body, {message_attributes.ALLOWED}",
        )


def check_token(text: str, parameter: str) -> None:
    """Raise unless the text can be a group, a dedup id, or a receive attempt id."""
    if not _TOKEN.match(text):
        raise invalid_value(
            text,
            parameter,
            f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )


def check_grouping(group: str | None, dedup_id: str | None, config: QueueConfig) -> None:
    """Raise unless group and dedup id are as the queue's kind needs them."""
    if config.is_fifo and group is None:
        raise missing("MessageGroupId")
    if group is not None:
        check_token(group, "MessageGroupId")
    if dedup_id is not None:
        if not config.is_fifo:
            raise invalid_value(
                dedup_id,
                "MessageDeduplicationId",
                "The request include parameter that is not valid for this queue type.",
            )
        check_token(dedup_id, "MessageDeduplicationId")
    elif config.is_fifo and not config.content_dedup:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
            "explicitly",
        )


def check_visibility(visibility_s: int | None) -> int:
    """The visibility timeout, or what is wrong with it."""
    if visibility_s is None:
        raise missing("VisibilityTimeout")
    if not 0 <= visibility_s <= VISIBILITY_SECONDS_MAX:
        raise invalid_value(
            visibility_s,
            "VisibilityTimeout",
            f"VisibilityTimeout must be an integer between 0 and {VISIBILITY_SECONDS_MAX}.",
        )
    return visibility_s


def expired(handle: str | None) -> SqsError:
    """FIFO: the message is somebody else's, or gone."""
    return invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.")


def not_changed(error: PenstockError, handle: str | None, visibility_s: int) -> SqsError:
    """Why a message's visibility was not changed."""
    if isinstance(error, LeaseTooLong):
        return invalid_value(
            visibility_s,
            "VisibilityTimeout",
            f"Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_SECONDS_MAX} seconds].",
        )
    if isinstance(error, StaleReceipt):
        return invalid_value(
            handle, "ReceiptHandle", "Message does not exist or is not available for visibility timeout change."
        )
    return from_core(error)


fields_of: Final = msgspec.structs.astuple
assert SendMessageBatchRequestEntry.__struct_fields__[:2] == ("id", "message_body")
_NOTHING_MORE: Final = fields_of(SendMessageBatchRequestEntry())[2:]
_ID_LENGTH_MAX = 80
_IDS = re.compile(rf"(?:[A-Za-z0-9_-]{{1,{_ID_LENGTH_MAX}}},)+\Z")
"""The ids of a batch, each ended by a comma: one match for all of them."""
_IDS_REMEMBERED = 1_000
_IDS_LENGTH_REMEMBERED_MAX = 256

SettleEntry = DeleteMessageBatchRequestEntry | ChangeMessageVisibilityBatchRequestEntry
Entry = SendMessageBatchRequestEntry | SettleEntry


class Round:
    """Entries that one command can settle: of one channel, for one time, and no message on two attempts."""

    __slots__ = ("channel", "entries", "sequences", "spans", "visibility_s")

    def __init__(
        self,
        channel: str,
        visibility_s: int,
        entries: Sequence[SettleEntry],
        sequences: Sequence[int],
        spans: list[Span],
    ) -> None:
        self.channel = channel
        self.visibility_s = visibility_s
        self.entries = entries
        self.sequences = sequences
        """The message of each entry."""
        self.spans = spans

    def add(self, entry: SettleEntry, span: Span) -> None:
        """One more. The same message once more is settled once."""
        self.entries = [*self.entries, entry]
        if span.first not in self.sequences:
            last = self.spans[-1] if self.spans else None
            if last is not None and last.last + 1 == span.first and last.attempt == span.attempt:
                self.spans[-1] = Span(last.first, span.first, span.attempt)
            else:
                self.spans.append(span)
        self.sequences = [*self.sequences, span.first]


def _visibility_s(entry: SettleEntry) -> int:
    if isinstance(entry, ChangeMessageVisibilityBatchRequestEntry):
        return check_visibility(entry.visibility_timeout)
    return 0


def _send(name: str, drafts: list[Draft]) -> Send:
    bodies, attributes, _, delays_ms, groups, dedup_ids, _, _ = zip(*drafts, strict=True)
    return Send(
        queue=name,
        bodies=list(bodies),
        attributes=list(attributes) if any(attributes) else None,
        groups=list(groups) if any(groups) else None,
        dedup_ids=list(dedup_ids) if any(dedup_ids) else None,
        delay_ms=delays_ms[0],
        create=False,
    )


def _size(entry: SendMessageBatchRequestEntry) -> int:
    """What a message counts that was refused for itself."""
    body = (entry.message_body or "").encode()
    return len(body) + message_attributes.size(entry.message_attributes or {})


def _check_all_grouped(entries: list[SendMessageBatchRequestEntry], config: QueueConfig) -> None:
    """FIFO: a batch in which one message lacks its group or its dedup id is refused as a whole."""
    for entry in entries:
        try:
            check_grouping(entry.message_group_id, entry.message_deduplication_id, config)
        except SqsError as error:
            if error.kind is MISSING_PARAMETER:
                raise SqsError(INVALID_PARAMETER_VALUE, error.message) from None
            raise


def _failed(id_: str | None, error: SqsError) -> BatchResultErrorEntry:
    return BatchResultErrorEntry(id_ or "", error.kind.is_senders_fault, error.kind.code, error.message)
