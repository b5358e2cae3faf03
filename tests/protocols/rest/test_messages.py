"""Sending, receiving, settling and looking over REST."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from penstock.core.commands import CreateQueue, Send
from penstock.core.queues.attributes import TypedBytes, TypedText, encode_attributes
from penstock.core.queues.config import QueueConfig
from tests.protocols.rest.asking import bodies, done, receive, refused, send
from tests.protocols.rest.serving import Server


def ack(http: httpx.Client, queue: str, *receipts: str) -> Any:
    return done(http.post(f"/v1/queues/{queue}/ack", json={"receipts": list(receipts)}))


def test_one_message_goes_in_and_out(http: httpx.Client, name: str) -> None:
    sent = done(http.post(f"/v1/queues/{name}/messages", json={"body": "grüße"}), 201)["messages"]
    (message,) = receive(http, name)
    assert [message["id"], message["sequence"]] == [sent[0]["id"], sent[0]["sequence"]]
    assert (message["body"], message["attempt"], "encoding" in message) == ("grüße", 1, False)
    assert done(http.post(f"/v1/queues/{name}/ack", json={"receipt": message["receipt"]})) == {
        "settled": 1,
        "refused": [],
    }
    assert receive(http, name) == []


def test_bytes_travel_as_base64_and_text_as_text(server: Server, http: httpx.Client, name: str) -> None:
    encoded = base64.b64encode(b"\xff\x00").decode()
    plain = base64.b64encode(b"text").decode()
    messages = [{"body": encoded, "encoding": "base64"}, {"body": plain, "encoding": "base64"}]
    done(http.post(f"/v1/queues/{name}/messages", json=messages), 201)
    first, second = receive(http, name)
    assert (first["body"], first["encoding"]) == (encoded, "base64")
    assert (second["body"], second.get("encoding", "text")) == ("text", "text")
    broken = http.post(f"/v1/queues/{name}/messages", json=[{"body": "a"}, {"body": "?", "encoding": "base64"}])
    assert refused(broken, 400, "invalid_request").startswith("messages[1].body is not base64")


def test_attributes_keep_their_types(server: Server, http: httpx.Client, name: str) -> None:
    attributes = {
        "text": "a",
        "number": 7,
        "float": 1.5,
        "bytes": {"value": "/w==", "encoding": "base64"},
        "typed": {"value": "12.50", "type": "Number.price"},
        "gif": {"value": "R0lG", "encoding": "base64", "type": "Binary.gif"},
        "infinite": {"value": "inf", "type": "float"},
    }
    done(http.post(f"/v1/queues/{name}/messages", json={"body": "x", "attributes": attributes}), 201)
    assert receive(http, name)[0]["attributes"] == attributes
    stored = {"typed": TypedText.of("1", "Number"), "gif": TypedBytes.of(b"\xff", "Binary"), "n": 2}
    server.call(Send(queue=name, bodies=[b"y"], attributes=[encode_attributes(stored)]))
    assert receive(http, name)[0]["attributes"] == {
        "typed": {"value": "1", "type": "Number"},
        "gif": {"value": "/w==", "encoding": "base64", "type": "Binary"},
        "n": 2,
    }
    wrong = http.post(f"/v1/queues/{name}/messages", json={"body": "x", "attributes": {"flag": True}})
    assert "attributes" in refused(wrong, 400, "invalid_request")


def test_priorities_and_delays_are_each_messages_own(server: Server, http: httpx.Client, name: str) -> None:
    messages = [{"body": "low"}, {"body": "high", "priority": 9}, {"body": "later", "delay": 60}, {"body": "low too"}]
    sent = done(http.post(f"/v1/queues/{name}/messages", json=messages), 201)["messages"]
    assert len({message["sequence"] for message in sent}) == 4
    got = receive(http, name, lease=600)
    assert bodies(got) == ["high", "low", "low too"]
    assert [message["sequence"] for message in got] == [sent[1]["sequence"], sent[0]["sequence"], sent[3]["sequence"]]
    server.advance(60)
    assert bodies(receive(http, name)) == ["later"]


def test_many_messages_are_sent_all_or_none(http: httpx.Client, name: str) -> None:
    messages = [{"body": "fine"}, {"body": "x" * 2_000_000, "priority": 1}]
    refused(http.post(f"/v1/queues/{name}/messages", json=messages), 413, "message_too_large")
    refused(http.get(f"/v1/queues/{name}"), 404, "queue_not_found")


def test_a_send_creates_the_queue_unless_told_otherwise(http: httpx.Client, name: str) -> None:
    refused(http.post(f"/v1/queues/{name}/messages?create=false", json={"body": "a"}), 404, "queue_not_found")
    done(http.post(f"/v1/queues/{name}/messages", json={"body": "a"}), 201)
    refused(http.post(f"/v1/queues/{name}/messages", json=[]), 400, "invalid_request")
    refused(http.post("/v1/queues/not%20a%20name/messages", json={"body": "a"}), 400, "invalid_name")


@pytest.mark.parametrize("due", [1.7e308, 1e13, -1])
def test_a_due_time_that_is_none_is_refused(http: httpx.Client, name: str, due: float) -> None:
    response = http.post(f"/v1/queues/{name}/messages", json={"body": "a", "due": due})
    assert refused(response, 400, "invalid_request").startswith("due: ")


def test_a_dedup_id_makes_the_second_a_duplicate(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": f"{name}.fifo"}), 201)
    first = send(http, f"{name}.fifo", "a", group="g", dedup_id="1")
    second = send(http, f"{name}.fifo", "b", group="g", dedup_id="1")
    assert second == [{**first[0], "duplicate": True}]
    (message,) = receive(http, f"{name}.fifo")
    assert (message["body"], message["group"]) == ("a", "g")


def test_each_receipt_has_its_own_result(http: httpx.Client, name: str) -> None:
    send(http, name, *"abcde")
    got = [message["receipt"] for message in receive(http, name)]
    assert ack(http, name, got[1], got[3], got[1])["settled"] == 2
    result = ack(http, name, *got, "rubbish")
    assert result["settled"] == 3
    assert {each["receipt"]: each["code"] for each in result["refused"]} == {
        got[1]: "stale_receipt",
        got[3]: "stale_receipt",
        "rubbish": "forged_receipt",
    }


def test_two_receipts_of_one_message_are_judged_one_by_one(server: Server, http: httpx.Client, name: str) -> None:
    send(http, name, "a")
    (old,) = receive(http, name, lease=1)
    server.advance(2)
    (new,) = receive(http, name)
    assert new["attempt"] == 2
    result = ack(http, name, old["receipt"], new["receipt"])
    assert result["settled"] == 1
    assert [each["receipt"] for each in result["refused"]] == [old["receipt"]]


def test_a_single_receipt_fails_as_a_whole(http: httpx.Client, name: str) -> None:
    send(http, name, "a")
    (message,) = receive(http, name)
    at = f"/v1/queues/{name}/ack"
    done(http.post(at, json={"receipt": message["receipt"]}))
    refused(http.post(at, json={"receipt": message["receipt"]}), 409, "stale_receipt")
    refused(http.post(at, json={"receipt": "x"}), 400, "forged_receipt")
    refused(http.post(at, json={}), 400, "invalid_request")
    refused(http.post(at, json={"receipt": "x", "receipts": ["y"]}), 400, "invalid_request")
    refused(http.post(f"/v1/queues/{name}-other/ack", json={"receipt": "x"}), 404, "queue_not_found")


def test_a_release_keeps_its_error_and_its_delay(server: Server, http: httpx.Client, name: str) -> None:
    send(http, name, "a")
    (message,) = receive(http, name)
    at = f"/v1/queues/{name}/release"
    done(http.post(at, json={"receipt": message["receipt"], "error": "no luck", "delay": 30}))
    assert receive(http, name) == []
    server.advance(30)
    (again,) = receive(http, name)
    assert again["attempt"] == 2
    assert [(each["attempt"], each["error"]) for each in again["failures"]] == [(1, "no luck")]


def test_a_lease_is_extended_up_to_twelve_hours_from_the_receive(server: Server, http: httpx.Client, name: str) -> None:
    send(http, name, "a")
    (message,) = receive(http, name, lease=200)
    at, hours = f"/v1/queues/{name}/extend", 3_600
    server.advance(100)
    done(http.post(at, json={"receipt": message["receipt"], "lease": 6 * hours}))
    server.advance(6 * hours - 100)
    done(http.post(at, json={"receipt": message["receipt"], "lease": 5 * hours}))
    result = done(http.post(at, json={"receipts": [message["receipt"]], "lease": 7 * hours}))
    assert result["refused"][0]["code"] == "lease_too_long"
    refused(http.post(at, json={"receipt": message["receipt"], "lease": 13 * hours}), 400, "invalid_request")
    refused(http.post(at, json={"receipt": message["receipt"]}), 400, "invalid_request")
    assert receive(http, name) == []
    done(http.post(at, json={"receipt": message["receipt"], "lease": 0}))
    assert len(receive(http, name)) == 1


def test_a_fifo_attempt_id_gives_the_same_messages_again(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": f"{name}.fifo", "settings": {"content_dedup": True}}), 201)
    send(http, f"{name}.fifo", "a", "b", group="g")
    first = receive(http, f"{name}.fifo", 1, attempt_id="try")
    assert bodies(receive(http, f"{name}.fifo", 1, attempt_id="try")) == bodies(first) == ["a"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max": 0}, "max"),
        ({"max": 10_001}, "max is 10001: it must be from 1 to 10000"),
        ({"wait": -1}, "wait"),
        ({"wait": 301}, "wait is 301.0: it must be from 0 to 300 seconds"),
        ({"lease": 43_201}, "lease"),
        ({"channel": "a/b"}, "channel"),
        ({"attempt_id": "x"}, "standard queue"),
        ({"limit": 3}, "unknown field `limit`"),
    ],
)
def test_a_receive_that_cannot_be_is_refused(http: httpx.Client, name: str, fields: dict[str, Any], words: str) -> None:
    send(http, name, "a")
    assert words in refused(http.post(f"/v1/queues/{name}/receive", json=fields), 400, "invalid_request")
    assert len(receive(http, name)) == 1


def test_a_receive_without_a_body_takes_one(http: httpx.Client, name: str) -> None:
    send(http, name, "a", "b")
    assert len(done(http.post(f"/v1/queues/{name}/receive"))["messages"]) == 1


def test_looking_takes_nothing(server: Server, http: httpx.Client, name: str) -> None:
    send(http, name, *"abc")
    send(http, name, "later", delay=60)
    (leased,) = receive(http, name, 1, lease=5)
    seen = done(http.get(f"/v1/queues/{name}/messages"))
    assert [(each["body"], each["state"]) for each in seen["messages"]] == [
        ("a", "leased"),
        ("b", "ready"),
        ("c", "ready"),
        ("later", "delayed"),
    ]
    assert seen["next"] is None
    assert "until" in seen["messages"][0]
    assert "until" not in seen["messages"][1]
    assert seen["messages"][0]["attempts"] == leased["attempt"] == 1
    ready = done(http.get(f"/v1/queues/{name}/messages?states=ready&limit=1"))
    assert (bodies(ready["messages"]), ready["next"]) == (["b"], ready["messages"][0]["sequence"])
    both = done(http.get(f"/v1/queues/{name}/messages?states=leased&states=delayed"))
    assert bodies(both["messages"]) == ["a", "later"]
    assert bodies(done(http.get(f"/v1/queues/{name}/messages?contains=ate"))["messages"]) == ["later"]
    needle = {"contains": base64.b64encode(b"ate").decode(), "encoding": "base64"}
    assert bodies(done(http.get(f"/v1/queues/{name}/messages", params=needle))["messages"]) == ["later"]
    refused(http.get(f"/v1/queues/{name}/messages?states=asleep"), 400, "invalid_request")
    refused(http.get(f"/v1/queues/{name}/messages?channel=none"), 404, "channel_not_found")


def test_a_response_holds_so_many_bytes_and_the_rest_stays(serve: Any) -> None:
    server = serve("[rest]\nresponse_bytes_max = 10")
    with server.client() as http:
        send(http, "q", "1234", "5678", "x" * 50, "9")
        first = receive(http, "q")
        assert bodies(first) == ["1234", "5678"]
        assert [message["attempt"] for message in first] == [1, 1]
        (large,) = receive(http, "q")
        assert (large["body"], large["attempt"]) == ("x" * 50, 1)
        assert [(each["body"], each["attempt"]) for each in receive(http, "q")] == [("9", 1)]
        seen = done(http.get("/v1/queues/q/messages"))
        assert bodies(seen["messages"]) == ["1234", "5678"]
        assert bodies(done(http.get(f"/v1/queues/q/messages?after={seen['next']}"))["messages"]) == ["x" * 50]


def test_too_many_in_flight_are_told_to_wait(server: Server, http: httpx.Client, name: str) -> None:
    server.call(CreateQueue(name=name, config=QueueConfig(in_flight_max=1)))
    send(http, name, "a", "b")
    receive(http, name, 1)
    response = http.post(f"/v1/queues/{name}/receive")
    refused(response, 429, "over_limit")
    assert response.headers["retry-after"] == "1"


def test_a_message_sent_elsewhere_is_received_here_and_back(server: Server, http: httpx.Client, name: str) -> None:
    server.call(Send(queue=name, bodies=[b"from inside"]))
    assert bodies(receive(http, name)) == ["from inside"]


def test_a_message_that_always_fails_leaves_the_others_every_other_receive(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name, "settings": {"max_receives": 0}}), 201)
    send(http, name, "bad", "1", "2", "3")
    got = []
    for _ in range(7):
        (message,) = receive(http, name, max=1)
        got.append(message["body"])
        if message["body"] == "bad":
            done(http.post(f"/v1/queues/{name}/release", json={"receipt": message["receipt"], "delay": 0}))
        else:
            done(http.post(f"/v1/queues/{name}/ack", json={"receipt": message["receipt"]}))
    assert got == ["bad", "bad", "1", "bad", "2", "bad", "3"]


def test_by_default_what_failed_twice_waits_before_it_is_tried_again(
    server: Server, http: httpx.Client, name: str
) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    send(http, name, "1")
    for _ in range(2):
        (message,) = receive(http, name)
        done(http.post(f"/v1/queues/{name}/release", json={"receipt": message["receipt"], "error": "down"}))
    assert receive(http, name) == []
    server.advance(1)
    (message,) = receive(http, name)
    assert message["attempt"] == 3


def test_messages_that_are_given_back_have_not_failed(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    send(http, name, "1")
    for _ in range(25):
        (message,) = receive(http, name)
        assert (message["attempt"], message.get("failures", [])) == (1, [])
        done(http.post(f"/v1/queues/{name}/release", json={"receipt": message["receipt"], "failed": False}))
    (message,) = receive(http, name)
    both = {"receipt": message["receipt"], "failed": False, "error": "why"}
    refused(http.post(f"/v1/queues/{name}/release", json=both), 400, "invalid_request")
