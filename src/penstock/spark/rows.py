"""Rows on their way to queues: Arrow batches in, pieces of chunks out. Nobody looks at rows one by one.

    value      binary or string, required    the body
    topic      string                        the queue, where the option topic does not name one for all
    key        binary or string              the group
    headers    array<struct<key, value>>     attributes
    priority   whole number                  0 to 9
    delay      number                        seconds until it may be handed out
    dedupId    string                        the same id again within five minutes is not sent again
    deadOrigin, deadReason, attempts, history    as a source gives them: the row is a dead letter, and can be redriven

What cannot be sent is an error that names the first such row: its partition, its number there, its column, and why.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.core.commands import Failure
from penstock.core.errors import InvalidName
from penstock.core.queues.attributes import encode_attributes
from penstock.core.queues.config import DELAY_MS_MAX, PRIORITY_MAX, check_name
from penstock.core.queues.draft import CHUNK_MESSAGES_MAX, CHUNK_SIZE_MAX
from penstock.core.queues.origin import Origin
from penstock.core.storage.changes import Buffer
from penstock.core.storage.chunk import BinaryColumn, Chunk, Section
from penstock.spark.errors import InvalidOption, InvalidRow, ServerFailed
from penstock.spark.server import Connection
from penstock.wire.pieces import CONTENT_TYPE, Target, encode_section, stand_in_id

COLUMNS = ("value", "topic", "key", "headers", "priority", "delay", "dedupId")
DEAD_COLUMNS = ("deadOrigin", "deadReason", "attempts", "history")
IGNORED = ("partition", "offset", "timestamp", "timestampType")
"""What a source gives and a sink has no use for."""
_TEXT_LENGTH_MAX = 128


def check_columns(names_and_types: Iterable[tuple[str, str]], topic: str | None) -> None:
    """Raise what is wrong with the columns of a table that is to be sent.

    >>> check_columns([("value", "string")], None)
    Traceback (most recent call last):
        ...
    penstock.spark.errors.InvalidOption: there is no column topic and no option topic: say where the rows go
    """
    columns = dict(names_and_types)
    unknown = [name for name in columns if name not in COLUMNS + DEAD_COLUMNS + IGNORED]
    if unknown:
        raise InvalidOption(
            f"a message has no column {', '.join(unknown)}; there are: {', '.join(COLUMNS)} (make one value of "
            "several columns with to_json(struct(...)))"
        )
    if "value" not in columns:
        raise InvalidOption(f"there is no column value; there are: {', '.join(columns) or 'none'}")
    if "topic" not in columns and topic is None:
        raise InvalidOption("there is no column topic and no option topic: say where the rows go")
    for name, right in _TYPES.items():
        if name in columns and not columns[name].startswith(right):
            raise InvalidOption(f"the column {name} is {columns[name]}: it must be {' or '.join(right)}")


_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_TYPES: dict[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "key": ("binary", "string"),
    "headers": ("array<struct<",),
    "priority": _NUMBERS,
    "delay": (*_NUMBERS, "float", "double", "decimal"),
    "dedupId": ("string",),
    "deadOrigin": ("struct<queue:string,channel:string,offset:bigint,id:string>",),
    "deadReason": ("string",),
    "attempts": _NUMBERS,
    "history": ("array<struct<attempt:int,receivedAt:timestamp,failedAt:timestamp,session:string,error:string>>",),
}


class Rows:
    """Turns the batches of one task into sections."""

    def __init__(self, topic: str | None, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._row = 0

    def sections(self, batch: Any) -> Iterator[tuple[Target, Chunk, int, int]]:
        """The chunks of a batch, where they go, and the first and last row they are made of."""
        columns = {name: batch[name] for name in batch.schema.names if name in COLUMNS}
        if "deadOrigin" in batch.schema.names and batch["deadOrigin"].null_count < batch.num_rows:
            told = [name for name in (*DEAD_COLUMNS, "timestamp") if name in batch.schema.names]
            columns |= {name: batch[name] for name in told}
        if self._topic is not None:
            columns.pop("topic", None)  # the option names the queue of all rows, as Kafka's connector has it
        self._check(columns)
        for target, rows in self._targets(columns, batch.num_rows):
            picked = columns if rows is None else {name: column.take(rows) for name, column in columns.items()}
            numbers = None if rows is None else rows.to_numpy()
            for start, stop, chunk in self._chunks(picked):
                first, last = (start, stop - 1) if numbers is None else (int(numbers[start]), int(numbers[stop - 1]))
                yield target, chunk, self._row + first, self._row + last
        self._row += batch.num_rows

    # -- what is wrong --

    def _check(self, columns: dict[str, Any]) -> None:
        self._refuse_where(pc.is_null(columns["value"]), "value", "it is null")
        if "topic" in columns:
            self._refuse_where(pc.is_null(columns["topic"]), "topic", "it is null, and there is no option topic")
        if "priority" in columns:
            good = pc.and_(pc.greater_equal(columns["priority"], 0), pc.less_equal(columns["priority"], PRIORITY_MAX))
            self._refuse_where(pc.invert(good), "priority", f"it must be from 0 to {PRIORITY_MAX}", columns["priority"])
        if "delay" in columns:
            seconds = pc.cast(columns["delay"], pa.float64())
            good = pc.and_(pc.greater_equal(seconds, 0.0), pc.less_equal(seconds, DELAY_MS_MAX / 1_000))
            self._refuse_where(pc.invert(good), "delay", "it must be from 0 seconds to 100 years", columns["delay"])
        for name in ("key", "dedupId"):
            if name in columns:
                self._check_text(columns[name], name)

    def _check_text(self, column: Any, name: str) -> None:
        if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
            try:
                column = column.cast(pa.string())
            except pa.ArrowInvalid:
                bad = [value is not None and not _is_text(value) for value in column.to_pylist()]
                self._refuse_where(pa.array(bad), name, "it is not UTF-8, which a group must be", column)
        long = pc.greater(pc.utf8_length(column), _TEXT_LENGTH_MAX)
        self._refuse_where(long, name, f"it has more than {_TEXT_LENGTH_MAX} characters", column)

    def _refuse_where(self, bad: Any, column: str, why: str, values: Any = None) -> None:
        found = pc.index(pc.fill_null(bad, False), True).as_py()
        if found >= 0:
            self._refuse(found, column, why, None if values is None else values[found].as_py())

    def _refuse(self, row: int, column: str, why: str, value: Any = None) -> None:
        shown = "" if value is None else f" {str(value)[:60]!r}"
        raise InvalidRow(f"partition {self._partition}, row {self._row + row}, column {column}{shown}: {why}")

    # -- where they go --

    def _targets(self, columns: dict[str, Any], count: int) -> Iterator[tuple[Target, Any]]:
        """Each place that rows go to, with the numbers of its rows; None for all of them."""
        varying = [name for name in ("topic", "priority", "delay") if name in columns]
        if not count:
            return
        if not varying:
            yield self._target(None, 0, None, 0), None
            return
        table = pa.table({name: columns[name] for name in varying})
        table = table.append_column("row", pa.array(np.arange(count)))
        groups = table.group_by(varying, use_threads=False).aggregate([("row", "list")])
        for group in groups.to_pylist():
            rows = group["row_list"]
            target = self._target(group.get("topic"), group.get("priority"), group.get("delay"), rows[0])
            yield target, None if len(rows) == count else pa.array(rows)

    def _target(self, topic: str | None, priority: int | None, delay: Any, row: int) -> Target:
        queue = topic or self._topic or ""
        try:
            check_name(queue, "queue")
        except InvalidName as error:
            self._refuse(row, "topic", str(error))
        return Target(queue, priority or 0, None if delay is None else round(float(delay) * 1_000))

    # -- chunks --

    def _chunks(self, columns: dict[str, Any]) -> Iterator[tuple[int, int, Chunk]]:
        value = binary_column(columns["value"])
        extra = {
            Section.GROUPS: columns.get("key"),
            Section.DEDUP_IDS: columns.get("dedupId"),
        }
        optional = {section: binary_column(column) for section, column in extra.items() if column is not None}
        if "headers" in columns and columns["headers"].null_count < len(columns["headers"]):
            optional[Section.ATTRIBUTES] = self._attributes(columns["headers"])
        if "deadOrigin" in columns:
            optional[Section.ORIGINS] = _origins({name: columns[name] for name in columns if name not in COLUMNS})
        optional = {section: column for section, column in optional.items() if column.offsets[-1] > column.offsets[0]}
        for start, stop in _cuts(value.offsets):
            body = value.slice(start, stop)
            parts = {section: column.slice(start, stop) for section, column in optional.items()}
            yield start, stop, Chunk(0, 0, stop - start, body.data, body.offsets, None, parts, None)

    def _attributes(self, headers: Any) -> BinaryColumn:
        encoded: list[bytes | None] = []
        for row, pairs in enumerate(headers.to_pylist()):
            found = {pair["key"]: _header_value(pair["value"]) for pair in pairs or () if pair is not None}
            if None in found:
                self._refuse(row, "headers", "a header has no key")
            encoded.append(encode_attributes(found))
        return BinaryColumn.of(encoded)


def _origins(columns: dict[str, Any]) -> BinaryColumn:
    """What dead letters have behind them, as chunks keep it. Only rows that failed come here."""
    rows = pa.table(columns).to_pylist()
    return BinaryColumn.of([None if row["deadOrigin"] is None else _origin(row).encode() for row in rows])


def _origin(row: dict[str, Any]) -> Origin:
    told, now_ms = row["deadOrigin"], round(time.time() * 1_000)
    queue, channel, offset = told["queue"] or "", told["channel"] or "", told["offset"] or 0
    history = row.get("history") or [{"attempt": row.get("attempts") or 1, "error": row.get("deadReason")}]
    failures = [
        Failure(
            offset,
            offset,
            each.get("attempt") or 1,
            _ms(each.get("receivedAt"), now_ms),
            _ms(each.get("failedAt"), now_ms),
            each.get("session") or channel,
            each.get("error") or "",
        )
        for each in history
    ]
    identity = told["id"] or stand_in_id(queue, offset)
    sent_ms = _ms(row.get("timestamp"), now_ms)
    return Origin(identity, queue, channel, offset, sent_ms, row.get("attempts") or len(failures), 0, failures)


def _ms(moment: Any, otherwise: int) -> int:
    return otherwise if moment is None else round(moment.timestamp() * 1_000)


def _header_value(value: Any) -> Any:
    """Bytes that are text become text, as every other client would send them."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return "" if value is None else value


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def binary_column(column: Any) -> BinaryColumn:
    """The two buffers of a binary or string array, without copying them; null is empty.

    >>> column = binary_column(pa.array(["zero", None, "two"]).slice(1))
    >>> column[0], column[1]
    (None, b'two')
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type not in (pa.binary(), pa.string()):
        column = column.cast(pa.binary())
    if column.null_count:
        column = pc.fill_null(column, b"" if column.type == pa.binary() else "")
    _, offsets, data = column.buffers()
    table: NDArray[np.int32] = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    return BinaryColumn(table, memoryview(b"") if data is None else memoryview(data))


def _cuts(offsets: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """Where to cut messages into chunks: by count and by bytes."""
    start, count = 0, len(offsets) - 1
    while start < count:
        fitting = int(np.searchsorted(offsets, int(offsets[start]) + CHUNK_SIZE_MAX, side="right")) - 1
        stop = min(count, start + CHUNK_MESSAGES_MAX, max(fitting, start + 1))
        yield start, stop
        start = stop


# -- pieces to a server ------------------------------------------------------------------------------------------------

# Handing messages to a server in pieces: sent at once, or staged, to be published in one commit, once.
#
# A piece is on its way while the next one is gathered: one thread hands them over, one after the other, in their order.
# What goes wrong there is raised at the next piece, or at the end.

PIECE_BYTES = 8 * 1024 * 1024
_FAULTS_OF_ROWS = ("message_too_large", "invalid_request", "invalid_name")


class Pieces:
    """Gathers the messages of one task, and hands them to the server a piece at a time."""

    def __init__(self, connection: Connection, partition: int, token: str | None) -> None:
        self._connection = connection
        self._partition = partition
        self._token = token
        """Under which pieces are staged; None if they are sent at once."""
        self._name = f"{partition}-{uuid.uuid4().hex}"
        self._parts: list[Buffer] = []
        self._nbytes = 0
        self._rows: tuple[int, int] | None = None
        self._pieces = 0
        self._under_way: Future[None] | None = None
        self.names: list[str] = []
        """The pieces that the server has."""

    def add_all(self, rows: Rows, batches: Iterable[Any]) -> int:
        """Hand over all rows of some batches. Returns how many messages they are."""
        messages = 0
        with ThreadPoolExecutor(1) as thread:
            for batch in batches:
                for target, chunk, first, last in rows.sections(batch):
                    self._add(thread, encode_section(target, chunk), first, last)
                    messages += chunk.count
            self._flush(thread)
            self._wait()
        return messages

    def _add(self, thread: ThreadPoolExecutor, section: list[Buffer], first_row: int, last_row: int) -> None:
        nbytes = sum(map(len, section))
        if self._parts and self._nbytes + nbytes > PIECE_BYTES:
            self._flush(thread)
        self._parts += section
        self._nbytes += nbytes
        low, high = self._rows or (first_row, last_row)
        self._rows = (min(low, first_row), max(high, last_row))

    def _flush(self, thread: ThreadPoolExecutor) -> None:
        if not self._parts or self._rows is None:
            return
        self._wait()
        name = f"{self._name}-{self._pieces}"
        self._under_way = thread.submit(self._hand_over, name, self._parts, self._nbytes, self._rows)
        self._pieces += 1
        self._parts, self._nbytes, self._rows = [], 0, None

    def _wait(self) -> None:
        """Until the server has what is on its way."""
        if self._under_way is not None:
            self._under_way.result()

    def _hand_over(self, name: str, parts: list[Buffer], nbytes: int, rows: tuple[int, int]) -> None:
        """In the thread: the parts go out as they are, uncopied."""
        verb, path = ("POST", "/v1/bulk/send") if self._token is None else ("PUT", f"{_staged(self._token)}/{name}")
        headers = {"content-type": CONTENT_TYPE, "content-length": str(nbytes)}
        try:
            self._connection.fetch(verb, path, parts, headers)
        except ServerFailed as error:
            if error.code not in _FAULTS_OF_ROWS:
                raise
            low, high = rows
            raise InvalidRow(f"partition {self._partition}, rows {low} to {high}: {error}") from error
        self.names.append(name)


def publish(connection: Connection, token: str, pieces: Sequence[str], name: str, number: int) -> None:
    """Have staged pieces sent in one commit, under a name and a number; a number that was done does nothing."""
    body = {"token": token, "pieces": list(pieces), "name": name, "number": number}
    connection.ask("POST", "/v1/bulk/publish", body)


def forget(connection: Connection, token: str) -> None:
    """Drop what was staged under a token."""
    connection.ask("DELETE", _staged(token))


def _staged(token: str) -> str:
    return f"/v1/bulk/staging/{quote(token)}"
