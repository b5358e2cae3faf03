from __future__ import annotations

import msgspec
import pytest

from penstock.cluster.ownership.ownership import CLAIM_KEY, Claim, ClaimedStore, ShardGivenAway, read_claim
from penstock.core.errors import StoreError
from penstock.core.storage.changes import Changes
from penstock.store.errors import CommitAborted, CommitFailed, DiskFull, StoreVersion
from tests.server.stores import TroubledStore


def test_a_store_that_nobody_has_had_is_clean_and_is_claimed() -> None:
    store = TroubledStore()
    assert ClaimedStore(store, "a", 1).is_clean
    assert read_claim(store) == Claim(1, 1, "a", is_released=False)


def test_who_takes_over_from_an_owner_that_did_not_release_has_to_wait() -> None:
    store = TroubledStore()
    ClaimedStore(store, "a", 1)
    assert not ClaimedStore(store, "b", 2).is_clean


class FencingStore(TroubledStore):
    """One that has fenced its former owner three seconds ago, and has read its log since."""

    fenced_ago_s = 3.0


def test_the_wait_begins_when_the_former_owner_was_fenced_and_not_when_the_log_was_read() -> None:
    assert ClaimedStore(FencingStore(), "a", 1, now_s=lambda: 10.0).fenced_s == 7.0
    assert ClaimedStore(TroubledStore(), "a", 1, now_s=lambda: 10.0).fenced_s == 10.0


def test_closing_releases_in_writing() -> None:
    store = TroubledStore()
    ClaimedStore(store, "a", 1).close()
    assert read_claim(store) == Claim(1, 1, "a", is_released=True)
    assert ClaimedStore(store, "b", 2).is_clean


@pytest.mark.parametrize(
    "error", [CommitFailed("who knows"), CommitAborted("Kafka refused it"), DiskFull("no space left")]
)
def test_a_store_whose_last_commit_was_not_written_is_not_released(error: StoreError) -> None:
    """The next owner would keep the sessions, and what they hold, as if everything had been written."""
    store = TroubledStore()
    claimed = ClaimedStore(store, "a", 1)
    store.fail_next(kept=False, error=error)
    with pytest.raises(type(error)):
        claimed.commit(Changes())
    claimed.close()
    assert not ClaimedStore(store, "b", 2).is_clean


@pytest.mark.parametrize("error", [CommitAborted("Kafka refused it"), DiskFull("no space left")])
def test_a_store_that_could_write_again_since_then_is_released(error: StoreError) -> None:
    store = TroubledStore()
    claimed = ClaimedStore(store, "a", 1)
    store.fail_next(kept=False, error=error)
    with pytest.raises(type(error)):
        claimed.commit(Changes())
    claimed.commit(Changes())
    claimed.close()
    assert ClaimedStore(store, "b", 2).is_clean


def test_who_was_told_long_ago_finds_a_later_claim_and_lets_go() -> None:
    store = TroubledStore()
    ClaimedStore(store, "b", 2)
    with pytest.raises(ShardGivenAway, match="node 'b' has had the shard since, in epoch 2"):
        ClaimedStore(store, "a", 1)
    assert read_claim(store) == Claim(1, 2, "b")


def test_the_same_node_may_open_again_in_its_epoch_and_waits() -> None:
    store = TroubledStore()
    ClaimedStore(store, "a", 1)
    assert not ClaimedStore(store, "a", 1).is_clean


def test_a_commit_of_nothing_is_a_commit() -> None:
    store = TroubledStore()
    claimed = ClaimedStore(store, "a", 1)
    commits = store.commits
    claimed.commit(Changes())
    assert store.commits == commits + 1 == claimed.commits


def test_a_claim_of_another_version_is_refused() -> None:
    store = TroubledStore()
    changes = Changes()
    changes.put_record(CLAIM_KEY, msgspec.msgpack.encode(Claim(9, 1, "a")))
    store.commit(changes)
    with pytest.raises(StoreVersion, match="version 9"):
        ClaimedStore(store, "b", 2)
