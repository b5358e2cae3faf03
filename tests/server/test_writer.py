"""The thread that writes what has left already."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from functools import partial

from penstock.server.tasks import Writer

EXITING = """
import time
from penstock.server.tasks import Writer

writer = Writer("test")
writer.submit(lambda: time.sleep(0.2))
writer.submit(lambda: print("done"))
"""


def test_a_process_that_ends_without_closing_it_has_everything_done_before() -> None:
    ended = subprocess.run([sys.executable, "-c", EXITING], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "done\n"


def test_its_thread_ends_when_it_is_closed_and_once_more_does_nothing() -> None:
    writer = Writer("penstock-test-writer")
    threads: list[threading.Thread] = []
    writer.submit(lambda: threads.append(threading.current_thread()))
    writer.close()
    writer.close()
    assert [thread.name for thread in threads] == ["penstock-test-writer"]
    assert not threads[0].is_alive()


def test_it_does_not_keep_what_its_last_job_was_given() -> None:
    class Given:
        pass

    writer, given, forgotten = Writer("penstock-test-writer"), Given(), threading.Event()
    weakref.finalize(given, forgotten.set)
    writer.submit(partial(lambda _: None, given))
    del given
    assert forgotten.wait(10)
    writer.close()


def test_its_thread_ends_when_nobody_has_it_any_more() -> None:
    threads: list[threading.Thread] = []
    writer = Writer("penstock-test-writer")
    writer.submit(lambda: threads.append(threading.current_thread()))
    del writer
    gc.collect()
    threads[0].join(10)
    assert not threads[0].is_alive()
