"""The worst moment: the server has done it, and its answer is lost. And its neighbours, one by one."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

import penstock
from tests.client.node import ThreadedNode
from tests.faults.proxy import Proxy

T = TypeVar("T")
LONG_SECONDS = 600
PATIENCE_SECONDS = 30
SETTINGS = """
[websocket]
heartbeat_s = 5
session_ttl_s = 6
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ThreadedNode]:
    node = ThreadedNode(tmp_path / "data", SETTINGS)
    yield node
    node.stop()


@pytest.fixture
def proxy(node: ThreadedNode) -> Iterator[Proxy]:
    proxy = Proxy(node.port)
    yield proxy
    proxy.close()


@pytest.fixture(params=["websocket", "long_poll", "poll"])
def ps(request: pytest.FixtureRequest, proxy: Proxy) -> Iterator[penstock.Penstock]:
    """Connected through the proxy; it hears of nothing by itself for a while: the tests say when."""
    url = f"penstock://127.0.0.1:{proxy.port}"
    with penstock.connect(url, transport=request.param, timeout=PATIENCE_SECONDS, heartbeat=5) as ps:
        yield ps


@pytest.fixture
def beside(node: ThreadedNode) -> Iterator[penstock.Penstock]:
    """Connected past the proxy."""
    with penstock.connect(node.url) as ps:
        yield ps


def in_thread(do: Callable[[], T]) -> Future[T]:
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(do())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def eventually(claim: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not claim():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def with_its_answer_lost(proxy: Proxy, do: Callable[[], T], is_done: Callable[[], Any]) -> T:
    """Call; when the server has done it, and its answer went nowhere, reset the connection. What the call gives."""
    proxy.lose_answers()
    outcome = in_thread(do)
    eventually(is_done)
    proxy.reset()
    return outcome.result(PATIENCE_SECONDS)


def count(ps: penstock.Penstock, queue: str) -> int:
    try:
        return ps.queue(queue).stats().sent
    except penstock.QueueNotFound:
        return 0


def test_a_send_whose_answer_is_lost_is_sent_once(
    proxy: Proxy, ps: penstock.Penstock, beside: penstock.Penstock
) -> None:
    sent = with_its_answer_lost(proxy, lambda: ps.queue("orders").send(b"tea"), lambda: count(beside, "orders"))
    assert [(message.id, message.body) for message in beside.queue("orders").peek()] == [(sent.id, b"tea")]
    assert not sent.duplicate


def test_a_run_whose_answer_is_lost_is_sent_once(
    proxy: Proxy, ps: penstock.Penstock, beside: penstock.Penstock
) -> None:
    bodies = [b"%d" % number for number in range(500)]
    sent = with_its_answer_lost(proxy, lambda: ps.queue("orders").send_many(bodies), lambda: count(beside, "orders"))
    seen = beside.queue("orders").browse(limit=1_000)
    assert [message.body for message in seen] == bodies
    assert [message.id for message in seen] == [one.id for one in sent]


def test_an_ack_whose_answer_is_lost_counts_as_done(
    proxy: Proxy, ps: penstock.Penstock, beside: penstock.Penstock
) -> None:
    ps.queue("orders").send(b"tea")
    message = ps.queue("orders").receive(lease=LONG_SECONDS)
    assert message is not None
    with_its_answer_lost(proxy, message.ack, lambda: beside.queue("orders").stats().channels["main"].acked == 1)
    assert beside.queue("orders").stats().channels["main"].failed == 0


def test_a_commit_whose_answer_is_lost_happens_once(
    proxy: Proxy, ps: penstock.Penstock, beside: penstock.Penstock
) -> None:
    ps.queue("in").send(b"tea")
    with ps.unit_of_work() as work:
        assert work.take("in", lease=LONG_SECONDS) is not None
        work.put("out", b"tea")
        work.put("out", b"cake")
        with_its_answer_lost(proxy, work.commit, lambda: count(beside, "out") == 2)
        assert work.state == "committed"
    assert [message.body for message in beside.queue("out").peek()] == [b"tea", b"cake"]
    assert beside.queue("in").peek() == []


def test_a_message_of_consume_once_whose_delivery_is_lost_is_not_delivered_again(
    proxy: Proxy, ps: penstock.Penstock, beside: penstock.Penstock
) -> None:
    beside.create_queue("orders", policy="consume_once", lease=1).send(b"tea")
    proxy.lose_answers()
    outcome = in_thread(lambda: ps.queue("orders").receive(wait=1))
    eventually(lambda: beside.queue("orders").stats().channels["main"].ready == 0)
    proxy.reset()
    assert outcome.result(PATIENCE_SECONDS) is None
    eventually(lambda: beside.queue("orders").stats().channels["main"].leased == 0)
    assert beside.queue("orders").receive() is None


def test_a_message_whose_delivery_is_lost_comes_again_long_before_its_lease_ends(
    request: pytest.FixtureRequest, proxy: Proxy, ps: penstock.Penstock, beside: penstock.Penstock
) -> None:
    beside.create_queue("orders", lease=LONG_SECONDS).send(b"tea")
    proxy.lose_answers()
    outcome = in_thread(lambda: ps.queue("orders").receive(wait=PATIENCE_SECONDS))
    eventually(lambda: beside.queue("orders").stats().channels["main"].leased == 1)
    proxy.reset()
    message = outcome.result(PATIENCE_SECONDS)
    assert message is not None and message.body == b"tea"
    message.ack()


def shut_out(proxy: Proxy) -> None:
    """Cut the client off, until it has noticed and tries in vain to come back."""
    tried = proxy.accepted
    proxy.shut(True)
    proxy.reset()
    eventually(lambda: proxy.accepted > tried)


def test_a_killed_client_leaves_its_messages_to_others_at_once(node: ThreadedNode, beside: penstock.Penstock) -> None:
    beside.create_queue("orders", lease=LONG_SECONDS).send(b"tea")
    program = (
        f"import penstock, time; ps = penstock.connect({node.url!r}); message = ps.queue('orders').receive(); "
        "print(message.text, flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"tea\n"
    assert beside.queue("orders").receive() is None
    child.kill()
    child.wait()
    child.stdout.close()
    message = beside.queue("orders").receive(wait=PATIENCE_SECONDS)
    assert message is not None
    assert message.attempts == 2
    message.ack()


def test_a_server_that_comes_back_is_found_again(node: ThreadedNode, proxy: Proxy, ps: penstock.Penstock) -> None:
    shut_out(proxy)
    outcome = in_thread(lambda: ps.queue("orders").send(b"tea"))
    tried = proxy.accepted
    eventually(lambda: proxy.accepted > tried)
    assert not outcome.done()
    proxy.shut(False)
    assert outcome.result(PATIENCE_SECONDS).sequence == 0


def test_a_call_that_runs_out_of_time_says_whether_it_was_sent(proxy: Proxy, beside: penstock.Penstock) -> None:
    url = f"penstock://127.0.0.1:{proxy.port}"
    with penstock.connect(url, transport="websocket", timeout=1, heartbeat=5) as ps:
        proxy.lose_answers()
        with pytest.raises(penstock.OutcomeUnknown):
            ps.queue("orders").send(b"left, and no answer came")
        shut_out(proxy)
        with pytest.raises(penstock.NotSent):
            ps.queue("orders").send(b"never left")
        proxy.shut(False)
    eventually(lambda: count(beside, "orders"))
    assert [message.body for message in beside.queue("orders").peek()] == [b"left, and no answer came"]
