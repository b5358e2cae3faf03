"""What people watch, over REST."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.commands import ChannelStats, CreateQueue
from penstock.core.errors import QueueNotFound
from penstock.core.queues.origin import error_group
from penstock.protocols.rest.queues import Queues
from penstock.server import overview
from penstock.server.log import RequestLog
from penstock.server.overview import Backlogs, Overview, Row
from penstock.server.settings import LogSettings
from tests.compat.server import until
from tests.protocols.rest.asking import done, receive, refused, send
from tests.protocols.rest.serving import Server

_CREDENTIALS = """
[[credentials]]
name = "shop"
access_key = "AK1"
secret_key = "a long secret of the shop"
token = "token-of-the-shop"
[[credentials.allow]]
queues = ["shop-*"]
rights = ["read"]

[[credentials]]
name = "boss"
access_key = "AK2"
secret_key = "a long secret of the boss"
token = "token-of-the-boss"
"""
_SHOP = {"authorization": "Bearer token-of-the-shop"}
_BOSS = {"authorization": "Bearer token-of-the-boss"}


def _rows(http: httpx.Client, **query: Any) -> Any:
    return done(http.get("/v1/overview/queues", params=query))


def test_rates_are_what_a_client_counts(serve: Callable[..., Server]) -> None:
    with serve().client() as http:
        send(http, "orders", "first")
        assert done(http.get("/v1/overview"))["rates"] is None
        began_s = time.monotonic()
        send(http, "orders", *map(str, range(500)))
        for message in receive(http, "orders", max=200):
            done(http.post("/v1/queues/orders/ack", json={"receipt": message["receipt"]}))
        receive(http, "orders", max=50)
        time.sleep(max(0.0, overview.LOOK_S + 0.1 - (time.monotonic() - began_s)))
        before_s = time.monotonic()
        seen = done(http.get("/v1/overview"))
        seconds = before_s - began_s
        for name, count in {"sent": 500, "delivered": 250, "acked": 200, "failed": 0, "dead": 0}.items():
            assert seen["rates"][name] == pytest.approx(count / seconds, rel=0.1), name
        totals = seen["totals"]
        assert (totals["queues"], totals["ready"], totals["leased"], totals["acked"]) == (1, 251, 50, 200)
        row = _rows(http)["queues"][0]
        assert row["rates"]["sent"] == pytest.approx(seen["rates"]["sent"])
        assert row["spark"] == [pytest.approx(seen["rates"]["sent"])]
        assert row["oldest_sent_at"] is not None
        assert seen["disk"]["free_bytes"] > 0
        assert seen["memory_bytes"] > 0


def test_queues_are_listed_in_any_order_a_page_at_a_time(serve: Callable[..., Server]) -> None:
    with serve().client() as http:
        for count, name in enumerate(("a-1", "b-1.fifo", "c-2", "d-2"), 1):
            fields = {"group": "g", "dedup_id": name} if name.endswith("fifo") else {}
            for number in range(count):
                send(http, name, str(number), **(fields and {"group": "g", "dedup_id": str(number)}))
        done(http.post("/v1/queues/c-2/channels/main/pause"))
        first = _rows(http, sort="ready", descending=True, limit=3)
        assert [row["name"] for row in first["queues"]] == ["d-2", "c-2", "b-1.fifo"]
        assert (first["total"], first["next"]) == (4, 3)
        assert [row["paused"] for row in first["queues"]] == [[], ["main"], []]
        assert [row["fifo"] for row in first["queues"]] == [False, False, True]
        rest = _rows(http, sort="ready", descending=True, limit=3, after=first["next"])
        assert ([row["name"] for row in rest["queues"]], rest["next"]) == (["a-1"], None)
        assert [row["name"] for row in _rows(http, contains="-2")["queues"]] == ["c-2", "d-2"]
        assert _rows(http, after=50) == {"queues": [], "total": 4, "next": None}


def test_who_may_read_some_queues_sees_those_only(serve: Callable[..., Server]) -> None:
    with serve(_CREDENTIALS).client() as http:
        for name in ("shop-1", "secret"):
            done(http.post(f"/v1/queues/{name}/messages", json={"body": "x"}, headers=_BOSS), 201)
        seen = done(http.get("/v1/overview", headers=_SHOP))
        assert (seen["totals"]["queues"], seen["totals"]["messages"]) == (1, 1)
        assert (seen["disk"], seen["memory_bytes"]) == (None, None)
        assert done(http.get("/v1/overview", headers=_BOSS))["totals"]["queues"] == 2
        rows = done(http.get("/v1/overview/queues", headers=_SHOP))
        assert ([row["name"] for row in rows["queues"]], rows["total"]) == (["shop-1"], 1)
        refused(http.get("/v1/live", params={"queue": "secret"}, headers=_SHOP), 403, "access_denied")
        refused(http.get("/v1/overview"), 401, "unauthorized")
        with http.stream("GET", "/v1/live", params={"queue": "shop-1"}, headers=_SHOP) as stream:
            event = next(line for line in stream.iter_lines() if line)
        assert "secret" not in event
        assert json.loads(event.removeprefix("data: "))["totals"]["queues"] == 1
        me = done(http.get("/v1/me", headers=_SHOP))
        assert (me["name"], me["grants"]) == ("shop", [{"queues": ["shop-*"], "rights": ["read"]}])


def test_the_stream_tells_of_what_happens_and_ends_with_the_server(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.client() as http, server.client() as other:
        send(http, "orders", "one")
        with other.stream("GET", "/v1/live", params={"queue": "orders"}, headers={"accept": "*/*"}) as stream:
            assert stream.headers["content-type"] == "text/event-stream"
            events = (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line)
            assert next(events)["queue"]["ready"] == 1
            send(http, "orders", "two")
            event = next(each for each in events if each["queue"]["ready"] == 2)
            assert event["rates"]["sent"] > 0
            began_s = time.monotonic()
            server.stop()
            list(events)
            assert time.monotonic() - began_s < 10


def test_thousands_of_queues_are_all_counted(serve: Callable[..., Server]) -> None:
    server = serve()
    for number in range(3_000):
        server.call(CreateQueue(name=f"queue-{number:05}"))
    with server.client() as http:
        assert _rows(http, sort="ready", limit=2)["total"] == 3_000
        assert done(http.get("/v1/overview"))["totals"]["queues"] == 3_000


def test_a_look_is_shared_by_all_who_ask_at_once() -> None:
    class Shards:
        looks = 0

        async def tallies(self, *, local: bool) -> Any:
            self.looks += 1
            await asyncio.sleep(0)
            yield []

    async def ask() -> int:
        shards = Shards()
        seen = Overview(shards)  # type: ignore[arg-type]
        await asyncio.gather(*(seen.look() for _ in range(20)))
        return shards.looks

    assert asyncio.run(ask()) == 1


@given(
    st.lists(st.tuples(st.text("abc", max_size=3), st.integers(0, 3)), max_size=40),
    st.booleans(),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_a_page_of_very_many_rows_is_that_of_all_of_them_sorted(
    drawn: list[tuple[str, int]], descending: bool, first: int, count: int
) -> None:
    rows = [Row(name, 0, 0, 0, ready, 0, 0, 0, 0, 0, 0) for name, ready in drawn]

    def key(row: Row) -> tuple[int, str]:
        return row.ready, row.name

    with mock.patch.object(overview, "_ROWS_PER_TURN", 4):
        found = overview.in_order(rows, key, descending, first, first + count)
    assert found == sorted(rows, key=key, reverse=descending)[first : first + count]


@pytest.mark.parametrize("sort", ["name", "ready", "dead_letters"])
def test_a_page_behind_the_last_is_empty(http: httpx.Client, name: str, sort: str) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    page = done(http.get("/v1/overview/queues", params={"sort": sort, "after": 2**63 - 1}))
    assert page["queues"] == [] and page["total"] >= 1 and page["next"] is None


def test_rows_that_stand_still_are_kept_and_add_up_with_those_that_move() -> None:
    still, moving = Row("a", 1, 2, 0, 1, 0, 0, 1, 0, 0, 0), Row("b", 1, 2, 0, 1, 0, 0, 1, 0, 0, 0)
    first = still.moved_since(still, 1.0)
    assert first.rates == overview.Rates() and still.moved_since(first, 1.0) is first
    moved = moving._replace(sent=5, messages=5, ready=5).moved_since(moving, 2.0)
    counts, rates = overview.added_up([first, moved, first])
    assert rates == overview.Rates(sent=2.0) and (counts["messages"], counts["sent"]) == (7, 7)
    assert overview.added_up([first])[1] == overview.Rates() and overview.added_up([still])[1] is None
    assert overview.added_up([]) == (dict.fromkeys(counts, 0), None)


def test_dead_letters_are_grouped_by_what_their_errors_have_in_common(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name, "settings": {"max_receives": 1}}), 201)
    assert done(http.get(f"/v1/queues/{name}/dead-letters/groups"))["groups"] == []
    send(http, name, *(f"body {number}" for number in range(250)))
    for number, message in enumerate(receive(http, name, max=250)):
        error = f"timeout after {number} s" if number % 5 else f"no customer 'c-{number}'\nTraceback {number}"
        done(http.post(f"/v1/queues/{name}/release", json={"receipt": message["receipt"], "error": error}))
    found = done(http.get(f"/v1/queues/{name}/dead-letters/groups"))
    assert [(group["group"], group["count"]) for group in found["groups"]] == [
        ("timeout after # s", 200),
        ("no customer #", 50),
    ]
    assert (found["queue"], found["looked_at"], found["next"]) == (f"{name}.dead", 250, None)
    assert found["groups"][0]["first_at"] <= found["groups"][0]["last_at"]
    assert found["groups"][0]["sample"]["body"] == "body 1"
    assert found["groups"][0]["sample"]["failures"][0]["error"] == "timeout after 1 s"
    later = done(http.get(f"/v1/queues/{name}/dead-letters/groups?after={found['groups'][0]['sample']['sequence']}"))
    assert later["looked_at"] < 250


@pytest.mark.parametrize("error", ["'" * 100_000, "9." * 100_000, "a1" * 100_000, "\n", "", "\x00'\ud83d"])
def test_an_error_of_any_shape_has_a_group_at_once(error: str) -> None:
    began_s = time.perf_counter()
    assert 1 <= len(error_group(error)) <= 200
    assert time.perf_counter() - began_s < 0.5


def test_history_is_for_who_may_read_and_can_be_off(serve: Callable[..., Server]) -> None:
    server = serve(_CREDENTIALS)
    with server.client(headers=_SHOP) as shop, server.client(headers=_BOSS) as boss:
        send(boss, "shop-orders", "x")
        found = done(shop.get("/v1/history", params={"queue": "shop-orders", "range": "day"}))
        assert (found["queue"], found["step"], len(found["at"])) == ("shop-orders", 60, 1_440)
        assert len(found["sent"]) == len(found["ack_p99"]) == 1_440
        refused(shop.get("/v1/history"), 403, "access_denied")
        assert len(done(boss.get("/v1/history"))["at"]) == 360
    with serve("[history]\nenabled = false").client() as http:
        refused(http.get("/v1/history"), 404, "history_off")


def test_a_channel_that_is_late_has_an_alarm_until_it_has_caught_up(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "LOOK_S", 0.02)
    monkeypatch.setattr(overview, "_GROWING_S", 0.1)
    with serve().client() as http:

        def alarms() -> list[Any]:
            return [each for each in done(http.get("/v1/overview"))["alarms"] if each["kind"] in ("lag", "paused")]

        def settled(seconds: float = 0.5) -> list[Any]:
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s:
                time.sleep(0.03)
                found = alarms()
            return found

        for name in ("slow", "topic", "stopped", "mail"):
            done(http.post("/v1/queues", json={"name": name, "settings": {"max_receives": 1}}), 201)
        done(http.post("/v1/queues/topic/channels", json={"name": "fraud"}), 201)
        done(http.post("/v1/queues/stopped/channels/main/pause"))
        assert alarms() == []
        send(http, "stopped", "one")
        (alarm,) = settled(0.1)
        assert (alarm["kind"], alarm["queue"]) == ("paused", "stopped"), "a single message, and nothing grows"
        assert alarm["text"].startswith("channel main of stopped is paused, and 1 message waits in it, the oldest for ")
        for name in ("slow", "topic", "mail"):
            send(http, name, *map(str, range(200)))
        for name in ("topic", "mail"):
            got = done(http.post(f"/v1/queues/{name}/receive", json={"max": 200}))["messages"]
            what = "ack" if name == "topic" else "release"
            done(http.post(f"/v1/queues/{name}/{what}", json={"receipts": [each["receipt"] for each in got]}))
        settled()
        for _ in range(2):  # a backlog that stays as it is does not make the alarm go
            found = {each["queue"]: each for each in settled()}
            assert {(name, each["kind"]) for name, each in found.items()} == {
                ("slow", "lag"),
                ("topic", "lag"),
                ("stopped", "paused"),
            }, "dead letters wait for people, not for receivers"
        text = found["topic"]["text"]
        assert text.startswith("200 messages wait in channel fraud of topic, the oldest for ")
        assert "as many as 0 s ago; none was acknowledged since: add receivers" in text
        got = done(http.post("/v1/queues/slow/receive", json={"max": 180}))["messages"]
        done(http.post("/v1/queues/slow/ack", json={"receipts": [each["receipt"] for each in got]}))
        until(lambda: {each["queue"] for each in alarms()} == {"topic", "stopped"})
        done(http.post("/v1/queues/stopped/channels/main/unpause"))
        until(lambda: {each["queue"] for each in alarms()} == {"topic"})


def _stats(ready: int, acked: int) -> Any:
    channel = ChannelStats("main", ready, 0, 0, acked, 0, 0, False, None, 0)
    return SimpleNamespace(name="orders", channels={"main": channel})


def test_an_alarm_of_a_growing_backlog_stays_however_large_it_gets() -> None:
    """19 messages a second more come than go, as long as it takes for 31,500 to wait."""
    backlogs = Backlogs()
    late = {s: bool(backlogs.note(_stats(19 * s, 8 * s), float(s))) for s in range(0, 1_660, 2)}
    began_s = next(s for s, is_late in late.items() if is_late)
    assert began_s <= 60
    assert all(is_late for s, is_late in late.items() if s >= began_s)


def test_a_large_backlog_that_is_worked_off_fast_has_no_alarm() -> None:
    backlogs = Backlogs()
    assert not any(backlogs.note(_stats(26_000, 200 * s), float(s)) for s in range(600))


def test_every_queue_is_asked_in_turn() -> None:
    backlogs = Backlogs()
    rows = [Row(f"q{n:03}", 1, 1, 0, 1 + (n < 20), 0, 0, 1, 0, 0, 0) for n in range(100)]
    asked = {name for _ in range(5) for name in backlogs.to_ask(rows)}
    assert asked == {row.name for row in rows}


def test_the_alarm_of_dead_letters_ends_when_they_are_redriven(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "LOOK_S", 0.05)
    with serve().client() as http:

        def alarms() -> list[Any]:
            time.sleep(0.1)
            return [each for each in done(http.get("/v1/overview"))["alarms"] if each["kind"] == "dead letters"]

        done(http.post("/v1/queues", json={"name": "mail", "settings": {"max_receives": 1}}), 201)
        send(http, "mail", "a", "b")
        assert alarms() == []
        for message in done(http.post("/v1/queues/mail/receive", json={"max": 2}))["messages"]:
            done(http.post("/v1/queues/mail/release", json={"receipt": message["receipt"], "error": "no"}))
        (alarm,) = alarms()
        assert alarm["text"].startswith("2 messages of mail were dead-lettered in the last ")
        assert alarm["text"].endswith(": 2 are there now")
        assert alarms(), "it is not over after a look"
        done(http.post("/v1/redrives", json={"queue": "mail.dead"}), 201)
        until(lambda: alarms() == [])
        assert done(http.get("/v1/overview"))["totals"]["dead"] == 2


def _answers(stream: httpx.Response, count: int) -> list[Any]:
    """The next answers that a stream tells."""
    found: list[Any] = []
    kind = ""
    for line in stream.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif not line:
            kind = ""
        elif kind == "answer":
            found.append(json.loads(value))
            if len(found) == count:
                break
    return found


def test_the_stream_tells_answers_when_they_change_and_only_then(serve: Callable[..., Server]) -> None:
    server = serve(_CREDENTIALS)
    watch = ["/v1/queues/shop-1", "/v1/queues/secret", "/v1/redrives?queue=shop-1"]
    with server.client(headers=_BOSS) as http, server.client(headers=_SHOP) as other:
        send(http, "shop-1", "a")
        send(http, "secret", "b")
        with other.stream("GET", "/v1/live", params={"watch": watch}) as stream:
            first = _answers(stream, 3)
        assert [each["path"] for each in first] == watch
        assert first[0]["answer"] == done(other.get("/v1/queues/shop-1"))
        assert first[1]["problem"]["code"] == "access_denied"
        assert first[2]["answer"] == {"redrives": []}
        with other.stream("GET", "/v1/live", params={"watch": watch[0]}) as stream:
            lines = stream.iter_lines()
            events = 0
            told = []
            for line in lines:
                if line.startswith('data: {"path"'):
                    told.append(json.loads(line[6:])["answer"]["stats"]["messages"])
                    if told == [1, 2]:
                        break
                elif line.startswith("data: "):
                    events += 1
                    assert events < 30
                    if events == 4:
                        assert told == [1], "nothing has changed yet"
                        send(http, "shop-1", "c")
        for wrong in ("/v1/queues/shop-1/messages", "/v1/live", "/nowhere", "/v1/history?range=year"):
            refused(other.get("/v1/live", params={"watch": wrong}), 400, "invalid_request")


def test_nobody_takes_all_the_streams(serve: Callable[..., Server]) -> None:
    server = serve(_CREDENTIALS)
    with server.client(headers=_BOSS) as http, server.client(headers=_SHOP) as other, ExitStack() as stack:
        for _ in range(25):
            stream = stack.enter_context(http.stream("GET", "/v1/live"))
            assert next(stream.iter_lines()).startswith("data: ")
        assert not _is_open(http)
        assert refused(http.get("/v1/live"), 429, "over_limit") == "25 streams of 'boss' are open: close some first"
        with other.stream("GET", "/v1/live") as stream:
            assert next(stream.iter_lines()).startswith("data: ")
        stack.close()
        until(lambda: _is_open(http), 10)


def test_streams_that_watch_much_leave_others_their_turn(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten answers of 10 ms for each of 25 streams: together they take longer than the second that they are for."""
    taken: list[float] = []

    def work(*_: object) -> None:
        until_s = time.thread_time() + 0.01
        while time.thread_time() < until_s:
            pass
        taken.append(time.monotonic())
        raise QueueNotFound.of("orders")

    server = serve()
    monkeypatch.setattr(Queues, "_described", work)
    with ExitStack() as stack:
        for number in range(25):
            watch = "&".join(f"watch=/v1/queues/q-{number}-{each}" for each in range(10))
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(f"GET /v1/live?{watch} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        http = stack.enter_context(server.client())
        waits_s: list[float] = []
        until_s = time.monotonic() + 5
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            assert http.get("/healthz").status_code == 200
            waits_s.append(time.monotonic() - began_s)
            time.sleep(0.01)
    assert len(taken) > 50
    assert sorted(waits_s)[len(waits_s) * 9 // 10] < 0.1, (max(waits_s), len(waits_s))


def test_a_closed_tab_is_no_failed_request_in_the_log(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = io.StringIO()
    settings = LogSettings(format="json", requests="all")
    monkeypatch.setattr("penstock.server.node.RequestLog", lambda _: RequestLog(settings, logged))
    with serve().client() as http:
        with http.stream("GET", "/v1/live") as stream:
            assert next(stream.iter_lines()).startswith("data: ")
        until(lambda: bool(logged.getvalue()), 10)
    line = json.loads(logged.getvalue())
    assert (line["action"], line["status"], line["outcome"]) == ("live", 200, "ok")


def _is_open(http: httpx.Client) -> bool:
    with http.stream("GET", "/v1/live") as stream:
        return stream.status_code == 200


def test_a_message_is_watched_by_its_sequence_number_alone(serve: Callable[..., Server]) -> None:
    with serve().client() as http:
        (sent,) = send(http, "q", "a")
        path = "/v1/queues/q/messages/"
        for name in (sent["id"], "f058b7b8-246f-4424-ac54-c584acaebd01", "²", "x"):
            refused(http.get("/v1/live", params={"watch": path + name}), 400, "invalid_request")
        with http.stream("GET", "/v1/live", params={"watch": f"{path}{sent['sequence']}"}) as stream:
            (told,) = _answers(stream, 1)
        assert told["answer"]["sequence"] == sent["sequence"]
