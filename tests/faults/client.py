"""The client process that faults happen to: senders, units of work, listeners, an outbox with its relay and an inbox.

It logs what it is about to do and what it was told, a line each, so that the lines are there after a kill:

    S n …       these numbers are about to be sent           s n …    … were acknowledged
                                                             n n …    … certainly were not sent: `NotSent`
    T q n …     about to be sent to the at-most queue q
    H q n       the handler of the at-most queue q got number n
    X text      something that must not happen

`in` is moved to `middle` by units of work, `middle` to `out` by a listener. `line` is FIFO, with a group for each
remainder of the numbers by three; a listener moves it to `sorted`. Orders are rows of the user's own database, whose
messages go through its outbox to `jobs`, where a listener writes their effects into the same database.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, event, insert

import penstock
from penstock.outbox import Inbox, Outbox, Relay
from tests.kill.child import Log

T = TypeVar("T")

LEASE_SECONDS = 2.0
WAIT_SECONDS = 0.3
AT_MOST = {"once": 1, "twice": 2}
"""Queue -> how often each message may be handled."""
GROUPS = 3
DRAINED = ("in", "middle", "line", "jobs", *AT_MOST)
EXPECTED = (penstock.ConnectionLost, penstock.WorkRefused, penstock.ReceiptRefused, penstock.SessionNotFound)

metadata = MetaData()
orders = Table("orders", metadata, Column("number", Integer, primary_key=True))
effects = Table(
    "effects", metadata, Column("id", Integer, primary_key=True, autoincrement=True), Column("number", Integer)
)


class HandlerFails(Exception):
    """A handler that fails now and then, on purpose."""


def engine_of(url: str) -> Engine:
    """The user's database."""
    engine = create_engine(url, connect_args={"timeout": 30} if url.startswith("sqlite") else {})
    if url.startswith("sqlite"):

        @event.listens_for(engine, "connect")
        def set_up(connection: Any, record: Any) -> None:
            connection.execute("PRAGMA journal_mode = WAL")

    return engine


class Client:
    """What the threads of the process do."""

    def __init__(self, ps: penstock.Penstock, log: Log, engine: Engine, seed: int, first_number: int) -> None:
        self.ps = ps
        self.log = log
        self.engine = engine
        self.outbox = Outbox()
        self.inbox = Inbox()
        self.rng = random.Random(seed)
        self._next = first_number
        self._lock = threading.Lock()

    def prepare(self) -> None:
        for table in (metadata, self.outbox.metadata, self.inbox.metadata):
            table.create_all(self.engine)
        for queue in ("in", "middle", "out", "jobs", "sorted"):
            self.ps.create_queue(queue, max_receives=0, lease=LEASE_SECONDS)
        self.ps.create_queue("line", kind="fifo", max_receives=0, lease=LEASE_SECONDS)
        self.ps.create_queue("once", policy="consume_once", lease=LEASE_SECONDS)
        self.ps.create_queue("twice", policy="consume_times", consume_times=2, lease=LEASE_SECONDS)

    def numbers(self, count: int) -> range:
        with self._lock:
            first, self._next = self._next, self._next + count
        return range(first, first + count)

    # -- what goes in --

    def send(self, rng: random.Random) -> None:
        numbers = self.numbers(rng.choice([1, 1, 1, 5, 50]))
        self.log.write("S", *numbers)
        with self.answer_logged(numbers):
            if len(numbers) == 1:
                self.ps.queue("in").send(b"%d" % numbers[0])
            else:
                self.ps.queue("in").send_many([b"%d" % number for number in numbers])
        time.sleep(rng.random() * 0.03)

    def send_in_line(self, rng: random.Random) -> None:
        (number,) = self.numbers(1)
        self.log.write("S", number)
        with self.answer_logged([number]):
            self.ps.queue("line").send(b"%d" % number, group=f"g{number % GROUPS}", dedup_id=str(number))
        time.sleep(rng.random() * 0.03)

    @contextmanager
    def answer_logged(self, numbers: Iterable[int]) -> Iterator[None]:
        try:
            yield
        except penstock.NotSent:
            self.log.write("n", *numbers)
            raise
        self.log.write("s", *numbers)

    def send_at_most(self, rng: random.Random) -> None:
        queue = rng.choice(list(AT_MOST))
        numbers = self.numbers(rng.choice([1, 3]))
        self.log.write("T", queue, *numbers)
        self.ps.queue(queue).send_many([b"%d" % number for number in numbers])
        time.sleep(rng.random() * 0.03)

    def order(self, rng: random.Random) -> None:
        (number,) = self.numbers(1)
        try:
            with self.engine.begin() as connection:
                connection.execute(insert(orders).values(number=number))
                self.outbox.send(connection, "jobs", b"%d" % number, group=rng.choice([None, "a", "b"]))
                if rng.random() < 0.1:
                    raise HandlerFails
        except HandlerFails:
            pass
        time.sleep(rng.random() * 0.03)

    # -- what goes through --

    def move(self, rng: random.Random) -> None:
        with self.ps.unit_of_work() as work:
            taken = work.take_many("in", rng.choice([1, 10, 100]), wait=WAIT_SECONDS, lease=LEASE_SECONDS)
            for message in taken:
                work.put("middle", message.body)
            if taken and rng.random() < 0.9:
                work.commit()

    def listen(self) -> None:
        insist(lambda: self.ps.listen("middle", self.pass_on("out"), workers=4, name="middle"))
        insist(lambda: self.ps.listen("line", self.pass_on("sorted"), workers=4, name="line"))
        insist(lambda: self.ps.listen("jobs", self.work_once, workers=2))
        for queue in AT_MOST:
            insist(partial(self.ps.listen, queue, self.at_most_handler(queue), workers=2, name=queue))

    def pass_on(self, queue: str) -> Callable[[penstock.Message, penstock.UnitOfWork], None]:
        def handle(message: penstock.Message, tx: penstock.UnitOfWork) -> None:
            tx.put(queue, message.body)
            self.fail_at_times()

        return handle

    def work_once(self, message: penstock.Message) -> None:
        with self.engine.begin() as connection:
            if self.inbox.once(connection, message):
                connection.execute(insert(effects).values(number=int(message.body)))
            self.fail_at_times()

    def at_most_handler(self, queue: str) -> Callable[[penstock.Message], None]:
        def handle(message: penstock.Message) -> None:
            self.log.write("H", queue, int(message.body))
            self.fail_at_times()

        return handle

    def fail_at_times(self) -> None:
        if self.rng.random() < 0.05:
            raise HandlerFails("not today")

    # -- threads --

    def keep(self, work: Callable[[random.Random], None], seed: str) -> None:
        """Do something again and again. What faults may bring is expected; anything else is reported."""

        def run() -> None:
            rng = random.Random(seed)
            while True:
                try:
                    work(rng)
                except EXPECTED:
                    time.sleep(0.01)
                except Exception:
                    self.log.write("X", " | ".join(traceback.format_exc().splitlines()))
                    time.sleep(0.1)

        threading.Thread(target=run, daemon=True).start()

    def is_drained(self) -> bool:
        for queue in DRAINED:
            channel = self.ps.queue(queue).stats().channels["main"]
            if channel.ready + channel.leased + channel.delayed:
                return False
        with self.engine.connect() as connection:
            return not self.outbox.status(connection).pending


def insist(do: Callable[[], T]) -> T:
    """Do something that needs the server, however long it takes."""
    while True:
        try:
            return do()
        except penstock.ConnectionLost:
            time.sleep(0.05)


def main(arguments: dict[str, Any]) -> None:
    """Make load and never come back; or, to drain, only let through what is there, and end when that is done."""
    log, seed = Log(Path(arguments["log"])), arguments["seed"]
    options: dict[str, Any] = {"heartbeat": 0.5, "connect_timeout": 2, "timeout": 20}
    ps = insist(lambda: penstock.connect(arguments["url"], transport=arguments["transport"], **options))
    client = Client(ps, log, engine_of(arguments["database"]), seed, arguments["first_number"])
    insist(client.prepare)
    client.listen()
    Relay(client.engine, ps, client.outbox, batch=20, poll=0.05, claim=1.0).start()
    client.keep(client.move, f"{seed}-move")
    if arguments["drain"]:
        while not insist(client.is_drained):
            time.sleep(0.05)
        ps.close()
        return
    for index, work in enumerate([client.send, client.send, client.send_in_line, client.send_at_most, client.order]):
        client.keep(work, f"{seed}-{index}")
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
