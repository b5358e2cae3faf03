"""Queues, channels and the server's counts over REST."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

from penstock.core.commands import CreateQueue, DeleteQueue
from tests.protocols.rest.asking import bodies, done, receive, refused, send
from tests.protocols.rest.serving import Server


def test_a_queue_is_created_with_its_settings_and_described(http: httpx.Client, name: str) -> None:
    settings = {"lease": 5, "retention": None, "max_receives": 3, "backoff": {"shape": "linear", "base_ms": 50}}
    created = done(http.post("/v1/queues", json={"name": name, "settings": settings, "channels": ["a", "b"]}), 201)
    described = done(http.get(f"/v1/queues/{name}"))
    assert created == described
    assert described["name"] == name
    shown = described["settings"]
    assert (shown["lease"], shown["retention"], shown["max_receives"], shown["kind"]) == (5.0, None, 3, "standard")
    assert shown["backoff"] == {"shape": "linear", "base_ms": 50, "ceiling_ms": 3_600_000, "seed": 0}
    assert [channel["name"] for channel in described["stats"]["channels"]] == ["a", "b"]
    assert described["stats"]["messages"] == 0


def test_settings_that_are_shown_can_be_given_again(http: httpx.Client, name: str) -> None:
    settings = done(http.post("/v1/queues", json={"name": name, "settings": {"tags": {"team": "x"}}}), 201)["settings"]
    done(http.post("/v1/queues", json={"name": name, "settings": settings}), 201)
    assert done(http.patch(f"/v1/queues/{name}", json=settings))["settings"] == settings


def test_a_name_that_ends_with_fifo_makes_a_fifo_queue(http: httpx.Client, name: str) -> None:
    assert done(http.post("/v1/queues", json={"name": f"{name}.fifo"}), 201)["settings"]["kind"] == "fifo"


def test_creating_a_queue_again_with_other_settings_is_refused(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    done(http.post("/v1/queues", json={"name": name}), 201)
    response = http.post("/v1/queues", json={"name": name, "settings": {"lease": 1}})
    assert "different: lease." in refused(response, 409, "queue_exists")


def test_changes_leave_alone_what_they_do_not_name(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name, "settings": {"lease": 7, "delay": 1}}), 201)
    changed = done(http.patch(f"/v1/queues/{name}", json={"delay": 0, "dead_letter": "elsewhere"}))["settings"]
    assert (changed["lease"], changed["delay"], changed["dead_letter"]) == (7.0, 0.0, "elsewhere")
    cleared = done(http.patch(f"/v1/queues/{name}", json={"dead_letter": None}))["settings"]
    assert cleared["dead_letter"] is None
    refused(http.patch(f"/v1/queues/{name}", json={"kind": "fifo"}), 400, "invalid_config")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"name": "a b"}', "name: "),
        (b'{"name": 5}', "name: Expected `str`"),
        (b'{"name": "a b"}', "name: a name has 1 to 128 letters, digits, dots, dashes, underscores or #"),
        (b'{"nam": "a"}', "unknown field `nam`"),
        (b"{}", "missing required field `name`"),
        (b'{"name": "a", "settings": {"leese": 1}}', "settings: "),
        (b'{"name": "a", "channels": ["ok", "not ok"]}', "channels[1]: "),
        (b"[]", "Expected `object`"),
    ],
)
def test_a_field_that_is_wrong_is_named(http: httpx.Client, body: bytes, words: str) -> None:
    response = http.post("/v1/queues", content=body, headers={"content-type": "application/json"})
    assert words in refused(response, 400, "invalid_request")


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (
            "queues/{}/messages?states=ripe",
            None,
            "states[0]: Invalid enum value 'ripe': it must be ready, leased, delayed",
        ),
        (
            "queues/{}/messages",
            {"body": "a", "encoding": "hex"},
            "encoding: Invalid enum value 'hex': it must be text or base64",
        ),
        (
            "queues/{}/channels",
            {"name": "a", "start": "tial"},
            "start: Invalid enum value 'tial': it must be head, tail or",
        ),
        (
            "queues/{}/messages",
            {"body": "a", "attributes": {"a": "b", "c": None}},
            "attributes['c']: null, and it must be",
        ),
        ("work", {"sends": [{"queue": "q", "body": "a", "attributes": {"c": []}}]}, "sends[0].attributes['c']: "),
        ("overview/queues?sort=size", None, "sort: Invalid enum value 'size': it must be name, messages, bytes,"),
        ("history?range=year", None, "range: Invalid enum value 'year': it must be hour, day, week or fortnight"),
    ],
)
def test_what_a_field_may_be_is_listed(http: httpx.Client, path: str, body: Any, words: str) -> None:
    asked = f"/v1/{path.format('texts')}"
    response = http.get(asked) if body is None else http.post(asked, json=body)
    assert words in refused(response, 400, "invalid_request")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lease": "long"}, "settings.lease is 'long': it must be a number of seconds from 0 to 43200"),
        ({"lease": True}, "settings.lease is True: it must be a number of seconds from 0 to 43200"),
        ({"lease": -1e308}, "settings.lease is -1e+308: it must be a number of seconds from 0 to 43200"),
        ({"retention": 1e308}, "settings.retention is 1e+308: it must be a number of seconds from 60 to 1209600"),
        ({"lease": 43201}, "settings.lease is 43201 seconds: it must be from 0 to 43200 seconds"),
        ({"retention": 1}, "settings.retention is 1 seconds: it must be from 60 to 1209600 seconds"),
        ({"max_receives": 1.5}, "settings.max_receives is 1.5: it must be a whole number from 0 to 1000"),
        ({"max_receives": None}, "settings.max_receives is None: it must be a whole number from 0 to 1000"),
        ({"policy": "all"}, "settings.policy is 'all': it must be at_least_once, consume_times or consume_once"),
        ({"tags": {"a": 1}}, "settings.tags is {'a': 1}: it must be texts by name"),
        ({"backoff": {"seed": -1}}, "settings.backoff.seed is -1: it must be from 0 to"),
        ({"backoff": {"sede": 1}}, "settings.backoff has no part 'sede'; its parts are: shape, base_ms"),
        ({"backoff": 5}, "settings.backoff is 5: it must have some of the parts shape"),
    ],
)
def test_a_refused_setting_is_named_as_it_was_given_and_in_its_unit(
    http: httpx.Client, name: str, settings: dict[str, Any], words: str
) -> None:
    created = http.post("/v1/queues", json={"name": name, "settings": settings})
    assert words in refused(created, 400, "invalid_config")
    done(http.post("/v1/queues", json={"name": name}), 201)
    changed = http.patch(f"/v1/queues/{name}", json=settings)
    assert words.removeprefix("settings.") in refused(changed, 400, "invalid_config")


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"name": "\\ud800"}', b"[" * 100_000, b"nul"])
def test_a_body_that_is_no_json_is_refused(http: httpx.Client, body: bytes) -> None:
    response = http.post("/v1/queues", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert response.json()["code"] in ("malformed_body", "invalid_request")


def test_queues_are_listed_in_pages(http: httpx.Client, name: str) -> None:
    names = [f"{name}.{letter}" for letter in "abcde"]
    for each in names:
        done(http.post("/v1/queues", json={"name": each}), 201)
    found: list[str] = []
    after = ""
    for _ in range(3):
        page = done(http.get("/v1/queues", params={"prefix": f"{name}.", "after": after, "limit": 2}))
        found += page["queues"]
        after = page["next"]
    assert found == names
    assert after is None
    assert done(http.get("/v1/queues", params={"prefix": f"{name}.", "limit": 5}))["next"] is None


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=0", "limit: "),
        ("limit=1001", "limit: "),
        ("limit=many", "limit: Expected `int`"),
        ("limit=1&limit=2", "limit is given twice"),
        ("page=1", "there is no parameter 'page'; there are: prefix, after, limit"),
        ("&".join(f"x{number}=1" for number in range(200)), "cannot be read"),
    ],
)
def test_a_parameter_that_is_wrong_is_named(http: httpx.Client, query: str, words: str) -> None:
    assert words in refused(http.get(f"/v1/queues?{query}"), 400, "invalid_request")


def test_purging_and_deleting(http: httpx.Client, name: str) -> None:
    send(http, name, "a", "b", "c")
    receive(http, name, 1)
    assert done(http.post(f"/v1/queues/{name}/purge")) == {"purged": 3}
    assert http.delete(f"/v1/queues/{name}").status_code == 204
    for response in (http.get(f"/v1/queues/{name}"), http.delete(f"/v1/queues/{name}")):
        refused(response, 404, "queue_not_found")


def test_a_name_with_a_number_sign_works_when_it_is_escaped(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": f"{name}#1"}), 201)
    assert done(http.get(f"/v1/queues/{name}%231"))["name"] == f"{name}#1"


def test_every_channel_gets_every_message(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name, "channels": ["one"]}), 201)
    send(http, name, "before")
    created = done(http.post(f"/v1/queues/{name}/channels", json={"name": "two", "start": "tail"}), 201)
    assert (created["name"], created["ready"]) == ("two", 0)
    send(http, name, "after")
    through = {
        channel: done(http.post(f"/v1/queues/{name}/channels/{channel}/receive", json={"max": 5}))["messages"]
        for channel in ("one", "two")
    }
    assert bodies(through["one"]) == ["before", "after"]
    assert bodies(through["two"]) == ["after"]
    assert bodies(receive(http, name, channel="one")) == []
    done(http.post(f"/v1/queues/{name}/channels/two/ack", json={"receipt": through["two"][0]["receipt"]}))
    foreign = http.post(f"/v1/queues/{name}/channels/two/ack", json={"receipt": through["one"][0]["receipt"]})
    refused(foreign, 409, "foreign_receipt")
    listed = done(http.get(f"/v1/queues/{name}/channels"))["channels"]
    assert [(each["name"], each["leased"], each["acked"]) for each in listed] == [("one", 2, 0), ("two", 0, 1)]


def test_a_channel_is_paused_purged_and_deleted(http: httpx.Client, name: str) -> None:
    send(http, name, "a", "b")
    at = f"/v1/queues/{name}/channels/main"
    assert done(http.post(f"{at}/pause"))["paused"] is True
    assert receive(http, name) == []
    assert done(http.post(f"{at}/unpause"))["paused"] is False
    assert len(receive(http, name, 1)) == 1
    assert done(http.post(f"{at}/purge")) == {"purged": 2}
    assert http.delete(at).status_code == 204
    refused(http.get(at), 404, "channel_not_found")
    refused(http.post(f"/v1/queues/{name}/channels/none/pause"), 404, "channel_not_found")


@pytest.mark.parametrize("verb", ["ack", "release", "extend"])
def test_settling_through_a_channel_that_is_not_there_is_refused(http: httpx.Client, name: str, verb: str) -> None:
    send(http, name, "a")
    body = {"receipts": ["x"], **({"lease": 1} if verb == "extend" else {})}
    refused(http.post(f"/v1/queues/{name}/channels/none/{verb}", json=body), 404, "channel_not_found")


def test_the_server_adds_up_its_queues(server: Server, http: httpx.Client, name: str) -> None:
    before = done(http.get("/v1/stats"))
    send(http, name, "abc", "de")
    receive(http, name, 1)
    after = done(http.get("/v1/stats"))
    grown = {key: after[key] - before[key] for key in ("queues", "messages", "bytes", "ready", "leased", "sent")}
    assert grown == {"queues": 1, "messages": 2, "bytes": 5, "ready": 1, "leased": 1, "sent": 2}


@pytest.mark.parametrize("path", ["/v1/queues", "/v1/stats/queues"])
def test_a_queue_that_is_there_all_the_time_is_on_one_page_while_others_come_and_go(
    server: Server, http: httpx.Client, name: str, path: str
) -> None:
    dice = random.Random(name)
    kept = {f"{name}-{number:03d}" for number in range(0, 120, 2)}
    for each in kept:
        server.call(CreateQueue(name=each))
    others: set[str] = set()
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = done(http.get(path, params={"prefix": f"{name}-", "after": after, "limit": dice.randint(1, 9)}))
        found += [each if isinstance(each, str) else each["name"] for each in page["queues"]]
        after = page["next"]
        for _ in range(6):
            other = f"{name}-{dice.randrange(1, 120, 2):03d}"
            server.call((DeleteQueue if other in others else CreateQueue)(name=other))
            others ^= {other}
    assert found == sorted(set(found))
    assert kept <= set(found)


def test_what_is_not_there_is_a_problem_too(http: httpx.Client) -> None:
    refused(http.get("/v1/nowhere"), 404, "path_not_found")
    response = http.put("/v1/queues")
    assert refused(response, 405, "method_not_allowed") == "use GET, POST here"
    assert response.headers["allow"] == "GET, POST"


def test_only_json_is_taken_and_given(http: httpx.Client, name: str) -> None:
    response = http.post("/v1/queues", content=b"name=x", headers={"content-type": "application/x-www-form-urlencoded"})
    assert "--json" in refused(response, 415, "unsupported_media_type")
    refused(http.get("/v1/queues", headers={"accept": "text/html"}), 406, "not_acceptable")
    assert http.get("/v1/queues", headers={"accept": "text/html, */*;q=0.1"}).status_code == 200
    refused(http.get("/v1/queues", headers={"accept": "*/*;q=0"}), 406, "not_acceptable")
