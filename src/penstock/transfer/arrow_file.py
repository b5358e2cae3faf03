"""An export as an Arrow file: a row for each message. Head and queues are in the metadata of the schema.

    penstock.export    the head, as JSON
    penstock.queues    the queues, as a JSON array

The columns are the fields of `MessageLine`, and `queue`. An Arrow file has a footer, so a part of one is noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa

from penstock.core.errors import InvalidRequest
from penstock.transfer.contents import (
    Head,
    InvalidExport,
    Item,
    MessageLine,
    QueueLine,
    body_fields,
    in_one_line,
    read_head,
)

_HEAD, _QUEUES = b"penstock.export", b"penstock.queues"
_ROWS = 5_000
_FLUSH_BYTES = 64 * 1024 * 1024
"""A column of a batch holds 2 GiB at most."""
_INTEGERS = range(-(1 << 63), 1 << 63)
_UNREADABLE = (pa.ArrowException, OSError, ValueError, RecursionError, TypeError, KeyError, IndexError)
"""What pyarrow and msgspec raise for a damaged file. A `UnicodeDecodeError` is a `ValueError`."""

_FAILURES = pa.list_(
    pa.struct(
        [
            ("attempt", pa.int32()),
            ("received_ms", pa.int64()),
            ("failed_ms", pa.int64()),
            ("session", pa.string()),
            ("error", pa.string()),
        ]
    )
)
_ATTRIBUTES = pa.list_(
    pa.struct(
        [
            ("name", pa.string()),
            ("text", pa.string()),
            ("bytes", pa.binary()),
            ("integer", pa.int64()),
            ("number", pa.float64()),
            ("type", pa.string()),
        ]
    )
)
_ORIGIN = pa.struct(
    [
        ("queue", pa.string()),
        ("channel", pa.string()),
        ("sequence", pa.int64()),
        ("attempts", pa.int32()),
        ("priority", pa.int8()),
        ("failures", _FAILURES),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("queue", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("sent_ms", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("attributes", _ATTRIBUTES),
        pa.field("group", pa.string()),
        pa.field("dedup_id", pa.string()),
        pa.field("priority", pa.int8()),
        pa.field("due_ms", pa.int64()),
        pa.field("attempts", pa.int32()),
        pa.field("failures", _FAILURES),
        pa.field("origin", _ORIGIN),
        pa.field("done_for", pa.list_(pa.string())),
    ]
)


class ArrowFile:
    """Writes an export, a batch of rows at a time. The queues have to be known when it begins."""

    def __init__(self, file: BinaryIO, head: Head, queues: list[QueueLine]) -> None:
        metadata = {_HEAD: msgspec.json.encode(head), _QUEUES: msgspec.json.encode(queues)}
        self._schema = SCHEMA.with_metadata(metadata)
        self._writer = pa.ipc.new_file(file, self._schema)
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self._queue = ""

    def write(self, item: Item) -> None:
        if isinstance(item, QueueLine):
            self._queue = item.queue
            return
        for name, value in item.attributes.items():
            if value.integer is not None and value.integer not in _INTEGERS:
                raise InvalidRequest(
                    f"queue {self._queue!r}, message {item.sequence}: attribute {name!r} is {value.integer}, and whole "
                    "numbers in an Arrow file are below 2^63: export with --format jsonl"
                )
        self._rows.append(_row(item, self._queue))
        self._bytes += len(item.content) + sum(
            len(value.text or "") * 4 + len(value.base64 or b"") for value in item.attributes.values()
        )
        if len(self._rows) == _ROWS or self._bytes >= _FLUSH_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_batch(pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
            self._rows, self._bytes = [], 0


def _row(message: MessageLine, queue: str) -> dict[str, Any]:
    return {
        "queue": queue,
        "sequence": message.sequence,
        "id": message.id,
        "sent_ms": message.sent_ms,
        "body": message.content,
        "attributes": [
            {
                "name": name,
                "text": value.text,
                "bytes": value.base64,
                "integer": value.integer,
                "number": None if value.number is None else float(value.number),
                "type": value.type,
            }
            for name, value in message.attributes.items()
        ],
        "group": message.group,
        "dedup_id": message.dedup_id,
        "priority": message.priority,
        "due_ms": message.due_ms,
        "attempts": message.attempts,
        "failures": [msgspec.structs.asdict(each) for each in message.failures],
        "origin": None
        if message.origin is None
        else msgspec.structs.asdict(message.origin)
        | {"failures": [msgspec.structs.asdict(each) for each in message.origin.failures]},
        "done_for": message.done_for,
    }


def read_arrow_file(file: BinaryIO, name: str) -> Iterator[tuple[str, Head | Item]]:
    """The head, then queues and messages, each with where it stands. `InvalidExport` says where something is wrong."""
    try:
        reader = pa.ipc.open_file(file)
        schema, batches = reader.schema, reader.num_record_batches
        metadata = schema.metadata or {}
    except _UNREADABLE as error:
        raise InvalidExport(f"{name}: the file is damaged, or a part of an export: {in_one_line(error)}") from None
    if _HEAD not in metadata:
        raise InvalidExport(f"{name}: this is an Arrow file, but not an export of Penstock")
    head = read_head(metadata[_HEAD], name)
    try:
        queues = {each.queue: each for each in msgspec.json.decode(metadata[_QUEUES], type=list[QueueLine])}
    except _UNREADABLE as error:
        raise InvalidExport(f"{name}: the queues in its metadata cannot be read: {in_one_line(error)}") from None
    _check_schema(schema, name)
    yield name, head
    current = None
    for number in range(batches):
        for row, where in _rows_of(reader, number, name):
            queue = row.pop("queue")
            if queue is None:
                raise InvalidExport(f"{where}: it names no queue")
            if queue != current:
                if queue not in queues:
                    raise InvalidExport(f"{where}: queue {queue!r} is not in the metadata, or its rows lie apart")
                current = queue
                yield where, queues.pop(queue)
            yield where, _message(row, where)
    for line in queues.values():
        yield name, line


def _check_schema(schema: pa.Schema, name: str) -> None:
    """Columns that a later build has added are passed over, and those that may be null may be missing."""
    for wanted in SCHEMA:
        found = schema.get_all_field_indices(wanted.name)
        if len(found) > 1 or (not found and not wanted.nullable):
            raise InvalidExport(f"{name}: it has {len(found)} columns {wanted.name!r}, and needs one")
        if found and not _fits(schema.field(found[0]).type, wanted.type):
            raise InvalidExport(
                f"{name}: column {wanted.name!r} is {in_one_line(schema.field(found[0]).type)}, and has to be "
                f"{in_one_line(wanted.type)}"
            )


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a type can be read as another one: other programs write the large kinds of text and lists."""
    if pa.types.is_struct(wanted):
        if not pa.types.is_struct(found):
            return False
        places = [(found.get_all_field_indices(each.name), each.type) for each in wanted]
        return all(len(at) == 1 and _fits(found.field(at[0]).type, type) for at, type in places)
    if pa.types.is_list(wanted):
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return is_list and _fits(found.value_type, wanted.value_type)
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return bool(found == wanted or found == large.get(wanted))


def _rows_of(reader: Any, number: int, name: str) -> Iterator[tuple[dict[str, Any], str]]:
    where = f"{name}, batch {number + 1}"
    try:
        batch = reader.get_batch(number)
        batch.validate(full=True)
        known = [each for each in SCHEMA.names if each in batch.schema.names]
        rows = batch.select(known).to_pylist()
    except _UNREADABLE as error:
        raise InvalidExport(f"{where}: it is damaged: {in_one_line(error)}") from None
    for index, row in enumerate(rows):
        yield row, f"{where}, row {index + 1}"


def _message(row: dict[str, Any], where: str) -> MessageLine:
    try:
        fields = {key: value for key, value in row.items() if value is not None and key != "attributes"}
        if "body" not in fields:
            raise ValueError("it has no body")
        fields |= body_fields(fields.pop("body"))
        attributes = row.get("attributes") or ()
        fields["attributes"] = {each["name"]: _attribute(each) for each in attributes}
        if len(fields["attributes"]) < len(attributes):
            raise ValueError("an attribute is given twice")
        return msgspec.convert({"kind": "message", **fields}, MessageLine)
    except _UNREADABLE as error:
        raise InvalidExport(f"{where}: it is damaged: {in_one_line(error)}") from None


def _attribute(stored: dict[str, Any]) -> dict[str, Any]:
    number = stored["number"]
    if number is not None and number - number != 0:  # JSON has no number for it
        number = str(number)
    return {
        "text": stored["text"],
        "base64": stored["bytes"],
        "integer": stored["integer"],
        "number": number,
        "type": stored["type"],
    }
