"""The process that gets killed: threads that send, receive, settle and move messages, and log what they were told.

Each line of the log is one `write` to a file opened for appending, so it is there after a kill, whole, and in order:

    S n …     these numbers are about to be sent             s n …     … were acknowledged as sent
    A n …     these are about to be acknowledged as done     a n …     … the acknowledgement was confirmed
    M n …     these are about to be moved (unit of work)     m n …     … the unit of work was confirmed
    F g n …   FIFO: numbers of group g about to be acked     f g n …   … confirmed
    R n r     this number was received, with this receipt    x n       … which was refused in a later life

What was received with a receipt is acknowledged in the next life of the process, before anybody else can get it. In
every third life nothing else is done than to receive so: where nobody waits for a commit, a crash forgets the most.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock

LEASE_SECONDS = 0.3
HELD_SECONDS = 3_600.0
"""The lease of what is acknowledged in another life: it does not run out in between."""
WAIT_SECONDS = 0.05
GROUPS = 3


class Log:
    """Lines that survive the process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, kind: str, *words: object) -> None:
        os.write(self._descriptor, f"{kind} {' '.join(map(str, words))}\n".encode())


class Load:
    """What the threads do until the end comes."""

    def __init__(self, ps: Any, log: Log, first_number: int) -> None:
        self.ps = ps
        self.log = log
        self._next = first_number
        self._lock = threading.Lock()

    def _numbers(self, count: int) -> range:
        with self._lock:
            first, self._next = self._next, self._next + count
        return range(first, first + count)

    def send(self, rng: random.Random) -> None:
        numbers = self._numbers(rng.choice([1, 1, 5, 100]))
        self.log.write("S", *numbers)
        if len(numbers) == 1:
            self.ps.queue("in").send(b"%d" % numbers[0], priority=rng.choice([0, 5]))
        else:
            self.ps.queue("in").send_many([b"%d" % number for number in numbers])
        self.log.write("s", *numbers)

    def consume(self, rng: random.Random) -> None:
        batch = self.ps.queue("in").receive(max=rng.choice([1, 10, 100]), wait=WAIT_SECONDS, lease=LEASE_SECONDS)
        for message in batch:
            if rng.random() < 0.1:
                message.release(error="not today")
                continue
            self.log.write("A", int(message.body))
            message.ack()
            self.log.write("a", int(message.body))

    def consume_runs(self, rng: random.Random) -> None:
        batch = self.ps.queue("in").receive_batch(max=200, wait=WAIT_SECONDS, lease=LEASE_SECONDS)
        if len(batch):
            numbers = [int(bytes(body)) for body in batch.bodies]
            self.log.write("A", *numbers)
            batch.ack()
            self.log.write("a", *numbers)

    def move(self, rng: random.Random) -> None:
        with self.ps.unit_of_work() as work:
            taken = work.take_many("in", 3)
            numbers = [int(message.body) for message in taken]
            for number in numbers:
                work.put("out", b"%d" % number)
            if numbers and rng.random() < 0.8:
                self.log.write("M", *numbers)
                work.commit()
                self.log.write("m", *numbers)

    def send_line(self, rng: random.Random) -> None:
        numbers = self._numbers(rng.choice([1, 5]))
        group = f"g{rng.randrange(GROUPS)}"
        self.log.write("S", *numbers)
        bodies = [b"%d" % number for number in numbers]
        ids = [str(number) for number in numbers]
        self.ps.queue("line").send_many(bodies, groups=[group] * len(numbers), dedup_ids=ids)
        self.log.write("s", *numbers)

    def consume_line(self, rng: random.Random) -> None:
        for message in self.ps.queue("line").receive(max=5, wait=WAIT_SECONDS, lease=LEASE_SECONDS):
            self.log.write("F", message.group, int(message.body))
            message.ack()
            self.log.write("f", message.group, int(message.body))

    def send_held(self, rng: random.Random) -> None:
        numbers = self._numbers(rng.choice([1, 3, 100]))
        self.log.write("S", *numbers)
        self.ps.queue("held").send_many([b"%d" % number for number in numbers])
        self.log.write("s", *numbers)

    def hold(self, rng: random.Random) -> None:
        for message in self.ps.queue("held").receive(max=rng.choice([1, 5]), wait=WAIT_SECONDS, lease=HELD_SECONDS):
            self.log.write("R", int(message.body), message.receipt)
        time.sleep(0.002)

    def settle_held(self, held: list[tuple[int, str]]) -> None:
        """Acknowledge what was received in the life before. Its leases have ended, and nobody has it since."""
        for number, receipt in held:
            self.log.write("A", number)
            try:
                self.ps.queue("held").ack(receipt)
            except penstock.ReceiptRefused:
                self.log.write("x", number)
            else:
                self.log.write("a", number)


def _for_ever(work: Callable[[random.Random], None], seed: str) -> None:
    rng = random.Random(seed)
    while True:
        with contextlib.suppress(penstock.ReceiptRefused, penstock.WorkRefused):
            work(rng)


def run(directory: Path, log_path: Path, seed: int, first_number: int, held: list[tuple[int, str]], ready: Any) -> None:
    """Open, make load, and never come back. In every other life the table is written while the load runs."""
    options: dict[str, Any] = {"apply_after_seconds": 0.01, "apply_written_bytes": 20_000} if seed % 2 else {}
    with penstock.open(directory, **options) as ps:
        ps.create_queue("in", max_receives=0)
        ps.create_queue("out", max_receives=0)
        ps.create_queue("line", kind="fifo", max_receives=0)
        ps.create_queue("held", max_receives=0)
        load = Load(ps, Log(log_path), first_number)
        load.settle_held(held)
        works = [load.send, load.send, load.consume, load.consume_runs, load.move, load.send_line, load.consume_line]
        works += [load.send_held, load.hold]
        if seed % 3 == 0:
            for _ in range(20):
                load.send_held(random.Random(seed))
            works = [load.hold]
        for index, work in enumerate(works):
            threading.Thread(target=_for_ever, args=(work, f"{seed}-{index}"), daemon=True).start()
        ready.set()
        threading.Event().wait()
