"""What a request leaves behind, also one that is refused: nothing that the garbage collector has to look for.

Objects that know each other in a ring are only found by a collection, which stops everybody for some milliseconds: at a
thousand requests a second that is most of the slowest hundredth.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import json
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import __version__
from penstock.assembly import front_ends
from penstock.client.remote.address import TransportName
from penstock.server.node import Node, Ready
from penstock.server.settings import parse
from tests.protocols.nsq.clients.wire import Connection, fin

REQUESTS = 300
WARM_UP = 20


def post(connection: http.client.HTTPConnection, path: str, request: dict[str, Any], **headers: str) -> dict[str, Any]:
    connection.request("POST", path, json.dumps(request), {name.replace("_", "-"): headers[name] for name in headers})
    response = connection.getresponse()
    answer: dict[str, Any] = json.loads(response.read() or b"{}")
    assert response.status < 300, answer
    return answer


def over_sqs(ready: Ready, until_done: ExitStack) -> Callable[[int], None]:
    connection = http.client.HTTPConnection("127.0.0.1", ready.listening["sqs"].port)
    until_done.callback(connection.close)

    def call(action: str, **request: Any) -> dict[str, Any]:
        kind = "application/x-amz-json-1.0"
        return post(connection, "/", request, Content_Type=kind, X_Amz_Target=f"AmazonSQS.{action}")

    url = call("CreateQueue", QueueName="orders")["QueueUrl"]

    def work(count: int) -> None:
        for _ in range(count):
            call("SendMessage", QueueUrl=url, MessageBody="x")
            (message,) = call("ReceiveMessage", QueueUrl=url)["Messages"]
            call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    return work


def over_rest(ready: Ready, until_done: ExitStack) -> Callable[[int], None]:
    connection = http.client.HTTPConnection("127.0.0.1", ready.listening["http"].port)
    until_done.callback(connection.close)

    def work(count: int) -> None:
        for _ in range(count):
            post(connection, "/v1/queues/orders/messages", {"body": "x"}, Content_Type="application/json")

    return work


def connected(ready: Ready, until_done: ExitStack, transport: TransportName) -> Callable[[int], None]:
    url = f"penstock://127.0.0.1:{ready.listening['http'].port}"
    ps = until_done.enter_context(penstock.connect(url, transport=transport))

    def work(count: int) -> None:
        orders = ps.queue("orders")
        for _ in range(count):
            orders.send(b"x")
            message = orders.receive(wait=60)
            assert message is not None
            message.ack()

    return work


def over_a_websocket(ready: Ready, until_done: ExitStack) -> Callable[[int], None]:
    return connected(ready, until_done, "websocket")


def by_long_poll(ready: Ready, until_done: ExitStack) -> Callable[[int], None]:
    return connected(ready, until_done, "long_poll")


def by_poll(ready: Ready, until_done: ExitStack) -> Callable[[int], None]:
    return connected(ready, until_done, "poll")


def over_nsq(ready: Ready, until_done: ExitStack) -> Callable[[int], None]:
    address = ("127.0.0.1", ready.listening["nsq"].port)
    publisher, consumer = (until_done.enter_context(Connection(address)) for _ in range(2))
    consumer.subscribe("orders", "main", ready=1)

    def work(count: int) -> None:
        for _ in range(count):
            publisher.publish("orders", b"x")
            consumer.send(fin(consumer.message()))

    return work


def refused_over_sqs(ready: Ready, until_done: ExitStack) -> Callable[[int], None]:
    connection = http.client.HTTPConnection("127.0.0.1", ready.listening["sqs"].port)
    until_done.callback(connection.close)
    url = "http://x/000000000000/nowhere"
    requests = {
        "SendMessage": {"QueueUrl": url, "MessageBody": "x"},
        "ReceiveMessage": {"QueueUrl": url},
        "DeleteMessage": {"QueueUrl": url, "ReceiptHandle": "x"},
        "GetQueueUrl": {"QueueName": "nowhere"},
    }

    def work(count: int) -> None:
        for _ in range(count):
            for action, request in requests.items():
                headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
                connection.request("POST", "/", json.dumps(request), headers)
                response = connection.getresponse()
                assert (response.status, len(response.read()) > 0) == (400, True)

    return work


def refused_over_rest(ready: Ready, until_done: ExitStack) -> Callable[[int], None]:
    connection = http.client.HTTPConnection("127.0.0.1", ready.listening["http"].port)
    until_done.callback(connection.close)

    def work(count: int) -> None:
        for _ in range(count):
            for method, path, body in (
                ("GET", "/v1/queues/nowhere", ""),
                ("POST", "/v1/queues/nowhere/receive", "{}"),
                ("POST", "/v1/queues/orders/messages", "{"),
            ):
                connection.request(method, path, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                assert (response.status in (400, 404), len(response.read()) > 0) == (True, True)

    return work


def refused_over_nsq(ready: Ready, until_done: ExitStack) -> Callable[[int], None]:
    consumer = until_done.enter_context(Connection(("127.0.0.1", ready.listening["nsq"].port)))
    consumer.subscribe("orders", "main", ready=1)

    def work(count: int) -> None:
        for _ in range(count):
            consumer.send(b"FIN 0123456789abcdef\n")
            answer = consumer.frame()
            assert answer is not None and answer.data.startswith(b"E_FIN_FAILED")

    return work


def refuse(ps: penstock.Penstock, count: int) -> None:
    """A queue that is not there, a lease that is over, a request that no queue takes, a wait that ends with nothing."""
    orders = ps.queue("orders")
    for _ in range(count):
        with contextlib.suppress(penstock.QueueNotFound):
            ps.queue("nowhere").stats()
        with contextlib.suppress(penstock.InvalidRequest):
            orders.send(b"x", priority=12)
        orders.send(b"x")
        message = orders.receive(wait=60)
        assert message is not None
        message.ack()
        with contextlib.suppress(penstock.StaleReceipt):
            message.ack()
        assert orders.receive(wait=0.001) is None


def refused_when_connected(ready: Ready, until_done: ExitStack, transport: TransportName) -> Callable[[int], None]:
    url = f"penstock://127.0.0.1:{ready.listening['http'].port}"
    return partial(refuse, until_done.enter_context(penstock.connect(url, transport=transport)))


def refused_over_a_websocket(ready: Ready, until_done: ExitStack) -> Callable[[int], None]:
    return refused_when_connected(ready, until_done, "websocket")


def refused_by_long_poll(ready: Ready, until_done: ExitStack) -> Callable[[int], None]:
    return refused_when_connected(ready, until_done, "long_poll")


def refused_in_process(_ready: Ready, until_done: ExitStack) -> Callable[[int], None]:
    return partial(refuse, until_done.enter_context(penstock.open(":memory:")))


def refused_in_a_loop(ready: Ready, _until_done: ExitStack) -> Callable[[int], None]:
    """The client for tasks."""
    url = f"penstock://127.0.0.1:{ready.listening['http'].port}"

    async def refuse_all(count: int) -> None:
        async with await penstock.connect_async(url) as ps:
            for _ in range(count):
                with contextlib.suppress(penstock.QueueNotFound):
                    await ps.queue("nowhere").stats()
                with contextlib.suppress(penstock.InvalidRequest):
                    await ps.queue("orders").send(b"x", priority=12)

    return lambda count: asyncio.run(refuse_all(count))


SUCCEEDING = [over_sqs, over_rest, over_a_websocket, by_long_poll, by_poll, over_nsq]
REFUSED = [
    refused_over_sqs,
    refused_over_rest,
    refused_over_nsq,
    refused_over_a_websocket,
    refused_by_long_poll,
    refused_in_process,
    refused_in_a_loop,
]


@pytest.mark.parametrize("front_end", [*SUCCEEDING, *REFUSED])
def test_requests_leave_no_rings_of_objects_behind(
    front_end: Callable[[Ready, ExitStack], Callable[[int], None]], tmp_path: Path
) -> None:
    settings = parse("").overridden(
        "server", data=str(tmp_path), sqs_port=0, http_port=0, nsq_tcp_port=0, nsq_http_port=0
    )

    async def main() -> int:
        async with Node(settings, front_ends(settings), __version__) as ready, AsyncExitStack() as closing:
            until_done = ExitStack()
            closing.push_async_callback(asyncio.to_thread, until_done.close)
            work = await asyncio.to_thread(front_end, ready, until_done)
            await asyncio.to_thread(work, WARM_UP)
            gc.collect()
            gc.disable()
            try:
                await asyncio.to_thread(work, REQUESTS)
                return gc.collect()
            finally:
                gc.enable()

    assert asyncio.run(main()) < REQUESTS / 2
