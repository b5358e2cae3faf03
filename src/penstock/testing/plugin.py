"""The fixture for pytest: `penstock_server`, one server for each test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing import Server


@pytest.fixture
def penstock_server() -> Iterator[Server]:
    """A Penstock server on free ports, with an empty directory; it ends with the test."""
    from penstock import testing

    with testing.server() as server:
        yield server


@pytest.fixture(scope="session")
def penstock_session_server() -> Iterator[Server]:
    """As `penstock_server`, but one for all tests, which have to keep to queues of their own."""
    from penstock import testing

    with testing.server() as server:
        yield server
