"""Single messages by id, with the Python API and on the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.testing import server


def _work(ps: penstock.Penstock) -> None:
    queue = ps.create_queue("orders", max_receives=1)
    first, second, third = (queue.send(body) for body in ("tea", "cake", "salt"))
    assert ps.find_message(second.id).text == "cake"
    assert queue.delete_messages([second.id]) == 1
    with pytest.raises(penstock.MessageNotFound):
        ps.find_message(second.id)
    assert queue.reschedule_messages([third.sequence], delay=3_600) == 1
    message = queue.receive()
    assert message is not None and message.text == "tea"
    assert queue.receive() is None
    message.release(error="too hot")
    life = ps.find_message(first.id)
    assert (life.queue, life.id, [each.error for each in life.history]) == ("orders.dead", first.id, ["too hot"])
    assert [event.what for event in life.events] == ["sent", "received", "failed", "dead"]
    assert "failed: too hot" in life.lines()[2]
    assert queue.release_messages([third.id]) == 1
    message = queue.receive()
    assert message is not None and message.text == "salt"
    message.ack()
    with pytest.raises(penstock.MessageNotFound):
        ps.find_message("nonsense")


def test_messages_are_found_deleted_and_rescheduled_by_id(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as ps:
        _work(ps)


def test_the_same_over_a_connection() -> None:
    with server() as running, penstock.connect(running.url) as ps:
        _work(ps)


def _penstock(*arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *arguments, "--data", str(data)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_explain_prints_the_life_of_a_message(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as ps:
        sent = ps.queue("orders").send("tea")
        message = ps.queue("orders").receive()
        assert message is not None
        message.release(error="too hot")
    told = _penstock("explain", sent.id, data=tmp_path / "data")
    assert told.returncode == 0, told.stderr
    for text in (sent.id, "orders/main  attempt 1  failed: too hot", "ready", "\ntea"):
        assert text in told.stdout
    deleted = _penstock("message", "delete", "orders", sent.id, data=tmp_path / "data")
    assert deleted.stdout == "1 deleted\n", deleted.stderr
    assert _penstock("explain", sent.id, data=tmp_path / "data").returncode == 3
