from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Engine, create_engine, insert, select, text, update
from sqlalchemy.ext.asyncio import create_async_engine

import penstock
from penstock.outbox import OUTBOX_ID, Inbox, Outbox, Relay
from penstock.server.clock import SystemClock
from penstock.server.shard import Shard
from tests.client.adapter import ENTROPY, LoopThread, memory_store
from tests.client.cutting import Proxy
from tests.client.serving import serve
from tests.outbox.postgres import PostgresServer

SECONDS_MAX = 60


def send(engine: Engine, outbox: Outbox, queue: str, *bodies: bytes, **options: Any) -> list[str]:
    with engine.begin() as connection:
        return [outbox.send(connection, queue, body, **options) for body in bodies]


def status(engine: Engine, outbox: Outbox) -> Any:
    with engine.connect() as connection:
        return outbox.status(connection)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def errors(engine: Engine, outbox: Outbox) -> dict[bytes, str]:
    with engine.connect() as connection:
        table = outbox.table.c
        return {row.body: row.error for row in connection.execute(select(table.body, table.error)) if row.error}


def test_a_committed_message_is_sent_as_it_was_meant(engine: Engine, outbox: Outbox, ps: penstock.Penstock) -> None:
    (key,) = send(engine, outbox, "orders", b"1", attributes={"n": 7, "raw": b"\x00"}, group="g", priority=4)
    send(engine, outbox, "orders", b"2", delay=60)
    assert Relay(engine, ps, outbox).run_once().sent == 2
    message = ps.queue("orders").receive()
    assert (message.body, message.group) == (b"1", "g")
    assert message.attributes == {"n": 7, "raw": b"\x00", OUTBOX_ID: key}
    assert ps.queue("orders").stats().delayed == 1
    (later,) = ps.queue("orders").browse(after=message.sequence, states=[penstock.State.DELAYED])
    assert later.until is not None and later.until - time.time() == pytest.approx(60, abs=10)
    assert status(engine, outbox).sent == 2


def test_a_message_without_delay_does_not_take_its_queues(
    engine: Engine, outbox: Outbox, ps: penstock.Penstock
) -> None:
    ps.create_queue("orders", delay=60)
    ps.create_queue("line.fifo", kind="fifo", delay=60)
    for queue in ("orders", "line.fifo"):
        send(engine, outbox, queue, b"now", delay=0, group="g")
    Relay(engine, ps, outbox).run_until_empty()
    assert errors(engine, outbox) == {}
    assert [ps.queue(queue).stats().delayed for queue in ("orders", "line.fifo")] == [0, 0]


def test_an_open_transaction_sends_nothing_and_holds_up_nobody(postgres: PostgresServer, ps: penstock.Penstock) -> None:
    engine, outbox = create_engine(postgres.create_database("open_transaction")), Outbox()
    outbox.metadata.create_all(engine)
    relay = Relay(engine, ps, outbox)
    with engine.connect() as connection:
        outbox.send(connection, "orders", b"first, and later")
        send(engine, outbox, "orders", b"now")
        assert relay.run_once().sent == 1
        connection.commit()
    assert relay.run_once().sent == 1
    assert [message.body for message in ps.queue("orders").receive(9)] == [b"now", b"first, and later"]
    engine.dispose()


def test_a_relay_that_dies_between_sending_and_marking_makes_nothing_twice(
    engine: Engine, outbox: Outbox, ps: penstock.Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(engine, outbox, "orders", b"1", b"2", b"3")
    dying = Relay(engine, ps, outbox)

    def die(*_: Any) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(dying, "_mark", die)
    with pytest.raises(RuntimeError):
        dying.run_once()
    assert status(engine, outbox).claimed == 3
    next_leader = Relay(engine, ps, outbox)
    assert next_leader.run_once().sent == 0, "the claim still holds"
    with engine.begin() as connection:  # as long ago as claims last
        connection.execute(update(outbox.table).values(claimed_until_ms=outbox.table.c.claimed_until_ms - 30_000))
    assert next_leader.run_once().sent == 3
    assert ps.queue("orders").stats().messages == 3


def test_a_relay_that_was_held_up_sends_nothing_that_may_be_anothers(
    engine: Engine, outbox: Outbox, ps: penstock.Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(engine, outbox, "orders", b"1")
    slow = Relay(engine, ps, outbox, claim=0.1)
    claim = slow._claim

    def held_up(*arguments: Any) -> Any:
        claimed = claim(*arguments)
        time.sleep(0.06)
        return claimed

    monkeypatch.setattr(slow, "_claim", held_up)
    assert slow.run_once().sent == 0
    assert ps.queues() == []
    assert Relay(engine, ps, outbox).run_once().sent == 1


@pytest.mark.parametrize("seed", range(2))
def test_several_relays_send_everything_once_and_every_group_in_order(
    engine: Engine, outbox: Outbox, ps: penstock.Penstock, seed: int
) -> None:
    chance = random.Random(seed)
    relays = [Relay(engine, ps, outbox, batch=chance.choice([3, 7, 20]), poll=0.01).start() for _ in range(3)]
    sent: dict[str | None, list[bytes]] = {}
    try:
        for number in range(40):
            with engine.begin() as connection:
                for part in range(chance.randrange(1, 8)):
                    group = chance.choice([None, "a", "b", "c"])
                    body = f"{number}.{part}".encode()
                    outbox.send(connection, "orders", body, group=group)
                    sent.setdefault(group, []).append(body)
        until(lambda: status(engine, outbox).pending == 0)
    finally:
        for relay in relays:
            relay.stop()
    received: dict[str | None, list[bytes]] = {}
    for record in ps.queue("orders").consumer("check").read(1_000):
        received.setdefault(record.group, []).append(record.body)
    assert sorted(received.pop(None, [])) == sorted(sent.pop(None, []))
    assert received == sent
    assert sum(relay.sent for relay in relays) == ps.queue("orders").stats().messages


ODD_ROWS: dict[bytes, dict[str, Any]] = {
    b"JSON for attributes": {"attributes": b'{"a": 1}'},
    b"a list for attributes": {"attributes": msgspec.msgpack.encode([1])},
    b"NUL in a bad attribute": {"attributes": msgspec.msgpack.encode({"a\x00b": [1]})},
    b"broken attribute": {"attributes": b"\x81\xa1a\xa1\xff"},
    b"no queue": {"queue": ""},
    b"control": {"queue": "small\x01"},
    b"empty group": {"message_group": ""},
    b"no key": {"key": ""},
    b"priority": {"priority": 12},
    b"below": {"priority": -1},
    b"late": {"due_ms": 2**62},
    b"early": {"due_ms": -(2**62)},
}
"""What both databases take, and no queue does."""


def test_poison_is_marked_with_the_reason_and_blocks_nobody(
    engine: Engine, outbox: Outbox, ps: penstock.Penstock
) -> None:
    ps.create_queue("small", message_bytes_max=50)
    ps.create_queue("line.fifo", kind="fifo")
    with engine.begin() as connection:
        for number in range(20):
            outbox.send(connection, "small", str(number).encode(), group="g")
        outbox.send(connection, "small", b"x" * 51, group="g")
        outbox.send(connection, "line.fifo", b"no group")
        bad = {"key": "k" * 32, "queue": "no such name!", "body": b"bad name", "created_ms": 0}
        connection.execute(insert(outbox.table).values(**bad))
        for number, attributes in enumerate((b"", b"\xff\xfe", b"\x07")):
            unreadable = {"key": f"{number}" * 32, "queue": "small", "body": b"attributes %d" % number, "created_ms": 0}
            connection.execute(insert(outbox.table).values(**unreadable, attributes=attributes))
        for body, odd in ODD_ROWS.items():
            row = {"key": body.decode().ljust(32, "-"), "queue": "small", "body": body, "created_ms": 0, **odd}
            connection.execute(insert(outbox.table).values(**row))
        for number in range(20, 40):
            outbox.send(connection, "small", str(number).encode(), group="g")
    moved = Relay(engine, ps, outbox).run_once()
    assert (moved.sent, moved.failed) == (40, 6 + len(ODD_ROWS))
    assert [int(record.body) for record in ps.queue("small").consumer("check").read()] == list(range(40))
    reasons = errors(engine, outbox)
    assert reasons[b"x" * 51].startswith("MessageTooLarge: ")
    assert reasons[b"no group"].startswith("InvalidRequest: ")
    assert reasons[b"bad name"].startswith("InvalidName: ")
    for number in range(3):
        assert reasons[b"attributes %d" % number].startswith("InvalidRequest: the attributes cannot be read: ")
    for body in ODD_ROWS:
        assert reasons[body].startswith(("InvalidRequest: ", "InvalidName: ")), reasons[body]
    assert status(engine, outbox).failed == 6 + len(ODD_ROWS)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'sqlite.db'}")
    yield engine
    engine.dispose()


def overwrite(engine: Engine, outbox: Outbox, body: bytes, column: str, value: object) -> None:
    """As a trigger may: SQLite takes any value in any column."""
    with engine.begin() as connection:
        statement = text(f"UPDATE {outbox.table.fullname} SET {column} = :value WHERE body = :body")
        connection.execute(statement, {"value": value, "body": body})


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("due_ms", "soon", "InvalidRequest: due_ms is 'soon': it must be a number"),
        ("due_ms", b"soon", "InvalidRequest: due_ms is b'soon': it must be a number"),
        ("priority", "high", "InvalidRequest: priority is 'high': it must be a whole number"),
        ("message_group", b"g", "InvalidRequest: b'g' is one of groups: each must be text or None"),
        ("queue", b"orders", "InvalidRequest: queue is b'orders': it must be text"),
    ],
)
def test_a_value_of_the_wrong_kind_is_poison_like_any_other(
    sqlite: Engine, ps: penstock.Penstock, column: str, value: object, reason: str
) -> None:
    outbox = Outbox()
    outbox.metadata.create_all(sqlite)
    send(sqlite, outbox, "orders", b"odd", b"good", group="g")
    overwrite(sqlite, outbox, b"odd", column, value)
    moved = Relay(sqlite, ps, outbox).run_once()
    assert (moved.sent, moved.failed) == (1, 1)
    assert errors(sqlite, outbox) == {b"odd": reason}


def overwrite_with_broken_text(engine: Engine, outbox: Outbox, body: bytes, column: str) -> None:
    """As a program in another language may: SQLite keeps text as it comes, and does not look whether it is UTF-8."""
    with engine.begin() as connection:
        statement = text(f"UPDATE {outbox.table.fullname} SET {column} = CAST(x'ff6f' AS TEXT) WHERE body = :body")
        connection.execute(statement, {"body": body})


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("key", r"InvalidRequest: key is b'\xffo': it must be text"),
        ("queue", r"InvalidRequest: queue is b'\xffo': it must be text"),
        ("message_group", r"InvalidRequest: b'\xffo' is one of groups: each must be text or None"),
        ("dedup_id", r"InvalidRequest: b'\xffo' is one of dedup_ids: each must be text or None"),
        ("attributes", "InvalidRequest: the attributes cannot be read: "),
        ("priority", r"InvalidRequest: priority is b'\xffo': it must be a whole number"),
        ("due_ms", r"InvalidRequest: due_ms is b'\xffo': it must be a number"),
    ],
)
def test_text_that_is_no_utf_8_is_poison_like_any_other(
    sqlite: Engine, ps: penstock.Penstock, column: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox()
    outbox.metadata.create_all(sqlite)
    send(sqlite, outbox, "orders", b"odd", b"good", group="g", dedup_id=None)
    overwrite_with_broken_text(sqlite, outbox, b"odd", column)
    moved = Relay(sqlite, ps, outbox).run_once()
    assert (moved.sent, moved.failed) == (1, 1)
    found = errors(sqlite, outbox)
    assert found.keys() == {b"odd"}
    assert found[b"odd"].startswith(reason)
    assert status(sqlite, outbox).failed == 1
    said = [record.getMessage() for record in caplog.records if record.name == "penstock.outbox"]
    assert [message.partition(" cannot be sent: ")[2] for message in said] == [found[b"odd"].partition(": ")[2]]


def test_a_row_with_a_broken_key_is_not_sent_under_a_dedup_id_of_its_own(sqlite: Engine, ps: penstock.Penstock) -> None:
    """Its consumers' inboxes would not know it again."""
    outbox = Outbox()
    outbox.metadata.create_all(sqlite)
    send(sqlite, outbox, "orders", b"odd", dedup_id="mine")
    overwrite_with_broken_text(sqlite, outbox, b"odd", "key")
    assert Relay(sqlite, ps, outbox).run_once().failed == 1


@pytest.mark.parametrize("column", ["error", "claim", "tries", "created_ms"])
def test_broken_text_in_the_relays_own_columns_keeps_nothing_from_being_sent(
    sqlite: Engine, ps: penstock.Penstock, column: str
) -> None:
    outbox = Outbox()
    outbox.metadata.create_all(sqlite)
    send(sqlite, outbox, "orders", b"odd", b"good", group="g")
    overwrite_with_broken_text(sqlite, outbox, b"odd", column)
    assert Relay(sqlite, ps, outbox).run_once().sent == 2


def test_a_body_that_was_written_as_text_is_sent_as_it_is(sqlite: Engine, ps: penstock.Penstock) -> None:
    outbox = Outbox()
    outbox.metadata.create_all(sqlite)
    send(sqlite, outbox, "orders", b"text", b"broken")
    overwrite(sqlite, outbox, b"text", "body", "tea for zwölf")
    overwrite_with_broken_text(sqlite, outbox, b"broken", "body")
    assert Relay(sqlite, ps, outbox).run_once().sent == 2
    assert [message.body for message in ps.queue("orders").receive(9)] == ["tea for zwölf".encode(), b"\xffo"]


def test_a_relay_leaves_the_users_connection_as_it_was(sqlite: Engine, ps: penstock.Penstock) -> None:
    outbox = Outbox()
    outbox.metadata.create_all(sqlite)
    send(sqlite, outbox, "orders", b"1")
    Relay(sqlite, ps, outbox).run_once()
    with sqlite.connect() as connection:
        assert connection.connection.driver_connection.text_factory is str  # type: ignore[union-attr]


@pytest.mark.parametrize("value", ["soon", b"soon", b"\xff"])
def test_a_claim_whose_end_is_no_number_is_nobodys(sqlite: Engine, ps: penstock.Penstock, value: object) -> None:
    outbox = Outbox()
    outbox.metadata.create_all(sqlite)
    send(sqlite, outbox, "orders", b"odd", b"good", group="g")
    overwrite(sqlite, outbox, b"odd", "claimed_until_ms", value)
    assert status(sqlite, outbox).claimed == 0
    assert Relay(sqlite, ps, outbox).run_once().sent == 2
    assert [message.body for message in ps.queue("orders").receive(9)] == [b"odd", b"good"]


def test_a_row_whose_tries_are_no_number_waits_as_if_it_were_new(sqlite: Engine, ps: penstock.Penstock) -> None:
    outbox = Outbox()
    outbox.metadata.create_all(sqlite)
    ps.create_queue("slow.fifo", kind="fifo", throughput_per_second=1, throughput_scope="group", dedup_scope="group")
    send(sqlite, outbox, "slow.fifo", b"a1", b"a2", group="a")
    overwrite(sqlite, outbox, b"a2", "tries", "many")
    relay = Relay(sqlite, ps, outbox)
    moved = relay.run_once()
    assert (moved.sent, moved.postponed) == (1, 1)
    until(lambda: relay.run_once().sent == 1)


def test_what_failed_is_tried_again_when_somebody_says_so(
    engine: Engine, outbox: Outbox, ps: penstock.Penstock
) -> None:
    ps.create_queue("small", message_bytes_max=100)
    send(engine, outbox, "small", b"x" * 101)
    relay = Relay(engine, ps, outbox)
    assert relay.run_once().failed == 1
    ps.queue("small").configure(message_bytes_max=1_000)
    assert relay.run_once().sent == 0
    with engine.begin() as connection:
        assert outbox.retry(connection) == 1
    assert relay.run_once().sent == 1
    assert status(engine, outbox) == type(status(engine, outbox))(0, 0, 0, 1, None)


def test_a_message_that_must_wait_holds_back_its_group_and_no_other(
    engine: Engine, outbox: Outbox, ps: penstock.Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps.create_queue("slow.fifo", kind="fifo", throughput_per_second=1, throughput_scope="group", dedup_scope="group")
    send(engine, outbox, "slow.fifo", b"a1", b"a2", b"a3", group="a")
    send(engine, outbox, "slow.fifo", b"b1", group="b")
    relay = Relay(engine, ps, outbox)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.outbox.relay._pause_ms", lambda row: 1_000_000)
        moved = relay.run_once()
    assert (moved.sent, moved.postponed) == (2, 1)
    assert relay.run_once() == type(moved)(), "what is behind a2 is not even claimed"
    with engine.begin() as connection:  # as long ago as that
        connection.execute(update(outbox.table).values(claimed_until_ms=0))
    until(lambda: relay.run_once().sent == 0 and status(engine, outbox).pending == 0)
    bodies = [record.body for record in ps.queue("slow.fifo").consumer("check").read()]
    assert [body for body in bodies if body.startswith(b"a")] == [b"a1", b"a2", b"a3"]


def test_an_outage_of_penstock_is_waited_out(engine: Engine, outbox: Outbox, tmp_path: Path) -> None:
    send(engine, outbox, "orders", b"1", b"2")
    gone = penstock.open(tmp_path / "data")
    gone.close()
    moved = Relay(engine, gone, outbox).run_once()
    assert (moved.sent, moved.failed, moved.postponed) == (0, 0, 0)
    assert isinstance(moved.outage, penstock.ShardClosed)
    with penstock.open(tmp_path / "data") as ps, Relay(engine, ps, outbox, poll=0.01):
        until(lambda: status(engine, outbox).pending == 0)
        assert ps.queue("orders").stats().messages == 2


def test_a_relay_whose_connection_is_cut_sends_everything_once_and_in_order(engine: Engine, outbox: Outbox) -> None:
    chance, loop = random.Random(1), LoopThread()
    server = loop.run(serve(Shard(memory_store(), SystemClock(), lambda: ENTROPY)))
    proxy = Proxy(server.port)
    loop.run(proxy.start())
    bodies = [str(number).encode() for number in range(400)]
    with engine.begin() as connection:
        outbox.send_many(connection, "orders", bodies, groups=["g"] * len(bodies))
    with (
        penstock.connect(server.url) as direct,
        penstock.connect(f"penstock://127.0.0.1:{proxy.port}") as ps,
        Relay(engine, ps, outbox, batch=5, poll=0.01),
    ):
        cuts = 0
        while status(engine, outbox).pending:
            time.sleep(chance.uniform(0.0, 0.03))
            if cuts < 20:
                loop.run(proxy.cut())
                cuts += 1
        assert [record.body for record in direct.queue("orders").consumer("check").read(1_000)] == bodies
        assert cuts > 3
    loop.run(proxy.stop())
    loop.run(server.stop())
    loop.close()


def test_a_relay_outlives_its_database(
    engine: Engine, outbox: Outbox, ps: penstock.Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    with Relay(engine, ps, outbox, poll=0.01) as relay:
        send(engine, outbox, "orders", b"1")
        until(lambda: relay.sent == 1)
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE penstock_outbox RENAME TO away"))
        until(lambda: caplog.messages)
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE away RENAME TO penstock_outbox"))
        send(engine, outbox, "orders", b"2")
        until(lambda: relay.sent == 2)
    assert "sending failed, trying again" in caplog.messages[0]
    assert not any("\n" in message for message in caplog.messages)


def test_sent_rows_are_kept_for_a_while_and_then_deleted(engine: Engine, outbox: Outbox, ps: penstock.Penstock) -> None:
    send(engine, outbox, "orders", b"1", b"2")
    Relay(engine, ps, outbox, keep_sent=60).run_once()
    with engine.begin() as connection:
        assert outbox.clean(connection, older_than=60) == 0
        assert outbox.clean(connection, older_than=0) == 2
    send(engine, outbox, "orders", b"3")
    Relay(engine, ps, outbox, keep_sent=0).run_once()
    assert status(engine, outbox).sent == 0
    send(engine, outbox, "orders", b"4")
    with Relay(engine, ps, outbox, keep_sent=0.001, poll=0.01) as relay:
        until(lambda: relay.sent == 1)
        relay._cleaned_at = -1_000.0
        until(lambda: status(engine, outbox).sent == 0)


def test_a_large_outbox_is_moved_in_pieces(
    engine: Engine, outbox: Outbox, ps: penstock.Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.outbox.relay._BATCH_BYTES_MAX", 2_500)
    with engine.begin() as connection:
        outbox.send_many(connection, "orders", [b"x" * 1_000] * 5)
    relay = Relay(engine, ps, outbox)
    rounds = [relay.run_once() for _ in range(4)]
    assert [(moved.sent, moved.more) for moved in rounds] == [(2, True), (2, True), (1, False), (0, False)]


def test_postgresql_wakes_a_relay_at_the_commit(postgres: PostgresServer, ps: penstock.Penstock) -> None:
    engine, outbox = create_engine(postgres.create_database("waking")), Outbox()
    outbox.metadata.create_all(engine)
    with Relay(engine, ps, outbox, poll=20) as relay:
        until(lambda: relay._bell is not None)
        time.sleep(0.2)
        started = time.monotonic()
        send(engine, outbox, "orders", b"1")
        until(lambda: relay.sent == 1)
        assert time.monotonic() - started < 10
        stopped = time.monotonic()
    assert time.monotonic() - stopped < 10
    engine.dispose()


def test_beyond_the_dedup_window_the_inbox_still_knows_a_message(
    engine: Engine, outbox: Outbox, inbox: Inbox, ps: penstock.Penstock
) -> None:
    send(engine, outbox, "orders", b"1")
    Relay(engine, ps, outbox).run_once()
    with engine.begin() as connection:  # as if the marking had been lost; and the queue has forgotten the dedup id
        connection.execute(update(outbox.table).values(state=0, claimed_until_ms=0, dedup_id="another window"))
    Relay(engine, ps, outbox).run_once()
    messages = ps.queue("orders").receive(9)
    assert len(messages) == 2
    with engine.begin() as connection:
        assert [inbox.once(connection, message) for message in messages] == [True, False]


@pytest.mark.parametrize(
    "options", [{"batch": 0}, {"claim": 0}, {"claim": 200}, {"poll": 0}, {"poll": -1}, {"keep_sent": -1}]
)
def test_a_setting_out_of_range_is_refused(ps: penstock.Penstock, options: dict[str, Any]) -> None:
    engine = create_engine("sqlite://")
    with pytest.raises(penstock.InvalidRequest):
        Relay(engine, ps, **options)
    engine.dispose()


def test_a_relay_refuses_an_engine_or_a_client_for_tasks(engine: Engine, outbox: Outbox, ps: penstock.Penstock) -> None:
    """Nobody would await what they do: every message would be marked as sent, and none would be."""
    send(engine, outbox, "orders", b"1")

    async def relay_with(client: Any) -> None:
        async with client as tasks:
            with pytest.raises(penstock.InvalidRequest, match="AsyncPenstock"):
                Relay(engine, tasks, outbox).run_once()

    asyncio.run(relay_with(penstock.open_async(":memory:")))
    with pytest.raises(penstock.InvalidRequest, match="AsyncEngine"):
        Relay(create_async_engine("postgresql+psycopg://"), ps, outbox)  # type: ignore[arg-type]
    assert status(engine, outbox).pending == 1
