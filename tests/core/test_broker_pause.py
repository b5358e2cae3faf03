"""Queues that are paused: channels are shown nothing that is sent meanwhile, and all of it afterwards."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import commands as c
from tests.core.driver import HOUR_MS, BrokerDriver, bodies_of


def paused(*before: bytes, channels: tuple[str, ...] = ("ch",), **config: Any) -> BrokerDriver:
    """A queue that was paused after some messages."""
    driver = BrokerDriver()
    driver.create(channels=channels, **config)
    if before:
        driver.send(*before)
    driver.do(c.PauseQueue(queue="q"))
    return driver


def received(driver: BrokerDriver, channel: str = "ch") -> list[bytes]:
    return bodies_of(driver.receive(100, channel=channel))


def go_on(driver: BrokerDriver) -> None:
    driver.do(c.PauseQueue(queue="q", paused=False))


def stats(driver: BrokerDriver) -> c.Stats:
    found: c.Stats = driver.do(c.QueueStats(name="q"))
    return found


def test_what_was_sent_before_the_pause_goes_on_and_the_rest_waits_for_its_end() -> None:
    driver = paused(b"before")
    driver.send(b"during")
    assert received(driver) == [b"before"]
    assert (stats(driver).paused, stats(driver).backlog, stats(driver).channels["ch"].ready) == (True, 1, 0)
    go_on(driver)
    assert received(driver) == [b"during"]
    assert (stats(driver).paused, stats(driver).backlog) == (False, 0)


def test_a_pause_outlives_a_restart_and_so_does_what_waits() -> None:
    driver = paused()
    driver.send(b"during")
    driver.reopen()
    assert received(driver) == []
    go_on(driver)
    driver.reopen()
    assert received(driver) == [b"during"]


def test_pausing_twice_and_going_on_twice_changes_nothing() -> None:
    driver = paused()
    driver.send(b"a")
    driver.do(c.PauseQueue(queue="q"))
    driver.send(b"b")
    go_on(driver)
    go_on(driver)
    assert received(driver) == [b"a", b"b"]


def test_one_who_waits_is_served_when_the_pause_ends() -> None:
    driver = paused()
    driver.wait("poll", 10, channel="ch")
    driver.send(b"a")
    assert driver.woken == {}
    go_on(driver)
    assert driver.take_woken("poll") == [b"a"]


def test_a_channel_that_comes_during_a_pause_gets_what_waits_and_the_same_as_others() -> None:
    driver = paused(b"before", channels=())
    driver.send(b"during")
    driver.do(c.CreateChannel(queue="q", channel="first", start="first"))
    driver.do(c.CreateChannel(queue="q", channel="second", start="first"))
    assert (received(driver, "first"), received(driver, "second")) == ([b"before"], [])
    go_on(driver)
    assert (received(driver, "first"), received(driver, "second")) == ([b"during"], [b"during"])


def test_purging_a_channel_leaves_it_what_waits_for_the_end_of_the_pause() -> None:
    driver = paused(b"before")
    driver.send(b"during")
    assert driver.do(c.PurgeChannel(queue="q", channel="ch")) == 1
    go_on(driver)
    assert received(driver) == [b"during"]


def test_purging_the_backlog_drops_what_waits_and_nothing_else() -> None:
    driver = paused(b"before")
    driver.send(b"during", b"this too")
    driver.send(b"far", due_ms=driver.now_ms + 3 * HOUR_MS)
    assert driver.do(c.PurgeBacklog(queue="q")) == 3
    go_on(driver)
    driver.advance(4 * HOUR_MS)
    assert received(driver) == [b"before"]
    assert driver.do(c.PurgeBacklog(queue="q")) == 0


def test_the_backlog_of_a_queue_without_channels_is_all_it_has() -> None:
    driver = BrokerDriver()
    driver.create(channels=())
    driver.send(b"a", b"b")
    assert stats(driver).backlog == 2
    assert driver.do(c.PurgeBacklog(queue="q")) == 2
    driver.do(c.CreateChannel(queue="q", channel="ch", start="first"))
    assert received(driver) == []


def test_purging_the_queue_leaves_it_paused_and_empty() -> None:
    driver = paused(b"before")
    driver.send(b"during")
    assert driver.do(c.PurgeQueue(name="q")) == 2
    driver.send(b"after")
    assert received(driver) == []
    go_on(driver)
    assert received(driver) == [b"after"]


def test_delayed_messages_of_before_the_pause_come_in_time_and_later_ones_after_it() -> None:
    driver = BrokerDriver()
    driver.create(channels=("ch",))
    driver.send(b"near, before", delay_ms=1_000)
    driver.send(b"far, before", delay_ms=2 * HOUR_MS)
    driver.do(c.PauseQueue(queue="q"))
    driver.send(b"near, during", delay_ms=1_000)
    driver.send(b"far, during", delay_ms=2 * HOUR_MS)
    driver.advance(1_000)
    assert received(driver) == [b"near, before"]
    driver.advance(3 * HOUR_MS)
    assert sorted(received(driver)) == [b"far, before", b"near, before"]  # the lease of the first has run out
    go_on(driver)
    assert sorted(received(driver)) == [b"far, during", b"near, during"]


def test_retention_drops_what_waits_as_it_drops_others() -> None:
    driver = paused(retention_ms=HOUR_MS)
    driver.send(b"old")
    driver.advance(HOUR_MS // 2)
    driver.send(b"young")
    driver.advance(HOUR_MS // 2)
    go_on(driver)
    assert received(driver) == [b"young"]


def test_a_long_backlog_of_a_pause_is_shown_whole() -> None:
    driver = paused(b"first")
    driver.checks = False
    for number in range(600):
        driver.send(b"%d" % number)
    driver.reopen()
    assert received(driver) == [b"first"]
    go_on(driver)
    got: list[bytes] = []
    while some := received(driver):
        got += some
    assert got == [b"%d" % number for number in range(600)]


def test_the_last_channel_may_take_what_it_leaves_along() -> None:
    for purge_last, expected in ((False, [b"left", b"later"]), (True, [b"later"])):
        driver = BrokerDriver()
        driver.create(channels=("ch",))
        driver.send(b"left")
        driver.do(c.DeleteChannel(queue="q", channel="ch", purge_last=purge_last))
        driver.send(b"later")
        driver.do(c.CreateChannel(queue="q", channel="next", start="first"))
        assert received(driver, "next") == expected


def test_a_queue_is_deleted_only_if_it_has_no_channels_when_so_asked() -> None:
    driver = BrokerDriver()
    driver.create(channels=("ch",))
    driver.do(c.DeleteQueue(name="q", unless_channels=True))
    assert driver.do(c.ListQueues()) == ["q"]
    driver.do(c.DeleteChannel(queue="q", channel="ch"))
    driver.do(c.DeleteQueue(name="q", unless_channels=True))
    assert driver.do(c.ListQueues()) == []


def test_who_listens_hears_of_every_queue_and_channel_that_comes_and_goes() -> None:
    driver = BrokerDriver()
    driver.broker.take_events()
    driver.create(channels=("a",))
    driver.do(c.CreateChannel(queue="q", channel="b"))
    driver.do(c.CreateChannel(queue="q", channel="b"))
    driver.do(c.DeleteChannel(queue="q", channel="a"))
    driver.do(c.DeleteQueue(name="q"))
    assert [tuple(event) for event in driver.broker.take_events()] == [
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
        self.driver = BrokerDriver()
        self.driver.create(channels=())
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
        self.driver.send(*bodies, priority=number % 2)
        self.waiting += bodies
        self.show()

    def pause(self, number: int) -> None:
        self.is_paused = number % 2 == 0
        self.driver.do(c.PauseQueue(queue="q", paused=self.is_paused))
        self.show()

    def add_channel(self, number: int) -> None:
        name = f"c{number % 3}"
        if name not in self.channels:
            self.driver.do(c.CreateChannel(queue="q", channel=name, start="first"))
            self.channels[name] = []
            self.show()

    def purge_channel(self, number: int) -> None:
        name = f"c{number % 3}"
        if name in self.channels:
            assert self.driver.do(c.PurgeChannel(queue="q", channel=name)) == len(self.channels[name])
            self.channels[name] = []

    def purge_backlog(self, number: int) -> None:
        assert self.driver.do(c.PurgeBacklog(queue="q")) == len(self.waiting)
        self.waiting = []

    def receive(self, number: int) -> None:
        name = f"c{number % 3}"
        if name in self.channels:
            delivery = self.driver.receive(number + 1, channel=name)
            got = bodies_of(delivery)
            assert len(got) == min(number + 1, len(self.channels[name]))
            self.channels[name] = [body for body in self.channels[name] if body not in got]
            self.driver.ack(delivery)

    def reopen(self, number: int) -> None:
        self.driver.reopen()

    def check(self) -> None:
        found = stats(self.driver)
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
        assert sorted(received(queue.driver, name)) == sorted(shown)


def _paused(*bodies: bytes) -> BrokerDriver:
    """A queue that is paused before these are sent, each in a chunk of its own."""
    driver = BrokerDriver()
    driver.create()
    driver.do(c.PauseQueue(queue="q"))
    for body in bodies:
        driver.send(body)
    return driver


def test_what_waits_and_is_damaged_is_reported_when_the_pause_ends_and_the_rest_is_shown() -> None:
    driver = _paused(b"a", b"b", b"c")
    driver.damage(driver.chunk_keys()[1])
    driver.do(c.PauseQueue(queue="q", paused=False))
    (report,) = driver.broker.take_reports()
    assert (report.first, report.last) == (1, 1)
    assert bodies_of(driver.receive(9)) == [b"a", b"c"]


def test_messages_due_far_ahead_wait_for_the_end_of_the_pause_and_for_their_time() -> None:
    driver = _paused(b"a")
    driver.send(b"far", delay_ms=2 * HOUR_MS)
    assert (driver.stats().backlog, driver.counts()) == (2, (0, 0, 0))
    driver.do(c.PauseQueue(queue="q", paused=False))
    assert driver.counts() == (1, 0, 1)
    driver.advance(2 * HOUR_MS)
    assert sorted(bodies_of(driver.receive(9))) == [b"a", b"far"]


def test_a_channel_may_be_moved_into_what_waits_and_gets_the_rest_when_the_pause_ends() -> None:
    driver = BrokerDriver()
    driver.create(channels=("main", "tap"))
    driver.do(c.PauseQueue(queue="q"))
    driver.send(b"a", b"b", b"c")
    driver.send(b"far", delay_ms=2 * HOUR_MS)
    driver.do(c.AckUpTo(queue="q", channel="main", offset=2))
    assert driver.browse() == [], "nobody is shown what waits"
    driver.do(c.PauseQueue(queue="q", paused=False))
    assert bodies_of(driver.receive(9)) == [b"c"]
    assert bodies_of(driver.receive(9, channel="tap")) == [b"a", b"b", b"c"]


def test_what_every_channel_was_moved_past_is_deleted_when_the_pause_ends() -> None:
    driver = _paused(b"a", b"b")
    driver.send(b"far", delay_ms=2 * HOUR_MS)
    driver.do(c.AckUpTo(queue="q", channel="main", offset=3))
    assert driver.stats().messages == 3
    driver.do(c.PauseQueue(queue="q", paused=False))
    assert driver.stats().messages == 0


def test_purging_the_backlog_takes_what_is_due_far_ahead_along() -> None:
    driver = _paused(b"a")
    driver.send(b"far", delay_ms=2 * HOUR_MS)
    assert driver.do(c.PurgeBacklog(queue="q")) == 2
    assert (driver.stats().messages, driver.do(c.PurgeBacklog(queue="q"))) == (0, 0)


def test_a_queue_that_is_not_paused_has_no_backlog_to_purge() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a")
    assert driver.do(c.PurgeBacklog(queue="q")) == 0
    assert driver.stats().messages == 1
