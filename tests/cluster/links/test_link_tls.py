"""Links over TLS: nodes show certificates of the cluster's authority; nobody else gets anywhere, or listens in."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.cluster.base import ShardMoved
from penstock.cluster.links.link import Link
from penstock.cluster.links.server import LinkServer
from penstock.cluster.links.settings import LinkIdentity, LinkLimits, LinkTls, link_tls
from penstock.core.commands import Receive, Send
from penstock.server.settings import ClusterSettings, InvalidSettings
from penstock.wire.links import LinkRefused
from tests.certificates import make_authority, make_certificate
from tests.client.lossy import LossyProxy
from tests.cluster.links.linking import SECRET, ask, bodies, in_loop, make_host

BODY = b"nobody reads this on the way " * 1_000
IMPATIENT = LinkLimits(retry_timeout_s=0.5)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities; nodes a and b of the one, a stranger of the other."""
    directory = tmp_path_factory.mktemp("certificates")
    for authority in ("ours", "theirs"):
        make_authority(directory, authority)
    for name, authority in (("a", "ours"), ("b", "ours"), ("stranger", "theirs")):
        make_certificate(directory, name, authority)
    return directory


def _tls(directory: Path, name: str, authority: str = "ours") -> LinkTls:
    settings = ClusterSettings(
        name="test",
        tls_certificate=str(directory / f"{name}.pem"),
        tls_key=str(directory / f"{name}.key"),
        tls_ca=str(directory / f"{authority}.pem"),
    )
    made = link_tls(settings)
    assert made is not None
    return made


@asynccontextmanager
async def served(tls: LinkTls | None) -> AsyncIterator[str]:
    host = make_host()
    server = LinkServer(host, LinkIdentity("test", "b", SECRET, tls=tls))
    try:
        yield await server.start("127.0.0.1:0")
    finally:
        await server.close()
        await host.close()


class _Ear(LossyProxy):
    """Keeps what passes."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.heard = b""

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool) -> None:
        await super()._pass(_Tapped(reader, self), writer, is_answer)  # type: ignore[arg-type]


class _Tapped:
    def __init__(self, reader: asyncio.StreamReader, ear: _Ear) -> None:
        self._reader = reader
        self._ear = ear

    async def read(self, count: int) -> bytes:
        data = await self._reader.read(count)
        self._ear.heard += data
        return data


@in_loop
async def test_commands_and_messages_pass_and_cannot_be_read_on_the_way(certificates: Path) -> None:
    async with served(_tls(certificates, "b")) as address:
        ear = _Ear(int(address.rpartition(":")[2]))
        await ear.start()
        link = Link(f"127.0.0.1:{ear.port}", LinkIdentity("test", "a", SECRET, tls=_tls(certificates, "a")))
        try:
            await ask(link, Send(queue="q", bodies=[BODY] * 20))
            assert bodies(await ask(link, Receive(queue="q", limit=20))) == [BODY] * 20
            assert len(ear.heard) > 2 * len(BODY) and b"nobody reads this" not in ear.heard
        finally:
            await link.close()
            await ear.stop()


@pytest.mark.parametrize("who", ["stranger", "believer in others", "without TLS"])
@in_loop
async def test_who_has_no_certificate_of_the_cluster_gets_nowhere(certificates: Path, who: str) -> None:
    tls: LinkTls | None = None
    if who == "stranger":
        tls = _tls(certificates, "stranger", "ours")
    elif who == "believer in others":
        tls = _tls(certificates, "a", "theirs")
    async with served(_tls(certificates, "b")) as address:
        link = Link(address, LinkIdentity("test", "a", SECRET, tls=tls), IMPATIENT)
        try:
            with pytest.raises(ShardMoved):
                await ask(link, Send(queue="q", bodies=[b"x"]))
        finally:
            await link.close()


@pytest.mark.parametrize("who", ["stranger", "believer in others", "one with another secret"])
@in_loop
async def test_who_is_not_let_in_hears_it_when_it_knocks(certificates: Path, who: str) -> None:
    tls, secret, words = _tls(certificates, "a"), SECRET, "do not trust each other"
    if who == "stranger":
        tls = _tls(certificates, "stranger", "ours")
    elif who == "believer in others":
        tls = _tls(certificates, "a", "theirs")
    else:
        secret, words = b"another", "refuses this one"
    async with served(_tls(certificates, "b")) as address:
        link = Link(address, LinkIdentity("test", "a", secret, tls=tls), LinkLimits(backoff_max_s=0.01))
        with pytest.raises(LinkRefused, match=words):
            await link.probe()
        await link.close()


@pytest.mark.parametrize("has_tls", [False, True])
@in_loop
async def test_who_has_tls_and_who_has_not_hear_of_each_other_when_they_knock(
    certificates: Path, has_tls: bool
) -> None:
    own, other = (_tls(certificates, "a"), None) if has_tls else (None, _tls(certificates, "b"))
    words = "has no TLS on its links, but this one has" if has_tls else "has TLS on its links, but this one has not"
    async with served(other) as address:
        link = Link(address, LinkIdentity("test", "a", SECRET, tls=own), LinkLimits(handshake_s=1.0))
        with pytest.raises(LinkRefused, match=words):
            await link.probe()
        await link.close()


@pytest.mark.parametrize("has_tls", [False, True])
@in_loop
async def test_who_takes_connections_and_says_nothing_is_not_reached(certificates: Path, has_tls: bool) -> None:
    """As a node that stands still."""
    identity = LinkIdentity("test", "a", SECRET, tls=_tls(certificates, "a") if has_tls else None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = Link(f"127.0.0.1:{silent.getsockname()[1]}", identity, LinkLimits(handshake_s=0.2))
        assert not await link.probe()
        await link.close()


@in_loop
async def test_who_is_let_in_has_a_link_and_who_reaches_nobody_hears_that(certificates: Path) -> None:
    identity = LinkIdentity("test", "a", SECRET, tls=_tls(certificates, "a"))
    async with served(_tls(certificates, "b")) as address:
        link = Link(address, identity)
        assert await link.probe() and link.is_connected
        await ask(link, Send(queue="q", bodies=[b"x"]))
        await link.close()
    gone = Link(address, identity)
    assert not await gone.probe() and not gone.is_connected
    await gone.close()


@in_loop
async def test_an_old_version_of_tls_is_not_spoken(certificates: Path) -> None:
    async with served(_tls(certificates, "b")) as address:
        context = _tls(certificates, "a").client
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        host, _, port = address.rpartition(":")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(host, int(port), ssl=context)


def test_settings_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="go together"):
        ClusterSettings(name="c", tls_key="k").check()
    with pytest.raises(InvalidSettings, match=r"\[cluster\] tls_certificate: no cannot be read: No such file"):
        link_tls(ClusterSettings(name="c", tls_certificate="no", tls_key="no", tls_ca="no"))
    with pytest.raises(InvalidSettings, match="cannot be used"):
        link_tls(ClusterSettings(name="c", tls_certificate=__file__, tls_key=__file__, tls_ca=__file__))
