"""The console in a real browser, against a real server: each ability as a scenario, and what a page must not do."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.console import CONSOLE_POLICY, console_files
from penstock.core.commands import ListQueues
from tests.pages.browser import Browser, Page
from tests.protocols.rest.serving import Server, needed

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "console"
BUILT = ROOT / "src/penstock/console/static"
COMPRESSED_BYTES_MAX = 200 * 1024
BUILD_SECONDS_MAX = 300


@pytest.fixture(scope="session")
def packages() -> Path:
    """What the page is built and examined with, as the lock file says: fetched where it is not there yet."""
    for program in ("node", "npm"):
        needed(program)
    directory = SOURCE / "node_modules"
    fetched_for, wanted = directory / ".penstock-lock", (SOURCE / "package-lock.json").read_bytes()
    if not fetched_for.exists() or fetched_for.read_bytes() != wanted:
        command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
        ended = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX)
        if ended.returncode:
            reason = f"npm ci failed: the page's build and accessibility are NOT tested: {ended.stderr[:1_000]}"
            (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
        fetched_for.write_bytes(wanted)
    return directory


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def serve(text: str = "") -> Server:
        started.append(Server(tmp_path / f"data-{len(started)}", text))
        return started[-1]

    yield serve
    for server in started:
        server.stop()


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    """A server with something to see: `orders`, and `mail` with six dead letters in two groups."""
    server = serve()
    with server.client() as client:
        client.post("/v1/queues", json={"name": "mail", "settings": {"max_receives": 1}})
        orders = [{"body": json.dumps({"order": number, "items": ["tea", "cake"]})} for number in range(5)]
        client.post("/v1/queues/orders/messages", json=[*orders, {"body": "later", "delay": 3600}])
        client.put("/v1/queues/orders/consumers/indexer", json={"offset": 2})
        client.post("/v1/queues/mail/messages", json=[{"body": f"letter {number}"} for number in range(6)])
        for number, message in enumerate(client.post("/v1/queues/mail/receive", json={"max": 6}).json()["messages"]):
            error = f"timeout after {number} s" if number < 4 else "no such address"
            client.post("/v1/queues/mail/release", json={"receipt": message["receipt"], "error": error})
    return server


def shows(page: Page, text: str) -> None:
    """Wait until a text can be read on the page."""
    page.until(f"document.body.innerText.includes({json.dumps(text)})")


def element(text: str, within: str = "body") -> str:
    """The expression for the button, or link, with this text."""
    where = f"[...document.querySelectorAll({json.dumps(within + ' button, ' + within + ' a')})]"
    return f"{where}.find((each) => each.innerText.trim() === {json.dumps(text)})"


def press(page: Page, text: str, within: str = "body") -> None:
    page.until(f"{element(text, within)} && !{element(text, within)}.disabled")
    page.value(f"{element(text, within)}.click()")


def write(page: Page, selector: str, text: str) -> None:
    """Type into a field."""
    at = f"document.querySelector({json.dumps(selector)})"
    page.until(f"!!{at}")
    page.value(
        f"(() => {{ const at = {at}; at.value = {json.dumps(text)};"
        " at.dispatchEvent(new Event(at.tagName === 'SELECT' ? 'change' : 'input', {bubbles: true})) })()"
    )


def labelled(page: Page, label: str, text: str) -> None:
    """Type into the field of a dialogue with this label."""
    find = (
        f"[...document.querySelectorAll('dialog label')].find((each) => each.innerText.startsWith({json.dumps(label)}))"
    )
    page.until(f"!!{find}")
    page.value(
        f"(() => {{ const at = {find}.querySelector('input, textarea, select'); at.value = {json.dumps(text)};"
        " at.dispatchEvent(new Event('input', {bubbles: true})) })()"
    )


def key(page: Page, *keys: str) -> None:
    for each in keys:
        page.value(
            f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{key: {each!r}, bubbles: true}}))"
        )


def shown_command(page: Page) -> str:
    return str(page.value("document.querySelector('dialog .cli code').textContent"))


def asked(server: Server, path: str) -> Any:
    with server.client() as client:
        return client.get(path).json()


# -- the files ---------------------------------------------------------------------------------------------------------


def test_the_page_is_small_and_has_no_inline_code() -> None:
    files = console_files()
    size = sum(len(gzip.compress(file.content)) for file in set(files.values()))
    assert size <= COMPRESSED_BYTES_MAX, size
    page = files["/"].content.decode()
    assert "style=" not in page and "<style" not in page and "<script>" not in page
    assert not any(b"sourceMappingURL" in file.content for file in files.values())


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


# -- scenarios ---------------------------------------------------------------------------------------------------------


def test_the_overview_counts_sorts_filters_and_creates(browser: Browser, server: Server) -> None:
    with browser.open(server.url) as page:
        shows(page, "mail.dead")
        rows = "[...document.querySelectorAll('.queues tbody td.name')].map((each) => each.innerText)"
        assert page.value(rows) == ["mail", "mail.dead", "orders"]
        press(page, "ready", ".queues")
        page.until(f"{rows}[0] === 'mail.dead'")
        key(page, "/")
        assert page.value("document.activeElement.type") == "search"
        write(page, ".search", "ord")
        page.until(f"{rows}.join() === 'orders'")
        page.value("document.activeElement.blur()")
        key(page, "j")
        key(page, "Enter")
        page.until("location.hash === '#/queues/orders'")
        key(page, "g", "q")
        page.until("location.hash === '#/'")
        key(page, "n")
        labelled(page, "Name", "invoices.fifo")
        assert shown_command(page) == f"penstock queue create invoices.fifo --url {server.url}"
        press(page, "Create", "dialog")
        shows(page, "invoices.fifo")
        assert "invoices.fifo" in server.call(ListQueues())
        assert {urlsplit(url).netloc for url in page.requests} == {urlsplit(server.url).netloc}
        assert page.complaints == []


def test_the_rates_that_are_shown_are_those_that_were_sent(browser: Browser, server: Server) -> None:
    with browser.open(server.url) as page, server.client() as client:
        shows(page, "orders")
        client.post("/v1/queues/orders/messages", json=[{"body": "x"}] * 400)
        cell = "[...document.querySelectorAll('.queues tr')].find((row) => row.innerText.startsWith('orders'))"
        page.until(f"Number({cell}.children[6].innerText) > 0")
        rate = float(page.value(f"{cell}.children[6].innerText"))
        assert 120 <= rate <= 260, f"400 messages within a look every 2 s: {rate} a second"


def test_a_queue_shows_its_parts_and_its_settings_can_be_changed(browser: Browser, server: Server) -> None:
    with browser.open(f"{server.url}/#/queues/orders") as page:
        shows(page, "indexer")
        shows(page, "0 to 43,200; default 30")
        write(page, "#setting-lease", "45")
        shows(page, f"penstock queue configure orders --lease 45 --url {server.url}")
        press(page, "Save 1 change")
        shows(page, "Saved.")
        assert asked(server, "/v1/queues/orders")["settings"]["lease"] == 45
        write(page, "#setting-lease", "-1")
        press(page, "Save 1 change")
        shows(page, "it must be from 0 to 43200 seconds")
        assert asked(server, "/v1/queues/orders")["settings"]["lease"] == 45
        press(page, "Pause")
        press(page, "Pause", "dialog")
        shows(page, "Unpause")
        assert asked(server, "/v1/queues/orders/channels/main")["paused"] is True
        press(page, "Create channel")
        labelled(page, "Name", "audit")
        press(page, "Create", "dialog")
        shows(page, "audit")
        assert page.value("document.querySelectorAll('.chart canvas').length") == 2


def test_what_destroys_says_what_and_asks_for_the_name(browser: Browser, server: Server) -> None:
    with browser.open(f"{server.url}/#/queues/orders") as page:
        press(page, "Purge…", "header")
        shows(page, "All 6 messages of this queue are deleted")
        confirm = element("Delete the messages", "dialog")
        assert page.value(f"{confirm}.disabled") is True
        labelled(page, "Type", "order")
        assert page.value(f"{confirm}.disabled") is True
        labelled(page, "Type", "orders")
        press(page, "Delete the messages", "dialog")
        page.until("!document.querySelector('dialog')")
        assert asked(server, "/v1/queues/orders")["stats"]["messages"] == 0
        press(page, "Delete…", "header")
        labelled(page, "Type", "orders")
        assert shown_command(page) == f"penstock queue delete orders --url {server.url}"
        press(page, "Delete the queue", "dialog")
        page.until("location.hash === '#/'")
        assert server.call(ListQueues()) == ["mail", "mail.dead"]


def test_messages_are_looked_at_searched_and_sent_again_without_being_taken(browser: Browser, server: Server) -> None:
    with browser.open(f"{server.url}/#/queues/orders/messages") as page:
        rows = "document.querySelectorAll('.messages tbody tr').length"
        page.until(f"{rows} === 6")
        write(page, ".search", '"order": 3')
        press(page, "Search")
        page.until(f"{rows} === 1")
        page.value("document.querySelector('.messages tbody tr').click()")
        page.until("document.querySelector('pre.body')?.innerText.includes('  \"order\": 3')")
        press(page, "Hex", ".one")
        page.until("document.querySelector('pre.body').innerText.startsWith('00000000  7b 22')")
        press(page, "Edit and send a copy…")
        labelled(page, "Body", '{"order": 33}')
        labelled(page, "Attributes", '{"table": 7}')
        labelled(page, "Priority", "9")
        press(page, "Send", "dialog")
        page.until("!document.querySelector('dialog')")
        found = asked(server, "/v1/queues/orders/messages?contains=33")["messages"]
        assert [(each["body"], each["attributes"]) for each in found] == [('{"order": 33}', {"table": 7})]
        stats = asked(server, "/v1/queues/orders/channels/main")
        assert (stats["ready"], stats["leased"], stats["delayed"]) == (6, 0, 1)
        assert page.complaints == []


def test_dead_letters_are_grouped_and_a_group_is_redriven(browser: Browser, server: Server) -> None:
    with browser.open(f"{server.url}/#/queues/mail/dead") as page:
        shows(page, "timeout after <n> s")
        counts = "[...document.querySelectorAll('.count')].map((each) => each.innerText).join()"
        assert page.value(counts) == "4,2"
        page.value("document.querySelector('.group header button:last-child').click()")
        shows(page, "4 messages go back: the group “timeout after <n> s”")
        press(page, "Redrive 4", "dialog")
        shows(page, "4 moved")
        press(page, "Refresh")
        page.until(f"{counts} === '2'")
        assert asked(server, "/v1/queues/mail/channels/main")["ready"] == 4
        assert len(asked(server, "/v1/queues/mail/dead-letters")["messages"]) == 2


def test_a_redrive_can_be_slow_and_be_stopped(browser: Browser, server: Server) -> None:
    with browser.open(f"{server.url}/#/queues/mail/dead") as page:
        press(page, "Redrive all…")
        labelled(page, "Messages a second", "1")
        assert shown_command(page) == f"penstock redrive mail.dead --rate 1 --url {server.url}"
        press(page, "Redrive all", "dialog")
        press(page, "Stop")
        shows(page, "cancelled")
        assert asked(server, "/v1/redrives")["redrives"][0]["status"] == "cancelled"


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
            assert page.value("document.querySelectorAll('main img, main script, main b, main h1').length") == 1
            assert page.value("document.documentElement.scrollWidth") <= 400
        shows(page, "ff 00 fe")
        assert page.value("document.title") == "Penstock"
        assert page.complaints == []


def test_a_login_can_fail_and_a_role_may_not_do_everything(browser: Browser, serve: Callable[..., Server]) -> None:
    server = serve(
        "[[credentials]]\naccess_key = 'A'\ntoken = 'all'\n"
        "[[credentials]]\naccess_key = 'R'\ntoken = 'reader'\n"
        "[[credentials.allow]]\nqueues = 'orders'\nrights = ['read']"
    )
    with server.client(headers={"authorization": "Bearer all"}) as client:
        client.post("/v1/queues/orders/messages", json={"body": "x"})
        client.post("/v1/queues/secret/messages", json={"body": "x"})
    with browser.open(server.url) as page:
        write(page, "input[type=password]", "wrong")
        press(page, "Sign in")
        page.until("document.querySelector('.trouble') !== null")
        write(page, "input[type=password]", "reader")
        press(page, "Sign in")
        shows(page, "orders")
        assert "secret" not in page.value("document.body.innerText")
        page.value("location.hash = '#/queues/orders'")
        press(page, "Delete…", "header")
        labelled(page, "Type", "orders")
        press(page, "Delete the queue", "dialog")
        page.until("document.querySelector('dialog .trouble') !== null")
        assert "admin" in page.value("document.querySelector('dialog .trouble').innerText")
        page.value("document.querySelector('dialog button').click()")
        press(page, "Sign out")
        shows(page, "This server asks for a token")
        assert page.value("sessionStorage.length") == 0


PAGES = {
    "overview": "",
    "queue": "#/queues/orders",
    "messages": "#/queues/orders/messages",
    "dead-letters": "#/queues/mail/dead",
}


@pytest.mark.parametrize("is_dark", [False, True])
def test_every_page_is_accessible_and_fits_a_phone(
    browser: Browser, server: Server, packages: Path, is_dark: bool
) -> None:
    axe = packages / "axe-core/axe.min.js"
    for path in (*PAGES.values(), "#/dead", "#/cluster"):
        with browser.open(f"{server.url}/{path}", width=400, is_dark=is_dark) as page:
            page.until("document.querySelector('table, .group') !== null")
            assert page.value("document.documentElement.scrollWidth") <= 400, path
            page.value("document.querySelector('.messages tbody tr, .group .link')?.click()")
            page.value(axe.read_text() + ";0")
            found = page.value("axe.run().then((all) => all.violations.map((each) => [each.id, each.nodes[0].html]))")
            assert found == [], path


def test_screenshots_for_the_docs(browser: Browser, server: Server, tmp_path: Path) -> None:
    """With PENSTOCK_SCREENSHOTS=1, they are written to docs/console/."""
    directory = ROOT / "docs/console" if os.environ.get("PENSTOCK_SCREENSHOTS") else tmp_path
    directory.mkdir(exist_ok=True)
    looks = 1 if directory == tmp_path else 50
    for name, path in sorted(PAGES.items(), key=lambda each: each[0] in ("overview", "queue")):
        with browser.open(f"{server.url}/{path}", is_dark=name == "queue") as page:
            page.until("document.querySelector('table, .group') !== null")
            page.value("document.querySelectorAll('.messages tbody tr')[3]?.click()")
            for number in range(looks if name in ("overview", "queue") else 1):
                with server.client() as client:
                    client.post("/v1/queues/orders/messages", json=[{"body": "x"}] * (200 + number * 37 % 90))
                    taken = client.post("/v1/queues/orders/receive", json={"max": 230}).json()["messages"]
                    client.post("/v1/queues/orders/ack", json={"receipts": [each["receipt"] for each in taken]})
                page.value("new Promise((resolve) => setTimeout(resolve, 500))")
            (directory / f"{name}.png").write_bytes(page.screenshot())
            assert (directory / f"{name}.png").stat().st_size > 10_000
