"""What commands of several kinds are checked for, and what is made of values that are not quite what they should be."""

from __future__ import annotations

import pytest

from penstock.core import commands as c
from penstock.core.errors import InvalidName, InvalidRequest, PenstockError, QueueReplaced
from penstock.core.handlers.checks import plain
from tests.core.driver import BrokerDriver


class Text(str):
    """Text of a class of its own."""


class Data(bytes):
    """Bytes of a class of its own."""


class Number(int):
    """A whole number of a class of its own."""


class Share(float):
    """A number of a class of its own."""


@pytest.mark.parametrize(
    ("value", "kind"), [(Text("x"), str), (Data(b"x"), bytes), (Number(7), int), (Share(0.5), float)]
)
def test_values_of_classes_of_their_own_are_written_as_what_they_are(value: object, kind: type) -> None:
    assert (type(plain(value)), plain(value)) == (kind, value)


def test_nothing_else_is_written() -> None:
    with pytest.raises(TypeError, match="objects of type set"):
        plain({1})


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        (c.Receive(queue="q", limit=0), InvalidRequest, "limit is 0"),
        (c.Receive(queue="q", wait_ms=-1), InvalidRequest, "wait_ms is -1"),
        (c.Receive(queue="q", lease_ms=-1), InvalidRequest, "lease is -0.001"),
        (c.Subscribe(queue="q", ticket="t", credit=-1), InvalidRequest, "credit is -1"),
        (c.Ack(queue="q", spans=[c.Span(3, 2, 1)]), InvalidRequest, "a span goes from 3 to 2"),
        (c.Release(queue="q", spans=[], delay_ms=-1), InvalidRequest, "delay is -0.001"),
        (c.OpenSession(name="s", ttl_ms=0), InvalidRequest, "ttl_ms is 0"),
        (c.ReadRecords(queue="q", offset=-1), InvalidRequest, "offset is -1"),
        (c.ReadRecords(queue="q", bytes_max=0), InvalidRequest, "bytes_max is 0"),
        (c.Browse(queue="q", limit=0), InvalidRequest, "limit is 0"),
        (c.TallyQueues(limit=0), InvalidRequest, "limit is 0"),
        (c.CreateChannel(queue="q", channel="c", start="middle"), InvalidRequest, "start is 'middle'"),
        (c.CreateChannel(queue="q", channel="c", offsets=(1, 2)), InvalidRequest, "there are 2 offsets"),
        (c.CreateQueue(name="p", part=(3, 7)), InvalidRequest, "has 1 partitions, and no 3"),
        (c.QueueStats(name="q", of_queue=99), QueueReplaced, "another one has its name"),
        (c.QueueStats(name="gone", of_queue=99), QueueReplaced, "it is gone"),
        (c.StartRedrive(queue="q", target="q"), InvalidRequest, "cannot be redriven to itself"),
        (c.StartRedrive(queue="q", target="other", per_second=0), InvalidRequest, "per_second is 0"),
        (c.StartRedrive(queue="q", target="o", error="half \ud800"), InvalidRequest, "must be valid text"),
        (c.StartRedrive(queue="q", target="o.fifo"), InvalidRequest, "is FIFO by its name"),
        (c.Send(queue="f.fifo", bodies=[b"x"], groups=["g" * 200], dedup_ids=["d"]), InvalidName, "characters"),
        (c.Send(queue="f.fifo", bodies=[b"x"], groups=["\ud800"], dedup_ids=["d"]), InvalidName, "valid text"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, c.Command) else "",
)
def test_a_command_that_makes_no_sense_is_refused_and_changes_nothing(
    command: c.Command, error: type[PenstockError], words: str
) -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"x")
    before = driver.broker.snapshot()
    with pytest.raises(error, match=words):
        driver.do(command)
    assert driver.broker.snapshot() == before
