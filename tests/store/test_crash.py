"""Power failures below the store: what was acknowledged is there, what was not is there whole or not at all."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.core.errors import StoreError
from penstock.store.embedded import EmbeddedStore, StoreOptions
from penstock.store.journal.file import FileJournal
from tests.store.conformance import Model, content, random_changes
from tests.store.faulty_disk import FaultyDisk, PowerLost
from tests.store.in_memory import MemoryTable

SEEDS = range(300)
CRASHES_PER_SEED = 6


def opened(disk: FaultyDisk, table: MemoryTable, random: Random) -> EmbeddedStore:
    journal = FileJournal(
        disk,
        Path("/journal"),
        table.identity,
        segment_bytes=random.choice((4096, 8192, 32768)),
        first_segment_bytes=4096,
        background=False,
    )
    options = StoreOptions(apply_written_bytes=random.choice((1500, 6000, 20_000)))
    return EmbeddedStore(journal, table, options, background=False)


def run_until_the_power_fails(disk: FaultyDisk, table: MemoryTable, random: Random, models: list[Model]) -> None:
    """Commit random changes. `models` becomes the states that may be found: the acknowledged one, and one in flight."""
    try:
        store = opened(disk, table, random)
        # Opening may have made an outcome certain: what it shows now is what has to be found from here on.
        models[:] = [content(store)]
        while True:
            changes = random_changes(random, chunk_bytes_max=1500)
            models.append(models[-1].after(changes))
            store.commit(changes)
            del models[:-1]
            if random.random() < 0.05:
                store.apply_now()
            elif random.random() < 0.03:
                store.close()
                store = opened(disk, table, random)
    except (PowerLost, StoreError):
        assert disk.power_fails_at is not None and disk.operations >= disk.power_fails_at


@pytest.mark.parametrize("batch", range(0, len(SEEDS), 50))
def test_power_failure_at_any_operation_keeps_what_was_acknowledged(batch: int) -> None:
    for seed in SEEDS[batch : batch + 50]:
        random = Random(seed)
        disk, table, models = FaultyDisk(), MemoryTable(), [Model()]
        for _ in range(CRASHES_PER_SEED):
            disk.power_fails_at = random.randrange(1, random.choice((10, 60, 250)))
            run_until_the_power_fails(disk, table, random, models)
            disk, table = disk.crash(random.randrange(1 << 30)), table.copy()
            check = disk.crash(0)  # a look that leaves no trace
            found = content(opened(check, table.copy(), random))
            assert found in models, f"seed {seed}: neither the acknowledged state nor the one in flight"


def test_power_failure_at_every_operation_of_one_history() -> None:
    """Not sampled: every boundary, including those within opening, rolling, recycling and trimming."""
    for power_fails_at in range(1, 250):
        random = Random(5)
        disk, table, models = FaultyDisk(), MemoryTable(), [Model()]
        disk.power_fails_at = power_fails_at
        run_until_the_power_fails(disk, table, random, models)
        for seed in range(3):
            found = content(opened(disk.crash(seed), table.copy(), Random(1)))
            assert found in models, f"operation {power_fails_at}, seed {seed}"


def test_faulty_disk_does_lose_what_was_not_synced() -> None:
    """The tests above can fail: without the sync, writes are lost, kept and torn."""
    fates = set()
    for seed in range(50):
        disk = FaultyDisk()
        file = disk.open(Path("/d/f"), writable=True, create=True)
        file.reserve(1024)
        file.sync()
        disk.sync_directory(Path("/d"))
        file.write([b"x" * 1024], 0)
        fates.add(disk.crash(seed).open(Path("/d/f"), writable=False).read(1024, 0))
    whole, none = b"x" * 1024, bytes(1024)
    assert {whole, none} < fates
    assert len(fates) == 4


def test_journal_that_does_not_sync_is_caught() -> None:
    """A journal whose sync does nothing loses acknowledged commits, and the check above sees it."""
    lost = 0
    for seed in range(40):
        random = Random(seed)
        disk, model = FaultyDisk(), Model()
        journal = FileJournal(disk, Path("/journal"), 1, background=False)
        store = EmbeddedStore(journal, MemoryTable(1), background=False)
        for inode in disk._names.values():
            inode.sync = lambda: None  # type: ignore[method-assign]
        for _ in range(5):
            changes = random_changes(random)
            store.commit(changes)
            model = model.after(changes)
        try:
            lost += content(opened(disk.crash(seed), MemoryTable(1), random)) != model
        except StoreError:
            lost += 1
    assert lost > 20
