"""Queues that are paused: channels are shown nothing that is sent meanwhile, and all of it afterwards."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import commands as c
from tests.core.driver import HOUR_MS, Desk, bodies_of


def paused(*before: bytes, channels: tuple[str, ...] = ("ch",), **config: Any) -> Desk:
    """A queue that was paused after some messages."""
    desk = Desk()
    desk.create(channels=channels, **config)
    if before:
        desk.send(*before)
    desk.do(c.PauseQueue(queue="q"))
    return desk


def received(desk: Desk, channel: str = "ch") -> list[bytes]:
    return bodies_of(desk.receive(100, channel=channel))


def go_on(desk: Desk) -> None:
    desk.do(c.PauseQueue(queue="q", paused=False))


def stats(desk: Desk) -> c.Stats:
    found: c.Stats = desk.do(c.QueueStats(name="q"))
    return found


def test_what_was_sent_before_the_pause_goes_on_and_the_rest_waits_for_its_end() -> None:
    desk = paused(b"before")
    desk.send(b"during")
    assert received(desk) == [b"before"]
    assert (stats(desk).paused, stats(desk).backlog, stats(desk).channels["ch"].ready) == (True, 1, 0)
    go_on(desk)
    assert received(desk) == [b"during"]
    assert (stats(desk).paused, stats(desk).backlog) == (False, 0)


def test_a_pause_outlives_a_restart_and_so_does_what_waits() -> None:
    desk = paused()
    desk.send(b"during")
    desk.reopen()
    assert received(desk) == []
    go_on(desk)
    desk.reopen()
    assert received(desk) == [b"during"]


def test_pausing_twice_and_going_on_twice_changes_nothing() -> None:
    desk = paused()
    desk.send(b"a")
    desk.do(c.PauseQueue(queue="q"))
    desk.send(b"b")
    go_on(desk)
    go_on(desk)
    assert received(desk) == [b"a", b"b"]


def test_one_who_waits_is_served_when_the_pause_ends() -> None:
    desk = paused()
    desk.wait("poll", 10, channel="ch")
    desk.send(b"a")
    assert desk.woken == {}
    go_on(desk)
    assert desk.take_woken("poll") == [b"a"]


def test_a_channel_that_comes_during_a_pause_gets_what_waits_and_the_same_as_others() -> None:
    desk = paused(b"before", channels=())
    desk.send(b"during")
    desk.do(c.CreateChannel(queue="q", channel="first", start="first"))
    desk.do(c.CreateChannel(queue="q", channel="second", start="first"))
    assert (received(desk, "first"), received(desk, "second")) == ([b"before"], [])
    go_on(desk)
    assert (received(desk, "first"), received(desk, "second")) == ([b"during"], [b"during"])


def test_purging_a_channel_leaves_it_what_waits_for_the_end_of_the_pause() -> None:
    desk = paused(b"before")
    desk.send(b"during")
    assert desk.do(c.PurgeChannel(queue="q", channel="ch")) == 1
    go_on(desk)
    assert received(desk) == [b"during"]


def test_purging_the_backlog_drops_what_waits_and_nothing_else() -> None:
    desk = paused(b"before")
    desk.send(b"during", b"this too")
    desk.send(b"far", due_ms=desk.now_ms + 3 * HOUR_MS)
    assert desk.do(c.PurgeBacklog(queue="q")) == 3
    go_on(desk)
    desk.advance(4 * HOUR_MS)
    assert received(desk) == [b"before"]
    assert desk.do(c.PurgeBacklog(queue="q")) == 0


def test_the_backlog_of_a_queue_without_channels_is_all_it_has() -> None:
    desk = Desk()
    desk.create(channels=())
    desk.send(b"a", b"b")
    assert stats(desk).backlog == 2
    assert desk.do(c.PurgeBacklog(queue="q")) == 2
    desk.do(c.CreateChannel(queue="q", channel="ch", start="first"))
    assert received(desk) == []


def test_purging_the_queue_leaves_it_paused_and_empty() -> None:
    desk = paused(b"before")
    desk.send(b"during")
    assert desk.do(c.PurgeQueue(name="q")) == 2
    desk.send(b"after")
    assert received(desk) == []
    go_on(desk)
    assert received(desk) == [b"after"]


def test_delayed_messages_of_before_the_pause_come_in_time_and_later_ones_after_it() -> None:
    desk = Desk()
    desk.create(channels=("ch",))
    desk.send(b"near, before", delay_ms=1_000)
    desk.send(b"far, before", delay_ms=2 * HOUR_MS)
    desk.do(c.PauseQueue(queue="q"))
    desk.send(b"near, during", delay_ms=1_000)
    desk.send(b"far, during", delay_ms=2 * HOUR_MS)
    desk.advance(1_000)
    assert received(desk) == [b"near, before"]
    desk.advance(3 * HOUR_MS)
    assert sorted(received(desk)) == [b"far, before", b"near, before"]  # the lease of the first has run out
    go_on(desk)
    assert sorted(received(desk)) == [b"far, during", b"near, during"]


def test_retention_drops_what_waits_as_it_drops_others() -> None:
    desk = paused(retention_ms=HOUR_MS)
    desk.send(b"old")
    desk.advance(HOUR_MS // 2)
    desk.send(b"young")
    desk.advance(HOUR_MS // 2)
    go_on(desk)
    assert received(desk) == [b"young"]


def test_a_long_backlog_of_a_pause_is_shown_whole() -> None:
    desk = paused(b"first")
    desk.checks = False
    for number in range(600):
        desk.send(b"%d" % number)
    desk.reopen()
    assert received(desk) == [b"first"]
    go_on(desk)
    got: list[bytes] = []
    while some := received(desk):
        got += some
    assert got == [b"%d" % number for number in range(600)]


def test_the_last_channel_may_take_what_it_leaves_along() -> None:
    for purge_last, expected in ((False, [b"left", b"later"]), (True, [b"later"])):
        desk = Desk()
        desk.create(channels=("ch",))
        desk.send(b"left")
        desk.do(c.DeleteChannel(queue="q", channel="ch", purge_last=purge_last))
        desk.send(b"later")
        desk.do(c.CreateChannel(queue="q", channel="next", start="first"))
        assert received(desk, "next") == expected


def test_a_queue_is_deleted_only_if_it_has_no_channels_when_so_asked() -> None:
    desk = Desk()
    desk.create(channels=("ch",))
    desk.do(c.DeleteQueue(name="q", unless_channels=True))
    assert desk.do(c.ListQueues()) == ["q"]
    desk.do(c.DeleteChannel(queue="q", channel="ch"))
    desk.do(c.DeleteQueue(name="q", unless_channels=True))
    assert desk.do(c.ListQueues()) == []


def test_who_listens_hears_of_every_queue_and_channel_that_comes_and_goes() -> None:
    desk = Desk()
    desk.broker.take_events()
    desk.create(channels=("a",))
    desk.do(c.CreateChannel(queue="q", channel="b"))
    desk.do(c.CreateChannel(queue="q", channel="b"))
    desk.do(c.DeleteChannel(queue="q", channel="a"))
    desk.do(c.DeleteQueue(name="q"))
    assert [tuple(event) for event in desk.broker.take_events()] == [
        ("queue created", "q", None),
        ("channel created", "q", "a"),
        ("channel created", "q", "b"),
        ("channel deleted", "q", "a"),
        ("channel deleted", "q", "b"),
        ("queue deleted", "q", None),
    ]


class PausableQueue:
    """What a paused queue should do, with lists: what each channel has been shown, and what waits."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.desk.create(channels=())
        self.channels: dict[str, list[bytes]] = {}
        self.waiting: list[bytes] = []
        """What no channel has been shown."""
        self.is_paused = False
        self.sent = 0

    def show(self) -> None:
        if self.channels and not self.is_paused:
            for shown in self.channels.values():
                shown += self.waiting
            self.waiting = []

    def send(self, number: int) -> None:
        bodies = [b"%d" % (self.sent + index) for index in range(number + 1)]
        self.sent += len(bodies)
        self.desk.send(*bodies, priority=number % 2)
        self.waiting += bodies
        self.show()

    def pause(self, number: int) -> None:
        self.is_paused = number % 2 == 0
        self.desk.do(c.PauseQueue(queue="q", paused=self.is_paused))
        self.show()

    def add_channel(self, number: int) -> None:
        name = f"c{number % 3}"
        if name not in self.channels:
            self.desk.do(c.CreateChannel(queue="q", channel=name, start="first"))
            self.channels[name] = []
            self.show()

    def purge_channel(self, number: int) -> None:
        name = f"c{number % 3}"
        if name in self.channels:
            assert self.desk.do(c.PurgeChannel(queue="q", channel=name)) == len(self.channels[name])
            self.channels[name] = []

    def purge_backlog(self, number: int) -> None:
        assert self.desk.do(c.PurgeBacklog(queue="q")) == len(self.waiting)
        self.waiting = []

    def receive(self, number: int) -> None:
        name = f"c{number % 3}"
        if name in self.channels:
            delivery = self.desk.receive(number + 1, channel=name)
            got = bodies_of(delivery)
            assert len(got) == min(number + 1, len(self.channels[name]))
            self.channels[name] = [body for body in self.channels[name] if body not in got]
            self.desk.ack(delivery)

    def reopen(self, number: int) -> None:
        self.desk.reopen()

    def check(self) -> None:
        found = stats(self.desk)
        assert found.backlog == len(self.waiting)
        assert {name: channel.ready for name, channel in found.channels.items()} == {
            name: len(shown) for name, shown in self.channels.items()
        }


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(range(7)), st.integers(0, 5)), max_size=25))
def test_a_queue_that_is_paused_now_and_then_shows_everything_once(steps: list[tuple[int, int]]) -> None:
    queue = PausableQueue()
    queue.add_channel(0)
    actions = [queue.send, queue.pause, queue.add_channel, queue.purge_channel, queue.purge_backlog, queue.receive]
    actions.append(queue.reopen)
    for action, number in steps:
        actions[action](number)
        queue.check()
    queue.pause(1)
    for name, shown in queue.channels.items():
        assert sorted(received(queue.desk, name)) == sorted(shown)


def _paused(*bodies: bytes) -> Desk:
    """A queue that is paused before these are sent, each in a chunk of its own."""
    desk = Desk()
    desk.create()
    desk.do(c.PauseQueue(queue="q"))
    for body in bodies:
        desk.send(body)
    return desk


def test_what_waits_and_is_damaged_is_reported_when_the_pause_ends_and_the_rest_is_shown() -> None:
    desk = _paused(b"a", b"b", b"c")
    desk.damage(desk.chunk_keys()[1])
    desk.do(c.PauseQueue(queue="q", paused=False))
    (report,) = desk.broker.take_reports()
    assert (report.first, report.last) == (1, 1)
    assert bodies_of(desk.receive(9)) == [b"a", b"c"]


def test_messages_due_far_ahead_wait_for_the_end_of_the_pause_and_for_their_time() -> None:
    desk = _paused(b"a")
    desk.send(b"far", delay_ms=2 * HOUR_MS)
    assert (desk.stats().backlog, desk.counts()) == (2, (0, 0, 0))
    desk.do(c.PauseQueue(queue="q", paused=False))
    assert desk.counts() == (1, 0, 1)
    desk.advance(2 * HOUR_MS)
    assert sorted(bodies_of(desk.receive(9))) == [b"a", b"far"]


def test_a_channel_may_be_moved_into_what_waits_and_gets_the_rest_when_the_pause_ends() -> None:
    desk = Desk()
    desk.create(channels=("main", "tap"))
    desk.do(c.PauseQueue(queue="q"))
    desk.send(b"a", b"b", b"c")
    desk.send(b"far", delay_ms=2 * HOUR_MS)
    desk.do(c.AckUpTo(queue="q", channel="main", offset=2))
    assert desk.browse() == [], "nobody is shown what waits"
    desk.do(c.PauseQueue(queue="q", paused=False))
    assert bodies_of(desk.receive(9)) == [b"c"]
    assert bodies_of(desk.receive(9, channel="tap")) == [b"a", b"b", b"c"]


def test_what_every_channel_was_moved_past_is_deleted_when_the_pause_ends() -> None:
    desk = _paused(b"a", b"b")
    desk.send(b"far", delay_ms=2 * HOUR_MS)
    desk.do(c.AckUpTo(queue="q", channel="main", offset=3))
    assert desk.stats().messages == 3
    desk.do(c.PauseQueue(queue="q", paused=False))
    assert desk.stats().messages == 0


def test_purging_the_backlog_takes_what_is_due_far_ahead_along() -> None:
    desk = _paused(b"a")
    desk.send(b"far", delay_ms=2 * HOUR_MS)
    assert desk.do(c.PurgeBacklog(queue="q")) == 2
    assert (desk.stats().messages, desk.do(c.PurgeBacklog(queue="q"))) == (0, 0)


def test_a_queue_that_is_not_paused_has_no_backlog_to_purge() -> None:
    desk = Desk()
    desk.create()
    desk.send(b"a")
    assert desk.do(c.PurgeBacklog(queue="q")) == 0
    assert desk.stats().messages == 1
