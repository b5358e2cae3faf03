"""Connections that break after exactly so many bytes: whatever the client was doing is done once, and it goes on.

Here at some bytes of each operation, which a seed has chosen. At every byte: `python -m tests.faults.broken`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.client.remote.address import TRANSPORTS
from tests.faults.broken import OPERATIONS, SPARK_OPERATIONS, Bench, Operation, bench, listen, sweep
from tests.faults.proxy import Cut

MOST = 3
"""Cuts of each operation, in each direction."""
MOST_OF_LISTENERS = 1
"""Their end takes some time where messages are polled for."""


@pytest.fixture(scope="module", params=TRANSPORTS)
def by_transport(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("broken"), request.param) as made:
        yield made


@pytest.fixture(scope="module")
def by_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("broken")) as made:
        yield made


def check(bench: Bench, operation: Operation, most: int) -> None:
    swept = list(sweep(bench, operation, most=most))
    assert [fault for _, fault in swept if fault] == []
    assert any(cut.is_done for cut, _ in swept), "nothing was cut"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.__name__)
def test_a_connection_that_breaks_anywhere_costs_a_client_nothing(by_transport: Bench, operation: Operation) -> None:
    check(by_transport, operation, MOST_OF_LISTENERS if operation is listen else MOST)


@pytest.mark.parametrize("operation", SPARK_OPERATIONS, ids=lambda each: each.__name__)
def test_a_connection_that_breaks_anywhere_costs_spark_nothing(by_spark: Bench, operation: Operation) -> None:
    check(by_spark, operation, MOST)


@pytest.mark.parametrize("after", [1, 12, 60, 100])
def test_an_upgrade_that_breaks_off_is_tried_again_and_does_not_end_with_polling(by_spark: Bench, after: int) -> None:
    """Whoever lets no websocket through says so, or hangs up at once: he does not begin to say yes."""
    with by_spark.connect() as ps:
        assert ps.transport == "websocket"
        by_spark.proxy.cut_one(cut := Cut("answers", after, "end"))
        by_spark.proxy.reset()
        ps.queue("upgraded").send(b"tea")
        by_spark.proxy.cut_one(None)
        assert cut.is_done
        assert ps.transport == "websocket"
