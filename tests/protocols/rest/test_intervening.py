"""Single messages by id: their whole life, deleted, released, rescheduled; sessions seen and ended; kinds of errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from penstock.core.queues.queue import Queue
from tests.protocols.rest.asking import done, receive, refused, send
from tests.protocols.rest.serving import Server

_CREDENTIALS = """
[[credentials]]
name = "reader"
access_key = "AK1"
secret_key = "a long secret of the reader"
token = "token-of-the-reader"
[[credentials.allow]]
queues = ["shop"]
rights = ["read", "write"]

[[credentials]]
name = "boss"
access_key = "AK2"
secret_key = "a long secret of the boss"
token = "token-of-the-boss"
"""
_READER = {"authorization": "Bearer token-of-the-reader"}
_BOSS = {"authorization": "Bearer token-of-the-boss"}


def _ids(http: httpx.Client, queue: str, *bodies: str, **fields: Any) -> list[str]:
    answer = done(http.post(f"/v1/queues/{queue}/messages", json=[{"body": body, **fields} for body in bodies]), 201)
    return [message["id"] for message in answer["messages"]]


def _bodies(http: httpx.Client, queue: str) -> list[str]:
    return [message["body"] for message in receive(http, queue, max=100)]


def _life(http: httpx.Client, queue: str, message: str | int) -> Any:
    return done(http.get(f"/v1/queues/{queue}/messages/{message}"))


def test_a_message_tells_its_whole_life(http: httpx.Client, name: str) -> None:
    (first,) = _ids(http, name, "hello", attributes={"kind": "greeting"})
    session = done(http.post("/v1/sessions", json={"name": "worker-7"}), 201)["session"]
    (got,) = receive(http, name, session=session)
    done(http.post(f"/v1/queues/{name}/release", json={"receipt": got["receipt"], "error": "it broke"}))
    receive(http, name, session=session)
    life = _life(http, name, first)
    assert (life["id"], life["queue"], life["body"], life["attributes"]) == (first, name, "hello", {"kind": "greeting"})
    (main,) = life["channels"]
    assert (main["state"], main["attempts"], main["holder"]["name"]) == ("leased", 2, "worker-7")
    assert main["lease_ends_at"] > main["received_at"] >= main["first_received_at"] > 0
    assert [failure["error"] for failure in main["failures"]] == ["it broke"]
    happened = [event["what"] for event in life["events"]]
    assert happened == ["sent", "received", "failed", "received", "lease ends"]
    assert done(http.get(f"/v1/messages/{first}")) == life == _life(http, name, life["sequence"])


def test_a_dead_letter_is_found_by_the_id_that_it_had(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name, "settings": {"max_receives": 1}}), 201)
    (first,) = _ids(http, name, "x")
    (got,) = receive(http, name)
    done(http.post(f"/v1/queues/{name}/release", json={"receipt": got["receipt"], "error": "no such order"}))
    life = done(http.get(f"/v1/messages/{first}"))
    assert (life["id"], life["queue"], life["origin"]["queue"]) == (first, f"{name}.dead", name)
    assert [event["what"] for event in life["events"]] == ["sent", "received", "failed", "dead"]
    assert done(http.post(f"/v1/queues/{name}.dead/messages/delete", json={"ids": [first]}))["changed"] == 1
    refused(http.get(f"/v1/messages/{first}"), 404, "message_not_found")


def test_what_is_not_there_is_said(http: httpx.Client, name: str) -> None:
    (first,) = _ids(http, name, "x")
    done(http.delete(f"/v1/queues/{name}/messages/{first}"))
    refused(http.delete(f"/v1/queues/{name}/messages/{first}"), 404, "message_not_found")
    refused(http.get(f"/v1/queues/{name}/messages/{first}"), 404, "message_not_found")
    refused(http.get(f"/v1/messages/{first}"), 404, "message_not_found")
    refused(http.get("/v1/messages/nonsense"), 400, "invalid_request")
    refused(http.get("/v1/messages/00000000-0000-0000-0000-000000000000"), 404, "message_not_found")


def test_a_selection_is_deleted_and_the_rest_is_delivered(http: httpx.Client, name: str) -> None:
    ids = _ids(http, name, "a", "b", "c", "d")
    unknown = "00000000-0000-0000-0000-000000000000"
    answer = done(http.post(f"/v1/queues/{name}/messages/delete", json={"ids": [ids[1], ids[3], unknown]}))
    assert answer == {"changed": 2, "missing": [unknown]}
    assert _bodies(http, name) == ["a", "c"]
    refused(http.post(f"/v1/queues/{name}/messages/delete", json={}), 400, "invalid_request")


def test_a_lease_is_released_and_a_delay_is_over(http: httpx.Client, name: str) -> None:
    (held,) = _ids(http, name, "held")
    receive(http, name)
    (late,) = _ids(http, name, "late", delay=3_600)
    assert _bodies(http, name) == []
    assert done(http.post(f"/v1/queues/{name}/messages/release", json={"ids": [held, late]}))["changed"] == 2
    assert sorted(_bodies(http, name)) == ["held", "late"]
    assert "released by" in _life(http, name, held)["channels"][0]["failures"][0]["error"]


def test_a_life_says_who_holds_the_message(http: httpx.Client, name: str) -> None:
    """Also where nobody can be named: over SQS, or by a session that has no name."""
    nameless = done(http.post("/v1/sessions", json={}), 201)["session"]
    named = done(http.post("/v1/sessions", json={"name": "worker-7"}), 201)["session"]
    for session in (None, nameless, named):
        (held,) = _ids(http, name, "x")
        receive(http, name, session=session)
        life = _life(http, name, held)
        holder = life["channels"][0]["holder"]
        (received,) = [event["text"] for event in life["events"] if event["what"] == "received"]
        if session is None:
            assert (holder["session"], received) == (0, "delivered to a client without a session")
        else:
            assert received == f"delivered to {holder['name'] or 'session ' + str(holder['session'])}"


def test_a_message_is_rescheduled(http: httpx.Client, name: str) -> None:
    (first, second) = _ids(http, name, "a", "b")
    due = time.time() + 7_200
    done(http.post(f"/v1/queues/{name}/messages/reschedule", json={"ids": [first], "due": due}))
    assert _life(http, name, first)["channels"][0]["due_at"] == pytest.approx(due, abs=0.01)
    assert _bodies(http, name) == ["b"]
    done(http.post(f"/v1/queues/{name}/messages/reschedule", json={"ids": [first], "delay": 0}))
    assert _bodies(http, name) == ["a"]
    refused(http.post(f"/v1/queues/{name}/messages/reschedule", json={"ids": [first]}), 400, "invalid_request")
    assert second


def test_who_may_only_read_looks_and_changes_nothing(serve: Callable[..., Server]) -> None:
    server = serve(_CREDENTIALS)
    with server.client(headers=_READER) as reader, server.client(headers=_BOSS) as boss:
        (first,) = _ids(reader, "shop", "x")
        assert _life(reader, "shop", first)["body"] == "x"
        for path in ("delete", "release"):
            refused(reader.post(f"/v1/queues/shop/messages/{path}", json={"ids": [first]}), 403, "access_denied")
        refused(reader.delete(f"/v1/queues/shop/messages/{first}"), 403, "access_denied")
        (secret,) = _ids(boss, "vault", "y")
        refused(reader.get(f"/v1/messages/{secret}"), 403, "access_denied")


# -- sessions --


def test_sessions_show_what_they_hold_and_one_is_ended(http: httpx.Client, name: str) -> None:
    send(http, name, "a", "b", "c")
    session = done(http.post("/v1/sessions", json={"name": f"worker of {name}"}), 201)["session"]
    receive(http, name, session=session, max=2)
    receive(http, name)
    listed = done(http.get(f"/v1/queues/{name}/sessions"))
    (row,) = listed["sessions"]
    assert (row["name"], row["held"]) == (f"worker of {name}", 2)
    assert [(lease["queue"], lease["channel"], lease["count"]) for lease in row["leases"]] == [(name, "main", 2)]
    assert row["leases"][0]["until"] > row["leases"][0]["since"] > time.time() - 60
    assert [lease["count"] for lease in listed["without_session"]] == [1]
    assert row["session"] in [each["session"] for each in done(http.get("/v1/sessions?limit=1000"))["sessions"]]
    assert done(http.delete(f"/v1/sessions/{row['session']}")) == {"released": 2}
    assert done(http.get(f"/v1/queues/{name}/sessions"))["sessions"] == []
    assert len(_bodies(http, name)) == 2
    refused(http.delete(f"/v1/sessions/{row['session']}"), 404, "session_not_found")


def test_another_ones_session_is_ended_by_who_may_administer_its_queues(serve: Callable[..., Server]) -> None:
    server = serve(_CREDENTIALS)
    with server.client(headers=_READER) as reader, server.client(headers=_BOSS) as boss:
        send(boss, "shop", "x")
        session = done(boss.post("/v1/sessions", json={"name": "boss"}), 201)["session"]
        receive(boss, "shop", session=session)
        (row,) = done(reader.get("/v1/queues/shop/sessions"))["sessions"]
        refused(reader.delete(f"/v1/sessions/{row['session']}"), 403, "access_denied")
        assert done(boss.delete(f"/v1/sessions/{row['session']}")) == {"released": 1}


# -- kinds of errors --


def _fail(http: httpx.Client, name: str, *errors: str) -> None:
    done(http.post("/v1/queues", json={"name": name, "settings": {"max_receives": 1}}), 201)
    send(http, name, *map(str, range(len(errors))))
    for message, error in zip(receive(http, name, max=len(errors)), errors, strict=True):
        done(http.post(f"/v1/queues/{name}/release", json={"receipt": message["receipt"], "error": error}))


def _ended(http: httpx.Client, task: Any) -> Any:
    for _ in range(100):
        found = done(http.get(f"/v1/redrives/{task['task']}"))
        if found["status"] != "running":
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def test_one_kind_of_error_is_counted_redriven_and_another_one_deleted(http: httpx.Client, name: str) -> None:
    _fail(http, name, "timeout after 3 s", "timeout after 5 s", "no such order 7", "timeout after 9 s")
    dead = f"{name}.dead"
    timeouts = {"queue": dead, "group": "timeout after # s"}
    counted = done(http.post("/v1/redrives", json={**timeouts, "dry_run": True}), 201)
    assert (counted["status"], counted["to_move"], counted["counted_all"]) == ("dry_run", 3, True)
    assert done(http.get("/v1/redrives", params={"queue": dead}))["redrives"] == [], "a dry run starts nothing"
    assert done(http.post("/v1/redrives", json={"queue": dead, "dry_run": True}), 201)["to_move"] == 4
    task = _ended(http, done(http.post("/v1/redrives", json={**timeouts, "rate": 1_000}), 201))
    assert (task["status"], task["moved"], task["group"], task["rate"]) == ("done", 3, "timeout after # s", 1_000)
    assert len(_bodies(http, name)) == 3
    rest = {"queue": dead, "group": "no such order #", "discard": True}
    task = _ended(http, done(http.post("/v1/redrives", json=rest), 201))
    assert (task["status"], task["moved"], task["discard"]) == ("done", 1, True)
    assert done(http.get(f"/v1/queues/{dead}"))["stats"]["messages"] == 0
    refused(http.post("/v1/redrives", json={**rest, "target": "elsewhere"}), 400, "invalid_request")


def test_a_redrive_moves_what_its_dry_run_has_counted_and_not_what_came_later(http: httpx.Client, name: str) -> None:
    _fail(http, name, "timeout after 3 s", "timeout after 5 s")
    timeouts = {"queue": f"{name}.dead", "group": "timeout after # s"}
    counted = done(http.post("/v1/redrives", json={**timeouts, "dry_run": True}), 201)
    time.sleep(0.01)
    _fail(http, name, "timeout after 7 s")
    task = _ended(http, done(http.post("/v1/redrives", json={**timeouts, "until": counted["started_at"]}), 201))
    assert (task["status"], task["moved"], counted["to_move"]) == ("done", 2, 2)
    assert len(_bodies(http, name)) == 2
    (letter,) = done(http.get(f"/v1/queues/{name}.dead/messages"))["messages"]
    one = {"queue": f"{name}.dead", "sequences": [letter["sequence"]]}
    task = _ended(http, done(http.post("/v1/redrives", json=one), 201))
    assert (task["moved"], task["selected"], counted["selected"]) == (1, 1, None)


def test_a_message_that_was_brought_back_is_deleted_under_a_key_as_well(http: httpx.Client, name: str) -> None:
    _fail(http, name, "no such order")
    (dead,) = done(http.get(f"/v1/queues/{name}.dead/messages"))["messages"]
    _wait_for_redrive(http, f"{name}.dead")
    answer = http.post(
        f"/v1/queues/{name}/messages/delete", json={"ids": [dead["id"]]}, headers={"idempotency-key": name}
    )
    assert done(answer) == {"changed": 1, "missing": []}
    assert _bodies(http, name) == []


def test_a_large_selection_is_changed_a_part_at_a_time(
    http: httpx.Client, name: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message that is deleted by itself takes 0.07 ms: all of them at once would keep others waiting."""
    send(http, name, *["x"] * 5_000)
    shard, sizes = server.node.services.shard, []
    call = type(shard).call

    async def counted(self: Any, command: Any) -> Any:
        sizes.append(len(getattr(command, "sequences", None) or ()))
        return await call(self, command)

    monkeypatch.setattr(type(shard), "call", counted)
    chosen = [*range(0, 5_000, 2), 7_777]
    for _ in range(2):
        answer = http.post(
            f"/v1/queues/{name}/messages/delete", json={"sequences": chosen}, headers={"idempotency-key": name}
        )
        assert done(answer) == {"changed": 2_500, "missing": [7_777]}
    assert max(sizes) <= 500
    assert done(http.get(f"/v1/queues/{name}"))["stats"]["channels"][0]["ready"] == 2_500


# -- how much is looked at --


def test_large_messages_are_looked_at_a_few_at_a_time(
    http: httpx.Client, name: str, breaking: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        send(http, name, *["x" * 200_000] * 10)
    sizes: list[int] = []
    browse = Queue.browse

    def counted(self: Queue, *arguments: Any) -> Any:
        seen = browse(self, *arguments)
        sizes.append(sum(len(one.chunk.body(one.index)) for one in seen))
        return seen

    breaking.setattr(Queue, "browse", counted)
    elsewhere = "f058b7b8-246f-4424-ac54-c584acaebd01"
    refused(http.get(f"/v1/queues/{name}/messages/{elsewhere}"), 404, "message_not_found")
    assert (sum(sizes), max(sizes) < 5 * 1024 * 1024) == (12_000_000, True)


def _found_by_id(http: httpx.Client, queue: str, message: str, **query: Any) -> list[Any]:
    found: list[Any] = done(http.get(f"/v1/queues/{queue}/search", params={"id": message, **query}))["messages"]
    return found


def _wait_for_redrive(http: httpx.Client, queue: str) -> None:
    task = done(http.post("/v1/redrives", json={"queue": queue}), 201)["task"]
    until = time.monotonic() + 20
    while (found := done(http.get(f"/v1/redrives/{task}")))["status"] == "running" and time.monotonic() < until:
        time.sleep(0.01)
    assert (found["status"], found["moved"]) == ("done", 1)


def test_an_id_finds_its_message_wherever_it_went_while_a_neighbour_is_unfinished(
    http: httpx.Client, name: str
) -> None:
    done(http.post("/v1/queues", json={"name": name, "settings": {"max_receives": 1}}), 201)
    first, second = _ids(http, name, "a", "b")
    (got,) = receive(http, name, max=1)
    done(http.post(f"/v1/queues/{name}/release", json={"receipt": got["receipt"], "error": "boom"}))
    life = done(http.get(f"/v1/messages/{first}"))
    assert (life["queue"], life["id"], life["channels"][0]["state"]) == (f"{name}.dead", first, "ready")
    (seen,) = _found_by_id(http, name, first, states=["done"])
    assert seen["state"] == "done" and "until" not in seen
    assert _found_by_id(http, name, first) == []
    assert _life(http, name, first)["channels"][0]["state"] == "done"
    refused(http.delete(f"/v1/queues/{name}/messages/{first}"), 404, "message_not_found")
    _wait_for_redrive(http, f"{name}.dead")
    (seen,) = _found_by_id(http, name, first)
    assert (seen["id"], seen["body"], seen["state"]) == (first, "a", "ready")
    by_number = _life(http, name, seen["sequence"])
    assert by_number == done(http.get(f"/v1/messages/{first}")) == _life(http, name, first)
    assert (by_number["queue"], by_number["channels"][0]["state"]) == (name, "ready")
    changed = done(http.post(f"/v1/queues/{name}/messages/reschedule", json={"ids": [first, second], "delay": 3600}))
    assert changed == {"changed": 2, "missing": []}
    assert done(http.delete(f"/v1/queues/{name}/messages/{first}"))["changed"] == 1
    refused(http.delete(f"/v1/queues/{name}/messages/{first}"), 404, "message_not_found")
    again = done(http.post(f"/v1/queues/{name}/messages/delete", json={"ids": [first, second]}))
    assert again["changed"] == 1 and len(again["missing"]) == 1
