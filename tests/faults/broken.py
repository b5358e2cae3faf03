"""Connections that break after exactly so many bytes: what a client does then, operation by operation.

An operation is a generator. It prepares its own queue, yields what is to be done while the connection breaks, is sent
what came of it, and checks that: done once, with nothing lost. A sweep does it over and over, cut at another byte each
time. The tests do that at a few bytes which a seed has chosen; at every byte it takes half an hour:

    python -m tests.faults.broken [--most N] [--seed S] [--transport websocket] [OPERATION ...]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import penstock
from penstock.client.remote.address import TRANSPORTS, TransportName
from penstock.core.storage.chunk import Chunk
from penstock.spark import server
from penstock.spark.errors import ServerFailed
from penstock.spark.options import Where
from penstock.spark.place import Part, Range
from penstock.spark.rows import forget, publish
from penstock.spark.server import Connection, ServerPlace
from penstock.wire.arrow import BASE_COLUMNS
from penstock.wire.pieces import CONTENT_TYPE, Target, encode_section
from tests.client.node import ThreadedNode
from tests.faults.proxy import DIRECTIONS, ENDINGS, Cut, Direction, Proxy

DEADLINE_SECONDS = 60
CALL_SECONDS = 30
LONG_SECONDS = 600
SETTINGS = """
[websocket]
heartbeat_s = 300
session_ttl_s = 300
"""
"""Nobody speaks by himself: the bytes are those of the operation."""


@dataclass(frozen=True)
class Outcome:
    """What came of an act: a value, or an error."""

    value: Any = None
    error: BaseException | None = None

    def done(self) -> Any:
        """What it gave. The client can reach the server again at once, so there is no reason to fail."""
        if self.error is not None:
            raise self.error
        return self.value

    def was_refused(self, *kinds: type[BaseException]) -> bool:
        """Whether it failed as it may; any other failure is raised."""
        if isinstance(self.error, kinds):
            return True
        self.done()
        return False


class Bench:
    """A server, a way to it that breaks, and a client beside that way, which sees what is really there."""

    def __init__(self, directory: Path) -> None:
        self.node = ThreadedNode(directory, SETTINGS)
        self.proxy = Proxy(self.node.port)
        self.beside = penstock.connect(self.node.url, transport="websocket")
        self.ps: Any = None
        self.transport: TransportName | None = None
        self._names = 0

    @property
    def url(self) -> str:
        """Where the server is, by the way that breaks."""
        return f"penstock://127.0.0.1:{self.proxy.port}"

    def connect(self, **options: Any) -> penstock.Penstock:
        """A client on the way that breaks. It hears of nothing by itself for a long time."""
        return penstock.connect(self.url, timeout=CALL_SECONDS, heartbeat=300, **options)

    def name(self) -> str:
        """A queue that was never there."""
        self._names += 1
        return f"queue-{self._names}"

    def close(self) -> None:
        """Stop everything."""
        self.beside.close()
        self.proxy.close()
        self.node.stop()


@contextmanager
def bench(directory: Path, transport: TransportName | None = None) -> Iterator[Bench]:
    """All that a sweep needs; with a transport, its client too. The Spark connector asks again sooner than usual."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(server, "_PAUSE_S_MIN", 0.002))
        made = Bench(directory)
        stack.callback(made.close)
        if transport is not None:
            made.transport = transport
            made.ps = stack.enter_context(made.connect(transport=transport))
        yield made


Act = Callable[[], Any]
Operation = Callable[[Any, str], Generator[Act, Outcome, None]]


class Broken(AssertionError):
    """A promise was not kept: of which operation, with which cut."""


def outcome_of(act: Act) -> Outcome:
    """What comes of an act, which must be over before the deadline."""
    done: Future[Outcome] = Future()

    def run() -> None:
        try:
            done.set_result(Outcome(act()))
        except BaseException as error:
            done.set_result(Outcome(error=error))

    threading.Thread(target=run, daemon=True).start()
    return done.result(DEADLINE_SECONDS)


def attempt(bench: Bench, operation: Operation, cut: Cut) -> None:
    """Do an operation once, with its connection cut. `Broken` says what was wrong."""
    doing = operation(bench, bench.name())
    try:
        act = next(doing)
        bench.proxy.cut_one(cut)
        outcome = outcome_of(act)
        bench.proxy.cut_one(None)
        for _ in resumed(doing, outcome):
            raise AssertionError("an operation does one thing")
        check_usable(bench)
    except Exception as error:
        raise Broken(f"{operation.__name__}, {cut}: {type(error).__name__}: {error}") from error
    finally:
        bench.proxy.cut_one(None)


def resumed(doing: Generator[Act, Outcome, None], outcome: Outcome) -> Iterator[Act]:
    """The rest of a generator."""
    try:
        yield doing.send(outcome)
    except StopIteration:
        return


def check_usable(bench: Bench) -> None:
    """The client goes on as if nothing had been, and by the same transport."""
    if bench.ps is not None:
        assert bench.ps.queue("usable").send(b"after all") is not None
        assert bench.ps.transport == bench.transport


def measure(bench: Bench, operation: Operation, direction: Direction) -> Cut:
    """Do an operation undisturbed, and count its bytes."""
    cut = Cut(direction, None)
    attempt(bench, operation, cut)
    return cut


def points(measured: Cut, most: int | None, rng: random.Random) -> list[int]:
    """After how many bytes to cut: all; or some, half of them where a piece begins or ends, or a byte beside that."""
    every = range(measured.passed + 1)
    if most is None or most >= len(every):
        return list(every)
    near = sorted({each + step for each in measured.boundaries for step in (-1, 0, 1)} & set(every))
    chosen = rng.sample(near, min(len(near), most // 2))
    between = [each for each in every if each not in near]
    return sorted(chosen + rng.sample(between, min(len(between), most - len(chosen))))


def sweep(bench: Bench, operation: Operation, *, most: int | None, seed: int = 1) -> Iterator[tuple[Cut, str]]:
    """Cut after one byte after the other, in each direction, and say what was wrong.

    With `most`, only after so many, each with one of the endings; else after all, with every ending.
    """
    rng = random.Random(f"{operation.__name__} {seed}")
    for direction in DIRECTIONS:
        measured = measure(bench, operation, direction)
        for after in points(measured, most, rng):
            for ending in ENDINGS if most is None else [rng.choice(ENDINGS)]:
                cut = Cut(direction, after, ending)
                try:
                    attempt(bench, operation, cut)
                    yield cut, ""
                except Broken as broken:
                    yield cut, str(broken)


def eventually(claim: Callable[[], Any], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not claim():
        assert time.monotonic() < deadline, f"it did not come true: {what}"
        time.sleep(0.005)


# -- what is really there ----------------------------------------------------------------------------------------------


def bodies(bench: Bench, queue: str) -> list[bytes]:
    """The messages of a queue that are not done."""
    return [message.body for message in bench.beside.queue(queue).browse(limit=1_000)]


def main_of(bench: Bench, queue: str) -> Any:
    """Counts of a queue's own channel."""
    return bench.beside.queue(queue).stats().channels["main"]


def taken(bench: Bench, queue: str) -> Any:
    """A message that the client holds."""
    bench.beside.create_queue(queue, lease=LONG_SECONDS, max_receives=100).send(b"tea")
    message = bench.ps.queue(queue).receive(wait=CALL_SECONDS)
    assert message is not None
    return message


# -- operations of the client ------------------------------------------------------------------------------------------


def create_queue(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    outcome = yield lambda: bench.ps.create_queue(queue, lease=77)
    assert outcome.done().name == queue
    assert bench.beside.queue(queue).info().config.lease_ms == 77_000


def delete_queue(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.create_queue(queue)
    outcome = yield lambda: bench.ps.queue(queue).delete()
    outcome.done()
    assert queue not in bench.beside.queues(prefix=queue)


def send_one(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    outcome = yield lambda: bench.ps.queue(queue).send(b"tea", attributes={"table": 7})
    sent = outcome.done()
    assert [message.id for message in bench.beside.queue(queue).browse()] == [sent.id]
    assert not sent.duplicate


def send_many(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    outcome = yield lambda: bench.ps.queue(queue).send_many([b"%d" % number for number in range(50)])
    ids = [sent.id for sent in outcome.done()]
    assert [message.id for message in bench.beside.queue(queue).browse(limit=1_000)] == ids
    assert bodies(bench, queue) == [b"%d" % number for number in range(50)]


def receive(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.create_queue(queue, lease=LONG_SECONDS, max_receives=100).send(b"tea")
    outcome = yield lambda: bench.ps.queue(queue).receive(wait=CALL_SECONDS)
    message = outcome.done()
    assert message is not None and message.body == b"tea"
    message.ack()
    assert bodies(bench, queue) == []
    assert main_of(bench, queue).acked == 1


def receive_nothing(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.create_queue(queue)
    outcome = yield lambda: bench.ps.queue(queue).receive(wait=0)
    assert outcome.done() is None


def ack(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    message = taken(bench, queue)
    outcome = yield message.ack
    outcome.done()
    assert bodies(bench, queue) == []
    assert main_of(bench, queue).acked == 1


def release(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    message = taken(bench, queue)
    outcome = yield lambda: message.release(delay=0, error="too hot")
    if not outcome.was_refused(penstock.StaleReceipt):
        outcome.done()
    again = bench.beside.queue(queue).receive(wait=CALL_SECONDS)
    assert again is not None and again.attempts == 2, again
    assert len(again.history) == 1
    again.ack()


def extend(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    message = taken(bench, queue)
    outcome = yield lambda: message.extend(2 * LONG_SECONDS)
    if not outcome.was_refused(penstock.StaleReceipt):
        outcome.done()
    bench.ps.queue(queue).ack(message.receipt)
    assert bodies(bench, queue) == []


def commit(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.create_queue(queue, lease=LONG_SECONDS, max_receives=100).send(b"tea")
    out = f"{queue}.out"
    with bench.ps.unit_of_work() as work:
        assert work.take(queue, wait=CALL_SECONDS) is not None
        work.put(out, b"cup")
        work.put(out, b"cake")
        outcome = yield work.commit
        outcome.done()
        assert work.state == "committed"
    assert bodies(bench, out) == [b"cup", b"cake"]
    assert bodies(bench, queue) == []


def rollback(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.create_queue(queue, lease=LONG_SECONDS, max_receives=100).send(b"tea")
    work = bench.ps.unit_of_work()
    assert work.take(queue, wait=CALL_SECONDS) is not None
    work.put(f"{queue}.out", b"cup")
    outcome = yield work.rollback
    outcome.done()
    assert f"{queue}.out" not in bench.beside.queues(prefix=queue)
    again = bench.beside.queue(queue).receive(wait=CALL_SECONDS)
    assert (
        again is not None and again.body == b"tea" and again.attempts in (1, 2)
    )  # given back, or released with the session
    again.ack()


def redrive(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.queue(queue).send_many([b"tea", b"cake"])
    out = f"{queue}.out"
    outcome = yield lambda: bench.ps.redrive(queue, to=out)
    assert outcome.done().wait(timeout=CALL_SECONDS)
    assert sorted(bodies(bench, out)) == [b"cake", b"tea"]
    assert bodies(bench, queue) == []
    assert len(bench.beside.redrives(queue)) == 1


def peek(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.queue(queue).send_many([b"tea", b"cake"])
    outcome = yield lambda: bench.ps.queue(queue).peek(10)
    assert [message.body for message in outcome.done()] == [b"tea", b"cake"]


def browse(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.queue(queue).send_many([b"tea", b"cake"])
    outcome = yield lambda: bench.ps.queue(queue).browse(after=0, limit=10)
    assert [message.body for message in outcome.done()] == [b"cake"]


def consumer_read(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.queue(queue).send_many([b"tea", b"cake"])
    outcome = yield lambda: bench.ps.queue(queue).consumer("report").read(max=10)
    records = outcome.done()
    assert [record.body for record in records] == [b"tea", b"cake"]
    assert records.next_offset == 2


def consumer_ack(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.queue(queue).send_many([b"tea", b"cake"])
    reader = bench.ps.queue(queue).consumer("report")
    outcome = yield lambda: reader.ack(2)
    outcome.done()
    assert bench.beside.queue(queue).consumer("report").offset == 2


def session(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    """A message whose delivery got lost is the session's all the same, and comes again when that ends."""
    bench.beside.create_queue(queue, lease=LONG_SECONDS, max_receives=100).send(b"tea")

    def hold() -> Any:
        with bench.ps.session("worker", ttl=LONG_SECONDS) as session:
            return session.queue(queue).receive(wait=0)

    outcome = yield hold
    outcome.done()
    assert main_of(bench, queue).leased == 0
    again = bench.beside.queue(queue).receive(wait=CALL_SECONDS)
    assert again is not None
    again.ack()


def listen(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.create_queue(queue, lease=LONG_SECONDS, max_receives=100).send(b"tea")
    out = f"{queue}.out"
    bench.beside.create_queue(out)

    def work() -> None:
        with bench.ps.listen(queue, lambda message, tx: tx.put(out, message.body), workers=1):
            eventually(lambda: bodies(bench, out), "the listener handled the message")

    outcome = yield work
    outcome.done()
    eventually(lambda: not bodies(bench, queue), "the listener's message is done")
    assert bodies(bench, out) == [b"tea"]


def receive_prefetched(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    """What was pushed before anybody asked for it, where messages are pushed."""
    bench.beside.create_queue(queue, lease=LONG_SECONDS, max_receives=100)
    with bench.connect(transport=bench.transport, prefetch=10) as ps:
        assert ps.queue(queue).receive(wait=0) is None

        def act() -> Any:
            bench.beside.queue(queue).send_many([b"tea", b"cake"])
            return [ps.queue(queue).receive(wait=CALL_SECONDS).body for _ in range(2)]

        outcome = yield act
        assert set(outcome.done()) <= {b"tea", b"cake"}


def route_and_send(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    """A client that goes to a queue's owner by itself."""
    with bench.connect(transport=bench.transport, routing="direct") as ps:
        ps.queue(f"{queue}.before").send(b"tea")
        outcome = yield lambda: ps.queue(queue).send(b"tea")
        outcome.done()
        assert bodies(bench, queue) == [b"tea"]


def connect_and_send(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    """The handshake breaks, or what comes after it. Whoever connects for the first time is told so."""

    def act() -> Any:
        with bench.connect(transport=bench.transport) as ps:
            return ps.queue(queue).send(b"tea")

    outcome = yield act
    if outcome.was_refused(penstock.ConnectionLost):
        assert queue not in bench.beside.queues(prefix=queue)
    else:
        assert bodies(bench, queue) == [b"tea"]


def connect_and_send_by_task(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    """The same in an event loop, with several calls at a time."""

    async def run() -> list[Any]:
        async with penstock.connect_async(bench.url, transport=bench.transport, timeout=CALL_SECONDS) as ps:
            return await asyncio.gather(*(ps.queue(queue).send(body) for body in (b"tea", b"cake")))

    outcome = yield lambda: asyncio.run(run())
    if outcome.was_refused(penstock.ConnectionLost):
        assert queue not in bench.beside.queues(prefix=queue)
    else:
        assert bodies(bench, queue) == [b"tea", b"cake"]


def reconnect_and_send(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    """The connection is lost, and breaks again while it is made."""

    def act() -> Any:
        bench.proxy.reset()
        return bench.ps.queue(queue).send(b"tea")

    outcome = yield act
    outcome.done()
    assert bodies(bench, queue) == [b"tea"]


OPERATIONS: tuple[Operation, ...] = (
    create_queue,
    delete_queue,
    send_one,
    send_many,
    receive,
    receive_nothing,
    ack,
    release,
    extend,
    commit,
    rollback,
    redrive,
    peek,
    browse,
    consumer_read,
    consumer_ack,
    session,
    listen,
    receive_prefetched,
    route_and_send,
    connect_and_send,
    connect_and_send_by_task,
    reconnect_and_send,
)


# -- operations of the Spark connector, which needs no Spark for them --------------------------------------------------


def spark_where(bench: Bench) -> Where:
    """The server, as the connector's options name it."""
    return Where(url=f"http://127.0.0.1:{bench.proxy.port}", timeout_s=CALL_SECONDS)


@contextmanager
def spark_place(bench: Bench) -> Iterator[ServerPlace]:
    """The connector's reader, with a connection that stands. When the operation is over, it must still be of use."""
    with closing(ServerPlace(spark_where(bench))) as place:
        place.find([])
        yield place
        place.find([])


@contextmanager
def spark_connection(bench: Bench) -> Iterator[Connection]:
    """The connector's connection, as its sink uses it."""
    with closing(Connection(spark_where(bench))) as connection:
        connection.ask("POST", "/v1/bulk/queues", {"after": "", "limit": 1})
        yield connection
        connection.ask("POST", "/v1/bulk/queues", {"after": "", "limit": 1})


def spark_queues(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.create_queue(queue)
    with spark_place(bench) as place:
        outcome = yield place.queues
        assert queue in outcome.done()
    bench.beside.queue(queue).delete()  # the answer names all that there are


def spark_offsets(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.queue(queue).send_many([b"tea", b"cake"])
    with spark_place(bench) as place:
        outcome = yield lambda: place.find([queue])
        found = outcome.done()
        assert [(part, at.first, at.end) for part, at in found.items()] == [(Part(queue, 0), 0, 2)]


def spark_read(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    for number in range(3):
        bench.beside.queue(queue).send_many([b"%d %d" % (number, each) for each in range(5)])
    with spark_place(bench) as place:
        outcome = yield lambda: list(place.batches(Range(queue, 0, 15, 0), BASE_COLUMNS))
        batches = outcome.done()
        assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == list(range(15))
        assert batches[0]["value"][0].as_py() == b"0 0"


def spark_refusal(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    with spark_place(bench) as place:
        outcome = yield lambda: place.ack_up_to("no such channel", {Part(queue, 0): 1})
        assert outcome.was_refused(ServerFailed)
        assert isinstance(outcome.error, ServerFailed) and outcome.error.code == "queue_not_found", outcome.error


def piece_of(queue: str) -> list[Any]:
    """Two messages for a queue, as tasks send them."""
    return list(encode_section(Target(queue), Chunk.of(0, 0, [b"tea", b"cake"])))


def put_piece(connection: Connection, verb: str, path: str, queue: str) -> None:
    """Hand a piece over as the sink does."""
    parts = piece_of(queue)
    headers = {"content-type": CONTENT_TYPE, "content-length": str(sum(map(len, parts)))}
    connection.fetch(verb, path, parts, headers)


def spark_send(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    """At least once, as its name says."""
    with spark_connection(bench) as connection:
        outcome = yield lambda: put_piece(connection, "POST", "/v1/bulk/send", queue)
        outcome.done()
        assert bodies(bench, queue) in ([b"tea", b"cake"], [b"tea", b"cake", b"tea", b"cake"])


def spark_stage(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    with spark_connection(bench) as connection:
        outcome = yield lambda: put_piece(connection, "PUT", f"/v1/bulk/staging/{queue}/piece", queue)
        outcome.done()
        publish(connection, queue, ["piece"], queue, 0)
        assert bodies(bench, queue) == [b"tea", b"cake"]


def spark_publish(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    with spark_connection(bench) as connection:
        put_piece(connection, "PUT", f"/v1/bulk/staging/{queue}/piece", queue)
        outcome = yield lambda: publish(connection, queue, ["piece"], queue, 0)
        outcome.done()
        assert bodies(bench, queue) == [b"tea", b"cake"]


def spark_forget(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    with spark_connection(bench) as connection:
        put_piece(connection, "PUT", f"/v1/bulk/staging/{queue}/piece", queue)
        outcome = yield lambda: forget(connection, queue)
        outcome.done()
        with suppress(ServerFailed):
            publish(connection, queue, ["piece"], queue, 0)
        assert queue not in bench.beside.queues(prefix=queue)


def spark_create_channel(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.queue(queue).send_many([b"tea", b"cake"])
    with spark_place(bench) as place:
        outcome = yield lambda: place.create_channel(queue, "stream", [1])
        outcome.done()
    message = bench.beside.queue(queue).channel("stream").receive()
    assert message is not None and message.body == b"cake"


def spark_ack_up_to(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.queue(queue).send_many([b"tea", b"cake", b"jam"])
    bench.beside.queue(queue).channel("stream", start="head")
    with spark_place(bench) as place:
        outcome = yield lambda: place.ack_up_to("stream", {Part(queue, 0): 2})
        outcome.done()
    assert bench.beside.queue(queue).stats().channels["stream"].acked == 2
    message = bench.beside.queue(queue).channel("stream").receive()
    assert message is not None and message.body == b"jam"


def spark_take(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.create_queue(queue, max_receives=100).send_many([b"tea", b"cake"])
    with spark_place(bench) as place:
        outcome = yield lambda: place.take(queue, "main", 10, BASE_COLUMNS)
        table, spans = outcome.done()
        assert table["value"].to_pylist() == [b"tea", b"cake"]
        assert place.settle(queue, "main", spans, done=True) == 2
        assert bodies(bench, queue) == []


def spark_settle(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    """How many were settled decides whether the read is good: `DataLoss` if there were fewer than it took."""
    bench.beside.create_queue(queue, max_receives=100).send_many([b"tea", b"cake"])
    with spark_place(bench) as place:
        _, spans = place.take(queue, "main", 10, BASE_COLUMNS)
        outcome = yield lambda: place.settle(queue, "main", spans, done=True)
        assert outcome.done() == 2
        assert bodies(bench, queue) == []


def spark_give_back(bench: Bench, queue: str) -> Generator[Act, Outcome, None]:
    bench.beside.create_queue(queue, max_receives=100).send_many([b"tea", b"cake"])
    with spark_place(bench) as place:
        _, spans = place.take(queue, "main", 10, BASE_COLUMNS)
        outcome = yield lambda: place.settle(queue, "main", spans, done=False)
        assert outcome.done() == 2
        again = bench.beside.queue(queue).receive(max=10)
        assert [(message.body, message.attempts) for message in again] == [(b"tea", 2), (b"cake", 2)]


SPARK_OPERATIONS: tuple[Operation, ...] = (
    spark_queues,
    spark_offsets,
    spark_read,
    spark_refusal,
    spark_send,
    spark_stage,
    spark_publish,
    spark_forget,
    spark_create_channel,
    spark_ack_up_to,
    spark_take,
    spark_settle,
    spark_give_back,
)


# -- every byte --------------------------------------------------------------------------------------------------------


def soak(transport: TransportName | None, operations: Iterable[Operation], most: int | None, seed: int) -> int:
    """Sweep some operations, and print what was wrong; how many cuts were."""
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="penstock-broken-") as directory, bench(Path(directory), transport) as made:
        for operation in operations:
            began, cuts = time.monotonic(), 0
            for cut, fault in sweep(made, operation, most=most, seed=seed):
                cuts += cut.is_done
                if fault:
                    wrong += 1
                    print(f"{transport or 'spark'}: {fault}", flush=True)
            seconds = time.monotonic() - began
            print(f"{transport or 'spark'}, {operation.__name__}: {cuts} cuts, {seconds:.0f} s", flush=True)
    return wrong


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Cut connections after every byte.")
    parser.add_argument("operations", nargs="*", help="which; by default all")
    parser.add_argument("--most", type=int, default=None, help="cuts of each operation in each direction; else all")
    parser.add_argument("--seed", type=int, default=1, help="chooses them")
    parser.add_argument("--transport", choices=[*TRANSPORTS, "spark"], default=None, help="by default all")
    arguments = parser.parse_args()
    wrong = 0
    for transport in TRANSPORTS if arguments.transport is None else {arguments.transport} & set(TRANSPORTS):
        wrong += soak(transport, chosen(OPERATIONS, arguments.operations), arguments.most, arguments.seed)
    if arguments.transport in (None, "spark"):
        wrong += soak(None, chosen(SPARK_OPERATIONS, arguments.operations), arguments.most, arguments.seed)
    return 1 if wrong else 0


def chosen(operations: Iterable[Operation], names: Sequence[str]) -> list[Operation]:
    """The operations with these names; all if there are none."""
    return [operation for operation in operations if not names or operation.__name__ in names]


if __name__ == "__main__":
    sys.exit(main())
