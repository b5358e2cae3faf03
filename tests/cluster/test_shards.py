"""A directory with several shards, as `penstock serve --workers N` made it in earlier builds: one process serves it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.core.errors import StoreError
from penstock.server.settings import InvalidSettings, parse
from penstock.store.errors import StoreDamaged, StoreVersion
from penstock.store.layout import CLUSTER_NAME
from penstock.store.sharded import FORMAT, read_cluster_file
from tests.compat.server import Server, divide, name_in, serving, until

SHARDS = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("shards"), shards=SHARDS) as running:
        yield running


def connected(server: Server) -> penstock.Penstock:
    return penstock.connect(f"penstock://127.0.0.1:{server.http_port}")


def test_queues_of_all_shards_are_there_and_survive_a_kill(server: Server) -> None:
    names = [name_in(shard, "kept", SHARDS) for shard in range(SHARDS)]
    with connected(server) as ps:
        for name in names:
            ps.queue(name).send(name.encode())
        ps.create_queue("wide", partitions=SHARDS)
        for number in range(30):
            ps.queue("wide").send(b"%d" % number, group=f"g{number}")
    assert sorted(path.name for path in server.data.glob("shard-*")) == [f"shard-{shard}" for shard in range(SHARDS)]
    server.kill()
    server.start()
    with connected(server) as ps:
        assert [ps.queue(name).receive(wait=5).body for name in names] == [name.encode() for name in names]  # type: ignore[union-attr]
        found: list[bytes] = []
        until(lambda: found.extend(each.body for each in ps.queue("wide").receive(30)) or len(found) >= 30)
        assert sorted(found) == sorted(b"%d" % number for number in range(30))


def test_dead_letters_and_units_of_work_go_from_shard_to_shard(server: Server) -> None:
    source, target = name_in(0, "from", SHARDS), name_in(1, "to", SHARDS)
    with connected(server) as ps:
        ps.create_queue(target)
        ps.create_queue(source, max_receives=1, dead_letter=target)
        ps.queue(source).send(b"bad")
        message = ps.queue(source).receive(wait=5)
        assert message is not None
        message.release()
        dead = ps.queue(target).receive(wait=10)
        assert dead is not None and dead.body == b"bad"
        dead.ack()
        ps.queue(source).send(b"good")
        with ps.unit_of_work() as unit:
            unit.take(source, wait=5)
            unit.put(target, b"done")
            unit.commit()
        done = ps.queue(target).receive(wait=10)
        assert done is not None and done.body == b"done"


def test_metrics_tell_of_every_shard(server: Server) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as answer:
        text = answer.read().decode()
    for shard in range(SHARDS):
        assert f'penstock_outbox_entries{{shard="{shard}"}}' in text


def test_one_store_of_it_is_not_opened_as_a_directory_by_itself(server: Server) -> None:
    with pytest.raises(StoreError, match="several shards"):
        penstock.open(server.data)


def test_who_still_asks_for_workers_is_told_what_to_do() -> None:
    with pytest.raises(InvalidSettings, match=r"\[server\] workers is gone: docs/server.md"):
        parse("[server]\nworkers = 4")


def test_a_directory_of_a_later_version_is_refused(tmp_path: Path) -> None:
    made = divide(tmp_path, 2)
    path = tmp_path / CLUSTER_NAME
    assert read_cluster_file(path) == made
    assert path.stat().st_mode & 0o077 == 0, "there are secrets in it"
    assert str(made.secret) not in repr(made) and str(made.entropy) not in repr(made)
    path.write_text(path.read_text().replace(f'"format":{FORMAT}', '"format":99'))
    with pytest.raises(StoreVersion, match="does not know"):
        read_cluster_file(path)
    path.write_text("{")
    with pytest.raises(StoreDamaged, match="cannot be read"):
        read_cluster_file(path)
