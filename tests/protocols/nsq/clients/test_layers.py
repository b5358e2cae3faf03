"""TLS, deflate and snappy on the same socket, alone and together; and secrets over them."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.nsq.clients.layers import Layered
from tests.protocols.nsq.clients.servers import AGAINST_NSQD, Broker, Nsqd, Penstock, running
from tests.protocols.nsq.clients.wire import PATIENCE_S, Connection, fin, identify, mpub, pub, sized, sub

COMPRESSIONS = [{}, {"deflate": True}, {"deflate": True, "deflate_level": 1}, {"snappy": True}]
IDS = ["plain", "deflate", "deflate-1", "snappy"]


@pytest.fixture(scope="module")
def tls_server(certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A server that offers TLS, and asks for no secret."""
    directory = tmp_path_factory.mktemp("tls")
    settings = f"""
[server]
tls_certificate = "{certificate[0]}"
tls_key = "{certificate[1]}"
"""
    flags = (f"--tls-cert={certificate[0]}", f"--tls-key={certificate[1]}")
    with running(Nsqd(directory, *flags) if AGAINST_NSQD else Penstock(directory, settings=settings)) as server:
        yield server


def talk(connection: Connection, topic: str) -> None:
    """Publish and consume, in small pieces and in large ones."""
    large = b"large " * 100_000
    with connection:
        for _ in range(3):
            connection.publish(topic, *[b"%d" % number for number in range(200)])
        connection.publish(topic, large)
        connection.subscribe(topic, "ch", ready=300)
        bodies: list[Any] = []
        while len(bodies) < 601:
            message = connection.message()
            bodies.append(message.body)
            connection.send(fin(message))
        assert sorted(set(bodies)) == sorted({large, *(b"%d" % number for number in range(200))})
        assert connection.ask(b"CLS\n") == b"CLOSE_WAIT"


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=IDS)
def test_without_tls(server: Broker, topic: str, compression: dict[str, Any]) -> None:
    talk(Layered(server.address, **compression), topic)


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=IDS)
def test_with_tls(tls_server: Broker, certificate: tuple[Path, Path], topic: str, compression: dict[str, Any]) -> None:
    talk(Layered(tls_server.address, certificate[0], **compression), topic)


def test_who_does_not_want_tls_needs_none(tls_server: Broker, topic: str) -> None:
    talk(Layered(tls_server.address), topic)


def test_statistics_show_the_layers(tls_server: Broker, certificate: tuple[Path, Path], topic: str) -> None:
    with Layered(tls_server.address, certificate[0], snappy=True) as connection:
        connection.subscribe(topic, "ch")
        [client] = statistics(tls_server, certificate[0], topic)["topics"][0]["channels"][0]["clients"]
    assert (client["tls"], client["snappy"], client["deflate"]) == (True, True, False)
    assert client["tls_version"].startswith("TLS")
    assert client["tls_cipher_suite"]


def statistics(server: Broker, certificate: Path, topic: str) -> Any:
    """Penstock's HTTP port speaks TLS here; nsqd has another one for that."""
    if server.is_nsqd:
        return server.stats(topic=topic)
    context = ssl.create_default_context(cafile=str(certificate))
    url = f"https://{server.http_address}/stats?format=json&topic={topic}"
    with urllib.request.urlopen(url, timeout=PATIENCE_S, context=context) as response:
        return json.load(response)


def test_statistics_show_compression(server: Broker, topic: str) -> None:
    with Layered(server.address, deflate=True) as connection:
        connection.subscribe(topic, "ch")
        [client] = server.channel(topic)["clients"]
        assert (client["tls"], client["snappy"], client["deflate"]) == (False, False, True)


@pytest.mark.parametrize("options", [{"deflate": True}, {"snappy": True}], ids=["deflate", "snappy"])
def test_garbage_where_compressed_bytes_should_be_closes_the_connection(
    server: Broker, options: dict[str, bool]
) -> None:
    with Layered(server.address, **options) as connection:
        connection.socket.sendall(b"\xff\xfe this is not compressed " * 100)
        assert connection.is_closed()
    with server.connect() as other:
        assert other.is_open()


def test_garbage_instead_of_a_tls_handshake_closes_the_connection(tls_server: Broker) -> None:
    with tls_server.connect() as connection:
        connection.send(identify(feature_negotiation=True, tls_v1=True))
        assert b'"tls_v1":true' in connection.response().replace(b" ", b"")
        connection.send(b"this is no handshake\n" * 10)
        try:
            while connection.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
    with tls_server.connect() as other:
        assert other.is_open()


# -- secrets -----------------------------------------------------------------------------------------------------------

only_penstock = pytest.mark.skipif(AGAINST_NSQD, reason="nsqd keeps no credentials itself: it asks another server")

CREDENTIALS = """
[[credentials]]
access_key = "AKWORKER"
secret_key = "correct horse"

[[credentials.allow]]
queues = ["topic-*"]
rights = ["read", "write"]

[[credentials]]
access_key = "AKREADER"
secret_key = "battery"

[[credentials.allow]]
queues = ["*"]
rights = ["read"]
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with running(Penstock(tmp_path_factory.mktemp("guarded"), settings=CREDENTIALS)) as server:
        yield server


def auth(secret: str) -> bytes:
    return b"AUTH\n" + sized(secret.encode())


@only_penstock
def test_identify_says_that_a_secret_is_needed(guarded: Penstock) -> None:
    with guarded.connect() as connection:
        assert connection.identify()["auth_required"] is True


@only_penstock
@pytest.mark.parametrize("command", [pub("topic-x", b"x"), mpub("topic-x", [b"x"]), sub("topic-x", "ch")])
def test_nothing_without_a_secret(guarded: Penstock, command: bytes) -> None:
    with guarded.connect() as connection:
        connection.send(command)
        assert connection.error().startswith("E_AUTH_FIRST ")
        assert connection.is_closed()


@only_penstock
@pytest.mark.parametrize("secret", ["AKWORKER:wrong", "AKNOBODY:correct horse", "garbage", "AKWORKER", ":", "\x00"])
def test_a_wrong_secret(guarded: Penstock, secret: str) -> None:
    with guarded.connect() as connection:
        connection.send(auth(secret))
        assert connection.error() == "E_AUTH_FAILED AUTH failed"
        assert connection.is_closed()
    assert secret == ":" or secret not in guarded.log_path.read_text() or secret in ("AKWORKER", "\x00")


@only_penstock
def test_who_guesses_secrets_is_told_to_wait(tmp_path: Path) -> None:
    errors = []
    with running(Penstock(tmp_path, settings=CREDENTIALS)) as server:
        for number in range(21):
            with server.connect() as connection:
                connection.send(auth(f"AKWORKER:{number}"))
                errors.append(connection.error())
    assert set(errors[:20]) == {"E_AUTH_FAILED AUTH failed"}
    assert errors[20].startswith("E_AUTH_FAILED AUTH failed: too many failed logins from 127.0.0.1: wait ")


@only_penstock
def test_the_right_secret(guarded: Penstock, topic: str) -> None:
    with guarded.connect() as connection:
        answer = connection.ask(auth("AKWORKER:correct horse"))
        assert b"permission_count" in answer
        talk(connection, topic)


@only_penstock
@pytest.mark.parametrize(
    ("secret", "command"),
    [
        ("AKWORKER:correct horse", pub("other", b"x")),
        ("AKWORKER:correct horse", mpub("other", [b"x"])),
        ("AKWORKER:correct horse", sub("other", "ch")),
        ("AKREADER:battery", pub("topic-x", b"x")),
    ],
)
def test_a_secret_without_the_right(guarded: Penstock, secret: str, command: bytes) -> None:
    with guarded.connect() as connection:
        connection.ask(auth(secret))
        connection.send(command)
        assert connection.error().startswith("E_UNAUTHORIZED ")
        assert connection.is_closed()


@only_penstock
def test_a_secret_can_be_given_once(guarded: Penstock) -> None:
    with guarded.connect() as connection:
        connection.ask(auth("AKREADER:battery"))
        connection.send(auth("AKREADER:battery"))
        assert connection.error() == "E_INVALID AUTH already set"
        assert connection.is_closed()


@only_penstock
def test_http_needs_credentials_too(guarded: Penstock) -> None:
    assert guarded.http("POST", "/pub?topic=topic-x", b"x")[0] in (401, 403)
    right = {"Authorization": "Bearer AKWORKER:correct horse"}
    assert guarded.http("POST", "/pub?topic=topic-x", b"x", right) == (200, b"OK")
    assert guarded.http("POST", "/pub?topic=other", b"x", right)[0] == 403
    wrong = {"Authorization": "Bearer AKWORKER:wrong"}
    assert guarded.http("POST", "/pub?topic=topic-x", b"x", wrong)[0] in (401, 403)
