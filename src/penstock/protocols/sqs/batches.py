"""Batches: up to ten messages at once. Each entry succeeds or fails for itself; the batch has rules of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from penstock.core.commands import Ack, Extend, Send, Sent, Settled, Span
from penstock.core.config import QueueConfig
from penstock.core.errors import PenstockError
from penstock.protocols.sqs import message_attributes, plain
from penstock.protocols.sqs.attributes import message_bytes_max
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
    channel_name,
    check_grouping,
    check_visibility,
    expired,
    is_bare,
    may_be_plain,
    not_changed,
)
from penstock.protocols.sqs.received import md5, sequence_number
from penstock.protocols.sqs.service import Caller, ask, ask_all
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
from penstock.server.shards import QueueFace

_tuple_of: Final[Any] = tuple.__new__
_Span: Final[Any] = Span
"""A named tuple is made by a function in Python; one of its base's is a fifth of the price."""

_ID_LENGTH_MAX = 80
_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{_ID_LENGTH_MAX}}}\Z")

SettleEntry = DeleteMessageBatchRequestEntry | ChangeMessageVisibilityBatchRequestEntry
Entry = SendMessageBatchRequestEntry | SettleEntry


class BatchActions(MessageActions):
    """The actions on several messages."""

    async def SendMessageBatch(
        self, caller: Caller, request: SendMessageBatchRequest
    ) -> SendMessageBatchResult | bytes:
        """Send messages."""
        name = self.queue_name(caller, request.queue_url, Send)
        config = self.config(name) or await self.existing(name)
        entries = request.entries or []
        self._check("SendMessageBatchRequestEntry", entries)
        if may_be_plain(caller, config):
            bodies = self._plain_bodies(entries, config)
            if bodies is not None:
                reply: Sent = await ask(Send(queue=name, bodies=bodies, create=False))
                checksums = [md5(body) for body in bodies]
                if reply.sequences is None:
                    self.remembered.add(reply.queue_id, reply.first, checksums)
                    message_ids = self.message_ids(reply.queue_id, reply.first, len(bodies))
                else:
                    message_ids = [self.message_id(reply.queue_id, sequence) for sequence in reply.sequences]
                return plain.sent_batch([entry.id or "" for entry in entries], message_ids, checksums)
        if config.is_fifo:
            _check_all_grouped(entries, config)
        result = SendMessageBatchResult([], [])
        drafted: list[tuple[SendMessageBatchRequestEntry, Draft]] = []
        size = 0
        for entry in entries:
            try:
                draft = self.draft(caller, entry, config)
            except SqsError as error:
                result.failed.append(_failed(entry.id, error))
                size += _size(entry)
            else:
                drafted.append((entry, draft))
                size += draft.size
        self._check_length(size)
        if drafted:
            await self._send_all(name, config, drafted, result)
        return result

    def _plain_bodies(self, entries: list[SendMessageBatchRequestEntry], config: QueueConfig) -> list[bytes] | None:
        """The bodies of a batch in which every message is bare and good; None if any is not."""
        limit, size = message_bytes_max(config), 0
        bodies: list[bytes] = []
        for entry in entries:
            text = entry.message_body
            if not text or not is_bare(entry):
                return None
            body = text.encode()
            if len(body) > limit:
                return None
            size += len(body)
            bodies.append(body)
        self._check_length(size)
        return bodies

    async def _send_all(
        self,
        name: str,
        config: QueueConfig,
        drafted: list[tuple[SendMessageBatchRequestEntry, Draft]],
        result: SendMessageBatchResult,
    ) -> None:
        """One command for each delay in use: in nearly every batch, one."""
        if len({draft.delay_ms for _, draft in drafted}) == 1:
            sent: Sent = await ask(_send(name, [draft for _, draft in drafted]))
            result.successful = self._sent(config, drafted, sent)
            return
        runs: dict[int | None, list[tuple[SendMessageBatchRequestEntry, Draft]]] = {}
        for each in drafted:
            runs.setdefault(each[1].delay_ms, []).append(each)
        replies = await ask_all([_send(name, [draft for _, draft in run]) for run in runs.values()])
        for run, reply in zip(runs.values(), replies, strict=True):
            if isinstance(reply, PenstockError):
                error = from_core(reply)
                result.failed += [_failed(entry.id, error) for entry, _ in run]
            else:
                result.successful += self._sent(config, run, reply)
        places = {entry.id: place for place, (entry, _) in enumerate(drafted)}
        result.successful.sort(key=lambda entry: places[entry.id])

    def _sent(
        self, config: QueueConfig, drafted: list[tuple[SendMessageBatchRequestEntry, Draft]], sent: Sent
    ) -> list[SendMessageBatchResultEntry]:
        queue_id, is_fifo, message_id = sent.queue_id, config.is_fifo, self.message_id
        first = sent.first
        sequences = range(first, first + len(drafted)) if sent.sequences is None else sent.sequences
        return [
            SendMessageBatchResultEntry(
                entry.id or "",
                message_id(queue_id, sequence),
                md5(draft.body),
                draft.md5_of_attributes,
                draft.md5_of_system_attributes,
                sequence_number(sequence) if is_fifo else None,
            )
            for (entry, draft), sequence in zip(drafted, sequences, strict=True)
        ]

    async def DeleteMessageBatch(self, caller: Caller, request: DeleteMessageBatchRequest) -> SettledResult | bytes:
        """Delete messages that were received."""
        name = self.queue_name(caller, request.queue_url, Ack)
        queue = self.broker.queues.get(name) or await self.queue(name)
        entries = request.entries or []
        self._check("DeleteMessageBatchRequestEntry", entries)
        if caller.is_plain and not queue.config.is_fifo:
            held = self._held_together(queue, entries)
            if held is not None:
                channel, spans = held
                await ask(Ack(queue=queue.name, channel=channel, spans=spans))
                return plain.settled_batch([entry.id or "" for entry in entries])
        result = SettledResult([], [])
        rounds = _rounds(self._held_entries(queue, entries, result))
        refused = await _refused(
            [
                Ack(queue=queue.name, channel=group[0].channel, spans=_joined([each.span for each in group]))
                for group in rounds
            ]
        )
        for group, errors in zip(rounds, refused, strict=True):
            if not errors or not queue.config.is_fifo:
                result.successful += [SettledEntry(each.id) for each in group]
                continue
            for each in group:
                if each.span.first in errors:
                    result.failed.append(_failed(each.id, expired(each.handle)))
                else:
                    result.successful.append(SettledEntry(each.id))
        return result

    async def ChangeMessageVisibilityBatch(
        self, caller: Caller, request: ChangeMessageVisibilityBatchRequest
    ) -> SettledResult:
        """Keep messages longer, or give them back."""
        name = self.queue_name(caller, request.queue_url, Extend)
        queue = self.broker.queues.get(name) or await self.queue(name)
        entries = request.entries or []
        self._check("ChangeMessageVisibilityBatchRequestEntry", entries)
        result = SettledResult([], [])
        rounds = _rounds(self._held_entries(queue, entries, result))
        refused = await _refused(
            [
                Extend(
                    queue=queue.name,
                    channel=group[0].channel,
                    spans=[each.span for each in group],
                    lease_ms=group[0].visibility_s * 1_000,
                )
                for group in rounds
            ]
        )
        for group, errors in zip(rounds, refused, strict=True):
            for each in group:
                error = errors.get(each.span.first)
                if error is None:
                    result.successful.append(SettledEntry(each.id))
                else:
                    result.failed.append(_failed(each.id, not_changed(error, each.visibility_s)))
        return result

    # -- rules for batches as a whole --

    def _check(self, parameter: str, entries: Sequence[Entry] | None) -> None:
        """Raise unless there are entries, not too many, that can be told apart."""
        if not entries:
            raise SqsError(EMPTY_BATCH_REQUEST, f"There should be at least one {parameter} in the request.")
        limit = self.limits.batch_entries_max
        if len(entries) > limit:
            raise SqsError(
                TOO_MANY_ENTRIES, f"Maximum number of entries per request are {limit}. You have sent {len(entries)}."
            )
        seen: set[str] = set()
        for entry in entries:
            if not is_id(entry.id):
                raise SqsError(
                    INVALID_BATCH_ENTRY_ID,
                    "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                    "It can be at most 80 letters long.",
                )
            seen.add(entry.id or "")
        if len(seen) != len(entries):
            raise SqsError(BATCH_ENTRY_IDS_NOT_DISTINCT, f"Id {_first_repeated(entries)} repeated.")

    def _check_length(self, size: int) -> None:
        limit = self.limits.batch_bytes_max
        if size > limit:
            raise SqsError(
                BATCH_REQUEST_TOO_LONG,
                f"Batch requests cannot be longer than {limit} bytes. You have sent {size} bytes.",
            )

    # -- settling --

    def _held_together(
        self, queue: QueueFace, entries: list[DeleteMessageBatchRequestEntry]
    ) -> tuple[str, list[Span]] | None:
        """The channel and the messages of a batch in which every receipt is good, for one command; None if not."""
        handles: list[str] = []
        for entry in entries:
            handle = entry.receipt_handle
            if handle is None:
                return None
            handles.append(handle)
        found = self.seal(queue.id).read(handles)
        if found is None:
            return None
        channel_id = found[0][0]
        spans = joined_spans(found)
        name = channel_name(queue, channel_id)
        return None if spans is None or name is None else (name, spans)

    def _held_entries(self, queue: QueueFace, entries: Sequence[SettleEntry], result: SettledResult) -> list[Held]:
        """What the entries' receipts say; those that say nothing go to the failed ones."""
        found = []
        for entry in entries:
            try:
                channel, span = self.held(queue, entry.receipt_handle)
                visibility_s = 0
                if isinstance(entry, ChangeMessageVisibilityBatchRequestEntry):
                    visibility_s = check_visibility(entry.visibility_timeout)
            except SqsError as error:
                result.failed.append(_failed(entry.id, error))
            else:
                found.append(Held(entry.id or "", entry.receipt_handle, channel, span, visibility_s))
        return found


class Held(NamedTuple):
    """An entry whose receipt was made here."""

    id: str
    handle: str | None
    channel: str
    span: Span
    visibility_s: int


def _send(name: str, drafts: list[Draft]) -> Send:
    attributes = [draft.attributes for draft in drafts]
    groups = [draft.group for draft in drafts]
    dedup_ids = [draft.dedup_id for draft in drafts]
    return Send(
        queue=name,
        bodies=[draft.body for draft in drafts],
        attributes=attributes if any(attributes) else None,
        groups=groups if any(groups) else None,
        dedup_ids=dedup_ids if any(dedup_ids) else None,
        delay_ms=drafts[0].delay_ms,
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


def _joined(spans: list[Span]) -> list[Span]:
    """Spans of one message each, with neighbours on the same attempt joined; repeated ones once.

    >>> _joined([Span(6, 6, 1), Span(5, 5, 1), Span(7, 7, 2), Span(5, 5, 1)])
    [Span(first=5, last=6, attempt=1), Span(first=7, last=7, attempt=2)]
    """
    joined: list[Span] = []
    ordered = sorted(set(spans))
    first, last, attempt = ordered[0]
    for span in ordered[1:]:
        if span[0] == last + 1 and span[2] == attempt:
            last += 1
        else:
            joined.append(Span(first, last, attempt))
            first, last, attempt = span
    joined.append(Span(first, last, attempt))
    return joined


def is_id(text: str | None) -> bool:
    """Whether a text can tell an entry from the others.

    >>> is_id("a-1"), is_id("7"), is_id("a b"), is_id("é"), is_id("")
    (True, True, False, False, False)
    """
    if text is None:
        return False
    if text.isalnum() and text.isascii() and len(text) <= _ID_LENGTH_MAX:  # so are most, and it is quickly seen
        return True
    return _ID.match(text) is not None


def _first_repeated(entries: Sequence[Entry]) -> str | None:
    seen: set[str | None] = set()
    for entry in entries:
        if entry.id in seen:
            return entry.id
        seen.add(entry.id)
    return None


def joined_spans(found: list[tuple[int, int, int]]) -> list[Span] | None:
    """Messages of one channel as spans, neighbours on the same attempt joined; None if one is there twice.

    >>> joined_spans([(1, 6, 1), (1, 5, 1), (1, 7, 2)])
    [Span(first=5, last=6, attempt=1), Span(first=7, last=7, attempt=2)]
    >>> joined_spans([(1, 6, 1), (1, 6, 2)]), joined_spans([(1, 6, 1), (2, 7, 1)])
    (None, None)
    """
    ordered = sorted(found)
    channel_id, first, attempt = ordered[0]
    last = first
    spans: list[Span] = []
    for of_channel, sequence, on_attempt in ordered[1:]:
        if of_channel != channel_id or sequence == last:
            return None
        if sequence != last + 1 or on_attempt != attempt:
            spans.append(_tuple_of(_Span, (first, last, attempt)))
            first, attempt = sequence, on_attempt
        last = sequence
    spans.append(_tuple_of(_Span, (first, last, attempt)))
    return spans


def _rounds(entries: list[Held]) -> list[list[Held]]:
    """Entries that one command can settle: of one channel, for one time, and no message twice on different attempts."""
    kinds = {(channel, visibility_s) for _, _, channel, _, visibility_s in entries}
    if len(kinds) == 1 and len({entry.span.first for entry in entries}) == len(entries):
        return [entries]
    rounds: dict[tuple[str, int, int], list[Held]] = {}
    seen: dict[tuple[str, int], list[int]] = {}
    for entry in entries:
        channel, span = entry.channel, entry.span
        attempts = seen.setdefault((channel, span.first), [])
        if span.attempt not in attempts:
            attempts.append(span.attempt)
        rounds.setdefault((channel, entry.visibility_s, attempts.index(span.attempt)), []).append(entry)
    return list(rounds.values())


async def _refused(commands: Sequence[Ack | Extend]) -> list[dict[int, PenstockError]]:
    """Settle; for each command, by sequence number, what could not be settled and why."""
    refused: list[dict[int, PenstockError]] = []
    for reply in await ask_all(commands) if commands else ():
        if isinstance(reply, PenstockError):
            raise from_core(reply)
        settled: Settled = reply
        errors: dict[int, PenstockError] = {}
        for first, last, error in settled.refused:
            errors.update(dict.fromkeys(range(first, last + 1), error))
        refused.append(errors)
    return refused
