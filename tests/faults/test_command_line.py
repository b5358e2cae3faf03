"""The command line over a network that breaks: a file is sent once, and in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import penstock
from tests.client.node import ThreadedNode
from tests.faults.proxy import Cut, Direction, Link, Proxy

LINES = 60_000
CUTS = 5
PATIENCE_SECONDS = 120
CUT_BYTES = 600_001
"""A tenth of what there is to send: all cuts come while it is being sent, however busy the machine is."""


class Cuts(Cut):
    """Ends one connection after the other, each in the middle of a frame."""

    def __init__(self) -> None:
        super().__init__("requests", CUT_BYTES)
        self.done: list[Link] = []

    def concerns(self, link: Link, direction: Direction) -> bool:
        if direction != self.direction or link in self.done or len(self.done) == CUTS:
            return False
        if link is not self._link:
            self._link, self.passed = link, 0
        return True

    def pass_on(self, piece: bytes) -> bytes:
        piece = super().pass_on(piece)
        if self.is_done and self._link is not None:
            self.done.append(self._link)
        return piece


def test_a_file_is_sent_once_and_in_order_however_often_the_connection_breaks(tmp_path: Path) -> None:
    lines = [b"%06d %s" % (number, b"x" * 100) for number in range(LINES)]
    (tmp_path / "input").write_bytes(b"\n".join(lines))
    node = ThreadedNode(tmp_path / "data")
    proxy, cuts = Proxy(node.port), Cuts()
    proxy.cut_one(cuts)
    command = [sys.executable, "-m", "penstock", "send", "orders", "--lines", "--file", str(tmp_path / "input")]
    url = f"penstock://127.0.0.1:{proxy.port}"
    sending = subprocess.run([*command, "--url", url], stderr=subprocess.PIPE, timeout=PATIENCE_SECONDS)
    assert sending.returncode == 0, sending.stderr
    assert len(cuts.done) == CUTS, "the connection did not break"
    proxy.close()
    node.stop()
    with penstock.open(tmp_path / "data") as ps:
        assert [message.body for message in ps.queue("orders").browse(limit=2 * LINES)] == lines
