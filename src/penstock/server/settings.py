"""What a server is told: `penstock.toml`, and the flags that override it.

The file's shape is the structs below: a table for each section, a field for each key. Keys that are not there are
errors, and the message names the right ones. docs/server.md describes them for users.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import socket
import tomllib
import typing
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from penstock.core.config import SETTINGS, QueueConfig, check_name, kind_of, read_changes
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.settings import SECOND_MS, with_settings
from penstock.server.auth import Credential, Credentials, Grant, Principal, Right, Secret
from penstock.store.journal.kafka_options import RESERVED_PROPERTIES, KafkaOptions

WORKERS_MAX = 256
MEMORY = ":memory:"
"""As a data directory: none."""
EVERY_HOST = "*"
"""Among the hosts: the server answers to any name."""
_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?", re.I | re.ASCII)
_UNKNOWN_SECRET_BYTES = 32
_EMPTY = {
    "secret_key": "neither the access key nor the secret",
    "token": "neither the access key nor the token",
    "secret": "no secret",
}
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
SHARDS_MAX = 4096
BUFFER_BYTES_MIN = 1024 * 1024
TOPIC_PARTITIONS_MAX = 1_024


class InvalidSettings(InvalidRequest):
    """`penstock.toml` or a flag cannot be followed as it is."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of penstock.toml."""


class ServerSettings(_Section, frozen=True):
    """Where the server keeps its data, and where it listens."""

    data: str = "./data"
    engine: Literal["embedded", "kafka"] = "embedded"
    """Where messages are kept: in `data`, or in Kafka, with a cache in `data`. See docs/cluster.md."""
    workers: int = 1
    """How many processes serve the queues. It is fixed when the directory is first served by more than one."""
    host: str = "127.0.0.1"
    sqs_port: int = 9324
    http_port: int = 9325
    nsq_tcp_port: int = 4150
    nsq_http_port: int = 4151
    hosts: list[str] = []
    """Names by which clients reach the server, besides localhost, addresses, and the one that it listens on."""
    insecure: bool = False
    """Serve other machines although there are no credentials."""
    tls_certificate: str | None = None
    tls_key: str | None = None
    commit_in_thread: bool = False
    """Keep the event loop free while a commit is on its way to the disk; costs throughput."""
    stop_grace_s: float = 10.0
    """How long a stop waits for requests in flight."""
    buffer_bytes_max: int = 256 * 1024 * 1024
    """What all connections together may hold: requests that are being read, and answers that clients have not read."""

    def check_hosts(self) -> None:
        """Raise `InvalidSettings` for the first of `hosts` that is no name."""
        for host in self.hosts:
            if host != EVERY_HOST and not _HOST.fullmatch(host):
                raise InvalidSettings(
                    f"[server] hosts has {host!r}: a host is a name without scheme and port, as in 'penstock.svc'; "
                    "'*.example.org' is every name that ends so, '*' is every name (addresses need not be listed)"
                )


class HttpLimits(_Section, frozen=True):
    """What an HTTP client may ask of the server."""

    header_bytes_max: int = 32 * 1024
    body_bytes_max: int = 8 * 1024 * 1024
    connections_max: int = 10_000
    pipelined_max: int = 32
    """Requests that may wait behind the one in flight; beyond, the connection is not read from."""
    header_timeout_s: float = 10.0
    """From a request's first byte to the end of its header."""
    body_timeout_s: float = 60.0
    """From the header's end to the body's; and for the client to read a response."""
    idle_timeout_s: float = 120.0
    """Between two requests of a connection."""


class SqsSettings(_Section, frozen=True):
    """How the SQS front end presents itself."""

    limits: Literal["strict", "relaxed"] = "strict"
    """Relaxed: what AWS limits for its own sake (sizes, waits, batch entries) goes as far as Penstock can."""
    region: str = "us-east-1"
    account: str = "000000000000"
    auto_create: bool = False
    """Create a queue when it is first used, instead of saying that it does not exist."""


class HandshakeRule(_Section, frozen=True):
    """Channels whose messages are confirmed in two steps: a `[[nsq.handshake]]` table. Patterns are as in a shell."""

    topic: str = "*"
    channel: str = "*"
    receipt_timeout_s: float = 5.0
    """From the delivery to the first TOUCH (or FIN, or REQ)."""
    processing_timeout_s: float = 60.0
    """From each TOUCH to the next, or to FIN or REQ."""


class NsqSettings(_Section, frozen=True):
    """How the NSQ front end presents itself. The defaults are nsqd's."""

    message_bytes_max: int = 1024 * 1024
    body_bytes_max: int = 5 * 1024 * 1024
    """Of a whole MPUB, IDENTIFY or AUTH."""
    message_timeout_s: float = 60.0
    """How long a client has for a message, if it does not say so itself."""
    message_timeout_max_s: float = 900.0
    """What a client may ask for; and how long TOUCH can keep a message at most."""
    requeue_timeout_max_s: float = 3600.0
    """What REQ and DPUB may ask for."""
    client_timeout_s: float = 60.0
    """A client that is silent for so long is gone; heartbeats come twice in that time."""
    heartbeat_interval_max_s: float = 60.0
    ready_max: int = 2_500
    """RDY: messages that one client may have in flight."""
    output_buffer_bytes_max: int = 64 * 1024
    output_buffer_timeout_min_s: float = 0.025
    output_buffer_timeout_max_s: float = 30.0
    output_buffer_timeout_s: float = 0.25
    channel_consumers_max: int = 0
    """Clients that may subscribe to one channel; 0: any number."""
    connections_max: int = 10_000
    in_flight_max: int = 1_000_000
    """Messages that a channel of a topic created here may have in flight."""
    topic_partitions: int = 0
    """Of a topic created here, on a cluster; 0: as few as it takes for every node to have one. 1 keeps their order."""
    deflate: bool = True
    deflate_level_max: int = 6
    snappy: bool = True
    """Offered only if python-snappy is installed."""
    tls_required: bool = False
    """Nothing but IDENTIFY before a client has switched to TLS."""
    handshake: list[HandshakeRule] = []
    lookup: list[str] = []
    """Lookup services that are told of our topics, each HOST:TCPPORT."""
    lookup_heartbeat_s: float = 5.0
    """How often each of them hears that we are alive, and how much waits here."""
    broadcast_address: str | None = None
    """Where clients that ask a lookup service reach us; None: the host that we listen on."""
    broadcast_tcp_port: int | None = None
    """None: the port that we listen on."""
    broadcast_http_port: int | None = None
    latency_percentiles: list[float] = []
    """Of the time from send to FIN, in /stats: say [0.5, 0.99]. None are kept by default, as in nsqd."""
    latency_window_s: float = 600.0


class LookupSettings(_Section, frozen=True):
    """`penstock lookup`: where it listens, and how long it believes in a node. The defaults are nsqlookupd's."""

    host: str = "127.0.0.1"
    tcp_port: int = 4160
    http_port: int = 4161
    broadcast_address: str | None = None
    """Where nodes and clients reach us; None: the host that we listen on."""
    insecure: bool = False
    """Serve other machines. There are no credentials here: whoever reaches the ports may change what is registered."""
    inactive_producer_timeout_s: float = 300.0
    """A node that is silent for so long is no longer named."""
    tombstone_lifetime_s: float = 45.0
    connections_max: int = 10_000
    names_max: int = 100_000
    """Topics and channels that are kept."""

    def check(self) -> None:
        """Raise `InvalidSettings` for the first thing that cannot be followed."""
        for name in ("tcp_port", "http_port"):
            if not 0 <= getattr(self, name) <= 65_535:
                raise InvalidSettings(f"[lookup] {name} is {getattr(self, name)}: a port is from 0 to 65535")
        for name in ("inactive_producer_timeout_s", "tombstone_lifetime_s", "connections_max", "names_max"):
            if not getattr(self, name) > 0:
                raise InvalidSettings(f"[lookup] {name} is {getattr(self, name)}: it must be larger than 0")
        if not self.insecure and not is_loopback(self.host):
            raise InvalidSettings(
                f"host {self.host!r} can be reached from other machines, and a lookup service knows no credentials: "
                "listen on 127.0.0.1, or say --insecure if everybody who reaches it may change what is registered"
            )


class RestSettings(_Section, frozen=True):
    """How the REST API, on `http_port`, presents itself. Sizes, connections and times are those of `[http]`."""

    cors_origins: list[str] = []
    """Web pages of these origins may call: `https://console.example.org`. None may by default."""
    requests_per_second: float | None = None
    """What each caller may ask for; beyond it gets 429. None: any number."""
    requests_burst: int = 100
    """How many requests may come at once, if there were few before."""
    receive_max: int = 10_000
    """Messages of one receive."""
    wait_max_s: float = 300.0
    """How long a receive may wait."""
    response_bytes_max: int = 32 * 1024 * 1024
    """Bytes of bodies in one response; what is beyond stays where it is."""
    sessions_max: int = 100_000


class WebsocketSettings(_Section, frozen=True):
    """What a client of the websocket, or one that polls for commands, may ask of the server."""

    connections_max: int = 10_000
    frame_bytes_max: int = 64 * 1024 * 1024
    """A larger frame from a client ends the connection."""
    requests_max: int = 10_000
    """Requests of one client without an answer; beyond, they are refused."""
    receive_max: int = 10_000
    """Messages of one delivery, and of one page of browsing or reading."""
    answer_bytes_max: int = 32 * 1024 * 1024
    """Bytes of bodies in one answer, about: a delivery is cut by the average size of its queue's messages."""
    credit_max: int = 100_000
    """Credit that one push may be given at a time."""
    heartbeat_s: float = 10.0
    """How often a connection is asked whether it is alive; it has as long to answer."""
    read_timeout_s: float = 60.0
    """How long a client may leave an answer unread before its connection is closed."""
    session_ttl_s: float = 30.0
    """The session of a client that polls ends so long after its last request."""


class MetricsSettings(_Section, frozen=True):
    """Which queues have series of their own at `/metrics`. All of them together are always there, added up."""

    queues: int = 100
    """So many: the busiest ones. With no more queues than that, all."""
    always: list[str] = []
    """Patterns as in a shell: queues that are shown beside these, busy or not."""

    def check(self) -> None:
        """Raise `InvalidSettings` for the first thing that cannot be followed."""
        if self.queues < 0:
            raise InvalidSettings(f"[metrics] queues is {self.queues}: it must be 0 or more")
        if "" in self.always:
            raise InvalidSettings("[metrics] always has an empty pattern: name a queue, or use * as in orders-*")


class LogSettings(_Section, frozen=True):
    """What is logged, and how."""

    format: Literal["json", "text"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    requests: Literal["all", "errors", "none"] = "errors"
    """Which requests get a line of their own."""


class EventSettings(_Section, frozen=True):
    """Event records: an internal queue that holds who did what when. See docs/events.md."""

    enabled: bool = False
    queue: str = "penstock.events"
    sample: float = 1.0
    """Which share of the events is recorded: 0.01 is one in a hundred, by chance."""
    retention_s: float = 86_400.0
    retention_bytes: int = 256 * 1024 * 1024
    """The oldest events go beyond this, however young they are."""
    flush_s: float = 1.0
    """How long an event may wait for a commit to go along with."""


class ClusterSettings(_Section, frozen=True):
    """What the nodes of a cluster share, and what is this node's own. See docs/cluster.md."""

    name: str = "penstock"
    shards: int = 16
    """Into how many parts the queues are divided: partitions of the topics. It is fixed when these are made."""
    prefix: str | None = None
    """What the names of the topics begin with; None: the cluster's name."""
    node: str | None = None
    """This node's name, which no other node has; None: the name of the machine."""
    link_host: str = "127.0.0.1"
    """Where the other nodes reach this one; they must be able to."""
    link_port: int = 9326
    link_address: str | None = None
    """HOST:PORT by which they reach it, if that is another one: behind a proxy, in a container."""
    secret: str | None = None
    """What nodes know, and nobody else: who has it may do everything."""
    secret_env: str | None = None
    """The environment variable that holds the secret."""
    secret_file: str | None = None
    """The file that holds the secret."""
    tls_certificate: str | None = None
    """The file of this node's certificate (PEM), signed by `tls_ca`: links are encrypted then. All nodes, or none."""
    tls_key: str | None = None
    tls_ca: str | None = None
    """The file of the authority whose certificates nodes have, and nobody else."""
    session_timeout_s: float = 10.0
    """A node that is silent for so long is taken for dead, and others take its shards."""
    move_pause_s: float = 5.0
    """The least time between two shards that move for the sake of balance."""

    def __repr__(self) -> str:
        return f"ClusterSettings({self.name!r}, shards={self.shards})"

    @property
    def topic_prefix(self) -> str:
        """What the names of the topics begin with."""
        return self.prefix or self.name

    @property
    def node_name(self) -> str:
        """This node's name."""
        return self.node or socket.gethostname()

    def open_secret(self) -> Secret | None:
        """The secret, fetched from where it is kept; None if there is none."""
        return _kept_secret(self, "secret", "[cluster]")

    def check(self) -> None:
        """Raise `InvalidSettings` for the first thing that cannot be followed."""
        for name, text in (("name", self.name), ("prefix", self.topic_prefix), ("node", self.node_name)):
            if not _CLUSTER_NAME.fullmatch(text):
                raise InvalidSettings(
                    f"[cluster] {name} is {text!r}: 1 to 100 letters, digits, dots, hyphens and underscores, with a "
                    "letter or a digit first"
                )
        if not 1 <= self.shards <= SHARDS_MAX:
            raise InvalidSettings(f"[cluster] shards is {self.shards}: it must be from 1 to {SHARDS_MAX}")
        if not 0 <= self.link_port <= 65_535:
            raise InvalidSettings(f"[cluster] link_port is {self.link_port}: a port is from 0 to 65535")
        if self.link_address is not None:
            parse_address(self.link_address, "[cluster] link_address")
        if len({self.tls_certificate is None, self.tls_key is None, self.tls_ca is None}) > 1:
            raise InvalidSettings("[cluster] tls_certificate, tls_key and tls_ca go together: give all, or none")
        if not 1 <= self.session_timeout_s <= 300:
            raise InvalidSettings(f"[cluster] session_timeout_s is {self.session_timeout_s}: it must be from 1 to 300")
        if not 0 <= self.move_pause_s <= 86_400:
            raise InvalidSettings(f"[cluster] move_pause_s is {self.move_pause_s}: it must be from 0 to 86400")
        if self.open_secret() is None and not is_loopback(self.link_host):
            raise InvalidSettings(
                f"[cluster] link_host {self.link_host!r} can be reached from other machines, and there is no secret: "
                "give the same secret, secret_env or secret_file at every node"
            )


KafkaValue = str | int | float | bool


class KafkaSettings(_Section, frozen=True):
    """How Kafka is reached, and how safe it keeps what it is given. See docs/cluster.md."""

    bootstrap: str = "127.0.0.1:9092"
    """HOST:PORT of some brokers, with commas between them."""
    replication_factor: int = 3
    """How many brokers have each message. Topics that have fewer copies are refused."""
    min_insync_replicas: int = 2
    """How many of them must have a message before it is acknowledged."""
    commit_timeout_s: float = 10.0
    """How long a commit may take; beyond, its shard is given up and opened again."""
    message_bytes_max: int = 4 * 1024 * 1024
    """The largest message that the topics take. What is larger is split."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    properties: dict[str, KafkaValue] = {}
    """Handed to librdkafka as they are: `"security.protocol" = "SASL_SSL"`. They are never logged."""
    properties_env: dict[str, str] = {}
    """Properties whose values are in environment variables: `"sasl.password" = "KAFKA_PASSWORD"`."""
    properties_file: dict[str, str] = {}
    """Properties whose values are in files."""
    topic_properties: dict[str, KafkaValue] = {}
    """For topics when they are made, over what Penstock would choose: `"segment.bytes" = 67108864`."""

    def __repr__(self) -> str:
        return f"KafkaSettings({self.bootstrap!r})"

    def open_properties(self) -> dict[str, KafkaValue]:
        """The properties, with their values fetched from where they are kept."""
        found = dict(self.properties)
        for name, variable in self.properties_env.items():
            self._once(found, name)
            if not os.environ.get(variable):
                raise InvalidSettings(f"[kafka] properties_env: {name!r} is in {variable}, which is not set")
            found[name] = os.environ[variable]
        for name, path in self.properties_file.items():
            self._once(found, name)
            found[name] = _read_secret(Path(path), f"[kafka] properties_file: {name!r}")
        return found

    @staticmethod
    def _once(found: dict[str, KafkaValue], name: str) -> None:
        if name in found:
            raise InvalidSettings(f"[kafka] {name!r} is given twice: in one of properties, properties_env, _file alone")

    def check(self) -> None:
        """Raise `InvalidSettings` for the first thing that cannot be followed."""
        addresses = [address.strip() for address in self.bootstrap.split(",")]
        for address in addresses:
            parse_address(address, "[kafka] bootstrap")
        if not 1 <= self.replication_factor <= 32_767:
            raise InvalidSettings(f"[kafka] replication_factor is {self.replication_factor}: it must be 1 or more")
        in_sync_max = max(1, self.replication_factor - 1)
        if not 1 <= self.min_insync_replicas <= in_sync_max:
            raise InvalidSettings(
                f"[kafka] min_insync_replicas is {self.min_insync_replicas}: with replication_factor "
                f"{self.replication_factor} it must be from 1 to {in_sync_max}, so that one broker may stop"
            )
        if not 1 <= self.commit_timeout_s <= 300:
            raise InvalidSettings(f"[kafka] commit_timeout_s is {self.commit_timeout_s}: it must be from 1 to 300")
        if not 16 * 1024 <= self.message_bytes_max <= 64 * 1024 * 1024:
            raise InvalidSettings(
                f"[kafka] message_bytes_max is {self.message_bytes_max}: it must be from 16 KiB to 64 MiB"
            )
        for name in self.open_properties():
            if name in RESERVED_PROPERTIES:
                raise InvalidSettings(f"[kafka] properties has {name!r}: Penstock sets that itself")


class Allowance(_Section, frozen=True):
    """Rights on queues: a `[[credentials.allow]]` table."""

    rights: list[Right]
    queues: str | list[str] = "*"


class CredentialSettings(_Section, frozen=True):
    """An access key: a `[[credentials]]` table. Without `allow` it may do everything."""

    access_key: str
    secret_key: str | None = None
    secret_key_env: str | None = None
    """The environment variable that holds the secret."""
    secret_key_file: str | None = None
    """The file that holds the secret."""
    token: str | None = None
    """A bearer token of its own, beside `access_key:secret_key` or instead of the secret."""
    token_env: str | None = None
    token_file: str | None = None
    name: str | None = None
    """Whom the key stands for, in logs and as SQS's SenderId."""
    allow: list[Allowance] | None = None

    def __repr__(self) -> str:
        return f"CredentialSettings({self.access_key!r})"


_MAY_BE_0 = frozenset({"channel_consumers_max", "topic_partitions"})


@with_settings(SETTINGS.values())
class DeclaredQueue(_Section, frozen=True):
    """A queue that is there when the server is ready: a `[[queues]]` table. Its other keys are a queue's settings.

    What is not given keeps its default when the queue is created, and stays as it is when the queue exists.
    """

    name: str

    def changes(self) -> dict[str, Any]:
        """The settings that are given, as the core names them, checked. TOML has no null: "none" stands for it."""
        given = {each.name: getattr(self, each.name) for each in SETTINGS.values()}
        none = [name for name, value in given.items() if value == "none" and SETTINGS[name].is_optional]
        return read_changes({name: value for name, value in given.items() if value is not UNSET} | dict.fromkeys(none))

    def config(self) -> QueueConfig:
        """The configuration that the queue is created with, checked."""
        changes = self.changes()
        return QueueConfig().changed(changes | {"kind": kind_of(self.name, changes.get("kind"))})


class Settings(_Section, frozen=True):
    """All of penstock.toml.

    >>> Settings().server.sqs_port
    9324
    """

    server: ServerSettings = ServerSettings()
    http: HttpLimits = HttpLimits()
    sqs: SqsSettings = SqsSettings()
    nsq: NsqSettings = NsqSettings()
    lookup: LookupSettings = LookupSettings()
    rest: RestSettings = RestSettings()
    websocket: WebsocketSettings = WebsocketSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()
    events: EventSettings = EventSettings()
    cluster: ClusterSettings = ClusterSettings()
    kafka: KafkaSettings = KafkaSettings()
    credentials: list[CredentialSettings] = []
    queues: list[DeclaredQueue] = []

    def with_server(self, **overrides: Any) -> Settings:
        """These settings, with some of the server's overridden (by flags).

        >>> Settings().with_server(sqs_port=0, host=None).server.sqs_port
        0
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        return msgspec.structs.replace(self, server=msgspec.structs.replace(self.server, **given))

    def with_nsq(self, **overrides: Any) -> Settings:
        """These settings, with some of the NSQ front end's overridden."""
        given = {name: value for name, value in overrides.items() if value is not None}
        return msgspec.structs.replace(self, nsq=msgspec.structs.replace(self.nsq, **given))

    def with_lookup(self, **overrides: Any) -> Settings:
        """These settings, with some of the lookup service's overridden."""
        given = {name: value for name, value in overrides.items() if value is not None}
        return msgspec.structs.replace(self, lookup=msgspec.structs.replace(self.lookup, **given))

    def with_sqs(self, **overrides: Any) -> Settings:
        """These settings, with some of the SQS front end's overridden."""
        given = {name: value for name, value in overrides.items() if value is not None}
        return msgspec.structs.replace(self, sqs=msgspec.structs.replace(self.sqs, **given))

    def with_cluster(self, **overrides: Any) -> Settings:
        """These settings, with some of the cluster's overridden."""
        given = {name: value for name, value in overrides.items() if value is not None}
        return msgspec.structs.replace(self, cluster=msgspec.structs.replace(self.cluster, **given))

    def with_kafka(self, **overrides: Any) -> Settings:
        """These settings, with some of Kafka's overridden."""
        given = {name: value for name, value in overrides.items() if value is not None}
        return msgspec.structs.replace(self, kafka=msgspec.structs.replace(self.kafka, **given))

    def kafka_options(self) -> KafkaOptions:
        """What the store has to know of the cluster and of Kafka."""
        cluster, kafka = self.cluster, self.kafka
        return KafkaOptions(
            bootstrap=kafka.bootstrap,
            cluster=cluster.name,
            prefix=cluster.topic_prefix,
            shards=cluster.shards,
            replication_factor=kafka.replication_factor,
            min_insync_replicas=kafka.min_insync_replicas,
            commit_timeout_s=kafka.commit_timeout_s,
            message_bytes_max=kafka.message_bytes_max,
            compression=kafka.compression,
            properties=kafka.open_properties(),
            topic_properties=dict(kafka.topic_properties),
        )

    def check(self) -> None:
        """Raise `InvalidSettings` for the first thing that cannot be followed."""
        for name in ("sqs_port", "http_port", "nsq_tcp_port", "nsq_http_port"):
            if not 0 <= getattr(self.server, name) <= 65_535:
                raise InvalidSettings(f"[server] {name} is {getattr(self.server, name)}: a port is from 0 to 65535")
        self.server.check_hosts()
        if (self.server.tls_certificate is None) != (self.server.tls_key is None):
            raise InvalidSettings("[server] tls_certificate and tls_key go together: give both, or neither")
        if not (len(self.sqs.account) == 12 and self.sqs.account.isdigit() and self.sqs.account.isascii()):
            raise InvalidSettings(f"[sqs] account is {self.sqs.account!r}: an account has 12 digits")
        if self.server.buffer_bytes_max < BUFFER_BYTES_MIN:
            raise InvalidSettings(
                f"[server] buffer_bytes_max is {self.server.buffer_bytes_max}: it must be {BUFFER_BYTES_MIN} or more"
            )
        for name in self.http.__struct_fields__:
            if not getattr(self.http, name) > 0:
                raise InvalidSettings(f"[http] {name} is {getattr(self.http, name)}: it must be larger than 0")
        self._check_nsq()
        self._check_rest()
        self.metrics.check()
        self._check_events()
        self._check_queues()
        self._check_exposure()
        if not 1 <= self.server.workers <= WORKERS_MAX:
            raise InvalidSettings(f"[server] workers is {self.server.workers}: it must be from 1 to {WORKERS_MAX}")
        if self.server.engine == "kafka":
            _need_kafka_client()
            if self.server.workers > 1:
                raise InvalidSettings("[server] workers share a directory: with Kafka, start several nodes instead")
            if self.server.data == MEMORY:
                raise InvalidSettings("[server] data: a node on Kafka needs a directory for what it caches")
            self.cluster.check()
            self.kafka.check()

    def _check_nsq(self) -> None:
        nsq = self.nsq
        for name in nsq.__struct_fields__:
            value = getattr(nsq, name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0 and name not in _MAY_BE_0:
                raise InvalidSettings(f"[nsq] {name} is {value}: it must be larger than 0")
        if not 0 <= nsq.topic_partitions <= TOPIC_PARTITIONS_MAX:
            raise InvalidSettings(
                f"[nsq] topic_partitions is {nsq.topic_partitions}: it must be from 0 to {TOPIC_PARTITIONS_MAX}"
            )
        if not 1 <= nsq.deflate_level_max <= 9:
            raise InvalidSettings(f"[nsq] deflate_level_max is {nsq.deflate_level_max}: it must be from 1 to 9")
        for low, high in (("message_timeout_s", "message_timeout_max_s"), ("message_bytes_max", "body_bytes_max")):
            if getattr(nsq, low) > getattr(nsq, high):
                raise InvalidSettings(f"[nsq] {low} is {getattr(nsq, low)}: it must not be larger than {high}")
        if nsq.tls_required and self.server.tls_certificate is None:
            raise InvalidSettings("[nsq] tls_required needs [server] tls_certificate and tls_key")
        for address in nsq.lookup:
            parse_address(address, "[nsq] lookup")
        for each in nsq.latency_percentiles:
            if not 0 < each <= 1:
                raise InvalidSettings(f"[nsq] latency_percentiles has {each}: one is from 0 to 1, as in 0.99")
        for rule in nsq.handshake:
            for name in ("receipt_timeout_s", "processing_timeout_s"):
                if not 0 < getattr(rule, name) <= 12 * 3600:
                    value = getattr(rule, name)
                    raise InvalidSettings(f"[[nsq.handshake]] {name} is {value}: it must be from 0 to 12 hours")

    def _check_rest(self) -> None:
        for name in self.rest.__struct_fields__:
            value = getattr(self.rest, name)
            if isinstance(value, int | float) and not value > 0:
                raise InvalidSettings(f"[rest] {name} is {value}: it must be larger than 0")
        for origin in self.rest.cors_origins:
            scheme, found, rest = origin.partition("://")
            if origin != "*" and (scheme not in ("http", "https") or not found or not rest or "/" in rest):
                raise InvalidSettings(
                    f"[rest] cors_origins has {origin!r}: an origin is scheme://host or scheme://host:port"
                )

    def _check_events(self) -> None:
        events = self.events
        if not 0 < events.sample <= 1:
            raise InvalidSettings(f"[events] sample is {events.sample}: it is a share, above 0 and up to 1")
        for name in ("retention_s", "retention_bytes", "flush_s"):
            if not getattr(events, name) > 0:
                raise InvalidSettings(f"[events] {name} is {getattr(events, name)}: it must be larger than 0")
        try:
            kind_of(check_name(events.queue, "queue"), "standard")
            events_config(events)
        except PenstockError as error:
            raise InvalidSettings(f"[events] {error}") from None

    def _check_queues(self) -> None:
        seen: set[str] = set()
        for queue in self.queues:
            if queue.name in seen:
                raise InvalidSettings(f"the queue {queue.name!r} is declared twice")
            seen.add(queue.name)
            try:
                check_name(queue.name, "queue")
                queue.config()
            except PenstockError as error:
                raise InvalidSettings(f"the declared queue {queue.name!r}: {error}") from None

    def _check_exposure(self) -> None:
        server = self.server
        if self.credentials or server.insecure or is_loopback(server.host):
            return
        raise InvalidSettings(
            f"host {server.host!r} can be reached from other machines, and there are no credentials: add "
            "[[credentials]] to penstock.toml, or listen on 127.0.0.1, or say --insecure if everybody may read and "
            "delete everything"
        )

    def open_credentials(self) -> Credentials:
        """The credentials, with their secrets fetched from where they are kept."""
        found: dict[str, Credential] = {}
        tokens: set[str] = set()
        for each in self.credentials:
            if each.access_key in found:
                raise InvalidSettings(f"the access key {each.access_key!r} is there twice")
            credential = found[each.access_key] = _credential(each)
            if credential.token is not None:
                if credential.token.reveal() in tokens:
                    raise InvalidSettings(f"the token of {each.access_key!r} is another credential's token, too")
                tokens.add(credential.token.reveal())
        return Credentials(found.values())


def _need_kafka_client() -> None:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise InvalidSettings(
            "[server] engine is 'kafka', which needs Kafka's client: pip install 'penstock[kafka]'"
        ) from None


def events_config(events: EventSettings) -> QueueConfig:
    """The configuration of the events queue: it keeps what it gets, up to its limits."""
    limits = {"retention_ms": round(events.retention_s * SECOND_MS), "retention_bytes": events.retention_bytes}
    return QueueConfig().changed({**limits, "max_receives": 0})


def _credential(settings: CredentialSettings) -> Credential:
    grants = [Grant()] if settings.allow is None else [_grant(allowance) for allowance in settings.allow]
    principal = Principal(settings.name or settings.access_key, settings.access_key, grants)
    where = f"the credentials of {settings.access_key!r}"
    if not settings.access_key:
        raise InvalidSettings(f"{where}: neither the access key nor the secret may be empty")
    token = _kept_secret(settings, "token", where)
    secret = _kept_secret(settings, "secret_key", where)
    if secret is None:
        if token is None:
            raise InvalidSettings(f"{where}: give one of secret_key, secret_key_env and secret_key_file, or a token")
        secret = Secret(os.urandom(_UNKNOWN_SECRET_BYTES).hex())  # nobody knows it: only the token opens
    return Credential(settings.access_key, secret, principal, token)


def _grant(allowance: Allowance) -> Grant:
    queues = [allowance.queues] if isinstance(allowance.queues, str) else allowance.queues
    return Grant(tuple(queues), tuple(allowance.rights))


def _kept_secret(settings: CredentialSettings | ClusterSettings, name: str, where: str) -> Secret | None:
    """The secret that stands in the settings, in an environment variable, or in a file; None if none is given."""
    plain, variable, path = (getattr(settings, name + ending) for ending in ("", "_env", "_file"))
    given = sum(source is not None for source in (plain, variable, path))
    if given == 0:
        return None
    if given > 1:
        raise InvalidSettings(f"{where}: give one of {name}, {name}_env and {name}_file")
    if plain is not None:
        secret = plain
    elif variable is not None:
        secret = os.environ.get(variable, "")
    else:
        secret = _read_secret(Path(path), where)
    if not secret:
        raise InvalidSettings(f"{where}: {_EMPTY[name]} may be empty")
    return Secret(secret)


def _read_secret(path: Path, where: str) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{where}: the secret cannot be read from {path}: {error}") from None


def parse_address(text: str, what: str) -> tuple[str, int]:
    """The host and the port of HOST:PORT.

    >>> parse_address("lookup1:4160", "--lookup"), parse_address("[::1]:4160", "--lookup")
    (('lookup1', 4160), ('::1', 4160))
    >>> parse_address("lookup1", "--lookup")
    Traceback (most recent call last):
        ...
    penstock.server.settings.InvalidSettings: --lookup is 'lookup1': give HOST:PORT
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= 65_535
    if not colon or not bare or not is_port or (":" in bare and bare == host):
        raise InvalidSettings(f"{what} is {text!r}: give HOST:PORT")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, True, False, False)
    """
    if not host:
        return False
    try:
        addresses = [str(found[4][0]) for found in socket.getaddrinfo(host, None)]
    except OSError as error:
        raise InvalidSettings(f"[server] host is {host!r}, which is no address of this machine: {error}") from None
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)


# -- the file ----------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> Settings:
    """The settings of a file. Not yet checked: flags may change them."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{os.fspath(path)} cannot be read: {error}") from None
    return parse(text, os.fspath(path))


def parse(text: str, name: str = "penstock.toml") -> Settings:
    """The settings of a file's text.

    >>> parse('[server]\\nsqs_prot = 1')
    Traceback (most recent call last):
        ...
    penstock.server.settings.InvalidSettings: penstock.toml: [server] has no key 'sqs_prot', perhaps 'sqs_port' is ...
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"{name} is not TOML: {error}") from None
    _check_keys(raw, Settings, name, "the file")
    try:
        return msgspec.convert(raw, Settings)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"{name}: {str(error).replace('`$.', '`')}") from None


def _check_keys(raw: Any, shape: type[msgspec.Struct], name: str, where: str) -> None:
    """Name the first key that the shape does not have, and the ones that it has."""
    if not isinstance(raw, dict):
        return
    hints = typing.get_type_hints(shape)
    for key, value in raw.items():
        if key not in shape.__struct_fields__:
            known = ", ".join(shape.__struct_fields__)
            near = difflib.get_close_matches(key, shape.__struct_fields__, 1)
            guess = f", perhaps {near[0]!r} is meant" if near else ""
            raise InvalidSettings(f"{name}: {where} has no key {key!r}{guess}; its keys are: {known}")
        inner = _struct_in(hints[key])
        if inner is not None:
            within = where.strip("[]") + "." if where.startswith("[") else ""
            for each in value if isinstance(value, list) else [value]:
                title = f"[[{within}{key}]]" if isinstance(value, list) else f"[{within}{key}]"
                _check_keys(each, inner, name, title)


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """The struct that a field holds, alone, in a list, or perhaps."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    found = [_struct_in(argument) for argument in typing.get_args(hint)]
    return next((struct for struct in found if struct is not None), None)
