"""Faults that the simulator found, each as the few commands that show it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.delivery.states import State
from penstock.core.errors import PenstockError
from penstock.core.queues.config import DAY_MS, HOUR_MS, MINUTE_MS, Backoff, QueueConfig
from penstock.core.settings import SECOND_MS
from penstock.store.memory import MemoryStore
from tests.simulation.model import Violation
from tests.simulation.world import World

START_MS = 1_700_000_000_000


class Case:
    """A world on which a test does one thing after the other, committed each."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.world = World(MemoryStore(), self.now_ms, bytes(range(64)))

    def do(self, *commands: c.Command, at_ms: int = 0) -> list[Any]:
        """One step at a time after the start, judged by the model; its replies."""
        self.now_ms = START_MS + at_ms
        step = self.world.step(commands, self.now_ms)
        if self.world.broker.has_changes:
            self.world.commit()
        return [outcome for _, outcome in step.outcomes] + [delivery for _, delivery in step.woken]

    def reopen(self) -> None:
        self.world.reopen(self.world.store, self.world.model, self.now_ms)


@pytest.fixture
def case() -> Case:
    return Case()


def create(name: str = "q", channels: tuple[str, ...] = (c.MAIN,), **settings: Any) -> c.CreateQueue:
    return c.CreateQueue(name=name, config=QueueConfig(**settings), channels=channels)


def send(*bodies: bytes, queue: str = "q", **options: Any) -> c.Send:
    return c.Send(queue=queue, bodies=list(bodies), **options)


def receive(limit: int = 10, queue: str = "q", **options: Any) -> c.Receive:
    return c.Receive(queue=queue, limit=limit, **{"wait_ms": 0, **options})


def test_browsing_makes_no_channel(case: Case) -> None:
    """A look must not leave a channel behind that keeps every message from then on."""
    case.do(create(channels=("tap",)), send(b"1"))
    assert len(case.do(c.Browse(queue="q", channel=c.MAIN))[0]) == 1
    assert case.do(c.DescribeQueue(name="q"))[0].channels == ["tap"]


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"session": 99}, {"lease_ms": -1}, {"attempt_id": "a"}])
def test_a_refused_receive_makes_no_channel(case: Case, wrong: dict[str, Any]) -> None:
    case.do(create(channels=("tap",)), send(b"1"))
    with pytest.raises(PenstockError):
        case.world.broker.handle(c.Receive(**{"queue": "q", **wrong}), case.now_ms)
    assert case.do(c.DescribeQueue(name="q"))[0].channels == ["tap"]


def test_a_delayed_message_that_failed_twice_is_kept_as_long_as_one_that_did_not(case: Case) -> None:
    """Retention of a delayed message counts from its due time: moving to the retry lane must not end it at once."""
    case.do(create(retention_ms=HOUR_MS, lease_ms=SECOND_MS, max_receives=0), send(b"1", delay_ms=2 * HOUR_MS))
    due_ms = 2 * HOUR_MS
    case.do(receive(), at_ms=due_ms)
    case.do(receive(), at_ms=due_ms + 2 * SECOND_MS)
    case.do(at_ms=due_ms + 4 * SECOND_MS)
    case.do(at_ms=due_ms + MINUTE_MS)
    assert case.do(receive(), at_ms=due_ms + 2 * MINUTE_MS)[0].count == 1, "the message is gone"


def test_after_a_restart_too_a_delayed_message_in_the_retry_lane_is_kept(case: Case) -> None:
    case.do(create(retention_ms=HOUR_MS, lease_ms=SECOND_MS, max_receives=0), send(b"1", delay_ms=2 * HOUR_MS))
    due_ms = 2 * HOUR_MS
    case.do(receive(), at_ms=due_ms)
    case.do(receive(), at_ms=due_ms + 2 * SECOND_MS)
    case.do(at_ms=due_ms + 4 * SECOND_MS)
    case.reopen()
    assert case.do(receive(), at_ms=due_ms + 2 * MINUTE_MS)[0].count == 1, "the message is gone"


def test_every_window_keeps_its_deadline_when_another_one_comes_due(case: Case) -> None:
    case.do(create(lease_ms=30 * SECOND_MS), send(b"1", delay_ms=800))
    case.do(send(b"2", priority=1), receive(limit=1))
    case.do(at_ms=800)
    deadline_ms = case.world.broker.next_deadline()
    assert deadline_ms is not None and deadline_ms <= START_MS + 30 * SECOND_MS


def test_fifo_messages_wait_for_their_delay(case: Case) -> None:
    case.do(create(kind="fifo", delay_ms=700), send(b"1", groups=["g"], dedup_ids=["1"]))
    assert case.do(receive())[0].count == 0
    assert case.do(receive(), at_ms=700)[0].count == 1


def test_a_fifo_channel_made_while_a_message_is_delayed_waits_too(case: Case) -> None:
    case.do(create(kind="fifo", delay_ms=700), send(b"1", groups=["g"], dedup_ids=["1"]))
    case.do(c.CreateChannel(queue="q", channel="tap"))
    case.do(send(b"2", groups=["h"], dedup_ids=["2"]), c.QueueStats(name="q"), at_ms=7_000)
    stats = case.do(c.QueueStats(name="q"), at_ms=7_000)[0].channels["tap"]
    assert (stats.ready, stats.delayed, stats.oldest_ms) == (1, 1, START_MS)


def test_an_ack_that_makes_room_wakes_a_subscription(case: Case) -> None:
    case.do(create(in_flight_max=2), send(b"1", b"2", b"3"), receive(limit=2))
    case.do(c.Subscribe(queue="q", credit=5, ticket=1))
    replies = case.do(c.Ack(queue="q", spans=[c.Span(0, 0, 1)]))
    assert replies[-1].count == 1


def test_an_ack_that_frees_a_group_wakes_who_waits(case: Case) -> None:
    case.do(create(kind="fifo", content_dedup=True), send(b"1", b"2", groups=["g", "g"]), receive(limit=1))
    case.do(receive(wait_ms=20_000, ticket=1))
    replies = case.do(c.Ack(queue="q", spans=[c.Span(0, 0, 1)]))
    assert replies[-1].count == 1


def test_browsing_pages_in_sequence_order_through_all_lanes(case: Case) -> None:
    case.do(create(lease_ms=0, max_receives=0, backoff=Backoff("fixed", base_ms=2_000)), send(b"1", b"2"))
    case.do(receive(limit=1))
    case.do(receive(limit=1))
    seen = case.do(c.Browse(queue="q", limit=1))[0]
    assert [(one.sequence, one.state) for one in seen] == [(0, State.DELAYED)]


def test_a_purge_and_the_counters_count_the_retry_lane(case: Case) -> None:
    case.do(create(lease_ms=0, max_receives=0), send(b"12345"))
    case.do(receive())
    case.do(receive())
    stats = case.do(c.QueueStats(name="q"))[0]
    assert (stats.messages, stats.bytes >= 5) == (1, True)
    assert case.do(c.PurgeQueue(name="q"))[0] == 1


def test_a_channel_that_starts_at_a_time_sees_what_came_due_since(case: Case) -> None:
    case.do(create(delay_ms=700), send(b"1"), at_ms=1_000)
    case.do(at_ms=2_000)
    case.do(c.CreateChannel(queue="q", channel="tap", start=START_MS), at_ms=3_000)
    assert case.do(receive(channel="tap"), at_ms=3_000)[0].count == 1


def test_retention_is_scheduled_for_what_came_due(case: Case) -> None:
    case.do(create(retention_ms=DAY_MS), send(b"1", delay_ms=2 * HOUR_MS))
    case.reopen()
    case.do(at_ms=2 * HOUR_MS)
    deadline_ms = case.world.broker.next_deadline()
    assert deadline_ms is not None and deadline_ms <= START_MS + 2 * HOUR_MS + DAY_MS


def test_far_delays_leave_the_same_lanes_live_and_reopened(case: Case) -> None:
    case.do(send(b"1", delay_ms=2 * HOUR_MS))
    for at_ms in (HOUR_MS, 2 * HOUR_MS - 1, 2 * HOUR_MS):
        case.do(at_ms=at_ms)
    assert case.do(receive(), at_ms=2 * HOUR_MS)[0].count == 1


def pause(paused: bool = True) -> c.PauseQueue:
    return c.PauseQueue(queue="q", paused=paused)


def test_browsing_shows_nothing_that_a_paused_queue_holds_back(case: Case) -> None:
    case.do(create(), send(b"1"), pause(), send(b"2"), send(b"3", delay_ms=5_000))
    assert [one.sequence for one in case.do(c.Browse(queue="q"))[0]] == [0]
    case.do(pause(False))
    assert [one.sequence for one in case.do(c.Browse(queue="q"))[0]] == [0, 1, 2]


def test_what_lies_far_ahead_of_a_paused_queue_is_of_its_backlog_and_not_of_its_channels(case: Case) -> None:
    case.do(create(), pause(), send(b"1", delay_ms=2 * HOUR_MS))
    stats = case.do(c.QueueStats(name="q"))[0]
    assert (stats.backlog, stats.channels[c.MAIN].delayed, stats.channels[c.MAIN].oldest_ms) == (1, 0, None)
    case.do(pause(False))
    stats = case.do(c.QueueStats(name="q"))[0]
    assert (stats.backlog, stats.channels[c.MAIN].delayed, stats.channels[c.MAIN].oldest_ms) == (0, 1, START_MS)


def test_a_purged_channel_of_a_paused_queue_gets_what_lies_far_ahead_after_the_pause(case: Case) -> None:
    case.do(create(), send(b"1", delay_ms=2 * HOUR_MS), pause(), send(b"2", delay_ms=2 * HOUR_MS))
    assert case.do(c.PurgeChannel(queue="q", channel=c.MAIN))[0] == 1
    case.do(pause(False))
    assert case.do(c.QueueStats(name="q"))[0].channels[c.MAIN].delayed == 1
    assert case.do(receive(), at_ms=3 * HOUR_MS)[0].count == 1


def test_a_channel_that_is_moved_into_what_a_paused_queue_holds_back_loses_nothing_behind_the_offset(
    case: Case,
) -> None:
    case.do(create(), pause(), send(b"1", b"2", b"3"))
    case.do(c.AckUpTo(queue="q", channel=c.MAIN, offset=1), c.CreateChannel(queue="q", channel="tap", offset=2))
    case.do(pause(False))
    assert case.do(receive(), receive(channel="tap"))[0].count == 2
    assert case.do(c.QueueStats(name="q"))[0].channels["tap"].leased == 1


def test_what_every_channel_passed_while_it_was_held_back_goes_when_the_pause_ends(case: Case) -> None:
    case.do(create(), pause(), send(b"1"), send(b"2", delay_ms=2 * HOUR_MS))
    case.do(c.AckUpTo(queue="q", channel=c.MAIN, offset=2), pause(False))
    assert case.do(c.QueueStats(name="q"))[0].messages == 0


def test_what_was_passed_while_it_was_held_back_goes_when_the_last_consumer_has_read_it(case: Case) -> None:
    case.do(create(), c.AckConsumer(queue="q", consumer="reader", offset=0), pause(), send(b"1"))
    case.do(c.AckUpTo(queue="q", channel=c.MAIN, offset=1), pause(False))
    case.do(c.AckConsumer(queue="q", consumer="reader", offset=1))
    assert case.do(c.QueueStats(name="q"))[0].messages == 0


def test_a_purge_takes_a_channel_not_back_to_what_it_has_passed(case: Case) -> None:
    case.do(create(), pause(), send(b"1"), send(b"2"))
    case.do(c.AckUpTo(queue="q", channel=c.MAIN, offset=1), c.PurgeChannel(queue="q", channel=c.MAIN), pause(False))
    assert case.do(receive())[0].count == 1


def test_what_a_channel_passes_makes_room_for_a_session_that_may_hold_so_many(case: Case) -> None:
    session = case.do(create(), c.OpenSession(name="s"))[1]
    case.do(send(b"1", b"2"), c.Subscribe(queue="q", credit=1, session=session, ticket=1, in_flight=True))
    assert case.do(c.AckUpTo(queue="q", channel=c.MAIN, offset=1))[-1].count == 1


def test_what_a_session_receives_counts_for_what_it_may_hold(case: Case) -> None:
    session = case.do(create(), c.OpenSession(name="s"))[1]
    case.do(c.Subscribe(queue="q", credit=1, session=session, ticket=1, in_flight=True))
    assert len(case.do(send(b"1", b"2"), receive(limit=1, session=session))) == 2, "and nothing is pushed"
    assert case.do(c.Ack(queue="q", spans=[c.Span(0, 0, 1)]))[-1].count == 1


def test_what_a_session_waited_for_counts_for_what_it_may_hold(case: Case) -> None:
    session = case.do(create(), c.OpenSession(name="s"))[1]
    case.do(receive(limit=1, session=session, wait_ms=20_000, ticket=1))
    case.do(c.Subscribe(queue="q", credit=1, session=session, ticket=2, in_flight=True))
    assert len(case.do(send(b"1", b"2"))) == 2, "the send's answer, and one delivery"


def test_a_channel_is_moved_into_a_chunk_that_is_longer_than_all_it_has_seen(case: Case) -> None:
    case.do(create(), send(*(b"%d" % number for number in range(2_000))))
    assert case.do(c.AckUpTo(queue="q", channel=c.MAIN, offset=1_500))[0] == 1_500
    assert case.do(receive(limit=1_000))[0].count == 500


def test_what_is_pushed_of_groups_ends_with_the_room_in_bytes_as_well(case: Case) -> None:
    count, step = 200, 32
    case.do(create())
    case.do(send(*(b"%100d" % number for number in range(count)), groups=[f"g{at % 50}" for at in range(count)]))
    pushed = case.do(c.Subscribe(queue="q", credit=count, ticket=1, room_bytes=500))[-1]
    assert 5 <= pushed.count <= 5 + step


def test_the_world_can_fail(case: Case) -> None:
    """A broker that answers wrongly is caught: here one that forgets a message."""
    case.do(create(), send(b"1"))
    case.world.model.queues["q"].channels[c.MAIN].copies.clear()
    with pytest.raises(Violation, match="is done, or never was"):
        case.do(receive())


def test_the_world_sees_what_was_not_stored(case: Case) -> None:
    """A store that loses a record is caught at the next commit."""
    case.do(create(), send(b"1"), receive())
    real, lost = case.world.store.commit, []

    def forgetful(changes: Any) -> None:
        if changes.records:
            lost.append(changes.records.popitem())
        real(changes)

    case.world.store.commit = forgetful  # type: ignore[method-assign]
    with pytest.raises((Violation, PenstockError, KeyError)):
        case.do(c.Ack(queue="q", spans=[c.Span(0, 0, 1)]))
        case.do(receive())
    assert lost
