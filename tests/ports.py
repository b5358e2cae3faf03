"""Ports for servers of the tests' own."""

from __future__ import annotations

from tools.servers import free_ports


def free_port() -> int:
    """A port of the loopback interface on which nobody listens, and which the system gives to nobody meanwhile."""
    return free_ports(1)[0]
