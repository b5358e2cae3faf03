"""What people steer from the console: redrives within their rights, masks, counts, and steps that are short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

import penstock
from penstock.core.queues.queue import Queue
from tests.protocols.rest.asking import done, receive, refused, send
from tests.protocols.rest.serving import Server, eventually

_CREDENTIALS = """
[[credentials]]
name = "shop"
access_key = "AK1"
secret_key = "a long secret of the shop"
token = "token-of-the-shop"
[[credentials.allow]]
queues = ["shop*"]
rights = ["read", "write", "admin"]
[[credentials.allow]]
queues = ["other"]
rights = ["read"]

[[credentials]]
name = "boss"
access_key = "AK2"
secret_key = "a long secret of the boss"
token = "token-of-the-boss"
"""
_SHOP = {"authorization": "Bearer token-of-the-shop"}
_BOSS = {"authorization": "Bearer token-of-the-boss"}


def _bury(http: httpx.Client, queue: str, *errors: str, dead_letter: str | None = None, **headers: Any) -> None:
    """A dead letter for each error."""
    settings = {"max_receives": 1, **({} if dead_letter is None else {"dead_letter": dead_letter})}
    done(http.post("/v1/queues", json={"name": queue, "settings": settings}, **headers), 201)
    for error in errors:
        done(http.post(f"/v1/queues/{queue}/messages", json={"body": error}, **headers), 201)
        (message,) = done(http.post(f"/v1/queues/{queue}/receive", json={"max": 1}, **headers))["messages"]
        body = {"receipt": message["receipt"], "error": error}
        done(http.post(f"/v1/queues/{queue}/release", json=body, **headers))


def _redriven(http: httpx.Client, **body: Any) -> Any:
    task = done(http.post("/v1/redrives", json=body), 201)
    at = f"/v1/redrives/{task['task']}"
    eventually(lambda: done(http.get(at))["status"] != "running")
    return done(http.get(at))


def _ready(http: httpx.Client, queue: str) -> int:
    return int(done(http.get(f"/v1/queues/{queue}/channels/main"))["ready"])


# -- redrives ----------------------------------------------------------------------------------------------------------


def test_a_redrive_without_a_target_reaches_only_what_the_caller_may_administer(serve: Callable[..., Server]) -> None:
    server = serve(_CREDENTIALS)
    with server.client(headers=_BOSS) as boss, server.client(headers=_SHOP) as shop:
        done(boss.post("/v1/queues", json={"name": "shop.dead"}), 201)
        _bury(boss, "shop-orders", "a", "b", dead_letter="shop.dead")
        _bury(boss, "other", "c", dead_letter="shop.dead")
        counted = done(shop.post("/v1/redrives", json={"queue": "shop.dead", "dry_run": True}), 201)
        assert counted["to_move"] == 2
        found = _redriven(shop, queue="shop.dead")
        assert (found["moved"], found["skipped"]) == (2, 1)
        assert (_ready(boss, "shop-orders"), _ready(boss, "other"), _ready(boss, "shop.dead")) == (2, 0, 1)
        with penstock.connect(server.url, token="token-of-the-shop") as client:  # over a connection, too
            client.redrive("shop.dead")
            eventually(lambda: all(each["status"] == "done" for each in done(boss.get("/v1/redrives"))["redrives"]))
        assert (_ready(boss, "other"), _ready(boss, "shop.dead")) == (0, 1)
        assert _redriven(boss, queue="shop.dead")["moved"] == 1
        assert _ready(boss, "other") == 1


def test_a_redrive_creates_a_queue_only_if_it_is_asked_to(http: httpx.Client, name: str) -> None:
    send(http, name, "x")
    asked = {"queue": name, "target": f"{name}-misspelt"}
    for dry_run in (True, False):
        answer = http.post("/v1/redrives", json={**asked, "dry_run": dry_run})
        assert f"{name}-misspelt" in refused(answer, 404, "queue_not_found")
    refused(http.get(f"/v1/queues/{name}-misspelt"), 404, "queue_not_found")
    task = done(http.post("/v1/redrives", json={**asked, "create": True}), 201)
    assert task["target"] == f"{name}-misspelt"
    eventually(lambda: http.get(f"/v1/queues/{name}-misspelt").status_code == 200)


def test_a_dry_run_is_refused_for_what_the_redrive_is_refused_for(http: httpx.Client, name: str) -> None:
    send(http, name, "a")
    for dry_run in (True, False):
        refusal = http.post("/v1/redrives", json={"queue": name, "dry_run": dry_run})
        assert "is not a dead-letter queue" in refused(refusal, 400, "invalid_request")
    counted = done(http.post("/v1/redrives", json={"queue": name, "discard": True, "dry_run": True}), 201)
    assert (counted["task"], counted["status"], counted["to_move"]) == (0, "dry_run", 1)
    assert not [each for each in done(http.get("/v1/redrives"))["redrives"] if each["queue"] == name]


def test_what_is_looked_for_by_its_content_is_looked_for_in_steps(
    http: httpx.Client, name: str, server: Server, breaking: pytest.MonkeyPatch
) -> None:
    """No step of the shard reads more than some megabytes, however few messages fit."""
    done(http.post("/v1/queues", json={"name": name, "settings": {"max_receives": 1}}), 201)
    body = "x" * 500_000
    for _ in range(30):
        send(http, name, body)
    send(http, name, "needle")
    for message in receive(http, name, max=40):
        done(http.post(f"/v1/queues/{name}/release", json={"receipt": message["receipt"], "error": "no"}))
    sizes: list[int] = []
    one_by_one = Queue._load

    def load(self: Queue, key: Any) -> Any:
        sizes.append(key.size)
        return one_by_one(self, key)

    steps: list[int] = []

    def counted(call: Any) -> Any:
        def one_step(*arguments: Any) -> Any:
            sizes.clear()
            found = call(*arguments)
            steps.append(sum(sizes))
            return found

        return one_step

    breaking.setattr(Queue, "_load", load)
    breaking.setattr(Queue, "browse", counted(Queue.browse))
    asked: list[Callable[[], Any]] = [
        lambda: http.get(f"/v1/queues/{name}.dead/messages", params={"contains": "needle"}).json()["messages"],
        lambda: http.get(f"/v1/queues/{name}/dead-letters", params={"contains": "needle"}).json()["messages"],
        lambda: http.get(f"/v1/queues/{name}.dead/search", params={"text": "needle"}).json()["messages"],
    ]
    for ask in asked:
        steps.clear()
        assert [each["body"] for each in ask()] == ["needle"]
        assert len(steps) >= 3 and max(steps) <= 5 * 2**20, steps
    steps.clear()
    with penstock.connect(server.url) as client:
        assert [each.body for each in client.queue(f"{name}.dead").search(b"needle")] == [b"needle"]
    assert len(steps) >= 3 and max(steps) <= 5 * 2**20, steps
    steps.clear()
    assert _redriven(http, queue=f"{name}.dead", contains="needle")["moved"] == 1
    assert len(steps) >= 3 and max(steps) <= 5 * 2**20, steps
    assert _ready(http, name) == 1


# -- who may see, and end, sessions ------------------------------------------------------------------------------------


def test_an_idle_session_of_others_is_for_who_administers_everything(serve: Callable[..., Server]) -> None:
    server = serve(_CREDENTIALS)
    with server.client(headers=_BOSS) as boss, server.client(headers=_SHOP) as shop:
        done(boss.post("/v1/sessions", json={"name": "of-the-boss"}), 201)
        (row,) = done(boss.get("/v1/sessions"))["sessions"]
        assert row["name"] == "of-the-boss"
        assert done(shop.get("/v1/sessions"))["sessions"] == []
        refused(shop.delete(f"/v1/sessions/{row['session']}"), 403, "access_denied")
        assert done(boss.delete(f"/v1/sessions/{row['session']}")) == {"released": 0}


# -- masks -------------------------------------------------------------------------------------------------------------


def test_masks_hide_groups_errors_and_what_groups_of_errors_are_called(serve: Callable[..., Server]) -> None:
    with serve("[console]\nmask = ['token=\\S+', 'customer-\\d+']").client() as http:
        errors = ("refused: token=xyz", "refused: token=stu", "timeout of customer-17")
        _bury(http, "shop", *errors)
        send(http, "shop", "x", group="customer-18")
        seen = [
            http.get("/v1/queues/shop/messages"),
            http.get("/v1/queues/shop/dead-letters"),
            http.get("/v1/queues/shop/dead-letters/groups"),
            *(http.get(f"/v1/queues/shop.dead/messages/{number}") for number in range(3)),
        ]
        for answer in seen:
            done(answer)
            assert not any(each in answer.text for each in ("xyz", "stu", "customer-1")), answer.text
        groups = done(http.get("/v1/queues/shop/dead-letters/groups"))["groups"]
        assert [(each["group"], each["count"]) for each in groups] == [("refused: •••", 2), ("timeout of •••", 1)]
        for group, count in (("refused: •••", 2), ("timeout of •••", 1)):
            body = {"queue": "shop.dead", "group": group}
            assert done(http.post("/v1/redrives", json={**body, "dry_run": True}), 201)["to_move"] == count
            assert _redriven(http, **body)["moved"] == count
        assert "customer-1" not in http.get("/v1/redrives").text


# -- the overview ------------------------------------------------------------------------------------------------------


def test_dead_letters_that_are_there_now_are_counted_apart_from_all_that_ever_were(
    http: httpx.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.overview.LOOK_S", 0.01)
    _bury(http, name, "a", "b", "c")

    def counts() -> tuple[int, int]:
        rows = done(http.get("/v1/overview/queues", params={"prefix": name, "sort": "dead_letters"}))
        row = next(each for each in rows["queues"] if each["name"] == name)
        return row["dead"], row["dead_letters"]

    eventually(lambda: counts() == (3, 3))
    before = done(http.get("/v1/overview"))["totals"]["dead_letters"]
    assert _redriven(http, queue=f"{name}.dead")["moved"] == 3
    eventually(lambda: counts() == (3, 0))
    eventually(lambda: done(http.get("/v1/overview"))["totals"]["dead_letters"] == before - 3)


def test_a_search_over_a_connection_stops_at_its_limit(server: Server, http: httpx.Client, name: str) -> None:
    send(http, name, *(f"tea {number}" for number in range(50)))
    with penstock.connect(server.url) as client:
        queue = client.queue(name)
        assert len(queue.search(b"tea", limit=7)) == 7
        assert [each.body for each in queue.search(b"tea 4", after=46)] == [b"tea 47", b"tea 48", b"tea 49"]
        assert queue.search(b"coffee") == []
