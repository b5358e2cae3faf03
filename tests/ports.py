"""Ports for servers of the tests' own."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port of the loopback interface on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
