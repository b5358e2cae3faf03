"""A broker is killed under commits, again and again: each commit is in the log as a whole, or not at all.

    python -m tests.store.kafka_kills [--kills 25] [--seed 1]

Four shards commit as fast as they can, chunks and records together. After a commit whose outcome is not known a shard
is opened again, from one of three caches or from none, and what it holds is compared. Part of `make cluster-soak`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from penstock.core.errors import StoreError
from penstock.core.storage.changes import Changes
from penstock.store.errors import CommitAborted, CommitFailed, ShardFenced
from penstock.store.journal.kafka_options import KafkaOptions
from penstock.store.journal.kafka_topics import LogTopics, prepare_topics
from penstock.store.kafka import KafkaStore, open_kafka
from tests.store.conformance import Model, changes_of, content
from tools.kafka import KafkaCluster
from tools.servers import QUICK_TO_START

SHARDS = 4
KEPT = 40
"""How many commits a shard keeps: older ones are deleted as it goes."""
CACHES = ("a", "b", "c")


class Committer(threading.Thread):
    """Commits to one shard until it is told to stop."""

    def __init__(self, options: KafkaOptions, topics: LogTopics, shard: int, directory: Path, seed: int) -> None:
        super().__init__(name=f"shard {shard}")
        self._options, self._topics, self._shard, self._directory = options, topics, shard, directory
        self._chance = random.Random(f"{seed} {shard}")
        self._model = Model()
        self._in_doubt: Changes | None = None
        self._store: KafkaStore | None = None
        self.stopping = threading.Event()
        self.commits = self.doubts = 0
        self.complaints: list[str] = []

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._commit(self._opened())
            except CommitAborted:
                continue
            except StoreError as error:
                self._in_doubt = self._in_doubt if isinstance(error, CommitFailed | ShardFenced) else None
                self._close()
        self._close()

    def _opened(self) -> KafkaStore:
        if self._store is None:
            cache = self._chance.choice([*CACHES, f"new-{self.commits}"])
            doubt, self._in_doubt = self._in_doubt, None
            try:
                self._store = open_kafka(self._options, self._shard, self._directory / cache, topics=self._topics)
            except StoreError:
                self._in_doubt = doubt
                time.sleep(0.2)
                raise CommitAborted("it could not be opened") from None
            self._compare(content(self._store), doubt)
        return self._store

    def _compare(self, found: Model, doubt: Changes | None) -> None:
        wanted = [self._model] if doubt is None else [self._model, self._model.after(doubt)]
        if found not in wanted:
            self.complaints.append(f"shard {self._shard} after {self.commits} commits: {found} is none of {wanted}")
        self._model = found

    def _commit(self, store: KafkaStore) -> None:
        number = self.commits = self.commits + 1
        chunks: dict[bytes, bytes | None] = {b"c/%d" % number: b"chunk %d" % number}
        records: dict[bytes, bytes | None] = {b"r/%d" % number: b"record", b"last": b"%d" % number}
        if number > KEPT:
            chunks[b"c/%d" % (number - KEPT)] = records[b"r/%d" % (number - KEPT)] = None
        changes = changes_of(chunks, records)
        self._in_doubt = changes_of(chunks, records)
        try:
            store.commit(changes)
        except CommitAborted:
            self._in_doubt = None
            raise
        except StoreError:
            self.doubts += 1
            raise
        self._model, self._in_doubt = self._model.after(self._in_doubt), None

    def _close(self) -> None:
        if self._store is not None:
            with contextlib.suppress(StoreError):
                self._store.close()
            self._store = None


def run(kills: int, seed: int) -> list[str]:
    """Kill the broker so many times; what was wrong."""
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        kafka = KafkaCluster(1, java_options=(QUICK_TO_START,))
        stack.callback(kafka.close)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-kills-")))
        name = f"kills-{seed}"
        options = KafkaOptions(kafka.bootstrap, name, name, SHARDS, replication_factor=1, min_insync_replicas=1)
        topics = prepare_topics(options)
        committers = [Committer(options, topics, shard, directory, seed) for shard in range(SHARDS)]
        for committer in committers:
            committer.start()
        try:
            for number in range(kills):
                time.sleep(chance.choice([1.0, 2.0, 4.0]))
                (kafka.kill if chance.random() < 0.8 else kafka.stop)(0)
                time.sleep(chance.choice([0.0, 0.0, 1.0, 3.0, 8.0]))
                kafka.start(0)
                commits, doubts = (sum(getattr(it, what) for it in committers) for what in ("commits", "doubts"))
                print(f"kill {number + 1} of {kills}: {commits} commits, {doubts} in doubt", flush=True)
            time.sleep(10.0)
        finally:
            for committer in committers:
                committer.stopping.set()
            for committer in committers:
                committer.join()
        return [complaint for committer in committers for complaint in committer.complaints]


def main() -> None:
    """Run it; the exit status says whether everything is as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=None, help="at random if not given")
    given = parser.parse_args()
    complaints = run(given.kills, random.randrange(1_000_000) if given.seed is None else given.seed)
    print("\n".join(complaints) or "each commit was there as a whole, or not at all")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
