"""Every command line that the console shows does what its button does: each is pasted into a shell."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.commands import ListQueues
from tests.pages.browser import Browser, Page
from tests.pages.console import asked, element, labelled, pasted, press, shown_command, shows, write
from tests.protocols.rest.serving import Server, eventually

pytestmark = pytest.mark.timeout(900)


def _paste(page: Page) -> str:
    """Do by its command what the open dialogue is about, and leave the dialogue."""
    said = pasted(shown_command(page))
    press(page, "Cancel", "dialog")
    return said


def _channel(server: Server, queue: str, channel: str = "main") -> Any:
    return asked(server, f"/v1/queues/{queue}/channels/{channel}")


def test_commands_of_queues_channels_and_consumers(browser: Browser, server: Server) -> None:
    with browser.open(server.url) as page:
        press(page, "Create queue")
        labelled(page, "Name", "-rf")
        _paste(page)
        assert "-rf" in server.call(ListQueues())
        page.value("location.hash = '#/queues/-rf'")
        press(page, "Delete…", "header")
        _paste(page)
        eventually(lambda: "-rf" not in server.call(ListQueues()))
        page.value("location.hash = '#/queues/orders'")
        shows(page, "indexer")
        press(page, "Create channel")
        labelled(page, "Name", "audit")
        labelled(page, "Starts with", "tail")
        _paste(page)
        assert _channel(server, "orders", "audit")["ready"] == 0
        row = "[...document.querySelectorAll('main tr')].find((each) => each.innerText.startsWith('{}'))"
        audit = row.format("audit")
        for button, is_done in (
            ("Pause", lambda: _channel(server, "orders", "audit")["paused"]),
            ("Unpause", lambda: not _channel(server, "orders", "audit")["paused"]),
        ):
            page.until(f"{audit}?.innerText.includes('{button}')")
            page.value(f"[...{audit}.querySelectorAll('button')].find((each) => each.innerText === '{button}').click()")
            _paste(page)
            assert is_done()
        main = row.format("main")
        page.value(f"[...{main}.querySelectorAll('button')].find((each) => each.innerText === 'Purge…').click()")
        _paste(page)
        assert _channel(server, "orders")["ready"] == 0
        page.value(f"[...{audit}.querySelectorAll('button')].find((each) => each.innerText === 'Delete…').click()")
        _paste(page)
        assert [each["name"] for each in asked(server, "/v1/queues/orders/channels")["channels"]] == ["main"]
        press(page, "Move…")
        labelled(page, "Offset", "1")
        _paste(page)
        (consumer,) = asked(server, "/v1/queues/orders/consumers")["consumers"]
        assert consumer["offset"] == 1
        indexer = row.format("indexer")
        page.value(f"[...{indexer}.querySelectorAll('button')].find((each) => each.innerText === 'Delete…').click()")
        _paste(page)
        assert asked(server, "/v1/queues/orders/consumers")["consumers"] == []
        with server.client() as client:
            client.post("/v1/queues/orders/messages", json={"body": "x"})
        press(page, "Purge…", "header")
        _paste(page)
        assert asked(server, "/v1/queues/orders")["stats"]["messages"] == 0


def test_commands_of_messages(browser: Browser, server: Server) -> None:
    body = "it's $HOME `x` \u202e \x1b[31m"
    with browser.open(f"{server.url}/#/queues/orders/messages") as page:
        count = "document.querySelectorAll('.messages tbody tr').length"
        page.until(f"{count} === 6")
        press(page, "Send a message")
        labelled(page, "Body", body)
        labelled(page, "Attributes", json.dumps({"of": "it's a=b"}))
        labelled(page, "Group", "-g")
        labelled(page, "Priority", "9")
        _paste(page)
        (sent,) = asked(server, "/v1/queues/orders/messages?contains=HOME")["messages"]
        assert (sent["body"], sent["attributes"], sent["group"]) == (body, {"of": "it's a=b"}, "-g")
        press(page, "Send a message")
        labelled(page, "Body", "counted")
        labelled(page, "Attributes", '{"table": 7}')
        pasted(shown_command(page))
        press(page, "Cancel", "dialog")
        (sent,) = asked(server, "/v1/queues/orders/messages?contains=counted")["messages"]
        assert sent["attributes"] == {"table": 7}
        write(page, ".search", "-later'")
        press(page, "Search")
        shows(page, "No message in these states matches")
        peek = "document.querySelector('.split > div > .cli code').textContent"
        assert json.loads(pasted(str(page.value(peek))))["messages"] == []
        write(page, ".search", "-later")
        press(page, "Search")
        page.until(f"{peek}.includes('--contains=-later')")
        assert "nothing" in pasted(str(page.value(peek)), status=3)
        write(page, ".search", "later")
        press(page, "Search")
        page.until(f"{count} === 1")
        assert "later" in pasted(str(page.value(peek)))
        for kind, what, value in (("path", "$.order", "2"), ("attribute", "table", "2"), ("id", "2", "")):
            write(page, ".filters select", kind)
            write(page, ".search", what)
            if value:
                write(page, ".filters .value", value)
            press(page, "Search")
            page.until(f"document.querySelector('.split > div > .cli code').textContent.includes('{kind}=')")
            page.until(f"{count} === 1 && document.querySelector('.messages td.number').innerText === '2'")
            found = json.loads(pasted(str(page.value(peek))))["messages"]
            assert [each["sequence"] for each in found] == [2], kind
        write(page, ".filters select", "text")
        write(page, ".search", "later")
        press(page, "Search")
        page.until(f"{count} === 1 && document.querySelector('.messages td.number').innerText === '5'")
        press(page, "Ready", ".choice")
        page.until(f"{count} === 0")
        assert json.loads(pasted(str(page.value(peek))))["messages"] == []
        press(page, "All", ".choice")
        page.until(f"{count} === 1")
        page.value("document.querySelector('.messages tbody tr').click()")
        shows(page, "Message 5")
        assert "sent" in pasted(str(page.value("document.querySelector('.one .cli code').textContent")))
        press(page, "Reschedule…", ".one")
        labelled(page, "Due in", "7200")
        _paste(page)
        (later,) = asked(server, "/v1/queues/orders/messages?contains=later")["messages"]
        assert later["until"] > later["sent_at"] + 7_000
        press(page, "Release…", ".one")
        _paste(page)
        assert _channel(server, "orders")["delayed"] == 0
        press(page, "Delete…", ".one")
        _paste(page)
        assert asked(server, "/v1/queues/orders/messages?contains=later")["messages"] == []


def test_commands_of_dead_letters(browser: Browser, server: Server) -> None:
    hostile = '--discard it\'s \x1b[31m$(touch /tmp/never) "quoted"'
    with server.client() as client:
        client.post("/v1/queues/mail/messages", json={"body": "hostile"})
        (message,) = client.post("/v1/queues/mail/receive", json={"max": 1}).json()["messages"]
        client.post("/v1/queues/mail/release", json={"receipt": message["receipt"], "error": hostile})
    dead = "document.querySelectorAll('.group').length"
    with browser.open(f"{server.url}/#/queues/mail/dead") as page:

        def of(group: str, button: str) -> None:
            row = (
                f"[...document.querySelectorAll('.group')].find((each) => each.innerText.includes({json.dumps(group)}))"
            )
            page.until(f"!!{row}")
            page.value(f"[...{row}.querySelectorAll('button')].find((each) => each.innerText === {button!r}).click()")

        def left() -> int:
            return len(asked(server, "/v1/queues/mail/dead-letters")["messages"])

        page.until(f"{dead} === 3")
        of("--discard", "Redrive…")
        shows(page, "1 message goes back")
        _paste(page)
        eventually(lambda: left() == 6 and _channel(server, "mail")["ready"] == 1)
        of("no such address", "Delete…")
        shows(page, "2 messages are deleted")
        _paste(page)
        eventually(lambda: left() == 4)
        press(page, "Refresh")
        page.until(f"{dead} === 1")
        page.value("document.querySelector('.group .link').click()")
        page.until("document.querySelectorAll('.letters tbody input').length === 4")
        page.value("document.querySelectorAll('.letters tbody input')[1].click()")
        press(page, "Redrive the selection…")
        shows(page, "1 message goes back")
        labelled(page, "To another queue", "elsewhere")
        shows(page, "there is no queue 'elsewhere': check the name, or create it")
        page.value("document.querySelector('dialog .check input').click()")
        page.until("document.querySelector('dialog .cli code').textContent.includes('--to=elsewhere --create')")
        shows(page, "1 message goes back")
        _paste(page)
        eventually(lambda: left() == 3)
        assert asked(server, "/v1/queues/elsewhere")["stats"]["messages"] == 1
        press(page, "Redrive all…")
        labelled(page, "Messages a second", "1000")
        _paste(page)
        eventually(lambda: left() == 0)


def test_commands_of_settings_sessions_and_topics(browser: Browser, server: Server) -> None:
    with server.client() as client:
        session = client.post("/v1/sessions", json={"name": "worker"}).json()["session"]
        client.post("/v1/queues/orders/receive", json={"max": 2, "session": session})
    with browser.open(f"{server.url}/#/queues/orders/settings") as page:
        write(page, "#setting-lease", "45")
        write(page, "#setting-retention", "")
        write(page, "#setting-backoff", '{"shape": "fixed", "base_ms": 2000}')
        write(page, "#setting-tags", '{"team": "it\'s ours"}')
        shows(page, "Save 4 changes")
        pasted(str(page.value("document.querySelector('.savebar .cli code').textContent")))
        settings = asked(server, "/v1/queues/orders")["settings"]
        assert (settings["lease"], settings["retention"], settings["tags"]) == (45, None, {"team": "it's ours"})
        assert settings["backoff"]["base_ms"] == 2000
        page.value("location.hash = '#/sessions'")
        shows(page, "worker")
        press(page, "End…")
        assert "2 messages released" in _paste(page)
        assert _channel(server, "orders")["leased"] == 0


def test_commands_work_with_credentials(browser: Browser, serve: Callable[..., Server]) -> None:
    server = serve("[[credentials]]\naccess_key = 'A'\nsecret_key = 'a long secret'\ntoken = 'all of it'")
    with server.client(headers={"authorization": "Bearer all of it"}) as client, browser.open(server.url) as page:
        client.post("/v1/sessions", json={"name": "worker"})
        press(page, "Token")
        write(page, "input[type=password]", "all of it")
        press(page, "Sign in")
        press(page, "Create queue")
        labelled(page, "Name", "mine")
        command = shown_command(page)
        assert "all of it" not in command
        pasted(command, PENSTOCK_TOKEN="all of it")
        assert server.call(ListQueues()) == ["mine"]
        press(page, "Cancel", "dialog")
        page.value("location.hash = '#/sessions'")
        shows(page, "worker")
        press(page, "End…")
        assert element("End the session", "dialog")
        assert "0 messages released" in pasted(shown_command(page), PENSTOCK_TOKEN="all of it")
