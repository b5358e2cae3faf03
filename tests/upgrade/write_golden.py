"""Write an example of everything that is stored or travels, as the build that this runs with has it.

    python write_golden.py DIRECTORY

    commands.json        what clients ask, command by command      replies.json    what they are answered
    node-commands.json   what nodes ask each other                 greetings.json  how nodes introduce themselves
    records.json         every kind of state record, and chunks    kafka.json      the topics' messages
    settings.json        what can be set of a queue                tokens.json     receipts, session handles, ids
    spark.json           a stream's offsets, a staged piece        files.json      small files: of shards, of pipelines
    sns.json             topics and subscriptions in labels        arrow.json      a stream of Arrow batches
    outbox.sql           the outbox and inbox in a database        directory.txz   a data directory: journal and table

Uses only what every build has had since the first. All but the last three come out the same each time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import numpy as np

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.errors import ChunkDamaged, PenstockError, QueueNotFound
from penstock.core.packed_error import pack_error
from penstock.pipelines.checkpoints import signature
from penstock.pipelines.definition import QUEUE, Output, Pipeline, Source, View
from penstock.pipelines.errors import Place
from penstock.server.auth import ANYBODY
from penstock.spark.offsets import QueuePosition, StreamOffset
from penstock.store.journal.kafka_records import Marker, Splits
from penstock.store.kafka import POSITION_VERSION, CachePosition, write_position
from penstock.store.memory import MemoryStore
from penstock.wire import answers, arrow, pieces, requests


def moved(*names: str) -> Any:
    """A module that has had several names: the first of them that this build has."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(f"penstock.{name}")
    raise ModuleNotFoundError(names)


frames = moved("wire.links", "cluster.links.frames", "cluster.frames")
ledger = moved("cluster.membership.ledger", "cluster.ledger")
node_wire = moved("cluster.links.wire", "cluster.wire")
Claim = moved("cluster.ownership.ownership", "cluster.claim").Claim
keys = moved("core.storage.keys", "core.keys")
Kind = keys.Kind
Changes = moved("core.storage.changes", "core.changes").Changes
Chunk = moved("core.storage.chunk", "core.chunk").Chunk
Backoff, QueueConfig = (
    getattr(moved("core.queues.config", "core.config"), name) for name in ("Backoff", "QueueConfig")
)
encode_attributes = moved("core.queues.attributes", "core.attributes").encode_attributes
message_id = moved("core.identity", "core.delivery.receipt").message_id
partition_of = moved("core.queues.partition", "core.partition").partition_of
Receipt = moved("core.delivery.receipt", "core.receipt").Receipt
session_handle = moved("protocols.websocket.handles", "protocols.websocket.admission").session_handle

NOW_MS = 1_700_000_000_000
KEY = bytes(range(16))
CHUNK = b"".join(Chunk.of(5, NOW_MS, [b"one", b"two"]).parts())
SETTINGS = QueueConfig(lease_ms=5_000, backoff=Backoff("linear", base_ms=200), tags={"team": "tea"})


# -- examples of types -------------------------------------------------------------------------------------------------


def example(kind: Any) -> Any:
    """A value of a type, always the same one."""
    known: dict[Any, Any] = {int: 7, str: "text", bytes: b"bytes", bool: True, float: 1.5, Any: None, type(None): None}
    if kind in known:
        return known[kind]
    if kind is memoryview:
        return CHUNK
    if kind is QueueConfig:
        return SETTINGS
    if kind is PenstockError:
        return QueueNotFound("there is no queue 'x'")
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return example(next(each for each in arguments if each is not type(None)))
    if origin is typing.Literal:
        return arguments[0]
    if origin is list:
        return [example(arguments[0])]
    if origin is tuple:
        return tuple(example(each) for each in arguments if each is not ...)
    if origin is dict:
        return {example(arguments[0]): example(arguments[1])}
    if origin is np.ndarray:
        return np.asarray([3, 4], dtype="<i8")
    if issubclass(kind, Enum):
        return next(iter(kind))
    if issubclass(kind, msgspec.Struct):
        return kind(**{each.name: example(each.type) for each in msgspec.structs.fields(kind)})
    return kind(*(example(each) for each in typing.get_type_hints(kind).values()))  # a NamedTuple


# -- wire --------------------------------------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """Client commands: their fields in order, and a frame with an example of each."""
    kinds = (*requests.COMMANDS, *requests.CONVERSATION)
    return {
        kind.__name__: {
            "fields": list(kind.__struct_fields__),
            "frame": requests.encode_requests([(1, example(kind))]).hex(),
        }
        for kind in kinds
    }


def node_commands() -> dict[str, Any]:
    """The same for nodes."""
    return {
        kind.__name__: {
            "fields": list(kind.__struct_fields__),
            "frame": node_wire.encode_commands([(1, 2, example(kind), 3)], [4]).hex(),
        }
        for kind in node_wire.COMMANDS
    }


def replies_of(module: Any) -> dict[Any, Any]:
    """What commands are answered with, on the wire. The first build keeps a table of it."""
    if hasattr(module, "REPLIES"):
        return dict(module.REPLIES)
    public = [kind for kind in c.COMMANDS if kind.traits.public]
    kinds = [kind for kind in (module.COMMANDS if module is node_wire else public) if kind.traits.reply is not None]
    more = {} if module is node_wire else {requests.Hello: answers.Welcome}
    return {**{kind: answers.reply_on_wire(kind) for kind in kinds}, **more}


def replies() -> dict[str, Any]:
    """Answers: a frame with the reply to each command, an error, and where a command belongs."""
    found: dict[str, Any] = {}
    for kind, reply in replies_of(node_wire).items():
        found[f"node {kind.__name__}"] = node_wire.encode_replies([(1, 0, example(reply))]).hex()
    for kind, reply in replies_of(answers).items():
        found[kind.__name__] = answers.encode_answers(NOW_MS, [(1, 0, example(reply))]).hex()
    error = pack_error(QueueNotFound("there is no queue 'x'"))
    found["error"] = answers.encode_answers(NOW_MS, [(1, answers.Kind.ERROR, error)]).hex()
    found["moved"] = answers.encode_answers(NOW_MS, [(1, answers.Kind.MOVED, example(answers.Moved))]).hex()
    return found


def greetings() -> dict[str, Any]:
    """How nodes introduce themselves, in the oldest version that this build speaks."""
    is_first = not hasattr(frames, "VERSIONS")
    versions = (frames.VERSION, frames.VERSION) if is_first else tuple(frames.VERSIONS)  # type: ignore[attr-defined]
    more = () if is_first else (versions[0],)
    greeting = frames.Greeting("tea", "a", KEY * 2, *(() if is_first else (versions[1],)))
    named = {name: getattr(frames, name, None) for name in ("Introduction", "Admission", "introduce")}
    hello = (named["Introduction"] or frames.Hello)("tea", "b", KEY, KEY * 2, b"")
    proof = (more and [versions[0]]) or []
    shown = frames.client_proof(b"secret", *proof, greeting, hello)  # type: ignore[call-arg]
    proven = msgspec.structs.replace(hello, proof=shown)
    answered = frames.server_proof(b"secret", *proof, greeting, hello)  # type: ignore[call-arg]
    welcome = (named["Admission"] or frames.Welcome)(answered, 1_000_000, 500)
    introduce, kinds = named["introduce"] or frames.introduction, list(frames.FrameKind)
    return {
        "versions": versions,
        "greeting": introduce(kinds[0], greeting, *more).hex(),
        "hello": introduce(kinds[1], proven, *more).hex(),
        "welcome": frames.frame(kinds[2], msgspec.msgpack.encode(welcome)).hex(),
    }


def settings() -> list[str]:
    """The settings of a queue."""
    return list(QueueConfig.__struct_fields__)


def tokens() -> dict[str, Any]:
    """What clients keep and show again."""
    return {
        "receipt": Receipt(7, 1, 1_234, 2).seal(KEY),
        "session": session_handle(KEY, ANYBODY, 7),
        "message id": message_id(99, 7, 1_234),
    }


def spark() -> dict[str, Any]:
    """What Spark's checkpoints have of ours, and what tasks stage."""
    queues = {"orders": QueuePosition((120,), 7, (80,)), "wide": QueuePosition((1, 2), 8, (0, 1))}
    sections = [
        (pieces.Target("orders"), Chunk.of(0, 0, [b"one", b"two"])),
        (pieces.Target("late", 3, 5), Chunk.of(0, 0, [b"x"])),
    ]
    return {"offsets": StreamOffset("spark", queues).encode(), "piece": pieces.piece_bytes(sections).hex()}


# -- stored ------------------------------------------------------------------------------------------------------------


def sales() -> Pipeline:
    """A pipeline whose checkpoints are of something."""
    place, queue = Place("sales.yaml"), {"subscribe": "orders"}
    return Pipeline(
        "sales",
        Path("sales.yaml"),
        {"orders": Source("orders", place, QUEUE, queue)},
        {"counts": View("counts", place, ("orders",), sql="SELECT key, count(*) FROM orders GROUP BY key")},
        {"totals": Output("totals", place, "counts", "parquet", "totals")},
    )


def files() -> dict[str, Any]:
    """Small files: what a directory of several shards says of itself, how far a cache of Kafka has got, and of what the
    checkpoints of a pipeline are."""
    cluster = moved("cluster.workers", "store.sharded", "store.layout").ClusterFile(1, 2, bytes(range(64)), bytes(32))
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        write_position(home, CachePosition(POSITION_VERSION, "k", "d", "o", 1, 2, 3, 4, 5.0, {b"chunk": 2}, {b"r": 3}))
        position = (home / "position").read_bytes().hex()
    return {
        "cluster": msgspec.json.encode(cluster).decode(),
        "position": position,
        "pipeline": {query: signature(sales(), query) for query in sales().queries},
    }


def sns() -> dict[str, str]:
    """What is kept of a topic and a subscription, as it stands in the labels of the topic's queue. Not in the first
    build."""
    topics = importlib.import_module("penstock.protocols.sns.topics")
    replay = topics.Replay(id="r1", start_ms=NOW_MS, stop=9)
    subscription = topics.Subscription(
        "sqs",
        "arn:aws:sqs:us-east-1:0:orders",
        "orders",
        "http://localhost:9324",
        attributes={"RawMessageDelivery": "true"},
    )
    return {
        "topic": topics.encoded(topics.Topic({"DisplayName": "News"}, archived_since_ms=NOW_MS, unsubscribed=2)),
        "subscription": topics.encoded(msgspec.structs.replace(subscription, made_ms=NOW_MS, replay=replay)),
    }


def arrow_stream() -> dict[str, str]:
    """A stream of a batch, as Spark gets it. Other versions of pyarrow write other bytes."""
    groups, attributes = [None, b"g"], [encode_attributes({"kind": "tea"}), None]
    chunk = Chunk.of(5, NOW_MS, [b"one", b"two"], groups=groups, attributes=attributes)
    if hasattr(arrow, "WITH_HEADERS"):
        schema = arrow.record_schema(arrow.WITH_HEADERS)
        batch = arrow.record_batch(chunk, 0, 2, arrow.WITH_HEADERS)
    else:
        schema = arrow.record_schema(include_headers=True)  # type: ignore[call-arg]
        batch = arrow.record_batch(chunk, 0, 2, include_headers=True)  # type: ignore[call-arg]
    return {"stream": b"".join(arrow.stream_parts(schema, [batch])).hex()}


class Shard:
    """A broker over a store in memory, with a clock of its own."""

    def __init__(self) -> None:
        self.store, self.now_ms = MemoryStore(), NOW_MS
        self.broker = Broker.open(self.store, NOW_MS, bytes(range(64)), 0, 4)
        self.broker.delivers_unsynced = True

    def __call__(self, command: c.Command) -> Any:
        """A step with one command."""
        self.now_ms += 10
        reply = None
        with contextlib.suppress(ChunkDamaged):
            reply = self.broker.handle(command, self.now_ms)
        self.broker.finish(self.now_ms)
        list(self.broker.take_woken())
        changes = self.broker.take_changes()
        self.store.commit(changes)
        self.broker.committed(changes)
        return reply

    def fail(self, queue: str, times: int, **how: Any) -> None:
        """Receive a message and release it, again and again."""
        for _ in range(times):
            (run,) = self(c.Receive(queue=queue, lease_ms=60_000)).runs
            self(c.Release(queue=queue, spans=run.spans(), error="cold", **how))


def home(shard: int, stem: str) -> str:
    """A name of a queue of this shard, of four."""
    return next(name for name in (f"{stem}-{n}" for n in range(100)) if partition_of(name, 4) == shard)


def filled() -> MemoryStore:
    """Every kind of record that the core has."""
    shard = Shard()
    for name, more in (("orders", {}), ("quick", {"deliver_unsynced": True}), ("ledger.fifo", {"kind": "fifo"})):
        shard(c.CreateQueue(name=name, config=QueueConfig(lease_ms=5_000, **more)))
    shard(c.OpenSession(name="worker", ttl_ms=60_000))
    shard(c.Send(queue="orders", bodies=[b"%d" % n for n in range(20)], once=c.Once("client", 1)))
    shard(c.Send(queue="orders", bodies=[b"tomorrow"], delay_ms=86_400_000))
    shard(c.Send(queue="orders", bodies=[b"soon"], delay_ms=60_000, priority=3))
    shard(c.Send(queue="quick", bodies=[b"x"]))
    shard(c.Send(queue="ledger.fifo", bodies=[b"a", b"b"], groups=["g", "g"], dedup_ids=["1", "2"]))
    shard(c.Receive(queue="ledger.fifo", attempt_id="attempt"))
    shard(c.CreateChannel(queue="orders", channel="audit"))
    shard(c.PauseChannel(queue="orders", channel="audit"))
    shard(c.AckConsumer(queue="orders", consumer="report", offset=3))
    shard.fail("orders", 2, delay_ms=0)
    shard.fail("orders", 2, delay_ms=7_200_000)
    shard(
        c.CommitWork(acks=[], sends=[c.Send(queue=home(1, "far"), bodies=[b"far"])], send_shards=[1], mark=("spark", 7))
    )
    shard(c.CreateQueue(name="orders.dead"))
    shard(c.Send(queue="orders.dead", bodies=[b"%d" % n for n in range(5)]))
    shard(c.StartRedrive(queue="orders.dead", target="orders", per_second=1))
    shard(c.CreateQueue(name="hit"))
    shard(c.Send(queue="hit", bodies=[b"unreadable"]))
    queue_id = shard.broker.queues["hit"].id
    (key,) = shard.store.list_chunks(keys.queue_chunks(queue_id), b"", 10)
    broken = bytes(shard.store.read_chunk(key))[:-1] + b"!"
    spoilt = Changes()
    spoilt.chunks[key] = types.SimpleNamespace(parts=lambda: [broken], nbytes=len(broken))  # type: ignore[assignment]
    shard.store.commit(spoilt)
    shard.broker = Broker.open(shard.store, shard.now_ms, b"", 0, 4)
    shard.broker.delivers_unsynced = True
    shard(c.Receive(queue="hit"))
    if not hasattr(c, "StageWork"):  # the first build
        return shard.store
    send = c.Send(queue="quick", bodies=[b"one", b"two"])
    stage = shard(c.StageWork(name="spark", sends=[send], send_shards=[0])).stage
    shard(c.CommitWork(acks=[], sends=[], mark=("spark", 8), stage=stage))
    shard(c.StageWork(name="spark", sends=[send], send_shards=[0]))  # never committed
    return shard.store


def records() -> dict[str, Any]:
    """State records by kind, and chunks."""
    store = filled()
    found = {kind.name: {key.hex(): bytes(value).hex() for key, value in store.scan(bytes([kind]))} for kind in Kind}
    chunks = {key.hex(): bytes(store.read_chunk(key)).hex() for key in store.list_chunks(b"", b"", 1_000)}
    return {**found, "chunks": chunks}


def kafka() -> dict[str, Any]:
    """A commit's messages, a shard's claim, and the records of the partitions topic."""
    splits = Splits()
    messages = list(splits.messages({b"key": b"value", b"large": bytes(2_500), b"gone": None}, 7, 2_049))
    kinds = [*ledger._BY_NUMBER.items(), *ledger._BY_NAME.items(), *ledger._ALONE.items()]
    told = {name: ledger.encode(msgspec.structs.replace(example(kind), v=1)).decode() for name, kind in kinds}
    return {
        "messages": [[key.hex(), None if value is None else value.hex()] for key, value in messages],
        "marker": Marker(7, KEY, has_data=True).encode().hex(),
        "claim": msgspec.msgpack.encode(Claim(1, 7, "a", True)).hex(),
        "partitions": told,
    }


def outbox() -> str:
    """The user's database: tables, and rows that wait."""
    from sqlalchemy import create_engine

    from penstock.outbox import Inbox, Outbox

    with tempfile.TemporaryDirectory() as directory:
        engine = create_engine(f"sqlite:///{directory}/tea.sqlite")
        box, inbox = Outbox(), Inbox()
        box.metadata.create_all(engine)
        inbox.metadata.create_all(engine)
        with engine.begin() as connection:
            box.send(connection, "orders", b"two teas", attributes={"table": 7}, priority=3)
            box.send(connection, "ledger.fifo", b"entry", group="anna", dedup_id="1")
            inbox.once(connection, "order 1", consumer="billing")
        engine.dispose()
        with sqlite3.connect(f"{directory}/tea.sqlite") as database:
            return "\n".join(database.iterdump()) + "\n"


def directory(target: Path) -> dict[str, Any]:
    """A data directory after a crash, packed; and what `fill.py` says that it holds."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, str(Path(__file__).with_name("fill.py")), f"{name}/data"]
        told = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
        with tarfile.open(target, "w:xz") as packed:
            packed.add(f"{name}/data", "data")
    return dict(json.loads(told.splitlines()[-1]))


PURE = {
    "commands": commands,
    "node-commands": node_commands,
    "replies": replies,
    "greetings": greetings,
    "records": records,
    "kafka": kafka,
    "settings": settings,
    "tokens": tokens,
    "spark": spark,
    "files": files,
    "sns": sns,
}
"""What comes out the same each time."""

if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    for name, make in PURE.items() | {"arrow": arrow_stream}.items():
        with contextlib.suppress(ModuleNotFoundError):  # it came later
            (where / f"{name}.json").write_text(json.dumps(make(), indent=1) + "\n")
    (where / "outbox.sql").write_text(outbox())
    (where / "directory.json").write_text(json.dumps(directory(where / "directory.txz"), indent=1) + "\n")
    print(json.dumps("written"))
