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
    with pytest.raises(penstock.MessageNotFound, match="was number 2 of queue 'orders', and is no longer there"):
        ps.find_message(third.id)
    for look in (ps.find_message, queue.look_up):
        with pytest.raises(penstock.InvalidRequest, match="'nonsense' is not a message id"):
            look("nonsense")


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
    gone = "acknowledged, deleted or moved"
    absent = "00000000-0000-4000-8000-000000000000"
    for asked, status, said in (
        (
            [sent.id],
            3,
            f"penstock: message {sent.id} was number 0 of queue 'orders', and is no longer there: it was {gone}",
        ),
        (["0", "--queue", "orders"], 3, f"penstock: queue 'orders' has no message 0: it was {gone}"),
        (["nonsense"], 2, "penstock: 'nonsense' is not a message id: ids look like"),
        (["nonsense", "--queue", "orders"], 2, "penstock: 'nonsense' is not a message id: ids look like"),
        ([absent], 3, f"penstock: there is no message '{absent}': its queue is gone, or never existed"),
    ):
        ended = _penstock("explain", *asked, data=tmp_path / "data")
        assert (ended.returncode, ended.stdout) == (status, "")
        assert ended.stderr.startswith(said) and ended.stderr.count("\n") == 1, ended.stderr


def test_explain_says_that_a_message_is_done_while_its_neighbours_are_not(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as ps:
        queue = ps.queue("orders")
        first, second = queue.send_many(["tea", "cake"])
        assert queue.delete_messages([first.id]) == 1
    told = _penstock("explain", first.id, data=tmp_path / "data")
    assert told.stdout.endswith("It is done in every channel: acknowledged, deleted, or moved to another queue.\n")
    assert told.returncode == 3
    assert _penstock("explain", second.id, data=tmp_path / "data").returncode == 0


def test_a_command_on_messages_that_are_not_there_says_so(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as ps:
        ps.queue("orders").send("tea")
    for command in (["delete"], ["release"], ["reschedule", "--delay", "5"]):
        ended = _penstock("message", *command, "orders", "999", data=tmp_path / "data")
        assert (ended.returncode, ended.stdout) == (3, "")
        assert (
            ended.stderr
            == "penstock: queue 'orders' has none of these messages: they were acknowledged, deleted or expired\n"
        )
        ended = _penstock("message", *command, "orders", "999", "--json", data=tmp_path / "data")
        assert ended.returncode == 3 and ended.stdout.endswith(":0}\n")
    some = _penstock("message", "delete", "orders", "0", "999", data=tmp_path / "data")
    assert (some.returncode, some.stdout) == (0, "1 deleted\n")


def test_a_sequence_number_is_explained_with_its_queue_only(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as ps:
        ps.queue("orders").send("tea")
    ended = _penstock("explain", "0", data=tmp_path / "data")
    assert ended.returncode == 2
    assert "penstock: 0 is a sequence number: name its queue with --queue." in ended.stderr
    assert _penstock("explain", "0", "--queue", "orders", data=tmp_path / "data").returncode == 0
