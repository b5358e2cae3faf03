"""A process that opens a shard, commits, and stands still in the middle of a transaction: to be killed."""

from __future__ import annotations

import signal
import sys

from penstock.store.journal.kafka_options import KafkaOptions
from penstock.store.kafka import open_kafka
from tests.store.conformance import changes_of


def main() -> None:
    """Arguments: bootstrap servers, prefix, directory."""
    bootstrap, prefix, directory = sys.argv[1:]
    options = KafkaOptions(bootstrap, prefix, prefix, 1, 1, 1, commit_timeout_s=60.0)
    store = open_kafka(options, 0, directory)
    store.commit(changes_of({b"c/kept": b"kept"}, {b"r/kept": b"kept"}))
    journal = store._journal
    producer = journal._live
    producer.begin_transaction()
    journal._send(changes_of({b"c/lost": b"lost"}, {b"r/lost": b"lost", b"r/kept": b"lost"}), 99, True)
    assert producer.flush(60) == 0
    print("in the middle", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
