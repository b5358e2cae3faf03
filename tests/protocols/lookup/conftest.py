from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protocols.lookup.serving import RunningLookup, lookup_service


@pytest.fixture
def lookup() -> Iterator[RunningLookup]:
    with lookup_service() as service:
        yield service
