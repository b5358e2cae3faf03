"""Signals that the main thread is not woken by, or that find it with a lock in its hand."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.client.thread_workers import Signal
from penstock.signals import told_to_stop
from tests.client.node import ThreadedNode

LATE_SECONDS = 20.0


def test_a_signal_that_does_not_wake_the_main_thread_is_heard_all_the_same() -> None:
    # One that another thread is sent leaves it asleep, as does one that comes just before it falls asleep.
    asked, given_up = Signal(), threading.Event()

    def send() -> None:
        time.sleep(0.2)  # it sleeps by then
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    def give_up() -> None:
        given_up.set()
        asked.set()

    late = threading.Timer(LATE_SECONDS, give_up)
    late.start()
    with told_to_stop(asked.set):
        threading.Thread(target=send).start()
        asked.wait()
    late.cancel()
    assert not given_up.is_set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_may_come_while_its_event_is_being_looked_at(number: signal.Signals) -> None:
    event = threading.Event()
    lock = threading.Lock()
    event._cond = threading.Condition(lock)  # type: ignore[attr-defined]
    with told_to_stop(event.set), lock:  # as in the middle of event.wait()
        os.kill(os.getpid(), number)
        _let_handlers_run()
    assert event.wait(LATE_SECONDS)


@pytest.mark.parametrize("where", ["in this process", "at a server"])
def test_an_interrupt_that_does_not_wake_a_waiting_receive_is_heard_all_the_same(where: str, tmp_path: Path) -> None:
    node = ThreadedNode(tmp_path) if where == "at a server" else None
    try:
        with penstock.open(tmp_path) if node is None else penstock.connect(node.url) as ps:
            orders = ps.create_queue("orders")

            def interrupt() -> None:
                while not orders.stats().channels["main"].waiting_receivers:
                    time.sleep(0.01)
                time.sleep(0.2)  # it sleeps by then
                signal.pthread_kill(threading.get_ident(), signal.SIGINT)

            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            started = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                orders.receive(wait=3 * LATE_SECONDS)
            assert time.monotonic() - started < 2 * LATE_SECONDS
            interrupting.join()
    finally:
        if node is not None:
            node.stop()


def test_every_signal_is_told_and_who_heard_them_before_hears_them_again() -> None:
    before: list[Callable[..., object] | int | None] = [signal.getsignal(signal.SIGTERM)]
    told: list[int] = []
    with told_to_stop(lambda: told.append(1)):
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)
            until = time.monotonic() + LATE_SECONDS
            while len(told) < count and time.monotonic() < until:
                time.sleep(0.01)
    assert len(told) == 2
    assert [signal.getsignal(signal.SIGTERM)] == before


def _let_handlers_run() -> None:
    for _ in range(1_000):
        pass
