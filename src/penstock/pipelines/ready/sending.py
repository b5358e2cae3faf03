"""Sending numbered tables from the driver, each once, however often it is tried."""

from __future__ import annotations

from typing import Any

from penstock.pipelines.where import Where
from penstock.spark.options import Where as ConnectorWhere
from penstock.spark.pieces import Pieces, publish
from penstock.spark.rows import Rows
from penstock.spark.server import Connection


class Sender:
    """Sends tables of messages to one queue of one server."""

    def __init__(self, where: Where, queue: str) -> None:
        self._connection = Connection(ConnectorWhere(where.url, None, where.token, where.ca_file))
        self._queue = queue

    def publish(self, table: Any, name: str, number: int) -> None:
        """Send a table (value, key, headers) under a name and a number. A number that was sent before does nothing."""
        token = f"{name}-{number}"
        pieces = Pieces(self._connection, 0, token)
        pieces.add_all(Rows(self._queue, 0), table.combine_chunks().to_batches())
        if pieces.names:
            publish(self._connection, token, pieces.names, name, number)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
