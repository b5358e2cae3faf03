"""Messages and caches in one directory: whoever comes second is refused, and nothing is thrown away."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.core.errors import StoreError
from penstock.store.embedded import open_embedded
from penstock.store.errors import StoreLocked
from penstock.store.journal.kafka_options import KafkaOptions
from penstock.store.kafka import open_kafka
from penstock.store.layout import CLUSTER_NAME, POSITION_NAME
from penstock.store.lock import lock_for_node
from tests.compat.server import divide
from tests.store.conformance import changes_of

NOWHERE = KafkaOptions("127.0.0.1:1", "nowhere", "nowhere")


@pytest.fixture
def of_shards(tmp_path: Path) -> Path:
    """A directory with two shards, and something in it."""
    divide(tmp_path, 2)
    store = open_embedded(tmp_path / "shard-0")
    store.commit(changes_of({b"c": b"a message"}))
    store.close()
    return tmp_path


@pytest.fixture
def of_node(tmp_path: Path) -> Path:
    """The directory of a node that has cached a shard."""
    (tmp_path / "shard-0").mkdir()
    (tmp_path / "shard-0" / POSITION_NAME).write_bytes(b"")
    return tmp_path


def test_a_node_does_not_throw_the_messages_of_shards_away(of_shards: Path) -> None:
    with pytest.raises(StoreError, match=r"holds the messages of a server without Kafka.*give another"):
        lock_for_node(of_shards)
    with pytest.raises(StoreError, match="holds the messages"):
        open_kafka(NOWHERE, 0, of_shards)
    (of_shards / CLUSTER_NAME).unlink()
    with pytest.raises(StoreError, match="shard-0 holds the messages"):
        open_kafka(NOWHERE, 0, of_shards)
    store = open_embedded(of_shards / "shard-0")
    assert bytes(store.read_chunk(b"c")) == b"a message"
    store.close()


def test_a_node_does_not_move_in_with_a_single_process(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as ps:
        ps.queue("q").send(b"x")
    with pytest.raises(StoreError, match="holds the messages"):
        lock_for_node(tmp_path)


def test_a_cache_is_not_served_as_if_it_were_messages(of_node: Path) -> None:
    for directory in (of_node, of_node / "shard-0"):
        with pytest.raises(StoreError, match="cached of Kafka"):
            open_embedded(directory)
    assert sorted(path.name for path in of_node.rglob("*")) == [POSITION_NAME, "shard-0"]


def test_two_nodes_do_not_share_a_directory(tmp_path: Path) -> None:
    lock = lock_for_node(tmp_path / "new" / "directory")
    with pytest.raises(StoreLocked, match=r"in use by process .* a data directory of its own"):
        lock_for_node(tmp_path / "new" / "directory")
    lock.release()
    lock_for_node(tmp_path / "new" / "directory").release()


def test_a_place_that_cannot_be_a_directory_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=f"{tmp_path / 'file'} is a file: name a directory"):
        lock_for_node(tmp_path / "file")
