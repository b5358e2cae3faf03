"""`DataFrame.write` and `writeStream`: rows become messages.

Exactly once. Each task stages its messages with the server, as pieces; nothing of them is sent. When all tasks are
done, the driver has the server send all their pieces in one commit, marked with the stream's id and the batch's number.
A batch that is done again, after whatever crash, stages its rows again; the mark says that it is done already, or the
commit does it now. Pieces of tasks that failed are never named, and are dropped.

At least once. Each task sends its messages as it goes: faster, and a task that is tried again sends them again.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.core.changes import Buffer
from penstock.spark.errors import InvalidOption, InvalidRow, ServerFailed, SparkError
from penstock.spark.options import SinkOptions
from penstock.spark.rows import Rows, check_columns
from penstock.spark.server import Connection
from penstock.wire.pieces import CONTENT_TYPE, encode_section

PIECE_BYTES = 8 * 1024 * 1024
_FAULTS_OF_ROWS = ("message_too_large", "invalid_request", "invalid_name")


@dataclass
class Written(WriterCommitMessage):
    """What one task has done."""

    messages: int = 0
    token: str = ""
    mark: str = ""
    pieces: list[str] = field(default_factory=list)


class _Pieces:
    """Gathers the messages of one task, and hands them to the server a piece at a time."""

    def __init__(self, connection: Connection, partition: int, path: str) -> None:
        self._connection = connection
        self._partition = partition
        self._path = path
        """Where pieces go; `{piece}` in it is replaced by each one's name."""
        self._name = f"{partition}-{uuid.uuid4().hex}"
        self._parts: list[Buffer] = []
        self._nbytes = 0
        self._rows: tuple[int, int] | None = None
        self.names: list[str] = []

    def add(self, section: list[Buffer], first_row: int, last_row: int) -> None:
        """Add a section; what is enough for a piece goes."""
        nbytes = sum(map(len, section))
        if self._parts and self._nbytes + nbytes > PIECE_BYTES:
            self.flush()
        self._parts += section
        self._nbytes += nbytes
        low, high = self._rows or (first_row, last_row)
        self._rows = (min(low, first_row), max(high, last_row))

    def flush(self) -> None:
        """Hand over what was gathered."""
        if not self._parts or self._rows is None:
            return
        name = f"{self._name}-{len(self.names)}"
        verb, path = ("PUT", self._path.format(piece=name)) if "{piece}" in self._path else ("POST", self._path)
        try:
            self._connection.request(verb, path, b"".join(self._parts), {"content-type": CONTENT_TYPE}).read()
        except ServerFailed as error:
            if error.code not in _FAULTS_OF_ROWS:
                raise
            low, high = self._rows
            raise InvalidRow(f"partition {self._partition}, rows {low} to {high}: {error}") from error
        self.names.append(name)
        self._parts, self._nbytes, self._rows = [], 0, None


class _Writing:
    """What both sinks do."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self.options = SinkOptions.parse(options)
        if overwrite:
            raise InvalidOption("messages are sent, never overwritten: use mode append")
        check_columns([(each.name, each.dataType.simpleString()) for each in schema], self.options.topic)

    def hand_over(self, iterator: Iterator[Any], token: str, mark: str) -> Written:
        """Stage or send the rows of one task: in the executors."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        rows = Rows(self.options.topic, partition)
        connection = Connection(self.options.where)
        path = f"/v1/bulk/staging/{quote(token)}/{{piece}}" if self.options.exactly_once else "/v1/bulk/send"
        pieces, messages = _Pieces(connection, partition, path), 0
        with contextlib.closing(connection):
            for batch in iterator:
                for target, chunk, first, last in rows.sections(batch):
                    pieces.add(encode_section(target, chunk), first, last)
                    messages += chunk.count
            pieces.flush()
        return Written(messages, token, mark, pieces.names)

    def publish(self, messages: list[Any], number: int) -> None:
        """Have everything sent that the tasks have staged: in the driver."""
        written = [each for each in messages if isinstance(each, Written)]
        if len(written) != len(messages):
            raise SparkError(f"{len(messages) - len(written)} of {len(messages)} tasks did not say what they wrote")
        if not self.options.exactly_once or not written:
            return
        pieces = [piece for each in written for piece in each.pieces]
        body = {"token": written[0].token, "pieces": pieces, "name": written[0].mark, "number": number}
        with contextlib.closing(Connection(self.options.where)) as connection:
            connection.ask("POST", "/v1/bulk/publish", body)

    def forget(self, tokens: set[str]) -> None:
        """Drop what was staged. A batch that was published stays so: its pieces are gone, and its mark is set."""
        if self.options.exactly_once and tokens:
            with contextlib.closing(Connection(self.options.where)) as connection, contextlib.suppress(ServerFailed):
                for token in tokens:
                    connection.ask("DELETE", f"/v1/bulk/staging/{quote(token)}")


class BatchSink(DataSourceArrowWriter):
    """`DataFrame.write`: all rows or none, in one commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._writing = _Writing(options, schema, overwrite)
        self._token = f"write-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> Written:
        """Stage the rows of one task."""
        return self._writing.hand_over(iterator, self._token, f"spark-{self._token}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Send them all."""
        self._writing.publish(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        self._writing.forget({self._token})


class StreamSink(DataSourceStreamArrowWriter):
    """`DataFrame.writeStream`: each batch once, in one commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._writing = _Writing(options, schema, False)

    def write(self, iterator: Iterator[Any]) -> Written:
        """Stage the rows of one task."""
        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch_id = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if not query_id or batch_id is None:
            raise SparkError("this task belongs to no stream: there is no query id, and so nothing to be exact about")
        return self._writing.hand_over(iterator, f"stream-{query_id}-{batch_id}", f"spark-stream-{query_id}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Send them all, once."""
        self._writing.publish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what was staged, as far as a task could say where. The rest goes when the batch is done again."""
        self._writing.forget({each.token for each in messages if isinstance(each, Written)})
