"""`penstock export` and `penstock import`: everything that a queue has arrives, wherever it goes, once."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import penstock
from penstock.cli import transfer
from penstock.core.commands import Browse, Command, CreateChannel, DescribeQueue, LastMark, QueueStats, Send
from penstock.core.errors import InvalidRequest, QueueExists, StoreError
from penstock.core.queues.attributes import TypedBytes, TypedText, encode_attributes
from penstock.core.storage.chunk import Chunk
from penstock.transfer.arrow_file import ArrowFile, read_arrow_file
from penstock.transfer.contents import (
    LABEL,
    AttributeLine,
    ChannelLine,
    FailureLine,
    Head,
    InvalidExport,
    Item,
    JsonLines,
    MessageLine,
    OriginLine,
    QueueLine,
    read_json_lines,
)
from penstock.transfer.exporting import Source
from penstock.transfer.importing import DirectoryPlace, Import, Section, check_export, read_export
from penstock.wire.pieces import Target, send_of
from tests.client.node import ThreadedNode
from tests.cluster.nodes import thread_node
from tests.compat.server import Server, serving
from tests.kafka import kafka, unique_prefix  # noqa: F401
from tools.kafka import KafkaCluster

GOLDEN = Path(__file__).parent / "export-1.jsonl"
ARROW = GOLDEN.with_suffix(".arrow")
ATTRIBUTES = {
    "text": "tea",
    "bytes": b"\x00\xff",
    "whole": 2**60,
    "float": 2.0,
    "none": math.inf,
    "price": TypedText.of("12.50", "Number.price"),
    "icon": TypedBytes.of(b"GIF89a", "Binary.gif"),
}


def fill(ps: penstock.Penstock) -> None:
    """Queues with everything in them that an export has to carry."""
    fixed = {"shape": "fixed", "base_ms": 3_600_000}
    orders = ps.create_queue("orders", max_receives=2, backoff=fixed, tags={"team": "shop"}, retention=None)
    call = ps._caller.call
    stored = [encode_attributes(ATTRIBUTES), None]
    call(Send(queue="orders", bodies=[b"", b"\xff\xfe"], attributes=stored))
    orders.send("urgent", priority=7)
    orders.send("in an hour", delay=3_600)
    orders.send("in ten days", delay=864_000, priority=2, group="shop")
    for body, delays in (("fails twice", [0, 0]), ("fails once", [7_200]), ("leased", [])):
        orders.send(body, priority=9)
        for delay in delays:
            taken(orders, body).release(error=f"no tea: {body}", delay=delay)
    taken(orders, "leased")
    fifo = ps.create_queue("steps.fifo", content_dedup=True, message_bytes_max=2_000)
    for number in range(30):
        fifo.send(f"{number}", group=f"group-{number % 3}")
    topic = ps.queue("news")
    for name in ("mail", "web"):
        topic.channel(name)
    topic.channel("main").delete()
    topic.send_many([f"news {number}".encode() for number in range(8)])
    for message in topic.channel("web").receive(max=3):
        message.ack()
    topic.channel("mail").pause()
    ps.create_queue("empty", lease=5)


def taken(queue: penstock.Queue, text: str) -> penstock.Message:
    message = queue.receive()
    assert message is not None
    assert message.text == text
    return message


def items_of(ps: penstock.Penstock, *names: str) -> list[Item]:
    source = Source(ps._caller)
    lines = [source.queue(name) for name in (names or source.names())]
    return [item for line in lines for item in (line, *source.messages(line))]


def plain(items: list[Item]) -> list[Any]:
    """What has to be the same everywhere: all but the numbers of messages in their queue."""
    rows = [msgspec.to_builtins(item) for item in items]
    for row in rows:
        row.pop("sequence", None)
    return rows


def export_file(
    source: object, path: Path, *, format: transfer.Format = "jsonl", queue: list[str] | None = None
) -> Path:
    transfer.export_queues(str(source), queue=queue, format=format, output=path)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "data") as ps:
        fill(ps)
    return tmp_path / "data"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ThreadedNode]:
    node = ThreadedNode(tmp_path / "node")
    yield node
    node.stop()


# -- from here to there ------------------------------------------------------------------------------------------------


def test_fill_has_everything(data: Path) -> None:
    """Otherwise the other tests show less than they say."""
    with penstock.open(data, read_only=True) as ps:
        found = {row["body"]: row for row in plain(items_of(ps, "orders", "orders.dead")) if row.get("body")}
    assert found["urgent"]["priority"] == 7
    assert found["in ten days"]["due_ms"] > found["in an hour"]["due_ms"] > time.time() * 1_000
    assert found["fails once"]["due_ms"] > time.time() * 1_000
    assert [each["error"] for each in found["fails once"]["failures"]] == ["no tea: fails once"]
    assert found["leased"]["attempts"] >= 1
    assert found["fails twice"]["origin"]["queue"] == "orders"
    assert len(found["fails twice"]["origin"]["failures"]) == 2


@pytest.mark.parametrize("format", ["jsonl", "arrow"])
def test_from_a_directory_to_a_server_and_back_everything_stays(
    data: Path, node: ThreadedNode, tmp_path: Path, format: transfer.Format, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.open(data, read_only=True) as ps:
        before = plain(items_of(ps))
    first = export_file(data, tmp_path / "first", format=format)
    transfer.import_queues(node.url, first)
    with penstock.connect(node.url) as ps:
        assert plain(items_of(ps)) == before
    second = export_file(node.url, tmp_path / "second", format=format)
    transfer.import_queues(str(tmp_path / "back"), second)
    with penstock.open(tmp_path / "back") as ps:
        assert plain(items_of(ps)) == before
        assert LABEL not in ps._caller.call(DescribeQueue(name="orders")).config.labels
    assert "5 queues, " in capsys.readouterr().out


def test_both_formats_have_the_same_in_them(data: Path, tmp_path: Path) -> None:
    read = {}
    for format in ("jsonl", "arrow"):
        path = export_file(data, tmp_path / format, format=format)
        with path.open("rb") as file:
            read[format] = [item for _, item in read_export(file, format, path)][1:]
    by_queue = [
        sorted(items, key=lambda item: item.queue if isinstance(item, QueueLine) else "") for items in read.values()
    ]
    assert by_queue[0] == by_queue[1]


def test_export_changes_nothing(data: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*") if path.is_file()}
    export_file(data, tmp_path / "file")
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*") if path.is_file()} == before
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_order_in_groups_delays_and_priorities_hold_after_an_import(data: Path, tmp_path: Path) -> None:
    transfer.import_queues(str(tmp_path / "new"), export_file(data, tmp_path / "file"))
    with penstock.open(tmp_path / "new") as ps:
        check_delivery(ps)


def check_delivery(ps: penstock.Penstock) -> None:
    """What `fill` has sent is delivered in the order, to the channels and with the priorities of the source."""
    groups: dict[str | None, list[int]] = {}
    while messages := ps.queue("steps.fifo").receive(max=10):
        for message in messages:
            groups.setdefault(message.group, []).append(int(message.text))
            message.ack()
    assert groups == {f"group-{first}": list(range(first, 30, 3)) for first in range(3)}
    received = [message.text for message in ps.queue("orders").receive(max=100) if message.body[:1] != b"\xff"]
    assert received == ["leased", "urgent", ""]
    web = [message.text for message in ps.queue("news").channel("web").receive(max=100)]
    assert web == [f"news {number}" for number in range(3, 8)]
    assert ps.queue("news").channel("mail").stats().ready == 8
    assert ps.queue("news").channel("mail").stats().paused


def test_redrive_after_an_import_takes_dead_letters_back_to_their_queue(data: Path, tmp_path: Path) -> None:
    transfer.import_queues(str(tmp_path / "new"), export_file(data, tmp_path / "file"))
    with penstock.open(tmp_path / "new") as ps:
        check_redrive(ps)


def check_redrive(ps: penstock.Penstock) -> None:
    """The dead letter of `fill` goes back to its queue, with its history."""
    assert ps.redrive("orders.dead").wait(30).moved == 1
    (message,) = ps.queue("orders").search("fails twice")
    assert [each.error for each in message.history] == ["no tea: fails twice"] * 2


def test_channels_that_were_done_with_later_messages_get_them_again_and_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.open(tmp_path / "data") as ps:
        news = ps.queue("news")
        news.channel("web")
        news.send_many([b"0", b"1", b"2", b"3"])
        for message in news.channel("web").receive(max=4):
            if message.text in "23":
                message.ack()
    transfer.import_queues(str(tmp_path / "new"), export_file(tmp_path / "data", tmp_path / "file"))
    assert "news/web gets 2 messages again" in capsys.readouterr().err
    with penstock.open(tmp_path / "new") as ps:
        assert len(ps.queue("news").channel("web").receive(max=10)) == 4


def test_messages_that_share_a_dedup_id_all_arrive(tmp_path: Path) -> None:
    items = [
        MessageLine(sequence=at, id=f"m{at}", sent_ms=at, body=f"{at}", group="g", dedup_id="daily") for at in (0, 1)
    ]
    path = write(tmp_path / "file", [QueueLine(queue="steps.fifo", channels=[ChannelLine("main")]), *items])
    transfer.import_queues(str(tmp_path / "new"), path)
    with penstock.open(tmp_path / "new") as ps:
        assert [message.text for message in ps.queue("steps.fifo").browse()] == ["0", "1"]
        assert ps.queue("steps.fifo").send("again", group="g", dedup_id="daily").duplicate


def test_limits_of_size_and_rate_keep_nothing_out_and_hold_afterwards(tmp_path: Path) -> None:
    line = QueueLine(
        queue="slow.fifo",
        settings={"throughput_per_second": 5, "message_bytes_max": 10},
        channels=[ChannelLine("main")],
    )
    messages = [
        MessageLine(sequence=at, id=f"m{at}", sent_ms=at, body="x" * 100, group="g", dedup_id=f"{at}")
        for at in range(40)
    ]
    transfer.import_queues(str(tmp_path / "new"), write(tmp_path / "file", [line, *messages]))
    with penstock.open(tmp_path / "new") as ps:
        assert len(ps.queue("slow.fifo").browse()) == 40
        config = ps._caller.call(DescribeQueue(name="slow.fifo")).config
        assert (config.throughput_per_second, config.message_bytes_max) == (5, 10)


# -- more than one shard -----------------------------------------------------------------------------------------------


def test_from_one_shard_to_four_and_back(data: Path, tmp_path: Path) -> None:
    with penstock.open(data, read_only=True) as ps:
        before = plain(items_of(ps))
    exported = export_file(data, tmp_path / "file")
    (tmp_path / "four").mkdir()
    server = Server(tmp_path / "four", shards=4)
    try:
        server.start()
        url = f"http://127.0.0.1:{server.http_port}"
        transfer.import_queues(url, exported)
        with penstock.connect(url) as ps:
            assert plain(items_of(ps)) == before
        transfer.import_queues(str(tmp_path / "back"), export_file(url, tmp_path / "second", format="arrow"))
        server.stop()
    finally:
        server.kill()
    with penstock.open(tmp_path / "back", read_only=True) as ps:
        assert plain(items_of(ps)) == before


@pytest.mark.parametrize("shards", [1, 4], ids=["one store", "four shards of one process"])
def test_from_a_directory_to_kafka_and_back(
    data: Path,
    tmp_path: Path,
    kafka: KafkaCluster,  # noqa: F811
    shards: int,
) -> None:
    with penstock.open(data, read_only=True) as ps:
        before = plain(items_of(ps))
    exported = export_file(data, tmp_path / "file")
    if shards > 1:
        (tmp_path / "several").mkdir()
        with serving(tmp_path / "several", shards=shards) as server:
            url = f"http://127.0.0.1:{server.http_port}"
            transfer.import_queues(url, exported)
            exported = export_file(url, tmp_path / "of-shards", format="arrow")
    name = unique_prefix("transfer")
    with thread_node(kafka, name, "a", tmp_path) as first, thread_node(kafka, name, "b", tmp_path) as second:
        one, other = (node.node._record_of_node.urls["http"] for node in (first, second))
        transfer.import_queues(one, exported)
        with penstock.connect(other) as ps:
            assert plain(items_of(ps)) == before
            transfer.import_queues(str(tmp_path / "back"), export_file(other, tmp_path / "of-kafka"))
            check_delivery(ps)
            check_redrive(ps)
    with penstock.open(tmp_path / "back") as ps:
        assert plain(items_of(ps)) == before
        check_delivery(ps)
        check_redrive(ps)


# -- again -------------------------------------------------------------------------------------------------------------


class Failing(DirectoryPlace):
    """A place whose connection breaks in a batch, before or after it was done."""

    def __init__(self, ps: penstock.Penstock, breaks_in: int, *, is_done: bool) -> None:
        super().__init__(ps._caller)
        self._left = breaks_in
        self._is_done = is_done

    def send(self, sections: list[Section], mark: tuple[str, int]) -> bool:
        self._left -= 1
        if self._left < 0:
            if self._is_done:
                super().send(sections, mark)
            raise StoreError("the connection broke")
        return super().send(sections, mark)


class OnItsWay:
    """Calls to a place in which batches are on their way to their shard for a while, and somebody else sends too."""

    def __init__(self, ps: penstock.Penstock) -> None:
        self._caller = ps._caller
        self.identity = self._caller.identity
        self.looks = 0
        self.looks_before_channel = -1

    def call(self, command: Command) -> Any:
        if isinstance(command, LastMark) and command.arrived:
            self.looks += 1
            self._caller.call(Send(queue="news", bodies=[b"a dead letter"] * 100))
            if self.looks % 3:
                return -1
        if isinstance(command, CreateChannel) and command.channel == "late":
            self.looks_before_channel = self.looks
        return self._caller.call(command)


def test_a_channel_waits_for_the_batches_before_it_whoever_else_sends(tmp_path: Path) -> None:
    channels = [ChannelLine("main"), ChannelLine("late")]
    messages = [
        MessageLine(sequence=at, id=f"m{at}", sent_ms=at, body=f"{at}", done_for=["late"] if at < 10 else [])
        for at in range(20)
    ]
    path = write(tmp_path / "file", [QueueLine(queue="news", channels=channels), *messages])
    with penstock.open(tmp_path / "new") as ps, path.open("rb") as file:
        place = DirectoryPlace(ps._caller)
        place.caller = calls = OnItsWay(ps)
        checked = check_export(read_export(file, "file", path))
        items = read_export(file, "file", path)
        done = Import(place, checked, into_existing=False, progress=lambda *_: None).run(items)
        assert (done.messages, calls.looks_before_channel, calls.looks) == (20, 3, 6)


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("breaks_in", [0, 1, 3, 5, 7])
def test_an_import_that_was_interrupted_goes_on_without_duplicates(
    tmp_path: Path, breaks_in: int, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.transfer.importing.BATCH_MESSAGES", 7)
    items: list[Item] = []
    for name in ("a", "b"):
        items.append(QueueLine(queue=name, channels=[ChannelLine("main"), ChannelLine("late")]))
        items += [
            MessageLine(sequence=at, id=f"m{at}", sent_ms=at, body=f"{at}", done_for=["late"] if at < 10 else [])
            for at in range(20)
        ]
    path = write(tmp_path / "file", items)
    with penstock.open(tmp_path / "new") as ps, path.open("rb") as file:
        checked = check_export(read_export(file, "file", path))
        broken = Import(Failing(ps, breaks_in, is_done=is_done), checked, into_existing=False, progress=print)
        with pytest.raises(StoreError, match=r"file, line \d+ and the \d+ messages behind it: the connection broke"):
            broken.run(read_export(file, "file", path))
    transfer.import_queues(str(tmp_path / "new"), path)
    with penstock.open(tmp_path / "new") as ps:
        for name in ("a", "b"):
            assert [message.text for message in ps.queue(name).browse()] == [f"{at}" for at in range(20)]
            late = ps.queue(name).channel("late").browse()
            assert [message.text for message in late] == [f"{at}" for at in range(10, 20)]


def test_queues_that_are_there_are_refused_before_anything_is_imported(data: Path, tmp_path: Path) -> None:
    path = export_file(data, tmp_path / "file")
    with penstock.open(tmp_path / "new") as ps:
        ps.queue("steps.fifo").send("mine", group="g", dedup_id="1")
    with pytest.raises(QueueExists, match=r"queue 'steps.fifo' exists already.* --into-existing"):
        transfer.import_queues(str(tmp_path / "new"), path)
    with penstock.open(tmp_path / "new") as ps:
        assert ps.queues() == ["steps.fifo"]


def test_into_existing_adds_once_however_often_it_is_done(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = export_file(data, tmp_path / "file", queue=["news"])
    with penstock.open(tmp_path / "new") as ps:
        ps.queue("news").send("mine")
    for _ in range(2):
        transfer.import_queues(str(tmp_path / "new"), path, into_existing=True)
    assert "8 messages had been imported before" in capsys.readouterr().out
    with penstock.open(tmp_path / "new") as ps:
        assert [message.text for message in ps.queue("news").browse()] == ["mine", *(f"news {at}" for at in range(8))]


def test_a_queue_that_was_deleted_can_be_imported_again(data: Path, tmp_path: Path) -> None:
    path = export_file(data, tmp_path / "file", queue=["news"])
    for _ in range(2):
        transfer.import_queues(str(tmp_path / "new"), path)
        with penstock.open(tmp_path / "new") as ps:
            assert ps._caller.call(QueueStats(name="news")).messages == 8
            ps.queue("news").delete()


# -- files -------------------------------------------------------------------------------------------------------------

HEAD = Head(version=1, id="0123456789abcdef", made_ms=1_750_000_000_000, made_by="penstock 0.1.0")


def write(path: Path, items: list[Item]) -> Path:
    with path.open("wb") as file:
        lines = JsonLines(file, HEAD)
        for item in items:
            lines.write(item)
        lines.close()
    return path


EXAMPLE: list[Item] = [
    QueueLine(queue="empty", settings={"lease_ms": 5_000}),
    QueueLine(
        queue="orders", settings={"max_receives": 2}, channels=[ChannelLine("main"), ChannelLine("web", paused=True)]
    ),
    MessageLine(sequence=0, id="a", sent_ms=1_749_999_999_000, body="tea"),
    MessageLine(
        sequence=7,
        id="b",
        sent_ms=1_749_999_999_500,
        body_base64=b"\x00\xff",
        attributes={
            "text": AttributeLine(text="tea"),
            "price": AttributeLine(text="12.50", type="Number"),
            "bytes": AttributeLine(base64=b"\xff"),
            "whole": AttributeLine(integer=3),
            "float": AttributeLine(number=2.5),
            "none": AttributeLine(number="nan"),
        },
        group="g",
        dedup_id="d",
        priority=9,
        due_ms=4_000_000_000_000,
        attempts=2,
        failures=[FailureLine(1, 5, 6, "worker", "no tea")],
        origin=OriginLine("shop", "main", 3, 4, 5, [FailureLine(4, 7, 8, "cook", "no milk")]),
        done_for=["web"],
    ),
]


def test_this_build_writes_what_the_golden_file_says(tmp_path: Path) -> None:
    assert write(tmp_path / "file", EXAMPLE).read_bytes() == GOLDEN.read_bytes()


def test_the_golden_file_is_read() -> None:
    with GOLDEN.open("rb") as file:
        assert [item for _, item in read_json_lines(file, "golden")] == [HEAD, *EXAMPLE]


def test_the_golden_arrow_file_is_read() -> None:
    with ARROW.open("rb") as file:
        head, *items = [item for _, item in read_arrow_file(file, "golden")]
    assert head == HEAD
    assert sorted(items, key=repr) == sorted(EXAMPLE, key=repr)


def test_arrow_has_what_the_golden_file_has() -> None:
    file = io.BytesIO()
    arrow = ArrowFile(file, HEAD, [item for item in EXAMPLE if isinstance(item, QueueLine)])
    for item in EXAMPLE:
        arrow.write(item)
    arrow.close()
    assert pa.ipc.open_file(file).schema == pa.ipc.open_file(io.BytesIO(ARROW.read_bytes())).schema
    head, *items = [item for _, item in read_arrow_file(file, "golden")]
    assert head == HEAD
    assert sorted(items, key=repr) == sorted(EXAMPLE, key=repr)


def test_fields_that_a_later_build_has_added_are_passed_over(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    for line in lines:
        line["colour"] = {"red": 1}
    lines[1]["settings"]["colour"] = "blue"
    path = tmp_path / "later"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    transfer.import_queues(str(tmp_path / "new"), path)
    with penstock.open(tmp_path / "new") as ps:
        assert ps.queues() == ["empty", "orders"]


def cut(text: bytes) -> bytes:
    return text[: len(text) - 200]


WRONG: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda text: b"", "line 1: this is not an export of Penstock"),
    "another file": (lambda text: b'{"kind": "poem"}\n' + text, "line 1: this is not an export of Penstock"),
    "a later version": (
        lambda text: text.replace(b'"version":1', b'"version":2'),
        "line 1: the export has version 2 of the format",
    ),
    "cut in a line": (cut, r"line 5: the line is cut short"),
    "cut between lines": (lambda text: text[: text.rindex(b'{"kind":"end"')], "line 5: the end is missing"),
    "a line is missing": (
        lambda text: b"".join(text.splitlines(True)[:3] + text.splitlines(True)[4:]),
        "line 5: 2 queues",
    ),
    "a damaged line": (lambda text: text.replace(b'"sequence":7', b'"sequence":\xff'), "line 5: it is damaged"),
    "a field of the wrong kind": (
        lambda text: text.replace(b'"sequence":7', b'"sequence":"7"'),
        "line 5: it is damaged",
    ),
    "a setting out of range": (
        lambda text: text.replace(b'"max_receives":2', b'"max_receives":-2'),
        "line 3: max_receives",
    ),
    "no value": (
        lambda text: text.replace(b'"whole":{"integer":3}', b'"whole":{}'),
        "line 5: attribute 'whole' has no value",
    ),
    "more behind the end": (lambda text: text + text, "line 7: there is more after the end"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_file_is_told_with_its_line_and_nothing_is_imported(tmp_path: Path, what: str) -> None:
    spoil, expected = WRONG[what]
    path = tmp_path / "bad.jsonl"
    path.write_bytes(spoil(GOLDEN.read_bytes()))
    with pytest.raises(InvalidExport, match=f"bad.jsonl, {expected}") as caught:
        transfer.import_queues(str(tmp_path / "new"), path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_damaged_arrow_files_are_told_and_nothing_is_imported(data: Path, tmp_path: Path) -> None:
    whole = export_file(data, tmp_path / "whole", format="arrow").read_bytes()
    path = tmp_path / "bad.arrow"
    for spoilt in (
        whole[: len(whole) // 2],
        whole[:-10],
        b"ARROW1\0\0" + whole[8:].replace(b"penstock.export", b"penstock.exporT"),
    ):
        path.write_bytes(spoilt)
        with pytest.raises(InvalidExport, match=r"bad\.arrow"):
            transfer.import_queues(str(tmp_path / "new"), path)
        assert not (tmp_path / "new").exists()


def test_standard_input_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GOLDEN.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        transfer.import_queues(str(tmp_path / "new"))
    with penstock.open(tmp_path / "new") as ps:
        assert ps.queues() == ["empty", "orders"]


def test_an_export_that_fails_leaves_the_file_that_was_there(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(penstock.QueueNotFound):
        export_file(data, tmp_path / "file", queue=["nowhere"])
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


@pytest.mark.parametrize("format", ["jsonl", "arrow"])
def test_an_export_into_a_pipe_or_a_device_goes_there_and_leaves_what_it_is(
    data: Path, tmp_path: Path, format: transfer.Format
) -> None:
    """`-o /dev/null` by root must not take it away from everybody else."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as reader:
        export_file(data, pipe, format=format)  # it fits into the pipe
        assert pipe.is_fifo()
        (tmp_path / "file").write_bytes(reader.read())
    transfer.import_queues(str(tmp_path / "new"), tmp_path / "file")


def test_an_export_through_a_link_leaves_the_link(data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    export_file(data, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_histories_that_cannot_be_read_are_refused_by_the_bulk_way() -> None:
    with pytest.raises(InvalidRequest, match="message 1 for queue 'orders': its history cannot be read"):
        send_of(Target("orders"), Chunk.of(0, 0, [b"a", b"b"], origins=[None, b"\x93garbage"]))


def test_browsing_tells_priorities() -> None:
    with penstock.open(":memory:") as ps:
        ps.queue("orders").send("urgent", priority=7)
        assert [seen.priority for seen in ps._caller.call(Browse(queue="orders"))] == [7]


def command(*arguments: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return ended.returncode, ended.stderr


def test_a_place_that_is_none_is_told_in_the_words_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for arguments, status, words in (
        (("export", str(tmp_path / "nowhere")), 3, "is not there: SOURCE is a data directory"),
        (("export", str(file)), 3, "is a file: SOURCE is a data directory"),
        (("import", str(file)), 2, "is a file: name a data directory or a server first"),
        (("store", "backup", str(tmp_path / "nowhere"), str(tmp_path / "copy")), 3, "there is no directory"),
    ):
        ended, text = command(*arguments)
        assert (ended, words in text, text.count("\n")) == (status, True, 1), text


def test_a_second_server_on_a_directory_is_told_what_to_do_on_its_command_line(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data"):
        ended, text = command("serve", "--data", str(tmp_path / "data"), "--sqs-port", "0", "--http-port", "0")
    assert ended == 4
    assert text.strip().endswith("Stop that process, or serve another directory: --data.")
    assert "penstock.connect" not in text
