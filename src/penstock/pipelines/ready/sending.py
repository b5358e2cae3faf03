"""Sending numbered pieces from the driver, each once, however often it is tried."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import quote

from penstock.core.changes import Buffer
from penstock.pipelines.where import Where
from penstock.spark.options import Where as ConnectorWhere
from penstock.spark.rows import Rows
from penstock.spark.server import Connection
from penstock.wire.pieces import CONTENT_TYPE, encode_section

_STAGED_BYTES = 4 * 1024 * 1024


class Sender:
    """Sends tables of messages to one queue of one server."""

    def __init__(self, where: Where, queue: str) -> None:
        self._connection = Connection(ConnectorWhere(where.url, None, where.token, where.ca_file))
        self._queue = queue

    def publish(self, table: Any, name: str, number: int) -> None:
        """Send a table (value, key, headers) under a name and a number. A number that was sent before does nothing."""
        token = f"{name}-{number}"
        staged: list[str] = []
        parts: list[Buffer] = []
        rows = Rows(self._queue, 0)
        for batch in table.combine_chunks().to_batches():
            for target, chunk, _, _ in rows.sections(batch):
                parts += encode_section(target, chunk)
                if sum(map(len, parts)) >= _STAGED_BYTES:
                    staged.append(self._stage(token, parts))
                    parts = []
        if parts:
            staged.append(self._stage(token, parts))
        if staged:
            body = {"token": token, "pieces": staged, "name": name, "number": number}
            self._connection.ask("POST", "/v1/bulk/publish", body)

    def _stage(self, token: str, parts: list[Buffer]) -> str:
        piece = uuid.uuid4().hex
        path = f"/v1/bulk/staging/{quote(token)}/{piece}"
        self._connection.request("PUT", path, b"".join(parts), {"content-type": CONTENT_TYPE}).read()
        return piece

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
