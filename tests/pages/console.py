"""The console as a person uses it: what can be read, pressed and typed. A server with something to see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.package import PACKAGE
from tests.pages.browser import Page
from tests.protocols.rest.serving import Server

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "console"


def fill(server: Server) -> None:
    """`orders` with five messages and a delayed one, and `mail` with six dead letters in two groups."""
    with server.client() as client:
        client.post("/v1/queues", json={"name": "mail", "settings": {"max_receives": 1}})
        orders = [
            {"body": json.dumps({"order": number, "items": ["tea", "cake"]}), "attributes": {"table": number}}
            for number in range(5)
        ]
        client.post("/v1/queues/orders/messages", json=[*orders, {"body": "later", "delay": 3600}])
        client.put("/v1/queues/orders/consumers/indexer", json={"offset": 2})
        client.post("/v1/queues/mail/messages", json=[{"body": f"letter {number}"} for number in range(6)])
        for number, message in enumerate(client.post("/v1/queues/mail/receive", json={"max": 6}).json()["messages"]):
            error = f"timeout after {number} s" if number < 4 else "no such address"
            client.post("/v1/queues/mail/release", json={"receipt": message["receipt"], "error": error})


def asked(server: Server, path: str) -> Any:
    """What the API says."""
    with server.client() as client:
        return client.get(path).json()


def shows(page: Page, text: str) -> None:
    """Wait until a text can be read on the page."""
    page.until(f"document.body.innerText.includes({json.dumps(text)})")


def reads(page: Page, selector: str) -> list[str]:
    """The texts of what is found."""
    return list(page.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.innerText)"))


def element(text: str, within: str = "body") -> str:
    """The expression for the button, or link, with this text."""
    where = f"[...document.querySelectorAll({json.dumps(within + ' button, ' + within + ' a')})]"
    return f"{where}.find((each) => each.innerText.trim() === {json.dumps(text)})"


def offers(page: Page, text: str, within: str = "body") -> bool:
    """Whether there is such a button, or link."""
    return bool(page.value(f"!!{element(text, within)}"))


def press(page: Page, text: str, within: str = "body") -> None:
    """Press a button, or follow a link, once it can be."""
    page.until(f"{element(text, within)} && !{element(text, within)}.disabled")
    page.value(f"{element(text, within)}.click()")


def write(page: Page, selector: str, text: str) -> None:
    """Type into a field, or choose."""
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
        " at.dispatchEvent(new Event(at.tagName === 'SELECT' ? 'change' : 'input', {bubbles: true})) })()"
    )


def key(page: Page, *keys: str) -> None:
    """Press keys, one after the other."""
    for each in keys:
        page.value(
            f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{key: {each!r}, bubbles: true}}))"
        )


def shown_command(page: Page) -> str:
    """The command line that the open dialogue shows."""
    return str(page.value("document.querySelector('dialog .cli code').textContent"))


def no_dialogue(page: Page) -> None:
    """Wait until what was asked for is done."""
    page.until("!document.querySelector('dialog')")


def pasted(command: str, status: int = 0, **environment: str) -> str:
    """Run a command line in a shell, as the page shows it. Returns what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = {**os.environ, "PATH": path, "PYTHONPATH": str(PACKAGE), **environment}
    ended = subprocess.run(["bash", "-c", command], env=found, capture_output=True, text=True, timeout=120)
    assert ended.returncode == status, f"{command}: {ended.stdout[-500:]} {ended.stderr[-2000:]}"
    return ended.stdout + ended.stderr
