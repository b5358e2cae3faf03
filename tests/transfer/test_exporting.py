"""What an export does with queues that are not as one would wish, and with its file."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.cli import transfer
from penstock.transfer.contents import ChannelLine, MessageLine, QueueLine, read_json_lines
from tests.client.node import ThreadedNode
from tests.test_salvage import spoil
from tests.transfer.test_transfer import write

CREDENTIALS = """
[[credentials]]
name = "reader"
access_key = "AKREAD"
secret_key = "read-secret"
token = "read-token"
[[credentials.allow]]
queues = ["r*"]
rights = ["read"]
"""


def bodies(path: Path) -> list[str | None]:
    with path.open("rb") as file:
        return [item.body for _, item in read_json_lines(file, path.name) if isinstance(item, MessageLine)]


@pytest.mark.parametrize("ids", [[1], [1, 2], [2, 3]])
def test_messages_that_are_damaged_are_left_out_and_counted(
    tmp_path: Path, ids: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    for at in range(3):
        with penstock.open(tmp_path / "data") as ps:
            ps.queue("orders").send_many([f"{at} {number}".encode() for number in range(2)])
    for at in ids:
        spoil(tmp_path / "data", "UPDATE chunks SET body = x'00' WHERE id = ?", at)
    transfer.export_queues(str(tmp_path / "data"), output=tmp_path / "file")
    expected = [f"{at} {number}" for at in range(3) if at + 1 not in ids for number in range(2)]
    assert bodies(tmp_path / "file") == expected
    assert f"{2 * len(ids)} messages of orders are damaged, and were not exported" in capsys.readouterr().err


def test_a_message_that_is_delivered_once_and_was_received_is_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.open(tmp_path / "data") as ps:
        queue = ps.create_queue("orders", policy="consume_once")
        queue.send_many([b"taken", b"waits"])
        assert queue.receive() is not None
        transfer.export_queues(str(tmp_path / "data"), output=tmp_path / "file")
    assert bodies(tmp_path / "file") == ["waits"]
    assert "1 message of orders" in capsys.readouterr().err


def test_a_queue_that_is_named_twice_is_exported_once(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as ps:
        ps.queue("orders").send("tea")
    transfer.export_queues(str(tmp_path / "data"), queue=["orders", "orders"], output=tmp_path / "file")
    assert bodies(tmp_path / "file") == ["tea"]
    transfer.import_queues(str(tmp_path / "new"), tmp_path / "file")


def test_an_export_without_a_queue_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with penstock.open(tmp_path / "data"):
        pass
    transfer.export_queues(str(tmp_path / "data"), output=tmp_path / "file")
    assert f"no queue was exported from {tmp_path / 'data'}: there is none" in capsys.readouterr().err


def test_a_token_that_may_read_nothing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with penstock.open(tmp_path / "node") as ps:
        ps.queue("orders").send("tea")
    node = ThreadedNode(tmp_path / "node", CREDENTIALS)
    try:
        transfer.export_queues(node.url, output=tmp_path / "file", token="read-token")
    finally:
        node.stop()
    assert "there is none that this token may read" in capsys.readouterr().err


def test_two_exports_to_one_file_do_not_mix(tmp_path: Path) -> None:
    with transfer._written(tmp_path / "file") as first:
        first.write(b"first")
        with transfer._written(tmp_path / "file") as second:
            second.write(b"second")
        assert (tmp_path / "file").read_bytes() == b"second"
    assert (tmp_path / "file").read_bytes() == b"first"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_message_that_is_too_large_for_a_server_is_told_as_such(tmp_path: Path) -> None:
    message = MessageLine(sequence=0, id="m", sent_ms=0, body="x" * (40 << 20))
    path = write(tmp_path / "file", [QueueLine(queue="orders", channels=[ChannelLine("main")]), message])
    node = ThreadedNode(tmp_path / "node")
    try:
        with pytest.raises(penstock.PenstockError, match=r"file, line 3.* the body is larger than .* 413"):
            transfer.import_queues(node.url, path)
    finally:
        node.stop()
