"""The ZooKeeper engine passes the conformance suite, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.store.base import Store
from penstock.store.zookeeper import connect, disconnect, open_zookeeper
from penstock.store.zookeeper_options import ZooKeeperOptions
from tests.store.conformance import Engine, StoreConformance
from tests.store.zookeeper_engine import options_for
from tests.zookeeper import zookeeper  # noqa: F401
from tools.zookeeper import ZooKeeperEnsemble


def zookeeper_engine(options: ZooKeeperOptions) -> Iterator[Engine]:
    client = connect(options)

    def open_again() -> Store:
        return open_zookeeper(options, 0, client)

    def reopen(store: Store) -> Store:
        store.close()
        return open_again()

    yield Engine(open_again, reopen)
    disconnect(client)


class TestZooKeeperStore(StoreConformance):
    """As nodes have it."""

    seeds = range(3)
    steps = 40

    @pytest.fixture
    def engine(self, zookeeper: ZooKeeperEnsemble) -> Iterator[Engine]:  # noqa: F811
        yield from zookeeper_engine(options_for(zookeeper))


class TestZooKeeperStoreInSmallTransactions:
    """Nearly every commit is a large one: several transactions, that are atomic in effect."""

    seeds = range(3, 5)
    steps = 40

    @pytest.fixture
    def engine(self, zookeeper: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:  # noqa: F811
        monkeypatch.setattr("penstock.store.zookeeper.PART_BYTES", 300)
        yield from zookeeper_engine(options_for(zookeeper, transaction_bytes_max=1_000))

    test_reopened_store_holds_the_same = StoreConformance.test_reopened_store_holds_the_same
    test_any_history_matches_the_model = StoreConformance.test_any_history_matches_the_model_and_survives_reopening
