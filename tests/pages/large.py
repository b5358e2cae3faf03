"""The console over very many queues: `python -m tests.pages.large [--queues 100000] [--messages 10000000]`.

Fills a directory, serves it in a process of its own, opens the console in a browser, and says how long a person waits
for what, how much of a core the server spends on one open page, and how much memory it has. docs/console.md has the
figures of a run. It takes minutes, and some gigabytes of disk.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

import penstock
from tests.pages.browser import Browser, Page
from tests.pages.console import key, press, shows, write
from tests.server import serving

BATCH = 10_000
LARGE = "queue-000042"
serving.PATIENCE_S = 900.0


def fill(directory: Path, queues: int, messages: int) -> None:
    """Half of the messages are in one queue, the others spread over a thousand."""
    began = time.monotonic()
    with penstock.open(directory) as store:
        with ThreadPoolExecutor(64) as threads:  # They share commits.
            for _ in threads.map(lambda number: store.create_queue(f"queue-{number:06}"), range(queues)):
                pass
        print(f"{queues:,} queues created in {time.monotonic() - began:.0f} s", flush=True)
        bodies = [f'{{"order": {number}, "items": ["tea", "cake"]}}'.encode() for number in range(BATCH)]
        for batch in range(messages // BATCH):
            name = LARGE if batch % 2 else f"queue-{batch % 1_000:06}"
            store.queue(name).send_many(bodies)
    print(f"{messages:,} messages sent in {time.monotonic() - began:.0f} s", flush=True)


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def memory_mib(pid: int) -> float:
    """What a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def timed(what: str, act: Callable[[], object]) -> None:
    """Print how long it takes."""
    began = time.monotonic()
    act()
    print(f"| {what} | {time.monotonic() - began:.2f} s |", flush=True)


def look(page: Page, server_pid: int) -> None:
    """What somebody does on the page."""
    rows = "[...document.querySelectorAll('.queues tbody td.name')].map((each) => each.innerText)"
    timed("the list of queues is there", lambda: page.until(f"{rows}.length === 100"))
    timed("sorted by ready messages", lambda: (press(page, "ready", ".queues"), page.until(f"{rows}[0] === '{LARGE}'")))
    timed(
        "filtered by a part of the name", lambda: (write(page, ".search", "09999"), page.until(f"{rows}.length < 100"))
    )
    write(page, ".search", "")
    page.until(f"{rows}.length === 100")
    took = page.value(
        "new Promise((resolve) => { const took = []; let last = performance.now(), at = 0;"
        " const step = () => { const now = performance.now(); took.push(now - last); last = now;"
        " scrollTo(0, (at += 40) % (document.body.scrollHeight - innerHeight));"
        " took.length < 300 ? requestAnimationFrame(step) : resolve(took) }; requestAnimationFrame(step) })"
    )
    took.sort()
    print(f"| frames while scrolling: median, 95th | {took[150]:.1f} ms, {took[285]:.1f} ms |", flush=True)
    before, began = cpu_seconds(server_pid), time.monotonic()
    time.sleep(20)
    share = (cpu_seconds(server_pid) - before) / (time.monotonic() - began)
    print(f"| the server's work for the open overview | {share:.1%} of a core |", flush=True)
    page.value(f"location.hash = '#/queues/{LARGE}'")
    timed("the queue with half of the messages", lambda: shows(page, "Age of the queue"))
    page.value(f"location.hash = '#/queues/{LARGE}/messages'")
    messages = "document.querySelectorAll('.messages tbody tr').length"
    timed("its first messages", lambda: page.until(f"{messages} === 50"))
    write(page, ".filters select", "path")
    write(page, ".search", "$.order")
    write(page, ".filters .value", "9999")
    found = f"{messages} > 0 && document.querySelector('.messages .start').innerText.includes('9999')"
    timed("the first messages found by a JSON path, one in 10,000", lambda: (press(page, "Search"), page.until(found)))
    print(f"| of them | {page.value(messages)} |")
    key(page, "g", "d")
    timed("dead letters of all queues", lambda: shows(page, "No message has failed for good"))


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=10_000_000)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="penstock-large-"))
    try:
        fill(directory / "data", options.queues, options.messages)
        began = time.monotonic()
        with serving.served(directory) as server:
            print(f"| the server starts | {time.monotonic() - began:.2f} s |", flush=True)
            url = f"http://127.0.0.1:{server.ports['http']}"
            pid = server.process.pid
            timed("the first look at all queues, by the API", lambda: httpx.get(f"{url}/v1/overview", timeout=120))
            browser = Browser()
            try:
                with browser.open(url) as page:
                    look(page, pid)
                    print(f"| the server's memory | {memory_mib(pid):.0f} MiB |")
                    print("the browser complains:", page.complaints)
            finally:
                browser.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
