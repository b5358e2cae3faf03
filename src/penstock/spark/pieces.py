"""Handing messages to a server in pieces: sent at once, or staged, to be published in one commit, once.

A piece is on its way while the next one is gathered: one thread hands them over, one after the other, in their order.
What goes wrong there is raised at the next piece, or at the end.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from penstock.core.storage.changes import Buffer
from penstock.spark.errors import InvalidRow, ServerFailed
from penstock.spark.rows import Rows
from penstock.spark.server import Connection
from penstock.wire.pieces import CONTENT_TYPE, encode_section

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
