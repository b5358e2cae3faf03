"""Exactly once into a queue with several partitions: `python -m tests.spark.soak_partitions --kills 20`.

A stream copies one such queue into another, on a server with a process for each partition. What a batch sends is one
commit in one shard, with entries for the others, which get there a moment later. SIGKILL hits the driver, with all its
processes, in the middle of batches, at the moments that matter:

    begun        Spark has noted the batch: tasks read, and stage what they send
    published    messages of the batch are in the target, and Spark has not noted yet that it is done
    anywhere     some time after the stream began

So that it is hit there, and not a little later, it is stopped first (SIGSTOP), and looked at while it stands still.
`server` kills all processes of the server instead, after the batch has begun. In the end every message must be in the
target once, and a group in one partition.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.core.storage.chunk import Chunk
from penstock.pipelines.progress import partition_offsets
from penstock.spark.options import Where
from penstock.spark.place import Range
from penstock.spark.server import Connection, ServerPlace
from penstock.wire.arrow import BASE_COLUMNS
from penstock.wire.pieces import Target, encode_section
from tests.compat.server import Server, until
from tests.spark.soak import ENDLESS_S, Driver, difference, wait_for

PARTITIONS = 3
GROUPS = 14
MOMENTS = ("begun", "published", "anywhere", "server")
_RUN = 500
_PATIENCE_S = 300.0


class Wide:
    """The two queues."""

    def __init__(self, url: str) -> None:
        self._url = url

    def create(self) -> None:
        """Both have several partitions."""
        with contextlib.closing(Connection(Where(url=self._url))) as connection:
            for name in ("in", "out"):
                settings = {"partitions": PARTITIONS}
                connection.ask("POST", "/v1/queues", {"name": name, "settings": settings, "channels": ["main"]})

    def send(self, count: int) -> None:
        """The numbers below `count`: even ones have a group, which says where they go; odd ones may go anywhere."""
        with contextlib.closing(Connection(Where(url=self._url))) as connection:
            for low in range(0, count, _RUN):
                numbers = range(low, min(low + _RUN, count))
                groups = [None if number % 2 else b"g%d" % (number % GROUPS) for number in numbers]
                made = Chunk.of(0, 0, [b"%d" % number for number in numbers], groups=groups)
                connection.fetch("POST", "/v1/bulk/send", b"".join(encode_section(Target("in"), made)), {})
        until(lambda: self.sent("in") == count, _PATIENCE_S)

    def sent(self, name: str) -> int:
        """How many messages all partitions of a queue have got."""
        with contextlib.closing(ServerPlace(Where(url=self._url))) as place:
            return sum(at.end - (part.partition << PARTITION_SHIFT) for part, at in place.find([name]).items())

    def waiting(self) -> list[float]:
        """How many effects in other shards wait, in each shard."""
        with contextlib.closing(Connection(Where(url=self._url))) as connection:
            lines = connection.fetch("GET", "/metrics", b"", {}).decode().splitlines()
        return [float(line.rpartition(" ")[2]) for line in lines if line.startswith("penstock_outbox_entries{")]

    def messages(self, name: str) -> dict[int, list[tuple[str, bytes | None]]]:
        """Every message of a queue, with its group, by partition."""
        found: dict[int, list[tuple[str, bytes | None]]] = {}
        with contextlib.closing(ServerPlace(Where(url=self._url))) as place:
            for part, at in place.find([name]).items():
                for batch in place.batches(Range(name, at.first, at.end, at.first), BASE_COLUMNS):
                    rows = zip(batch["value"].to_pylist(), batch["key"].to_pylist(), strict=True)
                    found.setdefault(part.partition, []).extend((value.decode(), key) for value, key in rows)
        return found


class Checkpoint:
    """What Spark has noted of the stream."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begun(self) -> int:
        """The last batch that has begun; -1 for none."""
        return self._last("offsets")

    def done(self) -> int:
        """The last batch that is done; -1 for none."""
        return self._last("commits")

    def read(self, batch: int) -> int:
        """How many messages were read when a batch was over."""
        if batch < 0:
            return 0
        noted = json.loads((self._directory / "offsets" / str(batch)).read_text().splitlines()[-1])
        offsets = enumerate(partition_offsets(noted["queues"]["in"]))
        return sum(offset - (partition << PARTITION_SHIFT) for partition, offset in offsets)

    def _last(self, log: str) -> int:
        return max((int(each.name) for each in (self._directory / log).glob("*") if each.name.isdigit()), default=-1)


def soak(
    directory: Path, *, messages: int, kills: Iterator[str], batch_messages: int, chance: random.Random
) -> Counter[str]:
    """Copy under fire. Returns what the kills hit; raises `AssertionError` unless everything is there once."""
    (directory / "server").mkdir()
    server = Server(directory / "server", shards=PARTITIONS).start()
    url = f"http://127.0.0.1:{server.http_port}"
    wide, checkpoint = Wide(url), Checkpoint(directory / "checkpoint")
    driver = Driver(url, directory, batch_messages, "relay")
    hits: Counter[str] = Counter()
    try:
        wide.create()
        wide.send(messages)
        driver.start()
        for moment in kills:
            if not _stop_at(moment, driver, wide, checkpoint, chance):
                break
            if moment == "server":
                kill_all(server)
                server.start()
                hits["server"] += 1
            else:
                driver.kill()
                hits[_hit(wide, checkpoint)] += 1
                driver.start()
            print(f"{moment}: {dict(hits)}", flush=True)
        while driver.process.wait(ENDLESS_S) != 0:
            driver.start_after_failure()
        check(wide, messages)
    finally:
        kill_all(server)
        driver.kill()
    return hits


def _stop_at(moment: str, driver: Driver, wide: Wide, checkpoint: Checkpoint, chance: random.Random) -> bool:
    """Wait for a moment, and have the driver stand still there. False if it is done before."""
    while wait_for(driver):
        if moment == "anywhere":
            time.sleep(chance.uniform(0.0, 5.0))
            return driver.process.poll() is None
        first = checkpoint.begun() + 1  # a batch that this driver begins, not one that it does again
        if _stop_in_batch(moment, first, driver, wide, checkpoint):
            return True
    return False


def _stop_in_batch(moment: str, first: int, driver: Driver, wide: Wide, checkpoint: Checkpoint) -> bool:
    """Wait for a moment of any batch from the first on. False if the driver has ended before."""
    while True:
        until(lambda: driver.process.poll() is not None or _is_at(moment, first, wide, checkpoint), _PATIENCE_S)
        if driver.process.poll() is not None:
            return False
        if moment == "server":
            return True
        os.killpg(driver.process.pid, signal.SIGSTOP)
        if _is_at(moment, first, wide, checkpoint):
            return True
        os.killpg(driver.process.pid, signal.SIGCONT)  # it was faster


def _is_at(moment: str, first: int, wide: Wide, checkpoint: Checkpoint) -> bool:
    batch = checkpoint.begun()
    if batch < first or batch == checkpoint.done():
        return False
    return moment != "published" or _is_published(batch, wide, checkpoint)


def _is_published(batch: int, wide: Wide, checkpoint: Checkpoint) -> bool:
    """Whether the target has got messages of a batch: more than were read before it."""
    return wide.sent("out") > checkpoint.read(batch - 1)


def _hit(wide: Wide, checkpoint: Checkpoint) -> str:
    """What the driver was at when it was killed."""
    batch = checkpoint.begun()
    if batch == checkpoint.done():
        return "between batches"
    return "published batch" if _is_published(batch, wide, checkpoint) else "begun batch"


def kill_all(server: Server) -> None:
    """The parent, and its workers, which end by themselves without it."""
    parent = server.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children")
    pids = children.read_text().split() if children.exists() else []
    server.kill()
    until(lambda: all(_has_ended(pid) for pid in pids), _PATIENCE_S)


def _has_ended(pid: str) -> bool:
    """Whether a process has ended, though perhaps nobody has asked for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def check(wide: Wide, messages: int) -> None:
    """Every number once, and every group in one partition."""
    until(lambda: wide.sent("out") >= messages, _PATIENCE_S)
    until(lambda: wide.waiting() == [0.0] * PARTITIONS, _PATIENCE_S)  # what comes twice might come late
    found = wide.messages("out")
    expected = Counter(str(number) for number in range(messages))
    numbers = Counter(number for rows in found.values() for number, _ in rows)
    assert numbers == expected, difference(numbers, expected)
    places = {(group, partition) for partition, rows in found.items() for _, group in rows if group is not None}
    assert len(places) == len({group for group, _ in places}) == GROUPS // 2, f"groups are in {sorted(places)}"
    assert set(found) == set(range(PARTITIONS)), "all partitions have got some"


def main() -> None:
    """The full one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--batch", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    chance = random.Random(options.seed)
    moments = (chance.choice(MOMENTS) for _ in range(options.kills))
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as directory:
        hits = soak(
            Path(directory), messages=options.messages, kills=moments, batch_messages=options.batch, chance=chance
        )
    print(f"{options.messages} messages, kills hit {dict(hits)}: each once in the queue", flush=True)


if __name__ == "__main__":
    main()
