"""What the ZooKeeper engine promises beyond the suite that all engines pass: fencing, doubts, large commits, limits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from penstock.cluster.ownership.ownership import CLOCK_MARGIN
from penstock.server.proof import PROOF_S
from penstock.store import zookeeper as engine
from penstock.store.errors import CommitFailed, DiskFull, LogUnavailable, ShardFenced, StoreVersion
from penstock.store.zookeeper import NodeSession, Operation, ZooKeeperStore, connect, disconnect, open_zookeeper
from penstock.store.zookeeper_options import ZooKeeperOptions
from tests.certificates import make_authority, make_certificate
from tests.store.conformance import Model, changes_of, content
from tests.store.zookeeper_engine import options_for
from tests.zookeeper import needed_ensemble, unique_cluster, zookeeper  # noqa: F401
from tools.servers import free_ports
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


def test_commit_of_fifty_megabytes_does_not_end_servers_with_small_heaps() -> None:
    """Steps of 900 KB did: servers keep their last 500 transactions."""
    with needed_ensemble() as ensemble:
        store = open_zookeeper(ZooKeeperOptions(ensemble.hosts, "large"), 0)
        for number in range(2):
            store.commit(changes_of({b"c/%d" % number: b"x" * 50_000_000}))
            store.commit(changes_of({b"c/%d" % number: None}))
        assert ensemble.is_running(0)
        store.close()


def test_server_that_is_not_there_is_named(options: ZooKeeperOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CONNECT_S", 0.5)
    with pytest.raises(LogUnavailable, match=r"ZooKeeper at 127\.0\.0\.1:1 does not answer"):
        connect(ZooKeeperOptions("127.0.0.1:1", options.cluster))


def test_large_value_leaves_nothing_behind_when_it_gets_smaller_or_goes(
    options: ZooKeeperOptions, client: KazooClient
) -> None:
    store = opened(options, client)
    chunks = f"{options.shard_path(0)}/chunks/{engine.chunk_name(b'c/1')}"
    large = bytes(range(256)) * 2_000  # three parts
    store.commit(changes_of({b"c/1": large}))
    assert len(client.get_children(chunks)) == 2
    store.commit(changes_of({b"c/1": large[: 300 * 1024]}))
    assert len(client.get_children(chunks)) == 1
    assert content(opened(options, client)) == content(store)
    store = opened(options, client)
    store.commit(changes_of({b"c/1": large}))
    store.commit(changes_of({b"c/1": None}))
    assert client.get_children(f"{options.shard_path(0)}/chunks") == []
    assert content(store) == content(opened(options, client)) == Model({}, {})


def a_session(client: KazooClient, options: ZooKeeperOptions, timeout_s: float = 3.0) -> NodeSession:
    client.ensure_path(f"{options.path}/sessions")
    path = client.create(f"{options.path}/sessions/a-", ephemeral=True, sequence=True)
    return NodeSession(path, round(timeout_s * 1_000))


def test_nothing_is_committed_when_the_nodes_session_is_over(options: ZooKeeperOptions, client: KazooClient) -> None:
    session = a_session(client, options)
    store = open_zookeeper(options, 0, client, session)
    store.commit(changes_of(records={b"r": b"1"}))
    client.delete(session.path)
    with pytest.raises(ShardFenced, match="session with ZooKeeper is over"):
        store.commit(changes_of(records={b"r": b"2"}))
    assert content(opened(options, client)) == Model({}, {b"r": b"1"})


def test_who_takes_over_knows_whether_the_former_owner_may_still_hand_out(
    options: ZooKeeperOptions, client: KazooClient
) -> None:
    other = connect(options)
    open_zookeeper(options, 0, other, a_session(other, options)).commit(changes_of(records={b"r": b"1"}))
    former_lives = open_zookeeper(options, 0, client, a_session(client, options))
    assert former_lives.fenced_ago_s < PROOF_S
    open_zookeeper(options, 0, other, a_session(other, options))
    disconnect(other)
    former_is_gone = open_zookeeper(options, 0, client, a_session(client, options))
    assert former_is_gone.fenced_ago_s >= PROOF_S * CLOCK_MARGIN
    assert open_zookeeper(options, 0, client).fenced_ago_s < PROOF_S
    assert opened(options, client).fenced_ago_s < PROOF_S, "who has no session is not known to be gone"


def test_servers_are_reached_by_tls_and_only_those_of_the_authority(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        make_authority(tmp_path, name)
    make_certificate(tmp_path, "server", "ours")
    make_certificate(tmp_path, "node", "ours")
    both = (tmp_path / "server.pem").read_text() + (tmp_path / "server.key").read_text()
    (tmp_path / "both.pem").write_text(both)
    (port,) = free_ports(1)
    secure = {
        "secureClientPort": port,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": tmp_path / "both.pem",
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": tmp_path / "ours.pem",
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
    }
    with needed_ensemble(properties=secure):
        files = {"tls_certificate": str(tmp_path / "node.pem"), "tls_key": str(tmp_path / "node.key")}
        options = ZooKeeperOptions(f"127.0.0.1:{port}", unique_cluster(), 1, is_encrypted=True, **files)
        store = open_zookeeper(replace(options, tls_ca=str(tmp_path / "ours.pem")), 0)
        store.commit(changes_of({b"c/1": b"secret"}))
        store.close()
        with pytest.raises(LogUnavailable, match=r"does not answer.*certificates"):
            open_zookeeper(replace(options, tls_ca=str(tmp_path / "theirs.pem")), 0)


def test_neither_passwords_nor_messages_are_ever_logged(
    zookeeper: ZooKeeperEnsemble,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("penstock.store.zookeeper.SAY_AGAIN_S", 0.0)  # other tests have connected a moment ago
    store = open_zookeeper(options_for(zookeeper, user="penstock", password="correct horse"), 0)
    store.commit(changes_of({b"c/1": b"battery staple"}))
    store.close()
    assert any(record.name.startswith("penstock.zookeeper") for record in caplog.records), "something is logged"
    assert not [
        record for record in caplog.records if "horse" in record.getMessage() or "staple" in record.getMessage()
    ]
