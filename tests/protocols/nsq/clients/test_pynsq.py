"""pynsq with `penstock serve` and `penstock lookup`: reader, writer, discovery, backoff, TLS, compression, secrets."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nsq
import pytest

from tests.protocols.nsq.clients.pynsq import Reader, Writer, closing, until
from tests.protocols.nsq.clients.servers import (
    AGAINST_NSQD,
    Broker,
    Lookup,
    Nsqd,
    Nsqlookupd,
    Penstock,
    PenstockLookup,
    looking_up,
    running,
)
from tests.protocols.nsq.clients.wire import pub

BODIES = [b"message %d" % number for number in range(200)]


async def through(topic: str, server: Broker, **options: Any) -> list[bytes]:
    """Everything that a writer and a reader with these options can get through a server."""
    writer = Writer(server.tcp_address, **options)
    reader = Reader(topic, nsqd_tcp_addresses=[server.tcp_address], max_in_flight=50, **options)
    async with closing(writer, reader):
        await writer.connected()
        assert await writer.call("pub", topic, BODIES[0]) == b"OK"
        assert await writer.call("mpub", topic, BODIES[1:-1]) == b"OK"
        deferred_s = time.monotonic()
        assert await writer.call("dpub", topic, 2000, BODIES[-1]) == b"OK"
        await until(lambda: BODIES[-1] in reader.bodies)
        assert time.monotonic() - deferred_s > 1.99
        bodies = await reader.got(len(BODIES))
        await until(lambda: server.channel(topic)["in_flight_count"] == 0)
        assert server.channel(topic)["depth"] == 0
        return sorted(bodies)


def test_writer_and_reader(server: Broker, topic: str) -> None:
    assert asyncio.run(through(topic, server)) == sorted(BODIES)


@pytest.mark.parametrize("options", [{"deflate": True}, {"deflate": True, "deflate_level": 1}, {"snappy": True}])
def test_compressed_connections(server: Broker, topic: str, options: dict[str, Any]) -> None:
    assert asyncio.run(through(topic, server, **options)) == sorted(BODIES)


def test_a_writer_hears_of_its_errors(server: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with closing(Writer(server.tcp_address)) as (writer,):
            await writer.connected()
            with pytest.raises(nsq.Error):
                await writer.call("pub", "bad!topic", b"x")

    asyncio.run(scenario())


def test_a_failing_handler_requeues_and_backs_off_until_it_succeeds(server: Broker, topic: str) -> None:
    async def scenario() -> None:
        failures = iter([ValueError("once"), ValueError("twice")])

        def handler(message: Any) -> bool:
            error = next(failures, None)
            if error is not None:
                raise error
            return True

        server.publish(topic, b"stubborn")
        reader = Reader(
            topic,
            handler=handler,
            nsqd_tcp_addresses=[server.tcp_address],
            requeue_delay=0,
            max_backoff_duration=1,
        )
        async with closing(reader):
            await reader.got(3)
            assert reader.messages == [(b"stubborn", attempt) for attempt in (1, 2, 3)]
            await until(lambda: server.channel(topic)["in_flight_count"] == 0)
            assert server.channel(topic)["depth"] == 0
            assert server.channel(topic)["requeue_count"] == 2

    asyncio.run(scenario())


def test_a_handler_may_requeue_touch_and_finish_by_itself(server: Broker, topic: str) -> None:
    async def scenario() -> None:
        async def finish_later(message: Any) -> None:
            for _ in range(3):
                await asyncio.sleep(0.5)
                message.touch()
            message.finish()

        tasks = []

        def handler(message: Any) -> None:
            message.enable_async()
            if message.attempts == 1:
                message.requeue(time_ms=300, backoff=False)
            else:
                tasks.append(asyncio.ensure_future(finish_later(message)))

        server.publish(topic, b"slow")
        async with closing(Reader(topic, handler=handler, nsqd_tcp_addresses=[server.tcp_address], msg_timeout=4)) as (
            reader,
        ):
            await reader.got(2)
            await tasks[0]
            await until(lambda: server.channel(topic)["in_flight_count"] == 0)
            assert reader.messages == [(b"slow", 1), (b"slow", 2)]
            assert server.channel(topic)["timeout_count"] == 0

    asyncio.run(scenario())


def test_a_reader_survives_its_server_s_restart(tmp_path: Path) -> None:
    """Through a lookup service, with what was not finished."""

    async def scenario(lookup: Lookup, server: Broker) -> None:
        server.publish("orders", b"before")
        reader = Reader("orders", lookupd_http_addresses=[f"http://{lookup.http_address}"])
        async with closing(reader):
            await reader.got(1)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            server.publish("orders", b"after")
            await until(lambda: b"after" in reader.bodies)

    with looking_up(new_lookup(tmp_path / "lookup")) as lookup, running(new_node(tmp_path / "node", lookup)) as server:
        asyncio.run(scenario(lookup, server))


def test_a_reader_finds_every_node_through_any_lookup(tmp_path: Path) -> None:
    async def scenario(lookups: list[Lookup], servers: list[Broker]) -> None:
        for number, server in enumerate(servers):
            server.publish("orders", *[b"%d %d" % (number, each) for each in range(10)])
        addresses = [f"http://{lookup.http_address}" for lookup in lookups]
        reader = Reader("orders", lookupd_http_addresses=addresses, max_in_flight=10)
        async with closing(reader):
            expected = {b"%d %d" % (number, each) for number in range(2) for each in range(10)}
            await until(lambda: set(reader.bodies) == expected)
            await asyncio.to_thread(lookups[0].kill)
            await asyncio.to_thread(servers[0].kill)
            servers[1].publish("orders", b"after")
            await until(lambda: b"after" in reader.bodies)

    with (
        looking_up(new_lookup(tmp_path / "lookup-1")) as one,
        looking_up(new_lookup(tmp_path / "lookup-2")) as two,
        running(new_node(tmp_path / "node-1", one, two)) as node_1,
        running(new_node(tmp_path / "node-2", one, two)) as node_2,
    ):
        asyncio.run(scenario([one, two], [node_1, node_2]))


def new_lookup(directory: Path) -> Lookup:
    return Nsqlookupd(directory) if AGAINST_NSQD else PenstockLookup(directory)


def new_node(directory: Path, *lookups: Lookup) -> Broker:
    if AGAINST_NSQD:
        return Nsqd(directory, *[f"--lookupd-tcp-address={lookup.tcp_address}" for lookup in lookups])
    return Penstock(directory, *[flag for lookup in lookups for flag in ("--lookup", lookup.tcp_address)])


# -- TLS and secrets ---------------------------------------------------------------------------------------------------

SECRET = "AKWORKER:correct horse"


@pytest.fixture(scope="module")
def guarded(certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A server with a certificate and, but for nsqd, which knows none itself, credentials."""
    settings = f"""
[server]
tls_certificate = "{certificate[0]}"
tls_key = "{certificate[1]}"

[nsq]
tls_required = true

[[credentials]]
access_key = "AKWORKER"
secret_key = "correct horse"

[[credentials.allow]]
queues = ["topic-*"]
rights = ["read", "write"]
"""
    directory = tmp_path_factory.mktemp("guarded")
    tls = (f"--tls-cert={certificate[0]}", f"--tls-key={certificate[1]}", "--tls-required=true")
    with running(Nsqd(directory, *tls) if AGAINST_NSQD else Penstock(directory, settings=settings)) as server:
        yield server


def tls_options(certificate: tuple[Path, Path]) -> dict[str, Any]:
    trusted = {"ca_certs": str(certificate[0]), "cert_reqs": ssl.CERT_REQUIRED, "ssl_version": ssl.PROTOCOL_TLS_CLIENT}
    return {"tls_v1": True, "tls_options": trusted}


async def guarded_through(topic: str, server: Broker, **options: Any) -> None:
    writer = Writer(server.tcp_address, **options)
    reader = Reader(topic, nsqd_tcp_addresses=[server.tcp_address], max_in_flight=50, **options)
    async with closing(writer, reader):
        await writer.connected()
        assert await writer.call("mpub", topic, BODIES) == b"OK"
        assert sorted(await reader.got(len(BODIES))) == sorted(BODIES)


def test_tls_with_a_secret(guarded: Broker, certificate: tuple[Path, Path], topic: str) -> None:
    """Without compression: pynsq cannot do both at once, with nsqd neither."""
    secret = {} if guarded.is_nsqd else {"auth_secret": SECRET}
    asyncio.run(guarded_through(topic, guarded, **tls_options(certificate), **secret))


def test_without_tls_nothing_but_identify_is_allowed(guarded: Broker, topic: str) -> None:
    with guarded.connect() as connection:
        assert connection.identify()["tls_v1"] is False
        connection.send(pub(topic, b"x"))
        assert connection.error() == "E_INVALID cannot PUB in current state (TLS required)"
        assert connection.is_closed()
