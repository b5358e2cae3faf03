"""The bulk endpoints, on a real server: positions, pieces, rights, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from websockets.sync.client import connect

from penstock.core.commands import Command, Delivery, Failure, GiveBack, Receive, Run
from penstock.core.errors import InvalidRequest, OverLimit, StoreError
from penstock.core.queues.attributes import encode_attributes
from penstock.core.queues.origin import Origin
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import ChunkKey, LaneKind, lane_kind
from penstock.protocols.bulk.operations import Takes
from penstock.protocols.bulk.staging import PieceNotFound, Staging
from penstock.salvage import check
from penstock.server.auth import Principal, owned
from penstock.spark import rows
from penstock.spark.errors import InvalidRow, ServerFailed
from penstock.spark.options import Where
from penstock.spark.place import Part, Range
from penstock.spark.rows import Rows
from penstock.spark.server import Connection, ServerPlace
from penstock.store.view import StoreView
from penstock.wire.arrow import BASE_COLUMNS, WITH_HEADERS
from penstock.wire.pieces import Target, decode_piece, encode_section, piece_bytes, stand_in_id
from tests.client.node import ThreadedNode
from tests.compat.server import PATIENCE_S, Server, serving

CONFIG = """
[[credentials]]
name = "reader"
access_key = "AKREAD"
secret_key = "read-secret"
token = "read-token"
[[credentials.allow]]
queues = ["r*"]
rights = ["read"]

[[credentials]]
name = "writer"
access_key = "AKWRITE"
secret_key = "write-secret"
token = "write-token"
[[credentials.allow]]
queues = ["r*"]
rights = ["write", "read"]

[[credentials]]
name = "other"
access_key = "AKOTHER"
secret_key = "other-secret"
token = "other-token"
[[credentials.allow]]
queues = ["orders*"]
rights = ["write"]

[[credentials]]
name = "twin"
access_key = "AKTWIN"
secret_key = "twin-secret"
token = "twin-token"
[[credentials.allow]]
queues = ["r*"]
rights = ["write", "read"]
"""


class Cutter:
    """A way to a server that ends after so many bytes of its answers: one number in `cuts` for each connection."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.port: int = self._listener.getsockname()[1]
        self.cuts: list[int] = []
        self.last_answer = b""

    def __enter__(self) -> Cutter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)

    def _serve(self) -> None:
        """One connection after the other: a reader has one."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.create_connection(("127.0.0.1", self._to)) as there:
                self._carry(client, there, self.cuts.pop(0) if self.cuts else 1 << 30)

    def _carry(self, client: socket.socket, there: socket.socket, left: int) -> None:
        self.last_answer = b""
        while left > 0:
            for ready in select.select([client, there], [], [], PATIENCE_S)[0]:
                data = ready.recv(left if ready is there else 65_536)
                if not data:
                    return
                if ready is there:
                    left -= len(data)
                    self.last_answer += data
                (client if ready is there else there).sendall(data)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("bulk")
    config = directory / "penstock.toml"
    config.write_text(CONFIG)
    with serving(directory, "--config", str(config)) as running:
        yield running


def where(server: Server, token: str | None) -> Where:
    return Where(url=f"http://127.0.0.1:{server.http_port}", token=token, timeout_s=1)


@pytest.fixture
def writer(server: Server) -> Iterator[Connection]:
    with contextlib.closing(Connection(where(server, "write-token"))) as connection:
        yield connection


@pytest.fixture
def reader(server: Server) -> Iterator[ServerPlace]:
    with contextlib.closing(ServerPlace(where(server, "read-token"))) as place:
        yield place


def piece(queue: str, *bodies: bytes, **columns: Any) -> bytes:
    return b"".join(encode_section(Target(queue), Chunk.of(0, 0, list(bodies), **columns)))


def send(connection: Connection, data: bytes) -> Any:
    return json.loads(connection.request("POST", "/v1/bulk/send", data, {}).read())


def stage(connection: Connection, token: str, name: str, data: bytes) -> None:
    connection.request("PUT", f"/v1/bulk/staging/{token}/{name}", data, {}).read()


def publish(connection: Connection, token: str, pieces: list[str], name: str, number: int) -> Any:
    body = {"token": token, "pieces": pieces, "name": name, "number": number}
    return connection.ask("POST", "/v1/bulk/publish", body)


def values(place: ServerPlace, queue: str) -> list[bytes]:
    end = place.find([queue])[Part(queue, 0)].end
    batches = place.batches(Range(queue, 0, end, 0), BASE_COLUMNS)
    return [value for batch in batches for value in batch["value"].to_pylist()]


# -- sending, once or not --


def test_a_piece_is_sent_to_each_of_its_queues(writer: Connection, reader: ServerPlace) -> None:
    assert send(writer, piece("r1a", b"one", b"two") + piece("r1b", b"three"))["messages"] == 3
    assert values(reader, "r1a") == [b"one", b"two"]
    assert values(reader, "r1b") == [b"three"]


def test_staged_pieces_are_sent_by_publish_and_not_before(writer: Connection, reader: ServerPlace) -> None:
    send(writer, piece("r2", b"before"))
    stage(writer, "t2", "a", piece("r2", b"one"))
    stage(writer, "t2", "b", piece("r2", b"two"))
    stage(writer, "t2", "failed", piece("r2", b"never"))
    assert values(reader, "r2") == [b"before"]
    assert publish(writer, "t2", ["a", "b"], "job-2", 0) == {"messages": 2, "already_done": False}
    assert values(reader, "r2") == [b"before", b"one", b"two"]


@pytest.mark.parametrize("way", ["send", "publish"])
def test_a_dead_letter_that_knows_its_message_by_number_gets_the_id_of_the_message(
    server: Server, writer: Connection, way: str
) -> None:
    def letter(queue: str, number: int) -> bytes:
        identity = stand_in_id(queue, number)
        return Origin(identity, queue, "main", number, 1_000, 1, 0, [Failure(0, 0, 1, 0, 0, "s", "bad")]).encode()

    origins = [
        letter("r2d", 1),
        letter("r-none", 1),
        Origin("own", "r2d", "", 0, 0, 1, 0, []).encode(),
    ]
    send(writer, piece("r2d", b"good", b"bad"))
    data = piece(f"r2d.dead.{way}", b"1", b"2", b"3", origins=origins)
    if way == "send":
        send(writer, data)
    else:
        stage(writer, "t2d", "a", data)
        publish(writer, "t2d", ["a"], "job-2d", 0)
    records = writer.ask("GET", "/v1/queues/r2d/records?offset=1")["records"]
    letters = writer.ask("GET", f"/v1/queues/r2d.dead.{way}/records?offset=0")["records"]
    assert [each["id"] for each in letters] == [
        records[0]["id"],
        stand_in_id("r-none", 1),
        "own",
    ]


def test_a_dead_letter_says_only_that_it_comes_from_a_queue_that_its_sender_may_use(
    server: Server, writer: Connection
) -> None:
    """Whoever lets dead letters go back to where they came from sends them there with his own rights."""
    origins = [Origin("id", queue, "main", 1, 1_000, 1, 0, []).encode() for queue in ("r2e", "orders")]
    data = piece("r2e.dead", b"1", b"2", origins=origins)
    for attempt in (lambda: send(writer, data), lambda: stage(writer, "t2e", "a", data)):
        with pytest.raises(ServerFailed, match="says it comes from queue 'orders'") as failed:
            attempt()
        assert failed.value.status == 403
    send(writer, piece("r2e.dead", b"1", origins=origins[:1]))
    assert len(writer.ask("GET", "/v1/queues/r2e.dead/records?offset=0")["records"]) == 1


def test_a_publish_that_is_asked_again_does_nothing(writer: Connection, reader: ServerPlace) -> None:
    stage(writer, "t3", "a", piece("r3", b"one"))
    publish(writer, "t3", ["a"], "job-3", 5)
    assert publish(writer, "t3", ["a"], "job-3", 5)["already_done"]
    stage(writer, "t3", "a", piece("r3", b"again"))
    assert publish(writer, "t3", ["a"], "job-3", 5)["already_done"]
    stage(writer, "t3", "a", piece("r3", b"next"))
    assert publish(writer, "t3", ["a"], "job-3", 6)["messages"] == 1
    assert values(reader, "r3") == [b"one", b"next"]


@pytest.mark.parametrize("are_found", [False, True])
def test_a_publish_that_is_asked_again_while_it_is_done_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, are_found: bool
) -> None:
    """Its first connection broke. The second request finds no mark yet, and then no pieces, or none to open."""
    node = ThreadedNode(tmp_path / "data")
    at = Where(url=f"http://127.0.0.1:{node.port}")
    size = Staging.size
    asked: list[Any] = []

    def size_late(staging: Staging, token: str, name: str) -> int:
        if asked:
            return size(staging, token, name)
        nbytes = size(staging, token, name)
        asked.append(None)
        with contextlib.closing(Connection(at)) as first:
            asked.append(publish(first, token, [name], "job", 1))
        return nbytes if are_found else size(staging, token, name)

    monkeypatch.setattr(Staging, "size", size_late)
    with contextlib.closing(Connection(at)) as writer, contextlib.closing(ServerPlace(at)) as reader:
        stage(writer, "t", "a", piece("orders", b"one"))
        assert publish(writer, "t", ["a"], "job", 1) == {"messages": 0, "already_done": True}
        assert asked[1] == {"messages": 1, "already_done": False}
        assert values(reader, "orders") == [b"one"]
    node.stop()


def test_marks_and_pieces_outlive_a_killed_server(server: Server, writer: Connection, reader: ServerPlace) -> None:
    stage(writer, "t4", "a", piece("r4", b"one"))
    server.kill()
    server.start()
    assert publish(writer, "t4", ["a"], "job-4", 1)["messages"] == 1
    server.kill()
    server.start()
    assert publish(writer, "t4", ["a"], "job-4", 1)["already_done"]
    assert values(reader, "r4") == [b"one"]


def test_a_publish_of_a_piece_that_is_not_there_does_nothing(writer: Connection) -> None:
    stage(writer, "t5", "a", piece("r5", b"one"))
    with pytest.raises(ServerFailed, match="there is no piece 'b'") as failed:
        publish(writer, "t5", ["a", "b"], "job-5", 0)
    assert failed.value.code == "piece_not_found"
    assert publish(writer, "t5", ["a"], "job-5", 0)["messages"] == 1


def test_delayed_messages_that_one_commit_does_not_take_are_refused_and_go_through_once_the_limit_is_raised(
    server: Server, writer: Connection, reader: ServerPlace
) -> None:
    send(writer, piece("r5a", b"before"))
    delayed = encode_section(Target("r5a", delay_ms=1), Chunk.of(0, 0, [bytes(1_000_000)] * 30))
    stage(writer, "t5a", "a", b"".join(delayed))
    with pytest.raises(
        ServerFailed, match=r"messages for queue 'r5a' are delayed.*Raise publish_bytes_max in \[rest\]"
    ) as failed:
        publish(writer, "t5a", ["a"] * 9, "job-5a", 0)
    assert (failed.value.code, failed.value.status) == ("batch_too_large", 413)
    assert values(reader, "r5a") == [b"before"]
    config = server.directory / "penstock.toml"
    config.write_text(CONFIG + "[rest]\npublish_bytes_max = 300_000_000\n")
    server.process.send_signal(signal.SIGHUP)
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert publish(writer, "t5a", ["a"] * 9, "job-5a", 0)["messages"] == 270
            break
        except ServerFailed:
            assert time.monotonic() < until_s
            time.sleep(0.05)
    server.kill()
    server.start()
    assert publish(writer, "t5a", ["a"] * 9, "job-5a", 0)["already_done"]
    assert [len(value) for value in values(reader, "r5a")] == [6, *[1_000_000] * 270]


def staged_chunks(server: Server) -> int:
    """How many chunks of large publishes are stored, whether anybody sees them or not."""
    with contextlib.closing(StoreView(server.directory / "data")) as view:
        lanes = [ChunkKey.unpack(key).lane for key in view.list_chunks(b"", b"", 1_000_000)]
    return sum(lane_kind(lane) == LaneKind.STAGED for lane in lanes)


def test_a_publish_of_any_size_is_whole_or_nothing_whenever_the_server_is_killed(tmp_path: Path) -> None:
    """It is written in pieces of 32 MiB, of which a killed server leaves nothing, and made visible by one commit."""
    bodies = [b"%06d" % number + bytes(9_994) for number in range(3_000)]
    pieces, killed = ["a"] * 6, 0
    with serving(tmp_path) as server:
        at = where(server, None)
        with contextlib.closing(Connection(at)) as writer:
            send(writer, piece("orders", b"before") + piece("others", b"before"))
            for token in ("t", "u"):
                stage(writer, token, "a", piece("orders", *bodies) + piece("others", b"x"))
            begun_s = time.monotonic()
            with contextlib.closing(Connection(at)) as again, ThreadPoolExecutor(1) as thread:
                asked = thread.submit(publish, again, "u", pieces, "another job", 1)  # as after a lost answer
                published = publish(writer, "u", pieces, "another job", 1)
                assert published["messages"] == 6 * 3_001 and asked.result() == published
            took_s = time.monotonic() - begun_s
        for part in (0.3, 0.6, 0.9):
            with contextlib.closing(Connection(at)) as writer, ThreadPoolExecutor(1) as thread:
                asked = thread.submit(publish, writer, "t", pieces, "job", 1)
                time.sleep(part * took_s)
                server.kill()
                with contextlib.suppress(ServerFailed):
                    asked.result()
            server.start()
            with contextlib.closing(ServerPlace(at)) as reader:
                ends = [each.end for each in reader.find(["orders", "others"]).values()]
                assert ends in ([18_001, 7], [36_001, 13])
                killed += ends == [18_001, 7]
        assert killed, "it was always too late"
        with contextlib.closing(Connection(at)) as writer, contextlib.closing(ServerPlace(at)) as reader:
            publish(writer, "t", pieces, "job", 1)
            server.kill()
            server.start()
            assert publish(writer, "t", pieces, "job", 1)["already_done"]
            assert [value[:6] for value in values(reader, "orders")][1:] == [body[:6] for body in bodies] * 12
            assert values(reader, "others")[1:] == [b"x"] * 12
        server.stop()
        assert staged_chunks(server) == 2 * (6 * 8 + 6)
        assert check(tmp_path / "data") == []


def test_attributes_count_for_what_one_commit_takes(tmp_path: Path) -> None:
    """Bodies are empty, and all else is large: what is delayed goes into one commit, and has a limit."""
    attributes = encode_attributes({"a": "x" * 100_000})
    chunk = Chunk.of(0, 0, [b""] * 30, attributes=[attributes] * 30)
    (tmp_path / "penstock.toml").write_text("[rest]\npublish_bytes_max = 50_000_000\n")
    with (
        serving(tmp_path, "--config", str(tmp_path / "penstock.toml")) as server,
        contextlib.closing(Connection(where(server, None))) as writer,
    ):
        stage(writer, "t", "a", b"".join(encode_section(Target("orders", delay_ms=1), chunk)))
        with pytest.raises(ServerFailed, match="more than 50000000 bytes") as failed:
            publish(writer, "t", ["a"] * 20, "job", 0)
        assert failed.value.status == 413
        assert publish(writer, "t", ["a"] * 15, "job", 0)["messages"] == 450


def test_a_publish_of_many_pieces_opens_few_files(tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(40)]
    with serving(tmp_path) as server, contextlib.closing(Connection(where(server, None))) as writer:
        for name in names:
            stage(writer, "t", name, piece("orders", bytes(1_000_000)))
        descriptors = Path(f"/proc/{server.process.pid}/fd")
        before, most = len(list(descriptors.iterdir())), 0
        with contextlib.closing(Connection(where(server, None))) as again, ThreadPoolExecutor(1) as thread:
            asked = thread.submit(publish, again, "t", names * 10, "job", 0)
            while not asked.done():
                most = max(most, len(list(descriptors.iterdir())))
            assert asked.result()["messages"] == 400
        assert most < before + 30
        stage(writer, "t", "p", piece("orders", bytes(1_000_000)))
        for times, status in ((20_001, 400), (20_000, 413)):
            with pytest.raises(ServerFailed, match=r"length|publish at most") as failed:
                publish(writer, "t", ["p"] * times, "job", 1)
            assert failed.value.status == status


def test_an_aborted_write_is_gone(writer: Connection) -> None:
    stage(writer, "t6", "a", piece("r6", b"one"))
    writer.ask("DELETE", "/v1/bulk/staging/t6")
    writer.ask("DELETE", "/v1/bulk/staging/t6")
    with pytest.raises(ServerFailed, match="there is no piece"):
        publish(writer, "t6", ["a"], "job-6", 0)


def test_what_the_queue_would_refuse_is_refused_when_it_is_staged(writer: Connection) -> None:
    with pytest.raises(ServerFailed, match="priority is 11") as failed:
        stage(writer, "t7", "a", b"".join(encode_section(Target("r7", priority=11), Chunk.of(0, 0, [b"x"]))))
    assert failed.value.status == 400


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: good[:-8],
        lambda good: good[:20],
        lambda good: b"\xff" * 40,
        lambda good: good[:-10] + b"\x00" * 10,
        lambda good: b"abc",
    ],
)
def test_a_damaged_piece_is_refused(writer: Connection, damage: Any) -> None:
    good = piece("r8", b"one" * 20)
    with pytest.raises(ServerFailed) as failed:
        send(writer, damage(good))
    assert failed.value.status == 400
    with pytest.raises(InvalidRequest):
        list(decode_piece(damage(good)))


@pytest.mark.parametrize(
    "stored",
    [
        b"\xc1",
        msgspec.msgpack.encode({"a": [1]}),
        msgspec.msgpack.encode({"a": True}),
        b"\x81\xa1a\x81\xc0\x01",  # {"a": {None: 1}}, which no JSON has
        b"\x81\xa1a" + b"\x91" * 10_000,
    ],
)
def test_attributes_that_are_no_attributes_are_refused(writer: Connection, stored: bytes) -> None:
    with pytest.raises(ServerFailed, match="message 1 for queue 'r9': attributes cannot be read"):
        send(writer, piece("r9", b"a", b"b", attributes=[encode_attributes({"a": 1}), stored]))


def test_a_body_that_is_too_large_is_refused(writer: Connection) -> None:
    with pytest.raises(ServerFailed) as failed:
        send(writer, bytes(33 * 1024 * 1024))
    assert failed.value.status in (0, 413), "refused, or hung up on in the middle of it"


# -- reading by offset --


def test_a_channel_is_created_at_an_offset_and_moved_on(writer: Connection, reader: ServerPlace) -> None:
    send(writer, piece("r10", *[b"x"] * 10))
    reader.create_channel("r10", "stream", [4])
    reader.create_channel("r10", "stream", [0])
    reader.ack_up_to("stream", {Part("r10", 0): 7})
    url = "/v1/queues/r10/channels/stream"
    assert writer.ask("GET", url)["ready"] == 3


@pytest.mark.parametrize("offsets", [[], [0] * 1_025])
def test_offsets_of_no_partition_or_of_more_than_can_be_are_refused(writer: Connection, offsets: list[int]) -> None:
    send(writer, piece("r10", b"x"))
    for path, body in (
        ("offsets", {"queues": ["r10"], "after": {"r10": offsets}}),
        ("channels", {"queue": "r10", "channel": "stream", "offset": offsets}),
        ("ack", {"channel": "stream", "offsets": {"r10": offsets}}),
    ):
        with pytest.raises(ServerFailed, match="length") as failed:
            writer.ask("POST", f"/v1/bulk/{path}", body)
        assert failed.value.status == 400


def test_a_small_request_for_offsets_has_no_large_answer(writer: Connection) -> None:
    send(writer, piece("r-small", b"x"))
    assert len(writer.ask("POST", "/v1/bulk/offsets", {"queues": ["r-small"] * 100})["offsets"]) == 1
    assert writer.ask("POST", "/v1/bulk/offsets", {"queues": ["r-none"] * 100})["missing"] == ["r-none"]
    with pytest.raises(ServerFailed, match="queue 'r-small' has 1 partitions, and 'after' has 1000 offsets") as failed:
        writer.ask("POST", "/v1/bulk/offsets", {"queues": ["r-small"], "after": {"r-small": [0] * 1_000}})
    assert failed.value.status == 400


def test_an_offset_beyond_all_numbers_is_one_behind_the_last_message(writer: Connection, reader: ServerPlace) -> None:
    send(writer, piece("r-beyond", b"x"))
    beyond = 1 << 70
    asked = {"queues": ["r-beyond"], "after": {"r-beyond": beyond}, "bytes_max": {"r-beyond": 1}}
    (found,) = writer.ask("POST", "/v1/bulk/offsets", asked)["offsets"]
    assert (found["first"], found["end"], found["cut"]) == (0, 1, 1)
    rest = json.dumps({"queue": "r-beyond", "offset": beyond, "end": beyond + 1}).encode()
    answer = writer.fetch("POST", "/v1/bulk/read", rest, {"content-type": "application/json"})
    assert pa.ipc.open_stream(answer).read_all().num_rows == 0


def test_a_range_that_takes_many_requests_is_read_to_its_end(
    writer: Connection, reader: ServerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the first request was the last, and a table of a million rows had a hundred thousand."""
    bodies = [b"%d" % number for number in range(100)]
    for low in range(0, 100, 25):
        send(writer, piece("r14", *bodies[low : low + 25]))
    monkeypatch.setattr("penstock.spark.server._RECORDS_PER_REQUEST", 7)
    assert values(reader, "r14") == bodies
    reader.ack_up_to("main", {Part("r14", 0): 60})
    assert values(reader, "r14") == bodies[50:], "whole chunks go"
    monkeypatch.setattr("penstock.spark.server._RECORDS_PER_REQUEST_BYTES", 30)
    assert values(reader, "r14") == bodies[50:]
    reader.ack_up_to("main", {Part("r14", 0): 100})
    assert values(reader, "r14") == []


def test_bulk_reads_what_the_records_of_rest_are(writer: Connection, reader: ServerPlace) -> None:
    """Small messages and large ones, with all their columns, in two chunks."""
    bodies = [b"small", b"L" * 300_000, b"", b"M" * 100_000]
    attributes = [encode_attributes({"kind": "first", "size": 7}), None, None, None]
    send(writer, piece("r15", *bodies, groups=[b"g", None, None, b"h"], attributes=attributes))
    send(writer, piece("r15", b"last"))
    (path, accept) = ("/v1/queues/r15/records?headers=true", {"accept": "application/vnd.apache.arrow.stream"})
    expected = pa.ipc.open_stream(writer.request("GET", path, None, accept).read()).read_all()
    batches = list(reader.batches(Range("r15", 0, 5, 0), WITH_HEADERS))
    assert pa.Table.from_batches(batches).to_pylist() == expected.to_pylist()
    assert expected["value"].to_pylist() == [*bodies, b"last"]


@pytest.fixture
def broken_off(writer: Connection, server: Server) -> Iterator[tuple[Cutter, ServerPlace, list[bytes]]]:
    """Messages in ten chunks, read by way of a cutter, with no patience at all."""
    bodies = [b"%d" % number * 300 for number in range(40)]
    if writer.ask("POST", "/v1/bulk/offsets", {"queues": ["r16"]})["missing"]:
        for low in range(0, 40, 4):
            send(writer, piece("r16", *bodies[low : low + 4]))
    with Cutter(server.http_port) as cutter:
        url = f"http://127.0.0.1:{cutter.port}"
        with contextlib.closing(ServerPlace(Where(url=url, token="read-token", timeout_s=0))) as place:
            yield cutter, place, bodies


def read_whole(place: ServerPlace) -> list[bytes]:
    batches = place.batches(Range("r16", 0, 40, 0), BASE_COLUMNS)
    return [value for batch in batches for value in batch["value"].to_pylist()]


def test_a_stream_that_is_cut_anywhere_goes_on_where_it_was(
    broken_off: tuple[Cutter, ServerPlace, list[bytes]],
) -> None:
    """Also between two batches, where Arrow takes an end for the end."""
    cutter, place, bodies = broken_off
    assert read_whole(place) == bodies
    head, _, body = cutter.last_answer.partition(b"\r\n\r\n")
    stream = pa.BufferReader(body)
    ends = []
    for _ in range(11):  # the schema, and ten batches
        pa.ipc.read_message(stream)
        ends.append(len(head) + 4 + stream.tell())
    for at in [*ends, *(end - 7 for end in ends), ends[-1] + 4]:
        place.close()
        cutter.cuts = [at]
        assert read_whole(place) == bodies, f"cut after {at} bytes"
        assert not cutter.cuts


def test_a_stream_may_break_as_often_as_it_likes_while_messages_come(
    broken_off: tuple[Cutter, ServerPlace, list[bytes]],
) -> None:
    """A reader that is slow is cut off again and again. Once it gave up two minutes after the first time."""
    cutter, place, bodies = broken_off
    cutter.cuts = [5_000] * 20
    assert read_whole(place) == bodies
    assert len(cutter.cuts) <= 17, "it was cut three times at least"


def test_a_stream_that_breaks_and_brings_nothing_fails(broken_off: tuple[Cutter, ServerPlace, list[bytes]]) -> None:
    cutter, place, _ = broken_off
    cutter.cuts = [700] * 100
    with pytest.raises(ServerFailed, match="the stream of queue 'r16' broke off"):
        read_whole(place)


def test_queues_that_are_not_there_are_left_out(writer: Connection, reader: ServerPlace) -> None:
    send(writer, piece("r11", b"x"))
    assert list(reader.find(["r11", "r-none"])) == [Part("r11", 0)]
    assert "r11" in reader.queues()


def test_taken_messages_are_settled_by_span(writer: Connection, reader: ServerPlace) -> None:
    send(writer, piece("r12", b"a", b"b", b"c", groups=[b"g", None, None]))
    taken, spans = reader.take("r12", "main", 2, WITH_HEADERS)
    assert isinstance(taken, pa.Table)
    assert taken["value"].to_pylist() == [b"a", b"b"]
    assert reader.settle("r12", "main", spans, done=False) == 2
    again, spans = reader.take("r12", "main", 10, BASE_COLUMNS)
    assert sorted(again["value"].to_pylist()) == [b"a", b"b", b"c"]
    assert reader.settle("r12", "main", spans, done=True) == 3
    assert reader.settle("r12", "main", spans, done=True) == 0


def test_a_span_the_wrong_way_round_is_refused_and_hurts_nobody_else(writer: Connection, reader: ServerPlace) -> None:
    send(writer, piece("r-wrong", *8 * [b"x"]))
    reader.take("r-wrong", "main", 6, BASE_COLUMNS)
    with pytest.raises(ServerFailed, match="a span goes from 5 to 1: ") as failed:
        reader.settle("r-wrong", "main", [[5, 1, 1]], done=True)
    assert failed.value.status == 400
    assert send(writer, piece("r-other", b"x"))["messages"] == 1


def test_what_is_taken_or_settled_again_under_its_key_is_so_once(writer: Connection, reader: ServerPlace) -> None:
    def ask(path: str, body: Any, key: str) -> bytes:
        data = json.dumps(body).encode()
        return writer.fetch(
            "POST", f"/v1/bulk/{path}", data, {"content-type": "application/json", "idempotency-key": key}
        )

    def take(key: str) -> tuple[list[bytes], list[Any]]:
        table = pa.ipc.open_stream(ask("take", {"queue": "r13", "limit": 2}, key)).read_all()
        return table["value"].to_pylist(), json.loads(table.schema.metadata[b"penstock-spans"])

    send(writer, piece("r13", b"a", b"b"))
    bodies, spans = take("first")
    assert take("first") == (bodies, spans) == ([b"a", b"b"], [[0, 1, 1]])
    send(writer, piece("r13", b"c"))
    assert take("second")[0] == [b"c"]
    settle = {"queue": "r13", "spans": spans}
    assert [json.loads(ask("settle", settle, "third")) for _ in range(2)] == 2 * [{"settled": 2}]
    with pytest.raises(ServerFailed, match="Expected `int` <= 9223372036854775807"):
        ask("settle", {"queue": "r13", "spans": [[0, 1 << 64, 1]]}, "fourth")
    for path, body in ("take", {"queue": "r13", "limit": 2}), ("settle", settle):
        with pytest.raises(ServerFailed, match="Idempotency-Key has 257 characters: give 1 to 256"):
            ask(path, body, 257 * "x")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("offsets", {"queues": "r1"}),
        ("offsets", {"queue": ["r1"]}),
        ("ack", {"channel": "main"}),
        ("publish", {"token": "../etc", "pieces": ["a"], "name": "x", "number": 0}),
        ("publish", {"token": "t", "pieces": ["../../x"], "name": "x", "number": 0}),
        ("publish", {"token": "t", "pieces": [], "name": "", "number": 0}),
        ("publish", {"token": "t", "pieces": [], "name": "x", "number": -1}),
        ("channels", {"queue": "r1a", "channel": "no name", "offset": 0}),
        ("take", {"queue": "r1a", "limit": 0}),
        ("read", {"queue": "r1a", "offset": 0}),
        ("read", {"queue": "r1a", "offset": 0, "end": 1, "limit": 1_000_000}),
    ],
)
def test_a_bad_request_is_answered_with_a_problem(writer: Connection, path: str, body: Any) -> None:
    send(writer, piece("r1a", b"x"))
    with pytest.raises(ServerFailed) as failed:
        writer.ask("POST", f"/v1/bulk/{path}", body)
    assert failed.value.status == 400
    assert failed.value.code


def test_what_could_not_go_back_when_it_was_taken_again_goes_back_the_time_after() -> None:
    class Store:
        """Holds one message, and fails when it is told to."""

        is_taken = fails = False

        async def call(self, command: Command) -> Any:
            if self.fails:
                raise StoreError("the disk is gone")
            runs = []
            if isinstance(command, GiveBack):
                self.is_taken = False
            elif not self.is_taken:
                self.is_taken, runs = True, [Run(Chunk.of(0, 0, [b"x"]), 0, 1, 1, 0)]
            return Delivery("q", 1, "main", 1, 0, 0, runs)

    async def main() -> None:
        store: Any = Store()
        takes, receive = Takes(store), Receive(queue="q")
        assert (await takes.receive("name", receive)).count == 1
        store.fails = True
        with pytest.raises(StoreError):
            await takes.receive("name", receive)
        store.fails = False
        assert (await takes.receive("name", receive)).count == 1

    asyncio.run(main())


# -- rights --


@pytest.mark.parametrize("token", [None, "wrong", "read-toke"])
def test_who_has_no_token_gets_nothing(server: Server, token: str | None) -> None:
    with pytest.raises(ServerFailed) as failed:
        ServerPlace(where(server, token)).queues()
    assert failed.value.status == 401
    assert "read-token" not in str(failed.value)


def test_who_may_only_read_sends_nothing(server: Server) -> None:
    connection = Connection(where(server, "read-token"))
    for call, what in (
        (lambda: send(connection, piece("r13", b"x")), "queue 'r13'"),
        (lambda: stage(connection, "t13", "a", piece("r13", b"x")), "at least one queue"),
        (lambda: stage(connection, "t13", "a", b""), "at least one queue"),
    ):
        with pytest.raises(ServerFailed, match=f"reader needs the right to write {what}") as failed:
            call()
        assert failed.value.status == 403


def test_what_is_refused_or_empty_is_not_staged(server: Server) -> None:
    staged = server.directory / "data" / "staging"
    with contextlib.closing(Connection(where(server, "other-token"))) as other:
        before = {path.name for path in staged.iterdir()} if staged.exists() else set()
        for data, status in ((piece("r13", b"x"), 403), (b"no piece", 400), (b"", 400)):
            with pytest.raises(ServerFailed) as failed:
                stage(other, "t-refused", "a", data)
            assert failed.value.status == status
        assert {path.name for path in staged.iterdir()} == before


def test_who_may_only_read_marks_nothing_as_done(server: Server, writer: Connection, reader: ServerPlace) -> None:
    connection = Connection(where(server, "read-token"))
    with pytest.raises(ServerFailed, match="reader needs the right to write at least one queue") as failed:
        publish(connection, "t-marks", [], "marks", 1 << 62)
    assert failed.value.status == 403
    stage(writer, "t-marks", "a", piece("r-marks", b"x"))
    assert publish(writer, "t-marks", ["a"], "marks", 0) == {"messages": 1, "already_done": False}
    assert values(reader, "r-marks") == [b"x"]


def test_who_writes_elsewhere_marks_nothing_of_others_as_done(
    server: Server, writer: Connection, reader: ServerPlace
) -> None:
    other = Connection(where(server, "other-token"))
    assert publish(other, "t-own", [], "stream-1", 1 << 62) == {"messages": 0, "already_done": False}
    stage(writer, "t-own", "a", piece("r-own", b"x"))
    assert publish(writer, "t-own", ["a"], "stream-1", 0) == {"messages": 1, "already_done": False}
    assert values(reader, "r-own") == [b"x"]
    assert publish(writer, "t-own", ["a"], "stream-1", 0)["already_done"]
    assert publish(other, "t-own", [], "stream-1", 7)["already_done"], "each has a mark of its own"


def test_who_writes_elsewhere_has_nothing_to_do_with_what_others_have_staged(
    server: Server, writer: Connection, reader: ServerPlace
) -> None:
    other = Connection(where(server, "other-token"))
    stage(writer, "t-own-2", "a", piece("r-own-2", b"mine"))
    stage(other, "t-own-2", "a", piece("orders", b"theirs"))
    other.ask("DELETE", "/v1/bulk/staging/t-own-2")
    with pytest.raises(ServerFailed, match="there is no piece 'a'"):
        publish(other, "t-own-2", ["a"], "stream-2", 0)
    assert publish(writer, "t-own-2", ["a"], "stream-2", 0)["messages"] == 1
    assert values(reader, "r-own-2") == [b"mine"]


@pytest.mark.parametrize("write", [str, str.upper])
def test_who_computes_an_owners_prefix_reaches_nothing_of_the_owner(
    server: Server, reader: ServerPlace, write: Callable[[str], str]
) -> None:
    queue, stream = f"r-prefix-{write('a')}", f"prefix-{write('a')}"
    prefix = write(hashlib.blake2b(b"writer", digest_size=12).hexdigest())
    with (
        contextlib.closing(Connection(where(server, "write-token"))) as writer,
        contextlib.closing(Connection(where(server, "twin-token"))) as twin,
    ):
        stage(writer, stream, "a", piece(queue, b"mine"))
        with pytest.raises(ServerFailed, match="there is no piece 'a'"):
            publish(twin, f"{prefix}-{stream}", ["a"], stream, 0)
        assert publish(writer, stream, ["a"], stream, 5)["messages"] == 1
        assert not publish(twin, "no-token", [], f"{prefix}-{stream}", 3)["already_done"]
    assert values(reader, queue) == [b"mine"]


def test_over_a_websocket_marks_are_the_callers_own_as_well(server: Server) -> None:
    def ask(token: str, *requests: list[Any]) -> list[Any]:
        with connect(f"ws://127.0.0.1:{server.http_port}/v1/ws") as socket:
            answers = []
            for number, request in enumerate([["Hello", 1, token], *requests]):
                socket.send(msgspec.msgpack.encode([[number, request]]))
                ((_, _, answer),) = msgspec.msgpack.decode(socket.recv(PATIENCE_S))[1]
                answers.append(answer)
            return answers[1:]

    ask("other-token", ["CommitWork", [], [], ["stream-3", 9]])
    assert ask("other-token", ["LastMark", "stream-3"]) == [9]
    assert ask("write-token", ["LastMark", "stream-3"]) == [-1]
    assert ask("write-token", ["CommitWork", [], [], ["stream-3", 1]], ["LastMark", "stream-3"])[1] == 1


def test_marks_and_pieces_from_before_they_had_owners_count(tmp_path: Path) -> None:
    """Where there are no credentials they are kept as before; then credentials come, or a build that knows owners."""
    with serving(tmp_path) as open_server:
        anybody = Connection(where(open_server, None))
        stage(anybody, "t", "a", piece("r", b"zero"))
        publish(anybody, "t", ["a"], "stream", 5)
        stage(anybody, "t6", "a", piece("r", b"six"))
    (tmp_path / "penstock.toml").write_text(CONFIG)
    with serving(tmp_path, "--config", str(tmp_path / "penstock.toml")) as guarded:
        writer = Connection(where(guarded, "write-token"))
        assert publish(writer, "t", ["a"], "stream", 5)["already_done"]
        assert publish(writer, "t6", ["a"], "stream", 6)["messages"] == 1
        assert publish(writer, "t6", ["a"], "stream", 6)["already_done"]
        with contextlib.closing(ServerPlace(where(guarded, "read-token"))) as place:
            assert values(place, "r") == [b"zero", b"six"]


def test_pages_of_names_name_no_queue_that_the_caller_may_not_read(server: Server, writer: Connection) -> None:
    """Also not as the place to go on from."""
    send(Connection(where(server, "other-token")), piece("orders-secret", b"x") + piece("orders-secret-2", b"x"))
    for number in range(3):
        send(writer, piece(f"r-page-{number}", b"x"))
    expected = writer.ask("POST", "/v1/bulk/queues", {})
    assert expected["last"] == ""
    found: list[str] = []
    after, pages = "", 0
    while after or not pages:
        page = writer.ask("POST", "/v1/bulk/queues", {"after": after, "limit": 1})
        found += page["queues"]
        assert page["last"] in ("", *page["queues"])
        after, pages = page["last"], pages + 1
    assert found == expected["queues"]
    assert {"r-page-0", "r-page-1", "r-page-2"} <= set(found)


def test_rights_end_where_the_pattern_does(writer: Connection, reader: ServerPlace) -> None:
    with pytest.raises(ServerFailed, match="needs the right to write queue 'other' for Send"):
        send(writer, piece("other", b"x"))
    for call in (
        lambda: reader.find(["other"]),
        lambda: reader.create_channel("other", "c", [0]),
        lambda: reader.ack_up_to("c", {Part("other", 0): 0}),
        lambda: reader.take("other", "main", 1, BASE_COLUMNS),
        lambda: list(reader.batches(Range("other", 0, 1, 0), BASE_COLUMNS)),
    ):
        with pytest.raises(ServerFailed, match="needs the right to read queue 'other' for "):
            call()


# -- handing over, piece by piece --


def table(*values: bytes) -> Any:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def test_pieces_arrive_in_their_order(writer: Connection, reader: ServerPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PIECE_BYTES", 1)
    expected = [b"%d" % number for number in range(20)]
    batches = [table(*expected[low : low + 2]) for low in range(0, 20, 2)]
    sent = rows.Pieces(writer, 0, None)
    assert sent.add_all(Rows("r9", 0), batches) == 20
    assert len(sent.names) == 10
    assert values(reader, "r9") == expected


def test_a_piece_that_is_refused_names_its_rows_and_none_follows(
    writer: Connection, reader: ServerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PIECE_BYTES", 1)
    send(writer, piece("r9a", b"before"))
    batches = [table(b"one", b"two"), table(bytes(3_000_000)), table(b"four"), table(b"five")]
    sent = rows.Pieces(writer, 7, None)
    with pytest.raises(InvalidRow, match="partition 7, rows 2 to 2: message 0 has 3000000 bytes"):
        sent.add_all(Rows("r9a", 7), batches)
    assert len(sent.names) == 1
    assert values(reader, "r9a") == [b"before", b"one", b"two"]


# -- staging itself --


def test_tasks_that_stage_first_at_the_same_moment_are_all_heard(tmp_path: Path) -> None:
    with serving(tmp_path) as fresh:

        def one(_: int) -> None:
            with contextlib.closing(Connection(where(fresh, None))) as connection:
                stage(connection, "t", "a", piece("r", b"x" * 100_000))

        with ThreadPoolExecutor(8) as tasks:
            list(tasks.map(one, range(8)))


def test_a_piece_that_a_killed_server_left_half_written_is_in_nobodys_way(tmp_path: Path) -> None:
    first = Staging(tmp_path / "staging").begin("t", "a")
    first.write([b"torn"])
    again = Staging(tmp_path / "staging")
    stage_directly(again, "t", "a", [b"whole"])
    assert [bytes(each) for each in again.open("t", ["a"])] == [b"whole"]


def stage_directly(staging: Staging, token: str, name: str, parts: list[bytes]) -> None:
    new = staging.begin(token, name)
    try:
        new.write(parts)
    except OverLimit:
        new.discard()
        raise
    new.keep()


def test_staging_has_a_limit_of_bytes(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging", bytes_max=100)
    stage_directly(staging, "a", "p", [bytes(60)])
    with pytest.raises(OverLimit, match="more than 100 bytes"):
        stage_directly(staging, "b", "p", [bytes(60)])
    staging.drop("a")
    stage_directly(staging, "b", "p", [bytes(60)])
    assert Staging(tmp_path / "staging", bytes_max=100).nbytes == 60


def test_a_piece_that_is_not_kept_counts_for_nothing(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging", bytes_max=100)
    new = staging.begin("a", "p")
    for _ in range(3):
        new.write([bytes(10), b"", bytes(20)])
    assert (staging.nbytes, len(new.data())) == (90, 90)
    new.discard()
    assert staging.nbytes == 0
    assert list((tmp_path / "staging").iterdir()) == [] and not staging._sizes


def test_one_principal_has_an_eighth_of_all_writes_and_others_have_the_rest(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging")
    greedy, other = (Principal(name, name, []) for name in ("greedy", "other"))
    for number in range(125):
        stage_directly(staging, owned(greedy, f"t{number}"), "p", [b"x"])
    with pytest.raises(OverLimit, match="you have 125 writes staged already"):
        staging.begin(owned(greedy, "t125"), "p")
    stage_directly(staging, owned(greedy, "t7"), "another", [b"x"])
    stage_directly(staging, owned(other, "t125"), "p", [b"x"])
    staging.drop(owned(greedy, "t3"))
    stage_directly(staging, owned(greedy, "t125"), "p", [b"x"])


def test_a_piece_that_is_refused_takes_nothing_from_one_that_begins_meanwhile(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging")

    def one(number: int) -> None:
        for turn in range(50):
            new = staging.begin("t", f"p{number}-{turn}")
            new.discard()

    with ThreadPoolExecutor(8) as tasks:
        list(tasks.map(one, range(8)))
    assert not staging._sizes and list((tmp_path / "staging").iterdir()) == []


def test_a_token_can_be_used_anew_while_its_old_files_are_removed(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging")
    stage_directly(staging, "t", "p", [b"old"])
    aside = staging.set_aside("t")
    assert staging.nbytes == 0
    stage_directly(staging, "t", "p", [b"new"])
    again = Staging(tmp_path / "staging")  # as after a crash: what was not removed goes now
    assert not aside.exists()
    assert [bytes(view) for view in again.open("t", ["p"])] == [b"new"]


def test_a_piece_whose_write_is_given_up_while_it_comes_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging", bytes_max=100)
    late, later, latest = (staging.begin("t", name) for name in "abc")
    late.write([bytes(30)])
    staging.drop("t")
    with pytest.raises(PieceNotFound, match="piece 'a' belongs to a write that was aborted"):
        late.keep()
    later.write([bytes(30)])
    later.discard()
    latest.write([bytes(30)])
    with pytest.raises(PieceNotFound):
        latest.keep()
    assert staging.nbytes == 0
    staging.drop_old()
    assert not staging._sizes, "or there would be no room for others, in the end"


def test_a_piece_that_begins_just_as_its_write_is_given_up_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(tmp_path / "staging")
    made = Path.mkdir

    def mkdir_and_lose(path: Path, *arguments: Any, **options: Any) -> None:
        made(path, *arguments, **options)
        staging.drop("t")

    monkeypatch.setattr(Path, "mkdir", mkdir_and_lose)
    with pytest.raises(PieceNotFound, match="was aborted"):
        staging.begin("t", "p")


def test_what_nobody_publishes_is_dropped_when_it_is_old(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging", age_s_max=60)
    stage_directly(staging, "old", "p", [b"x"])
    stage_directly(staging, "new", "p", [b"x"])
    long_ago = time.time() - 3_600
    os.utime(tmp_path / "staging" / "old", (long_ago, long_ago))
    again = Staging(tmp_path / "staging", age_s_max=60)
    assert [bytes(view) for view in again.open("new", ["p"])] == [b"x"]
    with pytest.raises(PieceNotFound):
        again.open("old", ["p"])


def test_a_mapped_piece_stays_readable_when_it_is_dropped(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging")
    stage_directly(staging, "t", "p", [piece_bytes([(Target("q"), Chunk.of(0, 0, [b"one"]))])])
    (view,) = staging.open("t", ["p"])
    staging.drop("t")
    assert [chunk.body_list() for _, chunk in decode_piece(view)] == [[b"one"]]


def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_failure(tmp_path: Path) -> None:
    """`serving` fails if the server's log has a traceback."""
    with serving(tmp_path) as server:
        with socket.create_connection(("127.0.0.1", server._ports["http"])) as client:
            client.sendall(b"POST /v1/bulk/offsets HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        left = 'penstock_http_rejections_total{protocol="rest",status="408"}'
        deadline_s = time.monotonic() + PATIENCE_S
        while server.metric(left) < 1:
            assert time.monotonic() < deadline_s, "the server never heard of it"
            time.sleep(0.01)


def test_a_take_of_large_messages_is_no_larger_than_a_response_may_be(tmp_path: Path) -> None:
    node = ThreadedNode(tmp_path, "[rest]\nresponse_bytes_max = 65_536\n")
    there = Where(url=f"http://127.0.0.1:{node.port}", token=None, timeout_s=PATIENCE_S)
    with contextlib.closing(Connection(there)) as connection, contextlib.closing(ServerPlace(there)) as place:
        send(connection, piece("q", *8 * [bytes(20_000)]))
        sizes = []
        while (table := place.take("q", "main", 50_000, BASE_COLUMNS)[0]).num_rows:
            sizes.append(table.num_rows)
    node.stop()
    assert sizes == [3, 3, 2]


def test_a_server_without_pyarrow_refuses_a_take_before_it_leases_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = ThreadedNode(tmp_path, "")
    there = Where(url=f"http://127.0.0.1:{node.port}", token=None, timeout_s=PATIENCE_S)
    with contextlib.closing(Connection(there)) as connection, contextlib.closing(ServerPlace(there)) as place:
        send(connection, piece("q", b"one"))
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "penstock.wire.arrow", None)
            with pytest.raises(ServerFailed, match="no pyarrow"):
                place.take("q", "main", 10, BASE_COLUMNS)
        table, _ = place.take("q", "main", 10, BASE_COLUMNS)
    node.stop()
    assert table["value"].to_pylist() == [b"one"]
