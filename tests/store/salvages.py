"""A directory with everything in it is damaged by a seed, checked and salvaged; then all messages are counted by id.

The directory has two shards: standard, FIFO, partitioned and consume-once queues, priorities, delays, retries,
dead letters, pauses, consumers, several channels and none; a part of it in the tables, a part in the journals. A seed
flips bytes, truncates files, zeroes blocks and removes files. Then these hold:

- Nobody raises anything but an error of one line, and the new directory is whole.
- A message comes in a channel once at most, and only if it was sent, with the body that it had.
- A message that is missing is explained: its chunk is named, or commits or a part of a table could not be read.
- A message that was done and comes again is told, too.

    python -m tests.store.salvages [--seeds N] [--start S]
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.delivery.states import State
from penstock.core.errors import ChunkDamaged, StoreError
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.queue import Queue
from penstock.core.storage import keys
from penstock.core.storage.chunk import Chunk
from penstock.raw_directory import Finding
from penstock.salvage import Salvaged, check, salvage, stores_in
from penstock.store.layout import BALLAST_NAME, CLUSTER_NAME
from penstock.store.sharded import ENTROPY_BYTES, FORMAT, SECRET_BYTES, ClusterFile, write_cluster_file
from tests.core.driver import HOUR_MS, BrokerDriver
from tests.store.flips import ENTROPY, SHARDS, Content, _copy_sparsely, fill, flip, go_on, here, opened

PENDING = (State.READY, State.LEASED, State.DELAYED)
BLOCKS = (512, 4096, 16384)
Place = tuple[int, int, str]
"""Shard, queue id, channel."""


def build(directory: Path) -> int:
    """Make the directory, as a server leaves it that is killed. Returns the time there."""
    live = directory.with_name("live")
    live.mkdir()
    write_cluster_file(live / CLUSTER_NAME, ClusterFile(FORMAT, SHARDS, ENTROPY[:ENTROPY_BYTES], bytes(SECRET_BYTES)))
    now_ms = 0
    for shard in range(SHARDS):
        store = opened(live / f"shard-{shard}")
        driver = BrokerDriver(store, checks=False, shard=shard, shards=SHARDS)  # type: ignore[arg-type]
        fill_shard(driver, shard)
        store.close()
        store = opened(live / f"shard-{shard}")
        driver = BrokerDriver(store, now_ms=driver.now_ms, checks=False, shard=shard, shards=SHARDS)  # type: ignore[arg-type]
        store.apply_now()
        if shard == 0:
            go_on(driver)
        for number in range(20):
            driver.send(b"lately %d" % number, queue=here("parts"))
        driver.ack(driver.receive(5, queue=here("parts")))
        now_ms = max(now_ms, driver.now_ms)
    shutil.copytree(live, directory, copy_function=_copy_sparsely)
    shutil.rmtree(live)
    return now_ms


def fill_shard(driver: BrokerDriver, shard: int) -> None:
    parts, part = here("parts"), (1, 1) if shard else None
    config = QueueConfig(partitions=SHARDS, retention_ms=None)
    driver.do(c.CreateQueue(name=parts, config=config, channels=(c.MAIN, "audit"), part=part))
    driver.do(c.PauseChannel(queue=parts, channel="audit"))
    for number in range(30):
        driver.send(b"part %d" % number * (1 + number * 20), queue=parts)
    driver.ack(driver.receive(7, queue=parts))
    retried = driver.receive(4, queue=parts)
    driver.release(retried, delay_ms=0)
    driver.release(driver.receive(4, queue=parts), delay_ms=HOUR_MS // 2)
    topic = here("topic", shard)
    driver.do(c.CreateQueue(name=topic, config=QueueConfig(retention_ms=None), channels=()))
    driver.send(*[b"nobody reads %d" % number for number in range(5)], queue=topic)
    held = here("held", shard)
    driver.create(held, retention_ms=None)
    driver.send(b"shown", queue=held)
    driver.do(c.PauseQueue(queue=held))
    driver.send(b"not shown", b"nor this", queue=held)
    if shard == 0:
        fill(driver)
        for task in driver.do(c.ListRedrives(queue=here("grave"))):
            driver.do(c.CancelRedrive(task=task.task))
    else:
        name = here("fifo", 1)
        driver.create(name, kind="fifo", retention_ms=None)
        for number in range(30):
            driver.send_fifo(f"group {number % 3}", b"ordered %d" % number, queue=name)
        delivery = driver.receive(4, queue=name)
        driver.do(c.Ack(queue=name, channel=c.MAIN, spans=delivery.spans()[:1]))


class Seen:
    """What a directory holds: what is pending in each channel, and the bodies of all messages."""

    def __init__(self, directory: Path, now_ms: int) -> None:
        self.pending: dict[Place, list[int]] = {}
        self.bodies: dict[tuple[int, int, int], bytes] = {}
        self.stored: dict[tuple[int, int, int], bytes] = {}
        """The chunk that each message lies in."""
        self.names: dict[str, int] = {}
        self.receivable = 0
        for shard in range(SHARDS):
            self._look(directory / f"shard-{shard}", shard, now_ms)

    def _look(self, directory: Path, shard: int, now_ms: int) -> None:
        store = opened(directory)
        for packed, body in Content.of(store).chunks.items():
            if packed[0] != keys.OUTBOX_QUEUES >> 56:
                try:
                    chunk = Chunk.decode(body)
                except ChunkDamaged:
                    continue
                for index, each in enumerate(chunk.body_list()):
                    place = shard, int.from_bytes(packed[:8], "big"), chunk.base + index
                    self.bodies[place], self.stored[place] = bytes(each), body
        broker = Broker.open(store, now_ms, ENTROPY, shard, SHARDS)
        broker.stands_still = True
        assert not broker.quarantine.ids, [broker.quarantine.reason(each) for each in broker.quarantine.ids]
        for queue in broker.queues.values():
            self.names[queue.name] = queue.id
            self._look_at_queue(broker, queue, shard)
        store.close(apply=False)

    def _look_at_queue(self, broker: Broker, queue: Queue, shard: int) -> None:
        stats = queue.stats()
        most = 0 if queue.channels else queue.messages
        for channel in queue.channels.values():
            seen = queue.browse(channel, -1, 100_000, PENDING, None)
            self.pending[shard, queue.id, channel.name] = [each.sequence for each in seen]
            counted = stats.channels[channel.name]
            held = counted.ready + counted.leased + counted.delayed
            assert held == len(seen), f"{queue.name} {channel.name}: {held} are counted, {len(seen)} are there"
            most = max(most, held)
            is_ready = [each.sequence for each in seen if each.state == State.READY]
            channel.paused = False
            got: list[int] = []
            command = c.Receive(queue=queue.name, channel=channel.name, limit=100_000, wait_ms=0)
            delivery = broker.handle(command, broker.now_ms)
            for run in delivery.runs:
                got += range(run.chunk.base + run.start, run.chunk.base + run.stop)
            assert len(got) == len(set(got)), f"{queue.name} {channel.name}: {got} came twice"
            if queue.is_fifo:
                assert set(got) <= set(is_ready)
            else:
                assert sorted(got) == sorted(is_ready), f"{queue.name} {channel.name}: {got} came of {is_ready}"
        self.receivable += most


# -- damage ------------------------------------------------------------------------------------------------------------


def victims(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != BALLAST_NAME)


def spoil(directory: Path, random: Random) -> str:
    """Damage a directory in one or two ways. Returns what was done."""
    done = []
    for _ in range(random.choice((1, 1, 1, 2))):
        path = random.choice([path for path in victims(directory) if path.stat().st_size or random.random() < 0.05])
        size, name = path.stat().st_size, path.relative_to(directory)
        how = random.choice(("flip", "flip", "flips", "zero", "zero", "truncate", "remove"))
        if how in ("flip", "flips") and size:
            for _ in range(1 if how == "flip" else 20):
                flip(path, random.randrange(size), 1 << random.randrange(8))
        elif how == "zero":
            block = random.choice(BLOCKS)
            at = random.randrange(size // block + 1) * block
            if at < len(path.read_bytes().rstrip(b"\0")) <= at + block and path.suffix == ".segment":
                continue  # the end of a journal, marks and all, as if its commits had never been: docs/store.md says so
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(bytes(min(block, max(0, size - at))))
        elif how == "truncate":
            with open(path, "r+b") as file:
                file.truncate(random.randrange(size + 1))
        else:
            path.unlink()
        done.append(f"{how} {name}")
    return ", ".join(done)


# -- judging -----------------------------------------------------------------------------------------------------------

_RANGE = re.compile(r"messages (\d+) to (\d+)$")
_WIDE = re.compile(r"commits \d+ to|table .* is damaged|missing|cannot be read|is not readable|not known|header|entry")


class Wrong(AssertionError):
    """Something that must not be."""


def judge(source: Path, target: Path, before: Seen, now_ms: int) -> Counter[str]:
    """Check and salvage a directory, and count. Raises what must not be."""
    findings = [finding for store in stores_in(source) for finding in check(store)]
    told_all(findings)
    done: Salvaged = salvage(source, target)
    told_all(done.findings)
    for store in stores_in(target):
        if damage := check(store):
            raise Wrong(f"what was salvaged is damaged: {damage}")
    after = Seen(target, now_ms)
    if after.receivable != done.messages:
        raise Wrong(f"{done.messages} messages are said to be salvaged, and {after.receivable} come")
    verdict: Counter[str] = Counter()
    wide = {shard for shard in range(SHARDS) if is_wide(done.findings, shard)}
    for place, sequences in after.pending.items():
        shard, queue_id, _channel = place
        if len(sequences) != len(set(sequences)):
            raise Wrong(f"{place}: messages come twice")
        for sequence in sequences:
            if after.bodies[shard, queue_id, sequence] != before.bodies.get((shard, queue_id, sequence)):
                raise Wrong(f"{place}: message {sequence} was never sent")
        again = set(sequences) - set(before.pending.get(place, ()))
        verdict["again"] += len(again)
        if again and shard not in wide:
            raise Wrong(f"{place}: {sorted(again)} come again, and nobody says so: {done.findings}")
    for place, sequences in before.pending.items():
        lost = set(sequences) - set(after.pending.get(place, ()))
        verdict["came"] += len(sequences) - len(lost)
        verdict["lost"] += len(lost)
        if lost:
            files = [path.read_bytes() for path in victims(source / f"shard-{place[0]}")]
            chunks = (before.stored[place[0], place[1], each] for each in lost)
            verdict["lost, but their bytes are there"] += sum(any(chunk in data for data in files) for chunk in chunks)
        named = ranges(done.findings)
        unnamed = {each for each in lost if not any(first <= each <= last for first, last in named)}
        if unnamed and place[0] not in wide:
            raise Wrong(f"{place}: {sorted(unnamed)} are lost, and nobody says so: {done.findings}")
        if unnamed and any((place[0], place[1], each) in after.bodies for each in unnamed) and not is_renamed(done):
            raise Wrong(f"{place}: {sorted(unnamed)} are there, and do not come: {done.findings}")
    return verdict


def is_wide(findings: list[Finding], shard: int) -> bool:
    """Whether something of a shard could not be read of which nobody knows what it was."""
    here_or_all = (finding for finding in findings if finding.where.startswith((f"shard-{shard}: ", CLUSTER_NAME)))
    return any(_WIDE.search(finding.what) for finding in here_or_all)


def told_all(findings: list[Finding]) -> None:
    if len(set(findings)) != len(findings):
        raise Wrong(f"findings are listed twice: {findings}")
    for finding in findings:
        if "\n" in finding.what or "Nothing was changed" in finding.what:
            raise Wrong(f"bad words: {finding}")


def is_renamed(done: Salvaged) -> bool:
    """Whether a channel has another name than before, so that its messages are not found under the old one."""
    return any("it is called" in finding.what for finding in done.findings)


def ranges(findings: list[Finding]) -> list[tuple[int, int]]:
    found = (_RANGE.search(finding.where) for finding in findings)
    return [(int(match[1]), int(match[2])) for match in found if match]


class Salvages:
    """A directory, and copies of it that are damaged."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.original = home / "original"
        self.now_ms = build(self.original)
        shutil.copytree(self.original, home / "copy", copy_function=_copy_sparsely)
        self.before = Seen(home / "copy", self.now_ms)
        shutil.rmtree(home / "copy")

    def run(self, seed: int) -> Counter[str]:
        """What comes of one seed."""
        source, target = self._home / "damaged", self._home / "salvaged"
        for each in (source, target):
            shutil.rmtree(each, ignore_errors=True)
        shutil.copytree(self.original, source, copy_function=_copy_sparsely)
        what = spoil(source, Random(seed))
        try:
            return judge(source, target, self.before, self.now_ms)
        except StoreError as error:
            raise Wrong(f"seed {seed}, {what}: refused: {error}") from error
        except Exception as error:
            raise Wrong(f"seed {seed}, {what}: {type(error).__name__}: {error}") from error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=1)
    arguments = parser.parse_args()
    verdict: Counter[str] = Counter()
    began, failed = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as home:
        salvages = Salvages(Path(home))
        for done, seed in enumerate(range(arguments.start, arguments.start + arguments.seeds), 1):
            try:
                verdict += salvages.run(seed)
            except Wrong as error:
                failed += 1
                print(f"WRONG {error}"[:600], flush=True)
            if done % 100 == 0:
                print(f"{done} seeds in {time.monotonic() - began:.0f} s: {dict(verdict)}, {failed} wrong", flush=True)
    print(f"{arguments.seeds} seeds: {dict(verdict)}, {failed} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
