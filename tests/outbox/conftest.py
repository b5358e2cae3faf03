from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

import penstock
from penstock.outbox import Inbox, Outbox
from tests.outbox.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'user.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.create_database(f"test_{uuid.uuid4().hex}")


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def outbox(engine: Engine) -> Outbox:
    outbox = Outbox()
    outbox.metadata.create_all(engine)
    return outbox


@pytest.fixture
def inbox(engine: Engine) -> Inbox:
    inbox = Inbox()
    inbox.metadata.create_all(engine)
    return inbox


@pytest.fixture
def ps() -> Iterator[penstock.Penstock]:
    with penstock.open(":memory:") as ps:
        yield ps
