"""Penstock and two other embedded queues behind one small interface, so that a benchmark drives all three alike.

Each of the others gets the best of what it offers, and more where it offers nothing for a run:

- All sync at every commit: WAL with `synchronous=FULL`. (litequeue's own default, NORMAL, does not sync a commit in
  WAL mode.)
- A run is one transaction. litequeue has a transaction for puts, but `pop` opens one of its own: here it joins the one
  around it. persist-queue commits every statement: here the commit waits for the end of the run.
- Finished messages are removed outside the measured time, since both keep them, and slow down with every one kept.
- A lock, and not SQLite's busy handler, which sleeps, makes threads take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import litequeue
import persistqueue

import penstock


class Rival(Protocol):
    """A durable queue with leases. Every method returns when its effect is on the disk."""

    def send(self, body: bytes) -> None:
        """Send one message."""

    def finish(self) -> None:
        """Receive one message, then ack it."""

    def send_run(self, bodies: list[bytes]) -> None:
        """Send a run."""

    def finish_run(self, count: int) -> None:
        """Receive a run, then ack it."""

    def tidy(self) -> None:
        """Forget what is finished. Not measured."""

    def close(self) -> None:
        """Close."""


class Penstock:
    """This project, as a user would use it."""

    def __init__(self, directory: Path) -> None:
        self._penstock = penstock.open(directory)
        self._queue = self._penstock.create_queue("rivals")

    def send(self, body: bytes) -> None:
        """Send one message."""
        self._queue.send(body)

    def finish(self) -> None:
        """Receive one message, then ack it."""
        message = self._queue.receive(wait=5)
        assert message is not None
        message.ack()

    def send_run(self, bodies: list[bytes]) -> None:
        """Send a run."""
        self._queue.send_many(bodies)

    def finish_run(self, count: int) -> None:
        """Receive a run, then ack it."""
        batch = self._queue.receive_batch(max=count)
        assert len(batch) == count
        assert len(batch.bodies) == count
        batch.ack()

    def tidy(self) -> None:
        """Nothing to do: what is finished is gone."""

    def close(self) -> None:
        """Close."""
        self._penstock.close()


class JoiningLiteQueue(litequeue.LiteQueue):  # type: ignore[misc]
    """litequeue, with transactions that join the one around them."""

    @contextmanager
    def transaction(self, mode: str = "DEFERRED") -> Iterator[None]:
        """As the original; inside another transaction, part of it."""
        if self.conn.in_transaction:
            yield
            return
        with super().transaction(mode):
            yield


class Lite:
    """litequeue: bodies are text there, and are encoded and decoded by nobody here."""

    def __init__(self, directory: Path) -> None:
        self._queue = JoiningLiteQueue(directory / "litequeue.sqlite")
        self._queue.conn.execute("PRAGMA synchronous = FULL")
        self._turn = threading.Lock()

    def send(self, body: bytes) -> None:
        """Send one message."""
        with self._turn:
            self._queue.put(body)

    def finish(self) -> None:
        """Receive one message, then ack it."""
        with self._turn:
            message = self._queue.pop()
        with self._turn:
            self._queue.done(message.message_id)

    def send_run(self, bodies: list[bytes]) -> None:
        """Send a run, in one transaction."""
        with self._queue.transaction():
            for body in bodies:
                self._queue.put(body)

    def finish_run(self, count: int) -> None:
        """Receive a run in one transaction, and ack it in another."""
        with self._queue.transaction():
            messages = [self._queue.pop() for _ in range(count)]
        with self._queue.transaction():
            for message in messages:
                self._queue.done(message.message_id)

    def tidy(self) -> None:
        """Delete what is done."""
        self._queue.prune()

    def close(self) -> None:
        self._queue.close()


class PatientConnection:
    """A SQLite connection whose commits wait while a run is under way."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._in_run = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def __enter__(self) -> PatientConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.commit()

    def commit(self) -> None:
        """Commit, unless a run is under way."""
        if not self._in_run:
            self._connection.commit()

    @contextmanager
    def run(self) -> Iterator[None]:
        """Everything in this block is one commit."""
        self._in_run = True
        try:
            yield
        finally:
            self._in_run = False
        self.commit()


class Persist:
    """persist-queue: its SQLite queue with acknowledgements."""

    def __init__(self, directory: Path) -> None:
        queue: Any = persistqueue.SQLiteAckQueue(str(directory / "persist-queue"), multithreading=True)
        self._queue = queue
        self._queue._getter.close()
        connection = PatientConnection(self._queue._putter)
        connection.execute("PRAGMA synchronous = FULL")
        self._queue._getter = self._queue._putter = self._connection = connection
        self._turn = threading.Lock()

    def send(self, body: bytes) -> None:
        """Send one message."""
        with self._turn:
            self._queue.put(body)

    def finish(self) -> None:
        """Receive one message, then ack it."""
        with self._turn:
            message = self._queue.get(block=False, raw=True)
        with self._turn:
            self._queue.ack(message)

    def send_run(self, bodies: list[bytes]) -> None:
        """Send a run, in one transaction."""
        with self._connection.run():
            for body in bodies:
                self._queue.put(body)

    def finish_run(self, count: int) -> None:
        """Receive a run in one transaction, and ack it in another."""
        with self._connection.run():
            messages = [self._queue.get(block=False, raw=True) for _ in range(count)]
        with self._connection.run():
            for message in messages:
                self._queue.ack(message)

    def tidy(self) -> None:
        """Delete what is acked."""
        self._queue.clear_acked_data(max_delete=0, keep_latest=0)

    def close(self) -> None:
        self._queue.close()
