"""Commands as plain data: which queue and which rights they are about, and runs of messages taken apart."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core import commands as c
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.core.storage.chunk import Chunk


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        (c.QueueStats(name="q"), [("read", "q")]),
        (c.ListQueues(), []),
        (c.CreateQueue(name="q"), [("admin", "q")]),
        (c.CreateQueue(name="q", config=QueueConfig(dead_letter="d")), [("admin", "q"), ("admin", "d")]),
        (c.ChangeQueue(name="q", changes={"dead_letter": "d"}), [("admin", "q"), ("admin", "d")]),
        (c.ChangeQueue(name="q", changes={"dead_letter": None}), [("admin", "q")]),
        (c.StartRedrive(queue="d"), [("admin", "d")]),
        (c.StartRedrive(queue="d", target="q"), [("admin", "d"), ("admin", "q")]),
        (
            c.CommitWork(acks=[c.Ack(queue="a", spans=[])], sends=[c.Send(queue="b", bodies=[b"x"])]),
            [("read", "a"), ("write", "b")],
        ),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, c.Command) else "",
)
def test_a_command_needs_rights_on_every_queue_that_it_touches(
    command: c.Command, needs: list[tuple[str, str]]
) -> None:
    assert list(command.needs()) == needs


def test_a_unit_of_work_is_about_the_queue_of_its_first_part() -> None:
    ack, send = c.Ack(queue="a", spans=[]), c.Send(queue="b", bodies=[b"x"])
    assert c.CommitWork(acks=[ack], sends=[send]).about == "a"
    assert c.CommitWork(acks=[], sends=[send]).about == "b"
    assert c.CommitWork(acks=[], sends=[]).about is None


def test_a_part_of_a_run_has_the_attempts_and_times_of_its_messages() -> None:
    chunk = Chunk.of(100, 5, [b"a", b"b", b"c", b"d"])
    mixed = c.Run(chunk, 1, 4, np.array([1, 2, 2], dtype=np.uint32), np.array([7, 8, 8], dtype=np.int64))
    part = mixed.part(1, 3)
    assert (part.first, part.count, part.nbytes) == (102, 2, 2)
    assert (part.attempts.tolist(), part.first_received_ms.tolist()) == ([2, 2], [8, 8])
    assert mixed.spans() == [c.Span(101, 101, 1), c.Span(102, 103, 2)]
    alike = c.Run(chunk, 0, 4, 3, 9).part(0, 2)
    assert (alike.attempts.tolist(), alike.first_received_ms.tolist()) == ([3, 3], [9, 9])


def test_offsets_say_which_partition_they_are_of() -> None:
    end = (5 << PARTITION_SHIFT) + 17
    assert c.Offsets("q", 1, 5 << PARTITION_SHIFT, end, [], end).partition == 5


def test_messages_on_their_way_have_no_sequence_numbers() -> None:
    assert c.Sent(0, -1, 2).sequence(1) == -1
    assert c.Sent(1, 7, 2).sequence(1) == 8
    assert c.Sent(1, 7, 2, sequences=[7, 3]).sequence(1) == 3
