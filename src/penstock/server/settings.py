"""What a server is told: `penstock.toml`, and the flags that override it.

The file's shape is the structs below: a table for each section, a field for each key. Keys that are not there are
errors, and the message names the right ones. docs/server.md describes them for users.
"""

from __future__ import annotations

import difflib
import importlib.util
import ipaddress
import os
import re
import socket
import tomllib
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET

from penstock.core.errors import InvalidConfig, InvalidRequest, PenstockError
from penstock.core.queues.config import (
    BATCH_BYTES_MAX,
    MARKED_BYTES_MAX,
    SETTINGS,
    QueueConfig,
    check_name,
    kind_of,
    read_changes,
)
from penstock.core.settings import SECOND_MS, Declared, Setting, declared, with_settings
from penstock.core.traits import RIGHTS, Right
from penstock.server.auth import Credential, Credentials, Grant, Principal, Secret
from penstock.store.journal.kafka_options import RESERVED_PROPERTIES, KafkaOptions
from penstock.store.memory import MEMORY
from penstock.store.zookeeper_options import ZooKeeperOptions

GONE = {"workers": "docs/server.md says how to use more than one core (Scaling)"}
"""Keys that earlier builds had, and what to do instead."""
PORT_MAX = 65_535
EVERY_HOST = "*"
"""Among the hosts: the server answers to any name."""
_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?", re.I | re.ASCII)
_UNKNOWN_SECRET_BYTES = 32
_EMPTY = {
    "secret_key": "neither the access key nor the secret",
    "token": "neither the access key nor the token",
    "password": "neither the user nor the password",
    "secret": "no secret",
}
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
SHARDS_MAX = 4096
BUFFER_BYTES_MIN = 1024 * 1024
TOPIC_PARTITIONS_MAX = 1_024


class InvalidSettings(InvalidRequest):
    """`penstock.toml` or a flag cannot be followed as it is."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of penstock.toml. What is declared of its settings is what is checked, documented and refused."""

    def check_settings(self, title: str) -> None:
        """Raise `InvalidSettings` for the first setting that is not of its type, or not in its range."""
        for each in declared(type(self)).values():
            checked(each, getattr(self, each.field), f"{title} {each.field}")


def checked(setting: Declared, value: Any, said: str) -> Any:
    """A setting's value, or `InvalidSettings` with the name that the user said."""
    try:
        return setting.checked(value, said)
    except InvalidConfig as error:
        raise InvalidSettings(str(error)) from None


class ServerSettings(_Section, frozen=True):
    """Where the server keeps its data, and where it listens."""

    data: Annotated[
        str, Setting("The data directory, created if it is not there. `:memory:` keeps nothing.", flag="--data,-d")
    ] = "./data"
    engine: Annotated[
        Literal["embedded", "kafka", "zookeeper"],
        Setting(
            "Where messages are kept: in `data`; in Kafka, with a cache in `data`; or in ZooKeeper.", flag="--engine"
        ),
    ] = "embedded"
    host: Annotated[str, Setting("The address to listen on.", flag="--host")] = "127.0.0.1"
    sqs_port: Annotated[int, Setting("SQS. 0 picks a free port.", 0, PORT_MAX, flag="--sqs-port")] = 9324
    http_port: Annotated[
        int, Setting("REST, websocket, health and metrics. 0 picks a free port.", 0, PORT_MAX, flag="--http-port")
    ] = 9325
    nsq_tcp_port: Annotated[int, Setting("NSQ. 0 picks a free port.", 0, PORT_MAX, flag="--nsq-tcp-port")] = 4150
    nsq_http_port: Annotated[
        int, Setting("NSQ's HTTP API. 0 picks a free port.", 0, PORT_MAX, flag="--nsq-http-port")
    ] = 4151
    hosts: Annotated[
        list[str],
        Setting("Names by which clients reach the server, besides localhost, addresses and `host`.", flag="--hosts"),
    ] = []
    insecure: Annotated[bool, Setting("Serve other machines without credentials.", flag="--insecure")] = False
    tls_certificate: Annotated[str | None, Setting("A PEM file. With it and `tls_key`, every port speaks TLS.")] = None
    tls_key: Annotated[str | None, Setting("The PEM file of its key.")] = None
    commit_in_thread: Annotated[
        bool, Setting("Write commits in a thread, so that the event loop stays free. It costs throughput.")
    ] = False
    stop_grace_s: Annotated[float, Setting("How long a stop waits for requests in flight.", 0, live=True)] = 10.0
    buffer_bytes_max: Annotated[
        int,
        Setting(
            "How many bytes all connections of a process may hold together: requests that are being read, and answers "
            "that clients have not read.",
            BUFFER_BYTES_MIN,
        ),
    ] = 256 * 1024 * 1024
    room_timeout_s: Annotated[
        float,
        Setting(
            "How long a request waits for room in `buffer_bytes_max`. After that its client is told to try again.",
            above=0,
            live=True,
        ),
    ] = 15.0
    body_bytes_per_s_min: Annotated[
        int,
        Setting(
            "How many bytes of a large body must arrive each second, measured over ten seconds.", above=0, live=True
        ),
    ] = 16 * 1024

    def check_hosts(self) -> None:
        """Raise `InvalidSettings` for the first of `hosts` that is no name."""
        for host in self.hosts:
            if host != EVERY_HOST and not _HOST.fullmatch(host):
                raise InvalidSettings(
                    f"[server] hosts has {host!r}: a host is a name without scheme and port, as in 'penstock.svc'; "
                    "'*.example.org' is every name that ends with .example.org, '*' is every name; leave addresses out"
                )


class HttpLimits(_Section, frozen=True):
    """What an HTTP client may ask of the server."""

    header_bytes_max: Annotated[
        int, Setting("The largest header of a request. A larger one gets 431.", 1, live=True)
    ] = 32 * 1024
    body_bytes_max: Annotated[int, Setting("The largest body of a request. A larger one gets 413.", 1, live=True)] = (
        8 * 1024 * 1024
    )
    connections_max: Annotated[int, Setting("Open connections. Further ones get 503.", 1, live=True)] = 10_000
    pipelined_max: Annotated[
        int,
        Setting(
            "Requests of a connection that may wait behind the one in flight. While they wait, no more are read.",
            1,
            live=True,
        ),
    ] = 32
    header_timeout_s: Annotated[
        float,
        Setting("How long a header may take to arrive, from its first byte on. After that, 408.", above=0, live=True),
    ] = 10.0
    body_timeout_s: Annotated[
        float,
        Setting(
            "How long a body may take to arrive. After that, 408. A client has the same time to read a response.",
            above=0,
            live=True,
        ),
    ] = 60.0
    idle_timeout_s: Annotated[
        float, Setting("How long a connection may be idle between two requests.", above=0, live=True)
    ] = 120.0


class SqsSettings(_Section, frozen=True):
    """How the SQS front end presents itself."""

    limits: Annotated[
        Literal["aws", "strict", "relaxed"],
        Setting(
            "`aws`: AWS's limits. `strict`: also its pauses of 60 seconds after DeleteQueue and PurgeQueue. `relaxed`: "
            "sizes, waits and batch entries are limited by Penstock alone, far above AWS.",
            flag="--sqs-limits",
        ),
    ] = "aws"
    region: Annotated[str, Setting("The region in ARNs. Signatures for any region are accepted.")] = "us-east-1"
    account: Annotated[str, Setting("The account in ARNs and queue URLs: 12 digits.")] = "000000000000"
    accounts: Annotated[
        Literal["one", "many"],
        Setting(
            "`one`: every caller sees the same queues. `many`: every account has queues of its own in every region.",
            flag="--sqs-accounts",
        ),
    ] = "one"
    auto_create: Annotated[
        bool, Setting("Create a queue when it is first used, instead of saying that it does not exist.")
    ] = False


class SnsSettings(_Section, frozen=True):
    """How SNS (on the port of SQS) delivers messages to HTTP(S) endpoints, and signs them."""

    http_targets: Annotated[
        list[str],
        Setting(
            "Hosts that may be called for HTTP(S) subscriptions: names, `*.example.org`, addresses, networks, or `*` "
            "for all. A server that listens on a loopback address and has no credentials also calls loopback addresses."
        ),
    ] = []
    http_timeout_s: Annotated[
        float, Setting("How long an endpoint has to take a message and to answer.", above=0, high=300)
    ] = 15.0
    http_ca: Annotated[
        str | None,
        Setting(
            "A PEM file with the authorities that sign the certificates of HTTPS endpoints. None: those of the system."
        ),
    ] = None
    sign: Annotated[
        Literal["all", "http"],
        Setting(
            "Which envelopes are signed: all, as on AWS, or those to HTTP(S) endpoints. A signature takes half a "
            "millisecond for each message, however many are subscribed. It needs `pip install penstock-mq[sns]`."
        ),
    ] = "all"

    def check(self) -> None:
        """Raise `InvalidSettings` for the first of `http_targets` that is no host."""
        for target in self.http_targets:
            try:
                ipaddress.ip_network(target, strict=False)
            except ValueError:
                if target != EVERY_HOST and not _HOST.fullmatch(target):
                    raise InvalidSettings(
                        f"[sns] http_targets has {target!r}: give a host's name without scheme and port, "
                        "'*.example.org', an address, a network as in '10.0.0.0/8', or '*'"
                    ) from None


class HandshakeRule(_Section, frozen=True):
    """Channels whose messages are confirmed in two steps: a `[[nsq.handshake]]` table. Patterns are as in a shell."""

    topic: Annotated[str, Setting("The topics that it applies to.")] = "*"
    channel: Annotated[str, Setting("The channels of these topics.")] = "*"
    receipt_timeout_s: Annotated[
        float, Setting("The time from the delivery to the first TOUCH, FIN or REQ.", above=0, high=12 * 3600)
    ] = 5.0
    processing_timeout_s: Annotated[
        float, Setting("The time from each TOUCH to the next one, or to FIN or REQ.", above=0, high=12 * 3600)
    ] = 60.0


class NsqSettings(_Section, frozen=True):
    """How the NSQ front end presents itself. The defaults are nsqd's."""

    message_bytes_max: Annotated[int, Setting("The largest message.", 1)] = 1024 * 1024
    body_bytes_max: Annotated[int, Setting("The largest MPUB, IDENTIFY or AUTH as a whole.", 1)] = 5 * 1024 * 1024
    message_timeout_s: Annotated[
        float, Setting("How long a client has for a message, unless it names a time itself.", above=0, high=12 * 3600)
    ] = 60.0
    message_timeout_max_s: Annotated[
        float,
        Setting("The longest `msg_timeout` of a client, and the longest time that TOUCH can keep a message.", above=0),
    ] = 900.0
    requeue_timeout_max_s: Annotated[float, Setting("The longest delay of REQ and DPUB.", above=0)] = 3600.0
    client_timeout_s: Annotated[
        float,
        Setting(
            "After this time of silence the server closes a connection. It sends two heartbeats in that time.", above=0
        ),
    ] = 60.0
    heartbeat_interval_max_s: Annotated[
        float, Setting("The longest `heartbeat_interval` that a client may ask for.", above=0)
    ] = 60.0
    ready_max: Annotated[
        int, Setting("The highest RDY: messages that one client may have in flight.", 1, live=True)
    ] = 2_500
    output_buffer_bytes_max: Annotated[
        int, Setting("The largest `output_buffer_size` that a client may ask for.", 1)
    ] = 64 * 1024
    output_buffer_timeout_min_s: Annotated[
        float, Setting("The shortest `output_buffer_timeout` that a client may ask for.", above=0)
    ] = 0.025
    output_buffer_timeout_max_s: Annotated[
        float, Setting("The longest `output_buffer_timeout` that a client may ask for.", above=0)
    ] = 30.0
    output_buffer_timeout_s: Annotated[
        float, Setting("The `output_buffer_timeout` of clients that name none.", above=0)
    ] = 0.25
    channel_consumers_max: Annotated[
        int, Setting("Clients that may subscribe to one channel. 0: any number.", 0, live=True)
    ] = 0
    connections_max: Annotated[int, Setting("Open connections. Further ones are closed at once.", 1, live=True)] = (
        10_000
    )
    in_flight_max: Annotated[
        int,
        Setting(
            "Messages in flight in a channel, for topics that NSQ clients create.",
            1,
            SETTINGS["in_flight_max"].setting.high,
        ),
    ] = 1_000_000
    topic_partitions: Annotated[
        int,
        Setting(
            "The partitions of topics that NSQ clients create on a cluster. 0: as many as it takes for every node to "
            "have one. With 1, messages keep their order.",
            0,
            TOPIC_PARTITIONS_MAX,
        ),
    ] = 0
    deflate: Annotated[bool, Setting("Offer compression with deflate.")] = True
    deflate_level_max: Annotated[int, Setting("The highest level of compression that a client may ask for.", 1, 9)] = 6
    snappy: Annotated[
        bool, Setting("Offer compression with snappy, if python-snappy is installed: `pip install penstock-mq[nsq]`.")
    ] = True
    tls_required: Annotated[bool, Setting("Accept only IDENTIFY until a client has switched to TLS.")] = False
    handshake: list[HandshakeRule] = []
    lookup: Annotated[
        list[str],
        Setting("HOST:TCPPORT of a lookup service with which the server registers its topics.", flag="--lookup"),
    ] = []
    lookup_heartbeat_s: Annotated[
        float,
        Setting(
            "How often the server tells each lookup service that it is alive, and how many messages wait.", above=0
        ),
    ] = 5.0
    broadcast_address: Annotated[
        str | None,
        Setting("The host name that lookup services give to clients. None: the host that the server listens on."),
    ] = None
    broadcast_tcp_port: Annotated[
        int | None, Setting("The TCP port that lookup services give to clients. None: `nsq_tcp_port`.", 1, PORT_MAX)
    ] = None
    broadcast_http_port: Annotated[
        int | None, Setting("The HTTP port that lookup services give to clients. None: `nsq_http_port`.", 1, PORT_MAX)
    ] = None
    latency_percentiles: Annotated[
        list[float],
        Setting(
            "Which percentiles of the time from send to FIN `/stats` shows: `[0.5, 0.99]`. None by default, as in nsqd."
        ),
    ] = []
    latency_window_s: Annotated[float, Setting("The time over which these percentiles are taken.", above=0)] = 600.0


class LookupSettings(_Section, frozen=True):
    """`penstock lookup`: where it listens, and when it forgets a node. The defaults are nsqlookupd's."""

    host: Annotated[str, Setting("The address to listen on.", flag="--host")] = "127.0.0.1"
    tcp_port: Annotated[int, Setting("The port for nodes. 0 picks a free port.", 0, PORT_MAX, flag="--tcp-port")] = 4160
    http_port: Annotated[
        int, Setting("The port for clients. 0 picks a free port.", 0, PORT_MAX, flag="--http-port")
    ] = 4161
    broadcast_address: Annotated[
        str | None,
        Setting(
            "The address at which others reach the service. None: `host`.",
            flag="--broadcast-address",
        ),
    ] = None
    insecure: Annotated[
        bool,
        Setting(
            "Serve other machines. A lookup service has no credentials: anyone who can reach its ports can change what "
            "is registered.",
            flag="--insecure",
        ),
    ] = False
    inactive_producer_timeout_s: Annotated[
        float,
        Setting(
            "A node that is silent for this long is no longer listed.", above=0, flag="--inactive-producer-timeout"
        ),
    ] = 300.0
    tombstone_lifetime_s: Annotated[
        float, Setting("How long a tombstone hides a node's topic.", above=0, flag="--tombstone-lifetime")
    ] = 45.0
    connections_max: Annotated[int, Setting("Open connections. Further ones are closed at once.", 1)] = 10_000
    names_max: Annotated[int, Setting("The most topics and channels that are kept.", 1)] = 100_000

    def check(self) -> None:
        """Raise `InvalidSettings` for the first thing that cannot be followed."""
        self.check_settings("[lookup]")
        if not self.insecure and not is_loopback(self.host):
            raise InvalidSettings(
                f"host {self.host!r} can be reached from other machines, and a lookup service has no credentials: "
                "listen on 127.0.0.1, or set --insecure if everybody who can reach it may change what is registered"
            )


class RestSettings(_Section, frozen=True):
    """How the REST API, on `http_port`, presents itself. Sizes, connections and times are those of `[http]`."""

    cors_origins: Annotated[
        list[str],
        Setting("Origins whose web pages may call, such as `https://console.example.org`. By default none."),
    ] = []
    console: Annotated[bool, Setting("Serve the console, a page for browsers, at `/`.", flag="--console")] = True
    requests_per_second: Annotated[
        float | None,
        Setting(
            "How many requests a second a caller may send over REST and the websocket. More get 429. None: no limit.",
            above=0,
            live=True,
        ),
    ] = None
    requests_burst: Annotated[
        int, Setting("How many requests a caller may send at once after a quiet time.", 1, live=True)
    ] = 100
    receive_max: Annotated[int, Setting("The most messages of one receive.", 1, live=True)] = 10_000
    wait_max_s: Annotated[float, Setting("How long a receive may wait.", above=0, live=True)] = 300.0
    response_bytes_max: Annotated[
        int, Setting("The most bytes of bodies in one response. Messages beyond that stay in the queue.", 1, live=True)
    ] = 32 * 1024 * 1024
    sessions_max: Annotated[int, Setting("The most open sessions.", 1, live=True)] = 100_000
    publish_bytes_max: Annotated[
        int,
        Setting(
            "How many bytes Spark may publish at once to FIFO queues, with deduplication ids or with a delay. Values, "
            "keys and attributes count. The bytes are in memory until they are written, and all other commits wait "
            "that long. Other messages have no such limit.",
            1,
            MARKED_BYTES_MAX,
            live=True,
        ),
    ] = BATCH_BYTES_MAX


class WebsocketSettings(_Section, frozen=True):
    """What a client of the websocket, or one that polls for commands, may ask of the server."""

    connections_max: Annotated[int, Setting("Open websockets. Further ones get 503.", 1, live=True)] = 10_000
    frame_bytes_max: Annotated[int, Setting("A larger frame from a client ends the connection.", 1, live=True)] = (
        64 * 1024 * 1024
    )
    requests_max: Annotated[
        int, Setting("Requests of one client that wait for their answers. Further ones are refused.", 1, live=True)
    ] = 10_000
    receive_max: Annotated[
        int, Setting("The most messages of one delivery, and of one page of browsing or reading.", 1, live=True)
    ] = 10_000
    answer_bytes_max: Annotated[
        int,
        Setting(
            "About how many bytes of bodies one answer may have. The size of a delivery is estimated from the average "
            "size of the queue's messages.",
            1,
            live=True,
        ),
    ] = 32 * 1024 * 1024
    credit_max: Annotated[int, Setting("The most credit that one command may give to a push.", 1, live=True)] = 100_000
    heartbeat_s: Annotated[
        float,
        Setting(
            "How often the server checks that a connection is alive. The client has the same time to answer.", above=0
        ),
    ] = 10.0
    read_timeout_s: Annotated[
        float, Setting("How long a client may leave an answer unread before its connection is closed.", above=0)
    ] = 60.0
    session_ttl_s: Annotated[
        float, Setting("How long after its last request the session of a polling client ends.", above=0)
    ] = 30.0


class MetricsSettings(_Section, frozen=True):
    """Which queues have their own series at `/metrics`. The sums over all queues are always there."""

    queues: Annotated[int, Setting("How many queues have their own series: the busiest ones.", 0)] = 100
    always: Annotated[
        list[str], Setting("Patterns as in a shell. Queues that match always have their own series.")
    ] = []

    def check(self) -> None:
        """Raise `InvalidSettings` for the first thing that cannot be followed."""
        if "" in self.always:
            raise InvalidSettings("[metrics] always has an empty pattern: name a queue, or use * as in orders-*")


class HistorySettings(_Section, frozen=True):
    """Rates and queue depths of the last 14 days, for the console's charts: a small file in the data directory."""

    enabled: Annotated[bool, Setting("Keep a history.")] = True
    queues: Annotated[
        int,
        Setting(
            "How many queues have their own charts: the busiest ones. All queues together always have one.", 0, 500
        ),
    ] = 50


class ConsoleSettings(_Section, frozen=True):
    """What the console may do and see, whoever uses it. The rights of a person are in `[[credentials]]`."""

    read_only: Annotated[bool, Setting("The console shows everything and changes nothing.", live=True)] = False
    mask: Annotated[
        list[str], Setting("Regular expressions. The console shows matches in bodies and attributes as `•••`.")
    ] = []

    def check(self) -> None:
        """Raise `InvalidSettings` for the first thing that cannot be followed."""
        for pattern in self.mask:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidSettings(
                    f"[console] mask has {pattern!r}, which is not a regular expression: {error}"
                ) from None


class AuditSettings(_Section, frozen=True):
    """The audit log: who changed what, and when. See docs/console.md."""

    enabled: Annotated[bool, Setting("Keep an audit log: the file `audit.jsonl` in the data directory.")] = True
    bytes_max: Annotated[
        int,
        Setting("The largest size. When the log is full, callers with many lines lose their oldest ones.", 64 * 1024),
    ] = 16 * 1024 * 1024


class LogSettings(_Section, frozen=True):
    """What is logged, and how."""

    format: Annotated[Literal["json", "text"], Setting("`json` is for programs, `text` for people.")] = "text"
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Setting("The lowest level that is logged.", live=True)
    ] = "info"
    requests: Annotated[
        Literal["all", "errors", "none"],
        Setting("Which requests are logged. `errors`: those that are answered with a status of 400 or higher."),
    ] = "errors"


class EventSettings(_Section, frozen=True):
    """Event records: who did what and when, in an internal queue. See docs/events.md."""

    enabled: Annotated[bool, Setting("Record events.")] = False
    queue: Annotated[str, Setting("The queue that holds the events.")] = "penstock.events"
    sample: Annotated[
        float,
        Setting("The share of events that is recorded, chosen at random: 0.01 is one in a hundred.", above=0, high=1),
    ] = 1.0
    retention_s: Annotated[float, Setting("How long events are kept.", above=0)] = 86_400.0
    retention_bytes: Annotated[int, Setting("The oldest events are deleted when the queue is larger than this.", 1)] = (
        256 * 1024 * 1024
    )
    flush_s: Annotated[
        float, Setting("How long an event may wait to be written together with another commit.", above=0)
    ] = 1.0


class ClusterSettings(_Section, frozen=True):
    """What all nodes of a cluster have in common, and what belongs to this node. See docs/cluster.md."""

    name: Annotated[str, Setting("The cluster's name, the same for all its nodes.", flag="--cluster")] = "penstock"
    shards: Annotated[
        int,
        Setting(
            "The number of shards: how many partitions the topics have. It is fixed when the topics are created.",
            1,
            SHARDS_MAX,
        ),
    ] = 16
    prefix: Annotated[str | None, Setting("What the names of the topics begin with. None: the cluster's name.")] = None
    node: Annotated[
        str | None,
        Setting("This node's name, unique in the cluster. None: the name of the machine.", flag="--node"),
    ] = None
    link_host: Annotated[str, Setting("The address at which the other nodes reach this one.")] = "127.0.0.1"
    link_port: Annotated[
        int, Setting("The port for other nodes. 0 picks a free one.", 0, PORT_MAX, flag="--link-port")
    ] = 9326
    link_address: Annotated[
        str | None,
        Setting("HOST:PORT at which the other nodes reach this one, if it differs: behind a proxy, in a container."),
    ] = None
    secret: Annotated[
        str | None, Setting("The secret that only the nodes know. Whoever has it may do everything.", is_secret=True)
    ] = None
    secret_env: Annotated[str | None, Setting("The environment variable that holds the secret.")] = None
    secret_file: Annotated[str | None, Setting("The file that holds the secret.")] = None
    tls_certificate: Annotated[
        str | None,
        Setting(
            "The file of this node's certificate (PEM), signed by `tls_ca`. With it links are encrypted. Set it on all "
            "nodes, or on none."
        ),
    ] = None
    tls_key: Annotated[str | None, Setting("The file of its key.")] = None
    tls_ca: Annotated[
        str | None, Setting("The file of the authority that signs the certificates of the nodes, and no others.")
    ] = None
    session_timeout_s: Annotated[
        float,
        Setting(
            "A node that has written nothing to Kafka or ZooKeeper for this long counts as dead, and other nodes take "
            "its shards. In ZooKeeper it is also the session timeout.",
            1,
            300,
        ),
    ] = 10.0
    silence_s: Annotated[
        float,
        Setting(
            "A node whose link has been silent for this long also counts as dead. A process that pauses for a second "
            "less keeps its shards.",
            1,
            60,
        ),
    ] = 3.0
    proof_s: Annotated[
        float,
        Setting(
            "How long a commit proves that a node owns its shard. After a crash the next owner waits this long.",
            0.25,
            2,
        ),
    ] = 1.5
    move_pause_s: Annotated[float, Setting("The shortest time between two moves that balance the load.", 0, 86_400)] = (
        5.0
    )

    def __repr__(self) -> str:
        return f"ClusterSettings({self.name!r}, shards={self.shards})"

    @property
    def topic_prefix(self) -> str:
        """What the names of the topics begin with."""
        return self.prefix or self.name

    @property
    def node_name(self) -> str:
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
        if self.link_address is not None:
            parse_address(self.link_address, "[cluster] link_address")
        if len({self.tls_certificate is None, self.tls_key is None, self.tls_ca is None}) > 1:
            raise InvalidSettings("[cluster] tls_certificate, tls_key and tls_ca go together: give all, or none")
        if self.open_secret() is None and not is_loopback(self.link_host):
            raise InvalidSettings(
                f"[cluster] link_host {self.link_host!r} can be reached from other machines, and there is no secret: "
                "give the same secret, secret_env or secret_file at every node"
            )


KafkaValue = str | int | float | bool


class KafkaSettings(_Section, frozen=True):
    """How nodes reach Kafka, and how many copies it keeps. See docs/cluster.md."""

    bootstrap: Annotated[str, Setting("HOST:PORT of some brokers, with commas between them.", flag="--bootstrap")] = (
        "127.0.0.1:9092"
    )
    replication_factor: Annotated[
        int, Setting("How many brokers have a copy of each message. Topics with fewer copies are refused.", 1, 32_767)
    ] = 3
    min_insync_replicas: Annotated[
        int, Setting("How many brokers must have a message before it is acknowledged.", 1, 32_767)
    ] = 2
    commit_timeout_s: Annotated[
        float,
        Setting(
            "How long a commit may take. After that, the shard is closed and opened again. It should be at least three "
            "times the brokers' `broker.session.timeout.ms` (9 s by default), the time Kafka needs for a new leader.",
            1,
            300,
        ),
    ] = 30.0
    message_bytes_max: Annotated[
        int,
        Setting("The largest message of the topics. Larger values are split.", 16 * 1024, 64 * 1024 * 1024),
    ] = 4 * 1024 * 1024
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"], Setting("How the topics are compressed.")
    ] = "lz4"
    properties: Annotated[
        dict[str, KafkaValue],
        Setting(
            'Properties for librdkafka, such as `"security.protocol" = "SASL_SSL"`. They are never logged.',
            is_secret=True,
        ),
    ] = {}
    properties_env: Annotated[
        dict[str, str],
        Setting('Properties whose values are in environment variables: `"sasl.password" = "KAFKA_PASSWORD"`.'),
    ] = {}
    properties_file: Annotated[dict[str, str], Setting("Properties whose values are in files.")] = {}
    topic_properties: Annotated[
        dict[str, KafkaValue],
        Setting('Properties for new topics, such as `"segment.bytes" = 67108864`. They override those of Penstock.'),
    ] = {}

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
            raise InvalidSettings(
                f"[kafka] {name!r} is in two of properties, properties_env and properties_file: give it once"
            )

    def check(self) -> None:
        """Raise `InvalidSettings` for the first thing that cannot be followed."""
        addresses = [address.strip() for address in self.bootstrap.split(",")]
        for address in addresses:
            parse_address(address, "[kafka] bootstrap")
        in_sync_max = max(1, self.replication_factor - 1)
        if not 1 <= self.min_insync_replicas <= in_sync_max:
            raise InvalidSettings(
                f"[kafka] min_insync_replicas is {self.min_insync_replicas}: with replication_factor "
                f"{self.replication_factor} it must be from 1 to {in_sync_max}, so that one broker may stop"
            )
        for name in self.open_properties():
            if name in RESERVED_PROPERTIES:
                raise InvalidSettings(f"[kafka] properties has {name!r}: Penstock sets that itself")


class Allowance(_Section, frozen=True):
    """Rights on queues: a `[[credentials.allow]]` table."""

    rights: list[Right]
    queues: str | list[str] = "*"


class ZooKeeperSettings(_Section, frozen=True):
    """How nodes reach ZooKeeper. See docs/zookeeper.md."""

    hosts: Annotated[str, Setting("HOST:PORT of the servers, with commas between them.", flag="--zookeeper")] = (
        "127.0.0.1:2181"
    )
    user: Annotated[
        str, Setting("The user of the nodes (digest). Only this user may read and write the znodes. Empty: anyone.")
    ] = ""
    password: Annotated[str | None, Setting("The user's password.", is_secret=True)] = None
    password_env: Annotated[str | None, Setting("The environment variable that holds the password.")] = None
    password_file: Annotated[str | None, Setting("The file that holds the password.")] = None
    tls: Annotated[bool, Setting("Connect to the servers with TLS, at their secure ports.")] = False
    tls_ca: Annotated[
        str | None,
        Setting("The file of the authority that signs the servers' certificates. None: the machine's authorities."),
    ] = None
    tls_certificate: Annotated[str | None, Setting("The file of the nodes' certificate, if servers ask for one.")] = (
        None
    )
    tls_key: Annotated[str | None, Setting("The file of its key.")] = None
    commit_timeout_s: Annotated[
        float, Setting("How long a commit may take. After that, the shard is closed and opened again.", 1, 300)
    ] = 15.0
    shard_bytes_max: Annotated[
        int,
        Setting(
            "The most bytes that the messages of a shard may have. Sends above it are refused.",
            1024 * 1024,
            4 * 1024 * 1024 * 1024,
        ),
    ] = 64 * 1024 * 1024

    def __repr__(self) -> str:
        return f"ZooKeeperSettings({self.hosts!r})"

    def open_password(self) -> str:
        """The password, fetched from where it is kept; "" if there is none."""
        secret = _kept_secret(self, "password", "[zookeeper]")
        return "" if secret is None else secret.reveal()

    def check(self) -> None:
        """Raise `InvalidSettings` for the first thing that cannot be followed."""
        for address in self.hosts.split(","):
            parse_address(address.strip(), "[zookeeper] hosts")
        if bool(self.user) != bool(self.open_password()):
            raise InvalidSettings("[zookeeper] user and password go together: give both, or neither")
        if ":" in self.user:
            raise InvalidSettings("[zookeeper] user: a user has no colon in its name")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidSettings("[zookeeper] tls_certificate and tls_key go together: give both, or neither")
        if not self.tls and (self.tls_ca or self.tls_certificate):
            raise InvalidSettings("[zookeeper] tls_ca and tls_certificate need tls = true")


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
    account: str | None = None
    """Its AWS account, 12 digits, where SQS has many of them."""
    allow: list[Allowance] | None = None
    user: str | None = None
    """A name that a person logs in with at the console, beside the access key."""
    password: str | None = None
    password_env: str | None = None
    password_file: str | None = None

    def __repr__(self) -> str:
        return f"CredentialSettings({self.access_key!r})"


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
    sns: SnsSettings = SnsSettings()
    nsq: NsqSettings = NsqSettings()
    lookup: LookupSettings = LookupSettings()
    rest: RestSettings = RestSettings()
    websocket: WebsocketSettings = WebsocketSettings()
    metrics: MetricsSettings = MetricsSettings()
    history: HistorySettings = HistorySettings()
    console: ConsoleSettings = ConsoleSettings()
    audit: AuditSettings = AuditSettings()
    log: LogSettings = LogSettings()
    events: EventSettings = EventSettings()
    cluster: ClusterSettings = ClusterSettings()
    kafka: KafkaSettings = KafkaSettings()
    zookeeper: ZooKeeperSettings = ZooKeeperSettings()
    credentials: list[CredentialSettings] = []
    queues: list[DeclaredQueue] = []

    def overridden(self, section: str, **overrides: Any) -> Settings:
        """These settings, with some of a section's overridden: those that are not None.

        >>> Settings().overridden("server", sqs_port=0, host=None).server.sqs_port
        0
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        return msgspec.structs.replace(self, **{section: msgspec.structs.replace(getattr(self, section), **given)})

    def taking(self, others: Settings) -> tuple[Settings, list[str], list[str]]:
        """These settings, with what a running server can take of others; what of that is new; and what takes a restart.

        >>> before, wanted = parse("[http]\\nconnections_max = 5"), parse("[server]\\nsqs_port = 1")
        >>> after, new, later = before.taking(wanted)
        >>> after.http.connections_max, after.server.sqs_port, new, later
        (10000, 9324, ['[http] connections_max'], ['[server] sqs_port'])
        """
        taken: dict[str, Any] = {"credentials": others.credentials}
        new, later = [], []
        for title, struct in SECTIONS.items():
            here, there = getattr(self, title), getattr(others, title)
            live = {}
            for each in declared(struct).values():
                name = each.field
                was, wanted = getattr(here, name), getattr(there, name)
                if was == wanted:
                    continue
                # to be limited at all, or no longer, is decided when front ends are made
                if each.setting.live and (was is None) == (wanted is None):
                    live[name] = wanted
                    new.append(f"[{title}] {name}")
                else:
                    later.append(f"[{title}] {name}")
            taken[title] = msgspec.structs.replace(here, **live)
        if self.queues != others.queues:
            later.append("[[queues]]")
        return msgspec.structs.replace(self, **taken), new, later

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

    def zookeeper_options(self) -> ZooKeeperOptions:
        """What the store has to know of the cluster and of ZooKeeper."""
        cluster, zookeeper = self.cluster, self.zookeeper
        return ZooKeeperOptions(
            hosts=zookeeper.hosts,
            cluster=cluster.name,
            shards=cluster.shards,
            session_timeout_s=cluster.session_timeout_s,
            commit_timeout_s=zookeeper.commit_timeout_s,
            shard_bytes_max=zookeeper.shard_bytes_max,
            user=zookeeper.user,
            password=zookeeper.open_password(),
            is_encrypted=zookeeper.tls,
            tls_ca=zookeeper.tls_ca,
            tls_certificate=zookeeper.tls_certificate,
            tls_key=zookeeper.tls_key,
        )

    def check(self) -> None:
        """Raise `InvalidSettings` for the first thing that cannot be followed."""
        for name in SECTIONS:
            getattr(self, name).check_settings(f"[{name}]")
        if not self.server.data:
            raise InvalidSettings("[server] data is empty: '.' is the current directory. Is a variable unset?")
        self.server.check_hosts()
        if (self.server.tls_certificate is None) != (self.server.tls_key is None):
            raise InvalidSettings("[server] tls_certificate and tls_key go together: give both, or neither")
        if not is_account(self.sqs.account):
            raise InvalidSettings(f"[sqs] account is {self.sqs.account!r}: an account has 12 digits")
        self.sns.check()
        self._check_nsq()
        self._check_rest()
        self.metrics.check()
        self.console.check()
        self._check_events()
        self._check_queues()
        self._check_exposure()
        if self.server.engine in CLUSTER_CLIENTS:
            _need_client(self.server.engine)
            if self.server.engine == "kafka" and self.server.data == MEMORY:
                raise InvalidSettings("[server] data: a node on Kafka needs a directory for what it caches")
            self.cluster.check()
            getattr(self, self.server.engine).check()

    def _check_nsq(self) -> None:
        nsq = self.nsq
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
            rule.check_settings("[[nsq.handshake]]")

    def _check_rest(self) -> None:
        for origin in self.rest.cors_origins:
            scheme, found, rest = origin.partition("://")
            if origin != "*" and (scheme not in ("http", "https") or not found or not rest or "/" in rest):
                raise InvalidSettings(
                    f"[rest] cors_origins has {origin!r}: an origin is scheme://host or scheme://host:port"
                )

    def _check_events(self) -> None:
        events = self.events
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
        users: set[str] = set()
        for each in self.credentials:
            if each.access_key in found:
                raise InvalidSettings(f"the access key {each.access_key!r} is given twice")
            credential = found[each.access_key] = _credential(each)
            if credential.token is not None:
                if credential.token.reveal() in tokens:
                    raise InvalidSettings(f"the token of {each.access_key!r} is another credential's token, too")
                tokens.add(credential.token.reveal())
            if credential.user is not None:
                if credential.user in users or credential.user in found:
                    raise InvalidSettings(f"the user {credential.user!r} is given twice, or is also an access key")
                users.add(credential.user)
        return Credentials(found.values())


SECTIONS: dict[str, type[_Section]] = {
    name: struct for name, struct in typing.get_type_hints(Settings).items() if isinstance(struct, type)
}
"""The tables of penstock.toml that are there once, by their names."""


def is_account(text: str) -> bool:
    """Whether a text can be the number of an AWS account.

    >>> is_account("123456789012"), is_account("AKIAEXAMPLE")
    (True, False)
    """
    return len(text) == 12 and text.isdigit() and text.isascii()


CLUSTER_CLIENTS = {"kafka": ("Kafka", "confluent_kafka"), "zookeeper": ("ZooKeeper", "kazoo")}
"""The engines of nodes that are some of many, the name of each, and the library that it needs."""


def _need_client(engine: str) -> None:
    name, library = CLUSTER_CLIENTS[engine]
    if importlib.util.find_spec(library) is None:
        raise InvalidSettings(
            f"[server] engine is {engine!r}, which needs {name}'s client: pip install 'penstock-mq[{engine}]'"
        )


def events_config(events: EventSettings) -> QueueConfig:
    """The configuration of the events queue: it keeps what it gets, up to its limits."""
    limits = {"retention_ms": round(events.retention_s * SECOND_MS), "retention_bytes": events.retention_bytes}
    return QueueConfig().changed({**limits, "max_receives": 0})


def _credential(settings: CredentialSettings) -> Credential:
    grants = [Grant()] if settings.allow is None else [_grant(allowance) for allowance in settings.allow]
    where = f"the credentials of {settings.access_key!r}"
    account = settings.account or ""
    if account and not is_account(account):
        raise InvalidSettings(f"{where}: account is {account!r}: an account has 12 digits")
    principal = Principal(settings.name or settings.access_key, settings.access_key, grants, account=account)
    if not settings.access_key:
        raise InvalidSettings(f"{where}: neither the access key nor the secret may be empty")
    token = _kept_secret(settings, "token", where)
    secret = _kept_secret(settings, "secret_key", where)
    password = _kept_secret(settings, "password", where)
    if (settings.user is None) != (password is None) or settings.user == "":
        raise InvalidSettings(f"{where}: user and password go together: give both, or neither")
    if secret is None:
        if token is None and password is None:
            raise InvalidSettings(f"{where}: give one of secret_key, secret_key_env and secret_key_file, or a token")
        secret = Secret(os.urandom(_UNKNOWN_SECRET_BYTES).hex())  # nobody knows it: only the token opens
    return Credential(settings.access_key, secret, principal, token, settings.user, password)


def _grant(allowance: Allowance) -> Grant:
    queues = [allowance.queues] if isinstance(allowance.queues, str) else allowance.queues
    return Grant(tuple(queues), tuple(allowance.rights))


def _kept_secret(
    settings: CredentialSettings | ClusterSettings | ZooKeeperSettings, name: str, where: str
) -> Secret | None:
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


def _reason(error: OSError | ValueError) -> str:
    return str((isinstance(error, OSError) and error.strerror) or error)


def _read_secret(path: Path, where: str) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:  # no text, or no path
        raise InvalidSettings(f"{where}: the secret cannot be read from {path}: {_reason(error)}") from None


def check_files(settings: _Section, title: str, *names: str) -> None:
    """Raise `InvalidSettings` for the first setting that names a file which cannot be read."""
    for name in names:
        try:
            Path(getattr(settings, name)).open("rb").close()
        except (OSError, ValueError) as error:
            path = getattr(settings, name)
            raise InvalidSettings(f"{title} {name}: {path} cannot be read: {_reason(error)}") from None


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
    except (OSError, UnicodeError) as error:
        raise InvalidSettings(f"[server] host is {host!r}, which is not an address of this machine: {error}") from None
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)


# -- the file ----------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> Settings:
    """The settings of a file. Not yet checked: flags may change them."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{os.fspath(path)} cannot be read: {_reason(error)}") from None
    return parse(text, os.fspath(path))


def parse(text: str, name: str = "penstock.toml") -> Settings:
    """The settings of a file's text.

    >>> parse('[server]\\nsqs_prot = 1')
    Traceback (most recent call last):
        ...
    penstock.server.settings.InvalidSettings: penstock.toml: [server] has no key 'sqs_prot' (did you mean ...
    """
    try:
        raw = tomllib.loads(text)
    except RecursionError:
        raise InvalidSettings(f"{name} is not TOML: it is nested too deeply") from None
    except ValueError as error:  # also of numbers with thousands of digits
        raise InvalidSettings(f"{name} is not TOML: {error}{_quotes_missing(text, str(error))}") from None
    _check_keys(raw, Settings, name, "the file")
    for title, table in raw.items():
        if title in SECTIONS and isinstance(table, dict):
            settings = declared(SECTIONS[title])
            for key in table.keys() & settings.keys():
                table[key] = checked(settings[key], table[key], f"{name}: [{title}] {key}")
    try:
        return msgspec.convert(raw, Settings)
    except msgspec.ValidationError as error:
        known = f". Its values are {', '.join(RIGHTS)}" if ".rights[" in str(error) else ""
        raise InvalidSettings(f"{name}: {str(error).replace('`$.', '`')}{known}") from None


def _quotes_missing(text: str, error: str) -> str:
    """What to write, if the line that is no TOML has a text without quotes.

    >>> _quotes_missing("host = 0.0.0.0", "Expected newline (at line 1, column 11)")
    '. A text needs quotes: host = "0.0.0.0"'
    """
    at = re.search(r"at line (\d+)", error)
    lines = text.splitlines()
    line = lines[int(at[1]) - 1] if at and int(at[1]) <= len(lines) else ""
    bare = re.fullmatch(r"""\s*([\w-]+)\s*=\s*([^\s"'\[{#][^\s"'#]*)\s*(#.*)?""", line)
    return f'. A text needs quotes: {bare[1]} = "{bare[2]}"' if bare else ""


def _check_keys(raw: Any, shape: type[msgspec.Struct], name: str, where: str) -> None:
    """Name the first key that the shape does not have, and the ones that it has."""
    if not isinstance(raw, dict):
        return
    hints = typing.get_type_hints(shape)
    for key, value in raw.items():
        if key not in shape.__struct_fields__:
            known = ", ".join(shape.__struct_fields__)
            near = difflib.get_close_matches(key, shape.__struct_fields__, 1)
            guess = f" (did you mean {near[0]!r}?)" if near else ""
            if key in GONE:
                gone = key if where == "the file" else f"{where} {key}"
                raise InvalidSettings(f"{name}: {gone} is gone: {GONE[key]}")
            raise InvalidSettings(f"{name}: {where} has no key {key!r}{guess}; its keys are: {known}")
        inner = _struct_in(hints[key])
        if inner is not None:
            within = where.strip("[]") + "." if where.startswith("[") else ""
            is_list = "list[" in str(hints[key])
            if isinstance(value, list | dict) and is_list != isinstance(value, list):
                wanted = f"[[{within}{key}]]" if is_list else f"[{within}{key}]"
                given = f"[{within}{key}]" if is_list else f"[[{within}{key}]]"
                raise InvalidSettings(f"{name}: {given} is wrong: write {wanted}")
            for number, each in enumerate(value if isinstance(value, list) else [value], 1):
                title = f"[[{within}{key}]]" if isinstance(value, list) else f"[{within}{key}]"
                _check_keys(each, inner, name, title)
                for field in msgspec.structs.fields(inner) if isinstance(each, dict) else ():
                    if field.required and field.name not in each:
                        raise InvalidSettings(f"{name}: {title} number {number} has no {field.name!r}: it needs one")


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """The struct that a field holds, alone, in a list, or perhaps."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    found = [_struct_in(argument) for argument in typing.get_args(hint)]
    return next((struct for struct in found if struct is not None), None)
