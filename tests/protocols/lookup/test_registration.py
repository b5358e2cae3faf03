from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from penstock.protocols.lookup import wire
from penstock.protocols.lookup.registry import Identity, Load
from penstock.protocols.nsq import registration as module
from penstock.protocols.nsq.registration import LookupRegistration, State
from tests.protocols.lookup.serving import PATIENCE_S, RunningLookup, in_a_loop, lookup_service

IDENTITY = Identity("node1", 4150, 4151, "1.3.0", "node1")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def registered(state: State, *addresses: str, heartbeat_s: float = 60.0) -> AsyncIterator[LookupRegistration]:
    registration = LookupRegistration(IDENTITY, lambda: list(state.items()), heartbeat_s)
    registration.start(addresses)
    try:
        yield registration
    finally:
        registration.stop()


def names(lookup: RunningLookup) -> dict[str, list[str]]:
    return {
        topic: lookup.get(f"/channels?topic={topic}")["channels"]
        for topic in lookup.get("/topics")["topics"]
        if lookup.producers(topic)
    }


def shows(lookup: RunningLookup, expected: dict[str, list[str]]) -> bool:
    return names(lookup) == expected


@in_a_loop
async def test_every_lookup_is_told_what_there_is_and_what_changes() -> None:
    with lookup_service() as first, lookup_service() as second:
        state = {"orders": Load(0, 0, {"billing": (0, 0)}), "bare": Load(0, 0)}
        async with registered(state, first.address, second.address) as registration:
            for lookup in (first, second):
                await until(partial(shows, lookup, {"orders": ["billing"], "bare": []}))
            registration.note("new", "reader#ephemeral", True)
            registration.note("bare", None, False)
            for lookup in (first, second):
                await until(partial(shows, lookup, {"orders": ["billing"], "new": ["reader#ephemeral"]}))
            registration.note("new", "reader#ephemeral", False)
            await until(lambda: names(first) == {"orders": ["billing"], "new": []})
        await until(lambda: names(second) == {})


@in_a_loop
async def test_what_others_create_is_seen_at_the_next_heartbeat(lookup: RunningLookup) -> None:
    state: State = {}
    async with registered(state, lookup.address, heartbeat_s=0.1):
        state["made-by-sqs"] = Load(5, 0, {"main": (5, 0)})
        await until(lambda: names(lookup) == {"made-by-sqs": ["main"]})
        del state["made-by-sqs"]
        await until(lambda: names(lookup) == {})


@in_a_loop
async def test_what_is_noted_during_a_look_is_newer_than_the_look() -> None:
    def read_state() -> Iterator[tuple[str, Load]]:
        yield "gone", Load(0, 0)
        registration.note("gone", None, True)
        registration.note("gone", None, False)
        registration.note("new", None, True)

    registration = LookupRegistration(IDENTITY, read_state, 60.0)
    await registration.look()
    assert registration.known == {"new": set()}


@in_a_loop
async def test_others_have_their_turn_during_a_look_at_many_topics() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count_turns())
    many = [(f"topic{number}", Load(0, 0)) for number in range(1_000)]
    await LookupRegistration(IDENTITY, lambda: many, 60.0).look()
    other.cancel()
    assert turns >= 9


@in_a_loop
async def test_loads_reach_our_lookup_with_the_heartbeat(lookup: RunningLookup) -> None:
    state = {"orders": Load(1, 0)}
    async with registered(state, lookup.address, heartbeat_s=0.1):
        await until(lambda: names(lookup))
        state["orders"] = Load(7, 3, {})

        def depth() -> tuple[int, int]:
            (peer,) = lookup.service.registry._peers
            return peer.load("orders", None)

        await until(lambda: depth() == (7, 3))


@in_a_loop
async def test_a_lookup_that_restarts_is_told_everything_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with registered({"orders": Load(0, 0)}, f"127.0.0.1:{port}"):
        for _ in range(2):
            with lookup_service(tcp_port=port) as lookup:
                await until(partial(shows, lookup, {"orders": []}))


@in_a_loop
async def test_addresses_can_be_changed_while_it_runs() -> None:
    with lookup_service() as first, lookup_service() as second:
        async with registered({"orders": Load(0, 0)}, first.address) as registration:
            await until(lambda: names(first))
            registration.set_addresses([second.address])
            await until(lambda: names(second) == {"orders": []})
            await until(lambda: names(first) == {})
            assert registration.addresses == [second.address]


@in_a_loop
async def test_a_lookup_that_never_answers_is_given_up_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESPONSE_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(PATIENCE_S)
        async with registered({}, f"127.0.0.1:{mute.getsockname()[1]}") as registration:
            for _ in range(2):
                connection, _ = await asyncio.to_thread(mute.accept)
                connection.close()
            assert registration.peers[0].info is None


@in_a_loop
async def test_nsqlookupd_gets_no_command_that_it_does_not_know() -> None:
    """It answers IDENTIFY without `commands`."""
    seen = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(10_000):
            seen.extend(data)
            for text in [b'{"version":"1.3.0"}'] if b"IDENTIFY" in data else [b"OK"] * data.count(b"\n"):
                writer.write(len(text).to_bytes(4, "big") + text)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with registered({"orders": Load(3, 1)}, f"127.0.0.1:{port}", heartbeat_s=0.05):
        await until(lambda: seen.count(b"PING\n") >= 3)
    server.close()
    assert b"REGISTER orders\n" in seen
    assert b"LOADS" not in seen


@in_a_loop
async def test_many_topics_are_told_in_batches(lookup: RunningLookup) -> None:
    state = {f"topic{number}": Load(number, 0, {"channel": (number, 0)}) for number in range(3_000)}
    async with registered(state, lookup.address):
        await until(lambda: len(lookup.get("/topics")["topics"]) == 3_000)
        await until(lambda: lookup.producers("topic2999", "&channel=channel") == ["node1"])


@in_a_loop
async def test_a_lookup_is_told_of_many_topics_a_bounded_number_in_a_turn(
    lookup: RunningLookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, made = 0, Counter[int]()
    register = wire.register

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def counting(topic: str, channel: str | None) -> bytes:
        """What UNREGISTER is made of, too."""
        made[turn] += 1
        return register(topic, channel)

    monkeypatch.setattr(wire, "register", counting)
    other = asyncio.create_task(count_turns())
    state: State = {f"topic-{number:04d}": Load(1, 0, {"ch": (1, 0)}) for number in range(2_000)}
    async with registered(state, lookup.address, heartbeat_s=0.1):
        await until(lambda: len(lookup.get("/topics")["topics"]) == 2_000)
        for number in range(1_999):
            del state[f"topic-{number:04d}"]
        await until(lambda: names(lookup) == {"topic-1999": ["ch"]})
    other.cancel()
    assert sum(made.values()) == 2 * 2_000 + 2 * 1_999
    assert max(made.values()) <= 501
