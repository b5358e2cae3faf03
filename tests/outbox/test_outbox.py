from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import penstock
from penstock.outbox import Inbox, Outbox, Relay
from tests.outbox.postgres import PostgresServer


def rows(engine: Engine, outbox: Outbox) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(select(outbox.table).order_by(outbox.table.c.id)))


def test_a_message_is_part_of_the_users_transaction(engine: Engine, outbox: Outbox) -> None:
    with engine.begin() as connection:
        key = outbox.send(connection, "orders", "två te", attributes={"table": 7}, group="g", dedup_id="d", priority=3)
    with pytest.raises(ZeroDivisionError), engine.begin() as connection:
        outbox.send(connection, "orders", b"never")
        raise ZeroDivisionError
    (row,) = rows(engine, outbox)
    assert (row.key, row.queue, row.body, row.message_group) == (key, "orders", "två te".encode(), "g")
    assert (row.dedup_id, row.priority, row.state, row.due_ms) == ("d", 3, 0, None)


def test_a_delay_is_counted_by_the_databases_clock(engine: Engine, outbox: Outbox) -> None:
    with engine.begin() as connection:
        outbox.send(connection, "orders", b"1", delay=60)
        outbox.send(connection, "orders", b"2", due=1_234.5)
    delayed, due = rows(engine, outbox)
    assert delayed.due_ms - delayed.created_ms == pytest.approx(60_000, abs=50)
    assert due.due_ms == 1_234_500


@pytest.mark.parametrize("due", [-5.0, datetime(1960, 1, 1, tzinfo=UTC)])
def test_what_was_due_before_1970_is_due_now(engine: Engine, outbox: Outbox, due: float | datetime) -> None:
    with engine.begin() as connection:
        outbox.send(connection, "orders", b"late", due=due)
    assert [row.due_ms for row in rows(engine, outbox)] == [0]


def test_many_messages_are_one_statement(engine: Engine, outbox: Outbox) -> None:
    with engine.begin() as connection:
        keys = outbox.send_many(connection, "orders", [b"1", "2", b"3"], groups=["a", None, "b"])
        assert outbox.send_many(connection, "orders", []) == []
    assert [(row.key, row.body, row.message_group) for row in rows(engine, outbox)] == [
        (keys[0], b"1", "a"),
        (keys[1], b"2", None),
        (keys[2], b"3", "b"),
    ]


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("no such name!", b""), {}, penstock.InvalidName),
        (("orders", 7), {}, penstock.InvalidRequest),
        (("orders", b""), {"priority": 10}, penstock.InvalidRequest),
        (("orders", b""), {"group": "x" * 129}, penstock.InvalidRequest),
        (("orders", b""), {"dedup_id": ""}, penstock.InvalidRequest),
        (("orders", b""), {"dedup_id": "\udcff"}, penstock.InvalidRequest),
        (("orders", b""), {"group": "\udcff"}, penstock.InvalidRequest),
        (("orders", b""), {"group": 7}, penstock.InvalidRequest),
        (("orders", b""), {"due": 1e300}, penstock.InvalidRequest),
        (("orders", b""), {"due": 1e12}, penstock.InvalidRequest),
        (("orders", b""), {"delay": -1}, penstock.InvalidRequest),
        (("orders", b""), {"delay": 1, "due": 1}, penstock.InvalidRequest),
        (("orders", b""), {"attributes": {"a": [1]}}, penstock.InvalidRequest),
    ],
)
def test_what_no_queue_would_take_is_refused_at_once_and_the_transaction_goes_on(
    engine: Engine, outbox: Outbox, arguments: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with engine.begin() as connection:
        with pytest.raises(error):
            outbox.send(connection, *arguments, **options)
        outbox.send(connection, "orders", b"fine")
    assert [row.body for row in rows(engine, outbox)] == [b"fine"]


def test_a_session_of_the_orm_does_as_well_as_a_connection(engine: Engine, outbox: Outbox, inbox: Inbox) -> None:
    with Session(engine) as session:
        outbox.send(session, "orders", b"1")
        assert inbox.once(session, "m")
        session.commit()
    assert len(rows(engine, outbox)) == 1


def test_asynchronous_connections_and_sessions_await_it(postgres: PostgresServer) -> None:
    url = postgres.create_database("asynchronous")
    outbox, inbox = Outbox(), Inbox()

    async def run() -> list[Any]:
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            await connection.run_sync(outbox.metadata.create_all)
            await connection.run_sync(inbox.metadata.create_all)
            await outbox.send(connection, "orders", b"1")
        async with AsyncSession(engine) as session:
            await outbox.send_many(session, "orders", [b"2", b"3"])
            seen = [await inbox.once(session, "m"), await inbox.once(session, "m")]
            await session.commit()
        async with engine.connect() as connection:
            await outbox.send(connection, "orders", b"rolled back")
        await engine.dispose()
        return seen

    assert asyncio.run(run()) == [True, False]
    engine = create_engine(url)
    assert [row.body for row in rows(engine, outbox)] == [b"1", b"2", b"3"]
    engine.dispose()


def test_the_table_can_have_another_name_and_live_in_the_users_metadata(engine: Engine) -> None:
    metadata = MetaData()
    Table("accounts", metadata, Column("id", Integer, primary_key=True))
    outbox = Outbox("messages_to_send", metadata=metadata)
    metadata.create_all(engine)
    assert {"accounts", "messages_to_send"} <= set(inspect(engine).get_table_names())
    with engine.begin() as connection:
        outbox.send(connection, "orders", b"1")
        assert outbox.status(connection).pending == 1


def test_the_printed_schema_makes_the_tables(engine: Engine) -> None:
    outbox, inbox = Outbox(), Inbox()
    with engine.begin() as connection:
        for statement in (outbox.schema(engine) + inbox.schema(engine)).split(";"):
            if statement.strip():
                connection.execute(text(statement))
        outbox.send(connection, "orders", b"1")
        assert inbox.once(connection, "m")
    assert {index["name"] for index in inspect(engine).get_indexes("penstock_outbox")} == {
        "penstock_outbox_done",
        "penstock_outbox_order",
        "penstock_outbox_pending",
    }


def test_the_table_can_live_in_a_schema(postgres: PostgresServer) -> None:
    engine = create_engine(postgres.create_database("schemas"))
    outbox = Outbox(schema="messaging")
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA messaging"))
    outbox.metadata.create_all(engine)
    with engine.begin() as connection:
        outbox.send(connection, "orders", b"1")
        assert outbox.status(connection).pending == 1
    engine.dispose()


def test_a_long_name_in_a_schema_with_a_long_name_takes_messages(postgres: PostgresServer) -> None:
    """PostgreSQL takes 63 bytes for a channel's name, and ends the transaction for more."""
    engine = create_engine(postgres.create_database("long_names"))
    outbox = Outbox("outbox_" + "ö" * 20, schema="schema_" + "x" * 40)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {outbox.table.schema}"))
    outbox.metadata.create_all(engine)
    with engine.begin() as connection:
        outbox.send(connection, "orders", b"1")
    with penstock.open(":memory:") as ps, Relay(engine, ps, outbox):
        assert ps.create_queue("orders").receive(wait=60) is not None
    engine.dispose()


def test_a_session_with_several_databases_writes_where_the_tables_are(engine: Engine) -> None:
    outbox, inbox, other = Outbox(), Inbox(), create_engine("sqlite://")
    for metadata in (outbox.metadata, inbox.metadata):
        metadata.create_all(engine)
    accounts = Table("accounts", MetaData(), Column("id", Integer, primary_key=True))
    with Session(binds={outbox.table: engine, inbox.table: engine, accounts: other}) as session, session.begin():
        outbox.send(session, "orders", b"1")
        assert [inbox.once(session, "m") for _ in range(2)] == [True, False]
    assert [row.body for row in rows(engine, outbox)] == [b"1"]
    other.dispose()
