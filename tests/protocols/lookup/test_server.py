from __future__ import annotations

import itertools
import json
import struct

import pytest

from penstock.protocols.lookup import server
from tests.protocols.lookup.serving import FakeNode, RunningLookup, lookup_service, until

REMEMBERED = ("broadcast_address", "hostname", "http_port", "tcp_port", "version")


def test_a_node_introduces_itself_and_hears_who_answers(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as node:
        answer = node.identify("node1")
        assert set(answer) == {*REMEMBERED, "commands"}
        assert (answer["tcp_port"], answer["http_port"]) == (lookup.tcp_port, lookup.http_port)
        assert answer["broadcast_address"] == "127.0.0.1"


def test_what_a_node_registers_is_found_until_it_hangs_up(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as node:
        node.identify("node1")
        assert node.command("REGISTER orders billing") == b"OK"
        assert node.command("REGISTER empty") == b"OK"
        assert lookup.producers("orders") == ["node1"]
        assert lookup.producers("empty") == ["node1"]
        assert node.command("UNREGISTER empty") == b"OK"
        assert lookup.producers("empty") == []
        assert lookup.get("/topics") == {"topics": ["empty", "orders"]}
    until(lambda: lookup.producers("orders") == [])
    assert lookup.get("/nodes") == {"producers": []}
    assert lookup.get("/channels?topic=orders") == {"channels": ["billing"]}


def test_ephemeral_names_go_when_they_are_unregistered(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as node:
        node.identify("node1")
        node.command("REGISTER orders reader#ephemeral")
        node.command("REGISTER passing#ephemeral")
        node.command("UNREGISTER orders reader#ephemeral")
        node.command("UNREGISTER passing#ephemeral")
        assert lookup.get("/topics") == {"topics": ["orders"]}
        assert lookup.get("/channels?topic=orders") == {"channels": []}


def test_a_ping_is_answered_even_before_the_introduction(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as node:
        assert node.command("PING") == b"OK"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("REGISTER", b"E_INVALID REGISTER insufficient number of params"),
        ("REGISTER bad$name", b"E_BAD_TOPIC REGISTER topic name 'bad$name' is not valid"),
        ("REGISTER orders bad$name", b"E_BAD_CHANNEL REGISTER channel name 'bad$name' is not valid"),
        ("UNREGISTER " + "x" * 65, b"E_BAD_TOPIC UNREGISTER topic name '" + b"x" * 65 + b"' is not valid"),
        ("IDENTIFY", b"E_INVALID cannot IDENTIFY again"),
        ("SUB orders billing", b"E_INVALID invalid command SUB"),
        ("", b"E_INVALID invalid command "),
    ],
)
def test_a_command_that_cannot_be_followed_ends_the_connection(lookup: RunningLookup, line: str, error: bytes) -> None:
    with FakeNode(lookup.tcp_port) as node:
        node.identify("node1")
        assert node.command(line, b"{}" if line == "IDENTIFY" else None) == error
        assert node.is_closed()
    until(lambda: lookup.get("/nodes") == {"producers": []})


@pytest.mark.parametrize("command", ["REGISTER orders", "UNREGISTER orders"])
def test_whoever_does_not_introduce_itself_registers_nothing(lookup: RunningLookup, command: str) -> None:
    with FakeNode(lookup.tcp_port) as node:
        assert node.command(command) == b"E_INVALID client must IDENTIFY"
        assert node.is_closed()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"\xff\xff", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b'{"x": ' + b"[" * 10_000, b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"x" * 20_000, b"E_BAD_BODY IDENTIFY body of 20000 bytes: at most 16384 are taken"),
        (b'{"tcp_port": "x"}', b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b'{"tcp_port": 65536}', b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b'{"tcp_port": 1%s}' % (b"0" * 40), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b'{"hostname": "%s"}' % (b"x" * 257), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"{}", b"E_BAD_BODY IDENTIFY missing fields"),
        (b'{"broadcast_address": "a", "tcp_port": 1, "version": "1"}', b"E_BAD_BODY IDENTIFY missing fields"),
    ],
)
def test_an_introduction_that_says_too_little_is_refused(lookup: RunningLookup, body: bytes, error: bytes) -> None:
    with FakeNode(lookup.tcp_port) as node:
        assert node.command("IDENTIFY", body) == error
        assert node.is_closed()


def test_another_protocol_is_refused(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port, b"  V2") as node:
        assert node.response() == b"E_BAD_PROTOCOL"
        assert node.is_closed()


def test_loads_order_the_answers(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as first, FakeNode(lookup.tcp_port) as second:
        for node, depth, readers in ((first, 1, 1), (second, 7, 5)):
            assert "LOADS" in node.identify(f"depth{depth}")["commands"]
            node.command("REGISTER orders billing")
            loads = {"orders": [depth, readers, {"billing": [10 - depth, readers]}]}
            assert node.command("LOADS", json.dumps(loads).encode()) == b"OK"
        assert lookup.producers("orders", "&order=depth") == ["depth7", "depth1"]
        assert lookup.producers("orders", "&order=depth&channel=billing") == ["depth1", "depth7"]
        assert lookup.producers("orders", "&order=readers") == ["depth1", "depth7"]
        turns = [lookup.producers("orders", "&order=round_robin")[0] for _ in range(4)]
        assert turns in (["depth1", "depth7"] * 2, ["depth7", "depth1"] * 2)


def test_loads_that_are_none_end_the_connection(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as node:
        node.identify("node1")
        assert node.command("LOADS", b'{"orders": 1}') == b"E_BAD_BODY LOADS failed to decode JSON body"
        assert node.is_closed()


def test_a_silent_node_is_dropped_and_a_speaking_one_stays() -> None:
    with (
        lookup_service(inactive_producer_timeout_s=1.5) as lookup,
        FakeNode(lookup.tcp_port) as silent,
        FakeNode(lookup.tcp_port) as speaking,
    ):
        for node, name in ((silent, "silent"), (speaking, "speaking")):
            node.identify(name)
            node.command("REGISTER orders")

        def only_one_is_left() -> bool:
            assert speaking.command("PING") == b"OK"
            return lookup.producers("orders") == ["speaking"]

        until(only_one_is_left)
        until(lambda: speaking.command("PING") == b"OK" and len(lookup.service.registry._peers) == 1)
        assert silent.is_closed()


def test_whoever_connects_and_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDENTIFY_TIMEOUT_S", 0.2)
    with lookup_service() as lookup, FakeNode(lookup.tcp_port, magic=None) as node:
        assert node.is_closed()


def test_one_connection_too_many_is_refused_and_the_others_are_served() -> None:
    with lookup_service(connections_max=1) as lookup, FakeNode(lookup.tcp_port) as first:
        first.identify("node1")
        with FakeNode(lookup.tcp_port, magic=None) as second:
            assert second.response() == b"E_INVALID too many connections"
            assert second.is_closed()
        assert first.command("PING") == b"OK"


def test_a_full_registry_refuses_new_names_and_keeps_the_connection() -> None:
    with lookup_service(names_max=2) as lookup, FakeNode(lookup.tcp_port) as node:
        node.identify("node1")
        assert node.command("REGISTER orders billing") == b"OK"
        assert node.command("REGISTER more").startswith(b"E_REGISTER_FAILED there are 2 topics and channels")
        assert node.command("REGISTER orders billing") == b"OK"
        assert lookup.ask("POST", "/topic/create?topic=more") == (503, {"message": "TOO_MANY_TOPICS"})


def test_commands_sent_together_are_answered_in_order(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as node:
        node.identify("node1")
        node.send(b"".join(b"REGISTER topic%d channel\n" % number for number in range(1_000)) + b"PING\n")
        assert {node.response() for _ in range(1_001)} == {b"OK"}
        assert len(lookup.get("/topics")["topics"]) == 1_000


def test_nothing_is_kept_of_commands_that_were_followed(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as node:
        for _ in range(100):
            assert node.command("PING") == b"OK"
        (connection,) = lookup.service._nodes._connections
        assert not isinstance(connection._commands, itertools.chain)


def test_a_flood_of_commands_is_answered_in_order_and_others_have_their_turn(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as node, FakeNode(lookup.tcp_port) as other:
        node.identify("node1")
        node.send(b"REGISTER orders billing\n" * 5_000 + b"SUB\n" + b"PING\n" * 5_000)
        assert other.command("PING") == b"OK"
        assert {node.response() for _ in range(5_000)} == {b"OK"}
        assert node.response() == b"E_INVALID invalid command SUB"
        assert node.is_closed()


def test_a_node_that_never_reads_takes_no_memory_and_harms_nobody(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as greedy, FakeNode(lookup.tcp_port) as other:
        greedy.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            for _ in range(10_000):
                greedy.send(b"PING\n" * 10_000)
        assert other.command("PING") == b"OK"


def test_half_a_command_and_a_huge_size_harm_nobody(lookup: RunningLookup) -> None:
    with FakeNode(lookup.tcp_port) as half, FakeNode(lookup.tcp_port) as huge, FakeNode(lookup.tcp_port) as other:
        half.send(b"IDENTIFY\n\x00\x00")
        huge.send(b"IDENTIFY\n" + struct.pack(">I", 2**32 - 1))
        assert huge.response().startswith(b"E_BAD_BODY")
        assert huge.is_closed()
        assert other.command("PING") == b"OK"
