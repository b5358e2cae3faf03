"""Files that nobody should import: each is refused in one line that names the file, and nothing is left behind."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.cli import transfer
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.transfer import arrow_file
from penstock.transfer.arrow_file import ArrowFile
from penstock.transfer.contents import AttributeLine, ChannelLine, Head, InvalidExport, Item, MessageLine, QueueLine
from penstock.transfer.importing import check_export, read_export
from tests.client.node import ThreadedNode
from tests.transfer.test_transfer import EXAMPLE, GOLDEN, HEAD, write


def refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(InvalidExport, match=f"bad.*{words}") as caught:
        transfer.import_queues(str(tmp_path / "new"), path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def arrow_bytes(items: list[Item], head: Head = HEAD) -> bytes:
    file = io.BytesIO()
    arrow = ArrowFile(file, head, [item for item in items if isinstance(item, QueueLine)])
    for item in items:
        arrow.write(item)
    arrow.close()
    return file.getvalue()


def rewritten(change: Callable[[pa.Table], pa.Table]) -> bytes:
    """The example, after another program had it."""
    table = pa.ipc.open_file(arrow_bytes(EXAMPLE)).read_all()
    metadata = table.schema.metadata
    changed = change(table)
    changed = changed.replace_schema_metadata({**metadata, **(changed.schema.metadata or {})})
    file = io.BytesIO()
    with pa.ipc.new_file(file, changed.schema) as writer:
        writer.write_table(changed)
    return file.getvalue()


# -- what a send would refuse ------------------------------------------------------------------------------------------

MESSAGES: dict[str, tuple[dict[str, Any], str]] = {
    "priority 10": ({"priority": 10}, "priority is 10"),
    "priority -1": ({"priority": -1}, "priority is -1"),
    "priority 10**30": ({"priority": 10**30}, ""),
    "due in an age": ({"due_ms": 2**62}, "within a hundred years"),
    "long group": ({"group": "g" * 2_000}, "a group has 1 to"),
    "long dedup id": ({"dedup_id": "g" * 2_000}, "a dedup id has 1 to"),
    "long id with a dedup id": ({"dedup_id": "d", "id": "i" * 2_000}, "a dedup id"),
    "long history": ({"failures": [{"attempt": 1, "error": "x" * (1 << 21)}]}, "history cannot be read: it has"),
    "sent_ms 10**30": ({"sent_ms": 10**30}, "sent_ms"),
    "sent_ms -1": ({"sent_ms": -1}, "sent_ms"),
    "attempts 10**30": ({"attempts": 10**30}, "attempts"),
    "sequence 2**64": ({"sequence": 2**64}, "sequence"),
    "integer 2**64": ({"attributes": {"a": {"integer": 2**64}}}, ""),
    "deep": ({"deep": 0}, "it is damaged"),
}


def lines(queue: dict[str, Any], message: dict[str, Any], head: dict[str, Any] | None = None) -> bytes:
    rows = [
        {"kind": "penstock-export", "version": 1, "id": "x", "made_ms": 0, **(head or {})},
        {"kind": "queue", "queue": "orders", "channels": [{"name": "main"}], **queue},
        {"kind": "message", "sequence": 0, "id": "m", "sent_ms": 0, "body": "tea", **message},
        {"kind": "end"},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return text.replace('"deep": 0', '"deep": ' + "[" * 100_000 + "]" * 100_000).encode()


@pytest.mark.parametrize("what", MESSAGES)
def test_a_message_that_a_queue_would_refuse_is_told_with_its_line_before_a_queue_is_made(
    tmp_path: Path, what: str
) -> None:
    message, words = MESSAGES[what]
    refused(tmp_path, lines({}, message), f"line 3: .*{words}")


def test_messages_of_a_fifo_queue_need_a_group_and_a_dedup_id(tmp_path: Path) -> None:
    refused(tmp_path, lines({"queue": "a.fifo"}, {"dedup_id": "d"}), "line 3: .*needs a group")
    refused(tmp_path, lines({"queue": "a.fifo"}, {"group": "g"}), "line 3: .*needs a dedup id")


def test_names_are_checked_first(tmp_path: Path) -> None:
    refused(tmp_path, lines({"queue": "my orders"}, {}), "line 2: 'my orders' cannot name a queue")
    refused(tmp_path, lines({"channels": [{"name": "a/b"}]}, {}), "line 2: 'a/b' cannot name a channel")
    refused(tmp_path, lines({}, {}, {"id": "i" * 300}), "line 1: it is damaged")
    refused(tmp_path, lines({}, {}, {"id": "a\nb"}), "line 1: it is damaged")
    refused(tmp_path, lines({}, {}, {"deep": 0}), "line 1")
    refused(tmp_path, lines({"settings": {"deep": 0}}, {}), "line 2")


@pytest.mark.parametrize("counts", [b'"queues":0', b'"messages":0', b'"queues":2,"messages":0', b'"messages":3'])
def test_counts_of_the_last_line_are_compared_also_if_they_are_0(tmp_path: Path, counts: bytes) -> None:
    text = GOLDEN.read_bytes()
    refused(tmp_path, text[: text.rindex(b'{"kind":"end"')] + b'{"kind":"end",' + counts + b"}\n", "are missing")


# -- Arrow -------------------------------------------------------------------------------------------------------------


def with_column(name: str, values: list[Any], type: pa.DataType | None = None) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(table.schema.get_field_index(name), name, pa.array(values, type))

    return change


ARROW: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "no queue": (with_column("queue", [None, "orders"]), "row 1: it names no queue"),
    "no body": (with_column("body", [None, b"x"]), "row 1: .*no body"),
    "a column is missing": (lambda table: table.drop_columns(["body"]), "0 columns 'body'"),
    "a column is there twice": (lambda table: table.append_column("id", table["id"]), "2 columns 'id'"),
    "another type": (with_column("sequence", ["a", "b"]), "column 'sequence' is string"),
    "another type within": (with_column("attributes", [[{"name": 1}], []]), "column 'attributes' is list"),
    "an attribute is null": (with_column("attributes", [[None], []], arrow_file._ATTRIBUTES), "row 1: it is damaged"),
    "bad UTF-8 in the head": (
        lambda table: table.replace_schema_metadata({b"penstock.export": b'{"kind":"\xff"}'}),
        "not an export of Penstock",
    ),
    "bad UTF-8 in the queues": (
        lambda table: table.replace_schema_metadata({b"penstock.queues": b'[{"kind":"queue","queue":"\xff"}]'}),
        "the queues in its metadata cannot be read",
    ),
    "deep queues": (
        lambda table: table.replace_schema_metadata({b"penstock.queues": b"[" * 100_000}),
        "the queues in its metadata cannot be read",
    ),
}


@pytest.mark.parametrize("what", ARROW)
def test_an_arrow_file_that_is_no_export_is_refused(tmp_path: Path, what: str) -> None:
    change, words = ARROW[what]
    refused(tmp_path, rewritten(change), words)


def test_an_arrow_file_with_more_columns_and_large_text_is_read(tmp_path: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        table = with_column("id", ["a", "b"], pa.large_string())(table)
        return table.append_column("colour", pa.array([1, 2])).drop_columns(["origin"])

    (tmp_path / "file").write_bytes(rewritten(change))
    transfer.import_queues(str(tmp_path / "new"), tmp_path / "file")
    with penstock.open(tmp_path / "new") as ps:
        assert len(ps.queue("orders").browse()) == 2


def test_a_whole_number_that_arrow_cannot_hold_is_told(tmp_path: Path) -> None:
    attributes = {"big": AttributeLine(integer=2**64 - 1)}
    with pytest.raises(InvalidRequest, match=r"queue 'orders', message 5: attribute 'big' .* --format jsonl"):
        arrow_bytes([QueueLine(queue="orders"), MessageLine(sequence=5, id="m", sent_ms=0, attributes=attributes)])


def test_batches_of_an_arrow_file_are_cut_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_file, "_FLUSH_BYTES", 1_000)
    text = {"a": AttributeLine(text="x" * 200)}
    items = [MessageLine(sequence=at, id="m", sent_ms=0, body="x" * 300, attributes=text) for at in range(9)]
    assert pa.ipc.open_file(arrow_bytes([QueueLine(queue="orders"), *items])).num_record_batches == 9


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["jsonl", "arrow"])
def test_a_damaged_file_is_read_or_refused_and_never_a_surprise(tmp_path: Path, format: str) -> None:
    whole = GOLDEN.read_bytes() if format == "jsonl" else arrow_bytes(EXAMPLE)
    path, chance, refusals = tmp_path / "bad", random.Random(7), 0
    for _ in range(400):
        spoilt = bytearray(whole)
        for _ in range(chance.randint(0, 3)):
            spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.3:
            del spoilt[chance.randrange(len(spoilt)) :]
        path.write_bytes(spoilt)
        try:
            with path.open("rb") as file:
                check_export(read_export(file, "bad", path))
        except PenstockError as error:
            refusals += 1
            assert str(error).startswith("bad")
            assert "\n" not in str(error)
    assert refusals > 100


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_messages_with_large_attributes_go_into_a_server(tmp_path: Path) -> None:
    items: list[Item] = [QueueLine(queue="orders", channels=[ChannelLine("main")])]
    large = {"a": AttributeLine(text="x" * 200_000)}
    items += [MessageLine(sequence=at, id=f"m{at}", sent_ms=0, body="b", attributes=large) for at in range(250)]
    path = write(tmp_path / "file", items)
    node = ThreadedNode(tmp_path / "node")
    try:
        transfer.import_queues(node.url, path)
        with penstock.connect(node.url) as ps:
            assert ps.queue("orders").stats().messages == 250
    finally:
        node.stop()
