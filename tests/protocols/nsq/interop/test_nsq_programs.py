"""NSQ's own programs around Penstock, and Penstock's lookup around NSQ's own nsqd."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import nsq_tools
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
    until,
)
from tests.protocols.nsq.clients.wire import fin
from tests.protocols.nsq.interop.programs import Nsqadmin, start

LINES = 100_000
WRITERS = 4
WRITING_S_MAX = 240.0
READING_S_MAX = 60.0


@pytest.fixture(params=[PenstockLookup, Nsqlookupd])
def lookup(request: Any, tmp_path: Path) -> Iterator[Lookup]:
    """Ours, then NSQ's."""
    with looking_up(request.param(tmp_path / "lookup")) as lookup:
        yield lookup


@pytest.fixture
def penstock(lookup: Lookup, tmp_path: Path) -> Iterator[Broker]:
    """Or nsqd itself, to see that the tests expect the right things."""
    penstock = Penstock(tmp_path / "penstock", "--lookup", lookup.tcp_address)
    nsqd = Nsqd(tmp_path / "penstock", f"--lookupd-tcp-address={lookup.tcp_address}")
    with running(nsqd if AGAINST_NSQD else penstock) as server:
        yield server


@pytest.fixture
def admin(lookup: Lookup, tmp_path: Path) -> Iterator[Nsqadmin]:
    with Nsqadmin(tmp_path / "admin", lookup) as admin:
        yield admin


# -- registration ------------------------------------------------------------------------------------------------------


def test_penstock_registers_what_it_has_and_what_it_gets(lookup: Lookup, penstock: Broker) -> None:
    penstock.publish("orders", b"x")
    until(lambda: lookup.producers("orders") == {penstock.tcp_port})
    with penstock.subscriber("orders", "billing"), penstock.subscriber("orders", "tail#ephemeral"):
        until(lambda: sorted(lookup.channels("orders")) == ["billing", "tail#ephemeral"])
    until(lambda: lookup.channels("orders") == ["billing"])
    [node] = lookup.nodes()
    assert (node["tcp_port"], node["http_port"]) == (penstock.tcp_port, penstock.http_port)
    assert "orders" in node["topics"]
    penstock.post("/topic/delete", topic="orders")
    until(lambda: lookup.producers("orders") == set())


def test_penstock_registers_again_with_a_lookup_that_was_restarted(lookup: Lookup, penstock: Broker) -> None:
    penstock.publish("orders", b"x")
    until(lambda: lookup.producers("orders") == {penstock.tcp_port})
    lookup.kill()
    penstock.publish("later", b"x")
    lookup.start()
    until(lambda: lookup.producers("orders") == lookup.producers("later") == {penstock.tcp_port})


def test_a_killed_penstock_drops_out_and_comes_back_with_its_messages(lookup: Lookup, penstock: Broker) -> None:
    penstock.publish("orders", b"kept")
    until(lambda: lookup.producers("orders") == {penstock.tcp_port})
    penstock.kill()
    until(lambda: lookup.producers("orders") == set())
    penstock.start()
    if penstock.is_nsqd:
        return  # it has lost it
    until(lambda: lookup.producers("orders") == {penstock.tcp_port})
    with penstock.subscriber("orders", ready=1) as reader:
        assert reader.message().body == b"kept"


def test_nsqd_registers_with_our_lookup(tmp_path: Path) -> None:
    with looking_up(PenstockLookup(tmp_path / "lookup")) as lookup:
        with running(Nsqd(tmp_path / "nsqd", f"--lookupd-tcp-address={lookup.tcp_address}")) as nsqd:
            nsqd.publish("orders", b"x")
            until(lambda: lookup.producers("orders") == {nsqd.tcp_port})
            with nsqd.subscriber("orders", "billing"), nsqd.subscriber("orders", "tail#ephemeral"):
                until(lambda: sorted(lookup.channels("orders")) == ["billing", "tail#ephemeral"])
            until(lambda: lookup.channels("orders") == ["billing"])
            [node] = lookup.nodes()
            assert (node["tcp_port"], node["http_port"], node["version"]) == (nsqd.tcp_port, nsqd.http_port, "1.3.0")
            nsqd.post("/topic/delete", topic="orders")
            until(lambda: lookup.producers("orders") == set())
        until(lambda: lookup.nodes() == [])


def test_nsqd_and_penstock_share_a_topic(lookup: Lookup, penstock: Broker, tmp_path: Path) -> None:
    """A consumer that asks the lookup gets what was published to either."""
    with running(Nsqd(tmp_path / "nsqd", f"--lookupd-tcp-address={lookup.tcp_address}")) as nsqd:
        brokers: list[Broker] = [nsqd, penstock]
        for number, broker in enumerate(brokers):
            broker.publish("shared", *[b"%d %d" % (number, each) for each in range(10)])
        until(lambda: lookup.producers("shared") == {broker.tcp_port for broker in brokers})
        printed = tmp_path / "printed"
        flags = ("-topic=shared", "-channel=tail", "-n=20", f"-lookupd-http-address={lookup.http_address}")
        with printed.open("wb") as output:
            tail = subprocess.Popen([nsq_tools.program("nsq_tail"), *flags], stdout=output, stderr=subprocess.DEVNULL)
        assert tail.wait(READING_S_MAX) == 0
        expected = {f"{number} {each}" for number in range(2) for each in range(10)}
        assert set(printed.read_text().splitlines()) == expected


# -- nsqadmin ----------------------------------------------------------------------------------------------------------


def test_nsqadmin_lists_our_topics_channels_and_clients(lookup: Lookup, penstock: Broker, admin: Nsqadmin) -> None:
    penstock.publish("orders", b"a", b"b", b"c")
    with penstock.subscriber("orders", "billing", ready=2, client_id="me", hostname="here") as reader:
        held = reader.messages(2)
        reader.send(b"RDY 0\n", fin(held[0]))
        until(lambda: penstock.channel("orders", "billing")["in_flight_count"] == 1)
        until(lambda: lookup.channels("orders") == ["billing"])
        assert "orders" in admin.ask("GET", "/topics")["topics"]
        topic = admin.ask("GET", "/topics/orders")
        assert (topic["topic_name"], topic["message_count"]) == ("orders", 3)
        assert [channel["channel_name"] for channel in topic["channels"]] == ["billing"]
        channel = admin.ask("GET", "/topics/orders/billing")
        shown = ("depth", "in_flight_count", "client_count", "paused")
        assert [channel[name] for name in shown] == [1, 1, 1, False]
        [client] = channel["clients"]
        assert (client["client_id"], client["hostname"], client["finish_count"]) == ("me", "here", 1)
        [node] = admin.ask("GET", "/nodes")["nodes"]
        assert node["tcp_port"] == penstock.tcp_port
        details = admin.ask("GET", f"/nodes/{penstock.http_address}")
        assert details["total_clients"] == 1
        assert "orders" in [each["topic_name"] for each in details["topics"]]


def test_nsqadmin_controls_our_topics_and_channels(lookup: Lookup, penstock: Broker, admin: Nsqadmin) -> None:
    admin.ask("POST", "/topics", {"topic": "orders", "channel": "billing"})
    until(lambda: penstock.channel("orders", "billing") is not None or create_by_use(penstock))
    until(lambda: lookup.channels("orders") == ["billing"])
    for path, paused in (
        ("/topics/orders/billing", lambda: penstock.channel("orders", "billing")["paused"]),
        ("/topics/orders", lambda: penstock.topic("orders")["paused"]),
    ):
        admin.ask("POST", path, {"action": "pause"})
        assert paused() is True
        admin.ask("POST", path, {"action": "unpause"})
        assert paused() is False
    penstock.publish("orders", b"a", b"b")
    until(lambda: penstock.channel("orders", "billing")["depth"] == 2)
    admin.ask("POST", "/topics/orders/billing", {"action": "empty"})
    assert penstock.channel("orders", "billing")["depth"] == 0
    admin.ask("DELETE", "/topics/orders/billing")
    assert penstock.channel("orders", "billing") is None
    admin.ask("POST", "/topics/orders", {"action": "empty"})
    admin.ask("DELETE", "/topics/orders")
    assert penstock.topic("orders") is None
    until(lambda: lookup.producers("orders") == set())


def create_by_use(penstock: Broker) -> bool:
    """nsqadmin tells the lookup alone of a topic that no node has yet; nodes hear of it when they create it."""
    penstock.post("/topic/create", topic="orders")
    penstock.post("/channel/create", topic="orders", channel="billing")
    return True


def test_nsqadmin_s_tombstone_hides_a_node_s_topic(lookup: Lookup, penstock: Broker, admin: Nsqadmin) -> None:
    penstock.publish("orders", b"x")
    until(lambda: lookup.producers("orders") == {penstock.tcp_port})
    admin.ask("DELETE", f"/nodes/{penstock.http_address}", {"topic": "orders"})
    assert lookup.producers("orders") == set()


# -- to_nsq, nsq_to_file, nsq_tail -------------------------------------------------------------------------------------


def test_a_hundred_thousand_lines_from_to_nsq_to_nsq_to_file(lookup: Lookup, penstock: Broker, tmp_path: Path) -> None:
    lines = [f"line {number} " + "x" * (number % 97) for number in range(LINES)]
    log = tmp_path / "programs.log"
    writers = []
    for part in range(WRITERS):
        text = tmp_path / f"lines-{part}"
        text.write_text("".join(line + "\n" for line in lines[part::WRITERS]))
        flags = ("-topic=lines", f"-nsqd-tcp-address={penstock.tcp_address}")
        with text.open("rb") as stdin:
            writers.append(start("to_nsq", *flags, log=log, stdin=stdin))
    until(lambda: lookup.producers("lines") == {penstock.tcp_port})
    out = tmp_path / "out"
    files = ("-topic=lines", "-channel=archive", f"-output-dir={out}", "-sync-interval=1s", "-max-in-flight=1000")
    reader = start("nsq_to_file", *files, f"-lookupd-http-address={lookup.http_address}", log=log)
    try:
        assert [writer.wait(WRITING_S_MAX) for writer in writers] == [0] * WRITERS, log.read_text()[-2000:]
        until(lambda: penstock.channel("lines", "archive"), READING_S_MAX)
        until(lambda: is_drained(penstock.channel("lines", "archive")), READING_S_MAX)
    finally:
        reader.terminate()
        assert reader.wait(READING_S_MAX) == 0
    written = [line for path in sorted(out.iterdir()) for line in path.read_text().splitlines()]
    assert sorted(written) == sorted(lines)


def is_drained(channel: Any) -> bool:
    return bool(channel["message_count"] == LINES and channel["depth"] == channel["in_flight_count"] == 0)


def test_nsq_tail_shows_what_is_published(penstock: Broker, tmp_path: Path) -> None:
    penstock.publish("orders", b"one", b"two", b"three")
    flags = ("-topic=orders", "-channel=tail", "-n=3", f"-nsqd-tcp-address={penstock.tcp_address}")
    command = [nsq_tools.program("nsq_tail"), *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=READING_S_MAX)
    assert sorted(done.stdout.split()) == [b"one", b"three", b"two"]


# -- TLS, compression and secrets, as go-nsq has them ------------------------------------------------------------------


@pytest.mark.parametrize("compression", [(), ("deflate,true", "deflate_level,3"), ("snappy,true",)])
def test_go_clients_over_tls_with_a_secret(compression: tuple[str, ...], tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *names], check=True, capture_output=True)
    settings = f"""
[server]
tls_certificate = "{certificate}"
tls_key = "{key}"

[nsq]
tls_required = true

[[credentials]]
access_key = "worker"
secret_key = "correct horse"
"""
    options = ("tls_v1,true", f"tls_root_ca_file,{certificate}", "auth_secret,worker:correct horse", *compression)
    lines = [f"line {number} " + "x" * number for number in range(500)]
    text = tmp_path / "lines"
    text.write_text("".join(line + "\n" for line in lines))
    with running(Penstock(tmp_path / "penstock", settings=settings)) as server:
        where = ("-topic=lines", f"-nsqd-tcp-address={server.tcp_address}")
        with text.open("rb") as stdin:
            flags = [f"-producer-opt={option}" for option in options]
            writer = start("to_nsq", *where, *flags, log=tmp_path / "log", stdin=stdin)
        assert writer.wait(READING_S_MAX) == 0, (tmp_path / "log").read_text()[-2000:]
        flags = [f"-consumer-opt={option}" for option in options]
        command = [nsq_tools.program("nsq_tail"), *where, "-channel=tail", "-n=500", *flags]
        done = subprocess.run(command, capture_output=True, timeout=READING_S_MAX)
        assert sorted(done.stdout.decode().splitlines()) == sorted(lines), done.stderr[-2000:]
