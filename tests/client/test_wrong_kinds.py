"""What is given in the wrong kind is refused alike in process and by a server, and harms nobody."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

import penstock

HALF = "half a character: \ud800"
LARGE = 2**70

CALLS: dict[str, Callable[[Any], Any]] = {
    "a queue that is a number": lambda ps: ps.queue(5).send(b"a"),
    "a queue that is None": lambda ps: ps.queue(None).receive(),
    "a queue that is a list": lambda ps: ps.queue(["a"]).receive(),
    "a queue with half a character": lambda ps: ps.queue(HALF).send(b"a"),
    "a body with half a character": lambda ps: ps.queue("orders").send(HALF),
    "a body that is None": lambda ps: ps.queue("orders").send(None),
    "bodies that are None": lambda ps: ps.queue("orders").send_many(None),
    "attributes that are a list": lambda ps: ps.queue("orders").send(b"a", attributes=[("a", 1)]),
    "a group that is a number": lambda ps: ps.queue("orders").send(b"a", group=5),
    "a group that is bytes": lambda ps: ps.queue("orders").send(b"a", group=b"a"),
    "groups that are numbers": lambda ps: ps.queue("orders").send_many([b"a", b"b"], groups=["a", 5]),
    "a dedup id that is a number": lambda ps: ps.queue("orders").send(b"a", dedup_id=5),
    "a priority that is text": lambda ps: ps.queue("orders").send(b"a", priority="5"),
    "a priority that is a fraction": lambda ps: ps.queue("orders").send(b"a", priority=1.5),
    "a priority that is large": lambda ps: ps.queue("orders").send(b"a", priority=LARGE),
    "a delay that is large": lambda ps: ps.queue("orders").send(b"a", delay=1e300),
    "a time that is large": lambda ps: ps.queue("orders").send(b"a", due=1e300),
    "a limit that is text": lambda ps: ps.queue("orders").receive(max="5"),
    "a limit that is a fraction": lambda ps: ps.queue("orders").receive(max=1.5),
    "a limit that is large": lambda ps: ps.queue("orders").receive(max=LARGE),
    "a wait that is large": lambda ps: ps.queue("orders").receive(wait=1e300),
    "an attempt id that is a number": lambda ps: ps.queue("orders").receive(attempt_id=5),
    "a receipt that is None": lambda ps: ps.queue("orders").ack(None),
    "a receipt that is a number": lambda ps: ps.queue("orders").ack([5]),
    "a lease that is None": lambda ps: ps.queue("orders").extend("receipt", None),
    "an error that is a number": lambda ps: ps.queue("orders").release("receipt", error=5),
    "a search for a number": lambda ps: ps.queue("orders").search(5),
    "an offset that is text": lambda ps: ps.queue("orders").consumer("reader").ack("5"),
    "an offset that is large": lambda ps: ps.queue("orders").consumer("reader").read(offset=LARGE),
    "a search for half a character": lambda ps: ps.queue("orders").search(HALF),
    "a redrive for half a character": lambda ps: ps.redrive("orders", error=HALF),
    "a redrive of half a character": lambda ps: ps.redrive("orders", contains=HALF),
    "an attempt id with half a character": lambda ps: ps.create_queue("q.fifo", kind="fifo").receive(attempt_id=HALF),
    "a session that is None": lambda ps: ps.session(None),
    "a tag with half a character": lambda ps: ps.create_queue("other", tags={"a": HALF}),
    "a dead-letter queue that is an object": lambda ps: ps.create_queue("other", dead_letter=object()),
    "a prefix that is None": lambda ps: ps.queues(None),
    "a redrive for an error that is a number": lambda ps: ps.redrive("orders", error=5),
    "a redrive for a rate that is text": lambda ps: ps.redrive("orders", rate="5"),
    "a redrive at a rate of True": lambda ps: ps.redrive("orders", rate=True),
    "a redrive of True": lambda ps: ps.redrive("orders", ids=[True]),
    "a redrive of a number that is large": lambda ps: ps.redrive("orders", ids=[LARGE]),
    "an offset that is True": lambda ps: ps.queue("orders").consumer("reader").ack(True),
    "a list of no dedup ids": lambda ps: ps.queue("orders").send_many([b"a"], dedup_ids=[]),
    "a list of no groups": lambda ps: ps.create_queue("q.fifo", kind="fifo", content_dedup=True).send_many(
        [b"a"], groups=[]
    ),
    "a take from None": lambda ps: ps.unit_of_work().take(None),
}


class Text(str):
    """Text of a class of its own, as numpy, Django or lxml have one."""


class Number(int):
    pass


class Bytes(bytes):
    pass


class Kind(StrEnum):
    ORDERS = "orders"


def released(ps: Any) -> Any:
    return ps.queue("orders").receive().release(error=Text("not now"))


OF_THEIR_OWN_CLASS: dict[str, Callable[[Any], Any]] = {
    "a queue": lambda ps: ps.queue(Text("other")).send(b"a"),
    "a queue of an enum": lambda ps: ps.queue(Kind.ORDERS).receive().release(),
    "a body": lambda ps: ps.queue("other").send_many([Bytes(b"a"), Text("b")]),
    "attributes": lambda ps: ps.queue("other").send(b"a", attributes={Text("a"): Text("b"), "c": Number(1)}),
    "a group": lambda ps: ps.queue("other").send(b"a", group=Text("a")),
    "groups": lambda ps: ps.queue("other").send_many([b"a", b"b"], groups=[None, Text("a")]),
    "a dedup id": lambda ps: ps.queue("other").send(b"a", dedup_id=Text("a")),
    "dedup ids": lambda ps: ps.queue("other").send_many([b"a", b"b"], dedup_ids=["a", Text("b")]),
    "a priority": lambda ps: ps.queue("other").send(b"a", priority=Number(3)),
    "a limit": lambda ps: ps.queue("orders").receive_batch(Number(5)).release(),
    "a receipt": lambda ps: ps.queue("orders").release([Text(ps.queue("orders").receive().receipt)]),
    "an error": released,
    "a search": lambda ps: ps.queue("orders").search(Bytes(b"fore"))[0],
    "a session": lambda ps: ps.session(Text("worker")),
    "a channel": lambda ps: ps.queue("orders").channel(Text("audit")),
    "a consumer": lambda ps: ps.queue("orders").consumer(Text("reader")).ack(Number(1)),
    "an attempt id": lambda ps: ps.create_queue("q.fifo", kind="fifo").receive(attempt_id=Text("a")),
    "a redrive": lambda ps: ps.redrive("orders", to=Text("other"), error=Text("no such"), rate=Number(5)),
}


@pytest.mark.parametrize("call", OF_THEIR_OWN_CLASS.values(), ids=OF_THEIR_OWN_CLASS)
def test_text_and_numbers_of_their_own_class_are_what_they_are(ps: Any, call: Callable[[Any], Any]) -> None:
    ps.queue("orders").send(b"before")
    call(ps)
    ps.queue("orders").send(b"after")
    assert sorted(ps.queue("orders").receive_batch().bodies) == [b"after", b"before"]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_wrong_kind_is_refused_and_nobody_is_the_worse_for_it(ps: Any, call: Callable[[Any], Any]) -> None:
    ps.queue("orders").send(b"before")
    redrives = ps.redrives()
    with pytest.raises(penstock.InvalidRequest):
        call(ps)
    ps.queue("orders").send(b"after")
    assert sorted(ps.queue("orders").receive_batch().bodies) == [b"after", b"before"]
    assert ps.redrives() == redrives


def test_it_is_named_as_the_caller_has_named_it(ps: Any) -> None:
    queue = ps.create_queue("orders")
    said: dict[str, Callable[[], Any]] = {
        "max is 0: it must be at least 1": lambda: queue.receive(max=0),
        "max is -1: it must be at least 1": lambda: queue.consumer("reader").read(-1),
        "max is '5': it must be a whole number": lambda: queue.receive_batch("5"),
        "priority is 'high': it must be a whole number": lambda: queue.send(b"a", priority="high"),
    }
    for words, call in said.items():
        with pytest.raises(penstock.InvalidRequest) as refused:
            call()
        assert str(refused.value) == words


@pytest.mark.parametrize("kind", [str, bytes, bytearray, memoryview])
def test_whatever_may_be_a_body_may_be_searched_for(ps: Any, kind: Any) -> None:
    ps.queue("orders").send_many([b"tea", b"cake"])
    needle = "ak" if kind is str else kind(b"ak")
    assert [message.body for message in ps.queue("orders").search(needle)] == [b"cake"]
    assert [message.body for message in ps.queue("orders").browse(contains=needle)] == [b"cake"]
    ps.redrive("orders", to="other", contains=needle).wait(timeout=10)
    assert ps.queue("other").receive(wait=10).body == b"cake"


def test_a_put_of_the_wrong_kind_spoils_only_its_unit(ps: Any) -> None:
    work = ps.unit_of_work()
    with pytest.raises(penstock.InvalidRequest):
        work.put(["a"], b"a")
    work.put("orders", b"a", group=5)
    with pytest.raises(penstock.InvalidRequest):
        work.commit()
    work.rollback()
    ps.queue("orders").send(b"b")
    assert ps.queue("orders").stats().messages == 1


def test_a_store_opens_again_after_a_redrive_of_the_wrong_kind(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as ps:
        ps.queue("orders").send(b"a")
        with pytest.raises(penstock.InvalidRequest, match="error is 5: it must be text"):
            ps.redrive("orders", error=5)  # type: ignore[arg-type]
    with penstock.open(tmp_path) as ps:
        assert ps.queue("orders").receive().body == b"a"  # type: ignore[union-attr]


def test_a_store_opens_again_after_an_offset_of_the_wrong_kind(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as ps:
        ps.queue("orders").send(b"a")
        with pytest.raises(penstock.InvalidRequest, match="offset is True: it must be a whole number"):
            ps.queue("orders").consumer("reader").ack(True)
    with penstock.open(tmp_path) as ps:
        assert ps.queue("orders").receive().body == b"a"  # type: ignore[union-attr]


@pytest.mark.parametrize("path", [None, 5, b"data", "", "a\0b", "penstock://localhost:9325"])
def test_a_path_that_is_none_makes_no_store(path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for read_only in (False, True):
        with pytest.raises(penstock.InvalidRequest):
            penstock.open(path, read_only=read_only)
    assert not list(tmp_path.iterdir())
