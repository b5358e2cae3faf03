"""The command line over a network that breaks: a file is sent once, and in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import penstock
from tests.client.node import ThreadedNode
from tests.faults.proxy import Proxy

LINES = 60_000
CUTS = 5
PATIENCE_SECONDS = 120


def test_a_file_is_sent_once_and_in_order_however_often_the_connection_breaks(tmp_path: Path) -> None:
    lines = [b"%06d %s" % (number, b"x" * 100) for number in range(LINES)]
    (tmp_path / "input").write_bytes(b"\n".join(lines))
    node = ThreadedNode(tmp_path / "data")
    proxy = Proxy(node.port)
    command = [sys.executable, "-m", "penstock", "send", "orders", "--lines", "--file", str(tmp_path / "input")]
    child = subprocess.Popen([*command, "--url", f"penstock://127.0.0.1:{proxy.port}"], stderr=subprocess.PIPE)
    cuts = 0
    with penstock.connect(node.url) as ps:
        while child.poll() is None:
            if cuts < CUTS and sent(ps) > cuts * LINES // (CUTS + 1):
                proxy.truncate(1_000 * cuts)
                cuts += 1
        _, errors = child.communicate(timeout=PATIENCE_SECONDS)
        assert child.returncode == 0, errors
        assert proxy.accepted > CUTS, "the connection did not break"
    proxy.close()
    node.stop()
    with penstock.open(tmp_path / "data") as ps:
        assert [message.body for message in ps.queue("orders").browse(limit=2 * LINES)] == lines


def sent(ps: penstock.Penstock) -> int:
    try:
        return ps.queue("orders").stats().sent
    except penstock.QueueNotFound:
        return 0
