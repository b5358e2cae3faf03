"""Whole nodes on a real Kafka with TLS on their links: requests are forwarded; who is not trusted does not get in."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from penstock.cluster.membership.inspection import Inspection
from penstock.server.settings import parse
from tests.cluster.links.test_link_tls import certificates  # noqa: F401
from tests.cluster.nodes import RETRY_TIMEOUT_S, START_S_MAX, ProcessNode, settings_text, until
from tests.cluster.test_node_processes import QUEUES, drained, send_to_all, sqs
from tests.kafka import kafka, unique_prefix  # noqa: F401
from tools.kafka import KafkaCluster

SESSION_S = 6.0
FORWARDED = re.compile(r'^penstock_forwarded_commands_total\{command="Send"\} ([0-9.e+]+)$', re.MULTILINE)


class TlsCluster:
    """Makes nodes with a certificate each."""

    def __init__(self, kafka: KafkaCluster, certificates: Path, directory: Path) -> None:  # noqa: F811
        self._kafka = kafka
        self._certificates = certificates
        self._directory = directory
        self._name = unique_prefix("tls")
        self.nodes: list[ProcessNode] = []

    def node(self, name: str, certificate: str, authority: str = "ours") -> ProcessNode:
        files = {"tls_certificate": f"{certificate}.pem", "tls_key": f"{certificate}.key", "tls_ca": f"{authority}.pem"}
        return self.node_with(name, "".join(f'{key} = "{self._certificates / file}"\n' for key, file in files.items()))

    def node_with(self, name: str, lines: str = "") -> ProcessNode:
        """With these settings for the cluster; without any its links are open."""
        text = settings_text(self._kafka, self._name, name, self._directory / name, session_s=SESSION_S)
        made = ProcessNode.with_settings(name, self._directory, text.replace("[kafka]", f"{lines}[kafka]"))
        self.nodes.append(made)
        return made

    def look(self) -> Inspection:
        text = settings_text(self._kafka, self._name, "cli", self._directory / "cli", session_s=SESSION_S)
        return Inspection(parse(text).kafka_options())

    def rows(self) -> dict[str, dict[str, Any]]:
        """Of the nodes, by name."""
        return {row["node"]: row for row in self.look().nodes()}


@pytest.fixture
def cluster(kafka: KafkaCluster, certificates: Path, tmp_path: Path) -> Iterator[TlsCluster]:  # noqa: F811
    made = TlsCluster(kafka, certificates, tmp_path)
    try:
        yield made
    finally:
        for node in made.nodes:
            node.kill()


def _forwarded(node: ProcessNode) -> float:
    """How many sends it has handed on to other nodes."""
    with urlopen(f"{node.listening['http']['url']}/metrics", timeout=RETRY_TIMEOUT_S) as answer:
        found = FORWARDED.search(answer.read().decode())
    return 0.0 if found is None else float(found[1])


def _speaks_tls(address: str, certificates: Path) -> bool:  # noqa: F811
    """Whether a node of the cluster, at the other end of a link, shows a certificate of the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certificates / "ours.pem")
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), RETRY_TIMEOUT_S) as plain,
        context.wrap_socket(plain) as encrypted,
    ):
        return encrypted.version() == "TLSv1.3"


def test_nodes_forward_over_tls_and_who_is_not_trusted_does_not_get_in(
    cluster: TlsCluster,
    certificates: Path,  # noqa: F811
) -> None:
    a, b = cluster.node("a", "a"), cluster.node("b", "b")
    a.start()
    for queue in QUEUES:
        sqs(a).create_queue(QueueName=queue)
    b.start()
    until(lambda: a.served and b.served, "shards at both nodes")
    assert all(_speaks_tls(row["link"], certificates) for row in cluster.rows().values())
    _everything_passes(a, b, "before")

    for name, certificate, authority in (("stranger", "stranger", "ours"), ("believer", "a", "theirs")):
        _is_refused(cluster.node(name, certificate, authority), "do not trust each other")
        rows = cluster.rows()
        assert {each for each, row in rows.items() if row["state"] == "serving"} == {"a", "b"}
        until(lambda: _serving(cluster) == {"a", "b"}, "shards at both nodes, and nowhere else")
    _everything_passes(b, a, "after")


def _is_refused(node: ProcessNode, why: str) -> None:
    """It ends at its start, and says why."""
    node.launch()
    until(lambda: not node.is_running, "an end", START_S_MAX)
    assert why in node.log, node.log
    assert "Traceback" not in node.log


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_node_with_tls_and_one_without_do_not_get_together(cluster: TlsCluster, has_tls: bool) -> None:
    names = ("plain", "encrypted") if has_tls else ("encrypted", "plain")
    nodes = {"plain": cluster.node_with("plain"), "encrypted": cluster.node("encrypted", "a")}
    nodes[names[0]].start()
    words = "has no TLS on its links, but this one has" if has_tls else "has TLS on its links, but this one has not"
    _is_refused(nodes[names[1]], words)
    assert {row["served_by"] for row in cluster.look().rows()} == {names[0]}
    assert "Traceback" not in nodes[names[0]].log


def test_a_node_without_a_secret_is_kept_out_by_one_on_another_machine_only_while_that_is_alive(
    cluster: TlsCluster,
) -> None:
    far, near = cluster.node_with("far", 'link_address = "192.0.2.1:9326"\n'), cluster.node_with("near")
    far.start()
    _is_refused(near, "needs the cluster's secret")
    assert {row["served_by"] for row in cluster.look().rows()} == {"far"}
    far.kill()
    near.start()
    assert {row["served_by"] for row in cluster.look().rows()} == {"near"}


def test_somebody_else_where_a_dead_node_was_keeps_nobody_out(cluster: TlsCluster) -> None:
    a, b = cluster.node("a", "a"), cluster.node("b", "b")
    a.start()
    host, _, port = cluster.rows()["a"]["link"].rpartition(":")
    a.kill()
    with socket.create_server((host, int(port))) as somebody_else:
        threading.Thread(target=_talk, args=(somebody_else,), daemon=True).start()
        b.start()
        assert "node a: the node at" in b.log and "do not trust each other" in b.log
        until(lambda: _serving(cluster) == {"b"}, "all shards at b")


def _serving(cluster: TlsCluster) -> set[str]:
    """Who serves shards; among them an empty name, if a shard is on its way."""
    return {row["served_by"] for row in cluster.look().rows()}


def _talk(server: socket.socket) -> None:
    """Something that is not TLS, until the server is closed."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def _everything_passes(sender: ProcessNode, receiver: ProcessNode, name: str) -> None:
    """Through one node to all queues, and out of them at the other: some of it has to go over a link each time."""
    before = _forwarded(sender)
    sent: set[str] = set()
    send_to_all(sqs(sender), name, sent)
    assert _forwarded(sender) > before
    assert drained(sqs(receiver), sent) == sent
