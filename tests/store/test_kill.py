"""The real thing, at the store's level: a process under load, killed with SIGKILL, and opened again."""

from __future__ import annotations

from pathlib import Path
from random import Random

from penstock.store.embedded import open_embedded
from tests.store.other_process import BODY, OPTIONS
from tests.store.processes import line_of, other_process


def test_killed_writer_loses_nothing_that_it_said_was_durable(tmp_path: Path) -> None:
    random = Random(1)
    number = 0
    for _ in range(4):
        with other_process("write", tmp_path) as writer:
            for _ in range(random.randrange(1, 250)):
                said = int(line_of(writer))
        store = open_embedded(tmp_path, options=OPTIONS)
        numbers = dict(store.scan(b"number/"))
        number = int(numbers[b"number/1"])
        assert numbers[b"number/2"] == numbers[b"number/1"]
        assert number >= said
        keys = store.list_chunks(b"c/", b"", 100)
        assert keys == [b"c/%08d" % at for at in range(max(1, number - 6), number + 1)]
        assert all(store.read_chunk(key) == BODY for key in keys)
        store.close(apply=random.random() < 0.5)
