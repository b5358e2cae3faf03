"""The outbox: a table in the user's database, into which messages are written together with the user's own changes.

A row waits (`PENDING`) until its transaction has committed and a relay has claimed it and sent it (`SENT`); or until
its message turns out to be one that no queue would take (`FAILED`, with the reason).

Each row has a key of its own, made here. It goes with the message as its dedup id, unless the user gave one, and as the
attribute `outbox_id`. Whatever goes wrong on the way, the message is known by it: the queue recognises a repetition for
five minutes, and the inbox for as long as it remembers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Engine,
    FromClause,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    and_,
    case,
    cast,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement
from sqlalchemy.sql.functions import FunctionElement

from penstock.client.content import Body, Content, encode_body
from penstock.client.times import Moment, Seconds, length_ms, moment_ms
from penstock.core.errors import InvalidRequest, MessageTooLarge
from penstock.core.queues.attributes import Attributes, encode_attributes
from penstock.core.queues.config import DELAY_MS_MAX, MESSAGE_BYTES_CEILING, PRIORITY_MAX, check_name

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    Executes = Connection | Session
    ExecutesLater = AsyncConnection | AsyncSession

    class _Options(TypedDict, total=False):
        attributes: Attributes | None
        group: str | None
        dedup_id: str | None
        priority: int
        delay: Seconds | None
        due: Moment | None

    class _ManyOptions(TypedDict, total=False):
        groups: Sequence[str | None] | None
        priority: int


class now_ms(FunctionElement[int]):
    """Milliseconds since 1970, when the statement runs, by the database: relays agree on it, whatever their clocks."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms, "postgresql")
def _postgresql(_element: Any, _compiler: Any, **_options: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(now_ms, "sqlite")
def _sqlite(_element: Any, _compiler: Any, **_options: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


OUTBOX_ID = "outbox_id"
"""The attribute that carries a row's key."""
PENDING, SENT, FAILED = 0, 1, 2
_TEXT_LENGTH_MAX = 128
_CHANNEL_BYTES_MAX = 63
"""PostgreSQL ends the transaction that notifies under a longer name."""
_DELETED_AT_ONCE = 1_000
_NOTIFY = text("SELECT pg_notify(:channel, '')")


@dataclass(frozen=True)
class OutboxStatus:
    """What lies in an outbox."""

    pending: int
    """Committed, and not yet sent; those in work included."""
    claimed: int
    """Of these: in some relay's hands, or waiting for another try."""
    failed: int
    """Refused for good: look at `error`, and `retry` when the reason is gone."""
    sent: int
    """Sent, and not yet deleted."""
    oldest_pending_seconds: float | None
    """How long the oldest one has been waiting."""


class Outbox:
    """A table of messages to be sent. One object may be shared by everything in the process.

    >>> from sqlalchemy import create_engine
    >>> engine, outbox = create_engine("sqlite://"), Outbox()
    >>> outbox.metadata.create_all(engine)
    >>> with engine.begin() as connection:
    ...     key = outbox.send(connection, "orders", b"two teas", attributes={"table": 7})
    ...     outbox.status(connection).pending
    1
    """

    def __init__(
        self,
        table: str = "penstock_outbox",
        *,
        schema: str | None = None,
        metadata: MetaData | None = None,
        notify: bool = True,
    ) -> None:
        self.metadata = MetaData() if metadata is None else metadata
        """What `create_all` makes; or your own, which then holds this table too."""
        self.notify = notify
        """On PostgreSQL: wake the relays at each commit, instead of letting them find out."""
        number = BigInteger().with_variant(Integer, "sqlite")
        self.table = Table(
            table,
            self.metadata,
            Column("id", number, primary_key=True, autoincrement=True),
            Column("key", String(32), nullable=False),
            Column("queue", String(_TEXT_LENGTH_MAX), nullable=False),
            Column("body", LargeBinary, nullable=False),
            Column("attributes", LargeBinary),
            Column("message_group", String(_TEXT_LENGTH_MAX)),
            Column("dedup_id", String(_TEXT_LENGTH_MAX)),
            Column("priority", SmallInteger, nullable=False, server_default="0"),
            Column("due_ms", BigInteger),
            Column("created_ms", BigInteger, nullable=False),
            Column("state", SmallInteger, nullable=False, server_default="0"),
            Column("claim", String(32)),
            Column("claimed_until_ms", BigInteger, nullable=False, server_default="0"),
            Column("tries", Integer, nullable=False, server_default="0"),
            Column("done_ms", BigInteger),
            Column("error", Text),
            schema=schema,
        )
        is_pending = self.table.c.state == text(str(PENDING))
        ordered = and_(is_pending, self.table.c.message_group.is_not(None))
        Index(f"{table}_pending", self.table.c.id, postgresql_where=is_pending, sqlite_where=is_pending)
        Index(
            f"{table}_order",
            self.table.c.queue,
            self.table.c.message_group,
            self.table.c.id,
            postgresql_where=ordered,
            sqlite_where=ordered,
        )
        done = self.table.c.state != text(str(PENDING))
        Index(f"{table}_done", self.table.c.done_ms, postgresql_where=done, sqlite_where=done)

    @property
    def channel(self) -> str:
        """The name under which PostgreSQL tells relays of new rows. Two that share one are woken for each other."""
        name = self.table.fullname.replace(".", "_").encode()
        return name[:_CHANNEL_BYTES_MAX].decode(errors="ignore")

    def schema(self, engine: Engine) -> str:
        """The statements that make the table, for a migration."""
        return ddl(self.table, engine)

    # -- sending --

    @overload
    def send(self, connection: Executes, queue: str, body: Body, **options: Unpack[_Options]) -> str: ...

    @overload
    def send(
        self, connection: ExecutesLater, queue: str, body: Body, **options: Unpack[_Options]
    ) -> Awaitable[str]: ...

    def send(
        self,
        connection: Executes | ExecutesLater,
        queue: str,
        body: Body,
        *,
        attributes: Attributes | None = None,
        group: str | None = None,
        dedup_id: str | None = None,
        priority: int = 0,
        delay: Seconds | None = None,
        due: Moment | None = None,
    ) -> str | Awaitable[str]:
        """Write a message into the outbox, in the transaction that `connection` is in. Returns its key.

        It is sent when that transaction has committed, and never if it rolls back. With an `AsyncConnection` or an
        `AsyncSession`, await it. What could never be sent is refused here: the database is not touched then.
        """
        row = _row(queue, body, attributes, group, dedup_id, priority)
        row["due_ms"] = _due(delay, due)
        key: str | Awaitable[str] = self._write(connection, [row], row["key"])
        return key

    @overload
    def send_many(
        self, connection: Executes, queue: str, bodies: Sequence[Body], **options: Unpack[_ManyOptions]
    ) -> list[str]: ...

    @overload
    def send_many(
        self, connection: ExecutesLater, queue: str, bodies: Sequence[Body], **options: Unpack[_ManyOptions]
    ) -> Awaitable[list[str]]: ...

    def send_many(
        self,
        connection: Executes | ExecutesLater,
        queue: str,
        bodies: Sequence[Body],
        *,
        groups: Sequence[str | None] | None = None,
        priority: int = 0,
    ) -> list[str] | Awaitable[list[str]]:
        """Write many messages with one statement. Returns their keys."""
        if groups is not None and len(groups) != len(bodies):
            raise InvalidRequest(f"{len(groups)} groups were given for {len(bodies)} messages: give one for each")
        rows = [
            _row(queue, body, None, group, None, priority)
            for body, group in zip(bodies, groups or [None] * len(bodies), strict=True)
        ]
        keys: list[str] | Awaitable[list[str]] = self._write(connection, rows, [row["key"] for row in rows])
        return keys

    def _write(self, connection: Any, rows: list[dict[str, Any]], result: Any) -> Any:
        def write(executes: Any) -> Any:
            if rows:
                executes.execute(self._insert(rows), rows)
                self._tell(executes)
            return result

        return connection.run_sync(write) if hasattr(connection, "run_sync") else write(connection)

    def _insert(self, rows: list[dict[str, Any]]) -> Any:
        """`due_ms` is given as a delay by a negative number: the database knows what time it is."""
        values: dict[str, Any] = {"created_ms": now_ms()}
        delayed = rows[0].get("due_ms")
        if delayed is not None and delayed < 0:
            values["due_ms"] = now_ms() - delayed
            for row in rows:
                del row["due_ms"]
        return insert(self.table).values(**values)

    def _tell(self, executes: Any) -> None:
        connection = connection_of(executes, self.table)
        if self.notify and connection.dialect.name == "postgresql":
            connection.execute(_NOTIFY, {"channel": self.channel})

    # -- looking and tidying --

    def status(self, connection: Executes) -> OutboxStatus:
        """What lies in the outbox."""
        table = self.table.c
        pending = table.state == PENDING
        row = connection.execute(
            select(
                func.count(case((pending, 1))),
                func.count(case((and_(pending, claimed_until_ms(self.table) > now_ms()), 1))),
                func.count(case((table.state == FAILED, 1))),
                func.count(case((table.state == SENT, 1))),
                now_ms() - func.min(case((pending, table.created_ms))),
            )
        ).one()
        oldest_ms = row[4]
        return OutboxStatus(row[0], row[1], row[2], row[3], None if oldest_ms is None else oldest_ms / 1_000)

    def retry(self, connection: Executes) -> int:
        """Let relays retry messages that have failed. Returns how many messages."""
        table = self.table
        again = update(table).where(table.c.state == FAILED)
        count = _rows(connection.execute(again.values(state=PENDING, claimed_until_ms=0, done_ms=None)))
        self._tell(connection)
        return count

    def clean(self, connection: Executes, older_than: Seconds, *, failed: bool = False) -> int:
        """Delete what was sent so long ago; with `failed` also what failed. Returns how many rows.

        At most some thousand at a time, so that no transaction gets long: call it again until it returns 0.
        """
        age_ms = length_ms(older_than, "older_than") or 0
        table = self.table.c
        states = [SENT, FAILED] if failed else [SENT]
        old = (
            select(table.id)
            .where(table.state.in_(states), table.done_ms <= now_ms() - age_ms)
            .order_by(table.done_ms)
            .limit(_DELETED_AT_ONCE)
            .with_for_update(skip_locked=True)
        )
        ids = list(connection.execute(old).scalars())
        if not ids:
            return 0
        return _rows(connection.execute(delete(self.table).where(table.id.in_(ids))))


def claimed_until_ms(table: FromClause) -> ColumnElement[int]:
    """Until when a row is claimed. SQLite takes text in a number's column, and no claim is made with that: it is 0."""
    return cast(table.c.claimed_until_ms, BigInteger)


def connection_of(executes: Any, table: Table) -> Connection:
    """The connection by which a session, which may have several databases, reaches a table; or the one given."""
    connection: Connection = executes
    if hasattr(executes, "get_bind"):
        connection = executes.connection(bind_arguments={"clause": table})
    return connection


def _rows(result: Any) -> int:
    """How many rows a statement changed."""
    return int(result.rowcount)


def ddl(table: Table, engine: Engine) -> str:
    """The statements that make a table and its indexes."""
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    statements: list[ExecutableDDLElement] = [CreateTable(table), *map(CreateIndex, indexes)]
    return "\n".join(f"{str(each.compile(engine)).strip()};" for each in statements)


def _row(
    queue: str, body: Body, attributes: Attributes | None, group: str | None, dedup_id: str | None, priority: int
) -> dict[str, Any]:
    """A row, or the reason why no queue would ever take the message."""
    check_name(queue, "queue")
    encoded, encoded_attributes = encode_body(body), encode_attributes(attributes)
    size = len(encoded) + len(encoded_attributes or b"")
    if size > MESSAGE_BYTES_CEILING:
        raise MessageTooLarge(
            f"the message has {size} bytes with its attributes: at most {MESSAGE_BYTES_CEILING} are allowed"
        )
    if not isinstance(priority, int) or not 0 <= priority <= PRIORITY_MAX:
        raise InvalidRequest(f"priority is {priority!r}: it must be from 0 to {PRIORITY_MAX}")
    _check_text(group, "group")
    _check_text(dedup_id, "dedup_id")
    return {
        "key": uuid.uuid4().hex,
        "queue": queue,
        "body": encoded,
        "attributes": encoded_attributes,
        "message_group": group,
        "dedup_id": dedup_id,
        "priority": priority,
        "due_ms": None,
    }


def _check_text(value: object, what: str) -> None:
    """Refuse what a queue would refuse, before the database does: its error may end the user's transaction."""
    if value is None:
        return
    if not isinstance(value, str):
        raise InvalidRequest(f"a {what} is text, and not {type(value).__name__}")
    if not 1 <= len(value) <= _TEXT_LENGTH_MAX:
        raise InvalidRequest(f"a {what} has 1 to {_TEXT_LENGTH_MAX} characters; this one has {len(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"a {what} must be valid text; {value!r} is not") from None


def _due(delay: Seconds | None, due: Moment | None) -> int | None:
    """When a message is due: a time, or a delay as a negative number."""
    if delay is not None and due is not None:
        raise InvalidRequest("give a delay or a due time, and not both")
    delay_ms = length_ms(delay, "delay")
    if delay_ms is not None and delay_ms > DELAY_MS_MAX:
        raise InvalidRequest(f"delay is {delay!r}: it must be within a hundred years")
    if delay_ms is not None:
        return -delay_ms  # 0: due long ago, whatever delay the queue has
    due_ms = moment_ms(due, "due")
    if due_ms is not None and due_ms > time.time() * 1_000 + DELAY_MS_MAX:
        raise InvalidRequest(f"due is {due!r}: it must be within a hundred years")
    return None if due_ms is None else max(0, due_ms)


# -- the inbox ---------------------------------------------------------------------------------------------------------

# The inbox: which messages have been worked on, remembered in the transaction that did the work.
#
# A queue delivers at least once. A handler whose work is a database transaction asks the inbox first, in that
# transaction: the first time it is told True and goes on; when the same message comes again (the transaction committed,
# and the ack got lost), it is told False, does nothing, and the message is acknowledged. Work and memory commit
# together, or not at all.
#
# A message that came out of an outbox is known by the outbox's key, which is the same however often a relay sent it.
# Any other is known by its id.

_KEY_LENGTH_MAX = 128


class Inbox:
    """A table of messages that were worked on.

    >>> from sqlalchemy import create_engine
    >>> engine, inbox = create_engine("sqlite://"), Inbox()
    >>> inbox.metadata.create_all(engine)
    >>> with engine.begin() as connection:
    ...     inbox.once(connection, "message-1"), inbox.once(connection, "message-1")
    (True, False)
    """

    def __init__(
        self, table: str = "penstock_inbox", *, schema: str | None = None, metadata: MetaData | None = None
    ) -> None:
        self.metadata = MetaData() if metadata is None else metadata
        self.table = Table(
            table,
            self.metadata,
            Column("consumer", String(_KEY_LENGTH_MAX), primary_key=True),
            Column("key", String(_KEY_LENGTH_MAX), primary_key=True),
            Column("seen_ms", BigInteger, nullable=False),
            schema=schema,
        )
        Index(f"{table}_seen", self.table.c.seen_ms)

    def schema(self, engine: Engine) -> str:
        """The statements that make the table, for a migration."""
        return ddl(self.table, engine)

    @overload
    def once(self, connection: Executes, message: Content | str, *, consumer: str = ...) -> bool: ...

    @overload
    def once(self, connection: ExecutesLater, message: Content | str, *, consumer: str = ...) -> Awaitable[bool]: ...

    def once(
        self, connection: Executes | ExecutesLater, message: Content | str, *, consumer: str = ""
    ) -> bool | Awaitable[bool]:
        """True the first time that a message (or an id) is seen in this database, False after.

        Several handlers that each work on the same messages give themselves names: `consumer`. On PostgreSQL, a second
        transaction with the same message waits here until the first one has ended.
        """
        values = {"consumer": _checked(consumer, "consumer", shortest=0), "key": _checked(key_of(message), "id")}
        if hasattr(connection, "run_sync"):
            seen: Awaitable[bool] = connection.run_sync(lambda executes: self._once(executes, values))
            return seen
        return self._once(connection, values)

    def _once(self, executes: Any, values: dict[str, str]) -> bool:
        dialect = connection_of(executes, self.table).dialect.name
        statement = _insert_unless_there(dialect, self.table).values(**values, seen_ms=now_ms())
        return executes.execute(statement).first() is not None

    def clean(self, connection: Executes, older_than: Seconds) -> int:
        """Forget what was seen so long ago. Returns how many rows: call it again until it is 0.

        Keep more than a message can take to come again: its retention, and the longest time for which a relay could
        not reach the database.
        """
        age_ms = length_ms(older_than, "older_than") or 0
        table = self.table.c
        old = select(table.consumer, table.key).where(table.seen_ms <= now_ms() - age_ms).limit(_DELETED_AT_ONCE)
        rows = connection.execute(old).all()
        for consumer in {row.consumer for row in rows}:
            keys = [row.key for row in rows if row.consumer == consumer]
            connection.execute(delete(self.table).where(table.consumer == consumer, table.key.in_(keys)))
        return len(rows)


def key_of(message: Content | str) -> str:
    """What a message is known by: the key of the outbox that it came from, or its id."""
    if isinstance(message, str):
        return message
    given = message.attributes.get(OUTBOX_ID)
    return given if isinstance(given, str) and given else message.id


def _insert_unless_there(dialect: str, table: Table) -> Any:
    kinds: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
    if dialect not in kinds:
        raise InvalidRequest(f"an inbox needs PostgreSQL or SQLite, and this is {dialect}")
    return kinds[dialect](table).on_conflict_do_nothing().returning(table.c.key)


def _checked(text: str, what: str, *, shortest: int = 1) -> str:
    if not shortest <= len(text) <= _KEY_LENGTH_MAX:
        raise InvalidRequest(f"a {what} has {shortest} to {_KEY_LENGTH_MAX} characters; this one has {len(text)}")
    return text
