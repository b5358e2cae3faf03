"""What the tests run in a second process, on a directory that they share.

python other_process.py hold DIRECTORY           open for writing, say "open", and wait for the end of the input
python other_process.py write DIRECTORY [COUNT]  commit counted changes, say the number of each when it is durable
python other_process.py read DIRECTORY           open for reading, say the content's number, and close
"""

from __future__ import annotations

import sys
from itertools import count, islice

from penstock.store.embedded import StoreOptions, open_embedded, open_store
from tests.store.conformance import changes_of

BODY = bytes(range(256)) * 40
OPTIONS = StoreOptions(
    apply_live_bytes=200_000,
    apply_written_bytes=300_000,
    unapplied_bytes_max=600_000,
    segment_bytes=256 << 10,
    apply_after_seconds=0.05,
)
"""Everything happens often: applying, trimming, recycling."""


def say(word: object) -> None:
    print(word, flush=True)


def hold(directory: str) -> None:
    store = open_embedded(directory)
    say("open")
    sys.stdin.read()
    store.close()


def write(directory: str, commits: str = "1000000000") -> None:
    """Each commit adds a chunk, removes the one that is seven older, and writes its number in two places."""
    store = open_embedded(directory, options=OPTIONS)
    first = int(dict(store.scan(b"number/")).get(b"number/1", b"0")) + 1
    for number in islice(count(first), int(commits)):
        records: dict[bytes, bytes | None] = {b"number/1": b"%d" % number, b"number/2": b"%d" % number}
        store.commit(changes_of({b"c/%08d" % number: BODY, b"c/%08d" % (number - 7): None}, records))
        say(number)
    store.close()


def read(directory: str) -> None:
    store = open_store(directory, read_only=True)
    say(dict(store.scan(b"number/"))[b"number/1"].decode())
    store.close()


if __name__ == "__main__":
    {"hold": hold, "write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
