"""The console as a page: its files, who may do what on it, what it must not do, how it looks and how fast it is."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import penstock
from penstock.console import CONSOLE_POLICY, console_files
from tests.pages.browser import Browser, Page
from tests.pages.console import ROOT, SOURCE, labelled, no_dialogue, offers, press, reads, shows, write
from tests.protocols.rest.serving import Server
from tools import generate_console_types

pytestmark = pytest.mark.timeout(900)

BUILT = ROOT / "src/penstock/console/static"
COMPRESSED_BYTES_MAX = 200 * 1024
BUILD_SECONDS_MAX = 300


# -- the files ---------------------------------------------------------------------------------------------------------


def test_the_page_is_small_and_has_no_inline_code() -> None:
    files = console_files()
    size = sum(len(gzip.compress(file.content)) for file in set(files.values()))
    assert size <= COMPRESSED_BYTES_MAX, size
    page = files["/"].content.decode()
    assert "style=" not in page and "<style" not in page and "<script>" not in page
    assert not any(b"sourceMappingURL" in file.content for file in files.values())


def test_the_types_are_those_of_the_openapi_document() -> None:
    assert generate_console_types.TARGET.read_text() == generate_console_types.generated(), (
        "run `python -m tools.generate_console_types`, then `make console`"
    )


def test_the_built_page_matches_its_source(packages: Path, tmp_path: Path) -> None:
    for command in (["npm", "test"], ["npm", "run", "build"]):
        environment = {**os.environ, "CONSOLE_OUT": str(tmp_path / "built")}
        ended = subprocess.run(
            command, cwd=SOURCE, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX
        )
        assert ended.returncode == 0, ended.stdout[-3_000:] + ended.stderr[-3_000:]

    def contents(directory: Path) -> dict[str, bytes]:
        return {str(each.relative_to(directory)): each.read_bytes() for each in directory.rglob("*") if each.is_file()}

    assert contents(tmp_path / "built") == contents(BUILT), "run `make console`, and commit what it builds"


def test_the_page_is_served_with_a_strict_policy_and_can_be_left_out(serve: Callable[..., Server]) -> None:
    with serve().client() as client:
        page = client.get("/")
        assert page.headers["content-security-policy"] == CONSOLE_POLICY
        assert "unsafe" not in CONSOLE_POLICY
        assert page.headers["cache-control"] == "no-cache"
        for path, file in console_files().items():
            answer = client.get(path)
            assert (answer.status_code, answer.content) == (200, file.content)
            assert ("immutable" in answer.headers["cache-control"]) == path.startswith("/console/assets/")
        assert client.get("/console/../settings.py").status_code == 404
    with serve("[rest]\nconsole = false").client() as client:
        assert [client.get(path).status_code for path in console_files()] == [404] * len(console_files())


def test_a_report_of_very_many_queries_does_not_hold_up_the_page(browser: Browser, server: Server) -> None:
    reasons = {f"reason {number}": 1 for number in range(1_000)}
    reports = [{"queries": [{}] * 20_000}, {"queries": [{"query": "clean", "rejects": reasons}]}]
    with server.client() as client:
        for number, report in enumerate(reports):
            message = {"body": json.dumps(report), "group": f"pipeline-{number}"}
            assert client.post("/v1/queues/penstock.pipelines/messages", json=message).status_code == 201
    with browser.open(f"{server.url}/#/spark") as page:
        shows(page, "reason 49: 1")
        assert page.value("document.querySelectorAll('.runs tbody tr').length") == 101
        assert "reason 50: 1" not in page.value("document.body.innerText")


# -- who may what ------------------------------------------------------------------------------------------------------

HOSTILE = (
    "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>",
    "x" * (1024 * 1024 - 1000),
    "\u202egnp.exe\u0000</pre><h1>big</h1>",
)


def test_hostile_bodies_are_shown_as_text(browser: Browser, server: Server) -> None:
    with server.client() as client:
        for body in HOSTILE:
            sent = client.post("/v1/queues/hostile/messages", json={"body": body, "attributes": {"<b>a": "<i>b"}})
            assert sent.status_code == 201, sent.text
        client.post("/v1/queues/hostile/messages", json={"body": "/wD+", "encoding": "base64"})
    with browser.open(f"{server.url}/#/queues/hostile/messages", width=400) as page:
        page.until("document.querySelectorAll('.messages tbody tr').length === 4")
        for number in range(4):
            page.value(f"document.querySelectorAll('.messages tbody tr')[{number}].click()")
            shows(page, f"Message {number}")
            assert page.value("document.querySelectorAll('main img, main script, main i, .one h1').length") == 0
            assert page.value("document.documentElement.scrollWidth") <= 400
        shows(page, "ff 00 fe")
        assert page.value("document.title") == "hostile · Penstock"
        assert page.complaints == []


MARKUP = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


def test_markup_in_any_field_is_shown_as_text(browser: Browser, server: Server) -> None:
    """Errors, groups, attributes, sessions, tags, topics: whatever somebody else may choose."""
    subscription = {
        "protocol": "http",
        "endpoint": f"javascript:{MARKUP}",
        "target": "",
        "url": "",
        "attributes": {"FilterPolicy": MARKUP},
    }
    labels = {"sns.topic": "{}", "sns.subscription.1": json.dumps(subscription)}
    with server.client() as client:
        settings = {"max_receives": 1, "tags": {MARKUP: MARKUP}}
        client.post("/v1/queues", json={"name": "hostile", "settings": settings})
        client.post("/v1/queues", json={"name": "sns.hostile", "settings": {"labels": labels}})
        client.post("/v1/queues", json={"name": "sns.broken", "settings": {"labels": {"sns.topic": "no JSON"}}})
        client.post("/v1/queues/hostile/channels", json={"name": "pipeline.lake.clean.hostile"})
        message = {"body": MARKUP, "group": MARKUP, "attributes": {MARKUP: MARKUP, "penstock.pipeline": "lake"}}
        client.post("/v1/queues/hostile/messages", json=[message] * 3)
        session = client.post("/v1/sessions", json={"name": MARKUP}).json()["session"]
        held = client.post("/v1/queues/hostile/receive", json={"max": 2, "session": session}).json()["messages"]
        client.post("/v1/queues/hostile/release", json={"receipt": held[0]["receipt"], "error": MARKUP})
        client.post("/v1/redrives", json={"queue": "hostile.dead", "group": MARKUP, "discard": True})
    found = 0
    for path in (
        "",
        "queues/hostile",
        "queues/hostile/messages",
        "queues/hostile/dead",
        "queues/hostile/settings",
        "dead",
        "sessions",
        "topics",
        "spark",
        "audit",
        f"queues/{quote(MARKUP, safe='')}",
        f"queues/{quote(MARKUP, safe='')}/messages",
    ):
        with browser.open(f"{server.url}/#/{path}") as page:
            page.until("!!document.querySelector('main table, main .setting, main .trouble, main .group')")
            page.value("document.querySelector('.messages tbody tr, .group .link')?.click()")
            page.value("new Promise((resolve) => setTimeout(resolve, 300))")
            page.value("document.querySelector('.letters .link')?.click()")
            page.value("new Promise((resolve) => setTimeout(resolve, 300))")
            assert page.value("document.querySelectorAll('main img, main script, [href^=javascript]').length") == 0, (
                path
            )
            assert "broken" not in page.value("document.title").split("Penstock")[0].replace(MARKUP, ""), path
            found += "onerror" in page.value("document.body.innerText")
            assert [each for each in page.complaints if "400" not in each and "404" not in each] == [], path
    assert found >= 8


def test_the_stream_and_the_page_are_for_no_other_origin(serve: Callable[..., Server]) -> None:
    with serve().client() as client:
        for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
            for method, path in (("GET", "/v1/live"), ("GET", "/v1/topics"), ("POST", "/v1/cluster/drain")):
                answer = client.request(method, path, headers=headers, json={} if method == "POST" else None)
                assert (answer.status_code, answer.json()["code"]) == (403, "foreign_page"), path
        for path in ("/", "/v1/docs"):
            assert "frame-ancestors 'none'" in client.get(path).headers["content-security-policy"]


def test_a_login_can_fail_and_what_a_role_may_not_do_is_not_offered(
    browser: Browser, serve: Callable[..., Server]
) -> None:
    server = serve(
        "[[credentials]]\naccess_key = 'A'\nsecret_key = 'whole'\ntoken = 'all'\n"
        "[[credentials]]\naccess_key = 'R'\ntoken = 'reader'\n"
        "[[credentials.allow]]\nqueues = 'orders'\nrights = ['read']"
    )
    with server.client(headers={"authorization": "Bearer all"}) as client:
        client.post("/v1/queues/orders/messages", json={"body": "x"})
        client.post("/v1/queues/secret/messages", json={"body": "x"})
    with browser.open(server.url) as page:
        press(page, "Token")
        write(page, "input[type=password]", "wrong")
        press(page, "Sign in")
        page.until("document.querySelector('.trouble') !== null")
        write(page, "input[type=password]", "reader")
        press(page, "Sign in")
        shows(page, "orders")
        shows(page, "reader")
        assert "secret" not in page.value("document.body.innerText")
        assert not offers(page, "Create queue")
        for part, buttons in {
            "": ("Purge…", "Delete…", "Pause", "Create channel"),
            "/messages": ("Send a message",),
            "/settings": (),
        }.items():
            page.value(f"location.hash = '#/queues/orders{part}'")
            page.until("!!document.querySelector('table, .setting')")
            assert not any(offers(page, each) for each in buttons), part
        page.until("document.querySelector('#setting-lease')?.disabled")
        press(page, "Sign out")
        shows(page, "You can see and do what your credentials allow")
        assert page.value("sessionStorage.length") == 0
        press(page, "User and password")
        write(page, "input[name=user]", "A")
        write(page, "input[type=password]", "whole")
        press(page, "Sign in")
        shows(page, "A · admin")
        page.value("location.hash = '#/'")
        shows(page, "secret")
        page.value("location.hash = '#/queues/orders'")
        page.until("!!document.querySelector('table')")
        assert offers(page, "Purge…")


def test_a_redrive_moves_what_its_dialogue_said_and_the_list_says_where_to(
    browser: Browser, serve: Callable[..., Server]
) -> None:
    server = serve()

    def fail(client: Any, count: int) -> None:
        client.post("/v1/queues/mail/messages", json=[{"body": "x"}] * count)
        for message in client.post("/v1/queues/mail/receive", json={"max": count}).json()["messages"]:
            client.post("/v1/queues/mail/release", json={"receipt": message["receipt"], "error": "timeout"})

    with server.client() as client:
        client.post("/v1/queues", json={"name": "mail", "settings": {"max_receives": 1}})
        client.post("/v1/queues", json={"name": "again"})
        fail(client, 3)
        with browser.open(f"{server.url}/#/queues/mail/dead") as page:
            press(page, "Redrive…")
            labelled(page, "To another queue", "again")
            shows(page, "to again, and is delivered")
            page.until("document.querySelector('dialog').innerText.includes('Redrive 3')")
            fail(client, 4)
            press(page, "Redrive 3", "dialog")
            no_dialogue(page)
            shows(page, "3 moved")
            shows(page, "to again")
        assert client.get("/v1/queues/mail.dead").json()["stats"]["messages"] == 4


def test_a_queue_shows_the_receivers_that_wait_and_since_when_a_connection_is_there(
    browser: Browser, serve: Callable[..., Server]
) -> None:
    server = serve()
    with server.client() as client:
        client.post("/v1/queues", json={"name": "idle"})
        client.post("/v1/queues/busy/messages", json={"body": "x"})
    waiting = threading.Thread(target=lambda: server.client().post("/v1/queues/idle/receive", json={"wait": 20}))
    waiting.start()
    with penstock.connect(server.url) as ps, browser.open(f"{server.url}/#/queues/idle") as page:
        shows(page, "1 receiver waits for messages")
        shows(page, "Nobody holds a message of this queue")
        ps.queue("busy").receive()
        page.value("location.hash = '#/sessions'")
        page.until("/connected \\d+ s ago/.test(document.body.innerText)")
        ps.queue("idle").send("x")
    waiting.join()


def test_deliveries_of_a_subscription_with_a_filter_are_told_with_what_was_left_out(
    browser: Browser, serve: Callable[..., Server]
) -> None:
    server = serve()
    subscription = {"protocol": "email", "endpoint": "a@b.c", "target": "", "url": ""}
    filtered = {**subscription, "attributes": {"FilterPolicy": '{"type": ["tea"]}'}}
    subscriptions = {"sns.subscription.1": json.dumps(subscription), "sns.subscription.2": json.dumps(filtered)}
    with server.client() as client:
        labels = {"sns.topic": "{}", **subscriptions}
        client.post("/v1/queues", json={"name": "sns.news", "settings": {"labels": labels}})
    with browser.open(f"{server.url}/#/topics") as page:
        page.until("document.querySelectorAll('.subscriptions tbody tr').length === 2")
        first, second = page.value(
            "[...document.querySelectorAll('.subscriptions tbody tr')].map((each) => each.innerText)"
        )
        assert "or filtered" not in first and "or filtered" in second


def test_who_may_read_some_queues_sees_their_charts_and_no_error(
    browser: Browser, serve: Callable[..., Server]
) -> None:
    server = serve(
        "[[credentials]]\naccess_key = 'A'\ntoken = 'all'\n"
        "[[credentials]]\naccess_key = 'R'\ntoken = 'some'\n"
        "[[credentials.allow]]\nqueues = 'orders*'\nrights = ['read', 'admin']"
    )
    with server.client(headers={"authorization": "Bearer all"}) as client:
        client.post("/v1/queues/orders/messages", json={"body": "x"})
    with browser.open(server.url) as page:
        press(page, "Token")
        write(page, "input[type=password]", "some")
        press(page, "Sign in")
        page.until("document.querySelectorAll('.charts canvas').length > 0")
        shows(page, "of the queues that you may read")
        assert not page.value("!!document.querySelector('.trouble')")
        assert offers(page, "Audit") and not offers(page, "Hour")


def test_who_signs_in_after_somebody_else_sees_nothing_of_what_that_one_saw(
    browser: Browser, serve: Callable[..., Server]
) -> None:
    server = serve(
        "[[credentials]]\naccess_key = 'A'\ntoken = 'all'\n"
        "[[credentials]]\naccess_key = 'R'\ntoken = 'reader'\n"
        "[[credentials.allow]]\nqueues = 'orders'\nrights = ['read']"
    )
    with server.client(headers={"authorization": "Bearer all"}) as client:
        client.post("/v1/queues/orders/messages", json={"body": "x"})
        client.post("/v1/queues/secret/messages", json=[{"body": "x"}] * 4711)
    with browser.open(server.url) as page:
        press(page, "Token")
        write(page, "input[type=password]", "all")
        press(page, "Sign in")
        page.until("document.querySelector('.tiles')?.innerText.length > 0")
        shows(page, "4,712")
        press(page, "Sign out")
        nothing_live = "fetch = (at, how) => at.startsWith('/v1/live') ? new Promise(() => {}) : asked(at, how)"
        page.value(f"{{ const asked = fetch; {nothing_live} }}")
        press(page, "Token")
        write(page, "input[type=password]", "reader")
        press(page, "Sign in")
        page.until("document.querySelectorAll('.queues tbody tr').length === 1")
        assert "4,712" not in page.value("document.body.innerText")


def test_the_audit_log_fits_its_page_whatever_a_queue_is_called(browser: Browser, server: Server) -> None:
    long = "orders-of-a-shop-that-has-a-very-long-name-" * 3
    with server.client() as client:
        client.post("/v1/queues", json={"name": long[:128]})
        client.patch(f"/v1/queues/{long[:128]}", json={"lease": 45, "retention": 86_400})
    cells = "[...document.querySelectorAll('.audit tbody tr')].map((row) => row.getBoundingClientRect())"
    for width in (1280, 360):
        with browser.open(f"{server.url}/#/audit", width=width) as page:
            page.until(f"{cells}.length >= 2")
            edge = page.value("Math.max(...[...document.querySelectorAll('.audit td')].map((each) =>"
                              " each.getBoundingClientRect().right))")  # fmt: skip
            assert edge <= width, (width, edge)
            assert page.value(f"Math.max(...{cells}.map((each) => each.height))") < 200
            assert (
                page.value("document.querySelector('.wide').scrollWidth - document.querySelector('.wide').clientWidth")
                == 0
            )
            assert "ok" in reads(page, ".audit tbody tr")[0]


def test_the_audit_log_is_offered_to_administrators_and_one_of_some_queues_gives_one(
    browser: Browser, serve: Callable[..., Server]
) -> None:
    server = serve(
        "[[credentials]]\naccess_key = 'ann'\ntoken = 'ann'\n"
        "[[credentials.allow]]\nqueues = 'orders'\nrights = ['read']\n"
        "[[credentials]]\naccess_key = 'bob'\ntoken = 'bob'\n"
        "[[credentials.allow]]\nqueues = 'payments*'\nrights = ['admin', 'read']\n"
    )
    with server.client(headers={"authorization": "Bearer bob"}) as client:
        assert client.post("/v1/queues", json={"name": "payments"}).status_code == 201
    with browser.open(server.url) as page:
        for who in ("bob", "ann"):
            press(page, "Token")
            page.until("document.activeElement.type === 'password'")
            write(page, "input[type=password]", who)
            press(page, "Sign in")
            shows(page, "Since you opened the page, and only of the queues that you may read.")
            assert page.value("location.hash") in ("", "#/")
            assert reads(page, ".trouble") == []
            assert offers(page, "Audit") == (who == "bob")
            if who == "ann":
                break
            press(page, "Audit")
            shows(page, "You may see the changes of the queues that you administer.")
            write(page, ".search", "payments")
            press(page, "Search")
            shows(page, "create_queue")
            assert reads(page, ".trouble") == []
            press(page, "Sign out")


def test_a_read_only_console_offers_no_change_and_masked_bodies_say_so(
    browser: Browser, serve: Callable[..., Server]
) -> None:
    server = serve("[console]\nread_only = true\nmask = ['[0-9]{16}']")
    with server.client() as client:
        client.post("/v1/queues/orders/messages", json={"body": '{"card": "4111111111111111"}'})
    with browser.open(server.url) as page:
        shows(page, "read only")
        shows(page, "orders")
        assert not offers(page, "Create queue")
        page.value("location.hash = '#/queues/orders/messages'")
        page.until("!!document.querySelector('.messages tbody tr')")
        assert not offers(page, "Send a message")
        page.value("document.querySelector('.messages tbody tr').click()")
        shows(page, "Parts of this body are masked")
        text = page.value("document.body.innerText")
        assert "•••" in text
        assert "4111" not in text
        assert not offers(page, "Delete…", ".one")


# -- how it looks ------------------------------------------------------------------------------------------------------

PAGES = {
    "overview": "",
    "queue": "#/queues/orders",
    "messages": "#/queues/orders/messages",
    "dead-letters": "#/queues/mail/dead",
    "settings": "#/queues/orders/settings",
}
READY = "document.querySelector('main table, main .group, main .setting, main .empty, #operations details') !== null"


@pytest.mark.parametrize("is_dark", [False, True])
def test_every_page_is_accessible_and_fits_a_phone(
    browser: Browser, server: Server, packages: Path, is_dark: bool
) -> None:
    axe = (packages / "axe-core/axe.min.js").read_text()
    with server.client() as client:
        session = client.post("/v1/sessions", json={"name": "worker-7", "ttl": 300}).json()["session"]
        client.post("/v1/queues/orders/receive", json={"max": 2, "session": session})
        client.post("/v1/queues/orders/receive", json={"max": 1})

    def examined(page: Page) -> object:
        assert page.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), page.value(
            "location.hash"
        )
        page.value(axe + ";0")
        return page.value("axe.run().then((all) => all.violations.map((each) => [each.id, each.nodes[0].html]))")

    others = ("#/dead", "#/sessions", "#/topics", "#/spark", "#/cluster", "#/lookup", "#/audit", "v1/docs")
    for path in (*PAGES.values(), *others):
        with browser.open(f"{server.url}/{path}", width=375, is_dark=is_dark) as page:
            page.until(READY)
            page.value("document.querySelector('.messages tbody tr, .group .link')?.click()")
            page.value("new Promise((resolve) => setTimeout(resolve, 200))")
            assert examined(page) == [], path
            if path == "":
                page.value("document.querySelector('[data-key=n]').click()")
                assert examined(page) == [], "a dialogue"


FRAME_MS_MAX = 1000 / 60
QUEUES = 1_000


def test_a_thousand_queues_scroll_at_sixty_frames_a_second(browser: Browser, server: Server) -> None:
    """While it scrolls and the stream goes on, the page leaves room in a frame: 95 of 100 are in time."""
    with server.client() as client:
        for number in range(QUEUES):
            client.post("/v1/queues", json={"name": f"queue-{number:04}"})
    with browser.open(server.url) as page:
        shows(page, "queue-0050")
        assert page.value("document.querySelectorAll('.queues tbody tr').length") == 100
        took = page.value(
            "new Promise((resolve) => { const took = []; let last = performance.now(), at = 0;"
            " const step = () => { const now = performance.now(); took.push(now - last); last = now;"
            " scrollTo(0, (at += 40) % (document.body.scrollHeight - innerHeight));"
            " took.length < 240 ? requestAnimationFrame(step) : resolve(took) }; requestAnimationFrame(step) })"
        )
        took.sort()
        late = took[int(len(took) * 0.95)]
        # The machine of the tests is busy with other things: two frames late is the page's fault, one may be anybody's.
        assert late <= 2.5 * FRAME_MS_MAX, (
            f"the median frame took {took[len(took) // 2]:.1f} ms, the 95th {late:.1f} ms"
        )
        assert took[len(took) // 2] <= 1.2 * FRAME_MS_MAX


def test_screenshots_for_the_docs(browser: Browser, server: Server, tmp_path: Path) -> None:
    """With PENSTOCK_SCREENSHOTS=1, they are written to docs/console/."""
    directory = ROOT / "docs/console" if os.environ.get("PENSTOCK_SCREENSHOTS") else tmp_path
    directory.mkdir(exist_ok=True)
    is_wanted = directory != tmp_path
    with server.client() as client:
        for name in ("invoices.fifo", "search-index", "thumbnails", "webhooks"):
            client.post("/v1/queues", json={"name": name})
        client.post("/v1/queues/thumbnails/messages", json=[{"body": "x" * 200}] * 600)
        client.post("/v1/queues/webhooks/messages", json=[{"body": "x" * 200}] * 90)
    is_over = threading.Event()
    traffic = threading.Thread(target=_trade, args=(server, is_over))
    traffic.start()
    try:
        time.sleep(45 if is_wanted else 0)
        _take_pictures(browser, server, directory, 8_000 if is_wanted else 200)
    finally:
        is_over.set()
        traffic.join()


def _trade(server: Server, is_over: threading.Event) -> None:
    with server.client() as client:
        for number in itertools.count():
            for queue, sent, taken in (("search-index", 20 + number * 37 % 19, 29), ("orders", 5 + number * 11 % 7, 8)):
                client.post(f"/v1/queues/{queue}/messages", json=[{"body": "x"}] * sent)
                messages = client.post(f"/v1/queues/{queue}/receive", json={"max": taken}).json()["messages"]
                client.post(f"/v1/queues/{queue}/ack", json={"receipts": [each["receipt"] for each in messages]})
            if is_over.wait(0.1):
                return


def _take_pictures(browser: Browser, server: Server, directory: Path, wait_ms: int) -> None:
    for name, path in PAGES.items():
        with browser.open(f"{server.url}/{path}", is_dark=name == "queue") as page:
            page.until(READY)
            page.value("document.querySelectorAll('.messages tbody tr')[3]?.click()")
            page.value(f"new Promise((resolve) => setTimeout(resolve, {wait_ms}))")
            (directory / f"{name}.png").write_bytes(page.screenshot())
            assert (directory / f"{name}.png").stat().st_size > 10_000
    with browser.open(server.url, width=400, is_dark=True) as page:
        page.until(READY)
        page.value(f"new Promise((resolve) => setTimeout(resolve, {wait_ms}))")
        (directory / "phone.png").write_bytes(page.screenshot())
