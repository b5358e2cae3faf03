"""A page whose name was made to lead to this machine after it was loaded, in a real browser: it gets nothing here.

The page is loaded from somebody's server, on the port that Penstock has later. Then that server is gone, and Penstock
is there: to the browser, the page's own server. A page of another port is a stranger, with or without the name.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.pages.browser import NAME, Browser, Page
from tests.ports import free_port
from tests.server.serving import served

pytestmark = pytest.mark.timeout(900)

SENDS = {
    "sqs": ("GET", "/?Action=CreateQueue&QueueName=stolen"),
    "http": ("GET", "/v1/queues"),
    "nsq-http": ("GET", "/stats?format=json"),
}
FORMS = {
    "sqs": "/?Action=CreateQueue&QueueName=stolen",
    "http": "/v1/queues",
    "nsq-http": "/topic/create?topic=stolen",
}
FLAGS = {"sqs": "--sqs-port", "http": "--http-port", "nsq-http": "--nsq-http-port"}


class _Lure(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(b"<!doctype html><link rel=icon href=data:><title>lure</title>")

    def log_message(self, *_: object) -> None:
        pass


class _LureServer(ThreadingHTTPServer):
    """Lets go of connections, too, that a browser has opened in advance."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Lure)
        self._taken: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._taken.append(request)
        super().process_request(request, client_address)

    def leave(self) -> None:
        self.shutdown()
        self.server_close()
        for each in self._taken:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def lure(port: int = 0) -> Iterator[int]:
    """Somebody's web server."""
    server = _LureServer(port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.leave()


def fetched(page: Page, method: str, url: str, **options: Any) -> list[Any]:
    """What a page gets: the status and the text, or the error."""
    asked = json.dumps({"method": method, **options})
    got = page.value(
        f"fetch({url!r}, {asked}).then(async (r) => [r.status, await r.text()], (e) => ['failed', String(e)])"
    )
    return list(got)


def websocket(page: Page, url: str) -> str:
    return str(
        page.value(
            f"new Promise((told) => {{ const s = new WebSocket({url!r}); "
            "s.onopen = () => told('open'); s.onerror = () => told('failed') })"
        )
    )


@pytest.mark.parametrize("front_end", SENDS)
def test_a_page_whose_name_leads_here_reads_and_sends_nothing(browser: Browser, tmp_path: Path, front_end: str) -> None:
    port = free_port()
    with lure(port):
        page = browser.open(f"http://{NAME}:{port}/")
    with page, served(tmp_path, "", FLAGS[front_end], str(port)) as server:
        assert server.ports[front_end] == port
        status, text = fetched(page, *SENDS[front_end])
        assert status == 421, text
        assert "[server] hosts" in text, "it may read that it is refused, and nothing else"
        assert fetched(page, "POST", FORMS[front_end], body="x")[0] == 421
        if front_end == "http":
            assert websocket(page, f"ws://{NAME}:{port}/v1/ws") == "failed"
        assert created(server.ports) == []


@pytest.mark.parametrize("host", ["127.0.0.1", NAME])
def test_a_page_of_another_origin_sends_nothing_either(browser: Browser, tmp_path: Path, host: str) -> None:
    """Without being able to read the answer: a form, or an image, is enough to do harm."""
    with lure() as port, browser.open(f"http://{NAME}:{port}/") as page, served(tmp_path) as server:
        for front_end, path in FORMS.items():
            url = f"http://{host}:{server.ports[front_end]}{path}"
            fetched(page, "POST", url, mode="no-cors", body="x")
            fetched(page, "GET", url, mode="no-cors")
            page.value(
                f"new Promise((told) => {{ const i = new Image(); i.onload = i.onerror = told; i.src = {url!r} }})"
            )
        assert websocket(page, f"ws://{host}:{server.ports['http']}/v1/ws") == "failed"
        assert created(server.ports) == []


def created(ports: dict[str, int]) -> list[str]:
    """The queues that are there, asked for by somebody of this machine."""
    with penstock.connect(f"penstock://127.0.0.1:{ports['http']}") as ps:
        return ps.queues()
