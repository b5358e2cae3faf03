"""`penstock outbox`: moving messages from a database's outbox to queues, and looking after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from penstock.cli.command import Group, Option
from penstock.cli.output import AsJson, print_done, print_rows
from penstock.cli.store import Data, Token, Url, opened
from penstock.core.errors import PenstockError, StoreError

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from penstock.outbox import Outbox

outboxes = Group(help="Move messages from a database's outbox to queues.")

Database = Annotated[
    str | None,
    Option(
        "--database",
        help="The database, as SQLAlchemy names it: postgresql://... or sqlite:///... Also PENSTOCK_DATABASE, which is "
        "better for one with a password.",
        show_default=False,
    ),
]
TableName = Annotated[str, Option("--table", help="The outbox's table.")]
SchemaName = Annotated[str | None, Option("--schema", help="The schema that the table is in.")]
OUTBOX_TABLE, INBOX_TABLE = "penstock_outbox", "penstock_inbox"


@outboxes.command()
def run(
    database: Database = None,
    table: TableName = OUTBOX_TABLE,
    schema: SchemaName = None,
    batch: Annotated[int, Option(help="How many messages to send at a time.")] = 500,
    poll: Annotated[float, Option(help="Seconds between two looks if nothing wakes the relay.")] = 1.0,
    claim: Annotated[float, Option(help="Seconds after which another relay takes over the rows of a dead one.")] = 30.0,
    keep_sent: Annotated[float, Option(help="How many seconds to keep rows after they were sent.")] = 3_600.0,
    once: Annotated[bool, Option("--once", help="End as soon as nothing is left to send.")] = False,
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Send the messages of the outbox, until SIGTERM or Ctrl-C. Any number of relays may run at a time."""
    with _outbox(database, table, schema) as (engine, outbox), opened(data, url, token, creates=True) as ps:
        from penstock.client.thread_workers import told_to_stop
        from penstock.outbox import Relay

        relay = Relay(engine, ps, outbox, batch=batch, poll=poll, claim=claim, keep_sent=keep_sent)
        with told_to_stop(relay.request_stop):
            if once:
                relay.run_until_empty()
            else:
                relay.run()
    print_done(f"{relay.sent} sent, {relay.failed} failed", {"sent": relay.sent, "failed": relay.failed}, as_json)


@outboxes.command()
def status(
    database: Database = None, table: TableName = OUTBOX_TABLE, schema: SchemaName = None, as_json: AsJson = False
) -> None:
    """Show how many messages wait, since when, and which have failed."""
    from dataclasses import asdict

    with _outbox(database, table, schema) as (engine, outbox), engine.connect() as connection:
        print_rows([asdict(outbox.status(connection))], as_json, f"Outbox {outbox.table.fullname}")


@outboxes.command()
def retry(
    database: Database = None, table: TableName = OUTBOX_TABLE, schema: SchemaName = None, as_json: AsJson = False
) -> None:
    """Let relays retry messages that have failed."""
    with _outbox(database, table, schema) as (engine, outbox), engine.begin() as connection:
        count = outbox.retry(connection)
    print_done(f"{count} will be tried again", {"retried": count}, as_json)


@outboxes.command()
def clean(
    older_than: Annotated[float, Option(help="Seconds since they were sent.")] = 3_600.0,
    failed: Annotated[bool, Option("--failed", help="Also delete rows that have failed.")] = False,
    database: Database = None,
    table: TableName = OUTBOX_TABLE,
    schema: SchemaName = None,
    as_json: AsJson = False,
) -> None:
    """Delete rows that were sent some time ago. Relays do that by themselves."""
    deleted = 0
    with _outbox(database, table, schema) as (engine, outbox):
        while True:
            with engine.begin() as connection:
                count = outbox.clean(connection, older_than, failed=failed)
            if not count:
                break
            deleted += count
    print_done(f"{deleted} deleted", {"deleted": deleted}, as_json)


@outboxes.command("schema")
def print_schema(
    database: Database = None,
    table: TableName = OUTBOX_TABLE,
    schema: SchemaName = None,
    inbox_table: Annotated[str, Option(help="The inbox's table.")] = INBOX_TABLE,
) -> None:
    """Print the SQL statements that create both tables in this kind of database. Changes nothing."""
    from penstock.outbox import Inbox

    with _outbox(database, table, schema, must_exist=False) as (engine, outbox):
        print(outbox.schema(engine))
        print(Inbox(inbox_table, schema=schema).schema(engine))


@contextmanager
def _outbox(
    database: str | None, table: str, schema: str | None, *, must_exist: bool = True
) -> Iterator[tuple[Engine, Outbox]]:
    """The database, and the outbox in it; what goes wrong there is reported in one line."""
    named = database or os.environ.get("PENSTOCK_DATABASE")
    if not named:
        raise click.BadParameter("name the database with --database, or set PENSTOCK_DATABASE")
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ModuleNotFoundError:
        raise PenstockError("the outbox needs SQLAlchemy: pip install 'penstock-mq[outbox]'") from None
    from penstock.outbox import Outbox

    try:
        engine = _engine(named, must_exist)
        try:
            yield engine, Outbox(table, schema=schema)
        finally:
            engine.dispose()
    except SQLAlchemyError as error:
        raise StoreError(f"the database: {str(error).splitlines()[0]}") from None


def _engine(named: str, must_exist: bool) -> Engine:
    from sqlalchemy import create_engine, make_url

    try:
        url = make_url(named)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        if must_exist and url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:":
            file = Path(url.database)  # SQLite would make an empty database of a mistyped name
            if not file.exists():
                raise click.BadParameter(f"there is no file {file}", param_hint="--database")
        # Of a database in SQL_ASCII, the driver would return bytes.
        is_postgresql = url.get_backend_name() == "postgresql" and "psycopg" in url.drivername
        return create_engine(url, connect_args={"client_encoding": "utf8"} if is_postgresql else {})
    except ModuleNotFoundError as error:
        raise PenstockError(f"{error}: install the driver of this database") from None
