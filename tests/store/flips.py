"""One byte of a data directory is flipped, and the directory opened: what happens then.

The directory has everything that can be in one: standard and FIFO queues, delays, retries, dead letters, consumers,
sessions, dedup ids, attempts, a redrive, marks, an outbox, several channels; a part of it in the table, a part in the
journal. Its pages are small, so that there are many of them: trees of several levels, free pages, overflow pages.

A flip may be harmless (everything reads as before), or told (a typed error of one line, a quarantine, a report, a
damaged chunk). It must never be silent (something reads otherwise, or is missing, and nobody says so), and never end
in any other exception. The tests flip a sample; all bytes take a while:

    python -m tests.store.flips [--every N] [--seed S]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest.mock import patch

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.errors import ChunkDamaged, PenstockError
from penstock.core.queues.partition import partition_of
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import ChunkKey, Kind
from penstock.store import table as table_module
from penstock.store.base import Store
from penstock.store.embedded import EmbeddedStore, StoreOptions, open_embedded
from penstock.store.errors import StoreError
from penstock.store.journal.frames import StoredChunk
from penstock.store.layout import BALLAST_NAME
from tests.core.driver import HOUR_MS, START_MS, BrokerDriver

OPTIONS = StoreOptions(segment_bytes=16 << 10)
PAGE_BYTES = 512
SHARDS = 2
ENTROPY = bytes(range(64))
KEYS_MAX = 1_000_000
DAMAGED = b"damaged"
"""A chunk that is damaged from the beginning."""


def here(stem: str, shard: int = 0) -> str:
    """A name of a queue that lives in a shard."""
    return next(name for number in range(100) if partition_of(name := f"{stem}{number}", SHARDS) == shard)


def opened(directory: Path) -> EmbeddedStore:
    """The store, without threads."""
    return open_embedded(directory, options=OPTIONS, background=False)


def build(directory: Path, *, stages: bool = False) -> None:
    """Make a directory with everything in it. It is as a process leaves it that is killed.

    `stages`: with sends that were staged for a commit which never came. Salvage cannot always know them from messages.
    """
    live = directory.with_name("live")
    with patch.object(table_module, "PAGE_BYTES", PAGE_BYTES):
        store = opened(live)
    driver = BrokerDriver(store, checks=False, shard=0, shards=SHARDS)  # type: ignore[arg-type]
    fill(driver)
    store.close()
    store = opened(live)
    driver = BrokerDriver(store, now_ms=driver.now_ms, checks=False, shard=0, shards=SHARDS)  # type: ignore[arg-type]
    driver.broker.delivers_unsynced = True
    driver.send(b"ahead", queue=here("hurt"))
    for name in list(driver.broker.queues):
        if name.startswith("gone"):
            driver.do(c.DeleteQueue(name=name))
    store.apply_now()
    go_on(driver)
    if stages:
        large = [c.Send(queue=here("large"), bodies=[b"not committed"])]
        driver.do(c.StageWork(name="large", sends=large, send_shards=[0]))
    shutil.copytree(live, directory, copy_function=_copy_sparsely)
    store.close()


def fill(driver: BrokerDriver) -> None:
    for stem in ("gone", "goner"):
        driver.create(here(stem))
        driver.send(*[bytes(1000)] * 5, queue=here(stem))
    work, fifo, once, far, hurt = here("work"), here("fifo"), here("once"), here("far"), here("hurt")
    driver.create(work, channels=(c.MAIN, "audit"), max_receives=2, dead_letter=here("grave"))
    driver.create(fifo, kind="fifo", content_dedup=True)
    driver.create(once, policy="consume_once")
    driver.create(far)
    driver.create(hurt, deliver_unsynced=True)
    driver.send(b"to be damaged", queue=hurt)
    (packed,) = driver.store.list_chunks(keys.queue_chunks(driver.broker.queues[hurt].id), b"", 2)
    changes = Changes()
    changes.put_chunk(packed, StoredChunk(DAMAGED))
    driver.store.commit(changes)
    driver.broker = driver.opened_anew()
    with suppress(ChunkDamaged):
        driver.receive(1, queue=hurt)
    driver.commit()
    for number in range(6):
        driver.send(b"work %d" % number * 40, b"more %d" % number, queue=work)
        driver.send(b"once %d" % number, queue=once)
    driver.send(b"soon", queue=far, delay_ms=60_000)
    driver.send(b"in a year", queue=far, delay_ms=365 * 24 * HOUR_MS)
    driver.send(b"urgent", queue=far, priority=7)
    held = driver.receive(3, queue=work)
    driver.ack(driver.receive(1, queue=once))
    driver.receive(2, queue=once)
    driver.do(c.AckConsumer(queue=work, consumer="reader", offset=3))
    for _ in range(3):  # a failure in place, one to the retry lane, one to the dead letters
        driver.release(held, error="it went wrong")
        driver.advance(HOUR_MS)
        held = driver.receive(3, queue=work)
    driver.release(driver.receive(1, queue=far), delay_ms=24 * HOUR_MS)
    driver.release(driver.receive(1, queue=far), delay_ms=24 * HOUR_MS)
    session = driver.do(c.OpenSession(name="worker", ttl_ms=HOUR_MS))
    for number in range(6):
        driver.send_fifo(f"group {number % 2}", b"fifo %d" % number, queue=fifo)
    driver.do(c.Receive(queue=fifo, limit=1, attempt_id="again", session=session))
    driver.do(c.StartRedrive(queue=here("grave"), per_second=1))
    driver.do(c.CommitWork(acks=[], sends=[c.Send(queue=work, bodies=[b"marked"])], mark=("stream", 7)))
    driver.do(c.CommitWork(acks=[], sends=[c.Send(queue=here("away", 1), bodies=[b"to another shard"])]))
    driver.do(c.Send(queue=work, bodies=[b"named"], once=c.Once("client", 1)))
    large = [c.Send(queue=here("large"), bodies=[b"staged %d" % number for number in range(3)])]
    staged = driver.do(c.StageWork(name="large", sends=large, send_shards=[0]))
    driver.do(c.CommitWork(acks=[], sends=[], mark=("large", 1), stage=staged.stage))
    driver.send(bytes(range(256)) * 20, queue=work)


def go_on(driver: BrokerDriver) -> None:
    """Something of all that once more, for the journal alone."""
    work, once = here("work"), here("once")
    driver.create(here("late"))
    driver.send(b"late", queue=here("late"))
    delivery = driver.receive(2, queue=work)
    driver.do(c.Ack(queue=work, channel=c.MAIN, spans=delivery.spans()[:1]))
    driver.receive(1, queue=once)
    driver.do(c.AckConsumer(queue=work, consumer="reader", offset=5))
    driver.send(b"the last", queue=here("late"))


@dataclass(frozen=True)
class Content:
    """Everything that a directory holds."""

    records: dict[bytes, bytes]
    chunks: dict[bytes, bytes]

    @classmethod
    def of(cls, store: Store) -> Content:
        chunk_keys = store.list_chunks(b"", b"", KEYS_MAX)
        return cls(dict(store.scan(b"")), {key: bytes(store.read_chunk(key)) for key in chunk_keys})


class Silent(Exception):
    """Something is not as it was, and nobody said so."""


def judge(directory: Path, before: Content) -> str:
    """What comes of opening a directory: 'harmless', or how it is told. Raises what must not be."""
    try:
        store = opened(directory)
    except PenstockError as error:
        return _one_line(error)
    try:
        return _judge_open(store, before)
    except StoreError as error:
        return _one_line(error)
    finally:
        store.close(apply=False)


def _one_line(error: PenstockError) -> str:
    assert "\n" not in str(error), f"{error} is more than a line"
    return type(error).__name__


def _judge_open(store: EmbeddedStore, before: Content) -> str:
    broker = Broker.open(store, START_MS, ENTROPY, 0, SHARDS)
    told = {keys.queue_chunks(queue_id) for queue_id in broker.quarantine.ids}
    told |= {flaw.group for flaw in store.flaws()}
    reports = [report for report in broker.take_reports() if report.last < report.first]
    told |= {bytes([kind]) for kind in Kind for report in reports if report.reason.startswith(f"{kind.name.lower()}")}
    records = dict(store.scan(b""))
    for key in records.keys() | before.records.keys():
        if records.get(key) != before.records.get(key) and keys.group_of(key) not in told:
            raise Silent(f"record {key!r}: {before.records.get(key)!r} has become {records.get(key)!r}")
    found = set(store.list_chunks(b"", b"", KEYS_MAX))
    for key in found | before.chunks.keys():
        if (key in found) != (key in before.chunks) and key[:8] not in told:
            raise Silent(f"chunk {key!r} is {'new' if key in found else 'gone'}")
    damaged = [key for key in found & before.chunks.keys() if not _reads(broker, key, before.chunks[key])]
    damaged = [key for key in damaged if before.chunks[key] != DAMAGED]
    if told or reports:
        assert reports, "what is wrong was not reported"
        return "quarantine" if len(broker.quarantine) else "left out"
    return "chunk damaged" if damaged else "harmless"


def _reads(broker: Broker, key: bytes, before: bytes) -> bool:
    """Whether a chunk reads as before; False if it is said to be damaged."""
    try:
        chunk = Chunk.decode(broker.write_buffer.read_stored(key))
        parts = ChunkKey.unpack(key)
        if parts.messages and (chunk.base, chunk.count) != (parts.base, parts.messages):
            return False
    except ChunkDamaged:
        return False
    if b"".join(chunk.parts()) != before:
        raise Silent(f"chunk {key!r} reads otherwise")
    return True


def offsets(directory: Path) -> Iterator[tuple[Path, int]]:
    """Every byte of every file. Of the ballast, which nobody ever reads, the first and the last."""
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        size = path.stat().st_size
        for offset in (0, size - 1) if path.name == BALLAST_NAME else range(size):
            yield path.relative_to(directory), offset


def flip(path: Path, offset: int, mask: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


class Flipper:
    """A directory, and copies of it with one byte flipped."""

    def __init__(self, home: Path, *, stages: bool = True) -> None:
        self.original = home / "original"
        self._copy = home / "copy"
        build(self.original, stages=stages)
        shutil.copytree(self.original, self._copy)
        store = opened(self._copy)
        self.before = Content.of(store)
        store.close(apply=False)
        self.places = list(offsets(self.original))

    def judge(self, name: Path, offset: int, mask: int) -> str:
        """What comes of one flip."""
        shutil.rmtree(self._copy)
        shutil.copytree(self.original, self._copy, copy_function=_copy_sparsely)
        flip(self._copy / name, offset, mask)
        return judge(self._copy, self.before)


def _copy_sparsely(source: str, target: str) -> str:
    """As `shutil.copy`, but of the ballast only the length."""
    if Path(source).name != BALLAST_NAME:
        return str(shutil.copy(source, target))
    with open(target, "wb") as file:
        file.truncate(Path(source).stat().st_size)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="flip only every Nth byte")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", default="", help="only in files whose names hold this")
    arguments = parser.parse_args()
    random = Random(arguments.seed)
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as home:
        flipper = Flipper(Path(home))
        places = [place for place in flipper.places if arguments.file in place[0].name][:: arguments.every]
        began = time.monotonic()
        for done, (name, offset) in enumerate(places, 1):
            mask = 1 << random.randrange(8)
            try:
                verdicts[flipper.judge(name, offset, mask)] += 1
            except Silent as error:
                verdicts["SILENT"] += 1
                print(f"SILENT {name} {offset} {mask:#x}: {error}"[:300])
            except Exception as error:
                verdicts["RAW"] += 1
                print(f"RAW {name} {offset} {mask:#x}: {type(error).__name__}: {error}"[:300])
            if done % 5000 == 0:
                print(
                    f"{done} of {len(places)} bytes in {time.monotonic() - began:.0f} s: {dict(verdicts)}", flush=True
                )
    print(f"{sum(verdicts.values())} bytes flipped: {dict(verdicts)}")
    return 1 if verdicts["SILENT"] or verdicts["RAW"] else 0


if __name__ == "__main__":
    sys.exit(main())
