"""The page of the REST API in a real browser: it shows every operation, calls it, and needs nothing from elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from penstock.core.commands import ListQueues
from tests.pages.browser import Browser, Page
from tests.protocols.rest.serving import Server
from tests.protocols.rest.test_openapi import OPERATIONS

pytestmark = pytest.mark.timeout(900)

SHOWN = f"document.querySelectorAll('#operations details').length === {OPERATIONS}"


def send(page: Page, operation: str, **fields: str) -> str:
    """Fill in an operation's form, press its button, and read what the page shows for it."""
    form = f"document.getElementById({operation!r})"
    page.value(f"{form}.open = true")
    page.value("new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))")
    for element, text in fields.items():
        page.value(f"{form}.querySelector({element!r}).value = {text!r}")
    page.value(f"{form}.querySelector('pre').textContent = ''")
    page.value(f"{form}.querySelector('button').click()")
    if page.value("document.getElementById('confirm').open"):
        page.value("document.getElementById('confirmed').click()")
    page.until(f"{form}.querySelector('pre').textContent !== ''")
    return str(page.value(f"{form}.querySelector('pre').innerText"))


def test_the_page_shows_and_calls_every_operation_without_a_complaint(
    browser: Browser, serve: Callable[..., Server]
) -> None:
    server = serve()
    with browser.open(f"{server.url}/v1/docs") as page:
        page.until(SHOWN)
        assert page.value("document.title") == "Penstock REST API"
        assert page.value("document.getElementById('send_messages').querySelector('summary').innerText").startswith(
            "POST"
        )
        assert page.value("getComputedStyle(document.querySelector('.method')).fontWeight") == "700", "no style"
        body = "[...document.querySelectorAll('#send_messages table:first-of-type td:first-child')]"
        assert "attributes" in page.value(f"{body}.map((cell) => cell.textContent)"), "no fields of a body"
        created = send(page, "create_queue", textarea='{"name": "from-the-page"}')
        assert created.startswith("201 Created"), created
        assert server.call(ListQueues()) == ["from-the-page"]
        refused = send(page, "describe_queue", input="/v1/queues/absent")
        assert refused.startswith("404 Not Found"), refused
        assert "queue_not_found" in refused
        assert {urlsplit(url).netloc for url in page.requests} == {urlsplit(server.url).netloc}
        expected = "Failed to load resource: the server responded with a status of 404 (Not Found)"
        assert page.complaints == [f"{expected} ({server.url}/v1/queues/absent)"]
        assert len(page.screenshot()) > 10_000


def test_the_page_is_as_wide_as_its_window_and_dark_where_that_is_wanted(
    browser: Browser, serve: Callable[..., Server]
) -> None:
    with browser.open(f"{serve().url}/v1/docs", width=400, is_dark=True) as page:
        page.until(SHOWN)
        assert page.value("document.documentElement.scrollWidth") <= 400
        assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(14, 19, 24)"
        assert page.complaints == []


PREPARED = {
    "needs a receipt": (
        (
            "ack_messages",
            "ack_in_channel",
            "extend_leases",
            "extend_in_channel",
            "release_messages",
            "release_in_channel",
        ),
        ("send_messages", "receive_messages"),
    ),
    "needs a message": (("delete_message", "delete_messages", "release_named_messages"), ("send_messages",)),
    "needs a redrive": (("describe_redrive", "cancel_redrive"), ("start_redrive",)),
    "needs a consumer": (("delete_virtual_consumer", "delete_consumer"), ("consumer_ack",)),
    "needs a queue": (("delete_virtual_queue", "delete_queue"), ("create_queue",)),
}
"""What somebody presses before, because an example speaks of what that gives."""
ALONE = {"move_shard", "drain_node", "lookup_nodes"}
"""Operations that a server without others refuses."""


def test_every_example_works_as_it_is_filled_in(browser: Browser, serve: Callable[..., Server]) -> None:
    with browser.open(f"{serve().url}/v1/docs") as page:
        page.until("document.querySelectorAll('#operations details').length > 0")
        found = page.value("[...document.querySelectorAll('#operations details')].map((each) => each.id)")
        destroying = [each for each in found if each.startswith(("delete_", "purge_", "end_"))]
        reading_as = ["move_consumer", "describe_consumer", "read_as_consumer"]
        first = ["create_queue", "send_messages", "create_channel", *reading_as]
        late = sorted(
            destroying, key=lambda each: (each in ("delete_queue", "delete_virtual_queue"), each == "delete_channel")
        )
        rest = [each for each in found if each not in {*first, *late, *ALONE}]
        for operation in [*first, *rest, *late]:
            for operations, before in PREPARED.values():
                if operation in operations:
                    for each in before:
                        send(page, each)
            answer = send(page, operation)
            assert answer.startswith("2"), f"{operation}: {answer}"
        assert "curl -X POST" in page.value("document.querySelector('#send_messages pre:last-of-type').innerText")


def test_examples_touch_no_real_queue_and_whatever_deletes_asks_first(
    browser: Browser, serve: Callable[..., Server]
) -> None:
    server = serve()
    with server.client() as client, browser.open(f"{server.url}/v1/docs") as page:
        client.post("/v1/queues/orders/messages", json=[{"body": "real"}] * 3)
        real = client.post("/v1/sessions", json={"name": "worker", "ttl": 300}).json()["session"]
        client.post("/v1/redrives", json={"queue": "orders"})
        page.until(SHOWN)
        for listed in ("list_sessions", "list_redrives", "list_queues"):
            assert send(page, listed).startswith("200")
        page.value("for (const each of document.querySelectorAll('#operations details')) each.open = true")
        page.value("new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))")
        filled = page.value("[...document.querySelectorAll('.try input, .try textarea')].map((each) => each.value)")
        assert not [each for each in filled if "orders" in each or "sessions/1" in each or "redrives/1" in each]
        assert "/v1/queues/try-me" in filled
        for operation, path in (
            ("delete_queue", "/v1/queues/orders"),
            ("purge_queue", "/v1/queues/orders/purge"),
            ("delete_messages", "/v1/queues/orders/messages/delete"),
            ("end_session", f"/v1/sessions/{real}"),
        ):
            form = f"document.getElementById({operation!r})"
            page.value(f"{form}.querySelector('input').value = {path!r}; {form}.querySelector('button').click()")
            page.until("document.getElementById('confirm').open")
            assert path in page.value("document.getElementById('confirm').innerText")
            page.value("document.getElementById('cancelled').click()")
            page.until("!document.getElementById('confirm').open")
        assert client.get("/v1/queues/orders").json()["stats"]["messages"] == 3
        assert len(client.get("/v1/sessions").json()["sessions"]) == 1
        assert send(page, "purge_queue", input="/v1/queues/orders/purge").startswith("200")
        assert client.get("/v1/queues/orders").json()["stats"]["messages"] == 0


def test_the_page_has_the_theme_of_the_console(browser: Browser, serve: Callable[..., Server]) -> None:
    server = serve()
    with browser.open(f"{server.url}/v1/docs") as page:
        assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(245, 247, 249)"
        page.value("localStorage.setItem('penstock-theme', 'dark'); location.reload()")
        page.until("getComputedStyle(document.body).backgroundColor === 'rgb(14, 19, 24)'")
        page.value("localStorage.removeItem('penstock-theme')")


def test_the_page_takes_a_token(browser: Browser, serve: Callable[..., Server]) -> None:
    server = serve("[[credentials]]\naccess_key = 'A'\ntoken = 'secret token'")
    with browser.open(f"{server.url}/v1/docs") as page:
        page.until(SHOWN)
        assert send(page, "list_queues").startswith("401 Unauthorized")
        page.value("document.getElementById('token').value = 'secret token'")
        assert send(page, "list_queues").startswith("200 OK")


class Threads(ThreadingHTTPServer):
    """A browser opens connections that it may need later: nobody waits for these."""

    daemon_threads = True
    block_on_close = False


class RemoteCalls(BaseHTTPRequestHandler):
    """Somebody else's page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title><link rel=icon href='data:,'>")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def elsewhere() -> Iterator[str]:
    server = Threads(("127.0.0.1", 0), RemoteCalls)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def sending(url: str, options: str) -> str:
    """An expression that sends a message from a page; what became of it."""
    return f"fetch('{url}', {{method: 'POST', {options}}}).then((r) => r.type + r.status, () => 'refused')"


def connecting(url: str) -> str:
    """An expression that opens a websocket from a page; what became of it."""
    return f"""new Promise((done) => {{
        const socket = new WebSocket('{url}');
        socket.onopen = () => done('open');
        socket.onerror = () => done('refused');
    }})"""


def test_a_page_from_elsewhere_can_do_nothing(browser: Browser, serve: Callable[..., Server], elsewhere: str) -> None:
    server = serve()
    path = f"{server.url}/v1/queues/stolen/messages"
    with browser.open(elsewhere) as page:
        page.value(sending(path, "mode: 'no-cors', body: '{\"body\": 1}'"))
        assert page.value(sending(path, "body: '[]', headers: {'content-type': 'application/json'}")) == "refused"
        assert page.value(f"fetch('{server.url}/v1/queues').then(() => 'read', () => 'refused')") == "refused"
        assert page.value(connecting(server.url.replace("http", "ws") + "/v1/ws")) == "refused"
    assert server.call(ListQueues()) == []


def test_a_page_whose_origin_is_named_may_call(browser: Browser, serve: Callable[..., Server], elsewhere: str) -> None:
    server = serve(f"[rest]\ncors_origins = ['{elsewhere}']")
    with browser.open(elsewhere) as page:
        options = "body: '[{\"body\": \"x\"}]', headers: {'content-type': 'application/json'}"
        assert page.value(sending(f"{server.url}/v1/queues/given/messages", options)) == "cors201"
        assert page.value(connecting(server.url.replace("http", "ws") + "/v1/ws")) == "open"
        assert page.complaints == []
    assert server.call(ListQueues()) == ["given"]
