"""What the console needs of the server: logins, roles, read-only pages, masks, the audit log, search."""

from __future__ import annotations

import base64
import csv
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import penstock
from penstock.core.commands import EndSession
from penstock.protocols.rest import search
from penstock.protocols.rest.masks import masks_of
from penstock.server.audit import Audit
from penstock.server.settings import AuditSettings, InvalidSettings, parse
from tests.protocols.rest.asking import done, receive, refused, send
from tests.protocols.rest.serving import Server

_CREDENTIALS = """
[[credentials]]
name = "Ann"
access_key = "AK1"
user = "ann"
password = "a long password of ann"
[[credentials.allow]]
queues = ["shop-*"]
rights = ["read"]
[[credentials.allow]]
queues = ["test-*"]
rights = ["read", "write", "admin"]

[[credentials]]
name = "boss"
access_key = "AK2"
secret_key = "a long secret of the boss"
token = "token-of-the-boss"
"""
_ANN = {"authorization": "Bearer ann:a long password of ann"}
_BOSS = {"authorization": "Bearer token-of-the-boss"}
_PAGE = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}


# -- logins and roles --


def test_a_user_logs_in_with_a_password_and_is_told_its_roles(serve: Callable[..., Server]) -> None:
    server = serve(_CREDENTIALS)
    with server.client(headers=_ANN) as ann:
        me = done(ann.get("/v1/me"))
        assert (me["name"], me["needs_credentials"], me["read_only"]) == ("Ann", True, False)
        assert me["roles"] == [{"role": "reader", "queues": ["shop-*"]}, {"role": "admin", "queues": ["test-*"]}]
        assert me["audit"] is True, "of her own queues"
        refused(ann.get("/v1/audit"), 403, "access_denied")
        done(ann.get("/v1/audit?queue=test-a"))
    with server.client(headers=_BOSS) as boss:
        assert done(boss.get("/v1/me"))["audit"] is True
        done(boss.get("/v1/audit"))
    for wrong in ("ann:guess", "bob:a long password of ann", "ann:", "AK1:a long password of ann"):
        with server.client(headers={"authorization": f"Bearer {wrong}"}) as nobody:
            refused(nobody.get("/v1/me"), 401, "unauthorized")
    with server.client(auth=("ann", "a long password of ann")) as basic:
        assert done(basic.get("/v1/me"))["name"] == "Ann"


@pytest.mark.parametrize(
    "text",
    [
        "[[credentials]]\naccess_key = 'A'\nuser = 'ann'",
        "[[credentials]]\naccess_key = 'A'\npassword = 'x'",
        "[[credentials]]\naccess_key = 'A'\nuser = 'a'\npassword = 'x'\n"
        "[[credentials]]\naccess_key = 'B'\nuser = 'a'\npassword = 'y'",
        "[console]\nmask = ['(']",
    ],
)
def test_a_user_without_a_password_and_a_bad_mask_are_refused(text: str) -> None:
    with pytest.raises(InvalidSettings):
        settings = parse(text)
        settings.check()
        settings.open_credentials()


# -- read-only pages --


def test_a_read_only_console_changes_nothing_and_programs_do(serve: Callable[..., Server]) -> None:
    with serve("[console]\nread_only = true").client() as http:
        send(http, "orders", "x")
        assert done(http.get("/v1/me", headers=_PAGE))["read_only"] is True
        assert done(http.get("/v1/queues/orders/messages", headers=_PAGE))["messages"]
        for call in (
            http.post("/v1/queues/orders/purge", headers=_PAGE),
            http.delete("/v1/queues/orders", headers=_PAGE),
            http.post("/v1/queues/orders/messages", json={"body": "y"}, headers=_PAGE),
            http.post("/v1/queues/orders/receive", json={}, headers={"origin": str(http.base_url).rstrip("/")}),
        ):
            refused(call, 403, "read_only")
        assert done(http.post("/v1/queues/orders/purge"))["purged"] == 1


@pytest.mark.parametrize("setting", ["read_only = true", "mask = ['[0-9]{16}']"])
@pytest.mark.parametrize("own", [{"sec-fetch-site": "same-origin"}, {"origin": "OWN"}])
def test_a_page_of_a_restricted_console_has_no_connection_around_it(
    serve: Callable[..., Server], setting: str, own: dict[str, str]
) -> None:
    """A page of the server's own could purge, and read what is masked, over a websocket or by commands."""
    server = serve(f"{_CREDENTIALS}\n[console]\n{setting}")
    headers = {name: server.url if value == "OWN" else value for name, value in own.items()}
    with pytest.raises(InvalidStatus) as refusal:
        connect(f"{server.url.replace('http', 'ws')}/v1/ws", additional_headers={**headers, **_BOSS}).__enter__()
    assert refusal.value.response.status_code == 403
    with server.client(headers={**headers, **_BOSS}) as page:
        assert b"[console]" in page.post("/v1/commands", content=b"").content
    with penstock.connect(server.url, token="token-of-the-boss") as ps:
        ps.queue("orders").send("x")  # programs are not affected


# -- masks --


def test_what_a_mask_matches_is_hidden_from_who_looks_and_not_from_who_receives(serve: Callable[..., Server]) -> None:
    with serve("[console]\nmask = ['[0-9]{16}', '(?i)password=\\S+']").client() as http:
        done(http.post("/v1/queues", json={"name": "pay", "settings": {"max_receives": 1}}), 201)
        body = "card 4111111111111111 password=hunter2 for 2"
        (sent,) = send(http, "pay", body, attributes={"card": "4111111111111111"})
        (seen,) = done(http.get("/v1/queues/pay/messages"))["messages"]
        assert (seen["body"], seen["attributes"], seen["masked"]) == ("card ••• ••• for 2", {"card": "•••"}, True)
        assert done(http.get(f"/v1/messages/{sent['id']}"))["body"] == "card ••• ••• for 2"
        refused(http.post("/v1/queues/pay/receive", json={}, headers=_PAGE), 403, "masked")
        refused(http.get("/v1/queues/pay/records", headers=_PAGE), 403, "masked")
        (got,) = receive(http, "pay")
        assert got["body"] == body
        done(http.post("/v1/queues/pay/release", json={"receipt": got["receipt"], "error": "declined"}))
        assert done(http.get("/v1/queues/pay/dead-letters"))["messages"][0]["body"] == "card ••• ••• for 2"
        (group,) = done(http.get("/v1/queues/pay/dead-letters/groups"))["groups"]
        assert group["sample"]["body"] == "card ••• ••• for 2"
        assert done(http.get("/v1/me"))["masked"] is True


def test_a_mask_matches_what_is_written_as_escapes_of_json(serve: Callable[..., Server]) -> None:
    with serve("[console]\nmask = ['secret/[0-9]+']").client() as http:
        send(http, "pay", r'{"k": "s\u0065cret\/17", "x": "a\nb"}', r'{"k": "\u00e9 \ud83d\ude00"}')
        first, second = done(http.get("/v1/queues/pay/messages"))["messages"]
        assert (first["body"], first["masked"]) == (r'{"k": "•••", "x": "a\nb"}', True)
        assert (second["body"], "masked" in second) == (r'{"k": "\u00e9 \ud83d\ude00"}', False)


@pytest.mark.parametrize("operation", ["read", "take"])
def test_a_page_gets_nothing_in_bulk_that_is_masked(serve: Callable[..., Server], operation: str) -> None:
    asked = {"queue": "pay", "offset": 0, "end": 1} if operation == "read" else {"queue": "pay", "channel": "main"}
    with serve("[console]\nmask = ['[0-9]{16}']").client() as http:
        send(http, "pay", "card 4111111111111111")
        refused(http.post(f"/v1/bulk/{operation}", json=asked, headers=_PAGE), 403, "masked")
        assert b"4111111111111111" in http.post(f"/v1/bulk/{operation}", json=asked).content


def test_a_page_over_plain_http_is_known_by_where_it_comes_from(serve: Callable[..., Server]) -> None:
    """Browsers send neither `Sec-Fetch-Site` nor, with a GET, `Origin` to another machine without TLS."""
    server = serve("[console]\nmask = ['[0-9]{16}']")
    with server.client() as http:
        send(http, "pay", "card 4111111111111111")
        assert http.get("/").headers["referrer-policy"] == "same-origin"
        for path in ("/", "/v1/docs"):
            page = {"referer": f"{server.url}{path}"}
            refused(http.get("/v1/queues/pay/records", headers=page), 403, "masked")
        other = {"referer": "http://elsewhere.example/"}
        assert done(http.get("/v1/queues/pay/records", headers=other))["records"][0]["body"] == "card 4111111111111111"


_ADDRESSES = "[console]\nmask = ['[a-z.]+@[a-z.]+[.][a-z]+', '(a+)+b']"


def test_a_text_made_to_keep_a_mask_busy_is_hidden_and_keeps_nobody_waiting(serve: Callable[..., Server]) -> None:
    with serve(_ADDRESSES).client() as http, ThreadPoolExecutor() as pool:
        send(http, "pay", "from ann@x.org", "c" * 300_000, "a" * 40, "to ben@x.org", attributes={"of": "eve@x.org"})
        looking = pool.submit(http.get, "/v1/queues/pay/messages")
        waits_s = []
        while not looking.done():
            began_s = time.perf_counter()
            assert http.get("/healthz").status_code == 200
            waits_s.append(time.perf_counter() - began_s)
        found = done(looking.result())["messages"]
        assert [each["body"] for each in found] == ["from •••", "•••", "•••", "to •••"]
        assert all(each["masked"] and each["attributes"] == {"of": "•••"} for each in found)
        assert len(waits_s) > 10
        assert max(waits_s) < 2
        began_s = time.perf_counter()
        assert _texts(done(http.get("/v1/queues/pay/messages"))) == ["from •••", "•••", "•••", "to •••"]
        assert time.perf_counter() - began_s < 0.25, "what took too long is not tried again"


def test_errors_made_to_keep_a_mask_busy_are_grouped_as_well(serve: Callable[..., Server]) -> None:
    with serve(_ADDRESSES).client() as http:
        done(http.post("/v1/queues", json={"name": "pay", "settings": {"max_receives": 1}}), 201)
        send(http, "pay", *["x"] * 12)
        for number, message in enumerate(receive(http, "pay", max=12)):
            error = "a" * (40 + number) if number < 10 else "refused by ann@x.org"
            done(http.post("/v1/queues/pay/release", json={"receipt": message["receipt"], "error": error}))
        groups = {
            each["group"]: each["count"] for each in done(http.get("/v1/queues/pay/dead-letters/groups"))["groups"]
        }
        assert sum(groups.values()) == 12
        assert set(groups) == {"•••", "refused by •••"} or set(groups) == {"•••"}
        assert not any("aaaa" in group or "ann" in group for group in groups)


def test_masks_go_on_when_their_process_is_ended_by_somebody(serve: Callable[..., Server]) -> None:
    server = serve(_ADDRESSES)
    with server.client() as http:
        for number in range(3):
            send(http, "pay", f"from ann@x.org {number}")
            assert _texts(done(http.get("/v1/queues/pay/messages"))) == [
                f"from ••• {each}" for each in range(number + 1)
            ]
            process = masks_of(server.node.services)._process
            assert process is not None
            process.kill()
            process.wait()
    server.stop()
    assert masks_of(server.node.services)._process is None


# -- the audit log --


def test_every_change_is_written_down_with_who_what_and_how_much(serve: Callable[..., Server]) -> None:
    server = serve(_CREDENTIALS)
    with server.client(headers=_BOSS) as boss, server.client(headers=_ANN) as ann:
        done(boss.post("/v1/queues", json={"name": "test-a", "settings": {"lease": 60}}), 201)
        send(boss, "test-a", "secret body", "y")
        refused(ann.post("/v1/queues/shop-b/purge"), 403, "access_denied")
        done(ann.post("/v1/queues/test-a/purge"))
        done(boss.post("/v1/queues/test-a/messages", json={"body": "from a page"}, headers=_PAGE), 201)
        log = done(boss.get("/v1/audit"))
        lines = [(each["who"], each["what"], each["queue"], each["outcome"]) for each in log["entries"]]
        assert lines == [
            ("boss", "send_messages", "test-a", "ok"),
            ("Ann", "purge_queue", "test-a", "ok"),
            ("Ann", "purge_queue", "shop-b", "access_denied"),
            ("boss", "create_queue", "test-a", "ok"),
        ]
        purged = log["entries"][1]
        assert purged["scope"] == {"purged": 2} and purged["peer"] and purged["at"] > 1e9
        assert log["entries"][3]["scope"] == {"name": "test-a", "settings": {"lease": 60}}
        assert "secret body" not in json.dumps(log) and "from a page" not in json.dumps(log)
        first = done(boss.get("/v1/audit", params={"limit": 1}))
        assert done(boss.get("/v1/audit", params={"before": first["next"]}))["entries"] == log["entries"][1:]
        refused(ann.get("/v1/audit"), 403, "access_denied")
        refused(ann.get("/v1/audit", params={"queue": "shop-b"}), 403, "access_denied")
        assert len(done(ann.get("/v1/audit", params={"queue": "test-a"}))["entries"]) == 3


def test_changes_over_a_connection_are_written_down_as_well(server: Server, http: httpx.Client, name: str) -> None:
    with penstock.connect(str(http.base_url)) as ps:
        ps.queue(name).send("x")
        ps.queue(name).purge()
    (line,) = done(http.get("/v1/audit", params={"queue": name}))["entries"]
    assert (line["what"], line["scope"], line["who"]) == ("PurgeQueue", {"count": 1}, "anybody")


def test_changes_that_are_refused_over_a_connection_are_written_down_too(serve: Callable[..., Server]) -> None:
    server = serve(_CREDENTIALS)
    with server.client(headers=_BOSS) as boss:
        done(boss.post("/v1/queues", json={"name": "shop-b"}), 201)
        with penstock.connect(server.url, token="ann:a long password of ann") as ann:
            with pytest.raises(penstock.AccessDenied):
                ann.queue("shop-b").purge()
            with pytest.raises(penstock.QueueNotFound):
                ann.queue("test-a").purge()
            with pytest.raises(penstock.SessionNotFound):
                ann.end_session("0-99")
            assert ann.queue("shop-b").stats().messages == 0, "a look is no change"
        found = done(boss.get("/v1/audit"))["entries"]
    lines = [(each["who"], each["what"], each["queue"], each["outcome"]) for each in found]
    assert lines[:-1] == [
        ("Ann", "EndSession", None, "session_not_found"),
        ("Ann", "PurgeQueue", "test-a", "queue_not_found"),
        ("Ann", "PurgeQueue", "shop-b", "access_denied"),
    ]


def test_a_change_is_written_down_although_its_caller_hangs_up(server: Server, http: httpx.Client, name: str) -> None:
    """Whoever wants no line in the log could close the connection before the answer comes."""
    with penstock.connect(str(http.base_url)) as ps:
        ps.queue(name).send("x")
        assert ps.queue(name).receive(1)
        (session,) = [each for each in ps.sessions(name) if each.held]
        with connect(f"{server.url.replace('http', 'ws')}/v1/ws", compression=None) as socket:
            socket.send(msgspec.msgpack.encode([[0, ["Hello", 1]]]))
            socket.recv()
            change = msgspec.msgpack.encode([[1, EndSession(session=session.session, shard=session.shard)]])
            goodbye = b"\x88\x80\0\0\0\0"
            socket.socket.sendall(b"\x82" + bytes([0x80 | len(change)]) + bytes(4) + change + goodbye)
        while any(each.held for each in ps.sessions(name)):
            time.sleep(0.01)
    found = done(http.get("/v1/audit"))["entries"]
    assert ("EndSession", session.session) in [(each["what"], each["scope"].get("session")) for each in found]


def test_a_deletion_of_dead_letters_is_told_from_a_redrive_and_new_channels_are_told(
    http: httpx.Client, name: str
) -> None:
    with penstock.connect(str(http.base_url)) as ps:
        ps.queue(name).send("x")
        ps.queue(name).reschedule_messages([0], delay=60)
        done(http.post("/v1/redrives", json={"queue": name, "discard": True, "dry_run": True}, headers=_PAGE), 201)
        ps.redrive(name, discard=True).cancel()
        ps.queue(name).channel("tap")
        consumer = ps.queue(name).consumer("reader")
        consumer.ack(0)
        consumer.delete()
    found = done(http.get("/v1/audit", params={"queue": name}))["entries"]
    by_kind = {each["what"]: each["scope"] for each in reversed(found)}
    redrives = [each["scope"] for each in found if each["what"] == "StartRedrive"]
    assert redrives == [{"discard": True}]
    assert by_kind["RescheduleMessages"]["delay_ms"] == 60_000 and "due_ms" not in by_kind["RescheduleMessages"]
    assert "start_redrive" not in by_kind, "a dry run changes nothing"
    assert by_kind["CreateChannel"] == {"channel": "tap"}
    assert by_kind["DeleteConsumer"] == {"consumer": "reader"}
    assert "AckConsumer" not in by_kind, "that is a consumer's daily work"


def test_who_is_refused_again_and_again_does_not_push_out_what_was_done(tmp_path: Path) -> None:
    """Whoever has no right to change anything could fill the log with refusals, until it has nothing else."""
    audit = Audit(AuditSettings(bytes_max=64 * 1024), str(tmp_path))
    audit.note("boss", "::1", "delete_queue", "orders")
    for number in range(5_000):
        audit.note("mallory", "::1", "purge_queue", f"q{number}", outcome="access_denied")
    audit.note("bob", "::1", "purge_queue", "orders", outcome="access_denied")
    found = audit.entries(limit=1_000)
    assert [each.queue for each in found if each.who == "boss"] == ["orders"]
    assert [each.queue for each in found if each.who == "bob"] == ["orders"]
    mine = [each for each in found if each.who == "mallory"]
    assert 10 <= len(mine) <= 200
    for _ in range(500):
        audit.note("stranger", "::1", "ConfirmSubscription", "sns.news")  # the same link, again and again
    assert 10 <= sum(each.who == "stranger" for each in audit.entries(limit=1_000)) <= 200
    audit.clock_s = lambda: time.time() + 3_601
    audit.note("mallory", "::1", "purge_queue", "last", outcome="access_denied")
    (last,) = audit.entries(limit=1)
    assert last.queue == "last" and last.scope["left_out"] == 5_000 - len(mine)


def test_all_who_are_refused_share_a_bound_and_what_is_left_out_is_not_forgotten(tmp_path: Path) -> None:
    audit = Audit(AuditSettings(), str(tmp_path))
    for _ in range(200):
        audit.note("mallory", "::1", "purge_queue", "q", outcome="access_denied")
    for number in range(3_000):
        audit.note(f"caller-{number}", "::1", "purge_queue", "q", outcome="access_denied")
    audit.note("boss", "::1", "delete_queue", "orders")
    found = audit.entries(limit=10_000)
    assert 100 <= len(found) <= 1_000 and found[0].who == "boss"
    audit.clock_s = lambda: time.time() + 3_601
    for who in ("mallory", "caller-700", "caller-2999"):
        audit.note(who, "::1", "purge_queue", "q", outcome="access_denied")
    last, other, mallory = audit.entries(limit=3)
    assert mallory.scope == {"left_out": 140 + 2_001}, "those after the thousandth caller are counted as one"
    assert (other.scope, last.scope) == ({"left_out": 1}, {})


@pytest.mark.parametrize("data", [":memory:", "directory"])
def test_a_line_of_the_audit_log_has_at_most_two_kibibytes(tmp_path: Path, data: str) -> None:
    audit = Audit(AuditSettings(), str(tmp_path) if data == "directory" else data)
    for long in ("\x01" * 4_000_000, "é" * 5_000, "😀" * 5_000, '"' * 5_000, "x" * 5_000):
        scope = {"text": long, "list": [long] * 20, "map": {long: {long: long}}, **dict.fromkeys("abcdefgh", long)}
        audit.note(long, long, long, long, {**scope, "purged": 7}, long)
        (entry,) = audit.entries(limit=1, queue=long)
        assert len(msgspec.json.encode(entry)) < 2_048
        assert entry.scope["purged"] == 7 and entry.scope["text"].endswith("…")


def test_a_change_that_fails_on_the_servers_side_is_written_down(
    http: httpx.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(**_: Any) -> None:
        raise RuntimeError("a defect of the server")

    monkeypatch.setattr("penstock.protocols.rest.queues.PurgeQueue", defect)
    assert http.post(f"/v1/queues/{name}/purge").status_code == 500
    (line,) = done(http.get("/v1/audit", params={"queue": name}))["entries"]
    assert (line["what"], line["outcome"]) == ("purge_queue", "internal_error")


def test_a_line_is_about_the_queue_that_is_changed_and_not_about_its_dead_letters(
    http: httpx.Client, name: str
) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    done(http.patch(f"/v1/queues/{name}", json={"dead_letter": f"{name}.mine"}))
    done(http.post("/v1/queues", json={"name": f"{name}.2", "settings": {"dead_letter": f"{name}.mine"}}), 201)
    found = done(http.get("/v1/audit"))["entries"][:2]
    assert [each["queue"] for each in found] == [f"{name}.2", name]


def test_the_audit_log_stays_within_its_bounds_and_survives_a_cut_line(tmp_path: Path) -> None:
    audit = Audit(AuditSettings(bytes_max=64 * 1024), str(tmp_path))
    for number in range(2_000):
        audit.note("ann", "::1", "purge_queue", f"q{number}", {"ids": list(range(100)), "text": "x" * 1_000})
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size <= 64 * 1024
    newest = audit.entries(limit=3)
    assert [entry.queue for entry in newest] == ["q1999", "q1998", "q1997"]
    assert newest[0].scope["ids"] == "100 of them"
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"v": 1, "at"')
    again = Audit(AuditSettings(), str(tmp_path))
    assert [entry.queue for entry in again.entries(limit=1)] == ["q1999"]
    again.note("ann", "::1", "purge_queue", "after the cut")
    assert [entry.queue for entry in again.entries(limit=2)] == ["after the cut", "q1999"]


def test_who_makes_many_changes_pushes_out_no_lines_of_others(tmp_path: Path) -> None:
    audit = Audit(AuditSettings(bytes_max=64 * 1024), str(tmp_path))
    for number in range(20):
        audit.note("ann", "::1", "delete_queue", f"a{number}")
    for number in range(3_000):
        audit.note("ben", "::1", "purge_queue", f"b{number}")
        if number % 100 == 0:
            audit.note("eve", "::1", "purge_queue", f"e{number}")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 64 * 1024
    found = audit.entries(limit=10_000)
    assert [entry.queue for entry in found if entry.who == "ann"] == [f"a{number}" for number in range(19, -1, -1)]
    assert [entry.queue for entry in found if entry.who == "eve"] == [f"e{number}" for number in range(2_900, -1, -100)]
    kept = [entry.queue for entry in found if entry.who == "ben"]
    assert kept == [f"b{number}" for number in range(2_999, 2_999 - len(kept), -1)]
    assert len(kept) > 200
    assert [entry.at for entry in found] == sorted((entry.at for entry in found), reverse=True)


def test_an_end_while_the_log_is_put_aside_leaves_no_line_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(path: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    audit = Audit(AuditSettings(bytes_max=64 * 1024), str(tmp_path))
    audit.note("ann", "::1", "delete_queue", "once")
    with monkeypatch.context() as ending, pytest.raises(KeyboardInterrupt):
        ending.setattr(Path, "unlink", end)
        for number in range(2_000):
            audit.note("ben", "::1", "purge_queue", f"q{number}")
    again = Audit(AuditSettings(bytes_max=64 * 1024), str(tmp_path))
    again.note("ann", "::1", "delete_queue", "afterwards")
    found = [entry.queue for entry in again.entries(limit=10_000)]
    assert found[0] == "afterwards"
    assert found.count("once") == 1
    assert len(found) == len(set(found)) > 100


def test_the_audit_log_goes_on_when_there_is_no_space_to_sort_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    audit = Audit(AuditSettings(bytes_max=64 * 1024), str(tmp_path))
    for number in range(2_000):
        audit.note("ann", "::1", "purge_queue", f"q{number}")
    assert [entry.queue for entry in audit.entries(limit=2)] == ["q1999", "q1998"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 64 * 1024


def test_a_log_that_cannot_be_read_ends_no_stream(serve: Callable[..., Server]) -> None:
    server = serve()
    (server.directory / "audit.jsonl").mkdir()
    with server.client() as http:
        assert "audit.jsonl" in refused(http.get("/v1/audit"), 503, "disk_failed")
        with http.stream("GET", "/v1/live", params={"watch": "/v1/audit"}) as stream:
            lines = [line for line, _ in zip(stream.iter_lines(), range(9), strict=False) if line]
        assert sum(line.startswith('data: {"version') for line in lines) >= 2
        assert any("disk_failed" in line for line in lines)


def _texts(found: Any) -> list[str]:
    return [message["body"] for message in found["messages"]]


# -- search --


def _search(http: httpx.Client, queue: str, **query: Any) -> list[str]:
    """Every body that is found, over all calls."""
    found: list[str] = []
    while True:
        answer = done(http.get(f"/v1/queues/{queue}/search", params=query))
        found += _texts(answer)
        if answer["next"] is None:
            return found
        query["after"] = answer["next"]


def test_messages_are_found_by_text_path_attribute_id_and_time(http: httpx.Client, name: str) -> None:
    orders = [json.dumps({"order": {"id": number, "tags": ["a", f"t{number}"]}}) for number in range(20)]
    sent = [send(http, name, body, attributes={"number": number % 4})[0] for number, body in enumerate(orders)]
    send(http, name, "no JSON at all")
    assert _search(http, name, text='"id": 7,') == [orders[7]]
    assert _search(http, name, path="$.order.id", value="7") == [orders[7]]
    assert _search(http, name, path="order.tags[*]", value="t3") == [orders[3]]
    assert _search(http, name, path="$.order.tags[1]", value="t3") == [orders[3]]
    assert len(_search(http, name, path="$.order")) == 20
    assert _search(http, name, attribute="number", attribute_value="2") == orders[2::4]
    assert _search(http, name, attribute="number", attribute_value="2", text='"id": 6,') == [orders[6]]
    assert _search(http, name, id=sent[5]["id"]) == [orders[5]]
    assert _search(http, name, id=sent[5]["id"], text="nothing") == []
    assert _search(http, name, limit=3) == [*orders, "no JSON at all"], "pages add up to the whole"
    middle = done(http.get(f"/v1/queues/{name}/messages/{sent[10]['id']}"))["sent_at"]
    assert set(orders[11:]) <= set(_search(http, name, since=middle)) <= {*orders, "no JSON at all"}
    assert orders[0] in _search(http, name, until=middle)
    assert _search(http, name, since=middle + 3_600) == []
    for wrong in ({"path": "$.a["}, {"value": "x"}, {"attribute_value": "x"}):
        refused(http.get(f"/v1/queues/{name}/search", params=wrong), 400, "invalid_request")


@pytest.mark.parametrize("text", ["李小龍", "Renée", "é", "🍰 cake", "a<b & c's"])
def test_a_text_is_found_as_it_is_and_as_json_escapes_it(http: httpx.Client, name: str, text: str) -> None:
    bodies = [json.dumps({"name": text}, ensure_ascii=False), json.dumps({"name": text}), f"{text}!"]
    bodies.append("".join(f"\\u{ord(each):04X}" if each in "<>&'é" else each for each in text))
    sent = [send(http, name, body)[0] for body in [*bodies, "Renee", "a b c"]]
    assert _search(http, name, text=text) == bodies
    assert _search(http, name, text=text, id=sent[1]["id"]) == [bodies[1]]
    assert _search(http, name, text=text, id=sent[-1]["id"]) == []


def test_a_search_does_so_much_work_and_says_where_to_go_on(http: httpx.Client, name: str) -> None:
    for _ in range(12):
        send(http, name, *["x" * 10] * 4_000)
    send(http, name, "needle")
    answer = done(http.get(f"/v1/queues/{name}/search", params={"path": "$.needle"}))
    assert answer["messages"] == [] and answer["next"] is not None
    assert answer["looked_at"] < 30_000
    assert _search(http, name, text="needle") == ["needle"]


def test_what_is_found_can_be_had_as_a_table(http: httpx.Client, name: str) -> None:
    send(http, name, "=1+1", 'with "quotes", and\na line')
    answer = http.get(f"/v1/queues/{name}/search", headers={"accept": "text/csv"}, params={"limit": 1})
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/csv; charset=utf-8"
    lines = answer.text.splitlines()
    assert lines[0].startswith("id,sequence,sent_at,state") and lines[1].endswith(",'=1+1"), "no formula"
    rest = {"limit": 10, "after": answer.headers["penstock-next"]}
    answer = http.get(f"/v1/queues/{name}/search", headers={"accept": "text/csv"}, params=rest)
    assert '"with ""quotes"", and\na line"' in answer.text and "penstock-next" not in answer.headers


# -- what a credential is not told --

_SOME = """
[[credentials]]
name = "boss"
access_key = "AK2"
secret_key = "a long secret of the boss"
token = "token-of-the-boss"

[[credentials]]
name = "some"
access_key = "AK3"
token = "token-of-some"
[[credentials.allow]]
queues = ["a-*", "?", "[!b]*"]
rights = ["read", "admin"]
"""


def test_who_has_no_right_on_a_queue_is_not_told_its_name(serve: Callable[..., Server]) -> None:
    server = serve(_SOME)
    some_headers = {"authorization": "Bearer token-of-some"}
    with server.client(headers=_BOSS) as boss, server.client(headers=some_headers) as some:
        (sent,) = send(boss, "b-hidden", "x")
        session = done(boss.post("/v1/sessions", json={"name": "boss"}), 201)["session"]
        receive(boss, "b-hidden", session=session)
        done(boss.post("/v1/redrives", json={"queue": "b-hidden", "target": "b-other", "create": True}), 201)
        (row,) = done(boss.get("/v1/queues/b-hidden/sessions"))["sessions"]
        task = done(boss.get("/v1/redrives"))["redrives"][0]["task"]
        answers = [
            some.get(f"/v1/messages/{sent['id']}"),
            some.get(f"/v1/redrives/{task}"),
            some.post(f"/v1/redrives/{task}/cancel"),
            some.delete(f"/v1/sessions/{row['session']}"),
            some.get("/v1/audit"),
            some.get("/v1/history?range=hour"),
            some.get("/v1/overview"),
            some.get("/v1/sessions"),
            some.get("/v1/redrives"),
            some.get("/v1/overview/queues"),
        ]
        told = [each.text for each in answers if "hidden" in each.text or "b-other" in each.text]
        assert told == []
        assert [each.status_code for each in answers[:6]] == [403, 404, 404, 403, 403, 403]


def test_who_only_sends_is_not_told_by_redrives_why_messages_failed(serve: Callable[..., Server]) -> None:
    sender = """
[[credentials]]
name = "sender"
access_key = "AK4"
token = "token-of-a-sender"
[[credentials.allow]]
queues = ["mail*"]
rights = ["write"]
"""
    server = serve(_CREDENTIALS + sender)
    sender_headers = {"authorization": "Bearer token-of-a-sender"}
    with server.client(headers=_BOSS) as boss, server.client(headers=sender_headers) as other:
        done(boss.post("/v1/queues", json={"name": "mail", "settings": {"max_receives": 1}}), 201)
        send(boss, "mail", "x")
        (got,) = receive(boss, "mail")
        done(boss.post("/v1/queues/mail/release", json={"receipt": got["receipt"], "error": "no such address: ann"}))
        done(boss.post("/v1/redrives", json={"queue": "mail.dead", "group": "no such address: ann"}), 201)
        (task,) = done(boss.get("/v1/redrives"))["redrives"]
        refused(other.get(f"/v1/redrives/{task['task']}"), 403, "access_denied")
        assert done(other.get("/v1/redrives"))["redrives"] == []


def test_a_mask_hides_attributes_of_bytes_as_well(serve: Callable[..., Server]) -> None:
    with serve("[console]\nmask = ['[0-9]{16}']").client() as http:
        card = {"value": base64.b64encode(b"4111111111111111").decode(), "encoding": "base64"}
        send(http, "pay", "x", attributes={"card": card})
        (seen,) = done(http.get("/v1/queues/pay/messages"))["messages"]
        assert (seen["attributes"], seen["masked"]) == ({"card": "•••"}, True)


def test_no_cell_of_a_table_is_a_formula(http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    send(http, name, "=1+1", group="=2+2")
    table = http.get(f"/v1/queues/{name}/search", headers={"accept": "text/csv"}).text
    (row,) = list(csv.reader(table.splitlines()))[1:]
    assert "'=1+1" in row
    assert "'=2+2" in row


@pytest.mark.parametrize("path", ["$" + "[*]" * 101, "$[" + "9" * 5_000 + "]"])
def test_a_path_that_is_too_long_is_refused(http: httpx.Client, name: str, path: str) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    refused(http.get(f"/v1/queues/{name}/search", params={"path": path}), 400, "invalid_request")


def test_a_search_through_large_bodies_stops_in_time(
    http: httpx.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_SEARCH_S", 0.05)
    body = json.dumps([1] * 100_000, separators=(",", ":"))
    for _ in range(16):
        send(http, name, *[body] * 5)
    found = done(http.get(f"/v1/queues/{name}/search", params={"path": "$[*]", "value": "2"}))
    assert found["looked_at"] < 80
    assert found["next"] is not None


def test_a_path_with_many_steps_costs_no_more_than_the_body_is_long(http: httpx.Client, name: str) -> None:
    body = "[" * 99 + ",".join(["0"] * 200_000) + "]" * 99
    send(http, name, body, json.dumps([0] * 200_000, separators=(",", ":")))

    def seconds(path: str, after: int) -> float:
        began_s = time.perf_counter()
        done(http.get(f"/v1/queues/{name}/search", params={"path": path, "value": "1", "after": after}))
        return time.perf_counter() - began_s

    deep, flat = (min(seconds(path, after) for _ in range(3)) for path, after in (("$" + "[*]" * 99, -1), ("$[*]", 0)))
    assert deep < 5 * flat, (deep, flat)


def test_leases_without_a_session_are_listed_of_all_queues_that_the_caller_may_read(
    serve: Callable[..., Server],
) -> None:
    server = serve(_SOME)
    with server.client(headers=_BOSS) as boss, server.client(headers={"authorization": "Bearer token-of-some"}) as some:
        for queue, count in (("a-one", 1), ("a-two", 2), ("b-hidden", 3)):
            send(boss, queue, *["x"] * 3)
            receive(boss, queue, count)
        send(boss, "a-named", "x")
        receive(boss, "a-named", session=done(boss.post("/v1/sessions", json={"name": "boss"}), 201)["session"])
        deadline = time.monotonic() + 10

        def listed(caller: httpx.Client) -> list[tuple[str, int]]:
            leases = done(caller.get("/v1/sessions"))["without_session"]
            assert all(each["until"] - each["since"] == 30 for each in leases)
            return [(each["queue"], each["count"]) for each in leases]

        while len(listed(boss)) < 3:  # it is as of a moment ago
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert listed(boss) == [("b-hidden", 3), ("a-two", 2), ("a-one", 1)]
        assert listed(some) == [("a-two", 2), ("a-one", 1)]
