"""What earlier builds have stored and sent, kept as files, is read by this one; and this one writes what its files say.

`golden/3e7ad4e` was written by the first build, `golden/current` by the build that changed a format last: see
`docs/upgrading.md` for what to do when a test here says that a format has changed.
"""

from __future__ import annotations

import json
import re
import sqlite3
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import create_engine

import penstock
from penstock.cluster.links import wire as node_wire
from penstock.cluster.membership import ledger
from penstock.cluster.ownership.ownership import Claim, _decode
from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.delivery.receipt import Receipt, open_message_id
from penstock.core.storage.changes import Changes
from penstock.core.storage.keys import Kind
from penstock.outbox import Inbox, Outbox, Relay
from penstock.pipelines.checkpoints import State
from penstock.protocols.sns import topics
from penstock.protocols.websocket.admission import session_number
from penstock.server.auth import ANYBODY
from penstock.spark.offsets import QueuePosition, StreamOffset
from penstock.store.journal.kafka_records import MARKER_KEY, Assembly, Marker
from penstock.store.kafka import read_position
from penstock.store.memory import MemoryStore
from penstock.store.sharded import ClusterFile, read_cluster_file
from penstock.wire import answers, arrow, pieces, requests
from penstock.wire import links as frames
from tests.core.driver import Raw, bodies_of
from tests.upgrade import builds, write_golden
from tests.upgrade.write_golden import KEY, NOW_MS, PURE, example, replies_of

GOLDEN = Path(__file__).parent / "golden"
BUILDS = ("3e7ad4e", "current")
CHANGED = "the format has changed: raise its version, and write golden/current anew (docs/upgrading.md)"

GONE = {"AskNode"}
"""What only processes of one node asked each other (`serve --workers`, which is gone)."""

both = pytest.mark.parametrize("build", BUILDS)


def golden(build: str, name: str) -> Any:
    """What a build has written."""
    return json.loads((GOLDEN / build / f"{name}.json").read_text())


@pytest.mark.parametrize("name", PURE)
def test_this_build_writes_what_its_golden_files_say(name: str) -> None:
    assert json.loads(json.dumps(PURE[name]())) == golden("current", name), CHANGED


@pytest.mark.parametrize("name", ["commands", "node-commands"])
def test_a_command_gets_new_fields_at_its_end_only(name: str) -> None:
    first, now = golden("3e7ad4e", name), golden("current", name)
    assert first.keys() - now.keys() <= GONE
    for command, known in first.items():
        if command in GONE:
            continue
        assert now[command]["fields"][: len(known["fields"])] == known["fields"], command


def test_what_nodes_ask_each_other_only_in_a_later_version_is_known_to_be_so() -> None:
    first, now = golden("3e7ad4e", "node-commands"), golden("current", "node-commands")
    assert {kind.__name__ for kind in node_wire.SINCE} == now.keys() - first.keys()


def test_settings_that_the_first_build_does_not_have_are_known_to_be_later() -> None:
    first, now = golden("3e7ad4e", "settings"), golden("current", "settings")
    assert node_wire.SETTINGS_SINCE.keys() == {*now} - {*first} and not {*first} - {*now}


# -- wire --------------------------------------------------------------------------------------------------------------


@both
def test_client_commands_are_read(build: str) -> None:
    kinds = {kind.__name__: kind for kind in (*requests.COMMANDS, *requests.CONVERSATION)}
    for name, known in golden(build, "commands").items():
        ((number, command),) = requests.decode_requests(bytes.fromhex(known["frame"]))
        assert (number, type(command)) == (1, kinds[name]), command
        expected = example(kinds[name])
        assert all(same(getattr(command, field), getattr(expected, field)) for field in known["fields"]), name


@both
def test_node_commands_are_read(build: str) -> None:
    kinds = {kind.__name__: kind for kind in node_wire.COMMANDS}
    for name, known in golden(build, "node-commands").items():
        if name in GONE:
            continue
        ((found,), withdrawn) = node_wire.decode_commands(bytes.fromhex(known["frame"]))
        number, shard, command, caller = found
        assert (number, shard, caller, withdrawn) == (1, 2, 3, [4])
        assert type(command) is kinds[name], command
        expected = example(kinds[name])
        assert all(same(getattr(command, field), getattr(expected, field)) for field in known["fields"]), name


_LATER = re.compile(r", in_time=(True|False)")


def same(found: Any, expected: Any) -> bool:
    """Arrays of numbers, and errors, compare by what they say; commands within others without what came later."""
    return _LATER.sub("", str(found)) == _LATER.sub("", str(expected))


@both
def test_answers_are_read(build: str) -> None:
    known = golden(build, "replies")
    for kind in replies_of(answers):
        if kind.__name__ not in known:
            assert build != "current", f"{kind.__name__}: {CHANGED}"
            continue  # it came later
        now_ms, ((number, what, raw),) = answers.decode_answers(bytes.fromhex(known.pop(kind.__name__)))
        assert (now_ms, number, what) == (NOW_MS, 1, answers.Kind.REPLY)
        assert answers.unpack_reply(kind, raw) is not None
    _, ((_, _, raw),) = answers.decode_answers(bytes.fromhex(known.pop("error")))
    assert str(answers.unpack_failure(raw)) == "there is no queue 'x'"
    _, ((_, _, raw),) = answers.decode_answers(bytes.fromhex(known.pop("moved")))
    assert answers.unpack_moved(raw) == example(answers.Moved)
    of_nodes = {f"node {kind.__name__}": kind for kind in replies_of(node_wire)}
    for name, frame in known.items():
        if name.removeprefix("node ") in GONE:
            continue
        ((number, what, raw),) = node_wire.decode_replies(bytes.fromhex(frame))
        assert (number, what) == (1, answers.Kind.REPLY)
        assert answers.unpack_reply(of_nodes[name], raw) is not None


@both
def test_introductions_of_nodes_are_read_and_prove_the_secret(build: str) -> None:
    known = golden(build, "greetings")
    data = b"".join(bytes.fromhex(known[name]) for name in ("greeting", "hello", "welcome"))
    (_, first), (_, second), (_, third) = frames.FrameReader(1_000).feed(data)
    (greeting, agreed), (hello, version) = frames.read_greeting(first), frames.read_introduction(second)
    assert (agreed, version) == (known["versions"][1], known["versions"][0])
    assert frames.is_proven(frames.client_proof(b"secret", version, greeting, hello), hello.proof)
    assert frames.is_proven(
        frames.server_proof(b"secret", version, greeting, hello), frames.read_admission(third).proof
    )


@both
def test_tokens_that_clients_keep_are_read(build: str) -> None:
    known = golden(build, "tokens")
    assert Receipt.open(known["receipt"], lambda queue_id: KEY) == Receipt(7, 1, 1_234, 2)
    assert session_number(KEY, ANYBODY, known["session"]) == 7
    assert open_message_id(99, known["message id"]) == (7, 1_234)
    if build == "current":
        assert known["message id"] == write_golden.tokens()["message id"]


@both
def test_offsets_in_checkpoints_and_staged_pieces_are_read(build: str) -> None:
    known = golden(build, "spark")
    queues = {"orders": QueuePosition((120,), 7, (80,)), "wide": QueuePosition((1, 2), 8, (0, 1))}
    assert StreamOffset.decode(known["offsets"]) == StreamOffset("spark", queues)
    sections = list(pieces.decode_piece(bytes.fromhex(known["piece"])))
    assert [(target.queue, chunk.body_list()) for target, chunk in sections] == [
        ("orders", [b"one", b"two"]),
        ("late", [b"x"]),
    ]


@both
def test_streams_of_arrow_batches_are_read(build: str) -> None:
    found = pa.ipc.open_stream(bytes.fromhex(golden(build, "arrow")["stream"])).read_all()
    assert found.schema == arrow.record_schema(arrow.WITH_HEADERS), CHANGED
    at = datetime.fromtimestamp(NOW_MS / 1_000, UTC)
    tea = [{"key": "kind", "value": b"tea"}]
    assert found.to_pylist() == [
        {"offset": 5, "timestamp": at, "key": None, "value": b"one", "headers": tea},
        {"offset": 6, "timestamp": at, "key": b"g", "value": b"two", "headers": None},
    ]


# -- stored ------------------------------------------------------------------------------------------------------------


@both
def test_records_of_every_kind_are_read(build: str) -> None:
    known = golden(build, "records")
    later = {"SEGMENT", "STAGE"} - known.keys()
    assert not later or build != "current"
    assert known.keys() == {"chunks", *(kind.name for kind in Kind)} - later and all(known.values())
    store, changes = MemoryStore(), Changes()
    for kind, rows in known.items():
        for key, value in rows.items():
            if kind == "chunks":
                changes.chunks[bytes.fromhex(key)] = Raw(bytes.fromhex(value))  # type: ignore[assignment]
            else:
                changes.put_record(bytes.fromhex(key), bytes.fromhex(value))
    store.commit(changes)
    broker = Broker.open(store, NOW_MS + 1_000, b"", 0, 4)
    assert {damage.queue for damage in broker.take_reports()} == {"hit"}  # it was found before, and is told again
    assert not broker.quarantine.ids
    assert broker.queues.keys() == {"orders", "orders.dead", "quick", "ledger.fifo", "hit"}
    orders = broker.queues["orders"]
    assert (orders.messages, orders.channels["audit"].paused, orders.consumers["report"].offset) == (24, True, 3)
    assert sum(orders.far.values()) == 2 and len(broker.queues["hit"].quarantined) == 1
    assert bodies_of(broker.handle(c.Receive(queue="quick", limit=9), NOW_MS + 2_000)) == (
        [b"x"] if later else [b"x", b"one", b"two"]
    )
    assert {session.name for session in broker.sessions.values()} == {"worker"}
    assert [task.target for task in broker.tasks.values()] == ["orders"]


@both
def test_messages_in_kafka_are_read(build: str) -> None:
    known, assembly, own = golden(build, "kafka"), Assembly("golden"), ledger.Ledger()
    for key, value in known["messages"]:
        assert bytes.fromhex(key) != MARKER_KEY
        assembly.take(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    assert assembly.take_values() == {b"key": b"value", b"large": bytes(2_500), b"gone": None}
    assert Marker.decode(bytes.fromhex(known["marker"]), "golden") == Marker(7, KEY, has_data=True)
    assert _decode(bytes.fromhex(known["claim"])) == Claim(1, 7, "a", True)
    for offset, (name, record) in enumerate(known["partitions"].items()):
        own.apply(offset, name if name in ledger._ALONE else f"{name}/7", record.encode())
    tables = (own.shards, own.serving, own.released, own.wishes, own.nodes, own.loads, own.drains)
    assert own.cluster is not None and own.controller is not None and all(tables)


@both
def test_small_files_beside_the_data_are_read(build: str, tmp_path: Path) -> None:
    known, checkpoint = golden(build, "files"), tmp_path / "checkpoints" / "totals"
    for name, data in (("cluster.json", known["cluster"]), ("pipeline.json", json.dumps(known["pipeline"]))):
        (tmp_path / name).write_text(data)
    (tmp_path / "position").write_bytes(bytes.fromhex(known["position"]))
    assert read_cluster_file(tmp_path / "cluster.json") == ClusterFile(1, 2, bytes(range(64)), bytes(32))
    position = read_position(tmp_path)
    if build == "current":
        assert position is not None and (position.shard, position.chunk_splits) == (1, {b"chunk": 2})
    else:
        assert position is None, "a cache of the first build is made anew"
    (checkpoint / "metadata").mkdir(parents=True)
    assert State(tmp_path).accept(write_golden.sales(), reset=False) == []  # else IncompatibleCheckpoint


def test_topics_and_subscriptions_in_labels_are_read() -> None:
    known = golden("current", "sns")
    labels = {topics.TOPIC_LABEL: known["topic"], f"{topics.SUBSCRIPTION_LABEL}7": known["subscription"]}
    topic, subscription = topics.topic_of(labels), topics.subscription_of(labels, "7")
    assert topic is not None and (topic.attributes, topic.unsubscribed) == ({"DisplayName": "News"}, 2)
    assert subscription is not None and subscription.replay is not None
    assert (subscription.target, subscription.made_ms, subscription.replay.stop) == ("orders", NOW_MS, 9)


@both
def test_a_database_with_an_outbox_is_gone_on_with(build: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "tea.sqlite") as database:
        database.executescript((GOLDEN / build / "outbox.sql").read_text())
    engine = create_engine(f"sqlite:///{tmp_path}/tea.sqlite")
    with engine.begin() as connection:
        assert not Inbox().once(connection, "order 1", consumer="billing")
    with penstock.open(":memory:") as ps:
        assert Relay(engine, ps, Outbox()).run_once().sent == 2
        order = ps.queue("orders").receive()
        assert (order.body, order.attributes["table"]) == (b"two teas", 7)
    engine.dispose()


@both
def test_a_data_directory_is_opened(build: str, tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / build / "directory.txz") as packed:
        packed.extractall(tmp_path, filter="data")
    expected = golden(build, "directory")
    with penstock.open(tmp_path / "data") as ps:
        orders = ps.queue("orders")
        assert {message.text for message in orders.browse(limit=10_000)} >= {*expected["leased"], "order 1999"}
        assert ps.queue("jobs.dead").search("hopeless") and orders.channel("audit").stats().paused
        assert ps.queue("settled").info().config.tags == {"team": "tea"}


def test_the_wheel_of_the_first_build_writes_its_golden_files_again(tmp_path: Path) -> None:
    """So nobody has changed them since."""
    builds.run(builds.FIRST, "write_golden.py", str(tmp_path / "first"))
    written = {path.stem: path for path in (tmp_path / "first").glob("*.json") if path.stem in PURE}
    assert PURE.keys() - written.keys() == {"sns"}, "it came later"
    for name, path in written.items():
        assert json.loads(path.read_text()) == golden("3e7ad4e", name)
