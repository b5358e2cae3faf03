"""Every engine, in every way it is used, passes the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.store.base import Store
from penstock.store.embedded import EmbeddedStore, StoreOptions, open_embedded
from penstock.store.journal.file import FileJournal
from penstock.store.memory import MemoryStore
from tests.store.conformance import Engine, StoreConformance
from tests.store.faulty_disk import FaultyDisk
from tests.store.in_memory import MemoryJournal, MemoryTable, twin_of


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def engine(self) -> Engine:
        return Engine(MemoryStore, lambda store: twin_of(store) if isinstance(store, MemoryStore) else store)


def directory_engine(directory: Path, options: StoreOptions, *, apply_on_close: bool) -> Engine:
    def reopen(store: Store) -> Store:
        assert isinstance(store, EmbeddedStore)
        store.close(apply=apply_on_close)
        return open_embedded(directory, options=options)

    return Engine(lambda: open_embedded(directory, options=options), reopen)


class TestEmbeddedStore(StoreConformance):
    """As users have it."""

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Engine:
        return directory_engine(tmp_path, StoreOptions(), apply_on_close=True)


class TestEmbeddedStoreFromItsJournal(StoreConformance):
    """Nothing reaches the table but by backpressure: reads come from the layers, opening replays the journal."""

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Engine:
        return directory_engine(tmp_path, StoreOptions(segment_bytes=64 << 10), apply_on_close=False)


class TestEmbeddedStoreFromItsTable(StoreConformance):
    """The applier is always at work: reads cross all layers and the table."""

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Engine:
        options = StoreOptions(
            apply_live_bytes=2000, apply_written_bytes=4000, unapplied_bytes_max=8000, segment_bytes=64 << 10
        )
        return directory_engine(tmp_path, options, apply_on_close=False)


class TestEmbeddedStoreInMemory(StoreConformance):
    """Any journal goes with any table."""

    @pytest.fixture
    def engine(self) -> Engine:
        table = MemoryTable()

        def open_with(journal: MemoryJournal) -> EmbeddedStore:
            return EmbeddedStore(journal, table, StoreOptions(apply_written_bytes=4000), background=False)

        journal = MemoryJournal()
        return Engine(lambda: open_with(journal), lambda store: open_with(journal))


class TestEmbeddedStoreOnFaultyDisk(StoreConformance):
    """The disk of the crash tests, without faults."""

    @pytest.fixture
    def engine(self) -> Engine:
        disk, table = FaultyDisk(), MemoryTable()

        def open_again() -> EmbeddedStore:
            journal = FileJournal(disk, Path("/journal"), table.identity, segment_bytes=16 << 10, background=False)
            return EmbeddedStore(journal, table, StoreOptions(apply_written_bytes=8000), background=False)

        return Engine(open_again, lambda store: open_again())
