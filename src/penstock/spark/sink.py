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
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark.errors import InvalidOption, ServerFailed, SparkError, plain_errors
from penstock.spark.options import SinkOptions
from penstock.spark.rows import Pieces, Rows, check_columns, forget, publish
from penstock.spark.server import AGAIN, Connection, reachable


@dataclass
class Written(WriterCommitMessage):
    """What one task has done."""

    messages: int = 0
    token: str = ""
    mark: str = ""
    pieces: list[str] = field(default_factory=list)
    url: str | None = None
    """The node that has them."""


class _Writing:
    """What both sinks do."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self.options = SinkOptions.parse(options)
        if overwrite:
            raise InvalidOption("messages are sent, never overwritten: use mode append")
        if self.options.exactly_once:
            self.options = replace(self.options, where=reachable(self.options.where))
        check_columns([(each.name, each.dataType.simpleString()) for each in schema], self.options.topic)

    @plain_errors()
    def hand_over(self, iterator: Iterator[Any], token: str, mark: str) -> Written:
        """Stage or send the rows of one task: in the executors."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        rows = Rows(self.options.topic, partition)
        connection = Connection(self.options.where)
        pieces = Pieces(connection, partition, token if self.options.exactly_once else None)
        with contextlib.closing(connection):
            messages = pieces.add_all(rows, iterator)
        return Written(messages, token, mark, pieces.names, self.options.where.url)

    @plain_errors()
    def publish(self, messages: list[Any], number: int) -> None:
        """Have everything sent that the tasks have staged: in the driver."""
        written = [each for each in messages if isinstance(each, Written)]
        if len(written) != len(messages):
            raise SparkError(f"{len(messages) - len(written)} of {len(messages)} tasks did not say what they wrote")
        if not self.options.exactly_once or not written:
            return
        pieces = [piece for each in written for piece in each.pieces]
        with contextlib.closing(Connection(replace(self.options.where, url=written[0].url))) as connection:
            try:
                publish(connection, written[0].token, pieces, written[0].mark, number)
            except ServerFailed as error:
                if error.code == "piece_not_found":
                    outcome = (
                        "The node that had it was lost, or it was too old. Nothing of the write was sent: do it again "
                        "(a stream does its batch again when it is started again)"
                    )
                elif error.status in (0, 500, *AGAIN):
                    outcome = (
                        "It is not known whether the batch was published. A stream with a checkpoint, and a write with "
                        "txnAppId and txnVersion, can be repeated safely. Any other write may send its rows twice"
                    )
                else:
                    raise
                raise ServerFailed(f"{error}. {outcome}", error.code, error.status) from None

    def forget(self, token: str, url: str | None) -> None:
        """Drop what was staged. A batch that was published stays so: its pieces are gone, and its mark is set."""
        if self.options.exactly_once:
            where = replace(self.options.where, url=url)
            with contextlib.closing(Connection(where)) as connection, contextlib.suppress(ServerFailed):
                forget(connection, token)


class BatchSink(DataSourceArrowWriter):
    """`DataFrame.write`: all rows or none, in one commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._writing = _Writing(options, schema, overwrite)
        self._token = f"write-{uuid.uuid4().hex}"
        transaction = self._writing.options.transaction
        self._mark, self._number = (f"spark-{self._token}", 0)
        if transaction is not None:
            self._mark, self._number = f"spark-txn-{transaction[0]}", transaction[1]

    def write(self, iterator: Iterator[Any]) -> Written:
        """Stage the rows of one task."""
        return self._writing.hand_over(iterator, self._token, self._mark)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Send them all."""
        self._writing.publish(messages, self._number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        self._writing.forget(self._token, self._writing.options.where.url)


class StreamSink(DataSourceStreamArrowWriter):
    """`DataFrame.writeStream`: each batch once, in one commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._writing = _Writing(options, schema, False)
        if self._writing.options.transaction is not None:
            raise InvalidOption("txnAppId and txnVersion are for a batch write (in foreachBatch); a stream has an id")

    def write(self, iterator: Iterator[Any]) -> Written:
        """Stage the rows of one task."""
        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch_id = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if not query_id or batch_id is None:
            raise SparkError("this task belongs to no stream: without a query id, rows cannot be written exactly once")
        return self._writing.hand_over(iterator, f"stream-{query_id}-{batch_id}", f"spark-stream-{query_id}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Send them all, once."""
        self._writing.publish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what was staged, as far as a task could say where. The rest goes when the batch is done again."""
        for token, url in {(each.token, each.url) for each in messages if isinstance(each, Written)}:
            self._writing.forget(token, url)
