from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.lookup.registry import Identity, Load, Peer, Registry, TooManyNames

INACTIVE_S, TOMBSTONE_S = 300.0, 45.0


def registry(names_max: int = 100) -> Registry:
    return Registry(INACTIVE_S, TOMBSTONE_S, names_max)


def node(known: Registry, name: str, now_s: float = 0.0) -> Peer:
    peer = Peer(Identity(name, 4150, 4151, "1.3.0", name), f"{name}:5000", now_s)
    known.add(peer)
    return peer


def found(known: Registry, topic: str, now_s: float = 0.0) -> list[str]:
    return [peer.identity.broadcast_address for peer in known.producers(topic, now_s)]


def test_a_registered_channel_registers_its_topic() -> None:
    known = registry()
    known.register(node(known, "a"), "orders", "billing")
    assert (known.topics(), known.channels("orders"), found(known, "orders")) == (["orders"], ["billing"], ["a"])


def test_a_topic_is_known_when_its_last_node_is_gone() -> None:
    known = registry()
    peer = node(known, "a")
    known.register(peer, "orders", "billing")
    known.remove(peer)
    assert (known.topics(), known.channels("orders"), found(known, "orders")) == (["orders"], ["billing"], [])


def test_ephemeral_names_go_with_their_last_node() -> None:
    known = registry()
    first, second = node(known, "a"), node(known, "b")
    for peer in (first, second):
        known.register(peer, "t#ephemeral", "c#ephemeral")
    known.unregister(first, "t#ephemeral", "c#ephemeral")
    known.unregister(first, "t#ephemeral")
    assert (known.topics(), known.channels("t#ephemeral")) == (["t#ephemeral"], ["c#ephemeral"])
    known.remove(second)
    assert (known.topics(), known.channels("t#ephemeral"), known.name_count) == ([], [], 0)


def test_unregistering_a_topic_takes_its_channels_along() -> None:
    known = registry()
    peer = node(known, "a")
    known.register(peer, "orders", "billing")
    known.unregister(peer, "orders")
    assert found(known, "orders") == []
    assert [(key, list(holders)) for key, holders in known.registrations()][1:] == [
        ("topic:orders:", []),
        ("channel:orders:billing", []),
    ]


def test_a_silent_node_is_not_named_until_it_speaks_again() -> None:
    known = registry()
    peer = node(known, "a")
    known.register(peer, "orders")
    assert found(known, "orders", INACTIVE_S) == ["a"]
    assert found(known, "orders", INACTIVE_S + 1) == []
    assert list(known.nodes(INACTIVE_S + 1)) == []
    peer.seen_s = INACTIVE_S
    assert found(known, "orders", INACTIVE_S + 1) == ["a"]


def test_a_tombstone_hides_one_topic_of_one_node_for_its_lifetime() -> None:
    known = registry()
    for name in ("a", "b"):
        peer = node(known, name)
        known.register(peer, "orders")
        known.register(peer, "other")
    known.tombstone("orders", "a:4151", now_s=10.0)
    known.tombstone("orders", "b:1", now_s=10.0)
    assert found(known, "orders", 11.0) == ["b"]
    assert found(known, "other", 11.0) == ["a", "b"]
    assert [hidden for _, _, hidden in known.nodes(11.0)] == [[True, False], [False, False]]
    assert found(known, "orders", 10.0 + TOMBSTONE_S) == ["a", "b"]


def test_a_deleted_topic_comes_back_when_a_node_registers_it_again() -> None:
    known = registry()
    peer = node(known, "a")
    known.register(peer, "orders", "billing")
    known.delete_topic("orders")
    assert (known.has_topic("orders"), peer.topics, peer.channels, known.name_count) == (False, set(), set(), 0)
    known.register(peer, "orders")
    assert found(known, "orders") == ["a"]


def test_deleting_a_channel_that_is_not_there_says_so() -> None:
    known = registry()
    known.create("orders", "billing")
    assert known.delete_channel("orders", "billing")
    assert not known.delete_channel("orders", "billing")
    assert not known.delete_channel("nothing", "billing")


def test_there_are_no_more_names_than_allowed() -> None:
    known = registry(names_max=2)
    peer = node(known, "a")
    known.register(peer, "orders", "billing")
    known.register(peer, "orders", "billing")
    with pytest.raises(TooManyNames):
        known.register(peer, "orders", "more")
    with pytest.raises(TooManyNames):
        known.register(peer, "other")
    assert known.name_count == 2
    known.delete_channel("orders", "billing")
    known.register(peer, "orders", "more")


def test_lookups_are_ordered_by_depth_by_readers_or_in_turn() -> None:
    known = registry()
    for name, depth, readers in (("a", 5, 9), ("b", 50, 4), ("c", 0, 0)):
        peer = node(known, name)
        known.register(peer, "orders", "billing")
        channels = {"billing": (100 - depth, 0), "unknown": (1, 1)}
        known.note_loads(peer, {"orders": Load(depth, readers, channels), "other": Load(1, 1)})
        assert list(peer.loads) == ["orders"]
        assert list(peer.loads["orders"].channels) == ["billing"]

    def names(order: str, channel: str | None = None) -> str:
        peers = known.producers("orders", 0.0, order, channel)  # type: ignore[arg-type]
        return "".join(peer.identity.broadcast_address for peer in peers)

    assert names("depth") == "bac"
    assert names("depth", "billing") == "cab"
    assert names("readers") == "cba"
    assert [names("round_robin") for _ in range(4)] == ["abc", "bca", "cab", "abc"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["register", "unregister", "create", "delete", "remove"]),
            st.integers(0, 2),
            st.sampled_from(["t", "u", "v#ephemeral"]),
            st.sampled_from([None, "c", "d#ephemeral"]),
        ),
        max_size=60,
    )
)
def test_peers_and_names_never_disagree(steps: list[tuple[str, int, str, str | None]]) -> None:
    known = registry()
    peers = [node(known, name) for name in "abc"]
    for what, number, topic, channel in steps:
        peer = peers[number]
        if what == "register":
            known.register(peer, topic, channel)
        elif what == "unregister":
            known.unregister(peer, topic, channel)
        elif what == "create":
            known.create(topic, channel)
        elif what == "remove":
            known.remove(peer)
            known.add(peer)
        elif channel is None:
            known.delete_topic(topic)
        else:
            known.delete_channel(topic, channel)
    held = {key: {peer for peer, _ in holders} for key, holders in known.registrations()}
    for peer in peers:
        assert {f"topic:{topic}:" for topic in peer.topics} == {
            key for key, holders in held.items() if key.startswith("topic:") and peer in holders
        }
        assert {f"channel:{topic}:{channel}" for topic, channel in peer.channels} == {
            key for key, holders in held.items() if key.startswith("channel:") and peer in holders
        }
    assert known.name_count == len(held) - 1
