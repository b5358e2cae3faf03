"""Messages that go on elsewhere while a neighbour of their batch is unfinished: dead, redriven, or to be retried."""

from __future__ import annotations

from pathlib import Path

import penstock
from penstock.core.delivery.states import State
from penstock.testing import server


def _die(ps: penstock.Penstock, error: str) -> None:
    message = ps.queue("rep").receive()
    assert message is not None and message.text == "a"
    message.release(error=error)


def _redrive(ps: penstock.Penstock) -> None:
    assert ps.redrive("rep.dead").wait(20).moved == 1


def _states(life: penstock.MessageLife) -> list[str]:
    return [each.state.name for each in life.channels]


def _work(ps: penstock.Penstock) -> None:
    queue = ps.create_queue("rep", max_receives=1)
    first, second = queue.send("a").id, queue.send("b").id
    ps.create_queue("other").send("c")
    assert queue.delete_messages([first, second]) == 2
    first, second = (message.id for message in queue.send_many(["a", "b"]))
    _die(ps, "boom")
    life = ps.find_message(first)
    assert (life.queue, life.id, _states(life)) == ("rep.dead", first, ["READY"])
    assert [event.what for event in life.events] == ["sent", "received", "failed", "dead"]
    assert _states(queue.look_up(first)) == ["DONE"]
    assert queue.delete_messages([first]) == 0  # it is not in this queue
    _redrive(ps)
    (_, back) = queue.browse()
    assert (back.id, back.text) == (first, "a")
    for life in (ps.find_message(first), queue.look_up(first), queue.look_up(back.sequence)):
        assert (life.queue, life.id, life.sequence, _states(life)) == ("rep", first, back.sequence, ["READY"])
    assert (life.events[-1].what, life.events[-1].text) == ("sent", "brought back by a redrive")
    assert queue.reschedule_messages([first, second], delay=3_600) == 2
    assert [each.state for each in queue.browse()] == [State.DELAYED, State.DELAYED]
    assert queue.release_messages([first]) == 1
    assert [each.state for each in queue.browse()] == [State.DELAYED, State.READY]
    assert queue.delete_messages([first]) == 1
    assert [each.id for each in queue.browse()] == [second]
    assert queue.delete_messages([first]) == 0


def test_a_message_is_found_by_its_id_after_it_moved(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as ps:
        _work(ps)


def test_it_is_found_over_a_connection() -> None:
    with server() as running, penstock.connect(running.url) as ps:
        _work(ps)


def test_what_waits_for_its_next_try_is_not_done(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as ps:
        queue = ps.create_queue("rep", max_receives=10)
        queue.send_many(["a", "b", "c", "d"])
        for held in (3, 2, 1):  # each time one more stays behind, in the chunk where it was
            got = queue.receive(held)
            for message in got:
                message.release(delay=3_600 if held == 1 else 0, error="boom")
            for seen in queue.browse():
                assert _states(queue.look_up(seen.sequence)) == [seen.state.name]
        assert queue.browse(states=[State.DONE]) == []


def test_a_done_message_is_due_no_more(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as ps:
        queue = ps.queue("rep")
        queue.send_many(["a", "b"])
        message = queue.receive()
        assert message is not None
        message.ack()
        assert [each.deadline_ms for each in queue.look_up(message.id).channels] == [0]
