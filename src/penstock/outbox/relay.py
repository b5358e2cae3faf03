"""The relay: moves committed rows of an outbox to their queues. Any number may run, anywhere.

How it works. A relay *claims* some rows for a while (with `FOR UPDATE SKIP LOCKED` where the database has it, so that
relays do not wait for each other), commits that, sends them as one unit of work, and marks them as sent. No transaction
is open while it talks to Penstock. If it dies, the claim runs out and another relay sends the rows again.

Why nothing is there twice. Each message carries a dedup id of its own, so a repetition within five minutes adds
nothing; claims are much shorter than that, and a relay that was held up for half its claim sends nothing any more. What
is left is an outage, of the database or of Penstock, that begins just after a batch was taken and before that was
written down, and lasts for more than five minutes: then the batch is sent a second time. Its messages carry the same
`outbox_id`, by which `Inbox.once` recognises them.

Order. Rows of one group of one queue are sent in the order of their ids. So a relay claims a row only if it has, or has
sent, every earlier one of its group: what stands behind a row that another relay has, or that waits for another try, is
left alone. A row that is marked as failed blocks nobody.

Failures. A row that no queue will take is marked with the error (`FAILED`); the batch is halved until it is found, so
the others go on. That holds for whatever another program has written into a row, also for what is no text, or no
number. A row that may be taken later (the right is missing, the rate is exceeded) waits, longer each time, and its
group with it. When Penstock cannot be reached, rows go back as they are, and the relay pauses.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    and_,
    bindparam,
    delete,
    exists,
    func,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from penstock.client.listening import pause_seconds
from penstock.client.sync.penstock import Penstock
from penstock.client.sync.unit_of_work import UnitOfWork
from penstock.client.thread_workers import Signal
from penstock.client.times import Seconds, length_ms
from penstock.core.backoff import backoff
from penstock.core.errors import ConnectionLost, InvalidRequest, PenstockError, StoreError
from penstock.core.queues.attributes import AttributeValue, decode_attributes
from penstock.core.queues.config import DEDUP_WINDOW_MS
from penstock.outbox.outbox import FAILED, OUTBOX_ID, PENDING, SENT, Outbox, claimed_until_ms, now_ms

_LOG = logging.getLogger("penstock.outbox")
_BATCH_BYTES_MAX = 16 * 1024 * 1024
_BATCH_MAX = 10_000
_CLEAN_EVERY_SECONDS = 60.0
_RETRY_MS_MAX = 5 * 60_000
_ERROR_LENGTH_MAX = 2_000
_STOP_SECONDS_MAX = 0.5
"""How long a relay that waits for PostgreSQL does not look whether it should stop."""

Message = Row[Any]
"""A row of the outbox."""
Group = tuple[str, str]
"""A queue, and a group in it."""


@dataclass(frozen=True)
class Moved:
    """What one round of a relay did."""

    sent: int = 0
    failed: int = 0
    """Marked as impossible."""
    postponed: int = 0
    """To be tried again later."""
    more: bool = False
    """Whether there was more than one round takes."""
    outage: PenstockError | None = None
    """Why nothing can be sent at the moment."""


@dataclass
class _Outcome:
    """What became of the rows of a claim."""

    sent: list[Message] = field(default_factory=list)
    failed: list[tuple[Message, PenstockError]] = field(default_factory=list)
    postponed: list[tuple[Message, PenstockError]] = field(default_factory=list)
    given_back: list[Message] = field(default_factory=list)
    """Not tried: something before them has to go first."""
    blocked: set[Group] = field(default_factory=set)
    outage: PenstockError | None = None
    """Penstock cannot be reached, or cannot write: nothing goes at the moment."""


class Relay:
    """Moves messages from an outbox to queues, in a thread of its own or in yours.

    `run_once` makes one round; `run` goes on until `stop`; `start`, or a `with` block, runs in a thread.

    >>> import penstock
    >>> from sqlalchemy import create_engine
    >>> engine, outbox = create_engine("sqlite://"), Outbox()
    >>> outbox.metadata.create_all(engine)
    >>> with engine.begin() as connection:
    ...     key = outbox.send(connection, "orders", b"two teas")
    >>> with penstock.open(":memory:") as ps:
    ...     Relay(engine, ps, outbox).run_once().sent
    ...     ps.queue("orders").receive().body
    1
    b'two teas'
    """

    def __init__(
        self,
        engine: Engine,
        ps: Penstock,
        outbox: Outbox | None = None,
        *,
        batch: int = 500,
        poll: Seconds = 1.0,
        claim: Seconds = 30.0,
        keep_sent: Seconds = 3_600.0,
    ) -> None:
        if not isinstance(engine, Engine):
            raise InvalidRequest(
                f"engine is {type(engine).__name__}: a relay works in a thread, give what create_engine made"
            )
        if not isinstance(ps, Penstock):  # its commits would not be awaited, and the rows taken for sent
            raise InvalidRequest(
                f"ps is {type(ps).__name__}: a relay works in a thread, give what open or connect made"
            )
        self._engine = engine
        self._ps = ps
        self._outbox = outbox or Outbox()
        self._batch = batch
        self._poll_seconds = (length_ms(poll, "poll") or 0) / 1_000
        self._claim_ms = length_ms(claim, "claim") or 0
        self._keep_sent_ms = length_ms(keep_sent, "keep_sent") or 0
        if not 1 <= batch <= _BATCH_MAX:
            raise InvalidRequest(f"batch is {batch}: it must be from 1 to {_BATCH_MAX}")
        if not 100 <= self._claim_ms <= DEDUP_WINDOW_MS // 2:
            raise InvalidRequest(f"claim is {claim}: it must be from 0.1 to {DEDUP_WINDOW_MS // 2_000} seconds")
        if self._poll_seconds <= 0:
            raise InvalidRequest(f"poll is {poll}: it must be more than 0 seconds")
        self._stopping = False
        self._wake = Signal()
        self._thread: threading.Thread | None = None
        self._bell: Connection | None = None
        """A connection that listens to PostgreSQL's notifications."""
        self._cleaned_at = -_CLEAN_EVERY_SECONDS
        self.sent = 0
        """Messages that this relay has sent."""
        self.failed = 0
        """Messages that this relay has marked as impossible."""

    # -- running --

    def start(self) -> Self:
        """Run in a thread, until `stop`."""
        self._stopping = False
        self._thread = threading.Thread(target=self.run, name="penstock-outbox-relay", daemon=True)
        self._thread.start()
        return self

    def request_stop(self) -> None:
        """Ask for the end of `run`, from anywhere: a signal handler too."""
        self._stopping = True
        self._wake.set()

    def stop(self) -> None:
        """End after the round that is being made."""
        self.request_stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def run(self) -> None:
        """Round after round, until `stop`. Whatever goes wrong, it is tried again after a pause that grows."""
        failures = 0
        while not self._stopping:
            try:
                self._listen()
                moved = self.run_once()
                self._clean_if_due()
                trouble: Exception | None = moved.outage
                if not (trouble or moved.more):
                    self._wait()
            except Exception as error:  # the database's driver has errors of its own; a relay goes on
                self._hang_up()
                trouble = error
            failures = failures + 1 if trouble else 0
            if trouble:
                _LOG.warning("outbox %s: sending failed, trying again: %s", self._outbox.table.fullname, _said(trouble))
                self._wake.wait(pause_seconds(failures))
        self._hang_up()

    def run_until_empty(self) -> None:
        """Round after round, until nothing is left that can be sent now; or an error is raised."""
        moved = Moved(more=True)
        while (moved.more or moved.sent) and not self._stopping:
            moved = self.run_once()
            if moved.outage is not None:
                raise moved.outage

    def run_once(self) -> Moved:
        """Claim, send and mark one batch of messages."""
        token, started = uuid.uuid4().hex, time.monotonic()
        with self._engine.begin() as connection:
            rows, more = self._claim(connection, token)
        if not rows:
            return Moved(more=more)
        outcome = _Outcome()
        if (time.monotonic() - started) * 1_000 < self._claim_ms / 2:
            self._send(rows, outcome)
        else:  # held up: somebody else may have them by now
            outcome.given_back += rows
        with self._engine.begin() as connection:
            self._mark(connection, token, outcome)
        self.sent += len(outcome.sent)
        self.failed += len(outcome.failed)
        return Moved(len(outcome.sent), len(outcome.failed), len(outcome.postponed), more, outcome.outage)

    # -- claiming --

    def _claim(self, connection: Connection, token: str) -> tuple[list[Message], bool]:
        """Rows that are this relay's for a while, in order; and whether there may be more of them."""
        table = self._outbox.table
        wanted = (
            select(table.c.id, func.length(table.c.body))
            .where(self._is_free(), or_(table.c.message_group.is_(None), ~self._is_blocked()))
            .order_by(table.c.id)
            .limit(self._batch)
            .with_for_update(skip_locked=True, of=table)
        )
        found = connection.execute(wanted).all()
        ids = _up_to(_BATCH_BYTES_MAX, found)
        if not ids:
            return [], False
        # Where rows are not locked (SQLite), another relay may have come in between: only what is still free.
        connection.execute(
            update(table)
            .where(table.c.id.in_(ids), self._is_free())
            .values(claim=token, claimed_until_ms=now_ms() + self._claim_ms)
        )
        mine = select(table).where(table.c.id.in_(ids), table.c.claim == token).order_by(table.c.id)
        with _broken_text_as_bytes(connection):
            rows = connection.execute(mine).all()
        return self._in_order(connection, token, rows), len(found) == self._batch or len(ids) < len(found)

    def _is_free(self) -> ColumnElement[bool]:
        table = self._outbox.table
        return and_(table.c.state == PENDING, claimed_until_ms(table) <= now_ms())

    def _is_blocked(self) -> ColumnElement[bool]:
        """Whether an earlier row of the same group is in work, or waits for another try."""
        table, earlier = self._outbox.table, self._outbox.table.alias("earlier")
        return exists().where(
            earlier.c.queue == table.c.queue,
            earlier.c.message_group == table.c.message_group,
            earlier.c.id < table.c.id,
            earlier.c.state == PENDING,
            claimed_until_ms(earlier) > now_ms(),
        )

    def _in_order(self, connection: Connection, token: str, rows: Iterable[Message]) -> list[Message]:
        """Give up what stands behind a row of the same group that is not this relay's."""
        rows = list(rows)
        first = self._first_of_others(connection, token, rows)
        keep = [row for row in rows if row.message_group is None or row.id < first.get(_group(row), row.id + 1)]
        left = [row.id for row in rows if row.id not in {each.id for each in keep}] if len(keep) < len(rows) else []
        if left:
            self._give_back(connection, token, left)
        return keep

    def _first_of_others(self, connection: Connection, token: str, rows: list[Message]) -> dict[Group, int]:
        table = self._outbox.table.c
        found = {_group(row) for row in rows if row.message_group is not None}
        groups = sorted(each for each in found if all(isinstance(name, str) for name in each))
        if not groups:
            return {}
        others = (
            select(table.queue, table.message_group, func.min(table.id))
            .where(
                table.state == PENDING,
                tuple_(table.queue, table.message_group).in_(groups),
                table.claim.is_distinct_from(token),
            )
            .group_by(table.queue, table.message_group)
        )
        return {(queue, group): number for queue, group, number in connection.execute(others)}

    # -- sending --

    def _send(self, rows: list[Message], outcome: _Outcome) -> None:
        """Send rows as one unit of work; halve them when something among them is refused."""
        if outcome.outage is not None or outcome.blocked:
            behind = {row.id for row in rows if outcome.outage is not None or _group(row) in outcome.blocked}
            outcome.given_back += [row for row in rows if row.id in behind]
            rows = [row for row in rows if row.id not in behind]
        if not rows:
            return
        error = self._try(rows)
        if error is None:
            outcome.sent += rows
        elif isinstance(error, ConnectionLost | StoreError):
            outcome.outage = error
            outcome.given_back += rows
        elif len(rows) > 1:
            middle = len(rows) // 2
            self._send(rows[:middle], outcome)
            self._send(rows[middle:], outcome)
        elif isinstance(error, InvalidRequest):
            outcome.failed.append((rows[0], error))
        else:
            outcome.postponed.append((rows[0], error))
            if rows[0].message_group is not None:
                outcome.blocked.add(_group(rows[0]))

    def _try(self, rows: list[Message]) -> PenstockError | None:
        try:
            work = self._ps.unit_of_work()
            for row in rows:
                _put(work, row)
            work.commit()
        except PenstockError as error:
            return error
        return None

    # -- marking --

    def _mark(self, connection: Connection, token: str, outcome: _Outcome) -> None:
        """Write down what became of the rows."""
        self._mark_sent(connection, [row.id for row in outcome.sent])
        self._give_back(connection, token, [row.id for row in outcome.given_back])
        table = self._outbox.table
        mine = (table.c.id == bindparam("row_id"), table.c.claim == token, table.c.state == PENDING)
        if outcome.failed:
            failed = update(table).where(*mine).values(state=FAILED, error=bindparam("why"), done_ms=now_ms())
            connection.execute(failed, [_reason(row, error) for row, error in outcome.failed])
            for row, error in outcome.failed:
                _LOG.error("outbox %s: message %s cannot be sent: %s", table.fullname, row.key, error)
        if outcome.postponed:
            again = {"claimed_until_ms": now_ms() + bindparam("pause_ms"), "tries": table.c.tries + 1}
            later = update(table).where(*mine).values(**again, error=bindparam("why"))
            pauses = [{**_reason(row, error), "pause_ms": _pause_ms(row)} for row, error in outcome.postponed]
            connection.execute(later, pauses)
            _LOG.warning(
                "outbox %s: %d messages wait: %s", table.fullname, len(outcome.postponed), outcome.postponed[0][1]
            )

    def _mark_sent(self, connection: Connection, ids: list[int]) -> None:
        table = self._outbox.table
        if not ids:
            return
        if self._keep_sent_ms:
            sent = update(table).where(table.c.id.in_(ids))
            connection.execute(sent.values(state=SENT, done_ms=now_ms(), claim=None, error=None))
        else:
            connection.execute(delete(table).where(table.c.id.in_(ids)))

    def _give_back(self, connection: Connection, token: str, ids: list[int]) -> None:
        table = self._outbox.table
        if ids:
            given_back = update(table).where(table.c.id.in_(ids), table.c.claim == token)
            connection.execute(given_back.values(claim=None, claimed_until_ms=0))

    # -- between rounds --

    def _clean_if_due(self) -> None:
        if not self._keep_sent_ms or time.monotonic() - self._cleaned_at < _CLEAN_EVERY_SECONDS:
            return
        self._cleaned_at = time.monotonic()
        deleted = 1
        while deleted and not self._stopping:
            with self._engine.begin() as connection:
                deleted = self._outbox.clean(connection, self._keep_sent_ms / 1_000)

    def _wait(self) -> None:
        """Until there may be something new."""
        if self._bell is None:
            self._wake.wait(self._poll_seconds)
            return
        driver: Any = self._bell.connection.driver_connection
        until = time.monotonic() + self._poll_seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            for _ in driver.notifies(timeout=min(left, _STOP_SECONDS_MAX), stop_after=1):
                return

    def _listen(self) -> None:
        """Have PostgreSQL tell of new rows, if its driver can wait for that (psycopg 3 can)."""
        if self._bell is not None or not self._outbox.notify or self._engine.dialect.name != "postgresql":
            return
        if self._engine.dialect.driver != "psycopg":
            return
        bell = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        quoted = bell.dialect.identifier_preparer.quote(self._outbox.channel)
        bell.execute(text(f"LISTEN {quoted}"))
        self._bell = bell

    def _hang_up(self) -> None:
        if self._bell is not None:
            bell, self._bell = self._bell, None
            with contextlib.suppress(SQLAlchemyError):
                bell.invalidate()  # not for others: it still listens
                bell.close()


def _up_to(bytes_max: int, found: Iterable[Any]) -> list[int]:
    """The first ids whose bodies together are not too large; one at least.

    >>> _up_to(10, [(1, 6), (2, 4), (3, 1)]), _up_to(10, [(1, 60)])
    ([1, 2], [1])
    """
    ids: list[int] = []
    total = 0
    for number, size in found:
        total += size
        if ids and total > bytes_max:
            break
        ids.append(number)
    return ids


@contextlib.contextmanager
def _broken_text_as_bytes(connection: Connection) -> Iterator[None]:
    """Have SQLite hand over text that is no UTF-8 as bytes: it would refuse the other rows along with it."""
    driver: Any = connection.connection.driver_connection
    if getattr(driver, "text_factory", None) is not str:
        yield
        return
    driver.text_factory = _text_or_bytes
    try:
        yield
    finally:
        driver.text_factory = str


def _text_or_bytes(raw: bytes) -> str | bytes:
    """Text, if it is.

    >>> _text_or_bytes(b"tea"), _text_or_bytes(b"\\xff")
    ('tea', b'\\xff')
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _group(row: Message) -> Group:
    return row.queue, row.message_group


def _put(work: UnitOfWork, row: Message) -> None:
    if not isinstance(row.key, str):
        raise InvalidRequest(f"key is {row.key!r}: it must be text")
    work.put(
        row.queue,
        row.body,
        attributes={**_attributes(row), OUTBOX_ID: row.key},
        group=row.message_group,
        dedup_id=row.dedup_id or row.key,
        priority=row.priority,
        due=_due_seconds(row),
    )


def _due_seconds(row: Message) -> float | None:
    """When a row's message is due. SQLite takes text in a number's column."""
    if row.due_ms is None:
        return None
    if not isinstance(row.due_ms, int | float):
        raise InvalidRequest(f"due_ms is {row.due_ms!r}: it must be a number")
    return row.due_ms / 1_000


def _attributes(row: Message) -> dict[str, AttributeValue]:
    """A row's attributes. Not every row was written by an outbox: a trigger, or another program, may have done it."""
    try:
        return decode_attributes(row.attributes)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidRequest(f"the attributes cannot be read: {error}") from None


def _said(error: Exception) -> str:
    """An error in one line: SQLAlchemy's go on with the statement and its parameters."""
    return str(error).partition("\n")[0] or type(error).__name__


def _reason(row: Message, error: PenstockError) -> dict[str, Any]:
    return {"row_id": row.id, "why": f"{type(error).__name__}: {error}"[:_ERROR_LENGTH_MAX]}


def _pause_ms(row: Message) -> int:
    """How long a row waits that may be taken later."""
    tries = row.tries if isinstance(row.tries, int) else 0  # SQLite takes text, too; and counts on from 0
    return int(backoff(tries + 1, 1_000, _RETRY_MS_MAX))
