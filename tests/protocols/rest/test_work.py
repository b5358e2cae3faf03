"""Units of work, sessions, dead letters and redrives over REST."""

from __future__ import annotations

import httpx
import pytest

from tests.protocols.rest.asking import bodies, done, receive, refused, send
from tests.protocols.rest.serving import Server, eventually
from tests.shards import one_shard_only

# -- units of work -----------------------------------------------------------------------------------------------------


@one_shard_only
def test_a_unit_of_work_takes_and_puts_in_one_step(http: httpx.Client, name: str) -> None:
    send(http, f"{name}-a", "1", "2")
    send(http, f"{name}-b", "3")
    taken = receive(http, f"{name}-a") + receive(http, f"{name}-b")
    sends = [
        {"queue": f"{name}-out", "body": "x", "attributes": {"n": 1}},
        {"queue": f"{name}-other", "body": "y"},
        {"queue": f"{name}-out", "body": "z"},
    ]
    body = {"receipts": [message["receipt"] for message in taken], "sends": sends}
    sent = done(http.post("/v1/work", json=body))["messages"]
    got = receive(http, f"{name}-out")
    assert bodies(got) == ["x", "z"]
    assert [message["id"] for message in got] == [sent[0]["id"], sent[2]["id"]]
    for queue, acked in ((f"{name}-a", 2), (f"{name}-b", 1)):
        assert done(http.get(f"/v1/queues/{queue}/channels/main"))["acked"] == acked


def test_a_unit_of_work_that_cannot_be_done_does_nothing(server: Server, http: httpx.Client, name: str) -> None:
    send(http, name, "1", "2")
    first, second = receive(http, name)
    done(http.post(f"/v1/queues/{name}/ack", json={"receipt": first["receipt"]}))
    body = {
        "receipts": [first["receipt"], second["receipt"]],
        "sends": [{"queue": f"{name}-out", "body": "x"}],
    }
    refused(http.post("/v1/work", json=body), 409, "work_refused")
    body["receipts"] = [second["receipt"], "rubbish"]
    refused(http.post("/v1/work", json=body), 400, "forged_receipt")
    refused(http.get(f"/v1/queues/{name}-out"), 404, "queue_not_found")
    assert done(http.get(f"/v1/queues/{name}/channels/main"))["leased"] == 1


def test_an_empty_unit_of_work_is_fine(http: httpx.Client) -> None:
    assert done(http.post("/v1/work", json={})) == {"messages": []}


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_that_ends_gives_everything_back_at_once(http: httpx.Client, name: str) -> None:
    send(http, name, "a", "b")
    session = done(http.post("/v1/sessions", json={"name": "worker-1", "ttl": 30}), 201)["session"]
    receive(http, name, session=session, lease=600)
    assert receive(http, name) == []
    assert done(http.delete(f"/v1/sessions/{session}")) == {"released": 2}
    again = receive(http, name)
    assert [message["attempt"] for message in again] == [2, 2]
    assert again[0]["failures"][0]["session"] == "worker-1"
    refused(http.delete(f"/v1/sessions/{session}"), 404, "session_not_found")
    refused(http.post(f"/v1/queues/{name}/receive", json={"session": session}), 404, "session_not_found")


def test_a_session_lives_as_long_as_its_heart_beats(server: Server, http: httpx.Client, name: str) -> None:
    send(http, name, "a")
    session = done(http.post("/v1/sessions", json={"ttl": 200}), 201)["session"]
    receive(http, name, session=session, lease=6_000)
    for _ in range(3):
        server.advance(140)
        assert http.post(f"/v1/sessions/{session}/heartbeat").status_code == 204
    assert receive(http, name) == []
    server.advance(201)
    assert len(receive(http, name)) == 1
    refused(http.post(f"/v1/sessions/{session}/heartbeat"), 404, "session_not_found")


@pytest.mark.parametrize("session", ["1", "2", "0", "-1", "x", "9" * 19, "9" * 40, "%C2%B2"])
def test_a_session_cannot_be_guessed(http: httpx.Client, session: str) -> None:
    done(http.post("/v1/sessions", json={}), 201)
    refused(http.delete(f"/v1/sessions/{session}"), 404, "session_not_found")


def test_a_session_needs_a_time_to_live(http: httpx.Client) -> None:
    for ttl in (0, -1, 100_000, None):
        refused(http.post("/v1/sessions", json={"ttl": ttl}), 400, "invalid_request")


# -- dead letters ------------------------------------------------------------------------------------------------------


def kill(http: httpx.Client, queue: str, *errors: str) -> None:
    """Make one message fail for each error."""
    for error in errors:
        (message,) = receive(http, queue, 1)
        at = f"/v1/queues/{queue}/release"
        done(http.post(at, json={"receipt": message["receipt"], "error": error, "delay": 0}))


def wait_for_dead_letters(http: httpx.Client, queue: str, count: int) -> None:
    """In a cluster they come a moment after the messages have failed: their queue may be another shard's."""
    eventually(lambda: len(done(http.get(f"/v1/queues/{queue}/dead-letters"))["messages"]) == count)


def dead_letters_of(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name, "settings": {"max_receives": 1}}), 201)
    send(http, name, "one", "two", "three")
    kill(http, name, "disk full", "timeout", "disk gone")
    wait_for_dead_letters(http, name, 3)


def test_dead_letters_are_listed_with_their_reasons(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name, "settings": {"max_receives": 2}}), 201)
    assert done(http.get(f"/v1/queues/{name}/dead-letters")) == {"queue": f"{name}.dead", "messages": [], "next": None}
    (sent,) = send(http, name, "poison")
    kill(http, name, "first", "second")
    wait_for_dead_letters(http, name, 1)
    found = done(http.get(f"/v1/queues/{name}/dead-letters"))
    (letter,) = found["messages"]
    assert found["queue"] == f"{name}.dead"
    assert letter["id"] == sent["id"]
    assert letter["origin"] == {"queue": name, "channel": "main", "sequence": 0, "attempts": 2}
    assert [(each["attempt"], each["error"]) for each in letter["failures"]] == [(1, "first"), (2, "second")]


def test_dead_letters_are_found_by_error_and_by_body(http: httpx.Client, name: str) -> None:
    dead_letters_of(http, name)
    at = f"/v1/queues/{name}/dead-letters"
    assert bodies(done(http.get(at, params={"error": "disk"}))["messages"]) == ["one", "three"]
    assert bodies(done(http.get(at, params={"contains": "tw"}))["messages"]) == ["two"]
    page = done(http.get(at, params={"limit": 2}))
    assert bodies(page["messages"]) == ["one", "two"]
    assert bodies(done(http.get(at, params={"after": page["next"]}))["messages"]) == ["three"]


def test_a_shared_dead_letter_queue_shows_each_queue_its_own(http: httpx.Client, name: str) -> None:
    for each in ("a", "b"):
        settings = {"max_receives": 1, "dead_letter": f"{name}-dead"}
        done(http.post("/v1/queues", json={"name": f"{name}-{each}", "settings": settings}), 201)
        send(http, f"{name}-{each}", each)
        kill(http, f"{name}-{each}", "no")
        wait_for_dead_letters(http, f"{name}-{each}", 1)
    assert bodies(done(http.get(f"/v1/queues/{name}-b/dead-letters"))["messages"]) == ["b"]


@pytest.mark.parametrize(
    ("choice", "moved"),
    [
        ({}, ["one", "two", "three"]),
        ({"error": "disk"}, ["one", "three"]),
        ({"contains": "t"}, ["two", "three"]),
        ({"sequences": [1]}, ["two"]),
        ({"rate": 1_000}, ["one", "two", "three"]),
    ],
)
def test_a_redrive_sends_back_what_is_chosen(
    http: httpx.Client, name: str, choice: dict[str, object], moved: list[str]
) -> None:
    dead_letters_of(http, name)
    task = done(http.post("/v1/redrives", json={"queue": f"{name}.dead", **choice}), 201)
    eventually(lambda: done(http.get(f"/v1/redrives/{task['task']}"))["status"] == "done")
    assert sorted(bodies(receive(http, name))) == sorted(moved)
    listed = done(http.get("/v1/redrives", params={"queue": f"{name}.dead"}))["redrives"]
    assert [(each["task"], each["moved"]) for each in listed] == [(task["task"], len(moved))]


@one_shard_only
def test_a_redrive_of_a_queue_without_dead_letters_is_refused(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    refused = http.post("/v1/redrives", json={"queue": name})
    assert (refused.status_code, "not a dead-letter queue" in refused.json()["detail"]) == (400, True)


def test_a_redrive_takes_messages_by_their_ids(http: httpx.Client, name: str) -> None:
    dead_letters_of(http, name)
    letters = done(http.get(f"/v1/queues/{name}/dead-letters"))["messages"]
    body = {
        "queue": f"{name}.dead",
        "ids": [letters[2]["id"], letters[0]["id"]],
        "target": f"{name}-elsewhere",
        "create": True,
    }
    task = done(http.post("/v1/redrives", json=body), 201)
    eventually(lambda: done(http.get(f"/v1/redrives/{task['task']}"))["status"] == "done")
    assert bodies(receive(http, f"{name}-elsewhere")) == ["one", "three"]
    refused(http.post("/v1/redrives", json={"queue": f"{name}.dead", "ids": ["nobody"]}), 404, "message_not_found")


def test_a_redrive_can_be_cancelled(server: Server, http: httpx.Client, name: str) -> None:
    dead_letters_of(http, name)
    task = done(http.post("/v1/redrives", json={"queue": f"{name}.dead", "rate": 1}), 201)["task"]
    busy = http.post("/v1/redrives", json={"queue": f"{name}.dead"})
    assert "is running" in refused(busy, 400, "invalid_request")
    assert done(http.post(f"/v1/redrives/{task}/cancel"))["status"] == "cancelled"
    for unknown in ("0", "999999", "x", "9" * 30):
        refused(http.get(f"/v1/redrives/{unknown}"), 404, "task_not_found")
        refused(http.post(f"/v1/redrives/{unknown}/cancel"), 404, "task_not_found")
    refused(http.post("/v1/redrives", json={"queue": f"{name}-none"}), 404, "queue_not_found")
