"""The console over very many queues: `python -m tests.pages.large [--queues 100000] [--messages 10000000]`.

Fills a directory (once, if it is named), serves it in a process of its own, opens the console in a browser, and prints
for each thing that a person does how long he waits, and how long the server's loop stands still meanwhile: `/healthz`
is asked every 10 ms over a connection of its own, by a process of its own. What the server's threads compute while one
answer is awaited says how much of that is its own doing, and not that of a busy machine. Then frames, processor time
and memory.
docs/console.md has the figures of a run. Filling takes minutes, and some gigabytes of disk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import httpx

import penstock
from tests.pages.browser import Browser, Page
from tests.pages.console import press, write
from tests.server import serving

BATCH = 10_000
LARGE = "queue-000042"
ERRORS = ("timeout after {} ms", "no such address: 'a{}@example.com'", "HTTP 503 from 10.0.0.{}", "order {} is unknown")
serving.PATIENCE_S = 900.0


def fill(directory: Path, queues: int, messages: int) -> None:
    """Half of the messages are in one queue, the others spread over a thousand. A tenth of all have failed for good."""
    began = time.monotonic()
    with penstock.open(directory) as store:

        def create(number: int) -> None:
            name = f"queue-{number:06}"
            store.create_queue(name, max_receives=1 if name == LARGE else 3)

        with ThreadPoolExecutor(64) as threads:  # They share commits.
            for _ in threads.map(create, range(queues)):
                pass
        print(f"{queues:,} queues created in {time.monotonic() - began:.0f} s", flush=True)
        bodies = [f'{{"order": {number}, "items": ["tea", "cake"]}}'.encode() for number in range(BATCH)]
        for batch in range(messages // BATCH):
            name = LARGE if batch % 2 else f"queue-{batch % 1_000:06}"
            store.queue(name).send_many(bodies)
        for batch in range(messages // BATCH // 10):
            received = store.queue(LARGE).receive_batch(BATCH)
            for part in range(100):
                some = received[part * BATCH // 100 : (part + 1) * BATCH // 100]
                some.release(error=ERRORS[(part + batch) % len(ERRORS)].format(part))
    print(f"{messages:,} messages sent in {time.monotonic() - began:.0f} s", flush=True)


def computed_s(pid: int) -> float:
    """The processor time that all threads of a process have used."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


def probe(port: int, pid: int, told: Connection) -> None:
    """Ask `/healthz` every 10 ms until it is told to end; at every other word, say how long each answer took, and for
    how long the server has computed meanwhile."""
    took: list[tuple[float, float]] = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while True:
            before_s, began = computed_s(pid), time.monotonic()
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            while not connection.recv(65_536):
                pass
            seconds = time.monotonic() - began
            took.append((seconds, computed_s(pid) - before_s))
            if told.poll(max(0.0, 0.01 - seconds)):
                if not told.recv():
                    return
                told.send(took)
                took = []


class Stalls:
    """How long the server lets `/healthz` wait."""

    def __init__(self, told: Connection) -> None:
        self._told = told

    def since(self) -> tuple[list[float], float]:
        """Milliseconds of each answer since it was asked before, the longest last; and the most computed in one."""
        self._told.send(True)
        took = self._told.recv()
        return sorted(seconds * 1_000 for seconds, _ in took), max(computed for _, computed in took) * 1_000

    def timed(self, what: str, act: Callable[[], object]) -> None:
        """Print how long it takes, and how long others wait."""
        self.since()
        began = time.monotonic()
        act()
        seconds = time.monotonic() - began
        self.tell(what, f"{seconds:.2f} s")

    def tell(self, what: str, value: str) -> None:
        """Print a row, with what others have waited."""
        waited, computed = self.since()
        cells = what, value, *(f"{ms:.0f} ms" for ms in (waited[len(waited) * 99 // 100], waited[-1], computed))
        print("|", " | ".join(cells), "|", flush=True)


@contextmanager
def stalls_of(port: int, pid: int) -> Iterator[Stalls]:
    """Probe a server."""
    mine, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=probe, args=(port, pid, its), daemon=True)
    process.start()
    yield Stalls(mine)
    mine.send(False)
    process.join()


def memory_mib(pid: int) -> float:
    """What a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


ROWS = "[...document.querySelectorAll('.queues tbody td.name')].map((each) => each.innerText)"
MESSAGES = "document.querySelectorAll('.messages tbody tr').length"


def look_at_all(page: Page, server_pid: int, stalls: Stalls) -> None:
    """What somebody does on the overview."""
    header = "[...document.querySelectorAll('.queues .sort')].find((each) => each.innerText.startsWith({!r})).click()"

    def sort(column: str, first: str) -> None:
        page.value(header.format(column))
        page.until(f"{ROWS}[0] === '{first}'")

    stalls.timed("the list of queues is there", lambda: page.until(f"{ROWS}.length === 100"))
    stalls.timed("sorted by ready messages", lambda: sort("ready", LARGE))
    stalls.timed("sorted by name", lambda: sort("name", "queue-000000"))
    stalls.timed("sorted by dead letters", lambda: sort("dead", LARGE))
    stalls.timed("the next 100", lambda: (press(page, "Next"), page.until(f"{ROWS}[0] !== '{LARGE}'")))
    stalls.timed(
        "filtered by a part of the name", lambda: (write(page, ".search", "09999"), page.until(f"{ROWS}.length < 100"))
    )
    write(page, ".search", "")
    page.until(f"{ROWS}.length === 100")
    took = page.value(
        "new Promise((resolve) => { const took = []; let last = performance.now(), at = 0;"
        " const step = () => { const now = performance.now(); took.push(now - last); last = now;"
        " scrollTo(0, (at += 40) % (document.body.scrollHeight - innerHeight));"
        " took.length < 300 ? requestAnimationFrame(step) : resolve(took) }; requestAnimationFrame(step) })"
    )
    took.sort()
    stalls.tell("frames while scrolling: median, 95th of 100", f"{took[150]:.1f} ms, {took[285]:.1f} ms")
    before, began = computed_s(server_pid), time.monotonic()
    time.sleep(20)
    share = (computed_s(server_pid) - before) / (time.monotonic() - began)
    stalls.tell("the server's work for the open overview", f"{share:.1%} of a core")


def look_at_one(page: Page, stalls: Stalls) -> None:
    """What somebody does with the queue that has half of the messages."""

    def go(part: str, shown: str) -> None:
        page.value(f"location.hash = '#/queues/{LARGE}{part}'")
        page.until(shown)

    stalls.timed("the queue with half of the messages", lambda: go("", "document.body.innerText.includes('Sent ever')"))
    stalls.timed("its first messages", lambda: go("/messages", f"{MESSAGES} === 50"))
    write(page, ".filters select", "text")
    write(page, ".search", '"order": 9999,')
    found = f"{MESSAGES} > 0 && document.querySelector('.messages .start').innerText.includes('9999')"
    stalls.timed("the first messages found by text, one in 10,000", lambda: (press(page, "Search"), page.until(found)))
    write(page, ".search", "coffee")
    none = "document.querySelector('.empty')?.innerText.startsWith('No')"
    stalls.timed("a text that no message has", lambda: (press(page, "Search"), page.until(none)))
    print(f"| it says | {page.value('document.querySelector(`.empty`).innerText')} | | | |")
    write(page, ".filters select", "path")
    write(page, ".search", "$.order")
    write(page, ".filters .value", "9999")
    stalls.timed("the first messages found by a JSON path", lambda: (press(page, "Search"), page.until(found)))


def look_at_the_dead(page: Page, stalls: Stalls) -> None:
    """What somebody does with a million dead letters."""
    groups = "[...document.querySelectorAll('.group .count')].map((each) => each.innerText)"

    def group() -> None:
        page.value(f"location.hash = '#/queues/{LARGE}/dead'")
        page.until(f"{groups}.length === {len(ERRORS)}")

    stalls.timed("its dead letters in groups", group)
    print(f"| the groups | {' + '.join(page.value(groups))} | | | |")
    letters = "document.querySelectorAll('.letters tbody tr').length === 100"
    opened = "document.querySelector('.group .link').click()"
    stalls.timed("a group is opened", lambda: (page.value(opened), page.until(letters)))
    button = "document.querySelector('dialog button[type=submit]')"

    def count() -> None:
        press(page, "Redrive…", ".group")
        page.until(f"{button} && !{button}.disabled")

    def redrive() -> None:
        page.value(f"{button}.click()")
        page.until("!!document.querySelector('.redrive .tag.done')")

    stalls.timed("its messages are counted", count)
    print(f"| the button says | {page.value(f'{button}.innerText')} | | | |")
    stalls.timed("it is redriven", redrive)
    print(f"| it says | {page.value('document.querySelector(`.redrive`).innerText')!r} | | | |")
    page.value("location.hash = '#/dead'")
    first = f"document.querySelector('td.name')?.innerText === '{LARGE}'"
    stalls.timed("the queues with dead letters", lambda: page.until(first))


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--data", type=Path, help="a directory that is filled once, and kept: a copy is served")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="penstock-large-"))
    try:
        if options.data is not None:
            if not options.data.exists():
                fill(options.data, options.queues, options.messages)
            shutil.copytree(options.data, directory / "data")
        else:
            fill(directory / "data", options.queues, options.messages)
        began = time.monotonic()
        with serving.served(directory) as server, stalls_of(server.ports["http"], server.process.pid) as stalls:
            print("| what | how long | `/healthz` waits: 99th of 100 | longest | the server computes in one |")
            print(f"| the server starts | {time.monotonic() - began:.2f} s | | | |", flush=True)
            url = f"http://127.0.0.1:{server.ports['http']}"
            pid = server.process.pid
            stalls.timed(
                "the first look at all queues, by the API", lambda: httpx.get(f"{url}/v1/overview", timeout=120)
            )
            browser = Browser()
            try:
                with browser.open(url) as page:
                    look_at_all(page, pid, stalls)
                    look_at_one(page, stalls)
                    look_at_the_dead(page, stalls)
                    print(f"| the server's memory | {memory_mib(pid):.0f} MiB | | | |")
                    print("the browser complains:", page.complaints)
            finally:
                browser.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
