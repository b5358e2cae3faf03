"""Nodes are killed and networks are cut under load: nothing is lost, nothing comes after its ack. `make cluster-soak`
does the same for longer, in more ways; here is the shortest of it, and the proof that the books can find fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import zookeeper
from tests.cluster.books import DEAD, ONCE, Books, Report
from tests.cluster.soak import CONFIGURATIONS, Configuration, run
from tests.cluster.world import World
from tests.kafka import loudly
from tools.kafka import jars
from tools.zookeeper import jars as jars_of_zookeeper

SESSION_S = 3.0


@pytest.mark.timeout(400)
def test_nothing_is_lost_when_a_node_is_killed_and_another_is_cut_from_the_broker(tmp_path: Path) -> None:
    with loudly():
        jars()
    chosen = Configuration("short", 1, (World.kill_node, World.cut_node))
    report = run(chosen, seed=3, seconds=10.0, session_s=SESSION_S, directory=tmp_path)
    print(report)
    assert report.is_good, report
    assert report.sent, report


@pytest.mark.timeout(400)
def test_nothing_is_lost_on_zookeeper_when_a_server_and_a_node_are_killed(
    tmp_path: Path,
) -> None:
    with zookeeper.loudly():
        jars_of_zookeeper()
    chosen = Configuration("short", 3, (World.kill_broker, World.kill_node), "zookeeper")
    report = run(chosen, seed=6, seconds=14.0, session_s=SESSION_S, directory=tmp_path)
    print(report)
    assert report.is_good, report
    assert report.sent, report


def closed(books: Books) -> Report:
    books.begin()
    books.end()
    return books.report("test", 0, [], [], [])


def test_the_books_find_what_was_lost() -> None:
    books = Books()
    for queue in ("orders", "line.fifo", "work", "notes", "news", ONCE):
        books.sent(queue, "a-1")
        books.sent(queue, "a-2!")
    books.received("orders", "a-1", 0.0)
    books.received("orders", "a-2!", 0.0)
    books.received("work", "a-1", 0.0)
    report = closed(books)
    assert report.violations["lost"] == [
        "orders: a-2!",  # it had to die
        *["line.fifo: a-1", "line.fifo: a-2!"],
        *["work: a-1", "work: a-2!"],  # it had to be moved
        *["notes: a-1", "notes: a-2!"],
        *["news: a-1", "news: a-2!"],
    ]
    books.received(DEAD, "a-2!", 0.0)
    assert "orders: a-2!" not in closed(books).violations["lost"]


def test_the_books_find_what_came_after_its_ack_and_not_what_was_asked_for_before() -> None:
    books = Books()
    books.received("orders", "a-1", 0.0)
    books.acked("orders", "a-1")
    books.received("orders", "a-1", 0.0)
    assert closed(books).is_good
    books.received("orders", "a-1", float("inf"))
    assert closed(books).violations["after ack"] == ["orders: a-1"]
    assert not closed(books).is_good


def test_the_books_tell_messages_apart_by_their_ids() -> None:
    books = Books()
    books.received("held", "a-1", 0.0, "one")
    books.acked("held", "a-1", "one")
    books.received("held", "a-1", float("inf"), "another")
    assert closed(books).is_good
    books.received("held", "a-1", float("inf"), "one")
    assert closed(books).violations["after ack"] == ["held: a-1"]


def test_nothing_comes_after_its_ack_when_a_server_of_several_shards_is_killed(tmp_path: Path) -> None:
    chosen = next(each for each in CONFIGURATIONS if each.name == "several shards, killed")
    report = run(chosen, seed=3, seconds=10.0, session_s=SESSION_S, directory=tmp_path)
    print(report)
    assert report.is_good, report
    assert report.sent, report


def test_the_books_find_disorder_among_what_was_confirmed() -> None:
    books = Books()
    for number in (0, 2, 1, 3, 2):
        books.received("line.fifo", f"a-{number}", 0.0)
    assert closed(books).is_good, "1 was never confirmed: it may have been sent late"
    books.sent("line.fifo", "a-1")
    assert closed(books).violations["disorder"] == ["a: 1 after 2"]


def test_the_books_know_which_queue_is_silent() -> None:
    books = Books()
    books.begin()
    books.sent("news", "a-1")
    assert "news" not in books.unserved_since(0.0)
    silent = {"orders", "line.fifo", "work", "notes", "news", "held", ONCE}
    assert set(books.unserved_since(float("inf"))) == silent


def test_the_books_find_what_came_twice_and_must_not() -> None:
    books = Books()
    for identity in "xy":
        books.received("letters", "a-1", 0.0, identity)
        books.received("orders", "a-1", 0.0, identity)
    books.received(ONCE, "a-2", 0.0)
    assert closed(books).violations["moved twice"] == ["letters: a-1"]
    assert not closed(books).violations["at most"]
    books.received(ONCE, "a-2", 0.0)
    assert closed(books).violations["at most"] == ["a-2"]
