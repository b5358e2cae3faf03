"""A queue made whole of what is readable of it: what is known stays, what is in doubt is delivered again and told."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.queues.reserve import AHEAD
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes
from penstock.core.storage.chunk import PackedBodies
from penstock.core.storage.keys import ChunkKey, Kind
from penstock.core.storage.repair import repair
from penstock.store.memory import MemoryStore
from tests.core.driver import DAY_MS, MINUTE_MS, BrokerDriver, Raw, bodies_of, sequences_of

QUEUE = 1


def records_of(driver: BrokerDriver, *kinds: Kind) -> dict[bytes, bytes]:
    """The queue's records, or those of some kinds."""
    group = keys.queue_chunks(QUEUE)
    found = {key: value for key, value in driver.store.scan(b"") if keys.group_of(key) == group}
    return {key: value for key, value in found.items() if not kinds or key[0] in kinds}


def repaired(
    driver: BrokerDriver,
    *,
    without: Collection[bytes] = (),
    changed: dict[bytes, bytes] | None = None,
    lost: Collection[bytes] = (),
    damaged: Collection[bytes] | None = (),
    broker_has: tuple[str, ...] = (),
) -> tuple[BrokerDriver, list[str], str]:
    """The queue in another store: made of what is left of it, with the notes, and the name that it has there."""
    store = MemoryStore()
    changes = Changes()
    for key, value in driver.store.scan(keys.record(Kind.META)):
        changes.put_record(key, value)
    there = [key for key in driver.chunk_keys() if key not in lost]
    for key in there:
        changes.put_chunk(key, Raw(bytes(driver.store.read_chunk(key))))
    store.commit(changes)
    broker = Broker.open(store, driver.now_ms, b"")
    for name in broker_has:
        broker.handle(c.CreateQueue(name=name), driver.now_ms)
    records = {key: value for key, value in (records_of(driver) | (changed or {})).items() if key not in without}
    chunks = [ChunkKey.unpack(key) for key in there]
    found = repair(broker, QUEUE, records, chunks, lost=[ChunkKey.unpack(key) for key in lost], damaged=damaged)
    store.commit(broker.take_changes())
    return BrokerDriver(store, now_ms=driver.now_ms), found.notes, found.name


def sent(*bodies: bytes, channels: tuple[str, ...] = ("main",), **settings: object) -> BrokerDriver:
    driver = BrokerDriver()
    driver.create(channels=channels, **settings)
    for body in bodies:
        driver.send(body)
    return driver


def rest(driver: BrokerDriver, queue: str = "q", channel: str = "main") -> list[bytes]:
    return bodies_of(driver.receive(100, queue=queue, channel=channel))


def test_a_queue_of_which_everything_is_readable_is_as_it_was() -> None:
    driver = sent(b"done", b"leased", b"failed", b"ready", max_receives=5)
    driver.ack(driver.receive())
    held = driver.receive()
    driver.release(driver.receive(), delay_ms=0, error="no good")
    again, notes, name = repaired(driver)
    assert (notes, name) == ([], "q")
    assert again.counts() == driver.counts() == (2, 1, 0)
    assert again.broker.queues["q"].config == driver.broker.queues["q"].config
    assert again.ack(held).count == 1, "the lease is what it was"
    assert sorted(rest(again)) == [b"failed", b"ready"]


def test_a_queue_without_its_own_record_gets_another_name_and_the_default_settings() -> None:
    driver = sent(b"a", lease_ms=5_000)
    again, notes, name = repaired(
        driver, without=records_of(driver, Kind.QUEUE), damaged=records_of(driver, Kind.QUEUE)
    )
    assert name == "salvaged-1"
    assert "its name and settings are not readable" in notes[0]
    assert again.broker.queues[name].config.lease_ms == 30_000
    assert rest(again, name) == [b"a"]


def test_a_queue_whose_name_is_taken_gets_another_one() -> None:
    again, _, name = repaired(sent(b"a"), broker_has=("q", "q-salvaged-1"))
    assert name == "q-salvaged-1-1"
    assert rest(again, name) == [b"a"]


def test_without_its_counters_a_queue_gives_no_number_twice() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a", b"b", group="g")
    counters = records_of(driver, Kind.COUNTERS)
    again, notes, _ = repaired(driver, without=counters, damaged=counters)
    assert notes == []
    assert again.send(b"c").first >= 2 + AHEAD
    assert (again.stats().messages, again.broker.queues["q"].is_fair) == (3, True)
    assert sorted(rest(again)) == [b"a", b"b", b"c"]


def test_a_channel_without_its_record_is_made_anew_and_gets_everything() -> None:
    driver = sent(b"a", b"b", channels=("main", "tap"))
    driver.ack(driver.receive(2))
    driver.ack(driver.receive(1, channel="tap"))
    channels = records_of(driver, Kind.CHANNEL)
    again, notes, _ = repaired(driver, without=channels, damaged=channels)
    assert sorted(again.broker.queues["q"].channels) == ["main", "salvaged-2"]
    assert any("the record of channel 2 is not readable" in note for note in notes)
    assert rest(again, channel="salvaged-2") == [b"b"], "the chunk of what both had acked is gone"
    assert rest(again) == [b"b"]


def test_a_record_that_makes_no_sense_is_as_good_as_none() -> None:
    driver = sent(b"a")
    spoilt = dict.fromkeys(records_of(driver, Kind.CHANNEL, Kind.COUNTERS, Kind.QUEUE), b"\xc1")
    again, notes, name = repaired(driver, changed=spoilt)
    assert name == "salvaged-1" and len(notes) >= 2
    assert rest(again, name) == [b"a"]


def test_what_was_in_work_when_its_record_was_lost_is_delivered_again_and_told() -> None:
    driver = sent(b"a", b"b")
    driver.receive(1)
    entries = records_of(driver, Kind.ENTRY)
    again, notes, _ = repaired(driver, without=entries, damaged=entries)
    assert notes == ["channel 'main': what became of 1 messages is not known: they may be delivered again"]
    assert rest(again) == [b"a", b"b"]


def test_where_damage_is_not_known_everything_that_may_have_been_handed_out_is_ready() -> None:
    driver = sent(b"a", b"b")
    driver.receive(1)
    again, notes, _ = repaired(driver, without=records_of(driver, Kind.ENTRY), damaged=None)
    assert "they may be delivered again" in notes[0]
    assert rest(again) == [b"a", b"b"]


def test_channels_of_a_queue_that_promises_at_most_are_paused_if_there_is_a_doubt() -> None:
    driver = sent(b"a", policy="consume_once")
    driver.receive(1)
    entries = records_of(driver, Kind.ENTRY)
    again, notes, _ = repaired(driver, without=entries, damaged=entries)
    assert "its channels are paused" in notes[-1]
    assert rest(again) == []
    assert again.stats().channels["main"].paused


def failed_twice(delay_ms: int) -> BrokerDriver:
    """`a` has failed, and then failed again, so that it waits in the retry lane; `b` is ready."""
    driver = BrokerDriver()
    driver.create(max_receives=9)
    driver.send(b"a", b"b")
    for wait_ms in (0, delay_ms):
        delivery = driver.receive(1)
        assert bodies_of(delivery) == [b"a"]
        driver.release(delivery, delay_ms=wait_ms)
    return driver


def test_a_retry_whose_chunk_is_lost_is_ready_where_it_was_before() -> None:
    driver = failed_twice(MINUTE_MS)
    retries = [key for key in driver.chunk_keys() if keys.lane_channel(ChunkKey.unpack(key).lane)]
    assert len(retries) == 1
    again, _, _ = repaired(driver, lost=retries, without=records_of(driver, Kind.ENTRY), damaged=None)
    assert sorted(rest(again)) == [b"a", b"b"]


def test_a_retry_that_is_readable_waits_on_and_is_done_where_it_was_before() -> None:
    driver = failed_twice(MINUTE_MS)
    again, notes, _ = repaired(driver)
    assert notes == []
    assert rest(again) == [b"b"]
    again.advance(MINUTE_MS)
    assert b"a" in rest(again)


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_retry_far_ahead_comes_in_its_time(is_readable: bool) -> None:
    driver = failed_twice(DAY_MS)
    far = records_of(driver, Kind.FAR_ENTRY)
    assert far
    gone = () if is_readable else far
    again, notes, _ = repaired(driver, without=gone, damaged=gone)
    assert bool(notes) != is_readable
    assert rest(again) == [b"b"]
    again.advance(2 * DAY_MS)
    assert b"a" in rest(again)


def test_messages_due_far_ahead_are_counted_anew_for_every_channel() -> None:
    driver = sent(channels=("main",))
    driver.send(b"far", delay_ms=3 * DAY_MS)
    driver.do(c.CreateChannel(queue="q", channel="late", start="tail"))
    again, notes, _ = repaired(driver, without=records_of(driver, Kind.BUCKET))
    assert notes == []
    assert (again.counts()[2], again.counts(channel="late")[2]) == (1, 0)
    again.advance(3 * DAY_MS)
    assert (rest(again), rest(again, channel="late")) == ([b"far"], [])


def test_messages_that_are_not_due_wait_on_although_their_entry_is_lost() -> None:
    driver = sent()
    driver.send(b"soon", delay_ms=MINUTE_MS)
    entries = records_of(driver, Kind.ENTRY)
    assert entries
    again, _, _ = repaired(driver, without=entries, damaged=entries)
    assert rest(again) == []
    again.advance(MINUTE_MS)
    assert rest(again) == [b"soon"]


def test_consumers_dedup_ids_and_attempts_stay_if_readable_and_are_told_if_not() -> None:
    driver = BrokerDriver()
    driver.create(kind="fifo")
    driver.send_fifo("g", b"a", b"b")
    driver.receive(attempt_id="try 1")
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=1))
    kept, notes, _ = repaired(driver)
    assert notes == []
    assert kept.stats().consumers == {"reader": 1}
    assert kept.send_fifo("g", b"a").duplicates == [0]
    assert bodies_of(kept.receive(attempt_id="try 1")) == [b"a"]
    spoilt = dict.fromkeys(records_of(driver, Kind.CONSUMER, Kind.DEDUP, Kind.ATTEMPT), b"\xc1")
    gone, notes, _ = repaired(driver, changed=spoilt)
    assert len([note for note in notes if "could not be read, and is forgotten" in note]) == 3
    assert gone.stats().consumers == {}
    assert gone.send_fifo("g", b"a").duplicates == []


def test_numbers_that_were_set_aside_stay_so() -> None:
    driver = BrokerDriver()
    driver.broker.delivers_unsynced = True
    driver.create(deliver_unsynced=True)
    driver.send(b"a")
    again, notes, _ = repaired(driver)
    assert notes == []
    assert again.broker.queues["q"].reserve is not None
    _, notes, _ = repaired(driver, changed=dict.fromkeys(records_of(driver, Kind.RESERVE), b""))
    assert notes == []


def published(*, finished: bool = True) -> BrokerDriver:
    """A queue with messages of a large publish: 1 to 4, among others."""
    driver = sent(b"before")
    send = c.Send(queue="q", bodies=PackedBodies.even(b"abcd", 1))
    stage = driver.do(c.StageWork(name="job", sends=[send])).stage
    if finished:
        driver.do(c.CommitWork(acks=[], sends=[], mark=("job", 1), stage=stage))
    driver.send(b"after")
    return driver


@pytest.mark.parametrize("damaged", [(), None])
def test_messages_of_a_large_publish_stay_under_their_numbers(damaged: Collection[bytes] | None) -> None:
    driver = published()
    driver.ack(driver.receive(3))
    channels = records_of(driver, Kind.CHANNEL, Kind.COUNTERS)
    again, _, _ = repaired(driver, without=channels, damaged=damaged if damaged is None else channels)
    left = [b"c", b"d", b"after"]
    delivery = again.receive(9)
    assert (bodies_of(delivery), sequences_of(delivery)) == (left, [3, 4, 5])
    again.ack(delivery)
    again.reopen()
    assert again.chunk_keys() == []


def test_messages_of_a_large_publish_whose_numbers_are_lost_get_the_next_ones() -> None:
    driver = published()
    segments = records_of(driver, Kind.SEGMENT)
    again, notes, _ = repaired(driver, without=segments, damaged=segments)
    assert "the numbers of 4 messages of a large publish are lost: they have got others" in notes
    delivery = again.receive(9)
    assert sorted(zip(sequences_of(delivery), bodies_of(delivery), strict=True)) == [
        (0, b"before"), (5, b"after"), (6, b"a"), (7, b"b"), (8, b"c"), (9, b"d")
    ]  # fmt: skip
    assert again.send(b"next").first == 10


def test_of_a_publish_that_never_came_to_its_end_nothing_is_left() -> None:
    again, notes, _ = repaired(published(finished=False))
    assert notes == []
    assert rest(again) == [b"before", b"after"]
    assert len(again.chunk_keys()) == 2
