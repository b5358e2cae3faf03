"""A queue of which a record is damaged is kept apart, named, and not served; everybody else is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.errors import QueueDamaged, QueueNotFound, StoreDamaged
from penstock.core.queues.queue import Queue
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes, Flaw
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import Kind
from penstock.store.memory import MemoryStore
from tests.core.driver import BrokerDriver


class FlawedStore(MemoryStore):
    """A store that found something at opening."""

    def __init__(self, inner: MemoryStore, *found: Flaw) -> None:
        super().__init__()
        self.__dict__.update(inner.__dict__)
        self._found = list(found)

    def flaws(self) -> list[Flaw]:
        return self._found


def two_queues() -> tuple[MemoryStore, int]:
    """A store with the queues `hit` and `well`, and the id of `hit`."""
    driver = BrokerDriver()
    for queue in ("hit", "well"):
        driver.create(queue)
        driver.send(b"1", b"2", queue=queue)
        driver.receive(1, queue=queue)
    return driver.store, driver.broker.queues["hit"].id


def spoil(store: MemoryStore, key: bytes, value: bytes | None) -> None:
    changes = Changes()
    if value is None:
        changes.delete_record(key)
    else:
        changes.put_record(key, value)
    store.commit(changes)


def opened(store: MemoryStore, *found: Flaw) -> BrokerDriver:
    return BrokerDriver(FlawedStore(store, *found), checks=False)


def first_key(store: MemoryStore, kind: Kind, queue_id: int) -> bytes:
    return next(iter(store.scan(keys.record(kind, queue_id))))[0]


@pytest.mark.parametrize("kind", [Kind.COUNTERS, Kind.CHANNEL, Kind.ENTRY])
@pytest.mark.parametrize("value", [b"", b"\xc1", b"\xff" * 7, b"\x00"])
def test_record_that_cannot_be_read_keeps_its_queue_out_and_nobody_elses(kind: Kind, value: bytes) -> None:
    store, queue_id = two_queues()
    spoil(store, first_key(store, kind, queue_id), value)
    driver = opened(store)
    with pytest.raises(QueueDamaged, match=r"queue 'hit' is in quarantine: .*penstock store check"):
        driver.receive(1, queue="hit")
    assert driver.receive(1, queue="well").count == 1
    (report,) = driver.broker.take_reports()
    assert (report.queue, report.first, report.last) == ("hit", 0, -1)
    assert kind.name.lower() in report.reason
    assert "\n" not in report.reason


def test_missing_record_of_a_channel_keeps_the_queue_out() -> None:
    store, queue_id = two_queues()
    spoil(store, first_key(store, Kind.CHANNEL, queue_id), None)
    with pytest.raises(QueueDamaged, match="belongs to nothing"):
        opened(store).receive(1, queue="hit")


COMMANDS: Sequence[Callable[[str], c.Command]] = (
    lambda name: c.Send(queue=name, bodies=[b"x"]),
    lambda name: c.Send(queue=name, bodies=[b"x"], create=False),
    lambda name: c.Receive(queue=name, limit=1),
    lambda name: c.CreateQueue(name=name),
    lambda name: c.ChangeQueue(name=name, changes={}),
    lambda name: c.DeleteQueue(name=name),
    lambda name: c.PurgeQueue(name=name),
    lambda name: c.DescribeQueue(name=name),
    lambda name: c.QueueStats(name=name),
    lambda name: c.CreateChannel(queue=name, channel="other"),
    lambda name: c.CommitWork(acks=[], sends=[c.Send(queue=name, bodies=[b"x"])]),
    lambda name: c.StartRedrive(queue=name),
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("has_name", [True, False])
def test_every_command_about_a_damaged_queue_is_refused(command: Callable[[str], c.Command], has_name: bool) -> None:
    store, queue_id = two_queues()
    flaw = Flaw(keys.queue_chunks(queue_id), "1 of 5 records are damaged or missing")
    if not has_name:
        spoil(store, keys.record(Kind.QUEUE, queue_id), None)
    driver = opened(store, flaw)
    before = dict(store.scan(b""))
    with pytest.raises(QueueDamaged, match=r"'hit'.*1 of 5 records"):
        driver.do(command("hit"))
    hit = {key for key in before if keys.group_of(key) == keys.queue_chunks(queue_id)}
    after = dict(driver.store.scan(b""))
    assert {key: after.get(key) for key in hit} == {key: before[key] for key in hit}, "nothing of it was changed"


def test_by_its_id_a_damaged_queue_is_refused_too() -> None:
    store, queue_id = two_queues()
    driver = opened(store, Flaw(keys.queue_chunks(queue_id), "damage"))
    with pytest.raises(QueueDamaged):
        driver.do(c.DescribeQueue(name="", queue_id=queue_id))


def test_damaged_queue_is_listed() -> None:
    store, queue_id = two_queues()
    driver = opened(store, Flaw(keys.queue_chunks(queue_id), "damage"))
    assert driver.do(c.ListQueues()) == ["hit", "well"]


def test_queue_without_a_readable_name_lets_no_new_queue_be_made() -> None:
    store, queue_id = two_queues()
    spoil(store, keys.record(Kind.QUEUE, queue_id), b"\xc1")
    driver = opened(store)
    with pytest.raises(QueueDamaged, match="name is not readable"):
        driver.do(c.CreateQueue(name="new"))
    driver.send(b"x", queue="well")


def test_dead_letters_for_a_damaged_queue_are_kept_aside() -> None:
    driver = BrokerDriver()
    driver.create("work", max_receives=1, dead_letter="grave")
    driver.create("grave")
    driver.send(b"x", queue="work")
    grave = driver.broker.queues["grave"].id
    driver = BrokerDriver(FlawedStore(driver.store, Flaw(keys.queue_chunks(grave), "damage")), checks=False)
    delivery = driver.receive(1, queue="work")
    driver.release(delivery)
    assert driver.broker.queues["grave.refused"].messages == 1
    with pytest.raises(QueueNotFound):
        driver.broker.quarantine.refuse("work")
        driver.broker.find_queue("nowhere")


def buried(*damaged: str, is_nameless: bool = False) -> BrokerDriver:
    """A dead letter was on its way while some queues were damaged; their names are perhaps not readable."""
    driver = BrokerDriver()
    driver.create("work", max_receives=1, dead_letter="grave")
    for name in ("grave", "grave.refused"):
        driver.create(name)
        driver.send(b"earlier", queue=name)
    driver.send(b"x", queue="work")
    ids = {name: driver.broker.queues[name].id for name in damaged}
    if is_nameless:
        for queue_id in ids.values():
            spoil(driver.store, keys.record(Kind.QUEUE, queue_id), None)
    flaws = [Flaw(keys.queue_chunks(queue_id), "damage") for queue_id in ids.values()]
    driver = BrokerDriver(FlawedStore(driver.store, *flaws), checks=False)
    driver.release(driver.receive(1, queue="work"))
    return driver


@pytest.mark.parametrize("is_nameless", [False, True])
@pytest.mark.parametrize("damaged", [("grave", "grave.refused"), ("grave.refused",), ("grave",)])
def test_no_queue_is_made_that_could_be_one_of_the_damaged(damaged: tuple[str, ...], is_nameless: bool) -> None:
    driver = buried(*damaged, is_nameless=is_nameless)
    assert not set(damaged) & set(driver.broker.queues)
    for _ in range(2):
        driver.send(b"x", queue="work")
        driver.release(driver.receive(1, queue="work"))
    kept = {name: queue.messages for name, queue in driver.broker.queues.items() if name.startswith("grave")}
    assert sum(kept.values()) == 3 + 2 - len(damaged), "every dead letter is somewhere"
    assert len(kept) <= 2, "the second one went where the first one did"
    again = BrokerDriver(driver.store, checks=False).broker
    assert len(again.quarantine) == len(damaged)
    assert {name: queue.messages for name, queue in again.queues.items() if name.startswith("grave")} == kept


@pytest.mark.parametrize("is_nameless", [False, True])
def test_messages_of_another_shard_make_no_queue_that_could_be_a_damaged_one(is_nameless: bool) -> None:
    driver = buried("grave", "grave.refused", is_nameless=is_nameless)
    chunk = b"".join(Chunk.of(0, 0, [b"y"]).parts())
    for number, name in enumerate(("grave", "grave.refused")):
        effect = c.ForwardedMessages(name, moved=True, due_ms=0)
        entry = c.OutboxEntry(number, 0, effect, chunk)
        driver.do(c.TakeOutbox(source="1 0", after=number - 1, up_to=number, entries=[entry]))
    assert not {"grave", "grave.refused"} & set(driver.broker.queues)
    assert sum(queue.messages for name, queue in driver.broker.queues.items() if name.startswith("grave")) == 3


def test_redrive_of_a_damaged_queue_says_so() -> None:
    driver = BrokerDriver()
    driver.create("grave")
    driver.send(b"x", queue="grave")
    driver.do(c.StartRedrive(queue="grave", target="elsewhere", per_second=1))
    grave = driver.broker.queues["grave"].id
    driver = BrokerDriver(FlawedStore(driver.store, Flaw(keys.queue_chunks(grave), "damage")), checks=False)
    driver.step()
    (task,) = driver.do(c.ListRedrives())
    assert (task.status, task.error) == ("failed", "queue 'grave' is in quarantine")


def test_damaged_session_is_left_out_and_told() -> None:
    driver = BrokerDriver()
    session = driver.do(c.OpenSession(name="me", ttl_ms=1000))
    spoil(driver.store, keys.record(Kind.SESSION, session), b"\xc1")
    driver = opened(driver.store)
    assert driver.broker.sessions == {}
    (report,) = driver.broker.take_reports()
    assert f"session {session} cannot be read" in report.reason


@pytest.mark.parametrize("kind", [Kind.META, Kind.MARK, Kind.OUTBOX, Kind.OUTBOX_TARGET])
def test_damage_of_what_everything_stands_on_keeps_the_store_closed(kind: Kind) -> None:
    store, _ = two_queues()
    with pytest.raises(StoreDamaged, match="penstock store salvage"):
        opened(store, Flaw(bytes([kind]), "1 of 1 records are damaged or missing"))


def test_store_without_its_own_record_is_not_taken_for_a_new_one() -> None:
    store, _ = two_queues()
    spoil(store, keys.record(Kind.META), None)
    with pytest.raises(StoreDamaged):
        opened(store)


def test_record_that_is_none_of_the_brokers_does_not_make_a_store_old() -> None:
    """In a cluster, a shard's store says first who has it."""
    store = MemoryStore()
    spoil(store, b"\xffclaim", b"mine")
    assert BrokerDriver(store).broker.meta.next_queue == 1


def test_store_whose_own_record_cannot_be_read_is_refused() -> None:
    store, _ = two_queues()
    spoil(store, keys.record(Kind.META), msgspec.msgpack.encode("nonsense"))
    with pytest.raises(StoreDamaged):
        Broker.open(store, 0, bytes(64))


def test_two_queues_of_one_name_are_not_mixed_up() -> None:
    store, queue_id = two_queues()
    (other,) = [value for key, value in store.scan(bytes([Kind.QUEUE])) if keys.number_of(key) != queue_id]
    spoil(store, keys.record(Kind.QUEUE, queue_id + 100), other)
    driver = opened(store)
    assert driver.receive(1, queue="well").count == 1
    assert queue_id + 100 in driver.broker.quarantine


def test_nothing_of_a_damaged_queue_is_dropped_because_the_clock_went_back(breaking: pytest.MonkeyPatch) -> None:
    driver = BrokerDriver()
    driver.create("hit", kind="fifo")
    driver.advance(3_600_000)
    driver.send_fifo("g", b"1", queue="hit")
    before = dict(driver.store.scan(b""))

    def fail(*_: object) -> None:
        raise ValueError("a record makes no sense")

    breaking.setattr(Queue, "watch_consumers", fail)
    late = BrokerDriver(driver.store, now_ms=driver.now_ms - 3_600_000, checks=False)
    assert len(late.broker.quarantine) == 1
    assert dict(late.store.scan(b"")) == before
