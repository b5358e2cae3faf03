"""The inbox: which messages have been worked on, remembered in the transaction that did the work.

A queue delivers at least once. A handler whose work is a database transaction asks the inbox first, in that
transaction: the first time it is told True and goes on; when the same message comes again (the transaction committed,
and the ack got lost), it is told False, does nothing, and the message is acknowledged. Work and memory commit together,
or not at all.

A message that came out of an outbox is known by the outbox's key, which is the same however often a relay sent it. Any
other is known by its id.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import BigInteger, Column, Engine, Index, MetaData, String, Table, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from penstock.client.content import Content
from penstock.client.times import Seconds, length_ms
from penstock.core.errors import InvalidRequest
from penstock.outbox.outbox import OUTBOX_ID, connection_of, ddl, now_ms

if TYPE_CHECKING:
    from penstock.outbox.outbox import Executes, ExecutesLater

_KEY_LENGTH_MAX = 128
_DELETED_AT_ONCE = 1_000


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
