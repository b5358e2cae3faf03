"""What bench/client.py asks of every contender, and how each one is driven: as well as its own Python client allows.

| | sends in runs | receives in runs | singles |
|---|---|---|---|
| Penstock | `send_many` | `receive_batch`, `ack` of the batch | `send`, from tasks; `listen` |
| Redis Streams | a pipeline of XADDs | XACK, XDEL and the next XREADGROUP in one pipeline | a connection each |
| RabbitMQ | published at once, then all confirms | pushed with a prefetch of two runs, acked by run | one channel |
| NATS JetStream | `publish_async`, then all futures | `fetch`, the last one acked for all | pushed; one connection |

All of it is in one process and one event loop (uvloop's); redis-py has hiredis. Handlers do nothing but count. Acks of
NATS in the listener are not confirmed by the server: there is nothing to wait for in its client.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

import nats
import pika
import redis
import redis.asyncio
from nats.js.api import AckPolicy, ConsumerConfig, StorageType
from pika.adapters.asyncio_connection import AsyncioConnection

import penstock
from bench.sqs_servers import HOST

Handler = Callable[[bytes], None]
WORKERS = 8
PREFETCH = 100
"""How many messages a listener asks for at a time."""
CONNECTIONS_MAX = 10_000
"""Of redis-py, which has one for each send in flight and refuses more than 100 by itself: when the machine stands still
for a moment, sends at an even pace are more than that, and the run would fail."""
WAIT_S = 10
BLOCK_MS = 250
"""Redis wakes who waits at once. But redis-py does not stop waiting when its task is cancelled."""


class Peer(Protocol):
    """A contender: its client, connected."""

    async def create(self, queue: str) -> None:
        """Make a durable queue."""
        ...

    async def send_runs(self, queue: str, runs: Sequence[list[bytes]]) -> None:
        """Send run after run; each is acknowledged before the next."""
        ...

    async def receive_runs(self, queue: str, count: int, run: int) -> None:
        """Receive and acknowledge so many messages, in runs."""
        ...

    async def send(self, queue: str, body: bytes) -> None:
        """Send one message; it is acknowledged when this returns."""
        ...

    async def listen(self, queue: str, count: int, handler: Handler) -> float:
        """Let `WORKERS` workers handle and acknowledge messages one by one. When (`time.perf_counter`) so many were."""
        ...

    async def move(self, source: str, target: str, count: int) -> float:
        """Let `WORKERS` workers take one, put one and commit. When so many were moved."""
        ...

    async def close(self) -> None: ...


async def send_singles(peer: Peer, queue: str, bodies: Sequence[bytes], in_flight: int) -> None:
    """Send messages one by one, from so many tasks at once."""
    left = iter(bodies)

    async def work() -> None:
        for body in left:
            await peer.send(queue, body)

    await asyncio.gather(*(work() for _ in range(in_flight)))


class Countdown:
    """How many are still to come; `over` when none are, at `over_s` of `time.perf_counter`."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.over = asyncio.Event()
        self.over_s = 0.0

    def one(self) -> None:
        """One has come."""
        self.left -= 1
        if self.left <= 0 and not self.over.is_set():
            self.over.set()
            self.over_s = time.perf_counter()


async def until_over(countdown: Countdown, workers: Iterator[Awaitable[None]]) -> float:
    """Let workers run until all have come; what one of them raises is raised. When it was over."""
    tasks = [asyncio.ensure_future(worker) for worker in workers]
    over = asyncio.ensure_future(countdown.over.wait())
    done, _ = await asyncio.wait([over, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in [over, *tasks]:
        task.cancel()
    await asyncio.gather(over, *tasks, return_exceptions=True)
    for task in done - {over}:
        task.result()
    if not countdown.over.is_set():
        raise RuntimeError(f"the workers ended, and {countdown.left} messages are missing")
    return countdown.over_s


# -- Penstock ----------------------------------------------------------------------------------------------------------


class PenstockPeer:
    """Penstock through `penstock.connect_async`."""

    def __init__(self, ps: penstock.AsyncPenstock, *, deliver_unsynced: bool) -> None:
        self._ps = ps
        self._deliver_unsynced = deliver_unsynced

    @classmethod
    async def connect(cls, port: int, *, deliver_unsynced: bool = False, busy_poll: float = 0.0) -> PenstockPeer:
        """Connect by websocket. What this one creates waits for the disk before it hands a message on, or not."""
        ps = await penstock.connect_async(f"penstock://{HOST}:{port}", busy_poll=busy_poll)
        return cls(ps, deliver_unsynced=deliver_unsynced)

    async def create(self, queue: str) -> None:
        await self._ps.create_queue(queue, deliver_unsynced=self._deliver_unsynced)

    async def send_runs(self, queue: str, runs: Sequence[list[bytes]]) -> None:
        handle = self._ps.queue(queue)
        for run in runs:
            await handle.send_many(run)

    async def receive_runs(self, queue: str, count: int, run: int) -> None:
        handle = self._ps.queue(queue)
        while count > 0:
            batch = await handle.receive_batch(max=run, wait=WAIT_S)
            count -= len(batch)
            await batch.ack()

    async def send(self, queue: str, body: bytes) -> None:
        await self._ps.queue(queue).send(body)

    async def listen(self, queue: str, count: int, handler: Handler) -> float:
        countdown = Countdown(count)

        async def handle(message: penstock.AsyncMessage) -> None:
            handler(message.body)
            countdown.one()

        async with await self._ps.listen(queue, handle, workers=WORKERS):
            await countdown.over.wait()
        return countdown.over_s

    async def move(self, source: str, target: str, count: int) -> float:
        countdown = Countdown(count)

        async def work() -> None:
            while True:
                async with self._ps.unit_of_work() as work:
                    message = await work.take(source, wait=WAIT_S)
                    if message is not None:
                        work.put(target, message.body)
                        await work.commit()
                        countdown.one()

        return await until_over(countdown, (work() for _ in range(WORKERS)))

    async def close(self) -> None:
        await self._ps.close()


# -- Redis Streams -----------------------------------------------------------------------------------------------------

_GROUP, _NEW = "group", ">"


class RedisPeer:
    """Redis Streams through redis-py: runs by the client for threads, which is the faster one; the rest by tasks."""

    def __init__(self, port: int) -> None:
        self._redis = redis.Redis(HOST, port)
        self._tasks = redis.asyncio.Redis(host=HOST, port=port, max_connections=CONNECTIONS_MAX)

    async def create(self, queue: str) -> None:
        self._redis.xgroup_create(queue, _GROUP, id="0", mkstream=True)

    async def send_runs(self, queue: str, runs: Sequence[list[bytes]]) -> None:
        for run in runs:
            pipe = self._redis.pipeline(transaction=False)
            for body in run:
                pipe.execute_command("XADD", queue, "*", "b", body)  # type: ignore[no-untyped-call]
            pipe.execute()

    async def receive_runs(self, queue: str, count: int, run: int) -> None:
        entries = _entries(self._redis.xreadgroup(_GROUP, "one", {queue: _NEW}, count=run))
        while True:
            count -= len(entries)
            ids = [each[0] for each in entries]
            pipe = self._redis.pipeline(transaction=False)
            pipe.xack(queue, _GROUP, *ids)
            pipe.xdel(queue, *ids)
            if count <= 0:
                pipe.execute()
                return
            pipe.xreadgroup(_GROUP, "one", {queue: _NEW}, count=run)
            entries = _entries(pipe.execute()[2])

    async def send(self, queue: str, body: bytes) -> None:
        await self._tasks.execute_command("XADD", queue, "*", "b", body)  # type: ignore[no-untyped-call]

    async def listen(self, queue: str, count: int, handler: Handler) -> float:
        countdown = Countdown(count)

        async def work(name: str) -> None:
            while not countdown.over.is_set():
                reply = await self._tasks.xreadgroup(_GROUP, name, {queue: _NEW}, count=PREFETCH, block=BLOCK_MS)
                for entry_id, fields in _entries(reply):
                    handler(fields[b"b"])
                    pipe = self._tasks.pipeline(transaction=False)
                    pipe.xack(queue, _GROUP, entry_id)
                    pipe.xdel(queue, entry_id)
                    await pipe.execute()
                    countdown.one()

        return await until_over(countdown, (work(f"worker {number}") for number in range(WORKERS)))

    async def move(self, source: str, target: str, count: int) -> float:
        countdown = Countdown(count)

        async def work(name: str) -> None:
            while not countdown.over.is_set():
                reply = await self._tasks.xreadgroup(_GROUP, name, {source: _NEW}, count=1, block=BLOCK_MS)
                for entry_id, fields in _entries(reply):
                    pipe = self._tasks.pipeline(transaction=True)
                    pipe.execute_command("XADD", target, "*", "b", fields[b"b"])
                    pipe.xack(source, _GROUP, entry_id)
                    pipe.xdel(source, entry_id)
                    await pipe.execute()
                    countdown.one()

        return await until_over(countdown, (work(f"mover {number}") for number in range(WORKERS)))

    async def close(self) -> None:
        self._redis.close()
        await self._tasks.aclose()


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries in a reply to XREADGROUP of one stream, as RESP2 or RESP3 has it."""
    if not reply:
        return []
    if isinstance(reply, dict):
        (found,) = reply.values()
        return [(each[0], each[1]) for each in (found[0] if found and isinstance(found[0], list) else found)]
    return [(each[0], each[1]) for each in reply[0][1]]


# -- RabbitMQ ----------------------------------------------------------------------------------------------------------

_PERSISTENT = pika.BasicProperties(delivery_mode=2)


class RabbitPeer:
    """RabbitMQ through pika on the event loop: durable queues, persistent messages, publisher confirms."""

    def __init__(self, connection: AsyncioConnection, channel: Any) -> None:
        self._connection = connection
        self._channel = channel
        self._sent = 0
        self._unconfirmed: dict[int, asyncio.Future[None] | None] = {}
        self._all_confirmed = asyncio.Event()
        channel.confirm_delivery(self._on_confirm)

    @classmethod
    async def connect(cls, port: int) -> RabbitPeer:
        """Connect, and open the channel that is published through."""
        opened: asyncio.Future[AsyncioConnection] = asyncio.get_running_loop().create_future()
        AsyncioConnection(
            pika.ConnectionParameters(HOST, port, heartbeat=0),
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(error),
        )
        connection = await opened
        return cls(connection, await _channel(connection))

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if not isinstance(method, pika.spec.Basic.Ack):
            raise RuntimeError("RabbitMQ refused a message")
        tags = [method.delivery_tag]
        if method.multiple:
            tags = list(itertools.takewhile(lambda tag: tag <= method.delivery_tag, self._unconfirmed))
        for tag in tags:
            waiting = self._unconfirmed.pop(tag)
            if waiting is not None:
                waiting.set_result(None)
        if not self._unconfirmed:
            self._all_confirmed.set()

    def _publish(self, queue: str, body: bytes, confirmed: asyncio.Future[None] | None = None) -> None:
        self._channel.basic_publish("", queue, body, _PERSISTENT)
        self._sent += 1
        self._unconfirmed[self._sent] = confirmed

    async def create(self, queue: str) -> None:
        declared: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._channel.queue_declare(queue, durable=True, callback=declared.set_result)
        await declared

    async def send_runs(self, queue: str, runs: Sequence[list[bytes]]) -> None:
        for run in runs:
            self._all_confirmed.clear()
            for body in run:
                self._publish(queue, body)
            await self._all_confirmed.wait()

    async def receive_runs(self, queue: str, count: int, run: int) -> None:
        countdown = Countdown(count)
        channel = await _channel(self._connection, prefetch=2 * run)

        def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            countdown.one()
            if countdown.left % run == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)

        channel.basic_consume(queue, on_message)
        await countdown.over.wait()
        await _closed(channel)

    async def send(self, queue: str, body: bytes) -> None:
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._publish(queue, body, confirmed)
        await confirmed

    async def listen(self, queue: str, count: int, handler: Handler) -> float:
        countdown = Countdown(count)
        channel = await _channel(self._connection, prefetch=WORKERS * PREFETCH)
        arrived: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        channel.basic_consume(queue, lambda _, method, __, body: arrived.put_nowait((method.delivery_tag, body)))

        async def work() -> None:
            while True:
                tag, body = await arrived.get()
                handler(body)
                channel.basic_ack(tag)
                countdown.one()

        over_s = await until_over(countdown, (work() for _ in range(WORKERS)))
        await _closed(channel)
        return over_s

    async def move(self, source: str, target: str, count: int) -> float:
        """See `Peer`. Each worker has a channel in transaction mode, to which one message at a time is pushed."""
        countdown = Countdown(count)
        channels = [await _channel(self._connection, prefetch=1) for _ in range(WORKERS)]

        async def work(channel: Any) -> None:
            arrived: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
            loop = asyncio.get_running_loop()
            selected = loop.create_future()
            channel.tx_select(callback=selected.set_result)
            await selected
            channel.basic_consume(source, lambda _, method, __, body: arrived.put_nowait((method.delivery_tag, body)))
            while True:
                tag, body = await arrived.get()
                channel.basic_publish("", target, body, _PERSISTENT)
                channel.basic_ack(tag)
                committed = loop.create_future()
                channel.tx_commit(callback=committed.set_result)
                await committed
                countdown.one()

        over_s = await until_over(countdown, (work(channel) for channel in channels))
        for channel in channels:
            await _closed(channel)
        return over_s

    async def close(self) -> None:
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection.add_on_close_callback(lambda *_: closed.set_result(None))
        self._connection.close()
        await closed


async def _channel(connection: AsyncioConnection, prefetch: int = 0) -> Any:
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection.channel(on_open_callback=opened.set_result)
    channel = await opened
    if prefetch:
        set_up: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        channel.basic_qos(prefetch_count=prefetch, callback=set_up.set_result)
        await set_up
    return channel


async def _closed(channel: Any) -> None:
    closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    channel.add_on_close_callback(lambda *_: closed.set_result(None))
    channel.close()
    await closed


# -- NATS JetStream ----------------------------------------------------------------------------------------------------


class NatsPeer:
    """NATS JetStream through nats-py: file storage, pull consumers."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._stream = connection.jetstream()

    @classmethod
    async def connect(cls, port: int) -> NatsPeer:
        """Connect."""
        return cls(await nats.connect(f"nats://{HOST}:{port}"))

    async def create(self, queue: str) -> None:
        await self._stream.add_stream(name=queue, subjects=[queue], storage=StorageType.FILE)

    async def send_runs(self, queue: str, runs: Sequence[list[bytes]]) -> None:
        for run in runs:
            await asyncio.gather(*[await self._stream.publish_async(queue, body) for body in run])

    async def receive_runs(self, queue: str, count: int, run: int) -> None:
        settings = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=2 * run)
        puller = await self._stream.pull_subscribe(queue, durable="runs", config=settings)
        while count > 0:
            messages = await puller.fetch(run, timeout=WAIT_S)
            count -= len(messages)
            await messages[-1].ack_sync(timeout=WAIT_S)
        await puller.unsubscribe()

    async def send(self, queue: str, body: bytes) -> None:
        await self._stream.publish(queue, body, timeout=WAIT_S)

    async def listen(self, queue: str, count: int, handler: Handler) -> float:
        countdown = Countdown(count)

        async def handle(message: Any) -> None:
            handler(message.data)
            await message.ack()
            countdown.one()

        return await self._push(queue, WORKERS * PREFETCH, countdown, handle)

    async def move(self, source: str, target: str, count: int) -> float:
        """See `Peer`. There is no transaction here: a crash between the two leaves a message in both."""
        countdown = Countdown(count)

        async def move(message: Any) -> None:
            await self._stream.publish(target, message.data, timeout=WAIT_S)
            await message.ack_sync(timeout=WAIT_S)
            countdown.one()

        return await self._push(source, WORKERS, countdown, move)

    async def _push(
        self, queue: str, pending_max: int, countdown: Countdown, handle: Callable[[Any], Awaitable[None]]
    ) -> float:
        """Let the server push, so many ahead, and workers handle what arrives: `fetch` would wait for full batches."""
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        settings = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=pending_max)
        pushed = await self._stream.subscribe(queue, cb=arrived.put, manual_ack=True, config=settings)

        async def work() -> None:
            while True:
                await handle(await arrived.get())

        over_s = await until_over(countdown, (work() for _ in range(WORKERS)))
        await pushed.unsubscribe()
        return over_s

    async def close(self) -> None:
        await self._connection.close()
