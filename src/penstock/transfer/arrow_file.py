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

from penstock.transfer.contents import Head, InvalidExport, Item, MessageLine, QueueLine, body_fields
from penstock.transfer.json_lines import read_head

_HEAD, _QUEUES = b"penstock.export", b"penstock.queues"
_ROWS = 5_000

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
        self._queue = ""

    def write(self, item: Item) -> None:
        """One more queue, or message of the last queue."""
        if isinstance(item, QueueLine):
            self._queue = item.queue
            return
        self._rows.append(_row(item, self._queue))
        if len(self._rows) == _ROWS:
            self._flush()

    def close(self) -> None:
        """Nothing more comes."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_batch(pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
            self._rows = []


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
    except pa.ArrowInvalid as error:
        raise InvalidExport(f"{name}: the file is damaged, or a part of an export: {error}") from None
    metadata = reader.schema.metadata or {}
    if _HEAD not in metadata:
        raise InvalidExport(f"{name}: this is an Arrow file, and no export of Penstock")
    head = read_head(metadata[_HEAD], name)
    try:
        queues = {each.queue: each for each in msgspec.json.decode(metadata[_QUEUES], type=list[QueueLine])}
    except (msgspec.DecodeError, KeyError) as error:
        raise InvalidExport(f"{name}: the queues in its metadata cannot be read: {error}") from None
    yield name, head
    current = None
    for number in range(reader.num_record_batches):
        for row, where in _rows_of(reader, number, name):
            queue = row.pop("queue")
            if queue != current:
                if queue not in queues:
                    raise InvalidExport(f"{where}: queue {queue!r} is not in the metadata, or its rows lie apart")
                current = queue
                yield where, queues.pop(queue)
            yield where, _message(row, where)
    for line in queues.values():
        yield name, line


def _rows_of(reader: Any, number: int, name: str) -> Iterator[tuple[dict[str, Any], str]]:
    where = f"{name}, batch {number + 1}"
    try:
        batch = reader.get_batch(number)
        batch.validate(full=True)
        known = [each for each in SCHEMA.names if each in batch.schema.names]
        rows = batch.select(known).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidExport(f"{where}: it is damaged: {error}") from None
    for index, row in enumerate(rows):
        yield row, f"{where}, row {index + 1}"


def _message(row: dict[str, Any], where: str) -> MessageLine:
    try:
        fields = {key: value for key, value in row.items() if value is not None and key != "attributes"}
        fields |= body_fields(fields.pop("body"))
        fields["attributes"] = {each["name"]: _attribute(each) for each in row.get("attributes") or ()}
        return msgspec.convert({"kind": "message", **fields}, MessageLine)
    except (msgspec.ValidationError, KeyError) as error:
        raise InvalidExport(f"{where}: it is damaged: {error}") from None


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
