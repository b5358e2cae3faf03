"""How a cluster's znodes are reached. No client is imported here: whoever has settings may have these."""

from __future__ import annotations

from dataclasses import dataclass

ROOT = "/penstock"
"""Below it every cluster has a znode of its name."""


@dataclass(frozen=True)
class ZooKeeperOptions:
    """Where the znodes of a cluster are. `[cluster]` and `[zookeeper]` of penstock.toml say it.

    >>> ZooKeeperOptions("127.0.0.1:2181", "demo", password="hidden")
    ZooKeeperOptions('127.0.0.1:2181', cluster='demo', shards=16)
    >>> ZooKeeperOptions("127.0.0.1:2181", "demo").shard_path(3)
    '/penstock/demo/3'
    """

    hosts: str
    cluster: str
    shards: int = 16
    session_timeout_s: float = 10.0
    commit_timeout_s: float = 15.0
    shard_bytes_max: int = 64 << 20
    transaction_bytes_max: int = 900_000
    user: str = ""
    password: str = ""
    """With the user's name: digest authentication. Then nobody else may read or write the cluster's znodes."""

    is_encrypted: bool = False
    """Whether the servers are reached by TLS."""
    tls_ca: str | None = None
    """The file of the authority that the servers' certificates are of; None: the machine's authorities."""
    tls_certificate: str | None = None
    tls_key: str | None = None

    def __repr__(self) -> str:
        return f"ZooKeeperOptions({self.hosts!r}, cluster={self.cluster!r}, shards={self.shards})"

    @property
    def path(self) -> str:
        """The cluster's znode."""
        return f"{ROOT}/{self.cluster}"

    def shard_path(self, shard: int) -> str:
        """A shard's znode."""
        return f"{self.path}/{shard}"
