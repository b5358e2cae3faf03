"""Event records: what they say, what they leave out, and that the work comes first."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.core.commands import (
    Ack,
    AckSequences,
    AckUpTo,
    CreateQueue,
    ReadRecords,
    Receive,
    Release,
    Send,
)
from penstock.core.queues.config import QueueConfig
from penstock.server.events import PENDING_MAX, Recorder
from penstock.server.settings import EventSettings, InvalidSettings, Settings, events_config, parse
from penstock.server.shard import Tick
from penstock.store.errors import CommitFailed
from tests.compat.server import serving, until
from tests.server.bare import BareShard
from tests.server.stores import TroubledStore

EVENTS = "penstock.events"


class Recorded(BareShard):
    def __init__(self, store: TroubledStore | None = None, **options: Any) -> None:
        self.store = store or TroubledStore()
        super().__init__(self.store)
        self.shard.record(Recorder(EVENTS, events_config(EventSettings()), **options))

    def events(self) -> list[dict[str, Any]]:
        """What is in the queue, once everything was flushed."""
        self.flush()
        if EVENTS not in self.shard.broker.queues:
            return []
        records = self.do(ReadRecords(queue=EVENTS, offset=0, limit=100_000))
        return [json.loads(run.chunk.body(at)) for run in records.runs for at in range(run.start, run.stop)]

    def flush(self) -> None:
        self.advance(1)
        self.advance(1)

    def story(self) -> list[tuple[Any, ...]]:
        return [
            (each["what"], each.get("first", -1), each["count"], each.get("latency_ms", -1)) for each in self.events()
        ]


def spans(delivery: Any) -> list[Any]:
    return [span for run in delivery.runs for span in run.spans()]


def test_a_run_of_messages_is_one_event_however_many_they_are() -> None:
    shard = Recorded()
    shard.do(Send(queue="orders", bodies=[b"x"] * 1_000))
    shard.clock.advance_ms(30)
    delivery = shard.do(Receive(queue="orders", limit=1_000))
    shard.clock.advance_ms(12)
    shard.do(Ack(queue="orders", spans=spans(delivery)))
    assert shard.story() == [("sent", 0, 1_000, -1), ("received", 0, 1_000, 30), ("acked", 0, 1_000, 42)]
    sent, received, acked = shard.events()
    assert (sent["queue"], sent.get("channel"), sent["bytes"]) == ("orders", None, 1_000)
    assert (received["channel"], received["attempt"], received["bytes"]) == ("main", 1, 1_000)
    assert (acked["last"], acked["attempt"]) == (999, 1)


def test_single_acks_of_one_step_are_one_event() -> None:
    shard = Recorded()
    shard.do(Send(queue="orders", bodies=[b"x"] * 50))
    deliveries = [shard.do(Receive(queue="orders")) for _ in range(50)]
    shard.run(*[Ack(queue="orders", spans=spans(delivery)) for delivery in deliveries])
    assert [(what, count) for what, _, count, _ in shard.story() if what == "acked"] == [("acked", 50)]


def test_failures_are_told_with_their_reason_up_to_the_dead_letter() -> None:
    shard = Recorded()
    shard.do(CreateQueue(name="orders", config=QueueConfig(max_receives=2, lease_ms=5_000)))
    shard.do(Send(queue="orders", bodies=[b"x"]))
    delivery = shard.do(Receive(queue="orders"))
    shard.do(Release(queue="orders", spans=spans(delivery), error="no such table"))
    shard.do(Receive(queue="orders"))
    shard.advance(5)
    failed = [each for each in shard.events() if each["what"] in ("released", "expired", "dead")]
    assert [(each["what"], each["queue"], each["attempt"], each["error"]) for each in failed] == [
        ("released", "orders", 1, "no such table"),
        ("expired", "orders", 2, "lease expired"),
        ("dead", "orders", 2, "lease expired"),
    ]
    assert [each["queue"] for each in shard.events() if each["what"] == "sent"] == ["orders", "orders.dead"]


def test_acks_by_session_and_by_offset_are_told_too() -> None:
    import numpy as np

    shard = Recorded()
    shard.do(Send(queue="orders", bodies=[b"x"] * 10))
    shard.do(Receive(queue="orders", limit=4))
    shard.do(AckSequences(queue="orders", channel="main", sequences=np.arange(4), session=0))
    shard.do(AckUpTo(queue="orders", channel="main", offset=10))
    told = [(each["what"], each["count"]) for each in shard.events()]
    assert told == [("sent", 10), ("received", 4), ("acked", 4), ("passed", 6)]


def test_the_events_queue_is_not_recorded() -> None:
    shard = Recorded()
    shard.do(Send(queue="orders", bodies=[b"x"]))
    assert len(shard.events()) == 1
    for _ in range(5):
        shard.flush()
    assert len(shard.events()) == 1
    assert shard.shard.wake_at_ms() is None or shard.shard.wake_at_ms() > shard.clock.now_ms() + 10_000


def test_events_go_along_with_a_commit_that_is_made_anyway() -> None:
    shard = Recorded()
    shard.do(Send(queue="orders", bodies=[b"x"]))
    shard.clock.advance_ms(300)
    before = shard.store.commits
    shard.do(Send(queue="orders", bodies=[b"x"]))
    assert shard.store.commits == before + 1
    assert shard.do(ReadRecords(queue=EVENTS, offset=0)).next_offset == 1


def test_an_idle_shard_wakes_for_its_last_events() -> None:
    shard = Recorded()
    shard.do(Send(queue="orders", bodies=[b"x"]))
    assert shard.shard.wake_at_ms() == shard.clock.now_ms() + 1_000


def test_a_sample_says_how_much_it_stands_for() -> None:
    turns = iter([0.05, 0.5, 0.99, 0.01] * 100)
    shard = Recorded(sample=0.1, chance=lambda: next(turns))
    for _ in range(8):
        shard.do(Send(queue="orders", bodies=[b"x"]))
    told = shard.events()
    assert [each["first"] for each in told] == [0, 3, 4, 7]
    assert {each["sample"] for each in told} == {0.1}


def test_a_commit_that_fails_leaves_no_event_of_what_it_did_and_none_twice() -> None:
    for kept in (False, True):
        shard = Recorded()
        shard.do(Send(queue="orders", bodies=[b"x"]))
        shard.clock.advance_ms(1_000)
        shard.store.fail_next(kept=kept)
        call = shard.run(Send(queue="orders", bodies=[b"y"] * 7))[0]
        assert isinstance(call.error, CommitFailed)
        shard.do(Send(queue="orders", bodies=[b"z"] * 9))
        told = shard.events()
        counts = [each["count"] for each in told if each["what"] == "sent"]
        assert counts == ([1, 9] if kept else [9])
        assert [each["count"] for each in told if each["what"] == "dropped"] == [1]


def test_on_a_full_disk_acks_work_and_events_wait() -> None:
    shard = Recorded()
    shard.do(Send(queue="orders", bodies=[b"x"] * 3))
    delivery = shard.do(Receive(queue="orders", limit=3))
    shard.clock.advance_ms(2_000)
    shard.store.full = True
    assert shard.do(Ack(queue="orders", spans=spans(delivery))).count == 3
    shard.store.full = False
    shard.clock.advance_ms(2_000)
    assert "acked" in [each["what"] for each in shard.events()]


def test_more_events_than_may_wait_are_dropped_and_counted() -> None:
    shard = Recorded()
    recorder = shard.shard._recorder
    assert recorder is not None
    message_events = [_other(number) for number in range(PENDING_MAX + 500)]
    recorder._take(message_events, shard.clock.now_ms())
    for _ in range(10):
        shard.advance(1)
    told = shard.events()
    assert len([each for each in told if each["what"] != "dropped"]) <= PENDING_MAX
    assert sum(each["count"] for each in told if each["what"] == "dropped") >= 500


def _other(number: int) -> Any:
    from penstock.core.commands import MessageEvent

    return MessageEvent("acked", "orders", "main", first=3 * number, messages=1, at_ms=number, sent_ms=1)


def test_an_events_queue_that_refuses_fails_nobodys_work() -> None:
    shard = Recorded()
    shard.do(CreateQueue(name=EVENTS, config=QueueConfig(kind="fifo")))
    for _ in range(3):
        assert shard.do(Send(queue="orders", bodies=[b"x"])).count == 1
        shard.flush()


def test_nothing_is_noted_while_nobody_records() -> None:
    shard = BareShard(TroubledStore())
    shard.do(Send(queue="orders", bodies=[b"x"]))
    shard.run(Tick())
    assert shard.shard.broker.message_events is None
    assert list(shard.shard.broker.queues) == ["orders"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("sample = 0", "sample is 0"),
        ("sample = 2.0", "sample is 2: it must be larger than 0, up to 1"),
        ("retention_s = 0", "retention_s"),
        ('queue = "no good"', "cannot name a queue"),
        ("smaple = 1.0", "did you mean 'sample'"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(text: str, what: str) -> None:
    with pytest.raises(InvalidSettings, match=what):
        parse(f"[events]\n{text}").check()


def test_they_are_off_by_default() -> None:
    assert not Settings().events.enabled


def test_a_server_records_what_its_clients_do(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text("[events]\nenabled = true\nflush_s = 0.05\nretention_bytes = 100000\n")
    with serving(tmp_path, "--config", str(config)) as server, _connected(server) as ps:
        assert _events(ps) == []
        orders = ps.queue("orders")
        orders.send_many([b"x"] * 100)
        with ps.session("worker-1") as session:
            for message in session.queue("orders").receive(max=100):
                message.ack()
        events = ps.queue(EVENTS)
        until(lambda: _told(ps, "acked") == 100)
        assert (_told(ps, "sent"), _told(ps, "received")) == (100, 100)
        acked = [each for each in _events(ps) if each["what"] == "acked"]
        assert {each["session"] for each in acked} == {"worker-1"}
        deadline_s = time.monotonic() + 20
        while events.stats().sent < 4_000 and time.monotonic() < deadline_s:
            orders.send_many([b"x"] * 10)
            for message in orders.receive(max=10):
                message.ack()
        assert events.stats().bytes <= 100_000


def _connected(server: Any) -> Any:
    return penstock.connect(f"penstock://127.0.0.1:{server.http_port}")


def _events(ps: Any) -> list[dict[str, Any]]:
    records = ps.queue(EVENTS).consumer("test").read(max=10_000, offset=0)
    return [json.loads(record.body) for record in records]


def _told(ps: Any, what: str) -> int:
    return sum(each["count"] for each in _events(ps) if each["what"] == what and each["queue"] == "orders")
