"""Messages between the core, which has bytes, and JSON, which has text.

A body is text if it is valid UTF-8, and base64 if not; `encoding` says which. Senders may choose either.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable
from typing import Any

from penstock.core.commands import ChannelLife, Delivery, Failure, Life, Seen
from penstock.core.commands import Records as CoreRecords
from penstock.core.delivery.states import State
from penstock.core.errors import InvalidRequest
from penstock.core.queues.attributes import Attributes, AttributeValue, TypedBytes, TypedText, decode_attributes
from penstock.core.queues.origin import Origin, events_of
from penstock.core.storage.chunk import Chunk, Section
from penstock.protocols.rest.shapes import (
    AttributeJson,
    Encoding,
    FailedDelivery,
    Holder,
    LifeEvent,
    MessageInChannel,
    MessageLife,
    MessageOrigin,
    ReceivedMessage,
    ReceivedRun,
    Record,
    SeenMessage,
    StateName,
    TypedValue,
)
from penstock.server.shards import Names

_SECONDS_MAX = 1e12
"""Thirty thousand years: what is more is no time. (Nor is what is no number.)"""
FLOAT = "float"
"""The type of a float that JSON has no number for."""


def milliseconds(seconds: float | None, what: str) -> int | None:
    """A length of time, or a moment, as the core counts; None stays None.

    >>> milliseconds(1.5, "lease"), milliseconds(None, "lease")
    (1500, None)
    """
    if seconds is None:
        return None
    if not abs(seconds) <= _SECONDS_MAX:
        raise InvalidRequest(f"{what} is {seconds}: give seconds")
    return round(seconds * 1_000)


def seconds_of(ms: int | None) -> float | None:
    """Milliseconds as seconds; None stays None."""
    return None if ms is None else ms / 1_000


# -- in ----------------------------------------------------------------------------------------------------------------


def decode_text(text: str, encoding: Encoding, what: str) -> bytes:
    """The bytes that a text stands for.

    >>> decode_text("aGk=", "base64", "body"), decode_text("hi", "text", "body")
    (b'hi', b'hi')
    """
    if encoding == "text":
        return text.encode("utf-8")
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise InvalidRequest(f"{what} is not base64: {error}") from None


def attributes_in(attributes: dict[str, AttributeJson], where: str) -> Attributes:
    """Attributes as the core has them."""
    return {name: _value_in(value, f"{where}attributes[{name!r}]") for name, value in attributes.items()}


def _value_in(value: AttributeJson, what: str) -> AttributeValue:
    if not isinstance(value, TypedValue):
        return value
    if value.type is None:
        return decode_text(value.value, "base64", what) if value.encoding == "base64" else value.value
    if value.encoding == "base64":
        return TypedBytes.of(decode_text(value.value, "base64", what), value.type)
    if value.type == FLOAT:
        try:
            return float(value.value)
        except ValueError:
            raise InvalidRequest(f"{what} is {value.value[:50]!r}: it must be a float") from None
    return TypedText.of(value.value, value.type)


# -- out ---------------------------------------------------------------------------------------------------------------


def encode_text(data: bytes) -> tuple[str, Encoding]:
    """Bytes as text, if they are that, or as base64.

    >>> encode_text(b"hi"), encode_text(b"\\xff")
    (('hi', 'text'), ('/w==', 'base64'))
    """
    try:
        return data.decode("utf-8"), "text"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def attributes_out(stored: bytes | None) -> dict[str, AttributeJson]:
    """Attributes as JSON has them."""
    return {} if stored is None else {name: _value_out(value) for name, value in decode_attributes(stored).items()}


def _value_out(value: AttributeValue) -> AttributeJson:
    if isinstance(value, TypedText):
        return TypedValue(str(value), "text", value.type)
    if isinstance(value, bytes):
        return TypedValue(base64.b64encode(value).decode(), "base64", getattr(value, "type", None))
    if isinstance(value, float) and not math.isfinite(value):
        return TypedValue(str(value), "text", FLOAT)
    return value


def _origin_of(chunk: Chunk, index: int) -> Origin | None:
    stored = chunk.origin(index)
    return None if stored is None else Origin.decode(stored)


def _failures(failures: Iterable[Failure], sequence: int) -> list[FailedDelivery]:
    return [
        FailedDelivery(
            attempt=failure.attempt,
            received_at=failure.received_ms / 1_000,
            failed_at=failure.failed_ms / 1_000,
            session=failure.session,
            error=failure.error,
        )
        for failure in failures
        if failure.first <= sequence <= failure.last
    ]


def _history(origin: Origin | None, failures: Iterable[Failure], sequence: int) -> list[FailedDelivery]:
    before = [] if origin is None else _failures(origin.failures, origin.sequence)
    return before + _failures(failures, sequence)


def _content(broker: Names, queue_id: int, chunk: Chunk, index: int, origin: Origin | None) -> dict[str, Any]:
    """The fields that every message has."""
    sequence = chunk.base + index
    body, encoding = encode_text(chunk.body(index))
    return {
        "id": broker.message_id(queue_id, sequence) if origin is None else origin.id,
        "sequence": sequence,
        "body": body,
        "encoding": encoding,
        "sent_at": (chunk.sent_ms if origin is None else origin.sent_ms) / 1_000,
        "attributes": attributes_out(chunk.attributes(index)),
        "group": chunk.group(index),
        "origin": None
        if origin is None
        else MessageOrigin(
            queue=origin.queue, channel=origin.channel, sequence=origin.sequence, attempts=origin.attempts
        ),
    }


def received_messages(broker: Names, delivery: Delivery) -> list[ReceivedMessage]:
    """The messages of a delivery."""
    found = []
    for run in delivery.runs:
        attempts, firsts_ms = run.attempts.tolist(), run.first_received_ms.tolist()
        for offset in range(run.count):
            index = run.start + offset
            sequence, origin = run.chunk.base + index, _origin_of(run.chunk, index)
            found.append(
                ReceivedMessage(
                    **_content(broker, delivery.queue_id, run.chunk, index, origin),
                    receipt=broker.receipt(delivery.queue_id, delivery.channel_id, sequence, attempts[offset]),
                    attempt=attempts[offset],
                    first_received_at=firsts_ms[offset] / 1_000,
                    failures=_history(origin, run.failures, sequence),
                )
            )
    return found


def seen_message(broker: Names, queue_id: int, seen: Seen) -> SeenMessage:
    """A message that was looked at."""
    origin = _origin_of(seen.chunk, seen.index)
    state: StateName = seen.state.name.lower()  # type: ignore[assignment]
    return SeenMessage(
        **_content(broker, queue_id, seen.chunk, seen.index, origin),
        state=state,
        attempts=seen.attempts,
        until=seen.deadline_ms / 1_000 if seen.deadline_ms else None,
        failures=_history(origin, seen.failures, seen.sequence),
    )


def life_of(broker: Names, life: Life) -> MessageLife:
    """A message with all that is known of it."""
    origin = None if life.origin is None else Origin.decode(life.origin)
    body, encoding = encode_text(life.body)
    return MessageLife(
        id=broker.message_id(life.queue_id, life.sequence) if origin is None else origin.id,
        sequence=life.sequence,
        body=body,
        encoding=encoding,
        sent_at=(life.sent_ms if origin is None else origin.sent_ms) / 1_000,
        attributes=attributes_out(life.attributes),
        group=life.group,
        origin=None
        if origin is None
        else MessageOrigin(
            queue=origin.queue, channel=origin.channel, sequence=origin.sequence, attempts=origin.attempts
        ),
        queue=life.queue,
        dedup_id=life.dedup_id,
        priority=life.priority,
        channels=[_in_channel(each, life.sequence) for each in life.channels],
        events=[
            LifeEvent(
                at=event.at_ms / 1_000,
                what=event.what,
                queue=event.queue,
                channel=event.channel,
                attempt=event.attempt,
                text=event.text,
            )
            for event in events_of(life)
        ],
    )


def _in_channel(each: ChannelLife, sequence: int) -> MessageInChannel:
    is_leased, is_delayed = each.state is State.LEASED, each.state is State.DELAYED
    return MessageInChannel(
        channel=each.channel,
        state=each.state.name.lower(),  # type: ignore[arg-type]
        attempts=each.attempts,
        due_at=each.deadline_ms / 1_000 if is_delayed and each.deadline_ms else None,
        lease_ends_at=each.deadline_ms / 1_000 if is_leased else None,
        received_at=each.received_ms / 1_000 if each.received_ms else None,
        first_received_at=each.first_ms / 1_000 if each.first_ms else None,
        holder=Holder(session=each.session, name=each.holder) if is_leased else None,
        failures=_failures(each.failures, sequence),
    )


def record_list(broker: Names, records: CoreRecords) -> list[Record]:
    """Records as JSON has them."""
    found = []
    for run in records.runs:
        for index in range(run.start, run.stop):
            content = _content(broker, records.queue_id, run.chunk, index, _origin_of(run.chunk, index))
            found.append(
                Record(
                    offset=content["sequence"],
                    id=content["id"],
                    timestamp=content["sent_at"],
                    body=content["body"],
                    encoding=content["encoding"],
                    key=content["group"],
                    attributes=content["attributes"],
                )
            )
    return found


def received_runs(delivery: Delivery) -> list[ReceivedRun]:
    """The runs of a delivery as a batch has them: bodies as they are, other columns only where there are any."""
    return [
        ReceivedRun(
            first=run.first,
            sent_ms=run.chunk.sent_ms,
            bodies=run.chunk.body_list(run.start, run.stop),
            attempts=run.attempt if isinstance(run.attempt, int) else run.attempt.tolist(),
            attributes=_attribute_maps(run.chunk, run.start, run.stop),
            groups=run.chunk.group_list()[run.start : run.stop] if run.chunk.has_groups else None,
        )
        for run in delivery.runs
    ]


def _attribute_maps(chunk: Chunk, start: int, stop: int) -> list[dict[str, AttributeValue] | None] | None:
    if chunk.column(Section.ATTRIBUTES) is None:
        return None
    stored = [chunk.attributes(index) for index in range(start, stop)]
    return [None if each is None else _plain(decode_attributes(each)) for each in stored]


def _plain(attributes: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Without the types that only one front end knows."""
    return {name: _plain_value(value) for name, value in attributes.items()}


def _plain_value(value: AttributeValue) -> AttributeValue:
    if isinstance(value, TypedText):
        return str(value)
    return bytes(value) if isinstance(value, TypedBytes) else value
