"""What the ZooKeeper engine promises beyond the suite that all engines pass: fencing, doubts, large commits, limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from penstock.store import zookeeper as engine
from penstock.store.errors import CommitFailed, DiskFull, LogUnavailable, ShardFenced, StoreVersion
from penstock.store.zookeeper import Operation, ZooKeeperStore, connect, disconnect, open_zookeeper
from penstock.store.zookeeper_options import ZooKeeperOptions
from tests.store.conformance import Model, changes_of, content
from tests.store.zookeeper_engine import options_for
from tests.zookeeper import zookeeper  # noqa: F401
from tools.zookeeper import ZooKeeperEnsemble


@pytest.fixture
def options(zookeeper: ZooKeeperEnsemble) -> ZooKeeperOptions:  # noqa: F811
    return options_for(zookeeper)


@pytest.fixture
def client(options: ZooKeeperOptions) -> Iterator[KazooClient]:
    client = connect(options)
    yield client
    disconnect(client)


def opened(options: ZooKeeperOptions, client: KazooClient) -> ZooKeeperStore:
    return open_zookeeper(options, 0, client)


def test_former_owner_cannot_commit_after_another_has_opened_the_shard(
    options: ZooKeeperOptions, client: KazooClient
) -> None:
    former = opened(options, client)
    former.commit(changes_of(records={b"r": b"1"}))
    later = opened(options, client)
    with pytest.raises(ShardFenced):
        former.commit(changes_of(records={b"r": b"2"}))
    with pytest.raises(CommitFailed, match="opened again"):
        former.commit(changes_of(records={b"r": b"3"}))
    later.commit(changes_of(records={b"s": b"1"}))
    assert content(opened(options, client)) == Model({}, {b"r": b"1", b"s": b"1"})


@pytest.mark.parametrize("was_done", [True, False])
def test_commit_whose_answer_is_lost_is_done_once(
    options: ZooKeeperOptions, client: KazooClient, monkeypatch: pytest.MonkeyPatch, was_done: bool
) -> None:
    store = opened(options, client)
    send, losses = store._send, [ConnectionLoss(), ConnectionLoss()]

    def lossy(*given: object) -> list[object]:
        if not losses:
            return send(*given)  # type: ignore[arg-type]
        if was_done:
            send(*given)  # type: ignore[arg-type]
        raise losses.pop()

    monkeypatch.setattr(store, "_send", lossy)
    store.commit(changes_of({b"c/1": b"body"}, {b"r": b"1"}))
    store.commit(changes_of({b"c/1": None}, {b"r": b"2"}))
    assert content(store) == content(opened(options, client)) == Model({}, {b"r": b"2"})


def test_owner_that_is_in_doubt_and_was_fenced_does_not_take_the_other_ones_commit_for_its_own(
    options: ZooKeeperOptions, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(options, client)
    send, losses = store._send, [ConnectionLoss()]

    def fenced_meanwhile(*given: object) -> list[object]:
        if losses:
            opened(options, client).commit(changes_of(records={b"other": b"1"}))
            raise losses.pop()
        return send(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_send", fenced_meanwhile)
    with pytest.raises(ShardFenced):
        store.commit(changes_of(records={b"r": b"1"}))
    assert content(opened(options, client)) == Model({}, {b"other": b"1"})


class Killed(BaseException):
    """The process ends here."""


def test_large_commit_that_is_cut_at_any_transaction_is_there_whole_or_not_at_all(
    options: ZooKeeperOptions, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "PART_BYTES", 400)
    small = ZooKeeperOptions(options.hosts, options.cluster, shards=1, transaction_bytes_max=1_200)
    before = {b"c/%d" % number: b"old" * number for number in range(6)}
    large = changes_of({b"d/%d" % number: bytes([number]) * 900 for number in range(4)}, {b"r": b"2"}, [b"c/"])
    wanted = Model(dict(before), {b"r": b"1"}).after(large)
    outcomes = []
    for cut_at in range(1, 40):
        reset = opened(small, client)
        reset.commit(changes_of(dropped=[b""]))
        reset.commit(changes_of(dict(before), {b"r": b"1"}))
        left = cut_at

        def cut(
            operations: Iterable[Operation], transact: Callable[[Iterable[Operation]], None] = reset._transact
        ) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Killed
            transact(operations)

        monkeypatch.setattr(reset, "_transact", cut)
        try:
            reset.commit(large)
        except Killed:
            found = content(opened(small, client))
            assert found in (Model(dict(before), {b"r": b"1"}), wanted), f"cut at {cut_at}"
            outcomes.append(found == wanted)
            assert client.get_children(f"{small.shard_path(0)}/redo") == []
        else:
            break
    assert outcomes == sorted(outcomes) and {True, False} == set(outcomes)
    assert content(opened(small, client)) == wanted


def test_owner_znode_is_made_anew_before_its_version_runs_out(
    options: ZooKeeperOptions, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(options, client)
    monkeypatch.setattr(engine, "VERSION_MAX", 5)
    for number in range(20):
        store.commit(changes_of(records={b"r": b"%d" % number}))
        assert client.get(f"{options.shard_path(0)}/owner")[1].version <= 5
    opened(options, client)
    with pytest.raises(ShardFenced):
        store.commit(changes_of(records={b"r": b"late"}))


def test_shard_that_is_full_takes_deletes_and_then_sends_again(options: ZooKeeperOptions, client: KazooClient) -> None:
    small = ZooKeeperOptions(options.hosts, options.cluster, shards=1, shard_bytes_max=1_000)
    store = opened(small, client)
    store.commit(changes_of({b"c/1": b"x" * 900}))
    with pytest.raises(DiskFull, match="shard_bytes_max"):
        store.commit(changes_of({b"c/2": b"x" * 900}))
    store = opened(small, client)
    with pytest.raises(DiskFull):
        store.commit(changes_of({b"c/2": b"x" * 900}))
    store.commit(changes_of({b"c/1": None}, {b"r": b"1"}))
    store.commit(changes_of({b"c/2": b"x" * 900}))


def test_znodes_of_a_user_are_closed_to_others(zookeeper: ZooKeeperEnsemble) -> None:  # noqa: F811
    mine = options_for(zookeeper, user="penstock", password="correct horse")
    store = open_zookeeper(mine, 0)
    store.commit(changes_of({b"c/1": b"secret"}))
    store.close()
    others = ZooKeeperOptions(mine.hosts, mine.cluster, shards=1, user="penstock", password="wrong")
    with pytest.raises(LogUnavailable, match="another user or password"):
        open_zookeeper(others, 0)
    assert "correct horse" not in repr(mine)


def test_shard_of_a_later_format_is_refused(options: ZooKeeperOptions, client: KazooClient) -> None:
    opened(options, client)
    client.set(options.shard_path(0), b'{"format": 2}')
    with pytest.raises(StoreVersion, match="has format 2"):
        opened(options, client)


def test_znodes_are_as_documented(options: ZooKeeperOptions, client: KazooClient) -> None:
    """A golden tree: what other builds find, and people with zkCli."""
    store = opened(options, client)
    chunk_key = bytes(7) + b"\x01" + bytes(3) + b"\x10" + bytes(32)
    store.commit(changes_of({chunk_key: b"body"}, {b"\x02" + bytes(7) + b"\x01": b"queue"}))
    path = options.shard_path(0)
    assert path == f"/penstock/{options.cluster}/0"
    assert sorted(client.get_children(path)) == ["chunks", "owner", "records", "redo"]
    assert client.get(path)[0] == b'{"format":1}'
    chunk = "0000000000000001-00000010-0000000000000000-0000000000000000-00000000-00000000-0000000000000000"
    assert client.get_children(f"{path}/chunks") == [chunk]
    assert client.get(f"{path}/chunks/{chunk}")[0] == b"body"
    assert client.get_children(f"{path}/records") == ["queue-0000000000000001-"]
    assert client.get(f"{path}/records/queue-0000000000000001-")[0] == b"queue"


def test_server_that_is_not_there_is_named(options: ZooKeeperOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CONNECT_S", 0.5)
    with pytest.raises(LogUnavailable, match=r"ZooKeeper at 127\.0\.0\.1:1 does not let us in"):
        connect(ZooKeeperOptions("127.0.0.1:1", options.cluster))
