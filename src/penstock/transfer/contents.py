"""What an export holds: queues, and their messages. Both formats (`json_lines`, `arrow_file`) have the same in them.

A message is what Penstock knows of it. What happened to it before goes along as its origin, which it keeps for life, as
a dead letter does: its id, when it was first sent, and its failed deliveries.

This is a format that outlives builds. `VERSION` is in the first line. Fields that a later build has added are passed
over; a file of a later version is refused.

An export as JSON lines: a head, then each queue and its messages, then an end. `contents` says what is in a line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from penstock.core.commands import Failure
from penstock.core.errors import InvalidRequest
from penstock.core.queues.attributes import AttributeValue, TypedBytes, TypedText, decode_attributes, encode_attributes
from penstock.core.queues.config import PRIORITY_MAX
from penstock.core.queues.origin import Origin

VERSION = 1
LABEL = "penstock-import"
"""Of a queue that is being imported: the id of the export."""


Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Sequence numbers, and times in milliseconds."""


class InvalidExport(InvalidRequest):
    """A file is no export, or a part of one, or damaged: which file, and where."""


class Head(msgspec.Struct, tag="penstock-export", tag_field="kind", kw_only=True):
    """The first line of an export."""

    version: int
    id: Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,100}\Z")]
    """An import knows by it what it has done before."""
    made_ms: int
    made_by: str = ""


class ChannelLine(msgspec.Struct, omit_defaults=True):
    """A channel of a queue."""

    name: str
    paused: bool = False


class QueueLine(msgspec.Struct, tag="queue", tag_field="kind", kw_only=True, omit_defaults=True):
    """A queue; its messages follow."""

    queue: str
    settings: dict[str, Any] = {}
    """As they are stored: times are milliseconds, and what has its default is left out."""
    channels: list[ChannelLine] = []


class AttributeLine(msgspec.Struct, omit_defaults=True):
    """An attribute's value: one of these. SQS keeps a type with it."""

    text: str | None = None
    base64: bytes | None = None
    integer: int | None = None
    number: float | str | None = None
    """`nan`, `inf` and `-inf` are text: JSON has no numbers for them."""
    type: str | None = None


class FailureLine(msgspec.Struct, omit_defaults=True):
    """A failed delivery."""

    attempt: Count
    received_ms: Whole = 0
    failed_ms: Whole = 0
    session: str = ""
    error: str = ""


class OriginLine(msgspec.Struct, omit_defaults=True):
    """Where a message was moved from (dead letters): the history that it had before it came into this queue."""

    queue: str
    channel: str
    sequence: Whole
    attempts: Count = 0
    priority: Annotated[int, msgspec.Meta(ge=0, le=PRIORITY_MAX)] = 0
    failures: list[FailureLine] = []


class MessageLine(msgspec.Struct, tag="message", tag_field="kind", kw_only=True, omit_defaults=True):
    sequence: Whole
    """Its number in the queue that it was exported from: messages stand in this order."""
    id: str
    sent_ms: Whole
    """When it was first sent."""
    body: str | None = None
    """If it is text (UTF-8)."""
    body_base64: bytes | None = None
    """If not."""
    attributes: dict[str, AttributeLine] = {}
    group: str | None = None
    dedup_id: str | None = None
    priority: int = 0
    due_ms: Whole = 0
    """When it can be received: sent with a delay, or waiting for its next try. 0: at once."""
    attempts: Count = 0
    """How often it was received."""
    failures: list[FailureLine] = []
    origin: OriginLine | None = None
    done_for: list[str] = []
    """Channels of the queue that are done with it, while others are not."""

    @property
    def content(self) -> bytes:
        return (self.body or "").encode() if self.body_base64 is None else self.body_base64


class EndLine(msgspec.Struct, tag="end", tag_field="kind", kw_only=True, omit_defaults=True):
    """The last line. Without it, the file is a part of an export."""

    queues: int | None = None
    messages: int | None = None
    """If they are there, they are compared with what was read."""


Item = QueueLine | MessageLine


def in_one_line(said: object) -> str:
    """What another library says, short enough for an error.

    >>> in_one_line("Expected\\n   a number")
    'Expected a number'
    """
    return " ".join(str(said).split())[:300]


def body_fields(body: bytes) -> dict[str, Any]:
    """A body as a message has it.

    >>> body_fields(b"tea"), body_fields(bytes([255]))
    ({'body': 'tea'}, {'body_base64': b'\\xff'})
    """
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": body}


# -- attributes --------------------------------------------------------------------------------------------------------


def attribute_lines(stored: bytes | None) -> dict[str, AttributeLine]:
    """Attributes out of a store.

    >>> attribute_lines(encode_attributes({"price": TypedText.of("12.50", "Number"), "size": 3}))["price"]
    AttributeLine(text='12.50', base64=None, integer=None, number=None, type='Number')
    """
    return {name: _attribute_line(value) for name, value in decode_attributes(stored).items()}


def _attribute_line(value: AttributeValue) -> AttributeLine:
    if isinstance(value, str):
        return AttributeLine(text=str(value), type=value.type if isinstance(value, TypedText) else None)
    if isinstance(value, bytes):
        return AttributeLine(base64=bytes(value), type=value.type if isinstance(value, TypedBytes) else None)
    if isinstance(value, int):
        return AttributeLine(integer=value)
    return AttributeLine(number=value if math.isfinite(value) else str(value))


def stored_attributes(lines: Mapping[str, AttributeLine]) -> bytes | None:
    """Attributes as a store keeps them."""
    return encode_attributes({name: _attribute_value(name, line) for name, line in lines.items()})


def _attribute_value(name: str, line: AttributeLine) -> AttributeValue:
    if line.text is not None:
        return line.text if line.type is None else TypedText.of(line.text, line.type)
    if line.base64 is not None:
        return line.base64 if line.type is None else TypedBytes.of(line.base64, line.type)
    if line.integer is not None:
        return line.integer
    if line.number is not None:
        return float(line.number)
    raise ValueError(f"attribute {name!r} has no value")


# -- histories ---------------------------------------------------------------------------------------------------------


def failure_lines(failures: Iterable[Failure], sequence: int | None = None) -> list[FailureLine]:
    """Failed deliveries; those of one message, if its number is given."""
    return [
        FailureLine(each.attempt, each.received_ms, each.failed_ms, each.session, each.error)
        for each in failures
        if sequence is None or each.first <= sequence <= each.last
    ]


def origin_line(origin: Origin) -> OriginLine:
    """Where a message came from."""
    failures = failure_lines(origin.failures)
    return OriginLine(origin.queue, origin.channel, origin.sequence, origin.attempts, origin.priority, failures)


def origin_of(message: MessageLine, queue: str, channel: str) -> bytes:
    """What a message carries along into another store: who it is, and all that has happened to it.

    >>> message = MessageLine(sequence=7, id="m", sent_ms=5, attempts=2, failures=[FailureLine(1, error="no tea")])
    >>> origin = Origin.decode(origin_of(message, "orders", "main"))
    >>> origin.queue, origin.attempts, origin.failures[0].error
    ('orders', 2, 'no tea')
    """
    before = message.origin or OriginLine(queue, channel, message.sequence, message.attempts, message.priority)
    failures = [
        Failure(
            before.sequence, before.sequence, each.attempt, each.received_ms, each.failed_ms, each.session, each.error
        )
        for each in [*before.failures, *message.failures]
    ]
    return Origin(
        id=message.id,
        queue=before.queue,
        channel=before.channel,
        sequence=before.sequence,
        sent_ms=message.sent_ms,
        attempts=before.attempts,
        priority=before.priority,
        failures=failures,
    ).encode()


_decode_head = msgspec.json.Decoder(Head).decode
_decode = msgspec.json.Decoder(QueueLine | MessageLine | EndLine).decode
_decode_version = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class JsonLines:
    """Writes an export, line by line."""

    def __init__(self, file: BinaryIO, head: Head) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode
        self._end = EndLine(queues=0, messages=0)
        self._put(head)

    def write(self, item: Item) -> None:
        assert self._end.queues is not None
        assert self._end.messages is not None
        if isinstance(item, QueueLine):
            self._end.queues += 1
        else:
            self._end.messages += 1
        self._put(item)

    def close(self) -> None:
        self._put(self._end)

    def _put(self, line: msgspec.Struct) -> None:
        self._file.write(self._encode(line) + b"\n")


def read_json_lines(file: BinaryIO, name: str) -> Iterator[tuple[str, Head | Item]]:
    """The head, then queues and messages, each with where it stands. `InvalidExport` says where something is wrong."""
    first = file.readline()
    yield f"{name}, line 1", read_head(first, name)
    queues = messages = 0
    number, end = 1, None
    for number, line in enumerate(file, 2):
        where = f"{name}, line {number}"
        if end is not None:
            raise InvalidExport(f"{where}: there is more after the end of the export")
        if not line.endswith(b"\n"):
            raise InvalidExport(f"{where}: the line is cut short: this is a part of an export")
        try:
            item = _decode(line)
        except (ValueError, RecursionError) as error:  # msgspec's errors are such
            raise InvalidExport(f"{where}: it is damaged: {in_one_line(error)}") from None
        if isinstance(item, EndLine):
            end = item
            continue
        if isinstance(item, QueueLine):
            queues += 1
        elif not queues:
            raise InvalidExport(f"{where}: a message comes before the first queue")
        else:
            messages += 1
        yield where, item
    if end is None:
        raise InvalidExport(f"{name}, line {number}: the end is missing: this is a part of an export")
    if end.queues not in (None, queues) or end.messages not in (None, messages):
        raise InvalidExport(
            f"{name}, line {number}: {end.queues} queues and {end.messages} messages were exported, but {queues} and "
            f"{messages} are here: lines are missing"
        )


def read_head(line: bytes, name: str) -> Head:
    """The first line; `InvalidExport` if this is another file, or of a later version."""
    try:
        fields = _decode_version(line)
        if msgspec.json.decode(fields["kind"]) != "penstock-export":
            raise KeyError("kind")
        version = msgspec.json.decode(fields["version"], type=int)
    except (ValueError, KeyError, RecursionError):
        raise InvalidExport(f"{name}, line 1: this is not an export of Penstock") from None
    if version > VERSION:
        raise InvalidExport(
            f"{name}, line 1: the export has version {version} of the format, and this Penstock knows {VERSION}: "
            "use a later version of Penstock"
        )
    try:
        return _decode_head(line)
    except (ValueError, RecursionError) as error:
        raise InvalidExport(f"{name}, line 1: it is damaged: {in_one_line(error)}") from None


def is_arrow(path: Path) -> bool:
    """Whether a file is an Arrow file."""
    with path.open("rb") as file:
        return file.read(6) == b"ARROW1"
