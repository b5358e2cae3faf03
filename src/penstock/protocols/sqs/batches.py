"""Batches: up to ten messages at once. Each entry succeeds or fails for itself; the batch has rules of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from penstock.core.commands import Ack, Extend, Send, Sent, Settled, Span
from penstock.core.errors import PenstockError
from penstock.core.queues.config import QueueConfig
from penstock.protocols.sqs import message_attributes
from penstock.protocols.sqs.context import Answer, RequestContext
from penstock.protocols.sqs.errors import (
    BATCH_ENTRY_IDS_NOT_DISTINCT,
    BATCH_REQUEST_TOO_LONG,
    EMPTY_BATCH_REQUEST,
    INVALID_BATCH_ENTRY_ID,
    INVALID_PARAMETER_VALUE,
    MISSING_PARAMETER,
    TOO_MANY_ENTRIES,
    SqsError,
    from_core,
)
from penstock.protocols.sqs.messages import (
    Draft,
    MessageActions,
    check_grouping,
    check_visibility,
    expired,
    not_changed,
    tuple_of,
)
from penstock.protocols.sqs.service import SqsQueue, md5_list, sequence_number
from penstock.protocols.sqs.shapes import (
    BatchResultErrorEntry,
    ChangeMessageVisibilityBatchRequest,
    ChangeMessageVisibilityBatchRequestEntry,
    DeleteMessageBatchRequest,
    DeleteMessageBatchRequestEntry,
    SendMessageBatchRequest,
    SendMessageBatchRequestEntry,
    SendMessageBatchResult,
    SendMessageBatchResultEntry,
    SettledEntry,
    SettledResult,
)

_Span: Final[Any] = Span
fields_of: Final = msgspec.structs.astuple
assert SendMessageBatchRequestEntry.__struct_fields__[:2] == ("id", "message_body")
_ID_LENGTH_MAX = 80
_IDS = re.compile(rf"(?:[A-Za-z0-9_-]{{1,{_ID_LENGTH_MAX}}},)+\Z")
"""The ids of a batch, each ended by a comma: one match for all of them."""

SettleEntry = DeleteMessageBatchRequestEntry | ChangeMessageVisibilityBatchRequestEntry
Entry = SendMessageBatchRequestEntry | SettleEntry


class BatchActions(MessageActions):
    """The actions on several messages."""

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
            if not fields[1] or any(fields[2:]):
                return None
            texts.append(fields[1])
        if not "".join(texts).isprintable():
            return None
        bodies = [text.encode() for text in texts]
        sizes = list(map(len, bodies))
        if max(sizes) > queue.bytes_max:
            return None
        self._check_length(sum(sizes))
        return bodies

    def DeleteMessageBatch(self, context: RequestContext, request: DeleteMessageBatchRequest) -> Answer:
        """Delete messages that were received."""
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
        if not _IDS.match(ended) or ended.count(",") != len(ids):
            raise SqsError(
                INVALID_BATCH_ENTRY_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if len(set(ids)) != len(ids):
            repeated = next(each for at, each in enumerate(ids) if each in ids[:at])
            raise SqsError(BATCH_ENTRY_IDS_NOT_DISTINCT, f"Id {repeated} repeated.")
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
