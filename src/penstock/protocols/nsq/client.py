"""Who is connected: what a client said of itself, and what it has done so far. `/stats` shows all of it."""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """Where a client is in the protocol; the numbers are nsqd's."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


class Client:
    """One connection's client."""

    __slots__ = (
        "client_id",
        "connected_s",
        "deflate",
        "finish_count",
        "hostname",
        "identity",
        "message_count",
        "published",
        "ready_count",
        "remote_address",
        "requeue_count",
        "sample_rate",
        "session",
        "snappy",
        "state",
        "subscription",
        "tls_cipher",
        "tls_version",
        "user_agent",
    )

    def __init__(self, remote_address: str, connected_s: float) -> None:
        self.remote_address = remote_address
        """`host:port`."""
        self.connected_s = connected_s
        """When, in seconds since 1970."""
        self.client_id = self.hostname = remote_address.rpartition(":")[0].strip("[]")
        """Until IDENTIFY says otherwise."""
        self.user_agent = ""
        self.state = State.INIT
        self.sample_rate = 0
        self.deflate = False
        self.snappy = False
        self.tls_version = ""
        """Empty without TLS."""
        self.tls_cipher = ""
        self.identity: str | None = None
        """Whom AUTH found, if it was asked."""
        self.session = 0
        """The session that holds what is in flight; 0 before SUB."""
        self.subscription = 0
        self.ready_count = 0
        self.message_count = 0
        """Messages sent to it."""
        self.finish_count = 0
        self.requeue_count = 0
        self.published: dict[str, int] = {}
        """Topic -> messages that it published."""

    def published_more(self, topic: str, count: int) -> None:
        """It has published messages."""
        self.published[topic] = self.published.get(topic, 0) + count
