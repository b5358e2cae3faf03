from __future__ import annotations

import threading

import pytest
from sqlalchemy import Engine, create_engine

import penstock
from penstock.outbox import OUTBOX_ID, Inbox
from tests.outbox.postgres import PostgresServer


def test_a_message_is_new_once(engine: Engine, inbox: Inbox, ps: penstock.Penstock) -> None:
    ps.queue("in").send_many([b"1", b"2"])
    first, second = ps.queue("in").receive(2)
    with engine.begin() as connection:
        assert inbox.once(connection, first)
        assert not inbox.once(connection, first)
    with engine.begin() as connection:
        assert not inbox.once(connection, first)
        assert inbox.once(connection, second)


def test_what_was_rolled_back_is_new_again(engine: Engine, inbox: Inbox) -> None:
    with pytest.raises(ZeroDivisionError), engine.begin() as connection:
        assert inbox.once(connection, "m")
        raise ZeroDivisionError
    with engine.begin() as connection:
        assert inbox.once(connection, "m")


def test_every_consumer_sees_a_message_once(engine: Engine, inbox: Inbox) -> None:
    with engine.begin() as connection:
        assert inbox.once(connection, "m", consumer="billing")
        assert inbox.once(connection, "m", consumer="mail")
        assert not inbox.once(connection, "m", consumer="mail")


def test_a_message_of_an_outbox_is_known_by_its_key_however_often_it_was_sent(
    engine: Engine, inbox: Inbox, ps: penstock.Penstock
) -> None:
    for _ in range(2):
        ps.queue("in").send(b"1", attributes={OUTBOX_ID: "k" * 32})
    one, other = ps.queue("in").receive(2)
    assert one.id != other.id
    with engine.begin() as connection:
        assert [inbox.once(connection, one), inbox.once(connection, other)] == [True, False]


def test_old_messages_are_forgotten(engine: Engine, inbox: Inbox) -> None:
    with engine.begin() as connection:
        for number in range(5):
            inbox.once(connection, f"m{number}", consumer=f"c{number % 2}")
        assert inbox.clean(connection, older_than=60) == 0
        assert inbox.clean(connection, older_than=0) == 5
        assert inbox.once(connection, "m0", consumer="c0")


def test_an_id_that_cannot_be_kept_is_refused(engine: Engine, inbox: Inbox) -> None:
    with engine.begin() as connection:
        for message in ("", "x" * 129):
            with pytest.raises(penstock.InvalidRequest, match="1 to 128 characters"):
                inbox.once(connection, message)


def test_a_second_transaction_waits_for_the_first_and_hears_what_became_of_it(postgres: PostgresServer) -> None:
    engine, inbox = create_engine(postgres.create_database("waiting")), Inbox()
    inbox.metadata.create_all(engine)
    heard: list[bool] = []

    def ask() -> None:
        with engine.begin() as connection:
            heard.append(inbox.once(connection, "m"))

    other = threading.Thread(target=ask)
    with engine.connect() as connection:
        assert inbox.once(connection, "m")
        other.start()
        other.join(0.3)
        assert other.is_alive() and not heard
        connection.rollback()
    other.join(10)
    assert heard == [True]
    engine.dispose()
