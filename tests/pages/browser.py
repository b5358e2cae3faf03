"""A real browser for the pages that Penstock makes: Debian's Chromium without a window, led by its debugging protocol.

The protocol is JSON over a websocket: commands with numbers, their answers, and events in between. A `Page` keeps what
the browser complains of (errors of scripts, the console, the content policy, what could not be loaded) and every
address that it asked for. Names of hosts lead nowhere: only this machine's addresses can be reached, and `NAME` leads
to this machine as if somebody had made it.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

from tests.programs import needed

PATIENCE_S = 60.0
NAME = "evil.example"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    f"--host-resolver-rules=MAP {NAME} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
    "--window-size=1280,900",
)
_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir>{root}/usr/share/fonts</dir><cachedir>{cache}</cachedir></fontconfig>
"""


class Browser:
    """A running Chromium, with a profile that nobody else has."""

    def __init__(self) -> None:
        self._program = needed("chromium")
        self._profile = Path(tempfile.mkdtemp(prefix="penstock-browser-"))
        self._log = self._profile / "log"
        self._process = self._start()
        try:
            self._address = self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        fonts = self._profile / "fonts.conf"
        fonts.write_text(_FONTS.format(root=self._program.root, cache=self._profile / "fonts"))
        environment = self._program.environment | {"HOME": str(self._profile), "FONTCONFIG_FILE": str(fonts)}
        command = [str(self._program.path), *_FLAGS, f"--user-data-dir={self._profile / 'data'}", "about:blank"]
        with open(self._log, "wb") as log:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _wait_until_ready(self) -> str:
        told, deadline = self._profile / "data" / "DevToolsActivePort", time.monotonic() + PATIENCE_S
        while not (told.exists() and len(told.read_text().split()) == 2):
            said = self._log.read_text(errors="replace")[-3_000:]
            assert self._process.poll() is None, f"the browser ended: {said}"
            assert time.monotonic() < deadline, f"the browser did not start: {said}"
            time.sleep(0.05)
        port, path = told.read_text().split()
        return f"ws://127.0.0.1:{port}{path}"

    def open(self, url: str, *, width: int = 1280, is_dark: bool = False) -> Page:
        """Load a page, in a tab of its own."""
        return Page(self._address, url, width, is_dark)

    def stop(self) -> None:
        """End it, with all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)


class Page:
    """A page in a tab. `with browser.open(url) as page: page.value("document.title")`."""

    def __init__(self, address: str, url: str, width: int, is_dark: bool) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._is_loaded = False
        self._number = 0
        self._session: str | None = None
        with ExitStack() as stack:
            self._socket = stack.enter_context(connect(address, max_size=None, open_timeout=PATIENCE_S))
            self._target = self._do("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._do("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
            self._load(url, width, is_dark)
            self._kept = stack.pop_all()

    def _load(self, url: str, width: int, is_dark: bool) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._do(f"{domain}.enable")
        self._do("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._do("Emulation.setEmulatedMedia", features=[scheme])
        went = self._do("Page.navigate", url=url)
        assert "errorText" not in went, went
        self.until(lambda: self._is_loaded and self.value("document.readyState") == "complete")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        with self._kept:
            self._session = None
            self._do("Target.closeTarget", targetId=self._target)

    def value(self, expression: str) -> Any:
        """What an expression comes to in the page; a promise, what it is kept with."""
        came = self._do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in came, came["exceptionDetails"]
        return came["result"].get("value")

    def until(self, condition: Any) -> None:
        """Wait until it holds: a function, or an expression in the page."""
        deadline = time.monotonic() + PATIENCE_S
        while not (condition() if callable(condition) else self.value(condition)):
            assert time.monotonic() < deadline, f"it did not come true; the browser complains: {self.complaints}"
            self.value("new Promise((resolve) => setTimeout(resolve, 20))")

    def be_in(self, zone: str) -> None:
        """Stand in another time zone."""
        self._do("Emulation.setTimezoneOverride", timezoneId=zone)

    def screenshot(self) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self._do("Page.captureScreenshot", format="png")["data"])

    def _do(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        self._socket.send(json.dumps(command))
        while True:
            message = json.loads(self._socket.recv(PATIENCE_S))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            if "method" in message:
                self._note(message["method"], message["params"])

    def _note(self, event: str, what: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._is_loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(what["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(what["args"]))
        elif event == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{what['entry']['text']} ({what['entry'].get('url', '')})")
